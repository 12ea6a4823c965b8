// The parts of the tokenizer on vocabularies small enough to check by hand.
#include "testing.h"

#include "core/buf.h"

#include "core/mem.h"
#include "core/pool.h"
#include "tokenizer/object.h"

#include <stdio.h>
#include <stdlib.h>

#define MARK "\xe2\x96\x81" // U+2581

// --- helpers -------------------------------------------------------------------------------------

static qn_tokenizer *from_json(const char *json) {
    qn_err err;
    qn_tokenizer *tokenizer = NULL;
    ASSERT_OK(qn_tokenizer_from_json(&tokenizer, json, strlen(json), "test", &err));
    return tokenizer;
}

// Encodes and compares with pieces joined by '|', as the vocabulary spells them.
static void check_pieces(const qn_tokenizer *tokenizer, qn_str text, const qn_tokenize_opts *opts,
                         const char *want) {
    qn_err err;
    int32_t *ids;
    size_t n;
    qn_buf got = {0};
    ASSERT_OK(qn_tokenize(&ids, &n, tokenizer, text.data, text.size, opts, &err));
    for (size_t i = 0; i < n; i++) {
        size_t size;
        const char *piece = qn_tokenizer_piece(tokenizer, ids[i], &size);
        assert_non_null(piece);
        qn_buf_text(&got, i ? "|" : "");
        qn_buf_add(&got, piece, size);
    }
    assert_string_equal(got.data ? got.data : "", want);
    qn_buf_deinit(&got);
    qn_free(ids);
}

static void check(const qn_tokenizer *tokenizer, const char *text, const char *want) {
    check_pieces(tokenizer, qn_str_of(text), NULL, want);
}

static void check_special(const qn_tokenizer *tokenizer, const char *text, const char *want) {
    check_pieces(tokenizer, qn_str_of(text), &QN_INIT(qn_tokenize_opts, .special = true), want);
}

#define BYTE_LEVEL                                                                                 \
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":%s}"

// --- byte-pair encoding --------------------------------------------------------------------------

static void merges_follow_rank_then_place(void **state) {
    (void)state;
    qn_tokenizer *t = from_json(
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"bc\":4,\"abc\":"
        "5,"
        "\"aa\":6,\"aaaa\":7},\"merges\":[\"b c\",[\"a\",\"a\"],\"a b\",\"a bc\",\"aa aa\"]}}");
    check(t, "abc", "abc"); // b c first, then a bc
    check(t, "abab", "ab|ab");
    check(t, "aaa", "aa|a"); // leftmost of equal rank
    check(t, "aaaaa", "aaaa|a");
    check(t, "aab", "aa|b"); // a a ranks before a b
    check(t, "xaxb", "a|b"); // no unknown token: dropped
    check(t, "", "");
    qn_tokenizer_close(t);
}

static void whole_words_win_only_if_the_file_says_so(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        char json[512];
        snprintf(json, sizeof json,
                 "{" BYTE_LEVEL
                 ",\"model\":{\"type\":\"BPE\",\"ignore_merges\":%s,\"vocab\":{\"a\":0,"
                 "\"b\":1,\"\xc4\xa0\":2,\"\xc4\xa0"
                 "ab\":3,\"ab\":4},\"merges\":[]}}",
                 "true", i ? "true" : "false");
        qn_tokenizer *t = from_json(json);
        check(t, "ab ab",
              i ? "ab|\xc4\xa0"
                  "ab"
                : "a|b|\xc4\xa0|a|b");
        qn_tokenizer_close(t);
    }
}

// Merges over 'a'..'d' at random, and the same algorithm done naively.
enum { N_LETTERS = 4, N_IDS = 40 };

typedef struct naive {
    char pieces[N_IDS][64];
    int left[N_IDS], right[N_IDS]; // of a merged piece; its rank is its id
    int n;
} naive;

static void naive_encode(const naive *v, const char *word, int *ids, size_t *n) {
    *n = strlen(word);
    for (size_t i = 0; i < *n; i++) ids[i] = word[i] - 'a';
    for (;;) {
        int best = v->n;
        size_t at = 0;
        for (size_t i = 0; i + 1 < *n; i++) {
            for (int m = N_LETTERS; m < best; m++) {
                if (v->left[m] == ids[i] && v->right[m] == ids[i + 1]) best = m, at = i;
            }
        }
        if (best == v->n) return;
        ids[at] = best;
        memmove(ids + at + 1, ids + at + 2, (*n - at - 2) * sizeof *ids);
        --*n;
    }
}

