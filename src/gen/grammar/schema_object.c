// Objects: the properties that a schema names, in its order, each if it is required or wanted; behind
// them any others that the schema allows.
#include "core/mem.h"
#include "gen/grammar/schema.h"

enum { PROPERTIES_MAX = 4096, PATTERNS_MAX = 4, COUNT_CELLS_MAX = 1 << 14 };

typedef struct property {
    qn_str name;
    bool is_required;
    int32_t value; // node; NEVER: it must not be there
} property;

typedef struct name_pattern {
    qn_str text;
    size_t member; // that has it
    json_t *schema;
} name_pattern;

typedef struct object {
    qn_schema *s;
    const qn_conj *all;
    property *properties;
    size_t n, cap;
    qn_map index; // name -> property
    name_pattern patterns[PATTERNS_MAX];
    size_t n_patterns;
    uint32_t min, max; // of properties
    int32_t extra;     // another property; NEVER: none
    bool is_free;      // no keyword says anything
} object;

static qn_status add_name(object *o, const qn_member *member, qn_str name, bool is_required) {
    uint32_t at = (uint32_t)o->n;
    if (!qn_map_find(&o->index, name.data, name.size, &at)) {
        if (o->n == PROPERTIES_MAX)
            return QN_SCHEMA_FAIL(o->s, member->where, "properties", LIMIT, "more than %d",
                                  PROPERTIES_MAX);
        if (!qn_grow((void **)&o->properties, &o->cap, o->n + 1, sizeof *o->properties) ||
            !qn_map_add(&o->index, name.data, name.size, at, NULL))
            return QN_NOMEM(o->s->err, "schema");
        o->properties[o->n++] = (property){.name = name, .value = QN_AST_NEVER};
    }
    if (is_required) o->properties[at].is_required = true;
    return QN_OK;
}

static qn_status want_object(const object *o, const qn_member *member, const char *keyword) {
    const json_t *value = json_object_get(member->schema, keyword);
    return !value || json_is_object(value)
               ? QN_OK
               : QN_SCHEMA_FAIL(o->s, member->where, keyword, FORMAT, "not an object");
}

static qn_status read_patterns(object *o, size_t i) {
    const qn_member *member = &o->all->members[i];
    json_t *schema;
    const char *key;
    QN_TRY(want_object(o, member, "patternProperties"));
    json_object_foreach(json_object_get(member->schema, "patternProperties"), key, schema) {
        if (o->n_patterns == PATTERNS_MAX)
            return QN_SCHEMA_FAIL(o->s, member->where, "patternProperties", LIMIT,
                                  "more than %d patterns", PATTERNS_MAX);
        o->patterns[o->n_patterns++] = (name_pattern){qn_str_of(key), i, schema};
    }
    return QN_OK;
}

static qn_status read_counts(object *o, const qn_member *member) {
    uint32_t min = 0, max = QN_AST_MANY;
    bool has_min, has_max;
    QN_TRY(qn_schema_count(&min, &has_min, o->s, member, "minProperties"));
    QN_TRY(qn_schema_count(&max, &has_max, o->s, member, "maxProperties"));
    if (min > o->min) o->min = min;
    if (max < o->max) o->max = max;
    if (has_min || has_max) o->is_free = false;
    return QN_OK;
}

static qn_status read_names(object *o) {
    static const char *const concerned[] = {"properties", "patternProperties", "propertyNames",
                                            "additionalProperties", "required"};
    for (size_t i = 0; i < o->all->n; i++) {
        const qn_member *member = &o->all->members[i];
        const char *key;
        json_t *schema;
        QN_TRY(want_object(o, member, "properties"));
        json_object_foreach(json_object_get(member->schema, "properties"), key, schema)
            QN_TRY(add_name(o, member, qn_str_of(key), false));
        QN_TRY(read_patterns(o, i));
        QN_TRY(read_counts(o, member));
        for (size_t k = 0; k < sizeof concerned / sizeof *concerned; k++)
            if (json_object_get(member->schema, concerned[k])) o->is_free = false;
    }
    for (size_t i = 0; i < o->all->n; i++) {
        const qn_member *member = &o->all->members[i];
        json_t *required = json_object_get(member->schema, "required"), *name;
        size_t k;
        if (required && !json_is_array(required))
            return QN_SCHEMA_FAIL(o->s, member->where, "required", FORMAT, "not a list");
        json_array_foreach(required, k, name) {
            if (!json_is_string(name))
                return QN_SCHEMA_FAIL(o->s, member->where, "required", FORMAT,
                                      "not a list of strings");
            QN_TRY(add_name(o, member, qn_json_str(name), true));
        }
    }
    return QN_OK;
}

