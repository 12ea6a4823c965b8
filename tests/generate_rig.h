// What tests of the loop share: a session of a small model, and its answers.
#ifndef QN_TESTS_GENERATE_RIG_H
#define QN_TESTS_GENERATE_RIG_H

#include "families.h"

#include "session/generate_int.h"

typedef struct talk {
    qn_engine *engine;
    qn_session *session;
    int64_t vocab;
} talk;

static inline qn_session *open_session(const qn_engine *engine, int64_t context) {
    qn_err err;
    qn_session *session = NULL;
    ASSERT_OK(
        qn_session_create(&session, engine, &QN_INIT(qn_session_opts, .context = context), &err));
    return session;
}

static inline talk open_talk(const char *family, int64_t context) {
    talk t = {.engine = family_open(family, NULL)};
    t.vocab = engine_info(t.engine).n_vocab;
    t.session = open_session(t.engine, context);
    return t;
}

static inline void close_talk(talk *t) {
    qn_session_destroy(t->session);
    qn_engine_close(t->engine);
}

// The answer to n ids; release with qn_result_deinit.
static inline qn_result answer(qn_session *session, const int32_t *ids, size_t n,
                               const qn_generate_opts *opts, qn_event_fn *fn, void *arg) {
    qn_err err;
    qn_result result = QN_INIT(qn_result);
    ASSERT_OK(qn_session_set_prompt(session, ids, n, &err));
    ASSERT_OK(qn_generate(&result, session, opts, fn, arg, &err));
    return result;
}

static inline void assert_same_answer(const qn_result *got, const qn_result *want,
                                      const char *what) {
    size_t same = 0;
    while (same < got->n_tokens && same < want->n_tokens && got->tokens[same] == want->tokens[same])
        same++;
    if (got->n_tokens != want->n_tokens || same < want->n_tokens)
        fail_msg("%s: %zu of %zu tokens are those of the other %zu", what, same, got->n_tokens,
                 want->n_tokens);
    if (got->reason != want->reason || got->stop_token != want->stop_token ||
        got->stop != want->stop)
        fail_msg("%s: ends by %s, the other by %s", what, qn_reason_name(got->reason),
                 qn_reason_name(want->reason));
    if (got->text_size != want->text_size || memcmp(got->text, want->text, got->text_size + 1) != 0)
        fail_msg("%s: text '%s', want '%s'", what, got->text, want->text);
}

// One step of several generations; *n_active (may be NULL) are left. A row that failed fails it.
static inline qn_status step_rows(size_t *n_active, qn_generation *const *gens, size_t n,
                                  qn_event_fn *fn, void *arg, qn_err *err) {
    size_t active = 0;
    for (size_t i = 0; i < n; i++) gens[i]->to = (qn_listener){.fn = fn, .arg = arg, .row = i};
    qn_status status = qn_generations_step(gens, n, 0, err);
    for (size_t i = 0; i < n; i++) {
        active += qn_generation_is_active(gens[i]);
        if (status || gens[i]->result.reason != QN_REASON_FAILED) continue;
        *err = gens[i]->err;
        status = gens[i]->result.status;
    }
    if (n_active) *n_active = active;
    return status;
}

// --- what a caller hears -------------------------------------------------------------------------

enum { MAX_HEARD = 1024 };

// All events of one row, put together.
typedef struct heard {
    int32_t tokens[MAX_HEARD];
    float logprobs[MAX_HEARD];
    qn_token_logprob top[MAX_HEARD]; // the best entry
    int64_t positions[MAX_HEARD];
    size_t n, n_prompt, n_drafted, n_ends;
    char text[8 * MAX_HEARD];
    size_t size;
    qn_reason reason;
    size_t stop_after; // tokens; 0: none
} heard;

static inline bool hear_row(heard *h, const qn_event *e) {
    assert_int_equal(h->n_ends, 0); // an ended row is silent
    assert_true(h->size + e->text_size < sizeof h->text);
    if (e->text_size) memcpy(h->text + h->size, e->text, e->text_size);
    h->size += e->text_size;
    if (e->token < 0) {
        h->n_ends++;
        h->reason = e->reason;
        return true;
    }
    assert_int_equal(e->reason, QN_REASON_NONE);
    assert_true(h->n < MAX_HEARD);
    h->tokens[h->n] = e->token;
    h->logprobs[h->n] = e->logprob;
    h->positions[h->n] = e->position;
    if (e->n_top) h->top[h->n] = e->top[0];
    h->n++;
    h->n_prompt += e->is_prompt;
    h->n_drafted += e->is_drafted;
    return h->stop_after == 0 || h->n < h->stop_after;
}

static inline bool hear(void *arg, const qn_event *event) {
    assert_int_equal(event->row, 0);
    return hear_row(arg, event);
}

// arg: heard (rows)
static inline bool hear_rows(void *arg, const qn_event *event) {
    return hear_row((heard *)arg + event->row, event);
}

#endif
