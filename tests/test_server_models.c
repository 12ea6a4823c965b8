// Several models: names, opening on demand, closing by the memory plan, and streams that go on
// meanwhile. Free memory is what the test says.
#include "serve_rig.h"

#include "core/machine.h"
#include "core/mem.h"

#include <sys/stat.h>

bool __real_qn_machine_free_memory(int64_t *out);
bool __wrap_qn_machine_free_memory(int64_t *out);

static atomic_int_least64_t free_bytes; // 0: the machine's own

bool __wrap_qn_machine_free_memory(int64_t *out) {
    const int64_t said = atomic_load(&free_bytes);
    if (said == 0) return __real_qn_machine_free_memory(out);
    *out = said;
    return true;
}

// --- a folder ------------------------------------------------------------------------------------

static char folder[64];

static void add_link(const char *target, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(symlink(target, path), 0);
}

static void add_file(const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void remove_name(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    (void)unlink(path);
}

static int make_folder(void **state) {
    (void)state;
    strcpy(folder, "/tmp/quern-models-XXXXXX");
    assert_non_null(mkdtemp(folder));
    add_link(MODELS "/quern-mini-Q8_0.gguf", "alpha.gguf");
    add_link(MODELS "/quern-mini-Q8_0.gguf", "beta-00001-of-00001.gguf");
    add_link(TEST_DATA "/mini/llama32", "folder");
    add_link(TEST_DATA "/mini/qwen35_vl", "eyes");
    add_file("broken.gguf", "GGUF and nothing else");
    add_file("mmproj-eyes.gguf", "not a model");
    add_file("beta-00002-of-00002.gguf", "not the first part");
    add_file(".hidden.gguf", "no");
    add_file("notes.txt", "no");
    atomic_store(&free_bytes, 0);
    return 0;
}

static int remove_folder(void **state) {
    static const char *const names[] = {"alpha.gguf",   "beta-00001-of-00001.gguf",
                                        "folder",       "eyes",
                                        "broken.gguf",  "mmproj-eyes.gguf",
                                        ".hidden.gguf", "beta-00002-of-00002.gguf",
                                        "notes.txt",    "late.gguf"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) remove_name(names[i]);
    assert_int_equal(rmdir(folder), 0);
    return 0;
}

static void start(serve_rig *rig, int64_t memory) {
    const qn_server_opts opts = {.folder = folder, .memory = memory};
    serve_start(rig, &opts);
}

// --- asking --------------------------------------------------------------------------------------

static json_t *list_models(const serve_rig *rig) {
    http_answer a = http_get(rig, "/v1/models");
    assert_int_equal(a.status, 200);
    json_t *value = http_json(&a);
    http_deinit(&a);
    return value;
}

// A model of the list; NULL: it is not there. Borrowed.
static json_t *model_of(const json_t *list, const char *name) {
    const json_t *data = json_object_get(list, "data");
    for (size_t i = 0; i < json_array_size(data); i++) {
        json_t *m = json_array_get(data, i);
        if (strcmp(text_at(m, "id"), name) == 0) return m;
    }
    return NULL;
}

static bool is_loaded(const serve_rig *rig, const char *name) {
    json_t *list = list_models(rig);
    const bool is_loaded = json_is_true(json_at(model_of(list, name), "meta.loaded"));
    json_decref(list);
    return is_loaded;
}

static json_t *ask(const serve_rig *rig, const char *model, int status) {
    char body[256];
    snprintf(body, sizeof body,
             "{\"model\": \"%s\", \"max_tokens\": 8, \"messages\": [{\"role\": \"user\", "
             "\"content\": \"What color is a lemon?\"}]}",
             model);
    return post_json(rig, "/v1/chat/completions", body, status);
}

static void ask_well(const serve_rig *rig, const char *model) {
    json_t *a = ask(rig, model, 200);
    assert_string_equal(text_at(a, "choices.0.message.content"), "A lemon is yellow.");
    json_decref(a);
}

// --- names ---------------------------------------------------------------------------------------

static void models_have_the_names_of_their_files(void **state) {
    static const char *const names[] = {"alpha", "beta", "eyes", "folder"};
    serve_rig rig;
    (void)state;
    start(&rig, 0);
    json_t *list = list_models(&rig);
    assert_int_equal(json_array_size(json_object_get(list, "data")), 4);
    for (size_t i = 0; i < 4; i++)
        assert_string_equal(text_at(json_array_get(json_object_get(list, "data"), i), "id"),
                            names[i]);
    assert_int_equal(json_integer_value(json_at(model_of(list, "alpha"), "max_model_len")), 2048);
    assert_int_equal(json_integer_value(json_at(model_of(list, "folder"), "max_model_len")), 4096);
    assert_string_equal(text_at(model_of(list, "alpha"), "meta.quantization"), "Q8_0");
    assert_true(json_is_true(json_at(model_of(list, "eyes"), "meta.vision")));
    assert_true(json_is_false(json_at(model_of(list, "alpha"), "meta.vision")));
    assert_true(json_is_false(json_at(model_of(list, "alpha"), "meta.loaded")));
    json_decref(list);
    serve_stop(&rig);
}

// Also those of folders inside, as `quern pull` keeps them; of two with one name, the first path.
static void models_of_inner_folders_are_served(void **state) {
    static const char *const made[] = {"o", "o/r", "z"};
    static const char *const links[] = {"o/r/gamma.gguf", "z/gamma.gguf", "o/r/mmproj-x.gguf"};
    char path[512];
    serve_rig rig;
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, made[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    for (size_t i = 0; i < 3; i++) add_link(MODELS "/quern-mini-Q8_0.gguf", links[i]);
    start(&rig, 0);
    json_t *list = list_models(&rig);
    assert_int_equal(json_array_size(json_object_get(list, "data")), 5);
    assert_non_null(model_of(list, "gamma"));
    json_decref(list);
    serve_stop(&rig);
    for (size_t i = 0; i < 3; i++) remove_name(links[i]);
    for (size_t i = 3; i-- > 0;) {
        snprintf(path, sizeof path, "%s/%s", folder, made[i]);
        assert_int_equal(rmdir(path), 0);
    }
}

// As Anthropic's clients expect it, if they say who they are.
static void the_list_has_two_forms(void **state) {
    static const char header[] = "anthropic-version: 2023-06-01\r\n";
    serve_rig rig;
    (void)state;
    start(&rig, 0);
    http_answer a = http_with(&rig, "GET", "/v1/models", header, NULL);
    json_t *list = http_json(&a);
    assert_string_equal(text_at(list, "first_id"), "alpha");
    assert_string_equal(text_at(list, "last_id"), "folder");
    assert_true(json_is_false(json_at(list, "has_more")));
    assert_string_equal(text_at(list, "data.0.type"), "model");
    assert_string_equal(text_at(list, "data.0.display_name"), "alpha");
    const char *created = text_at(list, "data.0.created_at");
    assert_true(strlen(created) == strlen("2026-01-02T03:04:05Z") && created[10] == 'T');
    assert_null(json_at(list, "object"));
    json_decref(list);
    http_deinit(&a);
    a = http_with(&rig, "GET", "/v1/models/nobody", header, NULL);
    list = http_json(&a);
    assert_int_equal(a.status, 404);
    assert_string_equal(text_at(list, "type"), "error");
    json_decref(list);
    http_deinit(&a);
    a = http_with(&rig, "GET", "/v1/models/beta", header, NULL);
    list = http_json(&a);
    assert_string_equal(text_at(list, "id"), "beta");
    json_decref(list);
    http_deinit(&a);
    serve_stop(&rig);
}

// Damaged models stand apart on the screen, and are in no list; by name they say what is wrong.
static void damaged_models_stand_apart(void **state) {
    serve_rig rig;
    qn_err err;
    char *text = NULL;
    (void)state;
    start(&rig, 0);
    json_t *list = list_models(&rig);
    assert_null(model_of(list, "broken"));
    json_decref(list);
    ASSERT_OK(qn_server_describe(&text, rig.server, &err));
    const char *apart = strstr(text, "\n  damaged  broken: ");
    assert_true(apart && apart > strstr(text, "  model    folder"));
    assert_null(strstr(text, "  model    broken"));
    qn_free(text);
    http_answer a = http_get(&rig, "/v1/models/broken");
    json_t *model = http_json(&a);
    assert_non_null(strstr(text_at(model, "meta.error"), "its file needs something"));
    json_decref(model);
    http_deinit(&a);
    serve_stop(&rig);
}

// Counters are told of each model that was used, by a label; those of llama-server have none.
static void metrics_have_the_model(void **state) {
    static const char *const parts[] = {
        "\nquern_requests_total{model=\"alpha\"} 1\n",
        "\nquern_requests_total{model=\"od\\\"d\\\\\"} 2\n",
        "\nvllm:request_success_total{model_name=\"alpha\"} 1\n",
        "\nvllm:e2e_request_latency_seconds_bucket{model_name=\"od\\\"d\\\\\",le=\"+Inf\"} 2\n",
        "\nvllm:e2e_request_latency_seconds_count{model_name=\"alpha\"} 1\n",
        "\nllamacpp:tokens_predicted_total 15\n",
        "\nquern_models_open 2\n"};
    serve_rig rig;
    (void)state;
    add_link(MODELS "/quern-mini-Q8_0.gguf", "od\"d\\.gguf");
    serve_start(&rig, &(qn_server_opts){.folder = folder, .metrics = true});
    http_answer a = http_get(&rig, "/metrics"); // of none yet
    assert_non_null(strstr(a.body.data, "\nllamacpp:tokens_predicted_total 0\n"));
    assert_null(strstr(a.body.data, "model=\""));
    http_deinit(&a);
    ask_well(&rig, "alpha");
    ask_well(&rig, "od\\\"d\\\\");
    ask_well(&rig, "od\\\"d\\\\");
    serve_wait(&rig, serve_jobs, 0);
    a = http_get(&rig, "/metrics");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!strstr(a.body.data, parts[i]))
            fail_msg("there is no %s in\n%s", parts[i], a.body.data);
    }
    assert_null(strstr(a.body.data, "\"beta\""));
    http_deinit(&a);
    serve_stop(&rig);
    remove_name("od\"d\\.gguf");
}

