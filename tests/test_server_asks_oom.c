// Requests when memory is short: each allocation of reading one fails once. The result is QN_MEMORY
// and the status 503, never another conversation, and nothing is lost.
#include "alloc_rig.h"
#include "testing.h"

#include "server/api.h"
#include "server/api_messages.h"
#include "server/api_responses.h"
#include "server/messages.h"

static const char chat[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"a\"},{\"role\":\"developer\",\"content\":[{"
    "\"type\":\"text\",\"text\":\"b\"}]},{\"role\":\"user\",\"content\":[{\"type\":\"text\","
    "\"text\":\"c\"},{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:x\"}}]},{\"role\":"
    "\"assistant\",\"content\":null,\"reasoning\":\"r\",\"tool_calls\":[{\"id\":\"1\",\"type\":"
    "\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"x\\\":[1,{}]}\"}},{\"id\":"
    "\"2\",\"function\":{\"name\":\"g\",\"arguments\":\"\"}}]},{\"role\":\"tool\",\"tool_call_id\":"
    "\"1\",\"content\":[{\"type\":\"text\",\"text\":\"d\"},{\"type\":\"image_url\",\"image_url\":"
    "\"data:y\"}]},{\"role\":\"user\",\"content\":\"e\",\"name\":\"n\"},{\"role\":\"system\","
    "\"content\":\"z\"}]}";

static const char responses[] =
    "{\"instructions\":\"s\",\"input\":[{\"role\":\"user\",\"content\":\"a\"},{\"type\":"
    "\"reasoning\",\"summary\":[{\"text\":\"r\"},{\"text\":\"t\"}]},{\"role\":\"assistant\","
    "\"content\":[{\"type\":\"output_text\",\"text\":\"b\"}]},{\"type\":\"function_call\","
    "\"namespace\":\"m\",\"name\":\"f\",\"call_id\":\"1\",\"arguments\":\"{}\"},{\"type\":"
    "\"custom_tool_call\",\"name\":\"p\",\"call_id\":\"2\",\"input\":\"q\"},{\"type\":"
    "\"function_call_output\",\"call_id\":\"1\",\"output\":\"o\"}],\"tools\":[{\"type\":"
    "\"function\",\"name\":\"f\",\"parameters\":{}},{\"type\":\"namespace\",\"name\":\"m\","
    "\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"description\":\"d\"}]}],\"tool_choice\":{"
    "\"type\":\"allowed_tools\",\"mode\":\"auto\",\"tools\":[{\"name\":\"f\"}]}}";

static const char messages[] =
    "{\"max_tokens\":1,\"system\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":"
    "\"b\"}],\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"c\"},{"
    "\"type\":\"image\",\"source\":{\"type\":\"base64\",\"media_type\":\"image/png\",\"data\":"
    "\"QQ\"}}]},{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"r\"},{"
    "\"type\":\"text\",\"text\":\"d\"},{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"f\","
    "\"input\":{\"x\":1}}]},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\","
    "\"tool_use_id\":\"1\",\"is_error\":true,\"content\":\"e\"},{\"type\":\"tool_result\","
    "\"is_error\":true},{\"type\":\"text\",\"text\":\"g\"}]}],\"tools\":[{\"name\":\"f\"},{"
    "\"name\":\"g\",\"description\":\"d\",\"input_schema\":{}}]}";

static const struct {
    const char *body;
    uint32_t set;
    qn_status (*prepare)(qn_ask *ask, qn_problem *problem);
} readers[] = {{chat, QN_SET_CHAT, qn_chat_prepare},
               {responses, QN_SET_RESPONSES, qn_responses_prepare},
               {messages, QN_SET_MESSAGES, qn_anthropic_prepare}};

// What a reader makes of its body, as text: messages, tools, and the messages for templates that
// want less.
static qn_status attempt(qn_buf *out, size_t i, qn_problem *p) {
    qn_ask ask = {.n = 1};
    json_t *relaxed = NULL;
    const qn_json_opts opts = {.what = "a body"};
    qn_status status =
        qn_json_parse_as(&ask.body, readers[i].body, strlen(readers[i].body), &opts, &p->err);
    if (status) {
        (void)qn_problem_take(p, status, NULL);
        return status;
    }
    status = qn_fields_read(&ask, ask.body, readers[i].set, NULL, p);
    if (!status) status = readers[i].prepare(&ask, p);
    if (!status) {
        status = qn_messages_relax(&relaxed, ask.messages, &p->err);
        if (status) (void)qn_problem_take(p, status, NULL);
    }
    if (!status) {
        const long left = atomic_exchange(&countdown, -1); // writing is not what is tried here
        qn_json_write(out, ask.messages, &qn_compact);
        if (ask.tools) qn_json_write(out, ask.tools, &qn_compact);
        if (relaxed) qn_json_write(out, relaxed, &qn_compact);
        countdown = left;
    }
    json_decref(relaxed);
    qn_ask_deinit(&ask);
    return status;
}

static void a_failed_allocation_is_never_lost(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++) {
        qn_buf want = {0};
        qn_problem fine = {0};
        if (attempt(&want, i, &fine)) fail_msg("%s", fine.err.message);
        for (long n = 0;; n++) {
            qn_problem p = {0};
            qn_buf is = {0};
            const long before = n_living;
            countdown = n;
            const qn_status status = attempt(&is, i, &p);
            const bool failed_one = countdown < 0;
            countdown = -1;
            if (!status) assert_string_equal(is.data, want.data);
            qn_buf_deinit(&is);
            if (n_living != before) fail_msg("%ld blocks leaked at %ld", n_living - before, n);
            if (!failed_one) {
                assert_int_equal(status, QN_OK);
                assert_true(n > 50);
                break;
            }
            if (status != QN_MEMORY || p.status != 503)
                fail_msg("%s, %d when allocation %ld of reader %zu failed: %s",
                         qn_status_name(status), p.status, n, i, p.err.message);
        }
        qn_buf_deinit(&want);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_failed_allocation_is_never_lost)};
    json_set_alloc_funcs(json_alloc, __wrap_free);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
