// A step on several ranks: its order, its parts, and what comes back.
#include "runtime/runner_team.h"

#include "core/mem.h"
#include "ir/step_part.h"
#include "runtime/split_cost.h"

#include <string.h>

// Cuts have a tag each; outputs of a lane of a runner, and those of its head, have another.
enum { TAG_CUT = 4, TAG_OUTPUTS = 1 << 14, TAGS_OF_RUNNER = QN_MAX_LANES + 1 };
_Static_assert(TAG_OUTPUTS + QN_TEAM_RUNNERS * TAGS_OF_RUNNER <= 1 << 15, "of 32768 tags");

// --- life ----------------------------------------------------------------------------------------

static qn_status take_number(qn_runner *r, qn_err *err) {
    qn_team *team = r->engine->team;
    for (int32_t i = 0; i < QN_TEAM_RUNNERS; i++) {
        if (team->runners[i]) continue;
        team->runners[i] = r;
        r->team->number = i;
        return QN_OK;
    }
    return QN_FAIL(err, LIMIT, "more than %d sessions and batches of a model that ranks share",
                   QN_TEAM_RUNNERS);
}

// Rank 0 says what the others need for a runner like its own.
static qn_status order_open(const qn_runner *r, qn_err *err) {
    const qn_runner_opts *o = &r->opts;
    const int64_t n_groups = qn_state_groups(r->state);
    const qn_team_want want = {.hidden = o->hidden,
                               .context = o->context,
                               .rows = o->rows,
                               .outs = o->outs,
                               .segs = o->segs,
                               .n_seqs = o->n_seqs,
                               .positions = o->positions,
                               .kept_bytes = o->kept_bytes,
                               .n_groups = n_groups,
                               .n_slots = qn_state_slot_count(r->state),
                               .n_lanes = r->n_lanes};
    const qn_team_order order = {.kind = QN_ORDER_OPEN,
                                 .runner = r->team->number,
                                 .words = sizeof want / sizeof(int32_t),
                                 .rest = 2 * n_groups};
    return qn_team_give(r->engine->team, &order, (const int32_t *)(const void *)&want,
                        (const int32_t *)(const void *)qn_state_page_counts(r->state), err);
}

void qn_runner_team_number(qn_runner *r, int32_t number) { r->team->number = number; }

static qn_status room_for_words(qn_runner_lane *lane, size_t words, qn_err *err) {
    if (lane->parts && lane->part_words >= words) return QN_OK;
    int32_t *parts = qn_realloc(lane->parts, words, sizeof *parts);
    if (!parts) return QN_NOMEM(err, "parts of a step");
    lane->parts = parts;
    lane->part_words = words;
    return QN_OK;
}

// No part of a step is longer than the largest step without given rows, but for the given rows that
// it has: all of them are in `words`.
static qn_status room_for_parts(qn_runner_lane *lane, const qn_runner *r, size_t words,
                                qn_err *err) {
    const qn_step_sizes max = qn_runner_max_sizes(r);
    const bool has_layers = r->engine->team->split == QN_SPLIT_LAYERS;
    size_t plain, all;
    QN_TRY(qn_step_measure(&plain, &max, err));
    // Of each row, which given row it is, stands in every part anew.
    if (!qn_size_mul(&all, plain + (size_t)max.rows, has_layers ? QN_STEP_PARTS : 1) ||
        !qn_size_add(&all, all, words))
        return QN_FAIL(err, LIMIT, "%d parts of %zu words and %zu more", QN_STEP_PARTS, plain,
                       words);
    return room_for_words(lane, all, err);
}

qn_status qn_runner_team_reserve(qn_runner *r, qn_err *err) {
    return room_for_parts(r->lane, r, r->lane->message_words, err);
}

static qn_status take_room(qn_runner *r, qn_err *err) {
    const qn_team *team = r->engine->team;
    const size_t n = r->n_cuts * QN_STEP_PARTS;
    r->team->receives = qn_alloc(n, sizeof *r->team->receives);
    r->team->sends = qn_alloc(r->n_cuts * (size_t)team->n_ranks, sizeof *r->team->sends);
    if (!r->team->receives || !r->team->sends) return QN_NOMEM(err, "ranks");
    for (int i = 0; i < r->n_lanes; i++) {
        // Those that follow have one step at a time.
        if (i == 0 || team->rank == 0) QN_TRY(room_for_parts(&r->lanes[i], r, 0, err));
    }
    return QN_OK;
}

