// Experts that are not all in memory: the same results to the last bit, whatever is kept; errors of
// budgets and of the file they come from.
#include "families.h"
#include "format_files.h"

#include "runtime/residency_int.h"
#include "session/session_int.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N = 70, USED = 2, EXPERTS = 4, CONTEXT = 200 };
static const char *const models[] = {"qwen3_moe", "qwen35_moe"};

// The folder is the test's own, so its packed weights are written by the first opening.
static qn_engine *open_kept(const char *family, const char *folder, int64_t budget, int n_threads) {
    return family_open(family, &QN_INIT(qn_engine_opts, .n_threads = n_threads, .cache_dir = folder,
                                        .expert_budget = budget));
}

static qn_expert_stats stats_of(const qn_engine *engine, int64_t layer) {
    qn_err err;
    qn_expert_stats stats = QN_INIT(qn_expert_stats);
    ASSERT_OK(qn_engine_expert_stats(&stats, engine, layer, &err));
    return stats;
}

static qn_logits logits_of(const qn_engine *engine, const int32_t *ids, int64_t chunk) {
    qn_err err;
    qn_logits out = QN_INIT(qn_logits);
    const qn_logits_opts opts =
        QN_INIT(qn_logits_opts, .all_rows = true, .hidden = true, .chunk = chunk);
    ASSERT_OK(qn_engine_logits(&out, engine, ids, N, &opts, &err));
    return out;
}

static void assert_same_logits(const qn_logits *a, const qn_logits *b) {
    assert_int_equal(a->n_rows, b->n_rows);
    assert_memory_equal(a->logits, b->logits, (size_t)(a->n_rows * a->n_vocab) * sizeof *a->logits);
    assert_memory_equal(a->hidden, b->hidden,
                        (size_t)(a->n_hidden * a->n_tokens * a->width) * sizeof *a->hidden);
}

static void any_budget_computes_the_same(void **state) {
    static const int64_t chunks[] = {0, 7, 1};
    int32_t ids[N];
    for (size_t m = 0; m < 2; m++) {
        qn_engine *all = family_open(models[m], NULL);
        random_ids(ids, N, engine_info(all).n_vocab, 3);
        qn_logits want = logits_of(all, ids, 0);
        for (int64_t budget = USED; budget <= EXPERTS; budget++) {
            for (int n_threads = 1; n_threads <= 3; n_threads += 2) {
                qn_engine *some = open_kept(models[m], *state, budget, n_threads);
                for (size_t c = 0; c < 3; c++) {
                    qn_logits got = logits_of(some, ids, chunks[c]);
                    assert_same_logits(&got, &want);
                    qn_logits_deinit(&got);
                }
                const qn_expert_stats stats = stats_of(some, -1);
                assert_int_equal(stats.n_resident, budget);
                assert_int_equal(stats.n_experts, EXPERTS);
                if (budget < EXPERTS) assert_true(stats.misses > 0 && stats.hits > 0);
                if (budget == EXPERTS) assert_int_equal(stats.hits + stats.misses, 0);
                qn_engine_close(some);
            }
        }
        qn_logits_deinit(&want);
        qn_engine_close(all);
    }
}

// --- answers ---

typedef struct answers {
    qn_result plain, drafted, batch[3];
} answers;

