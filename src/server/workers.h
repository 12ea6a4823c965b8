// Threads that work on requests: parsing, rendering, tokenising, compiling grammars, encoding
// images. None of that may hold up a socket or a step. Work that waits for something long, as for a
// model that is being opened, says so, and another thread takes its place meanwhile.
#ifndef QN_SERVER_WORKERS_H
#define QN_SERVER_WORKERS_H

#include "server/exchange.h"

enum { QN_MAX_WORKERS = 128 }; // with those that wait

// Caller storage.
typedef struct qn_workers {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct qn_work *first, **last; // that waits
    size_t n_waiting, max_waiting;
    pthread_t threads[QN_MAX_WORKERS]; // (n_slots)
    bool is_over[QN_MAX_WORKERS];      // this thread has ended: its slot is free once it is joined
    int n_slots, n_threads;            // slots used so far; threads that run
    int n_wanted, n_paused;            // threads that shall work; that wait for something long
    bool is_ending;
    bool is_open; // constant while there are threads
} qn_workers;

QN_MUST_CHECK qn_status qn_workers_init(qn_workers *workers, int n, size_t max_waiting,
                                        qn_err *err);
// Takes no more, waits for the work that has begun, and calls give_up(ex) for each that waits.
void qn_workers_stop(qn_workers *workers, void (*give_up)(qn_exchange *ex));
// After qn_workers_stop, and when nobody adds any more.
void qn_workers_deinit(qn_workers *workers);
// Calls fn(ex) on a thread of its own; false: too much waits already, or no memory.
bool qn_workers_add(qn_workers *workers, void (*fn)(qn_exchange *ex), qn_exchange *ex);

// Around a long wait inside of work. False: too many wait already, and nothing is to be resumed.
QN_MUST_CHECK bool qn_workers_pause(qn_workers *workers);
void qn_workers_resume(qn_workers *workers);

#endif
