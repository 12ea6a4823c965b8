// quern bench: how fast a model reads and writes on this machine.
#include "cli/bench.h"
#include "cli/expert_report.h"
#include "cli/inspect.h"
#include "cli/out.h"
#include "cli/terminal.h"
#include "cli/facts.h"

#include <string.h>
#include <sys/resource.h>

typedef struct bench_options {
    int64_t prompt, tokens, batch, repeats;
    qn_ints depths;
    bool open, limits, json;
    const char *svg;
    qn_trace_args trace;
    qn_expert_args experts;
    qn_engine_args engine;
} bench_options;

static bool wants_limits(const bench_options *o) { return o->limits || o->svg; }

static qn_status check_bench(const qn_call *call, qn_err *err) {
    const bench_options *o = call->options;
    if (call->n_args == 0 && (!o->limits || o->svg || o->open))
        return QN_FAIL(err, ARGUMENT,
                       "bench: MODEL is missing; without it, only --limits can be measured: "
                       "quern bench MODEL, or quern bench --limits");
    QN_TRY(qn_outfile_check("--svg", o->svg, err));
    QN_TRY(qn_trace_args_check(&o->trace, err));
    QN_TRY(qn_expert_args_check(&o->experts, &o->engine, err));
    return qn_engine_args_check(&o->engine, err);
}

// Of the threads that a model is run with, and of one where there is no model.
typedef struct limits_pair {
    qn_limits all, one;
    bool has_one;
} limits_pair;

static bool is_on_gpu(const char *devices) { return devices && strstr(devices, "cuda"); }

static qn_status check_limits(const char *devices, qn_err *err) {
    if (is_on_gpu(devices) && strchr(devices, ','))
        return QN_FAIL(err, UNSUPPORTED, "--limits are those of one device, not of %s", devices);
    return QN_OK;
}

// `devices`: as --device has them; a GPU's limits are its own, those of others the machine's.
static qn_status measure_limits(limits_pair *out, const char *devices, int n_threads,
                                bool wants_one, qn_err *err) {
    const bool has_gpu = is_on_gpu(devices);
    out->all = QN_INIT(qn_limits);
    QN_TRY(check_limits(devices, err));
    qn_print_waiting("measuring the limits of this machine");
    qn_status status = has_gpu ? qn_device_limits(&out->all, devices, n_threads, err)
                               : qn_machine_limits(&out->all, n_threads, err);
    wants_one = wants_one && !has_gpu;
    out->one = out->all;
    if (!status && wants_one && out->all.n_threads > 1)
        status = qn_machine_limits(&out->one, 1, err);
    out->has_one = wants_one;
    qn_print_waited();
    return status;
}

// All that is printed.
typedef struct report {
    const char *path;
    qn_engine_info info; // of an engine that is open
    const char *numerics;
    const qn_bench_row *rows; // (n)
    size_t n;
    const qn_bench_opening *opening; // NULL: not measured
    const limits_pair *limits;       // NULL: not measured
    double rss_mib;
} report;

static double peak_mib(void) {
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (double)usage.ru_maxrss / 1024 : 0;
}

// --- as text ---

// The speed of the same test at the first depth.
static double first_tps(const report *r, size_t i) {
    for (size_t k = 0; k < i; k++) {
        if (strcmp(r->rows[k].test, r->rows[i].test) == 0) return r->rows[k].tps.median;
    }
    return r->rows[i].tps.median;
}

static void print_spread(const char *name, const qn_spread *s) {
    printf("%-10s %.3f s (%.3f to %.3f)\n", name, s->median, s->min, s->max);
}

static void print_limit(const char *name, double all, double one, const char *unit) {
    if (all <= 0) return; // there is no instruction for it
    printf("%-10s %10.4g %s", name, all, unit);
    if (one > 0) printf(" (%.4g with one)", one);
    putchar('\n');
}

static void print_limits(const limits_pair *l) {
    char owner[QN_LIMITS_OWNER];
    printf("limits of %s\n", qn_limits_owner(owner, &l->all));
    const qn_limits *one = l->has_one ? &l->one : NULL;
    print_limit("read", l->all.read_gbs, one ? one->read_gbs : 0, "GB/s");
    print_limit("int8", l->all.int8_tops, one ? one->int8_tops : 0, "TOP/s");
    print_limit("f32", l->all.f32_gflops, one ? one->f32_gflops : 0, "GFLOP/s");
    print_limit("f16", l->all.f16_tflops, 0, "TFLOP/s");
}

