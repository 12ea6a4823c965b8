// What config.json leaves out: an absent key means what the reference's configuration class of the
// model type says, null means none, and both are told apart. Models whose config says the default
// outright are the measure: the same graph, context and logits, or the same refusal.
#include "testing.h"

#include "model_writer.h"

#include "format_files.h"

#include "core/chars.h"
#include "core/mem.h"
#include "models/defaults.h"

enum { N_IDS = 24 };

#define N_OF(list) (sizeof(list) / sizeof((list)[0]))

// What a model is, as far as anybody can see.
typedef struct outcome {
    qn_status status;
    char message[512]; // of a refusal
    char *graph;
    int64_t context;
    qn_logits logits;
} outcome;

static outcome open_model(void **state, const model_file *m) {
    qn_err err;
    qn_engine *engine = NULL;
    outcome o = {.logits = QN_INIT(qn_logits)};
    int32_t ids[N_IDS];
    for (int32_t i = 0; i < N_IDS; i++) ids[i] = (i * 37 + 11) % 500;
    model_write_checkpoint(m, *state, 1);
    o.status = qn_engine_open(&engine, *state,
                              &QN_INIT(qn_engine_opts, .n_threads = 1, .reference = true), &err);
    if (o.status) {
        snprintf(o.message, sizeof o.message, "%s", err.message);
        return o;
    }
    o.context = engine_info(engine).context;
    ASSERT_OK(qn_engine_graph(&o.graph, engine, NULL, &err));
    ASSERT_OK(qn_engine_logits(&o.logits, engine, ids, N_IDS, NULL, &err));
    qn_engine_close(engine);
    return o;
}

static void deinit(outcome *o) {
    qn_free(o->graph);
    qn_logits_deinit(&o->logits);
}

static bool is_same(const outcome *a, const outcome *b) {
    if (a->status || b->status) return strcmp(a->message, b->message) == 0;
    return a->context == b->context && strcmp(a->graph, b->graph) == 0 &&
           memcmp(a->logits.logits, b->logits.logits,
                  (size_t)a->logits.n_vocab * sizeof *a->logits.logits) == 0;
}

// A key of a model of tests/data/mini, after some edits.
typedef struct key_case {
    const char *family, *edits, *key;
    const char *absent; // the value that the absent key stands for; NULL: no value is looked at
    const char *other;  // one that means something else
    const char *null;   // the value that null stands for; NULL: it is refused
} key_case;
static const char NONE[] = "none"; // no value says what null says: it is just not the default

static outcome open_with(void **state, const key_case *c, const char *value) {
    char path[256], edit[256];
    snprintf(path, sizeof path, "%s/mini/%s", TEST_DATA, c->family);
    model_file *m = model_load(path);
    model_edit(m, c->edits);
    if (value)
        snprintf(edit, sizeof edit, "set %s %s", c->key, value);
    else
        snprintf(edit, sizeof edit, "unset %s", c->key);
    model_edit(m, edit);
    const outcome o = open_model(state, m);
    model_free(m);
    return o;
}

static void expect(bool want, const outcome *a, const outcome *b, const key_case *c,
                   const char *what) {
    if (is_same(a, b) == want) return;
    fail_msg("%s (%s): %s: %s %s the same: '%s', '%s'", c->family, c->edits, c->key, what,
             want ? "is not" : "is", a->message, b->message);
}

static void expect_cases(void **state, const key_case *cases, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const key_case *c = &cases[i];
        outcome absent = open_with(state, c, NULL), null = open_with(state, c, "null");
        outcome other = open_with(state, c, c->other);
        if (c->absent) {
            outcome given = open_with(state, c, c->absent);
            expect(true, &absent, &given, c, "absent and its default");
            expect(false, &absent, &other, c, "absent and another value");
            deinit(&given);
        } else {
            expect(true, &absent, &other, c, "absent and a value that is not looked at");
        }
        if (c->null == NONE) {
            expect(false, &null, &absent, c, "null and absent");
        } else if (c->null) {
            outcome given = open_with(state, c, c->null);
            expect(true, &null, &given, c, "null and what it stands for");
            deinit(&given);
        } else if (c->absent) {
            if (!null.status || !strstr(null.message, ": null, want"))
                fail_msg("%s: %s: null is not refused: '%s'", c->family, c->key, null.message);
        } else {
            expect(true, &absent, &null, c, "absent and null");
        }
        deinit(&absent);
        deinit(&null);
        deinit(&other);
    }
}

