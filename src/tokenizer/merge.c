#include "tokenizer/merge.h"

#include "core/mem.h"
#include "core/stop_flag.h"

#include <string.h>

// Words of up to this many symbols are scanned; longer ones use the heap. Either gives the same
// result. 5-letter words are typical; the scan wins below about 40 (bench/tokenizer.c).
enum { SCAN_MAX = 32 };

void qn_merge_clear(qn_merge *merge) { merge->n = merge->n_heap = 0; }

qn_status qn_merge_add(qn_merge *merge, uint32_t id, size_t size, qn_err *err) {
    const size_t i = merge->n;
    const size_t start = i ? (size_t)merge->symbols[i - 1].start + merge->symbols[i - 1].size : 0;
    if (i >= INT32_MAX - 1 || start + size > UINT32_MAX)
        return QN_FAIL(err, LIMIT, "a word of more than %d symbols", INT32_MAX - 1);
    void *symbols = merge->symbols;
    if (!qn_grow(&symbols, &merge->cap, i + 1, sizeof *merge->symbols))
        return QN_NOMEM(err, "symbols of a word");
    merge->symbols = symbols;
    merge->symbols[i] = (qn_symbol){.id = id,
                                    .start = (uint32_t)start,
                                    .size = (uint32_t)size,
                                    .prev = (int32_t)i - 1,
                                    .next = -1};
    if (i) merge->symbols[i - 1].next = (int32_t)i;
    merge->n++;
    return QN_OK;
}

// Joins symbol `at` with its right neighbour.
static void join(qn_symbol *symbols, int32_t at, uint32_t id) {
    qn_symbol *left = &symbols[at];
    qn_symbol *right = &symbols[left->next];
    left->id = id;
    left->size += right->size;
    left->next = right->next;
    right->size = 0;
    if (left->next >= 0) symbols[left->next].prev = at;
}

// --- short words ---------------------------------------------------------------------------------

typedef struct scan_pair {
    int32_t at;
    uint32_t rank, id; // QN_NO_ID: they do not merge
} scan_pair;

static void look(qn_merge *merge, scan_pair *pair, qn_merge_find *find, const void *arg) {
    const qn_symbol *left = &merge->symbols[pair->at];
    pair->id = QN_NO_ID;
    pair->rank = UINT32_MAX;
    merge->steps++;
    if (left->next < 0) return;
    uint32_t rank, id;
    if (!find(arg, left, &merge->symbols[left->next], &rank, &id)) return;
    pair->rank = rank;
    pair->id = id;
}

static void run_scan(qn_merge *merge, qn_merge_find *find, const void *arg) {
    scan_pair pairs[SCAN_MAX];
    size_t n = merge->n;
    for (size_t i = 0; i < n; i++) {
        pairs[i].at = (int32_t)i;
        look(merge, &pairs[i], find, arg);
    }
    for (;;) {
        size_t best = n;
        uint32_t rank = UINT32_MAX;
        for (size_t i = 0; i < n; i++) {
            const bool better = pairs[i].id != QN_NO_ID && (best == n || pairs[i].rank < rank);
            best = better ? i : best;
            rank = better ? pairs[i].rank : rank;
        }
        merge->steps += n;
        if (best == n) return;
        join(merge->symbols, pairs[best].at, pairs[best].id);
        memmove(&pairs[best + 1], &pairs[best + 2], (n - best - 2) * sizeof *pairs);
        n--;
        look(merge, &pairs[best], find, arg);
        if (best > 0) look(merge, &pairs[best - 1], find, arg);
    }
}

// --- long words ----------------------------------------------------------------------------------

static bool before(const qn_merge_item *a, const qn_merge_item *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void push(qn_merge *merge, qn_merge_item item) {
    size_t i = merge->n_heap++;
    while (i > 0 && before(&item, &merge->heap[(i - 1) / 2])) {
        merge->heap[i] = merge->heap[(i - 1) / 2];
        i = (i - 1) / 2;
        merge->steps++;
    }
    merge->heap[i] = item;
}

static qn_merge_item pop(qn_merge *merge) {
    const qn_merge_item top = merge->heap[0];
    const qn_merge_item last = merge->heap[--merge->n_heap];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= merge->n_heap) break;
        if (child + 1 < merge->n_heap && before(&merge->heap[child + 1], &merge->heap[child]))
            child++;
        if (!before(&merge->heap[child], &last)) break;
        merge->heap[i] = merge->heap[child];
        i = child;
        merge->steps++;
    }
    if (merge->n_heap) merge->heap[i] = last;
    return top;
}

// Puts the pair of symbol `at` and its right neighbour into the heap if they can merge.
static qn_status offer(qn_merge *merge, int32_t at, qn_merge_find *find, const void *arg,
                       qn_err *err) {
    merge->steps++;
    if (qn_stop_is_wanted(merge->stop)) return QN_FAIL(err, STOPPED, "tokenizing was stopped");
    if (at < 0 || merge->symbols[at].next < 0) return QN_OK;
    const qn_symbol *left = &merge->symbols[at];
    const qn_symbol *right = &merge->symbols[left->next];
    qn_merge_item item = {.at = (uint32_t)at, .size = left->size + right->size};
    if (!find(arg, left, right, &item.rank, &item.id)) return QN_OK;
    void *heap = merge->heap;
    if (!qn_grow(&heap, &merge->heap_cap, merge->n_heap + 1, sizeof *merge->heap))
        return QN_NOMEM(err, "merges of a word");
    merge->heap = heap;
    push(merge, item);
    return QN_OK;
}

static qn_status run_heap(qn_merge *merge, qn_merge_find *find, const void *arg, qn_err *err) {
    for (size_t i = 0; i + 1 < merge->n; i++) QN_TRY(offer(merge, (int32_t)i, find, arg, err));
    while (merge->n_heap > 0) {
        const qn_merge_item item = pop(merge);
        const int32_t at = (int32_t)item.at;
        const qn_symbol *left = &merge->symbols[at];
        if (left->size == 0 || left->next < 0 ||
            left->size + merge->symbols[left->next].size != item.size)
            continue; // one of the two has merged with another since
        join(merge->symbols, at, item.id);
        QN_TRY(offer(merge, left->prev, find, arg, err));
        QN_TRY(offer(merge, at, find, arg, err));
    }
    return QN_OK;
}

qn_status qn_merge_run(qn_merge *merge, qn_merge_find *find, const void *arg, qn_err *err) {
    if (merge->n > SCAN_MAX) return run_heap(merge, find, arg, err);
    run_scan(merge, find, arg);
    return QN_OK;
}

void qn_merge_deinit(qn_merge *merge) {
    qn_free(merge->symbols);
    qn_free(merge->heap);
    *merge = (qn_merge){0};
}
