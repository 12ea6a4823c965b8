// Which characters may be shown: names and texts from files must not steer a terminal.
#ifndef QN_CORE_PRINTABLE_H
#define QN_CORE_PRINTABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// U+0080 to U+009F are control characters too: U+009B begins what ESC [ begins.
static inline bool qn_code_is_control(uint32_t code) {
    return code < 0x20 || (code >= 0x7f && code < 0xa0);
}

// Characters that change the direction of what follows, so that a name reads as another one.
static inline bool qn_code_turns(uint32_t code) {
    return (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

// Puts '?' in place of both, and of each byte outside well-formed UTF-8; the text may get shorter.
void qn_text_clean(char *text);

// Copies a text, cut between characters if it has `size` bytes or more: "..." is its end then.
// `size` is at least 4.
void qn_text_cut(char *to, size_t size, const char *text);

#endif
