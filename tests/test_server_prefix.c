// Prompts that begin as an earlier one did: only what is new is computed, and the answer is the one
// that it would be without the cache. docs/state.md says where a family may continue: with full
// attention after any token, with recurrent layers where state is kept (after the messages of a
// conversation, after a prompt, and after its last step but one).
#include "serve_rig.h"

#define CHAT "/v1/chat/completions"

enum { N_PREFIX = 1900, N_NEW = 10, CHUNK = 512 };

static const char *const models[] = {MODELS "/quern-mini-Q8_0.gguf",
                                     MODELS "/quern-hybrid-Q8_0.gguf"};
enum { DENSE, HYBRID, N_MODELS };

static const qn_server_opts *opts_of(qn_server_opts *opts, size_t model, bool has_cache) {
    *opts = (qn_server_opts){.model = models[model], .chunk = CHUNK, .no_prefix_cache = !has_cache};
    return opts;
}

static int64_t number_at(const json_t *a, const char *path) {
    const json_t *value = json_at(a, path);
    if (!json_is_integer(value)) fail_msg("there is no number at %s", path);
    return json_integer_value(value);
}

// A text of about 1,930 tokens.
static void write_book(qn_buf *to) {
    for (int i = 0; i < 120; i++)
        qn_buf_printf(to, "Line %d: the lemon is yellow and the sky is blue. ", i);
}

// --- token ids -----------------------------------------------------------------------------------

// The ids of a text (JSON, without quotes), to be released.
static json_t *tokenize(const serve_rig *rig, const char *text) {
    qn_buf body = {0};
    qn_buf_printf(&body, "{\"content\": \"%s\"}", text);
    json_t *a = post_json(rig, "/tokenize", body.data, 200);
    json_t *ids = json_incref(json_at(a, "tokens"));
    json_decref(a);
    qn_buf_deinit(&body);
    return ids;
}

// Answers the first ids, after which those of the book's beginning come: what the model says itself
// is kept as well, and it knows how the book goes on. The result is to be released.
static json_t *complete(const serve_rig *rig, const json_t *ids, size_t n) {
    enum { SKIPPED = 3 };
    qn_buf body = {0};
    qn_buf_text(&body, "{\"prompt\": [");
    for (size_t i = 0; i < n; i++)
        qn_buf_printf(&body, "%s%lld", i ? "," : "",
                      (long long)json_integer_value(
                          json_array_get(ids, i < N_PREFIX ? i : i - N_PREFIX + SKIPPED)));
    qn_buf_text(&body, "], \"temperature\": 0, \"n_predict\": 8}");
    json_t *a = post_json(rig, "/completion", body.data, 200);
    qn_buf_deinit(&body);
    return a;
}

// The second prompt is the first one and ten tokens more: exactly these are computed.
static void only_new_tokens_are_computed(void **state) {
    (void)state;
    for (size_t m = 0; m < N_MODELS; m++) {
        serve_rig rig, plain;
        qn_server_opts opts;
        qn_buf book = {0};
        serve_start(&rig, opts_of(&opts, m, true));
        serve_start(&plain, opts_of(&opts, m, false));
        write_book(&book);
        json_t *ids = tokenize(&rig, book.data);
        assert_true(json_array_size(ids) >= N_PREFIX);
        json_t *first = complete(&rig, ids, N_PREFIX);
        assert_int_equal(number_at(first, "timings.cache_n"), 0);
        assert_int_equal(number_at(first, "timings.prompt_n"), N_PREFIX);
        json_t *second = complete(&rig, ids, N_PREFIX + N_NEW);
        assert_int_equal(number_at(second, "timings.cache_n"), N_PREFIX);
        assert_int_equal(number_at(second, "timings.prompt_n"), N_NEW);
        json_t *alone = complete(&plain, ids, N_PREFIX + N_NEW);
        assert_int_equal(number_at(alone, "timings.cache_n"), 0);
        assert_string_equal(text_at(second, "content"), text_at(alone, "content"));
        json_decref(first), json_decref(second), json_decref(alone), json_decref(ids);
        qn_buf_deinit(&book);
        serve_stop(&plain);
        serve_stop(&rig);
    }
}

// --- conversations -------------------------------------------------------------------------------

#define USER(text)      ", {\"role\": \"user\", \"content\": \"" text "\"}"
#define ASSISTANT(text) ", {\"role\": \"assistant\", \"content\": \"" text "\"}"

// Asks with the book as the system message; the result is to be released.
static json_t *ask(const serve_rig *rig, const char *path, const char *turns, const char *more) {
    qn_buf body = {0};
    qn_buf_text(&body, "{\"messages\": [{\"role\": \"system\", \"content\": \"");
    write_book(&body);
    qn_buf_printf(&body, "\"}%s], \"temperature\": 0, \"max_tokens\": 8%s}", turns, more);
    json_t *a = post_json(rig, path, body.data, 200);
    qn_buf_deinit(&body);
    return a;
}

