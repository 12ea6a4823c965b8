// Inside a generation: one answer of one session.
#ifndef QN_API_GENERATE_INT_H
#define QN_API_GENERATE_INT_H

#include "api/session_int.h"

struct qn_generation {
    qn_session *session;   // borrowed
    qn_generate_opts opts; // what they point to is borrowed
    qn_result result;      // its tokens and text are ours
    size_t cap_tokens, cap_text;
    size_t n_history; // tokens of the session, as this generation left it
    size_t n_prompt;  // of these, of the prompt
    int64_t shifted;  // tokens that were dropped from the history
    bool is_begun;    // the prompt was read
    qn_sampler *sampler;
    qn_decoder *decoder;           // NULL: the model has no tokenizer
    const qn_tokenizer *tokenizer; // borrowed; NULL: none
    size_t shown;                  // bytes of the text that were handed out
    int32_t drafts[QN_MOST_DRAFT]; // (n_drafts) tokens guessed for the present step
    int32_t n_drafts;
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

// All but the last token of the history are computed afterwards, or all and the scores are there.
QN_MUST_CHECK qn_status qn_generation_read_prompt(qn_generation *g, const qn_listener *to,
                                                  qn_err *err);
// A token was chosen by these scores: it ends the answer, or belongs to it.
QN_MUST_CHECK qn_status qn_generation_take(qn_generation *g, int32_t token, const float *scores,
                                           bool is_guessed, const qn_listener *to, qn_err *err);
// The answer ends here; what was held back is handed out.
QN_MUST_CHECK qn_status qn_generation_end(qn_generation *g, qn_reason reason, const qn_listener *to,
                                          qn_err *err);

#endif
