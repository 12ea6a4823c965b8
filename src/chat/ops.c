// Operators, by Python's rules.
#include "chat/chat_text.h"
#include "core/mem.h"

#include <math.h>

// --- equal, less, in -----------------------------------------------------------------------------

static bool is_sequence(const qn_jinja_val *v) {
    return v->kind == QN_VAL_LIST || v->kind == QN_VAL_TUPLE;
}

static qn_status equal_items(bool *out, qn_jinja_run *r, const qn_jinja_val *a,
                             const qn_jinja_val *b, size_t n, qn_err *err) {
    *out = true;
    for (size_t i = 0; i < n && *out; i++) QN_TRY(qn_jinja_val_equal(out, r, &a[i], &b[i], err));
    return QN_OK;
}

static qn_status equal_dicts(bool *out, qn_jinja_run *r, const qn_jinja_dict *a,
                             const qn_jinja_dict *b, qn_err *err) {
    *out = a->n == b->n;
    for (size_t i = 0; i < a->n && *out; i++) {
        qn_jinja_val *other;
        QN_TRY(qn_jinja_dict_find(&other, r, b, &a->keys[i], err));
        *out = other != NULL;
        if (other) QN_TRY(qn_jinja_val_equal(out, r, &a->values[i], other, err));
    }
    return QN_OK;
}

static qn_status equal_inside(bool *out, qn_jinja_run *r, const qn_jinja_val *a,
                              const qn_jinja_val *b, qn_err *err) {
    *out = false;
    if (a->kind != b->kind) return QN_OK;
    switch ((qn_jinja_val_kind)a->kind) {
    case QN_VAL_UNDEFINED:
    case QN_VAL_NONE:
        *out = true;
        return QN_OK;
    case QN_VAL_TEXT:
        *out = qn_jinja_str_same(a->as.s, b->as.s);
        return QN_OK;
    case QN_VAL_LIST:
    case QN_VAL_TUPLE:
        if (a->as.list->n != b->as.list->n) return QN_OK;
        return equal_items(out, r, a->as.list->items, b->as.list->items, a->as.list->n, err);
    case QN_VAL_DICT:
        return equal_dicts(out, r, a->as.dict, b->as.dict, err);
    case QN_VAL_RANGE:
        *out = a->as.range->n == b->as.range->n &&
               (a->as.range->n == 0 ||
                (a->as.range->start == b->as.range->start &&
                 (a->as.range->n == 1 || a->as.range->step == b->as.range->step)));
        return QN_OK;
    default:
        *out = a->as.dict == b->as.dict && a->mark == b->mark; // the same thing
        return QN_OK;
    }
}

// What two values have to be read for a comparison, in bytes.
static size_t common_size(const qn_jinja_val *a, const qn_jinja_val *b) {
    if (a->kind != QN_VAL_TEXT || b->kind != QN_VAL_TEXT) return 0;
    return a->as.s.size < b->as.s.size ? a->as.s.size : b->as.s.size;
}

qn_status qn_jinja_val_equal(bool *out, qn_jinja_run *r, const qn_jinja_val *a,
                             const qn_jinja_val *b, qn_err *err) {
    QN_TRY(qn_jinja_charge(r, common_size(a, b), err));
    if (qn_jinja_val_is_whole(a) && qn_jinja_val_is_whole(b)) {
        *out = qn_jinja_val_whole(a) == qn_jinja_val_whole(b);
        return QN_OK;
    }
    if (qn_jinja_val_is_number(a) && qn_jinja_val_is_number(b)) {
        *out = qn_jinja_val_real(a) == qn_jinja_val_real(b);
        return QN_OK;
    }
    QN_TRY(qn_jinja_enter(r, err));
    QN_TRY(equal_inside(out, r, a, b, err));
    qn_jinja_leave(r);
    return QN_OK;
}

static int order_reals(double a, double b) {
    if (isnan(a) || isnan(b)) return 2;
    return a < b ? -1 : a > b;
}

