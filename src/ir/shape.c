// Shape rules: one function per rule named in ops.def.
#include "ir/graph.h"

#include "core/mem.h"
#include "ir/share.h"

#include <string.h>

typedef struct rule_call {
    const qn_graph *graph;
    const qn_node *node;
    const qn_value *in[QN_MAX_IN]; // NULL where absent
    qn_value *out;
    qn_err *err;
} rule_call;

static const char *op_name(const rule_call *c) { return qn_op_get(c->node->op)->name; }

static qn_status fail_shapes(const rule_call *c, const qn_shape *a, const qn_shape *b,
                             const char *why) {
    char text_a[96], text_b[96];
    return QN_FAIL(c->err, FORMAT, "%s: %s and %s: %s", op_name(c),
                   qn_shape_text(text_a, sizeof text_a, a), qn_shape_text(text_b, sizeof text_b, b),
                   why);
}

static qn_status need_rank(const rule_call *c, int i, int rank) {
    if (c->in[i]->shape.n_dims == rank) return QN_OK;
    return QN_FAIL(c->err, FORMAT, "%s: input %d has %d dims, want %d", op_name(c), i,
                   c->in[i]->shape.n_dims, rank);
}

static bool dim_equal(qn_dim a, qn_dim b) { return a.n == b.n && a.sym == b.sym; }

static qn_dim dim_of(const rule_call *c, int input, int i) {
    const qn_shape *shape = &c->in[input]->shape;
    return shape->dims[i < 0 ? shape->n_dims + i : i];
}

// Dimension i of input a must equal dimension j of input b (negative: from the end).
static qn_status need_same(const rule_call *c, int a, int i, int b, int j) {
    if (dim_equal(dim_of(c, a, i), dim_of(c, b, j))) return QN_OK;
    return fail_shapes(c, &c->in[a]->shape, &c->in[b]->shape, "sizes differ");
}

static qn_value float_value(qn_shape shape) {
    return (qn_value){.kind = QN_TENSOR, .type = QN_TYPE_F32, .shape = shape};
}

static qn_status rule_leaf(const rule_call *c) {
    (void)c; // a leaf says itself what it is
    return QN_OK;
}

static qn_status rule_same(const rule_call *c) {
    c->out[0] = float_value(c->in[0]->shape);
    return QN_OK;
}

static qn_status rule_embed(const rule_call *c) {
    QN_TRY(need_rank(c, 0, 1));
    QN_TRY(need_rank(c, 1, 2));
    if (!c->in[2] != !c->in[3])
        return QN_FAIL(c->err, FORMAT, "EMBED: extra and extra_row go together");
    if (c->in[2]) {
        QN_TRY(need_rank(c, 2, 2));
        QN_TRY(need_rank(c, 3, 1));
        QN_TRY(need_same(c, 2, 1, 1, 1));
        QN_TRY(need_same(c, 3, 0, 0, 0));
    }
    c->out[0] = float_value((qn_shape){2, {dim_of(c, 0, 0), dim_of(c, 1, 1)}});
    return QN_OK;
}

static qn_status rule_matmul(const rule_call *c) {
    QN_TRY(need_rank(c, 1, 2));
    QN_TRY(need_same(c, 0, -1, 1, 1));
    qn_shape shape = c->in[0]->shape;
    shape.dims[shape.n_dims - 1] = dim_of(c, 1, 0);
    c->out[0] = float_value(shape);
    return QN_OK;
}

static qn_status rule_project(const rule_call *c) {
    qn_shape shape = c->in[0]->shape;
    int64_t width = 0;
    for (int i = 1; i < c->node->n_in; i++) {
        if (!c->in[i]) return QN_FAIL(c->err, FORMAT, "PROJECT: weight %d is absent", i);
        QN_TRY(need_rank(c, i, 2));
        QN_TRY(need_same(c, 0, -1, i, 1));
        if (dim_of(c, i, 0).sym != QN_SYM_ONE || !qn_i64_add(&width, width, dim_of(c, i, 0).n))
            return fail_shapes(c, &shape, &c->in[i]->shape, "cannot stand side by side");
    }
    shape.dims[shape.n_dims - 1] = (qn_dim){width, QN_SYM_ONE};
    c->out[0] = float_value(shape);
    return QN_OK;
}

