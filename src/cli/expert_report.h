// What was kept of the experts of a model, told at the end of a command.
#ifndef QN_CLI_EXPERT_REPORT_H
#define QN_CLI_EXPERT_REPORT_H

#include "cli/open_model.h"

// What can be typed about it; a command's options have it as their field `experts`.
typedef struct qn_expert_args {
    bool stats;
    const char *svg;
} qn_expert_args;

// clang-format off
#define QN_OPTIONS_EXPERT_REPORT(options)                                                          \
    {.name = "--expert-stats",                                                                     \
     .help = "print a table of experts kept, used and read, layer by layer, to stderr at the end", \
     .kind = QN_OPTION_FLAG, .offset = offsetof(options, experts.stats)},                          \
    {.name = "--expert-svg", .arg = "FILE",                                                        \
     .help = "write a heat map of the experts by layer over time to this file, as SVG; needs "     \
             "--expert-budget",                                                                    \
     .kind = QN_OPTION_TEXT, .offset = offsetof(options, experts.svg)}
// clang-format on

// Wrong usage, reported before anything is opened.
QN_MUST_CHECK qn_status qn_expert_args_check(const qn_expert_args *args,
                                             const qn_engine_args *engine, qn_err *err);
// Prints and writes what was asked for.
QN_MUST_CHECK qn_status qn_expert_report(const qn_expert_args *args, const qn_engine *engine,
                                         qn_err *err);

#endif
