#include "passes/rewrite.h"

#include "core/mem.h"

#include <string.h>

static void fail_memory(qn_rewrite *rw) {
    if (!rw->b.status) rw->b.status = QN_NOMEM(&rw->b.err, "rewriting a graph");
}

// Room by node and by value for what was added.
static void grow(qn_rewrite *rw) {
    const qn_graph *g = rw->graph;
    void *dead = rw->is_dead, *follows = rw->follows, *alias = rw->alias;
    size_t cap_dead = rw->cap_nodes, cap_follows = rw->cap_nodes;
    const size_t old_nodes = rw->cap_nodes, old_values = rw->cap_values;
    const bool ok = qn_grow(&dead, &cap_dead, g->n_nodes, sizeof *rw->is_dead) &&
                    qn_grow(&follows, &cap_follows, g->n_nodes, sizeof *rw->follows) &&
                    qn_grow(&alias, &rw->cap_values, g->n_values, sizeof *rw->alias);
    rw->is_dead = dead;
    rw->follows = follows;
    rw->alias = alias;
    if (!ok) {
        fail_memory(rw);
        return;
    }
    rw->cap_nodes = cap_dead < cap_follows ? cap_dead : cap_follows;
    for (size_t i = old_nodes; i < rw->cap_nodes; i++) {
        rw->is_dead[i] = false;
        rw->follows[i] = -1;
    }
    for (size_t i = old_values; i < rw->cap_values; i++) rw->alias[i] = (int32_t)i;
}

// Names by which others find a value.
static bool is_name_kept(const char *name) {
    return strcmp(name, "logits") == 0 || strncmp(name, "hidden.", 7) == 0;
}

static void count_uses(qn_rewrite *rw) {
    const qn_graph *g = rw->graph;
    size_t n_uses = 0;
    for (size_t i = 0; i < g->n_nodes; i++) n_uses += (size_t)g->nodes[i].n_in;
    rw->use_begin = qn_alloc(g->n_values + 2, sizeof *rw->use_begin);
    rw->users = qn_alloc(n_uses, sizeof *rw->users);
    rw->is_kept = qn_alloc(g->n_values, sizeof *rw->is_kept);
    if (!rw->use_begin || !rw->users || !rw->is_kept) {
        fail_memory(rw);
        return;
    }
    int32_t *count = rw->use_begin + 2; // becomes the end of each list, one place further
    for (size_t i = 0; i < g->n_nodes; i++) {
        for (int k = 0; k < g->nodes[i].n_in; k++) {
            if (g->nodes[i].in[k] >= 0) count[g->nodes[i].in[k]]++;
        }
    }
    for (size_t v = 1; v < g->n_values; v++) count[v] += count[v - 1];
    for (size_t i = 0; i < g->n_nodes; i++) {
        for (int k = 0; k < g->nodes[i].n_in; k++) {
            const int32_t v = g->nodes[i].in[k];
            if (v >= 0) rw->users[rw->use_begin[v + 1]++] = (int32_t)i;
        }
    }
    for (size_t v = 0; v < g->n_values; v++) rw->is_kept[v] = is_name_kept(g->values[v].name);
    for (size_t o = 0; o < g->n_outputs; o++) rw->is_kept[g->outputs[o].value] = true;
}

void qn_rw_begin(qn_rewrite *rw, qn_graph *graph, const qn_pass_opts *opts, qn_pass_report *report,
                 int pass) {
    *rw = (qn_rewrite){.graph = graph, .opts = opts, .report = report, .pass = pass};
    rw->b = (qn_build){.graph = graph, .layer = -1};
    rw->n_nodes = graph->n_nodes;
    rw->n_values = graph->n_values;
    grow(rw);
    if (!rw->b.status) count_uses(rw);
}

static void free_lists(qn_rewrite *rw) {
    qn_free(rw->is_dead);
    qn_free(rw->follows);
    qn_free(rw->alias);
    qn_free(rw->use_begin);
    qn_free(rw->users);
    qn_free(rw->is_kept);
}