static void print_row(const report *r, size_t i) {
    const qn_bench_row *row = &r->rows[i];
    printf("%-8s %7lld %7lld %6lld %11.1f %11.1f %11.1f", row->test, (long long)row->n,
           (long long)row->depth, (long long)row->batch, row->tps.median, row->tps.min,
           row->tps.max);
    if (r->n > 2) printf(" %7.1f %%", row->tps.median / first_tps(r, i) * 100);
    if (row->limit_tps > 0)
        printf(" %10.1f %6.1f %%", row->limit_tps, row->tps.median / row->limit_tps * 100);
    putchar('\n');
}

// Limits are those of reading from memory, and of a machine that does nothing else.
static void print_excess(const report *r) {
    bool is_above = false;
    for (size_t i = 0; i < r->n; i++)
        is_above |= r->rows[i].limit_tps > 0 && r->rows[i].tps.median > r->rows[i].limit_tps;
    if (is_above)
        printf("A share above 100 %%: weights that fit in caches are read faster than from "
               "memory,\nor other programs ran while the limits were measured.\n\n");
}

static void print_report(const report *r) {
    char bytes[24], cached[24];
    qn_shown clean; // the name may be anything
    printf("%s: %s, %s of weights\n", qn_clean(&clean, r->path), r->info.architecture,
           qn_bytes_text(bytes, r->info.weight_bytes));
    printf("%d thread%s, %s, numerics %s, KV cache %s\n\n", r->info.n_threads,
           r->info.n_threads == 1 ? "" : "s", r->info.device, r->numerics, r->info.cache_type);
    printf("%-8s %7s %7s %6s %11s %11s %11s%s%s\n", "test", "tokens", "depth", "batch", "tokens/s",
           "min", "max", r->n > 2 ? "  of first" : "", r->limits ? "      limit    share" : "");
    for (size_t i = 0; i < r->n; i++) print_row(r, i);
    putchar('\n');
    print_excess(r);
    if (r->limits) {
        print_limits(r->limits);
        putchar('\n');
    }
    if (r->opening) {
        print_spread("open cold", &r->opening->cold);
        print_spread("open warm", &r->opening->warm);
        printf("%-10s %s of the weights came from the cache folder\n", "",
               qn_bytes_text(cached, r->opening->cached_bytes));
    }
    printf("%-10s %.1f MiB at most\n", "memory", r->rss_mib);
}

// --- as JSON ---

// A number, or null where it is unknown.
static json_t *known(double x) { return x > 0 ? qn_json_real(x) : json_null(); }

static json_t *row_json(const qn_bench_row *row) {
    const double share = row->limit_tps > 0 ? row->tps.median / row->limit_tps : 0;
    const qn_cost *cost = &row->cost;
    json_t *step = json_pack("{s:f, s:f, s:f, s:f, s:f}", "rows", row->step_rows, "weight_bytes",
                             cost->weight_bytes, "state_bytes", cost->state_bytes, "int_ops",
                             cost->int_ops, "float_ops", cost->float_ops);
    return json_pack("{s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:o, s:o, s:o}", "test", row->test, "n",
                     (json_int_t)row->n, "depth", (json_int_t)row->depth, "batch",
                     (json_int_t)row->batch, "tps", row->tps.median, "tps_min", row->tps.min,
                     "tps_max", row->tps.max, "limit_tps", known(row->limit_tps), "share",
                     known(share), "step", step);
}

static json_t *limit_json(const qn_limits *l) {
    json_t *root = json_pack("{s:i, s:o, s:o, s:o}", "threads", l->n_threads, "read_gbs",
                             qn_json_real(l->read_gbs), "int8_tops", known(l->int8_tops),
                             "f32_gflops", known(l->f32_gflops));
    if (l->f16_tflops > 0) qn_json_put(&root, "f16_tflops", qn_json_real(l->f16_tflops));
    return root;
}

static json_t *limits_json(const limits_pair *l) {
    json_t *root = limit_json(&l->all);
    qn_json_put(&root, "level", json_string(l->all.level));
    if (l->has_one) qn_json_put(&root, "one_thread", limit_json(&l->one));
    return root;
}

