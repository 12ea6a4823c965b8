// How a model is split: the way, the layers of each rank, and what ranks hand to each other.
#include "runtime/engine.h"
#include "runtime/split_measure.h"
#include "runtime/split_model.h"
#include "runtime/split_plan.h"

#include "core/log.h"
#include "core/mem.h"
#include "ir/cut.h"

#include <stdio.h>
#include <string.h>

enum { USUAL_CONTEXT = 4096 };

// --- the plan ------------------------------------------------------------------------------------

// The plan of rank 0, from what all were measured to do.
static qn_status make_plan(qn_split_plan **out, const qn_team *team, const qn_engine *engine,
                           const qn_split_system *system, qn_err *err) {
    const int64_t limit = engine->model->hparams->context, asked = engine->opts.gpu_context;
    const qn_split_basis basis = {.backend = engine->stages[0].device->backend,
                                  .n_layers = engine->model->hparams->layers,
                                  .cache_type = engine->cache_type,
                                  .numerics = engine->opts.numerics};
    const qn_split_plan_opts opts = {.split = engine->opts.split,
                                     .shares = engine->opts.shares,
                                     .context = qn_min(limit, asked ? asked : USUAL_CONTEXT),
                                     .system_name = qn_ranks_system(team->ranks)};
    qn_split_model model = {0};
    QN_TRY(qn_split_model_read(&model, engine->graph, &basis, err));
    const qn_status status = qn_split_plan_create(out, &model, system, &opts, err);
    qn_split_model_deinit(&model);
    return status;
}

static qn_status measure(qn_split_system *out, qn_split_rank *all, const qn_team *team,
                         const qn_engine *engine, qn_err *err) {
    qn_split_rank own = {0};
    const qn_status status =
        qn_split_measure_rank(&own, engine->stages[0].device, engine->pool, err);
    QN_TRY(qn_ranks_agree(team->ranks, status, err));
    out->ranks = all;
    out->n = team->n_ranks;
    return qn_split_measure_link(&out->link, all, &own, team->ranks, err);
}

static void take_plan(qn_team *team, const qn_split_plan *plan, int64_t n_layers) {
    const qn_split_way *way = qn_split_plan_chosen(plan);
    team->split = way->split;
    team->first_layer[team->n_ranks] = n_layers;
    for (int r = 0; r < team->n_ranks; r++) team->first_layer[r] = way->shares[r].first;
}

// Measures, and rank 0 decides for all.
static qn_status plan_by_speed(qn_team *team, const qn_engine *engine, qn_err *err) {
    qn_split_rank *all = qn_alloc((size_t)team->n_ranks, sizeof *all);
    qn_split_system system = {0};
    qn_split_plan *plan = NULL;
    qn_status status = all ? QN_OK : QN_NOMEM(err, "ranks");
    status = qn_ranks_agree(team->ranks, status, err);
    if (!status) status = measure(&system, all, team, engine, err);
    if (status) {
        qn_free(all);
        return status;
    }
    if (team->rank == 0) {
        status = make_plan(&plan, team, engine, &system, err);
        if (!status) status = qn_split_plan_json(&team->plan, plan, err);
        if (!status) take_plan(team, plan, engine->model->hparams->layers);
        // Whoever asks for the plan gets it, with the reason in it.
        if (!status && engine->opts.split == QN_SPLIT_AUTO && team->n_ranks > 1 &&
            !engine->opts.no_weights)
            qn_log(engine->opts.log, engine->opts.log_arg, QN_LOG_INFO, "%d ranks: %s",
                   team->n_ranks, plan->why);
    }
    qn_split_plan_destroy(plan);
    qn_free(all);
    return qn_ranks_agree(team->ranks, status, err);
}

// What rank 0 has decided.
static qn_status tell_plan(qn_team *team, qn_err *err) {
    const size_t n = (size_t)team->n_ranks + 1;
    int64_t head[2] = {team->split, team->plan ? (int64_t)strlen(team->plan) + 1 : 0};
    QN_TRY(qn_ranks_broadcast(team->ranks, head, sizeof head, 0, err));
    if (head[0] < QN_SPLIT_TENSORS || head[0] > QN_SPLIT_LAYERS || head[1] < 0)
        return QN_FAIL(err, FORMAT, "rank 0 has decided on split %lld", (long long)head[0]);
    team->split = (qn_split)head[0];
    QN_TRY(
        qn_ranks_broadcast(team->ranks, team->first_layer, n * sizeof *team->first_layer, 0, err));
    if (!head[1]) return QN_OK;
    if (!team->plan) team->plan = qn_alloc((size_t)head[1], 1);
    const qn_status status = team->plan ? QN_OK : QN_NOMEM(err, "ranks");
    QN_TRY(qn_ranks_agree(team->ranks, status, err));
    return qn_ranks_broadcast(team->ranks, team->plan, (size_t)head[1], 0, err);
}

