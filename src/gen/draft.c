#include "gen/draft.h"

#include <math.h>

enum {
    // The first steps of a size also bind a plan and warm caches: the minimum of this many counts.
    SURE = 3,
    // Choices without a draft before one is tried again, at first: a try of two tokens that fails
    // costs less than two steps in 64, 3%. Doubled after each failure, up to 64 << 5, 0.1%.
    PROBE = 64,
    PROBE_TOKENS = 2,
    MAX_TRIES = 5,
};

// Share of a new measurement in a running figure: other programs make steps slower, none faster.
// Not tuned: the figure follows a faster step within 4 steps, a slower one within 16.
static const double falling = 0.25, rising = 0.0625;
static const double forget = 0.95;   // of older drafts: the last 20 count; not tuned
static const double expected = 0.75; // share accepted before the first draft: tries early
static const double min_gain = 1.05; // less is within the noise of a measured step

// --- what steps cost -----------------------------------------------------------------------------

static double follow(double now, double new) {
    if (new > 4 * now) new = 4 * now; // an interrupted step says little
    return now + (new < now ? falling : rising) * (new - now);
}

void qn_step_costs_add(qn_step_costs *costs, int64_t rows, int64_t ns) {
    if (rows < 1 || rows > QN_COST_ROWS || ns <= 0) return;
    double *now = &costs->rows[rows].ns;
    uint32_t *n = &costs->rows[rows].n;
    if (*n == 0 || (*n < SURE && (double)ns < *now))
        *now = (double)ns;
    else if (*n >= SURE)
        *now = follow(*now, (double)ns);
    if (*n < SURE) ++*n;
}

// The next measured size from `rows` on, down or up; 0: none.
static int64_t find_measured(const qn_step_costs *costs, int64_t rows, int64_t by) {
    while (rows > 0 && rows <= QN_COST_ROWS && !costs->rows[rows].n) rows += by;
    return rows > QN_COST_ROWS ? 0 : rows;
}

double qn_step_costs_get(const qn_step_costs *costs, int64_t rows) {
    if (rows > QN_COST_ROWS) rows = QN_COST_ROWS;
    int64_t below = find_measured(costs, rows, -1), above = find_measured(costs, rows, 1);
    if (!below || below == above) return costs->rows[below].ns;
    if (!above) { // as it grew so far
        above = below;
        below = find_measured(costs, above - 1, -1);
        if (!below) return costs->rows[above].ns;
    }
    const double from = costs->rows[below].ns, to = costs->rows[above].ns;
    const double slope = (to - from) / (double)(above - below);
    return from + (slope > 0 ? slope : 0) * (double)(rows - below);
}

static bool has_larger(const qn_step_costs *costs, int64_t rows) {
    return find_measured(costs, rows + 1, 1) > 0;
}

// --- how drafts do ------------------------------------------------------------------------------

void qn_draft_record_add(qn_draft_record *record, int32_t drafted, int32_t accepted, int64_t ns) {
    if (drafted < 1) return;
    const double each = (double)ns / drafted;
    record->right = record->right * forget + accepted;
    record->wrong = record->wrong * forget + (accepted < drafted);
    record->ns = record->is_known ? follow(record->ns, each) : each;
    record->is_known = true;
}

static double share_of_right(const qn_draft_record *record) {
    return (record->right + expected) / (record->right + record->wrong + 1);
}

// The draft length that gives the most tokens per second.
static int32_t best_number(const qn_draft_record *record, const qn_step_costs *costs, int64_t rows,
                           int32_t max) {
    const double share = share_of_right(record), plain = qn_step_costs_get(costs, rows);
    if (plain <= 0) return 0; // measure that first
    if (!has_larger(costs, rows) && max > PROBE_TOKENS) max = PROBE_TOKENS;
    int32_t best = 0;
    double best_rate = min_gain / plain, tokens = 1, next = 1;
    for (int32_t k = 1; k <= max; k++) {
        next *= share;
        tokens += next;
        // More rows never take less time: where it looks so, other programs were busy.
        const double step = fmax(qn_step_costs_get(costs, rows + k), plain);
        const double rate = tokens / (step + k * record->ns);
        if (rate <= best_rate) continue;
        best_rate = rate;
        best = k;
    }
    return best;
}

int32_t qn_draft_choose(qn_draft_record *record, const qn_step_costs *costs, int64_t rows,
                        int32_t max) {
    int32_t best = best_number(record, costs, rows, max);
    if (best) {
        record->tries = 0;
    } else if (++record->idle >= (uint32_t)PROBE << record->tries) {
        best = max < PROBE_TOKENS ? max : PROBE_TOKENS;
        if (best && record->tries < MAX_TRIES) record->tries++;
    }
    if (best) record->idle = 0;
    return best;
}
