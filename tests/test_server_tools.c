// Tools and forms of answers in requests: which field an error names, what is refused because it
// cannot be honoured, and what hostile schemas and grammars may take.
#include "serve_rig.h"

#define MESSAGES "'messages':[{'role':'user','content':'Hello!'}],'max_tokens':4,'temperature':0"
#define TOOL(name, more, schema)                                                                   \
    "{'type':'function','function':{'name':'" name "'," more "'parameters':" schema "}}"
#define PLAIN "{'type':'object','properties':{'x':{'type':'string'}}}"
#define ODD   "{'type':'object','properties':{'x':{'type':'string','format':'odd'}}}"

static json_t *ask(const serve_rig *rig, const char *path, const char *body, int status) {
    char *text = json_text(body);
    json_t *answer = post_json(rig, path, text, status);
    free(text);
    return answer;
}

static void refuse(const serve_rig *rig, const char *path, const char *body, const char *param,
                   const char *part) {
    json_t *a = ask(rig, path, body, 400);
    const char *message = text_at(a, "error.message"), *named = text_at(a, "error.param");
    if (strcmp(named, param) != 0 || !strstr(message, part))
        fail_msg("%s\n  names '%s', want '%s': %s, want %s", body, named, param, message, part);
    json_decref(a);
}

static void take(const serve_rig *rig, const char *path, const char *body) {
    json_decref(ask(rig, path, body, 200));
}

static const char chat[] = "/v1/chat/completions";

// --- fields --------------------------------------------------------------------------------------

static void errors_name_their_field(void **state) {
    static const struct {
        const char *more, *param, *part;
    } rows[] = {
        {"'tools':[" TOOL("f", "", "{'type':'array'}") "]", "tools", "tools[0] 'f'"},
        {"'tools':[" TOOL("f", "", PLAIN) "," TOOL("g", "", "7") "]", "tools", "tools[1] 'g'"},
        {"'tools':[" TOOL("f", "", PLAIN) "],'tool_choice':{'type':'function','function':{'name':"
                                          "'g'}}",
         "tool_choice", "'g'"},
    };
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[1024];
        snprintf(body, sizeof body, "{" MESSAGES ",%s}", rows[i].more);
        refuse(&rig, chat, body, rows[i].param, rows[i].part);
    }
    // A form of the text does not matter where the answer is a call, and holds where it is none.
    take(&rig, chat,
         "{" MESSAGES
         ",'tools':[" TOOL("f", "", PLAIN) "],'tool_choice':'required',"
                                           "'response_format':{'type':'json_object'}}");
    json_t *a = ask(&rig, chat,
                    "{" MESSAGES ",'tools':[" TOOL("f", "", PLAIN) "],'tool_choice':'none',"
                                                                   "'regex':'ab'}",
                    200);
    assert_string_equal(text_at(a, "choices.0.message.content"), "ab");
    json_decref(a);
    // Where it may be either, it is one of the two: here the tag of calls is banned.
    a = ask(&rig, chat,
            "{" MESSAGES
            ",'tools':[" TOOL("f", "", PLAIN) "],'regex':'ab','bad_words':['<tool_call>']}",
            200);
    assert_string_equal(text_at(a, "choices.0.message.content"), "ab");
    json_decref(a);
    a = ask(
        &rig, chat,
        "{'messages':[{'role':'user','content':'Hello!'}],'max_tokens':400,'temperature':0,"
        "'tools':[" TOOL(
            "f", "", "{'type':'object','additionalProperties':false}") "],"
                                                                       "'response_format':{'type':'"
                                                                       "json_schema','json_schema':"
                                                                       "{'schema':{'const':77}}}}",
        200);
    const char *end = text_at(a, "choices.0.finish_reason");
    if (strcmp(end, "tool_calls") == 0)
        assert_string_equal(text_at(a, "choices.0.message.tool_calls.0.function.name"), "f");
    else
        assert_string_equal(text_at(a, "choices.0.message.content"), "77");
    json_decref(a);
    serve_stop(&rig);
}

