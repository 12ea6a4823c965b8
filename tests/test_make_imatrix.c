// Importance files: what they hold, what they do for quantising, and files that lie.
#include "testing.h"

#include "format_files.h"
#include "model_writer.h"

#include "core/buf.h"
#include "core/file.h"
#include "core/mem.h"
#include "ir/matmul_inputs.h"
#include "make/importance.h"
#include "runtime/runner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char model_path[] = TEST_DATA "/k256/qwen3/qwen3-bf16.gguf";
static const char experts_path[] = TEST_DATA "/mini/qwen3_moe/qwen3_moe-bf16.gguf";
static const char text[] = "The quick brown fox jumps over the lazy dog, and the dog sleeps on. "
                           "Numbers such as 1, 22 and 333 are read one digit after the other; "
                           "so are words that nobody has ever seen before.";

static int count_files(void *const *state) {
    DIR *dir = opendir(*state);
    int n = -2; // itself and its parent
    for (struct dirent *e; (e = readdir(dir));) n++;
    closedir(dir);
    return n;
}

static float *read_floats(const qn_source *source, const char *name, int64_t *n) {
    qn_err err = {0};
    const qn_tensor *t = qn_source_find_tensor(source, name);
    if (!t) fail_msg("no tensor %s", name);
    const qn_type_info *type = qn_type_get(t->type);
    void *packed = malloc((size_t)t->bytes);
    *n = t->bytes / type->bytes * type->block;
    float *values = malloc((size_t)*n * sizeof *values);
    ASSERT_OK(qn_source_read(source, t, 0, packed, (size_t)t->bytes, &err));
    type->unpack(values, packed, *n);
    free(packed);
    return values;
}

static void collect(const char *model, const char *from, const char *to, int64_t chunk,
                    int64_t n_chunks) {
    qn_err err = {0};
    const qn_imatrix_opts opts = QN_INIT(qn_imatrix_opts, .chunk = chunk, .n_chunks = n_chunks);
    if (qn_imatrix(model, from, to, &opts, &err)) fail_msg("%s: %s", model, err.message);
}

static int64_t count_tokens(const char *model) {
    qn_err err = {0};
    qn_tokenizer *tokenizer;
    int32_t *ids;
    size_t n;
    ASSERT_OK(qn_tokenizer_open(&tokenizer, model, &err));
    ASSERT_OK(qn_tokenize(&ids, &n, tokenizer, text, strlen(text), NULL, &err));
    qn_tokenizer_close(tokenizer);
    qn_free(ids);
    return (int64_t)n;
}

// --- collecting ----------------------------------------------------------------------------------

// The input of the first projections is the norm of the embedding: computed here by hand.
static void sums_are_those_of_the_inputs(void **state) {
    enum { WIDTH = 256 };
    const path_name from = put_text(state, "text.txt", text), out = in_folder(state, "out.gguf");
    collect(model_path, from.text, out.text, 0, 0);
    qn_err err = {0};
    qn_tokenizer *tokenizer;
    int32_t *ids;
    size_t n_ids;
    int64_t n;
    ASSERT_OK(qn_tokenizer_open(&tokenizer, model_path, &err));
    ASSERT_OK(qn_tokenize(&ids, &n_ids, tokenizer, text, strlen(text), NULL, &err));
    qn_source *model = open_well(model_path), *got = open_well(out.text);
    float *embedding = read_floats(model, "token_embd.weight", &n);
    float *scale = read_floats(model, "blk.0.attn_norm.weight", &n);
    double want[WIDTH] = {0};
    for (size_t t = 0; t < n_ids; t++) {
        const float *x = embedding + (size_t)ids[t] * WIDTH;
        double square = 0;
        for (int i = 0; i < WIDTH; i++) square += (double)x[i] * x[i];
        for (int i = 0; i < WIDTH; i++) {
            const double y = x[i] / sqrt(square / WIDTH + 1e-6) * scale[i];
            want[i] += y * y;
        }
    }
    float *sums = read_floats(got, "blk.0.attn_v.weight.in_sum2", &n);
    assert_int_equal(n, WIDTH);
    for (int i = 0; i < WIDTH; i++) assert_true(fabs(sums[i] - want[i]) <= 1e-4 * want[i]);
    float *count = read_floats(got, "blk.0.attn_v.weight.counts", &n);
    assert_int_equal(n, 1);
    assert_true(count[0] == (float)n_ids);
    float *last = read_floats(got, "output.weight.counts", &n);
    assert_true(last[0] == (float)n_ids);
    free(embedding), free(scale), free(sums), free(count), free(last);
    qn_free(ids);
    qn_tokenizer_close(tokenizer);
    qn_source_close(model);
    qn_source_close(got);
}