// What all ranks do to have a runner, after the order. Each of them comes this far.
static qn_status meet(qn_runner *r, qn_status own, qn_err *err) {
    const qn_engine *engine = r->engine;
    const qn_runner_opts *o = &r->opts;
    const bool has_head = qn_team_has_head(engine->team);
    const qn_outputs_max model = {.rows = o->rows, .outs = o->outs, .lanes = r->n_lanes};
    const qn_outputs_max head = {.rows = r->head_rows, .outs = r->head_rows, .lanes = 1};
    qn_status status = own;
    if (!status) status = take_room(r, err);
    QN_TRY(qn_ranks_agree(engine->team->ranks, status, err));
    QN_TRY(qn_outputs_exchange(&r->team->model, r, &r->stages[0], &model, err));
    if (!engine->opts.mtp || o->hidden) return QN_OK;
    return qn_outputs_exchange(&r->team->head, r, has_head ? &r->head : NULL, &head, err);
}

qn_status qn_runner_team_open(qn_runner *r, qn_status own, qn_err *err) {
    qn_team *team = r->engine->team;
    qn_status status = own;
    (void)pthread_mutex_lock(&team->lock);
    team->n_meetings++;
    if (!status && team->rank == 0) status = take_number(r, err);
    if (!status && team->rank == 0) status = order_open(r, err);
    if (!status || team->rank > 0) status = meet(r, status, err);
    r->team->is_met = !status;
    (void)pthread_mutex_unlock(&team->lock);
    return status;
}

void qn_runner_team_close(qn_runner *r) {
    qn_team *team = r->engine->team;
    qn_runner_team *t = r->team;
    const qn_team_order order = {.kind = QN_ORDER_CLOSE, .runner = t->number};
    (void)pthread_mutex_lock(&team->lock);
    if (team->rank == 0 && t->is_met) qn_team_tell(team, &order);
    if (team->runners[t->number] == r) team->runners[t->number] = NULL;
    qn_outputs_sent(&t->model, team);
    qn_outputs_sent(&t->head, team);
    (void)pthread_mutex_unlock(&team->lock);
    qn_outputs_free(&t->model);
    qn_outputs_free(&t->head);
    qn_free(t->receives);
    qn_free(t->sends);
    qn_free(t);
}

// --- rows between layers -------------------------------------------------------------------------

static const qn_team_cuts *cuts_of(const qn_runner *r) {
    const qn_team *team = r->engine->team;
    return r->opts.hidden ? &team->hidden_cuts : &team->cuts;
}

// Ranks number their own cuts; a tag is the number among all.
static const qn_team_cut *cut_of(int *tag, const qn_runner *r, size_t i) {
    const qn_team_cuts *cuts = cuts_of(r);
    int k = 0;
    while (strcmp(cuts->items[k].name, r->cuts[i].name) != 0) k++;
    *tag = TAG_CUT + k;
    return &cuts->items[k];
}

// The rows of all parts that this rank reads are asked for before the first is run.
static qn_status begin_receiving(qn_runner *r, int32_t *const *parts, int n, qn_err *err) {
    for (size_t c = 0; c < r->n_cuts; c++) {
        const qn_runner_cut *cut = &r->cuts[c];
        int tag;
        const qn_team_cut *from = cut_of(&tag, r, c);
        int64_t first = 0;
        if (from->maker == r->engine->team->rank) continue;
        for (int p = 0; p < n; p++) {
            qn_step step;
            qn_step_view(&step, parts[p]);
            QN_TRY(qn_ranks_receive(&r->team->receives[c * QN_STEP_PARTS + (size_t)p],
                                    r->engine->team->ranks, cut->rows + first * cut->width,
                                    (size_t)(step.n_rows * cut->width) * sizeof *cut->rows,
                                    from->maker, tag, err));
            first += step.n_rows;
        }
    }
    return QN_OK;
}

static qn_status wait_for_rows(qn_runner *r, int part, qn_err *err) {
    for (size_t c = 0; c < r->n_cuts; c++)
        QN_TRY(qn_ranks_wait(r->engine->team->ranks,
                             &r->team->receives[c * QN_STEP_PARTS + (size_t)part], err));
    return QN_OK;
}

// Large messages are carried while both sides are at it: whoever computes the next part at once
// would keep this one from its reader.
static qn_status hand_on(qn_runner *r, int64_t first, int64_t n, qn_err *err) {
    const qn_team *team = r->engine->team;
    qn_ranks_request *sends = r->team->sends;
    for (size_t c = 0; c < r->n_cuts; c++) {
        const qn_runner_cut *cut = &r->cuts[c];
        int tag;
        const qn_team_cut *to = cut_of(&tag, r, c);
        for (int rank = 0; rank < team->n_ranks && to->maker == team->rank; rank++) {
            if (to->reads[rank])
                QN_TRY(qn_ranks_send(&sends[c * (size_t)team->n_ranks + (size_t)rank], team->ranks,
                                     cut->rows + first * cut->width,
                                     (size_t)(n * cut->width) * sizeof *cut->rows, rank, tag, err));
        }
    }
    for (size_t i = 0; i < r->n_cuts * (size_t)team->n_ranks; i++)
        QN_TRY(qn_ranks_wait(team->ranks, &sends[i], err));
    return QN_OK;
}

