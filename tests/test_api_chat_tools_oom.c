// Memory that runs out while a turn with tools is made, or while its answer is told: an error, and
// nothing is lost.
#include "alloc_rig.h"
#include "testing.h"

#include "api/chat_turn.h"

#define DRAFT MODELS "/quern-draft-Q8_0.gguf"

static const char tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"parameters\": {\"type\": "
    "\"object\", \"properties\": {\"city\": {\"type\": \"string\"}, \"days\": {\"type\": "
    "\"integer\"}, \"unit\": {\"enum\": [\"C\", \"F\"]}, \"any\": {}}, \"required\": "
    "[\"city\"]}}}, {\"name\": \"t\\\"ime\"}]";

typedef struct row {
    const char *template, *answer;
} row;

#define TEMPLATE(call)                                                                             \
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}"        \
    "<tool_call>\n" call "\n</tool_call>{% endfor %}\n{% endfor %}assistant: "

static const row rows[] = {
    {TEMPLATE("{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | "
              "tojson }}}"),
     "Hm.<tool_call>\n{\"name\": \"t\\\"ime\", \"arguments\": {\"x\": \"y\"}}\n</tool_call>"
     "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"ci"},
    {TEMPLATE("<function={{ c.function.name }}>\n{% for k, v in c.function.arguments.items() %}"
              "<parameter={{ k }}>\n{{ v }}\n</parameter>\n{% endfor %}</function>"),
     "Hm.<tool_call>\n<function=weather>\n<parameter=city>\na\nb\n</parameter>\n<parameter=any>\n"
     "x\n</parameter>\n</function>\n</tool_call>"},
};

static qn_engine *engine;
static qn_grammar *like;

// True: nothing failed.
static bool try_answer(const row *r, qn_tool_choice choice, long n) {
    qn_err err;
    qn_chat *chat = NULL;
    qn_template *template = NULL;
    qn_chat_turn *turn = NULL;
    qn_chat_reply *reply = NULL;
    qn_message m = QN_INIT(qn_message);
    ASSERT_OK(qn_chat_create(&chat, &err));
    ASSERT_OK(qn_chat_add(chat, &QN_INIT(qn_message, .role = "user", .text = "Go.", .text_size = 3),
                          &err));
    ASSERT_OK(qn_chat_set_tools(chat, tools, strlen(tools), NULL, &err));
    ASSERT_OK(qn_template_create(&template, r->template, strlen(r->template), &err));
    const qn_chat_opts opts = QN_INIT(qn_chat_opts, .tool_choice = choice, .like = like);
    const long living = atomic_load(&n_living);
    atomic_store(&countdown, n);
    qn_status status = qn_chat_turn_create(&turn, chat, template, engine, 2048, &opts, &err);
    if (!status) status = qn_chat_reply_create(&reply, turn, &err);
    for (const char *at = r->answer; !status && *at; at++) {
        const qn_event e = QN_INIT(qn_event, .token = 5, .text = at, .text_size = 1);
        status = qn_chat_reply_feed(NULL, reply, &e, NULL, NULL, &err);
    }
    if (!status) status = qn_chat_reply_finish(reply, NULL, NULL, &err);
    const bool is_done = atomic_load(&countdown) >= 0;
    atomic_store(&countdown, -1);
    if (status != (is_done ? QN_OK : QN_MEMORY))
        fail_msg("allocation %ld: %s: %s", n, qn_status_name(status), err.message);
    if (is_done) {
        assert_non_null(turn->hold.form);
        ASSERT_OK(qn_chat_reply_get_message(&m, reply, &err));
        assert_int_equal(m.n_calls, 1);
    }
    qn_chat_reply_destroy(reply);
    qn_chat_turn_destroy(turn);
    assert_int_equal(atomic_load(&n_living), living);
    qn_template_destroy(template);
    qn_chat_destroy(chat);
    return is_done;
}

static void want_of_memory_is_an_error(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        long n = 0;
        while (!try_answer(&rows[i], i ? QN_TOOLS_AUTO : QN_TOOLS_REQUIRED, n)) n++;
        assert_true(n > 100);
    }
}

int main(void) {
    qn_err err;
    json_set_alloc_funcs(json_alloc, free); // `free` is the wrapped one here
    if (qn_engine_open(&engine, DRAFT, NULL, &err)) return 1;
    if (qn_grammar_create(&like, qn_engine_tokenizer(engine), QN_GRAMMAR_JSON, NULL, 0, NULL, &err))
        return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(want_of_memory_is_an_error)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    qn_grammar_destroy(like);
    qn_engine_close(engine);
    return failed;
}
