// Conversations as clients send them: what templates get of them, and what is refused.
#include "serve_rig.h"

#include "server/messages.h"

static void messages_are_brought_into_one_form(void **state) {
    static const struct {
        const char *given, *want;
    } cases[] = {
        {"[]", "[]"},
        // roles and contents
        {"[{'role':'user','content':'a'}]", "[{'role':'user','content':'a'}]"},
        {"[{'role':'developer','content':'a'}]", "[{'role':'system','content':'a'}]"},
        {"[{'role':'user','content':null}]", "[{'role':'user','content':''}]"},
        {"[{'role':'user'}]", "[{'role':'user','content':''}]"},
        {"[{'role':'user','content':[]}]", "[{'role':'user','content':''}]"},
        {"[{'role':'user','content':[{'type':'text','text':'a'},{'type':'text','text':'b'}]}]",
         "[{'role':'user','content':'a\\nb'}]"},
        {"[{'role':'assistant','content':[{'type':'output_text','text':'a'},"
         "{'type':'refusal','refusal':'no'}]}]",
         "[{'role':'assistant','content':'a\\nno'}]"},
        {"[{'role':'user','content':['a','b']}]", "[{'role':'user','content':'a\\nb'}]"},
        {"[{'role':'user','content':[{'type':'input_text','text':'a'},{'type':'image_url',"
         "'image_url':{'url':'data:image/png;base64,AA','detail':'low'}}]}]",
         "[{'role':'user','content':[{'type':'text','text':'a'},{'type':'image_url',"
         "'image_url':{'url':'data:image/png;base64,AA'}}]}]"},
        {"[{'role':'user','content':[{'type':'input_image','image_url':'DATA:image/png,a'}]}]",
         "[{'role':'user','content':[{'type':'image_url','image_url':{'url':'DATA:image/png,a'}}]"
         "}]"},
        {"[{'role':'user','content':'a','name':'bob','extra':1,'none':null}]",
         "[{'role':'user','content':'a','name':'bob','extra':1}]"},
        {"[{'role':'odd','content':'a'}]", "[{'role':'odd','content':'a'}]"},
        // leading system messages
        {"[{'role':'system','content':'a'},{'role':'developer','content':'b'},"
         "{'role':'system','content':''},{'role':'user','content':'c'},"
         "{'role':'system','content':'d'}]",
         "[{'role':'system','content':'a\\n\\nb'},{'role':'user','content':'c'},"
         "{'role':'system','content':'d'}]"},
        // reasoning
        {"[{'role':'assistant','content':'a','reasoning':'r'}]",
         "[{'role':'assistant','content':'a','reasoning_content':'r'}]"},
        {"[{'role':'assistant','content':'a','thinking':'r','reasoning':{'x':1}}]",
         "[{'role':'assistant','content':'a','reasoning_content':'r'}]"},
        {"[{'role':'assistant','content':'a','reasoning_content':null,'reasoning':''}]",
         "[{'role':'assistant','content':'a'}]"},
        // calls
        {"[{'role':'assistant','content':null,'tool_calls':[{'id':'c1','type':'function',"
         "'function':{'name':'f','arguments':'{\\\"x\\\": [1, \\\"y\\\"]}'}}]},"
         "{'role':'tool','tool_call_id':'c1','content':[{'type':'text','text':'4'}]}]",
         "[{'role':'assistant','content':null,'tool_calls':[{'id':'c1','type':'function',"
         "'function':{'name':'f','arguments':{'x':[1,'y']}}}]},"
         "{'role':'tool','content':'4','tool_call_id':'c1','name':'f'}]"},
        {"[{'role':'assistant','content':'','tool_calls':[{'function':{'name':'f','arguments':"
         "'{broken'}}]}]",
         "[{'role':'assistant','content':null,'tool_calls':[{'type':'function','function':"
         "{'name':'f','arguments':'{broken'}}]}]"},
        {"[{'role':'assistant','content':'a','tool_calls':[{'name':'f','arguments':'[1]'},"
         "{'function':{'name':'g','arguments':''}},{'function':{'name':'h'}},"
         "{'function':{'name':'i','arguments':{'x':1}}}]}]",
         "[{'role':'assistant','content':'a','tool_calls':["
         "{'type':'function','function':{'name':'f','arguments':'[1]'}},"
         "{'type':'function','function':{'name':'g','arguments':{}}},"
         "{'type':'function','function':{'name':'h','arguments':{}}},"
         "{'type':'function','function':{'name':'i','arguments':{'x':1}}}]}]"},
        {"[{'role':'assistant','content':'a','tool_calls':[]}]",
         "[{'role':'assistant','content':'a'}]"},
        {"[{'role':'assistant','content':'a','tool_calls':null}]",
         "[{'role':'assistant','content':'a'}]"},
        {"[{'role':'assistant','content':null,'function_call':{'name':'f','arguments':'{}'}},"
         "{'role':'function','name':'f','content':'4'}]",
         "[{'role':'assistant','content':null,'tool_calls':[{'type':'function','function':"
         "{'name':'f','arguments':{}}}]},{'role':'tool','content':'4','name':'f'}]"},
        // images in answers of tools: into the next message of the user, or one of their own
        {"[{'role':'tool','content':[{'type':'text','text':'a'},{'type':'image_url','image_url':"
         "'data:x'}]},{'role':'tool','content':'b'},{'role':'user','content':'c'}]",
         "[{'role':'tool','content':'a'},{'role':'tool','content':'b'},{'role':'user','content':"
         "[{'type':'image_url','image_url':{'url':'data:x'}},{'type':'text','text':'c'}]}]"},
        {"[{'role':'tool','content':[{'type':'image_url','image_url':'data:x'}]}]",
         "[{'role':'tool','content':''},{'role':'user','content':[{'type':'image_url',"
         "'image_url':{'url':'data:x'}}]}]"},
        {"[{'role':'tool','tool_call_id':'unknown','content':'4'}]",
         "[{'role':'tool','content':'4','tool_call_id':'unknown'}]"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_problem problem = {0};
        json_t *from = json_of(cases[i].given), *to = NULL;
        json_t *before = json_deep_copy(from);
        if (qn_messages_normalise(&to, from, &problem))
            fail_msg("%s: %s", cases[i].given, problem.err.message);
        assert_json(to, cases[i].want, cases[i].given);
        assert_true(json_equal(from, before)); // the request is left as it was
        json_decref(from);
        json_decref(to);
        json_decref(before);
    }
}

static void what_is_not_understood_is_named(void **state) {
    static const struct {
        const char *messages, *param, *part;
    } cases[] = {
        {"{}", "messages", "an object"},
        {"[1]", "messages[0].role", "missing"},
        {"[{\"content\":\"a\"}]", "messages[0].role", "missing"},
        {"[{\"role\":7,\"content\":\"a\"}]", "messages[0].role", "a number"},
        {"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":7}]",
         "messages[1].content", "a number"},
        {"[{\"role\":\"user\",\"content\":{\"type\":\"text\"}}]", "messages[0].content",
         "an object"},
        {"[{\"role\":\"user\",\"content\":[7]}]", "messages[0].content", "a number"},
        {"[{\"role\":\"user\",\"content\":[{}]}]", "messages[0].content", "no type"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "messages[0].content",
         "missing"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"input_audio\"}]}]", "messages[0].content",
         "'input_audio'"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]", "messages[0].content",
         "no url"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":"
         "\"ftp://a.example/b.png\"}}]}]",
         "messages[0].content", "only data: URLs are read"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":"
         "\"file:///etc/passwd\"}]}]",
         "messages[0].content", "--image-urls"},
        {"[{\"role\":\"assistant\",\"tool_calls\":{}}]", "messages[0].tool_calls", "an object"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[1]}]", "messages[0].tool_calls", "a number"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}]",
         "messages[0].tool_calls.function.name", "missing"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_problem problem = {0};
        json_t *from = json_of(cases[i].messages), *to = NULL;
        assert_int_equal(qn_messages_normalise(&to, from, &problem), QN_ARGUMENT);
        assert_null(to);
        assert_int_equal(problem.status, 400);
        assert_string_equal(problem.param, cases[i].param);
        if (!strstr(problem.err.message, cases[i].part))
            fail_msg("'%s' does not contain '%s'", problem.err.message, cases[i].part);
        json_decref(from);
    }
}

