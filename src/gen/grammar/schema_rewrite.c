// Keywords that others can say: a schema that must not hold, conditions, dependencies and choices
// of exactly one become schemas made of allOf, anyOf and plain keywords.
//
// A negation is made one level deep: what it says of inner values is `not` again, and becomes
// something else when those are built. Everything that is made here is made once for each schema
// (s->made), so that recursive schemas end.
#include "core/mem.h"
#include "gen/grammar/decimal.h"
#include "gen/grammar/schema.h"

#include <stdlib.h>

enum { NUMBERS_MAX = 512, PLACES_MAX = 512, SUBSETS_OF_MAX = 4 };

// --- making JSON ---------------------------------------------------------------------------------
// As in core/json.h: values are taken over, and NULL, which failed allocations leave, is handed on.

static json_t *with(json_t *object, const char *key, json_t *value) {
    qn_json_put(&object, key, value);
    return object;
}

static json_t *object1(const char *key, json_t *value) { return with(json_object(), key, value); }

static json_t *list1(json_t *value) {
    json_t *list = json_array();
    qn_json_push(&list, value);
    return list;
}

static json_t *list2(json_t *a, json_t *b) {
    json_t *list = list1(a);
    qn_json_push(&list, b);
    return list;
}

static json_t *typed(const char *type, const char *key, json_t *value) {
    return with(object1("type", json_string_nocheck(type)), key, value);
}

static json_t *not_of(json_t *schema) { return object1("not", json_incref(schema)); }

// { name: schema }
static json_t *one_property(const char *name, json_t *schema) {
    return object1("properties", object1(name, schema));
}

// --- what was made already -----------------------------------------------------------------------

typedef struct made_key {
    const void *of;
    uintptr_t kind;
} made_key;

enum { MADE_NOT = 1, MADE_SUGAR, MADE_IF, MADE_SUBSETS, MADE_ONE /* and types above */ };

static json_t *find_made(const qn_gr_schema *s, const void *of, uintptr_t kind) {
    const made_key key = {of, kind};
    uint32_t at;
    return qn_map_find(&s->made_index, (const char *)&key, sizeof key, &at)
               ? json_array_get(s->made, at)
               : NULL;
}

// Takes over `value`; NULL is a failed allocation.
static qn_status keep_made(json_t **out, qn_gr_schema *s, const void *of, uintptr_t kind,
                           json_t *value) {
    const made_key key = {of, kind};
    if (!s->made) s->made = json_array();
    const size_t at = json_array_size(s->made);
    const char *kept = qn_arena_strdup(&s->arena, (const char *)&key, sizeof key);
    if (!s->made || !kept) {
        json_decref(value);
        return QN_NOMEM(s->err, "schema");
    }
    if (json_array_append_new(s->made, value) ||
        !qn_map_add(&s->made_index, kept, sizeof key, (uint32_t)at, NULL))
        return QN_NOMEM(s->err, "schema");
    *out = json_array_get(s->made, at);
    return QN_OK;
}

// --- values that are excluded --------------------------------------------------------------------

typedef struct negation {
    qn_gr_schema *s;
    json_t *schema; // that must not hold
    const qn_gr_where *where;
    const char *keyword;
    json_t *options; // schemas, one of which holds instead
} negation;

static void add_option(negation *x, json_t *option) { qn_json_push(&x->options, option); }

typedef struct listed_number {
    qn_gr_decimal decimal;
    json_t *value;
} listed_number;

static int compare_numbers(const void *a, const void *b) {
    return qn_gr_decimal_compare(&((const listed_number *)a)->decimal,
                                 &((const listed_number *)b)->decimal);
}

