// Numbers between bounds, as digits.
//
// Numbers with bounds are written without an exponent: sign, whole part, fraction. A number is
// compared with a bound digit by digit. What bounds alone cannot say (multiples) is an automaton:
// schema_multiple.c.
#include "gen/grammar/schema_number.h"

#include <stdio.h>
#include <stdlib.h>

// --- whole numbers -------------------------------------------------------------------------------

static int32_t digits(qn_gr_ast *ast, size_t min, size_t max) {
    return qn_gr_rep(ast, qn_gr_span(ast, '0', '9'), (uint32_t)min, (uint32_t)max);
}

static bool is_all(const char *text, char c) {
    return strspn(text, (char[]){c, 0}) == strlen(text);
}

typedef char digit_text[QN_BOUND_DIGITS + 2];

static void fill(digit_text out, char c, size_t n) {
    memset(out, c, n);
    out[n] = 0;
}

// The digit strings of one length between lo and hi.
static int32_t between(qn_gr_ast *ast, const char *lo, const char *hi) {
    const size_t n = strlen(lo);
    if (n == 0) return QN_AST_EMPTY;
    unsigned first = (unsigned char)lo[0], last = (unsigned char)hi[0];
    if (first == last)
        return qn_gr_seq(ast, qn_gr_span(ast, first, first), between(ast, lo + 1, hi + 1));
    digit_text min, max;
    fill(min, '0', n - 1);
    fill(max, '9', n - 1);
    int32_t node = QN_AST_NEVER;
    if (!is_all(lo + 1, '0')) {
        node = qn_gr_seq(ast, qn_gr_span(ast, first, first), between(ast, lo + 1, max));
        first++;
    }
    if (!is_all(hi + 1, '9')) {
        const int32_t high = qn_gr_seq(ast, qn_gr_span(ast, last, last), between(ast, min, hi + 1));
        node = qn_gr_alt(ast, node, high);
        last--;
    }
    if (first > last) return node;
    return qn_gr_alt(ast, node,
                     qn_gr_seq(ast, qn_gr_span(ast, first, last), digits(ast, n - 1, n - 1)));
}

// Whole numbers lo..hi without a sign; hi NULL: up to QN_JSON_DIGITS digits, or as many as lo has.
static int32_t whole_range(qn_gr_ast *ast, const char *lo, const char *hi) {
    const char *from = lo[0] ? lo : "0", *to = hi && !hi[0] ? "0" : hi;
    const size_t n_lo = strlen(from);
    const size_t n_hi = to ? strlen(to) : n_lo > QN_JSON_DIGITS ? n_lo : QN_JSON_DIGITS;
    int32_t node = QN_AST_NEVER;
    if (to && (n_lo > n_hi || (n_lo == n_hi && strcmp(from, to) > 0))) return node;
    for (size_t n = n_lo; n <= n_hi; n++) {
        digit_text min, max;
        fill(min, '0', n);
        fill(max, '9', n);
        min[0] = '1';
        node =
            qn_gr_alt(ast, node, between(ast, n == n_lo ? from : min, to && n == n_hi ? to : max));
    }
    return node;
}

static int32_t with_sign(qn_gr_ast *ast, int32_t size) {
    return qn_gr_seq(ast, qn_gr_text(ast, qn_str_of("-")), size);
}

// The whole numbers of a side without their sign.
static int32_t integers_of(qn_gr_ast *ast, const qn_gr_number_side *side) {
    return whole_range(ast, side->lo.value.whole, side->hi.is_there ? side->hi.value.whole : NULL);
}

// --- fractions -----------------------------------------------------------------------------------

static int digit_at(const qn_gr_limit *b, size_t at) {
    return at < strlen(b->value.fraction) ? b->value.fraction[at] - '0' : 0;
}

static bool is_zero_from(const qn_gr_limit *b, size_t at) {
    return at >= strlen(b->value.fraction);
}

// Which bounds the digits so far are equal to.
typedef struct tight {
    bool lo, hi;
} tight;

static bool may_stop(const qn_gr_number_side *x, size_t at, tight t) {
    if (t.lo && (!is_zero_from(&x->lo, at) || x->lo.is_strict)) return false;
    return !t.hi || !is_zero_from(&x->hi, at) || !x->hi.is_strict;
}

static int32_t more_digits(qn_gr_ast *ast, const qn_gr_number_side *x, size_t at, tight t);

// The rest of a fraction whose first `at` digits are there; it may be empty.
static int32_t rest_digits(qn_gr_ast *ast, const qn_gr_number_side *x, size_t at, tight t) {
    if (!t.lo && !t.hi) return digits(ast, 0, QN_JSON_DIGITS - at);
    const int32_t more = more_digits(ast, x, at, t);
    return may_stop(x, at, t) ? qn_gr_maybe(ast, more) : more;
}

