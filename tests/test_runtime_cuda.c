// Models on a GPU that fails: at every call, at every allocation. There is one clear error, nothing
// is left behind on the card, and other devices of the same process go on.
#include "cuda_rig.h"
#include "families.h"

#include "core/mem.h"

enum { CONTEXT = 160, PROMPT = 7, FED = 4, LONG = 70, MAX_NUMBERS = 1 << 16 };

// What a model computed, as far as it came: every number that a caller gets to see.
typedef struct seen {
    float *v;
    size_t n;
} seen;

static void see(seen *to, const float *v, int64_t n) {
    assert_true(to->n + (size_t)n <= MAX_NUMBERS);
    memcpy(to->v + to->n, v, (size_t)n * sizeof *v);
    to->n += (size_t)n;
}

// --- what is done with a model -------------------------------------------------------------------

static qn_status feed(seen *to, qn_session *s, const int32_t *ids, int n, int64_t vocab,
                      qn_err *err) {
    const float *logits;
    for (int i = 0; i < n; i++) {
        QN_TRY(qn_session_feed(&logits, s, ids[i], err));
        see(to, logits, vocab);
    }
    return QN_OK;
}

// Keys and values of the last layer, and the states of the first.
static qn_status look(seen *to, qn_session *s, int64_t n_layers, qn_err *err) {
    enum { MAX = 1 << 14 };
    float room[2][MAX];
    qn_layer_info last = QN_INIT(qn_layer_info), first = QN_INIT(qn_layer_info);
    QN_TRY(qn_session_layer_info(&last, s, n_layers - 1, err));
    QN_TRY(qn_session_layer_info(&first, s, 0, err));
    assert_true(last.n_heads > 0 && last.key_size <= MAX && last.value_size <= MAX);
    QN_TRY(qn_session_read_kv(room[0], room[1], s, n_layers - 1, 0, 2, 1, err));
    see(to, room[0], last.key_size);
    see(to, room[1], last.value_size);
    for (int64_t i = 0; i < first.n_states; i++) {
        qn_state_info state = QN_INIT(qn_state_info);
        QN_TRY(qn_session_state_info(&state, s, 0, i, err));
        const int64_t n = state.dims[0] * state.dims[1] * state.dims[2];
        assert_true(n <= MAX);
        QN_TRY(qn_session_read_state(room[0], s, 0, i, err));
        see(to, room[0], n);
    }
    return QN_OK;
}

// A prompt, and tokens one by one: the same sizes come again, which makes a graph.
static qn_status talk(seen *to, qn_session *s, const int32_t *ids, int64_t vocab, int64_t n_layers,
                      qn_err *err) {
    const float *logits;
    QN_TRY(qn_session_prefill(&logits, s, ids, PROMPT, err));
    see(to, logits, vocab);
    QN_TRY(feed(to, s, ids + PROMPT, FED, vocab, err));
    return look(to, s, n_layers, err);
}

// Saves a session, and goes on with another one.
static qn_status move_on(seen *to, qn_session *s, qn_session *other, const int32_t *ids,
                         int64_t vocab, qn_err *err) {
    void *data = NULL;
    size_t size = 0;
    QN_TRY(qn_session_save_bytes(&data, &size, s, err));
    const qn_status status = qn_session_load_bytes(other, data, size, err);
    qn_free(data);
    return status ? status : feed(to, other, ids + PROMPT + FED, 2, vocab, err);
}

static qn_status embed(seen *to, const qn_engine *engine, const int32_t *ids, qn_err *err) {
    qn_embeddings rows = QN_INIT(qn_embeddings);
    const qn_prompt prompts[] = {{.ids = ids, .n = LONG}, {.ids = ids + 3, .n = 5}};
    QN_TRY(qn_engine_embed(&rows, engine, prompts, 2, NULL, err));
    see(to, rows.rows, rows.n * rows.width);
    qn_embeddings_deinit(&rows);
    return QN_OK;
}

static qn_status use_sessions(seen *to, const qn_engine *engine, const int32_t *ids, int64_t vocab,
                              qn_err *err) {
    qn_session *s = NULL, *other = NULL, *fork = NULL;
    const qn_session_opts opts = QN_INIT(qn_session_opts, .context = CONTEXT, .chunk = 32);
    qn_status status = qn_session_create(&s, engine, &opts, err);
    if (!status) status = talk(to, s, ids, vocab, engine_info(engine).n_layers, err);
    if (!status) status = qn_session_fork(&fork, s, err);
    if (!status) status = feed(to, fork, ids + LONG - 2, 2, vocab, err);
    if (!status) status = qn_session_create(&other, engine, &opts, err);
    if (!status) status = move_on(to, s, other, ids, vocab, err);
    qn_session_destroy(fork);
    qn_session_destroy(other);
    qn_session_destroy(s);
    return status;
}

