// What sequences keep between steps: pages of the KV cache, slots of recurrent state, and a radix
// tree that finds what earlier sequences computed (the prefix cache).
//
// One thread at a time. Everything is allocated at creation; nothing here allocates afterwards.
// Steps are run by the caller: prepare, fill the message, run it, finish. What is kept is only
// decided here; its bytes are elsewhere (kv_memory.h), and move by the copies of the next step.
//
// Pages hold 64 positions of all layers of a group (layers with the same window; 0: full
// attention). They are counted; only a sequence's last page is private to it, and a shared last
// page is copied before it is written. Groups with a window give back pages that it has passed.
//
// A slot holds the recurrent state at the last row that is certain, and a log of the rows since.
// `accept` counts the rows of the log that belong to the sequence: rolling back is lowering it.
#ifndef QN_RUNTIME_STATE_H
#define QN_RUNTIME_STATE_H

#include "backends/device.h"

// Max rows that one step may leave uncertain. A draft and the token before it are 17; more makes
// slots larger, by a row of the log each. Not tuned.
enum { QN_LOG_ROWS = 32 };

// What one page and one slot look like, from the graph's caches and states.
typedef struct qn_state_layout qn_state_layout;
// A device, and the plan whose caches and states it keeps, as far as the plan has them: a rank's
// share of a model has some heads of each, or none. NULL: all that no other device keeps.
typedef struct qn_state_part {
    qn_device *device; // borrowed
    const qn_plan *plan;
} qn_state_part;
// `cache_type` is not AUTO. The graph is any that has the caches and states of the model,
// before or after passes; its caches and states are numbered in the order of their INPUT nodes.
// Every page and slot has a piece on each of the devices.
QN_MUST_CHECK qn_status qn_state_layout_create(qn_state_layout **out, const qn_graph *graph,
                                               const qn_state_part *parts, size_t n_parts,
                                               qn_cache_type cache_type, qn_err *err);
void qn_state_layout_destroy(qn_state_layout *layout);
bool qn_state_layout_is_recurrent(const qn_state_layout *layout); // there are slots
int64_t qn_state_layout_groups(const qn_state_layout *layout);

typedef void qn_copies_fn(void *arg, const qn_copy *copies, int64_t n);

typedef struct qn_state_opts {
    const qn_state_layout *layout; // borrowed
    int64_t context;               // max positions of one sequence
    int64_t step_rows;             // max rows that one sequence has in a step
    int64_t n_seqs;     // max sequences open at once, checkpoints held by callers included
    int64_t kept_bytes; // max bytes of pages and slots that only the tree holds
    int64_t positions;  // max positions of all sequences together; 0: n_seqs * context, or fewer
                        // if the system refuses the address space for them
    const qn_device *where; // qn_state_measure: what is in the memory of this device; NULL: all
    qn_copies_fn *flush;    // does copies now, when more wait than a step takes along
    void *flush_arg;
    // Pages of each group, (groups), and slots, as another rank has counted them; NULL: they follow
    // from the rest.
    const int64_t *n_pages;
    int64_t n_slots;
} qn_state_opts;

// Bytes of the pages and slots that qn_state_create would reserve: `all`, and `used` by one
// sequence of `context` positions; and what its tables take then.
typedef struct qn_state_size {
    int64_t all, cache_used, slots_used, tables_used;
} qn_state_size;
QN_MUST_CHECK qn_status qn_state_measure(qn_state_size *out, const qn_state_opts *opts,
                                         qn_err *err);

typedef struct qn_state qn_state;
typedef struct qn_kv_memory qn_kv_memory; // kv_memory.h
typedef struct qn_seq qn_seq;
typedef struct qn_checkpoint qn_checkpoint;

QN_MUST_CHECK qn_status qn_state_create(qn_state **out, const qn_state_opts *opts, qn_err *err);
void qn_state_destroy(qn_state *state); // after all its sequences and checkpoints
// Where its pages and slots are; borrowed.
qn_kv_memory *qn_state_memory(const qn_state *state);
int64_t qn_state_groups(const qn_state *state);
const int64_t *qn_state_page_counts(const qn_state *state); // (groups); borrowed
int64_t qn_state_slot_count(const qn_state *state);
int64_t qn_state_pages_per_seg(const qn_state *state); // max, of a whole context
// The copies that must be done before anything else happens to pages and slots: they go into the
// next message. Returns how many; *copies is borrowed until the next call that changes a sequence.
int64_t qn_state_copies(const qn_copy **copies, const qn_state *state);
void qn_state_clear_copies(qn_state *state); // they are done
enum { QN_COPIES_MAX = 256 }; // that wait at once; with more, those are done early. Not tuned
// What the indices of a step must fit, as far as the state knows: pages, windows and slots. The
// arrays are borrowed.
void qn_state_limits(qn_step_limits *to, const qn_state *state);
int64_t qn_state_page_bytes(const qn_state *state, int64_t group);
int64_t qn_state_slot_bytes(const qn_state *state);

