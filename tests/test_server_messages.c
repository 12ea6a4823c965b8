// Anthropic's messages: whole answers, streams, counting, what is read and what is refused.
#include "serve_rig.h"

#include "server/api_messages.h"

static json_t *ask_for(const serve_rig *rig, const char *body, int status) {
    return post_quoted(rig, "/v1/messages", body, status);
}

static void an_answer_is_whole(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    json_t *a = ask_for(&rig,
                        "{'model':'any','max_tokens':20,'messages':[{'role':'user','content':"
                        "'What color is a lemon?'}]}",
                        200);
    assert_string_equal(text_at(a, "type"), "message");
    assert_string_equal(text_at(a, "role"), "assistant");
    assert_true(strncmp(text_at(a, "id"), "msg_", 4) == 0);
    assert_string_equal(text_at(a, "model"), "quern-mini-Q8_0");
    assert_int_equal(json_array_size(json_at(a, "content")), 1);
    assert_string_equal(text_at(a, "content.0.type"), "text");
    assert_string_equal(text_at(a, "content.0.text"), "A lemon is yellow.");
    assert_string_equal(text_at(a, "stop_reason"), "end_turn");
    assert_true(json_is_null(json_at(a, "stop_sequence")));
    const json_int_t n = json_integer_value(json_at(a, "usage.input_tokens"));
    assert_true(n > 1);
    assert_int_equal(json_integer_value(json_at(a, "usage.cache_read_input_tokens")), 0);
    assert_int_equal(json_integer_value(json_at(a, "usage.output_tokens")), 5);
    json_decref(a);

    // Again: what is in the cache is not among the input tokens.
    a = ask_for(&rig,
                "{'max_tokens':1,'messages':[{'role':'user','content':'What color is a lemon?'}]}",
                200);
    const json_int_t rest = json_integer_value(json_at(a, "usage.input_tokens"));
    const json_int_t cached = json_integer_value(json_at(a, "usage.cache_read_input_tokens"));
    assert_true(cached > 0);
    assert_int_equal(rest + cached, n);
    assert_string_equal(text_at(a, "stop_reason"), "max_tokens");
    json_decref(a);

    a = ask_for(&rig,
                "{'max_tokens':20,'stop_sequences':['never',' yellow'],'messages':[{'role':'user',"
                "'content':'What color is a lemon?'}]}",
                200);
    assert_string_equal(text_at(a, "content.0.text"), "A lemon is");
    assert_string_equal(text_at(a, "stop_reason"), "stop_sequence");
    assert_string_equal(text_at(a, "stop_sequence"), " yellow");
    json_decref(a);
    serve_stop(&rig);
}

static void requests_have_ids(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    http_answer a = http_with(&rig, "POST", "/v1/messages",
                              "X-Request-Id: mine-7\r\nanthropic-version: 2023-06-01\r\n", "{}");
    assert_int_equal(a.status, 400);
    assert_true(strncmp(http_header(&a, "request-id"), "mine-7\r", 7) == 0);
    http_deinit(&a);
    serve_stop(&rig);
}

