// A small part of TOML, read into a flat list: "[a.b]" and "key = 1" give the entry "a.b.key".
//
// Tables, dotted bare keys, strings on one line ("..." with escapes, '...'), integers (decimal, 0x,
// 0o, 0b, with "_" between digits), floats, true and false, arrays of these (over several lines if
// need be, no arrays in arrays), comments. No dates, inline tables, arrays of tables, quoted keys
// or strings of several lines: they are refused by name. The text may come from anywhere: a fault
// is refused with its line, memory stays in proportion to the text, and nothing depends on the
// locale.
#ifndef QN_CORE_TOML_H
#define QN_CORE_TOML_H

#include "core/arena.h"
#include "core/err.h"

typedef enum qn_toml_kind {
    QN_TOML_STRING,
    QN_TOML_INT,
    QN_TOML_FLOAT,
    QN_TOML_BOOL,
    QN_TOML_ARRAY
} qn_toml_kind;

typedef struct qn_toml_value qn_toml_value;
struct qn_toml_value {
    qn_toml_kind kind;
    union {
        const char *s; // UTF-8 without NUL inside
        int64_t i;
        double f;
        bool b;
        struct {
            const qn_toml_value *items; // of any kinds but arrays
            size_t n;
        } array;
    } as;
};

typedef struct qn_toml_entry {
    const char *name; // "a.b.key"
    size_t line;      // from 1
    qn_toml_value value;
} qn_toml_entry;

// Caller storage; zeroed is empty. Everything lies in the arena.
typedef struct qn_toml {
    qn_arena arena;
    qn_toml_entry *entries; // in the order of the text
    size_t n;
} qn_toml;

// At most 1 MiB of text, 4096 entries and names of 255 bytes.
QN_MUST_CHECK qn_status qn_toml_parse(qn_toml *out, const char *text, size_t size, qn_err *err);
void qn_toml_deinit(qn_toml *toml);
// The entry of that name; NULL if there is none.
const qn_toml_entry *qn_toml_find(const qn_toml *toml, const char *name);
// "a string", "an integer", ...
const char *qn_toml_kind_name(qn_toml_kind kind);

#endif
