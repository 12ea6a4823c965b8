// Arrays: items one by one (prefixItems), then the rest in a counted loop. Where items depend on
// what came before (contains, uniqueItems), each place is a rule: the position, how many items
// fulfilled which `contains`, which values are used.
#include "core/mem.h"
#include "gen/grammar/schema.h"

enum {
    PREFIX_MAX = 4096,
    CONTAINS_MAX = 4,
    VALUES_MAX = 256,
    SUBSET_MAX = 10,
    CELLS_MAX = 1 << 14
};

typedef struct contained {
    qn_gr_member member; // the schema that is counted
    uint32_t min, max;
    uint32_t from; // items before this one do not count
} contained;

typedef struct array_shape {
    uint32_t min, max;
    size_t n_prefix;
    bool is_free; // no keyword says anything
    contained contains[CONTAINS_MAX];
    size_t n_contains;
    const qn_gr_where *unique; // of the schema that wants different items; NULL: none
    bool is_unique;
} array_shape;

// In the older drafts a list of schemas in `items` is what prefixItems is now, and additionalItems
// what `items` is.
static json_t *prefix_of(const qn_gr_member *member) {
    json_t *items = json_object_get(member->schema, "items");
    return json_is_array(items) ? items : json_object_get(member->schema, "prefixItems");
}

static json_t *rest_of(const qn_gr_member *member, const char **keyword) {
    *keyword =
        json_is_array(json_object_get(member->schema, "items")) ? "additionalItems" : "items";
    return json_object_get(member->schema, *keyword);
}

static qn_status read_contains(array_shape *out, qn_gr_schema *s, const qn_gr_member *member) {
    json_t *schema = json_object_get(member->schema, "contains");
    const json_t *from = json_object_get(member->schema, QN_KEYWORD_FROM);
    contained one = {.min = 1, .max = QN_AST_MANY};
    bool found;
    if (!schema) return QN_OK;
    QN_TRY(qn_gr_schema_count(&one.min, &found, s, member, "minContains"));
    QN_TRY(qn_gr_schema_count(&one.max, &found, s, member, "maxContains"));
    if (one.min == 0 && one.max == QN_AST_MANY) return QN_OK;
    if (out->n_contains == CONTAINS_MAX)
        return QN_SCHEMA_FAIL(s, member->where, "contains", LIMIT, "more than %d for one array",
                              CONTAINS_MAX);
    one.from = (uint32_t)json_integer_value(from);
    one.member = (qn_gr_member){schema, qn_gr_where_add(s, member->where, "contains", 0), -1, 0};
    out->contains[out->n_contains++] = one;
    out->is_free = false;
    return QN_OK;
}

static qn_status read_counts(array_shape *out, qn_gr_schema *s, const qn_gr_member *member) {
    uint32_t min = 0, max = QN_AST_MANY;
    bool has_min, has_max;
    const char *keyword;
    const json_t *prefix = prefix_of(member);
    if (prefix && !json_is_array(prefix))
        return QN_SCHEMA_FAIL(s, member->where, "prefixItems", FORMAT, "not a list");
    QN_TRY(qn_gr_schema_count(&min, &has_min, s, member, "minItems"));
    QN_TRY(qn_gr_schema_count(&max, &has_max, s, member, "maxItems"));
    if (min > out->min) out->min = min;
    if (max < out->max) out->max = max;
    if (json_array_size(prefix) > out->n_prefix) out->n_prefix = json_array_size(prefix);
    if (has_min || has_max || prefix || rest_of(member, &keyword) ||
        json_object_get(member->schema, "unevaluatedItems"))
        out->is_free = false;
    return QN_OK;
}

