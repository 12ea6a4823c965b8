// Low-rank adapters: equal to merged weights, chosen row by row, without a trace in rows that use
// none; and adapters that do not fit.
#include "testing.h"

#include "adapter_rig.h"
#include "format_files.h"
#include "model_writer.h"

#include "core/mem.h"

#include <math.h>

enum { N_IDS = 40, HEAD = 16 };

#define N_OF(list) (sizeof(list) / sizeof((list)[0]))

static void some_ids(int32_t *ids) {
    for (int32_t i = 0; i < N_IDS; i++) ids[i] = (i * 37 + 11) % 500;
}

static path_name mini(const char *family, bool is_gguf) {
    path_name path;
    if (is_gguf)
        snprintf(path.text, sizeof path.text, "%s/mini/%s/%s-bf16.gguf", TEST_DATA, family, family);
    else
        snprintf(path.text, sizeof path.text, "%s/mini/%s", TEST_DATA, family);
    return path;
}

// --- engines -------------------------------------------------------------------------------------

static qn_engine *open_with(const char *path, const qn_adapter *adapters, size_t n,
                            const qn_engine_opts *like) {
    qn_err err;
    qn_engine *engine = NULL;
    qn_engine_opts opts = like ? *like : QN_INIT(qn_engine_opts, .n_threads = 1);
    opts.adapters = adapters;
    opts.n_adapters = n;
    ASSERT_OK(qn_engine_open(&engine, path, &opts, &err));
    return engine;
}

static qn_logits logits_of(const qn_engine *engine, const qn_logits_opts *like, int64_t adapter) {
    qn_err err;
    qn_logits logits = QN_INIT(qn_logits);
    int32_t ids[N_IDS];
    qn_logits_opts opts = like ? *like : QN_INIT(qn_logits_opts);
    some_ids(ids);
    opts.all_rows = true;
    opts.adapter = adapter;
    ASSERT_OK(qn_engine_logits(&logits, engine, ids, N_IDS, &opts, &err));
    return logits;
}

static qn_logits logits_with(const char *path, const qn_adapter *adapters, size_t n,
                             int64_t adapter) {
    qn_engine *engine = open_with(path, adapters, n, NULL);
    const qn_logits logits = logits_of(engine, NULL, adapter);
    qn_engine_close(engine);
    return logits;
}

static double difference(const qn_logits *a, const qn_logits *b) {
    double gap = 0, size = 0;
    for (int64_t i = 0; i < a->n_rows * a->n_vocab; i++) {
        const double x = (double)a->logits[i], y = (double)b->logits[i];
        gap += (x - y) * (x - y);
        size += y * y;
    }
    return sqrt(gap / size);
}

static void expect_near(const char *what, qn_logits got, const qn_logits *want, double bound) {
    const double gap = difference(&got, want);
    print_message("%s: %.1e\n", what, gap);
    if (!(gap <= bound)) fail_msg("%s: differs by %.1e, want at most %.0e", what, gap, bound);
    qn_logits_deinit(&got);
}

static void expect_same(const char *what, qn_logits got, const qn_logits *want) {
    if (memcmp(got.logits, want->logits, (size_t)(got.n_rows * got.n_vocab) * sizeof(float)) != 0)
        fail_msg("%s: differs by %.1e", what, difference(&got, want));
    qn_logits_deinit(&got);
}

// --- equal to merged weights ---------------------------------------------------------------------

static qn_logits merged_logits(void **state, const char *family, const model_file *const *adapters,
                               const double *scales, size_t n) {
    const path_name folder = in_folder(state, "merged");
    model_file *m = model_load(mini(family, false).text);
    model_edit(m, "type *.weight F32");
    for (size_t i = 0; i < n; i++) adapter_merge(m, adapters[i], scales[i]);
    assert_int_equal(mkdir(folder.text, 0700), 0);
    model_write_checkpoint(m, folder.text, 1);
    model_free(m);
    const qn_logits logits = logits_with(folder.text, NULL, 0, 0);
    remove(in_folder(state, "merged/config.json").text);
    remove(in_folder(state, "merged/model.safetensors").text);
    assert_int_equal(rmdir(folder.text), 0);
    return logits;
}

