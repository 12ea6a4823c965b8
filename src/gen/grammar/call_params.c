#include "gen/grammar/call_params.h"

#include "core/chars.h"
#include "core/mem.h"
#include "gen/grammar/json_rules.h"

enum { MAX_REFS = 16 };

// --- what a value is -----------------------------------------------------------------------------

// What a reference within the schema leads to; NULL: nothing that is found here.
static const json_t *find_target(const json_t *root, const json_t *schema) {
    for (int i = 0; i < MAX_REFS; i++) {
        static const char *const folders[] = {"#/$defs/", "#/definitions/"};
        const char *ref = json_string_value(json_object_get(schema, "$ref"));
        const json_t *target = NULL;
        if (!ref) return schema;
        for (size_t k = 0; k < 2; k++) {
            const size_t n = strlen(folders[k]);
            if (strncmp(ref, folders[k], n) != 0) continue;
            target = json_object_get(json_object_get(root, k ? "definitions" : "$defs"), ref + n);
        }
        if (!target) return NULL;
        schema = target;
    }
    return NULL;
}

static qn_gr_param_kind join(qn_gr_param_kind a, qn_gr_param_kind b) {
    return a == b ? a : QN_PARAM_ANY;
}

static qn_gr_param_kind kind_of_values(const json_t *values) {
    qn_gr_param_kind kind = QN_PARAM_ANY;
    for (size_t i = 0; i < json_array_size(values); i++) {
        const qn_gr_param_kind one =
            json_is_string(json_array_get(values, i)) ? QN_PARAM_TEXT : QN_PARAM_JSON;
        kind = i ? join(kind, one) : one;
    }
    return kind;
}

static qn_gr_param_kind kind_of_types(const json_t *types) {
    qn_gr_param_kind kind = QN_PARAM_ANY;
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        const bool is_text = !type || strcmp(type, "string") == 0;
        const qn_gr_param_kind one = is_text ? QN_PARAM_TEXT : QN_PARAM_JSON;
        kind = i ? join(kind, one) : one;
    }
    return kind;
}

// Of a choice: JSON if all are.
static qn_gr_param_kind kind_of_choice(const json_t *root, const json_t *list) {
    if (json_array_size(list) == 0) return QN_PARAM_ANY;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = find_target(root, json_array_get(list, i));
        const json_t *types = json_object_get(item, "type");
        const bool is_json = json_is_string(types) && strcmp(json_string_value(types), "string");
        if (!is_json) return QN_PARAM_ANY;
    }
    return QN_PARAM_JSON;
}

static qn_gr_param_kind kind_of(const json_t *root, const json_t *schema) {
    schema = find_target(root, schema);
    const json_t *type = json_object_get(schema, "type"), *values = json_object_get(schema, "enum"),
                 *value = json_object_get(schema, "const");
    if (json_is_array(values)) return kind_of_values(values);
    if (value) return json_is_string(value) ? QN_PARAM_TEXT : QN_PARAM_JSON;
    if (json_is_array(type)) return kind_of_types(type);
    if (json_is_string(type))
        return strcmp(json_string_value(type), "string") ? QN_PARAM_JSON : QN_PARAM_TEXT;
    const json_t *any = json_object_get(schema, "anyOf");
    return kind_of_choice(root, any ? any : json_object_get(schema, "oneOf"));
}

qn_gr_param_kind qn_gr_param_kind_of(const json_t *schema, const char *name) {
    const json_t *param = json_object_get(json_object_get(schema, "properties"), name);
    return param ? kind_of(schema, param) : QN_PARAM_ANY;
}

// --- what is not honoured ------------------------------------------------------------------------

static bool is_one_of(const char *word, const char *const *words) {
    for (; *words; words++)
        if (strcmp(*words, word) == 0) return true;
    return false;
}

// Keywords that say nothing of values.
static const char *const notes[] = {"title",    "description", "default", "examples",
                                    "$comment", "$schema",     "$id",     "deprecated",
                                    "readOnly", "writeOnly",   NULL};