static void make_naive(naive *v, qn_buf *json) {
    qn_buf merges = {0};
    qn_buf_text(json, "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"d\":3");
    v->n = N_LETTERS;
    for (int i = 0; i < N_LETTERS; i++) snprintf(v->pieces[i], 2, "%c", 'a' + i);
    while (v->n < N_IDS) {
        const int left = rand() % v->n, right = rand() % v->n;
        char joined[130];
        snprintf(joined, sizeof joined, "%s%s", v->pieces[left], v->pieces[right]);
        bool is_new = strlen(joined) < 12;
        for (int i = 0; i < v->n; i++) is_new &= strcmp(v->pieces[i], joined) != 0;
        if (!is_new) continue;
        qn_buf_printf(json, ",\"%s\":%d", joined, v->n);
        qn_buf_printf(&merges, "%s\"%s %s\"", merges.size ? "," : "", v->pieces[left],
                      v->pieces[right]);
        v->left[v->n] = left;
        v->right[v->n] = right;
        memcpy(v->pieces[v->n++], joined, 13);
    }
    qn_buf_printf(json, "},\"merges\":[%s]}}", merges.data);
    qn_buf_deinit(&merges);
}

static void scan_and_heap_merge_as_the_naive_way(void **state) {
    (void)state;
    qn_err err;
    srand(11);
    for (int round = 0; round < 40; round++) {
        naive v;
        qn_buf json = {0};
        make_naive(&v, &json);
        qn_tokenizer *t = from_json(json.data);
        for (int i = 0; i < 40; i++) {
            char word[301];
            int want[300];
            const int size = 1 + rand() % 300;
            for (int j = 0; j < size; j++) word[j] = (char)('a' + rand() % N_LETTERS);
            word[size] = 0;
            size_t n_want, n;
            int32_t *ids;
            naive_encode(&v, word, want, &n_want);
            ASSERT_OK(qn_tokenize(&ids, &n, t, word, (size_t)size, NULL, &err));
            assert_int_equal(n, n_want);
            for (size_t j = 0; j < n; j++) assert_int_equal(ids[j], want[j]);
            qn_free(ids);
        }
        qn_tokenizer_close(t);
        qn_buf_deinit(&json);
    }
}

static void unknown_characters_become_bytes_or_unknown(void **state) {
    (void)state;
    qn_tokenizer *t = from_json(
        "{\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\",\"fuse_unk\":true,\"byte_fallback\":true,"
        "\"vocab\":{\"?\":0,\"a\":1,\"<0xC3>\":2,\"<0xA9>\":3,\"<0xFF>\":4},\"merges\":[]}}");
    check(t, "a\xc3\xa9", "a|<0xC3>|<0xA9>");
    check(t, "xyaz", "?|a|?");         // a run gives one
    check(t, "\xc3\xaa\xc3\xaa", "?"); // one byte has no piece: the whole character is unknown
    check(t, "a\xff", "a|<0xFF>");     // a stray byte
    check(t, "a\xfe", "a|?");
    qn_tokenizer_close(t);
    t = from_json("{\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"a\":1,"
                  "\"\xef\xbf\xbd\":2},\"merges\":[]}}");
    check(t, "xyaz", "?|?|a|?");                              // not fused
    check(t, "a\xff\xe2\x82", "a|\xef\xbf\xbd|\xef\xbf\xbd"); // no byte path: repaired
    qn_tokenizer_close(t);
}

static qn_tokenizer *all_bytes(void) {
    qn_letters letters;
    qn_buf json = {0};
    qn_letters_init(&letters);
    qn_buf_printf(&json,
                  "{" BYTE_LEVEL ",\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":"
                  "\"BPE\",\"merges\":[],\"vocab\":{",
                  "true");
    for (int i = 0; i < 256; i++) {
        const char *escape = i == '"' || i == '\\' ? "\\" : "";
        qn_buf_printf(&json, "%s\"%s%.*s\":%d", i ? "," : "", escape, letters.size[i],
                      letters.text[i], i);
    }
    qn_buf_text(&json, "}}}");
    qn_tokenizer *t = from_json(json.data);
    qn_buf_deinit(&json);
    return t;
}

