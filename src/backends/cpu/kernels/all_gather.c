// What several ranks computed, put together. One piece, so that the ranks meet in the order of
// their plans. Between ranks the rows of a step lie densely, one rank's after the other's; the
// temporary value is room for them.
#include "backends/cpu/kernels/level.h"
#include "backends/device.h"
#include "ir/share.h"

#include <string.h>

typedef struct gathering {
    const qn_task *task;
    const qn_gather *ranks;
    size_t *bytes; // (n_ranks) that each gives
    size_t *at;    // (n_ranks) of what it gave, those that are in their place
    unsigned char *from, *to;
} gathering;

// Bytes of n values that stand side by side: floats, or whole blocks.
static size_t bytes_of(qn_word form, int64_t n) {
    return form == QN_WORD_f32 ? (size_t)n * sizeof(float) : (size_t)qn_cpu_row_bytes(form, n);
}

// Own rows are made where they belong among those of all ranks: nothing moves them there.
static void find_own(gathering *g) {
    g->from = g->to;
    for (int r = 0; r < g->ranks->rank; r++) g->from += g->bytes[r];
}

static bool exchange(const gathering *g) {
    return g->ranks->gather(g->ranks->arg, g->to, g->from, g->bytes);
}

// --- parts of rows -------------------------------------------------------------------------------

// Pieces of a row, each of which is divided among the ranks.
static int64_t pieces_of(const gathering *g) {
    return g->task->out[0].parts * g->task->attrs->parts;
}

// Bytes of a piece that a rank has.
static size_t share_of(const gathering *g, int rank) {
    const qn_attrs *a = g->task->attrs;
    const int n = g->ranks->n_ranks;
    return bytes_of(g->task->out[0].form,
                    qn_gather_first(a, rank + 1, n) - qn_gather_first(a, rank, n));
}

// One piece of one row is what the ranks give, one after the other: nothing has to move.
static bool is_direct(const gathering *g) { return g->task->rows == 1 && pieces_of(g) == 1; }

static void pack_parts(const gathering *g) {
    const qn_operand *x = &g->task->in[0];
    const size_t row = (size_t)pieces_of(g) * share_of(g, g->ranks->rank);
    for (int64_t r = 0; r < g->task->rows && row; r++)
        memcpy(g->from + (size_t)r * row, row_of(x, r), row);
}

// The pieces of one rank.
static void place_parts(const gathering *g, int rank, const unsigned char *from) {
    const qn_operand *out = &g->task->out[0];
    const qn_attrs *a = g->task->attrs;
    const size_t n = share_of(g, rank);
    const int64_t first = qn_gather_first(a, rank, g->ranks->n_ranks), piece = a->length / a->parts;
    for (int64_t r = 0; r < g->task->rows && n; r++) {
        for (int64_t i = 0; i < pieces_of(g); i++, from += n) {
            unsigned char *part = part_of(out, r, i / a->parts);
            memcpy(part + bytes_of(out->form, i % a->parts * piece + first), from, n);
        }
    }
}

static bool gather_parts(gathering *g) {
    for (int r = 0; r < g->ranks->n_ranks; r++)
        g->bytes[r] = (size_t)(g->task->rows * pieces_of(g)) * share_of(g, r);
    if (is_direct(g)) {
        g->from = g->task->in[0].data;
        g->to = g->task->out[0].data;
        return exchange(g);
    }
    find_own(g);
    pack_parts(g);
    if (!exchange(g)) return false;
    const unsigned char *from = g->to;
    for (int r = 0; r < g->ranks->n_ranks; from += g->bytes[r++]) place_parts(g, r, from);
    return true;
}

// --- whole rows ----------------------------------------------------------------------------------

static int owner_of(const gathering *g, int64_t row) {
    const int32_t *id = row_of(&g->task->in[1], row);
    return qn_gather_owner(g->task->attrs, *id, g->ranks->n_ranks);
}

// Each from the rank that has its id, which are the same ids on every rank.
static bool gather_rows(gathering *g) {
    const qn_operand *x = &g->task->in[0], *out = &g->task->out[0];
    const size_t row = bytes_of(QN_WORD_f32, x->width);
    memset(g->bytes, 0, (size_t)g->ranks->n_ranks * sizeof *g->bytes);
    for (int64_t r = 0; r < g->task->rows; r++) g->bytes[owner_of(g, r)] += row;
    find_own(g);
    unsigned char *own = g->from;
    for (int64_t r = 0; r < g->task->rows; r++) {
        if (owner_of(g, r) != g->ranks->rank) continue;
        memcpy(own, row_of(x, r), row);
        own += row;
    }
    if (!exchange(g)) return false;
    g->at[0] = 0;
    for (int r = 1; r < g->ranks->n_ranks; r++) g->at[r] = g->at[r - 1] + g->bytes[r - 1];
    for (int64_t r = 0; r < g->task->rows; r++) {
        size_t *at = &g->at[owner_of(g, r)];
        memcpy(row_of(out, r), g->to + *at, row);
        *at += row;
    }
    return true;
}

// x? (T, ..., a share of W), ids? (T) -> (T, ..., W). What could not be brought is zero: the step
// is lost, but nothing in it must be unheard of.
void QN_FN(all_gather)(const qn_task *task, int64_t piece, void *scratch) {
    (void)piece;
    const qn_operand *out = &task->out[0];
    gathering g = {.task = task, .ranks = task->gather, .bytes = scratch, .to = task->temp[0].data};
    if (task->rows == 0) return;
    g.at = g.bytes + g.ranks->n_ranks;
    if (task->in[1].data ? gather_rows(&g) : gather_parts(&g)) return;
    for (int64_t r = 0; r < task->rows; r++)
        memset(row_of(out, r), 0, (size_t)out->parts * bytes_of(out->form, out->width));
}
