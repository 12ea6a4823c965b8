// Gates: where a grammar begins to hold, token by token, with tags that are special tokens, tokens
// with a text, or several tokens of which one goes on behind the tag.
#include "testing.h"

#include "gen/grammar/gate.h"
#include "tokenizer/tokenizer.h"

enum { END, CALL, OTHER, SHUT, A, B, LESS, THINK, MORE, MORE_A, MORE_B, LINE, LINE_A, N_TOKENS };

// CALL and OTHER are special; SHUT ("</t>") has a text; "<t>" is made of three tokens.
static const char vocabulary[] =
    "{\"added_tokens\": [{\"id\": 0, \"content\": \"<|im_end|>\", \"special\": true}, {\"id\": 1, "
    "\"content\": \"<call>\", \"special\": true}, {\"id\": 2, \"content\": \"<other>\", "
    "\"special\": true}, {\"id\": 3, \"content\": \"</t>\", \"special\": false}], \"decoder\": "
    "{\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"vocab\": {\"<|im_end|>\": 0, "
    "\"<call>\": 1, \"<other>\": 2, \"</t>\": 3, \"a\": 4, \"b\": 5, \"<\": 6, \"t\": 7, \">\": 8, "
    "\">a\": 9, \">b\": 10, \"\xc4\x8a\": 11, \"\xc4\x8a"
    "a\": 12}, \"merges\": []}}";

enum { ALL = (1 << N_TOKENS) - 1 };

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

static qn_matcher *make(qn_grammar **grammar, const char *regex, const qn_gr_gate *gate) {
    qn_err err;
    qn_grammar *inner;
    qn_matcher *matcher;
    ASSERT_OK(
        qn_grammar_create(&inner, tokenizer, QN_GRAMMAR_REGEX, regex, strlen(regex), NULL, &err));
    ASSERT_OK(qn_grammar_create_gated(grammar, inner, gate, &err));
    qn_grammar_destroy(inner); // it is held
    ASSERT_OK(qn_matcher_create(&matcher, *grammar, 0, &err));
    return matcher;
}

// What may come: all bits where anything may.
static int mask_of(qn_matcher *matcher) {
    qn_err err;
    const uint32_t *mask;
    ASSERT_OK(qn_matcher_mask(&mask, matcher, &err));
    return mask ? (int)mask[0] : ALL;
}

typedef struct step {
    int token, mask; // the mask before it
} step;

static void follow(const char *regex, const qn_gr_gate *gate, const step *steps, size_t n, int last,
                   bool is_done) {
    qn_err err;
    qn_grammar *grammar;
    qn_matcher *matcher = make(&grammar, regex, gate);
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < n; i++) {
            const int mask = mask_of(matcher);
            if (mask != steps[i].mask)
                fail_msg("%s, step %zu: mask %x, want %x", regex, i, mask, steps[i].mask);
            ASSERT_OK(qn_matcher_accept(matcher, steps[i].token, &err));
        }
        if (mask_of(matcher) != last)
            fail_msg("%s: last mask %x, want %x", regex, mask_of(matcher), last);
        assert_int_equal(qn_matcher_is_done(matcher), is_done);
        qn_matcher_reset(matcher);
    }
    qn_matcher_destroy(matcher);
    qn_grammar_destroy(grammar);
}

#define BIT(x) (1 << (x))
#define FOLLOW(regex, gate, last, is_done, ...)                                                    \
    do {                                                                                           \
        const step steps_[] = {__VA_ARGS__};                                                       \
        follow(regex, gate, steps_, sizeof steps_ / sizeof *steps_, last, is_done);                \
    } while (0)

static void a_special_token_opens_the_gate(void **state) {
    (void)state;
    const qn_gr_gate gate = {
        .call = "<call>", .again = true, .pieces = {{"<call>", CALL}}, .n_pieces = 1};
    FOLLOW("ab", &gate, ALL, false, {A, ALL}, {OTHER, ALL}, {CALL, ALL}, {A, BIT(A)}, {B, BIT(B)},
           {B, ALL});
    FOLLOW("ab", &gate, BIT(A), false, {CALL, ALL}, {A, BIT(A)}, {B, BIT(B)}, {CALL, ALL});
    const qn_gr_gate once = {.call = "<call>", .pieces = {{"<call>", CALL}}, .n_pieces = 1};
    FOLLOW("ab", &once, BIT(END), true, {CALL, ALL}, {A, BIT(A)}, {B, BIT(B)});
}

