// Values that a schema spells out: their text, and whether they are valid for other schemas.
#include "core/mem.h"
#include "core/utf8.h"
#include "gen/grammar/schema.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { DEPTH_MAX = 64 };

// --- text ----------------------------------------------------------------------------------------

static int32_t number_literal(qn_schema *s, const json_t *value) {
    char text[64];
    if (json_is_integer(value)) {
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(value));
    } else {
        const double real = json_real_value(value);
        for (int n = 1; n <= 17; n++) {
            snprintf(text, sizeof text, "%.*g", n, real);
            if (strtod(text, NULL) == real) break;
        }
    }
    return qn_ast_text(s->ast, qn_str_of(text));
}

// The inner part of a list: items with commas between.
static int32_t array_literal(qn_schema *s, const json_t *value) {
    int32_t node = s->parts.close_list;
    if (!json_array_size(value)) return qn_ast_text(s->ast, qn_str_of("[]"));
    for (size_t i = json_array_size(value); i-- > 0;) {
        node = qn_ast_seq(s->ast, qn_schema_literal(s, json_array_get(value, i)), node);
        if (i) node = qn_ast_seq(s->ast, s->parts.comma, node);
    }
    return qn_ast_seq(s->ast, s->parts.open_list, node);
}

static int32_t object_literal(qn_schema *s, const json_t *value) {
    const char *key;
    json_t *one;
    int32_t node = QN_AST_EMPTY;
    bool is_first = true;
    if (!json_object_size(value)) return qn_ast_text(s->ast, qn_str_of("{}"));
    json_object_foreach((json_t *)(uintptr_t)value, key, one) {
        const int32_t member = qn_ast_seq3(s->ast, qn_json_text(s->ast, qn_str_of(key)),
                                           s->parts.colon, qn_schema_literal(s, one));
        node = is_first ? member : qn_ast_seq3(s->ast, node, s->parts.comma, member);
        is_first = false;
    }
    return qn_ast_seq3(s->ast, s->parts.open, node, s->parts.close);
}

int32_t qn_schema_literal(qn_schema *s, const json_t *value) {
    if (s->ast->failed) return QN_AST_NEVER;
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return object_literal(s, value);
    case JSON_ARRAY:
        return array_literal(s, value);
    case JSON_STRING:
        return qn_json_text(s->ast, qn_json_str(value));
    case JSON_INTEGER:
    case JSON_REAL:
        return number_literal(s, value);
    case JSON_TRUE:
        return qn_ast_text(s->ast, qn_str_of("true"));
    case JSON_FALSE:
        return qn_ast_text(s->ast, qn_str_of("false"));
    default:
        return qn_ast_text(s->ast, qn_str_of("null"));
    }
}

// --- validity ------------------------------------------------------------------------------------

typedef struct check {
    qn_schema *s;
    const json_t *value;
    qn_member member;
    int depth;
} check;

// Equal as JSON Schema has it: 1 is 1.0.
static bool equals(const json_t *a, const json_t *b) {
    if (json_is_number(a) && json_is_number(b)) {
        if (json_is_integer(a) && json_is_integer(b))
            return json_integer_value(a) == json_integer_value(b);
        return json_number_value(a) == json_number_value(b);
    }
    if (json_is_array(a) && json_is_array(b)) {
        bool same = json_array_size(a) == json_array_size(b);
        for (size_t i = 0; same && i < json_array_size(a); i++)
            same = equals(json_array_get(a, i), json_array_get(b, i));
        return same;
    }
    if (json_is_object(a) && json_is_object(b)) {
        const char *key;
        json_t *one;
        bool same = json_object_size(a) == json_object_size(b);
        json_object_foreach((json_t *)(uintptr_t)a, key, one) {
            const json_t *other = json_object_get(b, key);
            same = same && other && equals(one, other);
        }
        return same;
    }
    return json_equal(a, b);
}

static uint32_t type_of(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return QN_TYPE_OBJECT;
    case JSON_ARRAY:
        return QN_TYPE_ARRAY;
    case JSON_STRING:
        return QN_TYPE_STRING;
    case JSON_INTEGER:
        return QN_TYPE_INTEGER;
    case JSON_REAL:
        return json_real_value(value) == floor(json_real_value(value)) ? QN_TYPE_INTEGER
                                                                       : QN_TYPE_FRACTION;
    case JSON_NULL:
        return QN_TYPE_NULL;
    default:
        return QN_TYPE_BOOLEAN;
    }
}

static qn_status check_types(bool *out, const check *c) {
    uint32_t types;
    QN_TRY(qn_schema_types(&types, c->s, &c->member));
    *out = (type_of(c->value) & types) != 0;
    return QN_OK;
}

static qn_status check_listed(bool *out, const check *c) {
    const json_t *list = json_object_get(c->member.schema, "enum");
    const json_t *one = json_object_get(c->member.schema, "const");
    bool found = !list;
    QN_TRY(qn_schema_spend(c->s, 8 + json_array_size(list), c->member.where));
    for (size_t i = 0; !found && i < json_array_size(list); i++)
        found = equals(c->value, json_array_get(list, i));
    *out = found && (!one || equals(c->value, one));
    return QN_OK;
}