// Adapters of both kinds on models of both kinds.
static void adapters_equal_merged_weights(void **state) {
    static const struct {
        const char *family, *arch;
        bool is_paired; // GGUF files have rows of q and k in another order
        bool has_gguf;  // an adapter as GGUF
        adapter_want want;
    } cases[] = {
        {"llama_untied", "llama", true, true, {.rank = 4, .alpha = 8, .seed = 1}},
        {"llama32", "llama", true, true, {.rank = 1, .alpha = 1, .seed = 2}},
        {"qwen3", "qwen3", false, true, {.rank = 8, .alpha = 4, .seed = 3}},
        {"qwen3_moe", "qwen3moe", false, true, {.rank = 3, .alpha = 4, .seed = 4}},
        {"gemma2", "gemma2", false, true, {.rank = 16, .alpha = 16, .seed = 5}},
        {"gemma3", "gemma3", false, true, {.rank = 20, .alpha = 5, .seed = 6}},
        // Value heads, and columns of them, have another order in GGUF. The delta rule amplifies
        // every rounding: a small adapter, as trained ones are.
        {"qwen35", "qwen35", false, false, {.rank = 4, .alpha = 0.25, .seed = 7}},
        {"qwen3", "qwen3", false, false, {.rank = 4, .alpha = 2, .is_rank_root = true, .seed = 8}},
    };
    const path_name folder = in_folder(state, "peft"), file = in_folder(state, "adapter.gguf");
    for (size_t i = 0; i < N_OF(cases); i++) {
        model_file *base = model_load(mini(cases[i].family, false).text);
        model_file *peft = adapter_make(base, &cases[i].want);
        const adapter_want *want = &cases[i].want;
        const double r = (double)want->rank;
        const double scale = want->alpha / (want->is_rank_root ? sqrt(r) : r);
        qn_logits merged =
            merged_logits(state, cases[i].family, &(const model_file *){peft}, &scale, 1);
        adapter_write(peft, folder.text);
        if (cases[i].has_gguf) {
            model_file *gguf =
                adapter_gguf(peft, cases[i].arch, want->alpha, cases[i].is_paired ? HEAD : 0);
            model_write_gguf(gguf, file.text);
            model_free(gguf);
        }
        for (int k = 0; k < 4; k++) { // model, adapter
            const bool is_gguf = k & 1;
            if (is_gguf && !cases[i].has_gguf) continue;
            const qn_adapter adapter = {.path = is_gguf ? file.text : folder.text, .scale = 1};
            char what[128];
            snprintf(what, sizeof what, "%s as %s, adapter as %s", cases[i].family,
                     k & 2 ? "GGUF" : "checkpoint", is_gguf ? "GGUF" : "PEFT");
            const path_name path = mini(cases[i].family, k & 2);
            qn_logits plain = logits_with(path.text, NULL, 0, 0);
            assert_true(difference(&plain, &merged) > 0.05); // it does something
            qn_logits_deinit(&plain);
            expect_near(what, logits_with(path.text, &adapter, 1, 0), &merged, 1e-5);
        }
        adapter_remove(folder.text);
        remove(file.text);
        qn_logits_deinit(&merged);
        model_free(peft);
        model_free(base);
    }
}

// --- sets ----------------------------------------------------------------------------------------

// Two adapters of different ranks and matrices, in three sets: each alone, and both with scales.
typedef struct two {
    path_name paths[2];
    model_file *files[2];
    double scales[2]; // their own
    qn_adapter list[4];
} two;

static void open_two(two *t, void **state, const char *family) {
    static const adapter_want wants[] = {
        {.rank = 4, .alpha = 8, .seed = 11},
        {.rank = 6, .alpha = 3, .seed = 12, .module = "mlp"},
    };
    model_file *base = model_load(mini(family, false).text);
    for (int i = 0; i < 2; i++) {
        t->paths[i] = in_folder(state, i ? "second" : "first");
        t->files[i] = adapter_make(base, &wants[i]);
        t->scales[i] = wants[i].alpha / (double)wants[i].rank;
        adapter_write(t->files[i], t->paths[i].text);
    }
    t->list[0] = (qn_adapter){.path = t->paths[0].text, .scale = 1, .set = 1};
    t->list[1] = (qn_adapter){.path = t->paths[1].text, .scale = 1, .set = 2};
    t->list[2] = (qn_adapter){.path = t->paths[0].text, .scale = 0.5f, .set = 3};
    t->list[3] = (qn_adapter){.path = t->paths[1].text, .scale = -2, .set = 3};
    model_free(base);
}

static void close_two(two *t) {
    for (int i = 0; i < 2; i++) {
        adapter_remove(t->paths[i].text);
        model_free(t->files[i]);
    }
}

static void sets_are_sums_of_their_adapters(void **state) {
    two t;
    open_two(&t, state, "qwen3");
    const model_file *const both[] = {t.files[0], t.files[1]};
    const double scales[] = {0.5 * t.scales[0], -2 * t.scales[1]};
    qn_engine *engine = open_with(mini("qwen3", false).text, t.list, 4, NULL);
    assert_int_equal(engine_info(engine).n_adapter_sets, 3);
    qn_logits want = merged_logits(state, "qwen3", both, t.scales, 1);
    expect_near("set 1", logits_of(engine, NULL, 1), &want, 1e-5);
    expect_near("the first is the usual one", logits_of(engine, NULL, 0), &want, 1e-5);
    qn_logits_deinit(&want);
    want = merged_logits(state, "qwen3", both + 1, t.scales + 1, 1);
    expect_near("set 2", logits_of(engine, NULL, 2), &want, 1e-5);
    qn_logits_deinit(&want);
    want = merged_logits(state, "qwen3", both, scales, 2);
    expect_near("set 3", logits_of(engine, NULL, 3), &want, 1e-5);
    qn_logits_deinit(&want);
    qn_err err;
    qn_logits none = QN_INIT(qn_logits);
    const int32_t id = 1;
    ASSERT_FAILS(
        qn_engine_logits(&none, engine, &id, 1, &QN_INIT(qn_logits_opts, .adapter = 4), &err),
        QN_ARGUMENT, "set 4 of adapters, the engine has 3");
    ASSERT_FAILS(
        qn_engine_logits(&none, engine, &id, 1, &QN_INIT(qn_logits_opts, .adapter = -2), &err),
        QN_ARGUMENT, "set -2");
    qn_engine_close(engine);
    close_two(&t);
}

