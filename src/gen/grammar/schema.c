#include "gen/grammar/schema.h"

#include "core/mem.h"
#include "gen/grammar/object.h"

enum { STEPS_MAX = 40 << 20, WHERE_BYTES = 200, HOPS_MAX = 100 };

// --- places --------------------------------------------------------------------------------------

const qn_where *qn_where_add(qn_schema *s, const qn_where *up, const char *key, size_t index) {
    qn_where *where = qn_arena_alloc(&s->arena, 1, sizeof *where);
    if (!where) {
        qn_ast_fail(s->ast, QN_MEMORY, NULL);
        return up;
    }
    *where = (qn_where){up, key, index};
    return where;
}

// "#/properties/a/items/3", cut at its front when it is long.
static void render_where(char out[WHERE_BYTES], const qn_where *where) {
    size_t at = WHERE_BYTES - 1;
    out[at] = 0;
    for (; where; where = where->up) {
        char part[64];
        int n = where->key ? snprintf(part, sizeof part, "/%s", where->key)
                           : snprintf(part, sizeof part, "/%zu", where->index);
        if (n >= (int)sizeof part) n = (int)sizeof part - 1;
        if ((size_t)n + 4 > at) {
            at -= 3;
            memcpy(out + at, "...", 3);
            break;
        }
        at -= (size_t)n;
        memcpy(out + at, part, (size_t)n);
    }
    if (!where) out[--at] = '#';
    memmove(out, out + at, WHERE_BYTES - at);
}

qn_status qn_schema_fail(qn_schema *s, qn_status status, const qn_where *where,
                         const char *keyword) {
    char place[WHERE_BYTES];
    render_where(place, where);
    if (!keyword) return qn_err_prefix(s->err, status, "schema, %s", place);
    return qn_err_prefix(s->err, status, "schema, %s/%s", place, keyword);
}

qn_status qn_schema_spend(qn_schema *s, uint64_t steps, const qn_where *where) {
    if (s->steps < steps)
        return QN_SCHEMA_FAIL(s, where, NULL, LIMIT, "the schema takes too many steps");
    s->steps -= steps;
    return QN_OK;
}

// --- keywords ------------------------------------------------------------------------------------

typedef enum keyword_kind { HONOURED, NOTE, REFUSED } keyword_kind;

typedef struct keyword_row {
    const char *name;
    keyword_kind kind;
} keyword_row;

static const keyword_row keywords[] = {
    {"type", HONOURED},
    {"enum", HONOURED},
    {"const", HONOURED},
    {"properties", HONOURED},
    {"required", HONOURED},
    {"additionalProperties", HONOURED},
    {"patternProperties", HONOURED},
    {"propertyNames", HONOURED},
    {"minProperties", HONOURED},
    {"maxProperties", HONOURED},
    {"items", HONOURED},
    {"prefixItems", HONOURED},
    {"additionalItems", HONOURED},
    {"minItems", HONOURED},
    {"maxItems", HONOURED},
    {"uniqueItems", HONOURED},
    {"minLength", HONOURED},
    {"maxLength", HONOURED},
    {"pattern", HONOURED},
    {"format", HONOURED},
    {"minimum", HONOURED},
    {"maximum", HONOURED},
    {"exclusiveMinimum", HONOURED},
    {"exclusiveMaximum", HONOURED},
    {"multipleOf", HONOURED},
    {"anyOf", HONOURED},
    {"oneOf", HONOURED},
    {"allOf", HONOURED},
    {"not", HONOURED},
    {"$ref", HONOURED},
    {"nullable", HONOURED},
    {"title", NOTE},
    {"description", NOTE},
    {"default", NOTE},
    {"examples", NOTE},
    {"example", NOTE},
    {"$schema", NOTE},
    {"$id", NOTE},
    {"id", NOTE},
    {"$comment", NOTE},
    {"$defs", NOTE},
    {"definitions", NOTE},
    {"$anchor", NOTE},
    {"$vocabulary", NOTE},
    {"deprecated", NOTE},
    {"readOnly", NOTE},
    {"writeOnly", NOTE},
    {"contentEncoding", NOTE},
    {"contentMediaType", NOTE},
    {"contentSchema", NOTE},
    {"externalDocs", NOTE},
    {"discriminator", NOTE},
    {"xml", NOTE},
    {"propertyOrdering", NOTE},
    {"minContains", NOTE},
    {"maxContains", NOTE},
    {"strict", NOTE},
    {"name", NOTE},
    {"contains", REFUSED},
    {"if", REFUSED},
    {"then", REFUSED},
    {"else", REFUSED},
    {"dependentRequired", REFUSED},
    {"dependentSchemas", REFUSED},
    {"dependencies", REFUSED},
    {"unevaluatedItems", REFUSED},
    {"unevaluatedProperties", REFUSED},
    {"$dynamicRef", REFUSED},
    {"$dynamicAnchor", REFUSED},
    {"$recursiveRef", REFUSED},
    {"$recursiveAnchor", REFUSED},
};

