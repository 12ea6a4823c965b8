#include "cli/terminal.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

// Blocked and polled, the signal needs no handler, and so no state that a handler could reach.
static sigset_t interrupt_set(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    return set;
}

void qn_interrupt_hold(void) {
    const sigset_t set = interrupt_set();
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

bool qn_interrupt_take(void) {
    const sigset_t set = interrupt_set();
    sigset_t held;
    if (pthread_sigmask(SIG_BLOCK, NULL, &held) != 0 || !sigismember(&held, SIGINT)) return false;
    const struct timespec no_wait = {0};
    return sigtimedwait(&set, NULL, &no_wait) == SIGINT;
}

void qn_interrupt_release(void) {
    const sigset_t set = interrupt_set();
    while (qn_interrupt_take()) continue;
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

void qn_print_dim(const char *fmt, ...) {
    if (!isatty(STDERR_FILENO)) return;
    fputs("\033[2m", stderr);
    va_list args;
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputs("\033[0m\n", stderr);
}

void qn_print_waiting(const char *fmt, ...) {
    if (!isatty(STDERR_FILENO)) return;
    fputs("\033[2m", stderr);
    va_list args;
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputs("\033[0m", stderr);
    fflush(stderr);
}

void qn_print_waited(void) {
    if (!isatty(STDERR_FILENO)) return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
}

void qn_print_input_wanted(const char *what) {
    if (isatty(STDIN_FILENO))
        qn_print_dim("waiting for %s on standard input; Ctrl-D at the beginning of a line ends it",
                     what);
}

qn_input qn_input_wait(void) {
    enum { LOOK_MS = 50 };
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    for (;;) {
        if (qn_interrupt_take()) return QN_INPUT_INTERRUPTED;
        const int n = poll(&input, 1, LOOK_MS);
        if (n < 0 && errno == EINTR) return QN_INPUT_SIGNALLED;
        if (n) return QN_INPUT_READY; // a failure is told by reading
    }
}

double qn_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
