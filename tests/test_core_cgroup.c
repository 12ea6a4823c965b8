// Limits of control groups, in a tree of files like the system's.
#include "testing.h"

#include "core/cgroup.h"
#include "core/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct tree {
    char root[64];
    char paths[32][256]; // files and folders, in the order in which they were made
    int n;
} tree;

static void begin(tree *t) {
    *t = (tree){.root = "/tmp/quern-cgroup-XXXXXX"};
    assert_non_null(mkdtemp(t->root));
}

static void note(tree *t, const char *path) {
    assert_in_range(t->n, 0, 31);
    snprintf(t->paths[t->n++], sizeof t->paths[0], "%s", path);
}

// A file, with the folders above it.
static void put(tree *t, const char *path, const char *text) {
    char all[256];
    const int n = snprintf(all, sizeof all, "%s%s", t->root, path);
    assert_in_range(n, 1, (int)sizeof all - 1);
    for (char *at = all + strlen(t->root) + 1; (at = strchr(at, '/')); at++) {
        *at = 0;
        if (mkdir(all, 0700) == 0) note(t, all);
        *at = '/';
    }
    FILE *f = fopen(all, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
    note(t, all);
}

static void end(tree *t) {
    while (t->n) assert_int_equal(remove(t->paths[--t->n]), 0);
    assert_int_equal(rmdir(t->root), 0);
}

#define V2 "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"

static void the_tightest_group_above_counts(void **state) {
    (void)state;
    tree t;
    int64_t bytes;
    int cpus;
    begin(&t);
    assert_false(qn_cgroup_memory(&bytes, t.root));
    put(&t, "/proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda rw\n" V2);
    put(&t, "/proc/self/cgroup", "0::/user.slice/app.scope\n");
    put(&t, "/sys/fs/cgroup/user.slice/memory.max", "1000000\n");
    put(&t, "/sys/fs/cgroup/user.slice/memory.current", "700000\n");
    put(&t, "/sys/fs/cgroup/user.slice/memory.stat", "anon 5\ninactive_file 100000\nfile 3\n");
    put(&t, "/sys/fs/cgroup/user.slice/cpu.max", "150000 100000\n");
    put(&t, "/sys/fs/cgroup/user.slice/app.scope/memory.max", "max\n");
    put(&t, "/sys/fs/cgroup/user.slice/app.scope/memory.current", "600000\n");
    put(&t, "/sys/fs/cgroup/user.slice/app.scope/cpu.max", "max 100000\n");
    assert_true(qn_cgroup_memory(&bytes, t.root));
    assert_int_equal(bytes, 400000); // the group above: 1000000 - (700000 - 100000)
    assert_true(qn_cgroup_cpus(&cpus, t.root));
    assert_int_equal(cpus, 2);
    put(&t, "/sys/fs/cgroup/user.slice/app.scope/memory.high", "650000\n");
    assert_true(qn_cgroup_memory(&bytes, t.root));
    assert_int_equal(bytes, 50000);
    t.n -= 1; // written again, below
    put(&t, "/sys/fs/cgroup/user.slice/app.scope/memory.high", "500000\n");
    assert_true(qn_cgroup_memory(&bytes, t.root));
    assert_int_equal(bytes, 0); // more is used than there should be
    end(&t);
}

static void a_container_sees_its_group_as_the_highest(void **state) {
    (void)state;
    static const char *const groups[] = {"0::/docker/abc\n", "0::/\n", "0::/../other\n",
                                         "0::/elsewhere\n"};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        tree t;
        int64_t bytes;
        begin(&t);
        put(&t, "/proc/self/mountinfo",
            "31 23 0:28 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
        put(&t, "/proc/self/cgroup", groups[i]);
        put(&t, "/sys/fs/cgroup/memory.max", "5000");
        put(&t, "/sys/fs/cgroup/memory.current", "1000");
        assert_true(qn_cgroup_memory(&bytes, t.root));
        assert_int_equal(bytes, 4000);
        end(&t);
    }
}

static void version_1_has_other_names(void **state) {
    (void)state;
    tree t;
    int64_t bytes;
    int cpus;
    begin(&t);
    put(&t, "/proc/self/mountinfo",
        "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "35 31 0:32 / /sys/my\\040groups/memory rw - cgroup cgroup rw,memory\n"
        "36 31 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    put(&t, "/proc/self/cgroup", "4:memory:/a/b\n3:cpu,cpuacct:/c\n1:cpuset:/\n0::/\n");
    put(&t, "/sys/my groups/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put(&t, "/sys/my groups/memory/memory.usage_in_bytes", "123456789\n");
    assert_false(qn_cgroup_memory(&bytes, t.root));
    put(&t, "/sys/my groups/memory/a/memory.limit_in_bytes", "8000\n");
    put(&t, "/sys/my groups/memory/a/memory.usage_in_bytes", "6000\n");
    put(&t, "/sys/my groups/memory/a/memory.stat", "inactive_file 9\ntotal_inactive_file 1000\n");
    put(&t, "/sys/my groups/memory/a/b/memory.limit_in_bytes", "7000\n");
    put(&t, "/sys/my groups/memory/a/b/memory.usage_in_bytes", "1000\n");
    assert_true(qn_cgroup_memory(&bytes, t.root));
    assert_int_equal(bytes, 3000);
    put(&t, "/sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_quota_us", "-1\n");
    put(&t, "/sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_period_us", "100000\n");
    assert_false(qn_cgroup_cpus(&cpus, t.root));
    put(&t, "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "300000\n");
    put(&t, "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    assert_true(qn_cgroup_cpus(&cpus, t.root));
    assert_int_equal(cpus, 3);
    end(&t);
}

static void broken_files_are_no_limits(void **state) {
    (void)state;
    static const char *const mounts[] = {
        "", "\n\n", " - cgroup2", "1 2 3 - cgroup2 x y\n", "1 2 3 / - cgroup2\n", V2};
    static const char *const groups[] = {"", ":", "0:", "0::", "::::", "0::/a\n"};
    for (size_t i = 0; i < sizeof mounts / sizeof *mounts; i++) {
        for (size_t k = 0; k < sizeof groups / sizeof *groups; k++) {
            tree t;
            int64_t bytes = 7;
            int cpus = 7;
            begin(&t);
            put(&t, "/proc/self/mountinfo", mounts[i]);
            put(&t, "/proc/self/cgroup", groups[k]);
            put(&t, "/sys/fs/cgroup/memory.max", "\n");
            put(&t, "/sys/fs/cgroup/cpu.max", "0 0\n");
            assert_false(qn_cgroup_memory(&bytes, t.root));
            assert_false(qn_cgroup_cpus(&cpus, t.root));
            assert_int_equal(bytes + cpus, 14);
            end(&t);
        }
    }
}

// ulimit -v is a limit of memory, too: what is mapped under it can never be more.
static void limits_of_the_process_count(void **state) {
    (void)state;
    enum { LEFT = 32 << 20 };
    struct rlimit before, less;
    int64_t bytes;
    long long pages;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%lld", &pages), 1);
    fclose(f);
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    less = before;
    less.rlim_cur = (rlim_t)(pages * sysconf(_SC_PAGESIZE) + LEFT);
    assert_int_equal(setrlimit(RLIMIT_AS, &less), 0);
    struct rlimit now;
    assert_int_equal(getrlimit(RLIMIT_AS, &now), 0);
    if (now.rlim_cur != less.rlim_cur) skip(); // qemu leaves its own memory unlimited
    const bool is_known = qn_machine_free_memory(&bytes);
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    assert_true(is_known);
    assert_in_range(bytes, 1, LEFT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_tightest_group_above_counts),
        cmocka_unit_test(a_container_sees_its_group_as_the_highest),
        cmocka_unit_test(version_1_has_other_names),
        cmocka_unit_test(broken_files_are_no_limits),
        cmocka_unit_test(limits_of_the_process_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