static qn_status rule_gated(const rule_call *c) {
    QN_TRY(need_rank(c, 2, 2));
    for (int i = 0; i < 2; i++) QN_TRY(need_same(c, 1, i, 2, i));
    return rule_matmul(c);
}

static qn_status rule_spread(const rule_call *c) {
    const qn_shape *a = &c->in[0]->shape, *b = &c->in[1]->shape;
    if (b->n_dims > a->n_dims) return fail_shapes(c, a, b, "the second has more dims");
    for (int i = 1; i <= b->n_dims; i++) {
        const qn_dim d = dim_of(c, 1, -i);
        if (d.sym == QN_SYM_ONE && d.n == 1) continue;
        if (!dim_equal(d, dim_of(c, 0, -i))) return fail_shapes(c, a, b, "cannot spread");
    }
    c->out[0] = float_value(*a);
    return QN_OK;
}

static qn_status rule_norm(const rule_call *c) {
    for (int i = 1; i < c->node->n_in; i++) {
        QN_TRY(need_rank(c, i, 1));
        QN_TRY(need_same(c, i, 0, 0, -1));
    }
    return rule_same(c);
}

static qn_status rule_add_norm(const rule_call *c) {
    if (!qn_shape_equal(&c->in[0]->shape, &c->in[1]->shape))
        return fail_shapes(c, &c->in[0]->shape, &c->in[1]->shape, "sizes differ");
    QN_TRY(need_rank(c, 2, 1));
    QN_TRY(need_same(c, 2, 0, 0, -1));
    c->out[1] = float_value(c->in[0]->shape);
    return rule_same(c);
}

static qn_status rule_rope(const rule_call *c) {
    QN_TRY(need_rank(c, 0, 3));
    QN_TRY(need_rank(c, 1, 1));
    const int64_t rotate = c->node->attrs.rotate;
    if (rotate < 2 || rotate % 2 || rotate > dim_of(c, 0, 2).n ||
        !dim_equal(dim_of(c, 1, 0), (qn_dim){rotate / 2, QN_SYM_ONE}))
        return QN_FAIL(c->err, FORMAT, "ROPE: rotates %lld of %lld values with %lld frequencies",
                       (long long)rotate, (long long)dim_of(c, 0, 2).n,
                       (long long)dim_of(c, 1, 0).n);
    return rule_same(c);
}

// x (T, H, E) whose first `rotate` values are turned by angles (T, 2, rotate / 2), after an
// optional norm (E).
static qn_status check_rotation(const rule_call *c, int x, int angles, int norm) {
    const int64_t rotate = c->node->attrs.rotate;
    QN_TRY(need_rank(c, x, 3));
    QN_TRY(need_rank(c, angles, 3));
    QN_TRY(need_same(c, angles, 0, x, 0));
    if (rotate < 2 || rotate % 2 || rotate > dim_of(c, x, 2).n ||
        !dim_equal(dim_of(c, angles, 1), (qn_dim){2, QN_SYM_ONE}) ||
        !dim_equal(dim_of(c, angles, 2), (qn_dim){rotate / 2, QN_SYM_ONE}))
        return QN_FAIL(c->err, FORMAT, "%s: rotates %lld of %lld values with %lld x %lld angles",
                       op_name(c), (long long)rotate, (long long)dim_of(c, x, 2).n,
                       (long long)dim_of(c, angles, 1).n, (long long)dim_of(c, angles, 2).n);
    if (!c->in[norm]) return QN_OK;
    QN_TRY(need_rank(c, norm, 1));
    return need_same(c, norm, 0, x, 2);
}

