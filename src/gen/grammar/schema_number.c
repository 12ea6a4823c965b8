// Numbers between bounds, as digits.
//
// Numbers with bounds are written without an exponent: sign, whole part, fraction. A bound is a whole
// part and digits of a fraction; a number is compared with it digit by digit.
#include "gen/grammar/schema.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ENUMERATE_MAX = 4096, FRACTION_MAX = QN_JSON_DIGITS };

// A bound on |x|.
typedef struct bound {
    bool is_there, is_strict;
    uint64_t whole;
    char fraction[FRACTION_MAX + 1]; // digits, no zero at the end
} bound;

// A bound as the schema has it.
typedef struct limit {
    bool is_there, is_strict;
    double value;
    bool is_whole;
    int64_t whole; // if is_whole
} limit;

typedef struct limits {
    limit min, max;
    int64_t step; // 0: none
} limits;

// --- whole numbers -------------------------------------------------------------------------------

static int32_t digits(qn_ast *ast, uint32_t min, uint32_t max) {
    return qn_ast_rep(ast, qn_ast_span(ast, '0', '9'), min, max);
}

static bool is_all(const char *text, char c) {
    return strspn(text, (char[]){c, 0}) == strlen(text);
}

// The digit strings of one length between lo and hi.
static int32_t between(qn_ast *ast, const char *lo, const char *hi) {
    const uint32_t n = (uint32_t)strlen(lo);
    if (n == 0) return QN_AST_EMPTY;
    unsigned first = (unsigned char)lo[0], last = (unsigned char)hi[0];
    if (first == last)
        return qn_ast_seq(ast, qn_ast_span(ast, first, first), between(ast, lo + 1, hi + 1));
    char least[24], most[24];
    memset(least, '0', n - 1);
    memset(most, '9', n - 1);
    least[n - 1] = most[n - 1] = 0;
    int32_t node = QN_AST_NEVER;
    if (!is_all(lo + 1, '0')) {
        node = qn_ast_seq(ast, qn_ast_span(ast, first, first), between(ast, lo + 1, most));
        first++;
    }
    if (!is_all(hi + 1, '9')) {
        const int32_t high =
            qn_ast_seq(ast, qn_ast_span(ast, last, last), between(ast, least, hi + 1));
        node = qn_ast_alt(ast, node, high);
        last--;
    }
    if (first > last) return node;
    return qn_ast_alt(ast, node,
                      qn_ast_seq(ast, qn_ast_span(ast, first, last), digits(ast, n - 1, n - 1)));
}

// Whole numbers lo..hi without a sign; no upper bound: up to QN_JSON_DIGITS digits.
static int32_t whole_range(qn_ast *ast, uint64_t lo, bool has_hi, uint64_t hi) {
    char from[24], to[24];
    int32_t node = QN_AST_NEVER;
    if (has_hi && lo > hi) return node;
    snprintf(from, sizeof from, "%llu", (unsigned long long)lo);
    snprintf(to, sizeof to, "%llu", (unsigned long long)hi);
    const size_t n_hi = has_hi ? strlen(to) : QN_JSON_DIGITS;
    for (size_t n = strlen(from); n <= n_hi; n++) {
        char least[24], most[24];
        memset(least, '0', n);
        memset(most, '9', n);
        least[n] = most[n] = 0;
        least[0] = '1';
        const char *a = n == strlen(from) ? from : least;
        const char *b = has_hi && n == n_hi ? to : most;
        node = qn_ast_alt(ast, node, between(ast, a, b));
    }
    return node;
}

static uint64_t magnitude(int64_t value) {
    return value < 0 ? (uint64_t)0 - (uint64_t)value : (uint64_t)value;
}

// lo and hi as far as they are there.
static int32_t integers(qn_ast *ast, const limit *lo, const limit *hi) {
    int32_t node = QN_AST_NEVER;
    const bool has_lo = lo->is_there, has_hi = hi->is_there;
    if (!has_hi || hi->whole >= 0)
        node = whole_range(ast, has_lo && lo->whole > 0 ? (uint64_t)lo->whole : 0, has_hi,
                           has_hi ? (uint64_t)hi->whole : 0);
    if (!has_lo || lo->whole < 0) {
        const uint64_t least = has_hi && hi->whole < 0 ? magnitude(hi->whole) : 1;
        const int32_t below = whole_range(ast, least, has_lo, has_lo ? magnitude(lo->whole) : 0);
        node = qn_ast_alt(ast, node, qn_ast_seq(ast, qn_ast_text(ast, qn_str_of("-")), below));
    }
    return node;
}

