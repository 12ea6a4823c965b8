// The text form of a graph, and its picture.
//
// One line per node, in execution order; "%N" is value N, "@N" the node's layer, "_" an optional
// input that is absent. A name comes between a value and what it is.
//
//     graph "tiny"
//     %0 "ids" i32 (T)                   = input
//     %1 "table" table ()                = input
//     %2 "token_embd" q8_0 (512, 64)     = param
//     %3 "taps" f32 (64, 4)              = param
//     %4 "scales" f32 (2)                = const [1, 0.01]
//     %5 f32 (T, 64)                     = embed(%0, %2) {start=0}
//     %6 "conv.0" state (3, 64)          = input @0
//     %7 "x" f32 (T, 64), %8 state (3, 64) = conv(%5, %3, %6, %1) @0
//     %9 f32 (T, 4, 16)                  = split(%7) {parts=4} @0
//     output "result" %9
//
// Values are numbered in the order in which they are printed, from 0. A kind other than tensor
// stands in place of the type; "cache:f16" gives it a type other than f32. Dimensions are "64",
// "T" or "4*T". Strings have \" \\ \n \t and \xHH (control bytes and what is not UTF-8). Numbers
// are decimal; a float that is not a number is written by its bits, "0x7fc00000". An attribute list
// holds every attribute that the op names in ops.def; a weight in rows has none. A weight or an
// output of which one rank has a share ends in "share AXIS of WHOLE [FIRST+N, FIRST+N]": indices of
// an axis of the whole. ";" and "#" begin a comment; blank lines are skipped. Nothing here depends
// on the locale.
#ifndef QN_IR_TEXT_H
#define QN_IR_TEXT_H

#include "core/buf.h"
#include "ir/graph.h"

// Appends the text of a valid graph. What is printed parses to the same graph, provided that the
// graph numbers its values in the order of its nodes, which every built graph does.
void qn_graph_print(qn_buf *to, const qn_graph *graph);

// Reads a graph, which the verifier then accepts. The text may come from anywhere: a fault is
// refused with line and column, and memory stays in proportion to `size`.
QN_MUST_CHECK qn_status qn_graph_parse(qn_graph *out, const char *text, size_t size, qn_err *err);

// Appends a picture of the graph: an SVG document with data flowing down. Layers of the same
// structure are drawn once; weights are labels at the ops that use them; what a hostile graph is
// too large to show is counted instead.
void qn_graph_svg(qn_buf *to, const qn_graph *graph);

// Appends `value` as the shortest decimal that reads back as the same float, or its bits in hex for
// a NaN. At most 20 bytes.
void qn_float_print(qn_buf *to, float value);
void qn_attr_print(qn_buf *to, const qn_attrs *attrs, qn_attr attr);
// Appends the numbers of a constant: "[1, 0.5]".
void qn_data_print(qn_buf *to, const qn_shape *shape, const float *data);
// Appends " share 0 of 64 [0+16]"; nothing for NULL.
void qn_share_print(qn_buf *to, const qn_share *share);
// Appends a quoted string, and a name in lower case.
void qn_string_print(qn_buf *to, const char *text);
void qn_lower_print(qn_buf *to, const char *name);

#endif