#define BASE "rope_parameters.rope_theta"

static const key_case llama_cases[] = {
    {"llama_untied", "", "num_attention_heads", "32", "4", NULL},
    {"llama_untied", "", "num_key_value_heads", "4", "2", "4"},
    {"llama_untied", "", "head_dim", "16", "8", "16"},
    {"llama_untied", "", "max_position_embeddings", "2048", "8192", NULL},
    {"llama_untied", "", "rms_norm_eps", "1e-6", "1e-5", NULL},
    {"llama_untied", "", BASE, "10000", "500000", NULL},
    {"llama_untied", "", "partial_rotary_factor", "1", "0.5", NULL},
    {"llama_untied", "", "tie_word_embeddings", "false", "true", "false"},
    {"llama_untied", "", "hidden_act", "\"silu\"", "\"relu\"", "\"silu\""},
    {"llama_untied", "", "attention_bias", "false", "true", "false"},
    {"llama_untied", "", "mlp_bias", "false", "true", "false"},
    {"llama_untied", "", "sliding_window", NULL, "4", NULL},
    {"llama_untied", "set sliding_window 4", "use_sliding_window", NULL, "true", NULL},
    {"llama_untied", "set sliding_window 4", "max_window_layers", NULL, "0", NULL},
    {"llama_untied", "set sliding_window 4", "layer_types", NULL,
     "[\"sliding_attention\", \"sliding_attention\"]", NULL},
};

#define MISTRAL "set model_type \"mistral\""
static const key_case mistral_cases[] = {
    {"llama_untied", MISTRAL, "num_attention_heads", "32", "4", NULL},
    {"llama_untied", MISTRAL, "num_key_value_heads", "8", "4", "4"},
    {"llama_untied", MISTRAL, "head_dim", "16", "8", "16"},
    {"llama_untied", MISTRAL, "max_position_embeddings", "131072", "8192", NULL},
    {"llama_untied", MISTRAL, "rms_norm_eps", "1e-6", "1e-5", NULL},
    {"llama_untied", MISTRAL, BASE, "10000", "500000", NULL},
    {"llama_untied", MISTRAL, "tie_word_embeddings", "false", "true", "false"},
    {"llama_untied", MISTRAL, "partial_rotary_factor", "1", "0.5", NULL},
    {"llama_untied", MISTRAL, "hidden_act", "\"silu\"", "\"relu\"", "\"silu\""},
    {"llama_untied", MISTRAL, "sliding_window", "4096", "8192", NONE},
    {"llama_untied", MISTRAL "; set sliding_window 4", "use_sliding_window", NULL, "false", NULL},
    {"llama_untied", MISTRAL "; set sliding_window 4", "max_window_layers", NULL, "1", NULL},
};

#define WINDOWS "unset layer_types; set use_sliding_window true; set sliding_window 4"

#define BIAS(layer, name)                                                                          \
    "; copy model.layers.0.input_layernorm.weight model.layers." layer ".self_attn." name ".bias"
#define BIASES(layer) BIAS(layer, "q_proj") BIAS(layer, "k_proj") BIAS(layer, "v_proj")
#define QWEN2         "set model_type \"qwen2\"" BIASES("0") BIASES("1") // 64 each, as the norm
static const key_case qwen2_cases[] = {
    {"llama_untied", QWEN2, "num_attention_heads", "32", "4", NULL},
    {"llama_untied", QWEN2, "num_key_value_heads", "32", "4", "4"},
    {"llama_untied", QWEN2, "head_dim", "16", "8", "16"},
    {"llama_untied", QWEN2, "max_position_embeddings", "32768", "8192", NULL},
    {"llama_untied", QWEN2, "rms_norm_eps", "1e-6", "1e-5", NULL},
    {"llama_untied", QWEN2, BASE, "10000", "500000", NULL},
    {"llama_untied", QWEN2, "partial_rotary_factor", "1", "0.5", NULL},
    {"llama_untied", QWEN2, "tie_word_embeddings", "false", "true", "false"},
    {"llama_untied", QWEN2, "hidden_act", "\"silu\"", "\"relu\"", "\"silu\""},
    {"llama_untied", QWEN2 "; " WINDOWS "; set max_window_layers 0", "sliding_window", "4096", "4",
     NONE},
    {"llama_untied", QWEN2 "; " WINDOWS "; set max_window_layers 1", "use_sliding_window", "false",
     "true", "false"},
    {"llama_untied", QWEN2 "; " WINDOWS, "max_window_layers", "28", "1", "0"},
};

