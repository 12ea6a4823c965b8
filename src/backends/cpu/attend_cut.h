// How attention is cut into pieces (pieces_seq.c): some rows and some heads of one kv head.
#ifndef QN_BACKENDS_CPU_ATTEND_CUT_H
#define QN_BACKENDS_CPU_ATTEND_CUT_H

#include "backends/cpu/cpu.h"

// Rows times heads that share the keys they read: scores of a page and sums of 128 values are 48 KB
// then, a part of the second-level cache. Not measured.
enum { QN_ATTEND_QUERIES = 64 };

typedef struct qn_attend_cut {
    qn_range rows;
    int64_t kv, first_head, end_head;
} qn_attend_cut;

qn_attend_cut qn_cpu_cut_queries(const qn_task *task, int64_t piece);
// Rows times heads of a piece, at most: QN_ATTEND_QUERIES, or the heads of one row.
int64_t qn_cpu_attend_queries(const qn_task *task);

#endif
