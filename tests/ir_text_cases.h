// Text that holds every op: leaves that all cases share, and one case per op. The last line of a
// case makes the op; earlier lines give it what the leaves do not.
#ifndef QN_TESTS_IR_TEXT_CASES_H
#define QN_TESTS_IR_TEXT_CASES_H

#include "ir/graph.h"

// Values 0 to 19.
#define IR_LEAVES                                                                                  \
    "graph \"all\"\n"                                                                              \
    "%0 \"ids\" i32 (T) = input\n"                                                                 \
    "%1 \"table\" table () = input\n"                                                              \
    "%2 \"rows\" i32 (R) = input\n"                                                                \
    "%3 \"x\" f32 (T, 64) = input\n"                                                               \
    "%4 \"y\" f32 (T, 64) = input\n"                                                               \
    "%5 \"heads\" f32 (T, 4, 16) = input\n"                                                        \
    "%6 \"keys\" f32 (T, 2, 16) = input\n"                                                         \
    "%7 \"cache\" cache (2, 16, 16) = input\n"                                                     \
    "%8 \"taps\" state (3, 64) = input\n"                                                          \
    "%9 \"memory\" state (4, 16, 16) = input\n"                                                    \
    "%10 \"pair\" f32 (T, 4) = input\n"                                                            \
    "%11 \"w\" q8_0 (96, 64) = param\n"                                                            \
    "%12 \"norm\" f32 (64) = param\n"                                                              \
    "%13 \"freqs\" f32 (8) = const [1, 0.5, 0.25, 0.125, -0, inf, 1e-30, 0x7fc00001]\n"            \
    "%14 \"kernel\" f32 (64, 4) = param\n"                                                         \
    "%15 \"stack\" bf16 (8, 32, 64) = param\n"                                                     \
    "%16 \"chosen\" i32 (T, 2) = input\n"                                                          \
    "%17 \"a\" f16 (3, 4, 64) = param\n"                                                           \
    "%18 \"b\" f16 (3, 64, 4) = param\n"                                                           \
    "%19 \"scores\" f32 (T, 2) = input\n"

// Values 20 and 21 of the cases that rotate.
#define IR_ANGLES                                                                                  \
    "%20 f32 (T, 2, 8) = angles(%13, %1) {scale=1, sections=[0, 0, 0, 0]}\n%21 f32 (16) = param\n"

