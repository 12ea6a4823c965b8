// Programs of a GPU: their memory, taken and given back.
#include "backends/cuda/cuda_program.h"

#include "core/mem.h"
#include "ir/memplan.h"

#include <string.h>

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

// The largest step without rows of images, for which room is made when they come.
static qn_status measure_message(qn_cuda_program *x, const qn_program_plan *from, qn_err *err) {
    qn_step_sizes sizes = {.rows = x->max.rows,
                           .segs = x->max.segs,
                           .outs = x->max.outs,
                           .groups = 1,
                           .pages = (x->max.cached + QN_PAGE_ROWS - 1) / QN_PAGE_ROWS};
    size_t words;
    for (size_t i = 0; i < from->plan->n_leaves[QN_PLACE_CACHE]; i++)
        sizes.groups = qn_max(sizes.groups, from->caches[i]->group + 1);
    QN_TRY(qn_step_measure(&words, &sizes, err));
    const size_t bytes = QN_CUDA_STEP_BYTES + words * sizeof(int32_t);
    if (bytes > x->first_bytes) x->first_bytes = bytes;
    return QN_OK;
}

// Parts of the chunks of attention, of a few rows; a step that needs more does without.
static int64_t room_of_attention(const qn_cuda_program *x, const qn_cuda_task *task) {
    const qn_cuda_operand *out = &task->out[0]; // (T, H, F)
    const int64_t rows = qn_min(x->max.rows, QN_CUDA_SPLIT_ROWS);
    const int64_t chunks = qn_cuda_round_cached(x->max.cached) / QN_CUDA_CHUNK;
    int64_t floats;
    if (!qn_i64_mul(&floats, rows, chunks) || !qn_i64_mul(&floats, floats, out->parts) ||
        !qn_i64_mul(&floats, floats, out->width + QN_CUDA_PART_EXTRA))
        return QN_CUDA_ROOM_MAX;
    return qn_min(floats, QN_CUDA_ROOM_MAX);
}

// The image of all rows of a matmul with weights in tiles.
static int64_t room_of_matmul(const qn_cuda_program *x, const qn_cuda_call *call) {
    const int64_t symbols[QN_SYM_COUNT] = {1, x->max.rows, x->max.segs, x->max.outs};
    const qn_cuda_operand *in = &call->task.in[0];
    const int64_t blocks = in->width / QN_CUDA_BLOCK;
    int64_t rows, floats;
    if (in->form != QN_WORD_i12_256 || !call->task.in[1].is_tiled) return 0;
    if (!qn_i64_mul(&rows, call->rows.n, symbols[call->rows.sym]) ||
        !qn_i64_mul(&rows, rows, in->parts) || !qn_i64_add(&rows, rows, QN_CUDA_IMAGE_TILE - 1) ||
        !qn_i64_mul(&floats, rows - rows % QN_CUDA_IMAGE_TILE, blocks) ||
        !qn_i64_mul(&floats, floats, QN_CUDA_IMAGE_ROW / (int64_t)sizeof(float)))
        return QN_CUDA_IMAGE_MAX;
    return qn_min(floats, QN_CUDA_IMAGE_MAX);
}

static void ask_room(qn_cuda_program *x, const qn_cuda_call *call) {
    int64_t floats = 0;
    if (call->kernel == QN_CUDA_attend || call->kernel == QN_CUDA_attention_attend)
        floats = room_of_attention(x, &call->task);
    if (call->kernel == QN_CUDA_project || call->kernel == QN_CUDA_gated ||
        call->kernel == QN_CUDA_head_logits)
        floats = room_of_matmul(x, call);
    x->room_floats = qn_max(x->room_floats, floats);
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
    QN_TRY(measure_message(x, from, err));
    for (size_t i = 0; i < plan->n_calls; i++) {
        QN_TRY(qn_cuda_bind_call(x, p, from, i, err));
        p->calls[i].task.is_tensor = x->is_tensor;
        ask_room(x, &p->calls[i]);
    }
    return qn_cuda_bind_experts(x, p, from, err);
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
        task->counters = x->counters;
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
        o->stride = p->plan->buffers[output->arg.index].row_bytes;
        if (!qn_i64_mul(&bytes, qn_max(o->max_rows, 1), o->stride))
            return QN_FAIL(err, LIMIT, "output %s overflows", output->name);
        o->bytes = (size_t)bytes;
        o->host = qn_reserve(o->bytes);
        o->fetched = qn_alloc((size_t)qn_max(o->max_rows, 1), sizeof *o->fetched);
        if (!o->host || !o->fetched) return QN_NOMEM(err, output->name);
    }
    return QN_OK;
}

static void drop_message(qn_cuda_program *x) {
    qn_cuda_device *d = qn_cuda_card_of(x);
    if (x->message) d->api->free_host(d->stream, x->message);
    if (x->on_card) d->api->free(d->stream, x->on_card);
    x->message = x->on_card = NULL;
    x->message_bytes = 0;
}

