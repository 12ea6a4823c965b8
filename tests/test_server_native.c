// llama-server's routes: completion, tokens, templates, slots, counts, and what is not there.
#include "serve_rig.h"

#include "core/mem.h"

static const char lemon[] = "<|im_start|>user\\nWhat color is a lemon?<|im_end|>\\n"
                            "<|im_start|>assistant\\n";
static const char messages[] =
    "\"messages\": [{\"role\": \"user\", \"content\": \"What color is a lemon?\"}]";

static int64_t int_at(const json_t *value, const char *path) {
    const json_t *n = json_at(value, path);
    if (!json_is_integer(n)) fail_msg("there is no whole number at %s", path);
    return json_integer_value(n);
}

static void assert_ids(const json_t *list, const int32_t *want, size_t n) {
    assert_int_equal(json_array_size(list), n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(json_integer_value(json_array_get(list, i)), want[i]);
}

// A POST with a body of printf; its JSON, to be released.
static json_t *ask(const serve_rig *rig, const char *path, int status, const char *form, ...) {
    char body[4096];
    va_list args;
    va_start(args, form);
    assert_true(vsnprintf(body, sizeof body, form, args) < (int)sizeof body);
    va_end(args);
    return post_json(rig, path, body, status);
}

// --- completion ----------------------------------------------------------------------------------

static void a_completion_says_how_it_ended(void **state) {
    static const struct {
        const char *more, *content, *type, *word;
    } cases[] = {
        {"\"n_predict\": 30", "A lemon is yellow.", "eos", ""},
        {"\"n_predict\": 3", "A lemon is", "limit", ""},
        {"\"stop\": [\"zzz\", \" yel\"]", "A lemon is", "word", " yel"},
        {"\"stop_token_ids\": [1460]", "A lemon is", "word", " yellow"},
        {"\"max_tokens\": 0", "", "limit", ""},
    };
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *a = ask(&rig, i % 2 ? "/completions" : "/completion", 200,
                        "{\"prompt\": \"%s\", \"temperature\": 0, %s}", lemon, cases[i].more);
        assert_string_equal(text_at(a, "content"), cases[i].content);
        assert_string_equal(text_at(a, "stop_type"), cases[i].type);
        assert_string_equal(text_at(a, "stopping_word"), cases[i].word);
        assert_true(json_is_true(json_at(a, "stop")));
        assert_true(json_is_false(json_at(a, "truncated")));
        assert_true(json_is_false(json_at(a, "has_new_line")));
        assert_int_equal(json_array_size(json_at(a, "tokens")), 0);
        assert_string_equal(text_at(a, "model"), "quern-mini-Q8_0");
        assert_int_equal(int_at(a, "tokens_evaluated"), 14);
        assert_int_equal(int_at(a, "timings.predicted_n"), int_at(a, "tokens_predicted"));
        assert_non_null(strstr(text_at(a, "prompt"), "What color is a lemon?"));
        assert_true(json_is_object(json_at(a, "generation_settings")));
        json_decref(a);
    }
    serve_stop(&rig);
}

// Texts and ids in one prompt: the ids between are taken as they are.
static void prompts_have_all_forms(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    json_t *whole = ask(&rig, "/tokenize", 200, "{\"content\": \"%s\"}", lemon);
    qn_buf ids = {0};
    qn_json_write(&ids, json_at(whole, "tokens"), &(qn_json_form){0});
    json_t *as_ids =
        ask(&rig, "/completion", 200, "{\"prompt\": %s, \"return_tokens\": true}", ids.data);
    json_t *mixed = ask(&rig, "/completion", 200,
                        "{\"prompt\": [1, \"user\\nWhat color is a lemon?\", 2, \"\\n\", 1, "
                        "\"assistant\\n\"], \"return_tokens\": true}");
    json_t *text =
        ask(&rig, "/completion", 200, "{\"prompt\": \"%s\", \"return_tokens\": true}", lemon);
    assert_string_equal(text_at(text, "content"), "A lemon is yellow.");
    static const int32_t answer[] = {44, 3874, 323, 1460, 25};
    const json_t *const all[] = {as_ids, mixed, text};
    for (size_t i = 0; i < 3; i++) {
        assert_string_equal(text_at(all[i], "content"), "A lemon is yellow.");
        assert_string_equal(text_at(all[i], "prompt"), text_at(text, "prompt"));
        assert_int_equal(int_at(all[i], "tokens_evaluated"), 14);
        assert_ids(json_at(all[i], "tokens"), answer, 5);
    }
    json_t *several = ask(&rig, "/completion", 200, "{\"prompt\": [\"%s\", %s], \"n_predict\": 2}",
                          lemon, ids.data);
    assert_int_equal(json_array_size(several), 2);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(int_at(json_array_get(several, i), "index"), i);
        assert_string_equal(text_at(json_array_get(several, i), "content"), "A lemon");
    }
    json_decref(several);
    json_decref(as_ids);
    json_decref(mixed);
    json_decref(text);
    json_decref(whole);
    qn_buf_deinit(&ids);
    serve_stop(&rig);
}

