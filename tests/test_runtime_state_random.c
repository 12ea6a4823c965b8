// Random interleavings of all that sequences can do, over a pool that is too small: after every
// operation each sequence and checkpoint must hold exactly what a fresh computation would give, the
// counts must add up, and nothing may be allocated. A failure prints its seed and the shortest list
// of operations that still fails.
#include "alloc_rig.h"
#include "state_rig.h"

// --- operations ---

enum { CONTEXT = 400, STEP_ROWS = 90, N_SEQS = 5, N_OPS = 60, N_RUNS = 600 };

typedef struct op {
    int kind;
    uint32_t a, b, c;
} op;

typedef struct world {
    rig rig;
    rig_seq seqs[N_SEQS], held[N_SEQS]; // seq NULL: not open
    qn_checkpoint *checkpoints[N_SEQS]; // beside `held`
    rig_seq library[N_OPS];             // histories that were remembered, with `uncertain` rows
    uint32_t n_library;
    uint64_t random;
    const char *fault;
    long n_limits;           // prepare or open had no room
    int64_t hits, evictions; // of the whole run
} world;

static uint64_t next_random(world *w) {
    w->random += 0x9e3779b97f4a7c15u;
    return rig_mix(w->random, w->random >> 31);
}

static int64_t below(uint32_t x, int64_t n) { return (int64_t)(x % (uint64_t)n); }

static void must(world *w, bool is_true, const char *what) {
    if (!is_true && !w->fault) w->fault = what;
}

// An open sequence, or one that is not; NULL: there is none.
static rig_seq *choose(world *w, uint32_t x, bool is_open) {
    for (uint32_t i = 0; i < N_SEQS; i++) {
        rig_seq *s = &w->seqs[(x % N_SEQS + i) % N_SEQS];
        if (!s->seq != is_open) return s;
    }
    return NULL;
}

static rig_seq *pick(world *w, uint32_t x) { return choose(w, x, true); }

static void copy_history(rig_seq *to, const rig_seq *from, int64_t n) {
    memcpy(to->keys, from->keys, (size_t)n * sizeof *to->keys);
    memcpy(to->hash, from->hash, (size_t)(n + 1) * sizeof *to->hash);
}

// Adopts the beginning of something remembered, so that paths meet and part.
static int64_t make_prompt(world *w, rig_seq *s, uint32_t x) {
    const rig_seq *from = &w->library[w->n_library ? x % w->n_library : 0];
    const int64_t length = from->uncertain;
    const int64_t same = x & 256 ? length : below(x >> 10, length + 1);
    const int64_t more = below(x >> 19, 70);
    const int64_t n = same + more < CONTEXT ? same + more : CONTEXT;
    copy_history(s, from, same);
    for (int64_t i = same; i < n; i++) rig_add_key(s, i, next_random(w) % 3);
    return n;
}

static bool prepare(world *w, rig_seq *s, int64_t rows, int64_t commit) {
    qn_err err;
    const int64_t before = qn_seq_length(s->seq);
    const qn_status status = qn_seq_prepare(s->seq, rows, commit, &err);
    if (!status) return true;
    w->n_limits++;
    must(w, status == QN_LIMIT && err.message[0], "prepare failed, and not with LIMIT");
    must(w, qn_seq_length(s->seq) == before, "a failed prepare changed the sequence");
    return false;
}

static void append(world *w, rig_seq *s, const op *o, int64_t b, bool is_prepared) {
    const int64_t past = qn_seq_length(s->seq), rows = below(o->b, STEP_ROWS) + 1;
    const int64_t open = o->c % 2 ? below(o->c >> 1, QN_LOG_ROWS + 1) : 0;
    const int64_t uncertain = open < rows ? open : rows;
    if (!is_prepared) {
        if (!prepare(w, s, rows, rows - uncertain)) return;
        for (int64_t i = 0; i < rows; i++) rig_add_key(s, past + i, next_random(w) % 3);
    }
    must(w, rig_run(&w->rig, s, b, rows), "the step table is wrong");
    qn_seq_finish(s->seq);
    s->uncertain = uncertain;
}

static void do_append(world *w, const op *o) {
    rig_seq *s = pick(w, o->a);
    if (s) append(w, s, o, 0, false);
}

