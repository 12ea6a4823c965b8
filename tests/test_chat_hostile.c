// Templates that want too much: each ends with an error in a moment, and takes no more memory than
// its limit.
#include "testing.h"

#include "chat/template.h"
#include "core/buf.h"

static const char request[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}";

static void assert_stops(const char *text, size_t size, qn_status want, const char *part) {
    static const qn_chat_limits limits = {
        .steps = 1000000, .memory = 16 << 20, .output = 4 << 20, .depth = 1000};
    qn_err err = {0};
    qn_template *template = NULL;
    char *out = NULL;
    qn_status status = qn_template_create(&template, text, size, &err);
    if (!status)
        status = qn_template_render_within(&out, NULL, template, request, sizeof request - 1,
                                           &limits, &err);
    if (status != want || !strstr(err.message, part))
        fail_msg("%.60s...: status %s, '%s'; want %s, '%s'", text, qn_status_name(status),
                 err.message, qn_status_name(want), part);
    assert_null(out);
    qn_template_destroy(template);
}

#define STEPS  "more than 1000000 steps"
#define MEMORY "more than 16777216 bytes of memory"
#define OUTPUT "writes more than 4194304 bytes"
#define DEEP   "nested more than"
#define RANGE  "{% for a in range(100000) %}"
#define END    "{% endfor %}"
#define DOUBLE                                                                                     \
    "{% set n = namespace(s='aaaaaaaaaaaaaaaa') %}{% for i in range(40) %}{% set n.s = n.s "

static const struct {
    const char *text, *part;
} greedy[] = {
    {RANGE RANGE RANGE "x" END END END, ""},
    {RANGE RANGE END END, ""},
    {"{% set l = range(2000)|list %}{% for a in l %}{% for b in l %}" END END, STEPS},
    {RANGE "{{ 'a' * 1000 }}" END, OUTPUT},
    {"{% set x = 'a' * 60000 %}" RANGE "{% if 'b' in x %}{% endif %}" END, STEPS},
    {"{{ 'a' * 1000000000 }}", ""},
    {"{{ 'a' * 9223372036854775807 }}", ""},
    {"{{ 1000000000 * [1, 2] }}", ""},
    {"{{ 'ab' * 9223372036854775807 * 9223372036854775807 }}", ""},
    {"{{ 10 ** 10 ** 10 ** 10 }}", "64 bits"},
    {"{{ 9223372036854775807 + 1 }}", "64 bits"},
    {"{{ (-9223372036854775807 - 1) // -1 }}", "64 bits"},
    {"{{ range(1000000000) }}", "a range of 1000000000"},
    {"{{ range(-9223372036854775807, 9223372036854775807) }}", "a range of"},
    {"{{ 'x'.center(1000000000) }}", "width"},
    {"{{ 'x'.zfill(1000000000) }}", "width"},
    {"{{ '%1000000000d' % 1 }}", "wider"},
    {"{{ '{:1000000000}'.format(1) }}", "wider"},
    {"{{ 'a\\nb'|indent(1000000000) }}", "indentation"},
    {"{{ [[1]]|tojson(indent=1000000000) }}", "indentation"},
    {DOUBLE "~ n.s %}" END, ""},
    {DOUBLE ".replace('a', 'aaaaaaaa') %}" END, ""},
    {"{% set n = namespace(s=[1]) %}{% for i in range(40) %}{% set n.s = n.s + n.s %}" END, ""},
    // Small in memory, endless when it is written or compared.
    {"{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}" END
     "{{ n.s }}",
     ""},
    {"{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}" END
     "{{ n.s|tojson }}",
     ""},
    {"{% set n = namespace(a=[1], b=[1]) %}{% for i in range(60) %}{% set n.a = [n.a, n.a] %}"
     "{% set n.b = [n.b, n.b] %}" END "{{ n.a == n.b }}",
     STEPS},
    {"{% set n = namespace(a=[1], b=[1]) %}{% for i in range(60) %}{% set n.a = [n.a, n.a] %}"
     "{% set n.b = [n.b, n.b] %}" END "{{ n.a < n.b }}",
     STEPS},
    {"{% set n = namespace(s=[1]) %}{% for i in range(9000) %}{% set n.s = [n.s] %}" END
     "{{ n.s }}",
     DEEP},
    {"{% set n = namespace(s=[1]) %}{% for i in range(9000) %}{% set n.s = [n.s] %}" END
     "{{ n.s|tojson }}",
     DEEP},
    {"{% set n = namespace(a=[1], b=[1]) %}{% for i in range(9000) %}{% set n.a = [n.a] %}"
     "{% set n.b = [n.b] %}" END "{{ n.a == n.b }}",
     DEEP},
    {"{% set n = namespace() %}{% set n.n = n %}{{ n }}", DEEP},
    {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", DEEP},
    {"{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}", DEEP},
    {"{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}", DEEP},
    {"{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
     "{{ m(40) }}",
     ""},
    {"{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{{ caller() }}{% endmacro %}"
     "{% call m() %}x{% endcall %}",
     DEEP},
    {"{% set n = namespace(x=1) %}" RANGE "{% set n.x = [n.x]|map('list') %}" END "{{ n.x|list }}",
     ""},
    {"{% set d = dict() %}" RANGE "{% set d = dict(d, **{a|string: a}) %}" END, ""},
};

static void test_limits(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof greedy / sizeof *greedy; i++) {
        const size_t size = strlen(greedy[i].text);
        assert_stops(greedy[i].text, size, QN_LIMIT, greedy[i].part);
    }
}

