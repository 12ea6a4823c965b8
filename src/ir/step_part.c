#include "ir/step_part.h"

#include "core/mem.h"

#include <string.h>

// What a part has of a whole.
typedef struct part {
    const qn_step *whole;
    int64_t first, end;         // rows
    int64_t first_seg, end_seg; // that have some of them
    int64_t first_out, end_out; // wanted rows among them
    int64_t extra;              // given rows among them
} part;

static int64_t committed(const qn_step *step, int64_t b) {
    return step->seg_commit ? step->seg_commit[b] : 0;
}

int64_t qn_step_cut_row(const qn_step *step, int64_t row) {
    for (int64_t b = 0; b < step->n_segs; b++) {
        const int64_t first = step->seg_row[b], end = step->seg_row[b + 1];
        if (row <= first) return first;
        if (row < end) return row - first <= committed(step, b) ? row : first;
    }
    return step->n_rows;
}

qn_step_extent qn_step_measure_extent(const qn_step *step) {
    qn_step_extent e = {.rows = step->n_rows, .segs = step->n_segs, .outs = step->n_out};
    for (int64_t b = 0; b < step->n_segs; b++)
        e.cached = qn_max(e.cached, step->seg_past[b] + step->seg_row[b + 1] - step->seg_row[b]);
    return e;
}

static part find_part(const qn_step *whole, int64_t first, int64_t end) {
    part p = {.whole = whole, .first = first, .end = end};
    while (p.first_seg < whole->n_segs && whole->seg_row[p.first_seg + 1] <= first) p.first_seg++;
    p.end_seg = p.first_seg;
    while (p.end_seg < whole->n_segs && whole->seg_row[p.end_seg] < end) p.end_seg++;
    while (p.first_out < whole->n_out && whole->row_out[p.first_out] < first) p.first_out++;
    p.end_out = p.first_out;
    while (p.end_out < whole->n_out && whole->row_out[p.end_out] < end) p.end_out++;
    for (int64_t t = first; t < end && whole->extra_row; t++) p.extra += whole->extra_row[t] >= 0;
    return p;
}

static void copy_words(int32_t *to, const int32_t *from, int64_t n) {
    memcpy(to, from, (size_t)n * sizeof *to);
}

static void fill_rows(int32_t *message, const part *p) {
    const qn_step *w = p->whole;
    const int64_t n = p->end - p->first;
    int32_t *row_seg = qn_step_at(message, QN_STEP_ROW_SEG);
    int32_t *row_out = qn_step_at(message, QN_STEP_ROW_OUT);
    int32_t *out_full = qn_step_at(message, QN_STEP_OUT_FULL);
    copy_words(qn_step_at(message, QN_STEP_IDS), w->ids + p->first, n);
    copy_words(qn_step_at(message, QN_STEP_POS), w->pos + 4 * p->first, 4 * n);
    for (int64_t t = 0; t < n; t++) {
        const int32_t b = w->row_seg[p->first + t];
        row_seg[t] = b < 0 ? b : b - (int32_t)p->first_seg;
    }
    for (int64_t i = p->first_out; i < p->end_out; i++) {
        row_out[i - p->first_out] = w->row_out[i] - (int32_t)p->first;
        out_full[i - p->first_out] = w->out_full ? w->out_full[i] : 1;
    }
}

static void fill_given(int32_t *message, const part *p) {
    const qn_step *w = p->whole;
    int32_t *extra_row = qn_step_input(message, QN_STEP_EXTRA_ROW);
    float *extra = qn_step_input(message, QN_STEP_EXTRA);
    int32_t n = 0;
    for (int64_t t = p->first; t < p->end && extra_row; t++) {
        const int32_t from = w->extra_row[t];
        extra_row[t - p->first] = from < 0 ? from : n;
        if (from < 0) continue;
        memcpy(extra + n++ * w->extra_width, w->extra + from * w->extra_width,
               (size_t)w->extra_width * sizeof *extra);
    }
}

// Rows of a segment that an earlier part has computed are in its state, and nothing is in its log.
static void fill_segments(int32_t *message, const part *p) {
    const qn_step *w = p->whole;
    const int64_t tables = w->n_groups * w->pages_per_seg, n = p->end_seg - p->first_seg;
    int32_t *seg_row = qn_step_at(message, QN_STEP_SEG_ROW);
    int32_t *past = qn_step_at(message, QN_STEP_SEG_PAST);
    int32_t *accept = qn_step_at(message, QN_STEP_SEG_ACCEPT);
    int32_t *commit = qn_step_at(message, QN_STEP_SEG_COMMIT);
    for (int64_t i = 0; i < n; i++) {
        const int64_t b = p->first_seg + i;
        const int64_t begin = qn_max(w->seg_row[b], p->first);
        const int64_t done = begin - w->seg_row[b],
                      rows = qn_min(w->seg_row[b + 1], p->end) - begin;
        seg_row[i] = (int32_t)(begin - p->first);
        past[i] = w->seg_past[b] + (int32_t)done;
        accept[i] = done ? 0 : w->seg_accept[b];
        commit[i] = (int32_t)qn_min(rows, committed(w, b) - done);
        qn_step_at(message, QN_STEP_SEG_SLOT)[i] = w->seg_slot[b];
        qn_step_at(message, QN_STEP_SEG_ADAPTER)[i] = w->seg_adapter ? w->seg_adapter[b] : -1;
    }
    seg_row[n] = (int32_t)(p->end - p->first);
    copy_words(qn_step_at(message, QN_STEP_SEG_PAGES), w->seg_pages + p->first_seg * tables,
               n * tables);
}

size_t qn_step_part(int32_t *message, const qn_step *w, int64_t first, int64_t end) {
    const part p = find_part(w, first, end);
    const qn_step_sizes sizes = {.rows = end - first,
                                 .segs = p.end_seg - p.first_seg,
                                 .outs = p.end_out - p.first_out,
                                 .groups = w->n_groups,
                                 .pages = w->pages_per_seg,
                                 .extra = p.extra,
                                 .extra_width = p.extra ? w->extra_width : 0,
                                 .copies = first == 0 ? w->n_copies : 0};
    qn_step_begin(message, &sizes, w->top, w->entries);
    qn_step_set_computed(message, w->computed);
    fill_rows(message, &p);
    fill_given(message, &p);
    fill_segments(message, &p);
    if (sizes.copies)
        memcpy(qn_step_at(message, QN_STEP_COPIES), w->copies,
               (size_t)sizes.copies * sizeof *w->copies);
    return qn_step_words(message);
}
