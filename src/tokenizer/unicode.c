#include "tokenizer/unicode.h"

#include "core/mem.h"
#include "core/utf8.h"

#include <utf8proc.h>

// --- well-formed and ill-formed ------------------------------------------------------------------

size_t qn_unicode_valid_size(qn_str text) {
    size_t i = 0;
    while (i < text.size) {
        uint64_t eight;
        if (text.size - i >= 8) {
            memcpy(&eight, text.data + i, 8);
            if (!(eight & 0x8080808080808080u)) { // eight ASCII characters
                i += 8;
                continue;
            }
        }
        const size_t n = qn_utf8_check(text.data + i, text.size - i);
        if (n == 0) break;
        i += n;
    }
    return i;
}

size_t qn_unicode_broken_size(qn_str text) {
    const unsigned char *s = (const unsigned char *)text.data;
    const size_t want = s[0] >= 0xf0 && s[0] <= 0xf4   ? 4
                        : s[0] >= 0xe0 && s[0] <= 0xef ? 3
                        : s[0] >= 0xc2 && s[0] <= 0xdf ? 2
                                                       : 1;
    if (want == 1 || text.size < 2) return 1;
    // The second byte of some leads is limited (RFC 3629, section 4).
    const unsigned char low = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80;
    const unsigned char high = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
    if (s[1] < low || s[1] > high) return 1;
    size_t n = 2;
    while (n < want && n < text.size && (s[n] & 0xc0) == 0x80) n++;
    return n;
}

void qn_unicode_repair(qn_buf *out, qn_str text) {
    while (text.size) {
        const size_t valid = qn_unicode_valid_size(text);
        qn_buf_add(out, text.data, valid);
        text = (qn_str){text.data + valid, text.size - valid};
        if (!text.size) return;
        const size_t broken = qn_unicode_broken_size(text);
        qn_buf_text(out, "\xef\xbf\xbd");
        text = (qn_str){text.data + broken, text.size - broken};
    }
}

static void add_code(qn_buf *out, uint32_t code) {
    char text[4];
    qn_buf_add(out, text, qn_utf8_encode(code, text));
}

// --- classes -------------------------------------------------------------------------------------

bool qn_unicode_is_space(uint32_t code) {
    if (code < 0x80) return code == ' ' || (code >= 9 && code <= 13);
    return code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) ||
           code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

bool qn_unicode_is_word(uint32_t code) {
    const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code);
    return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_ND) ||
           category == UTF8PROC_CATEGORY_PC;
}

size_t qn_unicode_grapheme(qn_str text) {
    uint32_t left, right;
    utf8proc_int32_t state = 0;
    size_t i = qn_utf8_decode(text.data, text.size, &left);
    while (i < text.size) {
        const size_t n = qn_utf8_decode(text.data + i, text.size - i, &right);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)left, (utf8proc_int32_t)right,
                                             &state))
            break;
        left = right;
        i += n;
    }
    return i;
}

void qn_unicode_lower(qn_buf *out, qn_str text) {
    for (size_t i = 0, n; i < text.size; i += n) {
        uint32_t code;
        n = qn_utf8_decode(text.data + i, text.size - i, &code);
        if (n == 0) {
            qn_buf_add(out, text.data + i, n = 1);
        } else if (code == 0x130) { // the one character with a longer lower case: i and a dot above
            qn_buf_text(out, "i\xcc\x87");
        } else {
            add_code(out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)code));
        }
    }
}

void qn_unicode_strip_accents(qn_buf *out, qn_str text) {
    for (size_t i = 0, n; i < text.size; i += n) {
        uint32_t code;
        n = qn_utf8_decode(text.data + i, text.size - i, &code);
        const bool is_mark =
            n > 0 && utf8proc_category((utf8proc_int32_t)code) == UTF8PROC_CATEGORY_MN;
        if (n == 0) n = 1;
        if (!is_mark) qn_buf_add(out, text.data + i, n);
    }
}

// --- normal forms --------------------------------------------------------------------------------

typedef struct code_list {
    utf8proc_int32_t *data;
    utf8proc_int32_t *spare; // for sorting; grown with data
    size_t n, cap, spare_cap;
} code_list;

enum { MAX_PER_CODE = 32 }; // a character decomposes into at most 18

static utf8proc_option_t options_of(qn_normal_form form) {
    const bool compat = form == QN_NFKC || form == QN_NFKD;
    const bool compose = form == QN_NFC || form == QN_NFKC;
    return UTF8PROC_STABLE | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
           (compat ? UTF8PROC_COMPAT : 0);
}

static unsigned combining_class(utf8proc_int32_t code) {
    return (unsigned)utf8proc_get_property(code)->combining_class & 0xffu;
}

static bool decompose(code_list *codes, qn_str text, utf8proc_option_t options) {
    int boundary = 0;
    // COMPOSE asks for a later step; a single character is decomposed the same way for both.
    const unsigned how = ((unsigned)options & ~(unsigned)UTF8PROC_COMPOSE) | UTF8PROC_DECOMPOSE;
    for (size_t i = 0; i < text.size;) {
        uint32_t code = 0;
        i += qn_utf8_decode(text.data + i, text.size - i, &code);
        void *data = codes->data;
        if (!qn_grow(&data, &codes->cap, codes->n + MAX_PER_CODE, sizeof *codes->data))
            return false;
        codes->data = data;
        const utf8proc_ssize_t n =
            utf8proc_decompose_char((utf8proc_int32_t)code, codes->data + codes->n, MAX_PER_CODE,
                                    (utf8proc_option_t)how, &boundary);
        if (n < 0 || n > MAX_PER_CODE) return false;
        codes->n += (size_t)n;
    }
    return true;
}

