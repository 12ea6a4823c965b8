// Objects: the properties that a schema names, in its order, each if it is required or wanted;
// after them any others that the schema allows.
#include "core/mem.h"
#include "gen/grammar/schema.h"

enum {
    PROPERTIES_MAX = 4096,
    PATTERNS_MAX = 6,
    CLASS_PATTERNS_MAX = 4, // beside different names
    COUNT_CELLS_MAX = 1 << 14,
    CLASS_STEP = 4,
    N_CLASSES = CLASS_STEP * CLASS_STEP,
    DIFFERENT_MAX = 6
};
#define NOT_LISTED SIZE_MAX

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

// A property that must be there, whatever its name (QN_KEYWORD_SOME), and what it is: a listed one,
// or another.
typedef struct witness {
    const json_t *some; // NULL: nothing is wanted
    const qn_gr_where *where;
    size_t listed; // property; NOT_LISTED: another
} witness;

typedef struct object {
    qn_gr_schema *s;
    const qn_gr_conj *all;
    qn_gr_conj names; // what is said of names, expanded
    witness wanted;
    property *properties;
    size_t n, cap;
    qn_map index; // name -> property
    name_pattern patterns[PATTERNS_MAX];
    size_t n_patterns;
    uint32_t min, max;                        // of properties
    const qn_gr_where *min_where, *max_where; // who says so
    int32_t extra;                            // another property; NEVER: none
    int32_t last;                             // another one that must be the last; NEVER: none
    // Others by a class of their names, where different ones are counted; made when needed.
    int32_t *by_class;
    bool is_free; // no keyword says anything
} object;

