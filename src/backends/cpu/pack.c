// Packing: where each bit of a block goes.
//
// A tile's block of n values (256, or less at the end of a row) of an integer type:
//
//   header   of types with blocks of 256: its fields, each of 16 outputs side by side
//   run 0    32 values of 16 outputs
//     header   of types with blocks of 32: as above
//     planes   one after the other: byte 4 o + j of a row of 64 bytes belongs to output o
//   run 1 ...
//
// With i = 0 ... 31 the number of a value in its run, j = i % 4 and u = i / 4, a plane of width
//
//   8   is 8 rows: row u holds value i
//   4   is 4 rows: row u % 4 holds value i, in the low nibble for u < 4, else in the high one
//   2   is 2 rows: row u / 4 holds value i at bit 2 (u % 4)
//   1   is 1 row: value i is bit u
//
// so that a row of 64 bytes, shifted and masked, is 4 consecutive values of 16 outputs.
// Float types hold value k of 16 outputs side by side, then value k + 1.
#include "backends/cpu/pack.h"

#include "core/mem.h"

#include <assert.h>
#include <string.h>

enum { RUN = 32, ROW = 64, MAX_FIELDS = 3, MAX_PLANES = 2, MAX_BYTES = 210 };

typedef struct field {
    int at, size, count; // in the block of the type: first byte, bytes of an element, elements
} field;

// Where a plane's bits are in the block of the type: bit `at` for value 0, and step[b] further for
// every bit b that is set in the number of the value.
typedef struct plane {
    int width, at;
    int16_t step[8];
} plane;

typedef struct layout {
    field fields[MAX_FIELDS]; // size 0 ends the list
    plane planes[MAX_PLANES]; // width 0 ends the list
} layout;

// clang-format off
// 16 bytes for each 32 values: the first 16 in the low nibbles
#define NIBBLES(byte) {4, 8 * (byte), {8, 16, 32, 64, 4, 128, 256, 512}}
// 32 bytes for each 64 values: the first 32 in the low nibbles
#define WIDE_NIBBLES(byte) {4, 8 * (byte), {8, 16, 32, 64, 128, 4, 256, 512}}
// 32 bytes for each 128 values: bits 2 g, 2 g + 1 for the values 32 g ... 32 g + 31
#define PAIRS(byte) {2, 8 * (byte), {8, 16, 32, 64, 128, 2, 4, 256}}
// 32 bits
#define BITS(byte) {1, 8 * (byte), {1, 2, 4, 8, 16}}
// 32 bytes: bit g for the values 32 g ... 32 g + 31
#define WIDE_BITS(byte) {1, 8 * (byte), {8, 16, 32, 64, 128, 1, 2, 4}}
// clang-format on

// The blocks themselves are drawn in quant/<type>.c. A type without planes is a float, or has no
// layout.
static const layout layouts[QN_TYPE_COUNT] = {
    [QN_TYPE_Q4_0] = {{{0, 2, 1}}, {NIBBLES(2)}},
    [QN_TYPE_Q4_1] = {{{0, 2, 2}}, {NIBBLES(4)}},
    [QN_TYPE_Q5_0] = {{{0, 2, 1}}, {NIBBLES(6), BITS(2)}},
    [QN_TYPE_Q5_1] = {{{0, 2, 2}}, {NIBBLES(8), BITS(4)}},
    [QN_TYPE_Q8_0] = {{{0, 2, 1}}, {{8, 16, {8, 16, 32, 64, 128}}}},
    [QN_TYPE_Q2_K] = {{{80, 2, 2}, {0, 1, 16}}, {PAIRS(16)}},
    [QN_TYPE_Q3_K] = {{{108, 2, 1}, {96, 1, 12}}, {PAIRS(32), WIDE_BITS(0)}},
    [QN_TYPE_Q4_K] = {{{0, 2, 2}, {4, 1, 12}}, {WIDE_NIBBLES(16)}},
    [QN_TYPE_Q5_K] = {{{0, 2, 2}, {4, 1, 12}}, {WIDE_NIBBLES(48), WIDE_BITS(16)}},
    [QN_TYPE_Q6_K] = {{{208, 2, 1}, {192, 1, 16}},
                      {{4, 0, {8, 16, 32, 64, 128, 256, 4, 512}}, PAIRS(128)}},
    [QN_TYPE_IQ4_NL] = {{{0, 2, 1}}, {NIBBLES(2)}},
    [QN_TYPE_IQ4_XS] = {{{0, 2, 2}, {4, 1, 4}}, {NIBBLES(8)}},
    [QN_TYPE_MXFP4] = {{{0, 1, 1}}, {NIBBLES(1)}},
};

