// Embeddings with more rows than the tokenizer has tokens: logits that belong to no token are
// computed and shown, and never chosen, whatever chooses, in both formats alike.
#include "generate_rig.h"
#include "model_writer.h"

#include "format_files.h"

#include "core/buf.h"
#include "core/file.h"
#include "core/mem.h"

#include <math.h>

enum { N_TOKENS = 512, N_PADDED = 640, FAR = 600, N_PROMPT = 21, N_NEW = 16 };

static const char mini[] = TEST_DATA "/mini/qwen3";
static const char *const bans[] = {"e", "in"};

static const struct way {
    const char *name;
    qn_sample_opts opts;
} ways[] = {
    {"greedy", QN_INITIALIZER(qn_sample_opts, .temperature = 0)},
    {"top_k", QN_INITIALIZER(qn_sample_opts, .temperature = 1.5f, .top_k = 5, .seed = 3)},
    {"top_k 64",
     QN_INITIALIZER(qn_sample_opts, .temperature = 1.5f, .top_k = 64, .seed = 4, .min_p = 0.01f)},
    {"all", QN_INITIALIZER(qn_sample_opts, .temperature = 1.5f, .seed = 5)},
    {"top_p", QN_INITIALIZER(qn_sample_opts, .temperature = 1.5f, .seed = 6, .top_p = 0.7f)},
    {"sigma", QN_INITIALIZER(qn_sample_opts, .temperature = 1.5f, .seed = 7, .top_n_sigma = 1)},
    {"typical", QN_INITIALIZER(qn_sample_opts, .temperature = 1.5f, .seed = 8, .typical_p = 0.6f)},
    {"mirostat", QN_INITIALIZER(qn_sample_opts, .temperature = 1.5f, .seed = 9, .mirostat = 2)},
    {"penalties", QN_INITIALIZER(qn_sample_opts, .repeat_penalty = 1.5f, .frequency_penalty = 1,
                                 .presence_penalty = 1, .repeat_last_n = -1)},
    {"bans",
     QN_INITIALIZER(qn_sample_opts, .temperature = 1, .seed = 10, .bans = bans, .n_bans = 2)},
    {"dry", QN_INITIALIZER(qn_sample_opts, .temperature = 1, .seed = 11, .dry_multiplier = 2,
                           .dry_allowed_length = 1)},
};
enum { N_WAYS = sizeof ways / sizeof *ways };

// --- models --------------------------------------------------------------------------------------

// Rows after the tokens give four times the logits of some tokens, and so are mostly the best.
static void pad(model_tensor *t) {
    const size_t bytes = t->bytes / (size_t)t->dims[0];
    for (size_t row = N_TOKENS; row < (size_t)t->dims[0]; row++) {
        unsigned char *to = t->data + row * bytes;
        memcpy(to, t->data + row * 7 % N_TOKENS * bytes, bytes);
        for (size_t i = 1; i < bytes; i += 2) { // BF16: the second byte has most of the exponent
            if (to[i] & 0x7f) to[i] = (unsigned char)(to[i] + 1);
        }
    }
}

static void copy_file(void **state, const char *name, const char *before, const char *insert) {
    char path[256], *text;
    size_t size;
    qn_err err;
    snprintf(path, sizeof path, "%s/%s", mini, name);
    ASSERT_OK(qn_file_load(&text, &size, path, 1 << 24, &err));
    qn_buf buf = {0};
    const char *at = before ? strstr(text, before) : text;
    assert_non_null(at);
    qn_buf_add(&buf, text, (size_t)(at - text));
    if (insert) qn_buf_add(&buf, insert, strlen(insert));
    qn_buf_add(&buf, at, size - (size_t)(at - text));
    put_file(state, name, buf.data, buf.size);
    qn_buf_deinit(&buf);
    qn_free(text);
}

// A checkpoint with a padded embedding, and with `far` a token after a hole; returns the GGUF file
// that it is converted to.
static path_name write_padded(void **state, bool far) {
    static const char token[] =
        "{\"id\": 600, \"content\": \"<far>\", \"single_word\": false, \"lstrip\": false,"
        "\"rstrip\": false, \"normalized\": false, \"special\": false},";
    qn_err err;
    char edit[256];
    model_file *m = model_load(mini);
    snprintf(edit, sizeof edit,
             "shape model.embed_tokens.weight %d 64; shape lm_head.weight %d 64; set vocab_size %d",
             N_PADDED, N_PADDED, N_PADDED);
    model_edit(m, edit);
    pad(model_find(m, "lm_head.weight"));
    model_write_checkpoint(m, *state, 1);
    model_free(m);
    copy_file(state, "tokenizer.json", far ? "{\n      \"id\": 0," : NULL, far ? token : NULL);
    copy_file(state, "tokenizer_config.json", NULL, NULL);
    const path_name out = in_folder(state, "padded.gguf");
    ASSERT_OK(qn_convert(*state, out.text, NULL, &err));
    return out;
}

