// Gemma 1, 2 and 3: scaled embedding, norms that multiply by 1 + w, tanh-gelu feed-forward, output
// by the embedding unless a file has a matrix for it. Gemma 2 adds norms after each part, soft caps
// and a window on every other layer; Gemma 3 drops the caps, norms queries and keys, and gives its
// sliding layers frequencies of their own.
#include "models/model.h"

#include <math.h>
#include <string.h>

#define BLK "blk.%d."          // a layer in GGUF
#define HF  "model.layers.%d." // a layer in a checkpoint

typedef struct gemma_config {
    qn_hparams hp;
    int generation; // 1, 2, 3
    int64_t window, pattern;
    float attn_cap, final_cap, query_scalar;
    unsigned char *kinds; // (layers) qn_layer_kind
    bool is_tied;
} gemma_config;

typedef struct gemma_layer {
    int32_t attn_norm, q, k, v, o, q_norm, k_norm, post_attn_norm, ffn_norm, post_ffn_norm;
    qn_ffn ffn;
} gemma_layer;

static const qn_rope_names full_rope = {
    .gguf_base = "rope.freq_base",
    .hf_base = "rope_parameters.full_attention.rope_theta|rope_parameters.rope_theta|rope_theta",
    .hf_default = QN_DEFAULT(rope_base),
    .gguf_type = "rope.scaling.type",
    .hf_type = "rope_parameters.full_attention.rope_type|rope_parameters.rope_type|"
               "rope_scaling.rope_type|rope_scaling.type",
    .gguf_factor = "rope.scaling.factor",
    .hf_factor = "rope_parameters.full_attention.factor|rope_parameters.factor|rope_scaling.factor",
};

static const qn_rope_names sliding_rope = {
    .gguf_base = "rope.freq_base_swa",
    .hf_base = "rope_parameters.sliding_attention.rope_theta|rope_local_base_freq",
    .hf_default = QN_DEFAULT(rope_local_base),
    .hf_type = "rope_parameters.sliding_attention.rope_type",
    .hf_factor = "rope_parameters.sliding_attention.factor",
};

// Published files say nothing of the attention scale where it is not the head size; they are told
// by their number of layers (27B: 46 layers in Gemma 2, 62 in Gemma 3).
static float default_scalar(const gemma_config *c) {
    const int64_t odd_layers[] = {0, 0, 46, 62};
    if (c->generation > 1 && c->hp.layers == odd_layers[c->generation])
        return (float)c->hp.width / (float)c->hp.heads;
    return (float)c->hp.head_size;
}

static qn_status read_layers(gemma_config *c, const qn_config_reader *reader, qn_err *err) {
    static const qn_config_row pattern =
        QN_INT_ROW(gemma_config, pattern, .gguf = QN_GGUF_WINDOW_LAYERS,
                   .hf = "sliding_window_pattern|_sliding_window_pattern", .min = 1, .max = 4096,
                   .is_optional = true, .hf_default = QN_DEFAULT(pattern), .is_nullable = true);
    const qn_key *key = qn_config_find(reader, pattern.gguf, pattern.hf);
    const bool is_per_layer = key && qn_key_is_array_of(key, QN_KEY_BOOL);
    if (!is_per_layer) QN_TRY(qn_config_fill(c, &pattern, 1, reader, err));
    if (c->pattern == 0) c->pattern = c->generation == 2 ? 2 : 6;
    for (int64_t i = 0; i < c->hp.layers; i++) {
        const bool is_full = c->generation == 1 || c->window == 0 || (i + 1) % c->pattern == 0;
        c->kinds[i] = is_full ? QN_LAYER_FULL : QN_LAYER_SLIDING;
    }
    bool found;
    QN_TRY(qn_config_layer_types(c->kinds, c->hp.layers, &found, reader, err));
    QN_TRY(qn_config_window_flags(c->kinds, c->hp.layers, &found, reader, err));
    return qn_config_check_attention(c->kinds, c->hp.layers, c->window, reader, err);
}

