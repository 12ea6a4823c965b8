// Ranks that are threads of this process: each runs a function, and what they gather goes from one
// to the other through memory. A rank that gives up, or gathers something else than the others,
// ends the wait of all.
#ifndef QN_TESTS_RANKS_RIG_H
#define QN_TESTS_RANKS_RIG_H

#include "testing.h"

#include "backends/device.h"
#include "ir/ref.h"

#include <pthread.h>
#include <string.h>

enum { RANKS_MAX = 8 };

typedef struct rank_group {
    int n;
    pthread_mutex_t lock;
    pthread_cond_t turn;
    int n_here;     // ranks that have come to this meeting
    int64_t number; // of the meeting
    bool is_over;   // a rank has left, or they disagree
    const void *from[RANKS_MAX];
    size_t bytes[RANKS_MAX][RANKS_MAX]; // as each rank says
    int64_t n_gathers, n_bytes;         // so far; bytes that all gave
} rank_group;

typedef struct rank_place {
    rank_group *group;
    int rank;
    void (*run)(struct rank_place *place, void *arg);
    void *arg;
} rank_place;

static inline void group_init(rank_group *g, int n) {
    memset(g, 0, sizeof *g);
    g->n = n;
    assert_int_equal(pthread_mutex_init(&g->lock, NULL), 0);
    assert_int_equal(pthread_cond_init(&g->turn, NULL), 0);
}

static inline void group_deinit(rank_group *g) {
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->turn);
}

static inline void group_end(rank_group *g) {
    pthread_mutex_lock(&g->lock);
    g->is_over = true;
    pthread_cond_broadcast(&g->turn);
    pthread_mutex_unlock(&g->lock);
}

// Waits until all ranks are here; false: they will never be. The lock is held.
static inline bool group_meet(rank_group *g) {
    const int64_t number = g->number;
    if (++g->n_here == g->n) {
        g->n_here = 0;
        g->number++;
        pthread_cond_broadcast(&g->turn);
    }
    while (g->number == number && !g->is_over) pthread_cond_wait(&g->turn, &g->lock);
    return !g->is_over;
}

// As qn_gather: all ranks must say the same sizes.
static inline bool group_gather(void *arg, void *to, const void *from, const size_t *bytes) {
    const rank_place *place = arg;
    rank_group *g = place->group;
    unsigned char *at = to;
    pthread_mutex_lock(&g->lock);
    g->from[place->rank] = from;
    memcpy(g->bytes[place->rank], bytes, (size_t)g->n * sizeof *bytes);
    bool is_good = group_meet(g);
    for (int r = 0; r < g->n && is_good; r++)
        is_good = memcmp(g->bytes[r], bytes, (size_t)g->n * sizeof *bytes) == 0;
    for (int r = 0; r < g->n && is_good; r++) {
        if (bytes[r]) memmove(at, g->from[r], bytes[r]);
        at += bytes[r];
    }
    if (place->rank == 0) {
        g->n_gathers++;
        for (int r = 0; r < g->n; r++) g->n_bytes += (int64_t)bytes[r];
    }
    is_good = is_good && group_meet(g); // nobody changes what others still read
    g->is_over = g->is_over || !is_good;
    pthread_mutex_unlock(&g->lock);
    return is_good;
}

// The same for the interpreter.
static inline qn_status group_gather_floats(void *arg, float *to, const float *from,
                                            const int64_t *counts, qn_err *err) {
    const rank_place *place = arg;
    size_t bytes[RANKS_MAX];
    for (int r = 0; r < place->group->n; r++) bytes[r] = (size_t)counts[r] * sizeof *to;
    return group_gather(arg, to, from, bytes) ? QN_OK : QN_FAIL(err, STATE, "ranks disagree");
}

static inline qn_gather gather_of(rank_place *place) {
    return (qn_gather){
        .arg = place, .rank = place->rank, .n_ranks = place->group->n, .gather = group_gather};
}

static inline void *run_rank(void *arg) {
    rank_place *place = arg;
    place->run(place, place->arg);
    return NULL;
}

// Runs a function on every rank; args of one rank lie `arg_bytes` after those of the one before.
// False: they did not agree.
static inline bool run_ranks(rank_group *g, void (*run)(rank_place *place, void *arg), void *args,
                             size_t arg_bytes) {
    pthread_t threads[RANKS_MAX];
    rank_place places[RANKS_MAX];
    for (int r = 0; r < g->n; r++) {
        places[r] = (rank_place){
            .group = g, .rank = r, .run = run, .arg = (char *)args + (size_t)r * arg_bytes};
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &places[r]), 0);
    }
    for (int r = 0; r < g->n; r++) pthread_join(threads[r], NULL);
    return !g->is_over;
}

#endif
