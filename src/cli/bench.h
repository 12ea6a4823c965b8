// Measuring speed: how many tokens a second are read and written, and how long opening takes.
#ifndef QN_CLI_BENCH_H
#define QN_CLI_BENCH_H

#include "cli/open_model.h"
#include "cli/trace.h"

// Over the repeats.
typedef struct qn_spread {
    double median, min, max;
} qn_spread;

typedef struct qn_bench_row {
    const char *test; // "prefill" or "decode"
    int64_t n, depth; // tokens of each sequence; tokens that are cached before them
    int64_t batch;    // sequences
    qn_spread tps;    // tokens per second, of all sequences together
    qn_cost cost;     // of one step
    double step_rows; // tokens of that step
    double limit_tps; // by the limits of the machine; 0: unknown
} qn_bench_row;

typedef struct qn_bench_opts {
    const qn_engine *engine;
    int64_t prompt, tokens; // of a test; 0: a usual number, less if the context is short
    const int64_t *depths;  // (n_depths)
    size_t n_depths;
    int64_t batch; // sequences that decode together
    int64_t repeats;
    qn_tracer *tracer; // not NULL; warming up is not traced
} qn_bench_opts;

// Two rows for each depth, in order (owned: qn_free). Each test runs once before it is measured.
// Depths that do not fit into the model's context are an error with both values.
QN_MUST_CHECK qn_status qn_bench_run(qn_bench_row **out, size_t *n, const qn_bench_opts *opts,
                                     qn_err *err);

// Sets limit_tps of the rows: reading what a step reads, or computing what it computes, at the best
// speed of the machine, whichever takes longer.
void qn_bench_set_limits(qn_bench_row *rows, size_t n, const qn_limits *limits);

// Whose limits they are: "this machine: 2 threads, avx512", "cuda:0".
enum { QN_LIMITS_OWNER = 64 };
const char *qn_limits_owner(char to[QN_LIMITS_OWNER], const qn_limits *limits);

// What the picture shows.
typedef struct qn_roofline {
    const char *path;         // of the model
    const qn_limits *limits;  // of as many threads as the rows had
    const qn_bench_row *rows; // (n)
    size_t n;
} qn_roofline;

// Operations a second over operations for each byte, with the limits as roofs and the rows as
// points: a page of SVG that needs nothing else. *out is owned (qn_free).
QN_MUST_CHECK qn_status qn_roofline_draw(char **out, const qn_roofline *roofline, qn_err *err);

typedef struct qn_bench_open_opts {
    const char *path;
    const qn_engine_args *args; // cache_dir NULL: a temporary folder
    int64_t repeats;
} qn_bench_open_opts;

// Seconds until a first step could start: from the model's own file, and from the cache folder
// when it has been filled.
typedef struct qn_bench_opening {
    qn_spread cold, warm;
    int64_t cached_bytes; // that the warm opening found
} qn_bench_opening;

QN_MUST_CHECK qn_status qn_bench_open(qn_bench_opening *out, const qn_bench_open_opts *opts,
                                      qn_err *err);

#endif
