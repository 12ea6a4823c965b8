// Tiles times many rows on the matrix unit. Of a block of 256 inner values, the rows are taken apart
// into bytes once, then the tiles are unpacked one or two at a time, each for all rows; 16 rows of
// results are made while the products of the next 16 are computed. Sums are integers up to the
// formula of docs/numbers.md, so bits are those of every level. docs/speed.md has the counts.
#include "backends/cpu/kernels/amx_digits.h"
#include "backends/cpu/kernels/amx_tiles.h"
#include "backends/cpu/kernels/matmul_cores.h"

// Some rows of a product and a block of inner values.
typedef struct unit_call {
    const product *p;
    unit_room *room;
    const source *source;
    int64_t b, first;    // block; row of the product that comes first
    int n_rows, per_run; // rows; of each run but the last
    int n_values;
    int64_t tile; // counted from the product's first
    int n_tiles;  // that are unpacked
} unit_call;

typedef uint32_t u32v __attribute__((vector_size(4 * QN_LANES)));
typedef int32_t dot_sums[QN_TILE][QN_TILE]; // (rows, outputs)

static int count_runs(const unit_call *c) { return (c->n_rows + c->per_run - 1) / c->per_run; }

static int rows_of_run(const unit_call *c, int i) {
    const int left = c->n_rows - i * c->per_run;
    return left < c->per_run ? left : c->per_run;
}

static float *sums_at(const unit_call *c, int64_t row, int64_t tile) {
    return panel_of(c->p, tile)[row] + tile % QN_PANEL_TILES * QN_TILE;
}

// --- rows as bytes ---

// Where the bytes of 64 words are in a pair of vectors, in the order of qn_i12_index.
typedef struct byte_order {
    __m512i low, high;
} byte_order;

static byte_order order_bytes(void) {
    byte_order order;
    uint8_t at[64];
    for (int k = 0; k < 64; k++) at[k] = (uint8_t)(2 * qn_i12_index(k));
    memcpy(&order.low, at, sizeof at);
    order.high = _mm512_add_epi8(order.low, _mm512_set1_epi8(1));
    return order;
}

// A row of 256 words as digits: for each 64 values, digits 0, digits 1 and their sums, where runs
// have 16 rows of each. About 6 operations for 64 values.
static void split_digits(int8_t *to, const int16_t *q, const byte_order *order) {
    for (int k = 0; k < QN_BLOCK; k += 64, to += 3 * 16 * 64, q += 64) {
        const __m512i a = _mm512_loadu_si512(q), b = _mm512_loadu_si512(q + 32);
        const __m512i low = _mm512_and_si512(_mm512_permutex2var_epi8(a, order->low, b),
                                             _mm512_set1_epi8((1 << DIGIT_BITS) - 1));
        const __m512i high =
            _mm512_permutex2var_epi8(_mm512_slli_epi16(a, 8 - DIGIT_BITS), order->high,
                                     _mm512_slli_epi16(b, 8 - DIGIT_BITS));
        _mm512_storeu_si512(to, high);
        _mm512_storeu_si512(to + 16 * 64, low);
        _mm512_storeu_si512(to + 2 * 16 * 64, _mm512_add_epi8(high, low));
    }
}

// The same as signed high and unsigned low bytes, where runs have 16 rows of each.
static void split_bytes(int8_t *to, const int16_t *q, const byte_order *order) {
    for (int k = 0; k < QN_BLOCK; k += 64) {
        const __m512i a = _mm512_loadu_si512(q + k), b = _mm512_loadu_si512(q + k + 32);
        _mm512_storeu_si512(to + k, _mm512_permutex2var_epi8(a, order->high, b));
        _mm512_storeu_si512(to + 16 * QN_BLOCK + k, _mm512_permutex2var_epi8(a, order->low, b));
    }
}

static void split_rows(const unit_call *c, bool has_digits) {
    const byte_order order = order_bytes();
    for (int r = 0; r < c->n_rows; r++) {
        const void *row = c->p->rows[c->first + r];
        int8_t *run = c->room->rows[r / c->per_run];
        const int at = r % c->per_run;
        if (has_digits) {
            const qn_i12_block *x = i12_of(row, c->b);
            int32_t sum = 0;
            for (int g = 0; g < QN_GROUPS; g++) sum += x->sums[g];
            c->room->below[r] = digit_base(c->source) * sum;
            split_digits(run + 64 * at, x->q, &order);
        } else if (c->p->form == QN_WORD_i8_32) {
            memcpy(run + QN_BLOCK * at, i8_of(row, c->b)->q, QN_BLOCK);
        } else {
            split_bytes(run + QN_BLOCK * at, words_of(row, c->b, c->p->form), &order);
        }
    }
}

