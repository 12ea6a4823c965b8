// Grammars byte by byte: tests/data/grammar/*.json lists grammars with texts that they accept and
// reject, and grammars that must be refused, with a part of the message. Cases may be "lenient" or
// "closed"; "warns" is a part of what must then be said, and otherwise nothing may be.
#include "testing.h"

#include "gen/grammar/grammar.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

enum { WARNING_BYTES = 800 };

static qn_tokenizer *tokenizer; // read once for the group

static int open_tokenizer(void **state) {
    (void)state;
    qn_err err;
    const qn_status status = qn_tokenizer_open(&tokenizer, MODELS "/quern-mini-Q8_0.gguf", &err);
    if (status) print_error("%s\n", err.message);
    return (int)status;
}

static int close_tokenizer(void **state) {
    (void)state;
    qn_tokenizer_close(tokenizer);
    return 0;
}

static const char *const kind_names[] = {"json", "schema", "regex", "gbnf"};

static qn_grammar_kind kind_of(const json_t *one) {
    const char *name = json_string_value(json_object_get(one, "kind"));
    for (int i = 0; i < 4; i++)
        if (name && !strcmp(name, kind_names[i])) return (qn_grammar_kind)i;
    fail_msg("kind %s?", name ? name : "(none)");
    return QN_GRAMMAR_JSON;
}

// The grammar's text: a string as it is, anything else as JSON. To be freed.
static char *text_of(const json_t *one, qn_grammar_kind kind) {
    const json_t *text = json_object_get(one, "grammar");
    if (kind == QN_GRAMMAR_JSON) return strdup("");
    if (json_is_string(text)) return strdup(json_string_value(text));
    return json_dumps(text, JSON_ENCODE_ANY);
}