void qn_rw_replace(qn_rewrite *rw, qn_graph *graph) {
    free_lists(rw);
    qn_graph_deinit(rw->graph);
    *rw->graph = *graph;
    *graph = (qn_graph){0};
    qn_rw_begin(rw, rw->graph, rw->opts, rw->report, rw->pass);
}

// --- looking ---

bool qn_rw_is_live(const qn_rewrite *rw, size_t i) { return !rw->b.status && !rw->is_dead[i]; }

int32_t qn_rw_value(const qn_rewrite *rw, int32_t value) {
    while (value >= 0 && rw->alias[value] != value) value = rw->alias[value];
    return value;
}

int32_t qn_rw_made_by(const qn_rewrite *rw, int32_t value, qn_op op) {
    if (value < 0 || rw->b.status) return -1;
    const int32_t i = rw->graph->values[qn_rw_value(rw, value)].node;
    return !rw->is_dead[i] && rw->graph->nodes[i].op == op ? i : -1;
}

bool qn_rw_is_fixed(const qn_rewrite *rw, int32_t value) {
    return qn_rw_made_by(rw, value, QN_OP_PARAM) >= 0 || qn_rw_made_by(rw, value, QN_OP_CONST) >= 0;
}

int32_t qn_rw_n_users(const qn_rewrite *rw, int32_t value) {
    if ((size_t)value >= rw->n_values) return 0;
    return rw->use_begin[value + 1] - rw->use_begin[value];
}

int32_t qn_rw_user(const qn_rewrite *rw, int32_t value, int32_t i) {
    return rw->users[rw->use_begin[value] + i];
}

bool qn_rw_is_kept(const qn_rewrite *rw, int32_t value) {
    return (size_t)value < rw->n_values && rw->is_kept[value];
}

bool qn_rw_is_inner(const qn_rewrite *rw, int32_t value) {
    return qn_rw_n_users(rw, value) == 1 && !qn_rw_is_kept(rw, value);
}

// --- changing ---

static int32_t add(qn_rewrite *rw, int32_t layer, qn_op op, const int32_t *in, int n_in,
                   const qn_attrs *attrs) {
    int32_t resolved[QN_MAX_IN];
    if (rw->b.status) return QN_NO_VALUE;
    for (int k = 0; k < n_in; k++) resolved[k] = qn_rw_value(rw, in[k]);
    rw->b.layer = layer;
    const int32_t value = qn_build_op(&rw->b, op, resolved, n_in, attrs);
    if (!rw->b.status) grow(rw);
    return rw->b.status ? QN_NO_VALUE : value;
}

int32_t qn_rw_add(qn_rewrite *rw, int32_t layer, qn_op op, const int32_t *in, int n_in,
                  const qn_attrs *attrs) {
    return add(rw, layer, op, in, n_in, attrs);
}

int32_t qn_rw_add_early(qn_rewrite *rw, int32_t layer, qn_op op, const int32_t *in, int n_in,
                        const qn_attrs *attrs) {
    const int32_t value = add(rw, layer, op, in, n_in, attrs);
    if (rw->b.status) return QN_NO_VALUE;
    const qn_graph *g = rw->graph;
    int32_t last = -1;
    for (int k = 0; k < n_in; k++) {
        const int32_t maker = in[k] < 0 ? -1 : g->values[qn_rw_value(rw, in[k])].node;
        if (maker > last) last = maker;
    }
    rw->follows[g->values[value].node] = last;
    return value;
}

void qn_rw_set(qn_rewrite *rw, int32_t i, qn_op op, const int32_t *in, int n_in, const int32_t *out,
               const qn_attrs *attrs) {
    if (rw->b.status) return;
    qn_graph *g = rw->graph;
    qn_node *node = &g->nodes[i];
    if (node->op != op) rw->report->rewritten[node->op]++;
    int32_t ids[QN_MAX_IN]; // `in` may be the node's own
    memcpy(ids, in, (size_t)n_in * sizeof *in);
    node->op = op;
    node->n_in = n_in;
    node->n_out = qn_op_get(op)->n_out;
    memcpy(node->in, ids, (size_t)n_in * sizeof *ids);
    if (attrs) node->attrs = *attrs;
    for (int o = 0; o < node->n_out; o++) {
        if (out) node->out[o] = out[o];
        g->values[node->out[o]].node = i;
    }
}

