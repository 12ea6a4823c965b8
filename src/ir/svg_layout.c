// Places the items of a box: ranks from top to bottom by the longest way from a source, an order in
// each rank with few crossings, and x so that edges run straight. Edges over several ranks get a
// bend in each rank they pass; residuals run beside all ranks.
#include "ir/svg_int.h"

#include "core/mem.h"

#include <stdlib.h>

enum {
    ORDER_SWEEPS = 12,
    PLACE_SWEEPS = 200, // of a box that a person could read
    FEW_SWEEPS = 8,     // of a larger one
    READABLE_ITEMS = 2000,
    SIDE_SPAN = 3,
    LANES = 64
};

static const double item_gap = 22, rank_gap = 26, bend_width = 10, lane_gap = 14;

typedef struct sort_key {
    double wish;
    int place;
    int32_t item;
} sort_key;

typedef struct layout {
    qn_svg_page *page;
    int32_t *in_rank; // items, rank by rank, each from the left
    size_t *rank_at;  // where each rank begins; one more at the end
    int32_t *above;   // links sorted by the item below them, and where each item's begin
    size_t *above_at;
    int32_t *below; // links sorted by the item above them
    size_t *below_at;
    double *wish, *weight; // where an item wants to be, and how much
    sort_key *keys;        // room for a rank, or for the links of an item
} layout;

static void find_ranks(qn_svg_page *page) {
    for (size_t i = 0; i < page->n_edges; i++) { // in the order of the items below
        const qn_svg_edge *e = &page->edges[i];
        const int rank = page->items[e->from].rank + 1;
        if (rank > page->items[e->to].rank) page->items[e->to].rank = rank;
    }
    int last = 0;
    for (size_t i = 0; i < page->n_items; i++) {
        qn_svg_item *item = &page->items[i];
        if (item->kind != QN_SVG_EXIT && item->rank > last) last = item->rank;
        if (item->kind == QN_SVG_INPUT) item->rank = INT32_MAX;
    }
    for (size_t i = 0; i < page->n_edges; i++) { // inputs are just above their first reader
        qn_svg_item *from = &page->items[page->edges[i].from];
        const int rank = page->items[page->edges[i].to].rank - 1;
        if (from->kind == QN_SVG_INPUT && rank < from->rank) from->rank = rank;
    }
    for (size_t i = 0; i < page->n_items; i++) {
        qn_svg_item *item = &page->items[i];
        if (item->kind == QN_SVG_EXIT) item->rank = last + 1;
        if (item->rank >= page->n_ranks) page->n_ranks = item->rank + 1;
    }
}

static bool add_link(qn_svg_page *page, qn_svg_link link) {
    void *links = page->links;
    if (!qn_grow(&links, &page->cap_links, page->n_links + 1, sizeof link)) return false;
    page->links = links;
    page->links[page->n_links++] = link;
    return true;
}

static bool add_bend(qn_svg_page *page, int rank, int32_t *out) {
    void *items = page->items;
    if (!qn_grow(&items, &page->cap_items, page->n_items + 1, sizeof *page->items)) return false;
    page->items = items;
    page->items[page->n_items] = (qn_svg_item){.kind = QN_SVG_BEND, .rank = rank, .w = bend_width};
    *out = (int32_t)page->n_items++;
    return true;
}

typedef struct sorted_edge {
    int32_t from, to;
    int result, rank; // of the item below
    bool keeps;
} sorted_edge;

static int compare_edges(const void *x, const void *y) {
    const sorted_edge *a = x, *b = y;
    if (a->from != b->from) return a->from < b->from ? -1 : 1;
    if (a->result != b->result) return a->result < b->result ? -1 : 1;
    if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
    return a->to < b->to ? -1 : a->to > b->to;
}

// A residual: a value that is read, and added again much further down.
static bool is_residual(const qn_svg_page *page, const qn_svg_edge *e, int n_readers) {
    const qn_svg_item *from = &page->items[e->from], *to = &page->items[e->to];
    return to->kind == QN_SVG_OP && to->op == QN_OP_ADD && n_readers > 1 &&
           to->rank - from->rank >= SIDE_SPAN;
}

