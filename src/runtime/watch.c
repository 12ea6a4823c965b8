#include "runtime/watch.h"

// Pieces of a step are 5 to 20 microseconds, some a multiple of that; the function may make system
// calls, which take 1 or 2.
enum { ASKED = 128 };

void qn_watch_init(qn_watch *watch, qn_progress_fn *progress, void *arg, int64_t total) {
    *watch = (qn_watch){.progress = progress, .arg = arg, .total = total, .owner = pthread_self()};
    atomic_init(&watch->is_over, false);
}

bool qn_watch_tell(qn_watch *watch, int64_t done) {
    watch->done = done;
    if (atomic_load_explicit(&watch->is_over, memory_order_relaxed)) return false;
    if (!watch->progress || watch->progress(watch->arg, done, watch->total)) return true;
    atomic_store_explicit(&watch->is_over, true, memory_order_relaxed);
    return false;
}

bool qn_watch_goes_on(void *arg) {
    qn_watch *watch = arg;
    if (atomic_load_explicit(&watch->is_over, memory_order_relaxed)) return false;
    if (!pthread_equal(pthread_self(), watch->owner) || ++watch->asked % ASKED) return true;
    return qn_watch_tell(watch, watch->done);
}
