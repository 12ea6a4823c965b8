// Instructions of the matrix unit. Tile registers have numbers that are written out, and shapes that
// are loaded; compilers know of neither, so nobody else uses them between AMX_BEGIN and AMX_END.
//
//   C (m, 16) int32 += A (m, 4 n) bytes, B (n, 16, 4) bytes      n, m at most 16
//
// A row of B has four inner values of 16 outputs, as a row of tile_block's codes. A product takes as
// many cycles as A has rows, 16 at most, whatever n is.
#ifndef QN_BACKENDS_CPU_KERNELS_AMX_TILES_H
#define QN_BACKENDS_CPU_KERNELS_AMX_TILES_H

#include <stdint.h>

typedef struct amx_shapes {
    uint8_t palette, start_row, none[14];
    uint16_t row_bytes[16]; // of tiles 0 ... 7
    uint8_t rows[16];
} __attribute__((aligned(64))) amx_shapes;

_Static_assert(sizeof(amx_shapes) == 64, "as the instruction reads it");

// What the system saves with a thread's registers is small again after AMX_END.
#define AMX_BEGIN(shapes) __asm__ volatile("ldtilecfg %0" : : "m"(*(shapes)))
#define AMX_END()         __asm__ volatile("tilerelease")
#define AMX_ZERO(t)       __asm__ volatile("tilezero %%tmm" #t ::)
#define AMX_LOAD(t, from, stride)                                                                  \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t                                               \
                     :                                                                             \
                     : "r"(from), "r"((int64_t)(stride))                                           \
                     : "memory")
#define AMX_STORE(t, to, stride)                                                                   \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)"                                           \
                     :                                                                             \
                     : "r"(to), "r"((int64_t)(stride))                                             \
                     : "memory")
// Signed bytes of A with signed or unsigned ones of B; unsigned ones of A with signed ones of B.
#define AMX_DOT_SS(c, a, b) __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
#define AMX_DOT_SU(c, a, b) __asm__ volatile("tdpbsud %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
#define AMX_DOT_US(c, a, b) __asm__ volatile("tdpbusd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

#endif
