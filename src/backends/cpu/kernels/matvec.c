// Few rows: a tile after the other, block by block, unpacked in registers. Reading the weights is
// what it costs, so they are asked for early. Where registers are small there is nothing to win.
#include "backends/cpu/kernels/matmul_cores.h"
#include "backends/cpu/kernels/packed_types.h"

#if defined(QN_HAS_VECTORS)

QN_INLINE void fetch(const uint8_t *run, const source *s) {
    EACH(i, s->low + s->high) __builtin_prefetch(run + AHEAD + 64 * i);
}

// One tile's block: its bytes, and QN_LANES columns of sums from output o of the tile on.
typedef struct few_block {
    const uint8_t *from;
    float *sums; // of row 0; QN_PANEL from one row to the next
    const void *const *rows;
    const split_row *split; // of each row; NULL: not wanted
    int64_t b;
    int n_values, o;
} few_block;

QN_INLINE void add_row(const few_block *f, int r, f32v value) {
    float *sum = f->sums + r * QN_PANEL + f->o;
    store_f32(sum, load_f32(sum) + value);
}

// What a row adds where codes are weights plus `zero`: -zero times the sum of group h, of 16 or 32
// values, of a run whose two halves have the sums at `sums`.
QN_INLINE i32v base_sum(const int16_t *sums, int h, const source *s) {
    if (!s->zero) return (i32v){0};
    const i32v low = all_i32(-s->zero & 0xffff), high = low << 16;
    return madd((i32v){0}, (i16v)(s->group == 32 ? low | high : h ? high : low), sums);
}

// The weights of row i of a run, less `zero`.
typedef struct pairs {
    i16v even, odd;
} pairs;

QN_INLINE pairs read_pairs(const uint8_t *run, int i, int o, const source *s) {
    const uint8_t *from = run + s->run_header + 4 * o;
    if (s->low == 8) { // signed bytes
        const i16v q = (i16v)load_u16(from + 64 * i);
        return (pairs){(i16v)((u16v)q << 8) >> 8, q >> 8};
    }
    const u16v q = code_row(from, i, s);
    return (pairs){even_bytes(q, s->zero), odd_bytes(q, s->zero)};
}

// --- scales as floats ---

// The integer scales of a block, where its type has such.
typedef struct scales_of_block {
    i32v scales[QN_GROUPS], mins[QN_GROUPS];
    f32v d, m;
} scales_of_block;

// A value of a group is by * code + shift.
typedef struct group_scale {
    f32v by, shift;
} group_scale;

QN_INLINE void read_block_scales(scales_of_block *to, const few_block *f, const source *s) {
    if (!is_scaled(s)) return;
    to->d = float_scale(f->from, f->o, s);
    if (s->has_shift) to->m = float_shift(f->from, f->o);
    read_scales(to->scales, to->mins, f->from, f->o, s);
}

// Of group g, which lies in run j.
QN_INLINE group_scale scale_of_group(const scales_of_block *d, const few_block *f, int j, int g,
                                     const source *s) {
    const uint8_t *run = run_at(f->from, j, s);
    group_scale to = {{0}, {0}};
    to.by = is_scaled(s) ? d->d * to_float(d->scales[g]) : float_scale(run, f->o, s);
    if (s->has_shift)
        to.shift = is_scaled(s) ? -(d->m * to_float(d->mins[g])) : float_shift(run, f->o);
    return to;
}

// --- i12_256 and i16_256 ---

// Sums of a row; two where there would be few of them to compute side by side.
typedef struct row_sum {
    i32v even, odd;
} row_sum;

QN_INLINE void add_pairs(row_sum *t, pairs w, const few_block *f, int at, const qn_word form,
                         const int n_rows) {
    EACH(r, n_rows) t[r].even = madd(t[r].even, w.even, words_of(f->rows[r], f->b, form) + at);
    EACH(r, n_rows) {
        i32v *sum = n_rows < QN_FEW_ROWS ? &t[r].odd : &t[r].even;
        *sum = madd(*sum, w.odd, words_of(f->rows[r], f->b, form) + at + 2);
    }
}

QN_INLINE void zero_rows(row_sum *t, const int n_rows) {
    EACH(r, n_rows) t[r] = (row_sum){{0}, {0}};
}

QN_INLINE i32v whole(row_sum t, const int n_rows) {
    return n_rows < QN_FEW_ROWS ? t.even + t.odd : t.even;
}

