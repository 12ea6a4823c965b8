// QN_REF compares every kernel with the interpreter and names the first that is off; QN_LAYERS
// tells the figures of every layer; the float environment of the caller matters to neither.
#include "families.h"

#include "runtime/engine.h"

#include <fenv.h>
#include <stdlib.h>

static int clear_switches(void **state) {
    (void)state;
    unsetenv("QN_REF");
    unsetenv("QN_LAYERS");
    unsetenv("QN_SKIP");
    return 0;
}

static qn_status compute(const qn_engine *engine, bool hidden, qn_err *err) {
    int32_t ids[12];
    random_ids(ids, 12, engine_info(engine).n_vocab, 8);
    qn_logits logits = QN_INIT(qn_logits);
    const qn_logits_opts opts = QN_INIT(qn_logits_opts, .chunk = 5, .hidden = hidden);
    QN_TRY(qn_engine_logits(&logits, engine, ids, 12, &opts, err));
    qn_logits_deinit(&logits);
    return QN_OK;
}

static void kernels_agree_with_the_interpreter(void **state) {
    (void)state;
    static const qn_engine_opts opts[] = {
        QN_INITIALIZER(qn_engine_opts),
        QN_INITIALIZER(qn_engine_opts, .numerics = QN_NUMERICS_FAST, .cache_type = QN_CACHE_Q8_0),
        QN_INITIALIZER(qn_engine_opts, .numerics = QN_NUMERICS_BALANCED,
                       .cache_type = QN_CACHE_F16),
        QN_INITIALIZER(qn_engine_opts, .cache_type = QN_CACHE_Q4_0),
        QN_INITIALIZER(qn_engine_opts, .cache_type = QN_CACHE_Q8_0R),
        QN_INITIALIZER(qn_engine_opts, .cache_type = QN_CACHE_Q4_0R)};
    setenv("QN_REF", "1", 1);
    for (size_t f = 0; f < N_FAMILIES; f++) {
        for (size_t i = 0; i < sizeof opts / sizeof opts[0]; i++) {
            qn_err err;
            qn_engine *engine = family_open(families[f], &opts[i]);
            ASSERT_OK(compute(engine, false, &err));
            ASSERT_OK(compute(engine, true, &err));
            qn_engine_close(engine);
        }
    }
}

// One number of the interpreter's weights is changed: the kernel that reads it is named, and the
// session goes on afterwards.
static void a_wrong_kernel_is_named(void **state) {
    (void)state;
    qn_err err;
    setenv("QN_REF", "1", 1);
    qn_engine *engine = family_open("qwen3", NULL);
    uint32_t index;
    static const char name[] = "blk.1.ffn_down.weight";
    assert_true(qn_map_find(&engine->model->weights.by_name, name, sizeof name - 1, &index));
    unsigned char *bytes = engine->model->weights.items[index].data;
    const unsigned char before = bytes[1];
    bytes[1] ^= 0x7f; // the exponent of a bf16 number
    ASSERT_FAILS(compute(engine, false, &err), QN_NUMERIC, "MATMUL @1");
    qn_session *session;
    const float *logits;
    int32_t ids[4];
    random_ids(ids, 4, 512, 1);
    ASSERT_OK(qn_session_create(&session, engine, &QN_INIT(qn_session_opts, .context = 64), &err));
    ASSERT_FAILS(qn_session_prefill(&logits, session, ids, 4, &err), QN_NUMERIC, "MATMUL @1");
    bytes[1] = before;
    ASSERT_OK(qn_session_prefill(&logits, session, ids, 4, &err));
    qn_session_destroy(session);
    qn_engine_close(engine);
}

typedef struct lines {
    int layers, logits;
} lines;

static void count_lines(void *arg, qn_log_level level, const char *message) {
    lines *n = arg;
    if (level != QN_LOG_DEBUG) return;
    n->layers += strstr(message, "hidden.") && strstr(message, "0 NaN");
    n->logits += strstr(message, "logits") != NULL;
}

static void layers_are_told(void **state) {
    (void)state;
    qn_err err;
    lines n = {0};
    setenv("QN_LAYERS", "1", 1);
    qn_engine *engine =
        family_open("gemma3", &QN_INIT(qn_engine_opts, .log = count_lines, .log_arg = &n));
    const int n_layers = (int)engine_info(engine).n_layers;
    ASSERT_OK(compute(engine, false, &err));
    assert_int_equal(n.layers, 3 * (n_layers + 1)); // three steps; the embedding counts too
    assert_true(n.logits > 0);
    qn_engine_close(engine);
}

static void the_callers_rounding_does_not_matter(void **state) {
    (void)state;
    qn_err err;
    qn_engine *engine = family_open("qwen35", &QN_INIT(qn_engine_opts, .n_threads = 2));
    qn_logits want = QN_INIT(qn_logits), got = QN_INIT(qn_logits);
    int32_t ids[40];
    random_ids(ids, 40, engine_info(engine).n_vocab, 2);
    ASSERT_OK(qn_engine_logits(&want, engine, ids, 40, NULL, &err));
    fesetround(FE_UPWARD);
    const qn_status status = qn_engine_logits(&got, engine, ids, 40, NULL, &err);
    assert_int_equal(fegetround(), FE_UPWARD);
    fesetround(FE_TONEAREST);
    ASSERT_OK(status);
    assert_memory_equal(got.logits, want.logits, (size_t)want.n_vocab * sizeof(float));
    qn_logits_deinit(&want);
    qn_logits_deinit(&got);
    qn_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(kernels_agree_with_the_interpreter, clear_switches),
        cmocka_unit_test_teardown(a_wrong_kernel_is_named, clear_switches),
        cmocka_unit_test_teardown(layers_are_told, clear_switches),
        cmocka_unit_test(the_callers_rounding_does_not_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
