// What the server tells people when it is ready: one screen.
#include "serve_rig.h"

#include "core/mem.h"

static char *describe(const serve_rig *rig) {
    qn_err err;
    char *text = NULL;
    ASSERT_OK(qn_server_describe(&text, rig->server, &err));
    return text;
}

static void assert_has(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("there is no '%s' in\n%s", part, text);
}

static void one_model(void **state) {
    serve_rig rig;
    char line[128];
    (void)state;
    serve_start(&rig, &(qn_server_opts){.parallel = 7, .context = 256});
    char *text = describe(&rig);
    snprintf(line, sizeof line, "  address  http://127.0.0.1:%d\n", rig.port);
    assert_has(text, line);
    snprintf(line, sizeof line, "  page     http://127.0.0.1:%d/\n", rig.port);
    assert_has(text, line);
    assert_has(text, "  key      none\n");
    assert_has(text, "  model    quern-mini-Q8_0 (");
    assert_has(text, "context 256)");
    assert_has(text, "for up to 7 answers at a time");
    // The plan is what the batch has, and a row of it what the library says.
    qn_offer_info info;
    assert_true(qn_registry_info(&info, &rig.server->registry, 0));
    snprintf(line, sizeof line, "%.1f MiB of weights, %.1f of activations, %.1f of KV cache",
             (double)info.facts.weights / (1 << 20), (double)info.facts.activations / (1 << 20),
             (double)info.state_bytes / (1 << 20));
    assert_has(text, line);
    assert_true(info.state_bytes >= info.facts.row_state && info.facts.row_state > 0);
    assert_has(text, "\n  curl http://127.0.0.1:");
    assert_null(strstr(text, "Authorization"));
    qn_free(text);
    serve_stop(&rig);
}

// A context that the model does not have is told, and that of the model used.
static void a_context_that_is_too_large_is_told(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, &(qn_server_opts){.context = 5000});
    char *text = describe(&rig);
    assert_has(text, "context 2048, its limit: -c 5000 is more)");
    qn_free(text);
    serve_stop(&rig);
}

static void a_key_is_in_the_example(void **state) {
    static const char *const keys[] = {"secret"};
    serve_rig rig;
    (void)state;
    serve_start(&rig, &(qn_server_opts){.keys = keys, .n_keys = 1});
    char *text = describe(&rig);
    assert_has(text, "  key      needed\n");
    assert_has(text, "/v1/chat/completions -H \"Authorization: Bearer $KEY\" -d '{");
    assert_null(strstr(text, "secret"));
    qn_free(text);
    serve_stop(&rig);
}

static void addresses_with_colons_have_brackets(void **state) {
    const int fd = socket(AF_INET6, SOCK_STREAM, 0);
    const struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
    const bool is_there = fd >= 0 && bind(fd, (const struct sockaddr *)&any, sizeof any) == 0;
    serve_rig rig;
    (void)state;
    if (fd >= 0) close(fd);
    if (!is_there) skip(); // a machine without
    serve_start(&rig, &(qn_server_opts){.host = "::1"});
    char *text = describe(&rig);
    assert_has(text, "  address  http://[::1]:");
    assert_has(text, "  curl http://[::1]:");
    qn_free(text);
    serve_stop(&rig);
}

// None is open, and the plan of each is known all the same.
static void a_folder_has_plans(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, &(qn_server_opts){.folder = MODELS});
    char *text = describe(&rig);
    assert_has(text, "  model    quern-");
    assert_has(text, "of activations, when it is asked for\n");
    assert_has(text, "KV cache and state for one answer of full length");
    assert_has(text, "-d '{\"model\": \"quern-");
    int n_lines = 0;
    for (const char *c = text; *c; c++) n_lines += *c == '\n';
    assert_true(n_lines <= 24);
    qn_free(text);
    serve_stop(&rig);
}

// What programs of vLLM ask.
static void version_and_load(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    http_answer a = http_get(&rig, "/ping");
    assert_int_equal(a.status, 200);
    http_deinit(&a);
    a = http_get(&rig, "/version");
    json_t *value = http_json(&a);
    assert_string_equal(text_at(value, "version"), qn_version());
    json_decref(value);
    http_deinit(&a);
    a = http_get(&rig, "/load");
    value = http_json(&a);
    assert_json(value, "{'server_load': 0}", "/load");
    json_decref(value);
    http_deinit(&a);
    serve_stop(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_model),
        cmocka_unit_test(a_context_that_is_too_large_is_told),
        cmocka_unit_test(a_key_is_in_the_example),
        cmocka_unit_test(addresses_with_colons_have_brackets),
        cmocka_unit_test(a_folder_has_plans),
        cmocka_unit_test(version_and_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
