#include "gen/grammar/boolean.h"

#include "core/mem.h"

#include <string.h>

enum { NO_VAR = 0x7FFFFFFF, STAGE_NEW = 0, STAGE_LOW, STAGE_HIGH };
typedef enum operation { OP_AND = 1, OP_OR, OP_NOT } operation;

static int32_t fail(qn_gr_bools *b, qn_status status) {
    if (!b->failed) b->failed = status;
    return QN_BOOL_FALSE;
}

// --- tables --------------------------------------------------------------------------------------

static size_t table_slot(const qn_gr_bool_table *t, const uint32_t key[3]) {
    const uint64_t a = key[0] * 0x9E3779B97F4A7C15u + key[1];
    const uint64_t h = (a ^ (a >> 29)) * 0xBF58476D1CE4E5B9u + key[2] * 0x94D049BB133111EBu;
    size_t at = (size_t)((h ^ (h >> 31)) & (t->cap - 1));
    for (; t->slots[at].key[0]; at = (at + 1) & (t->cap - 1))
        if (!memcmp(t->slots[at].key, key, sizeof t->slots[at].key)) break;
    return at;
}

static bool table_grow(qn_gr_bool_table *t) {
    qn_gr_bool_table next = {.cap = t->cap ? t->cap * 2 : 256, .n = t->n};
    next.slots = qn_alloc(next.cap, sizeof *next.slots);
    if (!next.slots) return false;
    for (size_t i = 0; i < t->cap; i++)
        if (t->slots[i].key[0]) next.slots[table_slot(&next, t->slots[i].key)] = t->slots[i];
    qn_free(t->slots);
    *t = next;
    return true;
}

static bool table_find(const qn_gr_bool_table *t, const uint32_t key[3], int32_t *value) {
    if (!t->cap) return false;
    const qn_gr_bool_slot *slot = &t->slots[table_slot(t, key)];
    if (!slot->key[0]) return false;
    *value = slot->value;
    return true;
}

static bool table_add(qn_gr_bool_table *t, const uint32_t key[3], int32_t value) {
    if (t->n * 2 >= t->cap && !table_grow(t)) return false;
    qn_gr_bool_slot *slot = &t->slots[table_slot(t, key)];
    memcpy(slot->key, key, sizeof slot->key);
    slot->value = value;
    t->n++;
    return true;
}

// --- functions -----------------------------------------------------------------------------------

qn_status qn_gr_bools_init(qn_gr_bools *out, uint64_t *steps, qn_err *err) {
    *out = (qn_gr_bools){.steps = steps};
    if (!qn_grow((void **)&out->items, &out->cap, 2, sizeof *out->items))
        return QN_NOMEM(err, "regular expression");
    out->items[QN_BOOL_FALSE] = out->items[QN_BOOL_TRUE] = (qn_gr_bool){.var = NO_VAR};
    out->n = 2;
    return QN_OK;
}

void qn_gr_bools_deinit(qn_gr_bools *b) {
    qn_free(b->items);
    qn_free(b->known.slots);
    qn_free(b->done.slots);
    qn_free(b->work);
    *b = (qn_gr_bools){0};
}

static int32_t make(qn_gr_bools *b, uint32_t var, int32_t low, int32_t high) {
    const uint32_t key[3] = {var + 1, (uint32_t)low, (uint32_t)high};
    int32_t found;
    if (low == high) return low;
    if (table_find(&b->known, key, &found)) return found;
    if (b->n >= QN_BOOLS_MAX) return fail(b, QN_LIMIT);
    found = (int32_t)b->n;
    if (!qn_grow((void **)&b->items, &b->cap, b->n + 1, sizeof *b->items) ||
        !table_add(&b->known, key, found))
        return fail(b, QN_MEMORY);
    b->items[b->n++] = (qn_gr_bool){var, low, high};
    return found;
}

int32_t qn_gr_bool_var(qn_gr_bools *b, uint32_t var) {
    return b->failed ? QN_BOOL_FALSE : make(b, var, QN_BOOL_FALSE, QN_BOOL_TRUE);
}

