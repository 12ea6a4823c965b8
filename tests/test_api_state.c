// A session as bytes: the same wherever and however it was computed, and it goes on with the same
// bits; anything else is refused, and changes nothing.
#include "generate_rig.h"

#include "core/mem.h"

enum { CONTEXT = 256, N_IDS = 80, N_NEW = 12 };

typedef struct blob {
    void *data;
    size_t size;
} blob;

static blob save(qn_session *session) {
    qn_err err;
    blob b = {0};
    ASSERT_OK(qn_session_save_bytes(&b.data, &b.size, session, &err));
    return b;
}

static void load(qn_session *session, const blob *b) {
    qn_err err;
    ASSERT_OK(qn_session_load_bytes(session, b->data, b->size, &err));
}

static void assert_same_bytes(const blob *got, const blob *want, const char *what) {
    size_t i = 0;
    const unsigned char *a = got->data, *b = want->data;
    while (i < got->size && i < want->size && a[i] == b[i]) i++;
    if (got->size != want->size || i < got->size)
        fail_msg("%s: %zu bytes, want %zu; the first that differs is %zu", what, got->size,
                 want->size, i);
}

static void go_on(int32_t *to, qn_session *session, size_t n, const qn_sample_opts *sample) {
    qn_err err;
    for (size_t i = 0; i < n; i++) ASSERT_OK(qn_session_step(&to[i], session, sample, &err));
}

// How a session may be computed.
typedef struct way {
    const char *device;
    int n_threads;
    int64_t chunk;
} way;
static const way ways[] = {
    {NULL, 1, 0}, {NULL, 2, 7}, {"ref", 1, 64}, {"cpu,ref", 2, 5}, {"cpu:portable", 1, 33}};
enum { N_WAYS = sizeof ways / sizeof *ways };

static talk open_way(const char *family, const way *w, qn_engine_opts opts) {
    qn_err err;
    opts.device = w->device;
    opts.n_threads = w->n_threads;
    talk t = {.engine = family_open(family, &opts)};
    t.vocab = engine_info(t.engine).n_vocab;
    ASSERT_OK(qn_session_create(&t.session, t.engine,
                                &QN_INIT(qn_session_opts, .context = CONTEXT, .chunk = w->chunk),
                                &err));
    return t;
}

static const qn_sample_opts wild = QN_INITIALIZER(qn_sample_opts, .temperature = 0.9f, .seed = 11,
                                                  .mirostat = 2, .repeat_penalty = 1.1f);

// Computed here and saved, computed there and saved, loaded there: one and the same.
static void bytes_are_the_same_everywhere(const char *family, const qn_engine_opts *opts) {
    int32_t ids[N_IDS], want[N_NEW], got[N_NEW];
    blob first = {0};
    for (size_t i = 0; i < N_WAYS; i++) {
        qn_err err;
        talk t = open_way(family, &ways[i], *opts);
        random_ids(ids, N_IDS, t.vocab, 5);
        ASSERT_OK(qn_session_set_prompt(t.session, ids, N_IDS, &err));
        go_on(got, t.session, 5, &wild);
        blob b = save(t.session);
        if (i == 0) {
            first = b;
            go_on(want, t.session, N_NEW, &wild);
            close_talk(&t);
            continue;
        }
        assert_same_bytes(&b, &first, family);
        qn_free(b.data);
        close_talk(&t);
        t = open_way(family, &ways[i], *opts);
        load(t.session, &first);
        size_t n;
        (void)qn_session_tokens(t.session, &n);
        assert_int_equal(n, N_IDS + 5);
        assert_int_equal(qn_session_cached(t.session), N_IDS + 4);
        b = save(t.session);
        assert_same_bytes(&b, &first, family);
        qn_free(b.data);
        go_on(got, t.session, N_NEW, &wild);
        assert_memory_equal(got, want, sizeof want);
        close_talk(&t);
    }
    qn_free(first.data);
}

static void every_family_goes_on_anywhere(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++)
        bytes_are_the_same_everywhere(families[f], &QN_INIT(qn_engine_opts));
}

