// The text form of a plan. Same strings, numbers, dimensions and comments as the text of a graph
// (text.h).
//
//     plan "tiny" "cpu" 3 calls
//     param 0 "token_embd.weight" q8_0 (512, 64)
//     const 0 "freqs" f32 (8) [1, 0.5, ...]
//     input 0 "ids" i32 (T)
//     cache 0 "cache.0" f16 (2, 16, 16)
//     state 0 "conv.0" f32 (3, 64)
//     buffer 0 T x 256 live 0 1
//     buffer 1 T x 512 live 1 2
//
//     call 0 embed (embed.0) T: b0 (1 x 64) f32 <- input0 (1 x 1), param0 {start=0}
//     call 1 gemm_f32 (project.0) @0 T: b1+128 (1 x 64) f32 <- b0 (1 x 64) f32, param1, _ using b2
//     call 2 rms_norm (rms_norm.0) @0 T: b1 (4 x 32) f32 <- b1 (4 x 32) f32, param2 {eps=1e-06}
//
//     output "result" T b1 (1 x 128) f32
//
// A call: its number, the kernel, (op.stage), @layer, rows of the results, results <- arguments,
// temporary values, attributes: all of the op, and any other that is not 0. An argument is a place
// with its number, "+" its offset in bytes, (parts x width) and the form; what is 0 is left out,
// and "_" is absent. A leaf has the type that its line says: its form is f32 and left out, others
// are given, and "_" after it means none. Shares of weights and outputs end their lines, as in the
// text of a graph. Lifetimes of buffers are the first and the last call. Items of a kind are
// numbered from 0 in the order of the lines, and come before their uses.
#ifndef QN_IR_PLAN_TEXT_H
#define QN_IR_PLAN_TEXT_H

#include "core/buf.h"
#include "ir/plan.h"

// Appends the text of a valid plan. What is printed parses to the same plan, field by field.
void qn_plan_print(qn_buf *to, const qn_plan *plan);

// Reads a plan, which qn_plan_verify then accepts. The text may come from anywhere: a fault is
// refused with its line and both values, and memory stays in proportion to `size`.
QN_MUST_CHECK qn_status qn_plan_parse(qn_plan *out, const char *text, size_t size, qn_err *err);

#endif
