// Conversations, on a terminal made for the purpose.
#define _DEFAULT_SOURCE     // the size of a terminal
#define _XOPEN_SOURCE   700 // pseudo-terminals
#include "cli_run.h"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <time.h>

enum { PATIENCE_MS = 60000, MOST_SCREEN = 1 << 16 };

typedef struct screen {
    pid_t pid;
    int fd;                 // our end of the terminal
    char text[MOST_SCREEN]; // all that was printed so far
    size_t size, seen;      // bytes there, and bytes that an expectation has used up
} screen;

static void open_screen(screen *s, const char *const *args) {
    memset(s, 0, sizeof *s);
    s->fd = posix_openpt(O_RDWR | O_NOCTTY);
    const bool has_terminal = s->fd >= 0 && grantpt(s->fd) == 0 && unlockpt(s->fd) == 0;
    const char *name = has_terminal ? ptsname(s->fd) : NULL;
    if (!name) {
        if (s->fd >= 0) close(s->fd);
        print_message("skip: this machine has no pseudo-terminals (devpts)\n");
        skip();
    }
    s->pid = fork();
    assert_true(s->pid >= 0);
    if (s->pid == 0) {
        setsid(); // the terminal opened next is then the controlling one, and Ctrl-C a signal
        const int fd = open(name, O_RDWR);
        if (fd < 0 || dup2(fd, 0) != 0 || dup2(fd, 1) != 1 || dup2(fd, 2) != 2) _exit(99);
        const char *argv[CLI_MOST_ARGS + 2] = {QUERN};
        for (int i = 0; i < CLI_MOST_ARGS && args[i]; i++) argv[i + 1] = args[i];
        execv(QUERN, (char *const *)(uintptr_t)argv);
        _exit(99);
    }
}

static void type(screen *s, const char *text) {
    assert_int_equal(write(s->fd, text, strlen(text)), strlen(text));
}

// Waits until `text` appears behind what was expected before.
static void expect(screen *s, const char *text) {
    for (;;) {
        char *found = strstr(s->text + s->seen, text);
        if (found) {
            s->seen = (size_t)(found - s->text) + strlen(text);
            return;
        }
        struct pollfd p = {.fd = s->fd, .events = POLLIN};
        if (poll(&p, 1, PATIENCE_MS) != 1) fail_msg("waited for '%s' on '%s'", text, s->text);
        const ssize_t n = read(s->fd, s->text + s->size, MOST_SCREEN - 1 - s->size);
        if (n <= 0) fail_msg("ended before '%s' came: '%s'", text, s->text);
        s->size += (size_t)n;
    }
}

// Exit code, or CLI_KILLED + signal.
static int close_screen(screen *s) {
    int status = 0;
    char rest[256];
    while (read(s->fd, rest, sizeof rest) > 0) continue; // until the other end is closed
    assert_int_equal(waitpid(s->pid, &status, 0), s->pid);
    close(s->fd);
    return WIFEXITED(status) ? WEXITSTATUS(status) : CLI_KILLED + WTERMSIG(status);
}

// The figures behind the next answer: tokens of the prompt, and how many of them were known.
static void expect_figures(screen *s, int *prompt, int *known) {
    expect(s, "[prompt ");
    const char *at = s->text + s->seen;
    expect(s, " tokens/s]");
    if (sscanf(at, "%d tokens, %d known,", prompt, known) != 2) fail_msg("no figures: '%s'", at);
}

// A further turn computes what is new, and the rest is known: up to the beginning of the answer
// before it, at least.
static void test_turns_are_kept(void **state) {
    screen *s = *state;
    static const char *const models[] = {DRAFT, MODELS "/quern-hybrid-Q8_0.gguf"};
    for (int i = 0; i < 2; i++) {
        int first, second, third, known;
        open_screen(s, (const char *[]){"run", models[i], "-n", "20", NULL});
        expect(s, "> ");
        type(s, "My name is Kevin.\n");
        expect_figures(s, &first, &known);
        assert_int_equal(known, 0);
        type(s, "What is my name?\n");
        expect_figures(s, &second, &known);
        if (second <= first || known < first - 4 || known >= second)
            fail_msg("%d tokens, then %d with %d known", first, second, known);
        type(s, "What is 10 + 62?\n");
        expect_figures(s, &third, &known);
        if (third <= second || known < second - 4 || known >= third)
            fail_msg("%d tokens, then %d with %d known", second, third, known);
        type(s, "/exit\n");
        assert_int_equal(close_screen(s), 0);
    }
}

