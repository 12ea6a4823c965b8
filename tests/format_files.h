// Files for tests of model formats: a folder that goes away again, and openings that must fail.
#ifndef QN_TESTS_FORMAT_FILES_H
#define QN_TESTS_FORMAT_FILES_H

#include "testing.h"
#include "gguf_writer.h"

#include "formats/source_build.h"

#include <dirent.h>
#include <unistd.h>

// cmocka's state: the path of an empty folder of this test's own.
static int make_folder(void **state) {
    char *folder = strdup("/tmp/quern-test-XXXXXX");
    *state = folder && mkdtemp(folder) ? folder : NULL;
    return *state ? 0 : -1;
}

static int remove_folder(void **state) {
    char *folder = *state;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (entry->d_name[0] == '.') continue;
        char path[512];
        snprintf(path, sizeof path, "%s/%.255s", folder, entry->d_name);
        remove(path);
    }
    if (dir) closedir(dir);
    const int rc = rmdir(folder);
    free(folder);
    return rc;
}

#define FOLDER_TEST(f) cmocka_unit_test_setup_teardown(f, make_folder, remove_folder)

typedef struct path_name {
    char text[512];
} path_name;

static inline path_name in_folder(void *const *state, const char *name) {
    path_name path;
    snprintf(path.text, sizeof path.text, "%s/%s", (const char *)*state, name);
    return path;
}

static inline path_name put_file(void *const *state, const char *name, const void *bytes,
                                 size_t n) {
    const path_name path = in_folder(state, name);
    gguf_save(path.text, bytes, n);
    return path;
}

static inline path_name put_text(void *const *state, const char *name, const char *text) {
    return put_file(state, name, text, strlen(text));
}

// Opening must fail so; `what` names the case when it does not.
static inline void expect_failure(const char *what, const char *path, qn_status want,
                                  const char *part) {
    qn_err err = {0};
    qn_source *source = NULL;
    const qn_status got = qn_source_open(&source, path, &err);
    if (got != want)
        fail_msg("%s: status %s (%s), want %s", what, qn_status_name(got), err.message,
                 qn_status_name(want));
    if (!strstr(err.message, part))
        fail_msg("%s: message '%s' does not contain '%s'", what, err.message, part);
    assert_null(source); // a failed call leaves its result alone
}

static inline qn_source *open_well(const char *path) {
    qn_err err = {0};
    qn_source *source = NULL;
    if (qn_source_open(&source, path, &err) != QN_OK) fail_msg("%s: %s", path, err.message);
    return source;
}

// The memory that was promised: 4 x the files plus 1 MiB.
static inline void check_budget(const qn_source *source, size_t file_bytes) {
    assert_in_range(source->store.used, 0, 4 * file_bytes + (1 << 20));
}

#endif
