// Few rows: a tile after the other, block by block, unpacked in registers. Reading the weights is
// what it costs, so they are asked for early. Where registers are small there is nothing to win.
#include "backends/cpu/level/core.h"
#include "backends/cpu/level/source.h"

#if defined(__AVX2__)

QN_INLINE void fetch(const uint8_t *run, const source *s) {
    UNROLL for (int i = 0; i < s->low + s->high; i++) __builtin_prefetch(run + AHEAD + 64 * i);
}

// One tile's block: its bytes, and QN_LANES columns of sums from output o of the tile on.
typedef struct few_block {
    const uint8_t *from;
    float *sums; // of row 0; QN_PANEL from one row to the next
    const void *const *rows;
    int64_t b;
    int n_values, o;
} few_block;

QN_INLINE void add_row(const few_block *f, int r, f32v value) {
    float *sum = f->sums + r * QN_PANEL + f->o;
    store_f32(sum, load_f32(sum) + value);
}

// Codes of a run times a row: the sum of group h of the run.
QN_INLINE i32v i12_run(const i16v *even, const i16v *odd, const qn_i12_block *x, int r, int h,
                       const source *s) {
    const int step = s->group / 4;
    const int16_t *sums = x->sums + 2 * r + h;
    i32v a = {0}, c = {0};
    if (s->zero) a = all_i32(-s->zero * (s->group == 16 ? sums[0] : sums[0] + sums[1]));
    UNROLL for (int i = h * step; i < (h + 1) * step; i++) {
        const int16_t *q = x->q + 32 * r + 4 * i;
        a = madd(a, even[i], load_i32(q));
        c = madd(c, odd[i], load_i32(q + 2));
    }
    return a + c;
}

QN_INLINE void read_pairs(i16v *even, i16v *odd, const uint8_t *run, int o, const source *s) {
    UNROLL for (int i = 0; i < RUN_ROWS; i++) {
        const u16v q = code_row(run + s->run_header + 4 * o, i, s);
        even[i] = even_bytes(q, 0);
        odd[i] = odd_bytes(q, 0);
    }
}

QN_INLINE void i12_scaled(const few_block *f, const source *s, const int n_rows) {
    i32v scales[QN_GROUPS], mins[QN_GROUPS], t[QN_FEW_ROWS];
    const f32v d = float_scale(f->from, f->o, s);
    read_scales(scales, mins, f->from, f->o, s);
    for (int r = 0; r < n_rows; r++) t[r] = (i32v){0};
    for (int j = 0; j < RUNS; j++) {
        const uint8_t *run = run_at(f->from, j, s);
        i16v even[RUN_ROWS], odd[RUN_ROWS];
        fetch(run, s);
        read_pairs(even, odd, run, f->o, s);
        for (int r = 0; r < n_rows; r++) {
            const qn_i12_block *x = i12_of(f->rows[r], f->b);
            UNROLL for (int h = 0; h < 32 / s->group; h++) t[r] +=
                i12_run(even, odd, x, j, h, s) * scales[32 / s->group * j + h];
        }
    }
    for (int r = 0; r < n_rows; r++) {
        const qn_i12_block *x = i12_of(f->rows[r], f->b);
        f32v value = d * to_float(t[r]);
        if (s->has_shift) {
            const int step = s->group / 16;
            i32v below = {0};
            UNROLL for (int i = 0; i < QN_GROUPS / 2; i++) below =
                madd(below, pair_up(mins[2 * i / step], mins[(2 * i + 1) / step]),
                     load_i32(x->sums + 2 * i));
            value = fma_f32(-float_shift(f->from, f->o), to_float(below), value);
        }
        add_row(f, r, all_f32(x->scale) * value);
    }
}

QN_INLINE void i12_simple(const few_block *f, const source *s, const int n_rows) {
    f32v y[QN_FEW_ROWS];
    for (int r = 0; r < n_rows; r++) y[r] = (f32v){0};
    for (int j = 0; j < f->n_values / 32; j++) {
        const uint8_t *run = run_at(f->from, j, s);
        const f32v d = float_scale(run, f->o, s), m = s->has_shift ? float_shift(run, f->o) : d;
        i16v even[RUN_ROWS], odd[RUN_ROWS];
        fetch(run, s);
        read_pairs(even, odd, run, f->o, s);
        for (int r = 0; r < n_rows; r++) {
            const qn_i12_block *x = i12_of(f->rows[r], f->b);
            y[r] = fma_f32(d, to_float(i12_run(even, odd, x, j, 0, s)), y[r]);
            if (s->has_shift)
                y[r] = fma_f32(m, all_f32((float)(x->sums[2 * j] + x->sums[2 * j + 1])), y[r]);
        }
    }
    for (int r = 0; r < n_rows; r++) add_row(f, r, all_f32(i12_of(f->rows[r], f->b)->scale) * y[r]);
}