// In unquantised, quantised and recurrent models.
static void rows_without_adapters_keep_their_bits(void **state) {
    static const struct {
        const char *family, *path;
    } cases[] = {{"qwen3", TEST_DATA "/mini/qwen3"},
                 {"qwen35", TEST_DATA "/mini/qwen35"},
                 {"gemma2", TEST_DATA "/mini/gemma2/gemma2-bf16.gguf"}};
    for (size_t i = 0; i < N_OF(cases); i++) {
        two t;
        open_two(&t, state, cases[i].family);
        qn_logits want = logits_with(cases[i].path, NULL, 0, 0);
        expect_same(cases[i].path, logits_with(cases[i].path, t.list, 4, QN_NO_ADAPTER), &want);
        qn_logits_deinit(&want);
        close_two(&t);
    }
}

// A quantised model: activations are rounded for its weights, not for the adapter.
static void quantised_models_take_adapters(void **state) {
    static const char path[] = TEST_DATA "/k256/qwen3/qwen3-Q4_K_M.gguf";
    model_file *base = model_load(path), *named = adapter_new("{}");
    for (size_t i = 0; i < base->n_tensors; i++) { // shapes under the names of a checkpoint
        const model_tensor *t = &base->tensors[i];
        int layer;
        if (sscanf(t->name, "blk.%d.attn_q.weigh", &layer) != 1 || t->n_dims != 2) continue;
        if (!strstr(t->name, "attn_q.weight")) continue;
        char name[MODEL_NAME];
        snprintf(name, sizeof name, "model.layers.%d.self_attn.q_proj.weight", layer);
        model_add(named, name, QN_TYPE_F32, t->dims, 2, NULL);
    }
    model_file *peft = adapter_make(named, &(adapter_want){.rank = 8, .alpha = 8, .seed = 3});
    const path_name folder = in_folder(state, "peft");
    adapter_write(peft, folder.text);
    const qn_adapter adapter = {.path = folder.text, .scale = 1};
    qn_logits plain = logits_with(path, NULL, 0, 0);
    expect_same("none", logits_with(path, &adapter, 1, QN_NO_ADAPTER), &plain);
    qn_logits fast = logits_with(path, &adapter, 1, 0);
    assert_true(difference(&fast, &plain) > 0.05);
    qn_engine *ref = open_with(path, &adapter, 1, &QN_INIT(qn_engine_opts, .reference = true));
    expect_near("plans and reference", logits_of(ref, NULL, 0), &fast, 1e-2);
    qn_engine_close(ref);
    qn_logits_deinit(&plain);
    qn_logits_deinit(&fast);
    adapter_remove(folder.text);
    model_free(peft);
    model_free(named);
    model_free(base);
}

// --- one order of every sum ----------------------------------------------------------------------

static void nothing_but_the_adapter_changes_results(void **state) {
    static const char *const families[] = {"qwen3", "qwen35"};
    static const qn_engine_opts engines[] = {
        QN_INITIALIZER(qn_engine_opts, .n_threads = 2),
        QN_INITIALIZER(qn_engine_opts, .n_threads = 1, .device = "cpu:portable"),
        QN_INITIALIZER(qn_engine_opts, .n_threads = 1, .device = "ref"),
        QN_INITIALIZER(qn_engine_opts, .n_threads = 2, .device = "cpu,ref"),
        QN_INITIALIZER(qn_engine_opts, .n_threads = 2, .plans = QN_PLANS_EXACT),
    };
    static const int64_t chunks[] = {1, 7, 64};
    for (size_t f = 0; f < N_OF(families); f++) {
        two t;
        open_two(&t, state, families[f]);
        const path_name path = mini(families[f], false);
        qn_engine *engine = open_with(path.text, t.list, 4, NULL);
        qn_logits want = logits_of(engine, NULL, 3);
        for (size_t i = 0; i < N_OF(chunks); i++)
            expect_same("chunks",
                        logits_of(engine, &QN_INIT(qn_logits_opts, .chunk = chunks[i]), 3), &want);
        expect_same("naive", logits_of(engine, &QN_INIT(qn_logits_opts, .naive = true), 3), &want);
        qn_engine_close(engine);
        for (size_t i = 0; i < N_OF(engines); i++) {
            engine = open_with(path.text, t.list, 4, &engines[i]);
            expect_same(engines[i].device ? engines[i].device : "threads",
                        logits_of(engine, NULL, 3), &want);
            qn_engine_close(engine);
        }
        engine = open_with(path.text, t.list, 4, &QN_INIT(qn_engine_opts, .reference = true));
        expect_near("reference", logits_of(engine, NULL, 3), &want, 1e-5);
        qn_engine_close(engine);
        qn_logits_deinit(&want);
        close_two(&t);
    }
}

// Packed weights in a cache folder are the model's alone.
static void cache_folders_hold_no_adapters(void **state) {
    two t;
    open_two(&t, state, "qwen3");
    const path_name cache = in_folder(state, "cache"), model = mini("qwen3", true);
    const qn_engine_opts opts = QN_INIT(qn_engine_opts, .n_threads = 1, .cache_dir = cache.text);
    qn_engine *engine = open_with(model.text, NULL, 0, &opts);
    qn_logits plain = logits_of(engine, NULL, 0);
    qn_engine_close(engine);
    qn_logits want = logits_with(model.text, t.list, 4, 3);
    engine = open_with(model.text, t.list, 4, &opts);
    assert_true(engine_info(engine).cached_bytes > 0);
    expect_same("with adapters", logits_of(engine, NULL, 3), &want);
    qn_engine_close(engine);
    engine = open_with(model.text, NULL, 0, &opts);
    assert_int_equal(engine_info(engine).cached_bytes, engine_info(engine).weight_bytes);
    expect_same("without", logits_of(engine, NULL, 0), &plain);
    qn_engine_close(engine);
    qn_logits_deinit(&plain);
    qn_logits_deinit(&want);
    close_two(&t);
    char command[600];
    snprintf(command, sizeof command, "rm -r %s", cache.text);
    assert_int_equal(system(command), 0);
}

