// quern bench and compile, traces and profiles, and the options of computing.
#include "cli_run.h"

#include <dirent.h>
#include <math.h>

static double real_of(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    if (!json_is_number(value)) fail_msg("no number '%s'", name);
    return json_number_value(value);
}

static void assert_null_member(const json_t *object, const char *name) {
    if (!json_is_null(json_object_get(object, name))) fail_msg("'%s' is not null", name);
}

// --- bench ---------------------------------------------------------------------------------------

static void check_row(const json_t *row, const char *test, int n, int depth, int batch) {
    assert_string_equal(json_string_value(json_object_get(row, "test")), test);
    assert_int_equal((int)real_of(row, "n"), n);
    assert_int_equal((int)real_of(row, "depth"), depth);
    assert_int_equal((int)real_of(row, "batch"), batch);
    assert_true(real_of(row, "tps_min") > 0);
    assert_true(real_of(row, "tps_min") <= real_of(row, "tps"));
    assert_true(real_of(row, "tps") <= real_of(row, "tps_max"));
}

static void test_bench_json(void **state) {
    (void)state;
    static const char *const models[] = {DRAFT, MODELS "/quern-hybrid-Q8_0.gguf", MINI "/gemma3"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        cli_result r = CLI_RUN("bench", models[i], "-p", "8", "-n", "3", "-d", "0,20", "-r", "2",
                               "-t", "1", "--json");
        cli_assert_done(&r);
        json_t *root = cli_json(r.out);
        const json_t *rows = json_object_get(root, "results");
        assert_string_equal(json_string_value(json_object_get(root, "model")), models[i]);
        assert_int_equal((int)real_of(root, "threads"), 1);
        assert_null_member(root, "limits");
        assert_true(real_of(root, "rss_mib") > 1);
        assert_null(json_object_get(root, "open"));
        assert_int_equal(json_array_size(rows), 4);
        check_row(json_array_get(rows, 0), "prefill", 8, 0, 1);
        check_row(json_array_get(rows, 1), "decode", 3, 0, 1);
        check_row(json_array_get(rows, 2), "prefill", 8, 20, 1);
        check_row(json_array_get(rows, 3), "decode", 3, 20, 1);
        for (size_t k = 0; k < 4; k++) {
            assert_null_member(json_array_get(rows, k), "limit_tps");
            assert_null_member(json_array_get(rows, k), "share");
        }
        json_decref(root);
        cli_free(&r);
    }
}

// Small models are read from caches: faster than the limit, which is that of memory.
static void shares_above_the_limit_are_explained(void **state) {
    (void)state;
    cli_result r = CLI_RUN("bench", DRAFT, "-p", "8", "-n", "8", "-r", "2", "--limits");
    cli_assert_done(&r);
    bool is_above = false;
    for (const char *at = r.out; (at = strstr(at, " %\n")); at++) {
        const char *number = at;
        while (number > r.out && strchr("0123456789.", number[-1])) number--;
        is_above |= strtod(number, NULL) > 100;
    }
    assert_int_equal(is_above, strstr(r.out, "A share above 100 %:") != NULL);
    cli_free(&r);
}

// Several sequences decode together; reading stays that of one.
static void test_bench_batch(void **state) {
    (void)state;
    static const char *const models[] = {DRAFT, MODELS "/quern-hybrid-Q8_0.gguf"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        cli_result r = CLI_RUN("bench", models[i], "-p", "4", "-n", "3", "-d", "0,70", "-r", "2",
                               "-b", "3", "--json");
        cli_assert_done(&r);
        json_t *root = cli_json(r.out);
        const json_t *rows = json_object_get(root, "results");
        assert_int_equal(json_array_size(rows), 4);
        check_row(json_array_get(rows, 0), "prefill", 4, 0, 1);
        check_row(json_array_get(rows, 1), "decode", 3, 0, 3);
        check_row(json_array_get(rows, 2), "prefill", 4, 70, 1);
        check_row(json_array_get(rows, 3), "decode", 3, 70, 3);
        json_decref(root);
        cli_free(&r);
    }
    cli_result many = CLI_RUN("bench", DRAFT, "-p4", "-n2", "-r1", "-b", "260", "--json");
    cli_assert_done(&many);
    json_t *root = cli_json(many.out);
    check_row(json_array_get(json_object_get(root, "results"), 1), "decode", 2, 0, 260);
    json_decref(root);
    cli_free(&many);
}

