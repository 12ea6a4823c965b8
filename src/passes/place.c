// Every node is shown to the device. What it refuses is taken apart into the ops that fusing made
// it of; what cannot be taken apart is an error that names op, type and device.
#include "passes/match.h"

#include <stdio.h>
#include <string.h>

static int32_t input(const qn_node *node, int k) {
    return k < node->n_in ? node->in[k] : QN_NO_VALUE;
}

// Inputs up to the last one that is there.
static int used(const int32_t *in, int n) {
    while (n > 0 && in[n - 1] < 0) n--;
    return n;
}

// The weight whose product a NARROW takes out of a PROJECT; QN_NO_VALUE if it takes anything else.
static int32_t sliced_weight(const qn_rewrite *rw, const qn_node *project, const qn_node *narrow) {
    const qn_value *values = rw->graph->values;
    int64_t start = 0;
    if (narrow->op != QN_OP_NARROW ||
        narrow->attrs.axis != values[project->out[0]].shape.n_dims - 1)
        return QN_NO_VALUE;
    for (int k = 1; k < project->n_in; k++) {
        const int64_t length = values[project->in[k]].shape.dims[0].n;
        if (narrow->attrs.start == start && narrow->attrs.length == length) return project->in[k];
        start += length;
    }
    return QN_NO_VALUE;
}

static bool is_only_sliced(const qn_rewrite *rw, const qn_node *project) {
    const int32_t n = qn_rw_n_users(rw, project->out[0]);
    for (int32_t u = 0; u < n; u++) {
        const qn_node *user = &rw->graph->nodes[qn_rw_user(rw, project->out[0], u)];
        if (sliced_weight(rw, project, user) < 0) return false;
    }
    return n > 0 && !qn_rw_is_kept(rw, project->out[0]);
}

static void split_project(qn_rewrite *rw, int32_t i) {
    const qn_node project = rw->graph->nodes[i];
    if (is_only_sliced(rw, &project)) { // each slice becomes its own matmul
        for (int32_t u = 0; u < qn_rw_n_users(rw, project.out[0]); u++) {
            const int32_t user = qn_rw_user(rw, project.out[0], u);
            const int32_t w = sliced_weight(rw, &project, &rw->graph->nodes[user]);
            qn_rw_set(rw, user, QN_OP_MATMUL, (int32_t[]){project.in[0], w}, 2, NULL, NULL);
        }
        qn_rw_remove(rw, i);
        return;
    }
    const qn_attrs join = {.axis = rw->graph->values[project.in[0]].shape.n_dims - 1};
    int32_t all = QN_NO_VALUE;
    for (int k = 1; k < project.n_in - 1; k++) {
        const int32_t y = qn_rw_add(rw, project.layer, QN_OP_MATMUL,
                                    (int32_t[]){project.in[0], project.in[k]}, 2, NULL);
        all =
            k == 1 ? y : qn_rw_add(rw, project.layer, QN_OP_CONCAT, (int32_t[]){all, y}, 2, &join);
    }
    const int32_t last[] = {project.in[0], project.in[project.n_in - 1]};
    if (project.n_in == 2) {
        qn_rw_set(rw, i, QN_OP_MATMUL, last, 2, NULL, NULL);
        return;
    }
    const int32_t y = qn_rw_add(rw, project.layer, QN_OP_MATMUL, last, 2, NULL);
    qn_rw_set(rw, i, QN_OP_CONCAT, (int32_t[]){all, y}, 2, NULL, &join);
}

static void split_gated(qn_rewrite *rw, int32_t i) {
    const qn_node gated = rw->graph->nodes[i];
    const int32_t gate =
        qn_rw_add(rw, gated.layer, QN_OP_MATMUL, (int32_t[]){gated.in[0], gated.in[1]}, 2, NULL);
    const int32_t act = qn_rw_add(rw, gated.layer, qn_act_op(gated.attrs.act), &gate, 1, NULL);
    const int32_t up =
        qn_rw_add(rw, gated.layer, QN_OP_MATMUL, (int32_t[]){gated.in[0], gated.in[2]}, 2, NULL);
    qn_rw_set(rw, i, QN_OP_MUL, (int32_t[]){act, up}, 2, NULL, NULL);
}

static void split_norm_quantize(qn_rewrite *rw, int32_t i) {
    const qn_node both = rw->graph->nodes[i];
    if (both.attrs.form == QN_WORD_f32) {
        qn_rw_set(rw, i, QN_OP_RMS_NORM, both.in, 2, NULL, &both.attrs);
        return;
    }
    const int32_t norm = qn_rw_add(rw, both.layer, QN_OP_RMS_NORM, both.in, 2, &both.attrs);
    qn_rw_set(rw, i, QN_OP_QUANTIZE, &norm, 1, NULL, &both.attrs);
}

