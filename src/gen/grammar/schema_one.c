// oneOf: exactly one choice may hold. It is honoured as a choice, which is the same where no value
// can fulfil two of them; that is shown by types, by values, or by a property that both demand.
// Where it cannot be shown, each choice excludes the others (qn_gr_schema_one_options).
#include "gen/grammar/schema.h"

enum { DEPTH_MAX = 16 };

typedef struct side {
    json_t *schema;
    const qn_gr_where *where;
} side;

// The types that a schema leaves, as far as they can be seen.
static qn_status visible_types(uint32_t *out, qn_gr_schema *s, side a, int depth);

static qn_status types_of_list(uint32_t *out, qn_gr_schema *s, side a, const char *keyword,
                               bool is_choice, int depth) {
    const json_t *list = json_object_get(a.schema, keyword);
    uint32_t joined = is_choice ? 0 : QN_SCHEMA_ANY;
    if (!json_array_size(list)) return QN_OK;
    for (size_t i = 0; i < json_array_size(list); i++) {
        uint32_t types;
        const side one = {json_array_get(list, i), a.where};
        QN_TRY(visible_types(&types, s, one, depth + 1));
        joined = is_choice ? joined | types : joined & types;
    }
    *out &= joined;
    return QN_OK;
}

static uint32_t type_of(const qn_gr_schema *s, const json_t *value) {
    static const uint32_t types[] = {
        [JSON_OBJECT] = QN_SCHEMA_OBJECT, [JSON_ARRAY] = QN_SCHEMA_ARRAY,
        [JSON_STRING] = QN_SCHEMA_STRING, [JSON_INTEGER] = QN_SCHEMA_INTEGER,
        [JSON_REAL] = QN_SCHEMA_NUMBER,   [JSON_TRUE] = QN_SCHEMA_BOOLEAN,
        [JSON_FALSE] = QN_SCHEMA_BOOLEAN, [JSON_NULL] = QN_SCHEMA_NULL};
    return qn_gr_schema_is_number(s, value) && json_is_string(value) ? QN_SCHEMA_NUMBER
                                                                     : types[json_typeof(value)];
}

static qn_status visible_types(uint32_t *out, qn_gr_schema *s, side a, int depth) {
    *out = json_is_false(a.schema) ? 0 : QN_SCHEMA_ANY;
    if (!json_is_object(a.schema) || depth > DEPTH_MAX) return QN_OK;
    QN_TRY(qn_gr_schema_spend(s, 16, a.where));
    const qn_gr_member member = {a.schema, a.where, -1, 0};
    QN_TRY(qn_gr_schema_types(out, s, &member));
    const json_t *list = json_object_get(a.schema, "enum");
    const json_t *one = json_object_get(a.schema, "const");
    uint32_t listed = 0;
    for (size_t i = 0; i < json_array_size(list); i++)
        listed |= type_of(s, json_array_get(list, i));
    if (json_is_array(list)) *out &= listed;
    if (one) *out &= type_of(s, one);
    QN_TRY(types_of_list(out, s, a, "allOf", false, depth));
    QN_TRY(types_of_list(out, s, a, "anyOf", true, depth));
    QN_TRY(types_of_list(out, s, a, "oneOf", true, depth));
    const json_t *ref = json_object_get(a.schema, "$ref");
    if (!ref) return QN_OK;
    uint32_t types;
    side target = {NULL, a.where};
    QN_TRY(qn_gr_schema_resolve(&target.schema, s, &member, "$ref"));
    QN_TRY(visible_types(&types, s, target, depth + 1));
    *out &= types;
    return QN_OK;
}

