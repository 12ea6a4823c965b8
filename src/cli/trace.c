#include "cli/trace.h"

#include "cli/out.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const phase_names[] = {
    [QN_PHASE_PREFILL] = "prefill", [QN_PHASE_DECODE] = "decode"};

static qn_bench_phase phase_of(int64_t rows) {
    return rows > 1 ? QN_PHASE_PREFILL : QN_PHASE_DECODE;
}

// --- the file ------------------------------------------------------------------------------------
// Events as the "Trace Event Format" has them: "X" has a beginning and a duration in microseconds.
// Calls may overlap, and events of one thread may not, so calls are laid in as many lanes, shown as
// threads, as are needed; lane 0 has the steps.

#define FILE_BEGIN "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n"

static const qn_newfile_kind trace_kind = {.name = "a trace that Quern wrote",
                                           .marks = {"{\"displayTimeUnit\": \"ms\""}};

QN_PRINTF(2, 3) static void put(qn_tracer *t, const char *fmt, ...) {
    enum { LONGEST = 1024 };
    char line[LONGEST];
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    if (t->status || !t->file) return;
    t->status = n >= 0 && n < LONGEST ? qn_newfile_write(t->file, line, (size_t)n, &t->err)
                                      : QN_FAIL(&t->err, LIMIT, "a trace line of %d bytes", n);
}

// A name for a JSON string; borrowed from `to`.
static const char *plain(char to[128], const char *name) {
    snprintf(to, 128, "%s", name);
    for (char *c = to; *c; c++) {
        if ((unsigned char)*c < 0x20 || (unsigned char)*c > 0x7e || *c == '"' || *c == '\\')
            *c = '_';
    }
    return to;
}

static void put_lane_name(qn_tracer *t, int lane) {
    char name[32];
    snprintf(name, sizeof name, lane ? "calls %d" : "steps", lane);
    put(t,
        ",\n{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": 1, \"tid\": %d, "
        "\"args\": {\"name\": \"%s\"}}",
        lane, name);
}

static int lane_of(qn_tracer *t, const qn_trace_event *e) {
    int lane = 0;
    while (lane + 1 < QN_TRACE_LANES && t->lanes[lane] > e->begin) lane++;
    if (t->lanes[lane] == 0) put_lane_name(t, lane + 1);
    t->lanes[lane] = e->end > 0 ? e->end : 1;
    return lane + 1;
}

static double micro(int64_t ns) { return (double)ns * 1e-3; }

static void put_call(qn_tracer *t, const qn_trace_event *e) {
    char op[128], kernel[128];
    const int lane = lane_of(t, e);
    put(t,
        ",\n{\"ph\": \"X\", \"name\": \"%s\", \"cat\": \"%s\", \"pid\": 1, \"tid\": %d, \"ts\": "
        "%.3f, \"dur\": %.3f, \"args\": {\"kernel\": \"%s\", \"layer\": %d, \"step\": %lld, "
        "\"rows\": %lld, \"bytes\": %lld}}",
        plain(op, e->op), phase_names[phase_of(e->rows)], lane, micro(e->begin),
        micro(e->end - e->begin), plain(kernel, e->kernel), (int)e->layer, (long long)e->step,
        (long long)e->rows, (long long)e->bytes);
}

static void put_step(qn_tracer *t) {
    const char *name = phase_names[phase_of(t->step.rows)];
    put(t,
        ",\n{\"ph\": \"X\", \"name\": \"%s\", \"cat\": \"%s\", \"pid\": 1, \"tid\": 0, \"ts\": "
        "%.3f, \"dur\": %.3f, \"args\": {\"step\": %lld, \"rows\": %lld}}",
        name, name, micro(t->step.begin), micro(t->step.end - t->step.begin),
        (long long)t->step.number, (long long)t->step.rows);
}

// --- events --------------------------------------------------------------------------------------

static qn_trace_row *find_row(qn_trace_phase *phase, const qn_trace_event *e) {
    for (size_t i = 0; i < phase->n_rows; i++) {
        qn_trace_row *row = &phase->rows[i];
        if (strcmp(row->kernel, e->kernel) == 0 && strcmp(row->op, e->op) == 0) return row;
    }
    if (phase->n_rows == QN_TRACE_ROWS) return &phase->rows[QN_TRACE_ROWS - 1];
    const bool is_last = phase->n_rows + 1 == QN_TRACE_ROWS;
    qn_trace_row *row = &phase->rows[phase->n_rows++];
    *row = (qn_trace_row){.op = is_last ? "others" : e->op, .kernel = is_last ? "" : e->kernel};
    return row;
}