static void experts_count_their_own(void **state) {
    const path_name from = put_text(state, "text.txt", text), out = in_folder(state, "out.gguf");
    collect(experts_path, from.text, out.text, 0, 0);
    qn_source *got = open_well(out.text), *model = open_well(experts_path);
    const int64_t used = qn_source_find_key(model, "qwen3moe.expert_used_count")->as.i;
    const qn_tensor *t = qn_source_find_tensor(model, "blk.1.ffn_down_exps.weight");
    int64_t n, n_sums;
    float *counts = read_floats(got, "blk.1.ffn_down_exps.weight.counts", &n);
    float *up_counts = read_floats(got, "blk.1.ffn_up_exps.weight.counts", &n);
    float *sums = read_floats(got, "blk.1.ffn_down_exps.weight.in_sum2", &n_sums);
    assert_int_equal(n, t->dims[0]);
    assert_int_equal(n_sums, t->dims[0] * t->dims[2]);
    double all = 0;
    for (int64_t e = 0; e < n; e++) {
        all += counts[e];
        assert_true(counts[e] == up_counts[e]);
        for (int64_t i = 0; i < t->dims[2]; i++)
            assert_true(counts[e] > 0 ? sums[e * t->dims[2] + i] > 0
                                      : sums[e * t->dims[2] + i] == 0);
    }
    assert_true(all == (double)(used * count_tokens(experts_path)));
    free(counts), free(up_counts), free(sums);
    qn_source_close(got);
    qn_source_close(model);
}

// Chunks are independent: halves that begin alike add up; the rest of the text is left out.
static void chunks_are_counted(void **state) {
    const path_name from = put_text(state, "text.txt", text), out = in_folder(state, "out.gguf");
    const int64_t n_tokens = count_tokens(model_path);
    static const struct {
        int64_t chunk, n_chunks;
    } cases[] = {{16, 0}, {16, 2}, {16, 1000}, {7, 0}, {512, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        collect(model_path, from.text, out.text, cases[i].chunk, cases[i].n_chunks);
        qn_source *got = open_well(out.text);
        const int64_t size = cases[i].chunk < n_tokens ? cases[i].chunk : n_tokens;
        int64_t chunks = n_tokens / size, n;
        if (cases[i].n_chunks && cases[i].n_chunks < chunks) chunks = cases[i].n_chunks;
        float *count = read_floats(got, "blk.0.attn_q.weight.counts", &n);
        assert_true(count[0] == (float)(size * chunks));
        assert_int_equal(qn_source_find_key(got, "imatrix.chunk_count")->as.i, chunks);
        assert_int_equal(qn_source_find_key(got, "imatrix.chunk_size")->as.i, size);
        assert_string_equal(qn_source_find_key(got, "general.type")->as.s.data, "imatrix");
        const qn_key *datasets = qn_source_find_key(got, "imatrix.datasets");
        assert_string_equal(qn_key_string_at(datasets, 0).data, "text.txt");
        free(count);
        qn_source_close(got);
    }
}

// A checkpoint gives what its GGUF gives, in the order of the GGUF's columns, up to rounding: its
// heads are summed in another order.
static void checkpoints_give_the_same(void **state) {
    static const char *const families[] = {"qwen3", "qwen35", "qwen35_moe"};
    const path_name from = put_text(state, "text.txt", text), a = in_folder(state, "a.gguf"),
                    b = in_folder(state, "b.gguf");
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        char folder[512], gguf[600];
        snprintf(folder, sizeof folder, "%s/mini/%s", TEST_DATA, families[f]);
        snprintf(gguf, sizeof gguf, "%s/%s-bf16.gguf", folder, families[f]);
        collect(gguf, from.text, a.text, 16, 3);
        collect(folder, from.text, b.text, 16, 3);
        qn_source *x = open_well(a.text), *y = open_well(b.text);
        assert_int_equal(qn_source_n_tensors(x), qn_source_n_tensors(y));
        for (size_t i = 0; i < qn_source_n_tensors(x); i++) {
            int64_t n, m;
            const char *name = qn_source_tensor(x, i)->name.data;
            float *p = read_floats(x, name, &n), *q = read_floats(y, name, &m);
            assert_int_equal(n, m);
            for (int64_t k = 0; k < n; k++) {
                if (fabsf(p[k] - q[k]) > 1e-3f * fabsf(p[k]) + 1e-5f)
                    fail_msg("%s, %s: %g at %d, want %g", families[f], name, (double)q[k], (int)k,
                             (double)p[k]);
            }
            free(p), free(q);
        }
        qn_source_close(x);
        qn_source_close(y);
    }
}

// One segment of a sequence that begins, by the interpreter: (n_experts, width + 1) of each matmul.
typedef struct by_ref {
    qn_engine *engine;
    qn_matmul_inputs inputs;
    const void **params;
    qn_ref *ref;
    int32_t *words;
} by_ref;

static void run_ref(by_ref *r, const char *model, const int32_t *ids, int64_t n) {
    qn_err err = {0};
    size_t words;
    qn_step step;
    const qn_engine_opts how = QN_INIT(qn_engine_opts, .reference = true);
    const int64_t pages = (n + QN_PAGE_ROWS - 1) / QN_PAGE_ROWS;
    const qn_step_sizes sizes = {.rows = n, .segs = 1, .outs = n, .groups = 1, .pages = pages};
    ASSERT_OK(qn_engine_open(&r->engine, model, &how, &err));
    ASSERT_OK(qn_matmul_inputs_init(&r->inputs, &r->engine->model->graph, &err));
    ASSERT_OK(qn_model_params(&r->params, r->engine->model, &r->inputs.graph, &err));
    ASSERT_OK(qn_step_measure(&words, &sizes, &err));
    r->words = qn_alloc(words, sizeof *r->words);
    qn_step_begin(r->words, &sizes, 0, 0);
    memcpy(qn_step_at(r->words, QN_STEP_IDS), ids, (size_t)n * sizeof *ids);
    for (int32_t i = 0; i < pages; i++) qn_step_at(r->words, QN_STEP_SEG_PAGES)[i] = i;
    for (int32_t i = 0; i < n; i++) {
        for (int k = 0; k < 3; k++) qn_step_at(r->words, QN_STEP_POS)[4 * i + k] = i;
        qn_step_at(r->words, QN_STEP_ROW_OUT)[i] = i;
    }
    qn_step_at(r->words, QN_STEP_SEG_ROW)[1] = (int32_t)n;
    qn_step_at(r->words, QN_STEP_SEG_ADAPTER)[0] = -1;
    qn_step_view(&step, r->words);
    const qn_ref_opts opts = {
        .graph = &r->inputs.graph, .params = r->params, .n_pages = pages, .n_slots = 1};
    ASSERT_OK(qn_ref_create(&r->ref, &opts, &err));
    ASSERT_OK(qn_ref_run(r->ref, &step, &err));
}

