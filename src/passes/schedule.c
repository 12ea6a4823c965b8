// The order of nodes inside a layer, so that fewer bytes are alive at once. Greedy: of the nodes
// that could come next, the one that adds the fewest bytes. Nodes that touch state keep their
// order, and so do those that gather from other ranks; nothing moves to another layer, and a
// layer's order changes only where its peak gets lower.
#include "passes/rewrite.h"

#include "core/mem.h"

#include <string.h>

enum {
    ROWS = 512,    // what T counts for
    LONGEST = 4096 // nodes of a run that is looked at: the search is quadratic
};

typedef struct scheduler {
    qn_rewrite *rw;
    int32_t *root;         // by value: the value whose memory it is; views have none of their own
    int32_t *reads;        // by value, for roots: inputs of nodes to come that read it
    double *bytes;         // by value, 0 for leaves and views
    bool *is_done;         // by node
    int32_t *order, *best; // nodes
    double live;
} scheduler;

static bool is_leaf(const qn_node *node) { return qn_op_get(node->op)->class_of == QN_CLASS_LEAF; }

static double bytes_of(const qn_value *value) {
    double n = value->kind == QN_TENSOR ? 4 : 0;
    for (int d = 0; d < value->shape.n_dims; d++)
        n *= (double)value->shape.dims[d].n * (value->shape.dims[d].sym == QN_SYM_T ? ROWS : 1);
    return n;
}

static void find_roots(scheduler *s) {
    const qn_graph *g = s->rw->graph;
    for (size_t i = 0; i < g->n_nodes; i++) {
        const qn_node *node = &g->nodes[i];
        for (int k = 0; k < node->n_in; k++) {
            if (node->in[k] >= 0) s->reads[s->root[node->in[k]]]++;
        }
        for (int o = 0; o < node->n_out; o++) {
            const int32_t out = node->out[o];
            s->root[out] = qn_node_is_view(node) ? s->root[node->in[0]] : out;
            s->bytes[out] = is_leaf(node) || qn_node_is_view(node) ? 0 : bytes_of(&g->values[out]);
            if (qn_rw_is_kept(s->rw, out)) s->reads[s->root[out]]++; // read after the end
        }
    }
}

// Bytes that node i makes, and bytes that have no reader after it.
static double made_by(const scheduler *s, const qn_node *node) {
    double made = 0;
    for (int o = 0; o < node->n_out; o++) made += s->bytes[node->out[o]];
    return made;
}

static double freed_by(const scheduler *s, const qn_node *node) {
    double freed = 0;
    for (int k = 0; k < node->n_in; k++) {
        if (node->in[k] < 0) continue;
        const int32_t root = s->root[node->in[k]];
        int32_t own = 0;
        bool is_first = true; // of the inputs with this root
        for (int j = 0; j < node->n_in; j++) {
            if (node->in[j] < 0 || s->root[node->in[j]] != root) continue;
            own++;
            is_first = is_first && j >= k;
        }
        if (is_first && own == s->reads[root]) freed += s->bytes[root];
    }
    return freed;
}

static void read_inputs(scheduler *s, const qn_node *node, int32_t by) {
    for (int k = 0; k < node->n_in; k++) {
        if (node->in[k] >= 0) s->reads[s->root[node->in[k]]] += by;
    }
}

// Runs nodes order[0 .. n-1]: the highest number of live bytes on the way. Leaves `live` and
// `reads` as they are after it, or, if `undo`, as they were before.
static double measure(scheduler *s, const int32_t *order, size_t n, bool undo) {
    const qn_node *nodes = s->rw->graph->nodes;
    const double before = s->live;
    double peak = s->live;
    for (size_t i = 0; i < n; i++) {
        const qn_node *node = &nodes[order[i]];
        s->live += made_by(s, node);
        if (s->live > peak) peak = s->live;
        s->live -= freed_by(s, node);
        read_inputs(s, node, -1);
    }
    if (undo) {
        for (size_t i = 0; i < n; i++) read_inputs(s, &nodes[order[i]], 1);
        s->live = before;
    }
    return peak;
}

static bool is_ready(const scheduler *s, const qn_node *node) {
    for (int k = 0; k < node->n_in; k++) {
        if (node->in[k] >= 0 && !s->is_done[s->rw->graph->values[node->in[k]].node]) return false;
    }
    return true;
}

// Nodes that keep their order among themselves; 0: this one has none.
enum { KEEPS_STATE = 1, KEEPS_RANKS = 2 };

static unsigned order_of(const qn_node *node) {
    if (qn_node_gathers(node)) return KEEPS_RANKS;
    return qn_op_get(node->op)->class_of == QN_CLASS_STATE ? KEEPS_STATE : 0;
}

// The next node of the run begin ... end - 1.
static int32_t choose(const scheduler *s, size_t begin, size_t end) {
    const qn_node *nodes = s->rw->graph->nodes;
    int32_t best = -1;
    double min = 0;
    unsigned waiting = 0; // orders whose next node is not done
    for (size_t i = begin; i < end; i++) {
        const qn_node *node = &nodes[i];
        if (s->is_done[i]) continue;
        const unsigned order = order_of(node);
        const bool may = !(order & waiting) && is_ready(s, node);
        waiting |= order;
        if (!may) continue;
        const double cost = made_by(s, node) - freed_by(s, node);
        if (best >= 0 && cost >= min) continue;
        best = (int32_t)i;
        min = cost;
    }
    return best;
}

