// Several prompts in one call: logits and embeddings, each what it is alone; rows and rope
// positions that are given in place of those of tokens.
#include "generate_rig.h"

#include "runtime/media.h"

#include <math.h>
#include <stdlib.h>

enum { N_PROMPTS = 5, LONGEST = 70, CONTEXT = 128 };

static const size_t lengths[N_PROMPTS] = {1, 33, LONGEST, 7, 64};

static void make_prompts(qn_prompt *prompts, int32_t ids[N_PROMPTS][LONGEST], int64_t vocab) {
    for (size_t i = 0; i < N_PROMPTS; i++) {
        random_ids(ids[i], lengths[i], vocab, 20 + i);
        prompts[i] = (qn_prompt){ids[i], lengths[i], NULL};
    }
}

// --- logits --------------------------------------------------------------------------------------

static void logits_of_several_prompts_are_those_of_each(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_engine *engine = family_open(families[f], NULL);
        const int64_t vocab = engine_info(engine).n_vocab;
        qn_err err;
        int32_t ids[N_PROMPTS][LONGEST];
        qn_prompt prompts[N_PROMPTS];
        make_prompts(prompts, ids, vocab);
        for (int way = 0; way < 2; way++) {
            const qn_logits_opts opts = QN_INIT(qn_logits_opts, .all_rows = way == 1,
                                                .hidden = way == 1, .chunk = way ? 24 : 0);
            qn_logits got[N_PROMPTS];
            for (size_t i = 0; i < N_PROMPTS; i++) got[i] = QN_INIT(qn_logits);
            ASSERT_OK(qn_engine_logits_batch(got, engine, prompts, N_PROMPTS, &opts, &err));
            for (size_t i = 0; i < N_PROMPTS; i++) {
                qn_logits want = QN_INIT(qn_logits);
                const qn_logits_opts plain =
                    QN_INIT(qn_logits_opts, .all_rows = way == 1, .hidden = way == 1);
                ASSERT_OK(qn_engine_logits(&want, engine, ids[i], lengths[i], &plain, &err));
                assert_int_equal(got[i].n_rows, want.n_rows);
                assert_int_equal(got[i].n_tokens, want.n_tokens);
                assert_int_equal(got[i].n_hidden, want.n_hidden);
                assert_memory_equal(got[i].logits, want.logits,
                                    (size_t)(want.n_rows * vocab) * sizeof(float));
                if (way)
                    assert_memory_equal(got[i].hidden, want.hidden,
                                        (size_t)(want.n_hidden * want.n_tokens * want.width) *
                                            sizeof(float));
                qn_logits_deinit(&want);
                qn_logits_deinit(&got[i]);
            }
        }
        qn_engine_close(engine);
    }
}

static void wrong_prompts_are_named(void **state) {
    (void)state;
    qn_engine *engine = family_open("qwen3", NULL);
    qn_err err;
    const int32_t good[] = {1, 2}, bad[] = {1, -5};
    const qn_row_opts row = {.size = 3};
    qn_logits out[2] = {QN_INIT(qn_logits), QN_INIT(qn_logits)};
    qn_prompt prompts[2] = {{good, 2, NULL}, {bad, 2, NULL}};
    ASSERT_FAILS(qn_engine_logits_batch(out, engine, prompts, 2, NULL, &err), QN_ARGUMENT,
                 "prompt 1: id -5");
    ASSERT_FAILS(qn_engine_logits_batch(out, engine, prompts, 0, NULL, &err), QN_ARGUMENT,
                 "0 prompts");
    prompts[1] = (qn_prompt){good, 0, NULL};
    ASSERT_FAILS(qn_engine_logits_batch(out, engine, prompts, 2, NULL, &err), QN_ARGUMENT,
                 "prompt 1: no token ids");
    prompts[1] = (qn_prompt){good, 2, &row};
    ASSERT_FAILS(qn_engine_logits_batch(out, engine, prompts, 2, NULL, &err), QN_ARGUMENT,
                 "prompt 1: qn_row_opts: size 3");
    prompts[1] = (qn_prompt){good, 2, NULL};
    ASSERT_FAILS(qn_engine_logits_batch(out, engine, prompts, 2,
                                        &QN_INIT(qn_logits_opts, .mtp = true), &err),
                 QN_UNSUPPORTED, "one prompt at a time");
    ASSERT_FAILS(qn_engine_logits_batch(out, engine, prompts, 2,
                                        &QN_INIT(qn_logits_opts, .adapter = -1), &err),
                 QN_ARGUMENT, "the prompts' own options");
    ASSERT_FAILS(qn_engine_logits_batch(out, engine, prompts, 2,
                                        &QN_INIT(qn_logits_opts, .chunk = -1), &err),
                 QN_ARGUMENT, "chunks of -1 rows");
    out[1].size = 8;
    ASSERT_FAILS(qn_engine_logits_batch(out, engine, prompts, 2, NULL, &err), QN_ARGUMENT,
                 "qn_logits: size 8");
    assert_null(out[0].logits);
    qn_engine_close(engine);
}

