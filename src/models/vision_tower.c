#include "models/vision_tower.h"

#include <math.h>
#include <string.h>

#define BLK "v.blk.%d."
#define HF  "model.visual.blocks.%d."

// --- the numbers ---------------------------------------------------------------------------------

#define VISION(field, gguf_name, hf_name, max_)                                                    \
    QN_INT_ROW(qn_vision_config, field, .gguf = "vision." gguf_name,                               \
               .hf = "vision_config." hf_name, .min = 1, .max = (max_))

// The numbers that only one of the formats has are checked by their readers.
static const qn_config_row rows[] = {
    VISION(layers, "block_count", "depth", 4096),
    VISION(width, "embedding_length", "hidden_size", 1 << 20),
    VISION(heads, "attention.head_count", "num_heads", 1 << 16),
    VISION(ffn, "feed_forward_length", "intermediate_size", 1 << 24),
    VISION(patch, "patch_size", "patch_size", 4096),
    VISION(out_width, "projection_dim", "out_hidden_size", 1 << 20),
    QN_INT_ROW(qn_vision_config, merge, .gguf = "vision.spatial_merge_size",
               .hf = "vision_config.spatial_merge_size", .min = 1, .max = 64, .is_optional = true,
               .fallback = 2),
    QN_INT_ROW(qn_vision_config, positions, .hf = "vision_config.num_position_embeddings", .min = 1,
               .max = 1 << 24, .is_optional = true),
    QN_INT_ROW(qn_vision_config, image, .gguf = "vision.image_size", .min = 1, .max = 1 << 24,
               .is_optional = true),
    QN_INT_ROW(qn_vision_config, channels, .hf = "vision_config.in_channels", .min = 1, .max = 16,
               .is_optional = true, .fallback = QN_VISION_CHANNELS),
    QN_INT_ROW(qn_vision_config, taps, .hf = "vision_config.temporal_patch_size", .min = 1,
               .max = 16, .is_optional = true, .fallback = QN_VISION_TAPS),
    QN_FLOAT_ROW(qn_vision_config, eps, .gguf = "vision.attention.layer_norm_epsilon", .min = 1e-12,
                 .max = 1, .is_optional = true, .fallback = 1e-6),
    QN_FLOAT_ROW(qn_vision_config, theta, .hf = "vision_config.rope_parameters.rope_theta",
                 .min = 1, .max = 1e9, .is_optional = true, .fallback = 10000),
};

// The grid of learned positions is a square.
static qn_status find_side(qn_vision_config *c, bool is_gguf, qn_err *err) {
    if (is_gguf && (c->image < c->patch || c->image % c->patch))
        return QN_FAIL(err, FORMAT, "clip.vision.image_size: %lld is not whole patches of %lld",
                       (long long)c->image, (long long)c->patch);
    c->side = is_gguf ? c->image / c->patch : (int64_t)sqrt((double)c->positions);
    if (is_gguf && c->side > 4096)
        return QN_FAIL(err, FORMAT, "clip.vision.image_size: %lld patches a side, max 4096",
                       (long long)c->side);
    if (is_gguf) c->positions = c->side * c->side;
    if (c->side < 1 || c->side * c->side != c->positions)
        return QN_FAIL(err, FORMAT, "vision_config.num_position_embeddings: %lld is not a square",
                       (long long)c->positions);
    return QN_OK;
}

static qn_status check_sizes(const qn_vision_config *c, bool is_gguf, qn_err *err) {
    const char *heads = is_gguf ? "clip.vision.attention.head_count" : "vision_config.num_heads";
    if (c->width % c->heads)
        return QN_FAIL(err, FORMAT, "%s: %lld does not divide the width %lld", heads,
                       (long long)c->heads, (long long)c->width);
    if (c->width / c->heads % 4) // two pairs, one for each axis
        return QN_FAIL(err, UNSUPPORTED, "%s: %lld, heads of %lld values, want a multiple of 4",
                       heads, (long long)c->heads, (long long)(c->width / c->heads));
    if (c->channels != QN_VISION_CHANNELS || c->taps != QN_VISION_TAPS)
        return QN_FAIL(err, UNSUPPORTED,
                       "vision_config: in_channels %lld, temporal_patch_size %lld, supported: %d "
                       "and %d",
                       (long long)c->channels, (long long)c->taps, QN_VISION_CHANNELS,
                       QN_VISION_TAPS);
    return QN_OK;
}

