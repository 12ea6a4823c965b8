#include "backends/cpu/bind.h"

#include "core/err.h"
#include "core/mem.h"
#include "ir/memplan.h"

#include <string.h>

struct qn_bindings {
    qn_bindings_opts opts;
    qn_binding *items; // (capacity)
    int32_t *living;   // (n_buffers) scratch of the memory plan
    int64_t *largest;  // (n_buffers) offsets for opts.max, which serve every smaller step too
    int64_t largest_bytes, largest_scratch, largest_shared;
    uint64_t clock;
    int64_t hits, misses;
    bool cached_matters; // some kernel cuts its pieces by the cached positions
};

static int64_t ladder(int64_t n, int64_t max) {
    int64_t top = 1;
    while (top < n && top < max) top *= 2;
    return top < max ? top : max;
}

qn_sizes qn_sizes_bound(qn_plan_policy policy, const qn_sizes *sizes, const qn_sizes *max) {
    if (policy != QN_PLANS_BUCKETED) return *sizes;
    return (qn_sizes){.rows = ladder(sizes->rows, max->rows),
                      .segs = ladder(sizes->segs, max->segs),
                      .outs = sizes->outs ? ladder(sizes->outs, max->outs) : 0,
                      .cached = ladder(sizes->cached, max->cached)};
}

static void sizes_symbols(int64_t symbols[QN_SYM_COUNT], const qn_sizes *sizes) {
    symbols[QN_SYM_ONE] = 1;
    symbols[QN_SYM_T] = sizes->rows;
    symbols[QN_SYM_B] = sizes->segs;
    symbols[QN_SYM_R] = sizes->outs;
}

static int64_t call_rows(const qn_plan_call *call, const int64_t symbols[QN_SYM_COUNT]) {
    return call->rows.n * symbols[call->rows.sym];
}

// --- order -----------------------------------------------------------------------------------

// A stretch of memory that a call touches: arena bytes, or a layer's state.
typedef struct touch {
    qn_place place;
    int64_t begin, end;
    bool is_written;
} touch;

static bool find_touch(touch *to, const qn_bindings_opts *opts, const qn_binding *binding,
                       const qn_plan_arg *arg, bool is_written) {
    *to = (touch){.place = arg->place, .is_written = is_written};
    if (arg->place == QN_PLACE_CACHE || arg->place == QN_PLACE_STATE) {
        to->begin = arg->index;
        to->end = arg->index + 1;
        to->is_written = true; // state is read and written through one argument
        return true;
    }
    if (arg->place != QN_PLACE_BUFFER) return false;
    int64_t symbols[QN_SYM_COUNT], bytes;
    sizes_symbols(symbols, &binding->sizes);
    if (!qn_buffer_bytes(&bytes, &opts->plan->buffers[arg->index], symbols)) return false;
    to->begin = binding->offsets[arg->index];
    to->end = to->begin + bytes;
    return true;
}

enum { MAX_TOUCHES = QN_MAX_IN + QN_MAX_OUT + QN_PLAN_TEMPS + 1 };

static int64_t shared_bytes(const qn_bindings_opts *opts, size_t call, const qn_sizes *sizes) {
    int64_t symbols[QN_SYM_COUNT];
    sizes_symbols(symbols, sizes);
    const int64_t rows = call_rows(&opts->plan->calls[call], symbols);
    const qn_kernel *kernel = opts->kernels[call];
    return kernel->shared ? kernel->shared(&opts->tasks[call], rows, sizes->cached) : 0;
}

static int list_touches(touch *to, const qn_bindings_opts *opts, const qn_binding *binding,
                        int32_t index) {
    const qn_plan_call *call = &opts->plan->calls[index];
    int n = 0;
    // All calls share the same memory.
    if (shared_bytes(opts, (size_t)index, &binding->sizes) > 0)
        to[n++] = (touch){.place = QN_PLACE_COUNT, .end = 1, .is_written = true};
    for (int i = 0; i < call->n_in; i++)
        n += find_touch(&to[n], opts, binding, &call->in[i], false);
    for (int i = 0; i < call->n_out; i++)
        n += find_touch(&to[n], opts, binding, &call->out[i], true);
    for (int i = 0; i < call->n_temp; i++)
        n += find_touch(&to[n], opts, binding, &call->temp[i], true);
    return n;
}

