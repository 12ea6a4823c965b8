// Shares of models: on every rank a valid graph, every weight divided without overlap, the same
// meetings in the same order, and together the bits of the whole graph.
#include "families.h"
#include "ranks_rig.h"

#include "core/mem.h"
#include "ir/share.h"
#include "ir/text.h"
#include "models/model.h"
#include "passes/passes.h"

static const int counts[] = {2, 3, 4, 5, 8};
enum { N_COUNTS = sizeof counts / sizeof *counts };

// Every family, and the files whose weights are integers.
static const char *const more[] = {MODELS "/quern-mini-Q8_0.gguf", MODELS "/quern-draft-Q8_0.gguf",
                                   TEST_DATA "/mini/qwen35_vl"};
enum { N_MORE = sizeof more / sizeof *more, N_ALL = N_FAMILIES + N_MORE };

static const char *model_name(size_t i) {
    return i < N_FAMILIES ? families[i] : more[i - N_FAMILIES];
}

typedef struct opened {
    qn_source *source;
    qn_model *model;
} opened;

static opened open_model(size_t i) {
    char path[512];
    qn_err err;
    opened o;
    ASSERT_OK(qn_source_open(&o.source, family_path(path, sizeof path, model_name(i)), &err));
    ASSERT_OK(qn_model_create(&o.model, o.source, &err));
    return o;
}

static void close_model(opened *o) {
    qn_model_destroy(o->model);
    qn_source_close(o->source);
}

// The graphs of a model; NULL after the last. One that it does not have is empty.
static const qn_graph *graph_of(const qn_model *model, int i) {
    const qn_graph *const graphs[] = {&model->graph, &model->graph_hidden, &model->graph_mtp,
                                      &model->graph_predict};
    return i < 4 ? graphs[i] : NULL;
}

static void make_shares(qn_graph *shares, const qn_graph *graph, int n, qn_numerics numerics) {
    for (int r = 0; r < n; r++) {
        qn_err err;
        const qn_pass_opts opts = {.numerics = numerics, .rank = r, .n_ranks = n, .verify = true};
        ASSERT_OK(qn_passes_run(&shares[r], graph, &opts, NULL, &err));
    }
}

static void free_shares(qn_graph *shares, int n) {
    for (int r = 0; r < n; r++) qn_graph_deinit(&shares[r]);
}

// --- what ranks have -----------------------------------------------------------------------------

static const qn_node *find_leaf(const qn_graph *graph, const char *name) {
    for (size_t i = 0; i < graph->n_nodes; i++) {
        const qn_node *node = &graph->nodes[i];
        if (qn_op_get(node->op)->class_of == QN_CLASS_LEAF &&
            strcmp(graph->values[node->out[0]].name, name) == 0)
            return node;
    }
    return NULL;
}

// Marks which indices of a weight a rank has; each has one owner, or all ranks have all.
static void check_weight(const qn_graph *shares, int n, const qn_value *whole, bool *is_cut) {
    char *owners = NULL;
    int n_whole = 0, axis = -1;
    int64_t length = 0;
    for (int r = 0; r < n; r++) {
        const qn_node *leaf = find_leaf(&shares[r], whole->name);
        if (!leaf) continue;
        const qn_shape *shape = &shares[r].values[leaf->out[0]].shape;
        if (!leaf->share) {
            assert_true(qn_shape_equal(shape, &whole->shape));
            n_whole++;
            continue;
        }
        axis = leaf->share->axis;
        length = leaf->share->whole;
        assert_int_equal(length, whole->shape.dims[axis].n);
        for (int d = 0; d < shape->n_dims; d++) {
            if (d != axis) assert_int_equal(shape->dims[d].n, whole->shape.dims[d].n);
        }
        if (!owners) owners = qn_alloc((size_t)length, 1);
        for (int i = 0; i < leaf->share->n_ranges; i++) {
            const qn_share_range *range = &leaf->share->ranges[i];
            for (int64_t k = 0; k < range->n; k++) owners[range->first + k]++;
        }
    }
    *is_cut = owners != NULL;
    if (owners && n_whole) fail_msg("%s: whole on %d ranks of %d", whole->name, n_whole, n);
    for (int64_t i = 0; i < length; i++) {
        if (owners[i] != 1)
            fail_msg("%s: %d ranks have index %lld", whole->name, owners[i], (long long)i);
    }
    qn_free(owners);
}

