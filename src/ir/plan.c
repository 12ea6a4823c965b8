#include "ir/plan.h"

#include "core/mem.h"
#include "ir/plan_check.h"
#include "ir/share.h"

#include <string.h>

void qn_plan_deinit(qn_plan *plan) {
    qn_arena_deinit(&plan->arena);
    *plan = (qn_plan){0};
}

bool qn_call_gathers(const qn_plan_call *call) {
    return call->op == QN_OP_ALL_GATHER && call->attrs.length > 0;
}

const char *qn_place_name(qn_place place) {
    static const char *const names[] = {"nothing", "buffer", "param", "const",
                                        "input",   "table",  "cache", "state"};
    return names[place];
}

static qn_status check_dim(const qn_dim *dim, const char *what, qn_err *err) {
    if (dim->n >= 1 && dim->sym < QN_SYM_COUNT) return QN_OK;
    return QN_FAIL(err, FORMAT, "%s: %lld times symbol %d of %d", what, (long long)dim->n,
                   (int)dim->sym, QN_SYM_COUNT);
}

// Numbers that the plan itself holds: float32, of a known size.
static qn_status check_const(const qn_plan_leaf *leaf, qn_err *err) {
    int64_t n = 1;
    bool sized = leaf->type == QN_TYPE_F32 && leaf->data;
    for (int d = 0; d < leaf->shape.n_dims; d++)
        sized = sized && leaf->shape.dims[d].sym == QN_SYM_ONE &&
                qn_i64_mul(&n, n, leaf->shape.dims[d].n);
    char text[128];
    if (sized) return QN_OK;
    return QN_FAIL(err, FORMAT, "a constant %s %s %s data", qn_type_get(leaf->type)->name,
                   qn_shape_text(text, sizeof text, &leaf->shape), leaf->data ? "with" : "without");
}

const qn_plan_output *qn_plan_find_output(const qn_plan *plan, const char *name) {
    for (size_t i = 0; i < plan->n_outputs; i++) {
        if (strcmp(plan->outputs[i].name, name) == 0) return &plan->outputs[i];
    }
    return NULL;
}

static qn_status check_leaf(const qn_plan_leaf *leaf, qn_place place, qn_err *err) {
    const bool is_layout =
        leaf->layout < QN_WORD_COUNT && qn_word_get(leaf->layout)->attr == QN_ATTR_layout;
    if (!is_layout || (place != QN_PLACE_PARAM && leaf->layout != QN_WORD_rows))
        return QN_FAIL(err, FORMAT, "layout %d of a %s", (int)leaf->layout, qn_place_name(place));
    if (leaf->type >= QN_TYPE_COUNT)
        return QN_FAIL(err, FORMAT, "type %d of %d", (int)leaf->type, QN_TYPE_COUNT);
    if (leaf->shape.n_dims < 0 || leaf->shape.n_dims > QN_GRAPH_DIMS)
        return QN_FAIL(err, FORMAT, "%d dimensions, at most %d", leaf->shape.n_dims, QN_GRAPH_DIMS);
    for (int d = 0; d < leaf->shape.n_dims; d++)
        QN_TRY(check_dim(&leaf->shape.dims[d], "dimension", err));
    if (leaf->share && place != QN_PLACE_PARAM)
        return QN_FAIL(err, FORMAT, "a share of a %s", qn_place_name(place));
    QN_TRY(qn_share_check_weight(leaf->share, &leaf->shape, err));
    if (place == QN_PLACE_CONST) return check_const(leaf, err);
    return leaf->data ? QN_FAIL(err, FORMAT, "data in a %s", qn_place_name(place)) : QN_OK;
}

qn_status qn_plan_check_leaf(const qn_plan *plan, qn_place place, size_t i, qn_err *err) {
    const qn_plan_leaf *leaf = &plan->leaves[place][i];
    if (!leaf->name) return QN_FAIL(err, FORMAT, "%s %zu has no name", qn_place_name(place), i);
    const qn_status status = check_leaf(leaf, place, err);
    return status ? qn_err_prefix(err, status, "%s %zu (%s)", qn_place_name(place), i, leaf->name)
                  : QN_OK;
}

