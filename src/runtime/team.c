#include "runtime/team.h"

#include "core/mem.h"
#include "runtime/engine.h"
#include "runtime/identity.h"
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

// --- the same model and options on all -----------------------------------------------------------

// What ranks must agree in, as words that are compared.
typedef struct likeness {
    uint64_t version, model, adapters;
    int64_t split, numerics, cache_type, mtp, layers, timeout_ms, no_weights;
    uint64_t shares; // a hash of the text
    uint64_t rope;
} likeness;

static const struct {
    const char *name;
    size_t offset;
} likeness_fields[] = {
    {"version of Quern", offsetof(likeness, version)},
    {"model", offsetof(likeness, model)},
    {"adapters", offsetof(likeness, adapters)},
    {"split", offsetof(likeness, split)},
    {"numerics", offsetof(likeness, numerics)},
    {"type of the KV cache", offsetof(likeness, cache_type)},
    {"use of the prediction head", offsetof(likeness, mtp)},
    {"layers", offsetof(likeness, layers)},
    {"rank timeout", offsetof(likeness, timeout_ms)},
    {"use of weights (--dry-run)", offsetof(likeness, no_weights)},
    {"shares of layers", offsetof(likeness, shares)},
    {"rope scaling", offsetof(likeness, rope)},
};

static qn_status describe(likeness *out, const qn_engine *engine, qn_err *err) {
    const qn_engine_opts *o = &engine->opts;
    *out = (likeness){.version = (uint64_t)QN_VERSION_MAJOR << 32 | QN_VERSION_MINOR << 16 |
                                 QN_VERSION_PATCH,
                      .split = o->split,
                      .numerics = o->numerics,
                      .cache_type = o->cache_type,
                      .mtp = o->mtp,
                      .layers = engine->model->hparams->layers,
                      .timeout_ms = o->rank_timeout_ms,
                      .no_weights = o->no_weights,
                      .rope = engine->rope_hash};
    for (const char *at = o->shares; at && *at; at++)
        out->shares = qn_identity_mix(out->shares, (unsigned char)*at, 1);
    for (int64_t i = 0; i < engine->model->n_sets; i++)
        out->adapters = qn_identity_mix(out->adapters, engine->adapter_hashes[i], 1);
    return qn_identity_hash(&out->model, engine->source, engine->pool, err);
}

static uint64_t word(const likeness *l, size_t offset) {
    uint64_t value;
    memcpy(&value, (const char *)l + offset, sizeof value);
    return value;
}

static qn_status compare(const likeness *all, int n, qn_err *err) {
    for (int r = 1; r < n; r++) {
        for (size_t f = 0; f < sizeof likeness_fields / sizeof *likeness_fields; f++) {
            const size_t at = likeness_fields[f].offset;
            if (word(&all[r], at) == word(&all[0], at)) continue;
            return QN_FAIL(err, ARGUMENT, "ranks differ in the %s: rank %d has %llx, rank 0 %llx",
                           likeness_fields[f].name, r, (unsigned long long)word(&all[r], at),
                           (unsigned long long)word(&all[0], at));
        }
    }
    return QN_OK;
}

// As many bytes of every rank, at `all`; one of them is at `own`.
static qn_status gather_equal(qn_team *team, void *all, const void *own, size_t bytes,
                              qn_err *err) {
    size_t *sizes = qn_alloc((size_t)team->n_ranks, sizeof *sizes);
    if (!sizes) return QN_NOMEM(err, "ranks");
    for (int r = 0; r < team->n_ranks; r++) sizes[r] = bytes;
    const qn_status status = qn_ranks_all_gather(team->ranks, all, own, sizes, err);
    qn_free(sizes);
    return status;
}

qn_status qn_team_compare(qn_team *team, const qn_engine *engine, qn_status own, qn_err *err) {
    likeness mine = {0}, *all = qn_alloc((size_t)team->n_ranks, sizeof *all);
    qn_status status = own;
    if (!status) status = all ? describe(&mine, engine, err) : QN_NOMEM(err, "ranks");
    status = qn_ranks_agree_late(team->ranks, status, err);
    if (!status) status = gather_equal(team, all, &mine, sizeof mine, err);
    if (!status) status = compare(all, team->n_ranks, err);
    qn_free(all);
    return status;
}

// --- what pages cost -----------------------------------------------------------------------------

// Bytes of a page of each group, and of a slot: the budget of rank 0 counts those of the rank that
// has most of them.
static void take_max(int64_t *to, const int64_t *all, int n_ranks, size_t n) {
    for (size_t i = 0; i < n; i++) {
        for (int r = 0; r < n_ranks; r++) to[i] = qn_max(to[i], all[(size_t)r * n + i]);
    }
}

// What is left out by QN_SKIP or a profile beside the weights, which may be another one on another
// machine: it changes what is gathered.
static qn_status compare_passes(qn_team *team, const qn_engine *engine, qn_err *err) {
    const uint64_t own = engine->skip | engine->profile.prefill.skip;
    uint64_t *all = qn_alloc((size_t)team->n_ranks, sizeof *all);
    qn_status status = all ? QN_OK : QN_NOMEM(err, "ranks");
    status = qn_ranks_agree(team->ranks, status, err);
    if (!status) status = gather_equal(team, all, &own, sizeof own, err);
    for (int r = 1; r < team->n_ranks && !status; r++) {
        if (all[r] != all[0])
            status = QN_FAIL(err, ARGUMENT,
                             "ranks differ in the passes that are left out: rank %d has %llx, rank "
                             "0 %llx",
                             r, (unsigned long long)all[r], (unsigned long long)all[0]);
    }
    qn_free(all);
    return status;
}

qn_status qn_team_level(qn_team *team, qn_engine *engine, qn_err *err) {
    qn_state_layout *layout = engine->layout;
    const size_t n = (size_t)layout->n_groups + 1;
    QN_TRY(compare_passes(team, engine, err));
    int64_t *own = qn_alloc(n, sizeof *own),
            *all = qn_alloc(n * (size_t)team->n_ranks, sizeof *all);
    qn_status status = own && all ? QN_OK : QN_NOMEM(err, "ranks");
    status = qn_ranks_agree(team->ranks, status, err);
    for (size_t g = 0; g + 1 < n && !status; g++) own[g] = layout->groups[g].page_bytes;
    if (!status) {
        own[n - 1] = layout->slot_bytes;
        status = gather_equal(team, all, own, n * sizeof *own, err);
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
