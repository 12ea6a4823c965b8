// The weights of a device, each in the layout that its plan names.
//
// Without a cache folder each weight is read piece by piece, packed and dropped again, so that
// memory holds the packed weights and a few MiB. With one, the packed weights are a file there
// (weights_file.h), which is mapped; what is missing or damaged in it is packed from the source,
// and the file is written again. Whatever the file holds, the weights are those of the source.
// Of a weight that the plan has a share of, only that is read, and no file is kept: the folder's
// are of whole weights. Constant once created; share freely.
#ifndef QN_RUNTIME_WEIGHTS_H
#define QN_RUNTIME_WEIGHTS_H

#include "backends/device.h"
#include "models/model_weights.h"
#include "runtime/cache_folder.h"
#include "runtime/residency.h"

typedef struct qn_packs qn_packs;

typedef struct qn_packs_opts {
    const qn_weights *weights; // all of the model; must outlive the packs
    const qn_source *source;
    const qn_plan *plan;     // whose weights are loaded; must outlive the packs
    const qn_packs *besides; // weights that are there are left out; NULL: none
    bool is_head;            // of the prediction head; others leave its weights to it
    qn_device *device;       // that the plan is for; must outlive the packs
    const qn_disk *disk;     // NULL: none; warns of what cannot be used or written
    // Keeps some of the experts: their weights are not loaded here but given to it from the file of
    // the cache folder, which must be there or be written; or, where the device has memory of its
    // own, from this process's memory. NULL: all weights are loaded.
    qn_residency *residency;
    qn_progress_fn *progress; // bytes as packed; NULL: none
    void *progress_arg;
} qn_packs_opts;

QN_MUST_CHECK qn_status qn_packs_create(qn_packs **out, const qn_packs_opts *opts, qn_err *err);
void qn_packs_destroy(qn_packs *packs);

// Where the weight of a name lies on the device; NULL if the plan has none of that name.
const void *qn_packs_find(const qn_packs *packs, const char *name);

// Bytes of all weights that lie in memory, pools of experts included; those of them that were found
// ready in the cache folder.
int64_t qn_packs_bytes(const qn_packs *packs);
int64_t qn_packs_cached_bytes(const qn_packs *packs);

#endif
