#include "cli/terminal.h"

#include "cli/look.h"
#include "cli/wrap.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_TEXT = 1024 };

// Blocked and polled, a signal needs no handler, and so no state that a handler could reach.
static sigset_t set_of(int number) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, number);
    return set;
}

static bool is_held(int number) {
    sigset_t held;
    return pthread_sigmask(SIG_BLOCK, NULL, &held) == 0 && sigismember(&held, number) == 1;
}

void qn_interrupt_hold(void) {
    const sigset_t set = set_of(SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

bool qn_interrupt_is_held(void) { return is_held(SIGINT); }

bool qn_interrupt_take(void) {
    const sigset_t set = set_of(SIGINT);
    if (!qn_interrupt_is_held()) return false;
    const struct timespec no_wait = {0};
    return sigtimedwait(&set, NULL, &no_wait) == SIGINT;
}

bool qn_interrupt_progress(void *unused, int64_t done, int64_t total) {
    (void)unused, (void)done, (void)total;
    return !qn_stop_is_wanted();
}

void qn_interrupt_die(void) {
    const sigset_t set = set_of(SIGINT);
    fflush(NULL);
    signal(SIGINT, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    raise(SIGINT);
}

void qn_hangup_hold(void) {
    const sigset_t set = set_of(SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

bool qn_hangup_is_pending(void) {
    sigset_t pending;
    return is_held(SIGHUP) && sigpending(&pending) == 0 && sigismember(&pending, SIGHUP) == 1;
}

// Where it is ignored the program goes on.
void qn_hangup_die(void) {
    const sigset_t set = set_of(SIGHUP);
    if (qn_hangup_is_pending()) pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

bool qn_stop_is_wanted(void) { return qn_interrupt_take() || qn_hangup_is_pending(); }

void qn_print_dim(const char *fmt, ...) {
    if (!qn_look_at(stderr).is_terminal) return;
    char text[MAX_TEXT];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    qn_print_entry(text, 0, true);
}

void qn_print_entry(const char *text, int indent, bool is_dim) {
    qn_line_wrap wrap;
    qn_wrap_init(&wrap, stderr);
    wrap.indent = indent;
    if (is_dim) qn_wrap_dim(&wrap, true);
    qn_wrap_add(&wrap, text, strlen(text));
    if (is_dim) qn_wrap_dim(&wrap, false);
    qn_wrap_end_line(&wrap);
}

void qn_print_line(const char *fmt, ...) {
    enum { INDENT = 2 };
    char text[MAX_TEXT];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (!qn_look_at(stderr).is_terminal) {
        fprintf(stderr, "%s\n", text); // in one piece: others may write to the same file
        return;
    }
    qn_print_entry(text, INDENT, false);
}

void qn_print_waiting(const char *fmt, ...) {
    const qn_look look = qn_look_at(stderr);
    if (!look.can_redraw) return;
    char text[MAX_TEXT];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    // On one row, or it could not be taken away.
    const int width = qn_look_width(stderr), max = width > 1 ? width - 1 : MAX_TEXT;
    fprintf(stderr, look.has_colour ? "\033[2m%.*s\033[0m" : "%.*s", max, text);
    fflush(stderr);
}

void qn_print_waited(void) {
    if (!qn_look_at(stderr).can_redraw) return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
}

void qn_print_input_wanted(const char *what) {
    if (isatty(STDIN_FILENO))
        qn_print_dim("waiting for %s on standard input; Ctrl-D at the beginning of a line ends it",
                     what);
}

void qn_print_slow_input(const char *what) {
    enum { SLOW_MS = 2000 };
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    if (poll(&input, 1, SLOW_MS) == 0)
        qn_print_dim("waiting for %s; '< /dev/null' goes without it", what);
}

qn_input qn_input_wait(void) {
    enum { LOOK_MS = 50 };
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    for (;;) {
        if (qn_interrupt_take()) return QN_INPUT_INTERRUPTED;
        if (qn_hangup_is_pending()) return QN_INPUT_HUNG_UP;
        const int n = poll(&input, 1, LOOK_MS);
        if (n < 0 && errno == EINTR) return QN_INPUT_SIGNALLED;
        if (n && qn_interrupt_take()) return QN_INPUT_INTERRUPTED; // it came before the input
        if (n) return QN_INPUT_READY;                              // reading reports the failure
    }
}

double qn_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
