// Plans on a GPU: operands have fixed addresses, a step is one copy of its message and a launch for
// each call. Sizes that come again become a graph of launches, which costs one call.
#include "backends/cuda/cuda_program.h"

#include "core/mem.h"

#include <string.h>

// --- steps ---------------------------------------------------------------------------------------

// The address on the card of what lies in the message.
static const void *moved(const qn_cuda_program *x, const int32_t *message, const void *at) {
    if (!at) return NULL;
    const ptrdiff_t offset = (const unsigned char *)at - (const unsigned char *)message;
    return x->on_card + QN_CUDA_STEP_BYTES + offset;
}

static void write_message(qn_cuda_program *x, const int32_t *message, size_t bytes) {
    qn_step s = x->step;
    s.ids = moved(x, message, s.ids);
    s.pos = moved(x, message, s.pos);
    s.row_seg = moved(x, message, s.row_seg);
    s.seg_row = moved(x, message, s.seg_row);
    s.seg_past = moved(x, message, s.seg_past);
    s.seg_pages = moved(x, message, s.seg_pages);
    s.seg_slot = moved(x, message, s.seg_slot);
    s.seg_accept = moved(x, message, s.seg_accept);
    s.seg_commit = moved(x, message, s.seg_commit);
    s.seg_adapter = moved(x, message, s.seg_adapter);
    s.row_out = moved(x, message, s.row_out);
    s.out_full = moved(x, message, s.out_full);
    s.extra_row = moved(x, message, s.extra_row);
    s.extra = moved(x, message, s.extra);
    s.copies = NULL; // done before the step
    s.n_copies = 0;
    memcpy(x->message, &s, sizeof s);
    memcpy(x->message + QN_CUDA_STEP_BYTES, message, bytes);
    x->used_bytes = QN_CUDA_STEP_BYTES + bytes;
}

bool qn_cuda_begin(qn_program *program, int i, int32_t *message, const qn_sizes *sizes) {
    qn_cuda_program *x = qn_cuda_program_own(program);
    qn_cuda_device *d = qn_cuda_card_of(x);
    qn_cuda_plan *p = &x->plans[i];
    qn_step step;
    qn_step_view(&step, message);
    if (!p->plan || step.n_rows > x->max.rows || step.n_segs > x->max.segs ||
        step.n_out > x->max.outs || sizes->cached > x->max.cached)
        return false;
    // The copies are the last of a message, and stay here.
    const size_t bytes = (size_t)((const unsigned char *)step.copies - (unsigned char *)message);
    pthread_mutex_lock(&d->lock);
    // The message of the last step may still be on its way.
    const bool has_room = !d->error && qn_cuda_check(d, d->api->wait(d->stream), "waiting") &&
                          qn_cuda_make_room(x, QN_CUDA_STEP_BYTES + bytes);
    const bool has_failed = d->error != 0; // which is asked for after the step
    pthread_mutex_unlock(&d->lock);
    if (!has_room && !has_failed) return false;
    x->now = p;
    x->step = step;
    x->n_steps++;
    x->cached = qn_cuda_round_cached(sizes->cached);
    if (has_room) write_message(x, message, bytes);
    const int64_t symbols[QN_SYM_COUNT] = {1, step.n_rows, step.n_segs, step.n_out};
    for (size_t c = 0; c < p->plan->n_calls; c++) {
        qn_cuda_task *task = &p->calls[c].task;
        task->step = (const qn_step *)(const void *)x->on_card;
        task->rows = p->calls[c].rows.n * symbols[p->calls[c].rows.sym];
        task->segs = step.n_segs;
        task->cached = x->cached;
    }
    for (size_t k = 0; k < p->n_given; k++) p->given[k].host = NULL;
    return true;
}

bool qn_cuda_give(qn_program *program, const char *input, const float *rows) {
    qn_cuda_plan *p = qn_cuda_program_own(program)->now;
    bool is_found = false;
    for (size_t k = 0; p && k < p->n_given; k++) {
        if (strcmp(p->given[k].leaf->name, input) != 0) continue;
        p->given[k].host = rows;
        is_found = true;
    }
    return is_found;
}

