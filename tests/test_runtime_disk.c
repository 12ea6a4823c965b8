// The cache folder: whatever is in it, and whatever happens to it, the weights are those of the
// source, bit for bit.
#define _GNU_SOURCE // statx
#include "testing.h"

#include "format_files.h"

#include "core/file.h"
#include "core/mem.h"
#include "ir/plan_text.h"
#include "runtime/disk.h"
#include "runtime/packs.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char mini_path[] = TEST_DATA "/mini/qwen3/qwen3-bf16.gguf";
static const char k256_path[] = TEST_DATA "/k256/qwen3/qwen3-Q4_K_M.gguf";

// --- a model, a plan that wants its weights, and what they must be ---

typedef struct subject {
    qn_source *source;
    qn_model *model;
    qn_plan plan;
    unsigned char **want; // of each param, as packed from the whole weight at once
    size_t *want_bytes;
} subject;

static bool is_tiled(const qn_weight *w) {
    return w->shape.n_dims > 1 && qn_pack_supports(w->type);
}

static const qn_weight *weight_of(const subject *s, size_t i) {
    const char *name = s->plan.leaves[QN_PLACE_PARAM][i].name;
    uint32_t index = 0;
    assert_true(qn_map_find(&s->model->weights.by_name, name, strlen(name), &index));
    return &s->model->weights.items[index];
}

// A call that reads the weight as a matmul or as a norm does.
static void add_param(qn_plan *plan, const qn_weight *w) {
    const size_t i = plan->n_leaves[QN_PLACE_PARAM]++;
    plan->leaves[QN_PLACE_PARAM][i] =
        (qn_plan_leaf){.name = w->name, .type = w->type, .shape = w->shape};
    qn_plan_call *call = &plan->calls[plan->n_calls++];
    *call = (qn_plan_call){.kernel = "k",
                           .op = is_tiled(w) ? QN_OP_MATMUL : QN_OP_RMS_NORM,
                           .layer = -1,
                           .rows = {1, QN_SYM_T},
                           .n_in = 2};
    call->in[1] = (qn_plan_arg){.place = QN_PLACE_PARAM, .index = (int32_t)i};
}

static qn_packed describe(const qn_weight *w) {
    qn_err err = {0};
    qn_packed p;
    const qn_dim *d = w->shape.dims;
    const int n = w->shape.n_dims;
    ASSERT_OK(qn_packed_init(&p, w->type, n > 2 ? d[0].n : 1, d[n - 2].n, d[n - 1].n, &err));
    return p;
}