// Keywords of a schema other than these are refused: what has elements for parameters, and text
// between them, has no grammar for the rest.
static qn_status check_keywords(const json_t *schema, const char *const *known, const char *place,
                                const char *name, bool lenient, qn_err *err) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)schema, key, value) {
        if (lenient || is_one_of(key, notes) || is_one_of(key, known)) continue;
        return QN_FAIL(err, UNSUPPORTED,
                       "schema, %s%s: '%.40s' cannot be honoured in the form of this model's calls",
                       place, name, key);
    }
    return QN_OK;
}

// --- values --------------------------------------------------------------------------------------

static const char close_tag[] = "\n</parameter>";

// Characters up to the first close tag, which is read too. Its first character is nowhere else in
// it, so after another character the tag begins anew or not at all.
static int32_t make_any_text(qn_gr_ast *ast) {
    enum { N = sizeof close_tag - 1 };
    int32_t rules[N];
    static const qn_gr_code_range wide[] = {{0x80, 0xD7FF}, {0xE000, 0x10FFFF}};
    const int32_t others = qn_gr_codes(ast, wide, 2);
    for (size_t i = 0; i < N; i++) rules[i] = qn_gr_ast_rule_add(ast, qn_str_of("text"));
    for (size_t i = 0; i < N; i++) {
        const uint8_t here = (uint8_t)close_tag[i];
        qn_gr_byte_set set = {{0}};
        for (unsigned byte = 1; byte < 0x80; byte++)
            if (byte != here && byte != '\n') qn_gr_byte_set_add(&set, byte);
        const int32_t next = i + 1 < N ? qn_gr_ref(ast, rules[i + 1]) : QN_AST_EMPTY;
        int32_t node = qn_gr_seq(ast, qn_gr_span(ast, here, here), next);
        if (here != '\n')
            node = qn_gr_alt(ast, node,
                             qn_gr_seq(ast, qn_gr_span(ast, '\n', '\n'), qn_gr_ref(ast, rules[1])));
        const int32_t other = qn_gr_alt(ast, qn_gr_set(ast, &set), others);
        node = qn_gr_alt(ast, node, qn_gr_seq(ast, other, qn_gr_ref(ast, rules[0])));
        qn_gr_ast_rule_set(ast, rules[i], node);
    }
    return qn_gr_ref(ast, rules[0]);
}

static int32_t make_literals(qn_gr_ast *ast, const json_t *values) {
    int32_t any = QN_AST_NEVER;
    for (size_t i = 0; i < json_array_size(values); i++) {
        const json_t *value = json_array_get(values, i);
        const qn_str text = {json_string_value(value), json_string_length(value)};
        any = qn_gr_alt(ast, qn_gr_text(ast, text), any);
    }
    return qn_gr_seq(ast, any, qn_gr_text(ast, qn_str_of(close_tag)));
}

qn_status qn_gr_call_schema(int32_t *out, qn_gr_ast *ast, const json_t *schema,
                            const qn_grammar_opts *opts, qn_err *err) {
    char *text = NULL;
    QN_TRY(qn_json_print(&text, schema, &(qn_json_form){.compact = true}, "a schema", err));
    const qn_status status = qn_gr_front_schema(out, ast, qn_str_of(text), opts, err);
    qn_free(text);
    return status;
}

json_t *qn_gr_call_copy(const json_t *object) {
    const char *key;
    json_t *value, *copy = json_object();
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
        qn_json_put(&copy, key, json_incref(value));
    return copy;
}

// --- making --------------------------------------------------------------------------------------

// The parameters of one tool, while their grammar is made.
typedef struct making {
    qn_gr_ast *ast;
    const json_t *schema;
    const qn_grammar_opts *opts;
    json_t *required;    // owned: names -> true
    const char **names;  // (n_names) of the parameters that are JSON
    int32_t *nodes;      // (n_names) of their values
    size_t n_names, cap; // cap: room for all properties
    size_t at;           // of the names, the next
    int32_t any_text;    // made once; -1: not yet
} making;

