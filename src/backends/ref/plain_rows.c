// Ops that see one row at a time: element by element, norms, positions, routing, copies.
#include "backends/ref/plain.h"

#include <math.h>

int64_t qn_plain_room_none(const qn_plain_task *task) {
    (void)task;
    return 0;
}

int64_t qn_plain_room_width(const qn_plain_task *task) { return task->in[0].width; }
int64_t qn_plain_room_rope(const qn_plain_task *task) { return task->attrs->rotate; }

// --- element by element --------------------------------------------------------------------------

typedef float map_fn(float x, const qn_attrs *attrs);

static void map_rows(const qn_plain_task *task, map_fn *fn) {
    const int64_t n = task->in[0].parts * task->in[0].width;
    for (int64_t r = 0; r < task->rows; r++) {
        const float *x = qn_plain_row(&task->in[0], r);
        float *to = qn_plain_row(&task->out[0], r);
        for (int64_t i = 0; i < n; i++) to[i] = fn(x[i], task->attrs);
    }
}

// MAP(name, expression of x and attrs)
#define MAP(name, value)                                                                           \
    static float map_##name(float x, const qn_attrs *attrs) {                                      \
        (void)attrs;                                                                               \
        return value;                                                                              \
    }                                                                                              \
    void qn_plain_##name(const qn_plain_task *task) { map_rows(task, map_##name); }

MAP(scale, x * attrs->scale)
MAP(silu, math_silu(x))
MAP(gelu, math_gelu(x))
MAP(gelu_erf, math_gelu_erf(x))
MAP(sigmoid, math_sigmoid(x))
MAP(softplus, math_softplus(x))
MAP(softcap, attrs->cap *math_tanh(x / attrs->cap))
#undef MAP

// b may have one part, or as many as divide those of a; and one number in place of a part.
static void pair_rows(const qn_plain_task *task, bool is_sum) {
    const qn_plain_operand *a = &task->in[0], *b = &task->in[1];
    for (int64_t r = 0; r < task->rows; r++) {
        for (int64_t p = 0; p < a->parts; p++) {
            const float *x = qn_plain_part(a, r, p), *y = qn_plain_part(b, r, p % b->parts);
            float *to = qn_plain_part(&task->out[0], r, p);
            for (int64_t i = 0; i < a->width; i++) {
                const float other = y[b->width == 1 ? 0 : i];
                to[i] = is_sum ? x[i] + other : x[i] * other;
            }
        }
    }
}

void qn_plain_add(const qn_plain_task *task) { pair_rows(task, true); }
void qn_plain_mul(const qn_plain_task *task) { pair_rows(task, false); }

// --- norms ---------------------------------------------------------------------------------------

float qn_plain_sum_lanes(const float *x, int64_t n, float mean, int lanes, qn_plain_sum kind) {
    float sum[64] = {0};
    for (int64_t i = 0; i < n; i++) {
        float *lane = &sum[i % lanes];
        const float d = x[i] - mean;
        *lane = kind == QN_PLAIN_SQUARES ? fmaf(d, d, *lane) : *lane + d;
    }
    for (int half = lanes / 2; half > 0; half /= 2) {
        for (int l = 0; l < half; l++) sum[l] += sum[l + half];
    }
    return sum[0];
}

float qn_plain_dot_lanes(const float *a, const float *x, int64_t n, int lanes) {
    float sum[64] = {0};
    for (int64_t i = 0; i < n; i++) sum[i % lanes] = fmaf(a[i], x[i], sum[i % lanes]);
    for (int half = lanes / 2; half > 0; half /= 2) {
        for (int l = 0; l < half; l++) sum[l] += sum[l + half];
    }
    return sum[0];
}

static void norm_row(float *to, const float *x, const float *w, int64_t n, float eps) {
    const float mean = qn_plain_sum_lanes(x, n, 0, 64, QN_PLAIN_SQUARES) / (float)n;
    const float inverse = 1.0f / sqrtf(mean + eps);
    for (int64_t i = 0; i < n; i++) to[i] = (x[i] * inverse) * w[i];
}

// Norms see each part alone.
typedef void norm_fn(const qn_plain_task *task, int64_t r, int64_t p);