// Two sequences in one step, both prepared before either runs.
static void do_append_two(world *w, const op *o) {
    rig_seq *s = pick(w, o->a), *t = pick(w, o->a / N_SEQS);
    if (!s || !t || s == t) return;
    const int64_t past = qn_seq_length(s->seq), rows = below(o->b, STEP_ROWS) + 1;
    const int64_t open = o->c % 2 ? below(o->c >> 1, QN_LOG_ROWS + 1) : 0;
    if (!prepare(w, s, rows, rows - (open < rows ? open : rows))) return;
    for (int64_t i = 0; i < rows; i++) rig_add_key(s, past + i, next_random(w) % 3);
    append(w, t, o, 1, false);
    append(w, s, o, 0, true);
}

static void do_cancel(world *w, const op *o) {
    rig_seq *s = pick(w, o->a);
    const qn_state_counts before = qn_state_get_counts(w->rig.state);
    if (!s || !prepare(w, s, below(o->b, STEP_ROWS) + 1, 0)) return;
    qn_seq_cancel(s->seq);
    const qn_state_counts after = qn_state_get_counts(w->rig.state);
    must(w, after.evictions != before.evictions || after.pages_used == before.pages_used,
         "a cancelled step keeps pages");
}

static void truncate_to(world *w, rig_seq *s, int64_t want, bool is_exact) {
    const int64_t before = qn_seq_length(s->seq);
    const int64_t got = qn_seq_truncate(s->seq, want);
    must(w, got == qn_seq_length(s->seq) && (got == 0 || got == want || got == before),
         "truncate left another length");
    must(w, !is_exact || got == want, "truncate forgot too much");
    const int64_t gone = before - got;
    s->uncertain = s->uncertain > gone ? s->uncertain - gone : 0;
}

static void do_roll_back(world *w, const op *o) {
    rig_seq *s = pick(w, o->a);
    if (!s) return;
    truncate_to(w, s, qn_seq_length(s->seq) - below(o->b, s->uncertain + 1), true);
}

static void do_truncate(world *w, const op *o) {
    rig_seq *s = pick(w, o->a);
    if (!s) return;
    const int64_t want = below(o->b, qn_seq_length(s->seq) + 1);
    truncate_to(w, s, want, w->rig.kind == RIG_FULL);
}

static bool open_failed(world *w, qn_status status) {
    const qn_state *state = w->rig.state;
    if (!status) return false;
    w->n_limits++;
    must(w, status == QN_LIMIT && state->n_open == state->opts.n_seqs, "open failed with room");
    return true;
}

static void do_fork(world *w, const op *o) {
    rig_seq *s = pick(w, o->a), *to = choose(w, o->b, false);
    qn_err err;
    if (!s || !to || open_failed(w, qn_seq_fork(&to->seq, s->seq, &err))) return;
    copy_history(to, s, qn_seq_length(s->seq));
    to->uncertain = s->uncertain;
}

static void do_checkpoint(world *w, const op *o) {
    rig_seq *s = pick(w, o->a);
    const size_t i = o->b % N_SEQS;
    qn_err err;
    if (!s || w->checkpoints[i]) return;
    if (open_failed(w, qn_checkpoint_create(&w->checkpoints[i], s->seq, &err))) return;
    w->held[i] = *s;
    w->held[i].seq = &w->checkpoints[i]->seq;
}

static void do_restore(world *w, const op *o) {
    rig_seq *s = pick(w, o->a);
    const size_t i = o->b % N_SEQS;
    qn_err err;
    if (!s || !w->checkpoints[i]) return;
    must(w, qn_seq_restore(s->seq, w->checkpoints[i], &err) == QN_OK, "restore failed");
    must(w, qn_seq_length(s->seq) == qn_checkpoint_length(w->checkpoints[i]), "restored length");
    copy_history(s, &w->held[i], qn_seq_length(s->seq));
    s->uncertain = w->held[i].uncertain;
}

static void do_drop_checkpoint(world *w, const op *o) {
    const size_t i = o->a % N_SEQS;
    qn_checkpoint_destroy(w->checkpoints[i]);
    w->checkpoints[i] = NULL;
    w->held[i].seq = NULL;
}

static void do_remember(world *w, const op *o) {
    rig_seq *s = pick(w, o->a), *to = &w->library[w->n_library];
    if (!s) return;
    w->n_library++;
    qn_state_remember(s->seq, s->keys);
    to->uncertain = qn_seq_length(s->seq);
    copy_history(to, s, to->uncertain);
}

