// Matmuls of many rows: what the kernels for all cards share.
//
// The outputs of a call are groups of 64, each of four tiles or less; rows are tiles of ROWS. A job
// is a tile of rows and OUTS groups. Each block of 256 values gives its partial by the formula of
// docs/numbers.md, and partials are added in order, so that it does not matter who computed them.
#pragma once

#include "digits.cuh"
#include "unpack.cuh"

constexpr int MANY_PARTS = QN_MAX_IN;

// A gate with silu comes after what it gates, any other gate before it.
enum ManyEnd { MANY_STORE, MANY_SILU, MANY_GATE, MANY_HEAD };

// A weight, or the two of a gated one, in order; outputs go to columns `out` ... of the result.
struct ManyPart {
    const unsigned char *data[2];
    int tiles, out;
};

struct Many {
    ManyPart parts[MANY_PARTS];
    int n_parts;
    int passes; // 2: gated
    ManyEnd end;
    const unsigned char *image;
    Flat out;
    const qn_step *step; // of a head, which may leave out its last outputs
    int rows, blocks, groups;
    float cap;
    int act;
};

// A group of outputs: its units of a block follow each other.
struct ManyGroup {
    const unsigned char *data;
    int tiles, out;
};

static __device__ inline ManyGroup group_of(const Many &m, int group, int pass, int unit_bytes) {
    int i = 0;
    while (i + 1 < m.n_parts && group >= ceil_div(m.parts[i].tiles, 4))
        group -= ceil_div(m.parts[i++].tiles, 4);
    const ManyPart &p = m.parts[i];
    const int left = p.tiles - 4 * group;
    return {(pass ? p.data[1] : p.data[0]) + (int64_t)group * 4 * m.blocks * unit_bytes,
            left < 4 ? left : 4, p.out + 64 * group};
}

// Columns that are wanted of a head, and the groups that have them.
struct ManyExtent {
    int groups, columns;
    __device__ inline ManyExtent(const Many &m) : groups(m.groups), columns(INT32_MAX) {
        if (!m.step || m.step->computed <= 0) return;
        columns = (int)m.step->computed;
        const int wanted = ceil_div(columns, 64);
        groups = wanted < groups ? wanted : groups;
    }
};

// Tiles of rows are taken eight at a time, so that what is read stays near.
struct ManyJob {
    int rows, outs; // which tile, which set of outputs
    __device__ inline ManyJob(int job, int row_tiles, int sets) {
        constexpr int AT_A_TIME = 8;
        const int g = job / (AT_A_TIME * sets), left = row_tiles - g * AT_A_TIME;
        const int n = left < AT_A_TIME ? left : AT_A_TIME, in = job - g * AT_A_TIME * sets;
        rows = g * AT_A_TIME + in % n;
        outs = in / n;
    }
};

// Registers of a thread, by number: 4 j + i is row 8 j + 2 t + i % 2, output g + i / 2 * 8 of its
// warp's 16.

// t and then v of a block: v = S * float(t).
template <class S>
static __device__ inline void scaled_sums(float (&v)[S::NY], const float (&acc)[S::N / 2],
                                          const float (&odd)[S::N_ODD], const Unit<S::TYPE> &unit) {
    const float scale[2] = {unit.scale(0), unit.scale(1)};
#pragma unroll
    for (int i = 0; i < S::NY; i++) {
        float t = acc[i];
        if constexpr (S::HAS_WHOLE)
            t = whole_sum(acc[i], acc[S::NY + i], odd[i]);
        else if constexpr (S::IS_EXACT)
            t = fmaf(64.0f, acc[i], acc[S::NY + i]);
        v[i] = scale[i % 4 / 2] * t;
    }
}

// v -= M * float(o), where acc has the sums of offsets.
template <class S>
static __device__ inline void take_offsets(float (&v)[S::NY], const float (&acc)[S::N / 2],
                                           const Unit<S::TYPE> &unit) {
    const float scale[2] = {-unit.offset_scale(0), -unit.offset_scale(1)};
#pragma unroll
    for (int i = 0; i < S::NY; i++) {
        float o = acc[i];
        if constexpr (S::IS_EXACT) o = fmaf(256.0f, acc[i], acc[S::NY + i]);
        v[i] = fmaf(scale[i % 4 / 2], o, v[i]);
    }
}

// p = da * v; the scales of rows lie at `scales`.
template <class S> static __device__ inline void scale_rows(float (&v)[S::NY], uint32_t scales) {
#pragma unroll
    for (int j = 0; j < S::NY / 4; j++) {
        const uint2 two = load_8(scales + (8 * j + 2 * (threadIdx.x % 4)) * 4);
        const float da[2] = {__uint_as_float(two.x), __uint_as_float(two.y)};
#pragma unroll
        for (int i = 0; i < 4; i++) v[4 * j + i] = da[i % 2] * v[4 * j + i];
    }
}

// Where register i of a thread goes; NULL: nowhere.
struct ManyOut {
    float *first; // of register 0
    int64_t stride;
    int rows, columns; // that are left from there
    __device__ inline ManyOut(const Many &m, const ManyGroup &group, int row_tile, int tile_rows,
                              int all_columns) {
        const int warp = threadIdx.x / WARP % 4, row = row_tile * tile_rows + threadIdx.x % 4 * 2;
        const int column = group.out + warp * 16 + threadIdx.x % WARP / 4;
        first = (float *)(m.out.data + row * m.out.stride) + column;
        stride = m.out.stride;
        rows = warp < group.tiles ? m.rows - row : 0;
        columns = all_columns - column;
    }
    __device__ inline float *at(int i) const {
        const int row = i / 4 * 8 + i % 2, column = i % 4 / 2 * 8;
        if (row >= rows || column >= columns) return nullptr;
        return (float *)((unsigned char *)first + row * stride) + column;
    }
};

// Changes results where they lie, one by one, by a function that is too long to be unrolled: the
// code of the products must stay near. (In local memory the compiler would no longer see that
// accumulators are not touched while products are under way.)
template <class S, typename Function>
static __device__ inline void change_results(const ManyOut &out, Function function) {
#pragma unroll 1
    for (int i = 0; i < S::NY; i++) {
        float *at = out.at(i);
        if (at) *at = function(*at);
    }
}

// Stores the results of a pass; the second finds those of the first where they go.
template <class S>
static __device__ inline void store_results(float (&y)[S::NY], const ManyOut &out, const Many &m,
                                            int pass) {
    if (pass > 0) {
        float other[S::NY];
#pragma unroll
        for (int i = 0; i < S::NY; i++) {
            const float *at = out.at(i);
            other[i] = at ? *at : 0.0f;
        }
        if (m.end == MANY_SILU) {
#pragma unroll
            for (int i = 0; i < S::NY; i++) y[i] = math_silu(y[i]);
        }
#pragma unroll
        for (int i = 0; i < S::NY; i++) y[i] *= other[i];
    }
#pragma unroll
    for (int i = 0; i < S::NY; i++) {
        float *to = out.at(i);
        if (to) *to = y[i];
    }
    if (m.end == MANY_GATE && pass == 0)
        change_results<S>(out, [&](float x) { return activate(x, m.act); });
    if (m.end == MANY_HEAD && m.cap > 0)
        change_results<S>(out, [&](float x) { return m.cap * math_tanh(x / m.cap); });
}
