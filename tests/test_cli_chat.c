// Conversations, on a terminal made for the purpose.
#include "screen.h"

#include <termios.h>

// The figures behind the next answer: tokens of the prompt, and how many of them were known.
static void expect_figures(screen *s, int *prompt, int *known) {
    screen_expect(s, "[prompt ");
    const char *at = s->text + s->seen;
    screen_expect(s, "tokens/s]");
    if (sscanf(at, "%d tokens, %d known,", prompt, known) != 2) fail_msg("no figures: '%s'", at);
}

// A further turn computes what is new, and the rest is known: up to the beginning of the answer
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
    screen_expect(s, " tokens ...");
    screen_expect(s, "K10 + 62 = 72"); // behind what clears the line
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
    screen_expect(s, "forgotten");
    screen_type(s, "/frobnicate\n");
    screen_expect(s, "no command /frobnicate; there are");
    screen_expect(s, "/exit");
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
    screen_expect(s, " tokens, and taken back]");
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
    screen_expect(s, "the prompt has 5008 tokens, the context 2048");
    screen_expect(s, "> ");
    screen_type(s, "/exit\n");
    assert_int_equal(screen_close(s), 0);
}

// A turn that does not fit into the context is told and taken back.
static void test_full_context(void **state) {
    screen *s = *state;
    screen_open(s, (const char *[]){"run", DRAFT, "-c", "24", NULL});
    screen_expect(s, "> ");
    screen_type(s, "one two three four five six seven eight nine ten eleven twelve\n");
    screen_expect(s, "/reset forgets what was said");
    screen_expect(s, "> ");
    screen_type(s, "Hi!\n");
    screen_expect(s, "tokens/s]");
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
        screen_expect(s, "forgotten");
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
    screen_expect(s, "forgotten");
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
    screen_expect(s, "saved: 2 messages");
    screen_type(s, "/exit\n");
    assert_int_equal(screen_close(s), 0);
    screen_open(s, (const char *[]){"run", DRAFT, NULL});
    screen_expect(s, "> ");
    snprintf(line, sizeof line, "/load %s\n", path);
    screen_type(s, line);
    screen_expect(s, "loaded: 2 messages");
    screen_type(s, "/set\n");
    screen_expect(s, "0.5");               // came with it
    screen_type(s, "/set temp default\n"); // and goes
    screen_expect(s, "temp has its default again");
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
    screen_expect(s, "this model is quern-mini (qwen3,");
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
    screen_type(s, "/set\n"); // nothing is set: the help tells the defaults
    screen_expect(s, "sample among the N best tokens");
    screen_type(s, "/set temperature 1.5\n"); // by another program's name
    screen_expect(s, "1.5");
    screen_type(s, "/set parameter top_k 39\n"); // and by its words
    screen_expect(s, "top-k is 39 now");
    screen_type(s, "/set top_k default\n");
    screen_expect(s, "top-k has its default again");
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
    screen_expect(s, "written   ");
    screen_type(s, "/image cat.png\n");
    screen_expect(s, "images are not there yet");
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
    screen_expect(s, "\033[K"); // what was said while it was read is taken away
    const size_t from = s->seen;
    screen_expect(s, "\033[2m[prompt ");
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

// --- typing during an answer ---------------------------------------------------------------------

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

// 12 KB in 300 lines, more than a terminal keeps by itself.
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
    begin_long_answer(s, "1500");
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
        begin_long_answer(s, "200");
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
    screen_expect(s, "top-k is 7 now");
    screen_expect(s, "min-p is 0.25 now");
    screen_expect(s, "  answers   1\r");
    screen_expect(s, "> ");
    screen_type(s, "/reset\n/set seed 5\n/set seed 6\n/set tokens 4\nWhat is 10 + 62?\n");
    screen_expect(s, "forgotten");
    screen_expect(s, "seed is 6 now, it was 5");
    screen_expect(s, "tokens is 4 now");
    screen_expect(s, "What is 10 + 62?\r\n");
    screen_expect(s, "tokens/s]");
    expect_answers(s, "2\r");
    screen_expect(s, "> ");
    screen_type(s, "/stats\n/reset\nline one\nline two\n");
    screen_expect(s, "forgotten");
    screen_expect(s, "line two");
    screen_type(s, "\r");
    screen_expect(s, "tokens/s]");
    expect_answers(s, "3\r");
    screen_type(s, "/exit\n");
    assert_int_equal(screen_close(s), 0);
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
    for (int i = 0; i < 600 && access(path, F_OK) != 0; i++) // until the answer has ended
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
        begin_long_answer(s, "1500");
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

// --- commands ------------------------------------------------------------------------------------

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
    screen_expect(s, "top-k is 33 now");
    screen_type(s, "\033[200~set top-k 34\033[201~\x01/\r");
    screen_expect(s, "top-k is 34 now");
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
    screen_expect(s, "stop is \"three words here\" now, it was \"one\" \"two\"");
    screen_type(s, "/set parameter stop \"four\" \"a \\\"b\\\" c\"\n");
    screen_expect(s, "stop is \"four\" \"a \\\"b\\\" c\" now, it was \"three words here\"");
    screen_type(s, "/set stop \"half\n");
    screen_expect(s, "--stop: a quote is not closed");
    screen_type(s, "/set stop \"four\" five\n");
    screen_expect(s, "--stop: 'five', want a text between quotes");
    screen_type(s, "/set stop \"\"\n");
    screen_expect(s, "--stop: the text is empty");
    screen_type(s, "/set stop \"a\\n\\\\n\"\n");
    screen_expect(s, "stop is \"a\\n\\\\n\" now");
    screen_type(s, "/set logit-bias 5+1\n");
    screen_expect(s, "logit-bias is \"5+1\" now");
    screen_type(s, "/set logit-bias \"6+1\" \"7-1\"\n");
    screen_expect(s, "logit-bias is \"6+1\" \"7-1\" now, it was \"5+1\"");
    screen_type(s, "/set logit-bias hot\n"); // is refused, and changes nothing
    screen_expect(s, "--logit-bias");
    screen_expect(s, "> ");
    screen_type(s, "/set logit-bias\n");
    screen_expect(s, "\"6+1\" \"7-1\"");
    screen_type(s, "/set stop default\n");
    screen_expect(s, "stop has its default again");
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
    screen_expect(s, "temp is 0.8 now, it was 0.5");
    screen_type(s, "/set temp 0.8\n");
    screen_expect(s, "temp is 0.8, as before");
    screen_type(s, "/set temp default\n");
    screen_expect(s, "temp has its default again, it was 0.8");
    screen_type(s, "/set top_k 39\n");
    screen_expect(s, "top-k is 39 now, it had its default");
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
    screen_expect(s, "temp is 0 now");
    screen_type(s, "/set greedy\n");
    screen_expect(s, "greedy               on");
    screen_type(s, "/set temp 100\n");
    screen_expect(s, "temp is 100 now, it was 0");
    screen_expect(s, "greedy is off now, it was on");
    screen_type(s, "What is 10 + 62?\n");
    screen_expect(s, "tokens/s]");
    screen_type(s, "/set greedy on\n");
    screen_expect(s, "greedy is on now");
    screen_expect(s, "temp has its default again, it was 100");
    screen_type(s, "/reset\n");
    screen_expect(s, "forgotten");
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
        screen_expect(s, "saved: 0 messages");
        if (access(cli_path(names[i].file), F_OK) != 0) fail_msg("no file %s", names[i].file);
        snprintf(line, sizeof line, "/load %s\n", names[i].typed);
        screen_type(s, line);
        screen_expect(s, "loaded: 0 messages");
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
        SCREEN_TEST(test_several_lines, &s),
        SCREEN_TEST(test_save_and_load, &s),
        SCREEN_TEST(test_commands, &s),
        SCREEN_TEST(test_wrapped, &s),
        SCREEN_TEST(test_parts, &s),
        SCREEN_TEST(test_interrupt_after_paste, &s),
        SCREEN_TEST(test_paste_during_answer, &s),
        SCREEN_TEST(test_large_paste_during_answer, &s),
        SCREEN_TEST(test_typed_ahead, &s),
        SCREEN_TEST(test_commands_typed_ahead, &s),
        SCREEN_TEST(test_typing_without_editing, &s),
        SCREEN_TEST(test_terminal_is_restored, &s),
        SCREEN_TEST(test_stop_during_answer, &s),
        SCREEN_TEST(test_text_after_interrupt, &s),
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
