#include "runtime/check.h"
#include "runtime/runner_int.h"
#include "runtime/runner_team.h"
#include "runtime/split_cost.h"
#include "runtime/tally.h"

#include "core/log.h"
#include "core/mem.h"
#include "ir/cut.h"

#include <string.h>

enum { LOG_TIMES = 2 }; // of QN_DEBUG
_Static_assert((int)QN_SPLIT_LANES == (int)QN_MAX_LANES, "as many as are predicted");

// --- messages ------------------------------------------------------------------------------------

qn_step_sizes qn_runner_max_sizes(const qn_runner *r) {
    return (qn_step_sizes){.rows = r->opts.rows,
                           .segs = r->opts.segs,
                           .outs = r->opts.outs,
                           .groups = qn_state_groups(r->state),
                           .pages = qn_state_pages_per_seg(r->state),
                           .copies = QN_COPIES_MAX};
}

qn_step_sizes qn_runner_max_head_sizes(const qn_runner *r) {
    return (qn_step_sizes){.rows = r->head_rows,
                           .segs = r->opts.segs,
                           .outs = r->head_rows,
                           .groups = qn_state_groups(r->state),
                           .pages = qn_state_pages_per_seg(r->state)};
}

static qn_status alloc_message(int32_t **out, size_t *words, const qn_step_sizes *max,
                               qn_err *err) {
    size_t n;
    QN_TRY(qn_step_measure(&n, max, err));
    int32_t *message = qn_alloc(n, sizeof *message);
    if (!message) return QN_NOMEM(err, "a step");
    qn_free(*out);
    *out = message;
    *words = n;
    return QN_OK;
}

qn_status qn_runner_make_room(int32_t **message, size_t *words, bool *has_room, const qn_runner *r,
                              const qn_step_sizes *max, qn_err *err) {
    qn_step_sizes all = *max;
    if (*has_room) return QN_OK;
    all.extra = all.rows;
    all.extra_width = r->engine->model->hparams->width;
    QN_TRY(alloc_message(message, words, &all, err));
    *has_room = true;
    return QN_OK;
}

// By layers, while one rank computes a step another can compute the next; not where a step is
// looked at as a whole, which its program has until the next one.
static int choose_lanes(const qn_runner *r) {
    const qn_team *team = r->engine->team;
    const qn_runner_opts *o = &r->opts;
    const bool is_looked_at = o->hidden || o->trace || r->engine->switches.layers ||
                              r->engine->switches.debug >= LOG_TIMES;
    if (o->lanes) return o->lanes;
    if (!team || team->split != QN_SPLIT_LAYERS || is_looked_at) return 1;
    return qn_split_lanes(team->n_ranks, o->segs);
}

// Room for the largest message, touched where it is used only. A record may have given rows.
static qn_status init_lane(qn_runner_lane *lane, const qn_runner *r, qn_err *err) {
    const qn_step_sizes max = qn_runner_max_sizes(r);
    if (r->opts.n_pages) return QN_OK; // its messages come with their orders
    lane->seqs = qn_alloc((size_t)r->opts.segs, sizeof(qn_seq *));
    if (!lane->seqs) return QN_NOMEM(err, "a step");
    if (!r->opts.is_replay) return alloc_message(&lane->message, &lane->message_words, &max, err);
    return qn_runner_make_room(&lane->message, &lane->message_words, &lane->has_given_room, r, &max,
                               err);
}

static qn_status init_lanes(qn_runner *r, qn_err *err) {
    const qn_step_sizes copies = {.groups = qn_state_groups(r->state), .copies = QN_COPIES_MAX};
    size_t words;
    r->n_lanes = choose_lanes(r);
    for (int i = 0; i < r->n_lanes; i++) QN_TRY(init_lane(&r->lanes[i], r, err));
    return alloc_message(&r->copying, &words, &copies, err);
}

// Opens the file that the steps are recorded in, where one is wanted.
static qn_status init_record(qn_runner *r, qn_err *err) {
    const char *path = r->engine->switches.steps;
    const qn_hparams *hp = r->engine->model->hparams;
    const qn_runner_opts *o = &r->opts;
    if (!path) return QN_OK;
    const qn_record_head head = {.vocab = hp->vocab,
                                 .layers = hp->layers,
                                 .width = hp->width,
                                 .context = o->context,
                                 .rows = o->rows,
                                 .outs = o->outs,
                                 .segs = o->segs,
                                 .n_seqs = o->n_seqs,
                                 .positions = o->positions,
                                 .kept_bytes = o->kept_bytes};
    QN_TRY(qn_record_create(&r->record, path, &head, err));
    qn_log(r->engine->opts.log, r->engine->opts.log_arg, QN_LOG_INFO, "steps are recorded in %s",
           qn_record_path(r->record));
    return QN_OK;
}

