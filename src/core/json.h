// JSON as values, which are jansson's: the one place where it is read and written.
//
// jansson's own reader and writer are not used (tools/lint.sh sees to that): both lose failed
// allocations, and then read or write something else. Here a failed allocation is QN_MEMORY.
//
// Everything read here came from outside. Duplicate names, broken UTF-8, NUL inside strings, deep
// nesting, numbers that 64 bits cannot hold, text after the value and values that take much more
// memory than their text are errors that name `what` and the place. Values are walked by recursion,
// jansson's release of them too, so nesting is limited to what a thread with a stack of 256 KiB can
// walk.
#ifndef QN_CORE_JSON_H
#define QN_CORE_JSON_H

#include "core/buf.h"
#include "core/err.h"

#include <jansson.h>

enum {
    QN_JSON_DEPTH = 128,     // brackets around a value that is read
    QN_JSON_CALL_DEPTH = 64, // of a tool call: requests and sessions put brackets around it
    QN_JSON_MEMORY =
        256 << 20, // bytes that the values of a text may take: "{}," takes 80 times its own
};

// --- reading -------------------------------------------------------------------------------------

typedef struct qn_json_opts {
    const char *what;  // named in errors
    bool ints_as_real; // every number is a double, and whole ones may be beyond 64 bits
    bool any;          // a value of any kind, not only an object or a list
    bool takes_nul;    // strings may contain NUL (names never)
    int depth;         // 0: QN_JSON_DEPTH
    size_t memory;     // 0: QN_JSON_MEMORY; values that take more are QN_LIMIT
    size_t *used;      // not NULL: text may follow; receives the bytes of the value
} qn_json_opts;

// Parses `size` bytes; release *out with json_decref.
QN_MUST_CHECK qn_status qn_json_parse_as(json_t **out, const char *text, size_t size,
                                         const qn_json_opts *opts, qn_err *err);
// The same for an object or a list, where only `ints_as_real` is a matter of choice.
QN_MUST_CHECK qn_status qn_json_parse(json_t **out, const char *text, size_t size,
                                      bool ints_as_real, const char *what, qn_err *err);

// --- making --------------------------------------------------------------------------------------
// Both take the reference to `value`. NULL, which is what failed allocations leave, is sticky: if
// the value is NULL or cannot be added, *to is released and becomes NULL. Look once at the end.

void qn_json_push(json_t **list, json_t *value);
void qn_json_put(json_t **object, const char *name, json_t *value);
// A JSON string of any bytes: what is not UTF-8 becomes U+FFFD. NULL when memory is short.
json_t *qn_json_string(const char *text, size_t size);
// A number, or null where it is NaN or infinite: JSON has no word for these, and json_real and
// json_pack would give NULL. NULL when memory is short.
json_t *qn_json_real(double x);

// --- writing -------------------------------------------------------------------------------------

typedef struct qn_json_form {
    bool compact; // no space after commas and colons
    int indent;   // spaces for each level, each entry on its own line; 0: all on one line
    int digits;   // of reals; 0: 17, which gives back every double
} qn_json_form;

// Appends the value as UTF-8, names in the order in which they were put. Control characters (also
// DEL and U+0080 to U+009F) are escaped. When memory is short, to->failed is set.
void qn_json_write(qn_buf *to, const json_t *value, const qn_json_form *form);
// The same as a text of its own (release with qn_free); `value` NULL is QN_MEMORY, for `what`.
QN_MUST_CHECK qn_status qn_json_print(char **out, const json_t *value, const qn_json_form *form,
                                      const char *what, qn_err *err);

#endif
