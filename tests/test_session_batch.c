// The batch object: every row is what it is alone, whatever comes, goes, fails or gives way beside
// it. test_session_soak.c does the same from several threads, at random.
#include "generate_rig.h"

#include "core/mem.h"
#include "core/thread.h"
#include "session/batch_int.h"

#include <math.h>

enum { CONTEXT = 320, MAX_IDS = 100, N_ROWS = 12 };

// A request, and what was heard of it.
typedef struct request {
    int32_t ids[MAX_IDS];
    size_t n;
    qn_sample_opts sample;
    qn_generate_opts opts;
    uint64_t id;
    heard heard;
    qn_status status;    // of the last event
    int64_t n_preempted; // the same
    size_t n_result;     // tokens of it
} request;

static bool take(void *arg, const qn_event *e) {
    request *r = arg;
    if (e->token < 0) {
        assert_non_null(e->result);
        assert_int_equal(e->result->reason, e->reason);
        r->n_preempted = e->result->n_preemptions;
        r->n_result = e->result->n_tokens;
        r->status = e->err ? e->err->status : QN_OK;
    }
    return hear_row(&r->heard, e);
}

static void make_request(request *r, size_t i, int64_t vocab) {
    *r = (request){.n = 1 + i * 37 % MAX_IDS};
    random_ids(r->ids, MAX_IDS, vocab, 500 + i);
    r->sample = QN_INIT(qn_sample_opts, .temperature = i % 3 ? 1.1f : 0, .seed = i,
                        .top_k = i % 4 == 1 ? 7 : 0, .repeat_penalty = i % 4 == 2 ? 1.3f : 0,
                        .mirostat = i % 4 == 3 ? 2 : 0);
    r->opts =
        QN_INIT(qn_generate_opts, .sample = &r->sample, .max_tokens = 10 + (int64_t)(i * 13 % 40),
                .ignore_end = i % 4 != 0, .lookup = i % 5 == 0, .draft_min = i % 5 == 0 ? 3 : 0,
                .logprobs = i % 7 == 3);
}

static void add(qn_batch *b, request *r, const qn_row_opts *opts) {
    qn_err err;
    qn_row_opts o = QN_INIT(qn_row_opts);
    if (opts) o = *opts;
    o.generate = &r->opts;
    ASSERT_OK(qn_batch_add(&r->id, b, r->ids, r->n, &o, take, r, &err));
}

static void run_out(qn_batch *b) {
    qn_err err;
    size_t n = 1;
    while (n) ASSERT_OK(qn_batch_step(&n, b, &err));
}

static void assert_alone(const qn_engine *engine, const request *r, const char *what) {
    qn_session *alone = open_session(engine, CONTEXT);
    qn_result want = answer(alone, r->ids, r->n, &r->opts, NULL, NULL);
    if (r->heard.n != want.n_tokens ||
        memcmp(r->heard.tokens, want.tokens, want.n_tokens * sizeof *want.tokens) != 0)
        fail_msg("%s: %zu tokens, alone %zu, or others", what, r->heard.n, want.n_tokens);
    assert_int_equal(r->heard.size, want.text_size);
    assert_memory_equal(r->heard.text, want.text, want.text_size);
    assert_int_equal(r->heard.reason, want.reason);
    assert_int_equal(r->n_result, want.n_tokens);
    qn_result_deinit(&want);
    qn_session_destroy(alone);
}

static void assert_empty(qn_batch *b) {
    qn_batch_counts counts = batch_counts(b);
    assert_int_equal(counts.rows, 0);
    assert_int_equal(counts.queued, 0);
    assert_int_equal(counts.pages, 0);
    assert_int_equal(counts.slots, 0);
    assert_int_equal(counts.ended, counts.added);
}

