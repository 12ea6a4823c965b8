// A rank that follows: it has the runners that rank 0 has, without sequences, and runs their steps.
#include "runtime/runner_team.h"

#include "core/mem.h"

#include <string.h>

// What follows an order in a second block, and its body where no runner has room for it yet.
typedef struct following {
    const qn_engine *engine;
    qn_team *team;
    qn_team_want want; // of QN_ORDER_OPEN
    int64_t *n_pages;  // (layout's groups)
} following;

static qn_status find_runner(qn_runner **out, const following *f, const qn_team_order *order,
                             qn_err *err) {
    *out = f->team->runners[order->runner];
    if (*out) return QN_OK;
    return QN_FAIL(err, FORMAT, "rank 0 ordered %d of runner %d, which this rank does not have",
                   order->kind, order->runner);
}

static qn_status find_room(int32_t **body, int32_t **more, void *arg, const qn_team_order *order,
                           qn_err *err) {
    following *f = arg;
    qn_runner *runner;
    if (order->kind != QN_ORDER_OPEN) {
        QN_TRY(find_runner(&runner, f, order, err));
        return qn_runner_team_room(body, more, runner, order, err);
    }
    const int64_t n_groups = qn_state_layout_groups(f->engine->layout);
    if (order->words != sizeof f->want / sizeof(int32_t) || order->rest != 2 * n_groups)
        return QN_FAIL(err, FORMAT,
                       "rank 0 ordered a runner by %lld and %lld words, want %zu and %lld",
                       (long long)order->words, (long long)order->rest,
                       sizeof f->want / sizeof(int32_t), (long long)(2 * n_groups));
    *body = (int32_t *)(void *)&f->want;
    *more = (int32_t *)(void *)f->n_pages;
    return QN_OK;
}

// --- orders --------------------------------------------------------------------------------------

static qn_status check_want(const following *f, qn_err *err) {
    const int64_t n_groups = qn_state_layout_groups(f->engine->layout);
    for (int64_t g = 0; g < n_groups; g++) {
        if (f->n_pages[g] < 0 || f->n_pages[g] > INT32_MAX)
            return QN_FAIL(err, FORMAT, "rank 0 has %lld pages of group %lld, the most is %d",
                           (long long)f->n_pages[g], (long long)g, INT32_MAX);
    }
    if (f->want.n_lanes < 1 || f->want.n_lanes > QN_MAX_LANES)
        return QN_FAIL(err, FORMAT, "rank 0 has %lld lanes, the most is %d",
                       (long long)f->want.n_lanes, QN_MAX_LANES);
    if (f->want.n_groups == n_groups && f->want.n_slots >= 0 && f->want.n_slots <= INT32_MAX)
        return QN_OK;
    return QN_FAIL(err, FORMAT, "rank 0 has %lld groups and %lld slots, this rank %lld groups",
                   (long long)f->want.n_groups, (long long)f->want.n_slots, (long long)n_groups);
}

static qn_status open_runner(following *f, const qn_team_order *order, qn_err *err) {
    const qn_team_want *w = &f->want;
    const qn_runner_opts opts = {.engine = f->engine,
                                 .hidden = w->hidden != 0,
                                 .context = w->context,
                                 .rows = w->rows,
                                 .outs = w->outs,
                                 .segs = w->segs,
                                 .n_seqs = w->n_seqs,
                                 .positions = w->positions,
                                 .kept_bytes = w->kept_bytes,
                                 .n_pages = f->n_pages,
                                 .n_slots = w->n_slots,
                                 .lanes = (int)w->n_lanes};
    const uint64_t n_meetings = f->team->n_meetings;
    qn_runner *runner;
    QN_TRY(check_want(f, err));
    const qn_status status = qn_runner_create(&runner, &opts, err);
    if (!status) {
        f->team->runners[order->runner] = runner;
        qn_runner_team_number(runner, order->runner);
    }
    // All know that it failed, and may do without; unless this rank has not come to meet them.
    const bool is_known = f->team->n_meetings > n_meetings;
    return is_known && !qn_ranks_failure(f->team->ranks, NULL) ? QN_OK : status;
}

static qn_status close_runner(following *f, const qn_team_order *order, qn_err *err) {
    qn_runner *runner;
    QN_TRY(find_runner(&runner, f, order, err));
    f->team->runners[order->runner] = NULL;
    qn_runner_destroy(runner);
    return QN_OK;
}

static qn_status run(following *f, const qn_team_order *order, qn_err *err) {
    qn_runner *runner;
    QN_TRY(find_runner(&runner, f, order, err));
    return qn_runner_team_follow(runner, order, err);
}

static qn_status end(following *f, const qn_team_order *order, qn_err *err) {
    (void)order, (void)err;
    f->team->has_ended = true;
    return QN_OK;
}

typedef qn_status order_fn(following *f, const qn_team_order *order, qn_err *err);

static order_fn *const orders[QN_ORDER_KINDS] = {
    [QN_ORDER_END] = end,  [QN_ORDER_OPEN] = open_runner, [QN_ORDER_CLOSE] = close_runner,
    [QN_ORDER_STEP] = run, [QN_ORDER_COPY] = run,         [QN_ORDER_PREDICT] = run};

static qn_status follow(following *f, qn_err *err) {
    while (!f->team->has_ended) {
        qn_team_order order;
        QN_TRY(qn_team_await(&order, f->team, find_room, f, err));
        QN_TRY(orders[order.kind](f, &order, err));
    }
    return QN_OK;
}

qn_status qn_team_follow(const qn_engine *engine, qn_err *err) {
    following f = {.engine = engine, .team = engine->team};
    f.n_pages = qn_alloc((size_t)qn_state_layout_groups(engine->layout), sizeof *f.n_pages);
    if (!f.n_pages) return QN_NOMEM(err, "ranks");
    qn_err why;
    const qn_status status = follow(&f, &why);
    if (status) qn_ranks_fail(f.team->ranks, &why);
    if (status && err) *err = why;
    for (int i = 0; i < QN_TEAM_RUNNERS; i++) {
        qn_runner_destroy(f.team->runners[i]);
        f.team->runners[i] = NULL;
    }
    qn_free(f.n_pages);
    return status;
}
