// Random lives of a batch on one thread: rows are added, stepped, cut short and removed in any
// order, with little room. Whatever happened, the tokens of a row are those of its prompt answered
// alone on the CPU, and all memory comes back. TEST_DEVICE names the device of the batch (default:
// cpu); an argument is the number of lives. A failing life has a seed, by which it comes again.
#include "generate_rig.h"

#include "core/mem.h"

#include <stdlib.h>

enum { LIVES = 120, OPS = 18, N_KINDS = 10, MAX_IDS = 80, MAX_ROWS = OPS, CONTEXT = 192 };
static uint64_t n_lives = LIVES; // over all models
static const char *device = "cpu";

// What may be asked, and the answer alone.
typedef struct kind {
    int32_t ids[MAX_IDS];
    size_t n;
    qn_sample_opts sample;
    qn_generate_opts opts;
    qn_result want;
} kind;

typedef struct row {
    const struct life *life;
    const kind *kind;
    uint64_t id;
    size_t n, stop_after; // tokens that came; after which it is ended by its callback, 0: never
    bool is_removed, is_over;
} row;

typedef struct life {
    qn_batch *batch;
    const kind *kinds;
    uint64_t seed, random;
    const char *family;
    row rows[MAX_ROWS];
    size_t n_rows;
} life;

static uint32_t choose(life *l, uint32_t n) { return next_random(&l->random) % n; }

#define WRONG(l, ...)                                                                              \
    do {                                                                                           \
        print_error("%s on %s, seed %llu: ", (l)->family, device, (unsigned long long)(l)->seed);  \
        fail_msg(__VA_ARGS__);                                                                     \
    } while (0)

static bool listen(void *arg, const qn_event *e) {
    row *r = arg;
    const qn_result *want = &r->kind->want;
    if (r->is_removed || r->is_over) WRONG(r->life, "heard of a row that is over");
    if (e->token < 0) {
        r->is_over = true;
        if (e->reason != want->reason || r->n != want->n_tokens)
            WRONG(r->life, "a row ends by %s after %zu tokens, want %s after %zu",
                  qn_reason_name(e->reason), r->n, qn_reason_name(want->reason), want->n_tokens);
        return true;
    }
    if (r->n >= want->n_tokens || want->tokens[r->n] != e->token)
        WRONG(r->life, "token %zu of a prompt of %zu differs", r->n, r->kind->n);
    r->n++;
    r->is_over = r->stop_after == r->n;
    return !r->is_over;
}

// --- what may happen -----------------------------------------------------------------------------

static void add_row(life *l) {
    qn_err err;
    row *r = &l->rows[l->n_rows++];
    *r = (row){.life = l, .kind = &l->kinds[choose(l, N_KINDS)]};
    if (choose(l, 4) == 0) r->stop_after = 1 + choose(l, 8);
    const qn_row_opts opts =
        QN_INIT(qn_row_opts, .generate = &r->kind->opts, .mark = choose(l, 2) ? r->kind->n / 2 : 0);
    ASSERT_OK(qn_batch_add(&r->id, l->batch, r->kind->ids, r->kind->n, &opts, listen, r, &err));
}

static void remove_row(life *l) {
    if (l->n_rows == 0) return;
    row *r = &l->rows[choose(l, (uint32_t)l->n_rows)];
    (void)qn_batch_remove(l->batch, r->id);
    r->is_removed = true;
}

static void step(life *l, size_t *n) {
    qn_err err;
    if (qn_batch_step(n, l->batch, &err)) WRONG(l, "a step fails: %s", err.message);
}

