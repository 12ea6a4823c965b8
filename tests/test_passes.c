// The passes: text in and text out for each one alone; on every family, results of the whole
// pipeline, of the pipeline without any one pass and of no pass at all are equal to the bit.
//
// `test_passes --bless` writes the .out.ir files anew.
#include "testing.h"

#include "ir_text_cases.h"

#include "core/mem.h"
#include "ir/ref.h"
#include "ir/text.h"
#include "models/model.h"
#include "passes/passes.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static bool is_blessing; // set by main alone

static size_t count_passes(void) {
    size_t n = 0;
    while (qn_pass_name(n)) n++;
    return n;
}

static size_t load(char *to, size_t size, const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) return 0;
    const size_t n = fread(to, 1, size - 1, file);
    fclose(file);
    to[n] = 0;
    return n;
}

// --- text in, text out ---

// What a case asks for, in comments of its own lines: "; numerics: fast", "; refuse: GATED",
// "; miss: bias between" (the report must say that), "; fails: ..." (the message), "; rank: 1 of
// 2".
typedef struct wish {
    char value[128];
} wish;

static bool find_wish(wish *out, const char *text, const char *key) {
    char mark[32];
    snprintf(mark, sizeof mark, "; %s: ", key);
    const char *at = strstr(text, mark);
    if (!at) return false;
    at += strlen(mark);
    snprintf(out->value, sizeof out->value, "%.*s", (int)strcspn(at, "\n"), at);
    return true;
}

// Refuses ops that are words of `arg`.
static const char *refuse_listed(void *arg, const qn_graph *graph, const qn_node *node) {
    (void)graph;
    const char *name = qn_op_get(node->op)->name, *at = arg;
    const size_t size = strlen(name);
    while ((at = strstr(at, name)) != NULL) {
        const bool is_whole =
            (at == (char *)arg || at[-1] == ' ') && (!at[size] || at[size] == ' ');
        if (is_whole) return "not today";
        at += size;
    }
    return NULL;
}

static void check_miss(const qn_pass_report *report, const char *path, const char *why) {
    for (int32_t m = 0; m < report->n_misses; m++) {
        if (strcmp(report->misses[m].why, why) == 0) return;
    }
    fail_msg("%s: nothing says '%s'", path, why);
}

static void compare(const char *path, const char *got) {
    static char want[1 << 16];
    if (is_blessing) {
        FILE *file = fopen(path, "wb");
        assert_non_null(file);
        fputs(got, file);
        fclose(file);
        return;
    }
    if (!load(want, sizeof want, path)) fail_msg("%s is missing; --bless writes it", path);
    if (strcmp(got, want) != 0) fail_msg("%s: the pass gives\n%s", path, got);
}

static void run_case(const char *folder, const char *pass, const char *name) {
    static char text[1 << 16];
    char path[1024];
    qn_err err = {0};
    qn_graph in = {0}, out = {0};
    qn_pass_report report;
    wish refuse, miss, numerics, fine, rank, message;
    snprintf(path, sizeof path, "%s/%s.in.ir", folder, name);
    const size_t size = load(text, sizeof text, path);
    ASSERT_OK(qn_graph_parse(&in, text, size, &err));
    qn_pass_opts opts = {.verify = true, .device = "the test"};
    for (size_t i = 0; qn_pass_name(i); i++) {
        if (strcmp(qn_pass_name(i), pass) != 0) opts.skip |= UINT64_C(1) << i;
    }
    if (find_wish(&refuse, text, "refuse")) {
        opts.refuse = refuse_listed;
        opts.refuse_arg = refuse.value;
    }
    if (find_wish(&numerics, text, "numerics"))
        opts.numerics =
            strcmp(numerics.value, "fast") == 0 ? QN_NUMERICS_FAST : QN_NUMERICS_BALANCED;
    opts.fine_layers = find_wish(&fine, text, "fine_layers") ? atoi(fine.value) : 0;
    if (find_wish(&rank, text, "rank"))
        assert_int_equal(sscanf(rank.value, "%d of %d", &opts.rank, &opts.n_ranks), 2);
    if (find_wish(&message, text, "fails")) {
        ASSERT_FAILS(qn_passes_run(&out, &in, &opts, &report, &err), QN_UNSUPPORTED, message.value);
    } else {
        ASSERT_OK(qn_passes_run(&out, &in, &opts, &report, &err));
        qn_buf got = {0};
        qn_graph_print(&got, &out);
        snprintf(path, sizeof path, "%s/%s.out.ir", folder, name);
        compare(path, got.data);
        qn_buf_deinit(&got);
    }
    if (find_wish(&miss, text, "miss")) check_miss(&report, path, miss.value);
    qn_graph_deinit(&in);
    qn_graph_deinit(&out);
}

