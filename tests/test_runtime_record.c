// Recorded steps give the same logits again: on every device, after a restart, with everything that
// a sequence can live through. A file of steps can be anything.
#include "families.h"

#include "core/file.h"
#include "core/mem.h"
#include "runtime/record.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N_IDS = 150, MAX_ROWS = 64, MAX_FILE = 1 << 24 };
static char folder[64];

static const char *steps_path(void) {
    static char path[96];
    snprintf(path, sizeof path, "%s/steps", folder);
    return path;
}

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/quern-record-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    unlink(steps_path());
    return rmdir(folder);
}

static qn_engine *open_recording(const char *family) {
    unlink(steps_path());
    setenv("QN_STEPS", steps_path(), 1);
    qn_engine *engine = family_open(family, NULL);
    unsetenv("QN_STEPS");
    return engine;
}

static void keep_row(float *rows, int64_t *n, const float *logits, int64_t vocab) {
    assert_true(*n < MAX_ROWS);
    memcpy(rows + *n * vocab, logits, (size_t)vocab * sizeof *rows);
    ++*n;
}

// A prompt, a fork, both going on, a snapshot and a return to it, a rollback: the rows of logits in
// the order of the steps.
static int64_t live(float *rows, qn_engine *engine) {
    qn_err err;
    const int64_t vocab = engine_info(engine).n_vocab;
    int32_t ids[N_IDS];
    int64_t n = 0;
    const float *logits;
    qn_session *a, *b;
    qn_snapshot *snapshot;
    random_ids(ids, N_IDS, vocab, 3);
    const qn_session_opts opts = QN_INIT(qn_session_opts, .context = 300, .chunk = 40);
    ASSERT_OK(qn_session_create(&a, engine, &opts, &err));
    ASSERT_OK(qn_session_prefill(&logits, a, ids, 70, &err));
    keep_row(rows, &n, logits, vocab);
    ASSERT_OK(qn_session_fork(&b, a, &err));
    for (int i = 0; i < 5; i++) {
        ASSERT_OK(qn_session_feed(&logits, a, ids[70 + i], &err));
        keep_row(rows, &n, logits, vocab);
        ASSERT_OK(qn_session_feed(&logits, b, ids[90 + i], &err));
        keep_row(rows, &n, logits, vocab);
    }
    ASSERT_OK(qn_session_checkpoint(&snapshot, a, &err));
    for (int i = 0; i < 3; i++) {
        ASSERT_OK(qn_session_feed(&logits, a, ids[100 + i], &err));
        keep_row(rows, &n, logits, vocab);
    }
    ASSERT_OK(qn_session_restore(a, snapshot, &err));
    ASSERT_OK(qn_session_feed(&logits, a, ids[110], &err));
    keep_row(rows, &n, logits, vocab);
    qn_snapshot_destroy(snapshot);
    qn_session_destroy(b);
    qn_session_destroy(a);
    return n;
}

static void assert_replays(const char *family, const char *device, const float *rows, int64_t n) {
    qn_err err;
    qn_logits got = QN_INIT(qn_logits);
    qn_engine *engine = family_open(family, &QN_INIT(qn_engine_opts, .device = device));
    const qn_logits_opts opts = QN_INIT(qn_logits_opts, .all_rows = true);
    ASSERT_OK(qn_engine_replay(&got, engine, steps_path(), &opts, &err));
    assert_int_equal(got.n_rows, n);
    for (int64_t i = 0; i < n; i++) {
        if (memcmp(got.logits + i * got.n_vocab, rows + i * got.n_vocab,
                   (size_t)got.n_vocab * sizeof *rows) != 0)
            fail_msg("%s on %s: row %lld differs", family, device, (long long)i);
    }
    qn_logits_deinit(&got);
    ASSERT_OK(qn_engine_replay(&got, engine, steps_path(), NULL, &err)); // the last row alone
    assert_int_equal(got.n_rows, 1);
    assert_memory_equal(got.logits, rows + (n - 1) * got.n_vocab,
                        (size_t)got.n_vocab * sizeof *rows);
    qn_logits_deinit(&got);
    qn_engine_close(engine);
}

