// Texts sampled under schemas are valid: tokens are drawn at random from those that the mask
// allows, with a seed for each text; python3-jsonschema, which shares nothing with this code, says
// whether the texts are valid. Where it is not installed the test is skipped.
#include "testing.h"

#include "core/file.h"
#include "gen/grammar/grammar.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_TOKENS = 3000 };

static uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

// A vocabulary, and a mask of its tokens that close something.
typedef struct vocabulary {
    qn_tokenizer *tokenizer;
    uint32_t *closing;
    size_t n_words;
} vocabulary;

static void open_vocabulary(vocabulary *out, const char *path) {
    qn_err err;
    ASSERT_OK(qn_tokenizer_open(&out->tokenizer, path, &err));
    const int32_t n = tokenizer_info(out->tokenizer).n_tokens;
    out->n_words = ((size_t)n + 31) / 32;
    out->closing = calloc(out->n_words, sizeof *out->closing);
    for (int32_t id = 0; id < n; id++) {
        size_t size = 0;
        const char *piece = qn_tokenizer_piece(out->tokenizer, id, &size);
        if (qn_tokenizer_is_end(out->tokenizer, id) || (size && strchr("\"]}", *piece)))
            out->closing[id / 32] |= 1u << (id % 32);
    }
}

static void close_vocabulary(vocabulary *v) {
    free(v->closing);
    qn_tokenizer_close(v->tokenizer);
}

// The bits of a mask, or those that are in `filter` too.
static uint32_t word_of(const uint32_t *mask, const uint32_t *filter, size_t i) {
    return filter ? mask[i] & filter[i] : mask[i];
}

static uint32_t count_bits(const uint32_t *mask, const uint32_t *filter, size_t n_words) {
    uint32_t n = 0;
    for (size_t i = 0; i < n_words; i++)
        n += (uint32_t)__builtin_popcount(word_of(mask, filter, i));
    return n;
}

// A token that the mask allows. Every third time one that closes something, if there is one: noise
// alone would seldom end a string.
static int32_t draw(const uint32_t *mask, const vocabulary *v, uint64_t *seed) {
    const uint32_t *filter = next_random(seed) % 3 == 0 ? v->closing : NULL;
    uint32_t n = count_bits(mask, filter, v->n_words);
    if (!n) {
        filter = NULL;
        n = count_bits(mask, NULL, v->n_words);
    }
    assert_true(n > 0);
    uint32_t left = next_random(seed) % n;
    for (size_t i = 0; i < v->n_words; i++)
        for (uint32_t word = word_of(mask, filter, i); word; word &= word - 1)
            if (left-- == 0) return (int32_t)(i * 32) + __builtin_ctz(word);
    return -1;
}

// One text; NULL if it did not end within MAX_TOKENS. To be freed.
static char *sample(qn_matcher *matcher, const vocabulary *v, uint64_t seed) {
    qn_err err;
    int32_t ids[MAX_TOKENS];
    size_t n = 0, size;
    char *text;
    qn_matcher_reset(matcher);
    while (n < MAX_TOKENS) {
        const uint32_t *mask;
        ASSERT_OK(qn_matcher_mask(&mask, matcher, &err));
        const int32_t id = draw(mask, v, &seed);
        assert_true(id >= 0);
        ASSERT_OK(qn_matcher_accept(matcher, id, &err));
        if (qn_tokenizer_is_end(v->tokenizer, id)) {
            ASSERT_OK(qn_detokenize(&text, &size, v->tokenizer, ids, n, false, &err));
            return text;
        }
        ids[n++] = id;
    }
    return NULL;
}

static size_t sample_schema(FILE *out, const json_t *one, size_t number, const vocabulary *v,
                            size_t n_texts) {
    qn_err err;
    qn_grammar *grammar;
    qn_matcher *matcher;
    char *text = json_dumps(json_object_get(one, "schema"), JSON_ENCODE_ANY);
    ASSERT_OK(qn_grammar_create(&grammar, v->tokenizer, QN_GRAMMAR_SCHEMA, text, strlen(text), NULL,
                                &err));
    ASSERT_OK(qn_matcher_create(&matcher, grammar, 0, &err));
    size_t n_done = 0;
    for (size_t i = 0; i < n_texts; i++) {
        char *made = sample(matcher, v, number * 1000 + i);
        if (!made) continue;
        json_t *line = json_pack("{s:i,s:s}", "schema", (int)number, "text", made);
        assert_non_null(line); // UTF-8, or jansson would not take it
        json_dumpf(line, out, JSON_ENSURE_ASCII);
        fputc('\n', out);
        json_decref(line);
        qn_free(made);
        n_done++;
    }
    qn_matcher_destroy(matcher);
    qn_grammar_destroy(grammar);
    free(text);
    return n_done;
}

// The interpreter that has the validator; NULL if none has.
static const char *find_python(void) {
    if (!system("/usr/bin/python3 -c 'import jsonschema' 2>/dev/null")) return "/usr/bin/python3";
    return system("python3 -c 'import jsonschema' 2>/dev/null") ? NULL : "python3";
}

static void all_valid(const char *tokenizer_path, size_t n_texts, size_t min) {
    vocabulary v;
    json_error_t why;
    char path[] = "/tmp/quern-sampled-XXXXXX", command[1024];
    const char *python = find_python();
    if (!python) {
        print_message("skipped: python3-jsonschema is not installed (tools/setup.sh)\n");
        skip();
    }
    json_t *schemas = json_load_file(TEST_DATA "/grammar/sampled.json", 0, &why), *one;
    if (!schemas) fail_msg("sampled.json, line %d: %s", why.line, why.text);
    open_vocabulary(&v, tokenizer_path);
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *out = fdopen(fd, "w");
    size_t i, n_done = 0;
    json_array_foreach(schemas, i, one) n_done += sample_schema(out, one, i, &v, n_texts);
    assert_int_equal(fclose(out), 0);
    print_message("%zu texts of %zu ended\n", n_done, json_array_size(schemas) * n_texts);
    snprintf(command, sizeof command, "%s %s/grammar/validate.py %s/grammar/sampled.json %s",
             python, TEST_DATA, TEST_DATA, path);
    const int status = system(command);
    unlink(path);
    json_decref(schemas);
    close_vocabulary(&v);
    assert_int_equal(status, 0);
    assert_true(n_done >= min);
}

static void bundled_vocabulary(void **state) {
    (void)state;
    all_valid(MODELS "/quern-mini-Q8_0.gguf", 100, 1000);
}

static void large_vocabulary(void **state) {
    (void)state;
    static const char path[] = TEST_DATA "/npm/qwen3/tokenizer.json";
    if (!qn_path_is_file(path)) {
        print_message("skipped: tokenizer qwen3 is not installed (tools/fetch_tokenizers.sh)\n");
        skip();
    }
    all_valid(path, 3, 40);
}

static void sentencepiece_vocabulary(void **state) {
    (void)state;
    static const char path[] = TEST_DATA "/npm/gemma3/tokenizer.json";
    if (!qn_path_is_file(path)) {
        print_message("skipped: tokenizer gemma3 is not installed (tools/fetch_tokenizers.sh)\n");
        skip();
    }
    all_valid(path, 1, 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bundled_vocabulary),
        cmocka_unit_test(large_vocabulary),
        cmocka_unit_test(sentencepiece_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
