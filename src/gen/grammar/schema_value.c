// Values that a schema spells out: their text, and whether they are valid for other schemas.
#include "core/mem.h"
#include "core/real_text.h"
#include "core/utf8.h"
#include "gen/grammar/schema.h"

#include <math.h>
#include <stdio.h>

enum { DEPTH_MAX = 64, PLAIN_DIGITS = 40 };

// --- text ----------------------------------------------------------------------------------------

typedef struct literal {
    qn_gr_schema *s;
    const qn_gr_where *where;
    const char *keyword;
} literal;

static qn_status write_literal(int32_t *out, const literal *l, const json_t *value);

static qn_status number_literal(int32_t *out, const literal *l, const json_t *value) {
    qn_gr_schema *s = l->s;
    qn_gr_decimal decimal;
    char room[QN_REAL_TEXT], text[2 * PLAIN_DIGITS + 8];
    QN_TRY(qn_gr_schema_decimal(&decimal, s, value, l->where, l->keyword));
    if (strlen(decimal.whole) <= PLAIN_DIGITS && strlen(decimal.fraction) <= PLAIN_DIGITS) {
        snprintf(text, sizeof text, "%s%.*s%s%.*s", decimal.is_negative ? "-" : "", PLAIN_DIGITS,
                 decimal.whole[0] ? decimal.whole : "0", decimal.fraction[0] ? "." : "",
                 PLAIN_DIGITS, decimal.fraction);
        *out = qn_gr_text(s->ast, qn_str_of(text));
        return QN_OK;
    }
    if (json_is_real(value) && !qn_double_text(room, json_real_value(value), 0))
        return QN_NOMEM(s->err, "schema");
    *out = qn_gr_text(s->ast, qn_str_of(json_is_real(value) ? room : json_string_value(value) + 1));
    return QN_OK;
}

// The inner part of a list: items with commas between.
static qn_status array_literal(int32_t *out, const literal *l, const json_t *value) {
    qn_gr_schema *s = l->s;
    int32_t node = s->parts.close_list, item;
    *out = qn_gr_text(s->ast, qn_str_of("[]"));
    if (!json_array_size(value)) return QN_OK;
    for (size_t i = json_array_size(value); i-- > 0;) {
        QN_TRY(write_literal(&item, l, json_array_get(value, i)));
        node = qn_gr_seq(s->ast, item, node);
        if (i) node = qn_gr_seq(s->ast, s->parts.comma, node);
    }
    *out = qn_gr_seq(s->ast, s->parts.open_list, node);
    return QN_OK;
}

static qn_status object_literal(int32_t *out, const literal *l, const json_t *value) {
    qn_gr_schema *s = l->s;
    const char *key;
    json_t *one;
    int32_t node = QN_AST_EMPTY, inner;
    bool is_first = true;
    *out = qn_gr_text(s->ast, qn_str_of("{}"));
    if (!json_object_size(value)) return QN_OK;
    json_object_foreach((json_t *)(uintptr_t)value, key, one) {
        QN_TRY(write_literal(&inner, l, one));
        const int32_t member =
            qn_gr_seq3(s->ast, qn_gr_json_text(s->ast, qn_str_of(key)), s->parts.colon, inner);
        node = is_first ? member : qn_gr_seq3(s->ast, node, s->parts.comma, member);
        is_first = false;
    }
    *out = qn_gr_seq3(s->ast, s->parts.open, node, s->parts.close);
    return QN_OK;
}

static qn_status write_literal(int32_t *out, const literal *l, const json_t *value) {
    qn_gr_ast *ast = l->s->ast;
    *out = QN_AST_NEVER;
    if (ast->failed) return QN_OK;
    if (qn_gr_schema_is_number(l->s, value)) return number_literal(out, l, value);
    if (json_is_object(value)) return object_literal(out, l, value);
    if (json_is_array(value)) return array_literal(out, l, value);
    if (json_is_string(value))
        *out = qn_gr_json_text(ast, qn_gr_json_str(value));
    else
        *out = qn_gr_text(ast, qn_str_of(json_is_null(value)   ? "null"
                                         : json_is_true(value) ? "true"
                                                               : "false"));
    return QN_OK;
}

