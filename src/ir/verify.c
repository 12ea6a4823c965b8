#include "ir/share.h"

#include <string.h>

// Weights are whole blocks along each row, constants are floats; both have a known size.
static qn_status check_numbers(size_t i, const qn_node *node, const qn_value *value, qn_err *err) {
    const qn_shape *shape = &value->shape;
    char text[96];
    if (value->kind != QN_TENSOR)
        return QN_FAIL(err, FORMAT, "node %zu (%s): a %s that holds numbers", i, value->name,
                       qn_kind_name(value->kind));
    if (!qn_type_is_supported(value->type) ||
        (node->op == QN_OP_CONST && value->type != QN_TYPE_F32))
        return QN_FAIL(err, FORMAT, "node %zu (%s): type %s is not supported", i, value->name,
                       qn_type_get(value->type)->name);
    const int64_t row = shape->n_dims ? shape->dims[shape->n_dims - 1].n : 1;
    bool sized = row % qn_type_get(value->type)->block == 0;
    for (int d = 0; d < shape->n_dims; d++) sized = sized && shape->dims[d].sym == QN_SYM_ONE;
    if (!sized)
        return QN_FAIL(err, FORMAT, "node %zu (%s): shape %s of %s", i, value->name,
                       qn_shape_text(text, sizeof text, shape), qn_type_get(value->type)->name);
    if (node->op == QN_OP_CONST && !node->data)
        return QN_FAIL(err, FORMAT, "node %zu (%s): a constant without data", i, value->name);
    return QN_OK;
}

// A leaf's own claims: positive sizes, and a supported type where there are numbers.
static qn_status check_leaf(const qn_graph *graph, size_t i, qn_err *err) {
    const qn_node *node = &graph->nodes[i];
    const qn_value *value = &graph->values[node->out[0]];
    char text[96];
    for (int d = 0; d < value->shape.n_dims; d++) {
        if (value->shape.dims[d].n < 1)
            return QN_FAIL(err, FORMAT, "node %zu (%s): shape %s", i, value->name,
                           qn_shape_text(text, sizeof text, &value->shape));
    }
    if (node->share && node->op != QN_OP_PARAM)
        return QN_FAIL(err, FORMAT, "node %zu (%s): a share of a %s", i, value->name,
                       qn_op_get(node->op)->name);
    if (node->op == QN_OP_INPUT) return QN_OK;
    QN_TRY(check_numbers(i, node, value, err));
    const qn_status status = qn_share_check_weight(node->share, &value->shape, err);
    return status ? qn_err_prefix(err, status, "node %zu (%s)", i, value->name) : QN_OK;
}

static qn_status check_words(size_t i, const qn_node *node, qn_err *err) {
    const qn_op_info *info = qn_op_get(node->op);
    for (int a = 0; a < QN_ATTR_COUNT; a++) {
        const qn_attr_info *attr = qn_attr_get((qn_attr)a);
        if (!(info->attrs >> a & 1u) || attr->kind != QN_ATTR_WORD) continue;
        const qn_word word = *(const qn_word *)((const char *)&node->attrs + attr->offset);
        if (word >= QN_WORD_COUNT || qn_word_get(word)->attr != (qn_attr)a)
            return QN_FAIL(err, FORMAT, "node %zu (%s): %s holds word %d", i, info->name,
                           attr->name, (int)word);
    }
    return QN_OK;
}

// Results must be numbered in the order of the nodes, and have the shape that the inputs give.
static qn_status check_results(const qn_graph *graph, size_t i, qn_err *err) {
    const qn_node *node = &graph->nodes[i];
    const qn_op_info *info = qn_op_get(node->op);
    qn_value want[QN_MAX_OUT] = {{0}};
    const qn_status status = qn_infer(want, graph, node, err);
    if (status) return qn_err_prefix(err, status, "node %zu", i);
    for (int o = 0; o < node->n_out; o++) {
        const qn_value *got = &graph->values[node->out[o]];
        if (info->class_of == QN_CLASS_LEAF) continue;
        char text_got[96], text_want[96];
        if (got->kind != want[o].kind || got->type != want[o].type ||
            !qn_shape_equal(&got->shape, &want[o].shape))
            return QN_FAIL(err, FORMAT, "node %zu (%s): result %d is %s %s %s, want %s %s %s", i,
                           info->name, o, qn_kind_name(got->kind), qn_type_get(got->type)->name,
                           qn_shape_text(text_got, sizeof text_got, &got->shape),
                           qn_kind_name(want[o].kind), qn_type_get(want[o].type)->name,
                           qn_shape_text(text_want, sizeof text_want, &want[o].shape));
    }
    return QN_OK;
}

