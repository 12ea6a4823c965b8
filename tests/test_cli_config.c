// The command line: defaults of options from the environment and from config.toml.
#include "cli_run.h"

static const char config_file[] = "config.toml";

// A file that QUERN_CONFIG names.
static void keep(const char *text) {
    const char *path = cli_path(config_file);
    cli_save(path, text, strlen(text));
    setenv("QUERN_CONFIG", path, 1);
}

static int forget(void **state) {
    (void)state;
    static const char *const names[] = {"QUERN_CONFIG", "QUERN_OPT_TEMP", "QUERN_OPT_TEMPERATURE",
                                        "QUERN_OPT_X"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
    return 0;
}

// An answer that depends on every one of these options.
#define STORY "run", DRAFT, "-p", "Tell me a story."
#define TYPED STORY, "--temp", "0.9", "--seed", "3", "--tokens", "12", "--stop", "zz"

static void assert_same(cli_result a, cli_result b) {
    cli_assert_done(&a);
    cli_assert_done(&b);
    assert_string_equal(a.out, b.out);
    cli_free(&a), cli_free(&b);
}

static void assert_other(cli_result a, cli_result b) {
    cli_assert_done(&a);
    cli_assert_done(&b);
    assert_string_not_equal(a.out, b.out);
    cli_free(&a), cli_free(&b);
}

// --- order ---------------------------------------------------------------------------------------

static void what_is_kept_is_as_typed(void **state) {
    (void)state;
    keep("temp = 0.9\nn-predict = 12\n[run]\nseed = 3\nstop = [\"zz\"]\n[serve]\ntemp = 5\n");
    assert_same(CLI_RUN(STORY), CLI_RUN(TYPED));
}

static void the_stronger_counts(void **state) {
    (void)state;
    cli_result hot = CLI_RUN(TYPED), cold = CLI_RUN(STORY, "--seed", "3", "--tokens", "12");
    assert_string_not_equal(hot.out, cold.out);
    keep("temp = 0\ntokens = 40\n[run]\ntemp = 0.9\nseed = 3\ntokens = 12\n");
    cli_result table = CLI_RUN(STORY);
    assert_string_equal(table.out, hot.out); // the command's table, not what is above it
    setenv("QUERN_OPT_TEMP", "0", 1);
    cli_result variable = CLI_RUN(STORY);
    assert_string_equal(variable.out, cold.out);
    cli_result typed = CLI_RUN(STORY, "--temp", "0.9");
    assert_string_equal(typed.out, hot.out);
    setenv("QUERN_OPT_TEMP", "", 1); // as if it were not there
    cli_result empty = CLI_RUN(STORY);
    assert_string_equal(empty.out, hot.out);
    cli_free(&hot), cli_free(&cold), cli_free(&table), cli_free(&variable), cli_free(&typed);
    cli_free(&empty);
}

static void typed_lists_replace_kept_ones(void **state) {
    (void)state;
    keep("tokens = 12\nstop = [\"a\", \"e\"]\n");
    assert_other(CLI_RUN(STORY), CLI_RUN(STORY, "--stop", "zz"));
    assert_same(CLI_RUN(STORY, "--no-stop"), CLI_RUN(STORY, "--stop", "zz"));
}

static void flags_are_switched_off(void **state) {
    (void)state;
    cli_result plain = CLI_RUN("tokenize", DRAFT, "Hello");
    static const char *const on[] = {"json = true\n", "[tokenize]\njson = true\n"};
    for (size_t i = 0; i < sizeof on / sizeof *on; i++) {
        keep(on[i]);
        cli_result json = CLI_RUN("tokenize", DRAFT, "Hello"),
                   off = CLI_RUN("tokenize", DRAFT, "Hello", "--no-json"),
                   again = CLI_RUN("tokenize", DRAFT, "Hello", "--no_json", "--json");
        cli_assert_done(&json);
        assert_int_equal(*json.out, '{');
        assert_string_equal(off.out, plain.out);
        assert_string_equal(again.out, json.out);
        cli_free(&json), cli_free(&off), cli_free(&again);
    }
    keep("json = true\n[tokenize]\njson = false\n");
    cli_result off = CLI_RUN("tokenize", DRAFT, "Hello");
    assert_string_equal(off.out, plain.out);
    cli_free(&off), cli_free(&plain);
    cli_result value = CLI_RUN("tokenize", DRAFT, "Hello", "--no-json=1");
    cli_assert_fails(&value, 2, "--no-json takes no value, got '1'");
    cli_free(&value);
}

// --- what does not fit ---------------------------------------------------------------------------

// Defaults give way to what is stronger, and wait for what they are for.
static void defaults_give_way(void **state) {
    (void)state;
    keep("temp = 0.9\nsystem = \"Be brief.\"\nkeep = 4\ndraft-max = 3\nmodels = \"/nonexistent\"\n"
         "context = 64\ntokens = 8\n[logits]\ntop = 3\n");
    assert_same(CLI_RUN(STORY, "--greedy"), CLI_RUN(STORY, "--temp", "0"));
    assert_same(CLI_RUN(STORY, "--raw", "--seed", "3"),
                CLI_RUN(STORY, "--raw", "--seed", "3", "--no-system"));
    cli_result logits =
        CLI_RUN("logits", DRAFT, "--ids", "1", "-o", cli_path("logits.safetensors"));
    cli_assert_done(&logits);
    cli_free(&logits);
    cli_save(cli_path("tasks.jsonl"), "", 0);
    cli_result eval = CLI_RUN("eval", DRAFT, "--tasks", cli_path("tasks.jsonl"));
    if (strstr(eval.err, "--context")) fail_msg("%s", eval.err);
    cli_free(&eval);
    cli_result serve = CLI_RUN("serve", "/nonexistent.gguf", "--port", "0");
    cli_assert_fails(&serve, 1, "/nonexistent.gguf");
    cli_free(&serve);
}

// A session that goes on has its own settings.
static void sessions_keep_their_settings(void **state) {
    (void)state;
    char file[CLI_MOST_PATH];
    snprintf(file, sizeof file, "%s", cli_path("session.json"));
    cli_result first = CLI_RUN(STORY, "--session", file, "--temp", "0.5", "-n", "4");
    cli_assert_done(&first);
    keep("temp = 2\ntop-k = 3\nsystem = \"Shout.\"\n");
    cli_result second = CLI_RUN(STORY, "--session", file);
    cli_assert_done(&second);
    char *saved = cli_load(file, NULL);
    assert_non_null(strstr(saved, "\"temp\": \"0.5\""));
    assert_null(strstr(saved, "top-k"));
    assert_null(strstr(saved, "Shout"));
    free(saved);
    cli_free(&first), cli_free(&second);
    setenv("QUERN_OPT_TEMP", "2", 1);
    cli_result third = CLI_RUN(STORY, "--session", file, "--temp", "0.25");
    cli_assert_done(&third);
    saved = cli_load(file, NULL);
    assert_non_null(strstr(saved, "\"temp\": \"0.25\"")); // what is typed counts
    free(saved);
    cli_free(&third);
}

// --- where the file is ---------------------------------------------------------------------------

static void assert_kept(const char *args_command, const char *part) {
    cli_result r = CLI_RUN("help", args_command);
    cli_assert_done(&r);
    if (!strstr(r.out, part)) fail_msg("no '%s' in:\n%s", part, r.out);
    cli_free(&r);
}

static void the_file_is_found(void **state) {
    (void)state;
    char folder[CLI_MOST_PATH], command[CLI_MOST_PATH * 5];
    snprintf(folder, sizeof folder, "%s", cli_path("home"));
    snprintf(command, sizeof command,
             "mkdir -p '%s/.config/quern' '%s/xdg/quern' && "
             "echo 'seed = 11' > '%s/.config/quern/config.toml' && "
             "echo 'seed = 22' > '%s/xdg/quern/config.toml'",
             folder, folder, folder, folder);
    assert_int_equal(system(command), 0);
    unsetenv("QUERN_CONFIG");
    setenv("HOME", folder, 1);
    assert_kept("run", "now 11, from ");
    snprintf(command, sizeof command, "%s/xdg", folder);
    setenv("XDG_CONFIG_HOME", command, 1);
    assert_kept("run", "now 22, from ");
    setenv("XDG_CONFIG_HOME", "xdg", 1); // relative, so it does not count
    assert_kept("run", "now 11, from ");
    setenv("QUERN_CONFIG", "none", 1);
    cli_result none = CLI_RUN("help", "run");
    assert_null(strstr(none.out, "now "));
    cli_free(&none);
    setenv("HOME", "/nonexistent", 1);
    unsetenv("XDG_CONFIG_HOME"), unsetenv("QUERN_CONFIG");
    assert_kept("config", "The file is /nonexistent/.config/quern/config.toml, which is not there");
}

static void help_says_where_values_come_from(void **state) {
    (void)state;
    keep("temp = 0.7\nno-context-shift = true\n\n[serve]\npage = false\napi-key = \"top secret\"\n"
         "models = \"~/models\"\nstop = \"a\"\n");
    cli_result bad = CLI_RUN("help", "serve"); // help is there all the same
    assert_int_equal(bad.code, 0);
    if (!strstr(bad.err, "quern: warning: ") || !strstr(bad.err, "line 8: no option 'stop'; "))
        fail_msg("%s", bad.err);
    assert_non_null(strstr(bad.out, "--port"));
    cli_free(&bad);
    keep("temp = 0.7\ncontext-shift = true\n\n[serve]\npage = false\napi-key = \"top secret\"\n"
         "models = \"~/models\"\n");
    setenv("QUERN_OPT_TEMP", "0.25", 1);
    assert_kept("serve", "now 0.25, from QUERN_OPT_TEMP\n");
    assert_kept("serve", "now on, from ");
    assert_kept("serve", "config.toml: line 5\n");
    assert_kept("serve", "now /nonexistent/models, from ");
    assert_kept("serve", "now set, from ");
    assert_kept("run", "config.toml: line 2\n");
    cli_result serve = CLI_RUN("help", "serve"), embed = CLI_RUN("help", "embed");
    assert_null(strstr(serve.out, "secret"));
    assert_null(strstr(embed.out, "now "));
    cli_free(&serve), cli_free(&embed);
}

// --- what is wrong -------------------------------------------------------------------------------

static void wrong_files_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *part;
        int code;
    } cases[] = {
        {"temp = \"hot\"\n", "config.toml: line 1: --temp: 'hot', want a number from 0 to 100", 2},
        {"\n\ntemp = 101\n", "config.toml: line 3: --temp: '101', want", 2},
        {"temp = true\n", "config.toml: line 1: --temp: 'true', want", 2},
        {"temp = [1, 2]\n", "config.toml: line 1: --temp: an array, want one value", 2},
        {"temp = inf\n", "config.toml: line 1: --temp: 'inf', want", 2},
        {"raw = 2\n", "config.toml: line 1: --raw: '2', want on, off, true, ", 2},
        {"tmep = 1\n", "config.toml: line 1: no option 'tmep'; did you mean 'temp'?", 2},
        {"[run]\nprot = 1\n", "config.toml: line 2: no option 'prot'; ", 2},
        {"[serve]\nprot = 1\n", "config.toml: line 2: no option 'prot'; did you mean 'port'?", 2},
        {"frobnicate = 1\n", "'frobnicate'; 'quern help COMMAND' lists the options", 2},
        {"ctk = \"f16\"\n", "line 1: no option 'ctk'; did you mean 'cache-type'?", 2},
        {"flash-attn = true\n", "line 1: no option 'flash-attn'; attention is always fused", 2},
        {"model = \"a\"\n", "'model'; the model is named on the command line", 2},
        {"[srve]\nport = 1\n", "line 2: no command 'srve' for [srve]; did you mean 'serve'?", 2},
        {"[general]\nport = 1\n", "what is for all commands stands above the first table", 2},
        {"[run.more]\ntemp = 1\n", "line 2: no option 'more.temp'", 2},
        {"temp = 1\ntemperature = 1\n", "line 2: 'temperature' is --temp, which is also at ", 2},
        {"temp = 1\ntemp = 1\n", "config.toml: line 2: temp is there since line 1", 1},
        {"temp = \n", "config.toml: line 1: expected a value", 1},
        {"device = \"gpu\"\n", "there are cpu, ", 2},
        {"greedy = true\ntemp = 1\n", "--greedy takes the best token, --temp 1 samples", 2},
        {"no-temp = true\n", "--temp: only flags have a name with 'no-' in front", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        keep(cases[i].text);
        cli_result r = CLI_RUN(STORY);
        cli_assert_fails(&r, cases[i].code, cases[i].part);
        cli_free(&r);
    }
    keep("greedy = true\ntemp = 1\n");
    cli_result both = CLI_RUN(STORY); // and where both come from
    cli_assert_fails(&both, 2, " (--greedy: ");
    cli_assert_fails(&both, 2, "config.toml: line 2)\n");
    cli_free(&both);
    setenv("QUERN_CONFIG", "/nonexistent.toml", 1);
    cli_result missing = CLI_RUN(STORY);
    cli_assert_fails(&missing, 1, "QUERN_CONFIG: /nonexistent.toml: ");
    cli_free(&missing);
}