// A sampled answer, one with speculative decoding, and three of a batch.
static answers ask(const qn_engine *engine) {
    qn_err err;
    qn_session *session;
    answers a = {.plain = QN_INIT(qn_result), .drafted = QN_INIT(qn_result)};
    int32_t ids[3][20];
    qn_prompt prompts[3];
    const qn_sample_opts sample = QN_INIT(qn_sample_opts, .temperature = 0.8f, .seed = 5);
    const qn_generate_opts opts = QN_INIT(qn_generate_opts, .max_tokens = 24, .ignore_end = true);
    const qn_generate_opts sampled =
        QN_INIT(qn_generate_opts, .sample = &sample, .max_tokens = 24, .ignore_end = true);
    const qn_row_opts row = QN_INIT(qn_row_opts, .generate = &opts);
    qn_generate_opts drafted = opts;
    drafted.lookup = true;
    drafted.draft_min = 3;
    ASSERT_OK(qn_session_create(
        &session, engine, &QN_INIT(qn_session_opts, .context = CONTEXT, .sessions = 8), &err));
    for (int i = 0; i < 3; i++) {
        random_ids(ids[i], 20, engine_info(engine).n_vocab, 10 + (uint64_t)i);
        prompts[i] = (qn_prompt){.ids = ids[i], .n = 20 - (size_t)i, .opts = &row};
        a.batch[i] = QN_INIT(qn_result);
    }
    ASSERT_OK(qn_session_set_prompt(session, ids[0], 20, &err));
    ASSERT_OK(qn_generate(&a.plain, session, &sampled, NULL, NULL, &err));
    ASSERT_OK(qn_session_set_prompt(session, ids[1], 20, &err));
    ASSERT_OK(qn_generate(&a.drafted, session, &drafted, NULL, NULL, &err));
    ASSERT_OK(qn_generate_batch(a.batch, 3, session, prompts, 3, NULL, NULL, &err));
    qn_session_destroy(session);
    return a;
}

static void assert_same_tokens(const qn_result *a, const qn_result *b) {
    assert_int_equal(a->n_tokens, b->n_tokens);
    assert_true(a->n_tokens > 0);
    assert_memory_equal(a->tokens, b->tokens, a->n_tokens * sizeof *a->tokens);
}

static void free_answers(answers *a) {
    qn_result_deinit(&a->plain);
    qn_result_deinit(&a->drafted);
    for (int i = 0; i < 3; i++) qn_result_deinit(&a->batch[i]);
}

static void answers_and_batches_are_the_same(void **state) {
    for (size_t m = 0; m < 2; m++) {
        qn_engine *all = family_open(models[m], NULL);
        answers want = ask(all);
        for (int64_t budget = USED; budget < EXPERTS; budget++) {
            qn_engine *some = open_kept(models[m], *state, budget, 2);
            answers got = ask(some);
            assert_same_tokens(&got.plain, &want.plain);
            assert_same_tokens(&got.drafted, &want.drafted);
            for (int i = 0; i < 3; i++) assert_same_tokens(&got.batch[i], &want.batch[i]);
            free_answers(&got);
            qn_engine_close(some);
        }
        free_answers(&want);
        qn_engine_close(all);
    }
}

// --- sessions, snapshots and threads ---

static void take(int32_t *to, int n, qn_session *session) {
    qn_err err;
    for (int i = 0; i < n; i++) ASSERT_OK(qn_session_step(&to[i], session, NULL, &err));
}

static void snapshots_go_on_the_same(void **state) {
    for (size_t m = 0; m < 2; m++) {
        qn_err err;
        int32_t ids[20], first[10], again[10];
        qn_session *session;
        qn_snapshot *snapshot;
        qn_engine *engine = open_kept(models[m], *state, USED, 2);
        ASSERT_OK(qn_session_create(
            &session, engine, &QN_INIT(qn_session_opts, .context = CONTEXT, .sessions = 4), &err));
        random_ids(ids, 20, engine_info(engine).n_vocab, 1);
        ASSERT_OK(qn_session_set_prompt(session, ids, 20, &err));
        take(first, 3, session);
        ASSERT_OK(qn_session_checkpoint(&snapshot, session, &err));
        take(first, 10, session);
        ASSERT_OK(qn_session_restore(session, snapshot, &err));
        take(again, 10, session);
        assert_memory_equal(first, again, sizeof first);
        qn_snapshot_destroy(snapshot);
        qn_session_destroy(session);
        qn_engine_close(engine);
    }
}

typedef struct walker {
    const qn_engine *engine;
    int32_t tokens[30];
    uint64_t seed;
} walker;

