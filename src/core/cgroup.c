#include "core/cgroup.h"

#include "core/chars.h"
#include "core/lines.h"

#include <stdio.h>
#include <string.h>

enum { MAX_PATH = 4096, MAX_LINE = 2 * MAX_PATH };

// Anything beyond this means no limit; version 1 has no word for that.
#define NO_LIMIT ((int64_t)1 << 60)

// Where a controller's files of this process are: <mount><path>, and those above it up to <mount>.
typedef struct place {
    char mount[MAX_PATH], path[MAX_PATH];
    bool is_v1;
} place;

// --- files ---------------------------------------------------------------------------------------

static bool open_at(qn_lines *lines, const char *root, const char *folder, const char *path,
                    const char *name) {
    char all[3 * MAX_PATH];
    const int n =
        snprintf(all, sizeof all, "%s%s%s%s%s", root, folder, path, *name ? "/" : "", name);
    return n > 0 && n < (int)sizeof all && qn_lines_open(lines, all);
}

// Up to two numbers; "max" means none. Returns how many there are.
static int read_numbers(int64_t out[2], const char *root, const place *p, const char *name) {
    qn_lines lines;
    if (!open_at(&lines, root, p->mount, p->path, name)) return 0;
    char line[128];
    long long a = 0, b = 0;
    const int n = qn_lines_next(line, sizeof line, &lines) ? sscanf(line, "%lld %lld", &a, &b) : 0;
    qn_lines_close(&lines);
    out[0] = a;
    out[1] = b;
    return n > 0 ? n : 0;
}

// The number after a word at the beginning of a line; 0: there is none.
static int64_t read_line(const char *root, const place *p, const char *name, const char *word) {
    qn_lines lines;
    if (!open_at(&lines, root, p->mount, p->path, name)) return 0;
    char line[256];
    long long n = 0;
    bool found = false;
    const size_t size = strlen(word);
    while (!found && qn_lines_next(line, sizeof line, &lines))
        found = strncmp(line, word, size) == 0 && sscanf(line + size, " %lld", &n) == 1;
    qn_lines_close(&lines);
    return n;
}

// --- where the groups are ------------------------------------------------------------------------

// The path of this process's group: "4:cpu,memory:/a/b", or "0::/a/b" in version 2.
static bool find_path(char path[MAX_PATH], const char *root, const char *controller) {
    qn_lines lines;
    if (!open_at(&lines, root, "/proc/self/cgroup", "", "")) return false;
    char line[MAX_LINE];
    bool found = false;
    while (!found && qn_lines_next(line, sizeof line, &lines)) {
        char *names = strchr(line, ':'), *end = names ? strchr(names + 1, ':') : NULL;
        if (!end || strlen(end + 1) >= MAX_PATH) continue;
        *end = 0;
        found = controller ? qn_has_word(names + 1, controller, ',') : strcmp(line, "0:") == 0;
        if (found) memcpy(path, end + 1, strlen(end + 1) + 1);
    }
    qn_lines_close(&lines);
    return found;
}

// Blanks are written as \040.
static void unescape(char *text) {
    char *to = text;
    for (const char *at = text; *at; at++, to++) {
        const bool is_code = at[0] == '\\' && at[1] >= '0' && at[1] <= '3' && at[2] && at[3];
        *to = *at;
        if (!is_code) continue;
        *to = (char)((at[1] - '0') * 64 + (at[2] - '0') * 8 + at[3] - '0');
        at += 3;
    }
    *to = 0;
}