static void a_stream_tells_each_step(void **state) {
    static const char *const first[] = {"message_start", "ping", "content_block_start"};
    static const char *const last[] = {"content_block_stop", "message_delta", "message_stop"};
    serve_rig rig;
    qn_buf text = {0};
    (void)state;
    serve_start(&rig, NULL);
    http_answer a = http_post(&rig, "/v1/messages",
                              "{\"max_tokens\": 20, \"stream\": true, \"messages\": [{\"role\": "
                              "\"user\", \"content\": \"What color is a lemon?\"}]}");
    assert_int_equal(a.status, 200);
    assert_true(a.is_whole);
    json_t *events = sse_events(&a);
    const size_t n = json_array_size(events);
    assert_true(n > 6);
    for (size_t i = 0; i < n; i++) {
        const json_t *e = json_array_get(events, i);
        const char *want = i < 3        ? first[i]
                           : i >= n - 3 ? last[i - (n - 3)]
                                        : "content_block_delta";
        assert_string_equal(text_at(e, "event"), want);
        assert_string_equal(text_at(e, "data.type"), want);
        if (i >= 2 && i < n - 2) assert_int_equal(json_integer_value(json_at(e, "data.index")), 0);
        if (i < 3 || i >= n - 3) continue;
        assert_string_equal(text_at(e, "data.delta.type"), "text_delta");
        qn_buf_text(&text, text_at(e, "data.delta.text"));
    }
    assert_string_equal(text.data, "A lemon is yellow.");
    const json_t *start = json_array_get(events, 0), *delta = json_array_get(events, n - 2);
    assert_json(json_at(start, "data.message.content"), "[]", "content");
    assert_true(json_is_null(json_at(start, "data.message.stop_reason")));
    assert_true(json_integer_value(json_at(start, "data.message.usage.input_tokens")) > 0);
    assert_string_equal(text_at(delta, "data.delta.stop_reason"), "end_turn");
    assert_int_equal(json_integer_value(json_at(delta, "data.usage.output_tokens")), 5);
    json_decref(events);
    qn_buf_deinit(&text);
    http_deinit(&a);
    serve_stop(&rig);
}

// The types of a stream's events, one after the other, deltas by their own; equal ones once.
static void assert_types(const json_t *events, const char *want) {
    qn_buf types = {0};
    const char *last = "";
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *e = json_array_get(events, i);
        const json_t *delta = json_at(e, "data.delta.type");
        const char *type = delta ? json_string_value(delta) : text_at(e, "event");
        if (strcmp(type, last) != 0) qn_buf_printf(&types, "%s%s", i ? " " : "", type);
        last = type;
    }
    assert_string_equal(types.data, want);
    qn_buf_deinit(&types);
}

// The texts of all deltas of that member.
static void join_deltas(qn_buf *text, const json_t *events, const char *path) {
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *piece = json_at(json_array_get(events, i), path);
        if (json_is_string(piece)) qn_buf_text(text, json_string_value(piece));
    }
}

static void thinking_is_a_block(void **state) {
    char path[64];
    serve_rig rig;
    qn_buf text = {0};
    (void)state;
    write_thinking_template(path, sizeof path);
    serve_start(&rig, &(qn_server_opts){.template = path});
    json_t *whole = ask_for(
        &rig, "{'max_tokens':3,'messages':[{'role':'user','content':'What color is a lemon?'}]}",
        200);
    assert_string_equal(text_at(whole, "content.0.type"), "thinking");
    assert_string_equal(text_at(whole, "content.0.signature"), "");
    http_answer a = http_post(&rig, "/v1/messages",
                              "{\"max_tokens\":3,\"stream\":true,\"messages\":[{\"role\":\"user\","
                              "\"content\":\"What color is a lemon?\"}]}");
    json_t *events = sse_events(&a);
    assert_types(events, "message_start ping content_block_start thinking_delta signature_delta "
                         "content_block_stop message_delta message_stop");
    join_deltas(&text, events, "data.delta.thinking");
    assert_string_equal(text.data, text_at(whole, "content.0.thinking"));
    json_decref(whole);
    json_decref(events);
    qn_buf_deinit(&text);
    http_deinit(&a);
    serve_stop(&rig);
    unlink(path);
}

