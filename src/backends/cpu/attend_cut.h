// How attention is cut into pieces (pieces_seq.c): some rows and some heads of one kv head, and in
// steps of few rows behind many positions a run of chunks of these. What runs find lies in the
// memory that a call's pieces share until the stage after them merges it.
#ifndef QN_BACKENDS_CPU_ATTEND_CUT_H
#define QN_BACKENDS_CPU_ATTEND_CUT_H

#include "backends/cpu/cpu.h"

// Positions that are added up alone before they are merged with those before them.
enum { QN_ATTEND_CHUNK = 256 };
// Rows times heads that share the keys they read: scores of a page and sums of 128 values are 120
// KB then, a part of the second-level cache.
enum { QN_ATTEND_QUERIES = 96 };
// Floats before the sums of a chunk: its maximum, its total, and whether anything is seen (0, 1).
enum { QN_ATTEND_MAX, QN_ATTEND_TOTAL, QN_ATTEND_SEEN, QN_ATTEND_SUMS = 16 };

typedef struct qn_attend_cut {
    qn_range rows;
    int64_t kv, first_head, end_head;
    int64_t run, n_runs; // of the chunks that a segment's rows see; 1 run: nothing is shared
    bool is_last;        // nobody reads on after the kv head where this piece begins
} qn_attend_cut;

qn_attend_cut qn_cpu_cut_queries(const qn_task *task, int64_t piece);
// Rows times heads of a piece, at most: QN_ATTEND_QUERIES, or the heads of one row.
int64_t qn_cpu_attend_queries(const qn_task *task);
// Where the chunk `chunk` of a row and head lies in the shared memory: QN_ATTEND_SUMS floats, then
// sums (F, filled up to a multiple of 64).
float *qn_cpu_attend_chunk(const qn_task *task, int64_t row, int64_t head, int64_t chunk);

// merge: a row and the heads of a kv head. No rows: there is nothing to merge.
qn_attend_cut qn_cpu_cut_merge(const qn_task *task, int64_t piece);

#endif
