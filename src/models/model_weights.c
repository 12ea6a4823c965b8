#include "models/model_weights.h"

#include "core/mem.h"

#include <stdio.h>
#include <string.h>

enum { LONGEST_NAME = 256 };

const char *const qn_prefixes[QN_N_PREFIXES] = {"model.", "model.language_model.",
                                                "language_model.model.", ""};

qn_status qn_binder_init(qn_binder *binder, qn_weights *weights, const qn_source *source,
                         qn_build *b, qn_err *err) {
    *binder = (qn_binder){.source = source, .weights = weights, .b = b, .prefix = qn_prefixes[0]};
    for (size_t i = 0; i < QN_N_PREFIXES; i++) {
        char name[LONGEST_NAME];
        snprintf(name, sizeof name, "%sembed_tokens.weight", qn_prefixes[i]);
        if (!qn_source_find_tensor(source, name)) continue;
        binder->prefix = qn_prefixes[i];
        break;
    }
    if (!weights->is_used) weights->is_used = qn_alloc(qn_source_n_tensors(source), sizeof(bool));
    return weights->is_used ? QN_OK : QN_NOMEM(err, "weights");
}

void qn_weights_deinit(qn_weights *weights) {
    for (size_t i = 0; i < weights->n; i++) qn_free(weights->items[i].data);
    qn_free(weights->items);
    qn_free(weights->is_used);
    qn_map_deinit(&weights->by_name);
    qn_arena_deinit(&weights->arena);
    *weights = (qn_weights){0};
}

// pattern with the layer in place of %d.
static void spell(char *to, const char *pattern, int64_t layer) {
    const char *mark = strstr(pattern, "%d");
    if (!mark)
        snprintf(to, LONGEST_NAME, "%s", pattern);
    else
        snprintf(to, LONGEST_NAME, "%.*s%lld%s", (int)(mark - pattern), pattern, (long long)layer,
                 mark + 2);
}

// The name that the source has for a tensor.
static void spell_in_source(char *to, const qn_binder *binder, const char *gguf, const char *hf,
                            int64_t layer) {
    if (qn_source_get_kind(binder->source) == QN_SOURCE_GGUF) {
        spell(to, gguf, layer);
        return;
    }
    char pattern[LONGEST_NAME];
    const bool is_inside = strncmp(hf, "model.", 6) == 0;
    const bool is_predict = binder->predict_from > 0 && layer >= binder->predict_from;
    const char *prefix = !is_inside ? "" : is_predict ? "mtp." : binder->prefix;
    snprintf(pattern, sizeof pattern, "%s%s", prefix, is_inside ? hf + 6 : hf);
    spell(to, pattern, is_predict ? layer - binder->predict_from : layer);
}

const qn_tensor *qn_binder_find(const qn_binder *binder, const char *gguf, const char *hf,
                                int64_t layer) {
    char name[LONGEST_NAME];
    spell_in_source(name, binder, gguf, hf, layer);
    return qn_source_find_tensor(binder->source, name);
}

static const char *dims_text(char *to, size_t size, const int64_t *dims, int n) {
    qn_shape shape = {.n_dims = n < QN_GRAPH_DIMS ? n : QN_GRAPH_DIMS};
    for (int i = 0; i < shape.n_dims; i++) shape.dims[i] = (qn_dim){dims[i], QN_SYM_ONE};
    return qn_shape_text(to, size, &shape);
}

// Equal up to dimensions of 1: (C, 1, N) holds the same rows as (C, N).
static bool dims_match(const int64_t *a, int n_a, const int64_t *b, int n_b) {
    int i = 0, j = 0;
    for (;;) {
        while (i < n_a && a[i] == 1) i++;
        while (j < n_b && b[j] == 1) j++;
        if (i == n_a || j == n_b) return i == n_a && j == n_b;
        if (a[i++] != b[j++]) return false;
    }
}

