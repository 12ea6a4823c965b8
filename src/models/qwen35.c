// Qwen3.5 and 3.6, dense (qwen35) and with experts (qwen35moe): most layers are gated delta nets
// with a short convolution, every n-th one is full attention with a gate on its output, partial
// rope and positions in sections. Heads that predict further tokens follow the last layer and are
// left out here.
#include "models/model.h"

#include "core/mem.h"

#include <math.h>
#include <stdio.h>

#define BLK "blk.%d."          // a layer in GGUF
#define HF  "model.layers.%d." // a layer in a checkpoint

typedef struct qwen35_config {
    qn_hparams hp;
    int64_t interval;                               // every n-th layer is full attention
    int64_t key_heads, val_heads, key_dim, val_dim; // of the delta rule: G, H, E, F
    int64_t taps, inner, shared_ffn;
    qn_list sections;
    unsigned char *kinds; // (layers) qn_layer_kind
    bool is_tied, is_tiled;
    float expert_scale;
} qwen35_config;

typedef struct qwen35_layer {
    int32_t attn_norm, ffn_norm;
    int32_t q, k, v, o, q_norm, k_norm;                             // full attention
    int32_t qkv, z, alpha, beta, conv, a, dt_bias, ssm_norm, ssm_o; // delta net
    int32_t shared_gate;
    qn_ffn ffn;
    qn_moe moe;
} qwen35_layer;

static qn_status read_sections(qwen35_config *c, const qn_config_reader *reader, qn_err *err) {
    const qn_key *key = qn_config_find(reader, "rope.dimension_sections",
                                       "rope_parameters.mrope_section|rope_scaling.mrope_section");
    if (!key) return QN_OK;
    if (!qn_key_is_array_of(key, QN_KEY_INT) || key->n < 3 || key->n > 4)
        return QN_FAIL(err, FORMAT, "%s: %s of %zu, want 3 or 4 whole numbers", key->name.data,
                       key->type_name, key->n);
    int64_t sum = 0;
    for (size_t i = 0; i < key->n; i++) {
        c->sections.v[i] = qn_key_int_at(key, i);
        if (c->sections.v[i] < 0 || c->sections.v[i] > c->hp.rotate)
            return QN_FAIL(err, FORMAT, "%s: section of %lld pairs", key->name.data,
                           (long long)c->sections.v[i]);
        sum += c->sections.v[i];
    }
    if (sum != c->hp.rotate / 2)
        return QN_FAIL(err, FORMAT, "%s: sections of %lld pairs together, rope turns %lld",
                       key->name.data, (long long)sum, (long long)c->hp.rotate / 2);
    return QN_OK;
}

static qn_status read_layers(qwen35_config *c, const qn_config_reader *reader, qn_err *err) {
    bool found;
    for (int64_t i = 0; i < c->hp.layers; i++)
        c->kinds[i] = (i + 1) % c->interval == 0 ? QN_LAYER_FULL : QN_LAYER_LINEAR;
    QN_TRY(qn_config_layer_types(c->kinds, c->hp.layers, &found, reader, err));
    const qn_key *key = qn_config_find(reader, "attention.recurrent_layers", NULL);
    if (key) {
        const bool fits = qn_key_is_array_of(key, QN_KEY_BOOL) && key->n >= (size_t)c->hp.layers &&
                          key->n <= (size_t)(c->hp.layers + c->hp.predict_layers);
        if (!fits)
            return QN_FAIL(err, FORMAT, "%s: %s of %zu, the model has %lld layers", key->name.data,
                           key->type_name, key->n, (long long)c->hp.layers);
        for (int64_t i = 0; i < c->hp.layers; i++)
            c->kinds[i] = qn_key_bool_at(key, (size_t)i) ? QN_LAYER_LINEAR : QN_LAYER_FULL;
    }
    for (int64_t i = 0; i < c->hp.layers; i++) {
        if (c->kinds[i] == QN_LAYER_SLIDING)
            return QN_FAIL(err, UNSUPPORTED, "%s: layer %lld is sliding", reader->arch,
                           (long long)i);
    }
    return QN_OK;
}

