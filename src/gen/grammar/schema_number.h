// Numbers of a schema: bounds and multiples, for the two files that write them.
#ifndef QN_GEN_GRAMMAR_SCHEMA_NUMBER_H
#define QN_GEN_GRAMMAR_SCHEMA_NUMBER_H

#include "gen/grammar/decimal.h"
#include "gen/grammar/schema.h"

enum { QN_BOUND_DIGITS = 40, QN_STEPS_MAX = 4 };

typedef struct qn_gr_limit {
    bool is_there, is_strict;
    qn_gr_decimal value;
} qn_gr_limit;

// A number must be a multiple of step / 10^scale.
typedef struct qn_gr_number_step {
    uint64_t step;
    unsigned scale;
} qn_gr_number_step;

typedef struct qn_gr_number_limits {
    qn_gr_limit min, max;
    uint64_t step; // of all multipleOf together; 0: none
    unsigned scale;
    qn_gr_number_step not_of[QN_STEPS_MAX]; // what it must not be a multiple of
    size_t n_not;
    const qn_gr_where *where; // of a multipleOf
} qn_gr_number_limits;

// Numbers of one sign, without it: lo is there (and may be 0).
typedef struct qn_gr_number_side {
    qn_gr_limit lo, hi;
    bool is_whole; // no fraction is written
} qn_gr_number_side;

QN_MUST_CHECK qn_status qn_gr_schema_read_steps(qn_gr_number_limits *l, qn_gr_schema *s,
                                                const qn_gr_member *member);
QN_MUST_CHECK qn_status qn_gr_schema_add_step(qn_gr_number_limits *l, qn_gr_schema *s,
                                              uint64_t step, unsigned scale, bool is_not,
                                              const qn_gr_where *where);
// The numbers of a side that are multiples as `l` wants them.
QN_MUST_CHECK qn_status qn_gr_schema_multiples(int32_t *out, qn_gr_schema *s,
                                               const qn_gr_number_limits *l,
                                               const qn_gr_number_side *side);

#endif