static qn_status check_node(const qn_graph *graph, size_t i, qn_err *err) {
    const qn_node *node = &graph->nodes[i];
    if (node->op >= QN_OP_COUNT)
        return QN_FAIL(err, FORMAT, "node %zu: op %d of %d", i, (int)node->op, QN_OP_COUNT);
    const qn_op_info *info = qn_op_get(node->op);
    if (node->n_out != info->n_out || node->n_in < 0 || node->n_in > (int)strlen(info->kinds))
        return QN_FAIL(err, FORMAT, "node %zu (%s): %d inputs and %d results, want %zu and %d", i,
                       info->name, node->n_in, node->n_out, strlen(info->kinds), info->n_out);
    if (node->layer < -1)
        return QN_FAIL(err, FORMAT, "node %zu (%s): layer %d", i, info->name, node->layer);
    for (int o = 0; o < node->n_out; o++) {
        if (node->out[o] < 0 || (size_t)node->out[o] >= graph->n_values ||
            graph->values[node->out[o]].node != (int32_t)i)
            return QN_FAIL(err, FORMAT, "node %zu (%s): result %d is value %d, made elsewhere", i,
                           info->name, o, node->out[o]);
    }
    for (int k = 0; k < node->n_in; k++) {
        const int32_t id = node->in[k];
        if (id >= 0 && (size_t)id < graph->n_values && graph->values[id].node >= (int32_t)i)
            return QN_FAIL(err, FORMAT, "node %zu (%s): input %d is made later, by node %d", i,
                           info->name, k, graph->values[id].node);
    }
    if (info->class_of == QN_CLASS_LEAF) QN_TRY(check_leaf(graph, i, err));
    QN_TRY(check_words(i, node, err));
    return check_results(graph, i, err);
}

// What must hold before a value can be looked at or shown: enums in range, and a node that makes
// it.
static qn_status check_value(const qn_graph *graph, size_t i, qn_err *err) {
    const qn_value *value = &graph->values[i];
    if (value->kind >= QN_KIND_COUNT || value->type >= QN_TYPE_COUNT || !value->name)
        return QN_FAIL(err, FORMAT, "value %zu: kind %d, type %d", i, (int)value->kind,
                       (int)value->type);
    if (value->shape.n_dims < 0 || value->shape.n_dims > QN_GRAPH_DIMS)
        return QN_FAIL(err, FORMAT, "value %zu (%s): %d dims", i, value->name, value->shape.n_dims);
    for (int d = 0; d < value->shape.n_dims; d++) {
        if (value->shape.dims[d].sym >= QN_SYM_COUNT)
            return QN_FAIL(err, FORMAT, "value %zu (%s): dim %d has symbol %d", i, value->name, d,
                           (int)value->shape.dims[d].sym);
    }
    if (value->node >= 0 && (size_t)value->node < graph->n_nodes) {
        const qn_node *node = &graph->nodes[value->node];
        for (int o = 0; o < node->n_out && o < QN_MAX_OUT; o++) {
            if (node->out[o] == (int32_t)i) return QN_OK;
        }
    }
    return QN_FAIL(err, FORMAT, "value %zu (%s): node %d does not make it", i, value->name,
                   value->node);
}

qn_status qn_graph_verify(const qn_graph *graph, qn_err *err) {
    for (size_t i = 0; i < graph->n_values; i++) QN_TRY(check_value(graph, i, err));
    for (size_t i = 0; i < graph->n_nodes; i++) QN_TRY(check_node(graph, i, err));
    for (size_t i = 0; i < graph->n_outputs; i++) {
        const qn_output *output = &graph->outputs[i];
        if (output->value < 0 || (size_t)output->value >= graph->n_values)
            return QN_FAIL(err, FORMAT, "output %s: value %d of %zu", output->name, output->value,
                           graph->n_values);
        const qn_status status =
            qn_share_check(output->share, &graph->values[output->value].shape, err);
        if (status) return qn_err_prefix(err, status, "output %s", output->name);
    }
    return QN_OK;
}
