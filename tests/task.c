#include "task.h"

#include "testing.h"

#include "core/mem.h"

#include <stdlib.h>

enum { GAP = 64, GUARD = 0x5a }; // bytes between rows

void task_fill(float *to, int64_t n, uint32_t salt) {
    uint32_t u = salt * 2654435761u + 12345u;
    for (int64_t i = 0; i < n; i++) {
        u = u * 1664525u + 1013904223u;
        to[i] = (float)(u >> 8) * 0x1p-23f - 1.0f;
    }
}

void task_step_init(task_step *s, const task_seg *segs, int64_t n_segs, int64_t n_inert) {
    memset(s, 0, sizeof *s);
    int32_t t = 0;
    for (int32_t b = 0; b < n_segs; b++) {
        s->seg_row[b] = t;
        s->seg_past[b] = segs[b].past;
        s->seg_slot[b] = segs[b].slot;
        s->seg_accept[b] = segs[b].accept;
        s->seg_commit[b] = segs[b].commit;
        s->seg_adapter[b] = segs[b].adapter - 1;
        for (int32_t i = 0; i < TASK_PAGES; i++)
            s->seg_pages[b * TASK_PAGES + i] = segs[b].slot * TASK_PAGES + (i * 5 + 3) % TASK_PAGES;
        for (int32_t i = 0; i < segs[b].rows; i++, t++) {
            const int32_t p = segs[b].past + i;
            s->row_seg[t] = b;
            memcpy(s->pos + 4 * t, (int32_t[]){p, p / 3, p % 5, 0}, 4 * sizeof *s->pos);
        }
    }
    s->seg_row[n_segs] = t;
    for (int64_t i = 0; i < n_inert; i++) s->row_seg[t++] = -1;
    assert_true(t <= TASK_ROWS);
    int64_t n_out = 0;
    for (int32_t r = t - 1; r >= 0; r -= 2) s->row_out[n_out++] = r;
    s->step = (qn_step){.n_rows = t,
                        .n_segs = n_segs,
                        .n_out = n_out,
                        .ids = s->ids,
                        .pos = s->pos,
                        .row_seg = s->row_seg,
                        .seg_row = s->seg_row,
                        .seg_past = s->seg_past,
                        .seg_pages = s->seg_pages,
                        .pages_per_seg = TASK_PAGES,
                        .n_groups = 1,
                        .seg_slot = s->seg_slot,
                        .seg_accept = s->seg_accept,
                        .seg_commit = s->seg_commit,
                        .seg_adapter = s->seg_adapter,
                        .row_out = s->row_out};
}

static bool has_rows(const qn_value *value) {
    return value->shape.n_dims > 0 && value->shape.dims[0].sym != QN_SYM_ONE;
}

int64_t task_rows(const task_call *call, int32_t value) {
    const qn_value *v = &call->graph->values[value];
    const int64_t symbols[QN_SYM_COUNT] = {1, call->step->n_rows, call->step->n_segs,
                                           call->step->n_out};
    return has_rows(v) ? symbols[v->shape.dims[0].sym] : 1;
}

static qn_word form_of(const task_call *call, int32_t value) {
    const qn_node *node = call->node;
    const bool has_form = qn_op_get(node->op)->attrs >> QN_ATTR_form & 1;
    return has_form && value == node->out[node->n_out - 1] ? node->attrs.form : QN_WORD_f32;
}

static qn_operand shape_operand(const task_call *call, int32_t value) {
    const qn_value *v = &call->graph->values[value];
    const int64_t symbols[QN_SYM_COUNT] = {1, call->step->n_rows, call->step->n_segs,
                                           call->step->n_out};
    qn_operand x = {.parts = 1, .width = 1, .form = form_of(call, value)};
    for (int i = has_rows(v); i < v->shape.n_dims; i++) {
        const int64_t n = v->shape.dims[i].n * symbols[v->shape.dims[i].sym];
        if (i == v->shape.n_dims - 1)
            x.width = n;
        else
            x.parts *= n;
    }
    return x;
}

static int64_t operand_bytes(const qn_operand *x) {
    if (x->form == QN_WORD_f32) return x->parts * x->width * (int64_t)sizeof(float);
    const qn_cpu_level *any;
    qn_err err;
    ASSERT_OK(qn_cpu_level_find(&any, NULL, &err));
    return x->parts * any->backend.row_bytes(x->form, x->width);
}

int64_t task_row_bytes(const task_call *call, int32_t value) {
    const qn_operand x = shape_operand(call, value);
    return operand_bytes(&x);
}

// Memory of an operand: rows with gaps, all guard bytes.
typedef struct frame {
    unsigned char *room, *rows; // allocated; first row, aligned to 64
    int64_t n_rows, row_bytes, stride;
} frame;

static void frame_open(frame *f, qn_operand *x, int64_t n_rows) {
    f->n_rows = n_rows;
    f->row_bytes = operand_bytes(x);
    f->stride = (f->row_bytes + 63) / 64 * 64 + GAP;
    const size_t bytes = (size_t)(n_rows * f->stride + 2 * GAP);
    f->room = qn_alloc(bytes, 1);
    assert_non_null(f->room);
    memset(f->room, GUARD, bytes);
    f->rows = f->room + 64 - (uintptr_t)f->room % 64;
    x->data = f->rows;
    x->stride = f->stride;
}

