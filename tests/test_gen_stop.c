// Stop strings, banned strings and DRY against plain searches.
#include "testing.h"

#include "gen/bans.h"
#include "gen/dry.h"
#include "gen/chooser.h"
#include "gen/stop.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

// --- stop strings --------------------------------------------------------------------------------

typedef struct found {
    bool is_met;
    size_t at, end, which;
} found;

// The string that is complete first; of several, the longest, then the first in the list.
static found find_plainly(const char *text, size_t size, const char *const *stops, size_t n) {
    for (size_t end = 1; end <= size; end++) {
        found best = {0};
        for (size_t i = 0; i < n; i++) {
            const size_t length = strlen(stops[i]);
            if (length > end || memcmp(text + end - length, stops[i], length) != 0) continue;
            if (!best.is_met || end - length < best.at) best = (found){true, end - length, end, i};
        }
        if (best.is_met) return best;
    }
    return (found){0};
}

// Bytes at the end of the text that begin a stop string.
static size_t held_plainly(const char *text, size_t size, const char *const *stops, size_t n) {
    size_t held = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t length = strlen(stops[i]);
        for (size_t part = 1; part < length && part <= size; part++) {
            if (part > held && memcmp(text + size - part, stops[i], part) == 0) held = part;
        }
    }
    return held;
}

// Feeds the text in parts, and looks at every part.
static void check_text(const char *text, size_t size, const char *const *stops, size_t n,
                       uint64_t *random) {
    qn_err err;
    qn_stops *compiled;
    ASSERT_OK(qn_stops_create(&compiled, stops, n, &err));
    const found want = find_plainly(text, size, stops, n);
    qn_stop_state state = {0};
    size_t fed = 0, shown = 0;
    while (fed < size) {
        size_t part = next_random(random) % 4;
        if (part > size - fed) part = size - fed;
        qn_stop_feed(&state, compiled, text + fed, part);
        fed += part;
        assert_true(state.safe >= shown);
        shown = state.safe;
        assert_int_equal(state.is_met, want.is_met && fed >= want.end);
        if (state.is_met) {
            assert_int_equal(state.safe, want.at);
            assert_int_equal(state.which, want.which);
        } else {
            assert_int_equal(state.size, fed);
            assert_int_equal(state.safe, fed - held_plainly(text, fed, stops, n));
        }
    }
    qn_stops_destroy(compiled);
}

static void stops_are_found_as_by_a_plain_search(void **state) {
    (void)state;
    enum { MAX = 6, LONGEST = 6, TEXT = 40 };
    static const char *const letters[] = {"a", "b", "\xc3\xa9", "\xc3\xa8", "\xf0\x9f\x99\x82"};
    uint64_t random = 1;
    for (int round = 0; round < 6000; round++) {
        char strings[MAX][LONGEST * 4 + 1], text[TEXT * 4 + 1] = "";
        const char *stops[MAX];
        const size_t n = next_random(&random) % (MAX + 1);
        const uint32_t kinds = 1 + next_random(&random) % 5;
        for (size_t i = 0; i < n; i++) {
            const uint32_t length = 1 + next_random(&random) % LONGEST;
            strings[i][0] = 0;
            for (uint32_t j = 0; j < length; j++)
                strcat(strings[i], letters[next_random(&random) % kinds]);
            stops[i] = strings[i];
        }
        const uint32_t length = next_random(&random) % TEXT;
        for (uint32_t j = 0; j < length; j++) strcat(text, letters[next_random(&random) % kinds]);
        check_text(text, strlen(text), stops, n, &random);
    }
}

