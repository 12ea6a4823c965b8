// The commands of a conversation, on a terminal made for the purpose.
#include "screen.h"

static void test_save_and_load(void **state) {
    screen *s = *state;
    char line[CLI_MOST_PATH + 16], path[CLI_MOST_PATH];
    snprintf(path, sizeof path, "%s", cli_path("talk.json"));
    screen_open(s, (const char *[]){"run", DRAFT, NULL});
    screen_expect(s, "> ");
    screen_type(s, "My name is Kevin.\n");
    screen_expect(s, "tokens/s]");
    screen_type(s, "/set temp 0.5\n");
    screen_expect(s, "temp ");
    screen_expect(s, "0.5");
    snprintf(line, sizeof line, "/save %s\n", path);
    screen_type(s, line);
    screen_expect(s, "2 messages saved to");
    screen_type(s, "/exit\n");
    assert_int_equal(screen_close(s), 0);
    screen_open(s, (const char *[]){"run", DRAFT, NULL});
    screen_expect(s, "> ");
    snprintf(line, sizeof line, "/load %s\n", path);
    screen_type(s, line);
    screen_expect(s, "2 messages loaded from");
    screen_type(s, "/set\n");
    screen_expect(s, "0.5");               // came with it
    screen_type(s, "/set temp default\n"); // and goes
    screen_expect(s, "temp is back to its default");
    screen_type(s, "What is my name?\n");
    screen_expect(s, "name?\r\n");
    screen_expect(s, "Kevin");
    screen_expect(s, "tokens/s]");
    char missing[CLI_MOST_PATH + 16];
    snprintf(missing, sizeof missing, "/load %s.not\n", path);
    screen_type(s, missing);
    screen_expect(s, "talk.json.not: cannot open");
    screen_type(s, "/save\n");
    screen_expect(s, "/save needs the name of a file");
    screen_type(s, "/save /dev/null\n");
    screen_expect(s, "quern: /dev/null");
    screen_type(s, "/exit\n");
    assert_int_equal(screen_close(s), 0);
    // The other model has another conversation.
    screen_open(s, (const char *[]){"run", NULL});
    screen_expect(s, "> ");
    screen_type(s, line);
    screen_expect(s, "quern: ");
    screen_expect(s, "a conversation with quern-draft (qwen3,");
    screen_expect(s, "the model here is quern-mini (qwen3,");
    screen_type(s, "/exit\n");
    assert_int_equal(screen_close(s), 0);
}

static void test_commands(void **state) {
    screen *s = *state;
    screen_open(s, (const char *[]){"run", DRAFT, "-n", "8", NULL});
    screen_expect(s, "> ");
    screen_type(s, "/regen\n");
    screen_expect(s, "there is no answer yet");
    screen_type(s, "/system You are a pirate.\n");
    screen_expect(s, "the system message is set");
    screen_type(s, "/system\n");
    screen_expect(s, "You are a pirate.");
    screen_type(s, "/system none\n");
    screen_expect(s, "no system message");
    screen_type(s, "/set\n"); // the values in force
    screen_expect(s, "  reasoning            as the template decides (default)");
    screen_expect(s, "  context-shift        off (default)");
    screen_expect(s, "  top-k                0 (default)");
    screen_expect(s, "  ban                  none (default)");
    screen_type(s, "/set keep\n");
    screen_expect(s, "  tokens at the start that context-shift does not drop (default 0)");
    static const char *const fixed[][2] = {
        {"/set context 100\n", "quern: context is fixed when quern starts: quern run -c N"},
        {"/set num_ctx 100\n", "quern: context is fixed when quern starts: quern run -c N"},
        {"/set json-mode on\n",
         "quern: json-mode is fixed when quern starts: quern run --json-mode"},
        {"/set system Hi\n", "quern: system: use /system TEXT"},
        {"/set nothink\n", "quern: nothink: use /set reasoning off"},
        {"/set wordwrap\n", "quern: wordwrap: use /set no-wrap off"},
        {"/set nohistory\n", "quern: nohistory: --no-history when quern starts"},
        {"/show license\n",
         "quern: /show: 'license', want info, messages, prompt, system, template or"},
    };
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        screen_type(s, fixed[i][0]);
        screen_expect(s, fixed[i][1]);
    }
    screen_type(s, "/set temperature 1.5\n"); // by another program's name
    screen_expect(s, "1.5");
    screen_type(s, "/set parameter top_k 39\n"); // and by its words
    screen_expect(s, "top-k is now 39");
    screen_type(s, "/set top_k default\n");
    screen_expect(s, "top-k is back to its default");
    screen_type(s, "/set temp hot\n");
    screen_expect(s, "--temp: 'hot', want a number");
    screen_type(s, "/set frobnication 1\n");
    screen_expect(s, "no setting 'frobnication'");
    screen_type(s, "Tell me a story.\n");
    screen_expect(s, "tokens/s]");
    screen_type(s, "/regen\n");
    screen_expect(s, "tokens/s]");
    screen_type(s, "/stats\n");
    screen_expect(s, "answers   2");
    screen_expect(s, "generated ");
    screen_type(s, "/image cat.png\n");
    screen_expect(s, "cat.png");
    screen_type(s, "/image " TEST_DATA "/mini/qwen35_vl/image.png\n");
    screen_expect(s, "architecture");
    screen_type(s, "/exit\n");
    assert_int_equal(screen_close(s), 0);
}

