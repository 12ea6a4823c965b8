// A batch under fire: requests come and go at random from three threads, with a budget that makes
// rows give way, cancellations of every kind and rows that fail. Every answer that comes to its end
// is the answer alone, what is cut short is its beginning, nobody hears of a row that was removed,
// and all memory comes back. Build with -DQN_SANITIZE=thread or address and run with a number of
// requests (2000) for the long form.
#include "generate_rig.h"

#include "core/mem.h"
#include "core/thread.h"

#include <math.h>
#include <sched.h>
#include <stdlib.h>

enum { CONTEXT = 384, N_KINDS = 24, N_THREADS = 3, MAX_IDS = 90, OUTSTANDING = 12, SHORT = 90 };
static size_t n_requests = SHORT; // of each model

// What may be asked, and the answers alone.
typedef struct kind {
    int32_t ids[MAX_IDS];
    size_t n;
    qn_sample_opts sample;
    qn_generate_opts opts;
    uint32_t completions;
    bool fails;
    qn_result want[3]; // (completions)
} kind;

typedef struct soak {
    qn_engine *engine;
    qn_batch *batch;
    kind kinds[N_KINDS];
    qn_bias *never;
    atomic_int n_wrong, n_done, n_whole, n_cut;
    atomic_int n_threads; // that still add
    char first_wrong[600];
} soak;

// One row. Written by the callback, on the thread that steps, until `is_over`.
typedef struct heard_row {
    soak *s;
    const kind *kind;
    uint32_t completion;
    size_t n, stop_after; // tokens; 0: none
    atomic_bool is_removed, is_over;
} heard_row;

static void wrong(soak *s, const char *what, size_t a, size_t b) {
    if (atomic_fetch_add(&s->n_wrong, 1) == 0)
        snprintf(s->first_wrong, sizeof s->first_wrong, "%s: %zu, %zu", what, a, b);
}

static void check_end(heard_row *r, const qn_event *e) {
    soak *s = r->s;
    const qn_result *want = &r->kind->want[r->completion], *got = e->result;
    if (e->reason == QN_REASON_DEADLINE) {
        atomic_fetch_add(&s->n_cut, 1);
    } else if (r->kind->fails) {
        if (e->reason != QN_REASON_FAILED || !e->err) wrong(s, "did not fail", e->reason, r->n);
    } else {
        atomic_fetch_add(&s->n_whole, 1);
        if (e->reason != want->reason) wrong(s, "reason", e->reason, want->reason);
        if (got->n_tokens != want->n_tokens) wrong(s, "length", got->n_tokens, want->n_tokens);
        if (got->text_size != want->text_size ||
            memcmp(got->text, want->text, want->text_size) != 0)
            wrong(s, "text", got->text_size, want->text_size);
    }
    atomic_store(&r->is_over, true);
}

static bool listen(void *arg, const qn_event *e) {
    heard_row *r = (heard_row *)arg + e->row; // completions stand side by side
    const qn_result *want = &r->kind->want[r->completion];
    if (atomic_load(&r->is_removed)) wrong(r->s, "heard of a removed row", r->n, 0);
    if (atomic_load(&r->is_over)) wrong(r->s, "heard of an ended row", r->n, 0);
    if (e->token < 0) {
        check_end(r, e);
        return true;
    }
    if (r->n >= want->n_tokens || want->tokens[r->n] != e->token)
        wrong(r->s, "token", r->n, (size_t)e->token);
    r->n++;
    if (r->stop_after && r->n == r->stop_after) {
        atomic_fetch_add(&r->s->n_cut, 1);
        atomic_store(&r->is_over, true);
        return false;
    }
    return true;
}

// --- requests ------------------------------------------------------------------------------------

typedef struct asked {
    uint64_t id; // of the first row
    uint32_t n;  // 0: this place is free
    heard_row rows[3];
} asked;

static void add(soak *s, asked *a, const kind *k, const qn_row_opts *opts) {
    qn_err err;
    a->n = k->completions;
    for (uint32_t i = 0; i < a->n; i++) {
        heard_row *r = &a->rows[i];
        r->s = s;
        r->kind = k;
        r->completion = i;
        r->n = 0;
        atomic_store(&r->is_removed, false);
        atomic_store(&r->is_over, false);
    }
    if (qn_batch_add(&a->id, s->batch, k->ids, k->n, opts, listen, a->rows, &err)) {
        wrong(s, err.message, 0, 0);
        a->n = 0;
    }
}

