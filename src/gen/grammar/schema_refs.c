// References within a schema: pointers, anchors, and resources that have an address of their own
// ($id). The whole is walked once; what lies where no schema is expected is walked when a reference
// leads there.
#include "core/chars.h"
#include "core/mem.h"
#include "gen/grammar/schema.h"

#include <ctype.h>

// --- addresses -----------------------------------------------------------------------------------

static size_t fragment_at(qn_str uri) {
    const char *hash = uri.size ? memchr(uri.data, '#', uri.size) : NULL;
    return hash ? (size_t)(hash - uri.data) : uri.size;
}

// Bytes of "scheme:", 0 if there is none.
static size_t scheme_size(qn_str uri) {
    size_t n = 0;
    while (n < uri.size && (isalnum((unsigned char)uri.data[n]) || strchr("+.-", uri.data[n]))) n++;
    return n && n < uri.size && uri.data[n] == ':' && isalpha((unsigned char)uri.data[0]) ? n + 1
                                                                                          : 0;
}

// Bytes of "scheme://authority".
static size_t authority_size(qn_str uri) {
    size_t n = scheme_size(uri);
    if (uri.size < n + 2 || memcmp(uri.data + n, "//", 2) != 0) return n;
    n += 2;
    while (n < uri.size && !strchr("/?#", uri.data[n])) n++;
    return n;
}

// Leaves out "./" and "x/../" from `from` on.
static void remove_dots(qn_buf *uri, size_t from) {
    size_t to = from;
    for (size_t at = from; at < uri->size;) {
        size_t end = at + 1;
        while (end < uri->size && uri->data[end] != '/') end++;
        const size_t n = end - at;
        const bool is_here = n == 2 && !memcmp(uri->data + at, "/.", 2);
        const bool is_up = n == 3 && !memcmp(uri->data + at, "/..", 3);
        if (is_up)
            while (to > from && uri->data[--to] != '/') {
            }
        if ((is_up || is_here) && end == uri->size) uri->data[to++] = '/';
        if (!is_up && !is_here) {
            memmove(uri->data + to, uri->data + at, n);
            to += n;
        }
        at = end;
    }
    if (uri->data) uri->data[to] = 0;
    uri->size = to;
}

// An address against the one of the place where it is, without its fragment.
static void join_address(qn_buf *out, qn_str base, qn_str uri) {
    uri.size = fragment_at(uri);
    const size_t authority = authority_size(base);
    qn_buf_clear(out);
    if (uri.size == 0) {
        qn_buf_add(out, base.data, base.size);
        return;
    }
    if (scheme_size(uri)) {
        qn_buf_add(out, uri.data, uri.size);
    } else if (uri.size > 1 && !memcmp(uri.data, "//", 2)) {
        qn_buf_add(out, base.data, scheme_size(base));
        qn_buf_add(out, uri.data, uri.size);
    } else if (uri.data[0] == '/') {
        qn_buf_add(out, base.data, authority);
        qn_buf_add(out, uri.data, uri.size);
    } else {
        size_t n = base.size;
        while (n > authority && base.data[n - 1] != '/') n--;
        qn_buf_add(out, base.data, n);
        if (n == authority && n) qn_buf_text(out, "/");
        qn_buf_add(out, uri.data, uri.size);
    }
    if (!out->failed) {
        const size_t from = authority_size((qn_str){out->data, out->size});
        if (from < out->size && out->data[from] == '/') remove_dots(out, from);
    }
}

// --- the index -----------------------------------------------------------------------------------

static const char *id_of(const qn_gr_schema *s, const json_t *schema) {
    if (s->ref_alone && json_object_get(schema, "$ref")) return NULL;
    return json_string_value(json_object_get(schema, s->draft == 4 ? "id" : "$id"));
}

// Names `schema` by `key` (in the arena); the first of a name counts.
static qn_status add_key(qn_gr_schema *s, qn_str key, json_t *schema) {
    if (!qn_grow((void **)&s->targets, &s->cap_targets, s->n_targets + 1, sizeof *s->targets) ||
        !qn_map_add(&s->target_index, key.data, key.size, (uint32_t)s->n_targets, NULL))
        return QN_NOMEM(s->err, "schema");
    s->targets[s->n_targets++] = schema;
    return QN_OK;
}

