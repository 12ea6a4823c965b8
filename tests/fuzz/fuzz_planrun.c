// Any text in place of the plans of a model, with the right checksums: the scores are those of the
// model, and filling the folder puts the plans back.
#include "fuzz_cache.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_PLANS = 4 };
static struct {
    char path[512], *good;
    size_t size;
} plans[MOST_PLANS];
static int n_plans;

static void free_plans(void) {
    for (int i = 0; i < n_plans; i++) qn_free(plans[i].good);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    fuzz_make();
    while (n_plans < MOST_PLANS && fuzz_find(plans[n_plans].path, ".plan", n_plans)) {
        CHECK(qn_file_load(&plans[n_plans].good, &plans[n_plans].size, plans[n_plans].path,
                           MOST_FILE, NULL) == QN_OK);
        n_plans++;
    }
    CHECK(n_plans >= 2);
    atexit(free_plans);
    return 0;
}

static void check(qn_cache_use use) {
    qn_engine *engine = fuzz_open(fuzz.cache, use);
    fuzz_check_right(engine);
    qn_engine_close(engine);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    for (int i = 0; i < n_plans; i++) {
        size_t n;
        char *file = forge_plan(&n, strrchr(plans[i].path, '/') + 1, (const char *)data, size);
        fuzz_save(plans[i].path, file, n);
        free(file);
    }
    check(QN_CACHE_DIR_FOUND);
    check(QN_CACHE_DIR_KEEP);
    if (size % 8 == 0) {
        check(QN_CACHE_DIR_FILL);
        for (int i = 0; i < n_plans; i++) {
            char *now;
            size_t n;
            CHECK(qn_file_load(&now, &n, plans[i].path, MOST_FILE, NULL) == QN_OK);
            CHECK(n == plans[i].size && memcmp(now, plans[i].good, n) == 0);
            qn_free(now);
        }
    }
    return 0;
}
