// Tokenizer files that lie: each is refused by name or does no harm.
#include "format_files.h"

#include "core/buf.h"
#include "core/file.h"
#include "core/mem.h"
#include "tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>

// --- GGUF keys -----------------------------------------------------------------------------------

// A byte-level tokenizer of three tokens, good but for what a test changes.
typedef struct keys {
    const char *model, *pre; // NULL: no key
    const char *const *tokens;
    size_t n_tokens;
    const char *const *merges;
    size_t n_merges; // SIZE_MAX: no key
    const int32_t *types;
    size_t n_types;
    const float *scores;
    size_t n_scores;
} keys;

static const char *const good_tokens[] = {"a", "b", "ab"};
static const char *const good_merges[] = {"a b"};
static const int32_t good_types[] = {1, 1, 1};
static const float good_scores[] = {-1, -2, -3};

static keys good_keys(const char *model) {
    return (keys){model, "qwen2", good_tokens, 3, good_merges, 1, good_types, 3, good_scores, 3};
}

static void add_keys(gguf_writer *w, const keys *k) {
    gguf_add_string(w, "general.architecture", "llama");
    if (k->model) gguf_add_string(w, "tokenizer.ggml.model", k->model);
    if (k->pre) gguf_add_string(w, "tokenizer.ggml.pre", k->pre);
    if (k->tokens) gguf_add_strings(w, "tokenizer.ggml.tokens", k->tokens, k->n_tokens);
    if (k->n_merges != SIZE_MAX)
        gguf_add_strings(w, "tokenizer.ggml.merges", k->merges, k->n_merges);
    if (k->types) gguf_add_i32s(w, "tokenizer.ggml.token_type", k->types, k->n_types);
    if (k->scores) gguf_add_f32s(w, "tokenizer.ggml.scores", k->scores, k->n_scores);
}

static qn_status open_keys(void **state, qn_tokenizer **out, gguf_writer *w, qn_err *err) {
    const path_name path = in_folder(state, "t.gguf");
    gguf_write(w, path.text);
    return qn_tokenizer_open(out, path.text, err);
}

static void refuse_keys(void **state, const keys *k, qn_status want, const char *part) {
    qn_err err;
    qn_tokenizer *t = NULL;
    gguf_writer w = {0};
    add_keys(&w, k);
    ASSERT_FAILS(open_keys(state, &t, &w, &err), want, part);
    assert_null(t);
}

static void check_text(const qn_tokenizer *t, const char *text, const int32_t *want,
                       size_t n_want) {
    qn_err err;
    int32_t *ids;
    size_t n;
    ASSERT_OK(qn_tokenize(&ids, &n, t, text, strlen(text), NULL, &err));
    assert_int_equal(n, n_want);
    for (size_t i = 0; i < n; i++) assert_int_equal(ids[i], want[i]);
    qn_free(ids);
}

static void good_keys_open(void **state) {
    qn_err err;
    for (int i = 0; i < 3; i++) {
        qn_tokenizer *t;
        const keys k = good_keys(i == 0 ? "gpt2" : i == 1 ? "llama" : "t5");
        gguf_writer w = {0};
        add_keys(&w, &k);
        gguf_add_bool(&w, "tokenizer.ggml.add_space_prefix", false);
        ASSERT_OK(open_keys(state, &t, &w, &err));
        check_text(t, "ab", (const int32_t[]){2}, 1); // for unigram a tie: the longer piece
        qn_tokenizer_close(t);
    }
}