// A draft model of another vocabulary: known when the server starts, or when a model is opened.
static void drafts_must_fit(void **state) {
    const qn_server_opts one = {.model = TEST_DATA "/mini/llama32",
                                .draft = MODELS "/quern-draft-Q8_0.gguf",
                                .open = rig_open,
                                .peek = rig_peek,
                                .generate = QN_INIT(qn_generate_opts),
                                .quiet = true};
    const qn_server_opts many = {.folder = folder, .draft = MODELS "/quern-draft-Q8_0.gguf"};
    qn_server *server = NULL;
    qn_err err;
    serve_rig rig;
    (void)state;
    ASSERT_FAILS(qn_server_create(&server, &one, &err), QN_STATE, "quern-draft-Q8_0.gguf");
    assert_non_null(strstr(err.message, "does not fit the model: "));
    assert_null(server);
    serve_start(&rig, &many);
    for (int i = 0; i < 2; i++) {
        json_t *a = ask(&rig, "folder", 400);
        assert_string_equal(text_at(a, "error.param"), "model");
        assert_says(a, "does not fit the model: ");
        json_decref(a);
    }
    ask_well(&rig, "alpha");
    serve_stop(&rig);
}

static void a_model_is_opened_when_it_is_asked_for(void **state) {
    serve_rig rig;
    (void)state;
    start(&rig, 0);
    ask_well(&rig, "alpha");
    assert_true(is_loaded(&rig, "alpha"));
    assert_false(is_loaded(&rig, "beta"));
    ask_well(&rig, "beta:latest");
    assert_true(is_loaded(&rig, "alpha"));
    assert_true(is_loaded(&rig, "beta"));
    json_t *a = ask(&rig, "folder", 200);
    assert_string_equal(text_at(a, "model"), "folder");
    json_decref(a);
    serve_stop(&rig);
}

