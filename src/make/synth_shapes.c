// The shapes that qn_synth knows, and what files of their architectures hold: one table of tensors
// and one of keys, in the names and orders that GGUF readers expect.
#include "make/synth.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

// --- shapes --------------------------------------------------------------------------------------

#define QWEN_VOCAB                                                                                 \
    .vocab = 151936, .pre = "qwen2", .kind = QN_VOCAB_QWEN, .first_special = 151643, .eps = 1e-6f, \
    .base = 1e6f
#define QWEN3(l, d, f, h, tied)                                                                    \
    .arch = "qwen3", .layers = (l), .width = (d), .ffn = (f), .heads = (h), .kv_heads = 8,         \
    .head_size = 128, .context = 40960, .is_tied = (tied), QWEN_VOCAB
#define LLAMA3(l, d, f, h, e, factor, tied)                                                        \
    .arch = "llama", .layers = (l), .width = (d), .ffn = (f), .heads = (h), .kv_heads = 8,         \
    .head_size = (e), .rotate = (e), .context = 131072, .is_tied = (tied), .eps = 1e-5f,           \
    .base = 5e5f, .rope_factor = (factor), .vocab = 128256, .pre = "llama-bpe",                    \
    .kind = QN_VOCAB_LLAMA3, .first_special = 128000
#define QWEN35(l, d, f, h, kv, v)                                                                  \
    .arch = "qwen35", .layers = (l), .width = (d), .ffn = (f), .heads = (h), .kv_heads = (kv),     \
    .head_size = 256, .rotate = 64, .context = 262144, .is_tied = true, .eps = 1e-6f,              \
    .base = 1e7f, .interval = 4, .taps = 4, .key_heads = 16, .val_heads = (v), .state = 128,       \
    .predict = 1, .vocab = 248320, .pre = "qwen35", .kind = QN_VOCAB_QWEN, .first_special = 248044

// Rows of 256 fit every type.
#define TINY(l)                                                                                    \
    .layers = (l), .width = 256, .ffn = 512, .heads = 4, .kv_heads = 2, .head_size = 64,           \
    .context = 4096, .vocab = 1024
#define TINY_QWEN(l)  TINY(l), .eps = 1e-6f, .base = 1e6f, .pre = "qwen2", .kind = QN_VOCAB_QWEN
#define TINY_GEMMA(l) TINY(l), .is_tied = true, .eps = 1e-6f, .kind = QN_VOCAB_GEMMA
#define TINY_QWEN35                                                                                \
    TINY(4), .eps = 1e-6f, .base = 1e7f, .rotate = 16, .interval = 4, .taps = 4, .key_heads = 2,   \
             .val_heads = 4, .state = 64, .predict = 1, .pre = "qwen35", .kind = QN_VOCAB_QWEN
#define TINY_EXPERTS .experts = 4, .experts_used = 2, .expert_ffn = 256