static void test_conversation(void **state) {
    screen *s = *state;
    open_screen(s, (const char *[]){"run", DRAFT, NULL});
    expect(s, "/help lists commands");
    expect(s, "> ");
    type(s, "What is 10 + 62?\n");
    expect(s, "reading ");
    expect(s, " tokens ...");
    expect(s, "K10 + 62 = 72"); // behind what clears the line
    expect(s, " tokens/s]");
    expect(s, "> ");
    // What was said is remembered, until it is forgotten.
    type(s, "My name is Kevin.\n");
    expect(s, " tokens/s]");
    type(s, "What is my name?\n");
    expect(s, "name?\r\n");
    expect(s, "Kevin");
    expect(s, "> ");
    type(s, "/reset\n");
    expect(s, "forgotten");
    type(s, "/frobnicate\n");
    expect(s, "no command /frobnicate; there are");
    expect(s, "/exit");
    type(s, "  /help\n");
    expect(s, "/reset");
    type(s, "/quit\n");
    assert_int_equal(close_screen(s), 0);
}

// Ctrl-C ends the answer and leaves the conversation; the end of the input ends it.
static void test_interrupt(void **state) {
    screen *s = *state;
    open_screen(s, (const char *[]){"run", DRAFT, "--raw", NULL});
    expect(s, "> ");
    type(s, "Once upon a time, there\n");
    expect(s, "there\r\n");
    expect(s, " "); // a word of the answer
    type(s, "\x03");
    expect(s, " tokens/s]");
    expect(s, "> ");
    type(s, "\x04");
    assert_int_equal(close_screen(s), 0);
}

// While a long question is read, Ctrl-C comes back to the prompt and forgets the question.
static void test_interrupt_reading(void **state) {
    screen *s = *state;
    char line[3801] = "";
    int prompt, known;
    for (int i = 0; i < 950; i++) memcpy(line + 4 * i, "a b ", 5);
    setenv("QN_LEVEL", "portable", 1); // slow, so that it is not over before the key is pressed
    open_screen(s, (const char *[]){"run", "-t", "1", "-n", "8", NULL});
    unsetenv("QN_LEVEL");
    expect(s, "> ");
    type(s, line);
    type(s, "\n");
    expect(s, "reading [");
    expect(s, " of ");
    type(s, "\x03");
    expect(s, "[stopped after ");
    expect(s, " tokens, and taken back]");
    expect(s, "> ");
    type(s, "What is 10 + 62?\n");
    expect_figures(s, &prompt, &known);
    if (prompt > 40) fail_msg("%d tokens: the question is still there", prompt);
    type(s, "/exit\n");
    assert_int_equal(close_screen(s), 0);
}

// A line of blanks is no question.
static void test_blank_line(void **state) {
    screen *s = *state;
    open_screen(s, (const char *[]){"run", DRAFT, NULL});
    expect(s, "> ");
    type(s, "  \t \n");
    expect(s, "> ");
    type(s, "/help\n");
    expect(s, "/reset");
    assert_null(strstr(s->text, " tokens/s]"));
    type(s, "/exit\n");
    assert_int_equal(close_screen(s), 0);
}

// Who types no text is told that one is waited for.
static void test_waiting_for_text(void **state) {
    screen *s = *state;
    open_screen(s, (const char *[]){"tokenize", DRAFT, NULL});
    expect(s, "waiting for text on standard input");
    type(s, "Hello\n\x04");
    expect(s, "1222");
    assert_int_equal(close_screen(s), 0);
    open_screen(s, (const char *[]){"detokenize", DRAFT, NULL});
    expect(s, "waiting for token ids on standard input");
    type(s, "1222 23\n\x04");
    expect(s, "Hello,");
    assert_int_equal(close_screen(s), 0);
    open_screen(s, (const char *[]){"template", DRAFT, NULL});
    expect(s, "waiting for a JSON object");
    type(s, "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}\n\x04");
    expect(s, "<|im_start|>user");
    assert_int_equal(close_screen(s), 0);
}

