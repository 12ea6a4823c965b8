// Who reads what on every rank. A node vanishes where a rank has nothing of its result, and others
// go where only such nodes read them. What depends on the readers of a gathered value may be done
// only where these are the same on every rank.
#include "passes/shard_int.h"

static bool is_everywhere(const sharding *s, const qn_node *node) {
    const shard_cut *cut = s->have[node->out[0]];
    return !cut || !qn_shard_has_gaps(cut, s);
}

// How a node reads a value, by any of its inputs: all of it, where it has a part.
static bool reads_all(const sharding *s, int32_t i, int32_t value) {
    const qn_node *node = &s->graph->nodes[i];
    for (int k = 0; k < node->n_in; k++) {
        const shard_cut *need = s->need[(size_t)i * QN_MAX_IN + (size_t)k];
        if (node->in[k] == value && !qn_shard_equal(need, s->have[value])) return true;
    }
    return false;
}

static bool is_sure_reader(const sharding *s, int32_t i) {
    return s->is_sure[i] && is_everywhere(s, &s->graph->nodes[i]);
}

// A result that is kept, that is gathered, or that is read everywhere.
static bool is_result_sure(const sharding *s, int32_t value) {
    if (s->graph->values[value].kind != QN_TENSOR || qn_rw_is_kept(s->rw, value)) return true;
    for (int32_t u = 0; u < qn_rw_n_users(s->rw, value); u++) {
        const int32_t user = qn_rw_user(s->rw, value, u);
        if (!s->is_live[user]) continue;
        if (is_sure_reader(s, user) || (s->have[value] && reads_all(s, user, value))) return true;
    }
    return false;
}

void qn_shard_find_sure(sharding *s) {
    for (size_t i = s->graph->n_nodes; i-- > 0;) {
        const qn_node *node = &s->graph->nodes[i];
        for (int o = 0; o < node->n_out && s->is_live[i]; o++)
            s->is_sure[i] = s->is_sure[i] || is_result_sure(s, node->out[o]);
    }
}

bool qn_shard_is_alike(const sharding *s, int32_t value) {
    for (int32_t u = 0; u < qn_rw_n_users(s->rw, value); u++) {
        const int32_t user = qn_rw_user(s->rw, value, u);
        if (s->is_live[user] && reads_all(s, user, value) && !is_sure_reader(s, user)) return false;
    }
    return true;
}