static void close_ref(by_ref *r) {
    qn_ref_destroy(r->ref);
    qn_free(r->words);
    qn_free(r->params);
    qn_matmul_inputs_deinit(&r->inputs);
    qn_engine_close(r->engine);
}

static double relative_error(const float *got, const float *want, int64_t n) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        difference += pow((double)got[i] - (double)want[i], 2);
        size += pow((double)want[i], 2);
    }
    return sqrt(difference / fmax(size, 1e-30));
}

// What the interpreter sums, which rounds no activation. With weights of floats kernels add in
// another order and nothing else; with blocks they round to 12 bits, of which the largest of 256
// numbers has all (docs/numbers.md): an error of 1e-3 of a row's size or less, and of its square.
static void sums_are_near_the_interpreter(void **state) {
    static const struct {
        const char *path;
        double tolerance;
    } cases[] = {{TEST_DATA "/k256/qwen3/qwen3-bf16.gguf", 1e-5},
                 {TEST_DATA "/mini/qwen3_moe/qwen3_moe-bf16.gguf", 1e-5},
                 {TEST_DATA "/mini/qwen35_moe/qwen35_moe-bf16.gguf", 1e-5},
                 {TEST_DATA "/../../models/quern-mini-Q8_0.gguf", 2e-3}};
    const path_name from = put_text(state, "text.txt", text), out = in_folder(state, "out.gguf");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_err err = {0};
        by_ref r = {0};
        qn_tokenizer *tokenizer;
        int32_t *ids;
        size_t n_ids;
        collect(cases[i].path, from.text, out.text, 0, 0);
        qn_source *got = open_well(out.text);
        ASSERT_OK(qn_tokenizer_open(&tokenizer, cases[i].path, &err));
        ASSERT_OK(qn_tokenize(&ids, &n_ids, tokenizer, text, strlen(text), NULL, &err));
        run_ref(&r, cases[i].path, ids, (int64_t)n_ids);
        assert_true(r.inputs.n > 10);
        for (size_t k = 0; k < r.inputs.n; k++) {
            const qn_matmul_input *m = &r.inputs.items[k];
            char name[256];
            int64_t n, n_sums;
            const qn_weight *w = NULL;
            uint32_t at;
            assert_true(
                qn_map_find(&r.engine->model->weights.by_name, m->weight, strlen(m->weight), &at));
            w = &r.engine->model->weights.items[at];
            snprintf(name, sizeof name, "%s.in_sum2", w->parts[0].tensor->name.data);
            float *sums = read_floats(got, name, &n_sums);
            const float *want = qn_ref_output(r.ref, m->output, &n);
            assert_int_equal(n, m->n_experts * (m->width + 1));
            assert_int_equal(n_sums, m->n_experts * m->width);
            for (int64_t e = 0; e < m->n_experts && !w->order.is_columns; e++) {
                const double error =
                    relative_error(sums + e * m->width, want + e * (m->width + 1), m->width);
                if (error > cases[i].tolerance)
                    fail_msg("%s, %s, expert %d: %g", cases[i].path, name, (int)e, error);
            }
            free(sums);
        }
        close_ref(&r);
        qn_free(ids);
        qn_tokenizer_close(tokenizer);
        qn_source_close(got);
    }
}

static bool never(void *arg) {
    ++*(atomic_int *)arg;
    return false;
}

// A step that is stopped says so, and the runner goes on with other sequences.
static void steps_are_stopped_inside(void **state) {
    (void)state;
    qn_err err = {0};
    qn_engine *engine;
    qn_runner *runner;
    qn_seq *seq;
    atomic_int asked = 0;
    static const int32_t ids[] = {1, 2, 3};
    ASSERT_OK(qn_engine_open(&engine, experts_path, NULL, &err));
    const qn_runner_opts opts = {.engine = engine,
                                 .context = 64,
                                 .rows = 8,
                                 .outs = 1,
                                 .segs = 1,
                                 .n_seqs = 1,
                                 .go_on = never,
                                 .go_on_arg = &asked};
    ASSERT_OK(qn_runner_create(&runner, &opts, &err));
    ASSERT_OK(qn_seq_open(&seq, qn_runner_state(runner), &err));
    const qn_segment segment = {.seq = seq, .ids = ids, .rows = 3, .outs = 1};
    ASSERT_FAILS(qn_runner_step(runner, &segment, 1, &err), QN_STOPPED, "a step of 3 rows");
    assert_true(asked > 10); // piece by piece
    assert_int_equal(qn_seq_length(seq), 0);
    qn_seq_close(seq);
    qn_runner_destroy(runner);
    qn_engine_close(engine);
}