// Edges of the same value share their way down.
static bool add_links(qn_svg_page *page, qn_arena *arena) {
    sorted_edge *sorted = qn_arena_alloc(arena, page->n_edges, sizeof *sorted);
    int *n_readers = qn_arena_alloc(arena, page->n_items, sizeof *n_readers);
    if (!sorted || !n_readers) return false;
    size_t n = 0;
    for (size_t i = 0; i < page->n_edges; i++) n_readers[page->edges[i].from]++;
    for (size_t i = 0; i < page->n_edges; i++) {
        qn_svg_edge *e = &page->edges[i];
        const int rank = page->items[e->to].rank;
        e->is_side = is_residual(page, e, n_readers[e->from]);
        if (!e->is_side) sorted[n++] = (sorted_edge){e->from, e->to, e->result, rank, e->keeps};
    }
    qsort(sorted, n, sizeof *sorted, compare_edges);
    int32_t way = 0;
    for (size_t i = 0; i < n; i++) {
        const sorted_edge *e = &sorted[i];
        if (i == 0 || e[-1].from != e->from || e[-1].result != e->result) way = e->from;
        while (page->items[way].rank < e->rank - 1) {
            int32_t bend;
            if (!add_bend(page, page->items[way].rank + 1, &bend) ||
                !add_link(
                    page,
                    (qn_svg_link){.from = way, .to = bend, .result = e->result, .keeps = e->keeps}))
                return false;
            way = bend;
        }
        if (!add_link(page, (qn_svg_link){
                                .from = way, .to = e->to, .result = e->result, .keeps = e->keeps}))
            return false;
    }
    return true;
}

// Groups the numbers 0 .. n-1 by key (0 .. n_keys-1): at[k] is where group k begins.
static bool group(int32_t **out, size_t **out_at, qn_arena *arena, const int32_t *keys, size_t n,
                  size_t n_keys) {
    int32_t *items = qn_arena_alloc(arena, n, sizeof *items);
    size_t *at = qn_arena_alloc(arena, n_keys + 2, sizeof *at);
    if (!items || !at) return false;
    for (size_t i = 0; i < n; i++) at[keys[i] + 2]++;
    for (size_t k = 2; k < n_keys + 2; k++) at[k] += at[k - 1];
    for (size_t i = 0; i < n; i++) items[at[keys[i] + 1]++] = (int32_t)i;
    *out = items;
    *out_at = at;
    return true;
}

static bool group_all(layout *l, qn_arena *arena) {
    const qn_svg_page *page = l->page;
    const size_t max = page->n_items > page->n_links ? page->n_items : page->n_links;
    int32_t *keys = qn_arena_alloc(arena, max, sizeof *keys);
    l->wish = qn_arena_alloc(arena, page->n_items, sizeof *l->wish);
    l->keys = qn_arena_alloc(arena, max, sizeof *l->keys);
    l->weight = qn_arena_alloc(arena, page->n_items, sizeof *l->weight);
    if (!keys || !l->wish || !l->weight || !l->keys) return false;
    for (size_t i = 0; i < page->n_items; i++) keys[i] = page->items[i].rank;
    if (!group(&l->in_rank, &l->rank_at, arena, keys, page->n_items, (size_t)page->n_ranks))
        return false;
    for (size_t i = 0; i < page->n_links; i++) keys[i] = page->links[i].to;
    if (!group(&l->above, &l->above_at, arena, keys, page->n_links, page->n_items)) return false;
    for (size_t i = 0; i < page->n_links; i++) keys[i] = page->links[i].from;
    return group(&l->below, &l->below_at, arena, keys, page->n_links, page->n_items);
}

// The item at the other end of one of an item's links, above it or below.
static const qn_svg_item *neighbour(const layout *l, int32_t item, bool is_above, size_t i) {
    const qn_svg_page *page = l->page;
    if (is_above) return &page->items[page->links[l->above[l->above_at[item] + i]].from];
    return &page->items[page->links[l->below[l->below_at[item] + i]].to];
}

static size_t n_neighbours(const layout *l, int32_t item, bool is_above) {
    const size_t *at = is_above ? l->above_at : l->below_at;
    return at[item + 1] - at[item];
}

static int compare_keys(const void *x, const void *y) {
    const sort_key *a = x, *b = y;
    if (a->wish != b->wish) return a->wish < b->wish ? -1 : 1;
    return a->place < b->place ? -1 : a->place > b->place;
}

// Sorts a rank by the mean place of the neighbours on one side; items without any stay near where
// they are.
static void sort_rank(const layout *l, int rank, bool is_above) {
    qn_svg_item *items = l->page->items;
    int32_t *row = l->in_rank + l->rank_at[rank];
    const size_t n = l->rank_at[rank + 1] - l->rank_at[rank];
    for (size_t i = 0; i < n; i++) {
        const size_t count = n_neighbours(l, row[i], is_above);
        double sum = 0;
        for (size_t k = 0; k < count; k++) sum += neighbour(l, row[i], is_above, k)->place;
        const int place = items[row[i]].place;
        l->keys[i] = (sort_key){count ? sum / (double)count : place, place, row[i]};
    }
    qsort(l->keys, n, sizeof *l->keys, compare_keys);
    for (size_t i = 0; i < n; i++) {
        row[i] = l->keys[i].item;
        items[row[i]].place = (int)i;
    }
}

