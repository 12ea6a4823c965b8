// Byte-level letters: byte-level vocabularies spell every byte as one visible character.
//
// The bytes '!'..'~', 0xA1..0xAC and 0xAE..0xFF stand for the code point of the same number; the
// other 68 bytes, in order, for U+0100 .. U+0143. A space is U+0120, a newline U+010A.
#ifndef QN_TOKENIZER_LETTERS_H
#define QN_TOKENIZER_LETTERS_H

#include "core/buf.h"
#include "core/str.h"

enum { QN_LETTER_END = 0x144 }; // no letter is at or above it

typedef struct qn_letters {
    char text[256][2];           // UTF-8 of the letter of a byte
    unsigned char size[256];     // 1 or 2
    int16_t byte[QN_LETTER_END]; // byte of a code point, -1: none
} qn_letters;

void qn_letters_init(qn_letters *letters);
void qn_letters_spell(const qn_letters *letters, const char *bytes, size_t size, qn_buf *out);
// Appends the bytes that a piece spells, or the piece itself if it is not made of letters only.
void qn_letters_read(const qn_letters *letters, qn_str piece, qn_buf *out);

#endif
