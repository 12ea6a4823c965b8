#include "chat/chat_text.h"

#include "core/utf8.h"

#include <utf8proc.h>

bool qn_jinja_char_is_space(uint32_t c) {
    return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

bool qn_jinja_char_is_alnum(uint32_t code) {
    const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)code);
    return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO) ||
           (c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO);
}

size_t qn_jinja_char_at(qn_str s, size_t at, uint32_t *code) {
    const size_t n = qn_utf8_decode(s.data + at, s.size - at, code);
    if (n) return n;
    *code = 0xfffd;
    return 1;
}

size_t qn_jinja_text_length(qn_str s) {
    size_t n = 0;
    for (size_t i = 0; i < s.size; i++) n += ((unsigned char)s.data[i] & 0xc0) != 0x80;
    return n;
}

size_t qn_jinja_text_offset(qn_str s, size_t i) {
    size_t at = 0;
    for (; at < s.size; at++) {
        if (((unsigned char)s.data[at] & 0xc0) == 0x80) continue;
        if (i-- == 0) break;
    }
    return at;
}

// --- search --------------------------------------------------------------------------------------
// The two-way algorithm of Crochemore and Perrin: linear in the text whatever the texts are,
// without memory. `back` reads both texts from their ends.

static unsigned char byte_at(qn_str s, size_t i, bool back) {
    return (unsigned char)s.data[back ? s.size - 1 - i : i];
}

// The greatest suffix of x by one of the two orders of bytes: where it begins, and its period.
static size_t greatest_suffix(qn_str x, bool back, bool is_turned, size_t *period) {
    size_t begin = 0, j = 1, k = 0;
    *period = 1;
    while (j + k < x.size) {
        const unsigned char a = byte_at(x, j + k, back), b = byte_at(x, begin + k, back);
        if (a == b) {
            k++;
            if (k == *period) {
                j += k;
                k = 0;
            }
        } else if ((a < b) != is_turned) {
            j += k + 1;
            k = 0;
            *period = j - begin;
        } else {
            begin = j++;
            k = 0;
            *period = 1;
        }
    }
    return begin;
}

static bool is_periodic(qn_str x, bool back, size_t n, size_t period) {
    if (period > x.size || n > x.size - period) return false;
    for (size_t i = 0; i < n; i++) {
        if (byte_at(x, i, back) != byte_at(x, i + period, back)) return false;
    }
    return true;
}

// Position in the direction of reading; SIZE_MAX: nowhere. x is not empty.
static size_t search(qn_str s, qn_str x, bool back) {
    size_t period, other_period;
    size_t cut = greatest_suffix(x, back, false, &period);
    const size_t other = greatest_suffix(x, back, true, &other_period);
    if (other > cut) {
        cut = other;
        period = other_period;
    }
    const bool has_period = is_periodic(x, back, cut, period);
    if (!has_period) period = (cut > x.size - cut ? cut : x.size - cut) + 1;
    size_t known = 0; // bytes at the front of x that are known to match
    for (size_t at = 0; at <= s.size - x.size;) {
        size_t i = cut > known ? cut : known;
        while (i < x.size && byte_at(x, i, back) == byte_at(s, at + i, back)) i++;
        if (i < x.size) {
            at += i - cut + 1;
            known = 0;
            continue;
        }
        i = cut;
        while (i > known && byte_at(x, i - 1, back) == byte_at(s, at + i - 1, back)) i--;
        if (i <= known) return at;
        at += period;
        known = has_period ? x.size - period : 0;
    }
    return SIZE_MAX;
}

size_t qn_jinja_text_find(qn_str s, qn_str part, size_t from) {
    if (from > s.size || part.size > s.size - from) return SIZE_MAX;
    if (part.size == 0) return from;
    const char *first = memchr(s.data + from, part.data[0], s.size - from - part.size + 1);
    if (!first) return SIZE_MAX;
    from = (size_t)(first - s.data);
    const size_t at = search(qn_jinja_str_part(s, from, s.size), part, false);
    return at == SIZE_MAX ? SIZE_MAX : from + at;
}

size_t qn_jinja_text_find_last(qn_str s, qn_str part) {
    if (part.size > s.size) return SIZE_MAX;
    const size_t at = part.size ? search(s, part, true) : 0;
    return at == SIZE_MAX ? SIZE_MAX : s.size - part.size - at;
}

// --- ends ----------------------------------------------------------------------------------------

// Bytes of the first or last character if it is in the set, else 0.
static size_t strip_one(qn_str s, const qn_str *set, bool at_back) {
    size_t at = 0, n;
    uint32_t code;
    if (s.size == 0) return 0;
    if (at_back) {
        at = s.size - 1;
        while (at > 0 && ((unsigned char)s.data[at] & 0xc0) == 0x80) at--;
    }
    n = qn_jinja_char_at(s, at, &code);
    if (at_back) n = s.size - at;
    const bool is_in =
        set ? qn_jinja_text_find(*set, qn_jinja_str_part(s, at, at + n), 0) != SIZE_MAX
            : qn_jinja_char_is_space(code);
    return is_in ? n : 0;
}

qn_str qn_jinja_text_strip(qn_str s, const qn_str *set, bool left, bool right) {
    size_t n;
    while (left && (n = strip_one(s, set, false))) s = qn_jinja_str_part(s, n, s.size);
    while (right && (n = strip_one(s, set, true))) s = qn_jinja_str_part(s, 0, s.size - n);
    return s;
}

