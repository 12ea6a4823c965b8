// Looking into a session: keys and values, recurrent state and hidden rows are those that the
// computation used.
#include "generate_rig.h"

#include "core/mem.h"
#include "runtime/state_int.h"

#include <math.h>

enum { CONTEXT = 256, N_IDS = 100 };

static qn_session *prefilled(const qn_engine *engine, const qn_session_opts *opts, size_t n) {
    qn_err err;
    qn_session *session = NULL;
    int32_t ids[CONTEXT];
    const float *logits;
    random_ids(ids, CONTEXT, engine_info(engine).n_vocab, 4);
    ASSERT_OK(qn_session_create(&session, engine, opts, &err));
    ASSERT_OK(qn_session_prefill(&logits, session, ids, n, &err));
    return session;
}

static const qn_session_opts plain = QN_INITIALIZER(qn_session_opts, .context = CONTEXT);

typedef struct kept {
    qn_layer_info info;
    float *keys, *values; // (heads, n, size)
    int64_t n;
} kept;

static kept read_layer(qn_session *session, int64_t layer) {
    qn_err err;
    kept k = {.info = QN_INIT(qn_layer_info)};
    ASSERT_OK(qn_session_layer_info(&k.info, session, layer, &err));
    k.n = (int64_t)qn_session_cached(session) - k.info.first;
    k.keys = qn_alloc((size_t)(k.info.n_heads * k.n * k.info.key_size + 1), sizeof *k.keys);
    k.values = qn_alloc((size_t)(k.info.n_heads * k.n * k.info.value_size + 1), sizeof *k.values);
    for (int64_t h = 0; h < k.info.n_heads; h++)
        ASSERT_OK(qn_session_read_kv(k.keys + h * k.n * k.info.key_size,
                                     k.values + h * k.n * k.info.value_size, session, layer, h,
                                     k.info.first, k.n, &err));
    return k;
}

static void drop_kept(kept *k) {
    qn_free(k->keys);
    qn_free(k->values);
}

// The same numbers from every device and chunk; more tokens leave those before as they are.
static void keys_and_values_are_those_of_every_device(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_engine *a = family_open(families[f], NULL);
        qn_engine *b = family_open(families[f], &QN_INIT(qn_engine_opts, .device = "ref"));
        qn_session *one = prefilled(a, &plain, N_IDS);
        qn_session *two =
            prefilled(b, &QN_INIT(qn_session_opts, .context = CONTEXT, .chunk = 9), N_IDS);
        int64_t n_caches = 0, n_states = 0;
        for (int64_t l = 0; l < engine_info(a).n_layers; l++) {
            kept x = read_layer(one, l), y = read_layer(two, l);
            assert_memory_equal(&x.info, &y.info, sizeof x.info);
            const size_t n_keys = (size_t)(x.info.n_heads * x.n * x.info.key_size);
            const size_t n_values = (size_t)(x.info.n_heads * x.n * x.info.value_size);
            assert_memory_equal(x.keys, y.keys, n_keys * sizeof *x.keys);
            assert_memory_equal(x.values, y.values, n_values * sizeof *x.values);
            double sum = 0;
            for (size_t i = 0; i < n_keys; i++) sum += fabs((double)x.keys[i]);
            assert_true(x.info.n_heads == 0 || (isfinite(sum) && sum > 0));
            assert_true(x.info.n_heads > 0 || x.info.n_states > 0);
            n_caches += x.info.n_heads > 0;
            n_states += x.info.n_states;
            drop_kept(&x);
            drop_kept(&y);
        }
        print_message("%s: %lld caches, %lld states\n", families[f], (long long)n_caches,
                      (long long)n_states);
        qn_session_destroy(one);
        qn_session_destroy(two);
        qn_engine_close(a);
        qn_engine_close(b);
    }
}

// After drafts were taken back, too: what the log holds is applied. 5 rows, of which 4 may be taken
// back, and 2 are: the log has 2 rows.
static void take_back_drafts(qn_session *s, const int32_t *ids) {
    qn_err err;
    ASSERT_OK(qn_session_commit(s, ids, 60, &err));
    qn_session_set_tokens(s, 60, ids + 60, 5);
    const qn_segment segment = {
        .seq = s->seq, .ids = s->tokens + 60, .rows = 5, .uncertain = 4, .media = &s->media};
    ASSERT_OK(qn_session_run(s->shared, &s, &segment, 1, &err));
    ASSERT_OK(qn_session_truncate(s, 63, &err));
    assert_int_equal(s->seq->length, 63);
    assert_int_equal(s->seq->certain, 61);
}

