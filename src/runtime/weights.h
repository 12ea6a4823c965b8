// The weights of the fast path: packed into tiles where matmuls read them, float32 rows elsewhere.
//
// Without a cache folder each weight is read piece by piece, packed and forgotten again, so that
// memory holds the packed weights and a few MiB. With one, the packed weights are a file there
// (weights_file.h), which is mapped; what is missing or damaged in it is packed from the source, and
// the file is written anew. Whatever the file holds, the weights are those of the source. Constant
// once created; share freely.
#ifndef QN_RUNTIME_PACKS_H
#define QN_RUNTIME_PACKS_H

#include "backends/pack.h"
#include "core/pool.h"
#include "ir/plan.h"
#include "models/model.h"
#include "runtime/cache_folder.h"

typedef struct qn_packs qn_packs;

typedef struct qn_packs_opts {
    const qn_model *model; // must outlive the packs
    const qn_source *source;
    const qn_plan *plan; // its params are loaded, packed where a matmul or an embedding reads them
    qn_pool *pool;       // NULL: the calling thread alone
    const qn_disk *disk; // NULL: none; hears what cannot be used or written
    qn_progress_fn *progress; // bytes as packed; NULL: none
    void *progress_arg;
} qn_packs_opts;

QN_MUST_CHECK qn_status qn_packs_create(qn_packs **out, const qn_packs_opts *opts, qn_err *err);
void qn_packs_destroy(qn_packs *packs);

// What a plan's weight is in tiles, without its numbers; *is_tiled is false for what stays in rows.
QN_MUST_CHECK qn_status qn_packs_describe(qn_packed *out, bool *is_tiled, const qn_plan_leaf *leaf,
                                          qn_err *err);

// The weight of a name in tiles, or as float32 rows; NULL if the plan does not want it so. Borrowed.
const qn_packed *qn_packs_packed(const qn_packs *packs, const char *name);
const float *qn_packs_rows(const qn_packs *packs, const char *name);

// Bytes of all weights; those of them that were found ready in the cache folder.
int64_t qn_packs_bytes(const qn_packs *packs);
int64_t qn_packs_cached_bytes(const qn_packs *packs);

#endif