static const qn_synth_shape shapes[] = {
    {.name = "qwen3-0.6b", QWEN3(28, 1024, 3072, 16, true)},
    {.name = "qwen3-1.7b", QWEN3(28, 2048, 6144, 16, true)},
    {.name = "qwen3-8b", QWEN3(36, 4096, 12288, 32, false)},
    {.name = "llama3.2-1b", LLAMA3(16, 2048, 8192, 32, 64, 32, true)},
    {.name = "llama3.1-8b", LLAMA3(32, 4096, 14336, 32, 128, 8, false)},
    {.name = "llama3.1-70b", LLAMA3(80, 8192, 28672, 64, 128, 8, false)},
    {.name = "llama3.1-405b", LLAMA3(126, 16384, 53248, 128, 128, 8, false)},
    {.name = "gemma3-1b",
     .arch = "gemma3",
     .layers = 26,
     .width = 1152,
     .ffn = 6912,
     .heads = 4,
     .kv_heads = 1,
     .head_size = 256,
     .context = 32768,
     .is_tied = true,
     .eps = 1e-6f,
     .base = 1e6f,
     .base_sliding = 1e4f,
     .window = 512,
     .vocab = 262144,
     .kind = QN_VOCAB_GEMMA},
    {.name = "qwen3-30b-a3b",
     .arch = "qwen3moe",
     .layers = 48,
     .width = 2048,
     .ffn = 6144,
     .heads = 32,
     .kv_heads = 4,
     .head_size = 128,
     .context = 40960,
     .experts = 128,
     .experts_used = 8,
     .expert_ffn = 768,
     QWEN_VOCAB},
    {.name = "qwen3-235b-a22b",
     .arch = "qwen3moe",
     .layers = 94,
     .width = 4096,
     .ffn = 12288,
     .heads = 64,
     .kv_heads = 4,
     .head_size = 128,
     .context = 40960,
     .experts = 128,
     .experts_used = 8,
     .expert_ffn = 1536,
     QWEN_VOCAB},
    {.name = "qwen3.5-0.8b", QWEN35(24, 1024, 3584, 8, 2, 16)},
    {.name = "qwen3.5-4b", QWEN35(32, 2560, 9216, 16, 4, 32)},
    {.name = "tiny-llama",
     .arch = "llama",
     TINY(2),
     .rotate = 64,
     .eps = 1e-5f,
     .base = 5e5f,
     .rope_factor = 8,
     .pre = "llama-bpe",
     .kind = QN_VOCAB_LLAMA3},
    {.name = "tiny-qwen2", .arch = "qwen2", .is_tied = true, TINY_QWEN(2)},
    {.name = "tiny-qwen3", .arch = "qwen3", .is_tied = true, TINY_QWEN(2)},
    {.name = "small-qwen3moe", // not a known model: experts for measuring what is kept in memory
     .arch = "qwen3moe",
     .layers = 12,
     .width = 1024,
     .ffn = 3072,
     .heads = 16,
     .kv_heads = 4,
     .head_size = 64,
     .experts = 64,
     .experts_used = 4,
     .expert_ffn = 512,
     .context = 4096,
     .vocab = 1024,
     .eps = 1e-6f,
     .base = 1e6f,
     .pre = "qwen2",
     .kind = QN_VOCAB_QWEN},
    {.name = "tiny-qwen3moe", .arch = "qwen3moe", TINY_QWEN(2), TINY_EXPERTS},
    {.name = "tiny-gemma", .arch = "gemma", TINY_GEMMA(2)},
    {.name = "tiny-gemma2",
     .arch = "gemma2",
     TINY_GEMMA(2),
     .window = 64,
     .attn_cap = 50,
     .final_cap = 30},
    {.name = "tiny-gemma3",
     .arch = "gemma3",
     TINY_GEMMA(6),
     .window = 64,
     .base = 1e6f,
     .base_sliding = 1e4f},
    {.name = "tiny-qwen35", .arch = "qwen35", .is_tied = true, TINY_QWEN35},
    {.name = "tiny-qwen35moe", .arch = "qwen35moe", TINY_QWEN35, TINY_EXPERTS, .shared_ffn = 256},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

const char *qn_synth_shape_name(size_t i) { return i < N_SHAPES ? shapes[i].name : NULL; }

qn_status qn_synth_shape_find(const qn_synth_shape **out, const char *name, qn_err *err) {
    char all[384] = "";
    for (size_t i = 0, used = 0; i < N_SHAPES; i++) {
        if (strcmp(shapes[i].name, name) == 0) {
            *out = &shapes[i];
            return QN_OK;
        }
        used += (size_t)snprintf(all + used, sizeof all - used, " %s", shapes[i].name);
    }
    return QN_FAIL(err, ARGUMENT, "no shape '%.40s', want one of%s", name, all);
}

// --- keys ----------------------------------------------------------------------------------------

// Numbers that are 0 have no key. clang-format would break the columns.
#define INT(key, field)                                                                            \
    { key, offsetof(qn_synth_shape, field), true }
#define REAL(key, field)                                                                           \
    { key, offsetof(qn_synth_shape, field), false }
// clang-format off
static const struct {
    const char *key;
    size_t offset;
    bool is_int;
} keys[] = {
    INT("context_length",                    context),
    INT("embedding_length",                  width),
    INT("feed_forward_length",               ffn),
    INT("attention.head_count",              heads),
    INT("attention.head_count_kv",           kv_heads),
    INT("attention.key_length",              head_size),
    INT("attention.value_length",            head_size),
    REAL("attention.layer_norm_rms_epsilon", eps),
    REAL("rope.freq_base",                   base),
    REAL("rope.freq_base_swa",               base_sliding),
    INT("rope.dimension_count",              rotate),
    INT("attention.sliding_window",          window),
    REAL("attn_logit_softcapping",           attn_cap),
    REAL("final_logit_softcapping",          final_cap),
    INT("expert_count",                      experts),
    INT("expert_used_count",                 experts_used),
    INT("expert_feed_forward_length",        expert_ffn),
    INT("expert_shared_feed_forward_length", shared_ffn),
    INT("full_attention_interval",           interval),
    INT("ssm.conv_kernel",                   taps),
    INT("ssm.state_size",                    state),
    INT("ssm.group_count",                   key_heads),
    INT("ssm.time_step_rank",                val_heads),
    INT("nextn_predict_layers",              predict),
};
// clang-format on

static void put_int(qn_gguf_writer *to, const qn_synth_shape *s, const char *key, int64_t value) {
    char name[96];
    snprintf(name, sizeof name, "%s.%s", s->arch, key);
    if (value != 0) qn_gguf_put_u32(to, name, (uint32_t)value);
}

static void put_real(qn_gguf_writer *to, const qn_synth_shape *s, const char *key, float value) {
    char name[96];
    snprintf(name, sizeof name, "%s.%s", s->arch, key);
    if (value != 0) qn_gguf_put_f32(to, name, value);
}

// Pairs go round the first three of the four components of a position.
static void put_sections(qn_gguf_writer *to, const qn_synth_shape *s) {
    char name[96];
    const int32_t pairs = (int32_t)s->rotate / 2;
    const int32_t sections[4] = {(pairs + 2) / 3, (pairs + 1) / 3, pairs / 3, 0};
    snprintf(name, sizeof name, "%s.rope.dimension_sections", s->arch);
    qn_gguf_put_i32s(to, name, sections, 4);
}

void qn_synth_put_keys(qn_gguf_writer *to, const qn_synth_shape *s) {
    put_int(to, s, "block_count", s->layers + s->predict);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *field = (const char *)s + keys[i].offset;
        if (keys[i].is_int)
            put_int(to, s, keys[i].key, *(const int64_t *)field);
        else
            put_real(to, s, keys[i].key, *(const float *)field);
    }
    put_int(to, s, "ssm.inner_size", s->val_heads * s->state);
    if (s->interval) put_sections(to, s);
    if (strcmp(s->arch, "llama") == 0) put_int(to, s, "vocab_size", s->vocab);
}

