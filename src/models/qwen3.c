// Qwen3, dense (qwen3) and with experts (qwen3moe) in all or some layers: Llama's block with a norm
// on every query and key head, and half-split rope in all files.
#include "models/model.h"

#include <math.h>

#define BLK "blk.%d."          // a layer in GGUF
#define HF  "model.layers.%d." // a layer in a checkpoint

typedef struct qwen3_config {
    qn_hparams hp;
    int64_t window, sparse_step;
    unsigned char *kinds; // (layers) qn_layer_kind
    bool *is_sparse;      // (layers) has experts; the others have one feed-forward
    unsigned bias;        // flags of the rows of attention's biases: required or optional
    bool is_tied, normalize;
    float expert_scale;
} qwen3_config;

typedef struct qwen3_layer {
    int32_t attn_norm, q, k, v, o, q_bias, k_bias, v_bias, o_bias, q_norm, k_norm, ffn_norm;
    qn_ffn ffn;
    qn_moe moe;
} qwen3_layer;

static const qn_config_row moe_rows[] = {
    QN_FLOAT_ROW(qwen3_config, expert_scale, .gguf = "expert_weights_scale", .min = 0, .max = 1e6,
                 .is_optional = true, .fallback = 1, .is_read_only = true),
};

static qn_status read_experts(qwen3_config *c, const qn_config_reader *reader, qn_err *err) {
    if (c->hp.experts == 0 || c->hp.experts_used == 0 || c->hp.expert_ffn == 0)
        return QN_FAIL(err, FORMAT, "%s: %lld experts of size %lld, %lld used", reader->arch,
                       (long long)c->hp.experts, (long long)c->hp.expert_ffn,
                       (long long)c->hp.experts_used);
    if (c->expert_scale == 0) c->expert_scale = 1; // a file without scaling says 0
    return qn_config_bool(&c->normalize, reader, NULL, "norm_topk_prob", !qn_is_checkpoint(reader),
                          err);
}

// A checkpoint's layer has experts where its number, counted from 1, is a multiple of
// decoder_sparse_step, unless mlp_only_layers names it. Numbers of no layer name none.
static qn_status read_sparse_keys(qwen3_config *c, const qn_config_reader *reader, qn_err *err) {
    static const qn_config_row row =
        QN_INT_ROW(qwen3_config, sparse_step, .hf = "decoder_sparse_step", .min = 1,
                   .max = 0x7fffffff, .is_optional = true, .fallback = 1);
    QN_TRY(qn_config_fill(c, &row, 1, reader, err));
    for (int64_t i = 0; i < c->hp.layers; i++) c->is_sparse[i] = (i + 1) % c->sparse_step == 0;
    const qn_key *dense = qn_config_find(reader, NULL, "mlp_only_layers");
    const bool is_list = dense && dense->kind == QN_KEY_ARRAY;
    if (dense && !(is_list && (dense->n == 0 || qn_key_is_array_of(dense, QN_KEY_INT))))
        return QN_FAIL(err, FORMAT, "mlp_only_layers: %s, want a list of whole numbers",
                       dense->type_name);
    for (size_t i = 0; dense && i < dense->n; i++) {
        const int64_t layer = qn_key_int_at(dense, i);
        if (layer >= 0 && layer < c->hp.layers) c->is_sparse[layer] = false;
    }
    return QN_OK;
}

// GGUF has no key for it: a layer without a router, but with a feed-forward, is dense.
static void find_sparse_layers(qwen3_config *c, const qn_config_reader *reader) {
    const qn_binder names = {.source = reader->source};
    for (int64_t i = 0; i < c->hp.layers; i++)
        c->is_sparse[i] = qn_binder_find(&names, BLK "ffn_gate_inp.weight", "", i) ||
                          !qn_binder_find(&names, BLK "ffn_gate.weight", "", i);
}

static qn_status read_sparse(qwen3_config *c, const qn_config_reader *reader, qn_err *err) {
    if (qn_is_checkpoint(reader))
        QN_TRY(read_sparse_keys(c, reader, err));
    else
        find_sparse_layers(c, reader);
    for (int64_t i = 0; i < c->hp.layers; i++) {
        if (!c->is_sparse[i] && c->hp.ffn == 0)
            return QN_FAIL(err, FORMAT, "layer %lld has no experts, and %s is missing",
                           (long long)i,
                           qn_is_checkpoint(reader) ? "intermediate_size" : "feed_forward_length");
    }
    return QN_OK;
}

