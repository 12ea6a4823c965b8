// Plans on a GPU: operands have fixed addresses, a step is one copy of its message and a launch for
// each call. Sizes that come again become a graph of launches, which costs one call.
#include "backends/cuda/cuda_program.h"

#include "core/mem.h"
#include "ir/memplan.h"

#include <string.h>

static qn_cuda_program *own(const qn_program *program) {
    return (qn_cuda_program *)(uintptr_t)program;
}

static qn_cuda_device *card_of(const qn_cuda_program *x) { return qn_cuda_own(x->head.device); }

// --- operands ------------------------------------------------------------------------------------

// Bytes of n rows of floats; false if they overflow.
static bool float_bytes(int64_t *out, int64_t rows, int64_t parts, int64_t width) {
    return qn_i64_mul(out, rows, parts) && qn_i64_mul(out, *out, width) &&
           qn_i64_mul(out, *out, (int64_t)sizeof(float));
}

// An input that comes with each step: a field of the message, or floats that are given.
static qn_status bind_input(qn_cuda_program *x, qn_cuda_plan *p, qn_cuda_operand *to,
                            const qn_plan_leaf *leaf, qn_err *err) {
    const qn_step_field field = qn_step_find_field(leaf->name);
    const bool has_rows = leaf->shape.n_dims > 0 && leaf->shape.dims[0].sym != QN_SYM_ONE;
    to->stride = has_rows ? to->parts * to->width * (int64_t)sizeof(float) : 0;
    to->field = (int32_t)field;
    if (field != QN_STEP_FIELDS) return QN_OK;
    if (leaf->type != QN_TYPE_F32)
        return QN_FAIL(err, UNSUPPORTED, "input %s of type %s cannot be given", leaf->name,
                       qn_type_get(leaf->type)->name);
    for (size_t i = 0; i < p->n_given; i++) {
        if (p->given[i].leaf != leaf) continue;
        p->given[i].n_uses++;
        return QN_OK;
    }
    qn_cuda_given *g = &p->given[p->n_given++];
    *g = (qn_cuda_given){.leaf = leaf, .offset = x->fixed_bytes};
    const qn_dim first = has_rows ? leaf->shape.dims[0] : (qn_dim){1, QN_SYM_ONE};
    const int64_t symbols[QN_SYM_COUNT] = {1, x->max.rows, x->max.segs, x->max.outs};
    int64_t bytes;
    g->rows = first;
    g->row_bytes = to->parts * to->width * (int64_t)sizeof(float);
    if (!float_bytes(&bytes, first.n * symbols[first.sym], to->parts, to->width) ||
        !qn_i64_add(&x->fixed_bytes, x->fixed_bytes, bytes + QN_BUFFER_ALIGN))
        return QN_FAIL(err, LIMIT, "input %s overflows", leaf->name);
    x->fixed_bytes -= x->fixed_bytes % QN_BUFFER_ALIGN;
    return QN_OK;
}

static qn_status bind_weight(qn_cuda_operand *to, const qn_program_plan *from, size_t call,
                             int input, qn_err *err) {
    const qn_plan_call *c = &from->plan->calls[call];
    const int32_t index = c->in[input].index;
    const qn_plan_leaf *leaf = &from->plan->leaves[QN_PLACE_PARAM][index];
    const qn_word want = qn_cuda_backends[0].layout(c->op, input);
    if (leaf->layout != want)
        return QN_FAIL(err, FORMAT, "call %zu: weight %s lies in %s, %s reads %s", call, leaf->name,
                       qn_word_get(leaf->layout)->name, c->kernel, qn_word_get(want)->name);
    to->type = (int32_t)(want == QN_WORD_typed ? leaf->type : QN_TYPE_F32);
    to->is_weight = want == QN_WORD_typed;
    if (from->weights) to->data = (unsigned char *)(uintptr_t)from->weights[index];
    return QN_OK;
}

