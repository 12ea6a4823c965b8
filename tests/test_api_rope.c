// Longer contexts: linear and YaRN scaling of rotary positions, from the files of a model and by
// options, against logits of the reference (tests/data/rope).
#include "generate_rig.h"
#include "golden.h"

#include "core/file.h"
#include "core/mem.h"

#include <math.h>
#include <unistd.h>

enum { IDS = 40, LAST_ROWS = 2, VOCAB = 512 };

// As in tests/data/rope/README.md.
static const struct rope_case {
    const char *name, *folder, *keys;
} cases[] = {
    {"yarn_qwen3", "qwen3",
     "\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 16"},
    {"yarn_qwen3_betas", "qwen3",
     "\"rope_type\": \"yarn\", \"factor\": 8.0, \"original_max_position_embeddings\": 32, "
     "\"beta_fast\": 4.0, \"beta_slow\": 0.5, \"attention_factor\": 1.25, \"mscale\": null"},
    {"yarn_qwen3_mscale", "qwen3",
     "\"rope_type\": \"yarn\", \"factor\": 16.0, \"original_max_position_embeddings\": 64, "
     "\"mscale\": 1.0, \"mscale_all_dim\": 0.5, \"truncate\": false, \"attention_factor\": null"},
    {"yarn_qwen35", "qwen35",
     "\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 16"},
    {"linear_llama_untied", "llama_untied", "\"rope_type\": \"linear\", \"factor\": 4.0"},
    {"yarn_llama_untied", "llama_untied",
     "\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 16"},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static void fill_ids(int32_t ids[IDS]) {
    for (int32_t i = 0; i < IDS; i++) ids[i] = (i * 37 + i * i) % 199 + 1;
}

// The config.json of a model with other keys in place of its "rope_type"; owned.
static char *config_with(const char *folder, const char *keys) {
    static const char usual[] = "\"rope_type\": \"default\"";
    qn_err err;
    char path[256], *text, *out;
    size_t size;
    snprintf(path, sizeof path, "%s/mini/%s/config.json", TEST_DATA, folder);
    ASSERT_OK(qn_file_load(&text, &size, path, 1 << 20, &err));
    const char *at = strstr(text, usual);
    assert_non_null(at);
    out = qn_alloc(size + strlen(keys) + 1, 1);
    assert_non_null(out);
    sprintf(out, "%.*s%s%s", (int)(at - text), text, keys, at + strlen(usual));
    qn_free(text);
    return out;
}

static qn_engine *open_with(const char *folder, const qn_engine_opts *opts) {
    qn_err err;
    char path[256];
    qn_engine *engine;
    snprintf(path, sizeof path, "%s/mini/%s", TEST_DATA, folder);
    ASSERT_OK(qn_engine_open(&engine, path, opts, &err));
    return engine;
}

static qn_logits logits_of(const qn_engine *engine) {
    qn_err err;
    int32_t ids[IDS];
    qn_logits out = QN_INIT(qn_logits);
    fill_ids(ids);
    ASSERT_OK(
        qn_engine_logits(&out, engine, ids, IDS, &QN_INIT(qn_logits_opts, .all_rows = true), &err));
    assert_int_equal(out.n_vocab, VOCAB);
    return out;
}

static const float *last_rows(const qn_logits *all) {
    return all->logits + (IDS - LAST_ROWS) * VOCAB;
}

static void assert_same(const qn_logits *a, const qn_logits *b) {
    assert_memory_equal(a->logits, b->logits, IDS * VOCAB * sizeof *a->logits);
}

static void scaled_positions_are_those_of_the_reference(void **state) {
    (void)state;
    qn_err err;
    qn_source *tensors;
    ASSERT_OK(qn_source_open(&tensors, TEST_DATA "/rope/golden.safetensors", &err));
    for (int i = 0; i < N_CASES; i++) {
        char *config = config_with(cases[i].folder, cases[i].keys);
        float want[LAST_ROWS * VOCAB];
        const qn_tensor *t = qn_source_find_tensor(tensors, cases[i].name);
        assert_non_null(t);
        assert_int_equal(t->bytes, sizeof want);
        ASSERT_OK(qn_source_read(tensors, t, 0, want, sizeof want, &err));
        for (int reference = 0; reference < 2; reference++) {
            qn_engine *engine =
                open_with(cases[i].folder,
                          &QN_INIT(qn_engine_opts, .config = config, .reference = reference == 1));
            qn_logits got = logits_of(engine);
            const double error = relative_error(last_rows(&got), want, LAST_ROWS * VOCAB);
            if (!(error < 1e-5)) fail_msg("%s: error %g", cases[i].name, error);
            qn_logits_deinit(&got);
            qn_engine_close(engine);
        }
        qn_free(config);
    }
    qn_source_close(tensors);
}

// What the scaled model computes without scaling is far from it.
static void scaling_changes_results(void **state) {
    (void)state;
    char *config = config_with("qwen3", cases[0].keys);
    qn_engine *scaled = open_with("qwen3", &QN_INIT(qn_engine_opts, .config = config));
    qn_engine *plain = open_with("qwen3", NULL);
    qn_engine *off =
        open_with("qwen3", &QN_INIT(qn_engine_opts, .config = config, .rope_scaling = "none"));
    qn_logits a = logits_of(scaled), b = logits_of(plain), c = logits_of(off);
    assert_true(relative_error(last_rows(&a), last_rows(&b), LAST_ROWS * VOCAB) > 1e-2);
    assert_same(&b, &c);
    qn_logits_deinit(&a);
    qn_logits_deinit(&b);
    qn_logits_deinit(&c);
    qn_engine_close(scaled);
    qn_engine_close(plain);
    qn_engine_close(off);
    qn_free(config);
}

static int64_t context_of(const qn_engine *engine) {
    qn_err err;
    qn_engine_info info = QN_INIT(qn_engine_info);
    ASSERT_OK(qn_engine_get_info(&info, engine, &err));
    return info.context;
}

static void a_missing_factor_is_that_of_both_contexts(void **state) {
    (void)state;
    char *config = config_with(
        "qwen3",
        "\"rope_type\": \"yarn\", \"factor\": null, \"original_max_position_embeddings\": 1024");
    qn_engine *derived = open_with("qwen3", &QN_INIT(qn_engine_opts, .config = config));
    qn_engine *asked = open_with("qwen3", &QN_INIT(qn_engine_opts, .rope_scaling = "yarn",
                                                   .rope_factor = 4, .rope_original = 1024));
    qn_logits a = logits_of(derived), b = logits_of(asked);
    assert_same(&a, &b);
    assert_int_equal(context_of(derived), 4096);
    assert_int_equal(context_of(asked), 4096);
    qn_logits_deinit(&a);
    qn_logits_deinit(&b);
    qn_engine_close(derived);
    qn_engine_close(asked);
    qn_free(config);
}

static void options_are_as_keys_and_make_the_context_longer(void **state) {
    (void)state;
    char *config = config_with("qwen3", cases[0].keys);
    qn_engine *keys = open_with("qwen3", &QN_INIT(qn_engine_opts, .config = config));
    const qn_engine_opts yarn =
        QN_INIT(qn_engine_opts, .rope_scaling = "yarn", .rope_factor = 4, .rope_original = 16);
    qn_engine *asked = open_with("qwen3", &yarn);
    qn_engine *packed = open_with("qwen3/qwen3-bf16.gguf", &yarn);
    qn_logits a = logits_of(keys), b = logits_of(asked), c = logits_of(packed);
    assert_same(&a, &b);
    assert_same(&a, &c);
    assert_int_equal(context_of(asked), 4096); // 64 are fewer
    qn_logits_deinit(&a);
    qn_logits_deinit(&b);
    qn_logits_deinit(&c);
    qn_engine_close(keys);
    qn_engine_close(asked);
    qn_engine_close(packed);
    qn_free(config);
    static const char *const types[] = {"yarn", "linear"};
    for (size_t i = 0; i < 2; i++) {
        asked = open_with("qwen3/qwen3-bf16.gguf",
                          &QN_INIT(qn_engine_opts, .rope_scaling = types[i], .rope_factor = 2.5));
        assert_int_equal(context_of(asked), 10240);
        qn_engine_close(asked);
    }
}

// A model's folder with another config.json, made of links.
static void make_folder(char *folder, size_t size, const char *config) {
    snprintf(folder, size, "/tmp/quern-rope-XXXXXX");
    assert_non_null(mkdtemp(folder));
    static const char *const names[] = {"model.safetensors", "tokenizer.json",
                                        "tokenizer_config.json"};
    char from[256], to[256];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(from, sizeof from, "%s/mini/qwen3/%s", TEST_DATA, names[i]);
        snprintf(to, sizeof to, "%s/%s", folder, names[i]);
        assert_int_equal(symlink(from, to), 0);
    }
    snprintf(to, sizeof to, "%s/config.json", folder);
    FILE *f = fopen(to, "w");
    assert_non_null(f);
    fputs(config, f);
    assert_int_equal(fclose(f), 0);
}

