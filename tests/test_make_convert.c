// Converting checkpoints: every family against the GGUF file that llama.cpp's converter made of the
// same checkpoint, what must be refused, and that a file appears whole or not at all.
#include "testing.h"

#include "format_files.h"
#include "golden.h"
#include "model_writer.h"

#include "core/file.h"
#include "core/mem.h"
#include "tokenizer/tokenizer.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>

static const char *const families[] = {"llama32",    "llama_untied", "qwen3",  "qwen3_moe",
                                       "gemma",      "gemma2",       "gemma3", "qwen35",
                                       "qwen35_moe", "qwen35_vl"};
enum { N_FAMILIES = sizeof families / sizeof families[0] };

static path_name mini(const char *family) {
    path_name path;
    snprintf(path.text, sizeof path.text, "%s/mini/%s", TEST_DATA, family);
    return path;
}

static path_name fixture(const char *family) {
    path_name path;
    snprintf(path.text, sizeof path.text, "%s/mini/%s/%s-bf16.gguf", TEST_DATA, family, family);
    return path;
}

static bool starts_with(const char *text, const char *start) {
    return strncmp(text, start, strlen(start)) == 0;
}

static int count_files(void *const *state) {
    DIR *dir = opendir(*state);
    int n = 0;
    for (struct dirent *e; (e = readdir(dir));) n++;
    closedir(dir);
    return n - 2; // . and .., but hidden files count
}

// A line of the log that must not come.
static void refuse_warnings(void *arg, qn_log_level level, const char *message) {
    (void)arg;
    if (level <= QN_LOG_WARNING) fail_msg("%s", message);
}

static void convert(const char *from, const char *to, const char *type) {
    qn_err err = {0};
    const qn_convert_opts opts = {.type = type, .log = refuse_warnings};
    if (qn_convert(from, to, &opts, &err)) fail_msg("%s: %s", from, err.message);
}

// --- against the fixtures ------------------------------------------------------------------------

static void *read_tensor(const qn_source *source, const qn_tensor *t) {
    qn_err err;
    void *bytes = malloc((size_t)t->bytes);
    ASSERT_OK(qn_source_read(source, t, 0, bytes, (size_t)t->bytes, &err));
    return bytes;
}

// rope_freqs is computed in another order of operations by everybody.
static void check_frequencies(const float *got, const float *want, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (fabsf(got[i] - want[i]) > 1e-6f * fabsf(want[i]))
            fail_msg("rope_freqs[%d]: %.9g, want %.9g", (int)i, (double)got[i], (double)want[i]);
    }
}

static void compare_tensors(const qn_source *got, const qn_source *want) {
    assert_int_equal(qn_source_n_tensors(got), qn_source_n_tensors(want));
    for (size_t i = 0; i < qn_source_n_tensors(want); i++) {
        const qn_tensor *w = qn_source_tensor(want, i);
        const qn_tensor *g = qn_source_find_tensor(got, w->name.data);
        if (!g) fail_msg("tensor %s is missing", w->name.data);
        assert_string_equal(qn_type_get(g->type)->name, qn_type_get(w->type)->name);
        assert_int_equal(g->n_dims, w->n_dims);
        for (int d = 0; d < w->n_dims; d++) assert_int_equal(g->dims[d], w->dims[d]);
        void *a = read_tensor(got, g), *b = read_tensor(want, w);
        if (qn_str_is(w->name, "rope_freqs.weight"))
            check_frequencies(a, b, w->dims[0]);
        else if (memcmp(a, b, (size_t)w->bytes) != 0)
            fail_msg("tensor %s: other bytes", w->name.data);
        free(a);
        free(b);
    }
}

// The keys that differ from the fixtures' and why; docs/convert.md has the same list.
//   general.name            ours is the folder's name as it is, theirs has capitals
//   tokenizer.ggml.pre      ours names the pattern that tokenizer.json has, theirs the usual one of
//                           the architecture (all fixtures share a tokenizer.json of Qwen2's kind)
//   tokenizer.ggml.token_type  Gemma's <start_of_turn> and <end_of_turn> are user-defined (4) in
//                           tokenizer.model, normal (1) in the fixtures
//   tokenizer.ggml.eot_token_id  only in gemma's fixture, where it is a byte token
static bool may_differ(const char *family, const char *key, const char *got, const char *want) {
    char name[64];
    snprintf(name, sizeof name, "\"%s\"", family);
    if (strcmp(key, "general.name") == 0) return strcmp(got, name) == 0;
    if (strcmp(key, "tokenizer.ggml.pre") == 0)
        return strcmp(got, "\"qwen2\"") == 0 &&
               (strcmp(want, "\"llama-bpe\"") == 0 || strcmp(want, "\"qwen35\"") == 0);
    if (strcmp(key, "tokenizer.ggml.token_type") == 0)
        return starts_with(family, "gemma") && starts_with(got, "[3, 3, 3, 2, 4, 4, ") &&
               starts_with(want, "[3, 3, 3, 2, 1, 1, ") && strcmp(got + 19, want + 19) == 0;
    return false;
}

static qn_key_info find_info(const qn_source *source, const char *name) {
    qn_err err;
    qn_key_info info = {0};
    for (size_t i = 0; i < qn_source_n_keys(source) && !info.name; i++) {
        if (!qn_str_is(qn_source_key(source, i)->name, name)) continue;
        ASSERT_OK(qn_source_key_info(&info, source, i, SIZE_MAX, &err));
    }
    return info;
}

