// The same model in another form: other spellings of a config, other containers, fused and separate
// tensors, other numeric types. Each must compute what the form that the reference results cover
// computes, to the bit unless said otherwise. What has no such form (biases, windows) is compared
// with a plain forward pass in double precision.
#include "testing.h"

#include "model_writer.h"
#include "plain_forward.h"

#include "format_files.h"

#include "quant/half.h"

#include <math.h>

enum { N_IDS = 24 }; // longer than the windows of the small Gemma models

#define N_OF(list) (sizeof(list) / sizeof((list)[0]))

static void some_ids(int32_t *ids) {
    for (int32_t i = 0; i < N_IDS; i++) ids[i] = (i * 37 + 11) % 500;
}

// All rows of logits, by the reference interpreter or by plans.
static qn_logits logits_by(const char *path, bool is_reference) {
    qn_err err;
    qn_engine *engine = NULL;
    qn_logits logits = QN_INIT(qn_logits);
    int32_t ids[N_IDS];
    some_ids(ids);
    const qn_engine_opts opts = QN_INIT(qn_engine_opts, .n_threads = 1, .reference = is_reference);
    const qn_status status = qn_engine_open(&engine, path, &opts, &err);
    if (status == QN_UNSUPPORTED && !is_reference) return QN_INIT(qn_logits); // Q8_K has no kernels
    ASSERT_OK(status);
    ASSERT_OK(qn_engine_logits(&logits, engine, ids, N_IDS,
                               &QN_INIT(qn_logits_opts, .all_rows = true), &err));
    qn_engine_close(engine);
    return logits;
}

static double difference(const qn_logits *a, const qn_logits *b);

// The logits of the reference, to which those of the plans must be near: 12-bit activations and
// 16-bit keys and values make the difference where weights are quantised.
static qn_logits logits_of(const char *path) {
    qn_logits want = logits_by(path, true), got = logits_by(path, false);
    const double error = got.logits ? difference(&got, &want) : 0;
    if (error > 1e-2) fail_msg("%s: plans differ by %.1e", path, error);
    qn_logits_deinit(&got);
    return want;
}

static bool same_bits(const qn_logits *a, const qn_logits *b) {
    assert_int_equal(a->n_rows, b->n_rows);
    assert_int_equal(a->n_vocab, b->n_vocab);
    return memcmp(a->logits, b->logits, (size_t)(a->n_rows * a->n_vocab) * sizeof(float)) == 0;
}

// sqrt(sum (a - b)^2 / sum b^2)
static double difference(const qn_logits *a, const qn_logits *b) {
    double gap = 0, size = 0;
    for (int64_t i = 0; i < a->n_rows * a->n_vocab; i++) {
        const double x = (double)a->logits[i], y = (double)b->logits[i];
        gap += (x - y) * (x - y);
        size += y * y;
    }
    return sqrt(gap / size);
}

// Compares and releases `got`.
static void expect_same(const char *what, qn_logits got, const qn_logits *want) {
    if (!same_bits(&got, want)) fail_msg("%s: differs by %.1e", what, difference(&got, want));
    qn_logits_deinit(&got);
}

static void expect_near(const char *what, qn_logits got, const qn_logits *want, double bound) {
    const double gap = difference(&got, want);
    print_message("%s: %.1e\n", what, gap);
    if (!(gap <= bound)) fail_msg("%s: differs by %.1e, want at most %.0e", what, gap, bound);
    qn_logits_deinit(&got);
}

static path_name mini_gguf(const char *family) {
    path_name path;
    snprintf(path.text, sizeof path.text, "%s/mini/%s/%s-bf16.gguf", TEST_DATA, family, family);
    return path;
}

static path_name mini_folder(const char *family) {
    path_name path;
    snprintf(path.text, sizeof path.text, "%s/mini/%s", TEST_DATA, family);
    return path;
}

// Logits of a model written as it is in memory.
static qn_logits checkpoint_logits(void **state, const model_file *m) {
    model_write_checkpoint(m, *state, 1);
    return logits_of(*state);
}

static qn_logits gguf_logits(void **state, const model_file *m) {
    const path_name path = in_folder(state, "model.gguf");
    model_write_gguf(m, path.text);
    const qn_logits logits = logits_of(path.text);
    remove(path.text);
    return logits;
}

// --- spellings -----------------------------------------------------------------------------------

typedef struct form {
    const char *family, *edits;
    bool differs; // the edits mean something else: shows that they are read at all
} form;

static void expect_forms(void **state, const form *forms, size_t n, bool is_gguf) {
    for (size_t i = 0; i < n; i++) {
        const form *f = &forms[i];
        const path_name from = is_gguf ? mini_gguf(f->family) : mini_folder(f->family);
        model_file *m = model_load(from.text);
        model_edit(m, f->edits);
        qn_logits want = logits_of(from.text);
        qn_logits got = is_gguf ? gguf_logits(state, m) : checkpoint_logits(state, m);
        if (same_bits(&got, &want) == f->differs)
            fail_msg("%s: %s: differs by %.1e, want %s", f->family, f->edits,
                     difference(&got, &want), f->differs ? "a difference" : "the same");
        qn_logits_deinit(&got);
        qn_logits_deinit(&want);
        model_free(m);
    }
}

