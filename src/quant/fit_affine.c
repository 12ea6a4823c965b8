#include "quant/fit.h"

#include <math.h>

// Scales tried at the same time, so that loops over them become vectors.
enum { LANES = 8 };

// value = scale * q + offset
typedef struct lanes {
    float scale[LANES], offset[LANES], inverse[LANES];
    // Sums over the values of w times: residual^2, residual * q, residual, q^2, q. The residual is
    // x - value.
    float rr[LANES], rq[LANES], r1[LANES], qq[LANES], q1[LANES];
} lanes;

// Fills the sums of the lanes from their scales and offsets.
static void measure(lanes *l, const float *x, const float *w, int n, float high) {
    lanes s = {0};
    for (int c = 0; c < LANES; c++) {
        s.scale[c] = l->scale[c];
        s.offset[c] = l->offset[c];
        s.inverse[c] = l->scale[c] != 0 ? 1 / l->scale[c] : 0;
    }
    for (int i = 0; i < n; i++)
        for (int c = 0; c < LANES; c++) {
            const float t = (x[i] - s.offset[c]) * s.inverse[c];
            const float q = qn_fit_round(qn_fit_clamp(t, 0, high));
            const float r = x[i] - (s.scale[c] * q + s.offset[c]);
            const float wr = w[i] * r, wq = w[i] * q;
            s.rr[c] += wr * r;
            s.rq[c] += wr * q;
            s.r1[c] += wr;
            s.qq[c] += wq * q;
            s.q1[c] += wq;
        }
    *l = s;
}

// --- one group -----------------------------------------------------------------------------------

typedef struct group {
    float scale, offset;
    float error;     // at that scale and offset
    float qq, q1, w; // how the error grows with a change (a, b) of them: qq aa + 2 q1 ab + w bb
    float per_w;     // 1 / w
} group;

// Moves each lane to the best scale and offset for its levels, with the offset at most
// `offset_high`, and keeps the best lane.
static void improve(group *best, lanes *l, float w, float offset_high) {
    float error[LANES];
    for (int c = 0; c < LANES; c++) {
        const float qq = l->qq[c], q1 = l->q1[c], rq = l->rq[c], r1 = l->r1[c];
        const float det = qq * w - q1 * q1;
        const bool is_solvable = det > 1e-6f * qq * w;
        const float per_det = 1 / (is_solvable ? det : 1), per_qq = 1 / (is_solvable ? qq : 1);
        const float free_b = (r1 * qq - rq * q1) * per_det;
        const float max_b = offset_high - l->offset[c];
        const bool is_bound = free_b > max_b;
        const float b = is_bound ? max_b : free_b;
        const float a = is_bound ? (rq - q1 * b) * per_qq : (rq * w - r1 * q1) * per_det;
        const bool is_good = is_solvable && l->scale[c] + a > 0;
        const float gain = a * (2 * rq - a * qq) + b * (2 * r1 - b * w) - 2 * a * b * q1;
        l->scale[c] += is_good ? a : 0;
        l->offset[c] += is_good ? b : 0;
        error[c] = l->rr[c] - (is_good ? gain : 0);
    }
    for (int c = 0; c < LANES; c++)
        if (error[c] < best->error)
            *best = (group){l->scale[c], l->offset[c], error[c], l->qq[c], l->q1[c], w, 1 / w};
}

// A lane whose outer levels lie at these places.
static void set_lane(lanes *l, int c, float from, float to, const qn_fit_affine_form *form) {
    l->offset[c] = from;
    l->scale[c] = (to - from) / (float)form->high;
}

// Where the outer levels lie at the starts: this far inside the smallest and the largest value, in
// steps between levels; in the last row, only for weighted values, in parts of the whole range.
enum { STARTS = 3 };
static const float inside[STARTS][LANES][2] = {
    {{0, 0}, {0, .5f}, {.5f, 0}, {.5f, .5f}, {1, 0}, {0, 1}, {.25f, .25f}, {1, 1}},
    {{-.5f, 0}, {0, -.5f}, {-1, 0}, {0, -1}, {.5f, 1}, {1, .5f}, {.75f, .75f}, {1.5f, 1.5f}},
    {{.1f, .1f},
     {.2f, .2f},
     {.15f, 0},
     {0, .15f},
     {.3f, .05f},
     {.05f, .3f},
     {.3f, .3f},
     {.4f, .4f}},
};

