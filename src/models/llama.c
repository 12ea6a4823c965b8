// Llama 3.x and Mistral (llama), Qwen2 and 2.5 (qwen2): pre-norm blocks of attention and a gated
// feed-forward. They differ in names, in biases, and in which values rope pairs: GGUF files of
// llama hold q and k permuted for adjacent pairs, every other file pairs the halves of a head.
#include "models/model.h"

#include <math.h>

#define BLK "blk.%d."          // a layer in GGUF
#define HF  "model.layers.%d." // a layer in a checkpoint

typedef struct llama_config {
    qn_hparams hp;
    qn_word pairs;
    unsigned qk_flags;                   // GGUF files of llama hold q and k in another order
    int64_t window;                      // 0: none
    unsigned char *kinds;                // (layers) qn_layer_kind
    unsigned qkv_bias, o_bias, ffn_bias; // flags of these rows: required or optional
    bool is_tied;
} llama_config;

typedef struct llama_layer {
    int32_t attn_norm, q, k, v, o, q_bias, k_bias, v_bias, o_bias, ffn_norm;
    qn_ffn ffn;
} llama_layer;

// Biases are bound where a file has them. Qwen2 always has those of q, k and v; a checkpoint's
// config may promise others.
static qn_status read_biases(llama_config *c, const qn_config_reader *reader, qn_err *err) {
    bool attention = false, ffn = false;
    QN_TRY(qn_config_bool(&attention, reader, NULL, "attention_bias", false, err));
    QN_TRY(qn_config_bool(&ffn, reader, NULL, "mlp_bias", false, err));
    const bool is_qwen = reader->arch[0] == 'q';
    c->qkv_bias = QN_VECTOR | (attention || is_qwen ? 0 : QN_OPTIONAL);
    c->o_bias = QN_VECTOR | (attention ? 0 : QN_OPTIONAL);
    c->ffn_bias = QN_VECTOR | (ffn ? 0 : QN_OPTIONAL);
    return QN_OK;
}

static qn_status read_llama(void *config, const qn_config_reader *reader, qn_arena *arena,
                            qn_err *err) {
    llama_config *c = config;
    if (c->hp.ffn == 0) return QN_FAIL(err, FORMAT, "the size of the feed-forward is missing");
    if (c->hp.experts > 0)
        return QN_FAIL(err, UNSUPPORTED, "%s with %lld experts", reader->arch,
                       (long long)c->hp.experts);
    QN_TRY(qn_config_expect(reader, NULL, "hidden_act", "silu swish", err));
    QN_TRY(qn_config_bool(&c->is_tied, reader, NULL, "tie_word_embeddings",
                          reader->defaults && reader->defaults->is_tied, err));
    QN_TRY(read_biases(c, reader, err));
    c->kinds = qn_arena_alloc(arena, (size_t)c->hp.layers, 1);
    if (!c->kinds) return QN_NOMEM(err, "layer kinds");
    c->qk_flags = reader->arch[0] == 'l' ? QN_ROPE_ROWS : 0;
    const bool is_permuted = !qn_is_checkpoint(reader) && c->qk_flags;
    c->pairs = is_permuted ? QN_WORD_adjacent : QN_WORD_half;
    return qn_config_windows(&c->window, c->kinds, c->hp.layers, reader, err);
}

