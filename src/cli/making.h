// What commands that make files share: notes above a progress bar, and how large a model is.
#ifndef QN_CLI_MAKING_H
#define QN_CLI_MAKING_H

#include "core/err.h"

// A line on stderr, in place of the bar if there is one. A qn_log_fn with a qn_progress as its
// argument.
void qn_making_log(void *progress, qn_log_level level, const char *message);

typedef struct qn_file_size {
    int64_t bytes;
    double bits_per_weight;
} qn_file_size;

// Of a model file or checkpoint.
QN_MUST_CHECK qn_status qn_file_size_read(qn_file_size *out, const char *path, qn_err *err);

#endif