// The longest beginning of the keys that a full model must find while nothing was forgotten.
static int64_t find_longest(const world *w, const rig_seq *s, int64_t n) {
    int64_t longest = 0;
    for (uint32_t i = 0; i < w->n_library; i++) {
        const rig_seq *known = &w->library[i];
        int64_t same = 0;
        while (same < n && same < known->uncertain && known->keys[same] == s->keys[same]) same++;
        if (same > longest) longest = same;
    }
    return longest;
}

static void do_find(world *w, const op *o) {
    rig_seq *s = choose(w, o->a, false);
    qn_err err;
    if (!s) return;
    if (open_failed(w, qn_seq_open(&s->seq, w->rig.state, &err))) return;
    const int64_t n = make_prompt(w, s, o->b);
    const int64_t got = qn_state_find(s->seq, s->keys, n);
    must(w, got >= 0 && got <= n && got == qn_seq_length(s->seq), "find gave another length");
    if (w->rig.kind == RIG_FULL && qn_state_get_counts(w->rig.state).evictions == 0)
        must(w, got == find_longest(w, s, n), "find gave less than was remembered");
    s->uncertain = 0;
    if (o->c % 8 == 0) return;
    // The rest of the prompt, as a session would compute it.
    while (qn_seq_length(s->seq) < n) {
        const int64_t past = qn_seq_length(s->seq), left = n - past;
        const int64_t rows = left < STEP_ROWS ? left : STEP_ROWS;
        if (!prepare(w, s, rows, rows)) return;
        must(w, rig_run(&w->rig, s, 0, rows), "the step table is wrong");
        qn_seq_finish(s->seq);
    }
}

static void do_evict(world *w, const op *o) {
    const int64_t max = o->a % 4 ? (int64_t)(o->b % 20000) : 0;
    qn_state_evict(w->rig.state, max);
    must(w, qn_state_get_counts(w->rig.state).kept_bytes <= max, "evict left too much");
}

static void do_close(world *w, const op *o) {
    rig_seq *s = pick(w, o->a);
    if (!s) return;
    if (o->b % 4 == 0) prepare(w, s, 1, 1); // closing cancels
    qn_seq_close(s->seq);
    s->seq = NULL;
}

static const struct {
    const char *name;
    int weight;
    void (*run)(world *w, const op *o);
} kinds[] = {
    {"append", 10, do_append},
    {"append two", 4, do_append_two},
    {"cancel", 2, do_cancel},
    {"roll back", 5, do_roll_back},
    {"truncate", 3, do_truncate},
    {"fork", 4, do_fork},
    {"checkpoint", 3, do_checkpoint},
    {"restore", 3, do_restore},
    {"drop", 2, do_drop_checkpoint},
    {"remember", 8, do_remember},
    {"find", 10, do_find},
    {"evict", 1, do_evict},
    {"close", 7, do_close},
};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

// --- runs ---

static void check_world(world *w) {
    for (size_t i = 0; i < N_SEQS && !w->fault; i++) {
        if (w->seqs[i].seq) w->fault = rig_check_seq(&w->rig, &w->seqs[i]);
        if (w->held[i].seq && !w->fault) w->fault = rig_check_seq(&w->rig, &w->held[i]);
    }
    if (!w->fault) w->fault = rig_check_counts(&w->rig);
}

static void close_world(world *w) {
    for (uint32_t i = 0; i < N_SEQS; i++) {
        do_drop_checkpoint(w, &(op){.a = i});
        do_close(w, &(op){.a = i, .b = 1});
    }
    check_world(w);
    qn_state_evict(w->rig.state, 0);
    const qn_state_counts counts = qn_state_get_counts(w->rig.state);
    w->hits = counts.hits;
    w->evictions = counts.evictions;
    must(w, counts.pages_used == 0 && counts.slots_used == 0 && counts.kept_bytes == 0,
         "something leaked");
    rig_close(&w->rig);
}

// Runs a list of operations; returns what went wrong, or NULL.
static const char *run_ops(rig_kind kind, uint64_t seed, const op *ops, int n, world *w) {
    static const int64_t kept[] = {0, 6000, 20000, 100000};
    const long n_limits = w->n_limits;
    *w = (world){.random = seed, .n_limits = n_limits};
    rig_open(&w->rig, kind,
             (qn_state_opts){.context = CONTEXT,
                             .step_rows = STEP_ROWS,
                             .n_seqs = N_SEQS,
                             .kept_bytes = kept[seed % 4],
                             .positions = seed / 4 % 2 ? 0 : CONTEXT + 50});
    const long before = n_requests;
    for (int i = 0; i < n && !w->fault; i++) {
        kinds[ops[i].kind].run(w, &ops[i]);
        check_world(w);
    }
    must(w, n_requests == before, "an operation allocated");
    const char *fault = w->fault;
    close_world(w);
    return fault ? fault : w->fault;
}

