#include "core/machine.h"

#include "core/cgroup.h"
#include "core/lines.h"
#include "core/mem.h"

#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

// Where the system promises no more than it has (vm.overcommit_memory is 2), reserved memory
// counts.
static bool is_strict(void) {
    char line[64];
    int mode = 0;
    const bool is_read = qn_lines_first(line, sizeof line, "/proc/sys/vm/overcommit_memory") &&
                         sscanf(line, "%d", &mode) == 1;
    return is_read && mode == 2;
}

static bool read_available(int64_t *out) {
    qn_lines lines;
    if (!qn_lines_open(&lines, "/proc/meminfo")) return false;
    char line[128];
    long long kib = -1, max = -1, promised = -1;
    while (qn_lines_next(line, sizeof line, &lines)) {
        (void)(sscanf(line, "MemAvailable: %lld kB", &kib) == 1 ||
               sscanf(line, "CommitLimit: %lld kB", &max) == 1 ||
               sscanf(line, "Committed_AS: %lld kB", &promised) == 1);
    }
    qn_lines_close(&lines);
    const bool has_both = max >= 0 && promised >= 0;
    if (has_both && is_strict() && max - promised < kib) kib = max > promised ? max - promised : 0;
    if (kib >= 0) *out = kib * 1024;
    return kib >= 0;
}

// Pages of this process: all of its address space, resident, and private ones that can be written.
static bool read_pages(long long out[3]) {
    char line[256];
    return qn_lines_first(line, sizeof line, "/proc/self/statm") &&
           sscanf(line, "%lld %lld %*d %*d %*d %lld", &out[0], &out[1], &out[2]) == 3;
}

// What a limit of this process's address space leaves (ulimit -v, -d).
static int64_t left_of(int resource, long long pages) {
    struct rlimit limit;
    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur >= (rlim_t)INT64_MAX) return INT64_MAX;
    const int64_t used = pages * sysconf(_SC_PAGESIZE), max = (int64_t)limit.rlim_cur;
    return max > used ? max - used : 0;
}

bool qn_machine_free_memory(int64_t *out) {
    int64_t available = INT64_MAX, in_group;
    long long pages[3];
    (void)read_available(&available);
    if (qn_cgroup_memory(&in_group, "")) available = qn_min(available, in_group);
    if (read_pages(pages)) {
        available = qn_min(available, left_of(RLIMIT_AS, pages[0]));
        available = qn_min(available, left_of(RLIMIT_DATA, pages[2]));
    }
    if (available < INT64_MAX) *out = available;
    return available < INT64_MAX;
}

int64_t qn_machine_resident_memory(void) {
    long long pages[3];
    return read_pages(pages) ? pages[1] * sysconf(_SC_PAGESIZE) : 0;
}
