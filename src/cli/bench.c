#include "cli/bench.h"

#include "cli/folder.h"
#include "cli/progress.h"
#include "cli/terminal.h"
#include "cli/facts.h"

#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>

// --- repeats -------------------------------------------------------------------------------------

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Sorts `x` (n).
static qn_spread spread_of(double *x, int64_t n) {
    qsort(x, (size_t)n, sizeof *x, by_size);
    return (qn_spread){
        .median = n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2, .min = x[0], .max = x[n - 1]};
}

// --- tests ---------------------------------------------------------------------------------------

typedef struct bench {
    const qn_bench_opts *opts;
    qn_session *session;
    qn_batch *batch;       // NULL: one sequence
    bool is_filled;        // the batch has kept `depth` tokens of every row
    qn_snapshot *snapshot; // of the session with `depth` tokens; NULL: depth is 0
    int32_t *ids;          // (context + batch)
    int64_t prompt, tokens, depth, deepest;
    double *rates; // (repeats)
    qn_progress progress;
    int64_t n_done, n_all; // runs of tests
} bench;

static qn_status stopped(const bench *b, qn_err *err) {
    return QN_FAIL(err, STOPPED, "stopped after %lld of %lld runs", (long long)b->n_done,
                   (long long)b->n_all);
}

// A qn_progress_fn, between the steps of a prompt. What is heard after the last one would be lost.
static bool reads_on(void *arg, int64_t done, int64_t total) {
    (void)arg;
    return done >= total || !qn_interrupt_take();
}

// Prefill: at depth 0 with the logits of the last token, as for a prompt; at a depth
// without logits.
static qn_status time_prefill(double *seconds, bench *b, qn_err *err) {
    const float *logits;
    const size_t n = (size_t)b->prompt;
    if (b->snapshot) QN_TRY(qn_session_restore(b->session, b->snapshot, err));
    const double start = qn_now();
    QN_TRY(b->snapshot ? qn_session_commit(b->session, b->ids + b->depth, n, err)
                       : qn_session_prefill(&logits, b->session, b->ids, n, err));
    *seconds = qn_now() - start;
    return QN_OK;
}

// What the rows of a batch gave.
typedef struct tally {
    int64_t first;  // position of a row's first token
    int64_t n_told; // tokens
    int64_t n_begun;
} tally;

static bool count_token(void *arg, const qn_event *event) {
    tally *r = arg;
    r->n_told += event->token >= 0;
    r->n_begun += event->token >= 0 && event->position == r->first;
    return true;
}

// Adds a row for each sequence. They know different tokens, so that each reads keys and values of
// its own.
static qn_status add_rows(bench *b, tally *r, int64_t n_tokens, qn_err *err) {
    const qn_generate_opts generate =
        QN_INIT(qn_generate_opts, .max_tokens = n_tokens, .ignore_end = true);
    const qn_row_opts opts = QN_INIT(qn_row_opts, .generate = &generate, .mark = (size_t)b->depth);
    *r = (tally){.first = b->depth + 1};
    for (int64_t i = 0; i < b->opts->batch; i++)
        QN_TRY(
            qn_batch_add(NULL, b->batch, b->ids + i, (size_t)r->first, &opts, count_token, r, err));
    return QN_OK;
}

static qn_status step_rows(size_t *n_left, bench *b, qn_err *err) {
    QN_TRY(qn_batch_step(n_left, b->batch, err));
    return qn_interrupt_take() ? stopped(b, err) : QN_OK;
}

// Writing with several sequences, a token of each in one step. The steps that read their beginning,
// which the batch keeps, and give their first token are not counted, nor those after one has ended.
static qn_status time_batch(double *seconds, bench *b, qn_err *err) {
    const int64_t n = b->opts->batch;
    size_t n_left = (size_t)n;
    tally r;
    if (!b->is_filled) {
        QN_TRY(add_rows(b, &r, 1, err));
        while (n_left) QN_TRY(step_rows(&n_left, b, err));
    }
    b->is_filled = true;
    QN_TRY(add_rows(b, &r, b->tokens + 1, err));
    QN_TRY(step_rows(&n_left, b, err));
    const qn_batch_counts counts = qn_batch_facts(b->batch);
    if (counts.queued > 0)
        return QN_FAIL(err, LIMIT, "%lld sequences, memory has room for %lld at a time",
                       (long long)n, (long long)counts.rows);
    while (r.n_begun < n) QN_TRY(step_rows(&n_left, b, err));
    const int64_t before = r.n_told;
    const double start = qn_now();
    do QN_TRY(step_rows(&n_left, b, err)); // rows that began before others end before them
    while (n_left == (size_t)n);
    *seconds = (qn_now() - start) * (double)(n * b->tokens) / (double)(r.n_told - before);
    while (n_left) QN_TRY(step_rows(&n_left, b, err));
    return QN_OK;
}

