// Calls of tools that are held to the tools of a chat, in the forms of several models; grammars
// after reasoning; calls that are told as they come. What the model wants to write is given: the
// logits of one token are raised, and where the answer is held to something else, those of another.
#include "testing.h"

#include "api/chat_turn.h"
#include "chat/parts.h"
#include "core/buf.h"

#include <stdio.h>

#define DRAFT     MODELS "/quern-draft-Q8_0.gguf"
#define TEMPLATES TEST_DATA "/templates/"

enum { CONTEXT = 2048, MAX_TEXT = 16384 };

typedef struct things {
    qn_engine *engine;
    qn_session *session;
    qn_template *own;
    const qn_tokenizer *tokenizer;
} things;

static things t;

static int set_up(void **state) {
    (void)state;
    qn_err err;
    ASSERT_OK(qn_engine_open(&t.engine, DRAFT, NULL, &err));
    ASSERT_OK(qn_engine_template(&t.own, t.engine, NULL, &err));
    ASSERT_OK(qn_session_create(&t.session, t.engine,
                                &QN_INIT(qn_session_opts, .context = CONTEXT), &err));
    t.tokenizer = qn_engine_tokenizer(t.engine);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    qn_session_destroy(t.session);
    qn_template_destroy(t.own);
    qn_engine_close(t.engine);
    return 0;
}

// --- what the model wants ------------------------------------------------------------------------

// Texts by how much the model wants to write them: the first that the answer so far is a beginning
// of. At its end it wants to end.
typedef struct wish {
    const char *texts[4];
} wish;

static int32_t first_token(const char *text) {
    qn_err err;
    int32_t *ids;
    size_t n;
    const qn_tokenize_opts how = QN_INIT(qn_tokenize_opts, .special = true);
    ASSERT_OK(qn_tokenize(&ids, &n, t.tokenizer, text, strlen(text), &how, &err));
    const int32_t id = n ? ids[0] : tokenizer_info(t.tokenizer).eos;
    qn_free(ids);
    return id;
}

static bool want(void *arg, const qn_next_logits *next) {
    const wish *w = arg;
    qn_err err;
    char *text;
    size_t size;
    ASSERT_OK(qn_detokenize(&text, &size, t.tokenizer, next->tokens + next->n_prompt,
                            next->n_tokens - next->n_prompt, true, &err));
    for (size_t i = 4; i-- > 0;) {
        if (!w->texts[i] || strncmp(w->texts[i], text, size) != 0) continue;
        next->logits[first_token(w->texts[i] + size)] = 1000.0f - 100.0f * (float)i;
    }
    qn_free(text);
    return true;
}

// --- what is told --------------------------------------------------------------------------------

typedef struct told {
    char text[MAX_TEXT], reasoning[MAX_TEXT], arguments[4][MAX_TEXT], names[4][64];
    size_t n_calls, n_pieces;
    bool in_order; // no arguments before their call
} told;

static bool tell(void *arg, const qn_chat_event *e) {
    told *to = arg;
    char *out = NULL;
    if (e->kind == QN_CHAT_BEGIN) return true;
    if (e->kind == QN_CHAT_CALL) {
        assert_int_equal(e->call, to->n_calls);
        assert_true(to->n_calls < 4);
        snprintf(to->names[to->n_calls++], 64, "%s", e->name);
        return true;
    }
    if (e->kind == QN_CHAT_TEXT) out = to->text;
    if (e->kind == QN_CHAT_REASONING) out = to->reasoning;
    if (e->kind == QN_CHAT_ARGUMENTS) {
        assert_int_equal(e->call, to->n_calls - 1);
        assert_string_equal(e->name, to->names[e->call]);
        assert_true(e->text_size > 0);
        to->n_pieces++;
        out = to->arguments[e->call];
    }
    assert_non_null(out);
    assert_true(strlen(out) + e->text_size < MAX_TEXT);
    strncat(out, e->text, e->text_size);
    return true;
}

// --- answers -------------------------------------------------------------------------------------

static const char tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"description\": \"w\", "
    "\"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\", "
    "\"description\": \"c\"}, \"days\": {\"type\": \"integer\", \"description\": \"d\"}, \"unit\": "
    "{\"type\": \"string\", \"description\": \"u\", \"enum\": [\"C\", \"F\"]}}, \"required\": "
    "[\"city\"], \"additionalProperties\": false}}}, {\"type\": \"function\", \"function\": "
    "{\"name\": \"time\", \"description\": \"t\", \"parameters\": {\"type\": \"object\", "
    "\"properties\": {}}}}]";

