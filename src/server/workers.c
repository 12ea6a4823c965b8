#include "server/workers.h"

#include "core/mem.h"
#include "core/thread.h"

typedef struct qn_work {
    void (*fn)(qn_exchange *ex);
    qn_exchange *ex;
    struct qn_work *next;
} qn_work;

// --- threads -------------------------------------------------------------------------------------

// With the lock: more threads work than shall, as some that waited came back.
static bool is_too_many(const qn_workers *w) { return w->n_threads - w->n_paused > w->n_wanted; }

// NULL: the thread ends.
static qn_work *take(qn_workers *w) {
    pthread_mutex_lock(&w->lock);
    while (!w->first && !w->is_ending && !is_too_many(w)) pthread_cond_wait(&w->changed, &w->lock);
    qn_work *work = w->is_ending || is_too_many(w) ? NULL : w->first;
    if (work) {
        w->first = work->next;
        if (!w->first) w->last = &w->first;
        w->n_waiting--;
    } else {
        w->n_threads--;
        for (int i = 0; i < w->n_slots; i++)
            w->is_over[i] |= pthread_equal(w->threads[i], pthread_self()) != 0;
    }
    pthread_mutex_unlock(&w->lock);
    return work;
}

static void *work_on(void *arg) {
    qn_workers *w = arg;
    for (qn_work *work; (work = take(w)) != NULL;) {
        work->fn(work->ex);
        qn_free(work);
    }
    return NULL;
}

// With the lock: one thread more. A slot whose thread has ended is used again.
static bool add_thread(qn_workers *w) {
    int i = 0;
    while (i < w->n_slots && !w->is_over[i]) i++;
    if (i == QN_MAX_WORKERS) return false;
    if (i < w->n_slots)
        pthread_join(w->threads[i], NULL); // it has left the lock, or never takes it
    const bool is_started = qn_thread_start(&w->threads[i], work_on, w);
    w->is_over[i] = false;
    if (i == w->n_slots)
        w->n_slots += is_started;
    else if (!is_started) // the last slot fills the hole
        w->threads[i] = w->threads[w->n_slots - 1], w->is_over[i] = w->is_over[w->n_slots - 1],
        w->n_slots--;
    w->n_threads += is_started;
    return is_started;
}

bool qn_workers_pause(qn_workers *w) {
    if (!w->is_open) return true; // there are no threads yet: nobody is held up
    pthread_mutex_lock(&w->lock);
    w->n_paused++;
    const bool is_held = w->n_threads - w->n_paused < w->n_wanted && !w->is_ending;
    const bool is_fine = !is_held || add_thread(w);
    w->n_paused -= !is_fine;
    pthread_mutex_unlock(&w->lock);
    return is_fine;
}

void qn_workers_resume(qn_workers *w) {
    if (!w->is_open) return;
    pthread_mutex_lock(&w->lock);
    w->n_paused--;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

// --- life ----------------------------------------------------------------------------------------

static void join_all(qn_workers *w) {
    pthread_mutex_lock(&w->lock);
    w->is_ending = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < w->n_slots; i++) pthread_join(w->threads[i], NULL);
    w->n_slots = 0;
}

qn_status qn_workers_init(qn_workers *w, int n, size_t max_waiting, qn_err *err) {
    *w = (qn_workers){.max_waiting = max_waiting, .n_wanted = n};
    if (pthread_mutex_init(&w->lock, NULL) != 0) return QN_NOMEM(err, "a lock");
    if (pthread_cond_init(&w->changed, NULL) != 0) {
        pthread_mutex_destroy(&w->lock);
        return QN_NOMEM(err, "a lock");
    }
    w->last = &w->first;
    w->is_open = true;
    bool is_fine = true;
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < n && is_fine; i++) is_fine = add_thread(w);
    pthread_mutex_unlock(&w->lock);
    if (is_fine) return QN_OK;
    qn_workers_deinit(w);
    return QN_NOMEM(err, "a thread");
}

void qn_workers_stop(qn_workers *w, void (*give_up)(qn_exchange *ex)) {
    if (!w->is_open) return;
    join_all(w);
    while (w->first) {
        qn_work *work = w->first;
        w->first = work->next;
        give_up(work->ex);
        qn_free(work);
    }
    w->last = &w->first;
}

void qn_workers_deinit(qn_workers *w) {
    if (!w->is_open) return;
    join_all(w);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    *w = (qn_workers){0};
}

bool qn_workers_add(qn_workers *w, void (*fn)(qn_exchange *ex), qn_exchange *ex) {
    qn_work *work = qn_alloc(1, sizeof *work);
    if (!work) return false;
    *work = (qn_work){fn, ex, NULL};
    pthread_mutex_lock(&w->lock);
    const bool is_taken = w->n_waiting < w->max_waiting && !w->is_ending;
    if (is_taken) {
        *w->last = work;
        w->last = &work->next;
        w->n_waiting++;
        pthread_cond_signal(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    if (!is_taken) qn_free(work);
    return is_taken;
}