// A name of a megabyte, a table of many options, bytes that are no text: one line, and no more.
static void hostile_files_are_refused(void **state) {
    (void)state;
    enum { SIZE = 3 << 20 };
    char *text = malloc(SIZE + 1);
    memset(text, 'a', SIZE);
    text[SIZE] = 0;
    static const size_t sizes[] = {SIZE, 1000, 200, 65, 64};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        memset(text, 'a', SIZE);
        if (sizes[i] < SIZE) strcpy(text + sizes[i], " = 1\n");
        keep(text);
        cli_result r = CLI_RUN(STORY);
        if (r.code != 1 && r.code != 2) fail_msg("%zu: exit code %d", sizes[i], r.code);
        cli_assert_fails(&r, r.code, "config.toml: ");
        cli_free(&r);
    }
    free(text);
    keep("temp = \"\x1b[31m\"\n");
    cli_result escape = CLI_RUN(STORY);
    cli_assert_fails(&escape, 1, "config.toml: line 1: byte 0x1b in a string");
    cli_free(&escape);
    keep("seed = \"\\u001b[31m\"\n");
    cli_result shown = CLI_RUN("help", "run");
    assert_null(strchr(shown.out, '\x1b'));
    cli_free(&shown);
}

static void wrong_variables_are_refused(void **state) {
    (void)state;
    setenv("QUERN_CONFIG", "none", 1);
    setenv("QUERN_OPT_TEMP", "hot", 1);
    cli_result value = CLI_RUN(STORY);
    cli_assert_fails(&value, 2, "quern: QUERN_OPT_TEMP: --temp: 'hot', want a number");
    cli_result typed = CLI_RUN("tokenize", DRAFT, "Hello"); // which has no --temp
    cli_assert_done(&typed);
    cli_free(&value), cli_free(&typed);
    setenv("QUERN_OPT_TEMP", "1", 1);
    setenv("QUERN_OPT_TEMPERATURE", "1", 1);
    cli_result twice = CLI_RUN(STORY);
    cli_assert_fails(&twice, 2, "is --temp, which is also at QUERN_OPT_TEMP");
    unsetenv("QUERN_OPT_TEMPERATURE");
    setenv("QUERN_OPT_X", "1", 1);
    cli_result name = CLI_RUN("devices");
    cli_assert_fails(&name, 2, "QUERN_OPT_X: no option 'x'; 'quern help COMMAND' lists");
    cli_free(&twice), cli_free(&name);
}

// What the user keeps comes after the tests' own start, which forgets it.
static void tests_do_not_see_the_users_defaults(void **state) {
    (void)state;
    assert_null(getenv("QUERN_CONFIG"));
    assert_null(getenv("XDG_CONFIG_HOME"));
    assert_string_equal(getenv("HOME"), "/nonexistent");
}

#define TEST(f) cmocka_unit_test_teardown(f, forget)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tests_do_not_see_the_users_defaults),
        TEST(what_is_kept_is_as_typed),
        TEST(the_stronger_counts),
        TEST(typed_lists_replace_kept_ones),
        TEST(flags_are_switched_off),
        TEST(defaults_give_way),
        TEST(sessions_keep_their_settings),
        TEST(the_file_is_found),
        TEST(help_says_where_values_come_from),
        TEST(wrong_files_are_refused),
        TEST(hostile_files_are_refused),
        TEST(wrong_variables_are_refused),
    };
    return cmocka_run_group_tests(tests, cli_setup, cli_teardown);
}
