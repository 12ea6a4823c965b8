// Inside a generation: one answer of one session. A batch has one for each row.
//
//   generate.c        options, creating, destroying
//   generate_prompt.c events of the prompt, and context shift
//   generate_step.c   one step of several generations: drafts, logits, choices
//   generate_text.c   from a chosen token to text, stops and events
//   generate_draft.c  where drafts come from
//   batch*.c          many of them: queue, budget, threads
#ifndef QN_SESSION_GENERATE_INT_H
#define QN_SESSION_GENERATE_INT_H

#include "gen/grammar/grammar.h"
#include "gen/stop.h"
#include "session/generate_draft.h"
#include "session/session_int.h"

// Where events go.
typedef struct qn_listener {
    qn_event_fn *fn; // NULL: no callback
    void *arg;
    uint64_t id;
    size_t row;
} qn_listener;

// A bit for each token of the vocabulary; NULL where not needed.
typedef struct qn_mask {
    uint32_t *bits;
    int64_t n_excluded; // tokens without one
} qn_mask;

struct qn_generation {
    qn_session *session;   // borrowed
    qn_generate_opts opts; // its lists, texts, sample and draft are not used after creation
    qn_listener to;
    qn_result result; // what it points to is ours
    qn_err err;       // of a generation that failed
    size_t cap_tokens, cap_text;
    size_t n_history;         // tokens of the session after the last step of this generation
    bool is_begun;            // prefill has begun
    bool is_prefilling;       // in the present step
    bool is_under_way;        // a step with it has begun and not ended
    bool leaves_logits;       // after the prompt, for forks: nothing is chosen in that step
    qn_progress_fn *progress; // of the prompt; NULL: none
    void *progress_arg;
    size_t n_shown;       // tokens of the prompt whose events were emitted; the first one has none
    int32_t *stop_tokens; // (opts.n_stop_tokens)
    qn_chooser *chooser;
    const qn_tokenizer *tokenizer; // borrowed; NULL: none
    qn_decoder *decoder;           // NULL: no tokenizer
    size_t shown;                  // bytes of the text that were emitted
    qn_stops *stops;               // NULL: none
    qn_stop_state stop_state;
    size_t stop_from;          // bytes of the text before stop_state begins
    const qn_grammar *grammar; // held; NULL: none
    qn_matcher *matcher;       // NULL: no grammar
    qn_mask endless;           // all but end tokens
    qn_mask early;             // all but end and stop tokens
    uint32_t *both;            // one of them, and the grammar's
    qn_token_logprob *top;     // (n_top)
    qn_drafter drafter;
};

static inline bool qn_generation_is_active(const qn_generation *g) {
    return g->result.reason == QN_REASON_NONE;
}

// Tokens of the prompt and the answer, including those that a context shift dropped.
static inline int64_t qn_generation_position(const qn_generation *g) {
    return g->session->memory.shifted + (int64_t)g->session->n_tokens;
}

// Events of the prompt's tokens were asked for, and not all of them were emitted.
static inline bool qn_generation_shows_prompt(const qn_generation *g) {
    return g->opts.prompt_logprobs && g->n_shown < (size_t)g->result.n_prompt;
}

// --- life ---

// Options are checked here. The session must have a history, need not have a place in its runner,
// and outlives the generation. Any thread may do this. opts may be NULL.
QN_MUST_CHECK qn_status qn_generation_create(qn_generation **out, qn_session *session,
                                             const qn_generate_opts *opts, qn_err *err);
void qn_generation_destroy(qn_generation *generation);

// --- steps ---

// One step of several generations whose sessions share a runner and have places in it. Those that
// have ended are skipped; an error of one ends that one. `prompt_rows`: max rows of prefill in a
// step that also decodes; 0: no limit. An error is one of the whole step: LIMIT where the runner
// has no room, and its rows are as before.
QN_MUST_CHECK qn_status qn_generations_step(qn_generation *const *generations, size_t n,
                                            int64_t prompt_rows, qn_err *err);
// The same in two calls, between which others may begin where a flight is free: the generations in
// it are under way, and left alone. *out: NULL where no step was needed. They end in the order in
// which they began.
QN_MUST_CHECK qn_status qn_generations_begin(qn_flight **out, qn_generation *const *generations,
                                             size_t n, int64_t prompt_rows, qn_err *err);
QN_MUST_CHECK qn_status qn_generations_end(qn_shared *shared, qn_flight *flight, qn_err *err);
// Ends it and chooses nothing: its generations cannot go on.
void qn_generations_drop(qn_shared *shared, qn_flight *flight);

// --- the prompt ---

// Begins or continues the prefill. The generation may have ended then: its caller hears of it.
void qn_generation_begin(qn_generation *g);
// Tells the caller how much of the prompt is computed, as long as nothing is chosen; the caller may
// end the generation.
void qn_generation_tell_progress(qn_generation *g);
// Whether a row that has not begun should wait for another one's prefill, which it can then reuse.
bool qn_generation_should_wait(const qn_generation *g, const qn_generation *for_it);
// Emits all events of the prompt without a KV cache, by recomputing.
QN_MUST_CHECK qn_status qn_generation_show_naive(qn_generation *g, qn_err *err);
// Emits events of the prompt by the logits after the last `rows` cached tokens, which are rows
// `row` and so on of the last step; each belongs to the token that follows.
QN_MUST_CHECK qn_status qn_generation_show_rows(qn_generation *g, int64_t row, int64_t rows,
                                                qn_err *err);
// Makes room for a token: by context shift if that was asked for; else the answer ends.
QN_MUST_CHECK qn_status qn_generation_make_room(qn_generation *g, qn_err *err);

// --- tokens ---

// Emits the event of a token of the prompt, by the logits before it.
QN_MUST_CHECK qn_status qn_generation_show_prompt(qn_generation *g, size_t at, const float *logits,
                                                  qn_err *err);
// A token was chosen by these logits: it ends the answer, or is appended to it.
QN_MUST_CHECK qn_status qn_generation_take(qn_generation *g, int32_t token, const float *logits,
                                           bool is_drafted, qn_err *err);
// Ends the answer and emits the text that was held back.
QN_MUST_CHECK qn_status qn_generation_end(qn_generation *g, qn_reason reason, qn_err *err);
// The same where a failure is recorded in g->err; and where the answer ends by that error.
void qn_generation_stop(qn_generation *g, qn_reason reason);
void qn_generation_fail(qn_generation *g, qn_status status);

#endif