// --- values --------------------------------------------------------------------------------------

static qn_status add_schema(object *o, qn_conj *conj, const qn_member *member, json_t *schema,
                            const char *keyword, const char *key) {
    const qn_where *where = qn_where_add(o->s, member->where, keyword, 0);
    if (key) where = qn_where_add(o->s, where, key, 0);
    return qn_conj_add(o->s, conj, (qn_member){schema, where, -1, 0});
}

// The schemas of one named property: for each member its own, those of patterns that match, or
// additionalProperties.
static qn_status collect_named(object *o, qn_conj *conj, const property *p) {
    for (size_t i = 0; i < o->all->n; i++) {
        const qn_member *member = &o->all->members[i];
        json_t *named =
            json_object_get(json_object_get(member->schema, "properties"), p->name.data);
        json_t *others = json_object_get(member->schema, "additionalProperties");
        json_t *names = json_object_get(member->schema, "propertyNames");
        bool found = named != NULL, is_valid = true;
        if (named) QN_TRY(add_schema(o, conj, member, named, "properties", p->name.data));
        for (size_t k = 0; k < o->n_patterns; k++) {
            const name_pattern *pattern = &o->patterns[k];
            bool matches = false;
            if (pattern->member != i) continue;
            const qn_status status =
                qn_lang_matches(&matches, pattern->text, p->name, &o->s->steps, o->s->err);
            if (status) return qn_schema_fail(o->s, status, member->where, "patternProperties");
            if (!matches) continue;
            found = true;
            QN_TRY(add_schema(o, conj, member, pattern->schema, "patternProperties",
                              pattern->text.data));
        }
        if (!found && others)
            QN_TRY(add_schema(o, conj, member, others, "additionalProperties", NULL));
        if (names) {
            json_t *name = json_stringn_nocheck(p->name.data, p->name.size);
            if (!name) return QN_NOMEM(o->s->err, "schema");
            const qn_status status =
                qn_schema_valid(&is_valid, o->s, name, names, member->where, 0);
            json_decref(name);
            if (status) return status;
        }
        if (!is_valid) return qn_conj_add(o->s, conj, (qn_member){json_false(), NULL, -1, 0});
    }
    return QN_OK;
}

static qn_status make_values(object *o) {
    for (size_t i = 0; i < o->n; i++) {
        qn_conj conj = {0};
        property *p = &o->properties[i];
        QN_TRY(qn_schema_spend(o->s, 32, o->all->members[0].where));
        qn_status status = collect_named(o, &conj, p);
        if (!status) status = qn_schema_value(&p->value, o->s, &conj);
        qn_conj_deinit(&conj);
        if (status) return status;
    }
    return QN_OK;
}

