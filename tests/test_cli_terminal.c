// What the program looks like on a terminal, and how Ctrl-C ends it.
#include "screen.h"

#include <sys/stat.h>

#include <dirent.h>

// --- bars ----------------------------------------------------------------------------------------

// A prompt that takes a while to read, in a file.
static const char *long_text(void) {
    enum { WORDS = 1600 };
    static char text[2 * WORDS + 1];
    for (int i = 0; i < WORDS; i++) memcpy(text + (ptrdiff_t)2 * i, "a ", 3);
    const char *path = cli_path("long.txt");
    cli_save(path, text, strlen(text));
    return path;
}

// A progress bar stands on one row, however wide the terminal is, and nothing of it stays.
static void test_bar_fits(void **state) {
    screen *s = *state;
    static const int widths[] = {80, 50, 24};
    setenv("QN_LEVEL", "portable", 1); // slow, so that the bar has all its parts
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        screen_open_with(
            s, &(screen_opts){.width = widths[i]},
            (const char *[]){"run", DRAFT, "-t", "1", "-n", "2", "-f", long_text(), NULL});
        screen_expect(s, "reading [");
        if (widths[i] == 80) screen_expect(s, " left");
        screen_expect(s, "tokens/s]");
        assert_int_equal(screen_close(s), 0);
        screen_assert_unbroken(s, 0);
        const int row = screen_find(s, 0, "reading [");
        if (row >= 0) fail_msg("a bar was left behind: '%s'", screen_row_text(s, row));
    }
    unsetenv("QN_LEVEL");
}

// --- lines ---------------------------------------------------------------------------------------

// What a conversation says is broken between words.
static void test_lists_fit(void **state) {
    screen *s = *state;
    screen_open(s, (const char *[]){"run", DRAFT, "-n", "12", NULL});
    screen_expect(s, "> ");
    screen_type(s, "/help\n");
    screen_expect(s, "/exit");
    screen_expect(s, "> ");
    screen_type(s, "/set\n");
    screen_expect(s, "mirostat");
    screen_expect(s, "> ");
    screen_type(s, "Tell me a story.\n");
    screen_expect(s, "[prompt ");
    screen_expect(s, "tokens/s]");
    screen_type(s, "/exit\n");
    assert_int_equal(screen_close(s), 0);
    screen_assert_unbroken(s, 0);
    if (screen_find(s, 0, "a setting") < 0) fail_msg("no help of /set");
}

// Answers follow the width of the terminal.
static void test_width_is_followed(void **state) {
    screen *s = *state;
    enum { NARROW = 30, WIDE = 80 };
    setenv("QN_LEVEL", "portable", 1); // slow, so that it goes on for a while
    screen_open_with(s, &(screen_opts){.width = WIDE},
                     (const char *[]){"run", DRAFT, "-t", "1", "-n", "400", "--ignore-eos", NULL});
    unsetenv("QN_LEVEL");
    screen_expect(s, "> ");
    screen_type(s, "Tell me a story.\n");
    screen_expect(s, "\033[K");
    screen_expect(s, "\r\n"); // a line at the old width
    screen_resize(s, NARROW);
    for (int i = 0; i < 4; i++) screen_expect(s, "\r\n"); // lines that may have been on their way
    const size_t from = s->seen;
    screen_expect(s, "\033[2m[prompt ");
    const char *at = s->text + from, *end = s->text + s->seen - strlen("\033[2m[prompt ");
    size_t n_lines = 0;
    for (; at < end; n_lines++) {
        const size_t n = strcspn(at, "\r\n\033");
        if (n > NARROW) fail_msg("a line of %zu columns: '%.*s'", n, (int)n, at);
        at += n + strspn(at + n, "\r\n\033");
    }
    assert_true(n_lines > 4);
    screen_type(s, "/exit\n");
    assert_int_equal(screen_close(s), 0);
}

