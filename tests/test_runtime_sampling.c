// The sampling settings that come with a model: read from both formats, kept by convert.
#include "testing.h"

#include "model_writer.h"

#include <stdlib.h>
#include <unistd.h>

#define GGUF       TEST_DATA "/mini/qwen3/qwen3-bf16.gguf"
#define CHECKPOINT TEST_DATA "/mini/qwen3"

static char folder[] = "/tmp/quern-sampling-XXXXXX";

static int setup(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

typedef struct path_name {
    char text[128];
} path_name;

static path_name path_of(const char *name) {
    path_name path;
    snprintf(path.text, sizeof path.text, "%s/%s", folder, name);
    return path;
}

// Warnings about sampling, with a newline behind each; those about a missing tokenizer are left
// out.
typedef struct warnings {
    char text[2048];
} warnings;

static void keep_warning(void *arg, qn_log_level level, const char *message) {
    warnings *to = arg;
    const size_t used = strlen(to->text);
    if (level <= QN_LOG_WARNING && !strstr(message, "no tokenizer"))
        snprintf(to->text + used, sizeof to->text - used, "%s\n", message);
}

// The defaults of a model; `order` is copied.
typedef struct defaults {
    qn_sample_opts opts;
    char order[128];
    warnings warnings;
} defaults;

static defaults read_defaults(const char *path) {
    defaults d = {0};
    qn_err err;
    qn_engine *engine;
    const qn_engine_opts opts =
        QN_INIT(qn_engine_opts, .no_weights = true, .log = keep_warning, .log_arg = &d.warnings);
    ASSERT_OK(qn_engine_open(&engine, path, &opts, &err));
    d.opts = sample_defaults(engine);
    if (d.opts.order) snprintf(d.order, sizeof d.order, "%s", d.opts.order);
    d.opts.order = NULL;
    qn_engine_close(engine);
    return d;
}

static defaults read_gguf(const char *edits) {
    const path_name path = path_of("m.gguf");
    model_file *m = model_load(GGUF);
    model_edit(m, edits);
    model_write_gguf(m, path.text);
    model_free(m);
    return read_defaults(path.text);
}

static void write_text(const char *path, const char *text) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

// generation_config NULL: there is none.
static defaults read_folder(const char *generation_config) {
    const path_name config = path_of("generation_config.json");
    model_file *m = model_load(CHECKPOINT);
    model_write_checkpoint(m, folder, 1);
    model_free(m);
    unlink(config.text);
    if (generation_config) write_text(config.text, generation_config);
    return read_defaults(folder);
}

static void assert_same(const qn_sample_opts *got, const qn_sample_opts *want) {
    assert_true(got->temperature == want->temperature);
    assert_int_equal(got->top_k, want->top_k);
    assert_true(got->top_p == want->top_p && got->min_p == want->min_p);
    assert_true(got->xtc_probability == want->xtc_probability);
    assert_true(got->xtc_threshold == want->xtc_threshold);
    assert_true(got->repeat_penalty == want->repeat_penalty);
    assert_int_equal(got->repeat_last_n, want->repeat_last_n);
    assert_int_equal(got->mirostat, want->mirostat);
    assert_true(got->mirostat_tau == want->mirostat_tau);
    assert_true(got->mirostat_eta == want->mirostat_eta);
}

static void a_model_that_says_nothing_is_greedy(void **state) {
    (void)state;
    static const char *const models[] = {MODELS "/quern-mini-Q8_0.gguf",
                                         MODELS "/quern-draft-Q8_0.gguf",
                                         MODELS "/quern-hybrid-Q8_0.gguf", GGUF, CHECKPOINT};
    const qn_sample_opts greedy = QN_INIT(qn_sample_opts);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const defaults d = read_defaults(models[i]);
        assert_memory_equal(&d.opts, &greedy, sizeof greedy);
        assert_string_equal(d.warnings.text, "");
    }
    const defaults without = read_folder(NULL);
    assert_memory_equal(&without.opts, &greedy, sizeof greedy);
}

