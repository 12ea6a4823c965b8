#include "gen/strings.h"

#include "core/mem.h"
#include "core/utf8.h"

#include <string.h>

typedef struct node {
    uint32_t fail;        // the longest shorter prefix that this one ends with
    uint32_t depth;       // bytes
    uint32_t hit1;        // number of the longest string that this one ends with, + 1; 0: none
    uint32_t first, last; // sorted strings [first, last) begin with this one
} node;

// An edge of the tree, found by (node, byte).
typedef struct edge {
    uint32_t from, to; // from: node << 8 | byte; to 0: a free slot, as no edge leads to the start
} edge;

struct qn_strings {
    size_t n, longest;
    char *bytes;      // all strings, in the order they were given
    qn_str *texts;    // (n) in the order they were given
    uint32_t *sorted; // (n) numbers by content
    node *nodes;
    size_t n_nodes;
    edge *edges; // (cap) open addressing
    size_t cap;  // a power of two, at least twice the nodes
};

static size_t slot_of(const qn_strings *s, uint32_t from) {
    const uint64_t hash = (uint64_t)from * 0x9E3779B97F4A7C15;
    size_t slot = (size_t)(hash >> 32) & (s->cap - 1);
    while (s->edges[slot].to && s->edges[slot].from != from) slot = (slot + 1) & (s->cap - 1);
    return slot;
}

static uint32_t find_child(const qn_strings *s, uint32_t from, unsigned char byte) {
    return s->edges[slot_of(s, from << 8 | byte)].to;
}

// --- building ------------------------------------------------------------------------------------

static qn_status check_texts(size_t *n_bytes, const char *const *texts, size_t n,
                             const qn_strings_opts *opts, qn_err *err) {
    if (n > opts->max)
        return QN_FAIL(err, LIMIT, "%zu %ss, at most %zu are possible", n, opts->what, opts->max);
    if (n && !texts) return QN_FAIL(err, ARGUMENT, "%zu %ss, but the list is NULL", n, opts->what);
    *n_bytes = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t size = texts[i] ? strnlen(texts[i], opts->max_bytes + 1) : 0;
        *n_bytes += size;
        if (size == 0) return QN_FAIL(err, ARGUMENT, "%s %zu is empty", opts->what, i);
        if (*n_bytes > opts->max_bytes)
            return QN_FAIL(err, LIMIT, "%ss of more than %zu bytes together", opts->what,
                           opts->max_bytes);
        if (!qn_utf8_valid(texts[i], size))
            return QN_FAIL(err, ARGUMENT, "%s %zu is not UTF-8", opts->what, i);
    }
    return QN_OK;
}

// By content, then number.
static bool is_before(const qn_strings *s, uint32_t a, uint32_t b) {
    const qn_str x = s->texts[a], y = s->texts[b];
    const int order = memcmp(x.data, y.data, x.size < y.size ? x.size : y.size);
    if (order) return order < 0;
    return x.size != y.size ? x.size < y.size : a < b;
}

static void sift(const qn_strings *s, size_t at, size_t n) {
    uint32_t *heap = s->sorted;
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && is_before(s, heap[child], heap[child + 1])) child++;
        if (!is_before(s, heap[at], heap[child])) return;
        const uint32_t moved = heap[at];
        heap[at] = heap[child];
        heap[child] = moved;
    }
}

static void sort_texts(qn_strings *s) {
    for (size_t i = 0; i < s->n; i++) s->sorted[i] = (uint32_t)i;
    for (size_t i = s->n / 2; i-- > 0;) sift(s, i, s->n);
    for (size_t end = s->n; end-- > 1;) {
        const uint32_t last = s->sorted[0];
        s->sorted[0] = s->sorted[end];
        s->sorted[end] = last;
        sift(s, 0, end);
    }
}

static qn_status allocate(qn_strings *s, size_t n, size_t n_bytes, qn_err *err) {
    s->cap = 2;
    while (s->cap < 2 * (n_bytes + 1)) s->cap *= 2;
    s->bytes = qn_alloc(n_bytes, 1);
    s->texts = qn_alloc(n, sizeof *s->texts);
    s->sorted = qn_alloc(n, sizeof *s->sorted);
    s->nodes = qn_alloc(n_bytes + 1, sizeof *s->nodes);
    s->edges = qn_alloc(s->cap, sizeof *s->edges);
    if (!s->bytes || !s->texts || !s->sorted || !s->nodes || !s->edges)
        return QN_NOMEM(err, "strings to look for");
    return QN_OK;
}

static void copy_texts(qn_strings *s, const char *const *texts, size_t n) {
    char *at = s->bytes;
    for (size_t i = 0; i < n; i++) {
        const size_t size = strlen(texts[i]);
        memcpy(at, texts[i], size);
        s->texts[i] = (qn_str){at, size};
        at += size;
        if (size > s->longest) s->longest = size;
    }
    s->n = n;
    sort_texts(s);
}

