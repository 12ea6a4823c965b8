#include "make/mix.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

// --- the targets ---------------------------------------------------------------------------------

// name, general.file_type, base type
#define MIXES(X)                                                                                   \
    X(F32, 0, F32)                                                                                 \
    X(F16, 1, F16)                                                                                 \
    X(BF16, 32, BF16)                                                                              \
    X(Q8_0, 7, Q8_0)                                                                               \
    X(Q6_K, 18, Q6_K)                                                                              \
    X(Q5_K_M, 17, Q5_K)                                                                            \
    X(Q5_K_S, 16, Q5_K)                                                                            \
    X(Q5_1, 9, Q5_1)                                                                               \
    X(Q5_0, 8, Q5_0)                                                                               \
    X(Q4_K_M, 15, Q4_K)                                                                            \
    X(Q4_K_S, 14, Q4_K)                                                                            \
    X(IQ4_XS, 30, IQ4_XS)                                                                          \
    X(IQ4_NL, 25, IQ4_NL)                                                                          \
    X(Q4_1, 3, Q4_1)                                                                               \
    X(Q4_0, 2, Q4_0)                                                                               \
    X(Q3_K_L, 13, Q3_K)                                                                            \
    X(Q3_K_M, 12, Q3_K)                                                                            \
    X(Q3_K_S, 11, Q3_K)                                                                            \
    X(Q2_K, 10, Q2_K)

#define MIX_NUMBER(name, file_type, base) I_##name,
enum { MIXES(MIX_NUMBER) N_MIXES };
#undef MIX_NUMBER

#define MIX_BIT(name, file_type, base) name = 1 << I_##name,
enum { MIXES(MIX_BIT) QUANTISED = (1 << N_MIXES) - 1 - F32 - F16 - BF16 };
#undef MIX_BIT

static const qn_mix mixes[] = {
#define MIX_ROW(name, file_type, base) {#name, file_type, QN_TYPE_##base},
    MIXES(MIX_ROW)
#undef MIX_ROW
};

static const struct {
    const char *name, *mix;
} aliases[] = {{"Q3_K", "Q3_K_M"}, {"Q4_K", "Q4_K_M"}, {"Q5_K", "Q5_K_M"}};

// --- the rules -----------------------------------------------------------------------------------

typedef enum kind { OTHER, OUTPUT, VALUE, KEY, ATTENTION_OUT, DOWN } kind;

// By a part of the name; the first that fits. A fused query-key-value counts as a value.
static const struct {
    const char *part;
    kind kind;
} kinds[] = {
    {"attn_v.weight", VALUE}, {"attn_qkv.weight", VALUE}, {"attn_kv_b.weight", VALUE},
    {"attn_k.weight", KEY},   {"ffn_down", DOWN},         {"attn_output.weight", ATTENTION_OUT},
};

// All must hold; 0 means no condition. A tensor's place is the number of its layer, or its own
// among its kind.
typedef struct condition {
    int first;           // place below this
    int part;            // place in the first part-th of all
    bool is_more_bits;   // first and last eighth, and every third between
    int layers, experts; // exactly
    int sharing;         // at least that many heads share a key and value
    int importance;      // 1: only with importance, -1: only without
} condition;

// An exception from the base type.
typedef struct rule {
    unsigned mixes;
    kind kind;
    qn_type type;
    condition when;
} rule;

