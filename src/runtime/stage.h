// Layers of a model on one device: their graph, plans and weights.
#ifndef QN_RUNTIME_STAGE_H
#define QN_RUNTIME_STAGE_H

#include "backends/device.h"
#include "runtime/compile.h"
#include "runtime/weights.h"

// Constant once opened.
typedef struct qn_stage {
    qn_device *device;
    int64_t first_layer, end_layer;
    bool is_whole;           // all layers: the graphs are the model's own
    qn_plan prefill, decode; // decode is empty where it is the same
    qn_packs *packs;         // NULL: no weights
} qn_stage;

void qn_stage_deinit(qn_stage *stage);

// Opens the devices of a list ("cpu", "cpu:avx2,ref"; NULL: the best one; `level` is the variant
// where a name says none) and divides the layers among them, as evenly as it goes. *stages is the
// caller's: qn_stage_deinit each, then qn_free.
QN_MUST_CHECK qn_status qn_stages_open(qn_stage **stages, size_t *n, const char *devices,
                                       const char *level, int64_t n_layers, qn_pool *pool,
                                       qn_err *err);

// Divides layers first ... n_layers - 1 of a model among stages as evenly as it goes.
void qn_stages_divide(qn_stage *stages, size_t n, int64_t first, int64_t n_layers);

// The stage's part of a graph of the model (qn_graph_cut). `room` holds it where it is a part; its
// owner releases it. Returns the graph through *out.
QN_MUST_CHECK qn_status qn_stage_graph(const qn_graph **out, qn_graph *room, const qn_stage *stage,
                                       const qn_graph *graph, int64_t n_layers, qn_err *err);

#endif
