// Quantising: types and sizes of the files that llama.cpp's quantiser made of the same model, the
// errors of the weights and of the scores, and files that appear whole or not at all.
#include "testing.h"

#include "format_files.h"
#include "golden.h"
#include "model_writer.h"

#include "core/buf.h"
#include "core/file.h"
#include "make/mix.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>

static const char model_path[] = TEST_DATA "/k256/qwen3/qwen3-bf16.gguf";
static const char small_path[] = TEST_DATA "/mini/qwen3/qwen3-bf16.gguf";

// With a fixture of the same name.
static const char *const fixtures[] = {"Q2_K",   "Q3_K_M", "Q4_0", "IQ4_XS",
                                       "Q4_K_M", "Q5_K_M", "Q6_K"};
enum { N_FIXTURES = sizeof fixtures / sizeof *fixtures };

static path_name fixture(const char *type) {
    path_name path;
    snprintf(path.text, sizeof path.text, "%s/k256/qwen3/qwen3-%s.gguf", TEST_DATA, type);
    return path;
}

static void quantize(const char *in, const char *out, const char *type) {
    qn_err err = {0};
    const qn_quantize_opts opts = QN_INIT(qn_quantize_opts, .type = type);
    if (qn_quantize(in, out, &opts, &err)) fail_msg("%s as %s: %s", in, type, err.message);
}

static int count_files(void *const *state) {
    DIR *dir = opendir(*state);
    int n = -2; // itself and its parent
    for (struct dirent *e; (e = readdir(dir));) n++;
    closedir(dir);
    return n;
}

static const char *type_of(const qn_source *source, const char *name) {
    const qn_tensor *t = qn_source_find_tensor(source, name);
    return t ? qn_type_get(t->type)->name : "none";
}

static float *read_floats(const qn_source *source, const qn_tensor *t, int64_t *n) {
    qn_err err = {0};
    const qn_type_info *type = qn_type_get(t->type);
    void *packed = malloc((size_t)t->bytes);
    *n = t->bytes / type->bytes * type->block;
    float *values = malloc((size_t)*n * sizeof *values);
    ASSERT_OK(qn_source_read(source, t, 0, packed, (size_t)t->bytes, &err));
    type->unpack(values, packed, *n);
    free(packed);
    return values;
}

static void assert_same_bytes(const char *a, const char *b) {
    qn_err err = {0};
    char *x, *y;
    size_t n, m;
    ASSERT_OK(qn_file_load(&x, &n, a, 1 << 26, &err));
    ASSERT_OK(qn_file_load(&y, &m, b, 1 << 26, &err));
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    qn_free(x);
    qn_free(y);
}

// --- mixes ---------------------------------------------------------------------------------------

static void assert_same_keys(const qn_source *got, const qn_source *want) {
    assert_int_equal(qn_source_n_keys(got), qn_source_n_keys(want));
    for (size_t i = 0; i < qn_source_n_keys(want); i++) {
        qn_err err = {0};
        qn_key_info g = QN_INIT(qn_key_info), w = QN_INIT(qn_key_info);
        ASSERT_OK(qn_source_key_info(&g, got, i, SIZE_MAX, &err));
        ASSERT_OK(qn_source_key_info(&w, want, i, SIZE_MAX, &err));
        assert_string_equal(g.name, w.name);
        assert_string_equal(g.type, w.type);
        assert_string_equal(g.value, w.value);
        qn_free(g.value);
        qn_free(w.value);
    }
}

static void assert_same_types(const qn_source *got, const qn_source *want) {
    assert_int_equal(qn_source_n_tensors(got), qn_source_n_tensors(want));
    for (size_t i = 0; i < qn_source_n_tensors(want); i++) {
        const qn_tensor *g = qn_source_tensor(got, i), *w = qn_source_tensor(want, i);
        assert_string_equal(g->name.data, w->name.data);
        if (g->type != w->type)
            fail_msg("%s: %s, want %s", g->name.data, qn_type_get(g->type)->name,
                     qn_type_get(w->type)->name);
        assert_int_equal(g->offset, w->offset);
        assert_int_equal(g->n_dims, w->n_dims);
        assert_memory_equal(g->dims, w->dims, sizeof g->dims);
    }
}

static void files_are_as_the_fixtures(void **state) {
    const path_name out = in_folder(state, "out.gguf");
    for (size_t i = 0; i < N_FIXTURES; i++) {
        quantize(model_path, out.text, fixtures[i]);
        qn_source *got = open_well(out.text), *want = open_well(fixture(fixtures[i]).text);
        assert_same_keys(got, want);
        assert_same_types(got, want);
        assert_int_equal(qn_source_file_bytes(got), qn_source_file_bytes(want));
        qn_source_close(got);
        qn_source_close(want);
    }
}

