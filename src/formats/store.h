// Memory of a source: packed, released at once, under a budget.
//
// A hostile file can be dense (a key in 16 bytes, a string in 8), so what a file may cost is not
// left to the shape of our structs: the budget is set from the size of the files, and a file that
// would need more is refused by name of the limit. Not thread-safe.
#ifndef QN_FORMATS_STORE_H
#define QN_FORMATS_STORE_H

#include "core/err.h"
#include "core/str.h"

typedef struct qn_store_block qn_store_block;

// Caller storage; `{0}` is a valid empty store without any budget.
typedef struct qn_store {
    qn_store_block *blocks;
    char *at; // free bytes of the newest small block
    size_t left;
    size_t used, max; // bytes taken now, bytes allowed
} qn_store;

// Allows 4 x `file_bytes` more (and 1 MiB in all).
void qn_store_allow(qn_store *store, int64_t file_bytes);
// Counts memory that lives elsewhere (text of a header, a table that grows) until it is given back.
QN_MUST_CHECK qn_status qn_store_charge(qn_store *store, size_t n, size_t size, const char *what,
                                        qn_err *err);
void qn_store_discharge(qn_store *store, size_t bytes);
// `n` zeroed elements of `size` bytes, aligned to `size` if that is 1, to 8 otherwise.
QN_MUST_CHECK qn_status qn_store_alloc(void **out, qn_store *store, size_t n, size_t size,
                                       const char *what, qn_err *err);
void qn_store_deinit(qn_store *store);

#endif