// --- tensors -------------------------------------------------------------------------------------

// What a layer, or the model outside its layers, has.
enum {
    OUTSIDE = 1,
    LAYER = 2,
    FULL = 4,    // attention
    LINEAR = 8,  // the delta rule
    GATED = 16,  // attention makes a gate besides its queries
    PLAIN = 32,  // it does not
    BIASED = 64, // queries, keys and values have biases
    HEAD_NORMS = 128,
    POST_NORM = 256, // a norm after attention
    POST_FFN = 512,  // and after the feed-forward
    FFN_NORM = 1024,
    DENSE = 2048,
    EXPERTS = 4096,
    SHARED = 8192,
    UNTIED = 16384,
    DIVISORS = 32768,
    PREDICT = 65536,
};

static const struct {
    const char *arch;
    unsigned has;
} families[] = {
    {"llama", PLAIN | FFN_NORM},
    {"qwen2", PLAIN | FFN_NORM | BIASED},
    {"qwen3", PLAIN | FFN_NORM | HEAD_NORMS},
    {"qwen3moe", PLAIN | FFN_NORM | HEAD_NORMS},
    {"gemma", PLAIN | FFN_NORM},
    {"gemma2", PLAIN | FFN_NORM | POST_NORM | POST_FFN},
    {"gemma3", PLAIN | FFN_NORM | POST_NORM | POST_FFN | HEAD_NORMS},
    {"qwen35", GATED | HEAD_NORMS | POST_NORM},
    {"qwen35moe", GATED | HEAD_NORMS | POST_NORM},
};

// Sizes by letter: D width, V vocabulary, Q queries, K keys, E a head, F feed-forward, X experts, Y
// one expert, S the shared expert, C channels of the convolution, T its taps, I inner size, H value
// heads, N state, R pairs of rope; 2 and 1 double and keep.
typedef enum dim { END, D, DD, V, Q, QQ, K, E, F, X, Y, S, C, T, I, H, N, R, ONE, N_DIMS } dim;

