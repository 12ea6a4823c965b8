// Made-up models: files of every family open, compute and tokenise; sizes are those of the models
// whose shapes they have; nothing but the seed changes their bytes.
#include "testing.h"

#include "format_files.h"

#include "core/file.h"
#include "gen/philox.h"
#include "make/mix.h"
#include "make/synth.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void synth(const char *shape, const char *type, const char *out, uint64_t seed,
                  int n_threads) {
    qn_err err = {0};
    const qn_synth_opts opts = QN_INIT(qn_synth_opts, .seed = seed, .n_threads = n_threads);
    if (qn_synth(shape, type, out, &opts, &err)) fail_msg("%s %s: %s", shape, type, err.message);
}

static int count_files(void *const *state) {
    DIR *dir = opendir(*state);
    int n = -2; // itself and its parent
    for (struct dirent *e; (e = readdir(dir));) n++;
    closedir(dir);
    return n;
}

static bool is_tiny(const char *shape) { return strncmp(shape, "tiny-", 5) == 0; }

enum { NOISE_VALUES = 1 << 14 };

// --- weights -------------------------------------------------------------------------------------

static void assert_spread(const uint8_t *packed, const char *name, qn_type type, int64_t n,
                          double wanted) {
    static float x[NOISE_VALUES];
    double sum = 0, squares = 0;
    qn_type_get(type)->unpack(x, packed, n);
    for (int64_t k = 0; k < n; k++) {
        assert_true(isfinite(x[k]));
        sum += (double)x[k];
        squares += (double)x[k] * (double)x[k];
    }
    const double rms = sqrt(squares / (double)n), mean = sum / (double)n;
    if (fabs(rms - wanted) > wanted / 20 || fabs(mean) > wanted / 20)
        fail_msg("%s: root mean square %g, mean %g", name, rms, mean);
}

// Every type that a mix may ask for has values of the wanted spread, with a mean near 0.
static void noise_has_the_wanted_spread(void **state) {
    (void)state;
    static const char *const types[] = {"F32",  "F16",    "BF16",   "Q4_0", "Q4_1",
                                        "Q5_0", "Q5_1",   "Q8_0",   "Q2_K", "Q3_K",
                                        "Q4_K", "IQ4_NL", "IQ4_XS", "Q5_K", "Q6_K"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        static uint8_t packed[4 * NOISE_VALUES];
        qn_type type;
        assert_true(qn_type_from_name(&type, types[i]));
        qn_noise_fill(packed, type, NOISE_VALUES, QN_NOISE_MATRIX,
                      (qn_noise_place){.seed = 7, .tensor = 3});
        assert_spread(packed, types[i], type, NOISE_VALUES, 0.02);
        qn_noise_scale(packed, type, NOISE_VALUES, 50);
        assert_spread(packed, types[i], type, NOISE_VALUES, 1);
    }
}

