// Names and their values.
#include "chat/chat_text.h"

// Up to this many names are searched linearly.
enum { MAX_LISTED = 8, FIRST_SLOTS = 32 };

// Eight bytes at a time. Names that were chosen to fall together cost their own steps only.
static uint32_t hash_name(qn_str name) {
    uint64_t hash = name.size * 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i < name.size; i += 8) {
        uint64_t part = 0;
        const size_t n = name.size - i;
        memcpy(&part, name.data + i, n < 8 ? n : 8);
        hash = (hash ^ part) * 0xff51afd7ed558ccdu;
        hash ^= hash >> 32;
    }
    hash *= 0x9e3779b97f4a7c15u; // what differs in the last bytes reaches all upper bits
    return (uint32_t)(hash >> 32);
}

qn_status qn_jinja_scope_push(qn_jinja_run *r, qn_jinja_scope *outer, qn_err *err) {
    qn_jinja_scope *scope = r->free_scopes;
    if (scope)
        r->free_scopes = scope->outer;
    else
        QN_TRY(qn_jinja_alloc(&scope, r, 1, sizeof *scope, err));
    scope->outer = outer;
    r->scope = scope;
    return QN_OK;
}

void qn_jinja_scope_pop(qn_jinja_run *r, qn_jinja_scope *scope, size_t n_kept) {
    qn_jinja_scope *ended = r->scope;
    r->scope = scope;
    if (r->n_kept != n_kept) return;
    while (ended->vars) {
        qn_jinja_var *var = ended->vars;
        if (ended->n_slots) ended->slots[var->hash & (ended->n_slots - 1)] = NULL;
        ended->vars = var->next;
        var->next = r->free_vars;
        r->free_vars = var;
    }
    ended->n = 0;
    ended->outer = r->free_scopes;
    r->free_scopes = ended;
}

// *n_seen grows by the names looked at.
static qn_jinja_var *find_in(const qn_jinja_scope *scope, qn_str name, uint32_t hash,
                             size_t *n_seen) {
    const bool is_listed = scope->n <= MAX_LISTED;
    qn_jinja_var *var = is_listed ? scope->vars : scope->slots[hash & (scope->n_slots - 1)];
    for (; var; var = is_listed ? var->next : var->after) {
        ++*n_seen;
        if (var->hash == hash && qn_jinja_str_same(var->name, name)) return var;
    }
    return NULL;
}

static qn_status spend_search(qn_jinja_run *r, qn_str name, size_t n_seen, qn_err *err) {
    return qn_jinja_spend(r, n_seen + name.size / 8, QN_PER_ITEM, err);
}

qn_status qn_jinja_scope_find(const qn_jinja_val **out, qn_jinja_run *r, qn_str name, qn_err *err) {
    const uint32_t hash = hash_name(name);
    const qn_jinja_var *var = NULL;
    size_t n_seen = 0;
    for (const qn_jinja_scope *scope = r->scope; scope && !var; scope = scope->outer) {
        n_seen++;
        var = find_in(scope, name, hash, &n_seen);
    }
    *out = var ? &var->value : NULL;
    return spend_search(r, name, n_seen, err);
}

static void put_in_slot(qn_jinja_scope *scope, qn_jinja_var *var) {
    qn_jinja_var **slot = &scope->slots[var->hash & (scope->n_slots - 1)];
    var->after = *slot;
    *slot = var;
}

// Puts the scope's newest name into the table: all of them if there was none, or it was too small.
static qn_status put_in_table(qn_jinja_run *r, qn_jinja_scope *scope, qn_err *err) {
    const bool is_full = scope->n > scope->n_slots;
    if (is_full) {
        const size_t n_slots = scope->n_slots ? scope->n_slots * 4 : FIRST_SLOTS;
        qn_jinja_var **slots;
        QN_TRY(qn_jinja_alloc(&slots, r, n_slots, sizeof *slots, err));
        scope->slots = slots;
        scope->n_slots = n_slots;
    }
    if (!is_full && scope->n > MAX_LISTED + 1) {
        put_in_slot(scope, scope->vars);
        return QN_OK;
    }
    for (qn_jinja_var *var = scope->vars; var; var = var->next) put_in_slot(scope, var);
    return QN_OK;
}

qn_status qn_jinja_scope_set(qn_jinja_run *r, qn_str name, const qn_jinja_val *value, qn_err *err) {
    const uint32_t hash = hash_name(name);
    qn_jinja_scope *scope = r->scope;
    size_t n_seen = 0;
    qn_jinja_var *var = find_in(scope, name, hash, &n_seen);
    QN_TRY(spend_search(r, name, n_seen, err));
    if (var) {
        var->value = *value;
        return QN_OK;
    }
    var = r->free_vars;
    if (var)
        r->free_vars = var->next;
    else
        QN_TRY(qn_jinja_alloc(&var, r, 1, sizeof *var, err));
    *var = (qn_jinja_var){.next = scope->vars, .hash = hash, .name = name, .value = *value};
    scope->vars = var;
    return ++scope->n > MAX_LISTED ? put_in_table(r, scope, err) : QN_OK;
}
