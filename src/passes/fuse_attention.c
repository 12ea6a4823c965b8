// rotate of the queries, rotate_write, attend -> attention. The written cache stays, as the second
// result.
#include "passes/rewrite.h"

static int32_t input(const qn_node *node, int k) {
    return k < node->n_in ? node->in[k] : QN_NO_VALUE;
}

// One epsilon serves both norms; where only one has a norm, it is that one's.
static bool find_eps(float *eps, const qn_node *rotate, const qn_node *write) {
    const bool has_q = input(rotate, 2) >= 0, has_k = input(write, 5) >= 0;
    *eps = has_q ? rotate->attrs.eps : has_k ? write->attrs.eps : 0;
    return !has_q || !has_k || rotate->attrs.eps == write->attrs.eps;
}

static const char *find_problem(const qn_rewrite *rw, const qn_node *attend, const qn_node *rotate,
                                const qn_node *write) {
    float eps;
    if (attend->attrs.rule != QN_WORD_causal && attend->attrs.rule != QN_WORD_after_first)
        return "the rule is not causal";
    if (input(attend, 4) >= 0) return "rows are allowed one by one";
    if (!qn_rw_is_inner(rw, rotate->out[0])) return "the rotated queries are read by others too";
    if (qn_rw_n_users(rw, write->out[0]) != 1) return "the cache is read by others too";
    if (rotate->in[1] != write->in[4] || rotate->attrs.rotate != write->attrs.rotate ||
        rotate->attrs.pairs != write->attrs.pairs)
        return "queries and keys are rotated in different ways";
    if (attend->in[2] != write->in[3]) return "two step tables";
    return find_eps(&eps, rotate, write) ? NULL : "the norms have different epsilons";
}

void qn_pass_fuse_attention(qn_rewrite *rw) {
    for (size_t i = 0; i < rw->n_nodes && !rw->b.status; i++) {
        const qn_node attend = rw->graph->nodes[i];
        if (attend.op != QN_OP_ATTEND) continue;
        const int32_t at_q = qn_rw_made_by(rw, attend.in[0], QN_OP_ROTATE);
        const int32_t at_k = qn_rw_made_by(rw, attend.in[1], QN_OP_ROTATE_WRITE);
        if (at_q < 0 || at_k < 0) continue;
        const qn_node rotate = rw->graph->nodes[at_q], write = rw->graph->nodes[at_k];
        const char *problem = find_problem(rw, &attend, &rotate, &write);
        if (problem) {
            qn_rw_missed(rw, attend.layer, problem);
            continue;
        }
        qn_attrs attrs = attend.attrs;
        attrs.rotate = rotate.attrs.rotate;
        attrs.pairs = rotate.attrs.pairs;
        find_eps(&attrs.eps, &rotate, &write);
        const int32_t in[] = {rotate.in[0],      write.in[1],      write.in[2],
                              write.in[0],       rotate.in[1],     attend.in[2],
                              input(&rotate, 2), input(&write, 5), input(&attend, 3)};
        int n_in = 9;
        while (n_in > 6 && in[n_in - 1] < 0) n_in--;
        qn_rw_absorb(rw, at_q);
        qn_rw_absorb(rw, at_k);
        qn_rw_set(rw, (int32_t)i, QN_OP_ATTENTION, in, n_in,
                  (int32_t[]){attend.out[0], write.out[0]}, &attrs);
        qn_rw_fired(rw);
    }
}
