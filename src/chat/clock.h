// The time that a template sees: a date and a time of day without a zone.
#ifndef QN_CHAT_CLOCK_H
#define QN_CHAT_CLOCK_H

#include "core/buf.h"
#include "core/str.h"

// year, month, day, hour, minute, second. "2026-01-02", with "T" or a blank and "03:04" or
// "03:04:05" after it; fractions of a second are read and dropped.
QN_MUST_CHECK qn_status qn_jinja_clock_read(int64_t now[6], qn_str text, qn_err *err);
// The local time.
void qn_jinja_clock_now(int64_t now[6]);
// As strftime in the C locale; what it does not know stays as it is.
void qn_jinja_clock_print(qn_buf *to, qn_str format, const int64_t now[6]);

#endif
