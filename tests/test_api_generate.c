// The loop: what an answer holds, where it ends, and what a caller hears of it.
#include "generate_rig.h"

#include "core/mem.h"

#include <math.h>

enum { CONTEXT = 256, N_IDS = 40 };

static const char mini[] = MODELS "/quern-mini-Q8_0.gguf";
static const char story[] =
    "<|im_start|>user\nTell me a story about a fox.<|im_end|>\n<|im_start|>assistant\n";
static const char sum[] = "<|im_start|>user\nWhat is 2 + 3?<|im_end|>\n<|im_start|>assistant\n";

// The ids of a prompt with its marks; release with qn_free.
static int32_t *read_ids(const qn_engine *engine, const char *text, size_t *n) {
    qn_err err;
    int32_t *ids;
    ASSERT_OK(qn_tokenize(&ids, n, qn_engine_tokenizer(engine), text, strlen(text),
                          &QN_INIT(qn_tokenize_opts, .special = true), &err));
    return ids;
}

static qn_result answer_text(qn_session *session, const char *text, const qn_generate_opts *opts,
                             heard *h) {
    size_t n;
    int32_t *ids = read_ids(session->engine, text, &n);
    if (h) *h = (heard){.stop_after = h->stop_after};
    const qn_result result = answer(session, ids, n, opts, h ? hear : NULL, h);
    qn_free(ids);
    return result;
}

// --- the plain loop ------------------------------------------------------------------------------

// The loop is what steps of the session give, up to an end token.
static void generated_is_stepped(void **state) {
    (void)state;
    enum { N = 24 };
    static const qn_sample_opts samples[] = {
        QN_INITIALIZER(qn_sample_opts),
        QN_INITIALIZER(qn_sample_opts, .temperature = 0.8f, .seed = 5)};
    for (size_t f = 0; f < N_FAMILIES; f++) {
        talk t = open_talk(families[f], CONTEXT);
        const qn_tokenizer *tokenizer = qn_engine_tokenizer(t.engine);
        int32_t ids[N_IDS];
        random_ids(ids, N_IDS, t.vocab, 1);
        for (int i = 0; i < 2; i++) {
            qn_err err;
            int32_t want[N];
            size_t n = 0;
            ASSERT_OK(qn_session_set_prompt(t.session, ids, N_IDS, &err));
            for (; n < N; n++) {
                ASSERT_OK(qn_session_step(&want[n], t.session, &samples[i], &err));
                if (tokenizer && qn_tokenizer_is_end(tokenizer, want[n])) break;
            }
            for (int naive = 0; naive < 2; naive++) {
                const qn_generate_opts opts = QN_INIT(qn_generate_opts, .sample = &samples[i],
                                                      .max_tokens = N, .naive = naive);
                qn_result got = answer(t.session, ids, N_IDS, &opts, NULL, NULL);
                assert_int_equal(got.n_tokens, n);
                assert_int_equal(got.reason, n < N ? QN_REASON_END : QN_REASON_LENGTH);
                assert_int_equal(got.stop_token, n < N ? want[n] : -1);
                assert_memory_equal(got.tokens, want, n * sizeof *want);
                assert_int_equal(got.n_prompt, N_IDS);
                qn_result_deinit(&got);
            }
        }
        close_talk(&t);
    }
}

// Text and tokens of events are those of the result, each character whole.
static void events_add_up(void **state) {
    (void)state;
    talk t = open_talk(mini, 512);
    heard *h = qn_alloc(1, sizeof *h);
    qn_err err;
    const qn_generate_opts opts = QN_INIT(qn_generate_opts, .max_tokens = 50);
    qn_result got = answer_text(t.session, story, &opts, h);
    assert_int_equal(h->n, got.n_tokens);
    assert_memory_equal(h->tokens, got.tokens, h->n * sizeof *h->tokens);
    assert_int_equal(h->size, got.text_size);
    assert_memory_equal(h->text, got.text, got.text_size);
    assert_int_equal(h->reason, got.reason);
    assert_int_equal(h->n_ends, 1);
    for (size_t i = 0; i < h->n; i++) assert_int_equal(h->positions[i], got.n_prompt + (int64_t)i);
    char *text;
    size_t size;
    ASSERT_OK(qn_detokenize(&text, &size, qn_engine_tokenizer(t.engine), got.tokens, got.n_tokens,
                            false, &err));
    assert_string_equal(got.text, text);
    qn_free(text);
    qn_result_deinit(&got);
    qn_free(h);
    close_talk(&t);
}