static qn_status check_tensor(const qn_tensor *t, const int64_t *dims, int n_dims, qn_err *err) {
    char got[96], want[96];
    if (!dims_match(t->dims, t->n_dims, dims, n_dims))
        return QN_FAIL(err, FORMAT, "tensor %s: shape %s, want %s", t->name.data,
                       dims_text(got, sizeof got, t->dims, t->n_dims),
                       dims_text(want, sizeof want, dims, n_dims));
    if (!qn_type_is_supported(t->type))
        return QN_FAIL(err, UNSUPPORTED, "tensor %s: type %s is not supported", t->name.data,
                       qn_type_get(t->type)->name);
    return QN_OK;
}

static int64_t tensor_index(const qn_source *source, const qn_tensor *t) {
    return t - qn_source_tensor(source, 0);
}

// A new weight, or the one of that name from an earlier graph.
static qn_status add_weight(qn_weight **out, qn_weights *weights, const char *name, size_t n_parts,
                            qn_err *err) {
    uint32_t index = 0;
    if (qn_map_find(&weights->by_name, name, strlen(name), &index)) {
        *out = &weights->items[index];
        return QN_OK;
    }
    void *items = weights->items;
    const bool grown = qn_grow(&items, &weights->cap, weights->n + 1, sizeof *weights->items);
    weights->items = items;
    char *copy = grown ? qn_arena_strdup(&weights->arena, name, strlen(name)) : NULL;
    qn_weight_part *parts = qn_arena_alloc(&weights->arena, n_parts, sizeof *parts);
    index = (uint32_t)weights->n;
    if (!copy || !parts || !qn_map_add(&weights->by_name, copy, strlen(copy), index, NULL))
        return QN_NOMEM(err, "weights");
    weights->items[index] = (qn_weight){.name = copy, .parts = parts, .n_parts = n_parts};
    weights->n++;
    *out = &weights->items[index];
    return QN_OK;
}

// Type, shape and sizes of a weight as it will be held.
static qn_status set_form(qn_weight *w, qn_type type, const int64_t *dims, int n_dims,
                          qn_err *err) {
    w->type = type;
    w->shape.n_dims = n_dims;
    w->n = 1;
    bool ok = true;
    for (int i = 0; i < n_dims; i++) {
        w->shape.dims[i] = (qn_dim){dims[i], QN_SYM_ONE};
        ok = ok && qn_i64_mul(&w->n, w->n, dims[i]);
    }
    if (!ok || dims[n_dims - 1] % qn_type_get(type)->block || !qn_type_bytes(&w->bytes, type, w->n))
        return QN_FAIL(err, FORMAT, "tensor %s: rows of %lld values, %s has blocks of %d", w->name,
                       (long long)dims[n_dims - 1], qn_type_get(type)->name,
                       qn_type_get(type)->block);
    return QN_OK;
}

static void set_part(qn_weight *w, int64_t i, const qn_tensor *t, int64_t first_row, int64_t rows,
                     int64_t row_bytes) {
    w->parts[i] =
        (qn_weight_part){.tensor = t, .offset = first_row * row_bytes, .bytes = rows * row_bytes};
}

static int count_dims(const int64_t *dims, int max) {
    int n = 0;
    while (n < max && dims[n]) n++;
    return n;
}

int64_t qn_order_source(const qn_order *order, int64_t i) {
    if (order->outer == 0 || i < order->first) return i;
    const int64_t at = (i - order->first) % order->group, start = i - at;
    const int64_t block = at / order->block;
    if (block >= order->outer * order->inner) return i;
    const int64_t from = block % order->outer * order->inner + block / order->outer;
    return start + from * order->block + at % order->block;
}

static qn_order order_of(const qn_binder *binder, const qn_bind_row *row, int n_dims) {
    const qn_head_sizes *h = &binder->heads;
    if (row->flags & QN_ROPE_ROWS)
        return (qn_order){.group = h->head, .outer = 2, .inner = h->rotate / 2, .block = 1};
    if (!(row->flags & (QN_VALUE_ROWS | QN_VALUE_TAIL | QN_VALUE_COLUMNS)) ||
        h->key_heads == h->value_heads)
        return (qn_order){0};
    const bool is_columns = row->flags & QN_VALUE_COLUMNS, is_tail = row->flags & QN_VALUE_TAIL;
    const int64_t n = row->dims[is_columns ? n_dims - 1 : 0];
    const int64_t group = is_tail ? h->value_heads * h->value_dim : n;
    return (qn_order){.is_columns = is_columns,
                      .first = n - group,
                      .group = group,
                      .outer = h->key_heads,
                      .inner = h->value_heads / h->key_heads,
                      .block = group / h->value_heads};
}

