// Changing a graph in place: what a pass works with.
//
// A pass looks at the nodes in order. It may turn a node into another one that makes the same
// values (qn_rw_set), add nodes anywhere (qn_rw_add), remove nodes (qn_rw_absorb), and let one
// value stand for another (qn_rw_redirect). Order does not matter: afterwards nodes are put in an
// order where every value is made before it is read, and the old order is kept wherever that is
// possible.
//
// Errors are sticky, as in a builder: look at the end (qn_rw_end). Who reads a value is counted
// when the pass begins.
#ifndef QN_PASSES_REWRITE_H
#define QN_PASSES_REWRITE_H

#include "ir/build.h"
#include "passes/passes.h"

typedef struct qn_rewrite {
    qn_graph *graph;
    const qn_pass_opts *opts;
    qn_pass_report *report;
    int pass;
    qn_build b; // appends nodes; holds the first error
    // The rest belongs to rewrite.c.
    size_t n_values, n_nodes; // when the pass began
    size_t cap_values, cap_nodes;
    bool *is_dead;      // by node
    int32_t *follows;   // by node: the node it comes after; -1: wherever it is needed
    int32_t *alias;     // by value: the value that stands for it; itself if none does
    int32_t *use_begin; // by value: its first place in `users`
    int32_t *users;     // nodes, ascending; a node that reads a value twice is there twice
    bool *is_kept;      // by value: an output, or a name that must stay
} qn_rewrite;

// Zeroed storage; the graph is changed in place. A rewrite that was begun must be ended.
void qn_rw_begin(qn_rewrite *rw, qn_graph *graph, const qn_pass_opts *opts, qn_pass_report *report,
                 int pass);
// Puts the graph in order and releases the rewrite; the graph is unusable after a failure.
QN_MUST_CHECK qn_status qn_rw_end(qn_rewrite *rw, qn_err *err);

// Whether node i was there when the pass began and still is, and no error has come up.
bool qn_rw_is_live(const qn_rewrite *rw, size_t i);
// The value that stands for `value` now.
int32_t qn_rw_value(const qn_rewrite *rw, int32_t value);
// The node that makes a value, if its op is this one; -1 otherwise.
int32_t qn_rw_made_by(const qn_rewrite *rw, int32_t value, qn_op op);
// Whether a value is a weight or a constant: it depends on nothing.
bool qn_rw_is_fixed(const qn_rewrite *rw, int32_t value);
// How many inputs read a value, and the node that the i-th of them belongs to. For values that were
// there when the pass began.
int32_t qn_rw_n_users(const qn_rewrite *rw, int32_t value);
int32_t qn_rw_user(const qn_rewrite *rw, int32_t value, int32_t i);
// Whether a value is read once and may go when its reader goes.
bool qn_rw_is_inner(const qn_rewrite *rw, int32_t value);
bool qn_rw_is_kept(const qn_rewrite *rw, int32_t value);

// A new node; returns its first result. It is placed where it is first read or, early, right after
// its inputs.
int32_t qn_rw_add(qn_rewrite *rw, int32_t layer, qn_op op, const int32_t *in, int n_in,
                  const qn_attrs *attrs);
int32_t qn_rw_add_early(qn_rewrite *rw, int32_t layer, qn_op op, const int32_t *in, int n_in,
                        const qn_attrs *attrs);
// Node i becomes another op; `out` (NULL: as it was) are values that are there already.
void qn_rw_set(qn_rewrite *rw, int32_t i, qn_op op, const int32_t *in, int n_in, const int32_t *out,
               const qn_attrs *attrs);
// Removes a node that a fused one replaces.
void qn_rw_absorb(qn_rewrite *rw, int32_t i);
// Removes a node without readers.
void qn_rw_remove(qn_rewrite *rw, int32_t i);
// From now on `to` stands for `from`, whose name goes along where `to` has none. False, and nothing
// is done, where a name that must stay would be lost.
bool qn_rw_redirect(qn_rewrite *rw, int32_t from, int32_t to);

// Another graph takes the place of the one that is being changed, which is released; *graph is
// empty then. Afterwards it is as if the pass had just begun.
void qn_rw_replace(qn_rewrite *rw, qn_graph *graph);
// (n_nodes) which nodes an output or a state needs, or another rank; the others are false before.
void qn_rw_find_needed(bool *is_needed, const qn_graph *graph);

// The report: the pass did its work in one more place; it almost did.
void qn_rw_fired(qn_rewrite *rw);
void qn_rw_missed(qn_rewrite *rw, int32_t layer, const char *why);

// The passes, one file each; pipeline.c says what they do.
typedef void qn_pass_fn(qn_rewrite *rw);
qn_pass_fn qn_pass_shard, qn_pass_fold, qn_pass_cse, qn_pass_dce, qn_pass_decompose,
    qn_pass_quantize;
qn_pass_fn qn_pass_gather_packed, qn_pass_fuse_norm, qn_pass_fuse_residual, qn_pass_fuse_gate,
    qn_pass_fuse_project;
qn_pass_fn qn_pass_fuse_head, qn_pass_fuse_rope, qn_pass_fuse_write, qn_pass_fuse_attention,
    qn_pass_fuse_experts;
qn_pass_fn qn_pass_place, qn_pass_layout, qn_pass_schedule;

#endif
