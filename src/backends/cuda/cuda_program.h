// A program of a GPU, inside.
#ifndef QN_BACKENDS_CUDA_PROGRAM_H
#define QN_BACKENDS_CUDA_PROGRAM_H

#include "backends/cuda/cuda_device.h"

typedef struct qn_cuda_call {
    qn_cuda_kernel kernel;
    qn_dim rows;
    qn_cuda_task task;
} qn_cuda_call;

// Floats that are given with a step, and where they go.
typedef struct qn_cuda_given {
    const qn_plan_leaf *leaf;
    qn_dim rows;
    int64_t row_bytes, offset;
    const float *host; // of the begun step; NULL: not given
} qn_cuda_given;

typedef struct qn_cuda_const {
    int64_t offset, bytes; // 0 bytes: nobody reads it
} qn_cuda_const;

// An output, as far as it was brought here.
typedef struct qn_cuda_output {
    qn_dim rows;
    int64_t max_rows, row_bytes, stride; // the last from one row to the next, here and there
    unsigned char *host;
    size_t bytes;
    int64_t *fetched; // (max_rows) the step in which a row was brought
} qn_cuda_output;

// The launches of a step of these sizes.
typedef struct qn_cuda_binding {
    qn_sizes sizes;   // `cached` rounded up
    int64_t last_use; // 0: never
    qn_cuda_graph *graph;
} qn_cuda_binding;

// An op whose experts are brought: its calls that read them, and where the matrices of each expert
// lie, gate, up and down.
enum { QN_CUDA_MATRICES = 3 };

typedef struct qn_cuda_paged {
    size_t first, end; // of the calls
    int32_t layer;     // of the pager
    int64_t n_experts;
    const unsigned char *const *places[QN_CUDA_MATRICES]; // (n_experts)
} qn_cuda_paged;

typedef struct qn_cuda_plan {
    const qn_plan *plan; // NULL: none
    qn_cuda_call *calls;
    int64_t *offsets; // (n_buffers) in the arena
    qn_cuda_given *given;
    size_t n_given;
    qn_cuda_const *consts;
    qn_cuda_output *outputs;
    qn_cuda_binding *bindings; // (capacity)
    int capacity;
    // Experts that are brought (cuda_experts.c).
    const qn_pager *pager; // NULL: all are there
    qn_cuda_paged *paged;  // (n_paged), in order
    size_t n_paged;
    unsigned char *chosen;       // rows of ids, as they lie on the card
    int32_t *wanted;             // (3, most_experts): ids, rows of each, ids of a group
    const unsigned char **table; // (QN_CUDA_MATRICES, most_experts) of a group
} qn_cuda_plan;

typedef struct qn_cuda_program {
    qn_program head;
    qn_sizes max;
    qn_cuda_plan plans[QN_PROGRAM_PLANS];
    qn_cuda_plan *now;            // of the begun step
    qn_step step;                 // on the host
    int64_t cached;               // positions of its longest sequence, rounded up
    unsigned char *arena, *fixed; // on the card: activations; constants and given rows
    int64_t arena_bytes, fixed_bytes;
    float *room; // on the card: of one call at a time
    int64_t room_floats;
    uint32_t *counters;               // before the room; NULL: there is none
    int64_t most_experts;             // of an op whose experts are brought; 0: there is none
    const unsigned char **places;     // on the card: (QN_CUDA_MATRICES, most_experts)
    const qn_pager *begun;            // whose last group was not given back yet; NULL: none
    unsigned char *message, *on_card; // a step: qn_step, then the message
    size_t message_bytes, used_bytes;
    size_t first_bytes; // room for a step that is taken at once
    bool is_timed, is_tensor;
    int64_t started; // when the last step began, on the host's clock
    int64_t n_steps, n_hits;
    bool (*go_on)(void *arg);
    void *go_on_arg;
} qn_cuda_program;

enum { QN_CUDA_STEP_BYTES = (sizeof(qn_step) + 63) / 64 * 64 }; // before the message

static inline qn_cuda_program *qn_cuda_program_own(const qn_program *program) {
    return (qn_cuda_program *)(uintptr_t)program;
}

static inline qn_cuda_device *qn_cuda_card_of(const qn_cuda_program *x) {
    return qn_cuda_own(x->head.device);
}

// Positions of the longest sequence, rounded up: steps of the same sizes whose sequences have about
// the same length are the same launches.
static inline int64_t qn_cuda_round_cached(int64_t cached) {
    int64_t n = QN_CUDA_CHUNK;
    while (n < cached && n <= INT64_MAX / 2) n *= 2;
    return n;
}

// Call i of a plan as a task (cuda_bind.c).
QN_MUST_CHECK qn_status qn_cuda_bind_call(qn_cuda_program *x, qn_cuda_plan *p,
                                          const qn_program_plan *from, size_t i, qn_err *err);
// Launches call i of the begun plan, with the lock (cuda_program.c).
void qn_cuda_launch_call(const qn_cuda_program *x, size_t i);
// Room for a step of so many bytes, with the lock (cuda_prepare.c).
bool qn_cuda_make_room(qn_cuda_program *x, size_t bytes);

// Experts that are brought (cuda_experts.c): lists the ops that have them; points these to the
// table on the card; runs one, with the lock; gives back the last group when the card is done with
// it. False: an expert could not be brought, or the card has failed.
QN_MUST_CHECK qn_status qn_cuda_bind_experts(qn_cuda_program *x, qn_cuda_plan *p,
                                             const qn_program_plan *from, qn_err *err);
void qn_cuda_place_experts(const qn_cuda_program *x, qn_cuda_plan *p);
bool qn_cuda_run_experts(qn_cuda_program *x, const qn_cuda_paged *paged);
bool qn_cuda_end_experts(qn_cuda_program *x);
void qn_cuda_free_experts(qn_cuda_plan *p);

#endif
