// The radix tree: what earlier sequences computed, by the keys of their rows.
//
// A node is a page. Models with full attention alone may go on from any row of a node; the least
// recently used leaves are evicted first. For all others the tree holds marks: checkpoints, with
// a slot and the pages of the windows before it. Then marks are evicted, and with them the nodes
// that lead to no other.
#include "runtime/state_int.h"

#include <assert.h>
#include <string.h>

enum { ROOT = 0, NONE = -1, N_DISTANCES = 64 };

// --- list by use ---

static void list_remove(tree_list *list, int32_t i) {
    const int32_t older = list->older[i], newer = list->newer[i];
    if (newer >= 0)
        list->older[newer] = older;
    else
        list->newest = older;
    if (older >= 0)
        list->newer[older] = newer;
    else
        list->oldest = newer;
}

static void list_add(tree_list *list, int32_t i) {
    list->older[i] = list->newest;
    list->newer[i] = NONE;
    if (list->newest >= 0)
        list->newer[list->newest] = i;
    else
        list->oldest = i;
    list->newest = i;
}

static void list_touch(tree_list *list, int32_t i) {
    list_remove(list, i);
    list_add(list, i);
}

// --- nodes and marks ---

bool qn_tree_init(qn_state *state) {
    state_tree *tree = &state->tree;
    const size_t n = (size_t)tree->n_nodes, n_marks = (size_t)tree->n_marks;
    const size_t n_listed = tree->has_marks ? n_marks : n;
    tree->nodes = qn_state_reserve(state, n, sizeof *tree->nodes);
    tree->keys = qn_state_reserve(state, n, QN_PAGE_ROWS * sizeof *tree->keys);
    tree->pages = qn_state_reserve(state, n * (size_t)state->n_groups, sizeof *tree->pages);
    tree->marks = qn_state_reserve(state, n_marks, sizeof *tree->marks);
    tree->used = (tree_list){.older = qn_state_reserve(state, n_listed, sizeof(int32_t)),
                             .newer = qn_state_reserve(state, n_listed, sizeof(int32_t)),
                             .oldest = NONE,
                             .newest = NONE};
    if (!tree->nodes || !tree->keys || !tree->pages || !tree->marks || !tree->used.older ||
        !tree->used.newer)
        return false;
    tree->free_node = tree->free_mark = tree->pinned = NONE;
    tree->n_nodes_touched = ROOT + 1;
    tree->nodes[ROOT] = (tree_node){NONE, NONE, NONE, NONE, NONE, 0, NONE};
    return true;
}

static node_page *page_of(const qn_state *state, int32_t node, int64_t g) {
    return &state->tree.pages[node * state->n_groups + g];
}

static uint64_t *keys_of(const state_tree *tree, int32_t node) {
    return tree->keys + (int64_t)node * QN_PAGE_ROWS;
}

static int64_t mark_length(const state_tree *tree, const tree_mark *mark) {
    return (int64_t)tree->nodes[mark->node].block * QN_PAGE_ROWS + mark->rows;
}

// The node holds `page` (-1: none) of a group, of which `rows` rows are filled.
static void set_page(qn_state *state, int32_t node, int64_t g, int32_t page, int32_t rows) {
    node_page *held = page_of(state, node, g);
    if (page >= 0) qn_pages_keep(&state->groups[g], page);
    if (held->page >= 0) qn_pages_forget(&state->groups[g], held->page);
    held->page = page;
    held->rows = rows;
}

static bool has_free_node(const state_tree *tree) {
    return tree->free_node >= 0 || tree->n_nodes_touched < tree->n_nodes;
}

static bool has_free_mark(const state_tree *tree) {
    return tree->free_mark >= 0 || tree->n_marks_touched < tree->n_marks;
}

static int32_t add_node(qn_state *state, int32_t parent) {
    state_tree *tree = &state->tree;
    assert(has_free_node(tree));
    const int32_t i = tree->free_node >= 0 ? tree->free_node : tree->n_nodes_touched++;
    tree_node *node = &tree->nodes[i];
    if (i == tree->free_node) tree->free_node = node->next;
    const int32_t next = tree->nodes[parent].child;
    *node = (tree_node){.parent = parent,
                        .child = NONE,
                        .next = next,
                        .before = NONE,
                        .block = tree->nodes[parent].block + 1,
                        .mark = NONE};
    if (next >= 0) tree->nodes[next].before = i;
    tree->nodes[parent].child = i;
    for (int64_t g = 0; g < state->n_groups; g++) *page_of(state, i, g) = (node_page){.page = NONE};
    if (!tree->has_marks) list_add(&tree->used, i);
    return i;
}

