// One step of a runner.
#include "runtime/check.h"
#include "runtime/kv_memory.h"
#include "runtime/runner_int.h"
#include "runtime/runner_team.h"
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
                       "a step of %lld segments, %lld rows, %lld wanted; the max is %lld, %lld, "
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

// The sizes of a prepared step: of its message, and of its binding.
static qn_sizes measure(qn_step_sizes *out, const qn_runner *r, const qn_segment *segments,
                        int64_t n) {
    const qn_copy *copies;
    qn_sizes sizes = {.segs = n};
    for (int64_t b = 0; b < n; b++) {
        const int64_t cached = qn_seq_length(segments[b].seq) + segments[b].rows;
        sizes.rows += segments[b].rows;
        sizes.outs += segments[b].outs;
        if (cached > sizes.cached) sizes.cached = cached;
    }
    *out = (qn_step_sizes){.rows = sizes.rows,
                           .segs = n,
                           .outs = sizes.outs,
                           .groups = qn_state_groups(r->state),
                           .pages = (sizes.cached + QN_PAGE_ROWS - 1) / QN_PAGE_ROWS,
                           .copies = qn_state_copies(&copies, r->state)};
    return sizes;
}

static int64_t count_given(const qn_segment *segments, int64_t n) {
    int64_t given = 0;
    for (int64_t b = 0; b < n; b++)
        given +=
            qn_media_count(segments[b].media, qn_seq_length(segments[b].seq), segments[b].rows);
    return given;
}

qn_step_tables qn_step_tables_open(int32_t *message, const qn_step_sizes *sizes) {
    return (qn_step_tables){.ids = qn_step_at(message, QN_STEP_IDS),
                            .pos = qn_step_at(message, QN_STEP_POS),
                            .row_seg = qn_step_at(message, QN_STEP_ROW_SEG),
                            .seg_row = qn_step_at(message, QN_STEP_SEG_ROW),
                            .seg_adapter = qn_step_at(message, QN_STEP_SEG_ADAPTER),
                            .row_out = qn_step_at(message, QN_STEP_ROW_OUT),
                            .out_full = qn_step_at(message, QN_STEP_OUT_FULL),
                            .segs = {.seg_past = qn_step_at(message, QN_STEP_SEG_PAST),
                                     .seg_slot = qn_step_at(message, QN_STEP_SEG_SLOT),
                                     .seg_accept = qn_step_at(message, QN_STEP_SEG_ACCEPT),
                                     .seg_commit = qn_step_at(message, QN_STEP_SEG_COMMIT),
                                     .seg_pages = qn_step_at(message, QN_STEP_SEG_PAGES),
                                     .pages = sizes->pages},
                            .extra_row = qn_step_input(message, QN_STEP_EXTRA_ROW),
                            .extra = qn_step_input(message, QN_STEP_EXTRA)};
}

void qn_step_tables_add(qn_step_tables *t, int64_t b, const qn_step_rows *rows) {
    t->seg_row[b] = (int32_t)t->rows;
    t->seg_adapter[b] = rows->adapter;
    memcpy(t->ids + t->rows, rows->ids, (size_t)rows->rows * sizeof *t->ids);
    t->given += qn_media_fill(rows->media, rows->position, rows->rows, t->pos + 4 * t->rows,
                              t->extra_row ? t->extra_row + t->rows : NULL, t->extra, t->given);
    for (int64_t i = 0; i < rows->rows; i++, t->rows++) {
        t->row_seg[t->rows] = (int32_t)b;
        if (i < rows->rows - rows->outs) continue;
        t->out_full[t->outs] = rows->is_full;
        t->row_out[t->outs++] = (int32_t)t->rows;
    }
}

static void fill_segment(qn_step_tables *t, const qn_segment *s, int64_t b, bool is_full) {
    const qn_step_rows rows = {.ids = s->ids,
                               .position = qn_seq_length(s->seq),
                               .rows = s->rows,
                               .outs = s->outs,
                               .is_full = is_full || s->top == 0,
                               .adapter = qn_seq_adapter(s->seq),
                               .media = s->media};
    qn_seq_fill(s->seq, &t->segs, b);
    qn_step_tables_add(t, b, &rows);
}

