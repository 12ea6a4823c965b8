#include "testing.h"
#include "ir_text_cases.h"

#include "ir/build.h"
#include "ir/text.h"

#include <stdio.h>

// A small valid graph that each case damages.
typedef struct fixture {
    qn_graph graph;
} fixture;

enum { IDS, TABLE, W, EMB, SCALED, NODES }; // its nodes and, as each has one result, its values

static void set_up(fixture *f) {
    qn_err err;
    static const char text[] = "graph \"g\"\n"
                               "%0 \"ids\" i32 (T) = input\n"
                               "%1 \"table\" table () = input\n"
                               "%2 \"w\" q8_0 (512, 64) = param\n"
                               "%3 f32 (T, 64) = embed(%0, %2) {start=0}\n"
                               "%4 f32 (T, 64) = quantize(%3) {form=i8_32}\n"
                               "output \"o\" %4\n";
    *f = (fixture){0};
    ASSERT_OK(qn_graph_parse(&f->graph, text, sizeof text - 1, &err));
    assert_int_equal(f->graph.n_nodes, NODES);
    ASSERT_OK(qn_graph_verify(&f->graph, &err));
}

static void later_input(qn_graph *g) { g->nodes[EMB].in[0] = SCALED; }
static void own_result(qn_graph *g) { g->nodes[SCALED].in[0] = SCALED; }
static void input_outside(qn_graph *g) { g->nodes[EMB].in[0] = 99; }
static void input_missing(qn_graph *g) { g->nodes[EMB].in[0] = QN_NO_VALUE; }
static void input_below(qn_graph *g) { g->nodes[EMB].in[0] = -7; }
static void input_of_other_kind(qn_graph *g) { g->nodes[EMB].in[0] = TABLE; }
static void input_of_other_type(qn_graph *g) { g->nodes[EMB].in[0] = W; }
static void too_few_inputs(qn_graph *g) { g->nodes[EMB].n_in = 1; }
static void too_many_inputs(qn_graph *g) { g->nodes[EMB].n_in = 5; }
static void inputs_of_a_leaf(qn_graph *g) { g->nodes[W].n_in = 1; }
static void negative_inputs(qn_graph *g) { g->nodes[EMB].n_in = -1; }
static void too_many_results(qn_graph *g) { g->nodes[EMB].n_out = 2; }
static void no_results(qn_graph *g) { g->nodes[EMB].n_out = 0; }
static void unknown_op(qn_graph *g) { g->nodes[EMB].op = QN_OP_COUNT; }
static void bad_word(qn_graph *g) { g->nodes[SCALED].attrs.form = QN_WORD_causal; }
static void no_word(qn_graph *g) { g->nodes[SCALED].attrs.form = QN_WORD_COUNT; }
static void wrong_shape(qn_graph *g) { g->values[EMB].shape.dims[1].n = 32; }
static void wrong_symbol(qn_graph *g) { g->values[EMB].shape.dims[0].sym = QN_SYM_R; }
static void wrong_rank(qn_graph *g) { g->values[SCALED].shape.n_dims = 1; }
static void wrong_type(qn_graph *g) { g->values[EMB].type = QN_TYPE_F16; }
static void wrong_kind(qn_graph *g) { g->values[EMB].kind = QN_CACHE; }
static void no_kind(qn_graph *g) { g->values[EMB].kind = QN_KIND_COUNT; }
static void no_type(qn_graph *g) { g->values[IDS].type = QN_TYPE_COUNT; }
static void no_name(qn_graph *g) { g->values[EMB].name = NULL; }
static void result_of_another(qn_graph *g) { g->nodes[SCALED].out[0] = EMB; }
static void result_outside(qn_graph *g) { g->nodes[SCALED].out[0] = 77; }
static void made_elsewhere(qn_graph *g) { g->values[EMB].node = SCALED; }
static void made_by_nobody(qn_graph *g) { g->values[EMB].node = -1; }
static void bad_layer(qn_graph *g) { g->nodes[EMB].layer = -2; }
static void empty_dimension(qn_graph *g) { g->values[IDS].shape.dims[0].n = 0; }
static void no_symbol(qn_graph *g) { g->values[IDS].shape.dims[0].sym = QN_SYM_COUNT; }
static void too_many_dims(qn_graph *g) { g->values[SCALED].shape.n_dims = 5; }
static void weight_of_parts(qn_graph *g) { g->values[W].shape.dims[1].n = 63; }
static void weight_of_rows(qn_graph *g) { g->values[W].shape.dims[0].sym = QN_SYM_T; }
static void weight_of_integers(qn_graph *g) { g->values[W].type = QN_TYPE_I32; }
static void weight_of_state(qn_graph *g) { g->values[W].kind = QN_STATE_VALUE; }
static void const_without_data(qn_graph *g) {
    g->nodes[W].op = QN_OP_CONST;
    g->values[W].type = QN_TYPE_F32;
}
static void const_of_blocks(qn_graph *g) { g->nodes[W].op = QN_OP_CONST; }
static void output_outside(qn_graph *g) { g->outputs[0].value = NODES; }
static void output_of_nothing(qn_graph *g) { g->outputs[0].value = QN_NO_VALUE; }

