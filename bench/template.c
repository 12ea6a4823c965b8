// What a step of a chat template costs: templates that do one thing over and over, up to the limit
// of steps. No row should take much longer than another.
//
//     build/bench/bench_template [NAME]
#include "chat/template.h"
#include "core/mem.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

// `set` runs once, `body` in loops within loops: 10^10 times if nothing stops it.
typedef struct row {
    const char *name, *set, *body;
} row;

#define LONG           "{% set s = 'a' * 1000000 %}"
#define BLANK          "{% set s = ' ' * 1000000 %}"
#define LIST           "{% set l = range(50000)|list %}"
#define DO(expression) "{% if " expression " %}{% endif %}"

static const row rows[] = {
    {"nothing", "", ""},
    {"text", "", "x"},
    {"name", "", "{{ none }}"},
    {"set", "", "{% set a = 1 %}"},
    {"int", "", "{{ 1 }}"},
    {"big int", "", "{{ 1234567890123456789 }}"},
    {"float", "", "{{ 0.1234567890123456 }}"},
    {"int list", LIST, "{{ l }}"},
    {"int json", LIST, "{{ l|tojson }}"},
    {"float json", "{% set l = [1e-300 / 3] * 1000 %}", "{{ l|tojson }}"},
    {"attr of text", "{% set s = 'a' %}", DO("s.zebra is defined")},
    {"method", "{% set s = 'a' %}", DO("s.zfill(1)")},
    {"short strip", "{% set s = ' a ' %}", DO("s.strip()")},
    {"strip", BLANK, DO("s.strip()")},
    {"strip of a set", LONG, DO("s.strip('xyza')")},
    {"strip of a long set", LONG "{% set t = 'x' * 1000 ~ 'a' %}", DO("s.strip(t)")},
    {"strip of wide characters", "{% set s = '\xe3\x80\x80' * 300000 %}", DO("s.strip()")},
    {"trim", BLANK, DO("s|trim")},
    {"upper", "{% set s = 'a' * 1000 %}", DO("s.upper()")},
    {"title", "{% set s = 'a' * 1000 %}", DO("s|title")},
    {"wide upper", "{% set s = '\xc3\xa4' * 500 %}", DO("s|upper")},
    {"escape", "{% set s = '<' * 1000 %}", DO("s|escape")},
    {"repr", "{% set s = ['a' * 1000] %}", DO("s|string")},
    {"repr of odd characters", "{% set s = ['\\x01' * 1000] %}", DO("s|string")},
    {"json text", "{% set s = 'a' * 1000 %}", DO("s|tojson")},
    {"json escapes", "{% set s = '\\x01' * 1000 %}", DO("s|tojson")},
    {"find", LONG, DO("s.find('b')")},
    {"find a long part", LONG "{% set t = 'a' * 1000 ~ 'b' %}", DO("s.find(t)")},
    {"find a twin", "{% set s = 'ab' * 500000 %}", DO("s.find('aa')")},
    {"rfind", LONG, DO("s.rfind('b')")},
    {"count", LONG, DO("s.count('a')")},
    {"in", LONG, DO("'ab' in s")},
    {"startswith", LONG "{% set t = s %}", DO("s.startswith(t)")},
    {"endswith of many", "{% set t = ('b',) * 10000 %}{% set s = 'ab' %}", DO("s.endswith(t)")},
    {"replace", LONG, DO("s.replace('b', 'c')|length == 0")},
    {"replace all", "{% set s = 'a' * 1000 %}", DO("s.replace('a', '')")},
    {"replace nothing", "{% set s = 'a' * 1000 %}", DO("s.replace('', 'a')")},
    {"split", "{% set s = 'a,' * 1000 %}", DO("s.split(',')")},
    {"split words", "{% set s = ' ' * 100000 %}", DO("s.split()")},
    {"splitlines", "{% set s = 'a' * 100000 %}", DO("s.splitlines()")},
    {"partition", LONG, DO("s.partition('b')")},
    {"length", LONG, DO("s|length == 0")},
    {"index", LONG, DO("s[999999]")},
    {"slice", LONG, DO("s[999990:]")},
    {"isalpha", LONG, DO("s.isalpha()")},
    {"islower", LONG, DO("s.islower()")},
    {"wordcount", LONG, DO("s|wordcount")},
    {"int of text", BLANK, DO("s|int")},
    {"float of text", "{% set s = '123456789.123456789' %}", DO("s|float")},
    {"round", "{% set x = 1e300 %}", DO("x|round(20)")},
    {"rest", "", DO("1e308 % 1e-308")},
    {"power", "", DO("1.0000001 ** 1.3e9")},
    {"equal texts", LONG "{% set t = 'a' * 999999 ~ 'a' %}", DO("s == t")},
    {"ordered texts", LONG "{% set t = 'a' * 999999 ~ 'b' %}", DO("s < t")},
    {"equal lists", LIST "{% set k = range(50000)|list %}", DO("l == k")},
    {"in a list", LIST, DO("-1 in l")},
    {"in a range", "", DO("-1 in range(1000)")},
    {"list.index", LIST, DO("l.index(49999)")},
    {"sum", LIST, DO("l|sum")},
    {"select", "{% set l = [0] * 50000 %}", DO("l|select|first is defined")},
    {"select by test", "{% set l = [0] * 50000 %}", DO("l|select('odd')|first is defined")},
    {"max", LIST, DO("l|max")},
    {"max by path", "{% set l = [{'a': 1}] * 1000 %}{% set p = 'a' * 100000 %}",
     DO("l|max(attribute=p)")},
    {"join", "{% set l = [''] * 50000 %}", DO("''.join(l)")},
    {"filter join", "{% set l = [''] * 50000 %}", DO("l|join")},
    {"reverse", "{% set l = [''] * 100 %}", DO("l|reverse|list")},
    {"sort", "{% set l = range(100)|list %}", DO("l|sort")},
    {"key of a dict", "{% set d = dict(a=1) %}", DO("d.a")},
    {"long keys",
     "{% set n = namespace(d={}) %}{% for i in range(100) %}"
     "{% set n.d = dict(n.d, **{'a' * 100000 ~ (100 + i): i}) %}{% endfor %}{% set d = n.d %}"
     "{% set k = 'a' * 100000 ~ 'xyz' %}",
     DO("k in d")},
    {"many keys",
     "{% set n = namespace(d={}) %}{% for i in range(500) %}"
     "{% set n.d = dict(n.d, **{'a' ~ (1000 + i): i}) %}{% endfor %}{% set d = n.d %}",
     DO("'axxxx' in d")},
    {"format fields", "{% set s = '{0}' * 1000 %}", DO("s.format('')")},
    {"format numbers", "{% set s = '{0}' * 1000 %}", DO("s.format(1)")},
    {"format reals", "{% set s = '%.100f' * 10 %}{% set t = (1e300,) * 10 %}", DO("s % t")},
    {"percent", "{% set s = '%s' * 1000 %}{% set t = ('',) * 1000 %}", DO("s % t")},
    {"strftime", "{% set s = '%Z' * 1000 %}", DO("strftime_now(s)")},
    {"center", "", DO("'x'.center(1000)")},
    {"indent", "{% set s = '\\n' * 1000 %}", DO("s|indent")},
    {"macro", "{% macro m(a, b=2) %}{% endmacro %}", DO("m(1)")},
    {"deep lookup", "{% set deep = 1 %}",
     "{% for a in [1] %}{% for b in [1] %}{% for c in [1] %}{% for d in [1] %}{% for e in [1] %}"
     "{{ none if deep }}{{ none if deep }}{{ none if deep }}{{ none if deep }}{{ none if deep }}"
     "{% endfor %}{% endfor %}{% endfor %}{% endfor %}{% endfor %}"},
    {"concat", "{% set n = namespace(s='') %}", "{% set n.s = n.s ~ 'a' %}"},
    {"loop attr", "", "{% if loop.index0 > 5 %}{% endif %}"},
    {"default", "", DO("zzz|default(1)")},
};

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void run(const row *of) {
    static const char request[] = "{\"messages\": []}";
    char text[4096], *out = NULL;
    int64_t steps = 0;
    qn_chat_limits limits = qn_chat_default_limits;
    limits.taken = &steps;
    snprintf(text, sizeof text,
             "%s{%% for i in range(100000) %%}{%% for k in range(100000) %%}%s{%% endfor %%}"
             "{%% endfor %%}",
             of->set, of->body);
    qn_err err = {0};
    qn_template *template;
    if (qn_template_create(&template, text, strlen(text), &err)) {
        printf("%-26s %s\n", of->name, err.message);
        return;
    }
    const double start = cpu_seconds();
    const qn_status status =
        qn_template_render_within(&out, NULL, template, request, sizeof request - 1, &limits, &err);
    const double seconds = cpu_seconds() - start;
    printf("%-26s %9lld steps %7.3f s %7.1f ns a step  %s\n", of->name, (long long)steps, seconds,
           seconds * 1e9 / (double)(steps ? steps : 1), status ? err.message : "done");
    fflush(stdout);
    qn_free(out);
    qn_template_destroy(template);
}

int main(int argc, char **argv) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (argc < 2 || strstr(rows[i].name, argv[1])) run(&rows[i]);
    }
    return 0;
}
