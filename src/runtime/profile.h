// A profile: how a family is best compiled, in a file next to its weights (docs/caches.md).
//
// `<family>.quern.toml` is looked for first, then `<family>.rlx.toml`; the family is the
// architecture's name, then the shorter ones it is known by ("gemma" for gemma3, "llama32" for
// llama). A profile changes speed, never results; what would change them is refused. Options that
// the caller was given win: the profile only fills what they leave open.
#ifndef QN_RUNTIME_PROFILE_H
#define QN_RUNTIME_PROFILE_H

#include "core/err.h"

enum { QN_PLAN_CAPACITY = 4096 }; // max plans that are kept

// Settings for prefill (steps of several rows) or for decode.
typedef struct qn_profile_phase {
    uint64_t skip;         // passes that are off, bits as in passes/passes.h
    qn_plan_policy plans;  // AUTO: unset
    int64_t plan_capacity; // bindings kept; 0: unset
} qn_profile_phase;

// Caller storage; zeroed is empty: everything is unset.
typedef struct qn_profile {
    qn_profile_phase prefill, decode;
    int64_t chunk;           // rows of a prefill step; 0: unset
    int64_t compile_seq_cap; // no step is compiled for more rows; 0: unset
    char *path;              // of the file; owned; NULL: there is none
} qn_profile;

void qn_profile_deinit(qn_profile *profile);

// Finds and reads the profile of an architecture in a folder. No file: QN_OK, *out is empty. A file
// that makes no sense is an error that names it and the line; keys of an .rlx.toml that mean
// nothing here are listed in one line to `log` (may be NULL).
QN_MUST_CHECK qn_status qn_profile_find(qn_profile *out, const char *folder, const char *arch,
                                        qn_log_fn *log, void *log_arg, qn_err *err);
// One file; its name says which of the two kinds it is.
QN_MUST_CHECK qn_status qn_profile_load(qn_profile *out, const char *path, qn_log_fn *log,
                                        void *log_arg, qn_err *err);

// The text of a .quern.toml; the result has no path.
QN_MUST_CHECK qn_status qn_profile_parse(qn_profile *out, const char *text, size_t size,
                                         qn_err *err);

bool qn_profile_skips(const qn_profile_phase *phase, const char *pass);

#endif
