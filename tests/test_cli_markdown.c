// Markdown as a terminal shows it: looks, lists, blocks of code, texts in pieces, hostile texts.
#include "screen.h"

#include "cli/markdown.h"

#define ON_BOLD  "\033[1m"
#define OFF_BOLD "\033[22m"
#define ON_CODE  "\033[36m"
#define OFF_CODE "\033[39m"
#define ON_DIM   "\033[2m"
#define BULLET   "\xe2\x80\xa2"

enum { MOST_SHOWN = 1 << 16 };

// A terminal whose lines end in \n alone.
typedef struct rig {
    int fd;
    FILE *to;
    int width;
    bool is_plain, is_free;
    size_t piece; // bytes that come at a time; 0: all
    char shown[MOST_SHOWN];
    size_t size;
} rig;

static rig *open_rig(int width) {
    static rig r;
    r = (rig){.width = width, .fd = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)};
    const char *name =
        r.fd >= 0 && grantpt(r.fd) == 0 && unlockpt(r.fd) == 0 ? ptsname(r.fd) : NULL;
    if (!name) {
        print_message("skip: this machine has no pseudo-terminals (devpts)\n");
        skip();
    }
    const struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)width};
    assert_int_equal(ioctl(r.fd, TIOCSWINSZ, &size), 0);
    r.to = fopen(name, "r+");
    assert_non_null(r.to);
    assert_int_equal(fcntl(r.fd, F_SETFL, O_NONBLOCK), 0);
    return &r;
}

static void close_rig(rig *r) {
    fclose(r->to);
    close(r->fd);
}

// Takes what the terminal got, without the carriage returns that it adds.
static void take(rig *r) {
    char bytes[4096];
    fflush(r->to);
    for (ssize_t n; (n = read(r->fd, bytes, sizeof bytes)) > 0;) {
        for (ssize_t i = 0; i < n; i++) {
            if (bytes[i] == '\r') continue;
            assert_true(r->size + 1 < sizeof r->shown);
            r->shown[r->size++] = bytes[i];
        }
    }
    r->shown[r->size] = 0;
}

// What a text looks like; borrowed until the next one. Characters come whole.
static const char *look_of(rig *r, const char *text, size_t size) {
    qn_line_wrap wrap;
    qn_markdown markdown;
    r->size = 0;
    qn_wrap_init(&wrap, r->to);
    wrap.is_free = r->is_free;
    if (r->is_free) wrap.width = 0;
    qn_markdown_init(&markdown, &wrap, !r->is_plain);
    for (size_t i = 0, n; i < size; i += n) {
        n = r->piece && r->piece < size - i ? r->piece : size - i;
        while (i + n < size && ((unsigned char)text[i + n] & 0xc0) == 0x80) n++;
        qn_markdown_add(&markdown, text + i, n);
        take(r);
    }
    qn_markdown_end(&markdown);
    qn_wrap_end_line(&wrap);
    take(r);
    return r->shown;
}

// However the text comes.
static void expect_look(rig *r, const char *text, const char *want) {
    for (size_t piece = 0; piece < 12; piece++) {
        r->piece = piece;
        const char *shown = look_of(r, text, strlen(text));
        if (strcmp(shown, want) != 0)
            fail_msg("'%s' in pieces of %zu is\n'%s', not\n'%s'", text, piece, shown, want);
    }
}

static void test_spans(void **state) {
    rig *r = open_rig(200);
    (void)state;
    expect_look(r, "a **bold word** b", "a " ON_BOLD "bold word" OFF_BOLD " b\n");
    expect_look(r, "call `f(x)`, then", "call " ON_CODE "f(x)" OFF_CODE ", then\n");
    expect_look(r, "**`f`**: x", ON_BOLD ON_CODE "f" OFF_CODE OFF_BOLD ": x\n");
    expect_look(r, "`` a`b `` x", ON_CODE "a`b" OFF_CODE " x\n");
    expect_look(r, "(**b**)", "(" ON_BOLD "b" OFF_BOLD ")\n");
    expect_look(r, "***both*** x", ON_BOLD "both" OFF_BOLD " x\n");
    expect_look(r, "\xe6\x98\xaf**\xe7\xb2\x97\xe4\xbd\x93**\xe5\xad\x97",
                "\xe6\x98\xaf" ON_BOLD "\xe7\xb2\x97\xe4\xbd\x93" OFF_BOLD "\xe5\xad\x97\n");
    expect_look(r, "**a** and **b**", ON_BOLD "a" OFF_BOLD " and " ON_BOLD "b" OFF_BOLD "\n");
    expect_look(r, "`**x**`", ON_CODE "**x**" OFF_CODE "\n");
    expect_look(r, "**a `**` b** c", ON_BOLD "a " ON_CODE "**" OFF_CODE " b" OFF_BOLD " c\n");
    close_rig(r);
}

