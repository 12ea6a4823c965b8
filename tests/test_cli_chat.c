// Conversations, on a terminal made for the purpose.
#include "screen.h"

// The figures after the next answer: tokens of the prompt, and how many of them were cached.
static void expect_figures(screen *s, int *prompt, int *cached) {
    screen_expect(s, "[prompt ");
    const char *at = s->text + s->seen;
    screen_expect(s, "tokens/s]");
    if (sscanf(at, "%d (%d cached),", prompt, cached) != 2) fail_msg("no figures: '%s'", at);
}

// A further turn computes what is new, and the rest is cached: up to the beginning of the answer
// before it, at least.
static void test_turns_are_kept(void **state) {
    screen *s = *state;
    static const char *const models[] = {DRAFT, MODELS "/quern-hybrid-Q8_0.gguf"};
    for (int i = 0; i < 2; i++) {
        int first, second, third, known;
        screen_open(s, (const char *[]){"run", models[i], "-n", "20", NULL});
        screen_expect(s, "> ");
        screen_type(s, "My name is Kevin.\n");
        expect_figures(s, &first, &known);
        assert_int_equal(known, 0);
        screen_type(s, "What is my name?\n");
        expect_figures(s, &second, &known);
        if (second <= first || known < first - 4 || known >= second)
            fail_msg("%d tokens, then %d with %d known", first, second, known);
        screen_type(s, "What is 10 + 62?\n");
        expect_figures(s, &third, &known);
        if (third <= second || known < second - 4 || known >= third)
            fail_msg("%d tokens, then %d with %d known", second, third, known);
        screen_type(s, "/exit\n");
        assert_int_equal(screen_close(s), 0);
    }
}

static void test_conversation(void **state) {
    screen *s = *state;
    screen_open(s, (const char *[]){"run", DRAFT, NULL});
    screen_expect(s, "/help lists commands");
    screen_expect(s, "> ");
    screen_type(s, "What is 10 + 62?\n");
    screen_expect(s, "reading ");
    screen_expect(s, "...");
    screen_expect(s, "K10 + 62 = 72"); // after what clears the line
    screen_expect(s, "tokens/s]");
    screen_expect(s, "> ");
    // What was said is remembered, until it is forgotten.
    screen_type(s, "My name is Kevin.\n");
    screen_expect(s, "tokens/s]");
    screen_type(s, "What is my name?\n");
    screen_expect(s, "name?\r\n");
    screen_expect(s, "Kevin");
    screen_expect(s, "> ");
    screen_type(s, "/reset\n");
    screen_expect(s, "conversation cleared");
    screen_type(s, "/frobnicate\n");
    screen_expect(s, "quern: no command /frobnicate; /help lists them");
    screen_type(s, "/rest\n");
    screen_expect(s, "quern: no command /rest; did you mean /reset?");
    screen_type(s, "/retry\n");
    screen_expect(s, "quern: no command /retry; /regen gives another answer");
    screen_type(s, "  /help\n");
    screen_expect(s, "/reset");
    screen_type(s, "/quit\n");
    assert_int_equal(screen_close(s), 0);
}

// Ctrl-C ends the answer and leaves the conversation; the end of the input ends it.
static void test_interrupt(void **state) {
    screen *s = *state;
    screen_open(s, (const char *[]){"run", DRAFT, "--raw", NULL});
    screen_expect(s, "> ");
    screen_type(s, "Once upon a time, there\n");
    screen_expect(s, "there\r\n");
    screen_expect(s, " "); // a word of the answer
    screen_type(s, "\x03");
    screen_expect(s, "[stopped]");
    screen_expect(s, "tokens/s]");
    screen_expect(s, "> ");
    screen_type(s, "\x04");
    assert_int_equal(screen_close(s), 0);
}

