// Models from memory and from readers, configurations as text and JSON, numbers of tensors, and the
// options that profiles have.
#include "generate_rig.h"

#include "core/file.h"
#include "core/json.h"
#include "core/mem.h"

#include <dirent.h>

enum { CONTEXT = 128, MAX_FILES = 24 };

// The files of a folder, in memory.
typedef struct loaded {
    qn_model_file files[MAX_FILES];
    size_t n;
} loaded;

static void add_file(loaded *l, const char *folder, const char *name) {
    qn_err err;
    char *path = qn_path_join(folder, name), *data;
    size_t size;
    ASSERT_OK(qn_file_load(&data, &size, path, 1 << 28, &err));
    assert_true(l->n < MAX_FILES);
    l->files[l->n++] = (qn_model_file){.name = strdup(name), .data = data, .size = (int64_t)size};
    qn_free(path);
}

static loaded load_folder(const char *folder) {
    loaded l = {0};
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        static const char *const endings[] = {".json", ".jinja", ".model", ".safetensors"};
        const char *dot = strrchr(e->d_name, '.');
        const bool is_golden = strncmp(e->d_name, "golden", 6) == 0;
        for (size_t i = 0; i < 4 && dot && !is_golden; i++) {
            if (strcmp(dot, endings[i]) == 0) add_file(&l, folder, e->d_name);
        }
    }
    closedir(dir);
    return l;
}

static void drop_loaded(loaded *l) {
    for (size_t i = 0; i < l->n; i++) {
        qn_free((void *)(uintptr_t)l->files[i].data);
        qn_free((void *)(uintptr_t)l->files[i].name);
    }
}

// The first tokens that a model generates.
static void generate(int32_t to[10], const qn_engine *engine) {
    qn_err err;
    int32_t ids[20];
    random_ids(ids, 20, engine_info(engine).n_vocab, 3);
    qn_session *session = open_session(engine, CONTEXT);
    ASSERT_OK(qn_session_set_prompt(session, ids, 20, &err));
    for (int i = 0; i < 10; i++) ASSERT_OK(qn_session_step(&to[i], session, NULL, &err));
    qn_session_destroy(session);
}

// A reader of memory that gives a few bytes at a time, and may fail.
typedef struct memory {
    const char *data;
    int64_t size, fail_at, wrong; // -1: nowhere; what it returns there
    _Atomic int64_t n_calls;
} memory;

static int64_t read_memory(void *arg, void *to, size_t n, int64_t at) {
    memory *m = arg;
    m->n_calls++;
    if (m->fail_at >= 0 && at + (int64_t)n > m->fail_at) return m->wrong;
    assert_true(at >= 0 && n <= (size_t)(m->size - at));
    if (n > 1000) n -= 999;
    memcpy(to, m->data + at, n);
    return (int64_t)n;
}

// By path, from memory and from readers: the same model, tokenizer and template.
static void models_are_the_same_from_anywhere(void **state) {
    (void)state;
    static const char *const some[] = {"llama32", "qwen35", "gemma3",
                                       TEST_DATA "/k256/qwen3/qwen3-Q4_K_M.gguf",
                                       MODELS "/quern-mini-Q8_0.gguf"};
    for (size_t f = 0; f < sizeof some / sizeof *some; f++) {
        qn_err err;
        char path[256];
        int32_t want[10], got[10];
        family_path(path, sizeof path, some[f]);
        qn_engine *engine = family_open(some[f], NULL);
        generate(want, engine);
        loaded l = {0};
        if (qn_path_is_folder(path)) {
            l = load_folder(path);
        } else {
            char *folder = qn_path_folder(path);
            add_file(&l, folder, qn_path_name(path));
            qn_free(folder);
        }
        static memory readers[MAX_FILES];
        qn_model_file slow[MAX_FILES];
        for (size_t i = 0; i < l.n; i++) {
            readers[i] = (memory){l.files[i].data, l.files[i].size, -1, 0, 0};
            slow[i] = (qn_model_file){.name = l.files[i].name,
                                      .size = l.files[i].size,
                                      .read = read_memory,
                                      .arg = &readers[i]};
        }
        for (int k = 0; k < 2; k++) {
            qn_engine *other = NULL;
            ASSERT_OK(qn_engine_open_files(&other, k ? slow : l.files, l.n,
                                           &QN_INIT(qn_engine_opts, .cache_dir = "/nowhere"),
                                           &err));
            generate(got, other);
            assert_memory_equal(got, want, sizeof want);
            const qn_tokenizer *a = qn_engine_tokenizer(engine), *b = qn_engine_tokenizer(other);
            assert_int_equal(a != NULL, b != NULL);
            if (a) {
                qn_tokenizer_info x = QN_INIT(qn_tokenizer_info), y = QN_INIT(qn_tokenizer_info);
                ASSERT_OK(qn_tokenizer_get_info(&x, a, &err));
                ASSERT_OK(qn_tokenizer_get_info(&y, b, &err));
                assert_int_equal(x.n_tokens, y.n_tokens);
                assert_int_equal(x.eos, y.eos);
            }
            qn_template *t = NULL, *u = NULL;
            const qn_status one = qn_engine_template(&t, engine, NULL, &err);
            assert_int_equal(one, qn_engine_template(&u, other, NULL, &err));
            qn_template_destroy(t);
            qn_template_destroy(u);
            // What one computed, the other goes on with.
            qn_session *from = open_session(engine, CONTEXT), *to = open_session(other, CONTEXT);
            void *data;
            size_t size;
            ASSERT_OK(qn_session_save_bytes(&data, &size, from, &err));
            ASSERT_OK(qn_session_load_bytes(to, data, size, &err));
            qn_free(data);
            qn_session_destroy(from);
            qn_session_destroy(to);
            qn_engine_close(other);
        }
        assert_true(readers[0].n_calls > 1);
        qn_engine_close(engine);
        drop_loaded(&l);
    }
}