static qn_status rule_angles(const rule_call *c) {
    QN_TRY(need_rank(c, 0, 1));
    c->out[0] = float_value((qn_shape){3, {{1, QN_SYM_T}, {2, QN_SYM_ONE}, dim_of(c, 0, 0)}});
    return QN_OK;
}

static qn_status rule_rotate(const rule_call *c) {
    QN_TRY(check_rotation(c, 0, 1, 2));
    return rule_same(c);
}

static qn_status check_axis(const rule_call *c) {
    const int64_t axis = c->node->attrs.axis;
    if (axis >= 0 && axis < c->in[0]->shape.n_dims) return QN_OK;
    return QN_FAIL(c->err, FORMAT, "%s: axis %lld of %d dims", op_name(c), (long long)axis,
                   c->in[0]->shape.n_dims);
}

static qn_status rule_narrow(const rule_call *c) {
    const qn_attrs *a = &c->node->attrs;
    QN_TRY(check_axis(c));
    qn_shape shape = c->in[0]->shape;
    qn_dim *d = &shape.dims[a->axis];
    if (d->sym != QN_SYM_ONE || a->start < 0 || a->length < 1 || a->length > d->n ||
        a->start > d->n - a->length)
        return QN_FAIL(c->err, FORMAT, "NARROW: %lld values from %lld of a dimension of %lld",
                       (long long)a->length, (long long)a->start, (long long)d->n);
    d->n = a->length;
    c->out[0] = float_value(shape);
    return QN_OK;
}

static qn_status rule_concat(const rule_call *c) {
    QN_TRY(check_axis(c));
    QN_TRY(need_rank(c, 1, c->in[0]->shape.n_dims));
    qn_shape shape = c->in[0]->shape;
    const int64_t axis = c->node->attrs.axis;
    for (int i = 0; i < shape.n_dims; i++) {
        if (i != axis) QN_TRY(need_same(c, 0, i, 1, i));
    }
    if (dim_of(c, 1, (int)axis).sym != shape.dims[axis].sym)
        return fail_shapes(c, &shape, &c->in[1]->shape, "different symbols");
    if (!qn_i64_add(&shape.dims[axis].n, shape.dims[axis].n, dim_of(c, 1, (int)axis).n))
        return fail_shapes(c, &shape, &c->in[1]->shape, "the sum is too large");
    c->out[0] = float_value(shape);
    return QN_OK;
}

static qn_status rule_split(const rule_call *c) {
    qn_shape shape = c->in[0]->shape;
    const int64_t parts = c->node->attrs.parts;
    qn_dim *last = &shape.dims[shape.n_dims - 1];
    if (shape.n_dims == QN_GRAPH_DIMS || parts < 1 || last->sym != QN_SYM_ONE || last->n % parts)
        return QN_FAIL(c->err, FORMAT, "SPLIT: %lld values into %lld parts", (long long)last->n,
                       (long long)parts);
    const int64_t each = last->n / parts;
    last->n = parts;
    shape.dims[shape.n_dims++] = (qn_dim){each, QN_SYM_ONE};
    c->out[0] = float_value(shape);
    return QN_OK;
}

static qn_status rule_merge(const rule_call *c) {
    qn_shape shape = c->in[0]->shape;
    if (shape.n_dims < 2) return QN_FAIL(c->err, FORMAT, "MERGE: one dimension only");
    const qn_dim last = shape.dims[--shape.n_dims];
    qn_dim *d = &shape.dims[shape.n_dims - 1];
    if (last.sym != QN_SYM_ONE || d->sym != QN_SYM_ONE || !qn_i64_mul(&d->n, d->n, last.n))
        return fail_shapes(c, &c->in[0]->shape, &shape, "cannot merge");
    c->out[0] = float_value(shape);
    return QN_OK;
}

static qn_status rule_gather(const rule_call *c) {
    QN_TRY(need_rank(c, 0, 2));
    QN_TRY(need_rank(c, 1, 1));
    c->out[0] = float_value((qn_shape){2, {dim_of(c, 1, 0), dim_of(c, 0, 1)}});
    return QN_OK;
}

