// The loop: what an answer holds, where it ends, and what a caller hears of it.
#include "families.h"

#include "core/mem.h"

enum { CONTEXT = 256 };

typedef struct talk {
    qn_engine *engine;
    qn_session *session;
    int64_t vocab;
} talk;

static talk open_talk(const char *family, int64_t context) {
    qn_err err;
    talk t = {.engine = family_open(family, NULL)};
    t.vocab = qn_engine_get_info(t.engine).n_vocab;
    ASSERT_OK(
        qn_session_create(&t.session, t.engine, &(qn_session_opts){.context = context}, &err));
    return t;
}

static void close_talk(talk *t) {
    qn_session_destroy(t->session);
    qn_engine_close(t->engine);
}

// The plain loop is what steps of the session give.
static void generated_is_stepped(void **state) {
    (void)state;
    static const qn_sample_opts samples[] = {{0}, {.temperature = 0.8f, .seed = 5}};
    for (size_t f = 0; f < N_FAMILIES; f++) {
        talk t = open_talk(families[f], CONTEXT);
        int32_t ids[40];
        random_ids(ids, 40, t.vocab, 1);
        for (int i = 0; i < 2; i++) {
            qn_err err;
            qn_result result;
            int32_t want[24];
            ASSERT_OK(qn_session_set_prompt(t.session, ids, 40, &err));
            for (int k = 0; k < 24; k++)
                ASSERT_OK(qn_session_step(&want[k], t.session, &samples[i], &err));
            for (int naive = 0; naive < 2; naive++) {
                ASSERT_OK(qn_session_set_prompt(t.session, ids, 40, &err));
                const qn_generate_opts opts = {
                    .sample = samples[i], .max_tokens = 24, .ignore_end = true, .naive = naive};
                ASSERT_OK(qn_generate(&result, t.session, &opts, NULL, NULL, &err));
                assert_int_equal(result.n_tokens, 24);
                assert_int_equal(result.reason, QN_REASON_LENGTH);
                assert_memory_equal(result.tokens, want, sizeof want);
                qn_result_deinit(&result);
            }
        }
        close_talk(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generated_is_stepped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
