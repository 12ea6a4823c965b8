// JSON in and out, compared with jansson's own reader and writer where they agree.
#include "testing.h"

#include "core/json.h"
#include "core/mem.h"
#include "core/real_text.h"

#include <locale.h>
#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>

static json_t *read_any(const char *text, qn_status *status, qn_err *err) {
    json_t *json = NULL;
    const qn_json_opts opts = {.what = "text", .any = true};
    *status = qn_json_parse_as(&json, text, strlen(text), &opts, err);
    return json;
}

// --- reading -------------------------------------------------------------------------------------

static const char *const good[] = {
    "{}",
    "[]",
    " [ ] ",
    "{\"a\": 1, \"b\": [true, false, null], \"\": {}}",
    "[0, -0, 1, -1, 9223372036854775807, -9223372036854775808]",
    "[0.0, -0.0, 1.5, 1e5, 1E+5, 1e-5, 0.1, 1e-400, 1.7976931348623157e308, 5e-324]",
    "[\"\", \"plain\", \"\\\"\\\\\\/\\b\\f\\n\\r\\t\", \"\\u00e9\\u20ac\\ud83d\\ude00\"]",
    "[\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xef\xbf\xbd\"]",
    "{\"a\\u0041\": \"\\u001f\\u007f\\u0080\\u009f\\u00a0\"}",
    "\t\r\n[1\n,\t2 ]\n",
    "{\"a\": {\"a\": {\"a\": [[[]]]}}}",
};

static void a_text_gives_the_values_that_jansson_reads(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        for (int as_real = 0; as_real < 2; as_real++) {
            qn_err err = {0};
            json_t *ours = NULL;
            ASSERT_OK(qn_json_parse(&ours, good[i], strlen(good[i]), as_real, "text", &err));
            const size_t flags = JSON_REJECT_DUPLICATES | (as_real ? JSON_DECODE_INT_AS_REAL : 0);
            json_t *theirs = json_loads(good[i], flags, NULL);
            assert_non_null(theirs);
            if (!json_equal(ours, theirs)) fail_msg("%s: another value", good[i]);
            json_decref(ours);
            json_decref(theirs);
        }
    }
}

static void an_error_names_the_place_and_what_is_wrong(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "line 1, column 1: the text ends where a value should be"},
        {"hello", "line 1, column 1: found 'hello', want a value"},
        {"7", "line 1, column 1: want an object or a list"},
        {"\n  \"a\"", "line 2, column 3: want an object or a list"},
        {"{\"type\": \"object\"",
         "line 1, column 18: the text ends where a comma or '}' should be"},
        {"[1, 2", "line 1, column 6: the text ends where a comma or ']' should be"},
        {"[1 2]", "line 1, column 4: found '2', want a comma or ']'"},
        {"[1,]", "line 1, column 4: found ']', want a value"},
        {"{\"a\":1,}", "line 1, column 8: found '}', want a name in quotes"},
        {"{a: 1}", "line 1, column 2: found 'a', want a name in quotes"},
        {"{\"a\" 1}", "line 1, column 6: found '1', want a colon"},
        {"[\n\"\xc3\xa9\", x]", "line 2, column 6: found 'x', want a value"},
        {"[\xff]", "line 1, column 2: found byte 0xff, want a value"},
        {"[\xc3\xa9]", "line 1, column 2: found '\xc3\xa9', want a value"},
        {"[1] 2", "line 1, column 5: found '2', want nothing after the value"},
        {"[\"abc", "line 1, column 2: a string without end"},
        {"[\"a\\x\"]", "line 1, column 4: a broken escape"},
        {"[\"\\ud800\"]", "line 1, column 3: a broken escape"},
        {"[\"\\u0000\"]", "line 1, column 3: a NUL character"},
        {"[\"a\nb\"]", "line 1, column 4: a control character or broken UTF-8"},
        {"[\"\xed\xa0\x80\"]", "line 1, column 3: a control character or broken UTF-8"},
        {"[01]", "line 1, column 2: a number that begins with 0"},
        {"[-]", "line 1, column 3: found ']', want a digit"},
        {"[1.]", "line 1, column 4: found ']', want a digit after the point"},
        {"[1e]", "line 1, column 4: found ']', want a digit of the exponent"},
        {"[NaN]", "line 1, column 2: found 'NaN', want a value"},
        {"[-Infinity]", "line 1, column 3: found 'Infinity', want a digit"},
        {"[1e999]", "line 1, column 2: a number beyond those of 64 bits"},
        {"[9223372036854775808]", "line 1, column 2: a whole number beyond 64 bits"},
        {"{\"a\": 1,\n \"\\u0061\": 2}", "line 2, column 2: duplicate name \"a\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_err err = {0};
        json_t *json = NULL;
        const qn_status status =
            qn_json_parse(&json, cases[i].text, strlen(cases[i].text), false, "text", &err);
        assert_null(json);
        if (status != QN_FORMAT || !strstr(err.message, "text: not valid JSON at ") ||
            !strstr(err.message, cases[i].message))
            fail_msg("%s: %s (%s)\nwant %s", cases[i].text, qn_status_name(status), err.message,
                     cases[i].message);
    }
}

