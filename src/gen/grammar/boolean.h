// Boolean functions of numbered variables, as binary decision diagrams: equal functions are one
// number, so that comparing is comparing numbers.
//
// Failure (memory, too many, no steps left) is sticky: compute freely, look at `failed` in the end.
#ifndef QN_GEN_GRAMMAR_BOOLEAN_H
#define QN_GEN_GRAMMAR_BOOLEAN_H

#include "core/err.h"

enum { QN_BOOL_FALSE = 0, QN_BOOL_TRUE = 1, QN_BOOLS_MAX = 1 << 18 };

// A function: if variable `var` then `high` else `low`; these are smaller numbers, of larger
// variables.
typedef struct qn_gr_bool {
    uint32_t var;
    int32_t low, high;
} qn_gr_bool;

typedef struct qn_gr_bool_slot {
    uint32_t key[3]; // key[0] 0: free
    int32_t value;
} qn_gr_bool_slot;

typedef struct qn_gr_bool_table {
    qn_gr_bool_slot *slots;
    size_t n, cap;
} qn_gr_bool_table;

typedef struct qn_gr_bool_frame {
    uint32_t op;
    int32_t a, b, low, stage;
} qn_gr_bool_frame;

// Caller storage.
typedef struct qn_gr_bools {
    qn_gr_bool *items;
    size_t n, cap;
    qn_gr_bool_table known; // functions
    qn_gr_bool_table done;  // operations
    qn_gr_bool_frame *work;
    size_t cap_work;
    uint64_t *steps;  // a budget, used up
    qn_status failed; // QN_OK, QN_MEMORY or QN_LIMIT
} qn_gr_bools;

QN_MUST_CHECK qn_status qn_gr_bools_init(qn_gr_bools *out, uint64_t *steps, qn_err *err);
void qn_gr_bools_deinit(qn_gr_bools *bools);
int32_t qn_gr_bool_var(qn_gr_bools *bools, uint32_t var);
int32_t qn_gr_bool_and(qn_gr_bools *bools, int32_t a, int32_t b);
int32_t qn_gr_bool_or(qn_gr_bools *bools, int32_t a, int32_t b);
int32_t qn_gr_bool_not(qn_gr_bools *bools, int32_t a);
int32_t qn_gr_bool_if(qn_gr_bools *bools, int32_t c, int32_t a, int32_t b);

#endif
