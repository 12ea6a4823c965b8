// What the readers of graphs and plans share: the words, numbers and lists of their text (text.h).
//
// One pass over the bytes, one line at a time. Nothing is allocated from a number in the text, only
// from what was read. Every failure names line and column.
#ifndef QN_IR_SCAN_H
#define QN_IR_SCAN_H

#include "core/str.h"
#include "ir/graph.h"

typedef struct qn_scan {
    const char *at, *end;
    const char *line_begin;
    size_t line;     // from 1
    qn_arena *arena; // where strings and constants go
    qn_err *err;
} qn_scan;

qn_scan qn_scan_begin(const char *text, size_t size, qn_arena *arena, qn_err *err);

#define QN_SCAN_FAIL(s, place, ...)                                                                \
    (qn_scan_place(s, QN_FAIL((s)->err, FORMAT, __VA_ARGS__), place), (qn_status)QN_FORMAT)

// Puts line and column of `place` in front of the message of a failed call.
qn_status qn_scan_place(const qn_scan *s, qn_status status, const char *place);
// Fails with what is here instead of what was expected.
qn_status qn_scan_expected(qn_scan *s, const char *what);

// Spaces, but not the end of a line.
void qn_scan_skip(qn_scan *s);
// Takes this character if it is next (spaces before it are skipped); qn_scan_need wants it.
bool qn_scan_take(qn_scan *s, char c);
QN_MUST_CHECK qn_status qn_scan_need(qn_scan *s, char c);
// The letters, digits and underscores here; may be empty. Nothing is taken.
qn_str qn_scan_peek(qn_scan *s);
bool qn_scan_take_word(qn_scan *s, const char *word);
// True where nothing more is on this line but a comment.
bool qn_scan_is_blank(qn_scan *s);
QN_MUST_CHECK qn_status qn_scan_end_line(qn_scan *s);

// `what` names the number in messages.
QN_MUST_CHECK qn_status qn_scan_int(qn_scan *s, int64_t *out, const char *what);
QN_MUST_CHECK qn_status qn_scan_float(qn_scan *s, float *out);
// A quoted string; `what` names it in messages.
QN_MUST_CHECK qn_status qn_scan_string(qn_scan *s, const char **out, const char *what);
QN_MUST_CHECK qn_status qn_scan_type(qn_scan *s, qn_type *out);
QN_MUST_CHECK qn_status qn_scan_dim(qn_scan *s, qn_dim *out);
QN_MUST_CHECK qn_status qn_scan_shape(qn_scan *s, qn_shape *shape);
QN_MUST_CHECK qn_status qn_scan_op(qn_scan *s, qn_op *out);
// A word of words.def that the attribute may hold.
QN_MUST_CHECK qn_status qn_scan_word(qn_scan *s, qn_word *out, qn_attr attr);
// "{name=value, ...}": all attributes of the op, and others of `allowed` (a bit for each).
// Leaves may leave it out.
QN_MUST_CHECK qn_status qn_scan_attrs(qn_scan *s, qn_attrs *to, qn_op op, uint32_t allowed);
// "[1, 0.5, ...]", as many floats as the shape says.
QN_MUST_CHECK qn_status qn_scan_data(qn_scan *s, const float **out, qn_type type,
                                     const qn_shape *shape);
// "share 0 of 64 [0+16, 32+16]", or nothing: NULL. Whether it fits anything is not looked at.
QN_MUST_CHECK qn_status qn_scan_share(qn_scan *s, const qn_share **out);
// "@3", or nothing: -1.
QN_MUST_CHECK qn_status qn_scan_layer(qn_scan *s, int32_t *layer);

#endif
