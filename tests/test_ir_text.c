#include "testing.h"
#include "ir_text_cases.h"

#include "ir/text.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void print(qn_buf *to, const qn_graph *graph) {
    qn_buf_clear(to);
    qn_graph_print(to, graph);
    assert_false(to->failed);
}

static void assert_same_values(const qn_graph *a, const qn_graph *b) {
    assert_int_equal(a->n_values, b->n_values);
    for (size_t i = 0; i < a->n_values; i++) {
        const qn_value *x = &a->values[i], *y = &b->values[i];
        assert_int_equal(x->kind, y->kind);
        assert_int_equal(x->type, y->type);
        assert_int_equal(x->node, y->node);
        assert_string_equal(x->name, y->name);
        assert_true(qn_shape_equal(&x->shape, &y->shape));
    }
}

static size_t count_of(const qn_shape *shape) {
    size_t n = 1;
    for (int i = 0; i < shape->n_dims; i++) n *= (size_t)shape->dims[i].n;
    return n;
}

static void assert_same_share(const qn_share *a, const qn_share *b) {
    assert_true(!a == !b);
    if (!a) return;
    assert_int_equal(a->axis, b->axis);
    assert_int_equal(a->whole, b->whole);
    assert_int_equal(a->n_ranges, b->n_ranges);
    assert_memory_equal(a->ranges, b->ranges, (size_t)a->n_ranges * sizeof *a->ranges);
}

static void assert_same_nodes(const qn_graph *a, const qn_graph *b) {
    assert_int_equal(a->n_nodes, b->n_nodes);
    for (size_t i = 0; i < a->n_nodes; i++) {
        const qn_node *x = &a->nodes[i], *y = &b->nodes[i];
        assert_int_equal(x->op, y->op);
        assert_int_equal(x->layer, y->layer);
        assert_int_equal(x->n_in, y->n_in);
        assert_int_equal(x->n_out, y->n_out);
        assert_memory_equal(x->in, y->in, sizeof x->in);
        assert_memory_equal(x->out, y->out, sizeof x->out);
        assert_memory_equal(&x->attrs, &y->attrs, sizeof x->attrs); // both zeroed where unused
        assert_same_share(x->share, y->share);
        if (x->op == QN_OP_CONST)
            assert_memory_equal(x->data, y->data,
                                count_of(&a->values[x->out[0]].shape) * sizeof(float));
    }
    assert_int_equal(a->n_outputs, b->n_outputs);
    for (size_t i = 0; i < a->n_outputs; i++) {
        assert_int_equal(a->outputs[i].value, b->outputs[i].value);
        assert_string_equal(a->outputs[i].name, b->outputs[i].name);
        assert_same_share(a->outputs[i].share, b->outputs[i].share);
    }
}

// Text -> graph -> text -> graph -> text: both graphs and both printed texts are the same.
static void assert_round_trip(const char *text, size_t size) {
    qn_err err = {0};
    qn_graph a = {0}, b = {0};
    qn_buf first = {0}, second = {0};
    ASSERT_OK(qn_graph_parse(&a, text, size, &err));
    print(&first, &a);
    ASSERT_OK(qn_graph_parse(&b, first.data, first.size, &err));
    print(&second, &b);
    assert_string_equal(first.data, second.data);
    assert_string_equal(a.name, b.name);
    assert_same_values(&a, &b);
    assert_same_nodes(&a, &b);
    qn_buf_deinit(&first);
    qn_buf_deinit(&second);
    qn_graph_deinit(&a);
    qn_graph_deinit(&b);
}