// After Ctrl-Z and going on, the prompt and what was typed stand there again.
static void test_going_on(void **state) {
    screen *s = *state;
    open_screen(s, (const char *[]){"run", DRAFT, NULL});
    expect(s, "> ");
    type(s, "What is");
    expect(s, "What is");
    struct pollfd p = {.fd = s->fd, .events = POLLIN};
    for (int i = 0; i < 100 && poll(&p, 1, 100) == 0; i++) kill(s->pid, SIGCONT);
    expect(s, "> What is");
    type(s, " 10 + 62?\n");
    expect(s, "10 + 62 = 72");
    type(s, "/bye\n");
    assert_int_equal(close_screen(s), 0);
}

// At the prompt it takes back what was typed and asks again.
static void test_interrupt_at_prompt(void **state) {
    screen *s = *state;
    open_screen(s, (const char *[]){"run", DRAFT, NULL});
    expect(s, "> ");
    type(s, "What is the capital of");
    expect(s, "capital of");
    type(s, "\x03");
    expect(s, "> ");
    type(s, "What is 10 + 62?\n");
    expect(s, "10 + 62 = 72");
    expect(s, "> ");
    type(s, "\x03");
    expect(s, "> ");
    type(s, "/bye\n");
    assert_int_equal(close_screen(s), 0);
}

// A line may be longer than the 4095 bytes that terminals pass on by themselves.
static void test_long_line(void **state) {
    screen *s = *state;
    char part[1001] = {0};
    memset(part, 'x', 1000);
    open_screen(s, (const char *[]){"run", DRAFT, NULL});
    expect(s, "> ");
    for (int i = 0; i < 5; i++) {
        type(s, part);
        expect(s, "xxx");
    }
    type(s, "\n");
    expect(s, "the prompt has 5008 tokens, the context 2048");
    expect(s, "> ");
    type(s, "/exit\n");
    assert_int_equal(close_screen(s), 0);
}

// A turn that does not fit into the context is told and taken back.
static void test_full_context(void **state) {
    screen *s = *state;
    open_screen(s, (const char *[]){"run", DRAFT, "-c", "24", NULL});
    expect(s, "> ");
    type(s, "one two three four five six seven eight nine ten eleven twelve\n");
    expect(s, "/reset forgets what was said");
    expect(s, "> ");
    type(s, "Hi!\n");
    expect(s, " tokens/s]");
    type(s, "/exit\n");
    assert_int_equal(close_screen(s), 0);
}

// A text of several lines: between quotes, with backslashes, pasted, or with Alt-Enter.
static void test_several_lines(void **state) {
    screen *s = *state;
    int one, several, known;
    setenv("TERM", "xterm", 1);
    open_screen(s, (const char *[]){"run", DRAFT, "-n", "4", NULL});
    expect(s, "> ");
    type(s, "one\n");
    expect_figures(s, &one, &known);
    static const char *const ways[][3] = {
        {"\"\"\"one\n", "two\n", "three\"\"\"\n"},
        {"one\\\n", "two\\\n", "three\n"},
        {"\033[200~one\ntwo\n", "three\033[201~", "\n"},
        {"one\033\r", "two\033\r", "three\n"},
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        type(s, "/reset\n");
        expect(s, "forgotten");
        expect(s, "> ");
        type(s, ways[i][0]);
        if (i < 2) expect(s, "... ");
        type(s, ways[i][1]);
        if (i < 2) expect(s, "... ");
        type(s, ways[i][2]);
        int n;
        expect_figures(s, &n, &known);
        if (i == 0) several = n;
        if (n <= one + 2 || n != several)
            fail_msg("way %zu: %d tokens, %d for one word", i, n, one);
    }
    // What was typed before comes back, all lines of it.
    type(s, "/reset\n");
    expect(s, "forgotten");
    type(s, "\033[A\033[A\n");
    int again;
    expect_figures(s, &again, &known);
    assert_int_equal(again, several);
    // Half a text is forgotten by Ctrl-C.
    type(s, "\"\"\"four\n");
    expect(s, "... ");
    type(s, "\x03");
    expect(s, "> ");
    type(s, "/exit\n");
    assert_int_equal(close_screen(s), 0);
}

