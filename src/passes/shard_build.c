// This rank's share of a graph, as it was decided. What is gathered, and where, depends on the
// decisions alone: nodes vanish where a rank has nothing, but it still meets the others.
#include "passes/shard_int.h"

#include "core/mem.h"

#include <string.h>

static const qn_node *maker_of(const sharding *s, int32_t value) {
    return &s->graph->nodes[s->graph->values[value].node];
}

static int64_t own_of(const sharding *s, const shard_cut *cut) {
    return qn_shard_own(cut, s, s->rank);
}

static qn_shape own_shape(const sharding *s, int32_t value) {
    qn_shape shape = s->graph->values[value].shape;
    const shard_cut *cut = s->have[value];
    if (cut) shape.dims[cut->axis].n = own_of(s, cut);
    return shape;
}

static bool is_empty(const sharding *s, int32_t value) {
    return s->have[value] && own_of(s, s->have[value]) == 0;
}

// --- leaves --------------------------------------------------------------------------------------

// What this rank has of one piece of a run.
static qn_share_range piece_of(const sharding *s, const shard_run *run, int64_t piece) {
    const int64_t first = qn_share_first(run->units, s->rank, s->n_ranks);
    const int64_t end = qn_share_first(run->units, s->rank + 1, s->n_ranks);
    return (qn_share_range){run->start + (piece * run->units + first) * run->unit,
                            (end - first) * run->unit};
}

// The ranges that a rank has of an axis; those that touch are one.
static const qn_share *make_share(sharding *s, int32_t value, const shard_cut *cut) {
    size_t n = 0;
    for (int i = 0; i < cut->n; i++) n += (size_t)cut->runs[i].repeats;
    qn_share *share = qn_arena_alloc(&s->out.arena, 1, sizeof *share);
    qn_share_range *ranges = qn_arena_alloc(&s->out.arena, n, sizeof *ranges);
    if (!share || !ranges) {
        s->b.status = QN_NOMEM(&s->b.err, "shares");
        return NULL;
    }
    *share = (qn_share){.axis = cut->axis, .ranges = ranges};
    share->whole = s->graph->values[value].shape.dims[cut->axis].n;
    for (int i = 0; i < cut->n; i++) {
        for (int64_t p = 0; p < cut->runs[i].repeats; p++) {
            const qn_share_range next = piece_of(s, &cut->runs[i], p);
            qn_share_range *last = share->n_ranges ? &ranges[share->n_ranges - 1] : NULL;
            if (last && last->first + last->n == next.first)
                last->n += next.n;
            else
                ranges[share->n_ranges++] = next;
        }
    }
    return share;
}

static int32_t add_const(sharding *s, const qn_node *node) {
    const qn_value *value = &s->graph->values[node->out[0]];
    int64_t n = 1;
    for (int d = 0; d < value->shape.n_dims; d++) n *= value->shape.dims[d].n;
    const int32_t made = qn_build_const(&s->b, value->name, node->data, n);
    if (made >= 0) s->out.values[made].shape = value->shape;
    return made;
}

static void build_leaf(sharding *s, const qn_node *node) {
    const int32_t id = node->out[0];
    const qn_value *value = &s->graph->values[id];
    const qn_shape shape = own_shape(s, id);
    if (is_empty(s, id)) return;
    if (node->op == QN_OP_CONST) {
        s->own[id] = add_const(s, node);
    } else if (node->op == QN_OP_INPUT) {
        s->own[id] = qn_build_input(&s->b, value->name, value->kind, value->type, shape);
    } else {
        s->own[id] = qn_build_param(&s->b, value->name, value->type, shape);
        if (s->have[id] && s->own[id] >= 0)
            s->out.nodes[s->out.n_nodes - 1].share = make_share(s, id, s->have[id]);
    }
}

// --- gathering -----------------------------------------------------------------------------------

static int32_t narrow(sharding *s, int32_t x, int axis, int64_t start, int64_t length) {
    return qn_build1(&s->b, QN_OP_NARROW, x,
                     &(qn_attrs){.axis = axis, .start = start, .length = length});
}

static int32_t join(sharding *s, int32_t a, int32_t b, int axis) {
    return a < 0 ? b : qn_build2(&s->b, QN_OP_CONCAT, a, b, &(qn_attrs){.axis = axis});
}