// The first rule that fits decides. clang-format would break the columns.
// clang-format off
#define ALWAYS {0}
static const rule rules[] = {
    {QUANTISED & ~Q8_0,                 OUTPUT,        QN_TYPE_Q6_K, ALWAYS},

    // With eight experts these are a small part of the file.
    {QUANTISED,                         VALUE,         QN_TYPE_Q8_0, {.experts = 8}},
    {QUANTISED,                         KEY,           QN_TYPE_Q8_0, {.experts = 8}},
    {Q2_K | Q3_K_S | Q3_K_M | Q4_K_S | Q4_K_M | IQ4_NL | IQ4_XS,
                                        ATTENTION_OUT, QN_TYPE_Q5_K, {.experts = 8}},
    {Q3_K_L,                            ATTENTION_OUT, QN_TYPE_Q3_K, {.experts = 8}},

    {Q4_K_M | Q5_K_M,                   VALUE,         QN_TYPE_Q6_K, {.is_more_bits = true}},
    // Models of 70 billion: eight heads share each value, so the tensor is small.
    {Q2_K | Q3_K_S | Q3_K_M | Q4_K_S | Q4_K_M,
                                        VALUE,         QN_TYPE_Q5_K, {.layers = 80, .sharing = 2}},
    {Q2_K,                              VALUE,         QN_TYPE_Q4_K, {.sharing = 4}},
    {Q2_K,                              VALUE,         QN_TYPE_Q3_K, ALWAYS},
    {Q3_K_M,                            VALUE,         QN_TYPE_Q5_K, {.first = 2}},
    {Q3_K_M,                            VALUE,         QN_TYPE_Q4_K, ALWAYS},
    {Q3_K_L,                            VALUE,         QN_TYPE_Q5_K, ALWAYS},
    {Q4_K_S,                            VALUE,         QN_TYPE_Q5_K, {.first = 4}},
    {IQ4_NL | IQ4_XS,                   VALUE,         QN_TYPE_Q5_K, {.sharing = 4}},

    {Q2_K,                              ATTENTION_OUT, QN_TYPE_Q3_K, ALWAYS},
    {Q3_K_M,                            ATTENTION_OUT, QN_TYPE_Q4_K, ALWAYS},
    {Q3_K_L,                            ATTENTION_OUT, QN_TYPE_Q5_K, ALWAYS},

    {Q2_K,                              DOWN,          QN_TYPE_Q3_K, ALWAYS},
    {Q3_K_M,                            DOWN,          QN_TYPE_Q5_K, {.part = 16}},
    {Q3_K_M,                            DOWN,          QN_TYPE_Q4_K, ALWAYS},
    {Q3_K_L,                            DOWN,          QN_TYPE_Q5_K, ALWAYS},
    {Q4_K_M | Q5_K_M,                   DOWN,          QN_TYPE_Q6_K, {.is_more_bits = true}},
    {Q4_K_S,                            DOWN,          QN_TYPE_Q5_K, {.part = 8}},
    {IQ4_NL | IQ4_XS,                   DOWN,          QN_TYPE_Q5_K, {.part = 8, .importance = -1}},
    // Without importance, Q4_1 and Q5_1 are worse than Q4_0 and Q5_0 here.
    {Q4_0,                              DOWN,          QN_TYPE_Q4_1, {.part = 8, .importance = 1}},
    {Q5_0,                              DOWN,          QN_TYPE_Q5_1, {.part = 8, .importance = 1}},
};
// clang-format on

// In place of a type whose blocks do not fit the rows; where the second does not fit either: F16.
static const struct {
    qn_type type, instead;
} fallbacks[] = {
    {QN_TYPE_Q2_K, QN_TYPE_IQ4_NL},   {QN_TYPE_Q3_K, QN_TYPE_IQ4_NL},
    {QN_TYPE_IQ4_XS, QN_TYPE_IQ4_NL}, {QN_TYPE_Q4_K, QN_TYPE_Q5_0},
    {QN_TYPE_Q5_K, QN_TYPE_Q5_1},     {QN_TYPE_Q6_K, QN_TYPE_Q8_0},
};

// Parts of names of matrices that are small, or that others expect in floats.
static const char *const never[] = {
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid",
    "ssm_conv1d",
    "shortconv.conv.",
    "per_layer_model_proj",
    "altup",
    "laurel",
    "attn_rel_b.",
    "position_embd",
    "patch_embd",
    "token_types.weight",
    "time_mix_first.",
    "time_mix_w0.",
    "time_mix_w1.",
    "time_mix_w2.",
    "time_mix_v0.",
    "time_mix_v1.",
    "time_mix_v2.",
    "time_mix_a0.",
    "time_mix_a1.",
    "time_mix_a2.",
    "time_mix_g1.",
    "time_mix_g2.",
    "time_mix_decay_w",
    "time_mix_lerp_fused.",
};

// --- finding -------------------------------------------------------------------------------------

const qn_mix *qn_mix_get(size_t i) { return i < N_MIXES ? &mixes[i] : NULL; }

qn_status qn_mix_find(const qn_mix **out, const char *name, qn_err *err) {
    char all[256] = "";
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++) {
        if (strcasecmp(aliases[i].name, name) == 0) name = aliases[i].mix;
    }
    for (size_t i = 0, used = 0; i < N_MIXES; i++) {
        if (strcasecmp(mixes[i].name, name) == 0) {
            *out = &mixes[i];
            return QN_OK;
        }
        used += (size_t)snprintf(all + used, sizeof all - used, " %s", mixes[i].name);
    }
    return QN_FAIL(err, ARGUMENT, "no type '%s', want one of%s", name, all);
}

// The number after "blk." at the start of a name; -1 if there is none.
static int64_t layer_of(const qn_tensor *t) {
    static const char prefix[] = "blk.";
    const char *name = t->name.data;
    if (strncmp(name, prefix, sizeof prefix - 1) != 0) return -1;
    char *end;
    const long long layer = strtoll(name + sizeof prefix - 1, &end, 10);
    return *end == '.' && layer >= 0 && layer < INT32_MAX ? layer : -1;
}

int qn_mix_compare(const void *a, const void *b) {
    const qn_tensor *x = a, *y = b;
    const int64_t i = layer_of(x), j = layer_of(y);
    return i != j ? (i > j) - (i < j) : strcmp(x->name.data, y->name.data);
}

