// The cost model of one model over several ranks: numbers in, numbers out. docs/scale.md has the
// formulas in words. Nothing here is measured, and nothing changes a result.
#ifndef QN_RUNTIME_SPLIT_COST_H
#define QN_RUNTIME_SPLIT_COST_H

#include "core/err.h"

enum {
    QN_SPLIT_PARTS = 16,  // kinds of weights of a layer that are cut differently
    QN_SPLIT_GATHERS = 8, // exchanges within a layer
    QN_SPLIT_RANKS = 4096,
};

// --- what a model needs --------------------------------------------------------------------------

// How the values of a row are divided by a tensor split: rank r of n has units u * r / n to
// u * (r + 1) / n of all u.
typedef struct qn_split_cut {
    int64_t values; // 0: not cut, every rank has all of it
    int64_t units;  // that the model itself has, such as key/value heads; 0: they are tiles
    bool by_blocks; // tiles of 256 where that divides fairly: what is exchanged is then packed
} qn_split_cut;

// Weights of a layer that are cut the same way.
typedef struct qn_split_part {
    qn_split_cut cut;
    int64_t bytes; // as the file has them
    double ops;    // of a row, two for each multiply-add
    double used;   // share of the bytes that one row reads: of experts those that it is routed to
    bool is_float; // products of floats
} qn_split_part;

// Rows of which every rank has a part and needs the whole.
typedef struct qn_split_gather {
    qn_split_cut cut;
    int64_t copies;      // rows of a row: one for each of its experts
    int64_t block_bytes; // of 256 values as they are packed; 0: they are not
} qn_split_gather;

typedef struct qn_split_layer {
    qn_split_part parts[QN_SPLIT_PARTS];
    qn_split_gather gathers[QN_SPLIT_GATHERS];
    int n_parts, n_gathers;
    int64_t state_row;   // bytes that are kept of a position
    int64_t state_fixed; // bytes of recurrent state
    int64_t window;      // positions that are kept; 0: all
    qn_split_cut state;  // how both are cut: by heads
} qn_split_layer;

typedef struct qn_split_model {
    qn_split_layer *layers; // (n_layers) owned
    int64_t n_layers, width;
    qn_split_layer head;  // output matrix, of the wanted rows
    qn_split_cut vocab;   // of embeddings
    int64_t embed_bytes;  // the table, where it is not the output matrix
    int64_t tied_bytes;   // the table, where it is
    double product_share; // of the peak of products that prefill reaches
} qn_split_model;

// Takes room for the layers. Zeroed storage is empty.
QN_MUST_CHECK qn_status qn_split_model_init(qn_split_model *out, int64_t n_layers, qn_err *err);
void qn_split_model_deinit(qn_split_model *model);
// Adds weights to those of the layer that are cut the same way.
QN_MUST_CHECK qn_status qn_split_add_part(qn_split_layer *to, const qn_split_part *part,
                                          qn_err *err);
QN_MUST_CHECK qn_status qn_split_add_gather(qn_split_layer *to, const qn_split_gather *gather,
                                            qn_err *err);
// The share of the peak of products that prefill reaches (docs/speed.md).
double qn_split_product_share(qn_numerics numerics);

// --- what there is -------------------------------------------------------------------------------

typedef struct qn_split_rank {
    double read_gbs, int8_tops, f32_gflops; // as in qn_limits; int8_tops 0: it has floats alone
    int64_t memory;                         // bytes that are free; 0: unknown
    int64_t n_threads;
} qn_split_rank;

// Between any two ranks.
typedef struct qn_split_link {
    double latency_us; // until a short message is there
    double message_us; // for each further message that a rank sends at the same time
    double gbs;        // 10^9 bytes a second that a rank sends, and as many that it receives
} qn_split_link;

typedef struct qn_split_system {
    const qn_split_rank *ranks; // (n)
    int n;
    qn_split_link link;
} qn_split_system;

// Whether all of these are numbers that can be computed with.
QN_MUST_CHECK qn_status qn_split_check_system(const qn_split_system *system, qn_err *err);

