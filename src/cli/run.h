// What can be typed about `quern run`.
#ifndef QN_CLI_RUN_H
#define QN_CLI_RUN_H

#include "cli/open.h"
#include "cli/trace.h"

// What a conversation can change by /set, and a session file keeps.
typedef struct qn_live_args {
    int64_t tokens;
    double temperature;
    uint64_t seed;
    qn_texts stops;
    int reasoning; // a word: on, off
} qn_live_args;

typedef struct qn_run_args {
    const char *prompt, *file, *system, *template, *tools, *session;
    qn_live_args live;
    int64_t context;
    bool raw, json, naive;
    qn_trace_args trace;
    qn_engine_args engine;
} qn_run_args;

enum { QN_REASONING_ON = 1, QN_REASONING_OFF };

// The i-th option that fills qn_live_args; NULL behind the last.
const qn_option *qn_live_option(size_t i);

#endif