// What is gathered by ids are whole rows of floats, which only one rank has each.
static qn_status check_gathered_rows(const rule_call *c) {
    if (!c->in[0] || c->node->attrs.form != QN_WORD_f32 || c->node->attrs.parts != 1)
        return QN_FAIL(c->err, FORMAT, "ALL_GATHER: ids, but no rows of floats in one part");
    QN_TRY(need_rank(c, 0, 2));
    QN_TRY(need_rank(c, 1, 1));
    return need_same(c, 1, 0, 0, 0);
}

// A share along the last dimension.
static qn_status check_gathered_part(const rule_call *c) {
    const qn_attrs *a = &c->node->attrs;
    const qn_dim d = dim_of(c, 0, -1);
    if (c->in[0]->shape.n_dims > 1 && d.sym == QN_SYM_ONE && d.n <= a->length &&
        d.n % (a->unit * a->parts) == 0)
        return QN_OK;
    char text[96];
    return QN_FAIL(c->err, FORMAT, "ALL_GATHER: %s is no share of %lld values in units of %lld",
                   qn_shape_text(text, sizeof text, &c->in[0]->shape), (long long)a->length,
                   (long long)(a->unit * a->parts));
}

static qn_status rule_all_gather(const rule_call *c) {
    const qn_attrs *a = &c->node->attrs;
    qn_shape shape = {2, {{1, QN_SYM_T}, {a->length, QN_SYM_ONE}}};
    if (a->length < 0 || (a->length == 0 && (!c->in[0] || c->in[1])))
        return QN_FAIL(c->err, FORMAT, "ALL_GATHER: %lld values of %s", (long long)a->length,
                       c->in[0] ? "ids" : "nothing");
    if (a->length == 0) return rule_same(c);
    const qn_status status = qn_gather_check(a, c->err);
    if (status) return qn_err_prefix(c->err, status, "ALL_GATHER");
    if (a->form != QN_WORD_f32 && a->unit % QN_GATHER_BLOCK)
        return QN_FAIL(c->err, FORMAT,
                       "ALL_GATHER: packed in units of %lld, want whole blocks of %d",
                       (long long)a->unit, QN_GATHER_BLOCK);
    if (c->in[1]) {
        QN_TRY(check_gathered_rows(c));
        return rule_same(c);
    }
    if (c->in[0]) {
        QN_TRY(check_gathered_part(c));
        shape = c->in[0]->shape;
        shape.dims[shape.n_dims - 1].n = a->length;
    }
    c->out[0] = float_value(shape);
    return QN_OK;
}

// Keys (T, K, E) and, as the next input, values (T, K, F) that fit a cache (K, E, F).
static qn_status check_rows_of_cache(const rule_call *c, int cache, int k) {
    QN_TRY(need_rank(c, cache, 3));
    for (int i = 0; i < 2; i++) {
        QN_TRY(need_rank(c, k + i, 3));
        QN_TRY(need_same(c, k + i, 1, cache, 0));
        QN_TRY(need_same(c, k + i, 2, cache, 1 + i));
    }
    return need_same(c, k, 0, k + 1, 0);
}

static qn_status rule_kv(const rule_call *c) {
    QN_TRY(check_rows_of_cache(c, 0, 1));
    if (c->node->op == QN_OP_ROTATE_WRITE) QN_TRY(check_rotation(c, 1, 4, 5));
    c->out[0] = (qn_value){.kind = QN_CACHE, .type = QN_TYPE_F32, .shape = c->in[0]->shape};
    return QN_OK;
}

