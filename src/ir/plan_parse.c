// Reads the text form of a plan (plan_text.h). Lists grow on the heap while they are read and move
// into the plan's arena at the end.
#include "ir/plan_text.h"

#include "core/mem.h"
#include "ir/plan_check.h"
#include "ir/scan.h"

#include <stdio.h>
#include <string.h>

enum { TEXT_LIMIT = 1 << 26, EVERY_ATTR = (1 << QN_ATTR_COUNT) - 1 };

typedef struct reader {
    qn_scan scan;
    qn_plan plan; // what was read so far; its lists are on the heap
    size_t cap_leaves[QN_PLACE_COUNT], cap_buffers, cap_calls, cap_outputs;
    int64_t n_calls; // as the first line says
} reader;

static qn_status read_int32(reader *r, int32_t *out, const char *what) {
    int64_t n;
    qn_scan_skip(&r->scan);
    const char *begin = r->scan.at;
    QN_TRY(qn_scan_int(&r->scan, &n, what));
    if (n < 0 || n > INT32_MAX)
        return QN_SCAN_FAIL(&r->scan, begin, "%s: %lld, want 0 to %d", what, (long long)n,
                            INT32_MAX);
    *out = (int32_t)n;
    return QN_OK;
}

// The number of an item, which must be the next one of its kind.
static qn_status read_number(reader *r, const char *kind, size_t want) {
    int32_t got;
    qn_scan_skip(&r->scan);
    const char *begin = r->scan.at;
    QN_TRY(read_int32(r, &got, "a number"));
    if ((size_t)got == want) return QN_OK;
    return QN_SCAN_FAIL(&r->scan, begin, "%s %d, want %s %zu", kind, got, kind, want);
}

static qn_status need_word(reader *r, const char *word) {
    return qn_scan_take_word(&r->scan, word) ? QN_OK : qn_scan_expected(&r->scan, word);
}

// A word, or a string.
static qn_status read_name(reader *r, const char **out) {
    const qn_str word = qn_scan_peek(&r->scan);
    if (word.size == 0) return qn_scan_string(&r->scan, out, "the name of a kernel");
    *out = qn_arena_strdup(&r->plan.arena, word.data, word.size);
    r->scan.at += word.size;
    return *out ? QN_OK : QN_NOMEM(r->scan.err, "a plan");
}

static const qn_place leaf_places[] = {QN_PLACE_PARAM, QN_PLACE_CONST, QN_PLACE_INPUT,
                                       QN_PLACE_CACHE, QN_PLACE_STATE};

// "param7", "b3", "table": the letters are the place, the digits the index.
static qn_status read_place(reader *r, qn_plan_arg *arg) {
    const qn_str word = qn_scan_peek(&r->scan);
    for (int p = QN_PLACE_BUFFER; p < QN_PLACE_COUNT; p++) {
        const qn_str name = qn_str_of(p == QN_PLACE_BUFFER ? "b" : qn_place_name((qn_place)p));
        if (word.size < name.size || memcmp(word.data, name.data, name.size) != 0) continue;
        const bool is_alone = word.size == name.size;
        const bool has_digit =
            !is_alone && word.data[name.size] >= '0' && word.data[name.size] <= '9';
        if (p == QN_PLACE_TABLE ? !is_alone : !has_digit) continue;
        r->scan.at += name.size;
        arg->place = (qn_place)p;
        return p == QN_PLACE_TABLE ? QN_OK : read_int32(r, &arg->index, qn_place_name(arg->place));
    }
    return qn_scan_expected(&r->scan, "an argument");
}

static qn_status read_size(reader *r, int64_t *out, const char *what) {
    qn_scan_skip(&r->scan);
    const char *begin = r->scan.at;
    QN_TRY(qn_scan_int(&r->scan, out, what));
    if (*out >= 0) return QN_OK;
    return QN_SCAN_FAIL(&r->scan, begin, "%s: %lld, want 0 or more", what, (long long)*out);
}