static qn_status check_keywords(qn_schema *s, const qn_member *member) {
    const char *name;
    json_t *value;
    json_object_foreach(member->schema, name, value) {
        size_t i = 0;
        while (i < sizeof keywords / sizeof *keywords && strcmp(keywords[i].name, name) != 0) i++;
        if (i == sizeof keywords / sizeof *keywords) {
            if (!strncmp(name, "x-", 2)) continue;
            return QN_SCHEMA_FAIL(s, member->where, name, UNSUPPORTED, "unknown keyword");
        }
        if (keywords[i].kind == REFUSED)
            return QN_SCHEMA_FAIL(s, member->where, name, UNSUPPORTED,
                                  "this keyword is not supported");
    }
    return QN_OK;
}

qn_status qn_schema_count(uint32_t *out, bool *found, qn_schema *s, const qn_member *member,
                          const char *keyword) {
    const json_t *value = json_object_get(member->schema, keyword);
    *found = value != NULL;
    if (!value) return QN_OK;
    const double real = json_number_value(value);
    if (!json_is_number(value) || real < 0 || real != (double)(int64_t)real || real > 1e15)
        return QN_SCHEMA_FAIL(s, member->where, keyword, FORMAT,
                              "not a whole number from 0 to 1e15");
    *out = real >= (double)QN_AST_MANY ? QN_AST_MANY : (uint32_t)real;
    return QN_OK;
}

typedef struct type_name {
    const char *name;
    uint32_t types;
} type_name;

static const type_name type_names[] = {{"null", QN_TYPE_NULL},       {"boolean", QN_TYPE_BOOLEAN},
                                       {"integer", QN_TYPE_INTEGER}, {"number", QN_TYPE_NUMBER},
                                       {"string", QN_TYPE_STRING},   {"array", QN_TYPE_ARRAY},
                                       {"object", QN_TYPE_OBJECT}};

static uint32_t find_type(const json_t *name) {
    for (size_t i = 0; json_is_string(name) && i < sizeof type_names / sizeof *type_names; i++)
        if (qn_str_is(qn_json_str(name), type_names[i].name)) return type_names[i].types;
    return 0;
}

static qn_status fail_type(qn_schema *s, const qn_member *member, const json_t *type) {
    if (!json_is_string(type))
        return QN_SCHEMA_FAIL(s, member->where, "type", FORMAT, "want the name of a type");
    return QN_SCHEMA_FAIL(s, member->where, "type", FORMAT, "no type '%.40s'",
                          json_string_value(type));
}

qn_status qn_schema_types(uint32_t *out, qn_schema *s, const qn_member *member) {
    const json_t *type = json_object_get(member->schema, "type");
    size_t i;
    json_t *one;
    *out = type ? 0 : QN_TYPE_ANY;
    if (type && !json_is_array(type)) {
        *out = find_type(type);
        if (!*out) return fail_type(s, member, type);
    }
    json_array_foreach(type, i, one) {
        if (!find_type(one)) return fail_type(s, member, one);
        *out |= find_type(one);
    }
    if (json_is_true(json_object_get(member->schema, "nullable"))) *out |= QN_TYPE_NULL;
    return QN_OK;
}

// --- references ----------------------------------------------------------------------------------

static int hex_value(char c) {
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    const char *hit = c ? strchr(digits, c) : NULL;
    return hit ? (int)((hit - digits) % 16) : -1;
}

