#include "make/tower.h"

#include "core/mem.h"
#include "models/vision_tower.h"

static qn_status put_keys(qn_gguf_writer *to, const qn_vision_config *c,
                          const qn_patch_rules *rules, qn_err *err) {
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {
        {"clip.vision.projection_dim", c->out_width},
        {"clip.vision.image_size", c->side * c->patch},
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
    qn_gguf_put_f32s(to, "clip.vision.image_mean", rules->mean, QN_VISION_CHANNELS);
    qn_gguf_put_f32s(to, "clip.vision.image_std", rules->deviation, QN_VISION_CHANNELS);
    return QN_OK;
}

qn_status qn_tower_init(qn_tower *out, const qn_source *source, int64_t width, qn_gguf_writer *to,
                        qn_err *err) {
    qn_vision_config c;
    qn_patch_rules rules;
    qn_vision_layer layer;
    qn_vision_ends ends;
    qn_build b;
    qn_binder binder;
    QN_TRY(qn_vision_config_read(&c, source, err));
    QN_TRY(qn_vision_rules_read(&rules, &c, source, err));
    if (c.out_width != width)
        return QN_FAIL(err, FORMAT, "vision_config.out_hidden_size: %lld, the text has width %lld",
                       (long long)c.out_width, (long long)width);
    qn_build_init(&b, &out->graph, "clip");
    QN_TRY(qn_binder_init(&binder, &out->weights, source, &b, err));
    qn_vision_set_prefix(&binder);
    for (int64_t i = 0; i < c.layers; i++) qn_vision_bind_layer(&binder, &layer, &c, i);
    qn_vision_bind_patches(&binder, &ends, &c, 0);
    qn_vision_bind_merger(&binder, &ends, &c);
    QN_TRY(qn_build_finish(&b, err));
    QN_TRY(qn_vision_check_used(&out->weights, source, c.layers, err));
    return put_keys(to, &c, &rules, err);
}

void qn_tower_deinit(qn_tower *tower) {
    qn_weights_deinit(&tower->weights);
    qn_graph_deinit(&tower->graph);
}