static void make_ops(op *ops, uint64_t seed) {
    world w = {.random = seed * 77 + 5};
    int total = 0;
    for (int k = 0; k < N_KINDS; k++) total += kinds[k].weight;
    for (int i = 0; i < N_OPS; i++) {
        int64_t at = below((uint32_t)next_random(&w), total);
        int k = 0;
        while (at >= kinds[k].weight) at -= kinds[k++].weight;
        const uint64_t x = next_random(&w), y = next_random(&w);
        ops[i] = (op){k, (uint32_t)x, (uint32_t)(x >> 32), (uint32_t)y};
    }
}

// Drops operations while the rest still fails, then tells.
static void shrink_and_fail(rig_kind kind, uint64_t seed, op *ops, int n, world *w) {
    for (bool shrunk = true; shrunk;) {
        shrunk = false;
        for (int i = 0; i < n; i++) {
            op fewer[N_OPS];
            memcpy(fewer, ops, (size_t)i * sizeof *ops);
            memcpy(fewer + i, ops + i + 1, (size_t)(n - i - 1) * sizeof *ops);
            if (!run_ops(kind, seed, fewer, n - 1, w)) continue;
            memcpy(ops, fewer, (size_t)--n * sizeof *ops);
            shrunk = true;
            i--;
        }
    }
    for (int i = 0; i < n; i++)
        print_message("  {%-10s %10u, %10u, %10u}\n", kinds[ops[i].kind].name, ops[i].a, ops[i].b,
                      ops[i].c);
    const char *fault = run_ops(kind, seed, ops, n, w);
    fail_msg("graph %d, seed %llu, %d operations: %s", (int)kind, (unsigned long long)seed, n,
             fault ? fault : "no longer fails");
}

static void run_kind(rig_kind kind) {
    static world w;
    static op ops[N_OPS];
    int64_t hits = 0, evictions = 0;
    w.n_limits = 0;
    for (uint64_t seed = 0; seed < N_RUNS; seed++) {
        make_ops(ops, seed);
        if (run_ops(kind, seed, ops, N_OPS, &w)) shrink_and_fail(kind, seed, ops, N_OPS, &w);
        hits += w.hits;
        evictions += w.evictions;
    }
    print_message("graph %d: %d x %d operations, %lld hits, %lld evictions, %ld limits\n",
                  (int)kind, N_RUNS, N_OPS, (long long)hits, (long long)evictions, w.n_limits);
    assert_true(hits > 100 && evictions > 100 && w.n_limits > 100);
}

static void random_full(void **state) {
    (void)state;
    run_kind(RIG_FULL);
}
static void random_window(void **state) {
    (void)state;
    run_kind(RIG_WINDOW);
}
static void random_recurrent(void **state) {
    (void)state;
    run_kind(RIG_RECURRENT);
}
static void random_all(void **state) {
    (void)state;
    run_kind(RIG_ALL);
}

static void random_states(void **state) {
    (void)state;
    run_kind(RIG_STATES);
}

// Creation with the first, second, ... allocation failing.
static void short_of_memory(void **cmocka_state) {
    (void)cmocka_state;
    qn_graph graph = {0};
    rig_graph(&graph, RIG_ALL);
    bool is_done = false;
    for (long n = 0; !is_done; n++) {
        const long before = n_living;
        qn_state_layout *layout = NULL;
        qn_state *state = NULL;
        qn_err err;
        countdown = n;
        qn_status status = rig_layout(&layout, &graph, &rig_backend, QN_CACHE_F32, &err);
        const qn_state_opts opts = {
            .layout = layout, .context = 5000, .step_rows = 64, .n_seqs = 9, .kept_bytes = 1 << 20};
        if (!status) status = qn_state_create(&state, &opts, &err);
        is_done = countdown >= 0;
        countdown = -1;
        assert_int_equal(status, is_done ? QN_OK : QN_MEMORY);
        assert_true(is_done || (!state && strstr(err.message, "memory")));
        qn_state_destroy(state);
        qn_state_layout_destroy(layout);
        assert_int_equal(n_living, before);
    }
    qn_graph_deinit(&graph);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_of_memory), cmocka_unit_test(random_full),
        cmocka_unit_test(random_window),   cmocka_unit_test(random_recurrent),
        cmocka_unit_test(random_all),      cmocka_unit_test(random_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
