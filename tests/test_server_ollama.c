// Ollama's routes: answers in lines and as a whole, options, formats, models, embeddings, refusals.
#include "serve_rig.h"

#include <math.h>

#define LEMON "\"messages\": [{\"role\": \"user\", \"content\": \"What color is a lemon?\"}]"

// The lines of an answer as a list, to be released.
static json_t *lines_of(const http_answer *a) {
    json_t *list = json_array();
    for (const char *at = a->body.data, *end; at && *at; at = end + 1) {
        qn_err err;
        json_t *line = NULL;
        const qn_json_opts opts = {.what = "a line"};
        end = strchr(at, '\n');
        assert_non_null(end);
        ASSERT_OK(qn_json_parse_as(&line, at, (size_t)(end - at), &opts, &err));
        json_array_append_new(list, line);
    }
    return list;
}

static json_t *post_lines(const serve_rig *rig, const char *path, const char *body) {
    http_answer a = http_post(rig, path, body);
    assert_int_equal(a.status, 200);
    assert_true(a.is_whole);
    assert_memory_equal(http_header(&a, "Content-Type"), "application/x-ndjson", 20);
    json_t *lines = lines_of(&a);
    http_deinit(&a);
    return lines;
}

static const json_t *last_of(const json_t *lines) {
    return json_array_get(lines, json_array_size(lines) - 1);
}

static int64_t int_at(const json_t *value, const char *path) {
    if (!json_is_integer(json_at(value, path))) fail_msg("there is no number at %s", path);
    return json_integer_value(json_at(value, path));
}

// The texts at `path` of all lines, one after the other; every line but the last must not be done.
static void assert_text(const json_t *lines, const char *path, const char *want) {
    qn_buf text = {0};
    const size_t n = json_array_size(lines);
    for (size_t i = 0; i < n; i++) {
        const json_t *line = json_array_get(lines, i);
        assert_int_equal(json_is_true(json_object_get(line, "done")), i == n - 1);
        qn_buf_text(&text, text_at(line, path));
    }
    assert_string_equal(text.data ? text.data : "", want);
    qn_buf_deinit(&text);
}

static void assert_end(const json_t *line, const char *reason) {
    static const char *const times[] = {"total_duration", "load_duration", "prompt_eval_duration",
                                        "eval_duration"};
    assert_true(json_is_true(json_object_get(line, "done")));
    assert_string_equal(text_at(line, "done_reason"), reason);
    int64_t sum = 0;
    for (size_t i = 0; i < 4; i++) {
        assert_true(int_at(line, times[i]) >= 0);
        sum += i ? int_at(line, times[i]) : 0;
    }
    assert_true(sum <= int_at(line, "total_duration"));
    assert_true(int_at(line, "prompt_eval_count") > 0);
    // 2026-01-02T03:04:05.123456789Z
    const char *at = text_at(line, "created_at");
    assert_int_equal(strlen(at), 30);
    assert_true(at[10] == 'T' && at[19] == '.' && at[29] == 'Z');
}

static void assert_refused(const serve_rig *rig, const char *path, const char *body, int status,
                           const char *part) {
    json_t *a = post_json(rig, path, body, status);
    if (!strstr(text_at(a, "error"), part))
        fail_msg("'%s' does not contain '%s'", text_at(a, "error"), part);
    json_decref(a);
}

// --- answers -------------------------------------------------------------------------------------

static void a_chat_is_answered_in_lines(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    json_t *lines = post_lines(&rig, "/api/chat", "{\"model\": \"m\", " LEMON "}");
    assert_true(json_array_size(lines) > 3);
    assert_text(lines, "message.content", "A lemon is yellow.");
    assert_end(last_of(lines), "stop");
    assert_int_equal(int_at(last_of(lines), "eval_count"), 5);
    assert_string_equal(text_at(last_of(lines), "message.role"), "assistant");
    json_decref(lines);
    json_t *whole = post_json(&rig, "/api/chat", "{\"stream\": false, " LEMON "}", 200);
    assert_string_equal(text_at(whole, "message.content"), "A lemon is yellow.");
    assert_string_equal(text_at(whole, "model"), "quern-mini-Q8_0");
    assert_end(whole, "stop");
    json_decref(whole);
    serve_stop(&rig);
}

