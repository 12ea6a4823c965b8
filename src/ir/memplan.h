// The memory plan: where in the arena each buffer of a plan lies, for given sizes.
//
// Two buffers share bytes only if no call needs both. Buffers are placed in the order of their
// first use, each at the lowest address where it fits.
#ifndef QN_IR_MEMPLAN_H
#define QN_IR_MEMPLAN_H

#include "ir/plan.h"

enum { QN_BUFFER_ALIGN = 64 };

typedef struct qn_memplan_report {
    int64_t peak;  // bytes of the arena
    int64_t total; // bytes of all buffers: what an arena without reuse would take
} qn_memplan_report;

// `symbols` are the values of 1, T, B and R. offsets and `living` hold n_buffers each; `living` is
// scratch. Allocates nothing. False when a size overflows.
QN_MUST_CHECK bool qn_memplan(qn_memplan_report *out, int64_t *offsets, int32_t *living,
                              const qn_plan *plan, const int64_t symbols[QN_SYM_COUNT]);

// Bytes of a buffer, rounded up to the alignment; false on overflow.
QN_MUST_CHECK bool qn_buffer_bytes(int64_t *out, const qn_plan_buffer *buffer,
                                   const int64_t symbols[QN_SYM_COUNT]);

#endif
