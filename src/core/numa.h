// Nodes of memory: which CPUs are near which memory, where threads run and pages lie.
//
// On machines with one node, or where this process does not have all CPUs, there is nothing to
// decide: one node, and no call of the system is made.
#ifndef QN_CORE_NUMA_H
#define QN_CORE_NUMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { QN_NUMA_NODES = 64, QN_NUMA_CPUS = 4096 };

// CPUs as the system numbers them.
typedef struct qn_cpus {
    uint64_t bits[QN_NUMA_CPUS / 64];
} qn_cpus;

bool qn_cpus_has(const qn_cpus *cpus, int i); // false for any number that is no CPU
int qn_cpus_count(const qn_cpus *cpus);
// CPUs that this process may use. False: not known.
bool qn_cpus_allowed(qn_cpus *out);
// CPUs, or nodes, of a list as the system writes it: "0-3,8". False: it is no such list, or has
// numbers beyond `max`.
bool qn_cpus_parse(qn_cpus *out, const char *list, int max);

// What is asked of the system; false: it declines, which changes no result.
typedef struct qn_numa_calls {
    void *arg;
    // Pages [at, at + bytes) on these nodes: on the only one, or spread over several.
    bool (*place)(void *arg, void *at, size_t bytes, uint64_t nodes);
    // The calling thread on these CPUs.
    bool (*pin)(void *arg, const qn_cpus *cpus);
    // The CPU of the calling thread; -1: not known.
    int (*cpu)(void *arg);
} qn_numa_calls;

extern const qn_numa_calls qn_numa_system;

typedef struct qn_numa_node {
    int memory; // the node whose memory is nearest: itself, if it has some
    qn_cpus cpus;
    int n_cpus;
} qn_numa_node;

// Nodes that have CPUs, in the order of their numbers.
typedef struct qn_numa {
    int n_nodes; // 0: there is nothing to decide
    int n_cpus;
    qn_numa_node nodes[QN_NUMA_NODES];
    qn_numa_calls calls;
} qn_numa;

// Reads a folder like /sys/devices/system/node. n_nodes is 0 where there is one node with CPUs, where
// some CPU of a node is not allowed, and where the folder cannot be read or contradicts itself.
void qn_numa_read(qn_numa *out, const char *folder, const qn_cpus *allowed);

// The node of thread i of n: as many for each as it has of the CPUs, one node's after the other's.
int qn_numa_node_of(const qn_numa *numa, int i, int n);

#endif
