#include "core/utf8.h"

size_t qn_utf8_decode(const char *s, size_t n, uint32_t *code) {
    const unsigned char *b = (const unsigned char *)s;
    if (n == 0) return 0;
    if (b[0] < 0x80) {
        *code = b[0];
        return 1;
    }
    size_t length;
    uint32_t value, smallest;
    if ((b[0] & 0xe0) == 0xc0) {
        length = 2, value = b[0] & 0x1fu, smallest = 0x80;
    } else if ((b[0] & 0xf0) == 0xe0) {
        length = 3, value = b[0] & 0x0fu, smallest = 0x800;
    } else if ((b[0] & 0xf8) == 0xf0) {
        length = 4, value = b[0] & 0x07u, smallest = 0x10000;
    } else {
        return 0;
    }
    if (n < length) return 0;
    for (size_t i = 1; i < length; i++) {
        if ((b[i] & 0xc0) != 0x80) return 0;
        value = value << 6 | (b[i] & 0x3fu);
    }
    if (value < smallest || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) return 0;
    *code = value;
    return length;
}

size_t qn_utf8_check(const char *s, size_t n) {
    uint32_t code;
    return qn_utf8_decode(s, n, &code);
}

size_t qn_utf8_encode(uint32_t code, char out[4]) {
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return 0;
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    const size_t length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = length - 1; i > 0; i--, code >>= 6) out[i] = (char)(0x80 | (code & 0x3f));
    out[0] = (char)(lead[length] | code);
    return length;
}

bool qn_utf8_valid(const char *s, size_t n) {
    for (size_t i = 0; i < n;) {
        const size_t length = qn_utf8_check(s + i, n - i);
        if (length == 0) return false;
        i += length;
    }
    return true;
}

size_t qn_utf8_incomplete_tail(const char *s, size_t n) {
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        const unsigned char lead = (unsigned char)s[n - back];
        if ((lead & 0xc0) == 0x80) continue; // a continuation byte: look further back
        const size_t want = lead >= 0xf0 && lead < 0xf5 ? 4
                            : lead >= 0xe0              ? 3
                            : lead >= 0xc2              ? 2
                                                        : 1;
        return lead < 0xf5 && want > back ? back : 0;
    }
    return 0;
}

qn_status qn_text_check(const char *what, const char *text, size_t size, qn_err *err) {
    for (size_t i = 0, n; i < size; i += n) {
        n = qn_utf8_check(text + i, size - i);
        if (n == 0)
            return QN_FAIL(err, ARGUMENT, "%s: no UTF-8 at byte %zu (0x%02x)", what, i,
                           (unsigned)(unsigned char)text[i]);
        if (!text[i]) return QN_FAIL(err, ARGUMENT, "%s: a NUL at byte %zu", what, i);
    }
    return QN_OK;
}
