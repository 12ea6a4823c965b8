#include "make/tower.h"

#include "core/file.h"
#include "core/json.h"
#include "core/mem.h"
#include "models/config.h"

#include <math.h>
#include <string.h>

#define BLK "v.blk.%d."
#define HF  "model.visual.blocks.%d."

enum { TEXT_MAX = 1 << 20, CHANNELS = 3, TAPS = 2 };

typedef struct tower_config {
    int64_t layers, width, heads, ffn, patch, merge, positions, out_width, channels, taps;
} tower_config;

#define VISION(field, name, max_)                                                                  \
    QN_INT_ROW(tower_config, field, .hf = "vision_config." name, .min = 1, .max = (max_))

static const qn_config_row tower_rows[] = {
    VISION(layers, "depth", 4096),
    VISION(width, "hidden_size", 1 << 20),
    VISION(heads, "num_heads", 1 << 16),
    VISION(ffn, "intermediate_size", 1 << 24),
    VISION(patch, "patch_size", 4096),
    VISION(merge, "spatial_merge_size", 64),
    VISION(positions, "num_position_embeddings", 1 << 24),
    VISION(out_width, "out_hidden_size", 1 << 20),
    VISION(channels, "in_channels", 16),
    VISION(taps, "temporal_patch_size", 16),
};

bool qn_tower_is_there(const qn_source *source) {
    return qn_source_find_tensor(source, "model.visual.patch_embed.proj.weight") ||
           qn_source_find_tensor(source, "visual.patch_embed.proj.weight");
}

static qn_status check_config(const tower_config *c, const qn_config_reader *reader, int64_t width,
                              int64_t *side, qn_err *err) {
    *side = (int64_t)sqrt((double)c->positions);
    if (*side * *side != c->positions)
        return QN_FAIL(err, FORMAT, "vision_config.num_position_embeddings: %lld is not a square",
                       (long long)c->positions);
    if (c->width % c->heads)
        return QN_FAIL(err, FORMAT, "vision_config.num_heads: %lld does not divide the width %lld",
                       (long long)c->heads, (long long)c->width);
    if (c->out_width != width)
        return QN_FAIL(err, FORMAT, "vision_config.out_hidden_size: %lld, the text has width %lld",
                       (long long)c->out_width, (long long)width);
    if (c->channels != CHANNELS || c->taps != TAPS)
        return QN_FAIL(err, UNSUPPORTED,
                       "vision_config: in_channels %lld, temporal_patch_size %lld, supported: %d "
                       "and %d",
                       (long long)c->channels, (long long)c->taps, CHANNELS, TAPS);
    const qn_key *deep = qn_config_find(reader, NULL, "vision_config.deepstack_visual_indexes");
    if (deep && (deep->kind != QN_KEY_ARRAY || deep->n > 0))
        return QN_FAIL(err, UNSUPPORTED, "vision_config.deepstack_visual_indexes: %zu layers",
                       deep->n);
    return qn_config_expect(reader, NULL, "vision_config.hidden_act", "gelu_pytorch_tanh", err);
}

static void bind_layers(qn_binder *binder, const tower_config *c) {
    const int64_t D = c->width, F = c->ffn;
    int32_t id;
    const qn_bind_row rows[] = {
        {&id, BLK "ln1.weight", HF "norm1.weight", {D}, QN_VECTOR},
        {&id, BLK "ln1.bias", HF "norm1.bias", {D}, QN_VECTOR},
        {&id, BLK "attn_qkv.weight", HF "attn.qkv.weight", {3 * D, D}, 0},
        {&id, BLK "attn_qkv.bias", HF "attn.qkv.bias", {3 * D}, QN_VECTOR},
        {&id, BLK "attn_out.weight", HF "attn.proj.weight", {D, D}, 0},
        {&id, BLK "attn_out.bias", HF "attn.proj.bias", {D}, QN_VECTOR},
        {&id, BLK "ln2.weight", HF "norm2.weight", {D}, QN_VECTOR},
        {&id, BLK "ln2.bias", HF "norm2.bias", {D}, QN_VECTOR},
        {&id, BLK "ffn_up.weight", HF "mlp.linear_fc1.weight", {F, D}, 0},
        {&id, BLK "ffn_up.bias", HF "mlp.linear_fc1.bias", {F}, QN_VECTOR},
        {&id, BLK "ffn_down.weight", HF "mlp.linear_fc2.weight", {D, F}, 0},
        {&id, BLK "ffn_down.bias", HF "mlp.linear_fc2.bias", {D}, QN_VECTOR},
    };
    for (int64_t i = 0; i < c->layers; i++) qn_bind(binder, rows, sizeof rows / sizeof rows[0], i);
}