// A node without children and marks.
static void remove_node(qn_state *state, int32_t i) {
    state_tree *tree = &state->tree;
    tree_node *node = &tree->nodes[i];
    assert(node->child < 0 && node->mark < 0);
    for (int64_t g = 0; g < state->n_groups; g++) set_page(state, i, g, NONE, 0);
    if (node->next >= 0) tree->nodes[node->next].before = node->before;
    if (node->before >= 0)
        tree->nodes[node->before].next = node->next;
    else
        tree->nodes[node->parent].child = node->next;
    if (!tree->has_marks) list_remove(&tree->used, i);
    node->next = tree->free_node;
    tree->free_node = i;
}

// Nodes that lead to no mark are useless.
static void prune(qn_state *state, int32_t node) {
    const state_tree *tree = &state->tree;
    while (node != ROOT && node != tree->pinned && tree->nodes[node].child < 0 &&
           tree->nodes[node].mark < 0) {
        const int32_t parent = tree->nodes[node].parent;
        remove_node(state, node);
        node = parent;
    }
}

static void remove_mark(qn_state *state, int32_t i) {
    state_tree *tree = &state->tree;
    tree_mark *mark = &tree->marks[i];
    const int32_t node = mark->node;
    const int64_t length = mark_length(tree, mark);
    for (int64_t g = 0; g < state->n_groups; g++) {
        const int64_t window = state->groups[g].window;
        const int64_t first = qn_window_begin(window, length) / QN_PAGE_ROWS;
        for (int32_t n = node; window && tree->nodes[n].block >= first && n != ROOT;
             n = tree->nodes[n].parent) {
            if (--page_of(state, n, g)->n_needs == 0) set_page(state, n, g, NONE, 0);
        }
    }
    int32_t *link = &tree->nodes[node].mark;
    while (*link != i) link = &tree->marks[*link].next;
    *link = mark->next;
    list_remove(&tree->used, i);
    mark->next = tree->free_mark;
    tree->free_mark = i;
    tree->n_marks_used--;
    prune(state, node);
}

// --- forgetting ---

int64_t qn_tree_kept_bytes(const qn_state *state) {
    int64_t bytes =
        state->layout->n_slots ? state->tree.n_marks_used * state->layout->slot_bytes : 0;
    for (int64_t g = 0; g < state->n_groups; g++)
        bytes += state->groups[g].n_kept * state->groups[g].page_bytes;
    return bytes;
}

static bool is_reached(const qn_state *state, const tree_goal *goal) {
    return (goal->kept_bytes == INT64_MAX || qn_tree_kept_bytes(state) <= goal->kept_bytes) &&
           (!goal->pages || goal->pages->n_free >= goal->free_pages) &&
           (!goal->node || has_free_node(&state->tree)) &&
           (!goal->mark || has_free_mark(&state->tree));
}

// Whether only the tree holds a page of the node.
static bool is_alone(const qn_state *state, int32_t node) {
    for (int64_t g = 0; g < state->n_groups; g++) {
        const int32_t page = page_of(state, node, g)->page;
        if (page >= 0 && state->groups[g].refs[page] == state->groups[g].tree_refs[page])
            return true;
    }
    return false;
}

// Drops a mark, or a leaf; `if_alone`: only where that gives memory back.
static void forget(qn_state *state, int32_t i, bool if_alone) {
    state_tree *tree = &state->tree;
    if (tree->has_marks) {
        remove_mark(state, i);
    } else {
        if (i == tree->pinned || tree->nodes[i].child >= 0) return;
        if (if_alone && !is_alone(state, i)) return;
        remove_node(state, i);
    }
    tree->evictions++;
}

// First what gives memory back, then all: a leaf whose page a sequence holds may come before one
// that only the tree holds. A parent was used no earlier than its children, so it comes after them
// in the list.
void qn_tree_make_room(qn_state *state, const tree_goal *goal) {
    const tree_list *used = &state->tree.used;
    for (int pass = 0; pass < 2; pass++) {
        int32_t i = used->oldest;
        while (i >= 0 && !is_reached(state, goal)) {
            const int32_t newer = used->newer[i];
            forget(state, i, pass == 0);
            i = newer;
        }
    }
}

void qn_tree_trim(qn_state *state) {
    qn_tree_make_room(state, &(tree_goal){.kept_bytes = state->opts.kept_bytes});
}

void qn_state_evict(qn_state *state, int64_t bytes) {
    qn_tree_make_room(state, &(tree_goal){.kept_bytes = bytes > 0 ? bytes : 0});
}

// --- remembering ---

