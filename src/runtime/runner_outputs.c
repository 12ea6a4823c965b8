// What the ranks of a runner have computed of its outputs, brought to rank 0.
//
// With a split of layers each output is on one rank. With one of tensors every rank has all of them
// but logits and best logits, of which it has its own part of the vocabulary. Both sides go through
// the outputs in the order of the sender's plan, so that messages need no names.
//
// Several steps may be under way. A rank that has computed one keeps what rank 0 wants of it in the
// step's lane and goes on, while messages are on their way; rank 0 takes them when it wants them.
#include "runtime/best_lists.h"
#include "runtime/runner_team.h"
#include "runtime/split_cost.h"

#include "core/mem.h"
#include "ir/cut.h"

#include <stdio.h>
#include <string.h>

static bool is_best(const char *output) { return strcmp(output, "best") == 0; }

// With a split of tensors: logits where they are a part of the vocabulary, and the best of it.
static bool is_part(const qn_plan *plan, const qn_plan_output *o) {
    const qn_plan_output *logits = qn_plan_find_output(plan, "logits");
    return o->share || (is_best(o->name) && logits && logits->share);
}

static bool is_sent(const qn_team *team, const qn_plan *plan, const qn_plan_output *o) {
    if (strncmp(o->name, QN_CUT_NAME, strlen(QN_CUT_NAME)) == 0) return false;
    return team->split == QN_SPLIT_LAYERS || is_part(plan, o);
}

// --- what there is -------------------------------------------------------------------------------

static const qn_plan *plan_of(const qn_runner_stage *stage) { return stage->plans[QN_PREFILL]; }

// What a rank's plan gives rank 0; *n_out counts.
static qn_status describe(qn_far_output **out, size_t *n_out, const qn_team *team,
                          const qn_runner_stage *stage, qn_err *err) {
    const qn_plan *plan = stage ? plan_of(stage) : NULL;
    const size_t max = plan ? plan->n_outputs : 0;
    qn_far_output *items = qn_alloc(max, sizeof *items);
    if (!items) return QN_NOMEM(err, "outputs of ranks");
    *out = items;
    *n_out = 0;
    for (size_t i = 0; i < max; i++) {
        const qn_plan_output *o = &plan->outputs[i];
        if (!is_sent(team, plan, o)) continue;
        if (o->rows.n != 1 || (o->rows.sym != QN_SYM_T && o->rows.sym != QN_SYM_R) ||
            o->arg.parts != 1 || strlen(o->name) >= sizeof items->name)
            return QN_FAIL(err, UNSUPPORTED, "output %s cannot be brought from another rank",
                           o->name);
        qn_far_output *item = &items[(*n_out)++];
        *item = (qn_far_output){.width = o->arg.width,
                                .sym = (int32_t)o->rows.sym,
                                .has_best = strcmp(o->name, "logits") == 0 &&
                                            qn_plan_find_output(plan, "best") != NULL};
        snprintf(item->name, sizeof item->name, "%s", o->name);
    }
    return QN_OK;
}

enum { MAX_OUTPUTS = 4096 }; // of a plan

// What a rank has outputs told with. All of it is there before ranks meet.
typedef struct telling {
    size_t *bytes;    // (n_ranks)
    uint64_t *counts; // (n_ranks)
} telling;

static qn_status telling_init(telling *t, qn_far_outputs *far, int n_ranks, qn_err *err) {
    t->bytes = qn_alloc((size_t)n_ranks, sizeof *t->bytes);
    t->counts = qn_alloc((size_t)n_ranks, sizeof *t->counts);
    far->first = qn_alloc((size_t)n_ranks + 1, sizeof *far->first);
    return t->bytes && t->counts && far->first ? QN_OK : QN_NOMEM(err, "outputs of ranks");
}

// Counts of all ranks, and room for that many.
static qn_status count_all(const telling *t, qn_far_outputs *far, const qn_team *team, size_t n_own,
                           qn_err *err) {
    uint64_t count = n_own;
    const int n = team->n_ranks;
    for (int r = 0; r < n; r++) t->bytes[r] = sizeof count;
    QN_TRY(qn_ranks_all_gather(team->ranks, t->counts, &count, t->bytes, err));
    for (int r = 0; r < n; r++) {
        if (t->counts[r] > MAX_OUTPUTS)
            return QN_FAIL(err, FORMAT, "rank %d has %llu outputs, at most %d", r,
                           (unsigned long long)t->counts[r], MAX_OUTPUTS);
        far->first[r + 1] = far->first[r] + (size_t)t->counts[r];
        t->bytes[r] = (size_t)t->counts[r] * sizeof *far->items;
    }
    far->items = qn_alloc(far->first[n], sizeof *far->items);
    return far->items ? QN_OK : QN_NOMEM(err, "outputs of ranks");
}

