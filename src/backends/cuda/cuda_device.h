// GPUs as devices: inside the backend. See qn_device_kind for what the functions do.
#ifndef QN_BACKENDS_CUDA_DEVICE_H
#define QN_BACKENDS_CUDA_DEVICE_H

#include "backends/cuda/cuda_api.h"
#include "backends/device.h"

#include <pthread.h>

typedef struct qn_cuda_device {
    qn_device head;
    const qn_cuda_api *api;
    qn_cuda_stream *stream;
    qn_cuda_card card;
    int index;
    pthread_mutex_t lock; // around what several threads could do to the stream at the same time
    // The first call that failed; afterwards nothing is done any more, and what is read is zeros.
    int error;
    const char *failed;          // what it was
    struct qn_cuda_lanes *lanes; // of loading (cuda_load.c); NULL: nothing is being loaded
} qn_cuda_device;

static inline qn_cuda_device *qn_cuda_own(const qn_device *device) {
    return (qn_cuda_device *)(uintptr_t)device;
}

// Whether the device still works after a call with this result; keeps the first failure.
bool qn_cuda_check(qn_cuda_device *device, int error, const char *what);
QN_MUST_CHECK qn_status qn_cuda_failure(const qn_device *device, qn_err *err);

// Takes memory by a call of the table, with the lock. False: there is no room, so many bytes are
// free; or the card has failed, which is kept.
typedef int qn_cuda_take_fn(void **out, qn_cuda_stream *stream, size_t bytes);
bool qn_cuda_take(void **out, qn_cuda_device *device, qn_cuda_take_fn *take, size_t bytes,
                  size_t *available);

// The table of calls: of the plug-in that QN_CUDA_LIBRARY names, or of the one beside this
// program or library. It stays in memory.
QN_MUST_CHECK qn_status qn_cuda_api_find(const qn_cuda_api **out, qn_err *err);

// One for each card, which differ in their names.
enum { QN_CUDA_CARDS = 8 };
extern const qn_backend qn_cuda_backends[QN_CUDA_CARDS];

QN_MUST_CHECK qn_status qn_cuda_weight_bytes(int64_t *out, const qn_device *device,
                                             const qn_plan_leaf *leaf, qn_err *err);

// How a weight lies on the card (cuda_weights.c). Numbers that stay together: n of them, a multiple
// of `together` or the last of the weight, are one piece of it here and there.
typedef struct qn_cuda_layout {
    int64_t n, width; // values of the weight, and of a row
    int64_t together;
    bool is_packed; // its bytes are moved: qn_cuda_pack; else they lie as they are read
} qn_cuda_layout;
QN_MUST_CHECK qn_status qn_cuda_layout_of(qn_cuda_layout *out, const qn_plan_leaf *leaf,
                                          qn_err *err);
// Bytes of n values, here and there.
int64_t qn_cuda_card_bytes(const qn_plan_leaf *leaf, int64_t n);
// A piece as it lies on the card, from one as it is read. Any thread may.
void qn_cuda_pack(unsigned char *to, const unsigned char *from, const qn_plan_leaf *leaf,
                  const qn_cuda_layout *layout, int64_t n);

// Loading (cuda_load.c).
QN_MUST_CHECK qn_status qn_cuda_load_weight(void *to, qn_device *device, const qn_plan_leaf *leaf,
                                            const qn_weight_reader *reader, qn_err *err);
void qn_cuda_load_end(qn_device *device);
QN_MUST_CHECK qn_status qn_cuda_alloc_host(void **out, qn_device *device, size_t bytes,
                                           qn_err *err);
void qn_cuda_free_host(qn_device *device, void *at);
QN_MUST_CHECK qn_status qn_cuda_pack_weight(void *host, qn_device *device, const qn_plan_leaf *leaf,
                                            const qn_weight_reader *reader, qn_err *err);
QN_MUST_CHECK qn_status qn_cuda_bring(qn_device *device, void *to, const void *host, size_t bytes,
                                      qn_err *err);

void qn_cuda_write(qn_device *device, void *to, const void *host, size_t bytes);
void qn_cuda_read(qn_device *device, void *host, const void *from, size_t bytes);

// --- pages (cuda_kv.c) ---

int64_t qn_cuda_cache_bytes(qn_type type, int64_t heads, int64_t k_size, int64_t v_size);
void qn_cuda_read_kv(float *keys, float *values, qn_device *device, const qn_cache_view *cache,
                     int32_t page, int64_t row);
void qn_cuda_get_kv(unsigned char *rows, qn_device *device, const qn_cache_view *cache,
                    int32_t page, int64_t first, int64_t n);
void qn_cuda_set_kv(const unsigned char *rows, qn_device *device, const qn_cache_view *cache,
                    int32_t page, int64_t first, int64_t n);

// --- programs (cuda_prepare.c, cuda_program.c, cuda_look.c) ---

QN_MUST_CHECK qn_status qn_cuda_prepare(qn_program **out, qn_device *device,
                                        const qn_program_opts *opts, qn_err *err);
void qn_cuda_release(qn_program *program);
qn_program_size qn_cuda_measure(const qn_program *program);
bool qn_cuda_begin(qn_program *program, int i, int32_t *message, const qn_sizes *sizes);
bool qn_cuda_give(qn_program *program, const char *input, const float *rows);
void qn_cuda_run(qn_program *program);
void qn_cuda_wait(qn_program *program);
const float *qn_cuda_row(const qn_program *program, const qn_plan_output *output, int64_t row);
void qn_cuda_counts(const qn_program *program, int64_t *hits, int64_t *misses);
bool qn_cuda_times(const qn_program *program, size_t call, int64_t *begin, int64_t *end);
void qn_cuda_run_call(qn_program *program, size_t call);
void qn_cuda_read_arg(float *to, const qn_program *program, size_t call, qn_arg_kind kind,
                      int index, int64_t row);

#endif