static qn_status read_shape(array_shape *out, qn_gr_schema *s, const qn_gr_conj *all) {
    *out = (array_shape){.max = QN_AST_MANY, .is_free = true};
    for (size_t i = 0; i < all->n; i++) {
        QN_TRY(read_counts(out, s, &all->members[i]));
        QN_TRY(read_contains(out, s, &all->members[i]));
        if (!json_is_true(json_object_get(all->members[i].schema, "uniqueItems"))) continue;
        out->is_unique = true;
        out->unique = all->members[i].where;
        out->is_free = false;
    }
    if (out->n_prefix > out->max) out->n_prefix = out->max;
    if (out->n_prefix > PREFIX_MAX)
        return QN_SCHEMA_FAIL(s, all->members[0].where, "prefixItems", LIMIT, "more than %d",
                              PREFIX_MAX);
    return QN_OK;
}

// --- what an item may be -------------------------------------------------------------------------

// Whether item `at` is described by a schema that `member` names for the same array, or by itself.
static bool is_evaluated(const qn_gr_conj *all, size_t member, size_t at) {
    for (size_t i = 0; i < all->n; i++) {
        const char *keyword;
        if (!qn_gr_conj_speaks_for(all, i, member)) continue;
        if (at < json_array_size(prefix_of(&all->members[i])) ||
            rest_of(&all->members[i], &keyword))
            return true;
        if (i != member && json_object_get(all->members[i].schema, "unevaluatedItems")) return true;
    }
    return false;
}

static qn_status add_unevaluated(qn_gr_conj *conj, qn_gr_schema *s, const qn_gr_conj *all, size_t i,
                                 size_t at) {
    const qn_gr_member *member = &all->members[i];
    json_t *schema = json_object_get(member->schema, "unevaluatedItems");
    if (!schema || is_evaluated(all, i, at)) return QN_OK;
    for (size_t k = 0; k < all->n; k++)
        if (qn_gr_conj_speaks_for(all, k, i) && json_object_get(all->members[k].schema, "contains"))
            return QN_SCHEMA_FAIL(s, member->where, "unevaluatedItems", UNSUPPORTED,
                                  "not supported with `contains`");
    const qn_gr_where *where = qn_gr_where_add(s, member->where, "unevaluatedItems", 0);
    return qn_gr_conj_add(s, conj, (qn_gr_member){schema, where, -1, 0});
}

// The schemas of item `at`; beyond the prefix, of every other item.
static qn_status item_schemas(qn_gr_conj *conj, qn_gr_schema *s, const qn_gr_conj *all, size_t at) {
    for (size_t i = 0; i < all->n; i++) {
        const qn_gr_member *member = &all->members[i];
        json_t *prefix = prefix_of(member);
        const char *keyword;
        json_t *rest = rest_of(member, &keyword);
        if (at < json_array_size(prefix)) {
            const qn_gr_where *list = qn_gr_where_add(s, member->where, "prefixItems", 0);
            QN_TRY(qn_gr_conj_add(s, conj,
                                  (qn_gr_member){json_array_get(prefix, at),
                                                 qn_gr_where_add(s, list, NULL, at), -1, 0}));
        } else if (rest) {
            QN_TRY(qn_gr_conj_add(
                s, conj,
                (qn_gr_member){rest, qn_gr_where_add(s, member->where, keyword, 0), -1, 0}));
        }
        QN_TRY(add_unevaluated(conj, s, all, i, at));
    }
    return QN_OK;
}

static qn_status item_node(int32_t *out, qn_gr_schema *s, const qn_gr_conj *all, size_t at) {
    qn_gr_conj conj = {0};
    qn_status status = item_schemas(&conj, s, all, at);
    if (!status) status = qn_gr_schema_value(out, s, &conj);
    qn_gr_conj_deinit(&conj);
    return status;
}

// --- items that know nothing of each other -------------------------------------------------------