static qn_status check_number(bool *out, const check *c) {
    if (!json_is_number(c->value)) return QN_OK;
    const double x = json_number_value(c->value);
    const json_t *schema = c->member.schema, *bound;
    if ((bound = json_object_get(schema, "minimum"))) *out = *out && x >= json_number_value(bound);
    if ((bound = json_object_get(schema, "maximum"))) *out = *out && x <= json_number_value(bound);
    if ((bound = json_object_get(schema, "exclusiveMinimum")))
        *out = *out && x > json_number_value(bound);
    if ((bound = json_object_get(schema, "exclusiveMaximum")))
        *out = *out && x < json_number_value(bound);
    if ((bound = json_object_get(schema, "multipleOf"))) {
        const double step = json_number_value(bound);
        *out = *out && step > 0 && fmod(x, step) == 0;
    }
    return QN_OK;
}

static uint32_t count_characters(qn_str text) {
    uint32_t n = 0;
    for (size_t i = 0; i < text.size; i++) n += ((unsigned char)text.data[i] & 0xC0) != 0x80;
    return n;
}

static qn_status check_string(bool *out, const check *c) {
    qn_lang_part parts[QN_LANG_MAX_PARTS];
    size_t n = 0;
    if (!json_is_string(c->value)) return QN_OK;
    const qn_str text = qn_json_str(c->value);
    QN_TRY(qn_schema_string_parts(parts, &n, c->s, &c->member));
    for (size_t i = 0; i < n && *out; i++) {
        bool holds = true;
        if (parts[i].kind == QN_LANG_LENGTH) {
            const uint32_t length = count_characters(text);
            holds = length >= parts[i].min && length <= parts[i].max;
        } else if (parts[i].kind == QN_LANG_PATTERN) {
            const qn_status status =
                qn_lang_matches(&holds, parts[i].pattern, text, &c->s->steps, c->s->err);
            if (status) return qn_schema_fail(c->s, status, c->member.where, "pattern");
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
    const qn_where *where = qn_where_add(c->s, c->member.where, keyword, 0);
    QN_TRY(qn_schema_valid(&valid, c->s, value, schema, where, c->depth + 1));
    *out = valid;
    return QN_OK;
}

static qn_status check_array(bool *out, const check *c) {
    json_t *schema = c->member.schema, *items = json_object_get(schema, "items");
    json_t *prefix = json_is_array(items) ? items : json_object_get(schema, "prefixItems");
    if (json_is_array(items)) items = json_object_get(schema, "additionalItems");
    uint32_t min = 0, max = QN_AST_MANY;
    bool found;
    if (!json_is_array(c->value)) return QN_OK;
    const size_t n = json_array_size(c->value);
    QN_TRY(qn_schema_count(&min, &found, c->s, &c->member, "minItems"));
    QN_TRY(qn_schema_count(&max, &found, c->s, &c->member, "maxItems"));
    *out = *out && n >= min && (max == QN_AST_MANY || n <= max);
    for (size_t i = 0; i < n; i++)
        QN_TRY(check_inner(out, c, json_array_get(c->value, i),
                           i < json_array_size(prefix) ? json_array_get(prefix, i) : items,
                           "items"));
    if (!json_is_true(json_object_get(schema, "uniqueItems"))) return QN_OK;
    QN_TRY(qn_schema_spend(c->s, n * n, c->member.where));
    for (size_t i = 0; i < n; i++)
        for (size_t k = i + 1; k < n; k++)
            if (equals(json_array_get(c->value, i), json_array_get(c->value, k))) *out = false;
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
        const qn_status status =
            qn_lang_matches(&matches, qn_str_of(pattern), qn_str_of(key), &c->s->steps, c->s->err);
        if (status) return qn_schema_fail(c->s, status, c->member.where, "patternProperties");
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
    QN_TRY(qn_schema_count(&min, &found, c->s, &c->member, "minProperties"));
    QN_TRY(qn_schema_count(&max, &found, c->s, &c->member, "maxProperties"));
    *out = *out && n >= min && (max == QN_AST_MANY || n <= max);
    const json_t *required = json_object_get(c->member.schema, "required");
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *name = json_string_value(json_array_get(required, i));
        *out = *out && name && json_object_get(c->value, name);
    }
    json_object_foreach((json_t *)(uintptr_t)c->value, key, one)
        QN_TRY(check_member(out, c, key, one));
    return QN_OK;
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
    const json_t *ref = json_object_get(c->member.schema, "$ref");
    json_t *not = json_object_get(c->member.schema, "not"), *target;
    if (ref) {
        QN_TRY(qn_schema_resolve(&target, c->s, ref, c->member.where));
        QN_TRY(check_inner(out, c, c->value, target, "$ref"));
    }
    if (not ) {
        bool valid = true;
        QN_TRY(check_inner(&valid, c, c->value, not, "not"));
        *out = *out && !valid;
    }
    return QN_OK;
}

typedef qn_status check_fn(bool *out, const check *c);
static check_fn *const checks[] = {check_types, check_listed, check_number,    check_string,
                                   check_array, check_object, check_reference, check_lists};

qn_status qn_schema_valid(bool *out, qn_schema *s, const json_t *value, json_t *schema,
                          const qn_where *where, int depth) {
    *out = json_is_true(schema);
    if (json_is_boolean(schema)) return QN_OK;
    if (!json_is_object(schema))
        return QN_SCHEMA_FAIL(s, where, NULL, FORMAT, "a schema is an object, true or false");
    if (depth > DEPTH_MAX)
        return QN_SCHEMA_FAIL(s, where, NULL, LIMIT, "schemas nested deeper than %d for a value",
                              DEPTH_MAX);
    QN_TRY(qn_schema_spend(s, 16, where));
    const check c = {s, value, {schema, where, -1, 0}, depth};
    *out = true;
    for (size_t i = 0; *out && i < sizeof checks / sizeof *checks; i++) QN_TRY(checks[i](out, &c));
    return QN_OK;
}