static qn_status order_lists(int *out, qn_jinja_run *r, const qn_jinja_val_list *a,
                             const qn_jinja_val_list *b, qn_err *err) {
    QN_TRY(qn_jinja_enter(r, err));
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        bool is_equal;
        QN_TRY(qn_jinja_val_equal(&is_equal, r, &a->items[i], &b->items[i], err));
        if (is_equal) continue;
        QN_TRY(qn_jinja_val_order(out, r, &a->items[i], &b->items[i], err));
        qn_jinja_leave(r);
        return QN_OK;
    }
    qn_jinja_leave(r);
    *out = a->n < b->n ? -1 : a->n > b->n;
    return QN_OK;
}

qn_status qn_jinja_val_order(int *out, qn_jinja_run *r, const qn_jinja_val *a,
                             const qn_jinja_val *b, qn_err *err) {
    QN_TRY(qn_jinja_charge(r, common_size(a, b), err));
    if (qn_jinja_val_is_whole(a) && qn_jinja_val_is_whole(b)) {
        const int64_t x = qn_jinja_val_whole(a), y = qn_jinja_val_whole(b);
        *out = x < y ? -1 : x > y;
        return QN_OK;
    }
    if (qn_jinja_val_is_number(a) && qn_jinja_val_is_number(b)) {
        *out = order_reals(qn_jinja_val_real(a), qn_jinja_val_real(b));
        return QN_OK;
    }
    if (a->kind == QN_VAL_TEXT && b->kind == QN_VAL_TEXT) {
        *out = qn_jinja_str_compare(a->as.s, b->as.s);
        return QN_OK;
    }
    if (is_sequence(a) && a->kind == b->kind)
        return order_lists(out, r, a->as.list, b->as.list, err);
    QN_TRY(qn_jinja_val_defined(a, err));
    QN_TRY(qn_jinja_val_defined(b, err));
    return QN_FAIL(err, FORMAT, "'%s' and '%s' have no order", qn_jinja_val_type(a),
                   qn_jinja_val_type(b));
}

qn_status qn_jinja_val_contains(bool *out, qn_jinja_run *r, const qn_jinja_val *part,
                                const qn_jinja_val *whole, qn_err *err) {
    *out = false;
    if (whole->kind == QN_VAL_TEXT) {
        QN_TRY(qn_jinja_val_defined(part, err));
        if (part->kind != QN_VAL_TEXT)
            return QN_FAIL(err, FORMAT, "'in <str>' wants a str, not a '%s'",
                           qn_jinja_val_type(part));
        QN_TRY(qn_jinja_text_pay_search(r, whole->as.s, err));
        *out = qn_jinja_text_find(whole->as.s, part->as.s, 0) != SIZE_MAX;
        return QN_OK;
    }
    if (whole->kind == QN_VAL_DICT) {
        qn_jinja_val *place;
        QN_TRY(qn_jinja_dict_find(&place, r, whole->as.dict, part, err));
        *out = place != NULL;
        return QN_OK;
    }
    const qn_jinja_val *items;
    size_t n;
    QN_TRY(qn_jinja_val_items(&items, &n, r, whole, err));
    for (size_t i = 0; i < n && !*out; i++)
        QN_TRY(qn_jinja_val_equal(out, r, &items[i], part, err));
    return QN_OK;
}

// --- numbers -------------------------------------------------------------------------------------

static qn_status too_large(qn_err *err) {
    return QN_FAIL(err, LIMIT, "a whole number that needs more than 64 bits");
}

static qn_status whole_pow(qn_jinja_val *out, int64_t base, int64_t exponent, qn_err *err) {
    int64_t result = 1;
    if (exponent < 0) {
        if (base == 0) return QN_FAIL(err, FORMAT, "division by zero");
        *out = qn_jinja_val_float(pow((double)base, (double)exponent));
        return QN_OK;
    }
    while (exponent) {
        if (exponent & 1 && __builtin_mul_overflow(result, base, &result)) return too_large(err);
        exponent >>= 1;
        if (exponent && __builtin_mul_overflow(base, base, &base)) return too_large(err);
    }
    *out = qn_jinja_val_int(result);
    return QN_OK;
}