// Constants get a place beside the arena; see place_fixed.
static qn_status bind_const(qn_cuda_program *x, qn_cuda_plan *p, int32_t index, qn_err *err) {
    const qn_plan_leaf *leaf = &p->plan->leaves[QN_PLACE_CONST][index];
    int64_t bytes = (int64_t)sizeof(float);
    if (p->consts[index].bytes) return QN_OK;
    bool fits = true;
    for (int i = 0; i < leaf->shape.n_dims; i++)
        fits = fits && qn_i64_mul(&bytes, bytes, leaf->shape.dims[i].n);
    p->consts[index] = (qn_cuda_const){.offset = x->fixed_bytes, .bytes = bytes};
    fits = fits && qn_i64_add(&x->fixed_bytes, x->fixed_bytes, bytes + QN_BUFFER_ALIGN);
    if (!fits) return QN_FAIL(err, LIMIT, "constant %s overflows", leaf->name);
    x->fixed_bytes -= x->fixed_bytes % QN_BUFFER_ALIGN;
    return QN_OK;
}

static qn_cuda_operand operand_of(const qn_plan_arg *arg) {
    return (qn_cuda_operand){.parts = arg->parts,
                             .width = arg->width,
                             .form = (int32_t)arg->form,
                             .field = QN_STEP_FIELDS};
}

static qn_status bind_in(qn_cuda_program *x, qn_cuda_plan *p, const qn_program_plan *from,
                         size_t call, int i, qn_err *err) {
    const qn_plan_arg *arg = &from->plan->calls[call].in[i];
    qn_cuda_task *task = &p->calls[call].task;
    qn_cuda_operand *to = &task->in[i];
    *to = operand_of(arg);
    if (arg->place == QN_PLACE_CACHE) task->cache = *from->caches[arg->index];
    if (arg->place == QN_PLACE_STATE) task->slots = *from->slots[arg->index];
    if (arg->place == QN_PLACE_CONST) return bind_const(x, p, arg->index, err);
    if (arg->place == QN_PLACE_PARAM) return bind_weight(to, from, call, i, err);
    if (arg->place == QN_PLACE_INPUT)
        return bind_input(x, p, to, &from->plan->leaves[QN_PLACE_INPUT][arg->index], err);
    return QN_OK;
}

static bool find_kernel(qn_cuda_kernel *out, const char *name) {
    for (int k = 0; k < QN_CUDA_KERNELS; k++) {
        if (strcmp(qn_cuda_backends[0].kernels[k], name) != 0) continue;
        *out = (qn_cuda_kernel)k;
        return true;
    }
    return false;
}

static qn_status bind_call(qn_cuda_program *x, qn_cuda_plan *p, const qn_program_plan *from,
                           size_t i, qn_err *err) {
    const qn_plan_call *call = &from->plan->calls[i];
    qn_cuda_call *to = &p->calls[i];
    if (!find_kernel(&to->kernel, call->kernel))
        return QN_FAIL(err, FORMAT, "call %zu: device cuda has no kernel %s", i, call->kernel);
    to->task.attrs = call->attrs;
    to->rows = call->rows;
    for (int k = 0; k < QN_MAX_IN; k++) to->task.in[k].field = QN_STEP_FIELDS;
    for (int k = 0; k < QN_MAX_OUT; k++) to->task.out[k].field = QN_STEP_FIELDS;
    for (int k = 0; k < call->n_in; k++) QN_TRY(bind_in(x, p, from, i, k, err));
    for (int k = 0; k < call->n_out; k++) to->task.out[k] = operand_of(&call->out[k]);
    for (int k = 0; k < call->n_temp; k++) to->task.temp[k] = operand_of(&call->temp[k]);
    return QN_OK;
}

// --- room ----------------------------------------------------------------------------------------

// Positions of the longest sequence, rounded up: steps of the same sizes whose sequences have
// about the same length are the same launches.
static int64_t round_cached(int64_t cached) {
    int64_t n = QN_CUDA_CHUNK;
    while (n < cached && n <= INT64_MAX / 2) n *= 2;
    return n;
}

// Parts of the chunks of attention, of a few rows; a step that needs more does without.
static int64_t room_of_attention(const qn_cuda_program *x, const qn_cuda_task *task) {
    const qn_cuda_operand *out = &task->out[0]; // (T, H, F)
    const int64_t rows = qn_min(x->max.rows, QN_CUDA_SPLIT_ROWS);
    const int64_t chunks = round_cached(x->max.cached) / QN_CUDA_CHUNK;
    int64_t floats;
    if (!qn_i64_mul(&floats, rows, chunks) || !qn_i64_mul(&floats, floats, out->parts) ||
        !qn_i64_mul(&floats, floats, out->width + QN_CUDA_PART_EXTRA))
        return QN_CUDA_ROOM_MAX;
    return qn_min(floats, QN_CUDA_ROOM_MAX);
}