static bool is_float(qn_type type) {
    return type == QN_TYPE_F32 || type == QN_TYPE_F16 || type == QN_TYPE_BF16;
}

bool qn_pack_supports(qn_type type) {
    return (unsigned)type < QN_TYPE_COUNT && (is_float(type) || layouts[type].planes[0].width);
}

qn_status qn_packed_init(qn_packed *out, qn_type type, int64_t n_matrices, int64_t n_out,
                         int64_t n_in, qn_err *err) {
    if (!qn_pack_supports(type))
        return QN_FAIL(err, UNSUPPORTED, "type %s has no packed layout",
                       (unsigned)type < QN_TYPE_COUNT ? qn_type_get(type)->name : "?");
    if (n_matrices < 1 || n_out < 1 || n_in < 1)
        return QN_FAIL(err, ARGUMENT, "weight of %lld matrices of %lld x %lld",
                       (long long)n_matrices, (long long)n_out, (long long)n_in);
    const qn_type_info *info = qn_type_get(type);
    if (n_in % info->block)
        return QN_FAIL(err, ARGUMENT,
                       "inner size %lld is not a multiple of the %d values of a %s block",
                       (long long)n_in, info->block, info->name);
    const int64_t n_tiles = (n_out - 1) / QN_TILE + 1;
    int64_t tile_bytes, matrix_bytes, all_bytes;
    if (!qn_type_bytes(&tile_bytes, type, n_in) || !qn_i64_mul(&tile_bytes, tile_bytes, QN_TILE) ||
        !qn_i64_mul(&matrix_bytes, tile_bytes, n_tiles) ||
        !qn_i64_mul(&all_bytes, matrix_bytes, n_matrices))
        return QN_FAIL(err, ARGUMENT, "weight of %lld x %lld x %lld values of %s is too large",
                       (long long)n_matrices, (long long)n_out, (long long)n_in, info->name);
    *out = (qn_packed){.type = type,
                       .n_matrices = n_matrices,
                       .n_out = n_out,
                       .n_in = n_in,
                       .tile_bytes = tile_bytes,
                       .matrix_bytes = matrix_bytes};
    return QN_OK;
}

int64_t qn_packed_bytes(const qn_packed *w) { return w->n_matrices * w->matrix_bytes; }

int64_t qn_packed_tiles(const qn_packed *w) {
    return w->n_matrices * (w->matrix_bytes / w->tile_bytes);
}

// --- one unit: a block of the type, of 16 outputs ---

static int bit_of(const plane *p, int value) {
    int at = p->at;
    for (int b = 0; b < 8; b++) at += (value >> b & 1) * p->step[b];
    return at;
}

// Bytes of a unit's header, for 16 outputs.
static int header_bytes(const layout *l) {
    int bytes = 0;
    for (int f = 0; f < MAX_FIELDS && l->fields[f].size; f++)
        bytes += l->fields[f].size * l->fields[f].count;
    return bytes * QN_TILE;
}

// Where the values of a plane are. 16 consecutive values lie side by side in the block of the type,
// in 16 bytes or in 16 bits; 4 consecutive values lie in 4 bytes of the unit, in each at the same
// bit, and those of output o 4 o bytes further.
typedef struct moves {
    int n_values, width;
    bool is_bits;         // in the block: 16 bits
    int16_t from[16];     // bit in the block of the first of 16 values
    uint16_t to[64];      // byte in the unit of the first of 4 values, for output 0
    uint8_t to_shift[64]; // and its bit
} moves;