static void *walk(void *arg) {
    walker *w = arg;
    qn_err err;
    qn_session *session;
    int32_t ids[20];
    qn_expert_stats stats = QN_INIT(qn_expert_stats);
    random_ids(ids, 20, 100, w->seed);
    if (qn_session_create(&session, w->engine, &QN_INIT(qn_session_opts, .context = CONTEXT), &err))
        return NULL;
    bool is_fine = !qn_session_set_prompt(session, ids, 20, &err);
    for (int i = 0; i < 30 && is_fine; i++) {
        is_fine = !qn_session_step(&w->tokens[i], session, NULL, &err) &&
                  !qn_engine_expert_stats(&stats, w->engine, -1, &err);
    }
    qn_session_destroy(session);
    return is_fine ? w : NULL;
}

static void sessions_of_several_threads_share_the_experts(void **state) {
    qn_engine *all = family_open(models[0], NULL);
    qn_engine *some = open_kept(models[0], *state, USED, 2);
    walker want[3], got[3];
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        want[i] = (walker){.engine = all, .seed = (uint64_t)i};
        got[i] = (walker){.engine = some, .seed = (uint64_t)i};
        assert_non_null(walk(&want[i]));
        assert_int_equal(pthread_create(&threads[i], NULL, walk, &got[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        void *result;
        pthread_join(threads[i], &result);
        assert_non_null(result);
        assert_memory_equal(want[i].tokens, got[i].tokens, sizeof want[i].tokens);
    }
    qn_engine_close(some);
    qn_engine_close(all);
}

static void self_speculation_is_the_same(void **state) {
    int32_t ids[20];
    qn_result results[2] = {QN_INIT(qn_result), QN_INIT(qn_result)};
    for (int i = 0; i < 2; i++) {
        qn_err err;
        qn_session *session;
        qn_engine *engine = family_open(models[1], &QN_INIT(qn_engine_opts, .mtp = true,
                                                            .cache_dir = i ? *state : NULL,
                                                            .expert_budget = i ? USED : 0));
        const qn_generate_opts opts = QN_INIT(qn_generate_opts, .max_tokens = 30, .mtp = i == 1,
                                              .draft_min = i * 2, .ignore_end = true);
        ASSERT_OK(qn_session_create(&session, engine, &QN_INIT(qn_session_opts, .context = CONTEXT),
                                    &err));
        random_ids(ids, 20, engine_info(engine).n_vocab, 2);
        ASSERT_OK(qn_session_set_prompt(session, ids, 20, &err));
        ASSERT_OK(qn_generate(&results[i], session, &opts, NULL, NULL, &err));
        qn_session_destroy(session);
        qn_engine_close(engine);
    }
    assert_same_tokens(&results[0], &results[1]);
    for (int i = 0; i < 2; i++) qn_result_deinit(&results[i]);
}

// --- errors ---

static qn_status try_open(const char *family, const qn_engine_opts *opts, qn_err *err) {
    char path[256];
    qn_engine *engine = NULL;
    const qn_status status =
        qn_engine_open(&engine, family_path(path, sizeof path, family), opts, err);
    qn_engine_close(engine);
    return status;
}

static void wrong_budgets_are_refused(void **state) {
    qn_err err;
    const char *dir = *state;
    ASSERT_FAILS(
        try_open(models[0], &QN_INIT(qn_engine_opts, .cache_dir = dir, .expert_budget = 1), &err),
        QN_ARGUMENT, "1 experts per layer; a token is routed to 2");
    ASSERT_FAILS(try_open(models[0],
                          &QN_INIT(qn_engine_opts, .cache_dir = dir, .expert_budget_bytes = 1000),
                          &err),
                 QN_ARGUMENT, "the 2 experts that a token is routed to take");
    ASSERT_FAILS(try_open(models[0],
                          &QN_INIT(qn_engine_opts, .cache_dir = dir, .expert_budget = 2,
                                   .expert_budget_bytes = 1 << 20),
                          &err),
                 QN_ARGUMENT, "want one of them");
    ASSERT_FAILS(
        try_open(models[0], &QN_INIT(qn_engine_opts, .cache_dir = dir, .expert_budget = -2), &err),
        QN_ARGUMENT, "-2");
    ASSERT_FAILS(
        try_open("qwen3", &QN_INIT(qn_engine_opts, .cache_dir = dir, .expert_budget = 2), &err),
        QN_ARGUMENT, "has no experts");
    ASSERT_FAILS(try_open(models[0], &QN_INIT(qn_engine_opts, .expert_budget = 2), &err),
                 QN_UNSUPPORTED, "quern compile");
    ASSERT_FAILS(
        try_open(models[0],
                 &QN_INIT(qn_engine_opts, .cache_dir = dir, .expert_budget = 2, .device = "ref"),
                 &err),
        QN_UNSUPPORTED, "the device needs all");
    // Nothing was written so far, and a folder that is only looked into gets nothing.
    ASSERT_FAILS(try_open(models[0],
                          &QN_INIT(qn_engine_opts, .cache_dir = dir, .expert_budget = 2,
                                   .cache_use = QN_CACHE_DIR_FOUND),
                          &err),
                 QN_UNSUPPORTED, "quern compile");
    // Bytes for three of four.
    qn_engine *engine = open_kept(models[0], dir, 3, 1);
    const int64_t bytes = stats_of(engine, -1).pool_bytes;
    qn_engine_close(engine);
    engine = family_open(
        models[0], &QN_INIT(qn_engine_opts, .cache_dir = dir, .expert_budget_bytes = bytes + 1));
    assert_int_equal(stats_of(engine, -1).n_resident, 3);
    qn_engine_close(engine);
}

// The packed weights of the folder (static storage).
static const char *packed_path(const char *folder) {
    static char path[600];
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    path[0] = 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        const size_t n = strlen(e->d_name);
        if (n > 6 && strcmp(e->d_name + n - 6, ".packs") == 0)
            snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
    }
    closedir(dir);
    assert_true(*path);
    return path;
}

static char *read_whole(const char *path, size_t *size) {
    qn_err err;
    char *data;
    ASSERT_OK(qn_file_load(&data, size, path, 1 << 28, &err));
    return data;
}

static void write_at(const char *path, off_t at, const void *bytes, size_t n) {
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, n, at), (ssize_t)n);
    close(fd);
}