// --- fractions -----------------------------------------------------------------------------------

static int digit_at(const bound *b, size_t at) {
    return at < strlen(b->fraction) ? b->fraction[at] - '0' : 0;
}

static bool is_zero_from(const bound *b, size_t at) { return at >= strlen(b->fraction); }

// Which bounds the digits so far are equal to.
typedef struct tight {
    bool lo, hi;
} tight;

static bool may_stop(const bound *lo, const bound *hi, size_t at, tight t) {
    if (t.lo && (!is_zero_from(lo, at) || lo->is_strict)) return false;
    return !t.hi || !is_zero_from(hi, at) || !hi->is_strict;
}

static int32_t more_digits(qn_ast *ast, const bound *lo, const bound *hi, size_t at, tight t);

// The rest of a fraction whose first `at` digits are there; it may be empty.
static int32_t rest_digits(qn_ast *ast, const bound *lo, const bound *hi, size_t at, tight t) {
    if (!t.lo && !t.hi) return digits(ast, 0, (uint32_t)(FRACTION_MAX - at));
    const int32_t more = more_digits(ast, lo, hi, at, t);
    return may_stop(lo, hi, at, t) ? qn_ast_maybe(ast, more) : more;
}

static int32_t more_digits(qn_ast *ast, const bound *lo, const bound *hi, size_t at, tight t) {
    if (at == FRACTION_MAX) return QN_AST_NEVER;
    const int first = t.lo ? digit_at(lo, at) : 0, last = t.hi ? digit_at(hi, at) : 9;
    int32_t node = QN_AST_NEVER;
    for (int d = first; d <= last;) {
        const tight next = {t.lo && d == first, t.hi && d == last};
        // Digits strictly between go together.
        int end = d;
        if (!next.lo && !next.hi) end = t.hi ? last - 1 : last;
        const int32_t some = qn_ast_span(ast, (unsigned)('0' + d), (unsigned)('0' + end));
        node = qn_ast_alt(ast, node, qn_ast_seq(ast, some, rest_digits(ast, lo, hi, at + 1, next)));
        d = end + 1;
    }
    return node;
}

// What follows a whole part that is equal to the bounds in `t`.
static int32_t fraction(qn_ast *ast, const bound *lo, const bound *hi, tight t) {
    const int32_t dot = qn_ast_text(ast, qn_str_of("."));
    const int32_t some = qn_ast_seq(ast, dot, more_digits(ast, lo, hi, 0, t));
    return may_stop(lo, hi, 0, t) ? qn_ast_maybe(ast, some) : some;
}

// Numbers without a sign between lo, which is there, and hi.
static int32_t magnitudes(qn_ast *ast, const bound *lo, const bound *hi) {
    char text[24];
    if (hi->is_there && lo->whole > hi->whole) return QN_AST_NEVER;
    snprintf(text, sizeof text, "%llu", (unsigned long long)lo->whole);
    const int32_t at_lo = qn_ast_text(ast, qn_str_of(text));
    if (hi->is_there && lo->whole == hi->whole)
        return qn_ast_seq(ast, at_lo, fraction(ast, lo, hi, (tight){true, true}));
    int32_t node = qn_ast_seq(ast, at_lo, fraction(ast, lo, hi, (tight){true, false}));
    if (hi->is_there) {
        snprintf(text, sizeof text, "%llu", (unsigned long long)hi->whole);
        const int32_t at_hi = qn_ast_text(ast, qn_str_of(text));
        node = qn_ast_alt(ast, node,
                          qn_ast_seq(ast, at_hi, fraction(ast, lo, hi, (tight){false, true})));
    }
    if (hi->is_there && hi->whole - lo->whole < 2) return node;
    const int32_t inner =
        whole_range(ast, lo->whole + 1, hi->is_there, hi->is_there ? hi->whole - 1 : 0);
    return qn_ast_alt(ast, node,
                      qn_ast_seq(ast, inner, fraction(ast, lo, hi, (tight){false, false})));
}

// --- bounds --------------------------------------------------------------------------------------