// An adapter does not make it another model.
static void adapters_are_not_counted_as_parameters(void **state) {
    two t;
    open_two(&t, state, "qwen3");
    const path_name model = mini("qwen3", true);
    qn_engine *plain = open_with(model.text, NULL, 0, &QN_INIT(qn_engine_opts));
    qn_engine *adapted = open_with(model.text, t.list, 4, &QN_INIT(qn_engine_opts));
    assert_int_equal(engine_info(adapted).n_parameters, engine_info(plain).n_parameters);
    assert_true(engine_info(adapted).weight_bytes > engine_info(plain).weight_bytes);
    qn_engine_close(plain);
    qn_engine_close(adapted);
    close_two(&t);
}

// --- rows of a batch -----------------------------------------------------------------------------

enum { ROWS = 5, ANSWER = 12 };

typedef struct answers {
    int32_t tokens[ROWS][ANSWER];
    float logprobs[ROWS][ANSWER];
    size_t n[ROWS];
} answers;

static bool keep_answer(void *arg, const qn_event *e) {
    answers *a = arg;
    if (e->token < 0) return true;
    assert_true(e->row < ROWS && a->n[e->row] < ANSWER);
    a->tokens[e->row][a->n[e->row]] = e->token;
    a->logprobs[e->row][a->n[e->row]++] = e->logprob;
    return true;
}

static void ask(answers *out, qn_session *session, const int64_t *adapters, size_t first,
                size_t n) {
    qn_err err;
    qn_row_opts opts[ROWS];
    qn_prompt prompts[ROWS];
    qn_result results[ROWS];
    int32_t ids[N_IDS];
    answers got = {0};
    some_ids(ids);
    const qn_generate_opts generate =
        QN_INIT(qn_generate_opts, .max_tokens = ANSWER, .ignore_end = true, .logprobs = true);
    for (size_t i = 0; i < n; i++) {
        opts[i] = QN_INIT(qn_row_opts, .generate = &generate, .adapter = adapters[first + i]);
        prompts[i] = (qn_prompt){.ids = ids, .n = N_IDS - (first + i) / 4, .opts = &opts[i]};
        results[i] = QN_INIT(qn_result);
    }
    ASSERT_OK(qn_generate_batch(results, n, session, prompts, n, keep_answer, &got, &err));
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(results[i].status, QN_OK);
        memcpy(out->tokens[first + i], got.tokens[i], sizeof got.tokens[i]);
        memcpy(out->logprobs[first + i], got.logprobs[i], sizeof got.logprobs[i]);
        out->n[first + i] = got.n[i];
        qn_result_deinit(&results[i]);
    }
}

static qn_session *session_of(const qn_engine *engine, int64_t adapter) {
    qn_err err;
    qn_session *session = NULL;
    ASSERT_OK(qn_session_create(
        &session, engine, &QN_INIT(qn_session_opts, .context = 128, .adapter = adapter), &err));
    return session;
}

// The same prompt under every set and none, together and one by one.
static void rows_of_a_batch_have_adapters_of_their_own(void **state) {
    static const int64_t adapters[ROWS] = {1, 2, QN_NO_ADAPTER, 3, 0};
    static const char *const families[] = {"qwen3", "qwen35"};
    for (size_t f = 0; f < N_OF(families); f++) {
        two t;
        answers together = {0}, alone = {0}, plain = {0};
        open_two(&t, state, families[f]);
        qn_engine *engine = open_with(mini(families[f], false).text, t.list, 4,
                                      &QN_INIT(qn_engine_opts, .n_threads = 2));
        qn_session *session = session_of(engine, 2); // what 0 stands for
        ask(&together, session, adapters, 0, ROWS);
        for (size_t i = 0; i < ROWS; i++) {
            qn_session *own = session_of(engine, 2);
            ask(&alone, own, adapters, i, 1);
            qn_session_destroy(own);
        }
        assert_memory_equal(&together, &alone, sizeof alone);
        assert_memory_not_equal(together.logprobs[0], together.logprobs[1],
                                sizeof together.logprobs[0]);
        assert_memory_not_equal(together.logprobs[0], together.logprobs[3],
                                sizeof together.logprobs[0]);
        qn_session_destroy(session);
        qn_engine_close(engine);
        engine = open_with(mini(families[f], false).text, NULL, 0, NULL);
        session = session_of(engine, 0);
        ask(&plain, session, (const int64_t[]){0, 0, 0, 0, 0}, 2, 1);
        assert_memory_equal(plain.logprobs[2], together.logprobs[2], sizeof plain.logprobs[2]);
        qn_session_destroy(session);
        qn_engine_close(engine);
        close_two(&t);
    }
}

// --- sessions ------------------------------------------------------------------------------------