static void every_fault_is_caught(void **state) {
    (void)state;
    static const struct {
        void (*damage)(qn_graph *);
        const char *message;
    } cases[] = {
        {later_input, "node 3 (EMBED): input 0 is made later, by node 4"},
        {own_result, "node 4 (QUANTIZE): input 0 is made later, by node 4"},
        {input_outside, "EMBED: input 0 is value 99 of 5"},
        {input_missing, "EMBED: input 0 is value -1 of 5"},
        {input_below, "EMBED: input 0 is value -7 of 5"},
        {input_of_other_kind, "EMBED: input 0 is a table"},
        {input_of_other_type, "EMBED: input 0 is a tensor of Q8_0, want kind 'i'"},
        {too_few_inputs, "EMBED: 1 inputs, want 2 to 4"},
        {too_many_inputs, "node 3 (EMBED): 5 inputs"},
        {inputs_of_a_leaf, "node 2 (PARAM): 1 inputs"},
        {negative_inputs, "node 3 (EMBED): -1 inputs"},
        {too_many_results, "node 3 (EMBED): 2 inputs and 2 results"},
        {no_results, "value 3 (): node 3 does not make it"},
        {unknown_op, "node 3: op 44 of 44"},
        {bad_word, "node 4 (QUANTIZE): form holds word 3"},
        {no_word, "node 4 (QUANTIZE): form holds word 17"},
        {wrong_shape, "result 0 is tensor F32 (T, 32), want tensor F32 (T, 64)"},
        {wrong_symbol, "result 0 is tensor F32 (R, 64), want tensor F32 (T, 64)"},
        {wrong_rank, "result 0 is tensor F32 (T), want tensor F32 (T, 64)"},
        {wrong_type, "result 0 is tensor F16 (T, 64), want tensor F32 (T, 64)"},
        {wrong_kind, "result 0 is cache F32 (T, 64), want tensor F32 (T, 64)"},
        {no_kind, "value 3: kind 4"},
        {no_type, "value 0: kind 0, type"},
        {no_name, "value 3: kind 0"},
        {result_of_another, "value 4 (): node 4 does not make it"},
        {result_outside, "value 4 (): node 4 does not make it"},
        {made_elsewhere, "value 3 (): node 4 does not make it"},
        {made_by_nobody, "value 3 (): node -1 does not make it"},
        {bad_layer, "node 3 (EMBED): layer -2"},
        {empty_dimension, "node 0 (ids): shape (0*T)"},
        {no_symbol, "value 0 (ids): dim 0 has symbol 4"},
        {too_many_dims, "value 4 (): 5 dims"},
        {weight_of_parts, "node 2 (w): shape (512, 63) of Q8_0"},
        {weight_of_rows, "node 2 (w): shape (512*T, 64) of Q8_0"},
        {weight_of_integers, "node 2 (w): type I32 is not supported"},
        {weight_of_state, "node 2 (w): a state that holds numbers"},
        {const_without_data, "node 2 (w): a constant without data"},
        {const_of_blocks, "node 2 (w): type Q8_0 is not supported"},
        {output_outside, "output o: value 5 of 5"},
        {output_of_nothing, "output o: value -1 of 5"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        qn_err err = {0};
        fixture f;
        set_up(&f);
        cases[i].damage(&f.graph);
        ASSERT_FAILS(qn_graph_verify(&f.graph, &err), QN_FORMAT, cases[i].message);
        qn_graph_deinit(&f.graph);
    }
}

// Lines after IR_LEAVES; a message where the shapes must be refused, NULL where they fit.
static const struct {
    const char *line, *message;
} shapes[] = {
    {"%20 f32 (T, 64) = embed(%0, %11, %12, %0) {start=0}", "EMBED: input 2 has 1 dims, want 2"},
    {"%20 f32 (9, 64) = param\n%21 f32 (T, 64) = embed(%0, %11, %20, %0) {start=0}", NULL},
    {"%20 f32 (9, 64) = param\n%21 f32 (T, 64) = embed(%0, %11, %20, _) {start=0}", "go together"},
    {"%20 f32 (9, 64) = param\n%21 f32 (T, 64) = embed(%0, %11, %20) {start=0}", "go together"},
    {"%20 f32 (9, 64) = param\n%21 f32 (T, 64) = embed(%0, %11, %20, %2) {start=0}",
     "sizes differ"},
    {"%20 f32 (9, 64) = param\n%21 f32 (T, 64) = embed(%0, %11, %20, %16) {start=0}",
     "input 3 has 2 dims"},
    {"%20 f32 (9, 32) = param\n%21 f32 (T, 64) = embed(%0, %11, %20, %0) {start=0}",
     "sizes differ"},
    {"%20 f32 (T, 2, 64) = embed(%16, %11) {start=0}", "EMBED: input 0 has 2 dims, want 1"},
    {"%20 f32 (T, 64) = embed(%0, %12) {start=0}", "EMBED: input 1 has 1 dims, want 2"},
    {"%20 f32 (T, 96) = matmul(%12, %11)", "result 0 is tensor F32 (T, 96), want tensor F32 (96)"},
    {"%20 f32 (96) = matmul(%12, %11)", NULL},
    {"%20 f32 (T, 4, 96) = matmul(%5, %11)", "MATMUL: (T, 4, 16) and (96, 64): sizes differ"},
    {"%20 f32 (T, 8, 32) = matmul(%3, %15)", "MATMUL: input 1 has 3 dims, want 2"},
    {"%20 f32 () = input\n%21 f32 (96) = matmul(%20, %11)", "MATMUL: input 0 has no dims"},
    {"%20 f32 () = input\n%21 f32 () = silu(%20)", "SILU: input 0 has no dims"},
    {"%20 i32 (T) = silu(%0)", "SILU: input 0 is a tensor of I32, want kind 'x'"},
    {"%20 f32 (T, 64) = add(%3, %5)", "ADD: (T, 64) and (T, 4, 16): the second has more dims"},
    {"%20 f32 (T, 4, 16) = add(%5, %3)", "cannot spread"},
    {"%20 f32 (T, 1) = input\n%21 f32 (T, 64) = mul(%3, %20)", NULL},
    {"%20 f32 (R, 1) = input\n%21 f32 (T, 64) = mul(%3, %20)", "cannot spread"},
    {"%20 f32 (1, 16) = input\n%21 f32 (T, 4, 16) = mul(%5, %20)", NULL},
    {"%20 f32 (T, 4, 16) = rms_norm(%5, %12) {eps=1}", "RMS_NORM: (64) and (T, 4, 16)"},
    {"%20 f32 (T, 64) = rms_norm(%3, %4) {eps=1}", "RMS_NORM: input 1 has 2 dims, want 1"},
    {"%20 f32 (T, 64) = layer_norm(%3, %12) {eps=1}", "LAYER_NORM: 2 inputs, want 3 to 3"},
    {"%20 f32 (T, 64) = layer_norm(%3, %12, %13) {eps=1}", "LAYER_NORM: (8) and (T, 64)"},
    {"%20 f32 (T, 4, 16) = rope(%5, %13, %1) "
     "{scale=1, rotate=17, pairs=half, sections=[0, 0, 0, 0]}",
     "ROPE: rotates 17 of 16 values with 8 frequencies"},
    {"%20 f32 (T, 4, 16) = rope(%5, %13, %1) "
     "{scale=1, rotate=8, pairs=half, sections=[0, 0, 0, 0]}",
     "ROPE: rotates 8 of 16 values with 8 frequencies"},
    {"%20 f32 (T, 4, 16) = rope(%5, %13, %1) "
     "{scale=1, rotate=-2, pairs=half, sections=[0, 0, 0, 0]}",
     "ROPE: rotates -2"},
    {"%20 f32 (8*T) = input\n"
     "%21 f32 (T, 4, 16) = rope(%5, %20, %1) "
     "{scale=1, rotate=16, pairs=half, sections=[0, 0, 0, 0]}",
     "ROPE: rotates 16"},
    {"%20 f32 (T, 64) = rope(%3, %13, %1) {scale=1, rotate=16, pairs=half, sections=[0, 0, 0, 0]}",
     "ROPE: input 0 has 2 dims, want 3"},
    {"%20 f32 (T, 4, 16) = rope(%5, %13, %7) "
     "{scale=1, rotate=16, pairs=half, sections=[0, 0, 0, 0]}",
     "ROPE: input 2 is a cache"},
    {"%20 f32 (T, 8) = narrow(%3) {axis=1, start=57, length=8}", "NARROW: 8 values from 57 of a"},
    {"%20 f32 (T, 8) = narrow(%3) {axis=1, start=56, length=8}", NULL},
    {"%20 f32 (T, 8) = narrow(%3) {axis=1, start=-1, length=8}", "NARROW: 8 values from -1"},
    {"%20 f32 (T, 8) = narrow(%3) {axis=1, start=0, length=0}", "NARROW: 0 values"},
    {"%20 f32 (T, 8) = narrow(%3) {axis=1, start=9223372036854775807, length=8}", "NARROW: 8"},
    {"%20 f32 (T, 8) = narrow(%3) {axis=2, start=0, length=8}", "NARROW: axis 2 of 2 dims"},
    {"%20 f32 (T, 8) = narrow(%3) {axis=-1, start=0, length=8}", "NARROW: axis -1 of 2 dims"},
    {"%20 f32 (1, 64) = narrow(%3) {axis=0, start=0, length=1}", "NARROW: 1 values from 0"},
    {"%20 f32 (2*T, 64) = concat(%3, %4) {axis=0}", NULL},
    {"%20 f32 (T, 128) = concat(%3, %5) {axis=1}", "CONCAT: input 1 has 3 dims, want 2"},
    {"%20 f32 (R, 64) = input\n%21 f32 (T, 64) = concat(%3, %20) {axis=0}", "different symbols"},
    {"%20 f32 (R, 64) = input\n%21 f32 (T, 128) = concat(%3, %20) {axis=1}", "sizes differ"},
    {"%20 f32 (9223372036854775807) = input\n%21 f32 (1) = concat(%20, %20) {axis=0}",
     "CONCAT: (9223372036854775807) and (9223372036854775807): the sum is too large"},
    {"%20 f32 (T, 3, 21) = split(%3) {parts=3}", "SPLIT: 64 values into 3 parts"},
    {"%20 f32 (T, 3, 21) = split(%3) {parts=0}", "SPLIT: 64 values into 0 parts"},
    {"%20 f32 (T) = input\n%21 f32 (T, 1) = split(%20) {parts=1}", "SPLIT"},
    {"%20 f32 (1, 2, 3, 4) = input\n%21 f32 (1) = split(%20) {parts=2}", "SPLIT"},
    {"%20 f32 (T) = merge(%3)", "MERGE: (T, 64)"},
    {"%20 f32 (64) = merge(%12)", "MERGE: one dimension only"},
    {"%20 f32 (4611686018427387904, 2) = input\n%21 f32 (1) = merge(%20)", "cannot merge"},
    {"%20 f32 (R, 4, 16) = gather_rows(%5, %2)", "GATHER_ROWS: input 0 has 3 dims, want 2"},
    {"%20 f32 (T, 64) = gather_rows(%3, %16)", "GATHER_ROWS: input 1 has 2 dims, want 1"},
    {"%20 cache (2, 16, 16) = kv_write(%7, %5, %6, %1)", "KV_WRITE: (T, 4, 16) and (2, 16, 16)"},
    {"%20 cache (2, 16, 16) = kv_write(%7, %6, %3, %1)", "KV_WRITE: input 2 has 2 dims, want 3"},
    {"%20 cache (2) = input\n%21 cache (2) = kv_write(%20, %6, %6, %1)", "KV_WRITE: input 0 has 1"},
    {"%20 f32 (R, 2, 16) = input\n%21 cache (2, 16, 16) = kv_write(%7, %6, %20, %1)",
     "sizes differ"},
    {"%20 f32 (T, 3, 16) = input\n"
     "%21 f32 (T, 3, 16) = attend(%20, %7, %1) {scale=1, cap=0, window=0, rule=full}",
     "ATTEND: 3 heads, 2 kv heads"},
    {"%20 cache () = input\n"
     "%21 f32 (T, 4, 16) = attend(%5, %20, %1) {scale=1, cap=0, window=0, rule=full}",
     "ATTEND: input 1 has 0 dims, want 3"},
    {"%20 f32 (T, 4, 16) = attend(%5, %7, %1, %13) {scale=1, cap=0, window=0, rule=full}",
     "ATTEND: (8) and (T, 4, 16)"},
    {"%20 i32 (T, T) = input\n"
     "%21 f32 (T, 4, 16) = attend(%5, %7, %1, _, %20) {scale=1, cap=0, window=0, rule=full}",
     NULL},
    {"%20 f32 (T, 4, 16) = attend(%5, %7, %1, _, %16) {scale=1, cap=0, window=0, rule=full}",
     "ATTEND: (T, 2) and (T, 4, 16)"},
    {"%20 f32 (T, 64), %21 state (4, 16, 16) = conv(%3, %14, %9, %1)",
     "CONV: input 2 has 3 dims, want 2"},
    {"%20 state (4, 64) = input\n%21 f32 (T, 64), %22 state (4, 64) = conv(%3, %14, %20, %1)",
     "CONV: (64, 4) and (4, 64): state needs taps - 1 rows"},
    {"%20 f32 (T, 4), %21 state (3, 64) = conv(%10, %14, %8, %1)", "CONV: (T, 4) and (64, 4)"},
    {"%20 f32 (T, 4, 16), %21 state (4, 16, 16) = "
     "delta(%5, %6, %5, %10, %10, %9, %1) {scale=1, heads=tiled}",
     "DELTA: (T, 4, 16) and (T, 2, 16): sizes differ"},
    {"%20 f32 (T, 4, 16), %21 state (4, 16, 16) = "
     "delta(%6, %6, %5, %19, %10, %9, %1) {scale=1, heads=tiled}",
     "DELTA: (T, 2) and (T, 4, 16): sizes differ"},
    {"%20 f32 (R, 4) = input\n%21 f32 (T, 4, 16), %22 state (4, 16, 16) = "
     "delta(%6, %6, %5, %20, %10, %9, %1) {scale=1, heads=tiled}",
     "DELTA: (R, 4) and (T, 2, 16): sizes differ"},
    {"%20 f32 (T, 3, 16) = input\n%21 f32 (T, 4, 16), %22 state (4, 16, 16) = "
     "delta(%20, %20, %5, %10, %10, %9, %1) {scale=1, heads=tiled}",
     "DELTA: 4 value heads, 3 key heads"},
    {"%20 f32 (T, 64) = lora(%3, %4, %18, %17, %1) {scale=1}", "LORA: (3, 64, 4) and"},
    {"%20 f32 (R, 64) = input\n%21 f32 (T, 64) = lora(%3, %20, %17, %18, %1) {scale=1}",
     "LORA: (T, 64) and (R, 64): sizes differ"},
    {"%20 i32 (T, 5), %21 f32 (T, 5) = route(%10) {top=5, normalize=0, scale=1}",
     "ROUTE: 5 of 4 experts"},
    {"%20 i32 (T, 5), %21 f32 (T, 5) = route(%10) {top=0, normalize=0, scale=1}",
     "ROUTE: 0 of 4 experts"},
    {"%20 f32 (T, 9*B) = input\n"
     "%21 i32 (T, 5), %22 f32 (T, 5) = route(%20) {top=5, normalize=0, scale=1}",
     "ROUTE: 5 of 9 experts"},
    {"%20 f32 (T, 2, 64) = input\n%21 f32 (T, 2, 32) = grouped_matmul(%20, %15, %16)", NULL},
    {"%20 f32 (T, 3, 64) = input\n%21 f32 (T, 2, 32) = grouped_matmul(%20, %15, %16)",
     "GROUPED_MATMUL: (T, 3, 64) and (T, 2): sizes differ"},
    {"%20 f32 (64, 64) = input\n%21 f32 (T, 2, 32) = grouped_matmul(%20, %15, %16)",
     "GROUPED_MATMUL: (64, 64) and (T, 2): sizes differ"},
    {"%20 f32 (T, 2, 32) = grouped_matmul(%3, %11, %16)", "GROUPED_MATMUL: input 1 has 2 dims"},
    {"%20 f32 (3, 65) = sum_squares(%3, %16) {length=3}", NULL},
    {"%20 f32 (2, 65) = sum_squares(%3) {length=2}", "SUM_SQUARES: (T, 64) for 2 experts"},
    {"%20 f32 (2, 65) = sum_squares(%3, %16) {length=0}", "SUM_SQUARES: (T, 64) for 0 experts"},
    {"%20 f32 (T, 3, 64) = input\n%21 f32 (4, 65) = sum_squares(%20, %16) {length=4}",
     "SUM_SQUARES: (T, 3, 64) and (T, 2): sizes differ"},
    {"%20 f32 (64, 64) = input\n%21 f32 (4, 65) = sum_squares(%20, %16) {length=4}",
     "SUM_SQUARES: (64, 64) and (T, 2): sizes differ"},
    {"%20 f32 (T, 16) = combine(%5, %19)", "COMBINE: (T, 4, 16) and (T, 2): sizes differ"},
    {"%20 f32 (T, 16) = combine(%3, %19)", "COMBINE: input 0 has 2 dims, want 3"},
    {"%20 f32 (T, 2, 64) = angles(%3, %1) "
     "{scale=1, sections=[0, 0, 0, 0]}",
     "ANGLES: input 0 has 2 dims"},
    {IR_ANGLES "%22 f32 (T, 4, 16) = rotate(%5, %20) {eps=0, rotate=16, pairs=half}", NULL},
    {IR_ANGLES "%22 f32 (T, 4, 16) = rotate(%5, %20) {eps=0, rotate=8, pairs=half}",
     "ROTATE: rotates 8 of 16 values with 2 x 8 angles"},
    {IR_ANGLES "%22 f32 (T, 4, 16) = rotate(%5, %6) {eps=0, rotate=16, pairs=half}",
     "ROTATE: rotates 16 of 16 values with 2 x 16 angles"},
    {IR_ANGLES "%22 f32 (T, 4, 16) = rotate(%5, %20, %12) {eps=0, rotate=16, pairs=half}",
     "ROTATE: (64) and (T, 4, 16): sizes differ"},
    {"%20 f32 (T, 192) = project(%3, %11, %11)", NULL},
    {"%20 f32 (T, 96) = project(%3, %11, _)", "PROJECT: weight 2 is absent"},
    {"%20 f32 (T, 160) = project(%3, %11, %14)", "PROJECT: (T, 64) and (64, 4): sizes differ"},
    {"%20 f32 (96, 64) = param\n%21 f32 (T, 96) = gated(%3, %11, %20) {act=silu}", NULL},
    {"%20 f32 (95, 64) = param\n%21 f32 (T, 96) = gated(%3, %11, %20) {act=silu}",
     "GATED: (96, 64) and (95, 64): sizes differ"},
    {"%20 f32 (T, 64), %21 f32 (T, 64) = add_norm(%3, %12, %12) {eps=1, form=f32}",
     "ADD_NORM: (T, 64) and (64): sizes differ"},
    {"%20 f32 (T, 64), %21 f32 (T, 64) = add_norm(%3, %4, %13) {eps=1, form=f32}",
     "ADD_NORM: (8) and (T, 64): sizes differ"},
    {"%20 f32 (T, 64) = norm_quantize(%3, %13) {eps=1, form=f32}", "NORM_QUANTIZE: (8) and"},
    {IR_ANGLES "%22 cache (2, 16, 16) = rotate_write(%7, %5, %6, %1, %20) "
               "{eps=0, rotate=16, pairs=half}",
     "ROTATE_WRITE: (T, 4, 16) and (2, 16, 16): sizes differ"},
    {IR_ANGLES "%22 cache (2, 16, 16) = rotate_write(%7, %6, %6, %1, %20) "
               "{eps=0, rotate=12, pairs=half}",
     "ROTATE_WRITE: rotates 12 of 16 values with 2 x 8 angles"},
    {IR_ANGLES "%22 f32 (3) = param\n%23 f32 (T, 4, 16), %24 cache (2, 16, 16) = "
               "attention(%5, %6, %6, %7, %20, %1, _, _, %22) {eps=0, scale=1, cap=0, window=0, "
               "rule=causal, rotate=16, pairs=half}",
     "ATTENTION: (3) and (T, 4, 16): sizes differ"},
    {IR_ANGLES "%22 f32 (T, 3, 16) = input\n%23 f32 (T, 3, 16), %24 cache (2, 16, 16) = "
               "attention(%22, %6, %6, %7, %20, %1) {eps=0, scale=1, cap=0, window=0, "
               "rule=causal, rotate=16, pairs=half}",
     "ATTENTION: 3 heads, 2 kv heads"},
    {IR_ANGLES "%22 f32 (T, 4, 16), %23 cache (2, 16, 16) = "
               "attention(%5, %6, %6, %7, %20, %1, _, %12) {eps=0, scale=1, cap=0, window=0, "
               "rule=causal, rotate=16, pairs=half}",
     "ATTENTION: (64) and (T, 2, 16): sizes differ"},
    {"%20 f32 (T, 7) = input\n%21 bf16 (8, 64, 32) = param\n"
     "%22 f32 (T, 64) = experts(%3, %20, %15, %15, %21) "
     "{scale=1, top=2, normalize=1, form=f32, act=silu}",
     "EXPERTS: (8, 32, 64) and (T, 7): sizes differ"},
    {"%20 f32 (T, 8) = input\n%21 bf16 (8, 64, 31) = param\n"
     "%22 f32 (T, 64) = experts(%3, %20, %15, %15, %21) "
     "{scale=1, top=2, normalize=1, form=f32, act=silu}",
     "EXPERTS: (8, 64, 31) and (8, 32, 64): sizes differ"},
    {"%20 f32 (T, 8) = input\n%21 bf16 (8, 64, 32) = param\n"
     "%22 f32 (T, 64) = experts(%3, %20, %15, %15, %21) "
     "{scale=1, top=9, normalize=1, form=f32, act=silu}",
     "EXPERTS: 9 of 8 experts"},
    {"%20 f32 (T, 128) = all_gather(%3) {length=128, unit=32, parts=2, alike=0, form=f32}", NULL},
    {"%20 f32 (T, 2, 64) = all_gather(%6) {length=64, unit=16, parts=1, alike=0, form=f32}", NULL},
    {"%20 f32 (T, 512) = all_gather(_) {length=512, unit=256, parts=1, alike=0, form=i12_256}",
     NULL},
    {"%20 f32 (T, 64) = all_gather(%3, %0) {length=99, unit=3, parts=1, alike=0, form=f32}", NULL},
    {"%20 f32 (T, 64) = all_gather() {length=0, unit=0, parts=0, alike=0, form=f32}",
     "ALL_GATHER: 0 values of nothing"},
    {"%20 f32 (T, 64) = all_gather(%3, %0) {length=0, unit=0, parts=0, alike=0, form=f32}",
     "ALL_GATHER: 0 values of ids"},
    {"%20 f32 (T, 64) = all_gather(%3) {length=-64, unit=1, parts=1, alike=0, form=f32}",
     "ALL_GATHER: -64 values"},
    {"%20 f32 (T, 96) = all_gather(%3) {length=96, unit=0, parts=1, alike=0, form=f32}",
     "ALL_GATHER: 96 values in 1 parts of units of 0"},
    {"%20 f32 (T, 96) = all_gather(%3) {length=96, unit=16, parts=4, alike=0, form=f32}",
     "ALL_GATHER: 96 values in 4 parts of units of 16"},
    {"%20 f32 (T, 64) = all_gather(%3) {length=9223372036854775807, unit=1, parts=1, alike=0, "
     "form=f32}",
     "ALL_GATHER: 9223372036854775807 values"},
    {"%20 f32 (T, 96) = all_gather(%3) {length=96, unit=24, parts=2, alike=0, form=f32}",
     "ALL_GATHER: (T, 64) is no share of 96 values in units of 48"},
    {"%20 f32 (T, 32) = all_gather(%3) {length=32, unit=32, parts=1, alike=0, form=f32}",
     "(T, 64) is no share of 32"},
    {"%20 f32 (T, 256) = all_gather(%3) {length=256, unit=64, parts=1, alike=0, form=i8_32}",
     "packed in units of 64, want whole blocks of 256"},
    {"%20 f32 (T, 64) = all_gather(_, %0) {length=96, unit=3, parts=1, alike=0, form=f32}",
     "ALL_GATHER: ids, but no rows"},
    {"%20 f32 (T, 64) = all_gather(%3, %0) {length=96, unit=3, parts=2, alike=0, form=f32}",
     "ALL_GATHER: ids, but no rows"},
    {"%20 f32 (T, 64) = all_gather(%3, %2) {length=96, unit=3, parts=1, alike=0, form=f32}",
     "ALL_GATHER: (R) and (T, 64): sizes differ"},
    {"%20 \"w\" f32 (2, 64) = param share 1 of 128 [0+64]", "a share of the rows of (2, 64)"},
    {"%20 \"w\" f32 (2, 64) = param share 0 of 4 [0+3]", "3 indices, the shape has 2"},
    {"%20 bf16 (99, 63) = param\n%21 f32 (T, 99), %22 f32 (T, 4) = head(%3, %20) {start=0, cap=0, "
     "top=1}",
     "HEAD: (T, 64) and (99, 63): sizes differ"},
    {"%20 bf16 (99, 64) = param\n%21 f32 (T, 99), %22 f32 (T, 2) = head(%3, %20) {start=0, cap=0, "
     "top=0}",
     "HEAD: top 0 of 99 logits, want 1 to 64"},
    {"%20 bf16 (99, 64) = param\n%21 f32 (T, 99), %22 f32 (T, 132) = head(%3, %20) "
     "{start=0, cap=0, top=65}",
     "HEAD: top 65 of 99 logits, want 1 to 64"},
    {"%20 bf16 (16777217, 64) = param\n%21 f32 (T, 16777217), %22 f32 (T, 4) = head(%3, %20) "
     "{start=0, cap=0, top=1}",
     "HEAD: top 1 of 16777217 logits, want 1 to 64 of at most 16777216"},
    {"%20 bf16 (99, 64) = param\n%21 f32 (T, 99), %22 f32 (T, 5) = head(%3, %20) {start=0, cap=0, "
     "top=1}",
     "(T, 4)"},
};

static void shape_rules_accept_and_refuse(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        qn_err err = {0};
        qn_graph graph = {0};
        char text[4096];
        const size_t size = (size_t)snprintf(text, sizeof text, "%s%s", IR_LEAVES, shapes[i].line);
        if (shapes[i].message) {
            ASSERT_FAILS(qn_graph_parse(&graph, text, size, &err), QN_FORMAT, shapes[i].message);
        } else {
            ASSERT_OK(qn_graph_parse(&graph, text, size, &err));
            qn_graph_deinit(&graph);
        }
    }
}

