// Typing, pasting and stopping while an answer is printed, on a terminal made for the purpose.
#include "screen.h"

#include <termios.h>

// A conversation with a long answer that has begun.
static void begin_long_answer(screen *s, const char *tokens) {
    setenv("QN_LEVEL", "portable", 1); // slow, so that it goes on while something is typed
    screen_open(s, (const char *[]){"run", DRAFT, "-t", "1", "-n", tokens, "--ignore-eos", NULL});
    unsetenv("QN_LEVEL");
    screen_expect(s, "> ");
    screen_type(s, "Tell me a story.\n");
    screen_expect(s, "reading ");
    screen_expect(s, "\033[K");
    screen_expect(s, " "); // a word of the answer
}

static void expect_answers(screen *s, const char *n) {
    screen_type(s, "/stats\n");
    screen_expect(s, "  answers   ");
    screen_expect(s, n);
}

// 12 KB in 300 lines, more than a terminal buffers.
static const char *many_lines(void) {
    static char text[300 * 41 + 1];
    for (int i = 0; i < 300; i++)
        snprintf(text + (ptrdiff_t)41 * i, 42, "line %03d of a text that somebody pasted.\n", i);
    return text;
}

// Ctrl-C is heard after any amount of typing, which it drops.
static void test_interrupt_after_paste(void **state) {
    screen *s = *state;
    enum { MOST = 1500 };
    begin_long_answer(s, "1000");
    screen_type(s, many_lines());
    screen_type(s, "\x03");
    screen_expect(s, "; answer ");
    const char *at = s->text + s->seen;
    screen_expect(s, "tokens/s]");
    if (atoi(at) >= MOST) fail_msg("the answer was not stopped");
    screen_expect(s, "> ");
    expect_answers(s, "1\r");
    screen_type(s, "/exit\n");
    assert_int_equal(screen_close(s), 0);
    assert_null(strstr(s->text, "line 0"));
}

// A text of several lines that is pasted during an answer waits at the prompt, and is one question;
// with and without the marks that terminals put around it.
static void test_paste_during_answer(void **state) {
    screen *s = *state;
    static const char *const pastes[] = {"\033[200~line one\rline two\rline three\r\033[201~",
                                         "line one\nline two\nline three\n"};
    for (size_t i = 0; i < sizeof pastes / sizeof *pastes; i++) {
        begin_long_answer(s, "200");
        screen_type(s, pastes[i]);
        screen_expect(s, "tokens/s]");
        screen_expect(s, "line three");
        screen_type(s, "\x03"); // not sent yet: it can be taken back
        screen_expect(s, "> ");
        expect_answers(s, "1\r");
        screen_type(s, "Tell me a story.\n");
        screen_expect(s, "reading ");
        screen_expect(s, "\033[K");
        screen_type(s, pastes[i]);
        screen_expect(s, "line three");
        screen_type(s, "\r");
        screen_expect(s, "tokens/s]");
        expect_answers(s, "3\r");
        screen_type(s, "/exit\n");
        assert_int_equal(screen_close(s), 0);
    }
}

// More than is kept of what is typed during an answer, as one paste; free it.
static char *large_paste(const char *begin, const char *end) {
    enum { LINES = 100000, SIZE = 49 };
    char *text = malloc(LINES * SIZE + 64), *at = text;
    assert_non_null(text);
    at += sprintf(at, "%s", begin);
    for (int i = 0; i < LINES; i++)
        at += sprintf(at, "line %06d of a text that is too long to paste.\r", i);
    sprintf(at, "the last one\r%s", end);
    return text;
}

// Of a paste that is too long nothing is kept, not even its end, and what comes after it counts.
static void test_large_paste_during_answer(void **state) {
    screen *s = *state;
    static const char *const marks[][2] = {{"\033[200~", "\033[201~"}, {"", ""}};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        char *paste = large_paste(marks[i][0], marks[i][1]);
        begin_long_answer(s, "1000"); // longer than it takes to type, on a busy machine, too
        screen_type(s, paste);
        free(paste);
        screen_expect(s, "tokens/s]");
        screen_expect(s, "is too long: dropped]");
        screen_expect(s, "> ");
        expect_answers(s, "1\r");
        screen_type(s, "/exit\n");
        assert_int_equal(screen_close(s), 0);
        assert_null(strstr(s->text, "of a text"));
        assert_null(strstr(s->text, "the last one"));
    }
}

