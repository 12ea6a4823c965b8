// Tiles of rows that follow each other in a segment, for kernels that compute many at a time.
#pragma once

#include "attention.cuh"

// The rows of a tile. seg -1: padding; no rows: nothing to do.
struct Rows {
    int64_t row, seg;
    int n, group; // rows; query heads of the head of keys
    int64_t kv;
};

// Tiles of the segments, then those of padding.
static __device__ inline Rows find_rows(const Task &t, const Attention &a, int64_t i, int per) {
    const qn_step *s = t.step;
    const bool is_mixed = a.is_mixed;
    const Item item =
        find_item(s, i, [=](int n) { return is_mixed && n < MANY_ROWS ? 0 : (n + per - 1) / per; });
    const bool is_padding = item.seg == s->n_segs;
    const int64_t row = s->seg_row[item.seg] + item.at * per;
    const int64_t left = (is_padding ? t.rows : (int64_t)s->seg_row[item.seg + 1]) - row;
    return {.row = row,
            .seg = is_padding ? -1 : item.seg,
            .n = (int)(left < 0     ? 0
                       : left < per ? left
                                    : per)};
}

static __device__ inline float *result_at(const Task &t, const Rows &x, int query) {
    return (float *)part_at(t.out[0], x.row + query / x.group, x.kv * x.group + query % x.group);
}

template <int HEAD> static __device__ inline void clear_rows(const Task &t, const Rows &x) {
    for (int i = threadIdx.x; i < x.n * x.group * HEAD; i += (int)blockDim.x)
        result_at(t, x, i / HEAD)[i % HEAD] = 0;
}

// The first block from `at` on, before `end`, that has a page.
static __device__ inline int next_block(const Task &t, int64_t seg, int at, int end) {
    while (at < end && !find_page(t, seg, at / BLOCK)) at += BLOCK;
    return at;
}
