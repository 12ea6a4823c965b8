// Grammars and required calls in a conversation hold for what follows the reasoning.
#include "chat_rig.h"

static const char schema[] = "{\"type\": \"object\", \"properties\": {\"n\": {\"type\": "
                             "\"integer\"}}, \"required\": [\"n\"], \"additionalProperties\": "
                             "false}";

static qn_grammar *make_grammar(qn_grammar_kind kind, const char *text) {
    qn_err err;
    qn_grammar *grammar;
    ASSERT_OK(qn_grammar_create(&grammar, t.tokenizer, kind, text, strlen(text), NULL, &err));
    return grammar;
}

// The answer of a template in which the model wants to write `first` above all, and `second`.
static void answer_by(told *seen, qn_result *result, const char *template_name,
                      const qn_grammar *grammar, qn_reasoning reasoning, const char *first,
                      const char *second) {
    qn_template *template = template_name ? open_template(template_name) : NULL;
    const qn_generate_opts generate = QN_INIT(qn_generate_opts, .grammar = grammar);
    const qn_chat_prompt_opts prompt = QN_INIT(qn_chat_prompt_opts, .reasoning = reasoning);
    answer(seen, result, NULL, template ? template : t.own, NULL, (wish){{first, second}},
           QN_INIT(qn_chat_opts, .generate = &generate, .prompt = &prompt), 200);
    qn_template_destroy(template);
}

static void a_grammar_waits_for_the_end_of_reasoning(void **state) {
    (void)state;
    static told seen;
    qn_grammar *grammar = make_grammar(QN_GRAMMAR_SCHEMA, schema);
    // The model begins with its reasoning, in a tag that is a token or not.
    static const char *const templates[] = {NULL, "Qwen-Qwen3-0.6B",
                                            "mistralai-Ministral-3-14B-Reasoning-2512"};
    for (size_t i = 0; i < 3; i++) {
        const bool is_mistral = i == 2;
        const char *reasoned = is_mistral ? "[THINK]{\"x\"} hm[/THINK]{\"n\": four"
                                          : "<think>\n{\"x\"} hm\n</think>\n\n{\"n\": four";
        const char *legal = is_mistral ? "[THINK]{\"x\"} hm[/THINK]{\"n\": 4}"
                                       : "<think>\n{\"x\"} hm\n</think>\n\n{\"n\": 4}";
        answer_by(&seen, NULL, templates[i], grammar, QN_REASONING_AUTO, reasoned, legal);
        assert_string_equal(seen.reasoning, "{\"x\"} hm");
        assert_string_equal(seen.text, "{\"n\": 4}");
        // It may begin without.
        answer_by(&seen, NULL, templates[i], grammar, QN_REASONING_AUTO, "Four", "{\"n\": 5}");
        assert_string_equal(seen.reasoning, "");
        assert_string_equal(seen.text, "{\"n\": 5}");
    }
    qn_grammar_destroy(grammar);
}

static void a_prompt_may_end_inside_of_reasoning(void **state) {
    (void)state;
    static told seen;
    qn_result result = QN_INIT(qn_result);
    qn_grammar *grammar = make_grammar(QN_GRAMMAR_SCHEMA, schema);
    static const char opens[] = "Qwen-QwQ-32B";
    answer_by(&seen, &result, opens, grammar, QN_REASONING_ON, "I add.\n</think>\n\nFour",
              "I add.\n</think>\n\n{\"n\": 4}");
    assert_string_equal(seen.reasoning, "I add.");
    assert_string_equal(seen.text, "{\"n\": 4}");
    assert_int_equal(result.reason, QN_REASON_END);
    qn_result_deinit(&result);
    // The answer cannot end before the grammar has been written.
    answer_by(&seen, NULL, opens, grammar, QN_REASONING_ON, "I add.", "I add.</think>{\"n\": 4}");
    assert_string_equal(seen.text, "{\"n\": 4}");
    qn_grammar_destroy(grammar);
}

static void without_reasoning_it_holds_at_once(void **state) {
    (void)state;
    static told seen;
    qn_grammar *grammar = make_grammar(QN_GRAMMAR_REGEX, "[a-z]{3}|<i>"),
               *blank = make_grammar(QN_GRAMMAR_REGEX, "\n[a-z]{3}");
    // Switched off, by a template that closes the block in the prompt, and by one that knows none.
    answer_by(&seen, NULL, "Qwen-Qwen3-0.6B", grammar, QN_REASONING_OFF, "<think>", "abc");
    assert_string_equal(seen.text, "abc");
    answer_by(&seen, NULL, "Qwen3.5-4B", grammar, QN_REASONING_OFF, "<think>", "abc");
    assert_string_equal(seen.text, "abc");
    // A text of the grammar that begins as the tag does.
    answer_by(&seen, NULL, "Qwen-Qwen3-0.6B", grammar, QN_REASONING_AUTO, "<i>", NULL);
    assert_string_equal(seen.text, "<i>");
    // A grammar that wants blanks itself, after reasoning.
    answer_by(&seen, NULL, "Qwen-Qwen3-0.6B", blank, QN_REASONING_AUTO,
              "<think>a</think>\n\n\n\n\nabc", NULL);
    assert_string_equal(seen.reasoning, "a");
    assert_string_equal(seen.text, "abc");
    qn_grammar_destroy(grammar);
    qn_grammar_destroy(blank);
}

