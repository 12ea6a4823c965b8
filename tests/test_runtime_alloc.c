// Nothing on the decode path allocates. The linker sends all allocations of the library through
// this file (--wrap, tests/CMakeLists.txt), which counts them.
#include "alloc_rig.h"
#include "steps.h"
#include "families.h"

static void steps_allocate_nothing(void **state) {
    (void)state;
    static const qn_plan_policy policies[] = {QN_PLANS_BUCKETED, QN_PLANS_EXACT, QN_PLANS_DYNAMIC};
    for (size_t f = 0; f < N_FAMILIES; f++) {
        for (size_t p = 0; p < 3; p++) {
            qn_err err;
            qn_engine *engine =
                family_open(families[f], &QN_INIT(qn_engine_opts, .plans = policies[p]));
            qn_session *session;
            int32_t ids[200], token;
            size_t n_new;
            ASSERT_OK(qn_session_create(&session, engine, &QN_INIT(qn_session_opts, .context = 300),
                                        &err));
            random_ids(ids, 200, engine_info(engine).n_vocab, 4);
            // The first choice of a session takes what choosing needs.
            const qn_sample_opts warm = QN_INIT(qn_sample_opts, .temperature = 1, .seed = 1);
            ASSERT_OK(qn_session_set_prompt(session, ids + 1, 1, &err));
            ASSERT_OK(qn_session_step(&token, session, &warm, &err));
            const long before = atomic_load(&n_requests);
            assert_true(before > 0);                                   // the counter counts
            ASSERT_OK(qn_session_set_prompt(session, ids, 100, &err)); // the prompt as well
            ASSERT_OK(take_steps(&n_new, session, 150, NULL, &err));
            ASSERT_OK(qn_session_step(&token, session, &warm, &err));
            ASSERT_OK(qn_session_truncate(session, 120, &err));
            ASSERT_OK(qn_session_step(&token, session, &warm, &err));
            ASSERT_OK(qn_session_set_prompt(session, ids, 200, &err));
            ASSERT_OK(qn_session_step(&token, session, NULL, &err));
            assert_int_equal(atomic_load(&n_requests), before);
            qn_session_destroy(session);
            qn_engine_close(engine);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
