// qn_engine: how experts are kept. See quern.h for the contracts.
#include "core/mem.h"
#include "core/structs.h"
#include "runtime/engine.h"

// All experts are in memory: only sizes.
static qn_status measure_all(qn_expert_stats *out, const qn_engine *engine, qn_err *err) {
    const qn_hparams *hp = engine->model->hparams;
    qn_experts_need need = {0};
    if (engine->layout)
        for (size_t i = 0; i < engine->n_stages; i++) {
            const qn_stage *stage = &engine->stages[i];
            qn_experts_need part;
            QN_TRY(qn_experts_measure(&part, &stage->prefill, stage->device, err));
            need.n_layers += part.n_layers;
            need.n_used = qn_max(need.n_used, part.n_used);
            need.all_bytes += part.all_bytes;
        }
    *out = (qn_expert_stats){.n_layers = need.n_layers,
                             .n_experts = need.n_layers ? hp->experts : 0,
                             .n_used = need.n_used,
                             .n_resident = need.n_layers ? hp->experts : 0,
                             .pool_bytes = need.all_bytes,
                             .layer = -1};
    return QN_OK;
}

qn_status qn_engine_expert_stats(qn_expert_stats *out, const qn_engine *engine, int64_t layer,
                                 qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(engine, err);
    QN_TRY(QN_RESULT_CHECK(qn_expert_stats, out, err));
    qn_expert_stats stats;
    QN_TRY(measure_all(&stats, engine, err));
    const int64_t end = engine->residency ? stats.n_layers : 0;
    if (layer != -1 && (layer < 0 || layer >= end))
        return QN_FAIL(err, ARGUMENT, "experts: layer %lld, they are counted in %lld layers",
                       (long long)layer, (long long)end);
    if (engine->residency) qn_residency_stats(&stats, engine->residency, layer);
    QN_RESULT_WRITE(qn_expert_stats, out, &stats);
    return QN_OK;
}

qn_status qn_engine_expert_svg(char **svg, const qn_engine *engine, qn_err *err) {
    QN_NEED(svg, err);
    QN_NEED(engine, err);
    if (!engine->residency)
        return QN_FAIL(err, STATE,
                       "experts: all %lld of each layer are in memory; which are used is counted "
                       "only where a budget leaves some out",
                       (long long)engine->model->hparams->experts);
    return qn_residency_svg(svg, engine->residency, err);
}