// The same of the sums of a block of i16_256, which are wider.
QN_INLINE i32v wide_base(const int32_t *sums, int h, const source *s) {
    if (!s->zero) return (i32v){0};
    return all_i32(s->group == 32 ? sums[0] + sums[1] : sums[h]) * -s->zero;
}

// Adds group h of run j to the sums of the rows, as products of bytes. They end up in `even`.
QN_INLINE void add_bytes(row_sum *t, const few_block *f, int j, int h, const source *s,
                         const int n_rows) {
    const int step = s->group / 4;
    const uint8_t *from = run_at(f->from, j, s) + s->run_header + 4 * f->o;
    UNROLL for (int i = h * step; i < (h + 1) * step; i++) {
        const u16v codes = code_row(from, i, s);
        EACH(r, n_rows) {
            t[r].even = dot4(t[r].even, codes, f->split[r].low + 32 * j + 4 * i, false);
            t[r].odd = dot4(t[r].odd, codes, f->split[r].high + 32 * j + 4 * i, false);
        }
    }
    EACH(r, n_rows) t[r] = (row_sum){t[r].even + (t[r].odd << 7), {0}};
}

// Sums of group h of run j, with the codes as they are.
QN_INLINE void word_group(row_sum *t, const few_block *f, int j, int h, const source *s,
                          const qn_word form, const int n_rows) {
    const int step = s->group / 4;
    const uint8_t *from = run_at(f->from, j, s) + s->run_header + 4 * f->o;
    EACH(r, n_rows) {
        const void *row = f->rows[r];
        t[r].even = form == QN_WORD_i12_256 ? base_sum(i12_of(row, f->b)->sums + 2 * j, h, s)
                                            : wide_base(i16_of(row, f->b)->sums + 2 * j, h, s);
        t[r].odd = (i32v){0};
    }
    if (QN_SPLITS_WORDS && form == QN_WORD_i12_256) {
        add_bytes(t, f, j, h, s, n_rows);
        return;
    }
    UNROLL for (int i = h * step; i < (h + 1) * step; i++) {
        const u16v q = code_row(from, i, s);
        add_pairs(t, (pairs){even_bytes(q, 0), odd_bytes(q, 0)}, f, 32 * j + 4 * i, form, n_rows);
    }
}

// Run j of a block of a type with integer scales. A product with the scale is either one for each
// group and row, or one for each vector of weights, whichever are fewer.
QN_INLINE void i12_run(row_sum *t, const few_block *f, int j, const i32v *scales, const source *s,
                       const int n_rows) {
    const int step = 32 / s->group;
    const uint8_t *run = run_at(f->from, j, s);
    fetch(run, s);
    if (QN_SPLITS_WORDS || step * n_rows < 2 * RUN_ROWS) {
        EACH(h, step) {
            row_sum group[QN_FEW_ROWS];
            word_group(group, f, j, h, s, QN_WORD_i12_256, n_rows);
            EACH(r, n_rows) t[r].even += whole(group[r], n_rows) * scales[step * j + h];
        }
        return;
    }
    EACH(i, RUN_ROWS) {
        const i16v scale = twice(scales[step * j + step * i / RUN_ROWS]);
        pairs w = read_pairs(run, i, f->o, s);
        w.even *= scale;
        w.odd *= scale;
        add_pairs(t, w, f, 32 * j + 4 * i, QN_WORD_i12_256, n_rows);
    }
}

QN_INLINE void i12_scaled(const few_block *f, const source *s, const int n_rows) {
    i32v scales[QN_GROUPS], mins[QN_GROUPS];
    row_sum t[QN_FEW_ROWS];
    const f32v d = float_scale(f->from, f->o, s);
    read_scales(scales, mins, f->from, f->o, s);
    zero_rows(t, n_rows);
    for (int j = 0; j < RUNS; j++) i12_run(t, f, j, scales, s, n_rows);
    EACH(r, n_rows) {
        const qn_i12_block *x = i12_of(f->rows[r], f->b);
        f32v value = d * to_float(whole(t[r], n_rows));
        if (s->has_shift) {
            const int step = s->group / 16;
            i32v below = {0};
            EACH(i, QN_GROUPS / 2)
                below = madd(below, pair_up(mins[2 * i / step], mins[(2 * i + 1) / step]),
                             x->sums + 2 * i);
            value = fma_f32(-float_shift(f->from, f->o), to_float(below), value);
        }
        add_row(f, r, all_f32(x->scale) * value);
    }
}