// Heads of a cache, channels and heads of a state: the ranks have all of them together.
static void check_state(const qn_graph *shares, int n, const qn_value *whole) {
    int64_t sum = 0, all = 1;
    bool is_cut = false;
    for (int d = 0; d < whole->shape.n_dims; d++) all *= whole->shape.dims[d].n;
    for (int r = 0; r < n; r++) {
        const qn_node *leaf = find_leaf(&shares[r], whole->name);
        int64_t own = leaf ? 1 : 0;
        for (int d = 0; d < whole->shape.n_dims && leaf; d++)
            own *= shares[r].values[leaf->out[0]].shape.dims[d].n;
        is_cut |= own != all;
        sum += own;
    }
    if (is_cut) assert_int_equal(sum, all); // else every rank keeps all of it
}

static void check_leaves(const qn_graph *graph, const qn_graph *shares, int n) {
    int64_t n_cut = 0;
    for (size_t i = 0; i < graph->n_nodes; i++) {
        const qn_node *node = &graph->nodes[i];
        const qn_value *value = &graph->values[node->out[0]];
        bool is_cut = false;
        if (node->op == QN_OP_PARAM) check_weight(shares, n, value, &is_cut);
        if (value->kind == QN_CACHE || value->kind == QN_STATE_VALUE) {
            if (node->op == QN_OP_INPUT) check_state(shares, n, value);
        } else if (node->op == QN_OP_INPUT) {
            for (int r = 0; r < n; r++) assert_non_null(find_leaf(&shares[r], value->name));
        }
        n_cut += is_cut;
    }
    assert_true(n_cut > 4);
}

// --- meetings ------------------------------------------------------------------------------------

// The nodes of a graph that gather, in order, as text.
static void list_gathers(qn_buf *to, const qn_graph *graph) {
    for (size_t i = 0; i < graph->n_nodes; i++) {
        const qn_node *node = &graph->nodes[i];
        char shape[96];
        if (!qn_node_gathers(node)) continue;
        qn_buf_printf(to, "@%d %s %s", node->layer,
                      qn_shape_text(shape, sizeof shape, &graph->values[node->out[0]].shape),
                      node->n_in > 1 ? "by ids" : "parts");
        for (int a = 0; a < QN_ATTR_COUNT; a++) {
            qn_buf_text(to, " ");
            if (qn_op_get(node->op)->attrs >> a & 1u) qn_attr_print(to, &node->attrs, (qn_attr)a);
        }
        qn_buf_text(to, "\n");
    }
    qn_buf_text(to, "");
    assert_false(to->failed);
}

static void check_gathers(const qn_graph *shares, int n, const char *what) {
    qn_buf first = {0};
    list_gathers(&first, &shares[0]);
    assert_true(first.size > 0);
    for (int r = 1; r < n; r++) {
        qn_buf other = {0};
        list_gathers(&other, &shares[r]);
        if (strcmp(first.data, other.data) != 0)
            fail_msg("%s: rank 0 of %d gathers\n%s\nrank %d\n%s", what, n, first.data, r,
                     other.data);
        qn_buf_deinit(&other);
    }
    qn_buf_deinit(&first);
}

// Outputs are whole but the logits, whose parts are the vocabulary in the order of the ranks.
static void check_outputs(const qn_graph *graph, const qn_graph *shares, int n) {
    for (size_t o = 0; o < graph->n_outputs; o++) {
        const char *name = graph->outputs[o].name;
        const qn_shape *whole = &graph->values[graph->outputs[o].value].shape;
        int64_t end = 0;
        for (int r = 0; r < n; r++) {
            size_t i = 0;
            while (i < shares[r].n_outputs && strcmp(shares[r].outputs[i].name, name) != 0) i++;
            assert_true(i < shares[r].n_outputs);
            const qn_output *output = &shares[r].outputs[i];
            const qn_shape *shape = &shares[r].values[output->value].shape;
            if (strcmp(name, "logits") != 0) {
                assert_null(output->share);
                assert_true(qn_shape_equal(shape, whole));
                continue;
            }
            assert_non_null(output->share);
            assert_int_equal(output->share->n_ranges, 1);
            assert_int_equal(output->share->ranges[0].first, end);
            end += output->share->ranges[0].n;
        }
        if (strcmp(name, "logits") == 0) assert_int_equal(end, whole->dims[1].n);
    }
}

