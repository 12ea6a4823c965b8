// Calls of tools that are held to the tools of a chat, in the forms of several models, and are told
// as they come.
#include "chat_rig.h"

#include "gen/grammar/grammar.h"

// --- forms ---------------------------------------------------------------------------------------

typedef struct form_row {
    const char *template, *open; // NULL: not known
    bool is_xml;
} form_row;

static const form_row form_rows[] = {
    {"Qwen-Qwen3-0.6B", "<tool_call>", false},
    {"Qwen-Qwen2.5-7B-Instruct", "<tool_call>", false},
    {"NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "<tool_call>", false},
    {"Qwen3-Coder", "<tool_call>", true},
    {"Qwen3.5-4B", "<tool_call>", true},
    {"mistralai-Mistral-Nemo-Instruct-2407", "[TOOL_CALLS]", false},
    {"Mistral-Small-3.2-24B-Instruct-2506", "[TOOL_CALLS]", false},
    {"mistralai-Ministral-3-14B-Reasoning-2512", "[TOOL_CALLS]", false},
    {"meta-llama-Llama-3.1-8B-Instruct", "{\"name\": \"", false},
    {"meta-llama-Llama-3.2-3B-Instruct", "{\"name\": \"", false},
    {"google-gemma-2-2b-it", NULL, false},
    {"GLM-4.7-Flash", NULL, false},
    {"deepseek-ai-DeepSeek-V3.1", NULL, false},
};

static void a_template_shows_the_form_of_calls(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof form_rows / sizeof *form_rows; i++) {
        const form_row *row = &form_rows[i];
        qn_err err;
        qn_template *template = open_template(row->template);
        qn_chat *chat = make_chat(tools);
        qn_chat_turn *turn;
        const qn_chat_opts opts = CHOICE(QN_TOOLS_AUTO, .lenient_schemas = true);
        ASSERT_OK(qn_chat_turn_create(&turn, chat, template, t.engine, 1 << 16, &opts, &err));
        const qn_call_form *form = turn->hold.form;
        const char *got = form ? form->open : NULL;
        if (!got != !row->open || (got && strcmp(got, row->open) != 0) ||
            (form && form->is_xml != row->is_xml))
            fail_msg("%s: %s, want %s", row->template, got ? got : "nothing",
                     row->open ? row->open : "nothing");
        qn_chat_turn_destroy(turn);
        qn_chat_destroy(chat);
        qn_template_destroy(template);
    }
}

// --- calls ---------------------------------------------------------------------------------------

typedef struct call_row {
    const char *template; // NULL: the model's own
    const char *wanted;   // what breaks the rules somewhere
    const char *instead;  // what the model wants there
    const char *text;     // before and after
    const char *names[2], *arguments[2];
} call_row;

static const call_row call_rows[] = {
    // Names that are not there, arguments that are not in the schema, of other types.
    {NULL,
     "Hm.\n<tool_call>\n{\"name\": \"weatherman\"",
     "Hm.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>",
     "Hm.",
     {"weather"},
     {"{\"city\":\"Rome\"}"}},
    {NULL,
     "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": 7",
     "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"7\", \"days\": "
     "3}}\n</tool_call>",
     "",
     {"weather"},
     {"{\"city\":\"7\",\"days\":3}"}},
    {NULL,
     "<tool_call>\n{\"name\": \"weather\", \"arguments\": {}",
     "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"a\\\"</tool_call>\\n"
     "b\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"time\", \"arguments\": "
     "{}}\n</tool_call>\nDone.",
     "Done.",
     {"weather", "time"},
     {"{\"city\":\"a\\\"</tool_call>\\nb\"}", "{}"}},
    // Elements
    {"Qwen3-Coder",
     "I see.\n<tool_call>\n<function=clock>",
     "I see.\n<tool_call>\n<function=weather>\n<parameter=city>\nNew \"York\"\n</parameter"
     "\n</parameter>\n<parameter=days>\n12\n</parameter>\n</function>\n</tool_call>",
     "I see.",
     {"weather"},
     {"{\"city\":\"New \\\"York\\\"\\n</parameter\",\"days\":12}"}},
    {"Qwen3-Coder",
     "<tool_call>\n<function=weather>\n<parameter=city>\n12\n</parameter>\n<parameter=days>\nten",
     "<tool_call>\n<function=weather>\n<parameter=city>\n12\n</parameter>\n<parameter=days>\n10\n"
     "</parameter>\n<parameter=unit>\nF\n</parameter>\n</function>\n</tool_call>",
     "",
     {"weather"},
     {"{\"city\":\"12\",\"days\":10,\"unit\":\"F\"}"}},
    {"Qwen3-Coder",
     "<tool_call>\n<function=weather>\n<parameter=city>\n\n</parameter>\n<parameter=unit>\nK",
     "<tool_call>\n<function=weather>\n<parameter=city>\n\n</parameter>\n<parameter=unit>\nC\n"
     "</parameter>\n</function>\n</tool_call>\nSo.",
     "So.",
     {"weather"},
     {"{\"city\":\"\",\"unit\":\"C\"}"}},
    {"Qwen3-Coder",
     "<tool_call>\n<function=weather>\n</function>",
     "<tool_call>\n<function=weather>\n<parameter=city>\nx\n</parameter>\n</function>\n</tool_call>"
     "\n<tool_call>\n<function=time>\n</function>\n</tool_call>",
     "",
     {"weather", "time"},
     {"{\"city\":\"x\"}", "{}"}},
    // Lists, and names before tags
    {"mistralai-Mistral-Nemo-Instruct-2407",
     "[TOOL_CALLS][{\"name\": \"x\"",
     "[TOOL_CALLS][{\"name\": \"time\", \"arguments\": {}, \"id\": \"abcdefgh1\"}, {\"name\": "
     "\"weather\", \"arguments\": {\"city\": \"Y\"}, \"id\": \"abcdefgh2\"}]",
     "",
     {"time", "weather"},
     {"{}", "{\"city\":\"Y\"}"}},
    {"mistralai-Ministral-3-14B-Reasoning-2512",
     "So: [TOOL_CALLS]weather[ARGS]{\"town\"",
     "So: [TOOL_CALLS]weather[ARGS]{\"city\": \"Y\"}[TOOL_CALLS]time[ARGS]{}",
     "So:",
     {"weather", "time"},
     {"{\"city\":\"Y\"}", "{}"}},
    {"Mistral-Small-3.2-24B-Instruct-2506",
     "[TOOL_CALLS]wind",
     "[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{\"city\": \"Y\"}",
     "",
     {"weather"},
     {"{\"city\":\"Y\"}"}},
    // No tags at all
    {"meta-llama-Llama-3.1-8B-Instruct",
     "{\"name\": \"wind",
     "{\"name\": \"weather\", \"parameters\": {\"city\": \"Y\"}}",
     "",
     {"weather"},
     {"{\"city\":\"Y\"}"}},
};