static void test_save_and_load(void **state) {
    screen *s = *state;
    char line[CLI_MOST_PATH + 16], path[CLI_MOST_PATH];
    snprintf(path, sizeof path, "%s", cli_path("talk.json"));
    open_screen(s, (const char *[]){"run", DRAFT, NULL});
    expect(s, "> ");
    type(s, "My name is Kevin.\n");
    expect(s, " tokens/s]");
    type(s, "/set temp 0.5\n");
    expect(s, "temp ");
    expect(s, "0.5");
    snprintf(line, sizeof line, "/save %s\n", path);
    type(s, line);
    expect(s, "saved: 2 messages");
    type(s, "/exit\n");
    assert_int_equal(close_screen(s), 0);
    open_screen(s, (const char *[]){"run", DRAFT, NULL});
    expect(s, "> ");
    snprintf(line, sizeof line, "/load %s\n", path);
    type(s, line);
    expect(s, "loaded: 2 messages");
    type(s, "/set\n");
    expect(s, "0.5");       // came with it
    type(s, "/set temp\n"); // and goes
    expect(s, "> ");
    type(s, "What is my name?\n");
    expect(s, "name?\r\n");
    expect(s, "Kevin");
    expect(s, " tokens/s]");
    char missing[CLI_MOST_PATH + 16];
    snprintf(missing, sizeof missing, "/load %s.not\n", path);
    type(s, missing);
    expect(s, "talk.json.not: cannot open");
    type(s, "/save\n");
    expect(s, "/save needs the name of a file");
    type(s, "/save /dev/null\n");
    expect(s, "quern: /dev/null");
    type(s, "/exit\n");
    assert_int_equal(close_screen(s), 0);
    // The other model has another conversation.
    open_screen(s, (const char *[]){"run", NULL});
    expect(s, "> ");
    type(s, line);
    expect(s, "quern: ");
    expect(s, "a conversation with D (qwen3,");
    expect(s, "this model is M (qwen3,");
    type(s, "/exit\n");
    assert_int_equal(close_screen(s), 0);
}

static void test_commands(void **state) {
    screen *s = *state;
    open_screen(s, (const char *[]){"run", DRAFT, "-n", "8", NULL});
    expect(s, "> ");
    type(s, "/regen\n");
    expect(s, "there is no answer yet");
    type(s, "/system You are a pirate.\n");
    expect(s, "the system message is set");
    type(s, "/system\n");
    expect(s, "You are a pirate.");
    type(s, "/system none\n");
    expect(s, "no system message");
    type(s, "/set\n"); // nothing is set: the help tells the defaults
    expect(s, "sample among the N best tokens");
    type(s, "/set temperature 1.5\n"); // by another program's name
    expect(s, "1.5");
    type(s, "/set parameter top_k 39\n"); // and by its words
    expect(s, "top-k                39");
    type(s, "/set top_k\n");
    expect(s, "sample among the N best tokens");
    type(s, "/set temp hot\n");
    expect(s, "--temp: 'hot', want a number");
    type(s, "/set frobnication 1\n");
    expect(s, "no setting 'frobnication'");
    type(s, "Tell me a story.\n");
    expect(s, " tokens/s]");
    type(s, "/regen\n");
    expect(s, " tokens/s]");
    type(s, "/stats\n");
    expect(s, "answers   2");
    expect(s, "written   ");
    type(s, "/image cat.png\n");
    expect(s, "images are not there yet");
    type(s, "/exit\n");
    assert_int_equal(close_screen(s), 0);
}

