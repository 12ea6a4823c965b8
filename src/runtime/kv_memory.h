// The memory that sequences keep between steps: pages of the KV cache, and slots of recurrent
// state. The state (state.h) decides what lies where and who shares it, and never looks at the
// bytes.
//
// Memory of the layout's devices, taken at creation. One thread at a time.
#ifndef QN_RUNTIME_KV_MEMORY_H
#define QN_RUNTIME_KV_MEMORY_H

#include "backends/device.h"
#include "runtime/state.h"

// Where the device has no room: QN_LIMIT; fewer of them may do.
QN_MUST_CHECK qn_status qn_kv_memory_create(qn_kv_memory **out, const qn_state_layout *layout,
                                            const int64_t *n_pages, // (groups)
                                            int64_t n_slots, qn_err *err);
void qn_kv_memory_destroy(qn_kv_memory *memory);
// Views for the kernels, by number. Borrowed; they never move.
const qn_cache_view *qn_kv_cache(const qn_kv_memory *memory, size_t i);
const qn_slots_view *qn_kv_slots(const qn_kv_memory *memory, size_t i);
// Rows first ... first + n - 1 of a page of cache i, to or from `rows` (backend.h: qn_kv_row_bytes
// each).
QN_MUST_CHECK qn_status qn_kv_get_rows(unsigned char *rows, const qn_kv_memory *memory, size_t i,
                                       int32_t page, int64_t first, int64_t n, qn_err *err);
QN_MUST_CHECK qn_status qn_kv_set_rows(const unsigned char *rows, qn_kv_memory *memory, size_t i,
                                       int32_t page, int64_t first, int64_t n, qn_err *err);
// State i of a slot, after `n_log` rows of its log; `room` holds as many rows. And back, where the
// log is empty afterwards.
QN_MUST_CHECK qn_status qn_kv_get_state(float *state, const qn_kv_memory *memory, size_t i,
                                        int32_t slot, int64_t n_log, float *room, qn_err *err);
QN_MUST_CHECK qn_status qn_kv_set_state(const float *state, qn_kv_memory *memory, size_t i,
                                        int32_t slot, qn_err *err);
// Whether it went well is asked for after the step.
void qn_kv_copy(qn_kv_memory *memory, const qn_copy *copies, int64_t n);

#endif
