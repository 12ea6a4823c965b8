// Memory that runs out while a template is read or rendered, at every place where it can. The
// linker sends the library's allocations through this file (--wrap, tests/CMakeLists.txt), and
// jansson's are sent here at run time. Every failure must be QN_MEMORY with a message, nothing
// leaked, the result untouched. Where it is jansson that gets no memory, it may also read a text
// wrongly and say nothing: then only the leaks count.
#include "alloc_rig.h"
#include "testing.h"

#include "core/json.h"
#include "quern.h"

#include <stdio.h>
#include <stdlib.h>

// --- the cases -----------------------------------------------------------------------------------

static const char request[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}, {\"role\": \"user\", "
    "\"content\": \"Weather in Z\xc3\xbcrich?\"}, {\"role\": \"assistant\", \"content\": \"\", "
    "\"tool_calls\": [{\"id\": \"call00001\", \"type\": \"function\", \"function\": {\"name\": "
    "\"get_weather\", \"arguments\": {\"city\": \"Z\xc3\xbcrich\"}}}]}, {\"role\": \"tool\", "
    "\"name\": \"get_weather\", \"tool_call_id\": \"call00001\", \"content\": \"7 C\"}], "
    "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", "
    "\"description\": \"Weather\", \"parameters\": {\"type\": \"object\", \"properties\": "
    "{\"city\": {\"type\": \"string\", \"description\": \"The city\"}}, \"required\": "
    "[\"city\"]}}}], \"bos_token\": \"<s>\", \"now\": \"2026-01-02\"}";

// One of each thing that makes a text or a list of its own.
static const char pieces[] =
    "{% macro m(a, b='x') %}{{ a }}{{ b * 3 }}{{ varargs }}{{ kwargs }}{% endmacro %}"
    "{% macro w() %}[{{ caller('c') }}]{% endmacro %}{{ m(1, 2, 3, z=4) }}"
    "{% call(q) w() %}{{ q }}{% endcall %}{% set t %}{{ bos_token }}{% endset %}{{ t ~ t ~ 'a' 'b' "
    "}}"
    "{% filter upper %}abc{% endfilter %}{{ messages|map(attribute='role')|unique|sort|join(',') }}"
    "{{ messages|selectattr('role', 'equalto', 'user')|list|length }}{{ tools|tojson(indent=2) }}"
    "{{ '%s %05.1f' % ('a', 2) }}{{ '{:>5} {!r}'.format('a', [1]) }}{{ messages }}"
    "{{ ' a b '.strip().split() }}{{ 'a-b'.replace('-', '+').title() }}{{ 'abc'[::-1] }}"
    "{{ tools[0]|dictsort }}{{ tools[0]|items|list }}{{ range(5)[1:3] }}{{ [1] + [2] }}"
    "{{ strftime_now('%d %B %Y') }}{{ '<'|e + 'a\\nb'|indent }}{{ 1.5|round|string }}"
    "{% for a in [1, 2, 3] if a > 1 %}{{ loop.length }}{{ loop.cycle('a', 'b') }}{% endfor %}"
    "{{ ('x' * 300) ~ 'y' }}{{ namespace(a=dict(b=1)) }}{{ ['b', 'a']|sort(reverse=true)|tojson }}";

static qn_status attempt(const char *text, size_t size, qn_err *err) {
    qn_template *const untouched = (qn_template *)(void *)&countdown;
    qn_template *template = untouched;
    char *out = NULL;
    const qn_status created = qn_template_create(&template, text, size, err);
    if (created) {
        assert_ptr_equal(template, untouched);
        return created;
    }
    const qn_status status =
        qn_template_render(&out, NULL, template, request, sizeof request - 1, NULL, err);
    assert_true((out != NULL) == (status == QN_OK));
    qn_free(out);
    qn_template_destroy(template);
    return status;
}

static void starve(const char *name, const char *text, size_t size) {
    for (long n = 0;; n++) {
        qn_err err = {0};
        const long before = n_living;
        countdown = n;
        const qn_status status = attempt(text, size, &err);
        const bool failed_one = countdown < 0;
        countdown = -1;
        if (n_living != before)
            fail_msg("%s: %ld blocks leaked when allocation %ld failed", name, n_living - before,
                     n);
        if (!failed_one) {
            if (status) fail_msg("%s: %s, though no allocation failed", name, err.message);
            assert_true(n > 20);
            return;
        }
        if (status != QN_MEMORY)
            fail_msg("%s: status %s when allocation %ld failed: %s", name, qn_status_name(status),
                     n, err.message);
        assert_true(!status || err.message[0]);
    }
}

static void test_pieces(void **state) {
    (void)state;
    json_set_alloc_funcs(json_alloc, __wrap_free);
    starve("pieces", pieces, sizeof pieces - 1);
}

static void test_published(void **state) {
    (void)state;
    static const char *const names[] = {"Qwen3-Coder", "google-gemma-4-31B-it",
                                        "moonshotai-Kimi-K2", "ibm-granite-granite-4.0"};
    json_set_alloc_funcs(json_alloc, __wrap_free);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        static char text[1 << 16];
        char path[1024];
        snprintf(path, sizeof path, TEST_DATA "/templates/%s.jinja", names[i]);
        FILE *f = fopen(path, "rb");
        assert_non_null(f);
        const size_t size = fread(text, 1, sizeof text, f);
        assert_true(size > 0 && size < sizeof text);
        fclose(f);
        starve(names[i], text, size);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pieces),
                                       cmocka_unit_test(test_published)};
    return cmocka_run_group_tests_name("chat oom", tests, NULL, NULL);
}
