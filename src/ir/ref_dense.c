// Reference ops over rows of numbers: embedding, matmuls, norms, activations, moves.
#include "ir/ref_int.h"

#include "core/mem.h"

#include <math.h>
#include <string.h>

static qn_status copy(const ref_call *c) {
    if (c->in[0]->n) memcpy(c->out[0]->f, c->in[0]->f, (size_t)c->in[0]->n * sizeof(float));
    return QN_OK;
}

// --- weights ---

// Row t of a table, where the table, or this rank's share of it, has it.
static qn_status embed_id(const ref_call *c, float *to, const ref_tensor *table, int64_t t) {
    const qn_share *share = c->opts->graph->nodes[table->value->node].share;
    const int64_t id = c->in[0]->i[t], row = id - c->node->attrs.start;
    const int64_t vocab = share ? share->whole : table->dims[0];
    if (id < 0 || id >= vocab)
        return QN_FAIL(c->err, ARGUMENT, "token %lld: id %lld, the vocabulary has %lld",
                       (long long)t, (long long)id, (long long)vocab);
    if (row >= 0 && row < table->dims[0]) ref_unpack_row(to, table, row);
    return QN_OK;
}

qn_status qn_ref_EMBED(const ref_call *c) {
    const ref_tensor *ids = c->in[0], *table = c->in[1], *extra = c->in[2], *extra_row = c->in[3];
    const int64_t width = table->dims[1];
    for (int64_t t = 0; t < ids->n; t++) {
        float *to = c->out[0]->f + t * width;
        if (c->step->row_seg[t] < 0) continue; // inert: stays zero
        if (extra && extra->n && extra_row->i[t] >= 0) {
            if (extra_row->i[t] >= extra->dims[0])
                return QN_FAIL(c->err, ARGUMENT, "row %lld: extra row %d of %lld", (long long)t,
                               extra_row->i[t], (long long)extra->dims[0]);
            memcpy(to, extra->f + extra_row->i[t] * width, (size_t)width * sizeof *to);
            continue;
        }
        QN_TRY(embed_id(c, to, table, t));
    }
    return QN_OK;
}

// out[t][o] = sum over i, ascending, of w[o][i] * x[t][i]. The loop over rows is innermost, over a
// transposed x, only so that the compiler can do several rows at once; each sum keeps its order.
typedef struct matmul_job {
    const ref_tensor *w;
    const float *x_t; // (I, T)
    float *out;       // (T, O)
    float *scratch;   // (pieces, I + T)
    int64_t n_in, n_out, n_rows, per_piece;
    int64_t from, to; // outputs of this round
} matmul_job;

static void matmul_piece(void *arg, int64_t piece) {
    const matmul_job *job = arg;
    float *row = job->scratch + piece * (job->n_in + job->n_rows);
    float *sum = row + job->n_in;
    const int64_t first = job->from + piece * job->per_piece;
    const int64_t end = first + job->per_piece < job->to ? first + job->per_piece : job->to;
    for (int64_t o = first; o < end; o++) {
        ref_unpack_row(row, job->w, o);
        for (int64_t t = 0; t < job->n_rows; t++) sum[t] = 0;
        for (int64_t i = 0; i < job->n_in; i++) {
            const float *x = job->x_t + i * job->n_rows;
            for (int64_t t = 0; t < job->n_rows; t++) sum[t] += row[i] * x[t];
        }
        for (int64_t t = 0; t < job->n_rows; t++) job->out[t * job->n_out + o] = sum[t];
    }
}

// Outputs that are computed between two looks at the caller: a fraction of a second of work.
static int64_t outputs_of_round(const matmul_job *job) {
    const int64_t work = (int64_t)1 << 28, of_one = job->n_in * job->n_rows;
    const int64_t n = of_one > 0 ? work / of_one : job->n_out;
    return n < 64 ? 64 : n < job->n_out ? n : job->n_out > 0 ? job->n_out : 1;
}

