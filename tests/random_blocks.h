// Random numbers, and blocks of every numeric type made of them.
#ifndef QN_TESTS_RANDOM_BLOCKS_H
#define QN_TESTS_RANDOM_BLOCKS_H

#include "testing.h"

#include "quant/half.h"
#include "quant/type.h"

// --- random numbers ---

static inline uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

// In [-1, 1).
static inline float next_float(uint64_t *state) {
    return (float)(int32_t)(next_random(state) << 1) * 0x1p-31f;
}

// --- types ---

// Where the scales of a block are, and how many values share one (integer scales inside).
typedef struct kind {
    qn_type type;
    int scale_at, shift_at; // of f16 numbers; -1: none
    int group;
    bool has_integer_scales;
    float sign; // of the offset
} kind;

static const kind kinds[] = {
    {QN_TYPE_Q4_0, 0, -1, 32, false, 0},  {QN_TYPE_Q4_1, 0, 2, 32, false, 1},
    {QN_TYPE_Q5_0, 0, -1, 32, false, 0},  {QN_TYPE_Q5_1, 0, 2, 32, false, 1},
    {QN_TYPE_Q8_0, 0, -1, 32, false, 0},  {QN_TYPE_IQ4_NL, 0, -1, 32, false, 0},
    {QN_TYPE_MXFP4, 0, -1, 32, false, 0}, {QN_TYPE_Q2_K, 80, 82, 16, true, -1},
    {QN_TYPE_Q3_K, 108, -1, 16, true, 0}, {QN_TYPE_Q4_K, 0, 2, 32, true, -1},
    {QN_TYPE_Q5_K, 0, 2, 32, true, -1},   {QN_TYPE_Q6_K, 208, -1, 16, true, 0},
    {QN_TYPE_IQ4_XS, 0, -1, 32, true, 0}, {QN_TYPE_F32, -1, -1, 0, false, 0},
    {QN_TYPE_F16, -1, -1, 0, false, 0},   {QN_TYPE_BF16, -1, -1, 0, false, 0},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static inline bool is_float(const kind *k) { return k->group == 0; }

// Any bits for quants and integer scales, so that their extremes occur; reasonable float scales.
static inline void fill_block(uint8_t *block, const kind *k, uint64_t *seed) {
    const qn_type_info *info = qn_type_get(k->type);
    for (int i = 0; i < info->bytes; i++) block[i] = (uint8_t)next_random(seed);
    const float x = next_float(seed);
    if (k->type == QN_TYPE_MXFP4)
        block[0] = (uint8_t)(118 + next_random(seed) % 8);
    else if (is_float(k))
        info->pack(block, &x, 1, NULL);
    if (is_float(k) || k->type == QN_TYPE_MXFP4) return;
    qn_store_u16(block + k->scale_at, qn_half_encode(x * 0.01f));
    if (k->shift_at >= 0)
        qn_store_u16(block + k->shift_at, qn_half_encode(next_float(seed) * 0.01f));
}

static inline const kind *kind_of(qn_type type) {
    for (int i = 0; i < N_KINDS; i++) {
        if (kinds[i].type == type) return &kinds[i];
    }
    fail();
    return NULL;
}

#endif