// The items after the first k, k >= 1, with their commas.
static qn_status add_rest(int32_t *out, qn_gr_schema *s, const qn_gr_conj *all,
                          const array_shape *shape) {
    const uint32_t n = (uint32_t)shape->n_prefix, done = n ? n : 1;
    int32_t item = QN_AST_NEVER;
    if (shape->max > done) QN_TRY(item_node(&item, s, all, n));
    const uint32_t max = shape->max == QN_AST_MANY ? QN_AST_MANY : shape->max - done;
    *out = qn_gr_rep(s->ast, qn_gr_seq(s->ast, s->parts.comma, item),
                     shape->min > done ? shape->min - done : 0, max);
    for (uint32_t k = n; k-- > 1;) {
        QN_TRY(item_node(&item, s, all, k));
        const int32_t tail = qn_gr_seq3(s->ast, s->parts.comma, item, *out);
        // A rule for each, or the tree would be as deep as the list is long.
        *out = qn_gr_shared(s->ast, "items", k >= shape->min ? qn_gr_maybe(s->ast, tail) : tail);
    }
    return QN_OK;
}

static qn_status plain_array(int32_t *out, qn_gr_schema *s, const qn_gr_conj *all,
                             const array_shape *shape) {
    int32_t first, rest, node = QN_AST_NEVER;
    if (shape->max > 0 && shape->min <= shape->max) {
        QN_TRY(item_node(&first, s, all, 0));
        QN_TRY(add_rest(&rest, s, all, shape));
        node = qn_gr_seq3(s->ast, s->parts.open_list, qn_gr_seq(s->ast, first, rest),
                          s->parts.close_list);
    }
    if (shape->min == 0) node = qn_gr_alt(s->ast, node, qn_gr_text(s->ast, qn_str_of("[]")));
    *out = node;
    return QN_OK;
}

// --- items that depend on those before -----------------------------------------------------------

// What the items so far leave to remember. No padding: it is a key.
typedef struct cell {
    uint32_t n;                   // items, as far as it matters
    uint32_t count[CONTAINS_MAX]; // that fulfil it, as far as it matters
    uint32_t used;                // values, as bits; or one more than the last one
} cell;

typedef struct builder {
    qn_gr_schema *s;
    const qn_gr_conj *all;
    const array_shape *shape;
    uint32_t max;               // positions that are told apart
    json_t *values[VALUES_MAX]; // of unique items: all that come up; borrowed
    size_t n_values;
    cell *cells;
    int32_t *rules;
    size_t n, cap, cap_rules;
    qn_map index;
} builder;

static qn_status intern(int32_t *rule, builder *b, const cell *c) {
    uint32_t at;
    if (qn_map_find(&b->index, (const char *)c, sizeof *c, &at)) {
        *rule = b->rules[at];
        return QN_OK;
    }
    const char *keyword = b->shape->is_unique ? "uniqueItems" : "contains";
    if (b->n == CELLS_MAX)
        return QN_SCHEMA_FAIL(b->s, b->all->members[0].where, keyword, LIMIT,
                              "more than %d combinations of items to tell apart", CELLS_MAX);
    const char *key = qn_arena_strdup(&b->s->arena, (const char *)c, sizeof *c);
    if (!key || !qn_grow((void **)&b->cells, &b->cap, b->n + 1, sizeof *b->cells) ||
        !qn_grow((void **)&b->rules, &b->cap_rules, b->n + 1, sizeof *b->rules) ||
        !qn_map_add(&b->index, key, sizeof *c, (uint32_t)b->n, NULL))
        return QN_NOMEM(b->s->err, "schema");
    b->cells[b->n] = *c;
    *rule = b->rules[b->n++] = qn_gr_ast_rule_add(b->s->ast, qn_str_of("items"));
    return qn_gr_schema_check_ast(b->s, b->all->members[0].where, keyword);
}

static bool may_end(const builder *b, const cell *c) {
    for (size_t i = 0; i < b->shape->n_contains; i++)
        if (c->count[i] < b->shape->contains[i].min) return false;
    return c->n >= b->shape->min;
}

// The cell after one more item, of which bit i of `fulfilled` says whether it counts for contains
// i.
static bool advance(cell *c, const builder *b, unsigned fulfilled) {
    for (size_t i = 0; i < b->shape->n_contains; i++) {
        const contained *one = &b->shape->contains[i];
        if (!(fulfilled >> i & 1) || c->n < one->from) continue;
        if (c->count[i] >= one->max) return false;
        if (one->max != QN_AST_MANY || c->count[i] < one->min) c->count[i]++;
    }
    if (c->n < b->max) c->n++;
    return true;
}