// Rounded towards minus infinity; the rest has the divisor's sign.
static qn_status whole_divide(qn_jinja_val *out, int64_t a, int64_t b, bool wants_rest,
                              qn_err *err) {
    if (b == 0) return QN_FAIL(err, FORMAT, "division by zero");
    if (b == -1) { // the only divisor that can overflow
        if (a == INT64_MIN && !wants_rest) return too_large(err);
        *out = qn_jinja_val_int(wants_rest ? 0 : -a);
        return QN_OK;
    }
    const int64_t rest = a % b;
    const bool is_off = rest != 0 && (rest < 0) != (b < 0);
    *out = qn_jinja_val_int(wants_rest ? rest + (is_off ? b : 0) : a / b - is_off);
    return QN_OK;
}

static qn_status whole_math(qn_jinja_val *out, qn_jinja_math op, int64_t a, int64_t b,
                            qn_err *err) {
    int64_t result = 0;
    bool is_over = false;
    switch (op) {
    case QN_MATH_ADD:
        is_over = __builtin_add_overflow(a, b, &result);
        break;
    case QN_MATH_SUB:
        is_over = __builtin_sub_overflow(a, b, &result);
        break;
    case QN_MATH_MUL:
        is_over = __builtin_mul_overflow(a, b, &result);
        break;
    case QN_MATH_DIV:
        if (b == 0) return QN_FAIL(err, FORMAT, "division by zero");
        *out = qn_jinja_val_float((double)a / (double)b);
        return QN_OK;
    case QN_MATH_FLOORDIV:
    case QN_MATH_MOD:
        return whole_divide(out, a, b, op == QN_MATH_MOD, err);
    case QN_MATH_POW:
        return whole_pow(out, a, b, err);
    }
    if (is_over) return too_large(err);
    *out = qn_jinja_val_int(result);
    return QN_OK;
}

static qn_status real_math(qn_jinja_val *out, qn_jinja_math op, double a, double b, qn_err *err) {
    double result = 0;
    const bool divides = op == QN_MATH_DIV || op == QN_MATH_FLOORDIV || op == QN_MATH_MOD;
    if (divides && b == 0) return QN_FAIL(err, FORMAT, "division by zero");
    switch (op) {
    case QN_MATH_ADD:
        result = a + b;
        break;
    case QN_MATH_SUB:
        result = a - b;
        break;
    case QN_MATH_MUL:
        result = a * b;
        break;
    case QN_MATH_DIV:
        result = a / b;
        break;
    case QN_MATH_FLOORDIV:
        result = floor(a / b);
        break;
    case QN_MATH_MOD:
        result = fmod(a, b);
        if (result != 0 && (result < 0) != (b < 0)) result += b;
        break;
    case QN_MATH_POW:
        if (a == 0 && b < 0) return QN_FAIL(err, FORMAT, "division by zero");
        result = pow(a, b);
        if (isnan(result) && !isnan(a) && !isnan(b))
            return QN_FAIL(err, UNSUPPORTED, "complex numbers");
        break;
    }
    *out = qn_jinja_val_float(result);
    return QN_OK;
}

// --- texts and lists -----------------------------------------------------------------------------

// One "safe" text makes the sum safe, and the other is escaped.
static qn_status add_texts(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_val *a,
                           const qn_jinja_val *b, qn_err *err) {
    qn_jinja_val parts[2] = {*a, *b};
    const bool is_safe = a->mark || b->mark;
    for (int i = 0; i < 2; i++) {
        if (!is_safe || parts[i].mark) continue;
        qn_buf buf = qn_jinja_buf(r);
        QN_TRY(qn_jinja_spend(r, parts[i].as.s.size, QN_PER_CHAR, err));
        qn_jinja_text_escape(&buf, parts[i].as.s);
        QN_TRY(qn_jinja_text(&parts[i], r, &buf, err));
    }
    QN_TRY(qn_jinja_text_join(out, r, parts[0].as.s, parts[1].as.s, err));
    out->mark = is_safe;
    return QN_OK;
}