qn_status qn_ref_MATMUL(const ref_call *c) {
    const ref_tensor *x = c->in[0], *w = c->in[1];
    matmul_job job = {.w = w, .out = c->out[0]->f, .n_in = w->dims[1], .n_out = w->dims[0]};
    job.n_rows = x->n / job.n_in;
    const int64_t want = 8 * (int64_t)qn_pool_threads(c->pool);
    const int64_t round = outputs_of_round(&job);
    job.per_piece = (round + want - 1) / want;
    const int64_t n_pieces = (round + job.per_piece - 1) / job.per_piece;
    float *x_t = qn_alloc((size_t)x->n, sizeof *x_t);
    int64_t n_scratch;
    if (!qn_i64_mul(&n_scratch, n_pieces, job.n_in + job.n_rows)) n_scratch = INT64_MAX; // too much
    job.scratch = qn_alloc((size_t)n_scratch, sizeof(float));
    qn_status status = QN_OK;
    if (!x_t || !job.scratch) {
        status = QN_NOMEM(c->err, "matmul");
        goto done;
    }
    for (int64_t t = 0; t < job.n_rows; t++) {
        for (int64_t i = 0; i < job.n_in; i++) x_t[i * job.n_rows + t] = x->f[t * job.n_in + i];
    }
    job.x_t = x_t;
    for (; job.from < job.n_out; job.from = job.to) {
        if (job.from) QN_TRY_TO(done, qn_ref_poll(c));
        job.to = job.from + round < job.n_out ? job.from + round : job.n_out;
        const int64_t n = job.to - job.from;
        qn_pool_run(c->pool, (n + job.per_piece - 1) / job.per_piece, matmul_piece, &job);
    }

done:
    qn_free(x_t);
    qn_free(job.scratch);
    return status;
}

qn_status qn_ref_GROUPED_MATMUL(const ref_call *c) {
    const ref_tensor *x = c->in[0], *w = c->in[1], *ids = c->in[2];
    const int64_t n_in = w->dims[2], n_out = w->dims[1], choices = ids->dims[1];
    float *row = qn_alloc((size_t)n_in, sizeof *row);
    if (!row) return QN_NOMEM(c->err, "grouped matmul");
    for (int64_t r = 0; r < ids->n; r++) { // row t, choice r % choices
        const qn_status stopped = r % 8 == 0 ? qn_ref_poll(c) : QN_OK;
        if (stopped) {
            qn_free(row);
            return stopped;
        }
        const float *from = x->f + (x->n_dims == 3 ? r : r / choices) * n_in;
        for (int64_t o = 0; o < n_out; o++) {
            ref_unpack_row(row, w, ids->i[r] * n_out + o);
            float sum = 0;
            for (int64_t i = 0; i < n_in; i++) sum += row[i] * from[i];
            c->out[0]->f[r * n_out + o] = sum;
        }
    }
    qn_free(row);
    return QN_OK;
}

// Sums in double, in the order of the rows: a square of a float is exact there.
qn_status qn_ref_SUM_SQUARES(const ref_call *c) {
    const ref_tensor *x = c->in[0], *ids = c->in[1];
    const int64_t width = x->dims[x->n_dims - 1], n_experts = c->node->attrs.length;
    const int64_t choices = ids ? ids->dims[1] : 1, n = ids ? ids->n : x->n / width;
    double *sums = qn_alloc((size_t)c->out[0]->n, sizeof *sums); // (experts, width + 1)
    if (!sums) return QN_NOMEM(c->err, "sums of squares");
    for (int64_t r = 0; r < n; r++) {
        const int64_t expert = ids ? ids->i[r] : 0;
        if (expert < 0 || expert >= n_experts) {
            qn_free(sums);
            return QN_FAIL(c->err, ARGUMENT, "expert %lld of %lld", (long long)expert,
                           (long long)n_experts);
        }
        const float *row = x->f + (ids && x->n_dims == 2 ? r / choices : r) * width;
        double *to = sums + expert * (width + 1);
        for (int64_t i = 0; i < width; i++) to[i] += (double)row[i] * (double)row[i];
        to[width]++;
    }
    for (int64_t i = 0; i < c->out[0]->n; i++) c->out[0]->f[i] = (float)sums[i];
    qn_free(sums);
    return QN_OK;
}