static void find_moves(moves *m, const layout *l, int which, int n_values) {
    const plane *p = &l->planes[which];
    const int run_bytes = RUN * QN_TILE * (l->planes[0].width + l->planes[1].width) / 8;
    const int first = header_bytes(l) + (which ? RUN * QN_TILE * l->planes[0].width / 8 : 0);
    *m = (moves){.n_values = n_values, .width = p->width, .is_bits = p->step[0] == 1};
    for (int i = 0; i < n_values / 16; i++) m->from[i] = (int16_t)bit_of(p, 16 * i);
    for (int i = 0; i < n_values / 4; i++) {
        const int u = i % 8, per_byte = 8 / p->width;
        // Nibbles of one byte lie 16 values apart; those of the narrower planes, 4.
        const int row = p->width == 4 ? u % 4 : u / per_byte;
        const int slot = p->width == 4 ? u / 4 : u % per_byte;
        m->to[i] = (uint16_t)(first + i / 8 * run_bytes + row * ROW);
        m->to_shift[i] = (uint8_t)(slot * p->width);
    }
}

static void pack_fields(uint8_t *unit, const uint8_t *block, const layout *l, int o) {
    for (int f = 0; f < MAX_FIELDS && l->fields[f].size; f++) {
        const field *at = &l->fields[f];
        for (int e = 0; e < at->count; e++, unit += QN_TILE * at->size)
            memcpy(unit + o * at->size, block + at->at + e * at->size, (size_t)at->size);
    }
}

static void unpack_fields(uint8_t *block, const uint8_t *unit, const layout *l, int o) {
    for (int f = 0; f < MAX_FIELDS && l->fields[f].size; f++) {
        const field *at = &l->fields[f];
        for (int e = 0; e < at->count; e++, unit += QN_TILE * at->size)
            memcpy(block + at->at + e * at->size, unit + o * at->size, (size_t)at->size);
    }
}

static void read16(uint8_t *q, const uint8_t *block, const moves *m, int i) {
    const uint8_t *from = block + m->from[i] / 8;
    const int shift = m->from[i] % 8, mask = (1 << m->width) - 1;
    if (m->is_bits) {
        for (int k = 0; k < 16; k++) q[k] = from[k / 8] >> k % 8 & 1;
    } else {
        for (int k = 0; k < 16; k++) q[k] = (uint8_t)(from[k] >> shift & mask);
    }
}

// block is zero where the bits go.
static void write16(uint8_t *block, const uint8_t *q, const moves *m, int i) {
    uint8_t *to = block + m->from[i] / 8;
    const int shift = m->from[i] % 8;
    if (m->is_bits) {
        for (int k = 0; k < 16; k++) to[k / 8] |= (uint8_t)(q[k] << k % 8);
    } else {
        for (int k = 0; k < 16; k++) to[k] |= (uint8_t)(q[k] << shift);
    }
}

// Four values at a time: no bit leaves its byte. unit is zero where they go.
static void pack_plane(uint8_t *unit, const uint8_t *block, const moves *m, int o) {
    for (int i = 0; i < m->n_values / 4; i += 4) {
        uint8_t q[16];
        read16(q, block, m, i / 4);
        for (int k = 0; k < 4; k++) {
            uint8_t *to = unit + m->to[i + k] + 4 * o;
            uint32_t four, there;
            memcpy(&four, q + 4 * k, 4);
            memcpy(&there, to, 4);
            there |= four << m->to_shift[i + k];
            memcpy(to, &there, 4);
        }
    }
}

static void unpack_plane(uint8_t *block, const uint8_t *unit, const moves *m, int o) {
    const uint32_t mask = ((1u << m->width) - 1) * 0x01010101u;
    for (int i = 0; i < m->n_values / 4; i += 4) {
        uint8_t q[16];
        for (int k = 0; k < 4; k++) {
            uint32_t four;
            memcpy(&four, unit + m->to[i + k] + 4 * o, 4);
            four = four >> m->to_shift[i + k] & mask;
            memcpy(q + 4 * k, &four, 4);
        }
        write16(block, q, m, i / 4);
    }
}

// --- tiles and rows ---