static const key_case qwen3_cases[] = {
    {"qwen3", "", "num_attention_heads", "32", "4", NULL},
    {"qwen3", "", "num_key_value_heads", "32", "2", "4"},
    {"qwen3", "", "head_dim", "128", "16", "16"},
    {"qwen3", "", "max_position_embeddings", "32768", "4096", NULL},
    {"qwen3", "", "rms_norm_eps", "1e-6", "1e-5", NULL},
    {"qwen3", "", BASE, "10000", "500000", NULL},
    {"qwen3", "", "tie_word_embeddings", "false", "true", "false"},
    {"qwen3", "", "partial_rotary_factor", "1", "0.5", NULL},
    {"qwen3", "", "hidden_act", "\"silu\"", "\"relu\"", "\"silu\""},
    {"qwen3", WINDOWS "; set max_window_layers 0", "sliding_window", "4096", "4", NONE},
    {"qwen3", WINDOWS "; set max_window_layers 1", "use_sliding_window", "false", "true", "false"},
    {"qwen3", WINDOWS, "max_window_layers", "28", "1", "0"},
};

static const key_case qwen3_moe_cases[] = {
    {"qwen3_moe", "", "num_attention_heads", "32", "4", NULL},
    {"qwen3_moe", "", "num_key_value_heads", "4", "2", "4"},
    {"qwen3_moe", "", "head_dim", "16", "8", "16"},
    {"qwen3_moe", "", "max_position_embeddings", "32768", "4096", NULL},
    {"qwen3_moe", "", BASE, "10000", "500000", NULL},
    {"qwen3_moe", "", "partial_rotary_factor", "1", "0.5", NULL},
    {"qwen3_moe", "", "rms_norm_eps", "1e-6", "1e-5", NULL},
    {"qwen3_moe", "", "tie_word_embeddings", "false", "true", "false"},
    {"qwen3_moe", "", "hidden_act", "\"silu\"", "\"relu\"", "\"silu\""},
    {"qwen3_moe", "unset num_local_experts", "num_experts", "128", "4", "0"},
    {"qwen3_moe", "", "num_experts_per_tok", "8", "2", "0"},
    {"qwen3_moe", "", "moe_intermediate_size", "768", "48", NONE},
    {"qwen3_moe", "", "norm_topk_prob", "false", "true", "false"},
    {"qwen3_moe", "set use_sliding_window true", "sliding_window", "4096", "4", NONE},
    {"qwen3_moe", "set sliding_window 4", "use_sliding_window", "false", "true", "false"},
    {"qwen3_moe", WINDOWS, "max_window_layers", NULL, "28", NULL},
};

static const key_case gemma_cases[] = {
    {"gemma", "", "num_attention_heads", "16", "4", NULL},
    {"gemma", "", "num_key_value_heads", "16", "1", "4"},
    {"gemma", "", "head_dim", "256", "16", "16"},
    {"gemma", "", "max_position_embeddings", "8192", "4096", NULL},
    {"gemma", "", "rms_norm_eps", "1e-6", "1e-5", NULL},
    {"gemma", "", BASE, "10000", "500000", NULL},
    {"gemma", "", "partial_rotary_factor", "1", "0.5", NULL},
    {"gemma",
     "copy model.layers.0.mlp.gate_proj.weight lm_head.weight;"
     "shape lm_head.weight 512 64",
     "tie_word_embeddings", "true", "false", "false"},
    {"gemma", "unset hidden_act", "hidden_activation", "\"gelu_pytorch_tanh\"", "\"relu\"",
     "\"gelu_pytorch_tanh\""},
    {"gemma", "", "sliding_window", NULL, "4", NULL},
    {"gemma", "", "attn_logit_softcapping", NULL, "5", NULL},
    {"gemma", "", "final_logit_softcapping", NULL, "5", NULL},
};

