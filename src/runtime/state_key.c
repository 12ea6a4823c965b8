#include "runtime/state_key.h"

#include "runtime/identity.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static const char what[] = "the state of a session";

// Read once, and only where a state is asked for: it takes a part of what opening does. Two threads
// that find it missing find the same.
static qn_status find_model(uint64_t *out, const qn_engine *engine, qn_err *err) {
    uint64_t hash = atomic_load_explicit(engine->model_hash, memory_order_relaxed);
    if (!hash) {
        QN_TRY(qn_identity_hash(&hash, engine->source, engine->pool, err));
        hash += !hash; // 0: unknown
        atomic_store_explicit(engine->model_hash, hash, memory_order_relaxed);
    }
    *out = engine->rope_hash ? qn_identity_mix(hash, engine->rope_hash, 1) : hash;
    return QN_OK;
}

static int64_t type_number(qn_cache_type type) {
    const qn_kv_type *kv = qn_kv_type_get(type);
    return qn_type_get(kv->type)->gguf_id + (kv->is_rotated ? QN_STATE_ROTATED : 0);
}

qn_status qn_state_key_of(qn_state_key *out, const qn_engine *engine, int32_t adapter,
                          qn_err *err) {
    qn_state_key key = {.adapters = adapter < 0 ? 0 : engine->adapter_hashes[adapter],
                        .adapter = adapter + 1,
                        .cache_type = type_number(engine->cache_type),
                        .numerics = engine->opts.numerics,
                        .mtp = engine->opts.mtp};
    const qn_key *name = qn_source_find_key(engine->source, "general.name");
    const bool is_named = name && name->kind == QN_KEY_STRING && name->as.s.size > 0;
    QN_TRY(find_model(&key.model, engine, err));
    snprintf(key.name, sizeof key.name, "%s%s%.40s", engine->model->family->arch,
             is_named ? " " : "", is_named ? name->as.s.data : "");
    *out = key;
    return QN_OK;
}

static qn_status check_model(const qn_state_key *key, const qn_state_key *own, qn_err *err) {
    if (key->model != own->model)
        return QN_FAIL(err, ARGUMENT, "%s: of the model %.*s (%016llx), this one is %s (%016llx)",
                       what, (int)strnlen(key->name, sizeof key->name), key->name,
                       (unsigned long long)key->model, own->name, (unsigned long long)own->model);
    if (memcmp(key->name, own->name, sizeof own->name) != 0) // it is among what was compared
        return QN_FAIL(err, FORMAT, "%s: of a model called %.*s, this one is %s", what,
                       (int)strnlen(key->name, sizeof key->name), key->name, own->name);
    if (key->adapters != own->adapters)
        return QN_FAIL(err, ARGUMENT,
                       "%s: of other adapters (%016llx) than set %lld of the engine (%016llx)",
                       what, (unsigned long long)key->adapters, (long long)own->adapter,
                       (unsigned long long)own->adapters);
    return QN_OK;
}

static const char *type_name(int64_t number) {
    for (int t = QN_CACHE_F32; t < QN_KV_TYPES; t++) {
        if (type_number((qn_cache_type)t) == number) return qn_kv_type_get((qn_cache_type)t)->name;
    }
    return "?";
}

static const char *numerics_name(int64_t numerics) {
    static const char *const names[] = {"exact", "balanced", "fast", "tensor"};
    return numerics >= 0 && numerics <= QN_NUMERICS_TENSOR ? names[numerics] : "?";
}

static qn_status check_settings(const qn_state_key *key, const qn_state_key *own, qn_err *err) {
    if (key->cache_type != own->cache_type)
        return QN_FAIL(err, ARGUMENT, "%s: a KV cache of %s (type %lld), the engine has %s", what,
                       type_name(key->cache_type), (long long)key->cache_type,
                       type_name(own->cache_type));
    if (key->numerics != own->numerics)
        return QN_FAIL(err, ARGUMENT, "%s: numerics %s (%lld), the engine has %s", what,
                       numerics_name(key->numerics), (long long)key->numerics,
                       numerics_name(own->numerics));
    if (key->mtp != own->mtp)
        return QN_FAIL(
            err, ARGUMENT, "%s: %s a prediction head (%lld), the engine was opened %s one", what,
            key->mtp ? "with" : "without", (long long)key->mtp, own->mtp ? "with" : "without");
    return QN_OK;
}

qn_status qn_state_key_check(int32_t *adapter, const qn_state_key *key, const qn_engine *engine,
                             qn_err *err) {
    const int64_t n_sets = engine->model->n_sets;
    if (key->adapter < 0 || key->adapter > n_sets)
        return QN_FAIL(err, ARGUMENT, "%s: of set %lld of adapters, the engine has %lld", what,
                       (long long)key->adapter, (long long)n_sets);
    const int32_t index = (int32_t)key->adapter - 1;
    qn_state_key own;
    QN_TRY(qn_state_key_of(&own, engine, index, err));
    QN_TRY(check_model(key, &own, err));
    QN_TRY(check_settings(key, &own, err));
    *adapter = index;
    return QN_OK;
}