static int32_t gather_run(sharding *s, int32_t x, const shard_run *run, bool is_alike) {
    const qn_attrs attrs = {.length = run->repeats * run->units * run->unit,
                            .unit = run->unit,
                            .parts = run->repeats,
                            .alike = is_alike,
                            .form = QN_WORD_f32};
    return qn_build1(&s->b, QN_OP_ALL_GATHER, x, &attrs);
}

// A part along the last dimension, on some ranks nothing; run by run, as each has its own units.
static int32_t gather_last(sharding *s, int32_t x, const shard_cut *cut, bool is_alike) {
    int32_t all = QN_NO_VALUE;
    for (int i = 0; i < cut->n; i++) {
        int32_t part = x;
        if (x >= 0 && cut->n > 1)
            part = narrow(s, x, cut->axis, qn_shard_before(cut, s, s->rank, i),
                          qn_shard_before(cut, s, s->rank, i + 1) -
                              qn_shard_before(cut, s, s->rank, i));
        all = join(s, all, gather_run(s, part, &cut->runs[i], is_alike && cut->n == 1), cut->axis);
    }
    return all;
}

// All of a value that is cut, made once.
static int32_t gather(sharding *s, int32_t value) {
    const shard_cut *cut = s->have[value];
    const qn_shape *shape = &s->graph->values[value].shape;
    const int last = shape->n_dims - 1;
    const bool is_alike = qn_shard_is_alike(s, value);
    if (s->whole[value] >= 0 || s->b.status) return s->whole[value];
    int32_t x = s->own[value];
    if (cut->axis == last) {
        s->whole[value] = gather_last(s, x, cut, is_alike);
    } else { // what is inside stays together
        const shard_cut merged = qn_shard_moved(cut, cut->axis, shape->dims[last].n);
        if (x >= 0) x = qn_build1(&s->b, QN_OP_MERGE, x, NULL);
        x = gather_last(s, x, &merged, is_alike);
        s->whole[value] =
            qn_build1(&s->b, QN_OP_SPLIT, x, &(qn_attrs){.parts = shape->dims[cut->axis].n});
    }
    return s->whole[value];
}

// This rank's part of a value that it has as a whole.
static int32_t slice(sharding *s, int32_t x, const shard_cut *cut) {
    int32_t all = QN_NO_VALUE;
    for (int i = 0; i < cut->n; i++) {
        for (int64_t p = 0; p < cut->runs[i].repeats; p++) {
            const qn_share_range range = piece_of(s, &cut->runs[i], p);
            if (range.n == 0) continue;
            all = join(s, all, narrow(s, x, cut->axis, range.first, range.n), cut->axis);
        }
    }
    return all;
}

// A value as its reader needs it.
static int32_t bring(sharding *s, int32_t value, const shard_cut *need) {
    if (value < 0) return QN_NO_VALUE;
    if (qn_shard_equal(s->have[value], need)) return s->own[value];
    if (qn_op_get(maker_of(s, value)->op)->class_of == QN_CLASS_LEAF && !s->b.status)
        s->b.status = QN_FAIL(&s->b.err, UNSUPPORTED, "%s is read in two ways, by rows and by all",
                              s->graph->values[value].name);
    const int32_t all = s->have[value] ? gather(s, value) : s->own[value];
    return need ? slice(s, all, need) : all;
}

// --- nodes ---------------------------------------------------------------------------------------

// What this rank has before an index that begins a piece.
static int64_t own_before(const sharding *s, const shard_cut *cut, int64_t index) {
    int64_t n = 0;
    for (int i = 0; i < cut->n; i++) {
        const shard_run *run = &cut->runs[i];
        const int64_t pieces = qn_max(0, index - run->start) / (run->units * run->unit);
        n += qn_min(run->repeats, pieces) * piece_of(s, run, 0).n;
    }
    return n;
}