static qn_status add_target(qn_gr_schema *s, const char *key, json_t *schema) {
    return key ? add_key(s, qn_str_of(key), schema) : QN_NOMEM(s->err, "schema");
}

// What a dynamic anchor is known by, among addresses: a zero byte, which none of those has, and the
// name. Its data is NULL without memory.
static qn_str dynamic_key(qn_gr_schema *s, const char *name) {
    const size_t n = strlen(name);
    char *key = qn_arena_alloc(&s->arena, n + 1, 1);
    if (key) {
        key[0] = 0;
        memcpy(key + 1, name, n);
    }
    return (qn_str){key, n + 1};
}

static const char *join_name(qn_gr_schema *s, const char *base, const char *name) {
    qn_buf text = {0};
    qn_buf_printf(&text, "%s#%s", base, name);
    const char *kept = text.failed ? NULL : qn_arena_strdup(&s->arena, text.data, text.size);
    qn_buf_deinit(&text);
    return kept;
}

// The address of a schema that has an $id; *base is changed to it.
static qn_status add_resource(const char **base, qn_gr_schema *s, json_t *schema, const char *id) {
    const qn_str given = qn_str_of(id);
    const size_t fragment = fragment_at(given);
    // In the older drafts "#name" is an anchor.
    if (fragment < given.size && fragment + 1 < given.size && id[fragment + 1] != '/')
        QN_TRY(add_target(s, join_name(s, *base, id + fragment + 1), schema));
    if (fragment == 0) return QN_OK;
    qn_buf address = {0};
    join_address(&address, qn_str_of(*base), given);
    const char *kept =
        address.failed ? NULL : qn_arena_strdup(&s->arena, address.data, address.size);
    qn_buf_deinit(&address);
    QN_TRY(add_target(s, kept, schema));
    *base = kept;
    return QN_OK;
}

static qn_status add_anchors(qn_gr_schema *s, json_t *schema, const char *base) {
    const char *anchor = json_string_value(json_object_get(schema, "$anchor"));
    const char *dynamic = json_string_value(json_object_get(schema, "$dynamicAnchor"));
    if (anchor) QN_TRY(add_target(s, join_name(s, base, anchor), schema));
    if (dynamic) {
        QN_TRY(add_target(s, join_name(s, base, dynamic), schema));
        // Counted by name alone: a reference is static where there is only one.
        const qn_str key = dynamic_key(s, dynamic);
        uint32_t at;
        if (!key.data) return QN_NOMEM(s->err, "schema");
        if (qn_map_find(&s->target_index, key.data, key.size, &at))
            s->targets[at] = NULL;
        else
            QN_TRY(add_key(s, key, schema));
    }
    if (json_is_true(json_object_get(schema, "$recursiveAnchor"))) s->n_recursive_anchors++;
    return QN_OK;
}

typedef struct to_walk {
    json_t *schema;
    const char *base;
    const qn_gr_where *where;
} to_walk;

typedef struct walk {
    qn_gr_schema *s;
    to_walk *items;
    size_t n, cap;
} walk;

static qn_status want(walk *w, json_t *schema, const char *base, const qn_gr_where *where) {
    if (!json_is_object(schema)) return QN_OK;
    if (!qn_grow((void **)&w->items, &w->cap, w->n + 1, sizeof *w->items))
        return QN_NOMEM(w->s->err, "schema");
    w->items[w->n++] = (to_walk){schema, base, where};
    return QN_OK;
}

static qn_status want_inner(walk *w, json_t *value, const char *keyword, const char *base,
                            const qn_gr_where *up) {
    const qn_gr_inner inner = qn_gr_schema_inner(keyword);
    const char *key;
    json_t *one;
    size_t i;
    if (inner == QN_INNER_NONE) return QN_OK;
    const qn_gr_where *where = qn_gr_where_add(w->s, up, keyword, 0);
    if (inner == QN_INNER_MAP) {
        json_object_foreach(value, key, one)
            QN_TRY(want(w, one, base, qn_gr_where_add(w->s, where, key, 0)));
        return QN_OK;
    }
    json_array_foreach(value, i, one)
        QN_TRY(want(w, one, base, qn_gr_where_add(w->s, where, NULL, i)));
    return inner == QN_INNER_ONE ? want(w, value, base, where) : QN_OK;
}

