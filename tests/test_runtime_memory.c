// The memory plan: told before anything is taken, refused with its numbers where it cannot fit.
#include "families.h"
#include "format_files.h"

#include "core/machine.h"
#include "core/mem.h"
#include "model_writer.h"
#include "runtime/engine.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

// A model that claims a context far beyond any memory.
static qn_engine *open_endless(const char *path) {
    qn_err err;
    qn_engine *engine = NULL;
    model_file *m = model_load(TEST_DATA "/mini/llama32/llama32-bf16.gguf");
    model_edit(m, "key llama.context_length u32 1000000000");
    model_write_gguf(m, path);
    model_free(m);
    ASSERT_OK(qn_engine_open(&engine, path, NULL, &err));
    return engine;
}

static void a_context_that_cannot_fit_is_refused(void **state) {
    qn_err err;
    qn_engine *engine = open_endless(in_folder(state, "endless.gguf").text);
    qn_session *session = NULL;
    ASSERT_FAILS(qn_session_create(&session, engine, NULL, &err), QN_MEMORY,
                 "a context of 1000000000 tokens needs");
    assert_non_null(strstr(err.message, "MiB of memory are free"));
    assert_null(session);
    ASSERT_OK(qn_session_create(&session, engine, &QN_INIT(qn_session_opts, .shrink = true), &err));
    assert_in_range(qn_session_context(session), 64, 999999999);
    const int32_t ids[] = {1, 2, 3};
    int32_t token;
    ASSERT_OK(qn_session_set_prompt(session, ids, 3, &err));
    ASSERT_OK(qn_session_step(&token, session, NULL, &err));
    qn_session_destroy(session);
    qn_engine_close(engine);
}

static bool one_byte(const qn_device *device, int64_t *available) {
    (void)device;
    *available = 1;
    return true;
}

// The context that was looked at last is named with its own numbers.
static void the_smallest_context_is_refused_with_its_numbers(void **state) {
    qn_err err;
    qn_engine *engine = open_endless(in_folder(state, "endless.gguf").text);
    qn_device *device = engine->stages[0].device;
    const qn_device_kind *kind = device->kind;
    qn_device_kind full = *kind;
    qn_session *session = NULL;
    char want[128];
    full.memory = one_byte;
    device->kind = &full;
    for (int is_shrunk = 0; is_shrunk < 2; is_shrunk++) {
        const qn_session_opts opts =
            QN_INIT(qn_session_opts, .context = 512, .chunk = 16, .shrink = is_shrunk);
        qn_memory plan = QN_INIT(qn_memory);
        ASSERT_OK(qn_engine_memory(&plan, engine, is_shrunk ? 64 : 512, 16, &err));
        snprintf(want, sizeof want, "a context of %s needs %.1f MiB (state %.1f, activations %.1f)",
                 is_shrunk ? "64 tokens, the smallest," : "512 tokens",
                 (double)(plan.state + plan.activations) / (1 << 20),
                 (double)plan.state / (1 << 20), (double)plan.activations / (1 << 20));
        ASSERT_FAILS(qn_session_create(&session, engine, &opts, &err), QN_MEMORY, want);
    }
    device->kind = kind;
    qn_engine_close(engine);
}

// Tables of a context that is never used take no memory.
static void a_long_context_costs_what_is_used_of_it(void **state) {
    qn_err err;
    qn_engine *engine = open_endless(in_folder(state, "endless.gguf").text);
    qn_session *session = NULL;
    const int32_t ids[] = {1, 2, 3};
    int32_t token;
    const int64_t before = qn_machine_resident_memory();
    ASSERT_OK(qn_session_create(&session, engine,
                                &QN_INIT(qn_session_opts, .context = 2000000, .chunk = 16), &err));
    ASSERT_OK(qn_session_set_prompt(session, ids, 3, &err));
    for (int i = 0; i < 3; i++) ASSERT_OK(qn_session_step(&token, session, NULL, &err));
    const int64_t grown = qn_machine_resident_memory() - before;
    qn_session_destroy(session);
    qn_engine_close(engine);
    if (grown > 32 << 20) fail_msg("%lld bytes for 6 tokens", (long long)grown);
}

// Address space for all sequences that could be is taken if it is there, not more than there is.
static void a_small_address_space_is_enough(void **state) {
    (void)state;
    enum { LEFT = 64 << 20 };
    qn_err err;
    struct rlimit all, less;
    long long pages = 0;
    qn_engine *engine = family_open(MODELS "/quern-mini-Q8_0.gguf", NULL);
    qn_session *session = NULL, *fork = NULL;
    const int32_t ids[] = {1, 2, 3};
    int32_t token;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%lld", &pages), 1);
    fclose(f);
    assert_int_equal(getrlimit(RLIMIT_AS, &all), 0);
    less = all;
    less.rlim_cur = (rlim_t)(pages * sysconf(_SC_PAGESIZE) + LEFT);
    assert_int_equal(setrlimit(RLIMIT_AS, &less), 0);
    const qn_status status =
        qn_session_create(&session, engine, &QN_INIT(qn_session_opts, .shrink = true), &err);
    assert_int_equal(setrlimit(RLIMIT_AS, &all), 0);
    if (status) fail_msg("%s", err.message);
    ASSERT_OK(qn_session_set_prompt(session, ids, 3, &err));
    ASSERT_OK(qn_session_step(&token, session, NULL, &err));
    ASSERT_OK(qn_session_fork(&fork, session, &err));
    ASSERT_OK(qn_session_step(&token, fork, NULL, &err));
    qn_session_destroy(fork);
    qn_session_destroy(session);
    qn_engine_close(engine);
}

static void the_plan_grows_as_the_context_does(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_err err;
        qn_engine *engine = family_open(families[f], &QN_INIT(qn_engine_opts, .no_weights = true));
        qn_memory small = QN_INIT(qn_memory), large = QN_INIT(qn_memory), wide = QN_INIT(qn_memory);
        ASSERT_OK(qn_engine_memory(&small, engine, 512, 128, &err));
        ASSERT_OK(qn_engine_memory(&large, engine, 2048, 128, &err));
        ASSERT_OK(qn_engine_memory(&wide, engine, 2048, 512, &err));
        assert_true(small.weights > 0 && small.weights == large.weights);
        assert_true(small.cache < large.cache && small.state < large.state);
        // What attention of few rows leaves of each chunk of positions.
        assert_true(small.activations <= large.activations);
        assert_true(large.activations - small.activations < large.state - small.state);
        assert_true(wide.activations > large.activations);
        assert_true(small.program > 0);
        assert_int_equal(small.total, small.weights + small.state + small.activations);
        qn_engine_close(engine);
        engine = family_open(families[f], NULL); // the same with the weights there
        ASSERT_OK(qn_engine_memory(&wide, engine, 512, 128, &err));
        assert_int_equal(wide.weights, small.weights);
        assert_int_equal(wide.state, small.state);
        assert_int_equal(wide.activations, small.activations);
        qn_engine_close(engine);
    }
}

static void the_machine_tells_its_memory(void **state) {
    (void)state;
    int64_t bytes = 0;
    assert_true(qn_machine_free_memory(&bytes));
    assert_true(bytes > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(a_context_that_cannot_fit_is_refused),
        FOLDER_TEST(the_smallest_context_is_refused_with_its_numbers),
        FOLDER_TEST(a_long_context_costs_what_is_used_of_it),
        cmocka_unit_test(a_small_address_space_is_enough),
        cmocka_unit_test(the_plan_grows_as_the_context_does),
        cmocka_unit_test(the_machine_tells_its_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