static void special_tokens_are_read_on_request(void **state) {
    const path_name from = put_text(state, "chat.txt", "<|im_end|><|im_end|><|im_end|>"),
                    out = in_folder(state, "out.gguf");
    for (int special = 0; special < 2; special++) {
        qn_err err = {0};
        ASSERT_OK(qn_imatrix(model_path, from.text, out.text,
                             &QN_INIT(qn_imatrix_opts, .special = special), &err));
        qn_source *got = open_well(out.text);
        int64_t n;
        float *count = read_floats(got, "output.weight.counts", &n);
        assert_true(special ? count[0] == 3 : count[0] > 3);
        free(count);
        qn_source_close(got);
    }
}

static void threads_change_nothing(void **state) {
    const path_name from = put_text(state, "text.txt", text);
    char *files[2];
    size_t sizes[2];
    for (int i = 0; i < 2; i++) {
        qn_err err = {0};
        const path_name out = in_folder(state, "out.gguf");
        const qn_imatrix_opts opts = QN_INIT(qn_imatrix_opts, .n_threads = 1 + 2 * i);
        ASSERT_OK(qn_imatrix(experts_path, from.text, out.text, &opts, &err));
        ASSERT_OK(qn_file_load(&files[i], &sizes[i], out.text, 1 << 24, &err));
    }
    assert_int_equal(sizes[0], sizes[1]);
    assert_memory_equal(files[0], files[1], sizes[0]);
    qn_free(files[0]);
    qn_free(files[1]);
}

// While the model is loaded there is nothing to count.
static bool stop(void *arg, int64_t done, int64_t total) {
    int *n = arg;
    assert_true(done <= total);
    return total == 0 || --*n > 0;
}

static bool stop_in_second(void *arg, int64_t done, int64_t total) {
    (void)arg, (void)total;
    return done <= 20; // of 16 in a chunk
}

static bool stop_loading(void *arg, int64_t done, int64_t total) {
    (void)arg, (void)done;
    return total != 0;
}

static void collecting_can_fail(void **state) {
    const path_name from = put_text(state, "text.txt", text), out = in_folder(state, "out.gguf"),
                    empty = put_text(state, "empty.txt", "");
    qn_err err = {0};
    int n = 2;
    const qn_imatrix_opts stopping =
        QN_INIT(qn_imatrix_opts, .chunk = 16, .progress = stop, .progress_arg = &n);
    ASSERT_FAILS(qn_imatrix(model_path, from.text, out.text, &stopping, &err), QN_STOPPED,
                 "stopped before the first chunk was done; the text has ");
    const qn_imatrix_opts later = QN_INIT(qn_imatrix_opts, .chunk = 16, .progress = stop_in_second);
    ASSERT_FAILS(qn_imatrix(model_path, from.text, out.text, &later, &err), QN_STOPPED,
                 "stopped after 16 of ");
    const qn_imatrix_opts soon = QN_INIT(qn_imatrix_opts, .progress = stop_loading);
    ASSERT_FAILS(qn_imatrix(model_path, from.text, out.text, &soon, &err), QN_STOPPED, "");
    ASSERT_FAILS(qn_imatrix(model_path, empty.text, out.text, NULL, &err), QN_FORMAT, "no text");
    ASSERT_FAILS(qn_imatrix(model_path, from.text, from.text, NULL, &err), QN_ARGUMENT,
                 "is an input");
    ASSERT_FAILS(qn_imatrix(model_path, in_folder(state, "no").text, out.text, NULL, &err), QN_IO,
                 "cannot open");
    ASSERT_FAILS(qn_imatrix(model_path, from.text, out.text,
                            &QN_INIT(qn_imatrix_opts, .chunk = 1 << 30), &err),
                 QN_LIMIT, "the context has");
    ASSERT_FAILS(
        qn_imatrix(model_path, from.text, out.text, &QN_INIT(qn_imatrix_opts, .chunk = -1), &err),
        QN_ARGUMENT, "chunks of -1");
    ASSERT_FAILS(qn_imatrix(NULL, from.text, out.text, NULL, &err), QN_ARGUMENT, "a model");
    assert_int_equal(count_files(state), 2);
}

// --- using ---------------------------------------------------------------------------------------

typedef struct log_lines {
    qn_buf text;
} log_lines;

static void keep_line(void *arg, qn_log_level level, const char *message) {
    log_lines *lines = arg;
    qn_buf_printf(&lines->text, "%d %s\n", (int)level, message);
}

// The error of a weight's outputs on inputs like those of the text.
static double weighted_error(const char *path, const char *importance, const char *name) {
    char sums_name[128];
    int64_t n, width, m;
    snprintf(sums_name, sizeof sums_name, "%s.in_sum2", name);
    qn_source *got = open_well(path), *exact = open_well(model_path), *imp = open_well(importance);
    float *x = read_floats(got, name, &n), *y = read_floats(exact, name, &m),
          *w = read_floats(imp, sums_name, &width);
    assert_int_equal(n, m);
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)w[i % width] * pow((double)x[i] - y[i], 2);
    free(x), free(y), free(w);
    qn_source_close(got);
    qn_source_close(exact);
    qn_source_close(imp);
    return sum;
}