static bool is_token(int32_t id, bool far) { return id < N_TOKENS || (far && id == FAR); }

// --- choosing ------------------------------------------------------------------------------------

typedef struct choices {
    int32_t tokens[N_NEW];
} choices;

static qn_session *open_prompt(const qn_engine *engine, bool all_logits) {
    qn_err err;
    qn_session *session = NULL;
    int32_t ids[N_PROMPT];
    ASSERT_OK(qn_session_create(
        &session, engine, &QN_INIT(qn_session_opts, .context = 128, .logits = all_logits), &err));
    random_ids(ids, N_PROMPT, N_TOKENS, 7);
    ASSERT_OK(qn_session_set_prompt(session, ids, N_PROMPT, &err));
    return session;
}

static choices step(const qn_engine *engine, const qn_sample_opts *opts, bool all_logits,
                    bool naive) {
    qn_err err;
    choices c;
    qn_session *session = open_prompt(engine, all_logits);
    for (int i = 0; i < N_NEW; i++)
        ASSERT_OK(
            (naive ? qn_session_step_naive : qn_session_step)(&c.tokens[i], session, opts, &err));
    qn_session_destroy(session);
    return c;
}

static choices generate(const qn_engine *engine, const qn_generate_opts *opts) {
    qn_err err;
    choices c;
    qn_result result = QN_INIT(qn_result);
    qn_generate_opts o = *opts;
    o.max_tokens = N_NEW;
    o.ignore_end = true;
    qn_session *session = open_prompt(engine, false);
    ASSERT_OK(qn_generate(&result, session, &o, NULL, NULL, &err));
    assert_int_equal(result.n_tokens, N_NEW);
    memcpy(c.tokens, result.tokens, sizeof c.tokens);
    qn_result_deinit(&result);
    qn_session_destroy(session);
    return c;
}

static void expect_same(choices got, choices want, const char *way, const char *what) {
    if (memcmp(&got, &want, sizeof got) != 0) fail_msg("%s: %s: other tokens", way, what);
}

// All ways of one engine give the tokens `want` (of whole rows, recomputed), which are tokens.
static choices check_way(const qn_engine *engine, size_t w, bool far) {
    const qn_sample_opts *opts = &ways[w].opts;
    const char *name = ways[w].name;
    const choices want = step(engine, opts, false, true);
    for (int i = 0; i < N_NEW; i++) {
        if (!is_token(want.tokens[i], far))
            fail_msg("%s%s: chose %d", name, far ? ", with a hole" : "", want.tokens[i]);
    }
    expect_same(step(engine, opts, false, false), want, name, "cached");
    expect_same(step(engine, opts, true, false), want, name, "whole rows");
    return want;
}

static void no_other_logit_is_chosen(void **state) {
    for (int far = 0; far < 2; far++) {
        const path_name gguf = write_padded(state, far);
        qn_engine *folder = NULL, *file = NULL, *plain = NULL;
        qn_err err;
        const qn_engine_opts opts = QN_INIT(qn_engine_opts, .n_threads = 1);
        ASSERT_OK(qn_engine_open(&folder, *state, &opts, &err));
        ASSERT_OK(qn_engine_open(&file, gguf.text, &opts, &err));
        ASSERT_OK(qn_engine_open(&plain, mini, &opts, &err));
        for (size_t w = 0; w < N_WAYS; w++) {
            const choices want = check_way(folder, w, far);
            expect_same(check_way(file, w, far), want, ways[w].name, "GGUF");
            if (!far) expect_same(check_way(plain, w, far), want, ways[w].name, "fewer rows");
        }
        qn_engine_close(folder);
        qn_engine_close(file);
        qn_engine_close(plain);
        remove(gguf.text);
    }
}

// Logits themselves are those of the model: the padded ones are there, and are the best.
static void logits_are_shown_as_they_are(void **state) {
    qn_err err;
    const path_name gguf = write_padded(state, false);
    qn_engine *engine = NULL;
    ASSERT_OK(qn_engine_open(&engine, gguf.text, &QN_INIT(qn_engine_opts, .n_threads = 1), &err));
    qn_session *session = open_prompt(engine, true);
    int32_t token, n_above = 0;
    ASSERT_OK(qn_session_step(&token, session, NULL, &err));
    const float *logits = qn_session_logits(session);
    assert_non_null(logits);
    for (int32_t i = N_TOKENS; i < N_PADDED; i++) n_above += logits[i] > logits[token];
    assert_true(n_above > 0);
    for (int32_t i = 0; i < N_TOKENS; i++) assert_true(logits[i] <= logits[token]);
    qn_session_destroy(session);
    qn_engine_close(engine);
    remove(gguf.text);
}

