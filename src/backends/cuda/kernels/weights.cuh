// Weights in their own types: groups of 32 integers with their scales, and single numbers.
//
// The blocks are drawn in quant/<type>.c, tiles in cuda_tiles.h. Blocks begin at odd addresses in
// some types, so bytes are read one by one.
#pragma once

#include "common.cuh"

// 32 values of a block, in two halves of 16 where `is_halved`: value = S * scale * w - M * offset.
struct Group {
    int w[8]; // four signed bytes each, in order
    int scale[2], offset[2];
    float S, M;
};

static __device__ inline int pack4(int a, int b, int c, int d) {
    return (a & 255) | (b & 255) << 8 | (c & 255) << 16 | (d & 255) << 24;
}

// w[k] = value(k), k from 0 to 31.
template <typename Value> static __device__ inline void fill_group(Group &g, Value value) {
#pragma unroll
    for (int i = 0; i < 8; i++)
        g.w[i] = pack4(value(4 * i), value(4 * i + 1), value(4 * i + 2), value(4 * i + 3));
}

static __device__ inline int nibble(const uint8_t *qs, int i) {
    return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4;
}
static __device__ inline int bit_at(const uint8_t *bits, int i) { return bits[i / 8] >> i % 8 & 1; }

static __device__ inline int iq4_level(int i) {
    constexpr int8_t levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};
    return levels[i];
}

