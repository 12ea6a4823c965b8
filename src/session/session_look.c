// Looking into a session: keys and values, recurrent state, the residual stream of its last step.
#include "session/session_int.h"

#include "core/structs.h"
#include "runtime/state_bytes.h"

#include <stdio.h>
#include <string.h>

// Layers, and the prediction head after them.
static qn_status check_layer(const qn_session *s, int64_t layer, qn_err *err) {
    QN_TRY(qn_team_refuse(s->engine->team, "looking at the state of a session", err));
    const int64_t n = s->engine->model->hparams->layers + s->engine->opts.mtp;
    QN_TRY(qn_session_need_plans(s, err));
    if (layer < 0 || layer >= n)
        return QN_FAIL(err, ARGUMENT, "layer %lld, the model has %lld", (long long)layer,
                       (long long)n);
    return QN_OK;
}

// The cache of a layer; false: it has none.
static bool find_cache(size_t *i, qn_kept_info *info, const qn_seq *seq, int64_t layer) {
    for (*i = 0; *i < qn_seq_n_caches(seq); ++*i) {
        *info = qn_seq_cache_info(seq, *i);
        if (info->layer == layer) return true;
    }
    return false;
}

// The k-th state of a layer, or how many it has, where that is fewer.
static int64_t find_state(size_t *i, qn_kept_info *info, const qn_seq *seq, int64_t layer,
                          int64_t k) {
    int64_t n = 0;
    for (size_t at = 0; at < qn_seq_n_states(seq); at++) {
        const qn_kept_info found = qn_seq_state_info(seq, at);
        if (found.layer != layer || n++ != k) continue;
        *i = at;
        *info = found;
        return n;
    }
    return n;
}

qn_status qn_session_layer_info(qn_layer_info *out, const qn_session *session, int64_t layer,
                                qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(session, err);
    QN_TRY(QN_RESULT_CHECK(qn_layer_info, out, err));
    QN_TRY(check_layer(session, layer, err));
    size_t i = 0;
    qn_kept_info cache = {0};
    qn_layer_info info = {.n_states = find_state(&i, &cache, session->seq, layer, -1)};
    if (find_cache(&i, &cache, session->seq, layer)) {
        info.n_heads = cache.heads;
        info.key_size = cache.k_size;
        info.value_size = cache.v_size;
        info.first = cache.first;
    }
    QN_RESULT_WRITE(qn_layer_info, out, &info);
    return QN_OK;
}

static qn_status check_range(const qn_kept_info *cache, int64_t cached, const qn_kv_range *range,
                             int64_t layer, qn_err *err) {
    if (range->head < 0 || range->head >= cache->heads)
        return QN_FAIL(err, ARGUMENT, "layer %lld: head %lld of keys, it has %lld",
                       (long long)layer, (long long)range->head, (long long)cache->heads);
    if (range->first < cache->first || range->n < 0 || range->first > cached ||
        range->n > cached - range->first)
        return QN_FAIL(err, ARGUMENT,
                       "layer %lld: %lld positions from %lld on, it has %lld to %lld",
                       (long long)layer, (long long)range->n, (long long)range->first,
                       (long long)cache->first, (long long)cached - 1);
    return QN_OK;
}

qn_status qn_session_read_kv(float *keys, float *values, qn_session *session, int64_t layer,
                             int64_t head, int64_t first, int64_t n, qn_err *err) {
    QN_NEED(session, err);
    QN_TRY(check_layer(session, layer, err));
    qn_kv_range range = {.head = head, .first = first, .n = n};
    size_t i = 0;
    qn_kept_info cache = {0};
    if (!find_cache(&i, &cache, session->seq, layer))
        return QN_FAIL(err, ARGUMENT, "layer %lld has no KV cache", (long long)layer);
    QN_TRY(check_range(&cache, (int64_t)qn_session_cached(session), &range, layer, err));
    qn_runner_flush_copies(session->shared->runner);
    if (keys) QN_TRY(qn_seq_read_kv(keys, session->seq, i, &range, err));
    range.is_values = true;
    return values ? qn_seq_read_kv(values, session->seq, i, &range, err) : QN_OK;
}