// The builder infers what the text states: the same graph from both ways prints the same.
static void the_builder_gives_what_the_verifier_wants(void **state) {
    (void)state;
    for (int op = 0; op < QN_OP_COUNT; op++) {
        qn_err err = {0};
        qn_graph stated = {0}, built = {0};
        char text[4096];
        const size_t size = (size_t)snprintf(text, sizeof text, "%s%s", IR_LEAVES, ir_op_cases[op]);
        ASSERT_OK(qn_graph_parse(&stated, text, size, &err));
        qn_build b;
        qn_build_init(&b, &built, stated.name);
        for (size_t i = 0; i < stated.n_nodes; i++) {
            const qn_node *node = &stated.nodes[i];
            const qn_value *value = &stated.values[node->out[0]];
            b.layer = node->layer;
            if (node->op == QN_OP_INPUT) {
                qn_build_input(&b, value->name, value->kind, value->type, value->shape);
            } else if (node->op == QN_OP_PARAM) {
                qn_build_param(&b, value->name, value->type, value->shape);
                built.nodes[i].attrs = node->attrs; // the builder makes rows only
            } else if (node->op == QN_OP_CONST) {
                const int64_t n = value->shape.n_dims == 1 ? value->shape.dims[0].n : 4;
                const int32_t id = qn_build_const(&b, value->name, node->data, n);
                built.values[id].shape = value->shape; // the builder makes one dimension only
            } else {
                const int32_t id = qn_build_op(&b, node->op, node->in, node->n_in, &node->attrs);
                for (int o = 0; o < node->n_out; o++)
                    qn_build_name(&b, id + o, stated.values[node->out[o]].name);
            }
        }
        ASSERT_OK(qn_build_finish(&b, &err));
        ASSERT_OK(qn_graph_verify(&built, &err));
        qn_buf a = {0}, c = {0};
        qn_graph_print(&a, &stated);
        qn_graph_print(&c, &built);
        assert_string_equal(a.data, c.data);
        qn_buf_deinit(&a);
        qn_buf_deinit(&c);
        qn_graph_deinit(&stated);
        qn_graph_deinit(&built);
    }
}