static void thousands_of_stops_are_found(void **state) {
    (void)state;
    enum { LENGTH = 250, TEXT = 30000 };
    static char strings[QN_MAX_STOPS][LENGTH + 1], text[TEXT];
    static const char *stops[QN_MAX_STOPS];
    qn_err err;
    qn_stops *compiled;
    uint64_t random = 3;
    for (int i = 0; i < QN_MAX_STOPS; i++) {
        for (int j = 0; j < LENGTH; j++) strings[i][j] = "ab"[next_random(&random) % 2];
        stops[i] = strings[i];
    }
    for (int i = 0; i < TEXT; i++) text[i] = "ab"[next_random(&random) % 2];
    memcpy(text + 20000, strings[3210], LENGTH);
    ASSERT_OK(qn_stops_create(&compiled, stops, QN_MAX_STOPS, &err));
    qn_stop_state s = {0};
    for (int i = 0; i < TEXT && !s.is_met; i += 7)
        qn_stop_feed(&s, compiled, text + i, (size_t)(i + 7 < TEXT ? 7 : TEXT - i));
    assert_true(s.is_met);
    assert_int_equal(s.which, 3210);
    assert_int_equal(s.safe, 20000);
    qn_stops_destroy(compiled);
}

static void a_character_is_never_cut(void **state) {
    (void)state;
    qn_err err;
    qn_stops *compiled;
    const char *const stops[] = {"\xc3\xa9t\xc3\xa9"};
    const char text[] = "l'\xc3\xa9t\xc3\xa8, l'\xc3\xa9t\xc3\xa9 dernier";
    ASSERT_OK(qn_stops_create(&compiled, stops, 1, &err));
    qn_stop_state s = {0};
    for (size_t i = 0; i + 1 < sizeof text && !s.is_met; i++) {
        qn_stop_feed(&s, compiled, text + i, 1);
        assert_int_not_equal((unsigned char)text[s.safe] & 0xC0, 0x80); // no continuation follows
    }
    assert_true(s.is_met);
    assert_int_equal(s.safe, 11);
    qn_stop_feed(&s, compiled, "more", 4);
    assert_int_equal(s.safe, 11);
    qn_stops_destroy(compiled);
}

static void bad_stop_strings_are_named(void **state) {
    (void)state;
    enum { MANY = 100000 };
    qn_err err;
    qn_stops *compiled = NULL;
    static const char *many[MANY];
    for (int i = 0; i < MANY; i++) many[i] = "x";
    const char *const empty[] = {"a", ""}, *const null[] = {NULL}, *const broken[] = {"a\xff"};
    char *large = malloc((1 << 20) + 2);
    assert_non_null(large);
    memset(large, 'x', (1 << 20) + 1);
    large[(1 << 20) + 1] = 0;
    const char *const too_large[] = {large};
    ASSERT_FAILS(qn_stops_create(&compiled, many, MANY, &err), QN_LIMIT,
                 "100000 stop strings, at most 4096");
    ASSERT_FAILS(qn_stops_create(&compiled, empty, 2, &err), QN_ARGUMENT, "stop string 1 is empty");
    ASSERT_FAILS(qn_stops_create(&compiled, null, 1, &err), QN_ARGUMENT, "stop string 0 is empty");
    ASSERT_FAILS(qn_stops_create(&compiled, NULL, 1, &err), QN_ARGUMENT, "NULL");
    ASSERT_FAILS(qn_stops_create(&compiled, broken, 1, &err), QN_ARGUMENT, "not UTF-8");
    ASSERT_FAILS(qn_stops_create(&compiled, too_large, 1, &err), QN_LIMIT, "1048576 bytes");
    large[1 << 20] = 0;
    ASSERT_OK(qn_stops_create(&compiled, too_large, 1, &err));
    qn_stop_state s = {0};
    qn_stop_feed(&s, compiled, large, 1 << 20);
    assert_true(s.is_met && s.safe == 0);
    qn_stops_destroy(compiled);
    ASSERT_OK(qn_stops_create(&compiled, NULL, 0, &err));
    s = (qn_stop_state){0};
    qn_stop_feed(&s, compiled, "abc", 3);
    assert_true(!s.is_met && s.safe == 3);
    qn_stops_destroy(compiled);
    free(large);
}

// --- bans ----------------------------------------------------------------------------------------

static qn_tokenizer *open_bundled(qn_token_texts *texts, int32_t *n) {
    qn_err err;
    qn_tokenizer *tokenizer;
    ASSERT_OK(qn_tokenizer_open(&tokenizer, MODELS "/quern-mini-Q8_0.gguf", &err));
    *n = tokenizer_info(tokenizer).n_tokens;
    ASSERT_OK(qn_token_texts_init(texts, tokenizer, *n + 7, &err)); // some rows have no token
    return tokenizer;
}

