#include "runtime/tally.h"

#include "core/log.h"

// Pages of keys and values that the rows of a step see.
static int64_t cache_bytes(const qn_task *task) {
    int64_t bytes = 0;
    for (int64_t b = 0; b < task->step->n_segs; b++) {
        const int64_t past = task->step->seg_past[b], window = task->attrs->window;
        const int64_t seen = window > 0 && window < past ? window : past;
        bytes += (seen + QN_PAGE_ROWS - 1) / QN_PAGE_ROWS * task->cache->layer_bytes;
    }
    return bytes;
}

// Whether a call reads this input's weight or cache.
static bool reads(const qn_recipe *recipe, const qn_plan_call *call, int input) {
    return recipe->n_stages == 1 || recipe->reads[call->stage] >> input & 1;
}

// The share of a weight's rows that is read: an embedding's looked up ones, the chosen experts.
static double share_read(const qn_plan_call *call, const qn_task *task, const qn_packed *w) {
    const bool is_embed = call->op == QN_OP_EMBED;
    const int64_t all = is_embed ? w->n_out : w->n_matrices;
    const int64_t top = call->op == QN_OP_EXPERTS ? call->attrs.top : task->in[2].width;
    const int64_t wanted = is_embed ? task->rows : task->rows * top;
    const bool is_part = is_embed || call->op == QN_OP_EXPERTS || call->op == QN_OP_GROUPED_MATMUL;
    return is_part && wanted < all ? (double)wanted / (double)all : 1.0;
}

int64_t qn_call_bytes(const qn_backend *backend, const qn_plan_call *call, const qn_task *task) {
    const qn_op_info *info = qn_op_get(call->op);
    const qn_recipe *recipe = &backend->recipes[call->op];
    const bool has_window = info->attrs >> QN_ATTR_window & 1; // it looks back
    double bytes = 0;
    for (int k = 0; k < call->n_in; k++) {
        const qn_packed *w = task->in[k].packed;
        if (!reads(recipe, call, k)) continue;
        if (w) bytes += (double)qn_packed_bytes(w) * share_read(call, task, w);
        if (info->kinds[k] == 'c' && has_window) bytes += (double)cache_bytes(task);
    }
    return (int64_t)bytes;
}

void qn_tally_add(qn_runner *r) {
    const qn_plan *plan = qn_executor_plan_of(r->executor);
    for (size_t i = 0; i < plan->n_calls; i++) {
        int64_t begin, end;
        if (!qn_executor_times(r->executor, i, &begin, &end)) continue;
        const ptrdiff_t kernel = qn_executor_kernel(r->executor, i) - r->engine->backend->kernels;
        r->sums[kernel].calls++;
        r->sums[kernel].ns += end - begin;
        r->sums[kernel].bytes +=
            qn_call_bytes(r->engine->backend, &plan->calls[i], qn_executor_task(r->executor, i));
    }
}

void qn_tally_tell(qn_runner *r) {
    const qn_backend *backend = r->engine->backend;
    const qn_engine_opts *o = &r->engine->opts;
    int64_t total = 0;
    for (int i = 0; i < backend->n_kernels; i++) total += r->sums[i].ns;
    for (;;) { // the largest that is left, until nothing is
        qn_kernel_sums *most = &r->sums[0];
        for (int i = 1; i < backend->n_kernels; i++) {
            if (r->sums[i].ns > most->ns) most = &r->sums[i];
        }
        if (most->ns == 0) return;
        qn_log(o->log, o->log_arg, QN_LOG_DEBUG, "%-18s %8lld calls %10.3f ms %5.1f %% %8.2f GB/s",
               backend->kernels[most - r->sums].name, (long long)most->calls,
               (double)most->ns * 1e-6, 100.0 * (double)most->ns / (double)total,
               (double)most->bytes / (double)most->ns);
        most->ns = 0;
    }
}