// The file of a session follows commands too, not only answers.
static void test_session_follows_commands(void **state) {
    screen *s = *state;
    char path[CLI_MOST_PATH];
    snprintf(path, sizeof path, "%s", cli_path("kept.json"));
    const char *args[] = {"run", DRAFT, "-n", "4", "--session", path, NULL};
    screen_open(s, args);
    screen_expect(s, "> ");
    screen_type(s, "Hi!\n");
    screen_expect(s, "tokens/s]");
    screen_type(s, "/set temp 0.7\n");
    screen_expect(s, "temp");
    screen_expect(s, "> ");
    screen_type(s, "/system You are terse.\n");
    screen_expect(s, "the system message is set");
    screen_type(s, "\x04");
    assert_int_equal(screen_close(s), 0);
    screen_open(s, args);
    screen_expect(s, "> ");
    screen_type(s, "/system\n");
    screen_expect(s, "You are terse.\r");
    screen_type(s, "/set temp\n");
    screen_expect(s, "0.7");
    screen_type(s, "/set temp default\n");
    screen_expect(s, "default");
    screen_expect(s, "> ");
    screen_type(s, "/system none\n");
    screen_expect(s, "no system message");
    screen_expect(s, "> ");
    screen_type(s, "\x04");
    assert_int_equal(screen_close(s), 0);
    char *text = cli_load(path, NULL);
    assert_null(strstr(text, "terse"));
    assert_null(strstr(text, "0.7"));
    assert_non_null(strstr(text, "Hi!"));
    free(text);
}

// A command is one line whose word has one slash; all else is text, and // begins one with a slash.
static void test_texts_with_slashes(void **state) {
    screen *s = *state;
    char path[CLI_MOST_PATH];
    snprintf(path, sizeof path, "%s", cli_path("slashes.json"));
    screen_open(s, (const char *[]){"run", DRAFT, "-n", "2", "--session", path, NULL});
    screen_expect(s, "> ");
    static const char *const typed[] = {"/usr/bin is a folder\r", "//help\r",
                                        "\033[200~// a comment\rint x;\033[201~\r",
                                        "\033[200~/reset\rnow\033[201~\r", "\"\"\"/regen\"\"\"\r"};
    static const char *const asked[] = {"\"/usr/bin is a folder\"", "\"/help\"",
                                        "\"// a comment\\nint x;\"", "\"/reset\\nnow\"",
                                        "\"/regen\""};
    for (size_t i = 0; i < sizeof typed / sizeof *typed; i++) {
        screen_type(s, typed[i]);
        screen_expect(s, "tokens/s]");
        screen_expect(s, "> ");
    }
    screen_type(s, "/frobnicate\n");
    screen_expect(s, "no command /frobnicate");
    screen_type(s, "/exit\n");
    assert_int_equal(screen_close(s), 0);
    char *text = cli_load(path, NULL);
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        if (!strstr(text, asked[i])) fail_msg("no %s in %s", asked[i], text);
    }
    free(text);
}

