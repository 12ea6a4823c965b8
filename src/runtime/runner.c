#include "runtime/check.h"
#include "runtime/runner_int.h"
#include "runtime/tally.h"

#include "core/mem.h"

#include <string.h>

enum { TELL_TIMES = 2 }; // of QN_DEBUG

// --- messages ------------------------------------------------------------------------------------

// Room for the largest message, touched where it is used only.
static qn_status init_message(qn_runner *r, qn_err *err) {
    const qn_step_sizes most = {.rows = r->opts.rows,
                                .segs = r->opts.segs,
                                .outs = r->opts.outs,
                                .groups = qn_state_groups(r->state),
                                .pages = qn_state_pages_per_seg(r->state),
                                .copies = QN_COPIES_MAX};
    QN_TRY(qn_step_measure(&r->message_words, &most, err));
    r->message = qn_alloc(r->message_words, sizeof *r->message);
    return r->message ? QN_OK : QN_NOMEM(err, "a step");
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
    return qn_record_create(&r->record, path, &head, err);
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

// A weight as its kernels see it; without its numbers in an engine that loaded none.
static qn_status find_weight(qn_leaves *to, const qn_runner *r, const qn_plan_leaf *leaf, size_t i,
                             qn_err *err) {
    const qn_packs *packs = r->engine->packs;
    qn_executor_weight *weight = &to->weights[i];
    if (!packs) {
        bool is_tiled;
        QN_TRY(qn_packs_describe(&to->described[i], &is_tiled, leaf, err));
        if (is_tiled) weight->packed = &to->described[i];
        return QN_OK;
    }
    weight->packed = qn_packs_packed(packs, leaf->name);
    if (!weight->packed) weight->rows = qn_packs_rows(packs, leaf->name);
    if (weight->packed || weight->rows) return QN_OK;
    return QN_FAIL(err, STATE, "weight %s is not loaded", leaf->name);
}

static qn_status init_leaves(qn_leaves *to, const qn_runner *r, const qn_plan *plan, qn_err *err) {
    const size_t n_params = plan->n_leaves[QN_PLACE_PARAM];
    const size_t n_caches = plan->n_leaves[QN_PLACE_CACHE];
    const size_t n_states = plan->n_leaves[QN_PLACE_STATE];
    const qn_graph *model = &r->engine->model->graph;
    const qn_kv_memory *memory = qn_state_memory(r->state);
    to->weights = qn_alloc(n_params, sizeof *to->weights);
    if (!r->engine->packs) to->described = qn_alloc(n_params, sizeof *to->described);
    to->caches = qn_alloc(n_caches, sizeof *to->caches);
    to->slots = qn_alloc(n_states, sizeof *to->slots);
    if (!to->weights || (!to->described && !r->engine->packs) || !to->caches || !to->slots)
        return QN_NOMEM(err, "plan");
    for (size_t i = 0; i < n_params; i++)
        QN_TRY(find_weight(to, r, &plan->leaves[QN_PLACE_PARAM][i], i, err));
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
    qn_free(leaves->described);
    qn_free(leaves->caches);
    qn_free(leaves->slots);
}

// --- creation ------------------------------------------------------------------------------------

static qn_state_opts state_opts(const qn_runner_opts *o) {
    return (qn_state_opts){.layout = o->engine->layout,
                           .context = o->context,
                           .step_rows = o->rows,
                           .n_seqs = o->n_seqs,
                           .positions = o->positions,
                           .kept_bytes = o->kept_bytes};
}

static qn_status add_plan(qn_executor_opts *to, qn_runner *r, int phase, const qn_plan *plan,
                          qn_err *err) {
    const bool is_decode = phase == QN_DECODE;
    qn_leaves *leaves = &r->leaves[phase];
    QN_TRY(init_leaves(leaves, r, plan, err));
    to->plans[phase] =
        (qn_executor_plan){.plan = plan,
                           .weights = leaves->weights,
                           .caches = leaves->caches,
                           .slots = leaves->slots,
                           .policy = qn_engine_policy(r->engine, is_decode),
                           .capacity = (int)qn_engine_plan_capacity(r->engine, is_decode)};
    return QN_OK;
}

// The plans, ready to run; or, for measuring, only to be asked how much they need.
static qn_status init_executor(qn_runner *r, bool is_measured, qn_err *err) {
    const qn_engine *engine = r->engine;
    const qn_runner_opts *o = &r->opts;
    const bool is_tallied = engine->switches.debug >= TELL_TIMES;
    qn_executor_opts opts = {
        .backend = engine->backend,
        .pool = engine->pool,
        .most = {.rows = o->rows, .segs = o->segs, .outs = o->outs, .cached = o->context},
        .is_timed = is_tallied || o->trace,
        .is_measured = is_measured};
    if (engine->switches.layers) r->opts.hidden = true; // to tell their figures
    const qn_plan *plan = r->opts.hidden ? &engine->hidden : &engine->prefill;
    QN_TRY(add_plan(&opts, r, QN_PREFILL, plan, err));
    r->has_decode = !r->opts.hidden && engine->decode_differs;
    if (r->has_decode)
        QN_TRY(add_plan(&opts, r, QN_DECODE, engine->decode.n_calls ? &engine->decode : plan, err));
    if (is_tallied && !is_measured) {
        r->sums = qn_alloc((size_t)engine->backend->n_kernels, sizeof *r->sums);
        if (!r->sums) return QN_NOMEM(err, "times of kernels");
    }
    return qn_executor_create(&r->executor, &opts, err);
}

static qn_status init_parts(qn_runner *r, qn_err *err) {
    qn_state_opts state = state_opts(&r->opts);
    state.flush = qn_runner_flush;
    state.flush_arg = r;
    QN_TRY(qn_state_create(&r->state, &state, err));
    QN_TRY(init_message(r, err));
    if (!r->opts.is_replay) QN_TRY(init_record(r, err));
    r->began = qn_clock();
    QN_TRY(init_executor(r, false, err));
    const bool is_checked = r->engine->switches.ref && r->engine->packs;
    return is_checked ? qn_check_create(&r->check, r->engine, r->opts.hidden, err) : QN_OK;
}

qn_status qn_runner_create(qn_runner **out, const qn_runner_opts *opts, qn_err *err) {
    qn_runner *r = qn_alloc(1, sizeof *r);
    if (!r) return QN_NOMEM(err, "runner");
    r->opts = *opts;
    r->engine = opts->engine;
    const qn_status status = init_parts(r, err);
    if (status)
        qn_runner_destroy(r);
    else
        *out = r;
    return status;
}

void qn_runner_destroy(qn_runner *r) {
    if (!r) return;
    qn_check_destroy(r->check);
    if (r->sums) qn_tally_tell(r);
    qn_free(r->sums);
    qn_executor_destroy(r->executor);
    for (int i = 0; i < QN_PHASES; i++) free_leaves(&r->leaves[i]);
    qn_record_destroy(r->record);
    qn_free(r->message);
    qn_state_destroy(r->state);
    qn_free(r);
}

qn_status qn_runner_measure(qn_runner_size *out, const qn_runner_opts *opts, qn_err *err) {
    const qn_state_opts whole = state_opts(opts);
    qn_state_opts least = whole; // for the shapes alone
    least.context = least.step_rows = least.n_seqs = 1;
    least.kept_bytes = least.positions = 0;
    qn_runner *r = qn_alloc(1, sizeof *r);
    if (!r) return QN_NOMEM(err, "runner");
    r->opts = *opts;
    r->engine = opts->engine;
    qn_runner_size size = {0};
    qn_status status = QN_OK;
    QN_TRY_TO(done, qn_state_measure(&size.state, &whole, err));
    QN_TRY_TO(done, qn_state_create(&r->state, &least, err));
    QN_TRY_TO(done, init_executor(r, true, err));
    const qn_executor_size need = qn_executor_measure(r->executor);
    size.arena = need.arena;
    size.scratch = need.scratch;
    size.tables = need.tables;
    *out = size;

done:
    qn_runner_destroy(r);
    return status;
}

qn_state *qn_runner_state(qn_runner *runner) { return runner->state; }

const float *qn_runner_row(const qn_runner *r, const char *output, int64_t row) {
    return qn_executor_row(r->executor, output, row);
}

bool qn_runner_best(qn_best *out, const qn_runner *r, int64_t row) {
    const float *best = qn_runner_row(r, "best", row);
    const bool is_padded = r->engine->n_tokens < r->engine->model->hparams->vocab;
    if (!best || (r->check && is_padded)) return false;
    const int64_t most = qn_executor_find(r->executor, "best")->arg.width / 2 - 1;
    *out = (qn_best){.scores = best + 2, .ids = best + 2 + most};
    out->least = best[0];
    out->broken = (int64_t)best[1];
    const int64_t top = r->step.top > 0 && r->step.top < most ? r->step.top : most;
    while (out->n < top && out->ids[out->n] >= 0) out->n++;
    return true;
}

qn_session_counts qn_runner_counts(const qn_runner *r) {
    qn_session_counts counts = r->counts;
    qn_executor_counts(r->executor, &counts.plan_hits, &counts.plan_misses);
    counts.evictions = qn_state_get_counts(r->state).evictions;
    return counts;
}