static json_t *opening_json(const qn_bench_opening *o) {
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:I}", "cold_s", o->cold.median, "cold_s_min",
                     o->cold.min, "cold_s_max", o->cold.max, "warm_s", o->warm.median, "warm_s_min",
                     o->warm.min, "warm_s_max", o->warm.max, "cached_bytes",
                     (json_int_t)o->cached_bytes);
}

static qn_status print_json(const report *r, qn_err *err) {
    json_t *rows = json_array();
    for (size_t i = 0; i < r->n; i++) qn_json_push(&rows, row_json(&r->rows[i]));
    json_t *root = json_pack(
        "{s:o, s:s, s:i, s:s, s:s, s:s, s:o, s:o, s:f}", "model",
        qn_json_string(r->path, strlen(r->path)), "architecture", r->info.architecture, "threads",
        r->info.n_threads, "device", r->info.device, "numerics", r->numerics, "cache_type",
        r->info.cache_type, "limits", r->limits ? limits_json(r->limits) : json_null(), "results",
        rows, "rss_mib", r->rss_mib);
    if (r->opening) qn_json_put(&root, "open", opening_json(r->opening));
    return qn_stdout_json(root, 0, err);
}

// --- the command ---

static qn_status save_picture(const report *r, const char *path, qn_err *err) {
    const qn_roofline roofline = {
        .path = r->path, .limits = &r->limits->all, .rows = r->rows, .n = r->n};
    char *text;
    QN_TRY(qn_roofline_draw(&text, &roofline, err));
    const qn_status status =
        qn_outfile_save(path, &qn_kind_svg, &(qn_bytes){text, strlen(text)}, 1, err);
    qn_free(text);
    return status;
}

static qn_status tell(const report *r, const bench_options *o, qn_err *err) {
    if (o->svg) QN_TRY(save_picture(r, o->svg, err));
    if (o->json) return print_json(r, err);
    print_report(r);
    return QN_OK;
}

// Limits come last: the memory that they take is none of the model's.
static qn_status measure(const char *path, const bench_options *o, qn_tracer *tracer,
                         const qn_bench_opening *opening, qn_err *err) {
    static const int64_t no_depth[] = {0};
    enum { REPEATS = 5 };
    qn_loaded loaded;
    qn_bench_row *rows = NULL;
    size_t n = 0;
    limits_pair limits = {0};
    qn_status status = QN_OK;
    QN_TRY(qn_cli_open(&loaded, path, &(qn_open_opts){.args = &o->engine}, err));
    const qn_bench_opts opts = {.engine = loaded.engine,
                                .prompt = o->prompt,
                                .tokens = o->tokens,
                                .depths = o->depths.n ? o->depths.items : no_depth,
                                .n_depths = o->depths.n ? o->depths.n : 1,
                                .batch = o->batch ? o->batch : 1,
                                .repeats = o->repeats ? o->repeats : REPEATS,
                                .tracer = tracer};
    if (wants_limits(o)) QN_TRY_TO(done, check_limits(qn_engine_facts(loaded.engine).device, err));
    QN_TRY_TO(done, qn_bench_run(&rows, &n, &opts, err));
    report r = {
        .path = path,
        .info = qn_engine_facts(loaded.engine),
        .numerics =
            qn_numerics_words[o->engine.numerics ? o->engine.numerics - 1 : QN_NUMERICS_EXACT],
        .rows = rows,
        .n = n,
        .opening = opening,
        .rss_mib = peak_mib()};
    if (wants_limits(o)) {
        QN_TRY_TO(done, measure_limits(&limits, r.info.device, r.info.n_threads, false, err));
        qn_bench_set_limits(rows, n, &limits.all);
        r.limits = &limits;
    }
    QN_TRY_TO(done, tell(&r, o, err));
    status = qn_expert_report(&o->experts, loaded.engine, err);

done:
    if (status == QN_LIMIT) qn_err_name(err, status, path);
    qn_free(rows);
    qn_cli_close(&loaded);
    return status;
}

// Without a model.
static qn_status tell_limits(const bench_options *o, qn_err *err) {
    limits_pair limits = {0};
    QN_TRY(measure_limits(&limits, o->engine.device, (int)o->engine.threads, true, err));
    if (!o->json) {
        print_limits(&limits);
        return qn_stdout_check(err);
    }
    return qn_stdout_json(json_pack("{s:o}", "limits", limits_json(&limits)), 0, err);
}

