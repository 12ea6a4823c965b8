#include "ranks/mpi_plugin.h"

#include "core/debug.h"
#include "core/plugin.h"

#include <string.h>

#define LIBRARY "libquern-mpi.so"

qn_status qn_mpi_api_find(const qn_ranks_api **out, qn_err *err) {
    qn_switches switches;
    void *symbol;
    qn_ranks_api_fn *get;
    QN_TRY(qn_switches_read(&switches, err));
    const qn_plugin plugin = {.whom = "ranks",
                              .library = LIBRARY,
                              .path = switches.mpi_library,
                              .symbol = QN_RANKS_SYMBOL,
                              .missing = "it is built where MPI is found (docs/mpi.md)",
                              .broken = "it needs the MPI that it was built with (docs/mpi.md)"};
    QN_TRY(qn_plugin_open(&symbol, &plugin, err));
    memcpy(&get, &symbol, sizeof get);
    const qn_ranks_api *api = get();
    if (!api || api->version != QN_RANKS_API_VERSION)
        return QN_FAIL(err, UNSUPPORTED, "ranks: %s has version %d, this program wants %d", LIBRARY,
                       api ? api->version : 0, QN_RANKS_API_VERSION);
    *out = api;
    return QN_OK;
}
