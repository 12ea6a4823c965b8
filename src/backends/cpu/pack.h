// Packed weights: the one layout that kernels of every CPU level read.
//
// 16 outputs form a tile; a tile is cut along the inner dimension into blocks of 256 (the last may
// be shorter). Inside a tile's block, integer types hold 4 consecutive inner values of one output
// side by side, then the same of the next output (16 x 4), with the scales of all 16 outputs next
// to them; float types hold one inner value of 16 outputs side by side. Packing only moves bits: it
// can be undone exactly, and a row takes as many bytes as in its GGUF type. A last tile with fewer
// than 16 outputs is filled up with zeros.
#ifndef QN_BACKENDS_CPU_PACK_H
#define QN_BACKENDS_CPU_PACK_H

#include "core/err.h"
#include "quant/type.h"

enum { QN_TILE = 16, QN_BLOCK = 256, QN_PACK_ALIGN = 64 };
#define QN_PACK_FORMAT "1" // of files that keep packed weights

// One or more matrices (experts) of a weight. Constant; the bytes are borrowed.
typedef struct qn_packed {
    qn_type type;
    int64_t n_matrices, n_out, n_in;  // X (1 for a plain matrix), O, I
    int64_t tile_bytes, matrix_bytes; // one tile over the whole inner dimension; all tiles
    const unsigned char *data;        // aligned to QN_PACK_ALIGN
    // (X) where each matrix lies, if they do not follow one another; NULL: they do. Only those of
    // the experts that a step has asked for are there.
    const unsigned char *const *matrices;
} qn_packed;

static inline const unsigned char *qn_packed_matrix(const qn_packed *w, int64_t i) {
    return w->matrices ? w->matrices[i] : w->data + i * w->matrix_bytes;
}

// Whether the type has a packed layout.
bool qn_pack_supports(qn_type type);
// Fills everything but `data`. Sizes that overflow, types without a layout and inner sizes that are
// no multiple of the type's block are errors that name them.
QN_MUST_CHECK qn_status qn_packed_init(qn_packed *out, qn_type type, int64_t n_matrices,
                                       int64_t n_out, int64_t n_in, qn_err *err);
int64_t qn_packed_bytes(const qn_packed *w);
int64_t qn_packed_tiles(const qn_packed *w); // of all matrices

// Packs tile `tile` (0 ... qn_packed_tiles - 1) of the row-major weight `from` (X, O, I in w->type)
// to its place in `to`, which holds qn_packed_bytes. Tiles are independent.
void qn_pack_tile(void *to, const qn_packed *w, const void *from, int64_t tile);

// Row `row` (of all X * O) as floats: equal to the type's own unpack of that row, bit for bit.
void qn_packed_row(float *to, const qn_packed *w, int64_t row);

#endif