// --- leaves --------------------------------------------------------------------------------------

// Position of a leaf of this kind and name among those of the model's own graph.
static size_t state_index(const qn_graph *graph, qn_kind kind, const char *name) {
    size_t n = 0;
    for (size_t i = 0; i < graph->n_nodes; i++) {
        const qn_value *value = &graph->values[graph->nodes[i].out[0]];
        if (graph->nodes[i].op != QN_OP_INPUT || value->kind != kind) continue;
        if (strcmp(value->name, name) == 0) break;
        n++;
    }
    return n;
}

// The prediction head and the last stage share some.
static const void *find_weight(const qn_engine *engine, const qn_stage *stage, const char *name) {
    const qn_packs *packs[] = {stage->packs, engine->head.packs,
                               engine->stages[engine->n_stages - 1].packs};
    const size_t n = engine->head.packs ? sizeof packs / sizeof *packs : 1;
    const void *found = NULL;
    for (size_t i = 0; i < n && !found; i++) found = qn_packs_find(packs[i], name);
    return found;
}

static qn_status find_weights(qn_leaves *to, const qn_engine *engine, const qn_stage *stage,
                              const qn_plan *plan, qn_err *err) {
    const size_t n = plan->n_leaves[QN_PLACE_PARAM];
    to->weights = qn_alloc(n, sizeof *to->weights);
    if (!to->weights) return QN_NOMEM(err, "plan");
    for (size_t i = 0; i < n; i++) {
        const char *name = plan->leaves[QN_PLACE_PARAM][i].name;
        to->weights[i] = find_weight(engine, stage, name);
        if (!to->weights[i] && !qn_residency_has(engine->residency, name))
            return QN_FAIL(err, STATE, "weight %s is not loaded", name);
    }
    return QN_OK;
}

static qn_status init_leaves(qn_leaves *to, const qn_runner *r, const qn_stage *stage,
                             const qn_plan *plan, qn_err *err) {
    const size_t n_caches = plan->n_leaves[QN_PLACE_CACHE];
    const size_t n_states = plan->n_leaves[QN_PLACE_STATE];
    const qn_graph *model = r->engine->graph;
    const qn_kv_memory *memory = qn_state_memory(r->state);
    if (stage->packs) QN_TRY(find_weights(to, r->engine, stage, plan, err));
    to->caches = qn_alloc(n_caches, sizeof *to->caches);
    to->slots = qn_alloc(n_states, sizeof *to->slots);
    if (!to->caches || !to->slots) return QN_NOMEM(err, "plan");
    for (size_t i = 0; i < n_caches; i++)
        to->caches[i] =
            qn_kv_cache(memory, state_index(model, QN_CACHE, plan->leaves[QN_PLACE_CACHE][i].name));
    for (size_t i = 0; i < n_states; i++)
        to->slots[i] = qn_kv_slots(
            memory, state_index(model, QN_STATE_VALUE, plan->leaves[QN_PLACE_STATE][i].name));
    return QN_OK;
}

static void free_leaves(qn_leaves *leaves) {
    qn_free(leaves->weights);
    qn_free(leaves->caches);
    qn_free(leaves->slots);
}

// --- stages --------------------------------------------------------------------------------------

static qn_state_opts state_opts(const qn_runner_opts *o) {
    return (qn_state_opts){.layout = o->engine->layout,
                           .context = o->context,
                           .step_rows = o->rows,
                           .n_seqs = o->n_seqs,
                           .positions = o->positions,
                           .kept_bytes = o->kept_bytes,
                           .where = o->where,
                           .n_pages = o->n_pages,
                           .n_slots = o->n_slots};
}

// The graph that the runner has plans of its own for, compiled on demand; NULL: the engine's plans
// do. Of the residual stream, or as asked.
static const qn_graph *own_graph(const qn_runner_opts *o) {
    return o->graph ? o->graph : o->hidden ? &o->engine->model->graph_hidden : NULL;
}