static void check_calls(const told *seen, const call_row *row) {
    const size_t n = row->names[1] ? 2 : 1;
    if (strcmp(seen->text, row->text) != 0 || seen->n_calls != n)
        fail_msg("%s: text '%s', %zu calls; want '%s', %zu", row->instead, seen->text,
                 seen->n_calls, row->text, n);
    for (size_t i = 0; i < n; i++) {
        assert_string_equal(seen->names[i], row->names[i]);
        assert_string_equal(seen->arguments[i], row->arguments[i]);
    }
}

static void calls_are_held_to_the_tools(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof call_rows / sizeof *call_rows; i++) {
        const call_row *row = &call_rows[i];
        qn_template *template = row->template ? open_template(row->template) : NULL;
        static told seen;
        answer(&seen, NULL, NULL, template ? template : t.own, tools,
               (wish){{row->wanted, row->instead}}, CHOICE(QN_TOOLS_AUTO), 400);
        check_calls(&seen, row);
        if (strlen(row->arguments[0]) > 2) assert_true(seen.n_pieces > 1);
        // Required, the text is not there, and the same is held to.
        if (!*row->text) {
            answer(&seen, NULL, NULL, template ? template : t.own, tools,
                   (wish){{row->wanted, row->instead}}, CHOICE(QN_TOOLS_REQUIRED), 400);
            check_calls(&seen, row);
        }
        qn_template_destroy(template);
    }
}

// What a message holds, against what an answer that is not held to anything gives.
static void messages_are_those_of_free_answers(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof call_rows / sizeof *call_rows; i++) {
        const call_row *row = &call_rows[i];
        qn_template *template = row->template ? open_template(row->template) : NULL;
        static told seen, free_seen;
        if (i == 2 || i == 4) { // a close tag inside a text, and a text that looks like a number
            qn_template_destroy(template);
            continue;
        }
        answer(&free_seen, NULL, NULL, template ? template : t.own, tools, (wish){{row->instead}},
               CHOICE(QN_TOOLS_FREE), 400);
        answer(&seen, NULL, NULL, template ? template : t.own, tools, (wish){{row->instead}},
               CHOICE(QN_TOOLS_AUTO), 400);
        assert_int_equal(seen.n_calls, free_seen.n_calls);
        for (size_t k = 0; k < seen.n_calls; k++) {
            assert_string_equal(seen.names[k], free_seen.names[k]);
            assert_string_equal(seen.arguments[k], free_seen.arguments[k]);
        }
        assert_string_equal(seen.text, free_seen.text);
        qn_template_destroy(template);
    }
}

// --- choices -------------------------------------------------------------------------------------

static const char one_time[] = "<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>";
static const char weather_call[] = "<tool_call>\n{\"name\": \"weather\", \"arguments\": "
                                   "{\"city\": \"Rome\"}}\n</tool_call>";

static void a_call_can_be_required(void **state) {
    (void)state;
    static told seen;
    qn_err err;
    // The model wants to talk, but must call; of two tools the one that is named.
    answer(&seen, NULL, NULL, t.own, tools, (wish){{"I do not know.", one_time}},
           CHOICE(QN_TOOLS_REQUIRED), 100);
    assert_string_equal(seen.text, "");
    assert_string_equal(seen.names[0], "time");
    answer(&seen, NULL, NULL, t.own, tools, (wish){{one_time, weather_call}},
           CHOICE(QN_TOOLS_REQUIRED, .tool_name = "weather"), 100);
    assert_string_equal(seen.names[0], "weather");
    assert_int_equal(seen.n_calls, 1);
    // A template that shows no calls: in the usual form.
    qn_template *gemma = open_template("google-gemma-2-2b-it");
    answer(&seen, NULL, NULL, gemma, tools, (wish){{"No.", one_time}}, CHOICE(QN_TOOLS_REQUIRED),
           100);
    assert_string_equal(seen.names[0], "time");
    // It is free where calls are not required.
    answer(&seen, NULL, NULL, gemma, tools, (wish){{"<tool_call>no</tool_call>"}},
           CHOICE(QN_TOOLS_AUTO), 100);
    assert_string_equal(seen.text, "<tool_call>no</tool_call>");
    qn_template_destroy(gemma);
    qn_chat *chat = make_chat(tools), *bare = make_chat(NULL);
    qn_chat_turn *turn;
    qn_chat_opts opts = CHOICE(QN_TOOLS_REQUIRED, .tool_name = "wind");
    ASSERT_FAILS(qn_chat_turn_create(&turn, chat, t.own, t.engine, CONTEXT, &opts, &err),
                 QN_ARGUMENT, "no tool 'wind'; there are weather, time");
    opts.tool_name = NULL;
    ASSERT_FAILS(qn_chat_turn_create(&turn, bare, t.own, t.engine, CONTEXT, &opts, &err),
                 QN_ARGUMENT, "no tools");
    opts.tool_choice = (qn_tool_choice)4;
    ASSERT_FAILS(qn_chat_turn_create(&turn, chat, t.own, t.engine, CONTEXT, &opts, &err),
                 QN_ARGUMENT, "tool choice 4 of 4");
    qn_chat_destroy(chat);
    qn_chat_destroy(bare);
}

