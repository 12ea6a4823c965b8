// Tokenizers of the small reference models: the same family from GGUF keys, tokenizer.json and
// tokenizer.model must give the same ids.
#include "testing.h"

#include "core/file.h"
#include "core/utf8.h"
#include "tokenizer/tokenizer.h"

#include <jansson.h>
#include <stdio.h>
#include <utf8proc.h>

static json_t *expected; // texts: those of the published tokenizers

static int read_texts(void **state) {
    (void)state;
    json_error_t why;
    expected = json_load_file(TEST_DATA "/tokenizers/expected.json", JSON_ALLOW_NUL, &why);
    return expected ? 0 : -1;
}

static int drop_texts(void **state) {
    (void)state;
    json_decref(expected);
    return 0;
}

static qn_tokenizer *open_one(const char *path) {
    qn_err err;
    char full[512];
    qn_tokenizer *tokenizer = NULL;
    snprintf(full, sizeof full, "%s/mini/%s", TEST_DATA, path);
    ASSERT_OK(qn_tokenizer_open(&tokenizer, full, &err));
    return tokenizer;
}

// Texts on which two files of a family are made to differ; see data/mini/README.md.
typedef bool skip_fn(const char *text, size_t size);

static bool skip_none(const char *text, size_t size) {
    (void)text, (void)size;
    return false;
}

// The tokenizer.json has Qwen2's pattern (single digits), llama32's GGUF says llama-bpe.
static bool skip_numbers_in_a_row(const char *text, size_t size) {
    bool last = false;
    for (size_t i = 0, n; i < size; i += n) {
        uint32_t code = 0;
        n = qn_utf8_decode(text + i, size - i, &code);
        if (n == 0) return true;
        const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)code);
        const bool is_number = c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO;
        if (is_number && last) return true;
        last = is_number;
    }
    return false;
}

// Qwen 3.5's pattern takes marks as letters.
static bool skip_marks(const char *text, size_t size) {
    for (size_t i = 0, n; i < size; i += n) {
        uint32_t code = 0;
        n = qn_utf8_decode(text + i, size - i, &code);
        if (n == 0) return true;
        const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)code);
        if (c >= UTF8PROC_CATEGORY_MN && c <= UTF8PROC_CATEGORY_ME) return true;
    }
    return false;
}

// The GGUF has <start_of_turn> and <end_of_turn> as normal pieces.
static bool skip_turns(const char *text, size_t size) {
    (void)size;
    return strstr(text, "_of_turn>") != NULL;
}

static void compare_text(const qn_tokenizer *a, const qn_tokenizer *b, const json_t *text) {
    qn_err err;
    const char *data = json_string_value(text);
    const size_t size = json_string_length(text);
    for (int special = 0; special < 2; special++) {
        const qn_tokenize_opts opts = QN_INIT(qn_tokenize_opts, .special = special);
        int32_t *ids_a, *ids_b;
        size_t n_a, n_b;
        ASSERT_OK(qn_tokenize(&ids_a, &n_a, a, data, size, &opts, &err));
        ASSERT_OK(qn_tokenize(&ids_b, &n_b, b, data, size, &opts, &err));
        if (n_a != n_b || memcmp(ids_a, ids_b, n_a * sizeof *ids_a) != 0)
            fail_msg("differ on '%s'", data);
        char *text_a, *text_b;
        size_t size_a, size_b;
        ASSERT_OK(qn_detokenize(&text_a, &size_a, a, ids_a, n_a, true, &err));
        ASSERT_OK(qn_detokenize(&text_b, &size_b, b, ids_a, n_a, true, &err));
        assert_int_equal(size_a, size);
        assert_memory_equal(text_a, data, size); // and the text comes back
        assert_int_equal(size_b, size);
        assert_memory_equal(text_b, data, size);
        qn_free(text_a);
        qn_free(text_b);
        qn_free(ids_a);
        qn_free(ids_b);
    }
}