static qn_status use_model(seen *to, const char *family, const char *device, qn_err *err) {
    char path[256];
    int32_t ids[LONG];
    qn_engine *engine = NULL;
    const qn_engine_opts opts = QN_INIT(qn_engine_opts, .device = device, .n_threads = 1);
    to->n = 0;
    QN_TRY(qn_engine_open(&engine, family_path(path, sizeof path, family), &opts, err));
    const int64_t vocab = engine_info(engine).n_vocab;
    random_ids(ids, LONG, vocab, 5);
    qn_status status = use_sessions(to, engine, ids, vocab, err);
    if (!status) status = embed(to, engine, ids, err);
    qn_engine_close(engine);
    return status;
}

// --- failures ------------------------------------------------------------------------------------

typedef struct rig {
    fake_card fake;
    seen want, got;
    const char *family;
} rig;

static const char shared[] = "cuda,cpu"; // the layers are shared

static rig begin(const char *family) {
    qn_err err;
    rig r = {.fake = use_fake(), .family = family};
    r.want.v = qn_alloc(MAX_NUMBERS, sizeof *r.want.v);
    r.got.v = qn_alloc(MAX_NUMBERS, sizeof *r.got.v);
    assert_true(r.want.v && r.got.v);
    ASSERT_OK(use_model(&r.want, family, "cpu", &err));
    return r;
}

static void end(rig *r) {
    r->fake.set(0, 0);
    r->fake.refuse(0);
    qn_free(r->want.v);
    qn_free(r->got.v);
}

// What was seen before a failure is right; without one, all is there. Nothing is left on the card.
static void assert_right(const rig *r, qn_status status, const qn_err *err, const char *what,
                         long n) {
    if (status && !strstr(err->message, "cuda"))
        fail_msg("%s: %s %ld: the message '%s' names no device", r->family, what, n, err->message);
    if (status ? r->got.n > r->want.n : r->got.n != r->want.n)
        fail_msg("%s: %s %ld: %zu numbers of %zu", r->family, what, n, r->got.n, r->want.n);
    if (memcmp(r->got.v, r->want.v, r->got.n * sizeof *r->got.v) != 0)
        fail_msg("%s: %s %ld: other numbers, %s", r->family, what, n,
                 status ? err->message : "and no error");
    if (r->fake.bytes() || r->fake.objects())
        fail_msg("%s: %s %ld: %zu bytes and %ld objects are left", r->family, what, n,
                 r->fake.bytes(), r->fake.objects());
}

// Every `step`-th call of a model's life is the first that fails.
static void fail_calls(const char *family, const char *device, long step) {
    rig r = begin(family);
    qn_err err;
    r.fake.set(0, 0);
    qn_status status = use_model(&r.got, family, device, &err);
    assert_right(&r, status, &err, "call", 0);
    assert_int_equal(status, QN_OK);
    const long calls = r.fake.calls();
    long failed = 0;
    for (long n = 1; n <= calls; n += step) {
        r.fake.set(n, 0);
        status = use_model(&r.got, family, device, &err);
        assert_right(&r, status, &err, "call", n);
        failed += status != QN_OK;
        if (status && status != QN_IO && status != QN_UNSUPPORTED)
            fail_msg("%s: call %ld: %s: %s", family, n, qn_status_name(status), err.message);
        if (n > calls / 2 && n <= calls / 2 + step) { // others go on
            assert_int_equal(use_model(&r.got, family, "cpu", &err), QN_OK);
            assert_right(&r, QN_OK, &err, "the CPU after call", n);
        }
    }
    assert_true(failed > calls / step / 2);
    end(&r);
}

static void every_call_may_fail(void **state) {
    (void)state;
    fail_calls("llama32", "cuda", 1);
}

static void calls_of_other_models_may_fail(void **state) {
    (void)state;
    fail_calls("qwen35", "cuda", 41);
    fail_calls("qwen3_moe", "cuda", 37);
    fail_calls("gemma3", "cuda", 43);
    fail_calls("llama32", shared, 7);
}

