// Where the time of a session goes: a trace file that Perfetto (ui.perfetto.dev) and Chrome show,
// and a table of kernels on stderr.
#ifndef QN_CLI_TRACE_H
#define QN_CLI_TRACE_H

#include "cli/command.h"
#include "core/newfile.h"

// What can be typed about it; a command's options have it as their field `trace`.
typedef struct qn_trace_args {
    const char *file;
    bool profile;
} qn_trace_args;

// clang-format off
#define QN_OPTIONS_TRACE(options)                                                                  \
    {.name = "--trace", .arg = "FILE",                                                             \
     .help = "write every kernel call with its times to this file, as JSON for Perfetto or "       \
             "Chrome",                                                                             \
     .kind = QN_OPTION_TEXT, .offset = offsetof(options, trace.file)},                             \
    {.name = "--profile",                                                                          \
     .help = "print a table of kernels by time to stderr at the end, prefill and decode "          \
             "separately",                                                                         \
     .kind = QN_OPTION_FLAG, .offset = offsetof(options, trace.profile)}
// clang-format on

// Wrong usage, reported before anything is opened.
QN_MUST_CHECK qn_status qn_trace_args_check(const qn_trace_args *args, qn_err *err);

// Calls of one kernel for one op, in one phase.
typedef struct qn_trace_row {
    const char *op, *kernel; // borrowed from the library
    int64_t calls, time, bytes;
} qn_trace_row;

// Steps of one row are decode, others prefill.
typedef enum qn_bench_phase { QN_PHASE_PREFILL, QN_PHASE_DECODE, QN_PHASE_COUNT } qn_bench_phase;

enum { QN_TRACE_ROWS = 256, QN_TRACE_LANES = 16 };

typedef struct qn_trace_phase {
    qn_trace_row rows[QN_TRACE_ROWS]; // what finds no room is counted in the last
    size_t n_rows;
    int64_t steps, tokens, time; // time from the first call of each step to its last
} qn_trace_phase;

// Caller storage, which must stay where it is. One session at a time may report to it.
typedef struct qn_tracer {
    qn_trace_args args;
    qn_trace_phase phases[QN_PHASE_COUNT];
    struct {
        int64_t number, rows, begin, end; // number -1: no step yet
    } step;
    qn_newfile *file;              // NULL: none
    int64_t lanes[QN_TRACE_LANES]; // end of the last call in each lane of the picture
    bool is_paused;                // calls are not counted and not written
    qn_status status;              // the first failure of writing
    qn_err err;
} qn_tracer;

// Opens the file, if one is wanted.
QN_MUST_CHECK qn_status qn_tracer_init(qn_tracer *out, const qn_trace_args *args, qn_err *err);
// Asks the session to report, if anything is wanted.
void qn_tracer_attach(qn_tracer *tracer, qn_session_opts *opts);
// Puts the file in its place and prints the table.
QN_MUST_CHECK qn_status qn_tracer_finish(qn_tracer *tracer, qn_err *err);
// Without qn_tracer_finish no file stays. A zeroed struct is fine.
void qn_tracer_deinit(qn_tracer *tracer);

#endif