// --- a step on this rank -------------------------------------------------------------------------

static qn_sizes sizes_of(const qn_step *step) {
    const qn_step_extent e = qn_step_measure_extent(step);
    return (qn_sizes){.rows = e.rows, .segs = e.segs, .outs = e.outs, .cached = e.cached};
}

// The first part of a step in a lane, with the tag of its outputs.
static qn_output_place place_of(const qn_runner *r, int lane) {
    return (qn_output_place){.lane = lane,
                             .tag = TAG_OUTPUTS + r->team->number * TAGS_OF_RUNNER + lane};
}

static qn_output_place place_of_head(const qn_runner *r) {
    qn_output_place place = place_of(r, QN_MAX_LANES);
    place.lane = 0;
    return place;
}

static qn_status run_part(qn_runner *r, int32_t *message, int number, const qn_output_place *at,
                          qn_err *err) {
    const qn_team *team = r->engine->team;
    qn_runner_stage *s = &r->stages[0];
    qn_step_view(&r->step, message);
    const qn_sizes sizes = sizes_of(&r->step);
    QN_TRY(wait_for_rows(r, number, err));
    if (!qn_runner_begin_stages(r, message, &sizes, at->row))
        return QN_FAIL(err, LIMIT, "rank %d: a step of %lld rows cannot be bound", team->rank,
                       (long long)sizes.rows);
    qn_kv_copy(qn_state_memory(r->state), r->step.copies, r->step.n_copies);
    s->program->device->kind->run(s->program);
    qn_runner_take_cuts(r, s, at->row);
    QN_TRY(hand_on(r, at->row, r->step.n_rows, err));
    s->program->device->kind->wait(s->program);
    qn_runner_bring_rows(s, &r->step);
    QN_TRY(qn_device_failure(s->program->device, err));
    QN_TRY(qn_ranks_failure(team->ranks, err));
    return team->rank > 0 ? qn_outputs_send(&r->team->model, r, s, &r->step, at, err) : QN_OK;
}

// What the lane sent before is overwritten: rank 0 has it, or there would be no such order.
static qn_status run_parts(qn_runner *r, int32_t *const *parts, int n, int lane, qn_err *err) {
    qn_output_place at = place_of(r, lane);
    QN_TRY(begin_receiving(r, parts, n, err));
    QN_TRY(qn_outputs_reuse(&r->team->model, r->engine->team, lane, err));
    for (int p = 0; p < n; p++) {
        QN_TRY(run_part(r, parts[p], p, &at, err));
        at.row += r->step.n_rows;
        at.out += r->step.n_out;
    }
    return QN_OK;
}

// --- rank 0 --------------------------------------------------------------------------------------

// Whether ranks have steps of other lanes to compute beside this one.
static bool is_accompanied(const qn_runner *r) {
    bool is_so = false;
    for (int i = 0; i < r->n_lanes; i++) is_so |= r->lanes[i].n_seqs > 0;
    return is_so;
}

// Where the parts of a step begin. Traces and hidden states look at whole steps; and where all
// ranks have work, rows that decode are not cut: each part would read the weights anew.
static int cut_step(int64_t *first, const qn_runner *r, const qn_step *step) {
    const qn_team *team = r->engine->team;
    const bool is_looked_at = r->opts.hidden || r->opts.trace || r->stages[0].sums;
    const bool is_decode = step->n_rows == step->n_segs && is_accompanied(r);
    const bool is_whole = team->split != QN_SPLIT_LAYERS || is_looked_at || is_decode;
    const int64_t n =
        is_whole ? 1 : qn_min(qn_split_parts(step->n_rows, team->n_ranks), QN_STEP_PARTS);
    int made = 1;
    first[0] = 0;
    for (int64_t p = 1; p < n; p++) {
        const int64_t row = qn_step_cut_row(step, step->n_rows * p / n);
        if (row > first[made - 1] && row < step->n_rows) first[made++] = row;
    }
    first[made] = step->n_rows;
    return made;
}