// Reads that fail or lie anywhere: an error that names the file.
static void hostile_readers_are_errors(void **state) {
    (void)state;
    qn_err err;
    loaded l = {0};
    add_file(&l, MODELS, "quern-draft-Q8_0.gguf");
    memory m = {.data = l.files[0].data, .size = l.files[0].size};
    const qn_model_file file = {.name = "x.gguf", .size = m.size, .read = read_memory, .arg = &m};
    static const int64_t answers[] = {0, -1, INT64_MIN, INT64_MAX};
    for (int64_t at = 0; at < m.size; at += at < 4096 ? 511 : m.size / 7) {
        for (size_t i = 0; i < 4; i++) {
            qn_engine *engine = NULL;
            m.fail_at = at;
            m.wrong = answers[i];
            ASSERT_FAILS(qn_engine_open_files(&engine, &file, 1, NULL, &err), QN_IO, "x.gguf");
            assert_null(engine);
        }
    }
    // Sizes that are not those of the file, and what is no model.
    for (int64_t size = 0; size < m.size; size += m.size / 9 + 1) {
        qn_source *source = NULL;
        qn_model_file cut = {.name = "x.gguf", .data = m.data, .size = size};
        const qn_status status = qn_source_open_files(&source, &cut, 1, &err);
        if (status == QN_OK || source) fail_msg("%lld bytes of it were opened", (long long)size);
    }
    drop_loaded(&l);
}

