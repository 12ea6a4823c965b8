// Killed at any moment, whatever makes a file leaves the old one or the whole new one.
#include "testing.h"

#include "format_files.h"

#include "core/file.h"
#include "core/mem.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>

static int n_kills = 25; // of each; the program's argument

static const char old_text[] = "GGUF, an older one";
static const char small_path[] = TEST_DATA "/mini/qwen3/qwen3-bf16.gguf";
static const char folder_path[] = TEST_DATA "/mini/qwen35_vl"; // with a vision tower

static qn_status quantize_file(const char *out, qn_err *err) {
    return qn_quantize(small_path, out, &QN_INIT(qn_quantize_opts, .type = "Q4_K_M"), err);
}

static qn_status quantize_folder(const char *out, qn_err *err) {
    return qn_quantize(folder_path, out, &QN_INIT(qn_quantize_opts, .type = "Q8_0"), err);
}

static qn_status convert_folder(const char *out, qn_err *err) {
    return qn_convert(folder_path, out, NULL, err);
}

static qn_status make_up(const char *out, qn_err *err) {
    return qn_synth("tiny-qwen3", "Q4_0", out, NULL, err);
}

typedef struct content {
    char *bytes; // NULL: no such file
    size_t size;
} content;

static content load(void *const *state, const char *name) {
    content c = {0};
    qn_err err = {0};
    const path_name path = in_folder(state, name);
    if (qn_path_is_file(path.text))
        ASSERT_OK(qn_file_load(&c.bytes, &c.size, path.text, 1 << 26, &err));
    return c;
}

static bool is_same(const content *a, const content *b) {
    return a->bytes && a->size == b->size && memcmp(a->bytes, b->bytes, a->size) == 0;
}

// What a kill may leave beside the outputs: files and folders under a temporary name.
static void remove_leftovers(const char *folder, bool is_inside) {
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        char path[1024];
        const bool is_temporary = strncmp(e->d_name, ".quern-", 7) == 0;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        if (!is_inside && !is_temporary && strstr(e->d_name, "out.gguf")) continue;
        if (!is_inside && !is_temporary) fail_msg("left behind: %s", e->d_name);
        snprintf(path, sizeof path, "%s/%.255s", folder, e->d_name);
        if (unlink(path) == 0) continue;
        assert_false(is_inside);
        remove_leftovers(path, true);
        assert_int_equal(rmdir(path), 0);
    }
    closedir(dir);
}

typedef qn_status make_fn(const char *out, qn_err *err);

// Makes a file in a process of its own, which is killed after some time if it has not ended.
static void make_and_kill(make_fn *make, const char *out, int64_t microseconds) {
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        qn_err err;
        _exit(make(out, &err) ? 1 : 0);
    }
    const struct timespec wait = {microseconds / 1000000, microseconds % 1000000 * 1000};
    int status = 0;
    nanosleep(&wait, NULL);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status)) assert_int_equal(WEXITSTATUS(status), 0); // it never fails
}

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static const char *const names[] = {"out.gguf", "mmproj-out.gguf"};

// Which of the two are new; everything else fails.
static void look(bool *is_new, void *const *state, const content *fresh) {
    const content old = {(char *)old_text, sizeof old_text - 1};
    for (int k = 0; k < 2; k++) {
        content got = load(state, names[k]);
        is_new[k] = is_same(&got, &fresh[k]);
        if (!is_new[k] && !is_same(&got, &old))
            fail_msg("%s: %zu bytes, neither the old nor the new file", names[k], got.size);
        qn_free(got.bytes);
    }
}

static void kill_often(void **state, make_fn *make, uint32_t seed) {
    qn_err err = {0};
    const path_name out = in_folder(state, names[0]);
    const int64_t start = now();
    ASSERT_OK(make(out.text, &err));
    const int64_t time = now() - start; // so that kills fall on all of it
    const content fresh[] = {load(state, names[0]), load(state, names[1])};
    int n_new = 0;
    qn_source_close(open_well(out.text));
    for (uint32_t i = 0; i < (uint32_t)n_kills; i++) {
        bool is_new[2];
        for (int k = 0; k < 2; k++) put_text(state, names[k], old_text);
        seed = seed * 1664525u + 1013904223u;
        make_and_kill(make, out.text, time * (int64_t)(seed >> 16) / 40000);
        look(is_new, state, fresh);
        if (fresh[1].bytes && is_new[0]) assert_true(is_new[1]); // the tower comes first
        n_new += is_new[0];
        remove_leftovers(*state, false);
    }
    print_message("%d of %d were new\n", n_new, n_kills);
    qn_free(fresh[0].bytes);
    qn_free(fresh[1].bytes);
}

static void quantizing_a_file(void **state) { kill_often(state, quantize_file, 1); }
static void quantizing_a_folder(void **state) { kill_often(state, quantize_folder, 2); }
static void converting(void **state) { kill_often(state, convert_folder, 3); }
static void making_up(void **state) { kill_often(state, make_up, 4); }

int main(int argc, char **argv) {
    if (argc > 1) n_kills = atoi(argv[1]);
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(quantizing_a_file),
        FOLDER_TEST(quantizing_a_folder),
        FOLDER_TEST(converting),
        FOLDER_TEST(making_up),
    };
    return cmocka_run_group_tests_name("killed", tests, NULL, NULL);
}