// Transformers 4 has rope_theta and rope_scaling at the top, torch_dtype, and leaves out what it
// derives.
static void configs_of_transformers_4_mean_the_same(void **state) {
#define OLD_ROPE "unset rope_parameters; unset dtype; set torch_dtype \"bfloat16\";"
#define LLAMA3                                                                                     \
    "\"factor\": 32.0, \"high_freq_factor\": 4.0, \"low_freq_factor\": 1.0,"                       \
    "\"original_max_position_embeddings\": 256"
#define MROPE "\"mrope_interleaved\": true, \"mrope_section\": [2, 1, 1]"
    static const form forms[] = {
        {"llama32",
         OLD_ROPE "set rope_theta 500000.0; unset head_dim;"
                  "set rope_scaling {" LLAMA3 ", \"rope_type\": \"llama3\"}",
         false},
        {"llama32",
         OLD_ROPE "set rope_theta 500000.0; set rope_scaling {" LLAMA3 ", \"type\": \"llama3\"}",
         false},
        {"llama32", OLD_ROPE "set rope_theta 500000.0", true}, // without the scaling
        {"llama_untied",
         OLD_ROPE "set rope_theta 10000.0; set rope_scaling null; unset head_dim;"
                  "unset num_key_value_heads",
         false},
        {"llama_untied", OLD_ROPE "unset tie_word_embeddings", false}, // 10000, untied: defaults
        {"llama_untied", OLD_ROPE "set rope_theta 20000.0", true},
        {"qwen3", OLD_ROPE "set rope_theta 1000000; unset layer_types", false},
        {"qwen3_moe",
         OLD_ROPE "set rope_theta 1000000.0; set num_experts 4; unset num_local_experts;"
                  "unset head_dim; unset mlp_only_layers",
         false},
        {"gemma", OLD_ROPE "set rope_theta 10000.0; unset hidden_activation", false},
        {"gemma2", OLD_ROPE "set rope_theta 10000.0; unset layer_types", false},
        {"gemma2_scalar", OLD_ROPE "set rope_theta 10000.0; unset layer_types", false},
        {"gemma3",
         OLD_ROPE "set rope_theta 1000000.0; set rope_local_base_freq 10000.0; unset layer_types;"
                  "set rope_scaling {\"factor\": 8.0, \"rope_type\": \"linear\"};"
                  "unset _sliding_window_pattern; set sliding_window_pattern 6",
         false},
        // Published Gemma 3 checkpoints leave out the two bases.
        {"gemma3",
         OLD_ROPE "set rope_scaling {\"factor\": 8.0, \"type\": \"linear\"}; unset layer_types;"
                  "unset _sliding_window_pattern",
         false},
        {"gemma3", "unset layer_types; set _sliding_window_pattern 3", true},
        {"gemma3", "unset query_pre_attn_scalar", true}, // 256, whatever the heads
        {"qwen35",
         OLD_ROPE "set rope_theta 10000000.0; unset layer_types; set full_attention_interval 4;"
                  "set rope_scaling {" MROPE ", \"rope_type\": \"default\"}",
         false},
        {"qwen35", OLD_ROPE "set rope_theta 10000000.0; unset layer_types", false},
        {"qwen35_moe",
         OLD_ROPE "set rope_theta 10000000.0; unset layer_types; set num_local_experts 4;"
                  "unset num_experts; set rope_scaling {" MROPE ", \"type\": \"default\"}",
         false},
    };
    expect_forms(state, forms, N_OF(forms), false);
}

static void numbers_per_layer_mean_the_same(void **state) {
    static const form forms[] = {
        {"llama32",
         "key llama.attention.head_count u32[] 4 4; key llama.attention.head_count_kv i32[] 2 2;"
         "key llama.feed_forward_length u64[] 128 128",
         false},
        {"llama32", "nokey llama.rope.dimension_count; nokey llama.vocab_size", false},
        {"llama32", "nokey llama.attention.key_length; nokey llama.attention.value_length", false},
        {"llama32", "key llama.rope.freq_base u32 500000", false},
        {"llama32", "key llama.rope.freq_base u32 400000", true},
        {"gemma3", "key gemma3.attention.sliding_window_pattern u32 6", false},
        {"gemma3", "key gemma3.attention.sliding_window_pattern bool[] 1 1 1 1 1 0", false},
        {"gemma3", "key gemma3.attention.sliding_window_pattern bool[] 1 1 1 1 0 0", true},
        {"gemma3", "key gemma3.attention.sliding_window_pattern u32 2", true},
        {"qwen35", "key qwen35.attention.recurrent_layers bool[] 1 1 1 0", false},
        {"qwen35",
         "key qwen35.attention.recurrent_layers bool[] 1 1 1 0 0; nokey "
         "qwen35.full_attention_interval",
         false},
        {"qwen35", "key qwen35.rope.dimension_sections i32[] 2 1 1", false},
        {"qwen35_moe", "key qwen35moe.expert_weights_scale f32 1", false},
        {"qwen35_moe", "key qwen35moe.expert_weights_scale f32 0", false}, // says: none
        {"qwen35_moe", "key qwen35moe.expert_weights_scale f32 2", true},
    };
    expect_forms(state, forms, N_OF(forms), true);
}

// --- containers ----------------------------------------------------------------------------------

static void shards_make_one_checkpoint(void **state) {
    static const char *const families[] = {"llama32", "qwen35_moe"};
    for (size_t f = 0; f < N_OF(families); f++) {
        qn_logits want = logits_of(mini_folder(families[f]).text);
        model_file *m = model_load(mini_folder(families[f]).text);
        for (int n = 2; n <= 3; n++) {
            model_write_checkpoint(m, *state, n);
            expect_same("shards in a folder", logits_of(*state), &want);
            expect_same("shards by their index",
                        logits_of(in_folder(state, "model.safetensors.index.json").text), &want);
        }
        model_write_checkpoint(m, *state, 1);
        expect_same("a file by its name", logits_of(in_folder(state, "model.safetensors").text),
                    &want);
        model_free(m);
        qn_logits_deinit(&want);
    }
}