static void lists_of_files_are_checked(void **state) {
    (void)state;
    qn_err err;
    qn_source *source = NULL;
    const qn_model_file ok = {.name = "a", .data = "GGUF", .size = 4};
    const struct {
        qn_model_file file;
        const char *part;
    } wrong[] = {{{.name = NULL, .data = "x", .size = 1}, "NULL"},
                 {{.name = "", .data = "x", .size = 1}, "plain name"},
                 {{.name = "a/b", .data = "x", .size = 1}, "a/b"},
                 {{.name = "..", .data = "x", .size = 1}, ".."},
                 {{.name = "a", .data = "x", .size = 1}, "two files"},
                 {{.name = "b", .data = "x", .size = -1}, "-1 bytes"},
                 {{.name = "b", .size = 7}, "7 bytes"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const qn_model_file files[] = {ok, wrong[i].file};
        ASSERT_FAILS(qn_source_open_files(&source, files, 2, &err), QN_ARGUMENT, wrong[i].part);
    }
    ASSERT_FAILS(qn_source_open_files(&source, NULL, 0, &err), QN_ARGUMENT, "no files");
    ASSERT_FAILS(qn_source_open_files(&source, NULL, 2, &err), QN_ARGUMENT, "NULL");
    ASSERT_FAILS(qn_source_open_files(NULL, &ok, 1, &err), QN_ARGUMENT, "NULL");
    qn_engine *engine = NULL;
    ASSERT_FAILS(qn_engine_open_files(&engine, NULL, 1, NULL, &err), QN_ARGUMENT, "NULL");
    ASSERT_FAILS(qn_engine_open_files(&engine, NULL, 0, NULL, &err), QN_ARGUMENT, "no files");
    const qn_model_file empty = {.name = "empty"};
    ASSERT_FAILS(qn_source_open_files(&source, &empty, 1, &err), QN_FORMAT, "empty");
}

// --- configurations ------------------------------------------------------------------------------

static void load_text(char **out, const char *folder, const char *name) {
    qn_err err;
    char *path = qn_path_join(folder, name);
    size_t size;
    ASSERT_OK(qn_file_load(out, &size, path, 1 << 20, &err));
    qn_free(path);
}

// Changes the first digit of a number that is not 0.
static void change_number(char *json, const char *name) {
    char *digit = strstr(json, name);
    assert_non_null(digit);
    digit += strcspn(digit, "123456789");
    *digit = *digit == '9' ? '8' : (char)(*digit + 1);
}

static void a_config_can_be_given(void **state) {
    (void)state;
    qn_err err;
    char path[256];
    int32_t want[10], got[10];
    family_path(path, sizeof path, "llama32");
    char *config = NULL;
    load_text(&config, path, "config.json");
    qn_engine *engine = family_open("llama32", NULL), *other = NULL;
    generate(want, engine);
    loaded l = load_folder(path);
    for (size_t i = 0; i < l.n; i++) { // without the file
        if (strcmp(l.files[i].name, "config.json") != 0) continue;
        const qn_model_file last = l.files[--l.n];
        const qn_model_file gone = l.files[i];
        l.files[i] = last;
        qn_free((void *)(uintptr_t)gone.name);
        qn_free((void *)(uintptr_t)gone.data);
    }
    for (size_t i = 0; i < l.n; i++) { // whatever comes first
        if (strcmp(l.files[i].name, "tokenizer.json") != 0) continue;
        const qn_model_file first = l.files[0];
        l.files[0] = l.files[i];
        l.files[i] = first;
    }
    assert_int_not_equal(qn_engine_open_files(&other, l.files, l.n, NULL, &err), QN_OK);
    ASSERT_OK(qn_engine_open_files(&other, l.files, l.n, &QN_INIT(qn_engine_opts, .config = config),
                                   &err));
    generate(got, other);
    assert_memory_equal(got, want, sizeof want);
    qn_engine_close(other);
    ASSERT_OK(qn_engine_open(&other, path, &QN_INIT(qn_engine_opts, .config = config), &err));
    generate(got, other);
    assert_memory_equal(got, want, sizeof want);
    qn_engine_close(other);
    // Another theta is another model.
    change_number(config, "rope_theta");
    ASSERT_OK(qn_engine_open(&other, path, &QN_INIT(qn_engine_opts, .config = config), &err));
    qn_logits x = QN_INIT(qn_logits), y = QN_INIT(qn_logits);
    ASSERT_OK(qn_engine_logits(&x, engine, want, 10, NULL, &err));
    ASSERT_OK(qn_engine_logits(&y, other, want, 10, NULL, &err));
    assert_memory_not_equal(x.logits, y.logits, (size_t)x.n_vocab * sizeof *x.logits);
    qn_logits_deinit(&x);
    qn_logits_deinit(&y);
    qn_engine_close(other);
    other = NULL;
    static const char *const broken[] = {"", "{", "[]", "{\"hidden_size\": \"x\"}"};
    for (size_t i = 0; i < 4; i++)
        assert_int_not_equal(
            qn_engine_open(&other, path, &QN_INIT(qn_engine_opts, .config = broken[i]), &err),
            QN_OK);
    ASSERT_FAILS(qn_engine_open(&other, MODELS "/quern-draft-Q8_0.gguf",
                                &QN_INIT(qn_engine_opts, .config = "{}"), &err),
                 QN_ARGUMENT, "GGUF");
    qn_engine_close(engine);
    qn_free(config);
    drop_loaded(&l);
}

static void keys_of_a_source_are_json(void **state) {
    (void)state;
    static const char *const paths[] = {TEST_DATA "/mini/qwen35", MODELS "/quern-draft-Q8_0.gguf"};
    for (size_t f = 0; f < 2; f++) {
        qn_err err;
        qn_source *source = NULL;
        ASSERT_OK(qn_source_open(&source, paths[f], &err));
        size_t n_long = 0;
        for (size_t max = 0; max < 2; max++) {
            char *text = NULL;
            json_t *json = NULL;
            ASSERT_OK(qn_source_config(&text, source, max, &err));
            ASSERT_OK(qn_json_parse(&json, text, strlen(text), false, "keys", &err));
            if (max == 0) {
                assert_int_equal(json_object_size(json), qn_source_n_keys(source));
                n_long = strlen(text);
            } else {
                assert_true(strlen(text) <= n_long);
            }
            json_decref(json);
            qn_free(text);
        }
        qn_source_close(source);
    }
}

static void tensors_are_read_as_floats(void **state) {
    (void)state;
    qn_err err;
    qn_source *source = NULL;
    ASSERT_OK(qn_source_open(&source, MODELS "/quern-draft-Q8_0.gguf", &err));
    for (size_t i = 0; i < qn_source_n_tensors(source); i += 3) {
        qn_tensor_info info = QN_INIT(qn_tensor_info);
        ASSERT_OK(qn_source_tensor_info(&info, source, i, &err));
        int64_t rows = 1;
        for (int d = 0; d + 1 < info.n_dims; d++) rows *= info.dims[d];
        const int64_t width = info.dims[info.n_dims - 1];
        float *all = qn_alloc((size_t)rows, (size_t)width * sizeof *all);
        float *some = qn_alloc(2, (size_t)width * sizeof *some);
        ASSERT_OK(qn_source_read_rows(all, source, i, 0, rows, &err));
        double sum = 0;
        for (int64_t k = 0; k < rows * width; k++) sum += (double)all[k] * (double)all[k];
        assert_true(sum > 0 && sum < 1e12);
        const int64_t n = rows < 2 ? rows : 2;
        ASSERT_OK(qn_source_read_rows(some, source, i, rows - n, n, &err));
        assert_memory_equal(some, all + (rows - n) * width, (size_t)(n * width) * sizeof *all);
        ASSERT_OK(qn_source_read_rows(NULL, source, i, rows, 0, &err));
        ASSERT_FAILS(qn_source_read_rows(all, source, i, rows, 1, &err), QN_ARGUMENT, info.name);
        ASSERT_FAILS(qn_source_read_rows(all, source, i, -1, 1, &err), QN_ARGUMENT, "-1");
        ASSERT_FAILS(qn_source_read_rows(all, source, i, 0, -1, &err), QN_ARGUMENT, "-1");
        ASSERT_FAILS(qn_source_read_rows(all, source, i, 1, INT64_MAX, &err), QN_ARGUMENT, "");
        ASSERT_FAILS(qn_source_read_rows(NULL, source, i, 0, 1, &err), QN_ARGUMENT, "NULL");
        qn_free(all);
        qn_free(some);
    }
    float x;
    ASSERT_FAILS(qn_source_read_rows(&x, source, 1 << 20, 0, 1, &err), QN_ARGUMENT, "1048576");
    qn_source_close(source);
}

static json_t *engine_json(const qn_engine *engine) {
    qn_err err;
    char *text = NULL;
    json_t *json = NULL;
    ASSERT_OK(qn_engine_config(&text, engine, &err));
    ASSERT_OK(qn_json_parse(&json, text, strlen(text), false, "config", &err));
    qn_free(text);
    return json;
}

static const json_t *look(const json_t *json, const char *a, const char *b, const char *c) {
    json = json_object_get(json, a);
    if (b) json = json_object_get(json, b);
    return c ? json_object_get(json, c) : json;
}

static void an_engine_tells_its_whole_configuration(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_engine *engine = family_open(families[f], &QN_INIT(qn_engine_opts, .device = "cpu,ref"));
        const qn_engine_info info = engine_info(engine);
        json_t *json = engine_json(engine);
        assert_string_equal(json_string_value(look(json, "model", "architecture", NULL)),
                            info.architecture);
        assert_int_equal(json_integer_value(look(json, "model", "config", "embedding_length")),
                         info.width);
        assert_int_equal(json_integer_value(look(json, "model", "config", "block_count")),
                         info.n_layers);
        assert_int_equal(json_array_size(look(json, "devices", NULL, NULL)), 2);
        assert_string_equal(json_string_value(look(json, "cache", NULL, NULL)), info.cache_type);
        assert_string_equal(json_string_value(look(json, "numerics", NULL, NULL)), "exact");
        assert_true(json_integer_value(look(json, "memory", "total", NULL)) > 0);
        json_decref(json);
        qn_engine_close(engine);
    }
}

