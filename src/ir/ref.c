#include "ir/ref_int.h"

#include "core/mem.h"

#include <string.h>

struct qn_ref {
    qn_ref_opts opts;
    const void **inputs;  // (n_values) given by qn_ref_set_input
    ref_tensor *tensors;  // (n_values)
    bool *is_owned;       // (n_values) data was allocated by this run
    int32_t *last_use;    // (n_values) index of the last node that reads it; n_nodes for outputs
    ref_state **state_of; // (n_values) borrowed from `states`
    ref_state *states;    // (n_values), used for state inputs only
};

static qn_status leaf(const ref_call *call) {
    (void)call; // leaves are bound before the nodes run
    return QN_OK;
}
qn_status qn_ref_INPUT(const ref_call *call) { return leaf(call); }
qn_status qn_ref_PARAM(const ref_call *call) { return leaf(call); }
qn_status qn_ref_CONST(const ref_call *call) { return leaf(call); }

static void find_last_uses(qn_ref *ref) {
    const qn_graph *g = ref->opts.graph;
    for (size_t i = 0; i < g->n_nodes; i++) {
        for (int k = 0; k < g->nodes[i].n_in; k++) {
            if (g->nodes[i].in[k] >= 0) ref->last_use[g->nodes[i].in[k]] = (int32_t)i;
        }
    }
    for (size_t i = 0; i < g->n_outputs; i++) {
        ref->last_use[g->outputs[i].value] = (int32_t)g->n_nodes;
    }
}

static qn_status create_state(qn_ref *ref, int32_t id, qn_err *err) {
    const qn_value *value = &ref->opts.graph->values[id];
    const qn_dim *d = value->shape.dims;
    ref_state *state = &ref->states[id];
    ref->state_of[id] = state;
    int64_t n;
    if (value->kind == QN_CACHE) {
        if (!qn_i64_add(&n, d[1].n, d[2].n) || !qn_i64_mul(&state->row_size, d[0].n, n) ||
            !qn_i64_mul(&n, state->row_size, QN_PAGE_ROWS) || !qn_i64_mul(&n, n, ref->opts.n_pages))
            return QN_FAIL(err, LIMIT, "%s: cache size overflows", value->name);
        state->pages = qn_alloc((size_t)n, sizeof(float));
        return state->pages ? QN_OK : QN_NOMEM(err, value->name);
    }
    n = 1;
    for (int i = 0; i < value->shape.n_dims; i++) {
        if (!qn_i64_mul(&n, n, d[i].n))
            return QN_FAIL(err, LIMIT, "%s: state size overflows", value->name);
    }
    state->state_size = n;
    state->slots = qn_alloc((size_t)ref->opts.n_slots, sizeof *state->slots);
    if (!state->slots) return QN_NOMEM(err, value->name);
    for (int64_t i = 0; i < ref->opts.n_slots; i++) {
        state->slots[i].state = qn_alloc((size_t)n, sizeof(float));
        if (!state->slots[i].state) return QN_NOMEM(err, value->name);
    }
    return QN_OK;
}

static bool is_state(const qn_value *value) {
    return value->kind == QN_CACHE || value->kind == QN_STATE_VALUE;
}

// A state for each input of that kind; what nodes make of it is the same state.
static qn_status create_states(qn_ref *ref, qn_err *err) {
    const qn_graph *g = ref->opts.graph;
    for (size_t i = 0; i < g->n_nodes; i++) {
        const qn_node *node = &g->nodes[i];
        ref_state *state = NULL;
        for (int k = 0; k < node->n_in; k++) {
            if (node->in[k] >= 0 && ref->state_of[node->in[k]]) state = ref->state_of[node->in[k]];
        }
        for (int o = 0; o < node->n_out; o++) {
            if (!is_state(&g->values[node->out[o]])) continue;
            if (node->op == QN_OP_INPUT)
                QN_TRY(create_state(ref, node->out[o], err));
            else
                ref->state_of[node->out[o]] = state;
        }
    }
    return QN_OK;
}

