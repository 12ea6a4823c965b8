// Choosing a token allocates nothing, and settings that cannot be prepared for want of memory leave
// the old ones. The linker sends all allocations of the library through this file (--wrap,
// tests/CMakeLists.txt).
#include "alloc_rig.h"
#include "testing.h"

#include "gen/chooser.h"
#include "gen/stop.h"

enum { N = 9000, N_TOKENS = 300 };

static const char *const bans[] = {"the", "and"};
static const qn_bias biases[] = {{5, -1}, {6, -2}};
static const qn_sample_opts settings[] = {
    {.temperature = 0},
    {.temperature = 0.8f, .top_k = 40, .top_p = 0.9f, .min_p = 0.05f},
    {.temperature = 0.8f, .typical_p = 0.9f, .top_n_sigma = 2, .xtc_probability = 0.5f},
    {.temperature = 1, .dynatemp_range = 0.5f, .repeat_penalty = 1.1f, .frequency_penalty = 1},
    {.temperature = 1, .dry_multiplier = 1, .bans = bans, .n_bans = 2},
    {.temperature = 1, .mirostat = 2, .biases = biases, .n_biases = 2},
};
enum { N_SETTINGS = sizeof settings / sizeof *settings };

static qn_tokenizer *open_tokenizer(void) {
    qn_err err;
    qn_tokenizer *tokenizer;
    ASSERT_OK(qn_tokenizer_open(&tokenizer, MODELS "/quern-mini-Q8_0.gguf", &err));
    return tokenizer;
}

static void make_data(float row[N], int32_t tokens[N_TOKENS]) {
    for (int i = 0; i < N; i++) row[i] = (float)(i * 7919 % 1000) * 0.01f;
    for (int i = 0; i < N_TOKENS; i++) tokens[i] = i * 31 % 200;
}

static void choosing_allocates_nothing(void **state) {
    (void)state;
    static float row[N];
    static uint32_t allowed[(N + 31) / 32];
    int32_t tokens[N_TOKENS];
    qn_err err;
    qn_tokenizer *tokenizer = open_tokenizer();
    qn_chooser *chooser;
    make_data(row, tokens);
    memset(allowed, 0x5A, sizeof allowed);
    ASSERT_OK(qn_chooser_create(&chooser, tokenizer, N, &err));
    for (size_t s = 0; s < N_SETTINGS; s++) {
        ASSERT_OK(qn_chooser_set(chooser, &settings[s], &err));
        const long before = n_requests;
        assert_true(before > 0); // the counter counts
        for (uint64_t i = 0; i < 40; i++) {
            const qn_chooser_in in = {.logits = row,
                                      .tokens = tokens,
                                      .n_tokens = N_TOKENS,
                                      .n_prompt = 50,
                                      .position = i,
                                      .allowed = i % 2 ? allowed : NULL};
            int32_t token = -1;
            ASSERT_OK(qn_chooser_set(chooser, &settings[s], &err)); // as it is
            ASSERT_OK(qn_chooser_choose(&token, chooser, &in, &err));
        }
        assert_int_equal(n_requests, before);
    }
    qn_chooser_destroy(chooser);
    qn_tokenizer_close(tokenizer);
}

static void want_of_memory_is_an_error(void **state) {
    (void)state;
    static float row[N];
    int32_t tokens[N_TOKENS];
    qn_err err;
    qn_tokenizer *tokenizer = open_tokenizer();
    make_data(row, tokens);
    int n_failed = 0;
    bool is_done = false;
    for (long at = 0; !is_done; at++) {
        qn_chooser *chooser = NULL;
        qn_stops *stops = NULL;
        countdown = at;
        qn_status status = qn_chooser_create(&chooser, tokenizer, N, &err);
        for (size_t s = 0; s < N_SETTINGS && !status; s++)
            status = qn_chooser_set(chooser, &settings[s], &err);
        if (!status) status = qn_stops_create(&stops, bans, 2, &err);
        is_done = !status && countdown >= 0;
        countdown = -1;
        if (status) {
            assert_int_equal(status, QN_MEMORY);
            n_failed++;
        }
        if (chooser) { // still fit for use
            const qn_chooser_in in = {.logits = row, .tokens = tokens, .n_tokens = N_TOKENS};
            int32_t token = -1;
            ASSERT_OK(qn_chooser_choose(&token, chooser, &in, &err));
        }
        qn_chooser_destroy(chooser);
        qn_stops_destroy(stops);
    }
    assert_true(n_failed > 20);
    qn_tokenizer_close(tokenizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choosing_allocates_nothing),
        cmocka_unit_test(want_of_memory_is_an_error),
    };
    return cmocka_run_group_tests_name("gen_alloc", tests, NULL, NULL);
}