static qn_status compile_own(qn_plan *out, const qn_graph *whole, const qn_engine *engine,
                             const qn_stage *stage, qn_err *err) {
    const qn_model *model = engine->model;
    const qn_graph *graph;
    qn_graph cut = {0};
    qn_compile_opts opts = qn_engine_compile_opts(engine, stage);
    opts.disk = NULL;
    QN_TRY(qn_stage_graph(&graph, &cut, stage, whole, model->hparams->layers, err));
    const qn_status status = qn_compile(out, graph, &opts, err);
    qn_graph_deinit(&cut);
    return status;
}

static qn_status add_plan(qn_program_opts *to, const qn_runner *r, qn_runner_stage *s, int phase,
                          const qn_plan *plan, qn_err *err) {
    const bool is_decode = phase == QN_DECODE;
    qn_leaves *leaves = &s->leaves[phase];
    QN_TRY(init_leaves(leaves, r, s->stage, plan, err));
    s->plans[phase] = plan;
    to->plans[phase] = (qn_program_plan){
        .plan = plan,
        .weights = leaves->weights,
        .pager = leaves->weights && r->engine->residency ? qn_residency_pager(r->engine->residency)
                                                         : NULL,
        .caches = leaves->caches,
        .slots = leaves->slots,
        .policy = qn_engine_policy(r->engine, is_decode),
        .capacity = (int)qn_engine_plan_capacity(r->engine, is_decode)};
    return QN_OK;
}

// A stage, ready to run; or, for measuring, only to be asked how much it needs.
static qn_status init_stage(qn_runner_stage *s, const qn_runner *r, bool is_measured, qn_err *err) {
    const qn_engine *engine = r->engine;
    const qn_runner_opts *o = &r->opts;
    const qn_device *device = s->stage->device;
    const bool is_tallied = engine->switches.debug >= LOG_TIMES;
    qn_program_opts opts = {
        .max = {.rows = o->rows, .segs = o->segs, .outs = o->outs, .cached = o->context},
        .is_timed = is_tallied || o->trace,
        .is_tensor = engine->opts.numerics == QN_NUMERICS_TENSOR,
        .is_measured = is_measured,
        .go_on = o->go_on,
        .go_on_arg = o->go_on_arg,
        .gather = engine->team ? &engine->team->gather : NULL};
    const qn_graph *own = own_graph(o);
    if (own) QN_TRY(compile_own(&s->own, own, engine, s->stage, err));
    const qn_plan *plan = own ? &s->own : &s->stage->prefill;
    QN_TRY(add_plan(&opts, r, s, QN_PREFILL, plan, err));
    if (r->has_decode)
        QN_TRY(add_plan(&opts, r, s, QN_DECODE, s->stage->decode.n_calls ? &s->stage->decode : plan,
                        err));
    if (is_tallied && !is_measured) {
        s->sums = qn_alloc((size_t)device->backend->n_kernels, sizeof *s->sums);
        if (!s->sums) return QN_NOMEM(err, "times of kernels");
    }
    return device->kind->prepare(&s->program, s->stage->device, &opts, err);
}

// Of the head no more is run at a time than a row of every sequence, or the wanted rows.
static qn_status init_head(qn_runner *r, bool is_measured, qn_err *err) {
    const qn_runner_opts *o = &r->opts;
    qn_runner_stage *s = &r->head;
    qn_program_opts opts = {.is_timed = o->trace,
                            .is_tensor = r->engine->opts.numerics == QN_NUMERICS_TENSOR,
                            .is_measured = is_measured,
                            .gather = r->engine->team ? &r->engine->team->gather : NULL};
    s->stage = &r->engine->head;
    opts.max = (qn_sizes){
        .rows = r->head_rows, .segs = o->segs, .outs = r->head_rows, .cached = o->context};
    QN_TRY(add_plan(&opts, r, s, QN_PREFILL, &s->stage->prefill, err));
    return s->stage->device->kind->prepare(&s->program, s->stage->device, &opts, err);
}

// What goes to it and comes from it; with a split of layers it may be on another rank.
static qn_status init_head_rows(qn_runner *r, qn_err *err) {
    const qn_step_sizes max = qn_runner_max_head_sizes(r);
    size_t words;
    QN_TRY(alloc_message(&r->head_message, &words, &max, err));
    r->before = qn_alloc((size_t)r->head_rows,
                         (size_t)r->engine->model->hparams->width * sizeof *r->before);
    return r->before ? QN_OK : QN_NOMEM(err, "prediction head");
}