static void remove_folder(const char *folder) {
    char command[300];
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    assert_int_equal(system(command), 0);
}

static void converted_files_compute_the_same(void **state) {
    (void)state;
    qn_err err;
    char folder[64], out[96];
    for (int i = 0; i < 3; i++) {
        char *config = config_with("qwen3", cases[i].keys);
        make_folder(folder, sizeof folder, config);
        snprintf(out, sizeof out, "%s/out.gguf", folder);
        const qn_status status = qn_convert(folder, out, NULL, &err);
        if (strstr(cases[i].keys, "truncate")) {
            assert_int_equal(status, QN_UNSUPPORTED);
            assert_non_null(strstr(err.message, "truncate"));
        } else {
            assert_int_equal(status, QN_OK);
            qn_engine *from, *to;
            ASSERT_OK(qn_engine_open(&from, folder, NULL, &err));
            ASSERT_OK(qn_engine_open(&to, out, NULL, &err));
            qn_logits a = logits_of(from), b = logits_of(to);
            assert_same(&a, &b);
            qn_logits_deinit(&a);
            qn_logits_deinit(&b);
            qn_engine_close(from);
            qn_engine_close(to);
        }
        remove_folder(folder);
        qn_free(config);
    }
}

static void what_makes_no_sense_is_refused(void **state) {
    (void)state;
    qn_err err;
    qn_engine *engine = NULL;
    const char path[] = TEST_DATA "/mini/qwen3";
    static const struct {
        qn_engine_opts opts;
        const char *part;
    } refused[] = {
        {{.size = sizeof(qn_engine_opts), .rope_scaling = "dynamic", .rope_factor = 2},
         "'dynamic'"},
        {{.size = sizeof(qn_engine_opts), .rope_scaling = "yarn"}, "rope factor 0"},
        {{.size = sizeof(qn_engine_opts), .rope_scaling = "yarn", .rope_factor = 0.5}, "0.5"},
        {{.size = sizeof(qn_engine_opts), .rope_scaling = "yarn", .rope_factor = NAN}, "nan"},
        {{.size = sizeof(qn_engine_opts), .rope_factor = 2}, "rope factor 2"},
        {{.size = sizeof(qn_engine_opts), .rope_scaling = "none", .rope_original = 4}, "context 4"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        ASSERT_FAILS(qn_engine_open(&engine, path, &refused[i].opts, &err), QN_ARGUMENT,
                     refused[i].part);
    static const struct {
        const char *keys, *part;
        qn_status status;
    } broken[] = {
        {"\"rope_type\": \"yarn\", \"factor\": -1", "factor -1", QN_FORMAT},
        {"\"rope_type\": \"yarn\", \"factor\": 2, \"beta_fast\": 1, \"beta_slow\": 2",
         "beta_slow 2, beta_fast 1", QN_FORMAT},
        {"\"rope_type\": \"yarn\", \"factor\": 2, \"attention_factor\": 1e9", "1e+09", QN_FORMAT},
        {"\"rope_type\": \"yarn\", \"factor\": 2, \"truncate\": 3", "truncate", QN_FORMAT},
        {"\"rope_type\": \"yarn\", \"factor\": 2, \"original_max_position_embeddings\": -5",
         "original length -5", QN_FORMAT},
        {"\"rope_type\": \"longrope\", \"factor\": 2", "'longrope'", QN_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        char *config = config_with("qwen3", broken[i].keys);
        ASSERT_FAILS(
            qn_engine_open(&engine, path, &QN_INIT(qn_engine_opts, .config = config), &err),
            broken[i].status, broken[i].part);
        qn_free(config);
    }
}

// Keys and values of turned positions are of no use to a model that turns them otherwise.
static void sessions_of_another_scaling_are_refused(void **state) {
    (void)state;
    qn_err err;
    int32_t ids[IDS];
    void *data;
    size_t size;
    fill_ids(ids);
    qn_engine *engines[2] = {
        open_with("qwen3", NULL),
        open_with("qwen3", &QN_INIT(qn_engine_opts, .rope_scaling = "linear", .rope_factor = 2))};
    qn_session *sessions[2];
    for (int i = 0; i < 2; i++) ASSERT_OK(qn_session_create(&sessions[i], engines[i], NULL, &err));
    ASSERT_OK(qn_session_set_prompt(sessions[0], ids, IDS, &err));
    ASSERT_OK(qn_session_save_bytes(&data, &size, sessions[0], &err));
    ASSERT_FAILS(qn_session_load_bytes(sessions[1], data, size, &err), QN_ARGUMENT, "of the model");
    ASSERT_OK(qn_session_load_bytes(sessions[0], data, size, &err));
    qn_free(data);
    for (int i = 0; i < 2; i++) {
        qn_session_destroy(sessions[i]);
        qn_engine_close(engines[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scaled_positions_are_those_of_the_reference),
        cmocka_unit_test(scaling_changes_results),
        cmocka_unit_test(a_missing_factor_is_that_of_both_contexts),
        cmocka_unit_test(options_are_as_keys_and_make_the_context_longer),
        cmocka_unit_test(converted_files_compute_the_same),
        cmocka_unit_test(what_makes_no_sense_is_refused),
        cmocka_unit_test(sessions_of_another_scaling_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