static void vectors_lie_in_their_ranges(void **state) {
    (void)state;
    static const struct {
        qn_noise noise;
        float min, max;
    } cases[] = {{QN_NOISE_NORM, 0.9f, 1.1f},
                 {QN_NOISE_BIAS, -0.05f, 0.05f},
                 {QN_NOISE_TAPS, -0.5f, 0.5f},
                 {QN_NOISE_DECAY, -3.5f, -0.5f},
                 {QN_NOISE_STEP, -4, -2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        enum { N = 4096 };
        float x[N], min = INFINITY, max = -INFINITY;
        qn_noise_fill((uint8_t *)x, QN_TYPE_F32, N, cases[i].noise, (qn_noise_place){.piece = 1});
        for (int k = 0; k < N; k++) {
            min = fminf(min, x[k]);
            max = fmaxf(max, x[k]);
        }
        const float slack = (cases[i].max - cases[i].min) / 100;
        assert_true(min >= cases[i].min && min < cases[i].min + slack);
        assert_true(max <= cases[i].max && max > cases[i].max - slack);
    }
}

// A filled range is the blocks of the generator, whatever its length.
static void philox_fills_with_its_blocks(void **state) {
    (void)state;
    uint8_t bytes[41];
    qn_philox counter = {{5, 6, 7, 8}};
    qn_philox_fill(bytes, sizeof bytes, counter, 99);
    for (size_t i = 0; i < sizeof bytes; i++) {
        counter.v[0] = (uint32_t)(5 + i / 16);
        const qn_philox block = qn_philox_block(counter, 99);
        assert_int_equal(bytes[i], block.v[i % 16 / 4] >> i % 4 * 8 & 0xff);
    }
}

// --- sizes ---------------------------------------------------------------------------------------

// Published numbers of parameters. Those of Qwen3.5 are without the layer that predicts further
// tokens, which is added: a layer of full attention, and what joins its inputs. The last is not a
// published model; its number was counted by hand.
static void sizes_are_the_published_ones(void **state) {
    (void)state;
    static const struct {
        const char *shape;
        double millions, predict;
    } cases[] = {
        {"qwen3-0.6b", 596.05, 0},         {"qwen3-1.7b", 1720.57, 0},
        {"qwen3-8b", 8190.74, 0},          {"llama3.2-1b", 1235.81, 0},
        {"llama3.1-8b", 8030.26, 0},       {"gemma3-1b", 999.89, 0},
        {"qwen3-30b-a3b", 30532.12, 0},    {"qwen3.5-0.8b", 752.39, 20.45},
        {"qwen3.5-4b", 4205.75, 120.59},   {"small-qwen3moe", 1242.33, 0},
        {"llama3.1-70b", 70553.71, 0},     {"llama3.1-405b", 405853.39, 0},
        {"qwen3-235b-a22b", 235093.63, 0},
    };
    size_t n_real = 0;
    for (size_t i = 0; qn_synth_shape_name(i); i++) n_real += !is_tiny(qn_synth_shape_name(i));
    assert_int_equal(n_real, sizeof cases / sizeof *cases);
    for (size_t i = 0; i < n_real; i++) {
        qn_err err = {0};
        qn_synth_size size = QN_INIT(qn_synth_size), as_floats = QN_INIT(qn_synth_size);
        ASSERT_OK(qn_synth_measure(&size, cases[i].shape, "Q4_K_M", &err));
        ASSERT_OK(qn_synth_measure(&as_floats, cases[i].shape, "F32", &err));
        const double want = (cases[i].millions + cases[i].predict) * 1e6;
        if (fabs((double)size.n_parameters - want) > want / 1000)
            fail_msg("%s: %lld parameters, want %.0f", cases[i].shape, (long long)size.n_parameters,
                     want);
        assert_int_equal(as_floats.tensor_bytes, 4 * as_floats.n_parameters);
        const double bits = 8 * (double)size.tensor_bytes / (double)size.n_parameters;
        if (bits < 4.5 || bits > 6.5) fail_msg("%s: %g bits per weight", cases[i].shape, bits);
    }
}

// --- files ---------------------------------------------------------------------------------------

// Logits must differ from token to token, and from context to context.
static void assert_computes(const char *what, const qn_engine *engine) {
    qn_err err = {0};
    const int32_t ids[] = {70, 300, 71, 72, 450, 73};
    qn_logits out = QN_INIT(qn_logits);
    if (qn_engine_logits(&out, engine, ids, 6, &QN_INIT(qn_logits_opts, .all_rows = true), &err))
        fail_msg("%s: %s", what, err.message);
    const float *last = out.logits + (out.n_rows - 1) * out.n_vocab;
    double sum = 0, squares = 0, change = 0;
    for (int64_t i = 0; i < out.n_rows * out.n_vocab; i++) assert_true(isfinite(out.logits[i]));
    for (int64_t i = 0; i < out.n_vocab; i++) {
        sum += (double)last[i];
        squares += (double)last[i] * (double)last[i];
        change += fabs((double)last[i] - (double)out.logits[i]);
    }
    const double n = (double)out.n_vocab;
    const double spread = sqrt(squares / n - sum / n * (sum / n));
    if (!(spread > 0.05 && spread < 100)) fail_msg("%s: logits spread by %g", what, spread);
    if (!(change / n > 0.01)) fail_msg("%s: the logits do not change", what);
    qn_logits_deinit(&out);
}

static void assert_round_trip(const qn_tokenizer *tokenizer, const char *text, size_t size) {
    qn_err err = {0};
    int32_t *ids;
    size_t n, back_size;
    char *back;
    ASSERT_OK(qn_tokenize(&ids, &n, tokenizer, text, size, NULL, &err));
    ASSERT_OK(qn_detokenize(&back, &back_size, tokenizer, ids, n, true, &err));
    assert_int_equal(back_size, size);
    assert_memory_equal(back, text, size);
    qn_free(ids);
    qn_free(back);
}

// Texts of random characters: letters and spaces most often, then anything valid.
static void assert_tokenizes(const qn_tokenizer *tokenizer) {
    static const char *const alphabet[] = {"a",
                                           "e",
                                           "t",
                                           "q",
                                           " ",
                                           " ",
                                           "\n",
                                           "\t",
                                           "7",
                                           ".",
                                           "<",
                                           "|",
                                           ">",
                                           "Z",
                                           "\xc3\xa9",
                                           "\xe6\x97\xa5",
                                           "\xf0\x9f\x98\x80",
                                           "\x01",
                                           "the",
                                           " of"};
    enum { N = sizeof alphabet / sizeof *alphabet };
    assert_round_trip(tokenizer, "", 0);
    for (uint64_t seed = 0; seed < 50; seed++) {
        char text[256] = "";
        size_t size = 0;
        for (uint64_t k = 0; k < 5 + seed; k++) {
            const char *c = alphabet[(size_t)(qn_philox_uniform(seed, k, 0, 0) * N)];
            memcpy(text + size, c, strlen(c));
            size += strlen(c);
        }
        assert_round_trip(tokenizer, text, size);
    }
}

static const struct {
    const char *arch, *bos, *end;
} vocabularies[] = {
    {"llama", "<|begin_of_text|>", "<|eot_id|>"},
    {"qwen", "<|endoftext|>", "<|im_end|>"},
    {"gemma", "<bos>", "<end_of_turn>"},
};

static void assert_specials(const char *arch, const qn_tokenizer *tokenizer) {
    const qn_tokenizer_info info = tokenizer_info(tokenizer);
    for (size_t i = 0; i < sizeof vocabularies / sizeof *vocabularies; i++) {
        if (strncmp(arch, vocabularies[i].arch, strlen(vocabularies[i].arch)) != 0) continue;
        const char *bos = vocabularies[i].bos, *end = vocabularies[i].end;
        assert_int_equal(qn_tokenizer_find(tokenizer, bos, strlen(bos)), info.bos);
        const int32_t id = qn_tokenizer_find(tokenizer, end, strlen(end));
        assert_true(id >= 0 && qn_tokenizer_is_end(tokenizer, id));
        qn_err err = {0};
        int32_t *ids;
        size_t n;
        const qn_tokenize_opts opts = QN_INIT(qn_tokenize_opts, .special = true);
        ASSERT_OK(qn_tokenize(&ids, &n, tokenizer, end, strlen(end), &opts, &err));
        assert_int_equal(n, 1);
        assert_int_equal(ids[0], id);
        qn_free(ids);
        return;
    }
    fail_msg("%s: no such vocabulary", arch);
}

// No two tokens are spelled alike.
static void assert_all_differ(const qn_tokenizer *tokenizer) {
    const int32_t n = tokenizer_info(tokenizer).n_tokens;
    for (int32_t id = 0; id < n; id++) {
        size_t size;
        const char *piece = qn_tokenizer_piece(tokenizer, id, &size);
        assert_int_equal(qn_tokenizer_find(tokenizer, piece, size), id);
    }
}

static void count_warnings(void *arg, qn_log_level level, const char *message) {
    if (level > QN_LOG_WARNING) return;
    print_message("%s\n", message);
    ++*(int *)arg;
}

static void assert_whole(const char *shape, const char *type, const char *path) {
    char what[64];
    qn_err err = {0};
    qn_engine *engine;
    qn_synth_size size = QN_INIT(qn_synth_size);
    int n_warnings = 0;
    snprintf(what, sizeof what, "%s %s", shape, type);
    const qn_engine_opts opts =
        QN_INIT(qn_engine_opts, .n_threads = 2, .log = count_warnings, .log_arg = &n_warnings);
    if (qn_engine_open(&engine, path, &opts, &err)) fail_msg("%s: %s", what, err.message);
    assert_int_equal(n_warnings, 0);
    ASSERT_OK(qn_synth_measure(&size, shape, type, &err));
    const qn_engine_info info = engine_info(engine);
    const qn_tokenizer *tokenizer = qn_engine_tokenizer(engine);
    assert_non_null(tokenizer);
    assert_int_equal(tokenizer_info(tokenizer).n_tokens, info.n_vocab);
    assert_true(info.n_parameters <= size.n_parameters);
    assert_computes(what, engine);
    assert_tokenizes(tokenizer);
    assert_specials(info.architecture, tokenizer);
    qn_engine_close(engine);
}

static void files_compute(void **state) {
    static const char *const types[] = {"Q4_K_M", "Q8_0", "F16", "Q2_K", "IQ4_XS"};
    const path_name out = in_folder(state, "out.gguf");
    for (size_t i = 0; qn_synth_shape_name(i); i++) {
        const char *shape = qn_synth_shape_name(i);
        for (size_t k = 0; k < sizeof types / sizeof *types && is_tiny(shape); k++) {
            synth(shape, types[k], out.text, i, 2);
            assert_whole(shape, types[k], out.text);
        }
    }
}

enum { EXPERTS = 64, USED = 4, WIDTH = 256, TOKENS = 500 };

// The experts that a row of numbers is routed to.
static void route(int64_t counts[EXPERTS], const float *router, const float *x) {
    float logits[EXPERTS] = {0};
    for (int e = 0; e < EXPERTS; e++) {
        for (int i = 0; i < WIDTH; i++) logits[e] += router[e * WIDTH + i] * x[i];
    }
    for (int k = 0; k < USED; k++) {
        int best = 0;
        for (int e = 1; e < EXPERTS; e++) best = logits[e] > logits[best] ? e : best;
        logits[best] = -INFINITY;
        counts[best]++;
    }
}

static int descending(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

// The share of the tokens that a quarter of the experts get.
static double share_of_the_busiest(float skew) {
    static float router[EXPERTS * WIDTH], x[TOKENS * WIDTH];
    int64_t counts[EXPERTS] = {0}, busiest = 0;
    qn_noise_fill((uint8_t *)router, QN_TYPE_F32, EXPERTS * WIDTH, QN_NOISE_MATRIX,
                  (qn_noise_place){1, 2, 0});
    qn_noise_fill((uint8_t *)x, QN_TYPE_F32, TOKENS * WIDTH, QN_NOISE_MATRIX,
                  (qn_noise_place){1, 3, 0});
    if (skew > 0) qn_noise_skew((uint8_t *)router, 0, EXPERTS * WIDTH, WIDTH, EXPERTS, 2, skew);
    for (int t = 0; t < TOKENS; t++) route(counts, router, x + t * WIDTH);
    qsort(counts, EXPERTS, sizeof *counts, descending);
    for (int e = 0; e < EXPERTS / 4; e++) busiest += counts[e];
    return (double)busiest / (TOKENS * USED);
}

// A few experts get most tokens.
static void skewed_routing_prefers_some_experts(void **state) {
    const path_name out = in_folder(state, "out.gguf");
    qn_err err;
    const double even = share_of_the_busiest(0), uneven = share_of_the_busiest(1);
    if (even > 0.4 || uneven < 0.7) fail_msg("a quarter gets %g, skewed %g", even, uneven);
    const qn_synth_opts wrong = QN_INIT(qn_synth_opts, .routing_skew = -1);
    ASSERT_FAILS(qn_synth("tiny-qwen3moe", "Q8_0", out.text, &wrong, &err), QN_ARGUMENT, "-1");
}

// The other types, once.
static void every_mix_computes(void **state) {
    const path_name out = in_folder(state, "out.gguf");
    for (size_t i = 0; qn_mix_get(i); i++) {
        synth("tiny-qwen3", qn_mix_get(i)->name, out.text, 1, 2);
        assert_whole("tiny-qwen3", qn_mix_get(i)->name, out.text);
    }
}

// The tensors of a made-up file have the types that quantising its float file gives.
static void types_are_those_of_quantize(void **state) {
    const path_name floats = in_folder(state, "f32.gguf"), made = in_folder(state, "made.gguf"),
                    packed = in_folder(state, "packed.gguf");
    static const char *const shapes[] = {"tiny-llama", "tiny-qwen3moe", "tiny-gemma3",
                                         "tiny-qwen35moe"};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        qn_err err = {0};
        qn_source *a, *b;
        synth(shapes[i], "F32", floats.text, 0, 2);
        synth(shapes[i], "Q4_K_M", made.text, 0, 2);
        const qn_quantize_opts opts = QN_INIT(qn_quantize_opts, .type = "Q4_K_M");
        ASSERT_OK(qn_quantize(floats.text, packed.text, &opts, &err));
        ASSERT_OK(qn_source_open(&a, made.text, &err));
        ASSERT_OK(qn_source_open(&b, packed.text, &err));
        assert_int_equal(qn_source_n_tensors(a), qn_source_n_tensors(b));
        for (size_t k = 0; k < qn_source_n_tensors(a); k++) {
            const qn_tensor_info x = tensor_info(a, k), y = tensor_info(b, k);
            assert_string_equal(x.name, y.name);
            if (strcmp(x.type, y.type) != 0)
                fail_msg("%s %s: %s, want %s", shapes[i], x.name, x.type, y.type);
        }
        qn_source_close(a);
        qn_source_close(b);
    }
}

// A file of a vocabulary and nothing else.
static void put_vocab_file(const qn_synth_shape *shape, const char *path) {
    qn_err err = {0};
    qn_arena arena = {0};
    qn_gguf_writer *writer;
    ASSERT_OK(qn_gguf_writer_create(&writer, &err));
    qn_gguf_put_string(writer, "general.architecture", shape->arch);
    ASSERT_OK(qn_synth_put_vocab(writer, shape, &arena, &err));
    ASSERT_OK(qn_gguf_begin(writer, path, &err));
    ASSERT_OK(qn_gguf_finish(writer, &err));
    qn_gguf_writer_destroy(writer);
    qn_arena_deinit(&arena);
}

// Vocabularies of real size: the tokens are at the ids that people know, and differ.
static void vocabularies_have_known_ids(void **state) {
    static const struct {
        const char *shape, *token;
        int32_t id;
    } cases[] = {
        {"qwen3-0.6b", "<|endoftext|>", 151643},
        {"qwen3-0.6b", "<|im_end|>", 151645},
        {"qwen3-0.6b", "</think>", 151668},
        {"llama3.2-1b", "<|begin_of_text|>", 128000},
        {"llama3.2-1b", "<|eot_id|>", 128009},
        {"qwen3.5-0.8b", "<|im_start|>", 248045},
        {"qwen3.5-0.8b", "<think>", 248068},
        {"gemma3-1b", "<bos>", 2},
        {"gemma3-1b", "<eos>", 1},
        {"llama3.2-1b", "<|reserved_special_token_247|>", 128255},
    };
    const path_name out = in_folder(state, "out.gguf");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_err err = {0};
        const qn_synth_shape *shape;
        qn_tokenizer *tokenizer;
        ASSERT_OK(qn_synth_shape_find(&shape, cases[i].shape, &err));
        put_vocab_file(shape, out.text);
        ASSERT_OK(qn_tokenizer_open(&tokenizer, out.text, &err));
        assert_int_equal(tokenizer_info(tokenizer).n_tokens, shape->vocab);
        assert_int_equal(qn_tokenizer_find(tokenizer, cases[i].token, strlen(cases[i].token)),
                         cases[i].id);
        if (i % 3 == 0) {
            assert_all_differ(tokenizer);
            assert_tokenizes(tokenizer);
        }
        qn_tokenizer_close(tokenizer);
    }
}