// What llama.cpp documents for Llama 3.1 8B.
static void sizes_are_the_documented_ones(void **state) {
    (void)state;
    static const struct {
        const char *type;
        double bits;
    } rows[] = {{"Q2_K", 3.1593},   {"Q3_K_S", 3.6429}, {"Q3_K_M", 3.9960}, {"Q3_K_L", 4.2979},
                {"IQ4_XS", 4.4597}, {"IQ4_NL", 4.6818}, {"Q4_K_S", 4.6672}, {"Q4_K_M", 4.8944},
                {"Q5_K_S", 5.5704}, {"Q5_K_M", 5.7036}, {"Q6_K", 6.5633},   {"Q8_0", 8.5008},
                {"F16", 16.0005}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        qn_err err = {0};
        qn_synth_size size = QN_INIT(qn_synth_size);
        ASSERT_OK(qn_synth_measure(&size, "llama3.1-8b", rows[i].type, &err));
        const double bits = (double)size.tensor_bytes * 8 / (double)size.n_parameters;
        if (fabs(bits - rows[i].bits) > 0.00005)
            fail_msg("%s: %.5f bits per weight, want %.4f", rows[i].type, bits, rows[i].bits);
    }
}

// A model that the fixtures do not show, and the types of one kind of tensor in each layer.
typedef struct mix_case {
    const char *mix, *tensor;
    qn_mixer model;
    const char *types; // by the first letters of runs: "Q6_K*4 Q4_K*28"
} mix_case;

// "Q6_K*4 Q4_K*2" -> the type at place i.
static qn_type expected_type(const char *types, int64_t i) {
    char name[16];
    int n, used;
    for (; sscanf(types, " %15[^*]*%d%n", name, &n, &used) == 2; types += used, i -= n) {
        qn_type type;
        if (i < n) {
            assert_true(qn_type_from_name(&type, name));
            return type;
        }
    }
    fail_msg("no type for place %d", (int)i);
    return QN_TYPE_COUNT;
}

static void mixes_follow_the_rules(void **state) {
    (void)state;
    static const qn_mixer plain = {.n_layers = 32, .n_values = 32, .heads_per_kv = 1};
    static const qn_mixer shared = {.n_layers = 32, .n_values = 32, .heads_per_kv = 4};
    static const qn_mixer large = {.n_layers = 80, .n_values = 80, .heads_per_kv = 8};
    static const qn_mixer eight = {
        .n_layers = 32, .n_values = 32, .heads_per_kv = 4, .n_experts = 8};
    static const qn_mixer many = {
        .n_layers = 16, .n_values = 16, .heads_per_kv = 8, .n_experts = 128};
    static const qn_mixer important = {.n_layers = 32, .n_values = 32, .has_importance = true};
    static const qn_mixer pure = {.n_layers = 32, .n_values = 32, .is_pure = true};
    // First and last eighth, and every third between.
    static const char more_4_6[] = "Q6_K*4 Q4_K*2 Q6_K*1 Q4_K*2 Q6_K*1 Q4_K*2 Q6_K*1 Q4_K*2 Q6_K*1 "
                                   "Q4_K*2 Q6_K*1 Q4_K*2 Q6_K*1 Q4_K*2 Q6_K*1 Q4_K*2 Q6_K*5";
    const mix_case cases[] = {
        {"Q4_K_M", "attn_v", plain, more_4_6},
        {"Q4_K_M", "attn_qkv", plain, more_4_6},
        {"Q4_K_M", "ffn_down", plain, more_4_6},
        {"Q4_K_M", "attn_q", plain, "Q4_K*32"},
        {"Q4_K_M", "attn_output", plain, "Q4_K*32"},
        {"Q4_K_M", "ffn_down_exps", many,
         "Q6_K*2 Q4_K*2 Q6_K*1 Q4_K*2 Q6_K*1 Q4_K*2 Q6_K*1 Q4_K*2 Q6_K*3"},
        {"Q4_K_S", "attn_v", plain, "Q5_K*4 Q4_K*28"},
        {"Q4_K_S", "ffn_down", plain, "Q5_K*4 Q4_K*28"},
        {"Q5_K_S", "attn_v", plain, "Q5_K*32"},
        {"Q5_K_S", "ffn_down", plain, "Q5_K*32"},
        {"Q3_K_S", "attn_v", plain, "Q3_K*32"},
        {"Q3_K_S", "ffn_down", plain, "Q3_K*32"},
        {"Q3_K_M", "attn_v", plain, "Q5_K*2 Q4_K*30"},
        {"Q3_K_M", "ffn_down", plain, "Q5_K*2 Q4_K*30"},
        {"Q3_K_M", "attn_output", plain, "Q4_K*32"},
        {"Q3_K_L", "attn_v", plain, "Q5_K*32"},
        {"Q3_K_L", "ffn_down", plain, "Q5_K*32"},
        {"Q3_K_L", "attn_output", plain, "Q5_K*32"},
        {"Q3_K_L", "ffn_up", plain, "Q3_K*32"},
        {"Q2_K", "attn_v", plain, "Q3_K*32"},
        {"Q2_K", "attn_v", shared, "Q4_K*32"},
        {"Q2_K", "attn_k", shared, "Q2_K*32"},
        {"IQ4_XS", "attn_v", plain, "IQ4_XS*32"},
        {"IQ4_XS", "attn_v", shared, "Q5_K*32"},
        {"IQ4_XS", "ffn_down", plain, "Q5_K*4 IQ4_XS*28"},
        {"IQ4_XS", "ffn_down", important, "IQ4_XS*32"},
        {"IQ4_NL", "ffn_down", plain, "Q5_K*4 IQ4_NL*28"},
        {"Q4_0", "ffn_down", plain, "Q4_0*32"},
        {"Q4_0", "ffn_down", important, "Q4_1*4 Q4_0*28"},
        {"Q5_0", "ffn_down", important, "Q5_1*4 Q5_0*28"},
        {"Q4_1", "ffn_down", important, "Q4_1*32"},
        {"Q3_K_S", "attn_v", large, "Q5_K*80"},
        {"Q4_K_S", "attn_v", large, "Q5_K*80"},
        {"Q6_K", "attn_v", large, "Q6_K*80"},
        {"Q4_K_M", "attn_v", eight, "Q8_0*32"},
        {"Q4_K_M", "attn_k", eight, "Q8_0*32"},
        {"Q4_K_M", "attn_output", eight, "Q5_K*32"},
        {"Q3_K_L", "attn_output", eight, "Q3_K*32"},
        {"Q5_K_M", "attn_output", eight, "Q5_K*32"},
        {"BF16", "attn_v", eight, "BF16*32"},
        {"Q4_K_M", "attn_v", pure, "Q4_K*32"},
        {"q4_k", "attn_v", plain, more_4_6},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        qn_mixer mixer = cases[c].model;
        qn_err err = {0};
        ASSERT_OK(qn_mix_find(&mixer.mix, cases[c].mix, &err));
        mixer.has_output = true;
        for (int64_t i = 0; i < mixer.n_layers; i++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%d.%s.weight", (int)i, cases[c].tensor);
            const qn_tensor t = {.name = qn_str_of(name), .n_dims = 2, .dims = {256, 512}};
            qn_type wanted;
            assert_true(qn_mix_converts(&t));
            const qn_type got = qn_mixer_choose(&mixer, &t, &wanted);
            assert_int_equal(got, wanted);
            if (got != expected_type(cases[c].types, i))
                fail_msg("%s, %s: %s", cases[c].mix, name, qn_type_get(got)->name);
        }
    }
}

