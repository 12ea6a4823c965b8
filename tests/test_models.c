// Every family against its reference: logits of three prompts, the residual stream after every
// layer, greedy continuations; and what must be equal to the bit: any chunk size, any number of
// threads.
#include "testing.h"

#include "golden.h"

#include "core/mem.h"
#include "ir/ref.h"
#include "models/model.h"

#include <pthread.h>
#include <stdio.h>

static const char *const families[] = {"llama32", "llama_untied", "qwen3",         "qwen3_moe",
                                       "gemma",   "gemma2",       "gemma2_scalar", "gemma3",
                                       "qwen35",  "qwen35_moe"};
enum { N_FAMILIES = sizeof families / sizeof families[0] };

static const double bound = 1e-4;           // of float32 computation
static const double quantised_bound = 4e-3; // of activations in 12 bits
static const double hybrid_bound = 5e-3;    // and in 16 bits before a delta rule

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
static qn_engine *open_strict(char *path, int threads, bool is_reference) {
    qn_err err;
    qn_engine *engine = NULL;
    const qn_engine_opts opts =
        QN_INIT(qn_engine_opts, .n_threads = threads, .reference = is_reference,
                .log = refuse_warnings, .log_arg = path);
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
    qn_logits got = QN_INIT(qn_logits);
    ASSERT_OK(qn_engine_logits(&got, engine, ids, n_ids, &QN_INIT(qn_logits_opts, .all_rows = true),
                               &err));
    // Of the long prompt, the last rows are kept: those behind two page borders.
    const int64_t n_rows = prompt == GOLDEN_PROMPTS - 1 ? GOLDEN_LONG_ROWS : got.n_rows;
    assert_int_equal(n_rows * got.n_vocab, n);
    assert_true(got.n_rows >= n_rows);
    const float *last = got.logits + (got.n_rows - n_rows) * got.n_vocab;
    const double error = relative_error(last, want, n);
    qn_logits_deinit(&got);
    qn_free(want);
    return error;
}

