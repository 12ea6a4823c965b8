// OpenAI's completions: texts and tokens, echo, log-probabilities of prompts equal to the library's
// to the last bit, streams, and what is refused.
#include "serve_rig.h"

#include "core/mem.h"
#include "core/utf8.h"
#include "families.h"
#include "gen/logprobs.h"
#include "server/problem.h"

#include <math.h>

static const char lemon[] = "<|im_start|>user\\nWhat color is a lemon?<|im_end|>\\n"
                            "<|im_start|>assistant\\n";

static const char *text_of(const json_t *answer) { return text_at(answer, "choices.0.text"); }

static size_t count_at(const json_t *value, const char *path) {
    return json_array_size(json_at(value, path));
}

static int64_t int_at(const json_t *value, const char *path) {
    const json_t *n = json_at(value, path);
    if (!json_is_integer(n)) fail_msg("there is no whole number at %s", path);
    return json_integer_value(n);
}

static void assert_same_float(const json_t *got, float want, const char *what, size_t i) {
    const float value = (float)json_real_value(got);
    if (!json_is_real(got) || memcmp(&value, &want, sizeof want) != 0)
        fail_msg("%s, token %zu: %.17g, want %.17g", what, i, json_number_value(got), (double)want);
}

// --- log-probabilities ---------------------------------------------------------------------------

enum { MAX_IDS = 80 };

// A context with its continuation, and what the library says of its tokens.
typedef struct sample {
    int32_t ids[MAX_IDS];
    size_t n;
    float logprobs[MAX_IDS];
    int32_t best[MAX_IDS]; // the most likely token in each place
    float best_logprobs[MAX_IDS];
} sample;

static bool take_logprob(void *arg, const qn_event *e) {
    sample *s = arg;
    if (!e->is_prompt) return true;
    s->logprobs[e->position] = e->logprob;
    s->best[e->position] = e->top[0].token;
    s->best_logprobs[e->position] = e->top[0].logprob;
    return true;
}

// By an answer of no tokens, and by the logits themselves.
static void ask_library(sample *s, const qn_engine *engine, int64_t n_vocab) {
    qn_err err;
    qn_session *session = NULL;
    qn_logits all = QN_INIT(qn_logits);
    const qn_generate_opts opts = QN_INIT(qn_generate_opts, .max_tokens = -1, .logprobs = true,
                                          .n_top = 1, .prompt_logprobs = true);
    ASSERT_OK(qn_session_create(&session, engine, NULL, &err));
    ASSERT_OK(qn_session_set_prompt(session, s->ids, s->n, &err));
    ASSERT_OK(qn_generate(NULL, session, &opts, take_logprob, s, &err));
    qn_session_destroy(session);
    ASSERT_OK(qn_engine_logits(&all, engine, s->ids, s->n,
                               &QN_INIT(qn_logits_opts, .all_rows = true), &err));
    for (size_t i = 1; i < s->n; i++) {
        int64_t n_top = 0;
        qn_token_logprob top;
        const float want = qn_logprobs_get(&n_top, &top, 1, all.logits + (int64_t)(i - 1) * n_vocab,
                                           n_vocab, s->ids[i]);
        assert_memory_equal(&want, &s->logprobs[i], sizeof want);
    }
    qn_logits_deinit(&all);
}

// As evaluations do: a request with all contexts and continuations as token ids.
static json_t *evaluate(const serve_rig *rig, const sample *samples, size_t n, int max_tokens) {
    qn_buf body = {0};
    qn_buf_text(&body, "{\"prompt\": [");
    for (size_t i = 0; i < n; i++) {
        qn_buf_text(&body, i ? ", [" : "[");
        for (size_t k = 0; k < samples[i].n; k++)
            qn_buf_printf(&body, "%s%d", k ? ", " : "", samples[i].ids[k]);
        qn_buf_text(&body, "]");
    }
    qn_buf_printf(&body,
                  "], \"max_tokens\": %d, \"temperature\": 0, \"logprobs\": 1, "
                  "\"echo\": true, \"seed\": 1234}",
                  max_tokens);
    json_t *answer = post_json(rig, "/v1/completions", body.data, 200);
    qn_buf_deinit(&body);
    return answer;
}