static void shares_round_trip(void **state) {
    (void)state;
    static const char text[] =
        "graph \"share\"\n%0 \"ids\" i32 (T) = input\n"
        "%1 \"w\" q8_0 (48, 64) = param {layout=tiles} share 0 of 96 [0+16, 64+32] @3\n"
        "%2 \"x\" f32 (T, 64) = input\n%3 f32 (T, 48) = matmul(%2, %1)\n"
        "%4 f32 (T, 96) = all_gather(%3) {length=96, unit=8, parts=2, alike=0, form=f32}\n"
        "%5 f32 (T, 64) = all_gather(%2, %0) {length=512, unit=16, parts=1, alike=0, form=f32}\n"
        "%6 f32 (T, 512) = all_gather(_) {length=512, unit=256, parts=1, alike=0, form=i12_256}\n"
        "output \"part\" %3 share 1 of 96 [0+16, 64+32]\noutput \"all\" %4\n";
    qn_err err;
    qn_graph graph = {0};
    assert_round_trip(text, sizeof text - 1);
    ASSERT_OK(qn_graph_parse(&graph, text, sizeof text - 1, &err));
    const qn_share *share = graph.nodes[1].share;
    assert_int_equal(share->axis, 0);
    assert_int_equal(share->whole, 96);
    assert_int_equal(share->n_ranges, 2);
    assert_true(share->ranges[1].first == 64 && share->ranges[1].n == 32);
    assert_int_equal(graph.outputs[0].share->axis, 1);
    assert_null(graph.outputs[1].share);
    qn_graph_deinit(&graph);
}

static void every_op_round_trips(void **state) {
    (void)state;
    for (int op = 0; op < QN_OP_COUNT; op++) {
        if (!ir_op_cases[op]) fail_msg("%s has no case", qn_op_get((qn_op)op)->name);
        qn_err err = {0};
        qn_graph graph = {0};
        char text[4096];
        const int size =
            snprintf(text, sizeof text, "%s%s\noutput \"last\" %%20\n", IR_LEAVES, ir_op_cases[op]);
        ASSERT_OK(qn_graph_parse(&graph, text, (size_t)size, &err));
        assert_int_equal(graph.nodes[graph.n_nodes - 1].op, op);
        assert_string_equal(graph.outputs[0].name, "last");
        qn_graph_deinit(&graph);
        assert_round_trip(text, (size_t)size);
    }
}

static void every_attribute_and_word_is_read(void **state) {
    (void)state;
    uint32_t seen = 0;
    for (int op = 0; op < QN_OP_COUNT; op++) seen |= qn_op_get((qn_op)op)->attrs;
    assert_int_equal(seen, (1u << QN_ATTR_COUNT) - 1); // so every_op_round_trips reads them all
    static const struct {
        const char *before, *after; // the word
    } forms[] = {
        [QN_ATTR_rule] = {"%20 f32 (T, 4, 16) = attend(%5, %7, %1) "
                          "{scale=1, cap=0, window=0, rule=",
                          "}"},
        [QN_ATTR_pairs] = {"%20 f32 (T, 4, 16) = rope(%5, %13, %1) {scale=1, rotate=16, pairs=",
                           ", sections=[0, 0, 0, 0]}"},
        [QN_ATTR_heads] = {"%20 f32 (T, 4, 16), %21 state (4, 16, 16) = "
                           "delta(%6, %6, %5, %10, %10, %9, %1) {scale=1, heads=",
                           "}"},
        [QN_ATTR_form] = {"%20 f32 (T, 64) = quantize(%3) {form=", "}"},
        [QN_ATTR_act] = {"%20 f32 (T, 96) = gated(%3, %11, %11) {act=", "}"},
        [QN_ATTR_layout] = {"%20 f32 (8, 64) = param {layout=", "}"},
    };
    for (int w = 0; w < QN_WORD_COUNT; w++) {
        const qn_word_info *info = qn_word_get((qn_word)w);
        assert_true(info->attr < sizeof forms / sizeof forms[0] && forms[info->attr].before);
        char text[4096];
        const int size = snprintf(text, sizeof text, "%s%s%s%s", IR_LEAVES,
                                  forms[info->attr].before, info->name, forms[info->attr].after);
        assert_round_trip(text, (size_t)size);
        qn_err err;
        qn_graph graph = {0};
        ASSERT_OK(qn_graph_parse(&graph, text, (size_t)size, &err));
        const qn_node *last = &graph.nodes[graph.n_nodes - 1];
        const char *at = (const char *)&last->attrs + qn_attr_get(info->attr)->offset;
        assert_int_equal(*(const qn_word *)at, w);
        qn_graph_deinit(&graph);
    }
}

