// Instructions of Hopper: barriers in shared memory, copies by the bulk engine, products of a
// warpgroup. Other cards compile none of them: whoever uses them asks HAS_WGMMA first.
#pragma once

#include "common.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_WGMMA 1
#else
#define HAS_WGMMA 0
#endif

static __device__ inline uint32_t shared_at(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}
static __device__ inline uint4 load_16(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at));
    return v;
}
static __device__ inline uint2 load_8(uint32_t at) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
    return v;
}
static __device__ inline uint32_t load_2(uint32_t at) {
    uint16_t v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at));
    return v;
}

#if HAS_WGMMA

// --- barriers of shared memory -------------------------------------------------------------------

static __device__ inline void barrier_init(uint32_t at, uint32_t n) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(n) : "memory");
}
// One arrival, and so many bytes that the bulk engine will bring.
static __device__ inline void barrier_expect(uint32_t at, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes)
                 : "memory");
}
static __device__ inline void barrier_arrive(uint32_t at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
// In block `rank` of the cluster. Without .release.cluster, which would wait for all of memory:
// what was read from a slot has arrived before its products are complete.
static __device__ inline void barrier_arrive_at(uint32_t at, uint32_t rank) {
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(there) : "memory");
}
// Until the phase of this parity is over.
static __device__ inline void barrier_wait(uint32_t at, uint32_t parity) {
#ifdef QN_CUDA_SPIN_LIMIT
    uint32_t ok = 0;
    for (int64_t i = 0; !ok; i++) {
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(ok)
                     : "r"(at), "r"(parity)
                     : "memory");
        if (i > QN_CUDA_SPIN_LIMIT) __trap();
    }
#else
    asm volatile("{\n.reg .pred p;\n"
                 "AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(at),
                 "r"(parity)
                 : "memory");
#endif
}
static __device__ inline void cluster_sync() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
static __device__ inline uint32_t cluster_rank() {
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
// Barriers of some threads of the block.
static __device__ inline void some_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
static __device__ inline void some_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// --- copies --------------------------------------------------------------------------------------

static __device__ inline void bulk_copy(uint32_t to, const void *from, uint32_t bytes,
                                        uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
// To the same place in every block of `mask`, and told to its barrier there.
static __device__ inline void bulk_copy_to(uint32_t to, const void *from, uint32_t bytes,
                                           uint32_t barrier, uint16_t mask) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "h"(mask)
                 : "memory");
}

// --- products: d (64, N) += a (64, 16) b (16, N), halfs into floats ------------------------------
// Warp w of the four has rows 16 w ...; lane 4 g + t has a of rows g and g + 8 in turns, and of d
// columns 8 j + 2 t and the next: d[4 j] and d[4 j + 1] in row g, the other two in row g + 8.

static __device__ inline void products_begin() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ inline void products_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int LEFT> static __device__ inline void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

// b lies in shared memory as matrices of 8 columns by 8 values, 128 bytes each: neighbours along
// the columns follow each other, those along the values are `apart` bytes away.
static __device__ inline uint64_t b_operand(uint32_t at, uint32_t apart) {
    return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)(apart >> 4) << 16 | (uint64_t)(128 >> 4) << 32;
}

#define D_4(how, i)  how(d[i]), how(d[i + 1]), how(d[i + 2]), how(d[i + 3])
#define D_8(how, i)  D_4(how, i), D_4(how, i + 4)
#define D_16(how, i) D_8(how, i), D_8(how, i + 8)
#define D_32(how, i) D_16(how, i), D_16(how, i + 16)
#define D_64(how, i) D_32(how, i), D_32(how, i + 32)
#define N_4          "%0,%1,%2,%3"
#define N_8          N_4 ",%4,%5,%6,%7"
#define N_16         N_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define N_32         N_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define N_64                                                                                       \
    N_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"                        \
         ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
// a0 ... a3 and b are operands REGS ... REGS + 4.
#define PRODUCT(name, how, keep, N, REGS, A0, A1, A2, A3, B)                                       \
    static __device__ inline void name(float(&d)[REGS], const uint32_t *a, uint64_t b) {           \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " #keep ", 0;\n"                            \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" N_##REGS           \
                     "}, {%" #A0 ",%" #A1 ",%" #A2 ",%" #A3 "}, %" #B ", p, 1, 1, 0;\n}\n"         \
                     : D_##REGS(how, 0)                                                            \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                        \
    }
// d = a b, d = a b in the registers that d has now, and d += a b; not there before products_wait.
// That the first does not read d is told to the compiler, which would move registers around
// otherwise, and wait for products before.
#define PRODUCTS(...)                                                                              \
    PRODUCT(first_product, "=f", 0, __VA_ARGS__)                                                   \
    PRODUCT(next_product, "+f", 0, __VA_ARGS__)                                                    \
    PRODUCT(product, "+f", 1, __VA_ARGS__)
PRODUCTS(8, 4, 4, 5, 6, 7, 8)
PRODUCTS(16, 8, 8, 9, 10, 11, 12)
PRODUCTS(32, 16, 16, 17, 18, 19, 20)
PRODUCTS(64, 32, 32, 33, 34, 35, 36)
PRODUCTS(128, 64, 64, 65, 66, 67, 68)
#undef PRODUCTS
#undef PRODUCT

#endif