static void forget_graphs(qn_cuda_program *x) {
    qn_cuda_device *d = qn_cuda_card_of(x);
    for (int i = 0; i < QN_PROGRAM_PLANS; i++) {
        qn_cuda_plan *p = &x->plans[i];
        for (int b = 0; p->bindings && b < p->capacity; b++) {
            if (p->bindings[b].graph) d->api->forget(d->stream, p->bindings[b].graph);
            p->bindings[b] = (qn_cuda_binding){0};
        }
    }
}

// Memory for a step, here and on the card.
static bool take_room(qn_cuda_program *x, size_t bytes, size_t *available) {
    qn_cuda_device *d = qn_cuda_card_of(x);
    void *host, *card;
    if (!qn_cuda_take(&host, d, d->api->alloc_host, bytes, available)) return false;
    if (!qn_cuda_take(&card, d, d->api->alloc, bytes, available)) {
        d->api->free_host(d->stream, host);
        return false;
    }
    x->message = host;
    x->on_card = card;
    x->message_bytes = bytes;
    return true;
}

bool qn_cuda_make_room(qn_cuda_program *x, size_t bytes) {
    qn_cuda_device *d = qn_cuda_card_of(x);
    size_t available;
    if (bytes <= x->message_bytes) return true;
    if (!qn_cuda_check(d, d->api->wait(d->stream), "waiting")) return false;
    forget_graphs(x); // which hold its address
    drop_message(x);
    return take_room(x, bytes + bytes / 2, &available);
}

static qn_status take_message(qn_cuda_program *x, qn_err *err) {
    qn_cuda_device *d = qn_cuda_card_of(x);
    size_t available;
    pthread_mutex_lock(&d->lock);
    const bool is_taken = take_room(x, x->first_bytes, &available);
    pthread_mutex_unlock(&d->lock);
    if (is_taken) return QN_OK;
    QN_TRY(qn_cuda_failure(x->head.device, err));
    return QN_FAIL(err, LIMIT, "device cuda:%d: no room for steps of %zu bytes, %zu are free",
                   d->index, x->first_bytes, available);
}

// Counters, then the room.
static int64_t room_bytes(const qn_cuda_program *x) {
    const int64_t words = x->room_floats > 0 ? QN_CUDA_COUNTERS + x->room_floats : 0;
    return words * (int64_t)sizeof *x->room;
}

static size_t places_bytes(const qn_cuda_program *x) {
    return (size_t)x->most_experts * QN_CUDA_MATRICES * sizeof *x->places;
}

static qn_status take_places(qn_cuda_program *x, qn_err *err) {
    void *places = NULL;
    const qn_status status =
        x->head.device->kind->alloc(&places, x->head.device, places_bytes(x), err);
    if (status) return qn_err_prefix(err, status, "places of experts");
    x->places = places;
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
        status = device->kind->alloc(&room, device, (size_t)room_bytes(x), err);
        if (status) return qn_err_prefix(err, status, "parts of attention, images of rows");
        x->counters = room;
        x->room = (float *)room + QN_CUDA_COUNTERS;
    }
    QN_TRY(take_message(x, err));
    if (x->most_experts) QN_TRY(take_places(x, err));
    for (int i = 0; i < QN_PROGRAM_PLANS; i++) {
        qn_cuda_plan *p = &x->plans[i];
        if (!p->plan) continue;
        place_operands(x, p);
        qn_cuda_place_experts(x, p);
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
    x->is_tensor = opts->is_tensor;
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

static void release_plan(qn_cuda_plan *p) {
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
    qn_cuda_free_experts(p);
}

void qn_cuda_release(qn_program *program) {
    qn_cuda_program *x = qn_cuda_program_own(program);
    if (!x) return;
    qn_cuda_device *d = qn_cuda_card_of(x);
    pthread_mutex_lock(&d->lock);
    if (x->arena && !d->error) (void)qn_cuda_check(d, d->api->wait(d->stream), "waiting");
    forget_graphs(x);
    for (int i = 0; i < QN_PROGRAM_PLANS; i++) {
        if (x->plans[i].plan) release_plan(&x->plans[i]);
    }
    drop_message(x);
    if (x->arena) d->api->free(d->stream, x->arena);
    if (x->fixed) d->api->free(d->stream, x->fixed);
    if (x->counters) d->api->free(d->stream, x->counters);
    if (x->places) d->api->free(d->stream, (void *)x->places);
    pthread_mutex_unlock(&d->lock);
    qn_free(x);
}

qn_program_size qn_cuda_measure(const qn_program *program) {
    const qn_cuda_program *x = qn_cuda_program_own(program);
    qn_program_size size = {.arena = x->arena_bytes,
                            .scratch = x->fixed_bytes + (int64_t)x->first_bytes + room_bytes(x) +
                                       (int64_t)places_bytes(x)};
    for (int i = 0; i < QN_PROGRAM_PLANS; i++) {
        if (x->plans[i].plan)
            size.tables += (int64_t)(x->plans[i].plan->n_calls * sizeof *x->plans[i].calls);
    }
    return size;
}