static void the_builder_keeps_its_first_error(void **state) {
    (void)state;
    qn_err err = {0};
    qn_graph graph = {0};
    qn_build b;
    qn_build_init(&b, &graph, "g");
    b.layer = 4;
    const qn_shape shape = {2, {{1, QN_SYM_T}, {64, QN_SYM_ONE}}};
    const int32_t x = qn_build_input(&b, "x", QN_TENSOR, QN_TYPE_F32, shape);
    const int32_t y = qn_build1(&b, QN_OP_MERGE, x, NULL);
    assert_int_equal(y, QN_NO_VALUE);
    assert_int_equal(qn_build1(&b, QN_OP_SILU, y, NULL), QN_NO_VALUE);
    qn_build_output(&b, "y", y);
    ASSERT_FAILS(qn_build_finish(&b, &err), QN_FORMAT, "layer 4: MERGE: (T, 64)");
    assert_int_equal(graph.n_nodes, 1);
    assert_int_equal(graph.n_outputs, 0);
    qn_graph_deinit(&graph);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fault_is_caught),
        cmocka_unit_test(shape_rules_accept_and_refuse),
        cmocka_unit_test(the_builder_gives_what_the_verifier_wants),
        cmocka_unit_test(the_builder_keeps_its_first_error),
    };
    return cmocka_run_group_tests_name("ir verify", tests, NULL, NULL);
}
