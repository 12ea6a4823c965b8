// Answers in which reasoning, text and calls take turns, as responses and messages write them: no
// model that is small does that, so the answer is made up here.
#include "serve_rig.h"

#include "server/api_messages.h"
#include "server/api_responses.h"

typedef struct made_up {
    qn_server server;
    qn_offer entry;
    qn_job job;
    qn_choice choice;
    qn_span spans[4];
    qn_called call;
} made_up;

static void tell(made_up *m, qn_chat_event_kind kind, const char *text) {
    const qn_job_piece piece = {.kind = kind, .text = text, .size = strlen(text)};
    assert_true(m->job.dialect->piece(&m->job, &m->choice, &piece));
}

static void add_stretch(made_up *m, qn_chat_event_kind kind, const char *text) {
    qn_choice *c = &m->choice;
    qn_buf *to = kind == QN_CHAT_TEXT ? &c->text : &c->reasoning;
    c->spans[c->n_spans++] = (qn_span){.kind = kind, .from = to->size, .size = strlen(text)};
    qn_buf_text(to, text);
    tell(m, kind, text);
}

static void add_call(made_up *m) {
    qn_choice *c = &m->choice;
    static char name[] = "f";
    m->call = (qn_called){.id = "call_1", .name = name};
    c->calls = &m->call;
    c->n_calls = 1;
    c->spans[c->n_spans++] = (qn_span){.kind = QN_CHAT_CALL};
    tell(m, QN_CHAT_CALL, "");
    qn_buf_text(&m->call.arguments, "{\"x\":1}");
    tell(m, QN_CHAT_ARGUMENTS, "{\"x\":1}");
}

// The events of the stream, and the same answer as a whole; both to be released.
static void run(const qn_dialect *dialect, json_t **events, json_t **whole) {
    static char name[] = "model";
    qn_err err;
    made_up *m = calloc(1, sizeof *m);
    assert_non_null(m);
    m->server.limits.unsent = 1 << 20;
    m->entry.name = name;
    m->choice = (qn_choice){.job = &m->job, .spans = m->spans, .stop = -1};
    m->job = (qn_job){.entry = &m->entry,
                      .dialect = dialect,
                      .choices = &m->choice,
                      .n_choices = 1,
                      .per_prompt = 1,
                      .id = "id_1",
                      .id_prefix = "id_",
                      .is_stream = true};
    ASSERT_OK(qn_exchange_create(&m->job.ex, &m->server, &err));
    assert_true(dialect->begin(&m->job));
    add_stretch(m, QN_CHAT_REASONING, "why");
    add_stretch(m, QN_CHAT_TEXT, "one ");
    add_call(m);
    add_stretch(m, QN_CHAT_TEXT, "two");
    m->choice.reason = QN_REASON_END;
    assert_true(dialect->finish(&m->job, &m->choice));
    assert_true(dialect->end(&m->job));
    *events = sse_events(&(http_answer){.body = m->job.ex->out});
    *whole = dialect->whole(&m->job);
    qn_buf_deinit(&m->choice.text);
    qn_buf_deinit(&m->choice.reasoning);
    qn_buf_deinit(&m->call.arguments);
    qn_exchange_leave(m->job.ex);
    free(m);
}

static void assert_names(const json_t *events, const char *const *want, size_t n) {
    assert_int_equal(json_array_size(events), n);
    for (size_t i = 0; i < n; i++)
        assert_string_equal(text_at(json_array_get(events, i), "event"), want[i]);
}

static void responses_have_items_in_order(void **state) {
    static const char *const want[] = {"response.created",
                                       "response.in_progress",
                                       "response.output_item.added",
                                       "response.content_part.added",
                                       "response.reasoning_text.delta",
                                       "response.reasoning_text.done",
                                       "response.content_part.done",
                                       "response.output_item.done",
                                       "response.output_item.added",
                                       "response.content_part.added",
                                       "response.output_text.delta",
                                       "response.output_text.done",
                                       "response.content_part.done",
                                       "response.output_item.done",
                                       "response.output_item.added",
                                       "response.function_call_arguments.delta",
                                       "response.function_call_arguments.done",
                                       "response.output_item.done",
                                       "response.output_item.added",
                                       "response.content_part.added",
                                       "response.output_text.delta",
                                       "response.output_text.done",
                                       "response.content_part.done",
                                       "response.output_item.done",
                                       "response.completed"};
    static const char *const types[] = {"reasoning", "message", "function_call", "message"};
    json_t *events, *whole;
    (void)state;
    run(&qn_responses_dialect, &events, &whole);
    assert_names(events, want, sizeof want / sizeof *want);
    const json_t *output = json_at(whole, "output");
    assert_int_equal(json_array_size(output), 4);
    size_t n_done = 0;
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *e = json_array_get(events, i), *item = json_at(e, "data.item");
        if (strcmp(text_at(e, "event"), "response.output_item.done") != 0) continue;
        assert_string_equal(text_at(item, "type"), types[n_done]);
        assert_int_equal(json_integer_value(json_at(e, "data.output_index")), (json_int_t)n_done);
        assert_true(json_equal(item, json_array_get(output, n_done++)));
    }
    assert_int_equal(n_done, 4);
    assert_string_equal(text_at(output, "1.content.0.text"), "one ");
    assert_string_equal(text_at(output, "2.arguments"), "{\"x\":1}");
    assert_string_equal(text_at(output, "3.content.0.text"), "two");
    json_decref(events);
    json_decref(whole);
}

static void messages_have_blocks_in_order(void **state) {
    static const char *const want[] = {"message_start",       "ping",
                                       "content_block_start", "content_block_delta",
                                       "content_block_delta", "content_block_stop",
                                       "content_block_start", "content_block_delta",
                                       "content_block_stop",  "content_block_start",
                                       "content_block_delta", "content_block_stop",
                                       "content_block_start", "content_block_delta",
                                       "content_block_stop",  "message_delta",
                                       "message_stop"};
    static const int indexes[] = {-1, -1, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, -1, -1};
    json_t *events, *whole;
    (void)state;
    run(&qn_anthropic_dialect, &events, &whole);
    assert_names(events, want, sizeof want / sizeof *want);
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *index = json_at(json_array_get(events, i), "data.index");
        assert_int_equal(index ? json_integer_value(index) : -1, indexes[i]);
    }
    assert_json(json_at(whole, "content"),
                "[{'type':'thinking','thinking':'why','signature':''},{'type':'text','text':"
                "'one ','citations':null},{'type':'tool_use','id':'call_1','name':'f','input':"
                "{'x':1}},{'type':'text','text':'two','citations':null}]",
                "content");
    assert_string_equal(text_at(whole, "stop_reason"), "tool_use");
    json_decref(events);
    json_decref(whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(responses_have_items_in_order),
        cmocka_unit_test(messages_have_blocks_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
