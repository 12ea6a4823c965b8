#include "quant/fit.h"

#include <math.h>

// Scales tried at the same time, so that loops over them become vectors.
enum { LANES = 8 };

typedef struct lanes {
    float scale[LANES], inverse[LANES];
    // Sums over the values of w * residual^2, w * residual * q and w * q^2, the residual being
    // x - scale * q. From residuals rather than from products of x, which would lose the error of a
    // fine type to cancellation.
    float rr[LANES], rq[LANES], qq[LANES];
} lanes;

// --- levels --------------------------------------------------------------------------------------

// The IQ4 level nearest to t: each boundary that t exceeds adds the step to the next level.
static inline float nearest_iq4(float t) {
    static const float step[15] = {23, 21, 18, 16, 14, 13, 12, 11, 12, 12, 13, 15, 16, 20, 24};
    static const float boundary[15] = {-115.5f, -93.5f, -74,   -57,   -42, -28.5f, -16, -4.5f,
                                       7,       19,     31.5f, 45.5f, 61,  79,     101};
    float level = -127;
    for (int i = 0; i < 15; i++) level += t > boundary[i] ? step[i] : 0;
    return level;
}

static inline float nearest(float t, const qn_fit_scale_form *form, bool is_iq4) {
    if (is_iq4) return nearest_iq4(t);
    return qn_fit_round(qn_fit_clamp(t, (float)form->low, (float)form->high));
}

// Two values at a time: sums of one value at a time look to gcc like something to be made vectors
// along the values, which is half as fast as along the lanes.
static inline void measure_levels(lanes *l, const float *x, const float *w,
                                  const qn_fit_scale_form *form, bool is_iq4) {
    lanes s = {0};
    for (int c = 0; c < LANES; c++) {
        s.scale[c] = l->scale[c];
        s.inverse[c] = l->scale[c] != 0 ? 1 / l->scale[c] : 0;
    }
    for (int i = 0; i < form->size; i += 2)
        for (int c = 0; c < LANES; c++) {
            const float q = nearest(x[i] * s.inverse[c], form, is_iq4);
            const float next_q = nearest(x[i + 1] * s.inverse[c], form, is_iq4);
            const float r = x[i] - s.scale[c] * q, next_r = x[i + 1] - s.scale[c] * next_q;
            s.rr[c] = s.rr[c] + w[i] * r * r + w[i + 1] * next_r * next_r;
            s.rq[c] = s.rq[c] + w[i] * r * q + w[i + 1] * next_r * next_q;
            s.qq[c] = s.qq[c] + w[i] * q * q + w[i + 1] * next_q * next_q;
        }
    *l = s;
}

// Fills the sums of the lanes from their scales.
static void measure(lanes *l, const float *x, const float *w, const qn_fit_scale_form *form) {
    if (form->is_iq4)
        measure_levels(l, x, w, form, true);
    else
        measure_levels(l, x, w, form, false);
}

// --- one group -----------------------------------------------------------------------------------

typedef struct group {
    float scale;
    float error;     // at that scale
    float curvature; // error grows by this times the square of a change of the scale
} group;

// Moves each lane to the best scale for its levels and keeps the best lane.
static void improve(group *best, lanes *l) {
    for (int c = 0; c < LANES; c++) {
        if (!(l->qq[c] > 0)) continue;
        const float step = l->rq[c] / l->qq[c];
        l->scale[c] += step;
        const float error = l->rr[c] - step * l->rq[c];
        if (error < best->error)
            *best = (group){.scale = l->scale[c], .error = error, .curvature = l->qq[c]};
    }
}

static float largest(const float *x, int n) {
    float max = 0;
    for (int i = 0; i < n; i++) max = max > fabsf(x[i]) ? max : fabsf(x[i]);
    return max;
}

// The level at which the largest value lies at start c. With weights, the largest value may be one
// that does not count and is better cut off: the starts from NARROW on.
enum { NARROW = 8, WIDE = 8 };
static float start_reach(int c, const qn_fit_scale_form *form) {
    const float end = form->is_iq4 ? 127 * 1.06f : 0.5f - (float)form->low;
    const float step = form->is_iq4 ? 127 * 0.06f : 0.5f;
    return c < NARROW ? end - step * (float)c : end * (1 - (float)(c - NARROW + 1) / 12);
}

// Starts of both signs, then a finer search around the best.
static group fit_group(const float *x, const float *w, const qn_fit_scale_form *form,
                       bool is_weighted) {
    group best = {.scale = 0, .error = INFINITY, .curvature = 0};
    const float max = largest(x, form->size);
    if (!(max > 0)) return best;
    const int n_starts = is_weighted ? NARROW + WIDE : form->is_iq4 ? NARROW / 2 : NARROW;
    lanes l;
    for (int start = 0; start < n_starts; start += LANES / 2) {
        for (int c = 0; c < LANES; c += 2) {
            l.scale[c] = max / start_reach(start + c / 2, form);
            l.scale[c + 1] = -l.scale[c];
        }
        measure(&l, x, w, form);
        improve(&best, &l);
    }
    for (int round = 0; round < (is_weighted ? 2 : 1); round++) {
        const float centre = best.scale;
        const float step = centre * (form->is_iq4 ? 0.01f : -0.2f / (float)form->low);
        for (int c = 0; c < LANES; c++) l.scale[c] = centre + step * (float)(c - 3);
        measure(&l, x, w, form);
        improve(&best, &l);
    }
    return best;
}