static void assert_sample(const json_t *choice, const sample *s, const qn_tokenizer *tokenizer,
                          int max_tokens) {
    const json_t *logprobs = json_at(choice, "logprobs.token_logprobs");
    const json_t *tops = json_at(choice, "logprobs.top_logprobs");
    // The harness takes [context : -1] after max_tokens 1: what ends the answer is a token, too.
    assert_int_equal(json_array_size(logprobs), s->n + (size_t)max_tokens);
    assert_int_equal(json_array_size(tops), json_array_size(logprobs));
    assert_int_equal(count_at(choice, "logprobs.tokens"), json_array_size(logprobs));
    assert_int_equal(count_at(choice, "logprobs.text_offset"), json_array_size(logprobs));
    assert_true(json_is_null(json_array_get(logprobs, 0)));
    assert_true(json_is_null(json_array_get(tops, 0)));
    for (size_t i = 1; i < s->n; i++) {
        assert_same_float(json_array_get(logprobs, i), s->logprobs[i], "token", i);
        const json_t *top = json_array_get(tops, i);
        const char *best = NULL, *name;
        json_t *value;
        float max = -INFINITY;
        json_object_foreach((json_t *)(uintptr_t)top, name, value) {
            if ((float)json_real_value(value) > max)
                best = name, max = (float)json_real_value(value);
        }
        assert_memory_equal(&max, &s->best_logprobs[i], sizeof max);
        char *bytes;
        size_t size;
        qn_err err;
        ASSERT_OK(qn_tokenizer_bytes(&bytes, &size, tokenizer, s->best[i], &err));
        if (qn_utf8_valid(bytes, size)) assert_string_equal(best, bytes);
        qn_free(bytes);
    }
}

static void evaluations_get_the_librarys_numbers(void **state) {
    enum { N = 6 };
    static const char *const models[] = {
        MODELS "/quern-mini-Q8_0.gguf", MODELS "/quern-hybrid-Q8_0.gguf", TEST_DATA "/mini/gemma3"};
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        serve_rig rig;
        qn_err err;
        qn_engine *engine = NULL;
        sample samples[N];
        serve_start(&rig, &(qn_server_opts){.model = models[m]});
        ASSERT_OK(rig_open(NULL, &engine, NULL, models[m], &err));
        qn_engine_info info = QN_INIT(qn_engine_info);
        ASSERT_OK(qn_engine_get_info(&info, engine, &err));
        for (size_t i = 0; i < N; i++) {
            samples[i] = (sample){.n = 2 + i * 15};
            random_ids(samples[i].ids, MAX_IDS, info.n_vocab, i + 1);
            ask_library(&samples[i], engine, info.n_vocab);
        }
        for (int max_tokens = 0; max_tokens < 2; max_tokens++) {
            json_t *a = evaluate(&rig, samples, N, max_tokens);
            assert_int_equal(count_at(a, "choices"), N);
            for (size_t i = 0; i < N; i++) {
                const json_t *choice = json_array_get(json_at(a, "choices"), i);
                assert_int_equal(int_at(choice, "index"), i);
                assert_sample(choice, &samples[i], qn_engine_tokenizer(engine), max_tokens);
            }
            json_decref(a);
        }
        qn_engine_close(engine);
        serve_stop(&rig);
    }
}