static void importance_makes_outputs_better(void **state) {
    static const char *const types[] = {"Q2_K", "Q3_K_S", "Q4_0", "Q4_K_S", "IQ4_XS", "Q5_1"};
    const path_name from = put_text(state, "text.txt", text), imp = in_folder(state, "imp.gguf");
    const path_name plain = in_folder(state, "plain.gguf"), out = in_folder(state, "out.gguf");
    collect(model_path, from.text, imp.text, 0, 0);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        qn_err err = {0};
        log_lines lines = {0};
        qn_quantize_opts opts = QN_INIT(qn_quantize_opts, .type = types[i], .pure = true,
                                        .log = keep_line, .log_arg = &lines);
        ASSERT_OK(qn_quantize(model_path, plain.text, &opts, &err));
        assert_int_equal(lines.text.size, 0);
        opts.imatrix = imp.text;
        ASSERT_OK(qn_quantize(model_path, out.text, &opts, &err));
        assert_string_equal(lines.text.data,
                            "2 1 matrix has no entry in the importance file, such as "
                            "token_embd.weight: all columns count alike there\n");
        qn_buf_deinit(&lines.text);
        const double a = weighted_error(out.text, imp.text, "blk.1.ffn_down.weight");
        const double b = weighted_error(plain.text, imp.text, "blk.1.ffn_down.weight");
        print_message("%-7s output error %.3f of that without importance\n", types[i], sqrt(a / b));
        assert_true(a < b);
        qn_source *source = open_well(out.text);
        assert_int_equal(qn_source_find_key(source, "quantize.imatrix.entries_count")->as.i, 15);
        assert_int_equal(qn_source_find_key(source, "quantize.imatrix.chunks_count")->as.i, 1);
        assert_string_equal(qn_source_find_key(source, "quantize.imatrix.file")->as.s.data,
                            "imp.gguf");
        assert_string_equal(qn_source_find_key(source, "quantize.imatrix.dataset")->as.s.data,
                            "text.txt");
        qn_source_close(source);
    }
}

// A hand-made file: two experts, of which one was never used.
static void unused_experts_count_alike(void **state) {
    const path_name path = in_folder(state, "imp.gguf");
    const float sums[2][4] = {{2, 4, 0, 8}, {0, 0, 0, 0}}, counts[2] = {2, 0};
    gguf_writer w = {0};
    gguf_add_string(&w, "general.type", "imatrix");
    gguf_add_tensor(&w, "w.weight.in_sum2", 0, 2, (int64_t[]){2, 4}, sums, sizeof sums);
    gguf_add_tensor(&w, "w.weight.counts", 0, 2, (int64_t[]){2, 1}, counts, sizeof counts);
    gguf_write(&w, path.text);
    qn_err err = {0};
    qn_importance *imp;
    ASSERT_OK(qn_importance_open(&imp, path.text, &err));
    assert_int_equal(qn_importance_n_entries(imp), 1);
    assert_int_equal(qn_importance_n_chunks(imp), 0);
    assert_string_equal(qn_importance_dataset(imp), "");
    qn_tensor t = {.name = qn_str_of("w.weight"), .n_dims = 3, .dims = {2, 3, 4}};
    float *weights;
    ASSERT_OK(qn_importance_load(&weights, imp, &t, &err));
    const float want[8] = {1, 2, 0, 4, 1, 1, 1, 1};
    assert_memory_equal(weights, want, sizeof want);
    qn_free(weights);
    t.name = qn_str_of("other.weight");
    ASSERT_OK(qn_importance_load(&weights, imp, &t, &err));
    assert_null(weights);
    t = (qn_tensor){.name = qn_str_of("w.weight"), .n_dims = 3, .dims = {4, 3, 2}};
    ASSERT_FAILS(qn_importance_load(&weights, imp, &t, &err), QN_FORMAT,
                 "w.weight: importance of 2 experts and 4 columns, the weight has 4 and 2");
    t = (qn_tensor){.name = qn_str_of("w.weight"), .n_dims = 2, .dims = {3, 8}};
    ASSERT_FAILS(qn_importance_load(&weights, imp, &t, &err), QN_FORMAT, "the weight has 1 and 8");
    qn_importance_close(imp);
}

