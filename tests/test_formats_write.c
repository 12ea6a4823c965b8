// Writing GGUF files: what is written opens again as it was, and a file appears whole or not at
// all.
#include "testing.h"

#include "core/file.h"
#include "core/mem.h"
#include "core/newfile.h"
#include "formats/gguf_write.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[] = "/tmp/quern-write-XXXXXX";
static char path[64];

static int set_up(void **state) {
    (void)state;
    if (!mkdtemp(folder)) return 1;
    snprintf(path, sizeof path, "%s/out.gguf", folder);
    return 0;
}

static int count_files(void) {
    DIR *dir = opendir(folder);
    int n = 0;
    for (struct dirent *e; (e = readdir(dir));) n++;
    closedir(dir);
    return n - 2; // . and .., but hidden files count
}

static int tear_down(void **state) {
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static void put_text(const char *text) {
    qn_err err;
    qn_newfile *file;
    ASSERT_OK(qn_newfile_create(&file, path, 0, &err));
    ASSERT_OK(qn_newfile_write(file, text, strlen(text), &err));
    ASSERT_OK(qn_newfile_commit(file, &err));
    qn_newfile_destroy(file);
}

static void assert_text(const char *want) {
    qn_err err;
    char *text;
    size_t size;
    ASSERT_OK(qn_file_load(&text, &size, path, 1 << 20, &err));
    assert_string_equal(text, want);
    qn_free(text);
}

static void a_new_file_appears_whole_or_not_at_all(void **state) {
    (void)state;
    qn_err err;
    qn_newfile *file;
    put_text("old");
    assert_text("old");
    ASSERT_OK(qn_newfile_create(&file, path, 0, &err));
    ASSERT_OK(qn_newfile_write(file, "half", 4, &err));
    assert_text("old"); // until the commit
    qn_newfile_destroy(file);
    assert_text("old");
    assert_int_equal(count_files(), 1); // nothing stays behind
    put_text("new");
    assert_text("new");
    assert_int_equal(count_files(), 1);
    ASSERT_FAILS(qn_newfile_create(&file, folder, 0, &err), QN_ARGUMENT, "is a folder");
    char nowhere[64];
    snprintf(nowhere, sizeof nowhere, "%s/nowhere/at/all", folder);
    ASSERT_FAILS(qn_newfile_create(&file, nowhere, 0, &err), QN_IO, "/nowhere/at/all");
}

// Prepared, a file is whole but has not its place; two of them can wait for each other.
static void a_prepared_file_waits(void **state) {
    (void)state;
    qn_err err;
    qn_newfile *file;
    put_text("old");
    for (int is_placed = 0; is_placed < 2; is_placed++) {
        ASSERT_OK(qn_newfile_create(&file, path, 0, &err));
        ASSERT_OK(qn_newfile_write(file, "new", 3, &err));
        ASSERT_OK(qn_newfile_prepare(file, &err));
        assert_text("old");
        if (is_placed) ASSERT_OK(qn_newfile_place(file, &err));
        qn_newfile_destroy(file);
        assert_text(is_placed ? "new" : "old");
        assert_int_equal(count_files(), 1);
    }
}

static void links_are_followed(void **state) {
    (void)state;
    qn_err err;
    qn_newfile *file;
    char link_path[64], target[8] = {0};
    snprintf(link_path, sizeof link_path, "%s/link", folder);
    assert_int_equal(symlink("out.gguf", link_path), 0);
    put_text("old");
    ASSERT_OK(qn_newfile_create(&file, link_path, 0, &err));
    ASSERT_OK(qn_newfile_write(file, "new", 3, &err));
    ASSERT_OK(qn_newfile_commit(file, &err));
    qn_newfile_destroy(file);
    assert_text("new");
    assert_int_equal(readlink(link_path, target, sizeof target), 8); // still a link
    unlink(path);
    ASSERT_FAILS(qn_newfile_create(&file, link_path, 0, &err), QN_ARGUMENT,
                 "is a link to something that does not exist");
    assert_int_equal(unlink(link_path), 0);
    assert_int_equal(count_files(), 0);
}

static mode_t mode_of(const char *name) {
    struct stat st;
    assert_int_equal(lstat(name, &st), 0);
    return st.st_mode & 07777;
}

static void write_with(int flags) {
    qn_err err;
    qn_newfile *file;
    ASSERT_OK(qn_newfile_create(&file, path, flags, &err));
    ASSERT_OK(qn_newfile_write(file, "new", 3, &err));
    ASSERT_OK(qn_newfile_commit(file, &err));
    qn_newfile_destroy(file);
}

// A new file has the mode that was asked for, under the umask; one that replaces another has its.
static void a_replaced_file_keeps_its_permissions(void **state) {
    (void)state;
    static const mode_t modes[] = {0600, 0640, 0644, 0664, 0666, 0444, 0755};
    const mode_t mask = umask(027);
    for (int flags = 0; flags < 4; flags++) {
        unlink(path);
        write_with(flags);
        assert_int_equal(mode_of(path), flags & QN_NEWFILE_PRIVATE ? 0600 : 0640);
        for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
            assert_int_equal(chmod(path, modes[i]), 0);
            write_with(flags);
            assert_int_equal(mode_of(path), modes[i]);
            assert_text("new");
        }
    }
    umask(mask);
    unlink(path);
}