// The answer's own, of a prompt after which the model ends at once, as its last token.
static void the_token_that_ends_an_answer_has_its_place(void **state) {
    serve_rig rig;
    qn_buf body = {0};
    (void)state;
    serve_start(&rig, NULL);
    qn_buf_printf(&body,
                  "{\"prompt\": \"%sA lemon is yellow.\", \"max_tokens\": 1, \"logprobs\": 1, "
                  "\"echo\": true, \"temperature\": 0}",
                  lemon);
    json_t *a = post_json(&rig, "/v1/completions", body.data, 200);
    const size_t n = count_at(a, "choices.0.logprobs.tokens");
    assert_int_equal(n, 20); // 14 of the question, 5 of the answer, and its end
    assert_string_equal(
        json_string_value(json_array_get(json_at(a, "choices.0.logprobs.tokens"), n - 1)),
        "<|im_end|>");
    assert_int_equal(count_at(a, "choices.0.logprobs.token_logprobs"), n);
    assert_int_equal(int_at(a, "usage.completion_tokens"), 0);
    assert_string_equal(text_at(a, "choices.0.finish_reason"), "stop");
    assert_non_null(strstr(text_of(a), "A lemon is yellow."));
    assert_null(strstr(text_of(a), "yellow.<|im_end|>"));
    json_decref(a);
    qn_buf_deinit(&body);
    serve_stop(&rig);
}

// --- echo ----------------------------------------------------------------------------------------

// The byte where a character begins.
static size_t byte_of(const char *text, int64_t at) {
    size_t i = 0;
    for (; text[i] && at > 0; at--) i += qn_utf8_check(text + i, strlen(text + i));
    if (at != 0) fail_msg("the text is %lld characters too short", (long long)at);
    return i;
}

// Every token that is text lies where its offset says; together they are the whole text, but for
// those that the model adds.
static void assert_offsets(const json_t *choice, const char *what) {
    const char *text = text_at(choice, "text");
    const json_t *tokens = json_at(choice, "logprobs.tokens");
    const json_t *offsets = json_at(choice, "logprobs.text_offset");
    int64_t before = 0;
    size_t n_found = 0;
    for (size_t i = 0; i < json_array_size(tokens); i++) {
        const char *token = json_string_value(json_array_get(tokens, i));
        const int64_t at = json_integer_value(json_array_get(offsets, i));
        if (at < before) fail_msg("%s: token %zu goes back", what, i);
        before = at;
        const char *there = text + byte_of(text, at);
        const size_t space = *token == ' ' && *there != ' '; // lost at the beginning
        n_found += strncmp(there, token + space, strlen(token + space)) == 0;
        if (strncmp(token, "bytes:", 6) == 0) n_found++;
    }
    // Of those that are not there: a beginning token, and an end token.
    if (n_found + 2 < json_array_size(tokens))
        fail_msg("%s: %zu of %zu tokens are in the text", what, n_found, json_array_size(tokens));
}

static void echo_is_the_prompt(void **state) {
    static const char *const models[] = {MODELS "/quern-mini-Q8_0.gguf", TEST_DATA "/mini/gemma3",
                                         TEST_DATA "/mini/llama32"};
    static const char *const texts[] = {"Hello", " two  spaces ",
                                        "W\303\266rld \360\237\216\211 \344\275\240\345\245\275!",
                                        "a", "line\nline\n"};
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        serve_rig rig;
        serve_start(&rig, &(qn_server_opts){.model = models[m]});
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
            json_t *body = json_pack("{s:s, s:i, s:b, s:i, s:f}", "prompt", texts[i], "max_tokens",
                                     6, "echo", 1, "logprobs", 2, "temperature", 0.0);
            char *request;
            qn_err err;
            ASSERT_OK(qn_json_print(&request, body, &qn_compact, "a body", &err));
            json_t *a = post_json(&rig, "/v1/completions", request, 200);
            if (strncmp(text_of(a), texts[i], strlen(texts[i])) != 0)
                fail_msg("%s: '%s' does not begin with '%s'", models[m], text_of(a), texts[i]);
            assert_offsets(json_at(a, "choices.0"), models[m]);
            assert_int_equal(int_at(a, "choices.0.logprobs.text_offset.0"), 0);
            qn_free(request);
            json_decref(body);
            json_decref(a);
        }
        serve_stop(&rig);
    }
}