// --- stopping ------------------------------------------------------------------------------------

static void an_end_token_ends_the_answer(void **state) {
    (void)state;
    talk t = open_talk(mini, 512);
    heard h = {0};
    qn_result got = answer_text(t.session, sum, NULL, &h);
    assert_int_equal(got.reason, QN_REASON_END);
    assert_true(qn_tokenizer_is_end(qn_engine_tokenizer(t.engine), got.stop_token));
    assert_non_null(strstr(got.text, "5"));
    size_t n;
    (void)qn_session_tokens(t.session, &n);
    assert_int_equal(n, (size_t)got.n_prompt + got.n_tokens); // the end token is not in the history
    const size_t n_short = got.n_tokens;
    qn_result_deinit(&got);
    // min_tokens: no end before; then as soon as the model wants.
    got = answer_text(t.session, sum, &QN_INIT(qn_generate_opts, .min_tokens = 30), &h);
    assert_true(got.n_tokens >= 30 && n_short < 30);
    qn_result_deinit(&got);
    got = answer_text(t.session, sum,
                      &QN_INIT(qn_generate_opts, .ignore_end = true, .max_tokens = 60), &h);
    assert_int_equal(got.n_tokens, 60);
    assert_int_equal(got.reason, QN_REASON_LENGTH);
    for (size_t i = 0; i < 60; i++)
        assert_false(qn_tokenizer_is_end(qn_engine_tokenizer(t.engine), got.tokens[i]));
    qn_result_deinit(&got);
    close_talk(&t);
}

static void a_stop_token_is_not_returned(void **state) {
    (void)state;
    talk t = open_talk(mini, 512);
    qn_result plain =
        answer_text(t.session, story, &QN_INIT(qn_generate_opts, .max_tokens = 20), NULL);
    const int32_t stop = plain.tokens[7];
    size_t first = 0;
    while (plain.tokens[first] != stop) first++;
    qn_generate_opts opts =
        QN_INIT(qn_generate_opts, .max_tokens = 20, .stop_tokens = &stop, .n_stop_tokens = 1);
    qn_result got = answer_text(t.session, story, &opts, NULL);
    assert_int_equal(got.reason, QN_REASON_STOP);
    assert_int_equal(got.stop_token, stop);
    assert_int_equal(got.n_tokens, first);
    assert_memory_equal(got.tokens, plain.tokens, first * sizeof stop);
    qn_result_deinit(&got);
    opts.min_tokens = (int64_t)first + 3; // it cannot be chosen before
    got = answer_text(t.session, story, &opts, NULL);
    assert_true(got.n_tokens >= first + 3);
    for (size_t i = 0; i < got.n_tokens; i++) assert_int_not_equal(got.tokens[i], stop);
    qn_result_deinit(&got);
    qn_result_deinit(&plain);
    close_talk(&t);
}