// The bundled model's template takes null in answers with calls, and adds texts to user messages.
static void templates_get_what_they_can_read(void **state) {
    static const char *const bodies[] = {
        // content null, arguments as text, tool messages with parts
        "{\"messages\":[{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\"Be "
        "kind.\"}]},{\"role\":\"user\",\"content\":null},{\"role\":\"assistant\",\"content\":null,"
        "\"reasoning\":\"hm\",\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\",\"function\":{"
        "\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}}]},{\"role\":\"tool\",\"tool_call_id\":"
        "\"c\",\"content\":[{\"type\":\"text\",\"text\":\"4\"}]}],\"max_tokens\":1}",
        // arguments that are not JSON
        "{\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"function\":{"
        "\"name\":\"f\",\"arguments\":\"{oops\"}}]},{\"role\":\"user\",\"content\":\"a\"}],"
        "\"max_tokens\":1}",
    };
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        json_decref(post_json(&rig, "/v1/chat/completions", bodies[i], 200));
    json_decref(post_json(&rig, "/v1/chat/completions",
                          "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"file\"}]}]}",
                          400));
    serve_stop(&rig);
}

static void templates_that_reject_get_less(void **state) {
    qn_err err;
    json_t *to = NULL;
    json_t *from = json_of("[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"assistant\","
                           "\"content\":null,\"tool_calls\":[]},{\"role\":\"system\",\"content\":"
                           "\"t\"}]");
    json_t *want = json_of("[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"assistant\","
                           "\"content\":\"\",\"tool_calls\":[]},{\"role\":\"user\",\"content\":"
                           "\"t\"}]");
    (void)state;
    ASSERT_OK(qn_messages_relax(&to, from, &err));
    assert_true(json_equal(to, want));
    json_t *again = NULL;
    ASSERT_OK(qn_messages_relax(&again, to, &err));
    assert_null(again); // nothing is left to change
    json_decref(from);
    json_decref(to);
    json_decref(want);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_are_brought_into_one_form),
        cmocka_unit_test(what_is_not_understood_is_named),
        cmocka_unit_test(templates_get_what_they_can_read),
        cmocka_unit_test(templates_that_reject_get_less),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