// --- embeddings ----------------------------------------------------------------------------------

// From the hidden states that qn_engine_logits gives.
static void embed_plainly(float *to, const qn_engine *engine, const qn_prompt *prompt, bool is_last,
                          bool normalize) {
    qn_err err;
    qn_logits l = QN_INIT(qn_logits);
    ASSERT_OK(qn_engine_logits(&l, engine, prompt->ids, prompt->n,
                               &QN_INIT(qn_logits_opts, .hidden = true), &err));
    const float *hidden = l.hidden + (l.n_hidden - 1) * l.n_tokens * l.width;
    double length = 0;
    for (int64_t i = 0; i < l.width; i++) {
        double sum = 0;
        for (int64_t t = 0; t < l.n_tokens; t++) sum += (double)hidden[t * l.width + i];
        to[i] =
            is_last ? hidden[(l.n_tokens - 1) * l.width + i] : (float)(sum / (double)l.n_tokens);
        length += (double)to[i] * (double)to[i];
    }
    for (int64_t i = 0; normalize && i < l.width; i++)
        to[i] = (float)((double)to[i] / sqrt(length));
    qn_logits_deinit(&l);
}

static void embeddings_are_pooled_hidden_states(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_engine *engine = family_open(families[f], NULL);
        const qn_engine_info info = engine_info(engine);
        qn_err err;
        int32_t ids[N_PROMPTS][LONGEST];
        qn_prompt prompts[N_PROMPTS];
        float *want = calloc((size_t)info.width, sizeof *want);
        make_prompts(prompts, ids, info.n_vocab);
        for (int way = 0; way < 4; way++) {
            const bool is_last = way & 1, normalize = way & 2;
            const qn_embed_opts opts =
                QN_INIT(qn_embed_opts, .pooling = is_last ? QN_POOLING_LAST : QN_POOLING_MEAN,
                        .normalize = normalize, .chunk = way == 3 ? 24 : 0);
            qn_embeddings got = QN_INIT(qn_embeddings), one = QN_INIT(qn_embeddings);
            ASSERT_OK(qn_engine_embed(&got, engine, prompts, N_PROMPTS, &opts, &err));
            assert_int_equal(got.n, N_PROMPTS);
            assert_int_equal(got.width, info.width);
            assert_int_equal(got.n_tokens, 1 + 33 + LONGEST + 7 + 64);
            for (size_t i = 0; i < N_PROMPTS; i++) {
                const float *row = got.rows + (int64_t)i * info.width;
                embed_plainly(want, engine, &prompts[i], is_last, normalize);
                assert_memory_equal(row, want, (size_t)info.width * sizeof *want);
            }
            ASSERT_OK(qn_engine_embed(&one, engine, &prompts[2], 1, &opts, &err));
            assert_memory_equal(one.rows, got.rows + 2 * info.width,
                                (size_t)info.width * sizeof *want);
            qn_embeddings_deinit(&one);
            qn_embeddings_deinit(&got);
        }
        free(want);
        qn_engine_close(engine);
    }
}

