#include "backends/refuse_shapes.h"

// The dimensions between rows and width are seen as one: b may lack outer ones, not inner ones.
static bool is_torn(const qn_shape *a, const qn_shape *b) {
    bool has_outer = false;
    const int has_rows = a->dims[0].sym != QN_SYM_ONE;
    for (int back = a->n_dims - has_rows; back >= 2; back--) {
        const int64_t n = back <= b->n_dims ? b->dims[b->n_dims - back].n : 1;
        if (n != 1)
            has_outer = true;
        else if (has_outer && a->dims[a->n_dims - back].n != 1)
            return true;
    }
    return false;
}

const char *qn_refuse_shapes(const qn_graph *graph, const qn_node *node) {
    if (node->op == QN_OP_ADD || node->op == QN_OP_MUL) {
        const qn_value *a = &graph->values[node->in[0]], *b = &graph->values[node->in[1]];
        return is_torn(&a->shape, &b->shape) ? "the second operand lacks an inner dimension" : NULL;
    }
    if (node->op != QN_OP_NARROW && node->op != QN_OP_CONCAT) return NULL;
    const qn_shape *x = &graph->values[node->in[0]].shape;
    if (node->attrs.axis == 0 || x->dims[0].sym == QN_SYM_ONE) return "it cuts or joins rows";
    if (node->attrs.axis == 2 && x->n_dims == 4) return "it cuts or joins an inner dimension";
    return NULL;
}

const char *qn_refuse_weight(const qn_graph *graph, const qn_node *node, int input) {
    const qn_value *w = &graph->values[node->in[input]];
    if (graph->nodes[w->node].op != QN_OP_PARAM) return "the weight is not a parameter";
    const qn_dim inner = w->shape.dims[w->shape.n_dims - 1];
    if (inner.n % qn_type_get(w->type)->block) return "a row of the weight is not whole blocks";
    return NULL;
}