// A line that begins with pasted text is sent as it is; what is pasted after something typed is
// not.
static void test_pasted_text_is_no_command(void **state) {
    screen *s = *state;
    char path[CLI_MOST_PATH];
    snprintf(path, sizeof path, "%s", cli_path("pasted.json"));
    screen_open(s, (const char *[]){"run", DRAFT, "-n", "2", "--session", path, NULL});
    screen_expect(s, "> ");
    static const char *const typed[] = {
        "\033[200~// a comment\033[201~\r",      "\033[200~/bye\033[201~\r",
        "\033[200~/reset\r\033[201~\r",          "\033[200~/exit\033[201~ or not?\r",
        "\033[200~\"\"\"one\"\"\"\033[201~\r",   "\033[200~two \\\033[201~\r",
        "\033[A\033[A\033[A\033[A\033[A\r", // what was pasted is text when it comes back, too
        "\x15\033[200~/quit\033[201~\x01\x05\r",
    };
    static const char *const asked[] = {
        "\"// a comment\"",
        "\"/bye\"",
        "\"/reset\\n\"",
        "\"/exit or not?\"",
        "\"\\\"\\\"\\\"one\\\"\\\"\\\"\"",
        "\"two \\\\\"",
        "\"/bye\"",
        "\"/quit\"",
    };
    for (size_t i = 0; i < sizeof typed / sizeof *typed; i++) {
        screen_type(s, typed[i]);
        screen_expect(s, "tokens/s]");
        screen_expect(s, "> ");
    }
    // The beginning was typed, or all that was pasted is gone again.
    screen_type(s, "/set top-k \033[200~33\033[201~\r");
    screen_expect(s, "top-k is now 33");
    screen_type(s, "\033[200~set top-k 34\033[201~\x01/\r");
    screen_expect(s, "top-k is now 34");
    screen_type(s, "\033[200~/reset\033[201~\x15/exit\r");
    assert_int_equal(screen_close(s), 0);
    char *text = cli_load(path, NULL);
    const char *at = text;
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        const char *found = strstr(at, asked[i]);
        if (!found) fail_msg("no %s in %s", asked[i], at);
        at = found + 1;
    }
    free(text);
}

// A setting that is a list is replaced like any other; texts between quotes are several.
static void test_set_replaces_lists(void **state) {
    screen *s = *state;
    screen_open(s, (const char *[]){"run", DRAFT, "--stop", "one", "--stop", "two", NULL});
    screen_expect(s, "> ");
    screen_type(s, "/set stop three words here\n");
    screen_expect(s, "stop is now \"three words here\" (was \"one\" \"two\")");
    screen_type(s, "/set parameter stop \"four\" \"a \\\"b\\\" c\"\n");
    screen_expect(s, "stop is now \"four\" \"a \\\"b\\\" c\" (was \"three words here\")");
    screen_type(s, "/set stop \"half\n");
    screen_expect(s, "--stop: a quote is not closed");
    screen_type(s, "/set stop \"four\" five\n");
    screen_expect(s, "--stop: 'five', want a text between quotes");
    screen_type(s, "/set stop \"\"\n");
    screen_expect(s, "--stop: the text is empty");
    screen_type(s, "/set stop \"a\\n\\\\n\"\n");
    screen_expect(s, "stop is now \"a\\n\\\\n\"");
    screen_type(s, "/set logit-bias 5+1\n");
    screen_expect(s, "logit-bias is now \"5+1\"");
    screen_type(s, "/set logit-bias \"6+1\" \"7-1\"\n");
    screen_expect(s, "logit-bias is now \"6+1\" \"7-1\" (was \"5+1\")");
    screen_type(s, "/set logit-bias hot\n"); // is refused, and changes nothing
    screen_expect(s, "--logit-bias");
    screen_expect(s, "> ");
    screen_type(s, "/set logit-bias\n");
    screen_expect(s, "\"6+1\" \"7-1\"");
    screen_type(s, "/set stop default\n");
    screen_expect(s, "stop is back to its default");
    screen_type(s, "/exit\n");
    assert_int_equal(screen_close(s), 0);
}

// A name alone shows a setting and changes nothing; what changes is said.
static void test_settings_are_told(void **state) {
    screen *s = *state;
    screen_open(s, (const char *[]){"run", DRAFT, "--temp", "0.5", NULL});
    screen_expect(s, "> ");
    for (int i = 0; i < 2; i++) {
        screen_type(s, "/set temp\n");
        screen_expect(s, "0.5");
        screen_expect(s, "temperature"); // what it does
    }
    screen_type(s, "/set temp 0.8\n");
    screen_expect(s, "temp is now 0.8 (was 0.5)");
    screen_type(s, "/set temp 0.8\n");
    screen_expect(s, "temp is 0.8, as before");
    screen_type(s, "/set temp default\n");
    screen_expect(s, "temp is back to its default (was 0.8)");
    screen_type(s, "/set top_k 39\n");
    screen_expect(s, "top-k is now 39 (was the default)");
    screen_type(s, "/exit\n");
    assert_int_equal(screen_close(s), 0);
}