// One step of a pointer, with %XX, ~0 and ~1 read; returns where it ends.
static const char *read_step(qn_buf *out, const char *at) {
    qn_buf_clear(out);
    for (; *at && *at != '/'; at++) {
        char c = *at;
        if (c == '%' && hex_value(at[1]) >= 0 && hex_value(at[2]) >= 0) {
            c = (char)(hex_value(at[1]) * 16 + hex_value(at[2]));
            at += 2;
        }
        if (c == '~' && (at[1] == '0' || at[1] == '1')) {
            c = at[1] == '0' ? '~' : '/';
            at++;
        }
        qn_buf_add(out, &c, 1);
    }
    return at;
}

static json_t *step_into(json_t *at, const qn_buf *step) {
    if (json_is_object(at)) return json_object_get(at, step->size ? step->data : "");
    if (!json_is_array(at) || !step->size || step->size > 9) return NULL;
    size_t index = 0;
    for (size_t i = 0; i < step->size; i++) {
        if (step->data[i] < '0' || step->data[i] > '9') return NULL;
        index = index * 10 + (size_t)(step->data[i] - '0');
    }
    return json_array_get(at, index);
}

qn_status qn_schema_resolve(json_t **out, qn_schema *s, const json_t *ref, const qn_where *where) {
    const char *text = json_string_value(ref);
    if (!text) return QN_SCHEMA_FAIL(s, where, "$ref", FORMAT, "not a string");
    if (text[0] != '#' || (text[1] && text[1] != '/'))
        return QN_SCHEMA_FAIL(s, where, "$ref", UNSUPPORTED,
                              "'%s': only references within the schema (#, #/...) are supported",
                              text);
    QN_TRY(qn_schema_spend(s, 16 + strlen(text), where));
    json_t *at = s->root;
    qn_buf step = {0};
    for (const char *p = text + 1; *p == '/' && at;) {
        p = read_step(&step, p + 1);
        at = step_into(at, &step);
    }
    const bool failed = step.failed;
    qn_buf_deinit(&step);
    if (failed) return QN_NOMEM(s->err, "schema");
    if (!at) return QN_SCHEMA_FAIL(s, where, "$ref", FORMAT, "'%s' is not there", text);
    *out = at;
    return QN_OK;
}

// --- conjunctions --------------------------------------------------------------------------------

void qn_conj_deinit(qn_conj *conj) {
    qn_free(conj->members);
    *conj = (qn_conj){0};
}

bool qn_conj_is_false(const qn_conj *conj) {
    for (size_t i = 0; i < conj->n; i++)
        if (json_is_false(conj->members[i].schema)) return true;
    return false;
}

// A schema that is nothing but a reference stands for what it names, so that all such are one.
static qn_status follow_references(qn_schema *s, qn_member *member) {
    for (int hops = 0; hops < HOPS_MAX; hops++) {
        const json_t *ref = json_object_get(member->schema, "$ref");
        if (!ref || json_object_size(member->schema) != 1) break;
        QN_TRY(qn_schema_resolve(&member->schema, s, ref, member->where));
    }
    return QN_OK;
}

qn_status qn_conj_add(qn_schema *s, qn_conj *conj, qn_member member) {
    QN_TRY(follow_references(s, &member));
    if (json_is_true(member.schema)) return QN_OK;
    if (!json_is_object(member.schema) && !json_is_false(member.schema))
        return QN_SCHEMA_FAIL(s, member.where, NULL, FORMAT,
                              "a schema is an object, true or false");
    for (int32_t at = member.parent; at >= 0; at = conj->members[at].parent)
        if (conj->members[at].schema == member.schema && !json_is_false(member.schema))
            return QN_SCHEMA_FAIL(s, member.where, NULL, UNSUPPORTED,
                                  "the schema refers to itself for the same value");
    for (size_t i = 0; i < conj->n; i++)
        if (conj->members[i].schema == member.schema) return QN_OK;
    if (conj->n == QN_CONJ_MAX)
        return QN_SCHEMA_FAIL(s, member.where, NULL, LIMIT, "more than %d schemas for one value",
                              QN_CONJ_MAX);
    QN_TRY(qn_schema_spend(s, 4 + conj->n, member.where));
    if (!qn_grow((void **)&conj->members, &conj->cap, conj->n + 1, sizeof *conj->members))
        return QN_NOMEM(s->err, "schema");
    conj->members[conj->n++] = member;
    return QN_OK;
}

