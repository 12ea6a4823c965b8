// How every value is cut, the same on every rank: node by node, from the inputs on.
#include "passes/shard_int.h"

#include <string.h>

enum { FEW_OUTPUTS = 16 }; // a tile; matmuls with fewer stay whole

static const qn_node *maker_of(const sharding *s, int32_t value) {
    return &s->graph->nodes[s->graph->values[value].node];
}

static const qn_shape *shape_of(const sharding *s, int32_t value) {
    return &s->graph->values[value].shape;
}

static void need(sharding *s, const qn_node *node, int input, const shard_cut *cut) {
    s->need[(node - s->graph->nodes) * QN_MAX_IN + input] = cut;
}

// How the cut of a result has to lie to be of use; NULL: no matter, or it cannot be.
static const shard_cut *target_of(const sharding *s, int32_t value) {
    const shard_cut *target = s->target[value];
    return target && qn_shard_fits(target, s, value) ? target : NULL;
}

static void fired(sharding *s) { qn_rw_fired(s->rw); }

// --- weights -------------------------------------------------------------------------------------

// Cuts a weight along an axis as `like` is; false where another reader has it otherwise.
static bool take_weight(sharding *s, int32_t value, int axis, const shard_cut *like) {
    const shard_cut cut = qn_shard_moved(like, axis, 1);
    if (!qn_shard_covers(&cut, shape_of(s, value)->dims[axis].n)) return false;
    if (s->is_fixed[value]) return qn_shard_equal(s->have[value], &cut);
    s->is_fixed[value] = true;
    s->have[value] = qn_shard_keep(s, &cut);
    return s->have[value];
}

// Numbers that only one node reads.
static bool may_take(const sharding *s, int32_t value, int n_dims) {
    return qn_shard_is_weight(s, value, n_dims) && qn_rw_n_users(s->rw, value) == 1;
}

// --- matmuls -------------------------------------------------------------------------------------

// Scores that choose experts, and gates of less than a tile: every rank needs them, and they cost
// little.
static bool is_small(const sharding *s, int32_t y) {
    const qn_shape *shape = shape_of(s, y);
    for (int32_t u = 0; u < qn_rw_n_users(s->rw, y); u++) {
        if (s->graph->nodes[qn_rw_user(s->rw, y, u)].op == QN_OP_ROUTE) return true;
    }
    return shape->dims[shape->n_dims - 1].n < FEW_OUTPUTS;
}

// How the outputs of a matmul are cut, along `axis` of its result; false: not at all, and why.
static bool find_outputs(shard_cut *out, const char **why, const sharding *s, const qn_node *node,
                         int axis) {
    const int32_t y = node->out[0], w = node->in[1];
    const int64_t n = shape_of(s, y)->dims[axis].n;
    const shard_cut *target = target_of(s, y);
    *why = "fewer outputs than ranks";
    if (s->is_fixed[w]) {
        if (s->have[w]) *out = qn_shard_moved(s->have[w], axis, 1);
        return s->have[w];
    }
    if (target && target->axis == axis && (s->is_hard[y] || !is_small(s, y))) {
        *out = *target;
        return true;
    }
    if (is_small(s, y)) {
        *why = "few outputs: every rank computes all";
        return false;
    }
    return qn_shard_units(out, s, axis, n, false);
}

// x (..., I) whole, w (..., O, I): the result is cut along its last dimension.
static void decide_outputs(sharding *s, const qn_node *node, int n_dims) {
    const int32_t w = node->in[1], y = node->out[0];
    const char *why = "the weight is computed";
    shard_cut cut;
    if (qn_shard_is_weight(s, w, n_dims) &&
        find_outputs(&cut, &why, s, node, shape_of(s, y)->n_dims - 1)) {
        why = "on another rank there would be nothing";
        if (qn_shard_fits(&cut, s, y) && take_weight(s, w, n_dims - 2, &cut)) {
            s->have[y] = qn_shard_keep(s, &cut);
            need(s, node, 1, s->have[w]);
            fired(s);
            return;
        }
    }
    s->is_fixed[w] = true;
    qn_rw_missed(s->rw, node->layer, why);
}

