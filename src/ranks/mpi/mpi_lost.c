// Ranks on this machine, whose end the system tells. That of others MPI may tell, or nobody: then a
// wait reaches its limit.
#define _GNU_SOURCE // syscall, CPU_AND
#include "ranks/mpi/mpi_group.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

// Processes with equal names see the same numbers of processes: those of one start of one machine,
// in one container. "" if that is not known.
typedef struct home {
    char name[128];
    pid_t pid;
    cpu_set_t cores; // that it may run on; none: not known
} home;

static size_t read_start(char *to, size_t size) {
    const int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    const ssize_t n = read(file, to, size);
    close(file);
    return n > 0 ? (size_t)n : 0;
}

static void find_home(home *out) {
    *out = (home){.pid = getpid()};
    if (sched_getaffinity(0, sizeof out->cores, &out->cores)) CPU_ZERO(&out->cores);
    const size_t n = read_start(out->name, sizeof out->name / 2);
    if (n && readlink("/proc/self/ns/pid", out->name + n, sizeof out->name / 2 - 1) > 0) return;
    memset(out->name, 0, sizeof out->name);
}

// Each sends to each, so that all connections are there when a rank has to tell that it fails.
static int exchange_homes(home *all, const qn_ranks_group *group) {
    const int n = group->place.n_ranks, own = group->place.rank;
    int error = 0;
    find_home(&all[own]);
    for (int i = 1; i < n && !error; i++) {
        const int to = (own + i) % n, from = (own + n - i) % n;
        error = MPI_Sendrecv(&all[own], sizeof *all, MPI_BYTE, to, 0, &all[from], sizeof *all,
                             MPI_BYTE, from, 0, group->comm, MPI_STATUS_IGNORE);
    }
    return error;
}

// A file for the end of a process. It tells of one that nobody has waited for yet, too, and does so
// in a server that has given up the call `kill`. Systems before Linux 5.3 do not have it.
static int watch(pid_t pid) {
#ifdef SYS_pidfd_open
    const long file = syscall(SYS_pidfd_open, pid, 0);
    if (file >= 0) return (int)file;
#endif
    (void)pid;
    return -1;
}

static bool do_share(const home *a, const home *b) {
    cpu_set_t both;
    CPU_AND(&both, &a->cores, &b->cores);
    return CPU_COUNT(&both) > 0;
}

int qn_mpi_meet(qn_ranks_group *group) {
    const int n = group->place.n_ranks, own = group->place.rank;
    home *all = calloc((size_t)n, sizeof *all);
    if (!all) return QN_MPI_NO_MEMORY;
    const int error = exchange_homes(all, group);
    group->place.n_sharing = 1;
    for (int i = 0; i < n && !error; i++) {
        if (i == own || !all[own].name[0]) continue;
        if (memcmp(all[own].name, all[i].name, sizeof all->name) != 0) continue;
        group->place.n_sharing += do_share(&all[own], &all[i]);
        group->pids[i] = all[i].pid;
        group->watches[i] = watch(all[i].pid);
    }
    free(all);
    return error;
}

bool qn_mpi_has_ended(qn_ranks_group *group, int rank) {
    const pid_t pid = group->pids[rank];
    struct pollfd end = {.fd = group->watches[rank], .events = POLLIN};
    if (end.fd >= 0) return poll(&end, 1, 0) > 0;
    return pid && kill(pid, 0) && errno == ESRCH;
}

void qn_mpi_stop_watching(qn_ranks_group *group) {
    for (int i = 0; group->watches && i < group->place.n_ranks; i++) {
        if (group->watches[i] >= 0) close(group->watches[i]);
    }
}