// --- i12_256 with integer scales ---

enum { DIGIT_BYTES = 4 * QN_TILE * QN_BLOCK / 4 }; // of a tile's block
#define NOT_UNROLLED _Pragma("GCC unroll 1")       // which would take more registers than there are

// Digits d of 64 values times those of one tile or two: A is read once for both.
#define DIGITS(d, c0, c1)                                                                          \
    AMX_LOAD(6, x + 1024 * (d), 64);                                                               \
    AMX_LOAD(7, w + DIGIT_BYTES * (d), 64);                                                        \
    AMX_DOT_SU(c0, 6, 7);                                                                          \
    if (n_tiles == 2) {                                                                            \
        AMX_LOAD(7, w + sizeof(tile_block) + DIGIT_BYTES * (d), 64);                               \
        AMX_DOT_SU(c1, 6, 7);                                                                      \
    }

QN_INLINE void digit_dots(const unit_call *c, int run, dot_sums *to, const int n_tiles) {
    const int8_t *x = c->room->rows[run];
    const uint8_t *w = c->room->blocks[0].digits[0][0];
    AMX_ZERO(0);
    AMX_ZERO(1);
    AMX_ZERO(2);
    AMX_ZERO(3);
    AMX_ZERO(4);
    AMX_ZERO(5);
    NOT_UNROLLED
    for (int j = 0; j < QN_BLOCK / 64; j++, x += 3 * 1024, w += 1024) {
        DIGITS(0, 0, 3)
        DIGITS(1, 1, 4)
        DIGITS(2, 2, 5)
    }
    AMX_STORE(0, to[0], 64);
    AMX_STORE(1, to[1], 64);
    AMX_STORE(2, to[2], 64);
    if (n_tiles == 1) return;
    AMX_STORE(3, to[3], 64);
    AMX_STORE(4, to[4], 64);
    AMX_STORE(5, to[5], 64);
}
#undef DIGITS

// Both digits of the rows times the only one of the weights.
#define ONE_DIGIT(d, c0, c1)                                                                       \
    AMX_LOAD(6, x + 1024 * (d), 64);                                                               \
    AMX_DOT_SU(c0, 6, 7);                                                                          \
    if (n_tiles == 2) AMX_DOT_SU(c1, 6, 5);

QN_INLINE void one_digit_dots(const unit_call *c, int run, dot_sums *to, const int n_tiles) {
    const int8_t *x = c->room->rows[run];
    const uint8_t *w = c->room->blocks[0].digits[0][0];
    AMX_ZERO(0);
    AMX_ZERO(1);
    AMX_ZERO(2);
    AMX_ZERO(3);
    NOT_UNROLLED
    for (int j = 0; j < QN_BLOCK / 64; j++, x += 3 * 1024, w += 1024) {
        AMX_LOAD(7, w, 64);
        if (n_tiles == 2) AMX_LOAD(5, w + sizeof(tile_block), 64);
        ONE_DIGIT(0, 0, 2)
        ONE_DIGIT(1, 1, 3)
    }
    AMX_STORE(0, to[0], 64);
    AMX_STORE(1, to[1], 64);
    if (n_tiles == 1) return;
    AMX_STORE(2, to[3], 64);
    AMX_STORE(3, to[4], 64);
}
#undef ONE_DIGIT

QN_INLINE void find_dots(const unit_call *c, int run, dot_sums *to, const bool has_one) {
    if (has_one)
        c->n_tiles == 2 ? one_digit_dots(c, run, to, 2) : one_digit_dots(c, run, to, 1);
    else
        c->n_tiles == 2 ? digit_dots(c, run, to, 2) : digit_dots(c, run, to, 1);
}

QN_INLINE u32v row_of_sums(dot_sums *sums, int r) { return (u32v)load_i32v((*sums)[r]); }

