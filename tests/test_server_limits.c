// What an attacker can take of the server: time for texts that no model reads, memory, connections.
#include "serve_rig.h"

#include "core/mem.h"

#define CHAT "/v1/chat/completions"

// --- long texts ----------------------------------------------------------------------------------

enum { CONTEXT = 2048, BOUND = CONTEXT + (1 << 16) }; // of the bundled model; tokens that are read

// A body with `n` times `unit` between its two halves, to be freed.
static char *long_body(const char *before, const char *unit, size_t n, const char *after) {
    qn_buf out = {0};
    char *text = NULL;
    qn_err err;
    qn_buf_text(&out, before);
    for (size_t i = 0; i < n; i++) qn_buf_text(&out, unit);
    qn_buf_text(&out, after);
    ASSERT_OK(qn_buf_take(&text, &out, &err));
    return text;
}

// A text that is far too long is refused by what is certain of its length, in the words that
// clients look for; one that is a little too long is counted.
static void the_length_of_a_long_text_is_not_counted(void **state) {
    static const struct {
        const char *path, *before, *after;
    } cases[] = {
        {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"", "\"}]}"},
        {"/v1/responses", "{\"input\":\"", "\"}"},
        {"/v1/completions", "{\"prompt\":\"", "\"}"},
        {"/completion", "{\"prompt\":[1,2,\"", "\"]}"},
        {"/v1/embeddings", "{\"input\":\"", "\"}"},
    };
    static const char *const units[] = {" word", "a"};
    char want[128];
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    snprintf(want, sizeof want,
             "has at least %d tokens, which exceeds the available context size of %d tokens",
             BOUND + 1, CONTEXT);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t k = 0; k < 2; k++) {
            char *body =
                long_body(cases[i].before, units[k], k ? 8 << 20 : 1 << 18, cases[i].after);
            json_t *a = post_json(&rig, cases[i].path, body, 400);
            assert_string_equal(text_at(a, "error.code"), "context_length_exceeded");
            assert_says(a, want);
            assert_int_equal(json_integer_value(json_at(a, "error.n_prompt_tokens")), BOUND + 1);
            json_decref(a);
            qn_free(body);
        }
        char *body = long_body(cases[i].before, " word", 2 * CONTEXT, cases[i].after);
        json_t *a = post_json(&rig, cases[i].path, body, 400);
        assert_null(strstr(text_at(a, "error.message"), "at least"));
        assert_in_range(json_integer_value(json_at(a, "error.n_prompt_tokens")), 2 * CONTEXT,
                        BOUND);
        json_decref(a);
        qn_free(body);
    }
    serve_stop(&rig);
}

static void the_words_that_clients_look_for_stay(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    char *body = long_body("{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"",
                           " word", 1 << 18, "\"}]}");
    char want[128];
    snprintf(want, sizeof want, "prompt is too long: %d tokens > %d maximum", BOUND + 1, CONTEXT);
    json_t *a = post_json(&rig, "/v1/messages", body, 400);
    assert_says(a, want);
    json_decref(a);
    // Turns may be left out, but the question is too long by itself.
    body[strlen(body) - 1] = 0;
    char *other = long_body(body, ",\"leave_out\":true}", 1, "");
    a = post_json(&rig, CHAT, other, 400);
    assert_string_equal(text_at(a, "error.code"), "context_length_exceeded");
    json_decref(a);
    // What is only counted may have any length.
    body[strlen(body)] = '}';
    a = post_json(&rig, "/v1/messages/count_tokens", body, 200);
    assert_true(json_integer_value(json_at(a, "input_tokens")) > 1 << 18);
    json_decref(a);
    qn_free(other);
    qn_free(body);
    serve_stop(&rig);
}

// The first tokens are the same, however many follow.
static void embeddings_of_cut_texts_are_of_their_beginning(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    json_t *rows[2];
    for (size_t i = 0; i < 2; i++) {
        char *body =
            long_body("{\"truncate\":true,\"input\":\"", " word", i ? 1 << 18 : 3 * CONTEXT, "\"}");
        json_t *a = post_json(&rig, "/api/embed", body, 200);
        rows[i] = json_incref(json_at(a, "embeddings.0"));
        assert_int_equal(json_integer_value(json_at(a, "prompt_eval_count")), CONTEXT);
        json_decref(a);
        qn_free(body);
    }
    assert_true(json_equal(rows[0], rows[1]));
    json_decref(rows[0]);
    json_decref(rows[1]);
    serve_stop(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_length_of_a_long_text_is_not_counted),
        cmocka_unit_test(the_words_that_clients_look_for_stay),
        cmocka_unit_test(embeddings_of_cut_texts_are_of_their_beginning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