// The numbers between those of the list.
static qn_status exclude_numbers(negation *x, const json_t *list) {
    listed_number *numbers = qn_alloc(NUMBERS_MAX, sizeof *numbers);
    qn_status status = numbers ? QN_OK : QN_NOMEM(x->s->err, "schema");
    size_t n = 0;
    for (size_t i = 0; !status && i < json_array_size(list); i++) {
        json_t *value = json_array_get(list, i);
        if (!qn_gr_schema_is_number(x->s, value)) continue;
        if (n == NUMBERS_MAX) {
            status = QN_SCHEMA_FAIL(x->s, x->where, "enum", LIMIT, "more than %d numbers under not",
                                    NUMBERS_MAX);
            break;
        }
        numbers[n].value = value;
        status = qn_gr_schema_decimal(&numbers[n++].decimal, x->s, value, x->where, "enum");
    }
    if (!status) qsort(numbers, n, sizeof *numbers, compare_numbers);
    for (size_t i = 0; !status && i <= n; i++) {
        if (i && i < n && !compare_numbers(&numbers[i - 1], &numbers[i])) continue;
        json_t *option = object1("type", json_string_nocheck("number"));
        if (i) qn_json_put(&option, "exclusiveMinimum", json_incref(numbers[i - 1].value));
        if (i < n) qn_json_put(&option, "exclusiveMaximum", json_incref(numbers[i].value));
        add_option(x, option);
    }
    qn_free(numbers);
    return status;
}

// What differs at place i of a list is a list of i + 1 schemas: n places take n * n of them.
static qn_status spend_places(const negation *x, size_t n) {
    if (n > PLACES_MAX)
        return QN_SCHEMA_FAIL(x->s, x->where, x->keyword, LIMIT,
                              "a list of %zu items under not, at most %d are supported", n,
                              PLACES_MAX);
    return qn_gr_schema_spend(x->s, 4 * n * n, x->where);
}

// Arrays that differ from `value`: by their length, or at a place.
static json_t *other_arrays(const json_t *value) {
    const size_t n = json_array_size(value);
    json_t *options = list1(typed("array", "minItems", json_integer((json_int_t)n + 1)));
    if (n) qn_json_push(&options, typed("array", "maxItems", json_integer((json_int_t)n - 1)));
    for (size_t i = 0; i < n; i++) {
        json_t *prefix = json_array();
        for (size_t k = 0; k < i; k++) qn_json_push(&prefix, json_true());
        json_t *item = object1("const", json_incref(json_array_get(value, i)));
        qn_json_push(&prefix, object1("not", item));
        qn_json_push(&options, with(typed("array", "prefixItems", prefix), "minItems",
                                    json_integer((json_int_t)i + 1)));
    }
    return object1("anyOf", options);
}

// Objects that differ from `value`: by having more, by lacking something, or in a property.
static json_t *other_objects(json_t *value) {
    const char *key;
    json_t *one;
    json_t *options = list1(
        typed("object", "minProperties", json_integer((json_int_t)json_object_size(value) + 1)));
    json_object_foreach(value, key, one) {
        qn_json_push(&options, typed("object", "properties", object1(key, json_false())));
        json_t *differs = object1("not", object1("const", json_incref(one)));
        qn_json_push(&options, with(typed("object", "properties", object1(key, differs)),
                                    "required", list1(json_string_nocheck(key))));
    }
    return object1("anyOf", options);
}

static json_t *others_of(json_t *value, json_type kind) {
    return kind == JSON_ARRAY ? other_arrays(value) : other_objects(value);
}

static qn_status spend_nested(const negation *x, const json_t *value) {
    if (json_is_array(value)) return spend_places(x, json_array_size(value));
    return qn_gr_schema_spend(x->s, 16 * json_object_size(value), x->where);
}

// Lists and objects that are not in the list.
static qn_status exclude_nested(negation *x, const json_t *list, json_type kind, const char *type) {
    json_t *all = json_array();
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *value = json_array_get(list, i);
        if (json_typeof(value) != kind) continue;
        const qn_status status = spend_nested(x, value);
        if (status) {
            json_decref(all);
            return status;
        }
        qn_json_push(&all, others_of(value, kind));
    }
    const bool is_plain = all && !json_array_size(all);
    json_t *option = object1("type", json_string_nocheck(type));
    if (is_plain)
        json_decref(all);
    else
        qn_json_put(&option, "allOf", all);
    add_option(x, option);
    return QN_OK;
}

static void exclude_words(negation *x, const json_t *list) {
    bool seen[3] = {false, false, false}; // null, true, false
    json_t *strings = json_array();
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *value = json_array_get(list, i);
        if (json_is_null(value)) seen[0] = true;
        if (json_is_boolean(value)) seen[json_is_true(value) ? 1 : 2] = true;
        if (json_is_string(value) && !qn_gr_schema_is_number(x->s, value))
            qn_json_push(&strings, json_incref(value));
    }
    if (!seen[0]) add_option(x, object1("type", json_string_nocheck("null")));
    if (!seen[1]) add_option(x, object1("const", json_true()));
    if (!seen[2]) add_option(x, object1("const", json_false()));
    add_option(x, typed("string", "not", object1("enum", strings)));
}