// Queries (T, H, E), the first input, over a cache (K, E, F), with one sink (H) per head or none.
static qn_status check_heads(const rule_call *c, int cache, int sinks) {
    QN_TRY(need_rank(c, 0, 3));
    QN_TRY(need_rank(c, cache, 3));
    QN_TRY(need_same(c, 0, 2, cache, 1));
    if (dim_of(c, 0, 1).n % dim_of(c, cache, 0).n)
        return QN_FAIL(c->err, FORMAT, "%s: %lld heads, %lld kv heads", op_name(c),
                       (long long)dim_of(c, 0, 1).n, (long long)dim_of(c, cache, 0).n);
    if (!c->in[sinks]) return QN_OK;
    QN_TRY(need_rank(c, sinks, 1));
    return need_same(c, sinks, 0, 0, 1);
}

static qn_status rule_attend(const rule_call *c) {
    QN_TRY(check_heads(c, 1, 3));
    if (c->in[4]) {
        QN_TRY(need_rank(c, 4, 2));
        for (int i = 0; i < 2; i++) QN_TRY(need_same(c, 4, i, 0, 0));
    }
    c->out[0] = float_value((qn_shape){3, {dim_of(c, 0, 0), dim_of(c, 0, 1), dim_of(c, 1, 2)}});
    return QN_OK;
}

static qn_status rule_attention(const rule_call *c) {
    QN_TRY(check_heads(c, 3, 8));
    QN_TRY(check_rows_of_cache(c, 3, 1));
    QN_TRY(need_same(c, 0, 0, 1, 0));
    QN_TRY(check_rotation(c, 0, 4, 6));
    QN_TRY(check_rotation(c, 1, 4, 7));
    c->out[0] = float_value((qn_shape){3, {dim_of(c, 0, 0), dim_of(c, 0, 1), dim_of(c, 3, 2)}});
    c->out[1] = (qn_value){.kind = QN_CACHE, .type = QN_TYPE_F32, .shape = c->in[3]->shape};
    return QN_OK;
}

static qn_status rule_conv(const rule_call *c) {
    QN_TRY(need_rank(c, 0, 2));
    QN_TRY(need_rank(c, 1, 2));
    QN_TRY(need_rank(c, 2, 2));
    QN_TRY(need_same(c, 0, 1, 1, 0));
    QN_TRY(need_same(c, 2, 1, 1, 0));
    if (dim_of(c, 2, 0).n != dim_of(c, 1, 1).n - 1)
        return fail_shapes(c, &c->in[1]->shape, &c->in[2]->shape, "state needs taps - 1 rows");
    c->out[0] = float_value(c->in[0]->shape);
    c->out[1] = *c->in[2];
    return QN_OK;
}

static qn_status rule_delta(const rule_call *c) {
    for (int i = 0; i < 3; i++) QN_TRY(need_rank(c, i, 3));
    QN_TRY(need_rank(c, 5, 3));
    for (int i = 1; i < 3; i++) QN_TRY(need_same(c, 0, i, 1, i));
    for (int i = 1; i < 5; i++) QN_TRY(need_same(c, i, 0, 0, 0));
    for (int i = 3; i < 5; i++) {
        QN_TRY(need_rank(c, i, 2));
        QN_TRY(need_same(c, i, 1, 2, 1));
    }
    QN_TRY(need_same(c, 5, 0, 2, 1));
    QN_TRY(need_same(c, 5, 1, 1, 2));
    QN_TRY(need_same(c, 5, 2, 2, 2));
    if (dim_of(c, 2, 1).n % dim_of(c, 1, 1).n)
        return QN_FAIL(c->err, FORMAT, "DELTA: %lld value heads, %lld key heads",
                       (long long)dim_of(c, 2, 1).n, (long long)dim_of(c, 1, 1).n);
    c->out[0] = float_value(c->in[2]->shape);
    c->out[1] = *c->in[5];
    return QN_OK;
}

static qn_status rule_lora(const rule_call *c) {
    for (int i = 0; i < 4; i++) QN_TRY(need_rank(c, i, i < 2 ? 2 : 3));
    QN_TRY(need_same(c, 0, 0, 1, 0)); // rows
    QN_TRY(need_same(c, 2, 0, 3, 0)); // adapters
    QN_TRY(need_same(c, 2, 1, 3, 2)); // rank
    QN_TRY(need_same(c, 2, 2, 1, 1)); // inner
    QN_TRY(need_same(c, 3, 1, 0, 1)); // outer
    return rule_same(c);
}