static void a_call_is_a_block(void **state) {
    static const char body[] =
        "{'max_tokens':64,'messages':[{'role':'user','content':'a'}],'tool_choice':{'type':'any'},"
        "'tools':[{'name':'f','input_schema':{'type':'object','properties':{'x':{'enum':[7]}},"
        "'required':['x'],'additionalProperties':false}}],'stream':%s}";
    serve_rig rig;
    qn_buf text = {0}, request = {0};
    (void)state;
    serve_start(&rig, NULL);
    qn_buf_printf(&request, body, "false");
    json_t *whole = ask_for(&rig, request.data, 200);
    assert_string_equal(text_at(whole, "stop_reason"), "tool_use");
    assert_string_equal(text_at(whole, "content.0.type"), "tool_use");
    assert_string_equal(text_at(whole, "content.0.name"), "f");
    assert_json(json_at(whole, "content.0.input"), "{'x':7}", "input");
    qn_buf_clear(&request);
    qn_buf_printf(&request, body, "true");
    char *posted = json_text(request.data);
    http_answer a = http_post(&rig, "/v1/messages", posted);
    json_t *events = sse_events(&a);
    assert_types(events, "message_start ping content_block_start input_json_delta "
                         "content_block_stop message_delta message_stop");
    join_deltas(&text, events, "data.delta.partial_json");
    json_t *input = json_of(text.data);
    assert_json(input, "{'x':7}", "input");
    assert_json(json_at(json_array_get(events, 2), "data.content_block.input"), "{}", "input");
    json_decref(input);
    json_decref(whole);
    json_decref(events);
    qn_buf_deinit(&text);
    qn_buf_deinit(&request);
    http_deinit(&a);
    free(posted);
    serve_stop(&rig);
}

static void tokens_are_counted(void **state) {
    static const char body[] = "{\"max_tokens\":1,\"system\":\"Be kind.\",\"messages\":[{\"role\":"
                               "\"user\",\"content\":\"What color is a lemon?\"}]}";
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    json_t *a = post_json(&rig, "/v1/messages", body, 200);
    json_t *b = post_json(&rig, "/v1/messages/count_tokens", body, 200);
    json_t *c = post_json(&rig, "/v1/messages/count_tokens",
                          "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", 200);
    assert_int_equal(json_integer_value(json_at(b, "input_tokens")),
                     json_integer_value(json_at(a, "usage.input_tokens")));
    assert_true(json_integer_value(json_at(c, "input_tokens")) > 0);
    json_decref(a);
    json_decref(b);
    json_decref(c);
    serve_stop(&rig);
}

// What agents send, and must get an answer to.
static void agents_are_tolerated(void **state) {
    static const char *const bodies[] = {
        "{'max_tokens':1,'messages':[{'role':'user','content':''}],'metadata':{'user_id':'u'},"
        "'service_tier':'auto','thinking':{'type':'adaptive'},'output_config':{'effort':'high'},"
        "'context_management':{'edits':[]},'betas':['x'],'unknown':1,'temperature':1,'top_k':5,"
        "'top_p':0.9}",
        "{'max_tokens':1,'thinking':{'type':'enabled','budget_tokens':1024},'messages':[{'role':"
        "'user','content':[{'type':'text','text':'a','cache_control':{'type':'ephemeral'}}]}]}",
        "{'max_tokens':1,'thinking':{'type':'disabled'},'messages':[{'role':'user','content':'a'}],"
        "'tools':[],'stop_sequences':[]}",
        "{'max_tokens':1,'messages':[{'role':'user','content':'a'}],'tools':[{'type':"
        "'web_search_20250305','name':'web_search'},{'type':'bash_20250124','name':'bash'},"
        "{'type':'text_editor_20250728','name':'str_replace_based_edit_tool'},{'type':'custom',"
        "'name':'f','description':'d','input_schema':{'type':'object'}},{'name':'g',"
        "'input_schema':{'type':'object'},'cache_control':{'type':'ephemeral'}}],'tool_choice':"
        "{'type':'auto','disable_parallel_tool_use':true}}",
        "{'max_tokens':1,'messages':[{'role':'user','content':'a'}],'tools':[{'name':'f',"
        "'input_schema':{'type':'object'}}],'tool_choice':{'type':'none'}}",
        "{'max_tokens':1,'messages':[{'role':'user','content':'a'},{'role':'assistant','content':"
        "[{'type':'thinking','thinking':'hm','signature':'s'},{'type':'redacted_thinking','data':"
        "'x'},{'type':'text','text':'b'},{'type':'tool_use','id':'t1','name':'f','input':{'x':1}}]}"
        ",{'role':'user','content':[{'type':'tool_result','tool_use_id':'t1','content':[{'type':"
        "'text','text':'4'}]},{'type':'text','text':'c'}]}]}",
        "{'max_tokens':1,'messages':[{'role':'user','content':[]},{'role':'assistant','content':"
        "[]}]}",
    };
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        json_decref(ask_for(&rig, bodies[i], 200));
    serve_stop(&rig);
}

