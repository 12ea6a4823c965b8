// OpenAI's chat completions: answers as a whole and as a stream, and what is refused.
#include "serve_rig.h"

static const char question[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"What color is a "
    "lemon?\"}], \"max_tokens\": 20}";

static void a_question_is_answered(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    json_t *a = post_json(&rig, "/v1/chat/completions", question, 200);
    assert_string_equal(text_at(a, "choices.0.message.content"), "A lemon is yellow.");
    assert_string_equal(text_at(a, "choices.0.finish_reason"), "stop");
    assert_string_equal(text_at(a, "object"), "chat.completion");
    assert_string_equal(text_at(a, "model"), "quern-mini-Q8_0");
    assert_true(json_integer_value(json_at(a, "usage.completion_tokens")) == 5);
    assert_true(json_is_integer(json_at(a, "seed")));
    json_decref(a);
    serve_stop(&rig);
}

// The pieces of a stream are the whole answer.
static void a_stream_has_the_same_text(void **state) {
    serve_rig rig;
    qn_buf text = {0};
    (void)state;
    serve_start(&rig, NULL);
    http_answer a = http_post(&rig, "/v1/chat/completions",
                              "{\"messages\": [{\"role\": \"user\", \"content\": \"What color is a "
                              "lemon?\"}], \"stream\": true, \"stream_options\": "
                              "{\"include_usage\": true}}");
    assert_int_equal(a.status, 200);
    assert_true(a.is_whole);
    json_t *events = sse_events(&a);
    const size_t n = json_array_size(events);
    assert_true(n > 4);
    for (size_t i = 0; i < n; i++) {
        const json_t *piece = json_at(json_array_get(events, i), "data.choices.0.delta.content");
        if (json_is_string(piece)) {
            assert_true(json_string_length(piece) > 0);
            qn_buf_text(&text, json_string_value(piece));
        }
    }
    assert_string_equal(text.data, "A lemon is yellow.");
    assert_string_equal(text_at(json_array_get(events, n - 1), "data"), "[DONE]");
    assert_true(json_is_object(json_at(json_array_get(events, n - 2), "data.usage")));
    json_decref(events);
    qn_buf_deinit(&text);
    http_deinit(&a);
    serve_stop(&rig);
}

static void wrong_fields_are_named(void **state) {
    static const refused_case cases[] = {
        {"{}", "messages", "no 'messages'"},
        {"{\"messages\": []}", "messages", "empty"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"max_tokens\": \"x\"}",
         "max_tokens", "string"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"temperature\": -1}",
         "temperature", "-1"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"n\": 1000}", "n", "1000"},
    };
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    assert_all_refused(&rig, "/v1/chat/completions", cases, sizeof cases / sizeof *cases);
    serve_stop(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_question_is_answered),
        cmocka_unit_test(a_stream_has_the_same_text),
        cmocka_unit_test(wrong_fields_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