static void a_nul_byte_is_not_space(void **state) {
    (void)state;
    static const char text[] = "[1\0]";
    qn_err err = {0};
    json_t *json = NULL;
    assert_int_equal(qn_json_parse(&json, text, sizeof text - 1, false, "text", &err), QN_FORMAT);
}

static void choices_allow_what_they_say(void **state) {
    (void)state;
    qn_err err = {0};
    json_t *json = NULL;
    size_t used = 0;
    const qn_json_opts opts = {.what = "text", .any = true, .takes_nul = true, .used = &used};
    static const char text[] = " \"a\\u0000b\" and more";
    ASSERT_OK(qn_json_parse_as(&json, text, sizeof text - 1, &opts, &err));
    assert_int_equal(used, 11);
    assert_int_equal(json_string_length(json), 3);
    assert_memory_equal(json_string_value(json), "a\0b", 4);
    json_decref(json);
    static const char name[] = "{\"\\u0000\": 1}";
    json = NULL;
    assert_int_equal(qn_json_parse_as(&json, name, sizeof name - 1, &opts, &err), QN_FORMAT);
    assert_non_null(strstr(err.message, "a NUL character in a name"));
    static const char large[] = "[18446744073709551615, 3]";
    ASSERT_OK(qn_json_parse(&json, large, sizeof large - 1, true, "text", &err));
    assert_true(json_real_value(json_array_get(json, 0)) == 18446744073709551615.0);
    assert_true(json_is_real(json_array_get(json, 1)));
    json_decref(json);
}

// --- nesting -------------------------------------------------------------------------------------

static char *nested(int depth, bool is_object) {
    qn_buf text = {0};
    char *out = NULL;
    for (int i = 0; i < depth; i++)
        qn_buf_text(&text, is_object && i < depth - 1 ? "{\"a\":" : "[");
    for (int i = depth; i-- > 0;) qn_buf_text(&text, is_object && i < depth - 1 ? "}" : "]");
    assert_int_equal(qn_buf_take(&out, &text, NULL), QN_OK);
    return out;
}

// Everything that recurses, on a small stack.
static void *walk_deep(void *arg) {
    qn_err err = {0};
    json_t *json = NULL;
    char *again = NULL;
    const char *text = arg;
    const qn_json_form form = {.compact = true};
    qn_status status = qn_json_parse(&json, text, strlen(text), false, "text", &err);
    if (!status) status = qn_json_print(&again, json, &form, "text", &err);
    const bool is_same = !status && strcmp(text, again) == 0 && json_equal(json, json);
    json_decref(json);
    qn_free(again);
    return is_same ? arg : NULL;
}

