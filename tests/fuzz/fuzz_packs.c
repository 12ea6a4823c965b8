// Any changes to a file of packed weights. Without the right sums the logits are those of the
// model; with them they may be any, but nothing is touched that is not a weight's.
//
//   byte 0      bit 0: put the right sums in; bit 1: places count from the beginning in bytes, else
//               in parts of the file; bit 2: the first edit's place is where the file ends
//   then edits  place (2 bytes, little endian), length (1), bytes
#include "fuzz_cache.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct {
    char path[512], *good;
    size_t size;
    qn_engine *engine;
} packs;

static void close_engine(void) {
    qn_engine_close(packs.engine);
    qn_free(packs.good);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    fuzz_make();
    CHECK(fuzz_find(packs.path, ".packs", 0));
    CHECK(qn_file_load(&packs.good, &packs.size, packs.path, MAX_FILE, NULL) == QN_OK);
    packs.engine = fuzz_open(NULL, QN_CACHE_DIR_KEEP);
    atexit(close_engine);
    return 0;
}

// Edits a copy of the good file; returns its new size.
static size_t edit(unsigned char *file, const uint8_t *data, size_t size) {
    const unsigned flags = data[0];
    size_t end = packs.size;
    for (size_t at = 1; at + 3 <= size;) {
        const size_t unit = flags & 2 ? 1 : packs.size >> 16;
        const size_t place = (data[at] | (size_t)data[at + 1] << 8) * (unit ? unit : 1);
        size_t n = data[at + 2];
        if (at == 1 && flags & 4 && place < end) end = place;
        at += 3;
        if (n > size - at) n = size - at;
        for (size_t i = 0; i < n && place + i < packs.size; i++) file[place + i] = data[at + i];
        at += n;
    }
    return end;
}

static void compute(bool is_forged) {
    qn_err err = {0};
    qn_disk disk = {0};
    qn_packs *loaded = NULL;
    const qn_disk_opts dir = {.dir = fuzz.cache, .use = QN_CACHE_DIR_FOUND};
    CHECK(qn_disk_open(&disk, &dir, &err) == QN_OK && disk.dir);
    const qn_packs_opts opts = {.weights = &packs.engine->model->weights,
                                .source = packs.engine->source,
                                .plan = &packs.engine->stages[0].prefill,
                                .device = packs.engine->stages[0].device,
                                .disk = &disk};
    CHECK(qn_packs_create(&loaded, &opts, &err) == QN_OK);
    qn_disk_close(&disk);
    qn_packs *own = packs.engine->stages[0].packs;
    packs.engine->stages[0].packs = loaded;
    qn_logits got = QN_INIT(qn_logits);
    if (!is_forged)
        fuzz_check_right(packs.engine);
    else if (fuzz_compute(&got, packs.engine) == QN_OK)
        qn_logits_deinit(&got);
    packs.engine->stages[0].packs = own;
    qn_packs_destroy(loaded);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    unsigned char *file = malloc(packs.size);
    CHECK(file);
    memcpy(file, packs.good, packs.size);
    const size_t end = edit(file, data, size);
    const bool is_forged = data[0] & 1 && end == packs.size && forge_packs(file, end);
    fuzz_save(packs.path, file, end);
    compute(is_forged);
    free(file);
    return 0;
}
