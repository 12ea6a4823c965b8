// Speculative decoding changes no token: every family, greedy and sampled, whatever the drafts are.
#include "generate_rig.h"

#include "core/mem.h"

#include "model_writer.h"

#include <unistd.h>

enum { CONTEXT = 256, N_IDS = 40, N_NEW = 40 };

static const qn_sample_opts samples[] = {
    QN_INITIALIZER(qn_sample_opts),
    QN_INITIALIZER(qn_sample_opts, .temperature = 0.8f, .seed = 1),
    QN_INITIALIZER(qn_sample_opts, .temperature = 0.8f, .seed = 2),
    QN_INITIALIZER(qn_sample_opts, .temperature = 0.8f, .seed = 3),
    QN_INITIALIZER(qn_sample_opts, .temperature = 0),
    QN_INITIALIZER(qn_sample_opts, .temperature = 0.8f, .seed = 4, .top_k = 5),
};
enum { N_SAMPLES = sizeof samples / sizeof samples[0] };

// The last two ask for nothing but tokens: the best logits are enough for them.
static qn_generate_opts options(size_t sample) {
    const bool is_bare = sample >= N_SAMPLES - 2;
    return QN_INIT(qn_generate_opts, .sample = &samples[sample], .max_tokens = N_NEW,
                   .ignore_end = !is_bare, .logprobs = !is_bare, .n_top = 2);
}

// Half of the ids come twice, so that there is something to look up.
static void make_ids(int32_t *ids, int64_t vocab, uint64_t seed) {
    random_ids(ids, N_IDS / 2, vocab, seed);
    memcpy(ids + N_IDS / 2, ids, N_IDS / 2 * sizeof *ids);
}

// --- drafts -------------------------------------------------------------------------------------

// An oracle that errs as often as it is told to: it knows the true continuation.
typedef struct oracle {
    const int32_t *tokens; // (n) of the answer
    size_t n, n_prompt;
    uint64_t random;
    uint32_t errs; // one in this many drafted tokens is wrong; 0: none, 1: all
    int64_t vocab;
} oracle;

static int32_t draft_oracle(void *arg, int32_t *to, int32_t max, const int32_t *tokens, size_t n) {
    (void)tokens;
    oracle *o = arg;
    int32_t made = 0;
    while (made < max && n - o->n_prompt + (size_t)made < o->n) {
        const int32_t right = o->tokens[n - o->n_prompt + (size_t)made];
        const bool is_wrong = o->errs && next_random(&o->random) % o->errs == 0;
        to[made++] = is_wrong ? (int32_t)((right + 1) % o->vocab) : right;
    }
    return made;
}

// Ids that no model has; they must be dropped, not computed.
static int32_t draft_nonsense(void *arg, int32_t *to, int32_t max, const int32_t *tokens,
                              size_t n) {
    (void)arg, (void)tokens;
    for (int32_t i = 0; i < max; i++) to[i] = i == 1 ? INT32_MAX : n % 2 ? -1 : 1;
    return max;
}

static qn_result answer_drafted(qn_session *session, const int32_t *ids,
                                const qn_generate_opts *opts, qn_draft_fn *fn, void *arg,
                                heard *h) {
    qn_err err;
    qn_generation *g;
    ASSERT_OK(qn_session_set_prompt(session, ids, N_IDS, &err));
    ASSERT_OK(qn_generation_create(&g, session, opts, &err));
    g->drafter.fn = fn;
    g->drafter.fn_arg = arg;
    while (!g->result.reason) ASSERT_OK(step_rows(NULL, &g, 1, hear, h, &err));
    const qn_result result = g->result;
    g->result = QN_INIT(qn_result);
    qn_generation_destroy(g);
    return result;
}

static void assert_same_heard(const heard *got, const heard *want, const char *what) {
    assert_int_equal(got->n, want->n);
    assert_int_equal(got->size, want->size);
    assert_memory_equal(got->text, want->text, want->size);
    if (memcmp(got->logprobs, want->logprobs, want->n * sizeof *want->logprobs) != 0 ||
        memcmp(got->top, want->top, want->n * sizeof *want->top) != 0)
        fail_msg("%s: log-probabilities differ", what);
    assert_memory_equal(got->positions, want->positions, want->n * sizeof *want->positions);
}