static size_t run_folder(const char *pass) {
    char folder[512];
    size_t n = 0;
    snprintf(folder, sizeof folder, TEST_DATA "/../golden/passes/%s", pass);
    DIR *dir = opendir(folder);
    if (!dir) fail_msg("%s is missing", folder);
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char name[256];
        const char *end = strstr(entry->d_name, ".in.ir");
        if (!end || end[6]) continue;
        snprintf(name, sizeof name, "%.*s", (int)(end - entry->d_name), entry->d_name);
        run_case(folder, pass, name);
        n++;
    }
    closedir(dir);
    return n;
}

static void each_pass_makes_what_it_says(void **state) {
    (void)state;
    for (size_t i = 0; qn_pass_name(i); i++) {
        if (strstr(qn_pass_name(i), "_again")) continue; // the same functions as cse and dce
        if (run_folder(qn_pass_name(i)) < 2) fail_msg("%s has too few cases", qn_pass_name(i));
    }
}

// --- results ---

enum { ROWS = 9, STEPS = 2, SEGS = 2, PAGES = 2 };

// Two sequences of 5 and 3 rows and an inert one; the second step follows the first.
typedef struct table {
    int32_t ids[ROWS], pos[ROWS * 4], row_seg[ROWS], row_out[3];
    int32_t seg_row[SEGS + 1], seg_past[SEGS], seg_pages[SEGS * PAGES];
    int32_t seg_slot[SEGS], seg_accept[SEGS], seg_adapter[SEGS];
    qn_step step;
} table;

static void fill_table(table *t, int round) {
    *t = (table){.row_out = {4, 7, 2}, .seg_row = {0, 5, 8}, .seg_pages = {2, 0, 1, 3}};
    for (int32_t b = 0; b < SEGS; b++) {
        const int32_t rows = t->seg_row[b + 1] - t->seg_row[b];
        t->seg_past[b] = round * rows;
        t->seg_accept[b] = round ? rows : 0;
        t->seg_slot[b] = 1 - b;
        t->seg_adapter[b] = -1;
        for (int32_t r = t->seg_row[b]; r < t->seg_row[b + 1]; r++) {
            t->row_seg[r] = b;
            t->ids[r] = (r * 37 + round * 11 + 5) % 200;
            for (int k = 0; k < 3; k++) t->pos[r * 4 + k] = t->seg_past[b] + r - t->seg_row[b];
        }
    }
    t->row_seg[ROWS - 1] = -1;
    t->step = (qn_step){.n_rows = ROWS,
                        .n_segs = SEGS,
                        .n_out = 3,
                        .ids = t->ids,
                        .pos = t->pos,
                        .row_seg = t->row_seg,
                        .seg_row = t->seg_row,
                        .seg_past = t->seg_past,
                        .seg_pages = t->seg_pages,
                        .pages_per_seg = PAGES,
                        .seg_slot = t->seg_slot,
                        .seg_accept = t->seg_accept,
                        .seg_adapter = t->seg_adapter,
                        .row_out = t->row_out};
}

// All outputs of all steps, end to end.
typedef struct result {
    float *data;
    size_t n, cap;
} result;

static void keep(result *r, const float *from, int64_t n) {
    void *data = r->data;
    assert_true(qn_grow(&data, &r->cap, r->n + (size_t)n, sizeof *r->data));
    r->data = data;
    memcpy(r->data + r->n, from, (size_t)n * sizeof *from);
    r->n += (size_t)n;
}