// The form of calls before tools: one call, in "function_call".
static void functions_are_tools(void **state) {
    static const char functions[] =
        "'functions':[{'name':'f','parameters':{'type':'object','properties':{'x':{'enum':['y']}},"
        "'required':['x'],'additionalProperties':false}}]";
    serve_rig rig;
    char body[1024];
    (void)state;
    serve_start(&rig, NULL);
    snprintf(body, sizeof body,
             "{'messages':[{'role':'user','content':'Hello!'}],'temperature':0,%s,"
             "'function_call':{'name':'f'}}",
             functions);
    json_t *a = ask(&rig, chat, body, 200);
    assert_string_equal(text_at(a, "choices.0.message.function_call.name"), "f");
    json_t *arguments = json_of(text_at(a, "choices.0.message.function_call.arguments"));
    assert_json(arguments, "{'x':'y'}", "arguments");
    json_decref(arguments);
    assert_null(json_at(a, "choices.0.message.tool_calls"));
    assert_string_equal(text_at(a, "choices.0.finish_reason"), "function_call");
    json_decref(a);
    // The same in a stream: the name first, then the arguments in pieces.
    snprintf(body, sizeof body,
             "{'messages':[{'role':'user','content':'Hello!'}],'temperature':0,'stream':true,%s,"
             "'function_call':{'name':'f'}}",
             functions);
    char *text = json_text(body);
    http_answer stream = http_post(&rig, chat, text);
    free(text);
    json_t *events = sse_events(&stream);
    qn_buf all = {0};
    bool has_name = false, has_end = false;
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *choice = json_at(json_array_get(events, i), "data.choices.0");
        const json_t *call = json_at(choice, "delta.function_call");
        const char *end = json_string_value(json_at(choice, "finish_reason"));
        assert_null(json_at(choice, "delta.tool_calls"));
        has_name |= json_object_get(call, "name") != NULL;
        if (call) qn_buf_text(&all, text_at(call, "arguments"));
        has_end |= end && strcmp(end, "function_call") == 0;
    }
    arguments = json_of(all.data);
    assert_json(arguments, "{'x':'y'}", "arguments of a stream");
    assert_true(has_name && has_end);
    json_decref(arguments);
    json_decref(events);
    qn_buf_deinit(&all);
    http_deinit(&stream);
    // Its words, and what is wrong with it.
    snprintf(body, sizeof body, "{" MESSAGES ",%s,'function_call':'none'}", functions);
    a = ask(&rig, chat, body, 200);
    assert_null(json_at(a, "choices.0.message.function_call"));
    json_decref(a);
    snprintf(body, sizeof body, "{" MESSAGES ",%s}", functions);
    take(&rig, chat, body);
    take(&rig, chat, "{" MESSAGES ",'functions':[]}");
    snprintf(body, sizeof body, "{" MESSAGES ",%s,'function_call':{'name':'g'}}", functions);
    refuse(&rig, chat, body, "function_call", "'g'");
    snprintf(body, sizeof body, "{" MESSAGES ",%s,'function_call':'required'}", functions);
    refuse(&rig, chat, body, "function_call", "'required', want none, auto or a function");
    snprintf(body, sizeof body, "{" MESSAGES ",%s,'tools':[" TOOL("f", "", PLAIN) "]}", functions);
    refuse(&rig, chat, body, "functions", "do not go together");
    refuse(&rig, chat, "{" MESSAGES ",'functions':[7]}", "functions", "item 0");
    serve_stop(&rig);
}

// A template that would drop them: the model would never know.
static void tools_need_a_place_in_the_template(void **state) {
    static const char tools[] = "'tools':[" TOOL("f", "", PLAIN) "]";
    serve_rig rig;
    char path[64], body[512];
    (void)state;
    write_thinking_template(path, sizeof path);
    serve_start(&rig, &(qn_server_opts){.template = path});
    snprintf(body, sizeof body, "{" MESSAGES ",%s}", tools);
    refuse(&rig, chat, body, "tools", "has no place for tools");
    snprintf(body, sizeof body, "{" MESSAGES ",%s,'tool_choice':'required'}", tools);
    refuse(&rig, chat, body, "tools", "has no place for tools");
    snprintf(body, sizeof body, "{" MESSAGES ",%s,'tool_choice':'none'}", tools);
    take(&rig, chat, body);
    take(&rig, chat, "{" MESSAGES ",'tools':[]}");
    snprintf(body, sizeof body, "{" MESSAGES ",%s}", tools);
    json_t *a = ask(&rig, "/api/chat", body, 400);
    assert_non_null(strstr(text_at(a, "error"), "has no place for tools"));
    json_decref(a);
    serve_stop(&rig);
    unlink(path);
}

