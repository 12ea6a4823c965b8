// The vocabulary: pieces by id, ids by piece.
//
// Filled once by a loader (init, set, finish), constant afterwards. Memory stays within a small
// multiple of the file: 8 + 1 + 8 bytes per id, the text once, 8 bytes per lookup slot.
//
// A piece that occurs twice keeps both ids for decoding; looking it up gives the lower one. An
// empty piece is never found. Ids without a piece (holes of a tokenizer.json) have kind
// QN_PIECE_HOLE.
#ifndef QN_TOKENIZER_VOCAB_H
#define QN_TOKENIZER_VOCAB_H

#include "core/err.h"
#include "core/str.h"

// Longest piece in bytes. No published vocabulary comes near it; it bounds the work that one
// position of a text can cause.
enum { QN_PIECE_MAX = 4096 };

// Numbers as in GGUF and in SentencePiece files.
typedef enum qn_piece_kind {
    QN_PIECE_HOLE = 0,
    QN_PIECE_NORMAL = 1,
    QN_PIECE_UNKNOWN = 2,
    QN_PIECE_CONTROL = 3, // special: left out of decoded text, not read from plain text
    QN_PIECE_USER = 4,    // added: always taken whole from the text
    QN_PIECE_UNUSED = 5,  // takes no part in encoding
    QN_PIECE_BYTE = 6,    // <0xNN>
    QN_PIECE_KIND_COUNT
} qn_piece_kind;

typedef struct qn_piece {
    uint32_t offset, size; // in the text block
} qn_piece;

typedef struct qn_vocab_slot {
    uint32_t id1; // id + 1; 0: free
    uint32_t hash;
} qn_vocab_slot;

// Caller storage; `{0}` is a valid empty vocabulary.
typedef struct qn_vocab {
    int32_t n;
    qn_piece *pieces;
    unsigned char *kinds; // qn_piece_kind
    double *scores;       // NULL: the model has none
    char *text;           // every piece with a NUL after it
    size_t text_size, text_cap;
    qn_vocab_slot *slots;
    size_t cap; // of slots, a power of two
    uint64_t seed;
    int32_t bytes[256]; // id of the piece that stands for one byte, -1: none
    size_t longest;     // piece, in bytes
} qn_vocab;

// Room for ids 0 .. n-1, all holes. The caller has checked n against the size of its input.
QN_MUST_CHECK qn_status qn_vocab_init(qn_vocab *out, size_t n, bool with_scores, qn_err *err);
// Names a hole. Refuses a piece longer than QN_PIECE_MAX and an id that has a piece already.
QN_MUST_CHECK qn_status qn_vocab_set(qn_vocab *vocab, int32_t id, qn_str piece, qn_piece_kind kind,
                                     qn_err *err);
// Builds the lookup. Pieces spelled <0xNN> become byte pieces if `bytes_by_spelling`; a piece of
// kind BYTE that is spelled otherwise is an error.
QN_MUST_CHECK qn_status qn_vocab_finish(qn_vocab *vocab, bool bytes_by_spelling, qn_err *err);
void qn_vocab_deinit(qn_vocab *vocab);

// The id of a piece, -1 if there is none.
int32_t qn_vocab_find(const qn_vocab *vocab, const char *piece, size_t size);
// The byte that a piece spelled <0xNN> stands for, -1 for any other spelling.
int qn_piece_byte(qn_str piece);
// A random seed for hash tables that hold names from files.
uint64_t qn_hash_seed(void);

static inline qn_str qn_vocab_piece(const qn_vocab *vocab, int32_t id) {
    return (qn_str){vocab->text + vocab->pieces[id].offset, vocab->pieces[id].size};
}

static inline qn_piece_kind qn_vocab_kind(const qn_vocab *vocab, int32_t id) {
    return (qn_piece_kind)vocab->kinds[id];
}

// True for the id of a token: in range and not a hole.
static inline bool qn_vocab_has(const qn_vocab *vocab, int64_t id) {
    return id >= 0 && id < vocab->n && vocab->kinds[id] != QN_PIECE_HOLE;
}

#endif