// Every part of the answer's own text as a stop string: across borders of tokens, too.
static void a_stop_string_cuts_the_text(void **state) {
    (void)state;
    talk t = open_talk(mini, 512);
    heard *h = qn_alloc(1, sizeof *h);
    const qn_generate_opts plain_opts = QN_INIT(qn_generate_opts, .max_tokens = 30);
    qn_result plain = answer_text(t.session, story, &plain_opts, NULL);
    for (size_t at = 1; at + 8 < plain.text_size; at += 5) {
        char stop[8] = {0};
        memcpy(stop, plain.text + at, sizeof stop - 1);
        const char *const stops[] = {"never in this text", stop};
        for (int drafted = 0; drafted < 2; drafted++) {
            const qn_generate_opts opts =
                QN_INIT(qn_generate_opts, .max_tokens = 30, .stops = stops, .n_stops = 2,
                        .lookup = drafted, .draft_max = 6, .draft_min = drafted ? 6 : 0);
            qn_result got = answer_text(t.session, story, &opts, h);
            const size_t want = (size_t)(strstr(plain.text, stop) - plain.text);
            assert_int_equal(got.reason, QN_REASON_STOP);
            assert_int_equal(got.stop, 1);
            assert_int_equal(got.text_size, want);
            assert_int_equal(h->size, want); // nothing of it was shown
            assert_memory_equal(h->text, plain.text, want);
            assert_memory_equal(got.tokens, plain.tokens, got.n_tokens * sizeof *got.tokens);
            qn_result_deinit(&got);
        }
    }
    // A beginning of a stop that comes to nothing is shown in the end.
    char half[64] = {0};
    memcpy(half, plain.text + plain.text_size - 4, 4);
    strcat(half, "\x01 and more");
    const char *const stops[] = {half};
    const qn_generate_opts opts =
        QN_INIT(qn_generate_opts, .max_tokens = 30, .stops = stops, .n_stops = 1);
    qn_result got = answer_text(t.session, story, &opts, h);
    assert_same_answer(&got, &plain, "held back");
    assert_int_equal(h->size, plain.text_size);
    qn_result_deinit(&got);
    qn_result_deinit(&plain);
    qn_free(h);
    close_talk(&t);
}

static void early_stop_strings_are_text(void **state) {
    (void)state;
    talk t = open_talk(mini, 512);
    const char *const stops[] = {"e", "a"};
    const qn_generate_opts opts =
        QN_INIT(qn_generate_opts, .min_tokens = 12, .max_tokens = 60, .stops = stops, .n_stops = 2);
    qn_result got = answer_text(t.session, story, &opts, NULL);
    assert_int_equal(got.reason, QN_REASON_STOP);
    assert_true(got.n_tokens >= 12);
    assert_non_null(strpbrk(got.text, "ea"));
    qn_result_deinit(&got);
    close_talk(&t);
}

static void a_caller_can_end_it(void **state) {
    (void)state;
    talk t = open_talk(mini, 512);
    heard h = {.stop_after = 5};
    const char *const stops[] = {"\x01"};
    const qn_generate_opts opts =
        QN_INIT(qn_generate_opts, .stops = stops, .n_stops = 1, .lookup = true, .draft_min = 8);
    qn_result got = answer_text(t.session, story, &opts, &h);
    assert_int_equal(got.reason, QN_REASON_CALLER);
    assert_int_equal(got.n_tokens, 5);
    assert_int_equal(h.n, 5);
    assert_int_equal(h.n_ends, 0);
    size_t n;
    (void)qn_session_tokens(t.session, &n);
    assert_int_equal(n, (size_t)got.n_prompt + 5);
    assert_true(qn_session_cached(t.session) <= n);
    qn_result_deinit(&got);
    close_talk(&t);
}

// A vocabulary of bytes, where nearly every token is a part of a character.
static void characters_come_whole(void **state) {
    (void)state;
    talk t = open_talk("qwen3", CONTEXT);
    heard *h = qn_alloc(1, sizeof *h);
    for (uint64_t seed = 0; seed < 8; seed++) {
        int32_t ids[N_IDS];
        random_ids(ids, N_IDS, t.vocab, seed);
        *h = (heard){0};
        const qn_generate_opts opts = QN_INIT(
            qn_generate_opts, .sample = &QN_INIT(qn_sample_opts, .temperature = 2, .seed = seed),
            .max_tokens = 60, .ignore_end = true);
        qn_result got = answer(t.session, ids, N_IDS, &opts, hear, h);
        assert_int_equal(h->size, got.text_size);
        assert_memory_equal(h->text, got.text, got.text_size);
        qn_err err;
        char *text;
        size_t size;
        ASSERT_OK(qn_detokenize(&text, &size, qn_engine_tokenizer(t.engine), got.tokens,
                                got.n_tokens, false, &err));
        assert_int_equal(size, got.text_size);
        assert_memory_equal(text, got.text, size);
        qn_free(text);
        qn_result_deinit(&got);
    }
    qn_free(h);
    close_talk(&t);
}