static void expect(subject *s, size_t i, const qn_weight *w) {
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
static subject open_subject(const char *path, const char *only) {
    qn_err err = {0};
    subject s = {0};
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

static void close_subject(subject *s) {
    for (size_t i = 0; i < s->plan.n_calls; i++) qn_free(s->want[i]);
    qn_free(s->want);
    qn_free(s->want_bytes);
    qn_plan_deinit(&s->plan);
    qn_model_destroy(s->model);
    qn_source_close(s->source);
}

// True if all weights are what they must be.
static bool is_right(const subject *s, const qn_packs *packs) {
    int64_t bytes = 0;
    for (size_t i = 0; i < s->plan.n_calls; i++) {
        const qn_weight *w = weight_of(s, i);
        const qn_packed *p = qn_packs_packed(packs, w->name);
        const float *rows = qn_packs_rows(packs, w->name);
        if (!p == is_tiled(w) || !rows != is_tiled(w)) return false;
        const void *data = p ? (const void *)p->data : rows;
        if ((uintptr_t)data % QN_PACK_ALIGN) return false;
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

static void hear(void *arg, qn_log_level level, const char *message) {
    hearing *h = arg;
    if (level > QN_LOG_WARNING) return;
    h->n_warnings++;
    snprintf(h->last, sizeof h->last, "%s", message);
}

static qn_packs_opts opts_of(const subject *s, const qn_disk *disk) {
    return (qn_packs_opts){.model = s->model, .source = s->source, .plan = &s->plan, .disk = disk};
}

// None if the folder must not be used. Close it.
static qn_disk open_disk(const char *dir, qn_cache_use use, hearing *h) {
    qn_err err = {0};
    qn_disk disk = {0};
    ASSERT_OK(qn_disk_open(
        &disk, &(qn_disk_opts){.dir = dir, .use = use, .log = hear, .log_arg = h}, &err));
    return disk;
}

// Opens, compares, closes; returns the bytes that came from the folder.
static int64_t open_right_as(const subject *s, const char *dir, qn_cache_use use, hearing *h) {
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

static int64_t open_right(const subject *s, const char *dir, hearing *h) {
    return open_right_as(s, dir, QN_CACHE_DIR_KEEP, h);
}

static int64_t all_bytes(const subject *s) {
    int64_t n = 0;
    for (size_t i = 0; i < s->plan.n_calls; i++) n += (int64_t)s->want_bytes[i];
    return n;
}

// The only file of the folder with that ending, temporary ones refused; "" if there is none.
static path_name only_file(const char *folder, const char *ending) {
    path_name found = {""};
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        const size_t n = strlen(e->d_name), m = strlen(ending);
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        if (strstr(e->d_name, ".tmp")) fail_msg("left behind: %s", e->d_name);
        if (n < m || strcmp(e->d_name + n - m, ending) != 0) continue;
        if (found.text[0]) fail_msg("%s and %s", found.text, e->d_name);
        snprintf(found.text, sizeof found.text, "%s/%.255s", folder, e->d_name);
    }
    closedir(dir);
    return found;
}

// --- tests ---

// A folder in memory where there is one: the files are brought to the disk thousands of times here,
// which takes minutes on a real one.
static bool is_in_memory(void **state) { return strncmp(*state, "/dev/shm/", 9) == 0; }

static int make_quick_folder(void **state) {
    char *folder = strdup("/dev/shm/quern-test-XXXXXX");
    if (folder && mkdtemp(folder)) {
        *state = folder;
        return 0;
    }
    free(folder);
    return make_folder(state);
}

#define QUICK_TEST(f) cmocka_unit_test_setup_teardown(f, make_quick_folder, remove_folder)

static const char *const models[] = {
    mini_path,
    TEST_DATA "/mini/qwen3", // a checkpoint
    TEST_DATA "/mini/gemma2",
    TEST_DATA "/mini/qwen35",
    TEST_DATA "/mini/qwen3_moe",
    TEST_DATA "/mini/qwen3_moe/qwen3_moe-bf16.gguf",
    k256_path,
    TEST_DATA "/k256/qwen3/qwen3-Q2_K.gguf",
    TEST_DATA "/k256/qwen3/qwen3-Q3_K_M.gguf",
    TEST_DATA "/k256/qwen3/qwen3-Q4_0.gguf",
    TEST_DATA "/k256/qwen3/qwen3-Q5_K_M.gguf",
    TEST_DATA "/k256/qwen3/qwen3-Q6_K.gguf",
    TEST_DATA "/k256/qwen3/qwen3-IQ4_XS.gguf",
};

static void weights_are_those_of_the_source(void **state) {
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        subject s = open_subject(models[i], NULL);
        hearing h = {0};
        assert_int_equal(open_right(&s, NULL, &h), 0);
        assert_int_equal(open_right(&s, *state, &h), 0);
        assert_int_equal(open_right(&s, *state, &h), all_bytes(&s));
        if (h.n_warnings) fail_msg("%s: %s", models[i], h.last);
        close_subject(&s);
    }
}

static void threads_change_nothing(void **state) {
    qn_err err = {0};
    subject s = open_subject(k256_path, NULL);
    for (int n = 1; n <= 5; n++) {
        hearing h = {0};
        qn_pool *pool = NULL;
        ASSERT_OK(qn_pool_create(&pool, n, &err));
        for (int round = 0; round < 3; round++) { // memory, a new file, the file
            qn_packs *packs = NULL;
            qn_disk disk = open_disk(round ? *state : NULL, QN_CACHE_DIR_KEEP, &h);
            qn_packs_opts o = opts_of(&s, &disk);
            o.pool = pool;
            ASSERT_OK(qn_packs_create(&packs, &o, &err));
            qn_disk_close(&disk);
            assert_true(is_right(&s, packs));
            assert_int_equal(qn_packs_cached_bytes(packs), round == 2 ? all_bytes(&s) : 0);
            qn_packs_destroy(packs);
        }
        assert_int_equal(unlink(only_file(*state, ".packs").text), 0);
        qn_pool_destroy(pool);
    }
    close_subject(&s);
}

typedef struct watching {
    int64_t last, total, stop_at;
} watching;

static bool watch(void *arg, int64_t done, int64_t total) {
    watching *w = arg;
    assert_true(done >= w->last && done <= total);
    w->last = done;
    w->total = total;
    return done < w->stop_at;
}

static void progress_is_told_and_can_stop(void **state) {
    qn_err err = {0};
    hearing h = {0};
    subject s = open_subject(mini_path, NULL);
    qn_disk disk = open_disk(*state, QN_CACHE_DIR_KEEP, &h);
    for (int round = 0; round < 2; round++) {
        qn_packs *packs = NULL;
        watching w = {.stop_at = INT64_MAX};
        qn_packs_opts o = opts_of(&s, &disk);
        o.progress = watch;
        o.progress_arg = &w;
        ASSERT_OK(qn_packs_create(&packs, &o, &err));
        assert_int_equal(w.last, all_bytes(&s));
        assert_int_equal(w.total, all_bytes(&s));
        qn_packs_destroy(packs);
    }
    assert_int_equal(unlink(only_file(*state, ".packs").text), 0);
    watching w = {.stop_at = all_bytes(&s) / 2};
    qn_packs *packs = NULL;
    qn_packs_opts o = opts_of(&s, &disk);
    o.progress = watch;
    o.progress_arg = &w;
    ASSERT_FAILS(qn_packs_create(&packs, &o, &err), QN_STOPPED, "loading stopped at ");
    qn_disk_close(&disk);
    assert_null(packs);
    assert_string_equal(only_file(*state, ".packs").text, "");
    close_subject(&s);
}

static void unknown_weights_are_refused(void **state) {
    (void)state;
    qn_err err = {0};
    qn_packs *packs = NULL;
    subject s = open_subject(mini_path, "output_norm");
    s.plan.leaves[QN_PLACE_PARAM][0].name = "nothing.weight";
    const qn_packs_opts o = opts_of(&s, NULL);
    ASSERT_FAILS(qn_packs_create(&packs, &o, &err), QN_ARGUMENT, "no weight nothing.weight");
    assert_null(packs);
    close_subject(&s);
}

// --- damage ---

typedef struct bytes {
    unsigned char *v;
    size_t n;
} bytes;

static bytes load(const char *path) {
    qn_err err = {0};
    char *text;
    bytes b;
    ASSERT_OK(qn_file_load(&text, &b.n, path, 1 << 26, &err));
    b.v = (unsigned char *)text;
    return b;
}

static void save(const char *path, const bytes *b, size_t n) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(b->v, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

// The folder holds the file as it was, whatever was done to it.
static void assert_restored(const char *path, const bytes *good) {
    bytes now = load(path);
    assert_int_equal(now.n, good->n);
    assert_memory_equal(now.v, good->v, good->n);
    qn_free(now.v);
}

static void every_flipped_byte_is_harmless(void **state) {
    subject s = open_subject(mini_path, "blk.0.attn_k"); // a matrix and a norm
    assert_int_equal(open_right(&s, *state, NULL), 0);
    const path_name path = only_file(*state, ".packs");
    bytes file = load(path.text);
    const bytes good = load(path.text);
    size_t n_whole = 0, n_part = 0, n_none = 0;
    const size_t step = is_in_memory(state) ? 1 : 23;
    for (size_t at = 0; at < file.n; at += step) {
        hearing h = {0};
        file.v[at] ^= (unsigned char)(1u << at % 8);
        save(path.text, &file, file.n);
        file.v[at] = good.v[at];
        const int64_t cached = open_right(&s, *state, &h);
        if (cached == all_bytes(&s)) { // between head and weights nothing is looked at
            assert_int_equal(h.n_warnings, 0);
            assert_int_equal(good.v[at], 0);
            n_whole++;
            continue;
        }
        assert_int_equal(h.n_warnings, 1);
        if (at / step % 61 == 0) assert_restored(path.text, &good);
        (cached ? &n_part : &n_none)[0]++;
    }
    print_message("%zu bytes: %zu flips unseen, %zu cost a weight, %zu the file\n", file.n, n_whole,
                  n_part, n_none);
    assert_true(n_part >= (good.n - 4096) / step && n_none > 0 && n_whole < 4096 / step);
    qn_free(file.v);
    qn_free(good.v);
    close_subject(&s);
}

static void every_truncation_is_harmless(void **state) {
    subject s = open_subject(mini_path, "blk.0.attn_k");
    assert_int_equal(open_right(&s, *state, NULL), 0);
    const path_name path = only_file(*state, ".packs");
    const bytes good = load(path.text);
    for (size_t n = 0; n < good.n; n += is_in_memory(state) ? 1 : 97) {
        hearing h = {0};
        save(path.text, &good, n);
        assert_int_equal(open_right(&s, *state, &h), 0);
        assert_int_equal(h.n_warnings, 1);
        assert_restored(path.text, &good);
    }
    bytes longer = {qn_alloc(good.n + 1, 1), good.n + 1};
    memcpy(longer.v, good.v, good.n);
    save(path.text, &longer, longer.n);
    assert_int_equal(open_right(&s, *state, NULL), 0);
    assert_restored(path.text, &good);
    qn_free(longer.v);
    qn_free(good.v);
    close_subject(&s);
}

// A damaged weight is packed again alone; the others come from the file.
static void damage_costs_one_weight(void **state) {
    hearing h = {0};
    subject s = open_subject(k256_path, NULL);
    open_right(&s, *state, NULL);
    const path_name path = only_file(*state, ".packs");
    bytes file = load(path.text);
    const bytes good = load(path.text);
    file.v[file.n - 5000] ^= 0xff;
    save(path.text, &file, file.n);
    const int64_t cached = open_right(&s, *state, &h);
    assert_in_range(cached, 1, all_bytes(&s) - 1);
    assert_non_null(strstr(h.last, "is damaged at weight "));
    assert_restored(path.text, &good);
    assert_int_equal(open_right(&s, *state, NULL), all_bytes(&s));
    qn_free(file.v);
    qn_free(good.v);
    close_subject(&s);
}

// --- other sources ---

static void copy_to(const char *path, const bytes *b) { save(path, b, b->n); }

static int64_t first_byte_of(const qn_source *source, const char *name) {
    const qn_tensor *t = qn_source_find_tensor(source, name);
    assert_non_null(t);
    return t->offset;
}

static void a_changed_source_is_packed_anew(void **state) {
    bytes file = load(mini_path);
    const path_name path = in_folder(state, "m.gguf");
    copy_to(path.text, &file);
    subject s = open_subject(path.text, NULL);
    assert_int_equal(open_right(&s, *state, NULL), 0);
    assert_int_equal(open_right(&s, *state, NULL), all_bytes(&s));
    const int64_t at = first_byte_of(s.source, "blk.1.attn_q.weight");
    struct stat before;
    assert_int_equal(stat(path.text, &before), 0);
    close_subject(&s);
    // Another number somewhere, and another time.
    file.v[at + 1000] ^= 1;
    copy_to(path.text, &file);
    const struct timespec later[2] = {{before.st_atim.tv_sec + 9, 0},
                                      {before.st_mtim.tv_sec + 9, 0}};
    assert_int_equal(utimensat(AT_FDCWD, path.text, later, 0), 0);
    s = open_subject(path.text, NULL);
    hearing h = {0};
    assert_int_equal(open_right(&s, *state, &h), 0);
    assert_non_null(strstr(h.last, "has changed"));
    assert_int_equal(open_right(&s, *state, NULL), all_bytes(&s));
    close_subject(&s);
    // Same size, same time, but other numbers where a sample is taken.
    file.v[at] ^= 1;
    copy_to(path.text, &file);
    assert_int_equal(utimensat(AT_FDCWD, path.text, later, 0), 0);
    s = open_subject(path.text, NULL);
    assert_int_equal(open_right(&s, *state, NULL), 0);
    assert_int_equal(open_right(&s, *state, NULL), all_bytes(&s));
    close_subject(&s);
    qn_free(file.v);
    only_file(*state, ".packs"); // there is one, not three
}

static void sources_have_files_of_their_own(void **state) {
    subject a = open_subject(mini_path, NULL), b = open_subject(k256_path, NULL);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(open_right(&a, *state, NULL), round ? all_bytes(&a) : 0);
        assert_int_equal(open_right(&b, *state, NULL), round ? all_bytes(&b) : 0);
    }
    close_subject(&a);
    close_subject(&b);
}

// --- folders that cannot be used ---

static void a_folder_is_made(void **state) {
    subject s = open_subject(mini_path, "output_norm");
    const path_name inner = in_folder(state, "a/b"), outer = in_folder(state, "a");
    hearing h = {0};
    struct stat st;
    const mode_t mask = umask(0);
    assert_int_equal(open_right(&s, inner.text, &h), 0);
    umask(mask);
    assert_int_equal(stat(inner.text, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    assert_int_equal(stat(only_file(inner.text, ".packs").text, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(open_right(&s, inner.text, &h), all_bytes(&s));
    assert_int_equal(h.n_warnings, 0);
    assert_int_equal(unlink(only_file(inner.text, ".packs").text), 0);
    assert_int_equal(rmdir(inner.text), 0);
    assert_int_equal(rmdir(outer.text), 0);
    close_subject(&s);
}

static void a_folder_that_is_none_is_a_warning(void **state) {
    subject s = open_subject(mini_path, NULL);
    const path_name file = put_text(state, "file", "x"), inside = in_folder(state, "file/x");
    const char *const dirs[] = {file.text, inside.text, "/proc/self/nothing"};
    for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++) {
        hearing h = {0};
        assert_int_equal(open_right(&s, dirs[i], &h), 0);
        assert_int_equal(h.n_warnings, 1);
        assert_non_null(strstr(h.last, dirs[i]));
        assert_non_null(strstr(h.last, " is not used: "));
    }
    close_subject(&s);
}

// --- folders that must not be used ---

// One warning that says so; the weights come from the source, and nothing is written.
static void assert_passed_over(const subject *s, const char *dir, qn_cache_use use,
                               const char *why) {
    hearing h = {0};
    qn_err err = {0};
    qn_disk disk = {0};
    assert_int_equal(open_right_as(s, dir, use, &h), 0);
    if (h.n_warnings != 1 || !strstr(h.last, dir) || !strstr(h.last, why))
        fail_msg("%d warnings, '%s', want '%s'", h.n_warnings, h.last, why);
    const qn_disk_opts fill = {.dir = dir, .use = QN_CACHE_DIR_FILL};
    if (use == QN_CACHE_DIR_KEEP) ASSERT_FAILS(qn_disk_open(&disk, &fill, &err), QN_IO, why);
}

static void folders_that_others_may_write_are_passed_over(void **state) {
    subject s = open_subject(mini_path, "output_norm");
    static const struct {
        mode_t mode;
        const char *why; // NULL: none
    } cases[] = {{0777, "mode 0777"}, {01777, "mode 1777"}, {0770, "mode 0770"},
                 {0720, "mode 0720"}, {0702, "mode 0702"},  {0755, NULL},
                 {0700, NULL},        {0711, NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(chmod(*state, cases[i].mode), 0);
        if (cases[i].why) {
            assert_passed_over(&s, *state, QN_CACHE_DIR_KEEP, cases[i].why);
            assert_passed_over(&s, *state, QN_CACHE_DIR_FOUND, cases[i].why);
            assert_string_equal(only_file(*state, ".packs").text, "");
            continue;
        }
        hearing h = {0};
        assert_int_equal(open_right(&s, *state, &h), 0);
        assert_int_equal(open_right(&s, *state, &h), all_bytes(&s));
        assert_int_equal(h.n_warnings, 0);
        assert_int_equal(unlink(only_file(*state, ".packs").text), 0);
    }
    if (geteuid() == 0) { // nobody else may give folders away
        assert_int_equal(chown(*state, 1234, 0), 0);
        assert_passed_over(&s, *state, QN_CACHE_DIR_KEEP, "belongs to user 1234");
        assert_string_equal(only_file(*state, ".packs").text, "");
        assert_int_equal(chown(*state, 0, 0), 0);
    }
    close_subject(&s);
}

// Others' files in a good folder are not read, but replaced.
static void files_that_others_may_write_are_not_read(void **state) {
    subject s = open_subject(mini_path, "output_norm");
    assert_int_equal(open_right(&s, *state, NULL), 0);
    const path_name path = only_file(*state, ".packs");
    for (int i = 0; i < 1 + (geteuid() == 0); i++) {
        hearing h = {0};
        struct stat st;
        if (i == 0) assert_int_equal(chmod(path.text, 0622), 0);
        if (i == 1) assert_int_equal(chown(path.text, 1234, 0), 0);
        assert_int_equal(open_right(&s, *state, &h), 0);
        assert_non_null(strstr(h.last, "others may write it"));
        assert_int_equal(stat(path.text, &st), 0);
        assert_int_equal(st.st_mode & 07777, 0600);
        assert_int_equal(st.st_uid, geteuid());
        assert_int_equal(open_right(&s, *state, NULL), all_bytes(&s));
    }
    close_subject(&s);
}

// Stands before the C library's, and fails once it was called so often.
static int fstat_calls = -1;

int fstat(int fd, struct stat *st) {
    if (fstat_calls >= 0 && fstat_calls-- == 0) {
        errno = EIO;
        return -1;
    }
    return fstatat(fd, "", st, AT_EMPTY_PATH);
}

// A file of which nothing is known is not taken for one of others.
static void files_that_cannot_be_looked_at_are_not_read(void **state) {
    subject s = open_subject(mini_path, "output_norm");
    qn_err err = {0};
    qn_file file;
    assert_int_equal(open_right(&s, *state, NULL), 0);
    const path_name path = only_file(*state, ".packs");
    qn_disk disk = open_disk(*state, QN_CACHE_DIR_KEEP, NULL);
    fstat_calls = 1; // after that of opening it
    const qn_status status =
        qn_disk_open_file(&file, &disk, strrchr(path.text, '/') + 1, path.text, &err);
    fstat_calls = -1;
    qn_disk_close(&disk);
    assert_int_equal(status, QN_IO);
    assert_non_null(strstr(err.message, path.text));
    assert_non_null(strstr(err.message, strerror(EIO)));
    close_subject(&s);
}

// A link at the place of a file is replaced; what it points to is not read, and not written.
static void links_are_not_followed(void **state) {
    subject s = open_subject(mini_path, "output_norm");
    hearing h = {0};
    struct stat st;
    assert_int_equal(open_right(&s, *state, NULL), 0);
    const path_name path = only_file(*state, ".packs"), notes = in_folder(state, "notes"),
                    link_path = in_folder(state, "link"), other = in_folder(state, "other");
    const bytes good = load(path.text);
    for (int is_good = 0; is_good < 2; is_good++) { // also where it would be accepted
        if (is_good)
            save(notes.text, &good, good.n);
        else
            put_text(state, "notes", "my notes");
        assert_int_equal(chmod(notes.text, 0600), 0);
        const bytes before = load(notes.text);
        assert_int_equal(unlink(path.text), 0);
        assert_int_equal(symlink("notes", path.text), 0);
        assert_int_equal(open_right(&s, *state, &h), 0);
        assert_non_null(strstr(h.last, "a link, want a regular file"));
        assert_restored(notes.text, &before);
        assert_int_equal(lstat(path.text, &st), 0);
        assert_true(S_ISREG(st.st_mode));
        assert_restored(path.text, &good);
        qn_free(before.v);
    }
    // The folder itself is none either.
    assert_int_equal(mkdir(other.text, 0700), 0);
    assert_int_equal(symlink("other", link_path.text), 0);
    assert_passed_over(&s, link_path.text, QN_CACHE_DIR_KEEP, "it is a link");
    path_name slash = in_folder(state, "link/");
    assert_passed_over(&s, slash.text, QN_CACHE_DIR_KEEP, "it is a link");
    assert_int_equal(rmdir(other.text), 0); // nothing was written into it
    qn_free(good.v);
    close_subject(&s);
}

// A folder that is swapped after it was checked does not matter.
static void a_swapped_folder_is_not_used(void **state) {
    subject s = open_subject(mini_path, "output_norm");
    qn_err err = {0};
    hearing h = {0};
    qn_packs *packs = NULL;
    const path_name dir = in_folder(state, "dir"), away = in_folder(state, "away");
    assert_int_equal(mkdir(dir.text, 0700), 0);
    qn_disk disk = open_disk(dir.text, QN_CACHE_DIR_KEEP, &h);
    assert_int_equal(rename(dir.text, away.text), 0);
    assert_int_equal(mkdir(dir.text, 0777), 0);
    const qn_packs_opts o = opts_of(&s, &disk);
    ASSERT_OK(qn_packs_create(&packs, &o, &err));
    qn_packs_destroy(packs);
    qn_disk_close(&disk);
    assert_int_equal(rmdir(dir.text), 0); // it is empty
    assert_int_equal(unlink(only_file(away.text, ".packs").text), 0);
    assert_int_equal(rmdir(away.text), 0);
    assert_int_equal(h.n_warnings, 0);
    close_subject(&s);
}

static void fill(const subject *s, const char *dir) {
    open_right_as(s, dir, QN_CACHE_DIR_FILL, NULL);
}

// A folder that nobody named is read if it was filled in its place, and is never written.
static void found_folders_are_only_read(void **state) {
    subject s = open_subject(mini_path, "blk.0.attn_k");
    const path_name dir = in_folder(state, "dir"), copy = in_folder(state, "copy");
    hearing h = {0};
    assert_int_equal(open_right_as(&s, dir.text, QN_CACHE_DIR_FOUND, &h), 0);
    assert_int_equal(h.n_warnings, 0); // there is none, and none is made
    assert_int_not_equal(access(dir.text, F_OK), 0);
    assert_int_equal(mkdir(dir.text, 0700), 0);
    assert_passed_over(&s, dir.text, QN_CACHE_DIR_FOUND, "not made here");
    assert_string_equal(only_file(dir.text, ".packs").text, "");
    fill(&s, dir.text);
    assert_int_equal(open_right_as(&s, dir.text, QN_CACHE_DIR_FOUND, &h), all_bytes(&s));
    assert_int_equal(h.n_warnings, 0);
    // Damage is told, and stays.
    const path_name path = only_file(dir.text, ".packs");
    bytes file = load(path.text);
    file.v[file.n - 1] ^= 1;
    save(path.text, &file, file.n);
    assert_in_range(open_right_as(&s, dir.text, QN_CACHE_DIR_FOUND, &h), 1, all_bytes(&s) - 1);
    assert_int_equal(h.n_warnings, 1);
    assert_restored(path.text, &file);
    fill(&s, dir.text);
    assert_int_equal(open_right_as(&s, dir.text, QN_CACHE_DIR_FOUND, &h), all_bytes(&s));
    assert_int_equal(h.n_warnings, 1);
    // A copy of it is another folder, until it is filled.
    char command[2048];
    snprintf(command, sizeof command, "cp -a '%s' '%s'", dir.text, copy.text);
    assert_int_equal(system(command), 0);
    assert_passed_over(&s, copy.text, QN_CACHE_DIR_FOUND, "not made here");
    assert_int_equal(open_right(&s, copy.text, NULL), all_bytes(&s)); // named, it counts
    fill(&s, copy.text);
    h = (hearing){0};
    assert_int_equal(open_right_as(&s, copy.text, QN_CACHE_DIR_FOUND, &h), all_bytes(&s));
    assert_int_equal(h.n_warnings, 0);
    snprintf(command, sizeof command, "rm -r '%s' '%s'", dir.text, copy.text);
    assert_int_equal(system(command), 0);
    qn_free(file.v);
    close_subject(&s);
}

// Stands before the C library's: what the file system tells of a file.
static enum { TELLS_ALL, TELLS_NOTHING, TELLS_NO_BIRTH, TELLS_ZERO } file_system;

int statx(int fd, const char *restrict path, int flags, unsigned mask, struct statx *restrict st) {
    if (file_system == TELLS_NOTHING) {
        errno = ENOSYS;
        return -1;
    }
    const int got = (int)syscall(SYS_statx, fd, path, flags, mask, st);
    if (file_system != TELLS_ALL) st->stx_btime = (struct statx_timestamp){0};
    if (file_system == TELLS_NO_BIRTH) st->stx_mask &= ~(unsigned)STATX_BTIME;
    return got;
}

// Where nothing tells a folder from its copies, everybody can guess what `origin` would have to be.
static void folders_of_unknown_birth_are_passed_over(void **state) {
    subject s = open_subject(mini_path, "output_norm");
    char forged[128];
    struct stat st;
    fill(&s, *state);
    const path_name origin = in_folder(state, "origin");
    assert_int_equal(stat(*state, &st), 0);
    for (int i = 0; i < 2; i++) { // without, and with the number, which is easily guessed, too
        snprintf(forged, sizeof forged, "quern cache folder %llu 0.000000000\n",
                 i ? (unsigned long long)st.st_ino : 0);
        assert_int_equal(unlink(origin.text), 0);
        put_text(state, "origin", forged);
        assert_int_equal(chmod(origin.text, 0600), 0);
        for (file_system = TELLS_NOTHING; file_system <= TELLS_ZERO; file_system++)
            assert_passed_over(&s, *state, QN_CACHE_DIR_FOUND, "does not tell when");
        file_system = TELLS_ALL;
        assert_passed_over(&s, *state, QN_CACHE_DIR_FOUND, "not made here");
    }
    // It is filled all the same, and said that it must be named; then it counts.
    hearing h = {0};
    file_system = TELLS_NO_BIRTH;
    open_right_as(&s, *state, QN_CACHE_DIR_FILL, &h);
    assert_non_null(strstr(h.last, "used only where it is named"));
    assert_int_equal(open_right(&s, *state, NULL), all_bytes(&s));
    file_system = TELLS_ALL;
    close_subject(&s);
}

// Runs in a child: 0 if all went well.
typedef int child_fn(const subject *s, const char *dir);

static pid_t start(child_fn *fn, const subject *s, const char *dir) {
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(fn(s, dir));
    return child;
}

static int finish(pid_t child) {
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Opens and compares, with threads; no assertions in here.
static int open_as_in_child(const subject *s, const char *dir, qn_cache_use use) {
    qn_err err = {0};
    hearing h = {0};
    qn_pool *pool = NULL;
    qn_packs *packs = NULL;
    qn_disk disk = {0};
    const qn_disk_opts opts = {.dir = dir, .use = use, .log = hear, .log_arg = &h};
    if (qn_disk_open(&disk, &opts, &err) != QN_OK) return 1;
    qn_packs_opts o = opts_of(s, &disk);
    if (qn_pool_create(&pool, 2, &err) != QN_OK) return 2;
    o.pool = pool;
    const qn_status status = qn_packs_create(&packs, &o, &err);
    qn_disk_close(&disk);
    if (status && packs) return 7; // a failed call leaves its result alone
    if (status) return strstr(err.message, dir) && strstr(err.message, "cannot write") ? 3 : 8;
    const bool ok = is_right(s, packs);
    qn_packs_destroy(packs);
    qn_pool_destroy(pool);
    return ok ? h.n_warnings ? 5 : 0 : 4;
}

static int open_in_child(const subject *s, const char *dir) {
    return open_as_in_child(s, dir, QN_CACHE_DIR_KEEP);
}

// The same where the folder must be filled.
static int fill_on_full_disk(const subject *s, const char *dir) {
    const struct rlimit limit = {1 << 16, 1 << 16};
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
    return open_as_in_child(s, dir, QN_CACHE_DIR_FILL);
}

// A disk that is full after 64 KiB.
static int open_on_full_disk(const subject *s, const char *dir) {
    const struct rlimit limit = {1 << 16, 1 << 16};
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
    const int rc = open_in_child(s, dir);
    return rc == 5 ? 0 : rc ? rc : 6; // right weights, and a warning
}

static void a_full_disk_is_a_warning_or_an_error(void **state) {
    subject s = open_subject(k256_path, NULL);
    assert_int_equal(finish(start(open_on_full_disk, &s, *state)), 0);
    assert_string_equal(only_file(*state, ".packs").text, "");
    // The old file stays where a new one cannot be written.
    assert_int_equal(open_right(&s, *state, NULL), 0);
    const path_name path = only_file(*state, ".packs");
    bytes file = load(path.text);
    file.v[file.n - 1] ^= 1;
    save(path.text, &file, file.n);
    assert_int_equal(finish(start(open_on_full_disk, &s, *state)), 0);
    assert_restored(path.text, &file);
    // Where it must be written it is an error.
    assert_int_equal(finish(start(fill_on_full_disk, &s, *state)), 3);
    assert_restored(path.text, &file);
    qn_free(file.v);
    close_subject(&s);
}

// --- processes ---

static void four_processes_share_a_folder(void **state) {
    subject s = open_subject(k256_path, NULL);
    for (int round = 0; round < 10; round++) {
        pid_t children[4];
        for (int i = 0; i < 4; i++) children[i] = start(open_in_child, &s, *state);
        for (int i = 0; i < 4; i++) assert_int_equal(finish(children[i]), 0);
        assert_int_equal(open_right(&s, *state, NULL), all_bytes(&s));
        const path_name path = only_file(*state, ".packs");
        if (round % 2) assert_int_equal(unlink(path.text), 0);
    }
    close_subject(&s);
}

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void remove_temporaries(const char *folder) {
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        char path[1024];
        if (strncmp(e->d_name, ".quern-", 7) != 0) continue;
        snprintf(path, sizeof path, "%s/%.255s", folder, e->d_name);
        assert_int_equal(unlink(path), 0);
    }
    closedir(dir);
}

static void killed_writers_do_no_harm(void **state) {
    enum { N_KILLS = 50 };
    subject s = open_subject(k256_path, NULL);
    const int64_t begin = now();
    assert_int_equal(finish(start(open_in_child, &s, *state)), 0);
    const int64_t time = now() - begin; // so that kills fall on all of it
    uint32_t seed = 1;
    int n_files = 0;
    for (int i = 0; i < N_KILLS; i++) {
        const path_name old = only_file(*state, ".packs");
        if (old.text[0]) assert_int_equal(unlink(old.text), 0);
        seed = seed * 1664525u + 1013904223u;
        const int64_t wait = time * (int64_t)(seed >> 16) / 50000;
        const pid_t child = start(open_in_child, &s, *state);
        nanosleep(&(struct timespec){wait / 1000000, wait % 1000000 * 1000}, NULL);
        kill(child, SIGKILL);
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        if (WIFEXITED(status)) assert_int_equal(WEXITSTATUS(status), 0);
        remove_temporaries(*state); // what a kill just before the renaming leaves
        const bool has_file = only_file(*state, ".packs").text[0];
        assert_int_equal(open_right(&s, *state, NULL), has_file ? all_bytes(&s) : 0);
        n_files += has_file;
    }
    print_message("%d of %d were written\n", n_files, N_KILLS);
    close_subject(&s);
}

static void leftovers_of_killed_writers_are_removed(void **state) {
    static const char name[] = ".quern-0123456789abcdef.tmp";
    hearing h = {0};
    for (int may_write = 0; may_write < 2; may_write++) {
        const path_name path = put_text(state, name, "x");
        qn_disk filled = open_disk(*state, QN_CACHE_DIR_FILL, &h);
        qn_disk_close(&filled);
        put_text(state, name, "x"); // which removed it
        assert_int_equal(chmod(path.text, 0600), 0);
        qn_disk disk = open_disk(*state, may_write ? QN_CACHE_DIR_KEEP : QN_CACHE_DIR_FOUND, &h);
        qn_disk_close(&disk);
        assert_int_equal(qn_path_is_file(path.text), !may_write);
    }
    assert_int_equal(h.n_warnings, 0);
}

// --- plans ---

static const char plan_sample[] = "plan \"p\" \"cpu\" 1 calls\n"
                                  "param 0 \"w\" f32 (4)\n"
                                  "buffer 0 T x 64 live 0 0\n"
                                  "\n"
                                  "call 0 k (add.0) T: b0 (1 x 16) f32 <- param0, _\n";

// A plan is written once, and again if anything else is at its place.
static void plans_are_written_for_people(void **state) {
    qn_err err = {0};
    hearing h = {0};
    const qn_plan_key keys[] = {{"graph", "numerics=exact", "avx2"},
                                {"graph ", "numerics=exact", "avx2"},
                                {"graph", "numerics=fast", "avx2"},
                                {"graph", "numerics=exact", "avx512"},
                                {"graphn", "umerics=exact", "avx2"}};
    qn_plan plan = {0};
    struct stat first, second;
    ASSERT_OK(qn_plan_parse(&plan, plan_sample, strlen(plan_sample), &err));
    qn_disk disk = open_disk(*state, QN_CACHE_DIR_FILL, &h);
    ASSERT_OK(qn_disk_keep_plan(&disk, &keys[0], &plan, &err));
    const path_name path = only_file(*state, ".plan"); // there is one
    const bytes good = load(path.text);
    if (!strstr((const char *)good.v, plan_sample)) fail_msg("%s", (const char *)good.v);
    assert_int_equal(stat(path.text, &first), 0);
    ASSERT_OK(qn_disk_keep_plan(&disk, &keys[0], &plan, &err));
    assert_int_equal(stat(path.text, &second), 0);
    assert_int_equal(first.st_ino, second.st_ino); // it was there
    bytes file = load(path.text);
    file.v[file.n / 2] ^= 1;
    save(path.text, &file, file.n);
    ASSERT_OK(qn_disk_keep_plan(&disk, &keys[0], &plan, &err));
    assert_restored(path.text, &good);
    assert_int_equal(unlink(path.text), 0);
    for (size_t i = 1; i < sizeof keys / sizeof keys[0]; i++) { // others have other names
        ASSERT_OK(qn_disk_keep_plan(&disk, &keys[i], &plan, &err));
        const path_name other = only_file(*state, ".plan");
        assert_string_not_equal(other.text, path.text);
        assert_int_equal(unlink(other.text), 0);
    }
    assert_int_equal(h.n_warnings, 0);
    qn_disk_close(&disk);
    qn_free(file.v);
    qn_free(good.v);
    qn_plan_deinit(&plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        QUICK_TEST(weights_are_those_of_the_source),
        QUICK_TEST(threads_change_nothing),
        QUICK_TEST(progress_is_told_and_can_stop),
        QUICK_TEST(unknown_weights_are_refused),
        QUICK_TEST(every_flipped_byte_is_harmless),
        QUICK_TEST(every_truncation_is_harmless),
        QUICK_TEST(damage_costs_one_weight),
        QUICK_TEST(a_changed_source_is_packed_anew),
        QUICK_TEST(sources_have_files_of_their_own),
        QUICK_TEST(a_folder_is_made),
        QUICK_TEST(a_folder_that_is_none_is_a_warning),
        QUICK_TEST(folders_that_others_may_write_are_passed_over),
        QUICK_TEST(files_that_others_may_write_are_not_read),
        QUICK_TEST(files_that_cannot_be_looked_at_are_not_read),
        QUICK_TEST(links_are_not_followed),
        QUICK_TEST(a_swapped_folder_is_not_used),
        QUICK_TEST(found_folders_are_only_read),
        QUICK_TEST(folders_of_unknown_birth_are_passed_over),
        QUICK_TEST(a_full_disk_is_a_warning_or_an_error),
        QUICK_TEST(four_processes_share_a_folder),
        QUICK_TEST(killed_writers_do_no_harm),
        QUICK_TEST(leftovers_of_killed_writers_are_removed),
        QUICK_TEST(plans_are_written_for_people),
    };
    return cmocka_run_group_tests_name("cache folder", tests, NULL, NULL);
}