// A line of mountinfo: "36 35 98:0 ROOT MOUNT OPTIONS ... - TYPE SOURCE MORE".
static bool read_mount(place *out, char *line, const char *controller) {
    char *fields[5], *tail = strstr(line, " - "), type[32], more[1024] = "";
    if (!tail || sscanf(tail, " - %31s %*s %1023s", type, more) < 1) return false;
    const bool is_wanted = controller
                               ? strcmp(type, "cgroup") == 0 && qn_has_word(more, controller, ',')
                               : strcmp(type, "cgroup2") == 0;
    char *rest = line;
    for (int i = 0; i < 5; i++) {
        fields[i] = strtok_r(i ? NULL : line, " ", &rest);
        if (!fields[i]) return false;
    }
    if (!is_wanted || strlen(fields[4]) >= MAX_PATH) return false;
    unescape(fields[3]);
    unescape(fields[4]);
    memcpy(out->mount, fields[4], strlen(fields[4]) + 1);
    // What is mounted may be a group itself, as in containers: the path goes on from there.
    const size_t n = strcmp(fields[3], "/") == 0 ? 0 : strlen(fields[3]);
    const bool is_below = strncmp(out->path, fields[3], n) == 0 && strchr("/", out->path[n]);
    if (is_below)
        memmove(out->path, out->path + n, strlen(out->path + n) + 1);
    else
        out->path[0] = 0;
    if (strstr(out->path, "/..") || strcmp(out->path, "/") == 0) out->path[0] = 0;
    return true;
}

// `controller` NULL: version 2.
static bool find_place(place *out, const char *root, const char *controller) {
    out->is_v1 = controller != NULL;
    if (!find_path(out->path, root, controller)) return false;
    qn_lines lines;
    if (!open_at(&lines, root, "/proc/self/mountinfo", "", "")) return false;
    char line[MAX_LINE];
    bool found = false;
    while (!found && qn_lines_next(line, sizeof line, &lines))
        found = read_mount(out, line, controller);
    qn_lines_close(&lines);
    return found;
}

// One group up; false: it was the highest that can be seen.
static bool go_up(place *p) {
    char *slash = strrchr(p->path, '/');
    if (!slash) return false;
    *slash = 0;
    return true;
}

// --- memory --------------------------------------------------------------------------------------

// What this one group leaves; NO_LIMIT: it has no limit.
static int64_t memory_of(const char *root, const place *p) {
    int64_t limit[2], high[2], used[2], max = NO_LIMIT;
    if (read_numbers(limit, root, p, p->is_v1 ? "memory.limit_in_bytes" : "memory.max"))
        max = limit[0];
    if (!p->is_v1 && read_numbers(high, root, p, "memory.high") && high[0] < max) max = high[0];
    if (max < 0 || max >= NO_LIMIT) return NO_LIMIT;
    if (!read_numbers(used, root, p, p->is_v1 ? "memory.usage_in_bytes" : "memory.current"))
        return NO_LIMIT;
    const int64_t files =
        read_line(root, p, "memory.stat", p->is_v1 ? "total_inactive_file" : "inactive_file");
    const int64_t held = used[0] > files ? used[0] - files : 0;
    return max > held ? max - held : 0;
}

bool qn_cgroup_memory(int64_t *out, const char *root) {
    static const char *const controllers[] = {NULL, "memory"};
    int64_t min = NO_LIMIT;
    for (int i = 0; i < 2; i++) {
        place p;
        if (!find_place(&p, root, controllers[i])) continue;
        do {
            const int64_t left = memory_of(root, &p);
            if (left < min) min = left;
        } while (go_up(&p));
    }
    if (min < NO_LIMIT) *out = min;
    return min < NO_LIMIT;
}

// --- CPUs ----------------------------------------------------------------------------------------

// "150000 100000" are two CPUs, as are a quota and a period in two files; 0: no quota.
static int64_t cpus_of(const char *root, const place *p) {
    int64_t quota[2], period[2];
    if (p->is_v1) {
        if (!read_numbers(quota, root, p, "cpu.cfs_quota_us") ||
            !read_numbers(period, root, p, "cpu.cfs_period_us"))
            return 0;
        quota[1] = period[0];
    } else if (read_numbers(quota, root, p, "cpu.max") != 2) {
        return 0;
    }
    if (quota[0] <= 0 || quota[1] <= 0 || quota[0] > NO_LIMIT) return 0;
    return (quota[0] - 1) / quota[1] + 1;
}

bool qn_cgroup_cpus(int *out, const char *root) {
    static const char *const controllers[] = {NULL, "cpu"};
    int64_t min = INT16_MAX;
    for (int i = 0; i < 2; i++) {
        place p;
        if (!find_place(&p, root, controllers[i])) continue;
        do {
            const int64_t n = cpus_of(root, &p);
            if (n > 0 && n < min) min = n;
        } while (go_up(&p));
    }
    if (min < INT16_MAX) *out = (int)min;
    return min < INT16_MAX;
}
