// What readers and makers of values ask for, before anything is decided. Attention and delta rules
// are cut by heads: forth from them, what goes with their results; back from them, what they read.
// A matmul that reads rows which another one makes would like these in whole blocks.
#include "passes/shard_int.h"

#include "core/mem.h"

const shard_cut *qn_shard_keep(sharding *s, const shard_cut *cut) {
    shard_cut *copy = qn_arena_alloc(&s->arena, 1, sizeof *copy);
    if (copy)
        *copy = *cut;
    else if (!s->rw->b.status)
        s->rw->b.status = QN_NOMEM(&s->rw->b.err, "shares");
    return copy;
}

static const qn_node *maker_of(const sharding *s, int32_t value) {
    return &s->graph->nodes[s->graph->values[value].node];
}

static int64_t dim(const sharding *s, int32_t value, int i) {
    return s->graph->values[value].shape.dims[i].n;
}

// --- what can be cut -----------------------------------------------------------------------------

enum { BLOCKS_ENOUGH = 8 }; // of a rank: then one more or less is little

static bool find_units(shard_cut *out, const sharding *s, int axis, int64_t length, int64_t unit) {
    for (; unit > 0; unit /= 2) {
        if (length % unit || length / unit < s->n_ranks) continue;
        *out = qn_shard_even(axis, 1, length / unit, unit);
        return true;
    }
    return false;
}

// Tiles of 16 outputs, or less where there are too few; blocks that the next matmul reads packed
// where ranks have about as many of them.
bool qn_shard_units(shard_cut *out, const sharding *s, int axis, int64_t length, bool is_inner) {
    const int64_t blocks = length / QN_GATHER_BLOCK;
    const bool is_fair = blocks % s->n_ranks == 0 || blocks / s->n_ranks >= BLOCKS_ENOUGH;
    if (is_inner && blocks > 0 && length % QN_GATHER_BLOCK == 0 && is_fair) {
        *out = qn_shard_even(axis, 1, blocks, QN_GATHER_BLOCK);
        return true;
    }
    return find_units(out, s, axis, length, 16);
}

int32_t qn_shard_state(const sharding *s, int32_t value) {
    const bool is_input = value >= 0 && maker_of(s, value)->op == QN_OP_INPUT;
    return is_input && qn_rw_n_users(s->rw, value) == 1 ? value : -1;
}

// Weights that several nodes read are the output matrix, which may be the embedding too.
bool qn_shard_is_weight(const sharding *s, int32_t value, int n_dims) {
    if (value < 0 || maker_of(s, value)->op != QN_OP_PARAM) return false;
    if (s->graph->values[value].shape.n_dims != n_dims) return false;
    const int32_t n = qn_rw_n_users(s->rw, value);
    for (int32_t u = 0; u < n && n > 1; u++) {
        const qn_node *user = &s->graph->nodes[qn_rw_user(s->rw, value, u)];
        const bool is_matrix = user->op == QN_OP_EMBED || user->op == QN_OP_MATMUL;
        if (!is_matrix || user->in[1] != value) return false;
    }
    return true;
}

// All that attends to what is written can be cut by heads.
static bool is_attended(const sharding *s, int32_t written) {
    for (int32_t u = 0; u < qn_rw_n_users(s->rw, written); u++) {
        const qn_node *user = &s->graph->nodes[qn_rw_user(s->rw, written, u)];
        const int32_t sinks = user->n_in > 3 ? user->in[3] : QN_NO_VALUE;
        if (user->op != QN_OP_ATTEND || user->in[1] != written) return false;
        if (sinks >= 0 && (!qn_shard_is_weight(s, sinks, 1) || qn_rw_n_users(s->rw, sinks) != 1))
            return false;
    }
    return !qn_rw_is_kept(s->rw, written);
}

bool qn_shard_has_rows(const sharding *s, int32_t value) {
    const qn_dim rows = s->graph->values[value].shape.dims[0];
    return rows.sym == QN_SYM_T && rows.n == 1;
}

bool qn_shard_cache(int64_t *heads, const sharding *s, int32_t value) {
    if (value < 0) return false;
    const qn_node *write = maker_of(s, value);
    if (write->op == QN_OP_INPUT && qn_shard_state(s, value) >= 0) {
        write = &s->graph->nodes[qn_rw_user(s->rw, value, 0)];
        value = write->out[0];
    }
    if (write->op != QN_OP_KV_WRITE || qn_shard_state(s, write->in[0]) < 0) return false;
    *heads = dim(s, write->in[0], 0);
    return qn_shard_has_rows(s, write->in[1]) && is_attended(s, value);
}

