#include "testing.h"

#include "core/arena.h"
#include "core/buf.h"
#include "core/file.h"
#include "core/map.h"
#include "core/mem.h"
#include "core/pool.h"
#include "core/utf8.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static void checked_arithmetic_refuses_overflow(void **state) {
    (void)state;
    size_t size = 7;
    assert_false(qn_size_mul(&size, SIZE_MAX, 2));
    assert_false(qn_size_add(&size, SIZE_MAX, 1));
    assert_int_equal(size, 7); // untouched
    assert_true(qn_size_mul(&size, 6, 7));
    assert_int_equal(size, 42);
    int64_t n = 7;
    assert_false(qn_i64_mul(&n, (1LL << 42) + 1, 1LL << 22));
    assert_false(qn_i64_mul(&n, -1, 1));
    assert_false(qn_i64_add(&n, INT64_MAX, 1));
    assert_int_equal(n, 7);
    assert_null(qn_alloc(SIZE_MAX / 2, 3));
}

static void an_error_names_its_object_and_stays_printable(void **state) {
    (void)state;
    qn_err err = {0};
    assert_int_equal(QN_FAIL(&err, FORMAT, "tensor %s: %d", "a\x1b[31m\xff\xc3\xa9", 3), QN_FORMAT);
    assert_string_equal(err.message, "tensor a?[31m?\xc3\xa9: 3");
    assert_int_equal(qn_err_prefix(&err, QN_FORMAT, "file %d", 1), QN_FORMAT);
    assert_string_equal(err.message, "file 1: tensor a?[31m?\xc3\xa9: 3");
    // DEL, U+009B (which begins what ESC [ begins), U+009D, U+202E and U+2066, then U+00A0.
    assert_int_equal(QN_FAIL(&err, FORMAT, "%s",
                             "\x7f\xc2\x9b"
                             "31m\xc2\x9d\xe2\x80\xae\xe2\x81\xa6\xc2\xa0"),
                     QN_FORMAT);
    assert_string_equal(err.message, "??31m???\xc2\xa0");
    assert_int_equal(QN_FAIL(NULL, IO, "nobody listens"), QN_IO);
    char longer[2000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    assert_int_equal(QN_FAIL(&err, IO, "%s", longer), QN_IO);
    assert_int_equal(strlen(err.message), sizeof err.message - 1);
}

static void arena_memory_is_zeroed_and_aligned(void **state) {
    (void)state;
    qn_arena arena = {0};
    for (size_t i = 1; i < 300; i++) {
        unsigned char *p = qn_arena_alloc(&arena, i, 3);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 16, 0);
        for (size_t j = 0; j < 3 * i; j++) assert_int_equal(p[j], 0);
        memset(p, 0xff, 3 * i);
    }
    assert_null(qn_arena_alloc(&arena, SIZE_MAX / 2, 4));
    assert_string_equal(qn_arena_strdup(&arena, "quern!", 5), "quern");
    qn_arena_deinit(&arena);
}

static void buffers_grow_and_are_taken(void **state) {
    (void)state;
    qn_err err;
    qn_buf buf = {0};
    for (int i = 0; i < 100; i++) qn_buf_printf(&buf, "%d,", i);
    assert_int_equal(buf.size, 290);
    char *text;
    ASSERT_OK(qn_buf_take(&text, &buf, &err));
    assert_memory_equal(text, "0,1,2,", 6);
    qn_free(text);
    ASSERT_OK(qn_buf_take(&text, &buf, &err));
    assert_string_equal(text, "");
    qn_free(text);
}

static void maps_find_what_was_added(void **state) {
    (void)state;
    enum { N = 5000 };
    static char keys[N][8];
    qn_map map = {0};
    uint32_t value;
    assert_false(qn_map_find(&map, "x", 1, &value));
    for (uint32_t i = 0; i < N; i++) {
        snprintf(keys[i], sizeof keys[i], "k%u", i);
        assert_true(qn_map_add(&map, keys[i], strlen(keys[i]), i, &value));
        assert_int_equal(value, i);
    }
    assert_true(qn_map_add(&map, "k7", 2, 99, &value)); // a duplicate keeps the first
    assert_int_equal(value, 7);
    for (uint32_t i = 0; i < N; i++) {
        assert_true(qn_map_find(&map, keys[i], strlen(keys[i]), &value));
        assert_int_equal(value, i);
    }
    assert_false(qn_map_find(&map, "k", 1, &value));
    qn_map_deinit(&map);
}

static void utf8_is_strict(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t size;
        uint32_t code;
    } cases[] = {{"a", 1, 'a'},
                 {"\xc3\xa9", 2, 0xe9},
                 {"\xe2\x96\x81", 3, 0x2581},
                 {"\xf0\x9f\x98\x80", 4, 0x1f600},
                 {"\xc0\x80", 0, 0},         // overlong
                 {"\xed\xa0\x80", 0, 0},     // surrogate
                 {"\xf4\x90\x80\x80", 0, 0}, // above U+10FFFF
                 {"\xe2\x96", 0, 0},         // cut
                 {"\x80", 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t code = 0;
        assert_int_equal(qn_utf8_decode(cases[i].text, strlen(cases[i].text), &code),
                         cases[i].size);
        if (!cases[i].size) continue;
        assert_int_equal(code, cases[i].code);
        char back[4];
        assert_int_equal(qn_utf8_encode(code, back), cases[i].size);
        assert_memory_equal(back, cases[i].text, cases[i].size);
    }
    assert_int_equal(qn_utf8_incomplete_tail("a\xf0\x9f\x98", 4), 3);
    assert_int_equal(qn_utf8_incomplete_tail("a\xe2\x96", 3), 2);
    assert_int_equal(qn_utf8_incomplete_tail("a\xc3\xa9", 3), 0);
    assert_int_equal(qn_utf8_incomplete_tail("\x80\x80\x80\x80", 4), 0);
}

