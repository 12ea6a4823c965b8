// A model, a plan that wants its weights, and cache folders to open it with: whatever is in them,
// the weights must be those of the source, bit for bit.
#ifndef QN_TESTS_DISK_RIG_H
#define QN_TESTS_DISK_RIG_H

#include "testing.h"

#include "format_files.h"

#include "backends/cpu/pack.h"
#include "core/file.h"
#include "core/mem.h"
#include "runtime/cache_folder.h"
#include "models/model.h"
#include "runtime/weights.h"

#include <stdio.h>
#include <stdlib.h>

static const char mini_path[] = TEST_DATA "/mini/qwen3/qwen3-bf16.gguf";
static const char k256_path[] = TEST_DATA "/k256/qwen3/qwen3-Q4_K_M.gguf";

// --- a model, a plan that wants its weights, and what they must be ---

typedef struct subject {
    qn_source *source;
    qn_model *model;
    qn_device *device;
    qn_plan plan;
    unsigned char **want; // of each param, as packed from the whole weight at once
    size_t *want_bytes;
} subject;

static inline bool is_tiled(const qn_weight *w) {
    return w->shape.n_dims > 1 && qn_pack_supports(w->type);
}

static inline const qn_weight *weight_of(const subject *s, size_t i) {
    const char *name = s->plan.leaves[QN_PLACE_PARAM][i].name;
    uint32_t index = 0;
    assert_true(qn_map_find(&s->model->weights.by_name, name, strlen(name), &index));
    return &s->model->weights.items[index];
}

// A call that reads the weight as a matmul or as a norm does.
static inline void add_param(qn_plan *plan, const qn_weight *w) {
    const size_t i = plan->n_leaves[QN_PLACE_PARAM]++;
    plan->leaves[QN_PLACE_PARAM][i] =
        (qn_plan_leaf){.name = w->name,
                       .type = w->type,
                       .layout = is_tiled(w) ? QN_WORD_tiles : QN_WORD_rows,
                       .shape = w->shape};
    qn_plan_call *call = &plan->calls[plan->n_calls++];
    *call = (qn_plan_call){.kernel = "k",
                           .op = is_tiled(w) ? QN_OP_MATMUL : QN_OP_RMS_NORM,
                           .layer = -1,
                           .rows = {1, QN_SYM_T},
                           .n_in = 2};
    call->in[1] = (qn_plan_arg){.place = QN_PLACE_PARAM, .index = (int32_t)i};
}

static inline qn_packed describe(const qn_weight *w) {
    qn_err err = {0};
    qn_packed p;
    const qn_dim *d = w->shape.dims;
    const int n = w->shape.n_dims;
    ASSERT_OK(qn_packed_init(&p, w->type, n > 2 ? d[0].n : 1, d[n - 2].n, d[n - 1].n, &err));
    return p;
}

static inline void expect(subject *s, size_t i, const qn_weight *w) {
    if (!is_tiled(w)) {
        s->want_bytes[i] = (size_t)w->n * sizeof(float);
        s->want[i] = qn_alloc(s->want_bytes[i], 1);
        qn_type_get(w->type)->unpack((float *)(void *)s->want[i], w->data, w->n);
        return;
    }
    const qn_packed p = describe(w);
    s->want_bytes[i] = (size_t)qn_packed_bytes(&p);
    s->want[i] = qn_alloc(s->want_bytes[i], 1);
    for (int64_t t = 0; t < qn_packed_tiles(&p); t++) qn_pack_tile(s->want[i], &p, w->data, t);
}

// With `only`, the weights whose name contains it.
static inline subject open_subject(const char *path, const char *only) {
    qn_err err = {0};
    subject s = {0};
    ASSERT_OK(qn_device_open(&s.device, "cpu", NULL, NULL, &err));
    ASSERT_OK(qn_source_open(&s.source, path, &err));
    ASSERT_OK(qn_model_create(&s.model, s.source, &err));
    ASSERT_OK(qn_weights_load(&s.model->weights, s.source, &(qn_load_opts){0}, &err));
    const size_t n = s.model->weights.n;
    s.plan.leaves[QN_PLACE_PARAM] = qn_arena_alloc(&s.plan.arena, n, sizeof(qn_plan_leaf));
    s.plan.calls = qn_arena_alloc(&s.plan.arena, n, sizeof *s.plan.calls);
    s.want = qn_alloc(n, sizeof *s.want);
    s.want_bytes = qn_alloc(n, sizeof *s.want_bytes);
    for (size_t i = 0; i < n; i++) {
        qn_weight *w = &s.model->weights.items[i];
        if (w->is_predict || (only && !strstr(w->name, only))) continue;
        add_param(&s.plan, w);
        expect(&s, s.plan.n_calls - 1, w);
    }
    assert_true(s.plan.n_calls > 0);
    return s;
}