static void live_on(life *l) {
    size_t n = 1;
    for (int i = 0; i < OPS; i++) {
        const uint32_t what = i == 0 ? 0 : choose(l, 8);
        if (what < 3)
            add_row(l);
        else if (what == 3)
            remove_row(l);
        else
            for (uint32_t k = 1 + choose(l, 4); k > 0; k--) step(l, &n);
    }
    n = 1;
    for (int i = 0; n > 0; i++) {
        if (i > 10000) WRONG(l, "rows do not come to their end");
        step(l, &n);
    }
    for (size_t i = 0; i < l->n_rows; i++) {
        if (!l->rows[i].is_over && !l->rows[i].is_removed) WRONG(l, "row %zu has no end", i);
    }
}

// --- lives ---------------------------------------------------------------------------------------

static void make_kinds(kind *kinds, const char *family) {
    qn_engine *engine = family_open(family, &QN_INIT(qn_engine_opts, .device = "cpu"));
    qn_session *alone = open_session(engine, CONTEXT);
    for (size_t i = 0; i < N_KINDS; i++) {
        kind *k = &kinds[i];
        random_ids(k->ids, MAX_IDS, engine_info(engine).n_vocab, 40 + i / 3); // some begin alike
        k->n = 1 + i * 23 % MAX_IDS;
        k->sample = QN_INIT(qn_sample_opts, .temperature = i % 3 ? 1.1f : 0, .seed = i,
                            .frequency_penalty = i % 4 == 2 ? 0.7f : 0);
        k->opts = QN_INIT(qn_generate_opts, .sample = &k->sample,
                          .max_tokens = 3 + (int64_t)(i * 7 % 20), .ignore_end = i % 2 == 0);
        k->want = answer(alone, k->ids, k->n, &k->opts, NULL, NULL);
        k->opts.lookup = i % 5 == 0; // drafts change nothing
    }
    qn_session_destroy(alone);
    qn_engine_close(engine);
}

static void live(const qn_engine *engine, const kind *kinds, const char *family, uint64_t seed) {
    qn_err err;
    qn_memory memory = QN_INIT(qn_memory);
    life l = {.kinds = kinds, .seed = seed, .random = seed + 1, .family = family};
    ASSERT_OK(qn_engine_memory(&memory, engine, CONTEXT, 0, &err));
    const int64_t slots = 8 * (memory.state - memory.cache);
    const qn_batch_opts opts =
        QN_INIT(qn_batch_opts, .context = CONTEXT, .chunk = 8 + choose(&l, 60), .rows = 6,
                .prompt_rows = choose(&l, 2) ? 16 : 0, .kept = choose(&l, 3) ? 0 : -1,
                .bytes = choose(&l, 2) ? 2 * memory.cache + slots : 0);
    ASSERT_OK(qn_batch_create(&l.batch, engine, &opts, &err));
    live_on(&l);
    const qn_batch_counts counts = batch_counts(l.batch);
    if (counts.rows || counts.queued || counts.pages || counts.slots)
        WRONG(&l, "%lld rows, %lld pages and %lld slots are left", (long long)counts.rows,
              (long long)counts.pages, (long long)counts.slots);
    qn_batch_destroy(l.batch);
}

static void whatever_happens_rows_are_right(void **state) {
    (void)state;
    static const char *const models[] = {"qwen3", "gemma3", "qwen35", "qwen3_moe"};
    enum { N_MODELS = sizeof models / sizeof *models };
    for (size_t m = 0; m < N_MODELS; m++) {
        kind kinds[N_KINDS] = {0};
        make_kinds(kinds, models[m]);
        qn_engine *engine =
            family_open(models[m], &QN_INIT(qn_engine_opts, .n_threads = 1, .device = device));
        for (uint64_t seed = m; seed < n_lives; seed += N_MODELS)
            live(engine, kinds, models[m], seed);
        qn_engine_close(engine);
        for (size_t i = 0; i < N_KINDS; i++) qn_result_deinit(&kinds[i].want);
    }
}

int main(int argc, char **argv) {
    const char *asked = getenv("TEST_DEVICE");
    if (asked && *asked) device = asked;
    if (argc > 1) n_lives = strtoul(argv[1], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_happens_rows_are_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
