// Tiles of weights: to and from the order of a file.
#include "backends/cuda/cuda_tiles.h"

#include <string.h>

enum { MAX_RUNS = 8, MAX_LINES = 8, LINE = 32, WORD = 4 };

// Bytes of a row that stay together: from byte `from` of its 256 values to byte `to` of the unit,
// and `step` bytes further for each row.
typedef struct run {
    int from, to, bytes, step;
} run;

typedef struct line {
    int from, to;
} line;

typedef struct drawing {
    int n_runs, n_lines;
    run runs[MAX_RUNS];
    line lines[MAX_LINES];
} drawing;

static const drawing q4_k = {
    1, 4, {{0, 0, 16, 16}}, {{16, 256}, {48, 768}, {80, 1280}, {112, 1792}}};
static const drawing q6_k = {
    2,
    6,
    {{192, 0, 16, 16}, {208, 256, 2, 2}},
    {{0, 288}, {32, 800}, {128, 1312}, {64, 1824}, {96, 2336}, {160, 2848}}};
static const drawing q8_0 = {8,
                             8,
                             {{0, 0, 2, 16},
                              {34, 2, 2, 16},
                              {68, 4, 2, 16},
                              {102, 6, 2, 16},
                              {136, 8, 2, 16},
                              {170, 10, 2, 16},
                              {204, 12, 2, 16},
                              {238, 14, 2, 16}},
                             {{2, 256},
                              {36, 768},
                              {70, 1280},
                              {104, 1792},
                              {138, 2304},
                              {172, 2816},
                              {206, 3328},
                              {240, 3840}}};

static const drawing *drawing_of(int type) {
    return type == QN_TYPE_Q4_K ? &q4_k : type == QN_TYPE_Q6_K ? &q6_k : &q8_0;
}

// Where word w of a row's 32 bytes lies in a line.
static int word_at(int i, int w) {
    const int lane = 4 * (i % 8) + w % 4, place = 2 * (w / 4) + i / 8;
    return 16 * lane + WORD * place;
}

void qn_cuda_tile_pack(unsigned char *unit, const unsigned char *from, int64_t stride, int type) {
    const drawing *d = drawing_of(type);
    for (int i = 0; i < QN_CUDA_TILE; i++, from += stride) {
        for (int k = 0; k < d->n_runs; k++) {
            const run *r = &d->runs[k];
            memcpy(unit + r->to + i * r->step, from + r->from, (size_t)r->bytes);
        }
        for (int k = 0; k < d->n_lines; k++) {
            for (int w = 0; w < LINE / WORD; w++)
                memcpy(unit + d->lines[k].to + word_at(i, w), from + d->lines[k].from + WORD * w,
                       WORD);
        }
    }
}

void qn_cuda_tile_row(unsigned char *to, const unsigned char *unit, int i, int type) {
    const drawing *d = drawing_of(type);
    for (int k = 0; k < d->n_runs; k++) {
        const run *r = &d->runs[k];
        memcpy(to + r->from, unit + r->to + i * r->step, (size_t)r->bytes);
    }
    for (int k = 0; k < d->n_lines; k++) {
        for (int w = 0; w < LINE / WORD; w++)
            memcpy(to + d->lines[k].from + WORD * w, unit + d->lines[k].to + word_at(i, w), WORD);
    }
}