static void split_files_make_one_gguf(void **state) {
    static const char *const families[] = {"llama32", "qwen35_moe"};
    for (size_t f = 0; f < N_OF(families); f++) {
        qn_logits want = logits_of(mini_gguf(families[f]).text);
        model_file *m = model_load(mini_gguf(families[f]).text);
        expect_same("whole", gguf_logits(state, m), &want);
        for (int n = 2; n <= 3; n++) {
            char last[64];
            model_write_split(m, *state, families[f], n);
            snprintf(last, sizeof last, "%s-%05d-of-%05d.gguf", families[f], n, n);
            expect_same("by the last part", logits_of(in_folder(state, last).text), &want);
        }
        model_free(m);
        qn_logits_deinit(&want);
    }
}

static void checkpoints_may_be_stored_in_any_float(void **state) {
    static const char *const families[] = {"llama_untied", "gemma3", "qwen35_moe"};
    for (size_t f = 0; f < N_OF(families); f++) {
        qn_logits want = logits_of(mini_folder(families[f]).text);
        model_file *m = model_load(mini_folder(families[f]).text);
        model_edit(m, "type * F32");
        expect_same("F32", checkpoint_logits(state, m), &want);
        model_edit(m, "type *norm.weight BF16");
        expect_same("F32 with norms in BF16", checkpoint_logits(state, m), &want);
        model_edit(m, "type * F16"); // the smallest values lose bits
        expect_near("F16", checkpoint_logits(state, m), &want, 1e-6);
        model_free(m);
        qn_logits_deinit(&want);
    }
}

// --- layouts -------------------------------------------------------------------------------------

// config.json becomes its text_config, or the other way round.
static void unwrap_config(model_file *m) {
    json_t *text = json_incref(json_object_get(m->config, "text_config"));
    assert_non_null(text);
    json_decref(m->config);
    m->config = text;
}

static void wrap_config(model_file *m, const char *model_type) {
    m->config = json_pack("{s:s, s:o}", "model_type", model_type, "text_config", m->config);
    assert_non_null(m->config);
}

static void text_models_inside_multimodal_ones(void **state) {
    qn_logits want = logits_of(mini_folder("qwen35_vl").text);
    model_file *m = model_load(mini_folder("qwen35_vl").text);
    model_edit(m, "drop model.visual.*; rename model.language_model.* model.*");
    unwrap_config(m);
    expect_same("qwen35_vl as text", checkpoint_logits(state, m), &want);
    model_edit(m, "rename model.* *"); // the bare model, without its head's prefix
    expect_same("qwen35_vl without a prefix", checkpoint_logits(state, m), &want);
    model_free(m);
    expect_near("qwen35_vl GGUF", logits_of(mini_gguf("qwen35_vl").text), &want, 1e-5);
    qn_logits_deinit(&want);

    want = logits_of(mini_folder("gemma3").text);
    m = model_load(mini_folder("gemma3").text);
    wrap_config(m, "gemma3");
    model_edit(m, "rename model.* language_model.model.*; set vision_config {\"hidden_size\": 8}");
    expect_same("gemma3, transformers 4", checkpoint_logits(state, m), &want);
    model_edit(m, "rename language_model.model.* model.language_model.*");
    expect_same("gemma3, transformers 5", checkpoint_logits(state, m), &want);
    model_free(m);
    qn_logits_deinit(&want);
}

// Appends rows of one tensor per expert, or of each expert's block in a stack.
static void put_block(model_tensor *to, size_t at, const model_tensor *from, size_t block,
                      size_t bytes) {
    assert_true(at + bytes <= to->bytes && (block + 1) * bytes <= from->bytes);
    memcpy(to->data + at, from->data + block * bytes, bytes);
}

static const model_tensor *expert(const model_file *m, int64_t layer, int e, const char *part) {
    char name[MODEL_NAME];
    snprintf(name, sizeof name, "model.layers.%lld.mlp.experts.%d.%s_proj.weight", (long long)layer,
             e, part);
    const model_tensor *t = model_find(m, name);
    assert_non_null(t);
    return t;
}

enum { EXPERTS = 4, EXPERT_FFN = 48, WIDTH = 64 }; // of the small models

static void fuse_checkpoint(model_file *m, int64_t layers) {
    static const int64_t wide[] = {EXPERTS, 2 * EXPERT_FFN, WIDTH};
    static const int64_t back[] = {EXPERTS, WIDTH, EXPERT_FFN};
    const size_t bytes = 2 * EXPERT_FFN * WIDTH; // of one expert's matrix in BF16
    for (int64_t i = 0; i < layers; i++) {
        char name[MODEL_NAME];
        snprintf(name, sizeof name, "model.layers.%lld.mlp.experts.gate_up_proj", (long long)i);
        model_tensor *t = model_add(m, name, QN_TYPE_BF16, wide, 3, NULL);
        for (int e = 0; e < EXPERTS; e++) {
            put_block(t, 2 * (size_t)e * bytes, expert(m, i, e, "gate"), 0, bytes);
            put_block(t, (2 * (size_t)e + 1) * bytes, expert(m, i, e, "up"), 0, bytes);
        }
        snprintf(name, sizeof name, "model.layers.%lld.mlp.experts.down_proj", (long long)i);
        t = model_add(m, name, QN_TYPE_BF16, back, 3, NULL);
        for (int e = 0; e < EXPERTS; e++)
            put_block(t, (size_t)e * bytes, expert(m, i, e, "down"), 0, bytes);
    }
    for (int e = 0; e < EXPERTS; e++) {
        char edit[MODEL_NAME];
        static const char *const parts[] = {"gate", "up", "down"};
        for (int k = 0; k < 3; k++) {
            snprintf(edit, sizeof edit, "drop model.layers.*.mlp.experts.%d.%s_proj.weight", e,
                     parts[k]);
            model_edit(m, edit);
        }
    }
}

