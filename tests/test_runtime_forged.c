// A cache folder with forged files: any plan and any packed weights, with the right checksums.
//
// Plans change nothing, for they are compiled from the graph. Packed weights are numbers: those of
// a forger give his answers (docs/caches.md says whose folders count), but touch no other memory.
#include "testing.h"

#include "forge.h"
#include "format_files.h"

#include "core/file.h"
#include "core/mem.h"

#include <ctype.h>

enum { N_IDS = 9, MAX = 1 << 26 };
static const int32_t ids[N_IDS] = {5, 6, 7, 8, 9, 10, 11, 12, 13};

static const char *const models[] = {
    TEST_DATA "/mini/qwen3/qwen3-bf16.gguf",
    TEST_DATA "/mini/gemma2",
    TEST_DATA "/mini/qwen35",
    TEST_DATA "/mini/qwen3_moe",
    TEST_DATA "/k256/qwen3/qwen3-Q4_K_M.gguf",
};
enum { N_MODELS = sizeof models / sizeof *models };

static int n_each = 24; // forgeries of each file; the program's argument

static void hear(void *arg, qn_log_level level, const char *message) {
    (void)message;
    if (level <= QN_LOG_WARNING) ++*(int *)arg;
}

// False: the logits are no numbers.
static bool compute(qn_logits *out, const char *model, const char *dir, qn_cache_use use,
                    int *n_warnings) {
    qn_err err = {0};
    qn_engine *engine = NULL;
    *n_warnings = 0;
    ASSERT_OK(qn_engine_open(&engine, model,
                             &QN_INIT(qn_engine_opts, .n_threads = 1, .cache_dir = dir,
                                      .cache_use = use, .log = hear, .log_arg = n_warnings),
                             &err));
    const qn_status status = qn_engine_logits(out, engine, ids, N_IDS, NULL, &err);
    qn_engine_close(engine);
    return status == QN_OK;
}

static void assert_right(const qn_logits *want, const char *model, const char *dir,
                         qn_cache_use use, const char *what) {
    qn_logits got = QN_INIT(qn_logits);
    int n_warnings;
    if (!compute(&got, model, dir, use, &n_warnings)) fail_msg("%s: no logits", what);
    if (memcmp(got.logits, want->logits, (size_t)(want->n_rows * want->n_vocab) * sizeof(float)) !=
        0)
        fail_msg("%s: other logits", what);
    assert_int_equal(n_warnings, 0);
    qn_logits_deinit(&got);
}

// The n-th file of that kind; false: no more.
static bool find_file(path_name *out, char name[256], const char *folder, const char *ending,
                      int n) {
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    bool is_found = false;
    for (struct dirent *e; !is_found && (e = readdir(dir));) {
        const size_t size = strlen(e->d_name), m = strlen(ending);
        if (size < m || strcmp(e->d_name + size - m, ending) != 0 || n-- > 0) continue;
        snprintf(out->text, sizeof out->text, "%s/%.200s", folder, e->d_name);
        snprintf(name, 256, "%s", e->d_name);
        is_found = true;
    }
    closedir(dir);
    return is_found;
}

static void empty(const char *folder) {
    static const char *const endings[] = {".plan", ".packs", "origin"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        path_name path;
        char name[256];
        while (find_file(&path, name, folder, endings[i], 0))
            assert_int_equal(unlink(path.text), 0);
    }
}

// Another text in place of the i-th of `n` numbers that are spread over a plan: of an operand, a
// shape, an attribute, a constant. *size is that of the result; free() it.
static char *change_number(size_t *size, const char *text, size_t old, size_t i, size_t n) {
    static const char *const numbers[] = {"0", "1", "2", "7", "16", "65536", "1000000000"};
    size_t at = old * i / n;
    while (at < old && !isdigit((unsigned char)text[at])) at++;
    size_t end = at;
    while (end < old && isdigit((unsigned char)text[end])) end++;
    const char *put = numbers[i % (sizeof numbers / sizeof *numbers)];
    char *to = malloc(old + 16);
    assert_non_null(to);
    memcpy(to, text, at);
    memcpy(to + at, put, strlen(put));
    memcpy(to + at + strlen(put), text + end, old - end);
    *size = at + strlen(put) + old - end;
    return to;
}

static void forge_a_plan(const char *model, const char *folder, const path_name *path,
                         const char *name, const qn_logits *want) {
    qn_err err = {0};
    char *good;
    size_t size;
    ASSERT_OK(qn_file_load(&good, &size, path->text, MAX, &err));
    const char *text = strchr(good, '\n') + 1;
    const size_t n = size - (size_t)(text - good);
    for (int i = 0; i < n_each; i++) {
        size_t changed, whole;
        char *other = change_number(&changed, text, n, (size_t)i, (size_t)n_each);
        char *file = forge_plan(&whole, name, other, changed);
        gguf_save(path->text, file, whole);
        assert_right(want, model, folder, i % 2 ? QN_CACHE_DIR_KEEP : QN_CACHE_DIR_FOUND, name);
        free(other);
        free(file);
    }
    assert_right(want, model, folder, QN_CACHE_DIR_FILL, name); // writes it again
    char *now;
    ASSERT_OK(qn_file_load(&now, &size, path->text, MAX, &err));
    assert_string_equal(now, good);
    qn_free(now);
    qn_free(good);
}