static void bad_vocabularies(void **state) {
    keys k = good_keys("gpt2");
    k.model = NULL;
    refuse_keys(state, &k, QN_FORMAT, "tokenizer.ggml.model is missing");
    k = good_keys("rwkv");
    refuse_keys(state, &k, QN_UNSUPPORTED, "'rwkv' is not known (known: gpt2 llama t5)");
    k = good_keys("gpt2");
    k.pre = "chameleon";
    refuse_keys(state, &k, QN_UNSUPPORTED, "'chameleon' is not known (known: gpt-2");
    k = good_keys("gpt2");
    k.n_tokens = 0;
    refuse_keys(state, &k, QN_FORMAT, "no tokens");
    k = good_keys("gpt2");
    k.tokens = NULL;
    refuse_keys(state, &k, QN_FORMAT, "tokenizer.ggml.tokens is missing");
    k = good_keys("gpt2");
    k.n_types = 2;
    refuse_keys(state, &k, QN_FORMAT, "token_type: 2 elements, but there are 3 tokens");
    k = good_keys("gpt2");
    k.types = (const int32_t[]){1, 7, 1};
    refuse_keys(state, &k, QN_FORMAT, "token 1 has type 7");
    k = good_keys("gpt2");
    k.types = (const int32_t[]){1, -1, 1};
    refuse_keys(state, &k, QN_FORMAT, "token 1 has type -1");
    k = good_keys("llama");
    k.n_scores = 1;
    refuse_keys(state, &k, QN_FORMAT, "scores: 1 elements, but there are 3 tokens");
    k = good_keys("llama");
    k.scores = NULL;
    refuse_keys(state, &k, QN_FORMAT, "scores is missing");
    k = good_keys("t5");
    k.scores = (const float[]){0, 0.0f / 0.0f, 0};
    refuse_keys(state, &k, QN_FORMAT, "token 1 is not finite");
}

static void bad_byte_tokens(void **state) {
    static const char *const spellings[] = {"<0xZZ>", "<0x-1>", "<0x1>", "<0x001>",
                                            "<0X41>", "",       "<0x+1>"};
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        keys k = good_keys("llama");
        k.tokens = (const char *const[]){"a", "b", spellings[i]};
        k.types = (const int32_t[]){1, 1, 6};
        refuse_keys(state, &k, QN_FORMAT, "token 2 is a byte but is spelled");
        // As ordinary text the same spelling is harmless.
        k.types = (const int32_t[]){1, 1, 1};
        qn_err err;
        qn_tokenizer *t;
        gguf_writer w = {0};
        add_keys(&w, &k);
        ASSERT_OK(open_keys(state, &t, &w, &err));
        qn_tokenizer_close(t);
    }
}

static void bad_merges(void **state) {
    keys k = good_keys("gpt2");
    k.n_merges = SIZE_MAX;
    refuse_keys(state, &k, QN_FORMAT, "tokenizer.ggml.merges is missing");
    static const char *const lines[][2] = {
        {"ab", "merge 0: no space in 'ab'"},
        {"", "merge 0: no space"},
        {" ", "merge 0: no space"},
        {" a", "merge 0: no space"},
        {"a ", "one side is empty"},
        {"a x", "'x' is not in the vocabulary"},
        {"x a", "'x' is not in"},
        {"b a", "'ba' is not in"},
        {"a b b", "'b b' is not in"},
        {"a\xff b", "is not in"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        k = good_keys("gpt2");
        k.merges = (const char *const[]){lines[i][0]};
        refuse_keys(state, &k, QN_FORMAT, lines[i][1]);
    }
}

static void bad_special_ids(void **state) {
    static const char *const names[] = {"bos_token_id", "eos_token_id", "eot_token_id",
                                        "eom_token_id", "unknown_token_id"};
    qn_err err;
    qn_tokenizer *t = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        static const int64_t ids[] = {3, -2, 1000000};
        for (int j = 0; j < 3; j++) {
            char name[64];
            snprintf(name, sizeof name, "tokenizer.ggml.%s", names[i]);
            const keys k = good_keys("gpt2");
            gguf_writer w = {0};
            add_keys(&w, &k);
            gguf_add_int(&w, name, GGUF_I32, ids[j]);
            ASSERT_FAILS(open_keys(state, &t, &w, &err), QN_FORMAT, "but there are 3 tokens");
        }
    }
    const keys k = good_keys("gpt2");
    gguf_writer w = {0};
    add_keys(&w, &k);
    gguf_add_string(&w, "tokenizer.ggml.bos_token_id", "1");
    ASSERT_FAILS(open_keys(state, &t, &w, &err), QN_FORMAT, "bos_token_id");
    add_keys(&w, &k);
    gguf_add_u32(&w, "tokenizer.ggml.add_bos_token", 1);
    ASSERT_FAILS(open_keys(state, &t, &w, &err), QN_FORMAT, "add_bos_token");
    assert_null(t);
    // No id and a padding id past the end are common and harmless.
    add_keys(&w, &k);
    gguf_add_int(&w, "tokenizer.ggml.bos_token_id", GGUF_U32, -1);
    gguf_add_u32(&w, "tokenizer.ggml.padding_token_id", 3);
    gguf_add_bool(&w, "tokenizer.ggml.add_bos_token", true);
    ASSERT_OK(open_keys(state, &t, &w, &err));
    const qn_tokenizer_info info = tokenizer_info(t);
    assert_int_equal(info.bos, -1);
    assert_int_equal(info.pad, -1);
    assert_false(info.add_bos);
    qn_tokenizer_close(t);
}

