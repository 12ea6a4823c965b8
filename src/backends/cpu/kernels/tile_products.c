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
    int64_t b;
    int n_values;
    int first; // output of the panel from which the core counts
} panel;

// The rows after row r, or the first rows of the next block: to be fetched.
#define NEXT(n) r + (n) < p->n_rows ? p->rows + r + (n) : p->rows, a->b + (r + (n) >= p->n_rows)

// Calls core(r, rows) for all rows: as many at a time as it can, fewer at the end.
#define FOR_ROWS(n, max, CORE)                                                                     \
    for (int64_t r = 0; r < (n); r += (max)) {                                                     \
        if ((n)-r > (max) / 2)                                                                     \
            CORE((max));                                                                           \
        else                                                                                       \
            CORE((max) / 2 + ((max) == 1));                                                        \
    }

QN_INLINE void add_folded(const panel *a, const bool has_shift) {
    const product *p = a->p;
#define CORE(n)                                                                                    \
    i12_folded(p->sums + r, a->blocks, p->rows + r, a->b, NEXT(n), a->first, has_shift, n)
    FOR_ROWS(p->n_rows, FOLDED_ROWS, CORE)
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
            i12_split(p->sums + r, a->blocks, p->rows + r, a->b, split, first, group, has_shift,
                      n_rows);
        else
            words_grouped(p->sums + r, a->blocks, p->rows + r, a->b, NEXT(n_rows), split,
                          a->n_values, first, group, has_shift, QN_WORD_i12_256, n_rows);
    }
}

QN_INLINE void add_split(const panel *a, const int group, const bool has_shift,
                         const bool is_scaled) {
    const product *p = a->p;
#define CORE(n) split_rows(a, r, group, has_shift, is_scaled, n)
    FOR_ROWS(p->n_rows, FOLDED_ROWS, CORE)
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
    words_grouped(p->sums + r, a->blocks, p->rows + r, a->b, NEXT(n), NULL, a->n_values, a->first, \
                  group, has_shift, form, n)
    FOR_ROWS(p->n_rows, FOLDED_ROWS, CORE)
#undef CORE
}

QN_INLINE void add_coded(const panel *a, const int group, const bool has_shift, const bool narrow) {
    const product *p = a->p;
#define CORE(n)                                                                                    \
    i8_coded(p->sums + r, a->blocks, p->rows + r, a->b, NEXT(n), a->n_values, a->first,            \
             QN_BYTE_ZERO ? a->source->zero : 0, group, has_shift, narrow, n)
    FOR_ROWS(p->n_rows, GROUPED_ROWS, CORE)
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
    if (a->p->n_rows == 1) {
        plain_rows(a, 0, type, 1);
        return;
    }
#define CORE(n) plain_rows(a, r, type, n)
    FOR_ROWS(a->p->n_rows, FOLDED_ROWS, CORE)
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
    panel a = {.p = p, .blocks = blocks, .float_type = p->w->type};
    a.source = find_source(p->w->type);
    const bool is_direct = form == BLOCK_PLAIN && !a.source;
    if (!is_direct) a.float_type = QN_TYPE_F32;
    add_fn *add = find_core(form, &a);
    for (int i = 0; i < QN_SPARE_ROWS; i++) p->rows[p->n_rows + i] = p->rows[p->n_rows - 1];
    memset(p->sums, 0, (size_t)(p->n_rows + QN_SPARE_ROWS) * sizeof *p->sums);
    for (; a.b * QN_BLOCK < p->w->n_in; a.b++) {
        const int64_t left = p->w->n_in - a.b * QN_BLOCK;
        a.n_values = (int)(left < QN_BLOCK ? left : QN_BLOCK);
        for (int64_t t = 0; t < QN_PANEL_TILES; t++) {
            const int64_t tile = t < p->n_tiles ? t : 0; // those past the last are not used
            const uint8_t *from =
                p->w->data + (p->tile + tile) * p->w->tile_bytes + a.b * block_bytes;
            a.tiles[t] = is_direct ? from : (const uint8_t *)blocks[tile].f;
            if (is_direct || t >= p->n_tiles) continue;
            for (int64_t i = 0; i < block_bytes; i += 64) // the next block
                __builtin_prefetch(from + block_bytes + i);
            unpack_block(&blocks[t], p->w->type, from, a.n_values, form);
        }
        add_block(&a, add);
    }
}