static void fuse_gguf(model_file *m, int64_t layers) {
    static const int64_t wide[] = {EXPERTS, 2 * EXPERT_FFN, WIDTH};
    const size_t bytes = 2 * EXPERT_FFN * WIDTH;
    for (int64_t i = 0; i < layers; i++) {
        char name[MODEL_NAME];
        snprintf(name, sizeof name, "blk.%lld.ffn_gate_up_exps.weight", (long long)i);
        model_tensor *t = model_add(m, name, QN_TYPE_BF16, wide, 3, NULL);
        snprintf(name, sizeof name, "blk.%lld.ffn_gate_exps.weight", (long long)i);
        const model_tensor *gate = model_find(m, name);
        snprintf(name, sizeof name, "blk.%lld.ffn_up_exps.weight", (long long)i);
        const model_tensor *up = model_find(m, name);
        assert_true(gate && up);
        for (size_t e = 0; e < EXPERTS; e++) {
            put_block(t, 2 * e * bytes, gate, e, bytes);
            put_block(t, (2 * e + 1) * bytes, up, e, bytes);
        }
    }
    model_edit(m, "drop blk.*.ffn_gate_exps.weight; drop blk.*.ffn_up_exps.weight");
}

static void experts_may_be_fused(void **state) {
    static const struct {
        const char *family;
        int64_t layers, blocks; // GGUF has the prediction layer as a block
    } cases[] = {{"qwen3_moe", 2, 2}, {"qwen35_moe", 4, 5}};
    for (size_t i = 0; i < N_OF(cases); i++) {
        qn_logits want = logits_of(mini_folder(cases[i].family).text);
        model_file *m = model_load(mini_folder(cases[i].family).text);
        fuse_checkpoint(m, cases[i].layers);
        expect_same("fused checkpoint", checkpoint_logits(state, m), &want);
        model_free(m);
        qn_logits_deinit(&want);
        want = logits_of(mini_gguf(cases[i].family).text);
        m = model_load(mini_gguf(cases[i].family).text);
        fuse_gguf(m, cases[i].blocks);
        expect_same("fused GGUF", gguf_logits(state, m), &want);
        model_free(m);
        qn_logits_deinit(&want);
    }
}

static void outputs_may_be_tied(void **state) {
    static const form gguf[] = {
        {"llama32", "copy token_embd.weight output.weight", false},
        {"gemma3", "copy token_embd.weight output.weight", false},
        {"llama_untied", "drop output.weight", true},
    };
    static const form checkpoint[] = {
        {"llama32", "copy model.embed_tokens.weight lm_head.weight; set tie_word_embeddings false",
         false},
        {"llama32", "unset tie_word_embeddings", false}, // there is nothing but the embedding
        {"llama32", "copy model.embed_tokens.weight lm_head.weight; fill lm_head.weight 1",
         false}, // tied
        {"llama_untied", "set tie_word_embeddings true", true},
        {"llama_untied", "drop lm_head.weight; unset tie_word_embeddings", true},
    };
    expect_forms(state, gguf, N_OF(gguf), true);
    expect_forms(state, checkpoint, N_OF(checkpoint), false);
}

// --- against the plain forward pass --------------------------------------------------------------

static void expect_plain(const char *what, qn_logits got, const model_file *m,
                         const plain_opts *opts) {
    int32_t ids[N_IDS];
    some_ids(ids);
    double *want = plain_forward(m, ids, N_IDS, opts);
    double gap = 0, size = 0;
    for (int64_t i = 0; i < got.n_rows * got.n_vocab; i++) {
        gap += ((double)got.logits[i] - want[i]) * ((double)got.logits[i] - want[i]);
        size += want[i] * want[i];
    }
    free(want);
    qn_logits_deinit(&got);
    const double error = sqrt(gap / size);
    print_message("%s: %.1e\n", what, error);
    if (!(error <= 1e-5)) fail_msg("%s: differs by %.1e, want at most 1e-5", what, error);
}

static uint32_t next_random(uint32_t *seed) { return *seed = *seed * 1664525U + 1013904223U; }

// A bias of every layer, with values that BF16 holds exactly; `value` 0 makes zeros.
static void add_biases(model_file *m, const char *pattern, int64_t n, float value) {
    uint32_t seed = 7;
    for (int layer = 0; layer < 2; layer++) {
        char name[MODEL_NAME];
        snprintf(name, sizeof name, pattern, layer);
        uint16_t bias[128];
        assert_true(n <= 128);
        for (int64_t i = 0; i < n; i++) {
            const float part = (float)(int)(next_random(&seed) >> 25) / 64.0f - 1.0f; // 7 bits
            bias[i] = qn_bf16_encode(part * value);
        }
        model_add(m, name, QN_TYPE_BF16, &n, 1, bias);
    }
}

static model_file *load_untied(const char *edits) {
    model_file *m = model_load(mini_folder("llama_untied").text);
    model_edit(m, edits);
    return m;
}

static void add_qwen2_biases(model_file *m, float value) {
    add_biases(m, "model.layers.%d.self_attn.q_proj.bias", 64, value);
    add_biases(m, "model.layers.%d.self_attn.k_proj.bias", 64, value / 2);
    add_biases(m, "model.layers.%d.self_attn.v_proj.bias", 64, value / 4);
}

static void plain_pass_agrees_where_references_exist(void **state) {
    (void)state;
    model_file *m = load_untied("set model_type \"llama\"");
    expect_plain("llama_untied", logits_of(mini_folder("llama_untied").text), m, &(plain_opts){0});
    model_free(m);
    static const char *const families[] = {"qwen3", "qwen3_moe"};
    for (size_t i = 0; i < N_OF(families); i++) {
        m = model_load(mini_folder(families[i]).text);
        expect_plain(families[i], logits_of(mini_folder(families[i]).text), m, &(plain_opts){0});
        model_free(m);
    }
}

