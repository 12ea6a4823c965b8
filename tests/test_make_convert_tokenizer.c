// Converting checkpoints: the tokenizer's keys, against the files that they come from.
#include "testing.h"

#include "convert_rig.h"
#include "golden.h"
#include "model_writer.h"

#include "tokenizer/tokenizer.h"

static void same_ids(const qn_tokenizer *a, const qn_tokenizer *b, const char *text, size_t size) {
    const qn_tokenize_opts opts = QN_INIT(qn_tokenize_opts, .special = true, .add_ends = true);
    qn_err err;
    int32_t *got, *want;
    size_t n_got, n_want;
    ASSERT_OK(qn_tokenize(&got, &n_got, a, text, size, &opts, &err));
    ASSERT_OK(qn_tokenize(&want, &n_want, b, text, size, &opts, &err));
    if (n_got != n_want || memcmp(got, want, n_got * sizeof *got) != 0)
        fail_msg("'%s': other ids (%zu and %zu)", text, n_got, n_want);
    qn_free(got);
    qn_free(want);
}

static void text_becomes_the_same_tokens(void **state) {
    static const char *const texts[] = {"Hello, world!",
                                        "  two  spaces\n\nand lines ",
                                        "12345 67",
                                        "<|im_start|>user\nhi<|im_end|>",
                                        "na\xc3\xafve \xe2\x82\xac \xf0\x9f\x98\x80",
                                        "<start_of_turn>model",
                                        "don't I'LL",
                                        ""};
    const path_name out = in_folder(state, "out.gguf");
    for (size_t i = 0; i < N_FAMILIES; i++) {
        qn_err err;
        qn_tokenizer *got, *want;
        convert(mini(families[i]).text, out.text, NULL);
        ASSERT_OK(qn_tokenizer_open(&got, out.text, &err));
        ASSERT_OK(qn_tokenizer_open(&want, mini(families[i]).text, &err));
        for (size_t t = 0; t < sizeof texts / sizeof *texts; t++)
            same_ids(got, want, texts[t], strlen(texts[t]));
        const qn_tokenizer_info a = tokenizer_info(got), b = tokenizer_info(want);
        assert_int_equal(a.bos, b.bos);
        assert_int_equal(a.eos, b.eos);
        assert_int_equal(a.add_bos, b.add_bos);
        qn_tokenizer_close(got);
        qn_tokenizer_close(want);
    }
}

// --- changed files -------------------------------------------------------------------------------

// A change of tokenizer.json by words: the first `from` becomes `to`.
static void edit_tokenizer(void *const *state, const char *from, const char *to) {
    qn_err err;
    char *text;
    size_t size;
    const path_name path = in_folder(state, "tokenizer.json");
    ASSERT_OK(qn_file_load(&text, &size, path.text, 1 << 24, &err));
    char *at = strstr(text, from);
    if (!at) fail_msg("no '%s' in tokenizer.json", from);
    gguf_bytes all = {0};
    gguf_put(&all, text, (size_t)(at - text));
    gguf_put(&all, to, strlen(to));
    gguf_put(&all, at + strlen(from), strlen(at + strlen(from)));
    gguf_save(path.text, all.data, all.size);
    free(all.data);
    qn_free(text);
}

