// The plug-in that speaks MPI.
#ifndef QN_RANKS_MPI_PLUGIN_H
#define QN_RANKS_MPI_PLUGIN_H

#include "core/err.h"
#include "ranks/ranks_api.h"

// Opens the library; MPI itself is started by api->open. *out lives as long as the process.
QN_MUST_CHECK qn_status qn_mpi_api_find(const qn_ranks_api **out, qn_err *err);

#endif