static void decide_matmul(sharding *s, const qn_node *node) { decide_outputs(s, node, 2); }
static void decide_grouped(sharding *s, const qn_node *node) { decide_outputs(s, node, 3); }

// The vocabulary is cut; rows come together at once, each from its owner.
static void decide_embed(sharding *s, const qn_node *node) {
    const int32_t table = node->in[1];
    shard_cut cut;
    if (qn_shard_is_weight(s, table, 2) && qn_shard_has_rows(s, node->out[0]) &&
        qn_shard_units(&cut, s, 0, shape_of(s, table)->dims[0].n, false) &&
        take_weight(s, table, 0, &cut)) {
        need(s, node, 1, s->have[table]);
        fired(s);
        return;
    }
    s->is_fixed[table] = true;
    qn_rw_missed(s->rw, node->layer, "a table that cannot be cut");
}

// y is cut, and b with it; what an adapter adds needs all of x.
static void decide_lora(sharding *s, const qn_node *node) {
    const shard_cut *y = s->have[node->in[0]];
    const int32_t b = node->in[3];
    if (!y || !may_take(s, b, 3) || !take_weight(s, b, 1, y)) return;
    need(s, node, 0, y);
    need(s, node, 3, s->have[b]);
    s->have[node->out[0]] = y;
}

// --- element by element --------------------------------------------------------------------------

// One input, which is cut as it is.
static void decide_same(sharding *s, const qn_node *node) {
    const shard_cut *x = s->have[node->in[0]];
    shard_cut cut;
    if (!x || !qn_shard_forth(&cut, s, node, 0, x) || !qn_shard_fits(&cut, s, node->out[0])) return;
    need(s, node, 0, x);
    s->have[node->out[0]] = qn_shard_keep(s, &cut);
}

// How a result that is cut gets an input: as it is, by cutting what a rank has as a whole, which is
// a last resort, or not at all.
typedef enum way { AS_IT_IS, CUT, NEVER } way;

static way way_of(const sharding *s, const qn_node *node, int k, const shard_cut *cut,
                  shard_cut *in) {
    const int32_t value = node->in[k];
    if (!qn_shard_back(in, s, node, k, cut)) return NEVER;
    if (in->axis < 0) return s->have[value] ? CUT : AS_IT_IS;
    if (s->have[value]) return qn_shard_equal(s->have[value], in) ? AS_IT_IS : CUT;
    if (qn_op_get(maker_of(s, value)->op)->class_of != QN_CLASS_LEAF) return CUT;
    const int n_dims = shape_of(s, value)->n_dims;
    const bool may = may_take(s, value, n_dims) && (n_dims == 1 || in->axis + 1 < n_dims);
    return may ? AS_IT_IS : NEVER;
}

static void take_input(sharding *s, const qn_node *node, int k, const shard_cut *in) {
    const int32_t value = node->in[k];
    if (in->axis < 0) return;
    if (maker_of(s, value)->op == QN_OP_PARAM) (void)take_weight(s, value, in->axis, in);
    need(s, node, k, qn_shard_keep(s, in));
}

// Two inputs: cut as one of them is if the other can be, or because the result has to be.
static void decide_pair(sharding *s, const qn_node *node) {
    shard_cut cut, in[2];
    const int32_t y = node->out[0];
    const shard_cut *forced = s->is_hard[y] ? target_of(s, y) : NULL;
    const int from = s->have[node->in[0]] ? 0 : 1;
    const shard_cut *x = s->have[node->in[from]];
    if (forced)
        cut = *forced;
    else if (!x || !qn_shard_forth(&cut, s, node, from, x) || !qn_shard_fits(&cut, s, y))
        return;
    const way worst = forced ? CUT : AS_IT_IS;
    for (int k = 0; k < 2; k++) {
        if (way_of(s, node, k, &cut, &in[k]) > worst) return;
    }
    for (int k = 0; k < 2; k++) take_input(s, node, k, &in[k]);
    s->have[y] = qn_shard_keep(s, &cut);
}

// --- by heads ------------------------------------------------------------------------------------

