#include "backends/cpu/walk.h"

#include "core/floats.h"

// A walker: where it is, and what it waits for.
typedef struct walker {
    const qn_walk *walk;
    int32_t finished; // calls known to be done
} walker;

// Pairs with the addition in run_piece: what the pieces wrote is visible afterwards.
static bool is_done(void *arg) {
    const walker *w = arg;
    return atomic_load(&w->walk->done[w->finished]) >= w->walk->binding->pieces[w->finished];
}

// Waits until all calls before `end` are done.
static void wait_for(walker *w, int32_t end) {
    for (; w->finished < end; w->finished++) qn_gate_wait(w->walk->gate, is_done, w);
}

// The first one to begin.
static void note_begin(qn_call_times *times) {
    int64_t none = 0;
    atomic_compare_exchange_strong(&times->begin, &none, qn_clock());
}

static void run_piece(qn_walk *walk, size_t call, int64_t piece, void *scratch) {
    const int64_t n = walk->binding->pieces[call];
    if (walk->times) note_begin(&walk->times[call]);
    // Other ranks wait, whatever becomes of the step.
    if (walk->tasks[call].gather || !walk->go_on || walk->go_on(walk->go_on_arg))
        walk->kernels[call]->run(&walk->tasks[call], piece, scratch);
    if (walk->times) walk->times[call].end = qn_clock(); // the last one to finish stays
    if (atomic_fetch_add(&walk->done[call], 1) + 1 == n) qn_gate_open(walk->gate);
}

// What is left of a walker's share.
static void run_share(qn_walk *walk, size_t call, int64_t index, void *scratch) {
    const int64_t n = walk->binding->pieces[call], n_shares = walk->n_shares;
    const int64_t first = n * index / n_shares, end = n * (index + 1) / n_shares;
    _Atomic int64_t *taken = &walk->taken[index * (int64_t)walk->n_calls + (int64_t)call];
    while (first + atomic_load_explicit(taken, memory_order_relaxed) < end) {
        const int64_t piece = first + atomic_fetch_add_explicit(taken, 1, memory_order_relaxed);
        if (piece >= end) return;
        run_piece(walk, call, piece, scratch);
    }
}

static void walk_calls(void *arg, int64_t index) {
    qn_walk *walk = arg;
    walker w = {.walk = walk, .finished = (int32_t)walk->first};
    const qn_floats floats = qn_floats_enter();
    void *scratch = walk->scratch + index * walk->scratch_bytes;
    for (size_t i = walk->first; i < walk->end; i++) {
        wait_for(&w, walk->binding->after[i] + 1);
        for (int64_t k = 0; k < walk->n_shares; k++)
            run_share(walk, i, (index + k) % walk->n_shares, scratch);
    }
    qn_floats_leave(&floats);
}

// The pool's lock orders this before the walkers.
static void reset_calls(qn_walk *walk, size_t first, size_t end) {
    for (int64_t k = 0; k < walk->n_shares; k++) {
        for (size_t i = first; i < end; i++)
            atomic_store_explicit(&walk->taken[(size_t)k * walk->n_calls + i], 0,
                                  memory_order_relaxed);
    }
    for (size_t i = first; i < end; i++)
        atomic_store_explicit(&walk->done[i], 0, memory_order_relaxed);
}

void qn_walk_reset(qn_walk *walk) {
    for (size_t i = 0; i < walk->n_calls && walk->times; i++)
        atomic_store_explicit(&walk->times[i].begin, 0, memory_order_relaxed);
}

void qn_walk_run(qn_walk *walk, qn_pool *pool, size_t first, size_t end) {
    reset_calls(walk, first, end);
    walk->first = first;
    walk->end = end;
    qn_pool_run(pool, walk->n_shares, walk_calls, walk);
}
