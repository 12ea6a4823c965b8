// The table of tests: what follows `is`.
#include "chat/builtins.h"

#include <math.h>

#define IS_KIND(name, condition)                                                                   \
    QN_BUILTIN(is_##name) {                                                                        \
        (void)r, (void)err;                                                                        \
        const qn_jinja_val *v = in->self;                                                          \
        *out = qn_jinja_val_bool(condition);                                                       \
        return QN_OK;                                                                              \
    }

IS_KIND(defined, v->kind != QN_VAL_UNDEFINED)
IS_KIND(undefined, v->kind == QN_VAL_UNDEFINED)
IS_KIND(none, v->kind == QN_VAL_NONE)
IS_KIND(boolean, v->kind == QN_VAL_BOOL)
IS_KIND(true, v->kind == QN_VAL_BOOL && v->as.b)
IS_KIND(false, v->kind == QN_VAL_BOOL && !v->as.b)
IS_KIND(integer, v->kind == QN_VAL_INT)
IS_KIND(float, v->kind == QN_VAL_FLOAT)
IS_KIND(number, qn_jinja_val_is_number(v))
IS_KIND(string, v->kind == QN_VAL_TEXT)
IS_KIND(mapping, v->kind == QN_VAL_DICT)
IS_KIND(escaped, v->kind == QN_VAL_TEXT && v->mark)
IS_KIND(callable, v->kind == QN_VAL_UNDEFINED || v->kind == QN_VAL_MACRO ||
                      v->kind == QN_VAL_BUILTIN || v->kind == QN_VAL_JOINER)

static bool is_row_of(const bool kinds[QN_VAL_KIND_COUNT], const qn_jinja_val *v) {
    return kinds[v->kind];
}

static const bool sequences[QN_VAL_KIND_COUNT] = {
    [QN_VAL_UNDEFINED] = true, [QN_VAL_TEXT] = true, [QN_VAL_LIST] = true,
    [QN_VAL_TUPLE] = true,     [QN_VAL_DICT] = true, [QN_VAL_RANGE] = true};
static const bool iterables[QN_VAL_KIND_COUNT] = {
    [QN_VAL_UNDEFINED] = true, [QN_VAL_TEXT] = true, [QN_VAL_LIST] = true,
    [QN_VAL_TUPLE] = true,     [QN_VAL_DICT] = true, [QN_VAL_RANGE] = true,
    [QN_VAL_VIEW] = true,      [QN_VAL_LAZY] = true, [QN_VAL_LOOP] = true};

IS_KIND(sequence, is_row_of(sequences, v))
IS_KIND(iterable, is_row_of(iterables, v))

// The same thing, not an equal one: of values that cannot change, equal ones of one kind.
QN_BUILTIN(is_sameas) {
    const qn_jinja_val *a = in->self, *b = &in->a[0];
    bool is_equal = false;
    if (a->kind == QN_VAL_LIST || a->kind == QN_VAL_TUPLE || a->kind == QN_VAL_DICT)
        is_equal = a->kind == b->kind && a->as.list == b->as.list;
    else if (a->kind == b->kind)
        QN_TRY(qn_jinja_val_equal(&is_equal, r, a, b, err));
    *out = qn_jinja_val_bool(is_equal);
    return QN_OK;
}

// --- numbers -------------------------------------------------------------------------------------

static qn_status rest_is(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_val *v,
                         const qn_jinja_val *by, int64_t want, qn_err *err) {
    const qn_jinja_val wanted = qn_jinja_val_int(want);
    qn_jinja_val rest;
    bool is_equal;
    QN_TRY(qn_jinja_val_math(&rest, r, QN_MATH_MOD, v, by, err));
    QN_TRY(qn_jinja_val_equal(&is_equal, r, &rest, &wanted, err));
    *out = qn_jinja_val_bool(is_equal);
    return QN_OK;
}

QN_BUILTIN(is_even) {
    const qn_jinja_val two = qn_jinja_val_int(2);
    return rest_is(out, r, in->self, &two, in->row->choice, err);
}

QN_BUILTIN(is_divisibleby) { return rest_is(out, r, in->self, &in->a[0], 0, err); }

// --- comparisons ---------------------------------------------------------------------------------

