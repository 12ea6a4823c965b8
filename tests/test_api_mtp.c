// The prediction head (MTP): its logits, wherever they are asked for, and answers that it drafts.
#include "generate_rig.h"
#include "format_files.h"
#include "golden.h"
#include "model_writer.h"

#include "core/file.h"
#include "core/mem.h"
#include "runtime/runner_int.h"

enum { CONTEXT = 256, N_IDS = 40, N_NEW = 40 };

static const char *const heads[] = {"qwen35", "qwen35_moe"};
enum { N_HEADS = sizeof heads / sizeof *heads };

// These and a trained one, of which a few tokens do.
static const char *const drafting[] = {"qwen35", "qwen35_moe", MODELS "/quern-hybrid-Q8_0.gguf"};
enum { N_DRAFTING = sizeof drafting / sizeof *drafting, N_FEW = 12 };

static const qn_engine_opts with_head = QN_INITIALIZER(qn_engine_opts, .mtp = true);

// Logits of the head for all ids; release with qn_logits_deinit.
static qn_logits predict_all(const qn_engine *engine, const int32_t *ids, size_t n, int64_t chunk,
                             bool all_rows) {
    qn_err err;
    qn_logits got = QN_INIT(qn_logits);
    const qn_logits_opts opts =
        QN_INIT(qn_logits_opts, .mtp = true, .all_rows = all_rows, .chunk = chunk);
    ASSERT_OK(qn_engine_logits(&got, engine, ids, n, &opts, &err));
    return got;
}

static void logits_match_the_reference(void **state) {
    (void)state;
    for (size_t f = 0; f < N_HEADS; f++) {
        for (int is_reference = 0; is_reference < 2; is_reference++) {
            int32_t ids[GOLDEN_IDS];
            char folder[256];
            snprintf(folder, sizeof folder, "%s/mini/%s", TEST_DATA, heads[f]);
            golden g = golden_open(folder, "golden.safetensors");
            const size_t n = golden_ids(ids, &g, "prompts", 1);
            qn_engine_opts opts = with_head;
            opts.reference = is_reference;
            qn_engine *engine = family_open(heads[f], &opts);
            qn_logits got = predict_all(engine, ids, n, 0, true);
            int64_t n_want = 0;
            float *want = golden_floats(&g, "mtp_logits.1", &n_want);
            assert_int_equal(got.n_mtp, n - 1);
            assert_int_equal(got.n_mtp * got.n_vocab, n_want);
            const double error = relative_error(got.mtp, want, n_want);
            print_message("%-12s %s: %.1e\n", heads[f], is_reference ? "ref" : "plan", error);
            assert_true(error <= 1e-4);
            qn_logits_deinit(&got);
            qn_free(want);
            golden_close(&g);
            qn_engine_close(engine);
        }
    }
}

static void chunks_threads_and_devices_change_no_bit(void **state) {
    (void)state;
    static const struct {
        const char *device;
        int n_threads;
        int64_t chunk;
    } ways[] = {{NULL, 1, 0}, {NULL, 2, 1}, {NULL, 1, 7}, {"ref", 1, 0}, {"cpu,ref", 2, 5}};
    for (size_t f = 0; f < N_HEADS; f++) {
        qn_logits want = QN_INIT(qn_logits);
        int32_t ids[N_IDS];
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            qn_engine_opts opts = with_head;
            opts.device = ways[i].device;
            opts.n_threads = ways[i].n_threads;
            qn_engine *engine = family_open(heads[f], &opts);
            random_ids(ids, N_IDS, engine_info(engine).n_vocab, 3);
            qn_logits got = predict_all(engine, ids, N_IDS, ways[i].chunk, true);
            qn_logits last = predict_all(engine, ids, N_IDS, ways[i].chunk, false);
            const size_t row = (size_t)got.n_vocab * sizeof(float);
            assert_int_equal(last.n_mtp, 1);
            assert_memory_equal(last.mtp, got.mtp + (got.n_mtp - 1) * got.n_vocab, row);
            qn_logits_deinit(&last);
            qn_engine_close(engine);
            if (i == 0) {
                want = got;
                continue;
            }
            assert_memory_equal(got.mtp, want.mtp, (size_t)got.n_mtp * row);
            assert_memory_equal(got.logits, want.logits, (size_t)got.n_rows * row);
            qn_logits_deinit(&got);
        }
        qn_logits_deinit(&want);
    }
}

