// The language of chat templates, piece by piece. tests/data/templates/language.json has small
// templates and what Jinja2 gives for them: a text, or an error.
#include "testing.h"

#include "core/file.h"
#include "core/json.h"
#include "quern.h"

#include <stdio.h>
#include <stdlib.h>

enum { MIN_CASES = 900 };

static qn_status render(char **out, const char *text, size_t size, const char *request,
                        qn_err *err) {
    qn_template *template;
    QN_TRY(qn_template_create(&template, text, size, err));
    const qn_status status =
        qn_template_render(out, NULL, template, request, strlen(request), NULL, err);
    qn_template_destroy(template);
    return status;
}

static bool run_case(const json_t *one, const char *request) {
    const json_t *template = json_object_get(one, "template");
    const char *want = json_string_value(json_object_get(one, "text"));
    const char *want_error = json_string_value(json_object_get(one, "error"));
    qn_err err = {0};
    char *out = NULL;
    assert_true((want != NULL) != (want_error != NULL));
    const qn_status status =
        render(&out, json_string_value(template), json_string_length(template), request, &err);
    const bool is_right =
        want ? status == QN_OK && strcmp(out, want) == 0
             : status != QN_OK && strstr(err.message, "line ") && strstr(err.message, "column ");
    if (!is_right)
        print_error("%s: '%s', want '%s'\n", json_string_value(template), out ? out : err.message,
                    want ? want : want_error);
    qn_free(out);
    return is_right;
}

static void test_language(void **state) {
    (void)state;
    qn_err err = {0};
    char *text;
    size_t size, n_wrong = 0;
    json_t *all;
    ASSERT_OK(qn_file_load(&text, &size, TEST_DATA "/templates/language.json", 1 << 24, &err));
    ASSERT_OK(qn_json_parse(&all, text, size, false, "language.json", &err));
    char *request = json_dumps(json_object_get(all, "request"), 0);
    const json_t *cases = json_object_get(all, "cases");
    assert_true(json_array_size(cases) >= MIN_CASES);
    for (size_t i = 0; i < json_array_size(cases); i++)
        n_wrong += !run_case(json_array_get(cases, i), request);
    assert_int_equal(n_wrong, 0);
    free(request);
    json_decref(all);
    qn_free(text);
}

// Messages of errors say where, and what.
static void test_messages(void **state) {
    (void)state;
    static const struct {
        const char *text;
        qn_status status;
        const char *message;
    } cases[] = {
        {"a\n  {{ x.y }}", QN_FORMAT, "template: line 2, column 7: 'x' is undefined"},
        {"{{ messages.x() }}", QN_FORMAT, "template: line 1, column 14: 'list' has no 'x'"},
        {"{{ messages.append(1) }}", QN_FORMAT,
         "template: line 1, column 19: 'append' would change a value"},
        {"\xc3\xa4\xc3\xb6 {{ 1 + 'a' }}", QN_FORMAT,
         "template: line 1, column 9: 'int' + 'str' has no meaning"},
        {"{% for a in 5 %}{% endfor %}", QN_FORMAT, "line 1, column 4: a 'int' cannot be walked"},
        {"{{ raise_exception('Only \"user\"') }}", QN_ARGUMENT, "line 1, column 19: Only \"user\""},
        {"{% if 1 %}", QN_FORMAT,
         "line 1, column 11: unexpected the end of the template, want {% "
         "endif %}"},
        {"{{ 1 | nothing }}", QN_FORMAT, "line 1, column 8: no filter is named 'nothing'"},
        {"{{ 1 is nothing }}", QN_FORMAT, "line 1, column 9: no test is named 'nothing'"},
        {"{% nothing %}", QN_FORMAT, "line 1, column 4: unknown tag 'nothing'"},
        {"{% include 'a' %}", QN_UNSUPPORTED, "the tag 'include' is not supported"},
        {"{{ [1]|groupby('a') }}", QN_UNSUPPORTED, "'groupby' is not supported"},
        {"{{ 99999999999999999999 }}", QN_FORMAT, "needs more than 64 bits"},
        {"\xff", QN_FORMAT, "the template is not UTF-8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_err err = {0};
        char *out = NULL;
        ASSERT_FAILS(render(&out, cases[i].text, strlen(cases[i].text), "{\"messages\": []}", &err),
                     cases[i].status, cases[i].message);
        assert_null(out);
    }
}

// A template is made once and rendered often, each time anew.
static void test_again(void **state) {
    (void)state;
    static const char text[] = "{% set ns = namespace(n=0) %}{% for m in messages %}"
                               "{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ m }}{% endfor %}";
    qn_err err = {0};
    qn_template *template;
    ASSERT_OK(qn_template_create(&template, text, sizeof text - 1, &err));
    for (int i = 0; i < 3; i++) {
        static const char request[] = "{\"messages\": [\"a\", \"b\"]}";
        char *out;
        size_t size;
        ASSERT_OK(
            qn_template_render(&out, &size, template, request, sizeof request - 1, NULL, &err));
        assert_string_equal(out, "1a2b");
        assert_int_equal(size, 4);
        qn_free(out);
    }
    qn_template_destroy(template);
}

// A long text that is put together piece by piece takes time and memory in proportion.
static void test_growing(void **state) {
    (void)state;
    static const char text[] =
        "{% set ns = namespace(a='', b='') %}{% for i in range(100000) %}"
        "{% set ns.a = ns.a + 'twenty bytes of text' %}{% set ns.b = ns.b ~ 'x' %}{% endfor %}"
        "{{ ns.a|length }} {{ ns.b|length }} {{ ns.a[-4:] }}";
    qn_err err = {0};
    char *out;
    ASSERT_OK(render(&out, text, sizeof text - 1, "{\"messages\": []}", &err));
    assert_string_equal(out, "2000000 100000 text");
    qn_free(out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_language), cmocka_unit_test(test_messages),
        cmocka_unit_test(test_again), cmocka_unit_test(test_growing)};
    return cmocka_run_group_tests_name("chat language", tests, NULL, NULL);
}