// Layers whose rows are added to the first layers of the text model too.
static qn_status refuse_deep(const qn_config_reader *reader, qn_err *err) {
    const qn_key *list = qn_config_find(reader, "vision.is_deepstack_layers",
                                        "vision_config.deepstack_visual_indexes");
    if (!list) return QN_OK;
    size_t n = list->kind == QN_KEY_ARRAY ? list->n : 1;
    if (qn_key_is_array_of(list, QN_KEY_BOOL)) {
        n = 0;
        for (size_t i = 0; i < list->n; i++) n += qn_key_bool_at(list, i);
    }
    return n ? QN_FAIL(err, UNSUPPORTED, "%s: %zu layers", list->name.data, n) : QN_OK;
}

static qn_status check_gguf(const qn_source *source, const qn_config_reader *reader, qn_err *err) {
    const qn_key *arch = qn_source_find_key(source, "general.architecture");
    const qn_key *kind = qn_config_find(reader, "projector_type", NULL);
    bool has_vision = false;
    if (!arch || arch->kind != QN_KEY_STRING || strcmp(arch->as.s.data, "clip") != 0)
        return QN_FAIL(
            err, FORMAT, "%s is not a vision tower: general.architecture is '%s', want 'clip'",
            qn_source_path(source), arch && arch->kind == QN_KEY_STRING ? arch->as.s.data : "?");
    QN_TRY(qn_config_bool(&has_vision, reader, "has_vision_encoder", NULL, false, err));
    if (!has_vision)
        return QN_FAIL(err, FORMAT, "%s has no vision tower: clip.has_vision_encoder is false",
                       qn_source_path(source));
    if (!kind)
        return QN_FAIL(err, FORMAT, "%s: no key clip.projector_type", qn_source_path(source));
    return qn_config_expect(reader, "projector_type", NULL, "qwen3vl_merger", err);
}

bool qn_vision_is_inside(const qn_source *source) {
    return qn_source_find_tensor(source, "model.visual.patch_embed.proj.weight") ||
           qn_source_find_tensor(source, "visual.patch_embed.proj.weight");
}

static qn_status check_checkpoint(const qn_source *source, const qn_config_reader *reader,
                                  qn_err *err) {
    if (!qn_vision_is_inside(source))
        return QN_FAIL(err, FORMAT, "%s has no vision tower", qn_source_path(source));
    return qn_config_expect(reader, NULL, "vision_config.hidden_act", "gelu_pytorch_tanh", err);
}

qn_status qn_vision_config_read(qn_vision_config *out, const qn_source *source, qn_err *err) {
    const qn_config_reader reader = {.source = source, .arch = "clip"};
    const bool is_gguf = qn_source_get_kind(source) == QN_SOURCE_GGUF;
    qn_vision_config c = {0};
    QN_TRY(is_gguf ? check_gguf(source, &reader, err) : check_checkpoint(source, &reader, err));
    QN_TRY(qn_config_fill(&c, rows, sizeof rows / sizeof rows[0], &reader, err));
    QN_TRY(find_side(&c, is_gguf, err));
    QN_TRY(check_sizes(&c, is_gguf, err));
    QN_TRY(refuse_deep(&reader, err));
    *out = c;
    return QN_OK;
}

// --- the tensors ---------------------------------------------------------------------------------

void qn_vision_set_prefix(qn_binder *binder) {
    const bool is_inside =
        qn_source_find_tensor(binder->source, "model.visual.patch_embed.proj.weight");
    binder->prefix = is_inside ? "model." : "";
}