static void compare(const char *path_a, const char *path_b, skip_fn *skip_text, size_t min) {
    qn_tokenizer *a = open_one(path_a), *b = open_one(path_b);
    const char *name;
    json_t *cases;
    size_t n = 0;
    json_object_foreach(expected, name, cases) {
        for (size_t i = 0; i < json_array_size(cases); i++) {
            const json_t *text = json_object_get(json_array_get(cases, i), "text");
            if (skip_text(json_string_value(text), json_string_length(text))) continue;
            compare_text(a, b, text);
            n++;
        }
    }
    assert_true(n >= min);
    qn_tokenizer_close(a);
    qn_tokenizer_close(b);
}

static void qwen_from_keys_and_from_json(void **state) {
    (void)state;
    compare("qwen3/tokenizer.json", "qwen3/qwen3-bf16.gguf", skip_none, 1012);
    compare("qwen3", "qwen3_moe/qwen3_moe-bf16.gguf", skip_none, 1012);
}

static void llama_from_keys_and_from_json(void **state) {
    (void)state;
    compare("llama32/tokenizer.json", "llama32/llama32-bf16.gguf", skip_numbers_in_a_row, 300);
    compare("llama_untied", "llama_untied/llama_untied-bf16.gguf", skip_numbers_in_a_row, 300);
}

static void qwen35_from_keys_and_from_json(void **state) {
    (void)state;
    compare("qwen35/tokenizer.json", "qwen35/qwen35-bf16.gguf", skip_marks, 300);
    compare("qwen35_moe", "qwen35_moe/qwen35_moe-bf16.gguf", skip_marks, 300);
}

// U+2581 in the text comes back as a space.
static bool skip_turns_and_mark(const char *text, size_t size) {
    return skip_turns(text, size) || strstr(text, "\xe2\x96\x81") != NULL || strlen(text) != size;
}

static void gemma_from_keys_and_from_model(void **state) {
    (void)state;
    compare("gemma/tokenizer.model", "gemma/gemma-bf16.gguf", skip_turns_and_mark, 900);
    compare("gemma2", "gemma2/gemma2-bf16.gguf", skip_turns_and_mark, 900);
    compare("gemma3", "gemma3/gemma3-bf16.gguf", skip_turns_and_mark, 900);
    compare("gemma2_scalar", "gemma2_scalar/tokenizer.model", skip_turns_and_mark, 900);
}

static void check_ids(const qn_tokenizer *t, const char *text, const qn_tokenize_opts *opts,
                      const int32_t *want, size_t n_want) {
    qn_err err;
    int32_t *ids;
    size_t n;
    ASSERT_OK(qn_tokenize(&ids, &n, t, text, strlen(text), opts, &err));
    assert_int_equal(n, n_want);
    assert_memory_equal(ids, want, n * sizeof *ids);
    qn_free(ids);
}

static void keys_say_what_is_special(void **state) {
    (void)state;
    const qn_tokenize_opts ends = QN_INIT(qn_tokenize_opts, .special = true, .add_ends = true);
    qn_tokenizer *t = open_one("llama32/llama32-bf16.gguf");
    qn_tokenizer_info info = tokenizer_info(t);
    assert_string_equal(info.model, "BPE");
    assert_string_equal(info.pre, "llama-bpe");
    assert_int_equal(info.n_tokens, 512);
    assert_int_equal(info.bos, 1);
    assert_int_equal(info.eos, 2);
    assert_int_equal(info.pad, 0);
    assert_int_equal(info.eot, 4); // <|im_end|>, by name
    assert_true(info.add_bos);     // llama-bpe without the key
    assert_false(info.add_eos);
    assert_true(qn_tokenizer_is_end(t, 2) && qn_tokenizer_is_end(t, 4));
    assert_false(qn_tokenizer_is_end(t, 3));
    check_ids(t, "<|im_start|>", &ends, (const int32_t[]){1, 3}, 2);
    qn_tokenizer_close(t);

    t = open_one("qwen3/qwen3-bf16.gguf");
    info = tokenizer_info(t);
    assert_string_equal(info.pre, "qwen2");
    assert_false(info.add_bos);
    check_ids(t, "<|im_start|>", &ends, (const int32_t[]){3}, 1);
    qn_tokenizer_close(t);

    t = open_one("gemma/gemma-bf16.gguf");
    info = tokenizer_info(t);
    assert_string_equal(info.model, "SentencePiece BPE");
    assert_string_equal(info.pre, "");
    assert_int_equal(info.bos, 2);
    assert_int_equal(info.eos, 1);
    assert_int_equal(info.unk, 3); // by its type, the key is absent
    assert_int_equal(info.eot, 5); // not the byte that the file names
    assert_false(qn_tokenizer_is_end(t, 107));
    assert_true(info.add_bos);
    check_ids(t, "", &ends, (const int32_t[]){2}, 1);
    qn_tokenizer_close(t);
}

