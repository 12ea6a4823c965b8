// Models that lie, miss something or break down: each must be refused with an error that names the
// object, and leak nothing. Files come from the small reference models with one thing changed.
#include "testing.h"

#include "model_writer.h"

#include "format_files.h"

#include <fcntl.h>

// One change to a model, and how opening it must fail (QN_OK: it must not).
typedef struct hostile_case {
    const char *edits;
    qn_status status;
    const char *part; // of the message
} hostile_case;

#define N_OF(list) (sizeof(list) / sizeof((list)[0]))

// Whether opening with one thread goes as wanted. A model that opens must compute.
static bool opens_as_wanted(const char *what, const char *path, const hostile_case *want) {
    qn_err err = {0};
    qn_engine *engine = NULL;
    const qn_status got =
        qn_engine_open(&engine, path, &QN_INIT(qn_engine_opts, .n_threads = 1), &err);
    const bool is_wanted = got == want->status && (!got || strstr(err.message, want->part));
    if (!is_wanted)
        print_error("%s: %s: %s '%s', want %s '%s'\n", what, want->edits, qn_status_name(got),
                    got ? err.message : "", qn_status_name(want->status), want->part);
    if (got) {
        assert_null(engine); // a failed call leaves its result alone
        return is_wanted;
    }
    qn_logits logits = QN_INIT(qn_logits);
    ASSERT_OK(qn_engine_logits(&logits, engine, (int32_t[]){1, 2, 3}, 3, NULL, &err));
    qn_logits_deinit(&logits);
    qn_engine_close(engine);
    return is_wanted;
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

// Applies each change to a fresh copy of the GGUF (or of the checkpoint); all failures are shown.
static void expect_gguf(void **state, const char *from, const hostile_case *cases, size_t n) {
    const path_name path = in_folder(state, "model.gguf");
    int n_failed = 0;
    for (size_t i = 0; i < n; i++) {
        model_file *m = model_load(from);
        model_edit(m, cases[i].edits);
        model_write_gguf(m, path.text);
        model_free(m);
        n_failed += !opens_as_wanted("GGUF", path.text, &cases[i]);
    }
    assert_int_equal(n_failed, 0);
}

static void expect_checkpoint(void **state, const char *family, const hostile_case *cases,
                              size_t n) {
    const char *folder = *state;
    int n_failed = 0;
    for (size_t i = 0; i < n; i++) {
        model_file *m = model_load(mini_folder(family).text);
        model_edit(m, cases[i].edits);
        model_write_checkpoint(m, folder, 1);
        model_free(m);
        n_failed += !opens_as_wanted(family, folder, &cases[i]);
    }
    assert_int_equal(n_failed, 0);
}

// --- numbers of a GGUF ---------------------------------------------------------------------------

static void gguf_numbers_are_checked(void **state) {
    static const hostile_case cases[] = {
        {"key general.name str unchanged", QN_OK, ""},
        {"key llama.block_count u32 0", QN_FORMAT, "llama.block_count: 0, want 1 to"},
        {"key llama.block_count u32 1000000000", QN_FORMAT, "1000000000, want 1 to"},
        {"key llama.block_count i32 -1", QN_FORMAT, "llama.block_count: -1, want"},
        {"key llama.block_count u32 3", QN_FORMAT, "blk.2.attn_norm.weight is missing"},
        {"key llama.block_count u32 4096", QN_FORMAT, "blk.2.attn_norm.weight is missing"},
        {"key llama.block_count str two", QN_FORMAT, "llama.block_count: string, want a whole"},
        {"key llama.block_count f32 2", QN_FORMAT, "llama.block_count: f32, want a whole number"},
        {"key llama.block_count bool 1", QN_FORMAT, "llama.block_count: bool, want a whole number"},
        {"key llama.block_count u32[] 2 2", QN_FORMAT, "llama.block_count: array of u32, want a"},
        {"nokey llama.block_count", QN_FORMAT, "no key llama.block_count"},
        {"key llama.embedding_length u32 0", QN_FORMAT, "llama.embedding_length: 0, want"},
        {"key llama.embedding_length u32 128", QN_FORMAT,
         "tensor token_embd.weight: shape (512, 64), want (512, 128)"},
        {"key llama.embedding_length u64 9223372036854775807", QN_FORMAT, "embedding_length"},
        {"nokey llama.embedding_length", QN_FORMAT, "no key llama.embedding_length"},
        {"key llama.feed_forward_length u32 0", QN_FORMAT, "llama.feed_forward_length: 0, want"},
        {"nokey llama.feed_forward_length", QN_FORMAT, "feed-forward is missing"},
        {"key llama.context_length u32 0", QN_FORMAT, "llama.context_length: 0, want 1 to"},
        {"key llama.context_length u64 2147483648", QN_FORMAT, "2147483648, want 1 to 2147483647"},
        {"key llama.context_length i64 -1", QN_FORMAT, "llama.context_length: -1, want"},
        {"key llama.vocab_size u32 513", QN_FORMAT,
         "llama.vocab_size: 513, tensor token_embd.weight has 512 rows"},
        {"key llama.vocab_size str many", QN_FORMAT, "llama.vocab_size: string, want a whole"},
        {"key llama.vocab_size u32 500; shape token_embd.weight 500 64", QN_FORMAT,
         "the tokenizer has 512 tokens, the embedding 500 rows"},
        {"key llama.attention.layer_norm_rms_epsilon f32 0", QN_FORMAT, "epsilon: 0, want"},
        {"key llama.attention.layer_norm_rms_epsilon f32 -1e-5", QN_FORMAT, "epsilon: -1e-05"},
        {"key llama.attention.layer_norm_rms_epsilon f32 nan", QN_FORMAT, "not a finite number"},
        {"key llama.attention.layer_norm_rms_epsilon f64 inf", QN_FORMAT, "not a finite number"},
        {"key llama.attention.layer_norm_rms_epsilon str small", QN_FORMAT, "want a number"},
        {"key llama.expert_count u32 4", QN_UNSUPPORTED, "llama with 4 experts"},
        {"key llama.expert_used_count u32 2", QN_FORMAT, "2 experts used of 0"},
        {"key llama.expert_count u32 0; key llama.expert_used_count u32 0", QN_OK, ""},
        {"key general.architecture str bloom", QN_UNSUPPORTED,
         "unknown architecture 'bloom'; known: llama qwen2 qwen3"},
        {"key general.architecture str lla", QN_UNSUPPORTED, "unknown architecture 'lla'"},
        {"key general.architecture str", QN_UNSUPPORTED, "unknown architecture ''"},
        {"key general.architecture u32 1", QN_FORMAT, "no key general.architecture"},
        {"nokey general.architecture", QN_FORMAT, "no key general.architecture"},
    };
    expect_gguf(state, mini_gguf("llama32").text, cases, N_OF(cases));
}

static void gguf_heads_and_rope_are_checked(void **state) {
    static const hostile_case cases[] = {
        {"key llama.attention.head_count u32 0", QN_FORMAT, "head_count: 0, want 1 to"},
        {"key llama.attention.head_count u32 6", QN_FORMAT,
         "tensor blk.0.attn_q.weight: shape (64, 64), want (96, 64)"},
        {"nokey llama.attention.head_count", QN_FORMAT, "no key llama.attention.head_count"},
        {"key llama.attention.head_count_kv u32 0", QN_FORMAT, "head_count_kv: 0, want 1 to"},
        {"key llama.attention.head_count_kv u32 8", QN_FORMAT, "4 heads cannot share 8 kv heads"},
        {"key llama.attention.head_count_kv u32 3", QN_FORMAT, "4 heads cannot share 3 kv heads"},
        {"key llama.attention.head_count_kv u32 4", QN_FORMAT,
         "tensor blk.0.attn_k.weight: shape (32, 64), want (64, 64)"},
        {"key llama.attention.head_count_kv u32[] 2 1", QN_UNSUPPORTED,
         "2 in layer 0 and 1 in layer 1: layers of different sizes"},
        {"key llama.attention.head_count_kv u32[] 2", QN_FORMAT,
         "head_count_kv: 1 elements, the model has 2 layers"},
        {"key llama.attention.head_count_kv u32[] 2 2 2", QN_FORMAT,
         "head_count_kv: 3 elements, the model has 2 layers"},
        {"key llama.attention.head_count_kv u32[]", QN_FORMAT, "0 elements, the model has 2"},
        {"key llama.attention.head_count_kv f32[] 2 2", QN_FORMAT, "array of f32, want a whole"},
        {"key llama.attention.key_length u32 0", QN_FORMAT, "key_length: 0, want 1 to"},
        {"key llama.attention.key_length u32 32", QN_FORMAT, "want (128, 64)"},
        {"key llama.attention.value_length u32 8", QN_FORMAT,
         "tensor blk.0.attn_v.weight: shape (32, 64), want (16, 64)"},
        {"nokey llama.attention.key_length; nokey llama.rope.dimension_count; key "
         "llama.attention.head_count u32 3;"
         "key llama.attention.head_count_kv u32 3",
         QN_FORMAT, "width 64 is not a multiple of 3 heads"},
        {"key llama.rope.dimension_count u32 32", QN_FORMAT, "rope turns 32 values"},
        {"key llama.rope.dimension_count u32 7", QN_FORMAT, "rope turns 7 values"},
        {"key llama.rope.dimension_count u32 0", QN_FORMAT, "dimension_count: 0, want 2 to"},
        {"key llama.rope.dimension_count u32 8", QN_FORMAT, "rope_freqs.weight"},
        {"key llama.rope.freq_base f32 0", QN_FORMAT, "rope base 0, want more than 0"},
        {"key llama.rope.freq_base f32 -10000", QN_FORMAT, "rope base -10000"},
        {"key llama.rope.freq_base f32 nan", QN_FORMAT, "rope.freq_base: not a finite number"},
        {"key llama.rope.freq_base f32 inf", QN_FORMAT, "rope.freq_base: not a finite number"},
        {"key llama.rope.freq_base str high", QN_FORMAT, "rope.freq_base: string, want a number"},
        {"key llama.rope.scaling.type str longrope", QN_UNSUPPORTED, "rope scaling 'longrope'"},
        {"key llama.rope.scaling.type str yarn", QN_FORMAT, "scaling 'yarn' without its factor"},
        {"key llama.rope.scaling.type str yarn; key llama.rope.scaling.factor f32 4; "
         "key llama.rope.scaling.yarn_beta_fast f32 inf",
         QN_FORMAT, "yarn_beta_fast: not a finite number"},
        {"key llama.rope.scaling.type str yarn; key llama.rope.scaling.factor f32 4; "
         "key llama.rope.scaling.original_context_length u32 0",
         QN_FORMAT, "original length 0"},
        {"key llama.rope.scaling.type str yarn; key llama.rope.scaling.factor f32 4; "
         "key llama.rope.scaling.yarn_ext_factor f32 0.5",
         QN_UNSUPPORTED, "yarn_ext_factor 0.5, supported: 1"},
        {"key llama.rope.scale_linear f32 -2", QN_FORMAT, "rope scaling factor -2"},
        {"key llama.rope.scale_linear str 2", QN_FORMAT, "rope.scale_linear: string"},
        {"key llama.rope.scaling.type u32 1", QN_FORMAT, "rope.scaling.type: u32, want a string"},
        {"key llama.rope.scaling.type str linear; key llama.rope.scaling.factor f32 0", QN_FORMAT,
         "rope scaling factor 0"},
        {"key llama.rope.scaling.type str linear; key llama.rope.scaling.factor f32 nan", QN_FORMAT,
         "factor: not a finite number"},
        {"key llama.rope.scaling.type str linear; key llama.rope.scaling.factor f32 1e-45",
         QN_FORMAT, "rope: the frequency of pair 0 is inf"},
        {"fill rope_freqs.weight 1e-45", QN_FORMAT, "rope: the frequency of pair 0 is inf"},
        {"fill rope_freqs.weight 0", QN_FORMAT, "rope_freqs.weight: 0 at 0, want more than 0"},
        {"fill rope_freqs.weight nan", QN_FORMAT, "rope_freqs.weight"},
        {"fill rope_freqs.weight inf", QN_FORMAT, "rope_freqs.weight: inf at 0"},
        {"shape rope_freqs.weight 4", QN_FORMAT, "rope_freqs.weight: F32, 1 dims of 4"},
        {"type rope_freqs.weight F16", QN_FORMAT, "rope_freqs.weight: F16"},
    };
    expect_gguf(state, mini_gguf("llama32").text, cases, N_OF(cases));
}

static void gguf_windows_and_caps_are_checked(void **state) {
    static const hostile_case cases[] = {
        {"key gemma3.attention.sliding_window u32 0", QN_FORMAT, "sliding_window: 0, want 1"},
        {"key gemma3.attention.sliding_window str wide", QN_FORMAT, "string, want a whole number"},
        {"key gemma3.attention.sliding_window_pattern u32 0", QN_FORMAT, "pattern: 0, want 1 to"},
        {"key gemma3.attention.sliding_window_pattern u32 6", QN_OK, ""},
        {"key gemma3.attention.sliding_window_pattern str six", QN_FORMAT,
         "pattern: string, want a whole number"},
        {"key gemma3.attention.sliding_window_pattern f32 6", QN_FORMAT,
         "pattern: f32, want a whole number"},
        {"key gemma3.attention.sliding_window_pattern bool[] 1 1 1 1 1", QN_FORMAT,
         "pattern: 5 elements, the model has 6 layers"},
        {"key gemma3.attention.sliding_window_pattern bool[] 1 1 1 1 1 0 1", QN_FORMAT,
         "pattern: 7 elements, the model has 6 layers"},
        {"key gemma3.attention.sliding_window_pattern u32[] 1 1 1 1 1 0", QN_UNSUPPORTED,
         "layers of different sizes"},
        {"key gemma3.attn_logit_softcapping f32 -1", QN_FORMAT, "softcapping: -1, want 0 to"},
        {"key gemma3.final_logit_softcapping f32 nan", QN_FORMAT, "softcapping: not a finite"},
        {"key gemma3.rope.freq_base_swa f32 0", QN_FORMAT, "rope base 0"},
        {"drop blk.5.attn_q_norm.weight", QN_FORMAT, "blk.5.attn_q_norm.weight is missing"},
    };
    expect_gguf(state, mini_gguf("gemma3").text, cases, N_OF(cases));
}

static void gguf_experts_are_checked(void **state) {
    static const hostile_case cases[] = {
        {"key qwen35moe.expert_used_count u32 5", QN_FORMAT, "5 experts used of 4"},
        {"key qwen35moe.expert_used_count u32 0", QN_FORMAT, "0 used"},
        {"key qwen35moe.expert_used_count i32 -2", QN_FORMAT, "expert_used_count: -2, want"},
        {"nokey qwen35moe.expert_used_count", QN_FORMAT, "4 experts of size 48, 0 used"},
        {"key qwen35moe.expert_count u32 0; key qwen35moe.expert_used_count u32 0", QN_FORMAT,
         "experts"},
        {"key qwen35moe.expert_count u32 3", QN_FORMAT,
         "tensor blk.0.ffn_gate_inp.weight: shape (4, 64), want (3, 64)"},
        {"key qwen35moe.expert_count u32 70000", QN_FORMAT, "expert_count: 70000, want"},
        {"nokey qwen35moe.expert_count", QN_FORMAT, "2 experts used of 0"},
        {"key qwen35moe.expert_feed_forward_length u32 0", QN_FORMAT, "length: 0, want 1"},
        {"key qwen35moe.expert_feed_forward_length u32 40", QN_FORMAT,
         "tensor blk.0.ffn_gate_exps.weight: shape (4, 48, 64), want (4, 40, 64)"},
        {"nokey qwen35moe.expert_feed_forward_length", QN_FORMAT, "4 experts of size 0"},
        {"nokey qwen35moe.expert_shared_feed_forward_length", QN_FORMAT, "shared size 0"},
        {"key qwen35moe.expert_weights_scale f32 -1", QN_FORMAT, "scale: -1, want 0"},
        {"key qwen35moe.expert_weights_scale f32 nan", QN_FORMAT, "scale: not a finite number"},
        {"drop blk.2.ffn_up_exps.weight", QN_FORMAT, "blk.2.ffn_up_exps.weight is missing"},
        {"shape blk.2.ffn_down_exps.weight 3 64 48", QN_FORMAT,
         "tensor blk.2.ffn_down_exps.weight: shape (3, 64, 48), want (4, 64, 48)"},
        {"type blk.1.ffn_down_exps.weight I16", QN_UNSUPPORTED, "type I16 is not supported"},
        {"key qwen35moe.nextn_predict_layers u32 5", QN_FORMAT, "5 prediction layers of 5 blocks"},
        {"key qwen35moe.nextn_predict_layers u32 6", QN_FORMAT, "6 prediction layers of 5 blocks"},
        {"key qwen35moe.nextn_predict_layers i32 -1", QN_FORMAT, "layers: -1, want 0"},
        {"nokey qwen35moe.nextn_predict_layers", QN_FORMAT, "blk.4.attn_qkv.weight is missing"},
    };
    expect_gguf(state, mini_gguf("qwen35_moe").text, cases, N_OF(cases));
}

static void gguf_delta_nets_are_checked(void **state) {
    static const hostile_case cases[] = {
        {"key qwen35.ssm.group_count u32 0", QN_FORMAT, "ssm.group_count: 0, want 1"},
        {"key qwen35.ssm.group_count u32 3", QN_FORMAT, "4 value heads, 3 key heads"},
        {"key qwen35.ssm.group_count u32 8", QN_FORMAT, "4 value heads, 8 key heads"},
        {"key qwen35.ssm.group_count u32 1", QN_FORMAT, "blk.0.attn_qkv.weight: shape (128, 64)"},
        {"key qwen35.ssm.time_step_rank u32 0", QN_FORMAT, "ssm.time_step_rank: 0, want 1"},
        {"key qwen35.ssm.time_step_rank u32 6", QN_FORMAT, "inner size 64, want 6 heads of 16"},
        {"key qwen35.ssm.state_size u32 0", QN_FORMAT, "ssm.state_size: 0, want 1"},
        {"key qwen35.ssm.state_size u32 32", QN_FORMAT, "inner size 64, want 4 heads of 32"},
        {"key qwen35.ssm.inner_size u32 60", QN_FORMAT, "inner size 60, want 4 heads of 16"},
        {"key qwen35.ssm.inner_size u32 0", QN_FORMAT, "ssm.inner_size: 0, want 1"},
        {"key qwen35.ssm.conv_kernel u32 0", QN_FORMAT, "ssm.conv_kernel: 0, want 2"},
        {"key qwen35.ssm.conv_kernel u32 1", QN_FORMAT, "ssm.conv_kernel: 1, want 2"},
        {"key qwen35.ssm.conv_kernel u32 5", QN_FORMAT,
         "tensor blk.0.ssm_conv1d.weight: shape (128, 4), want (128, 5)"},
        {"nokey qwen35.ssm.conv_kernel", QN_FORMAT, "no key qwen35.ssm.conv_kernel"},
        {"nokey qwen35.ssm.group_count", QN_FORMAT, "no key qwen35.ssm.group_count"},
        {"key qwen35.full_attention_interval u32 0", QN_FORMAT, "interval: 0, want 1"},
        {"key qwen35.full_attention_interval u32 3", QN_FORMAT, "is missing"},
        {"key qwen35.attention.recurrent_layers bool[] 1 1 1", QN_FORMAT,
         "of 3, the model has 4 layers"},
        {"key qwen35.attention.recurrent_layers bool[] 1 1 1 0 0 0", QN_FORMAT,
         "of 6, the model has 4 layers"},
        {"key qwen35.attention.recurrent_layers u32[] 1 1 1 0", QN_FORMAT, "array of u32 of 4"},
        {"key qwen35.attention.recurrent_layers bool 1", QN_FORMAT, "bool of 0"},
        {"key qwen35.attention.recurrent_layers bool[] 1 1 1 1", QN_FORMAT,
         "blk.3.attn_qkv.weight is missing"},
        {"key qwen35.rope.dimension_sections i32[] 2 2", QN_FORMAT, "array of i32 of 2, want 3"},
        {"key qwen35.rope.dimension_sections i32[] 2 1 1 0 0", QN_FORMAT, "of 5, want 3 or 4"},
        {"key qwen35.rope.dimension_sections i32[] 5 -1 0 0", QN_FORMAT, "section of -1 pairs"},
        {"key qwen35.rope.dimension_sections i32[] 2 2 1 0", QN_FORMAT, "sections of 5 pairs"},
        {"key qwen35.rope.dimension_sections u64[] 9223372036854775807 1 1", QN_FORMAT,
         "section of 9223372036854775807 pairs"},
        {"key qwen35.rope.dimension_sections f32[] 2 1 1 0", QN_FORMAT, "array of f32 of 4"},
        {"key qwen35.attention.value_length u32 8; shape blk.3.attn_v.weight 16 64;"
         "shape blk.3.attn_output.weight 64 32",
         QN_FORMAT, "layer 3"},
    };
    expect_gguf(state, mini_gguf("qwen35").text, cases, N_OF(cases));
}

// --- tensors of a GGUF ---------------------------------------------------------------------------

static void gguf_tensors_are_checked(void **state) {
    static const hostile_case cases[] = {
        {"drop blk.1.ffn_down.weight", QN_FORMAT, "tensor blk.1.ffn_down.weight is missing"},
        {"drop blk.0.*", QN_FORMAT, "tensor blk.0.attn_norm.weight is missing"},
        {"drop output_norm.weight", QN_FORMAT, "tensor output_norm.weight is missing"},
        {"drop token_embd.weight", QN_FORMAT, "no token embedding"},
        {"drop *", QN_FORMAT, "no token embedding"},
        {"shape blk.0.attn_k.weight 64 32", QN_FORMAT,
         "tensor blk.0.attn_k.weight: shape (64, 32), want (32, 64)"},
        {"shape blk.0.attn_k.weight 32 128", QN_FORMAT, "shape (32, 128), want (32, 64)"},
        {"shape blk.0.attn_k.weight 2048", QN_FORMAT, "shape (2048), want (32, 64)"},
        {"shape blk.0.attn_k.weight 2 16 64", QN_FORMAT, "shape (2, 16, 64), want (32, 64)"},
        {"shape blk.1.attn_norm.weight 32", QN_FORMAT,
         "tensor blk.1.attn_norm.weight: shape (32), want (64)"},
        {"shape token_embd.weight 32768", QN_FORMAT, "token_embd.weight"},
        {"shape output_norm.weight 1", QN_FORMAT, "shape (1), want (64)"},
        {"copy token_embd.weight output.weight; shape output.weight 511 64", QN_FORMAT,
         "tensor output.weight: shape (511, 64), want (512, 64)"},
        {"copy blk.0.attn_norm.weight blk.0.attn_q.bias; shape blk.0.attn_q.bias 63", QN_FORMAT,
         "tensor blk.0.attn_q.bias: shape (63), want (64)"},
        {"type blk.0.attn_q.weight Q8_1", QN_UNSUPPORTED,
         "tensor blk.0.attn_q.weight: type Q8_1 is not supported"},
        {"type blk.0.attn_q.weight I8", QN_UNSUPPORTED, "type I8 is not supported"},
        {"type blk.1.attn_norm.weight F64", QN_UNSUPPORTED, "type F64 is not supported"},
        {"type token_embd.weight NVFP4", QN_UNSUPPORTED, "type NVFP4 is not supported"},
        {"type blk.1.attn_norm.weight Q8_0", QN_OK, ""},
        {"type blk.0.ffn_norm.weight BF16; type blk.1.ffn_norm.weight F16", QN_OK, ""},
        {"shape blk.0.attn_k.weight 1 32 1 64", QN_OK, ""}, // dims of 1 do not count
    };
    expect_gguf(state, mini_gguf("llama32").text, cases, N_OF(cases));
}

static void gguf_types_of_long_blocks_are_refused_by_name(void **state) {
    static const hostile_case cases[] = {
        {"type blk.0.ffn_down.weight IQ2_XXS", QN_UNSUPPORTED,
         "tensor blk.0.ffn_down.weight: type IQ2_XXS is not supported"},
        {"type blk.1.attn_v.weight IQ1_M", QN_UNSUPPORTED, "type IQ1_M is not supported"},
        {"type token_embd.weight TQ1_0", QN_UNSUPPORTED, "type TQ1_0 is not supported"},
        {"type blk.1.attn_norm.weight Q4_K", QN_OK, ""}, // a norm of one block
    };
    expect_gguf(state, TEST_DATA "/k256/qwen3/qwen3-Q4_0.gguf", cases, N_OF(cases));
}

typedef struct log_lines {
    int n_warnings;
    char last[256];
} log_lines;

static void keep_warnings(void *arg, qn_log_level level, const char *message) {
    log_lines *log = arg;
    if (level > QN_LOG_WARNING) return;
    log->n_warnings++;
    snprintf(log->last, sizeof log->last, "%s", message);
}

// Opens the changed GGUF and hands back what was logged.
static log_lines open_and_log(void **state, const char *family, const char *edits) {
    qn_err err;
    log_lines log = {0};
    qn_engine *engine = NULL;
    const path_name path = in_folder(state, "model.gguf");
    model_file *m = model_load(mini_gguf(family).text);
    model_edit(m, edits);
    model_write_gguf(m, path.text);
    model_free(m);
    const qn_engine_opts opts =
        QN_INIT(qn_engine_opts, .n_threads = 1, .log = keep_warnings, .log_arg = &log);
    ASSERT_OK(qn_engine_open(&engine, path.text, &opts, &err));
    qn_engine_close(engine);
    return log;
}

static void unknown_tensors_are_warned_of(void **state) {
    log_lines log = open_and_log(state, "llama32", "key general.name str unchanged");
    if (log.n_warnings) fail_msg("warning: %s", log.last);
    log = open_and_log(state, "llama32", "copy blk.0.attn_norm.weight blk.0.surprise.weight");
    assert_int_equal(log.n_warnings, 1);
    assert_non_null(strstr(log.last, "1 tensors are not used by llama: blk.0.surprise.weight"));
    // Even of a type that nothing computes with: it is not needed.
    log = open_and_log(state, "llama32", "copy blk.0.attn_norm.weight odd; type odd I32");
    assert_non_null(strstr(log.last, "odd"));
    // A layer that the count leaves out.
    log = open_and_log(state, "llama32", "key llama.block_count u32 1");
    assert_int_equal(log.n_warnings, 1);
    assert_non_null(strstr(log.last, "blk.1."));
    // Prediction layers are known.
    log = open_and_log(state, "qwen35", "key general.name str unchanged");
    if (log.n_warnings) fail_msg("warning: %s", log.last);
    log = open_and_log(state, "llama32", "key tokenizer.ggml.model str nonsense");
    assert_non_null(strstr(log.last, "no tokenizer: "));
}

// --- checkpoints ---------------------------------------------------------------------------------

static void config_numbers_are_checked(void **state) {
    static const hostile_case cases[] = {
        {"set dtype \"bfloat16\"", QN_OK, ""},
        {"set num_hidden_layers 0", QN_FORMAT, "num_hidden_layers: 0, want 1"},
        {"set num_hidden_layers 1000000000", QN_FORMAT, "num_hidden_layers: 1000000000"},
        {"set num_hidden_layers -2", QN_FORMAT, "num_hidden_layers: -2"},
        {"set num_hidden_layers 2.5", QN_FORMAT, "JSON number, want a whole number"},
        {"set num_hidden_layers \"2\"", QN_FORMAT, "JSON string, want a whole number"},
        {"set num_hidden_layers true", QN_FORMAT, "JSON bool, want a whole number"},
        {"set num_hidden_layers 3", QN_FORMAT, "model.layers.2.input_layernorm.weight is missing"},
        {"unset num_hidden_layers", QN_FORMAT, "no key num_hidden_layers"},
        {"set num_hidden_layers null", QN_FORMAT, "num_hidden_layers: null, want a number"},
        {"set num_hidden_layers {}", QN_FORMAT, "no key num_hidden_layers"},
        {"unset num_attention_heads", QN_FORMAT, "shape (64, 64), want (512, 64)"},
        {"set num_attention_heads 0", QN_FORMAT, "num_attention_heads: 0"},
        {"set num_key_value_heads 3", QN_FORMAT, "4 heads cannot share 3 kv heads"},
        {"set num_key_value_heads [2, 1]", QN_UNSUPPORTED, "layers of different sizes"},
        {"set num_key_value_heads [2]", QN_FORMAT, "1 elements, the model has 2 layers"},
        {"set head_dim 0", QN_FORMAT, "head_dim: 0, want 1"},
        {"set head_dim 32", QN_FORMAT, "q_proj.weight: shape (64, 64), want (128, 64)"},
        {"unset hidden_size", QN_FORMAT, "no key hidden_size"},
        {"set hidden_size [64, 64]", QN_OK, ""},
        {"set vocab_size 511", QN_FORMAT, "vocab_size: 511, tensor model.embed_tokens.weight has"},
        {"set vocab_size 512.5", QN_FORMAT, "vocab_size: JSON number, want a whole number"},
        {"set max_position_embeddings 0", QN_FORMAT, "max_position_embeddings: 0"},
        {"set max_position_embeddings 4294967296", QN_FORMAT, "4294967296, want 1"},
        {"set rms_norm_eps 0", QN_FORMAT, "rms_norm_eps: 0, want"},
        {"set rms_norm_eps \"tiny\"", QN_FORMAT, "rms_norm_eps: JSON string, want a number"},
        {"set hidden_act \"gelu\"", QN_UNSUPPORTED, "hidden_act: 'gelu', supported: silu"},
        {"set hidden_act 1", QN_FORMAT, "hidden_act: JSON integer, want a string"},
        {"set tie_word_embeddings \"yes\"", QN_FORMAT, "JSON string, want true or false"},
        {"set rope_parameters.rope_theta 0", QN_FORMAT, "rope base 0"},
        {"set rope_parameters.rope_theta -1", QN_FORMAT, "rope base -1"},
        {"set rope_parameters.rope_theta \"x\"", QN_FORMAT, "rope_theta: JSON string, want a"},
        {"set rope_parameters.rope_type \"yarn\"", QN_OK, ""},
        {"set rope_parameters.rope_type \"longrope\"", QN_UNSUPPORTED, "rope scaling 'longrope'"},
        {"set rope_parameters.rope_type 3", QN_FORMAT, "rope_type: JSON integer, want a string"},
        {"set rope_parameters.factor 0", QN_FORMAT, "rope scaling factor 0"},
        {"unset rope_parameters.factor", QN_FORMAT, "rope scaling 'llama3' without its factor"},
        {"set tie_word_embeddings false", QN_FORMAT, "tensor lm_head.weight is missing"},
        {"set attention_bias true", QN_FORMAT, "self_attn.q_proj.bias is missing"},
        {"set mlp_bias true", QN_FORMAT, "mlp.gate_proj.bias is missing"},
        {"copy model.norm.weight model.layers.0.self_attn.q_norm.bias", QN_UNSUPPORTED,
         "q_norm.bias: llama has no such bias"},
        {"set rope_parameters.low_freq_factor 4", QN_FORMAT, "low 4, high 4"},
        {"set rope_parameters.original_max_position_embeddings 0", QN_FORMAT, "length 0"},
        {"set partial_rotary_factor 2", QN_FORMAT, "partial_rotary_factor: 2, want"},
        {"set partial_rotary_factor 0.1", QN_FORMAT, "rope turns 1 values"},
        {"set partial_rotary_factor -1", QN_FORMAT, "partial_rotary_factor"},
        {"set partial_rotary_factor 1e300", QN_FORMAT, "partial_rotary_factor"},
        {"set partial_rotary_factor \"all\"", QN_FORMAT, "JSON string, want a number"},
        {"set model_type \"mistral\"; set sliding_window 0", QN_FORMAT,
         "sliding_window: 0, want 1"},
        {"set model_type \"mistral\"; set sliding_window \"wide\"", QN_FORMAT,
         "JSON string, want a whole number"},
        {"set num_local_experts 8", QN_UNSUPPORTED, "llama with 8 experts"},
        {"set model_type \"bloom\"", QN_UNSUPPORTED,
         "unknown architecture 'bloom'; known: llama mistral qwen2"},
        {"set model_type \"llama mistral\"", QN_UNSUPPORTED,
         "unknown architecture 'llama mistral'"},
        {"set model_type \"\"", QN_UNSUPPORTED, "unknown architecture ''"},
        {"set model_type 5", QN_FORMAT, "no key model_type"},
        {"unset model_type", QN_FORMAT, "no key model_type"},
    };
    expect_checkpoint(state, "llama32", cases, N_OF(cases));
}

static void config_layers_are_checked(void **state) {
    static const hostile_case qwen3[] = {
        {"set layer_types [\"full_attention\"]", QN_FORMAT, "1 elements, the model has 2 layers"},
        {"set layer_types [\"full_attention\", \"sparse_attention\"]", QN_UNSUPPORTED,
         "layer 1 is 'sparse_attention'"},
        {"set layer_types [\"full_attention\", \"linear_attention\"]", QN_UNSUPPORTED,
         "layer 1 is 'linear_attention'"},
        {"set layer_types [\"full_attention\", \"sliding_attention\"]", QN_FORMAT,
         "layer 1 is sliding, but the model names no window"},
        {"set layer_types [0, 1]", QN_FORMAT, "want an array of strings"},
        {"set layer_types \"full_attention\"", QN_FORMAT, "want an array of strings"},
        {"set layer_types []", QN_FORMAT, "layer_types"},
        {"set use_sliding_window 1", QN_FORMAT, "JSON integer, want true or false"},
    };
    static const hostile_case gemma3[] = {
        {"set layer_types [\"sliding_attention\"]", QN_FORMAT, "1 elements, the model has 6"},
        {"set layer_types [\"linear_attention\", \"full_attention\", \"full_attention\","
         "\"full_attention\", \"full_attention\", \"full_attention\"]",
         QN_UNSUPPORTED, "layer 0 is 'linear_attention'"},
        {"set use_bidirectional_attention true", QN_UNSUPPORTED, "use_bidirectional_attention"},
        {"set hidden_activation \"relu\"", QN_UNSUPPORTED, "hidden_activation: 'relu'"},
        {"set query_pre_attn_scalar 0", QN_FORMAT, "query_pre_attn_scalar: 0, want"},
        {"set sliding_window -1", QN_FORMAT, "sliding_window: -1, want 1"},
        {"set rope_parameters.sliding_attention.rope_theta -1", QN_FORMAT, "rope base -1"},
        {"unset rope_parameters.full_attention.factor", QN_FORMAT, "'linear' without its factor"},
        {"set hidden_activation \"gelu\"", QN_UNSUPPORTED, "'gelu', supported: gelu_pytorch_tanh"},
        {"set attention_bias true", QN_UNSUPPORTED, "attention_bias: true, supported: false"},
        {"set rope_parameters.full_attention.rope_type \"dynamic\"", QN_UNSUPPORTED,
         "rope scaling 'dynamic'"},
        // Published files leave out these: 8 heads of 256, 4 of keys and values.
        {"unset head_dim", QN_FORMAT, "q_proj.weight: shape (64, 64), want (1024, 64)"},
        {"unset head_dim; unset num_attention_heads; unset num_key_value_heads", QN_FORMAT,
         "q_proj.weight: shape (64, 64), want (2048, 64)"},
        {"set head_dim 8; unset num_attention_heads; unset num_key_value_heads", QN_FORMAT,
         "k_proj.weight: shape (16, 64), want (32, 64)"},
        {"drop model.layers.3.self_attn.k_norm.weight", QN_FORMAT, "layers.3.self_attn.k_norm"},
    };
    static const hostile_case qwen35[] = {
        {"set layer_types [\"full_attention\"]", QN_FORMAT, "1 elements, the model has 4"},
        {"set layer_types [\"linear_attention\", \"linear_attention\", \"linear_attention\","
         "\"sliding_attention\"]",
         QN_UNSUPPORTED, "layer 3 is sliding"},
        {"set linear_num_key_heads 3", QN_FORMAT, "4 value heads, 3 key heads"},
        {"set linear_num_value_heads 0", QN_FORMAT, "linear_num_value_heads: 0"},
        {"set linear_value_head_dim 8", QN_FORMAT, "in_proj_qkv.weight: shape (128, 64), want (96"},
        {"set linear_key_head_dim 8", QN_FORMAT, "in_proj_qkv.weight: shape (128, 64), want (96"},
        {"set linear_conv_kernel_dim null", QN_FORMAT, "linear_conv_kernel_dim: null, want"},
        {"set attn_output_gate false", QN_UNSUPPORTED, "attn_output_gate: false"},
        {"set rope_parameters.mrope_section [2, 1]", QN_FORMAT, "of 2, want 3 or 4"},
        {"set rope_parameters.mrope_section [2, 1, 2]", QN_FORMAT, "sections of 5 pairs"},
        {"set rope_parameters.mrope_section [2, 1, 1.5]", QN_FORMAT, "JSON array of number"},
        {"shape model.layers.1.linear_attn.conv1d.weight 128 1 3", QN_FORMAT,
         "conv1d.weight: shape (128, 1, 3), want (128, 4)"},
    };
    expect_checkpoint(state, "qwen3", qwen3, N_OF(qwen3));
    expect_checkpoint(state, "gemma3", gemma3, N_OF(gemma3));
    expect_checkpoint(state, "qwen35", qwen35, N_OF(qwen35));
}

static void checkpoint_tensors_are_checked(void **state) {
    static const hostile_case cases[] = {
        {"drop model.layers.1.mlp.experts.2.up_proj.weight", QN_FORMAT,
         "tensor model.layers.1.mlp.experts.2.up_proj.weight is missing"},
        {"drop model.layers.1.mlp.experts.*", QN_FORMAT,
         "tensor model.layers.1.mlp.experts.0.gate_proj.weight is missing"},
        {"type model.layers.1.mlp.experts.2.up_proj.weight F32", QN_UNSUPPORTED,
         "experts.2.up_proj.weight: type F32, expert 0 has BF16"},
        {"shape model.layers.0.mlp.experts.3.down_proj.weight 48 64", QN_FORMAT,
         "experts.3.down_proj.weight: shape (48, 64), want (64, 48)"},
        {"type model.layers.0.mlp.experts.0.gate_proj.weight F8_E4M3", QN_UNSUPPORTED,
         "type F8_E4M3 is not supported"},
        {"copy model.layers.0.mlp.gate.weight model.layers.0.mlp.experts.gate_up_proj", QN_FORMAT,
         "model.layers.0.mlp.experts.gate_up_proj: shape (4, 64), want (4, 96, 64)"},
        {"set num_local_experts 5", QN_FORMAT, "mlp.gate.weight: shape (4, 64), want (5, 64)"},
        {"set num_experts_per_tok 5", QN_FORMAT, "5 experts used of 4"},
        {"set num_experts_per_tok 0", QN_FORMAT, "0 used"},
        {"set moe_intermediate_size null", QN_FORMAT, "4 experts of size 0"},
        {"set num_local_experts null", QN_FORMAT, "2 experts used of 0"},
        {"set decoder_sparse_step 2", QN_FORMAT,
         "tensor model.layers.0.mlp.gate_proj.weight is missing"},
        {"set decoder_sparse_step 0", QN_FORMAT, "decoder_sparse_step: 0, want 1"},
        {"set decoder_sparse_step null", QN_FORMAT, "decoder_sparse_step: null, want a number"},
        {"set mlp_only_layers [1]", QN_FORMAT,
         "tensor model.layers.1.mlp.gate_proj.weight is missing"},
        {"set mlp_only_layers [1]; unset intermediate_size", QN_FORMAT,
         "layer 1 has no experts, and intermediate_size is missing"},
        {"set mlp_only_layers \"first\"", QN_FORMAT,
         "mlp_only_layers: JSON string, want a list of whole numbers"},
        {"set mlp_only_layers [0.5]", QN_FORMAT, "want a list of whole numbers"},
        {"set mlp_only_layers [\"first\"]", QN_FORMAT, "want a list of whole numbers"},
        {"set attention_bias true", QN_FORMAT, "self_attn.q_proj.bias is missing"},
        {"set norm_topk_prob 1", QN_FORMAT, "norm_topk_prob: JSON integer, want true or false"},
        {"drop model.norm.weight", QN_FORMAT, "tensor model.norm.weight is missing"},
        {"drop model.embed_tokens.weight", QN_FORMAT, "no token embedding"},
        {"rename model.* other.*", QN_FORMAT, "no token embedding"},
        {"shape lm_head.weight 512 32", QN_FORMAT,
         "lm_head.weight: shape (512, 32), want (512, 64"},
        {"type lm_head.weight I64", QN_UNSUPPORTED, "type I64 is not supported"},
        {"shape model.layers.0.self_attn.q_norm.weight 4 4", QN_FORMAT,
         "q_norm.weight: shape (4, 4), want (16)"},
    };
    expect_checkpoint(state, "qwen3_moe", cases, N_OF(cases));
}

static void broken_sets_are_refused(void **state) {
    const char *folder = *state;
    model_file *m = model_load(mini_folder("qwen3").text);
    model_write_checkpoint(m, folder, 3);
    model_free(m);
    const hostile_case whole = {"three shards", QN_OK, ""};
    assert_true(opens_as_wanted("shards", folder, &whole));
    assert_int_equal(remove(in_folder(state, "model-00002-of-00003.safetensors").text), 0);
    const hostile_case missing = {"without the second", QN_IO, "model-00002-of-00003.safetensors"};
    assert_true(opens_as_wanted("shards", folder, &missing));
    put_text(state, "model-00002-of-00003.safetensors", "");
    const hostile_case empty = {"with an empty second", QN_FORMAT, "model-00002-of-00003"};
    assert_true(opens_as_wanted("shards", folder, &empty));
    assert_int_equal(remove(in_folder(state, "config.json").text), 0);
    const hostile_case bare = {"without config.json", QN_FORMAT, "no config.json"};
    assert_true(opens_as_wanted("shards", folder, &bare));
}

// --- numbers that break down ---------------------------------------------------------------------

static void expect_broken(void **state, const char *family, const char *edits, const char *part) {
    qn_err err;
    qn_engine *engine = NULL;
    const path_name path = in_folder(state, "model.gguf");
    model_file *m = model_load(mini_gguf(family).text);
    model_edit(m, edits);
    model_write_gguf(m, path.text);
    model_free(m);
    ASSERT_OK(qn_engine_open(&engine, path.text, &QN_INIT(qn_engine_opts, .n_threads = 1), &err));
    const int32_t ids[] = {1, 2, 3};
    qn_logits logits = QN_INIT(qn_logits, .n_rows = -7);
    const qn_status status = qn_engine_logits(&logits, engine, ids, 3, NULL, &err);
    if (status != QN_NUMERIC)
        fail_msg("%s: %s: status %s, want NUMERIC", family, edits, qn_status_name(status));
    if (!strstr(err.message, part)) fail_msg("%s: '%s', want '%s'", edits, err.message, part);
    assert_int_equal(logits.n_rows, -7);
    int32_t token = -7;
    qn_session *session = NULL;
    ASSERT_OK(qn_session_create(&session, engine, NULL, &err));
    ASSERT_OK(qn_session_set_prompt(session, ids, 3, &err));
    ASSERT_FAILS(qn_session_step_naive(&token, session, NULL, &err), QN_NUMERIC, part);
    char message[sizeof err.message]; // by whole rows and by the best alone, it is the same
    memcpy(message, err.message, sizeof message);
    ASSERT_FAILS(qn_session_step(&token, session, NULL, &err), QN_NUMERIC, message);
    ASSERT_FAILS(qn_session_step(&token, session, &QN_INIT(qn_sample_opts, .temperature = 1), &err),
                 QN_NUMERIC, message);
    assert_int_equal(token, -7);
    size_t n;
    qn_session_tokens(session, &n);
    assert_int_equal(n, 3); // nothing was appended
    qn_session_destroy(session);
    qn_engine_close(engine);
}

static void broken_numbers_give_no_token(void **state) {
    expect_broken(state, "llama32", "fill blk.* nan", "is nan");
    expect_broken(state, "llama32", "fill token_embd.weight nan", "is nan");
    expect_broken(state, "llama32", "fill token_embd.weight inf", "logit 0 of 512 is");
    expect_broken(state, "llama32", "fill output_norm.weight nan", "is nan");
    expect_broken(state, "llama32", "fill blk.0.attn_k.weight nan", "is nan");
    expect_broken(state, "llama32", "fill output_norm.weight inf", "logit");
    expect_broken(state, "llama32", "fill output_norm.weight 1e38", "logit");
    expect_broken(state, "llama32", "fill blk.1.attn_v.weight nan", "is nan");
    expect_broken(state, "llama32", "fill blk.0.attn_output.weight -inf", "logit");
    expect_broken(state, "llama32", "fill blk.0.ffn_down.weight nan", "is nan");
    expect_broken(state, "gemma3", "fill blk.5.ffn_up.weight nan", "is nan");
    expect_broken(state, "qwen3_moe", "fill blk.0.ffn_gate_inp.weight nan", "is nan");
    expect_broken(state, "qwen35", "fill blk.0.ssm_a nan", "is nan");
    expect_broken(state, "qwen35", "fill blk.1.ssm_conv1d.weight nan", "is nan");
    expect_broken(state, "llama32", "fill token_embd.weight 0", "all 512 logits are 0");
    expect_broken(state, "qwen35_moe", "fill output.weight 0", "all 512 logits are 0");
    expect_broken(state, "qwen3", "fill output_norm.weight 0", "all 512 logits are 0");
}

// --- calls ---------------------------------------------------------------------------------------

static void wrong_calls_are_refused(void **state) {
    (void)state;
    qn_err err;
    qn_engine *engine = NULL;
    const path_name path = mini_gguf("llama32");
    ASSERT_FAILS(qn_engine_open(&engine, NULL, NULL, &err), QN_ARGUMENT, "no model was named");
    ASSERT_FAILS(qn_engine_open(&engine, TEST_DATA "/nothing-here/m.gguf", NULL, &err), QN_IO,
                 "m.gguf");
    ASSERT_FAILS(
        qn_engine_open(&engine, path.text, &QN_INIT(qn_engine_opts, .n_threads = -1), &err),
        QN_ARGUMENT, "threads: -1");
    assert_null(engine);
    ASSERT_OK(qn_engine_open(&engine, path.text, &QN_INIT(qn_engine_opts, .n_threads = 1), &err));
    qn_logits logits = QN_INIT(qn_logits);
    const qn_logits_opts backwards = QN_INIT(qn_logits_opts, .chunk = -1);
    ASSERT_FAILS(qn_engine_logits(&logits, engine, (int32_t[]){1}, 1, &backwards, &err),
                 QN_ARGUMENT, "-1");
    ASSERT_FAILS(qn_engine_logits(&logits, engine, NULL, 0, NULL, &err), QN_ARGUMENT, "no token");
    ASSERT_FAILS(qn_engine_logits(&logits, engine, NULL, 1, NULL, &err), QN_ARGUMENT, "no token");
    ASSERT_FAILS(qn_engine_logits(&logits, engine, (int32_t[]){1, 512}, 2, NULL, &err), QN_ARGUMENT,
                 "id 512 (number 2), this model has 0 to 511");
    ASSERT_FAILS(qn_engine_logits(&logits, engine, (int32_t[]){-1}, 1, NULL, &err), QN_ARGUMENT,
                 "id -1 (number 1), this model has 0 to 511");
    int32_t *many = calloc(4097, sizeof *many);
    ASSERT_FAILS(qn_engine_logits(&logits, engine, many, 4097, NULL, &err), QN_LIMIT,
                 "4097 tokens, the context has 4096");
    free(many);
    qn_memory memory = QN_INIT(qn_memory);
    ASSERT_FAILS(qn_engine_memory(&memory, engine, 4097, 0, &err), QN_LIMIT, "4097 tokens");
    ASSERT_FAILS(qn_engine_memory(&memory, engine, -1, 0, &err), QN_LIMIT, "-1 tokens");
    ASSERT_OK(qn_engine_memory(&memory, engine, 4096, 0, &err));
    char *text = NULL;
    ASSERT_FAILS(
        qn_engine_graph(&text, engine, &QN_INIT(qn_graph_opts, .form = (qn_graph_form)9), &err),
        QN_ARGUMENT, "form 9");
    ASSERT_FAILS(
        qn_engine_graph(&text, engine, &QN_INIT(qn_graph_opts, .stage = (qn_graph_stage)9), &err),
        QN_ARGUMENT, "stage 9");
    ASSERT_FAILS(qn_engine_report(&text, engine, (qn_report)9, &err), QN_ARGUMENT, "report 9");
    assert_null(text);
    qn_engine_close(engine);
    qn_engine_close(NULL);
}

static void sessions_refuse_what_makes_no_sense(void **state) {
    (void)state;
    qn_err err;
    qn_engine *engine = NULL;
    qn_session *session = NULL;
    int32_t token = -7;
    ASSERT_OK(qn_engine_open(&engine, mini_gguf("llama32").text, NULL, &err));
    ASSERT_FAILS(
        qn_session_create(&session, engine, &QN_INIT(qn_session_opts, .context = 4097), &err),
        QN_LIMIT, "4097 tokens, the model has 4096");
    ASSERT_FAILS(
        qn_session_create(&session, engine, &QN_INIT(qn_session_opts, .context = -1), &err),
        QN_LIMIT, "-1 tokens");
    assert_null(session);
    ASSERT_OK(qn_session_create(&session, engine, &QN_INIT(qn_session_opts, .context = 3), &err));
    ASSERT_FAILS(qn_session_step_naive(&token, session, NULL, &err), QN_STATE, "no history");
    ASSERT_FAILS(qn_session_set_prompt(session, NULL, 0, &err), QN_ARGUMENT, "no token ids");
    ASSERT_FAILS(qn_session_set_prompt(session, (int32_t[]){1, 2, 3, 4}, 4, &err), QN_LIMIT,
                 "4 tokens, the context has 3");
    ASSERT_FAILS(qn_session_set_prompt(session, (int32_t[]){600}, 1, &err), QN_ARGUMENT, "id 600");
    ASSERT_FAILS(qn_session_step_naive(&token, session, NULL, &err), QN_STATE, "no history");
    ASSERT_OK(qn_session_set_prompt(session, (int32_t[]){1, 2}, 2, &err));
    ASSERT_FAILS(qn_session_step_naive(&token, session,
                                       &QN_INIT(qn_sample_opts, .temperature = -1.0F), &err),
                 QN_ARGUMENT, "temperature -1");
    ASSERT_FAILS(qn_session_step_naive(&token, session,
                                       &QN_INIT(qn_sample_opts, .temperature = strtof("nan", NULL)),
                                       &err),
                 QN_ARGUMENT, "temperature nan");
    assert_int_equal(token, -7);
    ASSERT_OK(qn_session_step_naive(&token, session, NULL, &err));
    ASSERT_FAILS(qn_session_step_naive(&token, session, NULL, &err), QN_LIMIT,
                 "the context of 3 tokens is full");
    qn_session_destroy(session);
    qn_session_destroy(NULL);
    qn_engine_close(engine);
}

static void a_model_without_weights_computes_nothing(void **state) {
    (void)state;
    qn_err err;
    qn_engine *engine = NULL;
    ASSERT_OK(qn_engine_open(&engine, mini_gguf("qwen35_moe").text,
                             &QN_INIT(qn_engine_opts, .no_weights = true), &err));
    qn_logits logits = QN_INIT(qn_logits);
    ASSERT_FAILS(qn_engine_logits(&logits, engine, (int32_t[]){1}, 1, NULL, &err), QN_STATE,
                 "without its weights");
    qn_session *session;
    int32_t token;
    ASSERT_OK(qn_session_create(&session, engine, NULL, &err));
    ASSERT_FAILS(qn_session_set_prompt(session, (int32_t[]){1}, 1, &err), QN_STATE,
                 "without its weights");
    ASSERT_FAILS(qn_session_step_naive(&token, session, NULL, &err), QN_STATE, "no history");
    qn_session_destroy(session);
    char *text = NULL;
    ASSERT_OK(qn_engine_graph(&text, engine, NULL, &err));
    qn_free(text);
    const qn_engine_info info = engine_info(engine);
    assert_int_equal(info.n_layers, 4);
    assert_int_equal(info.n_experts, 4);
    qn_engine_close(engine);
}

static bool stop_at_half(void *arg, int64_t done, int64_t total) {
    (*(int *)arg)++;
    return done < total / 2;
}

static void loading_can_be_stopped(void **state) {
    (void)state;
    qn_err err;
    int calls = 0;
    qn_engine *engine = NULL;
    const qn_engine_opts opts =
        QN_INIT(qn_engine_opts, .progress = stop_at_half, .progress_arg = &calls);
    ASSERT_FAILS(qn_engine_open(&engine, mini_gguf("qwen3").text, &opts, &err), QN_STOPPED,
                 "loading stopped at");
    assert_null(engine);
    assert_true(calls > 1);
}

// What happens to the file while its weights are read.
static bool shorten(void *arg, int64_t done, int64_t total) {
    (void)done;
    (void)total;
    return truncate(arg, 20000) == 0;
}

static void a_file_that_shrinks_is_an_error(void **state) {
    qn_err err;
    qn_engine *engine = NULL;
    path_name path = in_folder(state, "model.gguf");
    model_file *m = model_load(mini_gguf("qwen3").text);
    model_write_gguf(m, path.text);
    model_free(m);
    const qn_engine_opts opts =
        QN_INIT(qn_engine_opts, .progress = shorten, .progress_arg = path.text);
    ASSERT_FAILS(qn_engine_open(&engine, path.text, &opts, &err), QN_IO, "model.gguf");
    assert_null(engine);
}

// --- random damage -------------------------------------------------------------------------------

static uint64_t next_random(uint64_t *seed) {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    return *seed ^= *seed << 17;
}

static void try_model(const char *path, int *opened, int *computed) {
    qn_err err;
    qn_engine *engine = NULL;
    qn_logits logits = QN_INIT(qn_logits);
    if (qn_engine_open(&engine, path, &QN_INIT(qn_engine_opts, .n_threads = 1), &err)) {
        assert_null(engine);
        assert_true(err.message[0]);
        return;
    }
    (*opened)++;
    if (!qn_engine_logits(&logits, engine, (int32_t[]){1, 2}, 2, NULL, &err)) {
        (*computed)++;
        qn_logits_deinit(&logits);
    }
    qn_engine_close(engine);
}

// Changes one to three of the first `n` bytes of `file`, opens `model`, and puts them back.
static void damage(const char *file, const char *model, size_t n, int rounds) {
    uint64_t seed = 88172645463325252U;
    int opened = 0, computed = 0;
    const int fd = open(file, O_RDWR);
    assert_true(fd >= 0);
    for (int i = 0; i < rounds; i++) {
        const int n_bytes = 1 + (int)(next_random(&seed) % 3);
        off_t at[3];
        unsigned char before[3], after[3];
        for (int k = 0; k < n_bytes; k++) {
            at[k] = (off_t)(next_random(&seed) % n);
            assert_int_equal(pread(fd, &before[k], 1, at[k]), 1);
            const uint64_t r = next_random(&seed);
            const unsigned flipped = before[k] ^ 1U << (r >> 8 & 7); // a bit, or all of it
            after[k] = (unsigned char)((r & 1 ? flipped : (unsigned)(r >> 16)) & 255U);
            assert_int_equal(pwrite(fd, &after[k], 1, at[k]), 1);
        }
        try_model(model, &opened, &computed);
        for (int k = n_bytes - 1; k >= 0; k--)
            assert_int_equal(pwrite(fd, &before[k], 1, at[k]), 1);
    }
    close(fd);
    print_message("%s: %d rounds, %d opened, %d computed\n", file, rounds, opened, computed);
    assert_true(opened > 0 && opened < rounds);
}

static size_t size_of(const char *path) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    const long size = ftell(f);
    fclose(f);
    return (size_t)size;
}