static void any_drafted_tokens_give_the_plain_answer(void **state) {
    (void)state;
    static const uint32_t errs[] = {0, 1, 2, 5};
    heard *plain = qn_alloc(2, sizeof *plain), *h = plain + 1;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        talk t = open_talk(families[f], CONTEXT);
        int32_t ids[N_IDS];
        make_ids(ids, t.vocab, 7);
        for (size_t i = 0; i < N_SAMPLES; i++) {
            qn_generate_opts opts = options(i);
            *plain = (heard){0};
            qn_result want = answer(t.session, ids, N_IDS, &opts, hear, plain);
            if (opts.ignore_end) assert_int_equal(want.n_tokens, N_NEW);
            if (opts.ignore_end) assert_int_equal(want.n_steps, N_NEW - 1); // the prompt gave one
            for (int k = 0; k < 5; k++) {
                oracle o = {.tokens = want.tokens,
                            .n = want.n_tokens,
                            .n_prompt = N_IDS,
                            .random = (uint64_t)k,
                            .errs = errs[k % 4],
                            .vocab = t.vocab};
                opts.draft_max = opts.draft_min = 1 + (int32_t)((f + 3 * i + (size_t)k) % 16);
                *h = (heard){0};
                qn_result got = answer_drafted(t.session, ids, &opts,
                                               k == 4 ? draft_nonsense : draft_oracle, &o, h);
                assert_same_answer(&got, &want, families[f]);
                assert_same_heard(h, plain, families[f]);
                assert_int_equal(h->n_drafted, got.n_accepted);
                if (k == 0) assert_int_equal(got.n_accepted, got.n_drafted);
                if (k == 1) assert_int_equal(got.n_accepted, 0);
                if (k < 4 && want.n_tokens > 2) assert_true(got.n_drafted > 0);
                if (k == 0 && want.n_tokens > 2) assert_true(got.n_steps < want.n_steps);
                qn_result_deinit(&got);
            }
            qn_result_deinit(&want);
        }
        close_talk(&t);
    }
    qn_free(plain);
}

// The same model as its own draft is right but for the state it drafts from: every rollback of the
// draft's own state is seen in the number of right tokens. Another model, and the text itself, are
// right by chance.
static void any_draft_gives_the_plain_answer(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        talk t = open_talk(families[f], CONTEXT);
        qn_session *own = open_session(t.engine, CONTEXT);
        int32_t ids[N_IDS];
        make_ids(ids, t.vocab, 8);
        for (size_t i = 0; i < N_SAMPLES; i++) {
            qn_generate_opts opts = options(i);
            qn_sample_opts sample = samples[i];
            if (sample.top_k == 0) sample.top_k = 30; // a draft looks at the likely ones
            opts.sample = &sample;
            qn_result want = answer(t.session, ids, N_IDS, &opts, NULL, NULL);
            opts.draft_max = opts.draft_min = 5;
            opts.draft = own;
            qn_result got = answer(t.session, ids, N_IDS, &opts, NULL, NULL);
            assert_same_answer(&got, &want, families[f]);
            assert_true(got.n_drafted > 0);
            if (want.reason == QN_REASON_LENGTH) // else some were drafted after the end
                assert_int_equal(got.n_accepted, got.n_drafted);
            qn_result_deinit(&got);
            opts.draft = NULL;
            opts.lookup = true;
            got = answer(t.session, ids, N_IDS, &opts, NULL, NULL);
            assert_same_answer(&got, &want, families[f]);
            qn_result_deinit(&got);
            opts.draft = own;
            opts.draft_min = 0; // as many as pay: any number gives the same
            got = answer(t.session, ids, N_IDS, &opts, NULL, NULL);
            assert_same_answer(&got, &want, families[f]);
            qn_result_deinit(&got);
            qn_result_deinit(&want);
        }
        qn_session_destroy(own);
        close_talk(&t);
    }
}

// Models with one tokenizer draft for each other, and are rarely right: their state is rolled back
// nearly each time.
static void another_model_as_draft(void **state) {
    (void)state;
    static const char *const models[] = {"llama32",   "llama_untied", "qwen3",
                                         "qwen3_moe", "qwen35",       "qwen35_moe"};
    enum { N = sizeof models / sizeof models[0] };
    talk talks[N];
    for (size_t i = 0; i < N; i++) talks[i] = open_talk(models[i], CONTEXT);
    for (size_t i = 0; i < N; i++) {
        const talk *t = &talks[i], *other = &talks[(i + 1) % N];
        int32_t ids[N_IDS];
        make_ids(ids, t->vocab, 9);
        for (size_t k = 0; k < N_SAMPLES; k++) {
            qn_generate_opts opts = options(k);
            qn_result want = answer(t->session, ids, N_IDS, &opts, NULL, NULL);
            opts.draft = other->session;
            opts.draft_max = opts.draft_min = 4;
            qn_result got = answer(t->session, ids, N_IDS, &opts, NULL, NULL);
            assert_same_answer(&got, &want, models[i]);
            assert_true(got.n_drafted > 0);
            assert_true(got.n_accepted < got.n_drafted);
            qn_result_deinit(&got);
            qn_result_deinit(&want);
        }
    }
    for (size_t i = 0; i < N; i++) close_talk(&talks[i]);
}

