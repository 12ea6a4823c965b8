// Characters of ASCII, and words in lists of them, whatever the locale.
#ifndef QN_CORE_CHARS_H
#define QN_CORE_CHARS_H

#include <stdbool.h>
#include <string.h>

static inline bool qn_is_digit(int c) { return c >= '0' && c <= '9'; }

// What JSON takes for blank.
static inline bool qn_is_blank(int c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

// What C and Python take for blank: form feeds and vertical tabs as well.
static inline bool qn_is_space(int c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// The value of a hexadecimal digit; -1: not one.
static inline int qn_hex_digit(int c) {
    if (qn_is_digit(c)) return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// Whether `word` is one of the words, which `separator` divides.
static inline bool qn_has_word(const char *words, const char *word, char separator) {
    const size_t n = strlen(word);
    if (n == 0 || strchr(word, separator)) return false;
    for (const char *at = strstr(words, word); at; at = strstr(at + 1, word)) {
        if ((at == words || at[-1] == separator) && (at[n] == 0 || at[n] == separator)) return true;
    }
    return false;
}

#endif