// While a long question is read, Ctrl-C comes back to the prompt and forgets the question.
static void test_interrupt_reading(void **state) {
    screen *s = *state;
    char line[3801] = "";
    int prompt, known;
    for (int i = 0; i < 950; i++) memcpy(line + 4 * i, "a b ", 5);
    setenv("QN_LEVEL", "portable", 1); // slow, so that it is not over before the key is pressed
    screen_open(s, (const char *[]){"run", "-t", "1", "-n", "8", NULL});
    unsetenv("QN_LEVEL");
    screen_expect(s, "> ");
    screen_type(s, line);
    screen_type(s, "\n");
    screen_expect(s, "reading [");
    screen_expect(s, " of ");
    screen_type(s, "\x03");
    screen_expect(s, "[stopped after ");
    screen_expect(s, " tokens, cancelled]");
    screen_expect(s, "> ");
    screen_type(s, "What is 10 + 62?\n");
    expect_figures(s, &prompt, &known);
    if (prompt > 40) fail_msg("%d tokens: the question is still there", prompt);
    screen_type(s, "/exit\n");
    assert_int_equal(screen_close(s), 0);
}

// A line of blanks is no question.
static void test_blank_line(void **state) {
    screen *s = *state;
    screen_open(s, (const char *[]){"run", DRAFT, NULL});
    screen_expect(s, "> ");
    screen_type(s, "  \t \n");
    screen_expect(s, "> ");
    screen_type(s, "/help\n");
    screen_expect(s, "/reset");
    assert_null(strstr(s->text, "tokens/s]"));
    screen_type(s, "/exit\n");
    assert_int_equal(screen_close(s), 0);
}

// Who types no text is told that one is waited for.
static void test_waiting_for_text(void **state) {
    screen *s = *state;
    screen_open(s, (const char *[]){"tokenize", DRAFT, NULL});
    screen_expect(s, "waiting for text on standard input");
    screen_type(s, "Hello\n\x04");
    screen_expect(s, "1222");
    assert_int_equal(screen_close(s), 0);
    screen_open(s, (const char *[]){"detokenize", DRAFT, NULL});
    screen_expect(s, "waiting for token ids on standard input");
    screen_type(s, "1222 23\n\x04");
    screen_expect(s, "Hello,");
    assert_int_equal(screen_close(s), 0);
    screen_open(s, (const char *[]){"template", DRAFT, NULL});
    screen_expect(s, "waiting for a JSON object");
    screen_type(s, "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}\n\x04");
    screen_expect(s, "<|im_start|>user");
    assert_int_equal(screen_close(s), 0);
}

// After Ctrl-Z and going on, the prompt and what was typed stand there again.
static void test_going_on(void **state) {
    screen *s = *state;
    screen_open(s, (const char *[]){"run", DRAFT, NULL});
    screen_expect(s, "> ");
    screen_type(s, "What is");
    screen_expect(s, "What is");
    struct pollfd p = {.fd = s->fd, .events = POLLIN};
    for (int i = 0; i < 100 && poll(&p, 1, 100) == 0; i++) kill(s->pid, SIGCONT);
    screen_expect(s, "> What is");
    screen_type(s, " 10 + 62?\n");
    screen_expect(s, "10 + 62 = 72");
    screen_type(s, "/bye\n");
    assert_int_equal(screen_close(s), 0);
}

// At the prompt it takes back what was typed and asks again.
static void test_interrupt_at_prompt(void **state) {
    screen *s = *state;
    screen_open(s, (const char *[]){"run", DRAFT, NULL});
    screen_expect(s, "> ");
    screen_type(s, "What is the capital of");
    screen_expect(s, "capital of");
    screen_type(s, "\x03");
    screen_expect(s, "> ");
    screen_type(s, "What is 10 + 62?\n");
    screen_expect(s, "10 + 62 = 72");
    screen_expect(s, "> ");
    screen_type(s, "\x03");
    screen_expect(s, "> ");
    screen_type(s, "/bye\n");
    assert_int_equal(screen_close(s), 0);
}

