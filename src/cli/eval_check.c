// Is an answer right? The rules of the bundled task file.
#include "cli/eval.h"

#include "core/mem.h"

#include <string.h>

static bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// text[*from .. *end) without blanks around it.
static void strip(const char *text, size_t *from, size_t *end) {
    while (*from < *end && is_blank(text[*from])) ++*from;
    while (*from < *end && is_blank(text[*end - 1])) --*end;
}

static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c; }

// Letters of either case are the same.
static bool has_part(const char *text, const char *part) {
    const size_t n = strlen(part);
    for (const char *at = text; strlen(at) >= n; at++) {
        size_t i = 0;
        while (i < n && lower(at[i]) == lower(part[i])) i++;
        if (i == n) return true;
        if (!*at) break;
    }
    return false;
}

static bool check_exact(const json_t *expected, const char *answer) {
    size_t from = 0, end = strlen(answer);
    strip(answer, &from, &end);
    return json_string_length(expected) == end - from &&
           memcmp(json_string_value(expected), answer + from, end - from) == 0;
}

static size_t count_parts(const json_t *expected, const char *answer) {
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(expected); i++)
        n += has_part(answer, json_string_value(json_array_get(expected, i)));
    return n;
}

static bool check_contains(const json_t *expected, const char *answer) {
    return count_parts(expected, answer) == json_array_size(expected);
}

static bool check_any(const json_t *expected, const char *answer) {
    return count_parts(expected, answer) > 0;
}

// Both parse, to equal values; 1 and 1.0 are equal.
static bool equal_json(const char *a, size_t n_a, const char *b, size_t n_b) {
    json_t *x = NULL, *y = NULL;
    const bool equal = qn_json_parse(&x, a, n_a, true, "expected", NULL) == QN_OK &&
                       qn_json_parse(&y, b, n_b, true, "answer", NULL) == QN_OK && json_equal(x, y);
    json_decref(x);
    json_decref(y);
    return equal;
}

static bool check_json(const json_t *expected, const char *answer) {
    return equal_json(json_string_value(expected), json_string_length(expected), answer,
                      strlen(answer));
}

// The text between the first pair of marks; false if there is none.
static bool find_call(const char **from, size_t *n, const char *text) {
    const char *open = strstr(text, "<tool_call>");
    if (!open) return false;
    *from = open + strlen("<tool_call>");
    const char *close = strstr(*from, "</tool_call>");
    *n = close ? (size_t)(close - *from) : strlen(*from);
    return true;
}

static bool check_tool(const json_t *expected, const char *answer) {
    const char *a, *b;
    size_t n_a, n_b;
    return find_call(&a, &n_a, json_string_value(expected)) && find_call(&b, &n_b, answer) &&
           equal_json(a, n_a, b, n_b);
}

static bool is_list_of_strings(const json_t *value) {
    for (size_t i = 0; i < json_array_size(value); i++) {
        if (!json_is_string(json_array_get(value, i))) return false;
    }
    return json_is_array(value);
}

qn_status qn_answer_check(bool *out, const char *checker, const json_t *expected,
                          const char *answer, qn_err *err) {
    static const struct {
        const char *name;
        bool takes_list;
        bool (*check)(const json_t *expected, const char *answer);
    } checkers[] = {{"exact", false, check_exact},
                    {"contains", true, check_contains},
                    {"any", true, check_any},
                    {"json", false, check_json},
                    {"tool", false, check_tool}};
    for (size_t i = 0; i < sizeof checkers / sizeof *checkers; i++) {
        if (strcmp(checkers[i].name, checker) != 0) continue;
        const bool fits =
            checkers[i].takes_list ? is_list_of_strings(expected) : json_is_string(expected);
        if (!fits)
            return QN_FAIL(err, FORMAT, "checker %s: \"expected\" must be %s", checker,
                           checkers[i].takes_list ? "a list of strings" : "a string");
        *out = checkers[i].check(expected, answer);
        return QN_OK;
    }
    return QN_FAIL(err, UNSUPPORTED, "checker '%s', known: exact contains any json tool", checker);
}