static qn_status add_name(object *o, const qn_gr_member *member, qn_str name, bool is_required) {
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

static qn_status want_object(const object *o, const qn_gr_member *member, const char *keyword) {
    const json_t *value = json_object_get(member->schema, keyword);
    return !value || json_is_object(value)
               ? QN_OK
               : QN_SCHEMA_FAIL(o->s, member->where, keyword, FORMAT, "not an object");
}

static qn_status read_patterns(object *o, size_t i) {
    const qn_gr_member *member = &o->all->members[i];
    json_t *schema;
    const char *key;
    QN_TRY(want_object(o, member, "patternProperties"));
    json_object_foreach(json_object_get(member->schema, "patternProperties"), key, schema) {
        if (o->n_patterns == PATTERNS_MAX) {
            const qn_gr_where *list = qn_gr_where_add(o->s, member->where, "patternProperties", 0);
            QN_TRY(qn_gr_schema_exceeds(o->s, list, key, "more than %d patterns", PATTERNS_MAX));
            continue;
        }
        o->patterns[o->n_patterns++] = (name_pattern){qn_str_of(key), i, schema};
    }
    return QN_OK;
}

static qn_status read_counts(object *o, const qn_gr_member *member) {
    uint32_t min = 0, max = QN_AST_MANY;
    bool has_min, has_max;
    QN_TRY(qn_gr_schema_count(&min, &has_min, o->s, member, "minProperties"));
    QN_TRY(qn_gr_schema_count(&max, &has_max, o->s, member, "maxProperties"));
    if (min > o->min) {
        o->min = min;
        o->min_where = member->where;
    }
    if (max < o->max) {
        o->max = max;
        o->max_where = member->where;
    }
    if (has_min || has_max) o->is_free = false;
    return QN_OK;
}

// Names that propertyNames lists are as if they were in `properties`.
static qn_status read_listed_names(object *o) {
    for (size_t i = 0; i < o->all->n; i++) {
        const qn_gr_member *member = &o->all->members[i];
        json_t *names = json_object_get(member->schema, "propertyNames");
        if (names)
            QN_TRY(qn_gr_conj_add(
                o->s, &o->names,
                (qn_gr_member){names, qn_gr_where_add(o->s, member->where, "propertyNames", 0), -1,
                               0}));
    }
    QN_TRY(qn_gr_conj_expand(o->s, &o->names));
    for (size_t i = 0; i < o->names.n; i++) {
        const qn_gr_member *member = &o->names.members[i];
        const json_t *list = json_object_get(member->schema, "enum");
        const json_t *one = json_object_get(member->schema, "const");
        for (size_t k = 0; k < json_array_size(list); k++)
            if (json_is_string(json_array_get(list, k)))
                QN_TRY(add_name(o, member, qn_gr_json_str(json_array_get(list, k)), false));
        if (json_is_string(one)) QN_TRY(add_name(o, member, qn_gr_json_str(one), false));
    }
    return QN_OK;
}

static qn_status read_names(object *o) {
    static const char *const concerned[] = {
        "properties", "patternProperties",     "propertyNames", "additionalProperties",
        "required",   "unevaluatedProperties", QN_KEYWORD_SOME};
    for (size_t i = 0; i < o->all->n; i++) {
        const qn_gr_member *member = &o->all->members[i];
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
    QN_TRY(read_listed_names(o));
    for (size_t i = 0; i < o->all->n; i++) {
        const qn_gr_member *member = &o->all->members[i];
        json_t *required = json_object_get(member->schema, "required"), *name;
        size_t k;
        if (required && !json_is_array(required))
            return QN_SCHEMA_FAIL(o->s, member->where, "required", FORMAT, "not a list");
        json_array_foreach(required, k, name) {
            if (!json_is_string(name))
                return QN_SCHEMA_FAIL(o->s, member->where, "required", FORMAT,
                                      "not a list of strings");
            QN_TRY(add_name(o, member, qn_gr_json_str(name), true));
        }
    }
    return QN_OK;
}

// --- values --------------------------------------------------------------------------------------

static qn_status add_schema(object *o, qn_gr_conj *conj, const qn_gr_member *member, json_t *schema,
                            const char *keyword, const char *key) {
    const qn_gr_where *where = qn_gr_where_add(o->s, member->where, keyword, 0);
    if (key) where = qn_gr_where_add(o->s, where, key, 0);
    return qn_gr_conj_add(o->s, conj, (qn_gr_member){schema, where, -1, 0});
}

static qn_status name_matches(bool *out, const object *o, qn_str pattern, qn_str name,
                              const qn_gr_member *member) {
    const qn_status status = qn_gr_lang_matches(out, pattern, name, &o->s->steps, o->s->err);
    return status ? qn_gr_schema_fail(o->s, status, member->where, "patternProperties") : QN_OK;
}

// Whether member i says something of a property of this name.
static qn_status describes(bool *out, const object *o, size_t i, qn_str name) {
    const qn_gr_member *member = &o->all->members[i];
    *out = json_object_get(json_object_get(member->schema, "properties"), name.data) ||
           json_object_get(member->schema, "additionalProperties");
    for (size_t k = 0; !*out && k < o->n_patterns; k++)
        if (o->patterns[k].member == i)
            QN_TRY(name_matches(out, o, o->patterns[k].text, name, member));
    return QN_OK;
}

// unevaluatedProperties of member i, if no schema that counts describes the property.
static qn_status add_unevaluated(object *o, qn_gr_conj *conj, size_t i, qn_str name) {
    const qn_gr_member *member = &o->all->members[i];
    json_t *schema = json_object_get(member->schema, "unevaluatedProperties");
    bool found = false;
    for (size_t k = 0; schema && !found && k < o->all->n; k++) {
        if (!qn_gr_conj_speaks_for(o->all, k, i)) continue;
        QN_TRY(describes(&found, o, k, name));
        if (k != i && json_object_get(o->all->members[k].schema, "unevaluatedProperties"))
            found = true;
    }
    return !schema || found ? QN_OK
                            : add_schema(o, conj, member, schema, "unevaluatedProperties", NULL);
}

static qn_status is_name_valid(bool *out, object *o, qn_str text, json_t *schema,
                               const qn_gr_where *where) {
    json_t *name = json_stringn_nocheck(text.data, text.size);
    if (!name) return QN_NOMEM(o->s->err, "schema");
    const qn_status status = qn_gr_schema_valid(out, o->s, name, schema, where, 0);
    json_decref(name);
    return status;
}

// The schemas that one member has for a named property: its own, those of patterns that match, or
// additionalProperties.
static qn_status collect_from(object *o, qn_gr_conj *conj, size_t i, const property *p) {
    const qn_gr_member *member = &o->all->members[i];
    json_t *named = json_object_get(json_object_get(member->schema, "properties"), p->name.data);
    json_t *others = json_object_get(member->schema, "additionalProperties");
    json_t *names = json_object_get(member->schema, "propertyNames");
    bool found = named != NULL, is_valid = true;
    if (named) QN_TRY(add_schema(o, conj, member, named, "properties", p->name.data));
    for (size_t k = 0; k < o->n_patterns; k++) {
        const name_pattern *pattern = &o->patterns[k];
        bool matches = false;
        if (pattern->member != i) continue;
        QN_TRY(name_matches(&matches, o, pattern->text, p->name, member));
        if (!matches) continue;
        found = true;
        QN_TRY(
            add_schema(o, conj, member, pattern->schema, "patternProperties", pattern->text.data));
    }
    if (!found && others) QN_TRY(add_schema(o, conj, member, others, "additionalProperties", NULL));
    QN_TRY(add_unevaluated(o, conj, i, p->name));
    if (names) QN_TRY(is_name_valid(&is_valid, o, p->name, names, member->where));
    return is_valid ? QN_OK : qn_gr_conj_add(o->s, conj, (qn_gr_member){json_false(), NULL, -1, 0});
}

static qn_status make_values(object *o) {
    for (size_t i = 0; i < o->n; i++) {
        qn_gr_conj conj = {0};
        property *p = &o->properties[i];
        qn_status status = qn_gr_schema_spend(o->s, 32, o->all->members[0].where);
        for (size_t k = 0; !status && k < o->all->n; k++) status = collect_from(o, &conj, k, p);
        if (!status && o->wanted.some && o->wanted.listed == i)
            status = qn_gr_conj_add(
                o->s, &conj,
                (qn_gr_member){json_object_get(o->wanted.some, "value"), o->wanted.where, -1, 0});
        if (!status) status = qn_gr_schema_value(&p->value, o->s, &conj);
        qn_gr_conj_deinit(&conj);
        if (status) return status;
    }
    return QN_OK;
}

// --- other properties ----------------------------------------------------------------------------

// Whether member i describes other properties that match the patterns in `chosen`.
static bool describes_others(const object *o, size_t i, unsigned chosen) {
    for (size_t k = 0; k < o->n_patterns; k++)
        if ((chosen >> k & 1) && o->patterns[k].member == i) return true;
    return json_object_get(o->all->members[i].schema, "additionalProperties") != NULL;
}

static bool is_unevaluated(const object *o, size_t i, unsigned chosen) {
    for (size_t k = 0; k < o->all->n; k++) {
        if (!qn_gr_conj_speaks_for(o->all, k, i)) continue;
        if (describes_others(o, k, chosen)) return false;
        if (k != i && json_object_get(o->all->members[k].schema, "unevaluatedProperties"))
            return false;
    }
    return true;
}

// The schemas of others whose names match exactly the patterns in `chosen`.
static qn_status collect_others(object *o, qn_gr_conj *conj, unsigned chosen) {
    for (size_t k = 0; k < o->n_patterns; k++)
        if (chosen >> k & 1)
            QN_TRY(add_schema(o, conj, &o->all->members[o->patterns[k].member],
                              o->patterns[k].schema, "patternProperties",
                              o->patterns[k].text.data));
    for (size_t i = 0; i < o->all->n; i++) {
        const qn_gr_member *member = &o->all->members[i];
        json_t *others = json_object_get(member->schema, "additionalProperties");
        json_t *rest = json_object_get(member->schema, "unevaluatedProperties");
        bool has_pattern = false;
        for (size_t k = 0; k < o->n_patterns; k++)
            has_pattern = has_pattern || ((chosen >> k & 1) && o->patterns[k].member == i);
        if (others && !has_pattern)
            QN_TRY(add_schema(o, conj, member, others, "additionalProperties", NULL));
        if (rest && is_unevaluated(o, i, chosen))
            QN_TRY(add_schema(o, conj, member, rest, "unevaluatedProperties", NULL));
    }
    return QN_OK;
}

static qn_status add_part(object *o, qn_gr_lang_part *parts, size_t *n, qn_gr_lang_part part) {
    if (*n == QN_LANG_MAX_PARTS)
        return QN_SCHEMA_FAIL(o->s, o->all->members[0].where, NULL, LIMIT,
                              "more than %d conditions on names", QN_LANG_MAX_PARTS);
    parts[(*n)++] = part;
    return QN_OK;
}

static qn_status exclude_words(object *o, qn_gr_lang_part *parts, size_t *n, const qn_str *words,
                               size_t n_words) {
    if (!n_words) return QN_OK;
    return add_part(
        o, parts, n,
        (qn_gr_lang_part){
            .kind = QN_LANG_WORDS, .negated = true, .words = words, .n_words = n_words});
}

// What propertyNames says of names that are not listed; *possible: false if there are none.
static qn_status name_conditions(object *o, qn_gr_lang_part *parts, size_t *n, bool *possible) {
    static const char *const choices[] = {"anyOf", "oneOf", "if"};
    for (size_t i = 0; i < o->names.n; i++) {
        const qn_gr_member *member = &o->names.members[i];
        uint32_t types;
        if (json_is_false(member->schema) || json_object_get(member->schema, "enum") ||
            json_object_get(member->schema, "const"))
            *possible = false;
        if (json_is_false(member->schema)) continue;
        QN_TRY(qn_gr_schema_types(&types, o->s, member));
        if (!(types & QN_SCHEMA_STRING)) *possible = false;
        for (size_t k = 0; *possible && k < sizeof choices / sizeof *choices; k++)
            if (json_object_get(member->schema, choices[k]))
                QN_TRY(qn_gr_schema_ignore(o->s, member->where, choices[k],
                                           "'%s' is not supported for names", choices[k]));
        QN_TRY(qn_gr_schema_string_parts(parts, n, o->s, member));
    }
    return QN_OK;
}

// What the wanted property's name must be.
static qn_status wanted_conditions(object *o, qn_gr_lang_part *parts, size_t *n) {
    const json_t *some = o->wanted.some, *match = json_object_get(some, "match");
    const json_t *names = json_object_get(some, "names"), *named = json_object_get(some, "name");
    const json_t *patterns = json_object_get(some, "patterns");
    const size_t n_words = json_array_size(names);
    qn_str *words = qn_arena_alloc(&o->s->arena, n_words + 1, sizeof *words);
    if (!words) return QN_NOMEM(o->s->err, "schema");
    for (size_t i = 0; i < n_words; i++) words[i] = qn_gr_json_str(json_array_get(names, i));
    QN_TRY(exclude_words(o, parts, n, words, n_words));
    for (size_t i = 0; i < json_array_size(patterns); i++)
        QN_TRY(add_part(o, parts, n,
                        (qn_gr_lang_part){.kind = QN_LANG_PATTERN,
                                          .pattern = qn_gr_json_str(json_array_get(patterns, i)),
                                          .negated = true}));
    if (match)
        QN_TRY(
            add_part(o, parts, n,
                     (qn_gr_lang_part){.kind = QN_LANG_PATTERN, .pattern = qn_gr_json_str(match)}));
    if (!named || json_is_false(named)) return QN_OK;
    const json_t *pattern = json_object_get(named, "pattern");
    if (!json_is_string(pattern) || json_object_size(named) != 1)
        return qn_gr_schema_ignore(o->s, o->wanted.where, "propertyNames",
                                   "under `not` only a pattern is supported for names");
    return add_part(o, parts, n,
                    (qn_gr_lang_part){.kind = QN_LANG_PATTERN,
                                      .pattern = qn_gr_json_str(pattern),
                                      .negated = true});
}

// The name of another property, as a string.
static qn_status name_node(int32_t *out, object *o, unsigned chosen, bool is_wanted,
                           const qn_gr_lang_part *more) {
    qn_gr_schema *s = o->s;
    qn_gr_lang_part parts[QN_LANG_MAX_PARTS];
    size_t n = 0;
    bool possible = true;
    *out = QN_AST_NEVER;
    for (size_t k = 0; k < o->n_patterns; k++)
        parts[n++] = (qn_gr_lang_part){
            .kind = QN_LANG_PATTERN, .pattern = o->patterns[k].text, .negated = !(chosen >> k & 1)};
    QN_TRY(name_conditions(o, parts, &n, &possible));
    if (!possible) return QN_OK;
    qn_str *words = qn_arena_alloc(&s->arena, o->n + 1, sizeof *words);
    if (!words) return QN_NOMEM(s->err, "schema");
    for (size_t i = 0; i < o->n; i++) words[i] = o->properties[i].name;
    QN_TRY(exclude_words(o, parts, &n, words, o->n));
    if (is_wanted) QN_TRY(wanted_conditions(o, parts, &n));
    if (more) QN_TRY(add_part(o, parts, &n, *more));
    *out = s->parts.string;
    if (n == 0) return QN_OK;
    int32_t inner;
    const qn_status status = qn_gr_lang_lower(&inner, s->ast, parts, n, &s->steps, NULL, s->err);
    if (status) return qn_gr_schema_fail(s, status, o->all->members[0].where, NULL);
    *out = qn_gr_shared(s->ast, "name", qn_gr_json_quoted(s->ast, inner));
    return QN_OK;
}

// Other properties whose names match exactly the patterns in `chosen` (bits) and no listed name.
// `more`: another condition on names; NULL: none.
static qn_status add_extra(int32_t *kept, object *o, unsigned chosen, bool is_wanted,
                           const qn_gr_lang_part *more) {
    qn_gr_schema *s = o->s;
    int32_t value = QN_AST_NEVER, key;
    qn_gr_conj conj = {0};
    qn_status status = collect_others(o, &conj, chosen);
    if (!status && is_wanted)
        status = qn_gr_conj_add(
            s, &conj,
            (qn_gr_member){json_object_get(o->wanted.some, "value"), o->wanted.where, -1, 0});
    const bool is_allowed = !status && !qn_gr_conj_is_false(&conj);
    if (is_allowed) status = qn_gr_schema_value(&value, s, &conj);
    qn_gr_conj_deinit(&conj);
    if (status || !is_allowed) return status;
    QN_TRY(name_node(&key, o, chosen, is_wanted, more));
    *kept = qn_gr_alt(s->ast, *kept, qn_gr_seq3(s->ast, key, s->parts.colon, value));
    return QN_OK;
}

// Where that is wanted, objects that list properties have no others unless they say so.
static bool is_closed_by_wish(const object *o) {
    bool lists = false;
    for (size_t i = 0; i < o->all->n; i++) {
        const qn_gr_member *member = &o->all->members[i];
        if (json_object_get(member->schema, "additionalProperties") ||
            json_object_get(member->schema, "unevaluatedProperties"))
            return false;
        if (json_object_get(member->schema, "properties") && !(member->done & QN_MUTE))
            lists = true;
    }
    return lists && o->s->closed;
}

static qn_status make_extra(object *o) {
    const bool is_closed = is_closed_by_wish(o);
    bool lists_only = is_closed; // nothing but listed names and patterns
    const bool is_wanted = o->wanted.some && o->wanted.listed == NOT_LISTED;
    for (size_t i = 0; i < o->all->n; i++)
        if (json_is_false(json_object_get(o->all->members[i].schema, "additionalProperties")))
            lists_only = true;
    o->extra = o->last = QN_AST_NEVER;
    if (lists_only && o->n_patterns == 0) return QN_OK;
    for (unsigned chosen = is_closed; chosen < 1u << o->n_patterns; chosen++) {
        QN_TRY(add_extra(&o->extra, o, chosen, false, NULL));
        if (is_wanted) QN_TRY(add_extra(&o->last, o, chosen, true, NULL));
    }
    return QN_OK;
}

// --- different names -----------------------------------------------------------------------------
//
// Nothing remembers names, so two of them could be one. Where several different others are needed
// (minProperties), names are told apart by a class: their first and their last character, each
// modulo CLASS_STEP. What counts are classes, so two names of one class count once.

// The characters of one remainder, as a class of a regular expression. Those beyond ASCII go with
// 0.
static void add_characters(qn_buf *out, unsigned remainder) {
    qn_buf_text(out, remainder ? "[" : "[^");
    for (unsigned c = 0x21; c < 0x7F; c++)
        if (remainder ? c % CLASS_STEP == remainder : c % CLASS_STEP != 0)
            qn_buf_printf(out, "\\x%02x", c);
    qn_buf_text(out, "]");
}

static qn_status class_pattern(qn_str *out, object *o, unsigned group) {
    const unsigned first = group / CLASS_STEP, last = group % CLASS_STEP;
    qn_buf text = {0};
    qn_buf_text(&text, "^");
    add_characters(&text, first);
    qn_buf_text(&text, "[^]*");
    add_characters(&text, last);
    qn_buf_text(&text, "$");
    if (first == last) { // one character is the first and the last
        qn_buf_text(&text, "|^");
        add_characters(&text, first);
        qn_buf_text(&text, "$");
    }
    if (group == 0) qn_buf_text(&text, "|^$");
    const char *kept = text.failed ? NULL : qn_arena_strdup(&o->s->arena, text.data, text.size);
    *out = (qn_str){kept, text.size};
    qn_buf_deinit(&text);
    return kept ? QN_OK : QN_NOMEM(o->s->err, "schema");
}

static qn_status make_classes(object *o) {
    if (o->by_class) return QN_OK;
    int32_t *made = qn_arena_alloc(&o->s->arena, N_CLASSES, sizeof *made);
    if (!made) return QN_NOMEM(o->s->err, "schema");
    for (unsigned group = 0; group < N_CLASSES; group++) {
        qn_gr_lang_part part = {.kind = QN_LANG_PATTERN};
        int32_t node = QN_AST_NEVER;
        QN_TRY(class_pattern(&part.pattern, o, group));
        for (unsigned chosen = is_closed_by_wish(o); chosen < 1u << o->n_patterns; chosen++)
            QN_TRY(add_extra(&node, o, chosen, false, &part));
        made[group] = node == QN_AST_NEVER ? node : qn_gr_shared(o->s->ast, "property", node);
    }
    o->by_class = made;
    return QN_OK;
}

// What the others so far leave to remember. No padding: it is a key.
typedef struct class_cell {
    unsigned seen; // classes, as bits
    uint32_t used; // others; 0 where any number may come
} class_cell;

// Cells wait in a queue: a chain of them is as long as maxProperties is large.
typedef struct counting {
    object *o;
    uint32_t lack, left; // different ones that are needed; others that may come
    int32_t rest;        // node of what follows where enough are there and any number may come
    class_cell *cells;
    int32_t *rules;
    size_t n, cap, cap_rules;
    qn_map index;
} counting;

static unsigned count_bits(unsigned bits) {
    unsigned n = 0;
    for (; bits; bits &= bits - 1) n++;
    return n;
}

static qn_status intern(int32_t *rule, counting *c, const class_cell *cell) {
    object *o = c->o;
    uint32_t at;
    if (qn_map_find(&c->index, (const char *)cell, sizeof *cell, &at)) {
        *rule = c->rules[at];
        return QN_OK;
    }
    if (c->n == COUNT_CELLS_MAX)
        return QN_SCHEMA_FAIL(o->s, o->min_where, "minProperties", LIMIT,
                              "too large to be counted");
    const char *key = qn_arena_strdup(&o->s->arena, (const char *)cell, sizeof *cell);
    if (!key || !qn_grow((void **)&c->cells, &c->cap, c->n + 1, sizeof *c->cells) ||
        !qn_grow((void **)&c->rules, &c->cap_rules, c->n + 1, sizeof *c->rules) ||
        !qn_map_add(&c->index, key, sizeof *cell, (uint32_t)c->n, NULL))
        return QN_NOMEM(o->s->err, "schema");
    c->cells[c->n] = *cell;
    *rule = c->rules[c->n++] = qn_gr_ast_rule_add(o->s->ast, qn_str_of("properties"));
    return qn_gr_schema_check_ast(o->s, o->min_where, "minProperties");
}

// What follows when others of the classes `seen` are there, `used` of them.
static qn_status different_node(int32_t *out, counting *c, unsigned seen, uint32_t used) {
    const object *o = c->o;
    qn_gr_ast *ast = o->s->ast;
    const uint32_t left = c->left == QN_AST_MANY ? QN_AST_MANY : c->left - used;
    const class_cell cell = {seen, used};
    int32_t rule = -1;
    *out = QN_AST_NEVER;
    if (count_bits(seen) >= c->lack) {
        const int32_t more = qn_gr_seq(ast, o->s->parts.comma, o->extra);
        if (left == QN_AST_MANY && c->rest >= 0)
            *out = c->rest;
        else
            *out = qn_gr_seq(ast, qn_gr_rep(ast, more, 0, left), o->s->parts.close);
        c->rest = *out;
        return QN_OK;
    }
    if (left == 0) return QN_OK;
    QN_TRY(intern(&rule, c, &cell));
    *out = qn_gr_ref(ast, rule);
    return QN_OK;
}

static qn_status expand(counting *c, size_t at) {
    const object *o = c->o;
    qn_gr_ast *ast = o->s->ast;
    const class_cell from = c->cells[at];
    const uint32_t next = c->left == QN_AST_MANY ? 0 : from.used + 1;
    int32_t node = QN_AST_NEVER;
    QN_TRY(qn_gr_schema_spend(o->s, 32, o->all->members[0].where));
    for (unsigned group = 0; group < N_CLASSES; group++) {
        int32_t rest;
        QN_TRY(different_node(&rest, c, from.seen | 1u << group, next));
        const int32_t one = qn_gr_seq3(ast, o->s->parts.comma, o->by_class[group], rest);
        node = qn_gr_alt(ast, one, node);
    }
    qn_gr_ast_rule_set(ast, c->rules[at], node);
    return qn_gr_schema_check_ast(o->s, o->min_where, "minProperties");
}

// Cells for `lack` different others of at most `left`: sets of fewer classes than that, each with
// as many others as there may be.
static uint64_t count_cells(uint32_t lack, uint32_t left) {
    uint64_t n = 0, sets = 1;
    for (uint32_t k = 0; k < lack && k < left; k++) {
        n += left == QN_AST_MANY || k == 0 ? sets : sets * (left - k);
        sets = sets * (N_CLASSES - k) / (k + 1);
    }
    return n;
}

// Whether so many different others can be counted; in the lenient case they need not be there then.
static qn_status check_different(object *o, uint32_t n_required) {
    const uint32_t lack = o->min > n_required ? o->min - n_required : 0;
    const uint32_t left = o->max == QN_AST_MANY ? QN_AST_MANY : o->max - n_required;
    if (lack < 2 || o->extra == QN_AST_NEVER || o->max < o->min) return QN_OK;
    if (lack <= DIFFERENT_MAX && count_cells(lack, left) <= COUNT_CELLS_MAX &&
        o->n_patterns <= CLASS_PATTERNS_MAX)
        return QN_OK;
    o->min = n_required;
    if (o->n_patterns > CLASS_PATTERNS_MAX)
        return qn_gr_schema_exceeds(o->s, o->min_where, "minProperties",
                                    "not supported beside more than %d patterns",
                                    CLASS_PATTERNS_MAX);
    if (lack > DIFFERENT_MAX)
        return qn_gr_schema_exceeds(
            o->s, o->min_where, "minProperties",
            "%u more than the required properties, at most %d are supported", lack, DIFFERENT_MAX);
    return qn_gr_schema_exceeds(o->s, o->min_where, "minProperties",
                                "%u beside a maxProperties of %u is too large to be counted",
                                lack + n_required, o->max);
}

// At least `lack` different others and at most `left` after `count` properties.
static qn_status different_others(int32_t *out, object *o, uint32_t count, uint32_t lack,
                                  uint32_t left) {
    counting c = {.o = o, .lack = lack, .left = left, .rest = -1};
    QN_TRY(make_classes(o));
    qn_gr_ast *ast = o->s->ast;
    int32_t node = QN_AST_NEVER, rest;
    qn_status status = QN_OK;
    if (count) {
        status = different_node(out, &c, 0, 0);
    } else {
        for (unsigned group = 0; !status && group < N_CLASSES; group++) {
            status = different_node(&rest, &c, 1u << group, left == QN_AST_MANY ? 0 : 1);
            if (!status)
                node = qn_gr_alt(ast, qn_gr_seq3(ast, o->s->parts.blank, o->by_class[group], rest),
                                 node);
        }
        *out = node;
    }
    for (size_t i = 0; !status && i < c.n; i++) status = expand(&c, i);
    qn_free(c.cells);
    qn_free(c.rules);
    qn_map_deinit(&c.index);
    return status;
}

// --- the text ------------------------------------------------------------------------------------

// Counters matter only where they are not fulfilled anyway: `max` is the highest that is told
// apart.
static uint32_t highest_count(const object *o, uint32_t n_required) {
    const bool min_free = o->min <= n_required;
    const bool max_free = o->max == QN_AST_MANY || (o->extra == QN_AST_NEVER && o->max >= o->n);
    uint32_t max = 1; // none, some: for the commas
    if (!min_free && o->min > max) max = o->min;
    if (!max_free) max = o->max > max ? o->max : max;
    return max;
}

// The other properties: at least `min` and at most `max`, with the wanted one at the end. The first
// has no comma before it if nothing is there yet.
static int32_t others_node(const object *o, uint32_t min, uint32_t max, bool is_first) {
    qn_gr_ast *ast = o->s->ast;
    const bool is_wanted = o->wanted.some && o->wanted.listed == NOT_LISTED;
    const int32_t more = qn_gr_seq(ast, o->s->parts.comma, o->extra);
    if (is_wanted) {
        if (max == 0) return QN_AST_NEVER;
        min = min ? min - 1 : 0;
        max = max == QN_AST_MANY ? max : max - 1;
    }
    const int32_t after =
        is_wanted ? qn_gr_seq(ast, o->s->parts.comma, o->last) : (int32_t)QN_AST_EMPTY;
    if (!is_first) return qn_gr_seq(ast, qn_gr_rep(ast, more, min, max), after);
    int32_t node = is_wanted && min == 0 ? o->last : QN_AST_NEVER;
    if (max > 0)
        node = qn_gr_alt(
            ast,
            qn_gr_seq3(ast, o->extra,
                       qn_gr_rep(ast, more, min ? min - 1 : 0, max == QN_AST_MANY ? max : max - 1),
                       after),
            node);
    return node;
}

// What follows when `count` properties are there and all listed ones are decided.
static qn_status tail_node(int32_t *out, object *o, uint32_t count) {
    const qn_gr_schema *s = o->s;
    qn_gr_ast *ast = s->ast;
    const uint32_t lack = o->min > count ? o->min - count : 0;
    const uint32_t left = o->max == QN_AST_MANY ? QN_AST_MANY : o->max > count ? o->max - count : 0;
    const bool is_wanted = o->wanted.some && o->wanted.listed == NOT_LISTED;
    *out = QN_AST_NEVER;
    if (lack > 1 && o->extra == QN_AST_NEVER) return QN_OK;
    if (lack > 1 && lack <= left && is_wanted)
        return QN_SCHEMA_FAIL(o->s, o->min_where, "minProperties", UNSUPPORTED,
                              "not supported beside a condition on a property of any name");
    // Names of others may repeat, and then count once.
    if (lack > 1) return lack > left ? QN_OK : different_others(out, o, count, lack, left);
    if (count == 0) {
        if (lack == 0 && !is_wanted) *out = qn_gr_text(ast, qn_str_of("}"));
        const int32_t others = left > 0 ? others_node(o, lack, left, true) : (int32_t)QN_AST_NEVER;
        *out = qn_gr_alt(ast, qn_gr_seq3(ast, s->parts.blank, others, s->parts.close), *out);
        return QN_OK;
    }
    *out = qn_gr_seq(ast, others_node(o, lack, left, false), s->parts.close);
    return QN_OK;
}

// rows[c]: rule of what follows when c properties are there; from the last property to the first.
static qn_status make_chain(int32_t *out, object *o) {
    qn_gr_schema *s = o->s;
    qn_gr_ast *ast = s->ast;
    uint32_t n_required = 0;
    for (size_t i = 0; i < o->n; i++) n_required += o->properties[i].is_required;
    QN_TRY(check_different(o, n_required));
    const uint32_t max = highest_count(o, n_required);
    if ((uint64_t)max * (o->n + 1) > COUNT_CELLS_MAX)
        return QN_SCHEMA_FAIL(s, o->max != QN_AST_MANY ? o->max_where : o->min_where,
                              o->max != QN_AST_MANY ? "maxProperties" : "minProperties", LIMIT,
                              "too large to be counted");
    int32_t *rows = qn_arena_alloc(&s->arena, max + 1, sizeof *rows);
    if (!rows) return QN_NOMEM(s->err, "schema");
    const bool is_counted = max > 1;
    for (uint32_t c = 0; c <= max; c++) {
        rows[c] = QN_AST_NEVER;
        if (c > o->n || (is_counted && c < n_required && c < max)) continue; // cannot be
        // Uncounted, the second row means "some", which is enough for any bound that is left.
        object bounds = *o;
        if (!is_counted && o->min <= n_required) bounds.min = 0;
        if (!is_counted && (o->max != 1 && o->max != 0)) bounds.max = QN_AST_MANY;
        QN_TRY(tail_node(&rows[c], &bounds, c));
        o->by_class = bounds.by_class;
    }
    for (size_t i = o->n; i-- > 0;) {
        const property *p = &o->properties[i];
        const int32_t member =
            qn_gr_seq3(ast, qn_gr_json_text(ast, p->name), s->parts.colon, p->value);
        for (uint32_t c = 0; c <= max; c++) {
            const uint32_t next = c < max ? c + 1 : max;
            const bool is_full = c >= o->max;
            const int32_t taken =
                is_full ? QN_AST_NEVER
                        : qn_gr_seq3(ast, c ? s->parts.comma : s->parts.blank, member, rows[next]);
            // rows[c + 1] is still that of the next property: c goes up.
            const bool is_required = p->is_required || (o->wanted.some && o->wanted.listed == i);
            const int32_t left = is_required ? QN_AST_NEVER : rows[c];
            const int32_t node = qn_gr_alt(ast, taken, left);
            rows[c] = node == QN_AST_NEVER ? node : qn_gr_shared(ast, "properties", node);
        }
    }
    *out = qn_gr_seq(ast, qn_gr_text(ast, qn_str_of("{")), rows[0]);
    return QN_OK;
}

// --- a property that must be there ---------------------------------------------------------------

static qn_status find_wanted(object *o) {
    for (size_t i = 0; i < o->all->n; i++) {
        const qn_gr_member *member = &o->all->members[i];
        const json_t *some = json_object_get(member->schema, QN_KEYWORD_SOME);
        if (!some) continue;
        if (o->wanted.some)
            return QN_SCHEMA_FAIL(o->s, member->where, NULL, UNSUPPORTED,
                                  "more than one condition on a property of any name");
        o->wanted = (witness){some, member->where, NOT_LISTED};
    }
    return QN_OK;
}

// Whether a listed property can be the wanted one.
static qn_status can_be_wanted(bool *out, object *o, const property *p) {
    const json_t *some = o->wanted.some, *match = json_object_get(some, "match");
    const json_t *names = json_object_get(some, "names"),
                 *patterns = json_object_get(some, "patterns");
    json_t *named = json_object_get(some, "name");
    const qn_gr_member at = {NULL, o->wanted.where, -1, 0};
    bool matches = true;
    *out = true;
    for (size_t i = 0; i < json_array_size(names); i++) {
        const qn_str name = qn_gr_json_str(json_array_get(names, i));
        if (name.size == p->name.size && !memcmp(name.data, p->name.data, name.size)) *out = false;
    }
    for (size_t i = 0; *out && i < json_array_size(patterns); i++) {
        const qn_str pattern = qn_gr_json_str(json_array_get(patterns, i));
        QN_TRY(name_matches(&matches, o, pattern, p->name, &at));
        if (matches) *out = false;
    }
    if (*out && match) QN_TRY(name_matches(out, o, qn_gr_json_str(match), p->name, &at));
    if (*out && named) {
        QN_TRY(is_name_valid(&matches, o, p->name, named, o->wanted.where));
        *out = !matches;
    }
    return QN_OK;
}

static qn_status build(int32_t *out, object *o) {
    QN_TRY(make_values(o));
    QN_TRY(make_extra(o));
    return make_chain(out, o);
}

// One way for each property that can be the wanted one.
static qn_status build_wanted(int32_t *out, object *o) {
    int32_t node = QN_AST_NEVER, made;
    for (size_t i = 0; i <= o->n; i++) {
        bool possible = true;
        o->wanted.listed = i < o->n ? i : NOT_LISTED;
        if (i < o->n) QN_TRY(can_be_wanted(&possible, o, &o->properties[i]));
        if (!possible) continue;
        QN_TRY(qn_gr_schema_spend(o->s, 64 * (o->n + 1), o->wanted.where));
        QN_TRY(build(&made, o));
        node = qn_gr_alt(o->s->ast, made, node);
    }
    *out = node;
    return QN_OK;
}

qn_status qn_gr_schema_object(int32_t *out, qn_gr_schema *s, const qn_gr_conj *all) {
    object o = {.s = s, .all = all, .max = QN_AST_MANY, .is_free = true};
    *out = s->parts.object;
    qn_status status = read_names(&o);
    if (!status) status = find_wanted(&o);
    if (!status && !o.is_free) status = o.wanted.some ? build_wanted(out, &o) : build(out, &o);
    qn_free(o.properties);
    qn_map_deinit(&o.index);
    qn_gr_conj_deinit(&o.names);
    return status;
}
