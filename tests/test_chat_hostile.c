// Templates that want too much: each ends with an error in a moment, and takes no more memory than
// its limit.
#include "testing.h"

#include "chat/template.h"
#include "core/buf.h"

#include <pthread.h>
#include <stdio.h>

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
    ASSERT_OK(qn_template_render(&out, NULL, template, request, sizeof request - 1, NULL, &err));
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
        {"{}", "\"messages\" is missing"},
        {"{\"messages\": 5}", "\"messages\" is not a list"},
        {"{\"messages\": [], \"enable_thinking\": true}", "unknown name 'enable_thinking'"},
        {"{\"messages\": [], \"kwargs\": 3}", "\"kwargs\" is not an object"},
        {"{\"messages\": [], \"now\": 3}", "\"now\" is not a text"},
        {"{\"messages\": [], \"now\": \"2026-02-30\"}", "'2026-02-30' is not a time"},
        {"{\"messages\": [], \"now\": \"today\"}", "'today' is not a time"},
        {"{\"messages\": [\"\\ud800\"]}", "not valid JSON"},
    };
    qn_err err = {0};
    qn_template *template;
    char *out = NULL;
    ASSERT_OK(qn_template_create(&template, "x", 1, &err));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const qn_status status = qn_template_render(&out, NULL, template, cases[i].request,
                                                    strlen(cases[i].request), NULL, &err);
        if (!status || !strstr(err.message, cases[i].part))
            fail_msg("%s: '%s', want '%s'", cases[i].request, err.message, cases[i].part);
    }
    qn_buf deep = {0};
    qn_buf_text(&deep, "{\"messages\": [");
    for (int i = 0; i < 1500; i++) qn_buf_text(&deep, "[");
    for (int i = 0; i < 1500; i++) qn_buf_text(&deep, "]");
    qn_buf_text(&deep, "]}");
    ASSERT_FAILS(qn_template_render(&out, NULL, template, deep.data, deep.size, NULL, &err),
                 QN_LIMIT, DEEP);
    assert_null(out);
    qn_buf_deinit(&deep);
    qn_template_destroy(template);
}

// --- what work costs -----------------------------------------------------------------------------

static int64_t steps_of(const char *text) {
    int64_t steps = 0;
    qn_chat_limits limits = qn_chat_default_limits;
    limits.taken = &steps;
    qn_err err = {0};
    qn_template *template;
    char *out = NULL;
    ASSERT_OK(qn_template_create(&template, text, strlen(text), &err));
    ASSERT_OK(qn_template_render_within(&out, NULL, template, request, sizeof request - 1, &limits,
                                        &err));
    qn_free(out);
    qn_template_destroy(template);
    return steps;
}

enum { WORK = 64000 };
#define TEXT(c) "{% set s = '" c "' * 64000 %}"
#define LIST(v) "{% set l = [" v "] * 64000 %}"

// Each does WORK pieces of work in one expression; `per`: pieces for a step at most. What the
// preparation costs is measured without the expression.
static const struct {
    const char *set, *expression;
    int per;
} work[] = {
    {TEXT(" "), "s.strip()", 1},
    {TEXT(" "), "s.lstrip(' ')", 1},
    {TEXT(" "), "s.rstrip(' ')", 1},
    {TEXT(" "), "s|trim", 1},
    {TEXT(" "), "s|trim(' ')", 1},
    {TEXT("a"), "s.upper()", 1},
    {TEXT("a"), "s|lower", 1},
    {TEXT("a"), "s|title", 1},
    {TEXT("a"), "s|capitalize", 1},
    {TEXT("a"), "s|escape", 2},
    {TEXT("a"), "s|safe + s", 2},
    {TEXT("a"), "[s]|string", 1},
    {TEXT("a"), "s|tojson", 2},
    {TEXT("a"), "s.find('b')", 8},
    {TEXT("a"), "s.rfind('b')", 8},
    {TEXT("a"), "s.count('a')", 1},
    {TEXT("a"), "'b' in s", 8},
    {TEXT("a"), "s.replace('a', '')", 1},
    {TEXT("a"), "s.replace('', 'b')", 1},
    {TEXT("a"), "s|replace('b', 'c')", 8},
    {TEXT("a"), "s.split('b')", 8},
    {TEXT("a"), "s.split('a')", 1},
    {TEXT("a"), "s.rsplit('b', 9)", 8},
    {TEXT(" "), "s.split()", 2},
    {TEXT("a"), "s.splitlines()", 2},
    {TEXT("a"), "s.partition('b')", 8},
    {TEXT("a"), "s.startswith(s)", 64},
    {TEXT("a"), "'a'.endswith(('b',) * 64000)", 1},
    {TEXT("a"), "s.isalpha()", 2},
    {TEXT("a"), "s.islower()", 2},
    {TEXT("a"), "s is lower", 2},
    {TEXT("a"), "s|wordcount", 2},
    {TEXT(" "), "s|int", 2},
    {TEXT(" "), "s|float", 2},
    {TEXT("a"), "s|length", 64},
    {TEXT("a"), "s[63999]", 64},
    {TEXT("a"), "s[63990:]", 64},
    {TEXT("a") "{% set t = 'b' * 64000 %}", "s == t", 64},
    {TEXT("a") "{% set t = 'a' * 63999 ~ 'b' %}", "s < t", 64},
    {TEXT("a"), "s % ()", 2},
    {TEXT("a"), "s.format()", 2},
    {"{% set s = '{0}' * 64000 %}", "s.format('')", 1},
    {"{% set s = '%s' * 64000 %}{% set t = ('',) * 64000 %}", "s % t", 1},
    {TEXT("a"), "strftime_now(s)", 1},
    {"", "'x'.center(64000)", 2},
    {"", "'x'.zfill(64000)", 2},
    {TEXT("\n"), "s|indent", 1},
    {LIST("1"), "l|sum", 1},
    {LIST("1"), "l|max", 1},
    {LIST("0"), "l|select|list", 1},
    {LIST("0"), "l|reject('even')|list", 1},
    {LIST("0"), "l|map('string')|list", 1},
    {LIST("0"), "l|list", 8},
    {LIST("0"), "l|reverse|list", 8},
    {LIST("0"), "l|sort", 1},
    {LIST("0"), "l|string", 1},
    {LIST("0"), "l|tojson", 1},
    {LIST("0"), "1 in l", 1},
    {LIST("0"), "l.count(1)", 1},
    {LIST("0"), "l == [0] * 64000", 1},
    {LIST("''"), "''.join(l)", 2},
    {LIST("''"), "l|join", 1},
    {LIST("0.1"), "l[:640]|tojson", 1},
    {"{% set l = ['a'] * 640 %}{% set p = '0.' * 99 ~ '0' %}", "l|map(attribute=p)|list", 1},
};

