// Stop flags, as the library reads them.
#ifndef QN_CORE_STOP_FLAG_H
#define QN_CORE_STOP_FLAG_H

#include "core/err.h"

#include <stdatomic.h>

// NULL: never.
static inline bool qn_stop_is_wanted(const qn_stop_flag *flag) {
    return flag && qn_stop_flag_is_set(flag);
}

// How long something that takes long is wanted. Any thread may ask, also at the same time; what was
// once over stays so.
typedef struct qn_until {
    const qn_stop_flag *stop, *also; // NULL: none
    int64_t deadline;                // on `clock`; 0: none
    int64_t (*clock)(void);
    atomic_bool is_over;
} qn_until;

// A function to be asked: whether to go on. `until` may be NULL: always.
static inline bool qn_until_goes_on(void *until) {
    qn_until *u = until;
    if (!u) return true;
    if (atomic_load_explicit(&u->is_over, memory_order_relaxed)) return false;
    if (!qn_stop_is_wanted(u->stop) && !qn_stop_is_wanted(u->also) &&
        (!u->deadline || u->clock() < u->deadline))
        return true;
    atomic_store_explicit(&u->is_over, true, memory_order_relaxed);
    return false;
}

#endif
