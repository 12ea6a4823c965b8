// Steps of a model that fail: its answers are given up, those of other models go on, and /health
// tells it until a step succeeds.
#include "serve_rig.h"

#include "session/generate_int.h"
#include "session/session_int.h"

qn_status __real_qn_generations_begin(qn_flight **out, qn_generation *const *gens, size_t n,
                                      int64_t prompt_rows, qn_err *err);
qn_status __wrap_qn_generations_begin(qn_flight **out, qn_generation *const *gens, size_t n,
                                      int64_t prompt_rows, qn_err *err);

static _Atomic(const qn_engine *) broken; // NULL: all steps are fine
static atomic_int n_failed;

qn_status __wrap_qn_generations_begin(qn_flight **out, qn_generation *const *gens, size_t n,
                                      int64_t prompt_rows, qn_err *err) {
    if (gens[0]->session->engine != atomic_load(&broken))
        return __real_qn_generations_begin(out, gens, n, prompt_rows, err);
    atomic_fetch_add(&n_failed, 1);
    return QN_FAIL(err, STATE, "the device is lost");
}

// --- asking --------------------------------------------------------------------------------------

static char folder[64];

static void start(serve_rig *rig) {
    char path[512];
    strcpy(folder, "/tmp/quern-failing-XXXXXX");
    assert_non_null(mkdtemp(folder));
    for (const char *name = "ab"; *name; name++) {
        snprintf(path, sizeof path, "%s/%c.gguf", folder, *name);
        assert_int_equal(symlink(MODELS "/quern-mini-Q8_0.gguf", path), 0);
    }
    atomic_store(&broken, NULL);
    atomic_store(&n_failed, 0);
    serve_start(rig, &(qn_server_opts){.folder = folder,
                                       .generate = QN_INIT(qn_generate_opts, .shift = true)});
}

static void stop(serve_rig *rig) {
    char path[512];
    serve_stop(rig);
    for (const char *name = "ab"; *name; name++) {
        snprintf(path, sizeof path, "%s/%c.gguf", folder, *name);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(folder), 0);
}

static json_t *ask(const serve_rig *rig, const char *model, int status) {
    char body[256];
    snprintf(body, sizeof body,
             "{\"model\": \"%s\", \"max_tokens\": 4, \"messages\": [{\"role\": \"user\", "
             "\"content\": \"a\"}]}",
             model);
    return post_json(rig, "/v1/chat/completions", body, status);
}

static const qn_engine *engine_of(const serve_rig *rig, const char *model) {
    qn_offer *entry = NULL;
    qn_err err;
    ASSERT_OK(qn_registry_take(&entry, &rig->server->registry, model, &err));
    const qn_engine *engine = entry->served->engine;
    qn_offer_leave(entry);
    return engine;
}

static int health(const serve_rig *rig) {
    http_answer a = http_get(rig, "/health");
    const int status = a.status;
    http_deinit(&a);
    return status;
}

// A stream that does not end by itself.
static int begin_stream(const serve_rig *rig, const char *model) {
    char body[256], head[128];
    snprintf(body, sizeof body,
             "{\"model\": \"%s\", \"stream\": true, \"ignore_eos\": true, \"messages\": "
             "[{\"role\": \"user\", \"content\": \"Tell me a story.\"}]}",
             model);
    snprintf(head, sizeof head,
             "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: "
             "close\r\nContent-Length: %zu\r\n\r\n",
             strlen(body));
    const int fd = serve_connect(rig);
    serve_send(fd, head, strlen(head));
    serve_send(fd, body, strlen(body));
    return fd;
}

// --- tests ---------------------------------------------------------------------------------------

static void a_failing_model_fails_alone(void **state) {
    serve_rig rig;
    char byte;
    (void)state;
    start(&rig);
    json_decref(ask(&rig, "a", 200));
    json_decref(ask(&rig, "b", 200));
    assert_int_equal(health(&rig), 200);
    const int other = begin_stream(&rig, "b");
    assert_int_equal(recv(other, &byte, 1, 0), 1);

    atomic_store(&broken, engine_of(&rig, "a"));
    json_t *a = ask(&rig, "a", 503);
    assert_string_equal(text_at(a, "error.type"), "unavailable_error");
    json_decref(a);
    assert_int_equal(health(&rig), 503);
    // The ones that follow are not tried as often before they are given up.
    const int before = atomic_load(&n_failed);
    json_decref(ask(&rig, "a", 503));
    assert_true(atomic_load(&n_failed) - before < 10);
    const int fd = begin_stream(&rig, "a");
    http_answer stream = http_read(fd);
    assert_int_equal(stream.status, 200);
    assert_non_null(strstr(stream.body.data, "unavailable_error"));
    http_deinit(&stream);
    close(fd);

    // The other model's stream has gone on, and it takes requests.
    json_decref(ask(&rig, "b", 200));
    assert_int_equal(recv(other, &byte, 1, 0), 1);
    close(other);

    atomic_store(&broken, NULL);
    json_decref(ask(&rig, "a", 200));
    assert_int_equal(health(&rig), 200);
    stop(&rig);
}

static int64_t health_of(const serve_rig *rig) { return health(rig); }

// Who looks at /health sends no requests to a server that is not well: it tries by itself.
static void a_model_recovers_without_requests(void **state) {
    serve_rig rig;
    (void)state;
    start(&rig);
    json_decref(ask(&rig, "a", 200));
    atomic_store(&broken, engine_of(&rig, "a"));
    json_decref(ask(&rig, "a", 503));
    assert_int_equal(health(&rig), 503);
    atomic_store(&broken, NULL);
    serve_wait(&rig, health_of, 200);
    json_decref(ask(&rig, "a", 200));
    stop(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failing_model_fails_alone),
        cmocka_unit_test(a_model_recovers_without_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