static group fit_group(const float *x, const float *w, const qn_fit_affine_form *form,
                       float offset_high, bool is_weighted) {
    float low = x[0], max = x[0], w_sum = 0;
    for (int i = 0; i < form->size; i++) {
        low = x[i] < low ? x[i] : low;
        max = x[i] > max ? x[i] : max;
        w_sum += w[i];
    }
    low = low < offset_high ? low : offset_high;
    if (!(max > low)) return (group){.scale = 0, .offset = low, .w = w_sum, .per_w = 1 / w_sum};
    group best = {.error = INFINITY};
    lanes l;
    for (int k = 0; k < (is_weighted ? STARTS : STARTS - 1); k++) {
        const float unit = k < STARTS - 1 ? (max - low) / (float)form->high : max - low;
        for (int c = 0; c < LANES; c++)
            set_lane(&l, c, low + inside[k][c][0] * unit, max - inside[k][c][1] * unit, form);
        measure(&l, x, w, form->size, (float)form->high);
        improve(&best, &l, w_sum, offset_high);
    }
    for (int round = 0; round < 1 + is_weighted; round++) {
        static const int8_t move[LANES][2] = {{-1, -1}, {-1, 0}, {0, -1}, {0, 0},
                                              {0, 1},   {1, 0},  {1, -1}, {-1, 1}};
        const float from = best.offset, to = from + best.scale * (float)form->high;
        const float h = best.scale * 0.25f;
        for (int c = 0; c < LANES; c++)
            set_lane(&l, c, from + h * (float)move[c][0], to + h * (float)move[c][1], form);
        measure(&l, x, w, form->size, (float)form->high);
        improve(&best, &l, w_sum, offset_high);
    }
    return best;
}

// --- the scales of scales ------------------------------------------------------------------------

static float clamp_round(float x, float high) { return qn_fit_round(qn_fit_clamp(x, 0, high)); }

// The best shift for a factor, as a real number: the change of scale moves the best offset along.
static float wanted_shift(const group *g, float scale, float per_dmin) {
    const float moved = (scale - g->scale) * g->q1 * g->per_w;
    return (moved - g->offset) * per_dmin;
}

// Estimated growth of the error of a group when its scale and offset become whole multiples.
static float rounding_cost(const group *g, float d, float dmin, float factor, float shift) {
    const float a = d * factor - g->scale, b = -dmin * shift - g->offset;
    return g->qq * a * a + 2 * g->q1 * a * b + g->w * b * b;
}

typedef struct scales {
    float d, dmin;
} scales;

// Adds the growth of one group's error for this d and every dmin; the better of two factors.
static void add_costs(float *cost, const group *g, float d, const float *dmin,
                      const float *per_dmin, float high) {
    const float wanted = d > 0 ? qn_fit_clamp(g->scale / d, 0, high) : 0;
    const float down = (float)(int)wanted, up = down + 1 < high ? down + 1 : high;
    for (int c = 0; c < LANES; c++) {
        const float s0 = clamp_round(wanted_shift(g, d * down, per_dmin[c]), high);
        const float s1 = clamp_round(wanted_shift(g, d * up, per_dmin[c]), high);
        const float c0 = rounding_cost(g, d, dmin[c], down, s0);
        const float c1 = rounding_cost(g, d, dmin[c], up, s1);
        cost[c] += c0 < c1 ? c0 : c1;
    }
}

// The pair whose whole multiples fit the groups best. The largest scale and minimum are put near
// the largest integer, a little above or below it.
static scales choose_scales(const group *groups, const qn_fit_input *input,
                            const qn_fit_affine_form *form) {
    const float high = (float)form->factor_high;
    float scale = 0, min = 0;
    for (int g = 0; g < form->groups; g++) {
        scale = groups[g].scale > scale ? groups[g].scale : scale;
        min = -groups[g].offset > min ? -groups[g].offset : min;
    }
    float dmin[LANES], per_dmin[LANES];
    for (int c = 0; c < LANES; c++) {
        dmin[c] = qn_fit_half_above(min / (high + 0.5f - 0.5f * (float)c), input);
        per_dmin[c] = dmin[c] > 0 ? 1 / dmin[c] : 0;
    }
    scales best = {0, 0};
    float best_cost = INFINITY;
    for (int i = 0; i < 2 * LANES; i++) {
        const float d = qn_fit_half_above(scale / (high + 0.5f - 0.5f * (float)i), input);
        float cost[LANES] = {0};
        for (int g = 0; g < form->groups; g++) add_costs(cost, &groups[g], d, dmin, per_dmin, high);
        for (int c = 0; c < LANES; c++)
            if (cost[c] < best_cost) best_cost = cost[c], best = (scales){d, dmin[c]};
    }
    return best;
}

