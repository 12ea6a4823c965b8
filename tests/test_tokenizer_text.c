// What happens to a text before the model sees it: normalisers, patterns, splits.
#include "testing.h"

#include "core/mem.h"
#include "core/utf8.h"
#include "tokenizer/object.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <utf8proc.h>

// --- normalisers ---------------------------------------------------------------------------------

static void check_norm(const qn_norm_step *step, const char *text, const char *want) {
    qn_err err;
    qn_norm norm = {.steps = {*step}, .n = 1};
    qn_norm_run run = {0};
    qn_str got;
    ASSERT_OK(qn_norm_apply(&got, &norm, &run, qn_str_of(text), &err));
    if (!qn_str_is(got, want))
        fail_msg("'%s' gives '%.*s', want '%s'", text, (int)got.size, got.data, want);
    qn_norm_run_deinit(&run);
}

static void normal_forms(void **state) {
    (void)state;
    static const struct {
        const char *text, *nfc, *nfd, *nfkc, *nfkd;
    } rows[] = {
        {"plain", "plain", "plain", "plain", "plain"},
        {"\xc3\xa9", "\xc3\xa9", "e\xcc\x81", "\xc3\xa9", "e\xcc\x81"},
        {"e\xcc\x81", "\xc3\xa9", "e\xcc\x81", "\xc3\xa9", "e\xcc\x81"},
        {"xe\xcc\x81y", "x\xc3\xa9y", "xe\xcc\x81y", "x\xc3\xa9y", "xe\xcc\x81y"},
        // fi ligature, full-width A, circled 1, Angstrom sign
        {"\xef\xac\x81", "\xef\xac\x81", "\xef\xac\x81", "fi", "fi"},
        {"\xef\xbc\xa1\xe2\x91\xa0", "\xef\xbc\xa1\xe2\x91\xa0", "\xef\xbc\xa1\xe2\x91\xa0", "A1",
         "A1"},
        {"\xe2\x84\xab", "\xc3\x85", "A\xcc\x8a", "\xc3\x85", "A\xcc\x8a"},
        // marks out of order: dot below (220) sorts before dot above (230)
        {"q\xcc\x87\xcc\xa3", "q\xcc\xa3\xcc\x87", "q\xcc\xa3\xcc\x87", "q\xcc\xa3\xcc\x87",
         "q\xcc\xa3\xcc\x87"},
        {"\xe1\xb8\x8b\xcc\xa3", "\xe1\xb8\x8d\xcc\x87", "d\xcc\xa3\xcc\x87",
         "\xe1\xb8\x8d\xcc\x87", "d\xcc\xa3\xcc\x87"},
        // Hangul: syllable and its parts
        {"\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab", "\xed\x95\x9c",
         "\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab", "\xed\x95\x9c",
         "\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab"},
        // stray bytes stay where they are
        {"\xff"
         "e\xcc\x81\xe2\x82",
         "\xff\xc3\xa9\xe2\x82",
         "\xff"
         "e\xcc\x81\xe2\x82",
         "\xff\xc3\xa9\xe2\x82",
         "\xff"
         "e\xcc\x81\xe2\x82"},
        // a base that is not ASCII
        {"\xc3\xbc\xcc\x84", "\xc7\x96", "u\xcc\x88\xcc\x84", "\xc7\x96", "u\xcc\x88\xcc\x84"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_norm(&(qn_norm_step){.kind = QN_NORM_FORM, .form = QN_NFC}, rows[i].text,
                   rows[i].nfc);
        check_norm(&(qn_norm_step){.kind = QN_NORM_FORM, .form = QN_NFD}, rows[i].text,
                   rows[i].nfd);
        check_norm(&(qn_norm_step){.kind = QN_NORM_FORM, .form = QN_NFKC}, rows[i].text,
                   rows[i].nfkc);
        check_norm(&(qn_norm_step){.kind = QN_NORM_FORM, .form = QN_NFKD}, rows[i].text,
                   rows[i].nfkd);
    }
}

// A short text in the middle of long ones, so that stretches begin and end at every place.
static void normal_forms_do_not_depend_on_stretches(void **state) {
    (void)state;
    qn_err err;
    srand(2);
    static const char *const parts[] = {"a",
                                        " ",
                                        "e\xcc\x81",
                                        "\xc3\xa9",
                                        "\xe4\xbd\xa0",
                                        "\xcc\xa3",
                                        "\xcc\x87",
                                        "zz",
                                        "\xe1\x84\x92\xe1\x85\xa1"};
    for (int round = 0; round < 200; round++) {
        qn_buf text = {0}, whole = {0}, again = {0};
        for (int i = 0; i < 200; i++) qn_buf_text(&text, parts[rand() % 9]);
        ASSERT_OK(qn_unicode_normalize(&whole, (qn_str){text.data, text.size}, QN_NFC, &err));
        // NFC of NFD of the text is the NFC, and NFD takes other stretches.
        qn_buf apart = {0};
        ASSERT_OK(qn_unicode_normalize(&apart, (qn_str){text.data, text.size}, QN_NFD, &err));
        ASSERT_OK(qn_unicode_normalize(&again, (qn_str){apart.data, apart.size}, QN_NFC, &err));
        assert_string_equal(whole.data, again.data);
        qn_buf_deinit(&text);
        qn_buf_deinit(&whole);
        qn_buf_deinit(&again);
        qn_buf_deinit(&apart);
    }
}

// Every character, alone and among marks, against the library's own function.
static void every_character_normalizes_as_in_utf8proc(void **state) {
    (void)state;
    qn_err err;
    static const char *const behind[] = {
        "", "\xcc\x81", "\xe3\x82\x99", "\xcc\x87\xcc\xa3", "\xe1\x86\xa8", "\xcc\xb8x"};
    for (uint32_t c = 1; c < 0x30000; c++) {
        char one[8];
        const size_t n = qn_utf8_encode(c, one);
        if (n == 0) continue;
        for (size_t i = 0; i < sizeof behind / sizeof *behind; i++) {
            char text[32];
            snprintf(text, sizeof text, "aA%.*s%s", (int)n, one, behind[i]);
            qn_buf got = {0};
            ASSERT_OK(qn_unicode_normalize(&got, qn_str_of(text), QN_NFC, &err));
            utf8proc_uint8_t *want = utf8proc_NFC((const utf8proc_uint8_t *)text);
            if (strcmp(got.data, (const char *)want) != 0) fail_msg("U+%04X, %zu", c, i);
            free(want);
            qn_buf_deinit(&got);
        }
    }
}

static void a_long_run_of_marks_is_sorted_at_once(void **state) {
    (void)state;
    qn_err err;
    enum { N = 200000 }; // pairs; swapping neighbours would take 10^10 steps
    qn_buf text = {0}, got = {0};
    qn_buf_text(&text, "a");
    for (int i = 0; i < N; i++) qn_buf_text(&text, "\xcc\x81\xcc\xa3"); // 230, 220
    const clock_t start = clock();
    ASSERT_OK(qn_unicode_normalize(&got, (qn_str){text.data, text.size}, QN_NFD, &err));
    assert_true(clock() - start < 10 * CLOCKS_PER_SEC);
    assert_int_equal(got.size, text.size);
    for (size_t i = 0; i < 2 * N; i++)
        assert_memory_equal(got.data + 1 + 2 * i, i < N ? "\xcc\xa3" : "\xcc\x81", 2);
    qn_buf_deinit(&text);
    qn_buf_deinit(&got);
}

static void other_normalizers(void **state) {
    (void)state;
    check_norm(&(qn_norm_step){.kind = QN_NORM_LOWER}, "AbC\xc3\x89\xc4\xb0\xff",
               "abc\xc3\xa9i\xcc\x87\xff");
    check_norm(&(qn_norm_step){.kind = QN_NORM_STRIP_ACCENTS}, "e\xcc\x81x", "ex");
    const qn_norm_step both = {.kind = QN_NORM_STRIP, .left = true, .right = true};
    const qn_norm_step left = {.kind = QN_NORM_STRIP, .left = true};
    const qn_norm_step right = {.kind = QN_NORM_STRIP, .right = true};
    check_norm(&both, " \t a b \xe3\x80\x80", "a b");
    check_norm(&left, " a ", "a ");
    check_norm(&right, " a ", " a");
    check_norm(&both, "  ", "");
    const qn_norm_step prepend = {.kind = QN_NORM_PREPEND, .to = {"_", 1}};
    check_norm(&prepend, "a", "_a");
    check_norm(&prepend, "", "");
    const qn_norm_step replace = {.kind = QN_NORM_REPLACE, .from = {"aa", 2}, .to = {"b", 1}};
    check_norm(&replace, "aaaa a aaa", "bb a ba");
}

static void replacing_by_pattern(void **state) {
    (void)state;
    qn_err err;
    static const struct {
        const char *pattern, *text, *want;
    } rows[] = {
        {" {2,}", "a  b   c d", "a_b_c d"},
        {"\\s+$", "a \n", "a_"},
        {"x*", "axb", "_a_b_"}, // empty matches too, but not right behind a match
        {"[0-9]",
         "a1\xff"
         "2",
         "a_\xff_"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        qn_norm_step step = {.kind = QN_NORM_REPLACE_REGEX, .to = {"_", 1}};
        ASSERT_OK(qn_regex_init(&step.regex, qn_str_of(rows[i].pattern), &err));
        check_norm(&step, rows[i].text, rows[i].want);
        qn_regex_deinit(&step.regex);
    }
}

// A double array with three keys: "A" -> "zz", "AB" -> "y", U+FF21 -> "A".
static size_t make_charsmap(unsigned char *out) {
    enum { N = 1024 };
    uint32_t units[N] = {0};
    const uint32_t root = 1;
    units[0] = root << 10;
    const uint32_t a = root ^ 'A', a_next = 256;
    units[a] = 'A' | 0x100 | (a ^ a_next) << 10;
    units[a_next] = 0x80000000u | 0;
    const uint32_t ab = a_next ^ 'B', ab_next = 512;
    units[ab] = 'B' | 0x100 | (ab ^ ab_next) << 10;
    units[ab_next] = 0x80000000u | 3;
    const uint32_t w1 = root ^ 0xef, n1 = 0x300;
    units[w1] = 0xef | (w1 ^ n1) << 10;
    const uint32_t w2 = n1 ^ 0xbc, n2 = 0x100 + 0x80;
    units[w2] = 0xbc | (w2 ^ n2) << 10;
    const uint32_t w3 = n2 ^ 0xa1, n3 = 0x240;
    units[w3] = 0xa1 | 0x100 | (w3 ^ n3) << 10;
    units[n3] = 0x80000000u | 5;
    const uint32_t bytes = sizeof units;
    memcpy(out, &bytes, 4);
    memcpy(out + 4, units, sizeof units);
    memcpy(out + 4 + sizeof units, "zz\0y\0A", 7);
    return 4 + sizeof units + 7;
}

static void precompiled_tables(void **state) {
    (void)state;
    qn_err err;
    unsigned char blob[8192];
    const size_t size = make_charsmap(blob);
    qn_norm_step step = {.kind = QN_NORM_SENTENCEPIECE};
    ASSERT_OK(qn_charsmap_init(&step.map, blob, size, &err));
    check_norm(&step, "A B",
               "zz\xe2\x96\x81"
               "B");
    check_norm(&step, "xABA", "xyzz"); // the longest prefix
    check_norm(&step, "\xef\xbc\xa1\xef\xbc", "A\xef\xbc");
    step.kind = QN_NORM_PRECOMPILED;
    check_norm(&step, "xAB\xef\xbc\xa1", "xzzBA"); // by grapheme: "A" and "B" are two
    qn_charsmap_deinit(&step.map);
}

static void broken_tables_are_refused_or_harmless(void **state) {
    (void)state;
    qn_err err;
    unsigned char blob[8192];
    const size_t size = make_charsmap(blob);
    qn_charsmap map;
    ASSERT_FAILS(qn_charsmap_init(&map, blob, 3, &err), QN_FORMAT, "3 bytes");
    ASSERT_FAILS(qn_charsmap_init(&map, blob, 4096, &err), QN_FORMAT, "a trie of 4096 bytes");
    ASSERT_FAILS(qn_charsmap_init(&map, "\x02\0\0\0ab", 6, &err), QN_FORMAT, "a trie of 2 bytes");
    srand(4);
    for (int round = 0; round < 3000; round++) { // offsets and places anywhere
        unsigned char bad[8192];
        memcpy(bad, blob, size);
        for (int i = 0; i < 40; i++) bad[4 + rand() % (int)(size - 4)] = (unsigned char)rand();
        ASSERT_OK(qn_charsmap_init(&map, bad, size, &err));
        static const char text[] = "ABC\xef\xbc\xa1";
        for (size_t i = 0; i < sizeof text; i++) {
            size_t n = 0;
            qn_str to = {0};
            if (!qn_charsmap_find(&map, (qn_str){text + i, sizeof text - i}, true, &n, &to))
                continue;
            assert_true(n > 0 && n <= sizeof text - i);
            assert_true(to.data + to.size <= map.texts + map.texts_size);
        }
        qn_charsmap_deinit(&map);
    }
}

// --- splitting -----------------------------------------------------------------------------------

static qn_status join_word(void *arg, const char *word, size_t size, qn_err *err) {
    (void)err;
    qn_buf_text(arg, ((qn_buf *)arg)->size ? "|" : "");
    qn_buf_add(arg, word, size);
    return QN_OK;
}

static void split(qn_buf *out, const qn_pretok *pretok, qn_str text) {
    qn_err err;
    qn_pretok_run run;
    ASSERT_OK(qn_pretok_run_init(&run, pretok, join_word, out, &err));
    ASSERT_OK(qn_pretok_apply(&run, text, true, &err));
    qn_pretok_run_deinit(&run);
}

static void check_split(const qn_pretok *pretok, const char *text, const char *want) {
    qn_buf got = {0};
    split(&got, pretok, qn_str_of(text));
    assert_string_equal(got.data ? got.data : "", want);
    qn_buf_deinit(&got);
}

static void behaviors(void **state) {
    (void)state;
    qn_err err;
    static const char *const wants[][2] = {
        [QN_SPLIT_REMOVED] = {"the|final|countdown", "-|-|-|-"},
        [QN_SPLIT_ISOLATED] = {"the|-|final|-|-|countdown|-", "the|-|final|-|-|countdown|-"},
        [QN_SPLIT_MERGE_PREVIOUS] = {"the-|final-|-|countdown-", "the|-final|-|-countdown|-"},
        [QN_SPLIT_MERGE_NEXT] = {"the|-final|-|-countdown|-", "the-|final-|-|countdown-"},
        [QN_SPLIT_CONTIGUOUS] = {"the|-|final|--|countdown|-", "the|-|final|--|countdown|-"},
    };
    for (int i = 0; i < QN_SPLIT_COUNT; i++) {
        for (int invert = 0; invert < 2; invert++) {
            qn_pretok string = {.steps = {{.kind = QN_PRETOK_STRING,
                                           .behavior = (qn_split_behavior)i,
                                           .invert = invert,
                                           .from = {"-", 1}}},
                                .n = 1};
            check_split(&string, "the-final--countdown-", wants[i][invert]);
            qn_pretok regex = string;
            regex.steps[0].kind = QN_PRETOK_REGEX;
            ASSERT_OK(qn_regex_init(&regex.steps[0].regex, qn_str_of("-"), &err));
            check_split(&regex, "the-final--countdown-", wants[i][invert]);
            check_split(&regex, "", "");
            qn_pretok_deinit(&regex);
        }
    }
}

static void check_pattern(const char *name, const char *const rows[][2], size_t n) {
    qn_err err;
    qn_pretok pretok = {0};
    const qn_pattern_row *row = qn_pattern_find(qn_str_of(name));
    assert_non_null(row);
    ASSERT_OK(qn_pretok_add_row(&pretok, row, &err));
    for (size_t i = 0; i < n; i++) check_split(&pretok, rows[i][0], rows[i][1]);
    qn_pretok_deinit(&pretok);
}

static void named_patterns(void **state) {
    (void)state;
    static const char *const gpt2[][2] = {
        {"Hello world's 123!?  x\n\n y", "Hello| world|'s| 123|!?| | x|\n\n| y"},
        {"I'LL I'll", "I|'|LL| I|'ll"},
        {"a  ", "a|  "},
        {"a\xc2\xa0"
         "b",
         "a|\xc2\xa0|b"},
    };
    check_pattern("gpt-2", gpt2, 4);
    static const char *const llama[][2] = {
        {"Hello world's 12345!?\n\n  x", "Hello| world|'s| |123|45|!?\n\n| | x"},
        {"I'LL", "I|'LL"},
        {"a\r\n\r\n b  c", "a|\r\n\r\n| b| | c"},
        {"(foo", "(foo"},
        {"x\t\ty", "x|\t|\ty"},
        {"a\xe1\xa0\x8e"
         "b",
         "a|\xe1\xa0\x8e"
         "b"}, // U+180E is no white space any more
    };
    check_pattern("llama-bpe", llama, 6);
    static const char *const qwen2[][2] = {
        {"a 123", "a| |1|2|3"},
        {"e\xcc\x81x", "e|\xcc\x81x"},
    };
    check_pattern("qwen2", qwen2, 2);
    static const char *const qwen35[][2] = {{"e\xcc\x81x 12", "e\xcc\x81x| |1|2"}};
    check_pattern("qwen35", qwen35, 1);
    static const char *const fallback[][2] = {{"a.b 1234 c", "a|.|b| |123|4| c"}};
    check_pattern("default", fallback, 1);
    static const char *const tekken[][2] = {{"HelloWorld ABCdef 12", "Hello|World| ABCdef| |1|2"}};
    check_pattern("tekken", tekken, 1);
    assert_true(qn_pattern_find(qn_str_of("llama3")) == qn_pattern_find(qn_str_of("llama-bpe")));
    assert_true(qn_pattern_find(qn_str_of("deepseek-r1-qwen")) ==
                qn_pattern_find(qn_str_of("qwen2")));
    assert_null(qn_pattern_find(qn_str_of("llama")));
    assert_null(qn_pattern_find(qn_str_of("")));
    assert_null(qn_pattern_find(qn_str_of("llama3 llama-v3")));
}

static void stray_bytes_split_words_and_stay(void **state) {
    (void)state;
    static const char *const rows[][2] = {
        {"ab\xff"
         "cd",
         "ab|\xff|cd"},
        {"ab \xe2\x82 cd", "ab| |\xe2\x82| cd"},
        {"\xff\xfe", "\xff\xfe"},
    };
    check_pattern("qwen2", rows, 3);
}

static void marked_spaces(void **state) {
    (void)state;
    qn_pretok pretok = {
        .steps = {{.kind = QN_PRETOK_METASPACE, .from = {"_", 1}, .scheme = QN_PREFIX_ALWAYS},
                  {.kind = QN_PRETOK_STRING, .from = {"_", 1}, .behavior = QN_SPLIT_MERGE_NEXT}},
        .n = 2};
    check_split(&pretok, "Hey friend", "_Hey|_friend");
    check_split(&pretok, " Hey  x ", "_Hey|_|_x|_");
    pretok.steps[0].scheme = QN_PREFIX_NEVER;
    check_split(&pretok, "Hey friend", "Hey|_friend");
    pretok.steps[0].scheme = QN_PREFIX_FIRST;
    check_split(&pretok, "Hey", "_Hey");
    pretok.n = 1;
    check_split(&pretok, "Hey friend", "_Hey_friend");
    const qn_pretok prefix = {.steps = {{.kind = QN_PRETOK_PREFIX}}, .n = 1};
    check_split(&prefix, "a", " a");
    check_split(&prefix, " a", " a");
}

// --- patterns ------------------------------------------------------------------------------------

// The expression of a named pattern, not its code.
static void init_expression(qn_pretok *out, const char *name, const char *front) {
    qn_err err;
    char pattern[512];
    const qn_pattern_row *row = qn_pattern_find(qn_str_of(name));
    assert_non_null(row);
    assert_null(row->patterns[1]);
    snprintf(pattern, sizeof pattern, "%s%s", front, row->patterns[0]);
    *out = (qn_pretok){.steps = {{.kind = QN_PRETOK_REGEX, .behavior = QN_SPLIT_ISOLATED}}, .n = 1};
    ASSERT_OK(qn_regex_init(&out->steps[0].regex, qn_str_of(pattern), &err));
}

static void random_text(qn_buf *out) {
    static const char *const parts[] = {"a",
                                        "B",
                                        "s",
                                        "T",
                                        "re",
                                        "LL",
                                        " ",
                                        "  ",
                                        "\n",
                                        "\r\n",
                                        "\t",
                                        "\v",
                                        "1",
                                        "23",
                                        ".",
                                        "'",
                                        "'s",
                                        "'LL",
                                        "!?",
                                        "/",
                                        "\xc3\xa9",
                                        "\xcc\x81",
                                        "\xe4\xbd\xa0",
                                        "\xc5\xbf",
                                        "\xc2\xa0",
                                        "\xc2\x85",
                                        "\xe3\x80\x80",
                                        "\xe2\x80\xa8",
                                        "\xe1\xa0\x8e",
                                        "\xe2\x80\x8d",
                                        "\xd9\xa3",
                                        "\xe2\x85\xa7",
                                        "\xc2\xb2",
                                        "\xf0\x9f\x99\x82",
                                        "\xf4\x8f\xbf\xbf",
                                        "\xe0\xa4\xbe",
                                        "\xe2\x83\x9d",
                                        "\xcd\xb8",
                                        "\xc7\x85",
                                        "\xff",
                                        "_",
                                        "\x1c",
                                        "\x7f"};
    const int n = rand() % 40;
    for (int i = 0; i < n; i++) {
        const char *part = parts[rand() % (int)(sizeof parts / sizeof *parts)];
        const int repeat = rand() % 12 ? 1 : 1 + rand() % 60;
        for (int k = 0; k < repeat; k++) qn_buf_text(out, part);
    }
}

static void codes_find_the_words_of_their_expressions(void **state) {
    (void)state;
    qn_err err;
    srand(31);
    static const char *const names[] = {"gpt-2", "llama-bpe", "qwen2", "qwen35"};
    for (int i = 0; i < 4; i++) {
        qn_pretok code = {0}, expression;
        ASSERT_OK(qn_pretok_add_row(&code, qn_pattern_find(qn_str_of(names[i])), &err));
        assert_int_equal(code.steps[0].kind, QN_PRETOK_WORDS);
        init_expression(&expression, names[i], "");
        for (int round = 0; round < 5000; round++) {
            qn_buf text = {0}, want = {0}, got = {0};
            random_text(&text);
            split(&want, &expression, (qn_str){text.data, text.size});
            split(&got, &code, (qn_str){text.data, text.size});
            if (text.size) assert_string_equal(got.data, want.data);
            qn_buf_deinit(&text);
            qn_buf_deinit(&want);
            qn_buf_deinit(&got);
        }
        qn_pretok_deinit(&code);
        qn_pretok_deinit(&expression);
    }
}

// False for characters that one of the two Unicode tables is too old to know.
static bool is_known(qn_regex_run *unassigned, const char *one, size_t n) {
    qn_err err;
    bool found;
    size_t end;
    qn_regex_run_set(unassigned, (qn_str){one, n});
    ASSERT_OK(qn_regex_match(&found, &end, unassigned, 0, &err));
    return !found;
}

// Every character, before and behind a letter.
static void codes_agree_on_every_character(void **state) {
    (void)state;
    qn_err err;
    static const char *const names[] = {"llama-bpe", "qwen35"};
    for (int i = 0; i < 2; i++) {
        qn_pretok code = {0}, expression;
        qn_buf text = {0}, want = {0}, got = {0};
        ASSERT_OK(qn_pretok_add_row(&code, qn_pattern_find(qn_str_of(names[i])), &err));
        init_expression(&expression, names[i], "");
        qn_regex cn;
        qn_regex_run unassigned;
        ASSERT_OK(qn_regex_init(&cn, qn_str_of("\\p{Cn}"), &err));
        ASSERT_OK(qn_regex_run_init(&unassigned, &cn, &err));
        for (uint32_t c = 1; c < 0x110000; c++) {
            char one[4];
            const size_t n = qn_utf8_encode(c, one);
            if (n == 0 || !is_known(&unassigned, one, n)) continue;
            qn_buf_add(&text, one, n);
            qn_buf_add(&text, "a", 1);
            qn_buf_add(&text, one, n);
            qn_buf_add(&text, "\n", 1);
        }
        split(&want, &expression, (qn_str){text.data, text.size});
        split(&got, &code, (qn_str){text.data, text.size});
        assert_int_equal(got.size, want.size);
        assert_memory_equal(got.data, want.data, got.size);
        qn_regex_run_deinit(&unassigned);
        qn_regex_deinit(&cn);
        qn_buf_deinit(&text);
        qn_buf_deinit(&want);
        qn_buf_deinit(&got);
        qn_pretok_deinit(&code);
        qn_pretok_deinit(&expression);
    }
}

static void windows_do_not_show(void **state) {
    (void)state;
    srand(8);
    static const char *const names[] = {"gpt-2", "llama-bpe", "qwen2", "qwen35", "tekken"};
    for (int i = 0; i < 5; i++) {
        qn_pretok pretok;
        init_expression(&pretok, names[i], "");
        for (int round = 0; round < 300; round++) {
            qn_buf text = {0}, want = {0}, got = {0};
            random_text(&text);
            pretok.steps[0].regex.window = 1 << 20;
            split(&want, &pretok, (qn_str){text.data, text.size});
            pretok.steps[0].regex.window = (size_t)(1 + rand() % 20);
            split(&got, &pretok, (qn_str){text.data, text.size});
            if (text.size) assert_string_equal(got.data, want.data);
            qn_buf_deinit(&text);
            qn_buf_deinit(&want);
            qn_buf_deinit(&got);
        }
        qn_pretok_deinit(&pretok);
    }
}

// Where the system forbids making machine code, patterns are interpreted.
static void interpreted_patterns_agree(void **state) {
    (void)state;
    srand(21);
    qn_pretok fast, slow;
    init_expression(&fast, "tekken", "");
    init_expression(&slow, "tekken", "(*NO_JIT)");
    for (int round = 0; round < 500; round++) {
        qn_buf text = {0}, want = {0}, got = {0};
        random_text(&text);
        split(&want, &fast, (qn_str){text.data, text.size});
        split(&got, &slow, (qn_str){text.data, text.size});
        if (text.size) assert_string_equal(got.data, want.data);
        qn_buf_deinit(&text);
        qn_buf_deinit(&want);
        qn_buf_deinit(&got);
    }
    qn_pretok_deinit(&fast);
    qn_pretok_deinit(&slow);
}

static void long_words_are_one_match(void **state) {
    (void)state;
    qn_err err;
    enum { SIZE = 1 << 20 };
    qn_pretok pretok = {0};
    ASSERT_OK(qn_pretok_add_row(&pretok, qn_pattern_find(qn_str_of("llama-bpe")), &err));
    char *text = qn_alloc(SIZE + 1, 1);
    assert_non_null(text);
    static const char fills[] = {'a', ' ', '\n', '!', '\t'};
    for (size_t i = 0; i < sizeof fills; i++) {
        qn_buf got = {0};
        memset(text, fills[i], SIZE);
        split(&got, &pretok, (qn_str){text, SIZE});
        assert_int_equal(got.size, SIZE);
        qn_buf_deinit(&got);
    }
    qn_buf got = {0};
    memset(text, ' ', SIZE);
    text[0] = '\n';
    text[SIZE - 1] = 'x';
    split(&got, &pretok, (qn_str){text, SIZE});
    assert_int_equal(got.size, SIZE + 2); // the line break, the spaces but one, " x"
    assert_memory_equal(got.data + got.size - 3, "| x", 3);
    qn_buf_deinit(&got);
    qn_free(text);
    qn_pretok_deinit(&pretok);
}

static void pattern_bombs_are_stopped(void **state) {
    (void)state;
    qn_err err;
    // The text is a...a!bc: what a pattern needs at its end is there, but never in reach.
    static const struct {
        const char *pattern;
        bool is_stopped; // or else it is harmless
    } bombs[] = {
        {"(a+)+$", true},
        {"(a|aa)+$", true},
        {"(?:a?){20}bc", true},
        {"a*a*bc", true},
        {"(.*a){12}bc", true},
        {"(?=(a+))\\1*bc", true},
        {"a*bc", true},
        {"(a|b|ab)*c", true},
        {"((a*)*)*bc", true},
        {"(?R)?a(?R)?bc", true},
        {"(?:a{1,200}){1,200}bc", true},
        {"[^c]*[^c]*[^c]*cc", true},
        {"a", false},
        {"a+", false},
        {"a{1,3}", false},
    };
    enum { SIZE = 200000 };
    char *text = qn_alloc(SIZE, 1);
    assert_non_null(text);
    memset(text, 'a', SIZE);
    memcpy(text + SIZE - 3, "!bc", 3);
    for (size_t i = 0; i < 2 * sizeof bombs / sizeof *bombs; i++) {
        char pattern[80]; // compiled, then interpreted
        snprintf(pattern, sizeof pattern, "%s%s", i % 2 ? "(*NO_JIT)" : "", bombs[i / 2].pattern);
        qn_pretok pretok = {.steps = {{.kind = QN_PRETOK_REGEX, .behavior = QN_SPLIT_REMOVED}},
                            .n = 1};
        ASSERT_OK(qn_regex_init(&pretok.steps[0].regex, qn_str_of(pattern), &err));
        qn_pretok_run run;
        qn_buf out = {0};
        ASSERT_OK(qn_pretok_run_init(&run, &pretok, join_word, &out, &err));
        const clock_t start = clock();
        const qn_status status = qn_pretok_apply(&run, (qn_str){text, SIZE}, true, &err);
        const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
        if (seconds > 60) fail_msg("%s: %.1f s", pattern, seconds);
        assert_int_equal(status, bombs[i / 2].is_stopped ? QN_LIMIT : QN_OK);
        qn_pretok_run_deinit(&run);
        qn_buf_deinit(&out);
        qn_pretok_deinit(&pretok);
    }
    qn_free(text);
}

static void patterns_we_cannot_honour_are_refused(void **state) {
    (void)state;
    qn_err err;
    qn_regex regex;
    ASSERT_FAILS(qn_regex_init(&regex, qn_str_of("a(b"), &err), QN_UNSUPPORTED, "pattern 'a(b'");
    ASSERT_FAILS(qn_regex_init(&regex, qn_str_of("[a&&b]"), &err), QN_UNSUPPORTED, "sets within");
    ASSERT_FAILS(qn_regex_init(&regex, qn_str_of("[a[bc]]"), &err), QN_UNSUPPORTED, "sets within");
    ASSERT_FAILS(qn_regex_init(&regex, qn_str_of("[\\W]"), &err), QN_UNSUPPORTED, "inside [...]");
    ASSERT_FAILS(qn_regex_init(&regex, qn_str_of("\\C"), &err), QN_UNSUPPORTED, "pattern");
    char *big = qn_alloc(1 << 17, 1);
    assert_non_null(big);
    memset(big, 'a', 1 << 17);
    ASSERT_FAILS(qn_regex_init(&regex, (qn_str){big, 1 << 17}, &err), QN_LIMIT,
                 "pattern of 131072 bytes");
    qn_free(big);
    ASSERT_OK(qn_regex_init(&regex, qn_str_of("[]a]|[^]b]|\\[|[[:alpha:]x]"), &err));
    qn_regex_deinit(&regex);
}

// --- limits --------------------------------------------------------------------------------------

static const char *const kinds[] = {TEST_DATA "/mini/qwen3/tokenizer.json",   // byte-level BPE
                                    TEST_DATA "/mini/gemma3/tokenizer.model", // SentencePiece
                                    TEST_DATA "/mini/llama32/tokenizer.json"};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

// The first tokens, or none, of a text that has more than there may be.
static void a_text_of_too_many_tokens_ends_early(void **state) {
    static const char text[] = "One, two, three. Four <five>, six\n\nseven!";
    (void)state;
    for (size_t k = 0; k < N_KINDS; k++) {
        qn_err err;
        qn_tokenizer *t = NULL;
        int32_t *ids = NULL, *some = NULL;
        size_t n = 0, n_some = 0;
        qn_tokenize_opts opts = QN_INIT(qn_tokenize_opts, .add_ends = true);
        ASSERT_OK(qn_tokenizer_open(&t, kinds[k], &err));
        ASSERT_OK(qn_tokenize(&ids, &n, t, text, strlen(text), &opts, &err));
        for (opts.max_tokens = 1; opts.max_tokens <= n + 1; opts.max_tokens++) {
            opts.cut = false;
            if (opts.max_tokens < n) {
                ASSERT_FAILS(qn_tokenize(&some, &n_some, t, text, strlen(text), &opts, &err),
                             QN_LIMIT, "tokens");
                assert_null(some);
                opts.cut = true;
            }
            ASSERT_OK(qn_tokenize(&some, &n_some, t, text, strlen(text), &opts, &err));
            assert_int_equal(n_some, opts.max_tokens < n ? opts.max_tokens : n);
            assert_memory_equal(some, ids, n_some * sizeof *ids);
            qn_free(some);
            some = NULL;
        }
        const qn_tokenize_opts wrong = QN_INIT(qn_tokenize_opts, .cut = true);
        ASSERT_FAILS(qn_tokenize(&some, &n_some, t, text, strlen(text), &wrong, &err), QN_ARGUMENT,
                     "max_tokens");
        qn_free(ids);
        qn_tokenizer_close(t);
    }
}

// The work for it has a bound, whatever the words are: one of millions of letters is not begun.
static void a_text_that_is_far_too_long_is_cheap(void **state) {
    enum { SIZE = 4 << 20, MAX_TOKENS = 1000 };
    static const char *const parts[] = {"a", "ab ", "\xc3\xa9", "<>", "0"};
    (void)state;
    char *text = malloc(SIZE);
    assert_non_null(text);
    for (size_t k = 0; k < N_KINDS; k++) {
        qn_err err;
        qn_tokenizer *t = NULL;
        ASSERT_OK(qn_tokenizer_open(&t, kinds[k], &err));
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
            const size_t n_part = strlen(parts[i]), size = SIZE / n_part * n_part;
            for (size_t at = 0; at < size; at += n_part) memcpy(text + at, parts[i], n_part);
            int32_t *ids = NULL;
            size_t n = 0;
            qn_tokenize_stats stats = {.max_ids = MAX_TOKENS};
            ASSERT_FAILS(qn_tokenize_counted(&ids, &n, t, (qn_str){text, size}, NULL, &stats, &err),
                         QN_LIMIT, "tokens");
            if (stats.steps > 64 * MAX_TOKENS)
                fail_msg("%s, '%s': %llu steps", kinds[k], parts[i],
                         (unsigned long long)stats.steps);
        }
        qn_tokenizer_close(t);
    }
    free(text);
}

static bool never(const void *arg, const qn_symbol *left, const qn_symbol *right, uint32_t *rank,
                  uint32_t *id) {
    (void)arg, (void)left, (void)right, (void)rank, (void)id;
    return false;
}

// A flag ends a text, and a word that takes long by itself.
static void tokenizing_can_be_stopped(void **state) {
    qn_err err;
    qn_stop_flag *stop = NULL;
    qn_merge merge = {0};
    (void)state;
    ASSERT_OK(qn_stop_flag_create(&stop, &err));
    merge.stop = stop;
    for (uint32_t i = 0; i < 100; i++) ASSERT_OK(qn_merge_add(&merge, i, 1, &err));
    ASSERT_OK(qn_merge_run(&merge, never, NULL, &err));
    qn_stop_flag_set(stop);
    assert_int_equal(qn_merge_run(&merge, never, NULL, &err), QN_STOPPED);
    qn_merge_deinit(&merge);
    qn_encoder encoder = {.max_ids = INT32_MAX, .stop = stop};
    qn_status status = QN_OK;
    for (int i = 0; i < 100 && !status; i++) status = qn_encoder_add(&encoder, i, &err);
    assert_int_equal(status, QN_STOPPED);
    qn_encoder_deinit(&encoder);
    for (size_t k = 0; k < N_KINDS; k++) {
        qn_tokenizer *t = NULL;
        int32_t *ids = NULL;
        size_t n = 0;
        const qn_tokenize_opts opts = QN_INIT(qn_tokenize_opts, .stop = stop);
        ASSERT_OK(qn_tokenizer_open(&t, kinds[k], &err));
        ASSERT_FAILS(qn_tokenize(&ids, &n, t, "a b", 3, &opts, &err), QN_STOPPED, "stopped");
        qn_tokenizer_close(t);
    }
    qn_stop_flag_destroy(stop);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(normal_forms),
        cmocka_unit_test(normal_forms_do_not_depend_on_stretches),
        cmocka_unit_test(every_character_normalizes_as_in_utf8proc),
        cmocka_unit_test(a_long_run_of_marks_is_sorted_at_once),
        cmocka_unit_test(other_normalizers),
        cmocka_unit_test(replacing_by_pattern),
        cmocka_unit_test(precompiled_tables),
        cmocka_unit_test(broken_tables_are_refused_or_harmless),
        cmocka_unit_test(behaviors),
        cmocka_unit_test(named_patterns),
        cmocka_unit_test(stray_bytes_split_words_and_stay),
        cmocka_unit_test(marked_spaces),
        cmocka_unit_test(codes_find_the_words_of_their_expressions),
        cmocka_unit_test(codes_agree_on_every_character),
        cmocka_unit_test(windows_do_not_show),
        cmocka_unit_test(interpreted_patterns_agree),
        cmocka_unit_test(long_words_are_one_match),
        cmocka_unit_test(pattern_bombs_are_stopped),
        cmocka_unit_test(a_text_of_too_many_tokens_ends_early),
        cmocka_unit_test(a_text_that_is_far_too_long_is_cheap),
        cmocka_unit_test(tokenizing_can_be_stopped),
        cmocka_unit_test(patterns_we_cannot_honour_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