static void each_part(const qn_plain_task *task, norm_fn *fn) {
    for (int64_t r = 0; r < task->rows; r++) {
        for (int64_t p = 0; p < task->in[0].parts; p++) fn(task, r, p);
    }
}

static const float *floats_of(const qn_plain_operand *x) { return (const float *)(void *)x->data; }

static void rms_norm_part(const qn_plain_task *task, int64_t r, int64_t p) {
    norm_row(qn_plain_part(&task->out[0], r, p), qn_plain_part(&task->in[0], r, p),
             floats_of(&task->in[1]), task->in[0].width, task->attrs->eps);
}

static void layer_norm_part(const qn_plain_task *task, int64_t r, int64_t p) {
    const float *x = qn_plain_part(&task->in[0], r, p);
    const float *w = floats_of(&task->in[1]), *b = floats_of(&task->in[2]);
    float *to = qn_plain_part(&task->out[0], r, p);
    const int64_t n = task->in[0].width;
    const float mean = qn_plain_sum_lanes(x, n, 0, 64, QN_PLAIN_PLAIN) / (float)n;
    const float variance = qn_plain_sum_lanes(x, n, mean, 64, QN_PLAIN_SQUARES) / (float)n;
    const float inverse = 1.0f / sqrtf(variance + task->attrs->eps);
    for (int64_t i = 0; i < n; i++) to[i] = fmaf((x[i] - mean) * inverse, w[i], b[i]);
}

static void l2_norm_part(const qn_plain_task *task, int64_t r, int64_t p) {
    const float *x = qn_plain_part(&task->in[0], r, p);
    float *to = qn_plain_part(&task->out[0], r, p);
    const int64_t n = task->in[0].width;
    const float sum = qn_plain_sum_lanes(x, n, 0, 64, QN_PLAIN_SQUARES);
    const float inverse = 1.0f / sqrtf(sum + task->attrs->eps);
    for (int64_t i = 0; i < n; i++) to[i] = x[i] * inverse;
}

static void quantize_part(const qn_plain_task *task, int64_t r, int64_t p) {
    const qn_plain_operand *out = &task->out[0];
    qn_plain_round(qn_plain_part(out, r, p), qn_plain_part(&task->in[0], r, p), out->width,
                   out->form);
}

static void norm_quantize_part(const qn_plain_task *task, int64_t r, int64_t p) {
    const qn_plain_operand *out = &task->out[0];
    norm_row(task->room, qn_plain_part(&task->in[0], r, p), floats_of(&task->in[1]), out->width,
             task->attrs->eps);
    qn_plain_round(qn_plain_part(out, r, p), task->room, out->width, out->form);
}

static void add_norm_part(const qn_plain_task *task, int64_t r, int64_t p) {
    const float *a = qn_plain_part(&task->in[0], r, p), *b = qn_plain_part(&task->in[1], r, p);
    const qn_plain_operand *out = &task->out[1];
    float *sum = qn_plain_part(&task->out[0], r, p);
    for (int64_t i = 0; i < out->width; i++) sum[i] = a[i] + b[i];
    norm_row(task->room, sum, floats_of(&task->in[2]), out->width, task->attrs->eps);
    qn_plain_round(qn_plain_part(out, r, p), task->room, out->width, out->form);
}

void qn_plain_rms_norm(const qn_plain_task *task) { each_part(task, rms_norm_part); }
void qn_plain_layer_norm(const qn_plain_task *task) { each_part(task, layer_norm_part); }
void qn_plain_l2_norm(const qn_plain_task *task) { each_part(task, l2_norm_part); }
void qn_plain_quantize(const qn_plain_task *task) { each_part(task, quantize_part); }
void qn_plain_norm_quantize(const qn_plain_task *task) { each_part(task, norm_quantize_part); }
void qn_plain_add_norm(const qn_plain_task *task) { each_part(task, add_norm_part); }

// --- positions -----------------------------------------------------------------------------------

// Which of the positions t, h, w turns pair i: sections interleave as t h w t h w ..., the rest is
// t.
static int position_of_pair(const qn_list *sections, int64_t i) {
    const int64_t kind = i % 3;
    return kind > 0 && i < 3 * sections->v[kind] ? (int)kind : 0;
}