// What is no mark, or has no partner on its line, stays.
static void test_texts_stay(void **state) {
    rig *r = open_rig(200);
    static const char *const same[] = {
        "2**3 = 8, 3**2 = 9",
        "f(*args, **kwargs)",
        "a ** b ** c",
        "5 * 3 * 2",
        "*slanted* text",
        "__init__ and x_y",
        "a ` b",
        "\\*\\*no\\*\\*",
        "\\(x\\) \\`y\\`",
        "**never closed",
        "`never closed",
        "#hash",
        "-5 degrees",
        "3.14 is pi",
        "---",
        "***",
        "a\n**b\nc** d",
        "``",
        "1999 was",
        "1234567890. many",
        "> quoted",
        "| a | b |\n|---|---|",
        "",
        "****",
        "** **",
        "\\",
    };
    (void)state;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        char want[128];
        snprintf(want, sizeof want, *same[i] ? "%s\n" : "%s", same[i]);
        expect_look(r, same[i], want);
    }
    r->is_plain = true;
    expect_look(r, "# Head\n- **b** `c`\n```\nx\n```", "# Head\n- **b** `c`\n```\nx\n```\n");
    close_rig(r);
}

static void test_lines(void **state) {
    rig *r = open_rig(24);
    (void)state;
    expect_look(r, "## A head\ntext", ON_BOLD "A head" OFF_BOLD "\ntext\n");
    expect_look(r, "# A **b** c", ON_BOLD "A b c" OFF_BOLD "\n");
    expect_look(r, "- one two three four five six\n  * seven",
                BULLET " one two three four\n  five six\n  " BULLET " seven\n");
    expect_look(r, "12. one two three four five six", "12. one two three four\n    five six\n");
    expect_look(r, "- **one** two three four five six",
                BULLET " " ON_BOLD "one" OFF_BOLD " two three four\n  five six\n");
    close_rig(r);
}

// A break never falls between a mark and its word, and the marks take no columns.
static void test_wrapped_spans(void **state) {
    rig *r = open_rig(10);
    (void)state;
    expect_look(r, "1234 (**67**) 9", "1234 (" ON_BOLD "67" OFF_BOLD ")\n9\n");
    expect_look(r, "12345 (**78**)", "12345 (" ON_BOLD "78" OFF_BOLD ")\n");
    expect_look(r, "123456 (**9a**)", "123456\n(" ON_BOLD "9a" OFF_BOLD ")\n");
    expect_look(r, "12345678 **a** b", "12345678 " ON_BOLD "a" OFF_BOLD "\nb\n");
    // Two columns each.
    expect_look(r, "12 **\xe7\xb2\x97\xe4\xbd\x93\xe5\xad\x97\xe7\xb2\x97**",
                "12 " ON_BOLD "\xe7\xb2\x97\xe4\xbd\x93\xe5\xad\x97\n\xe7\xb2\x97" OFF_BOLD "\n");
    r->is_free = true;
    expect_look(r, "123456 (**9a**) bcd", "123456 (" ON_BOLD "9a" OFF_BOLD ") bcd\n");
    close_rig(r);
}