// --- limits of the machine ---

static void check_limits(const json_t *limits, int threads) {
    assert_int_equal((int)real_of(limits, "threads"), threads);
    assert_true(real_of(limits, "read_gbs") > 0);
    assert_true(real_of(limits, "f32_gflops") > 0);
    if (!json_is_null(json_object_get(limits, "int8_tops")))
        assert_true(real_of(limits, "int8_tops") > 0);
}

static void test_limits_alone(void **state) {
    (void)state;
    cli_result r = CLI_RUN("bench", "--limits", "-t", "2", "--json");
    cli_assert_done(&r);
    json_t *root = cli_json(r.out);
    const json_t *limits = json_object_get(root, "limits");
    check_limits(limits, 2);
    check_limits(json_object_get(limits, "one_thread"), 1);
    const char *level = json_string_value(json_object_get(limits, "level"));
    assert_non_null(level);
    assert_int_equal(json_is_null(json_object_get(limits, "int8_tops")),
                     strcmp(level, "portable") == 0);
    json_decref(root);
    cli_free(&r);
}

// The limit of a row is that of its step: the longer of reading and computing.
static void check_step(const json_t *row, const json_t *limits) {
    const json_t *step = json_object_get(row, "step");
    const double reading = (real_of(step, "weight_bytes") + real_of(step, "state_bytes")) /
                           (real_of(limits, "read_gbs") * 1e9);
    const double computing = real_of(step, "int_ops") / (real_of(limits, "int8_tops") * 1e12) +
                             real_of(step, "float_ops") / (real_of(limits, "f32_gflops") * 1e9);
    const double limit = real_of(step, "rows") / fmax(reading, computing);
    assert_true(fabs(limit / real_of(row, "limit_tps") - 1) < 1e-6);
}

// Every row is told as a share of its limit, and drawn.
static void test_limits_of_rows(void **state) {
    (void)state;
    char *svg = strdup(cli_path("roof.svg"));
    cli_result r = CLI_RUN("bench", DRAFT, "-p", "8", "-n", "3", "-d", "0,20", "-r", "1", "-t1",
                           "--json", "--svg", svg);
    cli_assert_done(&r);
    json_t *root = cli_json(r.out);
    const json_t *limits = json_object_get(root, "limits"), *row;
    const json_t *rows = json_object_get(root, "results");
    check_limits(limits, 1);
    assert_null(json_object_get(limits, "one_thread"));
    if (json_is_null(json_object_get(limits, "int8_tops"))) skip(); // nothing to compare with
    size_t i;
    json_array_foreach(rows, i, row) {
        const double share = real_of(row, "tps") / real_of(row, "limit_tps");
        assert_true(fabs(share / real_of(row, "share") - 1) < 1e-6);
        check_step(row, limits);
    }
    // After more tokens, more is read for each.
    assert_true(real_of(json_array_get(rows, 3), "limit_tps") <
                real_of(json_array_get(rows, 1), "limit_tps"));
    char *page = cli_load(svg, NULL);
    static const char *const parts[] = {
        "<svg ", "quern-draft-Q8_0.gguf</title>", "GB/s", "prefill", "decode", "</svg>\n"};
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
        if (!strstr(page, parts[k])) fail_msg("no '%s' in the picture", parts[k]);
    }
    assert_null(strstr(page, "nan"));
    assert_null(strstr(page, "inf"));
    json_decref(root);
    free(page);
    free(svg);
    cli_free(&r);
}

