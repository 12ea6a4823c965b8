// What every part of a rendering uses: steps, depth, memory, texts, names.
#include "chat/render.h"

#include "chat/text.h"
#include "core/mem.h"

const qn_chat_limits qn_chat_default_limits = {
    .steps = 50 * 1000 * 1000, .memory = 256 << 20, .output = 64 << 20, .depth = 1000};

enum { BYTES_OF_STEP = 64, LEAST_TAIL = 256 };

qn_status qn_render_charge(qn_render *r, size_t bytes, qn_err *err) {
    const size_t cost = 1 + bytes / BYTES_OF_STEP;
    if (r->steps >= 0 && cost <= (size_t)r->steps) {
        r->steps -= (int64_t)cost;
        return QN_OK;
    }
    return QN_FAIL(err, LIMIT, "the template takes more than %lld steps",
                   (long long)r->limits.steps);
}

qn_status qn_render_enter(qn_render *r, qn_err *err) {
    if (++r->depth <= r->limits.depth) return QN_OK;
    return QN_FAIL(err, LIMIT, "nested more than %d deep", r->limits.depth);
}

qn_status qn_render_alloc(void *out, qn_render *r, size_t n, size_t size, qn_err *err) {
    size_t bytes;
    if (!qn_size_mul(&bytes, n, size) || bytes > r->limits.memory ||
        r->arena.bytes > r->limits.memory - bytes)
        return QN_FAIL(err, LIMIT, "the template takes more than %zu bytes of memory",
                       r->limits.memory);
    void *memory = qn_arena_alloc(&r->arena, n ? n : 1, size);
    if (!memory) return QN_NOMEM(err, "values of a template");
    memcpy(out, &memory, sizeof memory);
    return QN_OK;
}

qn_buf qn_render_buf(const qn_render *r) { return (qn_buf){.most = r->limits.output}; }

qn_status qn_render_buf_check(const qn_buf *buf, qn_err *err) {
    if (!buf->failed) return QN_OK;
    if (!buf->is_over) return QN_NOMEM(err, "text of a template");
    return QN_FAIL(err, LIMIT, "the template writes more than %zu bytes", buf->most);
}

qn_status qn_render_text(qn_val *out, qn_render *r, qn_buf *buf, qn_err *err) {
    char *copy = NULL;
    qn_status status = qn_render_buf_check(buf, err);
    if (!status) status = qn_render_alloc(&copy, r, buf->size + 1, 1, err);
    if (!status && buf->size) memcpy(copy, buf->data, buf->size);
    *out = qn_val_text((qn_str){copy, buf->size});
    qn_buf_deinit(buf);
    return status;
}

// Templates put texts together piece by piece. A text that ends where a tail was last written to
// grows there; texts that share its beginning keep it.
qn_status qn_text_join(qn_val *out, qn_render *r, qn_str a, qn_str b, qn_err *err) {
    const size_t size = a.size + b.size;
    QN_TRY(qn_render_charge(r, b.size, err));
    for (size_t i = 0; i < QN_N_TAILS; i++) {
        qn_tail *tail = &r->tails[i];
        if (!tail->data || a.data + a.size != tail->data + tail->used || a.data < tail->data ||
            tail->cap - tail->used < b.size)
            continue;
        if (b.size) memcpy(tail->data + tail->used, b.data, b.size);
        tail->used += b.size;
        *out = qn_val_text((qn_str){a.data, size});
        return QN_OK;
    }
    const bool is_long = size >= LEAST_TAIL;
    const size_t cap = is_long ? size * 2 : size;
    char *data;
    QN_TRY(qn_render_charge(r, a.size, err));
    QN_TRY(qn_render_alloc(&data, r, cap + 1, 1, err));
    if (a.size) memcpy(data, a.data, a.size);
    if (b.size) memcpy(data + a.size, b.data, b.size);
    if (is_long)
        r->tails[r->next_tail++ % QN_N_TAILS] = (qn_tail){.data = data, .used = size, .cap = cap};
    *out = qn_val_text((qn_str){data, size});
    return QN_OK;
}

// --- names ---------------------------------------------------------------------------------------

qn_status qn_scope_push(qn_render *r, qn_scope *outer, qn_err *err) {
    qn_scope *scope = r->free_scopes;
    if (scope)
        r->free_scopes = scope->outer;
    else
        QN_TRY(qn_render_alloc(&scope, r, 1, sizeof *scope, err));
    *scope = (qn_scope){.outer = outer};
    r->scope = scope;
    return QN_OK;
}

void qn_scope_pop(qn_render *r, qn_scope *scope, size_t n_kept) {
    qn_scope *ended = r->scope;
    r->scope = scope;
    if (r->n_kept != n_kept) return;
    while (ended->vars) {
        qn_var *var = ended->vars;
        ended->vars = var->next;
        var->next = r->free_vars;
        r->free_vars = var;
    }
    ended->outer = r->free_scopes;
    r->free_scopes = ended;
}

const qn_val *qn_scope_find(const qn_render *r, qn_str name) {
    for (const qn_scope *scope = r->scope; scope; scope = scope->outer) {
        for (const qn_var *var = scope->vars; var; var = var->next) {
            if (qn_str_same(var->name, name)) return &var->value;
        }
    }
    return NULL;
}

qn_status qn_scope_set(qn_render *r, qn_str name, const qn_val *value, qn_err *err) {
    for (qn_var *var = r->scope->vars; var; var = var->next) {
        if (!qn_str_same(var->name, name)) continue;
        var->value = *value;
        return QN_OK;
    }
    qn_var *var = r->free_vars;
    if (var)
        r->free_vars = var->next;
    else
        QN_TRY(qn_render_alloc(&var, r, 1, sizeof *var, err));
    *var = (qn_var){.next = r->scope->vars, .name = name, .value = *value};
    r->scope->vars = var;
    return QN_OK;
}