void qn_vision_bind_layer(qn_binder *binder, qn_vision_layer *l, const qn_vision_config *c,
                          int64_t layer) {
    const int64_t D = c->width, F = c->ffn;
    const qn_bind_row tensors[] = {
        {&l->norm1, BLK "ln1.weight", HF "norm1.weight", {D}, QN_VECTOR},
        {&l->norm1_bias, BLK "ln1.bias", HF "norm1.bias", {D}, QN_VECTOR},
        {&l->qkv, BLK "attn_qkv.weight", HF "attn.qkv.weight", {3 * D, D}, 0},
        {&l->qkv_bias, BLK "attn_qkv.bias", HF "attn.qkv.bias", {3 * D}, QN_VECTOR},
        {&l->out, BLK "attn_out.weight", HF "attn.proj.weight", {D, D}, 0},
        {&l->out_bias, BLK "attn_out.bias", HF "attn.proj.bias", {D}, QN_VECTOR},
        {&l->norm2, BLK "ln2.weight", HF "norm2.weight", {D}, QN_VECTOR},
        {&l->norm2_bias, BLK "ln2.bias", HF "norm2.bias", {D}, QN_VECTOR},
        {&l->up, BLK "ffn_up.weight", HF "mlp.linear_fc1.weight", {F, D}, 0},
        {&l->up_bias, BLK "ffn_up.bias", HF "mlp.linear_fc1.bias", {F}, QN_VECTOR},
        {&l->down, BLK "ffn_down.weight", HF "mlp.linear_fc2.weight", {D, F}, 0},
        {&l->down_bias, BLK "ffn_down.bias", HF "mlp.linear_fc2.bias", {D}, QN_VECTOR},
    };
    qn_bind(binder, tensors, sizeof tensors / sizeof tensors[0], layer);
}

void qn_vision_bind_patches(qn_binder *binder, qn_vision_ends *to, const qn_vision_config *c,
                            unsigned flags) {
    const int64_t D = c->width;
    const qn_bind_row patches = {to->taps,
                                 "v.patch_embd.weight",
                                 "model.visual.patch_embed.proj.weight",
                                 {D, QN_VISION_CHANNELS, c->patch},
                                 QN_KEEP_F32 | flags};
    const qn_bind_row tensors[] = {
        {&to->patch_bias,
         "v.patch_embd.bias",
         "model.visual.patch_embed.proj.bias",
         {D},
         QN_VECTOR},
        {&to->positions,
         "v.position_embd.weight",
         "model.visual.pos_embed.weight",
         {c->positions, D},
         QN_KEEP_F32},
    };
    qn_bind_taps(binder, &patches, QN_VISION_TAPS);
    qn_bind(binder, tensors, sizeof tensors / sizeof tensors[0], 0);
}

void qn_vision_bind_merger(qn_binder *binder, qn_vision_ends *to, const qn_vision_config *c) {
    const int64_t D = c->width, M = D * c->merge * c->merge, O = c->out_width;
    const qn_bind_row tensors[] = {
        {&to->norm, "v.post_ln.weight", "model.visual.merger.norm.weight", {D}, QN_VECTOR},
        {&to->norm_bias, "v.post_ln.bias", "model.visual.merger.norm.bias", {D}, QN_VECTOR},
        {&to->first, "mm.0.weight", "model.visual.merger.linear_fc1.weight", {M, M}, 0},
        {&to->first_bias, "mm.0.bias", "model.visual.merger.linear_fc1.bias", {M}, QN_VECTOR},
        {&to->second, "mm.2.weight", "model.visual.merger.linear_fc2.weight", {O, M}, 0},
        {&to->second_bias, "mm.2.bias", "model.visual.merger.linear_fc2.bias", {O}, QN_VECTOR},
    };
    qn_bind(binder, tensors, sizeof tensors / sizeof tensors[0], 0);
}