qn_status qn_gr_schema_literal(int32_t *out, qn_gr_schema *s, const json_t *value,
                               const qn_gr_where *where, const char *keyword) {
    const literal l = {s, where, keyword};
    return write_literal(out, &l, value);
}

// --- validity ------------------------------------------------------------------------------------

typedef struct check {
    qn_gr_schema *s;
    const json_t *value;
    qn_gr_member member;
    int depth;
} check;

// Doubles below this hold the whole numbers exactly.
#define WHOLE_BELOW 9007199254740992.0

// Reals mean their shortest notation, so two are the same if the doubles are; so are a real and a
// whole number, as long as doubles hold all of those. The rest is compared digit by digit.
static qn_status same_numbers(bool *out, qn_gr_schema *s, const json_t *a, const json_t *b,
                              const qn_gr_where *where) {
    const json_t *real = json_is_real(a) ? a : b, *other = json_is_real(a) ? b : a;
    qn_gr_decimal x, y;
    if (json_is_integer(a) && json_is_integer(b)) {
        *out = json_integer_value(a) == json_integer_value(b);
        return QN_OK;
    }
    if (json_is_real(real) && json_is_number(other) &&
        (json_is_real(other) || fabs(json_real_value(real)) < WHOLE_BELOW)) {
        *out = json_real_value(real) == json_number_value(other);
        return QN_OK;
    }
    QN_TRY(qn_gr_schema_decimal(&x, s, a, where, NULL));
    QN_TRY(qn_gr_schema_decimal(&y, s, b, where, NULL));
    *out = !qn_gr_decimal_compare(&x, &y);
    return QN_OK;
}

static qn_status same_lists(bool *out, qn_gr_schema *s, const json_t *a, const json_t *b,
                            const qn_gr_where *where) {
    *out = json_array_size(a) == json_array_size(b);
    for (size_t i = 0; *out && i < json_array_size(a); i++)
        QN_TRY(qn_gr_schema_equals(out, s, json_array_get(a, i), json_array_get(b, i), where));
    return QN_OK;
}

static qn_status same_objects(bool *out, qn_gr_schema *s, const json_t *a, const json_t *b,
                              const qn_gr_where *where) {
    const char *key;
    json_t *one;
    *out = json_object_size(a) == json_object_size(b);
    json_object_foreach((json_t *)(uintptr_t)a, key, one) {
        const json_t *other = *out ? json_object_get(b, key) : NULL;
        *out = other != NULL;
        if (!other) break;
        QN_TRY(qn_gr_schema_equals(out, s, one, other, where));
    }
    return QN_OK;
}

qn_status qn_gr_schema_equals(bool *out, qn_gr_schema *s, const json_t *a, const json_t *b,
                              const qn_gr_where *where) {
    *out = true;
    if (a == b) return QN_OK;
    // A long text is compared byte by byte only with one as long.
    const bool are_long = json_is_string(a) && json_string_length(a) == json_string_length(b);
    QN_TRY(qn_gr_schema_spend(s, 1 + (are_long ? json_string_length(a) / 16 : 0), where));
    if (qn_gr_schema_is_number(s, a) && qn_gr_schema_is_number(s, b))
        return same_numbers(out, s, a, b, where);
    if (json_is_array(a) && json_is_array(b)) return same_lists(out, s, a, b, where);
    if (json_is_object(a) && json_is_object(b)) return same_objects(out, s, a, b, where);
    *out = json_equal(a, b);
    return QN_OK;
}

static qn_status number_type(uint32_t *out, const check *c) {
    bool is_whole = json_is_integer(c->value);
    if (json_is_real(c->value))
        is_whole = floor(json_real_value(c->value)) == json_real_value(c->value);
    if (json_is_string(c->value)) {
        qn_gr_decimal decimal;
        QN_TRY(qn_gr_schema_decimal(&decimal, c->s, c->value, c->member.where, "type"));
        is_whole = qn_gr_decimal_is_whole(&decimal);
    }
    *out = is_whole ? QN_SCHEMA_INTEGER : QN_SCHEMA_FRACTION;
    return QN_OK;
}