// The sums of group h of run j of all rows. Of several rows zero is taken from the weights, which
// is done once for all of them.
QN_INLINE void group_sums(row_sum *t, const few_block *f, int j, int h, const source *s,
                          const qn_word form, const int n_rows) {
    const int step = s->group / 4;
    if (n_rows == 1 || (QN_SPLITS_WORDS && form == QN_WORD_i12_256)) {
        word_group(t, f, j, h, s, form, n_rows);
        return;
    }
    zero_rows(t, n_rows);
    UNROLL for (int i = h * step; i < (h + 1) * step; i++) {
        const pairs w = read_pairs(run_at(f->from, j, s), i, f->o, s);
        add_pairs(t, w, f, 32 * j + 4 * i, form, n_rows);
    }
}

// i12_256 of types with a float scale for each run; i16_256 of all types.
QN_INLINE void words_any(const few_block *f, const source *s, const qn_word form,
                         const int n_rows) {
    f32v y[QN_FEW_ROWS];
    scales_of_block d;
    EACH(r, n_rows) y[r] = (f32v){0};
    read_block_scales(&d, f, s);
    for (int j = 0; j < f->n_values / 32; j++) {
        fetch(run_at(f->from, j, s), s);
        EACH(h, 32 / s->group) {
            const int g = 32 / s->group * j + h;
            const group_scale scale = scale_of_group(&d, f, j, g, s);
            row_sum t[QN_FEW_ROWS];
            group_sums(t, f, j, h, s, form, n_rows);
            EACH(r, n_rows) {
                y[r] = fma_f32(scale.by, to_float(whole(t[r], n_rows)), y[r]);
                if (s->has_shift)
                    y[r] = fma_f32(scale.shift,
                                   all_f32(word_sum(f->rows[r], f->b, g, s->group, form)), y[r]);
            }
        }
    }
    EACH(r, n_rows) add_row(f, r, all_f32(word_scale(f->rows[r], f->b, form)) * y[r]);
}

// --- i8_32 ---

// Adds group h of run j to the rows.
QN_INLINE void i8_group(f32v *y, const few_block *f, int j, int h, f32v scale, f32v shift,
                        const source *s, const int n_rows) {
    const int step = s->group / 4;
    const uint8_t *from = run_at(f->from, j, s) + s->run_header + 4 * f->o;
    i32v t[QN_FEW_ROWS + 1]; // of one row there are two, so that they are computed side by side
    t[1] = (i32v){0};
    EACH(r, n_rows) t[r] = base_sum(i8_of(f->rows[r], f->b)->sums + 2 * j, h, s);
    UNROLL for (int i = h * step; i < (h + 1) * step; i++) {
        const u16v codes = code_row(from, i, s);
        EACH(r, n_rows) {
            i32v *sum = &t[n_rows == 1 ? i % 2 : r];
            *sum = dot4(*sum, codes, i8_of(f->rows[r], f->b)->q + 32 * j + 4 * i, s->zero < 128);
        }
    }
    if (n_rows == 1) t[0] += t[1];
    EACH(r, n_rows) {
        const qn_i8_block *x = i8_of(f->rows[r], f->b);
        y[r] = fma_f32(scale * to_float(t[r]), all_f32(x->scales[j]), y[r]);
        if (s->has_shift) y[r] = fma_f32(shift, all_f32(qn_i8_offset(x, j, h, s->group)), y[r]);
    }
}

QN_INLINE void i8_any(const few_block *f, const source *s, const int n_rows) {
    f32v y[QN_FEW_ROWS];
    scales_of_block d;
    EACH(r, n_rows) y[r] = (f32v){0};
    read_block_scales(&d, f, s);
    for (int j = 0; j < f->n_values / 32; j++) {
        fetch(run_at(f->from, j, s), s);
        EACH(h, 32 / s->group) {
            const group_scale scale = scale_of_group(&d, f, j, 32 / s->group * j + h, s);
            i8_group(y, f, j, h, scale.by, scale.shift, s, n_rows);
        }
    }
    EACH(r, n_rows) add_row(f, r, y[r]);
}

// --- a tile ---

