// OpenAI's responses: whole answers, streams, what is tolerated and what is refused.
#include "serve_rig.h"

#include "server/api_responses.h"

static json_t *ask_for(const serve_rig *rig, const char *body, int status) {
    return post_quoted(rig, "/v1/responses", body, status);
}

static void an_answer_is_whole(void **state) {
    static const char *const members[] = {"id",
                                          "object",
                                          "created_at",
                                          "status",
                                          "error",
                                          "incomplete_details",
                                          "model",
                                          "output",
                                          "instructions",
                                          "metadata",
                                          "parallel_tool_calls",
                                          "temperature",
                                          "tool_choice",
                                          "tools",
                                          "top_p",
                                          "text",
                                          "usage",
                                          "reasoning",
                                          "max_output_tokens",
                                          "previous_response_id",
                                          "truncation"};
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    json_t *a =
        ask_for(&rig, "{'model':'any','input':'What color is a lemon?','temperature':0}", 200);
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        if (!json_object_get(a, members[i])) fail_msg("there is no '%s'", members[i]);
    }
    assert_string_equal(text_at(a, "object"), "response");
    assert_string_equal(text_at(a, "status"), "completed");
    assert_true(json_is_null(json_at(a, "error")));
    assert_true(json_is_null(json_at(a, "incomplete_details")));
    assert_int_equal(json_array_size(json_at(a, "output")), 1);
    assert_string_equal(text_at(a, "output.0.type"), "message");
    assert_string_equal(text_at(a, "output.0.role"), "assistant");
    assert_string_equal(text_at(a, "output.0.status"), "completed");
    assert_string_equal(text_at(a, "output.0.content.0.type"), "output_text");
    assert_string_equal(text_at(a, "output.0.content.0.text"), "A lemon is yellow.");
    assert_true(json_is_array(json_at(a, "output.0.content.0.annotations")));
    const json_int_t in = json_integer_value(json_at(a, "usage.input_tokens"));
    assert_true(in > 0);
    assert_int_equal(json_integer_value(json_at(a, "usage.output_tokens")), 5);
    assert_int_equal(json_integer_value(json_at(a, "usage.total_tokens")), in + 5);
    assert_true(json_is_integer(json_at(a, "usage.input_tokens_details.cached_tokens")));
    assert_true(json_is_integer(json_at(a, "usage.output_tokens_details.reasoning_tokens")));
    json_decref(a);

    a = ask_for(&rig, "{'input':'What color is a lemon?','max_output_tokens':2}", 200);
    assert_string_equal(text_at(a, "status"), "incomplete");
    assert_string_equal(text_at(a, "incomplete_details.reason"), "max_output_tokens");
    assert_string_equal(text_at(a, "output.0.status"), "incomplete");
    assert_int_equal(json_integer_value(json_at(a, "max_output_tokens")), 2);
    json_decref(a);
    serve_stop(&rig);
}