static void every_cache_type_goes_on_anywhere(void **state) {
    (void)state;
    for (int type = QN_CACHE_F32; type <= QN_CACHE_Q4_0R; type++) {
        const qn_engine_opts opts = QN_INIT(qn_engine_opts, .cache_type = (qn_cache_type)type);
        bytes_are_the_same_everywhere("qwen3", &opts);
        bytes_are_the_same_everywhere("gemma3", &opts);
    }
}

static void a_prediction_head_goes_on_anywhere(void **state) {
    (void)state;
    bytes_are_the_same_everywhere("qwen35", &QN_INIT(qn_engine_opts, .mtp = true));
    bytes_are_the_same_everywhere("qwen35_moe", &QN_INIT(qn_engine_opts, .mtp = true));
}

// What is reused, drafted, forked or truncated leaves no trace.
static void the_way_to_a_state_leaves_no_trace(void **state) {
    (void)state;
    enum { N_LOOP = 150 };
    static const char *const some[] = {"llama32", "gemma3", "qwen35"};
    for (size_t f = 0; f < 3; f++) {
        qn_err err;
        talk t = open_talk(some[f], CONTEXT);
        int32_t ids[N_LOOP];
        random_ids(ids, N_LOOP, t.vocab, 6);
        for (size_t i = 20; i < N_LOOP; i++) ids[i] = ids[i % 20]; // so that lookup drafts
        const qn_generate_opts plain =
            QN_INIT(qn_generate_opts, .max_tokens = 30, .ignore_end = true);
        qn_generate_opts drafting = plain;
        drafting.lookup = true;
        drafting.draft_min = 4;
        qn_result a = answer(t.session, ids, N_LOOP, &plain, NULL, NULL);
        // One more token, so that the logits that were kept are those of the same step.
        int32_t token;
        ASSERT_OK(qn_session_step(&token, t.session, NULL, &err));
        blob want = save(t.session);
        qn_session *other = open_session(t.engine, CONTEXT);
        for (int i = 0; i < 2; i++) { // the second time from the prefix cache
            qn_result b = answer(other, ids, N_LOOP, &drafting, NULL, NULL);
            assert_true(b.n_drafted > 0);
            blob early = save(other);
            ASSERT_OK(qn_session_load_bytes(other, early.data, early.size, &err));
            blob again = save(other);
            assert_same_bytes(&again, &early, some[f]);
            qn_free(early.data);
            qn_free(again.data);
            ASSERT_OK(qn_session_step(&token, other, NULL, &err));
            blob got = save(other);
            assert_same_bytes(&got, &want, some[f]);
            qn_free(got.data);
            qn_result_deinit(&b);
        }
        qn_session *fork = NULL;
        ASSERT_OK(qn_session_fork(&fork, other, &err));
        blob got = save(fork);
        assert_same_bytes(&got, &want, some[f]);
        qn_free(got.data);
        qn_session_destroy(fork);
        qn_session_destroy(other);
        qn_free(want.data);
        qn_result_deinit(&a);
        close_talk(&t);
    }
}

// Into a session that has another history, shares its state with a fork, and is nearly full.
static void others_keep_what_they_have(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_err err;
        talk t = open_talk(families[f], CONTEXT);
        int32_t ids[CONTEXT], want[N_NEW], got[N_NEW];
        random_ids(ids, CONTEXT, t.vocab, 7);
        ASSERT_OK(qn_session_set_prompt(t.session, ids, 70, &err));
        go_on(got, t.session, 3, NULL);
        blob b = save(t.session);
        go_on(want, t.session, N_NEW, NULL);
        ASSERT_OK(qn_session_set_prompt(t.session, ids + 9, CONTEXT - 30, &err));
        go_on(got, t.session, 3, NULL);
        qn_session *fork = NULL;
        ASSERT_OK(qn_session_fork(&fork, t.session, &err));
        load(t.session, &b);
        int32_t next[2], next_fork[2];
        go_on(got, t.session, N_NEW, NULL);
        assert_memory_equal(got, want, sizeof want);
        go_on(next_fork, fork, 2, NULL);
        ASSERT_OK(qn_session_set_prompt(t.session, ids + 9, CONTEXT - 30, &err));
        go_on(got, t.session, 3, NULL);
        go_on(next, t.session, 2, NULL);
        assert_memory_equal(next, next_fork, sizeof next);
        // A loaded state can be cut, and is found by prompts that begin like it.
        load(t.session, &b);
        ASSERT_OK(qn_session_truncate(t.session, 70, &err));
        go_on(got, t.session, 3, NULL);
        go_on(got, t.session, N_NEW, NULL);
        assert_memory_equal(got, want, sizeof want);
        qn_session_destroy(fork);
        qn_free(b.data);
        close_talk(&t);
    }
}