static qn_status read_qwen3(void *config, const qn_config_reader *reader, qn_arena *arena,
                            qn_err *err) {
    qwen3_config *c = config;
    QN_TRY(qn_config_expect(reader, NULL, "hidden_act", "silu swish", err));
    bool has_bias; // a file may have biases without a promise of them
    QN_TRY(qn_config_bool(&has_bias, reader, NULL, "attention_bias", false, err));
    c->bias = QN_VECTOR | (has_bias ? 0 : QN_OPTIONAL);
    QN_TRY(qn_config_bool(&c->is_tied, reader, NULL, "tie_word_embeddings",
                          reader->defaults && reader->defaults->is_tied, err));
    c->kinds = qn_arena_alloc(arena, (size_t)c->hp.layers, 1);
    c->is_sparse = qn_arena_alloc(arena, (size_t)c->hp.layers, sizeof *c->is_sparse);
    if (!c->kinds || !c->is_sparse) return QN_NOMEM(err, "layer kinds");
    if (c->hp.experts > 0) QN_TRY(read_sparse(c, reader, err));
    return qn_config_windows(&c->window, c->kinds, c->hp.layers, reader, err);
}

static qn_status read_qwen3_dense(void *config, const qn_config_reader *reader, qn_arena *arena,
                                  qn_err *err) {
    qwen3_config *c = config;
    if (c->hp.ffn == 0) return QN_FAIL(err, FORMAT, "the size of the feed-forward is missing");
    c->hp.experts = c->hp.experts_used = c->hp.expert_ffn = 0;
    return read_qwen3(config, reader, arena, err);
}

static qn_status read_qwen3_moe(void *config, const qn_config_reader *reader, qn_arena *arena,
                                qn_err *err) {
    QN_TRY(read_experts(config, reader, err));
    return read_qwen3(config, reader, arena, err);
}

static void bind_attention(qwen3_layer *l, qn_net *net, const qwen3_config *c, int64_t i) {
    const qn_hparams *hp = net->hp;
    const int64_t D = hp->width, E = hp->head_size, Q = hp->heads * E, K = hp->kv_heads * E;
    const int64_t V = hp->kv_heads * hp->value_size, O = hp->heads * hp->value_size;
    const qn_bind_row rows[] = {
        {&l->attn_norm, BLK "attn_norm.weight", HF "input_layernorm.weight", {D}, QN_VECTOR},
        {&l->q, BLK "attn_q.weight", HF "self_attn.q_proj.weight", {Q, D}, 0},
        {&l->k, BLK "attn_k.weight", HF "self_attn.k_proj.weight", {K, D}, 0},
        {&l->v, BLK "attn_v.weight", HF "self_attn.v_proj.weight", {V, D}, 0},
        {&l->o, BLK "attn_output.weight", HF "self_attn.o_proj.weight", {D, O}, 0},
        {&l->q_bias, BLK "attn_q.bias", HF "self_attn.q_proj.bias", {Q}, c->bias},
        {&l->k_bias, BLK "attn_k.bias", HF "self_attn.k_proj.bias", {K}, c->bias},
        {&l->v_bias, BLK "attn_v.bias", HF "self_attn.v_proj.bias", {V}, c->bias},
        {&l->o_bias, BLK "attn_output.bias", HF "self_attn.o_proj.bias", {D}, c->bias},
        {&l->q_norm, BLK "attn_q_norm.weight", HF "self_attn.q_norm.weight", {E}, QN_VECTOR},
        {&l->k_norm, BLK "attn_k_norm.weight", HF "self_attn.k_norm.weight", {E}, QN_VECTOR},
        {&l->ffn_norm, BLK "ffn_norm.weight", HF "post_attention_layernorm.weight", {D}, QN_VECTOR},
    };
    qn_bind(&net->binder, rows, sizeof rows / sizeof rows[0], i);
}

