// What the process gives up once its models are open and its address is taken: a request that finds
// a hole in the server finds little behind it.
#ifndef QN_SERVER_SANDBOX_H
#define QN_SERVER_SANDBOX_H

#include "core/err.h"

// What this server still has a use for.
typedef struct qn_sandbox_opts {
    bool calls_out; // new connections, to fetch images
    bool has_ranks; // the same to other ranks, and the memory of those on this machine (MPI)
} qn_sandbox_opts;

// For all threads, and for good: no new privileges, and no system calls that a server has no use
// for (they fail with EPERM): other programs, other processes, new sockets, the kernel's settings.
// Threads and files stay as they were, so that further models can be opened. QN_UNSUPPORTED: the
// kernel has no filters of system calls.
QN_MUST_CHECK qn_status qn_sandbox_enter(const qn_sandbox_opts *opts, qn_err *err);

#endif