// The chunks of a stream have the whole text, its tokens and their log-probabilities; the last one
// has no text, and there is no "[DONE]".
static void a_stream_ends_with_its_facts(void **state) {
    static const int32_t answer[] = {44, 3874, 323, 1460, 25};
    serve_rig rig;
    qn_buf text = {0}, body = {0};
    json_t *tokens = json_array(), *probs = json_array();
    (void)state;
    serve_start(&rig, NULL);
    qn_buf_printf(&body, "{\"prompt\": \"%s\", \"stream\": true, \"n_probs\": 2}", lemon);
    http_answer a = http_post(&rig, "/completion", body.data);
    assert_int_equal(a.status, 200);
    assert_true(a.is_whole);
    json_t *events = sse_events(&a);
    const size_t n = json_array_size(events);
    assert_int_equal(n, 6);
    for (size_t i = 0; i < n; i++) {
        const json_t *data = json_at(json_array_get(events, i), "data");
        assert_int_equal(json_is_true(json_at(data, "stop")), i + 1 == n);
        assert_int_equal(json_at(data, "timings") != NULL, i + 1 == n);
        qn_buf_text(&text, text_at(data, "content"));
        json_array_extend(tokens, json_at(data, "tokens"));
        if (json_at(data, "completion_probabilities"))
            json_array_extend(probs, json_at(data, "completion_probabilities"));
    }
    assert_string_equal(text.data, "A lemon is yellow.");
    assert_ids(tokens, answer, 5);
    assert_int_equal(json_array_size(probs), 5);
    for (size_t i = 0; i < 5; i++) {
        const json_t *one = json_array_get(probs, i);
        assert_int_equal(int_at(one, "id"), answer[i]);
        assert_int_equal(json_array_size(json_at(one, "top_logprobs")), 2);
        assert_int_equal(int_at(one, "top_logprobs.0.id"), answer[i]); // greedy
        assert_true(json_equal(json_at(one, "logprob"), json_at(one, "top_logprobs.0.logprob")));
    }
    assert_string_equal(text_at(json_array_get(events, n - 1), "data.stop_type"), "eos");
    json_decref(tokens);
    json_decref(probs);
    json_decref(events);
    http_deinit(&a);
    qn_buf_deinit(&text);
    qn_buf_deinit(&body);
    serve_stop(&rig);
}

// --- tokens --------------------------------------------------------------------------------------

static void texts_become_tokens_and_back(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    json_t *a = ask(&rig, "/tokenize", 200, "{\"content\": \"<|im_start|>Hello\"}");
    assert_ids(json_at(a, "tokens"), (const int32_t[]){1, 1222}, 2);
    json_decref(a);
    a = ask(&rig, "/tokenize", 200,
            "{\"content\": \"<|im_start|>Hello\", \"parse_special\": false}");
    assert_true(json_array_size(json_at(a, "tokens")) > 2);
    json_decref(a);
    a = ask(&rig, "/tokenize", 200, "{\"content\": \"Hello \\u00f6\", \"with_pieces\": true}");
    assert_string_equal(text_at(a, "tokens.0.piece"), "Hello");
    const size_t n = json_array_size(json_at(a, "tokens"));
    const json_t *half = json_array_get(json_at(a, "tokens"), n - 1); // of a character: its bytes
    assert_int_equal(int_at(half, "piece.0"), 0xb6);
    json_decref(a);
    a = ask(&rig, "/detokenize", 200, "{\"tokens\": [1, 1222, 2]}");
    assert_string_equal(text_at(a, "content"), "<|im_start|>Hello<|im_end|>");
    json_decref(a);
    a = ask(&rig, "/detokenize", 200, "{\"tokens\": []}");
    assert_string_equal(text_at(a, "content"), "");
    json_decref(a);
    a = ask(&rig, "/detokenize", 400, "{\"tokens\": [1, 7000000]}");
    assert_string_equal(text_at(a, "error.param"), "tokens");
    json_decref(a);
    a = ask(&rig, "/tokenize", 400, "{}");
    assert_string_equal(text_at(a, "error.param"), "content");
    json_decref(a);
    serve_stop(&rig);
}

// A text of 'a's or a list of ones, in a request that is refused with both numbers.
static void assert_too_large(const serve_rig *rig, const char *path, const char *head,
                             const char *item, size_t n, const char *tail, const char *says) {
    qn_buf body = {0};
    qn_buf_text(&body, head);
    for (size_t i = 0; i < n; i++) qn_buf_text(&body, item);
    qn_buf_text(&body, tail);
    assert_false(body.failed);
    json_t *a = post_json(rig, path, body.data, 413);
    assert_says(a, says);
    json_decref(a);
    qn_buf_deinit(&body);
}

