#include "runtime/check.h"
#include "runtime/runner_int.h"
#include "runtime/tally.h"

#include "core/mem.h"

#include <string.h>

enum { ALIGN = 64, TELL_TIMES = 2 }; // the last: of QN_DEBUG

// --- memory --------------------------------------------------------------------------------------

static bool block_init(qn_block *to, int64_t bytes) {
    size_t size;
    if (!qn_size_add(&size, (size_t)bytes, ALIGN)) return false;
    to->base = qn_alloc(size, 1);
    if (!to->base) return false;
    to->data = (unsigned char *)(((uintptr_t)to->base + ALIGN - 1) / ALIGN * ALIGN);
    return true;
}

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

// --- creation ------------------------------------------------------------------------------------

static qn_sizes most_sizes(const qn_runner_opts *o) {
    return (qn_sizes){.rows = o->rows, .segs = o->segs, .outs = o->outs, .cached = o->context};
}

static qn_status init_phase(qn_runner *r, qn_phase *p, const qn_plan *plan, qn_err *err) {
    p->plan = plan;
    if (!r->described && !r->engine->packs) {
        r->described = qn_alloc(plan->n_leaves[QN_PLACE_PARAM], sizeof *r->described);
        if (!r->described) return QN_NOMEM(err, "weights");
    }
    QN_TRY(qn_runner_init_tasks(r, p, err));
    const bool is_decode = p == &r->phases[QN_DECODE];
    const qn_bindings_opts opts = {.plan = plan,
                                   .backend = r->engine->backend,
                                   .tasks = p->tasks,
                                   .kernels = p->kernels,
                                   .policy = qn_engine_policy(r->engine, is_decode),
                                   .capacity = (int)qn_engine_plan_capacity(r->engine, is_decode),
                                   .most = most_sizes(&r->opts)};
    return qn_bindings_create(&p->bindings, &opts, err);
}

static void free_phase(qn_phase *p) {
    qn_bindings_destroy(p->bindings);
    qn_free(p->tasks);
    qn_free(p->kernels);
    qn_free(p->inputs);
}

static qn_status init_walk(qn_runner *r, qn_err *err) {
    int64_t arena = 0, scratch = 0;
    size_t n_calls = 0;
    for (int i = 0; i < QN_PHASES; i++) {
        const qn_phase *p = &r->phases[i];
        if (!p->plan) continue;
        arena = qn_max(arena, qn_bindings_arena(p->bindings));
        scratch = qn_max(scratch, qn_bindings_scratch(p->bindings));
        if (p->plan->n_calls > n_calls) n_calls = p->plan->n_calls;
    }
    scratch = (scratch + ALIGN - 1) / ALIGN * ALIGN;
    const int n_threads = qn_pool_threads(r->engine->pool);
    r->walk = (qn_walk){.scratch_bytes = scratch, .n_shares = n_threads};
    r->walk.taken = qn_alloc(n_calls * (size_t)n_threads, sizeof *r->walk.taken);
    r->walk.done = qn_alloc(n_calls, sizeof *r->walk.done);
    const bool is_tallied = r->engine->switches.debug >= TELL_TIMES;
    const bool is_timed = is_tallied || r->opts.trace;
    if (is_timed) r->walk.times = qn_alloc(n_calls, sizeof *r->walk.times);
    if (is_tallied) r->sums = qn_alloc((size_t)r->engine->backend->n_kernels, sizeof *r->sums);
    if (!r->walk.taken || !r->walk.done || (is_timed && !r->walk.times) ||
        (is_tallied && !r->sums) || !block_init(&r->arena, arena) ||
        !block_init(&r->scratch, scratch * n_threads))
        return QN_NOMEM(err, "activations");
    r->walk.scratch = r->scratch.data;
    return qn_gate_create(&r->walk.gate, err);
}

static qn_state_opts state_opts(const qn_runner_opts *o) {
    return (qn_state_opts){.layout = o->engine->layout,
                           .context = o->context,
                           .step_rows = o->rows,
                           .n_seqs = o->n_seqs,
                           .positions = o->positions,
                           .kept_bytes = o->kept_bytes};
}

