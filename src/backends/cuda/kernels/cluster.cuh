// Clusters of blocks of threads, which reach each other's shared memory: compute capability 9.0.
#pragma once

#include "common.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool HAS_CLUSTERS = false;
#else
constexpr bool HAS_CLUSTERS = true;
#endif

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// All threads of a cluster that have not ended arrive, then wait: what was stored before the one is
// seen after the other.
static __device__ inline void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
static __device__ inline void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Stores to where `at`, of this block's shared memory, is in that of another block.
static __device__ inline void store_at_rank(float *at, unsigned rank, float value) {
    unsigned to;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(to)
                 : "r"((unsigned)__cvta_generic_to_shared(at)), "r"(rank));
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
}

#else

static __device__ inline void cluster_arrive() {}
static __device__ inline void cluster_wait() {}
static __device__ inline void store_at_rank(float *, unsigned, float) {}

#endif

// Whether the code that the card runs for a kernel is such that it may have clusters: newer cards
// may run that of older ones.
template <typename Kernel> static inline bool has_cluster_code(Kernel *kernel) {
    cudaFuncAttributes of;
    return cudaFuncGetAttributes(&of, kernel) == cudaSuccess && of.ptxVersion >= 90;
}