static void every_byte_survives_a_byte_level_tokenizer(void **state) {
    (void)state;
    qn_err err;
    qn_tokenizer *t = all_bytes();
    char text[1024];
    srand(5);
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)(i < 256 ? (int)i : rand());
    int32_t *ids;
    size_t n;
    ASSERT_OK(qn_tokenize(&ids, &n, t, text, sizeof text, NULL, &err));
    assert_int_equal(n, sizeof text);
    for (size_t i = 0; i < n; i++) assert_int_equal(ids[i], (unsigned char)text[i]);
    qn_free(ids);
    qn_tokenizer_close(t);
}

// --- SentencePiece -------------------------------------------------------------------------------

static void add_varint(qn_buf *out, uint64_t value) {
    do {
        const char byte = (char)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
        qn_buf_add(out, &byte, 1);
        value >>= 7;
    } while (value);
}

static void add_number(qn_buf *out, unsigned field, int64_t value) {
    add_varint(out, field << 3);
    add_varint(out, (uint64_t)value);
}

static void add_bytes(qn_buf *out, unsigned field, const void *bytes, size_t n) {
    add_varint(out, field << 3 | 2);
    add_varint(out, n);
    qn_buf_add(out, bytes, n);
}

typedef struct sp_piece {
    const char *text;
    float score;
    int type; // 0: normal
} sp_piece;

typedef struct sp_file {
    sp_piece pieces[24];
    int model_type;
    bool byte_fallback, dummy_prefix, squeeze;
    const void *charsmap;
    size_t charsmap_size;
} sp_file;

static void write_model(qn_buf *out, const sp_file *file) {
    qn_buf part = {0};
    for (int i = 0; file->pieces[i].text; i++) {
        qn_buf_clear(&part);
        add_bytes(&part, 1, file->pieces[i].text, strlen(file->pieces[i].text));
        add_varint(&part, 2 << 3 | 5);
        qn_buf_add(&part, &file->pieces[i].score, 4);
        if (file->pieces[i].type) add_number(&part, 3, file->pieces[i].type);
        add_bytes(out, 1, part.data, part.size);
    }
    qn_buf_clear(&part);
    add_number(&part, 3, file->model_type);
    add_number(&part, 35, file->byte_fallback);
    add_number(&part, 41, -1);
    add_number(&part, 42, -1);
    add_bytes(out, 2, part.data, part.size);
    qn_buf_clear(&part);
    if (file->charsmap_size) add_bytes(&part, 2, file->charsmap, file->charsmap_size);
    add_number(&part, 3, file->dummy_prefix);
    add_number(&part, 4, file->squeeze);
    add_bytes(out, 3, part.data, part.size);
    qn_buf_deinit(&part);
}

static qn_tokenizer *from_pieces(const sp_file *file) {
    qn_err err;
    qn_buf bytes = {0};
    qn_tokenizer *tokenizer = NULL;
    write_model(&bytes, file);
    ASSERT_OK(qn_tokenizer_from_model(&tokenizer, bytes.data, bytes.size, "test", &err));
    qn_buf_deinit(&bytes);
    return tokenizer;
}

static void higher_scores_merge_first(void **state) {
    (void)state;
    qn_tokenizer *t = from_pieces(&(sp_file){.model_type = 2,
                                             .dummy_prefix = true,
                                             .pieces = {{"<unk>", 0, 2},
                                                        {MARK, -9, 0},
                                                        {"a", -5, 0},
                                                        {"b", -5, 0},
                                                        {"c", -5, 0},
                                                        {"ab", -2, 0},
                                                        {"bc", -1, 0},
                                                        {MARK "a", -3, 0},
                                                        {"aa", -2, 0},
                                                        {"x", -4, 5},
                                                        {"<sep>", 0, 4},
                                                        {"xy", -1, 0}}});
    check(t, "abc", MARK "a|bc");
    check(t, "ab", MARK "|ab");
    check(t, "aaa", MARK "|aa|a"); // "aa" and MARK "a" overlap: -2 beats -3; leftmost "aa"
    check(t, "", "");
    check(t, "b c", MARK "|b|" MARK "|c");
    check(t, "zzb", MARK "|<unk>|b");      // one unknown for a run
    check(t, "xb", MARK "|<unk>|b");       // unused pieces take no part
    check(t, "xyb", MARK "|xy|b");         // but their text can be part of another piece
    check(t, "a<sep>b", MARK "a|<sep>|b"); // user-defined ones always
    qn_tokenizer_close(t);
}