qn_status qn_ref_create(qn_ref **out, const qn_ref_opts *opts, qn_err *err) {
    const size_t n = opts->graph->n_values;
    qn_ref *ref = qn_alloc(1, sizeof *ref);
    if (!ref) return QN_NOMEM(err, "interpreter");
    ref->opts = *opts;
    ref->inputs = qn_alloc(n, sizeof *ref->inputs);
    ref->tensors = qn_alloc(n, sizeof *ref->tensors);
    ref->is_owned = qn_alloc(n, sizeof *ref->is_owned);
    ref->last_use = qn_alloc(n, sizeof *ref->last_use);
    ref->state_of = qn_alloc(n, sizeof *ref->state_of);
    ref->states = qn_alloc(n, sizeof *ref->states);
    qn_status status = QN_OK;
    if (!ref->inputs || !ref->tensors || !ref->is_owned || !ref->last_use || !ref->state_of ||
        !ref->states) {
        status = QN_NOMEM(err, "interpreter");
        goto done;
    }
    find_last_uses(ref);
    QN_TRY_TO(done, create_states(ref, err));
    *out = ref;
    ref = NULL;

done:
    qn_ref_destroy(ref);
    return status;
}

static void drop_tensors(qn_ref *ref) {
    for (size_t i = 0; i < ref->opts.graph->n_values; i++) {
        if (ref->is_owned[i]) qn_free(ref->tensors[i].data);
        ref->is_owned[i] = false;
        ref->tensors[i] = (ref_tensor){0};
    }
}

static void destroy_state(ref_state *state, int64_t n_slots) {
    qn_free(state->pages);
    for (int64_t i = 0; state->slots && i < n_slots; i++) {
        qn_free(state->slots[i].state);
        qn_free(state->slots[i].log);
    }
    qn_free(state->slots);
}

void qn_ref_destroy(qn_ref *ref) {
    if (!ref) return;
    if (ref->tensors && ref->is_owned) drop_tensors(ref);
    for (size_t i = 0; ref->states && i < ref->opts.graph->n_values; i++)
        destroy_state(&ref->states[i], ref->opts.n_slots);
    qn_free(ref->inputs);
    qn_free(ref->tensors);
    qn_free(ref->is_owned);
    qn_free(ref->last_use);
    qn_free(ref->state_of);
    qn_free(ref->states);
    qn_free(ref);
}

void qn_ref_set_input(qn_ref *ref, int32_t value, const void *data) { ref->inputs[value] = data; }

// Everything in the table must lie inside the graph's state and the step itself.
static qn_status check_step(const qn_ref *ref, const qn_step *s, qn_err *err) {
    for (int64_t b = 0; b < s->n_segs; b++) {
        const int64_t first = s->seg_row[b], end = s->seg_row[b + 1];
        if (first < 0 || end < first || end > s->n_rows || s->seg_past[b] < 0)
            return QN_FAIL(err, ARGUMENT, "segment %lld: rows %lld to %lld of %lld, past %d",
                           (long long)b, (long long)first, (long long)end, (long long)s->n_rows,
                           s->seg_past[b]);
        const int64_t pages = (s->seg_past[b] + (end - first) + QN_PAGE_ROWS - 1) / QN_PAGE_ROWS;
        if (pages > s->pages_per_seg)
            return QN_FAIL(err, ARGUMENT, "segment %lld: needs %lld pages, has %lld", (long long)b,
                           (long long)pages, (long long)s->pages_per_seg);
        for (int64_t i = 0; i < pages; i++) { // pages before a window may be gone
            const int32_t page = ref_page(s, b, i),
                          min = i < s->seg_past[b] / QN_PAGE_ROWS ? -1 : 0;
            if (page < min || page >= ref->opts.n_pages)
                return QN_FAIL(err, ARGUMENT, "segment %lld: page %d of %lld", (long long)b, page,
                               (long long)ref->opts.n_pages);
        }
        if (s->seg_commit && (s->seg_commit[b] < 0 || s->seg_commit[b] > end - first))
            return QN_FAIL(err, ARGUMENT, "segment %lld: %d of %lld rows are accepted",
                           (long long)b, s->seg_commit[b], (long long)(end - first));
        if (s->seg_slot[b] < 0 || s->seg_slot[b] >= ref->opts.n_slots)
            return QN_FAIL(err, ARGUMENT, "segment %lld: slot %d of %lld", (long long)b,
                           s->seg_slot[b], (long long)ref->opts.n_slots);
    }
    for (int64_t t = 0; t < s->n_rows; t++) {
        const int32_t b = s->row_seg[t];
        if (b < -1 || b >= s->n_segs || (b >= 0 && (t < s->seg_row[b] || t >= s->seg_row[b + 1])))
            return QN_FAIL(err, ARGUMENT, "row %lld: segment %d of %lld", (long long)t, b,
                           (long long)s->n_segs);
    }
    for (int64_t i = 0; i < s->n_out; i++) {
        if (s->row_out[i] < 0 || s->row_out[i] >= s->n_rows)
            return QN_FAIL(err, ARGUMENT, "wanted row %d of %lld", s->row_out[i],
                           (long long)s->n_rows);
    }
    return QN_OK;
}

