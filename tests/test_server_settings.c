// Settings of requests have their effects, in every dialect that has them.
#include "serve_rig.h"

#include "core/mem.h"

static const char lemon[] = "<|im_start|>user\\nWhat color is a lemon?<|im_end|>\\n"
                            "<|im_start|>assistant\\n";

// The dialects: how the question is asked, and where the answer is.
static const struct dialect {
    const char *path, *question, *text, *piece, *cached;
} dialects[] = {
    {"/v1/chat/completions",
     "\"messages\": [{\"role\": \"user\", \"content\": \"What color is a lemon?\"}]",
     "choices.0.message.content", "choices.0.delta.content",
     "usage.prompt_tokens_details.cached_tokens"},
    {"/v1/completions", NULL, "choices.0.text", "choices.0.text",
     "usage.prompt_tokens_details.cached_tokens"},
    {"/completion", NULL, "content", "content", "timings.cache_n"},
};
enum { CHAT, TEXT, NATIVE, N_DIALECTS };

// A request in that dialect, with more fields; release with qn_buf_deinit.
static qn_buf make_body(size_t d, const char *more) {
    qn_buf body = {0};
    if (dialects[d].question)
        qn_buf_printf(&body, "{%s, %s", dialects[d].question, more);
    else
        qn_buf_printf(&body, "{\"prompt\": \"%s\", %s", lemon, more);
    // Names come once in an object.
    if (!strstr(more, "\"temperature\":")) qn_buf_text(&body, ", \"temperature\": 0");
    if (!strstr(more, "\"max_tokens\":")) qn_buf_text(&body, ", \"max_tokens\": 20");
    qn_buf_text(&body, "}");
    return body;
}

static json_t *ask(const serve_rig *rig, size_t d, const char *more, int status) {
    qn_buf body = make_body(d, more);
    json_t *a = post_json(rig, dialects[d].path, body.data, status);
    qn_buf_deinit(&body);
    return a;
}

static void assert_text(const serve_rig *rig, size_t d, const char *more, const char *want) {
    json_t *a = ask(rig, d, more, 200);
    const char *text = text_at(a, dialects[d].text);
    if (strcmp(text, want) != 0)
        fail_msg("%s with %s: '%s', want '%s'", dialects[d].path, more, text, want);
    json_decref(a);
}

// The chunks of a stream: their data, without "[DONE]"; to be released.
static json_t *stream(const serve_rig *rig, size_t d, const char *more) {
    qn_buf body = make_body(d, more);
    http_answer a = http_post(rig, dialects[d].path, body.data);
    if (a.status != 200) fail_msg("%s: %s", dialects[d].path, a.body.data);
    assert_true(a.is_whole);
    json_t *events = sse_events(&a), *all = json_array();
    for (size_t i = 0; i < json_array_size(events); i++) {
        json_t *data = json_at(json_array_get(events, i), "data");
        if (json_is_object(data)) json_array_append(all, data);
    }
    json_decref(events);
    http_deinit(&a);
    qn_buf_deinit(&body);
    return all;
}

// --- choosing ------------------------------------------------------------------------------------

// " yellow" is token 1460 and "A" is 44: both come without the bias.
static void biases_have_all_forms(void **state) {
    static const char *const bans[] = {"{\"1460\": -100}",       "{\"1460\": false}",
                                       "[[1460, false]]",        "[[1460, -100]]",
                                       "[[\" yellow\", false]]", "[[\" yellow\", -100]]",
                                       "{\" yellow\": -100}",    "{\"1460\": -100.0, \"7\": 0}"};
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    for (size_t d = 0; d < N_DIALECTS; d++) {
        char more[128];
        assert_text(&rig, d, "\"logit_bias\": {}", "A lemon is yellow.");
        assert_text(&rig, d, "\"logit_bias\": {\"1460\": 0}", "A lemon is yellow.");
        for (size_t i = 0; i < sizeof bans / sizeof *bans; i++) {
            snprintf(more, sizeof more, "\"logit_bias\": %s", bans[i]);
            json_t *a = ask(&rig, d, more, 200);
            if (strstr(text_at(a, dialects[d].text), " yellow"))
                fail_msg("%s: %s is still there", dialects[d].path, bans[i]);
            assert_int_equal(strncmp(text_at(a, dialects[d].text), "A lemon is", 10), 0);
            json_decref(a);
        }
        // A large one makes a token come.
        json_t *a = ask(&rig, d, "\"logit_bias\": {\"1222\": 100}, \"max_tokens\": 2", 200);
        assert_string_equal(text_at(a, dialects[d].text), "HelloHello");
        json_decref(a);
        a = ask(&rig, d, "\"logit_bias\": {\"1460\": \"much\"}", 400);
        assert_string_equal(text_at(a, "error.param"), "logit_bias");
        json_decref(a);
        a = ask(&rig, d, "\"logit_bias\": [[99999999, 1]]", 400);
        json_decref(a);
    }
    serve_stop(&rig);
}