static void free_stage(qn_runner_stage *s) {
    if (s->program) s->stage->device->kind->release(s->program);
    for (int i = 0; i < QN_PHASES; i++) free_leaves(&s->leaves[i]);
    qn_plan_deinit(&s->own);
    qn_free(s->sums);
}

static bool is_cut(const char *output) {
    return strncmp(output, QN_CUT_NAME, strlen(QN_CUT_NAME)) == 0;
}

static qn_status add_cut(qn_runner *r, const char *name, int64_t width, qn_err *err) {
    qn_runner_cut *cut = &r->cuts[r->n_cuts++];
    size_t n_floats;
    *cut = (qn_runner_cut){.name = name, .width = width};
    if (qn_size_mul(&n_floats, (size_t)r->opts.rows, (size_t)width))
        cut->rows = qn_alloc(n_floats, sizeof *cut->rows);
    return cut->rows ? QN_OK : QN_NOMEM(err, "rows between stages");
}

// The same for what this rank hands to others, or they to it.
static qn_status init_team_cuts(qn_runner *r, qn_err *err) {
    const qn_team *team = r->engine->team;
    const qn_team_cuts *cuts = r->opts.hidden ? &team->hidden_cuts : &team->cuts;
    r->cuts = qn_alloc(cuts->n, sizeof *r->cuts);
    if (!r->cuts) return QN_NOMEM(err, "rows between stages");
    for (size_t i = 0; i < cuts->n; i++) {
        const qn_team_cut *cut = &cuts->items[i];
        if (cut->maker == team->rank || cut->reads[team->rank])
            QN_TRY(add_cut(r, cut->name, cut->width, err));
    }
    return QN_OK;
}

// Room for what each stage hands to later ones.
static qn_status init_cuts(qn_runner *r, qn_err *err) {
    size_t n = 0;
    if (r->engine->team) return init_team_cuts(r, err);
    for (size_t i = 0; i < r->engine->n_stages; i++) n += r->stages[i].plans[QN_PREFILL]->n_outputs;
    r->cuts = qn_alloc(n, sizeof *r->cuts);
    if (!r->cuts) return QN_NOMEM(err, "stages");
    for (size_t i = 0; i < r->engine->n_stages; i++) {
        const qn_plan *plan = r->stages[i].plans[QN_PREFILL];
        for (size_t o = 0; o < plan->n_outputs; o++) {
            if (is_cut(plan->outputs[o].name))
                QN_TRY(add_cut(r, plan->outputs[o].name, plan->outputs[o].arg.width, err));
        }
    }
    return QN_OK;
}

// --- creation ------------------------------------------------------------------------------------

static qn_status init_stages(qn_runner *r, bool is_measured, qn_err *err) {
    const qn_engine *engine = r->engine;
    // For their statistics.
    if (engine->switches.layers && !r->opts.graph) r->opts.hidden = true;
    const bool is_own = own_graph(&r->opts) != NULL;
    r->has_decode = !is_own && engine->decode_differs;
    r->stages = qn_alloc(engine->n_stages, sizeof *r->stages);
    if (!r->stages) return QN_NOMEM(err, "stages");
    for (size_t i = 0; i < engine->n_stages; i++) r->stages[i].stage = &engine->stages[i];
    for (size_t i = 0; i < engine->n_stages; i++)
        QN_TRY(init_stage(&r->stages[i], r, is_measured, err));
    r->head_rows = qn_max(r->opts.outs, r->opts.segs);
    if (engine->head.device && !is_own) QN_TRY(init_head(r, is_measured, err));
    if (is_measured) return QN_OK;
    if (engine->opts.mtp && !is_own) QN_TRY(init_head_rows(r, err));
    return init_cuts(r, err);
}

static qn_status init_parts(qn_runner *r, qn_err *err) {
    qn_state_opts state = state_opts(&r->opts);
    state.flush = qn_runner_flush;
    state.flush_arg = r;
    QN_TRY(qn_state_create(&r->state, &state, err));
    QN_TRY(init_lanes(r, err));
    if (!r->opts.is_replay && !r->opts.n_pages) QN_TRY(init_record(r, err));
    r->began = qn_clock();
    QN_TRY(init_stages(r, false, err));
    const bool is_checked = r->engine->switches.ref && r->engine->is_loaded;
    if (!is_checked) return QN_OK;
    const qn_graph *own = own_graph(&r->opts);
    return qn_check_create(&r->check, r->engine, own ? own : r->engine->graph, err);
}

