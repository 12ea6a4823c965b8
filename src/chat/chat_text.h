// Texts as Python counts them: UTF-8, in characters.
#ifndef QN_CHAT_CHAT_TEXT_H
#define QN_CHAT_CHAT_TEXT_H

#include "chat/render.h"

bool qn_jinja_char_is_space(uint32_t code);
// Letters and numbers.
bool qn_jinja_char_is_alnum(uint32_t code);
// Number of characters.
size_t qn_jinja_text_length(qn_str s);
// Byte offset of character i, which may be one past the last.
size_t qn_jinja_text_offset(qn_str s, size_t i);
// Where `part` first begins in `s` at or after byte `from`; SIZE_MAX: nowhere.
size_t qn_jinja_text_find(qn_str s, qn_str part, size_t from);
size_t qn_jinja_text_find_last(qn_str s, qn_str part);
// Without characters of `set` (NULL: white space) at the ends that are wanted.
qn_str qn_jinja_text_strip(qn_str s, const qn_str *set, bool left, bool right);
// The same for *s, paid for by the characters taken away.
QN_MUST_CHECK qn_status qn_jinja_text_strip_paid(qn_str *s, qn_jinja_run *r, const qn_str *set,
                                                 bool left, bool right, qn_err *err);
// Steps for a search in a text, and for counting its characters.
QN_MUST_CHECK qn_status qn_jinja_text_pay_search(qn_jinja_run *r, qn_str s, qn_err *err);
QN_MUST_CHECK qn_status qn_jinja_text_pay_length(qn_jinja_run *r, qn_str s, qn_err *err);
// Size of the character at `s`, and its code; broken UTF-8 counts as characters of one byte.
size_t qn_jinja_char_at(qn_str s, size_t at, uint32_t *code);
// -1, 0 or 1.
int qn_jinja_str_compare(qn_str a, qn_str b);
static inline bool qn_jinja_str_same(qn_str a, qn_str b) {
    return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}
static inline qn_str qn_jinja_str_part(qn_str s, size_t from, size_t to) {
    return (qn_str){s.data + from, to - from};
}

// As repr() writes a text.
void qn_jinja_text_repr(qn_buf *to, qn_str s);
// With &, <, >, ' and " as HTML has them.
void qn_jinja_text_escape(qn_buf *to, qn_str s);
void qn_jinja_char_print(qn_buf *to, uint32_t code);
// \x with two digits, \u with four or \U with eight.
void qn_jinja_code_print(qn_buf *to, char letter, uint32_t code);

typedef enum qn_jinja_case {
    QN_CASE_UPPER,
    QN_CASE_LOWER,
    QN_CASE_CAPITAL,
    QN_CASE_TITLE,
    QN_CASE_SWAP
} qn_jinja_case;
void qn_jinja_text_recase(qn_buf *to, qn_str s, qn_jinja_case how);

#endif
