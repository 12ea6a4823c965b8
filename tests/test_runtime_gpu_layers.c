// Layers that stay on the CPU beside a GPU, here its stand-in: every result is that of the CPU
// alone, and as many layers as fit is a number that fits.
#include "cuda_rig.h"
#include "families.h"

#include "core/mem.h"
#include "runtime/engine.h"

enum { CONTEXT = 160, N_IDS = 40, FED = 4 };

// Logits of a prompt and of a few tokens after it.
static qn_status live(float *to, size_t *n, const qn_engine *engine, qn_err *err) {
    qn_session *s = NULL;
    const float *logits;
    int32_t ids[N_IDS];
    const int64_t vocab = engine_info(engine).n_vocab;
    random_ids(ids, N_IDS, vocab, 11);
    *n = 0;
    QN_TRY(qn_session_create(&s, engine, &QN_INIT(qn_session_opts, .context = CONTEXT), err));
    qn_status status = qn_session_prefill(&logits, s, ids, N_IDS - FED, err);
    for (int i = 0; !status; i++) {
        memcpy(to + *n, logits, (size_t)vocab * sizeof *to);
        *n += (size_t)vocab;
        if (i == FED) break;
        status = qn_session_feed(&logits, s, ids[N_IDS - FED + i], err);
    }
    qn_session_destroy(s);
    return status;
}

typedef struct numbers {
    float *v;
    size_t n;
} numbers;

static numbers live_on(const char *family, const qn_engine_opts *opts) {
    qn_err err;
    qn_engine *engine = family_open(family, opts);
    numbers out = {0};
    out.v = qn_alloc((size_t)engine_info(engine).n_vocab * (FED + 1), sizeof *out.v);
    assert_non_null(out.v);
    ASSERT_OK(live(out.v, &out.n, engine, &err));
    qn_engine_close(engine);
    return out;
}

static int64_t layers_on_card(const qn_engine *engine) {
    int64_t n = 0;
    for (size_t i = 0; i < engine->n_stages; i++) {
        const qn_stage *stage = &engine->stages[i];
        if (!stage->device->kind->has_host_memory) n += stage->end_layer - stage->first_layer;
    }
    return n;
}

static qn_engine_opts on_card(int64_t n) {
    return QN_INIT(qn_engine_opts, .device = "cuda", .n_threads = 1, .gpu_layers = n,
                   .gpu_context = CONTEXT);
}

// Every number of layers that can be had, of every family.
static void every_cut_gives_the_same_bits(void **state) {
    (void)state;
    const fake_card fake = use_fake();
    for (size_t f = 0; f < N_FAMILIES; f++) {
        numbers want = live_on(families[f], &QN_INIT(qn_engine_opts, .n_threads = 1));
        qn_engine *engine = family_open(families[f], &QN_INIT(qn_engine_opts, .no_weights = true));
        const int64_t all = engine_info(engine).n_layers;
        qn_engine_close(engine);
        for (int64_t n = 1; n <= all; n++) {
            const qn_engine_opts opts = on_card(n);
            numbers got = live_on(families[f], &opts);
            assert_int_equal(got.n, want.n);
            if (memcmp(got.v, want.v, want.n * sizeof *want.v) != 0)
                fail_msg("%s: other numbers with %lld layers", families[f], (long long)n);
            qn_free(got.v);
        }
        qn_free(want.v);
    }
    assert_int_equal(fake.bytes(), 0);
    assert_int_equal(fake.objects(), 0);
}

static void the_last_layers_are_on_the_card(void **state) {
    (void)state;
    (void)use_fake();
    qn_err err;
    char *config = NULL;
    const qn_engine_opts one = on_card(1), many = on_card(99), none = on_card(QN_GPU_LAYERS_NONE);
    qn_engine *engine = family_open("llama32", &one);
    const int64_t all = engine_info(engine).n_layers;
    assert_true(all > 1);
    assert_int_equal(engine->n_stages, 2);
    assert_int_equal(engine->stages[1].first_layer, all - 1);
    assert_int_equal(engine->stages[1].end_layer, all);
    assert_non_null(strstr(engine_info(engine).device, ",cuda:0"));
    ASSERT_OK(qn_engine_config(&config, engine, &err));
    assert_non_null(strstr(config, "\"cuda:0\""));
    qn_free(config);
    qn_engine_close(engine);
    engine = family_open("llama32", &many);
    assert_int_equal(layers_on_card(engine), all);
    assert_string_equal(engine_info(engine).device, "cuda:0");
    qn_engine_close(engine);
    engine = family_open("llama32", &none);
    assert_int_equal(engine->n_stages, 1);
    assert_true(engine->stages[0].is_whole);
    assert_null(strstr(engine_info(engine).device, "cuda"));
    qn_engine_close(engine);
}