// A file that changes or shrinks while the model runs is an error of the step, which needs it, and
// of no other.
static void a_file_that_changes_fails_the_step(void **state) {
    for (int is_short = 0; is_short < 2; is_short++) {
        qn_err err;
        size_t size;
        int32_t ids[N];
        qn_engine *engine = open_kept(models[0], *state, USED, 2);
        const char *path = packed_path(*state);
        char *good = read_whole(path, &size);
        char *zeros = calloc(size, 1);
        assert_non_null(zeros);
        random_ids(ids, N, engine_info(engine).n_vocab, 3);
        qn_logits want = logits_of(engine, ids, 0), got = QN_INIT(qn_logits);
        if (is_short)
            assert_int_equal(truncate(path, 4096), 0);
        else
            write_at(path, 8192, zeros, size - 8192);
        ASSERT_FAILS(qn_engine_logits(&got, engine, ids, N, NULL, &err), QN_IO, "packs");
        write_at(path, 0, good, size); // as it was: the next step runs
        got = logits_of(engine, ids, 0);
        assert_same_logits(&got, &want);
        qn_logits_deinit(&got);
        qn_logits_deinit(&want);
        free(zeros);
        qn_free(good);
        qn_engine_close(engine);
    }
}

// A file with nothing but zeros in place of weights, and as it was; release with free_damage.
typedef struct damage {
    const char *path;
    char *good, *zeros;
    size_t size;
} damage;

static damage damage_file(const char *folder) {
    damage d = {.path = packed_path(folder)};
    d.good = read_whole(d.path, &d.size);
    d.zeros = calloc(d.size, 1);
    assert_non_null(d.zeros);
    write_at(d.path, 8192, d.zeros, d.size - 8192);
    return d;
}