// Other properties whose names match exactly the patterns in `chosen` (bits) and no listed name.
static qn_status add_extra(object *o, unsigned chosen) {
    qn_schema *s = o->s;
    qn_lang_part parts[QN_LANG_MAX_PARTS];
    size_t n = 0;
    int32_t value, key;
    qn_conj conj = {0};
    qn_status status = QN_OK;
    for (size_t k = 0; k < o->n_patterns; k++) {
        const bool is_in = chosen >> k & 1;
        parts[n++] = (qn_lang_part){
            .kind = QN_LANG_PATTERN, .pattern = o->patterns[k].text, .negated = !is_in};
        if (!is_in || status) continue;
        status = add_schema(o, &conj, &o->all->members[o->patterns[k].member],
                            o->patterns[k].schema, "patternProperties", o->patterns[k].text.data);
    }
    for (size_t i = 0; !status && i < o->all->n; i++) {
        const qn_member *member = &o->all->members[i];
        json_t *others = json_object_get(member->schema, "additionalProperties");
        json_t *names = json_object_get(member->schema, "propertyNames");
        bool has_pattern = false;
        for (size_t k = 0; k < o->n_patterns; k++)
            has_pattern = has_pattern || ((chosen >> k & 1) && o->patterns[k].member == i);
        if (others && !has_pattern)
            status = add_schema(o, &conj, member, others, "additionalProperties", NULL);
        if (!status && names && !json_is_boolean(names)) {
            const qn_member inner = {names, qn_where_add(s, member->where, "propertyNames", 0), -1,
                                     0};
            status = qn_schema_string_parts(parts, &n, s, &inner);
        } else if (json_is_false(names)) {
            status = qn_conj_add(s, &conj, (qn_member){names, member->where, -1, 0});
        }
    }
    const bool is_allowed = !status && !qn_conj_is_false(&conj);
    if (!status) status = qn_schema_value(&value, s, &conj);
    qn_conj_deinit(&conj);
    if (status || !is_allowed) return status;
    qn_str *words = qn_arena_alloc(&s->arena, o->n + 1, sizeof *words);
    if (!words) return QN_NOMEM(s->err, "schema");
    for (size_t i = 0; i < o->n; i++) words[i] = o->properties[i].name;
    if (n == QN_LANG_MAX_PARTS)
        return QN_SCHEMA_FAIL(s, o->all->members[0].where, NULL, LIMIT,
                              "more than %d conditions on names", QN_LANG_MAX_PARTS);
    if (o->n)
        parts[n++] =
            (qn_lang_part){.kind = QN_LANG_WORDS, .negated = true, .words = words, .n_words = o->n};
    if (n == 0) {
        key = s->parts.string;
    } else {
        status = qn_lang_lower(&key, s->ast, parts, n, &s->steps, NULL, s->err);
        if (status) return qn_schema_fail(s, status, o->all->members[0].where, NULL);
        key = qn_ast_shared(s->ast, "name", qn_json_quoted(s->ast, key));
    }
    o->extra = qn_ast_alt(s->ast, o->extra, qn_ast_seq3(s->ast, key, s->parts.colon, value));
    return QN_OK;
}

// propertyNames of other kinds than conditions on strings cannot be honoured for unknown names.
static qn_status check_names(const object *o) {
    static const char *const known[] = {"pattern", "minLength", "maxLength",   "format",
                                        "type",    "title",     "description", "$comment"};
    for (size_t i = 0; i < o->all->n; i++) {
        const qn_member *member = &o->all->members[i];
        const char *key;
        json_t *value;
        json_object_foreach(json_object_get(member->schema, "propertyNames"), key, value) {
            size_t k = 0;
            while (k < sizeof known / sizeof *known && strcmp(known[k], key) != 0) k++;
            if (k == sizeof known / sizeof *known)
                return QN_SCHEMA_FAIL(o->s, member->where, "propertyNames", UNSUPPORTED,
                                      "'%s' is not supported for names", key);
        }
    }
    return QN_OK;
}

static qn_status make_extra(object *o) {
    bool is_closed = false; // nothing but listed names and patterns
    for (size_t i = 0; i < o->all->n; i++)
        if (json_is_false(json_object_get(o->all->members[i].schema, "additionalProperties")))
            is_closed = true;
    if (is_closed && o->n_patterns == 0) return QN_OK;
    QN_TRY(check_names(o));
    for (unsigned chosen = 0; chosen < 1u << o->n_patterns; chosen++) QN_TRY(add_extra(o, chosen));
    return QN_OK;
}

// --- the text ------------------------------------------------------------------------------------

// Counters matter only where they are not fulfilled anyway: `most` is the highest that is told
// apart.
static uint32_t highest_count(const object *o, uint32_t n_required) {
    const bool min_free = o->min <= n_required;
    const bool max_free = o->max == QN_AST_MANY || (o->extra == QN_AST_NEVER && o->max >= o->n);
    uint32_t most = 1; // none, some: for the commas
    if (!min_free && o->min > most) most = o->min;
    if (!max_free) most = o->max > most ? o->max : most;
    return most;
}

