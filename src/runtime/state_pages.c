// Counted pages of one group. A page is free, held by sequences, kept by nodes of the tree, or
// both; `n_kept` counts those that would be free without the tree.
#include "runtime/state_int.h"

#include <assert.h>

bool qn_pages_init(state_pages *pages, qn_state *state) {
    const size_t n = (size_t)pages->n;
    pages->refs = qn_state_reserve(state, n, sizeof *pages->refs);
    pages->tree_refs = qn_state_reserve(state, n, sizeof *pages->tree_refs);
    pages->free = qn_state_reserve(state, n, sizeof *pages->free);
    if (!pages->refs || !pages->tree_refs || !pages->free) return false;
    pages->n_free = pages->n;
    return true;
}

static int is_kept(const state_pages *pages, int32_t page) {
    return pages->refs[page] > 0 && pages->refs[page] == pages->tree_refs[page];
}

static void change(state_pages *pages, int32_t page, int refs, int tree_refs) {
    pages->n_kept -= is_kept(pages, page);
    pages->refs[page] += refs;
    pages->tree_refs[page] += tree_refs;
    assert(pages->tree_refs[page] >= 0 && pages->refs[page] >= pages->tree_refs[page]);
    pages->n_kept += is_kept(pages, page);
    if (pages->refs[page] > 0) return;
    pages->free[pages->n_listed++] = page;
    pages->n_free++;
}

int32_t qn_pages_take(state_pages *pages) {
    assert(pages->n_free > 0);
    const int32_t page = pages->n_listed ? pages->free[--pages->n_listed] : pages->n_touched++;
    pages->n_free--;
    pages->refs[page] = 1;
    return page;
}

void qn_pages_hold(state_pages *pages, int32_t page) { change(pages, page, 1, 0); }
void qn_pages_drop(state_pages *pages, int32_t page) { change(pages, page, -1, 0); }
void qn_pages_keep(state_pages *pages, int32_t page) { change(pages, page, 1, 1); }
void qn_pages_forget(state_pages *pages, int32_t page) { change(pages, page, -1, -1); }