static const char *string_or_empty(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

// Texts are strings; long ones are {"before", "repeat", "middle", "close", "after", "n"}: `repeat`
// and `close` n times. To be freed.
static char *read_case(size_t *size, const json_t *text) {
    if (json_is_string(text)) {
        *size = json_string_length(text);
        char *copy = malloc(*size + 1);
        memcpy(copy, json_string_value(text), *size + 1);
        return copy;
    }
    const char *const parts[] = {string_or_empty(text, "before"), string_or_empty(text, "repeat"),
                                 string_or_empty(text, "middle"), string_or_empty(text, "close"),
                                 string_or_empty(text, "after")};
    const size_t n = (size_t)json_integer_value(json_object_get(text, "n"));
    size_t total = 1;
    for (size_t i = 0; i < 5; i++) total += strlen(parts[i]) * (i % 2 ? n : 1);
    char *copy = calloc(total, 1), *end = copy;
    for (size_t i = 0; i < 5; i++)
        for (size_t k = 0; k < (i % 2 ? n : 1); k++) end += sprintf(end, "%s", parts[i]);
    *size = (size_t)(end - copy);
    return copy;
}

// 1: the text is one of the grammar's, 0: it is not.
static int matches(const qn_grammar *grammar, const json_t *text) {
    qn_err err;
    qn_matcher *matcher;
    size_t size;
    bool fits = false;
    char *bytes = read_case(&size, text);
    ASSERT_OK(qn_matcher_create(&matcher, grammar, 0, &err));
    ASSERT_OK(qn_matcher_feed(&fits, matcher, bytes, size, &err));
    const int result = fits && qn_matcher_may_end(matcher);
    qn_matcher_destroy(matcher);
    free(bytes);
    return result;
}

static int check_texts(const qn_grammar *grammar, const json_t *one, const char *list, int want,
                       size_t *n) {
    size_t i;
    json_t *text;
    int n_bad = 0;
    json_array_foreach(json_object_get(one, list), i, text) {
        ++*n;
        if (matches(grammar, text) == want) continue;
        n_bad++;
        char *shown = json_dumps(text, JSON_ENCODE_ANY);
        print_error("%s: %s must be %sed\n", json_string_value(json_object_get(one, "name")), shown,
                    list);
        free(shown);
    }
    return n_bad;
}

static void keep_warning(void *arg, qn_log_level level, const char *message) {
    assert_int_equal(level, QN_LOG_WARNING);
    snprintf(arg, WARNING_BYTES, "%s", message);
}

static int check_warning(const json_t *one, const char *said) {
    const char *warns = json_string_value(json_object_get(one, "warns"));
    if (warns ? strstr(said, warns) != NULL : !*said) return 0;
    print_error("%s: warned of '%s', must warn of '%s'\n",
                json_string_value(json_object_get(one, "name")), said, warns ? warns : "nothing");
    return 1;
}

// One step of the place that a message names: as it is written, after the references that stand
// there.
static const json_t *step_into(const json_t *root, const json_t *at, const char *step,
                               size_t size) {
    char key[256];
    snprintf(key, sizeof key, "%.*s", (int)size, step);
    for (int hops = 0; hops < 10 && at; hops++) {
        const json_t *next = json_is_array(at) ? json_array_get(at, strtoul(key, NULL, 10))
                                               : json_object_get(at, key);
        const char *ref = json_string_value(json_object_get(at, "$ref"));
        if (next || !ref || strncmp(ref, "#/", 2) != 0) return next;
        at = root;
        for (const char *p = ref + 1; *p == '/' && at; p += strcspn(p + 1, "/") + 1)
            at = step_into(root, at, p + 1, strcspn(p + 1, "/"));
    }
    return NULL;
}

// A message about a schema names a place that its writer knows.
static int check_place(const json_t *one, const char *message) {
    const json_t *root = json_object_get(one, "grammar"), *at = root;
    const char *begin = strstr(message, "schema, #/"), *end = begin ? strstr(begin, ": ") : NULL;
    if (!begin || !end || !json_is_object(root) || strstr(begin, "/?")) return 0; // cleaned
    for (const char *p = begin + strlen("schema, #"); p < end && at;) {
        const size_t size = strcspn(p + 1, "/:");
        at = step_into(root, at, p + 1, size);
        p += size + 1;
    }
    if (at) return 0;
    print_error("%s: not in the schema: '%s'\n", json_string_value(json_object_get(one, "name")),
                message);
    return 1;
}

static int check_case(const json_t *one, size_t *n) {
    char said[WARNING_BYTES] = "";
    const qn_grammar_opts opts =
        QN_INIT(qn_grammar_opts, .lenient = json_is_true(json_object_get(one, "lenient")),
                .closed = json_is_true(json_object_get(one, "closed")), .log = keep_warning,
                .log_arg = said);
    qn_err err = {0};
    qn_grammar *grammar = NULL;
    const char *name = json_string_value(json_object_get(one, "name"));
    const char *error = json_string_value(json_object_get(one, "error"));
    const qn_grammar_kind kind = kind_of(one);
    char *text = text_of(one, kind);
    const qn_status status =
        qn_grammar_create(&grammar, tokenizer, kind, text, strlen(text), &opts, &err);
    free(text);
    int n_bad = check_warning(one, said) + check_place(one, said);
    if (status && kind == QN_GRAMMAR_SCHEMA) n_bad += check_place(one, err.message);
    *n += error != NULL;
    if (error && (!status || !strstr(err.message, error))) {
        print_error("%s: %s, must be refused with '%s'\n", name, status ? err.message : "accepted",
                    error);
        n_bad++;
    } else if (!error && status) {
        print_error("%s: %s\n", name, err.message);
        n_bad++;
    } else if (!error) {
        n_bad +=
            check_texts(grammar, one, "accept", 1, n) + check_texts(grammar, one, "reject", 0, n);
    }
    qn_grammar_destroy(grammar);
    return n_bad;
}

static void file_of_cases(void **state) {
    const char *name = *state;
    char path[512];
    json_error_t why;
    snprintf(path, sizeof path, "%s/grammar/%s.json", TEST_DATA, name);
    json_t *cases = json_load_file(path, JSON_ALLOW_NUL, &why);
    if (!cases) fail_msg("%s, line %d: %s", path, why.line, why.text);
    size_t i, n = 0;
    int n_bad = 0;
    json_t *one;
    json_array_foreach(cases, i, one) n_bad += check_case(one, &n);
    print_message("%s: %zu texts and refusals\n", name, n);
    json_decref(cases);
    assert_int_equal(n_bad, 0);
}

int main(void) {
    static char json[] = "json", regex[] = "regex", gbnf[] = "gbnf", schema[] = "schema",
                strings[] = "strings", patterns[] = "patterns", libraries[] = "libraries";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(file_of_cases, json),
        cmocka_unit_test_prestate(file_of_cases, regex),
        cmocka_unit_test_prestate(file_of_cases, gbnf),
        cmocka_unit_test_prestate(file_of_cases, schema),
        cmocka_unit_test_prestate(file_of_cases, strings),
        cmocka_unit_test_prestate(file_of_cases, patterns),
        cmocka_unit_test_prestate(file_of_cases, libraries),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
