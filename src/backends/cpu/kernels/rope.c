// Rotary positions: angles once per row, then pairs turned by them.
#include "backends/cpu/kernels/rope.h"

// Which of the four positions turns pair i: sections interleave as t h w t h w ..., the rest is t.
static int position_kind(const qn_list *sections, int64_t i) {
    if (i % 3 == 1 && i < 3 * sections->v[1]) return 1;
    if (i % 3 == 2 && i < 3 * sections->v[2]) return 2;
    return 0;
}

// Cosines and sines of a row, times the scale: `to` (2, n), `position` (4).
static void fill_angles(float *to, const float *frequency, int64_t n, const int32_t *position,
                        const qn_attrs *attrs) {
    const qn_list *sections = &attrs->sections;
    const float scale = attrs->scale;
    if (sections->v[1] == 0 && sections->v[2] == 0) {
        const double t = *position;
        for (int64_t i = 0; i < n; i++) {
            const turn at = math_turn(t * (double)frequency[i]);
            to[i] = at.cosine * scale;
            to[n + i] = at.sine * scale;
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const turn at =
            math_turn((double)position[position_kind(sections, i)] * (double)frequency[i]);
        to[i] = at.cosine * scale;
        to[n + i] = at.sine * scale;
    }
}

// frequencies (N), table -> (T, 2, N)
void QN_FN(angles)(const qn_task *task, int64_t piece, void *scratch) {
    (void)scratch;
    const qn_operand *frequency = &task->in[0];
    const qn_range rows = qn_cpu_cut_rows(task, piece);
    for (int64_t r = rows.first; r < rows.end; r++)
        fill_angles(row_of(&task->out[0], r), frequency->data, frequency->width,
                    task->step->pos + 4 * r, task->attrs);
}

static void rotate_row(const qn_task *task, int64_t r, const float *angles, const float *norm) {
    const qn_operand *x = &task->in[0]; // (T, H, E)
    for (int64_t h = 0; h < x->parts; h++)
        rotate_head(part_of(&task->out[0], r, h), part_of(x, r, h), angles, norm, x->width,
                    task->attrs);
}

// x (T, H, E), angles (T, 2, N), norm? (E)
void QN_FN(rotate)(const qn_task *task, int64_t piece, void *scratch) {
    (void)scratch;
    const qn_range rows = qn_cpu_cut_rows(task, piece);
    for (int64_t r = rows.first; r < rows.end; r++)
        rotate_row(task, r, row_of(&task->in[1], r), task->in[2].data);
}

// x (T, H, E), frequencies (N), table
void QN_FN(rope)(const qn_task *task, int64_t piece, void *scratch) {
    const qn_range rows = qn_cpu_cut_rows(task, piece);
    for (int64_t r = rows.first; r < rows.end; r++) {
        fill_angles(scratch, task->in[1].data, task->attrs->rotate / 2, task->step->pos + 4 * r,
                    task->attrs);
        rotate_row(task, r, scratch, NULL);
    }
}
