#include "runtime/memory.h"

#include "core/machine.h"
#include "core/mem.h"
#include "runtime/runner.h"
#include "runtime/weights_file.h"

#include <stdio.h>
#include <string.h>

// A page; recurrent states that are kept by default, three of a prompt being its mark, its end and
// the last chunk before it. Not tuned.
enum { MIN_CONTEXT = 64, KEPT_SLOTS = 4 };

static double mib(int64_t bytes) { return (double)bytes / (1 << 20); }

static int64_t to_page(int64_t bytes) {
    return bytes > INT64_MAX - QN_PACK_PAGE
               ? INT64_MAX
               : (bytes + QN_PACK_PAGE - 1) / QN_PACK_PAGE * QN_PACK_PAGE;
}

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
        if (!stage->device->kind->has_host_memory) bytes = to_page(bytes); // as they are placed
        if (!qn_i64_add(total, *total, bytes)) *total = INT64_MAX;
    }
    return QN_OK;
}

// Whether a device is where it is asked for; NULL: everywhere.
static bool is_there(const qn_device *device, const qn_device *where) {
    return !where || qn_device_shares_memory(device, where);
}

static qn_status weights_on(int64_t *out, const qn_engine *engine, const qn_device *where,
                            qn_err *err) {
    int64_t total = 0;
    for (size_t i = 0; i < engine->model->weights.n && !engine->layout; i++) { // the reference path
        const qn_weight *w = &engine->model->weights.items[i];
        if (!w->is_predict && !qn_i64_add(&total, total, w->bytes)) total = INT64_MAX;
    }
    for (size_t i = 0; i < engine->n_stages; i++) {
        if (is_there(engine->stages[i].device, where))
            QN_TRY(add_stage(&total, engine, &engine->stages[i], err));
    }
    if (engine->head.device && is_there(engine->head.device, where))
        QN_TRY(add_stage(&total, engine, &engine->head, err));
    const bool has_pools = engine->residency && is_there(engine->stages[0].device, where);
    const bool has_host = engine->residency && (!where || where->kind->has_host_memory);
    if (has_pools && !qn_i64_add(&total, total, qn_residency_bytes(engine->residency)))
        total = INT64_MAX;
    if (has_host && !qn_i64_add(&total, total, qn_residency_host_bytes(engine->residency)))
        total = INT64_MAX;
    *out = total;
    return QN_OK;
}

qn_status qn_memory_weights(int64_t *out, const qn_engine *engine, qn_err *err) {
    return weights_on(out, engine, NULL, err);
}

// Whether stage i is the first that uses the memory of its device.
static bool is_first(const qn_engine *engine, size_t i) {
    for (size_t k = 0; k < i; k++) {
        if (qn_device_shares_memory(engine->stages[k].device, engine->stages[i].device))
            return false;
    }
    return true;
}

// " of cuda:0", where it is not that of this process.
static const char *whose(char to[80], const qn_device *device) {
    to[0] = '\0';
    if (!device->kind->has_host_memory) snprintf(to, 80, " of %s", device->backend->name);
    return to;
}

