// Calls of MPI that wait for all processes without a limit.
#include "ranks/mpi/mpi_group.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

typedef struct attempt {
    pthread_mutex_t lock; // of what follows
    pthread_cond_t over;
    bool is_over, is_left;
    int error;
    int (*join)(qn_ranks_group *group);
    qn_ranks_group *group;
} attempt;

static void destroy(attempt *a) {
    (void)pthread_cond_destroy(&a->over);
    (void)pthread_mutex_destroy(&a->lock);
    free(a);
}

static attempt *create(int (*join)(qn_ranks_group *group), qn_ranks_group *group) {
    attempt *a = calloc(1, sizeof *a);
    pthread_condattr_t attributes;
    if (!a) return NULL;
    a->join = join;
    a->group = group;
    (void)pthread_mutex_init(&a->lock, NULL);
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&a->over, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    return a;
}

// Whoever comes last frees what both share.
static void *run(void *arg) {
    attempt *a = arg;
    const int error = a->join(a->group);
    (void)pthread_mutex_lock(&a->lock);
    a->error = error;
    a->is_over = true;
    const bool is_left = a->is_left;
    (void)pthread_cond_signal(&a->over);
    (void)pthread_mutex_unlock(&a->lock);
    if (is_left) destroy(a);
    return NULL;
}

static struct timespec end_of(int64_t limit_ms) {
    enum { MS = 1000000, MAX_S = 1 << 30 };
    struct timespec end;
    (void)clock_gettime(CLOCK_MONOTONIC, &end);
    const int64_t s = limit_ms / 1000 < MAX_S ? limit_ms / 1000 : MAX_S;
    const int64_t ns = end.tv_nsec + limit_ms % 1000 * MS;
    end.tv_sec += (time_t)(s + ns / (1000 * MS));
    end.tv_nsec = (long)(ns % (1000 * MS));
    return end;
}

// Whether it was over in time.
static bool wait(attempt *a, int64_t limit_ms) {
    const struct timespec end = end_of(limit_ms);
    int error = 0;
    (void)pthread_mutex_lock(&a->lock);
    while (!a->is_over && error != ETIMEDOUT)
        error = pthread_cond_timedwait(&a->over, &a->lock, &end);
    const bool is_over = a->is_over;
    a->is_left = !is_over;
    (void)pthread_mutex_unlock(&a->lock);
    return is_over;
}

int qn_mpi_try(int (*join)(qn_ranks_group *group), qn_ranks_group *group, int64_t limit_ms) {
    pthread_t thread;
    attempt *a = create(join, group);
    if (!a) return QN_MPI_NO_MEMORY;
    if (pthread_create(&thread, NULL, run, a)) {
        destroy(a);
        return QN_MPI_NO_MEMORY;
    }
    if (!wait(a, limit_ms)) {
        (void)pthread_detach(thread);
        return QN_RANKS_LATE;
    }
    (void)pthread_join(thread, NULL);
    const int error = a->error;
    destroy(a);
    return error;
}
