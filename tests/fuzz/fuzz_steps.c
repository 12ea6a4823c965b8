// Any file of steps, from the file to the logits: run or refused.
//
// The input is changes to a file that was recorded: each is a place (a 16-bit word of it counts
// 32-bit words of the file) and the new word. An input that begins with 0xff is a file by itself. A
// file without changes gives the logits that were computed when it was recorded.
#include "fuzz_cache.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_STEPS = 1 << 16, CHANGE = 6 };

static struct {
    char path[160];
    unsigned char file[MAX_STEPS];
    size_t size;
    float *logits; // after the last step
    size_t n_vocab;
    qn_engine *engine;
} steps;

static void close_engine(void) {
    qn_engine_close(steps.engine);
    qn_free(steps.logits);
}

// A prompt in two chunks, a fork, both going on, a return to a snapshot.
static void record(qn_engine *engine) {
    qn_err err = {0};
    qn_session *a = NULL, *b = NULL;
    qn_snapshot *snapshot = NULL;
    const float *logits = NULL;
    int32_t ids[20];
    for (int i = 0; i < 20; i++) ids[i] = 1 + i % 5;
    const qn_session_opts opts =
        QN_INIT(qn_session_opts, .context = 64, .chunk = 12, .sessions = 4);
    CHECK(qn_session_create(&a, engine, &opts, &err) == QN_OK);
    CHECK(qn_session_prefill(&logits, a, ids, 20, &err) == QN_OK);
    CHECK(qn_session_fork(&b, a, &err) == QN_OK);
    CHECK(qn_session_feed(&logits, a, 3, &err) == QN_OK);
    CHECK(qn_session_checkpoint(&snapshot, a, &err) == QN_OK);
    CHECK(qn_session_feed(&logits, b, 2, &err) == QN_OK);
    CHECK(qn_session_feed(&logits, a, 1, &err) == QN_OK);
    CHECK(qn_session_restore(a, snapshot, &err) == QN_OK);
    CHECK(qn_session_feed(&logits, a, 4, &err) == QN_OK);
    steps.n_vocab = (size_t)engine->model->hparams->vocab;
    steps.logits = qn_alloc(steps.n_vocab, sizeof *steps.logits);
    CHECK(steps.logits);
    memcpy(steps.logits, logits, steps.n_vocab * sizeof *logits);
    qn_snapshot_destroy(snapshot);
    qn_session_destroy(b);
    qn_session_destroy(a);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    fuzz_make();
    snprintf(steps.path, sizeof steps.path, "%s/steps", fuzz.folder);
    setenv("QN_STEPS", steps.path, 1);
    qn_engine *engine = fuzz_open(NULL, QN_CACHE_DIR_KEEP);
    unsetenv("QN_STEPS");
    record(engine);
    qn_engine_close(engine);
    FILE *f = fopen(steps.path, "rb");
    CHECK(f);
    steps.size = fread(steps.file, 1, MAX_STEPS, f);
    CHECK(fclose(f) == 0 && steps.size > 0 && steps.size < MAX_STEPS);
    steps.engine = fuzz_open(NULL, QN_CACHE_DIR_KEEP);
    atexit(close_engine);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const bool is_file = size && data[0] == 0xff;
    const size_t n_words = steps.size / 4;
    unsigned char *file = malloc(steps.size + size);
    qn_logits got = QN_INIT(qn_logits);
    qn_err err = {0};
    CHECK(file);
    memcpy(file, steps.file, steps.size);
    if (is_file) memcpy(file, data + 1, size - 1);
    for (size_t at = 0; !is_file && at + CHANGE <= size; at += CHANGE) {
        const size_t word = (size_t)(data[at] | data[at + 1] << 8) % n_words;
        memcpy(file + 4 * word, data + at + 2, 4);
    }
    fuzz_save(steps.path, file, is_file ? size - 1 : steps.size);
    const bool is_same = !is_file && memcmp(file, steps.file, steps.size) == 0;
    free(file);
    const qn_status status = qn_engine_replay(&got, steps.engine, steps.path, NULL, &err);
    CHECK(status == QN_OK || err.message[0]);
    if (is_same)
        CHECK(!status && memcmp(got.logits, steps.logits, steps.n_vocab * sizeof(float)) == 0);
    qn_logits_deinit(&got);
    return 0;
}
