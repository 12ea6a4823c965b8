// Profiles: found next to the weights, read by name and kind, refused where they would change
// results.
#include "testing.h"
#include "steps.h"

#include "format_files.h"

#include "passes/passes.h"
#include "runtime/profile.h"

#include <stdlib.h>

typedef struct hearing {
    int n;
    char last[512];
} hearing;

static void hear(void *arg, qn_log_level level, const char *message) {
    (void)level;
    hearing *h = arg;
    h->n++;
    snprintf(h->last, sizeof h->last, "%s", message);
}

static uint64_t bits(const char *list) {
    qn_err err = {0};
    uint64_t skip = 0;
    ASSERT_OK(qn_passes_parse_skip(&skip, list, &err));
    return skip;
}

static const char every_fusion[] =
    "fuse_norm,fuse_residual,fuse_gate,fuse_head,fuse_project,fuse_rope,fuse_write,fuse_attention,"
    "fuse_experts";

static qn_profile find(void **state, const char *arch, hearing *h) {
    qn_err err = {0};
    qn_profile profile = {0};
    ASSERT_OK(qn_profile_find(&profile, *state, arch, hear, h, &err));
    return profile;
}

static void assert_path(const qn_profile *profile, void **state, const char *name) {
    if (!name) assert_null(profile->path);
    if (name) assert_string_equal(profile->path, in_folder(state, name).text);
}

static void without_a_file_nothing_is_said(void **state) {
    hearing h = {0};
    qn_profile profile = find(state, "qwen3", &h);
    const qn_profile empty = {0};
    assert_memory_equal(&profile, &empty, sizeof empty);
    assert_int_equal(h.n, 0);
    qn_profile_deinit(&profile);
}

static void every_key_of_ours_is_read(void **state) {
    hearing h = {0};
    put_text(state, "qwen3.quern.toml",
             "# for this machine\n"
             "compile_seq_cap = 4096\n"
             "[prefill]\n"
             "skip = [\"fuse_norm\", \"cse\"]\n"
             "plans = \"exact\"\n"
             "plan_capacity = 12\n"
             "chunk = 256\n"
             "[decode]\n"
             "skip = [\n  \"schedule\", # as it comes\n]\n"
             "plans = \"bucketed\"\n"
             "plan_capacity = 1\n");
    qn_profile p = find(state, "qwen3", &h);
    assert_path(&p, state, "qwen3.quern.toml");
    assert_true(p.prefill.skip == bits("fuse_norm,cse"));
    assert_true(p.decode.skip == bits("schedule"));
    assert_int_equal(p.prefill.plans, QN_PLANS_EXACT);
    assert_int_equal(p.decode.plans, QN_PLANS_BUCKETED);
    assert_int_equal(p.prefill.plan_capacity, 12);
    assert_int_equal(p.decode.plan_capacity, 1);
    assert_int_equal(p.chunk, 256);
    assert_int_equal(p.compile_seq_cap, 4096);
    assert_int_equal(h.n, 0);
    qn_profile_deinit(&p);
}