static void check_text(const qn_graph *share) {
    qn_err err;
    qn_graph back = {0};
    qn_buf text = {0}, again = {0};
    qn_graph_print(&text, share);
    ASSERT_OK(qn_graph_parse(&back, text.data, text.size, &err));
    qn_graph_print(&again, &back);
    assert_string_equal(text.data, again.data);
    qn_buf_deinit(&text);
    qn_buf_deinit(&again);
    qn_graph_deinit(&back);
}

static void shares_are_valid_and_complete(void **state) {
    (void)state;
    for (size_t m = 0; m < N_ALL; m++) {
        opened o = open_model(m);
        const qn_graph *graph;
        for (int g = 0; (graph = graph_of(o.model, g)) != NULL; g++) {
            for (int c = 0; c < N_COUNTS && graph->n_nodes; c++) {
                qn_graph shares[RANKS_MAX];
                make_shares(shares, graph, counts[c], QN_NUMERICS_EXACT);
                check_leaves(graph, shares, counts[c]);
                check_gathers(shares, counts[c], model_name(m));
                check_outputs(graph, shares, counts[c]);
                check_text(&shares[counts[c] - 1]);
                free_shares(shares, counts[c]);
            }
        }
        close_model(&o);
    }
}

// Readers that only some ranks have must not decide how all of them meet: here one that wants
// floats, and one whose result nothing needs without it.
static void meetings_do_not_depend_on_heads(void **state) {
    (void)state;
    static const char text[] =
        "graph \"meet\"\n%0 \"table\" table () = input\n%1 \"x\" f32 (T, 256) = input\n"
        "%2 \"w\" q8_0 (512, 256) = param\n%3 \"q\" q8_0 (32, 512) = param\n"
        "%4 \"kv\" f32 (16, 512) = param\n%5 \"d\" q8_0 (64, 512) = param\n"
        "%6 \"norm\" f32 (512) = param\n%7 \"o\" q8_0 (64, 32) = param\n"
        "%8 f32 (T, 512) = matmul(%1, %2) @0\n%9 f32 (T, 512) = silu(%8) @0\n"
        "%10 f32 (T, 32) = matmul(%9, %3) @0\n%11 f32 (T, 2, 16) = split(%10) {parts=2} @0\n"
        "%12 f32 (T, 512) = rms_norm(%9, %6) {eps=1e-6} @0\n"
        "%13 f32 (T, 16) = matmul(%12, %4) @0\n%14 f32 (T, 1, 16) = split(%13) {parts=1} @0\n"
        "%15 \"cache.0\" cache (1, 16, 16) = input @0\n"
        "%16 cache (1, 16, 16) = kv_write(%15, %14, %14, %0) @0\n"
        "%17 f32 (T, 2, 16) = attend(%11, %16, %0) {scale=0.25, cap=0, window=0, rule=causal} @0\n"
        "%18 f32 (T, 32) = merge(%17) @0\n%19 f32 (T, 64) = matmul(%18, %7) @0\n"
        "%20 f32 (T, 64) = matmul(%9, %5) @0\n%21 f32 (T, 64) = add(%19, %20) @0\n"
        "output \"y\" %21\n";
    qn_err err;
    qn_graph graph = {0}, shares[RANKS_MAX];
    ASSERT_OK(qn_graph_parse(&graph, text, sizeof text - 1, &err));
    for (int n = 2; n <= 4; n++) {
        make_shares(shares, &graph, n, QN_NUMERICS_EXACT);
        check_gathers(shares, n, "meet");
        assert_null(find_leaf(&shares[0], "cache.0"));
        assert_non_null(find_leaf(&shares[n - 1], "cache.0"));
        free_shares(shares, n);
    }
    qn_graph_deinit(&graph);
}