static void prefill(float *out, qn_session *session, int64_t vocab) {
    qn_err err;
    int32_t ids[N_IDS];
    const float *logits;
    some_ids(ids);
    ASSERT_OK(qn_session_prefill(&logits, session, ids, N_IDS, &err));
    memcpy(out, logits, (size_t)vocab * sizeof *out);
}

// What is kept of a prompt is found again under its own set only.
static void kept_prompts_are_not_shared_between_sets(void **state) {
    enum { VOCAB = 512 };
    two t;
    float first[VOCAB], second[VOCAB], again[VOCAB];
    qn_err err;
    open_two(&t, state, "qwen3");
    qn_engine *engine = open_with(mini("qwen3", false).text, t.list, 4, NULL);
    qn_session *session = session_of(engine, 1), *fresh = session_of(engine, 2);
    prefill(first, session, VOCAB);
    prefill(second, fresh, VOCAB);
    assert_memory_not_equal(first, second, sizeof first);
    ASSERT_OK(qn_session_set_adapter(session, 2, &err));
    assert_int_equal(qn_session_cached(session), 0);
    prefill(again, session, VOCAB);
    assert_int_equal(session_counts(session).reused, 0);
    assert_memory_equal(again, second, sizeof second);
    ASSERT_OK(qn_session_set_adapter(session, 1, &err));
    prefill(again, session, VOCAB);
    assert_true(session_counts(session).reused > 0);
    assert_memory_equal(again, first, sizeof first);
    ASSERT_FAILS(qn_session_set_adapter(session, 4, &err), QN_ARGUMENT, "set 4 of adapters");
    assert_int_equal(qn_session_cached(session), N_IDS); // as before
    qn_session_destroy(session);
    qn_session_destroy(fresh);
    qn_engine_close(engine);
    close_two(&t);
}

// The next scores of a session after a token.
static void feed(float *out, qn_session *session, int32_t token, int64_t vocab) {
    qn_err err;
    const float *logits;
    ASSERT_OK(qn_session_feed(&logits, session, token, &err));
    memcpy(out, logits, (size_t)vocab * sizeof *out);
}

static void forks_and_snapshots_keep_their_set(void **state) {
    enum { VOCAB = 512 };
    two t;
    float want[VOCAB], got[VOCAB], first[VOCAB];
    qn_err err;
    qn_session *fork = NULL, *shares = NULL;
    qn_snapshot *snapshot = NULL;
    open_two(&t, state, "qwen3");
    qn_engine *engine = open_with(mini("qwen3", false).text, t.list, 4, NULL);
    qn_session *session = session_of(engine, 3);
    prefill(first, session, VOCAB);
    ASSERT_OK(qn_session_fork(&fork, session, &err));
    ASSERT_OK(qn_session_checkpoint(&snapshot, session, &err));
    feed(want, session, 7, VOCAB);
    feed(got, fork, 7, VOCAB);
    assert_memory_equal(got, want, sizeof want);
    ASSERT_OK(qn_session_set_adapter(session, QN_NO_ADAPTER, &err));
    prefill(got, session, VOCAB);
    assert_memory_not_equal(got, first, sizeof first);
    ASSERT_OK(qn_session_restore(session, snapshot, &err)); // the set, too
    feed(got, session, 7, VOCAB);
    assert_memory_equal(got, want, sizeof want);
    ASSERT_OK(qn_session_create(&shares, engine,
                                &QN_INIT(qn_session_opts, .share = session, .adapter = 3), &err));
    prefill(got, shares, VOCAB);
    assert_memory_equal(got, first, sizeof first);
    qn_snapshot_destroy(snapshot);
    qn_session_destroy(shares);
    qn_session_destroy(fork);
    qn_session_destroy(session);
    qn_engine_close(engine);
    close_two(&t);
}

// A saved session has its set, and goes on with that alone: under its number, of the same files and
// scales.
static void states_keep_their_set(void **state) {
    enum { VOCAB = 512 };
    two t;
    float want[VOCAB], got[VOCAB];
    qn_err err;
    void *data;
    size_t size;
    open_two(&t, state, "qwen3");
    const path_name model = mini("qwen3", false);
    qn_engine *engine = open_with(model.text, t.list, 4, NULL);
    qn_session *session = session_of(engine, 3);
    prefill(got, session, VOCAB);
    ASSERT_OK(qn_session_save_bytes(&data, &size, session, &err));
    feed(want, session, 7, VOCAB);
    qn_session *other = session_of(engine, 1);
    ASSERT_OK(qn_session_load_bytes(other, data, size, &err));
    feed(got, other, 7, VOCAB);
    assert_memory_equal(got, want, sizeof want);
    qn_session_destroy(other);
    qn_session_destroy(session);
    qn_engine_close(engine);
    for (size_t i = 0; i < 3; i++) { // fewer sets; another scale; the other order
        const float scale = t.list[2].scale;
        if (i == 1) t.list[2].scale = 0.25f;
        if (i == 2) {
            const qn_adapter first = t.list[2];
            t.list[2] = t.list[3];
            t.list[3] = first;
        }
        engine = open_with(model.text, t.list, i == 0 ? 2 : 4, NULL);
        session = session_of(engine, 1);
        ASSERT_FAILS(qn_session_load_bytes(session, data, size, &err), QN_ARGUMENT,
                     i == 0 ? "set 3 of adapters, the engine has 2" : "of other adapters");
        qn_session_destroy(session);
        qn_engine_close(engine);
        if (i == 1) t.list[2].scale = scale;
    }
    qn_free(data);
    close_two(&t);
}

