#include "testing.h"
#include "ir_text_cases.h"

#include "ir/text.h"

#include <stdio.h>

enum { DEPTH = 16 };

// The length of the name that begins here.
static size_t name_length(const char *at) {
    size_t n = 0;
    while ((at[n] >= 'a' && at[n] <= 'z') || (at[n] >= 'A' && at[n] <= 'Z')) n++;
    return n;
}

// Passes the attributes of a tag; returns where its '>' or "/>" is.
static const char *check_attributes(const char *at) {
    for (;;) {
        while (*at == ' ') at++;
        if (*at == '>' || (*at == '/' && at[1] == '>')) return at;
        const size_t n = strcspn(at, "=\"<>&");
        assert_true(n > 0 && at[n] == '=' && at[n + 1] == '"');
        at += n + 2;
        const size_t value = strcspn(at, "\"<");
        assert_true(at[value] == '"');
        at += value + 1;
    }
}

// Checks one '&' of text: a known entity.
static void check_entity(const char *at) {
    static const char *const known[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strncmp(at, known[i], strlen(known[i])) == 0) return;
    }
    fail_msg("a bare '&': %.20s", at);
}

// Every tag is closed in order, every attribute is quoted, text is escaped, one root.
static void assert_well_formed(const char *svg) {
    struct {
        const char *name;
        size_t size;
    } open[DEPTH];
    int depth = 0, roots = 0;
    for (const char *at = svg; *at; at++) {
        if (*at == '&') check_entity(at);
        assert_true(*at != '>' && ((unsigned char)*at >= 0x20 || *at == '\n'));
        if (*at != '<') {
            if (depth == 0) assert_true(*at == '\n');
            continue;
        }
        const bool closes = at[1] == '/';
        at += closes ? 2 : 1;
        const size_t n = name_length(at);
        assert_true(n > 0);
        if (closes) {
            assert_true(depth-- > 0);
            assert_int_equal(n, open[depth].size);
            assert_memory_equal(at, open[depth].name, n);
            assert_true(at[n] == '>');
            at += n;
            continue;
        }
        const char *end = check_attributes(at + n);
        roots += depth == 0;
        if (*end == '>') {
            assert_true(depth < DEPTH);
            open[depth].name = at;
            open[depth++].size = n;
        }
        at = *end == '>' ? end : end + 1;
    }
    assert_int_equal(depth, 0);
    assert_int_equal(roots, 1);
}

static size_t count(const char *text, const char *part) {
    size_t n = 0;
    for (const char *at = strstr(text, part); at; at = strstr(at + 1, part)) n++;
    return n;
}

static void draw(qn_buf *svg, const char *text, size_t size) {
    qn_err err = {0};
    qn_graph graph = {0};
    ASSERT_OK(qn_graph_parse(&graph, text, size, &err));
    qn_buf_clear(svg);
    qn_graph_svg(svg, &graph);
    assert_false(svg->failed);
    qn_graph_deinit(&graph);
    assert_well_formed(svg->data);
    assert_null(strstr(svg->data, "<script"));
    assert_int_equal(count(svg->data, "http"), 1); // the name space, nothing fetched
}

static void draw_golden(qn_buf *svg, const char *name) {
    char path[1024];
    snprintf(path, sizeof path, TEST_DATA "/../golden/ir/%s.ir", name);
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("%s is missing", path);
    static char text[1 << 16];
    const size_t size = fread(text, 1, sizeof text, file);
    fclose(file);
    draw(svg, text, size);
}

static void equal_layers_are_drawn_once(void **state) {
    (void)state;
    qn_buf svg = {0};
    draw_golden(&svg, "dense");
    assert_int_equal(count(svg.data, ">x 3 layers (0-2)<"), 1);
    assert_int_equal(count(svg.data, ">attend<"), 1);
    assert_int_equal(count(svg.data, ">attn_q.weight<"), 1);       // without blk.0.
    assert_int_equal(count(svg.data, ">q4_0/q8_0 (192, 64)<"), 2); // layer 1 has another type
    assert_int_equal(count(svg.data, "blk."), 0);
    assert_int_equal(count(svg.data, "class=\"r\""), 3); // two residuals and the legend
    assert_int_equal(count(svg.data, ">cache.N<"), 1);
    assert_int_equal(count(svg.data, ">logits<"), 1);
    assert_int_equal(count(svg.data, ">scale=0.17677669<"), 1);
    assert_non_null(strstr(svg.data, "3 layers, 73 ops, 35 weights with 217.73 K parameters"));
    qn_buf_deinit(&svg);
}