static void extra_spaces_are_squeezed_when_asked(void **state) {
    (void)state;
    sp_file file = {.model_type = 2,
                    .byte_fallback = true,
                    .pieces = {{"<unk>", 0, 2},
                               {MARK, -9, 0},
                               {"a", -5, 0},
                               {"<0xFF>", 0, 6},
                               {"<0xC3>", 0, 6},
                               {"<0xA9>", 0, 6}}};
    qn_tokenizer *t = from_pieces(&file);
    check(t, "  a  a ", MARK "|" MARK "|a|" MARK "|" MARK "|a|" MARK);
    check(t, "\xc3\xa9\xff", "<0xC3>|<0xA9>|<0xFF>");
    qn_tokenizer_close(t);
    file.squeeze = true;
    t = from_pieces(&file);
    check(t, "  a  a ", "a|" MARK "|a");
    check(t, "   ", "");
    qn_tokenizer_close(t);
    file.dummy_prefix = true;
    t = from_pieces(&file);
    check(t, "  a  a ", MARK "|a|" MARK "|a");
    qn_tokenizer_close(t);
}

// --- unigram -------------------------------------------------------------------------------------

static void unigram_takes_the_best_path(void **state) {
    (void)state;
    qn_tokenizer *t = from_pieces(&(sp_file){.model_type = 1,
                                             .pieces = {{"<unk>", 0, 2},
                                                        {"a", -1, 0},
                                                        {"b", -1, 0},
                                                        {"ab", -2, 0},
                                                        {"abc", -4, 0},
                                                        {"c", -1.5f, 0},
                                                        {"bc", -1.75f, 0},
                                                        {"dd", -1, 0}}});
    check(t, "ab", "ab");    // a|b and ab tie at -2: the longer last piece was found first
    check(t, "abc", "a|bc"); // -2.75 beats ab|c (-3.5), a|b|c (-3.5), abc (-4)
    check(t, "add", "a|dd");
    check(t, "ad", "a|<unk>"); // "d" alone is not a piece
    check(t, "xyzzyb", "<unk>|b");
    qn_tokenizer_close(t);
    t = from_json(
        "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"byte_fallback\":true,\"vocab\":[[\"?\",0],"
        "[\"a\",-1],[\"<0xC3>\",-5],[\"<0xA9>\",-5]]}}");
    check(t,
          "a\xc3\xa9"
          "a",
          "a|<0xC3>|<0xA9>|a");
    check(t, "zz", "?");
    qn_tokenizer_close(t);
}

// The best sum of scores by trying every way to cut.
static double best_sum(const double *scores, const char *const *pieces, int n, const char *text) {
    if (!*text) return 0;
    double best = -1e9;
    for (int i = 0; i < n; i++) {
        const size_t size = strlen(pieces[i]);
        if (strncmp(text, pieces[i], size) != 0) continue;
        const double sum = scores[i] + best_sum(scores, pieces, n, text + size);
        if (sum > best) best = sum;
    }
    return best;
}

static void unigram_agrees_with_trying_every_path(void **state) {
    (void)state;
    qn_err err;
    static const char *const pieces[] = {"a",  "b",   "ab",  "ba",   "aa",
                                         "bb", "aba", "bab", "abab", "bba"};
    enum { N = sizeof pieces / sizeof *pieces };
    srand(3);
    for (int round = 0; round < 60; round++) {
        double scores[N];
        qn_buf json = {0};
        qn_buf_text(&json, "{\"model\":{\"type\":\"Unigram\",\"unk_id\":null,\"vocab\":[");
        for (int i = 0; i < N; i++) {
            scores[i] = -(rand() % 1000 + 1) / 128.0;
            qn_buf_printf(&json, "%s[\"%s\",%.17g]", i ? "," : "", pieces[i], scores[i]);
        }
        qn_buf_text(&json, "]}}");
        qn_tokenizer *t = from_json(json.data);
        char text[13];
        for (int i = 0; i < 12; i++) text[i] = (char)('a' + rand() % 2);
        text[12] = 0;
        int32_t *ids;
        size_t n;
        double sum = 0;
        ASSERT_OK(qn_tokenize(&ids, &n, t, text, 12, NULL, &err));
        for (size_t i = 0; i < n; i++) sum += scores[ids[i]];
        assert_true(sum == best_sum(scores, pieces, N, text)); // multiples of 1/128: exact
        qn_free(ids);
        qn_tokenizer_close(t);
        qn_buf_deinit(&json);
    }
}