static void words_and_tokens_end_and_forbid(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    for (size_t d = 0; d < N_DIALECTS; d++) {
        assert_text(&rig, d, "\"stop_token_ids\": [1460]", "A lemon is");
        assert_text(&rig, d, "\"stop\": \" is\"", "A lemon");
        assert_text(&rig, d, "\"stop\": [\"never\", \"yellow\"]", "A lemon is ");
        json_t *a = ask(&rig, d, "\"bad_words\": [\"yellow\", \"lemon is\"]", 200);
        assert_null(strstr(text_at(a, dialects[d].text), "yellow"));
        assert_null(strstr(text_at(a, dialects[d].text), "lemon is"));
        json_decref(a);
    }
    serve_stop(&rig);
}

static void an_end_that_is_ignored_does_not_come(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    for (size_t d = 0; d < N_DIALECTS; d++) {
        json_t *a = ask(&rig, d, "\"ignore_eos\": true", 200);
        const char *text = text_at(a, dialects[d].text);
        assert_int_equal(strncmp(text, "A lemon is yellow.", 18), 0);
        assert_true(strlen(text) > 18);
        const json_t *n =
            d == NATIVE ? json_at(a, "tokens_predicted") : json_at(a, "usage.completion_tokens");
        assert_int_equal(json_integer_value(n), 20);
        json_decref(a);
    }
    serve_stop(&rig);
}

// The steps in the order that the request names: what is left out does nothing, and filters after
// the temperature see other probabilities than before it.
static void sampling_steps_come_in_their_order(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    for (size_t d = 0; d < N_DIALECTS; d++) {
        char more[256];
        size_t n_free = 0, n_late = 0;
        for (int seed = 0; seed < 12; seed++) {
            static const char form[] = "\"temperature\": 3, \"top_p\": 0.01, \"seed\": %d, %s";
            snprintf(more, sizeof more, form, seed, "\"samplers\": [\"top_p\", \"temperature\"]");
            assert_text(&rig, d, more, "A lemon is yellow.");
            snprintf(more, sizeof more, form, seed, "\"samplers\": \"top_p;temperature\"");
            assert_text(&rig, d, more, "A lemon is yellow.");
            snprintf(more, sizeof more, form, seed, "\"samplers\": [\"temperature\"]");
            json_t *a = ask(&rig, d, more, 200);
            n_free += strcmp(text_at(a, dialects[d].text), "A lemon is yellow.") != 0;
            json_decref(a);
            char *texts[2];
            for (int late = 0; late < 2; late++) {
                snprintf(more, sizeof more,
                         "\"temperature\": 3, \"top_p\": 0.9, \"seed\": %d, \"samplers\": [%s]",
                         seed, late ? "\"temperature\", \"top_p\"" : "\"top_p\", \"temperature\"");
                a = ask(&rig, d, more, 200);
                texts[late] = strdup(text_at(a, dialects[d].text));
                json_decref(a);
            }
            n_late += strcmp(texts[0], texts[1]) != 0;
            free(texts[0]);
            free(texts[1]);
        }
        assert_true(n_free > 6);
        assert_true(n_late > 6);
        json_t *a = ask(&rig, d, "\"samplers\": [\"no_such_step\"]", 400);
        assert_non_null(strstr(text_at(a, "error.message"), "no_such_step"));
        json_decref(a);
    }
    serve_stop(&rig);
}

// --- caching -------------------------------------------------------------------------------------

static void prompts_are_cached_unless_told_not_to(void **state) {
    static const struct {
        const char *more;
        bool is_cached;
    } steps[] = {{"\"cache_prompt\": false", false},
                 {"\"cache_prompt\": false", false},
                 {"\"cache_prompt\": true", false}, // nothing was left by those before
                 {"\"seed\": 1", true},
                 {"\"cache_prompt\": false", false}};
    (void)state;
    for (size_t d = 0; d < N_DIALECTS; d++) {
        serve_rig rig;
        serve_start(&rig, NULL);
        for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
            json_t *a = ask(&rig, d, steps[i].more, 200);
            assert_string_equal(text_at(a, dialects[d].text), "A lemon is yellow.");
            const json_int_t n = json_integer_value(json_at(a, dialects[d].cached));
            assert_int_equal(n > 0, steps[i].is_cached);
            json_decref(a);
        }
        serve_stop(&rig);
    }
}

