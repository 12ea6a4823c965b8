// Constants are computed once, and what changes nothing goes. Only where every implementation of an
// op gives the same bits: single IEEE operations and moves.
#include "passes/rewrite.h"

#include "core/mem.h"
#include "ir/ref.h"

#include <string.h>

static bool is_exact(qn_op op) {
    static const bool exact[QN_OP_COUNT] = {
        [QN_OP_ADD] = true,    [QN_OP_MUL] = true,   [QN_OP_SCALE] = true, [QN_OP_NARROW] = true,
        [QN_OP_CONCAT] = true, [QN_OP_SPLIT] = true, [QN_OP_MERGE] = true,
    };
    return exact[op];
}

static int64_t count(const qn_shape *shape) {
    int64_t n = 1;
    for (int d = 0; d < shape->n_dims; d++) {
        if (!qn_i64_mul(&n, n, shape->dims[d].n)) return -1;
    }
    return n;
}

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

// Whether the value is a constant that holds x alone, to the bit: 0 is not -0.
static bool is_const_of(const qn_rewrite *rw, int32_t value, float x) {
    const int32_t maker = qn_rw_made_by(rw, value, QN_OP_CONST);
    if (maker < 0) return false;
    const qn_node *node = &rw->graph->nodes[maker];
    const int64_t n = count(&rw->graph->values[node->out[0]].shape);
    for (int64_t i = 0; i < n; i++) {
        if (bits_of(node->data[i]) != bits_of(x)) return false;
    }
    return true;
}

static bool same_shape(const qn_rewrite *rw, int32_t a, int32_t b) {
    const qn_value *values = rw->graph->values;
    return qn_shape_equal(&values[qn_rw_value(rw, a)].shape, &values[qn_rw_value(rw, b)].shape);
}

// The value that a node hands on unchanged; QN_NO_VALUE if it computes something. x + -0 is x for
// every x, x + 0 is not.
static int32_t find_same(const qn_rewrite *rw, const qn_node *node) {
    const int32_t x = node->n_in ? node->in[0] : QN_NO_VALUE;
    if (node->op == QN_OP_SCALE && node->attrs.scale == 1.0f) return x;
    if (node->op == QN_OP_ADD && is_const_of(rw, node->in[1], -0.0f)) return x;
    if (node->op == QN_OP_MUL && is_const_of(rw, node->in[1], 1.0f)) return x;
    if (node->op == QN_OP_QUANTIZE && node->attrs.form == QN_WORD_f32) return x;
    if (node->op == QN_OP_NARROW && same_shape(rw, x, node->out[0])) return x;
    const bool is_split = node->op == QN_OP_SPLIT;
    if (!is_split && node->op != QN_OP_MERGE) return QN_NO_VALUE;
    const int32_t before = qn_rw_made_by(rw, x, is_split ? QN_OP_MERGE : QN_OP_SPLIT);
    if (before < 0) return QN_NO_VALUE;
    const int32_t back = rw->graph->nodes[before].in[0];
    return same_shape(rw, back, node->out[0]) ? back : QN_NO_VALUE;
}

// A graph of one node over constants, run by the interpreter.
static qn_status evaluate(float *to, const qn_rewrite *rw, const qn_node *node, qn_err *err) {
    qn_graph small = {0};
    qn_build b;
    qn_ref *ref = NULL;
    qn_build_init(&b, &small, "fold");
    int32_t in[QN_MAX_IN];
    for (int k = 0; k < node->n_in; k++) {
        const qn_value *value = &rw->graph->values[qn_rw_value(rw, node->in[k])];
        in[k] = qn_build_const(&b, "", rw->graph->nodes[value->node].data, count(&value->shape));
        if (in[k] >= 0) small.values[in[k]].shape = value->shape;
    }
    const int32_t result = qn_build_op(&b, node->op, in, node->n_in, &node->attrs);
    qn_build_output(&b, "y", result);
    const int32_t none = 0;
    const qn_step step = {.seg_row = &none};
    int64_t n = 0;
    qn_status status = QN_OK;
    QN_TRY_TO(done, qn_build_finish(&b, err));
    QN_TRY_TO(done, qn_ref_create(&ref, &(qn_ref_opts){.graph = &small}, err));
    QN_TRY_TO(done, qn_ref_run(ref, &step, err));
    const float *y = qn_ref_output(ref, "y", &n);
    memcpy(to, y, (size_t)n * sizeof *to);

done:
    qn_ref_destroy(ref);
    qn_graph_deinit(&small);
    return status;
}

static bool is_all_const(const qn_rewrite *rw, const qn_node *node) {
    if (!is_exact(node->op)) return false;
    for (int k = 0; k < node->n_in; k++) {
        if (qn_rw_made_by(rw, node->in[k], QN_OP_CONST) < 0) return false;
    }
    return true;
}

static void fold_const(qn_rewrite *rw, int32_t i) {
    const qn_node node = rw->graph->nodes[i];
    const int64_t n = count(&rw->graph->values[node.out[0]].shape);
    float *data = n < 0 ? NULL : qn_arena_alloc(&rw->graph->arena, (size_t)n, sizeof *data);
    if (!data)
        rw->b.status = QN_NOMEM(&rw->b.err, "a constant");
    else
        rw->b.status = evaluate(data, rw, &node, &rw->b.err);
    qn_rw_set(rw, i, QN_OP_CONST, node.in, 0, NULL, NULL);
    rw->graph->nodes[i].data = data;
    qn_rw_fired(rw);
}

void qn_pass_fold(qn_rewrite *rw) {
    for (size_t i = 0; i < rw->n_nodes && !rw->b.status; i++) {
        const qn_node *node = &rw->graph->nodes[i];
        const int32_t same = find_same(rw, node);
        if (is_all_const(rw, node)) {
            fold_const(rw, (int32_t)i);
        } else if (same >= 0 && qn_rw_redirect(rw, node->out[0], same)) {
            qn_rw_remove(rw, (int32_t)i);
            qn_rw_fired(rw);
        }
    }
}