// With the lock: the message and given rows.
static void send_inputs(qn_cuda_program *x) {
    qn_cuda_device *d = qn_cuda_card_of(x);
    const int64_t symbols[QN_SYM_COUNT] = {1, x->step.n_rows, x->step.n_segs, x->step.n_out};
    if (!d->error)
        (void)qn_cuda_check(d, d->api->put(d->stream, x->on_card, x->message, x->used_bytes),
                            "sending a step");
    for (size_t k = 0; k < x->now->n_given && !d->error; k++) {
        const qn_cuda_given *g = &x->now->given[k];
        const size_t bytes = (size_t)(g->rows.n * symbols[g->rows.sym] * g->row_bytes);
        if (g->host && bytes)
            (void)qn_cuda_check(d, d->api->put(d->stream, x->fixed + g->offset, g->host, bytes),
                                "sending rows");
    }
}

// Before a call, and after the last; of a plan with more calls than marks, of the first ones.
static void take_time(const qn_cuda_program *x, size_t call) {
    qn_cuda_device *d = qn_cuda_card_of(x);
    if (x->is_timed && !d->error && call < QN_CUDA_MARKS)
        (void)qn_cuda_check(d, d->api->mark(d->stream, (int)call), "taking times");
}

void qn_cuda_launch_call(const qn_cuda_program *x, size_t i) {
    qn_cuda_device *d = qn_cuda_card_of(x);
    const qn_cuda_call *call = &x->now->calls[i];
    take_time(x, i);
    if (!d->error && call->task.rows > 0)
        (void)qn_cuda_check(d, d->api->launch(d->stream, call->kernel, &call->task),
                            qn_cuda_backends[0].kernels[call->kernel]);
}

// Calls one after the other; those that read experts as these come. False: it was stopped.
static bool launch_calls(qn_cuda_program *x) {
    const qn_cuda_plan *p = x->now;
    const qn_cuda_paged *paged = p->paged, *end = paged + p->n_paged;
    for (size_t i = 0; i < p->plan->n_calls; i++) {
        if (x->go_on && !x->go_on(x->go_on_arg)) return false;
        if (paged == end || i != paged->first) {
            qn_cuda_launch_call(x, i);
            continue;
        }
        if (!qn_cuda_run_experts(x, paged)) return false;
        i = paged++->end - 1;
    }
    take_time(x, p->plan->n_calls);
    return true;
}

static bool launch_all(qn_cuda_program *x) {
    qn_cuda_device *d = qn_cuda_card_of(x);
    const bool is_whole = launch_calls(x);
    if (!x->begun) return is_whole;
    if (!d->error) (void)qn_cuda_check(d, d->api->wait(d->stream), "computing experts");
    return qn_cuda_end_experts(x) && is_whole;
}

// The binding of the step's sizes; the one that was used longest ago makes room for a new one.
static qn_cuda_binding *find_binding(qn_cuda_program *x) {
    qn_cuda_plan *p = x->now;
    qn_cuda_device *d = qn_cuda_card_of(x);
    qn_cuda_binding *oldest = &p->bindings[0];
    const qn_sizes want = {x->step.n_rows, x->step.n_segs, x->step.n_out, x->cached};
    for (int i = 0; i < p->capacity; i++) {
        qn_cuda_binding *b = &p->bindings[i];
        if (b->last_use && memcmp(&b->sizes, &want, sizeof want) == 0) return b;
        if (b->last_use < oldest->last_use) oldest = b;
    }
    if (oldest->graph) d->api->forget(d->stream, oldest->graph);
    *oldest = (qn_cuda_binding){.sizes = want};
    return oldest;
}

// Sizes that come for the second time are recorded. Where that cannot be, calls are launched.
static void record_graph(qn_cuda_program *x, qn_cuda_binding *b) {
    qn_cuda_device *d = qn_cuda_card_of(x);
    qn_cuda_graph *graph = NULL;
    if (d->error || d->api->record(d->stream)) return;
    const bool is_whole = launch_all(x);
    if (d->api->record_end(&graph, d->stream) || !graph) return;
    if (is_whole && !d->error)
        b->graph = graph;
    else
        d->api->forget(d->stream, graph);
}