static qn_status check_types(bool *out, const check *c) {
    static const uint32_t of[] = {[JSON_OBJECT] = QN_SCHEMA_OBJECT, [JSON_ARRAY] = QN_SCHEMA_ARRAY,
                                  [JSON_STRING] = QN_SCHEMA_STRING, [JSON_TRUE] = QN_SCHEMA_BOOLEAN,
                                  [JSON_FALSE] = QN_SCHEMA_BOOLEAN, [JSON_NULL] = QN_SCHEMA_NULL};
    uint32_t types, type = 0;
    QN_TRY(qn_gr_schema_types(&types, c->s, &c->member));
    if (types == QN_SCHEMA_ANY) return QN_OK;
    if (qn_gr_schema_is_number(c->s, c->value))
        QN_TRY(number_type(&type, c));
    else
        type = of[json_typeof(c->value)];
    *out = (type & types) != 0;
    return QN_OK;
}

static qn_status check_listed(bool *out, const check *c) {
    const json_t *list = json_object_get(c->member.schema, "enum");
    const json_t *one = json_object_get(c->member.schema, "const");
    const qn_gr_where *where = c->member.where;
    const size_t n = json_array_size(list);
    bool found = !list;
    QN_TRY(qn_gr_schema_spend(c->s, 8 + n, where));
    for (size_t i = 0; !found && i < n; i++) // mostly it is one of them
        found = json_array_get(list, i) == c->value;
    for (size_t i = 0; !found && i < n; i++)
        QN_TRY(qn_gr_schema_equals(&found, c->s, c->value, json_array_get(list, i), where));
    if (found && one) QN_TRY(qn_gr_schema_equals(&found, c->s, c->value, one, where));
    *out = found;
    return QN_OK;
}

typedef struct bound_row {
    const char *keyword, *strict_by; // strict_by: the boolean of draft 4
    int sign;                        // of value - bound, as it should be
    bool is_strict;
} bound_row;

static const bound_row bounds[] = {{"minimum", "exclusiveMinimum", 1, false},
                                   {"maximum", "exclusiveMaximum", -1, false},
                                   {"exclusiveMinimum", NULL, 1, true},
                                   {"exclusiveMaximum", NULL, -1, true}};

static qn_status check_bounds(bool *out, const check *c) {
    qn_gr_decimal x, bound;
    bool is_read = false;
    for (size_t i = 0; *out && i < sizeof bounds / sizeof *bounds; i++) {
        const bound_row *row = &bounds[i];
        const json_t *given = json_object_get(c->member.schema, row->keyword);
        const json_t *strict =
            row->strict_by ? json_object_get(c->member.schema, row->strict_by) : NULL;
        if (!given || (row->is_strict && json_is_boolean(given))) continue;
        if (!is_read)
            QN_TRY(qn_gr_schema_decimal(&x, c->s, c->value, c->member.where, row->keyword));
        is_read = true;
        QN_TRY(qn_gr_schema_decimal(&bound, c->s, given, c->member.where, row->keyword));
        const int order = qn_gr_decimal_compare(&x, &bound) * row->sign;
        *out = order > 0 || (order == 0 && !row->is_strict && !json_is_true(strict));
    }
    return QN_OK;
}

// x is a multiple of step / 10^scale.
static bool is_multiple(const qn_gr_decimal *x, uint64_t step, unsigned scale) {
    const size_t n = strlen(x->fraction);
    uint64_t rest = 0;
    if (n > scale) return false;
    for (const char *at = x->whole; *at; at++) rest = (rest * 10 + (unsigned)(*at - '0')) % step;
    for (size_t i = 0; i < scale; i++)
        rest = (rest * 10 + (i < n ? (unsigned)(x->fraction[i] - '0') : 0)) % step;
    return rest == 0;
}