static void bad_numbers_are_refused(void **state) {
    (void)state;
    (void)use_fake();
    static const struct {
        const char *device;
        int64_t layers, context;
        const char *word;
    } bad[] = {{"cuda", -3, 0, "-3 layers on GPUs, want -2 or more"},
               {"cpu:portable", 1, 0, "the device cpu:portable, which is none"},
               {"cpu:portable", QN_GPU_LAYERS_AUTO, 0, "the device cpu:portable"},
               {"cuda,cpu:portable", 1, 0, "the device cpu:portable"},
               {"cuda,cuda", 1, 0, "1 layers for 2 GPUs"},
               {"cuda", QN_GPU_LAYERS_AUTO, -1, "a context of -1 tokens"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char path[256];
        qn_err err = {0};
        qn_engine *engine = NULL;
        const qn_engine_opts opts =
            QN_INIT(qn_engine_opts, .device = bad[i].device, .gpu_layers = bad[i].layers,
                    .gpu_context = bad[i].context);
        ASSERT_FAILS(qn_engine_open(&engine, family_path(path, sizeof path, "gemma3"), &opts, &err),
                     QN_ARGUMENT, bad[i].word);
        assert_null(engine);
    }
    // Nothing on a GPU is what a CPU does.
    qn_engine *engine = family_open(
        "gemma3", &QN_INIT(qn_engine_opts, .no_weights = true, .gpu_layers = QN_GPU_LAYERS_NONE));
    qn_engine_close(engine);
}

// With any amount of memory some layers fit, more of them with more memory, and a session is there.
static void as_many_as_fit(void **state) {
    (void)state;
    const fake_card fake = use_fake();
    static const char *const models[] = {"gemma3", "qwen35"};
    for (size_t f = 0; f < 2; f++) {
        numbers want = live_on(models[f], &QN_INIT(qn_engine_opts, .n_threads = 1)), got = {0};
        got.v = qn_alloc(want.n, sizeof *got.v);
        assert_non_null(got.v);
        int64_t before = 0, all = 0, n_mixed = 0, n_whole = 0, n_none = 0;
        for (size_t most = 1 << 12; most < (size_t)1 << 30; most += most / 4) {
            qn_err err;
            fake.set(0, most);
            const qn_engine_opts opts = on_card(QN_GPU_LAYERS_AUTO);
            qn_engine *engine = family_open(models[f], &opts);
            const int64_t n = layers_on_card(engine);
            all = engine_info(engine).n_layers;
            assert_true(n >= before);
            before = n;
            n_none += n == 0;
            n_mixed += n > 0 && n < all;
            n_whole += n == all;
            ASSERT_OK(live(got.v, &got.n, engine, &err));
            assert_int_equal(got.n, want.n);
            assert_memory_equal(got.v, want.v, want.n * sizeof *want.v);
            qn_engine_close(engine);
            assert_int_equal(fake.bytes(), 0);
        }
        assert_true(n_none > 0 && n_mixed > 0 && n_whole > 0);
        assert_int_equal(before, all);
        qn_free(want.v);
        qn_free(got.v);
    }
    fake.set(0, 0);
}

// A number that does not fit is an error before any weight is read.
static void a_number_that_does_not_fit(void **state) {
    (void)state;
    const fake_card fake = use_fake();
    qn_err err;
    qn_engine *engine = NULL;
    const qn_engine_opts opts = on_card(1);
    fake.set(0, 1000);
    ASSERT_FAILS(qn_engine_open(&engine, TEST_DATA "/mini/llama32", &opts, &err), QN_MEMORY,
                 "of memory of cuda:0 are free");
    fake.set(0, 0);
    assert_int_equal(fake.bytes(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut_gives_the_same_bits),
        cmocka_unit_test(the_last_layers_are_on_the_card),
        cmocka_unit_test(bad_numbers_are_refused),
        cmocka_unit_test(as_many_as_fit),
        cmocka_unit_test(a_number_that_does_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