static void strict_tools_are_honoured_or_refused(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    take(&rig, chat, "{" MESSAGES ",'tools':[" TOOL("f", "", ODD) "]}");
    take(&rig, chat,
         "{" MESSAGES ",'tools':[" TOOL("f", "", ODD) "," TOOL("g", "'strict':true,", PLAIN) "]}");
    refuse(&rig, chat,
           "{" MESSAGES ",'tools':[" TOOL("f", "", PLAIN) "," TOOL("g", "'strict':true,", ODD) "]}",
           "tools", "tools[1] 'g': schema, #/properties/x");
    refuse(&rig, "/v1/responses",
           "{'input':'Hello!','max_output_tokens':4,'tools':[{'type':'function','name':'f',"
           "'strict':true,'parameters':" ODD "}]}",
           "tools", "tools[0] 'f'");
    take(&rig, "/v1/responses",
         "{'input':'Hello!','max_output_tokens':4,'tools':[{'type':'function','name':'f',"
         "'strict':false,'parameters':" ODD "}]}");
    serve_stop(&rig);
}

// What would change the answer and is not there is refused, but for the value that turns it off.
static void what_cannot_be_honoured_is_refused(void **state) {
    static const struct {
        const char *name, *refused, *off;
    } rows[] = {
        {"continue_final_message", "true", "false"},
        {"allowed_token_ids", "[1,2]", "[]"},
        {"chat_template", "'x'", "''"},
        {"documents", "[{'text':'x'}]", "[]"},
        {"truncate_prompt_tokens", "5", "-1"},
        {"thinking_token_budget", "5", "null"},
        {"reasoning_budget_tokens", "0", "-1"},
        {"adaptive_target", "0.5", "-1.0"},
        {"tfs_z", "0.5", "1"},
        {"tfs_z", "0", "1.0"},
    };
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[512];
        snprintf(body, sizeof body, "{" MESSAGES ",'%s':%s}", rows[i].name, rows[i].refused);
        refuse(&rig, chat, body, rows[i].name, "not supported");
        snprintf(body, sizeof body, "{" MESSAGES ",'%s':%s}", rows[i].name, rows[i].off);
        take(&rig, chat, body);
    }
    serve_stop(&rig);
}

static void the_template_is_told_the_effort(void **state) {
    static const struct {
        const char *more, *want;
    } rows[] = {{"", "none said"},
                {",'reasoning_effort':'high'", "high"},
                {",'reasoning_effort':'low','chat_template_kwargs':{'a':1}", "low"},
                {",'reasoning_effort':'low','chat_template_kwargs':{'reasoning_effort':'x'}", "x"}};
    serve_rig rig;
    char path[128];
    (void)state;
    snprintf(path, sizeof path, "/tmp/quern-effort-%ld.jinja", (long)getpid());
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs("{{ reasoning_effort or 'none said' }}", f) >= 0);
    assert_int_equal(fclose(f), 0);
    serve_start(&rig, &(qn_server_opts){.template = path});
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[512];
        snprintf(body, sizeof body, "{" MESSAGES "%s}", rows[i].more);
        json_t *a = ask(&rig, "/apply-template", body, 200);
        assert_string_equal(text_at(a, "prompt"), rows[i].want);
        json_decref(a);
    }
    serve_stop(&rig);
    unlink(path);
}

// --- biases --------------------------------------------------------------------------------------

// Whether the answer's one token is among those of a text, or is the id.
static bool begins_with(const serve_rig *rig, const char *bias, const char *ids) {
    char body[512];
    snprintf(body, sizeof body,
             "{'prompt':'Hello','max_tokens':1,'n_predict':1,'temperature':0,'return_tokens':true,"
             "'logit_bias':%s}",
             bias);
    json_t *a = ask(rig, "/completion", body, 200), *want = json_of(ids);
    const json_int_t token = json_integer_value(json_at(a, "tokens.0"));
    bool is_there = false;
    for (size_t i = 0; i < json_array_size(want); i++)
        is_there |= json_integer_value(json_array_get(want, i)) == token;
    json_decref(want);
    json_decref(a);
    return is_there;
}

static void digits_are_ids_in_keys_alone(void **state) {
    static const char *const texts[] = {"42", " 5"};
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    for (size_t i = 0; i < 2; i++) {
        char body[128], pairs[128], key[128];
        qn_buf ids = {0};
        snprintf(body, sizeof body, "{'content':'%s'}", texts[i]);
        snprintf(pairs, sizeof pairs, "[['%s', 1000]]", texts[i]);
        snprintf(key, sizeof key, "{'%s': 1000}", texts[i]);
        json_t *a = ask(&rig, "/tokenize", body, 200);
        qn_json_write(&ids, json_at(a, "tokens"), &(qn_json_form){.compact = true});
        assert_false(ids.failed);
        assert_false(begins_with(&rig, "{}", ids.data));
        assert_true(begins_with(&rig, pairs, ids.data));
        assert_true(begins_with(&rig, key, i == 0 ? "[42]" : ids.data));
        qn_buf_deinit(&ids);
        json_decref(a);
    }
    assert_true(begins_with(&rig, "[[42, 1000]]", "[42]"));
    serve_stop(&rig);
}