// A body of 96 MiB would be tens of millions of tokens, each many times its size.
static void large_texts_and_lists_are_refused(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    assert_too_large(&rig, "/tokenize", "{\"content\": \"", "a", (8 << 20) + 1, "\"}",
                     "8388609 bytes, at most 8388608");
    // Control characters are a token each, at least.
    assert_too_large(&rig, "/tokenize", "{\"with_pieces\": true, \"content\": \"", "\\u0001\\u0002",
                     (1 << 19) + 1, "\"}", "at least 1048577 tokens, at most 1048576");
    assert_too_large(&rig, "/detokenize", "{\"tokens\": [1", ",       1", 1 << 20, "]}",
                     "1048577 tokens, at most 1048576");
    serve_stop(&rig);
}

// What a model expects around a text is added only if asked for.
static void ends_are_added_if_asked(void **state) {
    serve_rig rig;
    qn_err err;
    qn_engine *engine = NULL;
    qn_tokenizer_info info = QN_INIT(qn_tokenizer_info);
    (void)state;
    serve_start(&rig, &(qn_server_opts){.model = TEST_DATA "/mini/gemma3"});
    ASSERT_OK(rig_open(NULL, &engine, NULL, TEST_DATA "/mini/gemma3", &err));
    ASSERT_OK(qn_tokenizer_get_info(&info, qn_engine_tokenizer(engine), &err));
    assert_true(info.add_bos);
    for (int adds = 0; adds < 2; adds++) {
        json_t *a = ask(&rig, "/tokenize", 200, "{\"content\": \"Hello\", \"add_special\": %s}",
                        adds ? "true" : "false");
        assert_int_equal(int_at(a, "tokens.0") == info.bos, adds);
        json_decref(a);
    }
    qn_engine_close(engine);
    serve_stop(&rig);
}

// --- conversations -------------------------------------------------------------------------------

static void a_template_is_applied_and_counted(void **state) {
    static const char *const counts[] = {"/v1/chat/completions/input_tokens",
                                         "/v1/responses/input_tokens"};
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    json_t *a = ask(&rig, "/apply-template", 200, "{%s}", messages);
    assert_string_equal(text_at(a, "prompt"), "<|im_start|>user\nWhat color is a lemon?<|im_end|>\n"
                                              "<|im_start|>assistant\n");
    json_decref(a);
    a = ask(&rig, "/apply-template", 200, "{%s, \"add_generation_prompt\": false}", messages);
    assert_string_equal(text_at(a, "prompt"),
                        "<|im_start|>user\nWhat color is a lemon?<|im_end|>\n");
    json_decref(a);
    a = ask(&rig, "/apply-template", 200,
            "{%s, \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"find_fruit\", "
            "\"parameters\": {\"type\": \"object\"}}}]}",
            messages);
    assert_non_null(strstr(text_at(a, "prompt"), "find_fruit"));
    json_decref(a);
    for (size_t i = 0; i < 2; i++) {
        a = i == 0 ? ask(&rig, counts[i], 200, "{%s}", messages)
                   : ask(&rig, counts[i], 200, "{\"input\": \"What color is a lemon?\"}");
        assert_string_equal(text_at(a, "object"), "response.input_tokens");
        assert_int_equal(int_at(a, "input_tokens"), 14);
        json_decref(a);
    }
    serve_stop(&rig);
}

// --- the rest ------------------------------------------------------------------------------------

static void slots_are_rows_without_prompts(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, &(qn_server_opts){.parallel = 3});
    http_answer a = http_get(&rig, "/slots");
    assert_int_equal(a.status, 200);
    json_t *slots = http_json(&a);
    assert_int_equal(json_array_size(slots), 3);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(int_at(json_array_get(slots, i), "id"), i);
        assert_true(json_is_false(json_at(json_array_get(slots, i), "is_processing")));
        assert_null(json_at(json_array_get(slots, i), "prompt"));
    }
    json_decref(slots);
    http_deinit(&a);
    serve_stop(&rig);
}

static void what_is_not_there_says_so(void **state) {
    static const char *const paths[] = {"/infill",
                                        "/rerank",
                                        "/reranking",
                                        "/v1/rerank",
                                        "/v1/reranking",
                                        "/lora-adapters",
                                        "/props",
                                        "/slots/0",
                                        "/v1/moderations",
                                        "/v1/images/generations",
                                        "/v1/audio/transcriptions"};
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        json_t *a = post_json(&rig, paths[i], "{\"anything\": 1}", 501);
        assert_string_equal(text_at(a, "error.type"), "not_supported_error");
        assert_true(strlen(text_at(a, "error.message")) > 20);
        json_decref(a);
    }
    json_t *a = ask(&rig, "/completion", 400, "{\"prompt\": \"a\", \"post_sampling_probs\": true}");
    assert_string_equal(text_at(a, "error.param"), "post_sampling_probs");
    json_decref(a);
    serve_stop(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_completion_says_how_it_ended),
        cmocka_unit_test(prompts_have_all_forms),
        cmocka_unit_test(a_stream_ends_with_its_facts),
        cmocka_unit_test(texts_become_tokens_and_back),
        cmocka_unit_test(large_texts_and_lists_are_refused),
        cmocka_unit_test(ends_are_added_if_asked),
        cmocka_unit_test(a_template_is_applied_and_counted),
        cmocka_unit_test(slots_are_rows_without_prompts),
        cmocka_unit_test(what_is_not_there_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
