// What several ranks computed, put together. Rows lie densely between ranks, one rank's after the
// other's, each row as its rank has it.
#include "backends/ref/plain.h"

#include "backends/device.h"
#include "ir/share.h"

// The room of a call: sizes by rank, rows of all ranks, rows of this one.
typedef struct gather_room {
    size_t *bytes; // (n_ranks)
    unsigned char *to, *from;
} gather_room;

static int64_t row_bytes(const qn_plain_operand *x) {
    return x->parts * qn_plain_part_bytes(x->form, x->width);
}

static int64_t sizes_bytes(const qn_plain_task *task) {
    return (task->gather ? task->gather->n_ranks : 0) * (int64_t)sizeof(size_t);
}

int64_t qn_plain_room_all_gather(const qn_plain_task *task) {
    const int64_t rows = task->rows * (row_bytes(&task->out[0]) + row_bytes(&task->in[0]));
    return qn_plain_ceil(sizes_bytes(task) + rows, sizeof(float));
}

static gather_room lay_out(const qn_plain_task *task) {
    unsigned char *at = (unsigned char *)task->room + sizes_bytes(task);
    return (gather_room){.bytes = (size_t *)(void *)task->room,
                         .to = at,
                         .from = at + task->rows * row_bytes(&task->out[0])};
}

static int owner_of(const qn_plain_task *task, int64_t row) {
    const int32_t *id = qn_plain_row(&task->in[1], row);
    return qn_gather_owner(task->attrs, *id, task->gather->n_ranks);
}

// Whether a rank gives a row: all of them give their part of it, or the one that has its id.
static bool gives(const qn_plain_task *task, int64_t row, int rank) {
    return !task->in[1].data || owner_of(task, row) == rank;
}

// Values of a rank in each of the pieces of a part of a row, and the first one.
static int64_t piece_of(int64_t *first, const qn_plain_task *task, int rank) {
    const int n = task->gather->n_ranks;
    *first = 0;
    if (task->in[1].data) return task->out[0].width;
    *first = qn_gather_first(task->attrs, rank, n);
    return qn_gather_first(task->attrs, rank + 1, n) - *first;
}

// Moves what a rank gives of a row from `from` to its places in the row.
static void place_row(const qn_plain_task *task, int64_t row, int rank, const unsigned char *from) {
    const qn_plain_operand *out = &task->out[0];
    const int64_t pieces = task->attrs->parts, width = out->width / pieces;
    int64_t first;
    const int64_t n = piece_of(&first, task, rank);
    const int64_t bytes = qn_plain_part_bytes(out->form, n);
    for (int64_t p = 0; p < out->parts; p++) {
        unsigned char *part = qn_plain_part(out, row, p);
        for (int64_t i = 0; i < pieces; i++, from += bytes)
            memcpy(part + qn_plain_part_bytes(out->form, i * width + first), from, (size_t)bytes);
    }
}

// Bytes that a rank gives of a row.
static int64_t given_bytes(const qn_plain_task *task, int rank) {
    const qn_plain_operand *out = &task->out[0];
    int64_t first;
    const int64_t n = piece_of(&first, task, rank);
    return out->parts * task->attrs->parts * qn_plain_part_bytes(out->form, n);
}

static void give_rows(const qn_plain_task *task, const gather_room *room) {
    const int own = task->gather->rank;
    unsigned char *to = room->from;
    for (int k = 0; k < task->gather->n_ranks; k++) {
        room->bytes[k] = 0;
        for (int64_t r = 0; r < task->rows; r++) {
            if (gives(task, r, k)) room->bytes[k] += (size_t)given_bytes(task, k);
        }
    }
    for (int64_t r = 0; r < task->rows && room->bytes[own]; r++) {
        if (!gives(task, r, own)) continue;
        memcpy(to, qn_plain_row(&task->in[0], r), (size_t)given_bytes(task, own));
        to += given_bytes(task, own);
    }
}

// x? (T, ..., a share of W), ids? (T) -> (T, ..., W); zero where it cannot be brought.
void qn_plain_all_gather(const qn_plain_task *task) {
    const gather_room room = lay_out(task);
    if (task->rows == 0) return;
    give_rows(task, &room);
    if (!task->gather->gather(task->gather->arg, room.to, room.from, room.bytes)) {
        for (int64_t r = 0; r < task->rows; r++)
            memset(qn_plain_row(&task->out[0], r), 0, (size_t)row_bytes(&task->out[0]));
        return;
    }
    const unsigned char *from = room.to;
    for (int k = 0; k < task->gather->n_ranks; k++) {
        for (int64_t r = 0; r < task->rows; r++) {
            if (!gives(task, r, k)) continue;
            place_row(task, r, k, from);
            from += given_bytes(task, k);
        }
    }
}
