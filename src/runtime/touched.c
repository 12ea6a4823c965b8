#include "runtime/record.h"

#include "core/mem.h"

static int64_t count_pages(const qn_step_limits *limits, int64_t group) {
    int64_t n = 0;
    for (int64_t g = 0; g < group; g++) n += limits->n_pages[g];
    return n;
}

qn_status qn_touched_init(qn_touched *t, const qn_state *state, int64_t max_bytes, qn_err *err) {
    qn_step_limits limits = {0};
    qn_state_limits(&limits, state);
    t->pages = qn_alloc((size_t)count_pages(&limits, limits.n_groups) / 8 + 1, 1);
    t->slots = qn_alloc((size_t)limits.n_slots / 8 + 1, 1);
    t->bytes = 0;
    t->max_bytes = max_bytes;
    return t->pages && t->slots ? QN_OK : QN_NOMEM(err, "a record of steps");
}

void qn_touched_deinit(qn_touched *t) {
    qn_free(t->pages);
    qn_free(t->slots);
}

static void add(qn_touched *t, unsigned char *bits, int64_t i, int64_t bytes) {
    const unsigned char bit = (unsigned char)(1 << i % 8);
    if (bits[i / 8] & bit) return;
    bits[i / 8] |= bit;
    t->bytes += bytes;
}

static void add_segment(qn_touched *t, const qn_state *state, const qn_step *step, int64_t b) {
    qn_step_limits limits = {0};
    qn_state_limits(&limits, state);
    const int64_t past = step->seg_past[b], end = past + step->seg_row[b + 1] - step->seg_row[b];
    if (limits.n_slots) add(t, t->slots, step->seg_slot[b], qn_state_slot_bytes(state));
    for (int64_t g = 0; g < step->n_groups; g++) {
        const int32_t *pages = step->seg_pages + (b * step->n_groups + g) * step->pages_per_seg;
        for (int64_t i = past / QN_PAGE_ROWS; i * QN_PAGE_ROWS < end; i++)
            add(t, t->pages, count_pages(&limits, g) + pages[i], qn_state_page_bytes(state, g));
    }
}

qn_status qn_touched_add(qn_touched *t, const qn_state *state, const qn_step *step, qn_err *err) {
    qn_step_limits limits = {0};
    qn_state_limits(&limits, state);
    for (int64_t i = 0; i < step->n_copies; i++) {
        const qn_copy *c = &step->copies[i];
        if (c->kind == QN_COPY_SLOT)
            add(t, t->slots, c->to, qn_state_slot_bytes(state));
        else
            add(t, t->pages, count_pages(&limits, c->group) + c->to,
                qn_state_page_bytes(state, c->group));
    }
    for (int64_t b = 0; b < step->n_segs; b++) add_segment(t, state, step, b);
    if (t->bytes <= t->max_bytes) return QN_OK;
    return QN_FAIL(err, MEMORY, "keys, values and states of %lld bytes, %lld are free",
                   (long long)t->bytes, (long long)t->max_bytes);
}