static void wrong_types_of_arrays(void **state) {
    static const char *const names[] = {"tokens", "merges", "token_type", "scores"};
    qn_err err;
    qn_tokenizer *t = NULL;
    for (int i = 0; i < 4; i++) {
        keys k = good_keys("gpt2");
        if (i == 0) k.tokens = NULL;
        if (i == 1) k.n_merges = SIZE_MAX;
        if (i == 2) k.types = NULL;
        if (i == 3) k.scores = NULL;
        char name[64];
        snprintf(name, sizeof name, "tokenizer.ggml.%s", names[i]);
        gguf_writer w = {0};
        add_keys(&w, &k);
        if (i < 2)
            gguf_add_i32s(&w, name, good_types, 3);
        else
            gguf_add_strings(&w, name, good_tokens, 3);
        ASSERT_FAILS(open_keys(state, &t, &w, &err), QN_FORMAT, name);
        add_keys(&w, &k);
        gguf_add_u32(&w, name, 3);
        ASSERT_FAILS(open_keys(state, &t, &w, &err), QN_FORMAT, name);
    }
    keys k = good_keys("t5");
    gguf_writer w = {0};
    add_keys(&w, &k);
    gguf_add_string(&w, "tokenizer.ggml.precompiled_charsmap", "xx");
    ASSERT_FAILS(open_keys(state, &t, &w, &err), QN_FORMAT, "precompiled_charsmap");
    add_keys(&w, &k);
    gguf_add_array(&w, "tokenizer.ggml.precompiled_charsmap", GGUF_U8, "\xff\xff\xff\x7f\0\0", 6,
                   1);
    ASSERT_FAILS(open_keys(state, &t, &w, &err), QN_FORMAT, "precompiled charsmap: a trie of");
    assert_null(t);
}