static void lies_are_refused(void **state) {
    static const float good[4] = {1, 2, 3, 4}, one[1] = {1};
    static const float bad_nan[4] = {1, NAN, 3, 4}, bad_inf[4] = {1, 2, 3, INFINITY},
                       negative[4] = {1, 2, -3, 4};
    const struct {
        const char *type; // general.type
        const char *sums, *counts;
        const void *data;
        uint32_t number_type;
        int64_t n_sums, n_counts;
        const char *part;
    } cases[] = {
        {"model", "w.in_sum2", "w.counts", good, 0, 4, 1,
         "general.type is 'model', want 'imatrix'"},
        {"imatrix", "w.in_sum2", "v.counts", good, 0, 4, 1, "w: has .in_sum2 but no .counts"},
        {"imatrix", "w.in_sum3", "w.counts", good, 0, 4, 1, "no part of an importance file"},
        {"imatrix", ".in_sum2", "w.counts", good, 0, 4, 1, "no part of an importance file"},
        {"imatrix", "w.in_sum2", "w.counts", bad_nan, 0, 4, 1,
         "w.in_sum2: value nan at position 1"},
        {"imatrix", "w.in_sum2", "w.counts", bad_inf, 0, 4, 1,
         "w.in_sum2: value inf at position 3"},
        {"imatrix", "w.in_sum2", "w.counts", negative, 0, 4, 1,
         "w.in_sum2: value -3 at position 2"},
        {"imatrix", "w.in_sum2", "w.counts", good, 1, 4, 1, "w.in_sum2: type F16, want F32"},
        {"imatrix", "w.in_sum2", "w.counts", good, 0, 4, 3, "w: 4 sums for 3 counts"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const path_name path = in_folder(state, "imp.gguf"), out = in_folder(state, "out.gguf");
        gguf_writer w = {0};
        gguf_add_string(&w, "general.type", cases[i].type);
        gguf_add_tensor(&w, cases[i].sums, cases[i].number_type, 1, &cases[i].n_sums, cases[i].data,
                        cases[i].number_type ? 8 : 16);
        gguf_add_tensor(&w, cases[i].counts, 0, 1, &cases[i].n_counts,
                        cases[i].n_counts == 1 ? one : good, (size_t)cases[i].n_counts * 4);
        gguf_write(&w, path.text);
        qn_err err = {0};
        const qn_quantize_opts opts =
            QN_INIT(qn_quantize_opts, .type = "Q4_0", .imatrix = path.text);
        ASSERT_FAILS(qn_quantize(experts_path, out.text, &opts, &err), QN_FORMAT, cases[i].part);
        assert_int_equal(count_files(state), 1);
    }
}

// A file that is whole but of another model: no name is the same.
static void files_of_other_models_are_refused(void **state) {
    static const float sums[4] = {1, 2, 3, 4}, one[1] = {1};
    const path_name path = in_folder(state, "imp.gguf"), out = in_folder(state, "out.gguf");
    const char *const models[] = {model_path, TEST_DATA "/mini/qwen3"};
    gguf_writer w = {0};
    gguf_add_string(&w, "general.type", "imatrix");
    gguf_add_tensor(&w, "w.weight.in_sum2", 0, 1, (int64_t[]){4}, sums, sizeof sums);
    gguf_add_tensor(&w, "w.weight.counts", 0, 1, (int64_t[]){1}, one, sizeof one);
    gguf_write(&w, path.text);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        qn_err err = {0};
        char want[1024];
        const qn_quantize_opts opts =
            QN_INIT(qn_quantize_opts, .type = "Q4_0", .imatrix = path.text);
        snprintf(want, sizeof want, "imp.gguf: no tensor of %s is in it; was it made from this",
                 models[i]);
        ASSERT_FAILS(qn_quantize(models[i], out.text, &opts, &err), QN_ARGUMENT, want);
        assert_int_equal(count_files(state), 1);
    }
}

// --- the older form ------------------------------------------------------------------------------

