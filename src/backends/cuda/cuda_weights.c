// Weights of a GPU: rows in their own type, or as floats; they are read on the host in pieces.
#include "backends/cuda/cuda_device.h"

#include "core/mem.h"

#include <string.h>

// The type in which the numbers lie on the card.
static qn_type type_of(const qn_plan_leaf *leaf) {
    return leaf->layout == QN_WORD_typed ? leaf->type : QN_TYPE_F32;
}

// Bytes of n values on the card.
static bool card_bytes(int64_t *out, const qn_plan_leaf *leaf, int64_t n) {
    const qn_type type = type_of(leaf);
    const qn_type_info *info = qn_type_get(type);
    int64_t bytes;
    return qn_type_bytes(&bytes, type, n) &&
           qn_i64_mul(out, n / info->block, qn_cuda_block_bytes((int)type, info->bytes));
}

// Blocks as they lie on the card; `to` may not be `from`.
static void spread(unsigned char *to, const unsigned char *from, qn_type type, int64_t n_blocks) {
    const qn_type_info *info = qn_type_get(type);
    const size_t bytes = (size_t)info->bytes,
                 room = (size_t)qn_cuda_block_bytes((int)type, info->bytes);
    const size_t head = type == QN_TYPE_Q8_0 ? 2 : bytes; // before the gap
    const size_t gap = type == QN_TYPE_Q8_0 ? QN_CUDA_Q8_0_SHIFT : 0;
    for (int64_t i = 0; i < n_blocks; i++, to += room, from += bytes) {
        memset(to, 0, room);
        memcpy(to, from, head);
        memcpy(to + head + gap, from + head, bytes - head);
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

// Where a piece is read, and where it is spread; both hold PIECE values.
enum { PIECE = 1 << 22 }; // whole blocks of every type

static qn_status load_piece(unsigned char *to, qn_device *device, const qn_plan_leaf *leaf,
                            const qn_weight_reader *reader, int64_t first, int64_t n,
                            unsigned char *room[2], qn_err *err) {
    const qn_type type = type_of(leaf);
    const qn_type_info *info = qn_type_get(type);
    const int64_t n_blocks = n / info->block,
                  room_bytes = qn_cuda_block_bytes((int)type, info->bytes);
    if (leaf->layout == QN_WORD_typed)
        QN_TRY(reader->read(reader->arg, room[0], first, n, err));
    else
        QN_TRY(reader->read_f32(reader->arg, (float *)(void *)room[0], first, n, err));
    const bool is_spread = room_bytes != info->bytes;
    if (is_spread) spread(room[1], room[0], type, n_blocks);
    qn_cuda_write(device, to + first / info->block * room_bytes, room[is_spread],
                  (size_t)(n_blocks * room_bytes));
    return reader->progress ? reader->progress(reader->arg, n_blocks * room_bytes, err) : QN_OK;
}

qn_status qn_cuda_load_weight(void *to, qn_device *device, const qn_plan_leaf *leaf,
                              const qn_weight_reader *reader, qn_err *err) {
    int64_t n, width, bytes, room_bytes = 0;
    QN_TRY(qn_leaf_values(&n, &width, leaf, err));
    QN_TRY(qn_cuda_weight_bytes(&bytes, device, leaf, err));
    if (!card_bytes(&room_bytes, leaf, qn_min(n, PIECE)))
        return QN_FAIL(err, LIMIT, "weight %s: a piece overflows", leaf->name);
    unsigned char *room[2] = {qn_alloc((size_t)room_bytes, 1), qn_alloc((size_t)room_bytes, 1)};
    qn_status status = room[0] && room[1] ? QN_OK : QN_NOMEM(err, leaf->name);
    for (int64_t first = 0; first < n && !status; first += PIECE)
        status = load_piece(to, device, leaf, reader, first, qn_min(n - first, PIECE), room, err);
    qn_free(room[0]);
    qn_free(room[1]);
    return status ? status : qn_cuda_failure(device, err);
}
