// A vision tower: what turns the patches of an image into rows that stand in a text model's
// sequence. Known: the tower of Qwen3.5 (projector "qwen3vl_merger", without deep stack layers),
// from an mmproj GGUF file or inside a checkpoint.
//
// Two graphs, because rows change their number between them. The first has a row for each patch:
//
//   patches.0, patches.1 (T, C * P * P)  two frames; the same one twice for a still image
//   positions (T, D)                     the position embedding, resized to the grid
//   angles (T, 2, E / 2)                 2-D rope: cosines, then sines (vision/grid.h)
//   kv                                   a cache that every layer writes anew
//   -> features (T, D)
//
// The second has a row for each merged patch: groups (T, D * merge^2), the features of its patches
// end to end -> rows (T, width of the text model).
#ifndef QN_MODELS_VISION_TOWER_H
#define QN_MODELS_VISION_TOWER_H

#include "models/config.h"
#include "models/model_weights.h"
#include "vision/patches.h"

enum { QN_VISION_TAPS = 2 }; // frames that a patch spans

typedef struct qn_vision_config {
    int64_t layers, width, heads, ffn, patch, merge, out_width;
    int64_t side;                             // of the grid of learned positions
    int64_t positions, image, channels, taps; // as files say it
    float eps, theta;                         // of norms; base of the rope
} qn_vision_config;

// Caller storage, zeroed; release with qn_vision_tower_deinit whatever happened.
typedef struct qn_vision_tower {
    qn_vision_config config;
    qn_patch_rules rules;
    qn_graph graph, merger;
    qn_weights weights;
} qn_vision_tower;

// Whether a checkpoint has a tower besides its text model.
bool qn_vision_is_inside(const qn_source *source);

// Numbers of the tower, and what its images must look like.
QN_MUST_CHECK qn_status qn_vision_config_read(qn_vision_config *out, const qn_source *source,
                                              qn_err *err);
QN_MUST_CHECK qn_status qn_vision_rules_read(qn_patch_rules *out, const qn_vision_config *config,
                                             const qn_source *source, qn_err *err);

// The values that all tensors of the tower are bound to.
typedef struct qn_vision_layer {
    int32_t norm1, norm1_bias, qkv, qkv_bias, out, out_bias;
    int32_t norm2, norm2_bias, up, up_bias, down, down_bias;
} qn_vision_layer;
typedef struct qn_vision_ends {
    int32_t taps[QN_VISION_TAPS], patch_bias, positions;             // of the beginning
    int32_t norm, norm_bias, first, first_bias, second, second_bias; // of the merger
} qn_vision_ends;

// Binds the tensors of a layer, and those before and after the layers. `flags` of the patches:
// QN_FLAT or 0. Before the first call, the binder must know the checkpoint's prefix.
void qn_vision_set_prefix(qn_binder *binder);
void qn_vision_bind_layer(qn_binder *binder, qn_vision_layer *to, const qn_vision_config *c,
                          int64_t layer);
void qn_vision_bind_patches(qn_binder *binder, qn_vision_ends *to, const qn_vision_config *c,
                            unsigned flags);
void qn_vision_bind_merger(qn_binder *binder, qn_vision_ends *to, const qn_vision_config *c);
// A tower of which a part had no place would be another one, such as one of more layers.
QN_MUST_CHECK qn_status qn_vision_check_used(const qn_weights *weights, const qn_source *source,
                                             int64_t layers, qn_err *err);

// Reads the numbers and writes the graphs. A source that is not a vision tower, or one that is not
// known, is an error that says so.
QN_MUST_CHECK qn_status qn_vision_tower_init(qn_vision_tower *out, const qn_source *source,
                                             qn_err *err);
void qn_vision_tower_deinit(qn_vision_tower *tower);

#endif
