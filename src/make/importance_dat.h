// Importance files in the form that llama.cpp wrote before it used GGUF ("imatrix.dat"), little
// endian, without padding:
//
//   i32 entries, at least one
//   of each entry: i32 bytes of the weight's name, the name, i32 calls, i32 values, f32 values[]
//   and, but in the oldest files, i32 chunks, i32 bytes of the name of the text, the name
//
// A value is the mean of the squares of a column's inputs, times the calls. Of a weight with
// experts there are the columns of all of them, one after the other.
#ifndef QN_MAKE_IMPORTANCE_DAT_H
#define QN_MAKE_IMPORTANCE_DAT_H

#include "core/file.h"

typedef struct qn_importance_dat qn_importance_dat;

// Takes the open file, also where it fails. Reads and checks every entry: names that differ, counts
// that the bytes hold, numbers that are finite and not negative.
QN_MUST_CHECK qn_status qn_importance_dat_open(qn_importance_dat **out, qn_file *file, qn_err *err);
void qn_importance_dat_close(qn_importance_dat *dat);

int64_t qn_importance_dat_n_entries(const qn_importance_dat *dat);
int64_t qn_importance_dat_n_chunks(const qn_importance_dat *dat); // 0: the file does not say
const char *qn_importance_dat_dataset(const qn_importance_dat *dat);

bool qn_importance_dat_has(const qn_importance_dat *dat, const char *weight);
// The values of a weight that is there, which must be n, and what to divide them by; release
// *values with qn_free.
QN_MUST_CHECK qn_status qn_importance_dat_load(float **values, float *calls,
                                               const qn_importance_dat *dat, const char *weight,
                                               int64_t n, qn_err *err);

#endif
