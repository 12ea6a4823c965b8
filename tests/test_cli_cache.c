// The cache folder under the program itself: killed while it writes, damaged, shared by processes.
// The answer is always right, at worst it is computed anew.
#include "cli_run.h"

#include <dirent.h>
#include <signal.h>
#include <time.h>

enum { PROCESSES = 4, KILLS = 15, FLIPS = 12 };

static const char *const ids = "5,6,7,8,9";

static pid_t start(const char *folder, const char *out) {
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        cli_redirect(1, out, O_WRONLY | O_CREAT | O_TRUNC);
        execl(QUERN, QUERN, "logits", DRAFT, "--ids", ids, "--cache-dir", folder, (char *)NULL);
        _exit(99);
    }
    return pid;
}

static void assert_answer(const char *folder, const char *want) {
    cli_result r = CLI_RUN("logits", DRAFT, "--ids", ids, "--cache-dir", folder);
    assert_int_equal(r.code, 0); // warnings are allowed
    assert_string_equal(r.out, want);
    cli_free(&r);
}

static char *right_answer(void) {
    cli_result r = CLI_RUN("logits", DRAFT, "--ids", ids, "--cache-dir", "none");
    cli_assert_done(&r);
    free(r.err);
    return r.out;
}

static void test_shared_folder(void **state) {
    (void)state;
    char *want = right_answer(), folder[CLI_MOST_PATH];
    snprintf(folder, sizeof folder, "%s", cli_path("shared"));
    pid_t pids[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) {
        char name[16];
        snprintf(name, sizeof name, "out.%d", i);
        pids[i] = start(folder, cli_path(name));
    }
    for (int i = 0; i < PROCESSES; i++) {
        char name[16];
        int status;
        snprintf(name, sizeof name, "out.%d", i);
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        char *got = cli_load(cli_path(name), NULL);
        assert_string_equal(got, want);
        free(got);
    }
    assert_answer(folder, want);
    free(want);
}

// The moments are spread over what a run takes, however long that is here.
static void test_killed_writers(void **state) {
    (void)state;
    char *want = right_answer();
    for (int i = 0; i < KILLS; i++) {
        char name[32], folder[CLI_MOST_PATH];
        snprintf(name, sizeof name, "killed.%d", i / 3); // some folders are hit more than once
        snprintf(folder, sizeof folder, "%s", cli_path(name));
        const pid_t pid = start(folder, "/dev/null");
        nanosleep(&(struct timespec){.tv_nsec = 1000000 + i * 2000000}, NULL);
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        assert_answer(folder, want);
    }
    free(want);
}

static void flip(const char *path, size_t part) {
    size_t size;
    char *data = cli_load(path, &size);
    data[size * part / FLIPS] ^= 0x10;
    cli_save(path, data, size);
    free(data);
}

static void test_flipped_bytes(void **state) {
    (void)state;
    char *want = right_answer(), folder[CLI_MOST_PATH];
    snprintf(folder, sizeof folder, "%s", cli_path("flipped"));
    cli_result made = CLI_RUN("compile", DRAFT, "-o", folder);
    cli_assert_done(&made);
    cli_free(&made);
    for (size_t part = 0; part < FLIPS; part++) {
        DIR *dir = opendir(folder);
        assert_non_null(dir);
        int n_files = 0;
        for (struct dirent *e; (e = readdir(dir));) {
            char path[2 * CLI_MOST_PATH];
            if (e->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
            flip(path, part);
            n_files++;
        }
        closedir(dir);
        assert_true(n_files >= 3); // two plans, the weights, and where they were made
        assert_answer(folder, want);
    }
    free(want);
}

// A file that is cut while the program computes with it: one line, and a failure.
static void test_shortened_file(void **state) {
    (void)state;
    char folder[CLI_MOST_PATH], err[CLI_MOST_PATH], byte, command[2 * CLI_MOST_PATH];
    int ends[2], status;
    snprintf(folder, sizeof folder, "%s", cli_path("shortened"));
    snprintf(err, sizeof err, "%s", cli_path("shortened.err"));
    cli_result made = CLI_RUN("compile", DRAFT, "-o", folder);
    cli_assert_done(&made);
    cli_free(&made);
    assert_int_equal(pipe(ends), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        cli_redirect(0, "/dev/null", O_RDONLY);
        cli_redirect(2, err, O_WRONLY | O_CREAT | O_TRUNC);
        dup2(ends[1], 1);
        execl(QUERN, QUERN, "run", DRAFT, "-p", "Hi", "-n", "1500", "--min-tokens", "1500",
              "--threads", "4", "--cache-dir", folder, (char *)NULL); // several meet the end
        _exit(99);
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 1); // it answers
    kill(pid, SIGSTOP);
    snprintf(command, sizeof command, "for f in '%s'/*.packs; do : > \"$f\"; done", folder);
    assert_int_equal(system(command), 0);
    kill(pid, SIGCONT);
    while (read(ends[0], &byte, 1) == 1) continue;
    close(ends[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    char *said = cli_load(err, NULL);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 1)
        fail_msg("status %x, '%s'", (unsigned)status, said);
    assert_string_equal(said, "quern: a mapped file of the cache folder was shortened while in "
                              "use, or the disk failed\n");
    free(said);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_folder),
        cmocka_unit_test(test_killed_writers),
        cmocka_unit_test(test_flipped_bytes),
        cmocka_unit_test(test_shortened_file),
    };
    return cmocka_run_group_tests(tests, cli_setup, cli_teardown);
}