static int32_t more_digits(qn_gr_ast *ast, const qn_gr_number_side *x, size_t at, tight t) {
    if (at == QN_JSON_DIGITS) return QN_AST_NEVER;
    const int first = t.lo ? digit_at(&x->lo, at) : 0, last = t.hi ? digit_at(&x->hi, at) : 9;
    int32_t node = QN_AST_NEVER;
    for (int d = first; d <= last;) {
        const tight next = {t.lo && d == first, t.hi && d == last};
        // Digits strictly between go together.
        int end = d;
        if (!next.lo && !next.hi) end = t.hi ? last - 1 : last;
        const int32_t some = qn_gr_span(ast, (unsigned)('0' + d), (unsigned)('0' + end));
        node = qn_gr_alt(ast, node, qn_gr_seq(ast, some, rest_digits(ast, x, at + 1, next)));
        d = end + 1;
    }
    return node;
}

// What follows a whole part that is equal to the bounds in `t`.
static int32_t fraction(qn_gr_ast *ast, const qn_gr_number_side *x, tight t) {
    const int32_t dot = qn_gr_text(ast, qn_str_of("."));
    const int32_t some = qn_gr_seq(ast, dot, more_digits(ast, x, 0, t));
    return may_stop(x, 0, t) ? qn_gr_maybe(ast, some) : some;
}

static int32_t at_bound(qn_gr_ast *ast, const qn_gr_number_side *x, const qn_gr_limit *b, tight t) {
    const char *whole = b->value.whole[0] ? b->value.whole : "0";
    return qn_gr_seq(ast, qn_gr_text(ast, qn_str_of(whole)), fraction(ast, x, t));
}

// The numbers of a side without their sign.
static int32_t fractions_of(qn_gr_ast *ast, const qn_gr_number_side *x) {
    const bool is_same = x->hi.is_there && !strcmp(x->lo.value.whole, x->hi.value.whole);
    if (x->hi.is_there && qn_gr_decimal_compare_size(&x->lo.value, &x->hi.value) > 0)
        return QN_AST_NEVER;
    if (is_same) return at_bound(ast, x, &x->lo, (tight){true, true});
    int32_t node = at_bound(ast, x, &x->lo, (tight){true, false});
    if (x->hi.is_there) node = qn_gr_alt(ast, node, at_bound(ast, x, &x->hi, (tight){false, true}));
    // The whole parts between, which leave every fraction.
    qn_gr_decimal from = x->lo.value, to = x->hi.value;
    from.is_negative = to.is_negative = false;
    from.fraction[0] = to.fraction[0] = 0;
    from = qn_gr_decimal_round(&from, 1, true);
    if (x->hi.is_there) to = qn_gr_decimal_round(&to, -1, true);
    const int32_t inner = whole_range(ast, from.whole, x->hi.is_there ? to.whole : NULL);
    return qn_gr_alt(ast, node, qn_gr_seq(ast, inner, fraction(ast, x, (tight){false, false})));
}

// --- bounds --------------------------------------------------------------------------------------

// Keeps the tighter of two; `sign` is 1 for lower bounds, -1 for upper ones.
static void tighten(qn_gr_limit *kept, const qn_gr_limit *other, int sign) {
    const int difference = qn_gr_decimal_compare(&other->value, &kept->value) * sign;
    if (!kept->is_there || difference > 0 || (difference == 0 && other->is_strict)) *kept = *other;
}

static qn_status read_limit(qn_gr_limit *kept, qn_gr_schema *s, const qn_gr_member *member,
                            const char *keyword, bool is_strict, int sign) {
    const json_t *value = json_object_get(member->schema, keyword);
    // In draft 4 and OpenAPI 3.0 the exclusive ones say of the others that they are strict.
    if (!value || (is_strict && json_is_boolean(value))) return QN_OK;
    qn_gr_limit one = {.is_there = true, .is_strict = is_strict};
    QN_TRY(qn_gr_schema_decimal(&one.value, s, value, member->where, keyword));
    const char *other = sign > 0 ? "exclusiveMinimum" : "exclusiveMaximum";
    if (json_is_true(json_object_get(member->schema, other))) one.is_strict = true;
    tighten(kept, &one, sign);
    return QN_OK;
}

static void read_format(qn_gr_number_limits *l, const qn_gr_member *member) {
    const char *name = json_string_value(json_object_get(member->schema, "format"));
    if (!name || (strcmp(name, "int32") != 0 && strcmp(name, "int64") != 0)) return;
    const bool is_small = !strcmp(name, "int32");
    const qn_gr_limit lo = {true, false, qn_gr_decimal_of(is_small ? INT32_MIN : INT64_MIN)};
    const qn_gr_limit hi = {true, false, qn_gr_decimal_of(is_small ? INT32_MAX : INT64_MAX)};
    tighten(&l->min, &lo, 1);
    tighten(&l->max, &hi, -1);
}