// A float tile: value k of 16 outputs, `size` bytes each.
static inline void move_floats(uint8_t *to, const uint8_t *from, int64_t n_in, const int size,
                               int n_out) {
    for (int64_t k = 0; k < n_in; k++) {
        for (int o = 0; o < n_out; o++)
            memcpy(to + (k * QN_TILE + o) * size, from + (o * n_in + k) * size, (size_t)size);
    }
}

static void pack_float_tile(uint8_t *to, const uint8_t *from, int64_t n_in, int size, int n_out) {
    if (size == 2)
        move_floats(to, from, n_in, 2, n_out);
    else
        move_floats(to, from, n_in, 4, n_out);
}

static void pack_integer_tile(uint8_t *to, const uint8_t *from, const qn_packed *w, int n_out) {
    const qn_type_info *info = qn_type_get(w->type);
    const layout *l = &layouts[w->type];
    const int64_t n_units = w->n_in / info->block, row_bytes = n_units * info->bytes;
    for (int which = 0; which < MAX_PLANES && l->planes[which].width; which++) {
        moves m;
        find_moves(&m, l, which, info->block);
        for (int64_t u = 0; u < n_units; u++) {
            uint8_t *unit = to + u * QN_TILE * info->bytes;
            const uint8_t *block = from + u * info->bytes;
            for (int o = 0; o < n_out; o++) pack_plane(unit, block + o * row_bytes, &m, o);
        }
    }
    for (int64_t u = 0; u < n_units; u++) {
        for (int o = 0; o < n_out; o++)
            pack_fields(to + u * QN_TILE * info->bytes, from + o * row_bytes + u * info->bytes, l,
                        o);
    }
}

void qn_pack_tile(void *to, const qn_packed *w, const void *from, int64_t tile) {
    const qn_type_info *info = qn_type_get(w->type);
    const int64_t per_matrix = w->matrix_bytes / w->tile_bytes;
    const int64_t matrix = tile / per_matrix, first = tile % per_matrix * QN_TILE;
    const int n_out = (int)(w->n_out - first < QN_TILE ? w->n_out - first : QN_TILE);
    const uint8_t *rows =
        (const uint8_t *)from + (matrix * w->n_out + first) * (w->n_in / info->block * info->bytes);
    uint8_t *place = (uint8_t *)to + tile * w->tile_bytes;
    memset(place, 0, (size_t)w->tile_bytes);
    if (is_float(w->type))
        pack_float_tile(place, rows, w->n_in, info->bytes, n_out);
    else
        pack_integer_tile(place, rows, w, n_out);
}

static void unpack_float_row(float *to, const uint8_t *tile, const qn_packed *w, int o) {
    const qn_type_info *info = qn_type_get(w->type);
    for (int64_t k = 0; k < w->n_in; k++)
        info->unpack(to + k, tile + (k * QN_TILE + o) * info->bytes, 1);
}

void qn_packed_row(float *to, const qn_packed *w, int64_t row) {
    const qn_type_info *info = qn_type_get(w->type);
    const layout *l = &layouts[w->type];
    const int64_t in_matrix = row % w->n_out;
    const int o = (int)(in_matrix % QN_TILE);
    const uint8_t *tile =
        w->data + row / w->n_out * w->matrix_bytes + in_matrix / QN_TILE * w->tile_bytes;
    if (is_float(w->type)) {
        unpack_float_row(to, tile, w, o);
        return;
    }
    moves m[MAX_PLANES];
    int n_planes = 0;
    for (; n_planes < MAX_PLANES && l->planes[n_planes].width; n_planes++)
        find_moves(&m[n_planes], l, n_planes, info->block);
    assert(info->bytes <= MAX_BYTES);
    for (int64_t u = 0; u < w->n_in / info->block; u++) {
        const uint8_t *unit = tile + u * QN_TILE * info->bytes;
        uint8_t block[MAX_BYTES] = {0};
        unpack_fields(block, unit, l, o);
        for (int p = 0; p < n_planes; p++) unpack_plane(block, unit, &m[p], o);
        info->unpack(to + u * info->block, block, info->block);
    }
}