static qn_status read_arg(reader *r, qn_plan_arg *arg) {
    qn_scan *s = &r->scan;
    *arg = (qn_plan_arg){0};
    if (qn_scan_take_word(s, "_")) return QN_OK;
    QN_TRY(read_place(r, arg));
    if (qn_scan_take(s, '+')) QN_TRY(read_size(r, &arg->offset, "an offset"));
    if (qn_scan_take(s, '(')) {
        QN_TRY(read_size(r, &arg->parts, "parts"));
        QN_TRY(need_word(r, "x"));
        QN_TRY(read_size(r, &arg->width, "a width"));
        QN_TRY(qn_scan_need(s, ')'));
    }
    const bool is_leaf = arg->place != QN_PLACE_BUFFER;
    if (is_leaf && qn_scan_take_word(s, "_")) return QN_OK;
    const qn_str word = qn_scan_peek(s);
    const bool is_next = qn_str_is(word, "using") || qn_str_is(word, "share"); // after the argument
    if (word.size && !is_next) return qn_scan_word(s, &arg->form, QN_ATTR_form);
    if (is_leaf) arg->form = QN_WORD_f32;
    return QN_OK;
}

typedef struct arg_list {
    qn_plan_arg *args;
    int *n, max;
    const char *what;
} arg_list;

static qn_status read_args(reader *r, arg_list list) {
    do {
        if (*list.n == list.max)
            return QN_SCAN_FAIL(&r->scan, r->scan.at, "more than %d %s", list.max, list.what);
        QN_TRY(read_arg(r, &list.args[(*list.n)++]));
    } while (qn_scan_take(&r->scan, ','));
    return QN_OK;
}

// True where an argument could begin.
static bool has_arg(reader *r) {
    const qn_str word = qn_scan_peek(&r->scan);
    return word.size && !qn_str_is(word, "using");
}

static qn_status read_stage(reader *r, qn_plan_call *c) {
    QN_TRY(qn_scan_need(&r->scan, '('));
    QN_TRY(qn_scan_op(&r->scan, &c->op));
    QN_TRY(qn_scan_need(&r->scan, '.'));
    QN_TRY(read_int32(r, &c->stage, "a stage"));
    return qn_scan_need(&r->scan, ')');
}

static qn_status read_operands(reader *r, qn_plan_call *c) {
    qn_scan *s = &r->scan;
    if (has_arg(r)) QN_TRY(read_args(r, (arg_list){c->out, &c->n_out, QN_MAX_OUT, "results"}));
    QN_TRY(qn_scan_need(s, '<'));
    QN_TRY(qn_scan_need(s, '-'));
    if (has_arg(r)) QN_TRY(read_args(r, (arg_list){c->in, &c->n_in, QN_MAX_IN, "arguments"}));
    if (!qn_scan_take_word(s, "using")) return QN_OK;
    return read_args(r, (arg_list){c->temp, &c->n_temp, QN_PLAN_TEMPS, "temporary values"});
}

// Puts the line in front of a fault that a check found.
static qn_status at_line(const reader *r, qn_status status) {
    return status ? qn_err_prefix(r->scan.err, status, "line %zu", r->scan.line) : QN_OK;
}

static qn_status read_call(reader *r) {
    qn_plan *plan = &r->plan;
    qn_plan_call c = {0};
    QN_TRY(read_number(r, "call", plan->n_calls));
    QN_TRY(read_name(r, &c.kernel));
    QN_TRY(read_stage(r, &c));
    QN_TRY(qn_scan_layer(&r->scan, &c.layer));
    QN_TRY(qn_scan_dim(&r->scan, &c.rows));
    QN_TRY(qn_scan_need(&r->scan, ':'));
    QN_TRY(read_operands(r, &c));
    QN_TRY(qn_scan_attrs(&r->scan, &c.attrs, c.op, EVERY_ATTR));
    void *calls = plan->calls;
    const bool grown = qn_grow(&calls, &r->cap_calls, plan->n_calls + 1, sizeof c);
    plan->calls = calls;
    if (!grown) return QN_NOMEM(r->scan.err, "a plan");
    plan->calls[plan->n_calls++] = c;
    return at_line(r, qn_plan_check_call(plan, plan->n_calls - 1, r->scan.err));
}