// The shortest digits that read back as the same number, as a whole part and a fraction.
static bool split_decimal(bound *out, double value) {
    char text[400];
    value = fabs(value);
    if (!(value < 1e18)) return false;
    for (int n = 0; n <= FRACTION_MAX; n++) {
        snprintf(text, sizeof text, "%.*f", n, value);
        if (strtod(text, NULL) != value) continue;
        const char *dot = strchr(text, '.');
        out->whole = strtoull(text, NULL, 10);
        snprintf(out->fraction, sizeof out->fraction, "%s", dot ? dot + 1 : "");
        for (size_t k = strlen(out->fraction); k > 0 && out->fraction[k - 1] == '0'; k--)
            out->fraction[k - 1] = 0;
        return true;
    }
    return false;
}

static bool to_bound(bound *out, const limit *from) {
    *out = (bound){.is_there = from->is_there, .is_strict = from->is_strict};
    if (!from->is_there) return true;
    if (from->is_whole) {
        out->whole = magnitude(from->whole);
        return true;
    }
    return split_decimal(out, from->value);
}

static bool is_negative(const limit *l) { return l->is_there && l->value < 0; }

static qn_status fractions(int32_t *out, qn_schema *s, const limits *l, const qn_where *where) {
    static const bound zero = {.is_there = true}, none = {0};
    bound lo, hi;
    if (!to_bound(&lo, &l->min) || !to_bound(&hi, &l->max))
        return QN_SCHEMA_FAIL(s, where, NULL, UNSUPPORTED,
                              "bounds of numbers have at most 18 digits before the point and %d "
                              "behind it",
                              FRACTION_MAX);
    int32_t node = QN_AST_NEVER;
    if (!is_negative(&l->max)) {
        const bool has_lo = l->min.is_there && !is_negative(&l->min);
        node = magnitudes(s->ast, has_lo ? &lo : &zero, l->max.is_there ? &hi : &none);
    }
    if (!l->min.is_there || is_negative(&l->min)) {
        const int32_t below =
            magnitudes(s->ast, is_negative(&l->max) ? &hi : &zero, l->min.is_there ? &lo : &none);
        node = qn_ast_alt(s->ast, node,
                          qn_ast_seq(s->ast, qn_ast_text(s->ast, qn_str_of("-")), below));
    }
    *out = node;
    return QN_OK;
}

// Keeps the tighter of two; `sign` is 1 for lower bounds, -1 for upper ones.
static void tighten(limit *kept, const limit *other, int sign) {
    const double difference = (other->value - kept->value) * sign;
    if (!kept->is_there || difference > 0 || (difference == 0 && other->is_strict)) *kept = *other;
}

static qn_status read_limit(limit *kept, qn_schema *s, const qn_member *member, const char *keyword,
                            bool is_strict, int sign) {
    const json_t *value = json_object_get(member->schema, keyword);
    if (!value) return QN_OK;
    if (!json_is_number(value))
        return QN_SCHEMA_FAIL(s, member->where, keyword, FORMAT, "not a number");
    limit one = {.is_there = true, .is_strict = is_strict, .value = json_number_value(value)};
    if (json_is_integer(value)) {
        one.is_whole = true;
        one.whole = json_integer_value(value);
    } else if (one.value == floor(one.value) && fabs(one.value) < 9e18) {
        one.is_whole = true;
        one.whole = (int64_t)one.value;
    }
    tighten(kept, &one, sign);
    return QN_OK;
}

static qn_status read_step(limits *l, qn_schema *s, const qn_member *member) {
    const json_t *value = json_object_get(member->schema, "multipleOf");
    if (!value) return QN_OK;
    const double real = json_number_value(value);
    if (!json_is_number(value) || !(real > 0))
        return QN_SCHEMA_FAIL(s, member->where, "multipleOf", FORMAT, "not a number above 0");
    if (real != floor(real) || real > 1e15)
        return QN_SCHEMA_FAIL(s, member->where, "multipleOf", UNSUPPORTED,
                              "only whole numbers up to 1e15 are supported");
    const int64_t step = (int64_t)real;
    int64_t a = l->step ? l->step : step, b = step; // their least common multiple
    while (b) {
        const int64_t r = a % b;
        a = b;
        b = r;
    }
    const double both = l->step ? (double)l->step / (double)a * (double)step : real;
    if (both > 1e15)
        return QN_SCHEMA_FAIL(s, member->where, "multipleOf", LIMIT, "the steps are too large");
    l->step = (int64_t)both;
    return QN_OK;
}