// --- sessions ------------------------------------------------------------------------------------

static void assert_predicts(qn_session *session, int32_t next, const qn_logits *want, size_t row) {
    qn_err err;
    const float *logits = NULL;
    ASSERT_OK(qn_session_predict(&logits, session, next, &err));
    assert_memory_equal(logits, want->mtp + (int64_t)row * want->n_vocab,
                        (size_t)want->n_vocab * sizeof *logits);
}

// At each token, after forks, snapshots, truncation, and where the prefix came from the cache.
static void sessions_predict_as_the_whole_text_does(void **state) {
    (void)state;
    for (size_t f = 0; f < N_HEADS; f++) {
        qn_err err;
        int32_t ids[N_IDS];
        const float *logits;
        qn_snapshot *snapshot;
        qn_session *fork;
        qn_engine *engine = family_open(heads[f], &with_head);
        random_ids(ids, N_IDS, engine_info(engine).n_vocab, 4);
        qn_logits want = predict_all(engine, ids, N_IDS, 0, true);
        qn_session *session = open_session(engine, CONTEXT);
        ASSERT_OK(qn_session_prefill(&logits, session, ids, 20, &err));
        for (size_t n = 20; n < 30; n++) {
            assert_predicts(session, ids[n], &want, n - 1);
            ASSERT_OK(qn_session_feed(&logits, session, ids[n], &err));
            assert_memory_equal(logits, want.logits + (int64_t)n * want.n_vocab,
                                (size_t)want.n_vocab * sizeof *logits);
        }
        ASSERT_OK(qn_session_checkpoint(&snapshot, session, &err));
        ASSERT_OK(qn_session_fork(&fork, session, &err));
        ASSERT_OK(qn_session_feed(&logits, session, ids[30] ? 0 : 1, &err)); // goes astray
        assert_predicts(fork, ids[30], &want, 29);
        ASSERT_OK(qn_session_restore(session, snapshot, &err));
        assert_predicts(session, ids[30], &want, 29);
        ASSERT_OK(qn_session_feed(&logits, session, ids[30], &err));
        assert_predicts(session, ids[31], &want, 30);
        qn_snapshot_destroy(snapshot);
        qn_session_destroy(fork);
        ASSERT_OK(qn_session_truncate(session, 20, &err));
        ASSERT_FAILS(qn_session_predict(&logits, session, ids[20], &err), QN_STATE, "prefill");
        ASSERT_OK(qn_session_prefill(&logits, session, ids, 31, &err)); // partly from the cache
        assert_predicts(session, ids[31], &want, 30);
        qn_session_destroy(session);
        qn_logits_deinit(&want);
        qn_engine_close(engine);
    }
}

// --- answers -------------------------------------------------------------------------------------

static const qn_sample_opts samples[] = {
    QN_INITIALIZER(qn_sample_opts),
    QN_INITIALIZER(qn_sample_opts, .temperature = 0.8f, .seed = 1),
    QN_INITIALIZER(qn_sample_opts, .temperature = 0.8f, .seed = 4, .top_k = 5),
    QN_INITIALIZER(qn_sample_opts, .temperature = 0.7f, .seed = 2, .repeat_penalty = 1.3f),
};
enum { N_SAMPLES = sizeof samples / sizeof *samples };

static qn_generate_opts options(size_t i, int32_t draft) {
    return QN_INIT(qn_generate_opts, .sample = &samples[i % N_SAMPLES], .max_tokens = N_NEW,
                   .ignore_end = i % 2 == 0, .logprobs = i == 1, .n_top = 2, .mtp = draft > 0,
                   .mtp_fast = draft % 2 == 0 && draft > 0, .draft_max = draft, .draft_min = draft);
}