qn_status qn_plan_check_buffer(const qn_plan *plan, size_t i, size_t n_calls, qn_err *err) {
    const qn_plan_buffer *b = &plan->buffers[i];
    const qn_status status = check_dim(&b->rows, "rows", err);
    if (status) return qn_err_prefix(err, status, "buffer %zu", i);
    if (b->row_bytes < 1)
        return QN_FAIL(err, FORMAT, "buffer %zu: rows of %lld bytes, want 1 or more", i,
                       (long long)b->row_bytes);
    if (b->first < 0 || b->last < b->first || (size_t)b->last >= n_calls)
        return QN_FAIL(err, FORMAT, "buffer %zu: live from call %d to %d of %zu", i, b->first,
                       b->last, n_calls);
    return QN_OK;
}

static bool is_form(qn_word form) {
    return form < QN_WORD_COUNT && qn_word_get(form)->attr == QN_ATTR_form;
}

// Floats must end inside the row; what packed forms take is the backend's own, so that only their
// beginning can be looked at here.
static qn_status check_extent(const qn_plan_arg *arg, const qn_plan_buffer *b, qn_err *err) {
    int64_t end = 0;
    const bool fits = arg->form == QN_WORD_f32
                          ? qn_i64_mul(&end, arg->parts, arg->width) &&
                                qn_i64_mul(&end, end, (int64_t)sizeof(float)) &&
                                qn_i64_add(&end, end, arg->offset) && end <= b->row_bytes
                          : arg->offset < b->row_bytes;
    if (fits) return QN_OK;
    return QN_FAIL(err, FORMAT,
                   "%lld x %lld %s at byte %lld of buffer %d, whose rows have %lld bytes",
                   (long long)arg->parts, (long long)arg->width, qn_word_get(arg->form)->name,
                   (long long)arg->offset, arg->index, (long long)b->row_bytes);
}

static qn_status check_arg(const qn_plan *plan, const qn_plan_arg *arg, qn_err *err) {
    if (arg->place >= QN_PLACE_COUNT)
        return QN_FAIL(err, FORMAT, "place %d of %d", (int)arg->place, QN_PLACE_COUNT);
    if (arg->place == QN_PLACE_NONE) {
        const bool is_zero =
            !arg->index && !arg->offset && !arg->parts && !arg->width && arg->form == 0;
        return is_zero ? QN_OK
                       : QN_FAIL(err, FORMAT, "absent, but of index %d and %lld x %lld", arg->index,
                                 (long long)arg->parts, (long long)arg->width);
    }
    const size_t n = arg->place == QN_PLACE_BUFFER  ? plan->n_buffers
                     : arg->place == QN_PLACE_TABLE ? 1
                                                    : plan->n_leaves[arg->place];
    if (arg->index < 0 || (size_t)arg->index >= n)
        return QN_FAIL(err, FORMAT, "%s %d of %zu", qn_place_name(arg->place), arg->index, n);
    if (arg->offset < 0 || arg->parts < 0 || arg->width < 0)
        return QN_FAIL(err, FORMAT, "%lld x %lld at byte %lld", (long long)arg->parts,
                       (long long)arg->width, (long long)arg->offset);
    if (!is_form(arg->form) && (arg->form != 0 || arg->place == QN_PLACE_BUFFER))
        return QN_FAIL(err, FORMAT, "%s %d: form %d is not a form", qn_place_name(arg->place),
                       arg->index, (int)arg->form);
    return arg->place == QN_PLACE_BUFFER ? check_extent(arg, &plan->buffers[arg->index], err)
                                         : QN_OK;
}