static qn_status exclude_values(negation *x, const json_t *list) {
    QN_TRY(qn_gr_schema_spend(x->s, 16 * (1 + json_array_size(list)), x->where));
    exclude_words(x, list);
    QN_TRY(exclude_nested(x, list, JSON_ARRAY, "array"));
    QN_TRY(exclude_nested(x, list, JSON_OBJECT, "object"));
    return exclude_numbers(x, list);
}

// --- negations of keywords -----------------------------------------------------------------------

typedef qn_status negate_fn(negation *x, json_t *value);

static qn_status refuse(negation *x) {
    add_option(x, json_true()); // where it is let pass, everything is
    return qn_gr_schema_ignore(x->s, x->where, x->keyword,
                               "not supported under `not`, in `if` and in choices that overlap");
}

static qn_status not_type(negation *x, json_t *value) {
    json_t *types = object1("type", json_incref(value)),
           *nullable = json_object_get(x->schema, "nullable");
    if (nullable) qn_json_put(&types, "nullable", json_incref(nullable));
    add_option(x, object1("not", types));
    return QN_OK;
}

static qn_status not_enum(negation *x, json_t *value) {
    if (!json_is_array(value)) return QN_SCHEMA_FAIL(x->s, x->where, "enum", FORMAT, "not a list");
    return exclude_values(x, value);
}

static qn_status not_const(negation *x, json_t *value) {
    json_t *list = list1(json_incref(value));
    if (!list) return QN_NOMEM(x->s->err, "schema");
    const qn_status status = exclude_values(x, list);
    json_decref(list);
    return status;
}

static void add_number(negation *x, const char *keyword, json_t *value) {
    add_option(x, typed("number", keyword, json_incref(value)));
}

static qn_status not_minimum(negation *x, json_t *value) {
    const bool is_strict = json_is_true(json_object_get(x->schema, "exclusiveMinimum"));
    add_number(x, is_strict ? "maximum" : "exclusiveMaximum", value);
    return QN_OK;
}

static qn_status not_maximum(negation *x, json_t *value) {
    const bool is_strict = json_is_true(json_object_get(x->schema, "exclusiveMaximum"));
    add_number(x, is_strict ? "minimum" : "exclusiveMinimum", value);
    return QN_OK;
}

static qn_status not_exclusive_minimum(negation *x, json_t *value) {
    if (!json_is_boolean(value)) add_number(x, "maximum", value);
    return QN_OK;
}

static qn_status not_exclusive_maximum(negation *x, json_t *value) {
    if (!json_is_boolean(value)) add_number(x, "minimum", value);
    return QN_OK;
}

static qn_status not_multiple(negation *x, json_t *value) {
    add_option(x, typed("number", "not", object1("multipleOf", json_incref(value))));
    return QN_OK;
}

typedef struct count_row {
    const char *keyword, *type, *opposite;
    bool is_lower;
} count_row;

static const count_row counts[] = {
    {"minLength", "string", "maxLength", true},
    {"maxLength", "string", "minLength", false},
    {"minItems", "array", "maxItems", true},
    {"maxItems", "array", "minItems", false},
    {"minProperties", "object", "maxProperties", true},
    {"maxProperties", "object", "minProperties", false},
};

// Fewer than a lower bound, more than an upper one.
static qn_status not_count(negation *x, json_t *value) {
    const qn_gr_member member = {x->schema, x->where, -1, 0};
    const count_row *row = counts;
    uint32_t count = 0;
    bool found;
    (void)value;
    while (strcmp(row->keyword, x->keyword) != 0) row++;
    QN_TRY(qn_gr_schema_count(&count, &found, x->s, &member, row->keyword));
    if (row->is_lower ? count == 0 : count == QN_AST_MANY) return QN_OK; // it always holds
    const json_int_t other = row->is_lower ? (json_int_t)count - 1 : (json_int_t)count + 1;
    add_option(x, typed(row->type, row->opposite, json_integer(other)));
    return QN_OK;
}