static qn_status bind_row(qn_binder *binder, const qn_bind_row *row, int64_t layer, qn_err *err) {
    char in_source[LONGEST_NAME], name[LONGEST_NAME];
    spell_in_source(in_source, binder, row->gguf, row->hf, layer);
    spell(name, row->gguf, layer);
    const qn_tensor *t = qn_source_find_tensor(binder->source, in_source);
    if (!t && (row->flags & QN_OPTIONAL)) {
        *row->to = QN_NO_VALUE;
        return QN_OK;
    }
    if (!t) return QN_FAIL(err, FORMAT, "tensor %s is missing", in_source);
    const int n_dims = count_dims(row->dims, 3);
    QN_TRY(check_tensor(t, row->dims, n_dims, err));
    binder->weights->is_used[tensor_index(binder->source, t)] = true;
    qn_weight *w;
    QN_TRY(add_weight(&w, binder->weights, name, 1, err));
    const bool is_gguf = qn_source_get_kind(binder->source) == QN_SOURCE_GGUF;
    w->fix = is_gguf ? 0 : row->flags & (QN_PLUS_ONE | QN_NEG_EXP);
    w->keeps_f32 = row->flags & (QN_KEEP_F32 | QN_VECTOR);
    w->across = order_of(binder, row, n_dims);
    if (!is_gguf) w->order = w->across;
    w->hf = row->hf;
    w->layer = layer;
    w->is_predict = binder->predict_from > 0 && layer >= binder->predict_from;
    w->parts[0] = (qn_weight_part){.tensor = t, .bytes = t->bytes};
    QN_TRY(set_form(w, row->flags & QN_VECTOR ? QN_TYPE_F32 : t->type, row->dims, n_dims, err));
    *row->to = qn_build_param(binder->b, w->name, w->type, w->shape);
    return binder->b->status; // the builder itself may have run out of memory
}

void qn_bind(qn_binder *binder, const qn_bind_row *rows, size_t n, int64_t layer) {
    for (size_t i = 0; i < n && !binder->b->status; i++)
        binder->b->status = bind_row(binder, &rows[i], layer, &binder->b->err);
}

// --- weights of no source ---

qn_status qn_bind_own(int32_t *to, float **data, qn_binder *binder, const char *name,
                      const int64_t *dims, qn_err *err) {
    qn_weight *w;
    QN_TRY(add_weight(&w, binder->weights, name, 0, err));
    float *made = NULL;
    if (!w->data) {
        QN_TRY(set_form(w, QN_TYPE_F32, dims, 3, err));
        made = qn_alloc((size_t)w->n, sizeof *made);
        if (!made) return QN_NOMEM(err, w->name);
        w->data = made;
    }
    *data = made;
    *to = qn_build_param(binder->b, w->name, w->type, w->shape);
    return binder->b->status; // the builder itself may have run out of memory
}

void qn_weights_drop_own(qn_weights *weights) {
    for (size_t i = 0; i < weights->n; i++) {
        if (weights->items[i].n_parts > 0) continue;
        qn_free(weights->items[i].data);
        weights->items[i].data = NULL;
    }
}

// --- convolutions over frames ---

// The name of a tap in GGUF.
static void spell_tap(char *to, const char *gguf, int64_t tap) {
    if (tap == 0)
        snprintf(to, LONGEST_NAME, "%s", gguf);
    else
        snprintf(to, LONGEST_NAME, "%s.%lld", gguf, (long long)tap);
}