static void recurrent_state_is_that_of_the_history(void **state) {
    (void)state;
    qn_err err;
    talk t = open_talk("qwen35", CONTEXT);
    int32_t ids[65];
    random_ids(ids, 65, t.vocab, 6);
    take_back_drafts(t.session, ids);
    qn_session *fresh = open_session(t.engine, CONTEXT);
    ASSERT_OK(qn_session_commit(fresh, ids, 60, &err));
    ASSERT_OK(qn_session_commit(fresh, ids + 60, 3, &err));
    void *bytes[2];
    size_t sizes[2];
    ASSERT_OK(qn_session_save_bytes(&bytes[0], &sizes[0], t.session, &err));
    ASSERT_OK(qn_session_save_bytes(&bytes[1], &sizes[1], fresh, &err));
    assert_int_equal(sizes[0], sizes[1]);
    assert_memory_equal(bytes[0], bytes[1], sizes[0]);
    qn_free(bytes[0]);
    qn_free(bytes[1]);
    int64_t n_read = 0;
    for (int64_t l = 0; l < engine_info(t.engine).n_layers; l++) {
        qn_layer_info info = QN_INIT(qn_layer_info);
        ASSERT_OK(qn_session_layer_info(&info, t.session, l, &err));
        for (int64_t i = 0; i < info.n_states; i++, n_read++) {
            qn_state_info shape = QN_INIT(qn_state_info);
            ASSERT_OK(qn_session_state_info(&shape, t.session, l, i, &err));
            const size_t size = (size_t)(shape.dims[0] * shape.dims[1] * shape.dims[2]);
            float *a = qn_alloc(size, sizeof *a), *b = qn_alloc(size, sizeof *b);
            ASSERT_OK(qn_session_read_state(a, t.session, l, i, &err));
            ASSERT_OK(qn_session_read_state(b, fresh, l, i, &err));
            assert_memory_equal(a, b, size * sizeof *a);
            qn_free(a);
            qn_free(b);
        }
    }
    assert_true(n_read >= 2);
    qn_session_destroy(fresh);
    close_talk(&t);
}

// (A reduction with fmax makes gcc 12 for 64-bit ARM fail.)
static double larger(double a, double b) { return a > b ? a : b; }

// A rounded cache is read as it is kept.
static void cache_types_round_what_is_read(void **state) {
    (void)state;
    enum { F32, F16, Q8_0, Q4_0, Q8_0R, Q4_0R, TYPES };
    kept all[TYPES];
    for (int i = 0; i < TYPES; i++) {
        qn_engine *engine = family_open(
            "qwen3", &QN_INIT(qn_engine_opts, .cache_type = (qn_cache_type)(QN_CACHE_F32 + i)));
        qn_session *session = prefilled(engine, &plain, N_IDS);
        all[i] = read_layer(session, 0);
        qn_session_destroy(session);
        qn_engine_close(engine);
    }
    const int64_t n = all[0].info.n_heads * all[0].n * all[0].info.key_size;
    double worst[TYPES] = {0}, max = 0;
    for (int64_t k = 0; k < n; k++) {
        max = larger(max, fabs((double)all[0].keys[k]));
        for (int i = 1; i < TYPES; i++)
            worst[i] = larger(worst[i], fabs((double)all[i].keys[k] - (double)all[0].keys[k]));
    }
    assert_true(worst[F16] > 0 && worst[F16] <= max * 0x1p-11);
    assert_true(worst[Q8_0] > worst[F16] && worst[Q8_0] <= max / 127);
    assert_true(worst[Q4_0] > worst[Q8_0] && worst[Q4_0] <= max / 4);
    // Rotated ones are read rotated back.
    assert_true(worst[Q8_0R] != worst[Q8_0] && worst[Q8_0R] <= max / 64);
    assert_true(worst[Q4_0R] != worst[Q4_0] && worst[Q4_0R] <= max / 2);
    for (int i = 0; i < TYPES; i++) drop_kept(&all[i]);
}