// --- what profiles say ---------------------------------------------------------------------------

static void check_phase(const qn_engine *engine, const char *phase, const char *plans,
                        int64_t capacity) {
    json_t *json = engine_json(engine);
    const json_t *said = look(json, "plans", phase, NULL);
    assert_string_equal(json_string_value(json_object_get(said, "plans")), plans);
    if (capacity)
        assert_int_equal(json_integer_value(json_object_get(said, "plan_capacity")), capacity);
    json_decref(json);
}

static void options_say_what_profiles_say(void **state) {
    (void)state;
    qn_err err;
    int32_t want[10], got[10];
    qn_engine *engine = family_open("qwen3", NULL);
    generate(want, engine);
    qn_engine_close(engine);
    static const char text[] = "[prefill]\nplans = \"exact\"\nplan_capacity = 3\nchunk = "
                               "5\n[decode]\nplans = \"dynamic\"\n";
    const struct {
        qn_engine_opts opts;
        const char *prefill, *decode;
        int64_t prefill_n, decode_n;
    } rows[] = {
        {QN_INIT(qn_engine_opts, .profile_text = text), "exact", "dynamic", 3, 0},
        {QN_INIT(qn_engine_opts, .profile_text = ""), "bucketed", "bucketed", 24, 24},
        {QN_INIT(qn_engine_opts, .profile_text = text, .plans = QN_PLANS_BUCKETED), "bucketed",
         "bucketed", 3, 24},
        {QN_INIT(qn_engine_opts, .plans = QN_PLANS_EXACT, .decode_plans = QN_PLANS_DYNAMIC,
                 .prefill_capacity = 2),
         "exact", "dynamic", 2, 0},
        {QN_INIT(qn_engine_opts, .prefill_plans = QN_PLANS_DYNAMIC, .decode_plans = QN_PLANS_EXACT,
                 .decode_capacity = 4096),
         "dynamic", "exact", 0, 4096},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        engine = family_open("qwen3", &rows[i].opts);
        check_phase(engine, "prefill", rows[i].prefill, rows[i].prefill_n);
        check_phase(engine, "decode", rows[i].decode, rows[i].decode_n);
        generate(got, engine);
        assert_memory_equal(got, want, sizeof want);
        qn_engine_close(engine);
    }
    const struct {
        qn_engine_opts opts;
        qn_status status;
        const char *part;
    } wrong[] = {
        {QN_INIT(qn_engine_opts, .decode_plans = (qn_plan_policy)9), QN_ARGUMENT, "plans 9"},
        {QN_INIT(qn_engine_opts, .prefill_plans = (qn_plan_policy)-1), QN_ARGUMENT, "plans -1"},
        {QN_INIT(qn_engine_opts, .prefill_capacity = -1), QN_ARGUMENT, "prefill_capacity: -1"},
        {QN_INIT(qn_engine_opts, .decode_capacity = 4097), QN_ARGUMENT, "4097"},
        {QN_INIT(qn_engine_opts, .plans = QN_PLANS_DYNAMIC, .decode_capacity = 2), QN_ARGUMENT,
         "dynamic"},
        {QN_INIT(qn_engine_opts, .profile = "x", .profile_text = ""), QN_ARGUMENT, "one of both"},
        {QN_INIT(qn_engine_opts, .profile = "/nowhere/x.quern.toml"), QN_IO, "nowhere"},
        {QN_INIT(qn_engine_opts, .profile = "/nowhere/x.toml"), QN_ARGUMENT, "x.toml"},
        {QN_INIT(qn_engine_opts, .profile_text = "nonsense = 1"), QN_FORMAT, "nonsense"},
        {QN_INIT(qn_engine_opts, .profile_text = "= ="), QN_FORMAT, "profile"},
    };
    char path[256];
    family_path(path, sizeof path, "qwen3");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        ASSERT_FAILS(qn_engine_open(&engine, path, &wrong[i].opts, &err), wrong[i].status,
                     wrong[i].part);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_are_the_same_from_anywhere),
        cmocka_unit_test(hostile_readers_are_errors),
        cmocka_unit_test(lists_of_files_are_checked),
        cmocka_unit_test(a_config_can_be_given),
        cmocka_unit_test(keys_of_a_source_are_json),
        cmocka_unit_test(tensors_are_read_as_floats),
        cmocka_unit_test(an_engine_tells_its_whole_configuration),
        cmocka_unit_test(options_say_what_profiles_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