static bool conflicts(const touch *a, int n_a, const touch *b, int n_b) {
    for (int i = 0; i < n_a; i++) {
        for (int j = 0; j < n_b; j++) {
            if (a[i].place == b[j].place && (a[i].is_written || b[j].is_written) &&
                a[i].begin < b[j].end && b[j].begin < a[i].end)
                return true;
        }
    }
    return false;
}

// The last call before `call` that touches what it touches, or gathers from other ranks as it does:
// they meet in the order of the calls. Everything up to there is waited for, so the search ends at
// the first one.
static int32_t find_after(const qn_bindings_opts *opts, const qn_binding *binding, int32_t call) {
    touch mine[MAX_TOUCHES], theirs[MAX_TOUCHES];
    const qn_plan_call *calls = opts->plan->calls;
    const int n = list_touches(mine, opts, binding, call);
    for (int32_t i = call - 1; i >= 0; i--) {
        const int m = list_touches(theirs, opts, binding, i);
        if (conflicts(mine, n, theirs, m)) return i;
        if (qn_call_gathers(&calls[call]) && qn_call_gathers(&calls[i])) return i;
    }
    return -1;
}

// --- bindings --------------------------------------------------------------------------------

static bool bind(qn_bindings *b, qn_binding *to, const qn_sizes *sizes) {
    const qn_bindings_opts *opts = &b->opts;
    int64_t symbols[QN_SYM_COUNT];
    qn_memplan_report report;
    sizes_symbols(symbols, sizes);
    to->sizes = *sizes;
    if (!qn_memplan(&report, to->offsets, b->living, opts->plan, symbols)) return false;
    to->arena_bytes = report.peak;
    if (report.peak > b->largest_bytes) { // first fit is not quite monotone
        memcpy(to->offsets, b->largest, opts->plan->n_buffers * sizeof *to->offsets);
        to->arena_bytes = b->largest_bytes;
    }
    for (size_t i = 0; i < opts->plan->n_calls; i++) {
        const int64_t rows = call_rows(&opts->plan->calls[i], symbols);
        const qn_kernel *kernel = opts->kernels[i];
        to->pieces[i] = kernel->pieces(&opts->tasks[i], rows, sizes->cached);
        to->after[i] = find_after(opts, to, (int32_t)i);
    }
    return true;
}

static void free_items(qn_bindings *b) {
    for (int i = 0; b->items && i < b->opts.capacity; i++) {
        qn_free(b->items[i].offsets);
        qn_free(b->items[i].pieces);
        qn_free(b->items[i].after);
    }
    qn_free(b->items);
    qn_free(b->living);
    qn_free(b->largest);
}

static qn_status init_items(qn_bindings *b, qn_err *err) {
    const qn_plan *plan = b->opts.plan;
    b->items = qn_alloc((size_t)b->opts.capacity, sizeof *b->items);
    b->living = qn_alloc(plan->n_buffers + 1, sizeof *b->living);
    b->largest = qn_alloc(plan->n_buffers + 1, sizeof *b->largest);
    bool ok = b->items && b->living && b->largest;
    for (int i = 0; ok && i < b->opts.capacity; i++) {
        qn_binding *item = &b->items[i];
        item->offsets = qn_alloc(plan->n_buffers + 1, sizeof *item->offsets);
        item->pieces = qn_alloc(plan->n_calls + 1, sizeof *item->pieces);
        item->after = qn_alloc(plan->n_calls + 1, sizeof *item->after);
        ok = item->offsets && item->pieces && item->after;
    }
    return ok ? QN_OK : QN_NOMEM(err, "plan bindings");
}