// Bytes for `n` KV caches of full length, and for as many places as there are rows.
static int64_t bytes_for(const qn_engine *engine, int64_t n, int64_t rows) {
    qn_err err;
    qn_memory memory = QN_INIT(qn_memory);
    ASSERT_OK(qn_engine_memory(&memory, engine, CONTEXT, 0, &err));
    const bool has_slots = qn_engine_is_recurrent(engine);
    return n * memory.cache + (has_slots ? (rows + 1) * (memory.state - memory.cache) : 0);
}

// --- what a row gets -----------------------------------------------------------------------------

static void assert_rows_are_alone(const char *family, qn_cache_type cache,
                                  const qn_batch_opts *opts, bool preempts) {
    qn_err err;
    qn_batch *b;
    qn_batch_counts counts = QN_INIT(qn_batch_counts);
    int64_t n_preempted = 0;
    qn_engine *engine = family_open(family, &QN_INIT(qn_engine_opts, .cache_type = cache));
    const int64_t vocab = engine_info(engine).n_vocab;
    qn_batch_opts o = *opts;
    o.context = CONTEXT;
    if (o.bytes) o.bytes = bytes_for(engine, o.bytes, o.rows);
    ASSERT_OK(qn_batch_create(&b, engine, &o, &err));
    request *requests = qn_alloc(N_ROWS, sizeof *requests);
    for (size_t i = 0; i < N_ROWS; i++) {
        make_request(&requests[i], i, vocab);
        if (preempts) requests[i].opts.max_tokens += 150;
        if (i % 3 == 2) ASSERT_OK(qn_batch_step(NULL, b, &err)); // not all at once
        add(b, &requests[i], NULL);
    }
    run_out(b);
    counts = batch_counts(b);
    assert_true(counts.rows_all >= 1 && counts.rows_all <= (o.rows ? o.rows : 64));
    assert_true(counts.bytes_all > 0 && (!o.bytes || counts.bytes_all <= o.bytes));
    for (size_t i = 0; i < N_ROWS; i++) {
        assert_alone(engine, &requests[i], family);
        n_preempted += requests[i].n_preempted;
    }
    assert_int_equal(n_preempted, counts.preemptions);
    if (preempts) assert_true(counts.preemptions > 0);
    assert_empty(b);
    qn_batch_destroy(b);
    qn_free(requests);
    qn_engine_close(engine);
}

static void rows_are_what_they_are_alone(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++)
        assert_rows_are_alone(families[f], QN_CACHE_AUTO, &QN_INIT(qn_batch_opts), false);
    assert_rows_are_alone("qwen3", QN_CACHE_Q4_0R, &QN_INIT(qn_batch_opts), false);
}

// A row that gave way goes on with the same tokens: penalties, mirostat and random numbers
// included.
static void rows_that_give_way_go_on(void **state) {
    (void)state;
    static const char *const models[] = {"qwen3", "llama32", "qwen35", "gemma3"};
    static const qn_cache_type caches[] = {QN_CACHE_AUTO, QN_CACHE_Q8_0R, QN_CACHE_AUTO,
                                           QN_CACHE_Q4_0R};
    for (size_t m = 0; m < 4; m++) {
        const bool preempts = m < 3; // of windows most of the state has a place of its own
        qn_batch_opts opts = QN_INIT(qn_batch_opts, .rows = 8, .bytes = 3);
        assert_rows_are_alone(models[m], caches[m], &opts, preempts);
        opts.kept = -1;
        assert_rows_are_alone(models[m], caches[m], &opts, preempts);
        opts.chunk = 7;
        assert_rows_are_alone(models[m], caches[m], &opts, false);
    }
}