static void unknown_names_are_told_the_known_ones(void **state) {
    serve_rig rig;
    (void)state;
    start(&rig, 0);
    json_decref(list_models(&rig)); // from then on it is known that one is damaged
    json_t *a = ask(&rig, "gpt-4o", 404);
    assert_string_equal(text_at(a, "error.code"), "model_not_found");
    assert_says(a, "'gpt-4o'");
    assert_says(a, "alpha, beta, eyes, folder");
    json_decref(a);
    a = ask(&rig, "", 404);
    assert_says(a, "names no model");
    json_decref(a);
    serve_stop(&rig);
}

// Bytes that are not UTF-8 cannot be said in JSON.
static void odd_names_are_made_plain(void **state) {
    serve_rig rig;
    (void)state;
    add_link(MODELS "/quern-mini-Q8_0.gguf", "od\xFF\ndd.gguf");
    start(&rig, 0);
    ask_well(&rig, "od??dd");
    json_t *list = list_models(&rig);
    assert_non_null(model_of(list, "od??dd"));
    json_decref(list);
    http_answer a = http_get(&rig, "/api/tags");
    assert_int_equal(a.status, 200);
    http_deinit(&a);
    serve_stop(&rig);
    remove_name("od\xFF\ndd.gguf");
}

static void a_damaged_file_is_the_servers_fault(void **state) {
    serve_rig rig;
    (void)state;
    start(&rig, 0);
    json_t *a = ask(&rig, "broken", 500);
    assert_string_equal(text_at(a, "error.type"), "server_error");
    assert_says(a, "the model 'broken' cannot be opened: its file ");
    json_decref(a);
    ask_well(&rig, "alpha");
    serve_stop(&rig);
}

