// The best of a row of scores, where that is all that is known of it.
#ifndef QN_GEN_BEST_H
#define QN_GEN_BEST_H

#include "core/err.h"

#define QN_SCORES_APART 1e-6f // scores that are nearer to each other are equal, all together

enum { QN_BEST_MOST = 64 }; // entries that can be asked for

typedef struct qn_score {
    float score;
    int32_t id;
} qn_score;

// Of a row of n scores.
typedef struct qn_row_facts {
    int64_t n;
    float least, most; // of the scores; least: the first that is not finite, if there is one
    int64_t broken;    // the entry of that one; -1: all are finite
} qn_row_facts;

// As qn_logits_check.
QN_MUST_CHECK qn_status qn_row_facts_check(const qn_row_facts *facts, qn_err *err);

#endif