// Cosines, then sines, of n pairs of row r.
static void find_angles(float *to, const qn_plain_task *task, const float *frequencies, int64_t n,
                        int64_t r) {
    const int32_t *positions = task->step->pos + 4 * r;
    for (int64_t i = 0; i < n; i++) {
        const double position = positions[position_of_pair(&task->attrs->sections, i)];
        const turn t = math_turn(position * (double)frequencies[i]);
        to[i] = t.cosine * task->attrs->scale;
        to[n + i] = t.sine * task->attrs->scale;
    }
}

void qn_plain_angles(const qn_plain_task *task) {
    const qn_plain_operand *frequencies = &task->in[0];
    for (int64_t r = 0; r < task->rows; r++)
        find_angles(qn_plain_row(&task->out[0], r), task, floats_of(frequencies),
                    frequencies->width, r);
}

void qn_plain_turn_head(float *to, const float *x, const float *angles, const float *norm,
                        int64_t size, const qn_attrs *attrs) {
    const int64_t pairs = attrs->rotate / 2;
    const bool is_half = attrs->pairs == QN_WORD_half;
    if (norm)
        norm_row(to, x, norm, size, attrs->eps);
    else
        memcpy(to, x, (size_t)size * sizeof *to);
    for (int64_t i = 0; i < pairs; i++) {
        float *first = is_half ? to + i : to + 2 * i, *second = is_half ? first + pairs : first + 1;
        const float a = *first, b = *second, cosine = angles[i], sine = angles[pairs + i];
        *first = fmaf(a, cosine, -(b * sine));
        *second = fmaf(a, sine, b * cosine);
    }
}

static void turn_row(const qn_plain_task *task, int64_t r, const float *angles, const float *norm) {
    const qn_plain_operand *x = &task->in[0]; // (T, H, E)
    for (int64_t h = 0; h < x->parts; h++)
        qn_plain_turn_head(qn_plain_part(&task->out[0], r, h), qn_plain_part(x, r, h), angles, norm,
                           x->width, task->attrs);
}

void qn_plain_rotate(const qn_plain_task *task) {
    for (int64_t r = 0; r < task->rows; r++)
        turn_row(task, r, qn_plain_row(&task->in[1], r), floats_of(&task->in[2]));
}

void qn_plain_rope(const qn_plain_task *task) {
    for (int64_t r = 0; r < task->rows; r++) {
        find_angles(task->room, task, floats_of(&task->in[1]), task->attrs->rotate / 2, r);
        turn_row(task, r, task->room, NULL);
    }
}

// --- routing -------------------------------------------------------------------------------------

void qn_plain_choose(int32_t *ids, float *weights, const float *scores, int64_t n,
                     const qn_attrs *attrs, float *p) {
    float largest = scores[0], chosen = 0;
    for (int64_t i = 1; i < n; i++) largest = scores[i] > largest ? scores[i] : largest;
    for (int64_t i = 0; i < n; i++) p[i] = math_exp(scores[i] - largest);
    const float sum = qn_plain_sum_lanes(p, n, 0, 16, QN_PLAIN_PLAIN);
    for (int64_t k = 0; k < attrs->top; k++) {
        int64_t best = 0;
        for (int64_t i = 1; i < n; i++) {
            if (p[i] > p[best]) best = i;
        }
        ids[k] = (int32_t)best;
        weights[k] = p[best] / sum;
        chosen += weights[k];
        p[best] = -1; // taken
    }
    for (int64_t k = 0; k < attrs->top; k++)
        weights[k] = weights[k] / (attrs->normalize ? chosen : 1.0f) * attrs->scale;
}

// scores (T, X) -> ids (T, N), weights (T, N)
void qn_plain_route(const qn_plain_task *task) {
    for (int64_t r = 0; r < task->rows; r++)
        qn_plain_choose(qn_plain_row(&task->out[0], r), qn_plain_row(&task->out[1], r),
                        qn_plain_row(&task->in[0], r), task->in[0].width, task->attrs, task->room);
}

