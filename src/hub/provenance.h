// Where a model of ours came from.
#ifndef QN_HUB_PROVENANCE_H
#define QN_HUB_PROVENANCE_H

#include "hub/stock.h"

// Caller storage, owned; NULL: not known.
typedef struct qn_provenance {
    char *from;   // the address of its first file
    char *sha256; // of that, as the hub said it, and it was
} qn_provenance;

QN_MUST_CHECK qn_status qn_provenance_read(qn_provenance *out, const qn_stocked *model,
                                           const qn_places *places, qn_err *err);
void qn_provenance_deinit(qn_provenance *origin);

// Calls `fn` with the ledger of each folder that may have a row of a file of ours, and the file's
// name there: the folder of its repository is two names below ours, that of a host one. Stops at
// the first failure.
typedef struct qn_ledger qn_ledger;
typedef qn_status qn_ledger_fn(void *arg, qn_ledger *ledger, const char *file, qn_err *err);
QN_MUST_CHECK qn_status qn_ledgers_visit(const char *path, const qn_places *places,
                                         qn_ledger_fn *fn, void *arg, qn_err *err);

#endif
