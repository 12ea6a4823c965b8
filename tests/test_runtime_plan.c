// Plans: every family's graph becomes one that its verifier accepts and that survives its text;
// buffers that are needed at the same time never share bytes.
#include "families.h"

#include "backends/backend.h"
#include "backends/lower.h"
#include "core/mem.h"
#include "ir/plan_text.h"
#include "ir/memplan.h"
#include "passes/passes.h"
#include "backends/cpu/bind.h"
#include "runtime/engine.h"

static qn_engine *open_bare(const char *family) {
    return family_open(family, &QN_INIT(qn_engine_opts, .no_weights = true, .n_threads = 1));
}

static void plans_survive_their_text(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_err err;
        qn_engine *engine = open_bare(families[f]);
        const qn_plan *plan = &engine->stages[0].prefill;
        qn_buf first = {0}, second = {0};
        qn_plan again = {0};
        ASSERT_OK(qn_plan_verify(plan, &err));
        qn_plan_print(&first, plan);
        ASSERT_OK(qn_plan_parse(&again, first.data, first.size, &err));
        qn_plan_print(&second, &again);
        assert_string_equal(first.data, second.data);
        qn_plan_deinit(&again);
        qn_buf_deinit(&first);
        qn_buf_deinit(&second);
        qn_engine_close(engine);
    }
}

static void buffers_in_use_share_no_bytes(void **state) {
    (void)state;
    static const int64_t sizes[][QN_SYM_COUNT] = {
        {1, 1, 1, 1}, {1, 64, 1, 1}, {1, 7, 3, 7}, {1, 3, 3, 0}, {1, 512, 1, 512}};
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_engine *engine = open_bare(families[f]);
        const qn_plan *plan = &engine->stages[0].prefill;
        int64_t *offsets = qn_alloc(plan->n_buffers, sizeof *offsets);
        int32_t *living = qn_alloc(plan->n_buffers, sizeof *living);
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            qn_memplan_report report;
            assert_true(qn_memplan(&report, offsets, living, plan, sizes[s]));
            for (size_t i = 0; i < plan->n_buffers; i++) {
                int64_t bytes_i, bytes_j;
                const qn_plan_buffer *a = &plan->buffers[i];
                assert_true(qn_buffer_bytes(&bytes_i, a, sizes[s]));
                assert_true(offsets[i] >= 0 && offsets[i] % QN_BUFFER_ALIGN == 0);
                assert_true(offsets[i] + bytes_i <= report.peak);
                for (size_t j = 0; j < i; j++) {
                    const qn_plan_buffer *b = &plan->buffers[j];
                    if (a->first > b->last || b->first > a->last) continue;
                    assert_true(qn_buffer_bytes(&bytes_j, b, sizes[s]));
                    assert_true(offsets[i] + bytes_i <= offsets[j] ||
                                offsets[j] + bytes_j <= offsets[i]);
                }
            }
            assert_true(report.total >= report.peak);
            if (s == 1) // memory is reused: layers do not add up
                assert_true(report.peak * 2 < report.total);
        }
        qn_free(offsets);
        qn_free(living);
        qn_engine_close(engine);
    }
}

static void the_ladder_has_these_rungs(void **state) {
    (void)state;
    static const struct {
        int64_t n, want;
    } cases[] = {{1, 1},   {2, 2},   {3, 4},       {4, 4},       {5, 8},       {8, 8},      {9, 16},
                 {16, 16}, {17, 32}, {1000, 1024}, {1024, 1024}, {1025, 1500}, {1500, 1500}};
    const qn_sizes max = {.rows = 1500, .segs = 1, .outs = 1500, .cached = 1500};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const qn_sizes step = {.rows = cases[i].n, .segs = 1, .cached = cases[i].n};
        const qn_sizes bound = qn_sizes_bound(QN_PLANS_BUCKETED, &step, &max);
        assert_int_equal(bound.rows, cases[i].want);
        assert_int_equal(bound.cached, cases[i].want);
        assert_int_equal(bound.outs, 0);
        const qn_sizes exact = qn_sizes_bound(QN_PLANS_EXACT, &step, &max);
        assert_int_equal(exact.rows, cases[i].n);
    }
}

// Angles are computed for the rows of the step, once, whatever the number of layers.
static void a_decode_step_computes_one_row_of_angles(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_engine *engine = open_bare(families[f]);
        size_t n = 0;
        for (size_t i = 0; i < engine->stages[0].prefill.n_calls; i++) {
            const qn_plan_call *call = &engine->stages[0].prefill.calls[i];
            assert_true(call->op != QN_OP_ROPE);
            if (call->op != QN_OP_ANGLES) continue;
            assert_int_equal(call->rows.sym, QN_SYM_T);
            assert_int_equal(call->rows.n, 1);
            n++;
        }
        assert_in_range(n, 1, 2); // gemma3 has two kinds of layers
        qn_engine_close(engine);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_survive_their_text),
        cmocka_unit_test(buffers_in_use_share_no_bytes),
        cmocka_unit_test(the_ladder_has_these_rungs),
        cmocka_unit_test(a_decode_step_computes_one_row_of_angles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
