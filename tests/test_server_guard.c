// Who may ask: keys, names of the server, pages of other servers.
#include "serve_rig.h"
#include "server/routes.h"

// --- keys ----------------------------------------------------------------------------------------

static int status_with(const serve_rig *rig, const char *headers) {
    http_answer a = http_with(rig, "GET", "/v1/models", headers, NULL);
    const int status = a.status;
    http_deinit(&a);
    return status;
}

static void a_key_is_wanted(void **state) {
    static const char *const keys[] = {"first-key", "k2"};
    const qn_server_opts opts = {.keys = keys, .n_keys = 2};
    serve_rig rig;
    (void)state;
    serve_start(&rig, &opts);
    assert_int_equal(status_with(&rig, ""), 401);
    static const char *const wrong[] = {"first-kez",          "first-ke", "first-keyy", "",
                                        "first-keyfirst-key", "k",        "k2 k2",      "K2"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char headers[128];
        snprintf(headers, sizeof headers, "Authorization: Bearer %s\r\n", wrong[i]);
        assert_int_equal(status_with(&rig, headers), 401);
        snprintf(headers, sizeof headers, "X-Api-Key: %s\r\n", wrong[i]);
        assert_int_equal(status_with(&rig, headers), 401);
    }
    assert_int_equal(status_with(&rig, "Authorization: Basic first-key\r\n"), 401);
    assert_int_equal(status_with(&rig, "Authorization: Bearer first-key\r\n"), 200);
    assert_int_equal(status_with(&rig, "authorization: bearer k2\r\n"), 200);
    assert_int_equal(status_with(&rig, "X-Api-Key: first-key\r\n"), 200);
    serve_stop(&rig);
}

// The members that clients of each dialect look for.
static void check_error(const qn_route *route, const json_t *a, const char *type) {
    if (route->form == QN_FORM_OLLAMA) {
        assert_true(json_is_string(json_at(a, "error")));
        return;
    }
    assert_string_equal(text_at(a, "error.type"), type);
    assert_true(strlen(text_at(a, "error.message")) > 0);
    if (route->form == QN_FORM_ANTHROPIC) assert_string_equal(text_at(a, "type"), "error");
}

static void every_route_wants_the_key(void **state) {
    static const char *const keys[] = {"secret"};
    const qn_server_opts opts = {.keys = keys, .n_keys = 1, .metrics = true};
    serve_rig rig;
    (void)state;
    serve_start(&rig, &opts);
    for (size_t i = 0; qn_route_at(i); i++) {
        const qn_route *route = qn_route_at(i);
        const bool is_post = strcmp(route->method, "GET") != 0;
        http_answer a = http_with(&rig, route->method, route->path, "", is_post ? "{}" : NULL);
        if (route->flags & QN_ROUTE_PUBLIC) {
            assert_int_not_equal(a.status, 401);
        } else {
            assert_int_equal(a.status, 401);
            assert_non_null(http_header(&a, "WWW-Authenticate"));
            json_t *value = http_json(&a);
            check_error(route, value, "authentication_error");
            json_decref(value);
        }
        http_deinit(&a);
    }
    http_answer a = http_get(&rig, "/nothing"); // what there is, is not told either
    assert_int_equal(a.status, 401);
    http_deinit(&a);
    serve_stop(&rig);
}

static void write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static const char *shown;
static int64_t status_now(const serve_rig *rig) { return status_with(rig, shown); }

static void keys_are_read_again(void **state) {
    char path[] = "/tmp/quern_keys_XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    (void)state;
    write_file(path, "# of today\n\n  old-key  \r\nother-key");
    const qn_server_opts opts = {.key_file = path};
    serve_rig rig;
    serve_start(&rig, &opts);
    assert_int_equal(status_with(&rig, "X-Api-Key: old-key\r\n"), 200);
    assert_int_equal(status_with(&rig, "X-Api-Key: other-key\r\n"), 200);
    assert_int_equal(status_with(&rig, "X-Api-Key: # of today\r\n"), 401);
    write_file(path, "new-key\n");
    qn_server_reload(rig.server);
    shown = "X-Api-Key: new-key\r\n";
    serve_wait(&rig, status_now, 200);
    assert_int_equal(status_with(&rig, "X-Api-Key: old-key\r\n"), 401);
    write_file(path, "\n"); // a file without keys leaves the old ones
    qn_err err;
    assert_int_equal(qn_guard_reload(&rig.server->guard, &err), QN_FORMAT);
    assert_int_equal(status_with(&rig, shown), 200);
    unlink(path);
    assert_int_equal(qn_guard_reload(&rig.server->guard, &err), QN_IO);
    assert_int_equal(status_with(&rig, shown), 200);
    serve_stop(&rig);
}

