// Limits: what the machine can do, and what the steps of a model need at least.
#include "core/structs.h"
#include "runtime/engine.h"

qn_status qn_machine_limits(qn_limits *out, int n_threads, qn_err *err) {
    QN_NEED(out, err);
    QN_TRY(QN_RESULT_CHECK(qn_limits, out, err));
    qn_limits limits;
    QN_TRY(qn_device_kind_get(0)->limits(&limits, NULL, n_threads, err));
    QN_RESULT_WRITE(qn_limits, out, &limits);
    return QN_OK;
}

qn_status qn_device_limits(qn_limits *out, const char *device, int n_threads, qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(device, err);
    QN_TRY(QN_RESULT_CHECK(qn_limits, out, err));
    qn_limits limits;
    QN_TRY(qn_device_measure(&limits, device, n_threads, err));
    QN_RESULT_WRITE(qn_limits, out, &limits);
    return QN_OK;
}

static int64_t elements(const qn_shape *shape) {
    int64_t n = 1;
    for (int i = 0; i < shape->n_dims; i++) n *= shape->dims[i].n; // the verifier checked it
    return n;
}

// A matrix, or a stack of them of which each row takes `top`.
static void add_weight(qn_cost *to, const qn_graph *graph, const qn_node *node,
                       const qn_step_size *step) {
    const qn_value *x = &graph->values[node->in[0]], *w = &graph->values[node->in[1]];
    const qn_type_info *type = qn_type_get(w->type);
    const double n = (double)elements(&w->shape);
    const double rows = (double)(x->shape.dims[0].sym == QN_SYM_R ? step->outs : step->rows);
    double read = 1, used = 1; // share of the weight: by all rows, by each
    if (node->op == QN_OP_GROUPED_MATMUL) {
        const qn_shape *ids = &graph->values[node->in[2]].shape;
        used = (double)ids->dims[ids->n_dims - 1].n / (double)w->shape.dims[0].n;
        read = used * rows < 1 ? used * rows : 1;
    }
    if (rows > 0) to->weight_bytes += n * read * type->bytes / type->block;
    *(type->block > 1 ? &to->int_ops : &to->float_ops) += 2 * n * used * rows;
}

// Keys and values that a sequence's rows see, those of the window only.
static void add_cache(qn_cost *to, const qn_engine *engine, const qn_node *node,
                      const qn_step_size *step) {
    const qn_dim *d = engine->model->graph.values[node->in[1]].shape.dims;
    const qn_backend *backend = engine->stages[0].device->backend;
    const qn_type type = qn_kv_type_get(engine->cache_type)->type;
    const int64_t page = backend->cache_bytes(type, d[0].n, d[1].n, d[2].n);
    const int64_t window = node->attrs.window;
    const int64_t seen = window > 0 && window < step->depth ? window : step->depth;
    to->state_bytes += (double)page / QN_PAGE_ROWS * (double)seen * (double)step->seqs;
}

static void add_state(qn_cost *to, const qn_graph *graph, const qn_node *node, int input,
                      const qn_step_size *step) {
    const qn_shape *shape = &graph->values[node->in[input]].shape;
    to->state_bytes += (double)elements(shape) * sizeof(float) * (double)step->seqs;
}

qn_status qn_engine_cost(qn_cost *out, const qn_engine *engine, const qn_step_size *step,
                         qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(engine, err);
    QN_NEED(step, err);
    qn_step_size s;
    QN_TRY(QN_RESULT_CHECK(qn_cost, out, err));
    QN_TRY(QN_OPTS_READ(qn_step_size, &s, step, err));
    if (s.rows < 0 || s.outs < 0 || s.seqs < 0 || s.depth < 0)
        return QN_FAIL(err, ARGUMENT,
                       "a step of %lld rows, %lld wanted, %lld sequences, depth %lld",
                       (long long)s.rows, (long long)s.outs, (long long)s.seqs, (long long)s.depth);
    const qn_graph *graph = &engine->model->graph;
    qn_cost cost = {0};
    for (size_t i = 0; i < graph->n_nodes; i++) {
        const qn_node *node = &graph->nodes[i];
        const qn_op_info *info = qn_op_get(node->op);
        const bool has_window = info->attrs >> QN_ATTR_window & 1; // it looks back
        if (node->op == QN_OP_MATMUL || node->op == QN_OP_GROUPED_MATMUL)
            add_weight(&cost, graph, node, &s);
        for (int k = 0; k < node->n_in; k++) {
            if (info->kinds[k] == 'c' && has_window) add_cache(&cost, engine, node, &s);
            if (info->kinds[k] == 's') add_state(&cost, graph, node, k, &s);
        }
    }
    QN_RESULT_WRITE(qn_cost, out, &cost);
    return QN_OK;
}
