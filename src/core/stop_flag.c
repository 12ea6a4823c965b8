#include "core/stop_flag.h"

#include "core/mem.h"

#include <stdatomic.h>

// It orders nothing but itself: a reader of it only stops.
struct qn_stop_flag {
    atomic_bool is_set;
};

qn_status qn_stop_flag_create(qn_stop_flag **out, qn_err *err) {
    QN_NEED(out, err);
    qn_stop_flag *flag = qn_alloc(1, sizeof *flag);
    if (!flag) return QN_NOMEM(err, "a stop flag");
    atomic_init(&flag->is_set, false);
    *out = flag;
    return QN_OK;
}

void qn_stop_flag_destroy(qn_stop_flag *flag) { qn_free(flag); }

void qn_stop_flag_set(qn_stop_flag *flag) {
    atomic_store_explicit(&flag->is_set, true, memory_order_relaxed);
}

void qn_stop_flag_clear(qn_stop_flag *flag) {
    atomic_store_explicit(&flag->is_set, false, memory_order_relaxed);
}

bool qn_stop_flag_is_set(const qn_stop_flag *flag) {
    return atomic_load_explicit(&flag->is_set, memory_order_relaxed);
}
