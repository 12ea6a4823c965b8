// Memory that runs out while experts are kept: an error, and nothing stays behind; and steps that
// read experts allocate nothing. The linker sends all allocations of the library through this file
// (--wrap, tests/CMakeLists.txt).
#include "alloc_rig.h"
#include "families.h"
#include "format_files.h"

char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t n);
char *__real_realpath(const char *path, char *to);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t n);
char *__wrap_realpath(const char *path, char *to);

char *__wrap_strdup(const char *text) { return must_fail() ? NULL : counted(__real_strdup(text)); }

char *__wrap_strndup(const char *text, size_t n) {
    return must_fail() ? NULL : counted(__real_strndup(text, n));
}

// Not failed: a path that cannot be followed is taken as it is.
char *__wrap_realpath(const char *path, char *to) { return counted(__real_realpath(path, to)); }

enum { BUDGET = 2, MANY = 100000 };

static const char model[] = TEST_DATA "/mini/qwen3_moe/qwen3_moe-bf16.gguf";

static qn_status open_kept(qn_engine **out, const char *folder, qn_err *err) {
    return qn_engine_open(
        out, model,
        &QN_INIT(qn_engine_opts, .n_threads = 1, .cache_dir = folder, .expert_budget = BUDGET),
        err);
}

static void opening_without_memory_is_an_error(void **state) {
    qn_engine *engine = NULL;
    qn_err err;
    ASSERT_OK(open_kept(&engine, *state, &err)); // writes the file
    qn_engine_close(engine);
    long fails = 0;
    for (; fails < MANY; fails++) {
        const long before = atomic_load(&n_living);
        engine = NULL;
        atomic_store(&countdown, fails);
        const qn_status status = open_kept(&engine, *state, &err);
        const bool is_done = atomic_exchange(&countdown, -1) >= 0; // no allocation failed
        if (status) {
            assert_int_equal(status, QN_MEMORY);
            assert_null(engine);
        } else {
            qn_expert_stats stats = QN_INIT(qn_expert_stats);
            ASSERT_OK(qn_engine_expert_stats(&stats, engine, -1, &err));
            assert_int_equal(stats.n_resident, BUDGET); // nothing else was done instead
        }
        qn_engine_close(engine);
        assert_int_equal(atomic_load(&n_living), before);
        if (is_done) break;
    }
    assert_true(fails > 20 && fails < MANY);
}

static void steps_allocate_nothing(void **state) {
    qn_engine *engine = NULL;
    qn_session *session;
    qn_err err;
    int32_t ids[60], token;
    ASSERT_OK(open_kept(&engine, *state, &err));
    ASSERT_OK(qn_session_create(&session, engine, &QN_INIT(qn_session_opts, .context = 200), &err));
    random_ids(ids, 60, engine_info(engine).n_vocab, 4);
    ASSERT_OK(qn_session_set_prompt(session, ids, 5, &err));
    ASSERT_OK(qn_session_step(&token, session, NULL, &err));
    const long before = atomic_load(&n_requests);
    ASSERT_OK(qn_session_set_prompt(session, ids, 60, &err));
    for (int i = 0; i < 100; i++) ASSERT_OK(qn_session_step(&token, session, NULL, &err));
    assert_int_equal(atomic_load(&n_requests), before);
    qn_expert_stats stats = QN_INIT(qn_expert_stats);
    ASSERT_OK(qn_engine_expert_stats(&stats, engine, -1, &err));
    assert_true(stats.promotions > 0); // experts were read meanwhile
    qn_session_destroy(session);
    qn_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(opening_without_memory_is_an_error),
        FOLDER_TEST(steps_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