// Any allocation may find no room, and only that one.
static void every_allocation_may_find_no_room(void **state) {
    (void)state;
    static const char *const models[] = {"llama32", "qwen35", "gemma3", "qwen3_moe", "llama32"};
    for (size_t f = 0; f < 5; f++) {
        rig r = begin(models[f]);
        qn_err err;
        const char *device = f == 4 ? shared : "cuda";
        ASSERT_OK(use_model(&r.got, models[f], device, &err));
        const long allocs =
            (r.fake.refuse(0), use_model(&r.got, models[f], device, &err), r.fake.allocs());
        long refused = 0;
        assert_true(allocs > 10);
        for (long n = 1; n <= allocs; n++) {
            r.fake.refuse(n);
            const qn_status status = use_model(&r.got, models[f], device, &err);
            assert_right(&r, status, &err, "allocation", n);
            if (status && status != QN_LIMIT && status != QN_MEMORY)
                fail_msg("%s: allocation %ld: %s: %s", models[f], n, qn_status_name(status),
                         err.message);
            refused += status != QN_OK; // pages of several sequences may be fewer
        }
        assert_true(refused >= allocs - 4);
        assert_int_equal(use_model(&r.got, models[f], "cpu", &err), QN_OK);
        assert_right(&r, QN_OK, &err, "the CPU after allocation", allocs);
        end(&r);
    }
}

// Libraries that cannot be used, drivers that are missing or too old, no card: one error that says
// so, and the CPU is what it was.
static void a_process_without_a_card_has_its_cpu(void **state) {
    (void)state;
    static const char *const libraries[] = {ODD_CUDA "1.so", ODD_CUDA "2.so", ODD_CUDA "3.so",
                                            ODD_CUDA "4.so", ODD_CUDA "5.so", ODD_CUDA "6.so",
                                            ODD_CUDA "7.so", "/nowhere.so"};
    static const char *const parts[] = {"this program wants",       "was built for other sources",
                                        "has no qn_cuda_api_get",   "has version 0",
                                        "this machine has 0 cards", "the driver is missing",
                                        "the driver is too old",    "cannot be used"};
    rig r = begin("llama32");
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++) {
        qn_err err;
        assert_int_equal(setenv("QN_CUDA_LIBRARY", libraries[i], 1), 0);
        for (int k = 0; k < 2; k++) { // and again
            const qn_status status = use_model(&r.got, "llama32", "cuda", &err);
            assert_true(status == QN_UNSUPPORTED || status == QN_ARGUMENT);
            if (!strstr(err.message, parts[i]) || !strstr(err.message, "device cuda"))
                fail_msg("%s: '%s'", libraries[i], err.message);
            ASSERT_OK(use_model(&r.got, "llama32", "cpu", &err));
            assert_right(&r, QN_OK, &err, "the CPU beside library", (long)i);
        }
    }
    (void)use_fake();
    end(&r);
}

// A session that found no room can be made once there is some.
static void a_model_goes_on_after_a_full_card(void **state) {
    (void)state;
    rig r = begin("llama32");
    qn_err err;
    qn_session *s = NULL;
    const float *logits;
    int32_t ids[LONG];
    const qn_engine_opts opts = QN_INIT(qn_engine_opts, .device = "cuda", .n_threads = 1);
    const qn_session_opts session = QN_INIT(qn_session_opts, .context = CONTEXT, .chunk = 32);
    qn_engine *engine = family_open("llama32", &opts);
    const int64_t vocab = engine_info(engine).n_vocab;
    random_ids(ids, LONG, vocab, 5);
    const size_t taken = r.fake.bytes();
    for (long n = 1; n < 100; n++) {
        r.fake.refuse(n);
        if (!qn_session_create(&s, engine, &session, &err)) break;
        assert_non_null(strstr(err.message, "no room"));
        assert_int_equal(r.fake.bytes(), taken);
    }
    r.fake.refuse(0);
    assert_non_null(s);
    ASSERT_OK(qn_session_prefill(&logits, s, ids, PROMPT, &err));
    assert_memory_equal(logits, r.want.v, (size_t)vocab * sizeof *logits);
    qn_session_destroy(s);
    qn_engine_close(engine);
    end(&r);
}