// Numbers that a GGUF file leaves out are -1 until fill_defaults.
static const qn_config_row gemma_rows[] = {
    QN_INT_ROW(gemma_config, window, .gguf = QN_GGUF_WINDOW, .hf = "sliding_window", .min = 1,
               .max = 0x7fffffff, .is_optional = true, .fallback = -1,
               .hf_default = QN_DEFAULT(window), .is_nullable = true),
    QN_FLOAT_ROW(gemma_config, attn_cap, .gguf = "attn_logit_softcapping",
                 .hf = "attn_logit_softcapping", .min = 0, .max = 1e6, .is_optional = true,
                 .fallback = -1, .hf_default = QN_DEFAULT(attn_cap), .is_nullable = true),
    QN_FLOAT_ROW(gemma_config, final_cap, .gguf = "final_logit_softcapping",
                 .hf = "final_logit_softcapping", .min = 0, .max = 1e6, .is_optional = true,
                 .fallback = -1, .hf_default = QN_DEFAULT(final_cap), .is_nullable = true),
    QN_FLOAT_ROW(gemma_config, query_scalar, .hf = "query_pre_attn_scalar", .min = 1e-3, .max = 1e9,
                 .is_optional = true, .fallback = -1, .hf_default = QN_DEFAULT(query_scalar)),
};

static void fill_defaults(gemma_config *c) {
    if (c->attn_cap < 0) c->attn_cap = c->generation == 2 ? 50 : 0;
    if (c->final_cap < 0) c->final_cap = c->generation == 2 ? 30 : 0;
    if (c->query_scalar < 0) c->query_scalar = default_scalar(c);
    if (c->window < 0) c->window = 4096;
    if (c->generation > 1) return;
    // The first generation has none of these, whatever its keys say.
    c->query_scalar = default_scalar(c);
    c->attn_cap = c->final_cap = 0;
    c->window = 0;
}

static qn_status read_gemma(void *config, const qn_config_reader *reader, qn_arena *arena,
                            qn_err *err) {
    gemma_config *c = config;
    const char last = reader->arch[strlen(reader->arch) - 1];
    c->generation = last == '2' ? 2 : last == '3' ? 3 : 1;
    if (c->hp.ffn == 0) return QN_FAIL(err, FORMAT, "the size of the feed-forward is missing");
    // Only the first generation's configs say "gelu" and mean the tanh form.
    const char *acts = c->generation == 1 ? "gelu_pytorch_tanh gelu" : "gelu_pytorch_tanh";
    QN_TRY(qn_config_expect(reader, NULL, "hidden_activation|hidden_act", acts, err));
    QN_TRY(qn_config_refuse(reader, "use_bidirectional_attention", err));
    QN_TRY(qn_config_refuse(reader, "attention_bias", err));
    QN_TRY(qn_config_bool(&c->is_tied, reader, NULL, "tie_word_embeddings",
                          reader->defaults && reader->defaults->is_tied, err));
    fill_defaults(c);
    c->kinds = qn_arena_alloc(arena, (size_t)c->hp.layers, 1);
    return c->kinds ? read_layers(c, reader, err) : QN_NOMEM(err, "layer kinds");
}