// A line that is typed during an answer is the next question, and does not stand in the answer.
static void test_typed_ahead(void **state) {
    screen *s = *state;
    begin_long_answer(s, "100");
    screen_type(s, "What is 10");
    screen_expect(s, " ");
    screen_type(s, " + 62?\n");
    screen_expect(s, "tokens/s]");
    const char *shown = strstr(s->text, "62?");
    if (shown && shown < s->text + s->seen) fail_msg("it stands in the answer: '%s'", s->text);
    screen_expect(s, "> ");
    screen_expect(s, "What is 10 + 62?\r\n");
    screen_expect(s, "10 + 62 = 72");
    screen_expect(s, "tokens/s]");
    // Ctrl-C drops what was typed before it, and keeps what comes after.
    screen_expect(s, "> ");
    screen_type(s, "Tell me a story.\n");
    screen_expect(s, "reading ");
    screen_expect(s, "\033[K");
    screen_type(s, "What is the capital of France?\n\x03/stats\n");
    screen_expect(s, "  answers   "); // 3, or 2 if the question was still being read
    assert_null(strstr(s->text, "capital"));
    screen_type(s, "/exit\n");
    assert_int_equal(screen_close(s), 0);
}

// Commands that come at once while a command or an answer runs are commands, one after the other;
// what follows them is a question, or one text if it has several lines.
static void test_commands_typed_ahead(void **state) {
    screen *s = *state;
    begin_long_answer(s, "100");
    screen_type(s, "/set top-k 7\n/set min-p 0.25\n/stats\n");
    screen_expect(s, "tokens/s]");
    screen_expect(s, "top-k is now 7");
    screen_expect(s, "min-p is now 0.25");
    screen_expect(s, "  answers   1\r");
    screen_expect(s, "> ");
    screen_type(s, "/reset\n/set seed 5\n/set seed 6\n/set tokens 4\nWhat is 10 + 62?\n");
    screen_expect(s, "conversation cleared");
    screen_expect(s, "seed is now 6 (was 5)");
    screen_expect(s, "tokens is now 4");
    screen_expect(s, "What is 10 + 62?\r\n");
    screen_expect(s, "tokens/s]");
    expect_answers(s, "2\r");
    screen_expect(s, "> ");
    screen_type(s, "/stats\n/reset\nline one\nline two\n");
    screen_expect(s, "conversation cleared");
    screen_expect(s, "line two");
    screen_type(s, "\r");
    screen_expect(s, "tokens/s]");
    expect_answers(s, "3\r");
    screen_type(s, "/exit\n");
    assert_int_equal(screen_close(s), 0);
}

// Whether a session has its first answer.
static bool is_answered(const char *path) {
    if (access(path, F_OK) != 0) return false;
    char *text = cli_load(path, NULL);
    const bool is_there = strstr(text, "assistant");
    free(text);
    return is_there;
}

// Where standard error is not the terminal, lines come as they are typed; pasted ones are one text.
static void test_typing_without_editing(void **state) {
    screen *s = *state;
    char path[CLI_MOST_PATH];
    snprintf(path, sizeof path, "%s", cli_path("plain.json"));
    setenv("QN_LEVEL", "portable", 1);
    screen_open_with(s, &(screen_opts){.stderr_to = "/dev/null"},
                     (const char *[]){"run", DRAFT, "-t", "1", "-n", "200", "--ignore-eos",
                                      "--session", path, NULL});
    unsetenv("QN_LEVEL");
    screen_type(s, "Tell me a story.\n");
    screen_expect(s, "story.\r\n"); // shown by the terminal
    screen_expect(s, " ");          // a word of the answer
    screen_type(s, "line one\nline two\n");
    for (int i = 0; i < 600 && !is_answered(path); i++) // until the answer has ended
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    screen_forget(s);
    screen_type(s, "\n");
    screen_expect(s, " "); // a word of the next answer: what is typed now is not part of the text
    screen_type(s, "/exit\n");
    assert_int_equal(screen_close(s), 0);
    char *text = cli_load(path, NULL);
    if (!strstr(text, "\"line one\\nline two\\n\"")) fail_msg("not one text: %s", text);
    free(text);
}

