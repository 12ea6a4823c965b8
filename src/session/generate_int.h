// Inside a generation: one answer of one session. A batch has one for each row.
//
//   generate.c        options and life
//   generate_prompt.c events of the prompt, and what to do when the context is full
//   generate_step.c   one step of several generations: guesses, scores, choices
//   generate_text.c   what becomes of a chosen token: text, stops, events
//   generate_draft.c  where guesses come from
//   batch*.c          many of them: queue, budget, threads
#ifndef QN_SESSION_GENERATE_INT_H
#define QN_SESSION_GENERATE_INT_H

#include "gen/grammar/grammar.h"
#include "gen/stop.h"
#include "session/generate_draft.h"
#include "session/session_int.h"

// Where events go.
typedef struct qn_listener {
    qn_event_fn *fn; // NULL: nobody listens
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
    qn_generate_opts opts; // its lists, texts, sample and draft are not looked at again
    qn_listener to;
    qn_result result; // what it points to is ours
    qn_err err;       // of a generation that failed
    size_t cap_tokens, cap_text;
    size_t n_history;     // tokens of the session, as this generation left it
    bool is_begun;        // reading the prompt has begun
    bool is_reading;      // in the present step
    bool leaves_scores;   // at the end of the prompt, for forks: nothing is chosen in that step
    size_t n_shown;       // first tokens of the prompt whose events are out; the first one has none
    int32_t *stop_tokens; // (opts.n_stop_tokens)
    qn_sampler *sampler;
    const qn_tokenizer *tokenizer; // borrowed; NULL: none
    qn_decoder *decoder;           // NULL: no tokenizer
    size_t shown;                  // bytes of the text that were handed out
    qn_stops *stops;               // NULL: none
    qn_stop_state stop_state;
    size_t stop_from;          // bytes of the text that stop_state begins behind
    const qn_grammar *grammar; // held; NULL: none
    qn_matcher *matcher;       // NULL: no grammar
    qn_mask endless;           // all but end tokens
    qn_mask early;             // all but end and stop tokens
    uint32_t *both;            // one of them and the grammar
    qn_token_logprob *top;     // (n_top)
    qn_guesser guesser;
};

static inline bool qn_generation_is_active(const qn_generation *g) {
    return g->result.reason == QN_REASON_NONE;
}

// Tokens of the prompt and the answer, those that were dropped included.
static inline int64_t qn_generation_position(const qn_generation *g) {
    return g->session->memory.shifted + (int64_t)g->session->n_tokens;
}

// The prompt's tokens are wanted with their log-probabilities, and not all of them are out.
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

// One step of all together, whose sessions share a runner and have places in it. Rows that have
// ended are passed over; an error of one ends that one. `prompt_rows`: the most rows of prompts in
// a step that other rows take part in; 0: no limit. An error is one of all: LIMIT where the runner
// has no room, and nothing has happened to the rows of that step.
QN_MUST_CHECK qn_status qn_generations_step(qn_generation *const *generations, size_t n,
                                            int64_t prompt_rows, qn_err *err);

// --- the prompt ---

// Reading begins, or goes on.
void qn_generation_begin(qn_generation *g);
// Whether a row that has not begun does better to wait for another one that reads: it can go on
// from what that keeps.
bool qn_generation_should_wait(const qn_generation *g, const qn_generation *for_it);
// Events of the prompt without a cache: all in one go, by recomputing.
QN_MUST_CHECK qn_status qn_generation_show_naive(qn_generation *g, qn_err *err);
// Scores after the last `rows` cached tokens, which are rows `row` and so on of the last step,
// belong to the tokens after them.
QN_MUST_CHECK qn_status qn_generation_show_rows(qn_generation *g, int64_t row, int64_t rows,
                                                qn_err *err);
// Room for a token: by dropping others if that was asked for; else the answer ends.
QN_MUST_CHECK qn_status qn_generation_make_room(qn_generation *g, qn_err *err);

// --- tokens ---

// A token of the prompt, and the scores that it could have been chosen by.
QN_MUST_CHECK qn_status qn_generation_show_prompt(qn_generation *g, size_t at, const float *scores,
                                                  qn_err *err);
// A token was chosen by these scores: it ends the answer, or belongs to it.
QN_MUST_CHECK qn_status qn_generation_take(qn_generation *g, int32_t token, const float *scores,
                                           bool is_drafted, qn_err *err);
// The answer ends here; what was held back is handed out.
QN_MUST_CHECK qn_status qn_generation_end(qn_generation *g, qn_reason reason, qn_err *err);
// The same where that may fail itself, or where it ends by an error (g->err, of this status).
void qn_generation_stop(qn_generation *g, qn_reason reason);
void qn_generation_fail(qn_generation *g, qn_status status);

#endif