qn_status qn_jinja_text_strip_paid(qn_str *s, qn_jinja_run *r, const qn_str *set, bool left,
                                   bool right, qn_err *err) {
    enum { MAX_SET = 1024 };
    if (set && set->size > MAX_SET) return QN_FAIL(err, LIMIT, "a set of %zu bytes", set->size);
    const size_t cost = set ? 2 + set->size / 32 : 1;
    size_t n;
    while (left && (n = strip_one(*s, set, false))) {
        QN_TRY(qn_jinja_spend(r, cost, 1, err));
        *s = qn_jinja_str_part(*s, n, s->size);
    }
    while (right && (n = strip_one(*s, set, true))) {
        QN_TRY(qn_jinja_spend(r, cost, 1, err));
        *s = qn_jinja_str_part(*s, 0, s->size - n);
    }
    return QN_OK;
}

qn_status qn_jinja_text_pay_search(qn_jinja_run *r, qn_str s, qn_err *err) {
    return qn_jinja_spend(r, s.size, QN_PER_SCAN, err);
}

qn_status qn_jinja_text_pay_length(qn_jinja_run *r, qn_str s, qn_err *err) {
    return qn_jinja_charge(r, s.size * 2, err); // once to count, once to find a character
}

int qn_jinja_str_compare(qn_str a, qn_str b) {
    const size_t n = a.size < b.size ? a.size : b.size;
    const int order = n ? memcmp(a.data, b.data, n) : 0;
    if (order) return order < 0 ? -1 : 1;
    return a.size < b.size ? -1 : a.size > b.size;
}

void qn_jinja_char_print(qn_buf *to, uint32_t code) {
    char bytes[4];
    const size_t n = qn_utf8_encode(code, bytes);
    qn_buf_add(to, bytes, n);
}

void qn_jinja_code_print(qn_buf *to, char letter, uint32_t code) {
    char text[10] = {'\\', letter};
    const int n = letter == 'x' ? 2 : letter == 'u' ? 4 : 8;
    for (int i = 0; i < n; i++) text[2 + i] = "0123456789abcdef"[code >> 4 * (n - 1 - i) & 15];
    qn_buf_add(to, text, (size_t)n + 2);
}

static bool is_printable(uint32_t code) {
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
        return code == ' ';
    default:
        return true;
    }
}

static void print_escaped(qn_buf *to, uint32_t code, char quote) {
    static const char plain[][2] = {{'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}, {'\\', '\\'}};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        if (code != (unsigned char)plain[i][0]) continue;
        qn_buf_add(to, (const char[]){'\\', plain[i][1]}, 2);
        return;
    }
    if (code == (unsigned char)quote)
        qn_buf_add(to, (const char[]){'\\', quote}, 2);
    else if (is_printable(code))
        qn_jinja_char_print(to, code);
    else
        qn_jinja_code_print(to, code < 0x100 ? 'x' : code < 0x10000 ? 'u' : 'U', code);
}

void qn_jinja_text_repr(qn_buf *to, qn_str s) {
    const bool has_single = s.size && memchr(s.data, '\'', s.size);
    const bool has_double = s.size && memchr(s.data, '"', s.size);
    const char quote = has_single && !has_double ? '"' : '\'';
    qn_buf_add(to, &quote, 1);
    for (size_t at = 0; at < s.size;) {
        uint32_t code;
        at += qn_jinja_char_at(s, at, &code);
        print_escaped(to, code, quote);
    }
    qn_buf_add(to, &quote, 1);
}

void qn_jinja_text_escape(qn_buf *to, qn_str s) {
    static const char *const names[128] = {
        ['&'] = "&amp;", ['<'] = "&lt;", ['>'] = "&gt;", ['\''] = "&#39;", ['"'] = "&#34;"};
    for (size_t i = 0; i < s.size; i++) {
        const unsigned char c = (unsigned char)s.data[i];
        if (c < 128 && names[c])
            qn_buf_text(to, names[c]);
        else
            qn_buf_add(to, s.data + i, 1);
    }
}

static bool is_letter(uint32_t code) {
    const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)code);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LT;
}

static void print_upper(qn_buf *to, uint32_t code) {
    if (code == 0xdf) // the one common letter that becomes two
        qn_buf_text(to, "SS");
    else
        qn_jinja_char_print(to, (uint32_t)utf8proc_toupper((utf8proc_int32_t)code));
}

static void print_lower(qn_buf *to, uint32_t code) {
    qn_jinja_char_print(to, (uint32_t)utf8proc_tolower((utf8proc_int32_t)code));
}

static void print_title(qn_buf *to, uint32_t code) {
    qn_jinja_char_print(to, (uint32_t)utf8proc_totitle((utf8proc_int32_t)code));
}

static void print_swapped(qn_buf *to, uint32_t code) {
    const bool is_upper = utf8proc_category((utf8proc_int32_t)code) == UTF8PROC_CATEGORY_LU;
    (is_upper ? print_lower : print_upper)(to, code);
}

void qn_jinja_text_recase(qn_buf *to, qn_str s, qn_jinja_case how) {
    // Of the first character, of one after a letter, of one after something else.
    static void (*const printers[][3])(qn_buf *, uint32_t) = {
        [QN_CASE_UPPER] = {print_upper, print_upper, print_upper},
        [QN_CASE_LOWER] = {print_lower, print_lower, print_lower},
        [QN_CASE_CAPITAL] = {print_title, print_lower, print_lower},
        [QN_CASE_TITLE] = {print_title, print_lower, print_title},
        [QN_CASE_SWAP] = {print_swapped, print_swapped, print_swapped},
    };
    int state = 0;
    for (size_t at = 0; at < s.size;) {
        uint32_t code;
        at += qn_jinja_char_at(s, at, &code);
        printers[how][state](to, code);
        state = is_letter(code) ? 1 : 2;
    }
}