// y + scale * B (A x) with the adapter of the row's segment.
qn_status qn_ref_LORA(const ref_call *c) {
    const ref_tensor *y = c->in[0], *x = c->in[1], *a = c->in[2], *b = c->in[3];
    const int64_t n_out = y->dims[1], n_in = x->dims[1], rank = a->dims[1];
    memcpy(c->out[0]->f, y->f, (size_t)y->n * sizeof(float));
    float *row = qn_alloc((size_t)(n_in + rank + rank), sizeof *row);
    if (!row) return QN_NOMEM(c->err, "adapter");
    float *inner = row + n_in, *b_row = inner + rank;
    qn_status status = QN_OK;
    for (int64_t t = 0; t < y->dims[0]; t++) {
        const int32_t seg = c->step->row_seg[t];
        const int32_t adapter = seg < 0 ? -1 : c->step->seg_adapter[seg];
        if (adapter < 0) continue;
        if (adapter >= a->dims[0]) {
            status = QN_FAIL(c->err, ARGUMENT, "segment %d: adapter %d of %lld", seg, adapter,
                             (long long)a->dims[0]);
            break;
        }
        for (int64_t r = 0; r < rank; r++) {
            ref_unpack_row(row, a, adapter * rank + r);
            inner[r] = 0;
            for (int64_t i = 0; i < n_in; i++) inner[r] += row[i] * x->f[t * n_in + i];
        }
        for (int64_t o = 0; o < n_out; o++) {
            ref_unpack_row(b_row, b, adapter * n_out + o);
            float sum = 0;
            for (int64_t r = 0; r < rank; r++) sum += b_row[r] * inner[r];
            c->out[0]->f[t * n_out + o] += c->node->attrs.scale * sum;
        }
    }
    qn_free(row);
    return status;
}

// --- element by element ---

// The element of b for element i of a: b lacks leading dims or has 1 in place of one.
static int64_t spread_index(const ref_tensor *a, const ref_tensor *b, int64_t i) {
    int64_t index = 0, stride = 1;
    for (int back = 1; back <= b->n_dims; back++) {
        const int64_t size_a = a->dims[a->n_dims - back], size_b = b->dims[b->n_dims - back];
        if (size_b != 1) index += i % size_a * stride;
        stride *= size_b;
        i /= size_a;
    }
    return index;
}

qn_status qn_ref_ADD(const ref_call *c) {
    const ref_tensor *a = c->in[0], *b = c->in[1];
    for (int64_t i = 0; i < a->n; i++) c->out[0]->f[i] = a->f[i] + b->f[spread_index(a, b, i)];
    return QN_OK;
}

qn_status qn_ref_MUL(const ref_call *c) {
    const ref_tensor *a = c->in[0], *b = c->in[1];
    for (int64_t i = 0; i < a->n; i++) c->out[0]->f[i] = a->f[i] * b->f[spread_index(a, b, i)];
    return QN_OK;
}

static qn_status map(const ref_call *c, float (*fn)(float x, const qn_attrs *attrs)) {
    for (int64_t i = 0; i < c->in[0]->n; i++) c->out[0]->f[i] = fn(c->in[0]->f[i], &c->node->attrs);
    return QN_OK;
}

static float scale(float x, const qn_attrs *attrs) { return x * attrs->scale; }
static float soft_cap(float x, const qn_attrs *attrs) { return attrs->cap * tanhf(x / attrs->cap); }

static float silu(float x, const qn_attrs *attrs) {
    (void)attrs;
    return x / (1.0f + expf(-x));
}