static qn_status init_phases(qn_runner *r, qn_err *err) {
    const qn_engine *engine = r->engine;
    if (engine->switches.layers) r->opts.hidden = true; // to tell their figures
    const qn_plan *plan = r->opts.hidden ? &engine->hidden : &engine->prefill;
    QN_TRY(init_phase(r, &r->phases[QN_PREFILL], plan, err));
    if (r->opts.hidden || !engine->decode_differs) return QN_OK;
    const qn_plan *decode = engine->decode.n_calls ? &engine->decode : plan;
    return init_phase(r, &r->phases[QN_DECODE], decode, err);
}

static qn_status init_parts(qn_runner *r, qn_err *err) {
    qn_state_opts state = state_opts(&r->opts);
    state.flush = qn_runner_flush;
    state.flush_arg = r;
    QN_TRY(qn_state_create(&r->state, &state, err));
    QN_TRY(init_message(r, err));
    if (!r->opts.is_replay) QN_TRY(init_record(r, err));
    QN_TRY(init_phases(r, err));
    r->began = qn_clock();
    QN_TRY(init_walk(r, err));
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
    for (int i = 0; i < QN_PHASES; i++) free_phase(&r->phases[i]);
    qn_check_destroy(r->check);
    if (r->sums) qn_tally_tell(r);
    qn_free(r->sums);
    qn_gate_destroy(r->walk.gate);
    qn_free(r->walk.taken);
    qn_free(r->walk.done);
    qn_free(r->walk.times);
    qn_free(r->arena.base);
    qn_free(r->scratch.base);
    qn_free(r->described);
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
    QN_TRY_TO(done, init_phases(r, err));
    for (int i = 0; i < QN_PHASES; i++) {
        const qn_phase *p = &r->phases[i];
        if (!p->plan) continue;
        size.arena = qn_max(size.arena, qn_bindings_arena(p->bindings));
        size.scratch = qn_max(size.scratch, qn_bindings_scratch(p->bindings));
        size.tables += (int64_t)(p->plan->n_calls * (sizeof(qn_task) + sizeof(qn_kernel *)));
    }
    size.scratch *= qn_pool_threads(opts->engine->pool);
    *out = size;

done:
    qn_runner_destroy(r);
    return status;
}

qn_state *qn_runner_state(qn_runner *runner) { return runner->state; }

// An output of the last step; NULL if there is none of this name.
static const qn_plan_output *find_output(const qn_runner *r, const char *name) {
    const qn_plan *plan = r->last ? r->last->plan : NULL;
    for (size_t i = 0; plan && i < plan->n_outputs; i++) {
        if (strcmp(plan->outputs[i].name, name) == 0) return &plan->outputs[i];
    }
    return NULL;
}

const float *qn_runner_row(const qn_runner *r, const char *output, int64_t row) {
    const qn_plan_output *o = find_output(r, output);
    if (!o) return NULL;
    const unsigned char *data = r->arena.data + r->last->bound->offsets[o->arg.index];
    return (const float *)(const void *)(data + o->arg.offset +
                                         row * r->last->plan->buffers[o->arg.index].row_bytes);
}

bool qn_runner_best(qn_best *out, const qn_runner *r, int64_t row) {
    const float *best = qn_runner_row(r, "best", row);
    const bool is_padded = r->engine->n_tokens < r->engine->model->hparams->vocab;
    if (!best || (r->check && is_padded)) return false;
    const int64_t most = find_output(r, "best")->arg.width / 2 - 1;
    *out = (qn_best){.scores = best + 2, .ids = best + 2 + most};
    out->least = best[0];
    out->broken = (int64_t)best[1];
    const int64_t top = r->step.top > 0 && r->step.top < most ? r->step.top : most;
    while (out->n < top && out->ids[out->n] >= 0) out->n++;
    return true;
}

qn_session_counts qn_runner_counts(const qn_runner *r) {
    qn_session_counts counts = r->counts;
    for (int i = 0; i < QN_PHASES; i++) {
        int64_t hits, misses;
        if (!r->phases[i].plan) continue;
        qn_bindings_counts(r->phases[i].bindings, &hits, &misses);
        counts.plan_hits += hits;
        counts.plan_misses += misses;
    }
    counts.evictions = qn_state_get_counts(r->state).evictions;
    return counts;
}
