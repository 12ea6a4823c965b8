// HTTP itself: kinds of requests, limits, connections that stay open and that go wrong.
#include "serve_rig.h"

#define CHAT "/v1/chat/completions"
static const char question[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"What color is a lemon?\"}], "
    "\"max_tokens\": 20}";
static const char endless[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Tell me a "
                              "story.\"}], \"ignore_eos\": true, "
                              "\"stream\": true, \"logprobs\": true, \"top_logprobs\": 20}";

static void put_post(qn_buf *to, const char *path, const char *version, const char *headers,
                     const char *body) {
    qn_buf_printf(to, "POST %s HTTP/%s\r\nHost: localhost\r\n%sContent-Length: %zu\r\n\r\n%s", path,
                  version, headers, strlen(body), body);
}

static int send_post(const serve_rig *rig, const char *path, const char *version,
                     const char *headers, const char *body) {
    qn_buf request = {0};
    put_post(&request, path, version, headers, body);
    const int fd = serve_connect(rig);
    serve_send(fd, request.data, request.size);
    qn_buf_deinit(&request);
    return fd;
}

static void expect_text(const http_answer *a, const char *text) {
    json_t *value = http_json(a);
    assert_string_equal(text_at(value, "choices.0.message.content"), text);
    json_decref(value);
}

// --- kinds of requests ---------------------------------------------------------------------------

static void head_has_no_body(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    http_answer a = http_with(&rig, "HEAD", "/v1/models", "", NULL);
    assert_int_equal(a.status, 200);
    assert_int_equal(a.body.size, 0);
    assert_true(atoi(http_header(&a, "Content-Length")) > 0);
    http_deinit(&a);
    serve_stop(&rig);
}

// A client of HTTP/1.0 knows no chunks: the stream ends with the connection.
// The page is compressed for those who can read that, and only for them.
static void the_page_is_compressed_if_that_is_taken(void **state) {
    static const struct {
        const char *header;
        bool is_gzip;
    } rows[] = {{"", false},
                {"Accept-Encoding: gzip, deflate, br\r\n", true},
                {"Accept-Encoding: br;q=1.0, GZIP ;q=0.8\r\n", true},
                {"Accept-Encoding: *\r\n", true},
                {"Accept-Encoding: identity\r\n", false},
                {"Accept-Encoding: gzipped\r\n", false},
                {"Accept-Encoding: gzip;q=0, br\r\n", false},
                {"Accept-Encoding: gzip;q=0.0\r\n", false},
                {"Accept-Encoding: ,,;=,\r\n", false}};
    serve_rig rig;
    char tags[2][64] = {"", ""};
    (void)state;
    serve_start(&rig, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        http_answer a = http_with(&rig, "GET", "/", rows[i].header, NULL);
        assert_int_equal(a.status, 200);
        assert_true(a.is_whole);
        assert_true(!http_header(&a, "Content-Encoding") != rows[i].is_gzip);
        assert_non_null(http_header(&a, "Vary"));
        const bool is_plain = memcmp(a.body.data, "<!doctype html>", 15) == 0;
        assert_true(is_plain != rows[i].is_gzip);
        if (is_plain) assert_memory_equal(a.body.data + a.body.size - 8, "</html>\n", 8);
        sscanf(http_header(&a, "ETag"), "%63s", tags[rows[i].is_gzip]);
        http_deinit(&a);
    }
    assert_string_not_equal(tags[0], tags[1]);
    char header[128];
    snprintf(header, sizeof header, "If-None-Match: %s\r\n", tags[0]);
    http_answer a = http_with(&rig, "GET", "/", header, NULL);
    assert_int_equal(a.status, 304);
    http_deinit(&a);
    serve_stop(&rig);
}

static void http_1_0_gets_a_plain_stream(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    const int fd = send_post(&rig, CHAT, "1.0", "",
                             "{\"messages\": [{\"role\": \"user\", \"content\": \"What color is a "
                             "lemon?\"}], \"stream\": true}");
    http_answer a = http_read(fd);
    assert_int_equal(a.status, 200);
    assert_null(http_header(&a, "Transfer-Encoding"));
    assert_non_null(strstr(a.body.data, "data: [DONE]"));
    http_deinit(&a);
    close(fd);
    serve_stop(&rig);
}

static void a_body_may_wait_for_100_continue(void **state) {
    serve_rig rig;
    qn_buf head = {0};
    (void)state;
    serve_start(&rig, NULL);
    const int fd = serve_connect(&rig);
    qn_buf_printf(&head,
                  "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
                  "Content-Length: %zu\r\n\r\n",
                  strlen(question));
    serve_send(fd, head.data, head.size);
    http_answer go = http_read_one(fd, true);
    assert_int_equal(go.status, 100);
    serve_send(fd, question, strlen(question));
    http_answer a = http_read_one(fd, true);
    assert_int_equal(a.status, 200);
    expect_text(&a, "A lemon is yellow.");
    http_deinit(&go);
    http_deinit(&a);
    qn_buf_deinit(&head);
    close(fd);
    serve_stop(&rig);
}

static void a_connection_survives_errors(void **state) {
    serve_rig rig;
    qn_buf requests = {0};
    static const char *const bodies[] = {"{", "[]", "{}", ""};
    (void)state;
    serve_start(&rig, NULL);
    const int fd = serve_connect(&rig);
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        qn_buf_clear(&requests);
        put_post(&requests, CHAT, "1.1", "", bodies[i]);
        serve_send(fd, requests.data, requests.size);
        http_answer a = http_read_one(fd, true);
        assert_int_equal(a.status, 400);
        json_t *value = http_json(&a);
        assert_string_equal(text_at(value, "error.type"), "invalid_request_error");
        json_decref(value);
        http_deinit(&a);
    }
    qn_buf_clear(&requests);
    put_post(&requests, CHAT, "1.1", "", question);
    serve_send(fd, requests.data, requests.size);
    http_answer a = http_read_one(fd, true);
    expect_text(&a, "A lemon is yellow.");
    http_deinit(&a);
    qn_buf_deinit(&requests);
    close(fd);
    serve_stop(&rig);
}

// Requests that come before the answers to earlier ones are answered in their order.
static void pipelined_requests_are_answered_in_order(void **state) {
    serve_rig rig;
    qn_buf requests = {0};
    (void)state;
    serve_start(&rig, NULL);
    put_post(&requests, CHAT, "1.1", "", question);
    qn_buf_text(&requests, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    put_post(&requests, "/nothing", "1.1", "", "{}");
    put_post(&requests, CHAT, "1.1", "", question);
    const int fd = serve_connect(&rig);
    serve_send(fd, requests.data, requests.size);
    static const int want[] = {200, 200, 404, 200};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        http_answer a = http_read_one(fd, true);
        assert_int_equal(a.status, want[i]);
        if (i == 0 || i == 3) expect_text(&a, "A lemon is yellow.");
        http_deinit(&a);
    }
    qn_buf_deinit(&requests);
    close(fd);
    serve_stop(&rig);
}

// --- limits --------------------------------------------------------------------------------------

static void expect_problem(int fd, int status, const char *type, const char *part) {
    http_answer a = http_read(fd);
    assert_int_equal(a.status, status);
    json_t *value = http_json(&a);
    assert_string_equal(text_at(value, "error.type"), type);
    assert_says(value, part);
    json_decref(value);
    http_deinit(&a);
    close(fd);
}

static void long_bodies_are_refused(void **state) {
    const qn_server_opts opts = {.limits = {.body = 1000}};
    serve_rig rig;
    qn_buf body = {0};
    (void)state;
    serve_start(&rig, &opts);
    int fd = serve_connect(&rig);
    static const char huge[] = "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\n"
                               "Content-Length: 99999999999999999999999\r\n\r\n";
    serve_send(fd, huge, sizeof huge - 1);
    http_answer a = http_read(fd); // of the HTTP library: the number is none
    assert_true(a.status == 400 || a.status == 413);
    http_deinit(&a);
    close(fd);
    for (int i = 0; i < 1001; i++) qn_buf_add(&body, " ", 1);
    expect_problem(send_post(&rig, CHAT, "1.1", "Connection: close\r\n", body.data), 413,
                   "invalid_request_error", "1001 bytes, at most 1000");
    static const char chunked[] = "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nConnection: close"
                                  "\r\nTransfer-Encoding: chunked\r\n\r\n3E9\r\n";
    fd = serve_connect(&rig);
    serve_send(fd, chunked, sizeof chunked - 1);
    serve_send(fd, body.data, body.size);
    serve_send(fd, "\r\n0\r\n\r\n", 7);
    expect_problem(fd, 413, "invalid_request_error", "more than the 1000 bytes");
    qn_buf_deinit(&body);
    serve_stop(&rig);
}

static int64_t count_held(const serve_rig *rig) {
    return (int64_t)atomic_load(&rig->server->n_held);
}

// The bodies of all requests together have a limit, too: a busy server says so.
static void bodies_of_many_requests_are_limited(void **state) {
    const qn_server_opts opts = {.limits = {.held = 50}};
    serve_rig rig;
    (void)state;
    serve_start(&rig, &opts);
    expect_problem(send_post(&rig, CHAT, "1.1", "Connection: close\r\n", question), 503,
                   "unavailable_error", "50 bytes");
    http_answer a = http_post(&rig, CHAT, "{}");
    assert_int_equal(a.status, 400);
    http_deinit(&a);
    serve_stop(&rig);
    const qn_server_opts enough = {.limits = {.held = sizeof question}};
    serve_start(&rig, &enough);
    for (int i = 0; i < 3; i++) {
        json_decref(post_json(&rig, CHAT, question, 200));
        serve_wait(&rig, count_held, 0);
    }
    serve_stop(&rig);
}

static void two_lengths_are_refused(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    const int fd = serve_connect(&rig);
    static const char both[] = "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"
                               "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    serve_send(fd, both, sizeof both - 1);
    expect_problem(fd, 400, "invalid_request_error", "both Content-Length and Transfer-Encoding");
    serve_stop(&rig);
}

static void headers_that_decide_come_once(void **state) {
    static const char lengths[] =
        "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
        "Content-Length: 9\r\nConnection: close\r\n\r\n{}";
    static const char hosts[] = "GET /health HTTP/1.1\r\nHost: localhost\r\nHost: a.example\r\n"
                                "Connection: close\r\n\r\n";
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    int fd = serve_connect(&rig);
    serve_send(fd, lengths, sizeof lengths - 1);
    expect_problem(fd, 400, "invalid_request_error", "2 headers Content-Length");
    fd = serve_connect(&rig);
    serve_send(fd, hosts, sizeof hosts - 1);
    expect_problem(fd, 400, "invalid_request_error", "2 headers Host");
    serve_stop(&rig);
}

// A base address with a slash too many is the commonest mistake; errors are those of the dialect.
static void paths_are_found_and_refused_in_their_dialect(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    http_answer a = http_get(&rig, "//v1//models/");
    assert_int_equal(a.status, 200);
    http_deinit(&a);
    a = http_get(&rig, "/v1/models/quern-mini-Q8_0:latest");
    assert_int_equal(a.status, 200);
    http_deinit(&a);
    a = http_get(&rig, "/v1/models/other");
    assert_int_equal(a.status, 404);
    http_deinit(&a);
    a = http_get(&rig, "/v1/messages");
    assert_int_equal(a.status, 405);
    assert_true(strncmp(http_header(&a, "Allow"), "POST\r", 5) == 0);
    json_t *value = http_json(&a);
    assert_string_equal(text_at(value, "type"), "error");
    json_decref(value);
    http_deinit(&a);
    a = http_get(&rig, "/api/nothing");
    assert_int_equal(a.status, 404);
    value = http_json(&a);
    assert_true(json_is_string(json_at(value, "error")));
    json_decref(value);
    http_deinit(&a);
    serve_stop(&rig);
}

static void expect_end(int fd) {
    char byte;
    assert_true(recv(fd, &byte, 1, 0) <= 0);
    close(fd);
}

static void idle_connections_and_slow_requests_end(void **state) {
    const qn_server_opts opts = {.limits = {.idle_ms = 1}};
    static const char half_head[] = "POST " CHAT " HTTP/1.1\r\nHost: local";
    static const char half_body[] =
        "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{\"mess";
    static const char refused[] =
        "POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{\"mess";
    serve_rig rig;
    (void)state;
    serve_start(&rig, &opts);
    const int idle = serve_connect(&rig), head = serve_connect(&rig), body = serve_connect(&rig),
              no = serve_connect(&rig);
    serve_send(head, half_head, sizeof half_head - 1);
    serve_send(body, half_body, sizeof half_body - 1);
    serve_send(no, refused, sizeof refused - 1);
    expect_end(idle);
    expect_end(head);
    expect_end(body);
    expect_end(no);
    serve_wait(&rig, serve_links, 0);
    serve_stop(&rig);
}

// --- clients that go away ------------------------------------------------------------------------

static int64_t count_rows(const serve_rig *rig) { return serve_rows(rig) > 0; }

static int64_t count_cancelled(const serve_rig *rig) {
    return atomic_load(&rig->server->registry.own->metrics.cancelled);
}

// Whoever hangs up is out of the batch, with or without a stream, and so is who ends his side.
static void a_client_that_goes_away_is_out_of_the_batch(void **state) {
    static const char whole[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Tell me a story.\"}], \"ignore_eos\": "
        "true, \"n\": 3}";
    const char *const bodies[] = {endless, whole, endless, whole};
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        const int fd = send_post(&rig, CHAT, "1.1", "", bodies[i]);
        serve_wait(&rig, count_rows, 1);
        if (i < 2)
            close(fd);
        else
            shutdown(fd, SHUT_WR);
        serve_wait(&rig, serve_rows, 0);
        serve_wait(&rig, serve_jobs, 0);
        serve_wait(&rig, count_cancelled, (int64_t)i + 1);
        if (i >= 2) close(fd);
    }
    serve_wait(&rig, serve_links, 0);
    json_decref(post_json(&rig, CHAT, question, 200));
    serve_stop(&rig);
}

// A prompt of many steps: the client hangs up while it is read, and the rest is not read.
static void a_prompt_is_not_read_for_nobody(void **state) {
    const qn_server_opts opts = {.chunk = 1};
    qn_buf body = {0};
    serve_rig rig;
    qn_batch_counts counts = QN_INIT(qn_batch_counts);
    (void)state;
    serve_start(&rig, &opts);
    qn_buf_text(&body, "{\"messages\": [{\"role\": \"user\", \"content\": \"");
    for (int i = 0; i < 300; i++) qn_buf_printf(&body, "%d ", i * 7919 % 1000);
    qn_buf_text(&body, "\"}], \"max_tokens\": 1}");
    const int fd = send_post(&rig, CHAT, "1.1", "", body.data);
    serve_wait(&rig, count_rows, 1);
    close(fd);
    serve_wait(&rig, serve_jobs, 0);
    (void)qn_registry_counts(&rig.server->registry, &counts);
    const int64_t gone = counts.tokens;
    json_t *a = post_json(&rig, CHAT, body.data, 200); // by somebody who waits
    const json_int_t n = json_integer_value(json_at(a, "usage.prompt_tokens"));
    assert_true(gone < n);
    json_decref(a);
    qn_buf_deinit(&body);
    serve_stop(&rig);
}

static int64_t count_requests(const serve_rig *rig) {
    return atomic_load(&rig->server->registry.own->metrics.requests);
}

// Who does not read has bytes kept for him up to the limit, and is dropped then; others do not
// notice.
static void slow_readers_are_dropped(void **state) {
    const qn_server_opts opts = {.limits = {.unsent = 4096}};
    serve_rig rig;
    (void)state;
    serve_start(&rig, &opts);
    const int small = 2048, fd = serve_connect(&rig);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
    qn_buf request = {0};
    put_post(&request, CHAT, "1.1", "Connection: close\r\n", endless);
    serve_send(fd, request.data, request.size);
    qn_buf_deinit(&request);
    serve_wait(&rig, count_requests, 1); // its row may be gone already
    serve_wait(&rig, serve_jobs, 0);
    http_answer a = http_read(fd);
    assert_false(a.is_whole);
    http_deinit(&a);
    close(fd);
    json_decref(post_json(&rig, CHAT, question, 200));
    serve_wait(&rig, serve_links, 0);
    serve_stop(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(head_has_no_body),
        cmocka_unit_test(the_page_is_compressed_if_that_is_taken),
        cmocka_unit_test(http_1_0_gets_a_plain_stream),
        cmocka_unit_test(a_body_may_wait_for_100_continue),
        cmocka_unit_test(a_connection_survives_errors),
        cmocka_unit_test(pipelined_requests_are_answered_in_order),
        cmocka_unit_test(long_bodies_are_refused),
        cmocka_unit_test(bodies_of_many_requests_are_limited),
        cmocka_unit_test(two_lengths_are_refused),
        cmocka_unit_test(headers_that_decide_come_once),
        cmocka_unit_test(paths_are_found_and_refused_in_their_dialect),
        cmocka_unit_test(idle_connections_and_slow_requests_end),
        cmocka_unit_test(a_client_that_goes_away_is_out_of_the_batch),
        cmocka_unit_test(a_prompt_is_not_read_for_nobody),
        cmocka_unit_test(slow_readers_are_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
