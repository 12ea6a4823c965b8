// The keywords of JSON Schema: which are honoured, which say nothing, and where schemas lie in
// them.
#include "gen/grammar/schema.h"

typedef enum keyword_kind { HONOURED, NOTE, INTERNAL } keyword_kind;

typedef struct keyword_row {
    const char *name;
    keyword_kind kind;
    qn_gr_inner inner; // what its value holds
} keyword_row;

static const keyword_row keywords[] = {
    {"type", HONOURED, QN_INNER_NONE},
    {"enum", HONOURED, QN_INNER_NONE},
    {"const", HONOURED, QN_INNER_NONE},
    {"properties", HONOURED, QN_INNER_MAP},
    {"required", HONOURED, QN_INNER_NONE},
    {"additionalProperties", HONOURED, QN_INNER_ONE},
    {"patternProperties", HONOURED, QN_INNER_MAP},
    {"propertyNames", HONOURED, QN_INNER_ONE},
    {"unevaluatedProperties", HONOURED, QN_INNER_ONE},
    {"minProperties", HONOURED, QN_INNER_NONE},
    {"maxProperties", HONOURED, QN_INNER_NONE},
    {"dependentRequired", HONOURED, QN_INNER_NONE},
    {"dependentSchemas", HONOURED, QN_INNER_MAP},
    {"dependencies", HONOURED, QN_INNER_MAP},
    {"items", HONOURED, QN_INNER_ONE},
    {"prefixItems", HONOURED, QN_INNER_LIST},
    {"additionalItems", HONOURED, QN_INNER_ONE},
    {"unevaluatedItems", HONOURED, QN_INNER_ONE},
    {"contains", HONOURED, QN_INNER_ONE},
    {"minContains", HONOURED, QN_INNER_NONE},
    {"maxContains", HONOURED, QN_INNER_NONE},
    {"minItems", HONOURED, QN_INNER_NONE},
    {"maxItems", HONOURED, QN_INNER_NONE},
    {"uniqueItems", HONOURED, QN_INNER_NONE},
    {"minLength", HONOURED, QN_INNER_NONE},
    {"maxLength", HONOURED, QN_INNER_NONE},
    {"pattern", HONOURED, QN_INNER_NONE},
    {"format", HONOURED, QN_INNER_NONE},
    {"minimum", HONOURED, QN_INNER_NONE},
    {"maximum", HONOURED, QN_INNER_NONE},
    {"exclusiveMinimum", HONOURED, QN_INNER_NONE},
    {"exclusiveMaximum", HONOURED, QN_INNER_NONE},
    {"multipleOf", HONOURED, QN_INNER_NONE},
    {"anyOf", HONOURED, QN_INNER_LIST},
    {"oneOf", HONOURED, QN_INNER_LIST},
    {"allOf", HONOURED, QN_INNER_LIST},
    {"not", HONOURED, QN_INNER_ONE},
    {"if", HONOURED, QN_INNER_ONE},
    {"then", HONOURED, QN_INNER_ONE},
    {"else", HONOURED, QN_INNER_ONE},
    {"$ref", HONOURED, QN_INNER_NONE},
    {"$dynamicRef", HONOURED, QN_INNER_NONE},
    {"$recursiveRef", HONOURED, QN_INNER_NONE},
    {"nullable", HONOURED, QN_INNER_NONE},
    {"$id", HONOURED, QN_INNER_NONE},
    {"id", HONOURED, QN_INNER_NONE},
    {"$anchor", HONOURED, QN_INNER_NONE},
    {"$dynamicAnchor", HONOURED, QN_INNER_NONE},
    {"$recursiveAnchor", HONOURED, QN_INNER_NONE},
    {"$schema", HONOURED, QN_INNER_NONE},
    {"$defs", NOTE, QN_INNER_MAP},
    {"definitions", NOTE, QN_INNER_MAP},
    {"title", NOTE, QN_INNER_NONE},
    {"description", NOTE, QN_INNER_NONE},
    {"default", NOTE, QN_INNER_NONE},
    {"examples", NOTE, QN_INNER_NONE},
    {"example", NOTE, QN_INNER_NONE},
    {"$comment", NOTE, QN_INNER_NONE},
    {"$vocabulary", NOTE, QN_INNER_NONE},
    {"deprecated", NOTE, QN_INNER_NONE},
    {"readOnly", NOTE, QN_INNER_NONE},
    {"writeOnly", NOTE, QN_INNER_NONE},
    {"contentEncoding", NOTE, QN_INNER_NONE},
    {"contentMediaType", NOTE, QN_INNER_NONE},
    {"contentSchema", NOTE, QN_INNER_NONE},
    {"externalDocs", NOTE, QN_INNER_NONE},
    {"discriminator", NOTE, QN_INNER_NONE},
    {"xml", NOTE, QN_INNER_NONE},
    {"propertyOrdering", NOTE, QN_INNER_NONE},
    {QN_KEYWORD_FROM, INTERNAL, QN_INNER_NONE},
    {QN_KEYWORD_SOME, INTERNAL, QN_INNER_NONE},
};

