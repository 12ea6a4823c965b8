// Inside residency.
#ifndef QN_RUNTIME_RESIDENCY_INT_H
#define QN_RUNTIME_RESIDENCY_INT_H

#include "runtime/residency.h"

#include <pthread.h>
#include <xxhash.h>

typedef enum qn_slot_state { QN_SLOT_FREE, QN_SLOT_READY, QN_SLOT_LOADING } qn_slot_state;

// What the running call still wants of an expert.
typedef enum qn_want { QN_WANT_NOT, QN_WANT_PENDING, QN_WANT_GIVEN } qn_want;

typedef struct qn_slot {
    int32_t expert; // -1: none
    uint8_t state;
} qn_slot;

// One of the weights of a layer.
typedef struct qn_layer_part {
    const char *name;             // borrowed from the plan
    int64_t offset;               // in the file
    int64_t bytes;                // of one expert
    int64_t at;                   // in a slot
    const unsigned char **places; // (X)
    uint64_t *sums;               // (X) XXH3 of each expert's bytes, in the file
    int64_t taken;                // bytes that came before the start
    unsigned char *host;          // (X) in this process's memory; NULL: experts come from the file
} qn_layer_part;

typedef struct qn_pool_layer {
    int32_t layer; // of the model
    int32_t n_experts, n_used;
    qn_layer_part parts[QN_EXPERT_PARTS];
    int64_t slot_bytes;
    unsigned char *memory; // (n_slots, slot_bytes) of the device
    qn_slot *slots;        // (n_slots)
    int32_t *slot_of;      // (X) -1: not there
    uint8_t *wants;        // (X) qn_want
    float *heat;           // (X) tokens, older ones counting less
    uint32_t *history;     // (QN_EXPERT_TIMES, X) tokens
    int64_t hits, misses, promotions, demotions, prefetched, bytes_read, stall_ns;
} qn_pool_layer;

typedef struct qn_load {
    int32_t layer, expert, slot;
} qn_load;

struct qn_residency {
    qn_device *device; // borrowed
    qn_pager pager;
    qn_file file;
    qn_pool_layer *layers; // (n_layers)
    int64_t n_layers, n_slots;
    XXH3_state_t *hash; // of the expert that is being taken
    pthread_mutex_t step_lock, lock;
    pthread_cond_t work, done; // for the reader; for the step
    pthread_t reader;
    bool has_reader, is_ending;
    // Under `lock` from here on.
    int32_t active; // layer of the running call; -1: none
    qn_load *asked; // (n_slots) of the running call, first come first
    int64_t n_asked, first_asked;
    qn_load *planned; // (n_layers * n_slots) for whenever there is time
    int64_t n_planned, first_planned;
    qn_status failed;
    qn_err why;
    int64_t rows, segs; // of the running step
    int64_t steps, since_refresh;
    int64_t columns, per_column; // of the history: in use; steps of each
    float *hottest;              // (max X) scratch of a refresh
};

// --- policy (residency_policy.c); called with the lock held ---

// Counts the rows of a call.
void qn_residency_heat(qn_residency *residency, qn_pool_layer *layer, const int32_t *experts,
                       const int32_t *rows, int32_t n);
// The slot to give up for another expert: a free one, or that of the expert which was used least
// and is not wanted by the running call; -1: there is none.
int32_t qn_residency_victim(const qn_residency *residency, const qn_pool_layer *layer);
// Plans what the reader is to bring, after a step.
void qn_residency_refresh(qn_residency *residency);
// Whether a planned load is still worth it; *slot: where to.
bool qn_residency_accept(int32_t *slot, const qn_residency *residency, const qn_load *load);

#endif