static void golden_files_are_as_printed(void **state) {
    (void)state;
    static const char *const names[] = {"dense", "moe", "gemma", "hybrid"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        qn_err err;
        char path[1024];
        snprintf(path, sizeof path, TEST_DATA "/../golden/ir/%s.ir", names[i]);
        FILE *file = fopen(path, "rb");
        if (!file) fail_msg("%s is missing", path);
        static char text[1 << 16];
        const size_t size = fread(text, 1, sizeof text - 1, file);
        fclose(file);
        text[size] = 0;
        qn_graph graph = {0};
        qn_buf printed = {0};
        ASSERT_OK(qn_graph_parse(&graph, text, size, &err));
        print(&printed, &graph);
        assert_string_equal(printed.data, text);
        assert_string_equal(graph.name, names[i]);
        qn_buf_deinit(&printed);
        qn_graph_deinit(&graph);
        assert_round_trip(text, size);
    }
}

static float parse_float(const char *text) {
    qn_err err;
    qn_graph graph = {0};
    char line[256];
    const int size = snprintf(line, sizeof line, "graph \"f\"\n%%0 f32 (1) = const [%s]", text);
    ASSERT_OK(qn_graph_parse(&graph, line, (size_t)size, &err));
    const float value = graph.nodes[0].data[0];
    qn_graph_deinit(&graph);
    return value;
}

static void assert_float_round_trips(float value) {
    qn_buf text = {0};
    qn_float_print(&text, value);
    const float back = parse_float(text.data);
    if (memcmp(&back, &value, sizeof value) != 0)
        fail_msg("%a became %a by way of '%s'", (double)value, (double)back, text.data);
    qn_buf_deinit(&text);
}

