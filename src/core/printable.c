#include "core/printable.h"

#include "core/utf8.h"

#include <string.h>

void qn_text_clean(char *text) {
    const size_t size = strlen(text);
    size_t to = 0;
    for (size_t i = 0; i < size;) {
        uint32_t code = 0;
        const size_t n = qn_utf8_decode(text + i, size - i, &code);
        if (n == 0 || qn_code_is_control(code) || qn_code_turns(code)) {
            text[to++] = '?';
        } else {
            memmove(text + to, text + i, n);
            to += n;
        }
        i += n ? n : 1;
    }
    text[to] = 0;
}

void qn_text_cut(char *to, size_t size, const char *text) {
    static const char dots[] = "...";
    size_t n = strnlen(text, size);
    const bool is_cut = n == size;
    if (is_cut) n -= sizeof dots;
    if (is_cut) n -= qn_utf8_incomplete_tail(text, n);
    memcpy(to, text, n);
    memcpy(to + n, is_cut ? dots : "", is_cut ? sizeof dots : 1);
}