static int32_t count_common(const state_tree *tree, int32_t node, const uint64_t *keys, int32_t n) {
    const uint64_t *own = keys_of(tree, node);
    const int32_t max = tree->nodes[node].n_keys < n ? tree->nodes[node].n_keys : n;
    int32_t i = 0;
    while (i < max && own[i] == keys[i]) i++;
    return i;
}

// The node gets these keys, and the sequence's pages of full attention.
static void fill_node(qn_seq *seq, int32_t i, const uint64_t *keys, int32_t n) {
    qn_state *state = seq->state;
    tree_node *node = &state->tree.nodes[i];
    node->n_keys = n;
    memcpy(keys_of(&state->tree, i), keys, (size_t)n * sizeof *keys);
    for (int64_t g = 0; g < state->n_groups; g++) {
        if (state->groups[g].window == 0)
            set_page(state, i, g, seq->groups[g].pages[node->block], n);
    }
}

// The child of `parent` that begins with the n keys: found, grown or new. There are more nodes than
// one path can have, so that forgetting others always gives one.
static int32_t add_keys(qn_seq *seq, int32_t parent, const uint64_t *keys, int32_t n) {
    qn_state *state = seq->state;
    state_tree *tree = &state->tree;
    for (int32_t i = tree->nodes[parent].child; i >= 0; i = tree->nodes[i].next) {
        const int32_t common = count_common(tree, i, keys, n);
        if (common < n && common < tree->nodes[i].n_keys) continue;
        if (common < n) fill_node(seq, i, keys, n);
        return i;
    }
    tree->pinned = parent;
    qn_tree_make_room(state, &(tree_goal){.kept_bytes = INT64_MAX, .node = true});
    tree->pinned = NONE;
    const int32_t i = add_node(state, parent);
    fill_node(seq, i, keys, n);
    return i;
}

// Pages of the windows before a new mark. A page that the node has already is as good if it is
// filled as far: rows with the same keys are the same rows.
static void hold_windows(qn_seq *seq, int32_t node) {
    qn_state *state = seq->state;
    for (int64_t g = 0; g < state->n_groups; g++) {
        const int64_t window = state->groups[g].window;
        const int64_t first = qn_window_begin(window, seq->length) / QN_PAGE_ROWS;
        for (int32_t n = node; window && n != ROOT; n = state->tree.nodes[n].parent) {
            const int32_t block = state->tree.nodes[n].block;
            if (block < first) break;
            const int64_t left = seq->length - (int64_t)block * QN_PAGE_ROWS;
            const int32_t rows = left < QN_PAGE_ROWS ? (int32_t)left : QN_PAGE_ROWS;
            node_page *held = page_of(state, n, g);
            held->n_needs++;
            if (held->rows < rows) set_page(state, n, g, seq->groups[g].pages[block], rows);
        }
    }
}

static int distance_class(int64_t distance) { // floor of the logarithm
    int k = 0;
    while (distance >>= 1) k++;
    return k;
}

// Of the marks on the way to this one, the oldest of every power-of-two class of distances stays:
// it is the one that will grow into the next class.
static void thin(qn_state *state, int32_t newest) {
    state_tree *tree = &state->tree;
    const int64_t end = mark_length(tree, &tree->marks[newest]);
    int32_t stays[N_DISTANCES];
    for (int k = 0; k < N_DISTANCES; k++) stays[k] = NONE;
    for (int32_t n = tree->marks[newest].node; n != ROOT; n = tree->nodes[n].parent) {
        for (int32_t i = tree->nodes[n].mark, next; i >= 0; i = next) {
            next = tree->marks[i].next;
            const int64_t distance = end - mark_length(tree, &tree->marks[i]);
            if (distance <= 0) continue; // itself, or after it
            int32_t *stay = &stays[distance_class(distance)];
            if (*stay < 0) {
                *stay = i;
                continue;
            }
            const bool is_older = end - mark_length(tree, &tree->marks[*stay]) < distance;
            const int32_t goes = is_older ? *stay : i;
            if (is_older) *stay = i;
            remove_mark(state, goes);
        }
    }
}