// More rows at a time than any number that is compiled in.
static void rows_are_many(void **state) {
    (void)state;
    enum { MANY = 150 };
    qn_err err;
    qn_batch *b;
    qn_engine *engine = family_open("qwen3", NULL);
    const int64_t vocab = engine_info(engine).n_vocab;
    ASSERT_OK(qn_batch_create(&b, engine, &QN_INIT(qn_batch_opts, .context = CONTEXT, .rows = MANY),
                              &err));
    request *requests = qn_alloc(MANY, sizeof *requests);
    for (size_t i = 0; i < MANY; i++) {
        make_request(&requests[i], i % 40, vocab);
        requests[i].n = 3;
        requests[i].opts.max_tokens = 12;
        requests[i].opts.ignore_end = true;
        add(b, &requests[i], NULL);
    }
    for (int i = 0; i < 6; i++) ASSERT_OK(qn_batch_step(NULL, b, &err));
    qn_batch_counts counts = batch_counts(b);
    assert_int_equal(counts.rows, MANY);
    run_out(b);
    for (size_t i = 0; i < MANY; i++) assert_alone(engine, &requests[i], "one of many");
    assert_empty(b);
    qn_batch_destroy(b);
    qn_free(requests);
    qn_engine_close(engine);
}

// Answers to one prompt read it once, also where they do not all find a place at a time.
static void completions_read_once(void **state) {
    (void)state;
    enum { N = 6 };
    static const char *const models[] = {"qwen3", "qwen35"};
    for (int m = 0; m < 4; m++) {
        qn_err err;
        qn_batch *b;
        qn_batch_counts counts = QN_INIT(qn_batch_counts);
        qn_engine *engine = family_open(models[m % 2], NULL);
        const qn_batch_opts opts =
            QN_INIT(qn_batch_opts, .context = CONTEXT, .rows = m < 2 ? N : 3, .kept = -1);
        ASSERT_OK(qn_batch_create(&b, engine, &opts, &err));
        heard *h = qn_alloc(N, sizeof *h);
        request *r = qn_alloc(1, sizeof *r);
        make_request(r, 1, engine_info(engine).n_vocab);
        r->n = 80;
        r->opts.max_tokens = 10;
        const qn_row_opts row = QN_INIT(qn_row_opts, .generate = &r->opts, .completions = N);
        uint64_t id;
        ASSERT_OK(qn_batch_add(&id, b, r->ids, r->n, &row, hear_rows, h, &err));
        assert_int_equal(id, 1);
        run_out(b);
        counts = batch_counts(b);
        assert_int_equal(counts.added, N);
        assert_true(counts.tokens <= 80 + N * 9);
        for (uint32_t i = 0; i < N; i++) {
            r->sample.completion = i;
            r->heard = h[i];
            r->n_result = h[i].n;
            assert_alone(engine, r, models[m % 2]);
        }
        assert_empty(b);
        qn_batch_destroy(b);
        qn_free(h);
        qn_free(r);
        qn_engine_close(engine);
    }
}

// Prompts take no more of a step than they may while others generate, and all of it otherwise.
static void prompts_keep_to_their_share(void **state) {
    (void)state;
    enum { SHARE = 8, CHUNK = 32 };
    qn_err err;
    qn_batch *b;
    qn_batch_counts counts = QN_INIT(qn_batch_counts);
    qn_engine *engine = family_open("qwen3", NULL);
    const int64_t vocab = engine_info(engine).n_vocab;
    const qn_batch_opts opts = QN_INIT(qn_batch_opts, .context = CONTEXT, .chunk = CHUNK,
                                       .prompt_rows = SHARE, .kept = -1);
    ASSERT_OK(qn_batch_create(&b, engine, &opts, &err));
    request *requests = qn_alloc(2, sizeof *requests);
    for (size_t i = 0; i < 2; i++) {
        make_request(&requests[i], 2, vocab);
        requests[i].n = i ? 90 : CHUNK;
        requests[i].opts.max_tokens = 40;
        requests[i].opts.ignore_end = true;
    }
    add(b, &requests[0], NULL);
    ASSERT_OK(qn_batch_step(NULL, b, &err));
    counts = batch_counts(b);
    assert_int_equal(counts.tokens, CHUNK);
    add(b, &requests[1], NULL);
    for (int64_t i = 1; i <= 90 / SHARE; i++) {
        const int64_t before = counts.tokens;
        ASSERT_OK(qn_batch_step(NULL, b, &err));
        counts = batch_counts(b);
        if (b->shared->n_flights > 1) { // rows take turns
            assert_in_range(counts.tokens - before, 0, SHARE);
            continue;
        }
        assert_int_equal(counts.tokens, CHUNK + i * (1 + SHARE));
        assert_int_equal(requests[0].heard.n, i + 1);
    }
    run_out(b);
    for (size_t i = 0; i < 2; i++) assert_alone(engine, &requests[i], "a share");
    qn_batch_destroy(b);
    qn_free(requests);
    qn_engine_close(engine);
}