// Strings come in the order of their content, so those below a node are neighbours.
static void insert(qn_strings *s, uint32_t place) {
    const uint32_t number = s->sorted[place];
    const qn_str text = s->texts[number];
    uint32_t at = QN_STRINGS_START;
    s->nodes[at].last = place + 1;
    for (size_t i = 0; i < text.size; i++) {
        const uint32_t from = at << 8 | (unsigned char)text.data[i];
        edge *e = &s->edges[slot_of(s, from)];
        if (!e->to) {
            *e = (edge){from, (uint32_t)s->n_nodes++};
            s->nodes[e->to] = (node){.depth = (uint32_t)i + 1, .first = place};
        }
        at = e->to;
        s->nodes[at].last = place + 1;
    }
    if (!s->nodes[at].hit1) s->nodes[at].hit1 = number + 1;
}

// The slots of all edges, by the depth that they lead to.
static uint32_t *sort_edges(const qn_strings *s) {
    uint32_t *order = qn_alloc(s->n_nodes, sizeof *order);
    uint32_t *ends = qn_alloc(s->longest + 2, sizeof *ends); // first places of the depths
    if (order && ends) {
        for (size_t i = 1; i < s->n_nodes; i++) ends[s->nodes[i].depth + 1]++;
        for (size_t d = 1; d < s->longest + 2; d++) ends[d] += ends[d - 1];
        for (size_t slot = 0; slot < s->cap; slot++) {
            const uint32_t to = s->edges[slot].to;
            if (to) order[ends[s->nodes[to].depth]++] = (uint32_t)slot;
        }
    } else {
        qn_free(order);
        order = NULL;
    }
    qn_free(ends);
    return order;
}

// A node's link is found from its parent's, which is less deep.
static qn_status link_nodes(qn_strings *s, qn_err *err) {
    uint32_t *order = sort_edges(s);
    if (!order) return QN_NOMEM(err, "strings to look for");
    for (size_t i = 0; i + 1 < s->n_nodes; i++) {
        const edge e = s->edges[order[i]];
        const uint32_t parent = e.from >> 8;
        node *to = &s->nodes[e.to];
        if (parent != QN_STRINGS_START)
            to->fail = qn_strings_next(s, s->nodes[parent].fail, (unsigned char)(e.from & 0xFF));
        if (!to->hit1) to->hit1 = s->nodes[to->fail].hit1;
    }
    qn_free(order);
    return QN_OK;
}

qn_status qn_strings_check(const char *const *texts, size_t n, const qn_strings_opts *opts,
                           qn_err *err) {
    size_t n_bytes;
    return check_texts(&n_bytes, texts, n, opts, err);
}

qn_status qn_strings_create(qn_strings **out, const char *const *texts, size_t n,
                            const qn_strings_opts *opts, qn_err *err) {
    size_t n_bytes;
    QN_TRY(check_texts(&n_bytes, texts, n, opts, err));
    qn_strings *s = qn_alloc(1, sizeof *s);
    if (!s) return QN_NOMEM(err, "strings to look for");
    qn_status status = allocate(s, n, n_bytes, err);
    if (!status) {
        copy_texts(s, texts, n);
        s->n_nodes = 1;
        for (size_t i = 0; i < n; i++) insert(s, (uint32_t)i);
        status = link_nodes(s, err);
    }
    if (status)
        qn_strings_destroy(s);
    else
        *out = s;
    return status;
}

void qn_strings_destroy(qn_strings *s) {
    if (!s) return;
    qn_free(s->bytes);
    qn_free(s->texts);
    qn_free(s->sorted);
    qn_free(s->nodes);
    qn_free(s->edges);
    qn_free(s);
}

// --- use -----------------------------------------------------------------------------------------

uint32_t qn_strings_next(const qn_strings *s, uint32_t at, unsigned char byte) {
    uint32_t to;
    while (!(to = find_child(s, at, byte)) && at != QN_STRINGS_START) at = s->nodes[at].fail;
    return to;
}

size_t qn_strings_depth(const qn_strings *s, uint32_t at) { return s->nodes[at].depth; }

int64_t qn_strings_hit(const qn_strings *s, uint32_t at) { return (int64_t)s->nodes[at].hit1 - 1; }

uint32_t qn_strings_shorter(const qn_strings *s, uint32_t at) { return s->nodes[at].fail; }

void qn_strings_range(size_t *from, size_t *to, const qn_strings *s, uint32_t at) {
    *from = s->nodes[at].first;
    *to = s->nodes[at].last;
}

qn_str qn_strings_sorted(const qn_strings *s, size_t i) { return s->texts[s->sorted[i]]; }

qn_str qn_strings_get(const qn_strings *s, size_t i) { return s->texts[i]; }

size_t qn_strings_longest(const qn_strings *s) { return s->longest; }

uint32_t qn_strings_scan(size_t *n_read, const qn_strings *s, uint32_t at, qn_str text) {
    size_t i = 0;
    while (i < text.size) {
        at = qn_strings_next(s, at, (unsigned char)text.data[i++]);
        if (s->nodes[at].hit1) break;
    }
    *n_read = i;
    return at;
}
