#include "server/workers.h"

#include "core/mem.h"
#include "core/thread.h"

typedef struct qn_work {
    void (*fn)(qn_exchange *ex);
    qn_exchange *ex;
    struct qn_work *next;
} qn_work;

static qn_work *take(qn_workers *w) {
    pthread_mutex_lock(&w->lock);
    while (!w->first && !w->is_ending) pthread_cond_wait(&w->changed, &w->lock);
    qn_work *work = w->is_ending ? NULL : w->first;
    if (work) {
        w->first = work->next;
        if (!w->first) w->last = &w->first;
        w->n_waiting--;
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

static void join_all(qn_workers *w) {
    pthread_mutex_lock(&w->lock);
    w->is_ending = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    while (w->n_threads > 0) pthread_join(w->threads[--w->n_threads], NULL);
}

qn_status qn_workers_init(qn_workers *w, int n, size_t max_waiting, qn_err *err) {
    *w = (qn_workers){.max_waiting = max_waiting};
    if (pthread_mutex_init(&w->lock, NULL) != 0) return QN_NOMEM(err, "a lock");
    if (pthread_cond_init(&w->changed, NULL) != 0) {
        pthread_mutex_destroy(&w->lock);
        return QN_NOMEM(err, "a lock");
    }
    w->last = &w->first;
    w->is_open = true;
    while (w->n_threads < n && w->n_threads < QN_MAX_WORKERS) {
        if (!qn_thread_start(&w->threads[w->n_threads], work_on, w)) break;
        w->n_threads++;
    }
    if (w->n_threads == n) return QN_OK;
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
