// Inside the state of sequences: what its files share.
#ifndef QN_RUNTIME_STATE_INT_H
#define QN_RUNTIME_STATE_INT_H

#include "core/arena.h"
#include "runtime/kv_memory.h"
#include "runtime/state.h"

// Everything in a page or slot begins at a multiple of this many bytes.
enum { QN_STATE_ALIGN = 64 };

typedef struct state_group {
    int64_t window; // positions that a row sees, itself included; 0: all
    int64_t page_bytes;
} state_group;

// What one device keeps of every page and slot.
typedef struct state_part {
    qn_device *device;    // borrowed
    int64_t *page_bytes;  // (n_groups)
    int64_t states_bytes; // the states of its layers come first in a slot, then the logs
    int64_t slot_bytes;
} state_part;

struct qn_state_layout {
    qn_arena arena;
    qn_cache_view *caches;                  // without `pages`
    qn_slots_view *slots;                   // without `slots`
    int32_t *cache_parts, *slot_parts;      // of each, the part that keeps it
    const char **cache_names, **slot_names; // of their INPUT values
    qn_log_rule *rules;                     // (n_slots) of the ops that change them
    size_t n_caches, n_slots;
    state_group *groups;
    int64_t n_groups;
    state_part *parts;
    size_t n_parts;
    int64_t slot_bytes; // of all parts
    bool is_level;      // sizes of groups and slots are those of the rank that has most (team.h)
};

// --- pages of a group ---

typedef struct state_pages {
    int64_t page_bytes;
    int64_t window; // 0: every position is kept
    int32_t n, n_free;
    int32_t n_kept;     // that only the tree holds
    int32_t *refs;      // (n) holders: sequences and nodes of the tree
    int32_t *tree_refs; // (n) nodes among them
    int32_t *free;      // (n_listed) a stack, so that memory that was used is used again
    int32_t n_listed;
    int32_t n_touched; // pages below this were used at some time; the others are free
} state_pages;

QN_MUST_CHECK bool qn_pages_init(state_pages *pages, qn_state *state); // sizes, n are set
// A free page (there must be one), held once.
int32_t qn_pages_take(state_pages *pages);
void qn_pages_hold(state_pages *pages, int32_t page);
void qn_pages_drop(state_pages *pages, int32_t page);
// The same for a node of the tree.
void qn_pages_keep(state_pages *pages, int32_t page);
void qn_pages_forget(state_pages *pages, int32_t page);

// --- sequences ---

// What a sequence holds of one group: pages [first, end) of its table.
typedef struct seq_group {
    int32_t *pages; // (pages_per_seg) valid in [first, end)
    int32_t first, end;
    // Of a prepared step: `end` before it, and the shared last page that was copied (-1: none),
    // which is held until the step is finished or cancelled.
    int32_t end_before, tail_before;
} seq_group;

struct qn_seq {
    qn_state *state;
    seq_group *groups; // (n_groups)
    int64_t length;
    int64_t certain;      // rows in the slot's state; the log holds those from here to `length`
    int64_t rows, commit; // of the prepared step; rows 0: none is prepared
    int32_t slot;         // never changes
    int32_t next_free;
    int32_t adapter; // of its rows; -1: none
    bool is_open;
};

// Checkpoints of callers are sequences that are never run.
struct qn_checkpoint {
    qn_seq seq;
};

// Rows below this are visible to a row at `length` only through pages that are still held: the
// first position that a window shows.
static inline int64_t qn_window_begin(int64_t window, int64_t length) {
    return window > 0 && length >= window ? length - window + 1 : 0;
}

static inline int32_t qn_pages_for(int64_t rows) {
    return (int32_t)((rows + QN_PAGE_ROWS - 1) / QN_PAGE_ROWS);
}

// --- the tree ---

// A node is the keys of one page: 1 ... 64 of them. Only a node with 64 has children, and the keys
// of a node are never the beginning of a sibling's.
typedef struct tree_node {
    int32_t parent, child, next, before; // -1: none; next and before are siblings
    int32_t block;                       // positions 64 * block ...
    int32_t n_keys;
    int32_t mark; // first mark in this node; -1: none
} tree_node;

// What a node holds of one group. Full attention: always a page, with all rows of the node.
// Windows: a page while marks need it.
typedef struct node_page {
    int32_t page; // -1: none
    int32_t rows; // of it that are filled
    int32_t n_needs;
} node_page;

// A checkpoint of the tree: after `rows` rows of a node. It owns slot n_seqs + its number.
typedef struct tree_mark {
    int32_t node, rows;
    int32_t accept;
    int32_t next; // in the node, or in the list of free marks
} tree_mark;

typedef struct tree_list { // by use
    int32_t *older, *newer;
    int32_t oldest, newest;
} tree_list;

typedef struct state_tree {
    bool has_marks;   // what is reused ends at a mark; else anywhere
    tree_node *nodes; // (n_nodes) the first is the root, which has no keys
    uint64_t *keys;   // (n_nodes, QN_PAGE_ROWS)
    node_page *pages; // (n_nodes, n_groups)
    tree_mark *marks; // (n_marks)
    int32_t n_nodes, n_marks;
    int32_t free_node, free_mark;             // that were used before; -1: none
    int32_t n_nodes_touched, n_marks_touched; // those from here on are free, too
    int32_t n_marks_used;
    int32_t pinned; // node that is never removed: something is being added to it
    tree_list used; // marks, or nodes if there are no marks
    int64_t hits, evictions;
} state_tree;

// What eviction is for; all that is named must be reached.
typedef struct tree_goal {
    int64_t kept_bytes;       // at most
    const state_pages *pages; // at least `free_pages` of these; NULL: no matter
    int64_t free_pages;
    bool node, mark; // a free one
} tree_goal;

QN_MUST_CHECK bool qn_tree_init(qn_state *state); // numbers and has_marks are set
// Evicts, the least recently used first, until the goal is reached or nothing is left.
void qn_tree_make_room(qn_state *state, const tree_goal *goal);
void qn_tree_trim(qn_state *state); // to the limit of bytes
int64_t qn_tree_kept_bytes(const qn_state *state);

// --- all of it ---

// A table that takes memory only where it is used, however large the context is.
typedef struct state_range {
    void *data;
    size_t size;
} state_range;

struct qn_state {
    qn_arena arena;
    state_range *ranges; // (n_ranges) all that was reserved
    size_t n_ranges;
    qn_state_opts opts;
    const qn_state_layout *layout;
    qn_kv_memory *memory;
    int64_t pages_per_seg;
    state_pages *groups; // (n_groups)
    int64_t n_groups;
    qn_copy *copies; // (QN_COPIES_MAX) that wait for the next step
    int64_t n_copies;
    int64_t *n_pages, *windows; // (n_groups) for qn_state_limits
    int64_t n_slots;            // of all sequences and checkpoints; 0: none are kept
    qn_checkpoint *seqs;        // (opts.n_seqs) sequences and checkpoints
    int32_t free_seq;           // -1: none
    int64_t n_open;
    state_tree tree;
};

// `n` zeroed things of `size` bytes in a range of their own, released with the state; NULL:
// refused.
void *qn_state_reserve(qn_state *state, size_t n, size_t size);
// Before the next step: a page goes to another one of its group; the recurrent state in one slot
// and `accept` rows of its log go to another slot.
void qn_state_copy_page(qn_state *state, int64_t group, int32_t to, int32_t from);
void qn_state_copy_slot(qn_state *state, int32_t to, int32_t from, int64_t accept);

#endif
