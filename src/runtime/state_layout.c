// What a page and a slot look like: layers with the same window share a page, all recurrent layers
// share a slot. Groups and numbers are those of the whole graph; a device keeps what its plan has,
// which is all of a cache or state, a rank's share of it, or nothing.
#include "runtime/state_int.h"

#include "core/mem.h"

#include <string.h>

typedef struct layout_call {
    qn_state_layout *layout;
    const qn_graph *graph;
    const qn_state_part *parts; // (layout->n_parts)
    const qn_kv_type *type;
    // (n_values) number of the cache or state that a value is a version of, and by number: the
    // widest window that reads the cache (-1: none does), the longest log row of the state.
    int32_t *origin;
    int64_t *windows, *log_sizes;
    qn_err *err;
} layout_call;

static bool is_kept_kind(qn_kind kind) { return kind == QN_CACHE || kind == QN_STATE_VALUE; }

static bool align_up(int64_t *n) {
    if (!qn_i64_add(n, *n, QN_STATE_ALIGN - 1)) return false;
    *n -= *n % QN_STATE_ALIGN;
    return true;
}

// A window of 0 is wider than all others.
static int64_t wider(int64_t a, int64_t b) {
    if (a < 0) return b;
    if (a == 0 || b == 0) return 0;
    return a > b ? a : b;
}

// What a node does with a cache or state that it reads; its new version is made by the same node.
static qn_status read_input(const layout_call *c, const qn_node *node, int32_t number,
                            qn_kind kind) {
    const qn_op_info *info = qn_op_get(node->op);
    if (kind == QN_CACHE && info->attrs >> QN_ATTR_window & 1u) {
        if (node->attrs.window < 0)
            return QN_FAIL(c->err, FORMAT, "%s: window %lld, want 0 or more", info->name,
                           (long long)node->attrs.window);
        c->windows[number] = wider(c->windows[number], node->attrs.window);
    }
    if (kind == QN_STATE_VALUE) {
        const int64_t size = qn_log_size(c->graph, node);
        if (size > c->log_sizes[number]) {
            c->log_sizes[number] = size;
            c->layout->rules[number] = qn_log_rule_of(c->graph, node);
        }
    }
    for (int o = 0; o < node->n_out; o++) {
        if (c->graph->values[node->out[o]].kind == kind) c->origin[node->out[o]] = number;
    }
    return QN_OK;
}

// Numbers the caches and states, and learns who reads them.
static qn_status read_graph(const layout_call *c) {
    int32_t n_caches = 0, n_states = 0;
    for (size_t i = 0; i < c->graph->n_nodes; i++) {
        const qn_node *node = &c->graph->nodes[i];
        if (node->op == QN_OP_INPUT) {
            const qn_kind kind = c->graph->values[node->out[0]].kind;
            if (kind == QN_CACHE) c->origin[node->out[0]] = n_caches++;
            if (kind == QN_STATE_VALUE) c->origin[node->out[0]] = n_states++;
        }
        for (int k = 0; k < node->n_in; k++) {
            const int32_t id = node->in[k];
            if (id < 0 || !is_kept_kind(c->graph->values[id].kind)) continue;
            QN_TRY(read_input(c, node, c->origin[id], c->graph->values[id].kind));
        }
    }
    return QN_OK;
}

static int64_t find_group(qn_state_layout *layout, int64_t window) {
    int64_t g = 0;
    while (g < layout->n_groups && layout->groups[g].window != window) g++;
    if (g == layout->n_groups) layout->groups[layout->n_groups++].window = window;
    return g;
}

// Values of all positions of a page fit 63 bits, so that no backend has to check.
static qn_status check_shape(const qn_value *value, int n_dims, qn_err *err) {
    const qn_shape *shape = &value->shape;
    int64_t n = QN_PAGE_ROWS * 2 * (int64_t)sizeof(float);
    bool is_sized = shape->n_dims == n_dims || n_dims == 0;
    for (int d = 0; d < shape->n_dims; d++)
        is_sized = is_sized && shape->dims[d].sym == QN_SYM_ONE && shape->dims[d].n > 0 &&
                   qn_i64_mul(&n, n, shape->dims[d].n);
    char text[96];
    return is_sized ? QN_OK
                    : QN_FAIL(err, LIMIT, "%s: shape %s, want %s known size below 2^63 bytes",
                              value->name, qn_shape_text(text, sizeof text, shape),
                              n_dims ? "3 dimensions of" : "a");
}

