// Passes: from the graph that a family wrote (high) to the graph that a backend runs (mid). Each
// pass is a function from graph to graph; pipeline.c lists them in order.
//
// No pass changes a bit of a result, but `quantize`, which rounds activations as `numerics` says.
// `shard` leaves one rank's share of a graph, whose output "logits" is a part of the vocabulary.
// Outputs keep their names, values named "logits" or "hidden.K" keep theirs, nodes keep their
// layers.
#ifndef QN_PASSES_PASSES_H
#define QN_PASSES_PASSES_H

#include "core/buf.h"
#include "ir/graph.h"

enum { QN_PASSES_MAX = 32, QN_MISSES_MAX = 64 };

typedef struct qn_pass_opts {
    qn_numerics numerics;
    // `exact` rounds less coarsely in the layers before this one: qn_passes_fine_layers of the
    // whole model, also for a part of it, so that cutting a model changes no result.
    int64_t fine_layers;
    // Of several ranks that compute one model, this one's number and theirs; 0 or 1: it is alone.
    int rank, n_ranks;
    uint64_t skip; // bit i: leave out pass i; see qn_passes_parse_skip
    bool verify;   // check the graph after every pass
    // Why a node cannot run on the device; NULL: it can. No function: everything can.
    const char *(*refuse)(void *arg, const qn_graph *graph, const qn_node *node);
    void *refuse_arg;
    const char *device; // its name, for messages; NULL: "this device"
    // How input `input` of an op wants its weight. No function: tiles for what multiplies.
    qn_word (*layout)(void *arg, qn_op op, int input);
    void *layout_arg;
    // Called with the graph after every pass that ran; NULL: none.
    void (*after)(void *arg, const char *pass, const qn_graph *graph);
    void *after_arg;
} qn_pass_opts;

// Something that a pass looked for and found almost.
typedef struct qn_pass_miss {
    int pass;
    const char *why; // constant text
    int32_t first_layer, last_layer, count;
} qn_pass_miss;

// What the passes did. Caller storage; zeroed is empty. Holds no memory of its own.
typedef struct qn_pass_report {
    int32_t fired[QN_PASSES_MAX]; // places where a pass changed something
    bool ran[QN_PASSES_MAX];
    qn_pass_miss misses[QN_MISSES_MAX];
    int32_t n_misses;
    // Nodes by op: that the device runs as they are; that fusing replaced; that were taken apart
    // again because the device refuses them; that it refuses and that cannot be taken apart.
    int32_t native[QN_OP_COUNT], rewritten[QN_OP_COUNT];
    int32_t decomposed[QN_OP_COUNT], unsupported[QN_OP_COUNT];
    const char *refusals[QN_OP_COUNT]; // the device's last word on an op, where it refused one
} qn_pass_report;

// Runs the passes on a copy of `in`. *out is the caller's (qn_graph_deinit) if all went well.
// opts may be NULL (exact numerics, all passes), report too; the report is filled on failure as far
// as the passes came.
QN_MUST_CHECK qn_status qn_passes_run(qn_graph *out, const qn_graph *in, const qn_pass_opts *opts,
                                      qn_pass_report *report, qn_err *err);

// The layers of a model up to the last one with a delta rule; 0: it has none.
int64_t qn_passes_fine_layers(const qn_graph *graph);

// "fuse_norm,cse" as bits of qn_pass_opts.skip. NULL and "" mean no pass. An unknown name is an
// error that lists the passes; so is one that no plan can do without.
QN_MUST_CHECK qn_status qn_passes_parse_skip(uint64_t *out, const char *comma_list, qn_err *err);

// The passes in order; NULL past the last.
const char *qn_pass_name(size_t i);
const char *qn_pass_meaning(size_t i);
bool qn_pass_is_needed(size_t i); // cannot be left out

// Appends what fired and what did not, and why; then what runs how, by op.
void qn_pass_report_fusion(qn_buf *to, const qn_pass_report *report);
void qn_pass_report_dispatch(qn_buf *to, const qn_pass_report *report);
// Both.
void qn_pass_report_text(qn_buf *to, const qn_pass_report *report);

#endif