// --- bounds --------------------------------------------------------------------------------------

static void check_steps(const qn_tokenizer *t, const char *unit, const char *what) {
    qn_err err;
    enum { SIZE = 1 << 20 };
    char *text = qn_alloc(SIZE, 1);
    assert_non_null(text);
    for (size_t i = 0; i < SIZE; i++) text[i] = unit[i % strlen(unit)];
    int32_t *ids;
    size_t n;
    qn_tokenize_stats stats = {.max_ids = INT32_MAX};
    ASSERT_OK(qn_tokenize_counted(&ids, &n, t, (qn_str){text, SIZE}, NULL, &stats, &err));
    // n log2 n of the heap, with a small factor; quadratic would be 2^40.
    if (stats.steps > (uint64_t)SIZE * 64)
        fail_msg("%s: %llu steps", what, (unsigned long long)stats.steps);
    assert_true(n > 0);
    qn_free(ids);
    qn_free(text);
}

static void one_long_word_is_not_quadratic(void **state) {
    (void)state;
    qn_tokenizer *t = from_json(
        "{"
        "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"aa\":1,\"aaaa\":2,\"aaaaaaaa\":3,"
        "\"b\":4,\"ab\":5,\"aaa\":6},\"merges\":[\"a a\",\"aa aa\",\"aaaa aaaa\",\"a b\",\"aa "
        "a\"]}}");
    check_steps(t, "a", "byte-level");
    check_steps(t, "aab", "byte-level, mixed");
    qn_tokenizer_close(t);
    sp_file file = {.model_type = 2,
                    .pieces = {{"<unk>", 0, 2},
                               {"a", -5, 0},
                               {"aa", -1, 0},
                               {"aaa", -2, 0},
                               {"aaaa", -3, 0},
                               {"aaaaa", -2.5f, 0},
                               {"aaaaaaaaaaaaaaaa", -1, 0}}};
    t = from_pieces(&file);
    check_steps(t, "a", "SentencePiece");
    qn_tokenizer_close(t);
    file.model_type = 1;
    t = from_pieces(&file);
    check_steps(t, "a", "unigram");
    qn_tokenizer_close(t);
}

static void too_many_tokens_are_refused(void **state) {
    (void)state;
    qn_err err;
    qn_tokenizer *t = all_bytes();
    int32_t *ids = NULL;
    size_t n = 77;
    qn_tokenize_stats stats = {.max_ids = 5};
    ASSERT_FAILS(qn_tokenize_counted(&ids, &n, t, qn_str_of("abcdef"), NULL, &stats, &err),
                 QN_LIMIT, "more than 5 tokens");
    assert_null(ids);
    assert_int_equal(n, 77);
    ASSERT_OK(qn_tokenize_counted(&ids, &n, t, qn_str_of("abcde"), NULL, &stats, &err));
    qn_free(ids);
    qn_tokenizer_close(t);
}

// --- added tokens --------------------------------------------------------------------------------