static void required_calls_come_after_reasoning(void **state) {
    (void)state;
    static told seen;
    static const char *const templates[] = {"Qwen-Qwen3-0.6B", "Qwen-QwQ-32B"};
    for (size_t i = 0; i < 2; i++) {
        qn_template *template = open_template(templates[i]);
        const qn_chat_prompt_opts on = QN_INIT(qn_chat_prompt_opts, .reasoning = QN_REASONING_ON);
        const char *first = "<think>\nA <tool_call>?\n</think>\n\nNo.";
        const char *second = "<think>\nA <tool_call>?\n</think>\n\n<tool_call>\n{\"name\": "
                             "\"time\", \"arguments\": {}}\n</tool_call>";
        const size_t skip = i ? strlen("<think>\n") : 0; // is in the prompt
        answer(&seen, NULL, NULL, template, tools, (wish){{first + skip, second + skip}},
               CHOICE(QN_TOOLS_REQUIRED, .prompt = &on), 200);
        assert_string_equal(seen.reasoning, "A <tool_call>?");
        assert_string_equal(seen.text, "");
        assert_int_equal(seen.n_calls, 1);
        assert_string_equal(seen.names[0], "time");
        qn_template_destroy(template);
    }
}

static void a_grammar_and_required_calls_are_one_too_many(void **state) {
    (void)state;
    qn_err err;
    qn_grammar *grammar = make_grammar(QN_GRAMMAR_SCHEMA, schema);
    const qn_generate_opts generate = QN_INIT(qn_generate_opts, .grammar = grammar);
    qn_chat_opts opts = CHOICE(QN_TOOLS_REQUIRED, .generate = &generate);
    qn_chat *chat = make_chat(tools), *bare = make_chat(NULL);
    qn_chat_turn *turn;
    ASSERT_FAILS(qn_chat_turn_create(&turn, chat, t.own, t.engine, CONTEXT, &opts, &err),
                 QN_UNSUPPORTED, "must be a call");
    opts = CHOICE(QN_TOOLS_AUTO, .generate = &generate);
    // There are no tools to call.
    ASSERT_OK(qn_chat_turn_create(&turn, bare, t.own, t.engine, CONTEXT, &opts, &err));
    qn_chat_turn_destroy(turn);
    // A grammar that makes the turn's own faster, and is its own owner's.
    qn_chat_turn_info info = QN_INIT(qn_chat_turn_info);
    opts = CHOICE(QN_TOOLS_REQUIRED, .like = grammar);
    ASSERT_OK(qn_chat_turn_create(&turn, chat, t.own, t.engine, CONTEXT, &opts, &err));
    ASSERT_OK(qn_chat_turn_get_info(&info, turn, &err));
    qn_grammar_destroy(grammar);
    assert_non_null(info.row->generate->grammar);
    qn_chat_turn_destroy(turn);
    qn_chat_destroy(chat);
    qn_chat_destroy(bare);
}

static void tokens_of_reasoning_are_counted(void **state) {
    (void)state;
    static const char *const pieces[] = {"<think>", "\n", "a", " b", "</think>", "\n\n", "c", " d"};
    qn_err err;
    qn_chat *chat = make_chat(NULL);
    qn_chat_turn *turn;
    qn_chat_reply *reply;
    ASSERT_OK(qn_chat_turn_create(&turn, chat, t.own, t.engine, CONTEXT, NULL, &err));
    ASSERT_OK(qn_chat_reply_create(&reply, turn, &err));
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        const qn_event e =
            QN_INIT(qn_event, .token = 5, .text = pieces[i], .text_size = strlen(pieces[i]));
        ASSERT_OK(qn_chat_reply_feed(NULL, reply, &e, NULL, NULL, &err));
    }
    ASSERT_OK(qn_chat_reply_finish(reply, NULL, NULL, &err));
    assert_int_equal(qn_chat_reply_n_reasoning(reply), 5);
    assert_int_equal(qn_chat_reply_n_reasoning(NULL), 0);
    qn_chat_reply_destroy(reply);
    qn_chat_turn_destroy(turn);
    qn_chat_destroy(chat);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_grammar_waits_for_the_end_of_reasoning),
        cmocka_unit_test(a_prompt_may_end_inside_of_reasoning),
        cmocka_unit_test(without_reasoning_it_holds_at_once),
        cmocka_unit_test(required_calls_come_after_reasoning),
        cmocka_unit_test(a_grammar_and_required_calls_are_one_too_many),
        cmocka_unit_test(tokens_of_reasoning_are_counted),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
