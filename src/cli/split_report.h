// How a model is shared by several ranks, as text for people: the plan of --dry-run.
#ifndef QN_CLI_SPLIT_REPORT_H
#define QN_CLI_SPLIT_REPORT_H

#include "core/buf.h"

// Appends what the JSON of qn_engine_split says: both ways to share the model, the chosen one
// first.
QN_MUST_CHECK qn_status qn_split_report(qn_buf *to, const char *json, qn_err *err);
// The same of an engine, to standard output: as it is, or as text.
QN_MUST_CHECK qn_status qn_split_print(const qn_engine *engine, bool as_json, qn_err *err);

#endif