static void recorded_steps_give_the_same_logits(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_engine *engine = open_recording(families[f]);
        const int64_t vocab = engine_info(engine).n_vocab;
        float *rows = qn_alloc((size_t)(MAX_ROWS * vocab), sizeof *rows);
        const int64_t n = live(rows, engine);
        qn_engine_close(engine);
        struct stat st;
        assert_int_equal(stat(steps_path(), &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
        for (size_t d = 0; qn_device_name(d); d++)
            assert_replays(families[f], qn_device_name(d), rows, n);
        assert_replays(families[f], "cpu,ref", rows, n);
        qn_free(rows);
    }
    unlink(steps_path());
}

// A second runner does not write over the first one's file.
static void each_runner_has_a_file_of_its_own(void **state) {
    (void)state;
    qn_err err;
    char second[128];
    qn_engine *engine = open_recording(families[0]);
    qn_session *a, *b;
    ASSERT_OK(qn_session_create(&a, engine, NULL, &err));
    ASSERT_OK(qn_session_create(&b, engine, NULL, &err));
    snprintf(second, sizeof second, "%s.1", steps_path());
    assert_true(qn_path_is_file(steps_path()) && qn_path_is_file(second));
    qn_session_destroy(a);
    qn_session_destroy(b);
    qn_engine_close(engine);
    unlink(second);
    unlink(steps_path());
}

static void save(const char *bytes, size_t size) {
    FILE *f = fopen(steps_path(), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

// Damaged in every byte and cut everywhere: logits or an error, never anything else.
static void any_file_may_be_replayed(void **state) {
    (void)state;
    qn_err err;
    char *bytes;
    size_t size, n_refused = 0;
    const char *family = families[8]; // slots, pages and a log
    qn_engine *engine = open_recording(family);
    qn_session *session;
    const float *logits;
    const int32_t ids[] = {1, 2, 3, 4, 5};
    ASSERT_OK(qn_session_create(&session, engine, &QN_INIT(qn_session_opts, .context = 100), &err));
    ASSERT_OK(qn_session_prefill(&logits, session, ids, 5, &err));
    ASSERT_OK(qn_session_feed(&logits, session, 7, &err));
    qn_session_destroy(session);
    ASSERT_OK(qn_file_load(&bytes, &size, steps_path(), MAX_FILE, &err));
    for (size_t at = 0; at < size; at += at < 128 ? 1 : 7) {
        const char good = bytes[at];
        qn_logits got = QN_INIT(qn_logits);
        bytes[at] ^= (char)(at % 2 ? 0x80 : 0x01);
        save(bytes, size);
        const qn_status status = qn_engine_replay(&got, engine, steps_path(), NULL, &err);
        if (status) assert_true(err.message[0]);
        n_refused += status != QN_OK;
        qn_logits_deinit(&got);
        bytes[at] = good;
    }
    assert_true(n_refused > 20);
    for (size_t n = 0; n < size; n += 5) {
        qn_logits got = QN_INIT(qn_logits);
        save(bytes, n);
        const qn_status status = qn_engine_replay(&got, engine, steps_path(), NULL, &err);
        if (status) assert_true(err.message[0]);
        qn_logits_deinit(&got);
    }
    qn_free(bytes);
    qn_engine_close(engine);
    unlink(steps_path());
}

// A message of a few bytes can name pages of any size: they are counted before they are touched.
static void memory_is_counted_before_it_is_touched(void **state) {
    (void)state;
    enum { N_COPIES = 10, N_ALLOWED = 4 };
    qn_err err;
    qn_engine *engine = family_open(families[8], NULL);
    const qn_runner_opts opts = {
        .engine = engine, .context = 64, .rows = 4, .outs = 1, .segs = 2, .n_seqs = 16};
    qn_runner *runner = NULL;
    qn_touched touched = {0};
    ASSERT_OK(qn_runner_create(&runner, &opts, &err));
    const qn_state *kept = qn_runner_state(runner);
    const int64_t page = qn_state_page_bytes(kept, 0), slot = qn_state_slot_bytes(kept);
    assert_true(page > 0 && slot > 0);
    ASSERT_OK(qn_touched_init(&touched, kept, N_ALLOWED * page + slot, &err));
    qn_copy copies[N_COPIES];
    for (int i = 0; i < N_COPIES; i++) copies[i] = (qn_copy){.kind = QN_COPY_PAGE, .to = i};
    qn_step step = {.copies = copies, .n_copies = N_ALLOWED, .n_groups = 1};
    ASSERT_OK(qn_touched_add(&touched, kept, &step, &err));
    ASSERT_OK(qn_touched_add(&touched, kept, &step, &err)); // the same pages again
    assert_int_equal(touched.bytes, N_ALLOWED * page);
    step.copies = &(qn_copy){.kind = QN_COPY_SLOT, .to = 3};
    step.n_copies = 1;
    ASSERT_OK(qn_touched_add(&touched, kept, &step, &err));
    assert_int_equal(touched.bytes, N_ALLOWED * page + slot);
    step.copies = copies;
    step.n_copies = N_COPIES;
    ASSERT_FAILS(qn_touched_add(&touched, kept, &step, &err), QN_MEMORY, "are free");
    qn_touched_deinit(&touched);
    qn_runner_destroy(runner);
    qn_engine_close(engine);
}

// A folder, a device or a pipe is not written to, nor a file beside it.
static void steps_go_to_regular_files_alone(void **state) {
    (void)state;
    qn_err err;
    qn_session *session = NULL;
    char beside[sizeof folder + 8];
    setenv("QN_STEPS", folder, 1);
    qn_engine *engine = family_open(families[0], NULL);
    unsetenv("QN_STEPS");
    ASSERT_FAILS(qn_session_create(&session, engine, NULL, &err), QN_IO, "not a regular file");
    snprintf(beside, sizeof beside, "%s.1", folder);
    assert_int_not_equal(access(beside, F_OK), 0);
    qn_engine_close(engine);
}

static void steps_of_another_model_are_refused(void **state) {
    (void)state;
    qn_err err;
    qn_logits got = QN_INIT(qn_logits);
    qn_engine *engine = open_recording(families[0]);
    qn_session *session;
    ASSERT_OK(qn_session_create(&session, engine, NULL, &err));
    qn_session_destroy(session);
    ASSERT_FAILS(qn_engine_replay(&got, engine, steps_path(), NULL, &err), QN_ARGUMENT,
                 "no step wants logits");
    qn_engine_close(engine);
    engine = family_open(families[10], NULL);
    ASSERT_FAILS(qn_engine_replay(&got, engine, steps_path(), NULL, &err), QN_ARGUMENT,
                 "steps of a model with");
    save("hello", 5);
    ASSERT_FAILS(qn_engine_replay(&got, engine, steps_path(), NULL, &err), QN_FORMAT,
                 "not a record of steps");
    unlink(steps_path());
    ASSERT_FAILS(qn_engine_replay(&got, engine, steps_path(), NULL, &err), QN_IO, steps_path());
    qn_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_steps_give_the_same_logits),
        cmocka_unit_test(each_runner_has_a_file_of_its_own),
        cmocka_unit_test(any_file_may_be_replayed),
        cmocka_unit_test(memory_is_counted_before_it_is_touched),
        cmocka_unit_test(steps_go_to_regular_files_alone),
        cmocka_unit_test(steps_of_another_model_are_refused),
    };
    return cmocka_run_group_tests_name("records", tests, make_folder, remove_folder);
}
