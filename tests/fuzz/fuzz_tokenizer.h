// What the tokenizer's fuzz targets do with a tokenizer that opened: encode a text that ends the
// input, decode the ids at once and one by one, compare.
#ifndef QN_FUZZ_TOKENIZER_H
#define QN_FUZZ_TOKENIZER_H

#include "core/buf.h"
#include "tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

// The input is FILE, a line "=====", and a text; without the line a fixed text is used.
static inline size_t split_input(const char *data, size_t size, const char **text,
                                 size_t *text_size) {
    static const char mark[] = "\n=====\n";
    static const char usual[] = " Hello  w\xc3\xb6rld\n\t123 <s>\xe2\x96\x81\xff\xf0\x9f\x98 end";
    *text = usual;
    *text_size = sizeof usual - 1;
    for (size_t i = 0; i + sizeof mark - 1 <= size; i++) {
        if (memcmp(data + i, mark, sizeof mark - 1) != 0) continue;
        *text = data + i + sizeof mark - 1;
        *text_size = size - i - (sizeof mark - 1);
        return i;
    }
    return size;
}

static inline void decode_one_by_one(const qn_tokenizer *tokenizer, const int32_t *ids, size_t n,
                                     qn_buf *out) {
    qn_decoder *decoder;
    const char *part;
    size_t size;
    if (qn_decoder_create(&decoder, tokenizer, NULL)) abort();
    for (size_t i = 0; i < n; i++) {
        if (qn_decoder_next(&part, &size, decoder, ids[i], NULL)) abort();
        qn_buf_add(out, part, size);
    }
    if (qn_decoder_finish(&part, &size, decoder, NULL)) abort();
    qn_buf_add(out, part, size);
    qn_decoder_destroy(decoder);
}

static inline void use_tokenizer(const qn_tokenizer *tokenizer, const char *text, size_t size) {
    for (int i = 0; i < 2; i++) {
        const qn_tokenize_opts opts =
            QN_INIT(qn_tokenize_opts, .special = i == 0, .add_ends = i == 0);
        int32_t *ids;
        size_t n, n_text;
        char *whole;
        if (qn_tokenize(&ids, &n, tokenizer, text, size, &opts, NULL)) continue;
        for (size_t j = 0; j < n; j++) {
            if (!qn_tokenizer_piece(tokenizer, ids[j], NULL)) abort();
        }
        if (qn_detokenize(&whole, &n_text, tokenizer, ids, n, false, NULL)) abort();
        qn_buf parts = {0};
        decode_one_by_one(tokenizer, ids, n, &parts);
        if (parts.size != n_text || (n_text && memcmp(parts.data, whole, n_text) != 0)) abort();
        qn_buf_deinit(&parts);
        qn_free(whole);
        qn_free(ids);
    }
}

#endif