static qn_status need_state(size_t *index, qn_kept_info *info, const qn_session *s, int64_t layer,
                            int64_t i, qn_err *err) {
    QN_TRY(check_layer(s, layer, err));
    const int64_t n = find_state(index, info, s->seq, layer, i);
    if (i < 0 || i >= n)
        return QN_FAIL(err, ARGUMENT, "layer %lld: state %lld, it has %lld", (long long)layer,
                       (long long)i, (long long)n);
    return QN_OK;
}

qn_status qn_session_state_info(qn_state_info *out, const qn_session *session, int64_t layer,
                                int64_t i, qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(session, err);
    QN_TRY(QN_RESULT_CHECK(qn_state_info, out, err));
    size_t index = 0;
    qn_kept_info state = {0};
    QN_TRY(need_state(&index, &state, session, layer, i, err));
    const qn_state_info info = {.name = state.name,
                                .dims = {state.state_heads, state.state_k, state.state_v}};
    QN_RESULT_WRITE(qn_state_info, out, &info);
    return QN_OK;
}

qn_status qn_session_read_state(float *to, qn_session *session, int64_t layer, int64_t i,
                                qn_err *err) {
    QN_NEED(to, err);
    QN_NEED(session, err);
    size_t index = 0;
    qn_kept_info state = {0};
    QN_TRY(need_state(&index, &state, session, layer, i, err));
    if (qn_session_cached(session) == 0) { // what a slot holds before the first row counts as zero
        memset(to, 0, (size_t)(state.state_heads * state.state_k * state.state_v) * sizeof *to);
        return QN_OK;
    }
    qn_runner_flush_copies(session->shared->runner);
    return qn_seq_read_state(to, session->seq, index, err);
}

// --- the residual stream -------------------------------------------------------------------------

static qn_hidden_info describe(const qn_session *s) {
    const qn_hparams *hp = s->engine->model->hparams;
    const bool is_last = s->step_rows > 0 && s->step == qn_runner_steps(s->shared->runner);
    const int64_t end = s->step_first + s->step_rows;
    const int64_t cached = (int64_t)qn_session_cached(s), kept = end < cached ? end : cached;
    return (qn_hidden_info){.first = s->step_first,
                            .n_rows = is_last && kept > s->step_first ? kept - s->step_first : 0,
                            .n_hidden = hp->layers + 1,
                            .width = hp->width};
}

static qn_status need_hidden(const qn_session *s, qn_err *err) {
    QN_TRY(qn_session_need_plans(s, err));
    if (s->keeps_hidden) return QN_OK;
    return QN_FAIL(err, STATE, "the session was created without qn_session_opts.hidden");
}

qn_status qn_session_hidden_info(qn_hidden_info *out, const qn_session *session, qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(session, err);
    QN_TRY(QN_RESULT_CHECK(qn_hidden_info, out, err));
    QN_TRY(need_hidden(session, err));
    const qn_hidden_info info = describe(session);
    QN_RESULT_WRITE(qn_hidden_info, out, &info);
    return QN_OK;
}

qn_status qn_session_read_hidden(float *to, const qn_session *session, int64_t i, int64_t first,
                                 int64_t n, qn_err *err) {
    QN_NEED(session, err);
    if (n) QN_NEED(to, err);
    QN_TRY(need_hidden(session, err));
    const qn_hidden_info info = describe(session);
    char name[32];
    if (i < 0 || i >= info.n_hidden)
        return QN_FAIL(err, ARGUMENT, "row %lld of the residual stream, it has %lld", (long long)i,
                       (long long)info.n_hidden);
    if (first < info.first || n < 0 || first > info.first + info.n_rows ||
        n > info.first + info.n_rows - first)
        return QN_FAIL(err, ARGUMENT,
                       "hidden rows of %lld positions from %lld on, the last step left %lld from "
                       "%lld on",
                       (long long)n, (long long)first, (long long)info.n_rows,
                       (long long)info.first);
    snprintf(name, sizeof name, "hidden.%lld", (long long)i);
    for (int64_t r = 0; r < n; r++) {
        const float *row = qn_runner_row(session->shared->runner, name,
                                         session->step_row + first - session->step_first + r);
        memcpy(to + r * info.width, row, (size_t)info.width * sizeof *to);
    }
    return qn_runner_failure(session->shared->runner, err);
}