// --- bytes ---------------------------------------------------------------------------------------

static bool are_same(const char *a, const char *b) {
    qn_err err = {0};
    char *x, *y;
    size_t n, m;
    ASSERT_OK(qn_file_load(&x, &n, a, 1 << 26, &err));
    ASSERT_OK(qn_file_load(&y, &m, b, 1 << 26, &err));
    const bool same = n == m && memcmp(x, y, n) == 0;
    qn_free(x);
    qn_free(y);
    return same;
}

static void only_the_seed_changes_bytes(void **state) {
    const path_name a = in_folder(state, "a.gguf"), b = in_folder(state, "b.gguf");
    static const char *const types[] = {"Q4_K_M", "F32", "Q5_1"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        synth("tiny-qwen35moe", types[i], a.text, 5, 1);
        synth("tiny-qwen35moe", types[i], b.text, 5, 2);
        assert_true(are_same(a.text, b.text));
        synth("tiny-qwen35moe", types[i], b.text, 5, 7);
        assert_true(are_same(a.text, b.text));
        synth("tiny-qwen35moe", types[i], b.text, 6, 2);
        assert_false(are_same(a.text, b.text));
    }
}

// No tensor is a copy of another.
static void tensors_differ(void **state) {
    const path_name out = in_folder(state, "out.gguf");
    qn_err err = {0};
    qn_source *source;
    synth("tiny-llama", "Q8_0", out.text, 0, 1);
    ASSERT_OK(qn_source_open(&source, out.text, &err));
    const qn_tensor *q = qn_source_find_tensor(source, "blk.0.attn_q.weight"),
                    *other = qn_source_find_tensor(source, "blk.1.attn_q.weight");
    enum { N = 1024 };
    uint8_t x[N], y[N], z[N];
    ASSERT_OK(qn_source_read(source, q, 0, x, N, &err));
    ASSERT_OK(qn_source_read(source, other, 0, y, N, &err));
    ASSERT_OK(qn_source_read(source, q, 34 * 1024, z, N, &err)); // blocks behind the first ones
    assert_true(memcmp(x, y, N) != 0 && memcmp(x, z, N) != 0);
    qn_source_close(source);
}

