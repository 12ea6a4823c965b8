// What a saved state belongs to: a model, and the settings that its numbers depend on.
#ifndef QN_RUNTIME_STATE_KEY_H
#define QN_RUNTIME_STATE_KEY_H

#include "runtime/engine.h"

enum { QN_STATE_NAME = 64, QN_STATE_ROTATED = 1 << 16 };

// As it is written: 8-byte words and a text, without padding.
typedef struct qn_state_key {
    uint64_t model;     // what tells one model from another (identity.h)
    uint64_t adapters;  // the same of the set of adapters; 0: none
    int64_t adapter;    // number of the set, from 1 on; 0: none
    int64_t cache_type; // GGUF's number of its type; plus QN_STATE_ROTATED where it is rotated
    int64_t numerics, mtp;
    char name[QN_STATE_NAME]; // of the model, for messages; zeros after it
} qn_state_key;

// `adapter` is the index of a set; -1: none.
QN_MUST_CHECK qn_status qn_state_key_of(qn_state_key *out, const qn_engine *engine, int32_t adapter,
                                        qn_err *err);
// Fails, naming both values, where a state with that key cannot go on in this engine. *adapter: the
// index of its set.
QN_MUST_CHECK qn_status qn_state_key_check(int32_t *adapter, const qn_state_key *key,
                                           const qn_engine *engine, qn_err *err);

#endif
