#include "ir/graph.h"

#include "core/mem.h"

#include <stdio.h>
#include <string.h>

#define NONE    0u
#define A(attr) (1u << QN_ATTR_##attr)
// The facts of an op, see ops.def.
#define PACKS(o)     .packs = 1u << (o)
#define IN(i)        (1u << (i))
#define LOGS(inputs) .logs = (inputs)
#define VIEW         .is_view = true
#define FOLDS        .folds = true
#define PLAIN        .is_view = false
#define BOTH(a, b)   a, b

static const qn_op_info op_table[] = {
#define OP(name, min_in, kinds, n_out, rule, class, attrs, facts)                                  \
    {#name, min_in, kinds, n_out, QN_CLASS_##class, attrs, facts},
#include "ir/ops.def"
#undef OP
};

static const qn_attr_info attr_table[] = {
#define ATTR(kind, name) {#name, QN_ATTR_##kind, offsetof(qn_attrs, name)},
#include "ir/attrs.def"
#undef ATTR
};

static const qn_word_info word_table[] = {
#define WORD(attr, word, meaning) {#word, meaning, QN_ATTR_##attr},
#include "ir/words.def"
#undef WORD
};

const qn_op_info *qn_op_get(qn_op op) { return &op_table[op]; }
const qn_attr_info *qn_attr_get(qn_attr attr) { return &attr_table[attr]; }
const qn_word_info *qn_word_get(qn_word word) { return &word_table[word]; }

bool qn_node_gathers(const qn_node *node) {
    return node->op == QN_OP_ALL_GATHER && node->attrs.length > 0;
}

bool qn_node_is_view(const qn_node *node) {
    return qn_op_get(node->op)->is_view && !qn_node_gathers(node);
}

const char *qn_kind_name(qn_kind kind) {
    static const char *const names[] = {"tensor", "table", "cache", "state"};
    return names[kind];
}

const char *qn_sym_name(qn_sym sym) {
    static const char *const names[] = {"", "T", "B", "R"};
    return names[sym];
}

void qn_graph_deinit(qn_graph *graph) {
    qn_free(graph->values);
    qn_free(graph->nodes);
    qn_free(graph->outputs);
    qn_arena_deinit(&graph->arena);
    *graph = (qn_graph){0};
}

int32_t qn_graph_find_output(const qn_graph *graph, const char *name) {
    for (size_t i = 0; i < graph->n_outputs; i++) {
        if (strcmp(graph->outputs[i].name, name) == 0) return graph->outputs[i].value;
    }
    return QN_NO_VALUE;
}

int32_t qn_graph_find_input(const qn_graph *graph, const char *name) {
    for (size_t i = 0; i < graph->n_nodes; i++) {
        const qn_node *node = &graph->nodes[i];
        if (node->op == QN_OP_INPUT && strcmp(graph->values[node->out[0]].name, name) == 0)
            return node->out[0];
    }
    return QN_NO_VALUE;
}

const char *qn_shape_text(char *to, size_t size, const qn_shape *shape) {
    size_t used = (size_t)snprintf(to, size, "(");
    for (int i = 0; i < shape->n_dims; i++) {
        const qn_dim d = shape->dims[i];
        const char *comma = i ? ", " : "";
        if (used >= size) break;
        if (d.sym == QN_SYM_ONE)
            used += (size_t)snprintf(to + used, size - used, "%s%lld", comma, (long long)d.n);
        else if (d.n == 1)
            used += (size_t)snprintf(to + used, size - used, "%s%s", comma, qn_sym_name(d.sym));
        else
            used += (size_t)snprintf(to + used, size - used, "%s%lld*%s", comma, (long long)d.n,
                                     qn_sym_name(d.sym));
    }
    if (used < size) snprintf(to + used, size - used, ")");
    return to;
}

bool qn_shape_equal(const qn_shape *a, const qn_shape *b) {
    if (a->n_dims != b->n_dims) return false;
    for (int i = 0; i < a->n_dims; i++) {
        if (a->dims[i].n != b->dims[i].n || a->dims[i].sym != b->dims[i].sym) return false;
    }
    return true;
}