// --- grammars ------------------------------------------------------------------------------------

static qn_grammar *make_grammar(const qn_engine *engine, qn_grammar_kind kind, const char *text) {
    qn_err err;
    qn_grammar *grammar = NULL;
    ASSERT_OK(qn_grammar_create(&grammar, qn_engine_tokenizer(engine), kind, text, strlen(text),
                                NULL, &err));
    return grammar;
}

// Whatever is drafted, the answer fits, and is the same.
static void a_grammar_is_kept(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t min_tokens;
        bool ignore_end;
    } cases[] = {
        {"[0-9]{3}-[a-f]{2}", 0, false},
        {"(yes|no|perhaps)", 0, false},
        {"[a-z ]{10,40}[.]", 0, false},
        {"[a-c]{4}", 50, false}, // complete before it is long enough: it ends
        {"[a-c]{4}d?", 0, true},
    };
    talk t = open_talk(mini, 512);
    qn_session *draft = open_session(t.engine, 512);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        qn_grammar *grammar = make_grammar(t.engine, QN_GRAMMAR_REGEX, cases[i].text);
        for (uint64_t seed = 0; seed < 4; seed++) {
            qn_generate_opts opts = QN_INIT(
                qn_generate_opts,
                .sample = &QN_INIT(qn_sample_opts, .temperature = seed ? 1.5f : 0, .seed = seed),
                .grammar = grammar, .min_tokens = cases[i].min_tokens,
                .ignore_end = cases[i].ignore_end);
            qn_result want = answer_text(t.session, story, &opts, NULL);
            assert_int_equal(want.reason, QN_REASON_END);
            qn_err err;
            bool fits = false;
            qn_matcher *matcher;
            ASSERT_OK(qn_matcher_create(&matcher, grammar, t.vocab, &err));
            ASSERT_OK(qn_matcher_feed(&fits, matcher, want.text, want.text_size, &err));
            if (!fits || !qn_matcher_may_end(matcher))
                fail_msg("%s: '%s'", cases[i].text, want.text);
            qn_matcher_destroy(matcher);
            opts.draft = draft;
            opts.lookup = seed % 2;
            opts.draft_max = opts.draft_min = 5;
            qn_result got = answer_text(t.session, story, &opts, NULL);
            assert_same_answer(&got, &want, cases[i].text);
            qn_result_deinit(&got);
            qn_result_deinit(&want);
        }
        qn_grammar_destroy(grammar);
    }
    qn_session_destroy(draft);
    close_talk(&t);
}

static void a_grammar_of_another_vocabulary_is_refused(void **state) {
    (void)state;
    qn_err err;
    talk t = open_talk(mini, 64), other = open_talk("qwen3", 64);
    qn_grammar *grammar = make_grammar(other.engine, QN_GRAMMAR_REGEX, "a");
    qn_generation *g;
    ASSERT_OK(qn_session_set_prompt(t.session, (const int32_t[]){1, 2, 3}, 3, &err));
    ASSERT_FAILS(
        qn_generation_create(&g, t.session, &QN_INIT(qn_generate_opts, .grammar = grammar), &err),
        QN_ARGUMENT, "4096");
    qn_grammar_destroy(grammar);
    close_talk(&t);
    close_talk(&other);
}

// --- log-probabilities ---------------------------------------------------------------------------

static double log_sum(const float *logits, int64_t n) {
    double sum_exp = 0;
    float max = logits[0]; // (a reduction with fmax makes gcc 12 for 64-bit ARM fail)
    for (int64_t i = 1; i < n; i++) max = logits[i] > max ? logits[i] : max;
    for (int64_t i = 0; i < n; i++) sum_exp += exp((double)logits[i] - (double)max);
    return (double)max + log(sum_exp);
}