static float gelu(float x, const qn_attrs *attrs) {
    (void)attrs;
    return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

static float gelu_erf(float x, const qn_attrs *attrs) {
    (void)attrs;
    return 0.5f * x * (1.0f + erff(x * 0.70710678f));
}

static float sigmoid(float x, const qn_attrs *attrs) {
    (void)attrs;
    return 1.0f / (1.0f + expf(-x));
}

static float softplus(float x, const qn_attrs *attrs) {
    (void)attrs;
    return x > 20.0f ? x : log1pf(expf(x));
}

qn_status qn_ref_SCALE(const ref_call *c) { return map(c, scale); }
qn_status qn_ref_SILU(const ref_call *c) { return map(c, silu); }
qn_status qn_ref_GELU(const ref_call *c) { return map(c, gelu); }
qn_status qn_ref_GELU_ERF(const ref_call *c) { return map(c, gelu_erf); }
qn_status qn_ref_SIGMOID(const ref_call *c) { return map(c, sigmoid); }
qn_status qn_ref_SOFTPLUS(const ref_call *c) { return map(c, softplus); }
qn_status qn_ref_SOFTCAP(const ref_call *c) { return map(c, soft_cap); }

// --- along the last dimension ---

qn_status qn_ref_RMS_NORM(const ref_call *c) {
    const ref_tensor *x = c->in[0], *w = c->in[1];
    for (int64_t at = 0; at < x->n; at += w->n) {
        float sum = 0;
        for (int64_t i = 0; i < w->n; i++) sum += x->f[at + i] * x->f[at + i];
        const float inverse = 1.0f / sqrtf(sum / (float)w->n + c->node->attrs.eps);
        for (int64_t i = 0; i < w->n; i++) c->out[0]->f[at + i] = x->f[at + i] * inverse * w->f[i];
    }
    return QN_OK;
}

qn_status qn_ref_LAYER_NORM(const ref_call *c) {
    const ref_tensor *x = c->in[0], *w = c->in[1], *b = c->in[2];
    for (int64_t at = 0; at < x->n; at += w->n) {
        float mean = 0, variance = 0;
        for (int64_t i = 0; i < w->n; i++) mean += x->f[at + i];
        mean /= (float)w->n;
        for (int64_t i = 0; i < w->n; i++) {
            variance += (x->f[at + i] - mean) * (x->f[at + i] - mean);
        }
        const float inverse = 1.0f / sqrtf(variance / (float)w->n + c->node->attrs.eps);
        for (int64_t i = 0; i < w->n; i++)
            c->out[0]->f[at + i] = (x->f[at + i] - mean) * inverse * w->f[i] + b->f[i];
    }
    return QN_OK;
}

qn_status qn_ref_L2_NORM(const ref_call *c) {
    const ref_tensor *x = c->in[0];
    const int64_t width = x->dims[x->n_dims - 1];
    for (int64_t at = 0; at < x->n; at += width) {
        float sum = 0;
        for (int64_t i = 0; i < width; i++) sum += x->f[at + i] * x->f[at + i];
        const float inverse = 1.0f / sqrtf(sum + c->node->attrs.eps);
        for (int64_t i = 0; i < width; i++) c->out[0]->f[at + i] = x->f[at + i] * inverse;
    }
    return QN_OK;
}

qn_status qn_ref_QUANTIZE(const ref_call *c) {
    const ref_tensor *x = c->in[0];
    if (c->node->attrs.form == QN_WORD_f32) return copy(c);
    const qn_word form = c->node->attrs.form;
    const int64_t width = x->dims[x->n_dims - 1], block = form == QN_WORD_i8_32 ? 32 : 256;
    const float max = form == QN_WORD_i8_32 ? 127.0f : form == QN_WORD_i12_256 ? 2047.0f : 32767.0f;
    for (int64_t at = 0; at < x->n; at += width) {
        for (int64_t first = 0; first < width; first += block) {
            const int64_t end = first + block < width ? first + block : width;
            float largest = 0;
            for (int64_t i = first; i < end; i++) largest = fmaxf(largest, fabsf(x->f[at + i]));
            const float step = largest / max;
            for (int64_t i = first; i < end; i++)
                c->out[0]->f[at + i] = step > 0 ? rintf(x->f[at + i] / step) * step : 0;
        }
    }
    return QN_OK;
}

// --- moves ---

// Sizes before and after a dimension.
static int64_t product(const int64_t *dims, int from, int to) {
    int64_t n = 1;
    for (int i = from; i < to; i++) n *= dims[i];
    return n;
}

qn_status qn_ref_NARROW(const ref_call *c) {
    const ref_tensor *x = c->in[0];
    const int axis = (int)c->node->attrs.axis;
    const int64_t outer = product(x->dims, 0, axis), inner = product(x->dims, axis + 1, x->n_dims);
    const int64_t length = c->node->attrs.length * inner;
    for (int64_t i = 0; i < outer; i++)
        memcpy(c->out[0]->f + i * length, x->f + (i * x->dims[axis] + c->node->attrs.start) * inner,
               (size_t)length * sizeof(float));
    return QN_OK;
}

qn_status qn_ref_CONCAT(const ref_call *c) {
    const ref_tensor *a = c->in[0], *b = c->in[1];
    const int axis = (int)c->node->attrs.axis;
    const int64_t outer = product(a->dims, 0, axis);
    const int64_t from_a = product(a->dims, axis, a->n_dims);
    const int64_t from_b = product(b->dims, axis, b->n_dims);
    for (int64_t i = 0; i < outer; i++) {
        float *to = c->out[0]->f + i * (from_a + from_b);
        memcpy(to, a->f + i * from_a, (size_t)from_a * sizeof(float));
        memcpy(to + from_a, b->f + i * from_b, (size_t)from_b * sizeof(float));
    }
    return QN_OK;
}

qn_status qn_ref_SPLIT(const ref_call *c) { return copy(c); }
qn_status qn_ref_MERGE(const ref_call *c) { return copy(c); }
qn_status qn_ref_GATHER_ROWS(const ref_call *c) {
    const ref_tensor *h = c->in[0], *rows = c->in[1];
    const int64_t width = h->dims[1];
    for (int64_t i = 0; i < rows->n; i++)
        memcpy(c->out[0]->f + i * width, h->f + rows->i[i] * width, (size_t)width * sizeof(float));
    return QN_OK;
}

// --- experts ---

// Softmax over all experts, then the best `top` in descending order, ties to the lower id.
qn_status qn_ref_ROUTE(const ref_call *c) {
    const ref_tensor *scores = c->in[0];
    const qn_attrs *attrs = &c->node->attrs;
    const int64_t n = scores->dims[1];
    float *p = qn_alloc((size_t)n, sizeof *p);
    if (!p) return QN_NOMEM(c->err, "routing");
    for (int64_t t = 0; t < scores->dims[0]; t++) {
        const float *s = scores->f + t * n;
        int32_t *ids = c->out[0]->i + t * attrs->top;
        float *weights = c->out[1]->f + t * attrs->top;
        float largest = s[0], sum = 0, chosen = 0;
        for (int64_t i = 1; i < n; i++) largest = fmaxf(largest, s[i]);
        for (int64_t i = 0; i < n; i++) sum += p[i] = expf(s[i] - largest);
        for (int64_t k = 0; k < attrs->top; k++) {
            int64_t best = 0;
            for (int64_t i = 1; i < n; i++) {
                if (p[i] > p[best]) best = i;
            }
            ids[k] = (int32_t)best;
            weights[k] = p[best] / sum;
            chosen += weights[k];
            p[best] = -1.0f; // taken
        }
        for (int64_t k = 0; k < attrs->top; k++)
            weights[k] = weights[k] / (attrs->normalize ? chosen : 1.0f) * attrs->scale;
    }
    qn_free(p);
    return QN_OK;
}

qn_status qn_ref_COMBINE(const ref_call *c) {
    const ref_tensor *y = c->in[0], *weights = c->in[1];
    const int64_t choices = y->dims[1], width = y->dims[2];
    for (int64_t t = 0; t < y->dims[0]; t++) {
        for (int64_t d = 0; d < width; d++) {
            float sum = 0;
            for (int64_t k = 0; k < choices; k++)
                sum += weights->f[t * choices + k] * y->f[(t * choices + k) * width + d];
            c->out[0]->f[t * width + d] = sum;
        }
    }
    return QN_OK;
}
