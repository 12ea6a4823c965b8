// The part of TOML that profiles are written in.
#include "testing.h"

#include "core/toml.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char sample[] = "# a profile\n"
                             "title = \"caf\\u00e9 \\\"x\\\" \\\\ \\t\" # with a comment\r\n"
                             "raw = 'C:\\no\\escape \"'\n"
                             "\n"
                             "[a.b]\n"
                             "  count = 1_000\n"
                             "low = -9223372036854775808\n"
                             "hex = 0xDEAD_beef\n"
                             "octal = 0o17\n"
                             "bits = 0b101\n"
                             "on = true\n"
                             "off = false\n"
                             "[ a . c ]\n"
                             "pi = 3.14\n"
                             "small = -1e-3\n"
                             "big = 6.02_2E+23\n"
                             "inf = -inf\n"
                             "nan = nan\n"
                             "deep.er = 0\n"
                             "list = [\"x\", 1, # one\n"
                             "  2.5,\r\n"
                             "  true, ]\n"
                             "none = []\n"
                             "last = +7";

static const qn_toml_value *get(const qn_toml *toml, const char *name, qn_toml_kind kind) {
    const qn_toml_entry *entry = qn_toml_find(toml, name);
    if (!entry) fail_msg("%s is missing", name);
    if (entry->value.kind != kind)
        fail_msg("%s: %s, want %s", name, qn_toml_kind_name(entry->value.kind),
                 qn_toml_kind_name(kind));
    return &entry->value;
}

static void check_sample(const qn_toml *toml) {
    assert_int_equal(toml->n, 18);
    assert_string_equal(get(toml, "title", QN_TOML_STRING)->as.s, "caf\xc3\xa9 \"x\" \\ \t");
    assert_string_equal(get(toml, "raw", QN_TOML_STRING)->as.s, "C:\\no\\escape \"");
    assert_int_equal(get(toml, "a.b.count", QN_TOML_INT)->as.i, 1000);
    assert_true(get(toml, "a.b.low", QN_TOML_INT)->as.i == INT64_MIN);
    assert_int_equal(get(toml, "a.b.hex", QN_TOML_INT)->as.i, 0xdeadbeef);
    assert_int_equal(get(toml, "a.b.octal", QN_TOML_INT)->as.i, 15);
    assert_int_equal(get(toml, "a.b.bits", QN_TOML_INT)->as.i, 5);
    assert_true(get(toml, "a.b.on", QN_TOML_BOOL)->as.b);
    assert_false(get(toml, "a.b.off", QN_TOML_BOOL)->as.b);
    assert_true(get(toml, "a.c.pi", QN_TOML_FLOAT)->as.f == 3.14);
    assert_true(get(toml, "a.c.small", QN_TOML_FLOAT)->as.f == -1e-3);
    assert_true(get(toml, "a.c.big", QN_TOML_FLOAT)->as.f == 6.022e23);
    assert_true(get(toml, "a.c.inf", QN_TOML_FLOAT)->as.f < 0);
    assert_true(isnan(get(toml, "a.c.nan", QN_TOML_FLOAT)->as.f));
    assert_int_equal(get(toml, "a.c.deep.er", QN_TOML_INT)->as.i, 0);
    const qn_toml_value *list = get(toml, "a.c.list", QN_TOML_ARRAY);
    assert_int_equal(list->as.array.n, 4);
    assert_string_equal(list->as.array.items[0].as.s, "x");
    assert_int_equal(list->as.array.items[1].as.i, 1);
    assert_true(list->as.array.items[2].as.f == 2.5);
    assert_true(list->as.array.items[3].as.b);
    assert_int_equal(get(toml, "a.c.none", QN_TOML_ARRAY)->as.array.n, 0);
    assert_int_equal(get(toml, "a.c.last", QN_TOML_INT)->as.i, 7);
    assert_int_equal(qn_toml_find(toml, "a.c.last")->line, 24);
    assert_null(qn_toml_find(toml, "a.c"));
}

static void every_kind_of_value_is_read(void **state) {
    (void)state;
    qn_err err = {0};
    qn_toml toml = {0};
    ASSERT_OK(qn_toml_parse(&toml, sample, strlen(sample), &err));
    check_sample(&toml);
    qn_toml_deinit(&toml);
    ASSERT_OK(qn_toml_parse(&toml, "", 0, &err));
    assert_int_equal(toml.n, 0);
    qn_toml_deinit(&toml);
}

static void a_locale_changes_nothing(void **state) {
    (void)state;
    if (!setlocale(LC_ALL, "de_DE.UTF-8") && !setlocale(LC_ALL, "fr_FR.UTF-8")) skip();
    every_kind_of_value_is_read(state);
    setlocale(LC_ALL, "C");
}

