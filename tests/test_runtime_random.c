// Random lives of sequences: fork, truncate, draft, roll back, checkpoint, restore, evict,
// generate, in any order. Whatever happened, the logits of a sequence are those of its tokens
// computed from nothing. A failing life is shortened before it is shown.
#include "families.h"

#include "core/mem.h"
#include "runtime/runner.h"

enum {
    LIVES = 1000, // over all models
    OPS = 14,
    SEQS = 4,
    MARKS = 2,
    CONTEXT = 200,
    VOCAB_USED = 3, // few ids, so that prompts begin alike
};

typedef enum op_kind {
    OP_PROMPT,     // forget, and take another history
    OP_GENERATE,   // a row with logits: checked
    OP_APPEND,     // rows without logits
    OP_DRAFT,      // uncertain rows, of which some are taken back
    OP_TRUNCATE,   // forget the end
    OP_FORK,       // another sequence with the same history
    OP_CHECKPOINT, // keep this moment
    OP_RESTORE,    // go back to it
    OP_EVICT,      // forget what is only kept
    OP_COUNT
} op_kind;

typedef struct op {
    op_kind kind;
    uint32_t a, b, c; // choices
} op;

typedef struct one_seq {
    qn_seq *seq;
    int32_t ids[CONTEXT];
    uint64_t keys[CONTEXT];
    int64_t n; // history; what the sequence holds may be less
} one_seq;

typedef struct mark {
    qn_checkpoint *checkpoint; // NULL: none yet
    int32_t ids[CONTEXT];
    int64_t n;
} mark;

typedef struct world {
    const qn_engine *engine;
    qn_runner *runner;
    one_seq seqs[SEQS];
    mark marks[MARKS];
    int64_t vocab;
    char why[600]; // of a failure; "" while all is well
} world;

static void give_up(world *w, const char *what, const qn_err *err) {
    if (!w->why[0]) snprintf(w->why, sizeof w->why, "%s%s", what, err ? err->message : "");
}

static void set_id(one_seq *s, int64_t at, int32_t id) {
    s->ids[at] = id;
    s->keys[at] = (uint64_t)(uint32_t)id;
}

static void append(world *w, one_seq *s, int64_t n, uint32_t seed) {
    uint64_t random = seed;
    for (int64_t i = 0; i < n && s->n < CONTEXT; i++)
        set_id(s, s->n++, (int32_t)(next_random(&random) % VOCAB_USED + (uint32_t)(w->vocab / 2)));
}

// Brings the sequence up to its history; the last row gives logits, which are compared.
static void catch_up(world *w, one_seq *s, bool is_checked) {
    qn_err err;
    if (qn_seq_length(s->seq) == 0 && s->n > 1) qn_state_find(s->seq, s->keys, s->n - 1);
    if (qn_seq_length(s->seq) >= s->n) return;
    while (qn_seq_length(s->seq) < s->n) {
        const int64_t at = qn_seq_length(s->seq), left = s->n - at, rows = left < 40 ? left : 40;
        const qn_segment segment = {
            .seq = s->seq, .ids = s->ids + at, .rows = rows, .outs = rows == left};
        const qn_status status = qn_runner_step(w->runner, &segment, 1, &err);
        if (status) {
            if (status != QN_LIMIT) give_up(w, "step: ", &err);
            s->n = at; // the pool is full: the rest of the history is dropped
            return;
        }
    }
    qn_state_remember(s->seq, s->keys);
    if (!is_checked) return;
    qn_logits want = QN_INIT(qn_logits);
    if (qn_engine_logits(&want, w->engine, s->ids, (size_t)s->n, NULL, &err)) {
        give_up(w, "recompute: ", &err);
        return;
    }
    if (memcmp(want.logits, qn_runner_row(w->runner, "logits", 0),
               (size_t)w->vocab * sizeof(float)) != 0)
        give_up(w, "logits differ", NULL);
    qn_logits_deinit(&want);
}

static void do_prompt(world *w, one_seq *s, const op *o) {
    (void)qn_seq_truncate(s->seq, 0);
    s->n = 0;
    append(w, s, 1 + o->b % 120, o->c % 3); // three possible beginnings
    append(w, s, o->c % 9, o->c);
}

