// Tiles times rows: which core, for which rows.
#include "backends/cpu/kernels/tile_products.h"
#include "backends/cpu/kernels/matmul_cores.h"
#include "backends/cpu/kernels/packed_types.h"

// A block of a panel, unpacked, and where its products go.
typedef struct panel {
    const product *p;
    const tile_block *blocks;
    const uint8_t *tiles[QN_PANEL_TILES]; // floats
    qn_type float_type;                   // of those
    const source *source;                 // NULL: floats
    ahead *next;                          // weights
    int64_t b;
    int n_values;
    int first; // output of the panel from which the core counts
} panel;

// The rows after row r, or the first rows of the next block: to be fetched.
#define NEXT(n) r + (n) < p->n_rows ? p->rows + r + (n) : p->rows, a->b + (r + (n) >= p->n_rows)

// Calls core(r, rows) for all rows: as few times as the `max` rows of a core allow, with numbers of
// rows as equal as can be, so that no core has too few sums to compute side by side. They are `min`
// at least: half of `max`, below which nothing comes where few rows have kernels of their own.
#if defined(QN_FEW_COPIES)
#define CALL(n, min, max, CORE) CORE((int)(n))
#else
#define CASE(n, min, max, CORE)                                                                    \
    case n:                                                                                        \
        if ((n) >= (min) && (n) <= (max) && (n) % ROW_STEP == 0) CORE(n);                          \
        break;
#define CALL(n, min, max, CORE)                                                                    \
    switch (n) {                                                                                   \
        CASE(1, min, max, CORE)                                                                    \
        CASE(2, min, max, CORE)                                                                    \
        CASE(3, min, max, CORE)                                                                    \
        CASE(4, min, max, CORE)                                                                    \
        CASE(5, min, max, CORE)                                                                    \
        CASE(6, min, max, CORE)                                                                    \
        CASE(7, min, max, CORE)                                                                    \
        CASE(8, min, max, CORE)                                                                    \
    }
#endif
#define FOR_ROWS(min, max, CORE)                                                                   \
    for (int64_t r = 0, left = qn_ceil_div(p->n_rows, max), n; left > 0; left--, r += n) {         \
        n = qn_round_up(qn_ceil_div(p->n_rows - r, left), ROW_STEP);                               \
        if (n < (min)) n = (min);                                                                  \
        CALL(n, min, max, CORE)                                                                    \
    }

QN_INLINE void add_folded(const panel *a, const bool has_shift) {
    const product *p = a->p;
#define CORE(n)                                                                                    \
    i12_folded(p->sums + r, a->blocks, p->rows + r, a->b, NEXT(n), a->next, a->first, has_shift, n)
    FOR_ROWS(FOLDED_ROWS / 2, FOLDED_ROWS, CORE)
#undef CORE
}

// All tiles of the panel, as splitting the rows is done once for them.
QN_INLINE void split_rows(const panel *a, int64_t r, const int group, const bool has_shift,
                          const bool is_scaled, const int n_rows) {
    const product *p = a->p;
    split_row split[FOLDED_ROWS];
    EACH(i, n_rows) split_words(&split[i], i12_of(p->rows[r + i], a->b)->q);
    for (int first = 0; first < p->n_tiles * QN_TILE; first += VECTORS * QN_LANES) {
        if (is_scaled)
            i12_split(p->sums + r, a->blocks, p->rows + r, a->b, a->next, split, first, group,
                      has_shift, n_rows);
        else
            words_grouped(p->sums + r, a->blocks, p->rows + r, a->b, NEXT(n_rows), a->next, split,
                          a->n_values, first, group, has_shift, QN_WORD_i12_256, n_rows);
    }
}

QN_INLINE void add_split(const panel *a, const int group, const bool has_shift,
                         const bool is_scaled) {
    const product *p = a->p;
#define CORE(n) split_rows(a, r, group, has_shift, is_scaled, n)
    FOR_ROWS(FOLDED_ROWS / 2, FOLDED_ROWS, CORE)
#undef CORE
}