// Code stays as it is, is not broken, and ends with its own fence.
static void test_code_blocks(void **state) {
    rig *r = open_rig(16);
    static const char *const fences[][2] = {
        {"```c", "```"}, {"````", "````"}, {"~~~", "~~~~"}, {"   ```python", "  ```  "}};
    (void)state;
    for (size_t i = 0; i < sizeof fences / sizeof *fences; i++) {
        char text[256], want[256];
        static const char code[] =
            "int **x = **y; `z` /* a long line */\n# no head\n- none\n\n  ``\n";
        snprintf(text, sizeof text, "%s\n%s%s\n**b** and a line", fences[i][0], code, fences[i][1]);
        snprintf(want, sizeof want,
                 ON_DIM "%s" OFF_BOLD "\n%s" ON_DIM "%s" OFF_BOLD "\n" ON_BOLD "b" OFF_BOLD
                        " and a line\n",
                 fences[i][0], code, fences[i][1]);
        // The indentation and the blanks at the end are blanks before and behind the looks.
        if (i == 3)
            snprintf(want, sizeof want,
                     ON_DIM "%s" OFF_BOLD "\n%s" ON_DIM "  ```" OFF_BOLD "\n" ON_BOLD "b" OFF_BOLD
                            " and a line\n",
                     fences[i][0], code);
        expect_look(r, text, want);
    }
    // Shorter fences, and others, are code; so is a line that only begins like one.
    expect_look(r, "````\n```\n~~~~\n```` x\n````\n**b**",
                ON_DIM "````" OFF_BOLD "\n```\n~~~~\n```` x\n" ON_DIM "````" OFF_BOLD "\n" ON_BOLD
                       "b" OFF_BOLD "\n");
    expect_look(r, "``` `x` ```", ON_CODE "`x`" OFF_CODE "\n"); // no fence
    r->is_plain = true;
    expect_look(r, "```\n0123456789 0123456789\n```\n0123456789 0123456789",
                "```\n0123456789 0123456789\n```\n0123456789\n0123456789\n");
    close_rig(r);
}

// No byte of the model's reaches the terminal as an escape, whatever it is between.
static void test_escapes_do_not_pass(void **state) {
    rig *r = open_rig(80);
    static const char *const hostile[] = {
        "\033]0;title\007", "**\033[31mred**", "`\033c`",    "# \033[2J",     "- \033[H",
        "```\033[5m\nx",    "```\n\033[5m",    "\302\2335m", "**\302\233H**", "\\\033[A",
    };
    (void)state;
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        for (size_t piece = 0; piece < 4; piece++) {
            r->piece = piece;
            const char *shown = look_of(r, hostile[i], strlen(hostile[i]));
            for (const char *at = shown; (at = strchr(at, '\033')); at++) {
                const bool is_own = strncmp(at, ON_BOLD, 4) == 0 || strncmp(at, ON_DIM, 4) == 0 ||
                                    strncmp(at, ON_CODE, 5) == 0 || strncmp(at, OFF_CODE, 5) == 0 ||
                                    strncmp(at, OFF_BOLD, 5) == 0;
                if (!is_own) fail_msg("an escape in '%s'", shown);
            }
            assert_null(strchr(shown, '\007'));
            assert_null(strstr(shown, "\302\233"));
        }
    }
    close_rig(r);
}

// Texts that never end a mark, or are nothing else, are shown whole; all looks end with the text.
static void test_endless_marks(void **state) {
    rig *r = open_rig(80);
    enum { SIZE = 6000 };
    static const char *const units[] = {"*",  "`", "**a ", "`a ", "``` ", "~",  "#",     "- ",
                                        "\\", "1", " ",    "**`", "`**",  "a`", "**a** "};
    (void)state;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        char *text = malloc(SIZE);
        const size_t n = strlen(units[i]);
        for (size_t k = 0; k < SIZE; k++) text[k] = units[i][k % n];
        for (size_t piece = 1; piece < 701; piece += 699) { // what a terminal takes at once
            r->piece = piece;
            const char *shown = look_of(r, text, SIZE);
            size_t n_letters = 0, n_on = 0, n_off = 0;
            for (const char *at = shown; *at; at++) n_letters += *at == 'a';
            for (const char *at = shown; (at = strstr(at, ON_BOLD)); at++) n_on++;
            for (const char *at = shown; (at = strstr(at, OFF_BOLD)); at++) n_off++;
            for (const char *at = shown; (at = strstr(at, ON_DIM)); at++) n_on++;
            size_t want = 0;
            for (size_t k = 0; k < SIZE; k++) want += text[k] == 'a';
            if (n_letters != want) fail_msg("'%s': %zu letters of %zu", units[i], n_letters, want);
            if (n_on != n_off) fail_msg("'%s': looks stay on", units[i]);
        }
        free(text);
    }
    close_rig(r);
}

