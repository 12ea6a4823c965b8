// Devices: where weights and the KV cache lie, and where plans run.
//
// Only the device dereferences its addresses. Calls take effect in order; `write`, `run` and `copy`
// may return before they are done, `read`, `row` and `wait` may not. A device is shared by the
// threads of an engine; a program is used by one thread at a time.
//
// Every device computes the same bits (docs/numbers.md): which one is used changes no result.
#ifndef QN_BACKENDS_DEVICE_H
#define QN_BACKENDS_DEVICE_H

#include "backends/backend.h"
#include "core/pool.h"

enum { QN_PROGRAM_PLANS = 2 };

typedef struct qn_device_kind qn_device_kind;

// The head of every open device.
typedef struct qn_device {
    const qn_device_kind *kind;
    const qn_backend *backend;
    qn_pool *pool; // borrowed
} qn_device;

// --- weights -------------------------------------------------------------------------------------

// Who gives the numbers of a weight while it is loaded: n elements from `first` on, in the weight's
// own type, or as floats. Called from the threads of the pool. `progress` is called with bytes that
// are loaded, on the calling thread, and can stop it.
typedef struct qn_weight_reader {
    void *arg;
    qn_status (*read)(void *arg, void *to, int64_t first, int64_t n, qn_err *err);
    qn_status (*read_f32)(void *arg, float *to, int64_t first, int64_t n, qn_err *err);
    qn_status (*progress)(void *arg, int64_t bytes, qn_err *err);
} qn_weight_reader;

// --- experts -------------------------------------------------------------------------------------

// Who brings experts to the device, where not all of them are there. The runtime decides which are
// kept; `run` of a program asks for those that its step has chosen, one EXPERTS call after the
// other, on the thread that called it.
typedef struct qn_pager {
    void *arg;
    // The layer of a weight that is brought, and where each of its experts lies on the device, (X),
    // constant but for the entries. False: the weight lies on the device as a whole.
    bool (*find)(void *arg, const char *weight, int32_t *layer,
                 const unsigned char *const **places);
    // A call has chosen these experts of a layer, (n) ascending, for so many rows each.
    void (*begin)(void *arg, int32_t layer, const int32_t *experts, const int32_t *rows, int32_t n);
    // Those of them that are there by now and were not given yet, at least one; they stay until the
    // next call. Returns how many; 0: all were given; -1: one cannot be brought, and the step is
    // not to be finished.
    int32_t (*next)(void *arg, int32_t *experts);
} qn_pager;

// --- several ranks -------------------------------------------------------------------------------

// Brings together what several ranks computed (ranks/ranks.h): an ALL_GATHER call gives the bytes
// of this rank at `from` and wants those of all ranks at `to`, one rank's after the other's. Called
// in the order of the calls of a plan, which is the same on every rank, by one thread at a time.
// False: it failed, and so does every later one; whoever runs the program asks why.
typedef struct qn_gather {
    void *arg;
    int rank, n_ranks;
    bool (*gather)(void *arg, void *to, const void *from, const size_t *bytes); // (n_ranks)
} qn_gather;

// --- programs ------------------------------------------------------------------------------------

// The sizes of a step, or the largest that there can be.
typedef struct qn_sizes {
    int64_t rows, segs, outs; // T, B, R
    int64_t cached;           // max positions of one sequence, this step's rows included
} qn_sizes;

// A plan, and where its leaves lie on the device. Borrowed, all of it.
typedef struct qn_program_plan {
    const qn_plan *plan;                // NULL: none
    const void *const *weights;         // (PARAM leaves); NULL: only their shapes count
    const qn_pager *pager;              // of weights that are NULL; NULL: all are there
    const qn_cache_view *const *caches; // (CACHE leaves)
    const qn_slots_view *const *slots;  // (STATE leaves)
    qn_plan_policy policy;              // how bindings to sizes are kept; not AUTO
    int capacity;                       // bindings kept
} qn_program_plan;

typedef struct qn_program_opts {
    // They take turns in the same memory; the second may be empty.
    qn_program_plan plans[QN_PROGRAM_PLANS];
    qn_sizes max; // no step is larger
    bool is_timed;
    bool is_tensor;   // sums in the order of matrix units, where the device has it
    bool is_measured; // not to run: no memory is taken for activations
    // Asked between pieces of a run, by any thread; once it is false, the rest is left out but for
    // what ranks gather, and what the run computes is unknown. NULL: nobody asks
    bool (*go_on)(void *arg);
    void *go_on_arg;
    const qn_gather *gather; // of plans that have shares of a model; NULL: none has
} qn_program_opts;