static qn_status not_pattern(negation *x, json_t *value) {
    add_option(x, typed("string", "not", object1("pattern", json_incref(value))));
    return QN_OK;
}

static qn_status not_format(negation *x, json_t *value) {
    switch (qn_gr_schema_format_kind(value)) {
    case QN_FORMAT_TEXT:
        add_option(x, typed("string", "not", object1("format", json_incref(value))));
        return QN_OK;
    case QN_FORMAT_FREE:
        return QN_OK; // it always holds
    default:
        return refuse(x);
    }
}

static qn_status not_unique(negation *x, json_t *value) {
    return json_is_true(value) ? refuse(x) : QN_OK;
}

static qn_status not_unevaluated(negation *x, json_t *value) {
    return json_is_true(value) ? QN_OK : refuse(x);
}

// An item at one of the first places that is not as it should be.
static qn_status not_prefix(negation *x, const json_t *prefix) {
    QN_TRY(spend_places(x, json_array_size(prefix)));
    for (size_t i = 0; i < json_array_size(prefix); i++) {
        json_t *list = json_array();
        for (size_t k = 0; k < i; k++) qn_json_push(&list, json_true());
        qn_json_push(&list, not_of(json_array_get(prefix, i)));
        add_option(x, with(typed("array", "prefixItems", list), "minItems",
                           json_integer((json_int_t)i + 1)));
    }
    return QN_OK;
}

// An item after the first `from` that is not as it should be.
static void not_rest(negation *x, json_t *rest, size_t from) {
    json_t *option = typed("array", "contains", not_of(rest));
    if (from) qn_json_put(&option, QN_KEYWORD_FROM, json_integer((json_int_t)from));
    add_option(x, option);
}

static qn_status not_items(negation *x, json_t *value) {
    const json_t *prefix = json_object_get(x->schema, "prefixItems");
    if (!json_is_array(value)) {
        not_rest(x, value, json_array_size(prefix));
        return QN_OK;
    }
    json_t *rest = json_object_get(x->schema, "additionalItems");
    QN_TRY(not_prefix(x, value));
    if (rest) not_rest(x, rest, json_array_size(value));
    return QN_OK;
}

static qn_status not_prefix_items(negation *x, json_t *value) {
    return json_is_array(json_object_get(x->schema, "items")) ? QN_OK : not_prefix(x, value);
}

static qn_status not_contains(negation *x, json_t *value) {
    const qn_gr_member member = {x->schema, x->where, -1, 0};
    uint32_t min = 1, max = QN_AST_MANY;
    bool found;
    QN_TRY(qn_gr_schema_count(&min, &found, x->s, &member, "minContains"));
    QN_TRY(qn_gr_schema_count(&max, &found, x->s, &member, "maxContains"));
    if (min == 1) add_option(x, typed("array", "items", not_of(value)));
    if (min > 1)
        add_option(x, with(with(typed("array", "contains", json_incref(value)), "minContains",
                                json_integer(0)),
                           "maxContains", json_integer((json_int_t)min - 1)));
    if (max != QN_AST_MANY)
        add_option(x, with(typed("array", "contains", json_incref(value)), "minContains",
                           json_integer((json_int_t)max + 1)));
    return QN_OK;
}

static qn_status not_required(negation *x, json_t *value) {
    size_t i;
    json_t *name;
    json_array_foreach(value, i, name) {
        if (!json_is_string(name))
            return QN_SCHEMA_FAIL(x->s, x->where, "required", FORMAT, "not a list of strings");
        add_option(x, with(one_property(json_string_value(name), json_false()), "type",
                           json_string_nocheck("object")));
    }
    return QN_OK;
}

static qn_status not_properties(negation *x, json_t *value) {
    const char *key;
    json_t *one;
    json_object_foreach(value, key, one) {
        if (json_is_true(one)) continue;
        json_t *option =
            with(one_property(key, not_of(one)), "type", json_string_nocheck("object"));
        add_option(x, with(option, "required", list1(json_string_nocheck(key))));
    }
    return QN_OK;
}