static bool base_of(const char **out, const qn_gr_schema *s, const json_t *schema) {
    uint32_t at;
    const json_t *key = schema;
    if (!qn_map_find(&s->base_index, (const char *)&key, sizeof key, &at)) return false;
    *out = s->bases[at];
    return true;
}

bool qn_gr_schema_is_given(const qn_gr_schema *s, const json_t *schema) {
    const char *base;
    return base_of(&base, s, schema);
}

const qn_gr_where *qn_gr_schema_place(qn_gr_schema *s, const json_t *schema,
                                      const qn_gr_where *where) {
    uint32_t at;
    const json_t *key = schema;
    const bool is_given = qn_map_find(&s->base_index, (const char *)&key, sizeof key, &at);
    const bool is_made = where && where->is_made;
    if (is_given) return is_made ? s->places[at] : where;
    return is_made ? where : qn_gr_where_made(s, where);
}

static qn_status visit(walk *w, to_walk at) {
    qn_gr_schema *s = w->s;
    const char *id = id_of(s, at.schema), *keyword, *base = at.base;
    json_t *value, **key = qn_arena_alloc(&s->arena, 1, sizeof *key);
    if (base_of(&base, s, at.schema)) return QN_OK;
    QN_TRY(qn_gr_schema_spend(s, 16, NULL));
    if (id) QN_TRY(add_resource(&base, s, at.schema, id));
    QN_TRY(add_anchors(s, at.schema, base));
    if (!key || !qn_grow((void **)&s->bases, &s->cap_bases, s->n_bases + 1, sizeof *s->bases) ||
        !qn_grow((void **)&s->places, &s->cap_places, s->n_bases + 1, sizeof *s->places))
        return QN_NOMEM(s->err, "schema");
    *key = at.schema;
    s->bases[s->n_bases] = base;
    s->places[s->n_bases] = at.where;
    if (!qn_map_add(&s->base_index, (const char *)key, sizeof *key, (uint32_t)s->n_bases++, NULL))
        return QN_NOMEM(s->err, "schema");
    if (json_object_get(at.schema, "unevaluatedProperties") ||
        json_object_get(at.schema, "unevaluatedItems"))
        s->has_unevaluated = true;
    json_object_foreach(at.schema, keyword, value)
        QN_TRY(want_inner(w, value, keyword, base, at.where));
    return qn_gr_ast_check(s->ast, s->err); // a place that found no memory
}

static qn_status walk_from(qn_gr_schema *s, json_t *schema, const char *base,
                           const qn_gr_where *where) {
    walk w = {.s = s};
    qn_status status = want(&w, schema, base, where);
    while (!status && w.n) status = visit(&w, w.items[--w.n]);
    qn_free(w.items);
    return status;
}

qn_status qn_gr_schema_index(qn_gr_schema *s) {
    QN_TRY(add_target(s, "", s->root));
    return walk_from(s, s->root, "", NULL);
}

// --- looking up ----------------------------------------------------------------------------------