static qn_status check_number(bool *out, const check *c) {
    const json_t *given = json_object_get(c->member.schema, "multipleOf");
    qn_gr_decimal x, divisor;
    uint64_t step;
    unsigned scale;
    if (!qn_gr_schema_is_number(c->s, c->value)) return QN_OK;
    QN_TRY(check_bounds(out, c));
    if (!given || !*out) return QN_OK;
    QN_TRY(qn_gr_schema_decimal(&x, c->s, c->value, c->member.where, "multipleOf"));
    QN_TRY(qn_gr_schema_decimal(&divisor, c->s, given, c->member.where, "multipleOf"));
    if (!qn_gr_decimal_scaled(&step, &scale, &divisor) || step == 0 || step > UINT64_MAX / 16)
        return QN_SCHEMA_FAIL(c->s, c->member.where, "multipleOf", FORMAT,
                              "not a number above 0 of up to 18 digits");
    *out = is_multiple(&x, step, scale);
    return QN_OK;
}

static uint32_t count_characters(qn_str text) {
    uint32_t n = 0;
    for (size_t i = 0; i < text.size; i++) n += ((unsigned char)text.data[i] & 0xC0) != 0x80;
    return n;
}

static qn_status check_string(bool *out, const check *c) {
    qn_gr_lang_part parts[QN_LANG_MAX_PARTS];
    size_t n = 0;
    if (!json_is_string(c->value) || qn_gr_schema_is_number(c->s, c->value)) return QN_OK;
    const qn_str text = qn_gr_json_str(c->value);
    QN_TRY(qn_gr_schema_string_parts(parts, &n, c->s, &c->member));
    for (size_t i = 0; i < n && *out; i++) {
        bool holds = true;
        if (parts[i].kind == QN_LANG_LENGTH) {
            const uint32_t length = count_characters(text);
            holds = length >= parts[i].min && length <= parts[i].max;
        } else if (parts[i].kind == QN_LANG_PATTERN) {
            const qn_status status =
                qn_gr_lang_matches(&holds, parts[i].pattern, text, &c->s->steps, c->s->err);
            if (status) return qn_gr_schema_fail(c->s, status, c->member.where, "pattern");
        } else {
            continue; // `not`, which is checked whole
        }
        *out = holds != parts[i].negated;
    }
    return QN_OK;
}

// A schema that must hold too, if it is there.
static qn_status check_inner(bool *out, const check *c, const json_t *value, json_t *schema,
                             const char *keyword) {
    bool valid = true;
    if (!schema || !*out) return QN_OK;
    const qn_gr_where *where = qn_gr_where_add(c->s, c->member.where, keyword, 0);
    QN_TRY(qn_gr_schema_valid(&valid, c->s, value, schema, where, c->depth + 1));
    *out = valid;
    return QN_OK;
}

static qn_status check_contains(bool *out, const check *c) {
    json_t *schema = json_object_get(c->member.schema, "contains");
    uint32_t min = 1, max = QN_AST_MANY, n = 0;
    bool found;
    if (!schema || !*out) return QN_OK;
    QN_TRY(qn_gr_schema_count(&min, &found, c->s, &c->member, "minContains"));
    QN_TRY(qn_gr_schema_count(&max, &found, c->s, &c->member, "maxContains"));
    for (size_t i = 0; i < json_array_size(c->value); i++) {
        bool valid = true;
        QN_TRY(check_inner(&valid, c, json_array_get(c->value, i), schema, "contains"));
        n += valid;
    }
    *out = n >= min && n <= max;
    return QN_OK;
}

// What describes the value is not collected here.
static qn_status refuse_unevaluated(const check *c, const char *keyword) {
    const json_t *schema = json_object_get(c->member.schema, keyword);
    if (!schema || json_is_true(schema)) return QN_OK;
    return qn_gr_schema_ignore(c->s, c->member.where, keyword,
                               "not supported for values of enum and const");
}