static void a_prompt_is_answered_in_lines(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    json_t *lines = post_lines(&rig, "/api/generate",
                               "{\"prompt\": \"What color is a lemon?\", \"context\": []}");
    assert_text(lines, "response", "A lemon is yellow.");
    assert_end(last_of(lines), "stop");
    json_decref(lines);
    serve_stop(&rig);
}

// A system message makes the same prompt as in a chat; raw text is not put into the template.
static void prompts_are_what_they_say(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    json_t *chat = post_json(&rig, "/api/chat",
                             "{\"stream\": false, \"messages\": [{\"role\": \"system\", "
                             "\"content\": \"You are Quern.\"}, {\"role\": \"user\", \"content\": "
                             "\"Hello!\"}], \"options\": {\"seed\": 7}}",
                             200);
    json_t *prompt = post_json(&rig, "/api/generate",
                               "{\"stream\": false, \"system\": \"You are Quern.\", \"prompt\": "
                               "\"Hello!\", \"options\": {\"seed\": 7}}",
                               200);
    assert_string_equal(text_at(chat, "message.content"), text_at(prompt, "response"));
    assert_int_equal(int_at(chat, "prompt_eval_count"), int_at(prompt, "prompt_eval_count"));
    assert_int_equal(int_at(chat, "seed"), 7);
    json_t *raw = post_json(&rig, "/api/generate",
                            "{\"stream\": false, \"raw\": true, \"prompt\": "
                            "\"<|im_start|>system\\nYou are "
                            "Quern.<|im_end|>\\n<|im_start|>user\\nHello!<|im_end|>\\n<|im_start|>"
                            "assistant\\n\", \"options\": {\"seed\": 7}}",
                            200);
    assert_string_equal(text_at(raw, "response"), text_at(prompt, "response"));
    assert_int_equal(int_at(raw, "prompt_eval_count"), int_at(prompt, "prompt_eval_count"));
    json_decref(raw);
    json_decref(chat);
    json_decref(prompt);
    serve_stop(&rig);
}

static void nothing_to_say_opens_the_model(void **state) {
    static const char *const bodies[][2] = {{"/api/generate", "{\"model\": \"m\"}"},
                                            {"/api/generate", "{\"prompt\": \"\"}"},
                                            {"/api/chat", "{\"messages\": []}"},
                                            {"/api/chat", "{}"}};
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    for (size_t i = 0; i < 4; i++) {
        json_t *a = post_json(&rig, bodies[i][0], bodies[i][1], 200);
        assert_true(json_is_true(json_object_get(a, "done")));
        assert_string_equal(text_at(a, "done_reason"), "load");
        assert_string_equal(text_at(a, i < 2 ? "response" : "message.content"), "");
        json_decref(a);
    }
    serve_stop(&rig);
}

// --- options -------------------------------------------------------------------------------------

static void options_count(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    json_t *a = post_json(&rig, "/api/chat",
                          "{\"stream\": false, " LEMON ", \"options\": {\"num_predict\": 2, "
                          "\"temperature\": 0, \"num_gpu\": 99, \"nobody_knows\": 1}}",
                          200);
    assert_string_equal(text_at(a, "message.content"), "A lemon");
    assert_end(a, "length");
    assert_int_equal(int_at(a, "eval_count"), 2);
    json_decref(a);
    a = post_json(&rig, "/api/chat",
                  "{\"stream\": false, " LEMON ", \"options\": {\"stop\": [\" yellow\"]}}", 200);
    assert_string_equal(text_at(a, "message.content"), "A lemon is");
    json_decref(a);
    // Sampling settings are not read outside of options.
    a = post_json(&rig, "/api/chat", "{\"stream\": false, " LEMON ", \"temperature\": -5}", 200);
    json_decref(a);
    serve_stop(&rig);
}

