// Answers that a limit of time ends: every dialect says that they are cut. The clock is the test's.
#include "serve_rig.h"

#include "session/generate_int.h"

int64_t __real_qn_clock(void);
int64_t __wrap_qn_clock(void);
qn_status __real_qn_generations_begin(qn_flight **out, qn_generation *const *gens, size_t n,
                                      int64_t prompt_rows, qn_err *err);
qn_status __wrap_qn_generations_begin(qn_flight **out, qn_generation *const *gens, size_t n,
                                      int64_t prompt_rows, qn_err *err);

static atomic_int n_steps;
static const int64_t hour_ns = 3600000000000;

// After a few steps of an answer it is an hour later.
int64_t __wrap_qn_clock(void) {
    enum { STEPS = 4 };
    return __real_qn_clock() + (atomic_load(&n_steps) > STEPS ? hour_ns : 0);
}

qn_status __wrap_qn_generations_begin(qn_flight **out, qn_generation *const *gens, size_t n,
                                      int64_t prompt_rows, qn_err *err) {
    atomic_fetch_add(&n_steps, 1);
    return __real_qn_generations_begin(out, gens, n, prompt_rows, err);
}

static void answers_that_are_cut_say_so(void **state) {
    static const struct {
        const char *path, *body, *at, *word;
    } rows[] = {
        {"/v1/chat/completions", "{'messages':[{'role':'user','content':'a'}],'ignore_eos':true}",
         "choices.0.finish_reason", "length"},
        {"/v1/completions", "{'prompt':'a','ignore_eos':true}", "choices.0.finish_reason",
         "length"},
        {"/completion", "{'prompt':'a','ignore_eos':true}", "stop_type", "limit"},
        {"/v1/responses", "{'input':'a','min_tokens':9999}", "incomplete_details.reason",
         "max_output_tokens"},
        {"/v1/messages",
         "{'messages':[{'role':'user','content':'a'}],'max_tokens':9999,'min_tokens':9999}",
         "stop_reason", "max_tokens"},
        {"/api/chat",
         "{'messages':[{'role':'user','content':'a'}],'stream':false,"
         "'options':{'min_tokens':9999}}",
         "done_reason", "length"},
        {"/api/generate", "{'prompt':'a','stream':false,'options':{'min_tokens':9999}}",
         "done_reason", "length"},
    };
    const qn_server_opts opts = {.timeout_ms = 1800000, .log_json = true};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        serve_rig rig;
        atomic_store(&n_steps, 0);
        const capture c = begin_capture();
        serve_start(&rig, &opts);
        json_t *answer = post_quoted(&rig, rows[i].path, rows[i].body, 200);
        serve_stop(&rig);
        json_t *lines = end_capture(&c);
        if (strcmp(text_at(answer, rows[i].at), rows[i].word) != 0)
            fail_msg("%s: %s is %s, want %s", rows[i].path, rows[i].at, text_at(answer, rows[i].at),
                     rows[i].word);
        json_decref(answer);
        assert_true(atomic_load(&n_steps) < 100); // it is not the context that is full
        assert_string_equal(text_at(line_with(lines, "path"), "note"), "cut by its time limit");
        json_decref(lines);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(answers_that_are_cut_say_so)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
