// A line for the caller's log callback (quern.h).
#ifndef QN_CORE_LOG_H
#define QN_CORE_LOG_H

#include "core/err.h"

// Formats the line, cut at 511 bytes, and hands it to `log`; nothing if there is none.
QN_PRINTF(4, 5)
void qn_log(qn_log_fn *log, void *arg, qn_log_level level, const char *fmt, ...);

#endif