static void end_step(qn_tracer *t) {
    if (t->step.number < 0) return;
    qn_trace_phase *phase = &t->phases[phase_of(t->step.rows)];
    phase->steps++;
    phase->tokens += t->step.rows;
    phase->time += t->step.end - t->step.begin;
    put_step(t);
    t->step.number = -1;
}

// A qn_trace_fn.
static void take_event(void *tracer, const qn_trace_event *e) {
    qn_tracer *t = tracer;
    if (t->is_paused) {
        end_step(t);
        return;
    }
    if (e->step != t->step.number) {
        end_step(t);
        t->step.number = e->step;
        t->step.rows = e->rows;
        t->step.begin = e->begin;
        t->step.end = e->end;
    }
    if (e->begin < t->step.begin) t->step.begin = e->begin;
    if (e->end > t->step.end) t->step.end = e->end;
    qn_trace_row *row = find_row(&t->phases[phase_of(e->rows)], e);
    row->calls++;
    row->time += e->end - e->begin;
    row->bytes += e->bytes;
    put_call(t, e);
}

// --- the table -----------------------------------------------------------------------------------

static int by_time(const void *a, const void *b) {
    const qn_trace_row *x = a, *y = b;
    return (y->time > x->time) - (y->time < x->time);
}

static void print_row(const qn_trace_row *row, int64_t all) {
    const double ms = (double)row->time * 1e-6;
    fprintf(stderr, "  %-14s %-28s %8lld %11.3f %6.1f %% %10.2f", row->op, row->kernel,
            (long long)row->calls, ms, all > 0 ? (double)row->time / (double)all * 100 : 0,
            row->calls ? micro(row->time) / (double)row->calls : 0);
    if (row->bytes > 0 && row->time > 0)
        fprintf(stderr, " %8.2f\n", (double)row->bytes / (double)row->time);
    else
        fprintf(stderr, " %8s\n", "-");
}

static void print_phase(qn_trace_phase *phase, const char *name) {
    if (phase->steps == 0) return;
    qn_trace_row all = {.op = "all", .kernel = ""};
    for (size_t i = 0; i < phase->n_rows; i++) {
        all.calls += phase->rows[i].calls;
        all.time += phase->rows[i].time;
        all.bytes += phase->rows[i].bytes;
    }
    qsort(phase->rows, phase->n_rows, sizeof *phase->rows, by_time);
    fprintf(stderr, "%s: %lld token%s in %lld step%s, %.3f ms, %.1f tokens/s\n", name,
            (long long)phase->tokens, phase->tokens == 1 ? "" : "s", (long long)phase->steps,
            phase->steps == 1 ? "" : "s", (double)phase->time * 1e-6,
            phase->time > 0 ? (double)phase->tokens / ((double)phase->time * 1e-9) : 0);
    fprintf(stderr, "  %-14s %-28s %8s %11s %8s %10s %8s\n", "op", "kernel", "calls", "total ms",
            "share", "average us", "GB/s");
    for (size_t i = 0; i < phase->n_rows; i++) print_row(&phase->rows[i], all.time);
    print_row(&all, all.time);
}

// --- a session -----------------------------------------------------------------------------------

qn_status qn_trace_args_check(const qn_trace_args *args, qn_err *err) {
    return qn_outfile_check("--trace", args->file, err);
}

qn_status qn_tracer_init(qn_tracer *out, const qn_trace_args *args, qn_err *err) {
    *out = (qn_tracer){.args = *args, .step.number = -1};
    if (!args->file) return QN_OK;
    QN_TRY(qn_newfile_check(args->file, &trace_kind, err));
    QN_TRY(qn_newfile_create(&out->file, args->file, 0, err));
    put(out, FILE_BEGIN "{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": 1, "
                        "\"args\": {\"name\": \"quern\"}}");
    put_lane_name(out, 0);
    return QN_OK;
}

void qn_tracer_attach(qn_tracer *tracer, qn_session_opts *opts) {
    if (!tracer->file && !tracer->args.profile) return;
    opts->trace = take_event;
    opts->trace_arg = tracer;
}

qn_status qn_tracer_finish(qn_tracer *t, qn_err *err) {
    end_step(t);
    put(t, "\n]}\n");
    if (t->status) {
        if (err) *err = t->err;
        return t->status;
    }
    if (t->file) QN_TRY(qn_newfile_commit(t->file, err));
    for (int i = 0; t->args.profile && i < QN_PHASE_COUNT; i++)
        print_phase(&t->phases[i], phase_names[i]);
    return QN_OK;
}

void qn_tracer_deinit(qn_tracer *tracer) {
    qn_newfile_destroy(tracer->file);
    *tracer = (qn_tracer){0};
}