// Packed where shares are whole blocks: 12 bits and their sums, not floats.
static void blocks_are_gathered_packed(void **state) {
    (void)state;
    opened o = open_model(N_FAMILIES - 2); // its feed-forward has two blocks
    for (int n = 2; n <= 3; n++) {
        qn_graph shares[RANKS_MAX];
        int n_packed = 0;
        make_shares(shares, &o.model->graph, n, QN_NUMERICS_EXACT);
        for (size_t i = 0; i < shares[0].n_nodes; i++) {
            const qn_node *node = &shares[0].nodes[i];
            n_packed += qn_node_gathers(node) && node->attrs.form == QN_WORD_i12_256;
        }
        assert_int_equal(n_packed, n == 2 ? o.model->hparams->layers : 0);
        free_shares(shares, n);
    }
    close_model(&o);
}

// A weight has the same share in every graph of a model: they read the same memory.
static void graphs_of_a_model_agree_on_shares(void **state) {
    (void)state;
    for (size_t m = 0; m < N_ALL; m++) {
        opened o = open_model(m);
        for (int c = 0; c < N_COUNTS; c++) {
            qn_graph shares[4][RANKS_MAX];
            const qn_graph *graph;
            for (int g = 0; (graph = graph_of(o.model, g)) != NULL; g++) {
                if (graph->n_nodes) make_shares(shares[g], graph, counts[c], QN_NUMERICS_FAST);
            }
            for (int g = 1; (graph = graph_of(o.model, g)) != NULL; g++) {
                for (int r = 0; graph->n_nodes && r < counts[c]; r++) {
                    const qn_graph *a = &shares[g][r], *b = &shares[0][r];
                    for (size_t i = 0; i < a->n_nodes; i++) {
                        const qn_value *v = &a->values[a->nodes[i].out[0]];
                        const qn_node *other = find_leaf(b, v->name);
                        if (a->nodes[i].op != QN_OP_PARAM || !other) continue;
                        assert_true(qn_shape_equal(&v->shape, &b->values[other->out[0]].shape));
                        assert_true(!a->nodes[i].share == !other->share);
                        if (!other->share) continue;
                        assert_int_equal(a->nodes[i].share->n_ranges, other->share->n_ranges);
                        assert_memory_equal(a->nodes[i].share->ranges, other->share->ranges,
                                            (size_t)other->share->n_ranges *
                                                sizeof *other->share->ranges);
                    }
                }
            }
            for (int g = 0; (graph = graph_of(o.model, g)) != NULL; g++) {
                if (graph->n_nodes) free_shares(shares[g], counts[c]);
            }
        }
        close_model(&o);
    }
}

// --- what they compute ---------------------------------------------------------------------------

enum { ROWS = 7, VOCAB = 512, PAGES = 1 };

typedef struct rank_run {
    const qn_graph *graph;
    const void **params;
    void **copies; // (n_values) of shares of weights
    qn_ref *ref;
    qn_ref_opts opts;
    qn_step step;
    rank_place place; // that its gather is called with
    float *logits;
    int64_t first, n; // of the vocabulary
    qn_status status;
    qn_err err;
} rank_run;

static const int32_t seg_row[] = {0, ROWS}, row_seg[ROWS], zero[1], row_out[] = {2, ROWS - 1};
static int32_t ids[ROWS], pos[4 * ROWS];
enum { OUTS = sizeof row_out / sizeof *row_out };

static qn_step make_step(void) {
    random_ids(ids, ROWS, VOCAB, 3);
    for (int i = 0; i < 4 * ROWS; i++) pos[i] = i / 4;
    return (qn_step){.n_rows = ROWS,
                     .n_segs = 1,
                     .n_out = OUTS,
                     .ids = ids,
                     .pos = pos,
                     .row_seg = row_seg,
                     .seg_row = seg_row,
                     .seg_past = zero,
                     .seg_pages = zero,
                     .pages_per_seg = PAGES,
                     .seg_slot = zero,
                     .seg_accept = zero,
                     .seg_adapter = zero,
                     .row_out = row_out};
}

// The bytes of a share of a weight, element run by element run.
static void *copy_share(const qn_weight *w, const qn_share *share, const qn_shape *shape) {
    const qn_type_info *info = qn_type_get(w->type);
    int64_t n = 1, some;
    for (int d = 0; d < shape->n_dims; d++) n *= shape->dims[d].n;
    char *to = qn_alloc((size_t)(n / info->block), (size_t)info->bytes);
    for (int64_t i = 0; i < n; i += some) {
        const int64_t from = qn_share_find(&some, share, shape, i);
        memcpy(to + i / info->block * info->bytes,
               (const char *)w->data + from / info->block * info->bytes,
               (size_t)(some / info->block * info->bytes));
    }
    return to;
}

