#include "runtime/check.h"

#include "backends/lower.h"
#include "core/floats.h"
#include "core/log.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct qn_check {
    const qn_engine *engine;
    qn_graph mid; // that the plan was lowered from
    const void **params;
    qn_ref *ref;  // made again for each step: pages and slots of its own
    qn_step step; // the runner's, with identity pages and slots
    int32_t *pages, *slots;
    float *copies[QN_MAX_IN]; // inputs of the node, dense
    size_t cap_copies[QN_MAX_IN];
};

// --- life ----------------------------------------------------------------------------------------

static qn_status init_check(qn_check *c, const qn_graph *graph, qn_err *err) {
    const qn_compile_opts opts = qn_engine_compile_opts(c->engine, &c->engine->stages[0]);
    if (c->engine->n_stages > 1)
        return QN_FAIL(err, UNSUPPORTED, "QN_REF looks at one device, not at %zu",
                       c->engine->n_stages);
    QN_TRY(qn_compile_mid(&c->mid, graph, &opts, NULL, err));
    return qn_model_params(&c->params, c->engine->model, &c->mid, err);
}

qn_status qn_check_create(qn_check **out, const qn_engine *engine, const qn_graph *graph,
                          qn_err *err) {
    qn_check *c = qn_alloc(1, sizeof *c);
    if (!c) return QN_NOMEM(err, "check");
    c->engine = engine;
    const qn_status status = init_check(c, graph, err);
    if (status)
        qn_check_destroy(c);
    else
        *out = c;
    return status;
}

static void end_step(qn_check *c) {
    qn_ref_destroy(c->ref);
    qn_free(c->pages);
    qn_free(c->slots);
    c->ref = NULL;
    c->pages = c->slots = NULL;
}

void qn_check_destroy(qn_check *c) {
    if (!c) return;
    end_step(c);
    for (int i = 0; i < QN_MAX_IN; i++) qn_free(c->copies[i]);
    qn_graph_deinit(&c->mid);
    qn_free(c->params);
    qn_free(c);
}

// --- what the interpreter gets -------------------------------------------------------------------

static qn_status begin_step(qn_check *c, const qn_runner *r, qn_err *err) {
    const int64_t segs = r->step.n_segs, per_seg = r->step.pages_per_seg;
    end_step(c);
    c->pages = qn_alloc((size_t)(segs * per_seg), sizeof *c->pages);
    c->slots = qn_alloc((size_t)segs, sizeof *c->slots);
    if (!c->pages || !c->slots) return QN_NOMEM(err, "check");
    for (int64_t i = 0; i < segs * per_seg; i++) c->pages[i] = (int32_t)i;
    for (int64_t b = 0; b < segs; b++) c->slots[b] = (int32_t)b;
    c->step = r->step;
    c->step.seg_pages = c->pages;
    c->step.n_groups = 1;
    c->step.seg_slot = c->slots;
    const qn_ref_opts opts = {
        .graph = &c->mid, .params = c->params, .n_pages = segs * per_seg, .n_slots = segs};
    return qn_ref_create(&c->ref, &opts, err);
}

// Keys and values of all positions before this step, as the pages hold them.
static qn_status import_cache(qn_check *c, const qn_runner *r, const qn_cache_view *v,
                              int32_t value, qn_err *err) {
    const int64_t k_all = v->heads * v->k_size, v_all = v->heads * v->v_size;
    float *row = qn_alloc((size_t)(k_all + v_all), sizeof *row);
    if (!row) return QN_NOMEM(err, "check");
    for (int64_t b = 0; b < r->step.n_segs; b++) {
        const int32_t *pages =
            r->step.seg_pages + (b * r->step.n_groups + v->group) * r->step.pages_per_seg;
        for (int64_t p = 0; p < r->step.seg_past[b]; p++) {
            const int32_t page = pages[p / QN_PAGE_ROWS];
            if (page < 0) continue; // before the window
            qn_device *device = r->stages[0].stage->device;
            device->kind->read_kv(row, row + k_all, device, v, page, p % QN_PAGE_ROWS);
            qn_ref_set_cache_row(c->ref, value, b * r->step.pages_per_seg + p / QN_PAGE_ROWS,
                                 p % QN_PAGE_ROWS, row, row + k_all);
        }
    }
    qn_free(row);
    return QN_OK;
}

static qn_status import_slots(qn_check *c, const qn_runner *r, const qn_slots_view *v,
                              int32_t value, qn_err *err) {
    qn_device *device = r->stages[0].stage->device;
    const int64_t n_log = v->log_rows * v->log_size;
    qn_status status = QN_OK;
    float *state = qn_alloc((size_t)(v->state_size + n_log), sizeof *state);
    if (!state) return QN_NOMEM(err, "check");
    float *log = state + v->state_size;
    for (int64_t b = 0; b < r->step.n_segs && !status; b++) {
        const unsigned char *slot = v->slots + r->step.seg_slot[b] * v->slot_bytes;
        device->kind->read(device, state, slot + v->offset, (size_t)v->state_size * sizeof *state);
        device->kind->read(device, log, slot + v->log_offset, (size_t)n_log * sizeof *log);
        status =
            qn_ref_set_slot(c->ref, value, b, state, log, r->step.seg_accept[b], v->log_size, err);
    }
    qn_free(state);
    return status;
}

