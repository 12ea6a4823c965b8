// Two to four matmuls of the same value -> project, and slices of it. Slices of rows cost nothing:
// the plan makes views of them.
#include "passes/rewrite.h"

enum { MAX = QN_MAX_IN < 5 ? QN_MAX_IN - 1 : 4 }; // weights of one project

// A matmul by a weight of the model, in the layer of `like` (NULL: in any).
static bool is_member(const qn_rewrite *rw, int32_t i, const qn_node *like) {
    const qn_node *node = &rw->graph->nodes[i];
    if (!qn_rw_is_live(rw, (size_t)i) || node->op != QN_OP_MATMUL) return false;
    if (qn_rw_made_by(rw, node->in[1], QN_OP_PARAM) < 0) return false;
    return !like || (node->layer == like->layer && node->in[0] == like->in[0]);
}

static void fuse(qn_rewrite *rw, const int32_t *members, int n) {
    int32_t in[1 + MAX];
    const qn_node first = rw->graph->nodes[members[0]];
    const int axis = rw->graph->values[first.in[0]].shape.n_dims - 1;
    in[0] = first.in[0];
    for (int m = 0; m < n; m++) in[1 + m] = rw->graph->nodes[members[m]].in[1];
    const int32_t all = qn_rw_add(rw, first.layer, QN_OP_PROJECT, in, 1 + n, NULL);
    qn_attrs slice = {.axis = axis};
    for (int m = 0; m < n && !rw->b.status; m++) {
        slice.length = rw->graph->values[in[1 + m]].shape.dims[0].n;
        qn_rw_set(rw, members[m], QN_OP_NARROW, &all, 1, NULL, &slice);
        slice.start += slice.length;
    }
    qn_rw_fired(rw);
}

void qn_pass_fuse_project(qn_rewrite *rw) {
    for (size_t i = 0; i < rw->n_nodes && !rw->b.status; i++) {
        if (!is_member(rw, (int32_t)i, NULL)) continue;
        const qn_node first = rw->graph->nodes[i];
        int32_t members[MAX];
        int n = 0;
        for (int32_t u = 0; u < qn_rw_n_users(rw, first.in[0]) && n < MAX; u++) {
            const int32_t user = qn_rw_user(rw, first.in[0], u);
            if (is_member(rw, user, &first)) members[n++] = user;
        }
        if (n > 1) fuse(rw, members, n);
    }
}
