// Regular expressions against another implementation: tests/data/grammar/oracle.json has random
// patterns and, for every text of at most five letters of three, whether V8 finds a match in it
// (`found`) and whether the whole is one (`whole`): hexadecimal digits, the first text in the
// highest bit, texts by length and then in the order of the letters.
//
// With a bound on the length the languages are finite and known completely, so the check is exact
// for every beginning of a text too: it is let through if and only if some valid text begins so.
// That excludes dead ends and lost texts alike.
#include "testing.h"

#include "core/buf.h"
#include "gen/grammar/grammar.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

enum { N_LETTERS = 3, MAX_LENGTH = 5, N_TEXTS = 364 };

typedef struct text {
    int length, parent; // parent: the text without its last letter
    char letter;
} text;

static qn_tokenizer *tokenizer;
static qn_grammar *first; // for its vocabulary

static int open_all(void **state) {
    (void)state;
    qn_err err;
    qn_status status = qn_tokenizer_open(&tokenizer, MODELS "/quern-mini-Q8_0.gguf", &err);
    if (!status) status = qn_grammar_create(&first, tokenizer, QN_GRAMMAR_JSON, "", 0, NULL, &err);
    return (int)status;
}

static int close_all(void **state) {
    (void)state;
    qn_grammar_destroy(first);
    qn_tokenizer_close(tokenizer);
    return 0;
}

static void list_texts(text out[N_TEXTS], const char *letters) {
    int n = 1;
    out[0] = (text){0, -1, 0};
    for (int i = 0; n < N_TEXTS; i++)
        for (int k = 0; k < N_LETTERS; k++) out[n++] = (text){out[i].length + 1, i, letters[k]};
}

// The bytes of a text, as they are or as the inside of a JSON string.
static void spell(qn_buf *out, const text *texts, int at, bool in_json) {
    char reversed[MAX_LENGTH];
    int n = 0;
    for (; at > 0; at = texts[at].parent) reversed[n++] = texts[at].letter;
    while (n-- > 0) {
        if (in_json && reversed[n] == '\n')
            qn_buf_text(out, "\\n");
        else
            qn_buf_add(out, &reversed[n], 1);
    }
}

static bool bit_of(const char *digits, int at) {
    const char digit[2] = {digits[at / 4], 0};
    return strtoul(digit, NULL, 16) >> (3 - at % 4) & 1;
}

// As a schema, with a second pattern that allows no other letters, so that all texts are known.
static qn_grammar *make(qn_grammar_kind kind, const char *pattern, const char *letters, int min,
                        int max) {
    qn_err err;
    qn_grammar *grammar;
    qn_buf source = {0};
    if (kind == QN_GRAMMAR_SCHEMA) {
        char only[16];
        snprintf(only, sizeof only, "^[%s]*$", letters);
        json_t *schema =
            json_pack("{s:s, s:s, s:i, s:i, s:[{s:s}]}", "type", "string", "pattern", pattern,
                      "minLength", min, "maxLength", max, "allOf", "pattern", only);
        char *dumped = json_dumps(schema, 0);
        qn_buf_text(&source, dumped);
        free(dumped);
        json_decref(schema);
    } else {
        qn_buf_text(&source, pattern);
    }
    const qn_status status =
        qn_grammar_create_like(&grammar, first, kind, source.data, source.size, NULL, &err);
    qn_buf_deinit(&source);
    if (!status) return grammar;
    // A language without any text is refused; everything else must be served.
    if (status != QN_ARGUMENT) print_error("%s: %s\n", pattern, err.message);
    assert_int_equal(status, QN_ARGUMENT);
    return NULL;
}

typedef struct outcome {
    bool begins, matches; // some text of the grammar begins so; it is one
} outcome;

static outcome ask(qn_matcher *matcher, const qn_buf *bytes, const char *end) {
    qn_err err;
    outcome got = {false, false};
    qn_matcher_reset(matcher);
    ASSERT_OK(
        qn_matcher_feed(&got.begins, matcher, bytes->data ? bytes->data : "", bytes->size, &err));
    if (got.begins) ASSERT_OK(qn_matcher_feed(&got.matches, matcher, end, strlen(end), &err));
    got.matches = got.matches && qn_matcher_may_end(matcher);
    return got;
}

