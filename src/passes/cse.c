// Common subexpressions: of nodes that compute the same from the same, the first stays. Weights and
// inputs differ by name, and nodes that change state or gather from other ranks are never the same.
#include "passes/rewrite.h"

#include "core/map.h"

#include <string.h>

enum { CONST_LIMIT = 4096 }; // longer constants are not compared

static bool is_pure(const qn_graph *g, const qn_node *node) {
    if (node->op == QN_OP_INPUT || node->op == QN_OP_PARAM || qn_node_gathers(node)) return false;
    for (int o = 0; o < node->n_out; o++) {
        if (g->values[node->out[o]].kind != QN_TENSOR) return false;
    }
    return true;
}

// Numbers of a constant; 0 if there are too many to compare.
static int64_t const_size(const qn_shape *shape) {
    int64_t n = 1;
    for (int d = 0; d < shape->n_dims && n <= CONST_LIMIT; d++) n *= shape->dims[d].n;
    return n <= CONST_LIMIT ? n : 0;
}

static void add_attrs(qn_buf *key, const qn_node *node) {
    static const size_t sizes[] = {[QN_ATTR_INT] = sizeof(int64_t),
                                   [QN_ATTR_FLOAT] = sizeof(float),
                                   [QN_ATTR_LIST] = sizeof(qn_list),
                                   [QN_ATTR_WORD] = sizeof(qn_word)};
    for (int a = 0; a < QN_ATTR_COUNT; a++) {
        const qn_attr_info *info = qn_attr_get((qn_attr)a);
        if (qn_op_get(node->op)->attrs >> a & 1u)
            qn_buf_add(key, (const char *)&node->attrs + info->offset, sizes[info->kind]);
    }
}

// Bytes that are equal for nodes that compute the same; none if the node is not to be compared.
static void write_key(qn_buf *key, const qn_rewrite *rw, const qn_node *node) {
    const qn_graph *g = rw->graph;
    if (!is_pure(g, node)) return;
    if (node->op == QN_OP_CONST) {
        const qn_shape *shape = &g->values[node->out[0]].shape;
        const int64_t n = const_size(shape);
        if (n == 0) return;
        qn_buf_add(key, &shape->n_dims, sizeof shape->n_dims);
        for (int d = 0; d < shape->n_dims; d++) qn_buf_add(key, &shape->dims[d].n, sizeof(int64_t));
        qn_buf_add(key, node->data, (size_t)n * sizeof(float));
    }
    qn_buf_add(key, &node->op, sizeof node->op);
    qn_buf_add(key, &node->n_in, sizeof node->n_in);
    for (int k = 0; k < node->n_in; k++) {
        const int32_t value = node->in[k] < 0 ? QN_NO_VALUE : qn_rw_value(rw, node->in[k]);
        qn_buf_add(key, &value, sizeof value);
    }
    add_attrs(key, node);
}

// All results of node i go over to those of an earlier one.
static void merge(qn_rewrite *rw, size_t i, uint32_t earlier) {
    const qn_node *from = &rw->graph->nodes[i], *to = &rw->graph->nodes[earlier];
    for (int o = 0; o < from->n_out; o++) {
        if (!qn_rw_redirect(rw, from->out[o], to->out[o])) return; // then both stay
    }
    qn_rw_remove(rw, (int32_t)i);
    qn_rw_fired(rw);
}

void qn_pass_cse(qn_rewrite *rw) {
    qn_map seen = {0};
    qn_arena keys = {0};
    qn_buf key = {0};
    for (size_t i = 0; i < rw->n_nodes && !rw->b.status; i++) {
        qn_buf_clear(&key);
        write_key(&key, rw, &rw->graph->nodes[i]);
        const char *copy =
            key.failed ? NULL : qn_arena_strdup(&keys, key.data ? key.data : "", key.size);
        uint32_t earlier = (uint32_t)i;
        if (!copy || (key.size && !qn_map_add(&seen, copy, key.size, (uint32_t)i, &earlier)))
            rw->b.status = QN_NOMEM(&rw->b.err, "common subexpressions");
        else if (earlier != i)
            merge(rw, i, earlier);
    }
    qn_buf_deinit(&key);
    qn_arena_deinit(&keys);
    qn_map_deinit(&seen);
}