void qn_cuda_run(qn_program *program) {
    qn_cuda_program *x = qn_cuda_program_own(program);
    qn_cuda_device *d = qn_cuda_card_of(x);
    pthread_mutex_lock(&d->lock);
    x->started = qn_clock();
    send_inputs(x);
    qn_cuda_binding *b = x->is_timed || x->now->n_paged ? NULL : find_binding(x);
    const bool is_known = b && b->last_use;
    if (b) b->last_use = x->n_steps;
    x->n_hits += is_known;
    if (is_known && !b->graph) record_graph(x, b);
    if (is_known && b->graph && !d->error)
        (void)qn_cuda_check(d, d->api->replay(d->stream, b->graph), "running a graph");
    else
        (void)launch_all(x);
    pthread_mutex_unlock(&d->lock);
}

void qn_cuda_run_call(qn_program *program, size_t call) {
    qn_cuda_program *x = qn_cuda_program_own(program);
    qn_cuda_device *d = qn_cuda_card_of(x);
    pthread_mutex_lock(&d->lock);
    if (call == 0) send_inputs(x);
    qn_cuda_launch_call(x, call);
    if (!d->error) (void)qn_cuda_check(d, d->api->wait(d->stream), "running a call");
    pthread_mutex_unlock(&d->lock);
}

void qn_cuda_wait(qn_program *program) {
    qn_cuda_device *d = qn_cuda_card_of(qn_cuda_program_own(program));
    pthread_mutex_lock(&d->lock);
    if (!d->error) (void)qn_cuda_check(d, d->api->wait(d->stream), "running a step");
    pthread_mutex_unlock(&d->lock);
}

// --- results -------------------------------------------------------------------------------------

enum { FETCH_AT_ONCE = 1 << 20 }; // bytes: less is brought with its first row

const float *qn_cuda_row(const qn_program *program, const qn_plan_output *output, int64_t row) {
    qn_cuda_program *x = qn_cuda_program_own(program);
    qn_cuda_plan *p = x->now;
    qn_cuda_output *o = &p->outputs[output - p->plan->outputs];
    const int64_t symbols[QN_SYM_COUNT] = {1, x->step.n_rows, x->step.n_segs, x->step.n_out};
    const int64_t n = o->rows.n * symbols[o->rows.sym];
    if (o->fetched[row] != x->n_steps) {
        const bool is_small = n * o->stride <= FETCH_AT_ONCE;
        const unsigned char *from = x->arena + p->offsets[output->arg.index] + output->arg.offset;
        const int64_t first = is_small ? 0 : row, end = is_small ? n : row + 1;
        // One copy, with what lies between the rows: a call costs more than bytes.
        qn_cuda_read(x->head.device, o->host + first * o->stride, from + first * o->stride,
                     (size_t)((end - first - 1) * o->stride + o->row_bytes));
        for (int64_t r = first; r < end; r++) o->fetched[r] = x->n_steps;
    }
    return (const float *)(const void *)(o->host + row * o->stride);
}

void qn_cuda_counts(const qn_program *program, int64_t *hits, int64_t *misses) {
    *hits = qn_cuda_program_own(program)->n_hits;
    *misses = qn_cuda_program_own(program)->n_steps - qn_cuda_program_own(program)->n_hits;
}

bool qn_cuda_times(const qn_program *program, size_t call, int64_t *begin, int64_t *end) {
    const qn_cuda_program *x = qn_cuda_program_own(program);
    qn_cuda_device *d = qn_cuda_card_of(x);
    int64_t from = 0, to = 0;
    if (!x->is_timed || x->now->calls[call].task.rows == 0 || call + 1 >= QN_CUDA_MARKS)
        return false;
    pthread_mutex_lock(&d->lock);
    const bool is_known = !d->error && !d->api->between(&from, d->stream, 0, (int)call) &&
                          !d->api->between(&to, d->stream, 0, (int)call + 1);
    pthread_mutex_unlock(&d->lock);
    if (!is_known) return false;
    *begin = x->started + from;
    *end = x->started + to;
    return true;
}
