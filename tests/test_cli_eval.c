// quern eval: checkers, perplexity and tasks.
#include "cli_run.h"

#include "cli/eval.h"

#include <math.h>

static void checkers_follow_their_rules(void **state) {
    (void)state;
    static const struct {
        const char *checker, *expected, *answer;
        bool right;
    } cases[] = {
        {"exact", "\"39\"", " 39\n", true},
        {"exact", "\"39\"", "39.", false},
        {"exact", "\"Yes\"", "yes", false},
        {"exact", "\"\"", "  ", true},
        {"contains", "[\"Bob\", \"KEY\"]", "bob has a Key", true},
        {"contains", "[\"Bob\", \"key\"]", "Bob", false},
        {"contains", "[]", "", true},
        {"any", "[\"tiny model\", \"sorry\"]", "I am a Tiny Model.", true},
        {"any", "[\"x\"]", "", false},
        {"any", "[]", "x", false},
        {"json", "\"{\\\"a\\\": 1, \\\"b\\\": [2]}\"", " {\"b\":[2.0],\"a\":1}\n", true},
        {"json", "\"{\\\"a\\\": 1}\"", "{\"a\": 2}", false},
        {"json", "\"{\\\"a\\\": 1}\"", "{\"a\": 1", false},
        {"tool", "\"<tool_call>{\\\"n\\\":1}</tool_call>\"",
         "Well: <tool_call>\n{\"n\": 1}\n</tool_call> done", true},
        {"tool", "\"<tool_call>{\\\"n\\\":1}</tool_call>\"", "{\"n\": 1}", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_err err;
        bool right = !cases[i].right;
        json_t *expected = cli_json(cases[i].expected);
        ASSERT_OK(qn_answer_check(&right, cases[i].checker, expected, cases[i].answer, &err));
        if (right != cases[i].right)
            fail_msg("%s %s: '%s'", cases[i].checker, cases[i].expected, cases[i].answer);
        json_decref(expected);
    }
    qn_err err;
    bool right;
    json_t *text = cli_json("\"x\""), *list = cli_json("[1]");
    ASSERT_FAILS(qn_answer_check(&right, "guess", text, "", &err), QN_UNSUPPORTED, "'guess'");
    ASSERT_FAILS(qn_answer_check(&right, "any", text, "", &err), QN_FORMAT, "a list of strings");
    ASSERT_FAILS(qn_answer_check(&right, "any", list, "", &err), QN_FORMAT, "a list of strings");
    ASSERT_FAILS(qn_answer_check(&right, "exact", list, "", &err), QN_FORMAT, "a string");
    json_decref(text);
    json_decref(list);
}

// Writes a file of the test's own; `path` gets its place.
static void write_text(char path[CLI_MOST_PATH], const char *name, const char *text) {
    snprintf(path, CLI_MOST_PATH, "%s", cli_path(name));
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

// From the logits of the command line itself, one row per token.
static void perplexity_is_the_mean_of_what_logits_say(void **state) {
    (void)state;
    static const char story[] = "Once upon a time, in the whispering pines, there lived a";
    char text[CLI_MOST_PATH];
    write_text(text, "text", story);
    cli_result ppl = CLI_RUN("eval", DRAFT, "--ppl", text, "--json", "--against", DRAFT);
    cli_assert_done(&ppl);
    json_t *got = cli_json(ppl.out);
    cli_result ids = CLI_RUN("tokenize", DRAFT, story);
    char prefix[512] = "";
    double nll = 0;
    int n = 0;
    for (char *id = strtok(ids.out, " \n"); id; id = strtok(NULL, " \n"), n++) {
        if (n > 0) { // log p of this id after the ones before it, if it is among the ten best
            cli_result best = CLI_RUN("logits", DRAFT, "--ids", prefix);
            json_t *rows = cli_json(best.out);
            double log_p = NAN;
            for (size_t i = 0; i < json_array_size(rows); i++) {
                const json_t *row = json_array_get(rows, i);
                if (json_integer_value(json_object_get(row, "id")) == atoi(id))
                    log_p = json_real_value(json_object_get(row, "logprob"));
            }
            nll -= log_p;
            json_decref(rows);
            cli_free(&best);
        }
        snprintf(prefix + strlen(prefix), sizeof prefix - strlen(prefix), "%s%s", n ? "," : "", id);
    }
    assert_int_equal(json_integer_value(json_object_get(got, "tokens")), n - 1);
    const double measured = json_real_value(json_object_get(got, "ppl"));
    if (!isnan(nll))
        assert_true(fabs(measured - exp(nll / (n - 1))) < 1e-3 * measured);
    else
        print_message("skip: a token of the text is not among the ten best\n");
    assert_true(json_real_value(json_object_get(got, "kl")) == 0); // of a model from itself
    assert_true(json_real_value(json_object_get(got, "top1")) == 1);
    json_decref(got);
    cli_free(&ppl), cli_free(&ids);

    // Windows: every token but the first is scored once, whatever the stride.
    cli_result strided =
        CLI_RUN("eval", DRAFT, "--ppl", text, "--json", "-c", "4", "--stride", "3");
    cli_assert_done(&strided);
    got = cli_json(strided.out);
    assert_int_equal(json_integer_value(json_object_get(got, "tokens")), n - 1);
    json_decref(got);
    cli_free(&strided);
    strided = CLI_RUN("eval", DRAFT, "--ppl", text, "--stride", "512"); // as long as a window
    assert_int_equal(strided.code, 1);
    assert_non_null(strstr(strided.err, "a stride of 512 tokens, want 1 to 511"));
    cli_free(&strided);
    strided = CLI_RUN("eval", DRAFT, "--ppl", text, "-c", "4", "--stride", "4");
    assert_int_equal(strided.code, 2);
    cli_free(&strided);
}

static void tasks_are_counted_by_skill(void **state) {
    (void)state;
    char tasks[CLI_MOST_PATH];
    write_text(
        tasks, "tasks.jsonl",
        "{\"skill\": \"sums\", \"prompt\": \"<|im_start|>user\\nWhat is 2 + 3?<|im_end|>\\n"
        "<|im_start|>assistant\\n\", \"expected\": [\"5\"], \"checker\": \"any\"}\n\n"
        "{\"skill\": \"sums\", \"prompt\": \"<|im_start|>user\\nWhat is 2 + 3?<|im_end|>\\n"
        "<|im_start|>assistant\\n\", \"expected\": \"no such answer\", \"checker\": \"exact\"}\n"
        "{\"skill\": \"other\", \"prompt\": \"a\", \"expected\": [], \"checker\": \"contains\"}");
    cli_result r = CLI_RUN("eval", DRAFT, "--tasks", tasks, "--json", "-n", "12");
    cli_assert_done(&r);
    json_t *root = cli_json(r.out), *skills = json_object_get(root, "skills");
    const json_t *sums = json_object_get(skills, "sums");
    assert_int_equal(json_integer_value(json_object_get(sums, "n")), 2);
    assert_int_equal(json_integer_value(json_object_get(sums, "right")), 1);
    assert_true(json_real_value(json_object_get(sums, "accuracy")) == 0.5);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(skills, "other"), "n")), 1);
    json_decref(root);
    cli_free(&r);
    r = CLI_RUN("eval", DRAFT, "--tasks", tasks, "--limit", "1", "-n", "12", "--wrong");
    cli_assert_done(&r);
    assert_non_null(strstr(r.out, "sums                  1      1   100.0 %"));
    cli_free(&r);
}

