// The best of a row of logits, where that is all that is known of it.
#ifndef QN_GEN_BEST_H
#define QN_GEN_BEST_H

#include "core/err.h"

#define QN_MIN_SPREAD 1e-6f // a row whose logits span less is all equal

enum { QN_BEST_MOST = 64 }; // entries that can be asked for

typedef struct qn_score {
    float score;
    int32_t id;
} qn_score;

// Of a row of n logits.
typedef struct qn_row_facts {
    int64_t n;
    float least, most; // of the logits; least: the first that is not finite, if there is one
    int64_t broken;    // the entry of that one; -1: all are finite
} qn_row_facts;

// As qn_logits_check.
QN_MUST_CHECK qn_status qn_row_facts_check(const qn_row_facts *facts, qn_err *err);

#endif
