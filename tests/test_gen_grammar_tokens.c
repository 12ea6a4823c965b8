// Rules that name tokens themselves: <text>, <[id]>, and with ! any other. What counts is the
// token, not the bytes that it stands for.
#include "testing.h"

#include "gen/grammar/grammar.h"
#include "tokenizer/tokenizer.h"

enum { END, THINK, CLOSE, A, B, LESS, WORD, MORE, AB, N_TOKENS };

static const char vocabulary[] =
    "{\"added_tokens\": [{\"id\": 0, \"content\": \"<|im_end|>\", \"special\": true}, {\"id\": 1, "
    "\"content\": \"<think>\", \"special\": true}, {\"id\": 2, \"content\": \"</think>\", "
    "\"special\": false}], \"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", "
    "\"vocab\": {\"<|im_end|>\": 0, \"<think>\": 1, \"</think>\": 2, \"a\": 3, \"b\": 4, \"<\": 5, "
    "\"think\": 6, \">\": 7, \"ab\": 8}, \"merges\": []}}";

static qn_tokenizer *tokenizer;

static int set_up(void **state) {
    (void)state;
    qn_err err;
    const qn_status status =
        qn_tokenizer_from_json(&tokenizer, vocabulary, sizeof vocabulary - 1, "small", &err);
    if (status) print_error("%s\n", err.message);
    return (int)status;
}

static int tear_down(void **state) {
    (void)state;
    qn_tokenizer_close(tokenizer);
    return 0;
}

static qn_grammar *make(const char *text) {
    qn_err err;
    qn_grammar *grammar;
    ASSERT_OK(
        qn_grammar_create(&grammar, tokenizer, QN_GRAMMAR_GBNF, text, strlen(text), NULL, &err));
    return grammar;
}

static uint32_t mask_of(qn_matcher *matcher) {
    qn_err err;
    const uint32_t *mask;
    ASSERT_OK(qn_matcher_mask(&mask, matcher, &err));
    return mask[0];
}

// The tokens are accepted one after the other, each in the mask; what is not in a mask is refused.
static void follow(const char *text, const int *tokens, size_t n, uint32_t last_mask) {
    qn_err err;
    qn_matcher *matcher;
    qn_grammar *grammar = make(text);
    ASSERT_OK(qn_matcher_create(&matcher, grammar, 0, &err));
    for (size_t i = 0; i < n; i++) {
        const uint32_t mask = mask_of(matcher);
        for (int id = 0; id < N_TOKENS; id++)
            if (!(mask >> id & 1))
                assert_int_equal(qn_matcher_accept(matcher, id, &err), QN_ARGUMENT);
        assert_int_equal(mask_of(matcher), mask);
        ASSERT_OK(qn_matcher_accept(matcher, tokens[i], &err));
    }
    assert_int_equal(mask_of(matcher), last_mask);
    qn_matcher_destroy(matcher);
    qn_grammar_destroy(grammar);
}

#define FOLLOW(text, mask, ...)                                                                    \
    do {                                                                                           \
        const int tokens_[] = {__VA_ARGS__};                                                       \
        follow(text, tokens_, sizeof tokens_ / sizeof *tokens_, mask);                             \
    } while (0)

static void a_token_is_not_its_bytes(void **state) {
    (void)state;
    // A control token, which has no bytes at all here, and one that has.
    FOLLOW("root ::= <think> \"a\"", 1u << A, THINK);
    FOLLOW("root ::= <think> \"a\"", 1u << END, THINK, A);
    FOLLOW("root ::= </think> \"a\"", 1u << A, CLOSE);
    FOLLOW("root ::= <[8]> <[1]>", 1u << THINK, AB);
    // The same text by bytes does not take the control token.
    FOLLOW("root ::= \"<think>\" \"a\"", 1u << WORD, LESS);
}

static void any_other_token(void **state) {
    (void)state;
    const uint32_t others =
        1u << A | 1u << B | 1u << LESS | 1u << WORD | 1u << MORE | 1u << AB; // they have a text
    FOLLOW("root ::= <think> !</think>* </think>", others | 1u << CLOSE, THINK, A, AB, WORD);
    FOLLOW("root ::= <think> !</think>* </think>", 1u << END, THINK, A, CLOSE);
    FOLLOW("root ::= !<[3]>{2} \"a\"", (others & ~(1u << A)) | 1u << CLOSE, B);
    FOLLOW("root ::= !<[3]>{2} \"a\"", 1u << A, B, CLOSE);
}

static void bytes_and_tokens_at_once(void **state) {
    (void)state;
    // After "ab" the token has come, or its bytes, or the first of them.
    FOLLOW("root ::= <[8]> \"b\" | \"a\" \"b\" <[3]> | \"ab\"", 1u << END | 1u << A | 1u << B, AB);
    FOLLOW("root ::= <[8]> \"b\" | \"a\" \"b\" <[3]> | \"ab\"", 1u << END | 1u << A, A, B);
    FOLLOW("root ::= (\"a\" | <[3]>){3} \"b\"", 1u << A | 1u << AB, A, A);
}

static void tokens_that_are_not_there(void **state) {
    (void)state;
    static const char *const texts[][2] = {
        {"root ::= <nothing>", "no token <nothing>"},
        {"root ::= <[9]>", "token 9: the vocabulary has 9"},
        {"root ::= <[99999999999999999999]>", "the vocabulary has 9"},
        {"root ::= <[x]>", "<[number]>"},
        {"root ::= <[1>", "<[number]>"},
        {"root ::= !\"a\"", "after !"},
        {"root ::= <think", "without its >"},
        {"root ::= <|im_end|>", "ends an answer"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        qn_err err = {0};
        qn_grammar *grammar = NULL;
        assert_int_not_equal(qn_grammar_create(&grammar, tokenizer, QN_GRAMMAR_GBNF, texts[i][0],
                                               strlen(texts[i][0]), NULL, &err),
                             QN_OK);
        if (!strstr(err.message, texts[i][1])) fail_msg("%s: %s", texts[i][0], err.message);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_is_not_its_bytes), cmocka_unit_test(any_other_token),
        cmocka_unit_test(bytes_and_tokens_at_once), cmocka_unit_test(tokens_that_are_not_there)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