static void forged_plans_change_nothing(void **state) {
    for (size_t m = 0; m < N_MODELS; m++) {
        path_name path;
        char name[256];
        int n_warnings, n = 0;
        qn_logits want = QN_INIT(qn_logits);
        assert_true(compute(&want, models[m], NULL, QN_CACHE_DIR_KEEP, &n_warnings));
        assert_right(&want, models[m], *state, QN_CACHE_DIR_FILL, "filled");
        while (find_file(&path, name, *state, ".plan", n)) {
            n++;
            forge_a_plan(models[m], *state, &path, name, &want);
        }
        assert_true(n >= 1);
        empty(*state);
        qn_logits_deinit(&want);
    }
}

// Bytes that make the largest numbers, not-a-numbers and indices, in a stretch of the weights.
static void forged_weights_touch_no_other_memory(void **state) {
    static const unsigned char fills[] = {0xff, 0x7f, 0x80, 0x00, 0x01, 0xaa};
    for (size_t m = 0; m < N_MODELS; m++) {
        qn_err err = {0};
        path_name path;
        char name[256], *good;
        size_t size;
        int n_warnings, n_other = 0;
        qn_logits want = QN_INIT(qn_logits);
        assert_true(compute(&want, models[m], *state, QN_CACHE_DIR_FILL, &n_warnings));
        assert_true(find_file(&path, name, *state, ".packs", 0));
        ASSERT_OK(qn_file_load(&good, &size, path.text, MAX, &err));
        for (int i = 0; i < n_each; i++) {
            unsigned char *file = malloc(size);
            assert_non_null(file);
            memcpy(file, good, size);
            const size_t begin = 8192 + (size - 8192) * (size_t)i / (size_t)n_each;
            memset(file + begin, fills[(size_t)i % sizeof fills], (size - begin) / 2);
            assert_true(forge_packs(file, size));
            gguf_save(path.text, file, size);
            qn_logits got = QN_INIT(qn_logits);
            const bool is_done = compute(&got, models[m], *state, QN_CACHE_DIR_FOUND, &n_warnings);
            assert_int_equal(n_warnings, 0); // it is accepted
            n_other += !is_done || memcmp(got.logits, want.logits, 64) != 0;
            if (is_done) qn_logits_deinit(&got);
            free(file);
        }
        assert_true(n_other > 0); // so they were used
        empty(*state);
        qn_free(good);
        qn_logits_deinit(&want);
    }
}

// Other weights, with the right sums, in every file of the folder.
static void forge_all_weights(const char *folder) {
    path_name path;
    char name[256];
    for (int n = 0; find_file(&path, name, folder, ".packs", n); n++) {
        qn_err err = {0};
        char *file;
        size_t size;
        ASSERT_OK(qn_file_load(&file, &size, path.text, MAX, &err));
        memset(file + 8192, 0x41, (size - 8192) / 2);
        assert_true(forge_packs((unsigned char *)file, size));
        gguf_save(path.text, file, size);
        qn_free(file);
    }
}

// A folder that came from elsewhere becomes this user's own by being filled: with what is made
// here, and not with what it brought, for this model and for all others.
static void filling_a_foreign_folder_adopts_nothing(void **state) {
    const path_name origin = in_folder(state, "origin");
    int n_warnings;
    qn_logits want[2] = {QN_INIT(qn_logits), QN_INIT(qn_logits)};
    for (size_t m = 0; m < 2; m++) {
        assert_true(compute(&want[m], models[m], NULL, QN_CACHE_DIR_KEEP, &n_warnings));
        assert_right(&want[m], models[m], *state, QN_CACHE_DIR_FILL, "filled");
    }
    forge_all_weights(*state);
    qn_logits got = QN_INIT(qn_logits);
    const bool is_done = compute(&got, models[0], *state, QN_CACHE_DIR_FOUND, &n_warnings);
    assert_true(!is_done || memcmp(got.logits, want[0].logits, 64) != 0); // the forgery works
    if (is_done) qn_logits_deinit(&got);
    gguf_save(origin.text, "quern cache folder 1 1.000000001\n", 33);
    assert_right(&want[0], models[0], *state, QN_CACHE_DIR_FILL, "filled again");
    for (size_t m = 0; m < 2; m++) {
        assert_right(&want[m], models[m], *state, QN_CACHE_DIR_FOUND, "found");
        qn_logits_deinit(&want[m]);
    }
    empty(*state);
}

int main(int argc, char **argv) {
    if (argc > 1) n_each = atoi(argv[1]);
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(forged_plans_change_nothing),
        FOLDER_TEST(forged_weights_touch_no_other_memory),
        FOLDER_TEST(filling_a_foreign_folder_adopts_nothing),
    };
    return cmocka_run_group_tests_name("forged", tests, NULL, NULL);
}
