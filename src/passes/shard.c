// One rank's share of a model. Matrices are cut by rows, so that every output has all of its sum on
// one rank: no sum is split, and n ranks compute what one does, to the bit. Attention goes by kv
// heads, delta rules by key heads with the channels of their convolution, the embedding and the
// logits by vocabulary, everything else by tiles of 16 outputs. What is computed of each index of
// an axis alone stays on its rank; every other reader gets ALL_GATHER of it.
//
// The pass is the first: it sees what the family wrote. Nodes that nothing needs are dropped here,
// while this can be seen of the whole graph, as what ranks gather is never dropped later.
#include "passes/shard_int.h"

#include "core/mem.h"

static qn_status take_lists(sharding *s, qn_err *err) {
    const size_t n_values = s->graph->n_values, n_nodes = s->graph->n_nodes;
    s->is_live = qn_alloc(n_nodes, sizeof *s->is_live);
    s->target = qn_alloc(n_values, sizeof *s->target);
    s->is_hard = qn_alloc(n_values, sizeof *s->is_hard);
    s->have = qn_alloc(n_values, sizeof *s->have);
    s->is_fixed = qn_alloc(n_values, sizeof *s->is_fixed);
    s->need = qn_alloc(n_nodes, QN_MAX_IN * sizeof *s->need);
    s->is_sure = qn_alloc(n_nodes, sizeof *s->is_sure);
    s->own = qn_alloc(n_values, sizeof *s->own);
    s->whole = qn_alloc(n_values, sizeof *s->whole);
    const bool is_there = s->is_live && s->target && s->is_hard && s->have && s->is_fixed &&
                          s->need && s->is_sure && s->own && s->whole;
    return is_there ? QN_OK : QN_NOMEM(err, "shares");
}

static void free_lists(sharding *s) {
    qn_free(s->is_live);
    qn_free(s->target);
    qn_free(s->is_hard);
    qn_free(s->have);
    qn_free(s->is_fixed);
    qn_free(s->need);
    qn_free(s->is_sure);
    qn_free(s->own);
    qn_free(s->whole);
    qn_arena_deinit(&s->arena);
    qn_graph_deinit(&s->out);
}

void qn_pass_shard(qn_rewrite *rw) {
    sharding s = {
        .rw = rw, .graph = rw->graph, .rank = rw->opts->rank, .n_ranks = rw->opts->n_ranks};
    if (s.n_ranks < 2) return;
    rw->b.status = take_lists(&s, &rw->b.err);
    if (!rw->b.status) {
        qn_rw_find_needed(s.is_live, s.graph);
        qn_shard_find_targets(&s);
    }
    if (!rw->b.status) qn_shard_decide(&s);
    if (!rw->b.status) {
        qn_shard_find_sure(&s);
        qn_shard_build(&s);
    }
    if (!rw->b.status) rw->b.status = qn_build_finish(&s.b, &rw->b.err);
    if (!rw->b.status) qn_rw_replace(rw, &s.out);
    free_lists(&s);
}
