// Cutting a step into smaller ones that are run one after the other.
#ifndef QN_IR_STEP_PART_H
#define QN_IR_STEP_PART_H

#include "ir/step.h"

// The last row before which a step can be cut, at most `row`: not inside rows of a segment that may
// be rolled back.
int64_t qn_step_cut_row(const qn_step *step, int64_t row);

// Writes the step of rows first ... end - 1 of another one; both are rows that qn_step_cut_row
// gives, or the ends. Run in order, the parts compute what the whole does, bit for bit. The first
// one has the copies. Returns its words.
size_t qn_step_part(int32_t *message, const qn_step *whole, int64_t first, int64_t end);

// The sizes of the binding of a step.
typedef struct qn_step_extent {
    int64_t rows, segs, outs, cached; // cached: max positions of a sequence after it
} qn_step_extent;
qn_step_extent qn_step_measure_extent(const qn_step *step);

#endif