static const qn_config_row qwen35_rows[] = {
    QN_INT_ROW(qwen35_config, interval, .gguf = "full_attention_interval",
               .hf = "full_attention_interval", .min = 1, .max = 4096, .is_optional = true,
               .fallback = 4, .hf_default = QN_DEFAULT(interval)),
    QN_INT_ROW(qwen35_config, key_heads, .gguf = "ssm.group_count", .hf = "linear_num_key_heads",
               .min = 1, .max = 1 << 16, .hf_default = QN_DEFAULT(key_heads)),
    QN_INT_ROW(qwen35_config, val_heads, .gguf = "ssm.time_step_rank",
               .hf = "linear_num_value_heads", .min = 1, .max = 1 << 16,
               .hf_default = QN_DEFAULT(val_heads)),
    QN_INT_ROW(qwen35_config, key_dim, .gguf = "ssm.state_size", .hf = "linear_key_head_dim",
               .min = 1, .max = 1 << 16, .hf_default = QN_DEFAULT(key_dim)),
    QN_INT_ROW(qwen35_config, val_dim, .hf = "linear_value_head_dim", .min = 1, .max = 1 << 16,
               .is_optional = true, .hf_default = QN_DEFAULT(val_dim)),
    QN_INT_ROW(qwen35_config, taps, .gguf = "ssm.conv_kernel", .hf = "linear_conv_kernel_dim",
               .min = 2, .max = 64, .hf_default = QN_DEFAULT(taps)),
    QN_INT_ROW(qwen35_config, inner, .gguf = "ssm.inner_size", .min = 1, .max = 1 << 24,
               .is_optional = true),
    QN_INT_ROW(qwen35_config, hp.predict_layers, .gguf = "nextn_predict_layers",
               .hf = "mtp_num_hidden_layers", .min = 0, .max = 4096, .is_optional = true,
               .is_nullable = true),
    QN_INT_ROW(qwen35_config, shared_ffn, .gguf = "expert_shared_feed_forward_length",
               .hf = "shared_expert_intermediate_size", .min = 1, .max = 1 << 24,
               .is_optional = true, .hf_default = QN_DEFAULT(shared_ffn), .is_nullable = true),
    QN_FLOAT_ROW(qwen35_config, expert_scale, .gguf = "expert_weights_scale", .min = 0, .max = 1e6,
                 .is_optional = true, .fallback = 1, .is_read_only = true),
};

static qn_status check_sizes(const qwen35_config *c, qn_err *err) {
    if (c->val_heads % c->key_heads)
        return QN_FAIL(err, FORMAT, "delta net: %lld value heads, %lld key heads",
                       (long long)c->val_heads, (long long)c->key_heads);
    if (c->inner && c->inner != c->val_heads * c->val_dim)
        return QN_FAIL(err, FORMAT, "delta net: inner size %lld, want %lld heads of %lld",
                       (long long)c->inner, (long long)c->val_heads, (long long)c->val_dim);
    const bool has_experts = c->hp.experts > 0;
    if (has_experts && (!c->hp.experts_used || !c->hp.expert_ffn || !c->shared_ffn))
        return QN_FAIL(err, FORMAT, "%lld experts of size %lld, %lld used, shared size %lld",
                       (long long)c->hp.experts, (long long)c->hp.expert_ffn,
                       (long long)c->hp.experts_used, (long long)c->shared_ffn);
    if (!has_experts && c->hp.ffn == 0)
        return QN_FAIL(err, FORMAT, "the size of the feed-forward is missing");
    return QN_OK;
}

// Checkpoints and files are often published without the prediction layers that their config counts.
static bool has_predict_layer(const qwen35_config *c, const qn_config_reader *reader) {
    const qn_binder names = {.source = reader->source};
    return qn_binder_find(&names, BLK "nextn.eh_proj.weight", "mtp.fc.weight", c->hp.layers);
}