// Prompt and answer against the logits of the whole text at once.
static void logprobs_are_those_of_the_text(void **state) {
    (void)state;
    heard *h = qn_alloc(2, sizeof *h);
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_err err;
        talk t = open_talk(families[f], CONTEXT);
        int32_t ids[100];
        random_ids(ids, 100, t.vocab, 3);
        qn_generate_opts opts = QN_INIT(
            qn_generate_opts, .sample = &QN_INIT(qn_sample_opts, .temperature = 1, .seed = 4),
            .max_tokens = 10, .ignore_end = true, .logprobs = true, .n_top = 3,
            .prompt_logprobs = true);
        for (int naive = 0; naive < 2; naive++) {
            h[naive] = (heard){0};
            opts.naive = naive;
            qn_result got = answer(t.session, ids, 100, &opts, hear, &h[naive]);
            assert_int_equal(h[naive].n_prompt, 99);
            assert_int_equal(h[naive].n, 109);
            assert_int_equal(got.n_tokens, 10);
            qn_result_deinit(&got);
        }
        assert_memory_equal(h[0].logprobs, h[1].logprobs, 109 * sizeof(float));
        assert_memory_equal(h[0].top, h[1].top, 109 * sizeof *h->top);
        size_t n;
        const int32_t *tokens = qn_session_tokens(t.session, &n);
        assert_int_equal(n, 110);
        qn_logits all = QN_INIT(qn_logits);
        ASSERT_OK(qn_engine_logits(&all, t.engine, tokens, n,
                                   &QN_INIT(qn_logits_opts, .all_rows = true), &err));
        for (size_t i = 1; i < n; i++) {
            const float *logits = all.logits + (int64_t)(i - 1) * t.vocab;
            const double base = log_sum(logits, t.vocab);
            int32_t best = 0;
            for (int32_t id = 1; id < t.vocab; id++) best = logits[id] > logits[best] ? id : best;
            assert_int_equal(h->tokens[i - 1], tokens[i]);
            assert_int_equal(h->positions[i - 1], i);
            assert_true(fabs((double)h->logprobs[i - 1] - ((double)logits[tokens[i]] - base)) <
                        1e-5);
            assert_int_equal(h->top[i - 1].token, best);
            assert_true(fabs((double)h->top[i - 1].logprob - ((double)logits[best] - base)) < 1e-5);
        }
        qn_logits_deinit(&all);
        close_talk(&t);
    }
    qn_free(h);
}

static void a_prompt_alone_has_logprobs(void **state) {
    (void)state;
    talk t = open_talk("qwen3", 64);
    heard *h = qn_alloc(1, sizeof *h);
    int32_t ids[64];
    random_ids(ids, 64, t.vocab, 3);
    const qn_generate_opts opts =
        QN_INIT(qn_generate_opts, .max_tokens = -1, .prompt_logprobs = true);
    qn_result got = answer(t.session, ids, 64, &opts, hear, h);
    assert_int_equal(h->n, 63);
    assert_int_equal(got.n_tokens, 0);
    assert_int_equal(got.reason, QN_REASON_LENGTH);
    qn_result_deinit(&got);
    *h = (heard){.stop_after = 9}; // a caller may stop here, too
    got = answer(t.session, ids, 64, &opts, hear, h);
    assert_int_equal(h->n, 9);
    assert_int_equal(got.reason, QN_REASON_CALLER);
    qn_result_deinit(&got);
    qn_free(h);
    close_talk(&t);
}

// --- a full context ------------------------------------------------------------------------------

static void a_full_context_ends_the_answer(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        talk t = open_talk(families[f], 60);
        int32_t ids[60];
        random_ids(ids, 60, t.vocab, 5);
        qn_generate_opts opts =
            QN_INIT(qn_generate_opts, .ignore_end = true, .lookup = true, .draft_min = 8);
        qn_result got = answer(t.session, ids, N_IDS, &opts, NULL, NULL);
        assert_int_equal(got.reason, QN_REASON_LENGTH);
        assert_int_equal(got.n_tokens, 60 - N_IDS);
        qn_result_deinit(&got);
        got = answer(t.session, ids, 60, &opts, NULL, NULL); // no room at all
        assert_int_equal(got.reason, QN_REASON_LENGTH);
        assert_int_equal(got.n_tokens, 0);
        qn_result_deinit(&got);
        close_talk(&t);
    }
}

