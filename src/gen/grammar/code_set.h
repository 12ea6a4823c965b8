// Sets of characters: ranges that are being collected, and what Unicode knows of characters.
#ifndef QN_GEN_GRAMMAR_CODE_SET_H
#define QN_GEN_GRAMMAR_CODE_SET_H

#include "gen/grammar/ast.h"

enum { QN_MAX_CODE = 0x10FFFF };

// Caller storage; {0} is empty, qn_gr_code_set_deinit frees.
typedef struct qn_gr_code_set {
    qn_gr_code_range *items;
    size_t n, cap;
} qn_gr_code_set;

void qn_gr_code_set_deinit(qn_gr_code_set *set);
QN_MUST_CHECK qn_status qn_gr_code_set_add(qn_gr_code_set *set, uint32_t lo, uint32_t hi,
                                           qn_err *err);
// Adds the ranges (ascending and apart), or, negated, all characters that are not in them.
QN_MUST_CHECK qn_status qn_gr_code_set_add_all(qn_gr_code_set *set, const qn_gr_code_range *ranges,
                                               size_t n, bool negated, qn_err *err);
// Ranges in any order -> ascending and apart; returns how many are left.
size_t qn_gr_ranges_sort(qn_gr_code_range *ranges, size_t n);

// What was looked up already, for one pattern. {0} is empty.
typedef struct qn_gr_unicode {
    qn_gr_code_range *runs; // of one category each, ascending
    uint8_t *categories;    // of the runs
    size_t n_runs, cap_runs, cap_categories;
    struct qn_gr_fold *folds; // by what they fold to
    size_t n_folds, cap_folds;
    uint64_t *steps; // a budget, used up
} qn_gr_unicode;

void qn_gr_unicode_deinit(qn_gr_unicode *unicode);
// Adds the characters of \p{name} (negated: of \P{name}): a general category by its short or long
// name, also as General_Category=..., or Any, Assigned, ASCII. Others are QN_UNSUPPORTED.
QN_MUST_CHECK qn_status qn_gr_unicode_property(qn_gr_code_set *set, qn_gr_unicode *unicode,
                                               qn_str name, bool negated, qn_err *err);
// Adds every character that differs from one of the set only in case (simple case folding). The set
// is sorted.
QN_MUST_CHECK qn_status qn_gr_unicode_fold(qn_gr_code_set *set, qn_gr_unicode *unicode,
                                           qn_err *err);

#endif