static uint64_t next_random(uint64_t *seed) {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

static void floats_are_short_and_exact(void **state) {
    (void)state;
    static const struct {
        float value;
        const char *text;
    } cases[] = {{0, "0"},
                 {-0.0f, "-0"},
                 {1, "1"},
                 {1e-6f, "1e-6"},
                 {1e-5f, "1e-5"},
                 {0.0001f, "0.0001"},
                 {0.1f, "0.1"},
                 {-12.5f, "-12.5"},
                 {10000000, "10000000"},
                 {123456792, "123456790"},
                 {1e9f, "1e9"},
                 {3.4028235e38f, "3.4028235e38"},
                 {1.17549435e-38f, "1.1754944e-38"},
                 {1.4e-45f, "1e-45"},
                 {0.17677669f, "0.17677669"},
                 {16777216, "16777216"},
                 {INFINITY, "inf"},
                 {-INFINITY, "-inf"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        qn_buf text = {0};
        qn_float_print(&text, cases[i].value);
        assert_string_equal(text.data, cases[i].text);
        qn_buf_deinit(&text);
        assert_float_round_trips(cases[i].value);
    }
    uint64_t seed = 88172645463325252u;
    for (int i = 0; i < 20000; i++) {
        const uint32_t bits = (uint32_t)next_random(&seed); // every kind, NaN payloads too
        float value;
        memcpy(&value, &bits, sizeof value);
        assert_float_round_trips(value);
    }
    assert_true(parse_float("1E+2") == 100.0f);
    assert_true(parse_float("0x3f800000") == 1.0f);
    assert_true(parse_float("00000000000000000000000000000000000001.5") == 1.5f);
}

static void floats_do_not_follow_the_locale(void **state) {
    (void)state;
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE",
                                        "ps_AF.UTF-8"};
    bool set = false;
    for (size_t i = 0; !set && i < sizeof names / sizeof names[0]; i++)
        set = setlocale(LC_ALL, names[i]) && localeconv()->decimal_point[0] != '.';
    if (!set) {
        print_message("skip: no locale with another decimal point is installed\n");
        skip();
    }
    qn_buf text = {0};
    qn_float_print(&text, -12.5f);
    const bool same = strcmp(text.data, "-12.5") == 0;
    const float back = parse_float("0.15625");
    setlocale(LC_ALL, "C");
    assert_true(same);
    assert_true(back == 0.15625f);
    qn_buf_deinit(&text);
}

static void names_of_any_bytes_round_trip(void **state) {
    (void)state;
    char all[256];
    for (int i = 1; i < 256; i++) all[i - 1] = (char)i;
    all[255] = 0;
    const char *const names[] = {all,    "plain",    "\xc3\xa9\xe2\x96\x81",
                                 "\"\\", "\xff\xc3", "a ; b # c"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        qn_err err;
        qn_value value = {.name = names[i], .shape = {1, {{1, QN_SYM_T}}}};
        qn_node node = {.op = QN_OP_INPUT, .n_out = 1, .layer = -1};
        qn_output output = {.value = 0, .name = names[i]};
        const qn_graph graph = {.name = names[i],
                                .values = &value,
                                .nodes = &node,
                                .outputs = &output,
                                .n_values = 1,
                                .n_nodes = 1,
                                .n_outputs = 1};
        ASSERT_OK(qn_graph_verify(&graph, &err));
        qn_buf text = {0};
        print(&text, &graph);
        qn_graph back = {0};
        ASSERT_OK(qn_graph_parse(&back, text.data, text.size, &err));
        assert_string_equal(back.name, names[i]);
        assert_string_equal(back.values[0].name, names[i]);
        assert_string_equal(back.outputs[0].name, names[i]);
        qn_graph_deinit(&back);
        qn_buf_deinit(&text);
    }
}

static void layout_is_free(void **state) {
    (void)state;
    qn_err err;
    qn_graph graph = {0};
    static const char text[] = "; a comment first\n\n  graph   \"g\"  # and one behind\r\n"
                               "\t%0\"x\"f32(T,64)=input ; \"no string\n"
                               "%1 cache:f16(2 , 4*B, 7)=input@2147483647\n\n"
                               "%2 f32 (T, 64) = scale ( %0 ) { scale = 1e0 } @ 0\n"
                               "output \"o\" %2;\n#end";
    ASSERT_OK(qn_graph_parse(&graph, text, sizeof text - 1, &err));
    assert_int_equal(graph.n_nodes, 3);
    assert_int_equal(graph.nodes[1].layer, INT32_MAX);
    assert_int_equal(graph.values[1].type, QN_TYPE_F16);
    assert_int_equal(graph.values[1].shape.dims[1].n, 4);
    assert_int_equal(graph.values[1].shape.dims[1].sym, QN_SYM_B);
    qn_graph_deinit(&graph);
    assert_round_trip(text, sizeof text - 1);
    ASSERT_OK(qn_graph_parse(&graph, "graph \"\"", 8, &err)); // nothing at all is a graph too
    assert_int_equal(graph.n_nodes, 0);
    qn_graph_deinit(&graph);
}

#define G "graph \"g\"\n"
#define X G "%0 f32 (T, 64) = input\n"

static const struct {
    const char *text, *message;
} faults[] = {
    {"", "line 1, column 1: expected graph \"name\", found the end of the text"},
    {"; nothing\n\n", "line 3, column 1: expected graph"},
    {"grap \"g\"", "expected graph \"name\", found 'grap'"},
    {"graph g", "line 1, column 7: expected the graph's name, found 'g'"},
    {"graph \"g", "line 1, column 7: a string without its end"},
    {"graph \"g\n\"", "a string without its end"},
    {"graph \"g\\\"", "a string without its end"},
    {"graph \"g\" 7", "expected the end of the line, found '7'"},
    {"graph \"\\q\"", "line 1, column 8: expected an escape"},
    {"graph \"\\x0\"", "expected an escape"},
    {"graph \"\\x00\"", "expected an escape"},
    {"graph \"\x01\"", "byte 0x01 in a string"},
    {"graph \"\xff\"", "byte 0xff in a string"},
    {G "graph \"h\"", "line 2, column 1: expected a value or an output, found 'graph'"},
    {G "%", "line 2, column 2: expected the number of a value, found the end of the text"},
    {G "%x", "expected the number of a value, found 'x'"},
    {G "%-1 f32 (T) = input", "value -1 is out of range"},
    {G "%99999999999 f32 (T) = input", "value 99999999999 is out of range"},
    {G "%99999999999999999999 f32 (T) = input", "the number of a value is too large"},
    {G "%1 f32 (T) = input", "line 2, column 1: value %1, want %0"},
    {X "%0 f32 (T) = input", "line 3, column 1: value %0, want %1"},
    {G "%0 (T) = input", "line 2, column 4: expected a type, found '('"},
    {G "%0 f31 (T) = input", "expected a type, found 'f31'"},
    {G "%0 f32f32f32f32f32f32f32f32f32 (T) = input", "expected a type"},
    {G "%0 cache:g (T) = input", "line 2, column 10: expected a type, found 'g'"},
    {G "%0 f32 T = input", "expected '(', found 'T'"},
    {G "%0 f32 (T = input", "expected ')', found '='"},
    {G "%0 f32 (T,) = input", "expected a dimension, found ')'"},
    {G "%0 f32 (Q) = input", "expected a dimension, found 'Q'"},
    {G "%0 f32 (4*) = input", "expected a dimension, found ')'"},
    {G "%0 f32 (0) = input", "line 2, column 9: dimension 0, want 1 or more"},
    {G "%0 f32 (-4) = input", "dimension -4, want 1 or more"},
    {G "%0 f32 (1, 2, 3, 4, 5) = input", "more than 4 dimensions"},
    {G "%0 f32 (9223372036854775808) = input", "a dimension is too large"},
    {G "%0 f32 (T) input", "expected '=', found 'input'"},
    {G "%0 f32 (T) = inputs", "line 2, column 14: expected an op, found 'inputs'"},
    {G "%0 f32 (T) = INPUT", "expected an op, found 'INPUT'"},
    {G "%0 f32 (T) = input()", "expected the end of the line, found '('"},
    {G "%0 f32 (T) = input @", "expected the number of a layer"},
    {G "%0 f32 (T) = input @-1", "layer -1"},
    {G "%0 f32 (T) = input @2147483648", "layer 2147483648"},
    {G "%0 f32 (T), %1 f32 (T) = input", "line 2, column 1: 2 results of INPUT, want 1"},
    {G "%0 f32 (T), %1 f32 (T), %2 f32 (T) = input", "more than 2 results"},
    {G "%0 f32 (1) = const", "expected '[', found the end of the text"},
    {G "%0 f32 (2) = const [1]", "line 2, column 20: a constant F32 (2) with 1 numbers"},
    {G "%0 f32 (1) = const []", "a constant F32 (1) with 0 numbers"},
    {G "%0 f32 (T) = const [1]", "a constant F32 (T) with 1 numbers"},
    {G "%0 f16 (1) = const [1]", "a constant F16 (1) with 1 numbers"},
    {G "%0 table (1) = const [1]", "a constant"},
    {G "%0 f32 (4611686018427387904, 4) = const [1]", "a constant F32"},
    {G "%0 f32 (1) = const [x]", "expected a number of at most 40 digits, found 'x'"},
    {G "%0 f32 (1) = const [.]", "expected a number"},
    {G "%0 f32 (1) = const [1e]", "expected an exponent, found ']'"},
    {G "%0 f32 (1) = const [1e99999]", "exponent 99999 is out of range"},
    {G "%0 f32 (1) = const [1e39]", "1e39 is out of the range of a float"},
    {G "%0 f32 (1) = const [1e-60]", "1e-60 is out of the range of a float"},
    {G "%0 f32 (1) = const [1.2.3]", "expected ']'"},
    {G "%0 f32 (1) = const [0x12]", "expected 8 hex digits"},
    {G "%0 f32 (1) = const [nan]", "expected a number"},
    {G "%0 f32 (1) = const [11111111111111111111111111111111111111111]", "at most 40 digits"},
    {X "%1 f32 (T, 64) = silu", "expected '(', found the end of the text"},
    {X "%1 f32 (T, 64) = silu(0)", "expected '%', found '0'"},
    {X "%1 f32 (T, 64) = silu(%0", "expected ')'"},
    {X "%1 f32 (T, 64) = silu(%1)", "line 3, column 23: %1 is not made before this line"},
    {X "%1 f32 (T, 64) = silu(%0,%0,%0,%0,%0,%0,%0,%0,%0,%0)", "more than 9 inputs"},
    {X "%1 f32 (T, 64) = silu()", "line 3: node 1: SILU: 0 inputs, want 1 to 1"},
    {X "%1 f32 (T, 64) = silu(%0, %0)", "line 3: node 1 (SILU): 2 inputs"},
    {X "%1 f32 (T, 64) = silu(_)", "line 3: node 1: SILU: input 0 is value -1"},
    {X "%1 f32 (T, 64) = silu(%0) {eps=1}", "expected the end of the line, found '{'"},
    {X "%1 f32 (T, 64) = scale(%0)", "expected '{'"},
    {X "%1 f32 (T, 64) = scale(%0) {}", "expected an attribute, found '}'"},
    {X "%1 f32 (T, 64) = scale(%0) {skale=1}", "expected an attribute, found 'skale'"},
    {X "%1 f32 (T, 64) = scale(%0) {eps=1}", "SCALE has no attribute 'eps'"},
    {X "%1 f32 (T, 64) = scale(%0) {scale=1, scale=2}", "attribute 'scale' twice"},
    {X "%1 f32 (T, 64) = scale(%0) {scale 1}", "expected '=', found '1'"},
    {X "%1 f32 (T, 64) = scale(%0) {scale=1", "expected '}'"},
    {X "%1 f32 (T, 8) = narrow(%0) {axis=1, length=8}", "NARROW without attribute 'start'"},
    {X "%1 f32 (T, 64) = quantize(%0) {form=causal}", "expected a word of 'form', found 'caus"},
    {X "%1 f32 (T, 1, 64) = split(%0) {parts=1.5}", "found '.'"},
    {X "%1 f32 (T, 64) = rope(%0) "
       "{scale=1, rotate=2, pairs=half, sections=[1, 2]}",
     "expected ','"},
    {X "output logits %0", "expected the output's name, found 'logits'"},
    {X "output \"logits\"", "expected '%'"},
    {X "output \"logits\" %1", "line 3, column 17: %1 is not made before this line"},
    {X "%1 f32 (T, 32) = silu(%0)", "line 3: node 1 (SILU): result 0 is tensor F32 (T, 32)"},
    {X "\n\n%1 q8_0 (4, 33) = param\n%2 f32 (T, 64) = silu(%0)", "line 5: node 1"},
};

static void faults_are_named_with_their_place(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        qn_err err = {0};
        qn_graph graph = {.n_nodes = 77};
        ASSERT_FAILS(qn_graph_parse(&graph, faults[i].text, strlen(faults[i].text), &err),
                     QN_FORMAT, faults[i].message);
        assert_int_equal(graph.n_nodes, 77); // untouched
        assert_null(graph.name);
        assert_int_equal(qn_graph_parse(&graph, faults[i].text, strlen(faults[i].text), NULL),
                         QN_FORMAT);
    }
}

