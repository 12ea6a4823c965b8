// The log: which request a line is about, and that prompts are in it only if that was asked for.
#include "serve_rig.h"

// stderr goes into a file meanwhile.
typedef struct capture {
    int before, fd;
} capture;

static capture begin_capture(void) {
    char path[] = "/tmp/quern_log_XXXXXX";
    capture c = {.before = dup(STDERR_FILENO), .fd = mkstemp(path)};
    assert_true(c.before >= 0 && c.fd >= 0);
    unlink(path);
    assert_int_equal(dup2(c.fd, STDERR_FILENO), STDERR_FILENO);
    return c;
}

// The lines, as values; to be released.
static json_t *end_capture(const capture *c) {
    json_t *lines = json_array();
    qn_buf text = {0};
    char block[4096];
    assert_int_equal(dup2(c->before, STDERR_FILENO), STDERR_FILENO);
    assert_int_equal(lseek(c->fd, 0, SEEK_SET), 0);
    for (ssize_t n; (n = read(c->fd, block, sizeof block)) > 0;)
        qn_buf_add(&text, block, (size_t)n);
    close(c->before);
    close(c->fd);
    for (char *at = text.data, *end; at && (end = strchr(at, '\n')); at = end + 1) {
        qn_err err;
        json_t *line = NULL;
        ASSERT_OK(qn_json_parse(&line, at, (size_t)(end - at), false, "a line of the log", &err));
        json_array_append_new(lines, line);
    }
    qn_buf_deinit(&text);
    return lines;
}

// The log of one request with that body.
static json_t *log_of(const qn_server_opts *opts, const char *path, const char *headers,
                      const char *body, int status) {
    serve_rig rig;
    const capture c = begin_capture();
    serve_start(&rig, opts);
    http_answer a = http_with(&rig, "POST", path, headers, body);
    serve_stop(&rig); // a line is written when the request has ended
    json_t *lines = end_capture(&c);
    assert_int_equal(a.status, status);
    http_deinit(&a);
    return lines;
}

// The line that has this member; NULL: none has.
static const json_t *line_with(const json_t *lines, const char *member) {
    for (size_t i = 0; i < json_array_size(lines); i++) {
        if (json_object_get(json_array_get(lines, i), member)) return json_array_get(lines, i);
    }
    return NULL;
}

static const char question[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"a\\nsecret\"}], "
    "\"max_tokens\": 1}";

static void both_ids_are_told(void **state) {
    const qn_server_opts opts = {.log_json = true};
    (void)state;
    json_t *lines =
        log_of(&opts, "/v1/chat/completions", "X-Request-Id: mine-7\r\n", question, 200);
    const json_t *line = line_with(lines, "path");
    assert_non_null(line);
    assert_string_equal(text_at(line, "client_request"), "mine-7");
    assert_int_equal(strncmp(text_at(line, "request"), "req_", 4), 0);
    json_decref(lines);
    lines = log_of(&opts, "/v1/chat/completions", "", question, 200);
    line = line_with(lines, "path");
    assert_non_null(line);
    assert_null(json_at(line, "client_request"));
    json_decref(lines);
}

static void prompts_are_logged_when_asked_for(void **state) {
    const qn_server_opts silent = {.log_json = true},
                         open = {.log_json = true, .log_prompts = true};
    (void)state;
    json_t *lines = log_of(&silent, "/v1/chat/completions", "", question, 200);
    char *text = json_dumps(lines, 0);
    assert_null(strstr(text, "secret"));
    free(text);
    json_decref(lines);
    lines = log_of(&open, "/v1/chat/completions", "X-Request-Id: mine-7\r\n", question, 200);
    const json_t *line = line_with(lines, "prompt");
    assert_non_null(line);
    assert_string_equal(text_at(line, "prompt"),
                        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\\nsecret\"}]}");
    assert_string_equal(text_at(line, "client_request"), "mine-7");
    assert_string_equal(text_at(line, "level"), "info");
    json_decref(lines);
    // What is refused is looked for, too.
    lines =
        log_of(&open, "/completion", "", "{\"prompt\": [1, \"x\"], \"temperature\": \"hot\"}", 400);
    line = line_with(lines, "prompt");
    assert_non_null(line);
    assert_string_equal(text_at(line, "prompt"), "{\"prompt\":[1,\"x\"]}");
    json_decref(lines);
}

static void long_prompts_are_cut(void **state) {
    enum { SHOWN = 16 << 10, N = 30000 };
    const qn_server_opts open = {.log_json = true, .log_prompts = true};
    qn_buf body = {0};
    (void)state;
    qn_buf_text(&body, "{\"content\": \"");
    for (int i = 0; i < N; i++) qn_buf_text(&body, "\xc3\xa4"); // a character of two bytes
    qn_buf_text(&body, "\"}");
    json_t *lines = log_of(&open, "/tokenize", "", body.data, 200);
    const json_t *line = line_with(lines, "prompt");
    assert_non_null(line);
    const size_t size = json_string_length(json_at(line, "prompt"));
    assert_true(size <= SHOWN && size > SHOWN - 4);
    assert_null(strstr(text_at(line, "prompt"), "\xef\xbf\xbd")); // no half character
    assert_int_equal(json_integer_value(json_at(line, "prompt_bytes")), 2 * N + 14);
    json_decref(lines);
    qn_buf_deinit(&body);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_ids_are_told),
        cmocka_unit_test(prompts_are_logged_when_asked_for),
        cmocka_unit_test(long_prompts_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