static void a_replaced_file_keeps_its_owner(void **state) {
    (void)state;
    struct stat st;
    if (geteuid() != 0) skip(); // nobody else may give files away
    put_text("old");
    assert_int_equal(chown(path, 1234, 4321), 0);
    put_text("new");
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_uid, 1234);
    assert_int_equal(st.st_gid, 4321);
    unlink(path);
}

// What is for this user alone does not go to a file, or along a link, of another one.
static void a_private_file_replaces_none_of_another_user(void **state) {
    (void)state;
    qn_err err;
    qn_newfile *file = NULL;
    char link_path[64];
    struct stat st;
    if (geteuid() != 0) skip(); // nobody else may give files away
    put_text("old");
    snprintf(link_path, sizeof link_path, "%s/link", folder);
    assert_int_equal(symlink("out.gguf", link_path), 0);
    ASSERT_OK(qn_newfile_create(&file, link_path, QN_NEWFILE_PRIVATE, &err));
    qn_newfile_destroy(file);
    assert_int_equal(lchown(link_path, 1234, 4321), 0);
    ASSERT_FAILS(qn_newfile_create(&file, link_path, QN_NEWFILE_PRIVATE, &err), QN_ARGUMENT,
                 "belongs to user 1234; what is written here is for user 0 alone");
    assert_int_equal(lchown(link_path, 0, 0), 0);
    assert_int_equal(chown(path, 1234, 4321), 0);
    const char *const paths[] = {path, link_path};
    for (size_t i = 0; i < 2; i++)
        ASSERT_FAILS(qn_newfile_create(&file, paths[i], QN_NEWFILE_PRIVATE, &err), QN_ARGUMENT,
                     "belongs to user 1234");
    unlink(link_path);
    unlink(path);
    // One that comes in between is replaced all the same, and gives nothing.
    ASSERT_OK(qn_newfile_create(&file, path, QN_NEWFILE_PRIVATE, &err));
    ASSERT_OK(qn_newfile_write(file, "secret", 6, &err));
    put_text("trap");
    assert_int_equal(chown(path, 1234, 4321), 0);
    ASSERT_OK(qn_newfile_commit(file, &err));
    qn_newfile_destroy(file);
    assert_text("secret");
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_uid, 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    unlink(path);
}