// One tap, from a tensor that holds `taps` of them, of which it is number `first`.
static qn_status bind_tap(qn_binder *binder, const qn_bind_row *row, const qn_tensor *t,
                          int64_t taps, int64_t first, int64_t tap, qn_err *err) {
    const int64_t dims[] = {row->dims[0], row->dims[1], row->dims[2], row->dims[2]};
    const int64_t flat[] = {dims[0], dims[1] * dims[2] * dims[3]};
    const int64_t n_rows = dims[0] * dims[1];
    const int64_t row_bytes = t->bytes / (n_rows * taps);
    char name[LONGEST_NAME];
    spell_tap(name, row->gguf, tap);
    qn_weight *w;
    binder->weights->is_used[tensor_index(binder->source, t)] = true;
    QN_TRY(add_weight(&w, binder->weights, name, (size_t)n_rows, err));
    QN_TRY(row->flags & QN_FLAT ? set_form(w, t->type, flat, 2, err)
                                : set_form(w, t->type, dims, 4, err));
    w->keeps_f32 = row->flags & QN_KEEP_F32;
    for (int64_t i = 0; i < n_rows; i++) set_part(w, i, t, i * taps + first, 1, row_bytes);
    row->to[tap] = qn_build_param(binder->b, w->name, w->type, w->shape);
    return binder->b->status; // the builder itself may have run out of memory
}

static qn_status bind_taps(qn_binder *binder, const qn_bind_row *row, int64_t taps, qn_err *err) {
    const bool is_gguf = qn_source_get_kind(binder->source) == QN_SOURCE_GGUF;
    const int64_t *d = row->dims, all[] = {d[0], d[1], taps, d[2], d[2]};
    const int64_t one[] = {d[0], d[1], d[2], d[2]};
    for (int64_t tap = 0; tap < taps; tap++) {
        char name[LONGEST_NAME];
        if (is_gguf)
            spell_tap(name, row->gguf, tap);
        else
            spell_in_source(name, binder, row->gguf, row->hf, 0);
        const qn_tensor *t = qn_source_find_tensor(binder->source, name);
        if (!t) return QN_FAIL(err, FORMAT, "tensor %s is missing", name);
        QN_TRY(is_gguf ? check_tensor(t, one, 4, err) : check_tensor(t, all, 5, err));
        if (qn_type_get(t->type)->block != 1) // a part is less than a block
            return QN_FAIL(err, UNSUPPORTED, "tensor %s: type %s, want one without blocks", name,
                           qn_type_get(t->type)->name);
        QN_TRY(bind_tap(binder, row, t, is_gguf ? 1 : taps, is_gguf ? 0 : tap, tap, err));
    }
    return QN_OK;
}

void qn_bind_taps(qn_binder *binder, const qn_bind_row *row, int64_t taps) {
    if (!binder->b->status) binder->b->status = bind_taps(binder, row, taps, &binder->b->err);
}

// --- experts ---

// How one stack is found: per expert, in its own stack, or as half of a fused one.
typedef struct stack_names {
    const char *gguf, *gguf_fused; // NULL: never fused
    const char *hf_each, *hf_fused;
    bool is_second;         // half of the fused tensor
    bool is_hf_fused_alone; // the checkpoint's fused name holds this stack only
} stack_names;

// One tensor holds all experts; `per_expert` rows each, of which this stack takes `rows` from
// `skip`.
static qn_status bind_stacked(qn_weight *w, const qn_tensor *t, const int64_t *dims, bool is_fused,
                              bool is_second, qn_err *err) {
    const int64_t per_expert = is_fused ? 2 * dims[1] : dims[1];
    const int64_t whole[3] = {dims[0], per_expert, dims[2]};
    QN_TRY(check_tensor(t, whole, 3, err));
    QN_TRY(set_form(w, t->type, dims, 3, err));
    const int64_t row_bytes = t->bytes / (dims[0] * per_expert);
    for (int64_t e = 0; e < dims[0]; e++)
        set_part(w, e, t, e * per_expert + (is_second ? dims[1] : 0), dims[1], row_bytes);
    return QN_OK;
}