// The GGUF of such a Qwen2 checkpoint: Llama's file with other names, rows of q and k as the
// checkpoint has them, and the biases in F32.
static model_file *qwen2_gguf(const model_file *checkpoint) {
    model_file *m = model_load(mini_gguf("llama_untied").text);
    model_edit(m, "rekey llama. qwen2.; key general.architecture str qwen2");
    for (int layer = 0; layer < 2; layer++) {
        for (int i = 0; i < 3; i++) {
            char name[MODEL_NAME], blk[MODEL_NAME];
            snprintf(name, sizeof name, "model.layers.%d.self_attn.%c_proj.weight", layer,
                     "qkv"[i]);
            snprintf(blk, sizeof blk, "blk.%d.attn_%c.weight", layer, "qkv"[i]);
            model_tensor *to = model_find(m, blk);
            const model_tensor *from = model_find(checkpoint, name);
            assert_true(to && from && to->bytes == from->bytes);
            memcpy(to->data, from->data, from->bytes);
            snprintf(name, sizeof name, "model.layers.%d.self_attn.%c_proj.bias", layer, "qkv"[i]);
            snprintf(blk, sizeof blk, "blk.%d.attn_%c.bias", layer, "qkv"[i]);
            from = model_find(checkpoint, name);
            if (from) model_add(m, blk, from->type, from->dims, from->n_dims, from->data);
        }
    }
    return m;
}

static void qwen2_has_biases(void **state) {
    model_file *m = load_untied("set model_type \"qwen2\"");
    add_qwen2_biases(m, 0);
    qn_logits none = checkpoint_logits(state, m);
    expect_same("qwen2 with biases of zero is llama", logits_of(mini_folder("llama_untied").text),
                &none);
    model_edit(m, "drop *.bias");
    add_qwen2_biases(m, 1);
    expect_plain("qwen2", checkpoint_logits(state, m), m, &(plain_opts){0});
    qn_logits biased = checkpoint_logits(state, m);
    assert_true(difference(&biased, &none) > 1e-2);
    model_file *gguf = qwen2_gguf(m);
    expect_same("qwen2 GGUF", gguf_logits(state, gguf), &biased);
    model_edit(gguf, "type *.bias F32");
    expect_same("qwen2 GGUF, biases in F32", gguf_logits(state, gguf), &biased);
    model_free(gguf);
    model_free(m);
    qn_logits_deinit(&none);
    qn_logits_deinit(&biased);
}

static void llama_may_have_biases_everywhere(void **state) {
    model_file *m = load_untied("set attention_bias true; set mlp_bias true");
    add_qwen2_biases(m, 1);
    add_biases(m, "model.layers.%d.self_attn.o_proj.bias", 64, 0.5f);
    add_biases(m, "model.layers.%d.mlp.gate_proj.bias", 128, 1);
    add_biases(m, "model.layers.%d.mlp.up_proj.bias", 128, 0.5f);
    add_biases(m, "model.layers.%d.mlp.down_proj.bias", 64, 0.25f);
    expect_plain("llama with biases", checkpoint_logits(state, m), m, &(plain_opts){0});
    model_free(m);
}

// The same biases under the names of a GGUF file, in F32 as converters write them.
static void copy_biases(model_file *gguf, const model_file *checkpoint) {
    static const char *const names[][2] = {{"q_proj", "attn_q"},
                                           {"k_proj", "attn_k"},
                                           {"v_proj", "attn_v"},
                                           {"o_proj", "attn_output"}};
    for (int layer = 0; layer < 2; layer++) {
        for (size_t i = 0; i < N_OF(names); i++) {
            char from[MODEL_NAME], to[MODEL_NAME];
            snprintf(from, sizeof from, "model.layers.%d.self_attn.%s.bias", layer, names[i][0]);
            snprintf(to, sizeof to, "blk.%d.%s.bias", layer, names[i][1]);
            const model_tensor *t = model_find(checkpoint, from);
            assert_non_null(t);
            float *values = model_floats(t);
            model_add(gguf, to, QN_TYPE_F32, t->dims, t->n_dims, values);
            free(values);
        }
    }
}

static void qwen3_may_have_biases(void **state) {
    static const char *const families[] = {"qwen3", "qwen3_moe"};
    for (size_t f = 0; f < N_OF(families); f++) {
        model_file *m = model_load(mini_folder(families[f]).text);
        model_edit(m, "set attention_bias true");
        add_biases(m, "model.layers.%d.self_attn.q_proj.bias", 64, 1);
        add_biases(m, "model.layers.%d.self_attn.k_proj.bias", 32, 0.5f);
        add_biases(m, "model.layers.%d.self_attn.v_proj.bias", 32, 0.25f);
        add_biases(m, "model.layers.%d.self_attn.o_proj.bias", 64, 0.5f);
        expect_plain(families[f], checkpoint_logits(state, m), m, &(plain_opts){0});
        qn_logits biased = checkpoint_logits(state, m);
        qn_logits none = logits_of(mini_folder(families[f]).text);
        assert_true(difference(&biased, &none) > 1e-2);
        model_file *gguf = model_load(mini_gguf(families[f]).text);
        copy_biases(gguf, m);
        expect_same("GGUF with biases", gguf_logits(state, gguf), &biased);
        model_free(gguf);
        model_free(m);
        qn_logits_deinit(&biased);
        qn_logits_deinit(&none);
    }
}

// A matrix of random values that BF16 holds exactly.
static void add_matrix(model_file *m, const char *name, int64_t rows, int64_t columns,
                       uint32_t seed) {
    const int64_t dims[] = {rows, columns};
    uint16_t *values = malloc((size_t)(rows * columns) * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < rows * columns; i++)
        values[i] = qn_bf16_encode((float)(int)(next_random(&seed) >> 25) / 512.0f - 0.125f);
    model_add(m, name, QN_TYPE_BF16, dims, 2, values);
    free(values);
}