static void outputs_and_embeddings(void **state) {
    (void)state;
    static const struct {
        const char *mix, *tensor;
        bool has_output;
        int64_t width;
        const char *want;
    } cases[] = {
        {"Q2_K", "output.weight", true, 256, "Q6_K"},
        {"Q2_K", "token_embd.weight", true, 256, "Q2_K"},
        {"Q2_K", "token_embd.weight", false, 256, "Q6_K"},
        {"Q5_1", "output.weight", true, 256, "Q6_K"},
        {"Q5_1", "output.weight", true, 96, "Q8_0"},
        {"Q8_0", "output.weight", true, 256, "Q8_0"},
        {"F16", "output.weight", true, 256, "F16"},
        {"Q4_K_M", "output.weight", true, 48, "F16"},
        {"Q4_K_M", "token_embd.weight", true, 96, "Q5_0"},
        {"Q5_K_S", "token_embd.weight", true, 96, "Q5_1"},
        {"Q6_K", "token_embd.weight", true, 96, "Q8_0"},
        {"Q3_K_S", "token_embd.weight", true, 96, "IQ4_NL"},
        {"Q2_K", "token_embd.weight", true, 96, "IQ4_NL"},
        {"IQ4_XS", "token_embd.weight", true, 96, "IQ4_NL"},
        {"Q4_0", "token_embd.weight", true, 96, "Q4_0"},
        {"Q4_0", "token_embd.weight", true, 100, "F16"},
        {"BF16", "token_embd.weight", true, 101, "BF16"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        qn_mixer mixer = {.has_output = cases[c].has_output};
        qn_err err = {0};
        ASSERT_OK(qn_mix_find(&mixer.mix, cases[c].mix, &err));
        const qn_tensor t = {
            .name = qn_str_of(cases[c].tensor), .n_dims = 2, .dims = {512, cases[c].width}};
        qn_type wanted;
        const qn_type got = qn_mixer_choose(&mixer, &t, &wanted);
        if (strcmp(qn_type_get(got)->name, cases[c].want) != 0)
            fail_msg("%s, %s of %d: %s, want %s", cases[c].mix, cases[c].tensor,
                     (int)cases[c].width, qn_type_get(got)->name, cases[c].want);
    }
}

static void small_tensors_are_left_alone(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int64_t dims[3];
        bool converts;
    } cases[] = {
        {"blk.0.attn_q.weight", {64, 32}, true},
        {"blk.0.ffn_up_exps.weight", {4, 64, 32}, true},
        {"blk.0.ssm_alpha.weight", {4, 32}, true},
        {"blk.4.nextn.eh_proj.weight", {32, 64}, true},
        {"blk.0.attn_q.bias", {64, 32}, false},
        {"blk.0.ssm_a", {64, 32}, false},
        {"blk.0.attn_norm.weight", {64}, false},
        {"blk.0.ffn_gate_inp_shexp.weight", {1, 64}, false},
        {"blk.0.ssm_norm.weight", {8, 64}, false},
        {"blk.0.ffn_gate_inp.weight", {8, 64}, false},
        {"blk.0.ssm_conv1d.weight", {64, 4}, false},
        {"blk.0.shortconv.conv.weight", {64, 4}, false},
        {"v.position_embd.weight", {64, 64}, false},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        qn_tensor t = {.name = qn_str_of(cases[c].name)};
        while (t.n_dims < 3 && cases[c].dims[t.n_dims]) {
            t.dims[t.n_dims] = cases[c].dims[t.n_dims];
            t.n_dims++;
        }
        if (qn_mix_converts(&t) != cases[c].converts) fail_msg("%s", cases[c].name);
    }
}