// Writes the message of a prepared step; returns the sizes of its binding.
static qn_sizes write_message(qn_runner *r, const qn_segment *segments, int64_t n) {
    const bool is_shown = r->check || r->engine->switches.layers; // then rows are always whole
    const qn_copy *copies;
    qn_step_sizes own;
    int64_t top = 1;
    const qn_sizes sizes = measure(&own, r, segments, n);
    own.extra = count_given(segments, n);
    own.extra_width = own.extra ? r->engine->model->hparams->width : 0;
    for (int64_t b = 0; b < n; b++) {
        if (segments[b].outs && segments[b].top > top) top = segments[b].top;
    }
    // The reference looks at all entries.
    int32_t *message = r->lane->message;
    qn_step_begin(message, &own, r->check ? QN_HEAD_TOP : top, r->check ? 0 : r->engine->n_tokens);
    qn_step_tables t = qn_step_tables_open(message, &own);
    for (int64_t b = 0; b < n; b++) fill_segment(&t, &segments[b], b, is_shown);
    t.seg_row[n] = (int32_t)t.rows;
    if (qn_state_copies(&copies, r->state))
        memcpy(qn_step_at(message, QN_STEP_COPIES), copies, (size_t)own.copies * sizeof *copies);
    qn_step_view(&r->step, message);
    return sizes;
}

static int choose_phase(const qn_runner *r, const qn_sizes *sizes) {
    return r->has_decode && sizes->rows == sizes->segs ? QN_DECODE : QN_PREFILL;
}

void qn_runner_trace(const qn_runner *r, const qn_runner_stage *s, int64_t rows) {
    const qn_plan *plan = qn_runner_plan(s);
    for (size_t i = 0; i < plan->n_calls; i++) {
        const qn_plan_call *call = &plan->calls[i];
        int64_t begin, end;
        if (!s->program->device->kind->times(s->program, i, &begin, &end)) continue;
        const qn_trace_event event = QN_INIT(
            qn_trace_event, .kernel = call->kernel, .op = qn_op_get(call->op)->name,
            .layer = call->layer, .step = r->counts.steps, .rows = rows, .begin = begin - r->began,
            .end = end - r->began, .bytes = qn_call_bytes(r, s, call));
        r->opts.trace(r->opts.trace_arg, &event);
    }
}

bool qn_runner_begin_stages(qn_runner *r, int32_t *message, const qn_sizes *sizes, int64_t first) {
    const int phase = choose_phase(r, sizes);
    for (size_t i = 0; i < r->engine->n_stages; i++) {
        qn_runner_stage *s = &r->stages[i];
        if (!s->program->device->kind->begin(s->program, phase, message, sizes)) return false;
        s->phase = phase;
        for (size_t c = 0; c < r->n_cuts; c++)
            (void)s->program->device->kind->give(s->program, r->cuts[c].name,
                                                 r->cuts[c].rows + first * r->cuts[c].width);
    }
    return true;
}

void qn_runner_take_cuts(const qn_runner *r, const qn_runner_stage *s, int64_t first) {
    for (size_t c = 0; c < r->n_cuts; c++) {
        const qn_runner_cut *cut = &r->cuts[c];
        const qn_plan_output *output = qn_plan_find_output(qn_runner_plan(s), cut->name);
        for (int64_t t = 0; output && t < r->step.n_rows; t++)
            memcpy(cut->rows + (first + t) * cut->width,
                   s->program->device->kind->row(s->program, output, t),
                   (size_t)cut->width * sizeof *cut->rows);
    }
}

// Whether a row of an output is always looked at after a step: not so all logits of a row of which
// the best are wanted, and hidden states, of which there are many.
static bool is_wanted(const qn_plan *plan, const qn_plan_output *o, const qn_step *step,
                      int64_t row) {
    if (strncmp(o->name, "hidden.", 7) == 0) return false;
    return strcmp(o->name, "logits") != 0 || !step->out_full || step->out_full[row] ||
           !qn_plan_find_output(plan, "best");
}

// Brings wanted rows while the step runs, where they are not in this memory: a device that fails
// later could not tell.
void qn_runner_bring_rows(const qn_runner_stage *s, const qn_step *step) {
    const qn_device_kind *kind = s->program->device->kind;
    const qn_plan *plan = qn_runner_plan(s);
    const int64_t symbols[QN_SYM_COUNT] = {1, step->n_rows, step->n_segs, step->n_out};
    for (size_t i = 0; i < plan->n_outputs && !kind->has_host_memory; i++) {
        const qn_plan_output *o = &plan->outputs[i];
        for (int64_t r = 0; r < o->rows.n * symbols[o->rows.sym]; r++) {
            if (is_wanted(plan, o, step, r)) (void)kind->row(s->program, o, r);
        }
    }
}

static qn_status finish_stages(qn_runner *r, qn_err *err) {
    for (size_t i = 0; i < r->engine->n_stages; i++) {
        qn_runner_bring_rows(&r->stages[i], &r->step);
        QN_TRY(qn_device_failure(r->stages[i].program->device, err));
    }
    return QN_OK;
}