static const char *const ir_op_cases[QN_OP_COUNT] = {
    [QN_OP_INPUT] = "%20 \"image\" f32 (4*R, 64) = input @3",
    [QN_OP_PARAM] = "%20 \"blk.0.q\" q4_k (8, 256) = param {layout=tiles} @0",
    [QN_OP_CONST] = "%20 f32 (2, 2) = const [1, 2, 3, 4.5]",
    [QN_OP_EMBED] = "%20 f32 (T, 64) = embed(%0, %11) {start=0}",
    [QN_OP_MATMUL] = "%20 \"result\" f32 (T, 96) = matmul(%3, %11) @7",
    [QN_OP_ADD] = "%20 f32 (T, 64) = add(%3, %12)",
    [QN_OP_MUL] = "%20 f32 (T, 64) = mul(%3, %4)",
    [QN_OP_SCALE] = "%20 f32 (T, 64) = scale(%3) {scale=-0.1}",
    [QN_OP_SILU] = "%20 f32 (T, 64) = silu(%3)",
    [QN_OP_GELU] = "%20 f32 (T, 64) = gelu(%3)",
    [QN_OP_GELU_ERF] = "%20 f32 (T, 64) = gelu_erf(%3)",
    [QN_OP_SIGMOID] = "%20 f32 (T, 64) = sigmoid(%3)",
    [QN_OP_SOFTPLUS] = "%20 f32 (T, 64) = softplus(%3)",
    [QN_OP_SOFTCAP] = "%20 f32 (T, 64) = softcap(%3) {cap=30}",
    [QN_OP_RMS_NORM] = "%20 f32 (T, 64) = rms_norm(%3, %12) {eps=1e-6}",
    [QN_OP_LAYER_NORM] = "%20 f32 (T, 64) = layer_norm(%3, %12, %12) {eps=1e-5}",
    [QN_OP_L2_NORM] = "%20 f32 (T, 64) = l2_norm(%3) {eps=1e-12}",
    [QN_OP_QUANTIZE] = "%20 f32 (T, 64) = quantize(%3) {form=i8_32}",
    [QN_OP_ROPE] = "%20 f32 (T, 4, 16) = rope(%5, %13, %1) "
                   "{scale=1, rotate=16, pairs=adjacent, sections=[3, 3, 2, 0]}",
    [QN_OP_NARROW] = "%20 f32 (T, 8) = narrow(%3) {axis=1, start=16, length=8}",
    [QN_OP_CONCAT] = "%20 f32 (T, 128) = concat(%3, %4) {axis=1}",
    [QN_OP_SPLIT] = "%20 f32 (T, 4, 16) = split(%3) {parts=4}",
    [QN_OP_MERGE] = "%20 f32 (T, 64) = merge(%5)",
    [QN_OP_GATHER_ROWS] = "%20 f32 (R, 64) = gather_rows(%3, %2)",
    [QN_OP_ALL_GATHER] = "%20 f32 (T, 128) = all_gather(%3) "
                         "{length=128, unit=16, parts=2, alike=0, form=f32}",
    [QN_OP_KV_WRITE] = "%20 cache (2, 16, 16) = kv_write(%7, %6, %6, %1) @2",
    [QN_OP_ATTEND] = "%20 f32 (4) = param\n"
                     "%21 f32 (T, 4, 16) = attend(%5, %7, %1, %20, _) "
                     "{scale=0.25, cap=50, window=512, rule=spans}",
    [QN_OP_CONV] = "%20 \"y\" f32 (T, 64), %21 \"kept\" state (3, 64) = conv(%3, %14, %8, %1)",
    [QN_OP_DELTA] = "%20 f32 (T, 4, 16), %21 state (4, 16, 16) = "
                    "delta(%6, %6, %5, %10, %10, %9, %1) {scale=0.25, heads=tiled}",
    [QN_OP_LORA] = "%20 f32 (T, 64) = lora(%3, %4, %17, %18, %1) {scale=2}",
    [QN_OP_ROUTE] = "%20 i32 (T, 2), %21 f32 (T, 2) = route(%10) {top=2, normalize=1, scale=2.5}",
    [QN_OP_GROUPED_MATMUL] = "%20 f32 (T, 2, 32) = grouped_matmul(%3, %15, %16)",
    [QN_OP_SUM_SQUARES] = "%20 f32 (4, 65) = sum_squares(%3, %16) {length=4}",
    [QN_OP_COMBINE] = "%20 f32 (T, 16) = combine(%6, %19)",
    [QN_OP_ANGLES] = "%20 f32 (T, 2, 8) = angles(%13, %1) {scale=1, sections=[3, 3, 2, 0]}",
    [QN_OP_ROTATE] = IR_ANGLES "%22 f32 (T, 4, 16) = rotate(%5, %20, %21) "
                               "{eps=1e-6, rotate=16, pairs=half}",
    [QN_OP_PROJECT] = "%20 f16 (16, 64) = param\n%21 f32 (T, 112) = project(%3, %11, %20)",
    [QN_OP_GATED] = "%20 f32 (T, 96) = gated(%3, %11, %11) {act=gelu}",
    [QN_OP_NORM_QUANTIZE] = "%20 f32 (T, 64) = norm_quantize(%3, %12) {eps=1e-6, form=f32}",
    [QN_OP_ADD_NORM] = "%20 \"sum\" f32 (T, 64), %21 f32 (T, 64) = add_norm(%3, %4, %12) "
                       "{eps=1e-6, form=i8_32}",
    [QN_OP_ROTATE_WRITE] = IR_ANGLES "%22 cache (2, 16, 16) = "
                                     "rotate_write(%7, %6, %6, %1, %20, %21) "
                                     "{eps=1e-6, rotate=16, pairs=half} @1",
    [QN_OP_ATTENTION] =
        IR_ANGLES "%22 f32 (4) = param\n%23 f32 (T, 4, 16), %24 cache (2, 16, 16) = "
                  "attention(%5, %6, %6, %7, %20, %1, %21, _, %22) {eps=1e-6, scale=0.25, cap=0, "
                  "window=512, rule=causal, rotate=16, pairs=half}",
    [QN_OP_EXPERTS] = "%20 f32 (T, 8) = input\n%21 bf16 (8, 64, 32) = param\n"
                      "%22 f32 (T, 64) = experts(%3, %20, %15, %15, %21) "
                      "{scale=1, top=2, normalize=1, form=i12_256, act=silu}",
    [QN_OP_HEAD] = "%20 bf16 (99, 64) = param\n%21 \"logits\" f32 (T, 99), %22 f32 (T, 130) = "
                   "head(%3, %20) {start=0, cap=30, top=64}",
};

#endif