// Norms after the parts exist from Gemma 2 on; there the checkpoint's post_attention_layernorm is
// the norm after attention, in Gemma 1 it is the one before the feed-forward.
static void bind_layer(gemma_layer *l, qn_net *net, int generation, int64_t i) {
    const unsigned norm = QN_VECTOR | QN_PLUS_ONE;
    const qn_hparams *hp = net->hp;
    const int64_t D = hp->width, E = hp->head_size, Q = hp->heads * E, K = hp->kv_heads * E;
    const int64_t V = hp->kv_heads * hp->value_size, O = hp->heads * hp->value_size, F = hp->ffn;
    const char *ffn_norm = generation == 1 ? HF "post_attention_layernorm.weight"
                                           : HF "pre_feedforward_layernorm.weight";
    const qn_bind_row rows[] = {
        {&l->attn_norm, BLK "attn_norm.weight", HF "input_layernorm.weight", {D}, norm},
        {&l->q, BLK "attn_q.weight", HF "self_attn.q_proj.weight", {Q, D}, 0},
        {&l->k, BLK "attn_k.weight", HF "self_attn.k_proj.weight", {K, D}, 0},
        {&l->v, BLK "attn_v.weight", HF "self_attn.v_proj.weight", {V, D}, 0},
        {&l->o, BLK "attn_output.weight", HF "self_attn.o_proj.weight", {D, O}, 0},
        {&l->ffn_norm, BLK "ffn_norm.weight", ffn_norm, {D}, norm},
        {&l->ffn.gate, BLK "ffn_gate.weight", HF "mlp.gate_proj.weight", {F, D}, 0},
        {&l->ffn.up, BLK "ffn_up.weight", HF "mlp.up_proj.weight", {F, D}, 0},
        {&l->ffn.down, BLK "ffn_down.weight", HF "mlp.down_proj.weight", {D, F}, 0},
    };
    const qn_bind_row sandwich[] = {
        {&l->post_attn_norm,
         BLK "post_attention_norm.weight",
         HF "post_attention_layernorm.weight",
         {D},
         norm},
        {&l->post_ffn_norm,
         BLK "post_ffw_norm.weight",
         HF "post_feedforward_layernorm.weight",
         {D},
         norm},
    };
    const qn_bind_row head_norms[] = {
        {&l->q_norm, BLK "attn_q_norm.weight", HF "self_attn.q_norm.weight", {E}, norm},
        {&l->k_norm, BLK "attn_k_norm.weight", HF "self_attn.k_norm.weight", {E}, norm},
    };
    l->ffn = (qn_ffn){QN_NO_BIASES, .act = QN_OP_GELU};
    qn_bind(&net->binder, rows, sizeof rows / sizeof rows[0], i);
    if (generation >= 2) qn_bind(&net->binder, sandwich, 2, i);
    if (generation >= 3) qn_bind(&net->binder, head_norms, 2, i);
}

static int32_t build_attention(qn_net *net, int32_t x, const gemma_config *c, const gemma_layer *l,
                               int64_t i, qn_turn turn) {
    const qn_hparams *hp = net->hp;
    int32_t q = qn_net_split(net, qn_net_linear(net, x, l->q, QN_NO_VALUE), hp->heads);
    int32_t k = qn_net_split(net, qn_net_linear(net, x, l->k, QN_NO_VALUE), hp->kv_heads);
    const int32_t v = qn_net_linear(net, x, l->v, QN_NO_VALUE);
    if (c->generation >= 3) {
        q = qn_net_norm(net, q, l->q_norm);
        k = qn_net_norm(net, k, l->k_norm);
    }
    const qn_attention attention = {
        .q = q,
        .k = k,
        .v = qn_net_split(net, v, hp->kv_heads),
        .turn = turn,
        .pairs = QN_WORD_half,
        .scale = 1.0f / sqrtf(c->query_scalar),
        .cap = c->attn_cap,
        .window = c->kinds[i] == QN_LAYER_SLIDING ? c->window : 0,
    };
    return qn_net_linear(net, qn_net_attention(net, &attention, i), l->o, QN_NO_VALUE);
}

static void build_gemma(qn_net *net, const void *config, const qn_config_reader *reader) {
    const gemma_config *c = config;
    qn_build *b = &net->b;
    int32_t embedding, output, norm;
    qn_net_bind_ends(net, &(qn_ends){&embedding, &norm, &output, c->is_tied, QN_PLUS_ONE});
    const qn_turn full = qn_net_turn(net, "rope.full", &full_rope, reader);
    const qn_turn sliding =
        c->generation < 3 ? full : qn_net_turn(net, "rope.sliding", &sliding_rope, reader);
    int32_t h = qn_net_embed(net, embedding, sqrtf((float)c->hp.width)); // (T, D)
    for (int64_t i = 0; i < c->hp.layers; i++) {
        gemma_layer l;
        b->layer = (int32_t)i;
        bind_layer(&l, net, c->generation, i);
        const qn_turn turn = c->kinds[i] == QN_LAYER_SLIDING ? sliding : full;
        int32_t x = qn_net_norm(net, h, l.attn_norm);
        x = build_attention(net, x, c, &l, i, turn);
        if (c->generation >= 2) x = qn_net_norm(net, x, l.post_attn_norm);
        h = qn_build2(b, QN_OP_ADD, h, x, NULL);
        x = qn_net_ffn(net, qn_net_norm(net, h, l.ffn_norm), &l.ffn);
        if (c->generation >= 2) x = qn_net_norm(net, x, l.post_ffn_norm);
        h = qn_build2(b, QN_OP_ADD, h, x, NULL);
        qn_net_end_layer(net, h, i);
    }
    qn_net_head(net, h, norm, output, c->final_cap);
}