static void find_params(rank_run *run, const qn_model *model) {
    qn_err err;
    const qn_graph *g = run->graph;
    run->copies = qn_alloc(g->n_values, sizeof *run->copies);
    ASSERT_OK(qn_model_params(&run->params, model, g, &err));
    for (size_t i = 0; i < g->n_nodes; i++) {
        const qn_value *value = &g->values[g->nodes[i].out[0]];
        uint32_t w;
        if (!g->nodes[i].share) continue;
        assert_true(qn_map_find(&model->weights.by_name, value->name, strlen(value->name), &w));
        run->copies[g->nodes[i].out[0]] =
            copy_share(&model->weights.items[w], g->nodes[i].share, &value->shape);
        run->params[g->nodes[i].out[0]] = run->copies[g->nodes[i].out[0]];
    }
}

static void open_run(rank_run *run, const qn_graph *graph, const qn_model *model) {
    qn_err err;
    run->graph = graph;
    find_params(run, model);
    run->opts.graph = graph;
    run->opts.params = run->params;
    run->opts.n_pages = run->opts.n_slots = 1;
    run->step = make_step();
    ASSERT_OK(qn_ref_create(&run->ref, &run->opts, &err));
}

static void close_run(rank_run *run) {
    qn_ref_destroy(run->ref);
    for (size_t v = 0; v < run->graph->n_values; v++) qn_free(run->copies[v]);
    qn_free(run->copies);
    qn_free(run->params);
}

static void run_rank_graph(rank_place *place, void *arg) {
    rank_run *run = arg;
    (void)place;
    run->status = qn_ref_run(run->ref, &run->step, &run->err);
}

static const float *output_of(const rank_run *run, const char *name, int64_t *n) {
    const float *y = qn_ref_output(run->ref, name, n);
    if (!y) fail_msg("%s: no output %s", run->graph->name, name);
    return y;
}

static void compare_ranks(const rank_run *runs, int n, const rank_run *alone, const char *what) {
    const qn_graph *graph = alone->graph;
    for (size_t o = 0; o < graph->n_outputs; o++) {
        const char *name = graph->outputs[o].name;
        int64_t n_want, n_got;
        const float *want = output_of(alone, name, &n_want);
        if (strcmp(name, "best") == 0) continue; // of a part each; put together by who reads it
        for (int r = 0; r < n; r++) {
            const float *got = output_of(&runs[r], name, &n_got);
            const qn_share *share = NULL;
            for (size_t i = 0; i < runs[r].graph->n_outputs; i++) {
                if (strcmp(runs[r].graph->outputs[i].name, name) == 0)
                    share = runs[r].graph->outputs[i].share;
            }
            const int64_t width = share ? share->ranges[0].n : n_want / OUTS;
            const int64_t stride = share ? share->whole : width;
            const int64_t rows = n_got / width;
            assert_int_equal(rows * stride, n_want);
            for (int64_t i = 0; i < rows; i++) {
                const float *row = want + i * stride + (share ? share->ranges[0].first : 0);
                if (memcmp(got + i * width, row, (size_t)width * sizeof *got) != 0)
                    fail_msg("%s: rank %d of %d: row %lld of %s differs", what, r, n, (long long)i,
                             name);
            }
        }
    }
}