void qn_rw_remove(qn_rewrite *rw, int32_t i) { rw->is_dead[i] = true; }

void qn_rw_absorb(qn_rewrite *rw, int32_t i) {
    if (rw->b.status) return;
    rw->report->rewritten[rw->graph->nodes[i].op]++;
    qn_rw_remove(rw, i);
}

bool qn_rw_redirect(qn_rewrite *rw, int32_t from, int32_t to) {
    if (rw->b.status) return false;
    const qn_graph *g = rw->graph;
    to = qn_rw_value(rw, to);
    from = qn_rw_value(rw, from);
    const char *name = g->values[from].name;
    const char *taken = g->values[to].name;
    const bool is_leaf = qn_op_get(g->nodes[g->values[to].node].op)->class_of == QN_CLASS_LEAF;
    if (to == from) return false;
    if (is_name_kept(name) && taken[0] && (is_leaf || is_name_kept(taken))) return false;
    if (!taken[0] || is_name_kept(name)) g->values[to].name = name;
    rw->alias[from] = to;
    return true;
}

void qn_rw_fired(qn_rewrite *rw) { rw->report->fired[rw->pass]++; }

void qn_rw_missed(qn_rewrite *rw, int32_t layer, const char *why) {
    qn_pass_report *report = rw->report;
    for (int32_t i = 0; i < report->n_misses; i++) {
        qn_pass_miss *miss = &report->misses[i];
        if (miss->pass != rw->pass || strcmp(miss->why, why) != 0) continue;
        miss->last_layer = layer;
        miss->count++;
        return;
    }
    if (report->n_misses == QN_MISSES_MAX) return;
    report->misses[report->n_misses++] = (qn_pass_miss){rw->pass, why, layer, layer, 1};
}

// --- putting in order ---

typedef struct sorter {
    qn_rewrite *rw;
    unsigned char *mark; // by node: 0 not seen, 1 waits for its inputs, 2 placed
    int32_t *stack;      // nodes that wait
    int32_t *order;      // nodes in their final order
    size_t n_order;
    int32_t *early, *next; // lists of nodes that follow a node: first, and the one after
} sorter;

// The first input of node i that is not placed; -1 if all are.
static int32_t find_missing(const sorter *s, int32_t i) {
    const qn_node *node = &s->rw->graph->nodes[i];
    for (int k = 0; k < node->n_in; k++) {
        if (node->in[k] < 0) continue;
        const int32_t maker = s->rw->graph->values[node->in[k]].node;
        if (s->mark[maker] != 2) return maker;
    }
    return -1;
}

// Places node i after all that it needs.
static void place(sorter *s, int32_t i) {
    size_t depth = 0;
    if (s->mark[i] == 2) return;
    s->stack[depth++] = i;
    s->mark[i] = 1;
    while (depth > 0) {
        const int32_t top = s->stack[depth - 1], missing = find_missing(s, top);
        if (missing < 0) {
            s->mark[top] = 2;
            s->order[s->n_order++] = top;
            depth--;
        } else if (s->mark[missing] == 1 || s->rw->is_dead[missing]) {
            s->rw->b.status = QN_FAIL(&s->rw->b.err, STATE, "%s: reads a value that is gone",
                                      qn_op_get(s->rw->graph->nodes[top].op)->name);
            return;
        } else {
            s->mark[missing] = 1;
            s->stack[depth++] = missing;
        }
    }
}

