// The tokens that can still be chosen, by logit; the steps of a sampler narrow them down.
//
// They have one order: by descending logit, then id. A row of 150 000 logits is never sorted.
// At first the choices are the row itself, with the largest logit of each block of it; the best of
// them are listed when a step asks for them, and only those that it asks for are put in order.
#ifndef QN_GEN_CHOICES_H
#define QN_GEN_CHOICES_H

#include "core/err.h"
#include "gen/top_logits.h"

// A logit and an id as one number: larger is earlier in the order.
typedef uint64_t qn_choice;

typedef struct qn_choices {
    int64_t n_row;     // logits of a row
    int64_t n_vocab;   // the first n_vocab are choices
    int64_t n_blocks;  // of those
    const float *row;  // (n_row) logits; -inf: excluded
    float *own;        // (n_row) `row` once it was changed
    float *maxima;     // (n_blocks)
    qn_choice *blocks; // (n_blocks) scratch
    qn_choice *items;  // (n_vocab) those that are listed
    int64_t n;         // choices that are left
    int64_t n_listed;  // of them in `items`; the others come after all of these
    int64_t n_sorted;  // the first n_sorted items are in order
    float best;        // no logit that is left is larger
    float temperature; // logits are divided by it before they become probabilities
    bool is_changed;   // row has changed since the rest was set
} qn_choices;

// Caller storage; start from {0}. deinit is fine after a failure. Of n_row logits the first n_vocab
// are those of tokens; the others are never read.
QN_MUST_CHECK qn_status qn_choices_init(qn_choices *c, int64_t n_row, int64_t n_vocab, qn_err *err);
void qn_choices_deinit(qn_choices *c);

// All tokens of a row of logits, which is borrowed. Fails if the row is broken.
QN_MUST_CHECK qn_status qn_choices_begin(qn_choices *c, const float *logits, qn_err *err);
// The same for a row that is copied and not checked: numbers, and -inf for tokens that are
// excluded.
void qn_choices_begin_given(qn_choices *c, const float *logits);
// The first n in the order of a sound row, n > 0, and nothing else.
void qn_choices_begin_top(qn_choices *c, const qn_top_logit *top, int64_t n);

// The logits for writing, (n_row). They are already divided by the temperature so far. Writing
// the logit of a dropped choice does not bring it back.
float *qn_choices_write(qn_choices *c);
// As write, and excludes what has no bit in `allowed`.
void qn_choices_allow(qn_choices *c, const uint32_t *allowed);
int64_t qn_choices_count(qn_choices *c);

// Puts the first m in order, or all if there are fewer; returns how many are.
int64_t qn_choices_sort(qn_choices *c, int64_t m);
// The place in the order where the running sum of weights passes `target`, which is below the sum
// of all: item i, and the i before it are items 0 to i - 1, in any order.
int64_t qn_choices_find(qn_choices *c, uint64_t target);
void qn_choices_keep(qn_choices *c, int64_t m);
// Keeps item 0 to n - 1: as qn_choices_find leaves them.
void qn_choices_keep_items(qn_choices *c, int64_t n);
// Drops the first m, of more than m.
void qn_choices_drop(qn_choices *c, int64_t m);
// Keeps the logits that are not below `min`.
void qn_choices_keep_above(qn_choices *c, float min);
// Keeps those that are nearest to `centre`, in the order of distance, then id, up to the one whose
// running sum of weights passes `target`.
void qn_choices_keep_near(qn_choices *c, double centre, uint64_t target);
// The first in the order. There must be one.
int32_t qn_choices_first(qn_choices *c);

// Item i, which is listed.
int32_t qn_choices_id(const qn_choices *c, int64_t i);
float qn_choices_logit(const qn_choices *c, int64_t i);
uint64_t qn_choices_weight(const qn_choices *c, int64_t i);
// Of all that are left: sum of weights; mean by weight of (logit - best) / temperature; deviation
// of the logits.
uint64_t qn_choices_sum(qn_choices *c);
double qn_choices_mean(qn_choices *c);
double qn_choices_deviation(qn_choices *c);

#endif