// Parses bytes that may be anything; what is accepted must round-trip.
static bool try_text(const char *text, size_t size) {
    qn_graph graph = {0};
    qn_err err = {0};
    char *exact = malloc(size ? size : 1); // so that a read past the end is seen
    assert_non_null(exact);
    memcpy(exact, text, size);
    const bool ok = qn_graph_parse(&graph, exact, size, &err) == QN_OK;
    free(exact);
    if (!ok) {
        assert_true(err.message[0] != 0);
        return false;
    }
    qn_buf first = {0};
    print(&first, &graph);
    qn_graph_deinit(&graph);
    assert_round_trip(first.data, first.size);
    qn_buf_deinit(&first);
    return true;
}

static size_t all_ops_text(char *to, size_t size) {
    size_t used = (size_t)snprintf(to, size, "%s", IR_LEAVES);
    int32_t next = 20;
    for (int op = 0; op < QN_OP_COUNT; op++) {
        if (strchr(ir_op_cases[op], '\n')) continue;
        // Cases number their results from 20; here they follow each other.
        for (const char *at = ir_op_cases[op]; *at; at++) {
            if (at[0] != '%' || at[1] != '2' || (at[2] != '0' && at[2] != '1')) {
                to[used++] = *at;
                continue;
            }
            used += (size_t)snprintf(to + used, size - used, "%%%d", next + at[2] - '0');
            at += 2;
        }
        next += qn_op_get((qn_op)op)->n_out;
        to[used++] = '\n';
        assert_true(used + 512 < size);
    }
    return used;
}