static void texts_are_embedded_and_engines_agree(void **state) {
    (void)state;
    qn_err err;
    const char *const texts[] = {"one", "two words", "<|im_end|> is text"};
    qn_engine *engine = family_open("qwen3", NULL),
              *ref = family_open("qwen3", &QN_INIT(qn_engine_opts, .reference = true));
    qn_embeddings a = QN_INIT(qn_embeddings), b = QN_INIT(qn_embeddings);
    const qn_embed_opts opts = QN_INIT(qn_embed_opts, .normalize = true);
    ASSERT_OK(qn_engine_embed_texts(&a, engine, texts, 3, &opts, &err));
    ASSERT_OK(qn_engine_embed_texts(&b, ref, texts, 3, &opts, &err));
    for (int64_t i = 0; i < 3 * a.width; i++)
        assert_true(fabs((double)a.rows[i] - (double)b.rows[i]) < 1e-4);
    for (size_t i = 0; i < 3; i++) {
        int32_t *ids;
        size_t n;
        qn_embeddings one = QN_INIT(qn_embeddings);
        ASSERT_OK(qn_tokenize(&ids, &n, qn_engine_tokenizer(engine), texts[i], strlen(texts[i]),
                              &QN_INIT(qn_tokenize_opts, .add_ends = true), &err));
        ASSERT_OK(qn_engine_embed(&one, engine, &(qn_prompt){ids, n, NULL}, 1, &opts, &err));
        assert_memory_equal(one.rows, a.rows + (int64_t)i * a.width,
                            (size_t)a.width * sizeof(float));
        qn_embeddings_deinit(&one);
        qn_free(ids);
    }
    qn_embeddings_deinit(&a);
    qn_embeddings_deinit(&b);
    qn_engine_close(engine);
    qn_engine_close(ref);
}

static bool stop_at_once(void *arg, int64_t done, int64_t total) {
    assert_true(done < total);
    ++*(int *)arg;
    return false;
}

static void wrong_embeddings_are_refused(void **state) {
    (void)state;
    qn_engine *engine = family_open("qwen3", NULL);
    qn_err err;
    int calls = 0;
    int32_t ids[LONGEST];
    qn_stop_flag *flag;
    qn_embeddings out = QN_INIT(qn_embeddings);
    const char *const texts[] = {"a", NULL}, *const empty[] = {""};
    random_ids(ids, LONGEST, 512, 1);
    const qn_prompt prompt = {ids, LONGEST, NULL};
    ASSERT_OK(qn_stop_flag_create(&flag, &err));
    qn_stop_flag_set(flag);
    ASSERT_FAILS(qn_engine_embed(&out, engine, &prompt, 1,
                                 &QN_INIT(qn_embed_opts, .pooling = (qn_pooling)7), &err),
                 QN_ARGUMENT, "pooling 7, want 0 to 2");
    ASSERT_FAILS(
        qn_engine_embed(&out, engine, &prompt, 1, &QN_INIT(qn_embed_opts, .chunk = -2), &err),
        QN_ARGUMENT, "chunks of -2");
    ASSERT_FAILS(qn_engine_embed(&out, engine, &prompt, 0, NULL, &err), QN_ARGUMENT, "0 prompts");
    ASSERT_FAILS(
        qn_engine_embed(&out, engine, &prompt, 1, &QN_INIT(qn_embed_opts, .stop = flag), &err),
        QN_STOPPED, "stopped after 0 of 70");
    ASSERT_FAILS(qn_engine_embed(&out, engine, &prompt, 1,
                                 &QN_INIT(qn_embed_opts, .chunk = 16, .progress = stop_at_once,
                                          .progress_arg = &calls),
                                 &err),
                 QN_STOPPED, "stopped after 16 of 70");
    assert_int_equal(calls, 1);
    ASSERT_FAILS(qn_engine_embed_texts(&out, engine, texts, 2, NULL, &err), QN_ARGUMENT,
                 "text 1 is NULL");
    ASSERT_FAILS(qn_engine_embed_texts(&out, engine, empty, 1, NULL, &err), QN_ARGUMENT,
                 "text 0 is empty");
    assert_null(out.rows);
    out.size = 9;
    ASSERT_FAILS(qn_engine_embed(&out, engine, &prompt, 1, NULL, &err), QN_ARGUMENT,
                 "qn_embeddings: size 9");
    qn_stop_flag_destroy(flag);
    qn_engine_close(engine);
}