// --- the scale of scales -------------------------------------------------------------------------

static int clamp_int(int x, int low, int high) { return x < low ? low : x > high ? high : x; }

// Adds how much the error of one group grows, by estimate, when its scale becomes a multiple of d.
static void add_costs(float *cost, const group *g, const float *d, const qn_fit_scale_form *form) {
    const float low = (float)form->factor_low, high = (float)form->factor_high;
    for (int c = 0; c < LANES; c++) {
        const float factor = qn_fit_round(qn_fit_clamp(g->scale / d[c], low, high));
        const float off = g->scale - d[c] * factor;
        cost[c] += g->curvature * off * off;
    }
}

// The d whose multiples fit the scales of the groups best; it puts the largest one near an end of
// the factors.
static float choose_d(const group *groups, const qn_fit_input *input,
                      const qn_fit_scale_form *form) {
    float max = 0;
    for (int g = 0; g < form->groups; g++)
        if (fabsf(groups[g].scale) > fabsf(max)) max = groups[g].scale;
    float best = 0, best_cost = INFINITY;
    for (int start = 0; start < 16; start += LANES / 2) {
        float d[LANES], cost[LANES] = {0};
        for (int c = 0; c < LANES; c += 2) {
            const int quarters = start + c / 2;
            const float reach = 0.5f - (float)form->factor_low - 0.25f * (float)quarters;
            d[c] = qn_fit_half_above(max / reach, input);
            d[c + 1] = -d[c];
        }
        for (int g = 0; g < form->groups; g++) add_costs(cost, &groups[g], d, form);
        for (int c = 0; c < LANES; c++)
            if (cost[c] < best_cost) best_cost = cost[c], best = d[c];
    }
    return best;
}

// What a d gives: the best factor of each group, the error, and the sums that improve d.
typedef struct trial {
    float d; // an f16
    uint16_t half;
    int8_t factor[QN_FIT_GROUPS];
    float rr, rq, qq;
} trial;

static void try_factors(trial *to, int g, const group *found, const qn_fit_input *input,
                        const qn_fit_scale_form *form) {
    const float inverse = to->d != 0 ? 1 / to->d : 0;
    const float wanted =
        qn_fit_clamp(found->scale * inverse, (float)form->factor_low, (float)form->factor_high);
    const int near = (int)qn_fit_round(wanted) - LANES / 2;
    lanes l;
    int factor[LANES];
    for (int c = 0; c < LANES; c++) {
        factor[c] = clamp_int(near + c, form->factor_low, form->factor_high);
        l.scale[c] = to->d * (float)factor[c];
    }
    const int at = g * form->size;
    measure(&l, input->x + at, input->w + at, form);
    int best = 0;
    for (int c = 1; c < LANES; c++)
        if (l.rr[c] < l.rr[best]) best = c;
    const float f = (float)factor[best];
    to->factor[g] = (int8_t)factor[best];
    to->rr += l.rr[best];
    to->rq += f * l.rq[best];
    to->qq += f * f * l.qq[best];
}

static trial search(const group *groups, const qn_fit_input *input, const qn_fit_scale_form *form) {
    trial best = {.rr = INFINITY};
    float d = choose_d(groups, input, form);
    for (int round = 0; round < 2; round++) {
        trial now = {.d = d};
        now.half = qn_fit_half(&now.d, input);
        for (int g = 0; g < form->groups; g++) try_factors(&now, g, &groups[g], input, form);
        if (!(now.rr < best.rr)) break;
        best = now;
        if (!(now.qq > 0)) break;
        d = now.d + now.rq / now.qq;
    }
    return best;
}

// --- levels of the values ------------------------------------------------------------------------

static void assign(uint8_t *to, const float *x, float scale, const qn_fit_scale_form *form) {
    const float inverse = scale != 0 ? 1 / scale : 0;
    const float low = (float)form->low, high = (float)form->high;
    if (form->is_iq4)
        for (int i = 0; i < form->size; i++) {
            const float level = nearest_iq4(x[i] * inverse);
            int index = 0;
            for (int k = 1; k < 16; k++) index += (float)qn_iq4_level(k) <= level;
            to[i] = (uint8_t)index;
        }
    else
        for (int i = 0; i < form->size; i++) {
            const float q = qn_fit_round(qn_fit_clamp(x[i] * inverse, low, high));
            to[i] = (uint8_t)((int)q - form->low);
        }
}

void qn_fit_scale(qn_fit_scale_result *to, const qn_fit_input *input,
                  const qn_fit_scale_form *form) {
    group groups[QN_FIT_GROUPS];
    for (int g = 0; g < form->groups; g++)
        groups[g] = fit_group(input->x + g * form->size, input->w + g * form->size, form,
                              input->is_weighted);
    if (form->groups == 1) {
        float d = groups[0].scale;
        to->d = qn_fit_half(&d, input);
        assign(to->q, input->x, d, form);
        return;
    }
    const trial best = search(groups, input, form);
    to->d = best.half;
    for (int g = 0; g < form->groups; g++) {
        to->factor[g] = best.factor[g];
        assign(to->q + g * form->size, input->x + g * form->size, best.d * (float)best.factor[g],
               form);
    }
}