// What a step reads, against the tensors of the file: every matrix once, the embedding table for
// the output matrix that it is.
static void test_cost_of_file(void **state) {
    (void)state;
    qn_err err;
    qn_engine *engine;
    qn_source *source;
    const qn_engine_opts opts = QN_INIT(qn_engine_opts, .no_weights = true);
    ASSERT_OK(qn_engine_open(&engine, DRAFT, &opts, &err));
    ASSERT_OK(qn_source_open(&source, DRAFT, &err));
    double bytes = 0, ops = 0;
    bool has_output = false;
    for (size_t i = 0; i < qn_source_n_tensors(source); i++) {
        const qn_tensor_info t = tensor_info(source, i);
        has_output = has_output || strcmp(t.name, "output.weight") == 0;
        if (t.n_dims < 2) continue;
        bytes += (double)t.bytes;
        ops += 2 * (double)t.dims[0] * (double)t.dims[1];
    }
    assert_false(has_output); // the table is the output matrix
    const qn_engine_info info = engine_info(engine);
    const qn_step_size one = QN_INIT(qn_step_size, .rows = 1, .seqs = 1, .depth = 0, .outs = 1),
                       deep = QN_INIT(qn_step_size, .rows = 3, .seqs = 3, .depth = 100, .outs = 0);
    const qn_cost cost = engine_cost(engine, &one), many = engine_cost(engine, &deep);
    assert_true(cost.weight_bytes == bytes);
    assert_true(cost.int_ops == ops && cost.float_ops == 0);
    assert_true(cost.state_bytes == 0);
    const double head = (double)(info.n_vocab * info.width); // not computed in the second
    assert_true(many.int_ops == 3 * (ops - 2 * head));
    assert_true(many.state_bytes ==
                3.0 * 100 * 2 * 2 * (double)(info.n_layers * info.n_kv_heads * info.head_size));
    qn_source_close(source);
    qn_engine_close(engine);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { IS_SANITIZED = 1 };
#elif defined(__has_feature)
enum { IS_SANITIZED = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) };
#else
enum { IS_SANITIZED = 0 };
#endif

// What `inspect --memory` says before, a run that uses its whole context holds in the end. The
// model is small: a long context in float32 makes it large against the program's own pages, of
// which the system keeps more or fewer in memory from run to run.
static void test_memory_is_predicted(void **state) {
    (void)state;
    static const char model[] = MODELS "/quern-mini-Q8_0.gguf";
    if (IS_SANITIZED) skip(); // a sanitizer takes memory of its own
    cli_result plan =
        CLI_RUN("inspect", model, "--memory", "-c", "2000", "--json", "--cache-type", "f32");
    cli_result run = CLI_RUN("bench", model, "-p", "1900", "-n", "100", "-r", "1", "-d", "0",
                             "--json", "--cache-type", "f32");
    cli_assert_done(&plan);
    cli_assert_done(&run);
    json_t *said = cli_json(plan.out), *done = cli_json(run.out);
    const json_t *row = json_array_get(json_object_get(said, "memory"), 0);
    const double want = real_of(row, "resident") / (1 << 20), got = real_of(done, "rss_mib");
    print_message("%.1f MiB predicted, %.1f held\n", want, got);
    assert_true(fabs(want - got) <= 0.05 * got);
    json_decref(said);
    json_decref(done);
    cli_free(&plan);
    cli_free(&run);
}

static void test_bench_text(void **state) {
    (void)state;
    cli_result r = CLI_RUN("bench", DRAFT, "-p4", "-n2", "-d3,5", "-r1", "--numerics", "fast");
    cli_assert_done(&r);
    static const char *const parts[] = {
        "quern-draft-Q8_0.gguf: qwen3, ",   "numerics fast", "prefill        4       3      1 ",
        "decode         2       5      1 ", "of first",      " MiB at most"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!strstr(r.out, parts[i])) fail_msg("no '%s' in '%s'", parts[i], r.out);
    }
    cli_free(&r);
}