// Models of one tokenizer whose logits have different numbers of entries after its tokens; masks
// have the model's.
static void a_draft_may_have_more_or_fewer_logits(void **state) {
    (void)state;
    char path[] = "/tmp/quern-wide-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    model_file *m = model_load(TEST_DATA "/mini/qwen3/qwen3-bf16.gguf");
    model_edit(m, "shape token_embd.weight 16384 64; shape output.weight 16384 64");
    model_write_gguf(m, path);
    model_free(m);
    talk talks[] = {open_talk("qwen3", CONTEXT), open_talk(path, CONTEXT)};
    assert_true(talks[1].vocab > talks[0].vocab);
    for (int i = 0; i < 2; i++) {
        int32_t ids[N_IDS];
        make_ids(ids, talks[0].vocab, 11);
        qn_generate_opts opts = QN_INIT(qn_generate_opts, .max_tokens = N_NEW, .ignore_end = true);
        qn_result want = answer(talks[i].session, ids, N_IDS, &opts, NULL, NULL);
        opts.draft = talks[1 - i].session;
        opts.draft_max = opts.draft_min = 4;
        qn_result got = answer(talks[i].session, ids, N_IDS, &opts, NULL, NULL);
        assert_same_answer(&got, &want, i ? "the wide one" : "the narrow one");
        assert_true(got.n_drafted > 0);
        qn_result_deinit(&got);
        qn_result_deinit(&want);
    }
    for (int i = 0; i < 2; i++) close_talk(&talks[i]);
    unlink(path);
}

// The bundled models, which were trained on the same text: right often, not always.
static void a_trained_draft_is_right_often(void **state) {
    (void)state;
    qn_err err;
    static const char prompt[] = "<|im_start|>user\nTell me a story about a fox.<|im_end|>\n"
                                 "<|im_start|>assistant\n";
    static const char *const targets[] = {MODELS "/quern-mini-Q8_0.gguf",
                                          MODELS "/quern-hybrid-Q8_0.gguf"};
    talk draft = open_talk(MODELS "/quern-draft-Q8_0.gguf", 512);
    for (int m = 0; m < 2; m++) {
        talk t = open_talk(targets[m], 512);
        int32_t *ids;
        size_t n;
        ASSERT_OK(qn_tokenize(&ids, &n, qn_engine_tokenizer(t.engine), prompt, sizeof prompt - 1,
                              &QN_INIT(qn_tokenize_opts, .special = true), &err));
        for (size_t i = 0; i < N_SAMPLES; i++) {
            qn_generate_opts opts =
                QN_INIT(qn_generate_opts, .sample = &samples[i], .max_tokens = 60);
            qn_result want = answer(t.session, ids, n, &opts, NULL, NULL);
            opts.draft = draft.session;
            opts.draft_max = opts.draft_min = 4;
            opts.lookup = i % 2;
            qn_result got = answer(t.session, ids, n, &opts, NULL, NULL);
            assert_same_answer(&got, &want, targets[m]);
            assert_true(got.n_accepted > got.n_drafted / 4);
            assert_true(got.n_accepted < got.n_drafted);
            qn_result_deinit(&got);
            qn_result_deinit(&want);
        }
        // The smaller model is helped by the larger one, too: a draft with recurrent state.
        qn_generate_opts opts = QN_INIT(qn_generate_opts, .sample = &samples[1], .max_tokens = 60);
        qn_result want = answer(draft.session, ids, n, &opts, NULL, NULL);
        opts.draft = t.session;
        opts.draft_max = opts.draft_min = 4;
        qn_result got = answer(draft.session, ids, n, &opts, NULL, NULL);
        assert_same_answer(&got, &want, "draft");
        assert_true(got.n_accepted > got.n_drafted / 4);
        qn_result_deinit(&got);
        qn_result_deinit(&want);
        qn_free(ids);
        close_talk(&t);
    }
    close_talk(&draft);
}

// --- in company ----------------------------------------------------------------------------------

enum { ROWS = 5 };