// Writes the parts of the step one after the other, and says where they are. Returns the words of
// all; there is room for them.
static int64_t write_parts(int32_t **parts, int *n, qn_runner *r) {
    int64_t first[QN_STEP_PARTS + 1], words = 0;
    *n = cut_step(first, r, &r->step);
    parts[0] = r->lane->message;
    if (*n == 1) return (int64_t)qn_step_words(parts[0]);
    for (int p = 0; p < *n; p++) {
        parts[p] = r->lane->parts + words;
        words += (int64_t)qn_step_part(parts[p], &r->step, first[p], first[p + 1]);
    }
    return words;
}

// What fails here after an order leaves the others in the middle of something: nothing goes on.
static qn_status end_order(qn_team *team, qn_status status, const qn_err *why, qn_err *err) {
    if (status) qn_ranks_fail(team->ranks, why);
    (void)pthread_mutex_unlock(&team->lock);
    if (status && err) *err = *why;
    return status;
}

qn_status qn_runner_team_begin(qn_runner *r, qn_err *err) {
    qn_team *team = r->engine->team;
    int32_t *parts[QN_STEP_PARTS];
    qn_err why;
    int n;
    const int lane = (int)(r->lane - r->lanes);
    qn_team_order order = {.kind = QN_ORDER_STEP, .runner = r->team->number, .lane = lane};
    order.words = write_parts(parts, &n, r);
    order.parts = r->lane->n_parts = n;
    (void)pthread_mutex_lock(&team->lock);
    qn_status status = qn_team_post(&r->team->orders[lane], team, &order, parts[0], NULL, &why);
    if (!status) status = run_parts(r, parts, n, lane, &why);
    return end_order(team, status, &why, err);
}

// Brings the outputs of all parts.
static qn_status take_parts(qn_runner *r, qn_err *err) {
    const qn_runner_lane *lane = r->lane;
    int32_t *message = lane->n_parts > 1 ? lane->parts : lane->message;
    qn_output_place at = place_of(r, (int)(lane - r->lanes));
    for (int p = 0; p < lane->n_parts; p++) {
        qn_step step;
        qn_step_view(&step, message);
        QN_TRY(qn_outputs_take(&r->team->model, r, &r->stages[0], &step, &at, err));
        at.row += step.n_rows;
        at.out += step.n_out;
        message += qn_step_words(message);
    }
    return QN_OK;
}

qn_status qn_runner_team_end(qn_runner *r, qn_err *err) {
    qn_team *team = r->engine->team;
    qn_err why;
    (void)pthread_mutex_lock(&team->lock);
    qn_status status = take_parts(r, &why);
    if (!status) status = qn_team_arrive(&r->team->orders[r->lane - r->lanes], team, &why);
    r->step = r->lane->step; // the whole one again
    return end_order(team, status, &why, err);
}

qn_status qn_runner_team_copy(qn_runner *r, const int32_t *message, qn_err *err) {
    qn_team *team = r->engine->team;
    const qn_team_order order = {
        .kind = QN_ORDER_COPY, .runner = r->team->number, .words = (int64_t)qn_step_words(message)};
    (void)pthread_mutex_lock(&team->lock);
    const qn_status status = qn_team_give(team, &order, message, NULL, err);
    (void)pthread_mutex_unlock(&team->lock);
    return status;
}

const float *qn_runner_team_row(int64_t *width, const qn_shared_plan *plan, const char *output,
                                int64_t row) {
    for (size_t i = 0; i < plan->n_whole; i++) {
        const qn_whole_output *whole = &plan->whole[i];
        if (strcmp(whole->name, output) != 0) continue;
        *width = whole->width;
        return whole->rows + (plan->lane * whole->n_rows + row) * whole->width;
    }
    return NULL;
}

// --- the prediction head -------------------------------------------------------------------------

static qn_status run_head(qn_runner *r, const qn_sizes *sizes, qn_err *err) {
    qn_program *program = r->head.program;
    const qn_device_kind *kind = program->device->kind;
    if (!kind->begin(program, QN_PREFILL, r->head_message, sizes))
        return QN_FAIL(err, LIMIT, "a prediction of %lld rows cannot be bound",
                       (long long)sizes->rows);
    (void)kind->give(program, QN_ROWS_BEFORE, r->before);
    kind->run(program);
    kind->wait(program);
    qn_runner_bring_rows(&r->head, &r->head_step);
    QN_TRY(qn_device_failure(program->device, err));
    return qn_ranks_failure(r->engine->team->ranks, err);
}

