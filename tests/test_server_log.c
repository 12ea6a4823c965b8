// The log: which request a line is about, what it took and why it failed, and that prompts are in
// it only if that was asked for.
#include "serve_rig.h"

#include <math.h>

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

// --- what a line tells ---------------------------------------------------------------------------

static void answers_are_counted(void **state) {
    const qn_server_opts opts = {.log_json = true};
    (void)state;
    json_t *lines = log_of(&opts, "/v1/chat/completions", "",
                           "{\"messages\": [{\"role\": \"user\", \"content\": \"What color is a "
                           "lemon?\"}], \"temperature\": 0}",
                           200);
    const json_t *line = line_with(lines, "path");
    assert_non_null(line);
    assert_string_equal(text_at(line, "level"), "info");
    assert_string_equal(text_at(line, "model"), "quern-mini-Q8_0");
    assert_int_equal(json_integer_value(json_at(line, "answer_tokens")), 5);
    assert_true(json_integer_value(json_at(line, "prompt_tokens")) > 5);
    const double tenths = 10 * json_real_value(json_at(line, "ms"));
    assert_true(tenths > 0 && fabs(tenths - round(tenths)) < 1e-6);
    assert_null(json_at(line, "reason"));
    json_decref(lines);
    lines = log_of(&opts, "/v1/embeddings", "", "{\"input\": \"a cat\"}", 200);
    line = line_with(lines, "path");
    assert_true(json_integer_value(json_at(line, "prompt_tokens")) > 0);
    assert_int_equal(json_integer_value(json_at(line, "answer_tokens")), 0);
    json_decref(lines);
}

static void refusals_have_their_reason(void **state) {
    static const struct {
        const char *path, *body, *reason;
        int status;
        const char *level;
    } rows[] = {
        {"/v1/completions", "{\"prompt\": \"a\", \"temperature\": -1}",
         "'temperature' is -1, want 0 to 100", 400, "warning"},
        {"/v1/chat/completions", "{", "the request's body: not valid JSON at line 1", 400,
         "warning"},
        {"/api/chat", "{\"messages\": 7}", "'messages' is of type integer", 400, "warning"},
        {"/nowhere", "{}", "there is no /nowhere here", 404, "warning"},
        {"/infill", "{}", "not supported", 501, "warning"},
    };
    const qn_server_opts opts = {.log_json = true};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *lines = log_of(&opts, rows[i].path, "", rows[i].body, rows[i].status);
        const json_t *line = line_with(lines, "path");
        assert_non_null(line);
        assert_string_equal(text_at(line, "level"), rows[i].level);
        if (!strstr(text_at(line, "reason"), rows[i].reason))
            fail_msg("%s: '%s', want '%s'", rows[i].path, text_at(line, "reason"), rows[i].reason);
        json_decref(lines);
    }
}

// A template may quote all of a message: the log has its beginning at most.
static void quotes_are_cut(void **state) {
    char path[128];
    qn_buf body = {0};
    (void)state;
    snprintf(path, sizeof path, "/tmp/quern-quote-%ld.jinja", (long)getpid());
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs("{{ raise_exception(messages[0].content) }}", f) >= 0);
    assert_int_equal(fclose(f), 0);
    qn_buf_text(&body, "{\"messages\": [{\"role\": \"user\", \"content\": \"");
    for (int i = 0; i < 150; i++) qn_buf_text(&body, "\xc3\xa4");
    qn_buf_text(&body, "secret\"}]}");
    const qn_server_opts opts = {.log_json = true, .template = path};
    json_t *lines = log_of(&opts, "/v1/chat/completions", "", body.data, 400);
    const char *reason = text_at(line_with(lines, "path"), "reason");
    assert_true(strlen(reason) < QN_MAX_REASON && strlen(reason) >= QN_MAX_REASON - 5);
    assert_string_equal(reason + strlen(reason) - 3, "...");
    assert_null(strstr(reason, "secret"));
    assert_null(strstr(reason, "\xef\xbf\xbd")); // no half character
    json_decref(lines);
    qn_buf_deinit(&body);
    unlink(path);
}

// A line of the text format, of an answer with that status and reason.
static qn_buf text_line(bool is_quiet, int status, const char *reason) {
    static qn_server nothing;
    qn_logger logger;
    qn_exchange *ex = NULL;
    qn_err err;
    ASSERT_OK(qn_logger_init(&logger, &(qn_server_opts){.quiet = is_quiet}, &err));
    ASSERT_OK(qn_exchange_create(&ex, &nothing, &err));
    strcpy(ex->method, "POST");
    strcpy(ex->id, "req_1");
    ex->path = strdup("/v1/x");
    ex->status = status;
    qn_exchange_tell_model(ex, "mini");
    qn_exchange_tell_reason(ex, reason);
    atomic_store(&ex->n_prompt, 17);
    const capture c = begin_capture();
    qn_logger_exchange(&logger, ex);
    qn_buf text = end_capture_text(&c);
    qn_exchange_leave(ex);
    qn_logger_deinit(&logger);
    return text;
}

static void lines_of_text_are_one_line(void **state) {
    (void)state;
    qn_buf text = text_line(false, 400, "a\nb \x1b[31m \xff \xe2\x80\xae \xc3\xa4");
    assert_non_null(strstr(text.data, " ms, mini, 17 + 0 tokens, 0 bytes [req_1]: a\\nb \\x1b[31m "
                                      "\\xff \\u202e \xc3\xa4\n"));
    assert_int_equal(strncmp(text.data, "POST /v1/x 400 ", 15), 0);
    qn_buf_deinit(&text);
    text = text_line(true, 400, "theirs");
    assert_int_equal(text.size, 0);
    text = text_line(true, 503, "ours");
    assert_non_null(strstr(text.data, "[req_1]: ours\n"));
    qn_buf_deinit(&text);
    text = text_line(true, 200, "a stream that failed");
    assert_true(text.size > 0);
    qn_buf_deinit(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_ids_are_told),
        cmocka_unit_test(prompts_are_logged_when_asked_for),
        cmocka_unit_test(long_prompts_are_cut),
        cmocka_unit_test(answers_are_counted),
        cmocka_unit_test(refusals_have_their_reason),
        cmocka_unit_test(quotes_are_cut),
        cmocka_unit_test(lines_of_text_are_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
