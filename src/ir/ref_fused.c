// Reference of the ops that passes make: each calls the reference of the plain ops, one after the
// other, on temporaries. So a fused graph and the graph it came from agree in every bit.
#include "ir/ref_int.h"

#include "core/mem.h"

#include <math.h>
#include <string.h>

// A temporary of a fused op. Release with temp_free; zeroed is empty.
typedef struct temp {
    qn_value value;
    ref_tensor tensor;
} temp;

static qn_status temp_make(temp *t, int n_dims, const int64_t *dims, qn_err *err) {
    t->value = (qn_value){.kind = QN_TENSOR, .type = QN_TYPE_F32, .name = ""};
    t->tensor = (ref_tensor){.value = &t->value, .n_dims = n_dims, .n = 1};
    for (int i = 0; i < n_dims; i++) {
        t->tensor.dims[i] = dims[i];
        if (!qn_i64_mul(&t->tensor.n, t->tensor.n, dims[i]))
            return QN_FAIL(err, LIMIT, "a temporary value: size overflows");
    }
    t->tensor.data = qn_alloc((size_t)t->tensor.n, sizeof(float));
    return t->tensor.data ? QN_OK : QN_NOMEM(err, "a temporary value");
}

// As temp_make, with the last dimension of x replaced.
static qn_status temp_like(temp *t, const ref_tensor *x, int64_t last, qn_err *err) {
    int64_t dims[QN_GRAPH_DIMS];
    memcpy(dims, x->dims, sizeof dims);
    dims[x->n_dims - 1] = last;
    return temp_make(t, x->n_dims, dims, err);
}

static void temp_free(temp *t) { qn_free(t->tensor.data); }

// Runs a plain op on up to five inputs, with the attributes, step and state of the fused one.
typedef struct plain {
    ref_op *op;
    const ref_tensor *in[5];
    ref_tensor *out[2];
} plain;

static qn_status call_plain(const ref_call *c, plain p) {
    ref_call call = *c;
    memset(call.in, 0, sizeof call.in);
    memcpy(call.in, p.in, sizeof p.in);
    memcpy(call.out, p.out, sizeof p.out);
    return p.op(&call);
}

static ref_op *act_of(const ref_call *c) {
    return c->node->attrs.act == QN_WORD_gelu ? qn_ref_GELU : qn_ref_SILU;
}

qn_status qn_ref_PROJECT(const ref_call *c) {
    const int64_t width = c->out[0]->dims[c->out[0]->n_dims - 1];
    int64_t first = 0;
    for (int i = 1; i < c->node->n_in; i++) {
        const int64_t n = c->in[i]->dims[0];
        temp y = {0};
        qn_status status = temp_like(&y, c->in[0], n, c->err);
        if (!status)
            status = call_plain(c, (plain){qn_ref_MATMUL, {c->in[0], c->in[i]}, {&y.tensor}});
        for (int64_t row = 0; !status && row < y.tensor.n / n; row++)
            memcpy(c->out[0]->f + row * width + first, y.tensor.f + row * n,
                   (size_t)n * sizeof(float));
        temp_free(&y);
        if (status) return status;
        first += n;
    }
    return QN_OK;
}

qn_status qn_ref_GATED(const ref_call *c) {
    temp gate = {0}, up = {0}, acted = {0};
    const int64_t width = c->in[1]->dims[0];
    qn_status status = QN_OK;
    QN_TRY_TO(done, temp_like(&gate, c->in[0], width, c->err));
    QN_TRY_TO(done, temp_like(&up, c->in[0], width, c->err));
    QN_TRY_TO(done, temp_like(&acted, c->in[0], width, c->err));
    const plain steps[] = {
        {qn_ref_MATMUL, {c->in[0], c->in[1]}, {&gate.tensor}},
        {qn_ref_MATMUL, {c->in[0], c->in[2]}, {&up.tensor}},
        {act_of(c), {&gate.tensor}, {&acted.tensor}},
        {qn_ref_MUL, {&acted.tensor, &up.tensor}, {c->out[0]}},
    };
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        QN_TRY_TO(done, call_plain(c, steps[i]));

done:
    temp_free(&gate);
    temp_free(&up);
    temp_free(&acted);
    return status;
}

// out = quantize(rms_norm(x, w))
static qn_status norm_quantize(const ref_call *c, const ref_tensor *x, const ref_tensor *w,
                               ref_tensor *out) {
    temp normed = {0};
    qn_status status = QN_OK;
    QN_TRY_TO(done, temp_like(&normed, x, x->dims[x->n_dims - 1], c->err));
    QN_TRY_TO(done, call_plain(c, (plain){qn_ref_RMS_NORM, {x, w}, {&normed.tensor}}));
    QN_TRY_TO(done, call_plain(c, (plain){qn_ref_QUANTIZE, {&normed.tensor}, {out}}));

done:
    temp_free(&normed);
    return status;
}

qn_status qn_ref_NORM_QUANTIZE(const ref_call *c) {
    return norm_quantize(c, c->in[0], c->in[1], c->out[0]);
}

qn_status qn_ref_ADD_NORM(const ref_call *c) {
    QN_TRY(call_plain(c, (plain){qn_ref_ADD, {c->in[0], c->in[1]}, {c->out[0]}}));
    return norm_quantize(c, c->out[0], c->in[2], c->out[1]);
}