static void one_call_is_the_end(void **state) {
    (void)state;
    static told seen;
    static const char two[] = "Two:\n<tool_call>\n{\"name\": \"time\", \"arguments\": "
                              "{}}\n</tool_call>\n<tool_call>\n{\"name\": \"time\", \"arguments\": "
                              "{}}\n</tool_call>";
    qn_result result = QN_INIT(qn_result);
    answer(&seen, &result, NULL, t.own, tools, (wish){{two}},
           CHOICE(QN_TOOLS_AUTO, .one_call = true), 200);
    assert_int_equal(seen.n_calls, 1);
    assert_string_equal(seen.text, "Two:");
    assert_int_equal(result.reason, QN_REASON_END);
    qn_result_deinit(&result);
    answer(&seen, NULL, NULL, t.own, tools, (wish){{two + 5}},
           CHOICE(QN_TOOLS_REQUIRED, .one_call = true), 200);
    assert_int_equal(seen.n_calls, 1);
    answer(&seen, NULL, NULL, t.own, tools, (wish){{two + 5}}, CHOICE(QN_TOOLS_REQUIRED), 200);
    assert_int_equal(seen.n_calls, 2);
    qn_template *nemo = open_template("mistralai-Mistral-Nemo-Instruct-2407");
    answer(&seen, NULL, NULL, nemo, tools,
           (wish){{"[TOOL_CALLS][{\"name\": \"time\", \"arguments\": {}, \"id\": \"abcdefgh1\"}, "
                   "{\"name\"",
                   "[TOOL_CALLS][{\"name\": \"time\", \"arguments\": {}, \"id\": \"abcdefgh1\"}]"}},
           CHOICE(QN_TOOLS_AUTO, .one_call = true), 200);
    assert_int_equal(seen.n_calls, 1);
    qn_template_destroy(nemo);
}

static void tools_can_be_left_out(void **state) {
    (void)state;
    static told seen;
    qn_err err;
    answer(&seen, NULL, NULL, t.own, tools, (wish){{one_time}}, CHOICE(QN_TOOLS_NONE), 100);
    assert_int_equal(seen.n_calls, 0);
    assert_string_equal(seen.text, one_time);
    qn_template *llama = open_template("meta-llama-Llama-3.1-8B-Instruct");
    answer(&seen, NULL, NULL, llama, tools, (wish){{"{\"name\": \"weather\", \"parameters\": {}}"}},
           CHOICE(QN_TOOLS_NONE), 100);
    assert_int_equal(seen.n_calls, 0);
    qn_template_destroy(llama);
    qn_chat *chat = make_chat(tools);
    qn_chat_turn *turn;
    qn_chat_turn_info info = QN_INIT(qn_chat_turn_info);
    qn_chat_opts opts = CHOICE(QN_TOOLS_NONE);
    ASSERT_OK(qn_chat_turn_create(&turn, chat, t.own, t.engine, CONTEXT, &opts, &err));
    ASSERT_OK(qn_chat_turn_get_info(&info, turn, &err));
    assert_null(strstr(info.text, "weather"));
    assert_null(info.row->generate->grammar);
    qn_chat_turn_destroy(turn);
    opts.tool_choice = QN_TOOLS_FREE;
    ASSERT_OK(qn_chat_turn_create(&turn, chat, t.own, t.engine, CONTEXT, &opts, &err));
    ASSERT_OK(qn_chat_turn_get_info(&info, turn, &err));
    assert_non_null(strstr(info.text, "weather"));
    assert_null(info.row->generate->grammar);
    qn_chat_turn_destroy(turn);
    qn_chat_destroy(chat);
}

// --- free text -----------------------------------------------------------------------------------

