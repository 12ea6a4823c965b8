// Chat templates of published models, and what Jinja2 renders with them: every case must give the
// same text, or an error where Jinja2 has one. template_cases.h has them.
#include "template_cases.h"
#include "testing.h"

#include "core/file.h"
#include "core/json.h"
#include "quern.h"

#include <stdio.h>
#include <stdlib.h>

#define FOLDER TEST_DATA "/templates"
enum { N_CASES = 572, MAX_BYTES = 1 << 24 };

// What a case says, as a request: all that has no place of its own is a name for the template.
static char *make_request(const json_t *input) {
    json_t *request = json_object(), *kwargs = json_object();
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)input, key, value) {
        const bool has_place = strcmp(key, "messages") == 0 || strcmp(key, "tools") == 0 ||
                               strcmp(key, "add_generation_prompt") == 0;
        json_object_set(has_place ? request : kwargs, key, value);
    }
    json_object_set_new(request, "kwargs", kwargs);
    json_object_set_new(request, "bos_token", json_string("<s>"));
    json_object_set_new(request, "eos_token", json_string("</s>"));
    json_object_set_new(request, "now", json_string("2026-01-02T03:04:05"));
    char *text = json_dumps(request, 0);
    assert_non_null(text);
    json_decref(request);
    return text;
}

static bool run_case(const char *name, const qn_template *template, const char *case_name,
                     const json_t *input, const json_t *result) {
    qn_err err = {0};
    char *text = NULL, *request = make_request(input);
    const char *want = json_string_value(json_object_get(result, "text"));
    const qn_status status =
        qn_template_render(&text, NULL, template, request, strlen(request), NULL, &err);
    const bool is_right = want ? status == QN_OK && strcmp(text, want) == 0 : status != QN_OK;
    if (!is_right)
        print_error("%s, %s: %s\n--- want\n%s\n--- got\n%s\n", name, case_name, err.message,
                    want ? want : json_string_value(json_object_get(result, "error")),
                    text ? text : "(an error)");
    // Errors that the evaluation raises name their place.
    if (status && !strstr(err.message, "line ")) print_error("%s: no line\n", err.message);
    const bool has_place = !status || strstr(err.message, "template: line ");
    qn_free(text);
    free(request);
    return is_right && has_place;
}

static void test_cases(void **state) {
    (void)state;
    qn_err err = {0};
    char path[1024];
    size_t size, n = 0, n_right = 0;
    json_t *all = template_cases_open();
    const char *name, *case_name;
    json_t *results, *result;
    json_object_foreach(json_object_get(all, "expected"), name, results) {
        qn_template *template;
        char *source;
        snprintf(path, sizeof path, FOLDER "/%s", name);
        ASSERT_OK(qn_file_load(&source, &size, path, MAX_BYTES, &err));
        ASSERT_OK(qn_template_create(&template, source, size, &err));
        qn_free(source);
        json_object_foreach(results, case_name, result) {
            const json_t *input = json_object_get(json_object_get(all, "cases"), case_name);
            assert_non_null(input);
            n_right += run_case(name, template, case_name, input, result);
            n++;
        }
        qn_template_destroy(template);
    }
    json_decref(all);
    assert_int_equal(n, N_CASES);
    assert_int_equal(n_right, N_CASES);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases)};
    return cmocka_run_group_tests_name("chat cases", tests, NULL, NULL);
}