// All ranks tell all others. Each of them comes this far, well or not.
static qn_status exchange(qn_far_outputs *far, const qn_team *team, const qn_far_output *own,
                          size_t n_own, qn_status status, qn_err *err) {
    telling t = {0};
    if (!status) status = telling_init(&t, far, team->n_ranks, err);
    status = qn_ranks_agree(team->ranks, status, err);
    if (!status) {
        status = count_all(&t, far, team, n_own, err);
        status = qn_ranks_agree(team->ranks, status, err);
    }
    if (!status) status = qn_ranks_all_gather(team->ranks, far->items, own, t.bytes, err);
    qn_free(t.bytes);
    qn_free(t.counts);
    return status;
}

// --- room for what is put together ---------------------------------------------------------------

static qn_whole_output *find_whole(const qn_shared_plan *plan, const char *name) {
    for (size_t i = 0; i < plan->n_whole; i++) {
        if (strcmp(plan->whole[i].name, name) == 0) return &plan->whole[i];
    }
    return NULL;
}

// With a split of layers, rank 0 has its own outputs.
static bool is_far(const qn_team *team, int rank) {
    return rank > 0 || team->split == QN_SPLIT_TENSORS;
}

// Whose outputs this rank has room for: rank 0 for those of all, the others for their own.
static bool is_held(const qn_team *team, int rank) {
    return team->rank == 0 ? is_far(team, rank) : rank == team->rank;
}

static qn_status room_for_rows(qn_whole_output *whole, const qn_outputs_max *max, qn_err *err) {
    size_t n;
    whole->n_rows = whole->sym == QN_SYM_T ? max->rows : max->outs;
    if (qn_size_mul(&n, (size_t)whole->n_rows, (size_t)whole->width) &&
        qn_size_mul(&n, n, (size_t)max->lanes))
        whole->rows = qn_alloc(n, sizeof *whole->rows);
    return whole->rows ? QN_OK : QN_NOMEM(err, "outputs of ranks");
}

// A message has a row at least. Of a step in parts, each part has its own.
static qn_status room_for_sends(qn_shared_plan *plan, const qn_outputs_max *max, qn_err *err) {
    plan->max_sends = plan->n_whole * ((size_t)max->outs + QN_STEP_PARTS);
    plan->n_lanes = max->lanes;
    plan->n_sends = qn_alloc((size_t)max->lanes, sizeof *plan->n_sends);
    plan->sends = qn_alloc((size_t)max->lanes, plan->max_sends * sizeof *plan->sends);
    return plan->n_sends && plan->sends ? QN_OK : QN_NOMEM(err, "outputs of ranks");
}

static qn_status make_room(qn_shared_plan *plan, const qn_team *team, const qn_outputs_max *max,
                           qn_err *err) {
    const qn_far_outputs *far = &plan->far;
    int64_t best = 1;
    plan->whole = qn_alloc(far->first[team->n_ranks], sizeof *plan->whole);
    if (!plan->whole) return QN_NOMEM(err, "outputs of ranks");
    for (int r = 0; r < team->n_ranks; r++) {
        for (size_t i = far->first[r]; i < far->first[r + 1] && is_held(team, r); i++) {
            const qn_far_output *o = &far->items[i];
            qn_whole_output *whole = find_whole(plan, o->name);
            const bool is_list = is_best(o->name);
            if (is_list) best = qn_max(best, o->width);
            if (whole && !is_list) whole->width += o->width; // a part of the vocabulary
            if (!whole)
                plan->whole[plan->n_whole++] =
                    (qn_whole_output){.name = o->name, .sym = (qn_sym)o->sym, .width = o->width};
        }
    }
    for (size_t i = 0; i < plan->n_whole; i++) QN_TRY(room_for_rows(&plan->whole[i], max, err));
    if (team->rank > 0) return room_for_sends(plan, max, err);
    plan->best = qn_alloc((size_t)max->outs, (size_t)best * sizeof *plan->best);
    return plan->best ? QN_OK : QN_NOMEM(err, "outputs of ranks");
}

qn_status qn_outputs_exchange(qn_shared_plan *plan, qn_runner *r, const qn_runner_stage *stage,
                              const qn_outputs_max *max, qn_err *err) {
    const qn_team *team = r->engine->team;
    qn_far_output *own = NULL;
    size_t n_own = 0;
    qn_status status = describe(&own, &n_own, team, stage, err);
    status = exchange(&plan->far, team, own, n_own, status, err);
    if (!status) status = make_room(plan, team, max, err);
    qn_free(own);
    return qn_ranks_agree(team->ranks, status, err);
}