// y (T, N, D), weights (T, N)
void qn_plain_combine(const qn_plain_task *task) {
    const qn_plain_operand *y = &task->in[0];
    for (int64_t r = 0; r < task->rows; r++) {
        const float *weights = qn_plain_row(&task->in[1], r);
        float *to = qn_plain_row(&task->out[0], r);
        for (int64_t i = 0; i < y->width; i++) {
            to[i] = 0;
            for (int64_t k = 0; k < y->parts; k++)
                to[i] = fmaf(weights[k], ((const float *)qn_plain_part(y, r, k))[i], to[i]);
        }
    }
}

// The rows that chose an expert, squared and summed in order; x may have a part for each choice.
void qn_plain_sum_squares(const qn_plain_task *task) {
    const qn_plain_operand *x = &task->in[0], *ids = &task->in[1];
    const int64_t choices = ids->data ? ids->width : x->parts;
    for (int64_t e = 0; e < task->attrs->length; e++) {
        float *to = qn_plain_part(&task->out[0], 0, e);
        for (int64_t i = 0; i <= x->width; i++) { // the last: how many
            double sum = 0;
            for (int64_t r = 0; r < task->rows; r++) {
                const int32_t *chosen = ids->data ? (int32_t *)qn_plain_row(ids, r) : NULL;
                for (int64_t k = 0; k < choices; k++) {
                    if (chosen && chosen[k] != e) continue;
                    const float *row = qn_plain_part(x, r, x->parts > 1 ? k : 0);
                    sum += i < x->width ? (double)row[i] * (double)row[i] : 1;
                }
            }
            to[i] = (float)sum;
        }
    }
}

// --- copies --------------------------------------------------------------------------------------

static void copy_floats(float *to, const float *from, int64_t n) {
    memcpy(to, from, (size_t)n * sizeof *to);
}

// A slice of the last dimension of each part, or a run of whole parts.
void qn_plain_narrow(const qn_plain_task *task) {
    const qn_plain_operand *x = &task->in[0], *out = &task->out[0];
    const int64_t n = out->parts * out->width, start = task->attrs->start;
    for (int64_t r = 0; r < task->rows; r++) {
        const float *from = qn_plain_row(x, r);
        float *to = qn_plain_row(out, r);
        if (x->width == out->width) {
            copy_floats(to, from + start * (n / task->attrs->length), n);
            continue;
        }
        for (int64_t p = 0; p < out->parts; p++)
            copy_floats(to + p * out->width, from + p * x->width + start, out->width);
    }
}

// Part by part along the last dimension, else all of a and then all of b.
void qn_plain_concat(const qn_plain_task *task) {
    const qn_plain_operand *a = &task->in[0], *b = &task->in[1], *out = &task->out[0];
    const int64_t runs = a->width != out->width ? out->parts : 1;
    const int64_t n_a = a->parts * a->width / runs, n_b = b->parts * b->width / runs;
    for (int64_t r = 0; r < task->rows; r++) {
        const float *first = qn_plain_row(a, r), *second = qn_plain_row(b, r);
        float *to = qn_plain_row(out, r);
        for (int64_t i = 0; i < runs; i++) {
            copy_floats(to + i * (n_a + n_b), first + i * n_a, n_a);
            copy_floats(to + i * (n_a + n_b) + n_a, second + i * n_b, n_b);
        }
    }
}

// The same numbers under another shape.
static void copy_rows(const qn_plain_task *task) {
    const qn_plain_operand *x = &task->in[0];
    for (int64_t r = 0; r < task->rows; r++)
        copy_floats(qn_plain_row(&task->out[0], r), qn_plain_row(x, r), x->parts * x->width);
}

void qn_plain_split(const qn_plain_task *task) { copy_rows(task); }
void qn_plain_merge(const qn_plain_task *task) { copy_rows(task); }

// in[1] (R) are rows of in[0].
void qn_plain_gather_rows(const qn_plain_task *task) {
    const qn_plain_operand *x = &task->in[0];
    for (int64_t r = 0; r < task->rows; r++) {
        const int32_t *from = qn_plain_row(&task->in[1], r);
        copy_floats(qn_plain_row(&task->out[0], r), qn_plain_row(x, *from), x->parts * x->width);
    }
}