// Sampling state: what penalties look at, mirostat's estimate, the position in the random stream.
static void choices_go_on(void **state) {
    (void)state;
    qn_err err;
    talk t = open_talk("qwen3", CONTEXT), other = open_talk("qwen3", CONTEXT);
    int32_t ids[40], want[N_NEW], got[N_NEW];
    random_ids(ids, 40, t.vocab, 8);
    const qn_sample_opts sample = QN_INIT(qn_sample_opts, .temperature = 1.2f, .seed = 3,
                                          .frequency_penalty = 1.5f, .dry_multiplier = 2);
    ASSERT_OK(qn_session_set_prompt(t.session, ids, 40, &err));
    go_on(got, t.session, 10, &sample);
    blob b = save(t.session);
    go_on(want, t.session, N_NEW, &sample);
    load(other.session, &b);
    go_on(got, other.session, N_NEW, &sample);
    assert_memory_equal(got, want, sizeof want);
    qn_free(b.data);
    close_talk(&t);
    close_talk(&other);
}

static void logits_go_along(void **state) {
    (void)state;
    qn_err err;
    talk t = open_talk("qwen35", CONTEXT), other = open_talk("qwen35", CONTEXT);
    int32_t ids[40];
    random_ids(ids, 40, t.vocab, 9);
    const float *logits;
    ASSERT_OK(qn_session_prefill(&logits, t.session, ids, 40, &err));
    blob b = save(t.session);
    assert_null(qn_session_logits(other.session));
    load(other.session, &b);
    assert_memory_equal(qn_session_logits(other.session), logits, (size_t)t.vocab * sizeof *logits);
    ASSERT_OK(qn_session_feed(&logits, t.session, ids[3], &err));
    const float *theirs;
    ASSERT_OK(qn_session_feed(&theirs, other.session, ids[3], &err));
    assert_memory_equal(theirs, logits, (size_t)t.vocab * sizeof *logits);
    qn_free(b.data);
    close_talk(&t);
    close_talk(&other);
}

static void an_empty_session_is_saved_too(void **state) {
    (void)state;
    talk t = open_talk("llama32", CONTEXT);
    blob b = save(t.session);
    int32_t ids[40], got[3];
    random_ids(ids, 40, t.vocab, 1);
    qn_err err;
    ASSERT_OK(qn_session_set_prompt(t.session, ids, 40, &err));
    go_on(got, t.session, 3, NULL);
    load(t.session, &b);
    size_t n = 1;
    (void)qn_session_tokens(t.session, &n);
    assert_int_equal(n, 0);
    assert_int_equal(qn_session_cached(t.session), 0);
    qn_free(b.data);
    close_talk(&t);
}

// --- what is refused -----------------------------------------------------------------------------

// The state of a session with a short history; it goes on with `next`.
static blob short_state(talk *t, const char *family, int32_t next[4]) {
    qn_err err;
    int32_t ids[12], begin[2];
    *t = open_talk(family, CONTEXT);
    random_ids(ids, 12, t->vocab, 2);
    ASSERT_OK(qn_session_set_prompt(t->session, ids, 12, &err));
    go_on(begin, t->session, 2, NULL);
    const blob b = save(t->session);
    go_on(next, t->session, 4, NULL);
    load(t->session, &b);
    return b;
}

