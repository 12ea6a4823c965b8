// The step table: what one step is about. Rows are the tokens of all sequences laid end to end; a
// segment is the run of rows that belongs to one sequence. Per-sequence facts are data, so that one
// graph serves prefill, decode, verification and any mixture of them.
#ifndef QN_IR_STEP_H
#define QN_IR_STEP_H

#include <stdint.h>

enum { QN_PAGE_ROWS = 64 }; // positions per page of a cache

// Borrowed arrays, constant during the step. T rows, B segments, R wanted rows.
typedef struct qn_step {
    int64_t n_rows, n_segs, n_out; // T, B, R; R may be 0
    const int32_t *ids;            // (T) token ids
    const int32_t *pos;            // (T, 4) rope positions t, h, w, extra: not the cache index
    const int32_t *row_seg;        // (T) segment of the row; -1: inert padding, writes nothing
    const int32_t *seg_row;        // (B + 1) first row of each segment
    const int32_t *seg_past;       // (B) rows already in state
    // (B, n_groups, pages_per_seg) page of positions 64 i ... 64 i + 63; -1: behind every window.
    // Layers that keep the same positions form a group; n_groups 0 counts as 1.
    const int32_t *seg_pages;
    int64_t pages_per_seg, n_groups;
    const int32_t *seg_slot;   // (B) slot of recurrent state
    const int32_t *seg_accept; // (B) rows of the slot's log that are applied before this step
    // (B) rows at the beginning of the segment that are accepted already: they change the slot's
    // state at once, the rest goes into its log. NULL: none
    const int32_t *seg_commit;
    const int32_t *seg_adapter; // (B) low-rank adapter; -1: none
    const int32_t *row_out;     // (R) rows whose logits are wanted
    // (R) whether all scores of a wanted row are wanted, or only the best; NULL: all of every row
    const int32_t *out_full;
    int64_t top;     // best entries that are wanted of each of them; 0: as many as the graph has
    int64_t entries; // the first so many scores of a row can be among the best; 0: all
} qn_step;

#endif