static qn_status check_array(bool *out, const check *c) {
    json_t *schema = c->member.schema, *items = json_object_get(schema, "items");
    json_t *prefix = json_is_array(items) ? items : json_object_get(schema, "prefixItems");
    if (json_is_array(items)) items = json_object_get(schema, "additionalItems");
    uint32_t min = 0, max = QN_AST_MANY;
    bool found;
    if (!json_is_array(c->value)) return QN_OK;
    const size_t n = json_array_size(c->value);
    QN_TRY(qn_gr_schema_count(&min, &found, c->s, &c->member, "minItems"));
    QN_TRY(qn_gr_schema_count(&max, &found, c->s, &c->member, "maxItems"));
    *out = *out && n >= min && (max == QN_AST_MANY || n <= max);
    for (size_t i = 0; i < n; i++)
        QN_TRY(check_inner(out, c, json_array_get(c->value, i),
                           i < json_array_size(prefix) ? json_array_get(prefix, i) : items,
                           "items"));
    QN_TRY(check_contains(out, c));
    QN_TRY(refuse_unevaluated(c, "unevaluatedItems"));
    if (!json_is_true(json_object_get(schema, "uniqueItems"))) return QN_OK;
    for (size_t i = 0; i < n; i++)
        for (size_t k = i + 1; *out && k < n; k++) {
            bool same;
            QN_TRY(qn_gr_schema_equals(&same, c->s, json_array_get(c->value, i),
                                       json_array_get(c->value, k), c->member.where));
            *out = !same;
        }
    return QN_OK;
}

static qn_status check_member(bool *out, const check *c, const char *key, const json_t *value) {
    json_t *schema = c->member.schema, *inner, *names = json_object_get(schema, "propertyNames");
    json_t *named = json_object_get(json_object_get(schema, "properties"), key);
    const char *pattern;
    bool found = named != NULL;
    QN_TRY(check_inner(out, c, value, named, "properties"));
    json_object_foreach(json_object_get(schema, "patternProperties"), pattern, inner) {
        bool matches = false;
        const qn_status status = qn_gr_lang_matches(&matches, qn_str_of(pattern), qn_str_of(key),
                                                    &c->s->steps, c->s->err);
        if (status) return qn_gr_schema_fail(c->s, status, c->member.where, "patternProperties");
        if (!matches) continue;
        found = true;
        QN_TRY(check_inner(out, c, value, inner, "patternProperties"));
    }
    if (!found)
        QN_TRY(check_inner(out, c, value, json_object_get(schema, "additionalProperties"),
                           "additionalProperties"));
    if (!names) return QN_OK;
    json_t *name = json_string_nocheck(key);
    if (!name) return QN_NOMEM(c->s->err, "schema");
    const qn_status status = check_inner(out, c, name, names, "propertyNames");
    json_decref(name);
    return status;
}

static qn_status check_object(bool *out, const check *c) {
    uint32_t min = 0, max = QN_AST_MANY;
    bool found;
    const char *key;
    json_t *one;
    if (!json_is_object(c->value)) return QN_OK;
    const size_t n = json_object_size(c->value);
    QN_TRY(qn_gr_schema_count(&min, &found, c->s, &c->member, "minProperties"));
    QN_TRY(qn_gr_schema_count(&max, &found, c->s, &c->member, "maxProperties"));
    *out = *out && n >= min && (max == QN_AST_MANY || n <= max);
    const json_t *required = json_object_get(c->member.schema, "required");
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *name = json_string_value(json_array_get(required, i));
        *out = *out && name && json_object_get(c->value, name);
    }
    json_object_foreach((json_t *)(uintptr_t)c->value, key, one)
        QN_TRY(check_member(out, c, key, one));
    QN_TRY(refuse_unevaluated(c, "unevaluatedProperties"));
    json_t *sugar;
    QN_TRY(qn_gr_schema_dependencies(&sugar, c->s, &c->member));
    return check_inner(out, c, c->value, sugar, "dependentSchemas");
}

static qn_status check_lists(bool *out, const check *c) {
    json_t *schema = c->member.schema, *one;
    size_t i, n_any = 0, n_one = 0;
    json_t *any = json_object_get(schema, "anyOf"), *single = json_object_get(schema, "oneOf");
    json_array_foreach(json_object_get(schema, "allOf"), i, one)
        QN_TRY(check_inner(out, c, c->value, one, "allOf"));
    json_array_foreach(any, i, one) {
        bool valid = true;
        QN_TRY(check_inner(&valid, c, c->value, one, "anyOf"));
        n_any += valid;
    }
    json_array_foreach(single, i, one) {
        bool valid = true;
        QN_TRY(check_inner(&valid, c, c->value, one, "oneOf"));
        n_one += valid;
    }
    *out = *out && (!any || n_any > 0) && (!single || n_one == 1);
    return QN_OK;
}