// A tensor per expert, all of one type.
static qn_status bind_each(qn_binder *binder, qn_weight *w, const char *pattern, int64_t layer,
                           const int64_t *dims, qn_err *err) {
    char with_layer[LONGEST_NAME], name[LONGEST_NAME];
    spell_in_source(with_layer, binder, "", pattern, layer);
    for (int64_t e = 0; e < dims[0]; e++) {
        spell(name, with_layer, e);
        const qn_tensor *t = qn_source_find_tensor(binder->source, name);
        if (!t) return QN_FAIL(err, FORMAT, "tensor %s is missing", name);
        QN_TRY(check_tensor(t, dims + 1, 2, err));
        if (e == 0) QN_TRY(set_form(w, t->type, dims, 3, err));
        if (t->type != w->type)
            return QN_FAIL(err, UNSUPPORTED, "tensor %s: type %s, expert 0 has %s", name,
                           qn_type_get(t->type)->name, qn_type_get(w->type)->name);
        w->parts[e] = (qn_weight_part){.tensor = t, .bytes = t->bytes};
        binder->weights->is_used[tensor_index(binder->source, t)] = true;
    }
    return QN_OK;
}

static qn_status bind_stack(qn_binder *binder, int32_t *to, const stack_names *names,
                            const int64_t *dims, int64_t layer, qn_err *err) {
    char name[LONGEST_NAME];
    spell(name, names->gguf, layer);
    qn_weight *w;
    QN_TRY(add_weight(&w, binder->weights, name, (size_t)dims[0], err));
    w->is_predict = binder->predict_from > 0 && layer >= binder->predict_from;
    const qn_tensor *own = qn_binder_find(binder, names->gguf, "", layer);
    const qn_tensor *fused =
        qn_binder_find(binder, names->gguf_fused ? names->gguf_fused : "", names->hf_fused, layer);
    if (own || fused) {
        const qn_tensor *t = own ? own : fused;
        const bool is_half = !own && !names->is_hf_fused_alone;
        QN_TRY(bind_stacked(w, t, dims, is_half, is_half && names->is_second, err));
        binder->weights->is_used[tensor_index(binder->source, t)] = true;
    } else if (qn_source_get_kind(binder->source) == QN_SOURCE_GGUF) {
        return QN_FAIL(err, FORMAT, "tensor %s is missing", name);
    } else {
        QN_TRY(bind_each(binder, w, names->hf_each, layer, dims, err));
    }
    *to = qn_build_param(binder->b, w->name, w->type, w->shape);
    return binder->b->status; // the builder itself may have run out of memory
}

void qn_bind_experts(qn_binder *binder, qn_expert_stacks *to, const qn_expert_sizes *sizes,
                     int64_t layer) {
    static const stack_names names[] = {
        {.gguf = "blk.%d.ffn_gate_exps.weight",
         .gguf_fused = "blk.%d.ffn_gate_up_exps.weight",
         .hf_each = "model.layers.%d.mlp.experts.%d.gate_proj.weight",
         .hf_fused = "model.layers.%d.mlp.experts.gate_up_proj"},
        {.gguf = "blk.%d.ffn_up_exps.weight",
         .gguf_fused = "blk.%d.ffn_gate_up_exps.weight",
         .hf_each = "model.layers.%d.mlp.experts.%d.up_proj.weight",
         .hf_fused = "model.layers.%d.mlp.experts.gate_up_proj",
         .is_second = true},
        {.gguf = "blk.%d.ffn_down_exps.weight",
         .hf_each = "model.layers.%d.mlp.experts.%d.down_proj.weight",
         .hf_fused = "model.layers.%d.mlp.experts.down_proj",
         .is_hf_fused_alone = true},
    };
    int32_t *const ids[] = {&to->gate, &to->up, &to->down};
    const int64_t wide[] = {sizes->experts, sizes->ffn, sizes->width};
    const int64_t back[] = {sizes->experts, sizes->width, sizes->ffn};
    for (int i = 0; i < 3 && !binder->b->status; i++)
        binder->b->status =
            bind_stack(binder, ids[i], &names[i], i < 2 ? wide : back, layer, &binder->b->err);
}