static qn_status open_wrongly(void *arg, qn_engine **out, qn_sample_opts *sample, const char *path,
                              qn_err *err) {
    if (strstr(path, "alpha")) return QN_FAIL(err, ARGUMENT, "%s: a wrong setting", path);
    if (strstr(path, "beta")) return QN_FAIL(err, LIMIT, "%s: too many parts", path);
    return rig_open(arg, out, sample, path, err);
}

// Neither paths nor bytes of files are for clients; the log has them.
static void clients_are_not_told_of_files(void **state) {
    static const struct {
        const char *method, *path, *body;
    } cases[] = {
        {"POST", "/v1/chat/completions",
         "{\"model\":\"other\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}"},
        {"POST", "/v1/messages",
         "{\"model\":\"other\",\"max_tokens\":1,\"messages\":[{\"role\":\"user\","
         "\"content\":\"a\"}]}"},
        {"POST", "/tokenize", "{\"model\":\"other\",\"content\":\"a\"}"},
        {"POST", "/v1/embeddings", "{\"model\":\"other\",\"input\":\"a\"}"},
        {"POST", "/api/show", "{\"model\":\"other\"}"},
        {"POST", "/api/chat", "{\"model\":\"alpha\",\"messages\":[]}"}, // open_wrongly
        {"GET", "/props?model=other", NULL},
        {"GET", "/v1/models", NULL},
        {"GET", "/api/tags", NULL},
    };
    serve_rig rig;
    (void)state;
    add_file("other.gguf", "a secret of another program");
    serve_start(&rig, &(qn_server_opts){.folder = folder, .open = open_wrongly});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        http_answer a = http_with(&rig, cases[i].method, cases[i].path, "", cases[i].body);
        assert_non_null(a.body.data);
        if (strstr(a.body.data, folder + 1) || strstr(a.body.data, "secret") ||
            strstr(a.body.data, "a sec") || strstr(a.body.data, "wrong setting"))
            fail_msg("%s: %s", cases[i].path, a.body.data);
        http_deinit(&a);
    }
    // The folder itself.
    char moved[80];
    snprintf(moved, sizeof moved, "%s.moved", folder);
    assert_int_equal(rename(folder, moved), 0);
    json_t *a = ask(&rig, "unknown", 500);
    assert_null(strstr(text_at(a, "error.message"), folder + 1));
    json_decref(a);
    assert_int_equal(rename(moved, folder), 0);
    serve_stop(&rig);
    remove_name("other.gguf");
}