// The first `needs` that are all there bring the tensor. Layers are "blk.N.".
// clang-format off
static const struct {
    unsigned needs;
    const char *name;
    unsigned char dims[3];
    qn_noise noise;
} tensors[] = {
    {OUTSIDE,                    "token_embd.weight",             {V, D},    QN_NOISE_MATRIX},
    {OUTSIDE,                    "output_norm.weight",            {D},       QN_NOISE_NORM},
    {OUTSIDE | UNTIED,           "output.weight",                 {V, D},    QN_NOISE_MATRIX},
    {OUTSIDE | DIVISORS,         "rope_freqs.weight",             {R},       QN_NOISE_DIVISORS},

    {LAYER,                      "attn_norm.weight",              {D},       QN_NOISE_NORM},
    {LAYER | FULL | PLAIN,       "attn_q.weight",                 {Q, D},    QN_NOISE_MATRIX},
    {LAYER | FULL | GATED,       "attn_q.weight",                 {QQ, D},   QN_NOISE_MATRIX},
    {LAYER | FULL,               "attn_k.weight",                 {K, D},    QN_NOISE_MATRIX},
    {LAYER | FULL,               "attn_v.weight",                 {K, D},    QN_NOISE_MATRIX},
    {LAYER | FULL,               "attn_output.weight",            {D, Q},    QN_NOISE_MATRIX},
    {LAYER | FULL | BIASED,      "attn_q.bias",                   {Q},       QN_NOISE_BIAS},
    {LAYER | FULL | BIASED,      "attn_k.bias",                   {K},       QN_NOISE_BIAS},
    {LAYER | FULL | BIASED,      "attn_v.bias",                   {K},       QN_NOISE_BIAS},
    {LAYER | FULL | HEAD_NORMS,  "attn_q_norm.weight",            {E},       QN_NOISE_NORM},
    {LAYER | FULL | HEAD_NORMS,  "attn_k_norm.weight",            {E},       QN_NOISE_NORM},

    {LAYER | LINEAR,             "attn_qkv.weight",               {C, D},    QN_NOISE_MATRIX},
    {LAYER | LINEAR,             "attn_gate.weight",              {I, D},    QN_NOISE_MATRIX},
    {LAYER | LINEAR,             "ssm_alpha.weight",              {H, D},    QN_NOISE_MATRIX},
    {LAYER | LINEAR,             "ssm_beta.weight",               {H, D},    QN_NOISE_MATRIX},
    {LAYER | LINEAR,             "ssm_conv1d.weight",             {C, T},    QN_NOISE_TAPS},
    {LAYER | LINEAR,             "ssm_a",                         {H},       QN_NOISE_DECAY},
    {LAYER | LINEAR,             "ssm_dt.bias",                   {H},       QN_NOISE_STEP},
    {LAYER | LINEAR,             "ssm_norm.weight",               {N},       QN_NOISE_NORM},
    {LAYER | LINEAR,             "ssm_out.weight",                {D, I},    QN_NOISE_MATRIX},

    {LAYER | POST_NORM,          "post_attention_norm.weight",    {D},       QN_NOISE_NORM},
    {LAYER | FFN_NORM,           "ffn_norm.weight",               {D},       QN_NOISE_NORM},
    {LAYER | POST_FFN,           "post_ffw_norm.weight",          {D},       QN_NOISE_NORM},
    {LAYER | DENSE,              "ffn_gate.weight",               {F, D},    QN_NOISE_MATRIX},
    {LAYER | DENSE,              "ffn_up.weight",                 {F, D},    QN_NOISE_MATRIX},
    {LAYER | DENSE,              "ffn_down.weight",               {D, F},    QN_NOISE_MATRIX},
    {LAYER | EXPERTS,            "ffn_gate_inp.weight",           {X, D},    QN_NOISE_MATRIX},
    {LAYER | EXPERTS,            "ffn_gate_exps.weight",          {X, Y, D}, QN_NOISE_MATRIX},
    {LAYER | EXPERTS,            "ffn_up_exps.weight",            {X, Y, D}, QN_NOISE_MATRIX},
    {LAYER | EXPERTS,            "ffn_down_exps.weight",          {X, D, Y}, QN_NOISE_MATRIX},
    {LAYER | SHARED,             "ffn_gate_inp_shexp.weight",     {ONE, D},  QN_NOISE_MATRIX},
    {LAYER | SHARED,             "ffn_gate_shexp.weight",         {S, D},    QN_NOISE_MATRIX},
    {LAYER | SHARED,             "ffn_up_shexp.weight",           {S, D},    QN_NOISE_MATRIX},
    {LAYER | SHARED,             "ffn_down_shexp.weight",         {D, S},    QN_NOISE_MATRIX},

    {LAYER | PREDICT,            "nextn.eh_proj.weight",          {D, DD},   QN_NOISE_MATRIX},
    {LAYER | PREDICT,            "nextn.enorm.weight",            {D},       QN_NOISE_NORM},
    {LAYER | PREDICT,            "nextn.hnorm.weight",            {D},       QN_NOISE_NORM},
    {LAYER | PREDICT,            "nextn.shared_head_norm.weight", {D},       QN_NOISE_NORM},
};
// clang-format on
enum { N_TENSORS = sizeof tensors / sizeof *tensors };

