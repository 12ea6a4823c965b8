// What was pulled into a folder, and with which content: .quern-pull.json in it. Where it is lost,
// nothing else is: files are looked at again.
#ifndef QN_HUB_LEDGER_H
#define QN_HUB_LEDGER_H

#include "core/json.h"

// A row: {"size", "mark", "from"}, the mark a SHA-256 or an etag, from an address.
typedef struct qn_ledger {
    char *path;  // owned
    json_t *all; // {"files": {PATH: row}}, owned
} qn_ledger;

// Of a folder; what cannot be read is empty.
QN_MUST_CHECK qn_status qn_ledger_open(qn_ledger *out, const char *folder, qn_err *err);
// NULL: there is none.
const json_t *qn_ledger_find(const qn_ledger *ledger, const char *file);
// Takes the row; NULL: there shall be none. Written at once, beside what other processes have
// written since; rows that were found before are gone.
QN_MUST_CHECK qn_status qn_ledger_set(qn_ledger *ledger, const char *file, json_t *row,
                                      qn_err *err);
void qn_ledger_close(qn_ledger *ledger);

#endif