// Rows of different lengths and settings: drafted for by an oracle, a draft model, lookup, or not
// at all; each is what it is alone.
static void rows_draft_while_others_do_not(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_err err;
        talk t = open_talk(families[f], CONTEXT);
        qn_session *draft = open_session(t.engine, CONTEXT), *sessions[ROWS];
        qn_generation *gens[ROWS];
        qn_result want[ROWS];
        oracle o = {.n_prompt = N_IDS, .errs = 3, .vocab = t.vocab};
        for (size_t i = 0; i < ROWS; i++) {
            int32_t ids[N_IDS];
            make_ids(ids, t.vocab, 20 + i);
            qn_generate_opts opts = options(i % N_SAMPLES);
            opts.max_tokens = 10 + 7 * (int64_t)i;
            want[i] = answer(t.session, ids, N_IDS, &opts, NULL, NULL);
            opts.draft_max = opts.draft_min = 6;
            opts.draft = i == 1 ? draft : NULL;
            opts.lookup = i == 2;
            ASSERT_OK(qn_session_create(&sessions[i], t.engine,
                                        &QN_INIT(qn_session_opts, .share = t.session), &err));
            ASSERT_OK(qn_session_set_prompt(sessions[i], ids, N_IDS, &err));
            ASSERT_OK(qn_generation_create(&gens[i], sessions[i], &opts, &err));
            if (i != 3) continue;
            o.tokens = want[i].tokens;
            o.n = want[i].n_tokens;
            gens[i]->drafter.fn = draft_oracle;
            gens[i]->drafter.fn_arg = &o;
        }
        size_t n_active = ROWS;
        while (n_active) ASSERT_OK(step_rows(&n_active, gens, ROWS, NULL, NULL, &err));
        for (size_t i = 0; i < ROWS; i++) {
            assert_same_answer(&gens[i]->result, &want[i], families[f]);
            const int64_t n_drafted = gens[i]->result.n_drafted;
            if (i == 0 || i == 4) assert_int_equal(n_drafted, 0);
            if (i == 1 || i == 3) assert_true(n_drafted > 0);
            qn_generation_destroy(gens[i]);
            qn_session_destroy(sessions[i]);
            qn_result_deinit(&want[i]);
        }
        qn_session_destroy(draft);
        close_talk(&t);
    }
}

// A session goes on after an answer with drafts as after one without.
static void a_session_goes_on_after_drafts(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_err err;
        talk t = open_talk(families[f], CONTEXT);
        int32_t ids[N_IDS], token;
        make_ids(ids, t.vocab, 30);
        t.session->wants_logits = true;
        qn_generate_opts opts = options(1);
        qn_result plain = answer(t.session, ids, N_IDS, &opts, NULL, NULL);
        oracle o = {.tokens = plain.tokens,
                    .n = plain.n_tokens,
                    .n_prompt = N_IDS,
                    .errs = 4,
                    .vocab = t.vocab};
        opts.draft_max = opts.draft_min = 7;
        heard h = {0};
        qn_result got = answer_drafted(t.session, ids, &opts, draft_oracle, &o, &h);
        for (int k = 0; k < 3; k++) {
            qn_logits fresh = QN_INIT(qn_logits);
            size_t n;
            const int32_t *tokens = qn_session_tokens(t.session, &n);
            ASSERT_OK(qn_engine_logits(&fresh, t.engine, tokens, n, NULL, &err));
            ASSERT_OK(qn_session_step(&token, t.session, NULL, &err));
            assert_memory_equal(qn_session_logits(t.session), fresh.logits,
                                (size_t)t.vocab * sizeof(float));
            qn_logits_deinit(&fresh);
        }
        qn_result_deinit(&got);
        qn_result_deinit(&plain);
        close_talk(&t);
    }
}

static void wrong_drafts_are_refused(void **state) {
    (void)state;
    qn_err err;
    talk t = open_talk("qwen3", CONTEXT), other = open_talk(MODELS "/quern-draft-Q8_0.gguf", 64);
    int32_t ids[N_IDS];
    make_ids(ids, t.vocab, 1);
    qn_generation *gens[1];
    ASSERT_OK(qn_session_set_prompt(t.session, ids, N_IDS, &err));
    ASSERT_FAILS(qn_generation_create(gens, t.session,
                                      &QN_INIT(qn_generate_opts, .draft = other.session), &err),
                 QN_ARGUMENT, "4096 tokens, the model");
    ASSERT_FAILS(
        qn_generation_create(gens, t.session, &QN_INIT(qn_generate_opts, .draft = t.session), &err),
        QN_ARGUMENT, "draft session");
    ASSERT_FAILS(qn_generation_create(gens, t.session,
                                      &QN_INIT(qn_generate_opts, .draft_max = 3, .draft_min = 4),
                                      &err),
                 QN_ARGUMENT, "draft_min 4");
    ASSERT_FAILS(
        qn_generation_create(gens, t.session, &QN_INIT(qn_generate_opts, .draft_max = 17), &err),
        QN_ARGUMENT, "draft_max 17");
    close_talk(&t);
    close_talk(&other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_drafted_tokens_give_the_plain_answer),
        cmocka_unit_test(any_draft_gives_the_plain_answer),
        cmocka_unit_test(another_model_as_draft),
        cmocka_unit_test(a_draft_may_have_more_or_fewer_logits),
        cmocka_unit_test(a_trained_draft_is_right_often),
        cmocka_unit_test(rows_draft_while_others_do_not),
        cmocka_unit_test(a_session_goes_on_after_drafts),
        cmocka_unit_test(wrong_drafts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
