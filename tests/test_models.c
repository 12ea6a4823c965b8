// Every family against its reference: logits of three prompts, the residual stream after every
// layer, greedy continuations; and what must be equal to the bit: any chunk size, any number of
// threads.
#include "testing.h"

#include "golden.h"

#include "core/mem.h"

#include <stdio.h>

static const char *const families[] = {"llama32", "llama_untied", "qwen3",         "qwen3_moe",
                                       "gemma",   "gemma2",       "gemma2_scalar", "gemma3",
                                       "qwen35",  "qwen35_moe"};
enum { N_FAMILIES = sizeof families / sizeof families[0] };

static const double bound = 1e-4; // of float32 computation

// The two ways to open a family; false if it has no such file.
static bool model_path(char *to, size_t size, const char *family, bool is_gguf) {
    if (!is_gguf)
        snprintf(to, size, "%s/mini/%s", TEST_DATA, family);
    else
        snprintf(to, size, "%s/mini/%s/%s-bf16.gguf", TEST_DATA, family, family);
    FILE *f = is_gguf ? fopen(to, "rb") : NULL;
    if (f) fclose(f);
    return !is_gguf || f;
}

static golden family_golden(const char *family) {
    char folder[256];
    snprintf(folder, sizeof folder, "%s/mini/%s", TEST_DATA, family);
    return golden_open(folder, "golden.safetensors");
}

static void refuse_warnings(void *arg, qn_log_level level, const char *message) {
    if (level <= QN_LOG_WARNING) fail_msg("%s: %s", (const char *)arg, message);
}

// Opens with a log that fails the test on any warning: every tensor must have found its place.
static qn_engine *open_strict(char *path, int threads) {
    qn_err err;
    qn_engine *engine = NULL;
    const qn_engine_opts opts = {.n_threads = threads, .log = refuse_warnings, .log_arg = path};
    ASSERT_OK(qn_engine_open(&engine, path, &opts, &err));
    return engine;
}

static double check_prompt(const qn_engine *engine, const golden *g, size_t prompt) {
    qn_err err;
    int32_t ids[GOLDEN_IDS];
    char name[32];
    int64_t n = 0;
    const size_t n_ids = golden_ids(ids, g, "prompts", prompt);
    snprintf(name, sizeof name, "logits.%zu", prompt);
    float *want = golden_floats(g, name, &n);
    qn_logits got;
    ASSERT_OK(
        qn_engine_logits(&got, engine, ids, n_ids, &(qn_logits_opts){.all_rows = true}, &err));
    assert_int_equal(got.n_rows * got.n_vocab, n);
    const double error = relative_error(got.logits, want, n);
    qn_logits_deinit(&got);
    qn_free(want);
    return error;
}

static void logits_match_the_reference(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        golden g = family_golden(families[f]);
        for (int is_gguf = 0; is_gguf < 2; is_gguf++) {
            char path[256];
            if (!model_path(path, sizeof path, families[f], is_gguf)) continue;
            qn_engine *engine = open_strict(path, 2);
            for (size_t prompt = 0; prompt < GOLDEN_PROMPTS; prompt++) {
                const double error = check_prompt(engine, &g, prompt);
                print_message("%-14s %-11s prompt %zu: %.1e\n", families[f],
                              is_gguf ? "GGUF" : "safetensors", prompt, error);
                assert_true(error <= bound);
            }
            qn_engine_close(engine);
        }
        golden_close(&g);
    }
}

static void hidden_states_match_layer_by_layer(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        golden g = family_golden(families[f]);
        char path[256];
        qn_err err;
        int32_t ids[GOLDEN_IDS];
        const size_t n_ids = golden_ids(ids, &g, "prompts", 1);
        for (int is_gguf = 0; is_gguf < 2; is_gguf++) {
            if (!model_path(path, sizeof path, families[f], is_gguf)) continue;
            qn_engine *engine = open_strict(path, 2);
            qn_logits got;
            const qn_logits_opts opts = {.all_rows = true, .hidden = true};
            ASSERT_OK(qn_engine_logits(&got, engine, ids, n_ids, &opts, &err));
            for (int64_t layer = 0; layer < got.n_hidden; layer++) {
                char name[32];
                int64_t n = 0;
                snprintf(name, sizeof name, "hidden.1.%lld", (long long)layer);
                float *want = golden_floats(&g, name, &n);
                assert_non_null(want);
                assert_int_equal(n, got.n_tokens * got.width);
                const double error = relative_error(got.hidden + layer * n, want, n);
                if (error > bound) fail_msg("%s: %s is off by %.1e", path, name, error);
                qn_free(want);
            }
            qn_logits_deinit(&got);
            qn_engine_close(engine);
        }
        golden_close(&g);
    }
}