static void add_piece(void *arg, int64_t piece) {
    atomic_fetch_add((_Atomic int64_t *)arg, piece + 1);
}

static void a_pool_runs_each_piece_once(void **state) {
    (void)state;
    qn_err err;
    for (int threads = 1; threads <= 4; threads++) {
        qn_pool *pool;
        ASSERT_OK(qn_pool_create(&pool, threads, &err));
        assert_int_equal(qn_pool_threads(pool), threads);
        for (int64_t n = 0; n < 50; n++) {
            _Atomic int64_t sum = 0;
            qn_pool_run(pool, n, add_piece, &sum);
            assert_int_equal(sum, n * (n + 1) / 2);
        }
        qn_pool_destroy(pool);
    }
    qn_pool *pool;
    ASSERT_FAILS(qn_pool_create(&pool, -1, &err), QN_ARGUMENT, "-1");
}

typedef struct masks {
    pthread_barrier_t both; // each piece waits for the other, so each thread has one
    pthread_t caller;
    sigset_t blocked; // in the worker
} masks;

static void look_at_mask(void *arg, int64_t piece) {
    masks *m = arg;
    (void)piece;
    if (!pthread_equal(pthread_self(), m->caller)) pthread_sigmask(SIG_BLOCK, NULL, &m->blocked);
    pthread_barrier_wait(&m->both);
}

// A handler must not run in several threads at once because a library has some; a fault is handled
// where it happens.
static void workers_handle_no_signals(void **state) {
    (void)state;
    static const int outside[] = {SIGHUP, SIGINT, SIGTERM, SIGTSTP, SIGCONT, SIGWINCH};
    qn_err err;
    qn_pool *pool;
    masks m = {.caller = pthread_self()};
    sigset_t before, after;
    sigemptyset(&m.blocked);
    pthread_sigmask(SIG_BLOCK, NULL, &before);
    assert_int_equal(pthread_barrier_init(&m.both, NULL, 2), 0);
    ASSERT_OK(qn_pool_open(&pool, &(qn_pool_opts){.n_threads = 2, .n_cpus = 2}, &err));
    qn_pool_run(pool, 2, look_at_mask, &m);
    qn_pool_destroy(pool);
    pthread_barrier_destroy(&m.both);
    pthread_sigmask(SIG_BLOCK, NULL, &after);
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
        assert_true(sigismember(&m.blocked, outside[i]));
        assert_int_equal(sigismember(&after, outside[i]), sigismember(&before, outside[i]));
    }
    assert_false(sigismember(&m.blocked, SIGBUS));
    assert_false(sigismember(&m.blocked, SIGSEGV));
}

static void files_survive_what_they_are(void **state) {
    (void)state;
    qn_err err;
    char folder[] = "/tmp/quern-core-XXXXXX";
    assert_non_null(mkdtemp(folder));
    char *path = qn_path_join(folder, "file");
    qn_file file;
    ASSERT_FAILS(qn_file_open(&file, path, &err), QN_IO, path);
    ASSERT_FAILS(qn_file_open(&file, folder, &err), QN_FORMAT, "a folder");
    assert_int_equal(mkfifo(path, 0600), 0);
    ASSERT_FAILS(qn_file_open(&file, path, &err), QN_FORMAT, "a pipe"); // and does not hang
    unlink(path);

    FILE *f = fopen(path, "wb");
    fputs("0123456789", f);
    fclose(f);
    ASSERT_OK(qn_file_open(&file, path, &err));
    char got[11] = {0};
    ASSERT_OK(qn_file_read(&file, 2, got, 3, &err));
    assert_string_equal(got, "234");
    ASSERT_FAILS(qn_file_read(&file, 8, got, 3, &err), QN_FORMAT, "3 bytes at 8, the file has 10");
    ASSERT_FAILS(qn_file_read(&file, -1, got, 1, &err), QN_FORMAT, "-1");
    assert_int_equal(truncate(path, 4), 0); // shrinks while open
    ASSERT_FAILS(qn_file_read(&file, 2, got, 5, &err), QN_IO, "became shorter");
    qn_file_close(&file);

    char *text;
    size_t size;
    ASSERT_OK(qn_file_load(&text, &size, path, 4, &err));
    assert_string_equal(text, "0123");
    qn_free(text);
    ASSERT_FAILS(qn_file_load(&text, &size, path, 3, &err), QN_LIMIT, "4 bytes, the limit is 3");
    unlink(path);
    rmdir(folder);
    qn_free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checked_arithmetic_refuses_overflow),
        cmocka_unit_test(an_error_names_its_object_and_stays_printable),
        cmocka_unit_test(arena_memory_is_zeroed_and_aligned),
        cmocka_unit_test(buffers_grow_and_are_taken),
        cmocka_unit_test(maps_find_what_was_added),
        cmocka_unit_test(utf8_is_strict),
        cmocka_unit_test(a_pool_runs_each_piece_once),
        cmocka_unit_test(workers_handle_no_signals),
        cmocka_unit_test(files_survive_what_they_are),
    };
    return cmocka_run_group_tests_name("core", tests, NULL, NULL);
}
