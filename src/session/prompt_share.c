#include "session/prompt_share.h"

#include "core/mem.h"

static const double SHARE = 1.4;
static const double FOLLOW = 0.25; // how far one step moves the figure; not tuned
enum {
    FIRST_ROWS = 32, // before anything is known; not tuned
    MIN_ROWS = 8,    // fewer do not pay for the step that they are in; not tuned
    SURE_ROWS = 8    // a step with fewer says little about one row
};

void qn_prompt_share_add(qn_prompt_share *share, int64_t rows, int64_t ns, double decode_ns) {
    const double each = ((double)ns - decode_ns) / (double)rows;
    if (rows < SURE_ROWS || decode_ns <= 0 || each <= 0) return;
    share->row_ns = share->row_ns > 0 ? share->row_ns + FOLLOW * (each - share->row_ns) : each;
}

int64_t qn_prompt_share_rows(const qn_prompt_share *share, double decode_ns, int64_t max) {
    if (share->row_ns <= 0 || decode_ns <= 0) return qn_min(FIRST_ROWS, max);
    const double rows = SHARE * decode_ns / share->row_ns;
    if (rows >= (double)max) return max;
    return qn_min(qn_max((int64_t)rows, MIN_ROWS), max);
}
