// Runs `quern` on a terminal made for the purpose, and keeps what it printed and what that looks
// like on a screen. Header only; include it first: it says which system calls are wanted.
//
// The screen knows what line editors and progress bars use: moving the cursor, erasing, inserting
// and deleting, wrapping at the right margin and scrolling. Anything else fails the test. Rows that
// went off the top are kept. A byte is a column, so texts should be ASCII.
#ifndef QN_TESTS_SCREEN_H
#define QN_TESTS_SCREEN_H

#define _DEFAULT_SOURCE     // the size of a terminal
#define _XOPEN_SOURCE   700 // pseudo-terminals
#include "cli_run.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <time.h>

enum {
    SCREEN_PATIENCE_MS = 600000, // what is silent so long hangs, however busy the machine is
    SCREEN_MOST_BYTES = 1 << 20,
    SCREEN_HEIGHT = 24,
    SCREEN_WIDTH = 80,
    SCREEN_MOST_WIDTH = 132,
    SCREEN_MOST_ROWS = 4000,
};

typedef struct screen_row {
    char text[SCREEN_MOST_WIDTH + 1]; // blanks where nothing was written
    bool is_wrapped;                  // the terminal broke it at the right margin
} screen_row;

typedef struct screen {
    pid_t pid;                    // 0: none
    int fd;                       // our end of the terminal
    char text[SCREEN_MOST_BYTES]; // all that was printed so far
    size_t size, seen;            // bytes there, and bytes that an expectation has used up
    int width;
    screen_row rows[SCREEN_MOST_ROWS];
    int n_rows, row, column; // rows so far; the cursor
    bool is_past;            // the cursor is past the last column: the next character wraps
    char sequence[32];       // an escape sequence that has not ended
    size_t n_sequence;
} screen;

typedef struct screen_opts {
    int width;             // 0: SCREEN_WIDTH
    const char *stdout_to; // a file instead of the terminal; NULL: the terminal
    const char *stderr_to; // the same
    bool is_interrupted;   // Ctrl-C was pressed already, and waits
    const char *program;   // NULL: quern
} screen_opts;

// --- the picture ---------------------------------------------------------------------------------

static inline void screen_reach(screen *s, int row) {
    if (row >= SCREEN_MOST_ROWS) fail_msg("more than %d rows", SCREEN_MOST_ROWS);
    for (; s->n_rows <= row; s->n_rows++) memset(s->rows[s->n_rows].text, ' ', SCREEN_MOST_WIDTH);
    s->row = row;
}

// The first row that can be seen.
static inline int screen_top(const screen *s) {
    return s->n_rows > SCREEN_HEIGHT ? s->n_rows - SCREEN_HEIGHT : 0;
}

static inline void screen_put(screen *s, char c) {
    if (s->is_past) {
        s->rows[s->row].is_wrapped = true;
        screen_reach(s, s->row + 1);
        s->column = 0;
    }
    s->rows[s->row].text[s->column] = c;
    s->is_past = s->column == s->width - 1;
    if (!s->is_past) s->column++;
}

// Blanks in the columns [from, to) of a row.
static inline void screen_blank(screen *s, int row, int from, int to) {
    memset(s->rows[row].text + from, ' ', (size_t)(to - from));
}

// The end of a sequence ESC [ numbers letter.
static inline void screen_control(screen *s) {
    const char last = s->sequence[s->n_sequence - 1];
    const int number = atoi(s->sequence + 2), n = number ? number : 1;
    char *row = s->rows[s->row].text;
    const int left = s->width - s->column, moved = n < left ? n : left;
    if (last != 'm' && last != 'h' && last != 'l') s->is_past = false;
    switch (last) {
    case 'm':
    case 'h': // modes and colours cannot be seen here
    case 'l':
        break;
    case 'A':
        screen_reach(s, s->row - n > screen_top(s) ? s->row - n : screen_top(s));
        break;
    case 'B':
        screen_reach(s, s->row + n);
        break;
    case 'C':
        s->column = s->column + n < s->width ? s->column + n : s->width - 1;
        break;
    case 'D':
        s->column = s->column > n ? s->column - n : 0;
        break;
    case 'G':
        s->column = n - 1;
        break;
    case 'H':
        screen_reach(s, screen_top(s)), s->column = 0;
        break;
    case 'K':
        assert_int_equal(number, 0);
        screen_blank(s, s->row, s->column, s->width);
        s->rows[s->row].is_wrapped = false;
        break;
    case 'J':
        assert_int_equal(number, 0);
        screen_blank(s, s->row, s->column, s->width);
        for (int i = s->row + 1; i < s->n_rows; i++) screen_blank(s, i, 0, s->width);
        break;
    case 'P':
        memmove(row + s->column, row + s->column + moved, (size_t)(left - moved));
        screen_blank(s, s->row, s->width - moved, s->width);
        break;
    case '@':
        memmove(row + s->column + moved, row + s->column, (size_t)(left - moved));
        screen_blank(s, s->row, s->column, s->column + moved);
        break;
    default:
        fail_msg("an escape sequence that is not known: ESC%s", s->sequence + 1);
    }
}