// Without measuring: as was typed, or where ranks outnumber layers, as evenly as it goes. Some have
// none then; the last one never is among them.
static qn_status plan_as_told(qn_team *team, const qn_engine *engine, qn_err *err) {
    const int64_t n_layers = engine->model->hparams->layers;
    const char *text = engine->opts.shares;
    const int n = team->n_ranks;
    for (int r = 0; r <= n; r++) team->first_layer[r] = n_layers * r / n;
    if (!text || n > n_layers) return QN_OK;
    qn_split_share *shares = qn_alloc((size_t)n, sizeof *shares);
    if (!shares) return QN_NOMEM(err, "ranks");
    const qn_status status = qn_split_parse_shares(shares, text, n, n_layers, err);
    for (int r = 0; r < n && !status; r++) team->first_layer[r] = shares[r].first;
    qn_free(shares);
    return status;
}

// Speeds are asked for where something depends on them, or they are to be shown.
static bool must_measure(const qn_team *team, const qn_engine *engine) {
    const bool has_shares = engine->opts.shares || team->n_ranks > engine->model->hparams->layers;
    return team->split == QN_SPLIT_AUTO || engine->opts.no_weights ||
           (team->split == QN_SPLIT_LAYERS && !has_shares);
}

// --- what goes from rank to rank -----------------------------------------------------------------

static bool is_cut(const char *name) {
    return strncmp(name, QN_CUT_NAME, strlen(QN_CUT_NAME)) == 0;
}

static qn_team_cut *find_cut(const qn_team_cuts *cuts, const char *name) {
    for (size_t i = 0; i < cuts->n; i++) {
        if (strcmp(cuts->items[i].name, name) == 0) return &cuts->items[i];
    }
    return NULL;
}

static qn_status add_cut(qn_team_cuts *to, const qn_graph *stage, const qn_output *output, int rank,
                         int n_ranks, qn_err *err) {
    qn_team_cut *items = qn_realloc(to->items, to->n + 1, sizeof *items);
    if (!items) return QN_NOMEM(err, "ranks");
    to->items = items;
    qn_team_cut *cut = &items[to->n];
    *cut = (qn_team_cut){.width = stage->values[output->value].shape.dims[1].n,
                         .maker = rank,
                         .reads = qn_alloc((size_t)n_ranks, sizeof *cut->reads)};
    if (!cut->reads) return QN_NOMEM(err, "ranks");
    snprintf(cut->name, sizeof cut->name, "%s", output->name);
    to->n++;
    return QN_OK;
}

static qn_status add_stage(qn_team_cuts *to, const qn_graph *stage, int rank, int n_ranks,
                           qn_err *err) {
    for (size_t i = 0; i < stage->n_outputs; i++) {
        if (is_cut(stage->outputs[i].name))
            QN_TRY(add_cut(to, stage, &stage->outputs[i], rank, n_ranks, err));
    }
    for (size_t i = 0; i < stage->n_nodes; i++) {
        const qn_node *node = &stage->nodes[i];
        if (node->op != QN_OP_INPUT) continue;
        qn_team_cut *cut = find_cut(to, stage->values[node->out[0]].name);
        if (cut) cut->reads[rank] = true;
    }
    return QN_OK;
}

// Which rows each rank hands to which others.
static qn_status find_cuts(qn_team_cuts *to, const qn_team *team, const qn_graph *graph,
                           int64_t n_layers, qn_err *err) {
    for (int r = 0; r < team->n_ranks && team->n_ranks > 1; r++) {
        qn_graph stage;
        QN_TRY(qn_graph_cut(&stage, graph, team->first_layer[r], team->first_layer[r + 1], n_layers,
                            err));
        const qn_status status = add_stage(to, &stage, r, team->n_ranks, err);
        qn_graph_deinit(&stage);
        if (status) return status;
    }
    return QN_OK;
}

qn_status qn_team_choose(qn_team *team, const qn_engine *engine, qn_err *err) {
    const int64_t n_layers = engine->model->hparams->layers;
    team->first_layer = qn_alloc((size_t)team->n_ranks + 1, sizeof *team->first_layer);
    qn_status status = team->first_layer ? QN_OK : QN_NOMEM(err, "ranks");
    const bool is_measured = must_measure(team, engine);
    if (!status && !is_measured) status = plan_as_told(team, engine, err);
    QN_TRY(qn_ranks_agree(team->ranks, status, err));
    if (is_measured) QN_TRY(plan_by_speed(team, engine, err));
    QN_TRY(tell_plan(team, err));
    if (team->split == QN_SPLIT_TENSORS) return QN_OK;
    QN_TRY(find_cuts(&team->cuts, team, engine->graph, n_layers, err));
    return find_cuts(&team->hidden_cuts, team, &engine->model->graph_hidden, n_layers, err);
}
