// Memory that runs out while a split is planned: an error, and nothing stays behind. The linker
// sends all allocations of the library through this file (--wrap, tests/CMakeLists.txt).
#include "alloc_rig.h"
#include "families.h"

#include "core/mem.h"
#include "runtime/engine.h"
#include "runtime/split_model.h"
#include "runtime/split_plan.h"

#include <jansson.h>

enum { MANY = 10000, N = 3 };

static qn_status plan_all(const qn_engine *engine, qn_err *err) {
    const qn_split_rank rank = {.read_gbs = 10, .int8_tops = 1, .f32_gflops = 100};
    const qn_split_rank ranks[N] = {rank, rank, rank};
    const qn_split_system system = {
        .ranks = ranks, .n = N, .link = {.latency_us = 50, .message_us = 5, .gbs = 1}};
    const qn_split_basis basis = {.backend = engine->stages[0].device->backend,
                                  .n_layers = engine->model->hparams->layers,
                                  .cache_type = engine->cache_type};
    const qn_split_plan_opts opts = {.split = QN_SPLIT_AUTO, .context = 100};
    qn_split_model model = {0};
    qn_split_plan *plan = NULL;
    char *json = NULL;
    qn_status status = qn_split_model_read(&model, engine->graph, &basis, err);
    if (!status) status = qn_split_plan_create(&plan, &model, &system, &opts, err);
    if (!status) status = qn_split_plan_json(&json, plan, err);
    if (!status) assert_non_null(strstr(json, "\"predicted\""));
    qn_free(json);
    qn_split_plan_destroy(plan);
    qn_split_model_deinit(&model);
    return status;
}

static void planning_without_memory_is_an_error(void **state) {
    (void)state;
    qn_engine *engine =
        family_open("gemma3", &QN_INIT(qn_engine_opts, .n_threads = 1, .no_weights = true));
    qn_err err;
    long fails = 0;
    ASSERT_OK(plan_all(engine, &err));
    for (; fails < MANY; fails++) {
        const long before = atomic_load(&n_living);
        atomic_store(&countdown, fails);
        const qn_status status = plan_all(engine, &err);
        const bool is_done = atomic_exchange(&countdown, -1) >= 0; // no allocation failed
        if (is_done) assert_int_equal(status, QN_OK);
        if (!is_done) assert_int_equal(status, QN_MEMORY);
        assert_int_equal(atomic_load(&n_living), before);
        if (is_done) break;
    }
    assert_true(fails > 20 && fails < MANY);
    qn_engine_close(engine);
}

int main(void) {
    json_set_alloc_funcs(json_alloc, __wrap_free);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planning_without_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