// --greedy and a temperature contradict each other: what is set last counts, and that is said.
static void test_temperature_ends_greedy(void **state) {
    screen *s = *state;
    char path[CLI_MOST_PATH];
    snprintf(path, sizeof path, "%s", cli_path("greedy.json"));
    screen_open(s, (const char *[]){"run", DRAFT, "--greedy", "-n", "16", "--session", path, NULL});
    screen_expect(s, "> ");
    screen_type(s, "/set temp 0\n");
    screen_expect(s, "temp is now 0");
    screen_type(s, "/set greedy\n");
    screen_expect(s, "greedy               on");
    screen_type(s, "/set temp 100\n");
    screen_expect(s, "temp is now 100 (was 0)");
    screen_expect(s, "greedy is now off (was on)");
    screen_type(s, "What is 10 + 62?\n");
    screen_expect(s, "tokens/s]");
    screen_type(s, "/set greedy on\n");
    screen_expect(s, "greedy is now on");
    screen_expect(s, "temp is back to its default (was 100)");
    screen_type(s, "/reset\n");
    screen_expect(s, "conversation cleared");
    const size_t before = s->seen;
    screen_type(s, "What is 10 + 62?\n");
    screen_expect(s, "10 + 62 = 72");
    screen_type(s, "/exit\n");
    assert_int_equal(screen_close(s), 0);
    // Nothing of the kind came at this temperature.
    s->text[before] = 0;
    assert_null(strstr(s->text, "10 + 62 = 72"));
}

// A template that refuses one way to answer has a switch for it.
static void test_reasoning_that_is_refused(void **state) {
    static const char refusal[] =
        "{% if enable_thinking %}{{ raise_exception('not me') }}{% endif %}",
                      rest[] = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
                               "<|im_end|>\n{% endfor %}<|im_start|>assistant\n";
    (void)state;
    char text[sizeof refusal + sizeof rest];
    const char *refuses = cli_path("refuses.jinja"), *plain = cli_path("plain.jinja");
    snprintf(text, sizeof text, "%s%s", refusal, rest);
    cli_save(refuses, text, strlen(text));
    cli_save(plain, rest, strlen(rest));
    cli_result want = CLI_RUN("run", DRAFT, "-p", "Hi", "-n", "8", "--template", plain);
    cli_result r =
        CLI_RUN("run", DRAFT, "-p", "Hi", "-n", "8", "--template", refuses, "--reasoning", "off");
    cli_assert_done(&want);
    cli_assert_done(&r);
    assert_string_equal(r.out, want.out);
    assert_null(strstr(r.err, "no switch"));
    cli_free(&want);
    cli_free(&r);
    r = CLI_RUN("run", DRAFT, "-p", "Hi", "--template", refuses, "--reasoning", "on");
    assert_int_equal(r.code, 1);
    assert_non_null(strstr(r.err, "not me"));
    cli_free(&r);
}

// Names of files are written as in a shell.
static void test_names_of_files(void **state) {
    screen *s = *state;
    static const struct {
        const char *typed, *file;
    } names[] = {{"~/home.json", "home.json"},
                 {"\"two words.json\"", "two words.json"},
                 {"'it is.json'", "it is.json"},
                 {"~/back\\ slash.json", "back slash.json"},
                 {"\"$x `y` \\\" z.json\"", "$x `y` \" z.json"}};
    char folder[CLI_MOST_PATH], line[CLI_MOST_PATH + 16];
    char *home = strdup(getenv("HOME") ? getenv("HOME") : "/");
    assert_non_null(getcwd(folder, sizeof folder));
    assert_int_equal(chdir(cli_folder), 0);
    setenv("HOME", cli_folder, 1);
    screen_open(s, (const char *[]){"run", DRAFT, NULL});
    setenv("HOME", home, 1);
    assert_int_equal(chdir(folder), 0);
    free(home);
    screen_expect(s, "> ");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(line, sizeof line, "/save %s\n", names[i].typed);
        screen_type(s, line);
        screen_expect(s, "0 messages saved to");
        if (access(cli_path(names[i].file), F_OK) != 0) fail_msg("no file %s", names[i].file);
        snprintf(line, sizeof line, "/load %s\n", names[i].typed);
        screen_type(s, line);
        screen_expect(s, "0 messages loaded from");
    }
    screen_type(s, "/save \"half\n");
    screen_expect(s, "a quote is not closed");
    screen_type(s, "/save ''\n");
    screen_expect(s, "/save needs the name of a file");
    screen_type(s, "/exit\n");
    assert_int_equal(screen_close(s), 0);
}

int main(void) {
    static screen s;
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    const struct CMUnitTest tests[] = {
        SCREEN_TEST(test_save_and_load, &s),
        SCREEN_TEST(test_commands, &s),
        SCREEN_TEST(test_session_follows_commands, &s),
        SCREEN_TEST(test_texts_with_slashes, &s),
        SCREEN_TEST(test_pasted_text_is_no_command, &s),
        SCREEN_TEST(test_set_replaces_lists, &s),
        SCREEN_TEST(test_settings_are_told, &s),
        SCREEN_TEST(test_temperature_ends_greedy, &s),
        SCREEN_TEST(test_reasoning_that_is_refused, &s),
        SCREEN_TEST(test_names_of_files, &s),
    };
    return cmocka_run_group_tests(tests, cli_setup, cli_teardown);
}