static void compare_keys(const char *family, const qn_source *got, const qn_source *want) {
    size_t n_left_out = 0;
    for (size_t i = 0; i < qn_source_n_keys(want); i++) {
        const char *name = qn_source_key(want, i)->name.data;
        qn_key_info w = find_info(want, name), g = find_info(got, name);
        if (!g.name && strcmp(name, "tokenizer.ggml.eot_token_id") == 0) {
            assert_string_equal(family, "gemma");
            n_left_out++;
        } else if (!g.name) {
            fail_msg("%s: key %s is missing", family, name);
        } else {
            assert_string_equal(g.type, w.type);
            if (strcmp(g.value, w.value) != 0 && !may_differ(family, name, g.value, w.value))
                fail_msg("%s: key %s is %.200s, want %.200s", family, name, g.value, w.value);
        }
        qn_free(g.value);
        qn_free(w.value);
    }
    assert_int_equal(qn_source_n_keys(got), qn_source_n_keys(want) - n_left_out);
}

static void compare_files(const char *family, const char *got_path, const char *want_path) {
    qn_source *got = open_well(got_path), *want = open_well(want_path);
    compare_tensors(got, want);
    compare_keys(family, got, want);
    qn_source_close(got);
    qn_source_close(want);
}

static void families_equal_their_fixtures(void **state) {
    const path_name out = in_folder(state, "out.gguf");
    for (size_t i = 0; i < N_FAMILIES; i++) {
        convert(mini(families[i]).text, out.text, NULL);
        compare_files(families[i], out.text, fixture(families[i]).text);
    }
    compare_files("qwen35_vl", in_folder(state, "mmproj-out.gguf").text,
                  TEST_DATA "/mini/qwen35_vl/mmproj-bf16.gguf");
    assert_int_equal(count_files(state), 2);
}

// --- logits and tokens ---------------------------------------------------------------------------

static qn_engine *open_engine(const char *path) {
    qn_err err;
    qn_engine *engine = NULL;
    const qn_engine_opts opts = {.n_threads = 1, .log = refuse_warnings};
    ASSERT_OK(qn_engine_open(&engine, path, &opts, &err));
    return engine;
}

// The relative error of one file's logits against another's; exactly 0 when they are the same.
static double logits_differ(const char *got_path, const char *want_path) {
    static const int32_t ids[] = {1, 17, 300, 44, 5, 6, 7, 8, 260, 99, 2, 31};
    const qn_logits_opts opts = {.all_rows = true};
    qn_err err;
    qn_logits got, want;
    qn_engine *a = open_engine(got_path), *b = open_engine(want_path);
    ASSERT_OK(qn_engine_logits(&got, a, ids, sizeof ids / sizeof *ids, &opts, &err));
    ASSERT_OK(qn_engine_logits(&want, b, ids, sizeof ids / sizeof *ids, &opts, &err));
    const int64_t n = want.n_rows * want.n_vocab;
    assert_int_equal(got.n_rows * got.n_vocab, n);
    const double error = relative_error(got.logits, want.logits, n);
    qn_logits_deinit(&got);
    qn_logits_deinit(&want);
    qn_engine_close(a);
    qn_engine_close(b);
    return error;
}

static void logits_equal_those_of_the_fixtures(void **state) {
    const path_name out = in_folder(state, "out.gguf");
    for (size_t i = 0; i < N_FAMILIES; i++) {
        convert(mini(families[i]).text, out.text, NULL);
        const double error = logits_differ(out.text, fixture(families[i]).text);
        print_message("%-14s %.1e\n", families[i], error);
        // rope_freqs differs in its last bit, and so may everything behind it.
        const double most = strcmp(families[i], "llama32") == 0 ? 1e-6 : 0;
        assert_true(error <= most);
    }
}

static void same_ids(const qn_tokenizer *a, const qn_tokenizer *b, const char *text, size_t size) {
    const qn_tokenize_opts opts = {.special = true, .add_ends = true};
    qn_err err;
    int32_t *got, *want;
    size_t n_got, n_want;
    ASSERT_OK(qn_tokenize(&got, &n_got, a, text, size, &opts, &err));
    ASSERT_OK(qn_tokenize(&want, &n_want, b, text, size, &opts, &err));
    if (n_got != n_want || memcmp(got, want, n_got * sizeof *got) != 0)
        fail_msg("'%s': other ids (%zu and %zu)", text, n_got, n_want);
    qn_free(got);
    qn_free(want);
}

static void text_becomes_the_same_tokens(void **state) {
    static const char *const texts[] = {"Hello, world!",
                                        "  two  spaces\n\nand lines ",
                                        "12345 67",
                                        "<|im_start|>user\nhi<|im_end|>",
                                        "na\xc3\xafve \xe2\x82\xac \xf0\x9f\x98\x80",
                                        "<start_of_turn>model",
                                        "don't I'LL",
                                        ""};
    const path_name out = in_folder(state, "out.gguf");
    for (size_t i = 0; i < N_FAMILIES; i++) {
        qn_err err;
        qn_tokenizer *got, *want;
        convert(mini(families[i]).text, out.text, NULL);
        ASSERT_OK(qn_tokenizer_open(&got, out.text, &err));
        ASSERT_OK(qn_tokenizer_open(&want, mini(families[i]).text, &err));
        for (size_t t = 0; t < sizeof texts / sizeof *texts; t++)
            same_ids(got, want, texts[t], strlen(texts[t]));
        const qn_tokenizer_info a = qn_tokenizer_get_info(got), b = qn_tokenizer_get_info(want);
        assert_int_equal(a.bos, b.bos);
        assert_int_equal(a.eos, b.eos);
        assert_int_equal(a.add_bos, b.add_bos);
        qn_tokenizer_close(got);
        qn_tokenizer_close(want);
    }
}

// --- types and forms of input --------------------------------------------------------------------

static const char *type_of(const qn_source *source, const char *name) {
    const qn_tensor *t = qn_source_find_tensor(source, name);
    return t ? qn_type_get(t->type)->name : "none";
}