// Sizes among the attributes, where this rank's differ.
static qn_attrs own_attrs(const sharding *s, const qn_node *node, const shard_cut *x) {
    const shard_cut *y = s->have[node->out[0]];
    qn_attrs attrs = node->attrs;
    if (!y) return attrs;
    if (node->op == QN_OP_SPLIT && y->axis + 1 == s->graph->values[node->in[0]].shape.n_dims)
        attrs.parts = own_of(s, y);
    if (node->op == QN_OP_NARROW && y->axis == attrs.axis) {
        attrs.start = own_before(s, x, attrs.start);
        attrs.length = own_of(s, y);
    }
    return attrs;
}

// The row of the table that a rank's share begins with, and rows from those who have them.
static int32_t build_embed(sharding *s, const qn_node *node, const int32_t *in) {
    const shard_cut *table = s->have[node->in[1]];
    const shard_run *run = &table->runs[0];
    const qn_attrs own = {.start = piece_of(s, run, 0).first};
    const qn_attrs all = {
        .length = run->units * run->unit, .unit = run->unit, .parts = 1, .form = QN_WORD_f32};
    const int32_t rows = qn_build_op(&s->b, QN_OP_EMBED, in, node->n_in, &own);
    return qn_build2(&s->b, QN_OP_ALL_GATHER, rows, in[0], &all);
}

static void name_result(sharding *s, int32_t value, int32_t made) {
    const char *name = s->graph->values[value].name;
    if (made >= 0 && name[0]) qn_build_name(&s->b, made, name);
}

// Rows that others find by name are whole.
static void name_results(sharding *s, const qn_node *node) {
    for (int o = 0; o < node->n_out; o++) {
        const int32_t value = node->out[o];
        const bool is_rows = strncmp(s->graph->values[value].name, "hidden.", 7) == 0;
        name_result(s, value, is_rows && s->have[value] ? gather(s, value) : s->own[value]);
    }
}

static void build_node(sharding *s, const qn_node *node) {
    int32_t in[QN_MAX_IN];
    const size_t at = (size_t)(node - s->graph->nodes) * QN_MAX_IN;
    s->b.layer = node->layer;
    for (int k = 0; k < node->n_in; k++) in[k] = bring(s, node->in[k], s->need[at + (size_t)k]);
    if (node->op == QN_OP_EMBED && s->have[node->in[1]]) {
        s->own[node->out[0]] = build_embed(s, node, in);
    } else if (!is_empty(s, node->out[0])) {
        const qn_attrs attrs = own_attrs(s, node, s->need[at]);
        const int32_t made = qn_build_op(&s->b, node->op, in, node->n_in, &attrs);
        for (int o = 0; o < node->n_out && made >= 0; o++) s->own[node->out[o]] = made + o;
    }
    name_results(s, node);
}

// --- outputs -------------------------------------------------------------------------------------

// The logits stay a part of the vocabulary: rows are long, and mostly only the best are wanted.
static bool stays_cut(const sharding *s, const qn_output *output) {
    const shard_cut *cut = s->have[output->value];
    return cut && strcmp(output->name, "logits") == 0 && cut->axis == 1 && cut->n == 1 &&
           cut->runs[0].repeats == 1 && !qn_shard_has_gaps(cut, s) &&
           s->graph->values[output->value].shape.n_dims == 2;
}

static void build_output(sharding *s, const qn_output *output) {
    const bool is_cut = stays_cut(s, output);
    s->b.layer = maker_of(s, output->value)->layer;
    const int32_t value = is_cut ? s->own[output->value] : bring(s, output->value, NULL);
    qn_build_output(&s->b, output->name, value);
    if (is_cut && !s->b.status)
        s->out.outputs[s->out.n_outputs - 1].share =
            make_share(s, output->value, s->have[output->value]);
}

void qn_shard_build(sharding *s) {
    const qn_graph *g = s->graph;
    qn_build_init(&s->b, &s->out, g->name);
    for (size_t v = 0; v < g->n_values; v++) s->own[v] = s->whole[v] = QN_NO_VALUE;
    for (size_t i = 0; i < g->n_nodes && !s->b.status; i++) {
        const qn_node *node = &g->nodes[i];
        s->b.layer = node->layer;
        if (!s->is_live[i]) continue;
        if (qn_op_get(node->op)->class_of == QN_CLASS_LEAF)
            build_leaf(s, node);
        else
            build_node(s, node);
    }
    for (size_t i = 0; i < g->n_outputs && !s->b.status; i++) build_output(s, &g->outputs[i]);
}
