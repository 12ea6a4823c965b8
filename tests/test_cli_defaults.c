// A model's own sampling settings in the program: used by run, shown by inspect, and what stands
// above them.
#include "screen.h"

#include "model_writer.h"

static char model[CLI_MOST_PATH]; // the draft model, with settings

static int make_model(void **state) {
    if (cli_setup(state) != 0) return -1;
    snprintf(model, sizeof model, "%s", cli_path("m.gguf"));
    model_file *m = model_load(DRAFT);
    model_edit(m, "key general.sampling.temp f32 1.4; key general.sampling.top_k i32 30;"
                  "key general.sampling.top_p f32 7");
    model_write_gguf(m, model);
    model_free(m);
    return 0;
}

static const char warning[] = "quern: warning: general.sampling.top_p: top_p 7, want 0 to 1: "
                              "it is not used\n";

#define STORY "-p", "Tell me a story.", "-n", "24"

static void assert_same_answer(cli_result got, cli_result want) {
    assert_int_equal(got.code, 0);
    assert_int_equal(want.code, 0);
    assert_string_equal(got.out, want.out);
    cli_free(&got), cli_free(&want);
}

static void run_uses_the_models_settings(void **state) {
    (void)state;
    cli_result r = CLI_RUN("run", model, STORY, "--seed", "5"),
               greedy = CLI_RUN("run", DRAFT, STORY);
    assert_string_equal(r.err, warning);
    assert_string_not_equal(r.out, greedy.out);
    assert_same_answer(
        r, CLI_RUN("run", DRAFT, STORY, "--seed", "5", "--temp", "1.4", "--top-k", "30"));
    cli_free(&greedy);
}

static void options_stand_above_the_models_settings(void **state) {
    (void)state;
    assert_same_answer(CLI_RUN("run", model, STORY, "--greedy"), CLI_RUN("run", DRAFT, STORY));
    assert_same_answer(CLI_RUN("run", model, STORY, "--temp", "0"), CLI_RUN("run", DRAFT, STORY));
    assert_same_answer(CLI_RUN("run", model, STORY, "--seed", "5", "--top-k", "0"),
                       CLI_RUN("run", DRAFT, STORY, "--seed", "5", "--temp", "1.4"));
}

// Typed, then kept in the session's file, then the model's.
static void a_session_stands_between_options_and_model(void **state) {
    (void)state;
    char session[CLI_MOST_PATH], other[CLI_MOST_PATH];
    snprintf(session, sizeof session, "%s", cli_path("s.json"));
    snprintf(other, sizeof other, "%s", cli_path("o.json"));
    assert_same_answer(CLI_RUN("run", model, STORY, "--session", session, "--temp", "0"),
                       CLI_RUN("run", DRAFT, STORY, "--session", other));
    assert_same_answer(CLI_RUN("run", model, STORY, "--session", session),
                       CLI_RUN("run", DRAFT, STORY, "--session", other));
    assert_same_answer(
        CLI_RUN("run", model, STORY, "--session", session, "--temp", "1.2"),
        CLI_RUN("run", DRAFT, STORY, "--session", other, "--temp", "1.2", "--top-k", "30"));
}

static void inspect_shows_the_models_settings(void **state) {
    (void)state;
    cli_result text = CLI_RUN("inspect", model), json = CLI_RUN("inspect", model, "--json"),
               without = CLI_RUN("inspect", DRAFT), none = CLI_RUN("inspect", DRAFT, "--json");
    assert_int_equal(text.code, 0);
    assert_non_null(strstr(text.out, "\n  sampling        temp 1.4, top-k 30\n"));
    assert_null(strstr(without.out, "  sampling "));
    json_t *got = cli_json(json.out), *empty = cli_json(none.out);
    const json_t *sampling = json_object_get(got, "sampling");
    assert_int_equal(json_object_size(sampling), 2);
    assert_true(json_real_value(json_object_get(sampling, "temperature")) == 1.4);
    assert_int_equal(json_integer_value(json_object_get(sampling, "top_k")), 30);
    assert_int_equal(json_object_size(json_object_get(empty, "sampling")), 0);
    assert_true(json_is_object(json_object_get(empty, "sampling")));
    json_decref(got), json_decref(empty);
    cli_free(&text), cli_free(&json), cli_free(&without), cli_free(&none);
}

