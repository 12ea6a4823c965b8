// Importance: how strongly each column of a weight is used, as a model saw it on a text.
//
// A GGUF file (general.type "imatrix") with two tensors for a weight W, both F32:
//   "W.in_sum2"  (experts, width)  sums of the squares of the inputs that met each column
//   "W.counts"   (experts, 1)      how many inputs that were
// Plain weights have one expert. Older files of llama.cpp are read, too: see importance_dat.h.
// Constant after opening; share it freely between threads.
#ifndef QN_MAKE_IMPORTANCE_H
#define QN_MAKE_IMPORTANCE_H

#include "formats/source.h"

#define QN_IMPORTANCE_SUMS   ".in_sum2"
#define QN_IMPORTANCE_COUNTS ".counts"

typedef struct qn_importance qn_importance;

// Reads and checks every entry: shapes that belong together, numbers that are finite and not
// negative.
QN_MUST_CHECK qn_status qn_importance_open(qn_importance **out, const char *path, qn_err *err);
void qn_importance_close(qn_importance *importance);

int64_t qn_importance_n_entries(const qn_importance *importance);
int64_t qn_importance_n_chunks(const qn_importance *importance); // 0: the file does not say
// Of the text it was made from; "" if the file does not say. Borrowed.
const char *qn_importance_dataset(const qn_importance *importance);

// Whether there is an entry for the tensor, of whatever shape.
bool qn_importance_has(const qn_importance *importance, const qn_tensor *tensor);
// What an error in each column of the tensor costs, (experts, width) with experts = all dims but
// the last two; release with qn_free. NULL if there is no entry. Experts that no input met get
// ones.
QN_MUST_CHECK qn_status qn_importance_load(float **out, const qn_importance *importance,
                                           const qn_tensor *tensor, qn_err *err);

#endif
