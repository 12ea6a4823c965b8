// The passes, in order: the table of contents of the compiler.
#include "passes/rewrite.h"

#include "core/mem.h"
#include "ir/share.h"

#include <string.h>

static const struct {
    const char *name;
    qn_pass_fn *run;
    const char *meaning;
} passes[] = {
    {"shard", qn_pass_shard, "of several ranks, the share of this one"},
    {"fold", qn_pass_fold, "constants are computed, ops that change nothing go"},
    {"cse", qn_pass_cse, "what is computed twice is computed once"},
    {"dce", qn_pass_dce, "values that nothing reads are removed"},
    {"decompose", qn_pass_decompose, "rope becomes angles, shared by all layers, and rotate"},
    {"quantize", qn_pass_quantize, "activations are rounded before integer weights"},
    {"cse_again", qn_pass_cse, "angles and rounded activations are made once"},
    {"gather_packed", qn_pass_gather_packed, "what ranks gather is rounded before"},
    {"fuse_norm", qn_pass_fuse_norm, "rms_norm + quantize -> norm_quantize"},
    {"fuse_residual", qn_pass_fuse_residual, "add + rms_norm or norm_quantize -> add_norm"},
    {"fuse_gate", qn_pass_fuse_gate, "two matmuls, activation, mul -> gated"},
    {"fuse_head", qn_pass_fuse_head, "matmul + softcap of the logits -> head, with the top logits"},
    {"fuse_project", qn_pass_fuse_project, "matmuls of the same value -> project"},
    {"fuse_rope", qn_pass_fuse_rope, "rms_norm of heads + rotate -> rotate with a norm"},
    {"fuse_write", qn_pass_fuse_write, "rotate + kv_write -> rotate_write"},
    {"fuse_attention", qn_pass_fuse_attention, "rotate + rotate_write + attend -> attention"},
    {"fuse_experts", qn_pass_fuse_experts, "route ... combine -> experts"},
    {"place", qn_pass_place, "what the device refuses is taken apart again, or refused"},
    {"dce_again", qn_pass_dce, "angles that are no longer read are removed"},
    {"layout", qn_pass_layout, "weights get the layout that the device reads"},
    {"schedule", qn_pass_schedule, "nodes of a layer in an order that needs less memory"},
};
enum { N_PASSES = sizeof passes / sizeof passes[0] };
_Static_assert(sizeof passes / sizeof passes[0] <= (size_t)QN_PASSES_MAX,
               "a report has no room for that many passes");

const char *qn_pass_name(size_t i) { return i < N_PASSES ? passes[i].name : NULL; }
const char *qn_pass_meaning(size_t i) { return i < N_PASSES ? passes[i].meaning : NULL; }
bool qn_pass_is_needed(size_t i) {
    return i < N_PASSES && (passes[i].run == qn_pass_layout || passes[i].run == qn_pass_shard);
}

// A pass of this name, `size` bytes long; N_PASSES if there is none.
static size_t find_pass(const char *name, size_t size) {
    size_t i = 0;
    while (i < N_PASSES &&
           (strlen(passes[i].name) != size || memcmp(passes[i].name, name, size) != 0))
        i++;
    return i;
}

static qn_status fail_unknown(const char *name, size_t size, qn_err *err) {
    qn_buf list = {0};
    for (size_t i = 0; i < N_PASSES; i++)
        qn_buf_printf(&list, "%s%s", i ? ", " : "", passes[i].name);
    const qn_status status = QN_FAIL(err, ARGUMENT, "no pass '%.*s'; there are %s",
                                     size > 40 ? 40 : (int)size, name, list.data ? list.data : "");
    qn_buf_deinit(&list);
    return status;
}

qn_status qn_passes_parse_skip(uint64_t *out, const char *comma_list, qn_err *err) {
    uint64_t skip = 0;
    const char *at = comma_list ? comma_list : "";
    while (*at) {
        const size_t size = strcspn(at, ","), pass = find_pass(at, size);
        if (pass == N_PASSES) return fail_unknown(at, size, err);
        if (qn_pass_is_needed(pass))
            return QN_FAIL(err, ARGUMENT, "pass '%s' cannot be left out", passes[pass].name);
        skip |= UINT64_C(1) << pass;
        at += size;
        if (*at == ',') at++;
    }
    *out = skip;
    return QN_OK;
}

// --- a copy to work on ---

static const char *copy_text(qn_graph *out, const char *text) {
    return text[0] ? qn_arena_strdup(&out->arena, text, strlen(text)) : "";
}