static void put_i32(qn_buf *to, int32_t n) {
    const uint8_t bytes[] = {(uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(n >> 16), (uint8_t)(n >> 24)};
    qn_buf_add(to, (const char *)bytes, sizeof bytes);
}

static void put_entry(qn_buf *to, const char *name, int32_t calls, const float *values, int32_t n) {
    put_i32(to, (int32_t)strlen(name));
    qn_buf_add(to, name, strlen(name));
    put_i32(to, calls);
    put_i32(to, n);
    qn_buf_add(to, (const char *)values, (size_t)n * sizeof *values);
}

static void put_end(qn_buf *to, int32_t chunks, const char *dataset) {
    put_i32(to, chunks);
    put_i32(to, (int32_t)strlen(dataset));
    qn_buf_add(to, dataset, strlen(dataset));
}

// What a GGUF file says, in the older form; means times `calls`, as it was written.
static path_name write_older(void **state, const char *from, int32_t calls) {
    static const char ending[] = ".in_sum2";
    qn_buf bytes = {0};
    qn_source *source = open_well(from);
    const size_t n = qn_source_n_tensors(source);
    put_i32(&bytes, (int32_t)(n / 2));
    for (size_t i = 0; i < n; i++) {
        char name[256], counts_name[300];
        int64_t n_sums, n_counts;
        const qn_str full = qn_source_tensor(source, i)->name;
        if (!strstr(full.data, ending)) continue;
        snprintf(name, sizeof name, "%.*s", (int)(full.size - strlen(ending)), full.data);
        snprintf(counts_name, sizeof counts_name, "%s.counts", name);
        float *sums = read_floats(source, full.data, &n_sums),
              *counts = read_floats(source, counts_name, &n_counts);
        for (int64_t k = 0; k < n_sums; k++) {
            const float count = counts[k / (n_sums / n_counts)];
            sums[k] = count > 0 ? sums[k] / count * (float)calls : 0;
        }
        put_entry(&bytes, name, calls, sums, (int32_t)n_sums);
        free(sums), free(counts);
    }
    put_end(&bytes, 3, "text.txt");
    qn_source_close(source);
    const path_name path = put_file(state, "imatrix.dat", bytes.data, bytes.size);
    qn_buf_deinit(&bytes);
    return path;
}

// A power of two divides exactly: the same importance gives the same bytes, with experts too.
static void older_files_say_the_same(void **state) {
    const char *const models[] = {model_path, experts_path};
    const path_name from = put_text(state, "text.txt", text), imp = in_folder(state, "imp.gguf");
    const path_name a = in_folder(state, "a.gguf"), b = in_folder(state, "b.gguf");
    for (size_t i = 0; i < 2; i++) {
        qn_err err = {0};
        collect(models[i], from.text, imp.text, 16, 3);
        const path_name old = write_older(state, imp.text, 64);
        qn_quantize_opts opts = QN_INIT(qn_quantize_opts, .type = i ? "Q4_0" : "Q4_K_S");
        opts.imatrix = imp.text;
        ASSERT_OK(qn_quantize(models[i], a.text, &opts, &err));
        opts.imatrix = old.text;
        ASSERT_OK(qn_quantize(models[i], b.text, &opts, &err));
        qn_source *x = open_well(a.text), *y = open_well(b.text);
        for (size_t t = 0; t < qn_source_n_tensors(x); t++) {
            const char *name = qn_source_tensor(x, t)->name.data;
            int64_t n, m;
            float *p = read_floats(x, name, &n), *q = read_floats(y, name, &m);
            assert_int_equal(n, m);
            assert_memory_equal(p, q, (size_t)n * sizeof *p);
            free(p), free(q);
        }
        assert_int_equal(qn_source_find_key(y, "quantize.imatrix.entries_count")->as.i,
                         qn_source_find_key(x, "quantize.imatrix.entries_count")->as.i);
        assert_int_equal(qn_source_find_key(y, "quantize.imatrix.chunks_count")->as.i, 3);
        assert_string_equal(qn_source_find_key(y, "quantize.imatrix.file")->as.s.data,
                            "imatrix.dat");
        assert_string_equal(qn_source_find_key(y, "quantize.imatrix.dataset")->as.s.data,
                            "text.txt");
        qn_source_close(x);
        qn_source_close(y);
    }
}

// A file made by hand: the oldest kind ends after its entries; what no input met counts alike.
static void older_files_are_divided_by_their_calls(void **state) {
    const float values[8] = {2, 4, 0, 8, 0, 0, 0, 0}, want[8] = {0.5f, 1, 0, 2, 1, 1, 1, 1};
    qn_buf bytes = {0};
    qn_err err = {0};
    qn_importance *imp;
    float *weights;
    put_i32(&bytes, 2);
    put_entry(&bytes, "w.weight", 4, values, 8);
    put_entry(&bytes, "v.weight", 1, values, 1);
    const path_name path = put_file(state, "oldest.dat", bytes.data, bytes.size);
    ASSERT_OK(qn_importance_open(&imp, path.text, &err));
    assert_int_equal(qn_importance_n_entries(imp), 2);
    assert_int_equal(qn_importance_n_chunks(imp), 0);
    assert_string_equal(qn_importance_dataset(imp), "");
    qn_tensor t = {.name = qn_str_of("w.weight"), .n_dims = 3, .dims = {2, 3, 4}};
    ASSERT_OK(qn_importance_load(&weights, imp, &t, &err));
    assert_memory_equal(weights, want, sizeof want);
    qn_free(weights);
    t.dims[2] = 5;
    ASSERT_FAILS(qn_importance_load(&weights, imp, &t, &err), QN_FORMAT,
                 "w.weight: importance of 8 columns, the weight has 10");
    t.name = qn_str_of("other.weight");
    ASSERT_OK(qn_importance_load(&weights, imp, &t, &err));
    assert_null(weights);
    qn_importance_close(imp);
    qn_buf_deinit(&bytes);
}

// Opens bytes, which must fail and say why.
static void refuse_older(void **state, const qn_buf *bytes, const char *part) {
    qn_err err = {0};
    qn_importance *imp = NULL;
    const path_name path = put_file(state, "bad.dat", bytes->data, bytes->size);
    ASSERT_FAILS(qn_importance_open(&imp, path.text, &err), QN_FORMAT, part);
    assert_non_null(strstr(err.message, "bad.dat"));
    assert_null(imp);
}

static void older_files_that_lie_are_refused(void **state) {
    static const float good[4] = {1, 2, 3, 4}, bad_nan[4] = {1, NAN, 3, 4},
                       negative[4] = {1, 2, -3, 4};
    char long_name[300];
    memset(long_name, 'w', sizeof long_name);
    long_name[299] = 0;
    const struct {
        int32_t n_entries, calls, n_values; // n_values: as the file says
        const char *name;
        const float *values;
        const char *part;
    } cases[] = {
        {0, 1, 4, "w", good, "0 entries in 52 bytes"},
        {-1, 1, 4, "w", good, "-1 entries in 52 bytes"},
        {INT32_MAX, 1, 4, "w", good, "2147483647 entries in 52 bytes"},
        {2, 1, 4, "w", good, "a NUL among the 2 bytes of a name at byte 37"},
        {1, 0, 4, "w", good, "0 calls at byte 9, want 1"},
        {1, -7, 4, "w", good, "-7 calls at byte 9"},
        {1, 1, 0, "w", good, "0 values at byte 13"},
        {1, 1, INT32_MAX, "w", good, "w: 2147483647 values in the last 35 bytes"},
        {1, 1, 3, "w", good, "a NUL among the 2 bytes of the name of the text at byte 37"},
        {1, 1, 4, "", good, "0 bytes of a name at byte 4, want 1"},
        {1, 1, 4, long_name, good, "299 bytes of a name at byte 4, want 1 to 255"},
        {1, 1, 4, "w", bad_nan, "w: value nan at position 1"},
        {1, 1, 4, "w", negative, "w: value -3 at position 2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_buf bytes = {0};
        const size_t name_size = strlen(cases[i].name);
        put_i32(&bytes, cases[i].n_entries);
        put_entry(&bytes, cases[i].name, cases[i].calls, cases[i].values, 4);
        for (int k = 0; k < 4; k++)
            bytes.data[12 + name_size + (size_t)k] = (char)(cases[i].n_values >> 8 * k);
        put_end(&bytes, 2, "t.text.text");
        refuse_older(state, &bytes, cases[i].part);
        qn_buf_deinit(&bytes);
    }
}

static void older_files_are_read_to_their_end(void **state) {
    static const float good[4] = {1, 2, 3, 4};
    qn_buf bytes = {0};
    qn_err err = {0};
    put_i32(&bytes, 2);
    put_entry(&bytes, "w", 1, good, 4);
    put_entry(&bytes, "v", 1, good, 4);
    const size_t end = bytes.size;
    put_end(&bytes, 2, "text");
    const size_t size = bytes.size;
    for (size_t n = 0; n <= size; n++) {
        qn_importance *imp = NULL;
        const path_name cut = put_file(state, "cut.dat", bytes.data, n);
        if (n == end || n == size)
            ASSERT_OK(qn_importance_open(&imp, cut.text, &err));
        else
            ASSERT_FAILS(qn_importance_open(&imp, cut.text, &err), QN_FORMAT, "cut.dat");
        qn_importance_close(imp);
    }
    qn_buf_add(&bytes, "!", 1);
    refuse_older(state, &bytes, "1 bytes after its end");
    bytes.size = end;
    bytes.data[8] = 0; // of the first name
    refuse_older(state, &bytes, "a NUL among the 1 bytes of a name at byte 8");
    bytes.data[8] = 'v';
    refuse_older(state, &bytes, "v: entries 0 and 1");
    qn_buf_deinit(&bytes);
}

static void other_files_are_refused(void **state) {
    const path_name out = in_folder(state, "out.gguf"), none = in_folder(state, "none.gguf"),
                    from = put_text(state, "text.txt", text), imp = in_folder(state, "imp.gguf");
    qn_err err = {0};
    gguf_writer w = {0};
    gguf_add_string(&w, "general.type", "imatrix");
    gguf_write(&w, none.text);
    const struct {
        const char *path;
        qn_status status;
        const char *part;
    } cases[] = {{none.text, QN_FORMAT, "it has no entries"},
                 {model_path, QN_FORMAT, "general.type is 'model'"},
                 {from.text, QN_FORMAT,
                  "text.txt: not an importance file, neither GGUF nor the older kind: 543516756 "
                  "entries in "},
                 {TEST_DATA "/no.gguf", QN_IO, "no.gguf"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const qn_quantize_opts opts =
            QN_INIT(qn_quantize_opts, .type = "Q4_0", .imatrix = cases[i].path);
        ASSERT_FAILS(qn_quantize(experts_path, out.text, &opts, &err), cases[i].status,
                     cases[i].part);
    }
    collect(model_path, from.text, imp.text, 16, 1);
    // Of another model: the columns do not fit.
    const qn_quantize_opts opts = QN_INIT(qn_quantize_opts, .type = "Q4_0", .imatrix = imp.text);
    ASSERT_FAILS(qn_quantize(experts_path, out.text, &opts, &err), QN_FORMAT, "importance of 1");
    ASSERT_FAILS(qn_quantize(model_path, imp.text, &opts, &err), QN_ARGUMENT,
                 "is the importance file");
    // Every cut is noticed; the last bytes only fill up.
    char *bytes;
    size_t size;
    ASSERT_OK(qn_file_load(&bytes, &size, imp.text, 1 << 20, &err));
    for (size_t n = 0; n < size - 32; n += 37) {
        const path_name cut = put_file(state, "cut.gguf", bytes, n);
        qn_importance *importance = NULL;
        // What has GGUF's mark is told what is wrong with it.
        ASSERT_FAILS(qn_importance_open(&importance, cut.text, &err), QN_FORMAT, cut.text);
        assert_true(!strstr(err.message, "not an importance file") == (n >= 4));
        assert_null(importance);
    }
    qn_free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(sums_are_those_of_the_inputs),
        FOLDER_TEST(experts_count_their_own),
        FOLDER_TEST(chunks_are_counted),
        FOLDER_TEST(checkpoints_give_the_same),
        FOLDER_TEST(sums_are_near_the_interpreter),
        cmocka_unit_test(steps_are_stopped_inside),
        FOLDER_TEST(special_tokens_are_read_on_request),
        FOLDER_TEST(threads_change_nothing),
        FOLDER_TEST(collecting_can_fail),
        FOLDER_TEST(importance_makes_outputs_better),
        FOLDER_TEST(unused_experts_count_alike),
        FOLDER_TEST(lies_are_refused),
        FOLDER_TEST(files_of_other_models_are_refused),
        FOLDER_TEST(older_files_say_the_same),
        FOLDER_TEST(older_files_are_divided_by_their_calls),
        FOLDER_TEST(older_files_that_lie_are_refused),
        FOLDER_TEST(older_files_are_read_to_their_end),
        FOLDER_TEST(other_files_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
