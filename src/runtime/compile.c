#include "runtime/compile.h"

#include "backends/lower.h"
#include "core/file.h"
#include "core/log.h"
#include "core/mem.h"
#include "ir/plan_text.h"
#include "ir/text.h"

#include <stdio.h>
#include <string.h>

// QN_DEBUG: what is logged of a compilation.
enum { TELL_PLAN = 1, TELL_PASSES = 3, TELL_GRAPHS = 4, TELL_BUFFERS = 5 };

static const char *refuse(void *arg, const qn_graph *graph, const qn_node *node) {
    const qn_backend *backend = arg;
    if (backend->recipes[node->op].n_stages == 0) {
        const bool is_leaf = qn_op_get(node->op)->class_of == QN_CLASS_LEAF;
        const bool is_view = qn_op_get(node->op)->class_of == QN_CLASS_MOVE;
        if (!is_leaf && !is_view) return "no kernel";
    }
    const bool packs = qn_op_get(node->op)->packs != 0;
    if (packs && !(backend->forms >> node->attrs.form & 1)) return "no kernel reads this form";
    return backend->refuse ? backend->refuse(graph, node) : NULL;
}

static qn_word layout(void *arg, qn_op op, int input) {
    const qn_backend *backend = arg;
    return backend->layout(op, input);
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
                               .fine_layers = o->fine_layers,
                               .rank = o->rank,
                               .n_ranks = o->n_ranks,
                               .skip = o->skip,
                               .verify = o->switches->verify,
                               .refuse = refuse,
                               .refuse_arg = (void *)(uintptr_t)o->backend,
                               .device = o->backend->name,
                               .layout = layout,
                               .layout_arg = (void *)(uintptr_t)o->backend,
                               .after = is_seen ? after_pass : NULL,
                               .after_arg = &copy};
    return qn_passes_run(out, graph, &opts, report, err);
}

static void tell(const qn_compile_opts *o, const qn_plan *plan, const qn_pass_report *report) {
    qn_buf text = {0};
    if (o->switches->debug >= TELL_PLAN)
        qn_log(o->log, o->log_arg, QN_LOG_DEBUG, "plan %s on %s: %zu calls, %zu buffers",
               plan->name, o->backend->name, plan->n_calls, plan->n_buffers);
    if (o->switches->debug >= TELL_PASSES) qn_pass_report_text(&text, report);
    if (o->switches->debug >= TELL_BUFFERS) qn_plan_print(&text, plan);
    if (!text.failed) log_text(o, text.data);
    qn_buf_deinit(&text);
}

// The text of a plan is written where a folder is filled.
static qn_status keep(const qn_plan *plan, const qn_graph *graph, const qn_compile_opts *o,
                      qn_err *err) {
    char options[128], *graph_text = NULL;
    qn_buf text = {0};
    snprintf(options, sizeof options, "numerics %d, fine %lld, skip %llx, forms %x",
             (int)o->numerics, (long long)o->fine_layers, (unsigned long long)o->skip,
             o->backend->forms);
    qn_graph_print(&text, graph);
    QN_TRY(qn_buf_take(&graph_text, &text, err));
    const qn_plan_key key = {.graph = graph_text, .options = options, .device = o->backend->name};
    const qn_status status = qn_disk_keep_plan(o->disk, &key, plan, err);
    qn_free(graph_text);
    return status;
}

qn_status qn_compile(qn_plan *out, const qn_graph *graph, const qn_compile_opts *o, qn_err *err) {
    qn_pass_report report = {0};
    qn_graph mid = {0};
    qn_plan plan = {0};
    QN_TRY(qn_compile_mid(&mid, graph, o, &report, err));
    qn_status status = qn_lower(&plan, &mid, o->backend, err);
    qn_graph_deinit(&mid);
    if (status) return status;
    // The folder is of whole models, and no rank's.
    if (o->disk && o->disk->must_write && o->n_ranks < 2) status = keep(&plan, graph, o, err);
    if (status) {
        qn_plan_deinit(&plan);
        return status;
    }
    tell(o, &plan, &report);
    *out = plan;
    return QN_OK;
}