// Compares the grammar with what is known of each text; `is_all`: there are no others.
static int compare(const char *pattern, const qn_grammar *grammar, const text *texts,
                   const bool *valid, bool in_json, bool is_all) {
    qn_err err;
    qn_matcher *matcher = NULL;
    bool begins[N_TEXTS];
    int n_bad = 0;
    memcpy(begins, valid, sizeof begins);
    for (int i = N_TEXTS - 1; i > 0; i--)
        if (begins[i]) begins[texts[i].parent] = true;
    if (!grammar) return begins[0]; // refused: there must be no text
    ASSERT_OK(qn_matcher_create(&matcher, grammar, 0, &err));
    for (int i = 0; i < N_TEXTS; i++) {
        qn_buf bytes = {0};
        if (in_json) qn_buf_text(&bytes, "\"");
        spell(&bytes, texts, i, in_json);
        const outcome got = ask(matcher, &bytes, in_json ? "\"" : "");
        if (got.matches != valid[i] || (begins[i] && !got.begins) ||
            (is_all && got.begins && !begins[i])) {
            n_bad++;
            print_error("%s: '%.*s' begins %d (%d), matches %d (%d)\n", pattern, (int)bytes.size,
                        bytes.size ? bytes.data : "", got.begins, begins[i], got.matches, valid[i]);
        }
        qn_buf_deinit(&bytes);
    }
    qn_matcher_destroy(matcher);
    return n_bad;
}

// What is compared of row `number`; returns the number of texts that are taken wrongly.
typedef int check_fn(const json_t *row, const text *texts, size_t number);

static int check_whole(const json_t *row, const text *texts, size_t number) {
    (void)number;
    const char *pattern = json_string_value(json_object_get(row, "pattern"));
    const char *digits = json_string_value(json_object_get(row, "whole"));
    bool valid[N_TEXTS];
    for (int i = 0; i < N_TEXTS; i++) valid[i] = bit_of(digits, i);
    qn_grammar *grammar = make(QN_GRAMMAR_REGEX, pattern, NULL, 0, 0);
    const int n_bad = compare(pattern, grammar, texts, valid, false, false);
    qn_grammar_destroy(grammar);
    return n_bad;
}

static int check_lengths(const json_t *row, const text *texts, size_t number) {
    static const int bounds[][2] = {{0, 5}, {3, 4}, {2, 2}, {5, 5}, {1, 3}};
    const int *two = bounds[number % (sizeof bounds / sizeof *bounds)];
    const int min = two[0], max = two[1];
    const char *pattern = json_string_value(json_object_get(row, "pattern"));
    const char *digits = json_string_value(json_object_get(row, "found"));
    bool valid[N_TEXTS];
    for (int i = 0; i < N_TEXTS; i++)
        valid[i] = bit_of(digits, i) && texts[i].length >= min && texts[i].length <= max;
    const char *letters = json_string_value(json_object_get(row, "letters"));
    qn_grammar *grammar = make(QN_GRAMMAR_SCHEMA, pattern, letters, min, max);
    const int n_bad = compare(pattern, grammar, texts, valid, true, true);
    qn_grammar_destroy(grammar);
    return n_bad;
}

// Each row of the file with all its texts; returns the number of rows.
static size_t check_rows(check_fn *check) {
    json_error_t why;
    json_t *rows = json_load_file(TEST_DATA "/grammar/oracle.json", 0, &why), *row;
    if (!rows) fail_msg("line %d: %s", why.line, why.text);
    size_t i;
    int n_bad = 0;
    json_array_foreach(rows, i, row) {
        text texts[N_TEXTS];
        list_texts(texts, json_string_value(json_object_get(row, "letters")));
        n_bad += check(row, texts, i);
    }
    json_decref(rows);
    assert_int_equal(n_bad, 0);
    return i;
}

static void patterns_match_as_elsewhere(void **state) {
    (void)state;
    assert_true(check_rows(check_whole) >= 400);
}

static void lengths_are_exact(void **state) {
    (void)state;
    assert_true(check_rows(check_lengths) >= 400);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(patterns_match_as_elsewhere),
                                       cmocka_unit_test(lengths_are_exact)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