// The events of a stream, which must come in this order.
static void a_stream_tells_each_step(void **state) {
    static const char *const first[] = {"response.created", "response.in_progress",
                                        "response.output_item.added",
                                        "response.content_part.added"};
    static const char *const last[] = {"response.output_text.done", "response.content_part.done",
                                       "response.output_item.done", "response.completed"};
    serve_rig rig;
    qn_buf text = {0};
    (void)state;
    serve_start(&rig, NULL);
    http_answer a = http_post(&rig, "/responses",
                              "{\"input\": \"What color is a lemon?\", \"stream\": true, "
                              "\"include\": [\"message.output_text.logprobs\"]}");
    assert_int_equal(a.status, 200);
    assert_true(a.is_whole);
    json_t *events = sse_events(&a);
    const size_t n = json_array_size(events);
    assert_true(n > 8);
    const char *id = text_at(json_array_get(events, 2), "data.item.id");
    for (size_t i = 0; i < n; i++) {
        const json_t *e = json_array_get(events, i);
        const char *want = i < 4        ? first[i]
                           : i >= n - 4 ? last[i - (n - 4)]
                                        : "response.output_text.delta";
        assert_string_equal(text_at(e, "event"), want);
        assert_string_equal(text_at(e, "data.type"), want);
        assert_int_equal(json_integer_value(json_at(e, "data.sequence_number")), (json_int_t)i);
        if (i >= 3 && i < n - 2) { // of the one part
            assert_string_equal(text_at(e, "data.item_id"), id);
            assert_int_equal(json_integer_value(json_at(e, "data.output_index")), 0);
            assert_int_equal(json_integer_value(json_at(e, "data.content_index")), 0);
        }
        if (i < 4 || i >= n - 4) continue;
        qn_buf_text(&text, text_at(e, "data.delta"));
        assert_int_equal(json_array_size(json_at(e, "data.logprobs")), 1);
    }
    assert_string_equal(text.data, "A lemon is yellow.");
    const json_t *end = json_array_get(events, n - 1);
    assert_string_equal(text_at(json_array_get(events, n - 4), "data.text"), text.data);
    assert_string_equal(text_at(end, "data.response.output.0.content.0.text"), text.data);
    assert_string_equal(text_at(end, "data.response.output.0.id"), id);
    assert_string_equal(text_at(end, "data.response.status"), "completed");
    assert_int_equal(json_array_size(json_at(end, "data.response.output.0.content.0.logprobs")), 5);
    assert_int_equal(json_integer_value(json_at(end, "data.response.usage.output_tokens")), 5);
    assert_true(json_is_null(json_at(json_array_get(events, 0), "data.response.usage")));
    json_decref(events);
    qn_buf_deinit(&text);
    http_deinit(&a);
    serve_stop(&rig);
}

// A stream that ends before its answer does.
static void a_cut_stream_is_incomplete(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    http_answer a = http_post(&rig, "/v1/responses",
                              "{\"input\": \"What color is a lemon?\", \"stream\": true, "
                              "\"max_output_tokens\": 1}");
    json_t *events = sse_events(&a);
    const json_t *end = json_array_get(events, json_array_size(events) - 1);
    assert_string_equal(text_at(end, "event"), "response.incomplete");
    assert_string_equal(text_at(end, "data.response.incomplete_details.reason"),
                        "max_output_tokens");
    json_decref(events);
    http_deinit(&a);
    serve_stop(&rig);
}

// The types of all events but deltas must be these; the deltas, of that type, are appended to
// *text.
static void assert_events(const json_t *events, const char *const *want, size_t n_want,
                          const char *delta, qn_buf *text) {
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *e = json_array_get(events, i);
        assert_string_equal(text_at(e, "data.type"), text_at(e, "event"));
        assert_int_equal(json_integer_value(json_at(e, "data.sequence_number")), (json_int_t)i);
        if (strcmp(text_at(e, "event"), delta) == 0) {
            qn_buf_text(text, text_at(e, "data.delta"));
            assert_non_null(json_at(e, "data.item_id"));
            continue;
        }
        assert_true(n < n_want);
        assert_string_equal(text_at(e, "event"), want[n++]);
    }
    assert_int_equal(n, n_want);
}

static void reasoning_is_an_item(void **state) {
    static const char *const want[] = {"response.created",
                                       "response.in_progress",
                                       "response.output_item.added",
                                       "response.content_part.added",
                                       "response.reasoning_text.done",
                                       "response.content_part.done",
                                       "response.output_item.done",
                                       "response.incomplete"};
    char path[64];
    serve_rig rig;
    qn_buf text = {0};
    (void)state;
    write_thinking_template(path, sizeof path);
    serve_start(&rig, &(qn_server_opts){.template = path});
    json_t *whole = ask_for(&rig, "{'input':'What color is a lemon?','max_output_tokens':3}", 200);
    assert_string_equal(text_at(whole, "output.0.type"), "reasoning");
    assert_json(json_at(whole, "output.0.summary"), "[]", "summary");
    assert_string_equal(text_at(whole, "output.0.content.0.type"), "reasoning_text");
    assert_true(
        json_integer_value(json_at(whole, "usage.output_tokens_details.reasoning_tokens")) >= 3);
    http_answer a = http_post(&rig, "/v1/responses",
                              "{\"input\":\"What color is a lemon?\",\"max_output_tokens\":3,"
                              "\"stream\":true}");
    json_t *events = sse_events(&a);
    assert_events(events, want, sizeof want / sizeof *want, "response.reasoning_text.delta", &text);
    assert_string_equal(text.data, text_at(whole, "output.0.content.0.text"));
    json_decref(whole);
    json_decref(events);
    qn_buf_deinit(&text);
    http_deinit(&a);
    serve_stop(&rig);
    unlink(path);
}