static void ask(soak *s, asked *a, uint64_t *random) {
    const kind *k = &s->kinds[next_random(random) % N_KINDS];
    const qn_row_opts opts =
        QN_INIT(qn_row_opts, .generate = &k->opts, .completions = k->completions,
                .mark = next_random(random) % 3 ? 0 : k->n / 2,
                .deadline_ms = next_random(random) % 10 ? 0 : 1);
    for (uint32_t i = 0; i < k->completions; i++)
        a->rows[i].stop_after = next_random(random) % 8 ? 0 : 1 + next_random(random) % 20;
    add(s, a, k, &opts);
}

// Long answers, all of which are there before the first step: more than the budget holds, however
// slowly the threads ask.
static void ask_for_much(soak *s, asked crowd[OUTSTANDING]) {
    for (size_t i = 0, n = 0; n < OUTSTANDING; i = (i + 1) % N_KINDS) {
        const kind *k = &s->kinds[i];
        if (k->fails || k->completions > 1 || k->opts.max_tokens < 100) continue;
        const qn_row_opts opts = QN_INIT(qn_row_opts, .generate = &k->opts, .completions = 1);
        crowd[n].rows[0].stop_after = 0;
        add(s, &crowd[n++], k, &opts);
    }
}

// Removes the rows, or waits until they are over.
static void settle(soak *s, asked *a, bool removes) {
    for (uint32_t i = 0; i < a->n; i++) {
        heard_row *r = &a->rows[i];
        if (removes) {
            if (qn_batch_remove(s->batch, a->id + i)) atomic_fetch_add(&s->n_cut, 1);
            atomic_store(&r->is_removed, true);
        }
        while (!removes && !atomic_load(&r->is_over)) sched_yield();
    }
    a->n = 0;
}

static bool is_over(asked *a) {
    for (uint32_t i = 0; i < a->n; i++) {
        if (!atomic_load(&a->rows[i].is_over)) return false;
    }
    return true;
}

typedef struct asker {
    soak *s;
    uint64_t random;
    size_t n;
} asker;

static void *ask_all(void *arg) {
    asker *who = arg;
    soak *s = who->s;
    asked *places = qn_alloc(OUTSTANDING, sizeof *places);
    for (size_t i = 0; i < who->n; i++) {
        asked *a = &places[next_random(&who->random) % OUTSTANDING];
        const bool removes = next_random(&who->random) % 4 == 0;
        if (a->n && !is_over(a)) settle(s, a, removes);
        a->n = 0;
        ask(s, a, &who->random);
        for (uint32_t k = next_random(&who->random) % 50; k > 0; k--) sched_yield();
    }
    for (size_t i = 0; i < OUTSTANDING; i++) settle(s, &places[i], false);
    qn_free(places);
    atomic_fetch_sub(&s->n_threads, 1);
    qn_batch_wake(s->batch);
    return NULL;
}

// --- the whole -----------------------------------------------------------------------------------

static void make_kind(soak *s, size_t i, int64_t vocab) {
    static const char *const stops[] = {"the", "qu"};
    kind *k = &s->kinds[i];
    random_ids(k->ids, MAX_IDS, vocab, 70 + i / 3); // some begin alike
    k->n = 1 + i * 29 % MAX_IDS;
    k->completions = i % 6 == 5 ? 3 : 1;
    k->fails = i % 12 == 7;
    k->sample = QN_INIT(qn_sample_opts, .temperature = i % 3 ? 1.2f : 0, .seed = i,
                        .top_k = i % 4 == 1 ? 9 : 0, .frequency_penalty = i % 4 == 2 ? 0.7f : 0,
                        .mirostat = i % 4 == 3 ? 2 : 0);
    k->opts =
        QN_INIT(qn_generate_opts, .sample = &k->sample,
                .max_tokens = i % 4 ? 100 + (int64_t)(i * 37 % 180) : 9, .ignore_end = i % 4 != 0,
                .lookup = i % 5 == 0, .draft_min = i % 5 == 0 ? 2 : 0, .stops = stops,
                .n_stops = i % 7 == 6 ? 2 : 0);
    if (k->fails)
        k->sample = QN_INIT(qn_sample_opts, .biases = s->never, .n_biases = (size_t)vocab);
}

