// Limits of a card: kernels that only read, and that only multiply matrices.
#include "limits.cuh"

#include <algorithm>

enum { RUNS = 31, WARM = 100, THREADS = 512, LOADS = 8, MMAS = 512, TILES = 8 };

// Sixteen bytes at a time, several on their way; what is read is used, so that it is read.
static __global__ void read_all(const uint4 *from, size_t n, unsigned *sum) {
    const size_t step = (size_t)gridDim.x * THREADS;
    unsigned seen = 0;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += LOADS * step) {
        uint4 v[LOADS];
#pragma unroll
        for (int k = 0; k < LOADS; k++)
            v[k] = i + k * step < n ? __ldcs(from + i + k * step) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int k = 0; k < LOADS; k++) seen ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    if (seen == 0x9e3779b9u) atomicAdd(sum, seen);
}

// A warp multiplies a (16, 16) with TILES times (16, 8), over and over; sums are f32.
static __global__ void multiply_all(unsigned *sum) {
    const unsigned a = threadIdx.x & 1 ? 0 : 0x00010001u; // small numbers of fp16
    float c[TILES][4] = {};
    for (int i = 0; i < MMAS; i++) {
#pragma unroll
        for (int t = 0; t < TILES; t++)
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
                         "{%4,%4,%4,%4}, {%5,%5}, {%0,%1,%2,%3};"
                         : "+f"(c[t][0]), "+f"(c[t][1]), "+f"(c[t][2]), "+f"(c[t][3])
                         : "r"(a), "r"(a + t));
    }
    float all = 0;
    for (int t = 0; t < TILES; t++) all += c[t][0] + c[t][1] + c[t][2] + c[t][3];
    if (all == 12345.0f) atomicAdd(sum, 1u);
}

// A run and its time.
struct Bench {
    int n_units;
    const uint4 *from;
    size_t n;
    unsigned *sum;
    cudaStream_t stream;
    cudaEvent_t begin, end;
};

static void launch_read(const Bench *b) {
    read_all<<<b->n_units * 4, THREADS, 0, b->stream>>>(b->from, b->n, b->sum);
}
static void launch_multiply(const Bench *b) {
    multiply_all<<<b->n_units * 4, THREADS, 0, b->stream>>>(b->sum);
}

// Seconds: the median of the runs, or the best of them. Those before bring the clocks up.
static cudaError_t time_runs(double *out, const Bench *b, void (*launch)(const Bench *),
                             bool is_best) {
    float ms[RUNS];
    for (int i = -WARM; i < RUNS; i++) {
        cudaError_t error = cudaEventRecord(b->begin, b->stream);
        launch(b);
        if (!error) error = cudaGetLastError();
        if (!error) error = cudaEventRecord(b->end, b->stream);
        if (!error) error = cudaEventSynchronize(b->end);
        if (!error) error = cudaEventElapsedTime(&ms[i < 0 ? 0 : i], b->begin, b->end);
        if (error) return error;
    }
    std::sort(ms, ms + RUNS);
    *out = ms[is_best ? 0 : RUNS / 2] * 1e-3;
    return cudaSuccess;
}

static cudaError_t run_all(qn_cuda_limits *out, Bench *b) {
    double read = 0, multiply = 0;
    cudaError_t error = time_runs(&read, b, launch_read, false);
    if (!error) error = time_runs(&multiply, b, launch_multiply, true);
    if (error) return error;
    const double warps = b->n_units * 4.0 * (THREADS / 32);
    out->read_gbs = (double)b->n * sizeof(uint4) / read * 1e-9;
    out->tensor_tflops = warps * (double)(MMAS * TILES) * (2.0 * 16 * 8 * 16) / multiply * 1e-12;
    return cudaSuccess;
}

// As much as is far from any cache, or what is free.
static cudaError_t take(void **to, size_t *bytes) {
    size_t available, total;
    cudaError_t error = cudaMemGetInfo(&available, &total);
    if (error) return error;
    *bytes = std::min((size_t)2 << 30, available / 2) / 256 * 256;
    return *bytes ? cudaMalloc(to, *bytes + 256) : cudaErrorMemoryAllocation;
}

int qn_measure_limits(qn_cuda_limits *out, int card, cudaStream_t stream) {
    Bench b = {};
    void *memory = nullptr;
    size_t bytes = 0;
    cudaError_t error = take(&memory, &bytes);
    if (error) return error;
    b.from = (const uint4 *)memory;
    b.n = bytes / sizeof(uint4);
    b.sum = (unsigned *)((unsigned char *)memory + bytes);
    b.stream = stream;
    error = cudaDeviceGetAttribute(&b.n_units, cudaDevAttrMultiProcessorCount, card);
    if (!error) error = cudaMemsetAsync(memory, 0, bytes + 256, stream);
    if (!error) error = cudaEventCreate(&b.begin);
    if (!error) error = cudaEventCreate(&b.end);
    if (!error) error = run_all(out, &b);
    if (b.begin) (void)cudaEventDestroy(b.begin);
    if (b.end) (void)cudaEventDestroy(b.end);
    (void)cudaFree(memory);
    return error;
}