static void logits_match_the_reference(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        golden g = family_golden(families[f]);
        for (int i = 0; i < 4; i++) {
            char path[256];
            const bool is_gguf = i % 2, is_reference = i / 2;
            if (!model_path(path, sizeof path, families[f], is_gguf)) continue;
            qn_engine *engine = open_strict(path, 2, is_reference);
            for (size_t prompt = 0; prompt < GOLDEN_PROMPTS; prompt++) {
                const double error = check_prompt(engine, &g, prompt);
                print_message("%-14s %-11s %-9s prompt %zu: %.1e\n", families[f],
                              is_gguf ? "GGUF" : "safetensors", is_reference ? "reference" : "plan",
                              prompt, error);
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
        for (int i = 0; i < 4; i++) {
            if (!model_path(path, sizeof path, families[f], i % 2)) continue;
            qn_engine *engine = open_strict(path, 2, i / 2);
            qn_logits got = QN_INIT(qn_logits);
            const qn_logits_opts opts = QN_INIT(qn_logits_opts, .all_rows = true, .hidden = true);
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
        const bool is_reference = f % 2; // the other families take the cached steps
        qn_engine *engine = open_strict(path, 2, is_reference);
        qn_session *session;
        ASSERT_OK(qn_session_create(&session, engine, NULL, &err));
        for (size_t prompt = 0; prompt < GOLDEN_PROMPTS; prompt++) {
            int32_t ids[GOLDEN_IDS], want[GOLDEN_IDS], token;
            const size_t n = golden_ids(ids, &g, "prompts", prompt);
            const size_t n_want = golden_ids(want, &g, "greedy", prompt);
            ASSERT_OK(qn_session_set_prompt(session, ids, n, &err));
            for (size_t k = 0; k < n_want && golden_margin(&g, prompt, k) >= 0.01; k++) {
                if (is_reference)
                    ASSERT_OK(qn_session_step_naive(&token, session, NULL, &err));
                else
                    ASSERT_OK(qn_session_step(&token, session, NULL, &err));
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
    qn_logits got = QN_INIT(qn_logits);
    const qn_logits_opts opts =
        QN_INIT(qn_logits_opts, .all_rows = true, .hidden = true, .chunk = chunk);
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
        qn_engine *one = open_strict(path, 1, f % 2), *two = open_strict(path, 2, f % 2);
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

typedef struct shared_run {
    const qn_engine *engine;
    const int32_t *ids;
    size_t n;
    qn_logits got;
} shared_run;

static void *run_shared(void *arg) {
    shared_run *r = arg;
    r->got = run(r->engine, r->ids, r->n, 0);
    return NULL;
}

// Threads that use one engine at the same time get what each would get alone.
static void an_engine_is_shared_by_threads(void **state) {
    (void)state;
    enum { THREADS = 4 };
    char path[256];
    int32_t ids[GOLDEN_IDS];
    golden g = family_golden("qwen35");
    const size_t n = golden_ids(ids, &g, "prompts", 1);
    golden_close(&g);
    model_path(path, sizeof path, "qwen35", true);
    qn_engine *engine = open_strict(path, 2, false);
    qn_logits alone = run(engine, ids, n, 0);
    pthread_t threads[THREADS];
    shared_run runs[THREADS];
    for (int i = 0; i < THREADS; i++) {
        runs[i] = (shared_run){.engine = engine, .ids = ids, .n = n};
        assert_int_equal(pthread_create(&threads[i], NULL, run_shared, &runs[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_same_bits(&alone, &runs[i].got);
        qn_logits_deinit(&runs[i].got);
    }
    qn_logits_deinit(&alone);
    qn_engine_close(engine);
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
        for (int is_reference = 0; is_reference < 2; is_reference++) {
            qn_engine *engine = open_strict(path, 2, is_reference);
            const double error = check_prompt(engine, &g, 1);
            print_message("qwen3 %-7s %-9s prompt 1: %.1e\n", types[i],
                          is_reference ? "reference" : "plan", error);
            assert_true(error <= (is_reference ? bound : quantised_bound));
            qn_engine_close(engine);
        }
        golden_close(&g);
    }
}

// Of a hybrid too, whose delta rule amplifies what is rounded before it: those inputs are rounded
// to 16 bits. The bundled model stands for Q8_0, measured against the interpreter.
static void quantised_hybrids_match_the_reference(void **state) {
    (void)state;
    static char path[] = TEST_DATA "/k256/qwen35/qwen35-Q4_K_M.gguf";
    golden g = golden_open(TEST_DATA "/k256/qwen35", "qwen35-Q4_K_M.golden.safetensors");
    for (int is_reference = 0; is_reference < 2; is_reference++) {
        qn_engine *engine = open_strict(path, 2, is_reference);
        const double error = check_prompt(engine, &g, 1);
        print_message("qwen35 Q4_K_M %-9s prompt 1: %.1e\n", is_reference ? "reference" : "plan",
                      error);
        assert_true(error <= (is_reference ? bound : hybrid_bound));
        qn_engine_close(engine);
    }
    golden_close(&g);
}

static void the_bundled_hybrid_is_close_to_exact_arithmetic(void **state) {
    (void)state;
    static char path[] = MODELS "/quern-hybrid-Q8_0.gguf";
    static const char text[] =
        "<|im_start|>user\nTell me a story about a dog and a boat.<|im_end|>\n"
        "<|im_start|>assistant\nOnce upon a time there was a dog who";
    qn_err err;
    qn_logits got[2] = {QN_INIT(qn_logits), QN_INIT(qn_logits)};
    int32_t *ids = NULL;
    size_t n = 0;
    for (int is_reference = 0; is_reference < 2; is_reference++) {
        qn_engine *engine = open_strict(path, 2, is_reference);
        if (!ids)
            ASSERT_OK(qn_tokenize(&ids, &n, qn_engine_tokenizer(engine), text, sizeof text - 1,
                                  &QN_INIT(qn_tokenize_opts, .special = true), &err));
        ASSERT_OK(qn_engine_logits(&got[is_reference], engine, ids, n,
                                   &QN_INIT(qn_logits_opts, .all_rows = true), &err));
        qn_engine_close(engine);
    }
    const double error =
        relative_error(got[0].logits, got[1].logits, got[0].n_rows * got[0].n_vocab);
    print_message("bundled hybrid Q8_0, %zu tokens: %.1e\n", n, error);
    assert_true(error <= hybrid_bound);
    qn_logits_deinit(&got[0]);
    qn_logits_deinit(&got[1]);
    qn_free(ids);
}

// The prediction head of the hybrid families: row t scores token t + 2 from the hidden row t and
// token t + 1.
static void prediction_heads_match_the_reference(void **state) {
    (void)state;
    static const char *const heads[] = {"qwen35", "qwen35_moe"};
    for (int f = 0; f < 4; f++) {
        char path[256];
        qn_err err;
        int32_t ids[GOLDEN_IDS];
        golden g = family_golden(heads[f / 2]);
        const int32_t n = (int32_t)golden_ids(ids, &g, "prompts", 1) - 1;
        assert_true(model_path(path, sizeof path, heads[f / 2], f % 2));
        qn_source *source = NULL;
        qn_model *model = NULL;
        const void **params = NULL;
        qn_ref *ref = NULL;
        ASSERT_OK(qn_source_open(&source, path, &err));
        ASSERT_OK(qn_model_create(&model, source, &err));
        ASSERT_OK(qn_graph_verify(&model->graph_predict, &err));
        ASSERT_OK(
            qn_weights_load(&model->weights, source, &(qn_load_opts){.with_predict = true}, &err));
        ASSERT_OK(qn_model_params(&params, model, &model->graph_predict, &err));
        const qn_ref_opts opts = {
            .graph = &model->graph_predict, .params = params, .n_pages = 4, .n_slots = 1};
        ASSERT_OK(qn_ref_create(&ref, &opts, &err));

        char name[32];
        int64_t n_hidden = 0, n_want = 0, n_got = 0;
        snprintf(name, sizeof name, "hidden.1.%lld", (long long)model->hparams->layers);
        float *hidden = golden_floats(&g, name, &n_hidden); // after the final norm
        float *want = golden_floats(&g, "mtp_logits.1", &n_want);
        qn_ref_set_input(ref, qn_graph_find_input(&model->graph_predict, QN_ROWS_BEFORE), hidden);
        int32_t pos[GOLDEN_IDS * 4], zeros[GOLDEN_IDS] = {0}, rows[GOLDEN_IDS];
        for (int32_t t = 0; t < n; t++) {
            for (int k = 0; k < 4; k++) pos[t * 4 + k] = k < 3 ? t + 1 : 0;
            rows[t] = t;
        }
        const int32_t seg_row[2] = {0, n}, pages[4] = {0, 1, 2, 3}, none = -1, one = 1;
        const qn_step step = {.n_rows = n,
                              .n_segs = 1,
                              .n_out = n,
                              .ids = ids + 1,
                              .pos = pos,
                              .row_seg = zeros,
                              .seg_row = seg_row,
                              .seg_past = &one,
                              .seg_pages = pages,
                              .pages_per_seg = 4,
                              .seg_slot = zeros,
                              .seg_accept = zeros,
                              .seg_adapter = &none,
                              .row_out = rows};
        ASSERT_OK(qn_ref_run(ref, &step, &err));
        const float *got = qn_ref_output(ref, "logits", &n_got);
        assert_int_equal(n_got, n_want);
        const double error = relative_error(got, want, n_want);
        print_message("%-14s prediction head: %.1e\n", heads[f / 2], error);
        assert_true(error <= bound);
        qn_ref_destroy(ref);
        qn_free(params);
        qn_model_destroy(model);
        qn_source_close(source);
        qn_free(hidden);
        qn_free(want);
        golden_close(&g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_match_the_reference),
        cmocka_unit_test(hidden_states_match_layer_by_layer),
        cmocka_unit_test(greedy_continuations_match),
        cmocka_unit_test(chunks_and_threads_change_no_bit),
        cmocka_unit_test(an_engine_is_shared_by_threads),
        cmocka_unit_test(quantised_files_match_the_reference),
        cmocka_unit_test(quantised_hybrids_match_the_reference),
        cmocka_unit_test(the_bundled_hybrid_is_close_to_exact_arithmetic),
        cmocka_unit_test(prediction_heads_match_the_reference),
    };
    return cmocka_run_group_tests_name("models", tests, NULL, NULL);
}
