#include "runtime/walk.h"

#include "core/floats.h"

#include <sched.h>
#include <time.h>

enum { SPIN_NS = 20000, SLEEP_NS = 20000, SPINS_PER_LOOK = 64 };

int64_t qn_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

// Pairs with the release in run_pieces: what the pieces wrote is visible afterwards.
static bool is_done(const qn_walk *walk, int32_t call) {
    return atomic_load_explicit(&walk->done[call], memory_order_acquire) >=
           walk->binding->pieces[call];
}

// Waits until all calls before `end` are done; *finished counts those known to be.
static void wait_for(const qn_walk *walk, int32_t *finished, int32_t end) {
    int64_t began = 0;
    int spins = 0;
    while (*finished < end) {
        if (is_done(walk, *finished)) {
            (*finished)++;
            continue;
        }
        pause_briefly();
        if (++spins % SPINS_PER_LOOK) continue;
        const int64_t now = qn_clock();
        if (!began) began = now;
        if (now - began < SPIN_NS) continue;
        nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
    }
}

static void run_pieces(qn_walk *walk, size_t call, void *scratch) {
    const int64_t n = walk->binding->pieces[call];
    while (atomic_load_explicit(&walk->taken[call], memory_order_relaxed) < n) {
        const int64_t piece =
            atomic_fetch_add_explicit(&walk->taken[call], 1, memory_order_relaxed);
        if (piece >= n) return;
        if (walk->times && piece == 0) walk->times[call].begin = qn_clock();
        walk->kernels[call]->run(&walk->tasks[call], piece, scratch);
        if (walk->times) walk->times[call].end = qn_clock(); // the last one to finish stays
        atomic_fetch_add_explicit(&walk->done[call], 1, memory_order_release);
    }
}

static void walk_calls(void *arg, int64_t walker) {
    qn_walk *walk = arg;
    const qn_floats floats = qn_floats_enter();
    void *scratch = walk->scratch + walker * walk->scratch_bytes;
    int32_t finished = 0;
    for (size_t i = 0; i < walk->n_calls; i++) {
        wait_for(walk, &finished, walk->binding->after[i] + 1);
        run_pieces(walk, i, scratch);
    }
    qn_floats_leave(&floats);
}

void qn_walk_run(qn_walk *walk, qn_pool *pool) {
    for (size_t i = 0; i < walk->n_calls; i++) { // the pool's lock orders this before the walkers
        atomic_store_explicit(&walk->taken[i], 0, memory_order_relaxed);
        atomic_store_explicit(&walk->done[i], 0, memory_order_relaxed);
    }
    qn_pool_run(pool, qn_pool_threads(pool), walk_calls, walk);
}