static void rows_that_do_not_fit_fall_back(void **state) {
    static const struct {
        const char *type, *embedding, *query;
    } rows[] = {{"Q4_K_M", "Q5_0", "Q5_0"},     {"Q5_K_M", "Q5_1", "Q5_1"},
                {"Q6_K", "Q8_0", "Q8_0"},       {"Q2_K", "IQ4_NL", "IQ4_NL"},
                {"IQ4_XS", "IQ4_NL", "IQ4_NL"}, {"Q4_0", "Q4_0", "Q4_0"},
                {"F16", "F16", "F16"},          {"F32", "F32", "F32"}};
    const path_name out = in_folder(state, "out.gguf");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        quantize(small_path, out.text, rows[i].type);
        qn_source *source = open_well(out.text); // rows of 64 and 128
        assert_string_equal(type_of(source, "token_embd.weight"), rows[i].embedding);
        assert_string_equal(type_of(source, "blk.0.attn_q.weight"), rows[i].query);
        assert_string_equal(type_of(source, "blk.0.attn_norm.weight"), "F32");
        qn_source_close(source);
    }
    // Experts have 48 columns: not even a block of 32 fits.
    quantize(TEST_DATA "/mini/qwen35_moe/qwen35_moe-bf16.gguf", out.text, "Q4_K_M");
    qn_source *source = open_well(out.text);
    assert_string_equal(type_of(source, "blk.0.ffn_down_exps.weight"), "F16");
    assert_string_equal(type_of(source, "blk.0.ffn_up_exps.weight"), "Q5_0");
    qn_source_close(source);
}

// --- errors --------------------------------------------------------------------------------------

// Sum of the squares of what a file has lost, over all its weights.
static double squared_error(const qn_source *got, const qn_source *exact) {
    double sum = 0;
    for (size_t i = 0; i < qn_source_n_tensors(exact); i++) {
        const qn_tensor *t = qn_source_tensor(exact, i);
        int64_t n, m;
        float *x = read_floats(got, qn_source_find_tensor(got, t->name.data), &n);
        float *y = read_floats(exact, t, &m);
        assert_int_equal(n, m);
        for (int64_t k = 0; k < n; k++) sum += (double)(x[k] - y[k]) * (double)(x[k] - y[k]);
        free(x);
        free(y);
    }
    return sum;
}

static void weights_are_as_near_as_the_fixtures(void **state) {
    const path_name out = in_folder(state, "out.gguf");
    qn_source *exact = open_well(model_path);
    for (size_t i = 0; i < N_FIXTURES; i++) {
        quantize(model_path, out.text, fixtures[i]);
        qn_source *got = open_well(out.text), *want = open_well(fixture(fixtures[i]).text);
        const double ratio = sqrt(squared_error(got, exact) / squared_error(want, exact));
        print_message("%-7s rms error %.4f of the fixture's\n", fixtures[i], ratio);
        assert_true(ratio <= 1.02);
        qn_source_close(got);
        qn_source_close(want);
    }
    qn_source_close(exact);
}

static qn_logits compute(const char *path, const int32_t *ids, size_t n) {
    qn_err err = {0};
    qn_engine *engine;
    qn_logits logits = QN_INIT(qn_logits);
    ASSERT_OK(qn_engine_open(&engine, path, &QN_INIT(qn_engine_opts, .reference = true), &err));
    ASSERT_OK(qn_engine_logits(&logits, engine, ids, n, &QN_INIT(qn_logits_opts, .all_rows = true),
                               &err));
    qn_engine_close(engine);
    return logits;
}