static qn_status read_qwen35(void *config, const qn_config_reader *reader, qn_arena *arena,
                             qn_err *err) {
    qwen35_config *c = config;
    QN_TRY(qn_config_expect(reader, NULL, "hidden_act", "silu swish", err));
    QN_TRY(qn_config_refuse(reader, "attention_bias", err));
    QN_TRY(qn_config_bool(&c->is_tied, reader, NULL, "tie_word_embeddings",
                          reader->defaults && reader->defaults->is_tied, err));
    bool has_gate;
    QN_TRY(qn_config_bool(&has_gate, reader, NULL, "attn_output_gate", true, err));
    if (!has_gate) return QN_FAIL(err, UNSUPPORTED, "attn_output_gate: false");
    if (c->val_dim == 0) c->val_dim = c->key_dim;
    if (c->expert_scale == 0) c->expert_scale = 1; // a file without scaling says 0
    c->is_tiled = !qn_is_checkpoint(reader);
    if (c->is_tiled) { // GGUF counts the prediction layers as blocks
        if (c->hp.predict_layers >= c->hp.layers)
            return QN_FAIL(err, FORMAT, "%lld prediction layers of %lld blocks",
                           (long long)c->hp.predict_layers, (long long)c->hp.layers);
        c->hp.layers -= c->hp.predict_layers;
    }
    QN_TRY(check_sizes(c, err));
    c->inner = c->val_heads * c->val_dim;
    QN_TRY(read_sections(c, reader, err));
    c->kinds = qn_arena_alloc(arena, (size_t)c->hp.layers, 1);
    if (!c->kinds) return QN_NOMEM(err, "layer kinds");
    QN_TRY(read_layers(c, reader, err));
    if (!has_predict_layer(c, reader)) c->hp.predict_layers = 0;
    return QN_OK;
}

static qn_status read_qwen35_dense(void *config, const qn_config_reader *reader, qn_arena *arena,
                                   qn_err *err) {
    qwen35_config *c = config;
    c->hp.experts = c->hp.experts_used = c->hp.expert_ffn = c->shared_ffn = 0;
    return read_qwen35(config, reader, arena, err);
}

static qn_status read_qwen35_moe(void *config, const qn_config_reader *reader, qn_arena *arena,
                                 qn_err *err) {
    if (((qwen35_config *)config)->hp.experts == 0)
        return QN_FAIL(err, FORMAT, "%s: the number of experts is missing", reader->arch);
    return read_qwen35(config, reader, arena, err);
}

static void bind_full(qwen35_layer *l, qn_net *net, int64_t i) {
    const unsigned norm = QN_VECTOR | QN_PLUS_ONE;
    const qn_hparams *hp = net->hp;
    const int64_t D = hp->width, E = hp->head_size, Q = 2 * hp->heads * E, K = hp->kv_heads * E;
    const int64_t V = hp->kv_heads * hp->value_size, O = hp->heads * hp->value_size;
    const qn_bind_row rows[] = {
        {&l->q, BLK "attn_q.weight", HF "self_attn.q_proj.weight", {Q, D}, 0},
        {&l->k, BLK "attn_k.weight", HF "self_attn.k_proj.weight", {K, D}, 0},
        {&l->v, BLK "attn_v.weight", HF "self_attn.v_proj.weight", {V, D}, 0},
        {&l->o, BLK "attn_output.weight", HF "self_attn.o_proj.weight", {D, O}, 0},
        {&l->q_norm, BLK "attn_q_norm.weight", HF "self_attn.q_norm.weight", {E}, norm},
        {&l->k_norm, BLK "attn_k_norm.weight", HF "self_attn.k_norm.weight", {E}, norm},
    };
    qn_bind(&net->binder, rows, sizeof rows / sizeof rows[0], i);
}

