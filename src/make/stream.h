// Weights of a checkpoint into a GGUF file: in slabs of rows, so that memory stays small whatever
// the size of the model, with the order, the fixes and the type that the file wants.
#ifndef QN_MAKE_STREAM_H
#define QN_MAKE_STREAM_H

#include "formats/gguf_write.h"
#include "models/model_weights.h"

// How far a whole making is. One thread at a time.
typedef struct qn_making {
    qn_progress_fn *progress; // may be NULL
    void *progress_arg;
    int64_t done, total; // bytes of tensors written, and to write
} qn_making;

// Counts bytes that were written; QN_STOPPED when the caller wants no more.
QN_MUST_CHECK qn_status qn_making_add(qn_making *making, int64_t bytes, qn_err *err);

// The type of a weight in the file: float32 for vectors and what always is; else `wanted` (NULL: as
// the checkpoint has it), or F16 where its blocks do not fit the rows.
qn_type qn_stream_type(const qn_weight *w, const qn_type *wanted);
void qn_stream_declare(qn_gguf_writer *to, const qn_weight *w, qn_type type);
// Writes its data; weights follow in the order in which they were declared.
QN_MUST_CHECK qn_status qn_stream_write(qn_gguf_writer *to, const qn_weight *w, qn_type type,
                                        const qn_source *source, qn_making *making, qn_err *err);

#endif
