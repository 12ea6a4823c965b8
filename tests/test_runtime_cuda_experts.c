// Experts that wait in this process's memory for a card: with any budget the logits and the texts
// are those of all experts, and whatever call of the driver fails, it is an error or the right
// result. On the stand-in for GPUs (fake_cuda.c).
#include "cuda_rig.h"
#include "generate_rig.h"

enum { EXPERTS = 4, USED = 2, CONTEXT = 96, N_IDS = 40 };

// Float weights; a hybrid with a shared expert.
static const char *const models[] = {"qwen3_moe", "qwen35_moe"};
enum { N_MODELS = sizeof models / sizeof *models };

static fake_card card;

// Of this machine, where the linker sends the question; 0: what there really is.
static int64_t told_memory;
bool __real_qn_machine_free_memory(int64_t *out);
bool __wrap_qn_machine_free_memory(int64_t *out);
bool __wrap_qn_machine_free_memory(int64_t *out) {
    if (!told_memory) return __real_qn_machine_free_memory(out);
    *out = told_memory;
    return true;
}

static qn_engine *open_kept(const char *model, int64_t budget) {
    return family_open(model, &QN_INIT(qn_engine_opts, .device = "cuda", .expert_budget = budget));
}

static void get_logits(qn_logits *out, const qn_engine *engine, int64_t chunk) {
    qn_err err;
    int32_t ids[N_IDS];
    random_ids(ids, N_IDS, engine_info(engine).n_vocab, 3);
    const qn_logits_opts opts = QN_INIT(qn_logits_opts, .all_rows = true, .chunk = chunk);
    ASSERT_OK(qn_engine_logits(out, engine, ids, N_IDS, &opts, &err));
}

static void assert_same_logits(const qn_logits *a, const qn_logits *b) {
    assert_int_equal(a->n_rows, b->n_rows);
    assert_memory_equal(a->logits, b->logits, (size_t)(a->n_rows * a->n_vocab) * sizeof *a->logits);
}

static qn_expert_stats stats_of(const qn_engine *engine) {
    qn_err err;
    qn_expert_stats stats = QN_INIT(qn_expert_stats);
    ASSERT_OK(qn_engine_expert_stats(&stats, engine, -1, &err));
    return stats;
}

static void logits_are_those_of_all_experts(void **state) {
    (void)state;
    for (size_t m = 0; m < N_MODELS; m++) {
        qn_engine *cpu = family_open(models[m], &QN_INIT(qn_engine_opts, .device = "cpu"));
        qn_logits want = QN_INIT(qn_logits);
        get_logits(&want, cpu, 0);
        for (int64_t budget = USED; budget <= EXPERTS; budget++) {
            qn_engine *some = open_kept(models[m], budget);
            for (int64_t chunk = 0; chunk <= 7; chunk += 7) {
                qn_logits got = QN_INIT(qn_logits);
                get_logits(&got, some, chunk);
                assert_same_logits(&got, &want);
                qn_logits_deinit(&got);
            }
            const qn_expert_stats stats = stats_of(some);
            assert_int_equal(stats.n_resident, budget);
            if (budget < EXPERTS) assert_true(stats.misses > 0 && stats.hits > 0);
            qn_engine_close(some);
        }
        qn_logits_deinit(&want);
        qn_engine_close(cpu);
    }
    assert_int_equal(card.bytes(), 0);
}

static qn_result write_text(const qn_engine *engine) {
    int32_t ids[N_IDS];
    random_ids(ids, N_IDS, engine_info(engine).n_vocab, 9);
    const qn_sample_opts sample = QN_INIT(qn_sample_opts, .temperature = 0.9f, .seed = 4);
    const qn_generate_opts opts =
        QN_INIT(qn_generate_opts, .sample = &sample, .max_tokens = 20, .ignore_end = true);
    qn_session *session = open_session(engine, CONTEXT);
    const qn_result r = answer(session, ids, N_IDS, &opts, NULL, NULL);
    qn_session_destroy(session);
    return r;
}