static void what_is_not_there_is_refused(void **state) {
    (void)state;
    qn_err err;
    qn_engine *engine = family_open("qwen35", NULL);
    qn_session *session = prefilled(engine, &plain, 20);
    const int64_t n_layers = engine_info(engine).n_layers;
    qn_layer_info info = QN_INIT(qn_layer_info);
    qn_state_info shape = QN_INIT(qn_state_info);
    float room[1024];
    int64_t cache = -1, recurrent = -1;
    for (int64_t l = 0; l < n_layers; l++) {
        ASSERT_OK(qn_session_layer_info(&info, session, l, &err));
        if (info.n_heads) cache = l;
        if (info.n_states) recurrent = l;
    }
    ASSERT_OK(qn_session_layer_info(&info, session, cache, &err));
    assert_true(info.key_size <= 1024);
    ASSERT_OK(qn_session_read_kv(room, NULL, session, cache, 0, 19, 1, &err));
    ASSERT_OK(qn_session_read_kv(NULL, NULL, session, cache, 0, 20, 0, &err));
    const struct {
        int64_t layer, head, first, n;
        const char *part;
    } wrong[] = {{-1, 0, 0, 1, "layer -1"},           {n_layers, 0, 0, 1, "layer"},
                 {recurrent, 0, 0, 1, "no KV cache"}, {cache, -1, 0, 1, "head -1"},
                 {cache, info.n_heads, 0, 1, "head"}, {cache, 0, -1, 1, "from -1"},
                 {cache, 0, 0, 21, "21 positions"},   {cache, 0, 21, 0, "from 21"},
                 {cache, 0, 1, -1, "-1 positions"},   {cache, 0, 1, INT64_MAX, "positions"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        ASSERT_FAILS(qn_session_read_kv(room, NULL, session, wrong[i].layer, wrong[i].head,
                                        wrong[i].first, wrong[i].n, &err),
                     QN_ARGUMENT, wrong[i].part);
    ASSERT_FAILS(qn_session_state_info(&shape, session, cache, 0, &err), QN_ARGUMENT, "state 0");
    ASSERT_FAILS(qn_session_state_info(&shape, session, recurrent, -1, &err), QN_ARGUMENT, "-1");
    ASSERT_FAILS(qn_session_read_state(room, session, recurrent, 99, &err), QN_ARGUMENT, "99");
    ASSERT_FAILS(qn_session_read_state(room, session, n_layers, 0, &err), QN_ARGUMENT, "layer");
    info.size = 0;
    ASSERT_FAILS(qn_session_layer_info(&info, session, 0, &err), QN_ARGUMENT, "");
    qn_session_destroy(session);
    qn_engine_close(engine);
}

// --- hidden rows ---------------------------------------------------------------------------------

// Rows of the last chunk, and of each step, are those that qn_engine_logits gives.
static void hidden_rows_are_those_of_the_whole_run(void **state) {
    (void)state;
    enum { N = 50, CHUNK = 16, N_MORE = 4 };
    static const char *const devices[] = {NULL, "cpu,ref"};
    for (size_t f = 0; f < N_FAMILIES; f++) {
        for (int d = 0; d < 2; d++) {
            qn_err err;
            qn_engine *engine =
                family_open(families[f], &QN_INIT(qn_engine_opts, .device = devices[d]));
            const qn_session_opts opts =
                QN_INIT(qn_session_opts, .context = CONTEXT, .chunk = CHUNK, .hidden = 1);
            qn_session *session = prefilled(engine, &opts, N);
            for (int step = 0; step <= N_MORE; step++) {
                int32_t token;
                if (step) ASSERT_OK(qn_session_step(&token, session, NULL, &err));
                const size_t cached = qn_session_cached(session);
                size_t n;
                const int32_t *ids = qn_session_tokens(session, &n);
                qn_logits whole = QN_INIT(qn_logits);
                ASSERT_OK(qn_engine_logits(&whole, engine, ids, cached,
                                           &QN_INIT(qn_logits_opts, .hidden = true), &err));
                qn_hidden_info info = QN_INIT(qn_hidden_info);
                ASSERT_OK(qn_session_hidden_info(&info, session, &err));
                // The first step after a prefill chooses by the logits that are there.
                assert_int_equal(info.n_rows, step > 1 ? 1 : N % CHUNK);
                assert_int_equal(info.first + info.n_rows, cached);
                assert_int_equal(info.n_hidden, whole.n_hidden);
                const size_t row = (size_t)info.width * sizeof(float);
                float *got = qn_alloc((size_t)info.n_rows, row);
                for (int64_t i = 0; i < info.n_hidden; i++) {
                    ASSERT_OK(
                        qn_session_read_hidden(got, session, i, info.first, info.n_rows, &err));
                    const float *want =
                        whole.hidden + (i * whole.n_tokens + info.first) * whole.width;
                    assert_memory_equal(got, want, (size_t)info.n_rows * row);
                }
                qn_free(got);
                qn_logits_deinit(&whole);
            }
            qn_session_destroy(session);
            qn_engine_close(engine);
        }
    }
}

static int64_t rows_left(const qn_session *session) {
    qn_err err;
    qn_hidden_info info = QN_INIT(qn_hidden_info);
    ASSERT_OK(qn_session_hidden_info(&info, session, &err));
    return info.n_rows;
}

// Rows are gone with the next step of anybody, and with the tokens that they belong to.
static void hidden_rows_end_with_their_step(void **state) {
    (void)state;
    qn_err err;
    qn_engine *engine = family_open("qwen3", NULL);
    qn_session *session =
        prefilled(engine, &QN_INIT(qn_session_opts, .context = CONTEXT, .hidden = 1), 40);
    float row[4096];
    int32_t token, ids[40];
    assert_true(engine_info(engine).width <= 4096);
    assert_int_equal(rows_left(session), 40);
    ASSERT_FAILS(qn_session_read_hidden(row, session, -1, 0, 1, &err), QN_ARGUMENT, "row -1");
    ASSERT_FAILS(qn_session_read_hidden(row, session, 0, 40, 1, &err), QN_ARGUMENT, "from 40");
    ASSERT_FAILS(qn_session_read_hidden(row, session, 0, 0, -1, &err), QN_ARGUMENT, "-1");
    ASSERT_FAILS(qn_session_read_hidden(row, session, 0, -1, 1, &err), QN_ARGUMENT, "-1");
    ASSERT_OK(qn_session_truncate(session, 30, &err));
    assert_int_equal(rows_left(session), 30);
    qn_session *fork = NULL;
    ASSERT_OK(qn_session_fork(&fork, session, &err));
    assert_int_equal(rows_left(fork), 0);
    ASSERT_OK(qn_session_step(&token, fork, NULL, &err));
    assert_int_equal(rows_left(session), 0);
    assert_int_equal(rows_left(fork), 1);
    random_ids(ids, 40, engine_info(engine).n_vocab, 4);
    ASSERT_OK(qn_session_set_prompt(fork, ids, 40, &err));
    assert_int_equal(rows_left(fork), 0);
    qn_session_destroy(fork);
    qn_session_destroy(session);
    session = prefilled(engine, &plain, 10);
    qn_hidden_info info = QN_INIT(qn_hidden_info);
    ASSERT_FAILS(qn_session_hidden_info(&info, session, &err), QN_STATE, "hidden");
    ASSERT_FAILS(qn_session_read_hidden(row, session, 0, 9, 1, &err), QN_STATE, "hidden");
    qn_session *other = NULL;
    ASSERT_FAILS(qn_session_create(
                     &other, engine,
                     &QN_INIT(qn_session_opts, .context = 64, .share = session, .hidden = 1), &err),
                 QN_ARGUMENT, "the session to share with keeps none");
    qn_session_destroy(session);
    qn_engine_close(engine);
    engine = family_open("qwen35", &QN_INIT(qn_engine_opts, .mtp = true));
    ASSERT_FAILS(qn_session_create(&session, engine,
                                   &QN_INIT(qn_session_opts, .context = 64, .hidden = 1), &err),
                 QN_UNSUPPORTED, "prediction head");
    qn_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_and_values_are_those_of_every_device),
        cmocka_unit_test(recurrent_state_is_that_of_the_history),
        cmocka_unit_test(cache_types_round_what_is_read),
        cmocka_unit_test(what_is_not_there_is_refused),
        cmocka_unit_test(hidden_rows_are_those_of_the_whole_run),
        cmocka_unit_test(hidden_rows_end_with_their_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