// In an open folder a link is replaced, and what it points to is left alone.
static void links_in_an_open_folder_are_replaced(void **state) {
    (void)state;
    qn_err err;
    qn_newfile *file;
    char link_path[64], moved[64];
    snprintf(link_path, sizeof link_path, "%s/link", folder);
    snprintf(moved, sizeof moved, "%s.moved", folder);
    put_text("mine");
    assert_int_equal(chmod(path, 0666), 0);
    assert_int_equal(symlink("out.gguf", link_path), 0);
    const int fd = open(folder, O_RDONLY | O_DIRECTORY);
    ASSERT_OK(qn_newfile_create_in(&file, fd, "link", link_path, &err));
    ASSERT_OK(qn_newfile_write(file, "new", 3, &err));
    // The folder is the one that was opened, whatever has its name now.
    assert_int_equal(rename(folder, moved), 0);
    assert_int_equal(mkdir(folder, 0700), 0);
    ASSERT_OK(qn_newfile_commit(file, &err));
    qn_newfile_destroy(file);
    assert_int_equal(count_files(), 0);
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(rename(moved, folder), 0);
    assert_text("mine");
    assert_int_equal(mode_of(path), 0666);
    assert_int_equal(mode_of(link_path), 0600); // of the file that it is now
    close(fd);
    assert_int_equal(unlink(link_path), 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(count_files(), 0);
}

// Writes half a file, says so, and waits to be killed.
static pid_t start_writer(bool is_prepared) {
    int ends[2];
    char byte;
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        qn_newfile *file;
        qn_err err;
        if (qn_newfile_create(&file, path, is_prepared ? 0 : QN_NEWFILE_NAMED, &err)) _exit(1);
        if (qn_newfile_write(file, "half", 4, &err)) _exit(1);
        if (is_prepared && qn_newfile_prepare(file, &err)) _exit(1);
        if (write(ends[1], "x", 1) != 1) _exit(1);
        for (;;) pause();
    }
    assert_int_equal(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    close(ends[1]);
    return child;
}

static void end_writer(pid_t child) {
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

// A writer that is killed leaves its temporary file, which the next one removes; that of a writer
// that lives is left alone.
static void what_killed_writers_leave_is_removed(void **state) {
    (void)state;
    for (int is_prepared = 0; is_prepared < 2; is_prepared++) {
        put_text("old");
        const pid_t child = start_writer(is_prepared);
        assert_int_equal(count_files(), 2);
        write_with(0); // at the same time
        write_with(QN_NEWFILE_NAMED);
        assert_int_equal(count_files(), 2);
        end_writer(child);
        assert_int_equal(count_files(), 2);
        write_with(is_prepared ? 0 : QN_NEWFILE_NAMED);
        assert_text("new");
        assert_int_equal(count_files(), 1);
    }
    // A file of another name, where files have names from the start.
    end_writer(start_writer(false));
    assert_int_equal(count_files(), 2);
    snprintf(path, sizeof path, "%s/other.gguf", folder);
    write_with(QN_NEWFILE_NAMED);
    assert_int_equal(count_files(), 2); // the two outputs
    unlink(path);
    snprintf(path, sizeof path, "%s/out.gguf", folder);
    unlink(path);
}

static void only_own_leftovers_are_swept(void **state) {
    (void)state;
    static const char *const names[] = {".quern-0123456789abcdef.tmp", ".quern-xyz.tmp",
                                        ".quern-0123456789abcdef0.tmp",
                                        "quern-0123456789abcdef.tmp", "notes.tmp"};
    char name[128];
    const bool is_root = geteuid() == 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(name, sizeof name, "%s/%s", folder, names[i]);
        FILE *f = fopen(name, "w");
        assert_non_null(f);
        fclose(f);
    }
    snprintf(name, sizeof name, "%s/.quern-00000000000000aa.tmp", folder); // of somebody else
    if (is_root) assert_int_equal(close(open(name, O_CREAT | O_WRONLY, 0600)), 0);
    if (is_root) assert_int_equal(chown(name, 1234, 1234), 0);
    char link_name[128];
    snprintf(link_name, sizeof link_name, "%s/.quern-00000000000000bb.tmp", folder);
    assert_int_equal(symlink("notes.tmp", link_name), 0);
    const int fd = open(folder, O_RDONLY | O_DIRECTORY);
    qn_newfile_sweep(fd);
    close(fd);
    assert_int_equal(count_files(), 5 + is_root); // the first is gone
    if (is_root) assert_int_equal(unlink(name), 0);
    assert_int_equal(unlink(link_name), 0);
    for (size_t i = 1; i < sizeof names / sizeof *names; i++) {
        snprintf(name, sizeof name, "%s/%s", folder, names[i]);
        assert_int_equal(unlink(name), 0);
    }
    assert_int_equal(count_files(), 0);
}

// The temporary name does not grow with the name of the file.
static void long_names_are_possible(void **state) {
    (void)state;
    qn_err err;
    qn_newfile *file;
    char long_path[300];
    const int n = snprintf(long_path, sizeof long_path, "%s/", folder);
    memset(long_path + n, 'n', 255);
    long_path[n + 255] = 0;
    ASSERT_OK(qn_newfile_create(&file, long_path, 0, &err));
    ASSERT_OK(qn_newfile_commit(file, &err));
    qn_newfile_destroy(file);
    assert_int_equal(unlink(long_path), 0);
    long_path[n + 255] = 'n';
    long_path[n + 256] = 0;
    ASSERT_FAILS(qn_newfile_create(&file, long_path, 0, &err), QN_IO, "cannot write there");
    assert_int_equal(count_files(), 0);
}

static void a_file_of_another_kind_is_left_alone(void **state) {
    (void)state;
    static const qn_newfile_kind kind = {.name = "a poem", .at = 2, .marks = {"ode", "lay"}};
    static const struct {
        const char *text;
        bool may;
    } cases[] = {{"", true},      {"an ode", false}, {"1 ode", true}, {"1 lay of", true},
                 {"1 od", false}, {"ode", false},    {"1", false}};
    qn_err err;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_text(cases[i].text);
        if (cases[i].may)
            ASSERT_OK(qn_newfile_check(path, &kind, &err));
        else
            ASSERT_FAILS(qn_newfile_check(path, &kind, &err), QN_ARGUMENT, "is not a poem");
    }
    qn_gguf_writer *w;
    ASSERT_OK(qn_gguf_writer_create(&w, &err));
    ASSERT_FAILS(qn_gguf_begin(w, path, &err), QN_ARGUMENT, "is not a GGUF file; it is left alone");
    qn_gguf_writer_destroy(w);
    assert_text("1");
    unlink(path);
    ASSERT_OK(qn_newfile_check(path, &kind, &err));
}