// --- rows that end otherwise ---------------------------------------------------------------------

// A row that fails half way has its own error; the others go on.
static void a_failing_row_fails_alone(void **state) {
    (void)state;
    qn_err err;
    qn_batch *b;
    qn_engine *engine = family_open("qwen3", NULL);
    const int64_t vocab = engine_info(engine).n_vocab;
    qn_bias *never = qn_alloc((size_t)vocab, sizeof *never);
    for (int32_t i = 0; i < vocab; i++) never[i] = (qn_bias){i, -INFINITY};
    ASSERT_OK(qn_batch_create(&b, engine, &QN_INIT(qn_batch_opts, .context = CONTEXT), &err));
    request *requests = qn_alloc(3, sizeof *requests);
    for (size_t i = 0; i < 3; i++) {
        make_request(&requests[i], i, vocab);
        if (i == 1)
            requests[i].sample =
                QN_INIT(qn_sample_opts, .biases = never, .n_biases = (size_t)vocab);
        add(b, &requests[i], NULL);
    }
    qn_free(never); // lists are copied
    run_out(b);
    assert_int_equal(requests[1].heard.n, 0);
    assert_int_equal(requests[1].heard.n_ends, 1);
    assert_int_equal(requests[1].heard.reason, QN_REASON_FAILED);
    assert_int_equal(requests[1].status, QN_ARGUMENT);
    assert_alone(engine, &requests[0], "beside a failure");
    assert_alone(engine, &requests[2], "beside a failure");
    qn_batch_counts counts = batch_counts(b);
    assert_int_equal(counts.failed, 1);
    assert_empty(b);
    qn_batch_destroy(b);
    qn_free(requests);
    qn_engine_close(engine);
}

static atomic_llong now_ms;
static int64_t told_time(void) { return atomic_load(&now_ms) * 1000000; }

// By a clock that the test sets.
static void rows_end_when_their_time_is_over(void **state) {
    (void)state;
    qn_err err;
    qn_batch *b;
    qn_engine *engine = family_open("qwen3", NULL);
    const int64_t vocab = engine_info(engine).n_vocab;
    ASSERT_OK(
        qn_batch_create(&b, engine, &QN_INIT(qn_batch_opts, .context = CONTEXT, .rows = 1), &err));
    b->clock = told_time;
    atomic_store(&now_ms, 1000);
    request *requests = qn_alloc(3, sizeof *requests);
    for (size_t i = 0; i < 3; i++) {
        make_request(&requests[i], 3 + i, vocab);
        requests[i].opts.max_tokens = 30;
        requests[i].opts.ignore_end = true;
        add(b, &requests[i], &QN_INIT(qn_row_opts, .deadline_ms = i < 2 ? 50 : 0));
    }
    for (int i = 0; i < 5; i++) ASSERT_OK(qn_batch_step(NULL, b, &err));
    const size_t n = requests[0].heard.n;
    assert_true(n > 0);
    atomic_store(&now_ms, 1049);
    ASSERT_OK(qn_batch_step(NULL, b, &err));
    assert_int_equal(requests[0].heard.n_ends, 0);
    atomic_store(&now_ms, 1050);
    run_out(b);
    for (size_t i = 0; i < 2; i++) { // one that was computed, one that waited
        assert_int_equal(requests[i].heard.n, i ? 0 : n + 1);
        assert_int_equal(requests[i].heard.reason, QN_REASON_DEADLINE);
    }
    assert_alone(engine, &requests[2], "without a deadline");
    assert_string_equal(qn_reason_name(QN_REASON_DEADLINE), "deadline");
    assert_string_equal(qn_reason_name(QN_REASON_FAILED), "failed");
    assert_empty(b);
    qn_batch_destroy(b);
    qn_free(requests);
    qn_engine_close(engine);
}