static void decide_write(sharding *s, const qn_node *node) {
    int64_t heads;
    if (!qn_shard_cache(&heads, s, node->out[0])) {
        qn_rw_missed(s->rw, node->layer, "a cache that is not attended to by heads");
        return;
    }
    const shard_cut keys = qn_shard_even(1, 1, heads, 1), cache = qn_shard_moved(&keys, 0, 1);
    s->have[node->in[0]] = s->have[node->out[0]] = qn_shard_keep(s, &cache);
    need(s, node, 0, s->have[node->in[0]]);
    for (int k = 1; k < 3; k++) need(s, node, k, qn_shard_keep(s, &keys));
    if (qn_shard_has_gaps(&keys, s))
        qn_rw_missed(s->rw, node->layer, "fewer kv heads than ranks: some have none");
    fired(s);
}

static void decide_attend(sharding *s, const qn_node *node) {
    int64_t keys;
    const int32_t sinks = node->n_in > 3 ? node->in[3] : QN_NO_VALUE;
    if (!qn_shard_cache(&keys, s, node->in[1])) return;
    const int64_t heads = shape_of(s, node->in[0])->dims[1].n;
    const shard_cut cut = qn_shard_even(1, 1, keys, heads / keys);
    const shard_cut *kept = qn_shard_keep(s, &cut);
    need(s, node, 0, kept);
    need(s, node, 1, s->have[node->in[1]]);
    if (sinks >= 0 && take_weight(s, sinks, 0, &cut)) need(s, node, 3, s->have[sinks]);
    s->have[node->out[0]] = kept;
}

static void decide_delta(sharding *s, const qn_node *node) {
    shard_delta delta;
    if (!qn_shard_delta(&delta, s, node)) {
        qn_rw_missed(s->rw, node->layer, "a state that others read too");
        return;
    }
    const shard_cut *keys = qn_shard_keep(s, &delta.keys);
    const shard_cut *values = qn_shard_keep(s, &delta.values);
    const shard_cut state = qn_shard_moved(&delta.values, 0, 1);
    s->have[node->in[5]] = qn_shard_keep(s, &state);
    for (int k = 0; k < 5; k++) need(s, node, k, k < 2 ? keys : values);
    need(s, node, 5, s->have[node->in[5]]);
    s->have[node->out[0]] = values;
    if (qn_shard_has_gaps(keys, s))
        qn_rw_missed(s->rw, node->layer, "fewer key heads than ranks: some have none");
    fired(s);
}

// x (T, C), w (C, N), state (N - 1, C).
static void decide_conv(sharding *s, const qn_node *node) {
    const shard_cut *x = s->have[node->in[0]];
    const int32_t w = node->in[1], state = qn_shard_state(s, node->in[2]);
    if (!x || state < 0 || !may_take(s, w, 2) || !take_weight(s, w, 0, x)) return;
    need(s, node, 0, x);
    need(s, node, 1, s->have[w]);
    need(s, node, 2, s->have[state] = x);
    s->have[node->out[0]] = x;
    fired(s);
}

// --- all of it -----------------------------------------------------------------------------------

typedef void decide_fn(sharding *s, const qn_node *node);

// Whole inputs and results for every op that is not here.
static decide_fn *const rules[QN_OP_COUNT] = {
    [QN_OP_EMBED] = decide_embed,
    [QN_OP_MATMUL] = decide_matmul,
    [QN_OP_GROUPED_MATMUL] = decide_grouped,
    [QN_OP_LORA] = decide_lora,
    [QN_OP_ADD] = decide_pair,
    [QN_OP_MUL] = decide_pair,
    [QN_OP_KV_WRITE] = decide_write,
    [QN_OP_ATTEND] = decide_attend,
    [QN_OP_CONV] = decide_conv,
    [QN_OP_DELTA] = decide_delta,
};

void qn_shard_decide(sharding *s) {
    for (size_t i = 0; i < s->graph->n_nodes && !s->rw->b.status; i++) {
        const qn_node *node = &s->graph->nodes[i];
        if (!s->is_live[i]) continue;
        if (rules[node->op])
            rules[node->op](s, node);
        else if (qn_shard_inputs(node) == 1)
            decide_same(s, node);
    }
}
