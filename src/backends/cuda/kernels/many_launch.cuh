// Launches of the kernels for many rows (many.cu). False: they do not have this type, form or size.
#pragma once

#include "common.cuh"

bool many_project_launch(const Task *task, cudaStream_t stream);
bool many_gated_launch(const Task *task, cudaStream_t stream);
bool many_head_launch(const Task *task, cudaStream_t stream);
