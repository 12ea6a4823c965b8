#include "tokenizer/letters.h"

#include "core/utf8.h"

static bool stands_for_itself(int byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

void qn_letters_init(qn_letters *letters) {
    for (int i = 0; i < QN_LETTER_END; i++) letters->byte[i] = -1;
    uint32_t next = 0x100;
    for (int byte = 0; byte < 256; byte++) {
        const uint32_t code = stands_for_itself(byte) ? (uint32_t)byte : next++;
        char text[4];
        letters->size[byte] = (unsigned char)qn_utf8_encode(code, text);
        memcpy(letters->text[byte], text, 2);
        letters->byte[code] = (int16_t)byte;
    }
}

void qn_letters_spell(const qn_letters *letters, const char *bytes, size_t size, qn_buf *out) {
    for (size_t i = 0; i < size; i++) {
        const unsigned char byte = (unsigned char)bytes[i];
        qn_buf_add(out, letters->text[byte], letters->size[byte]);
    }
}

void qn_letters_read(const qn_letters *letters, qn_str piece, qn_buf *out) {
    const size_t start = out->size;
    for (size_t i = 0; i < piece.size;) {
        uint32_t code;
        const size_t n = qn_utf8_decode(piece.data + i, piece.size - i, &code);
        if (n == 0 || code >= QN_LETTER_END || letters->byte[code] < 0) {
            if (out->data) out->size = start;
            qn_buf_add(out, piece.data, piece.size);
            return;
        }
        const char byte = (char)letters->byte[code];
        qn_buf_add(out, &byte, 1);
        i += n;
    }
}