// Adds group h of run j of a row.
QN_INLINE f32v i8_group(f32v y, const u16v *codes, const qn_i8_block *x, int j, int h, f32v scale,
                        f32v shift, const source *s) {
    const int step = s->group / 4;
    const int16_t *sums = x->sums + 2 * j + h;
    const int sum = s->group == 16 ? sums[0] : sums[0] + sums[1];
    i32v t = all_i32(-s->zero * sum);
    UNROLL for (int i = h * step; i < (h + 1) * step; i++) t =
        dot4(t, codes[i], load_i32(x->q + 32 * j + 4 * i), s->zero < 128);
    y = fma_f32(scale * to_float(t), all_f32(x->scales[j]), y);
    return s->has_shift ? fma_f32(shift, all_f32(x->scales[j] * (float)sum), y) : y;
}

QN_INLINE void i8_any(const few_block *f, const source *s, const int n_rows) {
    i32v scales[QN_GROUPS], mins[QN_GROUPS];
    f32v y[QN_FEW_ROWS], d = {0}, m = {0};
    for (int r = 0; r < n_rows; r++) y[r] = (f32v){0};
    if (is_scaled(s)) {
        d = float_scale(f->from, f->o, s);
        if (s->has_shift) m = float_shift(f->from, f->o);
        read_scales(scales, mins, f->from, f->o, s);
    }
    for (int j = 0; j < f->n_values / 32; j++) {
        const uint8_t *run = run_at(f->from, j, s);
        u16v codes[RUN_ROWS];
        f32v scale[2], shift[2] = {{0}};
        fetch(run, s);
        UNROLL for (int h = 0; h < 32 / s->group; h++) {
            const int g = 32 / s->group * j + h;
            scale[h] = is_scaled(s) ? d * to_float(scales[g]) : float_scale(run, f->o, s);
            if (s->has_shift)
                shift[h] = is_scaled(s) ? -(m * to_float(mins[g])) : float_shift(run, f->o);
        }
        UNROLL for (int i = 0; i < RUN_ROWS; i++) codes[i] =
            code_row(run + s->run_header + 4 * f->o, i, s);
        for (int r = 0; r < n_rows; r++) {
            UNROLL for (int h = 0; h < 32 / s->group; h++) y[r] =
                i8_group(y[r], codes, i8_of(f->rows[r], f->b), j, h, scale[h], shift[h], s);
        }
    }
    for (int r = 0; r < n_rows; r++) add_row(f, r, y[r]);
}

// --- a tile ---

QN_INLINE void tile_rows(float *sums, const uint8_t *from, const product *p, const qn_word form,
                         const source *s, const int n_rows) {
    few_block f = {.from = from, .sums = sums, .rows = p->rows};
    const int64_t n_in = p->w->n_in;
    for (int r = 0; r < n_rows; r++) memset(sums + r * QN_PANEL, 0, QN_TILE * sizeof *sums);
    for (; f.b * QN_BLOCK < n_in; f.b++) {
        const int64_t left = n_in - f.b * QN_BLOCK;
        f.n_values = (int)(left < QN_BLOCK ? left : QN_BLOCK);
        for (f.o = 0; f.o < QN_TILE; f.o += QN_LANES) {
            if (form == QN_WORD_i8_32)
                i8_any(&f, s, n_rows);
            else if (is_scaled(s))
                i12_scaled(&f, s, n_rows);
            else
                i12_simple(&f, s, n_rows);
        }
        f.from = run_at(f.from, RUNS, s);
    }
}

#define FEW(name, ...)                                                                             \
    static void few_##name(float *sums, const uint8_t *from, const product *p) {                   \
        const int n = (int)p->n_rows;                                                              \
        if (p->form == QN_WORD_i8_32) {                                                            \
            if (n == 1)                                                                            \
                tile_rows(sums, from, p, QN_WORD_i8_32, &source_##name, 1);                        \
            else                                                                                   \
                tile_rows(sums, from, p, QN_WORD_i8_32, &source_##name, n);                        \
        } else {                                                                                   \
            if (n == 1)                                                                            \
                tile_rows(sums, from, p, QN_WORD_i12_256, &source_##name, 1);                      \
            else                                                                                   \
                tile_rows(sums, from, p, QN_WORD_i12_256, &source_##name, n);                      \
        }                                                                                          \
    }
QN_SCALED_TYPES(FEW)
QN_SIMPLE_TYPES(FEW)

#define ROW(name, ...) [QN_TYPE_##name] = few_##name,
static void (*const few[QN_TYPE_COUNT])(float *sums, const uint8_t *from, const product *p) = {
    QN_SCALED_TYPES(ROW) QN_SIMPLE_TYPES(ROW)};

bool few_sums(const product *p) {
    if (p->n_rows > QN_FEW_ROWS) return false;
    for (int64_t t = 0; t < p->n_tiles; t++)
        few[p->w->type](p->sums[0] + t * QN_TILE, p->w->data + (p->tile + t) * p->w->tile_bytes, p);
    return true;
}

#else

bool few_sums(const product *p) {
    (void)p;
    return false;
}

#endif