static void find_order(const layout *l) {
    const int n = l->page->n_ranks;
    for (int rank = 0; rank < n; rank++) {
        for (size_t i = l->rank_at[rank]; i < l->rank_at[rank + 1]; i++)
            l->page->items[l->in_rank[i]].place = (int)(i - l->rank_at[rank]);
    }
    for (int sweep = 0; sweep < ORDER_SWEEPS; sweep++) {
        const bool down = sweep % 2 == 0;
        for (int i = 1; i < n; i++) sort_rank(l, down ? i : n - 1 - i, down);
    }
}

// The nearest places to the wishes that keep the order and the gaps: items that would overlap move
// as one group to the mean of their wishes.
static void spread_rank(const layout *l, int rank, double *group_x, double *group_weight,
                        size_t *group_n) {
    qn_svg_item *items = l->page->items;
    const int32_t *row = l->in_rank + l->rank_at[rank];
    const size_t n = l->rank_at[rank + 1] - l->rank_at[rank];
    size_t n_groups = 0;
    double offset = 0; // of an item from the first of the rank, all side by side
    for (size_t i = 0; i < n; i++) {
        if (i > 0) offset += (items[row[i - 1]].w + items[row[i]].w) / 2 + item_gap;
        group_x[n_groups] = l->wish[row[i]] - offset;
        group_weight[n_groups] = l->weight[row[i]];
        group_n[n_groups++] = 1;
        while (n_groups > 1 && group_x[n_groups - 2] > group_x[n_groups - 1]) {
            const size_t a = n_groups - 2, b = n_groups - 1;
            const double sum = group_weight[a] + group_weight[b];
            group_x[a] = (group_x[a] * group_weight[a] + group_x[b] * group_weight[b]) / sum;
            group_weight[a] = sum;
            group_n[a] += group_n[b];
            n_groups--;
        }
    }
    offset = 0;
    size_t i = 0;
    for (size_t k = 0; k < n_groups; k++) {
        for (size_t j = 0; j < group_n[k]; j++, i++) {
            if (i > 0) offset += (items[row[i - 1]].w + items[row[i]].w) / 2 + item_gap;
            items[row[i]].x = group_x[k] + offset;
        }
    }
}

// How much a link wants to be straight: an edge that passes ranks most, then an only child.
static double pull(const layout *l, int32_t item, bool is_above, size_t i) {
    const qn_svg_page *page = l->page;
    const qn_svg_link *link =
        &page->links[is_above ? l->above[l->above_at[item] + i] : l->below[l->below_at[item] + i]];
    const bool from_bend = page->items[link->from].kind == QN_SVG_BEND;
    if (from_bend && page->items[link->to].kind == QN_SVG_BEND) return 8;
    const bool alone =
        n_neighbours(l, link->from, false) == 1 && n_neighbours(l, link->to, true) == 1;
    return alone ? 4 : 1;
}

static void wish_places(const layout *l, int rank, bool look_up, bool look_down) {
    for (size_t i = l->rank_at[rank]; i < l->rank_at[rank + 1]; i++) {
        const int32_t item = l->in_rank[i];
        double sum = 0, weight = 0;
        for (int side = 0; side < 2; side++) {
            const bool is_above = side == 0;
            if (!(is_above ? look_up : look_down)) continue;
            const size_t n = n_neighbours(l, item, is_above);
            for (size_t k = 0; k < n; k++) {
                const double strength = pull(l, item, is_above, k);
                sum += neighbour(l, item, is_above, k)->x * strength;
                weight += strength;
            }
        }
        l->wish[item] = weight > 0 ? sum / weight : l->page->items[item].x;
        l->weight[item] = weight > 0 ? weight : 0.1;
    }
}

static bool find_places(const layout *l, qn_arena *arena) {
    const size_t n = l->page->n_items;
    double *group_x = qn_arena_alloc(arena, n, sizeof *group_x);
    double *group_weight = qn_arena_alloc(arena, n, sizeof *group_weight);
    size_t *group_n = qn_arena_alloc(arena, n, sizeof *group_n);
    if (!group_x || !group_weight || !group_n) return false;
    const int n_ranks = l->page->n_ranks;
    const int sweeps = n > READABLE_ITEMS ? FEW_SWEEPS : PLACE_SWEEPS;
    for (int sweep = 0; sweep < sweeps; sweep++) {
        const bool down = sweep % 2 == 0, last = sweep >= 4;
        for (int i = 0; i < n_ranks; i++) {
            const int rank = down ? i : n_ranks - 1 - i;
            wish_places(l, rank, down || last, !down || last);
            spread_rank(l, rank, group_x, group_weight, group_n);
        }
    }
    return true;
}