// A card that fails in the middle of an answer ends it with the error, and so does every later one.
static void an_answer_ends_with_the_failure(void **state) {
    (void)state;
    const fake_card fake = use_fake();
    qn_err err;
    qn_session *s;
    int32_t ids[PROMPT];
    const qn_engine_opts opts = QN_INIT(qn_engine_opts, .device = "cuda", .n_threads = 1);
    qn_engine *engine = family_open("llama32", &opts);
    random_ids(ids, PROMPT, engine_info(engine).n_vocab, 5);
    ASSERT_OK(qn_session_create(&s, engine, &QN_INIT(qn_session_opts, .context = CONTEXT), &err));
    ASSERT_OK(qn_session_set_prompt(s, ids, PROMPT, &err));
    fake.set(200, 0);
    for (int i = 0; i < 2; i++) {
        qn_result result = QN_INIT(qn_result);
        const qn_generate_opts generate =
            QN_INIT(qn_generate_opts, .max_tokens = 100, .ignore_end = true);
        ASSERT_FAILS(qn_generate(&result, s, &generate, NULL, NULL, &err), QN_IO,
                     "device cuda:0 (a fake) failed");
        qn_result_deinit(&result);
    }
    qn_session_destroy(s);
    qn_engine_close(engine);
    assert_int_equal(fake.bytes(), 0);
    assert_int_equal(fake.objects(), 0);
    fake.set(0, 0);
}

// --- memory --------------------------------------------------------------------------------------

static qn_memory plan_of(const char *family, const char *device) {
    qn_err err;
    qn_memory plan = QN_INIT(qn_memory);
    const qn_engine_opts opts = QN_INIT(qn_engine_opts, .device = device, .n_threads = 1);
    qn_engine *engine = family_open(family, &opts);
    ASSERT_OK(qn_engine_memory(&plan, engine, CONTEXT, 32, &err));
    qn_engine_close(engine);
    return plan;
}

// The plan says what of it is on the card: its parts of the weights, keys, values and activations.
static void plans_count_the_card(void **state) {
    (void)state;
    (void)use_fake();
    static const char *const models[] = {"llama32", "qwen35"};
    for (size_t f = 0; f < 2; f++) {
        const qn_memory cpu = plan_of(models[f], "cpu"), card = plan_of(models[f], "cuda"),
                        both = plan_of(models[f], "cuda,cpu");
        assert_int_equal(cpu.device, 0);
        assert_true(card.device > card.weights + card.cache && card.device <= card.total);
        assert_true(both.device > 0 && both.device < card.device);
        assert_true(both.device < both.total);
    }
}

// A type that the card lacks is refused before anything is loaded there; the CPU has all.
static void caches_that_a_card_lacks_are_refused(void **state) {
    (void)state;
    static const char *const devices[] = {"cuda", "cuda,cpu", "cpu,cuda"};
    static const qn_cache_type lacks[] = {QN_CACHE_Q4_0, QN_CACHE_Q8_0R, QN_CACHE_Q4_0R};
    static const char *const names[] = {"type q4_0,", "type q8_0r,", "type q4_0r,"};
    const fake_card fake = use_fake();
    char path[256];
    qn_err err;
    for (int i = 0; i < 9; i++) {
        qn_engine *engine = NULL;
        qn_engine_opts opts = QN_INIT(qn_engine_opts, .device = devices[i / 3], .n_threads = 1,
                                      .cache_type = lacks[i % 3]);
        const qn_status status =
            qn_engine_open(&engine, family_path(path, sizeof path, "qwen3"), &opts, &err);
        assert_int_equal(status, QN_UNSUPPORTED);
        assert_non_null(strstr(err.message, "device cuda:0 has no KV cache of"));
        assert_non_null(strstr(err.message, names[i % 3]));
        assert_non_null(strstr(err.message, "it has f32, f16, q8_0"));
        assert_null(engine);
        assert_int_equal(fake.bytes(), 0);
        opts.device = "cpu";
        ASSERT_OK(qn_engine_open(&engine, path, &opts, &err));
        qn_engine_close(engine);
    }
    for (int type = QN_CACHE_AUTO; type <= QN_CACHE_Q8_0; type++) {
        qn_engine *engine;
        ASSERT_OK(qn_engine_open(&engine, path,
                                 &QN_INIT(qn_engine_opts, .device = "cuda", .n_threads = 1,
                                          .cache_type = (qn_cache_type)type),
                                 &err));
        qn_engine_close(engine);
    }
    fake.set(0, 0);
}