// The prompt has 14 tokens.
static void num_ctx_limits_prompt_and_answer(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    json_t *a = post_json(&rig, "/api/chat",
                          "{\"stream\": false, " LEMON ", \"options\": {\"num_ctx\": 17}}", 200);
    assert_string_equal(text_at(a, "message.content"), "A lemon is");
    assert_end(a, "length");
    json_decref(a);
    assert_refused(&rig, "/api/chat", "{" LEMON ", \"options\": {\"num_ctx\": 14}}", 400,
                   "14 tokens, which exceeds the available context size of 14 tokens");
    a = post_json(&rig, "/api/chat",
                  "{\"stream\": false, " LEMON ", \"options\": {\"num_ctx\": 131072}}", 200);
    assert_string_equal(text_at(a, "message.content"), "A lemon is yellow.");
    json_decref(a);
    serve_stop(&rig);
}

static void answers_have_the_wanted_format(void **state) {
    serve_rig rig;
    qn_err err;
    (void)state;
    serve_start(&rig, NULL);
    static const char *const formats[] = {
        "\"json\"", "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"boolean\"}}, "
                    "\"required\": [\"a\"], \"additionalProperties\": false}"};
    for (size_t i = 0; i < 2; i++) {
        char body[400];
        snprintf(body, sizeof body,
                 "{\"stream\": false, \"prompt\": \"Who?\", \"format\": %s, \"options\": "
                 "{\"seed\": 1}}",
                 formats[i]);
        json_t *a = post_json(&rig, "/api/generate", body, 200), *value = NULL;
        const char *text = text_at(a, "response");
        const qn_json_opts opts = {.what = "the answer"};
        ASSERT_OK(qn_json_parse_as(&value, text, strlen(text), &opts, &err));
        if (i == 1) assert_true(json_is_boolean(json_object_get(value, "a")));
        json_decref(value);
        json_decref(a);
    }
    json_t *a =
        post_json(&rig, "/api/chat", "{\"stream\": false, \"format\": \"\", " LEMON "}", 200);
    assert_string_equal(text_at(a, "message.content"), "A lemon is yellow.");
    json_decref(a);
    serve_stop(&rig);
}

static void logprobs_are_told(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    json_t *lines =
        post_lines(&rig, "/api/chat", "{\"logprobs\": true, \"top_logprobs\": 2, " LEMON "}");
    const json_t *first = json_array_get(lines, 0);
    assert_string_equal(text_at(first, "logprobs.0.token"), "A");
    assert_int_equal(json_array_size(json_at(first, "logprobs.0.top_logprobs")), 2);
    json_decref(lines);
    serve_stop(&rig);
}

// --- tools and images ----------------------------------------------------------------------------

#define LIGHT                                                                                      \
    "\"tools\": [{\"type\": \"function\", \"function\": "                                          \
    "{\"name\": \"light\", \"description\": \"Turn a light on or off\", \"parameters\": "          \
    "{\"type\": \"object\", \"properties\": {\"room\": {\"type\": \"string\"}, \"power\": "        \
    "{\"type\": \"string\"}}, \"required\": [\"room\", \"power\"]}}}]"
#define GREEDY  ", \"options\": {\"temperature\": 0}"
#define BEDROOM "{\"role\": \"user\", \"content\": \"Turn on the light in the bedroom.\"}"

static void assert_light(const json_t *message) {
    assert_int_equal(json_array_size(json_object_get(message, "tool_calls")), 1);
    assert_string_equal(text_at(message, "content"), "");
    assert_string_equal(text_at(message, "tool_calls.0.function.name"), "light");
    assert_string_equal(text_at(message, "tool_calls.0.function.arguments.room"), "bedroom");
    assert_string_equal(text_at(message, "tool_calls.0.function.arguments.power"), "on");
}