// Lines end between words before the right margin.
static void test_wrapped(void **state) {
    screen *s = *state;
    enum { WIDTH = 30 };
    open_screen(s, (const char *[]){"run", DRAFT, "-n", "120", NULL});
    const struct winsize size = {.ws_row = 24, .ws_col = WIDTH};
    assert_int_equal(ioctl(s->fd, TIOCSWINSZ, &size), 0);
    expect(s, "> ");
    type(s, "Tell me a story.\n");
    expect(s, "\033[K"); // what was said while it was read is taken away
    const size_t from = s->seen;
    expect(s, "\033[2m[prompt ");
    size_t n_lines = 0;
    for (const char *at = s->text + from; *at != '\033';) {
        const size_t n = strcspn(at, "\r\n\033");
        if (n > WIDTH) fail_msg("a line of %zu columns: '%s'", n, s->text + from);
        if (n && at[n] == '\r') {
            n_lines++;
            if (at[n - 1] == ' ') fail_msg("a blank at the end of a line: '%s'", s->text + from);
        }
        at += n + strspn(at + n, "\r\n");
    }
    assert_true(n_lines > 3);
    expect(s, " tokens/s]");
    type(s, "/exit\n");
    assert_int_equal(close_screen(s), 0);
}

// Reasoning stands in the weak colour, and a call is shown as one.
static void test_parts(void **state) {
    screen *s = *state;
    static const char text[] = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
                               "<|im_end|>\n{% endfor %}<|im_start|>assistant\n<think>{{ '\\n' }}";
    cli_save(cli_path("think.jinja"), text, strlen(text));
    open_screen(
        s, (const char *[]){"run", DRAFT, "-n", "8", "--template", cli_path("think.jinja"), NULL});
    expect(s, "> ");
    type(s, "Tell me a story.\n");
    expect(s, "\033[K\033[2m");
    expect(s, "\033[0m");
    expect(s, " tokens/s]");
    type(s, "/exit\n");
    assert_int_equal(close_screen(s), 0);
}

// Measuring shows how many tasks are done, and Ctrl-C ends it with a word.
static void test_interrupt_eval(void **state) {
    screen *s = *state;
    open_screen(s, (const char *[]){"eval", DRAFT, "--tasks", MODELS "/tasks.jsonl", NULL});
    expect(s, "tasks/s");
    type(s, "\x03");
    expect(s, "quern: stopped after ");
    expect(s, " of 600 tasks");
    assert_int_equal(close_screen(s), 1);
}

// So does a benchmark, and it says how far it came.
static void test_interrupt_bench(void **state) {
    screen *s = *state;
    open_screen(s, (const char *[]){"bench", DRAFT, "-n", "512", "-r", "1000", NULL});
    expect(s, "measuring [");
    expect(s, "runs/s");
    type(s, "\x03");
    expect(s, "quern: stopped after ");
    expect(s, " of 2002 runs");
    assert_int_equal(close_screen(s), 1);
}

int main(void) {
    static screen s;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_turns_are_kept, &s),
        cmocka_unit_test_prestate(test_conversation, &s),
        cmocka_unit_test_prestate(test_interrupt, &s),
        cmocka_unit_test_prestate(test_interrupt_reading, &s),
        cmocka_unit_test_prestate(test_blank_line, &s),
        cmocka_unit_test_prestate(test_waiting_for_text, &s),
        cmocka_unit_test_prestate(test_going_on, &s),
        cmocka_unit_test_prestate(test_interrupt_at_prompt, &s),
        cmocka_unit_test_prestate(test_long_line, &s),
        cmocka_unit_test_prestate(test_full_context, &s),
        cmocka_unit_test_prestate(test_several_lines, &s),
        cmocka_unit_test_prestate(test_save_and_load, &s),
        cmocka_unit_test_prestate(test_commands, &s),
        cmocka_unit_test_prestate(test_wrapped, &s),
        cmocka_unit_test_prestate(test_parts, &s),
        cmocka_unit_test_prestate(test_interrupt_eval, &s),
        cmocka_unit_test_prestate(test_interrupt_bench, &s),
    };
    return cmocka_run_group_tests(tests, cli_setup, cli_teardown);
}