enum { LESS = 1, EQUAL = 2, MORE = 4 };

QN_BUILTIN(is_ordered) {
    int order;
    QN_TRY(qn_jinja_val_order(&order, r, in->self, &in->a[0], err));
    const int is = order == 2 ? 0 : order < 0 ? LESS : order > 0 ? MORE : EQUAL;
    *out = qn_jinja_val_bool(in->row->choice & is);
    return QN_OK;
}

QN_BUILTIN(is_equal) {
    bool equal;
    QN_TRY(qn_jinja_val_equal(&equal, r, in->self, &in->a[0], err));
    *out = qn_jinja_val_bool(equal != in->row->choice);
    return QN_OK;
}

QN_BUILTIN(is_in) {
    bool contains;
    QN_TRY(qn_jinja_val_contains(&contains, r, in->self, &in->a[0], err));
    *out = qn_jinja_val_bool(contains);
    return QN_OK;
}

// --- texts and names -----------------------------------------------------------------------------

QN_BUILTIN(is_case) {
    qn_str text;
    bool is_unsafe;
    QN_TRY(qn_jinja_val_str(&text, r, in->self, err));
    const qn_jinja_val self = qn_jinja_val_text(text);
    const qn_str name = qn_str_of(in->row->choice ? "isupper" : "islower");
    const qn_jinja_builtin *row = qn_jinja_method_find(&self, name, &is_unsafe);
    return qn_jinja_builtin_call(out, r, row, &self, &(qn_jinja_args){0}, err);
}

QN_BUILTIN(is_known) {
    qn_str name;
    QN_TRY(qn_jinja_val_str(&name, r, in->self, err));
    *out = qn_jinja_val_bool((in->row->choice ? qn_jinja_test_find : qn_jinja_filter_find)(name) !=
                             NULL);
    return QN_OK;
}

static const qn_jinja_builtin tests[] = {
    {"boolean", is_boolean, "", 0, 0},
    {"callable", is_callable, "", 0, 0},
    {"defined", is_defined, "", 0, 0},
    {"divisibleby", is_divisibleby, "num", 1, 0},
    {"eq", is_equal, "b", 1, 0},
    {"equalto", is_equal, "b", 1, 0},
    {"==", is_equal, "b", 1, 0},
    {"escaped", is_escaped, "", 0, 0},
    {"even", is_even, "", 0, 0},
    {"false", is_false, "", 0, 0},
    {"filter", is_known, "", 0, 0},
    {"float", is_float, "", 0, 0},
    {"ge", is_ordered, "b", 1, MORE | EQUAL},
    {">=", is_ordered, "b", 1, MORE | EQUAL},
    {"gt", is_ordered, "b", 1, MORE},
    {"greaterthan", is_ordered, "b", 1, MORE},
    {">", is_ordered, "b", 1, MORE},
    {"in", is_in, "seq", 1, 0},
    {"integer", is_integer, "", 0, 0},
    {"iterable", is_iterable, "", 0, 0},
    {"le", is_ordered, "b", 1, LESS | EQUAL},
    {"<=", is_ordered, "b", 1, LESS | EQUAL},
    {"lower", is_case, "", 0, 0},
    {"lt", is_ordered, "b", 1, LESS},
    {"lessthan", is_ordered, "b", 1, LESS},
    {"<", is_ordered, "b", 1, LESS},
    {"mapping", is_mapping, "", 0, 0},
    {"ne", is_equal, "b", 1, 1},
    {"!=", is_equal, "b", 1, 1},
    {"none", is_none, "", 0, 0},
    {"number", is_number, "", 0, 0},
    {"odd", is_even, "", 0, 1},
    {"sameas", is_sameas, "other", 1, 0},
    {"sequence", is_sequence, "", 0, 0},
    {"string", is_string, "", 0, 0},
    {"test", is_known, "", 0, 1},
    {"true", is_true, "", 0, 0},
    {"undefined", is_undefined, "", 0, 0},
    {"upper", is_case, "", 0, 1},
};

const qn_jinja_builtin *qn_jinja_test_find(qn_str name) {
    return qn_jinja_rows_find(tests, sizeof tests / sizeof *tests, name);
}
