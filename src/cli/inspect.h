// What `quern inspect` finds out about a model, apart from how it is printed.
#ifndef QN_CLI_INSPECT_H
#define QN_CLI_INSPECT_H

#include "cli/open_model.h"

// Tensors of one purpose and one numeric type.
typedef struct qn_tally {
    const char *group; // "attention", ...
    const char *type;  // borrowed from the source
    int64_t n, parameters, bytes;
} qn_tally;

enum { QN_MAX_TALLIES = 256, QN_MAX_MEMORY_ROWS = 16 };

typedef struct qn_memory_row {
    int64_t context;
    qn_memory memory;
} qn_memory_row;

// Caller storage, which must stay where it is. Borrows from `source` and `engine`, which it owns.
typedef struct qn_inspection {
    const char *path; // borrowed
    qn_source *source;
    qn_loaded loaded;
    const qn_engine *engine; // of `loaded`; NULL: the file cannot run, and `why` says why not
    qn_err why;
    qn_tokenizer *own_tokenizer;   // of a file without an engine; NULL: none
    const qn_tokenizer *tokenizer; // of the engine, or own_tokenizer; NULL: none
    char *architecture, *name;     // as the file's keys have them, JSON; NULL: no such key
    bool has_chat_template;
    qn_tally tallies[QN_MAX_TALLIES]; // ordered by group
    size_t n_tallies;
    qn_tally all; // sum of the tallies
    qn_memory_row memory[QN_MAX_MEMORY_ROWS];
    size_t n_memory;    // 0 without an engine
    bool with_resident; // memory was asked for: what the whole process holds is reported too
} qn_inspection;

typedef struct qn_inspect_opts {
    const qn_engine_args *args; // how the model would be opened
    int64_t context;            // 0: a usual one
    bool all_memory;            // memory for a range of contexts
} qn_inspect_opts;

// Fails when the file cannot be read at all; for a file that cannot run, `engine` and `why` say so.
QN_MUST_CHECK qn_status qn_inspection_init(qn_inspection *out, const char *path,
                                           const qn_inspect_opts *opts, qn_err *err);
void qn_inspection_deinit(qn_inspection *in);
// Rows of what kind of model it is, for people.
void qn_inspection_print(const qn_inspection *in);

// A picture of the size by group and type: a page of SVG that needs nothing else. *out is owned
// (qn_free).
QN_MUST_CHECK qn_status qn_inspection_draw(char **out, const qn_inspection *in, qn_err *err);

// Percent.
double qn_share_of(int64_t part, int64_t all);

#endif
