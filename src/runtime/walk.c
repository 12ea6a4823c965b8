#include "runtime/walk.h"

#include "core/floats.h"

// A walker: where it is, and what it waits for.
typedef struct walker {
    const qn_walk *walk;
    int32_t finished; // calls known to be done
} walker;

// Pairs with the addition in run_pieces: what the pieces wrote is visible afterwards.
static bool is_done(void *arg) {
    const walker *w = arg;
    return atomic_load(&w->walk->done[w->finished]) >= w->walk->binding->pieces[w->finished];
}

// Waits until all calls before `end` are done.
static void wait_for(walker *w, int32_t end) {
    for (; w->finished < end; w->finished++) qn_gate_wait(w->walk->gate, is_done, w);
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
        if (atomic_fetch_add(&walk->done[call], 1) + 1 == n) qn_gate_open(walk->gate);
    }
}

static void walk_calls(void *arg, int64_t index) {
    qn_walk *walk = arg;
    walker w = {.walk = walk};
    const qn_floats floats = qn_floats_enter();
    void *scratch = walk->scratch + index * walk->scratch_bytes;
    for (size_t i = 0; i < walk->n_calls; i++) {
        wait_for(&w, walk->binding->after[i] + 1);
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