// Errors and notes are broken between words on a terminal, but not inside a path, and not
// elsewhere.
static void test_errors_fit(void **state) {
    screen *s = *state;
    static const char *const call[] = {"run", DRAFT, "-p", "a", "--logit-bias", "foo", NULL};
    static const char error[] = "quern: --logit-bias: 'foo', want a token id with its bias from "
                                "-1000 to 1000, as 15043+1, 15043-2.5 or 15043-inf\n";
    screen_open_with(s, &(screen_opts){.width = 40}, call);
    assert_int_equal(screen_close(s), 2);
    screen_assert_unbroken(s, 0);
    assert_true(screen_find(s, 0, "quern: --logit-bias: 'foo', want a token") >= 0);
    assert_true(screen_find(s, 0, "  id with its bias from -1000 to 1000,") >= 0);
    cli_result r = cli_run_with(&(cli_input){0}, call);
    assert_string_equal(r.err, error);
    cli_free(&r);
    char path[CLI_MOST_PATH];
    snprintf(path, sizeof path, "/%0100d/model.gguf", 7);
    screen_open_with(s, &(screen_opts){.width = 40}, (const char *[]){"inspect", path, NULL});
    screen_expect(s, path);
    screen_expect(s, ": cannot\r\n  open: ");
    assert_int_equal(screen_close(s), 1);
    screen_open_with(s, &(screen_opts){.width = 40},
                     (const char *[]){"run", DRAFT, "--seed", "-1", "-c", "16", "-n", "9",
                                      "--ignore-eos", "-p", "Hi", NULL});
    screen_expect(s, "stopped because the context\r\n  of 16");
    assert_int_equal(screen_close(s), 0);
    screen_assert_unbroken(s, screen_find(s, 0, "quern: note: stopped"));
}

// --- escape sequences ----------------------------------------------------------------------------

// A conversation, and a prompt that is read for a while.
static void look_around(screen *s) {
    screen_open(s, (const char *[]){"run", DRAFT, "-n", "8", NULL});
    screen_expect(s, "> ");
    screen_type(s, "Tell me a story.\n");
    screen_expect(s, "tokens/s]");
    screen_type(s, "/set\n");
    screen_expect(s, "mirostat");
    screen_type(s, "/exit\n");
    assert_int_equal(screen_close(s), 0);
}

// NO_COLOR leaves the colours away, and nothing else.
static void test_no_color(void **state) {
    screen *s = *state;
    setenv("TERM", "xterm", 1);
    setenv("NO_COLOR", "1", 1);
    look_around(s);
    if (strstr(s->text, "\033[2m") || strstr(s->text, "\033[0m")) fail_msg("colours: %s", s->text);
    assert_non_null(strstr(s->text, "\r\033[K"));
    setenv("NO_COLOR", "", 1); // counts as unset
    look_around(s);
    assert_non_null(strstr(s->text, "\033[2m"));
    unsetenv("NO_COLOR");
}

// A terminal that knows no escape sequences gets none.
static void test_dumb_terminal(void **state) {
    screen *s = *state;
    for (int is_set = 0; is_set < 2; is_set++) {
        if (is_set)
            setenv("TERM", "dumb", 1);
        else
            unsetenv("TERM");
        look_around(s);
        const char *escape = strchr(s->text, '\033');
        if (escape) fail_msg("an escape sequence: ESC%.8s", escape + 1);
        setenv("QN_LEVEL", "portable", 1);
        screen_open(s,
                    (const char *[]){"run", DRAFT, "-t", "1", "-n", "2", "-f", long_text(), NULL});
        unsetenv("QN_LEVEL");
        screen_expect(s, "tokens/s]");
        assert_int_equal(screen_close(s), 0);
        escape = strchr(s->text, '\033');
        if (escape) fail_msg("an escape sequence: ESC%.8s", escape + 1);
        assert_null(strstr(s->text, "reading"));
    }
    setenv("TERM", "xterm", 1);
}

// Where the answer goes elsewhere, its figures are not shown in the middle of it.
static void test_figures_need_two_terminals(void **state) {
    screen *s = *state;
    char path[CLI_MOST_PATH];
    snprintf(path, sizeof path, "%s", cli_path("answer.txt"));
    screen_open_with(s, &(screen_opts){.stdout_to = path},
                     (const char *[]){"run", DRAFT, "-p", "What is 10 + 62?", NULL});
    assert_int_equal(screen_close(s), 0);
    assert_null(strstr(s->text, "tokens/s]"));
    char *answer = cli_load(path, NULL);
    assert_string_equal(answer, "10 + 62 = 72\n");
    free(answer);
}

// --- Ctrl-C --------------------------------------------------------------------------------------

// A command that Ctrl-C stops dies of the signal, so that a loop of the shell around it ends.
static void test_interrupt_ends_loops(void **state) {
    screen *s = *state;
    char out[CLI_MOST_PATH], folder[CLI_MOST_PATH], text[CLI_MOST_PATH];
    snprintf(out, sizeof out, "%s", cli_path("out.gguf"));
    snprintf(folder, sizeof folder, "%s", cli_path("cache"));
    snprintf(text, sizeof text, "%s", long_text());
    const char *const calls[][8] = {
        {"quantize", DRAFT, out, "Q4_K_M"},
        {"synth", "qwen3-0.6b", "Q4_K_M", out},
        {"convert", MINI "/qwen3", out},
        {"imatrix", DRAFT, text, "-o", out},
        {"bench", DRAFT, "-n", "8", "-r", "2"},
        {"eval", DRAFT, "--tasks", MODELS "/tasks.jsonl"},
        {"eval", DRAFT, "--ppl", text},
        {"compile", DRAFT, "-o", folder},
        {"run", DRAFT},
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        screen_open_with(s, &(screen_opts){.is_interrupted = true}, calls[i]);
        const int code = screen_close(s);
        if (code != CLI_KILLED + SIGINT) fail_msg("%s: %d, '%s'", calls[i][0], code, s->text);
        if (access(out, F_OK) == 0) fail_msg("%s left a file", calls[i][0]);
    }
}

