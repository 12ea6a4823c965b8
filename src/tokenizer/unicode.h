// Unicode on text that need not be valid: stray bytes pass through every function as they are.
#ifndef QN_TOKENIZER_UNICODE_H
#define QN_TOKENIZER_UNICODE_H

#include "core/buf.h"
#include "core/str.h"

typedef enum qn_normal_form { QN_NFC, QN_NFD, QN_NFKC, QN_NFKD } qn_normal_form;

// Appends the normal form. Linear: long runs of combining marks are sorted by counting.
QN_MUST_CHECK qn_status qn_unicode_normalize(qn_buf *out, qn_str text, qn_normal_form form,
                                             qn_err *err);
// Appends the text in lower case, character by character.
void qn_unicode_lower(qn_buf *out, qn_str text);
// Appends the text without nonspacing marks.
void qn_unicode_strip_accents(qn_buf *out, qn_str text);
// Appends the text with U+FFFD for each longest run of bytes that begins a character but is none.
void qn_unicode_repair(qn_buf *out, qn_str text);

// Bytes at the start of `text` that are valid UTF-8.
size_t qn_unicode_valid_size(qn_str text);
// Length of the ill-formed sequence at the start of non-empty text: the longest beginning of a
// character, or 1.
size_t qn_unicode_broken_size(qn_str text);
// White_Space, as pattern white space of tokenizer files.
bool qn_unicode_is_space(uint32_t code);
// Letter, mark, decimal digit or connector: what \w means in tokenizer files.
bool qn_unicode_is_word(uint32_t code);
// Length of the grapheme cluster at the start of valid, non-empty text.
size_t qn_unicode_grapheme(qn_str text);

#endif