// What is kept of a cache or state: by which part, and how much.
typedef struct kept {
    int32_t part;
    qn_shape shape; // all 0: nothing, this rank has no share of it
} kept;

// A part without a plan keeps what no other one does.
static kept find_kept(const layout_call *c, qn_place place, const qn_value *value) {
    kept k = {.shape = {value->shape.n_dims, {{0}}}};
    for (size_t p = 0; p < c->layout->n_parts; p++) {
        const qn_plan *plan = c->parts[p].plan;
        for (size_t i = 0; plan && i < plan->n_leaves[place]; i++) {
            const qn_plan_leaf *leaf = &plan->leaves[place][i];
            if (strcmp(leaf->name, value->name) == 0) return (kept){(int32_t)p, leaf->shape};
        }
        if (!plan) k = (kept){(int32_t)p, value->shape};
    }
    return k;
}

static int64_t count_of(const qn_shape *shape) {
    int64_t n = 1;
    for (int d = 0; d < shape->n_dims; d++) n *= shape->dims[d].n;
    return n;
}

// A share of a cache or state is a part of one axis; all else is as in the whole.
static qn_status check_kept(const kept *k, const qn_value *value, qn_err *err) {
    const qn_shape *own = &k->shape, *whole = &value->shape;
    bool fits = own->n_dims == whole->n_dims;
    int n_smaller = 0;
    for (int d = 0; d < own->n_dims && fits; d++) {
        fits = own->dims[d].n <= whole->dims[d].n;
        n_smaller += own->dims[d].n < whole->dims[d].n;
    }
    char text_own[96], text_whole[96];
    if (fits && (n_smaller < 2 || count_of(own) == 0)) return QN_OK;
    return QN_FAIL(err, FORMAT, "%s: the plan has %s of %s", value->name,
                   qn_shape_text(text_own, sizeof text_own, own),
                   qn_shape_text(text_whole, sizeof text_whole, whole));
}

static qn_status copy_name(const char **out, qn_state_layout *layout, const char *name,
                           qn_err *err) {
    const char *copy = qn_arena_strdup(&layout->arena, name, strlen(name));
    if (!copy) return QN_NOMEM(err, "layout of sequence state");
    *out = copy;
    return QN_OK;
}

static int64_t cache_bytes(const layout_call *c, int32_t part, int64_t heads, const qn_dim *d) {
    return c->parts[part].device->backend->cache_bytes(c->type->type, heads, d[1].n, d[2].n);
}

static qn_status add_cache(const layout_call *c, const qn_value *value) {
    qn_state_layout *layout = c->layout;
    QN_TRY(check_shape(value, 3, c->err));
    const kept k = find_kept(c, QN_PLACE_CACHE, value);
    QN_TRY(check_kept(&k, value, c->err));
    const qn_dim *d = value->shape.dims; // (K, E, F)
    const int64_t heads = k.shape.dims[0].n, window = c->windows[layout->n_caches];
    const int64_t g = find_group(layout, window < 0 ? 0 : window);
    int64_t *page_bytes = &layout->parts[k.part].page_bytes[g];
    const int64_t bytes = cache_bytes(c, k.part, heads, d);
    QN_TRY(copy_name(&layout->cache_names[layout->n_caches], layout, value->name, c->err));
    layout->cache_parts[layout->n_caches] = k.part;
    layout->caches[layout->n_caches++] = (qn_cache_view){.offset = *page_bytes,
                                                         .layer_bytes = bytes,
                                                         .group = g,
                                                         .type = c->type->type,
                                                         .is_rotated = c->type->is_rotated,
                                                         .heads = heads,
                                                         .k_size = d[1].n,
                                                         .v_size = d[2].n};
    // Where other ranks have a head each, a page counts as much here.
    const int64_t counted = heads == 0 ? cache_bytes(c, k.part, 1, d) : 0;
    if (!qn_i64_add(&layout->groups[g].page_bytes, layout->groups[g].page_bytes, counted) ||
        bytes < 0 || (bytes == 0) != (heads == 0) || !qn_i64_add(page_bytes, *page_bytes, bytes) ||
        !align_up(page_bytes))
        return QN_FAIL(c->err, LIMIT, "%s: %lld bytes in a page of %lld: too large", value->name,
                       (long long)bytes, (long long)*page_bytes);
    return QN_OK;
}

// A rule of which a rank has `own` of `whole` channels or heads, and as much of the log.
static qn_log_rule share_of_rule(const qn_log_rule *rule, int64_t own, int64_t whole) {
    qn_log_rule share = *rule;
    share.log_size = rule->log_size / whole * own;
    share.channels = rule->channels / whole * own;
    share.heads = rule->heads / whole * own;
    share.key_heads = rule->key_heads / whole * own;
    return share;
}