// --- what takes long -----------------------------------------------------------------------------

// The schema of a tool that takes long is made as one of two at a time, like other grammars.
static void long_schemas_of_tools_do_not_take_all_workers(void **state) {
    serve_rig rig;
    qn_buf body = {0};
    (void)state;
    serve_start(&rig, NULL);
    qn_buf_text(&body, "{" MESSAGES ",'tools':[{'type':'function','function':{'name':'f',"
                       "'parameters':{'type':'object','properties':{'x':{'oneOf':[{}");
    for (int i = 2; i < 12; i++)
        qn_buf_printf(&body, ",{'type':'string','pattern':'^(a|b)*a(a|b){%d}$'}", i);
    qn_buf_text(&body, "]}}}}}]}");
    assert_false(body.failed);
    char *text = json_text(body.data);
    atomic_store(&rig.server->n_heavy, 2); // as if two were being made
    http_answer a = http_post(&rig, chat, text);
    assert_int_equal(a.status, 503);
    assert_non_null(http_header(&a, "Retry-After"));
    assert_non_null(strstr(a.body.data, "2 large grammars"));
    http_deinit(&a);
    take(&rig, chat, "{" MESSAGES ",'tools':[" TOOL("f", "", PLAIN) "]}");
    assert_int_equal(atomic_load(&rig.server->n_heavy), 2);
    atomic_store(&rig.server->n_heavy, 0);
    json_decref(post_json(&rig, chat, text, 200)); // with room for it
    assert_int_equal(atomic_load(&rig.server->n_heavy), 0);
    free(text);
    qn_buf_deinit(&body);
    serve_stop(&rig);
}

// Thousands of alternatives that go different ways with every letter.
static char *ambiguous_body(const char *more) {
    enum { WAYS = 10000, LETTERS = 4 };
    qn_buf body = {0};
    uint32_t x = 1;
    qn_buf_printf(&body, "{" MESSAGES "%s,'grammar':'root ::= ", more);
    for (int i = 0; i < WAYS; i++) {
        if (i) qn_buf_text(&body, " | ");
        for (int k = 0; k < LETTERS; k++) {
            qn_buf_text(&body, "[");
            for (char c = 'a'; c <= 'z'; c++) {
                x = x * 1664525 + 1013904223;
                if (c == 'a' || x >> 31) qn_buf_add(&body, &c, 1);
            }
            qn_buf_text(&body, "]");
        }
        qn_buf_printf(&body, " [0-9] [%d]", i % 10);
    }
    qn_buf_text(&body, "'}");
    assert_false(body.failed);
    char *text = json_text(body.data);
    qn_buf_deinit(&body);
    return text;
}

// A token that takes too many steps ends its own answer, with an error, and no other.
static void a_token_that_takes_long_ends_its_answer_alone(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    char *text = ambiguous_body("");
    json_t *a = post_json(&rig, chat, text, 400);
    assert_non_null(strstr(text_at(a, "error.message"), "more than 1048576 steps for one token"));
    json_decref(a);
    free(text);
    text = ambiguous_body(",'stream':true");
    http_answer stream = http_post(&rig, chat, text);
    assert_int_equal(stream.status, 200);
    assert_non_null(strstr(stream.body.data, "more than 1048576 steps for one token"));
    http_deinit(&stream);
    free(text);
    take(&rig, chat, "{" MESSAGES "}");
    serve_stop(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_name_their_field),
        cmocka_unit_test(functions_are_tools),
        cmocka_unit_test(tools_need_a_place_in_the_template),
        cmocka_unit_test(strict_tools_are_honoured_or_refused),
        cmocka_unit_test(what_cannot_be_honoured_is_refused),
        cmocka_unit_test(the_template_is_told_the_effort),
        cmocka_unit_test(digits_are_ids_in_keys_alone),
        cmocka_unit_test(long_schemas_of_tools_do_not_take_all_workers),
        cmocka_unit_test(a_token_that_takes_long_ends_its_answer_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
