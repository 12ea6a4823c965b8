// The table of functions that every template has.
#include "chat/builtins.h"
#include "chat/clock.h"

enum { MAX_RANGE = 100000 };

static qn_status range_bounds(int64_t bounds[3], const qn_jinja_args *args, qn_err *err) {
    if (args->n < 1 || args->n > 3 || args->n_named)
        return QN_FAIL(err, FORMAT, "range takes 1 to 3 numbers, not %zu", args->n);
    for (size_t i = 0; i < args->n; i++) {
        QN_TRY(qn_jinja_val_defined(&args->items[i], err));
        if (!qn_jinja_val_is_whole(&args->items[i]))
            return QN_FAIL(err, FORMAT, "range wants whole numbers, not a '%s'",
                           qn_jinja_val_type(&args->items[i]));
        bounds[args->n == 1 ? 1 : i] = qn_jinja_val_whole(&args->items[i]);
    }
    if (bounds[2] == 0) return QN_FAIL(err, FORMAT, "a range with steps of 0");
    return QN_OK;
}

QN_BUILTIN(fn_range) {
    int64_t bounds[3] = {0, 0, 1};
    QN_TRY(range_bounds(bounds, in->args, err));
    // As unsigned numbers, which the distance of two signed ones always fits in.
    const bool is_up = bounds[2] > 0;
    const uint64_t low = (uint64_t)bounds[is_up ? 0 : 1], high = (uint64_t)bounds[is_up ? 1 : 0];
    const bool is_empty = is_up ? bounds[0] >= bounds[1] : bounds[0] <= bounds[1];
    const uint64_t step = is_up ? (uint64_t)bounds[2] : 0 - (uint64_t)bounds[2];
    const uint64_t n = is_empty ? 0 : (high - low - 1) / step + 1;
    if (n > MAX_RANGE)
        return QN_FAIL(err, LIMIT, "a range of %llu numbers, at most %d", (unsigned long long)n,
                       (int)MAX_RANGE);
    qn_jinja_val_range *range;
    QN_TRY(qn_jinja_alloc(&range, r, 1, sizeof *range, err));
    *range = (qn_jinja_val_range){
        .start = bounds[0], .stop = bounds[1], .step = bounds[2], .n = (size_t)n};
    *out = (qn_jinja_val){.kind = QN_VAL_RANGE, .as.range = range};
    return QN_OK;
}

// A pair of a list of pairs that makes a dict.
static qn_status add_pair(qn_jinja_dict *to, qn_jinja_run *r, const qn_jinja_val *pair,
                          qn_err *err) {
    const qn_jinja_val *parts;
    size_t n;
    QN_TRY(qn_jinja_val_items(&parts, &n, r, pair, err));
    if (n != 2) return QN_FAIL(err, FORMAT, "dict of items with %zu parts, not 2", n);
    return qn_jinja_dict_set(r, to, &parts[0], &parts[1], err);
}

static qn_status fill_dict(qn_jinja_dict *to, qn_jinja_run *r, const qn_jinja_args *args,
                           qn_err *err) {
    if (args->n > 1) return QN_FAIL(err, FORMAT, "one argument at most, not %zu", args->n);
    if (args->n == 1) {
        const bool is_dict = args->items[0].kind == QN_VAL_DICT;
        qn_jinja_val view = args->items[0];
        if (is_dict) view.kind = QN_VAL_VIEW;
        if (is_dict) view.mark = QN_VIEW_ITEMS;
        const qn_jinja_val *items;
        size_t n;
        QN_TRY(qn_jinja_val_items(&items, &n, r, &view, err));
        for (size_t i = 0; i < n; i++) QN_TRY(add_pair(to, r, &items[i], err));
    }
    for (size_t i = 0; i < args->n_named; i++) {
        const qn_jinja_val key = qn_jinja_val_text(args->names[i]);
        QN_TRY(qn_jinja_dict_set(r, to, &key, &args->named[i], err));
    }
    return QN_OK;
}

QN_BUILTIN(fn_dict) {
    qn_jinja_dict *dict;
    QN_TRY(qn_jinja_dict_make(&dict, r, in->args->n_named, err));
    QN_TRY(fill_dict(dict, r, in->args, err));
    *out = (qn_jinja_val){.kind = in->row->choice, .as.dict = dict};
    return QN_OK;
}

QN_BUILTIN(fn_cycler) {
    qn_jinja_cycler *cycler;
    if (in->args->n == 0) return QN_FAIL(err, FORMAT, "cycler needs values");
    QN_TRY(qn_jinja_alloc(&cycler, r, 1, sizeof *cycler, err));
    *cycler = (qn_jinja_cycler){.items = in->args->items, .n = in->args->n};
    *out = (qn_jinja_val){.kind = QN_VAL_CYCLER, .as.cycler = cycler};
    return QN_OK;
}

QN_BUILTIN(fn_joiner) {
    qn_jinja_cycler *joiner;
    qn_jinja_val *separator;
    QN_TRY(qn_jinja_alloc(&joiner, r, 1, sizeof *joiner, err));
    QN_TRY(qn_jinja_alloc(&separator, r, 1, sizeof *separator, err));
    *separator = qn_jinja_arg_is_given(in, 0) ? in->a[0] : qn_jinja_val_text(qn_str_of(", "));
    *joiner = (qn_jinja_cycler){.items = separator, .n = 1};
    *out = (qn_jinja_val){.kind = QN_VAL_JOINER, .as.cycler = joiner};
    return QN_OK;
}

// The template refuses the messages.
QN_BUILTIN(fn_raise_exception) {
    qn_str message;
    (void)out;
    QN_TRY(qn_jinja_val_str(&message, r, &in->a[0], err));
    return QN_FAIL(err, ARGUMENT, "%.*s", (int)(message.size < 400 ? message.size : 400),
                   message.data);
}

QN_BUILTIN(fn_strftime_now) {
    qn_str format = {"", 0};
    QN_TRY(qn_jinja_arg_text(&format, in, 0, err));
    qn_buf buf = qn_jinja_buf(r);
    QN_TRY(qn_jinja_spend(r, format.size * QN_COST_NUMBER, 1, err));
    qn_jinja_clock_print(&buf, format, r->now);
    return qn_jinja_text(out, r, &buf, err);
}

static const qn_jinja_builtin functions[] = {
    {"range", fn_range, "*", 0, 0},
    {"dict", fn_dict, "*", 0, QN_VAL_DICT},
    {"namespace", fn_dict, "*", 0, QN_VAL_NAMESPACE},
    {"cycler", fn_cycler, "*", 0, 0},
    {"joiner", fn_joiner, "sep", 0, 0},
    {"raise_exception", fn_raise_exception, "message", 1, 0},
    {"strftime_now", fn_strftime_now, "format", 1, 0},
    {"lipsum", NULL, "", 0, 0},
};

const qn_jinja_builtin *qn_jinja_function_find(qn_str name) {
    return qn_jinja_rows_find(functions, sizeof functions / sizeof *functions, name);
}