// Each byte changed, each length: an error, and the session goes on as if nothing had been.
static void damage_anywhere_is_an_error(void **state) {
    (void)state;
    static const char *const some[] = {"llama32", "qwen35"};
    for (size_t f = 0; f < 2; f++) {
        talk t;
        int32_t want[4], got[4];
        blob b = short_state(&t, some[f], want);
        unsigned char *bytes = b.data;
        const size_t stride = b.size / 3000 + 1;
        for (size_t i = 0; i < b.size; i += i < 400 ? 1 : stride) {
            qn_err err;
            bytes[i] ^= 0x10;
            const qn_status status = qn_session_load_bytes(t.session, b.data, b.size, &err);
            if (status != QN_FORMAT && status != QN_ARGUMENT && status != QN_UNSUPPORTED &&
                status != QN_LIMIT && status != QN_NUMERIC)
                fail_msg("byte %zu: status %d", i, (int)status);
            bytes[i] ^= 0x10;
            ASSERT_FAILS(qn_session_load_bytes(t.session, b.data, i, &err), QN_FORMAT, "");
        }
        assert_int_equal(qn_session_cached(t.session), 13);
        go_on(got, t.session, 4, NULL);
        assert_memory_equal(got, want, sizeof want);
        qn_err err;
        unsigned char *longer = qn_alloc(b.size + 1, 1);
        memcpy(longer, b.data, b.size);
        ASSERT_FAILS(qn_session_load_bytes(t.session, longer, b.size + 1, &err), QN_FORMAT, "");
        qn_free(longer);
        qn_free(b.data);
        close_talk(&t);
    }
}

static void assert_refused(const char *family, const qn_engine_opts *opts, const blob *b,
                           const char *theirs, const char *ours) {
    qn_err err;
    qn_engine *engine = family_open(family, opts);
    qn_session *session = open_session(engine, CONTEXT);
    ASSERT_FAILS(qn_session_load_bytes(session, b->data, b->size, &err), QN_ARGUMENT, "");
    if (!strstr(err.message, theirs) || !strstr(err.message, ours))
        fail_msg("'%s' names not '%s' and '%s'", err.message, theirs, ours);
    qn_session_destroy(session);
    qn_engine_close(engine);
}

static void another_model_or_setting_is_refused(void **state) {
    (void)state;
    talk t;
    int32_t next[4];
    blob b = short_state(&t, "qwen35", next);
    assert_refused("qwen3", NULL, &b, "qwen35", "qwen3 ");
    assert_refused("qwen35_moe", NULL, &b, "qwen35 ", "qwen35moe");
    assert_refused("qwen35", &QN_INIT(qn_engine_opts, .cache_type = QN_CACHE_F16), &b, "f32",
                   "f16");
    assert_refused("qwen35", &QN_INIT(qn_engine_opts, .cache_type = QN_CACHE_Q4_0R), &b, "f32",
                   "q4_0r");
    assert_refused("qwen35", &QN_INIT(qn_engine_opts, .numerics = QN_NUMERICS_FAST), &b, "exact",
                   "fast");
    assert_refused("qwen35", &QN_INIT(qn_engine_opts, .mtp = true), &b, "without", "with one");
    qn_err err;
    qn_session *small = open_session(t.engine, 13);
    ASSERT_FAILS(qn_session_load_bytes(small, b.data, b.size, &err), QN_LIMIT, "");
    assert_non_null(strstr(err.message, "14"));
    assert_non_null(strstr(err.message, "13"));
    qn_session_destroy(small);
    qn_free(b.data);
    close_talk(&t);
}

// --- readers and writers -------------------------------------------------------------------------

typedef struct slow {
    const blob *from;
    int64_t fail_at, ends_at; // where it fails; where there is nothing more. -1: nowhere
    int64_t too_many;         // bytes that it claims to have read beyond what was asked for
    int64_t n_calls, change_after;
} slow;

static int64_t read_slowly(void *arg, void *to, size_t n, int64_t at) {
    slow *s = arg;
    const size_t some = n > 3 ? n / 2 : 1;
    s->n_calls++;
    if (s->fail_at >= 0 && at >= s->fail_at) return -1;
    if (s->ends_at >= 0 && at >= s->ends_at) return 0;
    memcpy(to, (const char *)s->from->data + at, some);
    if (s->change_after && s->n_calls > s->change_after) *(char *)to = (char)(*(char *)to + 1);
    return (int64_t)some + s->too_many;
}