static void ask_room(qn_cuda_program *x, const qn_cuda_call *call) {
    if (call->kernel == QN_CUDA_attend || call->kernel == QN_CUDA_attention_attend)
        x->room_floats = qn_max(x->room_floats, room_of_attention(x, &call->task));
}

// --- preparation ---------------------------------------------------------------------------------

static qn_status lay_out(qn_cuda_program *x, qn_cuda_plan *p, qn_err *err) {
    const int64_t symbols[QN_SYM_COUNT] = {1, x->max.rows, x->max.segs, x->max.outs};
    qn_memplan_report report;
    int32_t *living = qn_alloc(p->plan->n_buffers, sizeof *living);
    if (!living) return QN_NOMEM(err, "plan");
    const bool fits = qn_memplan(&report, p->offsets, living, p->plan, symbols);
    qn_free(living);
    if (!fits)
        return QN_FAIL(err, LIMIT, "a step of %lld rows, %lld of them wanted: sizes overflow",
                       (long long)x->max.rows, (long long)x->max.outs);
    x->arena_bytes = qn_max(x->arena_bytes, report.peak);
    return QN_OK;
}

static qn_status init_plan(qn_cuda_program *x, qn_cuda_plan *p, const qn_program_plan *from,
                           qn_err *err) {
    const qn_plan *plan = from->plan;
    p->plan = plan;
    p->capacity = from->capacity > 0 ? from->capacity : 1;
    p->calls = qn_alloc(plan->n_calls, sizeof *p->calls);
    p->offsets = qn_alloc(plan->n_buffers, sizeof *p->offsets);
    p->given = qn_alloc(qn_plan_inputs(plan), sizeof *p->given);
    p->consts = qn_alloc(plan->n_leaves[QN_PLACE_CONST], sizeof *p->consts);
    p->outputs = qn_alloc(plan->n_outputs, sizeof *p->outputs);
    p->bindings = qn_alloc((size_t)p->capacity, sizeof *p->bindings);
    if (!p->calls || !p->offsets || !p->given || !p->consts || !p->outputs || !p->bindings)
        return QN_NOMEM(err, "plan");
    QN_TRY(lay_out(x, p, err));
    for (size_t i = 0; i < plan->n_calls; i++) {
        QN_TRY(bind_call(x, p, from, i, err));
        ask_room(x, &p->calls[i]);
    }
    return QN_OK;
}

static void place_buffer(const qn_cuda_program *x, const qn_cuda_plan *p, qn_cuda_operand *to,
                         const qn_plan_arg *arg) {
    if (arg->place != QN_PLACE_BUFFER) return;
    const qn_plan_buffer *buffer = &p->plan->buffers[arg->index];
    to->stride = buffer->rows.sym == QN_SYM_ONE ? 0 : buffer->row_bytes;
    to->data = x->arena + p->offsets[arg->index] + arg->offset;
}

// Points the operands of a plan to their memory.
static void place_operands(const qn_cuda_program *x, qn_cuda_plan *p) {
    for (size_t i = 0; i < p->plan->n_calls; i++) {
        const qn_plan_call *call = &p->plan->calls[i];
        qn_cuda_task *task = &p->calls[i].task;
        task->room = x->room;
        task->room_floats = x->room_floats;
        for (int k = 0; k < call->n_in; k++) {
            const qn_plan_arg *arg = &call->in[k];
            place_buffer(x, p, &task->in[k], arg);
            if (arg->place == QN_PLACE_CONST)
                task->in[k].data = x->fixed + p->consts[arg->index].offset;
            if (arg->place != QN_PLACE_INPUT) continue;
            const qn_plan_leaf *leaf = &p->plan->leaves[QN_PLACE_INPUT][arg->index];
            for (size_t g = 0; g < p->n_given; g++) {
                if (p->given[g].leaf == leaf) task->in[k].data = x->fixed + p->given[g].offset;
            }
        }
        for (int k = 0; k < call->n_out; k++) place_buffer(x, p, &task->out[k], &call->out[k]);
        for (int k = 0; k < call->n_temp; k++) place_buffer(x, p, &task->temp[k], &call->temp[k]);
    }
}