static void tokenizers_that_gguf_cannot_say_are_refused(void **state) {
    static const struct {
        const char *from, *to, *part;
    } rows[] = {
        {"\\\\p{N}|", "\\\\p{N}{1,2}|", "pattern 'custom'"},
        {"\"ignore_merges\": false", "\"ignore_merges\": true", "ignore_merges true"},
        {"\"add_prefix_space\": false", "\"add_prefix_space\": true", "2 steps"},
        {"\"lstrip\": false", "\"lstrip\": true", "added token '<pad>'"},
        {"\"normalizer\": null", "\"normalizer\": {\"type\": \"NFKC\"}", "normalizer 0 is not NFC"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        write_checkpoint(state, "qwen3", "", 1);
        edit_tokenizer(state, rows[i].from, rows[i].to);
        expect_refusal(state, QN_UNSUPPORTED, rows[i].part);
    }
    write_checkpoint(state, "qwen3", "", 1);
    remove(in_folder(state, "tokenizer.json").text);
    expect_refusal(state, QN_IO, "no tokenizer.json");
    write_checkpoint(state, "qwen3", "", 1);
    edit_tokenizer(state, "\"id\": 511", "\"id\": 512");
    expect_refusal(state, QN_FORMAT, "513 tokens, the embedding 512 rows");
}

// What Llama 3 has: another pattern, whole words before merges, a token in front.
static void llama_patterns_are_named(void **state) {
    const path_name out = in_folder(state, "out.gguf");
    write_checkpoint(state, "llama32", "", 1);
    edit_tokenizer(state, "\\\\p{N}|", "\\\\p{N}{1,3}|");
    convert(*state, out.text, NULL);
    qn_source *source = open_well(out.text);
    assert_string_equal(qn_source_find_key(source, "tokenizer.ggml.pre")->as.s.data, "dbrx");
    assert_null(qn_source_find_key(source, "tokenizer.ggml.add_bos_token"));
    qn_source_close(source);
    edit_tokenizer(state, "\"ignore_merges\": false", "\"ignore_merges\": true");
    convert(*state, out.text, NULL);
    source = open_well(out.text);
    assert_string_equal(qn_source_find_key(source, "tokenizer.ggml.pre")->as.s.data, "llama-bpe");
    // A reader would add the beginning token of itself.
    assert_false(qn_source_find_key(source, "tokenizer.ggml.add_bos_token")->as.b);
    qn_source_close(source);
}

// A tokenizer.json that says what mini/gemma's tokenizer.model does, in the form that Gemma has;
// `other` stands in place of token 300.
static void put_gemma_json(void *const *state, const char *other) {
    qn_err err;
    qn_tokenizer *tokenizer;
    ASSERT_OK(qn_tokenizer_open(&tokenizer, in_folder(state, "tokenizer.model").text, &err));
    json_t *vocab = json_object();
    for (int32_t id = 0; id < 512; id++) {
        const char *piece = id == 300 ? other : qn_tokenizer_piece(tokenizer, id, NULL);
        if (!piece) piece = qn_tokenizer_piece(tokenizer, id, NULL);
        json_object_set_new(vocab, piece, json_integer(id));
    }
    json_t *all = json_pack(
        "{s:o, s:[{s:i, s:s, s:b}], s:{s:s, s:[{s:{s:s}}, {s:{}}], s:{s:{s:[i]}}}}", "model",
        json_pack("{s:s, s:b, s:o, s:[]}", "type", "BPE", "byte_fallback", 1, "vocab", vocab,
                  "merges"),
        "added_tokens", "id", 4, "content", "<start_of_turn>", "special", 1, "post_processor",
        "type", "TemplateProcessing", "single", "SpecialToken", "id", "<s>", "Sequence",
        "special_tokens", "<s>", "ids", 2);
    assert_non_null(all);
    assert_int_equal(json_dump_file(all, in_folder(state, "tokenizer.json").text, 0), 0);
    json_decref(all);
    qn_tokenizer_close(tokenizer);
}

// Where both files are there, pieces and scores come from one, added tokens and ends from the
// other.
static void gemma_takes_from_both_files(void **state) {
    const path_name out = in_folder(state, "out.gguf");
    write_checkpoint(state, "gemma", "", 1);
    put_gemma_json(state, NULL);
    convert(*state, out.text, NULL);
    qn_source *got = open_well(out.text), *want = open_well(fixture("gemma").text);
    const qn_key *types = qn_source_find_key(got, "tokenizer.ggml.token_type");
    assert_int_equal(qn_key_int_at(types, 4), 3);
    assert_int_equal(qn_key_int_at(types, 5), 4);
    assert_true(qn_source_find_key(got, "tokenizer.ggml.add_bos_token")->as.b);
    qn_key_info a = find_info(got, "tokenizer.ggml.scores"),
                b = find_info(want, "tokenizer.ggml.scores");
    assert_string_equal(a.value, b.value);
    qn_free(a.value);
    qn_free(b.value);
    qn_source_close(got);
    qn_source_close(want);
    qn_err err = {0};
    put_gemma_json(state, "something else");
    ASSERT_FAILS(qn_convert(*state, out.text, NULL, &err), QN_FORMAT,
                 "token 300 is 'something else'");
    put_gemma_json(state, NULL);
    remove(in_folder(state, "tokenizer.model").text);
    ASSERT_FAILS(qn_convert(*state, out.text, NULL, &err), QN_UNSUPPORTED, "tokenizer.model");
}

static void templates_come_from_where_they_are(void **state) {
    const path_name out = in_folder(state, "out.gguf");
    write_checkpoint(state, "qwen3", "", 1);
    remove(in_folder(state, "chat_template.jinja").text);
    put_text(state, "tokenizer_config.json",
             "{\"eos_token\": {\"content\": \"<|im_end|>\"}, \"chat_template\": [{\"name\": "
             "\"default\", "
             "\"template\": \"one\"}, {\"name\": \"tool_use\", \"template\": \"two\"}]}");
    convert(*state, out.text, NULL);
    qn_source *source = open_well(out.text);
    assert_string_equal(qn_source_find_key(source, "tokenizer.chat_template")->as.s.data, "one");
    assert_string_equal(qn_source_find_key(source, "tokenizer.chat_template.tool_use")->as.s.data,
                        "two");
    assert_int_equal(qn_source_find_key(source, "tokenizer.chat_templates")->n, 1);
    assert_int_equal(qn_source_find_key(source, "tokenizer.ggml.eos_token_id")->as.i, 4);
    assert_int_equal(qn_source_find_key(source, "tokenizer.ggml.bos_token_id")->as.i, 1);
    qn_source_close(source);
    put_text(state, "chat_template.json", "{\"chat_template\": \"three\"}");
    convert(*state, out.text, NULL);
    source = open_well(out.text);
    assert_string_equal(qn_source_find_key(source, "tokenizer.chat_template")->as.s.data, "three");
    qn_source_close(source);
}

// A vocabulary smaller than the embedding is filled up with tokens that nothing encodes to.
static void missing_tokens_are_unused(void **state) {
    const path_name out = in_folder(state, "out.gguf");
    write_checkpoint(state, "qwen3", "", 1);
    edit_tokenizer(state, "\"id\": 511", "\"id\": 499");
    edit_tokenizer(state, "<|extra_7|>", "<gap>");
    qn_err err = {0};
    // 499 has a piece in the vocabulary already: refused by the tokenizer itself.
    ASSERT_FAILS(qn_convert(*state, out.text, NULL, &err), QN_FORMAT, "499");
    write_checkpoint(state, "qwen3",
                     "set vocab_size 520; shape model.embed_tokens.weight 520 64; "
                     "shape lm_head.weight 520 64",
                     1);
    convert(*state, out.text, NULL);
    qn_source *source = open_well(out.text);
    const qn_key *tokens = qn_source_find_key(source, "tokenizer.ggml.tokens");
    const qn_key *types = qn_source_find_key(source, "tokenizer.ggml.token_type");
    assert_int_equal(tokens->n, 520);
    assert_string_equal(qn_key_string_at(tokens, 519).data, "[PAD519]");
    assert_int_equal(qn_key_int_at(types, 519), 5);
    qn_source_close(source);
}

// --- published tokenizers ------------------------------------------------------------------------

// The tokenizer of tests/data/npm/NAME, beside some checkpoint; false if it is not installed.
static bool put_real(void *const *state, const char *name) {
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json"};
    write_checkpoint(state, "qwen3", "", 1);
    for (int i = 0; i < 2; i++) {
        qn_err err;
        char path[1024], *bytes;
        size_t size;
        snprintf(path, sizeof path, "%s/npm/%s/%s", TEST_DATA, name, names[i]);
        if (!qn_path_is_file(path)) return false;
        ASSERT_OK(qn_file_load(&bytes, &size, path, 1 << 28, &err));
        put_file(state, names[i], bytes, size);
        qn_free(bytes);
    }
    return true;
}

static void export_real(void *const *state, const char *out, int64_t n_vocab) {
    qn_err err;
    qn_gguf_writer *writer = NULL;
    qn_source *source = open_well(*state);
    ASSERT_OK(qn_gguf_writer_create(&writer, &err));
    const qn_tokenizer_export export = {.to = writer, .source = source, .n_vocab = n_vocab};
    ASSERT_OK(qn_tokenizer_export_keys(&export, &err));
    ASSERT_OK(qn_gguf_begin(writer, out, &err));
    ASSERT_OK(qn_gguf_finish(writer, &err));
    qn_gguf_writer_destroy(writer);
    qn_source_close(source);
}

static void check_texts(const char *got_path, const char *want_path, const char *name) {
    qn_err err;
    qn_tokenizer *got, *want;
    json_error_t why;
    json_t *all = json_load_file(TEST_DATA "/tokenizers/expected.json", JSON_ALLOW_NUL, &why);
    const json_t *cases = json_object_get(all, name);
    assert_int_equal(json_array_size(cases), 253);
    ASSERT_OK(qn_tokenizer_open(&got, got_path, &err));
    ASSERT_OK(qn_tokenizer_open(&want, want_path, &err));
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *text = json_object_get(json_array_get(cases, i), "text");
        // GGUF has no normaliser: text with combining marks comes out as it is written.
        if (strcmp(name, "qwen3") == 0 && strstr(json_string_value(text), "\xcc")) continue;
        same_ids(got, want, json_string_value(text), json_string_length(text));
    }
    qn_tokenizer_close(got);
    qn_tokenizer_close(want);
    json_decref(all);
}