static void a_full_disk_leaves_nothing_behind(void **state) {
    (void)state;
    qn_err err;
    qn_newfile *file;
    put_text("old");
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 1 << 20;
    signal(SIGXFSZ, SIG_IGN); // write() then fails with EFBIG, as a full disk does with ENOSPC
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    ASSERT_OK(qn_newfile_create(&file, path, 0, &err));
    char *block = qn_alloc(1 << 20, 1);
    qn_status status = QN_OK;
    for (int i = 0; i < 3 && !status; i++) status = qn_newfile_write(file, block, 1 << 20, &err);
    assert_int_equal(status, QN_IO);
    qn_newfile_destroy(file);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    qn_free(block);
    assert_text("old");
    assert_int_equal(count_files(), 1);
}

// Copies a model key by key and tensor by tensor.
static void copy_model(const char *from) {
    qn_err err;
    qn_source *source;
    qn_gguf_writer *w;
    ASSERT_OK(qn_source_open(&source, from, &err));
    ASSERT_OK(qn_gguf_writer_create(&w, &err));
    for (size_t i = 0; i < qn_source_n_keys(source); i++)
        qn_gguf_put_key(w, qn_source_key(source, i));
    for (size_t i = 0; i < qn_source_n_tensors(source); i++) {
        const qn_tensor *t = qn_source_tensor(source, i);
        qn_gguf_tensor out = {.name = t->name.data, .type = t->type, .n_dims = t->n_dims};
        memcpy(out.dims, t->dims, sizeof out.dims);
        qn_gguf_add_tensor(w, &out);
    }
    ASSERT_OK(qn_gguf_begin(w, path, &err));
    for (size_t i = 0; i < qn_source_n_tensors(source); i++) {
        const qn_tensor *t = qn_source_tensor(source, i);
        char *bytes = qn_alloc((size_t)t->bytes, 1);
        ASSERT_OK(qn_source_read(source, t, 0, bytes, (size_t)t->bytes, &err));
        const size_t half = (size_t)t->bytes / 2;
        ASSERT_OK(qn_gguf_write(w, bytes, half, &err));
        ASSERT_OK(qn_gguf_write(w, bytes + half, (size_t)t->bytes - half, &err));
        qn_free(bytes);
    }
    ASSERT_OK(qn_gguf_finish(w, &err));
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, qn_gguf_file_bytes(w));
    qn_gguf_writer_destroy(w);
    qn_source_close(source);
}

static void copied_models_are_equal_byte_for_byte(void **state) {
    (void)state;
    static const char *const models[] = {TEST_DATA "/mini/qwen35_moe/qwen35_moe-bf16.gguf",
                                         TEST_DATA "/mini/gemma3/gemma3-bf16.gguf",
                                         TEST_DATA "/k256/qwen3/qwen3-Q2_K.gguf"};
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        qn_err err;
        char *a, *b;
        size_t n_a, n_b;
        copy_model(models[i]);
        ASSERT_OK(qn_file_load(&a, &n_a, models[i], 1 << 26, &err));
        ASSERT_OK(qn_file_load(&b, &n_b, path, 1 << 26, &err));
        assert_int_equal(n_a, n_b);
        assert_memory_equal(a, b, n_a);
        qn_free(a);
        qn_free(b);
    }
}