static void added_tokens_are_taken_whole(void **state) {
    (void)state;
    qn_tokenizer *t =
        from_json("{\"added_tokens\":["
                  "{\"id\":10,\"content\":\"<s>\",\"special\":true},"
                  "{\"id\":11,\"content\":\"<s>>\",\"special\":true},"
                  "{\"id\":12,\"content\":\"<think>\",\"special\":false,\"normalized\":false},"
                  "{\"id\":13,\"content\":\"[L]\",\"special\":true,\"lstrip\":true},"
                  "{\"id\":14,\"content\":\"[R]\",\"special\":true,\"rstrip\":true},"
                  "{\"id\":15,\"content\":\"do\",\"special\":false,\"single_word\":true,"
                  "\"normalized\":false},"
                  "{\"id\":16,\"content\":\"ABC\",\"special\":false,\"normalized\":true}],"
                  "\"normalizer\":{\"type\":\"Lowercase\"},"
                  "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"<\":2,\"s\":3,\">\":4,"
                  "\" \":5,\"d\":6,"
                  "\"o\":7,\"c\":8},\"merges\":[]}}");
    check_special(t, "a<s>b", "a|<s>|b");
    check(t, "a<s>b", "a|<|s|>|b");          // special ones only when asked
    check_special(t, "<s>><s>", "<s>>|<s>"); // the longest
    check(t, "a<think>", "a|<think>");       // others always
    check_special(t, "a \t [L] b", "a|[L]| |b");
    check_special(t, "a [R] \n b", "a| |[R]|b");
    check(t, "do odo do", "do| |o|d|o| |do");
    check(t, "aABCb", "a|ABC|b");
    check(t, "aaBcb", "a|ABC|b"); // looked for after lower-casing
    assert_int_equal(qn_tokenizer_find(t, "<think>", 7), 12);
    assert_int_equal(qn_tokenizer_find(t, "<thin", 5), -1);
    assert_null(qn_tokenizer_piece(t, 9, NULL)); // a hole
    assert_null(qn_tokenizer_piece(t, -1, NULL));
    assert_null(qn_tokenizer_piece(t, 17, NULL));
    qn_tokenizer_close(t);
}

static void ends_are_added_as_the_template_says(void **state) {
    (void)state;
    qn_tokenizer *t = from_json(
        "{\"added_tokens\":[{\"id\":1,\"content\":\"<s>\",\"special\":true},{\"id\":2,\"content\":"
        "\"</s>\","
        "\"special\":true}],\"post_processor\":{\"type\":\"Sequence\",\"processors\":[{\"type\":"
        "\"ByteLevel\"},"
        "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},{"
        "\"Sequence\":"
        "{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"</"
        "s>\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[1]},"
        "\"</"
        "s>\":{\"ids\":[2]}}}]},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}");
    check_pieces(t, qn_str_of("a"), &QN_INIT(qn_tokenize_opts, .add_ends = true), "<s>|a|</s>");
    check_pieces(t, qn_str_of(""), &QN_INIT(qn_tokenize_opts, .add_ends = true), "<s>|</s>");
    check(t, "a", "a");
    const qn_tokenizer_info info = tokenizer_info(t);
    assert_int_equal(info.bos, 1);
    assert_int_equal(info.eos, 2);
    assert_true(info.add_bos && info.add_eos);
    assert_true(qn_tokenizer_is_end(t, 2));
    assert_false(qn_tokenizer_is_end(t, 1));
    assert_false(qn_tokenizer_is_end(t, -1));
    assert_int_equal(info.n_tokens, 3);
    qn_tokenizer_close(t);
}

// --- decoding ------------------------------------------------------------------------------------

static void check_decode(const qn_tokenizer *t, const int32_t *ids, size_t n, bool special,
                         const char *want) {
    qn_err err;
    char *text;
    size_t size;
    ASSERT_OK(qn_detokenize(&text, &size, t, ids, n, special, &err));
    assert_string_equal(text, want);
    assert_int_equal(size, strlen(want));
    qn_free(text);
    if (special) return;
    qn_decoder *decoder;
    ASSERT_OK(qn_decoder_create(&decoder, t, &err));
    for (int round = 0; round < 2; round++) { // the second time after it started anew
        qn_buf parts = {0};
        const char *part;
        for (size_t i = 0; i < n; i++) {
            ASSERT_OK(qn_decoder_next(&part, &size, decoder, ids[i], &err));
            assert_true(qn_unicode_valid_size((qn_str){part, size}) == size);
            qn_buf_add(&parts, part, size);
        }
        ASSERT_OK(qn_decoder_finish(&part, &size, decoder, &err));
        qn_buf_add(&parts, part, size);
        assert_string_equal(parts.data ? parts.data : "", want);
        qn_buf_deinit(&parts);
    }
    qn_decoder_destroy(decoder);
}

#define IDS(...) (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / 4