static void readers_may_be_slow_but_not_wrong(void **state) {
    (void)state;
    talk t;
    int32_t want[4], got[4];
    qn_err err;
    blob b = short_state(&t, "qwen3", want);
    const int64_t size = (int64_t)b.size;
    slow s = {.from = &b, .fail_at = -1, .ends_at = -1};
    ASSERT_OK(qn_session_load(t.session, read_slowly, &s, size, &err));
    const int64_t calls = s.n_calls;
    slow failing = {.from = &b, .fail_at = size / 2, .ends_at = -1};
    ASSERT_FAILS(qn_session_load(t.session, read_slowly, &failing, size, &err), QN_IO, "");
    slow ending = {.from = &b, .fail_at = -1, .ends_at = size - 1};
    ASSERT_FAILS(qn_session_load(t.session, read_slowly, &ending, size, &err), QN_IO, "");
    slow lying = {.from = &b, .fail_at = -1, .ends_at = -1, .too_many = INT64_MAX / 2};
    ASSERT_FAILS(qn_session_load(t.session, read_slowly, &lying, size, &err), QN_IO, "");
    ASSERT_FAILS(qn_session_load(t.session, read_slowly, &s, -1, &err), QN_ARGUMENT, "");
    assert_int_equal(qn_session_cached(t.session), 13);
    // Bytes that change when they are read again: the history is computed again.
    slow changing = {.from = &b, .fail_at = -1, .ends_at = -1, .change_after = calls - 2};
    ASSERT_FAILS(qn_session_load(t.session, read_slowly, &changing, size, &err), QN_IO, "");
    assert_int_equal(qn_session_cached(t.session), 0);
    go_on(got, t.session, 4, NULL);
    assert_memory_equal(got, want, sizeof want);
    qn_free(b.data);
    close_talk(&t);
}

typedef struct full_disk {
    size_t room, n;
} full_disk;

static bool write_until_full(void *arg, const void *data, size_t n) {
    full_disk *disk = arg;
    (void)data;
    if (n > disk->room - disk->n) return false;
    disk->n += n;
    return true;
}

static void a_writer_that_fails_is_an_error(void **state) {
    (void)state;
    talk t;
    int32_t want[4], got[4];
    qn_err err;
    blob b = short_state(&t, "qwen35", want);
    for (size_t room = 0; room < b.size; room += b.size / 50 + 1) {
        full_disk disk = {.room = room};
        ASSERT_FAILS(qn_session_save(t.session, write_until_full, &disk, &err), QN_IO, "");
    }
    full_disk disk = {.room = b.size};
    ASSERT_OK(qn_session_save(t.session, write_until_full, &disk, &err));
    assert_int_equal(disk.n, b.size);
    go_on(got, t.session, 4, NULL);
    assert_memory_equal(got, want, sizeof want);
    qn_free(b.data);
    close_talk(&t);
}

static void a_reference_engine_has_no_state(void **state) {
    (void)state;
    talk t = {.engine = family_open("qwen3", &QN_INIT(qn_engine_opts, .reference = true))};
    qn_err err;
    blob b = {0};
    t.session = open_session(t.engine, CONTEXT);
    ASSERT_FAILS(qn_session_save_bytes(&b.data, &b.size, t.session, &err), QN_STATE, "");
    ASSERT_FAILS(qn_session_load_bytes(t.session, "", 0, &err), QN_STATE, "");
    close_talk(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_goes_on_anywhere),
        cmocka_unit_test(every_cache_type_goes_on_anywhere),
        cmocka_unit_test(a_prediction_head_goes_on_anywhere),
        cmocka_unit_test(the_way_to_a_state_leaves_no_trace),
        cmocka_unit_test(others_keep_what_they_have),
        cmocka_unit_test(choices_go_on),
        cmocka_unit_test(logits_go_along),
        cmocka_unit_test(an_empty_session_is_saved_too),
        cmocka_unit_test(damage_anywhere_is_an_error),
        cmocka_unit_test(another_model_or_setting_is_refused),
        cmocka_unit_test(readers_may_be_slow_but_not_wrong),
        cmocka_unit_test(a_writer_that_fails_is_an_error),
        cmocka_unit_test(a_reference_engine_has_no_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