// The header says what the whole file is.
static void a_header_is_how_the_file_begins(void **state) {
    const path_name out = in_folder(state, "out.gguf");
    qn_err err = {0};
    qn_buf header = {0};
    int64_t bytes;
    char *text;
    size_t size;
    synth("tiny-qwen3moe", "Q4_K_M", out.text, 3, 1);
    ASSERT_OK(qn_file_load(&text, &size, out.text, 1 << 30, &err));
    ASSERT_OK(qn_synth_header(&header, &bytes, "tiny-qwen3moe", "Q4_K_M", &err));
    assert_int_equal(bytes, size);
    assert_true(header.size < size);
    assert_memory_equal(text, header.data, header.size);
    qn_buf_deinit(&header);
    qn_free(text);
    ASSERT_FAILS(qn_synth_header(&header, &bytes, "tiny", "Q4_K_M", &err), QN_ARGUMENT, "'tiny'");
    qn_buf_deinit(&header);
}

// --- failures ------------------------------------------------------------------------------------

static void what_is_unknown_is_refused(void **state) {
    const path_name out = in_folder(state, "out.gguf"), nowhere = in_folder(state, "no/out.gguf");
    qn_err err = {0};
    qn_synth_size size = QN_INIT(qn_synth_size, .n_tensors = -1);
    ASSERT_FAILS(qn_synth("qwen3-7b", "Q4_K_M", out.text, NULL, &err), QN_ARGUMENT, "'qwen3-7b'");
    for (size_t i = 0; qn_synth_shape_name(i); i++)
        assert_non_null(strstr(err.message, qn_synth_shape_name(i)));
    ASSERT_FAILS(qn_synth("tiny-llama", "Q4_K_X", out.text, NULL, &err), QN_ARGUMENT, "Q4_K_M");
    ASSERT_FAILS(qn_synth_measure(&size, "", "Q4_K_M", &err), QN_ARGUMENT, "no shape ''");
    ASSERT_FAILS(qn_synth_measure(&size, "tiny-llama", "", &err), QN_ARGUMENT, "no type ''");
    assert_int_equal(size.n_tensors, -1);
    ASSERT_FAILS(qn_synth("tiny-llama", "Q4_0", nowhere.text, NULL, &err), QN_IO, "out.gguf");
    ASSERT_FAILS(qn_synth("tiny-llama", "Q4_0", *state, NULL, &err), QN_ARGUMENT, "is a folder");
    ASSERT_FAILS(qn_synth("tiny-llama", "Q4_0", NULL, NULL, &err), QN_ARGUMENT, "NULL");
    assert_int_equal(count_files(state), 0);
}