// --- given rows and positions --------------------------------------------------------------------

enum { N_GIVEN = 20 };

// The embeddings of ids, as the first hidden states are.
static float *embeddings_of(const qn_engine *engine, const int32_t *ids, size_t n) {
    qn_err err;
    qn_logits l = QN_INIT(qn_logits);
    ASSERT_OK(qn_engine_logits(&l, engine, ids, n, &QN_INIT(qn_logits_opts, .hidden = true), &err));
    float *rows = malloc(n * (size_t)l.width * sizeof *rows);
    memcpy(rows, l.hidden, n * (size_t)l.width * sizeof *rows);
    qn_logits_deinit(&l);
    return rows;
}

// Rows that are the embeddings of other tokens give the answer to those.
static void given_rows_stand_for_embeddings(void **state) {
    (void)state;
    const char *const some[] = {"qwen3", "llama32", "qwen35", "qwen3_moe"};
    for (size_t f = 0; f < sizeof some / sizeof *some; f++) {
        talk t = open_talk(some[f], CONTEXT);
        const int64_t width = engine_info(t.engine).width;
        qn_err err;
        int32_t ids[N_GIVEN], pads[N_GIVEN];
        int64_t at[N_GIVEN];
        random_ids(ids, N_GIVEN, t.vocab, 3);
        float *all = embeddings_of(t.engine, ids, N_GIVEN),
              *odd = malloc((size_t)(N_GIVEN / 2 * width) * sizeof *odd);
        for (size_t i = 0; i < N_GIVEN; i++) pads[i] = i % 2 ? 7 : ids[i];
        for (int64_t i = 0; i < N_GIVEN / 2; i++) {
            at[i] = 2 * i + 1;
            memcpy(odd + i * width, all + at[i] * width, (size_t)width * sizeof *odd);
        }
        const qn_generate_opts opts =
            QN_INIT(qn_generate_opts, .max_tokens = 12, .ignore_end = true);
        const qn_given given[] = {
            QN_INITIALIZER(qn_given, .rows = all, .n_rows = N_GIVEN),
            QN_INITIALIZER(qn_given, .rows = odd, .n_rows = N_GIVEN / 2, .at = at)};
        qn_result want = answer(t.session, ids, N_GIVEN, &opts, NULL, NULL);
        for (int way = 0; way < 2; way++) {
            qn_result got = QN_INIT(qn_result), row = QN_INIT(qn_result);
            ASSERT_OK(qn_session_set_prompt_given(t.session, pads, N_GIVEN, &given[way], &err));
            ASSERT_OK(qn_generate(&got, t.session, &opts, NULL, NULL, &err));
            assert_same_answer(&got, &want, some[f]);
            const qn_row_opts row_opts =
                QN_INIT(qn_row_opts, .generate = &opts, .given = &given[way]);
            const qn_prompt prompt = {pads, N_GIVEN, &row_opts};
            ASSERT_OK(qn_generate_batch(&row, 1, t.session, &prompt, 1, NULL, NULL, &err));
            assert_same_answer(&row, &want, "a row of a batch");
            qn_result_deinit(&got);
            qn_result_deinit(&row);
        }
        qn_result_deinit(&want);
        free(all);
        free(odd);
        close_talk(&t);
    }
}