// Some property, whose name is described by `some` (see QN_KEYWORD_SOME), has this value.
static void add_some(negation *x, json_t *some, json_t *value) {
    add_option(x, typed("object", QN_KEYWORD_SOME, with(some, "value", value)));
}

static qn_status not_pattern_properties(negation *x, json_t *value) {
    const char *key;
    json_t *one;
    json_object_foreach(value, key, one) if (!json_is_true(one))
        add_some(x, object1("match", json_string_nocheck(key)), not_of(one));
    return QN_OK;
}

static qn_status not_additional(negation *x, json_t *value) {
    json_t *patterns = json_object_get(x->schema, "patternProperties");
    json_t *properties = json_object_get(x->schema, "properties"), *one;
    json_t *names = json_array(), *texts = json_array();
    const char *key;
    if (json_is_true(value)) {
        json_decref(names);
        json_decref(texts);
        return QN_OK;
    }
    json_object_foreach(properties, key, one) qn_json_push(&names, json_string_nocheck(key));
    json_object_foreach(patterns, key, one) qn_json_push(&texts, json_string_nocheck(key));
    add_some(x, with(object1("names", names), "patterns", texts), not_of(value));
    return QN_OK;
}

static qn_status not_names(negation *x, json_t *value) {
    add_some(x, object1("name", json_incref(value)), json_true());
    return QN_OK;
}

static qn_status not_all_of(negation *x, json_t *value) {
    size_t i;
    json_t *one;
    json_array_foreach(value, i, one) add_option(x, not_of(one));
    return QN_OK;
}

static json_t *none_of(json_t *list) {
    json_t *all = json_array(), *one;
    size_t i;
    json_array_foreach(list, i, one) qn_json_push(&all, not_of(one));
    return object1("allOf", all);
}

static qn_status not_any_of(negation *x, json_t *value) {
    add_option(x, none_of(value));
    return QN_OK;
}

static qn_status not_one_of(negation *x, json_t *value) {
    const size_t n = json_array_size(value);
    QN_TRY(qn_gr_schema_spend(x->s, 16 * n * n, x->where));
    add_option(x, none_of(value));
    for (size_t i = 0; i < n; i++)
        for (size_t k = i + 1; k < n; k++)
            add_option(x, object1("allOf", list2(json_incref(json_array_get(value, i)),
                                                 json_incref(json_array_get(value, k)))));
    return QN_OK;
}

static qn_status not_not(negation *x, json_t *value) {
    add_option(x, json_incref(value));
    return QN_OK;
}

static qn_status not_if(negation *x, json_t *value) {
    json_t *then = json_object_get(x->schema, "then"), *other = json_object_get(x->schema, "else");
    if (then) add_option(x, object1("allOf", list2(json_incref(value), not_of(then))));
    if (other) add_option(x, object1("allOf", list2(not_of(value), not_of(other))));
    return QN_OK;
}

static qn_status not_reference(negation *x, json_t *value) {
    json_t *target;
    (void)value;
    const qn_gr_member member = {x->schema, x->where, -1, 0};
    QN_TRY(qn_gr_schema_resolve(&target, x->s, &member, x->keyword));
    add_option(x, not_of(target));
    return QN_OK;
}

static qn_status not_sugar(negation *x, json_t *value) {
    json_t *sugar;
    (void)value;
    const qn_gr_member member = {x->schema, x->where, -1, 0};
    QN_TRY(qn_gr_schema_dependencies(&sugar, x->s, &member));
    if (sugar) add_option(x, not_of(sugar));
    return QN_OK;
}

typedef struct negate_row {
    const char *keyword;
    negate_fn *negate;
} negate_row;