// The engine without a head is the measure.
static void drafted_answers_are_the_plain_ones(void **state) {
    (void)state;
    for (size_t f = 0; f < N_DRAFTING; f++) {
        const int64_t n_new = f < N_HEADS ? N_NEW : N_FEW;
        talk plain = open_talk(drafting[f], CONTEXT);
        qn_engine *engine = family_open(drafting[f], &with_head);
        qn_session *session = open_session(engine, CONTEXT);
        int32_t ids[N_IDS];
        random_ids(ids, N_IDS, plain.vocab, 7);
        for (size_t i = 0; i < N_SAMPLES; i++) {
            qn_generate_opts opts = options(i, 0);
            opts.max_tokens = n_new;
            qn_result want = answer(plain.session, ids, N_IDS, &opts, NULL, NULL);
            for (int32_t draft = 0; draft < (f < N_HEADS ? 6 : 4); draft++) {
                opts = options(i, draft);
                opts.max_tokens = n_new;
                qn_result got = answer(session, ids, N_IDS, &opts, NULL, NULL);
                assert_same_answer(&got, &want, drafting[f]);
                assert_int_equal(got.n_drafted > 0, draft > 0);
                qn_result_deinit(&got);
            }
            qn_result_deinit(&want);
        }
        qn_session_destroy(session);
        qn_engine_close(engine);
        close_talk(&plain);
    }
}

// Rows that draft with the head, by lookup, or not at all, in one step.
static void rows_of_a_batch_draft_together(void **state) {
    (void)state;
    enum { ROWS = 5 };
    for (size_t f = 0; f < N_DRAFTING; f++) {
        qn_err err;
        qn_engine *engine = family_open(drafting[f], &with_head);
        const int64_t vocab = engine_info(engine).n_vocab;
        qn_session *first = open_session(engine, CONTEXT), *sessions[ROWS];
        qn_generation *gens[ROWS];
        qn_result want[ROWS];
        for (size_t i = 0; i < ROWS; i++) {
            int32_t ids[N_IDS];
            random_ids(ids, N_IDS, vocab, 20 + i);
            qn_generate_opts opts = options(i, 0);
            opts.max_tokens = f < N_HEADS ? 10 + 7 * (int64_t)i : 5 + (int64_t)i;
            want[i] = answer(first, ids, N_IDS, &opts, NULL, NULL);
            const int64_t max_tokens = opts.max_tokens;
            opts = options(i, i == 4 ? 0 : 1 + (int32_t)i);
            opts.max_tokens = max_tokens;
            opts.lookup = i == 3;
            ASSERT_OK(qn_session_create(&sessions[i], engine,
                                        &QN_INIT(qn_session_opts, .share = first), &err));
            ASSERT_OK(qn_session_set_prompt(sessions[i], ids, N_IDS, &err));
            ASSERT_OK(qn_generation_create(&gens[i], sessions[i], &opts, &err));
        }
        size_t n_active = ROWS;
        while (n_active) ASSERT_OK(step_rows(&n_active, gens, ROWS, NULL, NULL, &err));
        for (size_t i = 0; i < ROWS; i++) {
            assert_same_answer(&gens[i]->result, &want[i], drafting[f]);
            assert_int_equal(gens[i]->result.n_drafted > 0, i != 4);
            qn_generation_destroy(gens[i]);
            qn_session_destroy(sessions[i]);
            qn_result_deinit(&want[i]);
        }
        qn_session_destroy(first);
        qn_engine_close(engine);
    }
}

// The head of the bundled model was trained: most of what it drafts is right, also under a grammar.
static void a_trained_head_is_mostly_right(void **state) {
    (void)state;
    qn_err err;
    qn_engine *engine = NULL;
    ASSERT_OK(qn_engine_open(&engine, MODELS "/quern-hybrid-Q8_0.gguf", &with_head, &err));
    const qn_tokenizer *tokenizer = qn_engine_tokenizer(engine);
    int32_t *ids = NULL;
    size_t n = 0;
    const char *text = "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n";
    ASSERT_OK(qn_tokenize(&ids, &n, tokenizer, text, strlen(text),
                          &QN_INIT(qn_tokenize_opts, .special = true), &err));
    qn_grammar *grammar = NULL;
    const char *pattern = "[A-Za-z ,.']{40,200}";
    ASSERT_OK(qn_grammar_create(&grammar, tokenizer, QN_GRAMMAR_REGEX, pattern, strlen(pattern),
                                NULL, &err));
    for (int with_grammar = 0; with_grammar < 2; with_grammar++) {
        qn_generate_opts opts =
            QN_INIT(qn_generate_opts, .max_tokens = 100, .grammar = with_grammar ? grammar : NULL);
        qn_session *session = open_session(engine, 512);
        qn_result want = answer(session, ids, n, &opts, NULL, NULL);
        opts.mtp = true;
        opts.draft_max = opts.draft_min = 1;
        qn_result got = answer(session, ids, n, &opts, NULL, NULL);
        assert_same_answer(&got, &want, "hybrid");
        print_message("%lld of %lld drafts accepted\n", (long long)got.n_accepted,
                      (long long)got.n_drafted);
        assert_true(4 * got.n_accepted > 3 * got.n_drafted && got.n_drafted > 10);
        qn_result_deinit(&want);
        qn_result_deinit(&got);
        qn_session_destroy(session);
    }
    qn_grammar_destroy(grammar);
    qn_free(ids);
    qn_engine_close(engine);
}