static qn_status read_buffer(reader *r) {
    qn_plan *plan = &r->plan;
    qn_plan_buffer b = {0};
    QN_TRY(read_number(r, "buffer", plan->n_buffers));
    QN_TRY(qn_scan_dim(&r->scan, &b.rows));
    QN_TRY(need_word(r, "x"));
    QN_TRY(read_size(r, &b.row_bytes, "bytes of a row"));
    QN_TRY(need_word(r, "live"));
    QN_TRY(read_int32(r, &b.first, "the first call"));
    QN_TRY(read_int32(r, &b.last, "the last call"));
    void *buffers = plan->buffers;
    const bool grown = qn_grow(&buffers, &r->cap_buffers, plan->n_buffers + 1, sizeof b);
    plan->buffers = buffers;
    if (!grown) return QN_NOMEM(r->scan.err, "a plan");
    plan->buffers[plan->n_buffers++] = b;
    return at_line(
        r, qn_plan_check_buffer(plan, plan->n_buffers - 1, (size_t)r->n_calls, r->scan.err));
}

// How a weight lies, and what one rank has of it; both may be left out.
static qn_status read_layout(reader *r, qn_plan_leaf *leaf) {
    const qn_str word = qn_scan_peek(&r->scan);
    if (word.size && !qn_str_is(word, "share"))
        QN_TRY(qn_scan_word(&r->scan, &leaf->layout, QN_ATTR_layout));
    return qn_scan_share(&r->scan, &leaf->share);
}

static qn_status read_leaf(reader *r, qn_place place) {
    qn_plan *plan = &r->plan;
    qn_plan_leaf leaf = {0};
    QN_TRY(read_number(r, qn_place_name(place), plan->n_leaves[place]));
    QN_TRY(qn_scan_string(&r->scan, &leaf.name, "a name"));
    QN_TRY(qn_scan_type(&r->scan, &leaf.type));
    QN_TRY(qn_scan_shape(&r->scan, &leaf.shape));
    if (place == QN_PLACE_PARAM) QN_TRY(read_layout(r, &leaf));
    if (place == QN_PLACE_CONST) QN_TRY(qn_scan_data(&r->scan, &leaf.data, leaf.type, &leaf.shape));
    void *leaves = plan->leaves[place];
    const bool grown =
        qn_grow(&leaves, &r->cap_leaves[place], plan->n_leaves[place] + 1, sizeof leaf);
    plan->leaves[place] = leaves;
    if (!grown) return QN_NOMEM(r->scan.err, "a plan");
    plan->leaves[place][plan->n_leaves[place]++] = leaf;
    return at_line(r, qn_plan_check_leaf(plan, place, plan->n_leaves[place] - 1, r->scan.err));
}

static qn_status read_output(reader *r) {
    qn_plan *plan = &r->plan;
    qn_plan_output output = {0};
    QN_TRY(qn_scan_string(&r->scan, &output.name, "the output's name"));
    QN_TRY(qn_scan_dim(&r->scan, &output.rows));
    QN_TRY(read_arg(r, &output.arg));
    QN_TRY(qn_scan_share(&r->scan, &output.share));
    void *outputs = plan->outputs;
    const bool grown = qn_grow(&outputs, &r->cap_outputs, plan->n_outputs + 1, sizeof output);
    plan->outputs = outputs;
    if (!grown) return QN_NOMEM(r->scan.err, "a plan");
    plan->outputs[plan->n_outputs++] = output;
    return at_line(
        r, qn_plan_check_output(plan, plan->n_outputs - 1, (size_t)r->n_calls, r->scan.err));
}

