// Reading JSON as it comes, without a tree.
//
// Headers and configurations are hostile, and a tree costs 30 bytes and more for a value of two:
// this reader takes no memory at all. The caller walks the text in the order of the text:
//
//   qn_json_value value;
//   QN_TRY(qn_json_read(&value, reader, err));          // { was read
//   for (bool more, first = true;; first = false) {
//       QN_TRY(qn_json_member(&name, &more, reader, first, err));
//       if (!more) break;                                // } was read
//       ... qn_json_read, or qn_json_skip ...
//   }
//
// Strict JSON: UTF-8 only, no NUL even as an escape, nothing after the value. Errors name the line
// and the column (in characters, from 1). To look twice, copy the reader.
#ifndef QN_CORE_JSON_READER_H
#define QN_CORE_JSON_READER_H

#include "core/err.h"
#include "core/str.h"

typedef struct qn_json_reader {
    const char *text; // borrowed
    size_t size, at;
    const char *what; // borrowed: named in errors
    bool takes_nan;   // NaN and Infinity, which Python writes, are numbers, and 1e999 is Infinity
    bool takes_nul;   // \u0000 is a character
} qn_json_reader;

typedef enum qn_json_kind {
    QN_JSON_OBJECT,
    QN_JSON_ARRAY,
    QN_JSON_STRING,
    QN_JSON_INT,
    QN_JSON_REAL, // also whole numbers beyond 64 bits: `is_whole`
    QN_JSON_BOOL,
    QN_JSON_NULL
} qn_json_kind;

// A string between its quotes, still with its escapes.
typedef struct qn_json_text {
    qn_str raw;
    size_t size; // decoded
} qn_json_text;

typedef struct qn_json_value {
    qn_json_kind kind;
    size_t at; // its first byte in the text
    qn_json_text text;
    int64_t i;
    double f; // of QN_JSON_INT too
    bool b;
    bool is_whole; // a number without fraction and exponent
} qn_json_value;

enum { QN_JSON_MAX_DEPTH = 32 };

// The next value; of an object or array only the opening bracket.
QN_MUST_CHECK qn_status qn_json_read(qn_json_value *out, qn_json_reader *reader, qn_err *err);
// The next member's name with its colon, or the closing bracket (*more is false).
QN_MUST_CHECK qn_status qn_json_member(qn_json_text *name, bool *more, qn_json_reader *reader,
                                       bool first, qn_err *err);
// The same for elements of an array.
QN_MUST_CHECK qn_status qn_json_element(bool *more, qn_json_reader *reader, bool first,
                                        qn_err *err);
// Reads the rest of `value` (nothing if it is a scalar), which lies inside `depth` brackets.
QN_MUST_CHECK qn_status qn_json_skip(qn_json_reader *reader, const qn_json_value *value, int depth,
                                     qn_err *err);
// Only space may be left.
QN_MUST_CHECK qn_status qn_json_end(qn_json_reader *reader, qn_err *err);
// The error that the text at byte `at` is not what it should be; `fmt` says why.
QN_PRINTF(4, 5)
qn_status qn_json_wrong(const qn_json_reader *reader, size_t at, qn_err *err, const char *fmt, ...);
// The error of a bracket, just read, that lies inside `max` others.
qn_status qn_json_too_deep(const qn_json_reader *reader, int max, qn_err *err);
// The error of values, read so far, that take more than `max` bytes.
qn_status qn_json_too_large(const qn_json_reader *reader, size_t max, qn_err *err);
// Writes text.size bytes, no NUL after them.
void qn_json_decode(char *to, qn_json_text text);
// True if the decoded text is `want`; only for texts without escapes (names of fields).
static inline bool qn_json_is(qn_json_text text, const char *want) {
    return text.size == text.raw.size && qn_str_is(text.raw, want);
}

#endif
