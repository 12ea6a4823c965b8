// Every call that reaches a GPU, as one table. The plug-in libquern-cuda.so has the one that drives
// cards; tests have one that computes on the host, counts, and fails when it is told to.
#ifndef QN_BACKENDS_CUDA_API_H
#define QN_BACKENDS_CUDA_API_H

#include "backends/cuda/cuda_task.h"

#include <stdbool.h>
#include <stddef.h>

// Changes with this file, cuda_task.h and cuda_kernels.def: a plug-in of another version is not
// used.
enum { QN_CUDA_API_VERSION = 7 };

// Kernels by number.
typedef enum qn_cuda_kernel {
#define KERNEL(name) QN_CUDA_##name,
#include "backends/cuda/cuda_kernels.def"
#undef KERNEL
    QN_CUDA_KERNELS
} qn_cuda_kernel;

typedef struct qn_cuda_card {
    char name[64];
    int major, minor; // compute capability
    int n_units;      // multiprocessors
    int64_t bytes;    // memory
} qn_cuda_card;

// What a card can do, found by kernels that do nothing else.
typedef struct qn_cuda_limits {
    double read_gbs;      // 10^9 bytes read from its memory in a second
    double tensor_tflops; // 10^12 operations of matrix units on fp16 with f32 sums
} qn_cuda_limits;

enum { QN_CUDA_LANES = 33, QN_CUDA_MARKS = 4096 };

// An open card: one stream, in which everything happens in order. Calls return 0, or a number that
// `explain` knows; then what they should have made is untouched.
typedef struct qn_cuda_stream qn_cuda_stream;
typedef struct qn_cuda_graph qn_cuda_graph;

typedef struct qn_cuda_api {
    int version;
    size_t task_bytes; // sizeof(qn_cuda_task) of the plug-in
    const char *(*explain)(int error);

    int (*count)(int *n);
    int (*describe)(qn_cuda_card *out, int card);
    int (*open)(qn_cuda_stream **out, int card);
    void (*close)(qn_cuda_stream *stream);

    int (*memory)(qn_cuda_stream *stream, size_t *available);
    int (*alloc)(void **out, qn_cuda_stream *stream, size_t bytes); // not zeroed
    void (*free)(qn_cuda_stream *stream, void *at);
    int (*alloc_host)(void **out, qn_cuda_stream *stream, size_t bytes); // that is copied fast
    void (*free_host)(qn_cuda_stream *stream, void *at);

    // In the order of the stream. `put` has read the host's bytes when it returns, unless they are
    // those of alloc_host; `get` may return before it is done.
    int (*clear)(qn_cuda_stream *stream, void *at, size_t bytes);
    int (*put)(qn_cuda_stream *stream, void *to, const void *host, size_t bytes);
    int (*get)(qn_cuda_stream *stream, void *host, const void *from, size_t bytes);
    int (*copy)(qn_cuda_stream *stream, void *to, const void *from, size_t bytes);
    int (*launch)(qn_cuda_stream *stream, qn_cuda_kernel kernel, const qn_cuda_task *task);
    int (*wait)(qn_cuda_stream *stream);

    // Copies beside the stream, in lanes that know nothing of it nor of each other: begins one, of
    // bytes of alloc_host; waits until the copies of a lane are done. A lane is used by one thread
    // at a time.
    int (*send)(qn_cuda_stream *stream, int lane, void *to, const void *host, size_t bytes);
    int (*sent)(qn_cuda_stream *stream, int lane);

    // Launches between `record` and `record_end` make a graph and are not run; the thread that
    // records has the stream for itself.
    int (*record)(qn_cuda_stream *stream);
    int (*record_end)(qn_cuda_graph **out, qn_cuda_stream *stream);
    int (*replay)(qn_cuda_stream *stream, const qn_cuda_graph *graph);
    void (*forget)(qn_cuda_stream *stream, qn_cuda_graph *graph);

    // Marks a moment of the stream, by one of QN_CUDA_MARKS; nanoseconds between two marks that
    // have passed.
    int (*mark)(qn_cuda_stream *stream, int index);
    int (*between)(int64_t *ns, qn_cuda_stream *stream, int from, int to);

    // Takes a second, and memory that it gives back.
    int (*measure)(qn_cuda_limits *out, qn_cuda_stream *stream);
} qn_cuda_api;

// What the plug-in exports, under the name QN_CUDA_SYMBOL.
typedef const qn_cuda_api *qn_cuda_api_fn(void);
#define QN_CUDA_SYMBOL "qn_cuda_api_get"

#endif
