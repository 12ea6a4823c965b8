// --expert-budget, --expert-stats and --expert-svg of the commands that compute.
#include "cli_run.h"

#define MODEL MINI "/qwen3_moe"

static char *logits(const char *budget, size_t *size) {
    const char *args[16] = {"logits", MODEL,         "--ids",       "1,2,3,4,5,6,7,8,9", "--all",
                            "-o",     cli_path("o"), "--cache-dir", cli_path("cache")};
    size_t n = 9;
    if (budget) args[n++] = "--expert-budget", args[n++] = budget;
    cli_result r = cli_run_with(&(cli_input){0}, args);
    if (r.code) fail_msg("exit code %d, stderr '%s'", r.code, r.err);
    cli_free(&r);
    return cli_load(args[6], size);
}

static void budgets_change_no_output(void **state) {
    static const char *const budgets[] = {"2", "3", "4", "99", "1G", "200k"};
    size_t n, size;
    (void)state;
    char *want = logits(NULL, &n);
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++) {
        char *got = logits(budgets[i], &size);
        assert_int_equal(size, n);
        assert_memory_equal(got, want, n);
        free(got);
    }
    free(want);
}

static void the_table_and_the_picture_are_written(void **state) {
    (void)state;
    const char *svg = cli_path("experts.svg");
    cli_result r = CLI_RUN("run", MODEL, "hello", "-n", "8", "--cache-dir", cli_path("cache"),
                           "--expert-budget", "2", "--expert-stats", "--expert-svg", svg);
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(r.err, "experts: 2 of 4 in memory in each of 2 layers"));
    assert_non_null(strstr(r.err, "misses"));
    cli_free(&r);
    char *text = cli_load(svg, NULL);
    assert_memory_equal(text, "<svg", 4);
    free(text);
    r = CLI_RUN("bench", MODEL, "-p", "8", "-n", "2", "-r", "1", "--expert-stats", "--cache-dir",
                "none");
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(r.err, "experts: 4 of 4 in memory"));
    cli_free(&r);
}

static void wrong_budgets_are_named(void **state) {
    static const char *const wrong[] = {
        "0", "-1", "x", "3x", "1GG", "", "32 ", "3\x0b", "99999999999999999999"};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cli_result r = CLI_RUN("run", MODEL, "hello", "--expert-budget", wrong[i]);
        cli_assert_fails(&r, 2, "--expert-budget");
        cli_free(&r);
    }
    cli_result r = CLI_RUN("run", MODEL, "hello", "--expert-budget", "1");
    cli_assert_fails(&r, 1, "1 experts per layer; a token is routed to 2");
    cli_free(&r);
    r = CLI_RUN("run", MODEL, "hello", "--expert-budget", "2", "--cache-dir", "none");
    cli_assert_fails(&r, 1, "quern compile");
    cli_free(&r);
    r = CLI_RUN("run", MINI "/qwen3", "hello", "--expert-budget", "2");
    cli_assert_fails(&r, 1, "has no experts");
    cli_free(&r);
    r = CLI_RUN("synth", "tiny-qwen3moe", "F16", cli_path("m.gguf"), "--routing-skew", "9");
    cli_assert_fails(&r, 2, "--routing-skew");
    cli_free(&r);
    r = CLI_RUN("synth", "tiny-qwen3", "F16", cli_path("m.gguf"), "--routing-skew", "1");
    cli_assert_fails(&r, 1, "tiny-qwen3 has no experts");
    cli_free(&r);
    r = CLI_RUN("run", MODEL, "hello", "--expert-svg", cli_path("e.svg"));
    cli_assert_fails(&r, 2, "--expert-svg needs --expert-budget");
    cli_free(&r);
    cli_save(cli_path("diary"), "dear", 4);
    r = CLI_RUN("run", MODEL, "hello", "--expert-budget", "2", "--expert-svg", cli_path("diary"));
    assert_string_equal(r.out, ""); // before anything is generated
    cli_assert_fails(&r, 2, "is not an SVG file");
    cli_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(budgets_change_no_output),
        cmocka_unit_test(the_table_and_the_picture_are_written),
        cmocka_unit_test(wrong_budgets_are_named),
    };
    return cmocka_run_group_tests(tests, cli_setup, cli_teardown);
}