// --- sequences ---

QN_MUST_CHECK qn_status qn_seq_open(qn_seq **out, qn_state *state, qn_err *err); // empty
void qn_seq_close(qn_seq *seq);
int64_t qn_seq_length(const qn_seq *seq); // rows in state
int64_t qn_seq_end(const qn_seq *seq);    // with those of the prepared step
// The low-rank adapter of its rows from now on; -1: none, as in a new one. Copies have it too. What
// is in state was computed with the one before: change it in an empty sequence.
void qn_seq_set_adapter(qn_seq *seq, int32_t adapter);
int32_t qn_seq_adapter(const qn_seq *seq);

// Makes room for `rows` rows after the sequence, the first `commit` of which are certain (rows -
// commit <= QN_LOG_ROWS where the model has recurrent layers). Takes pages from the tree if it
// must. Without room: QN_LIMIT, with both numbers, and the sequence is as before.
QN_MUST_CHECK qn_status qn_seq_prepare(qn_seq *seq, int64_t rows, int64_t commit, qn_err *err);
// The prepared step as segment `b` of a message: writes seg_past[b], seg_slot[b], seg_accept[b],
// seg_commit[b] and seg_pages of b.
typedef struct qn_seg_tables {
    int32_t *seg_past, *seg_slot, *seg_accept, *seg_commit;
    int32_t *seg_pages; // (B, groups, pages)
    int64_t pages;      // at least those of the longest sequence, this step's rows included
} qn_seg_tables;
void qn_seq_fill(const qn_seq *seq, const qn_seg_tables *to, int64_t b);
// The same for the prediction head, which changes nothing that is kept but its own rows: it runs
// rows from position `past` on, of the sequence or of its prepared step.
void qn_seq_fill_head(const qn_seq *seq, const qn_seg_tables *to, int64_t b, int64_t past);
// The prepared step has run: its rows are in state.
void qn_seq_finish(qn_seq *seq);
// The prepared step was not run.
void qn_seq_cancel(qn_seq *seq);

// Drops the rows from `length` on. Where the state at `length` is gone (a recurrent state or a
// window that moved on), more is dropped; returns the length that is left, which is then best
// grown again from the token history.
int64_t qn_seq_truncate(qn_seq *seq, int64_t length);
// The sequence becomes one of `length` rows that the caller writes to its pages and slot
// (state_bytes.h); it has nothing in its log. Without room: QN_LIMIT, and it is as before.
QN_MUST_CHECK qn_status qn_seq_place(qn_seq *seq, int64_t length, qn_err *err);
// Another sequence with the same rows; full pages are shared.
QN_MUST_CHECK qn_status qn_seq_fork(qn_seq **out, qn_seq *seq, qn_err *err);

// The state of a sequence, exactly, for later.
QN_MUST_CHECK qn_status qn_checkpoint_create(qn_checkpoint **out, qn_seq *seq, qn_err *err);
void qn_checkpoint_destroy(qn_checkpoint *checkpoint);
int64_t qn_checkpoint_length(const qn_checkpoint *checkpoint);
// The sequence becomes what it was when the checkpoint was taken (of this or another sequence).
QN_MUST_CHECK qn_status qn_seq_restore(qn_seq *seq, const qn_checkpoint *checkpoint, qn_err *err);

// --- the radix tree ---

// Remembers the rows of the sequence under the keys (qn_seq_length of them). Pages are shared; for
// models with windows or recurrent layers the end is kept as a checkpoint. Under kept_bytes the
// least recently used go first, and checkpoints of one path are thinned to power-of-two distances.
// Never fails: at worst nothing is remembered. Sequences that begin with the same keys must have
// the same rows: what else decides them (an adapter, an image) is part of the keys.
void qn_state_remember(qn_seq *seq, const uint64_t *keys);
// Gives an empty sequence the longest remembered prefix of keys[0 ... n-1]; returns its length.
int64_t qn_state_find(qn_seq *seq, const uint64_t *keys, int64_t n);
// Forgets what only the tree holds until at most `bytes` are left of it.
void qn_state_evict(qn_state *state, int64_t bytes);

typedef struct qn_state_counts {
    int64_t kept_bytes;             // that only the tree holds
    int64_t pages_kept, slots_kept; // the same, of those that are used
    int64_t pages_used, pages_all, slots_used, slots_all;
    int64_t hits, evictions;
} qn_state_counts;
qn_state_counts qn_state_get_counts(const qn_state *state);
// Pages that sequences can still take in every group without a window, those that only the tree
// holds included; INT64_MAX where there is no such group.
int64_t qn_state_free_pages(const qn_state *state);

#endif