// Adds an item and what may follow it to *node.
static qn_status add_item(int32_t *node, builder *b, const cell *from, const cell *to,
                          int32_t item) {
    int32_t rule;
    qn_gr_ast *ast = b->s->ast;
    if (item == QN_AST_NEVER) return QN_OK;
    QN_TRY(intern(&rule, b, to));
    const int32_t before = from->n ? b->s->parts.comma : b->s->parts.open_list;
    *node = qn_gr_alt(ast, qn_gr_seq3(ast, before, item, qn_gr_ref(ast, rule)), *node);
    return QN_OK;
}

// Items by which `contains` they fulfil. Without an upper bound it does not matter whether one does
// not, so those are not told apart.
static qn_status add_signs(int32_t *node, builder *b, const cell *from, unsigned fulfilled) {
    const array_shape *shape = b->shape;
    qn_gr_schema *s = b->s;
    cell to = *from;
    qn_gr_conj conj = {0};
    if (!advance(&to, b, fulfilled)) return QN_OK;
    qn_status status = item_schemas(&conj, s, b->all, from->n);
    for (size_t i = 0; !status && i < shape->n_contains; i++) {
        qn_gr_member member = shape->contains[i].member;
        const bool counts = from->n >= shape->contains[i].from;
        const bool is_open = shape->contains[i].max == QN_AST_MANY;
        // Nothing changes by it: one way is enough.
        if ((fulfilled >> i & 1) &&
            (!counts || (is_open && from->count[i] >= shape->contains[i].min)))
            goto done;
        if (!(fulfilled >> i & 1)) {
            if (is_open || !counts) continue;
            status = qn_gr_schema_negated(&member.schema, s, member.schema, member.where);
        }
        if (!status) status = qn_gr_conj_add(s, &conj, member);
    }
    int32_t item;
    if (!status) status = qn_gr_schema_value(&item, s, &conj);
    if (!status) status = add_item(node, b, from, &to, item);
done:
    qn_gr_conj_deinit(&conj);
    return status;
}

// Items as values that are not used yet. Few values may come in any order; more come in theirs.
static qn_status add_values(int32_t *node, builder *b, const cell *from) {
    qn_gr_schema *s = b->s;
    const bool in_order = b->n_values > SUBSET_MAX;
    qn_gr_conj conj = {0};
    qn_status status = item_schemas(&conj, s, b->all, from->n);
    for (size_t v = 0; !status && v < b->n_values; v++) {
        bool valid = true;
        unsigned fulfilled = 0;
        if (in_order ? v < from->used : from->used >> v & 1) continue;
        for (size_t i = 0; !status && valid && i < conj.n; i++)
            status = qn_gr_schema_valid(&valid, s, b->values[v], conj.members[i].schema,
                                        conj.members[i].where, 0);
        for (size_t i = 0; !status && valid && i < b->shape->n_contains; i++) {
            bool counts = false;
            const qn_gr_member *member = &b->shape->contains[i].member;
            status = qn_gr_schema_valid(&counts, s, b->values[v], member->schema, member->where, 0);
            if (counts) fulfilled |= 1u << i;
        }
        cell to = *from;
        if (status || !valid || !advance(&to, b, fulfilled)) continue;
        to.used = in_order ? (uint32_t)v + 1 : from->used | 1u << v;
        int32_t item;
        status = qn_gr_schema_literal(&item, s, b->values[v], b->shape->unique, "uniqueItems");
        if (!status) status = add_item(node, b, from, &to, item);
    }
    qn_gr_conj_deinit(&conj);
    return status;
}