static void foreign_keys_are_mapped(void **state) {
    static const struct {
        const char *text, *skip, *ignored;
    } cases[] = {
        {"", "", NULL},
        {"[fusion]\nskip = true\n", every_fusion, NULL},
        {"[fusion]\nskip = false\n", "", NULL},
        {"[passes]\ndce = false\n", "dce,dce_again", NULL},
        {"[passes]\nconstant_folding = false\ndce = true\n", "fold", NULL},
        {"[backend.cpu]\nunfuse_regions = true\n", every_fusion, NULL},
        {"[precision]\ncompute = \"f32\"\nmixed = \"none\"\n", "", NULL},
        {"[fusion]\npolicy = \"direct\"\ntarget = \"auto\"\n[passes]\nverbose = true\n"
         "[backend.metal]\nskip_fusion = true\n",
         "", "fusion.policy, fusion.target, passes.verbose, backend.metal.skip_fusion"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        hearing h = {0};
        put_text(state, "qwen35.rlx.toml", cases[i].text);
        qn_profile p = find(state, "qwen35", &h);
        assert_path(&p, state, "qwen35.rlx.toml");
        assert_true(p.prefill.skip == bits(cases[i].skip));
        assert_true(p.decode.skip == bits(cases[i].skip));
        assert_int_equal(p.prefill.plans, QN_PLANS_AUTO);
        assert_int_equal(h.n, cases[i].ignored ? 1 : 0);
        if (cases[i].ignored) assert_non_null(strstr(h.last, cases[i].ignored));
        qn_profile_deinit(&p);
    }
}

// The own name before the family's, our kind before the other.
static void files_are_found_in_order(void **state) {
    static const struct {
        const char *arch, *put, *want;
    } steps[] = {
        {"gemma3", "qwen3.quern.toml", NULL},
        {"gemma3", "gemma.rlx.toml", "gemma.rlx.toml"},
        {"gemma3", "gemma3.rlx.toml", "gemma3.rlx.toml"},
        {"gemma3", "gemma.quern.toml", "gemma.quern.toml"},
        {"gemma3", "gemma3.quern.toml", "gemma3.quern.toml"},
        {"llama", "llama32.rlx.toml", "llama32.rlx.toml"},
        {"llama", "llama.rlx.toml", "llama.rlx.toml"},
        {"qwen3moe", "unrelated.toml", "qwen3.quern.toml"},
        {"qwen35moe", "qwen35.quern.toml", "qwen35.quern.toml"},
        {"gemma2", "unrelated.toml", "gemma.quern.toml"},
        {"qwen2", "unrelated.toml", NULL},
    };
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        hearing h = {0};
        put_text(state, steps[i].put, "");
        qn_profile p = find(state, steps[i].arch, &h);
        assert_path(&p, state, steps[i].want);
        qn_profile_deinit(&p);
    }
}

