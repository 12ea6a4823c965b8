// The plug-in: the table of calls that drive cards (cuda_api.h).
#include "backends/cuda/cuda_api.h"
#include "kernels.cuh"
#include "limits.cuh"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

struct qn_cuda_stream {
    int card;
    cudaStream_t stream;
    cudaEvent_t marks[QN_CUDA_MARKS]; // made when they are first used
    cudaStream_t lanes[QN_CUDA_LANES];
};

struct qn_cuda_graph {
    cudaGraphExec_t exec;
};

typedef void launch_fn(const Task *task, cudaStream_t stream);

static launch_fn *const launchers[QN_CUDA_KERNELS] = {
#define KERNEL(name) qn_launch_##name,
#include "backends/cuda/cuda_kernels.def"
#undef KERNEL
};

static const char *explain(int error) { return cudaGetErrorString((cudaError_t)error); }

static int count(int *n) { return cudaGetDeviceCount(n); }

static int describe(qn_cuda_card *out, int card) {
    cudaDeviceProp p;
    const cudaError_t error = cudaGetDeviceProperties(&p, card);
    if (error) return error;
    *out = {};
    snprintf(out->name, sizeof out->name, "%s", p.name);
    out->major = p.major;
    out->minor = p.minor;
    out->n_units = p.multiProcessorCount;
    out->bytes = (int64_t)p.totalGlobalMem;
    return 0;
}

// A thread has a current card: that of whoever calls.
static int enter(const qn_cuda_stream *s) { return cudaSetDevice(s->card); }

static int open_stream(qn_cuda_stream **out, int card) {
    qn_cuda_stream *s = new (std::nothrow) qn_cuda_stream();
    if (!s) return cudaErrorMemoryAllocation;
    s->card = card;
    cudaError_t error = cudaSetDevice(card);
    if (!error) error = cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking);
    if (error) {
        delete s;
        return error;
    }
    *out = s;
    return 0;
}

static void close_stream(qn_cuda_stream *s) {
    if (!s) return;
    (void)enter(s);
    (void)cudaStreamSynchronize(s->stream);
    for (int i = 0; i < QN_CUDA_MARKS; i++) {
        if (s->marks[i]) (void)cudaEventDestroy(s->marks[i]);
    }
    for (int i = 0; i < QN_CUDA_LANES; i++) {
        if (s->lanes[i]) (void)cudaStreamDestroy(s->lanes[i]);
    }
    (void)cudaStreamDestroy(s->stream);
    delete s;
}

static int memory(qn_cuda_stream *s, size_t *available) {
    size_t total;
    const int error = enter(s);
    return error ? error : cudaMemGetInfo(available, &total);
}

static int alloc(void **out, qn_cuda_stream *s, size_t bytes) {
    const int error = enter(s);
    return error ? error : cudaMalloc(out, bytes);
}

static void free_bytes(qn_cuda_stream *s, void *at) {
    (void)enter(s);
    (void)cudaFree(at);
}

static int alloc_host(void **out, qn_cuda_stream *s, size_t bytes) {
    const int error = enter(s);
    return error ? error : cudaMallocHost(out, bytes);
}

static void free_host(qn_cuda_stream *s, void *at) {
    (void)enter(s);
    (void)cudaFreeHost(at);
}

static int clear(qn_cuda_stream *s, void *at, size_t bytes) {
    const int error = enter(s);
    return error ? error : cudaMemsetAsync(at, 0, bytes, s->stream);
}

static int move(const qn_cuda_stream *s, void *to, const void *from, size_t bytes,
                cudaMemcpyKind kind) {
    const int error = enter(s);
    return error ? error : cudaMemcpyAsync(to, from, bytes, kind, s->stream);
}

static int put(qn_cuda_stream *s, void *to, const void *host, size_t bytes) {
    return move(s, to, host, bytes, cudaMemcpyHostToDevice);
}
static int get(qn_cuda_stream *s, void *host, const void *from, size_t bytes) {
    return move(s, host, from, bytes, cudaMemcpyDeviceToHost);
}
static int copy(qn_cuda_stream *s, void *to, const void *from, size_t bytes) {
    return move(s, to, from, bytes, cudaMemcpyDeviceToDevice);
}