// --- costs ---------------------------------------------------------------------------------------

// How many units a cut has for n ranks; rank r's share of n things; the largest of all.
int64_t qn_split_units(const qn_split_cut *cut, int n);
int64_t qn_split_own(int64_t units, int n, int r);
// Bytes of a gathered row.
int64_t qn_split_row_bytes(const qn_split_gather *gather, int n);

// What is in the memory of a rank.
typedef struct qn_split_share {
    int64_t first, end;  // layers: [first, end)
    int64_t weights;     // bytes
    int64_t state_row;   // bytes for each position, of layers that keep all of them
    int64_t state_fixed; // bytes for each sequence, whatever its length
} qn_split_share;

// Tensors: the share of rank r of n. Layers: `out` has first and end.
void qn_split_tensor_share(qn_split_share *out, const qn_split_model *model, int n, int r);
void qn_split_layer_share(qn_split_share *out, const qn_split_model *model);

// One step (quern.h: qn_step_size). Messages are calls of rank 0; bytes are what all ranks give
// away, each byte once however many get it (as qn_ranks_get_counts counts).
typedef struct qn_split_cost {
    double seconds;
    double network; // of them, waiting for messages
    double messages, bytes;
    int64_t parts; // of rows, one after the other through the stages
} qn_split_cost;

qn_split_cost qn_split_tensors(const qn_split_model *model, const qn_split_system *system,
                               const qn_step_size *step);
// `shares`: (n) those of the ranks. `parts`: at least 1.
qn_split_cost qn_split_layers(const qn_split_model *model, const qn_split_system *system,
                              const qn_split_share *shares, const qn_step_size *step,
                              int64_t parts);
// A token for each of step->seqs sequences that decode together, by layers: in as many groups as
// qn_split_lanes says, each on another rank at a time. The sum of all groups' messages and bytes.
qn_split_cost qn_split_groups(const qn_split_model *model, const qn_split_system *system,
                              const qn_split_share *shares, const qn_step_size *step);
// Steps that are under way at a time where n ranks have a model by layers.
enum { QN_SPLIT_LANES = 16 };
int qn_split_lanes(int n, int64_t seqs);
// Seconds of a message; of an exchange in which every rank sends its part to all others at once.
// The first message takes the latency, each further one only the work of sending it, and the bytes
// of a part go out n - 1 times.
double qn_split_message_seconds(const qn_split_link *link, double bytes);
double qn_split_exchange_seconds(const qn_split_link *link, int n, double largest_part);

// Best logits of so many rows, 520 bytes each, go in one message: with its head that is less than the
// 4 KiB that shared memory carries without waiting for the other side.
enum { QN_SPLIT_LISTS = 7 };

// In how many parts a step of so many rows goes through n stages, so that they all have work.
int64_t qn_split_parts(int64_t rows, int n);

// The seconds that a choice goes by: a token that is written, and eight that were read for it.
enum { QN_SPLIT_PREFILL = 512, QN_SPLIT_READ_TOKENS = 8 };

// --- shares of layers ----------------------------------------------------------------------------

// Consecutive layers for every rank, at least one, so that the slowest rank takes as little time as
// possible; no rank gets more than fits with `context` positions of state. Fills first and end of
// out[0 ... n - 1]. Fails when there are fewer layers than ranks, and when no division fits
// (QN_LIMIT): the error names a rank that lacks memory where the layers are divided by speed alone.
QN_MUST_CHECK qn_status qn_split_divide(qn_split_share *out, const qn_split_model *model,
                                        const qn_split_system *system, int64_t context,
                                        qn_err *err);
// The same as a text says: a number for each rank, "3,1".
QN_MUST_CHECK qn_status qn_split_parse_shares(qn_split_share *out, const char *text, int n,
                                              int64_t n_layers, qn_err *err);
// Bytes that a rank needs with `context` positions of one sequence, and beside weights and state.
int64_t qn_split_memory(const qn_split_share *share, int64_t context);
enum { QN_SPLIT_RESERVE = 64 << 20 };

#endif