static inline void screen_escape(screen *s, char c) {
    if (s->n_sequence + 1 >= sizeof s->sequence) fail_msg("a long escape sequence");
    s->sequence[s->n_sequence++] = c;
    s->sequence[s->n_sequence] = 0;
    if (s->n_sequence == 2 && c != '[') fail_msg("an escape sequence that is not known: ESC%c", c);
    if (s->n_sequence < 3 || c < '@') return;
    screen_control(s);
    s->n_sequence = 0;
}

static inline void screen_feed(screen *s, char c) {
    enum { TAB = 8 };
    if (s->n_sequence || c == '\033') {
        screen_escape(s, c);
        return;
    }
    if ((unsigned char)c >= ' ') {
        screen_put(s, c);
        return;
    }
    s->is_past = false;
    if (c == '\n') screen_reach(s, s->row + 1);
    if (c == '\r') s->column = 0;
    if (c == '\b' && s->column > 0) s->column--;
    if (c == '\t') {
        const int next = s->column / TAB * TAB + TAB;
        s->column = next < s->width ? next : s->width - 1;
    }
}

// A row without the blanks at its end; one of a few rotating buffers.
static inline const char *screen_row_text(const screen *s, int row) {
    static char texts[4][SCREEN_MOST_WIDTH + 1];
    static int next;
    char *text = texts[next++ % 4];
    size_t n = SCREEN_MOST_WIDTH;
    memcpy(text, s->rows[row].text, n);
    while (n && text[n - 1] == ' ') n--;
    text[n] = 0;
    return text;
}

// The first row from `from` on that has `part` in it; -1: none.
static inline int screen_find(const screen *s, int from, const char *part) {
    for (int i = from; i < s->n_rows; i++) {
        if (strstr(screen_row_text(s, i), part)) return i;
    }
    return -1;
}

// The terminal broke no line from row `from` on.
static inline void screen_assert_unbroken(const screen *s, int from) {
    for (int i = from; i < s->n_rows; i++) {
        if (s->rows[i].is_wrapped)
            fail_msg("row %d is too long: '%s' '%s'", i, screen_row_text(s, i),
                     screen_row_text(s, i + 1));
    }
}

// --- the program ---------------------------------------------------------------------------------

static inline void screen_exec(const char *terminal, const screen_opts *opts,
                               const char *const *args) {
    setsid(); // the terminal opened next is then the controlling one, and Ctrl-C a signal
    const int fd = open(terminal, O_RDWR);
    if (fd < 0 || dup2(fd, 0) != 0 || dup2(fd, 1) != 1 || dup2(fd, 2) != 2) _exit(99);
    if (opts->stdout_to) cli_redirect(1, opts->stdout_to, O_WRONLY | O_CREAT | O_TRUNC);
    if (opts->stderr_to) cli_redirect(2, opts->stderr_to, O_WRONLY | O_CREAT | O_TRUNC);
    if (opts->is_interrupted) { // pending signals and the mask survive exec
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGINT);
        sigprocmask(SIG_BLOCK, &set, NULL);
        raise(SIGINT);
    }
    const char *program = opts->program ? opts->program : QUERN;
    const char *argv[CLI_MOST_ARGS + 2] = {program};
    for (int i = 0; i < CLI_MOST_ARGS && args[i]; i++) argv[i + 1] = args[i];
    execv(program, (char *const *)(uintptr_t)argv);
    _exit(99);
}

static inline void screen_resize(screen *s, int width) {
    const struct winsize size = {.ws_row = SCREEN_HEIGHT, .ws_col = (unsigned short)width};
    assert_int_equal(ioctl(s->fd, TIOCSWINSZ, &size), 0);
    s->width = width;
}