// Tokens of the messages, without the beginning of the answer.
static int64_t count_messages(const serve_rig *rig, const char *turns) {
    json_t *a = ask(rig, CHAT "/input_tokens", turns, ", \"add_generation_prompt\": false");
    const int64_t n = number_at(a, "input_tokens");
    json_decref(a);
    return n;
}

// The ids of a conversation's prompt, to be released.
static json_t *prompt_ids(const serve_rig *rig, const char *turns) {
    json_t *a = ask(rig, "/apply-template", turns, "");
    json_t *body = json_pack("{s:O}", "content", json_at(a, "prompt"));
    char *text = json_dumps(body, 0);
    json_t *b = post_json(rig, "/tokenize", text, 200);
    json_t *ids = json_incref(json_at(b, "tokens"));
    free(text);
    json_decref(a), json_decref(b), json_decref(body);
    return ids;
}

static int64_t common_ids(const serve_rig *rig, const char *one, const char *other) {
    json_t *a = prompt_ids(rig, one), *b = prompt_ids(rig, other);
    size_t n = 0;
    while (n < json_array_size(a) && json_equal(json_array_get(a, n), json_array_get(b, n))) n++;
    json_decref(a), json_decref(b);
    return (int64_t)n;
}

// The tokens of an answer's prompt that came from the cache; both dialects of numbers agree.
static int64_t cached_in(const json_t *a) {
    const int64_t n = number_at(a, "usage.prompt_tokens_details.cached_tokens");
    assert_int_equal(number_at(a, "timings.cache_n"), n);
    assert_int_equal(number_at(a, "timings.prompt_n"), number_at(a, "usage.prompt_tokens") - n);
    return n;
}

static void check_text(const serve_rig *plain, const char *turns, const json_t *a) {
    json_t *alone = ask(plain, CHAT, turns, "");
    assert_int_equal(cached_in(alone), 0);
    assert_string_equal(text_at(a, "choices.0.message.content"),
                        text_at(alone, "choices.0.message.content"));
    json_decref(alone);
}

static const char lemon[] = USER("What color is a lemon?");
static const char sky[] = USER("What color is the sky?");
static const char longer[] = USER("What color is a lemon?") ASSISTANT("Yellow.") USER("Really?");

static void conversations_go_on_where_they_were(void **state) {
    (void)state;
    for (size_t m = 0; m < N_MODELS; m++) {
        serve_rig rig, plain;
        qn_server_opts opts;
        serve_start(&rig, opts_of(&opts, m, true));
        serve_start(&plain, opts_of(&opts, m, false));
        json_t *a = ask(&rig, CHAT, lemon, "");
        const int64_t n_prompt = number_at(a, "usage.prompt_tokens");
        const int64_t n_messages = count_messages(&rig, lemon);
        assert_true(n_messages > N_PREFIX && n_messages < n_prompt);
        assert_int_equal(cached_in(a), 0);
        json_decref(a);
        // The same again: the last token, or the beginning of the answer, is computed.
        a = ask(&rig, CHAT, lemon, "");
        assert_int_equal(cached_in(a), m == DENSE ? n_prompt - 1 : n_messages);
        check_text(&plain, lemon, a);
        json_decref(a);
        // A turn later: all that was in the first prompt is there.
        a = ask(&rig, CHAT, longer, "");
        assert_int_equal(common_ids(&rig, lemon, longer), n_prompt);
        assert_int_equal(cached_in(a), n_prompt);
        check_text(&plain, longer, a);
        json_decref(a);
        serve_stop(&plain);
        serve_stop(&rig);
    }
}

// Another question about the same book: after the last common token, or up to a step before it.
static void another_question_has_the_book(void **state) {
    (void)state;
    for (size_t m = 0; m < N_MODELS; m++) {
        serve_rig rig, plain;
        qn_server_opts opts;
        serve_start(&rig, opts_of(&opts, m, true));
        serve_start(&plain, opts_of(&opts, m, false));
        json_decref(ask(&rig, CHAT, lemon, ""));
        const int64_t n_common = common_ids(&rig, lemon, sky);
        assert_true(n_common > N_PREFIX);
        json_t *a = ask(&rig, CHAT, sky, "");
        const int64_t n_cached = cached_in(a);
        assert_int_equal(n_cached, m == DENSE ? n_common : n_common / CHUNK * CHUNK);
        check_text(&plain, sky, a);
        json_decref(a);
        serve_stop(&plain);
        serve_stop(&rig);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_new_tokens_are_computed),
        cmocka_unit_test(conversations_go_on_where_they_were),
        cmocka_unit_test(another_question_has_the_book),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
