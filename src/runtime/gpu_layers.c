#include "runtime/gpu_layers.h"

#include "core/buf.h"
#include "core/log.h"
#include "core/mem.h"
#include "runtime/memory.h"

#include <string.h>

enum { USUAL_CONTEXT = 4096 };

static int64_t layers_of(const qn_engine *engine) { return engine->model->hparams->layers; }

// --- stages --------------------------------------------------------------------------------------

// The CPU's stage before all others; it has no layers yet.
static qn_status add_cpu(qn_engine *engine, qn_err *err) {
    qn_stage *all = qn_alloc(engine->n_stages + 1, sizeof *all);
    if (!all) return QN_NOMEM(err, "stages");
    const qn_status status =
        qn_device_open(&all[0].device, "cpu", engine->switches.level, engine->pool, err);
    if (status) {
        qn_free(all);
        return status;
    }
    memcpy(all + 1, engine->stages, engine->n_stages * sizeof *all);
    qn_free(engine->stages);
    engine->stages = all;
    engine->n_stages++;
    return QN_OK;
}

static void set_layers(qn_engine *engine, int64_t n) {
    const int64_t first = layers_of(engine) - n;
    qn_stage *cpu = &engine->stages[0];
    cpu->first_layer = 0;
    cpu->end_layer = first;
    cpu->is_whole = false;
    qn_stages_divide(cpu + 1, engine->n_stages - 1, first, layers_of(engine));
}

// All layers on the CPU: the GPUs are closed.
static void leave_gpus(qn_engine *engine) {
    for (size_t i = 1; i < engine->n_stages; i++) qn_stage_deinit(&engine->stages[i]);
    engine->n_stages = 1;
    qn_stages_divide(engine->stages, 1, 0, layers_of(engine));
}

// n of the layers on GPUs.
static void place_layers(qn_engine *engine, int64_t n) {
    if (n > 0)
        set_layers(engine, n);
    else
        leave_gpus(engine);
}

static void tell(const qn_engine *engine) {
    qn_buf text = {0};
    for (size_t i = 0; i < engine->n_stages; i++) {
        const qn_stage *stage = &engine->stages[i];
        qn_buf_printf(&text, "%slayers %lld to %lld on %s", i ? ", " : "",
                      (long long)stage->first_layer, (long long)stage->end_layer - 1,
                      stage->device->backend->name);
    }
    if (!text.failed) qn_log(engine->opts.log, engine->opts.log_arg, QN_LOG_INFO, "%s", text.data);
    qn_buf_deinit(&text);
}

// --- a number that was asked for -----------------------------------------------------------------

static qn_status check_devices(const qn_engine *engine, qn_err *err) {
    for (size_t i = 0; i < engine->n_stages; i++) {
        const qn_device *device = engine->stages[i].device;
        if (device->kind->has_host_memory)
            return QN_FAIL(err, ARGUMENT,
                           "layers on GPUs were asked for, and the device %s, which is none; "
                           "'cuda' is one",
                           device->backend->name);
    }
    return QN_OK;
}

qn_status qn_gpu_layers_apply(qn_engine *engine, qn_err *err) {
    const int64_t n = engine->opts.gpu_layers, context = engine->opts.gpu_context;
    if (n < QN_GPU_LAYERS_NONE)
        return QN_FAIL(err, ARGUMENT, "%lld layers on GPUs, want %d or more", (long long)n,
                       QN_GPU_LAYERS_NONE);
    if (context < 0)
        return QN_FAIL(err, ARGUMENT, "layers on GPUs for a context of %lld tokens",
                       (long long)context);
    const bool is_on_cpu = engine->n_stages == 1 && engine->stages[0].device->kind->has_host_memory;
    if (n == 0 || (n == QN_GPU_LAYERS_NONE && is_on_cpu)) return QN_OK;
    QN_TRY(check_devices(engine, err));
    if (n == QN_GPU_LAYERS_AUTO || n >= layers_of(engine)) return QN_OK;
    if (n > 0 && (size_t)n < engine->n_stages)
        return QN_FAIL(err, ARGUMENT, "%lld layers for %zu GPUs", (long long)n, engine->n_stages);
    QN_TRY(add_cpu(engine, err));
    place_layers(engine, n);
    tell(engine);
    return QN_OK;
}

// --- as many as fit ------------------------------------------------------------------------------

// Whether the stages as they are can be had. A stack that cannot be cut here is one that does not
// fit here; so is one for which not even the planning finds room.
static qn_status try_stages(bool *fits, qn_engine *engine, int64_t context, qn_err *err) {
    qn_err why;
    qn_status status = qn_engine_plan_stages(engine, &why);
    if (!status) status = qn_memory_fits_cards(fits, engine, context, &why);
    qn_engine_drop_plans(engine);
    const bool is_cut = engine->n_stages > 1;
    if (status == QN_LIMIT || status == QN_MEMORY || (status == QN_UNSUPPORTED && is_cut)) {
        *fits = false;
        return QN_OK;
    }
    if (status && err) *err = why;
    return status;
}

// The largest number of layers that fits; *n is 0 where none does.
static qn_status search(int64_t *n, qn_engine *engine, int64_t context, qn_err *err) {
    int64_t low = (int64_t)engine->n_stages - 1, high = layers_of(engine) - 1;
    *n = 0;
    while (low <= high) {
        const int64_t middle = low + (high - low) / 2;
        bool fits;
        set_layers(engine, middle);
        QN_TRY(try_stages(&fits, engine, context, err));
        if (fits) {
            *n = middle;
            low = middle + 1;
        } else {
            high = middle - 1;
        }
    }
    return QN_OK;
}

qn_status qn_gpu_layers_choose(qn_engine *engine, qn_err *err) {
    const qn_engine_opts *o = &engine->opts;
    const int64_t limit = engine->model->hparams->context;
    const int64_t context = qn_min(limit, o->gpu_context ? o->gpu_context : USUAL_CONTEXT);
    int64_t n;
    bool fits;
    if (o->gpu_layers != QN_GPU_LAYERS_AUTO) return QN_OK;
    QN_TRY(try_stages(&fits, engine, context, err));
    if (!fits) {
        QN_TRY(add_cpu(engine, err));
        QN_TRY(search(&n, engine, context, err));
        place_layers(engine, n);
    }
    tell(engine);
    return QN_OK;
}
