// What distinguishes one source from another without reading all of it: the sizes and times of its
// files, its tensor table, and a few bytes of every tensor.
#ifndef QN_RUNTIME_IDENTITY_H
#define QN_RUNTIME_IDENTITY_H

#include "core/pool.h"
#include "formats/source.h"

typedef struct qn_identity {
    int64_t bytes;                  // of all files
    uint64_t times, table, samples; // hashes
} qn_identity;

QN_MUST_CHECK qn_status qn_identity_of(qn_identity *out, const qn_source *source, qn_pool *pool,
                                       qn_err *err);
// The same in one number that copies of the files have too, wherever they lie and whoever reads
// them: the keys, the tensor table and the samples, not the times.
QN_MUST_CHECK qn_status qn_identity_hash(uint64_t *out, const qn_source *source, qn_pool *pool,
                                         qn_err *err);
// Several of them in order, each used with a scale.
uint64_t qn_identity_mix(uint64_t before, uint64_t hash, double scale);

#endif