static void faults_are_named_with_their_line(void **state) {
    (void)state;
    static const struct {
        const char *text, *part;
    } faults[] = {
        {"a", "line 1: expected '=', found the end of the text"},
        {"a =", "line 1: expected a value, found the end of the text"},
        {"a = \n", "line 1: expected a value, found the end of the line"},
        {"\na = 1 b = 2", "line 2: expected the end of the line, found 'b'"},
        {"= 1", "expected a key, found '='"},
        {"a. = 1", "expected a key"},
        {"a = 1\na = 2", "line 2: a is there since line 1"},
        {"a = 1\n[a]", "line 2: table a: is a value since line 1"},
        {"a = 1\n[a.b]", "line 2: a.b: a is a value since line 1"},
        {"a = 1\na.b = 2", "line 2: a.b: a is a value since line 1"},
        {"[a.b]\n[a]\nb = 1", "line 3: a.b is a table already"},
        {"[a]\n[b]\n[a]", "line 3: table a is there twice"},
        {"[a", "expected ']'"},
        {"[]", "expected a key"},
        {"[[a]]", "arrays of tables are not supported"},
        {"a = {b = 1}", "inline tables are not supported"},
        {"a = [[1]]", "arrays in arrays are not supported"},
        {"\"a\" = 1", "quoted keys are not supported"},
        {"a = \"\"\"x\"\"\"", "strings of several lines are not supported"},
        {"a = '''x'''", "strings of several lines are not supported"},
        {"a = \"x", "a string without its end"},
        {"a = \"x\ny\"", "line 1: a string without its end"},
        {"a = 'x", "a string without its end"},
        {"a = \"\\q\"", "an escape that TOML does not have"},
        {"a = \"\\u12\"", "an escape with 2 of 4 hex digits"},
        {"a = \"\\ud800\"", "an escape of U+D800"},
        {"a = \"\\u0000\"", "an escape of U+0000"},
        {"a = \"\x01\"", "byte 0x01 in a string"},
        {"a = \"\xff\"", "byte 0xff in a string"},
        {"# \xff", "byte 0xff in a comment"},
        {"# \x01", "byte 0x01 in a comment"},
        {"a = 1979-05-27", "is not a number"},
        {"a = 07:32:00", "a number does not begin with 0"},
        {"a = 9223372036854775808", "'9223372036854775808' is too large"},
        {"a = -9223372036854775809", "is too large"},
        {"a = 012", "a number does not begin with 0"},
        {"a = -01", "is not a number"},
        {"a = 1__2", "expected a value, found '1__2'"},
        {"a = _1", "expected a value"},
        {"a = 0x", "is not a number"},
        {"a = 0b12", "is not a number"},
        {"a = 1.", "is not a number"},
        {"a = .5", "is not a number"},
        {"a = 1e", "is not a number"},
        {"a = 1e9999999", "is not a number"},
        {"a = 1e999", "is not a number"},
        {"a = 1.2.3", "is not a number"},
        {"a = yes", "is not a number"},
        {"a = [1, 2", "expected ',' or ']', found the end of the text"},
        {"a = [1\n\n 2]", "line 3: expected ',' or ']', found '2'"},
        {"a = [,]", "expected a value, found ','"},
        {"a = 1\rb = 2", "expected the end of the line"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        qn_err err = {0};
        qn_toml toml = {0};
        const qn_status status = qn_toml_parse(&toml, faults[i].text, strlen(faults[i].text), &err);
        if (status != QN_FORMAT || !strstr(err.message, faults[i].part))
            fail_msg("'%s': %s '%s', want '%s'", faults[i].text, qn_status_name(status),
                     err.message, faults[i].part);
        assert_null(toml.entries);
    }
}

static void sizes_are_bounded(void **state) {
    (void)state;
    qn_err err = {0};
    qn_toml toml = {0};
    char *text = malloc((1 << 20) + 2);
    assert_non_null(text);
    memset(text, ' ', (1 << 20) + 1);
    ASSERT_FAILS(qn_toml_parse(&toml, text, (1 << 20) + 1, &err), QN_LIMIT, "1048577 bytes");
    size_t n = 0;
    for (int i = 0; i < 4097; i++) n += (size_t)sprintf(text + n, "k%d = %d\n", i, i);
    ASSERT_FAILS(qn_toml_parse(&toml, text, n, &err), QN_FORMAT, "line 4097: more than 4096");
    for (int size = 250; size < 262; size++) { // around the limit, alone and after a table
        const int rest = size - 100;
        n = (size_t)sprintf(text, "%0*d = 1", size, 0);
        assert_int_equal(qn_toml_parse(&toml, text, n, &err), size > 255 ? QN_FORMAT : QN_OK);
        qn_toml_deinit(&toml);
        n = (size_t)sprintf(text, "[%0*d]\n%0*d = 1", rest, 0, 99, 0);
        assert_int_equal(qn_toml_parse(&toml, text, n, &err), size > 255 ? QN_FORMAT : QN_OK);
        qn_toml_deinit(&toml);
        n = (size_t)sprintf(text, "[%0*d]\na = 1", size, 0);
        assert_int_equal(qn_toml_parse(&toml, text, n, &err), size > 253 ? QN_FORMAT : QN_OK);
        qn_toml_deinit(&toml);
    }
    free(text);
}

// Any byte changed, any length cut: refused with a line, or read.
static void mutated_text_never_harms(void **state) {
    (void)state;
    static const char bytes[] = "01-_.#=[]{}\"'\\\n\r \xff";
    const size_t size = strlen(sample);
    for (size_t at = 0; at < size; at++) {
        for (size_t k = 0; k < sizeof bytes; k++) { // the last one cuts
            qn_err err = {0};
            qn_toml toml = {0};
            const size_t n = bytes[k] ? size : at;
            char *text = malloc(n ? n : 1);
            assert_non_null(text);
            memcpy(text, sample, n);
            if (bytes[k]) text[at] = bytes[k];
            if (qn_toml_parse(&toml, text, n, &err) != QN_OK)
                assert_memory_equal(err.message, "line ", 5);
            qn_toml_deinit(&toml);
            free(text);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_value_is_read),
        cmocka_unit_test(a_locale_changes_nothing),
        cmocka_unit_test(faults_are_named_with_their_line),
        cmocka_unit_test(sizes_are_bounded),
        cmocka_unit_test(mutated_text_never_harms),
    };
    return cmocka_run_group_tests_name("toml", tests, NULL, NULL);
}