static void upload_consts(const qn_cuda_program *x, const qn_cuda_plan *p) {
    for (size_t i = 0; i < p->plan->n_leaves[QN_PLACE_CONST]; i++) {
        if (p->consts[i].bytes)
            qn_cuda_write(x->head.device, x->fixed + p->consts[i].offset,
                          p->plan->leaves[QN_PLACE_CONST][i].data, (size_t)p->consts[i].bytes);
    }
}

// Rows that come back, of every output, for the largest step.
static qn_status take_outputs(qn_cuda_program *x, qn_cuda_plan *p, qn_err *err) {
    const int64_t symbols[QN_SYM_COUNT] = {1, x->max.rows, x->max.segs, x->max.outs};
    for (size_t i = 0; i < p->plan->n_outputs; i++) {
        const qn_plan_output *output = &p->plan->outputs[i];
        qn_cuda_output *o = &p->outputs[i];
        int64_t bytes;
        o->rows = output->rows;
        o->max_rows = output->rows.n * symbols[output->rows.sym];
        o->row_bytes = output->arg.parts * output->arg.width * (int64_t)sizeof(float);
        if (!qn_i64_mul(&bytes, qn_max(o->max_rows, 1), o->row_bytes))
            return QN_FAIL(err, LIMIT, "output %s overflows", output->name);
        o->bytes = (size_t)bytes;
        o->host = qn_reserve(o->bytes);
        o->fetched = qn_alloc((size_t)qn_max(o->max_rows, 1), sizeof *o->fetched);
        if (!o->host || !o->fetched) return QN_NOMEM(err, output->name);
    }
    return QN_OK;
}

static qn_status take_memory(qn_cuda_program *x, qn_err *err) {
    qn_device *device = x->head.device;
    void *arena = NULL, *fixed = NULL, *room = NULL;
    qn_status status = device->kind->alloc(&arena, device, (size_t)x->arena_bytes, err);
    if (status) return qn_err_prefix(err, status, "activations");
    x->arena = arena;
    status = device->kind->alloc(&fixed, device, (size_t)x->fixed_bytes, err);
    if (status) return qn_err_prefix(err, status, "constants and inputs");
    x->fixed = fixed;
    if (x->room_floats > 0) {
        const size_t bytes = (size_t)x->room_floats * sizeof *x->room;
        status = device->kind->alloc(&room, device, bytes, err);
        if (status) return qn_err_prefix(err, status, "parts of attention");
    }
    x->room = room;
    for (int i = 0; i < QN_PROGRAM_PLANS; i++) {
        qn_cuda_plan *p = &x->plans[i];
        if (!p->plan) continue;
        place_operands(x, p);
        upload_consts(x, p);
        QN_TRY(take_outputs(x, p, err));
    }
    return qn_cuda_failure(device, err);
}

qn_status qn_cuda_prepare(qn_program **out, qn_device *device, const qn_program_opts *opts,
                          qn_err *err) {
    qn_cuda_program *x = qn_alloc(1, sizeof *x);
    if (!x) return QN_NOMEM(err, "plan");
    x->head.device = device;
    x->max = opts->max;
    x->is_timed = opts->is_timed;
    x->go_on = opts->go_on;
    x->go_on_arg = opts->go_on_arg;
    qn_status status = QN_OK;
    for (int i = 0; i < QN_PROGRAM_PLANS && !status; i++) {
        if (opts->plans[i].plan) status = init_plan(x, &x->plans[i], &opts->plans[i], err);
    }
    if (!status && !opts->is_measured) status = take_memory(x, err);
    if (status)
        qn_cuda_release(&x->head);
    else
        *out = &x->head;
    return status;
}

static void release_plan(const qn_cuda_program *x, qn_cuda_plan *p) {
    qn_cuda_device *d = card_of(x);
    for (int i = 0; p->bindings && i < p->capacity; i++) {
        if (p->bindings[i].graph) d->api->forget(d->stream, p->bindings[i].graph);
    }
    for (size_t i = 0; p->outputs && i < p->plan->n_outputs; i++) {
        if (p->outputs[i].host) qn_unreserve(p->outputs[i].host, p->outputs[i].bytes);
        qn_free(p->outputs[i].fetched);
    }
    qn_free(p->calls);
    qn_free(p->offsets);
    qn_free(p->given);
    qn_free(p->consts);
    qn_free(p->outputs);
    qn_free(p->bindings);
}