static void bind_layer(llama_layer *l, qn_net *net, const llama_config *c, int64_t i) {
    const qn_hparams *hp = net->hp;
    const int64_t D = hp->width, Q = hp->heads * hp->head_size, K = hp->kv_heads * hp->head_size;
    const int64_t V = hp->kv_heads * hp->value_size, O = hp->heads * hp->value_size, F = hp->ffn;
    const unsigned qk = c->qk_flags;
    const qn_bind_row rows[] = {
        {&l->attn_norm, BLK "attn_norm.weight", HF "input_layernorm.weight", {D}, QN_VECTOR},
        {&l->q, BLK "attn_q.weight", HF "self_attn.q_proj.weight", {Q, D}, qk},
        {&l->k, BLK "attn_k.weight", HF "self_attn.k_proj.weight", {K, D}, qk},
        {&l->v, BLK "attn_v.weight", HF "self_attn.v_proj.weight", {V, D}, 0},
        {&l->o, BLK "attn_output.weight", HF "self_attn.o_proj.weight", {D, O}, 0},
        {&l->q_bias, BLK "attn_q.bias", HF "self_attn.q_proj.bias", {Q}, c->qkv_bias | qk},
        {&l->k_bias, BLK "attn_k.bias", HF "self_attn.k_proj.bias", {K}, c->qkv_bias | qk},
        {&l->v_bias, BLK "attn_v.bias", HF "self_attn.v_proj.bias", {V}, c->qkv_bias},
        {&l->o_bias, BLK "attn_output.bias", HF "self_attn.o_proj.bias", {D}, c->o_bias},
        {&l->ffn_norm, BLK "ffn_norm.weight", HF "post_attention_layernorm.weight", {D}, QN_VECTOR},
        {&l->ffn.gate, BLK "ffn_gate.weight", HF "mlp.gate_proj.weight", {F, D}, 0},
        {&l->ffn.up, BLK "ffn_up.weight", HF "mlp.up_proj.weight", {F, D}, 0},
        {&l->ffn.down, BLK "ffn_down.weight", HF "mlp.down_proj.weight", {D, F}, 0},
        {&l->ffn.gate_bias, BLK "ffn_gate.bias", HF "mlp.gate_proj.bias", {F}, c->ffn_bias},
        {&l->ffn.up_bias, BLK "ffn_up.bias", HF "mlp.up_proj.bias", {F}, c->ffn_bias},
        {&l->ffn.down_bias, BLK "ffn_down.bias", HF "mlp.down_proj.bias", {D}, c->ffn_bias},
    };
    l->ffn.act = QN_OP_SILU;
    qn_bind(&net->binder, rows, sizeof rows / sizeof rows[0], i);
}

static void build_llama(qn_net *net, const void *config, const qn_config_reader *reader) {
    const llama_config *c = config;
    const qn_hparams *hp = net->hp;
    qn_build *b = &net->b;
    int32_t embedding, output, norm;
    net->binder.heads = (qn_head_sizes){.head = hp->head_size, .rotate = hp->rotate};
    qn_net_bind_ends(net, &(qn_ends){&embedding, &norm, &output, c->is_tied, 0});
    const qn_turn turn = qn_net_turn(net, "rope", &qn_rope_plain, reader);
    int32_t h = qn_net_embed(net, embedding, 1.0f); // (T, D)
    for (int64_t i = 0; i < hp->layers; i++) {
        llama_layer l;
        b->layer = (int32_t)i;
        bind_layer(&l, net, c, i);
        int32_t x = qn_net_norm(net, h, l.attn_norm);
        const qn_attention attention = {
            .q = qn_net_split(net, qn_net_linear(net, x, l.q, l.q_bias), hp->heads),
            .k = qn_net_split(net, qn_net_linear(net, x, l.k, l.k_bias), hp->kv_heads),
            .v = qn_net_split(net, qn_net_linear(net, x, l.v, l.v_bias), hp->kv_heads),
            .turn = turn,
            .pairs = c->pairs,
            .scale = 1.0f / sqrtf((float)hp->head_size),
            .window = c->kinds[i] == QN_LAYER_SLIDING ? c->window : 0,
        };
        x = qn_net_linear(net, qn_net_attention(net, &attention, i), l.o, l.o_bias);
        h = qn_build2(b, QN_OP_ADD, h, x, NULL);
        x = qn_net_ffn(net, qn_net_norm(net, h, l.ffn_norm), &l.ffn);
        h = qn_build2(b, QN_OP_ADD, h, x, NULL);
        qn_net_end_layer(net, h, i);
    }
    qn_net_head(net, h, norm, output, 0);
}

static qn_status export_llama(qn_export *to, const void *config, qn_err *err) {
    const llama_config *c = config;
    const bool is_llama = c->qk_flags != 0;
    const qn_rope_form rope = {.names = &qn_rope_plain,
                               .rotate = c->hp.rotate,
                               .head_size = c->hp.head_size,
                               .states_size = is_llama,
                               .has_divisors = is_llama};
    if (is_llama) qn_export_u32(to, "vocab_size", c->hp.vocab);
    QN_TRY(qn_export_rope(to, &rope, err));
    return qn_export_window(to, c->window, c->kinds, c->hp.layers, c->hp.context, err);
}

const qn_family qn_family_llama = {.arch = "llama",
                                   .config_size = sizeof(llama_config),
                                   .read = read_llama,
                                   .build = build_llama,
                                   .export_keys = export_llama};
const qn_family qn_family_qwen2 = {.arch = "qwen2",
                                   .config_size = sizeof(llama_config),
                                   .read = read_llama,
                                   .build = build_llama,
                                   .export_keys = export_llama};