// Measuring shows how many tasks are done, and Ctrl-C ends it with a word.
static void test_interrupt_eval(void **state) {
    screen *s = *state;
    screen_open(s, (const char *[]){"eval", DRAFT, "--tasks", MODELS "/tasks.jsonl", NULL});
    screen_expect(s, "tasks/s");
    screen_type(s, "\x03");
    screen_expect(s, "quern: stopped after ");
    screen_expect(s, " of 600 tasks");
    assert_int_equal(screen_close(s), CLI_KILLED + SIGINT);
}

// So does a benchmark, and it says how far it came.
static void test_interrupt_bench(void **state) {
    screen *s = *state;
    screen_open(s, (const char *[]){"bench", DRAFT, "-n", "512", "-r", "1000", NULL});
    screen_expect(s, "measuring [");
    screen_expect(s, "runs/s");
    screen_type(s, "\x03");
    screen_expect(s, "quern: stopped after ");
    screen_expect(s, " of 2002 runs");
    assert_int_equal(screen_close(s), CLI_KILLED + SIGINT);
}

// Ctrl-C is heard inside the first step of a window also where nobody sees how far it came.
static void test_interrupt_perplexity_unseen(void **state) {
    screen *s = *state;
    char pipe_path[CLI_MOST_PATH], log[CLI_MOST_PATH];
    size_t size;
    char *text = cli_load(long_text(), &size);
    snprintf(pipe_path, sizeof pipe_path, "%s", cli_path("pipe"));
    snprintf(log, sizeof log, "%s", cli_path("log"));
    assert_int_equal(mkfifo(pipe_path, 0600), 0);
    screen_open_with(s, &(screen_opts){.stderr_to = log},
                     (const char *[]){"eval", DRAFT, "--ppl", pipe_path, NULL});
    FILE *f = fopen(pipe_path, "w"); // until the text is read, after the model
    assert_non_null(f);
    assert_int_equal(kill(s->pid, SIGINT), 0);
    assert_int_equal(fwrite(text, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
    free(text);
    assert_int_equal(screen_close(s), CLI_KILLED + SIGINT);
    char *told = cli_load(log, NULL);
    if (!strstr(told, "stopped after 0 of 512")) fail_msg("'%s'", told);
    free(told);
}

// A benchmark hears Ctrl-C between the steps of its prompts, too.
static void test_interrupt_bench_prompt(void **state) {
    screen *s = *state;
    static const char *const calls[][11] = {
        {"bench", DRAFT, "-t", "1", "-p", "1024", "-n", "1"},
        {"bench", DRAFT, "-t", "1", "-p", "8", "-n", "1", "-d", "1024"}};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        setenv("QN_LEVEL", "portable", 1); // slow, so that it is not over before the key is pressed
        screen_open(s, calls[i]);
        unsetenv("QN_LEVEL");
        screen_expect(s, "measuring [");
        screen_type(s, "\x03");
        screen_expect(s, "quern: stopped after 0 of 12 runs");
        assert_int_equal(screen_close(s), CLI_KILLED + SIGINT);
    }
}

// --- the end -------------------------------------------------------------------------------------

// The signals that a thread of the program blocks.
static unsigned long long blocked_in(pid_t pid, const char *thread) {
    char path[CLI_MOST_PATH], line[256];
    unsigned long long blocked = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%s/status", (int)pid, thread);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) (void)sscanf(line, "SigBlk: %llx", &blocked);
    fclose(f);
    return blocked;
}

// Signals are handled in the first thread alone: the line editor's handlers are not made for two.
static void test_one_thread_has_the_signals(void **state) {
    static const int numbers[] = {SIGHUP, SIGTERM, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH};
    screen *s = *state;
    char path[CLI_MOST_PATH];
    size_t n_others = 0;
    screen_open(s, (const char *[]){"run", DRAFT, "-t", "3", NULL});
    screen_expect(s, "> ");
    snprintf(path, sizeof path, "/proc/%d/task", (int)s->pid);
    DIR *threads = opendir(path);
    assert_non_null(threads);
    for (const struct dirent *entry; (entry = readdir(threads));) {
        if (*entry->d_name == '.' || atoi(entry->d_name) == (int)s->pid) continue;
        n_others++;
        for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
            if (!(blocked_in(s->pid, entry->d_name) >> (numbers[i] - 1) & 1))
                fail_msg("signal %d can come to another thread", numbers[i]);
    }
    closedir(threads);
    assert_true(n_others >= 2);
    screen_type(s, "/exit\n");
    assert_int_equal(screen_close(s), 0);
}

// How the program ended.
static int wait_for_end(screen *s) {
    int status = 0;
    pid_t ended = 0;
    for (int i = 0; i < 600 && ended == 0; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
        ended = waitpid(s->pid, &status, WNOHANG);
    }
    assert_int_equal(ended, s->pid);
    s->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : CLI_KILLED + WTERMSIG(status);
}

// The terminal goes away: nobody else holds the other end.
static int hang_up(screen *s) {
    close(s->fd);
    s->fd = -1;
    return wait_for_end(s);
}

// The signal alone, with the terminal still there.
static void test_hang_up_is_told(void **state) {
    screen *s = *state;
    static const char *const kinds[] = {"xterm", "dumb"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        setenv("TERM", kinds[i], 1);
        screen_open(s, (const char *[]){"run", DRAFT, NULL});
        setenv("TERM", "xterm", 1);
        screen_expect(s, "> ");
        screen_type(s, "half of a line");
        screen_expect(s, "half of a line");
        kill(s->pid, SIGHUP);
        assert_int_equal(wait_for_end(s), CLI_KILLED + SIGHUP);
        close(s->fd);
        s->fd = -1;
    }
}

// When its terminal goes away the program ends, whatever it is doing.
static void test_hang_up(void **state) {
    screen *s = *state;
    static const struct {
        const char *typed, *shown; // shown: NULL when it goes away at once
        bool can_be_over;          // the program may have ended by itself
    } cases[] = {
        {"", "", false},                                   // at the prompt
        {"half of a line", "half of a line", false},       // in a line
        {"half of a line", NULL, false},                   // while it is being shown
        {"Tell me a story.\n", "\033[K", false},           // in an answer
        {"Tell me a story.\nTell me an", "\033[K", false}, // with something typed ahead
        {"/exit\n", NULL, true},                           // at the end
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        screen_open(s, (const char *[]){"run", DRAFT, "-n", "100000", "--ignore-eos", NULL});
        screen_expect(s, "> ");
        screen_type(s, cases[i].typed);
        if (cases[i].shown) screen_expect(s, cases[i].shown);
        const int code = hang_up(s);
        if (code != CLI_KILLED + SIGHUP && !(cases[i].can_be_over && code == 0))
            fail_msg("case %zu: %d", i, code);
    }
}

// So does one that was told not to die of that: there is nobody left to talk to.
static void test_hang_up_is_ignored(void **state) {
    screen *s = *state;
    static const char *const typed[] = {"", "half of a line", "Tell me a story.\nTell me an"};
    for (size_t i = 0; i < sizeof typed / sizeof *typed; i++) {
        signal(SIGHUP, SIG_IGN); // programs inherit that
        screen_open(s, (const char *[]){"run", DRAFT, "-n", "100", NULL});
        signal(SIGHUP, SIG_DFL);
        screen_expect(s, "> ");
        screen_type(s, typed[i]);
        const int code = hang_up(s);
        if (code != 0 && code != 1) fail_msg("case %zu: %d", i, code);
    }
}

int main(void) {
    static screen s;
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    const struct CMUnitTest tests[] = {
        SCREEN_TEST(test_bar_fits, &s),
        SCREEN_TEST(test_lists_fit, &s),
        SCREEN_TEST(test_width_is_followed, &s),
        SCREEN_TEST(test_errors_fit, &s),
        SCREEN_TEST(test_no_color, &s),
        SCREEN_TEST(test_dumb_terminal, &s),
        SCREEN_TEST(test_figures_need_two_terminals, &s),
        SCREEN_TEST(test_interrupt_ends_loops, &s),
        SCREEN_TEST(test_interrupt_eval, &s),
        SCREEN_TEST(test_interrupt_bench, &s),
        SCREEN_TEST(test_interrupt_perplexity_unseen, &s),
        SCREEN_TEST(test_interrupt_bench_prompt, &s),
        SCREEN_TEST(test_one_thread_has_the_signals, &s),
        SCREEN_TEST(test_hang_up, &s),
        SCREEN_TEST(test_hang_up_is_told, &s),
        SCREEN_TEST(test_hang_up_is_ignored, &s),
    };
    return cmocka_run_group_tests(tests, cli_setup, cli_teardown);
}