// By hand: when the context is full, half of what comes after the kept tokens goes, and a new
// session reads what is left; positions go on.
static qn_result shift_by_hand(talk *t, const int32_t *ids, const qn_generate_opts *opts) {
    qn_err err;
    qn_result out =
        QN_INIT(qn_result, .tokens = qn_alloc((size_t)opts->max_tokens, sizeof *out.tokens));
    int32_t tokens[64];
    size_t n = N_IDS, shifted = 0;
    qn_chooser *chooser;
    ASSERT_OK(qn_chooser_create(&chooser, NULL, t->vocab, &err));
    ASSERT_OK(qn_chooser_set(chooser, opts->sample, &err));
    memcpy(tokens, ids, N_IDS * sizeof *ids);
    while (out.n_tokens < (size_t)opts->max_tokens) {
        if (n == 64) {
            const size_t keep = (size_t)opts->keep, dropped = (64 - keep) / 2;
            memmove(tokens + keep, tokens + keep + dropped, (64 - keep - dropped) * sizeof *tokens);
            n -= dropped;
            shifted += dropped;
        }
        qn_logits logits = QN_INIT(qn_logits);
        ASSERT_OK(qn_engine_logits(&logits, t->engine, tokens, n, NULL, &err));
        const qn_chooser_in in = {
            .logits = logits.logits, .tokens = tokens, .n_tokens = n, .position = n + shifted};
        ASSERT_OK(qn_chooser_choose(&tokens[n], chooser, &in, &err));
        out.tokens[out.n_tokens++] = tokens[n++];
        qn_logits_deinit(&logits);
    }
    qn_chooser_destroy(chooser);
    return out;
}

// Biases that forbid the end tokens; at most `most`.
static size_t forbid_ends(qn_bias *to, size_t max, const talk *t) {
    const qn_tokenizer *tokenizer = qn_engine_tokenizer(t->engine);
    size_t n = 0;
    for (int32_t id = 0; tokenizer && id < t->vocab; id++) {
        if (!qn_tokenizer_is_end(tokenizer, id)) continue;
        assert_true(n < max);
        to[n++] = (qn_bias){.token = id, .bias = -INFINITY};
    }
    return n;
}

static void a_shift_forgets_the_middle(void **state) {
    (void)state;
    qn_bias biases[16];
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_err err;
        talk t = open_talk(families[f], 64);
        int32_t ids[N_IDS];
        random_ids(ids, N_IDS, t.vocab, 6);
        qn_generate_opts opts =
            QN_INIT(qn_generate_opts,
                    .sample = &QN_INIT(qn_sample_opts, .temperature = 0.9f, .seed = 8,
                                       .biases = biases, .n_biases = forbid_ends(biases, 16, &t)),
                    .max_tokens = 120, .shift = true, .keep = 10);
        if (qn_engine_is_recurrent(t.engine)) {
            qn_generation *g;
            ASSERT_OK(qn_session_set_prompt(t.session, ids, N_IDS, &err));
            ASSERT_FAILS(qn_generation_create(&g, t.session, &opts, &err), QN_UNSUPPORTED,
                         "recurrent");
            close_talk(&t);
            continue;
        }
        qn_session *draft = open_session(t.engine, 64);
        qn_result want = shift_by_hand(&t, ids, &opts);
        for (int way = 0; way < 4; way++) {
            opts.naive = way == 1;
            opts.lookup = way == 2;
            opts.draft = way == 3 ? draft : NULL;
            opts.draft_min = way > 1 ? 4 : 0;
            qn_result got = answer(t.session, ids, N_IDS, &opts, NULL, NULL);
            assert_int_equal(got.n_tokens, 120);
            if (memcmp(got.tokens, want.tokens, 120 * sizeof *want.tokens) != 0)
                fail_msg("%s, way %d: the answer differs", families[f], way);
            assert_true(got.n_shifts >= 3);
            qn_result_deinit(&got);
        }
        qn_result_deinit(&want);
        qn_session_destroy(draft);
        close_talk(&t);
    }
}