static void add_text(char *to, size_t *size, qn_str text) {
    memcpy(to + *size, text.data, text.size);
    *size += text.size;
    to[*size] = 0;
}

static void texts_of_tokens_are_what_the_decoder_gives(void **state) {
    (void)state;
    qn_err err;
    qn_token_texts texts;
    int32_t n;
    qn_tokenizer *tokenizer = open_bundled(&texts, &n);
    static const char sample[] =
        "The miller's \xc3\xa9t\xc3\xa9, 1234 \xf0\x9f\x99\x82 (grain)\n\n  x";
    int32_t *ids;
    size_t n_ids, size = 0;
    char joined[256] = "";
    ASSERT_OK(qn_tokenize(&ids, &n_ids, tokenizer, sample, strlen(sample), NULL, &err));
    for (size_t i = 0; i < n_ids; i++) add_text(joined, &size, qn_token_text(&texts, ids[i]));
    assert_non_null(strstr(joined, sample));
    assert_int_equal(qn_token_text(&texts, n + 3).size, 0);
    qn_free(ids);
    qn_token_texts_deinit(&texts);
    qn_tokenizer_close(tokenizer);
}

// Tokens may be a byte 0.
static bool contains(const char *from, const char *end, const char *text) {
    const size_t size = strlen(text);
    for (; from + size <= end; from++) {
        if (memcmp(from, text, size) == 0) return true;
    }
    return false;
}

// A token is excluded exactly if the answer with it contains a banned string that it did not
// contain before.
static void banned_strings_cannot_be_completed(void **state) {
    (void)state;
    enum { N_TOKENS = 6, N_BANS = 4, LONGEST = 64 };
    qn_err err;
    qn_token_texts texts;
    int32_t n;
    qn_tokenizer *tokenizer = open_bundled(&texts, &n);
    float *logits = malloc((size_t)texts.n * sizeof *logits);
    assert_non_null(logits);
    uint64_t random = 9;
    int n_across = 0;
    for (int round = 0; round < 60; round++) {
        // Parts of the answer and of other tokens, so that bans lie across borders.
        int32_t tokens[N_TOKENS];
        char answer[N_TOKENS * 16 + 1] = "", strings[N_BANS][LONGEST];
        const char *bans[N_BANS];
        size_t size = 0;
        for (int i = 0; i < N_TOKENS; i++) {
            do tokens[i] = (int32_t)(next_random(&random) % (uint32_t)n);
            while (qn_token_text(&texts, tokens[i]).size > 16);
            add_text(answer, &size, qn_token_text(&texts, tokens[i]));
        }
        for (int i = 0; i < N_BANS; i++) {
            const uint32_t tail = next_random(&random) % 6;
            const qn_str next =
                qn_token_text(&texts, (int32_t)(next_random(&random) % (uint32_t)n));
            snprintf(strings[i], LONGEST, "%s%.*s", answer + (size > tail ? size - tail : 0),
                     (int)(1 + next_random(&random) % 3), next.size ? next.data : "e");
            bans[i] = strings[i];
        }
        qn_bans *compiled;
        const qn_status status = qn_bans_create(&compiled, &texts, bans, N_BANS, &err);
        if (status == QN_ARGUMENT) continue; // a character was cut
        assert_int_equal(status, QN_OK);
        for (int64_t i = 0; i < texts.n; i++) logits[i] = 1;
        qn_bans_apply(compiled, logits, tokens, N_TOKENS);
        for (int32_t token = 0; token < texts.n; token++) {
            char with[sizeof answer + 4096];
            size_t with_size = size;
            memcpy(with, answer, size + 1);
            add_text(with, &with_size, qn_token_text(&texts, token));
            bool is_banned = false;
            for (int i = 0; i < N_BANS; i++) {
                const size_t length = strlen(bans[i]);
                const char *from = with + (size + 1 > length ? size + 1 - length : 0);
                is_banned |= contains(from, with + with_size, bans[i]); // ends in the token
            }
            if (is_banned != (isinf(logits[token]) != 0))
                fail_msg("round %d: token %d, banned %d", round, token, is_banned);
            n_across += is_banned;
        }
        qn_bans_destroy(compiled);
    }
    assert_true(n_across > 1000);
    free(logits);
    qn_token_texts_deinit(&texts);
    qn_tokenizer_close(tokenizer);
}

