// The lines of a task file, and whether an answer is right by their rules.
#include "cli/eval.h"

#include "core/chars.h"
#include "core/str.h"

#include <stdio.h>
#include <string.h>

qn_status qn_task_parse(qn_eval_task *out, const char *line, size_t size, const char *path,
                        int64_t number, qn_err *err) {
    char what[64];
    snprintf(what, sizeof what, "task %lld", (long long)number);
    json_t *json = NULL;
    qn_status status = qn_json_parse(&json, line, size, true, what, err);
    const qn_eval_task t = {.skill = json_string_value(json_object_get(json, "skill")),
                            .prompt = json_string_value(json_object_get(json, "prompt")),
                            .checker = json_string_value(json_object_get(json, "checker")),
                            .expected = json_object_get(json, "expected"),
                            .json = json};
    if (!status && (!t.skill || !t.prompt || !*t.prompt || !t.checker || !t.expected))
        status = QN_FAIL(
            err, FORMAT,
            "%s: wants the strings \"skill\", \"prompt\", \"checker\", and \"expected\"", what);
    if (status) {
        json_decref(json);
        return qn_err_prefix(err, status, "%s", path);
    }
    *out = t;
    return QN_OK;
}

// --- answers -----------------------------------------------------------------------------------

// text[*from .. *end) without blanks around it.
static void strip(const char *text, size_t *from, size_t *end) {
    while (*from < *end && qn_is_space(text[*from])) ++*from;
    while (*from < *end && qn_is_space(text[*end - 1])) --*end;
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

static qn_status check_exact(bool *out, const json_t *expected, const char *answer, qn_err *err) {
    (void)err;
    size_t from = 0, end = strlen(answer);
    strip(answer, &from, &end);
    *out = json_string_length(expected) == end - from &&
           memcmp(json_string_value(expected), answer + from, end - from) == 0;
    return QN_OK;
}

static size_t count_parts(const json_t *expected, const char *answer) {
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(expected); i++)
        n += has_part(answer, json_string_value(json_array_get(expected, i)));
    return n;
}

static qn_status check_contains(bool *out, const json_t *expected, const char *answer,
                                qn_err *err) {
    (void)err;
    *out = count_parts(expected, answer) == json_array_size(expected);
    return QN_OK;
}

static qn_status check_any(bool *out, const json_t *expected, const char *answer, qn_err *err) {
    (void)err;
    *out = count_parts(expected, answer) > 0;
    return QN_OK;
}

// Both parse, to equal values; 1 and 1.0 are equal.
static qn_status equal_json(bool *out, qn_str a, qn_str b, qn_err *err) {
    json_t *x = NULL, *y = NULL;
    qn_status status = qn_json_parse(&x, a.data, a.size, true, "expected", err);
    if (!status) status = qn_json_parse(&y, b.data, b.size, true, "answer", err);
    *out = !status && json_equal(x, y);
    json_decref(x);
    json_decref(y);
    return status == QN_MEMORY ? status : QN_OK;
}

static qn_status check_json(bool *out, const json_t *expected, const char *answer, qn_err *err) {
    const qn_str want = {json_string_value(expected), json_string_length(expected)};
    return equal_json(out, want, qn_str_of(answer), err);
}

// The text between the first pair of tags; false if there is none.
static bool find_call(qn_str *out, const char *text) {
    const char *open = strstr(text, "<tool_call>");
    if (!open) return false;
    const char *from = open + strlen("<tool_call>");
    const char *close = strstr(from, "</tool_call>");
    *out = (qn_str){from, close ? (size_t)(close - from) : strlen(from)};
    return true;
}

static qn_status check_tool(bool *out, const json_t *expected, const char *answer, qn_err *err) {
    qn_str a, b;
    *out = false;
    if (!find_call(&a, json_string_value(expected)) || !find_call(&b, answer)) return QN_OK;
    return equal_json(out, a, b, err);
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
        qn_status (*check)(bool *out, const json_t *expected, const char *answer, qn_err *err);
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
        return checkers[i].check(out, expected, answer, err);
    }
    return QN_FAIL(err, UNSUPPORTED, "checker '%s', known: exact contains any json tool", checker);
}