// --- wrong use -----------------------------------------------------------------------------------

// The second turn of a chat computes the new tokens, and nothing of the first turn or its answer:
// also where layers keep a state instead of keys and values.
static void a_second_turn_computes_only_new_tokens(void **state) {
    (void)state;
    enum { FIRST = 90, MORE = 33, NEW = 12 };
    static const char *const models[] = {"qwen3", "qwen35", "qwen35_moe"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        talk t = open_talk(models[m], CONTEXT), fresh = open_talk(models[m], CONTEXT);
        const qn_generate_opts opts =
            QN_INIT(qn_generate_opts, .ignore_end = true, .max_tokens = NEW);
        int32_t ids[FIRST + NEW + MORE];
        random_ids(ids, FIRST, t.vocab, 51);
        random_ids(ids + FIRST + NEW, MORE, t.vocab, 52);
        qn_result first = answer(t.session, ids, FIRST, &opts, NULL, NULL);
        assert_int_equal(first.n_tokens, NEW);
        memcpy(ids + FIRST, first.tokens, NEW * sizeof *ids);
        const int64_t rows = session_counts(t.session).rows;
        qn_result second = answer(t.session, ids, FIRST + NEW + MORE, &opts, NULL, NULL);
        // The last token of an answer is chosen, not computed; so is that of the second one.
        assert_int_equal(second.n_reused, FIRST + NEW - 1);
        assert_int_equal(session_counts(t.session).rows - rows, 1 + MORE + NEW - 1);
        qn_result want = answer(fresh.session, ids, FIRST + NEW + MORE, &opts, NULL, NULL);
        assert_same_answer(&second, &want, models[m]);
        qn_result_deinit(&first);
        qn_result_deinit(&second);
        qn_result_deinit(&want);
        close_talk(&fresh);
        close_talk(&t);
    }
}

static void wrong_options_are_named(void **state) {
    (void)state;
    static const int32_t outside = 1 << 30;
    static const char *const empty[] = {""};
    static const qn_sample_opts cold = QN_INITIALIZER(qn_sample_opts, .temperature = -1),
                                no_number = QN_INITIALIZER(qn_sample_opts, .temperature = NAN);
    static const struct {
        qn_generate_opts opts;
        qn_status status;
        const char *part;
    } cases[] = {
        {QN_INITIALIZER(qn_generate_opts, .min_tokens = -1), QN_ARGUMENT, "min_tokens -1"},
        {QN_INITIALIZER(qn_generate_opts, .max_tokens = -2), QN_ARGUMENT, "max_tokens -2"},
        {QN_INITIALIZER(qn_generate_opts, .min_tokens = 9, .max_tokens = 8), QN_ARGUMENT,
         "min_tokens 9, max_tokens 8"},
        {QN_INITIALIZER(qn_generate_opts, .n_top = 257), QN_ARGUMENT, "n_top 257"},
        {QN_INITIALIZER(qn_generate_opts, .n_top = -1), QN_ARGUMENT, "n_top -1"},
        {QN_INITIALIZER(qn_generate_opts, .draft_max = -1), QN_ARGUMENT, "draft_max -1"},
        {QN_INITIALIZER(qn_generate_opts, .draft_min = 9), QN_ARGUMENT, "draft_min 9"},
        {QN_INITIALIZER(qn_generate_opts, .shift = true, .keep = -1), QN_ARGUMENT, "keep -1"},
        {QN_INITIALIZER(qn_generate_opts, .shift = true, .keep = CONTEXT - 1), QN_ARGUMENT,
         "keep 255, want 0 to 254"},
        {QN_INITIALIZER(qn_generate_opts, .n_stop_tokens = 2), QN_ARGUMENT, "the list is NULL"},
        {QN_INITIALIZER(qn_generate_opts, .stop_tokens = &outside, .n_stop_tokens = SIZE_MAX),
         QN_LIMIT, "at most 4096"},
        {QN_INITIALIZER(qn_generate_opts, .stop_tokens = &outside, .n_stop_tokens = 1), QN_ARGUMENT,
         "stop token 1073741824"},
        {QN_INITIALIZER(qn_generate_opts, .stops = empty, .n_stops = 1), QN_ARGUMENT, "stop"},
        {QN_INITIALIZER(qn_generate_opts, .sample = &cold), QN_ARGUMENT, "temperature"},
        {QN_INITIALIZER(qn_generate_opts, .sample = &no_number), QN_ARGUMENT, "temperature"},
    };
    qn_err err;
    talk t = open_talk("qwen3", CONTEXT);
    qn_generation *g = NULL;
    ASSERT_FAILS(qn_generation_create(&g, t.session, NULL, &err), QN_STATE,
                 "qn_session_set_prompt");
    ASSERT_OK(qn_session_set_prompt(t.session, (const int32_t[]){1, 2, 3}, 3, &err));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        ASSERT_FAILS(qn_generation_create(&g, t.session, &cases[i].opts, &err), cases[i].status,
                     cases[i].part);
    assert_null(g);
    const char **many = qn_alloc(100000, sizeof *many);
    for (size_t i = 0; i < 100000; i++) many[i] = "x";
    ASSERT_FAILS(qn_generation_create(&g, t.session,
                                      &QN_INIT(qn_generate_opts, .stops = many, .n_stops = 100000),
                                      &err),
                 QN_LIMIT, "100000");
    qn_free(many);
    assert_string_equal(qn_reason_name(QN_REASON_LENGTH), "length");
    assert_string_equal(qn_reason_name((qn_reason)99), "unknown");
    close_talk(&t);
}

