#include "runtime/tally.h"

#include "core/log.h"

// Pages of the KV cache that the rows of a step see.
static int64_t cache_bytes(const qn_step *step, const qn_plan_call *call,
                           const qn_cache_view *view) {
    int64_t bytes = 0;
    for (int64_t b = 0; b < step->n_segs; b++) {
        const int64_t past = step->seg_past[b], window = call->attrs.window;
        const int64_t seen = window > 0 && window < past ? window : past;
        bytes += (seen + QN_PAGE_ROWS - 1) / QN_PAGE_ROWS * view->layer_bytes;
    }
    return bytes;
}

// Whether a call reads this input's weight or cache.
static bool reads(const qn_recipe *recipe, const qn_plan_call *call, int input) {
    return recipe->n_stages == 1 || recipe->reads[call->stage] >> input & 1;
}

// The share of a weight's rows that is read: an embedding's looked up ones, the chosen experts.
static double share_read(const qn_plan_call *call, int64_t rows, const qn_plan_leaf *w) {
    const bool is_embed = call->op == QN_OP_EMBED;
    const int64_t all = w->shape.dims[0].n; // of the table, or experts
    const int64_t top = call->op == QN_OP_EXPERTS ? call->attrs.top : call->in[2].width;
    const int64_t wanted = is_embed ? rows : rows * top;
    const bool is_part = is_embed || call->op == QN_OP_EXPERTS || call->op == QN_OP_GROUPED_MATMUL;
    return is_part && wanted < all ? (double)wanted / (double)all : 1.0;
}

// Bytes of what a call reads as a weight; 0 for norms and other small ones.
static double weight_bytes(const qn_runner *r, const qn_runner_stage *s, const qn_plan_call *call,
                           int input) {
    const qn_plan *plan = qn_runner_plan(s);
    const qn_device *device = s->stage->device;
    const int64_t symbols[QN_SYM_COUNT] = {1, r->step.n_rows, r->step.n_segs, r->step.n_out};
    int64_t bytes;
    if (call->in[input].place != QN_PLACE_PARAM || qn_op_get(call->op)->kinds[input] != 'w')
        return 0;
    const qn_plan_leaf *leaf = &plan->leaves[QN_PLACE_PARAM][call->in[input].index];
    if (device->kind->weight_bytes(&bytes, device, leaf, NULL)) return 0;
    return (double)bytes * share_read(call, call->rows.n * symbols[call->rows.sym], leaf);
}

int64_t qn_call_bytes(const qn_runner *r, const qn_runner_stage *s, const qn_plan_call *call) {
    const qn_op_info *info = qn_op_get(call->op);
    const qn_recipe *recipe = &s->stage->device->backend->recipes[call->op];
    const bool has_window = info->attrs >> QN_ATTR_window & 1; // it looks back
    double bytes = 0;
    for (int k = 0; k < call->n_in; k++) {
        if (!reads(recipe, call, k)) continue;
        bytes += weight_bytes(r, s, call, k);
        if (info->kinds[k] == 'c' && has_window)
            bytes +=
                (double)cache_bytes(&r->step, call, s->leaves[s->phase].caches[call->in[k].index]);
    }
    return (int64_t)bytes;
}

void qn_tally_add(const qn_runner *r, qn_runner_stage *s) {
    const qn_plan *plan = qn_runner_plan(s);
    for (size_t i = 0; i < plan->n_calls; i++) {
        const qn_plan_call *call = &plan->calls[i];
        int64_t begin, end;
        if (!s->program->device->kind->times(s->program, i, &begin, &end)) continue;
        qn_kernel_sums *sums =
            &s->sums[s->stage->device->backend->recipes[call->op].stages[call->stage]];
        sums->calls++;
        sums->ns += end - begin;
        sums->bytes += qn_call_bytes(r, s, call);
    }
}

void qn_tally_tell(const qn_runner *r, qn_runner_stage *s) {
    const qn_backend *backend = s->stage->device->backend;
    const qn_engine_opts *o = &r->engine->opts;
    int64_t total = 0;
    for (int i = 0; i < backend->n_kernels; i++) total += s->sums[i].ns;
    for (;;) { // the largest that is left, until nothing is
        qn_kernel_sums *max = &s->sums[0];
        for (int i = 1; i < backend->n_kernels; i++) {
            if (s->sums[i].ns > max->ns) max = &s->sums[i];
        }
        if (max->ns == 0) return;
        qn_log(o->log, o->log_arg, QN_LOG_DEBUG, "%-18s %8lld calls %10.3f ms %5.1f %% %8.2f GB/s",
               backend->kernels[max - s->sums], (long long)max->calls, (double)max->ns * 1e-6,
               100.0 * (double)max->ns / (double)total, (double)max->bytes / (double)max->ns);
        max->ns = 0;
    }
}