// Layer 0 of the small mixture of experts gets one feed-forward in place of its experts.
static void make_first_layer_dense(model_file *m, bool is_gguf) {
    static const char *const names[][2] = {
        {"model.layers.0.mlp.gate_proj.weight", "blk.0.ffn_gate.weight"},
        {"model.layers.0.mlp.up_proj.weight", "blk.0.ffn_up.weight"},
        {"model.layers.0.mlp.down_proj.weight", "blk.0.ffn_down.weight"}};
    model_edit(m, is_gguf ? "drop blk.0.ffn_gate_inp.weight; drop blk.0.*_exps.weight"
                          : "drop model.layers.0.mlp.*");
    for (uint32_t i = 0; i < N_OF(names); i++)
        add_matrix(m, names[i][is_gguf], i < 2 ? 128 : 64, i < 2 ? 64 : 128, i);
}

// The rule of the reference: a layer has experts unless mlp_only_layers names it, and only where
// its number, counted from 1, is a multiple of decoder_sparse_step.
static void layers_among_experts_may_be_dense(void **state) {
    static const char *const ways[] = {"set mlp_only_layers [0]", "set mlp_only_layers [0, 7, -1]",
                                       "unset mlp_only_layers; set decoder_sparse_step 2",
                                       "set mlp_only_layers null; set decoder_sparse_step 2"};
    model_file *m = model_load(mini_folder("qwen3_moe").text);
    make_first_layer_dense(m, false);
    model_edit(m, ways[0]);
    qn_logits want = checkpoint_logits(state, m);
    for (size_t i = 0; i < N_OF(ways); i++) {
        model_edit(m, "set mlp_only_layers []; set decoder_sparse_step 1");
        model_edit(m, ways[i]);
        expect_plain(ways[i], checkpoint_logits(state, m), m, &(plain_opts){0});
    }
    model_free(m);
    m = model_load(mini_gguf("qwen3_moe").text);
    make_first_layer_dense(m, true);
    expect_same("GGUF, where the tensors tell", gguf_logits(state, m), &want);
    model_free(m);
    qn_logits_deinit(&want);
}

// Scores by hand: the output matrix times the last hidden row, capped where the model caps.
static void expect_output_matrix(const char *path, const model_tensor *output, double cap) {
    qn_err err;
    qn_engine *engine = NULL;
    qn_logits got = QN_INIT(qn_logits);
    int32_t ids[N_IDS];
    some_ids(ids);
    ASSERT_OK(qn_engine_open(&engine, path, &QN_INIT(qn_engine_opts, .n_threads = 1), &err));
    ASSERT_OK(qn_engine_logits(&got, engine, ids, N_IDS,
                               &QN_INIT(qn_logits_opts, .all_rows = true, .hidden = true), &err));
    float *w = model_floats(output);
    const float *hidden = got.hidden + (got.n_hidden - 1) * got.n_tokens * got.width;
    double gap = 0, size = 0;
    for (int64_t i = 0; i < got.n_rows * got.n_vocab; i++) {
        const int64_t row = i / got.n_vocab, entry = i % got.n_vocab;
        double sum = 0;
        for (int64_t k = 0; k < got.width; k++)
            sum += (double)w[entry * got.width + k] * (double)hidden[row * got.width + k];
        if (cap > 0) sum = cap * tanh(sum / cap);
        gap += ((double)got.logits[i] - sum) * ((double)got.logits[i] - sum);
        size += sum * sum;
    }
    print_message("%s: %.1e\n", path, sqrt(gap / size));
    assert_true(sqrt(gap / size) < 1e-5);
    free(w);
    qn_logits_deinit(&got);
    qn_engine_close(engine);
}

static void gemma_may_have_an_output_matrix(void **state) {
    static const struct {
        const char *family;
        double cap;
    } cases[] = {{"gemma", 0}, {"gemma2", 30}, {"gemma3", 0}};
    for (size_t i = 0; i < N_OF(cases); i++) {
        qn_logits tied = logits_of(mini_folder(cases[i].family).text);
        model_file *m = model_load(mini_folder(cases[i].family).text);
        model_edit(m, "set tie_word_embeddings false");
        add_matrix(m, "lm_head.weight", 512, 64, 3);
        qn_logits untied = checkpoint_logits(state, m);
        assert_true(difference(&untied, &tied) > 0.1);
        expect_output_matrix(*state, model_find(m, "lm_head.weight"), cases[i].cap);
        model_edit(m, "set tie_word_embeddings true");
        expect_same("tied after all", checkpoint_logits(state, m), &tied);
        model_free(m);
        m = model_load(mini_gguf(cases[i].family).text);
        add_matrix(m, "output.weight", 512, 64, 3);
        const path_name path = in_folder(state, "model.gguf");
        model_write_gguf(m, path.text);
        expect_output_matrix(path.text, model_find(m, "output.weight"), cases[i].cap);
        remove(path.text);
        model_free(m);
        qn_logits_deinit(&tied);
        qn_logits_deinit(&untied);
    }
}

