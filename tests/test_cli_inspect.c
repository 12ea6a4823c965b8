// quern inspect, graph and synth: looking at models, and making one.
#include "cli_run.h"

static void test_inspect(void **state) {
    (void)state;
    static const struct {
        const char *path, *architecture, *format;
    } models[] = {
        {DRAFT, "qwen3", "GGUF"},
        {MODELS "/quern-hybrid-Q8_0.gguf", "qwen35", "GGUF"},
        {MINI "/llama32", "llama", "safetensors"},
        {MINI "/qwen3_moe", "qwen3moe", "safetensors"},
        {MINI "/gemma3/gemma3-bf16.gguf", "gemma3", "GGUF"},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        cli_result text = CLI_RUN("inspect", models[i].path, "--tensors", "--keys", "--memory"),
                   json = CLI_RUN("inspect", models[i].path, "--json", "--tensors", "--keys", "-c",
                                  "100");
        cli_assert_done(&text);
        cli_assert_done(&json);
        json_t *root = cli_json(json.out);
        assert_string_equal(json_string_value(json_object_get(root, "architecture")),
                            models[i].architecture);
        assert_string_equal(json_string_value(json_object_get(root, "format")), models[i].format);
        assert_non_null(strstr(text.out, models[i].architecture));
        int64_t sum = 0, tensor_sum = 0;
        size_t k;
        json_t *row;
        json_array_foreach(json_object_get(root, "groups"), k, row) sum +=
            json_integer_value(json_object_get(row, "bytes"));
        json_array_foreach(json_object_get(root, "tensors"), k, row) tensor_sum +=
            json_integer_value(json_object_get(row, "bytes"));
        assert_true(sum > 0 && sum == tensor_sum);
        const json_t *memory = json_array_get(json_object_get(root, "memory"), 0);
        assert_int_equal(json_integer_value(json_object_get(memory, "context")), 100);
        assert_true(json_integer_value(json_object_get(memory, "total")) > 0);
        assert_true(json_array_size(json_object_get(root, "keys")) > 5);
        assert_true(json_is_object(json_object_get(root, "tokenizer")));
        json_decref(root);
        cli_free(&text), cli_free(&json);
    }
}

static int64_t memory_of(const char *path, const char *cache_type, const char *part) {
    cli_result r = CLI_RUN("inspect", path, "--json", "-c", "256", "--cache-type", cache_type);
    cli_assert_done(&r);
    json_t *root = cli_json(r.out);
    const json_t *row = json_array_get(json_object_get(root, "memory"), 0);
    assert_string_equal(json_string_value(json_object_get(row, "cache_type")), cache_type);
    const int64_t bytes = json_integer_value(json_object_get(row, part));
    json_decref(root);
    cli_free(&r);
    return bytes;
}

// Smaller caches take less memory, by just as much in the sums; recurrent state stays.
static void test_inspect_cache(void **state) {
    (void)state;
    static const char *const paths[] = {DRAFT, MODELS "/quern-hybrid-Q8_0.gguf"};
    for (size_t i = 0; i < 2; i++) {
        const int64_t cache = memory_of(paths[i], "f32", "cache"),
                      kept = memory_of(paths[i], "f32", "state") - cache,
                      total = memory_of(paths[i], "f32", "total"),
                      half = memory_of(paths[i], "f16", "cache"),
                      quarter = memory_of(paths[i], "q8_0", "cache");
        assert_true(cache > half && half > quarter && quarter > 0);
        assert_true(kept > 0 || i == 0);
        assert_int_equal(memory_of(paths[i], "f16", "state"), half + kept);
        assert_int_equal(memory_of(paths[i], "f16", "total"), total - cache + half);
        assert_int_equal(memory_of(paths[i], "q8_0", "state"), quarter + kept);
        // Blocks of 18 bytes in place of 34; a rotated one is as large.
        assert_int_equal(memory_of(paths[i], "q4_0", "cache"), quarter / 34 * 18);
        assert_int_equal(memory_of(paths[i], "q8_0r", "cache"), quarter);
        assert_int_equal(memory_of(paths[i], "q4_0r", "state"), quarter / 34 * 18 + kept);
    }
    cli_result text = CLI_RUN("inspect", DRAFT, "--memory", "--cache-type", "q8_0");
    cli_assert_done(&text);
    assert_non_null(strstr(text.out, ", as q8_0\n"));
    assert_non_null(strstr(text.out, "in bytes"));
    cli_free(&text);
}