static void odd_tokens_are_harmless(void **state) {
    qn_err err;
    qn_tokenizer *t;
    keys k = good_keys("gpt2");
    // A token twice, an empty one, broken UTF-8, an empty control token.
    k.tokens = (const char *const[]){"a", "b", "ab", "a", "", "\xff\xfe", "", "\xe2\x82"};
    k.n_tokens = 8;
    k.types = (const int32_t[]){1, 1, 1, 1, 1, 1, 3, 4};
    k.n_types = 8;
    k.scores = NULL;
    gguf_writer w = {0};
    add_keys(&w, &k);
    ASSERT_OK(open_keys(state, &t, &w, &err));
    check_text(t, "aab", (const int32_t[]){0, 2}, 2); // the first of the two
    check_text(t, "a\xe2\x82", (const int32_t[]){0, 7}, 2);
    char *text;
    size_t size;
    ASSERT_OK(qn_detokenize(&text, &size, t, (const int32_t[]){0, 3, 4, 5, 6, 7}, 6, true, &err));
    assert_string_equal(text, "aa\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    qn_free(text);
    qn_tokenizer_close(t);
}

static void a_long_token_is_refused(void **state) {
    char *text = qn_alloc(1 << 20, 1);
    assert_non_null(text);
    memset(text, 'x', (1 << 20) - 1);
    keys k = good_keys("gpt2");
    k.tokens = (const char *const[]){"a", "b", text};
    refuse_keys(state, &k, QN_LIMIT, "token 2: 1048575 bytes long, at most 4096");
    qn_free(text);
}

// --- tokenizer.json ------------------------------------------------------------------------------

static void refuse_json(const char *json, qn_status want, const char *part) {
    qn_err err;
    qn_tokenizer *t = NULL;
    ASSERT_FAILS(qn_tokenizer_from_json(&t, json, strlen(json), "t.json", &err), want, part);
    assert_null(t);
}

#define BPE "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}"

static void unknown_components_are_named(void **state) {
    (void)state;
    static const char *const rows[][2] = {
        {"{\"normalizer\":{\"type\":\"BertNormalizer\"}," BPE,
         "normalizer type 'BertNormalizer' is not supported"},
        {"{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Nmt\"}]}," BPE,
         "normalizer type 'Nmt'"},
        {"{\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}," BPE,
         "pre_tokenizer type 'UnicodeScripts'"},
        {"{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},{"
         "\"type\":\"Digits\"}]}," BPE,
         "after ByteLevel"},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\" "
         "\"},\"behavior\":\"Sideways\"}," BPE,
         "behavior 'Sideways'"},
        {"{\"decoder\":{\"type\":\"WordPiece\"}," BPE, "decoder type 'WordPiece'"},
        {"{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":"
         "\"ByteFallback\"}]}," BPE,
         "decoder ByteFallback after"},
        {"{\"decoder\":{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}," BPE,
         "decoder Strip"},
        {"{\"decoder\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a\"},\"content\":\"\"}," BPE,
         "decoder Replace by Regex"},
        {"{\"post_processor\":{\"type\":\"BertProcessing\"}," BPE,
         "post_processor type 'BertProcessing'"},
        {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}", "model type 'WordPiece'"},
        {"{\"model\":{\"type\":\"BPE\",\"dropout\":0.1,\"vocab\":{\"a\":0},\"merges\":[]}}",
         "dropout"},
        {"{\"model\":{\"type\":\"BPE\",\"end_of_word_suffix\":\"</"
         "w>\",\"vocab\":{\"a\":0},\"merges\":[]}}",
         "end_of_word_suffix"},
        {"{\"model\":{\"type\":\"BPE\",\"continuing_subword_prefix\":\"##\",\"vocab\":{\"a\":0},"
         "\"merges\":[]}}",
         "continuing_subword_prefix"},
        {"{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":"
         "\"often\"}," BPE,
         "prepend_scheme"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        refuse_json(rows[i][0], QN_UNSUPPORTED, rows[i][1]);
}

static void damaged_json_is_refused(void **state) {
    (void)state;
    static const char *const rows[][2] = {
        {"", "not valid JSON"},
        {"[]", "no 'model'"},
        {"{}", "no 'model'"},
        {"{\"model\":7}", "no 'model'"},
        {"{\"model\":{\"type\":\"BPE\"}}", "vocab is missing"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}", "no tokens"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}}", "duplicate"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}",
         "id 0 is given twice"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}",
         "'a': its id is not a number from 0"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":\"0\"},\"merges\":[]}}",
         "its id is not a number"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}}}", "'merges' is not a list"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"aa\"]}}", "no space"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}",
         "merge 0: not two pieces"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\",7]]}}",
         "merge 0: not two pieces"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[7]}}",
         "merge 0: not a string"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}",
         "'aa' is not in the vocabulary"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"u\"}}",
         "unk_token 'u' is not in"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"fuse_unk\":3}}",
         "'fuse_unk' is not true or false"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", "no tokens"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\"]]}}",
         "token 0: not a piece and its score"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",\"b\"]]}}", "token 0: not a piece"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0]],\"unk_id\":1}}",
         "unk_id 1 is not one of 1 tokens"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0]],\"unk_id\":-5}}", "unk_id -5"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        refuse_json(rows[i][0], QN_FORMAT, rows[i][1]);
    refuse_json("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":2000000000},\"merges\":[]}}",
                QN_LIMIT, "id 2000000000 is beyond");
}