static double log_sum(const float *x, int64_t n) {
    double max = x[0], sum = 0;
    for (int64_t i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
    for (int64_t i = 0; i < n; i++) sum += exp(x[i] - max);
    return max + log(sum);
}

// Mean over the rows of sum p log(p / q).
static double divergence(const qn_logits *p, const qn_logits *q) {
    double sum = 0;
    for (int64_t r = 0; r < p->n_rows; r++) {
        const float *x = p->logits + r * p->n_vocab, *y = q->logits + r * q->n_vocab;
        const double a = log_sum(x, p->n_vocab), b = log_sum(y, q->n_vocab);
        for (int64_t i = 0; i < p->n_vocab; i++) sum += exp(x[i] - a) * (x[i] - a - (y[i] - b));
    }
    return sum / (double)p->n_rows;
}

// A file computes what its weights are, and that is near to what the model was.
static void scores_are_those_of_the_weights(void **state) {
    const path_name out = in_folder(state, "out.gguf"), floats = in_folder(state, "floats.gguf");
    golden g = golden_open(TEST_DATA "/k256/qwen3", "qwen3-Q4_0.golden.safetensors");
    int32_t ids[GOLDEN_IDS];
    const size_t n = golden_ids(ids, &g, "prompts", 1);
    golden_close(&g);
    qn_logits exact = compute(model_path, ids, n);
    for (size_t i = 0; i < N_FIXTURES; i++) {
        quantize(model_path, out.text, fixtures[i]);
        quantize(out.text, floats.text, "F32");
        qn_logits got = compute(out.text, ids, n), unpacked = compute(floats.text, ids, n);
        assert_memory_equal(got.logits, unpacked.logits,
                            (size_t)(got.n_rows * got.n_vocab) * sizeof(float));
        qn_logits others = compute(fixture(fixtures[i]).text, ids, n);
        const double kl = divergence(&exact, &got), max = divergence(&exact, &others);
        print_message("%-7s divergence %.5f, the fixture has %.5f\n", fixtures[i], kl, max);
        assert_true(kl > 0 && kl <= 1.5 * max); // from one draw to the other they vary so much
        qn_logits_deinit(&got);
        qn_logits_deinit(&others);
        qn_logits_deinit(&unpacked);
    }
    qn_logits_deinit(&exact);
}

static void threads_change_no_byte(void **state) {
    static const char *const types[] = {"Q4_K_M", "Q2_K", "IQ4_XS", "F16"};
    const path_name one = in_folder(state, "one.gguf"), more = in_folder(state, "more.gguf");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        for (int n = 2; n <= 5; n += 3) {
            qn_err err = {0};
            qn_quantize_opts opts = QN_INIT(qn_quantize_opts, .type = types[i], .n_threads = 1);
            ASSERT_OK(qn_quantize(model_path, one.text, &opts, &err));
            opts.n_threads = n;
            ASSERT_OK(qn_quantize(model_path, more.text, &opts, &err));
            assert_same_bytes(one.text, more.text);
        }
    }
}

// --- inputs --------------------------------------------------------------------------------------

typedef struct log_lines {
    qn_buf text;
} log_lines;

static void keep_line(void *arg, qn_log_level level, const char *message) {
    log_lines *lines = arg;
    qn_buf_printf(&lines->text, "%d %s\n", (int)level, message);
}

static void quantised_inputs_are_warned_of(void **state) {
    const path_name first = in_folder(state, "first.gguf"), out = in_folder(state, "out.gguf");
    quantize(model_path, first.text, "Q8_0");
    log_lines lines = {0};
    qn_err err = {0};
    const qn_quantize_opts opts =
        QN_INIT(qn_quantize_opts, .type = "Q4_K_M", .log = keep_line, .log_arg = &lines);
    ASSERT_OK(qn_quantize(first.text, out.text, &opts, &err));
    assert_non_null(strstr(lines.text.data, "1 16 tensors are quantised already"));
    qn_buf_clear(&lines.text);
    ASSERT_OK(qn_quantize(model_path, out.text, &opts, &err));
    assert_int_equal(lines.text.size, 0);
    ASSERT_OK(qn_quantize(small_path, out.text, &opts, &err));
    assert_non_null(strstr(lines.text.data, "rows of 64 are Q8_0 in place of Q6_K"));
    qn_buf_deinit(&lines.text);
    // What has its type already is copied, byte by byte.
    quantize(first.text, out.text, "Q8_0");
    assert_same_bytes(first.text, out.text);
}

static void split_sets_are_one_model(void **state) {
    const path_name whole = in_folder(state, "whole.gguf"), out = in_folder(state, "out.gguf");
    const path_name part = in_folder(state, "part-00002-of-00003.gguf");
    model_file *m = model_load(model_path);
    model_write_split(m, *state, "part", 3);
    model_free(m);
    quantize(model_path, whole.text, "Q4_K_M");
    quantize(part.text, out.text, "Q4_K_M");
    assert_same_bytes(whole.text, out.text);
    qn_err err = {0};
    const path_name first = in_folder(state, "part-00001-of-00003.gguf");
    ASSERT_FAILS(
        qn_quantize(first.text, part.text, &QN_INIT(qn_quantize_opts, .type = "Q8_0"), &err),
        QN_ARGUMENT, "is the input itself");
}

