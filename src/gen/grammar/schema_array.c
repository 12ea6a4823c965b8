// Arrays: items one by one (prefixItems), then the rest in a counted loop.
#include "gen/grammar/schema.h"

enum { PREFIX_MAX = 4096 };

typedef struct array_shape {
    uint32_t min, max;
    size_t n_prefix;
    bool is_free; // no keyword says anything
} array_shape;

// In the older drafts a list of schemas in `items` is what prefixItems is now, and additionalItems
// what `items` is.
static json_t *prefix_of(const qn_member *member) {
    json_t *items = json_object_get(member->schema, "items");
    return json_is_array(items) ? items : json_object_get(member->schema, "prefixItems");
}

static json_t *rest_of(const qn_member *member, const char **keyword) {
    *keyword =
        json_is_array(json_object_get(member->schema, "items")) ? "additionalItems" : "items";
    return json_object_get(member->schema, *keyword);
}

static qn_status read_shape(array_shape *out, qn_schema *s, const qn_conj *all) {
    *out = (array_shape){.max = QN_AST_MANY, .is_free = true};
    const char *keyword;
    for (size_t i = 0; i < all->n; i++) {
        const qn_member *member = &all->members[i];
        uint32_t min = 0, max = QN_AST_MANY;
        bool has_min, has_max;
        const json_t *prefix = prefix_of(member);
        if (prefix && !json_is_array(prefix))
            return QN_SCHEMA_FAIL(s, member->where, "prefixItems", FORMAT, "not a list");
        QN_TRY(qn_schema_count(&min, &has_min, s, member, "minItems"));
        QN_TRY(qn_schema_count(&max, &has_max, s, member, "maxItems"));
        if (min > out->min) out->min = min;
        if (max < out->max) out->max = max;
        if (json_array_size(prefix) > out->n_prefix) out->n_prefix = json_array_size(prefix);
        if (has_min || has_max || prefix || rest_of(member, &keyword)) out->is_free = false;
    }
    for (size_t i = 0; i < all->n; i++)
        if (json_is_true(json_object_get(all->members[i].schema, "uniqueItems")) && out->max > 1)
            return QN_SCHEMA_FAIL(s, all->members[i].where, "uniqueItems", UNSUPPORTED,
                                  "not supported for more than one item");
    if (out->n_prefix > out->max) out->n_prefix = out->max;
    if (out->n_prefix > PREFIX_MAX)
        return QN_SCHEMA_FAIL(s, all->members[0].where, "prefixItems", LIMIT, "more than %d",
                              PREFIX_MAX);
    return QN_OK;
}

// The schemas of item `at`; beyond the prefix, of every other item.
static qn_status item_node(int32_t *out, qn_schema *s, const qn_conj *all, size_t at) {
    qn_conj conj = {0};
    qn_status status = QN_OK;
    for (size_t i = 0; !status && i < all->n; i++) {
        const qn_member *member = &all->members[i];
        json_t *prefix = prefix_of(member);
        const char *keyword;
        json_t *rest = rest_of(member, &keyword);
        if (at < json_array_size(prefix)) {
            const qn_where *list = qn_where_add(s, member->where, "prefixItems", 0);
            status = qn_conj_add(
                s, &conj,
                (qn_member){json_array_get(prefix, at), qn_where_add(s, list, NULL, at), -1, 0});
        } else if (rest) {
            status = qn_conj_add(
                s, &conj, (qn_member){rest, qn_where_add(s, member->where, keyword, 0), -1, 0});
        }
    }
    if (!status) status = qn_schema_value(out, s, &conj);
    qn_conj_deinit(&conj);
    return status;
}

// The items behind the first k, k >= 1, with their commas.
static qn_status add_rest(int32_t *out, qn_schema *s, const qn_conj *all,
                          const array_shape *shape) {
    const uint32_t n = (uint32_t)shape->n_prefix, done = n ? n : 1;
    int32_t item = QN_AST_NEVER;
    if (shape->max > done) QN_TRY(item_node(&item, s, all, n));
    const uint32_t most = shape->max == QN_AST_MANY ? QN_AST_MANY : shape->max - done;
    *out = qn_ast_rep(s->ast, qn_ast_seq(s->ast, s->parts.comma, item),
                      shape->min > done ? shape->min - done : 0, most);
    for (uint32_t k = n; k-- > 1;) {
        QN_TRY(item_node(&item, s, all, k));
        const int32_t tail = qn_ast_seq3(s->ast, s->parts.comma, item, *out);
        // A rule for each, or the tree would be as deep as the list is long.
        *out = qn_ast_shared(s->ast, "items", k >= shape->min ? qn_ast_maybe(s->ast, tail) : tail);
    }
    return QN_OK;
}

qn_status qn_schema_array(int32_t *out, qn_schema *s, const qn_conj *all) {
    array_shape shape;
    int32_t first, rest, node = QN_AST_NEVER;
    QN_TRY(read_shape(&shape, s, all));
    *out = s->parts.array;
    if (shape.is_free) return QN_OK;
    if (shape.max > 0 && shape.min <= shape.max) {
        QN_TRY(item_node(&first, s, all, 0));
        QN_TRY(add_rest(&rest, s, all, &shape));
        node = qn_ast_seq3(s->ast, s->parts.open_list, qn_ast_seq(s->ast, first, rest),
                           s->parts.close_list);
    }
    if (shape.min == 0) node = qn_ast_alt(s->ast, node, qn_ast_text(s->ast, qn_str_of("[]")));
    *out = node;
    return QN_OK;
}