static void every_type_is_written(void **state) {
    static const struct {
        const char *type;
        int64_t file_type;
        double most; // error of the logits against bfloat16, which all but Q8_0 hold exactly
    } rows[] = {{"F32", 0, 0}, {"bf16", 32, 0}, {"F16", 1, 1e-3}, {"Q8_0", 7, 0.1}};
    const path_name out = in_folder(state, "out.gguf");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        convert(mini("qwen3").text, out.text, rows[i].type);
        qn_source *source = open_well(out.text);
        qn_type type;
        assert_true(qn_type_from_name(&type, rows[i].type));
        assert_string_equal(type_of(source, "blk.1.ffn_up.weight"), qn_type_get(type)->name);
        assert_string_equal(type_of(source, "token_embd.weight"), qn_type_get(type)->name);
        assert_string_equal(type_of(source, "blk.1.attn_q_norm.weight"), "F32");
        assert_int_equal(qn_source_find_key(source, "general.file_type")->as.i, rows[i].file_type);
        qn_source_close(source);
        const double error = logits_differ(out.text, fixture("qwen3").text);
        print_message("%-5s %.1e\n", rows[i].type, error);
        assert_true(error <= rows[i].most);
        assert_true(rows[i].most == 0 || error > 0);
    }
}

static void rows_without_whole_blocks_fall_back(void **state) {
    const path_name out = in_folder(state, "out.gguf");
    convert(mini("qwen35_moe").text, out.text, "Q8_0"); // experts have 48 columns
    qn_source *source = open_well(out.text);
    assert_string_equal(type_of(source, "blk.0.ffn_down_exps.weight"), "F16");
    assert_string_equal(type_of(source, "blk.0.ffn_up_exps.weight"), "Q8_0");
    assert_string_equal(type_of(source, "blk.0.ffn_gate_inp.weight"), "F32");
    assert_string_equal(type_of(source, "blk.0.ffn_gate_inp_shexp.weight"), "F32");
    assert_string_equal(type_of(source, "blk.0.ssm_conv1d.weight"), "F32");
    qn_source_close(source);
}

// The tokenizer files of a fixture, beside a checkpoint that was written again.
static void copy_companions(void *const *state, const char *family) {
    static const char *const names[] = {"tokenizer.json",        "tokenizer.model",
                                        "tokenizer_config.json", "generation_config.json",
                                        "chat_template.jinja",   "preprocessor_config.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        qn_err err;
        char *bytes, from[1024];
        size_t size;
        snprintf(from, sizeof from, "%s/%s", mini(family).text, names[i]);
        if (!qn_path_is_file(from)) continue;
        ASSERT_OK(qn_file_load(&bytes, &size, from, 1 << 24, &err));
        put_file(state, names[i], bytes, size);
        qn_free(bytes);
    }
}

// The test's folder becomes this checkpoint, changed, in `n` shards.
static void write_checkpoint(void *const *state, const char *family, const char *edits, int n) {
    model_file *m = model_load(mini(family).text);
    model_edit(m, edits);
    model_write_checkpoint(m, *state, n);
    model_free(m);
    copy_companions(state, family);
}

static void shards_are_read(void **state) {
    const path_name out = in_folder(state, "out.gguf");
    write_checkpoint(state, "qwen35_vl", "", 3);
    convert(*state, out.text, NULL);
    qn_source *got = open_well(out.text), *want = open_well(fixture("qwen35_vl").text);
    compare_tensors(got, want);
    qn_source_close(got);
    qn_source_close(want);
}

// Every number in float32: norms, routers and convolutions come out the same, matrices as float32.
static void float32_checkpoints_stay_float32(void **state) {
    const path_name out = in_folder(state, "out.gguf");
    write_checkpoint(state, "qwen35", "type *weight F32", 1);
    convert(*state, out.text, NULL);
    qn_source *source = open_well(out.text);
    assert_string_equal(type_of(source, "blk.0.attn_qkv.weight"), "F32");
    assert_int_equal(qn_source_find_key(source, "general.file_type")->as.i, 0);
    qn_source_close(source);
    assert_true(logits_differ(out.text, fixture("qwen35").text) == 0);
    convert(*state, out.text, "BF16");
    source = open_well(out.text);
    qn_source *want = open_well(fixture("qwen35").text);
    compare_tensors(source, want);
    qn_source_close(source);
    qn_source_close(want);
}

// Biases of llama are ordered as their rows are, and rope that turns only a part of a head too.
static void llama_orders_only_what_rope_turns(void **state) {
    const path_name out = in_folder(state, "out.gguf");
    model_file *m = model_load(mini("llama_untied").text);
    float bias[64];
    for (int i = 0; i < 64; i++) bias[i] = (float)i / 16;
    model_edit(m, "set rope_parameters.partial_rotary_factor 0.5");
    for (int layer = 0; layer < 2; layer++) {
        char name[64];
        snprintf(name, sizeof name, "model.layers.%d.self_attn.k_proj.bias", layer);
        model_add(m, name, QN_TYPE_F32, (const int64_t[]){64}, 1, bias);
    }
    model_write_checkpoint(m, *state, 1);
    model_free(m);
    copy_companions(state, "llama_untied");
    convert(*state, out.text, NULL);
    qn_source *source = open_well(out.text);
    const qn_tensor *t = qn_source_find_tensor(source, "blk.1.attn_k.bias");
    float *got = read_tensor(source, t);
    for (int i = 0; i < 64; i++) {
        const int head = i / 16, at = i % 16; // heads of 16, of which 8 turn
        const int from = at < 8 ? head * 16 + at % 2 * 4 + at / 2 : i;
        assert_true(got[i] == (float)from / 16);
    }
    assert_int_equal(qn_source_find_key(source, "llama.rope.dimension_count")->as.i, 8);
    free(got);
    qn_source_close(source);
    // The same sums in another order of the pairs.
    assert_true(logits_differ(out.text, *state) < 1e-6);
}

static int64_t number_key(const char *path, const char *name) {
    qn_source *source = open_well(path);
    const qn_key *key = qn_source_find_key(source, name);
    const int64_t value = !key ? -1 : key->kind == QN_KEY_ARRAY ? (int64_t)key->n : key->as.i;
    qn_source_close(source);
    return value;
}

