// What config.json leaves out: an absent key means what the reference's configuration class of the
// model type says, null means none, and both are told apart. Models whose config says the default
// outright are the measure: the same graph, context and logits, or the same refusal.
#include "testing.h"

#include "model_writer.h"

#include "format_files.h"

#include "core/mem.h"

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

static void llama_keys(void **state) {
    static const key_case cases[] = {
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
    expect_cases(state, cases, N_OF(cases));
}

static void mistral_keys(void **state) {
#define MISTRAL "set model_type \"mistral\""
    static const key_case cases[] = {
        {"llama_untied", MISTRAL, "num_attention_heads", "32", "4", NULL},
        {"llama_untied", MISTRAL, "num_key_value_heads", "8", "4", "4"},
        {"llama_untied", MISTRAL, "head_dim", "16", "8", "16"},
        {"llama_untied", MISTRAL, "max_position_embeddings", "131072", "8192", NULL},
        {"llama_untied", MISTRAL, "rms_norm_eps", "1e-6", "1e-5", NULL},
        {"llama_untied", MISTRAL, BASE, "10000", "500000", NULL},
        {"llama_untied", MISTRAL, "tie_word_embeddings", "false", "true", "false"},
        {"llama_untied", MISTRAL, "sliding_window", "4096", "8192", NONE},
        {"llama_untied", MISTRAL "; set sliding_window 4", "use_sliding_window", NULL, "false",
         NULL},
        {"llama_untied", MISTRAL "; set sliding_window 4", "max_window_layers", NULL, "1", NULL},
    };
    expect_cases(state, cases, N_OF(cases));
}

#define WINDOWS "unset layer_types; set use_sliding_window true; set sliding_window 4"

static void qwen3_keys(void **state) {
    static const key_case cases[] = {
        {"qwen3", "", "num_attention_heads", "32", "4", NULL},
        {"qwen3", "", "num_key_value_heads", "32", "2", "4"},
        {"qwen3", "", "head_dim", "128", "16", "16"},
        {"qwen3", "", "max_position_embeddings", "32768", "4096", NULL},
        {"qwen3", "", "rms_norm_eps", "1e-6", "1e-5", NULL},
        {"qwen3", "", BASE, "10000", "500000", NULL},
        {"qwen3", "", "tie_word_embeddings", "false", "true", "false"},
        {"qwen3", WINDOWS "; set max_window_layers 0", "sliding_window", "4096", "4", NONE},
        {"qwen3", WINDOWS "; set max_window_layers 1", "use_sliding_window", "false", "true",
         "false"},
        {"qwen3", WINDOWS, "max_window_layers", "28", "1", "0"},
    };
    expect_cases(state, cases, N_OF(cases));
}

static void qwen3_moe_keys(void **state) {
    static const key_case cases[] = {
        {"qwen3_moe", "", "num_attention_heads", "32", "4", NULL},
        {"qwen3_moe", "", "num_key_value_heads", "4", "2", "4"},
        {"qwen3_moe", "", "head_dim", "16", "8", "16"},
        {"qwen3_moe", "", "max_position_embeddings", "32768", "4096", NULL},
        {"qwen3_moe", "", BASE, "10000", "500000", NULL},
        {"qwen3_moe", "unset num_local_experts", "num_experts", "128", "4", "0"},
        {"qwen3_moe", "", "num_experts_per_tok", "8", "2", "0"},
        {"qwen3_moe", "", "moe_intermediate_size", "768", "48", NONE},
        {"qwen3_moe", "", "norm_topk_prob", "false", "true", "false"},
        {"qwen3_moe", "set use_sliding_window true", "sliding_window", "4096", "4", NONE},
        {"qwen3_moe", "set sliding_window 4", "use_sliding_window", "false", "true", "false"},
        {"qwen3_moe", WINDOWS, "max_window_layers", NULL, "28", NULL},
    };
    expect_cases(state, cases, N_OF(cases));
}

static void gemma_keys(void **state) {
    static const key_case cases[] = {
        {"gemma", "", "num_attention_heads", "16", "4", NULL},
        {"gemma", "", "num_key_value_heads", "16", "1", "4"},
        {"gemma", "", "head_dim", "256", "16", "16"},
        {"gemma", "", "max_position_embeddings", "8192", "4096", NULL},
        {"gemma", "", "rms_norm_eps", "1e-6", "1e-5", NULL},
        {"gemma", "", BASE, "10000", "500000", NULL},
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
    expect_cases(state, cases, N_OF(cases));
}

static void gemma2_keys(void **state) {
    static const key_case cases[] = {
        {"gemma2", "", "num_attention_heads", "8", "4", NULL},
        {"gemma2", "", "num_key_value_heads", "4", "2", "4"},
        {"gemma2", "", "head_dim", "256", "16", "16"},
        {"gemma2", "", "max_position_embeddings", "8192", "4096", NULL},
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
    expect_cases(state, cases, N_OF(cases));
}

static void gemma3_keys(void **state) {
    static const key_case cases[] = {
        {"gemma3", "", "num_attention_heads", "8", "4", NULL},
        {"gemma3", "", "num_key_value_heads", "4", "1", "4"},
        {"gemma3", "", "head_dim", "256", "16", "16"},
        {"gemma3", "", "max_position_embeddings", "131072", "4096", NULL},
        {"gemma3", "", "rope_parameters.full_attention.rope_theta", "1000000", "10000", NULL},
        {"gemma3", "", "rope_parameters.sliding_attention.rope_theta", "10000", "500000", NULL},
        {"gemma3", "unset rope_parameters", "rope_theta", "1000000", "10000", NULL},
        {"gemma3", "unset rope_parameters", "rope_local_base_freq", "10000", "500000", NULL},
        {"gemma3", "", "attn_logit_softcapping", "0", "50", "0"},
        {"gemma3", "", "final_logit_softcapping", "0", "30", "0"},
        {"gemma3", "", "query_pre_attn_scalar", "256", "16", NULL},
        {"gemma3", "unset layer_types; unset _sliding_window_pattern", "sliding_window_pattern",
         "6", "3", "6"},
        {"gemma3", "unset layer_types", "sliding_window", "4096", "16", NONE},
    };
    expect_cases(state, cases, N_OF(cases));
}

static void qwen35_keys(void **state) {
#define TURNS "unset rope_parameters.partial_rotary_factor; unset rope_parameters.mrope_section"
    static const key_case cases[] = {
        {"qwen35", "", "num_attention_heads", "16", "4", NULL},
        {"qwen35", "", "num_key_value_heads", "4", "2", "4"},
        {"qwen35", "", "head_dim", "256", "16", "16"},
        {"qwen35", "", "max_position_embeddings", "32768", "4096", NULL},
        {"qwen35", "", BASE, "10000", "500000", NULL},
        {"qwen35", TURNS, "partial_rotary_factor", "0.25", "0.5", NULL},
        {"qwen35", "", "tie_word_embeddings", "false", "true", "false"},
        {"qwen35", "unset layer_types", "full_attention_interval", "4", "2", NULL},
        {"qwen35", "", "linear_num_key_heads", "16", "2", NULL},
        {"qwen35", "", "linear_num_value_heads", "32", "4", NULL},
        {"qwen35", "", "linear_key_head_dim", "128", "16", NULL},
        {"qwen35", "", "linear_value_head_dim", "128", "16", NULL},
        {"qwen35", "", "linear_conv_kernel_dim", "4", "3", NULL},
        {"qwen35_moe", "", "num_key_value_heads", "2", "1", "4"},
        {"qwen35_moe", "", "num_experts", "256", "4", "0"},
        {"qwen35_moe", "", "num_experts_per_tok", "8", "2", "0"},
        {"qwen35_moe", "", "moe_intermediate_size", "512", "48", NONE},
        {"qwen35_moe", "", "shared_expert_intermediate_size", "512", "80", NONE},
    };
    expect_cases(state, cases, N_OF(cases));
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
        FOLDER_TEST(llama_keys),
        FOLDER_TEST(mistral_keys),
        FOLDER_TEST(qwen3_keys),
        FOLDER_TEST(qwen3_moe_keys),
        FOLDER_TEST(gemma_keys),
        FOLDER_TEST(gemma2_keys),
        FOLDER_TEST(gemma3_keys),
        FOLDER_TEST(qwen35_keys),
        FOLDER_TEST(null_is_no_window),
        FOLDER_TEST(gemma_uses_its_own_output_matrix),
        FOLDER_TEST(sizes_of_tensors_have_no_default),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