static const key_case gemma2_cases[] = {
    {"gemma2", "", "num_attention_heads", "8", "4", NULL},
    {"gemma2", "", "num_key_value_heads", "4", "2", "4"},
    {"gemma2", "", "head_dim", "256", "16", "16"},
    {"gemma2", "", "max_position_embeddings", "8192", "4096", NULL},
    {"gemma2", "", "rms_norm_eps", "1e-6", "1e-5", NULL},
    {"gemma2", "", "partial_rotary_factor", "1", "0.5", NULL},
    {"gemma2",
     "copy model.layers.0.mlp.gate_proj.weight lm_head.weight;"
     "shape lm_head.weight 512 64",
     "tie_word_embeddings", "true", "false", "false"},
    {"gemma2", "unset hidden_act", "hidden_activation", "\"gelu_pytorch_tanh\"", "\"relu\"",
     "\"gelu_pytorch_tanh\""},
    {"gemma2", "", BASE, "10000", "500000", NULL},
    {"gemma2", "", "attn_logit_softcapping", "50", "20", "0"},
    {"gemma2", "", "final_logit_softcapping", "30", "20", "0"},
    {"gemma2", "", "query_pre_attn_scalar", "256", "16", NULL},
    {"gemma2", "", "layer_types",
     "[\"sliding_attention\", \"full_attention\", \"sliding_attention\", \"full_attention\"]",
     "[\"full_attention\", \"full_attention\", \"full_attention\", \"full_attention\"]",
     "[\"sliding_attention\", \"full_attention\", \"sliding_attention\", \"full_attention\"]"},
    {"gemma2", "unset layer_types", "sliding_window", "4096", "16", NONE},
};

static const key_case gemma3_cases[] = {
    {"gemma3", "", "num_attention_heads", "8", "4", NULL},
    {"gemma3", "", "num_key_value_heads", "4", "1", "4"},
    {"gemma3", "", "head_dim", "256", "16", "16"},
    {"gemma3", "", "max_position_embeddings", "131072", "4096", NULL},
    {"gemma3", "", "rms_norm_eps", "1e-6", "1e-5", NULL},
    {"gemma3", "", "partial_rotary_factor", "1", "0.5", NULL},
    {"gemma3",
     "copy model.layers.0.mlp.gate_proj.weight lm_head.weight;"
     "shape lm_head.weight 512 64",
     "tie_word_embeddings", "true", "false", "false"},
    {"gemma3", "unset hidden_act", "hidden_activation", "\"gelu_pytorch_tanh\"", "\"relu\"",
     "\"gelu_pytorch_tanh\""},
    {"gemma3", "", "rope_parameters.full_attention.rope_theta", "1000000", "10000", NULL},
    {"gemma3", "", "rope_parameters.sliding_attention.rope_theta", "10000", "500000", NULL},
    {"gemma3", "unset rope_parameters", "rope_theta", "1000000", "10000", NULL},
    {"gemma3", "unset rope_parameters", "rope_local_base_freq", "10000", "500000", NULL},
    {"gemma3", "", "attn_logit_softcapping", "0", "50", "0"},
    {"gemma3", "", "final_logit_softcapping", "0", "30", "0"},
    {"gemma3", "", "query_pre_attn_scalar", "256", "16", NULL},
    {"gemma3", "unset layer_types; unset _sliding_window_pattern", "sliding_window_pattern", "6",
     "3", "6"},
    {"gemma3", "unset layer_types", "sliding_window", "4096", "16", NONE},
};