static void mutated_text_is_refused_or_right(void **state) {
    (void)state;
    static char text[16384], work[16400];
    const size_t size = all_ops_text(text, sizeof text);
    assert_true(try_text(text, size));
    for (size_t cut = 0; cut < size; cut += 7) try_text(text, cut);
    static const char alphabet[] = "%\"()[]{}=,@_*:;#\n\\ x0189-.eTfcsigq\xff\x01";
    uint64_t seed = 20261114;
    int accepted = 0;
    for (int round = 0; round < 4000; round++) {
        memcpy(work, text, size);
        size_t n = size;
        for (uint64_t k = 1 + next_random(&seed) % 4; k > 0; k--) {
            const size_t at = next_random(&seed) % n;
            const char c = alphabet[next_random(&seed) % (sizeof alphabet - 1)];
            const uint64_t what = next_random(&seed) % 3;
            if (what == 0) {
                work[at] = c;
            } else if (what == 1) {
                memmove(work + at, work + at + 1, n - at - 1);
                n--;
            } else {
                memmove(work + at + 1, work + at, n - at);
                work[at] = c;
                n++;
            }
        }
        accepted += try_text(work, n);
    }
    assert_true(accepted > 0); // otherwise the mutations reach nothing
}

static void memory_follows_the_text(void **state) {
    (void)state;
    qn_err err;
    qn_graph graph = {0};
    qn_buf text = {0};
    qn_buf_text(&text, "graph \"long\"\n%0 f32 (T) = input\n");
    for (int i = 1; i < 20000; i++) qn_buf_printf(&text, "%%%d f32 (T) = silu(%%%d)\n", i, i - 1);
    ASSERT_OK(qn_graph_parse(&graph, text.data, text.size, &err));
    const size_t bytes = graph.arena.bytes + graph.cap_nodes * sizeof *graph.nodes +
                         graph.cap_values * sizeof *graph.values;
    assert_true(bytes < 64 * text.size);
    qn_graph_deinit(&graph);
    qn_buf_clear(&text);
    // Large claims with nothing behind them cost nothing.
    qn_buf_text(&text, "graph \"\"\n%0 f32 (999999999999, 9999999) = input @999999999\n");
    ASSERT_OK(qn_graph_parse(&graph, text.data, text.size, &err));
    assert_true(graph.arena.bytes < 8192);
    qn_graph_deinit(&graph);
    qn_buf_deinit(&text);
    ASSERT_FAILS(qn_graph_parse(&graph, "", (size_t)2 << 30, &err), QN_LIMIT, "2147483648 bytes");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_round_trips),
        cmocka_unit_test(shares_round_trip),
        cmocka_unit_test(every_attribute_and_word_is_read),
        cmocka_unit_test(golden_files_are_as_printed),
        cmocka_unit_test(floats_are_short_and_exact),
        cmocka_unit_test(floats_do_not_follow_the_locale),
        cmocka_unit_test(names_of_any_bytes_round_trip),
        cmocka_unit_test(layout_is_free),
        cmocka_unit_test(faults_are_named_with_their_place),
        cmocka_unit_test(mutated_text_is_refused_or_right),
        cmocka_unit_test(memory_follows_the_text),
    };
    return cmocka_run_group_tests_name("ir text", tests, NULL, NULL);
}