// The largest step: what the arena and the scratch must hold.
static qn_status measure(qn_bindings *b, qn_err *err) {
    const qn_bindings_opts *opts = &b->opts;
    int64_t symbols[QN_SYM_COUNT];
    qn_memplan_report report;
    sizes_symbols(symbols, &opts->max);
    if (!qn_memplan(&report, b->largest, b->living, opts->plan, symbols))
        return QN_FAIL(err, LIMIT, "a step of %lld rows, %lld of them wanted: sizes overflow",
                       (long long)opts->max.rows, (long long)opts->max.outs);
    b->largest_bytes = report.peak;
    for (size_t i = 0; i < opts->plan->n_calls; i++) {
        const int64_t rows = call_rows(&opts->plan->calls[i], symbols);
        const int64_t bytes =
            opts->kernels[i]->scratch ? opts->kernels[i]->scratch(&opts->tasks[i], rows) : 0;
        b->largest_scratch = qn_max(b->largest_scratch, bytes);
        b->largest_shared = qn_max(b->largest_shared, shared_bytes(opts, i, &opts->max));
    }
    return QN_OK;
}

// Whether any call has other pieces for many cached positions than for few.
static bool find_cached_matters(const qn_bindings_opts *opts) {
    int64_t symbols[QN_SYM_COUNT];
    sizes_symbols(symbols, &opts->max);
    for (size_t i = 0; i < opts->plan->n_calls; i++) {
        const int64_t rows = call_rows(&opts->plan->calls[i], symbols);
        const qn_kernel *kernel = opts->kernels[i];
        if (kernel->pieces(&opts->tasks[i], rows, 1) !=
                kernel->pieces(&opts->tasks[i], rows, opts->max.cached) ||
            kernel->pieces(&opts->tasks[i], 1, 1) !=
                kernel->pieces(&opts->tasks[i], 1, opts->max.cached))
            return true;
    }
    return false;
}

qn_status qn_bindings_create(qn_bindings **out, const qn_bindings_opts *opts, qn_err *err) {
    qn_bindings *b = qn_alloc(1, sizeof *b);
    if (!b) return QN_NOMEM(err, "plan bindings");
    b->opts = *opts;
    if (opts->policy == QN_PLANS_DYNAMIC) b->opts.capacity = 1;
    if (b->opts.capacity < 1) b->opts.capacity = 1;
    qn_status status = init_items(b, err);
    if (!status) status = measure(b, err);
    if (!status) b->cached_matters = find_cached_matters(&b->opts);
    if (status)
        qn_bindings_destroy(b);
    else
        *out = b;
    return status;
}

void qn_bindings_destroy(qn_bindings *bindings) {
    if (!bindings) return;
    free_items(bindings);
    qn_free(bindings);
}

static bool same_sizes(const qn_sizes *a, const qn_sizes *b) {
    return a->rows == b->rows && a->segs == b->segs && a->outs == b->outs && a->cached == b->cached;
}

static bool is_within(const qn_sizes *sizes, const qn_sizes *max) {
    return sizes->rows <= max->rows && sizes->segs <= max->segs && sizes->outs <= max->outs &&
           sizes->cached <= max->cached;
}

const qn_binding *qn_bindings_get(qn_bindings *b, const qn_sizes *sizes) {
    if (!is_within(sizes, &b->opts.max)) return NULL; // there is no memory for them
    qn_sizes want = qn_sizes_bound(b->opts.policy, sizes, &b->opts.max);
    // Pieces grow with the powers of two, whatever the policy: else each step would be bound anew.
    want.cached =
        b->cached_matters ? ladder(sizes->cached, b->opts.max.cached) : b->opts.max.cached;
    qn_binding *oldest = &b->items[0];
    b->clock++;
    for (int i = 0; i < b->opts.capacity; i++) {
        qn_binding *item = &b->items[i];
        if (item->used && same_sizes(&item->sizes, &want)) {
            item->used = b->clock;
            b->hits++;
            return item;
        }
        if (item->used < oldest->used) oldest = item;
    }
    b->misses++;
    oldest->used = 0;
    if (!bind(b, oldest, &want)) return NULL; // sizes were measured at creation
    oldest->made = oldest->used = b->clock;
    return oldest;
}

void qn_bindings_counts(const qn_bindings *bindings, int64_t *hits, int64_t *misses) {
    *hits = bindings->hits;
    *misses = bindings->misses;
}

int64_t qn_bindings_arena(const qn_bindings *bindings) { return bindings->largest_bytes; }
int64_t qn_bindings_scratch(const qn_bindings *bindings) { return bindings->largest_scratch; }
int64_t qn_bindings_shared(const qn_bindings *bindings) { return bindings->largest_shared; }