#define TURNS "unset rope_parameters.partial_rotary_factor; unset rope_parameters.mrope_section"
static const key_case qwen35_cases[] = {
    {"qwen35", "", "num_attention_heads", "16", "4", NULL},
    {"qwen35", "", "num_key_value_heads", "4", "2", "4"},
    {"qwen35", "", "head_dim", "256", "16", "16"},
    {"qwen35", "", "max_position_embeddings", "32768", "4096", NULL},
    {"qwen35", "", BASE, "10000", "500000", NULL},
    {"qwen35", TURNS, "partial_rotary_factor", "0.25", "0.5", NULL},
    {"qwen35", "", "tie_word_embeddings", "false", "true", "false"},
    {"qwen35", "", "rms_norm_eps", "1e-6", "1e-5", NULL},
    {"qwen35", "", "hidden_act", "\"silu\"", "\"relu\"", "\"silu\""},
    {"qwen35", "unset layer_types", "full_attention_interval", "4", "2", NULL},
    {"qwen35", "", "linear_num_key_heads", "16", "2", NULL},
    {"qwen35", "", "linear_num_value_heads", "32", "4", NULL},
    {"qwen35", "", "linear_key_head_dim", "128", "16", NULL},
    {"qwen35", "", "linear_value_head_dim", "128", "16", NULL},
    {"qwen35", "", "linear_conv_kernel_dim", "4", "3", NULL},
};

static const key_case qwen35_moe_cases[] = {
    {"qwen35_moe", "", "num_attention_heads", "16", "4", NULL},
    {"qwen35_moe", "", "head_dim", "256", "16", "16"},
    {"qwen35_moe", "", "max_position_embeddings", "32768", "4096", NULL},
    {"qwen35_moe", "", BASE, "10000", "500000", NULL},
    {"qwen35_moe", TURNS, "partial_rotary_factor", "0.25", "0.5", NULL},
    {"qwen35_moe", "", "tie_word_embeddings", "false", "true", "false"},
    {"qwen35_moe", "", "rms_norm_eps", "1e-6", "1e-5", NULL},
    {"qwen35_moe", "", "hidden_act", "\"silu\"", "\"relu\"", "\"silu\""},
    {"qwen35_moe", "unset layer_types", "full_attention_interval", "4", "2", NULL},
    {"qwen35_moe", "", "linear_num_key_heads", "16", "2", NULL},
    {"qwen35_moe", "", "linear_num_value_heads", "32", "4", NULL},
    {"qwen35_moe", "", "linear_key_head_dim", "128", "16", NULL},
    {"qwen35_moe", "", "linear_value_head_dim", "128", "16", NULL},
    {"qwen35_moe", "", "linear_conv_kernel_dim", "4", "3", NULL},
    {"qwen35_moe", "", "num_key_value_heads", "2", "1", "4"},
    {"qwen35_moe", "", "num_experts", "256", "4", "0"},
    {"qwen35_moe", "", "num_experts_per_tok", "8", "2", "0"},
    {"qwen35_moe", "", "moe_intermediate_size", "512", "48", NONE},
    {"qwen35_moe", "", "shared_expert_intermediate_size", "512", "80", NONE},
};

#define CASES(name) name##_cases, N_OF(name##_cases)
static const struct {
    const char *type; // a model type of the row of defaults that they are about
    const key_case *cases;
    size_t n;
} groups[] = {
    {"llama", CASES(llama)},         {"mistral", CASES(mistral)},
    {"qwen2", CASES(qwen2)},         {"qwen3", CASES(qwen3)},
    {"qwen3_moe", CASES(qwen3_moe)}, {"gemma", CASES(gemma)},
    {"gemma2", CASES(gemma2)},       {"gemma3", CASES(gemma3)},
    {"qwen3_5", CASES(qwen35)},      {"qwen3_5_moe", CASES(qwen35_moe)},
};

static void each_key_is_tried_absent_null_and_given(void **state) {
    for (size_t i = 0; i < N_OF(groups); i++) expect_cases(state, groups[i].cases, groups[i].n);
}

