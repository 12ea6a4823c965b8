// The memory plan of a session, before anything is taken.
#ifndef QN_RUNTIME_MEMORY_H
#define QN_RUNTIME_MEMORY_H

#include "runtime/engine.h"

// Bytes that an engine and one session with this context and chunk take once all of it is used.
QN_MUST_CHECK qn_status qn_memory_plan(qn_memory *out, const qn_engine *engine, int64_t context,
                                       int64_t chunk, qn_err *err);
// Bytes of the weights as the engine holds them.
QN_MUST_CHECK qn_status qn_memory_weights(int64_t *out, const qn_engine *engine, qn_err *err);

// Fails with the numbers when the weights cannot fit in free memory.
QN_MUST_CHECK qn_status qn_memory_check_weights(const qn_engine *engine, qn_err *err);
// The same for a session; with opts->shrink the context is halved until it fits instead. Where
// opts->kept is 0, it gets the KV cache of one context and four recurrent states, or what is
// left of memory.
QN_MUST_CHECK qn_status qn_memory_fit(qn_session_opts *opts, const qn_engine *engine, qn_err *err);

#endif