// Writing, one token a step, the best one each time. The first token after cached ones is chosen
// from logits that are already there, so it is not counted.
static qn_status time_decode(double *seconds, bench *b, qn_err *err) {
    int32_t token;
    if (b->batch) return time_batch(seconds, b, err);
    if (b->snapshot) {
        QN_TRY(qn_session_restore(b->session, b->snapshot, err));
        QN_TRY(qn_session_step(&token, b->session, NULL, err));
    } else {
        QN_TRY(qn_session_set_prompt(b->session, b->ids, 1, err));
    }
    const double start = qn_now();
    for (int64_t i = 0; i < b->tokens; i++) {
        QN_TRY(qn_session_step(&token, b->session, NULL, err));
        if (qn_interrupt_take()) return stopped(b, err);
    }
    *seconds = qn_now() - start;
    return QN_OK;
}

// A step of a test, for what it costs: reading is one step, whatever its chunks; writing many,
// whose cached tokens are counted in the middle.
static qn_step_size prefill_step(const bench *b) {
    return QN_INIT(qn_step_size, .rows = b->prompt, .seqs = 1, .depth = b->depth,
                   .outs = b->depth == 0);
}

static qn_step_size decode_step(const bench *b) {
    const int64_t batch = b->opts->batch;
    return QN_INIT(qn_step_size, .rows = batch, .seqs = batch,
                   .depth = b->depth + (b->tokens + 1) / 2, .outs = batch);
}

static const struct {
    const char *name;
    qn_status (*time)(double *seconds, bench *b, qn_err *err);
    qn_step_size (*step)(const bench *b);
    size_t n_offset;  // of the number of tokens
    bool has_batches; // runs with several sequences
} tests[] = {
    {"prefill", time_prefill, prefill_step, offsetof(bench, prompt), false},
    {"decode", time_decode, decode_step, offsetof(bench, tokens), true},
};
enum { N_TESTS = sizeof tests / sizeof *tests };

static qn_status run_test(qn_bench_row *out, bench *b, size_t test, qn_err *err) {
    const int64_t n = *(const int64_t *)(const void *)((const char *)b + tests[test].n_offset);
    const int64_t batch = tests[test].has_batches ? b->opts->batch : 1;
    for (int64_t i = -1; i < b->opts->repeats; i++) {
        double seconds;
        b->opts->tracer->is_paused = i < 0;
        const qn_status status = tests[test].time(&seconds, b, err);
        if (status) return status == QN_STOPPED ? stopped(b, err) : status;
        if (i >= 0) b->rates[i] = seconds > 0 ? (double)(n * batch) / seconds : 0;
        if (!qn_progress_show(&b->progress, ++b->n_done, b->n_all)) return stopped(b, err);
    }
    const qn_step_size step = tests[test].step(b);
    *out = (qn_bench_row){.test = tests[test].name,
                          .n = n,
                          .depth = b->depth,
                          .batch = batch,
                          .tps = spread_of(b->rates, b->opts->repeats),
                          .cost = qn_cost_facts(b->opts->engine, &step),
                          .step_rows = (double)step.rows};
    return QN_OK;
}

static qn_status run_depth(qn_bench_row *out, bench *b, qn_err *err) {
    const float *logits;
    qn_status status = QN_OK;
    b->opts->tracer->is_paused = true;
    b->is_filled = false;
    if (b->depth) {
        status = qn_session_prefill(&logits, b->session, b->ids, (size_t)b->depth, err);
        if (status) return status == QN_STOPPED ? stopped(b, err) : status;
        QN_TRY(qn_session_checkpoint(&b->snapshot, b->session, err));
    }
    for (size_t i = 0; i < N_TESTS && !status; i++) status = run_test(&out[i], b, i, err);
    qn_snapshot_destroy(b->snapshot);
    b->snapshot = NULL;
    return status;
}

