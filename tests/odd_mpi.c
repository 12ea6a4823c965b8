// Libraries for MPI that cannot be used, one for each ODD (test_ranks_joining.c).
#include "ranks/ranks_api.h"

enum { OTHER_VERSION = 1, NO_SYMBOL, NO_TABLE };

#if ODD == 2
#define qn_ranks_api_get another_name
#endif
qn_ranks_api_fn qn_ranks_api_get;
__attribute__((visibility("default"))) const qn_ranks_api *qn_ranks_api_get(void) {
    static const qn_ranks_api api = {.version = QN_RANKS_API_VERSION + (ODD == OTHER_VERSION),
                                     .name = "odd"};
    return ODD == NO_TABLE ? NULL : &api;
}
