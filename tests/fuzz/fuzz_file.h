// The input of a fuzz target as a file, or as the files of a folder.
#ifndef QN_TESTS_FUZZ_FILE_H
#define QN_TESTS_FUZZ_FILE_H

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// The path of a file with these bytes, valid until the next call. One file in memory serves all
// inputs: making one anew takes longer than parsing it.
static inline const char *fuzz_file(const void *data, size_t size) {
    static int fd = -1;
    static char path[64];
    if (fd < 0) {
        snprintf(path, sizeof path, "/dev/shm/quern-fuzz-%ld", (long)getpid());
        fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd < 0) abort();
        unlink(path);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size) abort();
    return path;
}

static char fuzz_folder_path[64];

static inline void fuzz_folder_remove(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", fuzz_folder_path);
    if (system(command) != 0) fprintf(stderr, "%s stays\n", fuzz_folder_path);
}

static inline void fuzz_folder_put(const char *name, const uint8_t *data, size_t size) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", fuzz_folder_path, name);
    if (!data) {
        unlink(path);
        return;
    }
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size || close(fd) != 0) abort();
}

static inline const uint8_t *fuzz_find(const uint8_t *data, size_t size, const char *text,
                                       size_t n) {
    for (size_t i = 0; i + n <= size; i++)
        if (memcmp(data + i, text, n) == 0) return data + i;
    return NULL;
}

// The bytes of the section "\n===== NAME\n" of the input, up to the next section; NULL: none.
static inline const uint8_t *fuzz_section(const uint8_t *data, size_t size, const char *name,
                                          size_t *n) {
    static const char mark[] = "\n===== ";
    char head[128];
    const size_t n_head = (size_t)snprintf(head, sizeof head, "%s%s\n", mark, name);
    const uint8_t *from = fuzz_find(data, size, head, n_head);
    if (!from) return NULL;
    from += n_head;
    const size_t rest = size - (size_t)(from - data);
    const uint8_t *end = fuzz_find(from, rest, mark, sizeof mark - 1);
    *n = end ? (size_t)(end - from) : rest;
    return from;
}

// A folder with those of the files `names` (NULL at the end) that are sections of the input.
static inline const char *fuzz_folder(const uint8_t *data, size_t size, const char *const *names) {
    if (!fuzz_folder_path[0]) {
        snprintf(fuzz_folder_path, sizeof fuzz_folder_path, "/dev/shm/quern-fuzz-%ld.d",
                 (long)getpid());
        if (mkdir(fuzz_folder_path, 0700) != 0 || atexit(fuzz_folder_remove) != 0) abort();
    }
    for (size_t i = 0; names[i]; i++) {
        size_t n = 0;
        const uint8_t *part = fuzz_section(data, size, names[i], &n);
        fuzz_folder_put(names[i], part, n);
    }
    return fuzz_folder_path;
}

#endif