static void the_deepest_value_fits_a_small_stack(void **state) {
    (void)state;
    for (int is_object = 0; is_object < 2; is_object++) {
        char *text = nested(QN_JSON_DEPTH, is_object);
        pthread_attr_t attr;
        pthread_t thread;
        void *result = NULL;
        assert_int_equal(pthread_attr_init(&attr), 0);
        assert_int_equal(pthread_attr_setstacksize(&attr, 256 << 10), 0);
        assert_int_equal(pthread_create(&thread, &attr, walk_deep, text), 0);
        assert_int_equal(pthread_join(thread, &result), 0);
        assert_ptr_equal(result, text);
        pthread_attr_destroy(&attr);
        qn_free(text);
    }
}

static void deeper_nesting_is_refused(void **state) {
    (void)state;
    for (int depth = QN_JSON_DEPTH + 1; depth < 2000000; depth = depth * 100) {
        qn_err err = {0};
        json_t *json = NULL;
        char *text = nested(depth, false);
        assert_int_equal(qn_json_parse(&json, text, strlen(text), false, "text", &err), QN_LIMIT);
        assert_string_equal(err.message,
                            "text: JSON nested more than 128 deep at line 1, column 129");
        qn_free(text);
    }
}

// The same text over and over, in a list.
static char *repeat(const char *text, size_t times, size_t *size) {
    const size_t n = strlen(text);
    char *all = qn_alloc(times * n + 1, 1);
    assert_non_null(all);
    *all = '[';
    for (size_t i = 0; i < times; i++) memcpy(all + 1 + i * n, text, n);
    *size = times * n + 1;
    all[*size - 1] = ']'; // in place of the last comma
    return all;
}

static void values_that_take_much_memory_are_refused(void **state) {
    (void)state;
    enum { TIMES = 10000, MEMORY = 8 << 20 };
    static const struct {
        const char *text;
        size_t bytes; // that it counts for
    } cases[] = {
        {"{},", 256}, {"[],", 144},           {"\"\",", 96},       {"0,", 48},
        {"0.5,", 48}, {"{\"a\":null},", 369}, {"[\"a\",1],", 289}, {"null,", 16},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t times = TIMES; times <= 64 * TIMES; times *= 2) {
            size_t size;
            char *text = repeat(cases[i].text, times, &size);
            json_t *json = NULL;
            qn_err err = {0};
            const qn_json_opts opts = {.what = "text", .memory = MEMORY};
            const size_t before = mallinfo2().uordblks;
            const qn_status status = qn_json_parse_as(&json, text, size, &opts, &err);
            const size_t taken = mallinfo2().uordblks - before;
            const bool is_much = times * cases[i].bytes > MEMORY - 128;
            assert_int_equal(status, is_much ? QN_LIMIT : QN_OK);
            if (is_much)
                assert_non_null(strstr(err.message, "text: JSON values that take more than 8 MiB"));
            else if (taken > times * cases[i].bytes + 1024)
                fail_msg("%s: %zu bytes", cases[i].text, taken / times);
            json_decref(json);
            qn_free(text);
        }
    }
}

// --- writing -------------------------------------------------------------------------------------

static const struct {
    qn_json_form form;
    size_t flags;
} forms[] = {
    {{0}, 0},
    {{.compact = true}, JSON_COMPACT},
    {{.indent = 1}, JSON_INDENT(1)},
    {{.indent = 2, .digits = 9}, JSON_INDENT(2) | JSON_REAL_PRECISION(9)},
    {{.compact = true, .digits = 15}, JSON_COMPACT | JSON_REAL_PRECISION(15)},
};

static void a_value_is_written_as_jansson_writes_it(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        if (strstr(good[i], "u0080")) continue; // escaped here
        for (size_t k = 0; k < sizeof forms / sizeof *forms; k++) {
            qn_err err = {0};
            char *ours = NULL;
            json_t *json = json_loads(good[i], 0, NULL);
            ASSERT_OK(qn_json_print(&ours, json, &forms[k].form, "text", &err));
            char *theirs = json_dumps(json, forms[k].flags);
            assert_string_equal(ours, theirs);
            free(theirs);
            qn_free(ours);
            json_decref(json);
        }
    }
}