qn_status qn_runner_team_predict(qn_runner *r, const qn_sizes *sizes, qn_err *err) {
    qn_team *team = r->engine->team;
    const qn_team_order order = {.kind = QN_ORDER_PREDICT,
                                 .runner = r->team->number,
                                 .words = (int64_t)qn_step_words(r->head_message),
                                 .rest = sizes->rows * r->engine->model->hparams->width};
    qn_err why;
    (void)pthread_mutex_lock(&team->lock);
    qn_status status =
        qn_team_give(team, &order, r->head_message, (const int32_t *)(const void *)r->before, &why);
    if (!status && qn_team_has_head(team)) status = run_head(r, sizes, &why);
    const qn_output_place at = place_of_head(r);
    if (!status) status = qn_outputs_take(&r->team->head, r, &r->head, &r->head_step, &at, &why);
    return end_order(team, status, &why, err);
}

// --- the others ----------------------------------------------------------------------------------

static qn_status too_long(const qn_team_order *order, int64_t have, qn_err *err) {
    return QN_FAIL(err, FORMAT, "rank 0 sent %lld and %lld words, this rank has room for %lld",
                   (long long)order->words, (long long)order->rest, (long long)have);
}

static qn_status room_for_head(int32_t **body, int32_t **more, qn_runner *r,
                               const qn_team_order *order, qn_err *err) {
    const qn_step_sizes max = qn_runner_max_head_sizes(r);
    const int64_t floats = r->head_rows * r->engine->model->hparams->width;
    size_t words;
    qn_step_sizes given = max;
    QN_TRY(qn_step_measure(&words, &max, err));
    if (order->words > (int64_t)words) {
        given.extra = given.rows;
        given.extra_width = r->engine->model->hparams->width;
        QN_TRY(qn_step_measure(&words, &given, err));
        QN_TRY(qn_runner_make_room(&r->head_message, &words, &r->head_given_room, r, &max, err));
    }
    if (order->words > (int64_t)words || order->rest > floats)
        return too_long(order, (int64_t)words, err);
    *body = r->head_message;
    *more = (int32_t *)(void *)r->before;
    return QN_OK;
}

qn_status qn_runner_team_room(int32_t **body, int32_t **more, qn_runner *r,
                              const qn_team_order *order, qn_err *err) {
    if (order->kind == QN_ORDER_PREDICT) return room_for_head(body, more, r, order, err);
    if (order->parts > QN_STEP_PARTS || order->rest || order->words > INT32_MAX)
        return too_long(order, QN_STEP_PARTS, err);
    if (order->lane >= r->n_lanes)
        return QN_FAIL(err, FORMAT, "rank 0 has a lane %d, this rank %d of them", order->lane,
                       r->n_lanes);
    QN_TRY(room_for_words(r->lane, (size_t)order->words, err));
    *body = r->lane->parts;
    return QN_OK;
}

static qn_status find_parts(int32_t **parts, const qn_runner *r, const qn_team_order *order,
                            qn_err *err) {
    int64_t at = 0;
    for (int p = 0; p < order->parts; p++) {
        parts[p] = r->lane->parts + at;
        at += at < order->words ? (int64_t)qn_step_words(parts[p]) : 1;
    }
    if (at == order->words) return QN_OK;
    return QN_FAIL(err, FORMAT, "rank 0 sent %d parts of %lld words, they count %lld", order->parts,
                   (long long)order->words, (long long)at);
}

static qn_status follow_step(qn_runner *r, const qn_team_order *order, qn_err *err) {
    int32_t *parts[QN_STEP_PARTS];
    QN_TRY(find_parts(parts, r, order, err));
    return run_parts(r, parts, order->parts, order->lane, err);
}

static qn_status follow_copy(qn_runner *r, const qn_team_order *order, qn_err *err) {
    qn_step step;
    (void)order, (void)err;
    qn_step_view(&step, r->lane->parts);
    qn_kv_copy(qn_state_memory(r->state), step.copies, step.n_copies);
    return QN_OK;
}

static qn_status follow_predict(qn_runner *r, const qn_team_order *order, qn_err *err) {
    const qn_team *team = r->engine->team;
    (void)order;
    if (!qn_team_has_head(team)) return QN_OK;
    qn_step_view(&r->head_step, r->head_message);
    const qn_sizes sizes = sizes_of(&r->head_step);
    const qn_output_place at = place_of_head(r);
    QN_TRY(run_head(r, &sizes, err));
    QN_TRY(qn_outputs_reuse(&r->team->head, team, 0, err));
    return qn_outputs_send(&r->team->head, r, &r->head, &r->head_step, &at, err);
}

qn_status qn_runner_team_follow(qn_runner *r, const qn_team_order *order, qn_err *err) {
    if (order->kind == QN_ORDER_STEP) return follow_step(r, order, err);
    if (order->kind == QN_ORDER_COPY) return follow_copy(r, order, err);
    return follow_predict(r, order, err);
}
