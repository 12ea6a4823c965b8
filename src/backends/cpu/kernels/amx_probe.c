// Whether the matrix unit computes, and how fast it can.
#include "backends/cpu/amx.h"
#include "backends/cpu/kernels/amx_tiles.h"
#include "backends/cpu/kernels/level.h"
#include "backends/cpu/probe.h"

#include <string.h>

enum { M = 13, N = 16, K = 64 }; // fewer rows than a tile has

// One product of signed with unsigned bytes, at both ends of their range too, as kernels use it.
bool qn_cpu_amx_check(void) {
    int8_t a[M][K];
    uint8_t b[K / 4][N][4];
    int32_t c[M][N];
    amx_shapes s = {.palette = 1, .row_bytes = {4 * N, K, 4 * N}, .rows = {M, M, K / 4}};
    for (int i = 0; i < M * K; i++) a[i / K][i % K] = (int8_t)(i * 37 % 256 - 128);
    for (int i = 0; i < K * N; i++) b[i / (4 * N)][i / 4 % N][i % 4] = (uint8_t)(i * 91 % 256);
    AMX_BEGIN(&s);
    AMX_ZERO(0);
    AMX_LOAD(1, a, sizeof a[0]);
    AMX_LOAD(2, b, sizeof b[0]);
    AMX_DOT_SU(0, 1, 2);
    AMX_STORE(0, c, sizeof c[0]);
    AMX_END();
    for (int i = 0; i < M * N; i++) {
        int32_t want = 0;
        for (int k = 0; k < K; k++) want += a[i / N][k] * b[k / 4][i % N][k % 4];
        if (c[i / N][i % N] != want) return false;
    }
    return true;
}

qn_probe_peak_fn QN_FN(probe_int8);

// Six products that wait for none of the others, as in the kernels.
double QN_FN(probe_int8)(uint64_t *sink, int64_t rounds) {
    uint8_t bytes[16][64];
    int32_t c[16][16];
    amx_shapes s = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        s.row_bytes[t] = 64;
        s.rows[t] = 16;
    }
    memset(bytes, (int)(*sink & 0xff), sizeof bytes);
    AMX_BEGIN(&s);
    AMX_ZERO(0);
    AMX_ZERO(1);
    AMX_ZERO(2);
    AMX_ZERO(3);
    AMX_ZERO(4);
    AMX_ZERO(5);
    AMX_LOAD(6, bytes, 64);
    AMX_LOAD(7, bytes, 64);
    for (int64_t r = 0; r < rounds; r++) {
        AMX_DOT_SU(0, 6, 7);
        AMX_DOT_SU(1, 6, 7);
        AMX_DOT_SU(2, 6, 7);
        AMX_DOT_SU(3, 6, 7);
        AMX_DOT_SU(4, 6, 7);
        AMX_DOT_SU(5, 6, 7);
    }
    AMX_STORE(5, c, 64);
    AMX_END();
    *sink |= (uint64_t)c[0][0];
    return 6.0 * 2 * 16 * 16 * 64 * (double)rounds;
}