// Copies come first: the step reads the pages and slots that they fill. With other ranks, it is
// over here and may go on there.
static qn_status begin_step(qn_runner *r, qn_err *err) {
    if (r->team) return qn_runner_team_begin(r, err);
    qn_kv_copy(qn_state_memory(r->state), r->step.copies, r->step.n_copies);
    if (r->check) {
        QN_TRY(qn_check_run(r->check, r, err));
        qn_runner_bring_rows(&r->stages[0], &r->step);
        return qn_device_failure(r->stages[0].program->device, err);
    }
    qn_residency *residency = r->engine->residency;
    if (residency) qn_residency_begin_step(residency, r->step.n_rows, r->step.n_segs);
    for (size_t i = 0; i < r->engine->n_stages; i++) {
        const qn_runner_stage *s = &r->stages[i];
        s->program->device->kind->run(s->program);
        qn_runner_take_cuts(r, s, 0);
    }
    qn_program *last = r->stages[r->engine->n_stages - 1].program;
    last->device->kind->wait(last);
    const qn_status status = finish_stages(r, err);
    const qn_status brought =
        residency ? qn_residency_end_step(residency, status ? NULL : err) : QN_OK;
    return status ? status : brought;
}

static void look_at_step(qn_runner *r) {
    if (r->engine->switches.layers) qn_check_layers(r);
    for (size_t i = 0; i < r->engine->n_stages; i++) {
        if (r->opts.trace) qn_runner_trace(r, &r->stages[i], r->step.n_rows);
        if (r->stages[i].sums) qn_tally_add(r, &r->stages[i]);
    }
}

// A check, a record or reading experts failed, or the step was stopped. One that ran wrote keys and values after those
// that the sequences hold, which stay; recurrent states it may have changed, and what is copied
// before its rows is there only if it ran: such sequences are empty afterwards.
static void give_up(const qn_runner *r, qn_seq *const *seqs, int64_t n, bool is_run) {
    const bool is_kept = is_run && !qn_engine_is_recurrent(r->engine);
    for (int64_t b = 0; b < n; b++) {
        qn_seq_cancel(seqs[b]);
        if (!is_kept) (void)qn_seq_truncate(seqs[b], 0);
    }
}

static qn_status room_for_given(qn_runner *r, qn_err *err) {
    const qn_step_sizes max = qn_runner_max_sizes(r);
    qn_runner_lane *lane = r->lane;
    QN_TRY(qn_runner_make_room(&lane->message, &lane->message_words, &lane->has_given_room, r, &max,
                               err));
    return r->team ? qn_runner_team_reserve(r, err) : QN_OK;
}

static qn_status check_lane(const qn_runner *r, int lane, bool is_under_way, qn_err *err) {
    const int64_t n = lane >= 0 && lane < r->n_lanes ? r->lanes[lane].n_seqs : -1;
    if (is_under_way ? n > 0 : n == 0) return QN_OK;
    return QN_FAIL(err, STATE, "lane %d of %d: a step of %lld sequences is under way", lane,
                   r->n_lanes, (long long)n);
}

qn_status qn_runner_begin(qn_runner *r, int lane, const qn_segment *segments, int64_t n,
                          qn_err *err) {
    QN_TRY(check_sizes(r, segments, n, err));
    QN_TRY(check_lane(r, lane, false, err));
    if (r->failed_status) {
        if (err) *err = r->failed;
        return r->failed_status;
    }
    r->lane = &r->lanes[lane];
    if (count_given(segments, n)) QN_TRY(room_for_given(r, err));
    QN_TRY(prepare(segments, n, err));
    const qn_sizes sizes = write_message(r, segments, n);
    if (!r->team && !qn_runner_begin_stages(r, r->lane->message, &sizes, 0)) {
        for (int64_t b = 0; b < n; b++) qn_seq_cancel(segments[b].seq);
        return QN_FAIL(err, LIMIT,
                       "a step of %lld rows cannot be bound: it is larger than was planned for, or "
                       "its device has no room for its tables",
                       (long long)sizes.rows);
    }
    for (int64_t b = 0; b < n; b++) r->lane->seqs[b] = segments[b].seq;
    r->lane->step = r->step;
    qn_status status = r->record ? qn_record_add(r->record, r->lane->message, err) : QN_OK;
    const bool is_run = !status;
    if (is_run) status = begin_step(r, err);
    r->lane->is_stopped = r->opts.go_on && !r->opts.go_on(r->opts.go_on_arg);
    qn_state_clear_copies(r->state);
    if (status)
        give_up(r, r->lane->seqs, n, is_run);
    else
        r->lane->n_seqs = n;
    return status;
}