static void calls_have_objects_for_arguments(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    json_t *a =
        post_json(&rig, "/api/chat",
                  "{\"stream\": false, \"messages\": [" BEDROOM "], " LIGHT GREEDY "}", 200);
    assert_light(json_object_get(a, "message"));
    assert_end(a, "stop");
    json_decref(a);
    json_t *lines =
        post_lines(&rig, "/api/chat", "{\"messages\": [" BEDROOM "], " LIGHT GREEDY "}");
    assert_int_equal(json_array_size(lines), 2);
    assert_light(json_object_get(json_array_get(lines, 0), "message"));
    assert_end(last_of(lines), "stop");
    json_decref(lines);
    // A call in the history and its result, as Ollama's clients send them.
    a = post_json(&rig, "/api/chat",
                  "{\"stream\": false, \"messages\": [" BEDROOM
                  ", {\"role\": \"assistant\", \"content\": \"\", \"thinking\": \"Hm.\", "
                  "\"tool_calls\": [{\"function\": {\"name\": \"light\", \"arguments\": {\"room\": "
                  "\"bedroom\", \"power\": \"on\"}}}]}, {\"role\": \"tool\", \"tool_name\": "
                  "\"light\", \"content\": \"{\\\"status\\\": \\\"ok\\\"}\"}], " LIGHT GREEDY "}",
                  200);
    assert_string_equal(text_at(a, "message.content"), "The light in the bedroom is now on.");
    json_decref(a);
    serve_stop(&rig);
}

// A call that is cut in the middle is not told: its arguments are not an object.
static void calls_that_are_cut_are_left_out(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    json_t *a = post_json(&rig, "/api/chat",
                          "{\"stream\": false, \"messages\": [" BEDROOM "], " LIGHT
                          ", \"options\": {\"temperature\": 0, \"num_predict\": 12}}",
                          200);
    assert_null(json_at(a, "message.tool_calls"));
    assert_end(a, "length");
    json_decref(a);
    serve_stop(&rig);
}

// A 1x1 PNG.
#define DOT                                                                                        \
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5Erk"   \
    "Jggg=="

static void images_are_bare_base64(void **state) {
    serve_rig rig;
    const qn_server_opts eyes = {.model = TEST_DATA "/mini/qwen35_vl",
                                 .template = TEST_DATA "/templates/Qwen3.5-4B.jinja"};
    (void)state;
    serve_start(&rig, &eyes);
    json_t *a = post_json(&rig, "/api/chat",
                          "{\"stream\": false, \"options\": {\"num_predict\": 2}, \"messages\": "
                          "[{\"role\": \"user\", \"content\": \"a\", \"images\": [\"" DOT "\"]}]}",
                          200);
    json_t *b = post_json(&rig, "/api/chat",
                          "{\"stream\": false, \"options\": {\"num_predict\": 2}, \"messages\": "
                          "[{\"role\": \"user\", \"content\": \"a\"}]}",
                          200);
    assert_true(int_at(a, "prompt_eval_count") > int_at(b, "prompt_eval_count"));
    json_decref(a);
    json_decref(b);
    a = post_json(&rig, "/api/generate",
                  "{\"stream\": false, \"options\": {\"num_predict\": 2}, \"prompt\": \"a\", "
                  "\"images\": [\"" DOT "\"]}",
                  200);
    json_decref(a);
    assert_refused(&rig, "/api/generate", "{\"prompt\": \"a\", \"images\": [\"aGVsbG8=\"]}", 400,
                   "not PNG, JPEG or WebP");
    assert_refused(&rig, "/api/generate",
                   "{\"prompt\": \"a\", \"images\": [\"http://example.org/a.png\"]}", 400, "http");
    assert_refused(&rig, "/api/generate", "{\"prompt\": \"a\", \"images\": [1]}", 400, "item 0");
    serve_stop(&rig);
    serve_start(&rig, NULL); // a model without eyes
    assert_refused(&rig, "/api/generate", "{\"prompt\": \"a\", \"images\": [\"" DOT "\"]}", 400,
                   "vision");
    serve_stop(&rig);
}

// --- models --------------------------------------------------------------------------------------

static json_t *get_json(const serve_rig *rig, const char *path) {
    http_answer a = http_get(rig, path);
    assert_int_equal(a.status, 200);
    json_t *value = http_json(&a);
    http_deinit(&a);
    return value;
}

