// Weights of a GPU: rows in their own type, tiles of them, or floats.
#include "backends/cuda/cuda_device.h"
#include "backends/cuda/cuda_tiles.h"

#include "core/mem.h"

// The type in which the numbers lie on the card.
static qn_type type_of(const qn_plan_leaf *leaf) {
    return leaf->layout == QN_WORD_typed ? leaf->type : QN_TYPE_F32;
}

static bool is_tiled(const qn_plan_leaf *leaf, int64_t n, int64_t width) {
    return leaf->layout == QN_WORD_typed && width > 0 &&
           qn_cuda_is_tiled((int)leaf->type, n / width, width);
}

// Bytes of n values on the card; tiles have as many as the rows that they are made of.
static bool card_bytes(int64_t *out, const qn_plan_leaf *leaf, int64_t n) {
    return qn_type_bytes(out, type_of(leaf), n);
}

// Rows as tiles; all the rows there are, or whole groups of tiles.
static void tile_rows(unsigned char *to, const unsigned char *from, qn_type type, int64_t rows,
                      int64_t width) {
    const int64_t unit = qn_cuda_unit_bytes((int)type), blocks = width / QN_CUDA_BLOCK;
    const int64_t block = unit / QN_CUDA_TILE, row = blocks * block; // bytes
    for (int64_t t = 0; t < rows / QN_CUDA_TILE; t++) {
        for (int64_t b = 0; b < blocks; b++) {
            const int64_t at = qn_cuda_unit_of(t, b, rows / QN_CUDA_TILE, blocks).at;
            qn_cuda_tile_pack(to + at * unit, from + t * QN_CUDA_TILE * row + b * block, row,
                              (int)type);
        }
    }
}

qn_status qn_cuda_weight_bytes(int64_t *out, const qn_device *device, const qn_plan_leaf *leaf,
                               qn_err *err) {
    (void)device;
    const qn_type_info *info = qn_type_get(leaf->type);
    int64_t n, width;
    QN_TRY(qn_leaf_values(&n, &width, leaf, err));
    if (leaf->layout != QN_WORD_typed && leaf->layout != QN_WORD_rows)
        return QN_FAIL(err, UNSUPPORTED, "weight %s: device cuda has no layout %s", leaf->name,
                       qn_word_get(leaf->layout)->name);
    if (leaf->layout == QN_WORD_typed && width % info->block)
        return QN_FAIL(err, FORMAT, "weight %s: rows of %lld values, blocks of %s have %d",
                       leaf->name, (long long)width, info->name, info->block);
    if (!card_bytes(out, leaf, n))
        return QN_FAIL(err, LIMIT, "weight %s: the bytes of %lld values overflow", leaf->name,
                       (long long)n);
    return QN_OK;
}

qn_status qn_cuda_layout_of(qn_cuda_layout *out, const qn_plan_leaf *leaf, qn_err *err) {
    qn_cuda_layout layout = {.together = qn_type_get(type_of(leaf))->block};
    int64_t bytes;
    QN_TRY(qn_leaf_values(&layout.n, &layout.width, leaf, err));
    QN_TRY(qn_cuda_weight_bytes(&bytes, NULL, leaf, err)); // that it does not overflow
    layout.is_packed = is_tiled(leaf, layout.n, layout.width);
    if (layout.is_packed) layout.together = QN_CUDA_TILES * QN_CUDA_TILE * layout.width;
    *out = layout;
    return QN_OK;
}

int64_t qn_cuda_card_bytes(const qn_plan_leaf *leaf, int64_t n) {
    int64_t bytes = 0;
    (void)card_bytes(&bytes, leaf, n); // less than those of the weight
    return bytes;
}

void qn_cuda_pack(unsigned char *to, const unsigned char *from, const qn_plan_leaf *leaf,
                  const qn_cuda_layout *layout, int64_t n) {
    tile_rows(to, from, leaf->type, n / layout->width, layout->width);
}
