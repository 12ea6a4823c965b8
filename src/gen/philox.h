// Philox4x32-10, a counter-based random generator: the same (key, counter) gives the same numbers
// on every machine, in any order, so a draw never depends on what was drawn before. Salmon, Moraes,
// Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3" (2011).
#ifndef QN_GEN_PHILOX_H
#define QN_GEN_PHILOX_H

#include <stddef.h>
#include <stdint.h>

typedef struct qn_philox {
    uint32_t v[4];
} qn_philox;

// Ten rounds on `counter` with the key's low and high words.
qn_philox qn_philox_block(qn_philox counter, uint64_t key);

// A number in [0, 1) for one draw of a generation: the seed is the key, the counter holds the
// position of the token in its sequence, the completion's number and the draw's number.
float qn_philox_uniform(uint64_t seed, uint64_t position, uint32_t completion, uint32_t draw);

// `n` bytes of the blocks with counters (0, ...), (1, ...) and so on: v[0] of `counter` counts.
void qn_philox_fill(uint8_t *to, size_t n, qn_philox counter, uint64_t key);

#endif
