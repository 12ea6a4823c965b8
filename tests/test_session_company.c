// Many sequences in one batch: the tokens of each, and their log-probabilities to the last bit, are
// those that it gets alone. TEST_DEVICE names a device (default: cpu), TEST_NUMERICS what it
// computes with; arguments are files of other models.
#include "generate_rig.h"

#include <stdlib.h>

enum { SEQUENCES = 100, TOKENS = 6, PROMPT_MAX = 340, CONTEXT = 400 };
static const char *device = "cpu";
static qn_numerics numerics = QN_NUMERICS_EXACT;
static char **files;
static int n_files;

// What a sequence gave.
typedef struct answers {
    int32_t tokens[TOKENS];
    float logprobs[TOKENS];
    size_t n;
} answers;

static bool listen(void *arg, const qn_event *e) {
    answers *a = arg;
    if (e->token < 0) return true;
    assert_true(a->n < TOKENS);
    a->tokens[a->n] = e->token;
    a->logprobs[a->n++] = e->logprob;
    return true;
}

// Prompts of different lengths, so that chunks and pages of the sequences end at different places.
static size_t prompt_size(size_t i) { return 1 + i * 37 % PROMPT_MAX; }

static void compare(const char *path) {
    static answers alone[SEQUENCES], among[SEQUENCES];
    int32_t ids[SEQUENCES + PROMPT_MAX];
    qn_err err;
    qn_engine *engine = NULL;
    const qn_engine_opts opts =
        QN_INIT(qn_engine_opts, .device = device, .numerics = numerics, .cache_type = QN_CACHE_F16);
    ASSERT_OK(qn_engine_open(&engine, path, &opts, &err));
    random_ids(ids, SEQUENCES + PROMPT_MAX, engine_info(engine).n_vocab, 7);
    const qn_generate_opts generate =
        QN_INIT(qn_generate_opts, .max_tokens = TOKENS, .ignore_end = true, .logprobs = true);
    memset(alone, 0, sizeof alone);
    memset(among, 0, sizeof among);
    qn_session *session = open_session(engine, CONTEXT);
    for (size_t i = 0; i < SEQUENCES; i++) {
        qn_result r = answer(session, ids + i, prompt_size(i), &generate, listen, &alone[i]);
        qn_result_deinit(&r);
    }
    qn_session_destroy(session);
    qn_batch *batch = NULL;
    const qn_batch_opts batch_opts =
        QN_INIT(qn_batch_opts, .context = CONTEXT, .rows = SEQUENCES, .kept = -1);
    ASSERT_OK(qn_batch_create(&batch, engine, &batch_opts, &err));
    for (size_t i = 0; i < SEQUENCES; i++) {
        const qn_row_opts row = QN_INIT(qn_row_opts, .generate = &generate);
        ASSERT_OK(
            qn_batch_add(NULL, batch, ids + i, prompt_size(i), &row, listen, &among[i], &err));
    }
    for (size_t left = 1; left;) ASSERT_OK(qn_batch_step(&left, batch, &err));
    qn_batch_destroy(batch);
    qn_engine_close(engine);
    for (size_t i = 0; i < SEQUENCES; i++) {
        assert_int_equal(alone[i].n, TOKENS);
        if (memcmp(&alone[i], &among[i], sizeof alone[i]) != 0)
            fail_msg("%s on %s: sequence %zu differs among %d", path, device, i, SEQUENCES);
    }
}

static void sequences_keep_their_answers(void **state) {
    (void)state;
    static const char *const models[] = {"qwen3", "qwen35", "qwen3_moe",
                                         TEST_DATA "/k256/qwen3/qwen3-Q4_K_M.gguf"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        char path[256];
        compare(family_path(path, sizeof path, models[m]));
    }
}

static void sequences_of_given_models(void **state) {
    (void)state;
    for (int i = 0; i < n_files; i++) compare(files[i]);
}

int main(int argc, char **argv) {
    const char *asked = getenv("TEST_DEVICE"), *mode = getenv("TEST_NUMERICS");
    if (asked && *asked) device = asked;
    if (mode && strcmp(mode, "tensor") == 0) numerics = QN_NUMERICS_TENSOR;
    files = argv + 1;
    n_files = argc - 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_keep_their_answers),
        cmocka_unit_test(sequences_of_given_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