static void faults_are_named_with_file_and_line(void **state) {
    static const struct {
        const char *name, *text;
        qn_status status;
        const char *part;
    } faults[] = {
        {"quern", "chunk = 1", QN_FORMAT, "line 1: there is no key 'chunk'"},
        {"quern", "[prefill]\n\nchunks = 1", QN_FORMAT, "line 3: there is no key 'prefill.chunks'"},
        {"quern", "[decode]\nchunk = 1", QN_FORMAT, "there is no key 'decode.chunk'"},
        {"quern", "[prefill]\nchunk = 0", QN_FORMAT, "prefill.chunk: 0, want 1 to 2147483647"},
        {"quern", "[prefill]\nchunk = -5", QN_FORMAT, "prefill.chunk: -5, want 1"},
        {"quern", "[prefill]\nchunk = 1.5", QN_FORMAT, "prefill.chunk is a float, want an integer"},
        {"quern", "[decode]\nplan_capacity = 5000", QN_FORMAT, "5000, want 1 to 4096"},
        {"quern", "[decode]\nplans = \"dynamic\"\nplan_capacity = 5", QN_FORMAT,
         "decode.plan_capacity: 5, but decode.plans is \"dynamic\""},
        {"quern", "[prefill]\nplan_capacity = 7\nplans = \"dynamic\"", QN_FORMAT,
         "prefill.plan_capacity: 7, but prefill.plans is \"dynamic\""},
        {"quern", "[decode]\nplans = \"fast\"", QN_FORMAT, "'fast', want exact, bucketed or"},
        {"quern", "[decode]\nplans = true", QN_FORMAT, "is a boolean, want a string"},
        {"quern", "[decode]\nskip = \"cse\"", QN_FORMAT, "is a string, want an array"},
        {"quern", "[decode]\nskip = [1]", QN_FORMAT, "item 1 is an integer"},
        {"quern", "[decode]\nskip = [\"cse\", \"fuse\"]", QN_ARGUMENT,
         "line 2: decode.skip: no pass 'fuse'; there are shard, fold, "},
        {"quern", "[decode]\nskip = [\"quantize\"]", QN_UNSUPPORTED, "would change results"},
        {"quern", "numerics = \"fast\"", QN_UNSUPPORTED, "line 1: numerics would change results"},
        {"quern", "[prefill]\nprecision = \"f16\"", QN_UNSUPPORTED, "would change results"},
        {"quern", "[decode]\ncache_type = \"q8_0\"", QN_UNSUPPORTED, "would change results"},
        {"quern", "oops", QN_FORMAT, "line 1: expected '='"},
        {"rlx", "[precision]\ncompute = \"f16\"", QN_UNSUPPORTED, "precision.compute would change"},
        {"rlx", "[precision]\nmixed = \"auto\"", QN_UNSUPPORTED, "precision.mixed would change"},
        {"rlx", "[passes]\ndce = 0", QN_FORMAT, "passes.dce is an integer, want a boolean"},
        {"rlx", "[passes", QN_FORMAT, "line 1: expected ']'"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        qn_err err = {0};
        hearing h = {0};
        qn_profile p = {0};
        char name[64];
        snprintf(name, sizeof name, "f%zu.%s.toml", i, faults[i].name);
        const path_name path = put_text(state, name, faults[i].text);
        ASSERT_FAILS(qn_profile_load(&p, path.text, hear, &h, &err), faults[i].status,
                     faults[i].part);
        assert_non_null(strstr(err.message, name));
        assert_null(p.path);
        snprintf(name, sizeof name, "f%zu", i);
        assert_int_equal(qn_profile_find(&p, *state, name, hear, &h, &err), faults[i].status);
    }
    qn_err err = {0};
    qn_profile p = {0};
    const path_name path = put_text(state, "other.toml", "");
    ASSERT_FAILS(qn_profile_load(&p, path.text, NULL, NULL, &err), QN_ARGUMENT, "the name ends");
    ASSERT_FAILS(qn_profile_load(&p, in_folder(state, "x.quern.toml").text, NULL, NULL, &err),
                 QN_IO, "x.quern.toml");
}

// A profile beside the weights sets each phase, can be read back, and changes no logit; options
// win.
static void a_profile_is_applied(void **state) {
    static const char text[] = "[prefill]\nskip = [\"fuse_gate\"]\nplans = \"exact\"\n"
                               "plan_capacity = 3\nchunk = 20\n"
                               "[decode]\nskip = [\"fuse_attention\"]\nplan_capacity = 2\n";
    qn_err err = {0};
    qn_engine *engines[3] = {NULL}; // without a profile, with it, with an option besides
    char *read_back = NULL, command[2048];
    const path_name model = in_folder(state, "qwen3-bf16.gguf");
    snprintf(command, sizeof command, "cp '%s/mini/qwen3/qwen3-bf16.gguf' '%s'", TEST_DATA,
             model.text);
    assert_int_equal(system(command), 0);
    ASSERT_OK(qn_engine_open(&engines[0], model.text, NULL, &err));
    put_text(state, "qwen3.quern.toml", text);
    const qn_engine_opts dynamic = QN_INIT(qn_engine_opts, .plans = QN_PLANS_DYNAMIC);
    ASSERT_OK(qn_engine_open(&engines[1], model.text, NULL, &err));
    ASSERT_OK(qn_engine_open(&engines[2], model.text, &dynamic, &err));
    ASSERT_OK(qn_engine_profile(&read_back, engines[1], &err));
    assert_string_equal(read_back, "[prefill]\nskip = [\"fuse_gate\"]\nplans = \"exact\"\n"
                                   "plan_capacity = 3\nchunk = 20\n\n"
                                   "[decode]\nskip = [\"fuse_attention\"]\nplans = \"bucketed\"\n"
                                   "plan_capacity = 2\n");
    qn_free(read_back);
    ASSERT_OK(qn_engine_profile(&read_back, engines[2], &err));
    assert_non_null(strstr(read_back, "plans = \"dynamic\"\n"));
    assert_null(strstr(read_back, "plan_capacity")); // nothing is kept
    qn_free(read_back);
    float last[2][512];
    for (int e = 0; e < 3; e++) {
        qn_session *session;
        int32_t ids[50];
        size_t n;
        const qn_session_opts opts = QN_INIT(qn_session_opts, .context = 100, .logits = true);
        for (int i = 0; i < 50; i++) ids[i] = i * 7 % 500;
        ASSERT_OK(qn_session_create(&session, engines[e], &opts, &err));
        ASSERT_OK(qn_session_set_prompt(session, ids, 50, &err));
        ASSERT_OK(take_steps(&n, session, 20, NULL, &err));
        memcpy(last[e > 0], qn_session_logits(session), sizeof last[0]);
        if (e > 0) assert_memory_equal(last[0], last[1], sizeof last[0]);
        if (e > 0) assert_int_equal(session_counts(session).steps, 3 + 19); // chunks of 20
        qn_session_destroy(session);
        qn_engine_close(engines[e]);
    }
}

// No step is longer than the cap, whoever asks for it; the profile that an engine tells has it, and
// is one that can be used in its place.
static void no_chunk_exceeds_the_cap(void **state) {
    enum { N = 50, CAP = 8 };
    qn_err err = {0};
    qn_engine *engine = NULL;
    char *text = NULL, command[2048];
    const path_name model = in_folder(state, "qwen3-bf16.gguf");
    snprintf(command, sizeof command, "cp '%s/mini/qwen3/qwen3-bf16.gguf' '%s'", TEST_DATA,
             model.text);
    assert_int_equal(system(command), 0);
    put_text(state, "qwen3.quern.toml", "compile_seq_cap = 8\n[prefill]\nchunk = 20\n");
    int32_t ids[N];
    for (int i = 0; i < N; i++) ids[i] = i * 7 % 500;
    for (int round = 0; round < 2; round++) {
        ASSERT_OK(qn_engine_open(&engine, model.text, NULL, &err));
        qn_memory memory[2] = {QN_INIT(qn_memory), QN_INIT(qn_memory)};
        for (int i = 0; i < 2; i++) {
            qn_session *session = NULL;
            const qn_session_opts opts =
                QN_INIT(qn_session_opts, .context = 100, .chunk = i ? 32 : 0);
            int32_t token;
            ASSERT_OK(qn_session_create(&session, engine, &opts, &err));
            ASSERT_OK(qn_session_set_prompt(session, ids, N, &err));
            ASSERT_OK(qn_session_step(&token, session, NULL, &err));
            assert_int_equal(session_counts(session).steps, (N + CAP - 1) / CAP);
            qn_session_destroy(session);
            ASSERT_OK(qn_engine_memory(&memory[i], engine, 100, opts.chunk, &err));
        }
        assert_int_equal(memory[0].activations, memory[1].activations);
        ASSERT_OK(qn_engine_profile(&text, engine, &err));
        assert_int_equal(strncmp(text, "compile_seq_cap = 8\n\n[prefill]\n", 31), 0);
        assert_non_null(strstr(text, "chunk = 8\n"));
        put_text(state, "qwen3.quern.toml", text);
        qn_free(text);
        qn_engine_close(engine);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(without_a_file_nothing_is_said),
        FOLDER_TEST(every_key_of_ours_is_read),
        FOLDER_TEST(foreign_keys_are_mapped),
        FOLDER_TEST(files_are_found_in_order),
        FOLDER_TEST(faults_are_named_with_file_and_line),
        FOLDER_TEST(a_profile_is_applied),
        FOLDER_TEST(no_chunk_exceeds_the_cap),
    };
    return cmocka_run_group_tests_name("profiles", tests, NULL, NULL);
}