static void answer_alone(soak *s) {
    qn_session *alone = open_session(s->engine, CONTEXT);
    for (size_t i = 0; i < N_KINDS; i++) {
        kind *k = &s->kinds[i];
        for (uint32_t c = 0; c < k->completions && !k->fails; c++) {
            qn_generate_opts opts = k->opts;
            qn_sample_opts sample = k->sample;
            sample.completion = c;
            opts.sample = &sample;
            opts.lookup = false;
            k->want[c] = answer(alone, k->ids, k->n, &opts, NULL, NULL);
        }
    }
    qn_session_destroy(alone);
}

static void run_soak(soak *s) {
    asker askers[N_THREADS];
    pthread_t threads[N_THREADS];
    asked *crowd = qn_alloc(OUTSTANDING, sizeof *crowd);
    qn_err err;
    ask_for_much(s, crowd);
    atomic_store(&s->n_threads, N_THREADS);
    for (int i = 0; i < N_THREADS; i++) {
        askers[i] = (asker){.s = s, .random = (uint64_t)i + 1, .n = n_requests / N_THREADS};
        assert_true(qn_thread_start(&threads[i], ask_all, &askers[i]));
    }
    size_t n = 1;
    while (n || atomic_load(&s->n_threads) > 0) {
        (void)qn_batch_wait(s->batch, n || atomic_load(&s->n_threads) == 0 ? 0 : -1);
        const qn_status status = qn_batch_step(&n, s->batch, &err);
        if (status) fail_msg("a step: %s", err.message);
    }
    for (int i = 0; i < N_THREADS; i++) pthread_join(threads[i], NULL);
    qn_free(crowd);
}

static void soak_family(const char *family, bool preempts) {
    qn_err err;
    qn_memory memory = QN_INIT(qn_memory);
    qn_batch_counts counts = QN_INIT(qn_batch_counts);
    soak *s = qn_alloc(1, sizeof *s);
    s->engine = family_open(family, &QN_INIT(qn_engine_opts, .n_threads = 2));
    const int64_t vocab = engine_info(s->engine).n_vocab;
    s->never = qn_alloc((size_t)vocab, sizeof *s->never);
    for (int32_t i = 0; i < vocab; i++) s->never[i] = (qn_bias){i, -INFINITY};
    for (size_t i = 0; i < N_KINDS; i++) make_kind(s, i, vocab);
    answer_alone(s);
    ASSERT_OK(qn_engine_memory(&memory, s->engine, CONTEXT, 0, &err));
    const bool has_slots = qn_engine_is_recurrent(s->engine);
    const int64_t slots = has_slots ? 13 * (memory.state - memory.cache) : 0;
    const qn_batch_opts opts =
        QN_INIT(qn_batch_opts, .context = CONTEXT, .chunk = 48, .prompt_rows = 24, .rows = 12,
                .bytes = 10 * memory.cache / 3 + slots);
    ASSERT_OK(qn_batch_create(&s->batch, s->engine, &opts, &err));
    run_soak(s);
    counts = batch_counts(s->batch);
    print_message("%s: %lld rows, %d whole, %d cut short, %lld failed, %lld gave way, %lld hits\n",
                  family, (long long)counts.added, atomic_load(&s->n_whole), atomic_load(&s->n_cut),
                  (long long)counts.failed, (long long)counts.preemptions, (long long)counts.hits);
    if (atomic_load(&s->n_wrong))
        fail_msg("%s: %d wrong, first %s", family, atomic_load(&s->n_wrong), s->first_wrong);
    assert_true(atomic_load(&s->n_whole) > 0);
    if (preempts) assert_true(counts.preemptions > 0);
    assert_int_equal(counts.ended, counts.added);
    assert_int_equal(counts.rows, 0);
    assert_int_equal(counts.queued, 0);
    assert_int_equal(counts.pages, 0);
    assert_int_equal(counts.slots, 0);
    qn_batch_destroy(s->batch);
    for (size_t i = 0; i < N_KINDS; i++) {
        for (int c = 0; c < 3; c++) qn_result_deinit(&s->kinds[i].want[c]);
    }
    qn_free(s->never);
    qn_engine_close(s->engine);
    qn_free(s);
}

static void rows_come_and_go_at_random(void **state) {
    (void)state;
    soak_family("qwen3", true);
    soak_family("gemma3", false); // a window: most of its state has a place of its own
    soak_family("qwen35", false); // recurrent layers
}

int main(int argc, char **argv) {
    if (argc > 1) n_requests = strtoul(argv[1], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_come_and_go_at_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