// Opening twice leaves no folder behind, and finds the weights the second time.
static void test_bench_open(void **state) {
    (void)state;
    const char *folder = cli_path("bench-cache");
    cli_result own = CLI_RUN("bench", DRAFT, "-p4", "-n2", "-r1", "--open", "--json", "--cache-dir",
                             folder),
               text = CLI_RUN("bench", DRAFT, "-p4", "-n2", "-r1", "--open");
    cli_assert_done(&own);
    cli_assert_done(&text);
    json_t *root = cli_json(own.out);
    const json_t *open = json_object_get(root, "open");
    assert_true(real_of(open, "cold_s") > 0 && real_of(open, "warm_s") > 0);
    assert_true(real_of(open, "cached_bytes") > 0);
    assert_non_null(strstr(text.out, "open cold"));
    assert_non_null(strstr(text.out, "open warm"));
    json_decref(root);
    cli_free(&own), cli_free(&text);
}

static void test_bench_limits(void **state) {
    (void)state;
    cli_result deep = CLI_RUN("bench", DRAFT, "-d", "2000", "-p", "100", "-n", "2", "-r1"),
               full = CLI_RUN("bench", DRAFT, "-d", "2047", "-r1"),
               lost = CLI_RUN("bench", cli_path("nothing.gguf"), "--open");
    cli_assert_fails(&deep, 1, "need a context of 2100, the model has 2048");
    cli_assert_fails(&full, 1, "need a context of 2049, the model has 2048");
    cli_assert_fails(&lost, 1, "nothing.gguf");
    cli_free(&deep), cli_free(&full), cli_free(&lost);
}

// --- traces --------------------------------------------------------------------------------------

typedef struct seen {
    int calls, steps, prefill, decode;
    double time; // of calls
} seen;

static void look_at(seen *s, const json_t *event) {
    const char *phase = json_string_value(json_object_get(event, "ph"));
    if (strcmp(phase, "M") == 0) return; // names
    assert_string_equal(phase, "X");
    assert_true(real_of(event, "ts") >= 0 && real_of(event, "dur") >= 0);
    const json_t *args = json_object_get(event, "args");
    const char *cat = json_string_value(json_object_get(event, "cat"));
    const int rows = (int)real_of(args, "rows");
    assert_string_equal(cat, rows > 1 ? "prefill" : "decode");
    if (real_of(event, "tid") == 0) {
        s->steps++;
        s->prefill += rows > 1 ? rows : 0;
        s->decode += rows == 1;
        return;
    }
    assert_true(json_is_string(json_object_get(args, "kernel")));
    assert_true(real_of(args, "bytes") >= 0);
    assert_true(real_of(args, "layer") >= -1);
    s->calls++;
    s->time += real_of(event, "dur");
}

static seen read_trace(const char *path) {
    char *text = cli_load(path, NULL);
    json_t *root = cli_json(text), *event;
    seen s = {0};
    size_t i;
    json_array_foreach(json_object_get(root, "traceEvents"), i, event) look_at(&s, event);
    json_decref(root);
    free(text);
    return s;
}

static void test_trace(void **state) {
    (void)state;
    char *path = strdup(cli_path("run.json"));
    cli_result plain = CLI_RUN("run", DRAFT, "-p", "Hi", "-n", "4", "--json"),
               traced = CLI_RUN("run", DRAFT, "-p", "Hi", "-n", "4", "--trace", path),
               again = CLI_RUN("run", DRAFT, "-p", "Hi", "-n", "1", "--trace", path);
    cli_assert_done(&traced);
    cli_assert_done(&again); // a trace replaces a trace
    const seen one = read_trace(path);
    assert_int_equal(one.steps, 1);
    assert_true(one.calls > 10 && one.time > 0);
    cli_free(&again);
    again = CLI_RUN("run", DRAFT, "-p", "Hi", "-n", "4", "--trace", path);
    const seen four = read_trace(path);
    // The prompt in one step, then one token a step; the last one chosen is not computed.
    const char *prompt = strstr(plain.out, "\"prompt_tokens\": ");
    assert_non_null(prompt);
    assert_int_equal(four.prefill, atoi(prompt + strlen("\"prompt_tokens\": ")));
    assert_int_equal(four.decode, 3);
    cli_free(&plain), cli_free(&traced), cli_free(&again);

    cli_result bench = CLI_RUN("bench", DRAFT, "-p8", "-n3", "-r2", "--trace", path);
    cli_assert_done(&bench);
    const seen measured = read_trace(path); // without warming up
    assert_int_equal(measured.prefill, 16);
    assert_int_equal(measured.decode, 6);
    cli_free(&bench);
    free(path);
}

