// The rows of a sequence as bytes, the same on every device and however they were computed:
//
//   1. each cache in the order of the graph: the rows of the pages that a sequence of this length
//      holds (all, or those from the page on in which its window begins), each qn_kv_row_bytes
//   2. each recurrent state in the order of the graph: floats, with the rows of its log applied
//
// Copies that wait (qn_state_copies) must be done before.
#ifndef QN_RUNTIME_STATE_BYTES_H
#define QN_RUNTIME_STATE_BYTES_H

#include "runtime/state.h"

// Gets the next bytes, or gives them.
typedef qn_status qn_bytes_fn(void *arg, void *bytes, size_t n, qn_err *err);

// Bytes of a sequence of `length` rows; false: more than 63 bits hold.
QN_MUST_CHECK bool qn_seq_measure(int64_t *out, const qn_state *state, int64_t length);
QN_MUST_CHECK qn_status qn_seq_save(const qn_seq *seq, qn_bytes_fn *write, void *arg, qn_err *err);
// Fills a sequence that was placed (qn_seq_place). After a failure its rows are not usable.
QN_MUST_CHECK qn_status qn_seq_fill_rows(qn_seq *seq, qn_bytes_fn *read, void *arg, qn_err *err);

// --- looking at it ---

// A cache or a recurrent state of a layer.
typedef struct qn_kept_info {
    const char *name;                      // borrowed: of the graph's input ("cache.3")
    int64_t layer;                         // the number that the name ends in; -1: none
    int64_t heads, k_size, v_size;         // of a cache
    int64_t first;                         // of a cache: the first position that is held
    int64_t state_heads, state_k, state_v; // of a state: (heads, k, v), or (kept, channels) with
                                           // one head
} qn_kept_info;
size_t qn_seq_n_caches(const qn_seq *seq);
size_t qn_seq_n_states(const qn_seq *seq);
qn_kept_info qn_seq_cache_info(const qn_seq *seq, size_t i);
qn_kept_info qn_seq_state_info(const qn_seq *seq, size_t i);

// Keys, or values, of one head as floats, of positions first ... first + n - 1, which are held.
typedef struct qn_kv_range {
    bool is_values;
    int64_t head, first, n;
} qn_kv_range;
QN_MUST_CHECK qn_status qn_seq_read_kv(float *to, const qn_seq *seq, size_t cache,
                                       const qn_kv_range *range, qn_err *err);
QN_MUST_CHECK qn_status qn_seq_read_state(float *to, const qn_seq *seq, size_t i, qn_err *err);

#endif
