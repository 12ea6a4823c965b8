// Units of weights on their way: each warp has some places in shared memory, which it fills ahead
// of the one that it works on.
#pragma once

#include "common.cuh"

// SLOTS places of BYTES for each warp; `room` is 16-byte aligned.
template <int BYTES, int SLOTS> struct Ring {
    static constexpr int ROOM = SLOTS * BYTES; // of a warp
    unsigned char *room;
    int slot;

    __device__ explicit Ring(unsigned char *all) : room(all + threadIdx.x / WARP * ROOM), slot(0) {}

    // Begins to fill place `at`; with no `from`, nothing comes, but it counts.
    __device__ void fetch(int at, const unsigned char *from) {
        if (from) {
            const uint32_t to = (uint32_t)__cvta_generic_to_shared(room + at * BYTES);
#pragma unroll
            for (int i = 0; i < (BYTES + 511) / 512; i++) {
                const int k = (i * WARP + threadIdx.x % WARP) * 16;
                if (k < BYTES)
                    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + k),
                                 "l"(from + k)
                                 : "memory");
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    // The unit that was asked for first; the place is free again after `drop`.
    __device__ const unsigned char *take() {
        asm volatile("cp.async.wait_group %0;" ::"n"(SLOTS - 1) : "memory");
        __syncwarp();
        return room + slot * BYTES;
    }

    __device__ void drop(const unsigned char *next) {
        __syncwarp();
        fetch(slot, next);
        slot = slot + 1 == SLOTS ? 0 : slot + 1;
    }
};
