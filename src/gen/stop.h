// Stop strings: text is shown only once it can no longer be the beginning of one.
//
// The answer ends before the stop string that is complete first; of several that are complete at
// the same byte, the longest counts.
#ifndef QN_GEN_STOP_H
#define QN_GEN_STOP_H

#include "core/err.h"

enum { QN_MAX_STOPS = 4096, QN_MAX_STOP_BYTES = 1 << 20 };

typedef struct qn_stops qn_stops; // constant; threads may share it

// n may be 0: then nothing is held back. The strings are copied.
QN_MUST_CHECK qn_status qn_stops_create(qn_stops **out, const char *const *texts, size_t n,
                                        qn_err *err);
void qn_stops_destroy(qn_stops *stops);

// The state of one answer; start from {0}. Sizes are bytes since the answer's beginning.
typedef struct qn_stop_state {
    uint32_t node;
    size_t size; // bytes that were fed
    size_t safe; // bytes that may be shown: never fewer than before. If is_met, all of the answer.
    bool is_met;
    size_t which; // if is_met: number of the stop string
} qn_stop_state;

// More of the answer. After a stop was met nothing changes. When the answer ends otherwise, all
// `size` bytes may be shown.
void qn_stop_feed(qn_stop_state *state, const qn_stops *stops, const char *text, size_t size);

#endif
