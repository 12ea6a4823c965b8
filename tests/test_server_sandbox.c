// What is left to a process that has given up its privileges: each check in a process of its own.
#define _GNU_SOURCE // unshare
#include "testing.h"

#include "core/thread.h"
#include "server/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FINE = 0, SKIPPED = 77 };

static bool is_denied(int result) { return result < 0 && errno == EPERM; }

static int calls_are_denied(void) {
    char name[] = "true";
    char *const args[] = {name, NULL}, *const none[] = {NULL};
    if (!is_denied(execve("/bin/true", args, none))) return 1;
    const pid_t child = fork();
    if (child == 0) _exit(0);
    if (!is_denied(child)) return 2;
    if (!is_denied(socket(AF_INET, SOCK_STREAM, 0))) return 3;
    if (!is_denied(socket(AF_UNIX, SOCK_STREAM, 0))) return 4;
    if (!is_denied((int)ptrace(PTRACE_TRACEME, 0, NULL, NULL))) return 5;
    if (!is_denied(unshare(CLONE_NEWNS))) return 6;
    if (!is_denied(kill(getppid(), 0))) return 7;
    if (!is_denied(setuid(getuid()))) return 8;
    if (!is_denied(chroot("/"))) return 9;
    return FINE;
}

static void *set_flag(void *arg) {
    *(int *)arg = socket(AF_INET, SOCK_STREAM, 0) < 0 && errno == EPERM;
    return NULL;
}

// What models and the cache folder need, in threads that begin later, too.
static int work_goes_on(void) {
    char path[] = "/tmp/quern_sandbox_XXXXXX";
    pthread_t thread;
    int is_set = 0;
    if (!qn_thread_start(&thread, set_flag, &is_set)) return 1;
    if (pthread_join(thread, NULL) || !is_set) return 2;
    const int fd = mkstemp(path);
    if (fd < 0 || write(fd, "x", 1) != 1) return 3;
    void *map = mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED || *(const char *)map != 'x') return 4;
    munmap(map, 1);
    close(fd);
#if defined(__x86_64__) // what a CPU with AMX asks for when a model is opened later
    if (is_denied((int)syscall(SYS_arch_prctl, 0x1023, 18))) return 6;
#endif
    return unlink(path) ? 5 : FINE;
}

static void *wait_for_go(void *arg) {
    static const struct timespec pause = {.tv_nsec = 1000000};
    atomic_int *state = arg;
    while (atomic_load(state) == 0) nanosleep(&pause, NULL);
    int is_set = 0;
    set_flag(&is_set);
    atomic_store(state, is_set ? 2 : 3);
    return NULL;
}

static int run_child(int (*fn)(void)) {
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        qn_err err;
        atomic_int state = 0; // a thread that was there before
        pthread_t thread;
        if (!qn_thread_start(&thread, wait_for_go, &state)) _exit(100);
        const qn_status status = qn_sandbox_enter(&(qn_sandbox_opts){0}, &err);
        if (status) _exit(status == QN_UNSUPPORTED ? SKIPPED : 101);
        atomic_store(&state, 1);
        pthread_join(thread, NULL);
        _exit(atomic_load(&state) == 2 ? fn() : 102);
    }
    int code;
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_true(WIFEXITED(code));
    return WEXITSTATUS(code);
}

static void check(int (*fn)(void)) {
    const int code = run_child(fn);
    if (code == SKIPPED) {
        print_message("skipped: this kernel filters no system calls\n");
        skip();
    }
    assert_int_equal(code, FINE);
}

static void other_programs_and_sockets_are_denied(void **state) {
    (void)state;
    check(calls_are_denied);
}

static void threads_and_files_stay(void **state) {
    (void)state;
    check(work_goes_on);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_programs_and_sockets_are_denied),
        cmocka_unit_test(threads_and_files_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