// One step of a pointer, with %XX, ~0 and ~1 read; returns where it ends.
static const char *read_step(qn_buf *out, const char *at) {
    qn_buf_clear(out);
    for (; *at && *at != '/'; at++) {
        char c = *at;
        if (c == '%' && qn_hex_digit(at[1]) >= 0 && qn_hex_digit(at[2]) >= 0) {
            c = (char)(qn_hex_digit(at[1]) * 16 + qn_hex_digit(at[2]));
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

// *out is NULL if nothing is there.
static qn_status follow_pointer(json_t **out, qn_gr_schema *s, json_t *root, const char *pointer) {
    json_t *at = root;
    qn_buf step = {0};
    for (const char *p = pointer; *p == '/' && at;) {
        p = read_step(&step, p + 1);
        at = step_into(at, &step);
    }
    const bool failed = step.failed;
    qn_buf_deinit(&step);
    if (failed) return QN_NOMEM(s->err, "schema");
    *out = at;
    return QN_OK;
}

static json_t *find_key(const qn_gr_schema *s, qn_str key) {
    uint32_t at;
    return qn_map_find(&s->target_index, key.data, key.size, &at) ? s->targets[at] : NULL;
}

static json_t *find_target(const qn_gr_schema *s, const char *key) {
    return find_key(s, qn_str_of(key));
}

// What `text` names for a schema whose address is `base`; NULL if nothing.
static qn_status look_up(json_t **out, qn_gr_schema *s, const char *base, const char *text,
                         const char **new_base) {
    qn_buf address = {0};
    const qn_str given = qn_str_of(text);
    const size_t fragment = fragment_at(given);
    const char *rest = fragment < given.size ? text + fragment + 1 : "";
    qn_status status = QN_OK;
    join_address(&address, qn_str_of(base), given);
    const char *at =
        address.failed ? NULL
                       : qn_arena_strdup(&s->arena, address.data ? address.data : "", address.size);
    qn_buf_deinit(&address);
    if (!at) return QN_NOMEM(s->err, "schema");
    json_t *root = find_target(s, at);
    *new_base = at;
    *out = root;
    if (rest[0] == '/' && root) {
        status = follow_pointer(out, s, root, rest);
    } else if (rest[0]) {
        const char *key = join_name(s, at, rest);
        if (!key) return QN_NOMEM(s->err, "schema");
        *out = find_target(s, key);
    }
    return status;
}

// A dynamic reference is static where only one schema has the anchor.
static qn_status check_dynamic(qn_gr_schema *s, const qn_gr_member *member, const char *keyword,
                               const json_t *target, const char *text) {
    bool is_static = true;
    if (!strcmp(keyword, "$recursiveRef")) {
        is_static =
            s->n_recursive_anchors == 0 ||
            (s->n_recursive_anchors == 1 &&
             json_is_true(json_object_get(s->root, "$recursiveAnchor")) && target == s->root);
    } else if (!strcmp(keyword, "$dynamicRef")) {
        const char *name = json_string_value(json_object_get(target, "$dynamicAnchor"));
        const char *hash = strchr(text, '#');
        if (name && hash && !strcmp(hash + 1, name)) {
            const qn_str key = dynamic_key(s, name);
            if (!key.data) return QN_NOMEM(s->err, "schema");
            is_static = find_key(s, key) == target;
        }
    }
    if (is_static) return QN_OK;
    return QN_SCHEMA_FAIL(s, member->where, keyword, UNSUPPORTED,
                          "'%s': more than one schema has this anchor", text);
}

qn_status qn_gr_schema_resolve(json_t **out, qn_gr_schema *s, const qn_gr_member *member,
                               const char *keyword) {
    const char *text = json_string_value(json_object_get(member->schema, keyword));
    const char *base = "", *target_base;
    json_t *target;
    if (!text) return QN_SCHEMA_FAIL(s, member->where, keyword, FORMAT, "not a string");
    QN_TRY(qn_gr_schema_spend(s, 16 + strlen(text), member->where));
    base_of(&base, s, member->schema);
    QN_TRY(look_up(&target, s, base, text, &target_base));
    if (!target && text[0] != '#' && !find_target(s, target_base)) {
        QN_TRY(qn_gr_schema_ignore(s, member->where, keyword,
                                   "'%.100s': only references within the schema are supported",
                                   text));
        target = json_true();
    }
    if (!target)
        return QN_SCHEMA_FAIL(s, member->where, keyword, FORMAT, "'%s' is not there", text);
    QN_TRY(check_dynamic(s, member, keyword, target, text));
    // Usually it was walked already. If not, a pointer goes where no keyword leads.
    const char *pointer = strstr(text, "#/");
    QN_TRY(walk_from(s, target, target_base,
                     pointer ? qn_gr_where_add(s, NULL, pointer + 2, 0) : member->where));
    *out = target;
    return QN_OK;
}