static void mend_file(damage *d) {
    write_at(d->path, 0, d->good, d->size);
    qn_free(d->good);
    free(d->zeros);
}

// In the middle of an answer: the error ends the step, the next one goes on where it was. Keys and
// values of the tokens before are kept, recurrent states are computed again.
static void a_session_goes_on_once_its_file_is_back(void **state) {
    enum { LENGTH = 60 };
    for (size_t m = 0; m < 2; m++) {
        qn_err err;
        int32_t ids[20], want[LENGTH], got[LENGTH];
        int n = 0, n_failed = 0;
        qn_session *sessions[2];
        qn_engine *engines[2] = {family_open(models[m], NULL),
                                 open_kept(models[m], *state, USED, 2)};
        random_ids(ids, 20, engine_info(engines[0]).n_vocab, 1);
        for (int i = 0; i < 2; i++) {
            ASSERT_OK(qn_session_create(&sessions[i], engines[i],
                                        &QN_INIT(qn_session_opts, .context = CONTEXT), &err));
            ASSERT_OK(qn_session_set_prompt(sessions[i], ids, 20, &err));
        }
        take(want, LENGTH, sessions[0]);
        take(got, n = 5, sessions[1]);
        while (n < LENGTH) {
            damage d = damage_file(*state);
            qn_status status = QN_OK;
            while (!status && n < LENGTH) {
                status = qn_session_step(&got[n], sessions[1], NULL, &err);
                n += !status;
            }
            mend_file(&d);
            if (!status) break;
            assert_int_equal(status, QN_IO);
            assert_int_equal(qn_session_cached(sessions[1]), m == 0 ? 20 + n - 1 : 0);
            n_failed++;
            take(&got[n], 1, sessions[1]);
            n++;
        }
        print_message("%s: %d steps failed\n", models[m], n_failed);
        assert_true(n_failed > 3);
        assert_memory_equal(got, want, sizeof got);
        for (int i = 0; i < 2; i++) {
            qn_session_destroy(sessions[i]);
            qn_engine_close(engines[i]);
        }
        assert_int_equal(remove(packed_path(*state)), 0); // one file at a time
    }
}

enum { ROWS = 3, ROW_LENGTH = 20 };

typedef struct row_tokens {
    int32_t tokens[ROW_LENGTH];
    int n;
} row_tokens;

static bool hear_token(void *arg, const qn_event *event) {
    row_tokens *row = arg;
    if (event->token >= 0) row->tokens[row->n++] = event->token;
    return true;
}

// All rows of a batch; with a folder, its file is damaged before every third step, and the step
// tried again once it failed. Returns how many did.
static int run_rows(row_tokens *rows, const qn_engine *engine, const char *folder) {
    qn_err err;
    qn_batch *batch;
    int n_failed = 0;
    size_t n_left = ROWS;
    const qn_generate_opts opts =
        QN_INIT(qn_generate_opts, .max_tokens = ROW_LENGTH, .ignore_end = true);
    const qn_row_opts row = QN_INIT(qn_row_opts, .generate = &opts);
    ASSERT_OK(qn_batch_create(&batch, engine, &QN_INIT(qn_batch_opts, .context = 64), &err));
    for (size_t i = 0; i < ROWS; i++) {
        int32_t ids[20];
        random_ids(ids, 20, engine_info(engine).n_vocab, 10 + i);
        rows[i].n = 0;
        ASSERT_OK(qn_batch_add(NULL, batch, ids, 20 - i, &row, hear_token, &rows[i], &err));
    }
    for (int step = 0; n_left; step++) {
        if (folder && step % 3 == 0) {
            damage d = damage_file(folder);
            const qn_status status = qn_batch_step(&n_left, batch, &err);
            mend_file(&d);
            assert_true(status == QN_OK || status == QN_IO);
            n_failed += status != QN_OK;
        } else {
            ASSERT_OK(qn_batch_step(&n_left, batch, &err));
        }
    }
    qn_batch_destroy(batch);
    return n_failed;
}