static void test_work_is_paid_for(void **state) {
    (void)state;
    char text[512];
    for (size_t i = 0; i < sizeof work / sizeof *work; i++) {
        snprintf(text, sizeof text, "%s", work[i].set);
        const int64_t before = steps_of(text);
        snprintf(text, sizeof text, "%s{%% set result = %s %%}", work[i].set, work[i].expression);
        const int64_t steps = steps_of(text) - before;
        if (steps < WORK / work[i].per)
            fail_msg("%s takes %lld steps, want %d at least", work[i].expression, (long long)steps,
                     WORK / work[i].per);
    }
}

// Sets `n` names and reads each of them.
static int64_t steps_of_names(int n, const char *before, const char *after) {
    qn_buf text = {0};
    qn_buf_text(&text, before);
    for (int i = 0; i < n; i++) qn_buf_printf(&text, "{%% set name%d = %d %%}", i, i);
    for (int i = 0; i < n; i++) qn_buf_printf(&text, "{%% if name%d %%}{%% endif %%}", i);
    qn_buf_text(&text, after);
    assert_false(text.failed);
    const int64_t steps = steps_of(text.data);
    qn_buf_deinit(&text);
    return steps;
}

// Names are found without looking at all the others, in scopes that are used again, too.
static void test_names(void **state) {
    (void)state;
    const int64_t few = steps_of_names(1000, "", ""), many = steps_of_names(16000, "", "");
    assert_true(many < few * 17);
    const int64_t once = steps_of_names(1000, "{% for i in [1] %}", "{% endfor %}");
    const int64_t often = steps_of_names(1000, "{% for i in [1] * 20 %}", "{% endfor %}");
    assert_true(often < once * 21);
}

static const char reused[] =
    "{% for i in range(4) %}{% set a=1 %}{% set b=2 %}{% set c=3 %}{% set d=4 %}{% set e=5 %}"
    "{% set f=6 %}{% set g=7 %}{% if i % 2 %}{% set h=8 %}{% set j=9 %}{% set k=10 %}{% endif %}"
    "{{ a + b + c + d + e + f + g }} {{ h }}{{ j }}{{ k }} {{ i }};{% endfor %}{{ a }}{{ k }}";

// Names of a round are gone in the next one, whether they were few or many.
static void test_scopes_used_again(void **state) {
    (void)state;
    qn_err err = {0};
    qn_template *template;
    char *out = NULL;
    ASSERT_OK(qn_template_create(&template, reused, sizeof reused - 1, &err));
    ASSERT_OK(qn_template_render(&out, NULL, template, request, sizeof request - 1, NULL, &err));
    assert_string_equal(out, "28  0;28 8910 1;28  2;28 8910 3;");
    qn_free(out);
    qn_template_destroy(template);
}

// --- the caller ----------------------------------------------------------------------------------

static const char endless[] = RANGE RANGE "{% if 1 %}{% endif %}" END END;

static bool stop_after(void *arg, int64_t done, int64_t total) {
    assert_in_range(done, 0, total);
    return --*(int *)arg > 0;
}