bool qn_shard_delta(shard_delta *out, const sharding *s, const qn_node *node) {
    const int64_t keys = dim(s, node->in[1], 1), each = dim(s, node->in[2], 1) / keys;
    const bool is_tiled = node->attrs.heads == QN_WORD_tiled;
    out->keys = qn_shard_even(1, 1, keys, 1);
    out->values = is_tiled ? qn_shard_even(1, each, keys, 1) : qn_shard_even(1, 1, keys, each);
    return qn_shard_state(s, node->in[5]) >= 0 && qn_shard_has_rows(s, node->in[0]);
}

// --- asking --------------------------------------------------------------------------------------

static void ask(sharding *s, int32_t value, const shard_cut *cut, bool is_hard) {
    const shard_cut *old = s->target[value];
    if (old && s->is_hard[value] && !is_hard) return;
    if (old && s->is_hard[value] == is_hard) {
        shard_cut both = *old;
        if (qn_shard_equal(old, cut) || !qn_shard_join(&both, cut)) return;
        s->target[value] = qn_shard_keep(s, &both);
        return;
    }
    s->target[value] = qn_shard_keep(s, cut);
    s->is_hard[value] = is_hard;
}

// By heads: `each` of them with a key head.
static void ask_heads(sharding *s, int32_t value, int64_t keys, int64_t each) {
    const shard_cut cut = qn_shard_even(1, 1, keys, each);
    ask(s, value, &cut, true);
}

// Results of what is cut by heads, and what is made of them.
static void ask_forth(sharding *s, const qn_node *node) {
    int64_t heads;
    shard_delta delta;
    shard_cut cut;
    if (node->op == QN_OP_ATTEND && qn_shard_cache(&heads, s, node->in[1]))
        ask_heads(s, node->out[0], heads, dim(s, node->in[0], 1) / heads);
    if (node->op == QN_OP_DELTA && qn_shard_delta(&delta, s, node))
        ask(s, node->out[0], &delta.values, true);
    for (int k = 0; k < qn_shard_inputs(node); k++) {
        const shard_cut *from = s->target[node->in[k]];
        if (!from || !qn_shard_forth(&cut, s, node, k, from)) continue;
        if (qn_shard_fits(&cut, s, node->out[0])) ask(s, node->out[0], &cut, true);
        return;
    }
}

static void ask_attention(sharding *s, const qn_node *node) {
    int64_t heads;
    const bool is_write = node->op == QN_OP_KV_WRITE;
    if (!qn_shard_cache(&heads, s, is_write ? node->out[0] : node->in[1])) return;
    if (is_write) {
        ask_heads(s, node->in[1], heads, 1);
        ask_heads(s, node->in[2], heads, 1);
    } else {
        ask_heads(s, node->in[0], heads, dim(s, node->in[0], 1) / heads);
    }
}

static void ask_delta(sharding *s, const qn_node *node) {
    shard_delta delta;
    if (!qn_shard_delta(&delta, s, node)) return;
    for (int k = 0; k < 5; k++) ask(s, node->in[k], k < 2 ? &delta.keys : &delta.values, true);
}

static void ask_matmul(sharding *s, const qn_node *node) {
    const qn_shape *x = &s->graph->values[node->in[0]].shape;
    const int last = x->n_dims - 1;
    shard_cut cut;
    if (last > 0 && qn_shard_units(&cut, s, last, x->dims[last].n, true))
        ask(s, node->in[0], &cut, false);
}

// What a node reads.
static void ask_back(sharding *s, const qn_node *node) {
    const shard_cut *from = s->target[node->out[0]];
    shard_cut cut;
    if (node->op == QN_OP_KV_WRITE || node->op == QN_OP_ATTEND) ask_attention(s, node);
    if (node->op == QN_OP_DELTA) ask_delta(s, node);
    if (node->op == QN_OP_MATMUL || node->op == QN_OP_GROUPED_MATMUL) ask_matmul(s, node);
    for (int k = 0; k < qn_shard_inputs(node) && from; k++) {
        if (qn_shard_back(&cut, s, node, k, from) && cut.axis >= 0)
            ask(s, node->in[k], &cut, s->is_hard[node->out[0]]);
    }
}

void qn_shard_find_targets(sharding *s) {
    for (size_t i = 0; i < s->graph->n_nodes && !s->rw->b.status; i++) {
        if (s->is_live[i]) ask_forth(s, &s->graph->nodes[i]);
    }
    for (size_t i = s->graph->n_nodes; i-- > 0 && !s->rw->b.status;) {
        if (s->is_live[i]) ask_back(s, &s->graph->nodes[i]);
    }
}