// Drafts of a model without adapters, and of n-grams, are only guesses.
static void speculation_changes_no_token(void **state) {
    two t;
    int32_t ids[N_IDS];
    qn_err err;
    qn_result want = QN_INIT(qn_result);
    some_ids(ids);
    open_two(&t, state, "qwen35");
    qn_engine *engine = open_with(mini("qwen35", false).text, t.list, 4, NULL);
    qn_session *session = session_of(engine, 3), *draft = session_of(engine, QN_NO_ADAPTER);
    for (int i = 0; i < 3; i++) {
        qn_result got = QN_INIT(qn_result);
        const qn_generate_opts opts =
            QN_INIT(qn_generate_opts, .max_tokens = 24, .ignore_end = true, .lookup = i == 1,
                    .draft = i == 2 ? draft : NULL, .draft_min = i ? 3 : 0);
        ASSERT_OK(qn_session_set_prompt(session, ids, N_IDS, &err));
        ASSERT_OK(qn_generate(i ? &got : &want, session, &opts, NULL, NULL, &err));
        if (i) assert_int_equal(got.n_tokens, want.n_tokens);
        if (i) assert_memory_equal(got.tokens, want.tokens, want.n_tokens * sizeof *want.tokens);
        if (i == 2) assert_true(got.n_drafted > 0);
        qn_result_deinit(&got);
    }
    qn_result_deinit(&want);
    qn_session_destroy(draft);
    qn_session_destroy(session);
    qn_engine_close(engine);
    close_two(&t);
}

// --- what does not fit ---------------------------------------------------------------------------

static void expect_refused(const char *model, const qn_adapter *adapters, size_t n,
                           qn_status status, const char *part) {
    qn_err err;
    qn_engine *engine = NULL;
    const qn_engine_opts opts =
        QN_INIT(qn_engine_opts, .n_threads = 1, .adapters = adapters, .n_adapters = n);
    ASSERT_FAILS(qn_engine_open(&engine, model, &opts, &err), status, part);
    assert_null(engine);
}

static void peft_folders_are_checked(void **state) {
#define Q "base_model.model.model.layers.0.self_attn.q_proj."
    static const struct {
        const char *edits;
        qn_status status;
        const char *part;
    } cases[] = {
        {"set peft_type \"IA3\"", QN_UNSUPPORTED, "peft_type: 'IA3', supported: LORA"},
        {"unset peft_type", QN_UNSUPPORTED, "peft_type"},
        {"set r 0", QN_FORMAT, "r: 0, want 1 to 4096"},
        {"set r 5000", QN_FORMAT, "r: 5000, want 1 to 4096"},
        {"set r -1", QN_FORMAT, "r: -1"},
        {"set r \"4\"", QN_FORMAT, "r is not a whole number"},
        {"unset r", QN_FORMAT, "r is not a whole number"},
        {"set r 5", QN_FORMAT, "rank 4, adapter_config.json says 5"},
        {"set lora_alpha null", QN_FORMAT, "lora_alpha is not a number"},
        {"set lora_alpha 0", QN_FORMAT, "lora_alpha: 0"},
        {"set lora_alpha 1e300", QN_FORMAT, "scale 2.5e+299"},
        {"set use_rslora 1", QN_FORMAT, "use_rslora is not true or false"},
        {"set use_dora true", QN_UNSUPPORTED, "use_dora is set"},
        {"set bias \"all\"", QN_UNSUPPORTED, "bias is set"},
        {"set modules_to_save [\"lm_head\"]", QN_UNSUPPORTED, "modules_to_save is set"},
        {"set alpha_pattern {\"q_proj\": 2}", QN_UNSUPPORTED, "alpha_pattern is set"},
        {"set fan_in_fan_out true", QN_UNSUPPORTED, "fan_in_fan_out is set"},
        {"set target_modules [\"k_proj\"]", QN_FORMAT, "not among target_modules"},
        {"set target_modules [1]", QN_FORMAT, "target_modules[0] is not a string"},
        {"drop " Q "lora_B.weight", QN_FORMAT, Q "lora_A.weight has no partner"},
        {"drop " Q "lora_A.weight", QN_FORMAT, Q "lora_B.weight has no partner"},
        {"shape " Q "lora_A.weight 4 32", QN_FORMAT, "want (4, 64)"},
        {"shape " Q "lora_B.weight 32 4", QN_FORMAT, "want (64, 4)"},
        {"shape " Q "lora_A.weight 4", QN_FORMAT, "1 dimensions, (4, 1)"},
        {"set rank_pattern {\"q_proj\": 0}; shape " Q "lora_A.weight 0 64", QN_FORMAT, ""},
        {"set rank_pattern {\"q_proj\": 2}; shape " Q "lora_A.weight 2 64", QN_FORMAT,
         "want (64, 2)"},
        {"type " Q "lora_A.weight F8_E4M3", QN_UNSUPPORTED, "F8_E4M3 is not supported"},
        {"fill " Q "lora_A.weight nan", QN_FORMAT, "value 0 is nan"},
        {"fill " Q "lora_B.weight inf", QN_FORMAT, "value 0 is inf"},
        {"rename " Q "lora_* base_model.model.model.layers.9.self_attn.q_proj.lora_*", QN_FORMAT,
         "layers.9.self_attn.q_proj.lora_A.weight: the model (qwen3) has no such matrix"},
        {"rename " Q "lora_* base_model.model.lm_head.lora_*", QN_UNSUPPORTED,
         "adapters of the output matrix"},
        {"rename " Q "lora_* base_model.model.model.embed_tokens.lora_*", QN_UNSUPPORTED,
         "adapters of the embedding"},
        {"rename " Q "lora_A.weight base_model.model.model.norm.weight", QN_FORMAT,
         "has no partner"},
    };
#undef Q
    const path_name folder = in_folder(state, "peft"), model = mini("qwen3", false);
    model_file *base = model_load(model.text);
    const qn_adapter adapter = {.path = folder.text, .scale = 1};
    for (size_t i = 0; i < N_OF(cases); i++) {
        model_file *peft = adapter_make(
            base, &(adapter_want){.rank = 4, .alpha = 8, .seed = 1, .module = "q_proj"});
        print_message("%s\n", cases[i].edits);
        model_edit(peft, cases[i].edits);
        adapter_write(peft, folder.text);
        expect_refused(model.text, &adapter, 1, cases[i].status, cases[i].part);
        model_free(peft);
    }
    adapter_remove(folder.text);
    model_free(base);
}

