// Runs one op of a graph on a CPU backend, with a task made by hand: operands with gaps between
// their rows, results framed by guards, scratch full of NaN, pieces in any order.
#ifndef QN_TESTS_TASK_H
#define QN_TESTS_TASK_H

#include "backends/cpu/cpu.h"

enum { TASK_ROWS = 2400, TASK_SEGS = 4, TASK_PAGES = 37 }; // pages per slot

// A segment: `rows` rows behind `past`, of the sequence in `slot`; adapters count from 1, 0: none.
typedef struct task_seg {
    int32_t past, rows, slot, accept, commit, adapter;
} task_seg;

// A step table and its arrays. The positions of slot s lie in pages s * TASK_PAGES ..., out of
// order.
typedef struct task_step {
    qn_step step;
    int32_t ids[TASK_ROWS], pos[TASK_ROWS * 4], row_seg[TASK_ROWS], row_out[TASK_ROWS];
    int32_t seg_row[TASK_SEGS + 1], seg_past[TASK_SEGS], seg_pages[TASK_SEGS * TASK_PAGES];
    int32_t seg_slot[TASK_SEGS], seg_accept[TASK_SEGS], seg_commit[TASK_SEGS];
    int32_t seg_adapter[TASK_SEGS];
} task_step;

// `n_inert` padding rows stand behind the segments; wanted rows are every other one, from the last.
void task_step_init(task_step *s, const task_seg *segs, int64_t n_segs, int64_t n_inert);

typedef struct task_call {
    const qn_graph *graph;
    const qn_node *node;
    const void *data[QN_MAX_IN]; // dense elements of each tensor that is an input
    const qn_step *step;
    const qn_cache_view *cache;
    const qn_slots_view *slots;
    int order; // of the pieces: 0 forward, 1 backward, 2 odd ones first
} task_call;

// All stages of the op's recipe. outs[i] gets the dense rows of result i (NULL where it is no
// tensor); release with qn_free. Fails the test when a kernel writes outside its results.
void task_run(void *outs[QN_MAX_OUT], const task_call *call, const qn_cpu_level *backend);

// Bytes of one row of a result or input of the node, and how many rows it has in the step.
int64_t task_row_bytes(const task_call *call, int32_t value);
int64_t task_rows(const task_call *call, int32_t value);

// Numbers in [-1, 1) that depend on their index and a salt only.
void task_fill(float *to, int64_t n, uint32_t salt);

#endif