static inline void close_subject(subject *s) {
    for (size_t i = 0; i < s->plan.n_calls; i++) qn_free(s->want[i]);
    qn_free(s->want);
    qn_free(s->want_bytes);
    qn_plan_deinit(&s->plan);
    qn_model_destroy(s->model);
    qn_source_close(s->source);
    qn_device_close(s->device);
}

// True if all weights are what they must be.
static inline bool is_right(const subject *s, const qn_packs *packs) {
    int64_t bytes = 0;
    for (size_t i = 0; i < s->plan.n_calls; i++) {
        const qn_weight *w = weight_of(s, i);
        const void *data = qn_packs_find(packs, w->name);
        if (!data || (uintptr_t)data % QN_PACK_ALIGN) return false;
        if (memcmp(data, s->want[i], s->want_bytes[i]) != 0) return false;
        bytes += (int64_t)s->want_bytes[i];
    }
    return bytes == qn_packs_bytes(packs);
}

// --- opening ---

typedef struct hearing {
    int n_warnings;
    char last[512];
} hearing;

static inline void hear(void *arg, qn_log_level level, const char *message) {
    hearing *h = arg;
    if (level > QN_LOG_WARNING) return;
    h->n_warnings++;
    snprintf(h->last, sizeof h->last, "%s", message);
}

static inline qn_packs_opts opts_of(const subject *s, const qn_disk *disk) {
    return (qn_packs_opts){.weights = &s->model->weights,
                           .source = s->source,
                           .plan = &s->plan,
                           .device = s->device,
                           .disk = disk};
}

// None if the folder must not be used. Close it.
static inline qn_disk open_disk(const char *dir, qn_cache_use use, hearing *h) {
    qn_err err = {0};
    qn_disk disk = {0};
    ASSERT_OK(qn_disk_open(
        &disk, &(qn_disk_opts){.dir = dir, .use = use, .log = hear, .log_arg = h}, &err));
    return disk;
}

// Opens, compares, closes; returns the bytes that came from the folder.
static inline int64_t open_right_as(const subject *s, const char *dir, qn_cache_use use,
                                    hearing *h) {
    qn_err err = {0};
    qn_packs *packs = NULL;
    hearing unheard = {0};
    qn_disk disk = open_disk(dir, use, h ? h : &unheard);
    const qn_packs_opts o = opts_of(s, &disk);
    ASSERT_OK(qn_packs_create(&packs, &o, &err));
    qn_disk_close(&disk);
    if (!is_right(s, packs)) fail_msg("wrong weights");
    const int64_t cached = qn_packs_cached_bytes(packs), all = qn_packs_bytes(packs);
    qn_packs_destroy(packs);
    assert_in_range(cached, 0, all);
    return cached;
}

static inline int64_t open_right(const subject *s, const char *dir, hearing *h) {
    return open_right_as(s, dir, QN_CACHE_DIR_KEEP, h);
}

static inline int64_t all_bytes(const subject *s) {
    int64_t n = 0;
    for (size_t i = 0; i < s->plan.n_calls; i++) n += (int64_t)s->want_bytes[i];
    return n;
}

// The only file of the folder with that ending, temporary ones refused; "" if there is none.
static inline path_name only_file(const char *folder, const char *ending) {
    path_name found = {""};
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        const size_t n = strlen(e->d_name), m = strlen(ending);
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        if (strstr(e->d_name, ".tmp")) fail_msg("left behind: %s", e->d_name);
        if (n < m || strcmp(e->d_name + n - m, ending) != 0) continue;
        if (found.text[0]) fail_msg("%s and %s", found.text, e->d_name);
        const int size = snprintf(found.text, sizeof found.text, "%s/%s", folder, e->d_name);
        assert_in_range(size, 1, sizeof found.text - 1);
    }
    closedir(dir);
    return found;
}

// --- folders and files ---

// A folder in memory where there is one: the files are brought to the disk thousands of times here,
// which takes minutes on a real one.
static inline bool is_in_memory(void **state) { return strncmp(*state, "/dev/shm/", 9) == 0; }

static inline int make_quick_folder(void **state) {
    char *folder = strdup("/dev/shm/quern-test-XXXXXX");
    if (folder && mkdtemp(folder)) {
        *state = folder;
        return 0;
    }
    free(folder);
    return make_folder(state);
}

#define QUICK_TEST(f) cmocka_unit_test_setup_teardown(f, make_quick_folder, remove_folder)

typedef struct bytes {
    unsigned char *v;
    size_t n;
} bytes;

static inline bytes load(const char *path) {
    qn_err err = {0};
    char *text;
    bytes b;
    ASSERT_OK(qn_file_load(&text, &b.n, path, 1 << 26, &err));
    b.v = (unsigned char *)text;
    return b;
}

static inline void save(const char *path, const bytes *b, size_t n) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(b->v, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

// The folder holds the file as it was, whatever was done to it.
static inline void assert_restored(const char *path, const bytes *good) {
    bytes now = load(path);
    assert_int_equal(now.n, good->n);
    assert_memory_equal(now.v, good->v, good->n);
    qn_free(now.v);
}

#endif
