// What one request may take of the server: rows of the batch, places in the queue, memory for
// log-probabilities; and answers that end before they are whole.
#include "serve_rig.h"

#include "core/mem.h"
#include "server/job.h"

#define CHAT "/v1/chat/completions"
#define TEXT "/v1/completions"

// --- requests that go on meanwhile ---------------------------------------------------------------

typedef struct other {
    const serve_rig *rig;
    const char *path, *body;
    http_answer answer;
    pthread_t thread;
} other;

static void *ask(void *arg) {
    other *o = arg;
    o->answer = http_post(o->rig, o->path, o->body);
    return NULL;
}

static void start_other(other *o, const serve_rig *rig, const char *path, const char *body) {
    *o = (other){.rig = rig, .path = path, .body = body};
    assert_true(qn_thread_start(&o->thread, ask, o));
}

// Its JSON, to be released; it must have been answered with this status.
static json_t *end_other(other *o, int status) {
    pthread_join(o->thread, NULL);
    assert_int_equal(o->answer.status, status);
    json_t *value = http_json(&o->answer);
    http_deinit(&o->answer);
    return value;
}

static int64_t n_requests(const serve_rig *rig) {
    return atomic_load(&rig->server->registry.own->metrics.requests);
}

// Requests whose time in the queue is known.
static int64_t n_out_of_queue(const serve_rig *rig) {
    int64_t n = 0;
    for (size_t i = 0; i <= QN_MAX_BUCKETS; i++)
        n += atomic_load(&rig->server->registry.own->metrics.queue.counts[i]);
    return n;
}

// --- rows ----------------------------------------------------------------------------------------

enum { N_PROMPTS = 40, N_TOKENS = 24 };

static void put_prompt(qn_buf *to, size_t i) {
    qn_buf_printf(to, "\"Here are %zu small words about the number %zu:\"", i, i * 7);
}

static char *list_body(void) {
    qn_err err;
    qn_buf body = {0};
    char *text;
    qn_buf_text(&body, "{\"prompt\": [");
    for (size_t i = 0; i < N_PROMPTS; i++) {
        if (i) qn_buf_text(&body, ", ");
        put_prompt(&body, i);
    }
    qn_buf_printf(&body, "], \"temperature\": 0, \"ignore_eos\": true, \"max_tokens\": %d}",
                  N_TOKENS);
    ASSERT_OK(qn_buf_take(&text, &body, &err));
    return text;
}

static void assert_alone(const serve_rig *rig, const json_t *list, size_t i) {
    qn_buf body = {0};
    char path[32];
    qn_buf_text(&body, "{\"prompt\": ");
    put_prompt(&body, i);
    qn_buf_printf(&body, ", \"temperature\": 0, \"ignore_eos\": true, \"max_tokens\": %d}",
                  N_TOKENS);
    json_t *alone = post_json(rig, TEXT, body.data, 200);
    snprintf(path, sizeof path, "choices.%zu", i);
    const json_t *choice = json_at(list, path);
    assert_int_equal(json_integer_value(json_at(choice, "index")), i);
    assert_string_equal(text_at(choice, "text"), text_at(alone, "choices.0.text"));
    json_decref(alone);
    qn_buf_deinit(&body);
}