// --- sizes ---------------------------------------------------------------------------------------

// What was asked for, or a usual number, cut to the room after the deepest.
static int64_t choose_size(int64_t asked, int64_t usual, int64_t room) {
    return asked ? asked : usual < room ? usual : qn_max(room, 1);
}

// Sets the sizes of the tests; *context is what the session needs.
static qn_status choose_sizes(int64_t *context, bench *b, qn_err *err) {
    enum { PROMPT = 512, TOKENS = 64 };
    const qn_bench_opts *o = b->opts;
    const int64_t max = qn_engine_facts(o->engine).context;
    for (size_t i = 0; i < o->n_depths; i++) b->deepest = qn_max(b->deepest, o->depths[i]);
    const int64_t deepest = b->deepest;
    b->prompt = choose_size(o->prompt, PROMPT, max - deepest);
    b->tokens = choose_size(o->tokens, TOKENS, max - deepest - (o->batch > 1 ? 2 : 1));
    // Before the first token that is counted there is one, with several sequences two.
    *context = deepest + qn_max(b->prompt, b->tokens + (o->batch > 1 ? 2 : 1));
    if (*context <= max) return QN_OK;
    return QN_FAIL(err, LIMIT,
                   "a depth of %lld and tests of %lld and %lld tokens need a context of %lld, the "
                   "model has %lld",
                   (long long)deepest, (long long)b->prompt, (long long)b->tokens,
                   (long long)*context, (long long)max);
}

// Ids in a fixed random order.
static void fill_ids(int32_t *ids, int64_t n, int64_t n_vocab) {
    uint64_t state = 1;
    for (int64_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        ids[i] = (int32_t)((state >> 33) % (uint64_t)n_vocab);
    }
}

// What comes before the test is kept from one run to the next; without a depth nothing is.
static qn_status open_batch(bench *b, const qn_session_opts *session, qn_err *err) {
    if (b->opts->batch == 1) return QN_OK;
    const qn_batch_opts opts = QN_INIT(qn_batch_opts, .context = session->context,
                                       .rows = b->opts->batch, .kept = b->deepest ? INT64_MAX : -1,
                                       .trace = session->trace, .trace_arg = session->trace_arg);
    return qn_batch_create(&b->batch, b->opts->engine, &opts, err);
}

static qn_status open_bench(bench *b, qn_err *err) {
    const qn_bench_opts *o = b->opts;
    qn_session_opts opts =
        QN_INIT(qn_session_opts, .kept = -1, .sessions = 2, .progress = reads_on);
    QN_TRY(choose_sizes(&opts.context, b, err));
    qn_tracer_attach(o->tracer, &opts);
    const int64_t n_ids = opts.context + o->batch;
    b->ids = qn_alloc((size_t)n_ids, sizeof *b->ids);
    b->rates = qn_alloc((size_t)o->repeats, sizeof *b->rates);
    if (!b->ids || !b->rates) return QN_NOMEM(err, "a benchmark");
    fill_ids(b->ids, n_ids, qn_engine_facts(o->engine).n_vocab);
    b->n_all = (int64_t)o->n_depths * N_TESTS * (o->repeats + 1);
    b->progress = (qn_progress){.what = "measuring", .unit = "runs"};
    QN_TRY(qn_session_create(&b->session, o->engine, &opts, err));
    return open_batch(b, &opts, err);
}

static void close_bench(bench *b) {
    qn_batch_destroy(b->batch);
    qn_session_destroy(b->session);
    qn_free(b->ids);
    qn_free(b->rates);
}

qn_status qn_bench_run(qn_bench_row **out, size_t *n, const qn_bench_opts *opts, qn_err *err) {
    bench b = {.opts = opts};
    qn_bench_row *rows = qn_alloc(opts->n_depths * N_TESTS, sizeof *rows);
    qn_status status = rows ? open_bench(&b, err) : QN_NOMEM(err, "a benchmark");
    if (!status && !qn_progress_show(&b.progress, 0, b.n_all)) status = stopped(&b, err);
    for (size_t i = 0; i < opts->n_depths && !status; i++) {
        b.depth = opts->depths[i];
        status = run_depth(rows + i * N_TESTS, &b, err);
    }
    qn_progress_end(&b.progress);
    close_bench(&b);
    if (status) {
        qn_free(rows);
        return status;
    }
    *out = rows;
    *n = opts->n_depths * N_TESTS;
    return QN_OK;
}