static int send(qn_cuda_stream *s, int lane, void *to, const void *host, size_t bytes) {
    cudaError_t error = (cudaError_t)enter(s);
    cudaStream_t *own = &s->lanes[lane];
    if (!error && !*own) error = cudaStreamCreateWithFlags(own, cudaStreamNonBlocking);
    return error ? error : cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, *own);
}

static int sent(qn_cuda_stream *s, int lane) {
    const int error = enter(s);
    return error || !s->lanes[lane] ? error : cudaStreamSynchronize(s->lanes[lane]);
}

static int launch(qn_cuda_stream *s, qn_cuda_kernel kernel, const qn_cuda_task *task) {
    const int error = enter(s);
    if (error) return error;
    (void)cudaGetLastError(); // of a call that found no room, which nobody asks for again
    launchers[kernel](task, s->stream);
    return cudaGetLastError();
}

static int wait(qn_cuda_stream *s) {
    const int error = enter(s);
    return error ? error : cudaStreamSynchronize(s->stream);
}

static int record(qn_cuda_stream *s) {
    const int error = enter(s);
    return error ? error : cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeThreadLocal);
}

static int record_end(qn_cuda_graph **out, qn_cuda_stream *s) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    cudaError_t error = cudaStreamEndCapture(s->stream, &graph);
    if (!error) error = cudaGraphInstantiate(&exec, graph, 0);
    if (graph) (void)cudaGraphDestroy(graph);
    qn_cuda_graph *made = error ? nullptr : new (std::nothrow) qn_cuda_graph{exec};
    if (!error && !made) (void)cudaGraphExecDestroy(exec);
    if (!made) return error ? error : cudaErrorMemoryAllocation;
    *out = made;
    return 0;
}

static int replay(qn_cuda_stream *s, const qn_cuda_graph *graph) {
    const int error = enter(s);
    return error ? error : cudaGraphLaunch(graph->exec, s->stream);
}

static void forget(qn_cuda_stream *s, qn_cuda_graph *graph) {
    (void)enter(s);
    if (graph) (void)cudaGraphExecDestroy(graph->exec);
    delete graph;
}

static int mark(qn_cuda_stream *s, int index) {
    cudaError_t error = (cudaError_t)enter(s);
    cudaEvent_t *event = &s->marks[index];
    if (!error && !*event) error = cudaEventCreate(event);
    return error ? error : cudaEventRecord(*event, s->stream);
}

static int between(int64_t *ns, qn_cuda_stream *s, int from, int to) {
    float ms = 0;
    const cudaError_t error = cudaEventElapsedTime(&ms, s->marks[from], s->marks[to]);
    if (!error) *ns = (int64_t)((double)ms * 1e6);
    return error;
}

static int measure(qn_cuda_limits *out, qn_cuda_stream *s) {
    const int error = enter(s);
    return error ? error : qn_measure_limits(out, s->card, s->stream);
}

extern "C" __attribute__((visibility("default"))) const qn_cuda_api *qn_cuda_api_get(void);

const qn_cuda_api *qn_cuda_api_get(void) {
    static const qn_cuda_api api = {.version = QN_CUDA_API_VERSION,
                                    .task_bytes = sizeof(qn_cuda_task),
                                    .explain = explain,
                                    .count = count,
                                    .describe = describe,
                                    .open = open_stream,
                                    .close = close_stream,
                                    .memory = memory,
                                    .alloc = alloc,
                                    .free = free_bytes,
                                    .alloc_host = alloc_host,
                                    .free_host = free_host,
                                    .clear = clear,
                                    .put = put,
                                    .get = get,
                                    .copy = copy,
                                    .launch = launch,
                                    .wait = wait,
                                    .send = send,
                                    .sent = sent,
                                    .record = record,
                                    .record_end = record_end,
                                    .replay = replay,
                                    .forget = forget,
                                    .mark = mark,
                                    .between = between,
                                    .measure = measure};
    return &api;
}