QN_INLINE void tile_rows(float *sums, const uint8_t *from, const product *p, const qn_word form,
                         const source *s, const int n_rows) {
    few_block f = {.from = from, .sums = sums, .rows = p->rows};
    const int64_t n_in = p->w->n_in;
    const bool is_split = QN_SPLITS_WORDS && form == QN_WORD_i12_256;
    split_row split[QN_FEW_ROWS];
    if (is_split) f.split = split;
    EACH(r, n_rows) memset(sums + r * QN_PANEL, 0, QN_TILE * sizeof *sums);
    for (; f.b * QN_BLOCK < n_in; f.b++) {
        const int64_t left = n_in - f.b * QN_BLOCK;
        f.n_values = (int)(left < QN_BLOCK ? left : QN_BLOCK);
        if (is_split) {
            EACH(r, n_rows) split_words(&split[r], i12_of(f.rows[r], f.b)->q);
        }
        for (f.o = 0; f.o < QN_TILE; f.o += QN_LANES) {
            if (form == QN_WORD_i8_32)
                i8_any(&f, s, n_rows);
            else if (is_scaled(s) && form == QN_WORD_i12_256)
                i12_scaled(&f, s, n_rows);
            else
                words_any(&f, s, form, n_rows);
        }
        f.from = run_at(f.from, RUNS, s);
    }
}

// As many rows at once as fit the number best; those past the last are not used.
static inline int rows_in_step(int64_t n) { return n <= 2 ? (int)n : (int)qn_round_up(n, 2); }

// QN_FEW_COPIES: a number that the compiler does not know.
#if defined(QN_FEW_COPIES)
#define FEW_FORM(name, form)                                                                       \
    tile_rows(sums, from, p, form, &source_##name, rows_in_step(p->n_rows));
#else
#define FEW_FORM(name, form)                                                                       \
    switch (rows_in_step(p->n_rows)) {                                                             \
    case 1:                                                                                        \
        tile_rows(sums, from, p, form, &source_##name, 1);                                         \
        return;                                                                                    \
    case 2:                                                                                        \
        tile_rows(sums, from, p, form, &source_##name, 2);                                         \
        return;                                                                                    \
    case 4:                                                                                        \
        tile_rows(sums, from, p, form, &source_##name, 4);                                         \
        return;                                                                                    \
    case 6:                                                                                        \
        tile_rows(sums, from, p, form, &source_##name, 6);                                         \
        return;                                                                                    \
    default:                                                                                       \
        tile_rows(sums, from, p, form, &source_##name, QN_FEW_ROWS);                               \
    }
#endif
#define FEW(name, ...)                                                                             \
    static void few_i8_##name(float *sums, const uint8_t *from, const product *p) {                \
        FEW_FORM(name, QN_WORD_i8_32)                                                              \
    }                                                                                              \
    static void few_i12_##name(float *sums, const uint8_t *from, const product *p) {               \
        FEW_FORM(name, QN_WORD_i12_256)                                                            \
    }                                                                                              \
    static void few_i16_##name(float *sums, const uint8_t *from, const product *p) {               \
        FEW_FORM(name, QN_WORD_i16_256)                                                            \
    }
QN_SCALED_TYPES(FEW)
QN_SIMPLE_TYPES(FEW)

typedef void few_fn(float *sums, const uint8_t *from, const product *p);
enum { FEW_I8, FEW_I12, FEW_I16, FEW_FORMS };
#define ROW(name, ...) [QN_TYPE_##name] = {few_i8_##name, few_i12_##name, few_i16_##name},
static few_fn *const few[QN_TYPE_COUNT][FEW_FORMS] = {QN_SCALED_TYPES(ROW) QN_SIMPLE_TYPES(ROW)};

bool few_sums(const product *p) {
    if (p->n_rows > QN_FEW_ROWS) return false;
    const int form = p->form == QN_WORD_i8_32     ? FEW_I8
                     : p->form == QN_WORD_i12_256 ? FEW_I12
                                                  : FEW_I16;
    few_fn *tile = few[p->w->type][form];
    for (int64_t r = p->n_rows; r < QN_FEW_ROWS; r++) p->rows[r] = p->rows[p->n_rows - 1];
    for (int64_t t = 0; t < p->n_tiles; t++)
        tile(p->sums[0] + t * QN_TILE, p->w->data + (p->tile + t) * p->w->tile_bytes, p);
    return true;
}

#else

bool few_sums(const product *p) {
    (void)p;
    return false;
}

#endif
