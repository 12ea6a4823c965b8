#include "runtime/tally.h"

#include "core/log.h"

static int64_t cache_bytes(const qn_task *task) {
    int64_t bytes = 0;
    for (int64_t b = 0; b < task->step->n_segs; b++) {
        const int64_t pages = (task->step->seg_past[b] + QN_PAGE_ROWS - 1) / QN_PAGE_ROWS;
        bytes += pages * task->cache->layer_bytes;
    }
    return bytes;
}

int64_t qn_call_bytes(const qn_plan_call *call, const qn_task *task) {
    int64_t bytes = 0;
    for (int k = 0; k < QN_MAX_IN; k++) {
        const qn_packed *w = task->in[k].packed;
        if (!w) continue;
        const int64_t rows = w->n_matrices * w->n_out; // an embedding reads only those it looks up
        bytes +=
            call->op == QN_OP_EMBED ? qn_packed_bytes(w) / rows * task->rows : qn_packed_bytes(w);
    }
    const bool is_attending =
        call->op == QN_OP_ATTEND || (call->op == QN_OP_ATTENTION && call->stage > 0);
    return is_attending ? bytes + cache_bytes(task) : bytes;
}

void qn_tally_add(qn_runner *r, const qn_phase *p) {
    for (size_t i = 0; i < p->plan->n_calls; i++) {
        if (p->bound->pieces[i] == 0) continue;
        qn_kernel_sums *sums = &r->sums[p->kernels[i] - r->engine->backend->kernels];
        sums->calls++;
        sums->ns += r->walk.times[i].end - r->walk.times[i].begin;
        sums->bytes += qn_call_bytes(&p->plan->calls[i], &p->tasks[i]);
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
