// Starting and ending MPI.
#define _GNU_SOURCE // dladdr
#include "ranks/mpi/mpi_group.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

// MPI is one for a process, and so is this: it starts once and ends once, whoever opens groups in
// between. All of it on one thread at a time, like every call of a group.
static struct {
    int n_open;
    bool has_failed;
} job;

// After a failure others may be gone, and ending MPI would wait for them.
static void end(void) {
    int is_over = 0;
    MPI_Finalized(&is_over);
    if (!is_over && !job.has_failed && job.n_open == 0) MPI_Finalize();
}

// Open MPI's own plug-ins look for its functions among those of the whole process, where they are
// not if the program has opened us, and with us MPI, for itself.
static void show_to_all(void) {
    Dl_info mpi;
    if (dladdr((const void *)(uintptr_t)MPI_Init_thread, &mpi) && mpi.dli_fname)
        (void)dlopen(mpi.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
}

// Open MPI 4 gives its advice, such as that a peer hung up, to mpirun, and waits until that has
// taken it. An mpirun that is ending the job takes nothing more: the rank would wait in there, and
// not say what happened. Like `mpirun -quiet`, but after MPI has begun: until then what it says is
// of use.
static void keep_quiet(void) {
    bool *quiet = dlsym(RTLD_DEFAULT, "orte_execute_quiet");
    if (quiet) *quiet = true;
}

int qn_mpi_start(void) {
    int is_begun = 0, is_over = 0, level = MPI_THREAD_SINGLE;
    MPI_Initialized(&is_begun);
    MPI_Finalized(&is_over);
    if (is_over || job.has_failed) return QN_MPI_ENDED;
    if (is_begun) {
        MPI_Query_thread(&level);
    } else {
        show_to_all();
        const int error = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
        if (error) return error;
        keep_quiet();
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        if (atexit(end)) return QN_MPI_NO_MEMORY;
    }
    return level < MPI_THREAD_SERIALIZED ? QN_MPI_NO_THREADS : 0;
}

void qn_mpi_note_open(void) { job.n_open++; }

void qn_mpi_note_closed(bool is_failed) {
    job.n_open--;
    job.has_failed |= is_failed;
}