static void an_answer_never_contains_what_is_banned(void **state) {
    (void)state;
    enum { STEPS = 400 };
    static const char *const bans[] = {"the", "e ", "an", "\n", "qu", "ing"};
    qn_err err;
    qn_token_texts texts;
    int32_t n, tokens[STEPS];
    qn_tokenizer *tokenizer = open_bundled(&texts, &n);
    float *row = malloc((size_t)texts.n * sizeof *row);
    assert_non_null(row);
    qn_chooser *chooser;
    ASSERT_OK(qn_chooser_create(&chooser, tokenizer, texts.n, &err));
    const qn_sample_opts opts =
        QN_INIT(qn_sample_opts, .temperature = 1, .seed = 6, .bans = bans, .n_bans = 6);
    ASSERT_OK(qn_chooser_set(chooser, &opts, &err));
    uint64_t random = 4;
    char *answer = malloc(STEPS * 4096);
    assert_non_null(answer);
    size_t size = 0;
    for (size_t step = 0; step < STEPS; step++) {
        for (int64_t i = 0; i < texts.n; i++) {
            const qn_str text = qn_token_text(&texts, (int32_t)i);
            row[i] = (float)(next_random(&random) % 1000) * 0.002f;
            if (text.size == 1 && memchr("thean quig", text.data[0], 10)) row[i] += 12; // tempting
        }
        const qn_chooser_in in = {
            .logits = row, .tokens = tokens, .n_tokens = step, .position = step};
        ASSERT_OK(qn_chooser_choose(&tokens[step], chooser, &in, &err));
        add_text(answer, &size, qn_token_text(&texts, tokens[step]));
    }
    for (int i = 0; i < 6; i++) assert_false(contains(answer, answer + size, bans[i]));
    assert_true(contains(answer, answer + size, "th")); // near enough
    qn_chooser_destroy(chooser);
    free(answer);
    free(row);
    qn_token_texts_deinit(&texts);
    qn_tokenizer_close(tokenizer);
}

// --- DRY -----------------------------------------------------------------------------------------

enum { DRY_VOCAB = 6 };

// By its description: every earlier end of a repetition, compared token by token.
static void punish_plainly(float *logits, const qn_dry *dry, const bool *is_breaker) {
    const int n = (int)dry->n_tokens;
    const int32_t *t = dry->tokens;
    int longest[DRY_VOCAB] = {0};
    for (int i = 0; i + 1 < n && !is_breaker[t[n - 1]]; i++) {
        int m = 0;
        while (m <= i && m < QN_DRY_LONGEST && t[i - m] == t[n - 1 - m] && !is_breaker[t[i - m]])
            m++;
        if (!is_breaker[t[i + 1]] && m > longest[t[i + 1]]) longest[t[i + 1]] = m;
    }
    for (int i = 0; i < DRY_VOCAB; i++) {
        if (longest[i] < 1 || longest[i] < dry->allowed_length) continue;
        logits[i] -= (float)((double)dry->multiplier *
                             pow((double)dry->base, longest[i] - dry->allowed_length));
    }
}