static void test_caller_stops(void **state) {
    (void)state;
    qn_err err = {0};
    qn_template *template;
    char *out = NULL;
    int left = 3;
    const qn_template_opts opts =
        QN_INIT(qn_template_opts, .progress = stop_after, .progress_arg = &left);
    ASSERT_OK(qn_template_create(&template, endless, sizeof endless - 1, &err));
    ASSERT_FAILS(qn_template_render(&out, NULL, template, request, sizeof request - 1, &opts, &err),
                 QN_STOPPED, "template: stopped by the caller");
    assert_int_equal(left, 0);
    assert_null(out);
    qn_template_destroy(template);
}

// --- small stacks --------------------------------------------------------------------------------

#define SELF(kind)                                                                                 \
    "{% set n = namespace(s=[1]) %}{% for i in range(9000) %}{% set n.s = " kind " %}" END

static const char *const deep_templates[] = {
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% macro m(a) %}{{ m(m(a)|upper) }}{% endmacro %}{{ m(1) }}",
    "{% macro m(a=m()) %}{% endmacro %}{{ m() }}",
    "{% macro m() %}{% for i in [1] if m() %}{{ m() }}{% endfor %}{% endmacro %}{{ m() }}",
    "{% macro m() %}{% set x %}{% filter upper %}{{ m() }}{% endfilter %}{% endset %}{% endmacro %}"
    "{{ m() }}",
    "{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{{ caller() }}{% endmacro %}"
    "{% call m() %}x{% endcall %}",
    "{% macro m() %}{{ '%s' % m() ~ [m()] }}{% endmacro %}{{ m() }}",
    SELF("[n.s]") "{{ n.s }}",
    SELF("[n.s]") "{{ n.s|tojson(indent=1) }}",
    SELF("[n.s]") "{{ n.s == [n.s] }}",
    SELF("[n.s]") "{{ [n.s] < n.s }}",
    SELF("[n.s]|map('list')") "{{ n.s|list }}",
};

// A template that is made and rendered on a thread of its own; asserts are for the one that waits.
typedef struct job {
    const char *text, *request;
    qn_status status;
    qn_err err;
} job;

static void *run_job(void *arg) {
    job *j = arg;
    qn_template *template = NULL;
    char *out = NULL;
    j->status = qn_template_create(&template, j->text, strlen(j->text), &j->err);
    if (!j->status)
        j->status =
            qn_template_render(&out, NULL, template, j->request, strlen(j->request), NULL, &j->err);
    qn_free(out);
    qn_template_destroy(template);
    return NULL;
}

static void assert_too_deep(const char *text, const char *with_request) {
    const size_t size = QN_CHAT_STACK > ((size_t)256 << 10) ? (size_t)4 << 20 : (size_t)256 << 10;
    job j = {.text = text, .request = with_request};
    pthread_attr_t attr;
    pthread_t thread;
    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstacksize(&attr, size), 0);
    assert_int_equal(pthread_create(&thread, &attr, run_job, &j), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attr);
    if (j.status != QN_LIMIT || !strstr(j.err.message, DEEP))
        fail_msg("%.60s: status %s, '%s'", text, qn_status_name(j.status), j.err.message);
}

// `n` times `part` between the others; to be freed.
static char *repeated(const char *before, const char *part, int n, const char *after) {
    qn_buf text = {0};
    qn_err err;
    char *out;
    qn_buf_text(&text, before);
    for (int i = 0; i < n; i++) qn_buf_text(&text, part);
    qn_buf_text(&text, after);
    ASSERT_OK(qn_buf_take(&out, &text, &err));
    return out;
}

// 256 KiB of stack are enough, as quern.h says.
static void test_small_stacks(void **state) {
    (void)state;
    static const char *const nested[][3] = {{"", "{% if 1 %}", ""},
                                            {"{{ ", "1 if 1 else ", "1 }}"},
                                            {"{{ ", "not ", "1 }}"},
                                            {"{{ ", "-", "1 }}"}};
    for (size_t i = 0; i < sizeof deep_templates / sizeof *deep_templates; i++)
        assert_too_deep(deep_templates[i], request);
    for (size_t i = 0; i < sizeof nested / sizeof *nested; i++) {
        char *text = repeated(nested[i][0], nested[i][1], 400, nested[i][2]);
        assert_too_deep(text, request);
        qn_free(text);
    }
    char *open = repeated("{\"messages\": [", "[", 1500, "");
    char *all = repeated(open, "]", 1500, "]}");
    assert_too_deep("", all);
    qn_free(open);
    qn_free(all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_search),
        cmocka_unit_test(test_nesting),
        cmocka_unit_test(test_requests),
        cmocka_unit_test(test_work_is_paid_for),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_scopes_used_again),
        cmocka_unit_test(test_caller_stops),
        cmocka_unit_test(test_small_stacks),
    };
    return cmocka_run_group_tests_name("chat hostile", tests, NULL, NULL);
}