// -exp(A_log) is rounded once: the float nearest to the true value, on every machine.
static void decay_is_rounded_once(void **state) {
    enum { HEADS = 4, ROUNDS = 50 };
    static const char name[] = "model.layers.0.linear_attn.A_log";
    const path_name out = in_folder(state, "out.gguf");
    model_file *m = model_load(TEST_DATA "/mini/qwen35");
    model_edit(m, "type *.A_log F32");
    copy_companions(state, "qwen35");
    for (int round = 0; round < ROUNDS; round++) {
        float given[HEADS];
        for (int i = 0; i < HEADS; i++) given[i] = -6.0f + 0.061803f * (float)(round * HEADS + i);
        memcpy(model_find(m, name)->data, given, sizeof given);
        model_write_checkpoint(m, *state, 1);
        convert(*state, out.text, NULL);
        qn_source *source = open_well(out.text);
        float *got = read_tensor(source, qn_source_find_tensor(source, "blk.0.ssm_a"));
        qn_source_close(source);
        for (int i = 0; i < HEADS; i++) { // heads 0, 2 of the first group stand first
            const float want = (float)-expl((long double)given[i % 2 * 2 + i / 2]);
            if (got[i] != want) fail_msg("head %d: %a, want %a", i, (double)got[i], (double)want);
        }
        free(got);
    }
    model_free(m);
}

static void unusual_layers_are_stated(void **state) {
    const path_name out = in_folder(state, "out.gguf");
    write_checkpoint(state, "gemma3",
                     "set layer_types [\"sliding_attention\", \"sliding_attention\", "
                     "\"full_attention\", \"sliding_attention\", \"sliding_attention\", "
                     "\"full_attention\"]",
                     1);
    convert(*state, out.text, NULL);
    assert_int_equal(number_key(out.text, "gemma3.attention.sliding_window_pattern"), 3);
    assert_true(logits_differ(out.text, *state) == 0);
    assert_true(logits_differ(out.text, fixture("gemma3").text) > 1e-3);
    // An interval that the layers do not follow: a flag for each, the prediction layer's too.
    write_checkpoint(state, "qwen35", "set full_attention_interval 2", 1);
    convert(*state, out.text, NULL);
    assert_int_equal(number_key(out.text, "qwen35.attention.recurrent_layers"), 5);
    assert_true(logits_differ(out.text, fixture("qwen35").text) == 0);
    // Without sections, pairs go round; the text is the same.
    write_checkpoint(state, "qwen35", "unset rope_parameters.mrope_section", 1);
    convert(*state, out.text, NULL);
    assert_int_equal(number_key(out.text, "qwen35.rope.dimension_sections"), 4);
    assert_true(logits_differ(out.text, fixture("qwen35").text) == 0);
}

// --- what is refused -----------------------------------------------------------------------------

static void expect_refusal(void *const *state, qn_status want, const char *part) {
    qn_err err = {0};
    const int n_files = count_files(state);
    ASSERT_FAILS(qn_convert(*state, in_folder(state, "out.gguf").text, NULL, &err), want, part);
    assert_int_equal(count_files(state), n_files);
}