// --- adding and removing from callbacks ----------------------------------------------------------

typedef struct scene {
    qn_batch *batch;
    request *requests; // (3): the first removes the second and adds the third
    bool was_refused;
} scene;

static bool direct(void *arg, const qn_event *e) {
    scene *s = arg;
    qn_err err;
    if (e->token >= 0 && s->requests[0].heard.n == 2) {
        assert_true(qn_batch_remove(s->batch, s->requests[1].id));
        assert_false(qn_batch_remove(s->batch, s->requests[1].id));
        s->requests[1].heard.n_ends = 1; // silent from here on
        add(s->batch, &s->requests[2], NULL);
        s->was_refused = qn_batch_step(NULL, s->batch, &err) == QN_STATE;
    }
    return take(&s->requests[0], e);
}

static void callbacks_add_and_remove(void **state) {
    (void)state;
    qn_err err;
    scene s = {.requests = qn_alloc(3, sizeof *s.requests)};
    qn_engine *engine = family_open("qwen3", NULL);
    ASSERT_OK(qn_batch_create(&s.batch, engine, &QN_INIT(qn_batch_opts, .context = CONTEXT), &err));
    for (size_t i = 0; i < 3; i++) make_request(&s.requests[i], 4 + i, engine_info(engine).n_vocab);
    const qn_row_opts opts = QN_INIT(qn_row_opts, .generate = &s.requests[0].opts);
    ASSERT_OK(qn_batch_add(&s.requests[0].id, s.batch, s.requests[0].ids, s.requests[0].n, &opts,
                           direct, &s, &err));
    add(s.batch, &s.requests[1], NULL);
    run_out(s.batch);
    assert_true(s.was_refused);
    assert_alone(engine, &s.requests[0], "who removes");
    assert_alone(engine, &s.requests[2], "who was added");
    assert_false(qn_batch_remove(s.batch, s.requests[0].id));
    assert_false(qn_batch_remove(s.batch, 999));
    assert_empty(s.batch);
    qn_batch_destroy(s.batch);
    qn_free(s.requests);
    qn_engine_close(engine);
}

// A row that removes itself, or whose callback returns false, is silent.
static bool remove_own(void *arg, const qn_event *e) {
    scene *s = arg;
    heard *h = &s->requests[0].heard;
    assert_int_equal(h->n_ends, 0);
    h->n++;
    if (h->n == 3) {
        assert_true(qn_batch_remove(s->batch, e->id));
        h->n_ends = 1;
    }
    return true;
}

static void a_row_removes_itself(void **state) {
    (void)state;
    qn_err err;
    scene s = {.requests = qn_alloc(1, sizeof *s.requests)};
    qn_engine *engine = family_open("qwen3", NULL);
    ASSERT_OK(qn_batch_create(&s.batch, engine, &QN_INIT(qn_batch_opts, .context = CONTEXT), &err));
    make_request(&s.requests[0], 5, engine_info(engine).n_vocab);
    ASSERT_OK(qn_batch_add(NULL, s.batch, s.requests[0].ids, 10, NULL, remove_own, &s, &err));
    run_out(s.batch);
    assert_int_equal(s.requests[0].heard.n, 3);
    assert_empty(s.batch);
    qn_batch_destroy(s.batch);
    qn_free(s.requests);
    qn_engine_close(engine);
}

// --- waiting -------------------------------------------------------------------------------------

static void *wake(void *arg) {
    qn_batch_wake(arg);
    return NULL;
}

