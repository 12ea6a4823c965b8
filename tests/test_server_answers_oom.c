// Answers when memory is short: one allocation after the other fails while a request is answered.
// An answer is the right one or an error, never a shorter one or one without its calls.
#include "alloc_rig.h"
#include "serve_rig.h"

#include "core/mem.h"
#include "server/job.h"

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

// --- the last event ------------------------------------------------------------------------------

static json_t *text_of(qn_job *job) {
    const qn_buf *text = &job->choices[0].text;
    return qn_json_string(text->data ? text->data : "", text->size);
}

static const qn_dialect texts = {.whole = text_of};

// A job of one row that is in no batch; its exchange has no connection.
static qn_job *make_job(qn_exchange *ex) {
    qn_err err;
    qn_problem problem;
    qn_job *job = qn_alloc(1, sizeof *job);
    assert_non_null(job);
    *job = (qn_job){.ex = ex, .dialect = &texts};
    assert_int_equal(pthread_mutex_init(&job->lock, NULL), 0);
    ASSERT_OK(qn_offer_take(&job->entry, ex, NULL, &problem));
    job->model = job->entry->served;
    job->choices = qn_alloc(1, sizeof *job->choices);
    job->rows = qn_alloc(1, sizeof *job->rows);
    assert_true(job->choices && job->rows);
    job->choices[0] = (qn_choice){.job = job, .stop = -1, .stop_token = -1};
    job->rows[0] = (qn_job_row){.job = job};
    job->n_choices = job->n_rows = job->n_added = job->n_in = job->n_left = job->per_prompt = 1;
    ASSERT_OK(qn_chat_reply_create(&job->choices[0].reply, NULL, &err));
    atomic_fetch_add(&ex->owners, 1);
    atomic_fetch_add(&ex->server->n_jobs, 1);
    return job;
}

// An answer whose tail comes with its end, and is lost, is an error.
static void a_tail_that_is_lost_is_an_error(void **state) {
    char tail[300];
    int n_errors = 0;
    serve_rig rig;
    qn_err err;
    (void)state;
    memset(tail, 'x', sizeof tail);
    serve_start(&rig, NULL);
    for (long n = 0; n < 12; n++) {
        const qn_result result = QN_INIT(qn_result, .reason = QN_REASON_END, .stop = -1);
        const qn_event e = QN_INIT(qn_event, .token = -1, .text = tail, .text_size = sizeof tail,
                                   .reason = QN_REASON_END, .result = &result);
        qn_exchange *ex;
        ASSERT_OK(qn_exchange_create(&ex, rig.server, &err));
        qn_job *job = make_job(ex);
        atomic_store(&countdown, n);
        assert_false(qn_job_take_event(&job->rows[0], &e));
        atomic_store(&countdown, -1);
        serve_wait(&rig, serve_jobs, 0);
        if (ex->status == 200) assert_int_equal(ex->out.size, sizeof tail + 2); // with its quotes
        n_errors += ex->status == 503;
        qn_exchange_leave(ex);
    }
    assert_true(n_errors > 1);
    serve_stop(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(answers_are_right_or_errors),
                                       cmocka_unit_test(a_tail_that_is_lost_is_an_error)};
    json_set_alloc_funcs(json_alloc, __wrap_free);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
