// UTF-8, strictly by RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.
#ifndef QN_CORE_UTF8_H
#define QN_CORE_UTF8_H

#include "core/err.h"

// Length (1-4) of the well-formed character at `s`, or 0 if there is none within `n` bytes.
size_t qn_utf8_check(const char *s, size_t n);
// Like qn_utf8_check, and stores the code point.
size_t qn_utf8_decode(const char *s, size_t n, uint32_t *code);
// Writes `code` as 1-4 bytes; returns the length, 0 for a surrogate or a value above U+10FFFF.
size_t qn_utf8_encode(uint32_t code, char out[4]);
// True if all `n` bytes are well-formed characters.
bool qn_utf8_valid(const char *s, size_t n);
// Text from outside: what is not UTF-8, or has a NUL in it, is refused by its place.
QN_MUST_CHECK qn_status qn_text_check(const char *what, const char *text, size_t size, qn_err *err);
// Number of bytes at the end of `s` that begin a character which is not complete yet (0-3): text to
// hold back while streaming.
size_t qn_utf8_incomplete_tail(const char *s, size_t n);

#endif