// GGUF: one key for all layers, and a flag per layer where only some look through the window.
static void windows_are_read_from_gguf(void **state) {
    static const struct {
        const char *edits;
        int64_t windows[2];
    } cases[] = {
        {"key llama.attention.sliding_window u32 5", {5, 5}},
        {"key llama.attention.sliding_window u32 0", {0, 0}},
        {"key llama.attention.sliding_window u32 4096", {0, 0}},
        {"key llama.attention.sliding_window u32 5; key llama.attention.sliding_window_pattern "
         "bool[] 0 1",
         {0, 5}},
        {"key llama.attention.sliding_window_pattern bool[] 1 0", {5, 0}},
    };
    model_file *plain = load_untied("set model_type \"llama\"");
    model_file *m = model_load(mini_gguf("llama_untied").text);
    for (size_t i = 0; i < N_OF(cases); i++) {
        model_edit(m, cases[i].edits);
        expect_plain(cases[i].edits, gguf_logits(state, m), plain,
                     &(plain_opts){.windows = cases[i].windows});
    }
    model_free(m);
    model_free(plain);
}

static void mistral_looks_through_a_window(void **state) {
    model_file *m = load_untied("set model_type \"mistral\"; set sliding_window null");
    qn_logits none = checkpoint_logits(state, m);
    model_edit(m, "set sliding_window 24"); // as long as the prompt
    expect_same("a window that shows all", checkpoint_logits(state, m), &none);
    static const int64_t windows[] = {1, 5, 23};
    for (size_t i = 0; i < N_OF(windows); i++) {
        char edit[64];
        snprintf(edit, sizeof edit, "set sliding_window %lld", (long long)windows[i]);
        model_edit(m, edit);
        const int64_t both[] = {windows[i], windows[i]};
        expect_plain(edit, checkpoint_logits(state, m), m, &(plain_opts){.windows = both});
    }
    model_free(m);
    qn_logits_deinit(&none);
}

// Qwen's windows are off unless asked for, and begin at a layer.
static void qwen2_windows_begin_at_a_layer(void **state) {
    model_file *m = load_untied("set model_type \"qwen2\"; set sliding_window 4");
    add_qwen2_biases(m, 0);
    qn_logits none = logits_of(mini_folder("llama_untied").text);
    expect_same("not asked for", checkpoint_logits(state, m), &none);
    model_edit(m, "set use_sliding_window false; set max_window_layers 0");
    expect_same("switched off", checkpoint_logits(state, m), &none);
    model_edit(m, "set use_sliding_window true; unset max_window_layers");
    expect_same("from layer 28 on", checkpoint_logits(state, m), &none);
    model_edit(m, "set max_window_layers 1");
    const int64_t second[] = {0, 4};
    expect_plain("from layer 1 on", checkpoint_logits(state, m), m,
                 &(plain_opts){.windows = second});
    model_edit(m, "set layer_types [\"sliding_attention\", \"full_attention\"]");
    const int64_t first[] = {4, 0};
    expect_plain("by layer_types", checkpoint_logits(state, m), m, &(plain_opts){.windows = first});
    model_free(m);
    qn_logits_deinit(&none);
}

static void rope_scaling_is_the_same_in_both_formats(void **state) {
    qn_logits want = logits_of(mini_folder("llama32").text);
    expect_near("llama3 by rope_freqs", logits_of(mini_gguf("llama32").text), &want, 1e-6);
    qn_logits_deinit(&want);

    model_file *m = load_untied("set rope_parameters.rope_type \"linear\";"
                                "set rope_parameters.factor 4.0");
    expect_plain("linear", checkpoint_logits(state, m), m, &(plain_opts){.slow_down = 4});
    want = checkpoint_logits(state, m);
    model_free(m);
    m = model_load(mini_gguf("llama_untied").text);
    model_edit(m, "key llama.rope.scaling.type str linear; key llama.rope.scaling.factor f32 4");
    expect_near("linear GGUF", gguf_logits(state, m), &want, 1e-6);
    static const char *const others[] = {"key llama.rope.scaling.factor f32 4",
                                         "key llama.rope.scale_linear f32 4"};
    for (int i = 0; i < 2; i++) {
        model_free(m);
        m = model_load(mini_gguf("llama_untied").text);
        model_edit(m, others[i]);
        expect_near(others[i], gguf_logits(state, m), &want, 1e-6);
    }
    model_free(m);
    qn_logits_deinit(&want);
}

// Keys that were not written by Quern; the magnitude 1.25 is (0.1 ln 4 + 1) * 1.0978110.
static void yarn_is_the_same_in_both_formats(void **state) {
    model_file *m = load_untied("set rope_parameters.rope_type \"yarn\";"
                                "set rope_parameters.factor 4.0;"
                                "set rope_parameters.original_max_position_embeddings 16;"
                                "set rope_parameters.beta_fast 4.0;"
                                "set rope_parameters.beta_slow 0.5;"
                                "set rope_parameters.attention_factor 1.25");
    qn_logits want = checkpoint_logits(state, m);
    model_edit(m, "unset rope_parameters; set rope_theta 10000.0;"
                  "set rope_scaling {\"type\": \"yarn\", \"factor\": 4.0, \"beta_fast\": 4.0,"
                  " \"beta_slow\": 0.5, \"attention_factor\": 1.25,"
                  " \"original_max_position_embeddings\": 16}");
    expect_same("yarn of transformers 4", checkpoint_logits(state, m), &want);
    model_free(m);
    m = model_load(mini_gguf("llama_untied").text);
    model_edit(m, "key llama.rope.scaling.type str yarn; key llama.rope.scaling.factor f32 4;"
                  "key llama.rope.scaling.original_context_length u32 16;"
                  "key llama.rope.scaling.yarn_beta_fast f32 4;"
                  "key llama.rope.scaling.yarn_beta_slow f32 0.5;"
                  "key llama.rope.scaling.attn_factor f32 1.0978110");
    expect_near("yarn GGUF", gguf_logits(state, m), &want, 1e-6);
    model_edit(m, "key llama.rope.scaling.yarn_ext_factor f32 -1");
    expect_near("yarn GGUF, nothing said", gguf_logits(state, m), &want, 1e-6);
    model_free(m);
    qn_logits_deinit(&want);
}

// --- numeric types -------------------------------------------------------------------------------