static qn_status read_format(limits *l, qn_schema *s, const qn_member *member) {
    const char *name = json_string_value(json_object_get(member->schema, "format"));
    if (!name || (strcmp(name, "int32") != 0 && strcmp(name, "int64") != 0)) return QN_OK;
    const bool is_small = !strcmp(name, "int32");
    const int64_t most = is_small ? INT32_MAX : INT64_MAX, least = is_small ? INT32_MIN : INT64_MIN;
    const limit lo = {true, false, (double)least, true, least};
    const limit hi = {true, false, (double)most, true, most};
    tighten(&l->min, &lo, 1);
    tighten(&l->max, &hi, -1);
    (void)s;
    return QN_OK;
}

static qn_status read_limits(limits *l, qn_schema *s, const qn_conj *all) {
    for (size_t i = 0; i < all->n; i++) {
        const qn_member *member = &all->members[i];
        QN_TRY(read_limit(&l->min, s, member, "minimum", false, 1));
        QN_TRY(read_limit(&l->min, s, member, "exclusiveMinimum", true, 1));
        QN_TRY(read_limit(&l->max, s, member, "maximum", false, -1));
        QN_TRY(read_limit(&l->max, s, member, "exclusiveMaximum", true, -1));
        QN_TRY(read_step(l, s, member));
        QN_TRY(read_format(l, s, member));
    }
    return QN_OK;
}

// Bounds of whole numbers: the next whole number inside. False if there is none below 2^63.
static bool round_inside(limit *l, int sign) {
    if (!l->is_there) return true;
    if (!l->is_whole) {
        const double inside = sign > 0 ? ceil(l->value) : floor(l->value);
        if (!(fabs(inside) < 9e18)) {
            // A bound far outside is no bound up to where we count; far inside, nothing is left.
            if ((inside > 0) == (sign > 0)) return false;
            l->whole = sign > 0 ? INT64_MIN : INT64_MAX;
        } else {
            l->whole = (int64_t)inside;
        }
        l->is_strict = false;
    }
    if (l->is_strict) {
        if (l->whole == (sign > 0 ? INT64_MAX : INT64_MIN)) return false;
        l->whole += sign;
    }
    l->is_whole = true;
    l->is_strict = false;
    l->value = (double)l->whole;
    return true;
}

static qn_status multiples(int32_t *out, qn_schema *s, const limits *l, const qn_where *where) {
    const bool has_both = l->min.is_there && l->max.is_there;
    const double n = has_both ? ((double)l->max.whole - (double)l->min.whole) / (double)l->step : 0;
    if (!has_both || n > ENUMERATE_MAX)
        return QN_SCHEMA_FAIL(s, where, "multipleOf", UNSUPPORTED,
                              "supported only with bounds that leave at most %d values",
                              ENUMERATE_MAX);
    *out = QN_AST_NEVER;
    int64_t value = l->min.whole / l->step * l->step;
    if (value < l->min.whole) value += l->step;
    for (; value <= l->max.whole; value += l->step) {
        char text[32];
        snprintf(text, sizeof text, "%lld", (long long)value);
        *out = qn_ast_alt(s->ast, *out, qn_ast_text(s->ast, qn_str_of(text)));
        if (value > INT64_MAX - l->step) break;
    }
    return QN_OK;
}

qn_status qn_schema_number(int32_t *out, qn_schema *s, const qn_conj *all, uint32_t types) {
    limits l = {0};
    const qn_where *where = all->n ? all->members[0].where : NULL;
    QN_TRY(read_limits(&l, s, all));
    if (!(types & QN_TYPE_INTEGER))
        return QN_SCHEMA_FAIL(s, where, NULL, UNSUPPORTED, "numbers that are not whole, alone");
    const bool has_bounds = l.min.is_there || l.max.is_there;
    if ((types & QN_TYPE_FRACTION) && !l.step) {
        *out = s->parts.number;
        return has_bounds ? fractions(out, s, &l, where) : QN_OK;
    }
    *out = s->parts.integer;
    if (!has_bounds && l.step <= 1) return QN_OK;
    *out = QN_AST_NEVER;
    if (!round_inside(&l.min, 1) || !round_inside(&l.max, -1)) return QN_OK;
    if (l.step > 1) return multiples(out, s, &l, where);
    *out = integers(s->ast, &l.min, &l.max);
    return QN_OK;
}