static void bind_linear(qwen35_layer *l, qn_net *net, const qwen35_config *c, int64_t i) {
    const int64_t D = net->hp->width, H = c->val_heads, I = H * c->val_dim;
    const int64_t C = 2 * c->key_heads * c->key_dim + I;
    const unsigned tail = QN_VALUE_TAIL, heads = QN_VALUE_ROWS;
    const qn_bind_row rows[] = {
        {&l->qkv, BLK "attn_qkv.weight", HF "linear_attn.in_proj_qkv.weight", {C, D}, tail},
        {&l->z, BLK "attn_gate.weight", HF "linear_attn.in_proj_z.weight", {I, D}, heads},
        {&l->alpha, BLK "ssm_alpha.weight", HF "linear_attn.in_proj_a.weight", {H, D}, heads},
        {&l->beta, BLK "ssm_beta.weight", HF "linear_attn.in_proj_b.weight", {H, D}, heads},
        {&l->conv,
         BLK "ssm_conv1d.weight",
         HF "linear_attn.conv1d.weight",
         {C, c->taps},
         QN_VECTOR | tail},
        {&l->a, BLK "ssm_a", HF "linear_attn.A_log", {H}, QN_VECTOR | QN_NEG_EXP | heads},
        {&l->dt_bias, BLK "ssm_dt.bias", HF "linear_attn.dt_bias", {H}, QN_VECTOR | heads},
        {&l->ssm_norm,
         BLK "ssm_norm.weight",
         HF "linear_attn.norm.weight",
         {c->val_dim},
         QN_VECTOR},
        {&l->ssm_o,
         BLK "ssm_out.weight",
         HF "linear_attn.out_proj.weight",
         {D, I},
         QN_VALUE_COLUMNS},
    };
    net->binder.heads =
        (qn_head_sizes){.key_heads = c->key_heads, .value_heads = H, .value_dim = c->val_dim};
    qn_bind(&net->binder, rows, sizeof rows / sizeof rows[0], i);
}

// With experts, `ffn` is the shared one, which every row uses.
static void bind_ffn(qwen35_layer *l, qn_net *net, const qwen35_config *c, int64_t i) {
    const int64_t D = net->hp->width, F = net->hp->ffn, S = c->shared_ffn, X = net->hp->experts;
    const qn_bind_row dense[] = {
        {&l->ffn.gate, BLK "ffn_gate.weight", HF "mlp.gate_proj.weight", {F, D}, 0},
        {&l->ffn.up, BLK "ffn_up.weight", HF "mlp.up_proj.weight", {F, D}, 0},
        {&l->ffn.down, BLK "ffn_down.weight", HF "mlp.down_proj.weight", {D, F}, 0},
    };
    const qn_bind_row experts[] = {
        {&l->moe.router, BLK "ffn_gate_inp.weight", HF "mlp.gate.weight", {X, D}, QN_KEEP_F32},
        {&l->shared_gate,
         BLK "ffn_gate_inp_shexp.weight",
         HF "mlp.shared_expert_gate.weight",
         {1, D},
         QN_KEEP_F32},
        {&l->ffn.gate,
         BLK "ffn_gate_shexp.weight",
         HF "mlp.shared_expert.gate_proj.weight",
         {S, D},
         0},
        {&l->ffn.up, BLK "ffn_up_shexp.weight", HF "mlp.shared_expert.up_proj.weight", {S, D}, 0},
        {&l->ffn.down,
         BLK "ffn_down_shexp.weight",
         HF "mlp.shared_expert.down_proj.weight",
         {D, S},
         0},
    };
    l->ffn = (qn_ffn){QN_NO_BIASES, .act = QN_OP_SILU};
    l->moe = (qn_moe){.normalize = true, .scale = c->expert_scale};
    if (X == 0) {
        qn_bind(&net->binder, dense, 3, i);
        return;
    }
    qn_bind(&net->binder, experts, 5, i);
    qn_bind_experts(&net->binder, &l->moe.experts, &(qn_expert_sizes){X, net->hp->expert_ffn, D},
                    i);
}