// What the compiler tells, as text and as lists of lines.
static void test_inspect_reports(void **state) {
    (void)state;
    static const char *const paths[] = {DRAFT, MODELS "/quern-hybrid-Q8_0.gguf", MINI "/gemma3"};
    static const char *const names[] = {"coverage", "fusions"};
    static const char *const options[] = {"--coverage", "--fusions"};
    static const char *const titles[] = {"\n  kernels\n", "\n  fusions\n"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        cli_result json = CLI_RUN("inspect", paths[i], "--json", "--coverage", "--fusions");
        cli_assert_done(&json);
        json_t *root = cli_json(json.out);
        for (int k = 0; k < 2; k++) {
            cli_result text = CLI_RUN("inspect", paths[i], options[k]);
            cli_assert_done(&text);
            assert_non_null(strstr(text.out, titles[k]));
            assert_null(strstr(text.out, titles[1 - k]));
            const json_t *lines = json_object_get(root, names[k]);
            assert_true(json_array_size(lines) > 3);
            const char *first = json_string_value(json_array_get(lines, 0));
            assert_non_null(strstr(text.out, first));
            cli_free(&text);
        }
        json_decref(root);
        cli_free(&json);
    }
}

// A profile beside the weights is found, shown, and changes the plan but no result; one that makes
// no sense is told.
static void test_profile_beside(void **state) {
    (void)state;
    size_t size;
    char *data = cli_load(DRAFT, &size), *model = strdup(cli_path("profiled.gguf"));
    char *profile = strdup(cli_path("qwen3.quern.toml"));
    static const char text[] = "[prefill]\nskip = [\"fuse_gate\"]\n", wrong[] = "[prefill\n";
    cli_save(model, data, size);
    free(data);
    cli_result bare = CLI_RUN("inspect", model, "--json");
    cli_save(profile, text, strlen(text));
    cli_result found = CLI_RUN("inspect", model, "--json"), shown = CLI_RUN("inspect", model),
               plan = CLI_RUN("graph", model, "--stage", "low", "-T", "4"),
               usual = CLI_RUN("graph", DRAFT, "--stage", "low", "-T", "4"),
               scores = CLI_RUN("logits", model, "--ids", "5,6,7"),
               want = CLI_RUN("logits", DRAFT, "--ids", "5,6,7");
    cli_assert_done(&found);
    json_t *with = cli_json(found.out), *without = cli_json(bare.out);
    assert_string_equal(json_string_value(json_object_get(with, "profile")), profile);
    assert_true(json_is_null(json_object_get(without, "profile")));
    assert_non_null(strstr(shown.out, profile));
    assert_string_not_equal(plan.out, usual.out);
    cli_assert_done(&scores);
    assert_string_equal(scores.out, want.out);
    cli_save(profile, wrong, strlen(wrong));
    cli_result refused = CLI_RUN("run", model, "-p", "Hi");
    cli_assert_fails(&refused, 1, "qwen3.quern.toml");
    remove(profile);
    json_decref(with), json_decref(without);
    cli_free(&bare), cli_free(&found), cli_free(&shown), cli_free(&plan), cli_free(&usual);
    cli_free(&scores), cli_free(&want), cli_free(&refused);
    free(model), free(profile);
}

