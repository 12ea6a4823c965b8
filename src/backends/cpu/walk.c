#include "backends/cpu/walk.h"

#include "core/floats.h"
#include "core/mem.h"

// A walker: where it is, and what it waits for.
typedef struct walker {
    qn_walk *walk;
    qn_pool *helpers; // NULL: it is alone
    int64_t index;
    qn_pool_span near; // shares of the threads of its node
    size_t wanted;     // calls that must be done
} walker;

// Pairs with `advance`: what the pieces wrote is visible afterwards.
static bool is_ready(void *arg) {
    const walker *w = arg;
    return atomic_load(&w->walk->front) >= w->wanted;
}

// Whether the first `n` calls are done. Only the thread that began the run sleeps here; others
// leave, and are called again.
static bool wait_for(walker *w, size_t n) {
    w->wanted = n;
    if (w->index > 0) return qn_wait_briefly(is_ready, w);
    qn_gate_wait(w->walk->gate, is_ready, w);
    return true;
}

// Moves the front over calls that are done, and wakes as many threads as find a piece behind it.
// Sequentially consistent: of two that complete calls side by side, one sees both.
static void advance(qn_walk *walk, qn_pool *helpers) {
    const int64_t *pieces = walk->binding->pieces;
    size_t front = atomic_load(&walk->front);
    bool has_moved = false;
    while (front < walk->end && atomic_load(&walk->done[front]) >= pieces[front]) {
        if (!atomic_compare_exchange_strong(&walk->front, &front, front + 1)) continue;
        front++;
        has_moved = true;
    }
    if (!has_moved) return;
    if (front == walk->end || pieces[front] > qn_pool_awake_workers(helpers))
        qn_gate_open(walk->gate);
    if (front < walk->end) qn_pool_call(helpers, pieces[front]);
}

// The first one to begin.
static void note_begin(qn_call_times *times) {
    int64_t none = 0;
    atomic_compare_exchange_strong(&times->begin, &none, qn_clock());
}

static void run_piece(qn_walk *walk, size_t call, int64_t piece, void *scratch) {
    if (walk->times) note_begin(&walk->times[call]);
    // Other ranks wait, whatever becomes of the step.
    if (walk->tasks[call].gather || !walk->go_on || walk->go_on(walk->go_on_arg))
        walk->kernels[call]->run(&walk->tasks[call], piece, scratch);
    if (walk->times) walk->times[call].end = qn_clock(); // the last one to finish stays
}

// What is left of a share; returns how many pieces.
static int64_t run_share(qn_walk *walk, size_t call, int64_t index, void *scratch) {
    const int64_t n = walk->binding->pieces[call], n_shares = walk->n_shares;
    const int64_t first = n * index / n_shares, end = n * (index + 1) / n_shares;
    _Atomic int64_t *taken = &walk->taken[call * (size_t)n_shares + (size_t)index];
    int64_t n_run = 0;
    while (first + atomic_load_explicit(taken, memory_order_relaxed) < end) {
        const int64_t piece = first + atomic_fetch_add_explicit(taken, 1, memory_order_relaxed);
        if (piece >= end) break;
        run_piece(walk, call, piece, scratch);
        n_run++;
    }
    return n_run;
}

// The shares in the order in which a walker takes them: its own, those of its node, all others.
static int64_t share_at(const walker *w, int64_t k) {
    const int64_t first = w->near.first, n_near = w->near.end - first, n = w->walk->n_shares;
    const int64_t own = (w->index % n - first + n) % n; // of another node: the caller of a job
    if (k < n_near) return first + ((own < n_near ? own : 0) + k) % n_near;
    return (first + k) % n;
}

// Pieces are counted together: every addition moves a line of the cache from core to core.
static void run_call(const walker *w, size_t call) {
    qn_walk *walk = w->walk;
    void *scratch = walk->scratch + w->index * walk->scratch_bytes;
    int64_t n = 0;
    for (int64_t k = 0; k < walk->n_shares; k++)
        n += run_share(walk, call, share_at(w, k), scratch);
    if (n && atomic_fetch_add(&walk->done[call], n) + n == walk->binding->pieces[call])
        advance(walk, w->helpers);
}

static bool walk_calls(walker *w) {
    const qn_walk *walk = w->walk;
    bool has_called = w->index == 0;
    size_t front = atomic_load(&walk->front);
    for (size_t i = front; i<walk->end; i = i + 1> front ? i + 1 : front) {
        if (!wait_for(w, (size_t)(walk->binding->after[i] + 1))) return false;
        if (!has_called) qn_pool_call(w->helpers, walk->binding->pieces[i]);
        has_called = true;
        run_call(w, i);
        front = atomic_load(&walk->front);
    }
    return w->index > 0 || wait_for(w, walk->end);
}

static bool join_walk(void *arg, qn_pool *helpers, int index) {
    qn_walk *walk = arg;
    walker w = {.walk = walk, .helpers = helpers, .index = index};
    w.near = helpers ? qn_pool_near(helpers, index) : (qn_pool_span){0, (int)walk->n_shares};
    const qn_floats floats = qn_floats_enter();
    const bool is_through = walk_calls(&w);
    qn_floats_leave(&floats);
    return is_through;
}

// The pool orders this before the walkers.
static void reset_calls(qn_walk *walk, size_t first, size_t end) {
    const size_t n_shares = (size_t)walk->n_shares;
    for (size_t i = first * n_shares; i < end * n_shares; i++)
        atomic_store_explicit(&walk->taken[i], 0, memory_order_relaxed);
    for (size_t i = first; i < end; i++)
        atomic_store_explicit(&walk->done[i], 0, memory_order_relaxed);
}

void qn_walk_reset(qn_walk *walk) {
    for (size_t i = 0; i < walk->n_calls && walk->times; i++)
        atomic_store_explicit(&walk->times[i].begin, 0, memory_order_relaxed);
}

void qn_walk_run(qn_walk *walk, qn_pool *pool, size_t first, size_t end) {
    int64_t most = 1;
    reset_calls(walk, first, end);
    for (size_t i = first; i < end; i++) most = qn_max(most, walk->binding->pieces[i]);
    walk->end = end;
    atomic_store(&walk->front, first);
    advance(walk, NULL); // over calls without pieces
    qn_pool_join(pool, most, join_walk, walk);
}