static qn_chat *make_chat(const char *list) {
    qn_err err;
    qn_chat *chat;
    ASSERT_OK(qn_chat_create(&chat, &err));
    ASSERT_OK(qn_chat_add(
        chat, &QN_INIT(qn_message, .role = "user", .text = "Go.", .text_size = 3), &err));
    if (list) ASSERT_OK(qn_chat_set_tools(chat, list, strlen(list), NULL, &err));
    return chat;
}

static qn_template *open_template(const char *name) {
    qn_err err;
    char path[512];
    qn_template *template;
    snprintf(path, sizeof path, TEMPLATES "%s.jinja", name);
    ASSERT_OK(qn_template_open(&template, path, NULL, &err));
    return template;
}

// The answer to a chat of the tools, and what is told of it. `result` (may be NULL) is released by
// the caller.
static void answer(told *seen, qn_result *result, qn_message *last, const qn_template *template,
                   const char *list, wish w, qn_chat_opts opts, int64_t max_tokens) {
    qn_err err;
    const qn_sample_opts greedy = QN_INIT(qn_sample_opts);
    qn_generate_opts generate = QN_INIT(qn_generate_opts);
    if (opts.generate) generate = *opts.generate;
    generate.sample = &greedy;
    generate.max_tokens = max_tokens;
    if (w.texts[0]) {
        generate.logits_fn = want;
        generate.logits_arg = &w;
    }
    opts.generate = &generate;
    qn_chat *chat = make_chat(list);
    *seen = (told){0};
    ASSERT_OK(qn_chat_answer(result, chat, t.session, template, &opts, tell, seen, &err));
    if (last) {
        static char text[MAX_TEXT];
        *last = QN_INIT(qn_message);
        ASSERT_OK(qn_chat_get(last, chat, 1, &err));
        snprintf(text, sizeof text, "%.*s", (int)last->text_size, last->text);
        last->text = text;
    }
    qn_chat_destroy(chat);
}

#define CHOICE(...) QN_INIT(qn_chat_opts, .tool_choice = __VA_ARGS__)

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
    {NULL, "Hm.\n<tool_call>\n{\"name\": \"weatherman\"",
     "Hm.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>",
     "Hm.",
     {"weather"},
     {"{\"city\":\"Rome\"}"}},
    {NULL, "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": 7",
     "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"7\", \"days\": "
     "3}}\n</tool_call>",
     "",
     {"weather"},
     {"{\"city\":\"7\",\"days\":3}"}},
    {NULL, "<tool_call>\n{\"name\": \"weather\", \"arguments\": {}",
     "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"a\\\"</tool_call>\\n"
     "b\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>\nDone.",
     "Done.",
     {"weather", "time"},
     {"{\"city\":\"a\\\"</tool_call>\\nb\"}", "{}"}},
    // Elements
    {"Qwen3-Coder", "I see.\n<tool_call>\n<function=clock>",
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
    {"Qwen3-Coder", "<tool_call>\n<function=weather>\n</function>",
     "<tool_call>\n<function=weather>\n<parameter=city>\nx\n</parameter>\n</function>\n</tool_call>"
     "\n<tool_call>\n<function=time>\n</function>\n</tool_call>",
     "",
     {"weather", "time"},
     {"{\"city\":\"x\"}", "{}"}},
    // Lists, and names before tags
    {"mistralai-Mistral-Nemo-Instruct-2407", "[TOOL_CALLS][{\"name\": \"x\"",
     "[TOOL_CALLS][{\"name\": \"time\", \"arguments\": {}, \"id\": \"abcdefgh1\"}, {\"name\": "
     "\"weather\", \"arguments\": {\"city\": \"Y\"}, \"id\": \"abcdefgh2\"}]",
     "",
     {"time", "weather"},
     {"{}", "{\"city\":\"Y\"}"}},
    {"mistralai-Ministral-3-14B-Reasoning-2512", "So: [TOOL_CALLS]weather[ARGS]{\"town\"",
     "So: [TOOL_CALLS]weather[ARGS]{\"city\": \"Y\"}[TOOL_CALLS]time[ARGS]{}",
     "So:",
     {"weather", "time"},
     {"{\"city\":\"Y\"}", "{}"}},
    {"Mistral-Small-3.2-24B-Instruct-2506", "[TOOL_CALLS]wind",
     "[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{\"city\": \"Y\"}",
     "",
     {"weather"},
     {"{\"city\":\"Y\"}"}},
    // No tags at all
    {"meta-llama-Llama-3.1-8B-Instruct", "{\"name\": \"wind",
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_template_shows_the_form_of_calls),
        cmocka_unit_test(calls_are_held_to_the_tools),
        cmocka_unit_test(messages_are_those_of_free_answers),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
