#include "runtime/best_lists.h"

#include "core/mem.h"

#include <math.h>

void qn_best_clear(float *list, int64_t max) {
    list[0] = INFINITY;
    list[1] = -1;
    for (int64_t k = 0; k < max; k++) {
        list[2 + k] = -INFINITY;
        list[2 + max + k] = -1;
    }
}

// For a logit that is above the last of the list. Among equals it is the last.
static void insert(float *logits, float *ids, int64_t top, float logit, float id) {
    int64_t at = top - 1;
    for (; at > 0 && logit > logits[at - 1]; at--) {
        logits[at] = logits[at - 1];
        ids[at] = ids[at - 1];
    }
    logits[at] = logit;
    ids[at] = id;
}

void qn_best_add(float *list, const float *part, int64_t max, int64_t top, int64_t first) {
    const int64_t wanted = top > 0 ? qn_min(top, max) : max;
    const float *from = part + 2, *from_ids = from + max;
    float *logits = list + 2, *ids = logits + max;
    if (list[1] < 0 && (part[1] >= 0 || part[0] < list[0])) {
        list[0] = part[0];
        list[1] = part[1] < 0 ? -1 : part[1] + (float)first;
    }
    for (int64_t k = 0; k < wanted && from_ids[k] >= 0 && from[k] > logits[wanted - 1]; k++)
        insert(logits, ids, wanted, from[k], from_ids[k] + (float)first);
}