// Token ids: what they spell, special tokens included; broken characters are one U+FFFD.
static void echo_of_ids_is_their_text(void **state) {
    serve_rig rig;
    qn_err err;
    qn_engine *engine = NULL;
    (void)state;
    serve_start(&rig, NULL);
    ASSERT_OK(rig_open(NULL, &engine, NULL, MODELS "/quern-mini-Q8_0.gguf", &err));
    static const char *const lists[] = {"[1, 1222, 2]", "[139, 126, 93]", "[184, 93, 265]"};
    static const int32_t ids[][3] = {{1, 1222, 2}, {139, 126, 93}, {184, 93, 265}};
    for (size_t i = 0; i < 3; i++) {
        char body[128];
        char *want;
        size_t size;
        ASSERT_OK(qn_detokenize(&want, &size, qn_engine_tokenizer(engine), ids[i], 3, true, &err));
        snprintf(body, sizeof body,
                 "{\"prompt\": %s, \"max_tokens\": 0, \"echo\": true, \"logprobs\": 0}", lists[i]);
        json_t *a = post_json(&rig, "/v1/completions", body, 200);
        assert_string_equal(text_of(a), want);
        assert_offsets(json_at(a, "choices.0"), lists[i]);
        if (i == 1) { // two halves of a character, and a letter after it
            assert_string_equal(text_at(a, "choices.0.logprobs.tokens.0"), "bytes:\\xc3");
            assert_int_equal(int_at(a, "choices.0.logprobs.text_offset.1"), 0);
            assert_int_equal(int_at(a, "choices.0.logprobs.text_offset.2"), 1);
        }
        qn_free(want);
        json_decref(a);
    }
    qn_engine_close(engine);
    serve_stop(&rig);
}

// --- answers -------------------------------------------------------------------------------------

static void several_prompts_and_answers_are_numbered(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    json_t *a = post_json(&rig, "/v1/completions",
                          "{\"prompt\": [\"Once upon a\", [1222, 281], \"The sky is\"], \"n\": 2, "
                          "\"best_of\": 2, \"temperature\": 0.9, \"seed\": 5, \"max_tokens\": 4}",
                          200);
    assert_int_equal(count_at(a, "choices"), 6);
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(
            json_integer_value(json_object_get(json_array_get(json_at(a, "choices"), i), "index")),
            i);
    assert_int_equal(int_at(a, "seed"), 5);
    // Each is what it is alone.
    json_t *one = post_json(&rig, "/v1/completions",
                            "{\"prompt\": \"The sky is\", \"n\": 2, \"temperature\": 0.9, "
                            "\"seed\": 5, \"max_tokens\": 4}",
                            200);
    assert_string_equal(text_at(a, "choices.4.text"), text_at(one, "choices.0.text"));
    assert_string_equal(text_at(a, "choices.5.text"), text_at(one, "choices.1.text"));
    json_decref(one);
    json_decref(a);
    serve_stop(&rig);
}

static void answers_have_the_usual_length(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    json_t *a = post_json(&rig, "/v1/completions",
                          "{\"prompt\": \"Once upon a time\", \"ignore_eos\": true}", 200);
    assert_int_equal(int_at(a, "usage.completion_tokens"), 16);
    assert_string_equal(text_at(a, "choices.0.finish_reason"), "length");
    assert_string_equal(text_at(a, "object"), "text_completion");
    assert_true(json_is_null(json_at(a, "choices.0.logprobs")));
    json_decref(a);
    a = post_json(&rig, "/v1/completions", "{\"prompt\": \"Once\", \"max_tokens\": 0}", 200);
    assert_string_equal(text_of(a), "");
    json_decref(a);
    serve_stop(&rig);
}