static void drop_message(qn_cuda_program *x) {
    qn_cuda_device *d = card_of(x);
    if (x->message) d->api->free_host(d->stream, x->message);
    if (x->on_card) d->api->free(d->stream, x->on_card);
    x->message = x->on_card = NULL;
    x->message_bytes = 0;
}

void qn_cuda_release(qn_program *program) {
    qn_cuda_program *x = own(program);
    if (!x) return;
    qn_cuda_device *d = card_of(x);
    pthread_mutex_lock(&d->lock);
    if (x->arena && !d->error) (void)qn_cuda_check(d, d->api->wait(d->stream), "waiting");
    for (int i = 0; i < QN_PROGRAM_PLANS; i++) {
        if (x->plans[i].plan) release_plan(x, &x->plans[i]);
    }
    drop_message(x);
    if (x->arena) d->api->free(d->stream, x->arena);
    if (x->fixed) d->api->free(d->stream, x->fixed);
    if (x->room) d->api->free(d->stream, x->room);
    pthread_mutex_unlock(&d->lock);
    qn_free(x);
}

qn_program_size qn_cuda_measure(const qn_program *program) {
    const qn_cuda_program *x = own(program);
    qn_program_size size = {.arena = x->arena_bytes,
                            .scratch = x->fixed_bytes + x->room_floats * (int64_t)sizeof *x->room};
    for (int i = 0; i < QN_PROGRAM_PLANS; i++) {
        if (x->plans[i].plan)
            size.tables += (int64_t)(x->plans[i].plan->n_calls * sizeof *x->plans[i].calls);
    }
    return size;
}

// --- steps ---------------------------------------------------------------------------------------

enum { HEAD_BYTES = (sizeof(qn_step) + 63) / 64 * 64 };

// Room for a message of so many bytes, with the lock.
static bool make_room(qn_cuda_program *x, size_t bytes) {
    qn_cuda_device *d = card_of(x);
    void *host = NULL, *card = NULL;
    if (bytes <= x->message_bytes) return true;
    if (!qn_cuda_check(d, d->api->wait(d->stream), "waiting")) return false;
    drop_message(x);
    const size_t room = bytes + bytes / 2;
    if (d->api->alloc_host(&host, d->stream, room)) return false;
    if (d->api->alloc(&card, d->stream, room)) {
        d->api->free_host(d->stream, host);
        return false;
    }
    x->message = host;
    x->on_card = card;
    x->message_bytes = room;
    for (int i = 0; i < QN_PROGRAM_PLANS; i++) { // graphs hold its address
        qn_cuda_plan *p = &x->plans[i];
        for (int b = 0; p->plan && b < p->capacity; b++) {
            if (p->bindings[b].graph) d->api->forget(d->stream, p->bindings[b].graph);
            p->bindings[b] = (qn_cuda_binding){0};
        }
    }
    return true;
}

// The address on the card of what lies in the message.
static const void *moved(const qn_cuda_program *x, const int32_t *message, const void *at) {
    if (!at) return NULL;
    const ptrdiff_t offset = (const unsigned char *)at - (const unsigned char *)message;
    return x->on_card + HEAD_BYTES + offset;
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
    memcpy(x->message + HEAD_BYTES, message, bytes);
    x->used_bytes = HEAD_BYTES + bytes;
}