static void a_wait_ends(void **state) {
    (void)state;
    qn_err err;
    qn_batch *b;
    pthread_t thread;
    qn_engine *engine = family_open("qwen3", NULL);
    ASSERT_OK(qn_batch_create(&b, engine, &QN_INIT(qn_batch_opts, .context = CONTEXT), &err));
    assert_false(qn_batch_wait(b, 0));
    assert_true(qn_thread_start(&thread, wake, b));
    assert_false(qn_batch_wait(b, -1)); // for ever, but for the other thread
    pthread_join(thread, NULL);
    ASSERT_OK(qn_batch_add(NULL, b, (const int32_t[]){1}, 1, NULL, NULL, NULL, &err));
    assert_true(qn_batch_wait(b, -1));
    qn_batch_destroy(b); // with a row that never began
    qn_engine_close(engine);
}

// --- wrong use -----------------------------------------------------------------------------------

static void wrong_use_is_named(void **state) {
    (void)state;
    static const struct {
        qn_batch_opts opts;
        qn_status status;
        const char *part;
    } cases[] = {
        {QN_INITIALIZER(qn_batch_opts, .context = 1 << 30), QN_LIMIT,
         "context of 1073741824 tokens"},
        {QN_INITIALIZER(qn_batch_opts, .rows = -1), QN_ARGUMENT, "-1 rows"},
        {QN_INITIALIZER(qn_batch_opts, .rows = 1 << 20), QN_ARGUMENT, "1048576 rows"},
        {QN_INITIALIZER(qn_batch_opts, .chunk = -3), QN_ARGUMENT, "steps of -3 tokens"},
        {QN_INITIALIZER(qn_batch_opts, .prompt_rows = -3), QN_ARGUMENT, "-3 of prompts"},
        {QN_INITIALIZER(qn_batch_opts, .kept = -2), QN_ARGUMENT, "-2 bytes kept"},
        {QN_INITIALIZER(qn_batch_opts, .bytes = -1), QN_ARGUMENT, "-1 bytes"},
        {QN_INITIALIZER(qn_batch_opts, .bytes = 5), QN_MEMORY, "the budget is 5"},
    };
    qn_err err;
    qn_batch *b = NULL;
    qn_engine *engine = family_open("qwen3", NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ASSERT_FAILS(qn_batch_create(&b, engine, &cases[i].opts, &err), cases[i].status,
                     cases[i].part);
    assert_null(b);
    ASSERT_OK(qn_batch_create(&b, engine, &QN_INIT(qn_batch_opts, .context = 8), &err));
    assert_false(qn_batch_remove(b, 0)); // what an id is that no call has set
    const int32_t ids[9] = {1}, outside[] = {-1};
    const qn_generate_opts wrong = QN_INIT(qn_generate_opts, .max_tokens = -5);
    ASSERT_FAILS(qn_batch_add(NULL, b, ids, 0, NULL, NULL, NULL, &err), QN_ARGUMENT, "no token");
    ASSERT_FAILS(qn_batch_add(NULL, b, ids, 9, NULL, NULL, NULL, &err), QN_LIMIT, "9 tokens");
    ASSERT_FAILS(qn_batch_add(NULL, b, outside, 1, NULL, NULL, NULL, &err), QN_ARGUMENT, "id -1");
    ASSERT_FAILS(
        qn_batch_add(NULL, b, ids, 1, &QN_INIT(qn_row_opts, .generate = &wrong), NULL, NULL, &err),
        QN_ARGUMENT, "max_tokens -5");
    ASSERT_FAILS(qn_batch_add(NULL, b, ids, 1, &QN_INIT(qn_row_opts, .mark = 2), NULL, NULL, &err),
                 QN_ARGUMENT, "a mark after 2");
    ASSERT_FAILS(
        qn_batch_add(NULL, b, ids, 1, &QN_INIT(qn_row_opts, .deadline_ms = -1), NULL, NULL, &err),
        QN_ARGUMENT, "-1 ms");
    const qn_row_opts many = QN_INIT(qn_row_opts, .completions = QN_MAX_COMPLETIONS + 1);
    ASSERT_FAILS(qn_batch_add(NULL, b, ids, 1, &many, NULL, NULL, &err), QN_ARGUMENT,
                 "65537 completions of a prompt, at most 65536");
    size_t n = 9;
    ASSERT_OK(qn_batch_step(&n, b, &err)); // nothing is there
    assert_int_equal(n, 0);
    qn_batch_destroy(b);
    qn_engine_close(engine);
    ASSERT_OK(qn_engine_open(&engine, TEST_DATA "/mini/qwen3",
                             &QN_INIT(qn_engine_opts, .reference = true), &err));
    ASSERT_FAILS(qn_batch_create(&b, engine, NULL, &err), QN_STATE, "reference");
    qn_engine_close(engine);
}

// --- progress ------------------------------------------------------------------------------------

typedef struct told {
    int64_t done[64], total;
    size_t n, stop_after;
    const request *of;
} told;

static bool note_progress(void *arg, int64_t done, int64_t total) {
    told *t = arg;
    assert_true(t->n < 64);
    assert_int_equal(t->of->heard.n, 0); // before the first token
    t->done[t->n++] = done;
    t->total = total;
    return !t->stop_after || t->n < t->stop_after;
}

// Steps of `chunk` tokens, after those that the cache had; the answer is the same.
static void assert_progress(const qn_engine *engine, qn_batch *b, request *r, int64_t chunk,
                            int64_t cached, const qn_row_opts *more) {
    told t = {.of = r};
    qn_row_opts opts = more ? *more : QN_INIT(qn_row_opts);
    opts.progress = note_progress;
    opts.progress_arg = &t;
    add(b, r, &opts);
    run_out(b);
    assert_int_equal(t.total, (int64_t)r->n);
    assert_true(t.n >= 2);
    assert_int_equal(t.done[0], cached);
    assert_int_equal(t.done[t.n - 1], (int64_t)r->n);
    for (size_t i = 1; i < t.n; i++) {
        assert_true(t.done[i] > t.done[i - 1]);
        assert_true(t.done[i] - t.done[i - 1] <= chunk);
    }
    assert_int_equal(t.n - 1, ((int64_t)r->n - cached + chunk - 1) / chunk);
    if (!more) assert_alone(engine, r, "with progress");
}

static void progress_of_a_prompt_is_told(void **state) {
    (void)state;
    enum { CHUNK = 16 };
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_err err;
        qn_batch *b;
        qn_engine *engine = family_open(families[f], NULL);
        const int64_t vocab = engine_info(engine).n_vocab;
        ASSERT_OK(qn_batch_create(
            &b, engine, &QN_INIT(qn_batch_opts, .context = CONTEXT, .chunk = CHUNK), &err));
        for (size_t i = 0; i < 4; i++) {
            request r;
            make_request(&r, i, vocab);
            assert_progress(engine, b, &r, CHUNK, 0, NULL);
        }
        qn_batch_destroy(b);
        qn_engine_close(engine);
    }
}