// A key of the options is what it is: no comment, and no blanks that nobody can show.
static void given_keys_are_literal(void **state) {
    static const char *const blank[] = {"", " ", " \t ", "\r\n", " key", "key ", "a\nb"};
    static const char *const comment[] = {"#secret"};
    qn_server *server = NULL;
    qn_err err;
    (void)state;
    for (size_t i = 0; i < sizeof blank / sizeof *blank; i++) {
        const char *const keys[] = {"fine", blank[i]};
        qn_guard guard;
        const qn_server_opts opts = {.host = "0.0.0.0", .keys = &keys[1], .n_keys = 1};
        assert_int_equal(qn_server_create(&server, &opts, &err), QN_ARGUMENT);
        assert_non_null(strstr(err.message, "--api-key"));
        const qn_server_opts both = {.keys = keys, .n_keys = 2};
        assert_int_equal(qn_guard_init(&guard, &both, &err), QN_ARGUMENT);
        assert_null(guard.opts); // and its lock is gone: a second release finds nothing
        qn_guard_deinit(&guard);
    }
    const qn_server_opts opts = {.host = "0.0.0.0", .keys = comment, .n_keys = 1};
    serve_rig rig;
    serve_start(&rig, &opts);
    assert_int_equal(status_with(&rig, ""), 401);
    assert_int_equal(status_with(&rig, "X-Api-Key: secret\r\n"), 401);
    assert_int_equal(status_with(&rig, "X-Api-Key: #secret\r\n"), 200);
    serve_stop(&rig);
}

static void public_addresses_need_a_key(void **state) {
    static const char *const hosts[] = {"0.0.0.0", "::", "192.0.2.1", "example.org", "127.0.0.1.x"};
    static const char *const keys[] = {"secret"};
    qn_server *server = NULL;
    qn_err err;
    (void)state;
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        const qn_server_opts opts = {.host = hosts[i]};
        assert_int_equal(qn_server_create(&server, &opts, &err), QN_ARGUMENT);
        assert_non_null(strstr(err.message, hosts[i]));
        assert_non_null(strstr(err.message, "--api-key"));
    }
    assert_true(qn_host_is_local("127.0.0.1") && qn_host_is_local("127.8.9.1"));
    assert_true(qn_host_is_local("::1") && qn_host_is_local("localhost"));
    const qn_server_opts fine[] = {{.host = "0.0.0.0", .insecure = true},
                                   {.host = "0.0.0.0", .keys = keys, .n_keys = 1},
                                   {.host = "127.0.0.2"}};
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        serve_rig rig;
        serve_start(&rig, &fine[i]);
        serve_stop(&rig);
    }
}

// --- places --------------------------------------------------------------------------------------

static int status_of(const serve_rig *rig, const char *host, const char *origin) {
    qn_buf request = {0};
    qn_buf_text(&request, "GET /v1/models HTTP/1.1\r\nConnection: close\r\n");
    if (host) qn_buf_printf(&request, "Host: %s\r\n", host);
    if (origin) qn_buf_printf(&request, "Origin: %s\r\n", origin);
    qn_buf_text(&request, "\r\n");
    const int fd = serve_connect(rig);
    serve_send(fd, request.data, request.size);
    qn_buf_deinit(&request);
    http_answer a = http_read(fd);
    const int status = a.status;
    close(fd);
    http_deinit(&a);
    return status;
}

// A name that was made to point here (DNS rebinding) is not one of this server's.
static void a_host_must_be_ours(void **state) {
    static const char *const names[] = {"models.lan"};
    static const char *const ours[] = {"localhost",   "LOCALHOST:80", "127.0.0.1",
                                       "127.0.0.1:9", "[::1]:8080",   "192.168.7.7:1",
                                       "a.localhost", "models.lan:80"};
    static const char *const others[] = {"example.org",      "localhost.example.org",
                                         "127.0.0.1.nip.io", "xlocalhost",
                                         ".localhost",       "models.lan.evil"};
    // What one program takes for the name, another takes for something else.
    static const char *const odd[] = {"[::1].evil.com",
                                      "127.0.0.1:80@evil.com",
                                      "localhost:x",
                                      "localhost:",
                                      "localhost:80:1",
                                      "localhost:123456",
                                      "localhost/a",
                                      "localhost,evil.com",
                                      "[::1",
                                      "[localhost]",
                                      "[127.0.0.1]",
                                      "[::1]:80x",
                                      "::1",
                                      "localhost evil.com",
                                      "a@localhost",
                                      "evil.com#.localhost",
                                      "\"localhost\"",
                                      "evil.com\\.localhost"};
    const qn_server_opts opts = {.hosts = names, .n_hosts = 1};
    serve_rig rig;
    (void)state;
    serve_start(&rig, &opts);
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        assert_int_equal(status_of(&rig, ours[i], NULL), 200);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (status_of(&rig, others[i], NULL) != 403) fail_msg("Host %s", others[i]);
    }
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        if (status_of(&rig, odd[i], NULL) != 403) fail_msg("Host %s", odd[i]);
    }
    serve_stop(&rig);
}