// The keys that a row of defaults has numbers for; member 0: every row has such a key.
static const struct {
    const char *key;
    size_t member;
} default_keys[] = {
    {"num_attention_heads", QN_DEFAULT(heads)},
    {"num_key_value_heads", 0},
    {"head_dim", 0},
    {"max_position_embeddings", QN_DEFAULT(context)},
    {"rms_norm_eps", QN_DEFAULT(eps)},
    {"rope_theta", QN_DEFAULT(rope_base)},
    {"rope_local_base_freq", QN_DEFAULT(rope_local_base)},
    {"partial_rotary_factor", QN_DEFAULT(rotary)},
    {"tie_word_embeddings", 0},
    {"hidden_act", 0},
    {"sliding_window", QN_DEFAULT(window)},
    {"max_window_layers", QN_DEFAULT(window_first)},
    {"attn_logit_softcapping", QN_DEFAULT(attn_cap)},
    {"final_logit_softcapping", QN_DEFAULT(final_cap)},
    {"query_pre_attn_scalar", QN_DEFAULT(query_scalar)},
    {"num_experts", QN_DEFAULT(experts)},
    {"num_experts_per_tok", QN_DEFAULT(experts_used)},
    {"moe_intermediate_size", QN_DEFAULT(expert_ffn)},
    {"shared_expert_intermediate_size", QN_DEFAULT(shared_ffn)},
    {"full_attention_interval", QN_DEFAULT(interval)},
    {"linear_num_key_heads", QN_DEFAULT(key_heads)},
    {"linear_num_value_heads", QN_DEFAULT(val_heads)},
    {"linear_key_head_dim", QN_DEFAULT(key_dim)},
    {"linear_value_head_dim", QN_DEFAULT(val_dim)},
    {"linear_conv_kernel_dim", QN_DEFAULT(taps)},
};

// Whether the group tries a key: by its last step, and hidden_act by either of its names.
static bool has_case(size_t group, const char *key) {
    const size_t n = strlen(key) + (strcmp(key, "hidden_act") != 0);
    for (size_t i = 0; i < groups[group].n; i++) {
        const char *own = groups[group].cases[i].key, *dot = strrchr(own, '.');
        if (strncmp(dot ? dot + 1 : own, key, n) == 0) return true;
    }
    return false;
}

static void every_default_has_a_case(void **state) {
    (void)state;
    size_t n_rows = 0;
    for (const qn_defaults *row; (row = qn_defaults_at(n_rows)) != NULL; n_rows++) {
        size_t group = 0;
        while (group < N_OF(groups) && !qn_has_word(row->types, groups[group].type, ' ')) group++;
        if (group == N_OF(groups)) fail_msg("%s: no cases", row->types);
        for (size_t k = 0; k < N_OF(default_keys); k++) {
            const size_t member = default_keys[k].member;
            const double value = member ? *(const double *)((const char *)row + member) : 1;
            if (value != 0 && !has_case(group, default_keys[k].key))
                fail_msg("%s: %s has no case", row->types, default_keys[k].key);
        }
        if (row->pattern != 0 && !has_case(group, "sliding_window_pattern") &&
            !has_case(group, "layer_types"))
            fail_msg("%s: no case for the pattern of layers", row->types);
    }
    assert_int_equal(n_rows, N_OF(groups));
}

// What null means where no number says it.
static void null_is_no_window(void **state) {
    static const struct {
        const char *family, *edits, *like;
    } cases[] = {
        {"llama_untied", "set model_type \"mistral\"; set sliding_window null", ""},
        {"gemma2", "unset layer_types; set sliding_window null",
         "set layer_types [\"full_attention\", \"full_attention\", \"full_attention\","
         "\"full_attention\"]"},
        {"qwen3", WINDOWS "; set sliding_window null; set max_window_layers 0", ""},
        {"qwen3_moe", "set use_sliding_window true; set sliding_window null", ""},
    };
    for (size_t i = 0; i < N_OF(cases); i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/mini/%s", TEST_DATA, cases[i].family);
        model_file *m = model_load(path), *like = model_load(path);
        model_edit(m, cases[i].edits);
        model_edit(like, cases[i].like);
        outcome got = open_model(state, m), want = open_model(state, like);
        if (!is_same(&got, &want))
            fail_msg("%s: %s %s", cases[i].family, got.message, want.message);
        deinit(&got);
        deinit(&want);
        model_free(m);
        model_free(like);
    }
}

// --- the output matrix of Gemma ------------------------------------------------------------------

enum { STEP = 7, SHIFT = 3 };

static int64_t moved(int64_t row, int64_t n) { return (row * STEP + SHIFT) % n; }

