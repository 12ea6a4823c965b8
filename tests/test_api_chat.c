// Chat templates through the public interface: those of an open model, and those of its file.
#include "testing.h"

#include "quern.h"

#define DRAFT MODELS "/quern-draft-Q8_0.gguf"

static char *render(const qn_template *template) {
    static const char request[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}";
    qn_err err = {0};
    char *text = NULL;
    size_t size = 0;
    ASSERT_OK(qn_template_render(&text, &size, template, request, sizeof request - 1, NULL, &err));
    assert_int_equal(size, strlen(text));
    return text;
}

static void test_engine(void **state) {
    (void)state;
    static const char *const models[] = {DRAFT, TEST_DATA "/mini/qwen3"};
    for (size_t i = 0; i < 2; i++) {
        qn_err err = {0};
        qn_engine *engine;
        qn_template *own, *file, *none = NULL;
        ASSERT_OK(
            qn_engine_open(&engine, models[i], &QN_INIT(qn_engine_opts, .no_weights = true), &err));
        ASSERT_OK(qn_engine_template(&own, engine, NULL, &err));
        ASSERT_FAILS(qn_engine_template(&none, engine, "rag", &err), QN_UNSUPPORTED, "'rag'");
        assert_null(none);
        qn_engine_close(engine); // the template does not need it
        ASSERT_OK(qn_template_open(&file, models[i], "default", &err));
        char *a = render(own), *b = render(file);
        assert_non_null(strstr(a, "<|im_start|>user\nHi<|im_end|>"));
        assert_string_equal(a, b);
        qn_free(a);
        qn_free(b);
        qn_template_destroy(own);
        qn_template_destroy(file);
    }
}

static void test_arguments(void **state) {
    (void)state;
    qn_err err = {0};
    qn_template *template = NULL;
    char *text = NULL;
    ASSERT_FAILS(qn_template_open(&template, NULL, NULL, &err), QN_ARGUMENT, "no model");
    ASSERT_FAILS(qn_template_open(&template, TEST_DATA "/nothing-here/a.jinja", NULL, &err), QN_IO,
                 "a.jinja");
    ASSERT_FAILS(qn_template_open(&template, TEST_DATA "/mini/gemma", NULL, &err), QN_UNSUPPORTED,
                 "no chat template");
    ASSERT_FAILS(qn_template_open(&template, TEST_DATA "/mini/qwen3", "../x", &err), QN_ARGUMENT,
                 "'../x'");
    ASSERT_FAILS(qn_template_create(&template, NULL, 5, &err), QN_ARGUMENT, "text is NULL");
    assert_null(template);
    ASSERT_OK(qn_template_create(&template, NULL, 0, &err)); // an empty one
    ASSERT_FAILS(qn_template_render(&text, NULL, template, NULL, 0, NULL, &err), QN_ARGUMENT,
                 "request is NULL");
    assert_null(text);
    qn_template_destroy(template);
    qn_template_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_engine),
                                       cmocka_unit_test(test_arguments)};
    return cmocka_run_group_tests_name("chat templates", tests, NULL, NULL);
}