static void published_tokenizers_go_through(void **state) {
    static const struct {
        const char *name, *pre;
        int64_t n_vocab;
    } rows[] = {{"qwen3", "qwen2", 151936}, {"llama3_2", "llama-bpe", 128256}};
    const path_name out = in_folder(state, "out.gguf");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!put_real(state, rows[i].name)) {
            print_message("skipped: tokenizer %s is not installed (tools/fetch_tokenizers.sh)\n",
                          rows[i].name);
            skip();
        }
        export_real(state, out.text, rows[i].n_vocab);
        qn_source *source = open_well(out.text);
        assert_string_equal(qn_source_find_key(source, "tokenizer.ggml.pre")->as.s.data,
                            rows[i].pre);
        qn_source_close(source);
        check_texts(out.text, in_folder(state, "tokenizer.json").text, rows[i].name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(text_becomes_the_same_tokens),
        FOLDER_TEST(tokenizers_that_gguf_cannot_say_are_refused),
        FOLDER_TEST(llama_patterns_are_named),
        FOLDER_TEST(gemma_takes_from_both_files),
        FOLDER_TEST(templates_come_from_where_they_are),
        FOLDER_TEST(missing_tokens_are_unused),
        FOLDER_TEST(published_tokenizers_go_through),
    };
    return cmocka_run_group_tests_name("converted tokenizers", tests, NULL, NULL);
}