// The picture names groups, types and sizes, and the file's name cannot break it.
static void test_inspect_svg(void **state) {
    (void)state;
    const char *svg = cli_path("sizes.svg");
    char *model = strdup(cli_path("a<b>&c.gguf"));
    cli_result made = CLI_RUN("synth", "tiny-qwen3moe", "Q4_K_M", model);
    cli_assert_done(&made);
    cli_result r = CLI_RUN("inspect", model, "--svg", svg), plain = CLI_RUN("inspect", model);
    cli_assert_done(&r);
    assert_string_equal(r.out, plain.out);
    char *drawn = cli_load(svg, NULL);
    static const char *const parts[] = {"<svg ",           "</svg>\n",     "a&lt;b&gt;&amp;c.gguf",
                                        ">experts</text>", ">Q4_K</text>", ">Q6_K</text>",
                                        "MiB in 2"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!strstr(drawn, parts[i])) fail_msg("the picture has no '%s'", parts[i]);
    }
    assert_null(strstr(drawn, "a<b>"));
    free(drawn);
    cli_result nowhere = CLI_RUN("inspect", model, "--svg", cli_path("nowhere/x.svg"));
    cli_assert_fails(&nowhere, 1, "/nowhere/x.svg");
    cli_free(&made), cli_free(&r), cli_free(&plain), cli_free(&nowhere);
    remove(model);
    free(model);
}

// What synth prints, and that its files are models like any other.
static void test_synth(void **state) {
    (void)state;
    char *path = strdup(cli_path("made.gguf"));
    cli_result made = CLI_RUN("synth", "tiny-qwen3", "Q4_K_M", path, "--seed", "3", "-t", "2");
    cli_assert_done(&made);
    assert_non_null(strstr(made.out, "MiB, 5.14 bits per weight, in "));
    cli_result ran = CLI_RUN("run", path, "-p", "Hi", "-n", "3");
    cli_assert_done(&ran);
    cli_result nowhere = CLI_RUN("synth", "tiny-qwen3", "Q4_K_M", cli_path("nowhere/x.gguf"));
    cli_assert_fails(&nowhere, 1, "/nowhere/x.gguf");
    cli_free(&made), cli_free(&ran), cli_free(&nowhere);
    remove(path);
    free(path);
}

static void test_graph(void **state) {
    (void)state;
    static const char *const stages[] = {"high", "mid", "low"};
    char *svg = strdup(cli_path("graph.svg"));
    cli_result r = CLI_RUN("graph", DRAFT), texts[3];
    cli_assert_done(&r);
    assert_int_equal(strncmp(r.out, "graph \"", 7), 0);
    assert_non_null(strstr(r.out, "output \"logits\""));
    for (int i = 0; i < 3; i++) {
        texts[i] = CLI_RUN("graph", DRAFT, "--stage", stages[i]);
        cli_assert_done(&texts[i]);
        assert_true(strlen(texts[i].out) > 1000);
        cli_result picture = CLI_RUN("graph", DRAFT, "--stage", stages[i], "--svg", svg);
        cli_assert_done(&picture);
        assert_string_equal(picture.out, "");
        char *drawn = cli_load(svg, NULL);
        assert_non_null(strstr(drawn, "<svg"));
        assert_non_null(strstr(drawn, "</svg>"));
        free(drawn);
        cli_free(&picture);
    }
    assert_string_equal(r.out, texts[0].out);
    assert_string_not_equal(texts[0].out, texts[1].out);
    assert_string_not_equal(texts[1].out, texts[2].out);
    // Weights and ids are as their own lines say, no floats.
    assert_non_null(strstr(texts[2].out, "param 0 \"token_embd.weight\" q8_0 (4096, 256)"));
    assert_non_null(strstr(texts[2].out, "<- input0 (1 x 1), param0 (4096 x 256)"));
    assert_null(strstr(texts[2].out, "param0 (4096 x 256) f32"));
    cli_result bound = CLI_RUN("graph", DRAFT, "--stage", "low", "-T", "4", "-S", "100");
    cli_assert_done(&bound);
    assert_string_not_equal(bound.out, texts[2].out);
    cli_free(&r), cli_free(&bound);
    for (int i = 0; i < 3; i++) cli_free(&texts[i]);
    free(svg);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_inspect),         cmocka_unit_test(test_inspect_cache),
        cmocka_unit_test(test_inspect_reports), cmocka_unit_test(test_inspect_svg),
        cmocka_unit_test(test_profile_beside),  cmocka_unit_test(test_synth),
        cmocka_unit_test(test_graph),
    };
    return cmocka_run_group_tests(tests, cli_setup, cli_teardown);
}