static qn_status find_conj(qn_waiting **out, qn_schema *s, const qn_conj *conj) {
    struct {
        const void *schema;
        uintptr_t done;
    } key[QN_CONJ_MAX];
    for (size_t i = 0; i < conj->n; i++) {
        key[i].schema = conj->members[i].schema;
        key[i].done = conj->members[i].done;
    }
    const size_t size = conj->n * sizeof *key;
    uint32_t at;
    if (qn_map_find(&s->index, (const char *)key, size, &at)) {
        *out = &s->queue[at];
        return QN_OK;
    }
    const qn_where *where = conj->members[0].where;
    if (s->n_queue == QN_CONJS_MAX)
        return QN_SCHEMA_FAIL(s, where, NULL, LIMIT, "more than %d different schemas",
                              QN_CONJS_MAX);
    QN_TRY(qn_schema_spend(s, 64 + conj->n, where));
    const char *kept = qn_arena_strdup(&s->arena, (const char *)key, size);
    qn_waiting one = {.rule = -1};
    one.conj.members = qn_alloc(conj->n, sizeof *one.conj.members);
    if (!kept || !one.conj.members ||
        !qn_map_add(&s->index, kept, size, (uint32_t)s->n_queue, NULL) ||
        !qn_grow((void **)&s->queue, &s->cap_queue, s->n_queue + 1, sizeof *s->queue)) {
        qn_free(one.conj.members);
        return QN_NOMEM(s->err, "schema");
    }
    char name[WHERE_BYTES];
    render_where(name, where);
    memcpy(one.conj.members, conj->members, conj->n * sizeof *conj->members);
    one.conj.n = one.conj.cap = conj->n;
    one.rule = qn_ast_rule_named(s->ast, qn_str_of(name));
    s->queue[s->n_queue] = one;
    *out = &s->queue[s->n_queue++];
    return qn_ast_check(s->ast, s->err);
}

qn_status qn_schema_value(int32_t *out, qn_schema *s, const qn_conj *conj) {
    *out = conj->n ? QN_AST_NEVER : s->parts.value;
    if (conj->n == 0 || qn_conj_is_false(conj)) return QN_OK;
    qn_waiting *waiting;
    QN_TRY(find_conj(&waiting, s, conj));
    *out = qn_ast_ref(s->ast, waiting->rule);
    return QN_OK;
}

// Adds what allOf and $ref name, until there is nothing more to add.
static qn_status expand(qn_schema *s, qn_conj *conj) {
    for (size_t i = 0; i < conj->n; i++) {
        const qn_member member = conj->members[i];
        if (json_is_false(member.schema)) continue;
        QN_TRY(check_keywords(s, &member));
        const json_t *ref = json_object_get(member.schema, "$ref");
        if (ref) {
            qn_member to = {.where = member.where, .parent = (int32_t)i};
            QN_TRY(qn_schema_resolve(&to.schema, s, ref, member.where));
            QN_TRY(qn_conj_add(s, conj, to));
        }
        json_t *all = json_object_get(member.schema, "allOf"), *one;
        size_t k;
        if (all && !json_array_size(all))
            return QN_SCHEMA_FAIL(s, member.where, "allOf", FORMAT, "not a list of schemas");
        json_array_foreach(all, k, one) {
            const qn_where *list = qn_where_add(s, member.where, "allOf", 0);
            QN_TRY(qn_conj_add(s, conj,
                               (qn_member){one, qn_where_add(s, list, NULL, k), (int32_t)i, 0}));
        }
    }
    return QN_OK;
}

static qn_status common_types(uint32_t *out, qn_schema *s, const qn_conj *all) {
    *out = QN_TYPE_ANY;
    for (size_t i = 0; i < all->n; i++) {
        uint32_t types;
        QN_TRY(qn_schema_types(&types, s, &all->members[i]));
        *out &= types;
    }
    return QN_OK;
}