// Without a call, an answer that may call is token for token the one that is free.
static void what_is_free_is_untouched(void **state) {
    (void)state;
    static const char *const questions[] = {"Go.", "Name the capital of France.", "What is 2 + 2?"};
    static const char *const models[] = {
        DRAFT, MODELS "/quern-mini-Q8_0.gguf", TEST_DATA "/mini/qwen3/qwen3-bf16.gguf",
        TEST_DATA "/mini/llama32/llama32-bf16.gguf", TEST_DATA "/mini/gemma3/gemma3-bf16.gguf"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        qn_err err;
        qn_engine *engine;
        qn_session *session;
        qn_template *template = open_template("Qwen-Qwen2.5-7B-Instruct");
        ASSERT_OK(qn_engine_open(&engine, models[m], NULL, &err));
        ASSERT_OK(
            qn_session_create(&session, engine, &QN_INIT(qn_session_opts, .context = 1024), &err));
        for (size_t i = 0; i < 6; i++) {
            qn_result results[2] = {QN_INIT(qn_result), QN_INIT(qn_result)};
            bool has_call = false;
            for (int k = 0; k < 2; k++) {
                static told seen;
                const qn_sample_opts sample =
                    QN_INIT(qn_sample_opts, .temperature = i < 3 ? 0.0f : 1.0f, .seed = i);
                const qn_generate_opts generate =
                    QN_INIT(qn_generate_opts, .max_tokens = 40, .sample = &sample);
                const qn_chat_opts opts =
                    CHOICE(k ? QN_TOOLS_AUTO : QN_TOOLS_FREE, .generate = &generate);
                qn_chat *chat;
                const char *text = questions[i % 3];
                ASSERT_OK(qn_chat_create(&chat, &err));
                ASSERT_OK(qn_chat_add(
                    chat,
                    &QN_INIT(qn_message, .role = "user", .text = text, .text_size = strlen(text)),
                    &err));
                ASSERT_OK(qn_chat_set_tools(chat, tools, strlen(tools), NULL, &err));
                seen = (told){0};
                ASSERT_OK(
                    qn_chat_answer(&results[k], chat, session, template, &opts, tell, &seen, &err));
                has_call |= seen.n_calls > 0;
                qn_chat_destroy(chat);
            }
            assert_false(has_call);
            assert_true(results[0].n_tokens > 0);
            assert_int_equal(results[0].n_tokens, results[1].n_tokens);
            assert_memory_equal(results[0].tokens, results[1].tokens,
                                results[0].n_tokens * sizeof(int32_t));
            assert_int_equal(results[0].reason, results[1].reason);
            qn_result_deinit(&results[0]);
            qn_result_deinit(&results[1]);
        }
        qn_template_destroy(template);
        qn_session_destroy(session);
        qn_engine_close(engine);
    }
}

// Tags that are not calls, other tags and reasoning with a call in it stay as they are.
static void text_around_calls_is_free(void **state) {
    (void)state;
    static told seen;
    static const char text[] =
        "<tool_cal, <|python_tag|, {\"name\": \"x\"} [TOOL_CALL] </tool_call>";
    answer(&seen, NULL, NULL, t.own, tools, (wish){{text}}, CHOICE(QN_TOOLS_AUTO), 200);
    assert_string_equal(seen.text, text);
    answer(&seen, NULL, NULL, t.own, tools,
           (wish){{"<think>\nShall I <tool_call>nothing</tool_call>?\n</think>\n\nNo."}},
           CHOICE(QN_TOOLS_AUTO), 200);
    assert_string_equal(seen.reasoning, "Shall I <tool_call>nothing</tool_call>?");
    assert_string_equal(seen.text, "No.");
    assert_int_equal(seen.n_calls, 0);
    // JSON that is no call, where calls have no tags.
    qn_template *llama = open_template("meta-llama-Llama-3.1-8B-Instruct");
    answer(&seen, NULL, NULL, llama, tools, (wish){{"{\"names\": [1, 2]}"}}, CHOICE(QN_TOOLS_AUTO),
           200);
    assert_string_equal(seen.text, "{\"names\": [1, 2]}");
    answer(&seen, NULL, NULL, llama, tools, (wish){{"So {\"name\": \"wind\"}"}},
           CHOICE(QN_TOOLS_AUTO), 200);
    assert_string_equal(seen.text, "So {\"name\": \"wind\"}");
    qn_template_destroy(llama);
}

// --- chunks --------------------------------------------------------------------------------------

// Whether a text can go on to be a JSON object.
static bool begins_object(const char *text) {
    qn_err err;
    qn_grammar *grammar;
    qn_matcher *matcher;
    bool fits;
    ASSERT_OK(qn_grammar_create(&grammar, t.tokenizer, QN_GRAMMAR_JSON, NULL, 0, NULL, &err));
    ASSERT_OK(qn_matcher_create(&matcher, grammar, 0, &err));
    ASSERT_OK(qn_matcher_feed(&fits, matcher, text, strlen(text), &err));
    qn_matcher_destroy(matcher);
    qn_grammar_destroy(grammar);
    return fits;
}

typedef struct chunk_row {
    const char *template, *text, *arguments;
} chunk_row;

static const chunk_row chunk_rows[] = {
    {"Qwen-Qwen2.5-7B-Instruct",
     "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"R \\u00e9 \\\" \\\\ }\", "
     "\"days\": 12}}\n</tool_call>",
     "{\"city\":\"R \xc3\xa9 \\\" \\\\ }\",\"days\":12}"},
    {"Qwen3-Coder",
     "<tool_call>\n<function=weather>\n<parameter=city>\nR \xc3\xa9 \" \\ \t\n\n</par\n"
     "</parameter>\n<parameter=days>\n12\n</parameter>\n</function>\n</tool_call>",
     "{\"city\":\"R \xc3\xa9 \\\" \\\\ \\t\\n\\n</par\",\"days\":12}"},
};