static void a_tag_of_several_tokens(void **state) {
    (void)state;
    const qn_gr_gate gate = {.call = "<t>", .again = true};
    const int without_b = ALL & ~BIT(MORE_B);
    FOLLOW("ab", &gate, BIT(A), false, {B, ALL}, {LESS, ALL}, {LESS, ALL}, {THINK, ALL},
           {MORE, without_b});
    // The token that ends the tag is part of what it holds for.
    FOLLOW("ab", &gate, BIT(B), false, {LESS, ALL}, {THINK, ALL}, {MORE_A, without_b});
    FOLLOW("ab", &gate, ALL, false, {LESS, ALL}, {THINK, ALL}, {THINK, without_b}, {MORE_B, ALL});
}

static void a_tag_that_counts_at_the_start(void **state) {
    (void)state;
    const qn_gr_gate gate = {.call = "<t>", .is_first = true, .again = true};
    const int without_b = ALL & ~BIT(MORE_B);
    FOLLOW("ab", &gate, BIT(A), false, {LINE, ALL}, {LESS, ALL}, {THINK, ALL}, {MORE, without_b});
    FOLLOW("ab", &gate, ALL, false, {A, ALL}, {LESS, ALL}, {THINK, ALL}, {MORE, ALL});
}

static const qn_gr_gate thinks = {.pairs = {{"<t>", "</t>"}}, .n_pairs = 1};

static void reasoning_comes_first(void **state) {
    (void)state;
    const int held = BIT(A), free_text = ALL & ~BIT(END);
    const int leading = BIT(A) | BIT(LINE) | BIT(LINE_A);
    FOLLOW("ab", &thinks, BIT(B), false, {LESS, held | BIT(LESS)}, {THINK, BIT(THINK)},
           {MORE, BIT(MORE) | BIT(MORE_A) | BIT(MORE_B)}, {OTHER, free_text}, {B, free_text},
           {SHUT, free_text}, {LINE, leading}, {LINE_A, leading});
    FOLLOW("ab", &thinks, BIT(END), true, {A, held | BIT(LESS)}, {B, BIT(B)});
    const qn_gr_gate inside = {.pairs = {{"<t>", "</t>"}}, .n_pairs = 1, .is_inside = true};
    FOLLOW("ab", &inside, BIT(B), false, {CALL, free_text}, {SHUT, free_text}, {A, leading});
    // A few blanks, not any number.
    FOLLOW("ab", &inside, BIT(A), false, {SHUT, free_text}, {LINE, leading}, {LINE, leading},
           {LINE, leading}, {LINE, leading});
    // What the grammar begins as the tag does.
    FOLLOW("<a|b", &thinks, BIT(END), true, {LESS, BIT(LESS) | BIT(B)}, {A, BIT(A) | BIT(THINK)});
}

static void reasoning_before_free_text(void **state) {
    (void)state;
    const qn_gr_gate gate = {.pairs = {{"<t>", "</t>"}},
                             .n_pairs = 1,
                             .call = "<call>",
                             .again = true,
                             .pieces = {{"<call>", CALL}},
                             .n_pieces = 1};
    // Tags in it are not calls; those after it are.
    FOLLOW("ab", &gate, BIT(A), false, {LINE, ALL}, {LESS, ALL}, {THINK, ALL}, {MORE, ALL},
           {CALL, ALL}, {A, ALL}, {SHUT, ALL}, {LINE, ALL}, {CALL, ALL});
    // In the middle of a text the tag is text.
    FOLLOW("ab", &gate, BIT(A), false, {A, ALL}, {LESS, ALL}, {THINK, ALL}, {MORE, ALL},
           {CALL, ALL});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_special_token_opens_the_gate), cmocka_unit_test(a_tag_of_several_tokens),
        cmocka_unit_test(a_tag_that_counts_at_the_start), cmocka_unit_test(reasoning_comes_first),
        cmocka_unit_test(reasoning_before_free_text),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