static qn_status resolve(ref_tensor *to, const qn_value *value, const qn_step *step, qn_err *err) {
    const int64_t symbols[QN_SYM_COUNT] = {1, step->n_rows, step->n_segs, step->n_out};
    *to = (ref_tensor){.value = value, .n_dims = value->shape.n_dims, .n = 1};
    for (int i = 0; i < to->n_dims; i++) {
        const qn_dim d = value->shape.dims[i];
        if (!qn_i64_mul(&to->dims[i], d.n, symbols[d.sym]) ||
            !qn_i64_mul(&to->n, to->n, to->dims[i]))
            return QN_FAIL(err, LIMIT, "%s: size overflows", value->name);
    }
    return QN_OK;
}

// The data of an input that the step has; *rows: how many it has. False: it has no such input.
static bool find_step_input(const void **data, int64_t *rows, const qn_step *step,
                            const char *name) {
    const int64_t n = step->n_extra ? step->n_rows : 0;
    const struct {
        const char *name;
        const void *data;
        int64_t rows;
    } inputs[] = {{"ids", step->ids, step->n_rows},
                  {"row_out", step->row_out, step->n_out},
                  {"extra", step->extra, step->n_extra},
                  {"extra_row", step->extra_row, n}};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        if (strcmp(name, inputs[i].name) != 0) continue;
        *data = inputs[i].data;
        *rows = inputs[i].rows;
        return true;
    }
    return false;
}

// Rows that are given are as many as the step has, whatever the shape says.
static void set_rows(ref_tensor *t, int64_t rows) {
    t->n = t->dims[0] ? t->n / t->dims[0] * rows : 0;
    t->dims[0] = rows;
}

// The data of a leaf: from the step, the parameters, the node itself or qn_ref_set_input.
static qn_status bind_leaf(qn_ref *ref, const qn_node *node, const qn_step *step, qn_err *err) {
    const int32_t id = node->out[0];
    const qn_value *value = &ref->opts.graph->values[id];
    const void *data = NULL;
    int64_t rows;
    if (value->kind != QN_TENSOR) return QN_OK;
    if (node->op == QN_OP_PARAM)
        data = ref->opts.params[id];
    else if (node->op == QN_OP_CONST)
        data = node->data;
    else if (ref->inputs[id])
        data = ref->inputs[id];
    else if (find_step_input(&data, &rows, step, value->name))
        set_rows(&ref->tensors[id], rows);
    if (!data && ref->tensors[id].n > 0)
        return QN_FAIL(err, STATE, "%s: no data was given", value->name);
    ref->tensors[id].data = (void *)(uintptr_t)data; // leaves are only read
    return QN_OK;
}

static qn_status prepare_results(qn_ref *ref, const qn_node *node, const qn_step *step,
                                 qn_err *err) {
    for (int o = 0; o < node->n_out; o++) {
        const int32_t id = node->out[o];
        const qn_value *value = &ref->opts.graph->values[id];
        QN_TRY(resolve(&ref->tensors[id], value, step, err));
        if (qn_op_get(node->op)->class_of == QN_CLASS_LEAF) return bind_leaf(ref, node, step, err);
        if (value->kind != QN_TENSOR) continue;
        ref->tensors[id].data = qn_alloc((size_t)ref->tensors[id].n, sizeof(float));
        if (!ref->tensors[id].data) return QN_NOMEM(err, "an intermediate value");
        ref->is_owned[id] = true;
    }
    return QN_OK;
}

qn_status qn_ref_poll(const ref_call *call) {
    const qn_ref_opts *opts = call->opts;
    const int64_t n = (int64_t)opts->graph->n_nodes;
    if (!opts->progress || opts->progress(opts->progress_arg, call->index, n)) return QN_OK;
    return QN_FAIL(call->err, STOPPED, "stopped at node %lld of %lld", (long long)call->index,
                   (long long)n);
}

static qn_status run_node(qn_ref *ref, const qn_node *node, const qn_step *step, qn_err *err) {
    static ref_op *const ops[] = {
#define OP(name, min_in, kinds, n_out, rule, class, attrs, facts) qn_ref_##name,
#include "ir/ops.def"
#undef OP
    };
    QN_TRY(prepare_results(ref, node, step, err));
    ref_call call = {.node = node,
                     .step = step,
                     .pool = ref->opts.pool,
                     .opts = &ref->opts,
                     .index = node - ref->opts.graph->nodes,
                     .err = err};
    QN_TRY(qn_ref_poll(&call));
    for (int k = 0; k < node->n_in; k++) {
        if (node->in[k] < 0) continue;
        call.in[k] = &ref->tensors[node->in[k]];
        if (ref->state_of[node->in[k]]) call.state = ref->state_of[node->in[k]];
    }
    for (int o = 0; o < node->n_out; o++) call.out[o] = &ref->tensors[node->out[o]];
    return ops[node->op](&call);
}