// The interpreter, float32 throughout: n ranks give what one gives.
static void check_results(const qn_graph *graph, const qn_model *model, int n, const char *what) {
    static rank_run runs[RANKS_MAX];
    rank_run alone = {0};
    qn_graph shares[RANKS_MAX], mid = {0};
    rank_group group;
    qn_err err;
    ASSERT_OK(qn_passes_run(&mid, graph, &(qn_pass_opts){.verify = true}, NULL, &err));
    open_run(&alone, &mid, model);
    ASSERT_OK(qn_ref_run(alone.ref, &alone.step, &err));
    make_shares(shares, graph, n, QN_NUMERICS_EXACT);
    group_init(&group, n);
    memset(runs, 0, sizeof runs);
    for (int r = 0; r < n; r++) {
        runs[r].place = (rank_place){.group = &group, .rank = r};
        runs[r].opts = (qn_ref_opts){
            .rank = r, .n_ranks = n, .gather = group_gather_floats, .gather_arg = &runs[r].place};
        open_run(&runs[r], &shares[r], model);
    }
    if (!run_ranks(&group, run_rank_graph, runs, sizeof runs[0]))
        fail_msg("%s: %d ranks do not agree: %s", what, n, runs[0].err.message);
    for (int r = 0; r < n; r++) {
        err = runs[r].err;
        ASSERT_OK(runs[r].status);
    }
    compare_ranks(runs, n, &alone, what);
    for (int r = 0; r < n; r++) close_run(&runs[r]);
    free_shares(shares, n);
    close_run(&alone);
    qn_graph_deinit(&mid);
    group_deinit(&group);
}

static void ranks_together_give_the_bits_of_one(void **state) {
    (void)state;
    for (size_t m = 0; m < N_FAMILIES; m++) {
        qn_err err;
        opened o = open_model(m);
        ASSERT_OK(qn_weights_load(&o.model->weights, o.source,
                                  &(qn_load_opts){.with_predict = true}, &err));
        for (int c = 0; c < N_COUNTS; c++) {
            check_results(&o.model->graph, o.model, counts[c], model_name(m));
            if (c == 1 && o.model->graph_mtp.n_nodes)
                check_results(&o.model->graph_mtp, o.model, counts[c], model_name(m));
        }
        check_results(&o.model->graph_hidden, o.model, 3, model_name(m));
        close_model(&o);
    }
}

// --- numbers of ranks ----------------------------------------------------------------------------

static void odd_ranks_are_refused(void **state) {
    (void)state;
    static const struct {
        int rank, n_ranks;
        const char *word;
    } odd[] = {{-1, 2, "rank -1 of 2"},
               {2, 2, "rank 2 of 2"},
               {1, 0, "rank 1 of 0"},
               {1, 1, "rank 1 of 1"},
               {0, QN_RANKS_MAX + 1, "rank 0 of 32769, at most 32768"}};
    opened o = open_model(0);
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        qn_err err;
        qn_graph out;
        const qn_pass_opts opts = {.rank = odd[i].rank, .n_ranks = odd[i].n_ranks};
        ASSERT_FAILS(qn_passes_run(&out, &o.model->graph, &opts, NULL, &err), QN_ARGUMENT,
                     odd[i].word);
    }
    // One rank has all of it, and gathers nothing.
    for (int n = 0; n < 2; n++) {
        qn_err err;
        qn_graph out;
        ASSERT_OK(qn_passes_run(&out, &o.model->graph, &(qn_pass_opts){.n_ranks = n}, NULL, &err));
        for (size_t i = 0; i < out.n_nodes; i++)
            assert_true(out.nodes[i].op != QN_OP_ALL_GATHER && !out.nodes[i].share);
        qn_graph_deinit(&out);
    }
    close_model(&o);
}

// More ranks than anything has units: what is left whole is on all of them.
static void many_ranks_have_valid_shares_too(void **state) {
    (void)state;
    enum { MANY = 1000 };
    opened o = open_model(8);
    for (int r = 0; r < MANY; r += 111) {
        qn_err err;
        qn_graph out;
        const qn_pass_opts opts = {.rank = r, .n_ranks = MANY, .verify = true};
        ASSERT_OK(qn_passes_run(&out, &o.model->graph, &opts, NULL, &err));
        assert_non_null(find_leaf(&out, "blk.0.ffn_down.weight"));
        assert_null(find_leaf(&out, "blk.0.ffn_down.weight")->share);
        qn_graph_deinit(&out);
    }
    close_model(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_are_valid_and_complete),
        cmocka_unit_test(meetings_do_not_depend_on_heads),
        cmocka_unit_test(blocks_are_gathered_packed),
        cmocka_unit_test(graphs_of_a_model_agree_on_shares),
        cmocka_unit_test(ranks_together_give_the_bits_of_one),
        cmocka_unit_test(odd_ranks_are_refused),
        cmocka_unit_test(many_ranks_have_valid_shares_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