// A rule of all, or of a share: numbers of the state are in proportion to what is shared.
static qn_log_rule own_rule(const qn_log_rule *rule, int64_t own, int64_t whole) {
    const bool is_conv = rule->op == QN_OP_CONV;
    const int64_t units = is_conv ? rule->channels : rule->key_heads;
    return units > 0 ? share_of_rule(rule, own / (whole / units), units) : *rule;
}

static qn_status add_state(const layout_call *c, const qn_value *value) {
    qn_state_layout *layout = c->layout;
    const size_t i = layout->n_slots++;
    QN_TRY(check_shape(value, 0, c->err));
    const kept k = find_kept(c, QN_PLACE_STATE, value);
    QN_TRY(check_kept(&k, value, c->err));
    state_part *part = &layout->parts[k.part];
    const int64_t whole = count_of(&value->shape), size = count_of(&k.shape);
    int64_t bytes = 0;
    if (c->log_sizes[i] < 1)
        return QN_FAIL(c->err, FORMAT, "%s: a log of %lld numbers a row, want 1 or more",
                       value->name, (long long)c->log_sizes[i]);
    if (size != whole) layout->rules[i] = own_rule(&layout->rules[i], size, whole);
    QN_TRY(copy_name(&layout->slot_names[i], layout, value->name, c->err));
    layout->slot_parts[i] = k.part;
    layout->slots[i] = (qn_slots_view){.offset = part->states_bytes,
                                       .state_size = size,
                                       .log_rows = QN_LOG_ROWS,
                                       .log_size = layout->rules[i].log_size};
    if (size == 0) layout->slot_bytes += QN_STATE_ALIGN; // it counts for something, as a page
    if (!qn_i64_mul(&bytes, size, sizeof(float)) ||
        !qn_i64_add(&part->states_bytes, part->states_bytes, bytes) ||
        !align_up(&part->states_bytes))
        return QN_FAIL(c->err, LIMIT, "%s: %lld numbers after %lld bytes of a slot: too large",
                       value->name, (long long)size, (long long)part->states_bytes);
    return QN_OK;
}

static qn_status place_logs(qn_state_layout *layout, qn_err *err) {
    for (size_t p = 0; p < layout->n_parts; p++)
        layout->parts[p].slot_bytes = layout->parts[p].states_bytes;
    for (size_t i = 0; i < layout->n_slots; i++) {
        qn_slots_view *view = &layout->slots[i];
        int64_t *slot_bytes = &layout->parts[layout->slot_parts[i]].slot_bytes, bytes;
        view->log_offset = *slot_bytes;
        if (!qn_i64_mul(&bytes, view->log_size, QN_LOG_ROWS * sizeof(float)) ||
            !qn_i64_add(slot_bytes, *slot_bytes, bytes) || !align_up(slot_bytes))
            return QN_FAIL(err, LIMIT,
                           "state %zu: log rows of %lld numbers in a slot of %lld bytes", i,
                           (long long)view->log_size, (long long)*slot_bytes);
    }
    return QN_OK;
}

// What each view must know of its part, and the sums over all parts.
static qn_status add_up(qn_state_layout *layout, qn_err *err) {
    bool fits = true;
    for (size_t p = 0; p < layout->n_parts; p++) {
        const state_part *part = &layout->parts[p];
        fits = fits && qn_i64_add(&layout->slot_bytes, layout->slot_bytes, part->slot_bytes);
        for (int64_t g = 0; g < layout->n_groups; g++)
            fits = fits && qn_i64_add(&layout->groups[g].page_bytes, layout->groups[g].page_bytes,
                                      part->page_bytes[g]);
    }
    for (size_t i = 0; i < layout->n_slots; i++)
        layout->slots[i].slot_bytes = layout->parts[layout->slot_parts[i]].slot_bytes;
    for (size_t i = 0; i < layout->n_caches; i++)
        layout->caches[i].page_bytes =
            layout->parts[layout->cache_parts[i]].page_bytes[layout->caches[i].group];
    return fits ? QN_OK
                : QN_FAIL(err, LIMIT, "pages and slots of %zu devices: too large", layout->n_parts);
}