static void checkpoints_are_converted(void **state) {
    const path_name in = in_folder(state, "in.gguf"), want = in_folder(state, "want.gguf"),
                    got = in_folder(state, "got.gguf");
    qn_err err = {0};
    ASSERT_OK(qn_convert(TEST_DATA "/mini/qwen35_vl", in.text, NULL, &err));
    quantize(in.text, want.text, "Q4_0");
    quantize(TEST_DATA "/mini/qwen35_vl", got.text, "Q4_0");
    assert_same_bytes(got.text, want.text);
    assert_same_bytes(in_folder(state, "mmproj-in.gguf").text,
                      in_folder(state, "mmproj-got.gguf").text);
    assert_int_equal(count_files(state), 5);
}

// The tower and the text appear together: a folder in the way of either leaves the other's old
// file.
static void a_tower_and_its_text_appear_together(void **state) {
    const char *const names[] = {"out.gguf", "mmproj-out.gguf"};
    const path_name out = in_folder(state, "out.gguf");
    for (int i = 0; i < 2; i++) {
        qn_err err = {0};
        const path_name blocked = in_folder(state, names[i]), other = in_folder(state, names[!i]);
        const char *const calls[] = {"quantize", "convert"};
        put_text(state, names[!i], "GGUF, old");
        assert_int_equal(mkdir(blocked.text, 0700), 0);
        for (int k = 0; k < 2; k++) {
            print_message("%s: %s is a folder\n", calls[k], names[i]);
            const qn_status status =
                k ? qn_convert(TEST_DATA "/mini/qwen35_vl", out.text, NULL, &err)
                  : qn_quantize(TEST_DATA "/mini/qwen35_vl", out.text,
                                &QN_INIT(qn_quantize_opts, .type = "Q8_0"), &err);
            ASSERT_FAILS(status, QN_ARGUMENT, "is a folder");
            assert_int_equal(count_files(state), 2);
        }
        char *text;
        size_t size;
        ASSERT_OK(qn_file_load(&text, &size, other.text, 100, &err));
        assert_string_equal(text, "GGUF, old");
        qn_free(text);
        assert_int_equal(rmdir(blocked.text), 0);
        assert_int_equal(unlink(other.text), 0);
    }
}

// Names as long as a file system admits; the tower's is longer by a word.
static void long_names_work(void **state) {
    char name[256] = {0};
    qn_err err = {0};
    memset(name, 'n', 250);
    const path_name out = in_folder(state, name);
    quantize(small_path, out.text, "Q8_0");
    quantize(TEST_DATA "/mini/qwen3", out.text, "Q8_0");
    ASSERT_OK(qn_convert(TEST_DATA "/mini/qwen3", out.text, NULL, &err));
    assert_int_equal(count_files(state), 1);
    ASSERT_FAILS(qn_quantize(TEST_DATA "/mini/qwen35_vl", out.text,
                             &QN_INIT(qn_quantize_opts, .type = "Q8_0"), &err),
                 QN_IO, "mmproj-nnn");
    ASSERT_FAILS(qn_convert(TEST_DATA "/mini/qwen35_vl", out.text, NULL, &err), QN_IO,
                 "mmproj-nnn");
    assert_int_equal(count_files(state), 1);
}

static void broken_weights_are_named(void **state) {
    static const struct {
        const char *edits, *type;
        qn_status status;
        const char *part;
    } cases[] = {
        {"fill blk.1.ffn_up.weight nan", "Q4_0", QN_FORMAT,
         "blk.1.ffn_up.weight: value nan at row 0, column 0"},
        {"fill blk.0.attn_norm.weight inf", "Q4_0", QN_FORMAT,
         "blk.0.attn_norm.weight: value inf at row 0, column 0"},
        {"type blk.1.ffn_up.weight F32; fill blk.1.ffn_up.weight 1e6", "F16", QN_LIMIT,
         "blk.1.ffn_up.weight: row 0 has values up to 1e+06, which do not fit in F16"},
        {"type blk.1.ffn_up.weight F32; fill blk.1.ffn_up.weight 8e4", "F16", QN_LIMIT,
         "blk.1.ffn_up.weight: row 0 has values up to 80000, which do not fit in F16"},
        {"type blk.1.ffn_up.weight F32; fill blk.1.ffn_up.weight 9e6", "Q8_0", QN_LIMIT,
         "blk.1.ffn_up.weight: row 0 has values up to 9e+06, which do not fit in Q8_0"},
        {"type blk.1.ffn_up.weight F32; fill blk.1.ffn_up.weight -1e7", "Q4_K_M", QN_LIMIT,
         "blk.1.ffn_up.weight: row 0 has values up to 1e+07, which do not fit in Q5_0"},
        {"type blk.1.ffn_up.weight Q8_1", "Q4_0", QN_UNSUPPORTED,
         "blk.1.ffn_up.weight: cannot convert from Q8_1"},
        {"key general.type str imatrix", "Q4_0", QN_ARGUMENT, "an importance file, want a model"},
    };
    const path_name in = in_folder(state, "in.gguf"), out = in_folder(state, "out.gguf");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_err err = {0};
        model_file *m = model_load(small_path);
        model_edit(m, cases[i].edits);
        model_write_gguf(m, in.text);
        model_free(m);
        ASSERT_FAILS(
            qn_quantize(in.text, out.text, &QN_INIT(qn_quantize_opts, .type = cases[i].type), &err),
            cases[i].status, cases[i].part);
        assert_int_equal(count_files(state), 1);
    }
}