static void models_are_listed_and_shown(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    json_t *tags = get_json(&rig, "/api/tags");
    assert_string_equal(text_at(tags, "models.0.name"), "quern-mini-Q8_0");
    assert_string_equal(text_at(tags, "models.0.details.family"), "qwen3");
    assert_string_equal(text_at(tags, "models.0.details.parameter_size"), "10.49M");
    assert_string_equal(text_at(tags, "models.0.details.quantization_level"), "Q8_0");
    assert_int_equal(int_at(tags, "models.0.size"), 11309984);
    assert_int_equal(strlen(text_at(tags, "models.0.digest")), 64);
    json_decref(tags);
    json_t *ps = get_json(&rig, "/api/ps");
    assert_string_equal(text_at(ps, "models.0.model"), "quern-mini-Q8_0");
    assert_int_equal(int_at(ps, "models.0.context_length"), 2048);
    assert_true(int_at(ps, "models.0.size") > 11309984);
    json_decref(ps);
    json_t *show = post_json(&rig, "/api/show", "{\"name\": \"quern-mini-Q8_0:latest\"}", 200);
    assert_string_equal(
        json_string_value(json_object_get(json_at(show, "model_info"), "general.architecture")),
        "qwen3");
    json_decref(show);
    json_t *version = get_json(&rig, "/api/version");
    assert_non_null(text_at(version, "version"));
    json_decref(version);
    serve_stop(&rig);
}

static void a_model_tells_what_it_can(void **state) {
    serve_rig rig;
    const qn_server_opts small = {.context = 512};
    (void)state;
    serve_start(&rig, &small);
    json_t *show = post_json(&rig, "/api/show", "{\"model\": \"quern-mini-Q8_0\"}", 200);
    const json_t *can = json_object_get(show, "capabilities");
    assert_int_equal(json_array_size(can), 3);
    assert_string_equal(text_at(can, "0"), "completion");
    assert_string_equal(text_at(can, "1"), "tools");
    assert_string_equal(text_at(can, "2"), "embedding");
    const json_t *info = json_object_get(show, "model_info");
    assert_int_equal(json_integer_value(json_object_get(info, "qwen3.context_length")), 512);
    assert_int_equal(json_integer_value(json_object_get(info, "qwen3.block_count")), 12);
    assert_null(json_object_get(info, "tokenizer.chat_template"));
    assert_non_null(strstr(text_at(show, "template"), "im_start"));
    json_decref(show);
    serve_stop(&rig);
}

// --- embeddings ----------------------------------------------------------------------------------

static double length_of(const json_t *row) {
    double sum = 0;
    for (size_t i = 0; i < json_array_size(row); i++) {
        const double x = json_number_value(json_array_get(row, i));
        sum += x * x;
    }
    return sqrt(sum);
}

static void texts_have_embeddings(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    json_t *many = post_json(&rig, "/api/embed", "{\"input\": [\"a red fox\", \"hello\"]}", 200);
    json_t *one = post_json(&rig, "/api/embed", "{\"input\": \"hello\"}", 200);
    assert_int_equal(json_array_size(json_object_get(many, "embeddings")), 2);
    assert_int_equal(json_array_size(json_at(many, "embeddings.0")), 256);
    assert_true(fabs(length_of(json_at(many, "embeddings.0")) - 1) < 1e-6);
    assert_true(json_equal(json_at(many, "embeddings.1"), json_at(one, "embeddings.0")));
    assert_true(int_at(one, "prompt_eval_count") > 0);
    json_t *few = post_json(&rig, "/api/embed", "{\"input\": \"hello\", \"dimensions\": 8}", 200);
    assert_int_equal(json_array_size(json_at(few, "embeddings.0")), 8);
    assert_true(fabs(length_of(json_at(few, "embeddings.0")) - 1) < 1e-6);
    json_t *old = post_json(&rig, "/api/embeddings", "{\"prompt\": \"hello\"}", 200);
    assert_true(json_equal(json_object_get(old, "embedding"), json_at(one, "embeddings.0")));
    json_decref(old);
    json_decref(few);
    json_decref(one);
    json_decref(many);
    assert_refused(&rig, "/api/embed", "{\"input\": \"a\", \"dimensions\": 257}", 400, "256");
    assert_refused(&rig, "/api/embed", "{\"input\": [true]}", 400, "'input'");
    assert_refused(&rig, "/api/embed", "{}", 400, "no 'input'");
    serve_stop(&rig);
}