static kind kind_of(const qn_mixer *mixer, const qn_tensor *t) {
    const char *name = t->name.data;
    if (strcmp(name, mixer->has_output ? "output.weight" : "token_embd.weight") == 0) return OUTPUT;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strstr(name, kinds[i].part)) return kinds[i].kind;
    }
    return OTHER;
}

bool qn_mix_converts(const qn_tensor *t) {
    static const char ending[] = ".weight";
    const size_t n = sizeof ending - 1;
    int skip = 0; // a single row is a vector
    while (skip < t->n_dims && t->dims[skip] == 1) skip++;
    if (t->n_dims - skip < 2 || t->name.size < n ||
        strcmp(t->name.data + t->name.size - n, ending) != 0)
        return false;
    for (size_t i = 0; i < sizeof never / sizeof *never; i++) {
        if (strstr(t->name.data, never[i])) return false;
    }
    return true;
}

// --- the model -----------------------------------------------------------------------------------

// A whole number below the architecture's name; of an array its first; `missing` if there is none.
static int64_t model_number(const qn_source *source, const char *key_name, int64_t missing) {
    const qn_key *arch = qn_source_find_key(source, "general.architecture");
    if (!arch || arch->kind != QN_KEY_STRING) return missing;
    char name[256];
    snprintf(name, sizeof name, "%s.%s", arch->as.s.data, key_name);
    const qn_key *key = qn_source_find_key(source, name);
    if (key && key->kind == QN_KEY_INT) return key->as.i;
    if (key && qn_key_is_array_of(key, QN_KEY_INT) && key->n) return qn_key_int_at(key, 0);
    return missing;
}

void qn_mixer_add(qn_mixer *mixer, const qn_tensor *t) {
    if (strcmp(t->name.data, "output.weight") == 0) mixer->has_output = true;
    if (kind_of(mixer, t) == VALUE) mixer->n_values++;
}

void qn_mixer_init(qn_mixer *mixer, const qn_mix *mix, const qn_source *source) {
    int64_t n_layers = 0;
    *mixer = (qn_mixer){.mix = mix};
    for (size_t i = 0; i < qn_source_n_tensors(source); i++) {
        const qn_tensor *t = qn_source_tensor(source, i);
        if (layer_of(t) >= n_layers) n_layers = layer_of(t) + 1;
        qn_mixer_add(mixer, t);
    }
    mixer->n_layers = model_number(source, "block_count", n_layers);
    mixer->n_experts = model_number(source, "expert_count", 0);
    const int64_t heads = model_number(source, "attention.head_count", 0);
    const int64_t kv_heads = model_number(source, "attention.head_count_kv", heads);
    if (kv_heads > 0) mixer->heads_per_kv = heads / kv_heads;
}

// --- choosing ------------------------------------------------------------------------------------

static bool is_more_bits(int64_t place, int64_t n) {
    return place < n / 8 || place >= n - n / 8 - (n % 8 != 0) || (place - n / 8) % 3 == 2;
}

static bool holds(const condition *c, const qn_mixer *m, int64_t place, int64_t n) {
    if (c->first && place >= c->first) return false;
    if (c->part && place >= n / c->part) return false;
    if (c->is_more_bits && !is_more_bits(place, n)) return false;
    if (c->layers && m->n_layers != c->layers) return false;
    if (c->experts && m->n_experts != c->experts) return false;
    if (c->sharing && m->heads_per_kv < c->sharing) return false;
    return !c->importance || (c->importance > 0) == m->has_importance;
}

static qn_type apply_rules(const qn_mixer *m, kind role, int64_t place, int64_t n) {
    const unsigned mix = 1u << (m->mix - mixes);
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const rule *r = &rules[i];
        if (r->mixes & mix && r->kind == role && holds(&r->when, m, place, n)) return r->type;
    }
    return m->mix->base;
}

static bool rows_fit(const qn_tensor *t, qn_type type) {
    return t->dims[t->n_dims - 1] % qn_type_get(type)->block == 0;
}

static qn_type fall_back(const qn_tensor *t, qn_type type) {
    if (rows_fit(t, type)) return type;
    for (size_t i = 0; i < sizeof fallbacks / sizeof *fallbacks; i++) {
        if (fallbacks[i].type == type && rows_fit(t, fallbacks[i].instead))
            return fallbacks[i].instead;
    }
    return QN_TYPE_F16;
}

qn_type qn_mixer_choose(qn_mixer *m, const qn_tensor *t, qn_type *wanted) {
    const kind role = kind_of(m, t);
    int64_t place = 0, n = 0;
    if (role == VALUE) {
        place = m->i_value++;
        n = m->n_values;
    } else if (role == DOWN) { // a layer with experts may have several
        place = m->n_experts > 1 ? layer_of(t) : m->i_down;
        m->i_down++;
        n = m->n_layers;
    }
    *wanted = m->is_pure ? m->mix->base : apply_rules(m, role, place, n);
    return fall_back(t, *wanted);
}