static void chunks_are_a_json_object_that_grows(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof chunk_rows / sizeof *chunk_rows; i++) {
        const chunk_row *row = &chunk_rows[i];
        qn_err err;
        qn_template *template = open_template(row->template);
        qn_chat *chat = make_chat(tools);
        qn_chat_turn *turn;
        const qn_chat_opts opts = CHOICE(QN_TOOLS_AUTO);
        ASSERT_OK(qn_chat_turn_create(&turn, chat, template, t.engine, CONTEXT, &opts, &err));
        for (size_t chunk = 1; chunk < 40; chunk += 3) {
            static told seen;
            qn_chat_reply *reply;
            qn_message m = QN_INIT(qn_message);
            seen = (told){0};
            ASSERT_OK(qn_chat_reply_create(&reply, turn, &err));
            for (size_t at = 0, size = strlen(row->text); at < size; at += chunk) {
                const size_t n = size - at < chunk ? size - at : chunk;
                const qn_event e =
                    QN_INIT(qn_event, .token = 5, .text = row->text + at, .text_size = n);
                ASSERT_OK(qn_chat_reply_feed(NULL, reply, &e, tell, &seen, &err));
                if (!begins_object(seen.arguments[0])) fail_msg("%s", seen.arguments[0]);
            }
            ASSERT_OK(qn_chat_reply_finish(reply, tell, &seen, &err));
            ASSERT_OK(qn_chat_reply_get_message(&m, reply, &err));
            assert_int_equal(m.n_calls, 1);
            assert_string_equal(m.calls[0].arguments, row->arguments);
            assert_int_equal(m.text_size, 0);
            json_t *got = NULL, *want_json = NULL;
            ASSERT_OK(qn_json_parse(&got, seen.arguments[0], strlen(seen.arguments[0]), false, "a",
                                    &err));
            ASSERT_OK(qn_json_parse(&want_json, row->arguments, strlen(row->arguments), false, "b",
                                    &err));
            assert_true(json_equal(got, want_json));
            json_decref(got);
            json_decref(want_json);
            if (chunk == 1) assert_true(seen.n_pieces > 10);
            qn_chat_reply_destroy(reply);
        }
        qn_chat_turn_destroy(turn);
        qn_chat_destroy(chat);
        qn_template_destroy(template);
    }
}

static void an_answer_that_ends_in_a_call(void **state) {
    (void)state;
    static told seen;
    qn_message last;
    for (int64_t n = 1; n < 24; n++) {
        qn_result result = QN_INIT(qn_result);
        answer(&seen, &result, &last, t.own, tools, (wish){{weather_call}}, CHOICE(QN_TOOLS_AUTO),
               n);
        const bool is_whole = strchr(seen.arguments[0], '}') != NULL;
        if (result.reason == QN_REASON_LENGTH && !is_whole && n > 1) {
            assert_true(last.text_size > 0);
            assert_memory_equal(last.text, weather_call, last.text_size);
            // What was told as a call is not told as text.
            if (seen.n_calls) assert_string_equal(seen.text, "");
        }
        if (is_whole) assert_int_equal(last.text_size, 0);
        assert_memory_equal(seen.arguments[0], "{\"city\":\"Rome\"}", strlen(seen.arguments[0]));
        qn_result_deinit(&result);
    }
}

// --- tools from outside --------------------------------------------------------------------------

static void refuse(const char *list, const char *template_name, qn_status status,
                   const char *part) {
    qn_err err;
    qn_chat *chat = make_chat(list);
    qn_template *template = open_template(template_name);
    qn_chat_turn *turn;
    const qn_chat_opts opts = CHOICE(QN_TOOLS_AUTO);
    ASSERT_FAILS(qn_chat_turn_create(&turn, chat, template, t.engine, 1 << 20, &opts, &err), status,
                 part);
    qn_template_destroy(template);
    qn_chat_destroy(chat);
}

static void schemas_that_cannot_be_honoured_are_named(void **state) {
    (void)state;
    static const char hermes[] = "Qwen-Qwen2.5-7B-Instruct", coder[] = "Qwen3-Coder";
#define TOOL(name, schema)                                                                         \
    "[{\"type\": \"function\", \"function\": {\"name\": \"" name                                   \
    "\", \"description\": \"d\", \"parameters\": " schema "}}]"
#define PARAM(schema) "{\"type\": \"object\", \"properties\": {\"x\": " schema "}}"
    refuse(TOOL("f", PARAM("{\"type\": \"string\", \"format\": \"odd\"}")), hermes, QN_UNSUPPORTED,
           "tools[0] 'f': schema, #/properties/x");
    refuse(TOOL("f", PARAM("{\"type\": \"string\", \"pattern\": \"a\", \"description\": \"d\"}")),
           coder, QN_UNSUPPORTED, "tools[0] 'f': schema, #/properties/x: 'pattern'");
    refuse(TOOL("f", PARAM("{\"type\": \"integer\", \"minimum\": \"a\", \"description\": \"d\"}")),
           coder, QN_FORMAT, "tools[0] 'f': schema, #/properties/x");
    refuse(TOOL("f", "{\"type\": \"array\"}"), hermes, QN_ARGUMENT, "of type 'array'");
    refuse("[{\"type\": \"function\", \"function\": {\"description\": \"d\"}}]", hermes,
           QN_ARGUMENT, "tool 0 has no name");
    refuse(TOOL("f", "[]"), hermes, QN_ARGUMENT, "tools[0] 'f': its parameters are not a schema");
    refuse(TOOL("f", "7"), hermes, QN_ARGUMENT, "tools[0] 'f': its parameters are not a schema");
    refuse(TOOL("a>b", "{\"type\": \"object\", \"properties\": {}}"), coder, QN_ARGUMENT,
           "tool 'a>b'");
    // The same, if what has no grammar is left out.
    static told seen;
    qn_template *template = open_template(coder);
    answer(&seen, NULL, NULL, template,
           TOOL("f", PARAM("{\"type\": \"string\", \"pattern\": \"a\", \"description\": \"d\"}")),
           (wish){{"<tool_call>\n<function=f>\n<parameter=x>\nb\n</parameter>\n</function>\n"
                   "</tool_call>"}},
           CHOICE(QN_TOOLS_AUTO, .lenient_schemas = true), 100);
    assert_string_equal(seen.arguments[0], "{\"x\":\"b\"}");
    qn_template_destroy(template);
}