enum { N_KEYWORDS = sizeof keywords / sizeof *keywords };

static const keyword_row *find_keyword(const char *name) {
    for (size_t i = 0; i < N_KEYWORDS; i++)
        if (!strcmp(keywords[i].name, name)) return &keywords[i];
    return NULL;
}

qn_gr_inner qn_gr_schema_inner(const char *keyword) {
    const keyword_row *row = find_keyword(keyword);
    return row ? row->inner : QN_INNER_NONE;
}

qn_status qn_gr_schema_check_keywords(qn_gr_schema *s, const qn_gr_member *member) {
    const char *name;
    json_t *value;
    // In the older drafts a reference hides its siblings.
    if (s->ref_alone && json_object_get(member->schema, "$ref")) return QN_OK;
    json_object_foreach(member->schema, name, value) {
        const keyword_row *row = find_keyword(name);
        const bool is_foreign =
            row && row->kind == INTERNAL && qn_gr_schema_is_given(s, member->schema);
        if ((row && !is_foreign) || !strncmp(name, "x-", 2)) continue;
        QN_TRY(qn_gr_schema_ignore(s, member->where, name, "unknown keyword"));
    }
    return QN_OK;
}

qn_status qn_gr_schema_count(uint32_t *out, bool *found, qn_gr_schema *s,
                             const qn_gr_member *member, const char *keyword) {
    const json_t *value = json_object_get(member->schema, keyword);
    *found = value != NULL;
    if (!value) return QN_OK;
    const double real = json_number_value(value);
    if (!json_is_number(value) || real < 0 || real > 1e15 || real != (double)(int64_t)real)
        return QN_SCHEMA_FAIL(s, member->where, keyword, FORMAT,
                              "not a whole number from 0 to 1e15");
    *out = real >= (double)QN_AST_MANY ? QN_AST_MANY : (uint32_t)real;
    return QN_OK;
}

// --- types ---------------------------------------------------------------------------------------

typedef struct type_name {
    const char *name;
    uint32_t types;
} type_name;

static const type_name type_names[] = {
    {"null", QN_SCHEMA_NULL},     {"boolean", QN_SCHEMA_BOOLEAN}, {"integer", QN_SCHEMA_INTEGER},
    {"number", QN_SCHEMA_NUMBER}, {"string", QN_SCHEMA_STRING},   {"array", QN_SCHEMA_ARRAY},
    {"object", QN_SCHEMA_OBJECT}};

static uint32_t find_type(const json_t *name) {
    for (size_t i = 0; json_is_string(name) && i < sizeof type_names / sizeof *type_names; i++)
        if (qn_str_is(qn_gr_json_str(name), type_names[i].name)) return type_names[i].types;
    return 0;
}

static qn_status fail_type(qn_gr_schema *s, const qn_gr_member *member, const json_t *type) {
    if (!json_is_string(type))
        return QN_SCHEMA_FAIL(s, member->where, "type", FORMAT, "want the name of a type");
    return QN_SCHEMA_FAIL(s, member->where, "type", FORMAT,
                          "no type '%.40s', want null, boolean, "
                          "integer, number, string, array or object",
                          json_string_value(type));
}

qn_status qn_gr_schema_types(uint32_t *out, qn_gr_schema *s, const qn_gr_member *member) {
    const json_t *type = json_object_get(member->schema, "type");
    size_t i;
    json_t *one;
    *out = type ? 0 : QN_SCHEMA_ANY;
    if (type && !json_is_array(type)) {
        *out = find_type(type);
        if (!*out) return fail_type(s, member, type);
    }
    json_array_foreach(type, i, one) {
        if (!find_type(one)) return fail_type(s, member, one);
        *out |= find_type(one);
    }
    if (json_is_true(json_object_get(member->schema, "nullable"))) *out |= QN_SCHEMA_NULL;
    return QN_OK;
}
