// Published tokenizers against the ids that their own library gives: 253 tricky texts each.
// The files are fetched by tools/fetch_tokenizers.sh; a tokenizer that is not there is skipped.
#include "testing.h"

#include "core/file.h"
#include "tokenizer/tokenizer.h"

#include <jansson.h>
#include <stdio.h>

static json_t *expected; // read once for the group

static int read_expected(void **state) {
    (void)state;
    json_error_t why;
    // One of the texts contains a NUL.
    expected = json_load_file(TEST_DATA "/tokenizers/expected.json", JSON_ALLOW_NUL, &why);
    if (!expected) print_error("expected.json: %s\n", why.text);
    return expected ? 0 : -1;
}

static int drop_expected(void **state) {
    (void)state;
    json_decref(expected);
    return 0;
}

static bool check_ids(const qn_tokenizer *tokenizer, const json_t *one, const char *name,
                      size_t i) {
    qn_err err;
    int32_t *ids;
    size_t n;
    const json_t *text = json_object_get(one, "text"), *want = json_object_get(one, "ids");
    const qn_tokenize_opts opts = QN_INIT(qn_tokenize_opts, .special = true);
    ASSERT_OK(qn_tokenize(&ids, &n, tokenizer, json_string_value(text), json_string_length(text),
                          &opts, &err));
    bool same = n == json_array_size(want);
    for (size_t j = 0; same && j < n; j++)
        same = ids[j] == json_integer_value(json_array_get(want, j));
    if (!same) print_error("%s, text %zu: '%s': other ids\n", name, i, json_string_value(text));
    qn_free(ids);
    return same;
}

static bool check_text(const qn_tokenizer *tokenizer, const json_t *one, const char *name,
                       size_t i) {
    qn_err err;
    int32_t ids[4096];
    char *text;
    size_t size;
    const json_t *list = json_object_get(one, "ids"), *want = json_object_get(one, "decoded");
    const size_t n = json_array_size(list);
    assert_true(n <= sizeof ids / sizeof *ids);
    for (size_t j = 0; j < n; j++) ids[j] = (int32_t)json_integer_value(json_array_get(list, j));
    ASSERT_OK(qn_detokenize(&text, &size, tokenizer, ids, n, true, &err));
    const bool same =
        size == json_string_length(want) && memcmp(text, json_string_value(want), size) == 0;
    if (!same)
        print_error("%s, text %zu: '%s', want '%s'\n", name, i, text, json_string_value(want));
    qn_free(text);
    return same;
}

static void agrees(void **state) {
    const char *name = *state;
    qn_err err;
    char path[512];
    snprintf(path, sizeof path, "%s/npm/%s/tokenizer.json", TEST_DATA, name);
    if (!qn_path_is_file(path)) {
        print_message("skipped: tokenizer %s is not installed (tools/fetch_tokenizers.sh)\n", name);
        skip();
    }
    const json_t *cases = json_object_get(expected, name);
    assert_int_equal(json_array_size(cases), 253);
    qn_tokenizer *tokenizer;
    ASSERT_OK(qn_tokenizer_open(&tokenizer, path, &err));
    int n_bad = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *one = json_array_get(cases, i);
        n_bad += !check_ids(tokenizer, one, name, i);
        n_bad += !check_text(tokenizer, one, name, i);
    }
    qn_tokenizer_close(tokenizer);
    assert_int_equal(n_bad, 0);
}

int main(void) {
    static char names[][16] = {"qwen3", "llama3_2", "gemma3", "gemma2"};
    const struct CMUnitTest tests[] = {
        {"qwen3 agrees", agrees, NULL, NULL, names[0]},
        {"llama3_2 agrees", agrees, NULL, NULL, names[1]},
        {"gemma3 agrees", agrees, NULL, NULL, names[2]},
        {"gemma2 agrees", agrees, NULL, NULL, names[3]},
    };
    return cmocka_run_group_tests(tests, read_expected, drop_expected);
}