static void files_beside_a_checkpoint_say_it_too(void **state) {
    (void)state;
    qn_tokenizer *t = open_one("qwen3"); // tokenizer.json, tokenizer_config.json
    qn_tokenizer_info info = tokenizer_info(t);
    assert_int_equal(info.bos, 1);
    assert_int_equal(info.eos, 2);
    assert_int_equal(info.pad, 0);
    assert_false(info.add_bos); // its template adds nothing
    assert_string_equal(info.pre, "qwen2");
    qn_tokenizer_close(t);
    t = open_one("gemma3"); // tokenizer.model
    info = tokenizer_info(t);
    assert_int_equal(info.bos, 2);
    assert_int_equal(info.eos, 1);
    assert_int_equal(info.unk, 3);
    assert_int_equal(info.pad, 0);
    assert_int_equal(info.eot, 5);
    assert_true(info.add_bos);
    assert_true(qn_tokenizer_is_end(t, 1) && qn_tokenizer_is_end(t, 5));
    qn_tokenizer_close(t);
}

static void user_defined_pieces_of_a_model_are_whole(void **state) {
    (void)state;
    qn_tokenizer *t = open_one("gemma3/tokenizer.model");
    check_ids(t, "<start_of_turn><end_of_turn>", NULL, (const int32_t[]){4, 5}, 2);
    qn_tokenizer_close(t);
}

static void what_is_no_tokenizer_is_refused(void **state) {
    (void)state;
    qn_err err;
    qn_tokenizer *t = NULL;
    ASSERT_FAILS(qn_tokenizer_open(&t, TEST_DATA "/nothing-here", &err), QN_IO, "nothing-here");
    ASSERT_FAILS(qn_tokenizer_open(&t, TEST_DATA "/mini/qwen35_vl/mmproj-bf16.gguf", &err),
                 QN_FORMAT, "tokenizer.ggml.model is missing");
    ASSERT_FAILS(qn_tokenizer_open(&t, TEST_DATA "/mini/qwen3/config.json", &err), QN_FORMAT,
                 "no 'model'");
    assert_int_not_equal(qn_tokenizer_open(&t, TEST_DATA "/mini/qwen35_vl/image.png", &err), QN_OK);
    assert_int_not_equal(qn_tokenizer_open(&t, NULL, &err), QN_OK);
    assert_null(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(qwen_from_keys_and_from_json),
        cmocka_unit_test(llama_from_keys_and_from_json),
        cmocka_unit_test(qwen35_from_keys_and_from_json),
        cmocka_unit_test(gemma_from_keys_and_from_model),
        cmocka_unit_test(keys_say_what_is_special),
        cmocka_unit_test(files_beside_a_checkpoint_say_it_too),
        cmocka_unit_test(user_defined_pieces_of_a_model_are_whole),
        cmocka_unit_test(what_is_no_tokenizer_is_refused),
    };
    return cmocka_run_group_tests(tests, read_texts, drop_texts);
}
