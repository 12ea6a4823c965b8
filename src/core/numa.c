#define _GNU_SOURCE // sched_getaffinity, sched_getcpu
#include "core/numa.h"

#include "core/lines.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LINE = 4096 }; // a list of 512 CPUs, every other one of 1024, has 2400 bytes

// --- lists ---------------------------------------------------------------------------------------

bool qn_cpus_has(const qn_cpus *cpus, int i) {
    return i >= 0 && i < QN_NUMA_CPUS && cpus->bits[i / 64] >> (i % 64) & 1;
}

static void add(qn_cpus *cpus, int i) { cpus->bits[i / 64] |= (uint64_t)1 << (i % 64); }

int qn_cpus_count(const qn_cpus *cpus) {
    int n = 0;
    for (size_t i = 0; i < QN_NUMA_CPUS / 64; i++) n += __builtin_popcountll(cpus->bits[i]);
    return n;
}

bool qn_cpus_allowed(qn_cpus *out) {
    *out = (qn_cpus){0};
    return sched_getaffinity(0, sizeof out->bits, (cpu_set_t *)(void *)out->bits) == 0 &&
           qn_cpus_count(out) > 0;
}

// Digits up to `max`; -1: there are none, or they are too many.
static int parse_number(const char **at, int max) {
    int n = 0;
    if (**at < '0' || **at > '9') return -1;
    for (; **at >= '0' && **at <= '9'; ++*at) {
        n = 10 * n + **at - '0';
        if (n > max) return -1;
    }
    return n;
}

bool qn_cpus_parse(qn_cpus *out, const char *list, int max) {
    *out = (qn_cpus){0};
    if (!*list) return true; // a node without CPUs
    for (;;) {
        const int first = parse_number(&list, max);
        const bool is_run = first >= 0 && *list == '-';
        list += is_run;
        const int last = is_run ? parse_number(&list, max) : first;
        if (first < 0 || last < first) return false;
        for (int i = first; i <= last; i++) add(out, i);
        if (!*list) return true;
        if (*list++ != ',') return false;
    }
}

// --- the system's calls --------------------------------------------------------------------------

// Preferred, so that a full node is no error; pages that others map, too, stay where they are.
static bool place_pages(void *arg, void *at, size_t bytes, uint64_t nodes) {
    enum { PREFERRED = 1, INTERLEAVE = 3, MOVE = 1 << 1 }; // of linux/mempolicy.h
    (void)arg;
#ifdef SYS_mbind
    const unsigned long mask[2] = {(unsigned long)nodes, 0};
    const long mode = nodes & (nodes - 1) ? INTERLEAVE : PREFERRED;
    return syscall(SYS_mbind, at, bytes, mode, mask, (unsigned long)QN_NUMA_NODES + 1,
                   (unsigned long)MOVE) == 0;
#else
    (void)at, (void)bytes, (void)nodes;
    return false;
#endif
}

static bool pin_thread(void *arg, const qn_cpus *cpus) {
    (void)arg;
    return sched_setaffinity(0, sizeof cpus->bits, (const cpu_set_t *)(const void *)cpus->bits) ==
           0;
}

static int this_cpu(void *arg) {
    (void)arg;
    return sched_getcpu();
}

const qn_numa_calls qn_numa_system = {.place = place_pages, .pin = pin_thread, .cpu = this_cpu};

// --- the topology --------------------------------------------------------------------------------

static bool read_line(char line[LINE], const char *folder, const char *name) {
    char path[PATH_MAX];
    const int n = snprintf(path, sizeof path, "%s/%s", folder, name);
    return n > 0 && n < (int)sizeof path && qn_lines_first(line, LINE, path) &&
           strlen(line) < LINE - 1; // else it was cut
}

static bool read_of_node(char line[LINE], const char *folder, int node, const char *what) {
    char name[64];
    snprintf(name, sizeof name, "node%d/%s", node, what);
    return read_line(line, folder, name);
}

// The nearest node with memory, by the distances from `node` to all that are there; of equal ones
// the first.
static int find_memory(const char *folder, int node, const qn_cpus *there, const qn_cpus *memory) {
    char line[LINE];
    int nearest = -1;
    long least = LONG_MAX;
    if (qn_cpus_has(memory, node)) return node;
    char *at = read_of_node(line, folder, node, "distance") ? line : NULL;
    for (int i = 0; i < QN_NUMA_NODES; i++) {
        if (!qn_cpus_has(there, i)) continue;
        char *rest = at;
        long distance = at ? strtol(at, &rest, 10) : 0;
        if (rest == at) distance = LONG_MAX - 1; // no number: as far as can be
        at = rest;
        if (!qn_cpus_has(memory, i) || distance >= least) continue;
        least = distance;
        nearest = i;
    }
    return nearest;
}

// Adds a node that has CPUs. False: they cannot be read, or are another node's too, or not all of
// them are ours.
static bool add_node(qn_numa *numa, qn_cpus *seen, const char *folder, int node, int memory,
                     const qn_cpus *allowed) {
    char line[LINE];
    qn_numa_node *to = &numa->nodes[numa->n_nodes];
    *to = (qn_numa_node){.memory = memory};
    if (!read_of_node(line, folder, node, "cpulist") ||
        !qn_cpus_parse(&to->cpus, line, QN_NUMA_CPUS - 1))
        return false;
    for (size_t i = 0; i < QN_NUMA_CPUS / 64; i++) {
        if (to->cpus.bits[i] & (seen->bits[i] | ~allowed->bits[i])) return false;
        seen->bits[i] |= to->cpus.bits[i];
    }
    to->n_cpus = qn_cpus_count(&to->cpus);
    numa->n_cpus += to->n_cpus;
    numa->n_nodes += to->n_cpus > 0;
    return memory >= 0 || to->n_cpus == 0;
}

static bool read_nodes(qn_numa *out, const char *folder, const qn_cpus *allowed) {
    char line[LINE];
    qn_cpus there, memory, seen = {0};
    if (!read_line(line, folder, "online") || !qn_cpus_parse(&there, line, QN_NUMA_NODES - 1))
        return false;
    // Old kernels do not say which nodes have memory: all of them.
    if (!read_line(line, folder, "has_memory"))
        memory = there;
    else if (!qn_cpus_parse(&memory, line, QN_NUMA_NODES - 1))
        return false;
    for (int i = 0; i < QN_NUMA_NODES; i++) {
        if (qn_cpus_has(&there, i) &&
            !add_node(out, &seen, folder, i, find_memory(folder, i, &there, &memory), allowed))
            return false;
    }
    return out->n_nodes > 1;
}

void qn_numa_read(qn_numa *out, const char *folder, const qn_cpus *allowed) {
    *out = (qn_numa){.calls = qn_numa_system};
    if (!read_nodes(out, folder, allowed)) out->n_nodes = 0;
}

int qn_numa_node_of(const qn_numa *numa, int i, int n) {
    // The CPU in the middle of the thread's part of all CPUs.
    const int64_t at = (2 * (int64_t)i + 1) * numa->n_cpus / (2 * (int64_t)n);
    int64_t end = 0;
    for (int k = 0; k < numa->n_nodes; k++) {
        end += numa->nodes[k].n_cpus;
        if (at < end) return k;
    }
    return 0;
}