// An argument of a call, and its rows.
typedef struct operand {
    size_t call;
    qn_arg_kind kind;
    int index;
    int64_t n; // numbers of a row
} operand;

// Copies an operand's rows, dense and as floats.
static qn_status copy_operand(qn_check *c, const qn_runner *r, int k, const operand *x,
                              int64_t rows, qn_err *err) {
    const qn_program *program = r->stages[0].program;
    void *copy = c->copies[k];
    if (!qn_grow(&copy, &c->cap_copies[k], (size_t)(rows * x->n), sizeof(float)))
        return QN_NOMEM(err, "check");
    c->copies[k] = copy;
    for (int64_t t = 0; t < rows; t++)
        program->device->kind->read_arg(c->copies[k] + t * x->n, program, x->call, x->kind,
                                        x->index, t);
    return QN_OK;
}

static int64_t value_rows(const qn_check *c, int32_t value) {
    const int64_t symbols[QN_SYM_COUNT] = {1, c->step.n_rows, c->step.n_segs, c->step.n_out};
    const qn_shape *shape = &c->mid.values[value].shape;
    return shape->n_dims > 0 && shape->dims[0].sym ? shape->dims[0].n * symbols[shape->dims[0].sym]
                                                   : 1;
}

static bool is_leaf(const qn_check *c, int32_t value) {
    return qn_op_get(c->mid.nodes[c->mid.values[value].node].op)->class_of == QN_CLASS_LEAF;
}

static qn_status take_inputs(qn_check *c, const qn_runner *r, const qn_node *node, size_t call,
                             const void **inputs, qn_err *err) {
    const qn_leaves *leaves = &r->stages[0].leaves[QN_PREFILL];
    for (int k = 0; k < node->n_in; k++) {
        const qn_plan_arg *arg = &qn_runner_plan(&r->stages[0])->calls[call].in[k];
        const int32_t id = node->in[k];
        inputs[k] = NULL;
        if (id < 0) continue;
        const qn_kind kind = c->mid.values[id].kind;
        if (kind == QN_CACHE && is_leaf(c, id))
            QN_TRY(import_cache(c, r, leaves->caches[arg->index], id, err));
        if (kind == QN_STATE_VALUE && is_leaf(c, id))
            QN_TRY(import_slots(c, r, leaves->slots[arg->index], id, err));
        if (kind != QN_TENSOR || is_leaf(c, id)) continue;
        const operand x = {call, QN_ARG_IN, k, arg->parts * arg->width};
        QN_TRY(copy_operand(c, r, k, &x, value_rows(c, id), err));
        inputs[k] = c->copies[k];
    }
    return QN_OK;
}

// --- comparing -----------------------------------------------------------------------------------

// How far rounding may take a kernel from the interpreter: sums in another order; keys and values,
// or a result, in fewer bits.
static double tolerance(const qn_check *c, const qn_node *node, qn_word form) {
    static const double by_cache[QN_KV_TYPES] = {
        [QN_CACHE_F32] = 1e-4, [QN_CACHE_F16] = 3e-3,   [QN_CACHE_Q8_0] = 3e-2,
        [QN_CACHE_Q4_0] = 0.2, [QN_CACHE_Q8_0R] = 3e-2, [QN_CACHE_Q4_0R] = 0.2};
    if (form == QN_WORD_i16_256) return 2e-4;
    if (form == QN_WORD_i12_256) return 2e-3;
    if (form == QN_WORD_i8_32) return 2e-2;
    if (qn_op_get(node->op)->class_of == QN_CLASS_STATE) return by_cache[c->engine->cache_type];
    return node->op == QN_OP_EXPERTS && node->attrs.form != QN_WORD_f32 ? 2e-2 : 1e-4;
}

