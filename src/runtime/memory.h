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
// Whether weights, and a session with this context that does not shrink, fit in the free memory of
// every device that has its own; no weights are loaded yet.
QN_MUST_CHECK qn_status qn_memory_fits_cards(bool *fits, const qn_engine *engine, int64_t context,
                                             qn_err *err);
// Fails where a session cannot fit; with opts->shrink the context is halved until it fits instead.
// Where opts->kept is 0, it gets the KV cache of one context and four recurrent states, or what is
// left of memory. opts->sessions is not 0 here; `outs`: rows of a step that have logits.
QN_MUST_CHECK qn_status qn_memory_fit(qn_session_opts *opts, int64_t outs, const qn_engine *engine,
                                      qn_err *err);

// The same for a runner on devices with memory of their own, of which it takes all that it may ever
// use at once: it keeps less of earlier prompts, and has room for fewer positions, until it fits.
typedef struct qn_runner_opts qn_runner_opts; // runner.h
QN_MUST_CHECK qn_status qn_memory_fit_cards(qn_runner_opts *opts, qn_err *err);

#endif
