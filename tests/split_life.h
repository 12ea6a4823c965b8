// What a model computes in a short life, to be compared with the same on several ranks.
#ifndef QN_TESTS_SPLIT_LIFE_H
#define QN_TESTS_SPLIT_LIFE_H

#include "generate_rig.h"

#include "core/mem.h"

enum { LIFE_IDS = 150, LIFE_PROMPT = 130, LIFE_STEPS = 6, LIFE_CONTEXT = 256, LIFE_TEXTS = 8 };

// Logits and hidden rows of a prompt, logits of decode steps, texts of a batch.
typedef struct split_life {
    qn_logits whole;
    float *steps;
    size_t n_steps;
    qn_result texts[LIFE_TEXTS];
} split_life;

static inline void life_logits(split_life *l, const qn_engine *engine, const int32_t *ids) {
    qn_err err;
    const qn_logits_opts opts =
        QN_INIT(qn_logits_opts, .all_rows = true, .hidden = true, .chunk = 100);
    ASSERT_OK(qn_engine_logits(&l->whole, engine, ids, LIFE_IDS, &opts, &err));
}

// Prefill in one step, decode, and a fork that goes on by itself.
static inline void life_session(split_life *l, const qn_engine *engine, const int32_t *ids,
                                size_t vocab) {
    qn_err err;
    qn_session *s, *fork;
    const float *logits;
    ASSERT_OK(
        qn_session_create(&s, engine, &QN_INIT(qn_session_opts, .context = LIFE_CONTEXT), &err));
    ASSERT_OK(qn_session_prefill(&logits, s, ids, LIFE_PROMPT, &err));
    ASSERT_OK(qn_session_fork(&fork, s, &err));
    for (size_t i = 0; i < 2 * LIFE_STEPS; i++) {
        qn_session *at = i % 2 ? fork : s;
        const size_t id = i % 2 ? LIFE_IDS - 1 - i : LIFE_PROMPT + i / 2;
        ASSERT_OK(qn_session_feed(&logits, at, ids[id], &err));
        l->steps = qn_realloc(l->steps, (i + 1) * vocab, sizeof *l->steps);
        memcpy(l->steps + i * vocab, logits, vocab * sizeof *logits);
    }
    l->n_steps = 2 * LIFE_STEPS * vocab;
    qn_session_destroy(fork);
    qn_session_destroy(s);
}

// Prompts of one beginning, greedy, sampled and with drafts from the text itself; and once more,
// when the prefix cache has them.
static inline void life_batch(split_life *l, const qn_engine *engine, const int32_t *ids) {
    enum { N = LIFE_TEXTS / 2 };
    const qn_sample_opts sampled = QN_INIT(qn_sample_opts, .temperature = 0.9f, .seed = 3);
    const qn_generate_opts plain = QN_INIT(qn_generate_opts, .max_tokens = 8);
    const qn_generate_opts warm = QN_INIT(qn_generate_opts, .max_tokens = 8, .sample = &sampled);
    const qn_generate_opts lookup = QN_INIT(qn_generate_opts, .max_tokens = 8, .lookup = true);
    const qn_generate_opts *opts[N] = {&plain, &warm, &lookup, &plain};
    qn_prompt prompts[N];
    qn_row_opts rows[N];
    qn_err err;
    qn_session *s;
    ASSERT_OK(
        qn_session_create(&s, engine, &QN_INIT(qn_session_opts, .context = LIFE_CONTEXT), &err));
    for (size_t i = 0; i < LIFE_TEXTS; i++) l->texts[i] = QN_INIT(qn_result);
    for (size_t i = 0; i < N; i++) {
        rows[i] = QN_INIT(qn_row_opts, .generate = opts[i]);
        prompts[i] = (qn_prompt){.ids = ids, .n = LIFE_PROMPT - 7 * i, .opts = &rows[i]};
    }
    for (size_t i = 0; i < LIFE_TEXTS; i += N)
        ASSERT_OK(qn_generate_batch(l->texts + i, N, s, prompts, N, NULL, NULL, &err));
    qn_session_destroy(s);
}

static inline split_life life_of(const qn_engine *engine) {
    split_life l = {.whole = QN_INITIALIZER(qn_logits)};
    int32_t ids[LIFE_IDS];
    const size_t vocab = (size_t)engine_info(engine).n_vocab;
    random_ids(ids, LIFE_IDS, (int64_t)vocab, 11);
    life_logits(&l, engine, ids);
    life_session(&l, engine, ids, vocab);
    life_batch(&l, engine, ids);
    return l;
}

static inline void life_deinit(split_life *l) {
    qn_logits_deinit(&l->whole);
    qn_free(l->steps);
    for (size_t i = 0; i < LIFE_TEXTS; i++) qn_result_deinit(&l->texts[i]);
}

static inline void assert_same_life(const split_life *want, const split_life *got,
                                    const char *what) {
    const qn_logits *w = &want->whole;
    const size_t n = (size_t)(w->n_rows * w->n_vocab);
    const size_t n_hidden = (size_t)(w->n_hidden * w->n_tokens * w->width);
    print_message("%s\n", what);
    assert_int_equal(w->n_rows, got->whole.n_rows);
    assert_memory_equal(w->logits, got->whole.logits, n * sizeof(float));
    assert_int_equal(w->n_hidden, got->whole.n_hidden);
    assert_memory_equal(w->hidden, got->whole.hidden, n_hidden * sizeof(float));
    assert_int_equal(want->n_steps, got->n_steps);
    assert_memory_equal(want->steps, got->steps, want->n_steps * sizeof(float));
    for (size_t i = 0; i < LIFE_TEXTS; i++) {
        assert_same_answer(&got->texts[i], &want->texts[i], what);
        assert_int_equal(got->texts[i].n_reused, want->texts[i].n_reused);
    }
}

#endif
