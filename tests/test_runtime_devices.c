// Whole models on every device: the same bits in prefill and decode, in batches, after drafts that
// were taken back, in every type of the KV cache, and where devices share the layers.
#include "generate_rig.h"

#include "backends/device.h"
#include "core/mem.h"

enum { PROMPT = 70, FED = 5, ROWS = FED + 1, CHUNK = 40, CONTEXT = 160, N_NEW = 12, N_GENS = 3 };

// Logits after a prompt, which is read in chunks, and after each token of FED more.
static float *session_logits(const char *family, qn_engine_opts opts, const char *device,
                             int64_t *n) {
    qn_err err;
    opts.device = device;
    qn_engine *engine = family_open(family, &opts);
    const int64_t vocab = engine_info(engine).n_vocab;
    float *all = qn_alloc((size_t)(ROWS * vocab), sizeof *all);
    const float *logits;
    int32_t ids[PROMPT + FED];
    qn_session *session;
    assert_non_null(all);
    random_ids(ids, PROMPT + FED, vocab, 3);
    ASSERT_OK(qn_session_create(
        &session, engine, &QN_INIT(qn_session_opts, .context = CONTEXT, .chunk = CHUNK), &err));
    for (int i = 0; i < ROWS; i++) {
        if (i)
            ASSERT_OK(qn_session_feed(&logits, session, ids[PROMPT + i - 1], &err));
        else
            ASSERT_OK(qn_session_prefill(&logits, session, ids, PROMPT, &err));
        memcpy(all + i * vocab, logits, (size_t)vocab * sizeof *logits);
    }
    qn_session_destroy(session);
    qn_engine_close(engine);
    *n = vocab;
    return all;
}

static void assert_device_agrees(const char *family, qn_engine_opts opts, const char *device) {
    int64_t n, n_want;
    float *want = session_logits(family, opts, NULL, &n_want);
    float *got = session_logits(family, opts, device, &n);
    assert_int_equal(n, n_want);
    for (int i = 0; i < ROWS; i++) {
        if (memcmp(got + i * n, want + i * n, (size_t)n * sizeof *got) != 0)
            fail_msg("%s on %s: logits %d differ", family, device, i);
    }
    qn_free(got);
    qn_free(want);
}

static void every_device_computes_the_same(void **state) {
    (void)state;
    const qn_device_kind *kind;
    for (size_t i = 0; (kind = qn_device_kind_get(i)) != NULL; i++) {
        if (kind->is_there && !kind->is_there()) continue;
        for (size_t f = 0; f < N_FAMILIES; f++) {
            if (!kind->variant(0))
                assert_device_agrees(families[f], QN_INIT(qn_engine_opts), kind->name);
            for (size_t v = 0; kind->variant(v); v++)
                assert_device_agrees(families[f], QN_INIT(qn_engine_opts), kind->variant(v));
        }
    }
}

static void numerics_and_caches_agree(void **state) {
    (void)state;
    static const char *const models[] = {"gemma3", "qwen35",
                                         TEST_DATA "/k256/qwen3/qwen3-Q4_K_M.gguf"};
    for (size_t f = 0; f < 3; f++) {
        for (int type = QN_CACHE_F32; type <= QN_CACHE_Q4_0R; type++) {
            // Of the types with few bits each model has one.
            if (type > QN_CACHE_Q8_0 && type != QN_CACHE_Q4_0 + (int)f) continue;
            const qn_engine_opts opts =
                QN_INIT(qn_engine_opts, .cache_type = (qn_cache_type)type,
                        .numerics = f == 2 ? QN_NUMERICS_FAST : QN_NUMERICS_EXACT);
            assert_device_agrees(models[f], opts, "ref");
        }
    }
}

static void devices_share_the_layers(void **state) {
    (void)state;
    static const char *const models[] = {"gemma3", "qwen3_moe", "qwen35",
                                         TEST_DATA "/k256/qwen3/qwen3-Q4_K_M.gguf"};
    for (size_t f = 0; f < 4; f++) {
        assert_device_agrees(models[f], QN_INIT(qn_engine_opts), "cpu,ref");
        assert_device_agrees(models[f], QN_INIT(qn_engine_opts), "ref,cpu:portable");
    }
}