// A search that goes wrong where it is repeated at every place of the text.
static void test_search(void **state) {
    (void)state;
    static const char text[] =
        "{% set s = 'a' * 400000 %}{% set p = 'a' * 200000 ~ 'b' %}{% set q = 'b' ~ 'a' * 200000 %}"
        "{{ s.find(p) }} {{ s.find(q) }} {{ s.rfind(p) }} {{ s.rfind(q) }} {{ s.count(p) }} "
        "{{ p in s }} {{ (s ~ 'b' ~ s).find(p) }} {{ (s ~ 'b' ~ s).rfind(q) }} "
        "{{ s.split(p)|length }} {{ s.replace(q, 'x')|length }}";
    qn_err err = {0};
    qn_template *template;
    char *out;
    ASSERT_OK(qn_template_create(&template, text, sizeof text - 1, &err));
    ASSERT_OK(qn_template_render(&out, NULL, template, request, sizeof request - 1, &err));
    assert_string_equal(out, "-1 -1 -1 -1 0 False 200000 400000 1 400000");
    qn_free(out);
    qn_template_destroy(template);
}

// `n` times `open`, then `middle`, then `n` times `close`.
static void assert_nested(const char *open, const char *middle, const char *close, size_t n,
                          qn_status want, const char *part) {
    qn_buf text = {0};
    for (size_t i = 0; i < n; i++) qn_buf_text(&text, open);
    qn_buf_text(&text, middle);
    for (size_t i = 0; i < n; i++) qn_buf_text(&text, close);
    assert_false(text.failed);
    assert_stops(text.data, text.size, want, part);
    qn_buf_deinit(&text);
}