qn_status qn_runner_end(qn_runner *r, int lane, qn_err *err) {
    QN_TRY(check_lane(r, lane, true, err));
    r->lane = &r->lanes[lane];
    r->step = r->lane->step;
    const int64_t n = r->lane->n_seqs;
    qn_status status = r->team ? qn_runner_team_end(r, err) : QN_OK;
    if (!status && r->lane->is_stopped)
        status = QN_FAIL(err, STOPPED, "stopped in a step of %lld rows", (long long)r->step.n_rows);
    r->lane->n_seqs = 0;
    if (status) {
        give_up(r, r->lane->seqs, n, true);
        return status;
    }
    for (int64_t b = 0; b < n; b++) qn_seq_finish(r->lane->seqs[b]);
    look_at_step(r);
    r->counts.steps++;
    r->counts.rows += r->step.n_rows;
    return QN_OK;
}

qn_status qn_runner_step(qn_runner *r, const qn_segment *segments, int64_t n, qn_err *err) {
    int lane = 0;
    while (lane + 1 < r->n_lanes && r->lanes[lane].n_seqs) lane++;
    QN_TRY(qn_runner_begin(r, lane, segments, n, err));
    return qn_runner_end(r, lane, err);
}

void qn_runner_flush(void *runner, const qn_copy *copies, int64_t n) {
    qn_runner *r = runner;
    const qn_step_sizes sizes = {.groups = qn_state_groups(r->state), .copies = n};
    qn_step_begin(r->copying, &sizes, 1, 0);
    *qn_step_at(r->copying, QN_STEP_SEG_ROW) = 0;
    memcpy(qn_step_at(r->copying, QN_STEP_COPIES), copies, (size_t)n * sizeof *copies);
    if (r->record && !r->failed_status)
        r->failed_status = qn_record_add(r->record, r->copying, &r->failed);
    if (r->team && !r->failed_status)
        r->failed_status = qn_runner_team_copy(r, r->copying, &r->failed);
    qn_kv_copy(qn_state_memory(r->state), copies, n);
}

void qn_runner_flush_copies(qn_runner *r) {
    const qn_copy *copies;
    const int64_t n = qn_state_copies(&copies, r->state);
    if (n) qn_runner_flush(r, copies, n);
    qn_state_clear_copies(r->state);
}

// --- replay ---

static qn_sizes sizes_of(const qn_step *step) {
    qn_sizes sizes = {.rows = step->n_rows, .segs = step->n_segs, .outs = step->n_out};
    for (int64_t b = 0; b < step->n_segs; b++) {
        const int64_t cached = step->seg_past[b] + step->seg_row[b + 1] - step->seg_row[b];
        if (cached > sizes.cached) sizes.cached = cached;
    }
    return sizes;
}

static qn_status check_message(const qn_runner *r, qn_err *err) {
    qn_step_limits limits = {.vocab = r->engine->model->hparams->vocab,
                             .rows = r->opts.rows,
                             .segs = r->opts.segs,
                             .outs = r->opts.outs,
                             .extra_width = r->engine->model->hparams->width,
                             .n_adapters = r->engine->model->n_sets,
                             .top = QN_HEAD_TOP};
    qn_state_limits(&limits, r->state);
    return qn_step_check(r->lane->message, qn_step_words(r->lane->message), &limits, err);
}

qn_status qn_runner_replay(int64_t *n_out, qn_runner *r, qn_replay *replay, qn_touched *touched,
                           bool *more, qn_err *err) {
    int32_t *message = r->lane->message;
    QN_TRY(qn_replay_next(message, more, replay, r->lane->message_words, err));
    *n_out = 0;
    if (!*more) return QN_OK;
    QN_TRY(check_message(r, err));
    qn_step_view(&r->step, message);
    QN_TRY(qn_touched_add(touched, r->state, &r->step, err));
    if (r->step.n_rows == 0) {
        if (r->team) QN_TRY(qn_runner_team_copy(r, message, err));
        qn_kv_copy(qn_state_memory(r->state), r->step.copies, r->step.n_copies);
        return QN_OK; // a device that failed tells it with the next rows
    }
    int32_t *out_full = qn_step_at(message, QN_STEP_OUT_FULL);
    for (int64_t i = 0; i < r->step.n_out; i++) out_full[i] = 1;
    const qn_sizes sizes = sizes_of(&r->step);
    if (!r->team && !qn_runner_begin_stages(r, message, &sizes, 0))
        return QN_FAIL(err, LIMIT,
                       "a step of %lld rows cannot be bound: it is larger than was planned for, or "
                       "its device has no room for its tables",
                       (long long)sizes.rows);
    *n_out = r->step.n_out;
    r->lane->step = r->step;
    QN_TRY(begin_step(r, err));
    return r->team ? qn_runner_team_end(r, err) : QN_OK;
}