const char *qn_limits_owner(char to[QN_LIMITS_OWNER], const qn_limits *l) {
    if (l->n_threads == 0)
        snprintf(to, QN_LIMITS_OWNER, "%s", l->level);
    else
        snprintf(to, QN_LIMITS_OWNER, "this machine: %d thread%s, %s", l->n_threads,
                 l->n_threads == 1 ? "" : "s", l->level);
    return to;
}

void qn_bench_set_limits(qn_bench_row *rows, size_t n, const qn_limits *limits) {
    for (size_t i = 0; i < n; i++) {
        const qn_cost *cost = &rows[i].cost;
        const double reading = (cost->weight_bytes + cost->state_bytes) / (limits->read_gbs * 1e9);
        const double matrix = limits->f16_tflops * 1e12; // of a GPU, for both
        const double float_rate = matrix > 0 ? matrix : limits->f32_gflops * 1e9;
        const double int_rate = matrix > 0 ? matrix : limits->int8_tops * 1e12;
        const double floats = cost->float_ops > 0 ? cost->float_ops / float_rate : 0;
        const bool is_known = cost->int_ops == 0 || int_rate > 0;
        const double ints = cost->int_ops > 0 ? cost->int_ops / int_rate : 0;
        const double min = reading > ints + floats ? reading : ints + floats;
        rows[i].limit_tps = is_known && min > 0 ? rows[i].step_rows / min : 0;
    }
}

// --- opening -------------------------------------------------------------------------------------

static qn_status time_open(double *seconds, int64_t *cached, const char *path,
                           const qn_engine_args *args, qn_err *err) {
    qn_engine_opts opts = qn_open_engine_opts(&(qn_open_opts){.args = args, .is_alone = true});
    qn_engine *engine = NULL;
    qn_session *session = NULL;
    qn_lora_list loras;
    QN_TRY(qn_loras_parse(&loras, &args->loras, err));
    opts.adapters = loras.items;
    opts.n_adapters = loras.n;
    const double start = qn_now();
    qn_status status = qn_engine_open(&engine, path, &opts, err);
    if (!status)
        status =
            qn_session_create(&session, engine, &QN_INIT(qn_session_opts, .shrink = true), err);
    *seconds = qn_now() - start;
    if (status)
        qn_err_name(err, status, path);
    else
        *cached = qn_engine_facts(engine).cached_bytes;
    qn_session_destroy(session);
    qn_engine_close(engine);
    qn_free(loras.items);
    return status;
}

static qn_status time_opens(qn_spread *out, int64_t *cached, const qn_bench_open_opts *opts,
                            const qn_engine_args *args, qn_err *err) {
    double *seconds = qn_alloc((size_t)opts->repeats, sizeof *seconds);
    qn_status status = seconds ? QN_OK : QN_NOMEM(err, "a benchmark");
    for (int64_t i = 0; i < opts->repeats && !status; i++) {
        status = time_open(&seconds[i], cached, opts->path, args, err);
        if (!status && qn_interrupt_take())
            status = QN_FAIL(err, STOPPED, "stopped after %lld of %lld openings", (long long)i + 1,
                             (long long)opts->repeats);
    }
    if (!status) *out = spread_of(seconds, opts->repeats);
    qn_free(seconds);
    return status;
}

qn_status qn_bench_open(qn_bench_opening *out, const qn_bench_open_opts *opts, qn_err *err) {
    qn_bench_opening result = {0};
    qn_engine_args args = *opts->args;
    char *temporary = NULL;
    double first;
    qn_status status = QN_OK;
    args.cache_dir = NULL;
    QN_TRY(time_opens(&result.cold, &result.cached_bytes, opts, &args, err));
    args.cache_dir = qn_open_engine_opts(&(qn_open_opts){.args = opts->args}).cache_dir;
    if (!args.cache_dir) {
        QN_TRY(qn_folder_make_temporary(&temporary, err));
        args.cache_dir = temporary;
    }
    QN_TRY_TO(done, time_open(&first, &result.cached_bytes, opts->path, &args, err)); // fills it
    QN_TRY_TO(done, time_opens(&result.warm, &result.cached_bytes, opts, &args, err));
    *out = result;

done:
    if (temporary) qn_folder_remove(temporary);
    qn_free(temporary);
    return status;
}