static qn_status expand(builder *b, size_t at) {
    const array_shape *shape = b->shape;
    const cell from = b->cells[at];
    int32_t node = QN_AST_NEVER;
    if (at == 0)
        node = may_end(b, &from) ? qn_gr_text(b->s->ast, qn_str_of("[]")) : QN_AST_NEVER;
    else if (may_end(b, &from))
        node = b->s->parts.close_list;
    QN_TRY(qn_gr_schema_spend(b->s, 32, b->all->members[0].where));
    const bool is_full = shape->max != QN_AST_MANY && from.n >= shape->max;
    if (!is_full && shape->is_unique) QN_TRY(add_values(&node, b, &from));
    for (unsigned signs = 0; !is_full && !shape->is_unique && signs < 1u << shape->n_contains;
         signs++)
        QN_TRY(add_signs(&node, b, &from, signs));
    qn_gr_ast_rule_set(b->s->ast, b->rules[at], node);
    return qn_gr_schema_check_ast(b->s, b->all->members[0].where, NULL);
}

// The values of every item of an array with unique items; *found: whether they are finitely many.
static qn_status find_values(bool *found, builder *b) {
    *found = true;
    const size_t n_places = b->shape->n_prefix + (b->shape->max > b->shape->n_prefix);
    for (size_t at = 0; *found && at < n_places; at++) {
        qn_gr_conj conj = {0};
        json_t *values = NULL;
        qn_status status = item_schemas(&conj, b->s, b->all, at);
        if (!status) status = qn_gr_schema_values(&values, b->s, &conj);
        *found = values != NULL || qn_gr_conj_is_false(&conj);
        for (size_t i = 0; !status && *found && i < json_array_size(values); i++) {
            json_t *value = json_array_get(values, i);
            size_t k = 0;
            status = qn_gr_schema_spend(b->s, 16 + b->n_values, b->all->members[0].where);
            for (bool same = false; !status && k < b->n_values; k++) {
                status = qn_gr_schema_equals(&same, b->s, b->values[k], value, b->shape->unique);
                if (same) break;
            }
            if (status) break;
            if (k == VALUES_MAX) *found = false;
            if (*found && k == b->n_values) b->values[b->n_values++] = value;
        }
        qn_gr_conj_deinit(&conj);
        QN_TRY(status);
    }
    return QN_OK;
}

static qn_status dependent_array(int32_t *out, builder *b) {
    const array_shape *shape = b->shape;
    b->max = shape->max;
    if (shape->max == QN_AST_MANY) {
        b->max = shape->min > shape->n_prefix ? shape->min : (uint32_t)shape->n_prefix;
        for (size_t i = 0; i < shape->n_contains; i++)
            if (shape->contains[i].from > b->max) b->max = shape->contains[i].from;
        if (b->max == 0) b->max = 1; // the first has no comma before it
    }
    int32_t rule;
    const cell start = {0};
    QN_TRY(intern(&rule, b, &start));
    for (size_t i = 0; i < b->n; i++) QN_TRY(expand(b, i));
    *out = qn_gr_ref(b->s->ast, rule);
    return QN_OK;
}

static qn_status build(int32_t *out, builder *b, array_shape *shape) {
    bool found = true;
    if (shape->is_unique && shape->max <= 1) shape->is_unique = false;
    if (shape->is_unique) QN_TRY(find_values(&found, b));
    if (!found) {
        QN_TRY(qn_gr_schema_ignore(b->s, shape->unique, "uniqueItems",
                                   "supported for items of finitely many values (enum, const, "
                                   "boolean, null)"));
        shape->is_unique = false;
    }
    if (!shape->is_unique && !shape->n_contains) return plain_array(out, b->s, b->all, shape);
    return dependent_array(out, b);
}

qn_status qn_gr_schema_array(int32_t *out, qn_gr_schema *s, const qn_gr_conj *all) {
    array_shape shape;
    QN_TRY(read_shape(&shape, s, all));
    *out = s->parts.array;
    if (shape.is_free) return QN_OK;
    builder b = {.s = s, .all = all, .shape = &shape};
    const qn_status status = build(out, &b, &shape);
    qn_free(b.cells);
    qn_free(b.rules);
    qn_map_deinit(&b.index);
    return status;
}