static void test_profile(void **state) {
    (void)state;
    cli_result r = CLI_RUN("run", DRAFT, "-p", "Hi", "-n", "4", "--profile"),
               bench = CLI_RUN("bench", DRAFT, "-p8", "-n3", "-r2", "--profile", "--json");
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(r.err, "prefill: "));
    assert_non_null(strstr(r.err, "decode: 3 tokens in 3 steps, "));
    assert_non_null(strstr(r.err, "average us"));
    // Shares are sorted and sum up to the whole.
    double before = INFINITY, sum = 0;
    const char *at = strstr(strstr(r.err, "decode: "), "GB/s");
    for (at = strchr(at, '\n') + 1; strncmp(at, "  all ", 6) != 0; at = strchr(at, '\n') + 1) {
        const char *percent = strstr(at, " %");
        assert_non_null(percent);
        while (percent[-1] != ' ') percent--;
        const double share = atof(percent);
        assert_true(share <= before);
        before = share;
        sum += share;
    }
    assert_true(sum > 98 && sum < 102);
    assert_int_equal(bench.code, 0);
    assert_non_null(strstr(bench.err, "prefill: 16 tokens in 2 steps, "));
    json_t *root = cli_json(bench.out); // results stay on stdout
    json_decref(root);
    cli_free(&r), cli_free(&bench);
}

// A file of another kind is left alone, and told before the model is opened.
static void test_trace_refused(void **state) {
    (void)state;
    cli_save(cli_path("note"), "remember", 8);
    cli_result note = CLI_RUN("run", DRAFT, "-p", "Hi", "-n1", "--trace", cli_path("note")),
               nowhere = CLI_RUN("bench", DRAFT, "--trace", cli_path("nowhere/x.json")),
               out = CLI_RUN("bench", DRAFT, "--trace", "-"),
               naive = CLI_RUN("run", DRAFT, "-p", "Hi", "--naive", "--profile");
    cli_assert_fails(&note, 1, "exists and is not a trace");
    cli_assert_fails(&nowhere, 1, "/nowhere/x.json");
    cli_assert_fails(&out, 2, "--trace: '-', want the name of a file");
    cli_assert_fails(&naive, 2, "--naive");
    cli_free(&note), cli_free(&nowhere), cli_free(&out), cli_free(&naive);
}

// --- compile -------------------------------------------------------------------------------------

static int count_files(const char *path) {
    DIR *dir = opendir(path);
    if (!dir) fail_msg("no folder %s", path);
    int n = 0;
    for (const struct dirent *e; (e = readdir(dir));) n += e->d_name[0] != '.';
    closedir(dir);
    return n;
}