// A program that is ended while it answers leaves the terminal as it found it.
static void test_terminal_is_restored(void **state) {
    screen *s = *state;
    static const int signals[] = {0, SIGTERM, SIGQUIT};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct termios before, after;
        begin_long_answer(s, "1000");
        // Nobody reads a terminal whose last user has gone: this keeps it open.
        const int other = open(ptsname(s->fd), O_RDWR | O_NOCTTY | O_CLOEXEC);
        assert_true(other >= 0);
        assert_int_equal(tcgetattr(other, &before), 0);
        assert_false(before.c_lflag & ECHO);
        if (signals[i]) {
            kill(s->pid, signals[i]);
        } else {
            screen_type(s, "\x03");
            screen_expect(s, "tokens/s]");
            screen_type(s, "/exit\n");
        }
        int status = 0;
        assert_int_equal(waitpid(s->pid, &status, 0), s->pid);
        s->pid = 0;
        assert_int_equal(WIFSIGNALED(status) ? WTERMSIG(status) : 0, signals[i]);
        assert_int_equal(tcgetattr(other, &after), 0);
        close(other);
        close(s->fd);
        const tcflag_t cooked = ICANON | ECHO | ISIG;
        assert_int_equal(after.c_lflag & cooked, cooked);
    }
}

// Ctrl-Z stops the program while it answers, with the terminal as it was; then it goes on. The
// shell is one that does not set the terminal up by itself.
static void test_stop_during_answer(void **state) {
    screen *s = *state;
    static const char script[] = QUERN " run " DRAFT " -t 1 -n 300 --ignore-eos;"
                                       "stty -a | grep -q ' icanon.* echo ' && echo as it was;"
                                       "fg";
    setenv("QN_LEVEL", "portable", 1);
    screen_open_with(s, &(screen_opts){.program = "/bin/sh"},
                     (const char *[]){"-mc", script, NULL});
    unsetenv("QN_LEVEL");
    screen_expect(s, "> ");
    screen_type(s, "Tell me a story.\n");
    screen_expect(s, "reading ");
    screen_expect(s, "\033[K");
    screen_type(s, "\x1a");
    screen_expect(s, "as it was");
    screen_expect(s, "tokens/s]");
    screen_expect(s, "> ");
    expect_answers(s, "1\r");
    screen_type(s, "/exit\n");
    assert_int_equal(screen_close(s), 0);
}

// What is typed right after Ctrl-C belongs to the new line.
static void test_text_after_interrupt(void **state) {
    screen *s = *state;
    screen_open(s, (const char *[]){"run", DRAFT, "-n", "4", NULL});
    screen_expect(s, "> ");
    screen_type(s, "What is\x03/stats\n");
    screen_expect(s, "  answers   0\r");
    screen_type(s, "What is");
    screen_expect(s, "What is");
    screen_type(s, "\x03");
    screen_type(s, "/stats\n");
    screen_expect(s, "  answers   0\r");
    screen_type(s, "/exit\n");
    assert_int_equal(screen_close(s), 0);
}

int main(void) {
    static screen s;
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    const struct CMUnitTest tests[] = {
        SCREEN_TEST(test_interrupt_after_paste, &s),
        SCREEN_TEST(test_paste_during_answer, &s),
        SCREEN_TEST(test_large_paste_during_answer, &s),
        SCREEN_TEST(test_typed_ahead, &s),
        SCREEN_TEST(test_commands_typed_ahead, &s),
        SCREEN_TEST(test_typing_without_editing, &s),
        SCREEN_TEST(test_terminal_is_restored, &s),
        SCREEN_TEST(test_stop_during_answer, &s),
        SCREEN_TEST(test_text_after_interrupt, &s),
    };
    return cmocka_run_group_tests(tests, cli_setup, cli_teardown);
}