// A mark at the end of the sequence, which is after `rows` rows of the node.
static void add_mark(qn_seq *seq, int32_t node, int32_t rows) {
    qn_state *state = seq->state;
    state_tree *tree = &state->tree;
    for (int32_t i = tree->nodes[node].mark; i >= 0; i = tree->marks[i].next) {
        if (tree->marks[i].rows != rows) continue;
        list_touch(&tree->used, i);
        return;
    }
    tree->pinned = node;
    qn_tree_make_room(state, &(tree_goal){.kept_bytes = INT64_MAX, .mark = true});
    tree->pinned = NONE;
    assert(has_free_mark(tree));
    const int32_t i = tree->free_mark >= 0 ? tree->free_mark : tree->n_marks_touched++;
    if (i == tree->free_mark) tree->free_mark = tree->marks[i].next;
    tree->n_marks_used++;
    tree->marks[i] = (tree_mark){.node = node,
                                 .rows = rows,
                                 .accept = (int32_t)(seq->length - seq->certain),
                                 .next = tree->nodes[node].mark};
    tree->nodes[node].mark = i;
    list_add(&tree->used, i);
    hold_windows(seq, node);
    if (state->layout->n_slots)
        qn_state_copy_slot(state, (int32_t)state->opts.n_seqs + i, seq->slot,
                           tree->marks[i].accept);
    thin(state, i);
}

// The node and all above it were used now.
static void touch_path(state_tree *tree, int32_t node) {
    for (; node != ROOT; node = tree->nodes[node].parent) list_touch(&tree->used, node);
}

void qn_state_remember(qn_seq *seq, const uint64_t *keys) {
    qn_state *state = seq->state;
    state_tree *tree = &state->tree;
    int32_t node = ROOT, rows = 0;
    assert(!seq->rows);
    if (seq->length == 0 || (tree->has_marks && tree->n_marks == 0)) return;
    for (int64_t at = 0; at < seq->length; at += rows) {
        const int64_t left = seq->length - at;
        rows = left < QN_PAGE_ROWS ? (int32_t)left : QN_PAGE_ROWS;
        node = add_keys(seq, node, keys + at, rows);
    }
    if (tree->has_marks)
        add_mark(seq, node, rows);
    else
        touch_path(tree, node);
    qn_tree_trim(state);
}

// --- finding ---

typedef struct place {
    int64_t length;
    int32_t node, mark; // mark NONE: the tree has none
} place;

// The best place in a node whose first `common` keys are wanted.
static void look(const state_tree *tree, place *best, int32_t node, int32_t common) {
    const int64_t begin = (int64_t)tree->nodes[node].block * QN_PAGE_ROWS;
    if (!tree->has_marks && common > 0 && begin + common > best->length)
        *best = (place){begin + common, node, NONE};
    for (int32_t i = tree->nodes[node].mark; i >= 0; i = tree->marks[i].next) {
        const int32_t rows = tree->marks[i].rows;
        if (rows <= common && begin + rows > best->length) *best = (place){begin + rows, node, i};
    }
}

static place find_place(const state_tree *tree, const uint64_t *keys, int64_t n) {
    place best = {0, NONE, NONE};
    int32_t node = ROOT;
    for (int64_t at = 0; at < n && node >= 0; at += QN_PAGE_ROWS) {
        const int32_t rows = n - at < QN_PAGE_ROWS ? (int32_t)(n - at) : QN_PAGE_ROWS;
        int32_t next = NONE;
        for (int32_t i = tree->nodes[node].child; i >= 0; i = tree->nodes[i].next) {
            const int32_t common = count_common(tree, i, keys + at, rows);
            look(tree, &best, i, common);
            if (common == QN_PAGE_ROWS) next = i;
        }
        node = next;
    }
    return best;
}

int64_t qn_state_find(qn_seq *seq, const uint64_t *keys, int64_t n) {
    qn_state *state = seq->state;
    state_tree *tree = &state->tree;
    assert(!seq->rows && seq->length == 0);
    const place best = find_place(tree, keys, n);
    if (best.length == 0) return 0;
    for (int64_t g = 0; g < state->n_groups; g++) {
        seq_group *own = &seq->groups[g];
        own->first =
            (int32_t)(qn_window_begin(state->groups[g].window, best.length) / QN_PAGE_ROWS);
        own->end = qn_pages_for(best.length);
        for (int32_t i = best.node; i != ROOT; i = tree->nodes[i].parent) {
            if (tree->nodes[i].block < own->first) break;
            own->pages[tree->nodes[i].block] = page_of(state, i, g)->page;
            qn_pages_hold(&state->groups[g], page_of(state, i, g)->page);
        }
    }
    seq->length = seq->certain = best.length;
    if (best.mark >= 0) {
        const int32_t accept = state->layout->n_slots ? tree->marks[best.mark].accept : 0;
        seq->certain = best.length - accept;
        qn_state_copy_slot(state, seq->slot, (int32_t)state->opts.n_seqs + best.mark, accept);
        list_touch(&tree->used, best.mark);
    } else {
        touch_path(tree, best.node);
    }
    tree->hits++;
    return best.length;
}
