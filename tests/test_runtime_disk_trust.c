// Whose cache folder counts: folders and files of others, links, folders that nobody named. What is
// not trusted is passed over, and the weights are those of the source all the same.
#define _GNU_SOURCE // statx
#include "disk_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

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

int main(void) {
    const struct CMUnitTest tests[] = {
        QUICK_TEST(a_folder_is_made),
        QUICK_TEST(a_folder_that_is_none_is_a_warning),
        QUICK_TEST(folders_that_others_may_write_are_passed_over),
        QUICK_TEST(files_that_others_may_write_are_not_read),
        QUICK_TEST(files_that_cannot_be_looked_at_are_not_read),
        QUICK_TEST(links_are_not_followed),
        QUICK_TEST(a_swapped_folder_is_not_used),
        QUICK_TEST(found_folders_are_only_read),
        QUICK_TEST(folders_of_unknown_birth_are_passed_over),
    };
    return cmocka_run_group_tests_name("trust in cache folders", tests, NULL, NULL);
}
