// Launches of the kernels for float weights (floats.cu). False: they do not have this type or size.
#pragma once

#include "common.cuh"

bool floats_project_launch(const Task *task, cudaStream_t stream);
bool floats_gated_launch(const Task *task, cudaStream_t stream);
bool floats_head_launch(const Task *task, cudaStream_t stream);
