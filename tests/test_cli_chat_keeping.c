// What a conversation keeps for later ones, and brings in from elsewhere: history, completion,
// files, an editor, questions that have no answer, results of tools.
#include "screen.h"

#include <sys/stat.h>

#define HISTORY "quern/history"

static void write_text(const char *name, const char *text) {
    cli_save(cli_path(name), text, strlen(text));
}

static void assert_has(const char *path, const char *part, bool is_wanted) {
    char *text = cli_load(path, NULL);
    const char *found = strstr(text, part);
    if (!!found != is_wanted)
        fail_msg("%s %s '%s': %.2000s", path, is_wanted ? "lacks" : "has", part, text);
    free(text);
}

// --- history -------------------------------------------------------------------------------------

static void test_history(void **state) {
    screen *s = *state;
    const char *args[] = {"run", DRAFT, "-n", "12", NULL};
    screen_open(s, args);
    screen_expect(s, "> ");
    screen_tell(s, "What is 10 + 62?\n", "tokens/s]");
    screen_tell(s, "one \\\\ \033\rtwo\n", "tokens/s]"); // two lines
    screen_leave(s);
    struct stat info;
    assert_int_equal(stat(cli_path(HISTORY), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_int_equal(stat(cli_path("quern"), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0700);
    assert_has(cli_path(HISTORY), "What is 10 + 62?\none \\\\\\\\ \\ntwo\n/exit\n", true);
    assert_int_equal(chmod(cli_path(HISTORY), 0644), 0);
    screen_open(s, args);
    screen_expect(s, "> ");
    screen_type(s, "\033[A\033[A");
    screen_expect(s, "two");
    screen_type(s, "\033[A\n");
    screen_expect(s, "10 + 62 = 72");
    screen_expect(s, "> ");
    screen_leave(s);
    assert_int_equal(stat(cli_path(HISTORY), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
}

// An option and a variable switch it off; then nothing is read or written.
static void test_no_history(void **state) {
    screen *s = *state;
    write_text(HISTORY, "What is 10 + 62?\n");
    for (int i = 0; i < 2; i++) {
        if (i) setenv("QUERN_OPT_NO_HISTORY", "true", 1);
        screen_open(s, (const char *[]){"run", DRAFT, "-n", "12", i ? NULL : "--no-history", NULL});
        unsetenv("QUERN_OPT_NO_HISTORY");
        screen_expect(s, "> ");
        screen_type(s, "\033[A\n");
        screen_tell(s, "/stats\n", "  answers   0\r");
        screen_leave(s);
        char *text = cli_load(cli_path(HISTORY), NULL);
        assert_string_equal(text, "What is 10 + 62?\n");
        free(text);
    }
}

// A file that has become long is cut; one that cannot be written, or is none, costs the history
// and nothing else.
static void test_odd_histories(void **state) {
    screen *s = *state;
    enum { LINES = 40000, LONGEST = 1 << 20 };
    FILE *f = fopen(cli_path(HISTORY), "w");
    assert_non_null(f);
    for (int i = 0; i < LINES; i++) fprintf(f, "/set seed %050d\n", i);
    fprintf(f, "/set \033top-k\x01 33\n"); // odd bytes
    fprintf(f, "/set seed %0*d\n", LONGEST, 7);
    fprintf(f, "/set min-p 0.2"); // a line that was cut off
    assert_int_equal(fclose(f), 0);
    screen_open(s, (const char *[]){"run", DRAFT, NULL});
    screen_expect(s, "> ");
    screen_tell(s, "\033[A\n", "min-p is now 0.2");
    screen_tell(s, "\033[A\033[A\n", "top-k is now 33");
    screen_leave(s);
    char *text = cli_load(cli_path(HISTORY), NULL);
    size_t n_lines = 0;
    for (const char *at = text; (at = strchr(at, '\n')); at++) n_lines++;
    if (n_lines < 1000 || n_lines > 1010) fail_msg("%zu lines are left", n_lines);
    free(text);
    static const char *const places[] = {"/dev/null", "/proc"};
    char *before = strdup(getenv("XDG_STATE_HOME"));
    for (size_t i = 0; i < 2; i++) {
        setenv("XDG_STATE_HOME", places[i], 1);
        screen_open(s, (const char *[]){"run", DRAFT, "-n", "12", NULL});
        setenv("XDG_STATE_HOME", before, 1);
        screen_expect(s, "> ");
        screen_tell(s, "What is 10 + 62?\n", "10 + 62 = 72");
        screen_tell(s, "/stats\n", "  answers   1\r");
        screen_leave(s);
        const char *said = strstr(s->text, "no history is kept: ");
        if (!said || strstr(said + 1, "no history is kept: "))
            fail_msg("want it once: %s", s->text);
    }
    free(before);
}

// --- keys ----------------------------------------------------------------------------------------

static void test_completion(void **state) {
    screen *s = *state;
    char line[CLI_MOST_PATH + 32];
    assert_int_equal(mkdir(cli_path("deep folder"), 0700), 0);
    write_text("deep folder/it's one.txt", "a text");
    write_text("deep folder/it's two.txt", "a text");
    write_text("deep folder/\033[2J.txt", "a text"); // cannot be typed, and is not shown
    screen_open(s, (const char *[]){"run", DRAFT, "-n", "4", NULL});
    screen_expect(s, "> ");
    screen_tell(s, "/hel\t\n", "  /reset ");
    screen_type(s, "/re\t"); // several
    screen_expect(s, "/read   /regen  /reset\r\n");
    screen_tell(s, "se\t\n", "conversation cleared");
    screen_tell(s, "/set top-n\t0.5\n", "top-nsigma is now 0.5");
    screen_tell(s, "/set plain on\t\n", "plain is now on");
    screen_tell(s, "/set plain def\t\n", "plain is back to its default");
    screen_type(s, "/set reasoning o\t");
    screen_expect(s, "off  on\r\n");
    screen_tell(s, "ff\n", "reasoning is now off");
    screen_tell(s, "/show sys\t\n", "no system message");
    snprintf(line, sizeof line, "/read %s/deep\t", cli_folder);
    screen_type(s, line);
    screen_type(s, "i\t"); // up to where they differ
    screen_type(s, "\t");
    screen_expect(s, "it's one.txt  it's two.txt\r\n");
    screen_tell(s, "o\t\n", "it's one.txt, 6 bytes, goes before the next question");
    snprintf(line, sizeof line, "/read \"%s/deep folder/it's t\t\n", cli_folder);
    screen_tell(s, line, "it's two.txt, 6 bytes, goes before the next question");
    assert_null(strstr(s->text, "2J.txt"));
    screen_tell(s, "/read none\n", "no files");
    screen_tell(s, "What is\t10 + 62?\n", "tokens/s]"); // a tab in a text
    screen_leave(s);
    assert_has(cli_path(HISTORY), "What is\t10 + 62?\n", true);
}

// Ctrl-C with nothing typed says how to leave.
static void test_interrupt_hint(void **state) {
    screen *s = *state;
    screen_open(s, (const char *[]){"run", DRAFT, NULL});
    screen_expect(s, "> ");
    screen_type(s, "something");
    screen_expect(s, "something");
    screen_tell(s, "\x03", "\n");
    screen_type(s, "\"\"\"a\n");
    screen_expect(s, "... ");
    screen_tell(s, "\x03", "\n");
    assert_null(strstr(s->text, "ends the conversation"));
    screen_tell(s, "\x03", "Ctrl-D or /exit ends the conversation");
    screen_type(s, "\x04");
    assert_int_equal(screen_close(s), 0);
}

// --- files and editors ---------------------------------------------------------------------------

static void test_read(void **state) {
    screen *s = *state;
    char path[CLI_MOST_PATH], line[CLI_MOST_PATH + 16];
    snprintf(path, sizeof path, "%s", cli_path("read.json"));
    write_text("notes.txt", "My name is Kevin.\n");
    write_text("more.txt", "no newline");
    write_text("bytes.bin", "\xff\xfe\x01");
    screen_open(s, (const char *[]){"run", DRAFT, "-n", "4", "--session", path, NULL});
    screen_expect(s, "> ");
    static const char *const refused[][2] = {
        {"bytes.bin", "bytes.bin: "}, {"", "/read takes a file"}, {"missing.txt", "cannot open"}};
    for (size_t i = 0; i < 3; i++) {
        snprintf(line, sizeof line, "/read %s\n", cli_path(refused[i][0]));
        screen_tell(s, line, refused[i][1]);
    }
    screen_tell(s, "/read\n", "/read needs the name of a file");
    snprintf(line, sizeof line, "/read %s\n", cli_path("notes.txt"));
    screen_tell(s, line, "notes.txt, 18 bytes, goes before the next question");
    screen_type(s, "\x04");
    assert_int_equal(screen_close(s), 0);
    // They wait in the session, too.
    screen_open(s, (const char *[]){"run", DRAFT, "-n", "4", "--session", path, NULL});
    screen_expect(s, "a new conversation, kept in ");
    screen_expect(s, "bytes of files wait for the next question");
    screen_expect(s, "> ");
    snprintf(line, sizeof line, "/read %s\n", cli_path("more.txt"));
    screen_tell(s, line, "more.txt, 10 bytes");
    screen_tell(s, "What is my name?\n", "tokens/s]");
    screen_leave(s);
    assert_has(path,
               "\"--- notes.txt ---\\nMy name is Kevin.\\n--- end of notes.txt ---\\n\\n"
               "--- more.txt ---\\nno newline\\n--- end of more.txt ---\\n\\nWhat is my name?\"",
               true);
    assert_has(path, "waiting", false);
}

// The editor gets what follows the command, or what was taken back; what it leaves is asked.
static void test_edit(void **state) {
    screen *s = *state;
    char path[CLI_MOST_PATH];
    snprintf(path, sizeof path, "%s", cli_path("edit.json"));
    unsetenv("VISUAL");
    setenv("EDITOR", "sed -i 's/11/10/; $a /help'", 1); // with options, as people have it
    setenv("TMPDIR", cli_folder, 1);
    screen_open(s, (const char *[]){"run", DRAFT, "-n", "12", "--session", path, NULL});
    screen_expect(s, "> ");
    screen_tell(s, "/undo\n", "there is no question to take back");
    screen_tell(s, "/edit What is 11 + 62?\n", "tokens/s]");
    assert_has(path, "\"What is 10 + 62?\\n/help\"", true);
    screen_tell(s, "What is 11 + 2?\n", "tokens/s]");
    screen_tell(s, "/undo\n", "taken back: What is 11 + 2?");
    assert_has(path, "11 + 2", false);
    assert_has(path, "10 + 62", true);
    screen_tell(s, "/edit\n", "tokens/s]");
    assert_has(path, "\"What is 10 + 2?\\n/help\"", true);
    screen_tell(s, "/undo\n", "taken back: What is 10 + 2? /help");
    screen_tell(s, "/undo\n", "taken back: What is 10 + 62? /help");
    screen_tell(s, "/undo\n", "there is no question to take back");
    screen_leave(s);
    setenv("EDITOR", "truncate -s 0", 1);
    screen_open(s, (const char *[]){"run", DRAFT, "-n", "12", NULL});
    screen_expect(s, "> ");
    screen_tell(s, "/edit something\n", "the text is empty: nothing is sent");
    screen_leave(s);
    setenv("EDITOR", "true", 1);
    screen_open(s, (const char *[]){"run", DRAFT, "-n", "12", NULL});
    screen_expect(s, "> ");
    screen_tell(s, "/edit something\n", "the text is unchanged: nothing is sent");
    screen_leave(s);
    setenv("VISUAL", "false", 1); // comes first
    screen_open(s, (const char *[]){"run", DRAFT, "-n", "12", NULL});
    screen_expect(s, "> ");
    screen_tell(s, "/edit something\n", "the editor 'false' failed (exit code 1), nothing is sent");
    screen_tell(s, "What is 10 + 62?\n", "10 + 62 = 72"); // the terminal is as before
    screen_leave(s);
    unsetenv("VISUAL");
    unsetenv("TMPDIR");
}

static void test_show(void **state) {
    screen *s = *state;
    screen_open(s, (const char *[]){"run", DRAFT, "-n", "12", "--system", "Be kind.", NULL});
    screen_expect(s, "> ");
    screen_tell(s, "What is 10 + 62?\n", "tokens/s]");
    screen_tell(s, "/show\n", "architecture    qwen3");
    screen_tell(s, "/show messages\n", "assistant:");
    screen_tell(s, "/show prompt\n", "<|im_start|>user\r\nWhat is 10 + 62?<|im_end|>");
    screen_tell(s, "/show system\n", "Be kind.");
    screen_tell(s, "/show template\n", "{%");
    screen_tell(s, "/show parameters\n", "temp ");
    screen_leave(s);
}

// --- sessions ------------------------------------------------------------------------------------

// A question outlives a program that is killed while it answers.
static void test_question_without_answer(void **state) {
    screen *s = *state;
    char path[CLI_MOST_PATH];
    snprintf(path, sizeof path, "%s", cli_path("killed.json"));
    setenv("QN_LEVEL", "portable", 1); // slow, so that it does not end before
    screen_open(s, (const char *[]){"run", DRAFT, "-t", "1", "-n", "1500", "--ignore-eos",
                                    "--session", path, NULL});
    unsetenv("QN_LEVEL");
    screen_expect(s, "> ");
    screen_type(s, "What is 10 + 62?\n");
    screen_expect(s, "\033[K");
    screen_expect(s, " "); // a word of the answer
    kill(s->pid, SIGKILL);
    assert_int_equal(screen_close(s), CLI_KILLED + SIGKILL);
    const char *args[] = {"run", DRAFT, "-n", "12", "--session", path, NULL};
    screen_open(s, args);
    screen_expect(s, "goes on with the 1 message in ");
    screen_expect(s, "the last question: What is 10 + 62?");
    screen_expect(s, "it has no answer: /regen gives one");
    screen_expect(s, "> ");
    screen_tell(s, "/regen\n", "10 + 62 = 72");
    screen_leave(s);
    screen_open(s, args);
    screen_expect(s, "goes on with the 2 messages in ");
    screen_expect(s, "the last question: What is 10 + 62?");
    screen_expect(s, "> ");
    if (strstr(s->text, "has no answer")) fail_msg("it has one: %s", s->text);
    screen_leave(s);
    // A new question takes the place of one without an answer.
    assert_has(path, "assistant", true);
    char *text = cli_load(path, NULL);
    char *cut = strstr(text, ",\n  {\n   \"role\": \"assistant\"");
    assert_non_null(cut);
    memcpy(cut, "]}", 3);
    cli_save(path, text, strlen(text));
    free(text);
    cli_result r = CLI_RUN("run", DRAFT, "-n", "4", "--session", path, "My name is Kevin.");
    assert_int_equal(r.code, 0);
    cli_free(&r);
    assert_has(path, "10 + 62", false);
    assert_has(path, "Kevin", true);
}

// So does what was typed when the terminal goes away.
static void test_terminal_goes_away(void **state) {
    screen *s = *state;
    char path[CLI_MOST_PATH];
    int status;
    snprintf(path, sizeof path, "%s", cli_path("typed.json"));
    const char *args[] = {"run", DRAFT, "-n", "12", "--session", path, NULL};
    for (int i = 0; i < 2; i++) {
        screen_open(s, args);
        screen_expect(s, "> ");
        if (i) {
            screen_type(s, "\"\"\"What is 10 +\n");
            screen_expect(s, "... ");
        }
        screen_type(s, i ? "62?" : "What is 10 + 62?");
        screen_expect(s, "62?");
        close(s->fd);
        s->fd = -1;
        assert_int_equal(waitpid(s->pid, &status, 0), s->pid);
        s->pid = 0;
        assert_has(path, i ? "\"\\\"\\\"\\\"What is 10 +\\n62?\"" : "\"What is 10 + 62?\"", true);
        assert_has(path, "\"typed\"", true);
    }
    cli_save(path, "", 0);
    screen_open(s, args);
    screen_expect(s, "> ");
    screen_type(s, "What is 10 + 62?");
    screen_expect(s, "62?");
    close(s->fd);
    assert_int_equal(waitpid(s->pid, &status, 0), s->pid);
    screen_open(
        s, (const char *[]){"run", DRAFT, "-n", "12", "--session", path, "--no-history", NULL});
    screen_expect(s, "typed, and not sent: What is 10 + 62?; the up arrow brings it back");
    screen_expect(s, "> ");
    screen_tell(s, "\033[A\n", "10 + 62 = 72");
    assert_has(path, "\"typed\"", false);
    // An answer that nobody can see ends, too.
    screen_tell(s, "/set tokens 2000\n", "tokens is now 2000");
    screen_tell(s, "/set ignore-eos on\n", "ignore-eos is now on");
    screen_type(s, "My name is Kevin.\n");
    screen_expect(s, "\033[K");
    screen_expect(s, " ");
    close(s->fd);
    s->fd = -1;
    assert_int_equal(waitpid(s->pid, &status, 0), s->pid);
    s->pid = 0;
    assert_int_equal(WIFSIGNALED(status) ? WTERMSIG(status) : 0, SIGHUP);
    assert_has(path, "Kevin", true);
}

// The results of calls go to the model, each to its call.
static void test_tool(void **state) {
    screen *s = *state;
    char path[CLI_MOST_PATH];
    snprintf(path, sizeof path, "%s", cli_path("tool.json"));
    write_text("tools.json", "[{\"type\": \"function\", \"function\": {\"name\": \"add\"}}]");
#define A_CALL(n)                                                                                  \
    "<tool_call>\\n\\{\"name\": \"add\", \"arguments\": \\{\"a\": " n "\\}\\}\\n</tool_call>"
    screen_open_with(s, &(screen_opts){.width = 132},
                     (const char *[]){"run", DRAFT, "-n", "80", "--session", path, "--tools",
                                      cli_path("tools.json"), "--template",
                                      TEST_DATA "/templates/Qwen-Qwen3-0.6B.jinja", "--regex",
                                      A_CALL("1") "\\n" A_CALL("2"), NULL});
    screen_expect(s, "> ");
    screen_tell(s, "/tool\n", "no tool call waits for a result");
    screen_tell(s, "/tool 1\n", "no tool call waits for a result");
    screen_type(s, "Add.\n");
    screen_expect(s, "[tool call add {\"a\":1}");
    screen_tell(s, "", "/tool RESULT answers the call add {\"a\": 1}, the first of several");
    screen_tell(s, "/tool eleven\n", "/tool RESULT answers the call add {\"a\": 2}");
    assert_has(path, "eleven", true);
    screen_type(s, "/tool twelve\n");
    screen_expect(s, "[tool call add {\"a\":1}"); // it goes on
    screen_tell(s, "", "the first of several");
    screen_tell(s, "/show messages\n",
                "[tool call {\"name\": \"add\", \"arguments\": {\"a\": 2}}]");
    screen_tell(s, "/show prompt\n", "<tool_response>\r\ntwelve\r\n</tool_response>");
    screen_leave(s);
    assert_has(
        path, "\"content\": \"eleven\",\n   \"name\": \"add\",\n   \"tool_call_id\": \"000100000\"",
        true);
    assert_has(
        path, "\"content\": \"twelve\",\n   \"name\": \"add\",\n   \"tool_call_id\": \"000100001\"",
        true);
}

int main(void) {
    static screen s;
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    const struct CMUnitTest tests[] = {
        SCREEN_TEST(test_history, &s),
        SCREEN_TEST(test_no_history, &s),
        SCREEN_TEST(test_odd_histories, &s),
        SCREEN_TEST(test_completion, &s),
        SCREEN_TEST(test_interrupt_hint, &s),
        SCREEN_TEST(test_read, &s),
        SCREEN_TEST(test_edit, &s),
        SCREEN_TEST(test_show, &s),
        SCREEN_TEST(test_question_without_answer, &s),
        SCREEN_TEST(test_terminal_goes_away, &s),
        SCREEN_TEST(test_tool, &s),
    };
    return cmocka_run_group_tests(tests, cli_setup, cli_teardown);
}