static void weights_that_do_not_fit(void **state) {
    (void)state;
    const fake_card fake = use_fake();
    qn_err err;
    qn_engine *engine;
    const qn_engine_opts opts = QN_INIT(qn_engine_opts, .device = "cuda", .n_threads = 1);
    fake.set(0, 1000);
    ASSERT_FAILS(qn_engine_open(&engine, TEST_DATA "/mini/llama32", &opts, &err), QN_MEMORY,
                 "0 MiB of memory of cuda:0 are free");
    assert_int_equal(fake.bytes(), 0);
    fake.set(0, 0);
}

// With any amount of memory a session is planned so that it fits, or refused with both numbers.
static void contexts_follow_the_memory_of_the_card(void **state) {
    (void)state;
    rig r = begin("llama32");
    qn_err err;
    int32_t ids[LONG];
    const qn_engine_opts opts = QN_INIT(qn_engine_opts, .device = "cuda", .n_threads = 1);
    qn_engine *engine = family_open("llama32", &opts);
    const qn_engine_info info = engine_info(engine);
    const size_t weights = r.fake.bytes();
    int64_t before = 0, n_refused = 0, n_shrunk = 0, n_whole = 0;
    random_ids(ids, LONG, info.n_vocab, 5);
    for (size_t more = 1 << 14; more < (size_t)1 << 30; more += more / 3) {
        qn_session *s = NULL;
        const float *logits;
        r.fake.set(0, weights + more);
        const qn_status status =
            qn_session_create(&s, engine, &QN_INIT(qn_session_opts, .shrink = true), &err);
        if (status) {
            ASSERT_FAILS(status, QN_MEMORY, "cuda:0");
            assert_non_null(strstr(err.message, "are free"));
            assert_int_equal(before, 0); // more memory is never worse
            n_refused++;
            continue;
        }
        assert_true(qn_session_context(s) >= before);
        before = qn_session_context(s);
        n_shrunk += before < info.context;
        n_whole += before == info.context;
        ASSERT_OK(qn_session_prefill(&logits, s, ids, PROMPT, &err));
        assert_memory_equal(logits, r.want.v, (size_t)info.n_vocab * sizeof *logits);
        qn_session_destroy(s);
    }
    assert_true(n_refused > 0 && n_shrunk > 0 && n_whole > 0);
    r.fake.set(0, 0);
    assert_int_equal(r.fake.bytes(), weights);
    qn_engine_close(engine);
    end(&r);
}

static void batches_follow_the_memory_of_the_card(void **state) {
    (void)state;
    const fake_card fake = use_fake();
    qn_err err;
    const qn_engine_opts opts = QN_INIT(qn_engine_opts, .device = "cuda", .n_threads = 1);
    qn_engine *engine = family_open("llama32", &opts);
    const size_t weights = fake.bytes();
    int64_t before = 0, n_refused = 0;
    for (size_t more = 1 << 14; more < (size_t)1 << 28; more *= 2) {
        qn_batch *batch = NULL;
        fake.set(0, weights + more);
        const qn_status status = qn_batch_create(
            &batch, engine, &QN_INIT(qn_batch_opts, .rows = 64, .context = CONTEXT), &err);
        if (status) {
            if (status != QN_MEMORY) fail_msg("%zu bytes: %s", more, err.message);
            assert_int_equal(before, 0);
            n_refused++;
            continue;
        }
        assert_true(batch_counts(batch).rows_all >= before);
        before = batch_counts(batch).rows_all;
        qn_batch_destroy(batch);
    }
    assert_true(n_refused > 0);
    assert_int_equal(before, 64);
    fake.set(0, 0);
    qn_engine_close(engine);
    assert_int_equal(fake.bytes(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_may_fail),
        cmocka_unit_test(calls_of_other_models_may_fail),
        cmocka_unit_test(every_allocation_may_find_no_room),
        cmocka_unit_test(a_process_without_a_card_has_its_cpu),
        cmocka_unit_test(a_model_goes_on_after_a_full_card),
        cmocka_unit_test(an_answer_ends_with_the_failure),
        cmocka_unit_test(plans_count_the_card),
        cmocka_unit_test(caches_that_a_card_lacks_are_refused),
        cmocka_unit_test(weights_that_do_not_fit),
        cmocka_unit_test(contexts_follow_the_memory_of_the_card),
        cmocka_unit_test(batches_follow_the_memory_of_the_card),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
