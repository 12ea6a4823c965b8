#include "runtime/team.h"

#include "core/mem.h"
#include "runtime/engine.h"
#include "runtime/state_int.h"

#include <string.h>

// --- life ----------------------------------------------------------------------------------------

static bool gather(void *arg, void *to, const void *from, const size_t *bytes) {
    qn_team *team = arg; // whoever runs the program asks the ranks why
    return !qn_ranks_all_gather(team->ranks, to, from, bytes, NULL);
}

qn_status qn_team_join(qn_team **out, const qn_engine_opts *opts, const qn_ranks_opts *ranks,
                       qn_err *err) {
    const qn_ranks_opts usual = {.timeout_ms = opts->rank_timeout_ms, .stop = opts->stop};
    qn_team *team = qn_alloc(1, sizeof *team);
    if (!team) return QN_NOMEM(err, "ranks");
    const qn_status status = qn_ranks_join(&team->ranks, ranks ? ranks : &usual, err);
    if (status) {
        qn_free(team);
        return status;
    }
    team->rank = qn_ranks_own(team->ranks);
    team->n_ranks = qn_ranks_count(team->ranks);
    team->split = opts->split;
    team->gather =
        (qn_gather){.arg = team, .rank = team->rank, .n_ranks = team->n_ranks, .gather = gather};
    (void)pthread_mutex_init(&team->lock, NULL);
    *out = team;
    return QN_OK;
}

static void free_cuts(qn_team_cuts *cuts) {
    for (size_t i = 0; i < cuts->n; i++) qn_free(cuts->items[i].reads);
    qn_free(cuts->items);
}

void qn_team_leave(qn_team *team) {
    if (!team) return;
    if (team->rank == 0 && team->has_opened)
        qn_team_tell(team, &(qn_team_order){.kind = QN_ORDER_END});
    qn_ranks_leave(team->ranks);
    (void)pthread_mutex_destroy(&team->lock);
    free_cuts(&team->cuts);
    free_cuts(&team->hidden_cuts);
    qn_free(team->first_layer);
    qn_free(team->plan);
    qn_free(team);
}

// While a step runs it is the step that finds out.
qn_status qn_team_check(qn_team *team, qn_err *err) {
    if (pthread_mutex_trylock(&team->lock) != 0) return QN_OK;
    const qn_status status = qn_ranks_check(team->ranks, err);
    (void)pthread_mutex_unlock(&team->lock);
    return status;
}

qn_status qn_team_refuse(const qn_team *team, const char *what, qn_err *err) {
    if (!team) return QN_OK;
    return QN_FAIL(err, UNSUPPORTED, "%s: not of a model that %d ranks share", what, team->n_ranks);
}

qn_status qn_team_gather_equal(qn_team *team, void *all, const void *own, size_t bytes,
                               qn_err *err) {
    size_t *sizes = qn_alloc((size_t)team->n_ranks, sizeof *sizes);
    if (!sizes) return QN_NOMEM(err, "ranks");
    for (int r = 0; r < team->n_ranks; r++) sizes[r] = bytes;
    const qn_status status = qn_ranks_all_gather(team->ranks, all, own, sizes, err);
    qn_free(sizes);
    return status;
}

int qn_team_threads(const qn_team *team) {
    const int share = qn_pool_default_threads() / qn_ranks_sharing(team->ranks);
    return share > 1 ? share : 1;
}

// --- what pages cost -----------------------------------------------------------------------------

// Bytes of a page of each group, and of a slot: the budget of rank 0 counts those of the rank that
// has most of them.
static void take_max(int64_t *to, const int64_t *all, int n_ranks, size_t n) {
    for (size_t i = 0; i < n; i++) {
        for (int r = 0; r < n_ranks; r++) to[i] = qn_max(to[i], all[(size_t)r * n + i]);
    }
}

qn_status qn_team_level(qn_team *team, qn_engine *engine, qn_err *err) {
    qn_state_layout *layout = engine->layout;
    const size_t n = (size_t)layout->n_groups + 1;
    int64_t *own = qn_alloc(n, sizeof *own),
            *all = qn_alloc(n * (size_t)team->n_ranks, sizeof *all);
    qn_status status = own && all ? QN_OK : QN_NOMEM(err, "ranks");
    status = qn_ranks_agree(team->ranks, status, err);
    for (size_t g = 0; g + 1 < n && !status; g++) own[g] = layout->groups[g].page_bytes;
    if (!status) {
        own[n - 1] = layout->slot_bytes;
        status = qn_team_gather_equal(team, all, own, n * sizeof *own, err);
    }
    if (!status) {
        take_max(own, all, team->n_ranks, n);
        for (size_t g = 0; g + 1 < n; g++) layout->groups[g].page_bytes = own[g];
        layout->slot_bytes = own[n - 1];
        layout->is_level = true;
    }
    qn_free(own);
    qn_free(all);
    return status;
}
