// Models by name: every word of a command that is a MODEL may be one.
#ifndef QN_CLI_NAMED_H
#define QN_CLI_NAMED_H

#include "cli/open_model.h"

// What has the addresses that a call borrows. Caller storage; `{0}` is an empty one.
typedef struct qn_resolved {
    char **items; // (n) owned
    size_t n, cap;
} qn_resolved;

// Puts paths in place of names: the first argument of a command whose usage calls it MODEL, IN or
// FOLDER, and options whose value is a MODEL. A path that exists stays, and so does what looks like
// one. The vision tower that came with a model goes with it where the command takes one. A name
// that is not there is an error that says what to type.
QN_MUST_CHECK qn_status qn_named_resolve(qn_resolved *out, const qn_command *command, qn_call *call,
                                         qn_err *err);
void qn_resolved_deinit(qn_resolved *named);

// Whether it was typed as a path: what is not there is a missing file then, and no model.
bool qn_named_is_path(const char *typed);

#endif
