#include "core/machine.h"

#include <stdio.h>
#include <unistd.h>

static bool read_available(int64_t *out) {
    FILE *f = fopen("/proc/meminfo", "re");
    if (!f) return false;
    char line[128];
    long long kib = 0;
    bool found = false;
    while (!found && fgets(line, sizeof line, f))
        found = sscanf(line, "MemAvailable: %lld kB", &kib) == 1;
    fclose(f);
    if (found) *out = kib * 1024;
    return found;
}

// One number; "max" is none.
static bool read_number(int64_t *out, const char *path) {
    FILE *f = fopen(path, "re");
    if (!f) return false;
    long long n = 0;
    const bool found = fscanf(f, "%lld", &n) == 1;
    fclose(f);
    if (found) *out = n;
    return found;
}

// Bytes of files that the group's memory.current counts and that can be dropped at once.
static int64_t read_inactive_file(void) {
    FILE *f = fopen("/sys/fs/cgroup/memory.stat", "re");
    if (!f) return 0;
    char line[128];
    long long bytes = 0;
    while (fgets(line, sizeof line, f) && sscanf(line, "inactive_file %lld", &bytes) != 1) {
    }
    fclose(f);
    return bytes;
}

bool qn_machine_free_memory(int64_t *out) {
    int64_t available = INT64_MAX, most, current;
    const bool has_system = read_available(&available);
    const bool has_group = read_number(&most, "/sys/fs/cgroup/memory.max") &&
                           read_number(&current, "/sys/fs/cgroup/memory.current");
    if (has_group) {
        current -= read_inactive_file();
        if (most - current < available) available = most > current ? most - current : 0;
    }
    if (has_system || has_group) *out = available;
    return has_system || has_group;
}

int64_t qn_machine_resident_memory(void) {
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f) return 0;
    long long all = 0, resident = 0;
    const int got = fscanf(f, "%lld %lld", &all, &resident);
    fclose(f);
    return got == 2 ? resident * sysconf(_SC_PAGESIZE) : 0;
}