static void bind_layer(qwen35_layer *l, qn_net *net, const qwen35_config *c, int64_t i,
                       qn_layer_kind kind) {
    const unsigned norm = QN_VECTOR | QN_PLUS_ONE;
    const int64_t D = net->hp->width;
    const qn_bind_row norms[] = {
        {&l->attn_norm, BLK "attn_norm.weight", HF "input_layernorm.weight", {D}, norm},
        {&l->ffn_norm,
         BLK "post_attention_norm.weight",
         HF "post_attention_layernorm.weight",
         {D},
         norm},
    };
    qn_bind(&net->binder, norms, 2, i);
    if (kind == QN_LAYER_FULL)
        bind_full(l, net, i);
    else
        bind_linear(l, net, c, i);
    bind_ffn(l, net, c, i);
}

// Attention whose query matrix also makes a gate: each head's rows are [query | gate].
static int32_t build_full(qn_net *net, int32_t x, const qwen35_config *c, const qwen35_layer *l,
                          int64_t i, qn_turn turn) {
    const qn_hparams *hp = net->hp;
    const bool is_head = i >= hp->layers;
    const int64_t E = hp->head_size;
    qn_build *b = &net->b;
    const int32_t both =
        qn_net_split(net, qn_net_linear(net, x, l->q, QN_NO_VALUE), hp->heads); // (T, H, 2E)
    const int32_t k = qn_net_split(net, qn_net_linear(net, x, l->k, QN_NO_VALUE), hp->kv_heads);
    const int32_t v = qn_net_split(net, qn_net_linear(net, x, l->v, QN_NO_VALUE), hp->kv_heads);
    const qn_attention attention = {
        .q = qn_net_norm(net, qn_net_narrow(net, both, 2, 0, E), l->q_norm),
        .k = qn_net_norm(net, k, l->k_norm),
        .v = v,
        .turn = turn,
        .pairs = QN_WORD_half,
        .sections = c->sections,
        .scale = 1.0f / sqrtf((float)E),
        .skips_first = is_head,
    };
    int32_t gate = qn_build1(b, QN_OP_MERGE, qn_net_narrow(net, both, 2, E, E), NULL); // (T, H*E)
    gate = qn_build1(b, QN_OP_SIGMOID, gate, NULL);
    const int32_t o = qn_net_attention(net, &attention, i);
    return qn_net_linear(net, qn_build2(b, QN_OP_MUL, o, gate, NULL), l->o, QN_NO_VALUE);
}

static int32_t state_input(qn_net *net, const char *kind, int64_t layer, qn_shape shape) {
    char name[32];
    snprintf(name, sizeof name, "%s.%lld", kind, (long long)layer);
    return qn_build_input(&net->b, name, QN_STATE_VALUE, QN_TYPE_F32, shape);
}

// The decay g = softplus(alpha x + dt) a and the step beta = sigmoid(beta x), one per value head.
static void build_gates(qn_net *net, int32_t x, const qwen35_layer *l, int32_t *g, int32_t *beta) {
    qn_build *b = &net->b;
    const int32_t dt = qn_net_linear(net, x, l->alpha, l->dt_bias);
    *g = qn_build2(b, QN_OP_MUL, qn_build1(b, QN_OP_SOFTPLUS, dt, NULL), l->a, NULL); // (T, H)
    *beta = qn_build1(b, QN_OP_SIGMOID, qn_net_linear(net, x, l->beta, QN_NO_VALUE), NULL);
}