// --- what is told --------------------------------------------------------------------------------

static void timings_come_with_every_piece_if_asked(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    for (size_t d = 0; d < N_DIALECTS; d++) {
        for (int asked = 0; asked < 2; asked++) {
            json_t *chunks = stream(&rig, d,
                                    asked ? "\"stream\": true, \"timings_per_token\": true"
                                          : "\"stream\": true");
            int64_t n_pieces = 0;
            for (size_t i = 0; i < json_array_size(chunks); i++) {
                const json_t *chunk = json_array_get(chunks, i);
                const json_t *piece = json_at(chunk, dialects[d].piece);
                if (!json_is_string(piece) || !json_string_length(piece)) continue;
                n_pieces++;
                assert_int_equal(json_at(chunk, "timings") != NULL, asked);
                if (asked)
                    assert_int_equal(json_integer_value(json_at(chunk, "timings.predicted_n")),
                                     n_pieces);
            }
            assert_int_equal(n_pieces, 5);
            json_decref(chunks);
        }
    }
    serve_stop(&rig);
}

// The numbers of a stream's progress: of the first chunk what was cached, of the last all.
static void assert_progress(const json_t *chunks, bool is_cached, const char *what) {
    int64_t n = 0, before = -1, total = 0, cache = -1;
    bool has_text = false;
    for (size_t i = 0; i < json_array_size(chunks); i++) {
        const json_t *chunk = json_array_get(chunks, i), *p = json_at(chunk, "prompt_progress");
        const json_t *piece = json_at(chunk, "choices.0.text");
        if (!piece) piece = json_at(chunk, "choices.0.delta.content");
        if (!piece) piece = json_at(chunk, "content");
        has_text |= json_is_string(piece) && json_string_length(piece) > 0;
        if (!p) continue;
        if (has_text) fail_msg("%s: progress after text", what);
        const int64_t done = json_integer_value(json_at(p, "processed"));
        total = json_integer_value(json_at(p, "total"));
        if (n++ == 0) cache = done;
        assert_int_equal(json_integer_value(json_at(p, "cache")), cache);
        assert_true(json_is_integer(json_at(p, "time_ms")));
        assert_true(done > before);
        assert_true(n == 1 || done - before <= 64); // the tokens of a step
        before = done;
    }
    if (before != total || total < 200 || (cache > 0) != is_cached)
        fail_msg("%s: %lld of %lld tokens, %lld cached", what, (long long)before, (long long)total,
                 (long long)cache);
    if (!is_cached) assert_true(n >= 1 + (total + 63) / 64);
}

static void progress_of_prompts_is_told_if_asked(void **state) {
    (void)state;
    for (size_t d = 0; d < N_DIALECTS; d++) {
        serve_rig rig;
        qn_buf text = {0}, more = {0};
        serve_start(&rig, &(qn_server_opts){.chunk = 64});
        for (size_t i = 0; i < 100; i++) qn_buf_printf(&text, "This is line %zu. ", i);
        for (int round = 0; round < 3; round++) {
            qn_buf_clear(&more);
            if (d == CHAT)
                qn_buf_printf(&more, "{\"messages\": [{\"role\": \"user\", \"content\": \"%s\"}]",
                              text.data);
            else
                qn_buf_printf(&more, "{\"prompt\": \"%s\"", text.data);
            qn_buf_printf(&more, ", \"max_tokens\": 3, \"stream\": true%s}",
                          round < 2 ? ", \"return_progress\": true" : "");
            http_answer a = http_post(&rig, dialects[d].path, more.data);
            assert_int_equal(a.status, 200);
            assert_true(a.is_whole);
            json_t *events = sse_events(&a), *chunks = json_array();
            for (size_t i = 0; i < json_array_size(events); i++)
                json_array_append(chunks, json_at(json_array_get(events, i), "data"));
            if (round < 2)
                assert_progress(chunks, round == 1, dialects[d].path);
            else
                assert_null(strstr(a.body.data, "prompt_progress"));
            json_decref(chunks);
            json_decref(events);
            http_deinit(&a);
        }
        qn_buf_deinit(&text);
        qn_buf_deinit(&more);
        serve_stop(&rig);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(biases_have_all_forms),
        cmocka_unit_test(words_and_tokens_end_and_forbid),
        cmocka_unit_test(an_end_that_is_ignored_does_not_come),
        cmocka_unit_test(sampling_steps_come_in_their_order),
        cmocka_unit_test(prompts_are_cached_unless_told_not_to),
        cmocka_unit_test(timings_come_with_every_piece_if_asked),
        cmocka_unit_test(progress_of_prompts_is_told_if_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