// Measuring has nothing to do with what the model's makers recommend.
static void eval_and_logits_stay_greedy(void **state) {
    (void)state;
    static const char task[] =
        "{\"skill\": \"sums\", \"messages\": [{\"role\": \"user\", \"content\": "
        "\"What is 10 + 62?\"}], \"tools\": null, \"expected\": \"10 + 62 = 72\", \"checker\": "
        "\"exact\", \"prompt\": \"<|im_start|>user\\nWhat is 10 + "
        "62?<|im_end|>\\n<|im_start|>assistant\\n\"}\n";
    char tasks[CLI_MOST_PATH];
    snprintf(tasks, sizeof tasks, "%s", cli_path("tasks.jsonl"));
    FILE *f = fopen(tasks, "wb");
    for (int i = 0; i < 4; i++) fputs(task, f);
    assert_int_equal(fclose(f), 0);
    cli_result r = CLI_RUN("eval", model, "--tasks", tasks, "--json");
    assert_non_null(strstr(r.out, "\"right\": 4"));
    cli_free(&r);
    assert_same_answer(CLI_RUN("logits", model, "-p", "Once upon"),
                       CLI_RUN("logits", DRAFT, "-p", "Once upon"));
}

// What the model comes with is listed as such, until something else is set.
static void a_conversation_lists_the_models_settings(void **state) {
    screen *s = *state;
    screen_open(s, (const char *[]){"run", model, NULL});
    screen_expect(s, "> ");
    screen_type(s, "/set\n");
    screen_expect(s, "temp                 1.4 (model's own)");
    screen_expect(s, "top-k                30 (model's own)");
    screen_type(s, "/set temp 0\n");
    screen_expect(s, "temp is now 0 (was the default)");
    screen_type(s, "/set greedy on\n");
    screen_expect(s, "greedy is now on");
    screen_type(s, "/set temp\n");
    screen_expect(s, "temp                 0");
    screen_type(s, "/exit\n");
    assert_int_equal(screen_close(s), 0);
}

// A damaged generation_config.json, which names end tokens too, is an error that says what is wrong
// with it; one that is no object is told.
static void a_damaged_file_of_settings_is_named(void **state) {
    (void)state;
    static const char *const names[] = {"config.json", "model.safetensors", "tokenizer.json"};
    static const struct {
        const char *text, *told;
        int code;
    } cases[] = {
        {"", "no tokenizer: ", 1},
        {"{\"do_sample\": tr", "no tokenizer: ", 1},
        {"[]", "no sampling defaults: generation_config.json: not a JSON object", 0},
        {"{\"do_sample\": true, \"temperature\": \"hot\"}",
         "generation_config.json: temperature is \"hot\", want a number", 0},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char from[CLI_MOST_PATH];
        size_t size;
        snprintf(from, sizeof from, MINI "/qwen3/%s", names[i]);
        char *data = cli_load(from, &size);
        cli_save(cli_path(names[i]), data, size);
        free(data);
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cli_save(cli_path("generation_config.json"), cases[i].text, strlen(cases[i].text));
        cli_result r =
            CLI_RUN("run", cli_path("model.safetensors"), "--raw", "-p", "Hi", "-n", "1");
        if (r.code != cases[i].code || !strstr(r.err, cases[i].told))
            fail_msg("case %zu: %d, '%s'", i, r.code, r.err);
        assert_non_null(strstr(r.err, "generation_config.json"));
        cli_free(&r);
    }
}

int main(void) {
    static screen s;
    setenv("TERM", "xterm", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(run_uses_the_models_settings),
        cmocka_unit_test(options_stand_above_the_models_settings),
        cmocka_unit_test(a_session_stands_between_options_and_model),
        cmocka_unit_test(inspect_shows_the_models_settings),
        cmocka_unit_test(eval_and_logits_stay_greedy),
        cmocka_unit_test(a_damaged_file_of_settings_is_named),
        SCREEN_TEST(a_conversation_lists_the_models_settings, &s),
    };
    return cmocka_run_group_tests_name("cli_defaults", tests, make_model, cli_teardown);
}
