// What can be typed about `quern run`.
#ifndef QN_CLI_RUN_H
#define QN_CLI_RUN_H

#include "cli/expert_report.h"
#include "cli/pictures.h"
#include "cli/sampling.h"
#include "cli/trace.h"

// What a conversation can change by /set, and a session file keeps, besides the sampling.
typedef struct qn_live_args {
    int64_t tokens, min_tokens;
    qn_texts stops;
    bool ignore_eos;
    int reasoning; // a word: on, off
    bool lookup;
    bool mtp_fast;
    int64_t draft_max;
    bool shift;
    int64_t keep, logprobs;
    bool plain, no_wrap;
} qn_live_args;

typedef struct qn_run_args {
    const char *prompt, *file, *system, *template, *tools, *session, *draft;
    const char *grammar, *grammar_file, *schema, *schema_file, *regex;
    bool json_mode, schema_lenient, schema_closed;
    qn_texts images;
    qn_live_args live;
    qn_sampling_args sampling;
    int64_t context;
    bool raw, json, naive, mtp, session_state, no_history;
    qn_trace_args trace;
    qn_expert_args experts;
    qn_engine_args engine;
} qn_run_args;

// Settings that do not go together, wherever they came from.
QN_MUST_CHECK qn_status qn_run_args_check(const qn_run_args *args, qn_err *err);
// The i-th option that fills qn_live_args or qn_sampling_args; NULL after the last.
const qn_option *qn_live_option(size_t i);

#endif