// What a pair of scales gives: the best integers of each group, the error, and the sums over all
// values that improve the pair; u = factor * q and v = -shift are what d and dmin are multiplied
// with.
typedef struct trial {
    scales scales; // f16 both
    uint16_t d, dmin;
    uint8_t factor[QN_FIT_GROUPS], shift[QN_FIT_GROUPS];
    float rr, ru, rv, uu, uv, vv;
} trial;

static void try_integers(trial *to, int g, const group *found, const qn_fit_input *input,
                         const qn_fit_affine_form *form) {
    static const int8_t move[LANES][2] = {{0, -1}, {0, 0},  {0, 1}, {0, 2},
                                          {-1, 0}, {-1, 1}, {1, 0}, {1, 1}};
    const float d = to->scales.d, dmin = to->scales.dmin, high = (float)form->factor_high;
    const float per_d = d > 0 ? 1 / d : 0, per_dmin = dmin > 0 ? 1 / dmin : 0;
    const float nearest = clamp_round(found->scale * per_d, high);
    float factor[LANES], shift[LANES];
    lanes l;
    for (int c = 0; c < LANES; c++) {
        factor[c] = qn_fit_clamp(nearest + (float)move[c][0], 0, high);
        const float wanted = wanted_shift(found, d * factor[c], per_dmin);
        shift[c] =
            qn_fit_clamp((float)(int)qn_fit_clamp(wanted, 0, high) + (float)move[c][1], 0, high);
        l.scale[c] = d * factor[c];
        l.offset[c] = -dmin * shift[c];
    }
    const int at = g * form->size;
    measure(&l, input->x + at, input->w + at, form->size, (float)form->high);
    int best = 0;
    for (int c = 1; c < LANES; c++)
        if (l.rr[c] < l.rr[best]) best = c;
    const float f = factor[best], s = shift[best];
    to->factor[g] = (uint8_t)f;
    to->shift[g] = (uint8_t)s;
    to->rr += l.rr[best];
    to->ru += f * l.rq[best];
    to->rv -= s * l.r1[best];
    to->uu += f * f * l.qq[best];
    to->uv -= f * s * l.q1[best];
    to->vv += s * s * found->w;
}

static scales improve_scales(const trial *t) {
    const float det = t->uu * t->vv - t->uv * t->uv;
    scales to = t->scales;
    if (det > 1e-6f * t->uu * t->vv) {
        to.d += (t->ru * t->vv - t->rv * t->uv) / det;
        to.dmin += (t->rv * t->uu - t->ru * t->uv) / det;
    } else if (t->uu > 0) {
        to.d += t->ru / t->uu;
    }
    return to;
}

static trial search(const group *groups, const qn_fit_input *input,
                    const qn_fit_affine_form *form) {
    trial best = {.rr = INFINITY};
    scales next = choose_scales(groups, input, form);
    for (int round = 0; round < 2; round++) {
        trial now = {.scales = next};
        now.d = qn_fit_half(&now.scales.d, input);
        now.dmin = qn_fit_half(&now.scales.dmin, input);
        for (int g = 0; g < form->groups; g++) try_integers(&now, g, &groups[g], input, form);
        if (!(now.rr < best.rr)) break;
        best = now;
        next = improve_scales(&now);
        if (!(next.d > 0) || !(next.dmin >= 0)) break;
    }
    return best;
}

// --- levels of the values ------------------------------------------------------------------------

static void assign(uint8_t *to, const float *x, float scale, float offset,
                   const qn_fit_affine_form *form) {
    const float inverse = scale != 0 ? 1 / scale : 0;
    for (int i = 0; i < form->size; i++)
        to[i] = (uint8_t)clamp_round((x[i] - offset) * inverse, (float)form->high);
}

void qn_fit_affine(qn_fit_affine_result *to, const qn_fit_input *input,
                   const qn_fit_affine_form *form) {
    const float offset_high = form->groups == 1 ? INFINITY : 0;
    group groups[QN_FIT_GROUPS];
    for (int g = 0; g < form->groups; g++)
        groups[g] = fit_group(input->x + g * form->size, input->w + g * form->size, form,
                              offset_high, input->is_weighted);
    if (form->groups == 1) {
        float d = groups[0].scale, dmin = -groups[0].offset;
        to->d = qn_fit_half(&d, input);
        to->dmin = qn_fit_half(&dmin, input);
        assign(to->q, input->x, d, -dmin, form);
        return;
    }
    const trial best = search(groups, input, form);
    to->d = best.d;
    to->dmin = best.dmin;
    for (int g = 0; g < form->groups; g++) {
        to->factor[g] = best.factor[g];
        to->shift[g] = best.shift[g];
        assign(to->q + g * form->size, input->x + g * form->size,
               best.scales.d * (float)best.factor[g], -best.scales.dmin * (float)best.shift[g],
               form);
    }
}