// For each parameter: everybody may have gone, and all parameters of all tools have one budget.
static qn_status spend(const making *m, uint64_t steps, qn_err *err) {
    const uint64_t max = qn_gr_steps(m->opts);
    m->ast->spent += steps;
    if (m->ast->spent > max)
        return QN_FAIL(err, LIMIT, "schema, #/properties: more than %llu steps",
                       (unsigned long long)max);
    QN_TRY(qn_gr_ast_check(m->ast, err));
    return qn_gr_ast_go_on(m->ast, err);
}

// What finding the kind of a parameter takes: several may refer to one list.
static uint64_t cost_of(const json_t *root, const json_t *schema) {
    static const char *const lists[] = {"enum", "type", "anyOf", "oneOf"};
    uint64_t cost = MAX_REFS;
    schema = find_target(root, schema);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        cost += json_array_size(json_object_get(schema, lists[i]));
    return cost;
}

// Lists the parameters that are JSON.
static qn_status list_names(making *m, qn_err *err) {
    const char *name;
    json_t *param;
    json_object_foreach(json_object_get(m->schema, "properties"), name, param) {
        QN_TRY(spend(m, cost_of(m->schema, param), err));
        if (kind_of(m->schema, param) == QN_PARAM_JSON) m->names[m->n_names++] = name;
    }
    return QN_OK;
}

// Their values: the schema with its definitions is read once for all of them.
static qn_status make_json(making *m, qn_err *err) {
    char *text = NULL;
    if (m->n_names == 0) return QN_OK;
    QN_TRY(qn_json_print(&text, m->schema, &(qn_json_form){.compact = true}, "a schema", err));
    const qn_status status = qn_gr_front_properties(m->nodes, m->ast, qn_str_of(text), m->names,
                                                    m->n_names, m->opts, err);
    qn_free(text);
    return status;
}

static qn_status list_required(making *m, qn_err *err) {
    const json_t *list = json_object_get(m->schema, "required");
    m->required = json_object();
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (name) qn_json_put(&m->required, name, json_true());
    }
    QN_TRY(spend(m, json_array_size(list), err));
    return m->required ? QN_OK : QN_NOMEM(err, "a schema");
}

static qn_status making_init(making *m, qn_err *err) {
    m->any_text = -1;
    m->cap = json_object_size(json_object_get(m->schema, "properties"));
    m->names = qn_alloc(m->cap + 1, sizeof *m->names);
    m->nodes = qn_alloc(m->cap + 1, sizeof *m->nodes);
    if (!m->names || !m->nodes) return QN_NOMEM(err, "a schema");
    for (size_t i = 0; i < m->cap; i++) m->nodes[i] = QN_AST_NEVER;
    QN_TRY(list_required(m, err));
    QN_TRY(list_names(m, err));
    return make_json(m, err);
}

static void making_deinit(making *m) {
    json_decref(m->required);
    qn_free(m->names);
    qn_free(m->nodes);
}

static int32_t any_text(making *m) {
    if (m->any_text < 0) m->any_text = make_any_text(m->ast);
    return m->any_text;
}

// What follows the tag of a parameter, up to its close tag.
static qn_status make_value(int32_t *out, making *m, const char *name, const json_t *schema,
                            qn_err *err) {
    static const char *const of_text[] = {"type", "enum", "const", "$defs", "definitions", NULL};
    qn_gr_ast *ast = m->ast;
    if (m->at < m->n_names && m->names[m->at] == name) { // names are in the order of properties
        *out = qn_gr_seq(ast, m->nodes[m->at++], qn_gr_text(ast, qn_str_of(close_tag)));
        return QN_OK;
    }
    const json_t *target = find_target(m->schema, schema);
    const qn_gr_param_kind kind = kind_of(m->schema, schema);
    *out = any_text(m);
    if (kind == QN_PARAM_ANY) return QN_OK;
    QN_TRY(check_keywords(target, of_text, "#/properties/", name, m->opts->lenient, err));
    json_t *values = json_object_get(target, "enum"), *value = json_object_get(target, "const");
    json_t *one = value ? json_pack("[O]", value) : json_array();
    if (!one) return QN_NOMEM(err, "a schema");
    if (value || values) *out = make_literals(ast, value ? one : values);
    json_decref(one);
    return QN_OK;
}

