// How values are cut among ranks, and how ops carry cuts from one value to another.
#include "passes/shard_int.h"

#include "core/mem.h"

#include <string.h>

static int64_t size_of(const shard_run *run) { return run->repeats * run->units * run->unit; }
static int64_t end_of(const shard_run *run) { return run->start + size_of(run); }

bool qn_shard_equal(const shard_cut *a, const shard_cut *b) {
    if (!a || !b) return a == b;
    return a->axis == b->axis && a->n == b->n &&
           memcmp(a->runs, b->runs, (size_t)a->n * sizeof *a->runs) == 0;
}

shard_cut qn_shard_even(int axis, int64_t repeats, int64_t units, int64_t unit) {
    return (shard_cut){axis, 1, {{0, repeats, units, unit}}};
}

shard_cut qn_shard_moved(const shard_cut *cut, int axis, int64_t times) {
    shard_cut moved = *cut;
    moved.axis = axis;
    for (int i = 0; i < cut->n; i++) {
        moved.runs[i].start *= times;
        moved.runs[i].unit *= times;
    }
    return moved;
}

// The reverse: `times` indices become one. False where units do not stay whole.
static bool shrink(shard_cut *out, const shard_cut *cut, int axis, int64_t times) {
    *out = *cut;
    out->axis = axis;
    for (int i = 0; i < cut->n; i++) {
        if (cut->runs[i].start % times || cut->runs[i].unit % times) return false;
        out->runs[i].start /= times;
        out->runs[i].unit /= times;
    }
    return true;
}

bool qn_shard_covers(const shard_cut *cut, int64_t length) {
    int64_t end = 0;
    for (int i = 0; i < cut->n; i++) {
        if (cut->runs[i].start != end) return false;
        end = end_of(&cut->runs[i]);
    }
    return end == length;
}

bool qn_shard_join(shard_cut *cut, const shard_cut *more) {
    shard_cut all = *cut;
    if (cut->axis != more->axis || cut->n + more->n > SHARD_RUNS) return false;
    for (int i = 0; i < more->n; i++) {
        const shard_run *run = &more->runs[i];
        int at = all.n;
        while (at > 0 && all.runs[at - 1].start > run->start) at--;
        const bool is_apart = (at == 0 || end_of(&all.runs[at - 1]) <= run->start) &&
                              (at == all.n || end_of(run) <= all.runs[at].start);
        // Runs of as many units: a rank has a part of all of them, or of none.
        if (!is_apart || run->units != all.runs[0].units) return false;
        memmove(&all.runs[at + 1], &all.runs[at], (size_t)(all.n - at) * sizeof *all.runs);
        all.runs[at] = *run;
        all.n++;
    }
    *cut = all;
    return true;
}

static int64_t own_of(const shard_run *run, const sharding *s, int rank) {
    return (qn_share_first(run->units, rank + 1, s->n_ranks) -
            qn_share_first(run->units, rank, s->n_ranks)) *
           run->unit * run->repeats;
}

int64_t qn_shard_before(const shard_cut *cut, const sharding *s, int rank, int i) {
    int64_t n = 0;
    for (int k = 0; k < i; k++) n += own_of(&cut->runs[k], s, rank);
    return n;
}

int64_t qn_shard_own(const shard_cut *cut, const sharding *s, int rank) {
    return qn_shard_before(cut, s, rank, cut->n);
}

bool qn_shard_has_gaps(const shard_cut *cut, const sharding *s) {
    return cut->runs[0].units < s->n_ranks;
}

// Parts are gathered along the last dimension, or along the one before it with that one inside. A
// rank that has nothing must know the shape: (T, ...), or (T, heads, ...).
bool qn_shard_fits(const shard_cut *cut, const sharding *s, int32_t value) {
    const qn_shape *shape = &s->graph->values[value].shape;
    const int last = shape->n_dims - 1;
    if (cut->axis < 1 || cut->axis > last || cut->axis + 1 < last) return false;
    if (!qn_shard_covers(cut, shape->dims[cut->axis].n)) return false;
    const bool is_plain = shape->dims[0].sym == QN_SYM_T && shape->dims[0].n == 1 &&
                          cut->axis == 1 && shape->n_dims <= 3;
    return is_plain || !qn_shard_has_gaps(cut, s);
}

// --- through ops ---------------------------------------------------------------------------------

// One direction of an op: from the cut of an input to that of the first result, or back.
typedef struct carry {
    const qn_node *node;
    const qn_shape *in, *out; // of that input and that result
} carry;
typedef bool carry_fn(shard_cut *to, const carry *c, const shard_cut *from);

static bool same(shard_cut *to, const carry *c, const shard_cut *from) {
    (void)c;
    *to = *from;
    return true;
}

// Each last dimension is computed as one.
static bool same_row(shard_cut *to, const carry *c, const shard_cut *from) {
    *to = *from;
    return from->axis + 1 < c->in->n_dims;
}

static bool same_columns(shard_cut *to, const carry *c, const shard_cut *from) {
    (void)c;
    *to = *from;
    return from->axis > 0;
}

static bool same_channels(shard_cut *to, const carry *c, const shard_cut *from) {
    (void)c;
    *to = *from;
    return from->axis == 1;
}

static int64_t last_of(const qn_shape *shape) { return shape->dims[shape->n_dims - 1].n; }

static bool split_forth(shard_cut *to, const carry *c, const shard_cut *from) {
    const bool is_last = from->axis + 1 == c->in->n_dims;
    return is_last ? shrink(to, from, from->axis, last_of(c->out)) : same(to, c, from);
}