static void damaged_components_are_refused(void **state) {
    (void)state;
    static const char *const rows[][2] = {
        {"{\"added_tokens\":[{\"id\":3,\"content\":\"x\"}],\"model\":{\"type\":\"Unigram\","
         "\"vocab\":[[\"a\",0]],"
         "\"unk_id\":2}}",
         "unk_id 2 is not one of 4 tokens"}, // a hole
        {"{\"added_tokens\":7," BPE, "'added_tokens' is not a list"},
        {"{\"added_tokens\":[7]," BPE, "'content' is not a string"},
        {"{\"added_tokens\":[{\"content\":\"x\"}]," BPE, "'x': its id is not a number"},
        {"{\"added_tokens\":[{\"id\":0,\"content\":\"x\"}]," BPE,
         "its id 0 is 'a' in the vocabulary"},
        {"{\"added_tokens\":[{\"id\":1,\"content\":\"a\"}]," BPE,
         "id 1, but the vocabulary says 0"},
        {"{\"added_tokens\":[{\"id\":1,\"content\":\"x\",\"special\":1}]," BPE,
         "'special' is not true"},
        {"{\"normalizer\":7," BPE, "normalizer: 'type' is not a string"},
        {"{\"normalizer\":{\"type\":\"Replace\",\"content\":\"\"}," BPE,
         "normalizer Replace: its pattern"},
        {"{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"a b\"}," BPE,
         "not base64"},
        {"{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"/////w==\"}," BPE,
         "a trie of 4294967295"},
        {"{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{"
         "\"id\":\"x\"}}],\"special_tokens\":{}}," BPE,
         "'ids' is not a list"},
        {"{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{"
         "\"id\":\"x\"}}],\"special_tokens\":{\"x\":{\"ids\":[1]}}}," BPE,
         "an id that is not a token"},
        {"{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[]}," BPE,
         "without the text"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        refuse_json(rows[i][0], QN_FORMAT, rows[i][1]);
    refuse_json("{\"added_tokens\":[{\"id\":9999999999999,\"content\":\"x\"}]," BPE, QN_LIMIT,
                "is beyond");
}

static void deep_sequences_are_refused(void **state) {
    (void)state;
    for (int depth = 7; depth <= 1000; depth += 993) {
        qn_err err;
        qn_tokenizer *t = NULL;
        qn_buf json = {0};
        qn_buf_text(&json, "{\"normalizer\":");
        for (int i = 0; i < depth; i++)
            qn_buf_text(&json, "{\"type\":\"Sequence\",\"normalizers\":[");
        qn_buf_text(&json, "{\"type\":\"NFC\"}");
        for (int i = 0; i < depth; i++) qn_buf_text(&json, "]}");
        qn_buf_text(&json, "," BPE);
        const qn_status status = qn_tokenizer_from_json(&t, json.data, json.size, "t.json", &err);
        if (depth > 8) assert_int_not_equal(status, QN_OK);
        if (depth < 8) assert_int_equal(status, QN_OK);
        qn_tokenizer_close(t);
        qn_buf_deinit(&json);
    }
    qn_buf json = {0}; // more steps than there is room for
    qn_buf_text(&json,
                "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}");
    for (int i = 0; i < 16; i++) qn_buf_text(&json, ",{\"type\":\"NFC\"}");
    qn_buf_text(&json, "]}," BPE);
    refuse_json(json.data, QN_LIMIT, "more than 16 normalizers");
    qn_buf_deinit(&json);
}

static void nested_added_tokens_end(void **state) {
    (void)state;
    qn_err err;
    qn_tokenizer *t;
    // Tokens that contain each other, and a normaliser that turns one into the other.
    static const char json[] =
        "{\"added_tokens\":[{\"id\":1,\"content\":\"<x>\",\"normalized\":true},{\"id\":2,"
        "\"content\":\"<<x>>\",\"normalized\":true},"
        "{\"id\":3,\"content\":\"y\",\"normalized\":true}],\"normalizer\":{\"type\":\"Sequence\","
        "\"normalizers\":[{\"type\":\"Replace\","
        "\"pattern\":{\"String\":\"y\"},\"content\":\"<x>\"},{\"type\":\"Replace\",\"pattern\":{"
        "\"String\":\"<x>\"},\"content\":\"yy\"}]}," BPE;
    ASSERT_OK(qn_tokenizer_from_json(&t, json, strlen(json), "t.json", &err));
    check_text(t, "a<x>y", (const int32_t[]){0, 1, 1}, 3);
    qn_tokenizer_close(t);
}

// Twelve steps that each make ten letters of one would make 10^12 bytes of a single one.
static void a_normaliser_bomb_is_an_error(void **state) {
    (void)state;
    qn_err err;
    char text[4096] = "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[";
    for (int i = 0; i < 12; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text),
                 "%s{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},"
                 "\"content\":\"aaaaaaaaaa\"}",
                 i ? "," : "");
    snprintf(text + strlen(text), sizeof text - strlen(text), "]}," BPE);
    qn_tokenizer *tokenizer = NULL;
    ASSERT_OK(qn_tokenizer_from_json(&tokenizer, text, strlen(text), "bomb", &err));
    int32_t *ids;
    size_t n;
    ASSERT_FAILS(qn_tokenize(&ids, &n, tokenizer, "a", 1, NULL, &err), QN_LIMIT,
                 "the normaliser makes more than 65568 bytes of 1");
    qn_tokenizer_close(tokenizer);
}

static void a_pattern_bomb_is_an_error(void **state) {
    (void)state;
    qn_err err;
    qn_tokenizer *t;
    static const char json[] = "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a+"
                               ")+$\"},\"behavior\":\"Isolated\"}," BPE;
    ASSERT_OK(qn_tokenizer_from_json(&t, json, strlen(json), "t.json", &err));
    int32_t *ids = NULL;
    size_t n;
    ASSERT_FAILS(qn_tokenize(&ids, &n, t, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!",
                             53, NULL, &err),
                 QN_LIMIT, "the pattern takes too long at byte 0");
    assert_null(ids);
    qn_tokenizer_close(t);
}

static void many_merges_load_in_time(void **state) {
    (void)state;
    qn_err err;
    qn_tokenizer *t;
    enum { N = 300000 };
    qn_buf json = {0};
    qn_buf_text(
        &json,
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"");
    for (int i = 0; i < N; i++) qn_buf_text(&json, ",\"a b\"");
    qn_buf_text(&json, "]}}");
    ASSERT_OK(qn_tokenizer_from_json(&t, json.data, json.size, "t.json", &err));
    check_text(t, "ab", (const int32_t[]){2}, 1);
    qn_tokenizer_close(t);
    qn_buf_deinit(&json);
}

// --- tokenizer.model -----------------------------------------------------------------------------

static qn_status try_model(const void *bytes, size_t n, qn_err *err) {
    qn_tokenizer *t = NULL;
    const qn_status status = qn_tokenizer_from_model(&t, bytes, n, "t.model", err);
    if (!status) {
        int32_t *ids;
        size_t n_ids;
        if (qn_tokenize(&ids, &n_ids, t, " ab\xff<s>", 7, NULL, err) == QN_OK) qn_free(ids);
        qn_tokenizer_close(t);
    }
    return status;
}

static void refuse_model(const char *bytes, size_t n, qn_status want, const char *part) {
    qn_err err;
    ASSERT_FAILS(try_model(bytes, n, &err), want, part);
}

static void damaged_models_are_refused(void **state) {
    (void)state;
    refuse_model("", 0, QN_FORMAT, "no tokens");
    refuse_model("\x0a", 1, QN_FORMAT, "cut off");
    refuse_model("\x0a\x05"
                 "ab",
                 4, QN_FORMAT, "cut off");
    refuse_model("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11, QN_FORMAT, "cut off");
    refuse_model("\x0b", 1, QN_FORMAT, "wire type 3");
    refuse_model("\x08\x01", 2, QN_FORMAT, "wire type 0, want 2");
    refuse_model("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 12, QN_FORMAT, "cut off");
    // One piece "a" of type 9; a score that is NaN; an unknown id of 5; model type 4.
    refuse_model("\x0a\x05\x0a\x01"
                 "a\x18\x09",
                 7, QN_FORMAT, "token 0: type 9");
    refuse_model("\x0a\x08\x0a\x01"
                 "a\x15\0\0\xc0\x7f",
                 10, QN_FORMAT, "score is not finite");
    refuse_model("\x0a\x03\x0a\x01"
                 "a\x12\x03\xc0\x02\x05",
                 10, QN_FORMAT, "special token 5, but there are 1");
    refuse_model("\x0a\x03\x0a\x01"
                 "a\x12\x02\x18\x04",
                 9, QN_UNSUPPORTED, "model type 4");
    refuse_model("\x0a\x03\x0a\x01"
                 "a\x12\x03\xc0\x01\x01",
                 10, QN_UNSUPPORTED, "treat_whitespace_as_suffix");
    refuse_model("\x0a\x05\x0a\x01"
                 "a\x18\x06",
                 7, QN_FORMAT, "is a byte but is spelled 'a'");
}

static void every_cut_and_every_flip_of_a_model_is_harmless(void **state) {
    (void)state;
    qn_err err;
    char *bytes;
    size_t size;
    ASSERT_OK(qn_file_load(&bytes, &size, TEST_DATA "/mini/gemma3/tokenizer.model", 1 << 20, &err));
    assert_int_equal(try_model(bytes, size, &err), QN_OK);
    for (size_t n = 0; n < size; n += n < 200 || n > size - 200 ? 1 : 61)
        (void)try_model(bytes, n, &err);
    srand(17);
    for (int i = 0; i < 300; i++) {
        const size_t at = (size_t)rand() % size;
        const char old = bytes[at];
        bytes[at] = (char)rand();
        (void)try_model(bytes, size, &err);
        bytes[at] = old;
    }
    qn_free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(good_keys_open),
        FOLDER_TEST(bad_vocabularies),
        FOLDER_TEST(bad_byte_tokens),
        FOLDER_TEST(bad_merges),
        FOLDER_TEST(bad_special_ids),
        FOLDER_TEST(wrong_types_of_arrays),
        FOLDER_TEST(odd_tokens_are_harmless),
        FOLDER_TEST(a_long_token_is_refused),
        cmocka_unit_test(unknown_components_are_named),
        cmocka_unit_test(damaged_json_is_refused),
        cmocka_unit_test(damaged_components_are_refused),
        cmocka_unit_test(deep_sequences_are_refused),
        cmocka_unit_test(nested_added_tokens_end),
        cmocka_unit_test(a_normaliser_bomb_is_an_error),
        cmocka_unit_test(a_pattern_bomb_is_an_error),
        cmocka_unit_test(many_merges_load_in_time),
        cmocka_unit_test(damaged_models_are_refused),
        cmocka_unit_test(every_cut_and_every_flip_of_a_model_is_harmless),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
