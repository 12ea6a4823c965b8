// Threads besides the caller's.
#ifndef QN_CORE_THREAD_H
#define QN_CORE_THREAD_H

#include <pthread.h>
#include <stdbool.h>

// Starts a thread in which no signal is handled that comes from outside: the program's handlers run
// in its own threads only, one at a time where it has one. Faults (SIGSEGV, SIGBUS, ...) are
// handled where they happen. False: out of memory or of threads.
bool qn_thread_start(pthread_t *out, void *(*fn)(void *arg), void *arg);

#endif
