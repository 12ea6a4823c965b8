// How many rows of prompts a step takes beside rows that decode, by the times of earlier steps.
//
// A step that decodes takes d, mostly for reading weights; a row of a prompt adds c to it. With n
// of them the others wait d + n c for their next token, and a prompt of N rows takes N (c + d / n):
// few rows make the prompt slow, many make everybody else wait. n c = SHARE * d is between: the
// others wait 1 + SHARE times as long as without the prompt, and that takes 1 + 1 / SHARE times as
// long as alone. Few rows beside few others stay in the kernels for few rows, which take less than
// that.
#ifndef QN_SESSION_PROMPT_SHARE_H
#define QN_SESSION_PROMPT_SHARE_H

#include <stdbool.h>
#include <stdint.h>

// `{0}` knows nothing yet.
typedef struct qn_prompt_share {
    double row_ns; // c; 0: not known
} qn_prompt_share;

// A step with that many rows of prompts took `ns`; without them it would have taken decode_ns (0:
// not known).
void qn_prompt_share_add(qn_prompt_share *share, int64_t rows, int64_t ns, double decode_ns);
// Rows for a step of n_decoding others, which would take decode_ns without them (0: not known); at
// most `max`.
int64_t qn_prompt_share_rows(const qn_prompt_share *share, double decode_ns, int64_t n_decoding,
                             int64_t max);

#endif