// Plans of one device, ready to run.
typedef struct qn_program {
    qn_device *device;
} qn_program;

typedef struct qn_program_size {
    int64_t arena, scratch, tables; // bytes: activations; scratch of all threads; calls
} qn_program_size;

// An argument of a call, for looking at it.
typedef enum qn_arg_kind { QN_ARG_IN, QN_ARG_OUT } qn_arg_kind;

// The values of a weight, and of one row of it, for devices.
QN_MUST_CHECK qn_status qn_leaf_values(int64_t *n, int64_t *width, const qn_plan_leaf *leaf,
                                       qn_err *err);
// Arguments of a plan's calls that come with each step, for devices.
size_t qn_plan_inputs(const qn_plan *plan);
// What a plan gathers in a step of so many rows, by symbol: how often ranks meet, and bytes of all
// ranks together, which each of them has in the end.
typedef struct qn_gather_cost {
    int64_t calls, bytes;
} qn_gather_cost;
qn_gather_cost qn_plan_gather_cost(const qn_plan *plan, const qn_backend *backend,
                                   const int64_t rows[QN_SYM_COUNT]);
// Whether what the plans of a program gather is of the shares of this rank, for devices.
QN_MUST_CHECK qn_status qn_program_check_gather(const qn_program_opts *opts, qn_err *err);

// --- kinds of devices ----------------------------------------------------------------------------

struct qn_device_kind {
    const char *name;                  // "cpu"
    const char *about, *about_variant; // a line each
    // Names of the variants that this machine has ("cpu:avx2"), worst first; NULL after the last,
    // and at once where there is nothing to choose.
    const char *(*variant)(size_t i);
    // NULL: the best. One that this machine does not have is an error that lists those it has.
    qn_status (*open)(qn_device **out, const char *variant, qn_pool *pool, qn_err *err);
    void (*close)(qn_device *device);
    // Whether this machine has one; NULL: every machine has.
    bool (*is_there)(void);
    // Fills in memory, compute capability and model of a variant; NULL: nothing is known.
    qn_status (*describe)(qn_device_info *out, const char *variant, qn_err *err);
    // Whether a call that returns nothing has failed since the device was opened: then all that it
    // computed since is unknown, and it computes nothing any more. NULL: that cannot be.
    qn_status (*failure)(const qn_device *device, qn_err *err);

    // Memory. `alloc` gives bytes that are zero, aligned to 64; without room: QN_LIMIT, and less
    // may do. `host` addresses belong to this process. has_host_memory: addresses of the device do,
    // too, so that weights can stay in a mapped file.
    bool has_host_memory;
    qn_status (*alloc)(void **out, qn_device *device, size_t bytes, qn_err *err);
    void (*free)(qn_device *device, void *at, size_t bytes);
    void (*write)(qn_device *device, void *to, const void *host, size_t bytes);
    void (*read)(qn_device *device, void *host, const void *from, size_t bytes);
    void (*copy)(qn_device *device, void *to, const void *from, size_t bytes);
    bool (*memory)(const qn_device *device, int64_t *available); // false: unknown

    // Weights. The version of the layouts, for files that keep them. Bytes of a leaf of a plan in
    // its layout; and its numbers, brought into that layout, at `to`, which is zero.
    const char *weight_format;
    qn_status (*weight_bytes)(int64_t *out, const qn_device *device, const qn_plan_leaf *leaf,
                              qn_err *err);
    qn_status (*load_weight)(void *to, qn_device *device, const qn_plan_leaf *leaf,
                             const qn_weight_reader *reader, qn_err *err);
    // Puts the weights of a plan, (PARAM leaves; NULL: not there), where the threads that read them
    // find them soonest. NULL: there is no choice. !*is_placed: the system declined.
    qn_status (*place)(bool *is_placed, qn_device *device, const qn_plan *plan,
                       const void *const *data, qn_err *err);
    // After some weights: gives back what only loading needs. NULL: nothing.
    void (*load_end)(qn_device *device);

