// What a card can do, measured (limits.cu).
#ifndef QN_BACKENDS_CUDA_KERNELS_LIMITS_CUH
#define QN_BACKENDS_CUDA_KERNELS_LIMITS_CUH

#include "backends/cuda/cuda_api.h"

#include <cuda_runtime.h>

int qn_measure_limits(qn_cuda_limits *out, int card, cudaStream_t stream);

#endif