// A list of prompts has few rows in the batch at a time, is one request of the queue, and others
// are answered before its end.
static void a_list_of_prompts_leaves_room(void **state) {
    const qn_server_opts opts = {.parallel = 2, .queue = 1, .no_prefix_cache = true};
    static const char question[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"What color "
                                   "is a lemon?\"}], \"temperature\": 0, \"max_tokens\": 8}";
    char *body = list_body();
    other list;
    serve_rig rig;
    (void)state;
    serve_start(&rig, &opts);
    start_other(&list, &rig, TEXT, body);
    serve_wait(&rig, n_out_of_queue, 1);
    assert_true(serve_rows(&rig) <= 2);
    json_t *answer = post_json(&rig, CHAT, question, 200);
    assert_int_equal(atomic_load(&rig.server->registry.own->metrics.answered),
                     1);             // the list is not at its end
    serve_wait(&rig, serve_jobs, 1); // the row of the answer is out
    assert_true(serve_rows(&rig) <= 2);
    json_decref(answer);
    answer = end_other(&list, 200);
    assert_int_equal(json_array_size(json_at(answer, "choices")), N_PROMPTS);
    for (size_t i = 0; i < N_PROMPTS; i += 13) assert_alone(&rig, answer, i);
    json_decref(answer);
    serve_wait(&rig, serve_jobs, 0);
    serve_stop(&rig);
    free(body);
}

// A client that goes away takes the prompts with it that have not begun.
static void a_list_of_prompts_ends_with_its_client(void **state) {
    const qn_server_opts opts = {.parallel = 2};
    char *body = list_body();
    qn_buf request = {0};
    serve_rig rig;
    (void)state;
    serve_start(&rig, &opts);
    const int fd = serve_connect(&rig);
    qn_buf_printf(&request,
                  "POST " TEXT " HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s",
                  strlen(body), body);
    serve_send(fd, request.data, request.size);
    serve_wait(&rig, n_out_of_queue, 1);
    close(fd);
    serve_wait(&rig, serve_jobs, 0);
    assert_int_equal(serve_rows(&rig), 0);
    assert_int_equal(atomic_load(&rig.server->registry.own->metrics.cancelled), 1);
    serve_stop(&rig);
    qn_buf_deinit(&request);
    free(body);
}

// --- waiting -------------------------------------------------------------------------------------

static const char long_body[] = "{\"prompt\": \"Once upon a time\", \"n\": 8, \"temperature\": 1, "
                                "\"ignore_eos\": true, \"max_tokens\": 200}";

// Time in the queue ends when a prompt begins to be read, not when it is added.
static void queueing_is_what_is_measured(void **state) {
    const qn_server_opts opts = {.parallel = 1};
    other first, second;
    serve_rig rig;
    (void)state;
    serve_start(&rig, &opts);
    start_other(&first, &rig, TEXT, long_body);
    serve_wait(&rig, n_out_of_queue, 1);
    start_other(&second, &rig, TEXT, "{\"prompt\": \"a\", \"max_tokens\": 1}");
    serve_wait(&rig, n_requests, 2);
    assert_int_equal(n_out_of_queue(&rig), 1);
    json_decref(end_other(&first, 200));
    json_decref(end_other(&second, 200));
    assert_int_equal(n_out_of_queue(&rig), 2);
    serve_stop(&rig);
}

// A time that is over in the queue is no answer, whole or as a stream.
static void no_token_in_time_is_an_error(void **state) {
    const qn_server_opts opts = {.parallel = 1};
    other first;
    serve_rig rig;
    (void)state;
    serve_start(&rig, &opts);
    start_other(&first, &rig, TEXT, long_body);
    serve_wait(&rig, n_out_of_queue, 1);
    http_answer a = http_post(&rig, TEXT, "{\"prompt\": \"a\", \"timeout_ms\": 1}");
    assert_int_equal(a.status, 503);
    assert_non_null(http_header(&a, "Retry-After"));
    assert_non_null(strstr(a.body.data, "before its first token"));
    http_deinit(&a);
    a = http_post(&rig, TEXT, "{\"prompt\": \"a\", \"timeout_ms\": 1, \"stream\": true}");
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body.data, "before its first token"));
    assert_null(strstr(a.body.data, "\"finish_reason\":\"length\""));
    http_deinit(&a);
    json_decref(end_other(&first, 200));
    serve_stop(&rig);
}

// --- log-probabilities ---------------------------------------------------------------------------

static void assert_refused(const serve_rig *rig, const char *path, const char *body,
                           const char *what, const char *limit) {
    json_t *a = post_json(rig, path, body, 400);
    const char *message = text_at(a, "error.message");
    if (!strstr(message, what) || !strstr(message, limit))
        fail_msg("'%s' says nothing of %s and %s", message, what, limit);
    json_decref(a);
}

#define HELLO "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}], \"logprobs\": true, "