static void texts_are_those_of_all_experts(void **state) {
    (void)state;
    for (size_t m = 0; m < N_MODELS; m++) {
        qn_engine *cpu = family_open(models[m], &QN_INIT(qn_engine_opts, .device = "cpu"));
        qn_engine *some = open_kept(models[m], USED);
        qn_result want = write_text(cpu), got = write_text(some);
        assert_same_answer(&got, &want, models[m]);
        qn_result_deinit(&got);
        qn_result_deinit(&want);
        qn_engine_close(some);
        qn_engine_close(cpu);
    }
}

// Opens, computes and closes; QN_OK with the right logits, or an error.
static qn_status try_all(const qn_logits *want) {
    qn_err err;
    char path[256];
    qn_engine *engine = NULL;
    qn_logits got = QN_INIT(qn_logits);
    int32_t ids[N_IDS];
    family_path(path, sizeof path, models[0]);
    qn_status status = qn_engine_open(
        &engine, path, &QN_INIT(qn_engine_opts, .device = "cuda", .expert_budget = USED), &err);
    if (!status) {
        random_ids(ids, N_IDS, engine_info(engine).n_vocab, 3);
        const qn_logits_opts opts = QN_INIT(qn_logits_opts, .all_rows = true, .chunk = 16);
        status = qn_engine_logits(&got, engine, ids, N_IDS, &opts, &err);
    }
    if (!status) assert_same_logits(&got, want);
    if (status) assert_non_null(strstr(err.message, "cuda"));
    qn_logits_deinit(&got);
    qn_engine_close(engine);
    assert_int_equal(card.bytes(), 0);
    return status;
}

static void every_failure_is_an_error_or_the_right_result(void **state) {
    (void)state;
    qn_engine *cpu = family_open(models[0], &QN_INIT(qn_engine_opts, .device = "cpu"));
    qn_logits want = QN_INIT(qn_logits);
    get_logits(&want, cpu, 0);
    qn_engine_close(cpu);
    card.set(0, 0);
    assert_int_equal(try_all(&want), QN_OK);
    const long all = card.calls();
    size_t n_failed = 0;
    for (long at = 1; at <= all; at += 1 + at / 40) {
        card.set(at, 0);
        n_failed += try_all(&want) != QN_OK;
    }
    assert_true(n_failed > 20);
    card.set(0, 0);
    card.refuse(0);
    assert_int_equal(try_all(&want), QN_OK);
    const long allocs = card.allocs();
    for (long at = 1; at <= allocs; at++) {
        card.refuse(at);
        assert_true(try_all(&want) != QN_OK);
    }
    card.refuse(0);
    assert_int_equal(try_all(&want), QN_OK);
    qn_logits_deinit(&want);
}

// Before any of it is taken: the system would end the process.
static void experts_that_this_machine_has_no_memory_for_are_refused(void **state) {
    (void)state;
    qn_err err;
    char path[256];
    qn_engine *engine = NULL;
    family_path(path, sizeof path, models[0]);
    const qn_engine_opts opts = QN_INIT(qn_engine_opts, .device = "cuda", .expert_budget = USED);
    card.set(0, 0);
    told_memory = 1 << 10;
    ASSERT_FAILS(qn_engine_open(&engine, path, &opts, &err), QN_MEMORY,
                 "all experts wait in this machine's memory: they need ");
    told_memory = INT64_C(1) << 40;
    ASSERT_OK(qn_engine_open(&engine, path, &opts, &err));
    told_memory = 0;
    qn_engine_close(engine);
    assert_int_equal(card.bytes(), 0);
}

int main(void) {
    card = use_fake();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_all_experts),
        cmocka_unit_test(texts_are_those_of_all_experts),
        cmocka_unit_test(every_failure_is_an_error_or_the_right_result),
        cmocka_unit_test(experts_that_this_machine_has_no_memory_for_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