// The room below a rank: more where many links cross it slantwise.
static double gap_below(const layout *l, int rank) {
    double gap = rank_gap;
    for (size_t i = l->rank_at[rank]; i < l->rank_at[rank + 1]; i++) {
        const qn_svg_item *item = &l->page->items[l->in_rank[i]];
        const size_t n = n_neighbours(l, l->in_rank[i], false);
        for (size_t k = 0; k < n; k++) {
            const double slant = neighbour(l, l->in_rank[i], false, k)->x - item->x;
            if (slant > 60 || slant < -60) gap += 3;
        }
    }
    return gap < 2 * rank_gap ? gap : 2 * rank_gap;
}

static void find_heights(const layout *l) {
    double y = 0;
    for (int rank = 0; rank < l->page->n_ranks; rank++) {
        double h = 0;
        for (size_t i = l->rank_at[rank]; i < l->rank_at[rank + 1]; i++) {
            const qn_svg_item *item = &l->page->items[l->in_rank[i]];
            if (item->h > h) h = item->h;
        }
        for (size_t i = l->rank_at[rank]; i < l->rank_at[rank + 1]; i++) {
            qn_svg_item *item = &l->page->items[l->in_rank[i]];
            item->y = y;
            if (item->kind == QN_SVG_BEND) item->h = h;
        }
        l->page->h = y + h;
        y += h + gap_below(l, rank);
    }
}

static int compare_x(const void *x, const void *y) {
    const sort_key *a = x, *b = y;
    return a->wish < b->wish ? -1 : a->wish > b->wish;
}

// Links arrive side by side on the top of an item, in the order of where they come from; the two
// results of an op leave apart.
static void find_ports(const layout *l) {
    qn_svg_page *page = l->page;
    for (size_t i = 0; i < page->n_items; i++) {
        const qn_svg_item *item = &page->items[i];
        const size_t n = n_neighbours(l, (int32_t)i, true);
        for (size_t k = 0; k < n; k++) {
            const int32_t link = l->above[l->above_at[i] + k];
            l->keys[k] = (sort_key){page->items[page->links[link].from].x, 0, link};
        }
        qsort(l->keys, n, sizeof *l->keys, compare_x);
        const double step = item->w / (double)(n + 1);
        for (size_t k = 0; k < n; k++)
            page->links[l->keys[k].item].x1 = item->x - item->w / 2 + step * (double)(k + 1);
    }
    for (size_t i = 0; i < page->n_links; i++) {
        const qn_svg_item *from = &page->items[page->links[i].from];
        const bool has_two = from->kind == QN_SVG_OP && qn_op_get(from->op)->n_out > 1;
        const double shift = has_two ? from->w / 6 * (page->links[i].result ? 1 : -1) : 0;
        page->links[i].x0 = from->x + shift;
    }
}

// Each residual gets the lane next to the box that no other one uses at the same height.
static void find_lanes(qn_svg_page *page, double left) {
    int busy_until[LANES];
    for (int i = 0; i < LANES; i++) busy_until[i] = -1;
    for (size_t i = 0; i < page->n_edges; i++) { // sorted by where they end
        qn_svg_edge *e = &page->edges[i];
        if (!e->is_side) continue;
        int lane = 0;
        while (lane < LANES - 1 && busy_until[lane] > page->items[e->from].rank) lane++;
        busy_until[lane] = page->items[e->to].rank;
        e->side = left - lane_gap * (lane + 1);
    }
}

// Moves everything so that the page begins at 0, with its lanes.
static void frame_page(qn_svg_page *page) {
    double left = 0, right = 0;
    for (size_t i = 0; i < page->n_items; i++) {
        const qn_svg_item *item = &page->items[i];
        if (i == 0 || item->x - item->w / 2 < left) left = item->x - item->w / 2;
        if (i == 0 || item->x + item->w / 2 > right) right = item->x + item->w / 2;
    }
    find_lanes(page, left);
    for (size_t i = 0; i < page->n_edges; i++) {
        if (page->edges[i].is_side && page->edges[i].side < left) left = page->edges[i].side;
    }
    for (size_t i = 0; i < page->n_items; i++) page->items[i].x -= left;
    for (size_t i = 0; i < page->n_edges; i++) page->edges[i].side -= left;
    for (size_t i = 0; i < page->n_links; i++) {
        page->links[i].x0 -= left;
        page->links[i].x1 -= left;
    }
    page->w = right - left;
}

bool qn_svg_page_lay_out(qn_svg_page *page, qn_arena *arena) {
    layout l = {.page = page};
    find_ranks(page);
    if (!add_links(page, arena) || !group_all(&l, arena)) return false;
    find_order(&l);
    if (!find_places(&l, arena)) return false;
    find_heights(&l);
    find_ports(&l);
    frame_page(page);
    return true;
}