static void what_gguf_cannot_say_is_refused(void **state) {
    static const struct {
        const char *family, *edits;
        qn_status status;
        const char *part;
    } rows[] = {
        {"gemma2_scalar", "", QN_UNSUPPORTED, "query_pre_attn_scalar: 24"},
        {"gemma3", "set query_pre_attn_scalar 20", QN_UNSUPPORTED, "query_pre_attn_scalar: 20"},
        {"gemma2", "copy model.embed_tokens.weight lm_head.weight; set tie_word_embeddings false",
         QN_UNSUPPORTED, "tie_word_embeddings: false"},
        {"gemma2", "set attn_logit_softcapping null", QN_UNSUPPORTED, "attn_logit_softcapping: 0"},
        {"gemma3", "set attn_logit_softcapping 50.0", QN_UNSUPPORTED, "attn_logit_softcapping: 50"},
        {"gemma2",
         "set layer_types [\"full_attention\", \"full_attention\", \"sliding_attention\", "
         "\"full_attention\"]",
         QN_UNSUPPORTED, "layer_types"},
        {"gemma3",
         "set rope_parameters.sliding_attention.rope_type \"linear\"; set "
         "rope_parameters.sliding_attention.factor 2.0",
         QN_UNSUPPORTED, "rope scaling 'linear'"},
        {"qwen3_moe", "set norm_topk_prob false", QN_UNSUPPORTED, "norm_topk_prob: false"},
        {"qwen3",
         "set sliding_window 32; set use_sliding_window true; set layer_types [\"full_attention\", "
         "\"sliding_attention\"]",
         QN_UNSUPPORTED, "sliding_window: 32 in layer 1"},
        {"qwen3", "set rope_parameters.rope_type \"llama3\"; set rope_parameters.factor 8.0",
         QN_UNSUPPORTED, "rope scaling 'llama3'"},
        {"qwen35_vl", "set vision_config.deepstack_visual_indexes [1]", QN_UNSUPPORTED,
         "deepstack_visual_indexes: 1"},
        {"qwen35_vl", "set vision_config.hidden_act \"silu\"", QN_UNSUPPORTED, "'silu'"},
        {"qwen35_vl", "set vision_config.num_position_embeddings 63", QN_FORMAT, "63 is no square"},
        {"qwen35_vl", "set vision_config.num_heads 5", QN_FORMAT,
         "num_heads: 5 does not divide the width 64"},
        {"qwen35_vl", "set vision_config.depth 1", QN_FORMAT,
         "has no place in a vision tower of vision_config.depth 1"},
        {"qwen35_vl", "copy model.visual.merger.norm.bias model.visual.extra.bias", QN_FORMAT,
         "tensor model.visual.extra.bias has no place"},
        {"llama32", "set rope_parameters.factor 1e-60", QN_FORMAT, "rope scaling factor 1e-60"},
        {"llama32", "set rope_parameters.factor 1e60", QN_FORMAT, "rope scaling factor 1e+60"},
        {"qwen35_vl", "drop model.visual.merger.norm.bias", QN_FORMAT,
         "model.visual.merger.norm.bias is missing"},
        {"qwen35_vl", "shape model.visual.patch_embed.proj.weight 64 3 1 16 16", QN_FORMAT,
         "(64, 3, 1, 16"},
        {"qwen3", "drop model.layers.1.mlp.up_proj.weight", QN_FORMAT,
         "model.layers.1.mlp.up_proj.weight is missing"},
        {"qwen3", "set model_type \"gpt9\"", QN_UNSUPPORTED, "unknown architecture 'gpt9'"},
        {"qwen3", "set vocab_size 511", QN_FORMAT, "511"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        print_message("%s: %s\n", rows[i].family, rows[i].edits);
        write_checkpoint(state, rows[i].family, rows[i].edits, 1);
        expect_refusal(state, rows[i].status, rows[i].part);
    }
}

static void pixels_are_divided_by_something(void **state) {
    static const struct {
        const char *text, *part;
    } rows[] = {
        {"{\"image_std\": [0.5, 0, 0.5]}", "image_std[1] is 0, want more than 0"},
        {"{\"image_std\": [0.5, 0.5, -1]}", "image_std[2] is -1"},
        {"{\"image_std\": [0.5, 0.5]}", "image_std is no list of 3 numbers"},
        {"{\"image_mean\": [0.5, \"a\", 1]}", "image_mean[1] is no number"},
    };
    write_checkpoint(state, "qwen35_vl", "", 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        put_text(state, "preprocessor_config.json", rows[i].text);
        expect_refusal(state, QN_FORMAT, rows[i].part);
    }
}

// A change of tokenizer.json by words: the first `from` becomes `to`.
static void edit_tokenizer(void *const *state, const char *from, const char *to) {
    qn_err err;
    char *text;
    size_t size;
    const path_name path = in_folder(state, "tokenizer.json");
    ASSERT_OK(qn_file_load(&text, &size, path.text, 1 << 24, &err));
    char *at = strstr(text, from);
    if (!at) fail_msg("no '%s' in tokenizer.json", from);
    gguf_bytes all = {0};
    gguf_put(&all, text, (size_t)(at - text));
    gguf_put(&all, to, strlen(to));
    gguf_put(&all, at + strlen(from), strlen(at + strlen(from)));
    gguf_save(path.text, all.data, all.size);
    free(all.data);
    qn_free(text);
}

static void tokenizers_that_gguf_cannot_say_are_refused(void **state) {
    static const struct {
        const char *from, *to, *part;
    } rows[] = {
        {"\\\\p{N}|", "\\\\p{N}{1,2}|", "pattern 'custom'"},
        {"\"ignore_merges\": false", "\"ignore_merges\": true", "ignore_merges true"},
        {"\"add_prefix_space\": false", "\"add_prefix_space\": true", "2 steps"},
        {"\"lstrip\": false", "\"lstrip\": true", "added token '<pad>'"},
        {"\"normalizer\": null", "\"normalizer\": {\"type\": \"NFKC\"}", "normalizer 0 is not NFC"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        write_checkpoint(state, "qwen3", "", 1);
        edit_tokenizer(state, rows[i].from, rows[i].to);
        expect_refusal(state, QN_UNSUPPORTED, rows[i].part);
    }
    write_checkpoint(state, "qwen3", "", 1);
    remove(in_folder(state, "tokenizer.json").text);
    expect_refusal(state, QN_IO, "no tokenizer.json");
    write_checkpoint(state, "qwen3", "", 1);
    edit_tokenizer(state, "\"id\": 511", "\"id\": 512");
    expect_refusal(state, QN_FORMAT, "513 tokens, the embedding 512 rows");
}

// What Llama 3 has: another pattern, whole words before merges, a token in front.
static void llama_patterns_are_named(void **state) {
    const path_name out = in_folder(state, "out.gguf");
    write_checkpoint(state, "llama32", "", 1);
    edit_tokenizer(state, "\\\\p{N}|", "\\\\p{N}{1,3}|");
    convert(*state, out.text, NULL);
    qn_source *source = open_well(out.text);
    assert_string_equal(qn_source_find_key(source, "tokenizer.ggml.pre")->as.s.data, "dbrx");
    assert_null(qn_source_find_key(source, "tokenizer.ggml.add_bos_token"));
    qn_source_close(source);
    edit_tokenizer(state, "\"ignore_merges\": false", "\"ignore_merges\": true");
    convert(*state, out.text, NULL);
    source = open_well(out.text);
    assert_string_equal(qn_source_find_key(source, "tokenizer.ggml.pre")->as.s.data, "llama-bpe");
    // A reader would add the beginning token of itself.
    assert_false(qn_source_find_key(source, "tokenizer.ggml.add_bos_token")->as.b);
    qn_source_close(source);
}

// A tokenizer.json that says what mini/gemma's tokenizer.model does, in the form that Gemma has;
// `other` stands in place of token 300.
static void put_gemma_json(void *const *state, const char *other) {
    qn_err err;
    qn_tokenizer *tokenizer;
    ASSERT_OK(qn_tokenizer_open(&tokenizer, in_folder(state, "tokenizer.model").text, &err));
    json_t *vocab = json_object();
    for (int32_t id = 0; id < 512; id++) {
        const char *piece = id == 300 ? other : qn_tokenizer_piece(tokenizer, id, NULL);
        if (!piece) piece = qn_tokenizer_piece(tokenizer, id, NULL);
        json_object_set_new(vocab, piece, json_integer(id));
    }
    json_t *all = json_pack(
        "{s:o, s:[{s:i, s:s, s:b}], s:{s:s, s:[{s:{s:s}}, {s:{}}], s:{s:{s:[i]}}}}", "model",
        json_pack("{s:s, s:b, s:o, s:[]}", "type", "BPE", "byte_fallback", 1, "vocab", vocab,
                  "merges"),
        "added_tokens", "id", 4, "content", "<start_of_turn>", "special", 1, "post_processor",
        "type", "TemplateProcessing", "single", "SpecialToken", "id", "<s>", "Sequence",
        "special_tokens", "<s>", "ids", 2);
    assert_non_null(all);
    assert_int_equal(json_dump_file(all, in_folder(state, "tokenizer.json").text, 0), 0);
    json_decref(all);
    qn_tokenizer_close(tokenizer);
}

// Where both files are there, pieces and scores come from one, added tokens and ends from the
// other.
static void gemma_takes_from_both_files(void **state) {
    const path_name out = in_folder(state, "out.gguf");
    write_checkpoint(state, "gemma", "", 1);
    put_gemma_json(state, NULL);
    convert(*state, out.text, NULL);
    qn_source *got = open_well(out.text), *want = open_well(fixture("gemma").text);
    const qn_key *types = qn_source_find_key(got, "tokenizer.ggml.token_type");
    assert_int_equal(qn_key_int_at(types, 4), 3);
    assert_int_equal(qn_key_int_at(types, 5), 4);
    assert_true(qn_source_find_key(got, "tokenizer.ggml.add_bos_token")->as.b);
    qn_key_info a = find_info(got, "tokenizer.ggml.scores"),
                b = find_info(want, "tokenizer.ggml.scores");
    assert_string_equal(a.value, b.value);
    qn_free(a.value);
    qn_free(b.value);
    qn_source_close(got);
    qn_source_close(want);
    qn_err err = {0};
    put_gemma_json(state, "something else");
    ASSERT_FAILS(qn_convert(*state, out.text, NULL, &err), QN_FORMAT,
                 "token 300 is 'something else'");
    put_gemma_json(state, NULL);
    remove(in_folder(state, "tokenizer.model").text);
    ASSERT_FAILS(qn_convert(*state, out.text, NULL, &err), QN_UNSUPPORTED, "tokenizer.model");
}

static void templates_come_from_where_they_are(void **state) {
    const path_name out = in_folder(state, "out.gguf");
    write_checkpoint(state, "qwen3", "", 1);
    remove(in_folder(state, "chat_template.jinja").text);
    put_text(state, "tokenizer_config.json",
             "{\"eos_token\": {\"content\": \"<|im_end|>\"}, \"chat_template\": [{\"name\": "
             "\"default\", "
             "\"template\": \"one\"}, {\"name\": \"tool_use\", \"template\": \"two\"}]}");
    convert(*state, out.text, NULL);
    qn_source *source = open_well(out.text);
    assert_string_equal(qn_source_find_key(source, "tokenizer.chat_template")->as.s.data, "one");
    assert_string_equal(qn_source_find_key(source, "tokenizer.chat_template.tool_use")->as.s.data,
                        "two");
    assert_int_equal(qn_source_find_key(source, "tokenizer.chat_templates")->n, 1);
    assert_int_equal(qn_source_find_key(source, "tokenizer.ggml.eos_token_id")->as.i, 4);
    assert_int_equal(qn_source_find_key(source, "tokenizer.ggml.bos_token_id")->as.i, 1);
    qn_source_close(source);
    put_text(state, "chat_template.json", "{\"chat_template\": \"three\"}");
    convert(*state, out.text, NULL);
    source = open_well(out.text);
    assert_string_equal(qn_source_find_key(source, "tokenizer.chat_template")->as.s.data, "three");
    qn_source_close(source);
}

// A vocabulary smaller than the embedding is filled up with tokens that nothing encodes to.
static void missing_tokens_are_unused(void **state) {
    const path_name out = in_folder(state, "out.gguf");
    write_checkpoint(state, "qwen3", "", 1);
    edit_tokenizer(state, "\"id\": 511", "\"id\": 499");
    edit_tokenizer(state, "<|extra_7|>", "<gap>");
    qn_err err = {0};
    // 499 has a piece in the vocabulary already: refused by the tokenizer itself.
    ASSERT_FAILS(qn_convert(*state, out.text, NULL, &err), QN_FORMAT, "499");
    write_checkpoint(state, "qwen3",
                     "set vocab_size 520; shape model.embed_tokens.weight 520 64; "
                     "shape lm_head.weight 520 64",
                     1);
    convert(*state, out.text, NULL);
    qn_source *source = open_well(out.text);
    const qn_key *tokens = qn_source_find_key(source, "tokenizer.ggml.tokens");
    const qn_key *types = qn_source_find_key(source, "tokenizer.ggml.token_type");
    assert_int_equal(tokens->n, 520);
    assert_string_equal(qn_key_string_at(tokens, 519).data, "[PAD519]");
    assert_int_equal(qn_key_int_at(types, 519), 5);
    qn_source_close(source);
}

// --- files ---------------------------------------------------------------------------------------

static void the_wrong_places_are_refused(void **state) {
    qn_err err = {0};
    write_checkpoint(state, "qwen3", "", 1);
    const char *folder = *state;
    const int n_files = count_files(state);
    const path_name own = in_folder(state, "model.safetensors");
    struct stat before, after;
    assert_int_equal(stat(own.text, &before), 0);
    ASSERT_FAILS(qn_convert(folder, own.text, NULL, &err), QN_ARGUMENT, "is no GGUF file");
    ASSERT_FAILS(qn_convert(own.text, own.text, NULL, &err), QN_ARGUMENT, "is no GGUF file");
    ASSERT_FAILS(qn_convert(folder, in_folder(state, "config.json").text, NULL, &err), QN_ARGUMENT,
                 "is no GGUF file");
    assert_int_equal(stat(own.text, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    assert_int_equal(before.st_size, after.st_size);
    ASSERT_FAILS(qn_convert(folder, folder, NULL, &err), QN_ARGUMENT, "is a folder");
    ASSERT_FAILS(qn_convert(folder, in_folder(state, "nowhere/out.gguf").text, NULL, &err), QN_IO,
                 "/nowhere/out.gguf");
    ASSERT_FAILS(qn_convert(fixture("qwen3").text, in_folder(state, "a").text, NULL, &err),
                 QN_ARGUMENT, "is GGUF already");
    ASSERT_FAILS(qn_convert(folder, NULL, NULL, &err), QN_ARGUMENT, "NULL");
    const qn_convert_opts q4 = {.type = "Q4_K_M"};
    ASSERT_FAILS(qn_convert(folder, in_folder(state, "a").text, &q4, &err), QN_ARGUMENT,
                 "'Q4_K_M'");
    assert_int_equal(count_files(state), n_files);
}

typedef struct stop_at {
    int64_t at, last, total;
} stop_at;

static bool stop(void *arg, int64_t done, int64_t total) {
    stop_at *s = arg;
    assert_true(done >= s->last && done <= total);
    s->last = done;
    s->total = total;
    return done < s->at;
}

static void put_old(void *const *state) {
    put_text(state, "out.gguf", "GGUF, an older one");
    put_text(state, "mmproj-out.gguf", "GGUF, an older one");
}

static void assert_old(void *const *state, const char *name) {
    qn_err err;
    char *text;
    size_t size;
    ASSERT_OK(qn_file_load(&text, &size, in_folder(state, name).text, 1 << 24, &err));
    assert_string_equal(text, "GGUF, an older one");
    qn_free(text);
}

static void a_stopped_conversion_leaves_the_old_files(void **state) {
    qn_err err = {0};
    const path_name out = in_folder(state, "out.gguf");
    stop_at s = {.at = INT64_MAX};
    const qn_convert_opts opts = {.progress = stop, .progress_arg = &s};
    ASSERT_OK(qn_convert(mini("qwen35_vl").text, out.text, &opts, &err));
    assert_int_equal(s.last, s.total);
    const int64_t total = s.total;
    for (int64_t at = 1; at <= total; at += total / 7) {
        put_old(state);
        s = (stop_at){.at = at};
        ASSERT_FAILS(qn_convert(mini("qwen35_vl").text, out.text, &opts, &err), QN_STOPPED,
                     "stopped at");
        assert_old(state, "out.gguf");
        assert_old(state, "mmproj-out.gguf");
        assert_int_equal(count_files(state), 2);
    }
}

// A disk that is full: the limit on the size of files stands for it.
static void a_failed_write_leaves_the_old_files(void **state) {
    qn_err err = {0};
    struct rlimit old;
    getrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, SIG_IGN);
    const path_name out = in_folder(state, "out.gguf");
    struct stat text, tower;
    // A text that is larger than its tower.
    write_checkpoint(state, "qwen35_vl",
                     "set text_config.vocab_size 4096; shape lm_head.weight 4096 64; shape "
                     "model.language_model.embed_tokens.weight 4096 64",
                     1);
    ASSERT_OK(qn_convert(*state, out.text, NULL, &err));
    assert_int_equal(stat(out.text, &text), 0);
    assert_int_equal(stat(in_folder(state, "mmproj-out.gguf").text, &tower), 0);
    assert_true(tower.st_size < text.st_size); // the last limit hits only one of the two
    const int n_files = count_files(state);
    const rlim_t limits[] = {4096, (rlim_t)tower.st_size - 1, (rlim_t)tower.st_size,
                             (rlim_t)text.st_size - 1};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        put_old(state);
        const struct rlimit limit = {limits[i], old.rlim_max};
        setrlimit(RLIMIT_FSIZE, &limit);
        const qn_status status = qn_convert(*state, out.text, NULL, &err);
        setrlimit(RLIMIT_FSIZE, &old);
        assert_int_equal(status, QN_IO);
        assert_old(state, "out.gguf");
        assert_old(state, "mmproj-out.gguf");
        assert_int_equal(count_files(state), n_files);
    }
    signal(SIGXFSZ, SIG_DFL);
}

static void numbers_that_do_not_fit_are_refused(void **state) {
    static const char up[] = "model.layers.0.mlp.up_proj.weight";
    static const struct {
        const char *value, *type;
        qn_status status; // QN_OK: it fits
        const char *part;
    } rows[] = {
        {"1e6", "F16", QN_LIMIT, "row 0 has values up to 1e+06, which do not fit in F16"},
        {"8e4", "F16", QN_LIMIT, "row 0 has values up to 80000, which do not fit in F16"},
        {"65520", "F16", QN_LIMIT, "row 0 has values up to 65520"},
        {"65504", "F16", QN_OK, NULL},
        {"1e9", "Q8_0", QN_LIMIT, "row 0 has values up to 1e+09, which do not fit in Q8_0"},
        {"9e6", "Q8_0", QN_LIMIT, "row 0 has values up to 9e+06"}, // scales end at 8.3e6
        {"8e6", "Q8_0", QN_OK, NULL},
        {"1e9", "BF16", QN_OK, NULL},
        {"3.4e38", "BF16", QN_LIMIT, "which do not fit in BF16"}, // would be rounded to infinity
        {"3.4e38", NULL, QN_OK, NULL},
        {"inf", "Q8_0", QN_FORMAT, "value inf at row 0, column 0"},
        {"nan", "Q8_0", QN_FORMAT, "value nan at row 0, column 0"},
        {"nan", "F16", QN_FORMAT, "value nan at row 0, column 0"},
        {"-inf", NULL, QN_FORMAT, "value -inf at row 0, column 0"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        qn_err err = {0};
        char edits[256];
        const path_name out = in_folder(state, "out.gguf");
        const qn_convert_opts opts = {.type = rows[i].type};
        snprintf(edits, sizeof edits, "type %s F32; fill %s %s", up, up, rows[i].value);
        print_message("%s: %s\n", rows[i].type ? rows[i].type : "as it is", rows[i].value);
        write_checkpoint(state, "qwen3", edits, 1);
        if (rows[i].status) {
            ASSERT_FAILS(qn_convert(*state, out.text, &opts, &err), rows[i].status, rows[i].part);
            assert_true(starts_with(err.message, "blk.0.ffn_up.weight: "));
        } else {
            ASSERT_OK(qn_convert(*state, out.text, &opts, &err));
        }
    }
}

// The one broken number among good ones, in a matrix and in a vector that are copied as they are.
static void the_broken_number_is_named(void **state) {
    static const struct {
        const char *tensor, *want;
        int64_t at;
    } rows[] = {{"model.layers.1.mlp.up_proj.weight",
                 "blk.1.ffn_up.weight: value nan at row 2, column 3", 2 * 64 + 3},
                {"model.norm.weight", "output_norm.weight: value nan at row 0, column 5", 5}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        qn_err err = {0};
        model_file *m = model_load(mini("qwen3").text);
        model_edit(m, "type *weight F32");
        const float broken = NAN;
        memcpy(model_find(m, rows[i].tensor)->data + rows[i].at * 4, &broken, sizeof broken);
        model_write_checkpoint(m, *state, 1);
        model_free(m);
        copy_companions(state, "qwen3");
        ASSERT_FAILS(qn_convert(*state, in_folder(state, "out.gguf").text, NULL, &err), QN_FORMAT,
                     rows[i].want);
    }
}

// --- published tokenizers ------------------------------------------------------------------------

// The tokenizer of tests/data/npm/NAME, beside some checkpoint; false if it is not installed.
static bool put_real(void *const *state, const char *name) {
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json"};
    write_checkpoint(state, "qwen3", "", 1);
    for (int i = 0; i < 2; i++) {
        qn_err err;
        char path[1024], *bytes;
        size_t size;
        snprintf(path, sizeof path, "%s/npm/%s/%s", TEST_DATA, name, names[i]);
        if (!qn_path_is_file(path)) return false;
        ASSERT_OK(qn_file_load(&bytes, &size, path, 1 << 28, &err));
        put_file(state, names[i], bytes, size);
        qn_free(bytes);
    }
    return true;
}

static void export_real(void *const *state, const char *out, int64_t n_vocab) {
    qn_err err;
    qn_gguf_writer *writer = NULL;
    qn_source *source = open_well(*state);
    ASSERT_OK(qn_gguf_writer_create(&writer, &err));
    const qn_tokenizer_export export = {.to = writer, .source = source, .n_vocab = n_vocab};
    ASSERT_OK(qn_tokenizer_export_keys(&export, &err));
    ASSERT_OK(qn_gguf_begin(writer, out, &err));
    ASSERT_OK(qn_gguf_finish(writer, &err));
    qn_gguf_writer_destroy(writer);
    qn_source_close(source);
}

static void check_texts(const char *got_path, const char *want_path, const char *name) {
    qn_err err;
    qn_tokenizer *got, *want;
    json_error_t why;
    json_t *all = json_load_file(TEST_DATA "/tokenizers/expected.json", JSON_ALLOW_NUL, &why);
    const json_t *cases = json_object_get(all, name);
    assert_int_equal(json_array_size(cases), 253);
    ASSERT_OK(qn_tokenizer_open(&got, got_path, &err));
    ASSERT_OK(qn_tokenizer_open(&want, want_path, &err));
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *text = json_object_get(json_array_get(cases, i), "text");
        // GGUF has no normaliser: text with combining marks comes out as it is written.
        if (strcmp(name, "qwen3") == 0 && strstr(json_string_value(text), "\xcc")) continue;
        same_ids(got, want, json_string_value(text), json_string_length(text));
    }
    qn_tokenizer_close(got);
    qn_tokenizer_close(want);
    json_decref(all);
}

static void published_tokenizers_go_through(void **state) {
    static const struct {
        const char *name, *pre;
        int64_t n_vocab;
    } rows[] = {{"qwen3", "qwen2", 151936}, {"llama3_2", "llama-bpe", 128256}};
    const path_name out = in_folder(state, "out.gguf");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!put_real(state, rows[i].name)) {
            print_message("skipped: tokenizer %s is not installed (tools/fetch_tokenizers.sh)\n",
                          rows[i].name);
            skip();
        }
        export_real(state, out.text, rows[i].n_vocab);
        qn_source *source = open_well(out.text);
        assert_string_equal(qn_source_find_key(source, "tokenizer.ggml.pre")->as.s.data,
                            rows[i].pre);
        qn_source_close(source);
        check_texts(out.text, in_folder(state, "tokenizer.json").text, rows[i].name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(families_equal_their_fixtures),
        FOLDER_TEST(logits_equal_those_of_the_fixtures),
        FOLDER_TEST(text_becomes_the_same_tokens),
        FOLDER_TEST(every_type_is_written),
        FOLDER_TEST(rows_without_whole_blocks_fall_back),
        FOLDER_TEST(shards_are_read),
        FOLDER_TEST(float32_checkpoints_stay_float32),
        FOLDER_TEST(llama_orders_only_what_rope_turns),
        FOLDER_TEST(decay_is_rounded_once),
        FOLDER_TEST(unusual_layers_are_stated),
        FOLDER_TEST(what_gguf_cannot_say_is_refused),
        FOLDER_TEST(pixels_are_divided_by_something),
        FOLDER_TEST(tokenizers_that_gguf_cannot_say_are_refused),
        FOLDER_TEST(llama_patterns_are_named),
        FOLDER_TEST(gemma_takes_from_both_files),
        FOLDER_TEST(templates_come_from_where_they_are),
        FOLDER_TEST(missing_tokens_are_unused),
        FOLDER_TEST(the_wrong_places_are_refused),
        FOLDER_TEST(a_stopped_conversion_leaves_the_old_files),
        FOLDER_TEST(a_failed_write_leaves_the_old_files),
        FOLDER_TEST(numbers_that_do_not_fit_are_refused),
        FOLDER_TEST(the_broken_number_is_named),
        FOLDER_TEST(published_tokenizers_go_through),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
