#include "runtime/stage.h"

#include "core/mem.h"
#include "ir/cut.h"

#include <stdio.h>
#include <string.h>

enum { NAME = 64 }; // bytes of a device's name

void qn_stage_deinit(qn_stage *stage) {
    qn_packs_destroy(stage->packs);
    qn_plan_deinit(&stage->prefill);
    qn_plan_deinit(&stage->decode);
    if (stage->device) qn_device_close(stage->device);
}

static qn_status open_device(qn_device **out, const char *name, size_t size, const char *level,
                             qn_pool *pool, qn_err *err) {
    char text[NAME];
    if (size >= sizeof text)
        return QN_FAIL(err, ARGUMENT, "a device's name of %zu bytes, at most %d", size, NAME - 1);
    snprintf(text, sizeof text, "%.*s", (int)size, name);
    return qn_device_open(out, text, level, pool, err);
}

static size_t count_names(const char *list) {
    size_t n = 1;
    for (; *list; list++) n += *list == ',';
    return n;
}

void qn_stages_divide(qn_stage *stages, size_t n, int64_t first, int64_t n_layers) {
    const int64_t here = n_layers - first;
    for (size_t i = 0; i < n; i++) {
        stages[i].first_layer = first + here * (int64_t)i / (int64_t)n;
        stages[i].end_layer = first + here * (int64_t)(i + 1) / (int64_t)n;
        stages[i].is_whole = n == 1 && first == 0;
    }
}

qn_status qn_stages_open(qn_stage **stages, size_t *n, const char *devices, const char *level,
                         int64_t n_layers, qn_pool *pool, qn_err *err) {
    const char *at = devices ? devices : "";
    const size_t n_stages = count_names(at);
    if ((int64_t)n_stages > n_layers)
        return QN_FAIL(err, ARGUMENT, "%zu devices for a model of %lld layers", n_stages,
                       (long long)n_layers);
    qn_stage *all = qn_alloc(n_stages, sizeof *all);
    if (!all) return QN_NOMEM(err, "stages");
    qn_status status = QN_OK;
    qn_stages_divide(all, n_stages, 0, n_layers);
    for (size_t i = 0; i < n_stages && !status; i++) {
        const size_t size = strcspn(at, ",");
        if (size == 0 && n_stages > 1)
            status = QN_FAIL(err, ARGUMENT, "device %zu of '%.40s': the name is empty", i, devices);
        if (!status) status = open_device(&all[i].device, at, size, level, pool, err);
        at += size + 1;
    }
    if (status) {
        for (size_t i = 0; i < n_stages; i++) qn_stage_deinit(&all[i]);
        qn_free(all);
        return status;
    }
    *stages = all;
    *n = n_stages;
    return QN_OK;
}

qn_status qn_stage_graph(const qn_graph **out, qn_graph *room, const qn_stage *stage,
                         const qn_graph *graph, int64_t n_layers, qn_err *err) {
    *out = graph;
    if (stage->is_whole) return QN_OK;
    QN_TRY(qn_graph_cut(room, graph, stage->first_layer, stage->end_layer, n_layers, err));
    *out = room;
    return QN_OK;
}
