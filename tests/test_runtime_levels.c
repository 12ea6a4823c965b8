// Whole models of every quantised type on the matrix unit, or on what stands in for it
// (amx_trap.h): logits have the bits of AVX-512, with every rounding of activations.
#include "amx_trap.h"
#include "families.h"
#include "steps.h"

#include "backends/cpu/cpu.h"

enum { N_IDS = 40, CHUNK = 27 }; // so that there are 27 and 13 rows, which are no whole tiles

static qn_logits logits_on(const char *path, const char *device, qn_numerics numerics) {
    qn_err err;
    qn_logits logits = QN_INIT(qn_logits);
    const qn_engine_opts opts = QN_INIT(qn_engine_opts, .device = device, .numerics = numerics);
    qn_engine *engine = family_open(path, &opts);
    int32_t ids[N_IDS];
    random_ids(ids, N_IDS, engine_info(engine).n_vocab, 1);
    ASSERT_OK(qn_engine_logits(&logits, engine, ids, N_IDS,
                               &QN_INIT(qn_logits_opts, .all_rows = true, .chunk = CHUNK), &err));
    qn_engine_close(engine);
    return logits;
}

static void models_are_equal_on_a_matrix_unit(void **state) {
    (void)state;
    static const char *const models[] = {
        TEST_DATA "/k256/qwen3/qwen3-Q2_K.gguf",   TEST_DATA "/k256/qwen3/qwen3-Q3_K_M.gguf",
        TEST_DATA "/k256/qwen3/qwen3-Q4_K_M.gguf", TEST_DATA "/k256/qwen3/qwen3-Q5_K_M.gguf",
        TEST_DATA "/k256/qwen3/qwen3-Q6_K.gguf",   TEST_DATA "/k256/qwen3/qwen3-IQ4_XS.gguf",
        TEST_DATA "/k256/qwen3/qwen3-Q4_0.gguf",   TEST_DATA "/k256/qwen35/qwen35-Q4_K_M.gguf",
        TEST_DATA "/k256/qwen3/qwen3-bf16.gguf",   "qwen3_moe"};
    static const qn_numerics numerics[] = {QN_NUMERICS_EXACT, QN_NUMERICS_BALANCED,
                                           QN_NUMERICS_FAST};
    if (!amx_trap_runs()) skip();
    for (size_t i = 0; i < 3 * sizeof models / sizeof *models; i++) {
        const char *path = models[i / 3];
        qn_logits want = logits_on(path, "cpu:avx512", numerics[i % 3]);
        const int64_t before = amx_trap_count();
        qn_logits got = logits_on(path, "cpu:amx", numerics[i % 3]);
        const bool has_floats = strstr(path, "bf16") || path[0] != '/';
        if (before) assert_true(has_floats || amx_trap_count() > before + 1000);
        assert_int_equal(got.n_rows, N_IDS);
        if (memcmp(got.logits, want.logits, (size_t)(N_IDS * got.n_vocab) * sizeof(float)) != 0)
            fail_msg("%s, numerics %d", path, (int)numerics[i % 3]);
        qn_logits_deinit(&got);
        qn_logits_deinit(&want);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(models_are_equal_on_a_matrix_unit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