static void batches_go_on_once_their_file_is_back(void **state) {
    for (size_t m = 0; m < 2; m++) {
        row_tokens want[ROWS], got[ROWS];
        qn_engine *all = family_open(models[m], NULL),
                  *some = open_kept(models[m], *state, USED, 2);
        run_rows(want, all, NULL);
        const int n_failed = run_rows(got, some, *state);
        print_message("%s: %d steps failed\n", models[m], n_failed);
        assert_true(n_failed > 3);
        for (size_t i = 0; i < ROWS; i++) {
            assert_int_equal(got[i].n, ROW_LENGTH);
            assert_memory_equal(got[i].tokens, want[i].tokens, sizeof want[i].tokens);
        }
        qn_engine_close(some);
        qn_engine_close(all);
        assert_int_equal(remove(packed_path(*state)), 0);
    }
}

// What is damaged before it is opened is written again, or is an error where it must not be.
static void a_damaged_file_is_written_again(void **state) {
    qn_err err;
    size_t size, again;
    qn_engine_opts fill = QN_INIT(qn_engine_opts, .cache_dir = *state, .expert_budget = USED,
                                  .cache_use = QN_CACHE_DIR_FILL);
    ASSERT_OK(try_open(models[0], &fill, &err));
    const char *path = packed_path(*state);
    char *good = read_whole(path, &size);
    const char byte = (char)(good[size / 2] ^ 1);
    write_at(path, (off_t)size / 2, &byte, 1);
    ASSERT_FAILS(try_open(models[0],
                          &QN_INIT(qn_engine_opts, .cache_dir = *state, .expert_budget = 2,
                                   .cache_use = QN_CACHE_DIR_FOUND),
                          &err),
                 QN_MEMORY, "quern compile");
    ASSERT_OK(try_open(models[0], &fill, &err));
    char *mended = read_whole(packed_path(*state), &again);
    assert_int_equal(size, again);
    assert_memory_equal(good, mended, size);
    qn_free(good);
    qn_free(mended);
}

// Written weight by weight, the file is that of a model which was in memory as a whole.
static void both_ways_write_one_file(void **state) {
    size_t sizes[2];
    char *files[2];
    for (int i = 0; i < 2; i++) {
        char folder[600];
        snprintf(folder, sizeof folder, "%s/%d", (const char *)*state, i);
        qn_engine_close(open_kept(models[1], folder, i ? USED : 0, 2));
        files[i] = read_whole(packed_path(folder), &sizes[i]);
        unlink(packed_path(folder));
        DIR *dir = opendir(folder);
        for (struct dirent *e; (e = readdir(dir)) != NULL;) unlinkat(dirfd(dir), e->d_name, 0);
        closedir(dir);
        rmdir(folder);
    }
    assert_int_equal(sizes[0], sizes[1]);
    assert_memory_equal(files[0], files[1], sizes[0]);
    qn_free(files[0]);
    qn_free(files[1]);
}

// --- what is brought ahead ---

// Until the reader has done what was planned.
static void wait_for_reader(qn_residency *r) {
    const struct timespec moment = {.tv_nsec = 1000000};
    for (bool is_busy = true; is_busy;) {
        pthread_mutex_lock(&r->lock);
        is_busy = r->first_planned < r->n_planned;
        for (int64_t l = 0; l < r->n_layers; l++) {
            for (int64_t s = 0; s < r->n_slots; s++)
                is_busy |= r->layers[l].slots[s].state == QN_SLOT_LOADING;
        }
        pthread_mutex_unlock(&r->lock);
        if (is_busy) nanosleep(&moment, NULL);
    }
}