// A tool of a namespace, which must be called: the client gets the name that it knows.
static void a_call_is_an_item(void **state) {
    static const char *const want[] = {
        "response.created",           "response.in_progress",
        "response.output_item.added", "response.function_call_arguments.done",
        "response.output_item.done",  "response.completed"};
    static const char body[] =
        "{'input':'a','stream':true,'tool_choice':{'type':'function','name':'lamp__f'},'tools':["
        "{'type':'function','name':'f','parameters':{'type':'object'}},{'type':'namespace','name':"
        "'lamp','tools':[{'type':'function','name':'f','parameters':{'type':'object','properties':"
        "{'x':{'enum':[7]}},'required':['x'],'additionalProperties':false}}]}]}";
    serve_rig rig;
    qn_buf text = {0};
    char *request = json_text(body);
    (void)state;
    serve_start(&rig, NULL);
    http_answer a = http_post(&rig, "/v1/responses", request);
    assert_int_equal(a.status, 200);
    json_t *events = sse_events(&a);
    assert_events(events, want, sizeof want / sizeof *want,
                  "response.function_call_arguments.delta", &text);
    const json_t *end = json_array_get(events, json_array_size(events) - 1);
    assert_string_equal(text_at(end, "data.response.output.0.type"), "function_call");
    assert_string_equal(text_at(end, "data.response.output.0.name"), "f");
    assert_string_equal(text_at(end, "data.response.output.0.namespace"), "lamp");
    assert_string_equal(text_at(end, "data.response.output.0.arguments"), text.data);
    assert_string_equal(text_at(end, "data.response.output.0.status"), "completed");
    assert_true(strncmp(text_at(end, "data.response.output.0.call_id"), "call_", 5) == 0);
    json_t *arguments = json_of(text.data);
    assert_json(arguments, "{'x':7}", "arguments");
    json_decref(arguments);
    json_decref(events);
    qn_buf_deinit(&text);
    http_deinit(&a);
    free(request);
    serve_stop(&rig);
}

// What agents send, and must get an answer to.
static void agents_are_tolerated(void **state) {
    static const char *const bodies[] = {
        "{'input':'','max_output_tokens':1}",
        "{'input':[],'max_output_tokens':1}",
        "{'instructions':'Be kind.','max_output_tokens':1}",
        "{'input':'a','max_output_tokens':1,'previous_response_id':null,'conversation':null,"
        "'background':false,'store':false,'prompt_cache_key':'k','client_metadata':{'a':'b'},"
        "'include':['reasoning.encrypted_content'],'reasoning':{'effort':'medium','summary':"
        "'auto'},'parallel_tool_calls':false,'service_tier':'auto','truncation':'disabled',"
        "'metadata':{},'text':{'verbosity':'low'},'user':'u','unknown_field':[1]}",
        "{'input':'a','max_output_tokens':1,'reasoning':null,'tools':null,'text':null}",
        // tools that only a service has
        "{'input':'a','max_output_tokens':1,'tools':[{'type':'web_search'},{'type':"
        "'image_generation'},{'type':'file_search','vector_store_ids':[]},{'type':'tool_search'},"
        "{'type':'custom','name':'apply_patch','format':{'type':'grammar'}},{'type':'local_shell'},"
        "{'type':'computer_use_preview'},{'type':'namespace','name':'mcp','tools':[{'type':"
        "'function','name':'f','parameters':{'type':'object'}},{'type':'custom','name':'g'}]}]}",
        "{'input':'a','max_output_tokens':1,'tools':[{'type':'web_search'}],'tool_choice':'auto'}",
        "{'input':'a','max_output_tokens':1,'tools':[{'type':'function','name':'f','parameters':"
        "{'type':'object','properties':{}},'strict':true}],'tool_choice':'none'}",
        "{'input':'a','max_output_tokens':1,'tools':[{'type':'function','name':'f','parameters':"
        "null}],'tool_choice':{'type':'allowed_tools','mode':'auto','tools':[]}}",
        // history
        "{'input':[{'role':'developer','content':'x'},{'type':'message','role':'user','content':"
        "[{'type':'input_text','text':'a'}]},{'type':'reasoning','id':'rs_1','summary':[{'type':"
        "'summary_text','text':'hm'}],'encrypted_content':'abc'},{'type':'function_call','call_id':"
        "'c1','name':'f','arguments':'{}'},{'type':'function_call','call_id':'c2','name':'f',"
        "'arguments':'{oops'},{'type':'function_call_output','call_id':'c1','output':'4'},{'type':"
        "'function_call_output','call_id':'c2','output':[{'type':'input_text','text':'5'}]},"
        "{'type':'web_search_call','id':'w','status':'completed'},{'type':'message','role':"
        "'assistant','content':[{'type':'output_text','text':'b','annotations':[]}]},{'type':"
        "'custom_tool_call','call_id':'c3','name':'patch','input':'x'},{'type':"
        "'custom_tool_call_output','call_id':'c3','output':'ok'},{'role':'user','content':'c'}],"
        "'max_output_tokens':1}",
    };
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        json_decref(ask_for(&rig, bodies[i], 200));
    serve_stop(&rig);
}

