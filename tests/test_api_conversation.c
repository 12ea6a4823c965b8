// Conversations through the public interface: messages, the requests that are made of them,
// built-in templates.
#include "testing.h"

#include <stdlib.h>

#define DRAFT MODELS "/quern-draft-Q8_0.gguf"

static const qn_message hello =
    QN_INITIALIZER(qn_message, .role = "user", .text = "Hi", .text_size = 2);

static qn_chat *new_chat(void) {
    qn_err err;
    qn_chat *chat;
    ASSERT_OK(qn_chat_create(&chat, &err));
    return chat;
}

static qn_template *make_template(const char *text) {
    qn_err err;
    qn_template *template;
    ASSERT_OK(qn_template_create(&template, text, strlen(text), &err));
    return template;
}

static void expect_messages(const qn_chat *chat, const char *want) {
    qn_err err;
    char *json;
    ASSERT_OK(qn_chat_print_messages(&json, chat, &err));
    assert_string_equal(json, want);
    qn_free(json);
}

static void expect_text(const char *template_text, const qn_chat *chat,
                        const qn_tokenizer *tokenizer, const qn_chat_prompt_opts *opts,
                        const char *want) {
    qn_err err;
    qn_template *template = make_template(template_text);
    char *text;
    size_t size;
    ASSERT_OK(qn_chat_render(&text, &size, chat, template, tokenizer, opts, &err));
    assert_string_equal(text, want);
    assert_int_equal(size, strlen(want));
    qn_free(text);
    qn_template_destroy(template);
}

// --- messages ------------------------------------------------------------------------------------

static void messages_come_and_go(void **state) {
    (void)state;
    qn_err err;
    qn_chat *chat = new_chat();
    qn_message got = QN_INIT(qn_message);
    ASSERT_OK(qn_chat_add(chat, &hello, &err));
    ASSERT_OK(qn_chat_set_system(chat, "Be brief.", &err));
    ASSERT_OK(qn_chat_set_system(chat, "Be long.", &err));
    assert_int_equal(qn_chat_n_messages(chat), 2);
    ASSERT_OK(qn_chat_get(&got, chat, 0, &err));
    assert_string_equal(got.role, "system");
    assert_string_equal(got.text, "Be long.");
    assert_int_equal(got.text_size, 8);
    assert_null(got.reasoning);
    ASSERT_FAILS(qn_chat_get(&got, chat, 2, &err), QN_ARGUMENT, "message 2, there are 2");
    ASSERT_FAILS(qn_chat_truncate(chat, 3, &err), QN_ARGUMENT, "3 messages to keep, there are 2");
    ASSERT_OK(qn_chat_truncate(chat, 1, &err));
    ASSERT_OK(qn_chat_set_system(chat, NULL, &err));
    ASSERT_OK(qn_chat_set_system(chat, NULL, &err));
    assert_int_equal(qn_chat_n_messages(chat), 0);
    qn_chat_destroy(chat);
}

static void answers_have_reasoning_and_calls(void **state) {
    (void)state;
    qn_err err;
    qn_chat *chat = new_chat();
    const qn_tool_call calls[] = {{"add", "{\"a\": 1, \"b\": [2.5, null]}"}, {"stop", "{}"}};
    ASSERT_OK(qn_chat_add(chat,
                          &QN_INIT(qn_message, .role = "assistant", .text = "It\0is",
                                   .text_size = 5, .reasoning = "hm\xff", .reasoning_size = 3,
                                   .calls = calls, .n_calls = 2),
                          &err));
    expect_messages(
        chat,
        "[{\"role\": \"assistant\", \"content\": \"It\xef\xbf\xbdis\", "
        "\"reasoning_content\": \"hm\xef\xbf\xbd\", \"tool_calls\": [{\"type\": \"function\", "
        "\"function\": {\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": [2.5, null]}}}, "
        "{\"type\": \"function\", \"function\": {\"name\": \"stop\", \"arguments\": {}}}]}]");
    qn_message got = QN_INIT(qn_message);
    ASSERT_OK(qn_chat_get(&got, chat, 0, &err));
    assert_string_equal(got.reasoning, "hm\xef\xbf\xbd");
    qn_chat_destroy(chat);
}