// `params` are those of the graph. Outputs are taken in the order of `names`, the original graph.
static result interpret(const qn_graph *graph, const qn_graph *names, const void *const *params) {
    qn_err err;
    qn_ref *ref;
    result r = {0};
    const qn_ref_opts opts = {
        .graph = graph, .params = params, .n_pages = SEGS * PAGES, .n_slots = SEGS};
    ASSERT_OK(qn_ref_create(&ref, &opts, &err));
    for (int round = 0; round < STEPS; round++) {
        table t;
        fill_table(&t, round);
        ASSERT_OK(qn_ref_run(ref, &t.step, &err));
        for (size_t o = 0; o < names->n_outputs; o++) {
            int64_t n = 0;
            if (names->values[names->outputs[o].value].kind != QN_TENSOR) continue;
            const float *y = qn_ref_output(ref, names->outputs[o].name, &n);
            assert_non_null(y);
            keep(&r, y, n);
        }
    }
    qn_ref_destroy(ref);
    return r;
}

static void assert_same(const result *a, const result *b, const char *what, const char *pass) {
    if (a->n != b->n || memcmp(a->data, b->data, a->n * sizeof *a->data) != 0)
        fail_msg("%s: the result changes without %s", what, pass);
}

// A step of decoding and feeding forward must be down to its fused ops.
static void assert_fused(const qn_pass_report *report, const char *what) {
    const int32_t *n = report->native;
    if (n[QN_OP_ATTENTION] == 0 || n[QN_OP_GATED] + n[QN_OP_EXPERTS] == 0 ||
        n[QN_OP_ADD_NORM] == 0 || n[QN_OP_PROJECT] == 0 || n[QN_OP_HEAD] != 1 ||
        n[QN_OP_ROPE] + n[QN_OP_ATTEND] > 0)
        fail_msg("%s: something is not fused", what);
    if (n[QN_OP_ANGLES] > 2) fail_msg("%s: angles are made %d times", what, n[QN_OP_ANGLES]);
}

// Where the weights of a graph come from.
typedef const void **params_fn(const void *arg, const qn_graph *graph);

static result compile_and_run(const qn_graph *high, const qn_pass_opts *opts,
                              qn_pass_report *report, params_fn *find, const void *arg) {
    qn_err err;
    qn_graph mid = {0};
    ASSERT_OK(qn_passes_run(&mid, high, opts, report, &err));
    const void **params = find(arg, &mid);
    const result r = interpret(&mid, high, params);
    qn_free(params);
    qn_graph_deinit(&mid);
    return r;
}

// All passes, all but each one, and `base`, which leaves out `base_skip`.
static void check_all_ways(const char *what, const qn_graph *graph, qn_numerics numerics,
                           uint64_t base_skip, params_fn *find, const void *arg) {
    qn_pass_report report;
    qn_pass_opts opts = {.numerics = numerics, .verify = true, .skip = base_skip};
    result base = compile_and_run(graph, &opts, &report, find, arg);
    for (size_t i = 0; i <= count_passes(); i++) { // the last: all of them
        if (i < count_passes() && strcmp(qn_pass_name(i), "quantize") == 0) continue;
        opts.skip = i < count_passes() ? UINT64_C(1) << i : 0;
        result r = compile_and_run(graph, &opts, &report, find, arg);
        assert_same(&base, &r, what, i < count_passes() ? qn_pass_name(i) : "nothing");
        qn_free(r.data);
    }
    assert_fused(&report, what);
    // A device that has no fused op gets the plain ones.
    char fused[] = "PROJECT GATED NORM_QUANTIZE ADD_NORM ROTATE ROTATE_WRITE ATTENTION EXPERTS "
                   "HEAD";
    opts = (qn_pass_opts){
        .numerics = numerics, .verify = true, .refuse = refuse_listed, .refuse_arg = fused};
    result r = compile_and_run(graph, &opts, &report, find, arg);
    assert_same(&base, &r, what, "fused ops");
    for (int op = QN_OP_ANGLES; op <= QN_OP_HEAD; op++) assert_int_equal(report.native[op], 0);
    qn_free(r.data);
    qn_free(base.data);
}

