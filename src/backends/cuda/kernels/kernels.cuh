// The launchers of all kernels; see cuda_kernels.def.
#pragma once

#include "common.cuh"

#define KERNEL(name)        LAUNCHER_DECL(name);
#define LAUNCHER_DECL(name) void qn_launch_##name(const Task *task, cudaStream_t stream)
#include "backends/cuda/cuda_kernels.def"
#undef KERNEL
#undef LAUNCHER_DECL