static qn_status run_bench(const qn_call *call, qn_err *err) {
    enum { REPEATS = 3 };
    const bench_options *o = call->options;
    if (call->n_args == 0) return tell_limits(o, err);
    const qn_bench_open_opts open_opts = {
        .path = call->args[0], .args = &o->engine, .repeats = o->repeats ? o->repeats : REPEATS};
    qn_bench_opening opening = {0};
    qn_tracer tracer = {0};
    qn_status status = QN_OK;
    qn_interrupt_hold();
    QN_TRY(qn_tracer_init(&tracer, &o->trace, err));
    if (o->open) QN_TRY_TO(done, qn_bench_open(&opening, &open_opts, err));
    QN_TRY_TO(done, measure(call->args[0], o, &tracer, o->open ? &opening : NULL, err));
    QN_TRY_TO(done, qn_stdout_check(err));
    status = qn_tracer_finish(&tracer, err);

done:
    qn_tracer_deinit(&tracer);
    return status;
}

static const qn_option bench_table[] = {
    {.name = "--prompt",
     .alias = "-p",
     .arg = "N",
     .help = "prefill test: prompt tokens (default 512, or what fits in the context)",
     .kind = QN_OPTION_INT,
     .offset = offsetof(bench_options, prompt),
     .min = 1,
     .max = INT32_MAX},
    {.name = "--tokens",
     .alias = "-n",
     .arg = "N",
     .help =
         "decode test: tokens generated, one per step (default 64, or what fits in the context)",
     .kind = QN_OPTION_INT,
     .offset = offsetof(bench_options, tokens),
     .min = 1,
     .max = INT32_MAX},
    {.name = "--depth",
     .alias = "-d",
     .arg = "DEPTH",
     .help = "context depth: tokens already in the KV cache (default 0); a list with commas: "
             "0,512,4096",
     .kind = QN_OPTION_INTS,
     .offset = offsetof(bench_options, depths),
     .min = 0,
     .max = INT32_MAX},
    {.name = "--batch",
     .alias = "-b",
     .arg = "BATCH",
     .help = "sequences that decode together (default 1); speeds are those of all of them",
     .kind = QN_OPTION_INT,
     .offset = offsetof(bench_options, batch),
     .min = 1,
     .max = 4096},
    {.name = "--repeats",
     .alias = "-r",
     .arg = "REPEATS",
     .help = "repetitions per test, after one warm-up (default 5; openings 3)",
     .kind = QN_OPTION_INT,
     .offset = offsetof(bench_options, repeats),
     .min = 1,
     .max = 1000},
    {.name = "--open",
     .help =
         "also measure loading: seconds until the first step could start, cold (without a cache "
         "folder) and warm (from --cache-dir, or from a temporary folder filled beforehand)",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(bench_options, open)},
    {.name = "--limits",
     .help = "also measure the machine's memory and compute limits, and print each speed as a "
             "share of them; without MODEL, the limits alone",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(bench_options, limits)},
    {.name = "--svg",
     .arg = "OUT.svg",
     .help = "write a roofline plot of the speeds to OUT.svg",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(bench_options, svg)},
    {.name = "--json",
     .help = "print one JSON object",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(bench_options, json)},
    QN_OPTIONS_TRACE(bench_options),
    QN_OPTIONS_EXPERT_REPORT(bench_options),
    QN_OPTIONS_ENGINE(bench_options),
};

const qn_command qn_cmd_bench = {
    .name = "bench",
    .args = "[MODEL]",
    .summary = "Benchmarks a model on this machine: prefill and decode.",
    .notes =
        "Speeds are tokens per second: the median of the repetitions, the lowest and the highest. "
        "The prompt is random; decoding is greedy.  JSON: {\"model\", \"threads\", \"limits\", "
        "\"results\": [{\"test\", \"n\", \"depth\", \"batch\", \"tps\", \"tps_min\", \"tps_max\", "
        "\"limit_tps\", \"share\", \"step\"}], \"rss_mib\", ...}; unknown values are null.",
    .options = bench_table,
    .n_options = sizeof bench_table / sizeof *bench_table,
    .options_size = sizeof(bench_options),
    .min_args = 0,
    .max_args = 1,
    .check = check_bench,
    .run = run_bench,
};
