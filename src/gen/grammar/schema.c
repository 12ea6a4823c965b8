#include "gen/grammar/schema.h"

#include "core/mem.h"
#include "gen/grammar/grammar_int.h"

#include <stdarg.h>
#include <stdio.h>

enum { WHERE_BYTES = 200, HOPS_MAX = 100, WARNINGS_MAX = 100, BYTES_PER_STEP = 4 };

// --- places --------------------------------------------------------------------------------------

static const qn_gr_where *keep_where(qn_gr_schema *s, qn_gr_where place) {
    qn_gr_where *where = qn_arena_alloc(&s->arena, 1, sizeof *where);
    if (!where) {
        qn_gr_ast_fail(s->ast, QN_MEMORY, NULL);
        return place.up;
    }
    *where = place;
    return where;
}

const qn_gr_where *qn_gr_where_add(qn_gr_schema *s, const qn_gr_where *up, const char *key,
                                   size_t index) {
    if (up && up->is_made) return up;
    return keep_where(s, (qn_gr_where){.up = up, .key = key, .index = index});
}

const qn_gr_where *qn_gr_where_made(qn_gr_schema *s, const qn_gr_where *of) {
    return keep_where(s, (qn_gr_where){.up = of, .is_made = true});
}

// "#/properties/a/items/3", cut at its front when it is long.
static void render_where(char out[WHERE_BYTES], const qn_gr_where *where) {
    size_t at = WHERE_BYTES - 1;
    out[at] = 0;
    for (; where; where = where->up) {
        char part[64];
        if (where->is_made) continue;
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

qn_status qn_gr_schema_fail(qn_gr_schema *s, qn_status status, const qn_gr_where *where,
                            const char *keyword) {
    char place[WHERE_BYTES];
    render_where(place, where);
    if (!keyword) return qn_err_prefix(s->err, status, "schema, %s", place);
    return qn_err_prefix(s->err, status, "schema, %s/%s", place, keyword);
}

qn_status qn_gr_schema_check_ast(qn_gr_schema *s, const qn_gr_where *where, const char *keyword) {
    const qn_status status = qn_gr_ast_check(s->ast, s->err);
    return status == QN_LIMIT ? qn_gr_schema_fail(s, status, where, keyword) : status;
}

qn_status qn_gr_schema_spend(qn_gr_schema *s, uint64_t steps, const qn_gr_where *where) {
    if (s->steps < steps)
        return QN_SCHEMA_FAIL(s, where, NULL, LIMIT,
                              "the schema takes too many steps, more than %llu",
                              (unsigned long long)qn_gr_steps(s->opts));
    s->steps -= steps;
    return qn_gr_ast_go_on(s->ast, s->err);
}

bool qn_gr_schema_leaves_limits(const qn_gr_schema *s) {
    return s->opts->lenient && qn_gr_steps(s->opts) == QN_GR_STEPS_MAX;
}

static bool is_warned(qn_gr_schema *s, const char *place) {
    uint32_t at;
    const size_t n = strlen(place);
    if (s->n_warned == WARNINGS_MAX || qn_map_find(&s->warned, place, n, &at)) return true;
    const char *kept = qn_arena_strdup(&s->arena, place, n);
    if (kept && qn_map_add(&s->warned, kept, n, 0, NULL)) s->n_warned++;
    return false;
}

static qn_status leave_out(qn_gr_schema *s, const qn_gr_where *where, const char *keyword,
                           bool is_limit, const char *why) {
    char message[600], place[WHERE_BYTES];
    if (!s->opts->lenient && is_limit) return QN_SCHEMA_FAIL(s, where, keyword, LIMIT, "%s", why);
    if (!s->opts->lenient) return QN_SCHEMA_FAIL(s, where, keyword, UNSUPPORTED, "%s", why);
    render_where(place, where);
    snprintf(message, sizeof message, "schema, %s/%s: %s; left out", place, keyword, why);
    if (s->opts->log && !is_warned(s, message))
        s->opts->log(s->opts->log_arg, QN_LOG_WARNING, message);
    return QN_OK;
}

qn_status qn_gr_schema_ignore(qn_gr_schema *s, const qn_gr_where *where, const char *keyword,
                              const char *format, ...) {
    char why[200];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    return leave_out(s, where, keyword, false, why);
}

qn_status qn_gr_schema_exceeds(qn_gr_schema *s, const qn_gr_where *where, const char *keyword,
                               const char *format, ...) {
    char why[200];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    return leave_out(s, where, keyword, true, why);
}

// --- conjunctions --------------------------------------------------------------------------------

void qn_gr_conj_deinit(qn_gr_conj *conj) {
    qn_free(conj->members);
    *conj = (qn_gr_conj){0};
}

bool qn_gr_conj_is_false(const qn_gr_conj *conj) {
    for (size_t i = 0; i < conj->n; i++)
        if (json_is_false(conj->members[i].schema)) return true;
    return false;
}

// A schema that is nothing but a reference is what it names, so that all such are one.
static qn_status follow_references(qn_gr_schema *s, qn_gr_member *member) {
    for (int hops = 0; hops < HOPS_MAX; hops++) {
        const json_t *ref = json_object_get(member->schema, "$ref");
        if (!ref || (json_object_size(member->schema) != 1 && !s->ref_alone)) break;
        QN_TRY(qn_gr_schema_resolve(&member->schema, s, member, "$ref"));
    }
    return QN_OK;
}

// Adds a member as it is.
static qn_status copy_member(qn_gr_schema *s, qn_gr_conj *conj, qn_gr_member member) {
    QN_TRY(qn_gr_schema_spend(s, 4, member.where));
    if (!qn_grow((void **)&conj->members, &conj->cap, conj->n + 1, sizeof *conj->members))
        return QN_NOMEM(s->err, "schema");
    conj->members[conj->n++] = member;
    return QN_OK;
}

qn_status qn_gr_conj_add(qn_gr_schema *s, qn_gr_conj *conj, qn_gr_member member) {
    QN_TRY(follow_references(s, &member));
    if (json_is_true(member.schema)) return QN_OK;
    member.where = qn_gr_schema_place(s, member.schema, member.where);
    if (!json_is_object(member.schema) && !json_is_false(member.schema))
        return QN_SCHEMA_FAIL(s, member.where, NULL, FORMAT,
                              "a schema is an object, true or false");
    for (int32_t at = member.parent; at >= 0; at = conj->members[at].parent)
        if (conj->members[at].schema == member.schema && !json_is_false(member.schema))
            return QN_SCHEMA_FAIL(s, member.where, NULL, UNSUPPORTED,
                                  "the schema refers to itself for the same value");
    // Who named a schema matters where something asks what is described by whom.
    for (size_t i = 0; i < conj->n; i++)
        if (conj->members[i].schema == member.schema &&
            (!s->has_unevaluated || conj->members[i].parent == member.parent))
            return QN_OK;
    if (conj->n == QN_CONJ_MAX)
        return QN_SCHEMA_FAIL(s, member.where, NULL, LIMIT, "more than %d schemas for one value",
                              QN_CONJ_MAX);
    QN_TRY(qn_gr_schema_spend(s, conj->n, member.where));
    return copy_member(s, conj, member);
}

static qn_status find_conj(qn_gr_waiting **out, qn_gr_schema *s, const qn_gr_conj *conj) {
    struct {
        const void *schema;
        uint32_t done;
        int32_t parent;
    } key[QN_CONJ_MAX];
    for (size_t i = 0; i < conj->n; i++) {
        key[i].schema = conj->members[i].schema;
        key[i].done = conj->members[i].done;
        key[i].parent = s->has_unevaluated ? conj->members[i].parent : 0;
    }
    const size_t size = conj->n * sizeof *key;
    uint32_t at;
    if (qn_map_find(&s->index, (const char *)key, size, &at)) {
        *out = &s->queue[at];
        return QN_OK;
    }
    const qn_gr_where *where = conj->members[0].where;
    if (s->n_queue == QN_CONJS_MAX)
        return QN_SCHEMA_FAIL(s, where, NULL, LIMIT, "more than %d different schemas",
                              QN_CONJS_MAX);
    QN_TRY(qn_gr_schema_spend(s, 64 + conj->n, where));
    const char *kept = qn_arena_strdup(&s->arena, (const char *)key, size);
    qn_gr_waiting one = {.rule = -1};
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
    one.rule = qn_gr_ast_rule_named(s->ast, qn_str_of(name));
    s->queue[s->n_queue] = one;
    *out = &s->queue[s->n_queue++];
    return qn_gr_schema_check_ast(s, where, NULL);
}

qn_status qn_gr_schema_value(int32_t *out, qn_gr_schema *s, const qn_gr_conj *conj) {
    *out = conj->n ? QN_AST_NEVER : s->parts.value;
    if (conj->n == 0 || qn_gr_conj_is_false(conj)) return QN_OK;
    qn_gr_waiting *waiting;
    QN_TRY(find_conj(&waiting, s, conj));
    *out = qn_gr_ref(s->ast, waiting->rule);
    return QN_OK;
}

static qn_status add_references(qn_gr_schema *s, qn_gr_conj *conj, size_t i) {
    static const char *const keywords[] = {"$ref", "$dynamicRef", "$recursiveRef"};
    for (size_t k = 0; k < sizeof keywords / sizeof *keywords; k++) {
        const qn_gr_member member = conj->members[i];
        qn_gr_member to = {
            .where = member.where, .parent = (int32_t)i, .done = member.done & QN_MUTE};
        if (!json_object_get(member.schema, keywords[k])) continue;
        QN_TRY(qn_gr_schema_resolve(&to.schema, s, &member, keywords[k]));
        QN_TRY(qn_gr_conj_add(s, conj, to));
    }
    return QN_OK;
}

static qn_status add_all_of(qn_gr_schema *s, qn_gr_conj *conj, size_t i) {
    const qn_gr_member member = conj->members[i];
    json_t *all = json_object_get(member.schema, "allOf"), *one;
    size_t k;
    if (all && !json_array_size(all))
        return QN_SCHEMA_FAIL(s, member.where, "allOf", FORMAT, "not a list of schemas");
    json_array_foreach(all, k, one) {
        const qn_gr_where *list = qn_gr_where_add(s, member.where, "allOf", 0);
        QN_TRY(qn_gr_conj_add(s, conj,
                              (qn_gr_member){one, qn_gr_where_add(s, list, NULL, k), (int32_t)i,
                                             member.done & QN_MUTE}));
    }
    return QN_OK;
}

// What `not` and the dependencies become.
static qn_status add_rewritten(qn_gr_schema *s, qn_gr_conj *conj, size_t i) {
    const qn_gr_member member = conj->members[i];
    json_t *excluded = json_object_get(member.schema, "not"), *made;
    QN_TRY(qn_gr_schema_dependencies(&made, s, &member));
    if (made)
        QN_TRY(qn_gr_conj_add(
            s, conj, (qn_gr_member){made, member.where, (int32_t)i, member.done & QN_MUTE}));
    if (!excluded || qn_gr_schema_is_plain_not(member.schema)) return QN_OK;
    const qn_gr_where *where =
        qn_gr_schema_place(s, excluded, qn_gr_where_add(s, member.where, "not", 0));
    QN_TRY(qn_gr_schema_negated(&made, s, excluded, where));
    return qn_gr_conj_add(s, conj, (qn_gr_member){made, where, (int32_t)i, QN_MUTE});
}

qn_status qn_gr_conj_expand(qn_gr_schema *s, qn_gr_conj *conj) {
    for (size_t i = 0; i < conj->n; i++) {
        const qn_gr_member member = conj->members[i];
        if (json_is_false(member.schema)) continue;
        QN_TRY(qn_gr_schema_check_keywords(s, &member));
        QN_TRY(add_references(s, conj, i));
        QN_TRY(add_all_of(s, conj, i));
        QN_TRY(add_rewritten(s, conj, i));
    }
    return QN_OK;
}

bool qn_gr_conj_speaks_for(const qn_gr_conj *all, size_t i, size_t of) {
    for (int32_t at = (int32_t)i; at >= 0; at = all->members[at].parent) {
        if ((size_t)at == of) return true;
        if (all->members[at].done & QN_MUTE) return false;
    }
    return false;
}

qn_status qn_gr_schema_common_types(uint32_t *out, qn_gr_schema *s, const qn_gr_conj *all) {
    *out = QN_SCHEMA_ANY;
    for (size_t i = 0; i < all->n; i++) {
        uint32_t types;
        QN_TRY(qn_gr_schema_types(&types, s, &all->members[i]));
        *out &= types;
    }
    return QN_OK;
}

// Choices of oneOf are made one by one; other choices that are made do not follow those of the
// text.
static const qn_gr_where *option_place(qn_gr_schema *s, const qn_gr_where *list,
                                       const json_t *option, size_t k, uint32_t done) {
    const bool is_listed = done == QN_DONE_ONE || qn_gr_schema_is_given(s, option);
    return is_listed ? qn_gr_where_add(s, list, NULL, k) : list;
}

// A choice between the options of one member, each with everything else.
static qn_status choose(int32_t *out, qn_gr_schema *s, const qn_gr_conj *conj, size_t at,
                        json_t *options, const char *keyword, uint32_t done) {
    const qn_gr_member member = conj->members[at];
    json_t *option;
    const qn_gr_where *list = qn_gr_where_add(s, member.where, keyword, 0);
    int32_t node = QN_AST_NEVER;
    size_t k;
    qn_status status = QN_OK;
    json_array_foreach(options, k, option) {
        qn_gr_conj with = {0};
        int32_t made = QN_AST_NEVER;
        for (size_t i = 0; i < conj->n && !status; i++) {
            qn_gr_member copy = conj->members[i];
            if (i == at) copy.done |= done;
            status = copy_member(s, &with, copy);
        }
        if (!status)
            status = qn_gr_conj_add(s, &with,
                                    (qn_gr_member){option, option_place(s, list, option, k, done),
                                                   (int32_t)at, member.done & QN_MUTE});
        if (!status) status = qn_gr_schema_value(&made, s, &with);
        qn_gr_conj_deinit(&with);
        if (status) return status;
        node = qn_gr_alt(s->ast, node, made);
    }
    *out = node;
    return QN_OK;
}

// Whether something asks what the choices of member `at` describe.
static bool is_watched(const qn_gr_conj *conj, size_t at) {
    for (size_t i = 0; i < conj->n; i++)
        if (qn_gr_conj_speaks_for(conj, at, i) &&
            (json_object_get(conj->members[i].schema, "unevaluatedProperties") ||
             json_object_get(conj->members[i].schema, "unevaluatedItems")))
            return true;
    return false;
}

static qn_status choose_any(int32_t *out, qn_gr_schema *s, const qn_gr_conj *conj, size_t at,
                            json_t *options) {
    // More than one may hold, and then each describes something.
    if (is_watched(conj, at))
        QN_TRY(qn_gr_schema_subsets(&options, s, options, conj->members[at].where));
    return choose(out, s, conj, at, options, "anyOf", QN_DONE_ANY);
}

static qn_status choose_one(int32_t *out, qn_gr_schema *s, const qn_gr_conj *conj, size_t at) {
    const qn_gr_member *member = &conj->members[at];
    json_t *options;
    uint32_t types;
    QN_TRY(qn_gr_schema_common_types(&types, s, conj));
    QN_TRY(qn_gr_schema_one_options(&options, s, member, types));
    return choose(out, s, conj, at, options, "oneOf", QN_DONE_ONE);
}

static qn_status choose_if(int32_t *out, qn_gr_schema *s, const qn_gr_conj *conj, size_t at) {
    json_t *options;
    QN_TRY(qn_gr_schema_if_options(&options, s, &conj->members[at]));
    return choose(out, s, conj, at, options, "if", QN_DONE_IF);
}

static qn_status check_list(qn_gr_schema *s, const qn_gr_member *member, const char *keyword) {
    const json_t *list = json_object_get(member->schema, keyword);
    return !list || json_array_size(list)
               ? QN_OK
               : QN_SCHEMA_FAIL(s, member->where, keyword, FORMAT, "not a list of schemas");
}

// Finds a choice that is still open; *found: there was one.
static qn_status resolve_choice(int32_t *out, bool *found, qn_gr_schema *s,
                                const qn_gr_conj *conj) {
    *found = true;
    for (size_t i = 0; i < conj->n; i++) {
        const qn_gr_member *member = &conj->members[i];
        json_t *any = json_object_get(member->schema, "anyOf");
        const bool matters = json_object_get(member->schema, "then") ||
                             json_object_get(member->schema, "else") || s->has_unevaluated;
        QN_TRY(check_list(s, member, "anyOf"));
        QN_TRY(check_list(s, member, "oneOf"));
        if (any && !(member->done & QN_DONE_ANY)) return choose_any(out, s, conj, i, any);
        if (json_object_get(member->schema, "oneOf") && !(member->done & QN_DONE_ONE))
            return choose_one(out, s, conj, i);
        if (json_object_get(member->schema, "if") && matters && !(member->done & QN_DONE_IF))
            return choose_if(out, s, conj, i);
    }
    *found = false;
    return QN_OK;
}

// --- values --------------------------------------------------------------------------------------

// The values of the first enum or const for which everything holds; *found: whether there is one.
static qn_status list_values(int32_t *out, bool *found, qn_gr_schema *s, const qn_gr_conj *all) {
    json_t *values = NULL, *single = NULL;
    const qn_gr_where *where = NULL;
    for (size_t i = 0; i < all->n && !values && !single; i++) {
        where = all->members[i].where;
        values = json_object_get(all->members[i].schema, "enum");
        if (values && !json_is_array(values))
            return QN_SCHEMA_FAIL(s, where, "enum", FORMAT, "not a list");
        if (!values) single = json_object_get(all->members[i].schema, "const");
    }
    *found = values || single;
    *out = QN_AST_NEVER;
    const size_t n = values ? json_array_size(values) : (size_t)*found;
    for (size_t k = n; k-- > 0;) {
        const json_t *value = values ? json_array_get(values, k) : single;
        bool valid = true;
        for (size_t i = 0; valid && i < all->n; i++)
            QN_TRY(qn_gr_schema_valid(&valid, s, value, all->members[i].schema,
                                      all->members[i].where, 0));
        if (!valid) continue;
        int32_t node;
        QN_TRY(qn_gr_schema_literal(&node, s, value, where, values ? "enum" : "const"));
        *out = qn_gr_alt(s->ast, node, *out);
    }
    return QN_OK;
}

// What a `not` that names types leaves of them.
static qn_status exclude_types(uint32_t *types, qn_gr_schema *s, const qn_gr_member *member) {
    json_t *excluded = json_object_get(member->schema, "not");
    uint32_t without;
    if (!json_object_get(excluded, "type") || !qn_gr_schema_is_plain_not(member->schema))
        return QN_OK;
    const qn_gr_member inner = {.schema = excluded,
                                .where = qn_gr_where_add(s, member->where, "not", 0)};
    QN_TRY(qn_gr_schema_types(&without, s, &inner));
    *types &= ~without;
    return QN_OK;
}

static qn_status by_types(int32_t *out, qn_gr_schema *s, const qn_gr_conj *all) {
    uint32_t types;
    int32_t node = QN_AST_NEVER, made;
    QN_TRY(qn_gr_schema_common_types(&types, s, all));
    for (size_t i = 0; i < all->n; i++) QN_TRY(exclude_types(&types, s, &all->members[i]));
    if (types & QN_SCHEMA_NULL) node = qn_gr_text(s->ast, qn_str_of("null"));
    if (types & QN_SCHEMA_BOOLEAN) {
        node = qn_gr_alt(s->ast, qn_gr_text(s->ast, qn_str_of("false")), node);
        node = qn_gr_alt(s->ast, qn_gr_text(s->ast, qn_str_of("true")), node);
    }
    if (types & QN_SCHEMA_NUMBER) {
        QN_TRY(qn_gr_schema_number(&made, s, all, types));
        node = qn_gr_alt(s->ast, made, node);
    }
    if (types & QN_SCHEMA_STRING) {
        QN_TRY(qn_gr_schema_string(&made, s, all));
        node = qn_gr_alt(s->ast, made, node);
    }
    if (types & QN_SCHEMA_ARRAY) {
        QN_TRY(qn_gr_schema_array(&made, s, all));
        node = qn_gr_alt(s->ast, made, node);
    }
    if (types & QN_SCHEMA_OBJECT) {
        QN_TRY(qn_gr_schema_object(&made, s, all));
        node = qn_gr_alt(s->ast, made, node);
    }
    *out = node;
    return QN_OK;
}

// Members in the order in which they are written: what a member names comes after it, before what
// comes after it. Properties come out in this order.
static qn_status put_in_order(qn_gr_schema *s, qn_gr_conj *out, const qn_gr_conj *conj,
                              int32_t parent, int32_t new_parent) {
    for (size_t i = 0; i < conj->n; i++) {
        if (conj->members[i].parent != parent) continue;
        qn_gr_member member = conj->members[i];
        member.parent = new_parent;
        QN_TRY(copy_member(s, out, member));
        QN_TRY(put_in_order(s, out, conj, (int32_t)i, (int32_t)out->n - 1));
    }
    return QN_OK;
}

// The body of a rule.
static qn_status build(int32_t *out, qn_gr_schema *s, qn_gr_conj *conj) {
    bool found = false;
    QN_TRY(qn_gr_conj_expand(s, conj));
    *out = QN_AST_NEVER;
    if (qn_gr_conj_is_false(conj)) return QN_OK;
    QN_TRY(resolve_choice(out, &found, s, conj));
    if (found) return QN_OK;
    qn_gr_conj all = {0};
    qn_status status = put_in_order(s, &all, conj, -1, -1);
    if (!status) status = list_values(out, &found, s, &all);
    if (!status && !found) status = by_types(out, s, &all);
    qn_gr_conj_deinit(&all);
    return status;
}

// The node of a schema that is somewhere in the root, with everything that it needs.
static qn_status build_all(int32_t *out, qn_gr_schema *s, json_t *schema,
                           const qn_gr_where *where) {
    qn_gr_conj first = {0};
    qn_status status = qn_gr_conj_add(s, &first, (qn_gr_member){schema, where, -1, 0});
    if (!status) status = qn_gr_schema_value(out, s, &first);
    qn_gr_conj_deinit(&first);
    while (!status && s->n_built < s->n_queue) {
        const size_t i = s->n_built++;
        qn_gr_conj conj = s->queue[i].conj; // the queue may move while it is worked on
        s->queue[i].conj = (qn_gr_conj){0};
        int32_t body = QN_AST_NEVER;
        status = build(&body, s, &conj);
        if (!status) qn_gr_ast_rule_set(s->ast, s->queue[i].rule, body);
        if (!status) status = qn_gr_schema_check_ast(s, conj.members[0].where, NULL);
        qn_gr_conj_deinit(&conj);
    }
    return status;
}

static void schema_deinit(qn_gr_schema *s) {
    for (size_t i = 0; i < s->n_queue; i++) qn_gr_conj_deinit(&s->queue[i].conj);
    qn_free(s->queue);
    qn_free(s->targets);
    qn_free(s->bases);
    qn_free(s->places);
    qn_map_deinit(&s->target_index);
    qn_map_deinit(&s->base_index);
    qn_map_deinit(&s->made_index);
    qn_map_deinit(&s->warned);
    qn_map_deinit(&s->index);
    json_decref(s->made);
    qn_arena_deinit(&s->arena);
}

static qn_status build_properties(int32_t *nodes, qn_gr_schema *s, const char *const *names,
                                  size_t n) {
    const json_t *properties = json_object_get(s->root, "properties");
    const qn_gr_where *where = qn_gr_where_add(s, NULL, "properties", 0);
    for (size_t i = 0; i < n; i++) {
        json_t *schema = json_object_get(properties, names[i]);
        if (!schema) continue;
        QN_TRY(build_all(&nodes[i], s, schema, qn_gr_where_add(s, where, names[i], 0)));
        QN_TRY(qn_gr_schema_spend(s, 1, where));
    }
    return QN_OK;
}

// The whole, where there are no names; else the properties of these.
static qn_status front(int32_t *nodes, qn_gr_ast *ast, qn_str text, const char *const *names,
                       size_t n, const qn_grammar_opts *opts, qn_err *err) {
    // Several schemas of one tree, as tools have them, have one budget.
    const uint64_t max = qn_gr_steps(opts), steps = ast->spent < max ? max - ast->spent : 0;
    qn_gr_schema s = {.ast = ast, .opts = opts, .steps = steps, .draft = 2020, .err = err};
    json_t *outer = NULL;
    qn_status status = qn_gr_schema_spend(&s, text.size / BYTES_PER_STEP, NULL);
    if (!status) status = qn_gr_schema_read(&outer, &s, text);
    if (!status) {
        qn_gr_json_parts_init(&s.parts, ast);
        status = qn_gr_schema_index(&s);
    }
    if (!status)
        status = names ? build_properties(nodes, &s, names, n) : build_all(nodes, &s, s.root, NULL);
    ast->spent += steps - s.steps;
    schema_deinit(&s);
    json_decref(outer);
    return status;
}

qn_status qn_gr_front_schema(int32_t *root, qn_gr_ast *ast, qn_str text,
                             const qn_grammar_opts *opts, qn_err *err) {
    return front(root, ast, text, NULL, 0, opts, err);
}

qn_status qn_gr_front_properties(int32_t *nodes, qn_gr_ast *ast, qn_str text,
                                 const char *const *names, size_t n, const qn_grammar_opts *opts,
                                 qn_err *err) {
    return front(nodes, ast, text, names, n, opts, err);
}