static void what_cannot_be_done_is_named(void **state) {
    static const struct {
        const char *body, *part;
    } cases[] = {
        {"{'messages':[{'role':'user','content':'a'}]}", "max_tokens"},
        {"{'max_tokens':1}", "'messages'"},
        {"{'max_tokens':1,'messages':[]}", "'messages'"},
        {"{'max_tokens':1,'messages':[{'content':'a'}]}", "messages[0] has no role"},
        {"{'max_tokens':1,'messages':[{'role':'user','content':7}]}", "messages[0]"},
        {"{'max_tokens':1,'messages':[{'role':'user','content':[{'type':'text','text':'a'},"
         "{'type':'document','source':{}}]}]}",
         "messages[0].content[1]: a block is of type 'document'"},
        {"{'max_tokens':1,'messages':[{'role':'user','content':[{'type':'text'}]}]}", "no text"},
        {"{'max_tokens':1,'messages':[{'role':'user','content':[{'type':'image','source':{'type':"
         "'url','url':'ftp://a.example/b.png'}}]}]}",
         "only data: URLs are read"},
        {"{'max_tokens':1,'messages':[{'role':'user','content':[{'type':'image','source':{'type':"
         "'file','file_id':'f'}}]}]}",
         "'file'"},
        {"{'max_tokens':1,'messages':[{'role':'assistant','content':[{'type':'tool_use'}]}]}",
         "no name"},
        {"{'max_tokens':1,'messages':[{'role':'user','content':[{'type':'tool_result','content':"
         "[{'type':'document'}]}]}]}",
         "'document'"},
        {"{'max_tokens':1,'messages':[{'role':'user','content':[{'type':'tool_result','content':7}]"
         "}]}",
         "tool_result"},
        {"{'max_tokens':1,'system':[{'type':'image'}],'messages':[{'role':'user','content':'a'}]}",
         "system[0]"},
        {"{'max_tokens':1,'messages':[{'role':'user','content':'a'}],'tools':[{}]}",
         "tools[0] has no name"},
        {"{'max_tokens':1,'messages':[{'role':'user','content':'a'}],'tools':[{'name':'f',"
         "'input_schema':7}]}",
         "input_schema"},
        {"{'max_tokens':1,'messages':[{'role':'user','content':'a'}],'tool_choice':{'type':'any'}}",
         "no tools"},
        {"{'max_tokens':1,'messages':[{'role':'user','content':'a'}],'tool_choice':{'type':'x'}}",
         "'x'"},
        {"{'max_tokens':1,'messages':[{'role':'user','content':'a'}],'tools':[{'name':'f'}],"
         "'tool_choice':{'type':'tool'}}",
         "without a name"},
        {"{'max_tokens':1,'messages':[{'role':'user','content':'a'}],'tools':[{'name':'f'}],"
         "'tool_choice':{'type':'tool','name':'other'}}",
         "'other'"},
        {"{'max_tokens':1,'messages':[{'role':'user','content':'a'}],'thinking':{'type':'x'}}",
         "'x'"},
        {"{'max_tokens':1,'messages':[{'role':'user','content':'a'}],'output_config':{'effort':"
         "'x'}}",
         "'x'"},
        {"{'max_tokens':1,'messages':[{'role':'user','content':'a'}],'mcp_servers':[{}]}",
         "mcp_servers"},
        {"{'max_tokens':1,'messages':7}", "messages"},
        {"[", "body"},
    };
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *a = ask_for(&rig, cases[i].body, 400);
        assert_string_equal(text_at(a, "type"), "error");
        assert_string_equal(text_at(a, "error.type"), "invalid_request_error");
        assert_says(a, cases[i].part);
        json_decref(a);
    }
    serve_stop(&rig);
}

