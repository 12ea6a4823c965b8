// Inside a generation: one answer of one session.
//
//   generate.c        options and life
//   generate_prompt.c the prompt, and what to do when the context is full
//   generate_step.c   one step of several generations: guesses, scores, choices
//   generate_text.c   what becomes of a chosen token: text, stops, events
//   generate_draft.c  where guesses come from
//   generate_batch.c  many prompts at once
#ifndef QN_SESSION_GENERATE_INT_H
#define QN_SESSION_GENERATE_INT_H

#include "session/generate_draft.h"
#include "session/session_int.h"
#include "gen/grammar/grammar.h"
#include "gen/stop.h"

struct qn_generation {
    qn_session *session;   // borrowed
    qn_generate_opts opts; // what they point to is borrowed
    qn_result result;      // its tokens and text are ours
    size_t cap_tokens, cap_text;
    size_t n_history; // tokens of the session, as this generation left it
    bool is_begun;    // the prompt was read
    qn_sampler *sampler;
    const qn_tokenizer *tokenizer; // borrowed; NULL: none
    qn_decoder *decoder;           // NULL: no tokenizer
    size_t shown;                  // bytes of the text that were handed out
    qn_stops *stops;               // NULL: none
    qn_stop_state stop_state;
    size_t stop_from;    // bytes of the text that stop_state begins behind
    qn_matcher *matcher; // NULL: no grammar
    // Masks of the vocabulary, a bit for each token; NULL where not needed.
    uint32_t *endless; // all but end tokens
    uint32_t *early;   // all but end and stop tokens
    uint32_t *both;    // one of them and the grammar
    qn_scored *top;    // (n_top)
    qn_guesser guesser;
};

// Where events go.
typedef struct qn_listener {
    qn_event_fn *fn; // NULL: nobody listens
    void *arg;
    size_t row;
} qn_listener;

static inline bool qn_generation_is_active(const qn_generation *g) {
    return g->result.reason == QN_REASON_NONE;
}

// Tokens of the prompt and the answer, those that were dropped included.
static inline int64_t qn_generation_position(const qn_generation *g) {
    return g->session->memory.shifted + (int64_t)g->session->n_tokens;
}

// --- the prompt ---

// Reads the prompt to its end: events for its tokens if they are wanted, scores of the last.
QN_MUST_CHECK qn_status qn_generation_read(qn_generation *g, const qn_listener *to, qn_err *err);
// Reading begins, or begins again: what was kept of earlier prompts is found.
void qn_generation_begin(qn_generation *g);
// Whether a row that has not begun does better to wait for another one that reads: it can go on from
// what that keeps.
bool qn_generation_should_wait(const qn_generation *g, const qn_generation *for_it);
// Rows of the prompt to be computed next, at most `most`.
int64_t qn_generation_next_rows(const qn_generation *g, int64_t most);
// So many rows of the prompt were computed.
QN_MUST_CHECK qn_status qn_generation_has_read(qn_generation *g, int64_t rows, qn_err *err);
// Room for a token: by dropping others if that was asked for; else the answer ends.
QN_MUST_CHECK qn_status qn_generation_make_room(qn_generation *g, const qn_listener *to,
                                                qn_err *err);

// --- tokens ---

// A token of the prompt, and the scores that it could have been chosen by.
QN_MUST_CHECK qn_status qn_generation_show_prompt(qn_generation *g, size_t at, const float *scores,
                                                  const qn_listener *to, qn_err *err);
// A token was chosen by these scores: it ends the answer, or belongs to it.
QN_MUST_CHECK qn_status qn_generation_take(qn_generation *g, int32_t token, const float *scores,
                                           bool is_guessed, const qn_listener *to, qn_err *err);
// The answer ends here; what was held back is handed out.
QN_MUST_CHECK qn_status qn_generation_end(qn_generation *g, qn_reason reason, const qn_listener *to,
                                          qn_err *err);

#endif