static void frame_check(const frame *f) {
    for (int64_t r = 0; r < f->n_rows; r++) {
        for (int64_t i = f->row_bytes; i < f->stride; i++) {
            if (f->rows[r * f->stride + i] != GUARD)
                fail_msg("byte %lld after row %lld was written", (long long)(i - f->row_bytes),
                         (long long)r);
        }
    }
}

// The rows without gaps.
static void *frame_take(const frame *f) {
    unsigned char *dense = qn_alloc((size_t)(f->n_rows * f->row_bytes), 1);
    assert_non_null(dense);
    for (int64_t r = 0; r < f->n_rows; r++)
        memcpy(dense + r * f->row_bytes, f->rows + r * f->stride, (size_t)f->row_bytes);
    return dense;
}

static void give_input(qn_task *task, frame *f, const task_call *call, int i) {
    const int32_t id = call->node->in[i];
    if (id < 0 || !call->data[i]) return;
    const qn_value *value = &call->graph->values[id];
    qn_operand *x = &task->in[i];
    *x = shape_operand(call, id);
    frame_open(f, x, task_rows(call, id));
    for (int64_t r = 0; r < f->n_rows; r++)
        memcpy(f->rows + r * f->stride, (const unsigned char *)call->data[i] + r * f->row_bytes,
               (size_t)f->row_bytes);
    if (!has_rows(value)) x->stride = 0;
    const bool is_square = value->shape.n_dims > 1 && value->shape.dims[1].sym != QN_SYM_ONE;
    if (is_square) x->data = (void *)(uintptr_t)call->data[i]; // allow: dense
}

static void run_kernel(const qn_kernel *kernel, const qn_task *task, int order) {
    // As many pieces as a larger step would have: the last ones do nothing.
    const int64_t max = task->rows + task->rows / 2 + 1;
    const int64_t n = kernel->pieces(task, max, TASK_PAGES * QN_PAGE_ROWS);
    const size_t bytes = (size_t)kernel->scratch(task, max);
    void *scratch = aligned_alloc(64, (bytes + 64) / 64 * 64);
    assert_non_null(scratch);
    for (int64_t i = 0; i < n; i++) {
        const int64_t middle = n / 2;
        const int64_t odd_first = i < middle ? 2 * i + 1 : 2 * (i - middle);
        memset(scratch, 0xff, bytes); // NaN
        kernel->run(task, order == 0 ? i : order == 1 ? n - 1 - i : odd_first, scratch);
    }
    free(scratch);
}

// What the pieces share, full of NaN.
static void *open_shared(qn_task *task, const qn_recipe *recipe, const qn_cpu_level *backend) {
    int64_t bytes = 64;
    for (int i = 0; i < recipe->n_stages; i++)
        bytes = qn_max(bytes, backend->kernels[recipe->stages[i]].shared(
                                  task, task->rows, TASK_PAGES * QN_PAGE_ROWS));
    task->shared = aligned_alloc(64, (size_t)bytes);
    assert_non_null(task->shared);
    memset(task->shared, 0xff, (size_t)bytes);
    return task->shared;
}

void task_run(void *outs[QN_MAX_OUT], const task_call *call, const qn_cpu_level *backend) {
    const qn_node *node = call->node;
    const qn_recipe *recipe = &backend->backend.recipes[node->op];
    assert_true(recipe->n_stages > 0);
    frame in[QN_MAX_IN] = {0}, out[QN_MAX_OUT] = {0}, temp[QN_MAX_TEMPS] = {0};
    qn_task task = {.attrs = &node->attrs,
                    .cache = call->cache,
                    .slots = call->slots,
                    .step = call->step,
                    .rows = call->step->n_rows,
                    .has_unit = backend->has_unit};
    for (int i = 0; i < node->n_in; i++) give_input(&task, &in[i], call, i);
    for (int i = 0; i < node->n_out; i++) {
        if (call->graph->values[node->out[i]].kind != QN_TENSOR) continue;
        task.out[i] = shape_operand(call, node->out[i]);
        task.rows = task_rows(call, node->out[i]);
        frame_open(&out[i], &task.out[i], task.rows);
    }
    qn_plan_arg temps[QN_MAX_TEMPS] = {{0}};
    const int n_temps = recipe->temps ? recipe->temps(temps, call->graph, node) : 0;
    for (int i = 0; i < n_temps; i++) {
        task.temp[i] =
            (qn_operand){.parts = temps[i].parts, .width = temps[i].width, .form = temps[i].form};
        frame_open(&temp[i], &task.temp[i], task.rows);
    }
    void *shared = open_shared(&task, recipe, backend);
    for (int i = 0; i < recipe->n_stages; i++)
        run_kernel(&backend->kernels[recipe->stages[i]], &task, call->order);
    free(shared);
    for (int i = 0; i < QN_MAX_OUT; i++) {
        outs[i] = out[i].room ? frame_take(&out[i]) : NULL;
        frame_check(&out[i]);
        qn_free(out[i].room);
    }
    for (int i = 0; i < QN_MAX_IN; i++) {
        frame_check(&in[i]);
        qn_free(in[i].room);
    }
    for (int i = 0; i < n_temps; i++) {
        frame_check(&temp[i]);
        qn_free(temp[i].room);
    }
}