    // Experts that wait in memory of this process, where has_pager but not has_host_memory: memory
    // that is copied fast; a weight (X, ...) there, as X parts of one size that each lie as the
    // device wants them; and such bytes to the device, beside whatever it runs, by one thread at a
    // time: they are there when it returns.
    qn_status (*alloc_host)(void **out, qn_device *device, size_t bytes, qn_err *err);
    void (*free_host)(qn_device *device, void *at);
    qn_status (*pack_weight)(void *host, qn_device *device, const qn_plan_leaf *leaf,
                             const qn_weight_reader *reader, qn_err *err);
    qn_status (*bring)(qn_device *device, void *to, const void *host, size_t bytes, qn_err *err);

    // Programs. has_pager: some experts may be brought during a step; weights (X, ...) are then X
    // parts of one size, one after the other.
    bool has_pager;
    int64_t chunk;   // rows of a step in which it computes prompts well; 0: any number
    bool has_tensor; // is_tensor makes a difference
    qn_status (*prepare)(qn_program **out, qn_device *device, const qn_program_opts *opts,
                         qn_err *err);
    void (*release)(qn_program *program);
    qn_program_size (*measure)(const qn_program *program);
    // Makes a message the step of plan `i`. A step within the sizes of preparation can always be
    // bound; else false. The message stays until the next one.
    bool (*begin)(qn_program *program, int i, int32_t *message, const qn_sizes *sizes);
    // Rows for a float input of the begun plan, dense, of this process; they stay until the step is
    // done. False: there is no such input.
    bool (*give)(qn_program *program, const char *input, const float *rows);
    // Runs the calls of the step, after whatever was asked of the device before. Allocates nothing.
    void (*run)(qn_program *program);
    void (*wait)(qn_program *program);
    // Row `row` of an output of the step, for this process, until the next step. Rows are asked for
    // one by one: a device far away brings all of the output with the first.
    const float *(*row)(const qn_program *program, const qn_plan_output *output, int64_t row);
    // Bindings that were found, and made.
    void (*counts)(const qn_program *program, int64_t *hits, int64_t *misses);
    // When a call of the last step ran, in nanoseconds of the monotonic clock; false if it had
    // nothing to do, or times are not taken.
    bool (*times)(const qn_program *program, size_t call, int64_t *begin, int64_t *end);

    // Looking at a step: one call alone; row `row` of an argument as floats (or as the 32-bit
    // integers it is); keys (heads, k_size) and values (heads, v_size) of row `row` of a page.
    void (*run_call)(qn_program *program, size_t call);
    void (*read_arg)(float *to, const qn_program *program, size_t call, qn_arg_kind kind, int index,
                     int64_t row);
    void (*read_kv)(float *keys, float *values, qn_device *device, const qn_cache_view *cache,
                    int32_t page, int64_t row);

    // Keys and values as they are stored, in an order that all devices share: rows first ... first
    // + n - 1 of a page, each qn_kv_row_bytes (backend.h).
    void (*get_kv)(unsigned char *rows, qn_device *device, const qn_cache_view *cache, int32_t page,
                   int64_t first, int64_t n);
    void (*set_kv)(const unsigned char *rows, qn_device *device, const qn_cache_view *cache,
                   int32_t page, int64_t first, int64_t n);

    // What the device can do, as measured; NULL: unknown.
    qn_status (*limits)(qn_limits *out, const char *variant, int n_threads, qn_err *err);
};

// --- the registry --------------------------------------------------------------------------------

extern const qn_device_kind qn_cpu_device_kind, qn_ref_device_kind, qn_cuda_device_kind;

// All kinds; NULL after the last.
const qn_device_kind *qn_device_kind_get(size_t i);
// Entry i of the list of names: each kind, and after it its variants. False after the last.
bool qn_device_list(const char **name, const qn_device_kind **kind, size_t i);

// Opens a device by name: "cpu", "cpu:avx2", "ref"; NULL or "": the best. `variant` is that of a
// kind with variants where the name says none (NULL: its best). An unknown name is an error that
// lists the known ones.
QN_MUST_CHECK qn_status qn_device_open(qn_device **out, const char *name, const char *variant,
                                       qn_pool *pool, qn_err *err);
// What a device can do (qn_device_kind.limits), by its name. A kind that cannot tell is an error.
QN_MUST_CHECK qn_status qn_device_measure(qn_limits *out, const char *name, int n_threads,
                                          qn_err *err);
// Whether what lies on one takes room from the other.
bool qn_device_shares_memory(const qn_device *a, const qn_device *b);
// See qn_device_kind.
QN_MUST_CHECK qn_status qn_device_failure(const qn_device *device, qn_err *err);
void qn_device_close(qn_device *device);

#endif