static void bind_ends(qn_binder *binder, const tower_config *c) {
    const int64_t D = c->width, M = D * c->merge * c->merge, O = c->out_width;
    int32_t id, taps[TAPS];
    const qn_bind_row patches = {taps,
                                 "v.patch_embd.weight",
                                 "model.visual.patch_embed.proj.weight",
                                 {D, CHANNELS, c->patch},
                                 QN_KEEP_F32};
    const qn_bind_row first[] = {
        {&id, "v.patch_embd.bias", "model.visual.patch_embed.proj.bias", {D}, QN_VECTOR},
        {&id,
         "v.position_embd.weight",
         "model.visual.pos_embed.weight",
         {c->positions, D},
         QN_KEEP_F32},
    };
    const qn_bind_row last[] = {
        {&id, "v.post_ln.weight", "model.visual.merger.norm.weight", {D}, QN_VECTOR},
        {&id, "v.post_ln.bias", "model.visual.merger.norm.bias", {D}, QN_VECTOR},
        {&id, "mm.0.weight", "model.visual.merger.linear_fc1.weight", {M, M}, 0},
        {&id, "mm.0.bias", "model.visual.merger.linear_fc1.bias", {M}, QN_VECTOR},
        {&id, "mm.2.weight", "model.visual.merger.linear_fc2.weight", {O, M}, 0},
        {&id, "mm.2.bias", "model.visual.merger.linear_fc2.bias", {O}, QN_VECTOR},
    };
    qn_bind_taps(binder, &patches, TAPS);
    qn_bind(binder, first, sizeof first / sizeof first[0], 0);
    qn_bind(binder, last, sizeof last / sizeof last[0], 0);
}

// preprocessor_config.json; NULL if there is none.
static qn_status load_preprocessor(json_t **out, const qn_source *source, qn_err *err) {
    char *path = qn_path_join(qn_source_folder(source), "preprocessor_config.json"), *text = NULL;
    size_t size = 0;
    qn_status status = QN_OK;
    if (!path) return QN_NOMEM(err, "path");
    if (qn_path_is_file(path)) {
        QN_TRY_TO(done, qn_file_load(&text, &size, path, TEXT_MAX, err));
        QN_TRY_TO(done, qn_json_parse(out, text, size, true, path, err));
    }

done:
    qn_free(text);
    qn_free(path);
    return status;
}

// A tower of which a part had no place would be another one, such as one of more layers.
static qn_status check_used(const qn_weights *weights, const qn_source *source, int64_t layers,
                            qn_err *err) {
    for (size_t i = 0; i < qn_source_n_tensors(source); i++) {
        const char *name = qn_source_tensor(source, i)->name.data;
        const char *rest = strncmp(name, "model.", 6) == 0 ? name + 6 : name;
        if (weights->is_used[i] || strncmp(rest, "visual.", 7) != 0) continue;
        return QN_FAIL(err, FORMAT,
                       "tensor %s has no place in a vision tower of vision_config.depth %lld", name,
                       (long long)layers);
    }
    return QN_OK;
}

// Three numbers, 0.5 where the file says nothing.
static qn_status read_channels(float *values, const json_t *object, const char *key, qn_err *err) {
    const json_t *list = json_object_get(object, key);
    for (int i = 0; i < CHANNELS; i++) values[i] = 0.5f;
    if (list && json_array_size(list) != CHANNELS)
        return QN_FAIL(err, FORMAT, "preprocessor_config.json: %s is not a list of %d numbers", key,
                       CHANNELS);
    for (size_t i = 0; list && i < CHANNELS; i++) {
        const json_t *value = json_array_get(list, i);
        values[i] = (float)json_number_value(value);
        if (!json_is_number(value) || !isfinite(values[i]))
            return QN_FAIL(err, FORMAT, "preprocessor_config.json: %s[%zu] is not a number", key,
                           i);
    }
    return QN_OK;
}

