// `quern run --session FILE --session-state`: a conversation goes on in another process without
// prefill, with the same answers; a state that cannot be used costs time and nothing else.
#include "cli_run.h"

#include <sys/stat.h>

#define CHATTY MODELS "/quern-mini-Q8_0.gguf"

static char session[CLI_MOST_PATH], kept[CLI_MOST_PATH + 8], other[CLI_MOST_PATH];

// The number after `name` in the line that ends an answer.
static long number_of(const cli_result *r, const char *name) {
    const char *at = strstr(r->out, name);
    if (!at) fail_msg("no %s in: %s%s", name, r->out, r->err);
    return strtol(at + strlen(name), NULL, 10);
}

static void begin(void) {
    snprintf(session, sizeof session, "%s", cli_path("with.json"));
    snprintf(kept, sizeof kept, "%s.state", session);
    snprintf(other, sizeof other, "%s", cli_path("without.json"));
    remove(session);
    remove(kept);
    remove(other);
    cli_result a = CLI_RUN("run", CHATTY, "My name is Kevin.", "-n", "20", "--session", session,
                           "--session-state");
    cli_result b = CLI_RUN("run", CHATTY, "My name is Kevin.", "-n", "20", "--session", other);
    assert_int_equal(a.code, 0);
    assert_string_equal(a.out, b.out);
    cli_free(&a);
    cli_free(&b);
}

static cli_result ask(const char *file, const char *flag) {
    cli_result r =
        CLI_RUN("run", CHATTY, "What is my name?", "-n", "20", "--json", "--session", file, flag);
    assert_int_equal(r.code, 0);
    return r;
}

static void a_conversation_goes_on_without_prefill(void **state) {
    (void)state;
    struct stat st;
    begin();
    assert_int_equal(stat(kept, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    cli_result with = ask(session, "--session-state"), without = ask(other, NULL);
    assert_true(number_of(&with, "\"reused_tokens\": ") > 10);
    assert_int_equal(number_of(&without, "\"reused_tokens\": "), 0);
    const char *a = strstr(with.out, "\"prompt_tokens\""),
               *b = strstr(without.out, "\"prompt_tokens\"");
    assert_non_null(a);
    assert_int_equal(a - with.out, b - without.out);
    assert_memory_equal(with.out, without.out, (size_t)(a - with.out)); // the same answer
    cli_free(&with);
    cli_free(&without);
}

// Its state cannot be cut back into the answer, so that it ends before it.
static void a_hybrid_goes_on_too(void **state) {
    (void)state;
    cli_result out[2][2];
    const char *const files[] = {cli_path("hybrid.json"), cli_path("plain.json")};
    for (int f = 0; f < 2; f++) {
        static const char *const questions[] = {"My name is Kevin.", "What is my name?"};
        char file[CLI_MOST_PATH];
        snprintf(file, sizeof file, "%s", files[f]);
        remove(file);
        for (int i = 0; i < 2; i++) {
            out[f][i] = CLI_RUN("run", MODELS "/quern-hybrid-Q8_0.gguf", questions[i], "-n", "20",
                                "--json", "--session", file, f == 0 ? "--session-state" : NULL);
            assert_int_equal(out[f][i].code, 0);
        }
    }
    assert_true(number_of(&out[0][1], "\"reused_tokens\": ") > 5);
    assert_int_equal(number_of(&out[1][1], "\"reused_tokens\": "), 0);
    const char *end = strstr(out[1][1].out, "\"prompt_tokens\"");
    assert_memory_equal(out[0][1].out, out[1][1].out, (size_t)(end - out[1][1].out));
    for (int i = 0; i < 4; i++) cli_free(&out[i / 2][i % 2]);
}

static void a_state_that_cannot_be_used_is_left_aside(void **state) {
    (void)state;
    begin();
    size_t size;
    char *bytes = cli_load(kept, &size);
    bytes[size / 2] ^= 1;
    cli_save(kept, bytes, size);
    cli_result r = ask(session, "--session-state");
    assert_int_equal(number_of(&r, "\"reused_tokens\": "), 0);
    assert_non_null(strstr(r.err, "damaged"));
    cli_free(&r);
    r = CLI_RUN("run", CHATTY, "And now?", "-n", "4", "--session", session, "--session-state",
                "--cache-type", "q8_0");
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(r.err, "q8_0"));
    cli_free(&r);
    cli_save(kept, "a diary", 7); // never replaced
    r = CLI_RUN("run", CHATTY, "And now?", "-n", "4", "--session", session, "--session-state");
    assert_int_not_equal(r.code, 0);
    assert_non_null(strstr(r.err, "with.json.state"));
    assert_string_equal(r.out, ""); // before anything is generated
    cli_free(&r);
    free(bytes);
}

static void it_needs_a_session(void **state) {
    (void)state;
    cli_result r = CLI_RUN("run", CHATTY, "Hi", "--session-state");
    assert_int_not_equal(r.code, 0);
    assert_non_null(strstr(r.err, "--session-state needs --session"));
    cli_free(&r);
}

static void it_is_of_one_process(void **state) {
    (void)state;
    cli_result r = CLI_RUN("run", CHATTY, "Hi", "--session", cli_path("split.json"),
                           "--session-state", "--split", "layers");
    assert_int_equal(r.code, 2);
    assert_non_null(strstr(r.err, "--session-state does not work with --split"));
    assert_string_equal(r.out, "");
    cli_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_conversation_goes_on_without_prefill),
        cmocka_unit_test(a_hybrid_goes_on_too),
        cmocka_unit_test(a_state_that_cannot_be_used_is_left_aside),
        cmocka_unit_test(it_needs_a_session),
        cmocka_unit_test(it_is_of_one_process),
    };
    return cmocka_run_group_tests(tests, cli_setup, cli_teardown);
}