// Turns k and writes it with v into the cache.
static qn_status rotate_write(const ref_call *c, const ref_tensor *k, const ref_tensor *v,
                              const ref_tensor *angles, const ref_tensor *norm) {
    temp turned = {0};
    qn_status status = QN_OK;
    QN_TRY_TO(done, temp_like(&turned, k, k->dims[2], c->err));
    QN_TRY_TO(done, call_plain(c, (plain){qn_ref_ROTATE, {k, angles, norm}, {&turned.tensor}}));
    QN_TRY_TO(done, call_plain(c, (plain){qn_ref_KV_WRITE, {NULL, &turned.tensor, v}, {NULL}}));

done:
    temp_free(&turned);
    return status;
}

qn_status qn_ref_ROTATE_WRITE(const ref_call *c) {
    return rotate_write(c, c->in[1], c->in[2], c->in[4], c->in[5]);
}

qn_status qn_ref_ATTENTION(const ref_call *c) {
    const ref_tensor *q = c->in[0], *cache = c->in[3], *angles = c->in[4];
    temp turned = {0};
    qn_status status = QN_OK;
    QN_TRY_TO(done, rotate_write(c, c->in[1], c->in[2], angles, c->in[7]));
    QN_TRY_TO(done, temp_like(&turned, q, q->dims[2], c->err));
    QN_TRY_TO(done, call_plain(c, (plain){qn_ref_ROTATE, {q, angles, c->in[6]}, {&turned.tensor}}));
    QN_TRY_TO(done, call_plain(c, (plain){qn_ref_ATTEND,
                                          {&turned.tensor, cache, NULL, c->in[8], NULL},
                                          {c->out[0]}}));

done:
    temp_free(&turned);
    return status;
}

qn_status qn_ref_EXPERTS(const ref_call *c) {
    enum { IDS, WEIGHTS, GATE, UP, ACTED, GATED, PACKED, DOWN, N_TEMPS };
    const ref_tensor *x = c->in[0], *gate = c->in[2], *down = c->in[4];
    const int64_t rows = x->dims[0], top = c->node->attrs.top;
    temp temps[N_TEMPS];
    memset(temps, 0, sizeof temps);
    ref_tensor *t[N_TEMPS];
    qn_status status = QN_OK;
    for (int i = 0; i < N_TEMPS; i++) {
        const int64_t width = i == DOWN ? down->dims[1] : gate->dims[1];
        QN_TRY_TO(done,
                  temp_make(&temps[i], i < GATE ? 2 : 3, (int64_t[]){rows, top, width}, c->err));
        t[i] = &temps[i].tensor;
    }
    const plain steps[] = {
        {qn_ref_ROUTE, {c->in[1]}, {t[IDS], t[WEIGHTS]}},
        {qn_ref_GROUPED_MATMUL, {x, gate, t[IDS]}, {t[GATE]}},
        {qn_ref_GROUPED_MATMUL, {x, c->in[3], t[IDS]}, {t[UP]}},
        {act_of(c), {t[GATE]}, {t[ACTED]}},
        {qn_ref_MUL, {t[ACTED], t[UP]}, {t[GATED]}},
        {qn_ref_QUANTIZE, {t[GATED]}, {t[PACKED]}},
        {qn_ref_GROUPED_MATMUL, {t[PACKED], down, t[IDS]}, {t[DOWN]}},
        {qn_ref_COMBINE, {t[DOWN], t[WEIGHTS]}, {c->out[0]}},
    };
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        QN_TRY_TO(done, call_plain(c, steps[i]));

done:
    for (int i = 0; i < N_TEMPS; i++) temp_free(&temps[i]);
    return status;
}

// A row of `best`: the min logit, or the first that is not finite; the id of that, or -1; the
// best logits in descending order, ties by lower id; their ids. What is missing at the end is
// -INFINITY, of id -1. NaN and -INFINITY are never among the best.
static void find_best(float *best, const float *row, int64_t n, int64_t top) {
    float *logits = best + 2, *ids = logits + top;
    best[0] = INFINITY;
    best[1] = -1;
    for (int64_t k = 0; k < top; k++) {
        logits[k] = -INFINITY;
        ids[k] = -1;
    }
    for (int64_t i = 0; i < n; i++) {
        if (best[1] < 0 && !isfinite(row[i])) {
            best[0] = isnan(row[i]) ? NAN : row[i]; // of no sign
            best[1] = (float)i;
        }
        if (best[1] < 0 && row[i] < best[0]) best[0] = row[i];
        int64_t at = top;
        while (at > 0 && row[i] > logits[at - 1]) at--;
        if (at == top) continue;
        memmove(logits + at + 1, logits + at, (size_t)(top - at - 1) * sizeof *logits);
        memmove(ids + at + 1, ids + at, (size_t)(top - at - 1) * sizeof *ids);
        logits[at] = row[i];
        ids[at] = (float)i;
    }
}

qn_status qn_ref_HEAD(const ref_call *c) {
    const int64_t n = c->in[1]->dims[0], top = c->node->attrs.top;
    ref_tensor *logits = c->out[0];
    const bool is_capped = c->node->attrs.cap > 0;
    temp uncapped = {0};
    qn_status status = QN_OK;
    if (is_capped) QN_TRY_TO(done, temp_like(&uncapped, c->in[0], n, c->err));
    ref_tensor *product = is_capped ? &uncapped.tensor : logits;
    QN_TRY_TO(done, call_plain(c, (plain){qn_ref_MATMUL, {c->in[0], c->in[1]}, {product}}));
    if (is_capped) QN_TRY_TO(done, call_plain(c, (plain){qn_ref_SOFTCAP, {product}, {logits}}));
    for (int64_t r = 0; r < c->in[0]->dims[0]; r++)
        find_best(c->out[1]->f + r * (2 + 2 * top), logits->f + r * n, n, top);

done:
    temp_free(&uncapped);
    return status;
}
