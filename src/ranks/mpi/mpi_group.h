// A place among the ranks of an MPI job, as the files of this folder know it. They are the plug-in
// libquern-mpi.so, apart from the library.
#ifndef QN_RANKS_MPI_MPI_GROUP_H
#define QN_RANKS_MPI_MPI_GROUP_H

#include "ranks/ranks_api.h"

#include <mpi.h>
#include <sys/types.h>

// Errors besides MPI's own, which are above 0.
#define QN_MPI_OWN_ERRORS(X)                                                                       \
    X(QN_MPI_NO_MEMORY, "out of memory")                                                           \
    X(QN_MPI_NO_SLOT, "too many operations are open")                                              \
    X(QN_MPI_SHORT, "a message is shorter than what it is received in")                            \
    X(QN_MPI_NO_THREADS, "this MPI is for processes of one thread")                                \
    X(QN_MPI_NO_TAGS, "this MPI has too few tags")                                                 \
    X(QN_MPI_ENDED, "MPI was ended in this process, or has failed in it")

enum {
    QN_MPI_LOWEST = -1000,
#define QN_MPI_ENUM(name, text) name,
    QN_MPI_OWN_ERRORS(QN_MPI_ENUM)
#undef QN_MPI_ENUM
        QN_MPI_HIGHEST
};

typedef struct qn_mpi_operation {
    MPI_Request request;
    struct qn_mpi_operation *next; // that is free
    int bytes;                     // of a receive; -1: it is none
    bool is_open;
} qn_mpi_operation;

struct qn_ranks_group {
    MPI_Comm comm;
    qn_ranks_place place;
    pid_t *pids;             // (n) 0: another machine's, or our own
    int *watches;            // (n) files that can be read when that process has ended; -1: none
    int *counts, *starts;    // (n) of the all_gather under way
    qn_mpi_operation *slots; // (n_slots)
    qn_mpi_operation *free;
    int n_slots;
};

// Calls what waits for others and cannot be stopped: in a thread, which is left behind with the
// group where it takes longer (QN_RANKS_LATE). Else its error.
int qn_mpi_try(int (*join)(qn_ranks_group *group), qn_ranks_group *group, int64_t limit_ms);

// Starts MPI where it is not, once in a process. 0, or an error.
int qn_mpi_start(void);
// What is open ends MPI at the end of the process, when all is closed and nothing has failed: then
// nobody waits for anybody.
void qn_mpi_note_open(void);
void qn_mpi_note_closed(bool is_failed);

// Learns which processes are on this machine, where their end can be seen, and which of them may
// run on cores of this one.
int qn_mpi_meet(qn_ranks_group *group);
bool qn_mpi_has_ended(qn_ranks_group *group, int rank);
void qn_mpi_stop_watching(qn_ranks_group *group);

#endif