static void periods_of_layers_fold(void **state) {
    (void)state;
    qn_buf svg = {0};
    draw_golden(&svg, "hybrid");
    assert_int_equal(count(svg.data, ">x 2 blocks of 4 layers<"), 1);
    assert_int_equal(count(svg.data, ">x 3 layers (0-2, 4-6)<"), 1);
    assert_int_equal(count(svg.data, ">x 1 layer (3, 7)<"), 1);
    assert_int_equal(count(svg.data, ">delta<"), 1);
    draw_golden(&svg, "gemma");
    assert_int_equal(count(svg.data, ">x 2 blocks of 3 layers, then the first 2 again<"), 1);
    assert_int_equal(count(svg.data, ">x 2 layers (0-1, 3-4, 6-7)<"), 1);
    draw_golden(&svg, "moe");
    assert_int_equal(count(svg.data, ">grouped_matmul<"), 3);
    qn_buf_deinit(&svg);
}

// Layers given by letters: each letter is an op, so that equal letters are equal layers.
static void draw_layers(qn_buf *svg, const char *letters) {
    static const char *const ops[] = {"silu", "gelu", "sigmoid", "softplus"};
    qn_buf text = {0};
    qn_buf_text(&text, "graph \"g\"\n%0 f32 (T, 4) = input\n");
    for (int i = 0; letters[i]; i++)
        qn_buf_printf(&text, "%%%d f32 (T, 4) = %s(%%%d) @%d\n", i + 1, ops[letters[i] - 'a'], i,
                      i);
    draw(svg, text.data, text.size);
    qn_buf_deinit(&text);
}

static void any_order_of_layers_is_told(void **state) {
    (void)state;
    static const struct {
        const char *letters, *titles[4];
    } cases[] = {
        {"a", {">layer 0<"}},
        {"ab", {">layer 0<", ">layer 1<"}},
        {"aab", {">x 2 layers (0-1)<", ">layer 2<"}},
        {"abbbb", {">layer 0<", ">x 4 layers (1-4)<"}},
        {"abababab", {">x 4 blocks of 2 layers<", ">x 1 layer (0, 2, 4, 6)<"}},
        {"caabaab", {">layer 0<", ">x 2 blocks of 3 layers<", ">x 2 layers (1-2, 4-5)<"}},
        // In no order: each kind once.
        {"abacadbcbdcdabcdacbdabdcadbcbadcabdacdbdbacdacbd", {">layers 0, 2, 4, 12, 16, 20, 24"}},
    };
    qn_buf svg = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        draw_layers(&svg, cases[i].letters);
        for (int k = 0; k < 4 && cases[i].titles[k]; k++) {
            if (count(svg.data, cases[i].titles[k]) != 1)
                fail_msg("%s: '%s' is not there once", cases[i].letters, cases[i].titles[k]);
        }
    }
    qn_buf_deinit(&svg);
}

// A value that goes past a box has its name at both ends; one that the next box reads has a line.
static void far_values_are_named(void **state) {
    (void)state;
    static const char far[] = "graph \"g\"\n"
                              "%0 \"x\" f32 (T, 4) = input\n"
                              "%1 f32 (T, 4) = sigmoid(%0)\n"
                              "%2 f32 (T, 4) = silu(%0)\n"
                              "%3 f32 (T, 4) = gelu(%2) @0\n"
                              "%4 f32 (T, 4) = add(%3, %1) @1\n"
                              "%5 f32 (T, 4) = add(%4, %1) @2\n"
                              "output \"y\" %5\n";
    qn_buf svg = {0};
    draw(&svg, far, strlen(far));
    assert_int_equal(count(svg.data, ">sigmoid, further down<"), 1);
    assert_int_equal(count(svg.data, ">sigmoid<"), 2); // the op, and where the layers read it
    assert_int_equal(count(svg.data, "further down"), 1);
    assert_int_equal(count(svg.data, "<circle"), 3 + 1); // silu, gelu, add leave; the legend
    qn_buf_deinit(&svg);
}