// Adds an output matrix whose row i is row moved(i) of the embedding: its logits are those of the
// embedding, in another order.
static void add_output(model_file *m, const char *embedding, const char *output) {
    char edit[128];
    snprintf(edit, sizeof edit, "copy %s %s", embedding, output);
    model_edit(m, edit);
    const model_tensor *from = model_find(m, embedding), *to = model_find(m, output);
    const int64_t n = from->dims[0];
    const size_t bytes = from->bytes / (size_t)n;
    for (int64_t i = 0; i < n; i++)
        memcpy(to->data + (size_t)i * bytes, from->data + (size_t)moved(i, n) * bytes, bytes);
}

static qn_logits logits_of(const char *path, bool is_reference) {
    qn_err err;
    qn_engine *engine = NULL;
    qn_logits logits = QN_INIT(qn_logits);
    int32_t ids[N_IDS];
    for (int32_t i = 0; i < N_IDS; i++) ids[i] = (i * 37 + 11) % 500;
    ASSERT_OK(qn_engine_open(
        &engine, path, &QN_INIT(qn_engine_opts, .n_threads = 1, .reference = is_reference), &err));
    ASSERT_OK(qn_engine_logits(&logits, engine, ids, N_IDS, NULL, &err));
    qn_engine_close(engine);
    return logits;
}

static void expect_output(const char *path, const char *like, bool is_moved, const char *what) {
    for (int is_reference = 0; is_reference < 2; is_reference++) {
        qn_logits got = logits_of(path, is_reference), want = logits_of(like, is_reference);
        for (int64_t i = 0; i < got.n_vocab; i++) {
            const float w = want.logits[is_moved ? moved(i, want.n_vocab) : i];
            if (got.logits[i] != w)
                fail_msg("%s: logit %lld is %g, want %g", what, (long long)i, (double)got.logits[i],
                         (double)w);
        }
        qn_logits_deinit(&got);
        qn_logits_deinit(&want);
    }
}

static void gemma_uses_its_own_output_matrix(void **state) {
    static const char *const families[] = {"gemma", "gemma2", "gemma3"};
    static const struct {
        const char *edit;
        bool is_own;
    } cases[] = {{"set tie_word_embeddings false", true},
                 {"set tie_word_embeddings true", false},
                 {"unset tie_word_embeddings", false}};
    for (size_t f = 0; f < N_OF(families); f++) {
        char folder[256], gguf[512];
        snprintf(folder, sizeof folder, "%s/mini/%s", TEST_DATA, families[f]);
        snprintf(gguf, sizeof gguf, "%s/%s-bf16.gguf", folder, families[f]);
        model_file *m = model_load(folder);
        add_output(m, "model.embed_tokens.weight", "lm_head.weight");
        for (size_t i = 0; i < N_OF(cases); i++) {
            model_edit(m, cases[i].edit);
            model_write_checkpoint(m, *state, 1);
            expect_output(*state, folder, cases[i].is_own, cases[i].edit);
        }
        model_free(m);
        m = model_load(gguf);
        add_output(m, "token_embd.weight", "output.weight");
        const path_name path = in_folder(state, "model.gguf");
        model_write_gguf(m, path.text);
        expect_output(path.text, gguf, true, "output.weight");
        remove(path.text);
        model_free(m);
    }
}

// --- sizes ---------------------------------------------------------------------------------------

// Sizes that tensors have must be said.
static void sizes_of_tensors_have_no_default(void **state) {
    static const char *const keys[] = {"hidden_size", "num_hidden_layers"};
    for (size_t i = 0; i < N_OF(keys); i++) {
        char want[64];
        const key_case c = {.family = "qwen3", .edits = "", .key = keys[i]};
        outcome got = open_with(state, &c, NULL), null = open_with(state, &c, "null");
        snprintf(want, sizeof want, "no key %s", keys[i]);
        assert_non_null(strstr(got.message, want));
        snprintf(want, sizeof want, "%s: null, want a number", keys[i]);
        assert_non_null(strstr(null.message, want));
        deinit(&got);
        deinit(&null);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(each_key_is_tried_absent_null_and_given),
        cmocka_unit_test(every_default_has_a_case),
        FOLDER_TEST(null_is_no_window),
        FOLDER_TEST(gemma_uses_its_own_output_matrix),
        FOLDER_TEST(sizes_of_tensors_have_no_default),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
