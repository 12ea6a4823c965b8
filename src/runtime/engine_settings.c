// Settings of an engine: as asked, else as its profile says, else the default.
#include "core/mem.h"
#include "runtime/engine.h"

// Of each phase. Sizes go by powers of two: 10 numbers of rows up to a chunk of 512, and a few
// lengths of context for each that is in use. Not measured.
enum { KEPT_BINDINGS = 24 };

static const qn_profile_phase *phase_of(const qn_engine *engine, bool is_decode) {
    return is_decode ? &engine->profile.decode : &engine->profile.prefill;
}

qn_plan_policy qn_engine_policy(const qn_engine *engine, bool is_decode) {
    const qn_engine_opts *o = &engine->opts;
    const qn_plan_policy asked = is_decode ? o->decode_plans : o->prefill_plans;
    const qn_plan_policy said = phase_of(engine, is_decode)->plans;
    return asked ? asked : o->plans ? o->plans : said ? said : QN_PLANS_BUCKETED;
}

int64_t qn_engine_plan_capacity(const qn_engine *engine, bool is_decode) {
    const qn_engine_opts *o = &engine->opts;
    const int64_t asked = is_decode ? o->decode_capacity : o->prefill_capacity;
    const int64_t said = phase_of(engine, is_decode)->plan_capacity;
    return asked ? asked : said ? said : KEPT_BINDINGS;
}

// One dynamic plan is bound again for every step: there is nothing to keep.
static qn_status check_capacity(const qn_engine *engine, bool is_decode, qn_err *err) {
    const qn_engine_opts *o = &engine->opts;
    const char *phase = is_decode ? "decode" : "prefill";
    const int64_t asked = is_decode ? o->decode_capacity : o->prefill_capacity;
    if (asked < 0 || asked > QN_PLAN_CAPACITY)
        return QN_FAIL(err, ARGUMENT, "%s_capacity: %lld plans, want 0 to %d", phase,
                       (long long)asked, QN_PLAN_CAPACITY);
    if (asked && qn_engine_policy(engine, is_decode) == QN_PLANS_DYNAMIC)
        return QN_FAIL(err, ARGUMENT, "%s_capacity: %lld plans, but dynamic plans are not kept",
                       phase, (long long)asked);
    return QN_OK;
}

qn_status qn_engine_check_plans(const qn_engine *engine, qn_err *err) {
    QN_TRY(check_capacity(engine, false, err));
    return check_capacity(engine, true, err);
}

bool qn_engine_free_memory(const qn_engine *engine, int64_t *available) {
    bool is_known = false;
    for (size_t i = 0; i < engine->n_stages; i++) {
        const qn_device *device = engine->stages[i].device;
        int64_t bytes;
        if (!device->kind->memory(device, &bytes)) continue;
        if (!is_known || bytes < *available) *available = bytes;
        is_known = true;
    }
    return is_known;
}

// What all devices compute well.
static int64_t usual_chunk(const qn_engine *engine) {
    int64_t chunk = 0;
    for (size_t i = 0; i < engine->n_stages; i++) {
        const int64_t own = engine->stages[i].device->kind->chunk;
        const int64_t fits = own ? own : QN_DEFAULT_CHUNK;
        chunk = chunk ? qn_min(chunk, fits) : fits;
    }
    return chunk ? chunk : QN_DEFAULT_CHUNK;
}

int64_t qn_engine_chunk(const qn_engine *engine, int64_t asked) {
    const qn_profile *profile = &engine->profile;
    int64_t chunk = asked ? asked : profile->chunk ? profile->chunk : usual_chunk(engine);
    if (profile->compile_seq_cap && profile->compile_seq_cap < chunk)
        chunk = profile->compile_seq_cap;
    return chunk;
}

int32_t qn_engine_adapter_usual(const qn_engine *engine) {
    return engine->model->n_sets > 0 ? 0 : -1;
}

qn_status qn_engine_adapter(int32_t *out, const qn_engine *engine, int64_t asked, int32_t usual,
                            qn_err *err) {
    const int64_t n = engine->model->n_sets;
    if (asked < QN_NO_ADAPTER || asked > n)
        return QN_FAIL(err, ARGUMENT, "set %lld of adapters, the engine has %lld", (long long)asked,
                       (long long)n);
    *out = asked == 0 ? usual : asked == QN_NO_ADAPTER ? -1 : (int32_t)(asked - 1);
    return QN_OK;
}