// A prompt that was there before is taken from the cache, up to its last token.
static void progress_begins_with_what_is_cached(void **state) {
    (void)state;
    qn_err err;
    qn_batch *b;
    request r;
    qn_engine *engine = family_open("qwen3", NULL);
    ASSERT_OK(qn_batch_create(&b, engine, &QN_INIT(qn_batch_opts, .context = CONTEXT, .chunk = 16),
                              &err));
    for (size_t i = 0; i < 2; i++) {
        make_request(&r, 2, engine_info(engine).n_vocab);
        assert_progress(engine, b, &r, 16, i ? (int64_t)r.n - 1 : 0, NULL);
    }
    make_request(&r, 2, engine_info(engine).n_vocab); // unless the row wants nothing of it
    assert_progress(engine, b, &r, 16, 0, &QN_INIT(qn_row_opts, .flags = QN_ROW_UNCACHED));
    assert_alone(engine, &r, "uncached");
    ASSERT_FAILS(
        qn_batch_add(NULL, b, r.ids, r.n, &QN_INIT(qn_row_opts, .flags = 6), NULL, NULL, &err),
        QN_ARGUMENT, "flags 0x6 of a row, want 0x1 at most");
    make_request(&r, 5, engine_info(engine).n_vocab); // of several completions, one tells
    r.opts.max_tokens = 1;
    told t = {.of = &r};
    const qn_row_opts three = QN_INIT(qn_row_opts, .generate = &r.opts, .completions = 3,
                                      .progress = note_progress, .progress_arg = &t);
    ASSERT_OK(qn_batch_add(NULL, b, r.ids, r.n, &three, NULL, NULL, &err));
    run_out(b);
    assert_int_equal(t.n - 1, (r.n + 15) / 16);
    qn_batch_destroy(b);
    qn_engine_close(engine);
}