// Three events of a stream repeat what the request said; a large one would not fit into what may
// wait to be sent, and its client be dropped for it.
static void large_requests_are_not_repeated(void **state) {
    enum { UNSENT = 256 << 10 };
    serve_rig rig;
    qn_buf body = {0};
    (void)state;
    serve_start(&rig, &(qn_server_opts){.limits = {.unsent = UNSENT}});
    qn_buf_text(&body, "{\"stream\":true,\"max_output_tokens\":2,\"input\":\"a\","
                       "\"metadata\":{\"note\":\"");
    for (int i = 0; i < UNSENT; i++) qn_buf_text(&body, "x");
    qn_buf_text(&body, "\"}}");
    http_answer a = http_post(&rig, "/v1/responses", body.data);
    assert_int_equal(a.status, 200);
    assert_true(a.is_whole);
    json_t *events = sse_events(&a);
    const size_t n = json_array_size(events);
    const json_t *last = json_array_get(events, n - 1);
    assert_string_equal(text_at(last, "event"), "response.incomplete");
    assert_int_equal(json_object_size(json_at(last, "data.response.metadata")), 0);
    json_decref(events);
    http_deinit(&a);
    qn_buf_deinit(&body);
    serve_stop(&rig);
}

static void what_cannot_be_done_is_named(void **state) {
    static const refused_case cases[] = {
        {"{}", "input", "no 'input'"},
        {"{'input':7}", "input", "integer"},
        {"{'input':'a','previous_response_id':'resp_1'}", "previous_response_id",
         "nothing is stored"},
        {"{'input':'a','conversation':'c'}", "conversation", "not supported"},
        {"{'input':'a','background':true}", "background", "not supported"},
        {"{'input':'a','prompt':{'id':'p'}}", "prompt", "not supported"},
        {"{'input':[{'type':'item_reference','id':'msg_1'}]}", "input", "'msg_1'"},
        {"{'input':[{'id':'msg_1'}]}", "input", "'msg_1'"},
        {"{'input':[1]}", "input", "input[0]"},
        {"{'input':[{'type':'strange'}]}", "input", "'strange'"},
        {"{'input':[{'type':'message','content':'a'}]}", "input", "no role"},
        {"{'input':[{'type':'function_call','arguments':'{}'}]}", "input", "no name"},
        {"{'input':[{'role':'user','content':[{'type':'input_file','file_id':'f'}]}]}", "input",
         "'input_file'"},
        {"{'input':[{'role':'user','content':[{'type':'input_image','image_url':'ftp://a/b'}]}]}",
         "input", "only data: URLs"},
        {"{'input':'a','tool_choice':'required'}", "tool_choice", "without tools"},
        {"{'input':'a','tool_choice':{'type':'web_search'}}", "tool_choice", "'web_search'"},
        {"{'input':'a','tools':[{'type':'function','name':'f'}],'tool_choice':{'type':'function',"
         "'name':'other'}}",
         "tool_choice", "'other'"},
        {"{'input':'a','tools':[{'type':'function','name':'f'}],'tool_choice':{'type':"
         "'allowed_tools','mode':'required','tools':[{'type':'function','name':'other'}]}}",
         "tool_choice", "without tools"},
        {"{'input':'a','tools':[1]}", "tools", "not an object"},
        {"{'input':'a','tools':[{'type':'function'}]}", "tools", "no name"},
        {"{'input':'a','reasoning':{'effort':'huge'}}", "reasoning.effort", "'huge'"},
        {"{'input':'a','truncation':'left'}", "truncation", "'left'"},
        {"{'input':'a','text':{'format':{'type':'xml'}}}", "response_format", "'xml'"},
        {"{'input':'a','max_output_tokens':'x'}", "max_output_tokens", "string"},
    };
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    assert_all_refused(&rig, "/v1/responses", cases, sizeof cases / sizeof *cases);
    serve_stop(&rig);
}