// Compares up to the first choice that the reference itself found close.
static void greedy_continuations_match(void **state) {
    (void)state;
    size_t compared = 0;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        golden g = family_golden(families[f]);
        char path[256];
        qn_err err;
        model_path(path, sizeof path, families[f], false);
        qn_engine *engine = open_strict(path, 2);
        qn_session *session;
        ASSERT_OK(qn_session_create(&session, engine, NULL, &err));
        for (size_t prompt = 0; prompt < GOLDEN_PROMPTS; prompt++) {
            int32_t ids[GOLDEN_IDS], want[GOLDEN_IDS], token;
            const size_t n = golden_ids(ids, &g, "prompts", prompt);
            const size_t n_want = golden_ids(want, &g, "greedy", prompt);
            ASSERT_OK(qn_session_set_prompt(session, ids, n, &err));
            for (size_t k = 0; k < n_want && golden_margin(&g, prompt, k) >= 0.01; k++) {
                ASSERT_OK(qn_session_step_naive(&token, session, NULL, &err));
                if (token != want[k])
                    fail_msg("%s prompt %zu: token %zu is %d, want %d", families[f], prompt, k,
                             token, want[k]);
                compared++;
            }
        }
        qn_session_destroy(session);
        qn_engine_close(engine);
        golden_close(&g);
    }
    print_message("%zu tokens compared\n", compared);
    assert_true(compared > 200);
}

// Bytes of all logits and hidden states for one setting.
static qn_logits run(const qn_engine *engine, const int32_t *ids, size_t n, int64_t chunk) {
    qn_err err;
    qn_logits got;
    const qn_logits_opts opts = {.all_rows = true, .hidden = true, .chunk = chunk};
    ASSERT_OK(qn_engine_logits(&got, engine, ids, n, &opts, &err));
    return got;
}

static void assert_same_bits(const qn_logits *a, const qn_logits *b) {
    assert_memory_equal(a->logits, b->logits, (size_t)(a->n_rows * a->n_vocab) * sizeof(float));
    assert_memory_equal(a->hidden, b->hidden,
                        (size_t)(a->n_hidden * a->n_tokens * a->width) * sizeof(float));
}

static void chunks_and_threads_change_no_bit(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        char path[256];
        int32_t ids[GOLDEN_IDS];
        golden g = family_golden(families[f]);
        const size_t n = golden_ids(ids, &g, "prompts", 2); // 130 tokens: three pages
        golden_close(&g);
        model_path(path, sizeof path, families[f], false);
        qn_engine *one = open_strict(path, 1), *two = open_strict(path, 2);
        qn_logits whole = run(one, ids, n, 0);
        static const int64_t chunks[] = {1, 7, 64, 129};
        for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
            qn_logits parts = run(i % 2 ? one : two, ids, n, chunks[i]);
            assert_same_bits(&whole, &parts);
            qn_logits_deinit(&parts);
        }
        qn_logits threaded = run(two, ids, n, 0);
        assert_same_bits(&whole, &threaded);
        qn_logits_deinit(&threaded);
        qn_logits_deinit(&whole);
        qn_engine_close(one);
        qn_engine_close(two);
    }
}

// Quantised files: exact logits of the dequantised weights.
static void quantised_files_match_the_reference(void **state) {
    (void)state;
    static const char *const types[] = {"Q2_K",   "Q3_K_M", "Q4_0",  "Q4_K_M",
                                        "Q5_K_M", "Q6_K",   "IQ4_XS"};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        char path[256], name[64];
        snprintf(path, sizeof path, "%s/k256/qwen3/qwen3-%s.gguf", TEST_DATA, types[i]);
        snprintf(name, sizeof name, "qwen3-%s.golden.safetensors", types[i]);
        golden g = golden_open(TEST_DATA "/k256/qwen3", name);
        qn_engine *engine = open_strict(path, 2);
        const double error = check_prompt(engine, &g, 1);
        print_message("qwen3 %-7s prompt 1: %.1e\n", types[i], error);
        assert_true(error <= bound);
        qn_engine_close(engine);
        golden_close(&g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_match_the_reference),
        cmocka_unit_test(hidden_states_match_layer_by_layer),
        cmocka_unit_test(greedy_continuations_match),
        cmocka_unit_test(chunks_and_threads_change_no_bit),
        cmocka_unit_test(quantised_files_match_the_reference),
    };
    return cmocka_run_group_tests_name("models", tests, NULL, NULL);
}