QN_INLINE void add_grouped(const panel *a, const int group, const bool has_shift,
                           const qn_word form) {
    const product *p = a->p;
    if (QN_SPLITS_WORDS && form == QN_WORD_i12_256) {
        add_split(a, group, has_shift, false);
        return;
    }
#define CORE(n)                                                                                    \
    words_grouped(p->sums + r, a->blocks, p->rows + r, a->b, NEXT(n), a->next, NULL, a->n_values,  \
                  a->first, group, has_shift, form, n)
    FOR_ROWS(FOLDED_ROWS / 2, FOLDED_ROWS, CORE)
#undef CORE
}

QN_INLINE void add_coded(const panel *a, const int group, const bool has_shift, const bool narrow) {
    const product *p = a->p;
#define CORE(n)                                                                                    \
    i8_coded(p->sums + r, a->blocks, p->rows + r, a->b, NEXT(n), a->next, a->n_values, a->first,   \
             QN_BYTE_ZERO ? a->source->zero : 0, group, has_shift, narrow, n)
    FOR_ROWS(GROUPED_ROWS / 2, GROUPED_ROWS, CORE)
#undef CORE
}

// One function for each kind of block, as each is large.
static void folded(const panel *a) { add_folded(a, false); }
static void folded_shift(const panel *a) { add_folded(a, true); }
static void grouped(const panel *a) { add_grouped(a, 32, false, QN_WORD_i12_256); }
static void grouped_shift(const panel *a) { add_grouped(a, 32, true, QN_WORD_i12_256); }
static void fine_16(const panel *a) { add_grouped(a, 16, false, QN_WORD_i16_256); }
static void fine_16_shift(const panel *a) { add_grouped(a, 16, true, QN_WORD_i16_256); }
static void fine_32(const panel *a) { add_grouped(a, 32, false, QN_WORD_i16_256); }
static void fine_32_shift(const panel *a) { add_grouped(a, 32, true, QN_WORD_i16_256); }
static void coded_16(const panel *a) { add_coded(a, 16, false, true); }
static void coded_16_shift(const panel *a) { add_coded(a, 16, true, true); }
static void coded_32(const panel *a) { add_coded(a, 32, false, true); }
static void coded_32_shift(const panel *a) { add_coded(a, 32, true, true); }
static void coded_32_wide(const panel *a) { add_coded(a, 32, false, false); }
static void split_16(const panel *a) { add_split(a, 16, false, true); }
static void split_16_shift(const panel *a) { add_split(a, 16, true, true); }
static void split_32(const panel *a) { add_split(a, 32, false, true); }
static void split_32_shift(const panel *a) { add_split(a, 32, true, true); }

// The values of a block of a row; packed ones as they were rounded.
static const float *floats_of(float *room, const void *row, int64_t b, int n, qn_word form) {
    if (form == QN_WORD_f32) return (const float *)row + b * QN_BLOCK;
    if (form == QN_WORD_i8_32) {
        const qn_i8_block *x = i8_of(row, b);
        for (int k = 0; k < n; k++) room[k] = (float)x->q[k] * x->scales[k / 32];
        return room;
    }
    const int16_t *q = words_of(row, b, form);
    const float scale = word_scale(row, b, form);
    for (int k = 0; k < n; k++) room[k] = (float)q[qn_i12_index(k)] * scale;
    return room;
}

QN_INLINE void plain_rows(const panel *a, int64_t r, const qn_type type, const int n) {
    float room[FOLDED_ROWS][QN_BLOCK];
    const float *x[FOLDED_ROWS];
    const product *p = a->p;
    for (int i = 0; i < n; i++)
        x[i] = floats_of(room[i], p->rows[r + i], a->b, a->n_values, p->form);
    plain(p->sums + r, a->tiles, x, a->n_values, a->first, type, n);
}

QN_INLINE void add_plain(const panel *a, const qn_type type) {
    const product *p = a->p;
#define CORE(n) plain_rows(a, r, type, n)
    FOR_ROWS(ROW_STEP, FOLDED_ROWS, CORE)
#undef CORE
}

static void plain_f32(const panel *a) { add_plain(a, QN_TYPE_F32); }
static void plain_f16(const panel *a) { add_plain(a, QN_TYPE_F16); }
static void plain_bf16(const panel *a) { add_plain(a, QN_TYPE_BF16); }

typedef void add_fn(const panel *a);