// Every value that `a` lists is invalid for `b`; false too if it lists none.
static qn_status values_apart(bool *out, qn_gr_schema *s, side a, side b) {
    json_t *list = json_object_get(a.schema, "enum"), *one = json_object_get(a.schema, "const");
    const size_t n = json_is_array(list) ? json_array_size(list) : (size_t)(one != NULL);
    for (size_t i = 0; i < n; i++) {
        bool valid;
        QN_TRY(qn_gr_schema_valid(&valid, s, json_is_array(list) ? json_array_get(list, i) : one,
                                  b.schema, b.where, 0));
        if (valid) return QN_OK;
    }
    if (n) *out = true;
    return QN_OK;
}

static bool is_required(const json_t *schema, const char *name) {
    const json_t *required = json_object_get(schema, "required");
    for (size_t i = 0; i < json_array_size(required); i++) {
        const json_t *one = json_array_get(required, i);
        if (json_is_string(one) && !strcmp(json_string_value(one), name)) return true;
    }
    return false;
}

static qn_status are_apart(bool *out, qn_gr_schema *s, side a, side b, uint32_t types, int depth);

// A property that a demands, and b describes otherwise or forbids.
static qn_status objects_apart(bool *out, qn_gr_schema *s, side a, side b, int depth) {
    const json_t *required = json_object_get(a.schema, "required");
    const json_t *mine = json_object_get(a.schema, "properties");
    const json_t *theirs = json_object_get(b.schema, "properties");
    const bool is_closed = json_is_false(json_object_get(b.schema, "additionalProperties")) &&
                           !json_object_get(b.schema, "patternProperties");
    for (size_t i = 0; !*out && i < json_array_size(required); i++) {
        const char *name = json_string_value(json_array_get(required, i));
        if (!name) continue;
        const side x = {json_object_get(mine, name), a.where};
        const side y = {json_object_get(theirs, name), b.where};
        if (!y.schema && is_closed) *out = true;
        if (x.schema && y.schema && is_required(b.schema, name))
            QN_TRY(are_apart(out, s, x, y, QN_SCHEMA_ANY, depth + 1));
    }
    return QN_OK;
}

// Follows plain references and single choices until something can be compared.
static qn_status are_apart(bool *out, qn_gr_schema *s, side a, side b, uint32_t types, int depth) {
    uint32_t of_a, of_b;
    *out = json_is_false(a.schema) || json_is_false(b.schema);
    if (*out || depth > DEPTH_MAX || !json_is_object(a.schema) || !json_is_object(b.schema))
        return QN_OK;
    QN_TRY(qn_gr_schema_spend(s, 64, a.where));
    QN_TRY(visible_types(&of_a, s, a, 0));
    QN_TRY(visible_types(&of_b, s, b, 0));
    const uint32_t both = of_a & of_b & types;
    *out = both == 0;
    if (!*out) QN_TRY(values_apart(out, s, a, b));
    if (!*out) QN_TRY(values_apart(out, s, b, a));
    if (!*out && both == QN_SCHEMA_OBJECT) QN_TRY(objects_apart(out, s, a, b, depth));
    if (!*out && both == QN_SCHEMA_OBJECT) QN_TRY(objects_apart(out, s, b, a, depth));
    const side sides[2] = {a, b};
    for (int i = 0; i < 2 && !*out; i++) {
        side target = {NULL, sides[i].where};
        const qn_gr_member member = {sides[i].schema, sides[i].where, -1, 0};
        if (!json_object_get(sides[i].schema, "$ref")) continue;
        QN_TRY(qn_gr_schema_resolve(&target.schema, s, &member, "$ref"));
        QN_TRY(are_apart(out, s, target, sides[1 - i], types, depth + 1));
    }
    return QN_OK;
}

qn_status qn_gr_schema_are_apart(bool *out, qn_gr_schema *s, const qn_gr_member *member, size_t i,
                                 size_t k, uint32_t types) {
    json_t *list = json_object_get(member->schema, "oneOf");
    const side a = {json_array_get(list, i), member->where};
    const side b = {json_array_get(list, k), member->where};
    return are_apart(out, s, a, b, types, 0);
}