// What was wrong is named, and leaves the messages as they were.
// The result of a tool is told which call it answers: the first that has none. One that answers no
// call, or comes when all have one, is a message like any other.
static void results_answer_calls_in_order(void **state) {
    (void)state;
    qn_err err;
    qn_chat *chat = new_chat();
    const qn_tool_call calls[] = {{"add", "{}"}, {"now", "{}"}};
    const qn_message answer =
                         QN_INIT(qn_message, .role = "assistant", .calls = calls, .n_calls = 2),
                     result = QN_INIT(qn_message, .role = "tool", .text = "7", .text_size = 1);
    ASSERT_OK(qn_chat_add(chat, &result, &err));
    expect_messages(chat, "[{\"role\": \"tool\", \"content\": \"7\"}]");
    ASSERT_OK(qn_chat_truncate(chat, 0, &err));
    ASSERT_OK(qn_chat_add(chat, &answer, &err));
    for (int i = 0; i < 3; i++) ASSERT_OK(qn_chat_add(chat, &result, &err));
    expect_messages(chat,
                    "[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"type\": "
                    "\"function\", \"function\": {\"name\": \"add\", \"arguments\": {}}, \"id\": "
                    "\"000000000\"}, {\"type\": \"function\", \"function\": {\"name\": \"now\", "
                    "\"arguments\": {}}, \"id\": \"000000001\"}]}, "
                    "{\"role\": \"tool\", \"content\": \"7\", \"name\": \"add\", \"tool_call_id\": "
                    "\"000000000\"}, {\"role\": \"tool\", \"content\": \"7\", \"name\": \"now\", "
                    "\"tool_call_id\": \"000000001\"}, {\"role\": \"tool\", \"content\": \"7\"}]");
    // An id that is there already stays; odd calls from outside are left alone.
    static const char given[] =
        "[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": \"x\", "
        "\"function\": {\"name\": \"f\"}}, 5]}]";
    ASSERT_OK(qn_chat_set_messages(chat, given, strlen(given), NULL, &err));
    ASSERT_OK(qn_chat_add(chat, &result, &err));
    ASSERT_OK(qn_chat_add(chat, &result, &err));
    expect_messages(chat, "[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": "
                          "[{\"id\": \"x\", \"function\": {\"name\": \"f\"}}, 5]}, {\"role\": "
                          "\"tool\", \"content\": \"7\", \"name\": \"f\", \"tool_call_id\": "
                          "\"x\"}, {\"role\": \"tool\", \"content\": \"7\"}]");
    qn_chat_destroy(chat);
}