// What is kept of one prompt is not taken for another with the same tokens and other rows.
static void prompts_with_other_rows_share_nothing(void **state) {
    (void)state;
    enum { N = 80 };
    talk t = open_talk("qwen3", CONTEXT);
    qn_err err;
    int32_t ids[2][N], pads[N] = {0};
    const float *row;
    qn_logits want[2] = {QN_INIT(qn_logits), QN_INIT(qn_logits)};
    float *rows[2];
    for (size_t i = 0; i < 2; i++) {
        random_ids(ids[i], N, t.vocab, 5 + i);
        rows[i] = embeddings_of(t.engine, ids[i], N);
        ASSERT_OK(qn_engine_logits(&want[i], t.engine, ids[i], N, NULL, &err));
    }
    for (int k = 0; k < 4; k++) {
        const qn_given given = QN_INIT(qn_given, .rows = rows[k / 2], .n_rows = N);
        int32_t token;
        ASSERT_OK(qn_session_set_prompt_given(t.session, pads, N, &given, &err));
        ASSERT_OK(qn_session_step(&token, t.session,
                                  &QN_INIT(qn_sample_opts, .temperature = 1, .seed = 1), &err));
        row = qn_session_logits(t.session);
        assert_memory_equal(row, want[k / 2].logits, (size_t)t.vocab * sizeof *row);
        ASSERT_OK(qn_session_set_prompt_given(t.session, pads, N, &given, &err));
        ASSERT_OK(qn_session_prefill(&row, t.session, NULL, 0, &err)); // what was set
        assert_memory_equal(row, want[k / 2].logits, (size_t)t.vocab * sizeof *row);
        assert_int_equal(qn_session_cached(t.session), N);
    }
    assert_true(session_counts(t.session).reused > 0); // equal rows are found again
    for (size_t i = 0; i < 2; i++) {
        free(rows[i]);
        qn_logits_deinit(&want[i]);
    }
    close_talk(&t);
}

// Several completions share what is given; each is what it is alone.
static void rows_of_a_batch_are_given_rows(void **state) {
    (void)state;
    enum { N = 70, N_NEW = 6, COMPLETIONS = 3 };
    talk t = open_talk("qwen3", CONTEXT);
    qn_err err;
    int32_t ids[N], pads[N] = {0};
    random_ids(ids, N, t.vocab, 21);
    float *rows = embeddings_of(t.engine, ids, N);
    const qn_given given = QN_INIT(qn_given, .rows = rows, .n_rows = N);
    const qn_sample_opts sample = QN_INIT(qn_sample_opts, .temperature = 1, .seed = 4);
    const qn_generate_opts generate =
        QN_INIT(qn_generate_opts, .max_tokens = N_NEW, .sample = &sample);
    const qn_row_opts opts[] = {
        QN_INITIALIZER(qn_row_opts, .generate = &generate, .completions = COMPLETIONS,
                       .given = &given),
        QN_INITIALIZER(qn_row_opts, .generate = &generate, .completions = COMPLETIONS)};
    qn_result got[2][COMPLETIONS];
    for (int k = 0; k < 2; k++) {
        const qn_prompt prompt = {.ids = k ? ids : pads, .n = N, .opts = &opts[k]};
        for (int i = 0; i < COMPLETIONS; i++) got[k][i] = QN_INIT(qn_result);
        ASSERT_OK(qn_generate_batch(got[k], COMPLETIONS, t.session, &prompt, 1, NULL, NULL, &err));
    }
    for (int i = 0; i < COMPLETIONS; i++) {
        assert_int_equal(got[0][i].n_tokens, got[1][i].n_tokens);
        assert_memory_equal(got[0][i].tokens, got[1][i].tokens,
                            got[0][i].n_tokens * sizeof *got[0][i].tokens);
        for (int k = 0; k < 2; k++) qn_result_deinit(&got[k][i]);
    }
    free(rows);
    close_talk(&t);
}