static qn_status read_first(reader *r) {
    if (!qn_scan_take_word(&r->scan, "plan")) return qn_scan_expected(&r->scan, "plan \"name\"");
    int32_t n;
    QN_TRY(qn_scan_string(&r->scan, &r->plan.name, "the plan's name"));
    QN_TRY(qn_scan_string(&r->scan, &r->plan.backend, "the backend's name"));
    QN_TRY(read_int32(r, &n, "the number of calls"));
    r->n_calls = n;
    return need_word(r, "calls");
}

static qn_status read_statement(reader *r) {
    if (qn_scan_is_blank(&r->scan)) return QN_OK;
    if (!r->plan.name) return read_first(r);
    if (qn_scan_take_word(&r->scan, "call")) return read_call(r);
    if (qn_scan_take_word(&r->scan, "buffer")) return read_buffer(r);
    if (qn_scan_take_word(&r->scan, "output")) return read_output(r);
    for (size_t i = 0; i < sizeof leaf_places / sizeof leaf_places[0]; i++) {
        if (qn_scan_take_word(&r->scan, qn_place_name(leaf_places[i])))
            return read_leaf(r, leaf_places[i]);
    }
    return qn_scan_expected(&r->scan, "a leaf, a buffer, a call or an output");
}

// A copy of a list in the plan's arena; NULL when memory is short. An empty list stays NULL.
static bool move_list(qn_arena *arena, void **list, size_t n, size_t size) {
    void *copy = n ? qn_arena_alloc(arena, n, size) : NULL;
    if (copy) memcpy(copy, *list, n * size);
    qn_free(*list);
    *list = copy;
    return copy || n == 0;
}

// Moves every list out of the heap, also when something has failed.
static bool move_lists(qn_plan *plan) {
    void *buffers = plan->buffers, *calls = plan->calls, *outputs = plan->outputs;
    bool ok = true;
    for (int p = 0; p < QN_PLACE_COUNT; p++) {
        void *leaves = plan->leaves[p];
        ok = move_list(&plan->arena, &leaves, plan->n_leaves[p], sizeof(qn_plan_leaf)) && ok;
        plan->leaves[p] = leaves;
    }
    ok = move_list(&plan->arena, &buffers, plan->n_buffers, sizeof(qn_plan_buffer)) && ok;
    ok = move_list(&plan->arena, &calls, plan->n_calls, sizeof(qn_plan_call)) && ok;
    ok = move_list(&plan->arena, &outputs, plan->n_outputs, sizeof(qn_plan_output)) && ok;
    plan->buffers = buffers;
    plan->calls = calls;
    plan->outputs = outputs;
    return ok;
}

qn_status qn_plan_parse(qn_plan *out, const char *text, size_t size, qn_err *err) {
    if (size > TEXT_LIMIT)
        return QN_FAIL(err, LIMIT, "a plan's text of %zu bytes, at most %d", size, TEXT_LIMIT);
    reader r = {0};
    r.scan = qn_scan_begin(text, size, &r.plan.arena, err);
    qn_status status = QN_OK;
    while (!status && r.scan.at < r.scan.end) {
        status = read_statement(&r);
        if (!status) status = qn_scan_end_line(&r.scan);
    }
    if (!status && !r.plan.name) status = qn_scan_expected(&r.scan, "plan \"name\"");
    if (!status && (size_t)r.n_calls != r.plan.n_calls)
        status = QN_FAIL(err, FORMAT, "line %zu: %zu calls, but the first line says %lld",
                         r.scan.line, r.plan.n_calls, (long long)r.n_calls);
    if (!move_lists(&r.plan) && !status) status = QN_NOMEM(err, "a plan");
    if (status)
        qn_plan_deinit(&r.plan);
    else
        *out = r.plan;
    return status;
}