static void split_add_norm(qn_rewrite *rw, int32_t i) {
    const qn_node both = rw->graph->nodes[i];
    const int32_t sum = qn_rw_add(rw, both.layer, QN_OP_ADD, both.in, 2, NULL);
    const qn_op norm = both.attrs.form == QN_WORD_f32 ? QN_OP_RMS_NORM : QN_OP_NORM_QUANTIZE;
    qn_rw_redirect(rw, both.out[0], sum);
    qn_rw_set(rw, i, norm, (int32_t[]){sum, both.in[2]}, 2, &both.out[1], &both.attrs);
}

// With a norm: norm and rotation apart. Without: angles and rotation together again.
static void split_rotate(qn_rewrite *rw, int32_t i) {
    const qn_node rotate = rw->graph->nodes[i];
    if (input(&rotate, 2) >= 0) {
        const int32_t normed = qn_rw_add(rw, rotate.layer, QN_OP_RMS_NORM,
                                         (int32_t[]){rotate.in[0], rotate.in[2]}, 2, &rotate.attrs);
        qn_attrs attrs = rotate.attrs;
        attrs.eps = 0;
        qn_rw_set(rw, i, QN_OP_ROTATE, (int32_t[]){normed, rotate.in[1]}, 2, NULL, &attrs);
        return;
    }
    const qn_node angles = rw->graph->nodes[qn_rw_made_by(rw, rotate.in[1], QN_OP_ANGLES)];
    qn_attrs attrs = rotate.attrs;
    attrs.scale = angles.attrs.scale;
    attrs.sections = angles.attrs.sections;
    qn_rw_set(rw, i, QN_OP_ROPE, (int32_t[]){rotate.in[0], angles.in[0], angles.in[1]}, 3, NULL,
              &attrs);
}

static void split_rotate_write(qn_rewrite *rw, int32_t i) {
    const qn_node both = rw->graph->nodes[i];
    const int32_t in[] = {both.in[1], both.in[4], input(&both, 5)};
    const int32_t k = qn_rw_add(rw, both.layer, QN_OP_ROTATE, in, used(in, 3), &both.attrs);
    qn_rw_set(rw, i, QN_OP_KV_WRITE, (int32_t[]){both.in[0], k, both.in[2], both.in[3]}, 4, NULL,
              NULL);
}

static void split_attention(qn_rewrite *rw, int32_t i) {
    const qn_node all = rw->graph->nodes[i];
    const int32_t turn[] = {all.in[0], all.in[4], input(&all, 6)};
    const int32_t write[] = {all.in[3], all.in[1], all.in[2], all.in[5], all.in[4], input(&all, 7)};
    const int32_t q = qn_rw_add(rw, all.layer, QN_OP_ROTATE, turn, used(turn, 3), &all.attrs);
    const int32_t cache =
        qn_rw_add(rw, all.layer, QN_OP_ROTATE_WRITE, write, used(write, 6), &all.attrs);
    qn_rw_redirect(rw, all.out[1], cache);
    const int32_t look[] = {q, cache, all.in[5], input(&all, 8)};
    qn_rw_set(rw, i, QN_OP_ATTEND, look, used(look, 4), &all.out[0], &all.attrs);
}

static void split_experts(qn_rewrite *rw, int32_t i) {
    const qn_node all = rw->graph->nodes[i];
    const int32_t layer = all.layer, x = all.in[0];
    const int32_t ids = qn_rw_add(rw, layer, QN_OP_ROUTE, &all.in[1], 1, &all.attrs);
    const int32_t weights = rw->b.status ? QN_NO_VALUE : ids + 1;
    const int32_t gate =
        qn_rw_add(rw, layer, QN_OP_GROUPED_MATMUL, (int32_t[]){x, all.in[2], ids}, 3, NULL);
    const int32_t act = qn_rw_add(rw, layer, qn_act_op(all.attrs.act), &gate, 1, NULL);
    const int32_t up =
        qn_rw_add(rw, layer, QN_OP_GROUPED_MATMUL, (int32_t[]){x, all.in[3], ids}, 3, NULL);
    int32_t inner = qn_rw_add(rw, layer, QN_OP_MUL, (int32_t[]){act, up}, 2, NULL);
    if (all.attrs.form != QN_WORD_f32)
        inner = qn_rw_add(rw, layer, QN_OP_QUANTIZE, &inner, 1, &all.attrs);
    const int32_t down =
        qn_rw_add(rw, layer, QN_OP_GROUPED_MATMUL, (int32_t[]){inner, all.in[4], ids}, 3, NULL);
    qn_rw_set(rw, i, QN_OP_COMBINE, (int32_t[]){down, weights}, 2, NULL, NULL);
}