static const negate_row negations[] = {
    {"type", not_type},
    {"enum", not_enum},
    {"const", not_const},
    {"minimum", not_minimum},
    {"maximum", not_maximum},
    {"exclusiveMinimum", not_exclusive_minimum},
    {"exclusiveMaximum", not_exclusive_maximum},
    {"multipleOf", not_multiple},
    {"minLength", not_count},
    {"maxLength", not_count},
    {"pattern", not_pattern},
    {"format", not_format},
    {"minItems", not_count},
    {"maxItems", not_count},
    {"items", not_items},
    {"prefixItems", not_prefix_items},
    {"contains", not_contains},
    {"uniqueItems", not_unique},
    {"required", not_required},
    {"properties", not_properties},
    {"patternProperties", not_pattern_properties},
    {"additionalProperties", not_additional},
    {"propertyNames", not_names},
    {"minProperties", not_count},
    {"maxProperties", not_count},
    {"allOf", not_all_of},
    {"anyOf", not_any_of},
    {"oneOf", not_one_of},
    {"not", not_not},
    {"if", not_if},
    {"$ref", not_reference},
    {"$dynamicRef", not_reference},
    {"$recursiveRef", not_reference},
    {"dependentRequired", not_sugar},
    {"dependentSchemas", not_sugar},
    {"dependencies", not_sugar},
    {"unevaluatedProperties", not_unevaluated},
    {"unevaluatedItems", not_unevaluated},
};

// What must hold where an object does not: one of its keywords does not.
static qn_status negate_object(json_t **out, qn_gr_schema *s, json_t *schema,
                               const qn_gr_where *where) {
    const qn_gr_member member = {schema, where, -1, 0};
    QN_TRY(qn_gr_schema_check_keywords(s, &member));
    negation x = {.s = s, .schema = schema, .where = where, .options = json_array()};
    qn_status status = QN_OK;
    const bool ref_alone = s->ref_alone && json_object_get(schema, "$ref");
    for (size_t i = 0; !status && i < sizeof negations / sizeof *negations; i++) {
        x.keyword = negations[i].keyword;
        json_t *value = json_object_get(schema, x.keyword);
        if (ref_alone && strcmp(x.keyword, "$ref") != 0) continue;
        if (value) status = negations[i].negate(&x, value);
    }
    if (status) {
        json_decref(x.options);
        return status;
    }
    json_t *made = json_false(); // nothing can fail
    if (!x.options || json_array_size(x.options))
        made = object1("anyOf", x.options);
    else
        json_decref(x.options);
    return keep_made(out, s, schema, MADE_NOT, made);
}

qn_status qn_gr_schema_negated(json_t **out, qn_gr_schema *s, json_t *schema,
                               const qn_gr_where *where) {
    if (json_is_boolean(schema)) {
        *out = json_is_true(schema) ? json_false() : json_true(); // constants: nobody owns them
        return QN_OK;
    }
    if (!json_is_object(schema))
        return QN_SCHEMA_FAIL(s, where, NULL, FORMAT, "a schema is an object, true or false");
    json_t *known = find_made(s, schema, MADE_NOT);
    if (known) {
        *out = known;
        return QN_OK;
    }
    QN_TRY(qn_gr_schema_spend(s, 64, where));
    return negate_object(out, s, schema, where);
}

bool qn_gr_schema_is_plain_not(const json_t *schema) {
    json_t *excluded = json_object_get(schema, "not");
    const char *type = json_string_value(json_object_get(schema, "type"));
    const size_t n = json_object_size(excluded);
    const bool has_type = json_object_get(excluded, "type") != NULL;
    if (!json_is_object(excluded)) return false;
    if (has_type && n == 1u + (json_object_get(excluded, "nullable") != NULL)) return true;
    if (!type || n != 1) return false;
    if (!strcmp(type, "number")) return json_object_get(excluded, "multipleOf") != NULL;
    return !strcmp(type, "string") &&
           (json_object_get(excluded, "pattern") || json_object_get(excluded, "format") ||
            json_object_get(excluded, "enum") || json_object_get(excluded, "const"));
}

// --- dependencies --------------------------------------------------------------------------------

// Either the property is not there, or the rest holds.
static json_t *if_there(const char *key, json_t *required, json_t *schema) {
    json_t *present = typed("object", "required", required);
    if (schema) present = object1("allOf", list2(present, json_incref(schema)));
    return object1("anyOf", list2(one_property(key, json_false()), present));
}

static qn_status add_dependency(json_t **all, qn_gr_schema *s, const qn_gr_where *where,
                                const char *keyword, const char *key, json_t *value) {
    json_t *required = list1(json_string_nocheck(key)), *name;
    size_t i;
    json_array_foreach(value, i, name) {
        if (!json_is_string(name)) {
            json_decref(required);
            return QN_SCHEMA_FAIL(s, where, keyword, FORMAT, "not a list of strings");
        }
        qn_json_push(&required, json_incref(name));
    }
    qn_json_push(all, if_there(key, required, json_is_array(value) ? NULL : value));
    return QN_OK;
}

