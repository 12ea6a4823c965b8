// A tiny model with a cache folder beside it, in memory where there is such a place; both go away
// again when the program ends.
#ifndef QN_FUZZ_CACHE_H
#define QN_FUZZ_CACHE_H

#include "../forge.h"

#include "core/file.h"
#include "core/mem.h"
#include "runtime/engine.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N_IDS = 5, MAX_FILE = 1 << 26 };
static const int32_t fuzz_ids[N_IDS] = {1, 2, 3, 4, 5};

static struct {
    char folder[64], model[128], cache[128];
    qn_logits want; // without a folder
} fuzz = {.want = QN_INITIALIZER(qn_logits)};

#define CHECK(what)                                                                                \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);                     \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static inline void fuzz_remove(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", fuzz.folder);
    if (system(command) != 0) fprintf(stderr, "left: %s\n", fuzz.folder);
    qn_logits_deinit(&fuzz.want);
}

static inline qn_engine *fuzz_open(const char *dir, qn_cache_use use) {
    qn_err err = {0};
    qn_engine *engine = NULL;
    const qn_engine_opts opts =
        QN_INIT(qn_engine_opts, .n_threads = 1, .cache_dir = dir, .cache_use = use);
    const qn_status status = qn_engine_open(&engine, fuzz.model, &opts, &err);
    if (status) fprintf(stderr, "%s\n", err.message);
    CHECK(!status);
    return engine;
}

static inline qn_status fuzz_compute(qn_logits *out, const qn_engine *engine) {
    qn_err err;
    return qn_engine_logits(out, engine, fuzz_ids, N_IDS, NULL, &err);
}

static inline void fuzz_check_right(const qn_engine *engine) {
    qn_logits got = QN_INIT(qn_logits);
    CHECK(fuzz_compute(&got, engine) == QN_OK);
    const size_t bytes = (size_t)(got.n_rows * got.n_vocab) * sizeof(float);
    CHECK(memcmp(got.logits, fuzz.want.logits, bytes) == 0);
    qn_logits_deinit(&got);
}

static inline void fuzz_save(const char *path, const void *bytes, size_t size) {
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(bytes, 1, size, f) == size && fclose(f) == 0);
}

static inline void fuzz_make(void) {
    qn_err err = {0};
    snprintf(fuzz.folder, sizeof fuzz.folder, "/dev/shm/quern-fuzz-XXXXXX");
    if (!mkdtemp(fuzz.folder)) {
        snprintf(fuzz.folder, sizeof fuzz.folder, "/tmp/quern-fuzz-XXXXXX");
        CHECK(mkdtemp(fuzz.folder));
    }
    atexit(fuzz_remove);
    snprintf(fuzz.model, sizeof fuzz.model, "%s/m.gguf", fuzz.folder);
    snprintf(fuzz.cache, sizeof fuzz.cache, "%s/cache", fuzz.folder);
    char *bytes = NULL;
    size_t size = 0;
    CHECK(qn_file_load(&bytes, &size, FUZZ_CORPUS "/engine/qwen3.gguf", MAX_FILE, &err) == QN_OK);
    fuzz_save(fuzz.model, bytes, size);
    qn_free(bytes);
    qn_engine *engine = fuzz_open(NULL, QN_CACHE_DIR_KEEP);
    CHECK(fuzz_compute(&fuzz.want, engine) == QN_OK);
    qn_engine_close(engine);
    qn_engine_close(fuzz_open(fuzz.cache, QN_CACHE_DIR_FILL));
}

// The n-th file with that ending in the cache folder; false: no more.
static inline bool fuzz_find(char path[512], const char *ending, int n) {
    DIR *dir = opendir(fuzz.cache);
    bool is_found = false;
    CHECK(dir);
    for (const struct dirent *e; !is_found && (e = readdir(dir));) {
        const size_t size = strlen(e->d_name), m = strlen(ending);
        if (size < m || strcmp(e->d_name + size - m, ending) != 0 || n-- > 0) continue;
        snprintf(path, 512, "%s/%s", fuzz.cache, e->d_name);
        is_found = true;
    }
    closedir(dir);
    return is_found;
}

#endif