static double divergence_of(const char *text, const char *type) {
    cli_result r =
        CLI_RUN("eval", MODELS "/quern-hybrid-Q8_0.gguf", "--ppl", text, "--json", "--cache-type",
                type, "--against", MODELS "/quern-hybrid-Q8_0.gguf", "--against-cache-type", "f32");
    cli_assert_done(&r);
    json_t *got = cli_json(r.out);
    const double kl = json_real_value(json_object_get(got, "kl"));
    json_decref(got);
    cli_free(&r);
    return kl;
}

// Fewer bits diverge more; rotated, less.
static void a_cache_type_diverges_by_its_bits(void **state) {
    (void)state;
    char text[CLI_MOST_PATH];
    write_text(text, "caches.txt",
               "Once upon a time there was a small mill by the river. Every morning the miller "
               "woke up early, opened the wooden gate and let the water turn the old wheel. One "
               "day a girl came along the path with a sack of corn on her back. She asked him to "
               "grind it for her, and told him that her mother was ill and wanted a loaf.");
    assert_true(divergence_of(text, "f32") == 0);
    const double f16 = divergence_of(text, "f16"), q8 = divergence_of(text, "q8_0"),
                 q8r = divergence_of(text, "q8_0r"), q4 = divergence_of(text, "q4_0"),
                 q4r = divergence_of(text, "q4_0r");
    print_message("f16 %g, q8_0 %g, q8_0r %g, q4_0 %g, q4_0r %g\n", f16, q8, q8r, q4, q4r);
    assert_true(0 < f16 && f16 < q8r && q8r < q8 && q8 < q4r && q4r < q4);
}