// The sum over a block, which fits 32 bits though its parts may not.
QN_INLINE i32v join_digits(dot_sums *sums, int r, uint32_t below, const bool has_one) {
    const u32v high = row_of_sums(&sums[0], r), low = row_of_sums(&sums[1], r);
    if (has_one) return (i32v)((high << DIGIT_BITS) + low - below);
    const u32v middle = row_of_sums(&sums[2], r) - high - low;
    return (i32v)((((high << DIGIT_BITS) + middle) << DIGIT_BITS) + low - below);
}

// As add_folded_sums, for a run of rows. About 20 operations for 16 results, on units that the
// products leave alone: 160 cycles for 16 rows, whose three products take 192.
QN_INLINE void add_digits(const unit_call *c, int run, dot_sums *sums, const bool has_shift,
                          const bool has_one) {
    const product *p = c->p;
    for (int t = 0; t < c->n_tiles; t++, sums += 3) {
        const tile_block *tile = &c->room->blocks[t];
        const f32v scale = load_f32(tile->scale[0]);
        f32v shift = {0};
        i16v mins[QN_GROUPS / 2];
        if (has_shift) {
            shift = load_f32(tile->shift[0]);
            EACH(g, QN_GROUPS / 2) mins[g] = load_i16(tile->mins[g]);
        }
        const int n = rows_of_run(c, run);
        for (int r = 0; r < n; r++) {
            const int row = run * c->per_run + r;
            const qn_i12_block *x = i12_of(p->rows[c->first + row], c->b);
            float *sum = sums_at(c, c->first + row, c->tile + t);
            const uint32_t below = (uint32_t)c->room->below[row];
            f32v value = scale * to_float(join_digits(sums, r, below, has_one));
            if (has_shift) {
                i32v o = {0};
                EACH(g, QN_GROUPS / 2) o = madd(o, mins[g], x->sums + 2 * g);
                value = fma_f32(shift, to_float(o), value);
            }
            store_f32(sum, load_f32(sum) + all_f32(x->scale) * value);
        }
    }
}

// Calls dots(i, sums) and add(i, sums) for each i below n: the products of the next while results
// are made of one.
#define OVERLAP(n, DOTS, ADD)                                                                      \
    for (int i = -1; i < (n); i++) {                                                               \
        if (i + 1 < (n)) DOTS(i + 1, c->room->sums[(i + 1) % 2]);                                  \
        if (i >= 0) ADD(i, c->room->sums[i % 2]);                                                  \
    }

QN_INLINE void run_digits(const unit_call *c, const bool has_shift, const bool has_one) {
    const int n = count_runs(c);
#define DOTS(i, to)  find_dots(c, i, to, has_one)
#define ADD(i, from) add_digits(c, i, from, has_shift, has_one)
    OVERLAP(n, DOTS, ADD)
#undef ADD
#undef DOTS
}

// --- scales as floats: the sums of four groups at a time ---

// Group g + k of 16 or 32 values. Rows as bytes, or as high and low bytes.
#define BYTE_GROUP(k, a, b)                                                                        \
    AMX_ZERO(k);                                                                                   \
    AMX_LOAD(a, x + group * (g + (k)), QN_BLOCK);                                                  \
    AMX_LOAD(b, codes[group / 4 * (g + (k))], 64);                                                 \
    AMX_DOT_SS(k, a, b)
#define WORD_GROUP(k, c0, c1, b)                                                                   \
    AMX_ZERO(c0);                                                                                  \
    AMX_ZERO(c1);                                                                                  \
    AMX_LOAD(4, x + group * (g + (k)), QN_BLOCK);                                                  \
    AMX_LOAD(b, codes[group / 4 * (g + (k))], 64);                                                 \
    AMX_DOT_SS(c0, 4, b);                                                                          \
    AMX_LOAD(6, x + 16 * QN_BLOCK + group * (g + (k)), QN_BLOCK);                                  \
    AMX_DOT_US(c1, 6, b)
#define KEEP(first)                                                                                \
    AMX_STORE(0, to[first], 64);                                                                   \
    AMX_STORE(1, to[(first) + 1], 64);                                                             \
    AMX_STORE(2, to[(first) + 2], 64);                                                             \
    AMX_STORE(3, to[(first) + 3], 64)