static void log_probabilities_are_bounded(void **state) {
    const qn_server_opts opts = {.context = 320};
    serve_rig rig;
    (void)state;
    serve_start(&rig, &opts);
    assert_refused(&rig, CHAT, HELLO "\"top_logprobs\": 21}", "21", "20");
    assert_refused(&rig, CHAT, HELLO "\"top_logprobs\": 20, \"n\": 128, \"max_tokens\": 256}",
                   "688128", "524288");
    // A stream forgets what it has told.
    http_answer a = http_post(
        &rig, CHAT,
        HELLO "\"top_logprobs\": 20, \"n\": 128, \"max_tokens\": 256, \"stop\": [\" \", \".\"], "
              "\"stream\": true}");
    assert_int_equal(a.status, 200);
    assert_null(strstr(a.body.data, "\"error\""));
    http_deinit(&a);
    // Nobody said how long the answers may be: 8 of about 300 tokens, each with 257.
    assert_refused(&rig, "/completion",
                   "{\"prompt\": [\"a\", \"b\", \"c\", \"d\", \"e\", \"f\", \"g\", \"h\"], "
                   "\"ignore_eos\": true, \"n_probs\": 256}",
                   "524537", "524288");
    serve_wait(&rig, serve_jobs, 0);
    serve_stop(&rig);
}

// Entries that were told are dropped by streams, and kept by answers in one piece.
static void streams_drop_what_they_told(void **state) {
    static const qn_dialect plain = {0}, keeping = {.keeps_entries = true};
    (void)state;
    for (int i = 0; i < 3; i++) {
        qn_token_logprob entries[6] = {{1, -1}, {1, -1}, {2, -2}, {3, -1}, {3, -1}, {4, -2}};
        qn_job job = {.is_stream = i > 0, .dialect = i == 2 ? &keeping : &plain, .n_kept = 6};
        qn_choice c = {.job = &job, .entries = entries, .n_entries = 2};
        job.ask.n_top = 2;
        assert_true(qn_choice_has_untold(&c));
        assert_int_equal(qn_choice_entry(&c, 1)->token, 3);
        qn_choice_tell(&c);
        assert_false(qn_choice_has_untold(&c));
        assert_int_equal(job.n_kept, i == 1 ? 0 : 6);
        assert_int_equal(c.n_dropped, i == 1 ? 2 : 0);
    }
}

// --- calls ---------------------------------------------------------------------------------------

#define LIGHT                                                                                      \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"Turn on the light in the bedroom.\"}], "  \
    "\"temperature\": 0, \"tools\": [{\"type\": \"function\", \"function\": {\"name\": "           \
    "\"light\", \"description\": \"Turn a light on or off\", \"parameters\": {\"type\": "          \
    "\"object\", \"properties\": {\"room\": {\"type\": \"string\"}, \"power\": {\"type\": "        \
    "\"string\"}}, \"required\": [\"room\", \"power\"]}}}]"

// A stop string in the arguments of a call ends the answer, and there is no call to make.
static void a_call_that_is_cut_is_no_call(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    json_t *a = post_json(&rig, CHAT, LIGHT "}", 200);
    assert_string_equal(text_at(a, "choices.0.finish_reason"), "tool_calls");
    json_decref(a);
    a = post_json(&rig, CHAT, LIGHT ", \"stop\": \"bedroom\"}", 200);
    assert_string_equal(text_at(a, "choices.0.finish_reason"), "stop");
    assert_null(json_at(a, "choices.0.message.tool_calls"));
    json_decref(a);
    http_answer stream = http_post(&rig, CHAT, LIGHT ", \"stop\": \"bedroom\", \"stream\": true}");
    assert_non_null(strstr(stream.body.data, "\"tool_calls\":[")); // it was told as it came
    assert_non_null(strstr(stream.body.data, "\"finish_reason\":\"stop\""));
    assert_null(strstr(stream.body.data, "\"finish_reason\":\"tool_calls\""));
    http_deinit(&stream);
    serve_stop(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_of_prompts_leaves_room),
        cmocka_unit_test(a_list_of_prompts_ends_with_its_client),
        cmocka_unit_test(queueing_is_what_is_measured),
        cmocka_unit_test(no_token_in_time_is_an_error),
        cmocka_unit_test(log_probabilities_are_bounded),
        cmocka_unit_test(streams_drop_what_they_told),
        cmocka_unit_test(a_call_that_is_cut_is_no_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
