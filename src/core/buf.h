// A growing byte string. Failure is sticky: append freely, look once at the end.
#ifndef QN_CORE_BUF_H
#define QN_CORE_BUF_H

#include "core/err.h"

// Caller storage; `{0}` is a valid empty buffer. `data` is NUL-terminated whenever it is not NULL.
typedef struct qn_buf {
    char *data;
    size_t size, cap;
    size_t max;   // bytes that it may hold; 0: no limit
    bool failed;  // memory was short at some point, or the limit reached: the content is incomplete
    bool is_over; // it was the limit
} qn_buf;

void qn_buf_add(qn_buf *buf, const void *bytes, size_t n);
void qn_buf_text(qn_buf *buf, const char *text);
// Room for `n` more bytes, so that data + size can be written to; fails as the others do.
void qn_buf_reserve(qn_buf *buf, size_t n);
QN_PRINTF(2, 3) void qn_buf_printf(qn_buf *buf, const char *fmt, ...);
// Makes the buffer empty but keeps its memory.
void qn_buf_clear(qn_buf *buf);
// Moves the text out (release with qn_free); fails if memory was short. The buffer is empty
// afterwards.
QN_MUST_CHECK qn_status qn_buf_take(char **out, qn_buf *buf, qn_err *err);
void qn_buf_deinit(qn_buf *buf);

#endif
