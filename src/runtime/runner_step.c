// One step of a runner.
#include "runtime/check.h"
#include "runtime/runner_int.h"
#include "runtime/tally.h"

#include <string.h>

static qn_status check_sizes(const qn_runner *r, const qn_segment *segments, int64_t n,
                             qn_err *err) {
    int64_t rows = 0, outs = 0;
    for (int64_t b = 0; b < n; b++) {
        if (segments[b].rows < 1 || segments[b].outs < 0 || segments[b].outs > segments[b].rows ||
            segments[b].uncertain < 0 || segments[b].uncertain > segments[b].rows ||
            segments[b].top < 0 || segments[b].top > QN_HEAD_TOP)
            return QN_FAIL(err, ARGUMENT,
                           "segment %lld: %lld rows, %lld wanted, %lld uncertain, %lld best",
                           (long long)b, (long long)segments[b].rows, (long long)segments[b].outs,
                           (long long)segments[b].uncertain, (long long)segments[b].top);
        rows += segments[b].rows;
        outs += segments[b].outs;
    }
    if (n < 1 || n > r->opts.segs || rows > r->opts.rows || outs > r->opts.outs)
        return QN_FAIL(err, LIMIT,
                       "a step of %lld segments, %lld rows, %lld wanted; the most is %lld, %lld, "
                       "%lld",
                       (long long)n, (long long)rows, (long long)outs, (long long)r->opts.segs,
                       (long long)r->opts.rows, (long long)r->opts.outs);
    return QN_OK;
}

static qn_status prepare(const qn_segment *segments, int64_t n, qn_err *err) {
    for (int64_t b = 0; b < n; b++) {
        const qn_segment *s = &segments[b];
        const qn_status status = qn_seq_prepare(s->seq, s->rows, s->rows - s->uncertain, err);
        if (!status) continue;
        for (int64_t i = 0; i < b; i++) qn_seq_cancel(segments[i].seq);
        return status;
    }
    return QN_OK;
}

// Fills the step table; returns the sizes of the step.
static qn_sizes fill_step(qn_runner *r, const qn_segment *segments, int64_t n) {
    const bool is_shown = r->check || r->engine->switches.layers; // then rows are always whole
    qn_sizes sizes = {.segs = n};
    int64_t top = 1;
    for (int64_t b = 0; b < n; b++) {
        const qn_segment *s = &segments[b];
        const int64_t past = qn_seq_length(s->seq);
        r->seg_row[b] = (int32_t)sizes.rows;
        qn_seq_fill(s->seq, &r->segs, b);
        memcpy(r->ids + sizes.rows, s->ids, (size_t)s->rows * sizeof *r->ids);
        for (int64_t i = 0; i < s->rows; i++) {
            const int64_t t = sizes.rows + i;
            r->row_seg[t] = (int32_t)b;
            for (int k = 0; k < 3; k++) r->pos[4 * t + k] = (int32_t)(past + i);
            if (i < s->rows - s->outs) continue;
            r->out_full[sizes.outs] = is_shown || s->top == 0;
            r->row_out[sizes.outs++] = (int32_t)t;
        }
        if (s->outs && s->top > top) top = s->top;
        sizes.rows += s->rows;
        sizes.cached = sizes.cached > past + s->rows ? sizes.cached : past + s->rows;
    }
    r->seg_row[n] = (int32_t)sizes.rows;
    r->step.n_rows = sizes.rows;
    r->step.n_segs = n;
    r->step.n_out = sizes.outs;
    r->step.top = r->check ? QN_HEAD_TOP : top;
    r->step.entries = r->check ? 0 : r->engine->n_tokens; // the reference looks at all of them
    return sizes;
}

static qn_phase *choose_phase(qn_runner *r, const qn_segment *segments, int64_t n) {
    if (!r->phases[QN_DECODE].plan) return &r->phases[QN_PREFILL];
    for (int64_t b = 0; b < n; b++) {
        if (segments[b].rows > 1) return &r->phases[QN_PREFILL];
    }
    return &r->phases[QN_DECODE];
}

static void report_trace(const qn_runner *r, const qn_phase *p) {
    for (size_t i = 0; i < p->plan->n_calls; i++) {
        if (p->bound->pieces[i] == 0) continue;
        const qn_plan_call *call = &p->plan->calls[i];
        const qn_trace_event event = {.kernel = p->kernels[i]->name,
                                      .op = qn_op_get(call->op)->name,
                                      .layer = call->layer,
                                      .step = r->counts.steps,
                                      .rows = r->step.n_rows,
                                      .begin = r->walk.times[i].begin - r->began,
                                      .end = r->walk.times[i].end - r->began,
                                      .bytes = qn_call_bytes(call, &p->tasks[i])};
        r->opts.trace(r->opts.trace_arg, &event);
    }
}

static qn_status run_step(qn_runner *r, qn_phase *p, const qn_binding *bound, qn_err *err) {
    if (p->bound != bound || p->bound_made != bound->made) {
        p->bound = bound;
        p->bound_made = bound->made;
        qn_runner_point(r, p);
    }
    r->last = p;
    const int64_t symbols[QN_SYM_COUNT] = {1, r->step.n_rows, r->step.n_segs, r->step.n_out};
    for (size_t i = 0; i < p->plan->n_calls; i++) {
        const qn_dim rows = p->plan->calls[i].rows;
        p->tasks[i].rows = rows.n * symbols[rows.sym];
    }
    r->walk.kernels = p->kernels;
    r->walk.tasks = p->tasks;
    r->walk.binding = bound;
    r->walk.n_calls = p->plan->n_calls;
    if (r->check) return qn_check_run(r->check, r, p, err);
    qn_walk_run(&r->walk, r->engine->pool);
    return QN_OK;
}

qn_status qn_runner_step(qn_runner *r, const qn_segment *segments, int64_t n, qn_err *err) {
    QN_TRY(check_sizes(r, segments, n, err));
    QN_TRY(prepare(segments, n, err));
    const qn_sizes sizes = fill_step(r, segments, n);
    qn_phase *p = choose_phase(r, segments, n);
    const qn_binding *bound = qn_bindings_get(p->bindings, &sizes);
    if (!bound) {
        for (int64_t b = 0; b < n; b++) qn_seq_cancel(segments[b].seq);
        return QN_FAIL(err, LIMIT, "a step of %lld rows cannot be bound", (long long)sizes.rows);
    }
    const qn_status status = run_step(r, p, bound, err);
    if (status) { // only a check fails, half way: what the sequences hold is of no use any more
        for (int64_t b = 0; b < n; b++) {
            qn_seq_cancel(segments[b].seq);
            (void)qn_seq_truncate(segments[b].seq, 0);
        }
        return status;
    }
    for (int64_t b = 0; b < n; b++) qn_seq_finish(segments[b].seq);
    if (r->engine->switches.layers) qn_check_layers(r);
    if (r->opts.trace) report_trace(r, p);
    if (r->sums) qn_tally_add(r, p);
    r->counts.steps++;
    r->counts.rows += sizes.rows;
    return QN_OK;
}