static int32_t build_linear(qn_net *net, int32_t x, const qwen35_config *c, const qwen35_layer *l,
                            int64_t i) {
    qn_build *b = &net->b;
    const int64_t G = c->key_heads, H = c->val_heads, E = c->key_dim, F = c->val_dim;
    const int64_t C = 2 * G * E + H * F;
    const qn_attrs unit = {.eps = 1e-6f}; // of the unit-length norm of queries and keys
    int32_t g, beta;
    build_gates(net, x, l, &g, &beta);
    const int32_t conv_state =
        state_input(net, "conv", i, (qn_shape){2, {{c->taps - 1, QN_SYM_ONE}, {C, QN_SYM_ONE}}});
    const int32_t u = qn_net_linear(net, x, l->qkv, QN_NO_VALUE); // (T, C)
    int32_t mixed =
        qn_build_op(b, QN_OP_CONV, (int32_t[]){u, l->conv, conv_state, net->table}, 4, NULL);
    mixed = qn_build1(b, QN_OP_SILU, mixed, NULL);
    int32_t q = qn_net_split(net, qn_net_narrow(net, mixed, 1, 0, G * E), G);     // (T, G, E)
    int32_t k = qn_net_split(net, qn_net_narrow(net, mixed, 1, G * E, G * E), G); // (T, G, E)
    const int32_t v =
        qn_net_split(net, qn_net_narrow(net, mixed, 1, 2 * G * E, H * F), H); // (T, H, F)
    q = qn_build1(b, QN_OP_L2_NORM, q, &unit);
    k = qn_build1(b, QN_OP_L2_NORM, k, &unit);
    const qn_attrs rule = {.scale = 1.0f / sqrtf((float)E),
                           .heads = c->is_tiled ? QN_WORD_tiled : QN_WORD_grouped};
    const int32_t state = state_input(
        net, "delta", i, (qn_shape){3, {{H, QN_SYM_ONE}, {E, QN_SYM_ONE}, {F, QN_SYM_ONE}}});
    int32_t o = qn_build_op(b, QN_OP_DELTA, (int32_t[]){q, k, v, g, beta, state, net->table}, 7,
                            &rule); // (T, H, F)
    o = qn_net_norm(net, o, l->ssm_norm);
    const int32_t z = qn_net_split(net, qn_net_linear(net, x, l->z, QN_NO_VALUE), H);
    o = qn_build2(b, QN_OP_MUL, o, qn_build1(b, QN_OP_SILU, z, NULL), NULL);
    return qn_net_linear(net, qn_build1(b, QN_OP_MERGE, o, NULL), l->ssm_o, QN_NO_VALUE);
}

static int32_t build_ffn(qn_net *net, int32_t x, const qwen35_layer *l) {
    qn_build *b = &net->b;
    int32_t y = qn_net_ffn(net, x, &l->ffn);
    if (net->hp->experts == 0) return y;
    int32_t gate = qn_net_linear(net, x, l->shared_gate, QN_NO_VALUE); // (T, 1)
    gate = qn_build1(b, QN_OP_SIGMOID, gate, NULL);
    y = qn_build2(b, QN_OP_MUL, y, gate, NULL);
    return qn_build2(b, QN_OP_ADD, qn_net_moe(net, x, &l->moe), y, NULL);
}

// --- the prediction head -------------------------------------------------------------------------
//
// One more layer. From the trunk's row of a token (after the final norm) and the embedding of the
// token after it, it predicts the token after that. Its keys and values lie at the position of the
// token whose embedding it reads, so that they depend on no later one and follow every fork and
// rollback; the first token, which has none before it, is seen by nobody.

// What the head reads of a layer of its own.
typedef struct qwen35_head {
    qwen35_layer layer;
    int32_t joined, embedding_norm, hidden_norm, norm;
    qn_turn turn;
} qwen35_head;

static void bind_head(qwen35_head *head, qn_net *net, const qwen35_config *c) {
    const int64_t D = c->hp.width, layer = c->hp.layers;
    const unsigned norm = QN_VECTOR | QN_PLUS_ONE;
    const qn_bind_row rows[] = {
        {&head->joined, BLK "nextn.eh_proj.weight", "mtp.fc.weight", {D, 2 * D}, 0},
        {&head->embedding_norm,
         BLK "nextn.enorm.weight",
         "mtp.pre_fc_norm_embedding.weight",
         {D},
         norm},
        {&head->hidden_norm, BLK "nextn.hnorm.weight", "mtp.pre_fc_norm_hidden.weight", {D}, norm},
        {&head->norm, BLK "nextn.shared_head_norm.weight", "mtp.norm.weight", {D}, norm},
    };
    if (c->hp.predict_layers > 1 && !net->b.status)
        net->b.status = QN_FAIL(&net->b.err, UNSUPPORTED, "%lld prediction layers, supported: 1",
                                (long long)c->hp.predict_layers);
    net->binder.predict_from = layer;
    qn_bind(&net->binder, rows, sizeof rows / sizeof rows[0], layer);
    bind_layer(&head->layer, net, c, layer, QN_LAYER_FULL);
}

