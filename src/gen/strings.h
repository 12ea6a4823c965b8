// Finding many strings at once in a text that comes in parts (Aho and Corasick: "Efficient string
// matching: an aid to bibliographic search", 1975). A place in the text is one number, a node: the
// longest suffix of the text that is a prefix of one of the strings.
#ifndef QN_GEN_STRINGS_H
#define QN_GEN_STRINGS_H

#include "core/err.h"
#include "core/str.h"

typedef struct qn_strings qn_strings; // constant; threads may share it

typedef struct qn_strings_opts {
    const char *what; // for messages: "stop string"
    size_t max, max_bytes;
} qn_strings_opts;

enum { QN_STRINGS_START = 0 }; // the node of an empty text

// Each string must be UTF-8 and not empty; more than `max`, or more than `max_bytes` together, is
// a LIMIT error. Create copies them.
QN_MUST_CHECK qn_status qn_strings_check(const char *const *texts, size_t n,
                                         const qn_strings_opts *opts, qn_err *err);
QN_MUST_CHECK qn_status qn_strings_create(qn_strings **out, const char *const *texts, size_t n,
                                          const qn_strings_opts *opts, qn_err *err);
void qn_strings_destroy(qn_strings *strings);

// The node after one more byte.
uint32_t qn_strings_next(const qn_strings *strings, uint32_t node, unsigned char byte);
// Bytes of the prefix that the text ends with.
size_t qn_strings_depth(const qn_strings *strings, uint32_t node);
// The number (in the order of `texts`) of the longest string that the text ends with; -1: none.
int64_t qn_strings_hit(const qn_strings *strings, uint32_t node);
// The next shorter prefix that the text ends with; QN_STRINGS_START: the empty one.
uint32_t qn_strings_shorter(const qn_strings *strings, uint32_t node);
// The strings that begin with the node's: numbers [*from, *to) of qn_strings_sorted.
void qn_strings_range(size_t *from, size_t *to, const qn_strings *strings, uint32_t node);
qn_str qn_strings_sorted(const qn_strings *strings, size_t i);
// String i in the order of `texts`.
qn_str qn_strings_get(const qn_strings *strings, size_t i);
size_t qn_strings_longest(const qn_strings *strings);

// The node after a part of the text; stops after the first hit, if there is one. *n_read bytes
// were read.
uint32_t qn_strings_scan(size_t *n_read, const qn_strings *strings, uint32_t node, qn_str text);

#endif
