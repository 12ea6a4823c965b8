// A plan for people: its text, and where its buffers lie for given sizes.
#ifndef QN_RUNTIME_SHOW_H
#define QN_RUNTIME_SHOW_H

#include "core/buf.h"
#include "runtime/engine.h"

// The plan of prefill (or of decode, for one row), as text or as a picture of its memory: calls
// from left to right, addresses from bottom to top. Without rows in `opts`: the text alone,
// symbolic.
QN_MUST_CHECK qn_status qn_show_plan(qn_buf *to, const qn_engine *engine, const qn_graph_opts *opts,
                                     qn_err *err);

#endif