static void broken_characters_become_replacement_characters(void **state) {
    (void)state;
    qn_err err;
    qn_tokenizer *t = all_bytes();
    check_decode(t, IDS('a', 0xc3, 0xa9, 'b'), false,
                 "a\xc3\xa9"
                 "b");
    check_decode(t, IDS(0xf0, 0x9f, 0x99, 0x82), false, "\xf0\x9f\x99\x82");
    check_decode(t, IDS(0xf0, 0x9f, 0x99), false, "\xef\xbf\xbd"); // cut off: one
    check_decode(t, IDS(0xf0, 0x9f, 'a'), false,
                 "\xef\xbf\xbd"
                 "a");
    check_decode(t, IDS(0xff, 0xfe), false, "\xef\xbf\xbd\xef\xbf\xbd"); // no beginning: each
    check_decode(t, IDS(0xe0, 0x80, 'a'), false,
                 "\xef\xbf\xbd\xef\xbf\xbd"
                 "a"); // 80 cannot follow e0
    check_decode(t, IDS(0xed, 0xa0, 0x80), false, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    check_decode(t, IDS(0xc3, 0xc3, 0xa9), false, "\xef\xbf\xbd\xc3\xa9");
    char *text = NULL;
    size_t size;
    ASSERT_FAILS(qn_detokenize(&text, &size, t, IDS(1, 256), true, &err), QN_ARGUMENT,
                 "id 256 (number 2), this model has 0 to 255");
    ASSERT_FAILS(qn_detokenize(&text, &size, t, IDS(-1), true, &err), QN_ARGUMENT, "id -1");
    assert_null(text);
    ASSERT_OK(qn_detokenize(&text, &size, t, NULL, 0, true, &err));
    assert_string_equal(text, "");
    qn_free(text);
    qn_tokenizer_close(t);
}

static void any_split_of_a_stream_gives_the_same_text(void **state) {
    (void)state;
    qn_tokenizer *t = all_bytes();
    srand(9);
    for (int round = 0; round < 300; round++) {
        int32_t ids[24];
        qn_buf raw = {0}, want = {0};
        for (int i = 0; i < 24; i++) {
            static const unsigned char some[] = {0xe2, 0x82, 0xac, 0xf0, 0x9f, 0x99,
                                                 'a',  0xc3, 0xff, 0xed, 0xa0};
            const char byte = (char)some[rand() % (int)sizeof some];
            ids[i] = (unsigned char)byte;
            qn_buf_add(&raw, &byte, 1);
        }
        qn_unicode_repair(&want, (qn_str){raw.data, raw.size});
        check_decode(t, ids, 24, false, want.data);
        qn_buf_deinit(&raw);
        qn_buf_deinit(&want);
    }
    qn_tokenizer_close(t);
}

static void decoder_steps_do_what_they_say(void **state) {
    (void)state;
#define VOCAB                                                                                      \
    "\"added_tokens\":[{\"id\":0,\"content\":\"<s>\",\"special\":true}],\"model\":{\"type\":"      \
    "\"BPE\","                                                                                     \
    "\"vocab\":{\"<s>\":0,\"" MARK "\":1,\"" MARK                                                  \
    "a\":2,\"b\":3,\"<0xC3>\":4,\"<0xA9>\":5,\"" MARK MARK "\":6},"                                \
    "\"merges\":[]}}"
    qn_tokenizer *t = from_json(
        "{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":"
        "{\"String\":\"" MARK
        "\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
        "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}," VOCAB);
    check_decode(t, IDS(0, 2, 2, 4, 5, 3), false,
                 "a a\xc3\xa9"
                 "b");
    check_decode(t, IDS(0, 2), true, "<s> a"); // nothing to strip behind text
    check_decode(t, IDS(1, 2), false, " a");   // one space only
    check_decode(t, IDS(6, 3), false, " b");
    check_decode(t, IDS(4, 3), false,
                 "\xef\xbf\xbd"
                 "b");
    qn_tokenizer_close(t);
    t = from_json("{\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"" MARK
                  "\",\"prepend_scheme\":\"always\"}," VOCAB);
    check_decode(t, IDS(0, 2, 2), false, "a a");
    check_decode(t, IDS(6, 2), false, " a"); // the first piece loses all its marks
    qn_tokenizer_close(t);
    t = from_json("{\"decoder\":null," VOCAB);
    check_decode(t, IDS(3, 3), false, "b b"); // as the library that made the file has it
    qn_tokenizer_close(t);
}

static void sentencepiece_drops_the_space_it_added(void **state) {
    (void)state;
    sp_file file = {
        .model_type = 2,
        .dummy_prefix = true,
        .pieces = {{"<unk>", 0, 2}, {"<s>", 0, 3}, {MARK, -9, 0}, {MARK "a", -5, 0}, {"b", -5, 0}}};
    qn_tokenizer *t = from_pieces(&file);
    check_decode(t, IDS(1, 3, 3), false, "a a");
    check_decode(t, IDS(2, 3), false, " a");
    check_decode(t, IDS(4, 3), false, "b a");
    check_decode(t, IDS(0, 3), false, "a"); // unknown is special
    qn_tokenizer_close(t);
    file.squeeze = true;
    t = from_pieces(&file);
    check_decode(t, IDS(2, 2, 3), false, "a");
    qn_tokenizer_close(t);
}

// --- threads -------------------------------------------------------------------------------------

typedef struct shared_work {
    const qn_tokenizer *tokenizer;
    bool same[64];
} shared_work;

static void encode_piece(void *arg, int64_t piece) {
    shared_work *work = arg;
    char text[2000];
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)((size_t)piece * 31 + i * 7);
    int32_t *ids;
    size_t n;
    if (qn_tokenize(&ids, &n, work->tokenizer, text, sizeof text, NULL, NULL)) return;
    bool same = n == sizeof text;
    for (size_t i = 0; same && i < n; i++) same = ids[i] == (unsigned char)text[i];
    work->same[piece] = same;
    qn_free(ids);
}