void qn_outputs_free(qn_shared_plan *plan) {
    for (size_t i = 0; i < plan->n_whole; i++) qn_free(plan->whole[i].rows);
    qn_free(plan->whole);
    qn_free(plan->best);
    qn_free(plan->sends);
    qn_free(plan->n_sends);
    qn_free(plan->far.items);
    qn_free(plan->far.first);
    *plan = (qn_shared_plan){0};
}

// Of what rank 0 puts together: logits of wanted rows and the best of them, and the rows that the
// prediction head reads.
int64_t qn_outputs_bytes(const qn_engine *engine, const qn_outputs_max *max) {
    const qn_hparams *hp = engine->model->hparams;
    int64_t wanted, rows = 0, all;
    if (qn_i64_mul(&wanted, max->outs, hp->vocab + 2 + 2 * QN_HEAD_TOP) &&
        qn_i64_mul(&rows, engine->opts.mtp ? max->rows : 0, hp->width) &&
        qn_i64_add(&all, wanted, rows) &&
        qn_i64_mul(&all, all, max->lanes * (int64_t)sizeof(float)))
        return all;
    return INT64_MAX;
}

// --- messages ------------------------------------------------------------------------------------

static int64_t rows_of(qn_sym sym, const qn_step *step) {
    return sym == QN_SYM_T ? step->n_rows : step->n_out;
}

static bool is_row_sent(bool has_best, const qn_step *step, int64_t row) {
    return !has_best || !step->out_full || step->out_full[row];
}

// Rows [first, end) of an output that go in one message. Both sides find the same ones.
typedef struct row_range {
    int64_t first, end;
} row_range;

// The next ones after `range`; false: there are none. Best logits go in messages that shared memory
// carries without help of a rank that computes already; of shares of a vocabulary, rows do not lie
// together at rank 0.
static bool next_rows(row_range *range, const qn_team *team, const qn_far_output *o,
                      const qn_step *step) {
    const int64_t n = rows_of((qn_sym)o->sym, step);
    int64_t max = team->split == QN_SPLIT_LAYERS ? n : 1;
    if (is_best(o->name)) max = QN_SPLIT_LISTS;
    range->first = range->end;
    while (range->first < n && !is_row_sent(o->has_best, step, range->first)) range->first++;
    range->end = range->first;
    while (range->end < n && range->end - range->first < max &&
           is_row_sent(o->has_best, step, range->end))
        range->end++;
    return range->end > range->first;
}

static float *lane_row(const qn_whole_output *whole, const qn_output_place *at, int64_t i) {
    const int64_t first = whole->sym == QN_SYM_T ? at->row : at->out;
    return whole->rows + (at->lane * whole->n_rows + first + i) * whole->width;
}

// --- sending -------------------------------------------------------------------------------------

static qn_status send_rows(qn_shared_plan *plan, const qn_team *team, const float *rows, int64_t n,
                           const qn_output_place *at, qn_err *err) {
    size_t *k = &plan->n_sends[at->lane];
    qn_ranks_request *request = &plan->sends[(size_t)at->lane * plan->max_sends + (*k)++];
    QN_TRY(qn_ranks_send(request, team->ranks, rows, (size_t)n * sizeof *rows, 0, at->tag, err));
    // By tensors rank 0 takes them at once, and there may be one for each row of a prompt.
    return team->split == QN_SPLIT_TENSORS ? qn_ranks_wait(team->ranks, request, err) : QN_OK;
}

static qn_status send_output(qn_shared_plan *plan, const qn_runner *r, const qn_far_output *o,
                             const qn_runner_stage *stage, const qn_step *step,
                             const qn_output_place *at, qn_err *err) {
    const qn_team *team = r->engine->team;
    const qn_program *program = stage->program;
    const qn_whole_output *whole = find_whole(plan, o->name);
    const qn_plan_output *output = qn_plan_find_output(qn_runner_plan(stage), o->name);
    row_range range = {0};
    while (next_rows(&range, team, o, step)) {
        for (int64_t i = range.first; i < range.end; i++)
            memcpy(lane_row(whole, at, i), program->device->kind->row(program, output, i),
                   (size_t)o->width * sizeof(float));
        QN_TRY(send_rows(plan, team, lane_row(whole, at, range.first),
                         (range.end - range.first) * o->width, at, err));
    }
    return QN_OK;
}

