// SentencePiece's precompiled table of character replacements.
//
//   u32 trie_bytes | trie: u32 units of a double array | replacements, each ended by a NUL
//
// A unit of the trie: bits 0-7 label, bit 8 "a value follows", bit 9 scales the offset, bits 10-31
// offset; a value unit has bit 31 set, the rest is the place of a replacement. Every index that
// comes out of the blob is checked when it is used.
#ifndef QN_TOKENIZER_CHARSMAP_H
#define QN_TOKENIZER_CHARSMAP_H

#include "core/err.h"
#include "core/str.h"

// Caller storage; `{0}` is a valid empty table, which replaces nothing.
typedef struct qn_charsmap {
    uint32_t *units; // owned
    size_t n_units;
    char *texts; // owned, NUL at the end
    size_t texts_size;
} qn_charsmap;

// Copies what it needs. An empty blob gives an empty table.
QN_MUST_CHECK qn_status qn_charsmap_init(qn_charsmap *out, const void *blob, size_t size,
                                         qn_err *err);
void qn_charsmap_deinit(qn_charsmap *map);

// The replacement for the longest (or shortest) known prefix of `text`; false if there is none.
bool qn_charsmap_find(const qn_charsmap *map, qn_str text, bool longest, size_t *n, qn_str *to);

#endif