static bool has_period(const gemma_config *c, int64_t period) {
    for (int64_t i = 0; i < c->hp.layers; i++) {
        if ((c->kinds[i] == QN_LAYER_FULL) != ((i + 1) % period == 0)) return false;
    }
    return true;
}

// Readers of GGUF files know the usual pattern of layers, and for Gemma 3 one with another period.
static qn_status export_pattern(qn_export *to, const gemma_config *c, qn_err *err) {
    int64_t period = c->generation == 2 ? 2 : 6;
    if (c->generation == 1 || has_period(c, period)) return QN_OK;
    for (period = 1; period <= c->hp.layers && c->kinds[period - 1] != QN_LAYER_FULL;) period++;
    if (c->generation == 2 || !has_period(c, period))
        return QN_FAIL(err, UNSUPPORTED,
                       "layer_types: the first full layer is %lld of %lld, and the others do not "
                       "follow: GGUF files of %s cannot say that",
                       (long long)period, (long long)c->hp.layers, to->reader->arch);
    qn_export_u32(to, QN_GGUF_WINDOW_LAYERS, period);
    return QN_OK;
}

// Gemma 2 always caps; the others never cap attention, and only Gemma 3 may cap its logits.
static qn_status check_caps(const qn_export *to, const gemma_config *c, qn_err *err) {
    const bool is_right = c->generation == 2
                              ? c->attn_cap > 0 && c->final_cap > 0
                              : c->attn_cap == 0 && (c->generation == 3 || c->final_cap == 0);
    if (is_right) return QN_OK;
    return QN_FAIL(err, UNSUPPORTED,
                   "attn_logit_softcapping: %g, final_logit_softcapping: %g (0: none): GGUF files "
                   "of %s cannot say that",
                   (double)c->attn_cap, (double)c->final_cap, to->reader->arch);
}

static qn_status export_gemma(qn_export *to, const void *config, qn_err *err) {
    const gemma_config *c = config;
    qn_rope_form rope = {.names = &full_rope,
                         .rotate = c->hp.rotate,
                         .head_size = c->hp.head_size,
                         .leaves_base = c->generation < 3};
    if (!c->is_tied && c->generation < 3)
        return QN_FAIL(err, UNSUPPORTED,
                       "tie_word_embeddings: false: readers of GGUF files of %s know no output "
                       "matrix of their own",
                       to->reader->arch);
    if (c->query_scalar != default_scalar(c))
        return QN_FAIL(err, UNSUPPORTED,
                       "query_pre_attn_scalar: %g, but GGUF has no key for it and its readers take "
                       "%g: the model cannot be converted",
                       (double)c->query_scalar, (double)default_scalar(c));
    QN_TRY(check_caps(to, c, err));
    QN_TRY(export_pattern(to, c, err));
    QN_TRY(qn_export_rope(to, &rope, err));
    if (c->generation < 3) return QN_OK;
    rope.names = &sliding_rope;
    rope.head_size = rope.rotate; // said already
    return qn_export_rope(to, &rope, err);
}

#define GEMMA                                                                                      \
    .config_size = sizeof(gemma_config), .rows = gemma_rows,                                       \
    .n_rows = sizeof gemma_rows / sizeof gemma_rows[0], .read = read_gemma, .build = build_gemma,  \
    .export_keys = export_gemma

const qn_family qn_family_gemma = {.arch = "gemma", GEMMA};
const qn_family qn_family_gemma2 = {.arch = "gemma2", GEMMA};
const qn_family qn_family_gemma3 = {.arch = "gemma3", GEMMA};