// A row that leaves nothing is not found by the next.
static void an_uncached_row_leaves_nothing(void **state) {
    (void)state;
    qn_err err;
    qn_batch *b;
    request r;
    qn_engine *engine = family_open("qwen3", NULL);
    ASSERT_OK(qn_batch_create(&b, engine, &QN_INIT(qn_batch_opts, .context = CONTEXT, .chunk = 16),
                              &err));
    for (size_t i = 0; i < 3; i++) {
        make_request(&r, 2, engine_info(engine).n_vocab);
        assert_progress(engine, b, &r, 16, i == 2 ? (int64_t)r.n - 1 : 0,
                        &QN_INIT(qn_row_opts, .flags = i ? 0 : QN_ROW_UNCACHED));
    }
    qn_batch_destroy(b);
    qn_engine_close(engine);
}

// At the first call, between two steps, and at the end of the prompt: no event comes, others go on.
static void progress_ends_a_row(void **state) {
    (void)state;
    qn_err err;
    qn_batch *b;
    qn_engine *engine = family_open("qwen3", NULL);
    const int64_t vocab = engine_info(engine).n_vocab;
    ASSERT_OK(qn_batch_create(
        &b, engine, &QN_INIT(qn_batch_opts, .context = CONTEXT, .chunk = 16, .kept = -1), &err));
    for (size_t stop_after = 1; stop_after <= 4; stop_after++) {
        request r, other;
        make_request(&other, 4, vocab);
        make_request(&r, 1, vocab); // 38 tokens, three steps alone
        assert_int_equal(r.n, 38);
        told t = {.of = &r, .stop_after = stop_after};
        add(b, &r, &QN_INIT(qn_row_opts, .progress = note_progress, .progress_arg = &t));
        add(b, &other, NULL);
        run_out(b);
        assert_int_equal(t.n, stop_after);
        assert_int_equal(r.heard.n_ends, 0);
        assert_int_equal(r.heard.n, 0);
        assert_alone(engine, &other, "beside a row that ended");
        assert_empty(b);
    }
    qn_batch_destroy(b);
    qn_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_what_they_are_alone),
        cmocka_unit_test(rows_that_give_way_go_on),
        cmocka_unit_test(rows_are_many),
        cmocka_unit_test(completions_read_once),
        cmocka_unit_test(prompts_keep_to_their_share),
        cmocka_unit_test(a_failing_row_fails_alone),
        cmocka_unit_test(rows_end_when_their_time_is_over),
        cmocka_unit_test(callbacks_add_and_remove),
        cmocka_unit_test(a_row_removes_itself),
        cmocka_unit_test(a_wait_ends),
        cmocka_unit_test(wrong_use_is_named),
        cmocka_unit_test(progress_of_a_prompt_is_told),
        cmocka_unit_test(progress_begins_with_what_is_cached),
        cmocka_unit_test(an_uncached_row_leaves_nothing),
        cmocka_unit_test(progress_ends_a_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
