// Characters as bytes of UTF-8. Bytes after which the same may follow are one set, so that a class
// of hundreds of ranges (all letters) is a small tree.
#include "core/mem.h"
#include "gen/grammar/ast.h"

typedef struct codes {
    const qn_gr_code_range *ranges; // ascending, apart
    size_t n;
} codes;

typedef enum cover { COVER_NONE, COVER_SOME, COVER_ALL } cover;

static cover cover_of(const codes *set, uint32_t lo, uint32_t hi) {
    size_t a = 0, b = set->n;
    while (a < b) { // the first range that does not end before lo
        const size_t mid = (a + b) / 2;
        if (set->ranges[mid].hi < lo)
            a = mid + 1;
        else
            b = mid;
    }
    if (a == set->n || set->ranges[a].lo > hi) return COVER_NONE;
    return set->ranges[a].lo <= lo && set->ranges[a].hi >= hi ? COVER_ALL : COVER_SOME;
}

static int32_t any_tail(qn_gr_ast *ast, size_t n) {
    int32_t node = QN_AST_EMPTY;
    for (size_t i = 0; i < n; i++) node = qn_gr_seq(ast, qn_gr_span(ast, 0x80, 0xBF), node);
    return node;
}

// The last bytes of the 64 codes from `base` on that are in the set.
static qn_gr_byte_set last_bytes(const codes *set, uint32_t base) {
    qn_gr_byte_set out = {{0}};
    for (uint32_t i = 0; i < 64; i++)
        if (cover_of(set, base + i, base + i)) qn_gr_byte_set_add(&out, 0x80 + i);
    return out;
}

// Bytes that lead to the same: any tail, or certain last bytes, or (node) anything else.
typedef struct group {
    qn_gr_byte_set bytes, last;
    int32_t node; // -1: `last`
} group;

typedef struct groups {
    group items[64];
    size_t n;
} groups;

static void add_byte(groups *g, unsigned byte, const qn_gr_byte_set *last, int32_t node) {
    size_t i = 0;
    for (; i < g->n; i++) {
        const bool same_last = node < 0 && !memcmp(&g->items[i].last, last, sizeof *last);
        if (g->items[i].node == node && (node >= 0 || same_last)) break;
    }
    if (i == g->n) g->items[g->n++] = (group){.last = *last, .node = node};
    qn_gr_byte_set_add(&g->items[i].bytes, byte);
}

// Codes from `base` on: one of the bytes from `first` to `last`, each for 64^n_tail codes, then
// n_tail bytes.
static int32_t bytes_node(qn_gr_ast *ast, const codes *set, unsigned first, unsigned last,
                          uint32_t base, unsigned n_tail) {
    static const qn_gr_byte_set none = {{0}};
    groups found = {.n = 0};
    int32_t all = -1;
    for (unsigned byte = first; byte <= last; byte++) {
        const uint32_t size = (uint32_t)1 << (6 * n_tail), lo = base + (byte - first) * size;
        const cover how = cover_of(set, lo, lo + size - 1);
        if (how == COVER_ALL) {
            if (all < 0) all = any_tail(ast, n_tail);
            add_byte(&found, byte, &none, all);
        } else if (how == COVER_SOME && n_tail == 1) {
            const qn_gr_byte_set ends = last_bytes(set, lo);
            add_byte(&found, byte, &ends, -1);
        } else if (how == COVER_SOME) {
            add_byte(&found, byte, &none, bytes_node(ast, set, 0x80, 0xBF, lo, n_tail - 1));
        }
    }
    int32_t node = QN_AST_NEVER;
    for (size_t i = 0; i < found.n; i++) {
        const group *g = &found.items[i];
        const int32_t tail = g->node < 0 ? qn_gr_set(ast, &g->last) : g->node;
        node = qn_gr_alt(ast, qn_gr_seq(ast, qn_gr_set(ast, &g->bytes), tail), node);
    }
    return node;
}

// Characters of one length in UTF-8: their codes, first bytes, and how many follow.
typedef struct form {
    uint32_t lo, hi, base;
    unsigned first, last, n_tail;
} form;

static const form forms[] = {{0x80, 0x7FF, 0x80, 0xC2, 0xDF, 1},
                             {0x800, 0xD7FF, 0, 0xE0, 0xED, 2},
                             {0xE000, 0xFFFF, 0xE000, 0xEE, 0xEF, 2},
                             {0x10000, 0x10FFFF, 0, 0xF0, 0xF4, 3}};

static int32_t form_node(qn_gr_ast *ast, const form *f, const qn_gr_code_range *ranges, size_t n,
                         qn_gr_code_range *room) {
    codes set = {room, 0};
    for (size_t i = 0; i < n; i++) {
        const uint32_t lo = ranges[i].lo > f->lo ? ranges[i].lo : f->lo;
        const uint32_t hi = ranges[i].hi < f->hi ? ranges[i].hi : f->hi;
        if (lo <= hi) room[set.n++] = (qn_gr_code_range){lo, hi};
    }
    return set.n ? bytes_node(ast, &set, f->first, f->last, f->base, f->n_tail) : QN_AST_NEVER;
}

int32_t qn_gr_codes(qn_gr_ast *ast, const qn_gr_code_range *ranges, size_t n) {
    qn_gr_byte_set ascii = {{0}};
    int32_t node = QN_AST_NEVER;
    for (size_t i = 0; i < n; i++)
        for (uint32_t code = ranges[i].lo; code <= ranges[i].hi && code < 0x80; code++)
            qn_gr_byte_set_add(&ascii, code);
    if (n && ranges[n - 1].hi >= 0x80) {
        qn_gr_code_range *room = qn_alloc(n, sizeof *room);
        if (!room) {
            qn_gr_ast_fail(ast, QN_MEMORY, NULL);
            return QN_AST_NEVER;
        }
        for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
            node = qn_gr_alt(ast, form_node(ast, &forms[i], ranges, n, room), node);
        qn_free(room);
    }
    return qn_gr_alt(ast, qn_gr_set(ast, &ascii), node);
}
