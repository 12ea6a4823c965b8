#include "tokenizer/prefix.h"

#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

static int by_text(const void *left, const void *right) {
    const qn_prefix_item *a = left, *b = right;
    const int order = memcmp(a->data, b->data, a->size < b->size ? a->size : b->size);
    if (order) return order;
    if (a->size != b->size) return a->size < b->size ? -1 : 1;
    return (a->value > b->value) - (a->value < b->value);
}

qn_status qn_prefix_init(qn_prefix_set *out, qn_prefix_item *items, size_t n, qn_err *err) {
    if (n > UINT32_MAX) {
        qn_free(items);
        return QN_FAIL(err, LIMIT, "%zu strings in a set, at most %u", n, UINT32_MAX);
    }
    qn_prefix_set set = {.items = items};
    if (n) qsort(items, n, sizeof *items, by_text);
    for (size_t i = 0; i < n; i++) {
        const qn_prefix_item *last = set.n ? &items[set.n - 1] : NULL;
        if (last && last->size == items[i].size &&
            memcmp(last->data, items[i].data, last->size) == 0)
            continue;
        items[set.n++] = items[i];
    }
    size_t i = 0;
    for (int c = 0; c < 256; c++) {
        set.first[c] = (uint32_t)i;
        while (i < set.n && (unsigned char)items[i].data[0] == c) i++;
    }
    set.first[256] = (uint32_t)i;
    *out = set;
    return QN_OK;
}

void qn_prefix_deinit(qn_prefix_set *set) {
    qn_free(set->items);
    *set = (qn_prefix_set){0};
}

// First of items[lo .. hi) whose byte at `depth` is >= c; all of them are longer than depth.
static size_t lower_bound(const qn_prefix_item *items, size_t lo, size_t hi, size_t depth, int c) {
    while (lo < hi) {
        const size_t middle = lo + (hi - lo) / 2;
        if ((unsigned char)items[middle].data[depth] < c)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo;
}

static void narrow(qn_prefix_walk *walk, const qn_prefix_set *set, unsigned char c) {
    if (walk->depth == 0) {
        walk->lo = set->first[c];
        walk->hi = set->first[c + 1];
    } else {
        walk->lo = lower_bound(set->items, walk->lo, walk->hi, walk->depth, c);
        walk->hi = lower_bound(set->items, walk->lo, walk->hi, walk->depth, c + 1);
    }
    walk->depth++;
}

const qn_prefix_item *qn_prefix_next(qn_prefix_walk *walk, const qn_prefix_set *set,
                                     const char *text, size_t size) {
    while (walk->depth < size && (walk->depth == 0 || walk->lo < walk->hi)) {
        if (walk->depth > 0 &&
            walk->hi - walk->lo == 1) { // one candidate: compare the rest at once
            const qn_prefix_item *item = &set->items[walk->lo++];
            if (item->size > size ||
                memcmp(item->data + walk->depth, text + walk->depth, item->size - walk->depth) != 0)
                return NULL;
            walk->depth = item->size;
            return item;
        }
        narrow(walk, set, (unsigned char)text[walk->depth]);
        // The candidate that ends here sorts before the longer ones.
        if (walk->lo < walk->hi && set->items[walk->lo].size == walk->depth)
            return &set->items[walk->lo++];
    }
    return NULL;
}
