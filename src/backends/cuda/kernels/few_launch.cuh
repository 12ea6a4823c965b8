// Launches of the kernels for a few rows (few.cu). False: they do not have this type, form or size.
#pragma once

#include "common.cuh"

bool few_project_launch(const Task *task, cudaStream_t stream);
bool few_gated_launch(const Task *task, cudaStream_t stream);
bool few_head_launch(const Task *task, cudaStream_t stream);
bool few_experts_up_launch(const Task *task, cudaStream_t stream);
bool few_experts_down_launch(const Task *task, cudaStream_t stream);