// Scores (T, X), of which `top` are chosen.
static qn_status check_scores(const rule_call *c, int scores) {
    QN_TRY(need_rank(c, scores, 2));
    const int64_t top = c->node->attrs.top, n = dim_of(c, scores, 1).n;
    if (top < 1 || top > n || dim_of(c, scores, 1).sym != QN_SYM_ONE)
        return QN_FAIL(c->err, FORMAT, "%s: %lld of %lld experts", op_name(c), (long long)top,
                       (long long)n);
    return QN_OK;
}

static qn_status rule_route(const rule_call *c) {
    QN_TRY(check_scores(c, 0));
    const qn_shape shape = {2, {dim_of(c, 0, 0), {c->node->attrs.top, QN_SYM_ONE}}};
    c->out[0] = (qn_value){.kind = QN_TENSOR, .type = QN_TYPE_I32, .shape = shape};
    c->out[1] = float_value(shape);
    return QN_OK;
}

static qn_status rule_grouped(const rule_call *c) {
    QN_TRY(need_rank(c, 1, 3));
    QN_TRY(need_rank(c, 2, 2));
    QN_TRY(need_same(c, 0, 0, 2, 0));
    QN_TRY(need_same(c, 0, -1, 1, 2));
    if (c->in[0]->shape.n_dims == 3)
        QN_TRY(need_same(c, 0, 1, 2, 1));
    else
        QN_TRY(need_rank(c, 0, 2));
    c->out[0] = float_value((qn_shape){3, {dim_of(c, 2, 0), dim_of(c, 2, 1), dim_of(c, 1, 1)}});
    return QN_OK;
}

static qn_status rule_squares(const rule_call *c) {
    const int64_t n = c->node->attrs.length;
    const qn_shape *x = &c->in[0]->shape;
    char text[96];
    if (x->n_dims < 2 || n < 1 || (n > 1 && !c->in[1]) || dim_of(c, 0, -1).sym != QN_SYM_ONE ||
        dim_of(c, 0, -1).n == INT64_MAX)
        return QN_FAIL(c->err, FORMAT, "SUM_SQUARES: %s for %lld experts",
                       qn_shape_text(text, sizeof text, x), (long long)n);
    if (c->in[1]) {
        QN_TRY(need_rank(c, 1, 2));
        QN_TRY(need_same(c, 0, 0, 1, 0));
        if (x->n_dims == 3)
            QN_TRY(need_same(c, 0, 1, 1, 1));
        else
            QN_TRY(need_rank(c, 0, 2));
    }
    c->out[0] = float_value((qn_shape){2, {{n, QN_SYM_ONE}, {dim_of(c, 0, -1).n + 1, QN_SYM_ONE}}});
    return QN_OK;
}

static qn_status rule_combine(const rule_call *c) {
    QN_TRY(need_rank(c, 0, 3));
    QN_TRY(need_rank(c, 1, 2));
    for (int i = 0; i < 2; i++) QN_TRY(need_same(c, 0, i, 1, i));
    c->out[0] = float_value((qn_shape){2, {dim_of(c, 0, 0), dim_of(c, 0, 2)}});
    return QN_OK;
}

static qn_status rule_experts(const rule_call *c) {
    QN_TRY(need_rank(c, 0, 2));
    QN_TRY(check_scores(c, 1));
    QN_TRY(need_same(c, 1, 0, 0, 0));
    for (int i = 2; i < 5; i++) {
        QN_TRY(need_rank(c, i, 3));
        QN_TRY(need_same(c, i, 0, 1, 1)); // experts
    }
    QN_TRY(need_same(c, 2, 2, 0, 1));
    for (int i = 1; i < 3; i++) QN_TRY(need_same(c, 3, i, 2, i));
    QN_TRY(need_same(c, 4, 2, 2, 1));
    c->out[0] = float_value((qn_shape){2, {dim_of(c, 0, 0), dim_of(c, 4, 1)}});
    return QN_OK;
}