static void wrong_messages_are_refused(void **state) {
    (void)state;
    qn_err err;
    qn_chat *chat = new_chat();
    ASSERT_OK(qn_chat_add(chat, &hello, &err));
    const struct {
        qn_message message;
        const char *part;
    } cases[] = {
        {QN_INITIALIZER(qn_message, .text = "x", .text_size = 1), "a message has no role"},
        {QN_INITIALIZER(qn_message, .role = "user", .text_size = 1), "text is NULL"},
        {QN_INITIALIZER(qn_message, .role = "user", .reasoning_size = 1), "reasoning is NULL"},
        {QN_INITIALIZER(qn_message, .role = "user", .n_calls = 1), "calls is NULL"},
        {QN_INITIALIZER(qn_message, .role = "us\xff"), "the role of a message: no UTF-8 at byte 2"},
        {QN_INITIALIZER(qn_message, .role = "user", .text = "a\xc3", .text_size = 2),
         "the text of a message: no UTF-8 at byte 1 (0xc3)"},
        {QN_INITIALIZER(qn_message, .role = "user", .text = "a\0b", .text_size = 3),
         "the text of a message: a NUL at byte 1"},
        {QN_INITIALIZER(qn_message, .role = "assistant", .calls = &(qn_tool_call){NULL, "{}"},
                        .n_calls = 1),
         "a tool call: name is NULL"},
        {QN_INITIALIZER(qn_message, .role = "assistant", .calls = &(qn_tool_call){"f", NULL},
                        .n_calls = 1),
         "a tool call: arguments is NULL"},
        {QN_INITIALIZER(qn_message, .role = "assistant", .calls = &(qn_tool_call){"f", "[1]"},
                        .n_calls = 1),
         "the arguments of a call of 'f' are not an object"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ASSERT_FAILS(qn_chat_add(chat, &cases[i].message, &err), QN_ARGUMENT, cases[i].part);
    const qn_tool_call broken = {"f", "{\"a\": "};
    assert_int_equal(
        qn_chat_add(chat, &QN_INIT(qn_message, .role = "assistant", .calls = &broken, .n_calls = 1),
                    &err),
        QN_FORMAT);
    ASSERT_FAILS(qn_chat_set_system(chat, "\xff", &err), QN_ARGUMENT,
                 "the system message: no UTF-8 at byte 0");
    ASSERT_FAILS(qn_chat_set_messages(chat, "{}", 2, NULL, &err), QN_FORMAT,
                 "messages: an object, want a list of messages");
    ASSERT_FAILS(qn_chat_set_messages(chat, "[{\"role\": 1}]", 13, "file.json", &err), QN_FORMAT,
                 "file.json: message 0: want an object with a string \"role\"");
    ASSERT_FAILS(qn_chat_set_messages(chat, "[7]", 3, NULL, &err), QN_FORMAT, "message 0");
    ASSERT_FAILS(qn_chat_set_tools(chat, "{}", 2, "t.json", &err), QN_FORMAT,
                 "t.json: an object, want a list of tools");
    ASSERT_FAILS(qn_chat_set_tools(chat, "[{}, 3]", 7, NULL, &err), QN_FORMAT,
                 "tools: tool 1 is a number, want an object");
    expect_messages(chat, "[{\"role\": \"user\", \"content\": \"Hi\"}]");
    qn_chat_destroy(chat);
}

static void messages_are_json_of_requests(void **state) {
    (void)state;
    static const char json[] =
        "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"Hi\"}]}, "
        "{\"role\": \"tool\", \"content\": \"42\", \"name\": \"add\"}]";
    qn_err err;
    qn_chat *chat = new_chat();
    qn_message got = QN_INIT(qn_message);
    ASSERT_OK(qn_chat_set_messages(chat, json, strlen(json), NULL, &err));
    expect_messages(chat, json);
    ASSERT_OK(qn_chat_get(&got, chat, 0, &err));
    assert_string_equal(got.role, "user");
    assert_null(got.text); // it has parts
    expect_text("{{ messages[0].content[0].text }}{{ messages[1].name }}", chat, NULL, NULL,
                "Hiadd");
    qn_chat_destroy(chat);
}

// --- prompts -------------------------------------------------------------------------------------

static void options_reach_the_template(void **state) {
    (void)state;
    static const char all[] = "{{ messages | length }}{{ add_generation_prompt }}{{ tools }}"
                              "{{ enable_thinking }}{{ thinking }}{{ more }}"
                              "{{ strftime_now('%Y-%m-%d') if more }}";
    qn_err err;
    qn_chat *chat = new_chat();
    ASSERT_OK(qn_chat_add(chat, &hello, &err));
    ASSERT_OK(qn_chat_add(chat, &hello, &err));
    expect_text(all, chat, NULL, NULL, "2TrueNone");
    expect_text(all, chat, NULL,
                &QN_INIT(qn_chat_prompt_opts, .reasoning = QN_REASONING_ON, .n_messages = 1,
                         .no_generation_prompt = true),
                "1FalseNoneTrueTrue");
    ASSERT_OK(qn_chat_set_tools(chat, "[{\"a\": 1}]", 10, NULL, &err));
    expect_text(all, chat, NULL,
                &QN_INIT(qn_chat_prompt_opts, .reasoning = QN_REASONING_OFF,
                         .kwargs = "{\"more\": 7, \"thinking\": 8}", .now = "2026-01-02T03:04:05"),
                "2True[{'a': 1}]False872026-01-02");
    ASSERT_OK(qn_chat_set_tools(chat, NULL, 0, NULL, &err));
    expect_text(all, chat, NULL, NULL, "2TrueNone");
    qn_template *template = make_template(all);
    char *text = NULL;
    const struct {
        qn_chat_prompt_opts opts;
        const char *part;
    } wrong[] = {
        {QN_INITIALIZER(qn_chat_prompt_opts, .reasoning = (qn_reasoning)3), "reasoning 3 of 3"},
        {QN_INITIALIZER(qn_chat_prompt_opts, .n_messages = 3),
         "a prompt of 3 messages, there are 2"},
        {QN_INITIALIZER(qn_chat_prompt_opts, .n_messages = 1, .n_skipped = 2),
         "2 messages left out, there are 1"},
        {QN_INITIALIZER(qn_chat_prompt_opts, .kwargs = "[]"), "kwargs: a list, want an object"},
        {QN_INITIALIZER(qn_chat_prompt_opts, .now = "noon"), "noon"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ASSERT_FAILS(qn_chat_render(&text, NULL, chat, template, NULL, &wrong[i].opts, &err),
                     QN_ARGUMENT, wrong[i].part);
        assert_null(text);
    }
    qn_template_destroy(template);
    qn_chat_destroy(chat);
}

// The oldest go, and the system message stays.
static void messages_can_be_left_out(void **state) {
    (void)state;
    static const char texts[] = "{% for m in messages %}{{ m.content }},{% endfor %}";
    qn_err err;
    qn_chat *chat = new_chat();
    const char *const words[] = {"one", "two", "three"};
    for (size_t i = 0; i < 3; i++)
        ASSERT_OK(qn_chat_add(
            chat,
            &QN_INIT(qn_message, .role = "user", .text = words[i], .text_size = strlen(words[i])),
            &err));
    expect_text(texts, chat, NULL, &QN_INIT(qn_chat_prompt_opts, .n_skipped = 2), "three,");
    ASSERT_OK(qn_chat_set_system(chat, "zero", &err));
    expect_text(texts, chat, NULL, &QN_INIT(qn_chat_prompt_opts, .n_skipped = 2), "zero,three,");
    expect_text(texts, chat, NULL, &QN_INIT(qn_chat_prompt_opts, .n_messages = 3, .n_skipped = 1),
                "zero,two,");
    expect_text(texts, chat, NULL, &QN_INIT(qn_chat_prompt_opts, .n_skipped = 3), "zero,");
    qn_chat_destroy(chat);
}

static bool refuse(void *arg, int64_t done, int64_t total) {
    (void)arg, (void)done, (void)total;
    return false;
}

static void rendering_can_be_stopped(void **state) {
    (void)state;
    qn_err err;
    qn_chat *chat = new_chat();
    qn_template *template = make_template(
        "{% for i in range(1000) %}{% for k in range(1000) %}{% endfor %}{% endfor %}");
    const qn_chat_prompt_opts opts = QN_INIT(qn_chat_prompt_opts, .progress = refuse);
    qn_reasoning_switch found = QN_SWITCH_FOUND;
    char *text = NULL;
    ASSERT_FAILS(qn_chat_render(&text, NULL, chat, template, NULL, &opts, &err), QN_STOPPED,
                 "stop");
    ASSERT_FAILS(qn_chat_find_switch(&found, chat, template, NULL, &opts, &err), QN_STOPPED,
                 "stop");
    assert_int_equal(found, QN_SWITCH_FOUND);
    qn_template_destroy(template);
    qn_chat_destroy(chat);
}

// The ids are those of the same request, in which texts of messages have no special tokens.
static void prompts_are_those_of_the_request(void **state) {
    (void)state;
    static const char request[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi<|im_end|>\"}]}";
    qn_err err;
    qn_engine *engine;
    qn_template *template;
    qn_chat *chat = new_chat();
    qn_chat_prompt got = QN_INIT(qn_chat_prompt), want = QN_INIT(qn_chat_prompt);
    qn_parts_opts parts = QN_INIT(qn_parts_opts);
    ASSERT_OK(qn_engine_open(&engine, DRAFT, &QN_INIT(qn_engine_opts, .no_weights = true), &err));
    const qn_tokenizer *tokenizer = qn_engine_tokenizer(engine);
    ASSERT_OK(qn_engine_template(&template, engine, NULL, &err));
    ASSERT_OK(qn_chat_add(
        chat, &QN_INIT(qn_message, .role = "user", .text = "Hi<|im_end|>", .text_size = 12), &err));
    ASSERT_OK(qn_chat_make_prompt(&got, chat, template, tokenizer, NULL, &err));
    ASSERT_OK(
        qn_chat_prompt_create(&want, template, tokenizer, request, strlen(request), NULL, &err));
    assert_string_equal(got.text, want.text);
    assert_int_equal(got.n, want.n);
    assert_memory_equal(got.ids, want.ids, want.n * sizeof *want.ids);
    assert_int_equal(got.n_messages, want.n_messages);
    assert_true(got.is_guarded);
    ASSERT_OK(qn_chat_get_parts_opts(&parts, chat, tokenizer, &got, &err));
    assert_ptr_equal(parts.tokenizer, tokenizer);
    assert_ptr_equal(parts.prompt, got.text);
    assert_int_equal(parts.prompt_size, got.text_size);
    assert_false(parts.bare_calls);
    ASSERT_OK(qn_chat_set_tools(chat, "[]", 2, NULL, &err));
    ASSERT_OK(qn_chat_get_parts_opts(&parts, chat, tokenizer, &got, &err));
    assert_true(parts.bare_calls);
    qn_chat_prompt_deinit(&got);
    qn_chat_prompt_deinit(&want);
    qn_template_destroy(template);
    qn_chat_destroy(chat);
    qn_engine_close(engine);
}

static void templates_keep_their_text(void **state) {
    static const char text[] = "{{ messages[0].content }}\n\n";
    qn_template *made = NULL;
    qn_err err;
    (void)state;
    ASSERT_OK(qn_template_create(&made, text, sizeof text - 1, &err));
    assert_string_equal(qn_template_text(made), text);
    qn_template_destroy(made);
    ASSERT_OK(qn_template_create(&made, NULL, 0, &err));
    assert_string_equal(qn_template_text(made), "");
    qn_template_destroy(made);
}

// A template from elsewhere gets the tokens of the model that it is used with.
static void other_templates_get_the_tokenizers_ends(void **state) {
    (void)state;
    qn_err err;
    qn_tokenizer *tokenizer;
    qn_chat *chat = new_chat();
    ASSERT_OK(qn_tokenizer_open(&tokenizer, DRAFT, &err));
    const qn_tokenizer_info info = tokenizer_info(tokenizer);
    size_t size;
    assert_true(info.eos >= 0);
    expect_text("{{ eos_token }}", chat, tokenizer, NULL,
                qn_tokenizer_piece(tokenizer, info.eos, &size));
    expect_text("{{ eos_token }}", chat, NULL, NULL, "");
    qn_tokenizer_close(tokenizer);
    qn_chat_destroy(chat);
}

static void switches_are_found(void **state) {
    (void)state;
    static const struct {
        const char *text;
        qn_reasoning_switch want;
    } cases[] = {
        {"{% if enable_thinking %}<think>{% endif %}", QN_SWITCH_FOUND},
        {"{% if thinking %}a{% else %}b{% endif %}", QN_SWITCH_FOUND},
        {"{{ messages[0].content }}", QN_SWITCH_NONE},
        {"{% if enable_thinking %}{{ raise_exception('no') }}{% endif %}", QN_SWITCH_FOUND},
        {"{{ raise_exception('no') }}", QN_SWITCH_UNKNOWN},
    };
    qn_err err;
    qn_chat *chat = new_chat();
    ASSERT_OK(qn_chat_add(chat, &hello, &err));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_template *template = make_template(cases[i].text);
        qn_reasoning_switch got;
        ASSERT_OK(qn_chat_find_switch(&got, chat, template, NULL, NULL, &err));
        assert_int_equal(got, cases[i].want);
        qn_template_destroy(template);
    }
    qn_chat_destroy(chat);
}

// --- built-in templates --------------------------------------------------------------------------

static void built_in_templates_are_found_by_tokens(void **state) {
    (void)state;
    qn_err err;
    qn_tokenizer *tokenizer;
    qn_template *template = NULL;
    ASSERT_OK(qn_tokenizer_open(&tokenizer, DRAFT, &err));
    assert_string_equal(qn_template_find_builtin(tokenizer), "chatml");
    qn_tokenizer_close(tokenizer);
    assert_string_equal(qn_template_builtin_title("gemma"), "Gemma's format");
    assert_null(qn_template_builtin_title("other"));
    assert_null(qn_template_builtin_name(99));
    ASSERT_FAILS(qn_template_create_builtin(&template, "other", &err), QN_ARGUMENT,
                 "'other', want one of: chatml, gemma");
    assert_null(template);
}

static void built_in_templates_write_turns(void **state) {
    (void)state;
    static const char *const want[] = {
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
        "<start_of_turn>user\nS\n\nHi<end_of_turn>\n<start_of_turn>model\n"};
    qn_err err;
    qn_chat *chat = new_chat();
    ASSERT_OK(qn_chat_set_system(chat, "S", &err));
    ASSERT_OK(qn_chat_add(chat, &hello, &err));
    size_t n = 0;
    for (const char *name; (name = qn_template_builtin_name(n)); n++) {
        qn_template *template;
        char *text;
        assert_true(n < sizeof want / sizeof *want);
        ASSERT_OK(qn_template_create_builtin(&template, name, &err));
        ASSERT_OK(qn_chat_render(&text, NULL, chat, template, NULL, NULL, &err));
        assert_string_equal(text, want[n]);
        qn_free(text);
        qn_template_destroy(template);
    }
    assert_int_equal(n, 2);
    qn_chat_destroy(chat);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_come_and_go),
        cmocka_unit_test(answers_have_reasoning_and_calls),
        cmocka_unit_test(results_answer_calls_in_order),
        cmocka_unit_test(wrong_messages_are_refused),
        cmocka_unit_test(messages_are_json_of_requests),
        cmocka_unit_test(options_reach_the_template),
        cmocka_unit_test(messages_can_be_left_out),
        cmocka_unit_test(rendering_can_be_stopped),
        cmocka_unit_test(prompts_are_those_of_the_request),
        cmocka_unit_test(templates_keep_their_text),
        cmocka_unit_test(other_templates_get_the_tokenizers_ends),
        cmocka_unit_test(switches_are_found),
        cmocka_unit_test(built_in_templates_are_found_by_tokens),
        cmocka_unit_test(built_in_templates_write_turns),
    };
    return cmocka_run_group_tests_name("api_conversation", tests, NULL, NULL);
}