static void wrong_input_is_told(void **state) {
    (void)state;
    char empty[CLI_MOST_PATH], broken[CLI_MOST_PATH];
    write_text(empty, "empty", "");
    write_text(broken, "broken", "{\"skill\": 1}");
    static const char *const parts[] = {"give either --ppl or --tasks", "--against needs --ppl",
                                        "need --ppl", "need --tasks",
                                        "--against-cache-type needs --against"};
    cli_result usage[] = {CLI_RUN("eval", DRAFT),
                          CLI_RUN("eval", DRAFT, "--tasks", empty, "--against", DRAFT),
                          CLI_RUN("eval", DRAFT, "--tasks", empty, "--stride", "3"),
                          CLI_RUN("eval", DRAFT, "--ppl", empty, "--limit", "3"),
                          CLI_RUN("eval", DRAFT, "--ppl", empty, "--against-cache-type", "f32")};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(usage[i].code, 2);
        assert_non_null(strstr(usage[i].err, parts[i]));
        cli_free(&usage[i]);
    }
    cli_result failed[] = {CLI_RUN("eval", DRAFT, "--ppl", empty),
                           CLI_RUN("eval", DRAFT, "--tasks", empty),
                           CLI_RUN("eval", DRAFT, "--tasks", broken),
                           CLI_RUN("eval", DRAFT, "--ppl", cli_path("missing")),
                           CLI_RUN("eval", MINI "/qwen3", "--ppl", broken, "--against",
                                   MINI "/gemma/gemma-bf16.gguf")};
    static const char *const told[] = {"0 tokens, want at least 2", "no tasks", "task 1: wants",
                                       "/missing", "another tokenizer"};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(failed[i].code, 1);
        if (!strstr(failed[i].err, told[i])) fail_msg("'%s' lacks '%s'", failed[i].err, told[i]);
        cli_free(&failed[i]);
    }
}

// Windows that a model has no room for: the option, the model and both numbers.
static void test_window_too_long(void **state) {
    (void)state;
    char text[CLI_MOST_PATH];
    write_text(text, "window.txt", "Once upon a time there was a mill.");
    cli_result own = CLI_RUN("eval", DRAFT, "--ppl", text, "-c", "5000"),
               other = CLI_RUN("eval", MINI "/qwen3/qwen3-bf16.gguf", "--ppl", text, "-c", "3000",
                               "--against", DRAFT);
    cli_assert_fails(&own, 1, "--context: windows of 5000 tokens, but ");
    assert_non_null(strstr(own.err, "quern-draft-Q8_0.gguf has a context of 2048\n"));
    assert_int_equal(other.code, 1);
    assert_non_null(strstr(other.err, "--context: windows of 3000 tokens, but "));
    assert_non_null(strstr(other.err, "quern-draft-Q8_0.gguf has a context of 2048\n"));
    cli_free(&own), cli_free(&other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checkers_follow_their_rules),
        cmocka_unit_test(perplexity_is_the_mean_of_what_logits_say),
        cmocka_unit_test(tasks_are_counted_by_skill),
        cmocka_unit_test(a_cache_type_diverges_by_its_bits),
        cmocka_unit_test(wrong_input_is_told),
        cmocka_unit_test(test_window_too_long),
    };
    return cmocka_run_group_tests_name("cli: eval", tests, cli_setup, cli_teardown);
}
