// Tokens of an answer do not allocate, drafted or not, with stops, masks and log-probabilities. The
// linker sends all allocations of the library through this file (--wrap, tests/CMakeLists.txt).
#include "alloc_rig.h"
#include "generate_rig.h"

enum { WARM = 20, N_NEW = 150, MAX_GROWTH = 6 };

static bool look(void *arg, const qn_event *event) {
    (void)event;
    long *seen = arg;
    seen[1]++;
    if (seen[1] == WARM) seen[0] = atomic_load(&n_requests);
    return true;
}

static void tokens_allocate_nothing(void **state) {
    (void)state;
    static const char *const stops[] = {"\x01 never", "nor this"};
    for (size_t f = 0; f < N_FAMILIES; f++) {
        talk t = open_talk(families[f], 256);
        qn_session *draft = open_session(t.engine, 256);
        int32_t ids[40];
        random_ids(ids, 40, t.vocab, 4);
        for (int way = 0; way < 4; way++) {
            qn_err err;
            qn_generation *g;
            long seen[2] = {0};
            const qn_generate_opts opts =
                QN_INIT(qn_generate_opts,
                        .sample = &QN_INIT(qn_sample_opts, .temperature = way % 2 ? 0.8f : 0),
                        .max_tokens = N_NEW, .ignore_end = true, .stops = stops, .n_stops = 2,
                        .logprobs = true, .n_top = 5, .draft = way > 1 ? draft : NULL,
                        .lookup = way == 3, .draft_min = way > 1 ? 3 : 0);
            ASSERT_OK(qn_session_set_prompt(t.session, ids, 40, &err));
            ASSERT_OK(qn_generation_create(&g, t.session, &opts, &err));
            while (!g->result.reason) ASSERT_OK(step_rows(NULL, &g, 1, look, seen, &err));
            assert_int_equal(g->result.n_tokens, N_NEW);
            assert_true(seen[0] > 0);
            // A longer piece than any before lets the decoder's three buffers grow, by doubling.
            assert_in_range(atomic_load(&n_requests) - seen[0], 0, MAX_GROWTH);
            qn_generation_destroy(g);
        }
        qn_session_destroy(draft);
        close_talk(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