// The best entries are an output of the graph, which goes.
static void split_head(qn_rewrite *rw, int32_t i) {
    qn_graph *g = rw->graph;
    const qn_node head = g->nodes[i];
    size_t kept = 0;
    for (size_t o = 0; o < g->n_outputs; o++) {
        if (g->outputs[o].value != head.out[1]) g->outputs[kept++] = g->outputs[o];
    }
    g->n_outputs = kept;
    if (!(head.attrs.cap > 0)) {
        qn_rw_set(rw, i, QN_OP_MATMUL, head.in, 2, NULL, NULL);
        return;
    }
    const int32_t product = qn_rw_add(rw, head.layer, QN_OP_MATMUL, head.in, 2, NULL);
    qn_rw_set(rw, i, QN_OP_SOFTCAP, &product, 1, NULL, &head.attrs);
}

// Takes node i apart; false if it cannot be split.
static bool split(qn_rewrite *rw, int32_t i) {
    static void (*const splits[QN_OP_COUNT])(qn_rewrite *, int32_t) = {
        [QN_OP_PROJECT] = split_project,
        [QN_OP_GATED] = split_gated,
        [QN_OP_NORM_QUANTIZE] = split_norm_quantize,
        [QN_OP_ADD_NORM] = split_add_norm,
        [QN_OP_ROTATE] = split_rotate,
        [QN_OP_ROTATE_WRITE] = split_rotate_write,
        [QN_OP_ATTENTION] = split_attention,
        [QN_OP_EXPERTS] = split_experts,
        [QN_OP_HEAD] = split_head,
    };
    const qn_node node = rw->graph->nodes[i];
    if (!splits[node.op]) return false;
    if (node.op == QN_OP_ROTATE && input(&node, 2) < 0 &&
        qn_rw_made_by(rw, node.in[1], QN_OP_ANGLES) < 0)
        return false;
    if (node.op == QN_OP_HEAD && qn_rw_n_users(rw, node.out[1]) > 0) return false;
    int32_t rewritten[QN_OP_COUNT]; // not what happens here
    memcpy(rewritten, rw->report->rewritten, sizeof rewritten);
    splits[node.op](rw, i);
    memcpy(rw->report->rewritten, rewritten, sizeof rewritten);
    rw->report->decomposed[node.op]++;
    qn_rw_fired(rw);
    return true;
}

static const char *weight_type(const qn_graph *g, const qn_node *node) {
    for (int k = 0; k < node->n_in; k++) {
        if (qn_op_get(node->op)->kinds[k] == 'w' && node->in[k] >= 0)
            return qn_type_get(g->values[node->in[k]].type)->name;
    }
    return "F32";
}

static void fail(qn_rewrite *rw, qn_err *first, const qn_node *node, const char *why) {
    const char *device = rw->opts->device ? rw->opts->device : "this device";
    if (!first->message[0])
        (void)QN_FAIL(first, UNSUPPORTED, "%s of %s in layer %d: %s cannot run it: %s",
                      qn_op_get(node->op)->name, weight_type(rw->graph, node), node->layer, device,
                      why);
    rw->report->unsupported[node->op]++;
}

// Asks about node i, and about what is left of it, until it is accepted, gone or hopeless.
static void ask(qn_rewrite *rw, int32_t i, qn_err *first) {
    while (!rw->b.status && !rw->is_dead[i]) {
        qn_node *node = &rw->graph->nodes[i];
        for (int k = 0; k < node->n_in; k++) node->in[k] = qn_rw_value(rw, node->in[k]);
        const bool is_leaf = qn_op_get(node->op)->class_of == QN_CLASS_LEAF;
        const char *why = is_leaf || !rw->opts->refuse
                              ? NULL
                              : rw->opts->refuse(rw->opts->refuse_arg, rw->graph, node);
        if (!why) return;
        rw->report->refusals[node->op] = why;
        if (!split(rw, i)) {
            fail(rw, first, node, why);
            return;
        }
    }
}

void qn_pass_place(qn_rewrite *rw) {
    qn_err first = {0};
    for (size_t i = 0; !rw->b.status && i < rw->graph->n_nodes; i++) ask(rw, (int32_t)i, &first);
    if (rw->b.status || !first.message[0]) return;
    int32_t *native = rw->report->native; // the report also says what would run
    for (size_t i = 0; i < rw->graph->n_nodes; i++) {
        if (!rw->is_dead[i]) native[rw->graph->nodes[i].op]++;
    }
    for (int op = 0; op < QN_OP_COUNT; op++) native[op] -= rw->report->unsupported[op];
    rw->b.status = QN_UNSUPPORTED;
    rw->b.err = first;
}
