#include "runtime/compile.h"

#include "backends/lower.h"
#include "core/file.h"
#include "core/log.h"
#include "core/mem.h"
#include "ir/plan_text.h"
#include "ir/text.h"
#include "runtime/disk.h"

#include <stdio.h>
#include <string.h>

// QN_DEBUG: what is told of a compilation.
enum { TELL_PLAN = 1, TELL_PASSES = 3, TELL_GRAPHS = 4, TELL_BUFFERS = 5 };

static const char *refuse(void *arg, const qn_graph *graph, const qn_node *node) {
    const qn_backend *backend = arg;
    if (backend->recipes[node->op].n_stages == 0) {
        const bool is_leaf = qn_op_get(node->op)->class_of == QN_CLASS_LEAF;
        const bool is_view = qn_op_get(node->op)->class_of == QN_CLASS_MOVE;
        if (!is_leaf && !is_view) return "no kernel";
    }
    return backend->refuse ? backend->refuse(graph, node) : NULL;
}

// Lines of a text, one log line each.
static void log_text(const qn_compile_opts *o, const char *text) {
    while (text && *text) {
        const char *end = strchr(text, '\n');
        const int n = (int)(end ? end - text : (ptrdiff_t)strlen(text));
        if (n > 0) qn_log(o->log, o->log_arg, QN_LOG_DEBUG, "%.*s", n, text);
        text = end ? end + 1 : NULL;
    }
}

// QN_DUMP: one file per pass.
static void dump_graph(const qn_compile_opts *o, const char *pass, const char *text, size_t size) {
    char name[64];
    snprintf(name, sizeof name, "after-%s.ir", pass);
    char *path = qn_path_join(o->switches->dump, name);
    FILE *f = path ? fopen(path, "we") : NULL;
    const bool is_written = f && fwrite(text, 1, size, f) == size;
    if ((f && fclose(f) != 0) || !is_written)
        qn_log(o->log, o->log_arg, QN_LOG_WARNING, "QN_DUMP: cannot write %s", path ? path : name);
    qn_free(path);
}

static void after_pass(void *arg, const char *pass, const qn_graph *graph) {
    const qn_compile_opts *o = arg;
    qn_buf text = {0};
    qn_graph_print(&text, graph);
    if (!text.failed && o->switches->dump) dump_graph(o, pass, text.data, text.size);
    if (!text.failed && o->switches->debug >= TELL_GRAPHS) {
        qn_log(o->log, o->log_arg, QN_LOG_DEBUG, "after %s:", pass);
        log_text(o, text.data);
    }
    qn_buf_deinit(&text);
}

qn_status qn_compile_mid(qn_graph *out, const qn_graph *graph, const qn_compile_opts *o,
                         qn_pass_report *report, qn_err *err) {
    const bool is_seen = o->switches->debug >= TELL_GRAPHS || o->switches->dump;
    qn_compile_opts copy = *o;
    const qn_pass_opts opts = {.numerics = o->numerics,
                               .skip = o->skip,
                               .verify = o->switches->verify,
                               .refuse = refuse,
                               .refuse_arg = (void *)(uintptr_t)o->backend,
                               .device = o->backend->level,
                               .after = is_seen ? after_pass : NULL,
                               .after_arg = &copy};
    return qn_passes_run(out, graph, &opts, report, err);
}

static void tell(const qn_compile_opts *o, const qn_plan *plan, const qn_pass_report *report) {
    qn_buf text = {0};
    if (o->switches->debug >= TELL_PLAN)
        qn_log(o->log, o->log_arg, QN_LOG_DEBUG, "plan %s on %s %s: %zu calls, %zu buffers",
               plan->name, o->backend->name, o->backend->level, plan->n_calls, plan->n_buffers);
    if (o->switches->debug >= TELL_PASSES) qn_pass_report_text(&text, report);
    if (o->switches->debug >= TELL_BUFFERS) qn_plan_print(&text, plan);
    if (!text.failed) log_text(o, text.data);
    qn_buf_deinit(&text);
}

// Whether the graph has a leaf of this name, type and shape.
static bool has_leaf(const qn_graph *graph, const qn_plan_leaf *leaf, qn_place place) {
    for (size_t i = 0; i < graph->n_nodes; i++) {
        const qn_node *node = &graph->nodes[i];
        const qn_value *value = &graph->values[node->out[0]];
        const bool is_op =
            place == QN_PLACE_PARAM ? node->op == QN_OP_PARAM : node->op == QN_OP_INPUT;
        if (is_op && value->type == leaf->type && strcmp(value->name, leaf->name) == 0)
            return qn_shape_equal(&value->shape, &leaf->shape);
    }
    return false;
}

// Whether an output is what a head found.
static bool is_best(const qn_plan *plan, const qn_plan_output *o) {
    for (size_t i = 0; i < plan->n_calls && strcmp(o->name, "best") == 0; i++) {
        const qn_plan_call *call = &plan->calls[i];
        if (call->op == QN_OP_HEAD && call->n_out == 2 && call->out[1].index == o->arg.index)
            return call->attrs.top >= 1 && call->attrs.top <= QN_HEAD_TOP && !o->arg.offset &&
                   o->arg.width == 2 + 2 * call->attrs.top;
    }
    return false;
}