// --- batches and drafts -------------------------------------------------------------------------

// Knows the answer, and errs every third time.
typedef struct oracle {
    const heard *answer;
    size_t n_prompt;
    uint64_t random;
    int64_t vocab;
} oracle;

static int32_t draft_oracle(void *arg, int32_t *to, int32_t max, const int32_t *tokens, size_t n) {
    (void)tokens;
    oracle *o = arg;
    int32_t made = 0;
    while (made < max && n - o->n_prompt + (size_t)made < o->answer->n) {
        const int32_t right = o->answer->tokens[n - o->n_prompt + (size_t)made];
        to[made++] = (int32_t)((right + (next_random(&o->random) % 3 == 0)) % o->vocab);
    }
    return made;
}

// N_GENS answers that are computed together; with `plain` those are drafted.
static void answer_rows(heard *to, const char *family, const char *device, const heard *plain) {
    qn_err err;
    const qn_engine_opts opts = QN_INIT(qn_engine_opts, .device = device);
    qn_engine *engine = family_open(family, &opts);
    const int64_t vocab = engine_info(engine).n_vocab;
    qn_session *sessions[N_GENS];
    qn_generation *gens[N_GENS];
    oracle oracles[N_GENS];
    for (size_t i = 0; i < N_GENS; i++) {
        int32_t ids[PROMPT];
        const size_t n = 9 + 17 * i;
        const qn_sample_opts sample = QN_INIT(qn_sample_opts, .temperature = 0.7f, .seed = i);
        const qn_generate_opts generate = QN_INIT(
            qn_generate_opts, .sample = &sample, .max_tokens = N_NEW, .ignore_end = true,
            .logprobs = true, .n_top = 2, .draft_max = plain ? 5 : 0, .draft_min = plain ? 5 : 0);
        random_ids(ids, n, vocab, 20 + i);
        to[i] = (heard){0};
        const qn_session_opts session =
            QN_INIT(qn_session_opts, .context = i ? 0 : CONTEXT, .share = i ? sessions[0] : NULL);
        ASSERT_OK(qn_session_create(&sessions[i], engine, &session, &err));
        ASSERT_OK(qn_session_set_prompt(sessions[i], ids, n, &err));
        ASSERT_OK(qn_generation_create(&gens[i], sessions[i], &generate, &err));
        if (!plain) continue;
        oracles[i] = (oracle){&plain[i], n, i, vocab};
        gens[i]->drafter.fn = draft_oracle;
        gens[i]->drafter.fn_arg = &oracles[i];
    }
    size_t n_active = N_GENS;
    while (n_active) ASSERT_OK(step_rows(&n_active, gens, N_GENS, hear_rows, to, &err));
    for (size_t i = N_GENS; i-- > 0;) {
        qn_generation_destroy(gens[i]);
        qn_session_destroy(sessions[i]);
    }
    qn_engine_close(engine);
}

static void batches_and_drafts_agree(void **state) {
    (void)state;
    heard *plain = qn_alloc(2 * N_GENS, sizeof *plain), *got = plain + N_GENS;
    assert_non_null(plain);
    for (size_t f = 0; f < N_FAMILIES; f++) {
        answer_rows(plain, families[f], NULL, NULL);
        for (int is_drafted = 0; is_drafted < 2; is_drafted++) {
            answer_rows(got, families[f], "ref", is_drafted ? plain : NULL);
            for (int i = 0; i < N_GENS; i++) {
                assert_int_equal(got[i].n, N_NEW);
                assert_int_equal(got[i].n_drafted > 0, is_drafted);
                assert_memory_equal(got[i].tokens, plain[i].tokens, N_NEW * sizeof *plain->tokens);
                assert_memory_equal(got[i].logprobs, plain[i].logprobs,
                                    N_NEW * sizeof *plain->logprobs);
            }
        }
    }
    qn_free(plain);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_device_computes_the_same),
        cmocka_unit_test(numerics_and_caches_agree),
        cmocka_unit_test(devices_share_the_layers),
        cmocka_unit_test(batches_and_drafts_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