qn_status qn_vision_check_used(const qn_weights *weights, const qn_source *source, int64_t layers,
                               qn_err *err) {
    const bool is_gguf = qn_source_get_kind(source) == QN_SOURCE_GGUF;
    for (size_t i = 0; i < qn_source_n_tensors(source); i++) {
        const char *name = qn_source_tensor(source, i)->name.data;
        const char *rest = strncmp(name, "model.", 6) == 0 ? name + 6 : name;
        if (weights->is_used[i] || (!is_gguf && strncmp(rest, "visual.", 7) != 0)) continue;
        return QN_FAIL(err, FORMAT, "tensor %s has no place in a vision tower of %s %lld", name,
                       is_gguf ? "clip.vision.block_count" : "vision_config.depth",
                       (long long)layers);
    }
    return QN_OK;
}

// --- the graphs ----------------------------------------------------------------------------------

static int32_t input(qn_build *b, const char *name, int64_t width) {
    return qn_build_input(b, name, QN_TENSOR, QN_TYPE_F32,
                          (qn_shape){2, {{1, QN_SYM_T}, {width, QN_SYM_ONE}}});
}

static int32_t linear(qn_build *b, int32_t x, int32_t w, int32_t bias) {
    return qn_build2(b, QN_OP_ADD, qn_build2(b, QN_OP_MATMUL, x, w, NULL), bias, NULL);
}

// What all layers share.
typedef struct shared {
    const qn_vision_config *c;
    int32_t table, angles;
    int32_t cache; // as the layer before left it: one for all layers
} shared;

// Part i of queries, keys and values side by side: (T, 3 D) -> (T, H, E).
static int32_t heads_of(qn_build *b, int32_t qkv, int64_t i, const qn_vision_config *c) {
    const int32_t part = qn_build1(
        b, QN_OP_NARROW, qkv, &(qn_attrs){.axis = 1, .start = i * c->width, .length = c->width});
    return qn_build1(b, QN_OP_SPLIT, part, &(qn_attrs){.parts = c->heads});
}

// Every patch sees every patch of its image.
static int32_t attention(qn_build *b, shared *s, int32_t x, const qn_vision_layer *l) {
    const qn_vision_config *c = s->c;
    const int64_t head = c->width / c->heads;
    const qn_attrs turn = {.rotate = head, .pairs = QN_WORD_half};
    const qn_attrs look = {.scale = (float)(1 / sqrt((double)head)), .rule = QN_WORD_full};
    const int32_t qkv = linear(b, x, l->qkv, l->qkv_bias); // (T, 3 D)
    const int32_t q = qn_build2(b, QN_OP_ROTATE, heads_of(b, qkv, 0, c), s->angles, &turn);
    const int32_t k = qn_build2(b, QN_OP_ROTATE, heads_of(b, qkv, 1, c), s->angles, &turn);
    const int32_t v = heads_of(b, qkv, 2, c);
    s->cache = qn_build_op(b, QN_OP_KV_WRITE, (int32_t[]){s->cache, k, v, s->table}, 4, NULL);
    const int32_t o = qn_build3(b, QN_OP_ATTEND, q, s->cache, s->table, &look); // (T, H, E)
    return linear(b, qn_build1(b, QN_OP_MERGE, o, NULL), l->out, l->out_bias);
}

static int32_t layer(qn_build *b, shared *s, int32_t h, const qn_vision_layer *l) {
    const qn_attrs eps = {.eps = s->c->eps};
    int32_t x = qn_build3(b, QN_OP_LAYER_NORM, h, l->norm1, l->norm1_bias, &eps); // (T, D)
    h = qn_build2(b, QN_OP_ADD, h, attention(b, s, x, l), NULL);
    x = qn_build3(b, QN_OP_LAYER_NORM, h, l->norm2, l->norm2_bias, &eps);
    x = qn_build1(b, QN_OP_GELU, linear(b, x, l->up, l->up_bias), NULL); // (T, F)
    return qn_build2(b, QN_OP_ADD, h, linear(b, x, l->down, l->down_bias), NULL);
}

