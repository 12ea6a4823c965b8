// Numeric types of tensors: one row in types.def and one file each.
//
// A tensor row is a whole number of blocks; a block holds `block` values in `bytes` bytes, with its
// scales inside, little endian, unaligned. The functions here are the reference: plain, portable,
// byte-exact with the GGUF format. Fast kernels are measured against them.
#ifndef QN_QUANT_TYPE_H
#define QN_QUANT_TYPE_H

#include "core/err.h"

typedef enum qn_type {
#define TYPE(name, gguf, block, bytes, safetensors, support) QN_TYPE_##name,
#include "quant/types.def"
#undef TYPE
    QN_TYPE_COUNT
} qn_type;

typedef struct qn_type_info {
    const char *name;
    int gguf_id;             // number in a GGUF tensor table, -1 if it has none
    int block, bytes;        // values and bytes per block
    const char *safetensors; // dtype in a safetensors header, NULL if it has none
    // n values, a multiple of `block`. NULL in all three: the type is only named.
    void (*unpack)(float *to, const void *from, int64_t n);
    // sum of w[i] * x[i], i ascending, each block's values unpacked to float first.
    float (*dot)(const void *w, const float *x, int64_t n);
    // One row of n values into blocks, with as little error as the search finds. `weights`, one for
    // each value, make an error count that many times; NULL: all alike. Types without a search
    // (F32, F16, BF16, Q8_0, Q8_K) round and ignore them. The same input gives the same bytes
    // everywhere. F32, F16 and BF16 keep what is not finite; in a block, a NaN becomes 0 and an
    // infinity the largest number there is room for, at the cost of its neighbours: refuse such
    // rows before.
    void (*pack)(void *to, const float *from, int64_t n, const float *weights);
} qn_type_info;

// The row of a type; never NULL.
const qn_type_info *qn_type_get(qn_type type);
// The type with this GGUF number (or safetensors dtype); false if there is none, also for numbers
// that GGUF has retired. *out is then untouched.
bool qn_type_from_gguf(qn_type *out, uint32_t id);
bool qn_type_from_safetensors(qn_type *out, const char *dtype);
// The type of this name, letters of any case ("q4_k", "BF16").
bool qn_type_from_name(qn_type *out, const char *name);
// Bytes of `n` values; false when n is negative, no multiple of the block, or the product
// overflows. *out is then untouched.
QN_MUST_CHECK bool qn_type_bytes(int64_t *out, qn_type type, int64_t n);
// True when unpack, dot and pack exist.
bool qn_type_is_supported(qn_type type);

#endif