static __device__ inline int mxfp4_level(int i) { // twice the level
    constexpr int8_t levels[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    return levels[i];
}

// 2^(e - 128), half of the scale.
static __device__ inline float mxfp4_scale(int e) {
    return qn_float_from_bits(e > 1 ? (uint32_t)(e - 1) << 23 : 0x00400000u >> (1 - e));
}

// Types whose groups have integer scales, in blocks of 256.
static __host__ __device__ inline bool is_scaled(int type) {
    return type == QN_TYPE_Q2_K || type == QN_TYPE_Q3_K || type == QN_TYPE_Q4_K ||
           type == QN_TYPE_Q5_K || type == QN_TYPE_Q6_K || type == QN_TYPE_IQ4_XS;
}
static __host__ __device__ inline bool is_halved(int type) {
    return type == QN_TYPE_Q2_K || type == QN_TYPE_Q3_K || type == QN_TYPE_Q6_K;
}
static __host__ __device__ inline bool has_offsets(int type) {
    return type == QN_TYPE_Q2_K || type == QN_TYPE_Q4_K || type == QN_TYPE_Q5_K ||
           type == QN_TYPE_Q4_1 || type == QN_TYPE_Q5_1;
}
static __host__ __device__ inline bool is_float_type(int type) {
    return type == QN_TYPE_F32 || type == QN_TYPE_F16 || type == QN_TYPE_BF16;
}

static __device__ inline void set_simple(Group &g, float scale, float offset) {
    g.S = scale;
    g.M = -offset;
    g.scale[0] = g.offset[0] = 1;
    g.scale[1] = g.offset[1] = 1;
}

// Scale and minimum j of the 12 bytes of Q4_K and Q5_K.
static __device__ inline void scale_min(Group &g, const uint8_t *b, int j) {
    const bool is_low = j < 4;
    g.scale[0] = is_low ? b[j] & 63 : (b[j + 4] & 15) | b[j - 4] >> 6 << 4;
    g.offset[0] = is_low ? b[j + 4] & 63 : b[j + 4] >> 4 | b[j] >> 6 << 4;
}

// Group j of the 8 of 256 values of a row; `b` is where these 256 values begin.
static __device__ inline void read_group(Group &g, const uint8_t *b, int type, int j) {
    const TypeSize size = type_size(type);
    if (size.block == 32) b += j * size.bytes;
    switch (type) {
    case QN_TYPE_Q4_0:
        set_simple(g, qn_load_half(b), 0);
        fill_group(g, [=](int k) { return nibble(b + 2, k) - 8; });
        break;
    case QN_TYPE_Q4_1:
        set_simple(g, qn_load_half(b), qn_load_half(b + 2));
        fill_group(g, [=](int k) { return nibble(b + 4, k); });
        break;
    case QN_TYPE_Q5_0:
        set_simple(g, qn_load_half(b), 0);
        fill_group(g, [=](int k) { return (nibble(b + 6, k) | bit_at(b + 2, k) << 4) - 16; });
        break;
    case QN_TYPE_Q5_1:
        set_simple(g, qn_load_half(b), qn_load_half(b + 2));
        fill_group(g, [=](int k) { return nibble(b + 8, k) | bit_at(b + 4, k) << 4; });
        break;
    case QN_TYPE_Q8_0:
        set_simple(g, qn_load_half(b), 0);
        fill_group(g, [=](int k) { return (int)b[2 + k]; });
        break;
    case QN_TYPE_IQ4_NL:
        set_simple(g, qn_load_half(b), 0);
        fill_group(g, [=](int k) { return iq4_level(nibble(b + 2, k)); });
        break;
    case QN_TYPE_MXFP4:
        set_simple(g, mxfp4_scale(b[0]), 0);
        fill_group(g, [=](int k) { return mxfp4_level(nibble(b + 1, k)); });
        break;
    case QN_TYPE_Q2_K:
        g.S = qn_load_half(b + 80);
        g.M = qn_load_half(b + 82);
        for (int h = 0; h < 2; h++) {
            g.scale[h] = b[2 * j + h] & 15;
            g.offset[h] = b[2 * j + h] >> 4;
        }
        fill_group(g, [=](int k) { return b[16 + j / 4 * 32 + k] >> j % 4 * 2 & 3; });
        break;
    case QN_TYPE_Q3_K:
        g.S = qn_load_half(b + 108);
        for (int h = 0; h < 2; h++) {
            const int s = 2 * j + h;
            const int low = b[96 + s % 8] >> s / 8 * 4 & 15, high = b[104 + s % 4] >> s / 4 * 2 & 3;
            g.scale[h] = (low | high << 4) - 32;
        }
        fill_group(g, [=](int k) {
            return ((b[32 + j / 4 * 32 + k] >> j % 4 * 2 & 3) | (b[k] >> j & 1) << 2) - 4;
        });
        break;
    case QN_TYPE_Q4_K:
        g.S = qn_load_half(b);
        g.M = qn_load_half(b + 2);
        scale_min(g, b + 4, j);
        fill_group(g, [=](int k) { return b[16 + j / 2 * 32 + k] >> j % 2 * 4 & 15; });
        break;
    case QN_TYPE_Q5_K:
        g.S = qn_load_half(b);
        g.M = qn_load_half(b + 2);
        scale_min(g, b + 4, j);
        fill_group(g, [=](int k) {
            return (b[48 + j / 2 * 32 + k] >> j % 2 * 4 & 15) | (b[16 + k] >> j & 1) << 4;
        });
        break;
    case QN_TYPE_Q6_K:
        g.S = qn_load_half(b + 208);
        for (int h = 0; h < 2; h++) g.scale[h] = (int8_t)b[192 + 2 * j + h];
        fill_group(g, [=](int k) {
            const int i = 32 * j + k;
            const int low = b[i / 128 * 64 + i % 64] >> i % 128 / 64 * 4 & 15;
            return (low | (b[128 + i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3) << 4) - 32;
        });
        break;
    case QN_TYPE_IQ4_XS: {
        g.S = qn_load_half(b);
        const int low = b[4 + j / 2] >> j % 2 * 4 & 15, high = qn_load_u16(b + 2) >> 2 * j & 3;
        g.scale[0] = (low | high << 4) - 32;
        fill_group(g, [=](int k) { return iq4_level(nibble(b + 8 + 16 * j, k)); });
        break;
    }
    default:
        break;
    }
}

// --- tiles ---------------------------------------------------------------------------------------

// Byte k of row `row`'s 32 in a line.
static __device__ inline int line_byte(const uint8_t *line, int row, int k) {
    const int lane = 4 * (row % 8) + k % 16 / 4, word = 2 * (k / 16) + row / 8;
    return line[16 * lane + 4 * word + k % 4];
}

// The scales of group j of a row of a unit.
static __device__ inline void tiled_scales(Group &g, const uint8_t *unit, int type, int row,
                                           int j) {
    if (type == QN_TYPE_Q8_0) {
        set_simple(g, qn_load_half(unit + 16 * row + 2 * j), 0);
    } else if (type == QN_TYPE_Q4_K) {
        g.S = qn_load_half(unit + 16 * row);
        g.M = qn_load_half(unit + 16 * row + 2);
        scale_min(g, unit + 16 * row + 4, j);
    } else {
        g.S = qn_load_half(unit + 256 + 2 * row);
        for (int h = 0; h < 2; h++) g.scale[h] = (int8_t)unit[16 * row + 2 * j + h];
    }
}

// Integer k of group j of a row of a unit.
static __device__ inline int tiled_value(const uint8_t *unit, int type, int row, int j, int k) {
    if (type == QN_TYPE_Q8_0) return (int8_t)line_byte(unit + 256 + 512 * j, row, k);
    if (type == QN_TYPE_Q4_K) return line_byte(unit + 256 + j / 2 * 512, row, k) >> j % 2 * 4 & 15;
    const uint8_t *lines = unit + 288 + j / 4 * 1536;
    const int low = line_byte(lines + j % 2 * 512, row, k) >> j % 4 / 2 * 4 & 15;
    return (low | (line_byte(lines + 1024, row, k) >> j % 4 * 2 & 3) << 4) - 32;
}

// --- rows ----------------------------------------------------------------------------------------

// A row of a weight, wherever it lies.
struct WeightRow {
    const unsigned char *data; // its first block, or the first unit of its tile
    int type, row;             // the latter in its tile
    int64_t step;              // bytes from one block of 256 to the next
    bool is_tiled;
};

static __device__ inline WeightRow weight_row(const Operand &w, int64_t i) {
    WeightRow row;
    row.type = w.type;
    row.is_tiled = w.is_tiled;
    if (w.is_tiled) {
        const int64_t bytes = qn_cuda_unit_bytes(w.type);
        const qn_cuda_unit unit =
            qn_cuda_unit_of(i / QN_CUDA_TILE, 0, w.parts / QN_CUDA_TILE, w.width / QN_CUDA_BLOCK);
        row.data = w.data + unit.at * bytes;
        row.step = unit.step * bytes;
        row.row = (int)(i % QN_CUDA_TILE);
        return row;
    }
    const TypeSize size = type_size(w.type);
    row.data = w.data + i * (w.width / size.block * size.bytes);
    row.step = QN_CUDA_BLOCK / size.block * size.bytes;
    row.row = 0;
    return row;
}

// Group j of block b.
static __device__ inline void group_at(Group &g, const WeightRow &w, int64_t b, int j) {
    const uint8_t *at = w.data + b * w.step;
    if (!w.is_tiled) {
        read_group(g, at, w.type, j);
        return;
    }
    tiled_scales(g, at, w.type, w.row, j);
    fill_group(g, [=](int k) { return tiled_value(at, w.type, w.row, j, k); });
}

// Number i as a float, as the type's own unpacking gives it.
static __device__ inline float weight_at(const WeightRow &w, int64_t i) {
    if (w.type == QN_TYPE_F32) return ((const float *)w.data)[i];
    if (w.type == QN_TYPE_F16) return qn_half_decode(((const uint16_t *)w.data)[i]);
    if (w.type == QN_TYPE_BF16) return qn_bf16_decode(((const uint16_t *)w.data)[i]);
    const int64_t b = i / QN_CUDA_BLOCK;
    const int j = (int)(i % QN_CUDA_BLOCK) / 32, k = (int)(i % 32);
    const int h = is_halved(w.type) && k >= 16;
    Group g;
    int value;
    if (w.is_tiled) {
        tiled_scales(g, w.data + b * w.step, w.type, w.row, j);
        value = tiled_value(w.data + b * w.step, w.type, w.row, j, k);
    } else {
        read_group(g, w.data + b * w.step, w.type, j);
        value = (int8_t)(g.w[k / 4] >> k % 4 * 8);
    }
    const float scaled = g.S * (float)g.scale[h] * (float)value;
    return has_offsets(w.type) ? scaled - g.M * (float)g.offset[h] : scaled;
}
