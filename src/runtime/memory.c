#include "runtime/memory.h"

#include "core/machine.h"
#include "core/mem.h"
#include "runtime/runner.h"

#include <string.h>

// A page; recurrent states that are kept by default, three of a prompt being its mark, its end and
// the last chunk before it. Not tuned.
enum { MIN_CONTEXT = 64, KEPT_SLOTS = 4 };

static double mib(int64_t bytes) { return (double)bytes / (1 << 20); }

// The weights of the prediction head, or all others.
static qn_status add_stage(int64_t *total, const qn_engine *engine, const qn_stage *stage,
                           qn_err *err) {
    const qn_weights *weights = &engine->model->weights;
    const bool is_head = stage == &engine->head;
    const qn_plan *plan = &stage->prefill;
    for (size_t i = 0; i < plan->n_leaves[QN_PLACE_PARAM]; i++) {
        const qn_plan_leaf *leaf = &plan->leaves[QN_PLACE_PARAM][i];
        int64_t bytes;
        uint32_t weight;
        if (!qn_map_find(&weights->by_name, leaf->name, strlen(leaf->name), &weight) ||
            weights->items[weight].is_predict != is_head ||
            qn_residency_has(engine->residency, leaf->name))
            continue;
        QN_TRY(stage->device->kind->weight_bytes(&bytes, stage->device, leaf, err));
        if (!qn_i64_add(total, *total, bytes)) *total = INT64_MAX;
    }
    return QN_OK;
}

qn_status qn_memory_weights(int64_t *out, const qn_engine *engine, qn_err *err) {
    int64_t total = 0;
    for (size_t i = 0; i < engine->model->weights.n && !engine->layout; i++) { // the reference path
        const qn_weight *w = &engine->model->weights.items[i];
        if (!w->is_predict && !qn_i64_add(&total, total, w->bytes)) total = INT64_MAX;
    }
    for (size_t i = 0; i < engine->n_stages; i++)
        QN_TRY(add_stage(&total, engine, &engine->stages[i], err));
    if (engine->head.device) QN_TRY(add_stage(&total, engine, &engine->head, err));
    if (engine->residency && !qn_i64_add(&total, total, qn_residency_bytes(engine->residency)))
        total = INT64_MAX;
    *out = total;
    return QN_OK;
}

// *slots: bytes of recurrent state, a part of the plan's state.
static qn_status make_plan(qn_memory *out, int64_t *slots, const qn_engine *engine, int64_t context,
                           int64_t chunk, qn_err *err) {
    qn_memory plan = {0};
    qn_runner_size size;
    const qn_runner_opts opts = {.engine = engine,
                                 .context = context,
                                 .rows = chunk < context ? chunk : context,
                                 .outs = 1,
                                 .segs = 1,
                                 .n_seqs = 1};
    QN_TRY(qn_memory_weights(&plan.weights, engine, err));
    QN_TRY(qn_runner_measure(&size, &opts, err));
    plan.cache = size.state.cache_used;
    plan.activations = size.arena + size.scratch + size.tables;
    plan.program = qn_machine_resident_memory();
    for (size_t i = 0; i < engine->n_stages && engine->is_loaded; i++)
        plan.program -= qn_packs_bytes(engine->stages[i].packs);
    if (engine->is_loaded && engine->head.packs) plan.program -= qn_packs_bytes(engine->head.packs);
    if (plan.program < 0) plan.program = 0; // mapped weights that were not touched yet
    int64_t history;                        // tokens and keys of a session
    if (!qn_i64_mul(&history, context, (int64_t)(sizeof(int32_t) + sizeof(uint64_t))) ||
        !qn_i64_add(&plan.state, size.state.cache_used, size.state.slots_used) ||
        !qn_i64_add(&plan.state, plan.state, size.state.tables_used) ||
        !qn_i64_add(&plan.state, plan.state, history) ||
        !qn_i64_add(&plan.total, plan.weights, plan.state) ||
        !qn_i64_add(&plan.total, plan.total, plan.activations))
        return QN_FAIL(err, LIMIT, "a context of %lld tokens: sizes overflow", (long long)context);
    *out = plan;
    *slots = size.state.slots_used;
    return QN_OK;
}

qn_status qn_memory_plan(qn_memory *out, const qn_engine *engine, int64_t context, int64_t chunk,
                         qn_err *err) {
    int64_t slots;
    return make_plan(out, &slots, engine, context, chunk, err);
}

qn_status qn_memory_check_weights(const qn_engine *engine, qn_err *err) {
    int64_t need, available;
    QN_TRY(qn_memory_weights(&need, engine, err));
    if (!qn_engine_free_memory(engine, &available) || need <= available) return QN_OK;
    const bool has_experts = engine->model->hparams->experts > 0 && !engine->residency;
    return QN_FAIL(err, MEMORY, "the weights need %.0f MiB, %.0f MiB of memory are free%s",
                   mib(need), mib(available),
                   has_experts ? "; with packed weights ('quern compile') a part of the experts is "
                                 "enough"
                               : "");
}

qn_status qn_memory_fit(qn_session_opts *opts, const qn_engine *engine, qn_err *err) {
    int64_t available;
    if (!qn_engine_free_memory(engine, &available)) return QN_OK;
    for (;;) {
        qn_memory plan;
        int64_t slots;
        QN_TRY(make_plan(&plan, &slots, engine, opts->context, opts->chunk, err));
        const int64_t need = plan.state + plan.activations; // the weights are there
        if (need <= available) {
            const int64_t usual = plan.cache + KEPT_SLOTS * slots;
            const int64_t left = available - need;
            if (opts->kept == 0) opts->kept = usual < left ? usual : left;
            return QN_OK;
        }
        if (!opts->shrink || opts->context <= MIN_CONTEXT)
            return QN_FAIL(err, MEMORY,
                           "a context of %lld tokens%s needs %.1f MiB (state %.1f, activations "
                           "%.1f), %.1f MiB of memory are free",
                           (long long)opts->context, opts->shrink ? ", the smallest," : "",
                           mib(need), mib(plan.state), mib(plan.activations), mib(available));
        opts->context = (opts->context + 1) / 2;
    }
}
