#include "vision/grid.h"

#include <math.h>

typedef struct place {
    int64_t row, column;
} place;

static place place_of(const qn_grid *g, int64_t i) {
    const int64_t blocks = g->columns / g->merge, per = g->merge * g->merge;
    const int64_t block = i / per, inside = i % per;
    return (place){.row = block / blocks * g->merge + inside / g->merge,
                   .column = block % blocks * g->merge + inside % g->merge};
}

void qn_grid_angles(float *to, const qn_grid *grid, int64_t head, double theta) {
    const int64_t pairs = head / 2, half = pairs / 2;
    for (int64_t i = 0; i < grid->rows * grid->columns; i++, to += 2 * pairs) {
        const place at = place_of(grid, i);
        for (int64_t k = 0; k < pairs; k++) {
            const double frequency = pow(theta, -4.0 * (double)(k % half) / (double)head);
            const double angle = (double)(k < half ? at.row : at.column) * frequency;
            to[k] = (float)cos(angle);
            to[pairs + k] = (float)sin(angle);
        }
    }
}

// Where point i of n lies on a line of `side` points: after point `from`, by a share of the way to
// point `to`.
typedef struct between {
    int64_t from, to;
    float share;
} between;

// In float, from the nearer end, as the reference's linspace counts.
static between find(int64_t i, int64_t n, int64_t side) {
    const float step = n > 1 ? (float)(side - 1) / (float)(n - 1) : 0;
    const float x =
        i < n / 2 || n == 1 ? step * (float)i : (float)(side - 1) - step * (float)(n - 1 - i);
    const int64_t from = (int64_t)x;
    return (between){
        .from = from, .to = from + 1 < side ? from + 1 : side - 1, .share = x - (float)from};
}

void qn_grid_positions(float *to, const qn_grid *grid, const float *table, int64_t side,
                       int64_t width) {
    for (int64_t i = 0; i < grid->rows * grid->columns; i++, to += width) {
        const place at = place_of(grid, i);
        const between y = find(at.row, grid->rows, side), x = find(at.column, grid->columns, side);
        const float w[] = {(1 - y.share) * (1 - x.share), (1 - y.share) * x.share,
                           y.share * (1 - x.share), y.share * x.share};
        const float *corner[] = {
            table + (y.from * side + x.from) * width, table + (y.from * side + x.to) * width,
            table + (y.to * side + x.from) * width, table + (y.to * side + x.to) * width};
        for (int64_t d = 0; d < width; d++)
            to[d] = corner[0][d] * w[0] + corner[1][d] * w[1] + corner[2][d] * w[2] +
                    corner[3][d] * w[3];
    }
}