static void gguf_adapters_are_checked(void **state) {
    static const struct {
        const char *edits;
        qn_status status;
        const char *part;
    } cases[] = {
        {"nokey general.type", QN_FORMAT, "not an adapter: no key general.type"},
        {"key general.type str model", QN_FORMAT, "general.type is 'model', want 'adapter'"},
        {"key adapter.type str alora", QN_FORMAT, "adapter.type is 'alora'"},
        {"key general.architecture str llama", QN_FORMAT,
         "an adapter of llama, the model is qwen3"},
        {"nokey general.architecture", QN_FORMAT, "no key general.architecture"},
        {"key adapter.lora.alpha str big", QN_FORMAT, "adapter.lora.alpha: str"},
        {"key adapter.lora.alpha f32 inf", QN_FORMAT, "alpha is not a finite number"},
        {"key adapter.alora.invocation_tokens u32[] 1 2", QN_UNSUPPORTED, "middle of a prompt"},
        {"shape blk.0.attn_q.weight.lora_a 4 63", QN_FORMAT, "want (4, 64)"},
        {"drop blk.0.attn_q.weight.lora_b", QN_FORMAT, "has no partner for blk.0.attn_q.weight"},
        {"rename blk.0.attn_q.weight.* blk.0.ffn_up_exps.weight.*", QN_UNSUPPORTED, "of experts"},
        {"rename blk.0.attn_q.weight.* output.weight.*", QN_FORMAT, "want"},
        {"rename blk.0.attn_q.weight.* blk.7.attn_q.weight.*", QN_FORMAT, "no such matrix"},
        {"rename blk.0.attn_q.weight.lora_a blk.0.attn_norm.weight", QN_FORMAT, "no partner"},
        {"drop blk.0.*; drop blk.1.*", QN_FORMAT, "without tensors"},
    };
    const path_name file = in_folder(state, "adapter.gguf"), model = mini("qwen3", true);
    model_file *base = model_load(mini("qwen3", false).text);
    model_file *peft =
        adapter_make(base, &(adapter_want){.rank = 4, .alpha = 8, .seed = 1, .module = "q_proj"});
    const qn_adapter adapter = {.path = file.text, .scale = 1};
    for (size_t i = 0; i < N_OF(cases); i++) {
        model_file *m = adapter_gguf(peft, "qwen3", 8, 0);
        print_message("%s\n", cases[i].edits);
        model_edit(m, cases[i].edits);
        model_write_gguf(m, file.text);
        expect_refused(model.text, &adapter, 1, cases[i].status, cases[i].part);
        model_free(m);
    }
    model_free(peft);
    model_free(base);
}

// An adapter of a matrix of the prediction head, which follows the last layer.
static void the_head_has_adapters_too(void **state) {
    enum { RANK = 4, WIDTH = 64, UP = 96 };
    static const qn_engine_opts plans = QN_INITIALIZER(qn_engine_opts, .mtp = true),
                                reference =
                                    QN_INITIALIZER(qn_engine_opts, .mtp = true, .reference = true);
    const path_name file = in_folder(state, "adapter.gguf"), model = mini("qwen35", true);
    const qn_adapter adapter = {.path = file.text, .scale = 1};
    const qn_logits_opts opts = QN_INIT(qn_logits_opts, .mtp = true);
    model_file *m = calloc(1, sizeof *m);
    float values[RANK * UP];
    uint32_t seed = 5;
    assert_non_null(m);
    for (size_t i = 0; i < N_OF(values); i++) values[i] = adapter_number(&seed);
    model_edit(m, "key general.type str adapter; key adapter.type str lora;"
                  "key general.architecture str qwen35; key adapter.lora.alpha f32 8");
    model_add(m, "blk.4.ffn_up.weight.lora_a", QN_TYPE_F32, (const int64_t[]){RANK, WIDTH}, 2,
              values);
    model_add(m, "blk.4.ffn_up.weight.lora_b", QN_TYPE_F32, (const int64_t[]){UP, RANK}, 2, values);
    model_write_gguf(m, file.text);
    model_free(m);
    qn_engine *with[] = {open_with(model.text, &adapter, 1, &plans),
                         open_with(model.text, &adapter, 1, &reference)},
              *without = open_with(model.text, NULL, 0, &plans);
    qn_logits got[] = {logits_of(with[0], &opts, 0), logits_of(with[1], &opts, 0)},
              base = logits_of(without, &opts, 0);
    double gaps[2] = {0}, size = 0;
    for (int64_t i = 0; i < base.n_mtp * base.n_vocab; i++) {
        gaps[0] += fabs((double)got[1].mtp[i] - (double)got[0].mtp[i]);
        gaps[1] += fabs((double)base.mtp[i] - (double)got[0].mtp[i]);
        size += fabs((double)got[0].mtp[i]);
    }
    print_message("of the reference %.1e, without the adapter %.1e\n", gaps[0] / size,
                  gaps[1] / size);
    assert_true(gaps[0] <= 1e-4 * size && gaps[1] >= 1e-2 * size);
    for (int i = 0; i < 2; i++) {
        qn_logits_deinit(&got[i]);
        qn_engine_close(with[i]);
    }
    qn_logits_deinit(&base);
    qn_engine_close(without);
}

