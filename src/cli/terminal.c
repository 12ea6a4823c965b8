#include "cli/terminal.h"

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

double qn_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