static void long_texts_are_cut_unless_that_is_refused(void **state) {
    serve_rig rig;
    const qn_server_opts small = {.context = 16};
    qn_buf body = {0};
    (void)state;
    serve_start(&rig, &small);
    for (int cuts = 0; cuts < 2; cuts++) {
        qn_buf_clear(&body);
        qn_buf_printf(&body, "{\"truncate\": %s, \"input\": \"", cuts ? "true" : "false");
        for (int i = 0; i < 40; i++) qn_buf_text(&body, "red fox ");
        qn_buf_text(&body, "\"}");
        if (cuts) {
            json_t *a = post_json(&rig, "/api/embed", body.data, 200);
            assert_int_equal(int_at(a, "prompt_eval_count"), 16);
            json_decref(a);
        } else {
            assert_refused(&rig, "/api/embed", body.data, 400,
                           "exceeds the available context size");
        }
    }
    qn_buf_deinit(&body);
    serve_stop(&rig);
}

// --- what is refused -----------------------------------------------------------------------------

static void refusals_are_one_sentence(void **state) {
    static const struct {
        const char *path, *body, *part;
        int status;
    } cases[] = {
        {"/api/generate", "{\"prompt\": \"a\", \"suffix\": \"b\"}", "'suffix'", 400},
        {"/api/generate", "{\"prompt\": \"a\", \"template\": \"b\"}", "'template'", 400},
        {"/api/generate", "{\"prompt\": \"a\", \"context\": [1]}", "'context'", 400},
        {"/api/generate", "{\"prompt\": [1, 2]}", "'prompt'", 400},
        {"/api/generate", "{\"prompt\": \"a\", \"options\": {\"temperature\": -1}}", "-1", 400},
        {"/api/generate", "{\"prompt\": \"a\", \"options\": []}", "'options'", 400},
        {"/api/generate", "{\"prompt\": \"a\", \"format\": \"xml\"}", "'xml'", 400},
        {"/api/generate", "{\"prompt\": \"a\", \"think\": \"a lot\"}", "'think'", 400},
        {"/api/generate", "{\"prompt\": \"a\", \"format\": {\"type\": 3}}", "type", 400},
        {"/api/chat", "{\"messages\": [1]}", "item 0", 400},
        {"/api/chat", "{\"messages\": [{}]}", "role", 400},
        {"/api/chat", "{\"messages\": \"a\"}", "'messages'", 400},
        {"/api/chat", "[]", "not a JSON object", 400},
        {"/api/chat", "{", "the request's body", 400},
        {"/api/chat", "", "the request's body", 400},
        {"/api/pull", "{\"model\": \"m\"}", "/api/pull", 501},
        {"/api/push", "{}", "/api/push", 501},
        {"/api/create", "{}", "/api/create", 501},
        {"/api/copy", "{}", "/api/copy", 501},
        {"/api/blobs/sha256:00", "x", "/api/blobs", 501},
    };
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_refused(&rig, cases[i].path, cases[i].body, cases[i].status, cases[i].part);
    http_answer a = http_with(&rig, "DELETE", "/api/delete", "", "{\"model\": \"m\"}");
    assert_int_equal(a.status, 501);
    http_deinit(&a);
    a = http_with(&rig, "HEAD", "/", "", NULL);
    assert_int_equal(a.status, 200);
    http_deinit(&a);
    serve_stop(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chat_is_answered_in_lines),
        cmocka_unit_test(a_prompt_is_answered_in_lines),
        cmocka_unit_test(prompts_are_what_they_say),
        cmocka_unit_test(nothing_to_say_opens_the_model),
        cmocka_unit_test(options_count),
        cmocka_unit_test(num_ctx_limits_prompt_and_answer),
        cmocka_unit_test(answers_have_the_wanted_format),
        cmocka_unit_test(logprobs_are_told),
        cmocka_unit_test(calls_have_objects_for_arguments),
        cmocka_unit_test(calls_that_are_cut_are_left_out),
        cmocka_unit_test(images_are_bare_base64),
        cmocka_unit_test(models_are_listed_and_shown),
        cmocka_unit_test(a_model_tells_what_it_can),
        cmocka_unit_test(texts_have_embeddings),
        cmocka_unit_test(long_texts_are_cut_unless_that_is_refused),
        cmocka_unit_test(refusals_are_one_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