static void test_nesting(void **state) {
    (void)state;
    assert_nested("{% if 1 %}", "", "{% endif %}", 100000, QN_LIMIT, DEEP);
    assert_nested("{% for a in [1] %}", "", "{% endfor %}", 100000, QN_LIMIT, DEEP);
    assert_nested("{% macro m() %}", "", "{% endmacro %}", 100000, QN_LIMIT, DEEP);
    assert_nested("{% if 1 %}", "", "", 100000, QN_LIMIT, DEEP);
    assert_nested("{{ ((((((((((", "1", "", 10000, QN_FORMAT, "too deeply");
    assert_nested("{{ [", "1", "", 1, QN_FORMAT, "no end");
    qn_buf text = {0};
    static const struct {
        const char *open, *part, *close;
        qn_status status;
        const char *message;
    } chains[] = {
        {"{{ ", "(", "1", QN_FORMAT, "too deeply"},
        {"{{ ", "[", "1", QN_FORMAT, "too deeply"},
        {"{{ ", "{1:", "1", QN_FORMAT, "too deeply"},
        {"{{ ", "-", "1 }}", QN_LIMIT, DEEP},
        {"{{ ", "not ", "1 }}", QN_LIMIT, DEEP},
        {"{{ ", "1 if 1 else ", "1 }}", QN_LIMIT, DEEP},
        {"{{ 1", " + 1", " }}", QN_LIMIT, DEEP},
        {"{{ 1", "|string", " }}", QN_LIMIT, DEEP},
        {"{{ messages", ".a", " }}", QN_LIMIT, DEEP},
        {"{{ messages", "[0]", " }}", QN_LIMIT, DEEP},
        {"{{ messages", "()", " }}", QN_LIMIT, DEEP},
        {"{{ 1", " and 1", " }}", QN_LIMIT, DEEP},
        {"{% set x", "|upper", " %}a{% endset %}", QN_LIMIT, DEEP},
    };
    for (size_t i = 0; i < sizeof chains / sizeof *chains; i++) {
        qn_buf_clear(&text);
        qn_buf_text(&text, chains[i].open);
        for (int k = 0; k < 50000; k++) qn_buf_text(&text, chains[i].part);
        qn_buf_text(&text, chains[i].close);
        assert_stops(text.data, text.size, chains[i].status, chains[i].message);
    }
    qn_buf_deinit(&text);
}

// Requests come from outside too.
static void test_requests(void **state) {
    (void)state;
    static const struct {
        const char *request, *part;
    } cases[] = {
        {"", "not valid JSON"},
        {"[]", "not a JSON object"},
        {"{}", "\"messages\" is no list but missing"},
        {"{\"messages\": 5}", "\"messages\" is no list"},
        {"{\"messages\": [], \"enable_thinking\": true}", "unknown name 'enable_thinking'"},
        {"{\"messages\": [], \"kwargs\": 3}", "\"kwargs\" is no object"},
        {"{\"messages\": [], \"now\": 3}", "\"now\" is no text"},
        {"{\"messages\": [], \"now\": \"2026-02-30\"}", "'2026-02-30' is no time"},
        {"{\"messages\": [], \"now\": \"today\"}", "'today' is no time"},
        {"{\"messages\": [\"\\ud800\"]}", "not valid JSON"},
    };
    qn_err err = {0};
    qn_template *template;
    char *out = NULL;
    ASSERT_OK(qn_template_create(&template, "x", 1, &err));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const qn_status status = qn_template_render(&out, NULL, template, cases[i].request,
                                                    strlen(cases[i].request), &err);
        if (!status || !strstr(err.message, cases[i].part))
            fail_msg("%s: '%s', want '%s'", cases[i].request, err.message, cases[i].part);
    }
    qn_buf deep = {0};
    qn_buf_text(&deep, "{\"messages\": [");
    for (int i = 0; i < 1500; i++) qn_buf_text(&deep, "[");
    for (int i = 0; i < 1500; i++) qn_buf_text(&deep, "]");
    qn_buf_text(&deep, "]}");
    ASSERT_FAILS(qn_template_render(&out, NULL, template, deep.data, deep.size, &err), QN_LIMIT,
                 DEEP);
    assert_null(out);
    qn_buf_deinit(&deep);
    qn_template_destroy(template);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_limits), cmocka_unit_test(test_search),
                                       cmocka_unit_test(test_nesting),
                                       cmocka_unit_test(test_requests)};
    return cmocka_run_group_tests_name("chat hostile", tests, NULL, NULL);
}