// The pieces of a stream are the whole answer: text, tokens, numbers and places.
static void a_stream_is_the_whole_in_pieces(void **state) {
    serve_rig rig;
    qn_buf text = {0}, body = {0};
    json_t *lists[4];
    static const char *const names[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
    (void)state;
    serve_start(&rig, NULL);
    qn_buf_printf(&body,
                  "{\"prompt\": \"%s\", \"max_tokens\": 40, \"echo\": true, \"logprobs\": 2, "
                  "\"temperature\": 0, \"stream\": true}",
                  lemon);
    http_answer s = http_post(&rig, "/v1/completions", body.data);
    assert_int_equal(s.status, 200);
    assert_true(s.is_whole);
    json_t *events = sse_events(&s);
    for (size_t k = 0; k < 4; k++) lists[k] = json_array();
    const size_t n = json_array_size(events);
    for (size_t i = 0; i + 1 < n; i++) {
        const json_t *data = json_at(json_array_get(events, i), "data");
        assert_string_equal(text_at(data, "object"), "text_completion");
        qn_buf_text(&text, text_at(data, "choices.0.text"));
        for (size_t k = 0; k < 4; k++) {
            char path[64];
            snprintf(path, sizeof path, "choices.0.logprobs.%s", names[k]);
            if (json_at(data, path)) json_array_extend(lists[k], json_at(data, path));
        }
    }
    assert_string_equal(text_at(json_array_get(events, n - 1), "data"), "[DONE]");
    assert_string_equal(text_at(json_array_get(events, n - 2), "data.choices.0.finish_reason"),
                        "stop");
    assert_true(json_is_integer(json_at(json_array_get(events, n - 2), "data.seed")));
    char *whole_body = strdup(body.data);
    char *at = strstr(whole_body, "\"stream\": true");
    memcpy(at, "\"stream\": null", strlen("\"stream\": null"));
    json_t *a = post_json(&rig, "/v1/completions", whole_body, 200);
    assert_string_equal(text.data, text_of(a));
    for (size_t k = 0; k < 4; k++) {
        char path[64];
        snprintf(path, sizeof path, "choices.0.logprobs.%s", names[k]);
        if (!json_equal(lists[k], json_at(a, path))) fail_msg("%s differ", names[k]);
        json_decref(lists[k]);
    }
    free(whole_body);
    json_decref(a);
    json_decref(events);
    http_deinit(&s);
    qn_buf_deinit(&text);
    qn_buf_deinit(&body);
    serve_stop(&rig);
}

// Chunks of several answers come mixed; those of each are its whole text. With drafts, too.
static void streams_of_several_answers_are_kept_apart(void **state) {
    enum { N = 4 };
    static const char form[] = "{\"prompt\": [\"Once upon a time\", \"The sky is\"], \"n\": 2, "
                               "\"temperature\": 0.9, \"seed\": 5, \"max_tokens\": 30, "
                               "\"logprobs\": 1, \"echo\": true, \"stream\": %s}";
    (void)state;
    for (int drafts = 0; drafts < 2; drafts++) {
        serve_rig rig;
        char body[512];
        qn_buf texts[N] = {0};
        size_t n_tokens[N] = {0};
        serve_start(&rig,
                    &(qn_server_opts){.generate = QN_INIT(qn_generate_opts, .lookup = drafts > 0,
                                                          .draft_min = drafts ? 2 : 0)});
        snprintf(body, sizeof body, form, "true");
        http_answer s = http_post(&rig, "/v1/completions", body);
        json_t *events = sse_events(&s);
        for (size_t i = 0; i + 1 < json_array_size(events); i++) {
            const json_t *choice = json_at(json_array_get(events, i), "data.choices.0");
            const int64_t index = int_at(choice, "index");
            assert_true(index >= 0 && index < N);
            qn_buf_text(&texts[index], text_at(choice, "text"));
            n_tokens[index] += count_at(choice, "logprobs.tokens");
        }
        snprintf(body, sizeof body, form, "false");
        json_t *a = post_json(&rig, "/v1/completions", body, 200);
        for (size_t i = 0; i < N; i++) {
            const json_t *choice = json_array_get(json_at(a, "choices"), i);
            assert_string_equal(texts[i].data, text_at(choice, "text"));
            assert_int_equal(n_tokens[i], count_at(choice, "logprobs.tokens"));
            assert_offsets(choice, "a stream");
            qn_buf_deinit(&texts[i]);
        }
        json_decref(a);
        json_decref(events);
        http_deinit(&s);
        serve_stop(&rig);
    }
}

static void stops_and_grammars_hold(void **state) {
    serve_rig rig;
    qn_buf body = {0};
    (void)state;
    serve_start(&rig, NULL);
    qn_buf_printf(&body,
                  "{\"prompt\": \"%s\", \"max_tokens\": 30, \"stop\": [\" yel\"], "
                  "\"logprobs\": 0, \"temperature\": 0}",
                  lemon);
    json_t *a = post_json(&rig, "/v1/completions", body.data, 200);
    assert_string_equal(text_of(a), "A lemon is");
    assert_string_equal(text_at(a, "choices.0.finish_reason"), "stop");
    assert_offsets(json_at(a, "choices.0"), "a stop string");
    json_decref(a);
    a = post_json(&rig, "/v1/completions",
                  "{\"prompt\": \"Say:\", \"grammar\": \"root ::= \\\"yes\\\" | \\\"no\\\"\"}",
                  200);
    assert_true(strcmp(text_of(a), "yes") == 0 || strcmp(text_of(a), "no") == 0);
    json_decref(a);
    a = post_json(&rig, "/v1/completions",
                  "{\"prompt\": \"Say:\", \"max_tokens\": 60, \"response_format\": {\"type\": "
                  "\"json_schema\", \"json_schema\": {\"name\": \"a\", \"schema\": {\"type\": "
                  "\"object\", \"properties\": {\"n\": {\"enum\": [4]}}, \"required\": [\"n\"], "
                  "\"additionalProperties\": false}}}}",
                  200);
    assert_non_null(strstr(text_of(a), "\"n\""));
    assert_string_equal(text_at(a, "choices.0.finish_reason"), "stop");
    json_decref(a);
    qn_buf_deinit(&body);
    serve_stop(&rig);
}

// --- refusals ------------------------------------------------------------------------------------

static void wrong_requests_are_refused_by_name(void **state) {
    static const refused_case cases[] = {
        {"{}", "prompt", "no 'prompt'"},
        {"{\"prompt\": \"\"}", "prompt", "no tokens"},
        {"{\"prompt\": []}", "prompt", "no tokens"},
        {"{\"prompt\": [\"a\", \"\"]}", "prompt", "item 1 has no tokens"},
        {"{\"prompt\": [1, -5]}", "prompt", "item 1 is not a token id"},
        {"{\"prompt\": [1, 99999999]}", "prompt", "item 1 is not a token id"},
        {"{\"prompt\": [[1], [2.5]]}", "prompt", "'prompt', item 1, item 0"},
        {"{\"prompt\": [{}]}", "prompt", "item 0 is not a text"},
        {"{\"prompt\": 5}", "prompt", "integer"},
        {"{\"prompt\": \"a\", \"suffix\": \"b\"}", "suffix", "not supported"},
        {"{\"prompt\": \"a\", \"best_of\": 2}", "best_of", "'best_of' is 2 and 'n' is 1"},
        {"{\"prompt\": \"a\", \"logprobs\": -1}", "logprobs", "-1"},
        {"{\"prompt\": \"a\", \"logprobs\": 100000}", "logprobs", "100000"},
        {"{\"prompt\": \"a\", \"stream_options\": {}}", "stream_options", "without 'stream'"},
    };
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    assert_all_refused(&rig, "/v1/completions", cases, sizeof cases / sizeof *cases);
    serve_stop(&rig);
}

// What would help: a larger -c where the model has more, num_ctx where the request has that.
static void advice_helps(void **state) {
    static const struct {
        int64_t context;
        const char *path, *more, *advice;
    } rows[] = {{64, "/v1/completions", "", "or serve with a larger context (-c)"},
                {5000, "/v1/completions", "", "shorten it: the model has no more"},
                {0, "/v1/completions", "", "shorten it: the model has no more"},
                {64, "/v1/embeddings", "", "or serve with a larger context (-c)"},
                {5000, "/v1/embeddings", "", "shorten it: the model has no more"}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        serve_rig rig;
        qn_buf body = {0};
        serve_start(&rig, &(qn_server_opts){.context = rows[i].context});
        const bool is_text = strcmp(rows[i].path, "/v1/completions") == 0;
        qn_buf_printf(&body, "{\"%s\": [1", is_text ? "prompt" : "input");
        for (int k = 0; k < 2100; k++) qn_buf_text(&body, ", 1222");
        qn_buf_text(&body, "]}");
        json_t *a = post_json(&rig, rows[i].path, body.data, 400);
        assert_says(a, rows[i].advice);
        json_decref(a);
        qn_buf_deinit(&body);
        serve_stop(&rig);
    }
    serve_rig rig;
    serve_start(&rig, NULL);
    json_t *a = post_quoted(&rig, "/api/generate",
                            "{'prompt':'one two three four five six seven eight','stream':false,"
                            "'options':{'num_ctx':4}}",
                            400);
    assert_non_null(strstr(text_at(a, "error"), "or ask for a larger num_ctx"));
    json_decref(a);
    serve_stop(&rig);
}

// Which prompt does not fit is said, and nothing is computed for the others; without an answer a
// prompt may fill the context.
static void a_prompt_that_does_not_fit_is_named(void **state) {
    enum { CONTEXT = 64 };
    serve_rig rig;
    qn_buf body = {0};
    (void)state;
    serve_start(&rig, &(qn_server_opts){.context = CONTEXT});
    for (int extra = 0; extra < 2; extra++) {
        for (int max_tokens = 0; max_tokens < 2; max_tokens++) {
            qn_buf_clear(&body);
            qn_buf_text(&body, "{\"prompt\": [\"a\", [1");
            for (int i = 1; i < CONTEXT + extra; i++) qn_buf_text(&body, ", 1222");
            qn_buf_printf(&body, "]], \"echo\": true, \"max_tokens\": %d}", max_tokens);
            const bool fits = !extra && !max_tokens;
            json_t *a = post_json(&rig, "/v1/completions", body.data, fits ? 200 : 400);
            if (!fits) {
                assert_string_equal(text_at(a, "error.type"), "exceed_context_size_error");
                assert_string_equal(text_at(a, "error.code"), "context_length_exceeded");
                assert_int_equal(int_at(a, "error.n_prompt_tokens"), CONTEXT + extra);
                assert_int_equal(int_at(a, "error.n_ctx"), CONTEXT);
                assert_non_null(strstr(text_at(a, "error.message"), "'prompt', item 1"));
                assert_non_null(strstr(text_at(a, "error.message"),
                                       "exceeds the available context size of 64"));
            }
            json_decref(a);
        }
    }
    qn_buf_deinit(&body);
    serve_stop(&rig);
}

// More log-probabilities than fit in an answer are refused before anything is computed.
static void too_many_logprobs_are_refused(void **state) {
    serve_rig rig;
    qn_buf body = {0};
    (void)state;
    serve_start(&rig, NULL);
    qn_buf_text(&body, "{\"prompt\": [1");
    for (int i = 0; i < 1000; i++) qn_buf_text(&body, ", 1222");
    qn_buf_text(&body, "], \"echo\": true, \"max_tokens\": 0, \"logprobs\": 20, \"stream\": true}");
    json_t *a = post_json(&rig, "/v1/completions", body.data, 400);
    assert_string_equal(text_at(a, "error.param"), "logprobs");
    assert_non_null(strstr(text_at(a, "error.message"), "21021"));
    json_decref(a);
    qn_buf_deinit(&body);
    serve_stop(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evaluations_get_the_librarys_numbers),
        cmocka_unit_test(the_token_that_ends_an_answer_has_its_place),
        cmocka_unit_test(echo_is_the_prompt),
        cmocka_unit_test(echo_of_ids_is_their_text),
        cmocka_unit_test(several_prompts_and_answers_are_numbered),
        cmocka_unit_test(answers_have_the_usual_length),
        cmocka_unit_test(a_stream_is_the_whole_in_pieces),
        cmocka_unit_test(streams_of_several_answers_are_kept_apart),
        cmocka_unit_test(stops_and_grammars_hold),
        cmocka_unit_test(wrong_requests_are_refused_by_name),
        cmocka_unit_test(a_prompt_that_does_not_fit_is_named),
        cmocka_unit_test(advice_helps),
        cmocka_unit_test(too_many_logprobs_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
