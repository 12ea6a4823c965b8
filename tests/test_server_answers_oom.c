// Answers when memory is short: one allocation after the other fails while a request is answered.
// An answer is the right one or an error, never a shorter one or one without its calls.
#include "alloc_rig.h"
#include "serve_rig.h"

#define LIGHT                                                                                      \
    "\"messages\": [{\"role\": \"user\", \"content\": \"Turn on the light in the bedroom.\"}], "   \
    "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"light\", \"description\": "   \
    "\"Turn a light on or off\", \"parameters\": {\"type\": \"object\", \"properties\": "          \
    "{\"room\": {\"type\": \"string\"}, \"power\": {\"type\": \"string\"}}, \"required\": "        \
    "[\"room\", \"power\"]}}}]"

static const struct {
    const char *path, *body, *at; // at: the part that is compared
} requests[] = {
    {"/api/chat", "{\"stream\": false, \"options\": {\"temperature\": 0}, " LIGHT "}", "message"},
    {"/v1/completions",
     "{\"prompt\": \"What color is a lemon?\", \"temperature\": 0, \"max_tokens\": 6, "
     "\"logprobs\": 1}",
     "choices"},
};

// What the answer says, without ids; to be released. NULL: it is an error.
static json_t *said(const serve_rig *rig, size_t i) {
    http_answer a = http_post(rig, requests[i].path, requests[i].body);
    const long left = atomic_exchange(&countdown, -1);
    // The client's own allocations fail, too.
    const bool is_read = a.is_whole && !a.head.failed && !a.body.failed;
    json_t *value = is_read && a.status == 200 ? http_json(&a) : NULL;
    json_t *part = json_deep_copy(json_at(value, requests[i].at));
    json_t *call = json_at(part, "tool_calls.0");
    if (call) json_object_del(call, "id");
    if (a.status != 200 && a.status != 503 && a.status != 500 && a.status != 0)
        fail_msg("status %d: %s", a.status, a.body.data);
    json_decref(value);
    http_deinit(&a);
    atomic_store(&countdown, left);
    return part;
}

static void answers_are_right_or_errors(void **state) {
    enum { STEP = 23, N_LAST = 160 }; // the end is where an answer could lose its tail
    serve_rig rig;
    int n_errors = 0, n_right = 0;
    (void)state;
    // A request that its client could not make is waited for in vain.
    serve_start(&rig, &(qn_server_opts){.limits = {.idle_ms = 200}});
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        json_t *want = said(&rig, i);
        assert_non_null(want);
        const long before = atomic_load(&n_requests);
        json_decref(said(&rig, i));
        const long n_all = atomic_load(&n_requests) - before;
        for (long n = 0; n < n_all; n += n < n_all - N_LAST ? STEP : 1) {
            atomic_store(&countdown, n);
            json_t *is = said(&rig, i);
            atomic_store(&countdown, -1);
            if (is && !json_equal(is, want)) {
                char *text = json_dumps(is, JSON_COMPACT);
                fail_msg("allocation %ld of request %zu: %s", n, i, text);
            }
            n_errors += !is;
            n_right += is != NULL;
            json_decref(is);
        }
        json_decref(want);
    }
    assert_true(n_errors > 10);
    assert_true(n_right > 0);
    serve_stop(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(answers_are_right_or_errors)};
    json_set_alloc_funcs(json_alloc, __wrap_free);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
