// Experts of a model that does not fit in memory: which of them are kept, and how the others come.
//
// Every layer has a pool of as many slots, one expert each (gate, up and down). A step says which
// experts its rows have chosen; those in the pool are computed at once, the others are read from
// the file of packed weights meanwhile, by a thread of its own, each into a slot of an expert that
// the step does not need, the one that was used least. What the experts compute does not depend on
// when they came: results are those of a model that is in memory as a whole.
//
// The pools of a device with memory of its own lie there, and all experts in this process's memory,
// which takes the place of the file.
//
// Use is counted by tokens, older ones counting less. After prefill, and every so many steps, the
// reader brings back experts that are used more than some that are there.
//
// One step at a time uses it; others wait (begin_step ... end_step). Nothing is allocated by steps.
#ifndef QN_RUNTIME_RESIDENCY_H
#define QN_RUNTIME_RESIDENCY_H

#include "backends/device.h"
#include "core/file.h"

enum { QN_EXPERT_PARTS = 3, QN_EXPERT_TIMES = 48 }; // gate, up, down; columns of the history

typedef struct qn_residency qn_residency;

// What the plan's experts need.
typedef struct qn_experts_need {
    int64_t n_layers;  // with experts; 0: none
    int64_t n_experts; // max of a layer
    int64_t n_used;    // that a row is routed to: max of a layer
    int64_t bytes;     // of one expert of every layer, together
    int64_t all_bytes; // of all experts
} qn_experts_need;
QN_MUST_CHECK qn_status qn_experts_measure(qn_experts_need *out, const qn_plan *plan,
                                           const qn_device *device, qn_err *err);

// Takes memory for `n_slots` experts of each layer. The plan and the device must outlive it.
QN_MUST_CHECK qn_status qn_residency_create(qn_residency **out, const qn_plan *plan,
                                            qn_device *device, int64_t n_slots, qn_err *err);
void qn_residency_destroy(qn_residency *residency);

// Whether a weight of the plan is kept here.
bool qn_residency_has(const qn_residency *residency, const char *weight);
// Before it starts: where the weight begins in the file, and then its bytes, in order.
void qn_residency_place(qn_residency *residency, const char *weight, int64_t offset);
void qn_residency_take(qn_residency *residency, const char *weight, const unsigned char *bytes,
                       int64_t n);
// Or, where experts lie in this process's memory: the place of a weight there, to be filled; and
// then, that it is.
unsigned char *qn_residency_room(const qn_residency *residency, const char *weight);
void qn_residency_fill(qn_residency *residency, const char *weight);
// Once all weights were taken. Takes over the file; NULL: there is none.
QN_MUST_CHECK qn_status qn_residency_start(qn_residency *residency, qn_file *file, qn_err *err);

const qn_pager *qn_residency_pager(const qn_residency *residency);
// Around the run of a step's programs. The end gives the error of an expert that could not be read.
void qn_residency_begin_step(qn_residency *residency, int64_t rows, int64_t segs);
QN_MUST_CHECK qn_status qn_residency_end_step(qn_residency *residency, qn_err *err);

int64_t qn_residency_bytes(const qn_residency *residency);      // of all pools
int64_t qn_residency_host_bytes(const qn_residency *residency); // of experts behind them

// --- looking at it (residency_stats.c) ---

// Fills all but `size`; a layer's own (index among those with experts), or -1 for all.
void qn_residency_stats(qn_expert_stats *out, qn_residency *residency, int64_t layer);
// A heat map as SVG: owned text.
QN_MUST_CHECK qn_status qn_residency_svg(char **out, qn_residency *residency, qn_err *err);

#endif