static const void **model_params(const void *arg, const qn_graph *graph) {
    qn_err err;
    const void **params = NULL;
    ASSERT_OK(qn_model_params(&params, arg, graph, &err));
    return params;
}

static void every_family_keeps_its_bits(void **state) {
    (void)state;
    static const char *const families[] = {"llama32", "llama_untied", "qwen3",         "qwen3_moe",
                                           "gemma",   "gemma2",       "gemma2_scalar", "gemma3",
                                           "qwen35",  "qwen35_moe",   "qwen35_vl"};
    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++) {
        char path[512];
        qn_err err;
        qn_source *source;
        qn_model *model;
        snprintf(path, sizeof path, TEST_DATA "/mini/%s", families[f]);
        ASSERT_OK(qn_source_open(&source, path, &err));
        ASSERT_OK(qn_model_create(&model, source, &err));
        ASSERT_OK(qn_weights_load(&model->weights, source, &(qn_load_opts){0}, &err));
        check_all_ways(families[f], &model->graph_hidden, QN_NUMERICS_EXACT, UINT64_MAX,
                       model_params, model);
        check_all_ways(families[f], &model->graph, QN_NUMERICS_EXACT, UINT64_MAX, model_params,
                       model);
        if (model->graph_predict.n_nodes) {
            qn_graph mid = {0};
            ASSERT_OK(qn_passes_run(&mid, &model->graph_predict, &(qn_pass_opts){.verify = true},
                                    NULL, &err));
            assert_true(mid.n_nodes < model->graph_predict.n_nodes);
            qn_graph_deinit(&mid);
        }
        qn_model_destroy(model);
        qn_source_close(source);
    }
}

// Weights of the golden graphs: random numbers by name, packed in the type that the graph says.
typedef struct made_params {
    const qn_graph *graph;
    void **data;
} made_params;

static int64_t elements(const qn_shape *shape) {
    int64_t n = 1;
    for (int d = 0; d < shape->n_dims; d++) n *= shape->dims[d].n;
    return n;
}

static made_params make_params(const qn_graph *graph) {
    made_params made = {graph, qn_alloc(graph->n_values, sizeof *made.data)};
    uint32_t seed = 1;
    for (size_t i = 0; i < graph->n_nodes; i++) {
        const qn_node *node = &graph->nodes[i];
        if (node->op != QN_OP_PARAM) continue;
        const qn_value *value = &graph->values[node->out[0]];
        const int64_t n = elements(&value->shape);
        int64_t bytes;
        assert_true(qn_type_bytes(&bytes, value->type, n));
        float *floats = qn_alloc((size_t)n, sizeof *floats);
        for (int64_t k = 0; k < n; k++) {
            seed = seed * 1664525u + 1013904223u;
            floats[k] = ((float)(seed >> 8) / 8388608.0f - 1.0f) * 0.25f;
        }
        made.data[node->out[0]] = qn_alloc((size_t)bytes, 1);
        qn_type_get(value->type)->pack(made.data[node->out[0]], floats, n, NULL);
        qn_free(floats);
    }
    return made;
}

static void free_params(made_params *made) {
    for (size_t i = 0; i < made->graph->n_values; i++) qn_free(made->data[i]);
    qn_free(made->data);
}

static const void **named_params(const void *arg, const qn_graph *graph) {
    const made_params *made = arg;
    const void **params = qn_alloc(graph->n_values, sizeof *params);
    for (size_t i = 0; i < graph->n_nodes; i++) {
        const int32_t out = graph->nodes[i].out[0];
        if (graph->nodes[i].op != QN_OP_PARAM) continue;
        for (size_t v = 0; v < made->graph->n_values; v++) {
            if (made->data[v] && strcmp(made->graph->values[v].name, graph->values[out].name) == 0)
                params[out] = made->data[v];
        }
        assert_non_null(params[out]);
    }
    return params;
}