// e: embeddings, hidden: the trunk's rows of the tokens before (both (T, D)). -> (T, D), before the
// head's norm.
static int32_t build_head(qn_net *net, const qwen35_config *c, const qwen35_head *head, int32_t e,
                          int32_t hidden) {
    qn_build *b = &net->b;
    const qwen35_layer *l = &head->layer;
    b->layer = (int32_t)c->hp.layers;
    int32_t x = qn_build2(b, QN_OP_CONCAT, qn_net_norm(net, e, head->embedding_norm),
                          qn_net_norm(net, hidden, head->hidden_norm), &(qn_attrs){.axis = 1});
    int32_t h = qn_net_linear(net, x, head->joined, QN_NO_VALUE); // (T, D)
    x = build_full(net, qn_net_norm(net, h, l->attn_norm), c, l, c->hp.layers, head->turn);
    h = qn_build2(b, QN_OP_ADD, h, x, NULL);
    x = build_ffn(net, qn_net_norm(net, h, l->ffn_norm), l);
    h = qn_build2(b, QN_OP_ADD, h, x, NULL);
    b->layer = -1;
    return h;
}

// The row before each, kept between steps as a convolution keeps its inputs.
static int32_t build_shift(qn_net *net, int32_t x) {
    qn_build *b = &net->b;
    const int64_t D = net->hp->width;
    if (b->status) return QN_NO_VALUE;
    float *taps = qn_alloc((size_t)D, 2 * sizeof *taps);
    if (!taps) b->status = QN_NOMEM(&b->err, "prediction head");
    for (int64_t i = 0; taps && i < D; i++) taps[2 * i] = 1;
    const int32_t w = qn_net_split(net, qn_build_const(b, "shift", taps, 2 * D), D); // (D, 2)
    qn_free(taps);
    const int32_t state = state_input(net, "shift", net->hp->layers,
                                      (qn_shape){2, {{1, QN_SYM_ONE}, {D, QN_SYM_ONE}}});
    return qn_build_op(b, QN_OP_CONV, (int32_t[]){x, w, state, net->table}, 4, NULL);
}

static void build_qwen35(qn_net *net, const void *config, const qn_config_reader *reader) {
    const qwen35_config *c = config;
    qn_build *b = &net->b;
    int32_t embedding, output, norm;
    qn_net_bind_ends(net, &(qn_ends){&embedding, &norm, &output, c->is_tied, QN_PLUS_ONE});
    const qn_turn turn = qn_net_turn(net, "rope", &qn_rope_plain, reader);
    const int32_t e = qn_net_embed(net, embedding, 1.0f); // (T, D)
    int32_t h = e;
    for (int64_t i = 0; i < c->hp.layers; i++) {
        qwen35_layer l;
        b->layer = (int32_t)i;
        bind_layer(&l, net, c, i, c->kinds[i]);
        int32_t x = qn_net_norm(net, h, l.attn_norm);
        x = c->kinds[i] == QN_LAYER_FULL ? build_full(net, x, c, &l, i, turn)
                                         : build_linear(net, x, c, &l, i);
        h = qn_build2(b, QN_OP_ADD, h, x, NULL);
        x = build_ffn(net, qn_net_norm(net, h, l.ffn_norm), &l);
        h = qn_build2(b, QN_OP_ADD, h, x, NULL);
        qn_net_end_layer(net, h, i);
    }
    const int32_t last = qn_net_head(net, h, norm, output, 0);
    if (!net->with_predict) return;
    // Of the head only its keys and values are needed here; passes drop the rest.
    qwen35_head head = {.turn = turn};
    b->layer = (int32_t)c->hp.layers;
    bind_head(&head, net, c);
    const int32_t before = build_shift(net, last);
    (void)build_head(net, c, &head, e, before);
    qn_net_show_rows(net, QN_ROWS_LAST, last);
    qn_net_show_rows(net, QN_ROWS_BEFORE, before);
}

