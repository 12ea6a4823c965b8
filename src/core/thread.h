// Threads besides the caller's.
#ifndef QN_CORE_THREAD_H
#define QN_CORE_THREAD_H

#include <pthread.h>
#include <stdbool.h>

// Starts a thread in which no signal is handled that comes from outside: the program's handlers run
// in its own threads only, one at a time where it has one. Faults (SIGSEGV, SIGBUS, ...) are
// handled where they happen. False: out of memory or of threads.
bool qn_thread_start(pthread_t *out, void *(*fn)(void *arg), void *arg);

// Between two looks at what another thread changes: leaves the core to others for some cycles.
static inline void qn_thread_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory"); // most of these processors take `yield` for nothing
#endif
}

#endif