// The folder is looked at again for a name that is not known, and for the list.
static void new_files_are_found(void **state) {
    serve_rig rig;
    (void)state;
    start(&rig, 0);
    json_t *a = ask(&rig, "late", 404);
    json_decref(a);
    add_link(MODELS "/quern-mini-Q8_0.gguf", "late.gguf");
    ask_well(&rig, "late");
    remove_name("late.gguf");
    json_t *list = list_models(&rig);
    assert_non_null(model_of(list, "late")); // it is open
    json_decref(list);
    remove_name("broken.gguf");
    list = list_models(&rig);
    assert_null(model_of(list, "broken"));
    json_decref(list);
    serve_stop(&rig);
}

// A file that was damaged is good after it was replaced.
static void mended_files_are_read_again(void **state) {
    serve_rig rig;
    (void)state;
    start(&rig, 0);
    json_decref(list_models(&rig));
    remove_name("broken.gguf");
    add_link(MODELS "/quern-mini-Q8_0.gguf", "broken.gguf");
    json_t *list = list_models(&rig);
    assert_non_null(model_of(list, "broken"));
    json_decref(list);
    ask_well(&rig, "broken");
    serve_stop(&rig);
}

// --- memory --------------------------------------------------------------------------------------

enum { STATE = 64 << 20 }; // --memory of these tests

// What the plan of the bundled model says, state aside.
static int64_t fixed_of_alpha(void) {
    qn_engine *engine = NULL;
    qn_err err;
    qn_memory memory = QN_INIT(qn_memory);
    ASSERT_OK(rig_peek(NULL, &engine, MODELS "/quern-mini-Q8_0.gguf", &err));
    ASSERT_OK(qn_engine_memory(&memory, engine, 2048, 0, &err));
    qn_engine_close(engine);
    return memory.weights + memory.activations;
}

static void the_least_recently_used_is_closed(void **state) {
    serve_rig rig;
    (void)state;
    add_link(MODELS "/quern-mini-Q8_0.gguf", "late.gguf");
    start(&rig, STATE);
    // Two fit beside each other: the second one, and what the first may still take.
    atomic_store(&free_bytes, fixed_of_alpha() + 2 * (int64_t)STATE);
    ask_well(&rig, "alpha");
    ask_well(&rig, "beta");
    ask_well(&rig, "alpha");
    assert_true(is_loaded(&rig, "alpha"));
    assert_true(is_loaded(&rig, "beta"));
    ask_well(&rig, "late");
    assert_true(is_loaded(&rig, "alpha"));
    assert_false(is_loaded(&rig, "beta"));
    assert_true(is_loaded(&rig, "late"));
    ask_well(&rig, "beta");
    assert_false(is_loaded(&rig, "alpha"));
    serve_stop(&rig);
}

static void one_byte_decides(void **state) {
    serve_rig rig;
    (void)state;
    start(&rig, STATE);
    atomic_store(&free_bytes, fixed_of_alpha() + STATE - 1);
    json_t *a = ask(&rig, "alpha", 503);
    assert_string_equal(text_at(a, "error.type"), "unavailable_error");
    assert_says(a, "needs");
    assert_says(a, "are free");
    json_decref(a);
    atomic_store(&free_bytes, fixed_of_alpha() + STATE);
    ask_well(&rig, "alpha");
    serve_stop(&rig);
}