// --- parameters ----------------------------------------------------------------------------------

static int32_t make_element(qn_gr_ast *ast, int32_t name, int32_t value) {
    const int32_t open = qn_gr_seq3(ast, qn_gr_text(ast, qn_str_of("<parameter=")), name,
                                    qn_gr_text(ast, qn_str_of(">\n")));
    return qn_gr_seq3(ast, open, value, qn_gr_text(ast, qn_str_of("\n")));
}

// Any parameters of any names: a schema that lists none.
static int32_t make_free(qn_gr_ast *ast) {
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    const int32_t name = qn_gr_rep(ast, qn_gr_bytes(ast, letters), 1, 64);
    return qn_gr_rep(ast, make_element(ast, name, make_any_text(ast)), 0, QN_AST_MANY);
}

static qn_status add_param(int32_t *all, making *m, const char *name, const json_t *param,
                           qn_err *err) {
    int32_t value = QN_AST_NEVER;
    if (!*name || strpbrk(name, "<>\n\r") || qn_is_blank(*name) ||
        qn_is_blank(name[strlen(name) - 1]))
        return QN_FAIL(
            err, UNSUPPORTED,
            "schema, #/properties/%.80s: a name with brackets, line ends or blanks around "
            "it cannot be written in the form of this model's calls",
            name);
    QN_TRY(spend(m, cost_of(m->schema, param), err));
    QN_TRY(make_value(&value, m, name, param, err));
    int32_t element = make_element(m->ast, qn_gr_text(m->ast, qn_str_of(name)), value);
    if (!json_object_get(m->required, name)) element = qn_gr_maybe(m->ast, element);
    *all = qn_gr_seq(m->ast, *all, element);
    return QN_OK;
}

static qn_status add_params(int32_t *out, making *m, qn_err *err) {
    const json_t *properties = json_object_get(m->schema, "properties");
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)properties, name, value)
        QN_TRY(add_param(out, m, name, value, err));
    json_object_foreach(m->required, name, value) {
        if (json_object_get(properties, name)) continue;
        QN_TRY(add_param(out, m, name, json_null(), err));
    }
    return QN_OK;
}

qn_status qn_gr_call_params(int32_t *out, qn_gr_ast *ast, const json_t *schema,
                            const qn_grammar_opts *opts, qn_err *err) {
    static const char *const known[] = {"type",  "properties",  "required", "additionalProperties",
                                        "$defs", "definitions", "strict",   NULL};
    const json_t *properties = json_object_get(schema, "properties");
    QN_TRY(check_keywords(schema, known, "#", "", opts->lenient, err));
    if (properties && !json_is_object(properties))
        return QN_FAIL(err, FORMAT, "schema, #/properties: not an object");
    if (json_object_size(properties) == 0 &&
        json_array_size(json_object_get(schema, "required")) == 0) {
        const bool is_closed =
            json_is_false(json_object_get(schema, "additionalProperties")) || properties;
        *out = is_closed ? QN_AST_EMPTY : make_free(ast);
        return QN_OK;
    }
    making m = {.ast = ast, .schema = schema, .opts = opts};
    int32_t all = QN_AST_EMPTY;
    qn_status status = making_init(&m, err);
    if (!status) status = add_params(&all, &m, err);
    making_deinit(&m);
    if (!status) *out = all;
    return status;
}