// A choice between the options of one member, each with everything else.
static qn_status choose(int32_t *out, qn_schema *s, const qn_conj *conj, size_t at,
                        const char *keyword, uint32_t done) {
    const qn_member member = conj->members[at];
    json_t *options = json_object_get(member.schema, keyword), *option;
    const qn_where *list = qn_where_add(s, member.where, keyword, 0);
    int32_t node = QN_AST_NEVER;
    size_t k;
    qn_status status = QN_OK;
    if (!json_array_size(options))
        return QN_SCHEMA_FAIL(s, member.where, keyword, FORMAT, "not a list of schemas");
    json_array_foreach(options, k, option) {
        qn_conj with = {0};
        int32_t made = QN_AST_NEVER;
        for (size_t i = 0; i < conj->n && !status; i++) {
            qn_member copy = conj->members[i];
            if (i == at) copy.done |= done;
            status = qn_conj_add(s, &with, (qn_member){copy.schema, copy.where, -1, copy.done});
            if (!status) with.members[i].parent = copy.parent;
        }
        if (!status)
            status = qn_conj_add(
                s, &with, (qn_member){option, qn_where_add(s, list, NULL, k), (int32_t)at, 0});
        if (!status) status = qn_schema_value(&made, s, &with);
        qn_conj_deinit(&with);
        if (status) return status;
        node = qn_ast_alt(s->ast, node, made);
    }
    *out = node;
    return QN_OK;
}

// Finds a choice that is still open; *found tells whether there was one.
static qn_status resolve_choice(int32_t *out, bool *found, qn_schema *s, const qn_conj *conj) {
    *found = true;
    for (size_t i = 0; i < conj->n; i++) {
        const qn_member *member = &conj->members[i];
        if (json_object_get(member->schema, "anyOf") && !(member->done & QN_DONE_ANY))
            return choose(out, s, conj, i, "anyOf", QN_DONE_ANY);
        if (json_object_get(member->schema, "oneOf") && !(member->done & QN_DONE_ONE)) {
            uint32_t types;
            QN_TRY(common_types(&types, s, conj));
            QN_TRY(qn_schema_check_one(s, member, types));
            return choose(out, s, conj, i, "oneOf", QN_DONE_ONE);
        }
    }
    *found = false;
    return QN_OK;
}

// --- values --------------------------------------------------------------------------------------

// The values of the first enum or const for which everything holds; *found: whether there is one.
static qn_status list_values(int32_t *out, bool *found, qn_schema *s, const qn_conj *all) {
    json_t *values = NULL, *single = NULL;
    for (size_t i = 0; i < all->n && !values && !single; i++) {
        values = json_object_get(all->members[i].schema, "enum");
        if (values && !json_is_array(values))
            return QN_SCHEMA_FAIL(s, all->members[i].where, "enum", FORMAT, "not a list");
        if (!values) single = json_object_get(all->members[i].schema, "const");
    }
    *found = values || single;
    *out = QN_AST_NEVER;
    const size_t n = values ? json_array_size(values) : (size_t)*found;
    for (size_t k = n; k-- > 0;) {
        const json_t *value = values ? json_array_get(values, k) : single;
        bool valid = true;
        for (size_t i = 0; valid && i < all->n; i++)
            QN_TRY(qn_schema_valid(&valid, s, value, all->members[i].schema, all->members[i].where,
                                   0));
        if (valid) *out = qn_ast_alt(s->ast, qn_schema_literal(s, value), *out);
    }
    return QN_OK;
}

// What `not` leaves of the types. Only a few forms can be honoured: true, false, a type; for strings
// also const, enum and pattern, which schema_string.c reads.
static qn_status exclude_types(uint32_t *types, qn_schema *s, const qn_member *member) {
    json_t *not = json_object_get(member->schema, "not");
    if (!not || json_is_false(not )) return QN_OK;
    if (json_is_true(not ) || (json_is_object(not ) && !json_object_size(not ))) {
        *types = 0;
        return QN_OK;
    }
    const qn_where *where = qn_where_add(s, member->where, "not", 0);
    if (json_object_size(not ) == 1 && json_object_get(not, "type")) {
        uint32_t without;
        const qn_member inner = {.schema = not, .where = where};
        QN_TRY(qn_schema_types(&without, s, &inner));
        *types &= ~without;
        return QN_OK;
    }
    if (*types == QN_TYPE_STRING) return QN_OK;
    return QN_SCHEMA_FAIL(s, member->where, "not", UNSUPPORTED,
                          "supported are a type, and for type string enum, const and pattern");
}