// Sequences are on rank 0 alone.
static qn_status check_rank(qn_runner *r, qn_err *err) {
    const qn_team *team = r->engine->team;
    if (!team) return QN_OK;
    if (team->rank > 0 && !r->opts.n_pages)
        return QN_FAIL(err, STATE, "rank %d of %d has no sessions: rank 0 has", team->rank,
                       team->n_ranks);
    r->team = qn_alloc(1, sizeof *r->team);
    return r->team ? QN_OK : QN_NOMEM(err, "ranks");
}

qn_status qn_runner_create(qn_runner **out, const qn_runner_opts *opts, qn_err *err) {
    qn_runner *r = qn_alloc(1, sizeof *r);
    if (!r) return QN_NOMEM(err, "runner");
    r->opts = *opts;
    r->engine = opts->engine;
    r->lane = r->lanes;
    qn_status status = check_rank(r, err);
    if (!status) status = init_parts(r, err);
    if (r->team) status = qn_runner_team_open(r, status, err);
    if (status)
        qn_runner_destroy(r);
    else
        *out = r;
    return status;
}

void qn_runner_destroy(qn_runner *r) {
    if (!r) return;
    if (r->team) qn_runner_team_close(r);
    qn_check_destroy(r->check);
    for (size_t i = 0; r->stages && i < r->engine->n_stages; i++) {
        if (r->stages[i].sums) qn_tally_tell(r, &r->stages[i]);
        free_stage(&r->stages[i]);
    }
    qn_free(r->stages);
    free_stage(&r->head);
    qn_free(r->head_message);
    qn_free(r->before);
    for (size_t i = 0; i < r->n_cuts; i++) qn_free(r->cuts[i].rows);
    qn_free(r->cuts);
    qn_record_destroy(r->record);
    for (int i = 0; i < QN_MAX_LANES; i++) {
        qn_free(r->lanes[i].message);
        qn_free(r->lanes[i].parts);
        qn_free(r->lanes[i].seqs);
    }
    qn_free(r->copying);
    qn_state_destroy(r->state);
    qn_free(r);
}

// What ranks need beside their programs: messages of steps, of their parts too, and what comes back
// of them.
static int64_t measure_lanes(const qn_runner *r) {
    const qn_runner_opts *o = &r->opts;
    const qn_outputs_max max = {.rows = o->rows, .outs = o->outs, .lanes = choose_lanes(r)};
    const qn_step_sizes step = {.rows = o->rows,
                                .segs = o->segs,
                                .outs = o->outs,
                                .groups = qn_state_groups(r->state),
                                .pages = (o->context + QN_PAGE_ROWS - 1) / QN_PAGE_ROWS,
                                .copies = QN_COPIES_MAX};
    size_t words;
    int64_t all;
    if (!r->engine->team) return 0;
    if (!qn_step_measure(&words, &step, NULL) &&
        qn_size_mul(&words, words, sizeof(int32_t) * (1 + QN_STEP_PARTS) * (size_t)max.lanes) &&
        words <= INT64_MAX && qn_i64_add(&all, (int64_t)words, qn_outputs_bytes(r->engine, &max)))
        return all;
    return INT64_MAX;
}

static void add_size(qn_runner_size *to, const qn_program *program, const qn_device *where) {
    if (where && !qn_device_shares_memory(program->device, where)) return;
    const qn_program_size need = program->device->kind->measure(program);
    to->arena += need.arena;
    to->scratch += need.scratch;
    to->tables += need.tables;
}

