// The vision tower of a multimodal checkpoint, as the second GGUF file that goes with a text model
// (general.architecture "clip", tensors v.* and mm.*).
//
// Known: the tower of Qwen3.5 (projector "qwen3vl_merger", without deep stack layers).
#ifndef QN_MAKE_TOWER_H
#define QN_MAKE_TOWER_H

#include "formats/gguf_write.h"
#include "models/model_weights.h"

typedef struct qn_tower {
    qn_graph graph; // of parameters only
    qn_weights weights;
} qn_tower;

// Finds and checks the tensors (into *out, zeroed; release with qn_tower_deinit in any case) and
// declares the keys clip.*. `width` is that of the text model.
QN_MUST_CHECK qn_status qn_tower_init(qn_tower *out, const qn_source *source, int64_t width,
                                      qn_gguf_writer *to, qn_err *err);
void qn_tower_deinit(qn_tower *tower);

#endif