static void the_first_broken_value_is_named(void **state) {
    const path_name in = in_folder(state, "in.gguf"), out = in_folder(state, "out.gguf");
    model_file *m = model_load(small_path);
    model_edit(m, "type blk.1.ffn_up.weight F32");
    model_tensor *t = model_find(m, "blk.1.ffn_up.weight");
    float *x = (float *)(void *)t->data;
    x[t->dims[1] * 9 + 7] = NAN;
    x[t->dims[1] * 20] = INFINITY;
    model_write_gguf(m, in.text);
    model_free(m);
    for (int n = 1; n <= 3; n++) {
        qn_err err = {0};
        ASSERT_FAILS(qn_quantize(in.text, out.text,
                                 &QN_INIT(qn_quantize_opts, .type = "Q4_K_M", .n_threads = n),
                                 &err),
                     QN_FORMAT, "blk.1.ffn_up.weight: value nan at row 9, column 7");
    }
}

// --- outputs -------------------------------------------------------------------------------------

static void inputs_are_not_written_over(void **state) {
    const path_name in = in_folder(state, "in.gguf"), link_name = in_folder(state, "link.gguf"),
                    hard = in_folder(state, "hard.gguf");
    quantize(small_path, in.text, "Q8_0");
    assert_int_equal(symlink(in.text, link_name.text), 0);
    assert_int_equal(link(in.text, hard.text), 0);
    const char *const names[] = {in.text, link_name.text, hard.text};
    for (int i = 0; i < 3; i++) {
        qn_err err = {0};
        ASSERT_FAILS(
            qn_quantize(in.text, names[i], &QN_INIT(qn_quantize_opts, .type = "Q4_0"), &err),
            QN_ARGUMENT, "is the input itself");
    }
    qn_source_close(open_well(in.text));
}

static void wrong_calls_are_refused(void **state) {
    qn_err err = {0};
    const char *folder = *state;
    const path_name out = in_folder(state, "no/out.gguf"), fine = in_folder(state, "out.gguf");
    const qn_quantize_opts opts = QN_INIT(qn_quantize_opts, .type = "Q4_0");
    ASSERT_FAILS(qn_quantize(small_path, out.text, &opts, &err), QN_IO, "no/out.gguf");
    ASSERT_FAILS(qn_quantize(small_path, folder, &opts, &err), QN_ARGUMENT, folder);
    ASSERT_FAILS(qn_quantize(out.text, fine.text, &opts, &err), QN_IO, "no/out.gguf");
    ASSERT_FAILS(
        qn_quantize(small_path, fine.text, &QN_INIT(qn_quantize_opts, .type = "Q4_X"), &err),
        QN_ARGUMENT,
        "no type 'Q4_X', want one of F32 F16 BF16 Q8_0 Q6_K Q5_K_M Q5_K_S Q5_1 Q5_0 "
        "Q4_K_M Q4_K_S IQ4_XS IQ4_NL Q4_1 Q4_0 Q3_K_L Q3_K_M Q3_K_S Q2_K");
    ASSERT_FAILS(qn_quantize_check_type("", &err), QN_ARGUMENT, "no type ''");
    ASSERT_OK(qn_quantize_check_type("iq4_nl", &err));
    ASSERT_FAILS(qn_quantize(small_path, fine.text, &QN_INIT(qn_quantize_opts), &err), QN_ARGUMENT,
                 "a type");
    ASSERT_FAILS(qn_quantize(NULL, fine.text, &opts, &err), QN_ARGUMENT, "an input");
    assert_int_equal(count_files(state), 0);
}

typedef struct stopper {
    int64_t at, last, total;
} stopper;

static bool stop_at(void *arg, int64_t done, int64_t total) {
    stopper *s = arg;
    assert_true(done > s->last && done <= total);
    assert_true(s->total == 0 || total == s->total);
    s->last = done;
    s->total = total;
    return done < s->at;
}