// A line may be longer than the 4095 bytes that terminals pass on by themselves.
static void test_long_line(void **state) {
    screen *s = *state;
    char part[1001] = {0};
    memset(part, 'x', 1000);
    screen_open(s, (const char *[]){"run", DRAFT, NULL});
    screen_expect(s, "> ");
    for (int i = 0; i < 5; i++) {
        screen_type(s, part);
        screen_expect(s, "xxx");
    }
    screen_type(s, "\n");
    screen_expect(s, "the question alone has 5008 tokens, the context 2048");
    screen_expect(s, "> ");
    screen_type(s, "/exit\n");
    assert_int_equal(screen_close(s), 0);
}

// A turn that does not fit into the context is told and taken back, with the ways out.
static void test_full_context(void **state) {
    screen *s = *state;
    screen_open_with(s, &(screen_opts){.width = 132},
                     (const char *[]){"run", DRAFT, "-c", "24", "-n", "8", NULL});
    screen_expect(s, "> ");
    screen_type(s, "one two three four five six seven eight nine ten eleven twelve\n");
    screen_expect(s, "quern: the question alone has ");
    screen_expect(s, " tokens, the context 24\r\n");
    screen_expect(s, "> ");
    screen_type(s, "Hi!\n");
    screen_expect(s, "tokens/s]");
    screen_type(s, "Hi!\n");
    screen_expect(s, "quern: the prompt has ");
    screen_expect(s,
                  " tokens, the context 24; '/set context-shift on', or --context-shift, leaves");
    screen_expect(s, "/reset");
    screen_type(s, "/set context-shift on\n");
    screen_type(s, "Hi!\n");
    screen_expect(s, "[1 of 2 turns left out: the context is full]");
    screen_expect(s, "tokens/s]");
    screen_type(s, "/exit\n");
    assert_int_equal(screen_close(s), 0);
}

// With --context-shift a conversation has no end: the prompt begins with the system message, and
// has as many of the last turns as fit.
static void test_turns_are_left_out(void **state) {
    screen *s = *state;
    int first, prompt = 0, known;
    screen_open(s, (const char *[]){"run", DRAFT, "-c", "64", "-n", "8", "--context-shift",
                                    "--system", "Be kind.", NULL});
    screen_expect(s, "> ");
    screen_type(s, "My name is Kevin.\n");
    expect_figures(s, &first, &known);
    for (int i = 0; i < 6; i++) {
        screen_type(s, "My name is Kevin.\n");
        expect_figures(s, &prompt, &known);
        if (prompt >= 64) fail_msg("%d tokens of prompt", prompt);
    }
    if (prompt <= first) fail_msg("%d tokens at first, then %d", first, prompt);
    const int left_out = screen_find(s, 0, "turns left out: the context is full]");
    if (left_out < 0) fail_msg("no word of turns that were left out");
    assert_true(screen_find(s, left_out + 1, "[5 of 7 turns left out") >= 0);
    screen_type(s, "/exit\n");
    assert_int_equal(screen_close(s), 0);
}

// A text of several lines: between quotes, with backslashes, pasted, or with Alt-Enter.
static void test_several_lines(void **state) {
    screen *s = *state;
    int one, several, known;
    screen_open(s, (const char *[]){"run", DRAFT, "-n", "4", NULL});
    screen_expect(s, "> ");
    screen_type(s, "one\n");
    expect_figures(s, &one, &known);
    static const char *const ways[][3] = {
        {"\"\"\"one\n", "two\n", "three\"\"\"\n"},
        {"one\\\n", "two\\\n", "three\n"},
        {"\033[200~one\ntwo\n", "three\033[201~", "\n"},
        {"one\033\r", "two\033\r", "three\n"},
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        screen_type(s, "/reset\n");
        screen_expect(s, "conversation cleared");
        screen_expect(s, "> ");
        screen_type(s, ways[i][0]);
        if (i < 2) screen_expect(s, "... ");
        screen_type(s, ways[i][1]);
        if (i < 2) screen_expect(s, "... ");
        screen_type(s, ways[i][2]);
        int n;
        expect_figures(s, &n, &known);
        if (i == 0) several = n;
        if (n <= one + 2 || n != several)
            fail_msg("way %zu: %d tokens, %d for one word", i, n, one);
    }
    // What was typed before comes back, all lines of it.
    screen_type(s, "/reset\n");
    screen_expect(s, "conversation cleared");
    screen_type(s, "\033[A\033[A\n");
    int again;
    expect_figures(s, &again, &known);
    assert_int_equal(again, several);
    // Half a text is forgotten by Ctrl-C.
    screen_type(s, "\"\"\"four\n");
    screen_expect(s, "... ");
    screen_type(s, "\x03");
    screen_expect(s, "> ");
    screen_type(s, "/exit\n");
    assert_int_equal(screen_close(s), 0);
}

