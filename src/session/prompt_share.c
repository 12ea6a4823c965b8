#include "session/prompt_share.h"

#include "core/mem.h"

static const double SHARE = 1.2;
static const double FOLLOW = 0.25; // how far one step moves the figure; not tuned
enum {
    FEW_ROWS = 8, // steps of up to so many rows are computed by kernels of their own
    MIN_ROWS = 4, // fewer do not pay for the step that they are in
    WIDE_ROWS =
        16 // fewer do not pay for leaving those kernels: 12 rows took twice as long as 4, and
           // 36 three times (qwen3-0.6b Q4_K_M, AVX-512, 8 threads)
};

void qn_prompt_share_add(qn_prompt_share *share, int64_t rows, int64_t ns, double decode_ns) {
    const double each = ((double)ns - decode_ns) / (double)rows;
    if (rows < MIN_ROWS || decode_ns <= 0 || each <= 0) return;
    share->row_ns = share->row_ns > 0 ? share->row_ns + FOLLOW * (each - share->row_ns) : each;
}

int64_t qn_prompt_share_rows(const qn_prompt_share *share, double decode_ns, int64_t n_decoding,
                             int64_t max) {
    const int64_t few = FEW_ROWS - n_decoding;
    const bool is_known = share->row_ns > 0 && decode_ns > 0;
    const double rows = is_known ? SHARE * decode_ns / share->row_ns : 0;
    if (rows >= (double)max) return max;
    if (rows < WIDE_ROWS && few >= MIN_ROWS) return qn_min(few, max);
    return qn_min(qn_max((int64_t)rows, is_known ? MIN_ROWS : WIDE_ROWS), max);
}