// The usual positions change nothing; others do, alike in sessions, chunks, forks and references.
static void given_positions_are_used(void **state) {
    (void)state;
    qn_err err;
    const char *const some[] = {"qwen3", "gemma3", "qwen35"};
    for (size_t f = 0; f < sizeof some / sizeof *some; f++) {
        talk t = open_talk(some[f], CONTEXT);
        qn_engine *ref = family_open(some[f], &QN_INIT(qn_engine_opts, .reference = true));
        int32_t ids[N_GIVEN + 1], usual[N_GIVEN][3], spread[N_GIVEN + 1][3];
        random_ids(ids, N_GIVEN + 1, t.vocab, 8);
        for (int32_t i = 0; i < N_GIVEN + 1; i++) {
            for (int k = 0; k < 3; k++) {
                if (i < N_GIVEN) usual[i][k] = i;
                spread[i][k] = 3 * i; // the token after the prompt counts on from the largest
            }
        }
        for (int k = 0; k < 3; k++) spread[N_GIVEN][k] = 3 * (N_GIVEN - 1) + 1;
        const qn_given a = QN_INIT(qn_given, .positions = usual[0]),
                       b = QN_INIT(qn_given, .positions = spread[0]);
        qn_logits plain = QN_INIT(qn_logits), same = QN_INIT(qn_logits), other = QN_INIT(qn_logits),
                  chunks = QN_INIT(qn_logits), slow = QN_INIT(qn_logits);
        const size_t bytes = (size_t)t.vocab * sizeof(float);
        ASSERT_OK(qn_engine_logits(&plain, t.engine, ids, N_GIVEN, NULL, &err));
        ASSERT_OK(qn_engine_logits(&same, t.engine, ids, N_GIVEN,
                                   &QN_INIT(qn_logits_opts, .given = &a), &err));
        ASSERT_OK(qn_engine_logits(&other, t.engine, ids, N_GIVEN + 1,
                                   &QN_INIT(qn_logits_opts, .given = &b), &err));
        ASSERT_OK(qn_engine_logits(&chunks, t.engine, ids, N_GIVEN + 1,
                                   &QN_INIT(qn_logits_opts, .given = &b, .chunk = 3), &err));
        ASSERT_OK(qn_engine_logits(&slow, ref, ids, N_GIVEN + 1,
                                   &QN_INIT(qn_logits_opts, .given = &b), &err));
        assert_memory_equal(same.logits, plain.logits, bytes);
        assert_memory_equal(chunks.logits, other.logits, bytes);
        for (int64_t i = 0; i < t.vocab; i++)
            assert_true(fabs((double)slow.logits[i] - (double)other.logits[i]) < 1e-3);
        // The same in a session: prompt, then a token after it; and in a fork of it.
        const float *row;
        qn_session *fork;
        ASSERT_OK(qn_session_set_prompt_given(t.session, ids, N_GIVEN, &b, &err));
        ASSERT_OK(qn_session_commit(t.session, NULL, 0, &err));
        int32_t token;
        ASSERT_OK(qn_session_step(&token, t.session, NULL, &err));
        ASSERT_OK(qn_session_truncate(t.session, N_GIVEN, &err));
        ASSERT_OK(qn_session_fork(&fork, t.session, &err));
        ASSERT_OK(qn_session_commit(fork, ids + N_GIVEN, 1, &err));
        ASSERT_OK(qn_session_step(&token, fork,
                                  &QN_INIT(qn_sample_opts, .temperature = 1, .seed = 2), &err));
        row = qn_session_logits(fork);
        assert_memory_equal(row, other.logits, bytes);
        qn_logits_deinit(&plain);
        qn_logits_deinit(&same);
        qn_logits_deinit(&other);
        qn_logits_deinit(&chunks);
        qn_logits_deinit(&slow);
        qn_session_destroy(fork);
        qn_engine_close(ref);
        close_talk(&t);
    }
}