static void pages_of_others_are_refused(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    assert_int_equal(status_of(&rig, "localhost:5", "http://localhost:5"), 200);
    static const char *const others[] = {"http://localhost:6",
                                         "https://localhost:5",
                                         "null",
                                         "http://example.org",
                                         "http://localhost:5.example.org",
                                         "file://"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_int_equal(status_of(&rig, "localhost:5", others[i]), 403);
    http_answer a = http_with(&rig, "OPTIONS", "/v1/models",
                              "Origin: http://example.org\r\n"
                              "Access-Control-Request-Method: POST\r\n",
                              NULL);
    assert_int_equal(a.status, 403);
    assert_null(http_header(&a, "Access-Control-Allow-Origin"));
    json_t *value = http_json(&a);
    assert_string_equal(text_at(value, "error.type"), "permission_error");
    json_decref(value);
    http_deinit(&a);
    serve_stop(&rig);
}

static bool has_header(const http_answer *a, const char *name, const char *value) {
    const char *found = http_header(a, name);
    return found && strncmp(found, value, strlen(value)) == 0 && found[strlen(value)] == '\r';
}

static void listed_pages_may_ask(void **state) {
    static const char *const origins[] = {"https://app.example.org", "http://localhost:3000"};
    static const char *const keys[] = {"secret"};
    const qn_server_opts opts = {.origins = origins, .n_origins = 2, .keys = keys, .n_keys = 1};
    serve_rig rig;
    (void)state;
    serve_start(&rig, &opts);
    http_answer a = http_with(&rig, "OPTIONS", "/v1/chat/completions",
                              "Origin: https://app.example.org\r\n"
                              "Access-Control-Request-Method: POST\r\n"
                              "Access-Control-Request-Headers: authorization, content-type\r\n"
                              "Access-Control-Request-Private-Network: true\r\n",
                              NULL); // browsers send no key with it
    assert_int_equal(a.status, 204);
    assert_true(has_header(&a, "Access-Control-Allow-Origin", "https://app.example.org"));
    assert_true(has_header(&a, "Vary", "Origin"));
    assert_true(has_header(&a, "Access-Control-Allow-Private-Network", "true"));
    assert_non_null(strstr(http_header(&a, "Access-Control-Allow-Headers"), "Authorization"));
    assert_non_null(strstr(http_header(&a, "Access-Control-Allow-Methods"), "POST"));
    http_deinit(&a);
    a = http_with(&rig, "GET", "/v1/models",
                  "Origin: http://localhost:3000\r\nAuthorization: Bearer secret\r\n", NULL);
    assert_int_equal(a.status, 200);
    assert_true(has_header(&a, "Access-Control-Allow-Origin", "http://localhost:3000"));
    http_deinit(&a);
    a = http_with(&rig, "GET", "/v1/models", "Origin: http://localhost:3000\r\n", NULL);
    assert_int_equal(a.status, 401); // which the page may read
    assert_true(has_header(&a, "Access-Control-Allow-Origin", "http://localhost:3000"));
    http_deinit(&a);
    assert_int_equal(status_of(&rig, "localhost", "https://example.org"), 403);
    serve_stop(&rig);
    static const char *const all[] = {"*"};
    const qn_server_opts open = {.origins = all, .n_origins = 1};
    serve_start(&rig, &open);
    assert_int_equal(status_of(&rig, "localhost", "https://example.org"), 200);
    assert_int_equal(status_of(&rig, "example.org", "https://example.org"), 403);
    serve_stop(&rig);
}

// A value that no request can match would let nobody in, and look as if it did.
static void names_and_origins_are_checked(void **state) {
    static const char *const hosts[] = {"", "a b", "models.lan:80", "*", "http://a", "[::1]", "a/"};
    static const char *const origins[] = {
        "",     "example.org", "https://",    "https://a/", "https://a/b",         "https://a:b",
        "://a", "https://*.a", "https://u@a", "NULL",       "https://a, https://b"};
    static const char *const fine[] = {"*",
                                       "null",
                                       "https://a.b",
                                       "http://[::1]:3000",
                                       "app://obsidian.md",
                                       "chrome-extension://abcdef"};
    qn_server *server = NULL;
    qn_err err;
    (void)state;
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        const qn_server_opts opts = {.hosts = &hosts[i], .n_hosts = 1};
        assert_int_equal(qn_server_create(&server, &opts, &err), QN_ARGUMENT);
        assert_non_null(strstr(err.message, "--allow-host"));
    }
    for (size_t i = 0; i < sizeof origins / sizeof *origins; i++) {
        const qn_server_opts opts = {.origins = &origins[i], .n_origins = 1};
        assert_int_equal(qn_server_create(&server, &opts, &err), QN_ARGUMENT);
        assert_non_null(strstr(err.message, "--cors-origin"));
    }
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++)
        ASSERT_OK(qn_origin_check(fine[i], &err));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(given_keys_are_literal),        cmocka_unit_test(a_key_is_wanted),
        cmocka_unit_test(every_route_wants_the_key),     cmocka_unit_test(keys_are_read_again),
        cmocka_unit_test(public_addresses_need_a_key),   cmocka_unit_test(a_host_must_be_ours),
        cmocka_unit_test(pages_of_others_are_refused),   cmocka_unit_test(listed_pages_may_ask),
        cmocka_unit_test(names_and_origins_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
