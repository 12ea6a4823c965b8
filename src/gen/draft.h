// How many tokens to draft, from what steps cost and how often drafts are accepted. Nothing here
// changes a text, only how fast it comes.
#ifndef QN_GEN_DRAFT_H
#define QN_GEN_DRAFT_H

#include "core/err.h"

enum { QN_COST_ROWS = 64 }; // larger steps are not measured
// Where drafts come from: a function of the caller's, n-gram lookup, the model's prediction head, a
// draft model.
enum { QN_DRAFT_FN, QN_DRAFT_LOOKUP, QN_DRAFT_HEAD, QN_DRAFT_MODEL, QN_DRAFT_SOURCES };

// Running figures of the time that a step takes, by its rows. `{0}` is empty.
typedef struct qn_step_costs {
    struct {
        double ns;
        uint32_t n; // measurements, counted up to SURE
    } rows[QN_COST_ROWS + 1];
} qn_step_costs;

void qn_step_costs_add(qn_step_costs *costs, int64_t rows, int64_t ns);
// An estimate: measured, interpolated, or extrapolated from the largest two; 0: unknown.
double qn_step_costs_get(const qn_step_costs *costs, int64_t rows);

// How one source of drafts did lately. `{0}` is empty.
typedef struct qn_draft_record {
    double right, wrong; // tokens verified, old ones counting less and less
    double ns;           // time to draft one token
    uint32_t idle;       // choices since the last draft
    uint32_t tries;      // drafts in a row that were made although they did not pay off
    bool is_known;       // there has been a draft
} qn_draft_record;

// `drafted` tokens took `ns`, and `accepted` of them were right.
void qn_draft_record_add(qn_draft_record *record, int32_t drafted, int32_t accepted, int64_t ns);
// The draft length, 0 to `max`, that gives the most tokens per second, in a step that has
// `rows` rows without them. Where none pays off, a few are still tried now and then, more and more
// rarely.
int32_t qn_draft_choose(qn_draft_record *record, const qn_step_costs *costs, int64_t rows,
                        int32_t max);

#endif
