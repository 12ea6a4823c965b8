#include "vision/positions.h"

#include "core/mem.h"

// Rows of an image.
static qn_status count_rows(int64_t *n, const qn_image_span *spans, size_t i, int64_t row,
                            qn_err *err) {
    const qn_image_span *span = &spans[i];
    if (span->rows < 1 || span->columns < 1 || span->first < row ||
        !qn_i64_mul(n, span->rows, span->columns) || *n > INT32_MAX ||
        span->first > INT32_MAX - *n || span->left < 0 || span->left > *n)
        return QN_FAIL(err, ARGUMENT, "image %zu: %lld x %lld rows from %lld on, want from %lld on",
                       i, (long long)span->rows, (long long)span->columns, (long long)span->first,
                       (long long)row);
    if (span->left) *n = span->left;
    return QN_OK;
}

// Positions that the first n rows of an image use.
static int64_t count_positions(const qn_image_span *span, int64_t n) {
    const int64_t rows = (n + span->columns - 1) / span->columns;
    return qn_max(rows, qn_min(n, span->columns));
}

static void put(int32_t *to, int64_t t, int64_t h, int64_t w) {
    to[0] = (int32_t)t;
    to[1] = (int32_t)h;
    to[2] = (int32_t)w;
    to[3] = 0;
}

// What of first ... end - 1 lies in the rows from `row` on, of which there are n.
typedef struct part {
    int64_t begin, end;
} part;

static part overlap(int64_t row, int64_t n, int64_t first, int64_t end) {
    return (part){qn_max(row, first), qn_min(row + n, end)};
}

qn_status qn_image_positions(int32_t *positions, int32_t *next, int64_t first, int64_t n,
                             const qn_image_span *spans, size_t n_spans, qn_err *err) {
    int64_t row = 0, position = 0, rows = 0; // of the sequence; of text there; of the image
    const int64_t end = first + n;
    if (first < 0 || n < 0 || first > INT32_MAX || n > INT32_MAX - first)
        return QN_FAIL(err, ARGUMENT, "positions of %lld rows from %lld on", (long long)n,
                       (long long)first);
    for (size_t i = 0; i <= n_spans && row < end; i++) {
        const qn_image_span *span = i < n_spans ? &spans[i] : NULL;
        if (span) QN_TRY(count_rows(&rows, spans, i, row, err));
        const int64_t text = qn_min(span ? span->first : end, end) - row;
        const part t = overlap(row, text, first, end);
        for (int64_t r = t.begin; r < t.end; r++) {
            const int64_t p = position + r - row;
            put(positions + (r - first) * 4, p, p, p);
        }
        row += text;
        position += text;
        if (!span || row >= end) break;
        const part m = overlap(row, rows, first, end);
        for (int64_t r = m.begin; r < m.end; r++)
            put(positions + (r - first) * 4, position, position + (r - row) / span->columns,
                position + (r - row) % span->columns);
        row += rows;
        position += count_positions(span, rows);
    }
    if (next) *next = (int32_t)position;
    return QN_OK;
}