// Random weights: the head is practically never right. Once it has failed some thirty times, 0
// drafts are chosen whatever a step costs on this machine (gen/draft.c), but for a try of two
// tokens after 64 steps, the next after 128 more.
static void a_head_that_is_never_right_stops_drafting(void **state) {
    (void)state;
    enum { FORCED = 50, FREE = 120, PROMPT = 8 };
    for (size_t f = 0; f < N_HEADS; f++) {
        qn_engine *engine = family_open(heads[f], &with_head);
        qn_session *session = open_session(engine, FREE + 2 * PROMPT);
        int32_t ids[PROMPT];
        random_ids(ids, PROMPT, engine_info(engine).n_vocab, 31);
        qn_generate_opts opts = QN_INIT(qn_generate_opts, .max_tokens = FORCED, .ignore_end = true,
                                        .mtp = true, .draft_min = 1, .draft_max = 1);
        qn_result forced = answer(session, ids, PROMPT, &opts, NULL, NULL);
        opts.max_tokens = FREE;
        opts.draft_min = opts.draft_max = 0;
        qn_result chosen = answer(session, ids, PROMPT, &opts, NULL, NULL);
        print_message("%-12s %lld of %lld drafts accepted, then %lld drafts in %d tokens\n",
                      heads[f], (long long)forced.n_accepted, (long long)forced.n_drafted,
                      (long long)chosen.n_drafted, FREE);
        assert_true(forced.n_drafted > 30 && 20 * forced.n_accepted <= forced.n_drafted);
        assert_true(chosen.n_drafted <= 2);
        qn_result_deinit(&forced);
        qn_result_deinit(&chosen);
        qn_session_destroy(session);
        qn_engine_close(engine);
    }
}

// --- models of other sizes -----------------------------------------------------------------------

enum { LARGE = QN_MTP_FAST + 300 };

static void copy_tokenizer(void **state) {
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json"};
    for (size_t i = 0; i < 2; i++) {
        char path[256], *text;
        size_t size;
        qn_err err;
        snprintf(path, sizeof path, TEST_DATA "/mini/qwen35/%s", names[i]);
        ASSERT_OK(qn_file_load(&text, &size, path, 1 << 24, &err));
        put_file(state, names[i], text, size);
        qn_free(text);
    }
}

// The rows that a larger matrix got: those of others, and twice those where the fast head ends, so
// that these logits are mostly the best.
static void fill_rows(model_tensor *t, size_t from) {
    const size_t bytes = t->bytes / (size_t)t->dims[0];
    for (size_t row = from; row < (size_t)t->dims[0]; row++) {
        unsigned char *to = t->data + row * bytes;
        memcpy(to, t->data + row * 7 % from * bytes, bytes);
        for (size_t i = 1; i < bytes && row >= QN_MTP_FAST; i += 2) { // most of BF16's exponent
            if (to[i] & 0x7f) to[i] = (unsigned char)(to[i] + 1);
        }
    }
}

// The checkpoint of qwen35 with another vocabulary and other changes.
static void write_changed(void **state, int64_t vocab, const char *edits) {
    char text[256];
    model_file *m = model_load(TEST_DATA "/mini/qwen35");
    const size_t from = (size_t)model_find(m, "lm_head.weight")->dims[0];
    snprintf(text, sizeof text,
             "shape model.embed_tokens.weight %lld 64; shape lm_head.weight %lld 64; "
             "set vocab_size %lld%s",
             (long long)vocab, (long long)vocab, (long long)vocab, edits);
    model_edit(m, text);
    fill_rows(model_find(m, "model.embed_tokens.weight"), from);
    fill_rows(model_find(m, "lm_head.weight"), from);
    model_write_checkpoint(m, *state, 1);
    model_free(m);
}

static qn_engine *open_changed(void **state, const qn_engine_opts *opts) {
    qn_err err;
    qn_engine *engine = NULL;
    ASSERT_OK(qn_engine_open(&engine, *state, opts, &err));
    return engine;
}

