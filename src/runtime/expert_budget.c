#include "runtime/expert_budget.h"

#include "core/log.h"
#include "core/machine.h"
#include "core/mem.h"
#include "runtime/memory.h"
#include "runtime/weights_file.h"

// Of the memory that is free, for the KV cache, activations and other programs.
static const int64_t reserve = INT64_C(1500) << 20;

static double mib(int64_t bytes) { return (double)bytes / (1 << 20); }

// Experts are in one operation in both phases, or in none: a profile may have left decode's out.
static qn_status compare_phases(bool *differ, const qn_engine *engine, const qn_experts_need *need,
                                qn_err *err) {
    const qn_stage *stage = &engine->stages[0];
    qn_experts_need decode = *need;
    if (stage->decode.n_calls)
        QN_TRY(qn_experts_measure(&decode, &stage->decode, stage->device, err));
    *differ = decode.n_layers != need->n_layers;
    return QN_OK;
}

// Why no experts can be brought while the engine runs; NULL: they can.
static const char *find_problem(const qn_engine *engine, bool phases_differ) {
    const qn_device *device = engine->stages[0].device;
    if (phases_differ) return "decode has operations that need all of them (fuse_experts)";
    if (engine->n_stages > 1) return "the layers are on several devices";
    if (!device->kind->has_pager) return "the device needs all of its weights";
    if (engine->switches.ref) return "kernels are compared with the reference (QN_REF)";
    if (device->kind->has_host_memory && !engine->disk.dir)
        return "there is no cache folder for packed weights ('quern compile')";
    return NULL;
}

// What was asked for, in experts of each layer; 0: nothing.
static qn_status read_asked(int64_t *out, const qn_engine *engine, const qn_experts_need *need,
                            qn_err *err) {
    const int64_t n = engine->opts.expert_budget, bytes = engine->opts.expert_budget_bytes;
    *out = 0;
    if (n < 0 || bytes < 0 || (n && bytes))
        return QN_FAIL(err, ARGUMENT, "a budget of %lld experts and %lld bytes, want one of them",
                       (long long)n, (long long)bytes);
    if (!n && !bytes) return QN_OK;
    if (need->n_layers == 0)
        return QN_FAIL(err, ARGUMENT, "an expert budget of %lld %s: %s has no experts%s",
                       (long long)(n ? n : bytes), n ? "experts" : "bytes",
                       engine->model->family->arch,
                       engine->model->hparams->experts ? " in one operation (fuse_experts)" : "");
    *out = n ? n : bytes / need->bytes;
    if (*out >= need->n_used) return QN_OK;
    if (n)
        return QN_FAIL(err, ARGUMENT,
                       "an expert budget of %lld experts per layer; a token is routed to %lld",
                       (long long)n, (long long)need->n_used);
    return QN_FAIL(err, ARGUMENT,
                   "an expert budget of %.1f MiB; the %lld experts that a token is routed to take "
                   "%.1f MiB in all layers",
                   mib(bytes), (long long)need->n_used, mib(need->n_used * need->bytes));
}

// What memory leaves where nothing was asked for; 0: all experts, or as many as cannot be helped.
static qn_status find_room(int64_t *out, bool *is_optional, const qn_engine *engine,
                           const qn_experts_need *need, qn_err *err) {
    int64_t available, all;
    bool has_file;
    const qn_device *device = engine->stages[0].device;
    const bool is_card = !device->kind->has_host_memory;
    *out = 0;
    if (!(is_card ? device->kind->memory(device, &available)
                  : qn_engine_free_memory(engine, &available)))
        return is_card ? qn_device_failure(device, err) : QN_OK;
    QN_TRY(qn_memory_weights(&all, engine, err));
    if (all <= available - reserve) return QN_OK;
    has_file = is_card; // experts come from this process's memory
    if (!is_card)
        QN_TRY(qn_pack_file_exists(&has_file, &engine->disk, engine->source, device->kind, err));
    if (all <= available && !has_file) return QN_OK;
    if (!has_file && !engine->disk.may_write) return QN_OK; // the weights do not fit: an error
    const int64_t room = available - reserve - (all - need->all_bytes);
    const int64_t n = room > 0 ? room / need->bytes : 0;
    *is_optional = all <= available;
    if (n >= need->n_used) *out = n;
    if (n >= need->n_used || all <= available) return QN_OK;
    return QN_FAIL(err, MEMORY,
                   "%.0f MiB of memory%s%s are free; %.0f MiB are needed: the weights without "
                   "experts, the %lld experts of each layer that a token is routed to, and %.0f "
                   "MiB in reserve (--expert-budget does without)",
                   mib(available), is_card ? " of " : "", is_card ? device->backend->name : "",
                   mib(all - need->all_bytes + need->n_used * need->bytes + reserve),
                   (long long)need->n_used, mib(reserve));
}

// Those of a card wait in this machine's memory, all of them, and stay there: a system that takes
// more than it has would end the process instead of refusing.
static qn_status check_host(const qn_engine *engine, const qn_experts_need *need, qn_err *err) {
    int64_t available;
    if (engine->stages[0].device->kind->has_host_memory || !qn_machine_free_memory(&available) ||
        need->all_bytes <= available)
        return QN_OK;
    return QN_FAIL(err, MEMORY,
                   "all experts wait in this machine's memory: they need %.0f MiB, %.0f MiB are "
                   "free",
                   mib(need->all_bytes), mib(available));
}

qn_status qn_expert_budget_apply(qn_engine *engine, qn_err *err) {
    const qn_stage *stage = &engine->stages[0];
    qn_experts_need need;
    int64_t n;
    bool phases_differ, is_optional = false;
    QN_TRY(qn_experts_measure(&need, &stage->prefill, stage->device, err));
    QN_TRY(compare_phases(&phases_differ, engine, &need, err));
    const char *problem = find_problem(engine, phases_differ);
    QN_TRY(read_asked(&n, engine, &need, err));
    const bool is_asked = n > 0;
    if (!is_asked && need.n_layers > 0 && !problem)
        QN_TRY(find_room(&n, &is_optional, engine, &need, err));
    if (n == 0 || n >= need.n_experts) return QN_OK;
    if (problem)
        return QN_FAIL(err, UNSUPPORTED, "an expert budget of %lld of %lld experts: %s",
                       (long long)n, (long long)need.n_experts, problem);
    qn_err why;
    if (check_host(engine, &need, &why)) {
        if (!is_optional && err) *err = why;
        if (!is_optional) return why.status;
        qn_log(engine->opts.log, engine->opts.log_arg, QN_LOG_WARNING, "all experts are loaded: %s",
               why.message);
        return QN_OK;
    }
    qn_log(engine->opts.log, engine->opts.log_arg, QN_LOG_INFO,
           "%lld of %lld experts of each layer are kept in memory (%.1f of %.1f MiB)", (long long)n,
           (long long)need.n_experts, mib(n * need.bytes), mib(need.all_bytes));
    engine->may_hold_all = is_optional;
    return qn_residency_create(&engine->residency, &stage->prefill, stage->device, n, err);
}
