// Opening models for a command: progress on a terminal, warnings, the bundled model.
#ifndef QN_CLI_OPEN_H
#define QN_CLI_OPEN_H

#include "core/buf.h"

typedef struct qn_open_opts {
    int64_t n_threads; // 0: the library's choice
    bool no_weights, needs_tokenizer;
} qn_open_opts;

// Caller storage, which must stay where it is: the engine's log comes to it.
typedef struct qn_loaded {
    qn_engine *engine;
    qn_buf lines;   // log of the opening; once it is done, lines go to stderr as they come
    char last[256]; // the last warning, for a failure that it explains
} qn_loaded;

// Warnings of the library go to stderr when the opening succeeds; a failure is told in one line.
// On failure there is nothing to close.
QN_MUST_CHECK qn_status qn_cli_open(qn_loaded *out, const char *path, const qn_open_opts *opts,
                                    qn_err *err);
// Puts the path in front of a message that does not have it.
void qn_err_name(qn_err *err, qn_status status, const char *path);
// A zeroed struct is fine.
void qn_cli_close(qn_loaded *loaded);

// The path of the model that comes with Quern (owned: qn_free), looked for near the program.
QN_MUST_CHECK qn_status qn_bundled_find(char **out, qn_err *err);

#endif