static qn_status check_reference(bool *out, const check *c) {
    static const char *const keywords[] = {"$ref", "$dynamicRef", "$recursiveRef"};
    json_t *excluded = json_object_get(c->member.schema, "not"), *target;
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++) {
        if (!json_object_get(c->member.schema, keywords[i])) continue;
        QN_TRY(qn_gr_schema_resolve(&target, c->s, &c->member, keywords[i]));
        QN_TRY(check_inner(out, c, c->value, target, keywords[i]));
    }
    if (excluded) {
        bool valid = true;
        QN_TRY(check_inner(&valid, c, c->value, excluded, "not"));
        *out = *out && !valid;
    }
    return QN_OK;
}

static qn_status check_if(bool *out, const check *c) {
    json_t *condition = json_object_get(c->member.schema, "if");
    bool holds = true;
    if (!condition || !*out) return QN_OK;
    QN_TRY(check_inner(&holds, c, c->value, condition, "if"));
    const char *branch = holds ? "then" : "else";
    return check_inner(out, c, c->value, json_object_get(c->member.schema, branch), branch);
}

typedef qn_status check_fn(bool *out, const check *c);
static check_fn *const checks[] = {check_types,     check_listed, check_number,
                                   check_string,    check_array,  check_object,
                                   check_reference, check_lists,  check_if};

qn_status qn_gr_schema_valid(bool *out, qn_gr_schema *s, const json_t *value, json_t *schema,
                             const qn_gr_where *where, int depth) {
    *out = json_is_true(schema);
    if (json_is_boolean(schema)) return QN_OK;
    if (!json_is_object(schema))
        return QN_SCHEMA_FAIL(s, where, NULL, FORMAT, "a schema is an object, true or false");
    if (depth > DEPTH_MAX)
        return QN_SCHEMA_FAIL(s, where, NULL, LIMIT, "schemas nested deeper than %d for a value",
                              DEPTH_MAX);
    QN_TRY(qn_gr_schema_spend(s, 16, where));
    const check c = {s, value, {schema, where, -1, 0}, depth};
    *out = true;
    if (s->ref_alone && json_object_get(schema, "$ref")) return check_reference(out, &c);
    QN_TRY(qn_gr_schema_check_keywords(s, &c.member));
    for (size_t i = 0; *out && i < sizeof checks / sizeof *checks; i++) QN_TRY(checks[i](out, &c));
    return QN_OK;
}

// `single`, or without it the values of the types that have finitely many; NULL without memory.
static json_t *finite_values(json_t *single, uint32_t types) {
    json_t *list = json_array();
    if (single) {
        qn_json_push(&list, json_incref(single));
        return list;
    }
    if (types & QN_SCHEMA_BOOLEAN) {
        qn_json_push(&list, json_true());
        qn_json_push(&list, json_false());
    }
    if (types & QN_SCHEMA_NULL) qn_json_push(&list, json_null());
    return list;
}

qn_status qn_gr_schema_values(json_t **out, qn_gr_schema *s, const qn_gr_conj *conj) {
    qn_gr_conj all = {0};
    uint32_t types = 0;
    json_t *values = NULL, *single = NULL;
    qn_status status = QN_OK;
    for (size_t i = 0; !status && i < conj->n; i++)
        status = qn_gr_conj_add(s, &all, conj->members[i]);
    if (!status) status = qn_gr_conj_expand(s, &all);
    if (!status) status = qn_gr_schema_common_types(&types, s, &all);
    for (size_t i = 0; !status && i < all.n && !values; i++) {
        values = json_object_get(all.members[i].schema, "enum");
        single = json_object_get(all.members[i].schema, "const");
        if (!json_is_array(values)) values = NULL;
        if (!values && single) break;
    }
    qn_gr_conj_deinit(&all);
    QN_TRY(status);
    if (!values && (single || !(types & ~(uint32_t)(QN_SCHEMA_BOOLEAN | QN_SCHEMA_NULL)))) {
        values = finite_values(single, types);
        if (!s->made) s->made = json_array();
        if (json_array_append_new(s->made, values)) return QN_NOMEM(s->err, "schema");
    } // which `made` keeps
    *out = values;
    return QN_OK;
}