static void reals_are_written_as_jansson_writes_them(void **state) {
    (void)state;
    static const double values[] = {0,    -0.0, 1,     -1,    0.1,    1.0 / 3, 1e5,   1e6,   1e16,
                                    1e17, 1e21, 1e100, 1e308, 5e-324, 1e-5,    1e-10, 123.5, 2e-7};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        for (int digits = 0; digits <= 17; digits++) {
            qn_err err = {0};
            char *ours = NULL;
            json_t *json = json_real(values[i]);
            const qn_json_form form = {.digits = digits};
            ASSERT_OK(qn_json_print(&ours, json, &form, "text", &err));
            char *theirs = json_dumps(json, JSON_ENCODE_ANY | JSON_REAL_PRECISION((size_t)digits));
            assert_string_equal(ours, theirs);
            free(theirs);
            qn_free(ours);
            json_decref(json);
        }
    }
}

static void control_characters_are_escaped(void **state) {
    (void)state;
    qn_err err = {0};
    qn_status status;
    char *text = NULL;
    json_t *json = read_any("\"\\u0001\\u007f\\u0080\\u009b\\u009f\\u00a0\\ufffd\"", &status, &err);
    ASSERT_OK(status);
    ASSERT_OK(qn_json_print(&text, json, &(qn_json_form){0}, "text", &err));
    assert_string_equal(text, "\"\\u0001\\u007F\\u0080\\u009B\\u009F\xc2\xa0\xef\xbf\xbd\"");
    qn_free(text);
    json_decref(json);
}

static void what_is_not_utf8_is_replaced(void **state) {
    (void)state;
    json_t *json = qn_json_string("a\xff\xc3z", 4);
    assert_string_equal(json_string_value(json), "a\xef\xbf\xbd\xef\xbf\xbdz");
    json_decref(json);
}

static void doubles_have_a_shortest_text(void **state) {
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0.1, "0.1"},
                 {0, "0"},
                 {-2.5, "-2.5"},
                 {0.1 + 0.2, "0.30000000000000004"},
                 {1e22, "1e+22"},
                 {5e-324, "5e-324"},
                 {2.2250738585072014e-308, "2.2250738585072014e-308"},
                 {1.7976931348623157e308, "1.7976931348623157e+308"},
                 {9007199254740994.0, "9007199254740994"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[QN_REAL_TEXT];
        double again = -1;
        assert_true(qn_double_text(text, cases[i].value, 0));
        assert_string_equal(text, cases[i].text);
        assert_true(qn_text_double(&again, text));
        assert_true(again == cases[i].value);
    }
}

static void numbers_do_not_depend_on_the_locale(void **state) {
    (void)state;
    static const char *const commas[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE", "fr_FR"};
    size_t i = 0;
    while (i < 4 && !setlocale(LC_NUMERIC, commas[i])) i++;
    if (i == 4) skip(); // no such locale here
    qn_err err = {0};
    qn_status status;
    char *text = NULL;
    json_t *json = read_any("[1.5]", &status, &err);
    ASSERT_OK(status);
    ASSERT_OK(qn_json_print(&text, json, &(qn_json_form){0}, "text", &err));
    setlocale(LC_NUMERIC, "C");
    assert_string_equal(text, "[1.5]");
    qn_free(text);
    json_decref(json);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_gives_the_values_that_jansson_reads),
        cmocka_unit_test(an_error_names_the_place_and_what_is_wrong),
        cmocka_unit_test(values_that_take_much_memory_are_refused),
        cmocka_unit_test(a_nul_byte_is_not_space),
        cmocka_unit_test(choices_allow_what_they_say),
        cmocka_unit_test(the_deepest_value_fits_a_small_stack),
        cmocka_unit_test(deeper_nesting_is_refused),
        cmocka_unit_test(a_value_is_written_as_jansson_writes_it),
        cmocka_unit_test(reals_are_written_as_jansson_writes_them),
        cmocka_unit_test(control_characters_are_escaped),
        cmocka_unit_test(what_is_not_utf8_is_replaced),
        cmocka_unit_test(doubles_have_a_shortest_text),
        cmocka_unit_test(numbers_do_not_depend_on_the_locale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