// Without --memory, a model is given room for one request of full length at least.
static void a_small_machine_serves_one_after_the_other(void **state) {
    serve_rig rig;
    qn_engine *engine = NULL;
    qn_err err;
    qn_memory memory = QN_INIT(qn_memory);
    (void)state;
    ASSERT_OK(rig_peek(NULL, &engine, MODELS "/quern-mini-Q8_0.gguf", &err));
    ASSERT_OK(qn_engine_memory(&memory, engine, 2048, 0, &err));
    qn_engine_close(engine);
    start(&rig, 0);
    atomic_store(&free_bytes, memory.total);
    ask_well(&rig, "alpha");
    ask_well(&rig, "beta");
    assert_false(is_loaded(&rig, "alpha"));
    assert_true(is_loaded(&rig, "beta"));
    serve_stop(&rig);
}

// --- at the same time ----------------------------------------------------------------------------

// A stream that does not end by itself, with context shift.
static int begin_stream(const serve_rig *rig, const char *model) {
    char body[256], head[128];
    snprintf(body, sizeof body,
             "{\"model\": \"%s\", \"stream\": true, \"ignore_eos\": true, \"messages\": "
             "[{\"role\": \"user\", \"content\": \"Tell me a story.\"}]}",
             model);
    snprintf(head, sizeof head,
             "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n",
             strlen(body));
    const int fd = serve_connect(rig);
    serve_send(fd, head, strlen(head));
    serve_send(fd, body, strlen(body));
    return fd;
}

// Reads until that many chunks with text came.
static void read_pieces(int fd, int n) {
    char block[4096], last = 0;
    for (int found = 0; found < n;) {
        const ssize_t k = recv(fd, block, sizeof block, 0);
        assert_true(k > 0);
        for (ssize_t i = 0; i < k; i++) {
            found += last == '\n' && block[i] == '\n';
            last = block[i];
        }
    }
}

static void a_model_in_use_is_not_closed(void **state) {
    serve_rig rig;
    qn_offer *used = NULL;
    qn_err err;
    (void)state;
    start(&rig, STATE);
    atomic_store(&free_bytes, fixed_of_alpha() + STATE);
    ASSERT_OK(qn_registry_take(&used, &rig.server->registry, "alpha", &err));
    http_answer a = http_post(&rig, "/v1/chat/completions",
                              "{\"model\": \"beta\", \"messages\": [{\"role\": \"user\", "
                              "\"content\": \"a\"}]}");
    assert_int_equal(a.status, 503);
    assert_non_null(http_header(&a, "Retry-After"));
    assert_non_null(strstr(a.body.data, "in use"));
    http_deinit(&a);
    qn_offer_leave(used);
    ask_well(&rig, "beta");
    assert_false(is_loaded(&rig, "alpha"));
    serve_stop(&rig);
}

// Opening waits until the test lets it go on.
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static qn_status open_behind_gate(void *arg, qn_engine **out, qn_sample_opts *sample,
                                  const char *path, qn_err *err) {
    if (strstr(path, "beta")) {
        pthread_mutex_lock(&gate);
        pthread_mutex_unlock(&gate);
    }
    return rig_open(arg, out, sample, path, err);
}

typedef struct asker {
    const serve_rig *rig;
    pthread_t thread;
} asker;

static void *ask_beta(void *arg) {
    ask_well(((const asker *)arg)->rig, "beta");
    return NULL;
}

// While one model is being opened and more requests wait for it than there are workers, another
// one goes on, and takes further requests.
static void opening_stalls_nobody_else(void **state) {
    enum { N = 12 };
    asker askers[N];
    serve_rig rig;
    (void)state;
    const qn_server_opts opts = {.folder = folder,
                                 .open = open_behind_gate,
                                 .generate = QN_INIT(qn_generate_opts, .shift = true)};
    serve_start(&rig, &opts);
    const int fd = begin_stream(&rig, "alpha");
    read_pieces(fd, 2);
    pthread_mutex_lock(&gate);
    for (int i = 0; i < N; i++) {
        askers[i].rig = &rig;
        assert_true(qn_thread_start(&askers[i].thread, ask_beta, &askers[i]));
    }
    for (;;) { // until all of them wait
        pthread_mutex_lock(&rig.server->workers.lock);
        const int n_paused = rig.server->workers.n_paused;
        pthread_mutex_unlock(&rig.server->workers.lock);
        if (n_paused == N) break;
        read_pieces(fd, 1);
    }
    ask_well(&rig, "alpha");
    read_pieces(fd, 5);
    pthread_mutex_unlock(&gate);
    for (int i = 0; i < N; i++) pthread_join(askers[i].thread, NULL);
    ask_well(&rig, "alpha");
    close(fd);
    serve_stop(&rig);
}