static bool stop_at_once(void *arg, int64_t done, int64_t total) {
    int64_t *seen = arg;
    assert_true(done > 0 && done <= total);
    *seen = done;
    return false;
}

static void stopping_leaves_the_old_file(void **state) {
    const path_name out = in_folder(state, "out.gguf");
    qn_err err = {0};
    int64_t seen = 0;
    const qn_synth_opts opts =
        QN_INIT(qn_synth_opts, .progress = stop_at_once, .progress_arg = &seen);
    ASSERT_FAILS(qn_synth("tiny-llama", "Q4_0", out.text, &opts, &err), QN_STOPPED, "stopped at");
    assert_int_equal(count_files(state), 0);
    put_text(state, "out.gguf", "GGUF, old");
    ASSERT_FAILS(qn_synth("llama3.1-8b", "Q4_0", out.text, &opts, &err), QN_STOPPED, "stopped at");
    char *text;
    size_t size;
    ASSERT_OK(qn_file_load(&text, &size, out.text, 100, &err));
    assert_string_equal(text, "GGUF, old");
    qn_free(text);
    assert_int_equal(count_files(state), 1);
    assert_true(seen > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(noise_has_the_wanted_spread),
        cmocka_unit_test(vectors_lie_in_their_ranges),
        cmocka_unit_test(philox_fills_with_its_blocks),
        cmocka_unit_test(sizes_are_the_published_ones),
        FOLDER_TEST(files_compute),
        FOLDER_TEST(skewed_routing_prefers_some_experts),
        FOLDER_TEST(every_mix_computes),
        FOLDER_TEST(types_are_those_of_quantize),
        FOLDER_TEST(vocabularies_have_known_ids),
        FOLDER_TEST(only_the_seed_changes_bytes),
        FOLDER_TEST(tensors_differ),
        FOLDER_TEST(a_header_is_how_the_file_begins),
        FOLDER_TEST(what_is_unknown_is_refused),
        FOLDER_TEST(stopping_leaves_the_old_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