static void quantised_graphs_keep_their_bits(void **state) {
    (void)state;
    static const char *const names[] = {"dense", "moe", "gemma", "hybrid"};
    uint64_t quantize;
    qn_err err;
    ASSERT_OK(qn_passes_parse_skip(&quantize, "quantize", &err));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        static char text[1 << 16];
        char path[512];
        qn_graph graph = {0};
        snprintf(path, sizeof path, TEST_DATA "/../golden/ir/%s.ir", names[i]);
        const size_t size = load(text, sizeof text, path);
        ASSERT_OK(qn_graph_parse(&graph, text, size, &err));
        made_params made = make_params(&graph);
        for (int n = QN_NUMERICS_EXACT; n <= QN_NUMERICS_FAST; n++)
            check_all_ways(names[i], &graph, (qn_numerics)n, ~quantize, named_params, &made);
        free_params(&made);
        qn_graph_deinit(&graph);
    }
}

// --- the rest ---

// Whatever parses can go through all passes, and comes out as a graph that the verifier accepts.
static void every_op_goes_through(void **state) {
    (void)state;
    for (int op = 0; op < QN_OP_COUNT; op++) {
        char text[4096];
        qn_err err;
        qn_graph in = {0}, out = {0};
        const size_t size = (size_t)snprintf(text, sizeof text, "%s%s\noutput \"last\" %%20\n",
                                             IR_LEAVES, ir_op_cases[op]);
        ASSERT_OK(qn_graph_parse(&in, text, size, &err));
        ASSERT_OK(qn_passes_run(&out, &in, &(qn_pass_opts){.verify = true}, NULL, &err));
        assert_true(qn_graph_find_output(&out, "last") >= 0);
        qn_graph_deinit(&in);
        qn_graph_deinit(&out);
    }
}

static uint32_t draw(uint32_t *seed, size_t n) {
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % (uint32_t)n;
}

// A node reads another value of the same shape instead of one of its own.
static void rewire(qn_graph *g, uint32_t *seed) {
    qn_node *node = &g->nodes[draw(seed, g->n_nodes)];
    const int k = node->n_in ? (int)draw(seed, (size_t)node->n_in) : -1;
    if (k < 0 || node->in[k] < 0 || node->in[k] >= node->out[0]) return;
    const int32_t other = (int32_t)draw(seed, (size_t)node->out[0]);
    const qn_value *a = &g->values[node->in[k]], *b = &g->values[other];
    if (a->kind == QN_TENSOR && b->kind == QN_TENSOR && a->type == b->type &&
        qn_shape_equal(&a->shape, &b->shape) && a->type != QN_TYPE_I32)
        node->in[k] = other;
}

// Graphs that no family would write: patterns that overlap, share values, and end in the middle.
static void odd_graphs_keep_their_bits(void **state) {
    (void)state;
    static const char *const names[] = {"dense", "moe", "gemma", "hybrid"};
    static char text[1 << 16];
    char refused[] = "PROJECT GATED ADD_NORM ATTENTION EXPERTS HEAD";
    uint64_t quantize;
    uint32_t seed = 7;
    int n_finite = 0;
    qn_err err;
    ASSERT_OK(qn_passes_parse_skip(&quantize, "quantize", &err));
    for (int round = 0; round < 160; round++) {
        char path[512];
        qn_graph graph = {0};
        snprintf(path, sizeof path, TEST_DATA "/../golden/ir/%s.ir", names[round % 4]);
        const size_t size = load(text, sizeof text, path);
        ASSERT_OK(qn_graph_parse(&graph, text, size, &err));
        for (int i = 0; i < 40 * (1 + round % 8); i++) rewire(&graph, &seed);
        ASSERT_OK(qn_graph_verify(&graph, &err));
        made_params made = make_params(&graph);
        // What `balanced` rounds how depends on the pattern, and so on what was simplified before.
        const qn_numerics numerics = round % 3 ? QN_NUMERICS_EXACT : QN_NUMERICS_FAST;
        qn_pass_opts opts = {.numerics = numerics, .verify = true, .skip = ~quantize};
        qn_pass_report report;
        result base = compile_and_run(&graph, &opts, &report, named_params, &made);
        opts.skip = 0;
        if (round % 2) opts.refuse = refuse_listed;
        opts.refuse_arg = refused;
        result r = compile_and_run(&graph, &opts, &report, named_params, &made);
        assert_same(&base, &r, names[round % 4], "nothing");
        n_finite += isfinite(base.data[0]) && base.data[0] != 0;
        qn_free(base.data);
        qn_free(r.data);
        free_params(&made);
        qn_graph_deinit(&graph);
    }
    assert_true(n_finite > 100); // most of them compute something
}

