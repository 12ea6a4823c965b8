#include "core/buf.h"

#include "core/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool make_room(qn_buf *buf, size_t n) {
    size_t want;
    void *data = buf->data;
    const bool fits = qn_size_add(&want, buf->size, n) && (!buf->max || want <= buf->max);
    if (!fits && buf->max) buf->is_over = true;
    if (buf->failed || !fits || !qn_size_add(&want, want, 1) ||
        !qn_grow(&data, &buf->cap, want, 1)) {
        buf->failed = true;
        return false;
    }
    buf->data = data;
    return true;
}

void qn_buf_add(qn_buf *buf, const void *bytes, size_t n) {
    if (!make_room(buf, n)) return;
    if (n) memcpy(buf->data + buf->size, bytes, n);
    buf->size += n;
    buf->data[buf->size] = 0;
}

void qn_buf_reserve(qn_buf *buf, size_t n) { (void)make_room(buf, n); }

void qn_buf_text(qn_buf *buf, const char *text) { qn_buf_add(buf, text, strlen(text)); }

void qn_buf_printf(qn_buf *buf, const char *fmt, ...) {
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    const int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n < 0) buf->failed = true; // printf takes memory for long numbers
    if (n >= 0 && make_room(buf, (size_t)n)) {
        if (vsnprintf(buf->data + buf->size, (size_t)n + 1, fmt, again) != n) buf->failed = true;
        buf->size += (size_t)n;
    }
    va_end(again);
}

void qn_buf_clear(qn_buf *buf) {
    buf->size = 0;
    if (buf->data) buf->data[0] = 0;
}

qn_status qn_buf_take(char **out, qn_buf *buf, qn_err *err) {
    qn_buf_add(buf, "", 0); // an empty buffer becomes an empty string
    if (buf->failed) {
        qn_buf_deinit(buf);
        return QN_NOMEM(err, "a text");
    }
    *out = buf->data;
    *buf = (qn_buf){0};
    return QN_OK;
}

void qn_buf_deinit(qn_buf *buf) {
    qn_free(buf->data);
    *buf = (qn_buf){0};
}