static qn_status read_limits(qn_gr_number_limits *l, qn_gr_schema *s, const qn_gr_conj *all) {
    for (size_t i = 0; i < all->n; i++) {
        const qn_gr_member *member = &all->members[i];
        QN_TRY(read_limit(&l->min, s, member, "minimum", false, 1));
        QN_TRY(read_limit(&l->min, s, member, "exclusiveMinimum", true, 1));
        QN_TRY(read_limit(&l->max, s, member, "maximum", false, -1));
        QN_TRY(read_limit(&l->max, s, member, "exclusiveMaximum", true, -1));
        QN_TRY(qn_gr_schema_read_steps(l, s, member));
        read_format(l, member);
    }
    return QN_OK;
}

// Bounds of whole numbers: the next whole number inside.
static void round_inside(qn_gr_limit *l, int sign) {
    if (!l->is_there) return;
    l->value = qn_gr_decimal_round(&l->value, sign, l->is_strict);
    l->is_strict = false;
}

// The numbers from zero up, or those below zero without their sign; false: there are none. A bound
// that no number with that many digits reaches is left out.
static bool side_of(qn_gr_number_side *out, const qn_gr_number_limits *l, bool below) {
    const qn_gr_limit *near = below ? &l->max : &l->min, *far = below ? &l->min : &l->max;
    if (far->is_there && far->value.is_negative != below) return false;
    *out = (qn_gr_number_side){.lo = {.is_there = true}};
    if (near->is_there && near->value.is_negative == below) {
        out->lo = *near;
    } else if (near->is_there && !near->value.whole[0] && !near->value.fraction[0]) {
        out->lo.is_strict = near->is_strict; // "-0" is 0, too
    }
    if (far->is_there && strlen(far->value.whole) <= QN_BOUND_DIGITS) out->hi = *far;
    return true;
}

// Both sides, with or without the multiples.
static qn_status make_sides(int32_t *out, qn_gr_schema *s, const qn_gr_number_limits *l,
                            bool is_whole, bool has_steps, const qn_gr_where *where) {
    int32_t node = QN_AST_NEVER;
    for (int below = 0; below < 2; below++) {
        qn_gr_number_side side;
        int32_t made;
        if (!side_of(&side, l, below)) continue;
        if (strlen(side.lo.value.whole) > QN_BOUND_DIGITS)
            return QN_SCHEMA_FAIL(s, where, NULL, LIMIT,
                                  "numbers have at most %d digits before the point",
                                  QN_BOUND_DIGITS);
        side.is_whole = is_whole;
        // "-0" is a whole number only where nothing is asked of it, as before.
        if (is_whole && below && !side.lo.value.whole[0]) side.lo.value = qn_gr_decimal_of(1);
        if (has_steps)
            QN_TRY(qn_gr_schema_multiples(&made, s, l, &side));
        else
            made = is_whole ? integers_of(s->ast, &side) : fractions_of(s->ast, &side);
        node = qn_gr_alt(s->ast, node, below ? with_sign(s->ast, made) : made);
    }
    *out = node;
    return QN_OK;
}

qn_status qn_gr_schema_number(int32_t *out, qn_gr_schema *s, const qn_gr_conj *all,
                              uint32_t types) {
    qn_gr_number_limits l = {0};
    const qn_gr_where *where = all->n ? all->members[0].where : NULL;
    QN_TRY(read_limits(&l, s, all));
    const bool is_whole = !(types & QN_SCHEMA_FRACTION);
    *out = is_whole ? s->parts.integer : s->parts.number;
    if (!(types & QN_SCHEMA_INTEGER)) QN_TRY(qn_gr_schema_add_step(&l, s, 1, 0, true, where));
    const bool has_bounds = l.min.is_there || l.max.is_there;
    const bool has_steps = l.n_not || (l.step && !(is_whole && l.step == 1 && !l.scale));
    if (!has_bounds && !has_steps) return QN_OK;
    if (is_whole) {
        round_inside(&l.min, 1);
        round_inside(&l.max, -1);
    }
    const qn_gr_ast_mark mark = qn_gr_ast_get_mark(s->ast);
    const qn_status status = make_sides(out, s, &l, is_whole, has_steps, where);
    if (status != QN_LIMIT || !has_steps || !qn_gr_schema_leaves_limits(s)) return status;
    qn_gr_ast_undo(s->ast, mark);
    QN_TRY(qn_gr_schema_exceeds(s, l.where, "multipleOf", "its automaton is too large"));
    return has_bounds ? make_sides(out, s, &l, is_whole, false, where) : QN_OK;
}