static void bind_ffn(qwen3_layer *l, qn_net *net, const qwen3_config *c, int64_t i) {
    const int64_t D = net->hp->width, F = net->hp->ffn, X = net->hp->experts;
    const qn_bind_row dense[] = {
        {&l->ffn.gate, BLK "ffn_gate.weight", HF "mlp.gate_proj.weight", {F, D}, 0},
        {&l->ffn.up, BLK "ffn_up.weight", HF "mlp.up_proj.weight", {F, D}, 0},
        {&l->ffn.down, BLK "ffn_down.weight", HF "mlp.down_proj.weight", {D, F}, 0},
    };
    const qn_bind_row router = {
        &l->moe.router, BLK "ffn_gate_inp.weight", HF "mlp.gate.weight", {X, D}, QN_KEEP_F32};
    l->ffn = (qn_ffn){QN_NO_BIASES, .act = QN_OP_SILU};
    l->moe = (qn_moe){.normalize = c->normalize, .scale = c->expert_scale};
    if (!c->is_sparse[i]) {
        qn_bind(&net->binder, dense, 3, i);
        return;
    }
    qn_bind(&net->binder, &router, 1, i);
    qn_bind_experts(&net->binder, &l->moe.experts, &(qn_expert_sizes){X, net->hp->expert_ffn, D},
                    i);
}

static void build_qwen3(qn_net *net, const void *config, const qn_config_reader *reader) {
    const qwen3_config *c = config;
    const qn_hparams *hp = net->hp;
    qn_build *b = &net->b;
    int32_t embedding, output, norm;
    qn_net_bind_ends(net, &(qn_ends){&embedding, &norm, &output, c->is_tied, 0});
    const qn_turn turn = qn_net_turn(net, "rope", &qn_rope_plain, reader);
    int32_t h = qn_net_embed(net, embedding, 1.0f); // (T, D)
    for (int64_t i = 0; i < hp->layers; i++) {
        qwen3_layer l;
        b->layer = (int32_t)i;
        bind_attention(&l, net, c, i);
        bind_ffn(&l, net, c, i);
        int32_t x = qn_net_norm(net, h, l.attn_norm);
        const int32_t q = qn_net_split(net, qn_net_linear(net, x, l.q, l.q_bias), hp->heads);
        const int32_t k = qn_net_split(net, qn_net_linear(net, x, l.k, l.k_bias), hp->kv_heads);
        const int32_t v = qn_net_linear(net, x, l.v, l.v_bias);
        const qn_attention attention = {
            .q = qn_net_norm(net, q, l.q_norm),
            .k = qn_net_norm(net, k, l.k_norm),
            .v = qn_net_split(net, v, hp->kv_heads),
            .turn = turn,
            .pairs = QN_WORD_half,
            .scale = 1.0f / sqrtf((float)hp->head_size),
            .window = c->kinds[i] == QN_LAYER_SLIDING ? c->window : 0,
        };
        x = qn_net_linear(net, qn_net_attention(net, &attention, i), l.o, l.o_bias);
        h = qn_build2(b, QN_OP_ADD, h, x, NULL);
        x = qn_net_norm(net, h, l.ffn_norm);
        x = c->is_sparse[i] ? qn_net_moe(net, x, &l.moe) : qn_net_ffn(net, x, &l.ffn);
        h = qn_build2(b, QN_OP_ADD, h, x, NULL);
        qn_net_end_layer(net, h, i);
    }
    qn_net_head(net, h, norm, output, 0);
}

static qn_status export_qwen3(qn_export *to, const void *config, qn_err *err) {
    const qwen3_config *c = config;
    const qn_rope_form rope = {
        .names = &qn_rope_plain, .rotate = c->hp.rotate, .head_size = c->hp.head_size};
    if (c->hp.experts > 0 && !c->normalize)
        return QN_FAIL(err, UNSUPPORTED, "norm_topk_prob: false: GGUF files of %s cannot say that",
                       to->reader->arch);
    for (int64_t i = 0; i < c->hp.layers && c->hp.experts > 0; i++) {
        if (c->is_sparse[i]) continue;
        qn_export_note(to, "some layers have no experts: other readers of GGUF files of this "
                           "architecture may refuse the file");
        break;
    }
    QN_TRY(qn_export_rope(to, &rope, err));
    return qn_export_window(to, c->window, c->kinds, c->hp.layers, c->hp.context, err);
}

const qn_family qn_family_qwen3 = {.arch = "qwen3",
                                   .config_size = sizeof(qwen3_config),
                                   .read = read_qwen3_dense,
                                   .build = build_qwen3,
                                   .export_keys = export_qwen3};
const qn_family qn_family_qwen3moe = {.arch = "qwen3moe",
                                      .config_size = sizeof(qwen3_config),
                                      .rows = moe_rows,
                                      .n_rows = sizeof moe_rows / sizeof moe_rows[0],
                                      .read = read_qwen3_moe,
                                      .build = build_qwen3,
                                      .export_keys = export_qwen3};
