// The files of a cache folder: whatever is in them, and whatever happens while they are written,
// the weights are those of the source, bit for bit.
#define _GNU_SOURCE
#include "disk_rig.h"

#include "ir/plan_text.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

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
            s.device->pool = pool;
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
    assert_non_null(strstr(h.last, "is damaged (weight "));
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

// --- full disks ---

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
    s->device->pool = pool;
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
    qn_err err = {0};
    for (int may_write = 0; may_write < 2; may_write++) {
        const path_name path = put_text(state, name, "x");
        qn_disk filled = open_disk(*state, QN_CACHE_DIR_FILL, &h);
        ASSERT_OK(qn_disk_claim(&filled, "", &err));
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
        QUICK_TEST(a_full_disk_is_a_warning_or_an_error),
        QUICK_TEST(four_processes_share_a_folder),
        QUICK_TEST(killed_writers_do_no_harm),
        QUICK_TEST(leftovers_of_killed_writers_are_removed),
        QUICK_TEST(plans_are_written_for_people),
    };
    return cmocka_run_group_tests_name("cache files", tests, NULL, NULL);
}
