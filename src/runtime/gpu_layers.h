// Layers that do not fit on GPUs stay on the CPU (qn_engine_opts.gpu_layers).
#ifndef QN_RUNTIME_GPU_LAYERS_H
#define QN_RUNTIME_GPU_LAYERS_H

#include "runtime/engine.h"

// Divides the layers between the engine's stages, which are GPUs, and a stage on the CPU before
// them, where a number of layers is asked for. A number that cannot be had is an error.
QN_MUST_CHECK qn_status qn_gpu_layers_apply(qn_engine *engine, qn_err *err);
// The same for as many layers as fit, once all that plans depend on is known. Leaves no plans.
QN_MUST_CHECK qn_status qn_gpu_layers_choose(qn_engine *engine, qn_err *err);

#endif