// Log-probabilities are of the model's own logits, drafts are checked, grammars know tokens alone.
static void generations_choose_tokens(void **state) {
    for (int far = 0; far < 2; far++) {
        const path_name gguf = write_padded(state, far);
        const char *const paths[] = {*state, gguf.text};
        choices seen[2][N_WAYS];
        for (int p = 0; p < 2; p++) {
            qn_err err;
            qn_engine *engine = NULL;
            ASSERT_OK(
                qn_engine_open(&engine, paths[p], &QN_INIT(qn_engine_opts, .n_threads = 1), &err));
            qn_session *draft = NULL;
            ASSERT_OK(
                qn_session_create(&draft, engine, &QN_INIT(qn_session_opts, .context = 128), &err));
            for (size_t w = 0; w < N_WAYS; w++) {
                const qn_sample_opts *o = &ways[w].opts;
                const choices want = generate(engine, &QN_INIT(qn_generate_opts, .sample = o));
                for (int i = 0; i < N_NEW; i++) assert_true(is_token(want.tokens[i], far));
                const qn_generate_opts others[] = {
                    QN_INITIALIZER(qn_generate_opts, .sample = o, .naive = true),
                    QN_INITIALIZER(qn_generate_opts, .sample = o, .logprobs = true, .n_top = 5),
                    QN_INITIALIZER(qn_generate_opts, .sample = o, .lookup = true, .draft_min = 2),
                    QN_INITIALIZER(qn_generate_opts, .sample = o, .draft = draft, .draft_min = 3),
                };
                for (size_t i = 0; i < sizeof others / sizeof *others; i++)
                    expect_same(generate(engine, &others[i]), want, ways[w].name, "generation");
                seen[p][w] = want;
            }
            qn_session_destroy(draft);
            qn_engine_close(engine);
        }
        assert_memory_equal(seen[0], seen[1], sizeof seen[0]);
        remove(gguf.text);
    }
}

static void grammars_go_on(void **state) {
    const path_name gguf = write_padded(state, false);
    const char *const paths[] = {*state, gguf.text};
    choices seen[2];
    for (int p = 0; p < 2; p++) {
        qn_err err;
        qn_engine *engine = NULL;
        qn_grammar *grammar = NULL;
        ASSERT_OK(
            qn_engine_open(&engine, paths[p], &QN_INIT(qn_engine_opts, .n_threads = 1), &err));
        ASSERT_OK(qn_grammar_create(&grammar, qn_engine_tokenizer(engine), QN_GRAMMAR_REGEX,
                                    "[ -~]*", 6, NULL, &err));
        seen[p] = generate(engine, &QN_INIT(qn_generate_opts, .grammar = grammar));
        for (int i = 0; i < N_NEW; i++) assert_true(is_token(seen[p].tokens[i], false));
        qn_grammar_destroy(grammar);
        qn_engine_close(engine);
    }
    assert_memory_equal(&seen[0], &seen[1], sizeof seen[0]);
    remove(gguf.text);
}

// A logit that is not finite is an error wherever it stands.
static void broken_padding_is_refused(void **state) {
    qn_err err;
    const path_name gguf = write_padded(state, false);
    model_file *m = model_load(gguf.text);
    const model_tensor *t = model_find(m, "output.weight");
    const uint16_t nan = 0x7fc0;
    memcpy(t->data + (size_t)(N_PADDED - 1) * (t->bytes / N_PADDED), &nan, sizeof nan);
    model_write_gguf(m, gguf.text);
    model_free(m);
    qn_engine *engine = NULL;
    ASSERT_OK(qn_engine_open(&engine, gguf.text, &QN_INIT(qn_engine_opts, .n_threads = 1), &err));
    for (int naive = 0; naive < 2; naive++) {
        for (size_t w = 0; w < 4; w++) {
            qn_session *session = open_prompt(engine, false);
            int32_t token;
            ASSERT_FAILS((naive ? qn_session_step_naive : qn_session_step)(&token, session,
                                                                           &ways[w].opts, &err),
                         QN_NUMERIC, "logit 639 of 640 is nan");
            qn_session_destroy(session);
        }
    }
    qn_engine_close(engine);
    remove(gguf.text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(no_other_logit_is_chosen),  FOLDER_TEST(logits_are_shown_as_they_are),
        FOLDER_TEST(generations_choose_tokens), FOLDER_TEST(grammars_go_on),
        FOLDER_TEST(broken_padding_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
