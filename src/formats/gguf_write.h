// Writing a GGUF file (version 3): keys and tensors are declared first, then the data of the
// tensors follows in the same order, in pieces of any size. The file appears whole or not at all.
//
//   qn_gguf_writer *w;
//   qn_gguf_writer_create(&w, err);
//   qn_gguf_put_string(w, "general.architecture", "qwen3"); ...
//   qn_gguf_add_tensor(w, &(qn_gguf_tensor){"output.weight", QN_TYPE_Q6_K, 2, {V, D}}); ...
//   qn_gguf_begin(w, path, err);
//   qn_gguf_write(w, bytes, n, err); ...
//   qn_gguf_finish(w, err);
//
// Declaring cannot fail visibly: the first error is kept and returned by qn_gguf_begin. Names and
// values are copied. One thread at a time.
#ifndef QN_FORMATS_GGUF_WRITE_H
#define QN_FORMATS_GGUF_WRITE_H

#include "core/buf.h"
#include "formats/source.h"

typedef struct qn_gguf_writer qn_gguf_writer;

typedef struct qn_gguf_tensor {
    const char *name;
    qn_type type;
    int n_dims;
    int64_t dims[4]; // outermost first
} qn_gguf_tensor;

QN_MUST_CHECK qn_status qn_gguf_writer_create(qn_gguf_writer **out, qn_err *err);
// An unfinished file is removed. NULL is fine.
void qn_gguf_writer_destroy(qn_gguf_writer *w);

void qn_gguf_put_u32(qn_gguf_writer *w, const char *name, uint32_t value);
void qn_gguf_put_i32(qn_gguf_writer *w, const char *name, int32_t value);
void qn_gguf_put_f32(qn_gguf_writer *w, const char *name, float value);
void qn_gguf_put_bool(qn_gguf_writer *w, const char *name, bool value);
void qn_gguf_put_string(qn_gguf_writer *w, const char *name, const char *value);
void qn_gguf_put_i32s(qn_gguf_writer *w, const char *name, const int32_t *values, size_t n);
void qn_gguf_put_f32s(qn_gguf_writer *w, const char *name, const float *values, size_t n);
void qn_gguf_put_bools(qn_gguf_writer *w, const char *name, const bool *values, size_t n);
void qn_gguf_put_strings(qn_gguf_writer *w, const char *name, const qn_str *values, size_t n);
// A key of a GGUF source, in its own type.
void qn_gguf_put_key(qn_gguf_writer *w, const qn_key *key);

void qn_gguf_add_tensor(qn_gguf_writer *w, const qn_gguf_tensor *tensor);

// What a file of these keys and tensors begins with, appended to `out`, and the bytes that it would
// have with all data. Nothing is written.
QN_MUST_CHECK qn_status qn_gguf_get_header(qn_buf *out, int64_t *file_bytes,
                                           const qn_gguf_writer *w, qn_err *err);
// Writes the header. A key or tensor declared twice is an error.
QN_MUST_CHECK qn_status qn_gguf_begin(qn_gguf_writer *w, const char *path, qn_err *err);
// Whether a GGUF file may be written there, as qn_gguf_begin asks too: a file in the way is
// replaced only if it is GGUF itself or empty. For asking before long work.
QN_MUST_CHECK qn_status qn_gguf_check_place(const char *path, qn_err *err);
// The next bytes of the current tensor; at its end the next one begins.
QN_MUST_CHECK qn_status qn_gguf_write(qn_gguf_writer *w, const void *bytes, size_t n, qn_err *err);
// All data must be there. Prepared files are on the disk without their place, so that two that
// belong together appear together: prepare both, then place both. To finish is to do both at once.
QN_MUST_CHECK qn_status qn_gguf_prepare(qn_gguf_writer *w, qn_err *err);
QN_MUST_CHECK qn_status qn_gguf_place(qn_gguf_writer *w, qn_err *err);
QN_MUST_CHECK qn_status qn_gguf_finish(qn_gguf_writer *w, qn_err *err);
// Bytes of the whole file, known from qn_gguf_begin on.
int64_t qn_gguf_file_bytes(const qn_gguf_writer *w);

#endif