static void a_key_may_come_in_its_own_header(void **state) {
    static const char body[] =
        "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}";
    const char *const keys[] = {"secret"};
    serve_rig rig;
    (void)state;
    serve_start(&rig, &(qn_server_opts){.keys = keys, .n_keys = 1});
    http_answer a = http_with(&rig, "POST", "/v1/messages", "x-api-key: secret\r\n", body);
    assert_int_equal(a.status, 200);
    http_deinit(&a);
    a = http_with(&rig, "POST", "/v1/messages", "x-api-key: wrong\r\n", body);
    assert_int_equal(a.status, 401);
    json_t *e = http_json(&a);
    assert_string_equal(text_at(e, "type"), "error");
    assert_string_equal(text_at(e, "error.type"), "authentication_error");
    json_decref(e);
    http_deinit(&a);
    serve_stop(&rig);
}

// Clients look for the words.
static void a_prompt_that_is_too_long_is_told_as_theirs(void **state) {
    serve_rig rig;
    qn_buf body = {0};
    (void)state;
    serve_start(&rig, &(qn_server_opts){.context = 64});
    qn_buf_text(&body, "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < 200; i++) qn_buf_text(&body, "lemon ");
    qn_buf_text(&body, "\"}]}");
    json_t *a = post_json(&rig, "/v1/messages", body.data, 400);
    assert_string_equal(text_at(a, "error.type"), "invalid_request_error");
    assert_true(strncmp(text_at(a, "error.message"), "prompt is too long: ", 20) == 0);
    assert_non_null(strstr(text_at(a, "error.message"), "> 64 maximum"));
    json_decref(a);
    json_t *count = post_json(&rig, "/v1/messages/count_tokens", body.data, 200);
    assert_true(json_integer_value(json_at(count, "input_tokens")) > 64);
    json_decref(count);
    qn_buf_deinit(&body);
    serve_stop(&rig);
}

// --- reading -------------------------------------------------------------------------------------

// Reads a request without a server.
static void read_request(qn_ask *ask, const char *body) {
    qn_problem problem = {0};
    *ask = (qn_ask){.parallel_calls = true, .body = json_of(body)};
    if (qn_fields_read(ask, ask->body, QN_SET_MESSAGES, NULL, &problem) ||
        qn_anthropic_prepare_count(ask, &problem))
        fail_msg("%s: %s", body, problem.err.message);
}

static void blocks_become_messages(void **state) {
    static const struct {
        const char *body, *messages;
    } cases[] = {
        {"{'messages':[{'role':'user','content':'a'}],'system':'s'}",
         "[{'role':'system','content':'s'},{'role':'user','content':'a'}]"},
        {"{'messages':[{'role':'user','content':'a'}],'system':[{'type':'text','text':'s'},"
         "{'type':'text','text':'t','cache_control':{'type':'ephemeral'}}]}",
         "[{'role':'system','content':'s\\n\\nt'},{'role':'user','content':'a'}]"},
        // the line that is different in every request
        {"{'messages':[{'role':'user','content':'a'}],'system':[{'type':'text','text':"
         "'x-anthropic-billing-header: cc_version=2.1; cch=a1b2c;'},{'type':'text','text':'s'}]}",
         "[{'role':'system','content':'s'},{'role':'user','content':'a'}]"},
        {"{'messages':[{'role':'user','content':'a'}],'system':"
         "'x-anthropic-billing-header: cch=ffff;\\ns\\nx-anthropic-billing-header: stays'}",
         "[{'role':'system','content':'s\\nx-anthropic-billing-header: stays'},{'role':'user',"
         "'content':'a'}]"},
        {"{'messages':[{'role':'user','content':'a'}],'system':'x-anthropic-billing-header: a'}",
         "[{'role':'user','content':'a'}]"},
        {"{'messages':[{'role':'user','content':[{'type':'text','text':'a'},{'type':'image',"
         "'source':{'type':'base64','media_type':'image/png','data':'QUJD'}}]}]}",
         "[{'role':'user','content':[{'type':'text','text':'a'},{'type':'image_url','image_url':"
         "{'url':'data:image/png;base64,QUJD'}}]}]"},
        {"{'messages':[{'role':'assistant','content':[{'type':'thinking','thinking':'r',"
         "'signature':''},{'type':'redacted_thinking','data':'x'},{'type':'text','text':'t'},"
         "{'type':'tool_use','id':'1','name':'f','input':{'x':1}},{'type':'tool_use','id':'2',"
         "'name':'g','input':{}}]}]}",
         "[{'role':'assistant','content':'t','reasoning_content':'r','tool_calls':[{'id':'1',"
         "'type':'function','function':{'name':'f','arguments':{'x':1}}},{'id':'2','type':"
         "'function','function':{'name':'g','arguments':{}}}]}]"},
        {"{'messages':[{'role':'assistant','content':[{'type':'tool_use','id':'1','name':'f',"
         "'input':{}}]},{'role':'user','content':[{'type':'tool_result','tool_use_id':'1',"
         "'content':'y'},{'type':'tool_result','tool_use_id':'2'},{'type':'text','text':'a'},"
         "{'type':'text','text':'b'}]}]}",
         "[{'role':'assistant','content':null,'tool_calls':[{'id':'1','type':'function',"
         "'function':{'name':'f','arguments':{}}}]},{'role':'tool','content':'y','tool_call_id':"
         "'1','name':'f'},{'role':'tool','content':'','tool_call_id':'2'},{'role':'user',"
         "'content':'a\\nb'}]"},
        // errors are told in words, once
        {"{'messages':[{'role':'user','content':[{'type':'tool_result','is_error':true,'content':"
         "'no file'},{'type':'tool_result','is_error':true,'content':[{'type':'text','text':"
         "'Error: x'}]},{'type':'tool_result','is_error':true}]}]}",
         "[{'role':'tool','content':'Error: no file'},{'role':'tool','content':'Error: x'},"
         "{'role':'tool','content':'Error: '}]"},
        // images of results come after all results
        {"{'messages':[{'role':'user','content':[{'type':'tool_result','tool_use_id':'1','content':"
         "[{'type':'image','source':{'type':'base64','media_type':'image/png','data':'QQ'}},"
         "{'type':'text','text':'x'}]},{'type':'tool_result','tool_use_id':'2','content':'y'}]}]}",
         "[{'role':'tool','content':'x','tool_call_id':'1'},{'role':'tool','content':'y',"
         "'tool_call_id':'2'},{'role':'user','content':[{'type':'image_url','image_url':{'url':"
         "'data:image/png;base64,QQ'}}]}]"},
        {"{'messages':[{'role':'assistant','content':[{'type':'server_tool_use','id':'1','name':"
         "'web_search','input':{}},{'type':'web_search_tool_result','content':[]},{'type':'text',"
         "'text':'t'}]}]}",
         "[{'role':'assistant','content':'t'}]"},
        {"{'messages':[{'role':'user','content':[]}]}", "[{'role':'user','content':''}]"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_ask ask;
        read_request(&ask, cases[i].body);
        assert_json(ask.messages, cases[i].messages, cases[i].body);
        qn_ask_deinit(&ask);
    }
}

static void choices_are_read(void **state) {
    static const struct {
        const char *choice;
        qn_tool_choice want;
        const char *name;
        bool is_parallel;
    } cases[] = {
        {"{'type':'auto'}", QN_TOOLS_AUTO, NULL, true},
        {"{'type':'any','disable_parallel_tool_use':true}", QN_TOOLS_REQUIRED, NULL, false},
        {"{'type':'tool','name':'f'}", QN_TOOLS_REQUIRED, "f", true},
        {"{'type':'none'}", QN_TOOLS_NONE, NULL, true}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_ask ask;
        qn_buf body = {0};
        qn_buf_printf(&body,
                      "{'messages':[{'role':'user','content':'a'}],'tools':[{'type':"
                      "'web_search_20250305','name':'w'},{'name':'f','description':'d',"
                      "'input_schema':{'type':'object'}}],'tool_choice':%s}",
                      cases[i].choice);
        read_request(&ask, body.data);
        assert_json(ask.tools,
                    "[{'type':'function','function':{'name':'f','description':'d','parameters':"
                    "{'type':'object'}}}]",
                    "tools");
        assert_int_equal(ask.choice, cases[i].want);
        assert_int_equal(ask.parallel_calls, cases[i].is_parallel);
        if (cases[i].name)
            assert_string_equal(ask.tool_name, cases[i].name);
        else
            assert_null(ask.tool_name);
        qn_ask_deinit(&ask);
        qn_buf_deinit(&body);
    }
}

static void thinking_is_switched(void **state) {
    static const struct {
        const char *members;
        qn_reasoning want;
    } cases[] = {
        {"'a':0", QN_REASONING_AUTO},
        {"'thinking':{'type':'enabled','budget_tokens':1024}", QN_REASONING_ON},
        {"'thinking':{'type':'disabled'}", QN_REASONING_OFF},
        {"'thinking':{'type':'disabled'},'output_config':{'effort':'high'}", QN_REASONING_OFF},
        {"'thinking':{'type':'adaptive'}", QN_REASONING_AUTO},
        {"'output_config':{'effort':'high'}", QN_REASONING_ON}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_ask ask;
        qn_buf body = {0};
        qn_buf_printf(&body, "{'messages':[{'role':'user','content':'a'}],%s}", cases[i].members);
        read_request(&ask, body.data);
        assert_int_equal(ask.thinks, cases[i].want);
        qn_ask_deinit(&ask);
        qn_buf_deinit(&body);
    }
}

static void a_schema_is_followed(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    json_t *a = ask_for(&rig,
                        "{'max_tokens':64,'messages':[{'role':'user','content':'What color is a "
                        "lemon?'}],'output_config':{'format':{'type':'json_schema','schema':"
                        "{'type':'object','properties':{'color':{'enum':['yellow','blue']}},"
                        "'required':['color'],'additionalProperties':false}}}}",
                        200);
    json_t *answer = json_of(text_at(a, "content.0.text"));
    assert_true(json_is_string(json_at(answer, "color")));
    json_decref(answer);
    json_decref(a);
    serve_stop(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_is_whole),
        cmocka_unit_test(requests_have_ids),
        cmocka_unit_test(a_stream_tells_each_step),
        cmocka_unit_test(thinking_is_a_block),
        cmocka_unit_test(a_call_is_a_block),
        cmocka_unit_test(tokens_are_counted),
        cmocka_unit_test(agents_are_tolerated),
        cmocka_unit_test(what_cannot_be_done_is_named),
        cmocka_unit_test(a_key_may_come_in_its_own_header),
        cmocka_unit_test(a_prompt_that_is_too_long_is_told_as_theirs),
        cmocka_unit_test(blocks_become_messages),
        cmocka_unit_test(choices_are_read),
        cmocka_unit_test(thinking_is_switched),
        cmocka_unit_test(a_schema_is_followed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
