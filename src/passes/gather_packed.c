// What ranks gather is rounded before, not after: fewer bytes between them, and no rank rounds what
// another one has. Only where each rank's share is whole blocks, and nothing else reads the floats:
// the same on every rank, so that all of them send the same.
#include "passes/rewrite.h"

#include "ir/share.h"

// Why a value is not gathered packed; NULL if it can be. *form: as all its readers round it.
static const char *find_problem(qn_word *form, const qn_rewrite *rw, const qn_node *gather) {
    const int32_t value = gather->out[0], n = qn_rw_n_users(rw, value);
    *form = QN_WORD_f32;
    for (int32_t u = 0; u < n; u++) {
        const qn_node *user = &rw->graph->nodes[qn_rw_user(rw, value, u)];
        if (user->op != QN_OP_QUANTIZE || (u && user->attrs.form != *form))
            return "it is read in other ways, too";
        *form = user->attrs.form;
    }
    if (n == 0 || qn_rw_is_kept(rw, value)) return "it is read as floats";
    if (gather->attrs.unit % QN_GATHER_BLOCK) return "shares are not whole blocks";
    return gather->attrs.alike ? NULL : "its readers differ between ranks";
}

// Whether something rounds what is gathered.
static bool is_rounded(const qn_rewrite *rw, const qn_node *gather) {
    for (int32_t u = 0; u < qn_rw_n_users(rw, gather->out[0]); u++) {
        const qn_node *user = &rw->graph->nodes[qn_rw_user(rw, gather->out[0], u)];
        if (user->op == QN_OP_QUANTIZE) return true;
    }
    return false;
}

static void pack(qn_rewrite *rw, int32_t i, qn_word form) {
    const qn_node gather = rw->graph->nodes[i];
    qn_attrs attrs = gather.attrs;
    int32_t x = gather.in[0];
    attrs.form = form;
    if (x >= 0) x = qn_rw_add(rw, gather.layer, QN_OP_QUANTIZE, &x, 1, &(qn_attrs){.form = form});
    for (int32_t u = 0; u < qn_rw_n_users(rw, gather.out[0]); u++) {
        const int32_t user = qn_rw_user(rw, gather.out[0], u);
        qn_rw_redirect(rw, rw->graph->nodes[user].out[0], gather.out[0]);
        qn_rw_absorb(rw, user);
    }
    qn_rw_set(rw, i, QN_OP_ALL_GATHER, &x, 1, NULL, &attrs);
    qn_rw_fired(rw);
}

void qn_pass_gather_packed(qn_rewrite *rw) {
    for (size_t i = 0; i < rw->n_nodes && !rw->b.status; i++) {
        const qn_node gather = rw->graph->nodes[i];
        const bool has_ids = gather.n_in > 1 && gather.in[1] >= 0;
        qn_word form;
        if (!qn_node_gathers(&gather) || has_ids || !is_rounded(rw, &gather)) continue;
        const char *problem = find_problem(&form, rw, &gather);
        if (problem)
            qn_rw_missed(rw, gather.layer, problem);
        else
            pack(rw, (int32_t)i, form);
    }
}