// Leaves come where the run had them: they cost nothing, and all are there from the beginning.
static size_t search(scheduler *s, size_t begin, size_t end) {
    const qn_node *nodes = s->rw->graph->nodes;
    const double live = s->live;
    size_t n = 0;
    for (size_t i = begin; i < end; i++) {
        if (is_leaf(&nodes[i])) s->is_done[i] = true;
    }
    for (int32_t i; (i = choose(s, begin, end)) >= 0;) {
        s->best[n++] = i;
        s->is_done[i] = true;
        read_inputs(s, &nodes[i], -1);
    }
    for (size_t i = 0; i < n; i++) read_inputs(s, &nodes[s->best[i]], 1);
    s->live = live;
    return n;
}

// Appends a run to the order: ops as chosen, each leaf before the first op that reads it, leaves
// that no op of the run reads first.
static size_t append_run(scheduler *s, size_t at, size_t begin, size_t end, const int32_t *ops,
                         size_t n_ops) {
    const qn_graph *g = s->rw->graph;
    for (size_t i = begin; i < end; i++) s->is_done[i] = !is_leaf(&g->nodes[i]);
    for (size_t i = 0; i < n_ops; i++) { // leaves that are read wait
        const qn_node *node = &g->nodes[ops[i]];
        for (int k = 0; k < node->n_in; k++) {
            if (node->in[k] >= 0) s->is_done[g->values[node->in[k]].node] = true;
        }
    }
    for (size_t i = begin; i < end; i++) {
        if (!s->is_done[i]) s->order[at++] = (int32_t)i;
        s->is_done[i] = !is_leaf(&g->nodes[i]) || !s->is_done[i];
    }
    for (size_t i = 0; i < n_ops; i++) {
        const qn_node *node = &g->nodes[ops[i]];
        for (int k = 0; k < node->n_in; k++) {
            const int32_t maker = node->in[k] < 0 ? -1 : g->values[node->in[k]].node;
            if (maker < (int32_t)begin || s->is_done[maker]) continue;
            s->order[at++] = maker;
            s->is_done[maker] = true;
        }
        s->order[at++] = ops[i];
    }
    return at;
}

static size_t schedule_run(scheduler *s, size_t at, size_t begin, size_t end, int32_t *plain) {
    size_t n = 0;
    for (size_t i = begin; i < end; i++) {
        if (!is_leaf(&s->rw->graph->nodes[i])) plain[n++] = (int32_t)i;
    }
    const double peak = measure(s, plain, n, true);
    const bool is_found =
        end - begin <= LONGEST && search(s, begin, end) == n && measure(s, s->best, n, true) < peak;
    if (!is_found) { // in the old order, leaves too
        measure(s, plain, n, false);
        for (size_t i = begin; i < end; i++) {
            s->order[at++] = (int32_t)i;
            s->is_done[i] = true;
        }
        return at;
    }
    qn_rw_fired(s->rw);
    measure(s, s->best, n, false);
    return append_run(s, at, begin, end, s->best, n);
}

static void apply_order(scheduler *s) {
    qn_graph *g = s->rw->graph;
    qn_node *nodes = qn_alloc(g->n_nodes, sizeof *nodes);
    if (!nodes) {
        s->rw->b.status = QN_NOMEM(&s->rw->b.err, "the order of nodes");
        return;
    }
    for (size_t i = 0; i < g->n_nodes; i++) nodes[i] = g->nodes[s->order[i]];
    memcpy(g->nodes, nodes, g->n_nodes * sizeof *nodes);
    qn_free(nodes);
    for (size_t i = 0; i < g->n_nodes; i++) {
        for (int o = 0; o < g->nodes[i].n_out; o++) g->values[g->nodes[i].out[o]].node = (int32_t)i;
    }
}

void qn_pass_schedule(qn_rewrite *rw) {
    const qn_graph *g = rw->graph;
    const size_t n = g->n_nodes;
    scheduler s = {.rw = rw};
    s.root = qn_alloc(g->n_values, sizeof *s.root);
    s.reads = qn_alloc(g->n_values, sizeof *s.reads);
    s.bytes = qn_alloc(g->n_values, sizeof *s.bytes);
    s.is_done = qn_alloc(n, sizeof *s.is_done);
    s.order = qn_alloc(n, sizeof *s.order);
    s.best = qn_alloc(n, sizeof *s.best);
    int32_t *plain = qn_alloc(n, sizeof *plain);
    if (!s.root || !s.reads || !s.bytes || !s.is_done || !s.order || !s.best || !plain) {
        rw->b.status = QN_NOMEM(&rw->b.err, "the order of nodes");
    } else {
        find_roots(&s);
        size_t at = 0;
        for (size_t begin = 0, end; begin < n; begin = end) { // a run has one layer
            for (end = begin + 1; end < n && g->nodes[end].layer == g->nodes[begin].layer;) end++;
            at = schedule_run(&s, at, begin, end, plain);
        }
        apply_order(&s);
    }
    qn_free(s.root);
    qn_free(s.reads);
    qn_free(s.bytes);
    qn_free(s.is_done);
    qn_free(s.order);
    qn_free(s.best);
    qn_free(plain);
}