bool qn_cuda_begin(qn_program *program, int i, int32_t *message, const qn_sizes *sizes) {
    qn_cuda_program *x = own(program);
    qn_cuda_device *d = card_of(x);
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
    const bool is_free = d->error || qn_cuda_check(d, d->api->wait(d->stream), "waiting");
    const bool has_room = d->error || (is_free && make_room(x, HEAD_BYTES + bytes));
    pthread_mutex_unlock(&d->lock);
    if (!has_room && !d->error) return false;
    x->now = p;
    x->step = step;
    x->n_steps++;
    x->cached = round_cached(sizes->cached);
    if (!d->error) write_message(x, message, bytes);
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
    qn_cuda_plan *p = own(program)->now;
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
    qn_cuda_device *d = card_of(x);
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

static void launch_call(const qn_cuda_program *x, const qn_cuda_call *call) {
    qn_cuda_device *d = card_of(x);
    if (!d->error && call->task.rows > 0)
        (void)qn_cuda_check(d, d->api->launch(d->stream, call->kernel, &call->task),
                            qn_cuda_backends[0].kernels[call->kernel]);
}

static void launch_all(qn_cuda_program *x) {
    const qn_cuda_plan *p = x->now;
    qn_cuda_device *d = card_of(x);
    for (size_t i = 0; i < p->plan->n_calls; i++) {
        if (x->go_on && !x->go_on(x->go_on_arg)) return;
        if (x->is_timed && !d->error)
            (void)qn_cuda_check(d, d->api->mark(d->stream, (int)i), "taking times");
        launch_call(x, &p->calls[i]);
    }
    if (x->is_timed && !d->error)
        (void)qn_cuda_check(d, d->api->mark(d->stream, (int)p->plan->n_calls), "taking times");
}

// The binding of the step's sizes; the one that was used longest ago makes room for a new one.
static qn_cuda_binding *find_binding(qn_cuda_program *x) {
    qn_cuda_plan *p = x->now;
    qn_cuda_device *d = card_of(x);
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

// Sizes that come for the second time are recorded.
static bool record_graph(qn_cuda_program *x, qn_cuda_binding *b) {
    qn_cuda_device *d = card_of(x);
    if (d->error || d->api->record(d->stream)) return false;
    launch_all(x);
    return d->api->record_end(&b->graph, d->stream) == 0 && b->graph && !d->error;
}

void qn_cuda_run(qn_program *program) {
    qn_cuda_program *x = own(program);
    qn_cuda_device *d = card_of(x);
    pthread_mutex_lock(&d->lock);
    x->started = qn_clock();
    send_inputs(x);
    qn_cuda_binding *b = x->is_timed ? NULL : find_binding(x);
    const bool is_known = b && b->last_use;
    if (b) b->last_use = x->n_steps;
    x->n_hits += is_known;
    if (is_known && !b->graph) (void)record_graph(x, b);
    if (is_known && b->graph && !d->error)
        (void)qn_cuda_check(d, d->api->replay(d->stream, b->graph), "running a graph");
    else
        launch_all(x);
    pthread_mutex_unlock(&d->lock);
}

void qn_cuda_wait(qn_program *program) {
    qn_cuda_device *d = card_of(own(program));
    pthread_mutex_lock(&d->lock);
    if (!d->error) (void)qn_cuda_check(d, d->api->wait(d->stream), "running a step");
    pthread_mutex_unlock(&d->lock);
}

// --- results -------------------------------------------------------------------------------------

enum { FETCH_AT_ONCE = 1 << 20 }; // bytes: less is brought with its first row

const float *qn_cuda_row(const qn_program *program, const qn_plan_output *output, int64_t row) {
    qn_cuda_program *x = own(program);
    qn_cuda_plan *p = x->now;
    qn_cuda_output *o = &p->outputs[output - p->plan->outputs];
    const int64_t symbols[QN_SYM_COUNT] = {1, x->step.n_rows, x->step.n_segs, x->step.n_out};
    const int64_t n = o->rows.n * symbols[o->rows.sym];
    if (o->fetched[row] != x->n_steps) {
        const bool is_small = n * o->row_bytes <= FETCH_AT_ONCE;
        const int64_t stride = p->plan->buffers[output->arg.index].row_bytes;
        const unsigned char *from = x->arena + p->offsets[output->arg.index] + output->arg.offset;
        const int64_t first = is_small ? 0 : row, end = is_small ? n : row + 1;
        for (int64_t r = first; r < end; r++) {
            const bool is_dense = stride == o->row_bytes;
            const int64_t some = is_dense ? end - r : 1;
            qn_cuda_read(x->head.device, o->host + r * o->row_bytes, from + r * stride,
                         (size_t)(some * o->row_bytes));
            for (int64_t k = 0; k < some; k++) o->fetched[r + k] = x->n_steps;
            r += some - 1;
        }
    }
    return (const float *)(const void *)(o->host + row * o->row_bytes);
}

void qn_cuda_counts(const qn_program *program, int64_t *hits, int64_t *misses) {
    *hits = own(program)->n_hits;
    *misses = own(program)->n_steps - own(program)->n_hits;
}

bool qn_cuda_times(const qn_program *program, size_t call, int64_t *begin, int64_t *end) {
    const qn_cuda_program *x = own(program);
    qn_cuda_device *d = card_of(x);
    int64_t from = 0, to = 0;
    if (!x->is_timed || x->now->calls[call].task.rows == 0 || d->error) return false;
    if (d->api->between(&from, d->stream, 0, (int)call) ||
        d->api->between(&to, d->stream, 0, (int)call + 1))
        return false;
    *begin = x->started + from;
    *end = x->started + to;
    return true;
}

// --- looking -------------------------------------------------------------------------------------

void qn_cuda_run_call(qn_program *program, size_t call) {
    qn_cuda_program *x = own(program);
    qn_cuda_device *d = card_of(x);
    pthread_mutex_lock(&d->lock);
    if (call == 0) send_inputs(x);
    launch_call(x, &x->now->calls[call]);
    if (!d->error) (void)qn_cuda_check(d, d->api->wait(d->stream), "running a call");
    pthread_mutex_unlock(&d->lock);
}

static void unpack_block(float *to, const unsigned char *block, int form, int64_t n) {
    const int8_t *hi = (const int8_t *)block, *lo = hi + QN_CUDA_BLOCK;
    for (int64_t k = 0; k < n; k++) {
        if (form == QN_WORD_i8_32) {
            const qn_cuda_i8 *b = (const qn_cuda_i8 *)(const void *)block;
            to[k] = (float)b->q[k] * b->scales[k / 32];
        } else if (form == QN_WORD_i12_256) {
            to[k] =
                (float)(256 * hi[k] + lo[k]) * ((const qn_cuda_i12 *)(const void *)block)->scale;
        } else {
            to[k] = (float)(256 * hi[k] + lo[k] + 128) *
                    ((const qn_cuda_i16 *)(const void *)block)->scale;
        }
    }
}

// A part of an operand as floats, from where it begins on the card.
static void read_part(float *to, const qn_cuda_program *x, const qn_cuda_operand *o,
                      const unsigned char *from) {
    _Alignas(16) unsigned char block[sizeof(qn_cuda_i16)];
    if (o->form == QN_WORD_f32) {
        qn_cuda_read(x->head.device, to, from, (size_t)o->width * sizeof(float));
        return;
    }
    const int64_t bytes = qn_cuda_backends[0].row_bytes((qn_word)o->form, 1);
    for (int64_t at = 0; at < o->width; at += QN_CUDA_BLOCK, from += bytes) {
        qn_cuda_read(x->head.device, block, from, (size_t)bytes);
        unpack_block(to + at, block, o->form, qn_min(o->width - at, QN_CUDA_BLOCK));
    }
}

// A row of a weight in its own type, block by block.
static void read_weight(float *to, const qn_cuda_program *x, const qn_cuda_operand *o, int64_t i) {
    unsigned char block[512];
    const qn_type_info *info = qn_type_get((qn_type)o->type);
    const int64_t row = o->width / info->block * info->bytes;
    for (int64_t b = 0; b * info->block < o->width; b++) {
        qn_cuda_read(x->head.device, block, o->data + i * row + b * info->bytes,
                     (size_t)info->bytes);
        info->unpack(to + b * info->block, block, info->block);
    }
}

void qn_cuda_read_arg(float *to, const qn_program *program, size_t call, qn_arg_kind kind,
                      int index, int64_t row) {
    const qn_cuda_program *x = own(program);
    const qn_cuda_task *task = &x->now->calls[call].task;
    const qn_cuda_operand *o = kind == QN_ARG_IN ? &task->in[index] : &task->out[index];
    const unsigned char *base = o->data;
    const qn_step *s = (const qn_step *)(const void *)x->message; // with addresses of the card
    if (o->field == QN_STEP_IDS) base = (const unsigned char *)s->ids;
    if (o->field == QN_STEP_ROW_OUT) base = (const unsigned char *)s->row_out;
    if (o->field == QN_STEP_EXTRA) base = s->n_extra ? (const unsigned char *)s->extra : NULL;
    if (o->field == QN_STEP_EXTRA_ROW) base = (const unsigned char *)s->extra_row;
    const int64_t bytes = o->form == QN_WORD_f32
                              ? o->width * (int64_t)sizeof(float)
                              : qn_cuda_backends[0].row_bytes((qn_word)o->form, o->width);
    for (int64_t p = 0; base && p < o->parts; p++, to += o->width) {
        if (o->is_weight)
            read_weight(to, x, o, p);
        else
            read_part(to, x, o, base + row * o->stride + p * bytes);
    }
}
