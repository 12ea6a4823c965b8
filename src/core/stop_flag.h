// Stop flags, as the library reads them.
#ifndef QN_CORE_STOP_FLAG_H
#define QN_CORE_STOP_FLAG_H

#include "core/err.h"

// NULL: never.
static inline bool qn_stop_is_wanted(const qn_stop_flag *flag) {
    return flag && qn_stop_flag_is_set(flag);
}

#endif