// A head beside a draft model of the same tokens with as many or more logits.
static void a_head_and_a_draft_model_have_their_own_vocabularies(void **state) {
    static const int64_t vocabs[] = {512, 640, 20000};
    qn_engine *engine = family_open("qwen35", &with_head);
    const int64_t vocab = engine_info(engine).n_vocab;
    int32_t ids[N_IDS];
    random_ids(ids, N_IDS, vocab, 12);
    for (size_t v = 0; v < sizeof vocabs / sizeof *vocabs; v++) {
        write_changed(state, vocabs[v], "");
        copy_tokenizer(state);
        qn_engine *draft_engine = open_changed(state, NULL);
        for (size_t i = 0; i < N_SAMPLES; i++) {
            qn_session *session = open_session(engine, CONTEXT),
                       *draft = open_session(draft_engine, CONTEXT);
            qn_generate_opts opts = options(i, 0);
            qn_result want = answer(session, ids, N_IDS, &opts, NULL, NULL);
            opts = options(i, 2);
            opts.draft = draft;
            qn_result got = answer(session, ids, N_IDS, &opts, NULL, NULL);
            assert_same_answer(&got, &want, "with both");
            assert_true(got.n_drafted > 0);
            qn_result_deinit(&got);
            qn_result_deinit(&want);
            qn_session_destroy(draft);
            qn_session_destroy(session);
        }
        qn_engine_close(draft_engine);
    }
    qn_engine_close(engine);
}

typedef struct drafts {
    int32_t tokens[N_NEW];
    int n;
    int64_t computed; // of the last one
} drafts;

// An answer of one session, whose drafts of one token are looked at.
static drafts look_at_drafts(const qn_engine *engine, const qn_sample_opts *sample, bool is_fast) {
    qn_err err;
    drafts d = {0};
    int32_t ids[N_IDS];
    qn_generation *gen;
    qn_session *session = open_session(engine, CONTEXT);
    random_ids(ids, N_IDS, LARGE, 15);
    const qn_generate_opts opts =
        QN_INIT(qn_generate_opts, .sample = sample, .max_tokens = 12, .ignore_end = true,
                .mtp = true, .mtp_fast = is_fast, .draft_min = 1, .draft_max = 1);
    ASSERT_OK(qn_session_set_prompt(session, ids, N_IDS, &err));
    ASSERT_OK(qn_generation_create(&gen, session, &opts, &err));
    for (size_t n_active = 1; n_active;) {
        const int64_t before = gen->result.n_drafted;
        ASSERT_OK(step_rows(&n_active, &gen, 1, NULL, NULL, &err));
        if (gen->result.n_drafted > before) d.tokens[d.n++] = gen->drafter.tokens[0];
    }
    d.computed = session->shared->runner->head_step.computed;
    assert_true(d.n > 4);
    qn_generation_destroy(gen);
    qn_session_destroy(session);
    return d;
}

static void assert_same_drafts(const drafts *a, const drafts *b) {
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->tokens, b->tokens, (size_t)a->n * sizeof *a->tokens);
}

// The fast head drafts from its first logits, on every device the same; where a choice needs all of
// them it is not the fast one.
static void the_fast_head_computes_the_first_logits(void **state) {
    static const char *const devices[] = {"cpu", "ref"};
    drafts fast[2], slow[2], all[2];
    write_changed(state, LARGE, "");
    for (size_t i = 0; i < 2; i++) {
        qn_engine_opts opts = with_head;
        opts.device = devices[i];
        qn_engine *engine = open_changed(state, &opts);
        fast[i] = look_at_drafts(engine, &samples[0], true);
        slow[i] = look_at_drafts(engine, &samples[0], false);
        all[i] = look_at_drafts(engine, &samples[3], true);
        const drafts all_slow = look_at_drafts(engine, &samples[3], false);
        assert_same_drafts(&all[i], &all_slow);
        qn_engine_close(engine);
    }
    int n_late = 0;
    for (int i = 0; i < fast[0].n; i++) assert_true(fast[0].tokens[i] < QN_MTP_FAST);
    for (int i = 0; i < slow[0].n; i++) n_late += slow[0].tokens[i] >= QN_MTP_FAST;
    assert_true(n_late > 0);
    assert_int_equal(fast[0].computed, QN_MTP_FAST);
    assert_int_equal(slow[0].computed, 0);
    assert_int_equal(all[0].computed, 0);
    assert_same_drafts(&fast[0], &fast[1]);
    assert_same_drafts(&slow[0], &slow[1]);
    assert_same_drafts(&all[0], &all[1]);
}