// *slots: bytes of recurrent state, a part of the plan's state.
static qn_status make_plan(qn_memory *out, int64_t *slots, const qn_engine *engine, int64_t context,
                           int64_t chunk, const qn_device *where, qn_err *err) {
    qn_memory plan = {0};
    qn_runner_size size;
    const qn_runner_opts opts = {.engine = engine,
                                 .context = context,
                                 .rows = chunk < context ? chunk : context,
                                 .outs = 1,
                                 .segs = 1,
                                 .n_seqs = 1,
                                 .where = where};
    QN_TRY(weights_on(&plan.weights, engine, where, err));
    QN_TRY(qn_runner_measure(&size, &opts, err));
    plan.cache = size.state.cache_used;
    const bool is_card = where && !where->kind->has_host_memory; // tables are here
    plan.activations = size.arena + size.scratch;
    if (!is_card && (!qn_i64_add(&plan.activations, plan.activations, size.tables) ||
                     !qn_i64_add(&plan.activations, plan.activations, size.lanes)))
        plan.activations = INT64_MAX;
    plan.program = qn_machine_resident_memory();
    for (size_t i = 0; i < engine->n_stages && engine->is_loaded; i++) {
        if (engine->stages[i].device->kind->has_host_memory)
            plan.program -= qn_packs_bytes(engine->stages[i].packs);
    }
    if (engine->is_loaded && engine->head.packs && engine->head.device->kind->has_host_memory)
        plan.program -= qn_packs_bytes(engine->head.packs);
    if (engine->is_loaded && engine->residency)
        plan.program -= qn_residency_host_bytes(engine->residency);
    if (plan.program < 0) plan.program = 0; // mapped weights that were not touched yet
    int64_t history;                        // tokens and keys of a session
    if (!qn_i64_mul(&history, is_card ? 0 : context,
                    (int64_t)(sizeof(int32_t) + sizeof(uint64_t))) ||
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
    qn_memory plan, part;
    QN_TRY(make_plan(&plan, &slots, engine, context, chunk, NULL, err));
    for (size_t i = 0; i < engine->n_stages; i++) {
        const qn_device *device = engine->stages[i].device;
        if (device->kind->has_host_memory || !is_first(engine, i)) continue;
        QN_TRY(make_plan(&part, &slots, engine, context, chunk, device, err));
        plan.device += part.total;
    }
    *out = plan;
    return QN_OK;
}

static qn_status check_weights(const qn_engine *engine, const qn_device *device, qn_err *err) {
    int64_t need, available;
    char of[80];
    QN_TRY(weights_on(&need, engine, device, err));
    if (!device->kind->memory(device, &available) || need <= available) return QN_OK;
    const bool has_experts =
        device->kind->has_pager && engine->model->hparams->experts > 0 && !engine->residency;
    return QN_FAIL(err, MEMORY, "the weights need %.0f MiB, %.0f MiB of memory%s are free%s",
                   mib(need), mib(available), whose(of, device),
                   !has_experts                    ? ""
                   : device->kind->has_host_memory ? "; with packed weights ('quern compile') a "
                                                     "part of the experts is enough"
                                                   : "; a part of the experts is enough "
                                                     "(--expert-budget)");
}

qn_status qn_memory_check_weights(const qn_engine *engine, qn_err *err) {
    for (size_t i = 0; i < engine->n_stages; i++) {
        if (is_first(engine, i)) QN_TRY(check_weights(engine, engine->stages[i].device, err));
    }
    return QN_OK;
}

// --- sessions ------------------------------------------------------------------------------------

// What a session needs of a device's memory beside the weights, and what is there.
typedef struct session_need {
    int64_t all, state, activations, available;
    int64_t usual; // to keep of earlier prompts
} session_need;

// Bytes of a runner on a card, where all of it is taken at once.
static qn_status measure_card(session_need *out, const qn_runner_opts *opts,
                              const qn_device *device, qn_err *err) {
    qn_runner_opts there = *opts;
    qn_runner_size size;
    there.where = device;
    QN_TRY(qn_runner_measure(&size, &there, err));
    out->state = size.state.all;
    out->activations = size.arena + size.scratch;
    if (!qn_i64_add(&out->all, out->state, out->activations)) out->all = INT64_MAX;
    return QN_OK;
}

// Of the free memory of a card that is left to its driver, for code and for recorded launches.
enum { DRIVER_SHARE = 64 };

static qn_status fits_card(bool *fits, const qn_runner_opts *opts, const qn_device *device,
                           qn_err *err) {
    session_need need = {0};
    int64_t weights;
    if (!device->kind->memory(device, &need.available)) {
        QN_TRY(qn_device_failure(device, err));
        return QN_OK; // nobody knows
    }
    QN_TRY(weights_on(&weights, opts->engine, device, err));
    QN_TRY(measure_card(&need, opts, device, err));
    const int64_t room = need.available - need.available / DRIVER_SHARE;
    if (weights > room || need.all > room - weights) *fits = false;
    return QN_OK;
}

qn_status qn_memory_fits_cards(bool *fits, const qn_engine *engine, int64_t context, qn_err *err) {
    const int64_t chunk = qn_engine_chunk(engine, 0);
    // What a session takes at least, unless it is asked for more.
    const qn_runner_opts opts = {.engine = engine,
                                 .context = context,
                                 .rows = qn_min(chunk, context),
                                 .outs = QN_DEFAULT_SESSIONS,
                                 .segs = QN_DEFAULT_SESSIONS,
                                 .n_seqs = QN_DEFAULT_SESSIONS,
                                 .positions = context};
    *fits = true;
    for (size_t i = 0; i < engine->n_stages && *fits; i++) {
        const qn_device *device = engine->stages[i].device;
        if (!device->kind->has_host_memory && is_first(engine, i))
            QN_TRY(fits_card(fits, &opts, device, err));
    }
    return QN_OK;
}

// False: nobody knows what is free.
static qn_status measure_session(session_need *out, bool *is_known, const qn_session_opts *opts,
                                 int64_t outs, const qn_engine *engine, const qn_device *device,
                                 qn_err *err) {
    qn_memory plan;
    int64_t slots;
    *is_known = device->kind->memory(device, &out->available);
    if (!*is_known) return qn_device_failure(device, err);
    QN_TRY(make_plan(&plan, &slots, engine, opts->context, opts->chunk, device, err));
    out->usual = plan.cache + KEPT_SLOTS * slots;
    out->state = plan.state;
    out->activations = plan.activations;
    out->all = plan.state + plan.activations; // the weights are there
    if (device->kind->has_host_memory) return QN_OK;
    const qn_runner_opts runner = {.engine = engine,
                                   .hidden = opts->hidden,
                                   .context = opts->context,
                                   .rows = qn_min(opts->chunk, opts->context),
                                   .outs = outs,
                                   .segs = opts->sessions,
                                   .n_seqs = opts->sessions,
                                   .positions = opts->context};
    return measure_card(out, &runner, device, err);
}

// Whether a session fits on every device; *need: of the one where it does not, or of the one that
// has least left.
static qn_status measure_all(session_need *need, const qn_device **where,
                             const qn_session_opts *opts, int64_t outs, const qn_engine *engine,
                             qn_err *err) {
    *where = NULL;
    for (size_t i = 0; i < engine->n_stages; i++) {
        session_need own = {0};
        bool is_known;
        if (!is_first(engine, i)) continue;
        const qn_device *device = engine->stages[i].device;
        QN_TRY(measure_session(&own, &is_known, opts, outs, engine, device, err));
        if (!is_known || (*where && own.available - own.all >= need->available - need->all))
            continue;
        *need = own;
        *where = device;
    }
    return QN_OK;
}

qn_status qn_memory_fit(qn_session_opts *opts, int64_t outs, const qn_engine *engine, qn_err *err) {
    for (;;) {
        session_need need = {0};
        const qn_device *where;
        char of[80];
        QN_TRY(measure_all(&need, &where, opts, outs, engine, err));
        if (!where) return QN_OK;
        if (need.all <= need.available) {
            if (opts->kept == 0) opts->kept = qn_min(need.usual, need.available - need.all);
            return QN_OK;
        }
        if (!opts->shrink || opts->context <= MIN_CONTEXT)
            return QN_FAIL(err, MEMORY,
                           "a context of %lld tokens%s needs %.1f MiB (state %.1f, activations "
                           "%.1f), %.1f MiB of memory%s are free",
                           (long long)opts->context, opts->shrink ? ", the smallest," : "",
                           mib(need.all), mib(need.state), mib(need.activations),
                           mib(need.available), whose(of, where));
        opts->context = (opts->context + 1) / 2;
    }
}

// Halves what is kept of earlier prompts, then what sequences have together beyond one context.
static bool make_smaller(qn_runner_opts *opts) {
    int64_t positions = opts->positions;
    if (opts->kept_bytes > 0) {
        opts->kept_bytes /= 2;
        return true;
    }
    if (positions == 0 && !qn_i64_mul(&positions, opts->n_seqs, opts->context))
        positions = INT64_MAX;
    if (positions <= opts->context) return false;
    opts->positions = qn_max(positions / 2, opts->context);
    return true;
}

qn_status qn_memory_fit_cards(qn_runner_opts *opts, qn_err *err) {
    for (size_t i = 0; i < opts->engine->n_stages; i++) {
        const qn_device *device = opts->engine->stages[i].device;
        session_need need = {0};
        char of[80];
        if (device->kind->has_host_memory || !is_first(opts->engine, i)) continue;
        if (!device->kind->memory(device, &need.available)) {
            QN_TRY(qn_device_failure(device, err));
            continue;
        }
        QN_TRY(measure_card(&need, opts, device, err));
        while (need.all > need.available && make_smaller(opts))
            QN_TRY(measure_card(&need, opts, device, err));
        if (need.all > need.available)
            return QN_FAIL(err, MEMORY,
                           "%lld sequences with a context of %lld tokens need %.1f MiB (state "
                           "%.1f, activations %.1f), %.1f MiB of memory%s are free",
                           (long long)opts->n_seqs, (long long)opts->context, mib(need.all),
                           mib(need.state), mib(need.activations), mib(need.available),
                           whose(of, device));
    }
    return QN_OK;
}