// Written with as many rows as the call (or output) has.
static qn_status check_rows(const qn_plan *plan, const qn_plan_arg *arg, const qn_dim *rows,
                            qn_err *err) {
    if (arg->place != QN_PLACE_BUFFER) return QN_OK;
    const qn_dim *have = &plan->buffers[arg->index].rows;
    if (have->sym == rows->sym && have->n >= rows->n) return QN_OK;
    return QN_FAIL(err, FORMAT, "%lld%s rows, but buffer %d has %lld%s", (long long)rows->n,
                   qn_sym_name(rows->sym), arg->index, (long long)have->n, qn_sym_name(have->sym));
}

// One argument of call i: where it lies, that it may be written where it is a result, and that the
// call is in the buffer's lifetime.
static qn_status check_use(const qn_plan *plan, size_t i, const qn_plan_arg *arg, bool is_written,
                           qn_err *err) {
    QN_TRY(check_arg(plan, arg, err));
    const bool is_fixed = arg->place == QN_PLACE_PARAM || arg->place == QN_PLACE_CONST ||
                          arg->place == QN_PLACE_INPUT || arg->place == QN_PLACE_TABLE;
    if (is_written && is_fixed)
        return QN_FAIL(err, FORMAT, "%s %d is written", qn_place_name(arg->place), arg->index);
    const qn_dim one = {.n = 1};
    const qn_plan_call *call = &plan->calls[i];
    if (is_written)
        QN_TRY(check_rows(plan, arg, qn_op_get(call->op)->folds ? &one : &call->rows, err));
    if (arg->place != QN_PLACE_BUFFER) return QN_OK;
    const qn_plan_buffer *b = &plan->buffers[arg->index];
    if ((size_t)b->first <= i && i <= (size_t)b->last) return QN_OK;
    return QN_FAIL(err, FORMAT, "buffer %d lives from call %d to %d", arg->index, b->first,
                   b->last);
}

static qn_status check_uses(const qn_plan *plan, size_t i, qn_err *err) {
    const qn_plan_call *c = &plan->calls[i];
    const struct {
        const char *name;
        const qn_plan_arg *args;
        int n;
        bool is_written;
    } lists[] = {{"argument", c->in, c->n_in, false},
                 {"result", c->out, c->n_out, true},
                 {"temporary", c->temp, c->n_temp, true}};
    for (size_t l = 0; l < sizeof lists / sizeof lists[0]; l++) {
        for (int a = 0; a < lists[l].n; a++) {
            const qn_status status =
                check_use(plan, i, &lists[l].args[a], lists[l].is_written, err);
            if (status) return qn_err_prefix(err, status, "%s %d", lists[l].name, a);
        }
    }
    return QN_OK;
}

// Attributes that the op names hold a word of theirs; others may be 0.
static qn_status check_words(const qn_plan_call *c, qn_err *err) {
    for (int a = 0; a < QN_ATTR_COUNT; a++) {
        const qn_attr_info *attr = qn_attr_get((qn_attr)a);
        if (attr->kind != QN_ATTR_WORD) continue;
        const qn_word word = *(const qn_word *)((const char *)&c->attrs + attr->offset);
        const bool is_own = word < QN_WORD_COUNT && qn_word_get(word)->attr == (qn_attr)a;
        if (!is_own && (word != 0 || qn_op_get(c->op)->attrs >> a & 1u))
            return QN_FAIL(err, FORMAT, "%s holds word %d", attr->name, (int)word);
    }
    return QN_OK;
}

static qn_status check_call(const qn_plan *plan, size_t i, qn_err *err) {
    const qn_plan_call *c = &plan->calls[i];
    if (c->op >= QN_OP_COUNT) return QN_FAIL(err, FORMAT, "op %d of %d", (int)c->op, QN_OP_COUNT);
    if (c->stage < 0 || c->layer < -1)
        return QN_FAIL(err, FORMAT, "stage %d in layer %d", c->stage, c->layer);
    if (c->n_in < 0 || c->n_in > QN_MAX_IN || c->n_out < 0 || c->n_out > QN_MAX_OUT ||
        c->n_temp < 0 || c->n_temp > QN_PLAN_TEMPS)
        return QN_FAIL(err, FORMAT,
                       "%d arguments, %d results, %d temporary values, at most %d, %d, %d", c->n_in,
                       c->n_out, c->n_temp, QN_MAX_IN, QN_MAX_OUT, QN_PLAN_TEMPS);
    QN_TRY(check_dim(&c->rows, "rows", err));
    QN_TRY(check_words(c, err));
    return check_uses(plan, i, err);
}