static void skips_are_read(void **state) {
    (void)state;
    uint64_t skip = 99;
    qn_err err;
    ASSERT_OK(qn_passes_parse_skip(&skip, NULL, &err));
    assert_int_equal(skip, 0);
    ASSERT_OK(qn_passes_parse_skip(&skip, "", &err));
    assert_int_equal(skip, 0);
    ASSERT_OK(qn_passes_parse_skip(&skip, "cse,fold", &err));
    assert_int_equal(skip, 6);
    ASSERT_FAILS(qn_passes_parse_skip(&skip, "fold,fuse_nrom", &err), QN_ARGUMENT,
                 "no pass 'fuse_nrom'; there are shard, fold, cse, dce,");
    ASSERT_FAILS(qn_passes_parse_skip(&skip, "fold,shard", &err), QN_ARGUMENT,
                 "pass 'shard' cannot be left out");
    ASSERT_FAILS(qn_passes_parse_skip(&skip, "fold,,cse", &err), QN_ARGUMENT, "no pass ''");
    assert_int_equal(skip, 6);
}

static void count_calls(void *arg, const char *pass, const qn_graph *graph) {
    assert_non_null(pass);
    assert_true(graph->n_nodes > 0);
    ++*(int *)arg;
}

static void reports_tell_what_happened(void **state) {
    (void)state;
    static char text[1 << 16];
    qn_err err;
    qn_graph in = {0}, out = {0};
    qn_pass_report report;
    qn_buf told = {0};
    int calls = 0;
    char refused[] = "GATED";
    const size_t size = load(text, sizeof text, TEST_DATA "/../golden/ir/dense.ir");
    ASSERT_OK(qn_graph_parse(&in, text, size, &err));
    qn_pass_opts opts = {.refuse = refuse_listed,
                         .refuse_arg = refused,
                         .device = "abacus",
                         .after = count_calls,
                         .after_arg = &calls};
    ASSERT_OK(qn_passes_parse_skip(&opts.skip, "fuse_project", &err));
    ASSERT_OK(qn_passes_run(&out, &in, &opts, &report, &err));
    assert_int_equal(calls, count_passes() - 1);
    qn_pass_report_text(&told, &report);
    assert_false(told.failed);
    static const char *const lines[] = {
        "\nfuse_project        -  skipped\n",
        "\nfuse_gate           3  two matmuls, activation, mul -> gated\n",
        "\nplace               3  ",
        "\nGATED                 0           3          0            0  not today\n",
        "\nATTENTION             3           0          0            0\n",
        "\nATTEND                0           0          3            0\n",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        if (!strstr(told.data, lines[i])) fail_msg("'%s' is not in\n%s", lines[i], told.data);
    }
    qn_graph_deinit(&out);
    char all[] = "MATMUL ADD";
    opts.refuse_arg = all;
    ASSERT_FAILS(qn_passes_run(&out, &in, &opts, &report, &err), QN_UNSUPPORTED,
                 "in layer 0: abacus cannot run it: not today");
    assert_true(report.unsupported[QN_OP_MATMUL] > 1); // all are counted, the first is named
    assert_int_equal(report.native[QN_OP_MATMUL], 0);
    assert_int_equal(report.native[QN_OP_ATTENTION], 3);
    qn_buf_deinit(&told);
    qn_graph_deinit(&in);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_pass_makes_what_it_says),
        cmocka_unit_test(every_family_keeps_its_bits),
        cmocka_unit_test(quantised_graphs_keep_their_bits),
        cmocka_unit_test(every_op_goes_through),
        cmocka_unit_test(odd_graphs_keep_their_bits),
        cmocka_unit_test(skips_are_read),
        cmocka_unit_test(reports_tell_what_happened),
    };
    is_blessing = argc > 1 && strcmp(argv[1], "--bless") == 0;
    return cmocka_run_group_tests_name("passes", tests, NULL, NULL);
}