// Until that many requests wait for models.
static void wait_for_paused(const serve_rig *rig, int n) {
    static const struct timespec pause = {.tv_nsec = 1000000};
    for (;;) {
        pthread_mutex_lock(&rig->server->workers.lock);
        const int n_paused = rig->server->workers.n_paused;
        pthread_mutex_unlock(&rig->server->workers.lock);
        if (n_paused == n) return;
        nanosleep(&pause, NULL);
    }
}

static void *ask_alpha(void *arg) {
    ask_well(((const asker *)arg)->rig, "alpha");
    return NULL;
}

static void *ask_late(void *arg) {
    ask_well(((const asker *)arg)->rig, "late");
    return NULL;
}

// Room for one alone: those that wait for it do not count against each other.
static void models_that_wait_for_room_get_it_in_turn(void **state) {
    serve_rig rig;
    asker askers[] = {{.rig = &rig}, {.rig = &rig}, {.rig = &rig}};
    (void)state;
    add_link(MODELS "/quern-mini-Q8_0.gguf", "late.gguf");
    serve_start(&rig,
                &(qn_server_opts){.folder = folder, .memory = STATE, .open = open_behind_gate});
    atomic_store(&free_bytes, fixed_of_alpha() + STATE);
    pthread_mutex_lock(&gate);
    assert_true(qn_thread_start(&askers[0].thread, ask_beta, &askers[0]));
    wait_for_paused(&rig, 1);
    assert_true(qn_thread_start(&askers[1].thread, ask_alpha, &askers[1]));
    assert_true(qn_thread_start(&askers[2].thread, ask_late, &askers[2]));
    wait_for_paused(&rig, 3);
    pthread_mutex_unlock(&gate);
    for (int i = 0; i < 3; i++) pthread_join(askers[i].thread, NULL);
    serve_stop(&rig);
}

static atomic_int n_peeks;

static qn_status peek_behind_gate(void *arg, qn_engine **out, const char *path, qn_err *err) {
    atomic_fetch_add(&n_peeks, 1);
    if (!strstr(path, "alpha")) {
        pthread_mutex_lock(&gate);
        pthread_mutex_unlock(&gate);
    }
    return rig_peek(arg, out, path, err);
}

static void *list_all(void *arg) {
    json_decref(list_models(((const asker *)arg)->rig));
    return NULL;
}

// More lists are wanted than there are workers while files are being read: each file is read once,
// and others are answered meanwhile.
static void lists_stall_nobody_else(void **state) {
    enum { N = 12 };
    asker askers[N];
    serve_rig rig;
    (void)state;
    atomic_store(&n_peeks, 0);
    serve_start(&rig, &(qn_server_opts){.folder = folder, .peek = peek_behind_gate});
    ask_well(&rig, "alpha");
    assert_int_equal(atomic_load(&n_peeks), 1);
    pthread_mutex_lock(&gate);
    for (int i = 0; i < N; i++) {
        askers[i].rig = &rig;
        assert_true(qn_thread_start(&askers[i].thread, list_all, &askers[i]));
    }
    wait_for_paused(&rig, N);
    ask_well(&rig, "alpha");
    pthread_mutex_unlock(&gate);
    for (int i = 0; i < N; i++) pthread_join(askers[i].thread, NULL);
    assert_int_equal(atomic_load(&n_peeks), 4); // beta, eyes and folder; broken is no model
    serve_stop(&rig);
}

// Whatever is wrong with a model, its name was right.
static void a_model_that_cannot_be_opened_is_not_unknown(void **state) {
    static const char *const names[] = {"alpha", "beta"};
    serve_rig rig;
    (void)state;
    serve_start(&rig, &(qn_server_opts){.folder = folder, .open = open_wrongly});
    for (size_t i = 0; i < 2; i++) {
        json_t *a = ask(&rig, names[i], 500);
        assert_string_equal(text_at(a, "error.type"), "server_error");
        assert_says(a, names[i]);
        json_decref(a);
    }
    serve_stop(&rig);
}

