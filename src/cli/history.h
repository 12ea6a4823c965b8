// What was typed in earlier conversations, in a file of the user's.
#ifndef QN_CLI_HISTORY_H
#define QN_CLI_HISTORY_H

#include "core/err.h"

typedef struct qn_history qn_history;

enum { QN_MOST_REMEMBERED = 1000 };

// $XDG_STATE_HOME/quern/history (~/.local/state/quern/history), for its owner alone. *out is NULL
// where there is no place for it. Of a longer file the last QN_MOST_REMEMBERED
// entries count, and the others are removed from time to time. An error costs the history and
// nothing else.
QN_MUST_CHECK qn_status qn_history_open(qn_history **out, qn_err *err);
void qn_history_close(qn_history *history); // NULL is fine
// The i-th entry, the oldest first; NULL after the last.
const char *qn_history_entry(const qn_history *history, size_t i);
// Appends one to the file, unless it is the same as the one before, or very long.
QN_MUST_CHECK qn_status qn_history_add(qn_history *history, const char *text, qn_err *err);

#endif
