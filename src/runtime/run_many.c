// Steps are filled with the rows of one input after the other, so that few are unfinished at a time
// and the state is little more than that of the longest. No result depends on how rows share steps.
#include "runtime/run_many.h"

#include "core/mem.h"
#include "core/stop_flag.h"

enum { MAX_SEGS = 32 }; // inputs that share a step: weights are read once for all. Not tuned

typedef struct many {
    const qn_many_input *inputs; // (n)
    size_t n, next;              // the next one to begin
    const qn_many_opts *opts;
    qn_runner *runner;
    int64_t chunk, max_segs;
    int64_t done, total; // rows
    // Those that share the step.
    int64_t n_segs;
    qn_segment segments[MAX_SEGS];
    qn_many_rows rows[MAX_SEGS];
} many;

static int64_t wanted(const many *m, int64_t rows, bool is_end) {
    return m->opts->outs < 0 ? rows : is_end ? m->opts->outs : 0;
}

// Unfinished inputs first, then new ones while the step has room.
static qn_status fill_step(many *m, qn_err *err) {
    int64_t left = m->chunk, row = 0, out = 0, n = m->n_segs;
    while (n < m->max_segs && m->next < m->n) {
        qn_seq *seq = NULL;
        int64_t taken = 0;
        for (int64_t i = 0; i < n; i++)
            taken += m->inputs[m->rows[i].input].run.n - m->rows[i].first;
        if (taken >= m->chunk) break;
        QN_TRY(qn_seq_open(&seq, qn_runner_state(m->runner), err));
        qn_seq_set_adapter(seq, m->inputs[m->next].adapter);
        m->segments[n] = (qn_segment){.seq = seq, .media = m->inputs[m->next].run.media};
        m->rows[n++] = (qn_many_rows){.input = m->next++};
        m->n_segs = n;
    }
    for (int64_t i = 0; i < n; i++) {
        const qn_run_input *input = &m->inputs[m->rows[i].input].run;
        qn_many_rows *r = &m->rows[i];
        r->rows = qn_min(left, input->n - r->first);
        r->outs = wanted(m, r->rows, r->first + r->rows == input->n);
        r->row = row;
        r->out = out;
        m->segments[i].ids = input->ids + r->first;
        m->segments[i].rows = r->rows;
        m->segments[i].outs = r->outs;
        row += r->rows;
        out += r->outs;
        left -= r->rows;
    }
    m->done += row;
    return QN_OK;
}

// Closes what is finished; the others move up.
static void end_step(many *m) {
    int64_t n = 0;
    for (int64_t i = 0; i < m->n_segs; i++) {
        qn_many_rows r = m->rows[i];
        r.first += r.rows;
        if (r.first == m->inputs[r.input].run.n) {
            qn_seq_close(m->segments[i].seq);
            continue;
        }
        m->segments[n] = m->segments[i];
        m->rows[n++] = r;
    }
    m->n_segs = n;
}

static qn_status run_steps(many *m, qn_err *err) {
    const qn_many_opts *o = m->opts;
    while (m->n_segs || m->next < m->n) {
        if (qn_stop_is_wanted(o->stop))
            return QN_FAIL(err, STOPPED, "stopped after %lld of %lld tokens", (long long)m->done,
                           (long long)m->total);
        QN_TRY(fill_step(m, err));
        QN_TRY(qn_runner_step(m->runner, m->segments, m->n_segs, err));
        for (int64_t i = 0; i < m->n_segs; i++) o->take(o->arg, m->runner, &m->rows[i]);
        end_step(m);
        QN_TRY(qn_runner_failure(m->runner, err));
        if (o->progress && m->done < m->total && !o->progress(o->progress_arg, m->done, m->total))
            return QN_FAIL(err, STOPPED, "stopped after %lld of %lld tokens", (long long)m->done,
                           (long long)m->total);
    }
    return QN_OK;
}

qn_status qn_engine_run_many(const qn_engine *engine, const qn_many_input *inputs, size_t n,
                             const qn_many_opts *opts, qn_err *err) {
    many m = {.inputs = inputs,
              .n = n,
              .opts = opts,
              .chunk = qn_engine_chunk(engine, opts->chunk),
              .max_segs = n < MAX_SEGS ? (int64_t)n : MAX_SEGS};
    int64_t longest = 0;
    for (size_t i = 0; i < n; i++) {
        m.total += inputs[i].run.n;
        longest = qn_max(longest, inputs[i].run.n);
    }
    m.chunk = qn_min(m.chunk, m.total);
    m.max_segs = qn_min(m.max_segs, m.chunk);
    const qn_runner_opts runner_opts = {.engine = engine,
                                        .hidden = opts->hidden,
                                        .context = longest,
                                        .rows = m.chunk,
                                        .outs = opts->outs < 0 ? m.chunk : m.max_segs,
                                        .segs = m.max_segs,
                                        .n_seqs = m.max_segs};
    QN_TRY(qn_runner_create(&m.runner, &runner_opts, err));
    const qn_status status = run_steps(&m, err);
    for (int64_t i = 0; i < m.n_segs; i++) qn_seq_close(m.segments[i].seq);
    qn_runner_destroy(m.runner);
    return status;
}
