// What a run needs, from the graph alone: weights, sequence state, and the largest set of values
// that live at the same time.
#include "runtime/memory.h"

#include "core/mem.h"

static int64_t value_bytes(const qn_value *value, int64_t rows, int64_t wanted) {
    const int64_t symbols[QN_SYM_COUNT] = {1, rows, 1, wanted};
    int64_t n = (int64_t)sizeof(float);
    for (int i = 0; i < value->shape.n_dims; i++) {
        const qn_dim d = value->shape.dims[i];
        if (!qn_i64_mul(&n, n, d.n) || !qn_i64_mul(&n, n, symbols[d.sym])) return INT64_MAX;
    }
    return n;
}

static int64_t add(int64_t a, int64_t b) {
    int64_t sum;
    return qn_i64_add(&sum, a, b) ? sum : INT64_MAX;
}

// Keys and values of every position (the cache); recurrent layers keep one state and a log of one
// step's rows.
static void add_state(qn_memory *to, const qn_graph *graph, int64_t context) {
    for (size_t i = 0; i < graph->n_nodes; i++) {
        const qn_node *node = &graph->nodes[i];
        const qn_value *value = &graph->values[node->out[0]];
        if (node->op != QN_OP_INPUT || value->kind == QN_TENSOR || value->kind == QN_TABLE)
            continue;
        int64_t bytes = 0;
        if (value->kind == QN_STATE_VALUE)
            bytes = value_bytes(value, 1, 1);
        else {
            const qn_dim *d = value->shape.dims; // (K, E, F)
            if (!qn_i64_mul(&bytes, d[0].n * (d[1].n + d[2].n) * (int64_t)sizeof(float), context))
                bytes = INT64_MAX;
            to->cache = add(to->cache, bytes);
        }
        to->state = add(to->state, bytes);
    }
}

static qn_status activation_bytes(int64_t *out, const qn_graph *graph, int64_t rows, qn_err *err) {
    int32_t *last_use = qn_alloc(graph->n_values, sizeof *last_use);
    if (!last_use) return QN_NOMEM(err, "memory plan");
    for (size_t i = 0; i < graph->n_nodes; i++) {
        for (int k = 0; k < graph->nodes[i].n_in; k++) {
            if (graph->nodes[i].in[k] >= 0) last_use[graph->nodes[i].in[k]] = (int32_t)i;
        }
    }
    int64_t live = 0, most = 0;
    for (size_t i = 0; i < graph->n_nodes; i++) {
        const qn_node *node = &graph->nodes[i];
        if (qn_op_get(node->op)->class_of == QN_CLASS_LEAF) continue;
        for (int o = 0; o < node->n_out; o++) {
            const qn_value *value = &graph->values[node->out[o]];
            if (value->kind == QN_TENSOR) live = add(live, value_bytes(value, rows, 1));
        }
        if (live > most) most = live;
        for (int k = 0; k < node->n_in; k++) {
            const int32_t id = node->in[k];
            if (id < 0 || last_use[id] != (int32_t)i) continue;
            const qn_value *value = &graph->values[id];
            const bool is_leaf = qn_op_get(graph->nodes[value->node].op)->class_of == QN_CLASS_LEAF;
            if (value->kind != QN_TENSOR || is_leaf) continue;
            live -= value_bytes(value, rows, 1);
            last_use[id] = -1; // an op may read a value twice
        }
    }
    qn_free(last_use);
    *out = most;
    return QN_OK;
}

qn_status qn_memory_plan(qn_memory *out, const qn_model *model, int64_t context, qn_err *err) {
    qn_memory plan = {0};
    add_state(&plan, &model->graph, context);
    for (size_t i = 0; i < model->weights.n; i++) {
        const qn_weight *w = &model->weights.items[i];
        if (!w->is_predict) plan.weights = add(plan.weights, w->bytes);
    }
    QN_TRY(activation_bytes(&plan.activations, &model->graph, context, err));
    plan.total = add(add(plan.weights, plan.state), plan.activations);
    *out = plan;
    return QN_OK;
}