// Ids are kept as floats.
static qn_status rule_head(const rule_call *c) {
    QN_TRY(need_rank(c, 0, 2));
    QN_TRY(need_rank(c, 1, 2));
    QN_TRY(need_same(c, 0, 1, 1, 1));
    const int64_t top = c->node->attrs.top, n = dim_of(c, 1, 0).n;
    if (top < 1 || top > QN_HEAD_TOP || n > QN_HEAD_ENTRIES || dim_of(c, 1, 0).sym != QN_SYM_ONE)
        return QN_FAIL(c->err, FORMAT, "HEAD: top %lld of %lld logits, want 1 to %d of at most %d",
                       (long long)top, (long long)n, QN_HEAD_TOP, QN_HEAD_ENTRIES);
    c->out[0] = float_value((qn_shape){2, {dim_of(c, 0, 0), dim_of(c, 1, 0)}});
    c->out[1] = float_value((qn_shape){2, {dim_of(c, 0, 0), {2 + 2 * top, QN_SYM_ONE}}});
    return QN_OK;
}

// Whether a value is what a letter of qn_op_info.kinds stands for.
static bool is_kind(const qn_value *value, char letter) {
    static const struct {
        char letter;
        qn_kind kind;
    } opaque[] = {{'t', QN_TABLE}, {'c', QN_CACHE}, {'s', QN_STATE_VALUE}};
    for (size_t i = 0; i < sizeof opaque / sizeof opaque[0]; i++) {
        if (opaque[i].letter == letter) return value->kind == opaque[i].kind;
    }
    if (value->kind != QN_TENSOR) return false;
    if (letter == 'w' || letter == 'r') return qn_type_is_supported(value->type);
    return value->type == (letter == 'i' ? QN_TYPE_I32 : QN_TYPE_F32);
}

static qn_status find_input(rule_call *call, int i) {
    const qn_op_info *info = qn_op_get(call->node->op);
    const int32_t id = call->node->in[i];
    if (id == QN_NO_VALUE && i >= info->min_in) return QN_OK;
    if (id < 0 || (size_t)id >= call->graph->n_values)
        return QN_FAIL(call->err, FORMAT, "%s: input %d is value %d of %zu", info->name, i, id,
                       call->graph->n_values);
    const qn_value *value = &call->graph->values[id];
    if (!is_kind(value, info->kinds[i]))
        return QN_FAIL(call->err, FORMAT, "%s: input %d is a %s of %s, want kind '%c'", info->name,
                       i, qn_kind_name(value->kind), qn_type_get(value->type)->name,
                       info->kinds[i]);
    if (value->kind == QN_TENSOR && value->shape.n_dims < 1)
        return QN_FAIL(call->err, FORMAT, "%s: input %d has no dims", info->name, i);
    call->in[i] = value;
    return QN_OK;
}

qn_status qn_infer(qn_value *results, const qn_graph *graph, const qn_node *node, qn_err *err) {
    static qn_status (*const rules[])(const rule_call *) = {
#define OP(name, min_in, kinds, n_out, rule, class, attrs, facts) rule_##rule,
#include "ir/ops.def"
#undef OP
    };
    const qn_op_info *info = qn_op_get(node->op);
    if (node->n_in < info->min_in || node->n_in > (int)strlen(info->kinds))
        return QN_FAIL(err, FORMAT, "%s: %d inputs, want %d to %zu", info->name, node->n_in,
                       info->min_in, strlen(info->kinds));
    rule_call call = {.graph = graph, .node = node, .out = results, .err = err};
    for (int i = 0; i < node->n_in; i++) QN_TRY(find_input(&call, i));
    return rules[node->op](&call);
}