// Where a block keeps its scales: bytes of halves at the beginning, an exponent, or a float.
typedef struct packed_type {
    qn_type type;
    int n_halves;
    bool has_exponent, has_float;
} packed_type;

// Random blocks with scales of about 2^-6.
static void pack_randomly(model_tensor *t, const packed_type *packed, uint32_t *seed) {
    const qn_type_info *info = qn_type_get(packed->type);
    int64_t bytes = 0;
    assert_true(qn_type_bytes(&bytes, packed->type, model_count(t)));
    free(t->data);
    t->type = packed->type;
    t->bytes = (size_t)bytes;
    t->data = malloc(t->bytes);
    assert_non_null(t->data);
    for (size_t i = 0; i < t->bytes; i++) t->data[i] = (unsigned char)(next_random(seed) >> 24);
    for (size_t at = 0; at < t->bytes; at += (size_t)info->bytes) {
        const float scale = (float)(next_random(seed) >> 24) * 0x1p-14f - 0x1p-7f;
        const uint16_t half = qn_half_encode(scale);
        for (int i = 0; i < packed->n_halves; i++) memcpy(t->data + at + 2 * i, &half, 2);
        if (packed->has_float) memcpy(t->data + at, &scale, sizeof scale);
        if (packed->has_exponent) t->data[at] = (unsigned char)(118 + (next_random(seed) >> 30));
    }
}

// Every tensor whose rows are whole blocks, norms included, as random blocks and then as the floats
// that they stand for.
static void check_type(void **state, const char *from, const packed_type *packed) {
    const qn_type_info *info = qn_type_get(packed->type);
    model_file *m = model_load(from);
    uint32_t seed = 1;
    int n_packed = 0, n_vectors = 0;
    for (size_t i = 0; i < m->n_tensors; i++) {
        model_tensor *t = &m->tensors[i];
        if (t->dims[t->n_dims - 1] % info->block || strstr(t->name, "rope_freqs")) continue;
        pack_randomly(t, packed, &seed);
        n_packed++;
        n_vectors += t->n_dims == 1;
    }
    assert_true(n_packed > 10 && n_vectors > 2);
    qn_logits got = gguf_logits(state, m);
    model_edit(m, "type * F32");
    qn_logits want = gguf_logits(state, m);
    if (!same_bits(&got, &want))
        fail_msg("%s: differs by %.1e", info->name, difference(&got, &want));
    print_message("%-6s %d tensors, %d of them vectors\n", info->name, n_packed, n_vectors);
    qn_logits_deinit(&got);
    qn_logits_deinit(&want);
    model_free(m);
}

static void packed_weights_are_their_values(void **state) {
    static const packed_type types[] = {
        {QN_TYPE_Q4_0, 1, false, false}, {QN_TYPE_Q4_1, 2, false, false},
        {QN_TYPE_Q5_0, 1, false, false}, {QN_TYPE_Q5_1, 2, false, false},
        {QN_TYPE_Q8_0, 1, false, false}, {QN_TYPE_IQ4_NL, 1, false, false},
        {QN_TYPE_MXFP4, 0, true, false},
    };
    for (size_t i = 0; i < N_OF(types); i++) {
        check_type(state, mini_gguf("llama32").text, &types[i]);
        check_type(state, mini_gguf("qwen3_moe").text, &types[i]);
    }
    const packed_type long_type = {QN_TYPE_Q8_K, 0, false, true};
    check_type(state, TEST_DATA "/k256/qwen3/qwen3-Q4_0.gguf", &long_type);
}

static void plain_floats_are_their_values(void **state) {
    static const char *const families[] = {"llama32", "qwen3_moe", "qwen35"};
    for (size_t f = 0; f < N_OF(families); f++) {
        model_file *m = model_load(mini_gguf(families[f]).text);
        qn_logits want = logits_of(mini_gguf(families[f]).text);
        model_edit(m, "type *.weight F32");
        expect_same("F32", gguf_logits(state, m), &want);
        qn_logits_deinit(&want);
        model_edit(m, "type blk.*.weight F16");
        qn_logits got = gguf_logits(state, m);
        model_edit(m, "type blk.*.weight F32");
        want = gguf_logits(state, m);
        expect_same("F16", got, &want);
        qn_logits_deinit(&want);
        model_free(m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(configs_of_transformers_4_mean_the_same),
        FOLDER_TEST(numbers_per_layer_mean_the_same),
        FOLDER_TEST(shards_make_one_checkpoint),
        FOLDER_TEST(split_files_make_one_gguf),
        FOLDER_TEST(checkpoints_may_be_stored_in_any_float),
        FOLDER_TEST(text_models_inside_multimodal_ones),
        FOLDER_TEST(experts_may_be_fused),
        FOLDER_TEST(outputs_may_be_tied),
        FOLDER_TEST(plain_pass_agrees_where_references_exist),
        FOLDER_TEST(qwen2_has_biases),
        FOLDER_TEST(llama_may_have_biases_everywhere),
        FOLDER_TEST(qwen3_may_have_biases),
        FOLDER_TEST(layers_among_experts_may_be_dense),
        FOLDER_TEST(gemma_may_have_an_output_matrix),
        FOLDER_TEST(windows_are_read_from_gguf),
        FOLDER_TEST(mistral_looks_through_a_window),
        FOLDER_TEST(qwen2_windows_begin_at_a_layer),
        FOLDER_TEST(rope_scaling_is_the_same_in_both_formats),
        FOLDER_TEST(yarn_is_the_same_in_both_formats),
        FOLDER_TEST(packed_weights_are_their_values),
        FOLDER_TEST(plain_floats_are_their_values),
    };
    return cmocka_run_group_tests_name("forms of models", tests, NULL, NULL);
}