qn_status qn_gr_schema_dependencies(json_t **out, qn_gr_schema *s, const qn_gr_member *member) {
    static const char *const keywords[] = {"dependentRequired", "dependentSchemas", "dependencies"};
    bool found = false;
    for (size_t i = 0; i < 3; i++) {
        const json_t *map = json_object_get(member->schema, keywords[i]);
        found = found || map;
        if (map && !json_is_object(map))
            return QN_SCHEMA_FAIL(s, member->where, keywords[i], FORMAT, "not an object");
    }
    *out = found ? find_made(s, member->schema, MADE_SUGAR) : NULL;
    if (!found || *out) return QN_OK;
    json_t *all = json_array(), *value;
    const char *key;
    qn_status status = QN_OK;
    for (size_t i = 0; i < 3; i++)
        json_object_foreach(json_object_get(member->schema, keywords[i]), key, value) {
            if (status) break;
            status = qn_gr_schema_spend(s, 64 + json_array_size(value), member->where);
            if (!status) status = add_dependency(&all, s, member->where, keywords[i], key, value);
        }
    if (status) {
        json_decref(all);
        return status;
    }
    if (all && !json_array_size(all)) { // {} says nothing
        json_decref(all);
        return keep_made(out, s, member->schema, MADE_SUGAR, json_true());
    }
    return keep_made(out, s, member->schema, MADE_SUGAR, object1("allOf", all));
}

// --- choices -------------------------------------------------------------------------------------

qn_status qn_gr_schema_if_options(json_t **out, qn_gr_schema *s, const qn_gr_member *member) {
    json_t *condition = json_object_get(member->schema, "if");
    json_t *then = json_object_get(member->schema, "then"),
           *other = json_object_get(member->schema, "else");
    *out = find_made(s, member->schema, MADE_IF);
    if (*out) return QN_OK;
    json_t *yes = list1(json_incref(condition)), *no = list1(not_of(condition));
    if (then) qn_json_push(&yes, json_incref(then));
    if (other) qn_json_push(&no, json_incref(other));
    return keep_made(out, s, member->schema, MADE_IF,
                     list2(object1("allOf", yes), object1("allOf", no)));
}

qn_status qn_gr_schema_subsets(json_t **out, qn_gr_schema *s, json_t *options,
                               const qn_gr_where *where) {
    const size_t n = json_array_size(options);
    if (n > SUBSETS_OF_MAX) {
        *out = options;
        return qn_gr_schema_ignore(
            s, where, "anyOf",
            "beside unevaluatedProperties or unevaluatedItems at most 4 choices "
            "are supported");
    }
    *out = find_made(s, options, MADE_SUBSETS);
    if (*out) return QN_OK;
    json_t *list = json_array();
    for (unsigned chosen = 1; chosen < 1u << n; chosen++) {
        json_t *all = json_array();
        for (size_t i = 0; i < n; i++)
            if (chosen >> i & 1) qn_json_push(&all, json_incref(json_array_get(options, i)));
        qn_json_push(&list, object1("allOf", all));
    }
    return keep_made(out, s, options, MADE_SUBSETS, list);
}

qn_status qn_gr_schema_one_options(json_t **out, qn_gr_schema *s, const qn_gr_member *member,
                                   uint32_t types) {
    json_t *options = json_object_get(member->schema, "oneOf");
    const size_t n = json_array_size(options);
    const uintptr_t kind = MADE_ONE + (uintptr_t)types * 8;
    *out = find_made(s, options, kind);
    if (*out) return QN_OK;
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *all = list1(json_incref(json_array_get(options, i)));
        for (size_t k = 0; k < n; k++) {
            bool apart = k == i;
            qn_status status = apart ? QN_OK
                                     : qn_gr_schema_are_apart(&apart, s, member, i < k ? i : k,
                                                              i < k ? k : i, types);
            if (status) {
                json_decref(all);
                json_decref(list);
                return status;
            }
            if (!apart) qn_json_push(&all, not_of(json_array_get(options, k)));
        }
        qn_json_push(&list, object1("allOf", all));
    }
    return keep_made(out, s, options, kind, list);
}
