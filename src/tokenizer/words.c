#include "tokenizer/words.h"

#include "core/utf8.h"
#include "tokenizer/unicode.h"

#include <utf8proc.h>

// Every character is of one class.
enum { LETTER = 1, MARK = 2, NUMBER = 4, SPACE = 8, NEWLINE = 16, OTHER = 32 };

static unsigned class_of_code(uint32_t code) {
    if (code == '\r' || code == '\n') return NEWLINE;
    if (qn_unicode_is_space(code)) return SPACE;
    const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)code);
    if (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO) return LETTER;
    if (c >= UTF8PROC_CATEGORY_MN && c <= UTF8PROC_CATEGORY_ME) return MARK;
    if (c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO) return NUMBER;
    return OTHER;
}

static unsigned class_of_ascii(unsigned char c) {
    const unsigned char lower = c | 0x20;
    if (lower >= 'a' && lower <= 'z') return LETTER;
    if (c >= '0' && c <= '9') return NUMBER;
    if (c == '\r' || c == '\n') return NEWLINE;
    return c == ' ' || (c >= 9 && c <= 13) ? SPACE : OTHER;
}

// Class and size of the character at `at`; class 0 at the end of the text.
static unsigned look(qn_str text, size_t at, size_t *size) {
    *size = 0;
    if (at >= text.size) return 0;
    const unsigned char c = (unsigned char)text.data[at];
    *size = 1;
    if (c < 0x80) return class_of_ascii(c);
    uint32_t code = 0;
    *size = qn_utf8_decode(text.data + at, text.size - at, &code);
    return class_of_code(code);
}

// The end of the run of at most `max` characters of these classes that starts at `at`.
static size_t run_end(qn_str text, size_t at, unsigned classes, size_t max) {
    size_t n;
    for (; max > 0 && (look(text, at, &n) & classes); max--) at += n;
    return at;
}

// The end of 's, 't, 're, 've, 'm, 'll or 'd, or 0. Ignoring case, U+017F counts as an s.
static size_t contraction_end(qn_str text, bool any_case) {
    if (text.size < 2 || text.data[0] != '\'') return 0;
    const char fold = any_case ? 0x20 : 0;
    const char first = (char)(text.data[1] | fold);
    const char second = text.size > 2 ? (char)(text.data[2] | fold) : 0;
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
    if ((first == 'r' || first == 'v') && second == 'e') return 3;
    if (first == 'l' && second == 'l') return 3;
    if (any_case && text.size > 2 && memcmp(text.data + 1, "\xc5\xbf", 2) == 0) return 3;
    return 0;
}

// White space: all of it at the end of the text, else all but the last character, which belongs to
// the word that follows; the last one alone if there is no other.
static size_t spaces_end(qn_str text) {
    size_t end = 0, last = 0, n;
    while (look(text, end, &n) & (SPACE | NEWLINE)) {
        last = end;
        end += n;
    }
    return end == text.size || last == 0 ? end : last;
}

static size_t word_gpt2(qn_str text) {
    const size_t contraction = contraction_end(text, false);
    if (contraction) return contraction;
    const size_t start = text.data[0] == ' ';
    size_t n;
    const unsigned kind = look(text, start, &n);
    if (kind & (LETTER | NUMBER)) return run_end(text, start, kind, SIZE_MAX);
    if (kind & (MARK | OTHER)) return run_end(text, start, MARK | OTHER, SIZE_MAX);
    return spaces_end(text);
}

// White space up to the last line break in it, or 0.
static size_t lines_end(qn_str text) {
    size_t end = 0, n;
    unsigned kind;
    for (size_t at = 0; (kind = look(text, at, &n)) & (SPACE | NEWLINE);) {
        at += n;
        if (kind == NEWLINE) end = at;
    }
    return end;
}

static size_t word_llama(const qn_word_rule *rule, qn_str text) {
    const size_t contraction = contraction_end(text, true);
    if (contraction) return contraction;
    const unsigned letters = rule->with_marks ? LETTER | MARK : LETTER;
    const unsigned others = rule->with_marks ? OTHER : OTHER | MARK;
    size_t n, n_next;
    const unsigned kind = look(text, 0, &n);
    const unsigned next = look(text, n, &n_next);
    if (kind & letters) return run_end(text, 0, letters, SIZE_MAX);
    if (!(kind & (NEWLINE | NUMBER)) && (next & letters))
        return run_end(text, n, letters, SIZE_MAX);
    if (kind == NUMBER) return run_end(text, 0, NUMBER, rule->n_numbers);
    const size_t start = text.data[0] == ' ';
    if ((start ? next : kind) & others) {
        const size_t end = run_end(text, start, others, SIZE_MAX);
        return run_end(text, end, NEWLINE, SIZE_MAX);
    }
    const size_t lines = lines_end(text);
    return lines ? lines : spaces_end(text);
}

size_t qn_word_size(const qn_word_rule *rule, qn_str text) {
    return rule->gpt2 ? word_gpt2(text) : word_llama(rule, text);
}