static add_fn *find_plain(const panel *a) {
    return a->float_type == QN_TYPE_F16    ? plain_f16
           : a->float_type == QN_TYPE_BF16 ? plain_bf16
                                           : plain_f32;
}

static add_fn *find_core(block_form form, const panel *a) {
    static add_fn *const coded[2][2] = {{coded_32, coded_32_shift}, {coded_16, coded_16_shift}};
    static add_fn *const fine[2][2] = {{fine_32, fine_32_shift}, {fine_16, fine_16_shift}};
    static add_fn *const split[2][2] = {{split_32, split_32_shift}, {split_16, split_16_shift}};
    const source *s = a->source;
    if (QN_HAS_TILES) return find_plain(a);
    if (QN_SPLITS_WORDS && form == BLOCK_SPLIT) return split[s->group == 16][s->has_shift];
    if (QN_SPLITS_WORDS && form == BLOCK_CODED && a->p->form == QN_WORD_i12_256)
        return s->has_shift ? grouped_shift : grouped;
    if (form == BLOCK_GROUPED && a->p->form == QN_WORD_i16_256)
        return fine[s->group == 16][s->has_shift];
    if (form == BLOCK_FOLDED) return s->has_shift ? folded_shift : folded;
    if (form == BLOCK_GROUPED) return s->has_shift ? grouped_shift : grouped;
    if (form == BLOCK_CODED)
        return QN_LANES < 16 && s->zero >= 128 ? coded_32_wide
                                               : coded[s->group == 16][s->has_shift];
    return find_plain(a);
}

// Adds block b of the panel's tiles to all sums.
static void add_block(const panel *a, add_fn *add) {
    panel part = *a;
    if (QN_SPLITS_WORDS && a->source && a->p->form == QN_WORD_i12_256) {
        add(a);
        return;
    }
    for (; part.first < a->p->n_tiles * QN_TILE; part.first += VECTORS * QN_LANES) add(&part);
}

void panel_sums(const product *p, panel_room *room) {
    const qn_type_info *info = qn_type_get(p->w->type);
    const int64_t block_bytes = QN_TILE * (QN_BLOCK / info->block * info->bytes);
    const block_form form = find_form(p->w->type, p->form);
    if (form != BLOCK_PLAIN && few_sums(p)) return;
    if (QN_HAS_TILES && form != BLOCK_PLAIN) {
        unit_sums(p, &room->unit, form);
        return;
    }
    tile_block *blocks = room->blocks;
    ahead next = {.step = 1};
    panel a = {.p = p, .blocks = blocks, .next = &next, .float_type = p->w->type};
    a.source = find_source(p->w->type);
    const bool is_direct = form == BLOCK_PLAIN && !a.source;
    if (!is_direct) a.float_type = QN_TYPE_F32;
    add_fn *add = find_core(form, &a);
    for (int i = 0; i < QN_SPARE_ROWS; i++) p->rows[p->n_rows + i] = p->rows[p->n_rows - 1];
    memset(p->sums, 0, (size_t)(p->n_rows + QN_SPARE_ROWS) * sizeof *p->sums);
    for (; a.b * QN_BLOCK < p->w->n_in; a.b++) {
        const int64_t left = p->w->n_in - a.b * QN_BLOCK;
        a.n_values = (int)(left < QN_BLOCK ? left : QN_BLOCK);
        next.left = is_direct ? 0 : qn_ceil_div(block_bytes, 64);
        next.step = qn_ceil_div(next.left, p->n_rows);
        for (int64_t t = 0; t < QN_PANEL_TILES; t++) {
            const int64_t tile = t < p->n_tiles ? t : 0; // those past the last are not used
            const uint8_t *from =
                p->w->data + (p->tile + tile) * p->w->tile_bytes + a.b * block_bytes;
            // After the last block come those of the next tiles.
            next.at[t] = left > QN_BLOCK ? from + block_bytes
                                         : from + p->n_tiles * p->w->tile_bytes - a.b * block_bytes;
            a.tiles[t] = is_direct ? from : (const uint8_t *)blocks[tile].f;
            if (!is_direct && t < p->n_tiles)
                unpack_block(&blocks[t], p->w->type, from, a.n_values, form);
        }
        add_block(&a, add);
    }
}