// Sorts a run of combining marks by class, keeping the order within a class.
static void sort_marks(utf8proc_int32_t *marks, utf8proc_int32_t *spare, size_t n) {
    if (n < 2) return;
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++) start[combining_class(marks[i]) + 1]++;
    for (int c = 0; c < 256; c++) start[c + 1] += start[c];
    for (size_t i = 0; i < n; i++) spare[start[combining_class(marks[i])]++] = marks[i];
    memcpy(marks, spare, n * sizeof *marks);
}

// A pair out of order: most texts have none, and sorting costs more than looking.
static bool is_sorted(const utf8proc_int32_t *marks, size_t n) {
    for (size_t i = 1; i < n; i++) {
        if (combining_class(marks[i - 1]) > combining_class(marks[i])) return false;
    }
    return true;
}

static bool order_marks(code_list *codes) {
    for (size_t i = 0; i < codes->n;) {
        size_t end = i;
        while (end < codes->n && combining_class(codes->data[end]) != 0) end++;
        if (!is_sorted(codes->data + i, end - i)) {
            void *spare = codes->spare;
            if (!qn_grow(&spare, &codes->spare_cap, end - i, sizeof *codes->spare)) return false;
            codes->spare = spare;
            sort_marks(codes->data + i, codes->spare, end - i);
        }
        i = end + 1;
    }
    return true;
}

static qn_status normalize_valid(qn_buf *out, code_list *codes, qn_str text, qn_normal_form form,
                                 qn_err *err) {
    const utf8proc_option_t options = options_of(form);
    codes->n = 0;
    if (!decompose(codes, text, options) || !order_marks(codes))
        return QN_NOMEM(err, "normal form of a text");
    utf8proc_ssize_t n = (utf8proc_ssize_t)codes->n;
    if (options & UTF8PROC_COMPOSE) n = utf8proc_normalize_utf32(codes->data, n, options);
    for (utf8proc_ssize_t i = 0; i < n; i++) add_code(out, (uint32_t)codes->data[i]);
    return QN_OK;
}

// Characters that NFC leaves alone, whatever stands before them: they are starters, have no single
// decomposition and are never the second part of a composition. Only the common ones; the rest take
// the long way.
static const struct {
    uint32_t first, last;
} plain_ranges[] = {
    {0x0000, 0x02ff},                   // Latin
    {0x0400, 0x0482},                   // Cyrillic
    {0x048a, 0x052f}, {0x2010, 0x2027}, // punctuation
    {0x3001, 0x3029}, {0x3041, 0x3096}, // Hiragana
    {0x30a1, 0x30fa}, {0x3400, 0x4dbf}, // ideographs
    {0x4e00, 0x9fff}, {0xac00, 0xd7a3}, // Hangul syllables
    {0xff01, 0xff5e},
};

static bool is_plain(uint32_t code) {
    for (size_t i = 0; i < sizeof plain_ranges / sizeof *plain_ranges; i++) {
        if (code <= plain_ranges[i].last) return code >= plain_ranges[i].first;
    }
    return false;
}

// Bytes at the start of valid text that stay as they are, but for the last character, which may be
// the base of a mark that follows.
static size_t plain_size(qn_str text, qn_normal_form form) {
    size_t i = 0;
    while (i < text.size && !((unsigned char)text.data[i] & 0x80)) i++;
    while (form == QN_NFC && i < text.size) {
        uint32_t code = 0;
        const size_t n = qn_utf8_decode(text.data + i, text.size - i, &code);
        if (!is_plain(code)) break;
        i += n;
    }
    return i;
}

// Where a stretch of valid text can end without touching what follows: before an ASCII character
// that is itself followed by one. (An ASCII letter before a mark belongs to the mark.)
static size_t stretch_size(qn_str text) {
    enum { MIN = 32 };
    for (size_t i = MIN; i + 1 < text.size; i++) {
        if (!((unsigned char)text.data[i] & 0x80) && !((unsigned char)text.data[i + 1] & 0x80))
            return i;
    }
    return text.size;
}

static qn_str rest_of(qn_str text, size_t from) {
    return (qn_str){text.data + from, text.size - from};
}

static qn_status normalize_segment(qn_buf *out, code_list *codes, qn_str text, qn_normal_form form,
                                   qn_err *err) {
    while (text.size) {
        size_t plain = plain_size(text, form);
        if (plain < text.size && plain > 0) { // the last plain character may be the base of a mark
            plain--;
            while (plain > 0 && ((unsigned char)text.data[plain] & 0xc0) == 0x80) plain--;
        }
        qn_buf_add(out, text.data, plain);
        text = rest_of(text, plain);
        const size_t n = stretch_size(text);
        QN_TRY(normalize_valid(out, codes, (qn_str){text.data, n}, form, err));
        text = rest_of(text, n);
    }
    return QN_OK;
}

qn_status qn_unicode_normalize(qn_buf *out, qn_str text, qn_normal_form form, qn_err *err) {
    code_list codes = {0};
    qn_status status = QN_OK;
    while (text.size) {
        const size_t n = qn_unicode_valid_size(text);
        QN_TRY_TO(done, normalize_segment(out, &codes, (qn_str){text.data, n}, form, err));
        text = rest_of(text, n);
        if (text.size) { // a stray byte
            qn_buf_add(out, text.data, 1);
            text = rest_of(text, 1);
        }
    }
    if (out->failed) status = QN_NOMEM(err, "normal form of a text");
done:
    qn_free(codes.data);
    qn_free(codes.spare);
    return status;
}