// Where one operand decides.
static bool is_plain(int32_t *out, const qn_gr_bool_frame *f) {
    const int32_t strong = f->op == OP_AND ? QN_BOOL_FALSE : QN_BOOL_TRUE;
    if (f->op == OP_NOT) {
        *out = !f->a;
        return f->a <= QN_BOOL_TRUE;
    }
    if (f->a == strong || f->b == strong)
        *out = strong;
    else if (f->a <= QN_BOOL_TRUE || f->a == f->b)
        *out = f->b;
    else if (f->b <= QN_BOOL_TRUE)
        *out = f->a;
    else
        return false;
    return true;
}

static uint32_t top_var(const qn_gr_bools *b, const qn_gr_bool_frame *f) {
    const uint32_t x = b->items[f->a].var, y = b->items[f->b].var;
    return f->op == OP_NOT || x < y ? x : y;
}

// The part of an operand below a variable; one that does not depend on it stays.
static int32_t below(const qn_gr_bools *b, int32_t f, uint32_t var, bool high) {
    const qn_gr_bool *item = &b->items[f];
    if (item->var != var) return f;
    return high ? item->high : item->low;
}

static bool push(qn_gr_bools *b, size_t *n, qn_gr_bool_frame frame) {
    if (!qn_grow((void **)&b->work, &b->cap_work, *n + 1, sizeof *b->work)) {
        fail(b, QN_MEMORY);
        return false;
    }
    if (frame.op != OP_NOT && frame.a > frame.b) {
        const int32_t a = frame.a;
        frame.a = frame.b;
        frame.b = a;
    }
    b->work[(*n)++] = frame;
    return true;
}

// By variables from the first on, with a stack of its own: there may be thousands.
static int32_t apply(qn_gr_bools *b, operation op, int32_t x, int32_t y) {
    size_t n = 0;
    int32_t result = QN_BOOL_FALSE;
    if (b->failed || !push(b, &n, (qn_gr_bool_frame){.op = op, .a = x, .b = y}))
        return QN_BOOL_FALSE;
    while (n && !b->failed) {
        qn_gr_bool_frame *f = &b->work[n - 1];
        const uint32_t key[3] = {f->op, (uint32_t)f->a, (uint32_t)f->b};
        if (f->stage == STAGE_NEW && (is_plain(&result, f) || table_find(&b->done, key, &result))) {
            n--;
            continue;
        }
        if (*b->steps == 0) return fail(b, QN_LIMIT);
        --*b->steps;
        const uint32_t var = top_var(b, f);
        if (f->stage == STAGE_HIGH) {
            result = make(b, var, f->low, result);
            n--;
            if (!b->failed && !table_add(&b->done, key, result)) fail(b, QN_MEMORY);
            continue;
        }
        const bool high = f->stage == STAGE_LOW;
        if (high) f->low = result;
        f->stage++;
        const qn_gr_bool_frame next = {
            .op = f->op, .a = below(b, f->a, var, high), .b = below(b, f->b, var, high)};
        if (!push(b, &n, next)) break;
    }
    return b->failed ? QN_BOOL_FALSE : result;
}

int32_t qn_gr_bool_and(qn_gr_bools *b, int32_t x, int32_t y) { return apply(b, OP_AND, x, y); }
int32_t qn_gr_bool_or(qn_gr_bools *b, int32_t x, int32_t y) { return apply(b, OP_OR, x, y); }
int32_t qn_gr_bool_not(qn_gr_bools *b, int32_t x) { return apply(b, OP_NOT, x, QN_BOOL_FALSE); }

int32_t qn_gr_bool_if(qn_gr_bools *b, int32_t c, int32_t x, int32_t y) {
    if (x == QN_BOOL_TRUE) return qn_gr_bool_or(b, c, y);
    if (y == QN_BOOL_FALSE) return qn_gr_bool_and(b, c, x);
    return qn_gr_bool_or(b, qn_gr_bool_and(b, c, x), qn_gr_bool_and(b, qn_gr_bool_not(b, c), y));
}