// The same weights, inputs, state and outputs as the graph that was to be compiled; and the best
// scores, maybe.
static bool has_same_ends(const qn_plan *plan, const qn_graph *graph) {
    static const qn_place places[] = {QN_PLACE_PARAM, QN_PLACE_INPUT, QN_PLACE_CACHE,
                                      QN_PLACE_STATE};
    for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
        for (size_t i = 0; i < plan->n_leaves[places[p]]; i++) {
            if (!has_leaf(graph, &plan->leaves[places[p]][i], places[p])) return false;
        }
    }
    const size_t n = graph->n_outputs;
    const bool has_best = plan->n_outputs == n + 1 && is_best(plan, &plan->outputs[n]);
    if (plan->n_outputs != n + has_best) return false;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(plan->outputs[i].name, graph->outputs[i].name) != 0) return false;
    }
    return true;
}

// Bytes of a row that a call touches must lie inside the buffer's.
static bool is_inside(const qn_plan *plan, const qn_plan_arg *arg, const qn_backend *backend) {
    if (arg->place != QN_PLACE_BUFFER) return true;
    int64_t bytes = arg->form == QN_WORD_f32 ? (int64_t)sizeof(float) * arg->width
                                             : backend->row_bytes(arg->form, arg->width);
    return qn_i64_mul(&bytes, bytes, arg->parts) && qn_i64_add(&bytes, bytes, arg->offset) &&
           bytes <= plan->buffers[arg->index].row_bytes;
}

static bool are_inside(const qn_plan *plan, const qn_plan_call *call, const qn_backend *backend) {
    for (int i = 0; i < call->n_in; i++) {
        if (!is_inside(plan, &call->in[i], backend)) return false;
    }
    for (int i = 0; i < call->n_out; i++) {
        if (!is_inside(plan, &call->out[i], backend)) return false;
    }
    for (int i = 0; i < call->n_temp; i++) {
        if (!is_inside(plan, &call->temp[i], backend)) return false;
    }
    return true;
}

// A plan from the folder was made by this version for this graph, and its checksum is right. That it
// has the ends of the graph, and the kernels of the recipes, is checked all the same; the folder is
// still to be trusted as the program itself is.
static bool fits(const qn_plan *plan, const qn_graph *graph, const qn_backend *backend) {
    if (!has_same_ends(plan, graph)) return false;
    for (size_t i = 1; i < plan->n_buffers; i++) { // the memory plan takes them in order
        if (plan->buffers[i].first < plan->buffers[i - 1].first) return false;
    }
    for (size_t i = 0; i < plan->n_calls; i++) {
        const qn_plan_call *call = &plan->calls[i];
        const qn_recipe *recipe = &backend->recipes[call->op];
        if (call->stage < 0 || call->stage >= recipe->n_stages ||
            strcmp(call->kernel, backend->kernels[recipe->stages[call->stage]].name) != 0 ||
            call->n_in < qn_op_get(call->op)->min_in || call->n_out != qn_op_get(call->op)->n_out ||
            !are_inside(plan, call, backend))
            return false;
    }
    return strcmp(plan->backend, backend->name) == 0;
}

static qn_status compile_anew(qn_plan *out, const qn_graph *graph, const qn_compile_opts *o,
                              qn_err *err) {
    qn_pass_report report = {0};
    qn_graph mid = {0};
    QN_TRY(qn_compile_mid(&mid, graph, o, &report, err));
    const qn_status status = qn_lower(out, &mid, o->backend, err);
    qn_graph_deinit(&mid);
    if (!status) tell(o, out, &report);
    return status;
}

qn_status qn_compile(qn_plan *out, const qn_graph *graph, const qn_compile_opts *o, qn_err *err) {
    if (!o->cache_dir) return compile_anew(out, graph, o, err);
    char options[64];
    snprintf(options, sizeof options, "numerics %d, skip %llx", (int)o->numerics,
             (unsigned long long)o->skip);
    qn_buf text = {0};
    char *graph_text = NULL;
    qn_graph_print(&text, graph);
    QN_TRY(qn_buf_take(&graph_text, &text, err));
    const qn_disk disk = {.dir = o->cache_dir, .log = o->log, .log_arg = o->log_arg};
    const qn_plan_key key = {.graph = graph_text, .options = options, .level = o->backend->level};
    qn_plan plan = {0};
    qn_status status = QN_OK;
    if (qn_disk_load_plan(&plan, &disk, &key)) {
        if (fits(&plan, graph, o->backend)) {
            *out = plan;
            goto done;
        }
        qn_plan_deinit(&plan);
    }
    status = compile_anew(out, graph, o, err);
    if (!status) qn_disk_store_plan(&disk, &key, out);

done:
    qn_free(graph_text);
    return status;
}
