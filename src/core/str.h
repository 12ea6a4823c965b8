// A borrowed piece of text: bytes with a length, not NUL-terminated.
#ifndef QN_CORE_STR_H
#define QN_CORE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

typedef struct qn_str {
    const char *data;
    size_t size;
} qn_str;

static inline qn_str qn_str_of(const char *text) { return (qn_str){text, strlen(text)}; }

static inline bool qn_str_is(qn_str a, const char *text) {
    return a.size == strlen(text) && (a.size == 0 || memcmp(a.data, text, a.size) == 0);
}

#endif