qn_status qn_runner_measure(qn_runner_size *out, const qn_runner_opts *opts, qn_err *err) {
    const qn_state_opts whole = state_opts(opts);
    qn_state_opts smallest = whole; // for the shapes alone
    smallest.context = smallest.step_rows = smallest.n_seqs = 1;
    smallest.kept_bytes = smallest.positions = 0;
    qn_runner *r = qn_alloc(1, sizeof *r);
    if (!r) return QN_NOMEM(err, "runner");
    r->opts = *opts;
    r->engine = opts->engine;
    qn_runner_size size = {0};
    qn_status status = QN_OK;
    QN_TRY_TO(done, qn_state_measure(&size.state, &whole, err));
    QN_TRY_TO(done, qn_state_create(&r->state, &smallest, err));
    QN_TRY_TO(done, init_stages(r, true, err));
    for (size_t i = 0; i < r->engine->n_stages; i++)
        add_size(&size, r->stages[i].program, opts->where);
    if (r->head.program) add_size(&size, r->head.program, opts->where);
    size.lanes = measure_lanes(r);
    *out = size;

done:
    qn_runner_destroy(r);
    return status;
}

qn_state *qn_runner_state(qn_runner *runner) { return runner->state; }

int qn_runner_lanes(const qn_runner *runner) { return runner->n_lanes; }

int64_t qn_runner_steps(const qn_runner *runner) { return runner->counts.steps; }
bool qn_runner_is_recorded(const qn_runner *runner) { return runner->record != NULL; }

const qn_plan *qn_runner_plan(const qn_runner_stage *s) { return s->plans[s->phase]; }

// An output of the last step; *stage: that has it.
static const qn_plan_output *find_output(const qn_runner_stage **stage, const qn_runner *r,
                                         const char *name) {
    const qn_plan_output *output = NULL;
    for (size_t i = r->engine->n_stages; i > 0 && !output; i--) { // mostly the last one
        *stage = &r->stages[i - 1];
        output = qn_plan_find_output(qn_runner_plan(*stage), name);
    }
    return output;
}

// A row of an output of the model's plan or (is_head) the head's; *width.
static const float *find_row(int64_t *width, const qn_runner *r, bool is_head, const char *output,
                             int64_t row) {
    const qn_runner_stage *s = &r->head;
    const qn_plan_output *o = NULL;
    const float *whole = NULL;
    if (r->team)
        whole = qn_runner_team_row(width, is_head ? &r->team->head : &r->team->model, output, row);
    if (whole) return whole;
    if (!is_head)
        o = find_output(&s, r, output);
    else if (s->program)
        o = qn_plan_find_output(qn_runner_plan(s), output);
    if (!o) return NULL;
    *width = o->arg.width;
    return s->program->device->kind->row(s->program, o, row);
}

const float *qn_runner_row(const qn_runner *r, const char *output, int64_t row) {
    int64_t width;
    return find_row(&width, r, false, output, row);
}

static bool open_top(qn_runner_top *out, const float *best, int64_t width, int64_t wanted) {
    if (!best) return false;
    const int64_t max = width / 2 - 1;
    *out = (qn_runner_top){.logits = best + 2, .ids = best + 2 + max};
    out->min = best[0];
    out->broken = (int64_t)best[1];
    const int64_t top = wanted > 0 && wanted < max ? wanted : max;
    while (out->n < top && out->ids[out->n] >= 0) out->n++;
    return true;
}

bool qn_runner_find_top(qn_runner_top *out, const qn_runner *r, int64_t row) {
    int64_t width = 0;
    const bool is_padded = r->engine->n_tokens < r->engine->model->hparams->vocab;
    if (r->check && is_padded) return false;
    const float *best = find_row(&width, r, false, "best", row);
    return open_top(out, best, width, r->step.top);
}

const float *qn_runner_head_row(const qn_runner *r, const char *output, int64_t row) {
    int64_t width;
    return find_row(&width, r, true, output, row);
}

bool qn_runner_head_top(qn_runner_top *out, const qn_runner *r, int64_t row) {
    int64_t width = 0;
    const float *best = find_row(&width, r, true, "best", row);
    return open_top(out, best, width, r->head_step.top);
}

qn_status qn_runner_failure(const qn_runner *r, qn_err *err) {
    for (size_t i = 0; i < r->engine->n_stages; i++)
        QN_TRY(qn_device_failure(r->stages[i].program->device, err));
    return QN_OK;
}

qn_session_counts qn_runner_counts(const qn_runner *r) {
    qn_session_counts counts = r->counts;
    for (size_t i = 0; i < r->engine->n_stages; i++) {
        int64_t hits, misses;
        const qn_program *program = r->stages[i].program;
        program->device->kind->counts(program, &hits, &misses);
        counts.plan_hits += hits;
        counts.plan_misses += misses;
    }
    counts.evictions = qn_state_get_counts(r->state).evictions;
    return counts;
}
