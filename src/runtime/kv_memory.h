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
void qn_kv_copy(qn_kv_memory *memory, const qn_copy *copies, int64_t n);

#endif