// A head without a single number drafts nothing: that counts as drafts that were wrong, and is not
// tried in every step.
static void a_head_that_drafts_nothing_is_not_asked_on(void **state) {
    qn_err err;
    int32_t ids[N_IDS];
    qn_generation *gen;
    write_changed(state, 512, "; fill mtp.norm.weight nan");
    qn_engine *engine = open_changed(state, &with_head);
    qn_session *session = open_session(engine, CONTEXT);
    random_ids(ids, N_IDS, 512, 16);
    qn_generate_opts opts = QN_INIT(qn_generate_opts, .sample = &samples[3], .max_tokens = 40,
                                    .ignore_end = true, .mtp = true, .draft_min = 1);
    ASSERT_OK(qn_session_set_prompt(session, ids, N_IDS, &err));
    ASSERT_OK(qn_generation_create(&gen, session, &opts, &err));
    size_t n_active = 1;
    while (n_active) ASSERT_OK(step_rows(&n_active, &gen, 1, NULL, NULL, &err));
    assert_int_equal(gen->result.n_drafted, 0);
    const qn_draft_record *record = &session->shared->records[QN_DRAFT_HEAD];
    assert_true(record->is_known && record->wrong > 10 && record->right == 0);
    qn_generation_destroy(gen);
    qn_session_destroy(session);
    qn_engine_close(engine);
}

// --- refusals ------------------------------------------------------------------------------------

static void a_head_that_is_not_there_is_an_error(void **state) {
    (void)state;
    qn_err err;
    char path[256];
    qn_engine *engine = NULL;
    qn_logits logits = QN_INIT(qn_logits);
    const float *row;
    const int32_t ids[] = {1, 2, 3};
    ASSERT_FAILS(qn_engine_open(&engine, family_path(path, sizeof path, "qwen3"), &with_head, &err),
                 QN_UNSUPPORTED, "without a prediction head");
    talk t = open_talk("qwen35", CONTEXT);
    const qn_logits_opts wanted = QN_INIT(qn_logits_opts, .mtp = true);
    ASSERT_FAILS(qn_engine_logits(&logits, t.engine, ids, 3, &wanted, &err), QN_STATE,
                 "without its prediction head");
    ASSERT_OK(qn_session_prefill(&row, t.session, ids, 3, &err));
    ASSERT_FAILS(qn_session_predict(&row, t.session, 1, &err), QN_STATE, "prediction head");
    qn_result result = QN_INIT(qn_result);
    ASSERT_FAILS(
        qn_generate(&result, t.session, &QN_INIT(qn_generate_opts, .mtp = true), NULL, NULL, &err),
        QN_STATE, "prediction head");
    ASSERT_FAILS(qn_generate(&result, t.session, &QN_INIT(qn_generate_opts, .mtp_fast = true), NULL,
                             NULL, &err),
                 QN_ARGUMENT, "mtp_fast needs mtp");
    close_talk(&t);
    engine = family_open("qwen35", &with_head);
    ASSERT_FAILS(qn_engine_logits(&logits, engine, ids, 1, &wanted, &err), QN_ARGUMENT, "2 tokens");
    const qn_logits_opts both = QN_INIT(qn_logits_opts, .mtp = true, .hidden = true);
    ASSERT_FAILS(qn_engine_logits(&logits, engine, ids, 3, &both, &err), QN_UNSUPPORTED, "hidden");
    qn_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_match_the_reference),
        cmocka_unit_test(chunks_threads_and_devices_change_no_bit),
        cmocka_unit_test(sessions_predict_as_the_whole_text_does),
        cmocka_unit_test(drafted_answers_are_the_plain_ones),
        cmocka_unit_test(rows_of_a_batch_draft_together),
        cmocka_unit_test(a_trained_head_is_mostly_right),
        cmocka_unit_test(a_head_that_is_never_right_stops_drafting),
        FOLDER_TEST(a_head_and_a_draft_model_have_their_own_vocabularies),
        FOLDER_TEST(the_fast_head_computes_the_first_logits),
        FOLDER_TEST(a_head_that_drafts_nothing_is_not_asked_on),
        cmocka_unit_test(a_head_that_is_not_there_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