static qn_status by_types(int32_t *out, qn_schema *s, const qn_conj *all) {
    uint32_t types;
    int32_t node = QN_AST_NEVER, made;
    QN_TRY(common_types(&types, s, all));
    for (size_t i = 0; i < all->n; i++) QN_TRY(exclude_types(&types, s, &all->members[i]));
    if (types & QN_TYPE_NULL) node = qn_ast_text(s->ast, qn_str_of("null"));
    if (types & QN_TYPE_BOOLEAN) {
        node = qn_ast_alt(s->ast, qn_ast_text(s->ast, qn_str_of("false")), node);
        node = qn_ast_alt(s->ast, qn_ast_text(s->ast, qn_str_of("true")), node);
    }
    if (types & QN_TYPE_NUMBER) {
        QN_TRY(qn_schema_number(&made, s, all, types));
        node = qn_ast_alt(s->ast, made, node);
    }
    if (types & QN_TYPE_STRING) {
        QN_TRY(qn_schema_string(&made, s, all));
        node = qn_ast_alt(s->ast, made, node);
    }
    if (types & QN_TYPE_ARRAY) {
        QN_TRY(qn_schema_array(&made, s, all));
        node = qn_ast_alt(s->ast, made, node);
    }
    if (types & QN_TYPE_OBJECT) {
        QN_TRY(qn_schema_object(&made, s, all));
        node = qn_ast_alt(s->ast, made, node);
    }
    *out = node;
    return QN_OK;
}

// Members in the order in which they are written: what a member names stands behind it, before what
// comes after it. Properties come out in this order.
static qn_status put_in_order(qn_schema *s, qn_conj *out, const qn_conj *conj, int32_t parent) {
    for (size_t i = 0; i < conj->n; i++) {
        if (conj->members[i].parent != parent) continue;
        qn_member member = conj->members[i];
        member.parent = -1;
        QN_TRY(qn_conj_add(s, out, member));
        QN_TRY(put_in_order(s, out, conj, (int32_t)i));
    }
    return QN_OK;
}

// The body of a rule.
static qn_status build(int32_t *out, qn_schema *s, qn_conj *conj) {
    bool found = false;
    QN_TRY(expand(s, conj));
    *out = QN_AST_NEVER;
    if (qn_conj_is_false(conj)) return QN_OK;
    QN_TRY(resolve_choice(out, &found, s, conj));
    if (found) return QN_OK;
    qn_conj all = {0};
    qn_status status = put_in_order(s, &all, conj, -1);
    if (!status) status = list_values(out, &found, s, &all);
    if (!status && !found) status = by_types(out, s, &all);
    qn_conj_deinit(&all);
    return status;
}

static qn_status build_all(int32_t *root, qn_schema *s) {
    qn_conj first = {0};
    const qn_where *where = NULL;
    qn_status status = qn_conj_add(s, &first, (qn_member){s->root, where, -1, 0});
    if (!status) status = qn_schema_value(root, s, &first);
    qn_conj_deinit(&first);
    for (size_t i = 0; !status && i < s->n_queue; i++) {
        qn_conj conj = s->queue[i].conj; // the queue may move while it is worked on
        s->queue[i].conj = (qn_conj){0};
        int32_t body = QN_AST_NEVER;
        status = build(&body, s, &conj);
        if (!status) qn_ast_rule_set(s->ast, s->queue[i].rule, body);
        if (!status) status = qn_ast_check(s->ast, s->err);
        qn_conj_deinit(&conj);
    }
    return status;
}

qn_status qn_front_schema(int32_t *root, qn_ast *ast, qn_str text, qn_err *err) {
    qn_schema s = {.ast = ast, .steps = STEPS_MAX, .err = err};
    const qn_json_opts opts = {.what = "schema", .any = true}; // booleans are schemas too
    json_t *root_json = NULL;
    qn_status status = qn_json_parse_as(&root_json, text.data, text.size, &opts, err);
    if (!status) {
        s.root = root_json;
        qn_json_parts_init(&s.parts, ast);
        status = build_all(root, &s);
    }
    for (size_t i = 0; i < s.n_queue; i++) qn_conj_deinit(&s.queue[i].conj);
    qn_free(s.queue);
    qn_map_deinit(&s.index);
    qn_arena_deinit(&s.arena);
    json_decref(root_json);
    return status;
}