QN_INLINE void group_dots(const unit_call *c, int run, int g, dot_sums *to, const int group,
                          const bool has_words) {
    uint8_t(*codes)[4 * QN_TILE] = c->room->blocks[0].c;
    const int8_t *x = c->room->rows[run];
    if (has_words) {
        WORD_GROUP(0, 0, 1, 5);
        WORD_GROUP(1, 2, 3, 7);
        KEEP(0);
        WORD_GROUP(2, 0, 1, 5);
        WORD_GROUP(3, 2, 3, 7);
        KEEP(4);
    } else {
        BYTE_GROUP(0, 4, 5);
        BYTE_GROUP(1, 6, 7);
        BYTE_GROUP(2, 4, 5);
        BYTE_GROUP(3, 6, 7);
        KEEP(0);
    }
}
#undef KEEP
#undef WORD_GROUP
#undef BYTE_GROUP

// value + group g of a row, from the sums of this group.
QN_INLINE f32v add_group(f32v value, dot_sums *sums, int r, const void *x, int64_t b, int g,
                         f32v scale, f32v shift, const int group, const bool has_shift,
                         const qn_word form) {
    if (form == QN_WORD_i8_32) {
        const qn_i8_block *row = i8_of(x, b);
        const int j = g * group / 32, h = g * group / 16 % 2;
        const f32v t = to_float((i32v)row_of_sums(sums, r));
        value = fma_f32(scale * t, all_f32(row->scales[j]), value);
        return has_shift ? fma_f32(shift, all_f32(qn_i8_offset(row, j, h, group)), value) : value;
    }
    const u32v t = (row_of_sums(sums, r) << 8) + row_of_sums(sums + 1, r);
    value = fma_f32(scale, to_float((i32v)t), value);
    return has_shift ? fma_f32(shift, all_f32(word_sum(x, b, g, group, form)), value) : value;
}

// Groups first_group ... of a run of rows, four or what is left of the block. Of bytes 3 or 4
// operations for 16 results, of words 4 or 5: for 16 rows and 32 values 24 to 40 cycles, while
// products take 16 or 32.
QN_INLINE void add_groups(const unit_call *c, int run, int first_group, dot_sums *sums,
                          const int group, const bool has_shift, const qn_word form) {
    const product *p = c->p;
    const tile_block *tile = &c->room->blocks[0];
    const int left = c->n_values / group - first_group, n = left < 4 ? left : 4;
    const int step = form == QN_WORD_i8_32 ? 1 : 2, n_rows = rows_of_run(c, run);
    f32v scale[4], shift[4];
    EACH(k, 4) {
        scale[k] = load_f32(tile->scale[first_group + k]);
        shift[k] = has_shift ? load_f32(tile->shift[first_group + k]) : scale[k];
    }
    for (int r = 0; r < n_rows; r++) {
        const int64_t row = c->first + run * c->per_run + r;
        const void *x = p->rows[row];
        f32v value = {0};
        if (first_group) value = load_f32(c->room->values[r]);
        EACH(k, 4) {
            if (k < n)
                value = add_group(value, sums + step * k, r, x, c->b, first_group + k, scale[k],
                                  shift[k], group, has_shift, form);
        }
        if (left > 4) {
            store_f32(c->room->values[r], value);
            continue;
        }
        if (form != QN_WORD_i8_32) value = all_f32(word_scale(x, c->b, form)) * value;
        float *sum = sums_at(c, row, c->tile);
        store_f32(sum, load_f32(sum) + value);
    }
}

QN_INLINE void run_groups(const unit_call *c, const int group, const bool has_shift,
                          const qn_word form) {
    const int quads = (c->n_values / group + 3) / 4, n = count_runs(c) * quads;
#define DOTS(i, to)  group_dots(c, (i) / quads, (i) % quads * 4, to, group, form != QN_WORD_i8_32)
#define ADD(i, from) add_groups(c, (i) / quads, (i) % quads * 4, from, group, has_shift, form)
    OVERLAP(n, DOTS, ADD)
#undef ADD
#undef DOTS
}

// --- which, and for which rows ---