static qn_status compare(qn_check *c, const qn_runner *r, size_t index, size_t last_call, int o,
                         qn_err *err) {
    const qn_plan_call *call = &qn_runner_plan(&r->stages[0])->calls[last_call];
    const operand out = {last_call, QN_ARG_OUT, o, call->out[o].parts * call->out[o].width};
    const qn_node *node = &c->mid.nodes[index];
    const qn_value *value = &c->mid.values[node->out[o]];
    int64_t n = 0;
    const float *want = qn_ref_value(c->ref, node->out[o], &n);
    const int64_t rows = value_rows(c, node->out[o]);
    if (value->kind != QN_TENSOR || n == 0 || rows == 0) return QN_OK;
    const int64_t width = n < rows ? 1 : n / rows;
    // Ids of logits that are almost equal may differ.
    const bool is_best = node->op == QN_OP_HEAD && o == 1;
    const int64_t n_compared = is_best ? 2 + node->attrs.top : width;
    QN_TRY(copy_operand(c, r, 0, &out, rows, err));
    QN_TRY(qn_device_failure(r->stages[0].program->device, err));
    const float *got = c->copies[0];
    double difference = 0, size = 0, worst = -1;
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        const int32_t *ids = (const int32_t *)(const void *)want;
        const bool is_int = value->type == QN_TYPE_I32;
        const double a = is_int ? ((const int32_t *)(const void *)got)[i] : (double)got[i];
        const double b = is_int ? ids[i] : (double)want[i];
        const double d = isnan(a) != isnan(b) ? INFINITY : isnan(a) || a == b ? 0 : fabs(a - b);
        if (i % width >= n_compared) continue;
        difference += d * d;
        size += isfinite(b) ? b * b : 0;
        if (d > worst) {
            worst = d;
            at = i;
        }
    }
    const double error = sqrt(difference / fmax(size, 1e-30));
    if (error <= tolerance(c, node, call->out[o].form)) return QN_OK;
    return QN_FAIL(err, NUMERIC,
                   "QN_REF: node %zu, %s @%d (kernel %s), result %d: relative error %.1e; worst at "
                   "%lld of row %lld: %g, the reference has %g",
                   index, qn_op_get(node->op)->name, node->layer, call->kernel, o, error,
                   (long long)(at % width), (long long)(at / width), (double)got[at],
                   (double)want[at]);
}

static qn_status check_node(qn_check *c, qn_runner *r, size_t index, size_t call, qn_err *err) {
    const qn_node *node = &c->mid.nodes[index];
    qn_program *program = r->stages[0].program;
    const size_t n_stages = (size_t)program->device->backend->recipes[node->op].n_stages;
    const void *inputs[QN_MAX_IN] = {0};
    QN_TRY(take_inputs(c, r, node, call, inputs, err));
    for (size_t i = call; i < call + n_stages; i++) program->device->kind->run_call(program, i);
    QN_TRY(qn_device_failure(program->device, err));
    QN_TRY(qn_ref_run_node(c->ref, index, &c->step, inputs, err));
    for (int o = 0; o < node->n_out; o++) QN_TRY(compare(c, r, index, call + n_stages - 1, o, err));
    return QN_OK;
}

static qn_status check_nodes(qn_check *c, qn_runner *r, qn_err *err) {
    size_t call = 0;
    for (size_t i = 0; i < c->mid.n_nodes; i++) {
        const qn_node *node = &c->mid.nodes[i];
        if (qn_op_get(node->op)->class_of == QN_CLASS_LEAF || qn_lower_is_view(&c->mid, node))
            continue;
        QN_TRY(check_node(c, r, i, call, err));
        call += (size_t)r->stages[0].stage->device->backend->recipes[node->op].n_stages;
    }
    return QN_OK;
}

qn_status qn_check_run(qn_check *c, qn_runner *r, qn_err *err) {
    QN_TRY(begin_step(c, r, err));
    const qn_floats floats = qn_floats_enter();
    const qn_status status = check_nodes(c, r, err);
    qn_floats_leave(&floats);
    return status;
}

// --- figures of layers ---------------------------------------------------------------------------

static void tell_output(const qn_runner *r, const char *name, int64_t rows, int64_t width) {
    int64_t zeros = 0, nans = 0;
    double min = INFINITY, max = -INFINITY, sum = 0;
    for (int64_t t = 0; t < rows; t++) {
        const float *x = qn_runner_row(r, name, t);
        for (int64_t i = 0; i < width; i++) {
            zeros += x[i] == 0;
            nans += isnan(x[i]) != 0;
            if (isnan(x[i])) continue;
            min = fmin(min, (double)x[i]);
            max = fmax(max, (double)x[i]);
            sum += (double)x[i];
        }
    }
    const qn_engine_opts *o = &r->engine->opts;
    qn_log(o->log, o->log_arg, QN_LOG_DEBUG,
           "step %lld %-10s %lld x %lld: %lld zeros, %lld NaN, min %.4g, max %.4g, mean %.4g",
           (long long)r->counts.steps, name, (long long)rows, (long long)width, (long long)zeros,
           (long long)nans, min, max, sum / (double)(rows * width > 0 ? rows * width : 1));
}

void qn_check_layers(const qn_runner *r) {
    const int64_t symbols[QN_SYM_COUNT] = {1, r->step.n_rows, r->step.n_segs, r->step.n_out};
    for (size_t s = 0; s < r->engine->n_stages; s++) {
        const qn_plan *plan = qn_runner_plan(&r->stages[s]);
        for (size_t i = 0; i < plan->n_outputs; i++) {
            const qn_plan_output *o = &plan->outputs[i];
            if (strcmp(o->name, "best") == 0) continue; // says nothing that the logits do not
            tell_output(r, o->name, o->rows.n * symbols[o->rows.sym], o->arg.parts * o->arg.width);
        }
    }
}
