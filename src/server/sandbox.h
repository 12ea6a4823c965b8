// What the process gives up once its models are open and its address is taken: a request that finds
// a hole in the server finds little behind it.
#ifndef QN_SERVER_SANDBOX_H
#define QN_SERVER_SANDBOX_H

#include "core/err.h"

// For all threads, and for good: no new privileges, and no system calls that a server has no use
// for (they fail with EPERM): other programs, other processes, new sockets (unless it `calls_out`,
// to fetch images), the kernel's settings. Threads and files stay as they were, so that further
// models can be opened. QN_UNSUPPORTED: the kernel has no filters of system calls.
QN_MUST_CHECK qn_status qn_sandbox_enter(bool calls_out, qn_err *err);

#endif