// Lines end between words before the right margin.
static void test_wrapped(void **state) {
    screen *s = *state;
    enum { WIDTH = 30 };
    screen_open_with(s, &(screen_opts){.width = WIDTH},
                     (const char *[]){"run", DRAFT, "-n", "120", NULL});
    screen_expect(s, "> ");
    screen_type(s, "Tell me a story.\n");
    screen_expect(s, "\033[2m[prompt ");
    // What was said while it was read is taken away, more than once where that takes long.
    const char *from = s->text, *at = s->text;
    while ((at = strstr(from, "\033[K")) && at < s->text + s->seen) from = at + strlen("\033[K");
    size_t n_lines = 0;
    for (at = from; *at != '\033';) {
        const size_t n = strcspn(at, "\r\n\033");
        if (n > WIDTH) fail_msg("a line of %zu columns: '%s'", n, from);
        if (n && at[n] == '\r') {
            n_lines++;
            if (at[n - 1] == ' ') fail_msg("a blank at the end of a line: '%s'", from);
        }
        at += n + strspn(at + n, "\r\n");
    }
    assert_true(n_lines > 3);
    screen_expect(s, "tokens/s]");
    screen_type(s, "/exit\n");
    assert_int_equal(screen_close(s), 0);
}

// Reasoning stands in the weak colour, and a call is shown as one.
static void test_parts(void **state) {
    screen *s = *state;
    static const char text[] = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
                               "<|im_end|>\n{% endfor %}<|im_start|>assistant\n<think>{{ '\\n' }}";
    cli_save(cli_path("think.jinja"), text, strlen(text));
    screen_open(
        s, (const char *[]){"run", DRAFT, "-n", "8", "--template", cli_path("think.jinja"), NULL});
    screen_expect(s, "> ");
    screen_type(s, "Tell me a story.\n");
    screen_expect(s, "\033[K\033[2m");
    screen_expect(s, "\033[0m");
    screen_expect(s, "tokens/s]");
    screen_type(s, "/exit\n");
    assert_int_equal(screen_close(s), 0);
}

int main(void) {
    static screen s;
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    const struct CMUnitTest tests[] = {
        SCREEN_TEST(test_turns_are_kept, &s),
        SCREEN_TEST(test_conversation, &s),
        SCREEN_TEST(test_interrupt, &s),
        SCREEN_TEST(test_interrupt_reading, &s),
        SCREEN_TEST(test_blank_line, &s),
        SCREEN_TEST(test_waiting_for_text, &s),
        SCREEN_TEST(test_going_on, &s),
        SCREEN_TEST(test_interrupt_at_prompt, &s),
        SCREEN_TEST(test_long_line, &s),
        SCREEN_TEST(test_full_context, &s),
        SCREEN_TEST(test_turns_are_left_out, &s),
        SCREEN_TEST(test_several_lines, &s),
        SCREEN_TEST(test_wrapped, &s),
        SCREEN_TEST(test_parts, &s),
    };
    return cmocka_run_group_tests(tests, cli_setup, cli_teardown);
}