// Where there are no colours, and where there is no terminal, the text stays.
static void test_no_looks(void **state) {
    static const char text[] = "# Head\n- **b** `c` \033[1m\n";
    (void)state;
    setenv("NO_COLOR", "1", 1);
    rig *r = open_rig(80);
    expect_look(r, text, "# Head\n- **b** `c` ?[1m\n");
    close_rig(r);
    unsetenv("NO_COLOR");
    const char *path = cli_path("markdown.txt");
    qn_line_wrap wrap;
    qn_markdown markdown;
    FILE *to = fopen(path, "w");
    assert_non_null(to);
    qn_wrap_init(&wrap, to);
    qn_markdown_init(&markdown, &wrap, true);
    for (size_t i = 0; text[i]; i++) qn_markdown_add(&markdown, &text[i], 1);
    qn_markdown_end(&markdown);
    qn_wrap_end_line(&wrap);
    assert_int_equal(fclose(to), 0);
    char *got = cli_load(path, NULL);
    assert_string_equal(got, text);
    free(got);
}

// --- answers -------------------------------------------------------------------------------------

// Markdown has looks on a terminal, unless they are switched off, and never in a pipe.
static void test_looks_of_answers(void **state) {
    screen *s = *state;
    static const char pattern[] = "\\*\\*bold\\*\\* `code`", text[] = "**bold** `code`";
    screen_open(s, (const char *[]){"run", DRAFT, "--regex", pattern, "-n", "30", NULL});
    screen_expect(s, "> ");
    screen_tell(s, "Go.\n", "\033[1mbold\033[22m \033[36mcode\033[39m\r\n");
    screen_tell(s, "/set plain on\n", "plain is now on");
    screen_tell(s, "Go.\n", text);
    screen_leave(s);
    screen_open(s, (const char *[]){"run", DRAFT, "--regex", pattern, "--plain", "Go.", NULL});
    screen_expect(s, text);
    assert_int_equal(screen_close(s), 0);
    cli_result r = CLI_RUN("run", DRAFT, "--regex", pattern, "Go.");
    cli_assert_done(&r);
    assert_string_equal(r.out, "**bold** `code`\n");
    cli_free(&r);
}

static void test_no_wrap(void **state) {
    screen *s = *state;
    const char *pattern = "(word ){12}end";
    screen_open_with(s, &(screen_opts){.width = 32},
                     (const char *[]){"run", DRAFT, "--regex", pattern, "--no-wrap", "Go.", NULL});
    screen_expect(s, "tokens/s]");
    assert_int_equal(screen_close(s), 0);
    assert_non_null(
        strstr(s->text, "word word word word word word word word word word word word end"));
    screen_open_with(s, &(screen_opts){.width = 32},
                     (const char *[]){"run", DRAFT, "--regex", pattern, "--nowordwrap", NULL});
    screen_expect(s, "> ");
    screen_tell(s, "/set no-wrap off\n", "no-wrap is ");
    screen_tell(s, "Go.\n", "word word word word word word\r\nword word");
    screen_leave(s);
}

int main(void) {
    static screen s;
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spans),           cmocka_unit_test(test_texts_stay),
        cmocka_unit_test(test_lines),           cmocka_unit_test(test_wrapped_spans),
        cmocka_unit_test(test_code_blocks),     cmocka_unit_test(test_escapes_do_not_pass),
        cmocka_unit_test(test_endless_marks),   cmocka_unit_test(test_no_looks),
        SCREEN_TEST(test_looks_of_answers, &s), SCREEN_TEST(test_no_wrap, &s),
    };
    return cmocka_run_group_tests(tests, cli_setup, cli_teardown);
}