static void do_generate(world *w, one_seq *s, const op *o) {
    append(w, s, 1, o->c);
    catch_up(w, s, true);
}

static void do_append(world *w, one_seq *s, const op *o) {
    append(w, s, 1 + o->b % 30, o->c);
    catch_up(w, s, false);
}

static void do_draft(world *w, one_seq *s, const op *o) {
    qn_err err;
    catch_up(w, s, false);
    const int64_t at = qn_seq_length(s->seq), rows = 1 + o->b % 8;
    if (at == 0 || at != s->n || at + rows > CONTEXT) return;
    append(w, s, rows, o->c);
    const qn_segment segment = {
        .seq = s->seq, .ids = s->ids + at, .rows = rows, .uncertain = rows, .outs = 1};
    const int64_t kept = o->c % (uint32_t)(rows + 1);
    if (qn_runner_step(w->runner, &segment, 1, &err)) {
        s->n = at;
        return;
    }
    if (qn_seq_truncate(s->seq, at + kept) != at + kept) give_up(w, "a draft is not exact", NULL);
    s->n = at + kept;
}

static void do_truncate(world *w, one_seq *s, const op *o) {
    (void)w;
    if (s->n == 0) return;
    s->n -= o->b % (uint32_t)s->n;
    if (qn_seq_length(s->seq) > s->n) (void)qn_seq_truncate(s->seq, s->n);
}

static void do_fork(world *w, one_seq *s, const op *o) {
    qn_err err;
    one_seq *to = &w->seqs[o->b % SEQS];
    qn_seq *fork;
    if (to == s) return;
    qn_seq_close(to->seq);
    to->seq = NULL;
    if (qn_seq_fork(&fork, s->seq, &err)) { // no room: an empty one instead
        to->n = 0;
        if (qn_seq_open(&to->seq, qn_runner_state(w->runner), &err)) give_up(w, "open: ", &err);
        return;
    }
    *to = *s;
    to->seq = fork;
}

static void do_checkpoint(world *w, one_seq *s, const op *o) {
    qn_err err;
    mark *m = &w->marks[o->b % MARKS];
    qn_checkpoint_destroy(m->checkpoint);
    m->checkpoint = NULL;
    if (qn_checkpoint_create(&m->checkpoint, s->seq, &err)) return; // no room
    memcpy(m->ids, s->ids, sizeof m->ids);
    m->n = qn_seq_length(s->seq);
}

static void do_restore(world *w, one_seq *s, const op *o) {
    qn_err err;
    const mark *m = &w->marks[o->b % MARKS];
    if (!m->checkpoint || qn_seq_restore(s->seq, m->checkpoint, &err)) return;
    s->n = m->n;
    for (int64_t i = 0; i < m->n; i++) set_id(s, i, m->ids[i]);
}

static void do_evict(world *w, one_seq *s, const op *o) {
    (void)s;
    qn_state_evict(qn_runner_state(w->runner), o->b % 2 ? 0 : 100000);
}

static void (*const actions[OP_COUNT])(world *, one_seq *, const op *) = {
    [OP_PROMPT] = do_prompt,         [OP_GENERATE] = do_generate, [OP_APPEND] = do_append,
    [OP_DRAFT] = do_draft,           [OP_TRUNCATE] = do_truncate, [OP_FORK] = do_fork,
    [OP_CHECKPOINT] = do_checkpoint, [OP_RESTORE] = do_restore,   [OP_EVICT] = do_evict};
static const char *const names[OP_COUNT] = {"prompt", "generate",   "append",  "draft", "truncate",
                                            "fork",   "checkpoint", "restore", "evict"};