static void keys_of_a_gguf_file_are_taken(void **state) {
    (void)state;
    const defaults d = read_gguf(
        "key general.sampling.sequence str temperature;"
        "key general.sampling.top_k i32 20; key general.sampling.top_p f32 0.95;"
        "key general.sampling.min_p f32 0.05; key general.sampling.xtc_probability f32 0.5;"
        "key general.sampling.xtc_threshold f32 0.2; key general.sampling.temp f32 0.6;"
        "key general.sampling.penalty_last_n i32 -1; key general.sampling.penalty_repeat f32 1.1;"
        "key general.sampling.mirostat i32 2; key general.sampling.mirostat_tau f32 4;"
        "key general.sampling.mirostat_eta f32 0.2");
    const qn_sample_opts want = QN_INIT(
        qn_sample_opts, .temperature = 0.6f, .top_k = 20, .top_p = 0.95f, .min_p = 0.05f,
        .xtc_probability = 0.5f, .xtc_threshold = 0.2f, .repeat_penalty = 1.1f,
        .repeat_last_n = QN_LAST_N_ALL, .mirostat = 2, .mirostat_tau = 4, .mirostat_eta = 0.2f);
    assert_string_equal(d.order, "temperature");
    assert_same(&d.opts, &want);
    assert_string_equal(d.warnings.text, "");
}

static void numbers_of_any_gguf_type_are_taken(void **state) {
    (void)state;
    defaults d = read_gguf("key general.sampling.temp u8 1; key general.sampling.top_k f64 20;"
                           "key general.sampling.penalty_last_n u64 0");
    const qn_sample_opts want =
        QN_INIT(qn_sample_opts, .temperature = 1, .top_k = 20, .repeat_last_n = QN_LAST_N_NONE);
    assert_same(&d.opts, &want);
    d = read_gguf("key general.sampling.temp f32 0.5; key general.sampling.top_k i32 -1");
    assert_same(&d.opts, &QN_INIT(qn_sample_opts, .temperature = 0.5f));
}

static void filters_without_a_temperature_ask_for_sampling(void **state) {
    (void)state;
    defaults d =
        read_gguf("key general.sampling.top_k i32 64; key general.sampling.top_p f32 0.95");
    assert_same(&d.opts, &QN_INIT(qn_sample_opts, .temperature = 1, .top_k = 64, .top_p = 0.95f));
    d = read_gguf("key general.sampling.temp f32 0; key general.sampling.top_k i32 64");
    assert_same(&d.opts, &QN_INIT(qn_sample_opts, .top_k = 64));
    d = read_gguf("key general.sampling.penalty_repeat f32 1.2");
    assert_same(&d.opts, &QN_INIT(qn_sample_opts, .repeat_penalty = 1.2f));
}

static void values_out_of_range_are_left_out_with_a_warning(void **state) {
    (void)state;
    static const struct {
        const char *edit, *warning;
    } cases[] = {
        {"key general.sampling.temp f32 -1", "general.sampling.temp: temperature -1, want 0"},
        {"key general.sampling.temp f32 nan", "general.sampling.temp: temperature nan"},
        {"key general.sampling.temp str hot", "general.sampling.temp is not a number"},
        {"key general.sampling.temp f32[] 1 2", "general.sampling.temp is not a number"},
        {"key general.sampling.top_k i32 -5", "general.sampling.top_k: top_k -5, want 0 to"},
        {"key general.sampling.top_k f32 2.5",
         "general.sampling.top_k is 2.5, want a whole number"},
        {"key general.sampling.top_k i64 9999999999", "general.sampling.top_k is 1e+10, want"},
        {"key general.sampling.top_p f32 1.5", "general.sampling.top_p: top_p 1.5, want 0"},
        {"key general.sampling.top_p f32 0", "general.sampling.top_p: 0, want more than 0"},
        {"key general.sampling.min_p bool 1", "general.sampling.min_p is not a number"},
        {"key general.sampling.penalty_repeat f32 0",
         "general.sampling.penalty_repeat: 0, want more"},
        {"key general.sampling.penalty_last_n i32 -9",
         "general.sampling.penalty_last_n: repeat_last_n -9, want -2"},
        {"key general.sampling.mirostat i32 1", "general.sampling.mirostat: mirostat 1, want"},
        {"key general.sampling.sequence str top_k,magic", "general.sampling.sequence: "},
        {"key general.sampling.sequence u32 7", "general.sampling.sequence is not a string"},
    };
    const qn_sample_opts greedy = QN_INIT(qn_sample_opts);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const defaults d = read_gguf(cases[i].edit);
        assert_memory_equal(&d.opts, &greedy, sizeof greedy);
        assert_string_equal(d.order, "");
        if (!strstr(d.warnings.text, cases[i].warning))
            fail_msg("'%s' in '%s'", cases[i].warning, d.warnings.text);
    }
}