static bool split_back(shard_cut *to, const carry *c, const shard_cut *from) {
    const int last = c->in->n_dims - 1;
    *to = qn_shard_moved(from, from->axis, from->axis == last ? last_of(c->out) : 1);
    return from->axis <= last;
}

static bool merge_forth(shard_cut *to, const carry *c, const shard_cut *from) {
    const int last = c->out->n_dims - 1;
    *to = qn_shard_moved(from, from->axis, from->axis == last ? last_of(c->in) : 1);
    return from->axis <= last;
}

static bool merge_back(shard_cut *to, const carry *c, const shard_cut *from) {
    const bool is_last = from->axis + 1 == c->out->n_dims;
    return is_last ? shrink(to, from, from->axis, last_of(c->in)) : same(to, c, from);
}

// The pieces of a run that lie in [first, end); false where one lies there in part.
static bool crop(shard_run *run, int64_t first, int64_t end) {
    const int64_t piece = run->units * run->unit;
    const int64_t skipped = qn_min(run->repeats, qn_max(0, first - run->start) / piece);
    const int64_t begin = run->start + skipped * piece;
    const int64_t kept =
        qn_min(run->repeats - skipped, qn_max(0, (end - begin + piece - 1) / piece));
    *run = (shard_run){begin - first, kept, run->units, run->unit};
    return kept == 0 || (begin >= first && begin + kept * piece <= end);
}

static bool narrow_forth(shard_cut *to, const carry *c, const shard_cut *from) {
    const qn_attrs *a = &c->node->attrs;
    if (from->axis != a->axis) return same(to, c, from);
    *to = (shard_cut){.axis = from->axis};
    for (int i = 0; i < from->n; i++) {
        shard_run run = from->runs[i];
        if (!crop(&run, a->start, a->start + a->length)) return false;
        if (run.repeats) to->runs[to->n++] = run;
    }
    return to->n > 0;
}

// Of the input, only what the slice is.
static bool narrow_back(shard_cut *to, const carry *c, const shard_cut *from) {
    *to = *from;
    if (from->axis != c->node->attrs.axis) return true;
    for (int i = 0; i < to->n; i++) to->runs[i].start += c->node->attrs.start;
    return true;
}

// The second operand may lack outer dimensions, and have 1 in place of one.
static bool spread_forth(shard_cut *to, const carry *c, const shard_cut *from) {
    const int axis = from->axis + c->out->n_dims - c->in->n_dims;
    *to = qn_shard_moved(from, axis, 1);
    return c->in->dims[from->axis].n == c->out->dims[axis].n;
}

static bool spread_back(shard_cut *to, const carry *c, const shard_cut *from) {
    const int axis = from->axis - (c->out->n_dims - c->in->n_dims);
    *to = qn_shard_moved(from, axis, 1);
    if (axis < 0 || c->in->dims[axis].n != c->out->dims[from->axis].n) to->axis = -1;
    return true;
}

// (T, N, D) to (T, D).
static bool combine_forth(shard_cut *to, const carry *c, const shard_cut *from) {
    (void)c;
    *to = qn_shard_moved(from, 1, 1);
    return from->axis == 2;
}

static bool combine_back(shard_cut *to, const carry *c, const shard_cut *from) {
    (void)c;
    *to = qn_shard_moved(from, 2, 1);
    return from->axis == 1;
}

// Ops with one input that is cut as the result is, or with two.
static const struct {
    int inputs;
    carry_fn *forth, *back;
} carries[QN_OP_COUNT] = {
    [QN_OP_ADD] = {2, spread_forth, spread_back},
    [QN_OP_MUL] = {2, spread_forth, spread_back},
    [QN_OP_SCALE] = {1, same, same},
    [QN_OP_SILU] = {1, same, same},
    [QN_OP_GELU] = {1, same, same},
    [QN_OP_GELU_ERF] = {1, same, same},
    [QN_OP_SIGMOID] = {1, same, same},
    [QN_OP_SOFTPLUS] = {1, same, same},
    [QN_OP_SOFTCAP] = {1, same, same},
    [QN_OP_RMS_NORM] = {1, same_row, same_row},
    [QN_OP_LAYER_NORM] = {1, same_row, same_row},
    [QN_OP_L2_NORM] = {1, same_row, same_row},
    [QN_OP_ROPE] = {1, same_channels, same_channels},
    [QN_OP_NARROW] = {1, narrow_forth, narrow_back},
    [QN_OP_SPLIT] = {1, split_forth, split_back},
    [QN_OP_MERGE] = {1, merge_forth, merge_back},
    [QN_OP_GATHER_ROWS] = {1, same_columns, same_columns},
    [QN_OP_CONV] = {1, same_channels, same_channels},
    [QN_OP_LORA] = {1, same_channels, same_channels},
    [QN_OP_COMBINE] = {1, combine_forth, combine_back},
};

int qn_shard_inputs(const qn_node *node) { return carries[node->op].inputs; }

static bool take(shard_cut *to, const sharding *s, const qn_node *node, int input, carry_fn *fn,
                 const shard_cut *from) {
    if (input >= carries[node->op].inputs) return false;
    const carry c = {.node = node,
                     .in = &s->graph->values[node->in[input]].shape,
                     .out = &s->graph->values[node->out[0]].shape};
    return fn(to, &c, from);
}

bool qn_shard_forth(shard_cut *out, const sharding *s, const qn_node *node, int input,
                    const shard_cut *cut) {
    return take(out, s, node, input, carries[node->op].forth, cut);
}

bool qn_shard_back(shard_cut *in, const sharding *s, const qn_node *node, int input,
                   const shard_cut *cut) {
    return take(in, s, node, input, carries[node->op].back, cut);
}
