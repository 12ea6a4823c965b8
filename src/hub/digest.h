// SHA-256 of a file.
#ifndef QN_HUB_DIGEST_H
#define QN_HUB_DIGEST_H

#include "core/err.h"

#include <stdbool.h>

// Whether a text is one in hexadecimal, and nothing else. NULL is not.
bool qn_digest_is(const char *text);

// Of `size` bytes from the beginning of an open file: 64 letters and a NUL. `progress` may be NULL.
QN_MUST_CHECK qn_status qn_digest_file(char out[65], int fd, int64_t size, const char *shown,
                                       qn_progress_fn *progress, void *arg, qn_err *err);

#endif