qn_status qn_outputs_send(qn_shared_plan *plan, const qn_runner *r, const qn_runner_stage *stage,
                          const qn_step *step, const qn_output_place *at, qn_err *err) {
    const int own = r->engine->team->rank;
    for (size_t i = plan->far.first[own]; i < plan->far.first[own + 1]; i++)
        QN_TRY(send_output(plan, r, &plan->far.items[i], stage, step, at, err));
    return QN_OK;
}

qn_status qn_outputs_reuse(qn_shared_plan *plan, const qn_team *team, int lane, qn_err *err) {
    if (!plan->sends) return QN_OK;
    for (size_t i = 0; i < plan->n_sends[lane]; i++)
        QN_TRY(qn_ranks_wait(team->ranks, &plan->sends[(size_t)lane * plan->max_sends + i], err));
    plan->n_sends[lane] = 0;
    return QN_OK;
}

void qn_outputs_sent(qn_shared_plan *plan, const qn_team *team) {
    qn_status status = QN_OK;
    for (int i = 0; i < plan->n_lanes && !status; i++)
        status = qn_outputs_reuse(plan, team, i, NULL);
}

// --- taking --------------------------------------------------------------------------------------

// Where rows of a step that is being taken go.
typedef struct taking {
    const qn_team *team;
    qn_shared_plan *plan;
    const qn_step *step;
    const qn_output_place *at;
    int rank;
    int64_t n_before; // logits of the ranks before
} taking;

static qn_status receive(const taking *t, float *to, int64_t n, qn_err *err) {
    qn_ranks_request request = {0};
    QN_TRY(qn_ranks_receive(&request, t->team->ranks, to, (size_t)n * sizeof *to, t->rank,
                            t->at->tag, err));
    return qn_ranks_wait(t->team->ranks, &request, err);
}

// Adds one rank's best logits, (n, width) at plan->best.
static void add_best(const taking *t, const qn_whole_output *whole, int64_t n) {
    const int64_t width = whole->width, max = width / 2 - 1;
    for (int64_t i = 0; i < n; i++) {
        float *row = lane_row(whole, t->at, i);
        if (t->n_before == 0) qn_best_clear(row, max);
        qn_best_add(row, t->plan->best + i * width, max, t->step->top, t->n_before);
    }
}

static qn_status take_output(const taking *t, const qn_far_output *o, qn_err *err) {
    const qn_whole_output *whole = find_whole(t->plan, o->name);
    const bool is_list = is_best(o->name);
    row_range range = {0};
    while (next_rows(&range, t->team, o, t->step)) {
        float *to = is_list ? t->plan->best + range.first * o->width
                            : lane_row(whole, t->at, range.first) + t->n_before;
        QN_TRY(receive(t, to, (range.end - range.first) * o->width, err));
    }
    if (is_list) add_best(t, whole, rows_of((qn_sym)o->sym, t->step));
    return QN_OK;
}

// Rank 0's own share of the vocabulary, with a split of tensors.
static void take_own(const taking *t, const qn_far_output *o, const qn_runner_stage *stage) {
    const qn_whole_output *whole = find_whole(t->plan, o->name);
    const qn_program *program = stage->program;
    const qn_plan_output *output = qn_plan_find_output(qn_runner_plan(stage), o->name);
    const bool is_list = is_best(o->name);
    const int64_t n = rows_of((qn_sym)o->sym, t->step);
    for (int64_t i = 0; i < n; i++) {
        if (!is_row_sent(o->has_best, t->step, i)) continue;
        const float *row = program->device->kind->row(program, output, i);
        memcpy(is_list ? t->plan->best + i * o->width : lane_row(whole, t->at, i), row,
               (size_t)o->width * sizeof *row);
    }
    if (is_list) add_best(t, whole, n);
}

qn_status qn_outputs_take(qn_shared_plan *plan, const qn_runner *r, const qn_runner_stage *stage,
                          const qn_step *step, const qn_output_place *at, qn_err *err) {
    taking t = {.team = r->engine->team, .plan = plan, .step = step, .at = at};
    plan->lane = at->lane;
    for (t.rank = 0; t.rank < t.team->n_ranks; t.rank++) {
        int64_t n_logits = 0;
        if (!is_far(t.team, t.rank)) continue;
        for (size_t i = plan->far.first[t.rank]; i < plan->far.first[t.rank + 1]; i++) {
            const qn_far_output *o = &plan->far.items[i];
            if (t.rank == 0)
                take_own(&t, o, stage);
            else
                QN_TRY(take_output(&t, o, err));
            if (strcmp(o->name, "logits") == 0) n_logits = o->width;
        }
        t.n_before += t.team->split == QN_SPLIT_TENSORS ? n_logits : 0;
    }
    return QN_OK;
}