static void a_generation_config_is_taken_as_transformers_takes_it(void **state) {
    (void)state;
    static const struct {
        const char *config;
        qn_sample_opts want;
    } cases[] = {
        {"{\"do_sample\": true, \"temperature\": 0.6, \"top_k\": 20, \"top_p\": 0.95,"
         " \"min_p\": 0.05, \"repetition_penalty\": 1.05, \"eos_token_id\": [1, 2]}",
         {.temperature = 0.6f,
          .top_k = 20,
          .top_p = 0.95f,
          .min_p = 0.05f,
          .repeat_penalty = 1.05f,
          .repeat_last_n = QN_LAST_N_ALL}},
        {"{\"do_sample\": true}", {.temperature = 1, .top_k = 50}},
        {"{\"do_sample\": true, \"top_k\": null}", {.temperature = 1}},
        {"{\"do_sample\": true, \"top_k\": 0, \"repetition_penalty\": 1.0}", {.temperature = 1}},
        {"{\"do_sample\": false, \"temperature\": 0.6, \"top_k\": 20}", {.temperature = 0}},
        {"{\"temperature\": 0.6, \"top_p\": 0.9}", {.temperature = 0}},
        {"{\"repetition_penalty\": 1.2}", {.repeat_penalty = 1.2f, .repeat_last_n = QN_LAST_N_ALL}},
        {"{\"max_new_tokens\": 5, \"max_length\": 20}", {.temperature = 0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const defaults d = read_folder(cases[i].config);
        assert_same(&d.opts, &cases[i].want);
        assert_string_equal(d.warnings.text, "");
    }
}

static void wrong_values_of_a_generation_config_are_named(void **state) {
    (void)state;
    static const struct {
        const char *config, *warning;
    } cases[] = {
        {"{\"do_sample\": true, \"temperature\": -2}",
         "generation_config.json: temperature: temperature -2, want 0"},
        {"{\"do_sample\": true, \"top_p\": \"high\"}",
         "generation_config.json: top_p is \"high\", want a number"},
        {"{\"do_sample\": \"yes\"}", "generation_config.json: do_sample is not true or false"},
        {"{\"do_sample\": true", "no sampling defaults: "},
        {"[]", "no sampling defaults: generation_config.json: not a JSON object"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const defaults d = read_folder(cases[i].config);
        if (!strstr(d.warnings.text, cases[i].warning))
            fail_msg("'%s' in '%s'", cases[i].warning, d.warnings.text);
        assert_true(d.opts.top_p == 0 && d.opts.temperature <= 1);
    }
}

// What a folder says, its GGUF file says too.
static void convert_keeps_the_settings(void **state) {
    (void)state;
    static const char *const configs[] = {
        ("{\"do_sample\": true, \"temperature\": 0.6, \"top_k\": 20, \"top_p\": 0.95,"
         " \"repetition_penalty\": 1.05}"),
        "{\"do_sample\": true}",
        "{\"do_sample\": true, \"top_k\": 0}",
        "{\"do_sample\": true, \"temperature\": 0}",
        "{\"repetition_penalty\": 1.05}",
        "{\"temperature\": 0.6}",
    };
    const path_name config = path_of("generation_config.json"), out = path_of("converted.gguf");
    char command[256];
    qn_err err;
    snprintf(command, sizeof command, "cp %s/*.json %s/*.safetensors %s", CHECKPOINT, CHECKPOINT,
             folder);
    assert_int_equal(system(command), 0);
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        write_text(config.text, configs[i]);
        const defaults before = read_defaults(folder);
        ASSERT_OK(qn_convert(folder, out.text, NULL, &err));
        const defaults after = read_defaults(out.text);
        assert_same(&after.opts, &before.opts);
        assert_string_equal(after.warnings.text, "");
    }
}

static void quantize_keeps_the_settings(void **state) {
    (void)state;
    qn_err err;
    const path_name out = path_of("q.gguf");
    const defaults before =
        read_gguf("key general.sampling.temp f32 0.6; key general.sampling.top_k i32 20");
    ASSERT_OK(qn_quantize(path_of("m.gguf").text, out.text,
                          &QN_INIT(qn_quantize_opts, .type = "Q8_0"), &err));
    const defaults after = read_defaults(out.text);
    assert_true(after.opts.temperature == 0.6f);
    assert_same(&after.opts, &before.opts);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_that_says_nothing_is_greedy),
        cmocka_unit_test(keys_of_a_gguf_file_are_taken),
        cmocka_unit_test(numbers_of_any_gguf_type_are_taken),
        cmocka_unit_test(filters_without_a_temperature_ask_for_sampling),
        cmocka_unit_test(values_out_of_range_are_left_out_with_a_warning),
        cmocka_unit_test(a_generation_config_is_taken_as_transformers_takes_it),
        cmocka_unit_test(wrong_values_of_a_generation_config_are_named),
        cmocka_unit_test(convert_keeps_the_settings),
        cmocka_unit_test(quantize_keeps_the_settings),
    };
    return cmocka_run_group_tests_name("runtime_sampling", tests, setup, teardown);
}