static void test_compile(void **state) {
    (void)state;
    char *folder = strdup(cli_path("packed")), *model = strdup(cli_path("here.gguf"));
    size_t size;
    char *data = cli_load(DRAFT, &size);
    cli_save(model, data, size);
    free(data);
    cli_result first = CLI_RUN("compile", model, "-o", folder),
               second = CLI_RUN("compile", model, "-o", folder);
    cli_assert_done(&first);
    cli_assert_done(&second);
    assert_non_null(strstr(first.out, " written to "));
    assert_non_null(strstr(first.out, folder));
    assert_non_null(strstr(second.out, "everything was there, opened in "));
    assert_true(count_files(folder) > 0);
    // The answer is the same, with the folder and without, and a damaged file changes nothing.
    cli_result plain = CLI_RUN("logits", model, "--ids", "1,2,3"),
               kept = CLI_RUN("logits", model, "--ids", "1,2,3", "--cache-dir", folder);
    cli_assert_done(&kept);
    assert_string_equal(plain.out, kept.out);
    // Without a folder it goes beside the model.
    cli_result beside = CLI_RUN("compile", model);
    cli_assert_done(&beside);
    assert_non_null(strstr(beside.out, "/.quern-cache"));
    assert_true(count_files(cli_path(".quern-cache")) > 0);
    // A folder's name does not steer the terminal.
    cli_result steers = CLI_RUN("compile", model, "-o", cli_path("a\x1b[31m\xc2\x9b"));
    cli_assert_done(&steers);
    assert_non_null(strstr(steers.out, "/a?[31m?"));
    assert_null(strchr(steers.out, 0x1b));
    cli_free(&steers);
    cli_result lost = CLI_RUN("compile", cli_path("nothing.gguf"), "-o", cli_path("never")),
               bad = CLI_RUN("compile", model, "-o", cli_path("nowhere/folder"));
    cli_assert_fails(&lost, 1, "nothing.gguf");
    assert_int_not_equal(access(cli_path("never"), F_OK), 0);
    cli_assert_fails(&bad, 1, "/nowhere/folder");
    cli_free(&first), cli_free(&second), cli_free(&plain), cli_free(&kept);
    cli_free(&beside), cli_free(&lost), cli_free(&bad);
    free(folder), free(model);
}

// --- options of computing ------------------------------------------------------------------------

// Every way to compute the same thing prints the same bytes.
static void test_ways_agree(void **state) {
    (void)state;
    static const char *const models[] = {DRAFT, MODELS "/quern-hybrid-Q8_0.gguf", MINI "/gemma3",
                                         MINI "/qwen3_moe"};
    static const char ids[] = "5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25";
    static const char *const ways[][3] = {{"--naive"},     {"--chunk", "1"},      {"--chunk", "5"},
                                          {"-t", "1"},     {"--plans", "exact"},  {"-t3"},
                                          {"--chunk=500"}, {"--plans", "dynamic"}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        cli_result usual = CLI_RUN("logits", models[i], "--ids", ids);
        cli_assert_done(&usual);
        for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
            const char *args[8] = {"logits", models[i], "--ids", ids, ways[k][0], ways[k][1]};
            cli_result r = cli_run_with(&(cli_input){0}, args);
            cli_assert_done(&r);
            if (strcmp(r.out, usual.out) != 0)
                fail_msg("%s %s: %s, want %s", models[i], ways[k][0], r.out, usual.out);
            cli_free(&r);
        }
        cli_free(&usual);
    }
}

// Coarser numbers are near the reference, and are not it.
static void test_numbers(void **state) {
    (void)state;
    static const char *const ways[][2] = {{"--numerics", "exact"},  {"--numerics", "balanced"},
                                          {"--numerics", "fast"},   {"--cache-type", "f32"},
                                          {"--cache-type", "q8_0"}, {"--cache-type", "F16"}};
    cli_result ref = CLI_RUN("logits", DRAFT, "-p", "Once upon a", "--ref");
    cli_assert_done(&ref);
    json_t *want = cli_json(ref.out);
    const json_t *best = json_array_get(want, 0);
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        cli_result r = CLI_RUN("logits", DRAFT, "-p", "Once upon a", ways[k][0], ways[k][1]);
        cli_assert_done(&r);
        json_t *got = cli_json(r.out);
        const json_t *row = json_array_get(got, 0);
        assert_true(json_equal(json_object_get(row, "id"), json_object_get(best, "id")));
        assert_true(fabs(real_of(row, "logit") / real_of(best, "logit") - 1) < 0.05);
        assert_string_not_equal(r.out, ref.out);
        json_decref(got);
        cli_free(&r);
    }
    json_decref(want);
    cli_free(&ref);
}