// What follows when `count` properties are there and all listed ones are decided.
static qn_status tail_node(int32_t *out, const object *o, uint32_t count) {
    const qn_schema *s = o->s;
    qn_ast *ast = s->ast;
    const uint32_t lack = o->min > count ? o->min - count : 0;
    const uint32_t left = o->max == QN_AST_MANY ? QN_AST_MANY : o->max > count ? o->max - count : 0;
    // Names of others may repeat, and then count once: only one can make up a lack.
    *out = QN_AST_NEVER;
    if (lack > 1 && (o->extra == QN_AST_NEVER || o->n + 1 >= o->min)) return QN_OK;
    if (lack > 1)
        return QN_SCHEMA_FAIL(o->s, o->all->members[0].where, "minProperties", UNSUPPORTED,
                              "%u more than the named properties, at most 1 is supported",
                              lack - 1);
    const int32_t more = qn_ast_seq(ast, s->parts.comma, o->extra);
    if (count == 0) {
        const int32_t close = qn_ast_text(ast, qn_str_of("}"));
        const int32_t rest = qn_ast_rep(ast, more, 0,
                                        left == QN_AST_MANY ? left
                                        : left              ? left - 1
                                                            : 0);
        if (lack == 0) *out = close;
        if (left > 0)
            *out = qn_ast_alt(
                ast,
                qn_ast_seq3(ast, s->parts.blank, o->extra, qn_ast_seq(ast, rest, s->parts.close)),
                *out);
        return QN_OK;
    }
    *out = qn_ast_seq(ast, qn_ast_rep(ast, more, lack, left), s->parts.close);
    return QN_OK;
}

// rows[c]: rule of what follows when c properties are there; from the last property to the first.
static qn_status make_chain(int32_t *out, const object *o) {
    qn_schema *s = o->s;
    qn_ast *ast = s->ast;
    uint32_t n_required = 0;
    for (size_t i = 0; i < o->n; i++) n_required += o->properties[i].is_required;
    const uint32_t most = highest_count(o, n_required);
    if ((uint64_t)most * (o->n + 1) > COUNT_CELLS_MAX)
        return QN_SCHEMA_FAIL(s, o->all->members[0].where,
                              o->max != QN_AST_MANY ? "maxProperties" : "minProperties", LIMIT,
                              "too large to be counted");
    int32_t *rows = qn_arena_alloc(&s->arena, most + 1, sizeof *rows);
    if (!rows) return QN_NOMEM(s->err, "schema");
    const bool is_counted = most > 1;
    for (uint32_t c = 0; c <= most; c++) {
        // Uncounted, the second row means "some", which is enough for any bound that is left.
        object bounds = *o;
        if (!is_counted && o->min <= n_required) bounds.min = 0;
        if (!is_counted && (o->max != 1 && o->max != 0)) bounds.max = QN_AST_MANY;
        QN_TRY(tail_node(&rows[c], &bounds, c));
    }
    for (size_t i = o->n; i-- > 0;) {
        const property *p = &o->properties[i];
        const int32_t member =
            qn_ast_seq3(ast, qn_json_text(ast, p->name), s->parts.colon, p->value);
        for (uint32_t c = 0; c <= most; c++) {
            const uint32_t next = c < most ? c + 1 : most;
            const bool is_full = c >= o->max;
            const int32_t taken =
                is_full ? QN_AST_NEVER
                        : qn_ast_seq3(ast, c ? s->parts.comma : s->parts.blank, member, rows[next]);
            // rows[c + 1] is still that of the property behind: c goes up.
            const int32_t left = p->is_required ? QN_AST_NEVER : rows[c];
            const int32_t node = qn_ast_alt(ast, taken, left);
            rows[c] = node == QN_AST_NEVER ? node : qn_ast_shared(ast, "properties", node);
        }
    }
    *out = qn_ast_seq(ast, qn_ast_text(ast, qn_str_of("{")), rows[0]);
    return QN_OK;
}

qn_status qn_schema_object(int32_t *out, qn_schema *s, const qn_conj *all) {
    object o = {.s = s, .all = all, .max = QN_AST_MANY, .extra = QN_AST_NEVER, .is_free = true};
    *out = s->parts.object;
    qn_status status = read_names(&o);
    if (!status && !o.is_free) {
        status = make_values(&o);
        if (!status) status = make_extra(&o);
        if (!status) status = make_chain(out, &o);
    }
    qn_free(o.properties);
    qn_map_deinit(&o.index);
    return status;
}