static void every_op_is_drawn(void **state) {
    (void)state;
    qn_buf svg = {0};
    for (int op = 0; op < QN_OP_COUNT; op++) {
        char text[4096];
        const int size =
            snprintf(text, sizeof text, "%s%s\noutput \"last\" %%20\n", IR_LEAVES, ir_op_cases[op]);
        draw(&svg, text, (size_t)size);
        if (qn_op_get((qn_op)op)->class_of == QN_CLASS_LEAF) continue;
        const char *line = strrchr(ir_op_cases[op], '=') ? strstr(ir_op_cases[op], " = ") : NULL;
        while (line && strstr(line + 1, " = ")) line = strstr(line + 1, " = ");
        char want[64];
        snprintf(want, sizeof want, ">%.*s<", (int)strcspn(line + 3, "("), line + 3);
        assert_int_equal(count(svg.data, want), 1);
    }
    qn_buf_deinit(&svg);
}

static void hostile_names_stay_text(void **state) {
    (void)state;
    static const char text[] = "graph \"</title><script>alert(1)</script>&\\x01\\xff'\"\n"
                               "%0 \"<b>&amp;\\\"\" f32 (T, 4) = input\n"
                               "%1 \"blk.0.<w onload='x'>\" f32 (4, 4) = param\n"
                               "%2 \"\\xef\\xbf\\xbf\\n\" f32 (T, 4) = matmul(%0, %1) @0\n"
                               "output \"]]>--><svg\" %2\n";
    qn_buf svg = {0};
    draw(&svg, text, sizeof text - 1);
    assert_non_null(strstr(svg.data, "&lt;b&gt;&amp;amp;&quot;"));
    assert_non_null(strstr(svg.data, "&lt;script&gt;alert(1)&lt;/script&gt;&amp;??&#39;"));
    assert_non_null(strstr(svg.data, ">&lt;w onload=&#39;x&#39;&gt;<"));
    assert_non_null(strstr(svg.data, "]]&gt;--&gt;&lt;svg"));
    // A long name is cut.
    qn_buf longer = {0};
    qn_buf_text(&longer, "graph \"g\"\n%0 \"");
    for (int i = 0; i < 5000; i++) qn_buf_text(&longer, "\xc3\xa9");
    qn_buf_text(&longer, "\" f32 (T, 4) = input\n%1 f32 (T, 4) = silu(%0)\n");
    draw(&svg, longer.data, longer.size);
    assert_true(svg.size < 8000);
    qn_buf_deinit(&longer);
    qn_buf_deinit(&svg);
}

static void large_graphs_are_cut_and_counted(void **state) {
    (void)state;
    qn_buf text = {0}, svg = {0};
    qn_buf_text(&text, "graph \"g\"\n%0 f32 (T, 4) = input\n");
    for (int i = 1; i <= 5000; i++)
        qn_buf_printf(&text, "%%%d f32 (T, 4) = add(%%%d, %%%d)\n", i, i - 1, (i - 1) / 2);
    draw(&svg, text.data, text.size);
    assert_non_null(strstr(svg.data, ">and 4744 more ops<"));
    qn_buf_clear(&text);
    qn_buf_text(&text, "graph \"g\"\n%0 f32 (T, 64) = input\n");
    for (int i = 1; i <= 60; i++) { // no two layers alike
        qn_buf_printf(&text, "%%%d f32 (T, 64) = scale(%%%d) {scale=%d} @%d\n", i, i - 1, i, i);
    }
    draw(&svg, text.data, text.size);
    assert_non_null(strstr(svg.data, ">and 36 more parts<"));
    qn_buf_deinit(&text);
    draw(&svg, "graph \"\"", 8); // nothing at all
    qn_buf_deinit(&svg);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_layers_are_drawn_once),
        cmocka_unit_test(periods_of_layers_fold),
        cmocka_unit_test(any_order_of_layers_is_told),
        cmocka_unit_test(far_values_are_named),
        cmocka_unit_test(every_op_is_drawn),
        cmocka_unit_test(hostile_names_stay_text),
        cmocka_unit_test(large_graphs_are_cut_and_counted),
    };
    return cmocka_run_group_tests_name("ir svg", tests, NULL, NULL);
}
