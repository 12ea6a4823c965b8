// How many tokens to draft, from what steps cost and how often drafts are accepted. Nothing
// here decides what a text will be, only when it comes.
#ifndef QN_GEN_DRAFT_H
#define QN_GEN_DRAFT_H

#include "core/err.h"

enum { QN_COST_ROWS = 64 }; // larger steps are not looked at
// Where drafts come from: a test, n-gram lookup, a draft model.
enum { QN_GUESS_FN, QN_GUESS_LOOKUP, QN_GUESS_MODEL, QN_GUESS_SOURCES };

// Running figures of the time that a step takes, by its rows. `{0}` is empty.
typedef struct qn_step_costs {
    struct {
        double ns;
        uint32_t n; // measured so often
    } rows[QN_COST_ROWS + 1];
} qn_step_costs;

void qn_step_costs_add(qn_step_costs *costs, int64_t rows, int64_t ns);
// An estimate: measured, between two that are, or as it grew up to the largest; 0: unknown.
double qn_step_costs_get(const qn_step_costs *costs, int64_t rows);

// How one source of drafts did lately. `{0}` is empty.
typedef struct qn_draft_record {
    double right, wrong; // tokens verified, old ones counting less and less
    double ns;           // time to draft one token
    uint32_t idle;       // choices since the last draft
    uint32_t tries;      // drafts in a row that were made although they did not pay off
    bool is_known;       // there was a draft
} qn_draft_record;

// `drafted` tokens took `ns`, and `accepted` of them were right.
void qn_draft_record_add(qn_draft_record *record, int32_t drafted, int32_t accepted, int64_t ns);
// The draft length, 0 to `max`, that gives the most tokens per second, in a step that has
// `rows` rows without them. Where none pays off, now and then a few are tried anyway,
// more and more seldom.
int32_t qn_draft_choose(qn_draft_record *record, const qn_step_costs *costs, int64_t rows,
                        int32_t max);

#endif