qn_status qn_plan_check_call(const qn_plan *plan, size_t i, qn_err *err) {
    const char *kernel = plan->calls[i].kernel;
    if (!kernel) return QN_FAIL(err, FORMAT, "call %zu has no kernel", i);
    const qn_status status = check_call(plan, i, err);
    return status ? qn_err_prefix(err, status, "call %zu (%s)", i, kernel) : QN_OK;
}

// A share of an output is one of the numbers of its rows.
static qn_status check_share(const qn_plan_output *output, qn_err *err) {
    const qn_shape rows = {2, {output->rows, {output->arg.width, QN_SYM_ONE}}};
    if (output->share && (output->share->axis != 1 || output->arg.parts != 1))
        return QN_FAIL(err, FORMAT, "a share of axis %d of %lld parts, want 1 of 1",
                       output->share->axis, (long long)output->arg.parts);
    return qn_share_check(output->share, &rows, err);
}

// An output is read after the last call.
static qn_status check_output(const qn_plan *plan, const qn_plan_output *output, size_t n_calls,
                              qn_err *err) {
    QN_TRY(check_dim(&output->rows, "rows", err));
    QN_TRY(check_arg(plan, &output->arg, err));
    QN_TRY(check_rows(plan, &output->arg, &output->rows, err));
    QN_TRY(check_share(output, err));
    if (output->arg.place != QN_PLACE_BUFFER) return QN_OK;
    const int32_t last = plan->buffers[output->arg.index].last;
    if ((size_t)last + 1 == n_calls) return QN_OK;
    return QN_FAIL(err, FORMAT, "buffer %d lives to call %d of %zu", output->arg.index, last,
                   n_calls);
}

qn_status qn_plan_check_output(const qn_plan *plan, size_t i, size_t n_calls, qn_err *err) {
    const char *name = plan->outputs[i].name;
    if (!name) return QN_FAIL(err, FORMAT, "output %zu has no name", i);
    const qn_status status = check_output(plan, &plan->outputs[i], n_calls, err);
    return status ? qn_err_prefix(err, status, "output %s", name) : QN_OK;
}

qn_status qn_plan_verify(const qn_plan *plan, qn_err *err) {
    if (!plan->name || !plan->backend) return QN_FAIL(err, FORMAT, "a plan without a name");
    if (plan->n_calls > INT32_MAX || plan->n_buffers > INT32_MAX)
        return QN_FAIL(err, FORMAT, "%zu calls, %zu buffers, at most %d", plan->n_calls,
                       plan->n_buffers, INT32_MAX);
    for (int p = 0; p < QN_PLACE_COUNT; p++) {
        const bool has_list = p == QN_PLACE_PARAM || p == QN_PLACE_CONST || p == QN_PLACE_INPUT ||
                              p == QN_PLACE_CACHE || p == QN_PLACE_STATE;
        if (!has_list && plan->n_leaves[p])
            return QN_FAIL(err, FORMAT, "%zu leaves of %s, want 0", plan->n_leaves[p],
                           qn_place_name((qn_place)p));
        for (size_t i = 0; i < plan->n_leaves[p]; i++)
            QN_TRY(qn_plan_check_leaf(plan, (qn_place)p, i, err));
    }
    for (size_t i = 0; i < plan->n_buffers; i++)
        QN_TRY(qn_plan_check_buffer(plan, i, plan->n_calls, err));
    for (size_t i = 0; i < plan->n_calls; i++) QN_TRY(qn_plan_check_call(plan, i, err));
    for (size_t i = 0; i < plan->n_outputs; i++)
        QN_TRY(qn_plan_check_output(plan, i, plan->n_calls, err));
    return QN_OK;
}