static void threads_share_a_tokenizer(void **state) {
    (void)state;
    shared_work work = {.tokenizer = all_bytes()};
    qn_err err;
    qn_pool *pool;
    ASSERT_OK(qn_pool_create(&pool, 4, &err));
    qn_pool_run(pool, 64, encode_piece, &work);
    qn_pool_destroy(pool);
    for (int i = 0; i < 64; i++) assert_true(work.same[i]);
    qn_tokenizer_close((qn_tokenizer *)work.tokenizer);
}

// The bytes of a text's tokens are the text, also where a character is several tokens.
static void bytes_of_tokens_make_the_text(void **state) {
    static const char text[] = "Gr\xc3\xbc\xc3\x9f dich, \xf0\x9f\x8c\xbe!\n";
    qn_err err;
    qn_tokenizer *t;
    int32_t *ids;
    size_t n;
    qn_buf all = {0};
    (void)state;
    ASSERT_OK(qn_tokenizer_open(&t, TEST_DATA "/mini/qwen3/tokenizer.json", &err));
    ASSERT_OK(qn_tokenize(&ids, &n, t, text, sizeof text - 1, NULL, &err));
    assert_true(n > 5);
    for (size_t i = 0; i < n; i++) {
        char *bytes;
        size_t size;
        ASSERT_OK(qn_tokenizer_bytes(&bytes, &size, t, ids[i], &err));
        qn_buf_add(&all, bytes, size);
        qn_free(bytes);
    }
    assert_int_equal(all.size, sizeof text - 1);
    assert_memory_equal(all.data, text, all.size);
    char *bytes;
    size_t size;
    ASSERT_FAILS(qn_tokenizer_bytes(&bytes, &size, t, -1, &err), QN_ARGUMENT, "-1");
    qn_buf_deinit(&all);
    qn_free(ids);
    qn_tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_of_tokens_make_the_text),
        cmocka_unit_test(merges_follow_rank_then_place),
        cmocka_unit_test(whole_words_win_only_if_the_file_says_so),
        cmocka_unit_test(scan_and_heap_merge_as_the_naive_way),
        cmocka_unit_test(unknown_characters_become_bytes_or_unknown),
        cmocka_unit_test(every_byte_survives_a_byte_level_tokenizer),
        cmocka_unit_test(higher_scores_merge_first),
        cmocka_unit_test(extra_spaces_are_squeezed_when_asked),
        cmocka_unit_test(unigram_takes_the_best_path),
        cmocka_unit_test(unigram_agrees_with_trying_every_path),
        cmocka_unit_test(one_long_word_is_not_quadratic),
        cmocka_unit_test(too_many_tokens_are_refused),
        cmocka_unit_test(added_tokens_are_taken_whole),
        cmocka_unit_test(ends_are_added_as_the_template_says),
        cmocka_unit_test(broken_characters_become_replacement_characters),
        cmocka_unit_test(any_split_of_a_stream_gives_the_same_text),
        cmocka_unit_test(decoder_steps_do_what_they_say),
        cmocka_unit_test(sentencepiece_drops_the_space_it_added),
        cmocka_unit_test(threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