static const float *copy_data(qn_graph *out, const qn_node *node) {
    const qn_shape *shape = &out->values[node->out[0]].shape;
    size_t n = 1;
    for (int d = 0; d < shape->n_dims; d++) {
        if (!qn_size_mul(&n, n, (size_t)shape->dims[d].n)) return NULL;
    }
    float *data = qn_arena_alloc(&out->arena, n, sizeof *data);
    if (data) memcpy(data, node->data, n * sizeof *data);
    return data;
}

static bool copy_share(qn_graph *out, const qn_share **share) {
    return qn_share_dup(share, &out->arena, *share);
}

static bool copy_names(qn_graph *out) {
    bool ok = (out->name = copy_text(out, out->name)) != NULL;
    for (size_t i = 0; i < out->n_values; i++)
        ok = ok && (out->values[i].name = copy_text(out, out->values[i].name)) != NULL;
    for (size_t i = 0; i < out->n_outputs; i++)
        ok = ok && (out->outputs[i].name = copy_text(out, out->outputs[i].name)) != NULL &&
             copy_share(out, &out->outputs[i].share);
    for (size_t i = 0; i < out->n_nodes; i++) {
        qn_node *node = &out->nodes[i];
        ok = ok && copy_share(out, &node->share);
        if (node->op == QN_OP_CONST) ok = ok && (node->data = copy_data(out, node)) != NULL;
    }
    return ok;
}

// All of `in`; nothing is shared. Release *out also after a failure.
static qn_status copy_graph(qn_graph *out, const qn_graph *in, qn_err *err) {
    *out = (qn_graph){.name = in->name,
                      .n_values = in->n_values,
                      .n_nodes = in->n_nodes,
                      .n_outputs = in->n_outputs,
                      .cap_values = in->n_values,
                      .cap_nodes = in->n_nodes,
                      .cap_outputs = in->n_outputs};
    out->values = qn_alloc(in->n_values, sizeof *out->values);
    out->nodes = qn_alloc(in->n_nodes, sizeof *out->nodes);
    out->outputs = qn_alloc(in->n_outputs, sizeof *out->outputs);
    if (!out->values || !out->nodes || !out->outputs) return QN_NOMEM(err, "a copy of the graph");
    if (in->n_values) memcpy(out->values, in->values, in->n_values * sizeof *out->values);
    if (in->n_nodes) memcpy(out->nodes, in->nodes, in->n_nodes * sizeof *out->nodes);
    if (in->n_outputs) memcpy(out->outputs, in->outputs, in->n_outputs * sizeof *out->outputs);
    return copy_names(out) ? QN_OK : QN_NOMEM(err, "a copy of the graph");
}

// --- running ---

static qn_status run_pass(qn_graph *graph, const qn_pass_opts *opts, qn_pass_report *report,
                          size_t i, qn_err *err) {
    qn_rewrite rw;
    qn_rw_begin(&rw, graph, opts, report, (int)i);
    if (!rw.b.status) passes[i].run(&rw);
    report->ran[i] = true;
    qn_status status = qn_rw_end(&rw, err);
    if (!status && opts->verify) {
        status = qn_graph_verify(graph, err);
        if (status) qn_err_prefix(err, status, "after pass %s", passes[i].name);
    }
    if (!status && opts->after) opts->after(opts->after_arg, passes[i].name, graph);
    return status;
}

qn_status qn_passes_run(qn_graph *out, const qn_graph *in, const qn_pass_opts *opts,
                        qn_pass_report *report, qn_err *err) {
    static const qn_pass_opts plain = {0};
    qn_pass_report own;
    qn_graph graph;
    if (!opts) opts = &plain;
    if (!report) report = &own;
    *report = (qn_pass_report){0};
    if (opts->rank < 0 || opts->n_ranks > QN_RANKS_MAX || opts->rank > qn_max(0, opts->n_ranks - 1))
        return QN_FAIL(err, ARGUMENT, "rank %d of %d, at most %d", opts->rank, opts->n_ranks,
                       QN_RANKS_MAX);
    qn_status status = copy_graph(&graph, in, err);
    for (size_t i = 0; i < N_PASSES && !status; i++) {
        if (!(opts->skip >> i & 1u)) status = run_pass(&graph, opts, report, i, err);
    }
    if (status) {
        qn_graph_deinit(&graph);
        return status;
    }
    for (size_t i = 0; i < graph.n_nodes; i++) report->native[graph.nodes[i].op]++;
    *out = graph;
    return QN_OK;
}