qn_status qn_ref_run(qn_ref *ref, const qn_step *step, qn_err *err) {
    const qn_graph *g = ref->opts.graph;
    drop_tensors(ref);
    QN_TRY(check_step(ref, step, err));
    for (size_t i = 0; i < g->n_nodes; i++) {
        const qn_node *node = &g->nodes[i];
        QN_TRY(run_node(ref, node, step, err));
        for (int k = 0; k < node->n_in; k++) { // release what has no reader left
            const int32_t id = node->in[k];
            if (id < 0 || ref->last_use[id] != (int32_t)i || !ref->is_owned[id]) continue;
            qn_free(ref->tensors[id].data);
            ref->tensors[id].data = NULL;
            ref->is_owned[id] = false;
        }
    }
    return QN_OK;
}

const void *qn_ref_output(const qn_ref *ref, const char *name, int64_t *n) {
    const int32_t id = qn_graph_find_output(ref->opts.graph, name);
    if (id < 0) return NULL;
    *n = ref->tensors[id].n;
    return ref->tensors[id].data;
}

// An input of a node that runs alone: what the caller gives, or else a leaf's own data.
static qn_status bind_input(qn_ref *ref, int32_t id, const void *data, const qn_step *step,
                            qn_err *err) {
    const qn_graph *g = ref->opts.graph;
    const qn_value *value = &g->values[id];
    const qn_node *maker = &g->nodes[value->node];
    QN_TRY(resolve(&ref->tensors[id], value, step, err));
    if (value->kind != QN_TENSOR) return QN_OK;
    ref->tensors[id].data = (void *)(uintptr_t)data; // inputs are only read
    if (data) return QN_OK;
    if (qn_op_get(maker->op)->class_of == QN_CLASS_LEAF) return bind_leaf(ref, maker, step, err);
    return ref->tensors[id].n ? QN_FAIL(err, ARGUMENT, "value %d: no data was given", id) : QN_OK;
}

qn_status qn_ref_run_node(qn_ref *ref, size_t index, const qn_step *step, const void *const *inputs,
                          qn_err *err) {
    const qn_graph *g = ref->opts.graph;
    if (index >= g->n_nodes) return QN_FAIL(err, ARGUMENT, "node %zu of %zu", index, g->n_nodes);
    const qn_node *node = &g->nodes[index];
    drop_tensors(ref);
    QN_TRY(check_step(ref, step, err));
    for (int k = 0; k < node->n_in; k++) {
        if (node->in[k] >= 0) QN_TRY(bind_input(ref, node->in[k], inputs[k], step, err));
    }
    return run_node(ref, node, step, err);
}

const void *qn_ref_value(const qn_ref *ref, int32_t value, int64_t *n) {
    *n = ref->tensors[value].n;
    return ref->tensors[value].data;
}

void qn_ref_set_cache_row(qn_ref *ref, int32_t value, int64_t page, int64_t row, const float *keys,
                          const float *values) {
    const qn_dim *d = ref->opts.graph->values[value].shape.dims; // (K, E, F)
    const ref_state *state = &ref->states[value];
    const int64_t k_size = d[0].n * d[1].n, v_size = d[0].n * d[2].n;
    float *to = state->pages + (page * QN_PAGE_ROWS + row) * state->row_size;
    memcpy(to, keys, (size_t)k_size * sizeof *to);
    memcpy(to + k_size, values, (size_t)v_size * sizeof *to);
}

qn_status qn_ref_set_slot(qn_ref *ref, int32_t value, int64_t slot, const float *state,
                          const float *log, int64_t n_log, int64_t log_size, qn_err *err) {
    ref_slot *to = &ref->states[value].slots[slot];
    const size_t n = (size_t)(n_log * log_size);
    void *rows = to->log;
    if (!qn_grow(&rows, &to->cap_log, n, sizeof(float))) return QN_NOMEM(err, "log of rows");
    to->log = rows;
    if (n) memcpy(to->log, log, n * sizeof(float));
    to->n_log = n_log;
    memcpy(to->state, state, (size_t)ref->states[value].state_size * sizeof(float));
    return QN_OK;
}