static void dry_punishes_as_described(void **state) {
    (void)state;
    enum { MAX = 60 };
    static char bytes[] = "abcd:\n";
    static size_t ends[DRY_VOCAB] = {1, 2, 3, 4, 5, 6};
    const qn_token_texts texts = {.n = DRY_VOCAB, .ends = ends, .bytes = bytes};
    static const char *const strings[] = {"\n", ":"};
    const bool is_breaker[DRY_VOCAB] = {[4] = true, [5] = true}, none[DRY_VOCAB] = {false};
    qn_err err;
    qn_breakers *breakers;
    ASSERT_OK(qn_breakers_create(&breakers, &texts, strings, 2, &err));
    uint64_t random = 12;
    int n_changed = 0;
    for (int round = 0; round < 20000; round++) {
        int32_t tokens[MAX];
        uint32_t counts[DRY_VOCAB] = {0};
        const uint32_t kinds = 1 + next_random(&random) % DRY_VOCAB;
        const bool breaks = next_random(&random) % 2;
        const qn_dry dry = {.multiplier = 0.8f,
                            .base = 1.25f,
                            .allowed_length = 1 + (int32_t)(next_random(&random) % 4),
                            .tokens = tokens,
                            .n_tokens = next_random(&random) % MAX,
                            .breakers = breaks ? breakers : NULL};
        for (size_t i = 0; i < dry.n_tokens; i++)
            tokens[i] = (int32_t)(next_random(&random) % kinds);
        float got[DRY_VOCAB], want[DRY_VOCAB];
        for (int i = 0; i < DRY_VOCAB; i++) got[i] = want[i] = (float)i;
        qn_dry_apply(&dry, got, counts);
        punish_plainly(want, &dry, breaks ? is_breaker : none);
        for (int i = 0; i < DRY_VOCAB; i++) {
            assert_true(fabsf(got[i] - want[i]) <= 1e-5f * fabsf(want[i]) + 1e-6f);
            assert_int_equal(counts[i], 0);
            n_changed += got[i] != (float)i;
        }
    }
    assert_true(n_changed > 10000);
    qn_breakers_destroy(breakers);
}

static void breakers_may_lie_across_tokens(void **state) {
    (void)state;
    static char bytes[] = "abcdef";
    static size_t ends[DRY_VOCAB] = {1, 2, 3, 4, 5, 6};
    const qn_token_texts texts = {.n = DRY_VOCAB, .ends = ends, .bytes = bytes};
    static const char *const strings[] = {"cd"};
    qn_err err;
    qn_breakers *breakers;
    ASSERT_OK(qn_breakers_create(&breakers, &texts, strings, 1, &err));
    const int32_t tokens[] = {0, 2, 3, 1, 5, 0, 2, 3, 1}; // a cd b f a cd b: only "b" repeats
    qn_dry dry = {.multiplier = 1, .base = 2, .allowed_length = 1, .tokens = tokens, .n_tokens = 9};
    float logits[DRY_VOCAB] = {0};
    uint32_t counts[DRY_VOCAB] = {0};
    qn_dry_apply(&dry, logits, counts);
    assert_true(logits[5] == -8); // four tokens
    dry.breakers = breakers;
    logits[5] = 0;
    qn_dry_apply(&dry, logits, counts);
    assert_true(logits[5] == -1);
    qn_breakers_destroy(breakers);
}

static void long_repetitions_cost_linear_time(void **state) {
    (void)state;
    enum { LONG = 200000 };
    int32_t *tokens = calloc(LONG, sizeof *tokens);
    assert_non_null(tokens);
    float logits[DRY_VOCAB] = {0};
    uint32_t counts[DRY_VOCAB] = {0};
    const qn_dry dry = {
        .multiplier = 1, .base = 10, .allowed_length = 2, .tokens = tokens, .n_tokens = LONG};
    qn_dry_apply(&dry, logits, counts);
    assert_true(logits[0] < -1e20f && logits[0] >= -FLT_MAX);
    assert_int_equal(counts[0], 0);
    free(tokens);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stops_are_found_as_by_a_plain_search),
        cmocka_unit_test(thousands_of_stops_are_found),
        cmocka_unit_test(a_character_is_never_cut),
        cmocka_unit_test(bad_stop_strings_are_named),
        cmocka_unit_test(texts_of_tokens_are_what_the_decoder_gives),
        cmocka_unit_test(banned_strings_cannot_be_completed),
        cmocka_unit_test(an_answer_never_contains_what_is_banned),
        cmocka_unit_test(dry_punishes_as_described),
        cmocka_unit_test(breakers_may_lie_across_tokens),
        cmocka_unit_test(long_repetitions_cost_linear_time),
    };
    return cmocka_run_group_tests_name("gen_stop", tests, NULL, NULL);
}