static void keys_of_every_kind_come_back(void **state) {
    (void)state;
    qn_err err;
    qn_gguf_writer *w;
    qn_source *source;
    const int32_t ints[] = {-1, 2, INT32_MAX};
    const float floats[] = {0.5f, -3};
    const bool bools[] = {true, false};
    const qn_str strings[] = {{"a", 1}, {"", 0}, {"\xe2\x96\x81z", 4}};
    ASSERT_OK(qn_gguf_writer_create(&w, &err));
    qn_gguf_put_u32(w, "u", 4000000000u);
    qn_gguf_put_f32(w, "f", 1e-6f);
    qn_gguf_put_bool(w, "b", true);
    qn_gguf_put_string(w, "s", "text");
    qn_gguf_put_i32s(w, "is", ints, 3);
    qn_gguf_put_f32s(w, "fs", floats, 2);
    qn_gguf_put_bools(w, "bs", bools, 2);
    qn_gguf_put_strings(w, "ss", strings, 3);
    qn_gguf_put_strings(w, "none", NULL, 0);
    ASSERT_OK(qn_gguf_begin(w, path, &err));
    ASSERT_OK(qn_gguf_finish(w, &err));
    qn_gguf_writer_destroy(w);
    ASSERT_OK(qn_source_open(&source, path, &err));
    assert_int_equal(qn_source_find_key(source, "u")->as.i, 4000000000u);
    assert_true((float)qn_source_find_key(source, "f")->as.f == 1e-6f);
    assert_true(qn_source_find_key(source, "b")->as.b);
    assert_string_equal(qn_source_find_key(source, "s")->as.s.data, "text");
    assert_int_equal(qn_key_int_at(qn_source_find_key(source, "is"), 0), -1);
    assert_true(qn_key_float_at(qn_source_find_key(source, "fs"), 1) == -3);
    assert_false(qn_key_bool_at(qn_source_find_key(source, "bs"), 1));
    assert_string_equal(qn_key_string_at(qn_source_find_key(source, "ss"), 2).data,
                        "\xe2\x96\x81z");
    assert_int_equal(qn_source_find_key(source, "none")->n, 0);
    qn_source_close(source);
}

static void wrong_use_is_an_error(void **state) {
    (void)state;
    qn_err err;
    qn_gguf_writer *w;
    ASSERT_OK(qn_gguf_writer_create(&w, &err));
    qn_gguf_put_u32(w, "twice", 1);
    qn_gguf_put_u32(w, "twice", 2);
    ASSERT_FAILS(qn_gguf_begin(w, path, &err), QN_ARGUMENT, "key twice is written twice");
    qn_gguf_writer_destroy(w);

    ASSERT_OK(qn_gguf_writer_create(&w, &err));
    qn_gguf_add_tensor(w, &(qn_gguf_tensor){"t", QN_TYPE_Q4_K, 2, {2, 100}});
    ASSERT_FAILS(qn_gguf_begin(w, path, &err), QN_ARGUMENT, "rows of 100 as Q4_K");
    qn_gguf_writer_destroy(w);

    ASSERT_OK(qn_gguf_writer_create(&w, &err));
    qn_gguf_add_tensor(w, &(qn_gguf_tensor){"t", QN_TYPE_F32, 1, {2}});
    ASSERT_OK(qn_gguf_begin(w, path, &err));
    ASSERT_OK(qn_gguf_write(w, "1234", 4, &err));
    ASSERT_FAILS(qn_gguf_finish(w, &err), QN_STATE, "tensor 0 of 1 is not complete");
    ASSERT_FAILS(qn_gguf_write(w, "1234567", 7, &err), QN_ARGUMENT, "3 bytes more");
    qn_gguf_writer_destroy(w);
    assert_int_equal(count_files(), 1); // the file of an earlier test, and nothing else
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_file_appears_whole_or_not_at_all),
        cmocka_unit_test(a_full_disk_leaves_nothing_behind),
        cmocka_unit_test(a_prepared_file_waits),
        cmocka_unit_test(links_are_followed),
        cmocka_unit_test(a_replaced_file_keeps_its_permissions),
        cmocka_unit_test(a_replaced_file_keeps_its_owner),
        cmocka_unit_test(a_private_file_replaces_none_of_another_user),
        cmocka_unit_test(links_in_an_open_folder_are_replaced),
        cmocka_unit_test(what_killed_writers_leave_is_removed),
        cmocka_unit_test(only_own_leftovers_are_swept),
        cmocka_unit_test(long_names_are_possible),
        cmocka_unit_test(a_file_of_another_kind_is_left_alone),
        cmocka_unit_test(copied_models_are_equal_byte_for_byte),
        cmocka_unit_test(keys_of_every_kind_come_back),
        cmocka_unit_test(wrong_use_is_an_error),
    };
    return cmocka_run_group_tests_name("formats: writing", tests, set_up, tear_down);
}
