#include "core/thread.h"

#include <signal.h>

bool qn_thread_start(pthread_t *out, void *(*fn)(void *arg), void *arg) {
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&blocked, faults[i]);
    // A thread inherits the mask of its creator.
    if (pthread_sigmask(SIG_SETMASK, &blocked, &before) != 0) return false;
    const bool is_started = pthread_create(out, NULL, fn, arg) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return is_started;
}