// A file that ends anywhere.
static void truncated_adapters_are_refused(void **state) {
    const path_name file = in_folder(state, "adapter.gguf"), model = mini("qwen3", true);
    model_file *base = model_load(mini("qwen3", false).text);
    model_file *peft = adapter_make(
        base, &(adapter_want){.rank = 1, .alpha = 8, .seed = 1, .module = "layers.0.self_attn.k"});
    model_file *m = adapter_gguf(peft, "qwen3", 8, 0);
    const qn_adapter adapter = {.path = file.text, .scale = 1};
    model_write_gguf(m, file.text);
    struct stat facts;
    assert_int_equal(stat(file.text, &facts), 0);
    qn_engine_close(open_with(model.text, &adapter, 1, NULL));
    for (off_t size = facts.st_size - 40; size >= 0; size -= 97) {
        qn_err err;
        qn_engine *engine = NULL;
        assert_int_equal(truncate(file.text, size), 0);
        assert_int_not_equal(
            qn_engine_open(&engine, model.text,
                           &QN_INIT(qn_engine_opts, .adapters = &adapter, .n_adapters = 1), &err),
            QN_OK);
        assert_null(engine);
    }
    model_free(m);
    model_free(peft);
    model_free(base);
}

static void lists_of_adapters_are_checked(void **state) {
    two t;
    open_two(&t, state, "qwen3");
    const path_name model = mini("qwen3", false);
    const struct {
        qn_adapter list[2];
        qn_status status;
        const char *part;
    } cases[] = {
        {{{.path = NULL}}, QN_ARGUMENT, "without a path"},
        {{{.path = "/nowhere/adapter.gguf", .scale = 1}}, QN_IO, "/nowhere/adapter.gguf"},
        {{{.path = *state, .scale = 1}}, QN_FORMAT, "no adapter_model.safetensors in it"},
        {{{.path = model.text, .scale = 1}}, QN_FORMAT, "no adapter_model.safetensors in it"},
        {{{.path = mini("qwen3", true).text, .scale = 1}}, QN_FORMAT, "general.type is 'model'"},
        {{{.path = t.paths[0].text, .scale = NAN}}, QN_ARGUMENT, "a scale of nan"},
        {{{.path = t.paths[0].text, .scale = INFINITY}}, QN_ARGUMENT, "a scale of inf"},
        {{{.path = t.paths[0].text, .scale = 1, .set = -1}}, QN_ARGUMENT, "set -1, want 1 to 1024"},
        {{{.path = t.paths[0].text, .scale = 1, .set = 1025}}, QN_ARGUMENT, "set 1025"},
        {{{.path = t.paths[0].text, .scale = 1, .set = 3}},
         QN_ARGUMENT,
         "no adapter is in set 1 of 3"},
    };
    for (size_t i = 0; i < N_OF(cases); i++)
        expect_refused(model.text, cases[i].list, 1, cases[i].status, cases[i].part);
    expect_refused(model.text, NULL, 1, QN_ARGUMENT, "");
    // An adapter of another architecture, of another shape.
    expect_refused(mini("qwen35", false).text, t.list, 1, QN_FORMAT, "");
    expect_refused(mini("gemma3", false).text, t.list, 1, QN_FORMAT, "");
    close_two(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(adapters_equal_merged_weights),
        FOLDER_TEST(sets_are_sums_of_their_adapters),
        FOLDER_TEST(rows_without_adapters_keep_their_bits),
        FOLDER_TEST(quantised_models_take_adapters),
        FOLDER_TEST(nothing_but_the_adapter_changes_results),
        FOLDER_TEST(cache_folders_hold_no_adapters),
        FOLDER_TEST(adapters_are_not_counted_as_parameters),
        FOLDER_TEST(rows_of_a_batch_have_adapters_of_their_own),
        FOLDER_TEST(kept_prompts_are_not_shared_between_sets),
        FOLDER_TEST(forks_and_snapshots_keep_their_set),
        FOLDER_TEST(states_keep_their_set),
        FOLDER_TEST(speculation_changes_no_token),
        FOLDER_TEST(peft_folders_are_checked),
        FOLDER_TEST(gguf_adapters_are_checked),
        FOLDER_TEST(the_head_has_adapters_too),
        FOLDER_TEST(truncated_adapters_are_refused),
        FOLDER_TEST(lists_of_adapters_are_checked),
    };
    return cmocka_run_group_tests_name("adapters", tests, NULL, NULL);
}