// Both frames, the bias, and where the patch is.
static int32_t embed(qn_build *b, const qn_vision_config *c, const qn_vision_ends *ends) {
    const int64_t size = QN_VISION_CHANNELS * c->patch * c->patch;
    const int32_t positions = input(b, "positions", c->width);
    const int32_t first = input(b, "patches.0", size), second = input(b, "patches.1", size);
    const int32_t h =
        qn_build2(b, QN_OP_ADD, qn_build2(b, QN_OP_MATMUL, first, ends->taps[0], NULL),
                  qn_build2(b, QN_OP_MATMUL, second, ends->taps[1], NULL), NULL);
    return qn_build2(b, QN_OP_ADD, qn_build2(b, QN_OP_ADD, h, ends->patch_bias, NULL), positions,
                     NULL); // (T, D)
}

static void build_tower(qn_build *b, qn_binder *binder, const qn_vision_config *c) {
    const int64_t head = c->width / c->heads;
    qn_vision_ends ends;
    shared s = {.c = c};
    s.table = qn_build_input(b, "table", QN_TABLE, QN_TYPE_I32, (qn_shape){0});
    s.cache = qn_build_input(
        b, "kv", QN_CACHE, QN_TYPE_F32,
        (qn_shape){3, {{c->heads, QN_SYM_ONE}, {head, QN_SYM_ONE}, {head, QN_SYM_ONE}}});
    s.angles =
        qn_build_input(b, "angles", QN_TENSOR, QN_TYPE_F32,
                       (qn_shape){3, {{1, QN_SYM_T}, {2, QN_SYM_ONE}, {head / 2, QN_SYM_ONE}}});
    qn_vision_bind_patches(binder, &ends, c, QN_FLAT);
    int32_t h = embed(b, c, &ends);
    for (int64_t i = 0; i < c->layers && !b->status; i++) {
        qn_vision_layer l;
        b->layer = (int32_t)i;
        qn_vision_bind_layer(binder, &l, c, i);
        h = layer(b, &s, h, &l);
    }
    b->layer = -1;
    qn_vision_bind_merger(binder, &ends, c);
    h = qn_build3(b, QN_OP_LAYER_NORM, h, ends.norm, ends.norm_bias, &(qn_attrs){.eps = c->eps});
    qn_build_output(b, "features", h);
}

static void build_merger(qn_build *b, qn_binder *binder, const qn_vision_config *c) {
    qn_vision_ends ends;
    qn_vision_bind_merger(binder, &ends, c);
    int32_t x = input(b, "groups", c->width * c->merge * c->merge);
    x = qn_build1(b, QN_OP_GELU_ERF, linear(b, x, ends.first, ends.first_bias), NULL);
    qn_build_output(b, "rows", linear(b, x, ends.second, ends.second_bias));
}

typedef void build_fn(qn_build *b, qn_binder *binder, const qn_vision_config *c);

static qn_status build(qn_graph *graph, const char *name, build_fn *write, qn_vision_tower *tower,
                       const qn_source *source, qn_err *err) {
    qn_build b;
    qn_binder binder;
    qn_build_init(&b, graph, name);
    QN_TRY(qn_binder_init(&binder, &tower->weights, source, &b, err));
    qn_vision_set_prefix(&binder);
    write(&b, &binder, &tower->config);
    QN_TRY(qn_build_finish(&b, err));
    return qn_graph_verify(graph, err);
}

qn_status qn_vision_tower_init(qn_vision_tower *out, const qn_source *source, qn_err *err) {
    QN_TRY(qn_vision_config_read(&out->config, source, err));
    QN_TRY(qn_vision_rules_read(&out->rules, &out->config, source, err));
    QN_TRY(build(&out->graph, "tower", build_tower, out, source, err));
    QN_TRY(build(&out->merger, "merger", build_merger, out, source, err));
    return qn_vision_check_used(&out->weights, source, out->config.layers, err);
}

void qn_vision_tower_deinit(qn_vision_tower *tower) {
    qn_graph_deinit(&tower->graph);
    qn_graph_deinit(&tower->merger);
    qn_weights_deinit(&tower->weights);
    *tower = (qn_vision_tower){0};
}
