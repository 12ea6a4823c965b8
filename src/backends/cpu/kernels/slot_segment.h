// Recurrent state in slots: what a segment starts from, and where its rows go.
//
// A slot holds the state after the last certain row, and a log of the rows since. A step
// applies the first seg_accept logged rows, then the first seg_commit rows of the segment, and
// stores that; the rows after them run on a copy and are logged, the first at log index 0.
#ifndef QN_BACKENDS_CPU_KERNELS_SLOT_SEGMENT_H
#define QN_BACKENDS_CPU_KERNELS_SLOT_SEGMENT_H

#include "backends/cpu/kernels/level.h"

typedef struct segment {
    float *state, *log;  // of the segment's slot
    bool is_new;         // starts from zeros
    int64_t accept;      // logged rows to apply
    int64_t first, rows; // of the step
    int64_t commit;      // rows that change the slot
} segment;

static inline segment open_segment(const qn_task *task, int64_t seg) {
    const qn_step *step = task->step;
    const qn_slots_view *slots = task->slots;
    unsigned char *slot = slots->slots + step->seg_slot[seg] * slots->slot_bytes;
    segment s = {.state = (float *)(slot + slots->offset),
                 .log = (float *)(slot + slots->log_offset),
                 .is_new = step->seg_past[seg] == 0,
                 .accept = step->seg_past[seg] == 0 ? 0 : step->seg_accept[seg],
                 .first = step->seg_row[seg],
                 .rows = step->seg_row[seg + 1] - step->seg_row[seg],
                 .commit = step->seg_commit ? step->seg_commit[seg] : 0};
    if (s.commit > s.rows) s.commit = s.rows;
    return s;
}

// Rows of the step that belong to no segment: before the first and after the last.
static inline bool is_inert(const qn_step *step, int64_t row) {
    return row < step->seg_row[0] || row >= step->seg_row[step->n_segs];
}

#endif