// The rounds come from the command line; this many in every run.
enum { ROUNDS = 2000 };

static void damage_gguf(const char *family, int rounds) {
    char folder[] = "/tmp/quern-test-XXXXXX";
    assert_non_null(mkdtemp(folder));
    path_name path;
    snprintf(path.text, sizeof path.text, "%s/model.gguf", folder);
    model_file *m = model_load(mini_gguf(family).text);
    size_t data = 0;
    for (size_t i = 0; i < m->n_tensors; i++) data += m->tensors[i].bytes;
    model_write_gguf(m, path.text);
    model_free(m);
    damage(path.text, path.text, size_of(path.text) - data, rounds); // padding counts too
    remove(path.text);
    rmdir(folder);
}

static void random_damage_never_crashes(void **state) {
    const int rounds = *(const int *)*state;
    damage_gguf("llama32", rounds);
    damage_gguf("qwen35_moe", rounds);
}

static void random_damage_of_a_config_never_crashes(void **state) {
    const int rounds = *(const int *)*state;
    char folder[] = "/tmp/quern-test-XXXXXX";
    assert_non_null(mkdtemp(folder));
    model_file *m = model_load(mini_folder("qwen35_moe").text);
    model_write_checkpoint(m, folder, 1);
    model_free(m);
    path_name config, weights;
    snprintf(config.text, sizeof config.text, "%s/config.json", folder);
    snprintf(weights.text, sizeof weights.text, "%s/model.safetensors", folder);
    damage(config.text, folder, size_of(config.text), rounds);
    remove(config.text);
    remove(weights.text);
    rmdir(folder);
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : ROUNDS;
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(gguf_numbers_are_checked),
        FOLDER_TEST(gguf_heads_and_rope_are_checked),
        FOLDER_TEST(gguf_windows_and_caps_are_checked),
        FOLDER_TEST(gguf_experts_are_checked),
        FOLDER_TEST(gguf_delta_nets_are_checked),
        FOLDER_TEST(gguf_tensors_are_checked),
        FOLDER_TEST(gguf_types_of_long_blocks_are_refused_by_name),
        FOLDER_TEST(unknown_tensors_are_warned_of),
        FOLDER_TEST(config_numbers_are_checked),
        FOLDER_TEST(config_layers_are_checked),
        FOLDER_TEST(checkpoint_tensors_are_checked),
        FOLDER_TEST(broken_sets_are_refused),
        FOLDER_TEST(broken_numbers_give_no_token),
        cmocka_unit_test(wrong_calls_are_refused),
        cmocka_unit_test(sessions_refuse_what_makes_no_sense),
        cmocka_unit_test(a_model_without_weights_computes_nothing),
        cmocka_unit_test(loading_can_be_stopped),
        FOLDER_TEST(a_file_that_shrinks_is_an_error),
        cmocka_unit_test_prestate(random_damage_never_crashes, &rounds),
        cmocka_unit_test_prestate(random_damage_of_a_config_never_crashes, &rounds),
    };
    return cmocka_run_group_tests_name("hostile models", tests, NULL, NULL);
}