static void test_run_naive(void **state) {
    (void)state;
    static const char *const models[] = {DRAFT, MODELS "/quern-hybrid-Q8_0.gguf"};
    for (size_t i = 0; i < 2; i++) {
        cli_result cached = CLI_RUN("run", models[i], "-p", "Tell me a story.", "-n", "24"),
                   naive =
                       CLI_RUN("run", models[i], "-p", "Tell me a story.", "-n", "24", "--naive");
        cli_assert_done(&cached);
        cli_assert_done(&naive);
        assert_true(strlen(cached.out) > 20);
        assert_string_equal(cached.out, naive.out);
        cli_free(&cached), cli_free(&naive);
    }
}

static void test_wrong_usage(void **state) {
    (void)state;
    static const struct {
        const char *args[8], *part;
    } cases[] = {
        {{"bench"}, "bench: MODEL is missing; without it, only --limits can be measured"},
        {{"bench", "--limits", "--svg", "x.svg"},
         "bench: MODEL is missing; without it, only --limits can be measured"},
        {{"bench", "--limits", "--open"},
         "bench: MODEL is missing; without it, only --limits can be measured"},
        {{"bench", DRAFT, "--svg", "-"}, "--svg: '-', want the name of a file"},
        {{"bench", DRAFT, "-b", "0"}, "--batch: '0'"},
        {{"bench", DRAFT, "-d", "1,two"}, "--depth: 'two', want a whole number from 0"},
        {{"bench", DRAFT, "-d", "1,"}, "--depth: ''"},
        {{"bench", DRAFT, "-d", "-1"}, "--depth: '-1'"},
        {{"bench", DRAFT, "-r", "0"}, "--repeats: '0'"},
        {{"bench", DRAFT, "--numerics", "exat"}, "'exat', want exact, balanced, fast or tensor"},
        {{"run", DRAFT, "-p", "a", "--plans", "x"}, "'x', want bucketed, exact or dynamic"},
        {{"eval", DRAFT, "--ppl", "x", "--cache-type", "q4"},
         "'q4', want f32, f16, q8_0, q4_0, q8_0r or q4_0r"},
        {{"logits", DRAFT, "--ids", "1", "--cache-dir="}, "--cache-dir: the name of the folder"},
        {{"compile"}, "usage: quern compile MODEL"},
        {{"compile", DRAFT, "-o", "-"}, "-o: '-', want the name of a folder"},
        {{"compile", DRAFT, "-o", ""}, "-o: the name of the folder is empty"},
        {{"graph", DRAFT, "--stage", "lower"}, "--stage: 'lower', want high, mid or low"},
        {{"graph", DRAFT, "-T", "4"}, "--rows and --cached need --stage low, got 'high'"},
        {{"graph", DRAFT, "--stage", "low", "-S", "4"}, "--cached 4 needs --rows"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cli_result r = cli_run_with(&(cli_input){0}, cases[i].args);
        cli_assert_fails(&r, 2, cases[i].part);
        cli_free(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_is_predicted),
        cmocka_unit_test(test_bench_json),
        cmocka_unit_test(shares_above_the_limit_are_explained),
        cmocka_unit_test(test_bench_batch),
        cmocka_unit_test(test_limits_alone),
        cmocka_unit_test(test_limits_of_rows),
        cmocka_unit_test(test_cost_of_file),
        cmocka_unit_test(test_bench_text),
        cmocka_unit_test(test_bench_open),
        cmocka_unit_test(test_bench_limits),
        cmocka_unit_test(test_trace),
        cmocka_unit_test(test_profile),
        cmocka_unit_test(test_trace_refused),
        cmocka_unit_test(test_compile),
        cmocka_unit_test(test_ways_agree),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_run_naive),
        cmocka_unit_test(test_wrong_usage),
    };
    return cmocka_run_group_tests(tests, cli_setup, cli_teardown);
}