static inline void screen_open_with(screen *s, const screen_opts *opts, const char *const *args) {
    memset(s, 0, sizeof *s);
    // The program must not have our end: it would never hang up.
    s->fd = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    const bool has_terminal = s->fd >= 0 && grantpt(s->fd) == 0 && unlockpt(s->fd) == 0;
    const char *name = has_terminal ? ptsname(s->fd) : NULL;
    if (!name) {
        if (s->fd >= 0) close(s->fd);
        print_message("skip: this machine has no pseudo-terminals (devpts)\n");
        skip();
    }
    screen_resize(s, opts->width ? opts->width : SCREEN_WIDTH);
    screen_reach(s, 0);
    assert_int_equal(fcntl(s->fd, F_SETFL, O_NONBLOCK), 0);
    s->pid = fork();
    assert_true(s->pid >= 0);
    if (s->pid == 0) screen_exec(name, opts, args);
}

static inline void screen_open(screen *s, const char *const *args) {
    screen_open_with(s, &(screen_opts){0}, args);
}

// Takes what was printed; false: the program has closed its end.
static inline bool screen_read(screen *s) {
    const size_t room = SCREEN_MOST_BYTES - 1 - s->size;
    if (room == 0) fail_msg("more than %d bytes were printed", SCREEN_MOST_BYTES);
    const ssize_t n = read(s->fd, s->text + s->size, room);
    if (n <= 0) return n < 0 && errno == EAGAIN;
    for (ssize_t i = 0; i < n; i++) screen_feed(s, s->text[s->size + (size_t)i]);
    s->size += (size_t)n;
    return true;
}

// A program that reads nothing, while what it prints is read, fails the test.
static inline void screen_type(screen *s, const char *text) {
    for (size_t left = strlen(text); left > 0;) {
        const ssize_t n = write(s->fd, text, left);
        if (n < 0 && errno != EAGAIN) fail_msg("nothing can be typed: %s", strerror(errno));
        if (n > 0) text += n, left -= (size_t)n;
        struct pollfd p = {.fd = s->fd, .events = POLLIN | POLLOUT};
        if (left && poll(&p, 1, SCREEN_PATIENCE_MS) != 1) fail_msg("'%s' is not read", text);
        if (left && p.revents & POLLIN && !screen_read(s)) fail_msg("ended before '%s'", text);
    }
}

// Waits until `text` is printed, after what was expected before.
static inline void screen_expect(screen *s, const char *text) {
    for (;;) {
        char *found = strstr(s->text + s->seen, text);
        if (found) {
            s->seen = (size_t)(found - s->text) + strlen(text);
            return;
        }
        struct pollfd p = {.fd = s->fd, .events = POLLIN};
        if (poll(&p, 1, SCREEN_PATIENCE_MS) != 1)
            fail_msg("waited for '%s' on '%s'", text, s->text + s->seen);
        if (!screen_read(s)) fail_msg("ended before '%s' came: '%s'", text, s->text + s->seen);
    }
}

// What is printed by now was expected.
static inline void screen_forget(screen *s) {
    struct pollfd p = {.fd = s->fd, .events = POLLIN};
    while (poll(&p, 1, 0) == 1 && screen_read(s)) continue;
    s->seen = s->size;
}

// Waits for the end. Exit code, or CLI_KILLED + signal.
static inline int screen_close(screen *s) {
    int status = 0;
    struct pollfd p = {.fd = s->fd, .events = POLLIN};
    do { // until the other end is closed
        if (poll(&p, 1, SCREEN_PATIENCE_MS) != 1) fail_msg("no end after '%s'", s->text);
    } while (screen_read(s));
    assert_int_equal(waitpid(s->pid, &status, 0), s->pid);
    close(s->fd);
    s->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : CLI_KILLED + WTERMSIG(status);
}

// For the teardown of each test: a test that failed leaves nothing running.
static inline int screen_teardown(void **state) {
    screen *s = *state;
    if (s->pid > 0) {
        kill(s->pid, SIGKILL);
        waitpid(s->pid, NULL, 0);
        if (s->fd >= 0) close(s->fd);
    }
    s->pid = 0;
    return 0;
}

#define SCREEN_TEST(function, screen)                                                              \
    cmocka_unit_test_prestate_setup_teardown(function, NULL, screen_teardown, screen)

// Types a command, and waits for its effect and the next prompt.
static inline void screen_tell(screen *s, const char *line, const char *want) {
    screen_type(s, line);
    screen_expect(s, want);
    screen_expect(s, "> ");
}

static inline void screen_leave(screen *s) {
    screen_type(s, "/exit\n");
    assert_int_equal(screen_close(s), 0);
}

#endif