// A history that somebody else has changed ends the row, with its own error.
static void a_changed_history_is_refused(void **state) {
    (void)state;
    qn_err err;
    talk t = open_talk("qwen3", CONTEXT);
    qn_generation *g;
    ASSERT_OK(qn_session_set_prompt(t.session, (const int32_t[]){1, 2, 3}, 3, &err));
    ASSERT_OK(qn_generation_create(&g, t.session, NULL, &err));
    ASSERT_OK(step_rows(NULL, &g, 1, NULL, NULL, &err));
    ASSERT_OK(qn_session_truncate(t.session, 2, &err));
    heard *h = qn_alloc(1, sizeof *h);
    ASSERT_FAILS(step_rows(NULL, &g, 1, hear, h, &err), QN_STATE,
                 "the session has 2 tokens, the generation left 4");
    assert_int_equal(g->result.reason, QN_REASON_FAILED);
    assert_int_equal(g->result.status, QN_STATE);
    assert_string_equal(g->result.message, err.message);
    assert_int_equal(h->n_ends, 1);
    assert_int_equal(h->reason, QN_REASON_FAILED);
    ASSERT_FAILS(step_rows(NULL, &g, 1, hear, h, &err), QN_STATE, "2 tokens"); // and is silent
    qn_generation_destroy(g);
    qn_free(h);
    close_talk(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generated_is_stepped),
        cmocka_unit_test(events_add_up),
        cmocka_unit_test(an_end_token_ends_the_answer),
        cmocka_unit_test(a_stop_token_is_not_returned),
        cmocka_unit_test(a_stop_string_cuts_the_text),
        cmocka_unit_test(early_stop_strings_are_text),
        cmocka_unit_test(a_caller_can_end_it),
        cmocka_unit_test(characters_come_whole),
        cmocka_unit_test(a_grammar_is_kept),
        cmocka_unit_test(a_grammar_of_another_vocabulary_is_refused),
        cmocka_unit_test(logprobs_are_those_of_the_text),
        cmocka_unit_test(a_prompt_alone_has_logprobs),
        cmocka_unit_test(a_full_context_ends_the_answer),
        cmocka_unit_test(a_shift_forgets_the_middle),
        cmocka_unit_test(a_second_turn_computes_only_new_tokens),
        cmocka_unit_test(wrong_options_are_named),
        cmocka_unit_test(a_changed_history_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
