// Converting checkpoints: every family against the GGUF file that llama.cpp's converter made of the
// same checkpoint, and the types and forms that checkpoints have.
#include "testing.h"

#include "convert_rig.h"
#include "golden.h"
#include "model_writer.h"

#include <math.h>

// --- against the fixtures ------------------------------------------------------------------------

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

// --- logits --------------------------------------------------------------------------------------

static void logits_equal_those_of_the_fixtures(void **state) {
    const path_name out = in_folder(state, "out.gguf");
    for (size_t i = 0; i < N_FAMILIES; i++) {
        convert(mini(families[i]).text, out.text, NULL);
        const double error = logits_differ(out.text, fixture(families[i]).text);
        print_message("%-14s %.1e\n", families[i], error);
        // rope_freqs differs in its last bit, and so may everything behind it.
        const double max = strcmp(families[i], "llama32") == 0 ? 1e-6 : 0;
        assert_true(error <= max);
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
        double max; // error of the logits against bfloat16, which all but Q8_0 hold exactly
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
        assert_true(error <= rows[i].max);
        assert_true(rows[i].max == 0 || error > 0);
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

// Counts warnings that hold the words in question.
typedef struct heard {
    const char *part;
    int n;
} heard;

static void hear(void *arg, qn_log_level level, const char *line) {
    heard *h = arg;
    if (level == QN_LOG_WARNING && strstr(line, h->part)) h->n++;
}

// A window is in the file, by layer where only some have one, and other readers are warned of.
static void windows_are_written(void **state) {
    static const struct {
        const char *family, *edits;
        int64_t window, layers; // in the file; -1: no such key
    } rows[] = {
        {"llama_untied", "set model_type \"mistral\"; set sliding_window 8", 8, -1},
        {"llama_untied", "set model_type \"mistral\"; set sliding_window 4096", -1, -1},
        {"qwen3",
         "set sliding_window 8; set use_sliding_window true; set layer_types [\"full_attention\", "
         "\"sliding_attention\"]",
         8, 2},
    };
    const path_name out = in_folder(state, "out.gguf");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char key[64];
        qn_err err;
        heard h = {.part = "window is shorter than the context"};
        const char *arch = i < 2 ? "llama" : "qwen3";
        write_checkpoint(state, rows[i].family, rows[i].edits, 1);
        ASSERT_OK(qn_convert(*state, out.text,
                             &QN_INIT(qn_convert_opts, .log = hear, .log_arg = &h), &err));
        snprintf(key, sizeof key, "%s.attention.sliding_window", arch);
        assert_int_equal(number_key(out.text, key), rows[i].window);
        snprintf(key, sizeof key, "%s.attention.sliding_window_pattern", arch);
        assert_int_equal(number_key(out.text, key), rows[i].layers);
        assert_int_equal(h.n, rows[i].window > 0);
        assert_true(logits_differ(out.text, *state) < 1e-6);
    }
}

// Layers without experts among layers with them, and biases of Qwen3's attention.
static void dense_layers_and_biases_of_qwen3_are_kept(void **state) {
    static const int64_t dims[][2] = {{128, 64}, {128, 64}, {64, 128}};
    static const char *const parts[] = {"gate", "up", "down"}, *const heads[] = {"q", "k", "v",
                                                                                 "o"};
    static const int64_t widths[] = {64, 32, 32, 64};
    const path_name out = in_folder(state, "out.gguf");
    model_file *m = model_load(mini("qwen3_moe").text);
    float values[128 * 64];
    char name[80];
    for (int i = 0; i < 128 * 64; i++) values[i] = (float)(i * 37 % 101 - 50) / 512;
    model_edit(m, "set mlp_only_layers [0]; set attention_bias true; drop model.layers.0.mlp.*");
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "model.layers.0.mlp.%s_proj.weight", parts[i]);
        model_add(m, name, QN_TYPE_F32, dims[i], 2, values);
    }
    for (int i = 0; i < 8; i++) {
        snprintf(name, sizeof name, "model.layers.%d.self_attn.%s_proj.bias", i / 4, heads[i % 4]);
        model_add(m, name, QN_TYPE_F32, &widths[i % 4], 1, values);
    }
    model_write_checkpoint(m, *state, 1);
    model_free(m);
    copy_companions(state, "qwen3_moe");
    qn_err err;
    heard h = {.part = "some layers have no experts"};
    ASSERT_OK(
        qn_convert(*state, out.text, &QN_INIT(qn_convert_opts, .log = hear, .log_arg = &h), &err));
    assert_int_equal(h.n, 1);
    assert_true(logits_differ(out.text, *state) < 1e-6);
    qn_source *source = open_well(out.text);
    assert_non_null(qn_source_find_tensor(source, "blk.0.ffn_gate.weight"));
    assert_null(qn_source_find_tensor(source, "blk.0.ffn_gate_exps.weight"));
    assert_non_null(qn_source_find_tensor(source, "blk.1.ffn_gate_exps.weight"));
    assert_non_null(qn_source_find_tensor(source, "blk.1.attn_output.bias"));
    qn_source_close(source);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(families_equal_their_fixtures),
        FOLDER_TEST(logits_equal_those_of_the_fixtures),
        FOLDER_TEST(every_type_is_written),
        FOLDER_TEST(rows_without_whole_blocks_fall_back),
        FOLDER_TEST(shards_are_read),
        FOLDER_TEST(float32_checkpoints_stay_float32),
        FOLDER_TEST(llama_orders_only_what_rope_turns),
        FOLDER_TEST(windows_are_written),
        FOLDER_TEST(dense_layers_and_biases_of_qwen3_are_kept),
        FOLDER_TEST(decay_is_rounded_once),
        FOLDER_TEST(unusual_layers_are_stated),
    };
    return cmocka_run_group_tests_name("convert", tests, NULL, NULL);
}