static void fill_sizes(int64_t sizes[N_DIMS], const qn_synth_shape *s) {
    const int64_t inner = s->val_heads * s->state;
    const int64_t all[N_DIMS] = {
        [D] = s->width,
        [DD] = 2 * s->width,
        [V] = s->vocab,
        [Q] = s->heads * s->head_size,
        [QQ] = 2 * s->heads * s->head_size,
        [K] = s->kv_heads * s->head_size,
        [E] = s->head_size,
        [F] = s->ffn,
        [X] = s->experts,
        [Y] = s->expert_ffn,
        [S] = s->shared_ffn,
        [C] = 2 * s->key_heads * s->state + inner,
        [T] = s->taps,
        [I] = inner,
        [H] = s->val_heads,
        [N] = s->state,
        [R] = s->rotate / 2,
        [ONE] = 1,
    };
    memcpy(sizes, all, sizeof all);
}

static unsigned family_has(const qn_synth_shape *s) {
    unsigned has = s->experts ? EXPERTS : DENSE;
    if (s->shared_ffn) has |= SHARED;
    if (!s->is_tied) has |= UNTIED;
    if (s->rope_factor > 0) has |= DIVISORS;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        if (strcmp(families[i].arch, s->arch) == 0) has |= families[i].has;
    }
    return has;
}

// What layer i has; -1 is outside the layers.
static unsigned place_has(const qn_synth_shape *s, int64_t i) {
    const unsigned has = family_has(s);
    if (i < 0) return has | OUTSIDE;
    if (i >= s->layers) return has | LAYER | FULL | PREDICT;
    return has | LAYER | (s->interval && (i + 1) % s->interval ? LINEAR : FULL);
}

typedef struct listing {
    qn_synth_tensor *items;
    size_t n;
    int64_t sizes[N_DIMS];
    qn_arena *arena;
} listing;

static qn_status add_tensor(listing *to, size_t row, int64_t layer, qn_err *err) {
    char name[64];
    if (layer < 0)
        snprintf(name, sizeof name, "%s", tensors[row].name);
    else
        snprintf(name, sizeof name, "blk.%lld.%s", (long long)layer, tensors[row].name);
    qn_synth_tensor *t = &to->items[to->n++];
    t->noise = tensors[row].noise;
    t->tensor.type = QN_TYPE_F32;
    t->tensor.name = (qn_str){qn_arena_strdup(to->arena, name, strlen(name)), strlen(name)};
    for (int d = 0; d < 3 && tensors[row].dims[d]; d++)
        t->tensor.dims[t->tensor.n_dims++] = to->sizes[tensors[row].dims[d]];
    return t->tensor.name.data ? QN_OK : QN_NOMEM(err, "tensors");
}

qn_status qn_synth_list(qn_synth_tensor **out, size_t *n, const qn_synth_shape *shape,
                        qn_arena *arena, qn_err *err) {
    const int64_t n_layers = shape->layers + shape->predict;
    listing list = {.arena = arena};
    list.items = qn_arena_alloc(arena, N_TENSORS * (size_t)(n_layers + 1), sizeof *list.items);
    if (!list.items) return QN_NOMEM(err, "tensors");
    fill_sizes(list.sizes, shape);
    for (int64_t layer = -1; layer < n_layers; layer++) {
        const unsigned has = place_has(shape, layer);
        for (size_t row = 0; row < N_TENSORS; row++) {
            if ((tensors[row].needs & ~has) == 0) QN_TRY(add_tensor(&list, row, layer, err));
        }
    }
    *out = list.items;
    *n = list.n;
    return QN_OK;
}

// --- rope ----------------------------------------------------------------------------------------

// Long waves are stretched by the factor, short ones stay, with a slope between.
void qn_synth_divisors(float *to, int64_t n, const qn_synth_shape *s) {
    const double trained = 8192, low = 1, high = 4, pi = 3.14159265358979323846;
    for (int64_t i = 0; i < n; i++) {
        const double wave = 2 * pi * pow((double)s->base, (double)i / (double)n);
        double slope = (trained / wave - low) / (high - low);
        slope = slope < 0 ? 0 : slope > 1 ? 1 : slope;
        to[i] = (float)(1 / ((1 - slope) / (double)s->rope_factor + slope));
    }
}