static void digits(const unit_call *c) { run_digits(c, false, false); }
static void digits_shift(const unit_call *c) { run_digits(c, true, false); }
static void one_digit(const unit_call *c) { run_digits(c, false, true); }
static void one_digit_shift(const unit_call *c) { run_digits(c, true, true); }
#define GROUPS(name, form)                                                                         \
    static void name##_16(const unit_call *c) { run_groups(c, 16, false, form); }                  \
    static void name##_16_shift(const unit_call *c) { run_groups(c, 16, true, form); }             \
    static void name##_32(const unit_call *c) { run_groups(c, 32, false, form); }                  \
    static void name##_32_shift(const unit_call *c) { run_groups(c, 32, true, form); }             \
    static run_fn *const name[2][2] = {{name##_32, name##_32_shift}, {name##_16, name##_16_shift}};
typedef void run_fn(const unit_call *c);
GROUPS(bytes, QN_WORD_i8_32)
GROUPS(words, QN_WORD_i16_256)

// Those with 12 bits have no groups of 16: all types that have are scaled by integers.
static void short_words(const unit_call *c) { run_groups(c, 32, false, QN_WORD_i12_256); }
static void short_words_shift(const unit_call *c) { run_groups(c, 32, true, QN_WORD_i12_256); }

static run_fn *find_run(const source *s, qn_word form, bool has_digits) {
    if (has_digits && is_one_digit(s)) return s->has_shift ? one_digit_shift : one_digit;
    if (has_digits) return s->has_shift ? digits_shift : digits;
    if (form == QN_WORD_i12_256) return s->has_shift ? short_words_shift : short_words;
    return (form == QN_WORD_i8_32 ? bytes : words)[s->group == 16][s->has_shift];
}

// Tiles 0 ... 3 are sums, 6 rows and 7 weights; 4 and 5 are sums where there are digits of 12 bits,
// else a second pair.
static amx_shapes make_shapes(const unit_call *c, bool has_digits) {
    const bool has_one = has_digits && is_one_digit(c->source);
    const int inner = has_digits ? 64 : c->source->group; // bytes of a row of A
    amx_shapes s = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        const bool is_sums = t < 4 || (t < 6 && has_digits && !(has_one && t == 5));
        const bool is_weights = !is_sums && t % 2;
        s.rows[t] = (uint8_t)(is_weights ? inner / 4 : c->per_run);
        s.row_bytes[t] = (uint16_t)(is_sums || is_weights ? 64 : inner);
    }
    return s;
}

// Adds block c->b of all tiles.
static void add_tiles(unit_call *c, run_fn *run, block_form form) {
    const product *p = c->p;
    const qn_type_info *info = qn_type_get(p->w->type);
    const int64_t block_bytes = QN_TILE * (QN_BLOCK / info->block * info->bytes);
    const int64_t at_once = form == BLOCK_DIGITS ? 2 : 1;
    for (c->tile = 0; c->tile < p->n_tiles; c->tile += at_once) {
        c->n_tiles = (int)(p->n_tiles - c->tile < at_once ? p->n_tiles - c->tile : at_once);
        for (int t = 0; t < c->n_tiles; t++) {
            const int64_t tile = p->tile + c->tile + t;
            const uint8_t *from = p->w->data + tile * p->w->tile_bytes + c->b * block_bytes;
            unpack_block(&c->room->blocks[t], p->w->type, from, c->n_values, form);
        }
        run(c);
    }
}

void unit_sums(const product *p, unit_room *room, block_form form) {
    const bool has_digits = form == BLOCK_DIGITS;
    unit_call c = {.p = p, .room = room, .source = find_source(p->w->type)};
    run_fn *run = find_run(c.source, p->form, has_digits);
    for (int64_t t = 0; t < p->n_tiles; t += QN_PANEL_TILES)
        memset(panel_of(p, t), 0, (size_t)p->n_rows * sizeof *p->sums);
    for (; c.first < p->n_rows; c.first += QN_UNIT_ROWS) {
        const int64_t rows = p->n_rows - c.first;
        c.n_rows = (int)(rows < QN_UNIT_ROWS ? rows : QN_UNIT_ROWS);
        const int n_runs = (c.n_rows + 15) / 16;
        c.per_run = (c.n_rows + n_runs - 1) / n_runs; // all of about one size
        const amx_shapes shapes = make_shapes(&c, has_digits);
        AMX_BEGIN(&shapes);
        for (c.b = 0; c.b * QN_BLOCK < p->w->n_in; c.b++) {
            const int64_t left = p->w->n_in - c.b * QN_BLOCK;
            c.n_values = (int)(left < QN_BLOCK ? left : QN_BLOCK);
            split_rows(&c, has_digits);
            add_tiles(&c, run, form);
        }
        AMX_END();
    }
}