static qn_status put_channels(qn_gguf_writer *to, const json_t *object, qn_err *err) {
    float mean[CHANNELS], deviation[CHANNELS];
    QN_TRY(read_channels(mean, object, "image_mean", err));
    QN_TRY(read_channels(deviation, object, "image_std", err));
    for (int i = 0; i < CHANNELS; i++) {
        if (!(deviation[i] > 0)) // pixels are divided by it
            return QN_FAIL(err, FORMAT,
                           "preprocessor_config.json: image_std[%d] is %g, want more than 0", i,
                           (double)deviation[i]);
    }
    qn_gguf_put_f32s(to, "clip.vision.image_mean", mean, CHANNELS);
    qn_gguf_put_f32s(to, "clip.vision.image_std", deviation, CHANNELS);
    return QN_OK;
}

static qn_status put_preprocessor(qn_gguf_writer *to, const qn_source *source, qn_err *err) {
    json_t *object = NULL;
    QN_TRY(load_preprocessor(&object, source, err));
    const qn_status status = put_channels(to, object, err);
    json_decref(object);
    return status;
}

static qn_status put_keys(qn_gguf_writer *to, const tower_config *c, int64_t side,
                          const qn_source *source, qn_err *err) {
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {
        {"clip.vision.projection_dim", c->out_width},
        {"clip.vision.image_size", side * c->patch},
        {"clip.vision.patch_size", c->patch},
        {"clip.vision.embedding_length", c->width},
        {"clip.vision.feed_forward_length", c->ffn},
        {"clip.vision.block_count", c->layers},
        {"clip.vision.attention.head_count", c->heads},
        {"clip.vision.spatial_merge_size", c->merge},
    };
    bool *is_deep = qn_alloc((size_t)c->layers, sizeof *is_deep);
    if (!is_deep) return QN_NOMEM(err, "vision layers");
    qn_gguf_put_bool(to, "clip.has_vision_encoder", true);
    qn_gguf_put_string(to, "clip.projector_type", "qwen3vl_merger");
    qn_gguf_put_bool(to, "clip.use_gelu", true);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        qn_gguf_put_u32(to, numbers[i].name, (uint32_t)numbers[i].value);
    qn_gguf_put_f32(to, "clip.vision.attention.layer_norm_epsilon", 1e-6f);
    qn_gguf_put_bools(to, "clip.vision.is_deepstack_layers", is_deep, (size_t)c->layers);
    qn_free(is_deep);
    return put_preprocessor(to, source, err);
}

qn_status qn_tower_init(qn_tower *out, const qn_source *source, int64_t width, qn_gguf_writer *to,
                        qn_err *err) {
    const qn_config_reader reader = {.source = source, .arch = "clip"};
    tower_config c = {0};
    int64_t side = 0;
    qn_build b;
    qn_binder binder;
    QN_TRY(qn_config_fill(&c, tower_rows, sizeof tower_rows / sizeof tower_rows[0], &reader, err));
    QN_TRY(check_config(&c, &reader, width, &side, err));
    qn_build_init(&b, &out->graph, "clip");
    QN_TRY(qn_binder_init(&binder, &out->weights, source, &b, err));
    const bool is_inside = qn_source_find_tensor(source, "model.visual.patch_embed.proj.weight");
    binder.prefix = is_inside ? "model." : "";
    bind_layers(&binder, &c);
    bind_ends(&binder, &c);
    QN_TRY(qn_build_finish(&b, err));
    QN_TRY(check_used(&out->weights, source, c.layers, err));
    return put_keys(to, &c, side, source, err);
}

void qn_tower_deinit(qn_tower *tower) {
    qn_weights_deinit(&tower->weights);
    qn_graph_deinit(&tower->graph);
}