static void wrong_rows_and_positions_are_refused(void **state) {
    (void)state;
    talk t = open_talk("qwen3", CONTEXT), g = open_talk("gemma3", CONTEXT);
    const int64_t width = engine_info(t.engine).width;
    qn_err err;
    const int32_t ids[3] = {1, 2, 3}, low[3][3] = {{0}, {0, -1}},
                  high[3][3] = {{0}, {0}, {0, 0, 1 << 30}};
    const int64_t down[2] = {1, 1}, out[1] = {3}, first[1] = {0};
    float *rows = calloc((size_t)(4 * width), sizeof *rows);
    const struct {
        qn_given given;
        const char *part;
    } cases[] = {
        {QN_INITIALIZER(qn_given, .n_rows = 1), "1 given rows, but rows is NULL"},
        {QN_INITIALIZER(qn_given, .rows = rows, .n_rows = 4), "4 given rows for 3 tokens"},
        {QN_INITIALIZER(qn_given, .rows = rows, .n_rows = 2, .at = down),
         "given row 1: for token 1"},
        {QN_INITIALIZER(qn_given, .rows = rows, .n_rows = 1, .at = out), "for token 3 of 3"},
        {QN_INITIALIZER(qn_given, .positions = low[0]), "position -1 of token 1"},
        {QN_INITIALIZER(qn_given, .positions = high[0]), "position 1073741824 of token 2"},
        {{.size = 9}, "qn_given: size 9"},
    };
    ASSERT_OK(qn_session_set_prompt(t.session, ids, 2, &err));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n;
        ASSERT_FAILS(qn_session_set_prompt_given(t.session, ids, 3, &cases[i].given, &err),
                     QN_ARGUMENT, cases[i].part);
        (void)qn_session_tokens(t.session, &n);
        assert_int_equal(n, 2);
    }
    rows[width + 2] = NAN;
    ASSERT_FAILS(qn_session_set_prompt_given(t.session, ids, 3,
                                             &QN_INIT(qn_given, .rows = rows, .n_rows = 2), &err),
                 QN_ARGUMENT, "given row 1: number 2 of");
    ASSERT_FAILS(
        qn_session_set_prompt_given(
            g.session, ids, 3, &QN_INIT(qn_given, .rows = rows, .n_rows = 1, .at = first), &err),
        QN_UNSUPPORTED, "cannot be given rows");
    ASSERT_OK(qn_session_set_prompt_given(t.session, ids, 3, NULL, &err));
    ASSERT_OK(qn_session_set_prompt_given(t.session, ids, 3,
                                          &QN_INIT(qn_given, .rows = rows, .n_rows = 1), &err));
    ASSERT_FAILS(
        qn_generate(NULL, t.session, &QN_INIT(qn_generate_opts, .shift = true), NULL, NULL, &err),
        QN_UNSUPPORTED, "3 tokens of the history were given rows or positions");
    void *bytes;
    size_t size;
    ASSERT_FAILS(qn_session_save_bytes(&bytes, &size, t.session, &err), QN_UNSUPPORTED,
                 "3 of its 3 tokens came with given rows or positions");
    free(rows);
    close_talk(&t);
    close_talk(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_of_several_prompts_are_those_of_each),
        cmocka_unit_test(wrong_prompts_are_named),
        cmocka_unit_test(embeddings_are_pooled_hidden_states),
        cmocka_unit_test(texts_are_embedded_and_engines_agree),
        cmocka_unit_test(wrong_embeddings_are_refused),
        cmocka_unit_test(given_rows_stand_for_embeddings),
        cmocka_unit_test(prompts_with_other_rows_share_nothing),
        cmocka_unit_test(rows_of_a_batch_are_given_rows),
        cmocka_unit_test(given_positions_are_used),
        cmocka_unit_test(wrong_rows_and_positions_are_refused),
    };
    return cmocka_run_group_tests_name("api_many", tests, NULL, NULL);
}