static qn_status add_lists(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_val *a,
                           const qn_jinja_val *b, qn_err *err) {
    const qn_jinja_val_list *x = a->as.list, *y = b->as.list;
    QN_TRY(qn_jinja_charge(r, (x->n + y->n) * sizeof(qn_jinja_val), err));
    QN_TRY(qn_jinja_val_list_make(out, r, a->kind, x->n + y->n, err));
    qn_jinja_val *to = out->as.list->items;
    if (x->n) memcpy(to, x->items, x->n * sizeof *to);
    if (y->n) memcpy(to + x->n, y->items, y->n * sizeof *to);
    return QN_OK;
}

static qn_status repeat_text(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_val *text,
                             size_t times, qn_err *err) {
    const qn_str s = text->as.s;
    size_t size;
    char *data;
    if (!qn_size_mul(&size, s.size, times) || !qn_size_add(&size, size, 1)) size = SIZE_MAX;
    QN_TRY(qn_jinja_charge(r, size, err));
    QN_TRY(qn_jinja_alloc(&data, r, size, 1, err));
    for (size_t i = 0; i < times && s.size; i++) memcpy(data + i * s.size, s.data, s.size);
    *out = qn_jinja_val_text((qn_str){data, size - 1});
    out->mark = text->mark;
    return QN_OK;
}

static qn_status repeat(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_val *v, int64_t times,
                        qn_err *err) {
    if (times < 0) times = 0;
    if (v->kind == QN_VAL_TEXT) return repeat_text(out, r, v, (size_t)times, err);
    const qn_jinja_val_list *list = v->as.list;
    size_t n;
    if (!qn_size_mul(&n, list->n, (size_t)times)) n = SIZE_MAX;
    QN_TRY(qn_jinja_charge(r, n, err));
    QN_TRY(qn_jinja_val_list_make(out, r, v->kind, n, err));
    for (size_t i = 0; i < n; i++) out->as.list->items[i] = list->items[i % list->n];
    return QN_OK;
}

static bool can_repeat(const qn_jinja_val *v) { return v->kind == QN_VAL_TEXT || is_sequence(v); }

qn_status qn_jinja_val_math(qn_jinja_val *out, qn_jinja_run *r, qn_jinja_math op,
                            const qn_jinja_val *a, const qn_jinja_val *b, qn_err *err) {
    static const char *const names[] = {"+", "-", "*", "/", "//", "%", "**"};
    if (qn_jinja_val_is_whole(a) && qn_jinja_val_is_whole(b))
        return whole_math(out, op, qn_jinja_val_whole(a), qn_jinja_val_whole(b), err);
    if (qn_jinja_val_is_number(a) && qn_jinja_val_is_number(b)) {
        // The rest of a large number by a small one is found bit by bit.
        if (op == QN_MATH_MOD || op == QN_MATH_POW) QN_TRY(qn_jinja_spend(r, QN_COST_REAL, 1, err));
        return real_math(out, op, qn_jinja_val_real(a), qn_jinja_val_real(b), err);
    }
    QN_TRY(qn_jinja_val_defined(a, err));
    if (op == QN_MATH_MOD && a->kind == QN_VAL_TEXT)
        return qn_jinja_text_percent(out, r, a->as.s, b, err);
    QN_TRY(qn_jinja_val_defined(b, err));
    if (op == QN_MATH_ADD && a->kind == b->kind) {
        if (a->kind == QN_VAL_TEXT) return add_texts(out, r, a, b, err);
        if (is_sequence(a)) return add_lists(out, r, a, b, err);
    }
    if (op == QN_MATH_MUL && can_repeat(a) && qn_jinja_val_is_whole(b))
        return repeat(out, r, a, qn_jinja_val_whole(b), err);
    if (op == QN_MATH_MUL && can_repeat(b) && qn_jinja_val_is_whole(a))
        return repeat(out, r, b, qn_jinja_val_whole(a), err);
    return QN_FAIL(err, FORMAT, "'%s' %s '%s' has no meaning", qn_jinja_val_type(a), names[op],
                   qn_jinja_val_type(b));
}