// A prompt that all experts are used for leaves those that came last; the ones that it used most
// are brought back before the next step asks for them.
static void hot_experts_are_brought_back(void **state) {
    enum { PROMPTS = 12, BUDGET = 3 };
    for (size_t m = 0; m < 2; m++) {
        qn_engine *all = family_open(models[m], NULL),
                  *some = open_kept(models[m], *state, BUDGET, 2);
        int64_t before = 0, n_planned = 0;
        for (uint64_t i = 0; i < PROMPTS; i++) {
            int32_t ids[N];
            random_ids(ids, N, engine_info(all).n_vocab, 50 + i);
            for (int k = 0; k < N; k++) ids[k] = k % 5 ? ids[0] : ids[k]; // few are used much
            qn_logits want = logits_of(all, ids, 0), got = logits_of(some, ids, 0);
            assert_same_logits(&got, &want);
            qn_logits_deinit(&want);
            qn_logits_deinit(&got);
            wait_for_reader(some->residency);
            n_planned += some->residency->n_planned;
            const qn_expert_stats stats = stats_of(some, -1);
            assert_true(stats.prefetched >= before && stats.prefetched <= n_planned);
            before = stats.prefetched;
        }
        print_message("%s: %lld experts planned, %lld brought\n", models[m], (long long)n_planned,
                      (long long)before);
        assert_true(before > 0);
        qn_engine_close(some);
        qn_engine_close(all);
    }
}

// --- looking at it ---

static void counts_add_up(void **state) {
    qn_err err;
    int32_t ids[N];
    char *svg;
    qn_engine *engine = open_kept(models[0], *state, USED, 1);
    random_ids(ids, N, engine_info(engine).n_vocab, 3);
    for (int i = 0; i < 60; i++) { // more steps than the history has columns
        qn_logits out = logits_of(engine, ids, i % 2 ? 0 : 30);
        qn_logits_deinit(&out);
    }
    const qn_expert_stats all = stats_of(engine, -1);
    qn_expert_stats sum = {0};
    for (int64_t i = 0; i < all.n_layers; i++) {
        const qn_expert_stats one = stats_of(engine, i);
        assert_int_equal(one.layer, i);
        sum.hits += one.hits;
        sum.misses += one.misses;
        sum.promotions += one.promotions;
        sum.demotions += one.demotions;
        sum.bytes_read += one.bytes_read;
    }
    assert_int_equal(all.steps, 30 + 30 * 3);
    assert_int_equal(sum.hits, all.hits);
    assert_int_equal(sum.misses, all.misses);
    assert_int_equal(sum.promotions, all.promotions);
    assert_int_equal(sum.demotions, all.demotions);
    assert_true(all.misses > 0 && all.promotions > 0 && all.demotions > 0 && all.bytes_read > 0);
    ASSERT_OK(qn_engine_expert_svg(&svg, engine, &err));
    assert_memory_equal(svg, "<svg", 4);
    assert_non_null(strstr(svg, "</svg>"));
    qn_free(svg);
    qn_expert_stats none = QN_INIT(qn_expert_stats);
    ASSERT_FAILS(qn_engine_expert_stats(&none, engine, all.n_layers, &err), QN_ARGUMENT, "layer 2");
    qn_engine_close(engine);
    engine = family_open("qwen3", NULL);
    assert_int_equal(stats_of(engine, -1).n_layers, 0);
    ASSERT_FAILS(qn_engine_expert_svg(&svg, engine, &err), QN_STATE, "budget");
    qn_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(any_budget_computes_the_same),
        FOLDER_TEST(answers_and_batches_are_the_same),
        FOLDER_TEST(snapshots_go_on_the_same),
        FOLDER_TEST(sessions_of_several_threads_share_the_experts),
        FOLDER_TEST(self_speculation_is_the_same),
        FOLDER_TEST(wrong_budgets_are_refused),
        FOLDER_TEST(a_file_that_changes_fails_the_step),
        FOLDER_TEST(a_session_goes_on_once_its_file_is_back),
        FOLDER_TEST(batches_go_on_once_their_file_is_back),
        FOLDER_TEST(a_damaged_file_is_written_again),
        FOLDER_TEST(hot_experts_are_brought_back),
        FOLDER_TEST(both_ways_write_one_file),
        FOLDER_TEST(counts_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