static qn_status build(const layout_call *c) {
    QN_TRY(read_graph(c));
    for (size_t i = 0; i < c->graph->n_nodes; i++) {
        const qn_node *node = &c->graph->nodes[i];
        if (node->op != QN_OP_INPUT) continue;
        const qn_value *value = &c->graph->values[node->out[0]];
        if (value->kind == QN_CACHE) QN_TRY(add_cache(c, value));
        if (value->kind == QN_STATE_VALUE) QN_TRY(add_state(c, value));
    }
    QN_TRY(place_logs(c->layout, c->err));
    return add_up(c->layout, c->err);
}

static size_t count_inputs(const qn_graph *graph, qn_kind kind) {
    size_t n = 0;
    for (size_t i = 0; i < graph->n_nodes; i++) {
        const qn_node *node = &graph->nodes[i];
        n += node->op == QN_OP_INPUT && graph->values[node->out[0]].kind == kind;
    }
    return n;
}

static bool take_lists(qn_state_layout *layout, size_t n_caches, size_t n_states,
                       const qn_state_part *parts, size_t n_parts) {
    qn_arena *arena = &layout->arena;
    layout->caches = qn_arena_alloc(arena, n_caches, sizeof *layout->caches);
    layout->slots = qn_arena_alloc(arena, n_states, sizeof *layout->slots);
    layout->groups = qn_arena_alloc(arena, n_caches, sizeof *layout->groups);
    layout->cache_parts = qn_arena_alloc(arena, n_caches, sizeof *layout->cache_parts);
    layout->slot_parts = qn_arena_alloc(arena, n_states, sizeof *layout->slot_parts);
    layout->parts = qn_arena_alloc(arena, n_parts, sizeof *layout->parts);
    layout->cache_names = qn_arena_alloc(arena, n_caches, sizeof *layout->cache_names);
    layout->slot_names = qn_arena_alloc(arena, n_states, sizeof *layout->slot_names);
    layout->rules = qn_arena_alloc(arena, n_states, sizeof *layout->rules);
    bool ok = layout->cache_names && layout->slot_names && layout->rules && layout->caches &&
              layout->slots && layout->groups && layout->cache_parts && layout->slot_parts &&
              layout->parts;
    for (size_t p = 0; p < n_parts && ok; p++) {
        layout->parts[p].device = parts[p].device;
        layout->parts[p].page_bytes =
            qn_arena_alloc(arena, n_caches, sizeof *layout->parts[p].page_bytes);
        ok = layout->parts[p].page_bytes != NULL;
    }
    layout->n_parts = n_parts;
    return ok;
}

qn_status qn_state_layout_create(qn_state_layout **out, const qn_graph *graph,
                                 const qn_state_part *parts, size_t n_parts,
                                 qn_cache_type cache_type, qn_err *err) {
    if (cache_type == QN_CACHE_AUTO || (unsigned)cache_type >= QN_KV_TYPES)
        return QN_FAIL(err, ARGUMENT, "cache type %d, want 1 to %d", (int)cache_type,
                       QN_KV_TYPES - 1);
    const size_t n_caches = count_inputs(graph, QN_CACHE);
    const size_t n_states = count_inputs(graph, QN_STATE_VALUE);
    qn_status status = QN_OK;
    qn_state_layout *layout = qn_alloc(1, sizeof *layout);
    layout_call c = {.layout = layout,
                     .graph = graph,
                     .parts = parts,
                     .type = qn_kv_type_get(cache_type),
                     .origin = qn_alloc(graph->n_values, sizeof *c.origin),
                     .windows = qn_alloc(n_caches, sizeof *c.windows),
                     .log_sizes = qn_alloc(n_states, sizeof *c.log_sizes),
                     .err = err};
    if (!layout || !c.origin || !c.windows || !c.log_sizes ||
        !take_lists(layout, n_caches, n_states, parts, n_parts)) {
        status = QN_NOMEM(err, "layout of sequence state");
        goto done;
    }
    for (size_t i = 0; i < n_caches; i++) c.windows[i] = -1;
    QN_TRY_TO(done, build(&c));
    *out = layout;
    layout = NULL;

done:
    qn_state_layout_destroy(layout);
    qn_free(c.origin);
    qn_free(c.windows);
    qn_free(c.log_sizes);
    return status;
}

void qn_state_layout_destroy(qn_state_layout *layout) {
    if (!layout) return;
    qn_arena_deinit(&layout->arena);
    qn_free(layout);
}

bool qn_state_layout_is_recurrent(const qn_state_layout *layout) { return layout->n_slots > 0; }

int64_t qn_state_layout_groups(const qn_state_layout *layout) { return layout->n_groups; }