static void stopping_leaves_the_old_file(void **state) {
    const path_name out = in_folder(state, "out.gguf"), old = in_folder(state, "old.gguf");
    quantize(small_path, old.text, "Q8_0");
    quantize(small_path, out.text, "Q8_0");
    for (int64_t at = 1; at <= 2800000; at += 700000) {
        stopper s = {.at = at};
        const qn_quantize_opts opts =
            QN_INIT(qn_quantize_opts, .type = "Q4_0", .progress = stop_at, .progress_arg = &s);
        qn_err err = {0};
        ASSERT_FAILS(qn_quantize(model_path, out.text, &opts, &err), QN_STOPPED, "stopped at");
        assert_same_bytes(out.text, old.text);
        assert_int_equal(count_files(state), 2);
    }
    stopper s = {.at = INT64_MAX};
    const qn_quantize_opts opts =
        QN_INIT(qn_quantize_opts, .type = "Q4_0", .progress = stop_at, .progress_arg = &s);
    qn_err err = {0};
    ASSERT_OK(qn_quantize(model_path, out.text, &opts, &err));
    assert_int_equal(s.last, s.total);
    assert_int_equal(count_files(state), 2);
}

// A checkpoint is read twice; stopping leaves nothing of the first reading either.
static void stopping_a_checkpoint_leaves_nothing(void **state) {
    const path_name out = in_folder(state, "out.gguf");
    for (int64_t at = 1; at < 400000; at += 50000) {
        stopper s = {.at = at};
        const qn_quantize_opts opts =
            QN_INIT(qn_quantize_opts, .type = "Q8_0", .progress = stop_at, .progress_arg = &s);
        qn_err err = {0};
        ASSERT_FAILS(qn_quantize(TEST_DATA "/mini/qwen3", out.text, &opts, &err), QN_STOPPED, "");
        assert_int_equal(count_files(state), 0);
    }
}

static void a_full_disk_leaves_nothing(void **state) {
    const path_name out = in_folder(state, "out.gguf");
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    void (*const handler)(int) = signal(SIGXFSZ, SIG_IGN);
    for (rlim_t limit = 100; limit < 900000; limit = limit * 3 + 7) {
        qn_err err = {0};
        small = (struct rlimit){limit, old.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        const qn_status status =
            qn_quantize(model_path, out.text, &QN_INIT(qn_quantize_opts, .type = "Q4_K_M"), &err);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        ASSERT_FAILS(status, QN_IO, "cannot write");
        assert_int_equal(count_files(state), 0);
    }
    signal(SIGXFSZ, handler);
}

// Of a checkpoint with a tower: everything but the last bytes of the text can be written.
static void a_full_disk_leaves_the_old_tower(void **state) {
    const char *const names[] = {"out.gguf", "mmproj-out.gguf"};
    const path_name out = in_folder(state, names[0]);
    const qn_quantize_opts opts = QN_INIT(qn_quantize_opts, .type = "F32");
    struct rlimit old;
    struct stat text, tower;
    qn_err err = {0};
    ASSERT_OK(qn_quantize(TEST_DATA "/mini/qwen35_vl", out.text, &opts, &err));
    assert_int_equal(stat(out.text, &text), 0);
    assert_int_equal(stat(in_folder(state, names[1]).text, &tower), 0);
    assert_true(tower.st_size < text.st_size);
    for (int i = 0; i < 2; i++) put_text(state, names[i], "GGUF, old");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    void (*const handler)(int) = signal(SIGXFSZ, SIG_IGN);
    const struct rlimit small = {(rlim_t)text.st_size - 1, old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    const qn_status status = qn_quantize(TEST_DATA "/mini/qwen35_vl", out.text, &opts, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, handler);
    ASSERT_FAILS(status, QN_IO, "out.gguf: cannot write");
    for (int i = 0; i < 2; i++) {
        char *bytes;
        size_t size;
        ASSERT_OK(qn_file_load(&bytes, &size, in_folder(state, names[i]).text, 100, &err));
        assert_string_equal(bytes, "GGUF, old");
        qn_free(bytes);
    }
    assert_int_equal(count_files(state), 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(files_are_as_the_fixtures),
        cmocka_unit_test(sizes_are_the_documented_ones),
        cmocka_unit_test(mixes_follow_the_rules),
        cmocka_unit_test(outputs_and_embeddings),
        cmocka_unit_test(small_tensors_are_left_alone),
        FOLDER_TEST(rows_that_do_not_fit_fall_back),
        FOLDER_TEST(weights_are_as_near_as_the_fixtures),
        FOLDER_TEST(scores_are_those_of_the_weights),
        FOLDER_TEST(threads_change_no_byte),
        FOLDER_TEST(quantised_inputs_are_warned_of),
        FOLDER_TEST(split_sets_are_one_model),
        FOLDER_TEST(checkpoints_are_converted),
        FOLDER_TEST(a_tower_and_its_text_appear_together),
        FOLDER_TEST(long_names_work),
        FOLDER_TEST(broken_weights_are_named),
        FOLDER_TEST(the_first_broken_value_is_named),
        FOLDER_TEST(inputs_are_not_written_over),
        FOLDER_TEST(wrong_calls_are_refused),
        FOLDER_TEST(stopping_leaves_the_old_file),
        FOLDER_TEST(stopping_a_checkpoint_leaves_nothing),
        FOLDER_TEST(a_full_disk_leaves_nothing),
        FOLDER_TEST(a_full_disk_leaves_the_old_tower),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