// A strict tool's schema is honoured or refused, whatever is asked for the others.
static void strict_tools_are_not_read_leniently(void **state) {
    (void)state;
#define ODD "\"parameters\": " PARAM("{\"type\": \"string\", \"format\": \"odd\"}")
    static const struct {
        const char *list;
        qn_status status;
    } rows[] = {
        {"[{\"type\": \"function\", \"function\": {\"name\": \"f\", " ODD "}}]", QN_OK},
        {"[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"strict\": false, " ODD "}}]",
         QN_OK},
        {"[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"strict\": true, " ODD "}}]",
         QN_UNSUPPORTED},
        {"[{\"type\": \"function\", \"strict\": true, \"function\": {\"name\": \"f\", " ODD "}}]",
         QN_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        qn_err err;
        qn_chat *chat = make_chat(rows[i].list);
        qn_template *template = open_template("Qwen-Qwen2.5-7B-Instruct");
        qn_chat_turn *turn = NULL;
        qn_chat_culprit culprit = QN_CULPRIT_OTHER;
        const qn_chat_opts opts =
            CHOICE(QN_TOOLS_AUTO, .lenient_schemas = true, .culprit = &culprit);
        const qn_status status =
            qn_chat_turn_create(&turn, chat, template, t.engine, 1 << 20, &opts, &err);
        assert_int_equal(status, rows[i].status);
        assert_int_equal(culprit, status ? QN_CULPRIT_TOOLS : QN_CULPRIT_OTHER);
        qn_chat_turn_destroy(turn);
        qn_template_destroy(template);
        qn_chat_destroy(chat);
    }
}

// With a grammar, an answer follows it or is a call; it cannot be any other text.
static void text_that_has_a_form_beside_calls(void **state) {
    static const struct {
        qn_grammar_kind kind;
        const char *source, *wanted, *instead, *text;
        size_t n_calls;
    } rows[] = {
        {QN_GRAMMAR_REGEX, "yes|no", "maybe", "no", "no", 0},
        {QN_GRAMMAR_REGEX, "yes|no", "So: <tool_call>", one_time, "", 1},
        {QN_GRAMMAR_SCHEMA, "{\"enum\": [{\"name\": \"time\", \"arguments\": {}}]}", "x",
         "{\"name\":\"time\",\"arguments\":{}}", "{\"name\":\"time\",\"arguments\":{}}", 0},
        {QN_GRAMMAR_GBNF, "root ::= call\ncall ::= \"a\"", "b", "a", "a", 0},
        {QN_GRAMMAR_GBNF, "root ::= call\ncall ::= \"a\"", "<tool_call>\n{\"name\": \"wind",
         weather_call, "", 1},
        {QN_GRAMMAR_JSON, "", "none", "{\"a\": 1}", "{\"a\": 1}", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        static told seen;
        qn_grammar *grammar = NULL;
        qn_err err;
        ASSERT_OK(qn_grammar_create(&grammar, qn_engine_tokenizer(t.engine), rows[i].kind,
                                    rows[i].source, strlen(rows[i].source), NULL, &err));
        const qn_generate_opts generate = QN_INIT(qn_generate_opts, .grammar = grammar);
        answer(&seen, NULL, NULL, t.own, tools, (wish){{rows[i].wanted, rows[i].instead}},
               CHOICE(QN_TOOLS_AUTO, .generate = &generate), 400);
        if (strcmp(seen.text, rows[i].text) != 0 || seen.n_calls != rows[i].n_calls)
            fail_msg("%zu: '%s', %zu calls; want '%s', %zu", i, seen.text, seen.n_calls,
                     rows[i].text, rows[i].n_calls);
        qn_grammar_destroy(grammar);
    }
}

static void errors_tell_what_they_are_about(void **state) {
    (void)state;
    qn_err err;
    qn_chat *chat = make_chat(tools);
    qn_chat_turn *turn;
    qn_grammar *grammar;
    qn_chat_culprit culprit = QN_CULPRIT_OTHER;
    qn_chat_opts opts =
        CHOICE(QN_TOOLS_REQUIRED, .lenient_schemas = true, .tool_name = "no", .culprit = &culprit);
    ASSERT_FAILS(qn_chat_turn_create(&turn, chat, t.own, t.engine, 1 << 20, &opts, &err),
                 QN_ARGUMENT, "no tool");
    assert_int_equal(culprit, QN_CULPRIT_TOOL_CHOICE);
    ASSERT_OK(qn_grammar_create(&grammar, qn_engine_tokenizer(t.engine), QN_GRAMMAR_JSON, "", 0,
                                NULL, &err));
    const qn_generate_opts generate = QN_INIT(qn_generate_opts, .grammar = grammar);
    opts = CHOICE(QN_TOOLS_REQUIRED, .generate = &generate, .culprit = &culprit);
    ASSERT_FAILS(qn_chat_turn_create(&turn, chat, t.own, t.engine, 1 << 20, &opts, &err),
                 QN_UNSUPPORTED, "must be a call");
    assert_int_equal(culprit, QN_CULPRIT_GRAMMAR);
    qn_template *bare = open_template("meta-llama-Llama-3.1-8B-Instruct");
    opts = CHOICE(QN_TOOLS_AUTO, .generate = &generate, .culprit = &culprit);
    ASSERT_FAILS(qn_chat_turn_create(&turn, chat, bare, t.engine, 1 << 20, &opts, &err),
                 QN_UNSUPPORTED, "without a tag");
    assert_int_equal(culprit, QN_CULPRIT_GRAMMAR);
    qn_template_destroy(bare);
    opts = CHOICE(QN_TOOLS_AUTO, .culprit = &culprit);
    ASSERT_FAILS(qn_chat_turn_create(&turn, chat, t.own, t.engine, 1, &opts, &err), QN_LIMIT,
                 "the context 1");
    assert_int_equal(culprit, QN_CULPRIT_LENGTH);
    opts.max_grammar_steps = -1;
    ASSERT_FAILS(qn_chat_turn_create(&turn, chat, t.own, t.engine, 1 << 20, &opts, &err),
                 QN_ARGUMENT, "-1");
    qn_grammar_destroy(grammar);
    qn_chat_destroy(chat);
}

// `n` parameters, each `param`, beside `n` definitions; `more` stands before the parameters.
static char *many_params(size_t n, const char *param, const char *more) {
    qn_buf text = {0};
    qn_buf_printf(&text,
                  "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": "
                  "{\"type\": \"object\", \"$defs\": {%s",
                  more);
    for (size_t i = 0; i < n; i++) qn_buf_printf(&text, "%s\"d%zu\": {}", i || *more ? "," : "", i);
    qn_buf_text(&text, "}, \"properties\": {");
    for (size_t i = 0; i < n; i++) qn_buf_printf(&text, "%s\"p%zu\": %s", i ? "," : "", i, param);
    qn_buf_text(&text, "}, \"required\": [");
    for (size_t i = 0; i < n; i++) qn_buf_printf(&text, "%s\"p%zu\"", i ? "," : "", i);
    qn_buf_text(&text, "]}}}]");
    char *out;
    qn_err err;
    ASSERT_OK(qn_buf_take(&out, &text, &err));
    return out;
}

static void take_steps(const char *list, int64_t max_steps, qn_status want) {
    qn_err err;
    qn_chat *chat = make_chat(list);
    qn_template *template = open_template("Qwen3-Coder");
    qn_chat_turn *turn = NULL;
    const qn_chat_opts opts = CHOICE(QN_TOOLS_AUTO, .max_grammar_steps = max_steps);
    const qn_status status =
        qn_chat_turn_create(&turn, chat, template, t.engine, INT64_MAX, &opts, &err);
    if (status != want) fail_msg("%s: %s", qn_status_name(status), status ? err.message : "");
    if (status) assert_non_null(strstr(err.message, "tools[0] 'f'"));
    qn_chat_turn_destroy(turn);
    qn_template_destroy(template);
    qn_chat_destroy(chat);
}

// A schema is read once, however many of its parameters are JSON: each definition costs steps once.
// What several parameters refer to is paid for by each.
static void steps_of_many_parameters(void **state) {
    (void)state;
    enum { N = 500 };
    char *list = many_params(N, "{\"type\": \"integer\"}", "");
    take_steps(list, 200 * N, QN_OK);
    take_steps(list, 10 * N, QN_LIMIT);
    qn_free(list);
    qn_buf values = {0};
    qn_buf_text(&values, "\"big\": {\"enum\": [");
    for (int i = 0; i < 4 * N; i++) qn_buf_printf(&values, "%s%d", i ? "," : "", i);
    qn_buf_text(&values, "]}");
    assert_false(values.failed);
    list = many_params(N, "{\"$ref\": \"#/$defs/big\"}", values.data);
    take_steps(list, N * N, QN_LIMIT);
    qn_free(list);
    qn_buf_deinit(&values);
}

static void tools_of_any_shape(void **state) {
    (void)state;
    static told seen;
    // No parameters, names with quotes, two of one name, references.
    static const char odd[] =
        "[{\"type\": \"function\", \"function\": {\"name\": \"a\\\"b\\\\\"}}, {\"name\": \"bare\", "
        "\"parameters\": {}}, {\"name\": \"bare\", \"parameters\": {\"type\": \"object\", "
        "\"properties\": {\"x\": {\"type\": \"integer\"}}, \"required\": [\"x\"]}}, {\"name\": "
        "\"ref\", \"parameters\": {\"$defs\": {\"n\": {\"type\": \"integer\"}}, \"properties\": "
        "{\"x\": {\"$ref\": \"#/$defs/n\"}}, \"required\": [\"x\"]}}]";
    answer(&seen, NULL, NULL, t.own, odd,
           (wish){{"<tool_call>\n{\"name\": \"a\\\"b\\\\\", \"arguments\": {\"any\": [1]}}\n"
                   "</tool_call>"}},
           CHOICE(QN_TOOLS_AUTO), 100);
    assert_string_equal(seen.names[0], "a\"b\\");
    assert_string_equal(seen.arguments[0], "{\"any\":[1]}");
    answer(
        &seen, NULL, NULL, t.own, odd,
        (wish){{"<tool_call>\n{\"name\": \"bare\", \"arguments\": {\"x\": \"y\"}}\n</tool_call>"}},
        CHOICE(QN_TOOLS_AUTO), 100);
    assert_string_equal(seen.arguments[0], "{\"x\":\"y\"}");
    answer(&seen, NULL, NULL, t.own, odd,
           (wish){{"<tool_call>\n{\"name\": \"ref\", \"arguments\": {\"x\": \"",
                   "<tool_call>\n{\"name\": \"ref\", \"arguments\": {\"x\": 4}}\n</tool_call>"}},
           CHOICE(QN_TOOLS_AUTO), 100);
    assert_string_equal(seen.arguments[0], "{\"x\":4}");
}

// Answers that nobody was held to, in forms that are told as they come: any bytes.
static void damaged_calls_are_text_or_calls(void **state) {
    (void)state;
    enum { ROUNDS = 400 };
    uint32_t seed = 1;
    for (size_t i = 0; i < sizeof call_rows / sizeof *call_rows; i++) {
        qn_err err;
        const call_row *row = &call_rows[i];
        qn_template *template = row->template ? open_template(row->template) : NULL;
        qn_chat *chat = make_chat(tools);
        qn_chat_turn *turn;
        const qn_chat_opts opts = CHOICE(QN_TOOLS_AUTO);
        ASSERT_OK(qn_chat_turn_create(&turn, chat, template ? template : t.own, t.engine, CONTEXT,
                                      &opts, &err));
        for (int round = 0; round < ROUNDS; round++) {
            static told seen;
            char text[512];
            qn_chat_reply *reply;
            qn_message m = QN_INIT(qn_message);
            seen = (told){0};
            snprintf(text, sizeof text, "%s", row->instead);
            const size_t size = strlen(text);
            for (int k = round % 5; k > 0; k--) {
                seed = seed * 1664525u + 1013904223u;
                text[(seed >> 8) % size] = "<>[]{}\",\\\n a/=\xc3"[(seed >> 24) % 16];
            }
            const size_t chunk = 1 + (seed >> 16) % 20, end = round % 7 ? size : size / 2;
            ASSERT_OK(qn_chat_reply_create(&reply, turn, &err));
            for (size_t at = 0; at < end; at += chunk) {
                const qn_event e = QN_INIT(qn_event, .token = 5, .text = text + at,
                                           .text_size = end - at < chunk ? end - at : chunk);
                ASSERT_OK(qn_chat_reply_feed(NULL, reply, &e, tell, &seen, &err));
            }
            ASSERT_OK(qn_chat_reply_finish(reply, tell, &seen, &err));
            ASSERT_OK(qn_chat_reply_get_message(&m, reply, &err));
            assert_true(m.n_calls <= seen.n_calls);
            if (m.n_calls == 0 && end == size) assert_true(m.text_size > 0);
            ASSERT_OK(qn_chat_add(chat, &m, &err));
            ASSERT_OK(qn_chat_truncate(chat, 1, &err));
            qn_chat_reply_destroy(reply);
        }
        qn_chat_turn_destroy(turn);
        qn_chat_destroy(chat);
        qn_template_destroy(template);
    }
}

// Hundreds of tools, long names, deep schemas: an answer, or an error that says why.
static void many_tools(void **state) {
    (void)state;
    enum { N = 200, DEPTH = 50 };
    static const char *const templates[] = {"Qwen-Qwen2.5-7B-Instruct", "Qwen3-Coder"};
    qn_buf list = {0};
    qn_err err;
    for (int i = 0; i < N; i++) {
        qn_buf_printf(&list,
                      "%s{\"type\": \"function\", \"function\": {\"name\": \"tool_%d\", "
                      "\"description\": \"d\", \"parameters\": {\"type\": \"object\", "
                      "\"properties\": {\"p%d\": {\"description\": \"d\", \"type\": \"integer\"}, "
                      "\"deep\": {\"description\": \"d\", ",
                      i ? ", " : "[", i, i);
        for (int k = 0; k < DEPTH; k++) qn_buf_text(&list, "\"type\": \"array\", \"items\": {");
        for (int k = 0; k < DEPTH; k++) qn_buf_text(&list, "}");
        qn_buf_text(&list, "}}, \"required\": [\"deep\"]}}}");
    }
    qn_buf_text(&list, "]");
    assert_false(list.failed);
    for (size_t i = 0; i < 2; i++) {
        qn_template *template = open_template(templates[i]);
        qn_chat *chat = make_chat(list.data);
        qn_chat_turn *turn = NULL;
        const qn_chat_opts opts = CHOICE(QN_TOOLS_AUTO);
        ASSERT_OK(qn_chat_turn_create(&turn, chat, template, t.engine, 1 << 24, &opts, &err));
        qn_chat_turn_destroy(turn);
        qn_chat_destroy(chat);
        qn_template_destroy(template);
    }
    qn_buf_deinit(&list);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_template_shows_the_form_of_calls),
        cmocka_unit_test(calls_are_held_to_the_tools),
        cmocka_unit_test(messages_are_those_of_free_answers),
        cmocka_unit_test(a_call_can_be_required),
        cmocka_unit_test(one_call_is_the_end),
        cmocka_unit_test(tools_can_be_left_out),
        cmocka_unit_test(what_is_free_is_untouched),
        cmocka_unit_test(text_around_calls_is_free),
        cmocka_unit_test(chunks_are_a_json_object_that_grows),
        cmocka_unit_test(an_answer_that_ends_in_a_call),
        cmocka_unit_test(strict_tools_are_not_read_leniently),
        cmocka_unit_test(text_that_has_a_form_beside_calls),
        cmocka_unit_test(errors_tell_what_they_are_about),
        cmocka_unit_test(steps_of_many_parameters),
        cmocka_unit_test(schemas_that_cannot_be_honoured_are_named),
        cmocka_unit_test(tools_of_any_shape),
        cmocka_unit_test(damaged_calls_are_text_or_calls),
        cmocka_unit_test(many_tools),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
