// Rope positions of a sequence with images in it: three numbers for each row, in the sections t, h
// and w.
//
// A text row has its number in all three. The rows of an image have the number of its first row as
// t, and that plus their row and column in the image's grid as h and w. After an image the numbers
// go on after the largest that it used, which is less than the rows that it took.
#ifndef QN_VISION_POSITIONS_H
#define QN_VISION_POSITIONS_H

#include "core/err.h"

// Where an image is in a sequence: `rows` * `columns` rows of it, row by row. The sizes are those
// of the merged grid. A sequence that was cut inside an image goes on after the rows that are left.
typedef struct qn_image_span {
    int64_t first; // row of the sequence
    int64_t rows, columns;
    int64_t left; // rows of it that are there, from the first on; 0: all
} qn_image_span;

// Rows of the sequence that the image takes.
static inline int64_t qn_image_span_rows(const qn_image_span *span) {
    return span->left ? span->left : span->rows * span->columns;
}

// Positions (n, 4), t, h, w and 0, of rows first ... first + n - 1 of a sequence whose images are
// `spans`, ascending and apart. *next, which may be NULL, gets the position of a text row after
// them. Spans that overlap, or end after int32 does, are refused.
QN_MUST_CHECK qn_status qn_image_positions(int32_t *positions, int32_t *next, int64_t first,
                                           int64_t n, const qn_image_span *spans, size_t n_spans,
                                           qn_err *err);

#endif