static void build_predict(qn_net *net, const void *config, const qn_config_reader *reader) {
    const qwen35_config *c = config;
    qn_build *b = &net->b;
    int32_t embedding, output, trunk_norm;
    qn_net_bind_ends(net, &(qn_ends){&embedding, &trunk_norm, &output, c->is_tied, QN_PLUS_ONE});
    qwen35_head head = {
        .turn = qn_net_turn(net, "rope", &qn_rope_plain, reader),
    };
    bind_head(&head, net, c);
    const qn_shape shape = {2, {{1, QN_SYM_T}, {c->hp.width, QN_SYM_ONE}}};
    const int32_t hidden = qn_build_input(b, QN_ROWS_BEFORE, QN_TENSOR, QN_TYPE_F32, shape);
    const int32_t e = qn_net_rows(net, embedding); // (T, D)
    const int32_t h = build_head(net, c, &head, e, hidden);
    const int32_t last = qn_net_head(net, h, head.norm, output, 0);
    qn_net_show_rows(net, QN_ROWS_LAST, last);
}

// Four sections of pairs; where a config names none, pairs go round the first three, which for text
// is rope as usual.
static void export_sections(qn_export *to, const qwen35_config *c) {
    const int64_t pairs = c->hp.rotate / 2;
    int32_t sections[4];
    int64_t sum = 0;
    for (int i = 0; i < 4; i++) sum += c->sections.v[i];
    for (int i = 0; i < 4; i++)
        sections[i] = (int32_t)(sum > 0 ? c->sections.v[i] : i < 3 ? (pairs - i + 2) / 3 : 0);
    qn_export_i32s(to, "rope.dimension_sections", sections, 4);
}

static qn_status export_layers(qn_export *to, const qwen35_config *c, qn_err *err) {
    bool is_usual = true;
    const size_t n = (size_t)(c->hp.layers + c->hp.predict_layers);
    bool *is_recurrent = qn_arena_alloc(to->arena, n, sizeof *is_recurrent);
    if (!is_recurrent) return QN_NOMEM(err, "layer kinds");
    for (int64_t i = 0; i < c->hp.layers; i++) {
        is_recurrent[i] = c->kinds[i] == QN_LAYER_LINEAR;
        is_usual = is_usual && is_recurrent[i] == ((i + 1) % c->interval != 0);
    }
    if (!is_usual) qn_export_bools(to, "attention.recurrent_layers", is_recurrent, n);
    return QN_OK;
}

static qn_status export_qwen35(qn_export *to, const void *config, qn_err *err) {
    const qwen35_config *c = config;
    const qn_rope_form rope = {.names = &qn_rope_plain,
                               .rotate = c->hp.rotate,
                               .head_size = c->hp.head_size,
                               .states_size = true};
    if (c->val_dim != c->key_dim)
        return QN_FAIL(err, UNSUPPORTED,
                       "linear_value_head_dim: %lld, linear_key_head_dim: %lld: GGUF has one key "
                       "for both",
                       (long long)c->val_dim, (long long)c->key_dim);
    export_sections(to, c);
    QN_TRY(export_layers(to, c, err));
    return qn_export_rope(to, &rope, err);
}

#define QWEN35                                                                                     \
    .config_size = sizeof(qwen35_config), .rows = qwen35_rows,                                     \
    .n_rows = sizeof qwen35_rows / sizeof qwen35_rows[0], .build = build_qwen35,                   \
    .build_predict = build_predict, .export_keys = export_qwen35, .reads_images = true

const qn_family qn_family_qwen35 = {.arch = "qwen35", .read = read_qwen35_dense, QWEN35};
const qn_family qn_family_qwen35moe = {.arch = "qwen35moe", .read = read_qwen35_moe, QWEN35};