static void place_all(sorter *s) {
    const qn_graph *g = s->rw->graph;
    for (size_t i = g->n_nodes; i-- > 0;) { // lists in ascending order
        const int32_t leader = s->rw->follows[i];
        if (leader < 0) continue;
        s->next[i] = s->early[leader];
        s->early[leader] = (int32_t)i + 1; // 0 ends a list
    }
    for (size_t i = 0; i < g->n_nodes && !s->rw->b.status; i++) {
        // New nodes wait until they are needed; those without a reader come last.
        if (s->rw->is_dead[i]) continue;
        place(s, (int32_t)i);
        for (int32_t e = s->early[i]; e > 0 && !s->rw->b.status; e = s->next[e - 1])
            if (!s->rw->is_dead[e - 1]) place(s, e - 1);
    }
}

static void sort_nodes(sorter *s) {
    qn_graph *g = s->rw->graph;
    const size_t n = g->n_nodes;
    s->mark = qn_alloc(n, sizeof *s->mark);
    s->stack = qn_alloc(n, sizeof *s->stack);
    s->order = qn_alloc(n, sizeof *s->order);
    s->early = qn_alloc(n, sizeof *s->early);
    s->next = qn_alloc(n, sizeof *s->next);
    if (!s->mark || !s->stack || !s->order || !s->early || !s->next)
        fail_memory(s->rw);
    else
        place_all(s);
}

// Writes nodes and values again, numbered in order.
static void renumber(const sorter *s) {
    qn_rewrite *rw = s->rw;
    qn_graph *g = rw->graph;
    qn_node *nodes = qn_alloc(s->n_order, sizeof *nodes);
    qn_value *values = qn_alloc(g->n_values, sizeof *values);
    int32_t *number = rw->alias; // aliases are resolved already
    if (!nodes || !values) {
        qn_free(nodes);
        qn_free(values);
        fail_memory(rw);
        return;
    }
    size_t n_values = 0;
    for (size_t i = 0; i < s->n_order; i++) {
        qn_node *node = &nodes[i];
        *node = g->nodes[s->order[i]];
        for (int k = 0; k < node->n_in; k++) {
            if (node->in[k] >= 0) node->in[k] = number[node->in[k]];
        }
        for (int o = 0; o < node->n_out; o++) {
            values[n_values] = g->values[node->out[o]];
            values[n_values].node = (int32_t)i;
            number[node->out[o]] = (int32_t)n_values;
            node->out[o] = (int32_t)n_values++;
        }
    }
    for (size_t o = 0; o < g->n_outputs; o++) g->outputs[o].value = number[g->outputs[o].value];
    qn_free(g->nodes);
    qn_free(g->values);
    g->nodes = nodes;
    g->values = values;
    g->n_nodes = g->cap_nodes = s->n_order;
    g->cap_values = g->n_values; // as many as were allocated
    g->n_values = n_values;
}

static void resolve_aliases(qn_rewrite *rw) {
    qn_graph *g = rw->graph;
    for (size_t i = 0; i < g->n_nodes; i++) {
        qn_node *node = &g->nodes[i];
        for (int k = 0; k < node->n_in; k++) node->in[k] = qn_rw_value(rw, node->in[k]);
    }
    for (size_t o = 0; o < g->n_outputs; o++) {
        g->outputs[o].value = qn_rw_value(rw, g->outputs[o].value);
        if (rw->is_dead[g->values[g->outputs[o].value].node])
            rw->b.status =
                QN_FAIL(&rw->b.err, STATE, "output %s: is not there any more", g->outputs[o].name);
    }
}

qn_status qn_rw_end(qn_rewrite *rw, qn_err *err) {
    sorter s = {.rw = rw};
    if (!rw->b.status) resolve_aliases(rw);
    if (!rw->b.status) sort_nodes(&s);
    if (!rw->b.status) renumber(&s);
    qn_free(s.mark);
    qn_free(s.stack);
    qn_free(s.order);
    qn_free(s.early);
    qn_free(s.next);
    free_lists(rw);
    return qn_build_finish(&rw->b, err);
}