// Lives through the ops; false, with the reason in `why`, if something was wrong.
static bool live(char *why, size_t size, const qn_engine *engine, const op *ops, int n) {
    qn_err err;
    world w = {.engine = engine, .vocab = engine_info(engine).n_vocab};
    const qn_runner_opts opts = {.engine = engine,
                                 .context = CONTEXT,
                                 .rows = 40,
                                 .outs = 1,
                                 .segs = 1,
                                 .n_seqs = SEQS + MARKS,
                                 .positions =
                                     2 * CONTEXT, // sequences and tree get in each other's way
                                 .kept_bytes = 400000};
    ASSERT_OK(qn_runner_create(&w.runner, &opts, &err));
    for (int i = 0; i < SEQS; i++)
        ASSERT_OK(qn_seq_open(&w.seqs[i].seq, qn_runner_state(w.runner), &err));
    for (int i = 0; i < n && !w.why[0]; i++)
        actions[ops[i].kind](&w, &w.seqs[ops[i].a % SEQS], &ops[i]);
    for (int i = 0; i < SEQS && !w.why[0]; i++) { // every sequence once more
        if (w.seqs[i].n == 0 || w.seqs[i].n >= CONTEXT) continue;
        append(&w, &w.seqs[i], 1, (uint32_t)i);
        catch_up(&w, &w.seqs[i], true);
    }
    for (int i = 0; i < SEQS; i++) qn_seq_close(w.seqs[i].seq);
    for (int i = 0; i < MARKS; i++) qn_checkpoint_destroy(w.marks[i].checkpoint);
    qn_state_evict(qn_runner_state(w.runner), 0);
    const qn_state_counts counts = qn_state_get_counts(qn_runner_state(w.runner));
    if (!w.why[0] && (counts.pages_used || counts.slots_used)) give_up(&w, "pages leaked", NULL);
    qn_runner_destroy(w.runner);
    snprintf(why, size, "%s", w.why);
    return !w.why[0];
}

// Leaves out ops while it still fails, then tells what is left.
static void shrink_and_fail(const qn_engine *engine, op *ops, int n, const char *family,
                            uint64_t seed) {
    char why[600] = "", text[1024] = "";
    for (int i = 0; i < n;) {
        op fewer[OPS];
        memcpy(fewer, ops, (size_t)i * sizeof *ops);
        memcpy(fewer + i, ops + i + 1, (size_t)(n - i - 1) * sizeof *ops);
        if (live(why, sizeof why, engine, fewer, n - 1)) {
            i++;
        } else {
            memcpy(ops, fewer, (size_t)(--n) * sizeof *ops);
        }
    }
    live(why, sizeof why, engine, ops, n);
    size_t used = 0;
    for (int i = 0; i < n && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, " %s(%u,%u,%u)",
                                 names[ops[i].kind], ops[i].a, ops[i].b, ops[i].c);
    fail_msg("%s, seed %llu: %s:%s", family, (unsigned long long)seed, why, text);
}

static void whatever_happens_logits_are_fresh(void **state) {
    (void)state;
    static const qn_engine_opts opts[] = {
        QN_INITIALIZER(qn_engine_opts, .n_threads = 1),
        QN_INITIALIZER(qn_engine_opts, .n_threads = 2, .cache_type = QN_CACHE_F16,
                       .plans = QN_PLANS_EXACT),
        QN_INITIALIZER(qn_engine_opts, .n_threads = 1, .cache_type = QN_CACHE_Q8_0,
                       .plans = QN_PLANS_DYNAMIC),
        QN_INITIALIZER(qn_engine_opts, .n_threads = 1, .cache_type = QN_CACHE_Q4_0R)};
    for (int m = 0; m < N_FAMILIES; m++) {
        qn_engine *engine = family_open(families[m], &opts[m % 4]);
        for (uint64_t seed = 0; seed < LIVES / N_FAMILIES + 1; seed++) {
            uint64_t random = seed * 77 + (uint64_t)m;
            op ops[OPS];
            char why[600];
            for (int i = 0; i < OPS; i++)
                ops[i] = (op){.kind = (op_kind)(next_random(&random) % OP_COUNT),
                              .a = next_random(&random) % 1000,
                              .b = next_random(&random) % 1000,
                              .c = next_random(&random) % 1000};
            ops[0].kind = OP_PROMPT;
            if (!live(why, sizeof why, engine, ops, OPS))
                shrink_and_fail(engine, ops, OPS, families[m], seed);
        }
        qn_engine_close(engine);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_happens_logits_are_fresh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