static json_t *props_of(const serve_rig *rig, const char *path, int status) {
    http_answer a = http_get(rig, path);
    assert_int_equal(a.status, status);
    json_t *value = http_json(&a);
    http_deinit(&a);
    return value;
}

// A page asks for them when somebody picks a model.
static void properties_open_no_model(void **state) {
    serve_rig rig;
    (void)state;
    start(&rig, 0);
    json_t *a = props_of(&rig, "/props?model=eyes", 200);
    assert_true(json_is_true(json_at(a, "modalities.vision")));
    assert_true(json_is_false(json_at(a, "loaded")));
    json_decref(a);
    a = props_of(&rig, "/props?model=alpha", 200);
    assert_int_equal(json_integer_value(json_at(a, "n_ctx")), 2048);
    json_decref(a);
    assert_false(is_loaded(&rig, "alpha"));
    assert_false(is_loaded(&rig, "eyes"));
    ask_well(&rig, "alpha");
    a = props_of(&rig, "/props?model=alpha", 200);
    assert_true(json_is_true(json_at(a, "loaded")));
    assert_non_null(json_at(a, "default_generation_settings.params.temperature"));
    assert_non_null(strstr(text_at(a, "chat_template"), "<|im_start|>"));
    assert_string_equal(text_at(a, "eos_token"), "<|im_end|>");
    assert_string_equal(text_at(a, "model_ftype"), "Q8_0");
    assert_int_equal(json_integer_value(json_at(a, "meta.n_ctx_train")), 2048);
    json_decref(a);
    a = props_of(&rig, "/props?model=other", 404);
    assert_string_equal(text_at(a, "error.code"), "model_not_found");
    json_decref(a);
    a = props_of(&rig, "/props?model=broken", 500);
    assert_says(a, "the model 'broken' cannot be opened: its file ");
    json_decref(a);
    serve_stop(&rig);
}

static void *ask_both(void *arg) {
    for (int i = 0; i < 4; i++) {
        ask_well(((const asker *)arg)->rig, "alpha");
        ask_well(((const asker *)arg)->rig, "beta");
    }
    return NULL;
}

static void two_models_answer_at_the_same_time(void **state) {
    enum { N = 4 };
    asker askers[N];
    serve_rig rig;
    (void)state;
    start(&rig, 0);
    for (int i = 0; i < N; i++) {
        askers[i].rig = &rig;
        assert_true(qn_thread_start(&askers[i].thread, ask_both, &askers[i]));
    }
    for (int i = 0; i < N; i++) pthread_join(askers[i].thread, NULL);
    serve_stop(&rig);
}

int main(void) {
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        TEST(models_have_the_names_of_their_files),
        TEST(models_of_inner_folders_are_served),
        TEST(a_model_is_opened_when_it_is_asked_for),
        TEST(unknown_names_are_told_the_known_ones),
        TEST(odd_names_are_made_plain),
        TEST(the_list_has_two_forms),
        TEST(damaged_models_stand_apart),
        TEST(metrics_have_the_model),
        TEST(drafts_must_fit),
        TEST(a_damaged_file_is_the_servers_fault),
        TEST(clients_are_not_told_of_files),
        TEST(new_files_are_found),
        TEST(mended_files_are_read_again),
        TEST(the_least_recently_used_is_closed),
        TEST(one_byte_decides),
        TEST(a_small_machine_serves_one_after_the_other),
        TEST(a_model_in_use_is_not_closed),
        TEST(opening_stalls_nobody_else),
        TEST(models_that_wait_for_room_get_it_in_turn),
        TEST(lists_stall_nobody_else),
        TEST(a_model_that_cannot_be_opened_is_not_unknown),
        TEST(properties_open_no_model),
        TEST(two_models_answer_at_the_same_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