// --- reading -------------------------------------------------------------------------------------

// Reads a request without a server, as far as messages and tools.
static void read_request(qn_ask *ask, const char *body) {
    qn_problem problem = {0};
    *ask = (qn_ask){.parallel_calls = true, .body = json_of(body)};
    if (qn_fields_read(ask, ask->body, QN_SET_RESPONSES, NULL, &problem) ||
        qn_responses_prepare(ask, &problem))
        fail_msg("%s: %s", body, problem.err.message);
}

static void items_become_messages(void **state) {
    static const struct {
        const char *body, *messages;
    } cases[] = {
        {"{'input':'a','instructions':'s'}",
         "[{'role':'system','content':'s'},{'role':'user','content':'a'}]"},
        {"{'input':[]}", "[{'role':'user','content':''}]"},
        {"{'instructions':'s','input':[{'role':'developer','content':'t'},{'role':'user',"
         "'content':'a'}]}",
         "[{'role':'system','content':'s\\n\\nt'},{'role':'user','content':'a'}]"},
        // reasoning, text and calls of one answer are one message
        {"{'input':[{'type':'reasoning','summary':[{'type':'summary_text','text':'no'}],'content':"
         "[{'type':'reasoning_text','text':'r'}]},{'role':'assistant','content':[{'type':"
         "'output_text','text':'t'}]},{'type':'function_call','call_id':'1','name':'f','arguments':"
         "'{\\\"x\\\":1}'},{'type':'function_call','call_id':'2','name':'g','arguments':''},"
         "{'type':'function_call_output','call_id':'2','output':'y'}]}",
         "[{'role':'assistant','content':'t','reasoning_content':'r','tool_calls':[{'id':'1',"
         "'type':'function','function':{'name':'f','arguments':{'x':1}}},{'id':'2','type':"
         "'function','function':{'name':'g','arguments':{}}}]},{'role':'tool','content':'y',"
         "'tool_call_id':'2','name':'g'}]"},
        // a call after reasoning is an answer of its own
        {"{'input':[{'role':'assistant','content':'t'},{'type':'reasoning','summary':[{'text':'r'}]"
         "},{'type':'function_call','call_id':'1','name':'f','arguments':'{}'}]}",
         "[{'role':'assistant','content':'t'},{'role':'assistant','content':null,"
         "'reasoning_content':'r','tool_calls':[{'id':'1','type':'function','function':{'name':'f',"
         "'arguments':{}}}]}]"},
        // reasoning that no answer follows is forgotten
        {"{'input':[{'type':'reasoning','summary':[{'text':'r'}]},{'role':'user','content':'a'},"
         "{'role':'assistant','content':'b'}]}",
         "[{'role':'user','content':'a'},{'role':'assistant','content':'b'}]"},
        {"{'input':[{'type':'function_call_output','call_id':'1','output':[{'type':'input_text',"
         "'text':'a'},{'type':'input_image','image_url':'data:x'}]}]}",
         "[{'role':'tool','content':'a','tool_call_id':'1'},{'role':'user','content':[{'type':"
         "'image_url','image_url':{'url':'data:x'}}]}]"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_ask ask;
        read_request(&ask, cases[i].body);
        assert_json(ask.messages, cases[i].messages, cases[i].body);
        qn_ask_deinit(&ask);
    }
}

static void namespaces_are_flattened(void **state) {
    qn_ask ask;
    (void)state;
    read_request(&ask, "{'input':[{'type':'function_call','namespace':'b','name':'f','call_id':'1',"
                       "'arguments':'{}'}],'tools':[{'type':'web_search'},{'type':'namespace',"
                       "'name':'a','tools':[{'type':'function','name':'f','description':'d',"
                       "'parameters':{'type':'object'}}]},{'type':'namespace','name':'b','tools':"
                       "[{'type':'function','name':'f'},{'type':'function','name':'g'}]}],"
                       "'tool_choice':{'type':'function','name':'g'}}");
    assert_json(ask.tools,
                "[{'type':'function','function':{'name':'f','description':'d','parameters':"
                "{'type':'object'}}},{'type':'function','function':{'name':'b__f'}},"
                "{'type':'function','function':{'name':'g'}}]",
                "tools");
    assert_json(ask.origins,
                "{'f':{'name':'f','namespace':'a'},'b__f':{'name':'f','namespace':"
                "'b'},'g':{'name':'g','namespace':'b'}}",
                "origins");
    assert_string_equal(text_at(ask.messages, "0.tool_calls.0.function.name"), "b__f");
    assert_int_equal(ask.choice, QN_TOOLS_REQUIRED);
    assert_string_equal(ask.tool_name, "g");
    qn_ask_deinit(&ask);
}

static void tools_that_are_not_allowed_are_left_out(void **state) {
    qn_ask ask;
    (void)state;
    read_request(&ask, "{'input':'a','tools':[{'type':'function','name':'f'},{'type':'function',"
                       "'name':'g'}],'tool_choice':{'type':'allowed_tools','mode':'required',"
                       "'tools':[{'type':'function','name':'g'}]}}");
    assert_json(ask.tools, "[{'type':'function','function':{'name':'g'}}]", "tools");
    assert_int_equal(ask.choice, QN_TOOLS_REQUIRED);
    qn_ask_deinit(&ask);
}

static void a_schema_is_followed(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    json_t *a = ask_for(&rig,
                        "{'input':'What color is a lemon?','text':{'format':{'type':'json_schema',"
                        "'name':'color','strict':true,'schema':{'type':'object','properties':"
                        "{'color':{'enum':['yellow','blue']}},'required':['color'],"
                        "'additionalProperties':false}}}}",
                        200);
    json_t *answer = json_of(text_at(a, "output.0.content.0.text"));
    assert_true(json_is_string(json_at(answer, "color")));
    assert_string_equal(text_at(a, "text.format.name"), "color");
    json_decref(answer);
    json_decref(a);
    serve_stop(&rig);
}

// The same number as the answer's usage has.
static void tokens_are_counted(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    json_t *a = ask_for(&rig, "{'input':'What color is a lemon?','max_output_tokens':1}", 200);
    json_t *b = post_json(&rig, "/v1/responses/input_tokens",
                          "{\"input\":\"What color is a lemon?\"}", 200);
    json_t *c = post_json(&rig, "/v1/chat/completions/input_tokens",
                          "{\"messages\":[{\"role\":\"user\",\"content\":\"What color is a "
                          "lemon?\"}]}",
                          200);
    const json_int_t n = json_integer_value(json_at(a, "usage.input_tokens"));
    assert_int_equal(json_integer_value(json_at(b, "input_tokens")), n);
    assert_int_equal(json_integer_value(json_at(c, "input_tokens")), n);
    assert_string_equal(text_at(b, "object"), "response.input_tokens");
    json_decref(a);
    json_decref(b);
    json_decref(c);
    serve_stop(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_is_whole),
        cmocka_unit_test(a_stream_tells_each_step),
        cmocka_unit_test(a_cut_stream_is_incomplete),
        cmocka_unit_test(reasoning_is_an_item),
        cmocka_unit_test(a_call_is_an_item),
        cmocka_unit_test(agents_are_tolerated),
        cmocka_unit_test(large_requests_are_not_repeated),
        cmocka_unit_test(what_cannot_be_done_is_named),
        cmocka_unit_test(items_become_messages),
        cmocka_unit_test(namespaces_are_flattened),
        cmocka_unit_test(tools_that_are_not_allowed_are_left_out),
        cmocka_unit_test(a_schema_is_followed),
        cmocka_unit_test(tokens_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
