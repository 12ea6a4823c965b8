// The probes of a level. Sums are many and independent, so that no instruction waits for the one
// before it; each is written as the one instruction that is meant, for compilers may spill or merge
// what they understand.
#include "backends/cpu/probe.h"

#include "backends/cpu/kernels/level.h"

#if defined(__AVX512VNNI__)
enum { BYTES = 64 };
#elif defined(__AVX2__)
enum { BYTES = 32 };
#else
enum { BYTES = 16 };
#endif
typedef uint64_t u64v __attribute__((vector_size(BYTES)));
typedef int32_t i32v __attribute__((vector_size(BYTES)));
typedef int16_t i16v __attribute__((vector_size(BYTES)));
typedef float f32v __attribute__((vector_size(BYTES)));

qn_probe_read_fn QN_FN(probe_read);
qn_probe_peak_fn QN_FN(probe_f32);

// --- reading -------------------------------------------------------------------------------------

void QN_FN(probe_read)(uint64_t *sink, const void *from, int64_t bytes, int streams) {
    enum { LINES = 8, RUN = LINES * 64, N = RUN / BYTES };
    const unsigned char *at = from;
    const int64_t part = bytes / streams;
    u64v sums[8] = {0};
    for (int64_t i = 0; i < part; i += RUN) {
        for (int s = 0; s < streams; s++) {
            const u64v *x = (const u64v *)(const void *)(at + s * part + i);
            for (int k = 0; k < N; k++) sums[k % 8] |= x[k];
        }
    }
    u64v sum = sums[0];
    for (int k = 1; k < 8; k++) sum |= sums[k];
    for (size_t k = 0; k < sizeof sum / 8; k++) *sink |= sum[k];
}

// --- multiply-adds -------------------------------------------------------------------------------

// 12 sums: a latency of five cycles at two instructions a cycle, and registers left for factors.
#define EACH_SUM(STEP)                                                                             \
    STEP(a) STEP(b) STEP(c) STEP(d) STEP(e) STEP(f) STEP(g) STEP(h) STEP(i) STEP(j) STEP(k) STEP(l)
enum { SUMS = 12 };

// The body of a probe: factors x and y that the compiler does not know, rounds of one STEP a sum.
#define PROBE(vector, STEP, operations)                                                            \
    const vector x = (vector){0} + unknown, y = x;                                                 \
    vector a = x, b = x, c = x, d = x, e = x, f = x, g = x, h = x, i = x, j = x, k = x, l = x;     \
    for (int64_t r = 0; r < rounds; r++) {                                                         \
        EACH_SUM(STEP)                                                                             \
    }                                                                                              \
    a = a + b + c + d + e + f + g + h + i + j + k + l;                                             \
    *sink |= (uint64_t)a[0];                                                                       \
    return (double)(operations)*SUMS * (double)rounds;

double QN_FN(probe_f32)(uint64_t *sink, int64_t rounds) {
    const float unknown = (float)*sink;
#if defined(__AVX2__)
#define STEP(sum) __asm__("vfmadd231ps %1, %2, %0" : "+v"(sum) : "v"(x), "v"(y));
#elif defined(QN_NEON)
#define STEP(sum) __asm__("fmla %0.4s, %1.4s, %2.4s" : "+w"(sum) : "w"(x), "w"(y));
#else
#define STEP(sum) sum = sum * x + y;
#endif
    enum { OPERATIONS = BYTES / 2 }; // two for each 4 bytes
    PROBE(f32v, STEP, OPERATIONS)
#undef STEP
}

#if defined(__AVX2__)
qn_probe_peak_fn QN_FN(probe_int8);

#define DOT(sum) __asm__(DOT_NAME " %1, %2, %0" : "+v"(sum) : "v"(x), "v"(y));

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#if defined(__AVX512VNNI__)
#define DOT_NAME "vpdpbusd"
#else
#define DOT_NAME "%{vex%} vpdpbusd"
#endif
double QN_FN(probe_int8)(uint64_t *sink, int64_t rounds) {
    const int32_t unknown = (int32_t)*sink;
    PROBE(i32v, DOT, 2 * BYTES)
}
#else
// Pairs of products summed in 16 bits, which a kernel must make wider now and then.
double QN_FN(probe_int8)(uint64_t *sink, int64_t rounds) {
    const int16_t unknown = (int16_t)*sink;
    i16v pair; // both in one statement: alone, the first would be computed once
#define STEP(sum)                                                                                  \
    __asm__("vpmaddubsw %2, %3, %1\n\tvpaddw %1, %0, %0" : "+x"(sum), "=&x"(pair) : "x"(x), "x"(y));
    PROBE(i16v, STEP, 2 * BYTES)
#undef STEP
}
#endif
#endif

#if defined(QN_NEON)
qn_probe_peak_fn QN_FN(probe_int8);

#if defined(__ARM_FEATURE_MATMUL_INT8) // 4 sums of 8 products
enum { OPERATIONS_DOT = 4 * BYTES };
#define DOT(sum) __asm__("smmla %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(x), "w"(y));
#elif defined(__ARM_FEATURE_DOTPROD)
enum { OPERATIONS_DOT = 2 * BYTES };
#define DOT(sum) __asm__("sdot %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(x), "w"(y));
#else // pairs of products in 16 bits, which are made wider
enum { OPERATIONS_DOT = 2 * BYTES };
#define DOT(sum)                                                                                   \
    __asm__("smull %1.8h, %2.8b, %3.8b\n\tsmlal2 %1.8h, %2.16b, %3.16b\n\t"                        \
            "sadalp %0.4s, %1.8h"                                                                  \
            : "+w"(sum), "=&w"(pair)                                                               \
            : "w"(x), "w"(y));
#endif

double QN_FN(probe_int8)(uint64_t *sink, int64_t rounds) {
    const int32_t unknown = (int32_t)*sink;
#if !defined(__ARM_FEATURE_DOTPROD)
    i32v pair;
#endif
    PROBE(i32v, DOT, OPERATIONS_DOT)
}
#endif
