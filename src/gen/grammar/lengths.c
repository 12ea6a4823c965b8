#include "gen/grammar/lengths.h"

#include "core/arena.h"
#include "core/map.h"
#include "core/mem.h"
#include "gen/grammar/ast.h"

// The rows while they are made: row k has a bit for each state that accepts in k characters.
typedef struct rows {
    const qn_gr_length_graph *graph;
    qn_arena arena;
    qn_map index;
    uint64_t **items;
    size_t n, cap;
    size_t n_words; // of a row
    uint32_t first, period;
} rows;

static bool has_bit(const uint64_t *bits, size_t at) { return bits[at / 64] >> (at % 64) & 1; }
static void set_bit(uint64_t *bits, size_t at) { bits[at / 64] |= (uint64_t)1 << (at % 64); }

static void fill_row(uint64_t *row, const rows *r) {
    const qn_gr_length_graph *g = r->graph;
    const uint64_t *before = r->n ? r->items[r->n - 1] : NULL;
    for (size_t s = 0; s < g->n; s++) {
        bool holds = !before && g->accepts[s];
        for (uint32_t i = g->first[s]; before && !holds && i < g->first[s + 1]; i++)
            holds = has_bit(before, g->to[i]);
        if (holds) set_bit(row, s);
    }
}

// Adds a row, unless it is one that was there: then *repeats, and nothing new will come.
static qn_status add_row(bool *repeats, rows *r, qn_err *err) {
    uint64_t *row = qn_arena_alloc(&r->arena, r->n_words, sizeof *row);
    uint32_t old = 0;
    if (!row || !qn_grow((void **)&r->items, &r->cap, r->n + 1, sizeof *r->items))
        return QN_NOMEM(err, "lengths of a string");
    fill_row(row, r);
    const size_t size = r->n_words * sizeof *row;
    if (!qn_map_add(&r->index, (const char *)row, size, (uint32_t)r->n, &old))
        return QN_NOMEM(err, "lengths of a string");
    *repeats = old != r->n;
    if (*repeats) {
        r->first = old;
        r->period = (uint32_t)r->n - old;
    } else {
        r->items[r->n++] = row;
    }
    return QN_OK;
}

static qn_status fill_rows(rows *r, uint32_t max, uint64_t *steps, qn_err *err) {
    const uint64_t cost = r->graph->n / 8 + r->graph->first[r->graph->n] / 8 + 8;
    for (bool repeats = false; !repeats && r->n <= max;) {
        if (*steps < cost || (r->n + 1) * r->graph->n > QN_LENGTHS_MAX_BITS)
            return QN_FAIL(err, LIMIT,
                           "lengths are too complex beside the other conditions on the string");
        *steps -= cost;
        QN_TRY(add_row(&repeats, r, err));
    }
    return QN_OK;
}

// Bits by state in place of bits by length.
static qn_status turn_rows(qn_gr_lengths *out, const rows *r, qn_err *err) {
    size_t n_all;
    out->n_words = (r->n + 63) / 64;
    out->first = r->period ? r->first : (uint32_t)r->n;
    out->period = r->period;
    if (!qn_size_mul(&n_all, out->n_words, r->graph->n)) return QN_NOMEM(err, "lengths");
    out->bits = qn_alloc(n_all, sizeof *out->bits);
    if (!out->bits) return QN_NOMEM(err, "lengths of a string");
    for (size_t s = 0; s < r->graph->n; s++) {
        bool found = false;
        for (size_t k = 0; k < r->n; k++) {
            if (!has_bit(r->items[k], s)) continue;
            set_bit(out->bits + s * out->n_words, k);
            if (!found && k > out->far) out->far = (uint32_t)k;
            found = true;
        }
    }
    return QN_OK;
}

qn_status qn_gr_lengths_create(qn_gr_lengths **out, const qn_gr_length_graph *graph, uint32_t min,
                               uint32_t max, uint64_t *steps, qn_err *err) {
    rows r = {.graph = graph, .n_words = (graph->n + 63) / 64};
    qn_gr_lengths *made = qn_alloc(1, sizeof *made);
    qn_status status = made ? QN_OK : QN_NOMEM(err, "lengths of a string");
    if (!status) status = fill_rows(&r, max, steps, err);
    if (!status) {
        made->min = min;
        made->max = max;
        status = turn_rows(made, &r, err);
    }
    qn_map_deinit(&r.index);
    qn_arena_deinit(&r.arena);
    qn_free(r.items);
    if (status)
        qn_gr_lengths_destroy(made);
    else
        *out = made;
    return status;
}

void qn_gr_lengths_destroy(qn_gr_lengths *l) {
    if (!l) return;
    qn_free(l->bits);
    qn_free(l);
}

// --- questions -----------------------------------------------------------------------------------

enum { NONE = -1 };

// The first bit at `from` or after it, below `end`.
static int64_t next_bit(const uint64_t *bits, uint64_t from, uint64_t end) {
    while (from < end) {
        const uint64_t word = bits[from / 64] >> (from % 64);
        if (word) {
            while (!has_bit(bits, from)) from++;
            return from < end ? (int64_t)from : NONE;
        }
        from = (from / 64 + 1) * 64;
    }
    return NONE;
}

// The smallest length of the state that is not below `from`.
static int64_t next_length(const qn_gr_lengths *l, uint32_t state, uint32_t from) {
    const uint64_t *bits = l->bits + state * l->n_words;
    const uint64_t end = (uint64_t)l->first + l->period;
    uint64_t at = from, moved = 0;
    if (at >= end) {
        if (!l->period) return NONE;
        moved = (at - l->first) / l->period * l->period;
        at -= moved;
    }
    int64_t hit = next_bit(bits, at, end);
    if (hit == NONE && l->period) {
        hit = next_bit(bits, l->first, end);
        moved += l->period;
    }
    return hit == NONE ? NONE : hit + (int64_t)moved;
}

bool qn_gr_lengths_fit(const qn_gr_lengths *l, uint32_t state, uint32_t chars) {
    if (chars > l->max) return false;
    const int64_t found = next_length(l, state, chars < l->min ? l->min - chars : 0);
    return found != NONE && (l->max == QN_AST_MANY || found <= (int64_t)(l->max - chars));
}

uint32_t qn_gr_lengths_next(const qn_gr_lengths *l, uint32_t chars) {
    if (l->max == QN_AST_MANY && chars >= l->min) return l->min;
    return chars + 1;
}

// With at least `missing` characters to come, all that matters is where `missing` lies in the
// period, and not even that if the bounds leave room for a whole one.
static uint32_t canon_missing(const qn_gr_lengths *l, uint32_t missing, uint32_t longest) {
    const uint64_t base = (uint64_t)l->first + longest + 1;
    if (!l->period || missing <= base) return missing;
    const bool is_wide = l->max == QN_AST_MANY || l->max - l->min >= l->period - 1;
    return (uint32_t)(base + (is_wide ? 0 : (missing - base) % l->period));
}

uint32_t qn_gr_lengths_canon(const qn_gr_lengths *l, uint32_t chars, uint32_t longest) {
    if (chars < l->min) return l->min - canon_missing(l, l->min - chars, longest);
    if (l->max == QN_AST_MANY || chars > l->max) return chars;
    // Every state that has an end at all reaches one in `far` characters.
    const uint64_t room = (uint64_t)l->far + longest + 1;
    return l->max - chars > room ? l->max - (uint32_t)room : chars;
}
