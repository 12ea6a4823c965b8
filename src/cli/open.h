// Opening models for a command: progress on a terminal, warnings, the bundled model.
#ifndef QN_CLI_OPEN_H
#define QN_CLI_OPEN_H

#include "core/err.h"

typedef struct qn_open_opts {
    int64_t n_threads; // 0: the library's choice
    bool no_weights, needs_tokenizer;
} qn_open_opts;

// Warnings of the library go to stderr when the opening succeeds; a failure is told in one line.
QN_MUST_CHECK qn_status qn_cli_open(qn_engine **out, const char *path, const qn_open_opts *opts,
                                    qn_err *err);

// The path of the model that comes with Quern (owned: qn_free), looked for near the program.
QN_MUST_CHECK qn_status qn_bundled_find(char **out, qn_err *err);

#endif
