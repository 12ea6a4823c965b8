// tokenizer.model: SentencePiece's protocol buffer.
//
//   ModelProto       1 pieces (repeated) | 2 trainer | 3 normalizer
//   SentencePiece    1 piece | 2 score (float) | 3 type
//   TrainerSpec      3 model_type (1 unigram, 2 BPE) | 24 spaces after words | 35 byte_fallback |
//                    40-43 unk, bos, eos, pad ids
//   NormalizerSpec   2 charsmap | 3 add_dummy_prefix | 4 remove_extra_whitespaces |
//                    5 escape_whitespaces
// Other fields are about training and are passed over.
#include "core/mem.h"
#include "tokenizer/object.h"

#include <math.h>

// --- wire format ---------------------------------------------------------------------------------

typedef struct field {
    uint64_t number;
    int wire;       // 0 varint, 1 eight bytes, 2 bytes, 5 four bytes
    uint64_t value; // wire 0, 1, 5
    qn_str bytes;   // wire 2
} field;

static bool read_varint(uint64_t *out, qn_str *in) {
    uint64_t value = 0;
    for (int i = 0; i < 10; i++) {
        if (in->size == 0) return false;
        const unsigned char byte = (unsigned char)in->data[0];
        in->data++;
        in->size--;
        value |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (!(byte & 0x80)) {
            *out = value;
            return true;
        }
    }
    return false;
}

static bool read_bytes(qn_str *out, qn_str *in, uint64_t n) {
    if (n > in->size) return false;
    *out = (qn_str){in->data, (size_t)n};
    in->data += n;
    in->size -= n;
    return true;
}

static bool read_fixed(uint64_t *out, qn_str *in, size_t n) {
    qn_str bytes = {0};
    if (!read_bytes(&bytes, in, n)) return false;
    *out = 0;
    for (size_t i = 0; i < n; i++) *out |= (uint64_t)(unsigned char)bytes.data[i] << (8 * i);
    return true;
}

static qn_status read_field(field *out, qn_str *in, const char *what, qn_err *err) {
    uint64_t key, n;
    bool ok = read_varint(&key, in);
    if (!ok) return QN_FAIL(err, FORMAT, "%s: cut off", what);
    *out = (field){.number = key >> 3, .wire = (int)(key & 7)};
    if (out->wire == 0)
        ok = read_varint(&out->value, in);
    else if (out->wire == 1)
        ok = read_fixed(&out->value, in, 8);
    else if (out->wire == 2)
        ok = read_varint(&n, in) && read_bytes(&out->bytes, in, n);
    else if (out->wire == 5)
        ok = read_fixed(&out->value, in, 4);
    else
        return QN_FAIL(err, FORMAT, "%s: field %llu has wire type %d", what,
                       (unsigned long long)out->number, out->wire);
    if (!ok || out->number == 0)
        return QN_FAIL(err, FORMAT, "%s: field %llu is cut off", what,
                       (unsigned long long)out->number);
    return QN_OK;
}

static qn_status want_wire(const field *f, int wire, const char *what, qn_err *err) {
    if (f->wire == wire) return QN_OK;
    return QN_FAIL(err, FORMAT, "%s: field %llu has wire type %d, want %d", what,
                   (unsigned long long)f->number, f->wire, wire);
}

// --- messages ------------------------------------------------------------------------------------

// Varint settings, at their defaults to begin with.
typedef struct settings {
    int64_t model_type, byte_fallback, space_after, unk, bos, eos, pad; // trainer
    int64_t dummy_prefix, squeeze, escape;                              // normaliser
    qn_str charsmap;
    size_t n_pieces;
} settings;

typedef struct setting_row {
    uint64_t number;
    size_t offset; // in settings
} setting_row;

static const setting_row trainer_rows[] = {
    {3, offsetof(settings, model_type)},     {24, offsetof(settings, space_after)},
    {35, offsetof(settings, byte_fallback)}, {40, offsetof(settings, unk)},
    {41, offsetof(settings, bos)},           {42, offsetof(settings, eos)},
    {43, offsetof(settings, pad)},
};
static const setting_row normalizer_rows[] = {
    {3, offsetof(settings, dummy_prefix)},
    {4, offsetof(settings, squeeze)},
    {5, offsetof(settings, escape)},
};

static qn_status read_settings(settings *out, qn_str in, const setting_row *rows, size_t n_rows,
                               qn_err *err) {
    static const char what[] = "SentencePiece settings";
    while (in.size) {
        field f;
        QN_TRY(read_field(&f, &in, what, err));
        if (rows == normalizer_rows && f.number == 2) {
            QN_TRY(want_wire(&f, 2, what, err));
            out->charsmap = f.bytes;
        }
        for (size_t i = 0; i < n_rows; i++) {
            if (f.number != rows[i].number) continue;
            QN_TRY(want_wire(&f, 0, what, err));
            // Negative numbers are written as 64 bits.
            memcpy((char *)out + rows[i].offset, &f.value, sizeof f.value);
        }
    }
    return QN_OK;
}

static qn_status read_outline(settings *out, qn_str in, qn_err *err) {
    *out = (settings){.model_type = 1,
                      .bos = 1,
                      .eos = 2,
                      .pad = -1,
                      .dummy_prefix = 1,
                      .squeeze = 1,
                      .escape = 1};
    while (in.size) {
        field f;
        QN_TRY(read_field(&f, &in, "SentencePiece model", err));
        if (f.number < 1 || f.number > 3) continue;
        QN_TRY(want_wire(&f, 2, "SentencePiece model", err));
        if (f.number == 1) out->n_pieces++;
        if (f.number == 2)
            QN_TRY(read_settings(out, f.bytes, trainer_rows,
                                 sizeof trainer_rows / sizeof *trainer_rows, err));
        if (f.number == 3)
            QN_TRY(read_settings(out, f.bytes, normalizer_rows,
                                 sizeof normalizer_rows / sizeof *normalizer_rows, err));
    }
    return QN_OK;
}

static qn_status read_piece(qn_vocab *vocab, int32_t id, qn_str in, qn_err *err) {
    static const char what[] = "SentencePiece piece";
    qn_str piece = {"", 0};
    uint64_t kind = QN_PIECE_NORMAL, bits = 0;
    while (in.size) {
        field f;
        QN_TRY(read_field(&f, &in, what, err));
        if (f.number < 1 || f.number > 3) continue;
        static const int wires[] = {0, 2, 5, 0};
        QN_TRY(want_wire(&f, wires[f.number], what, err));
        if (f.number == 1) piece = f.bytes;
        if (f.number == 2) bits = f.value;
        if (f.number == 3) kind = f.value;
    }
    if (kind < QN_PIECE_NORMAL || kind >= QN_PIECE_KIND_COUNT)
        return QN_FAIL(err, FORMAT, "token %d: type %llu", id, (unsigned long long)kind);
    const uint32_t word = (uint32_t)bits;
    float score;
    memcpy(&score, &word, sizeof score);
    if (!isfinite(score)) return QN_FAIL(err, FORMAT, "token %d: its score is not finite", id);
    vocab->scores[id] = (double)score;
    return qn_vocab_set(vocab, id, piece, (qn_piece_kind)kind, err);
}

// --- the tokenizer -------------------------------------------------------------------------------

static qn_status load_pieces(qn_tokenizer *tokenizer, const settings *s, qn_str in, qn_err *err) {
    int32_t id = 0;
    QN_TRY(qn_vocab_init(&tokenizer->vocab, s->n_pieces, true, err));
    while (in.size) {
        field f;
        QN_TRY(read_field(&f, &in, "SentencePiece model", err));
        if (f.number == 1) QN_TRY(read_piece(&tokenizer->vocab, id++, f.bytes, err));
    }
    return qn_vocab_finish(&tokenizer->vocab, false, err);
}

// User-defined pieces are found in the normalised text and left alone by the normaliser; control
// pieces are found in the text itself, if the caller wants special tokens at all.
static qn_status load_symbols(qn_tokenizer *tokenizer, qn_err *err) {
    const qn_vocab *vocab = &tokenizer->vocab;
    size_t n = 0;
    for (int32_t id = 0; id < vocab->n; id++) n += qn_vocab_kind(vocab, id) == QN_PIECE_USER;
    qn_prefix_item *items = qn_alloc(n, sizeof *items);
    if (!items) return QN_NOMEM(err, "user-defined symbols");
    n = 0;
    for (int32_t id = 0; id < vocab->n; id++) {
        const qn_str piece = qn_vocab_piece(vocab, id);
        if (qn_vocab_kind(vocab, id) == QN_PIECE_USER && piece.size)
            items[n++] = (qn_prefix_item){piece.data, (uint32_t)piece.size, id};
    }
    QN_TRY(qn_prefix_init(&tokenizer->whole, items, n, err));
    for (int32_t id = 0; id < vocab->n; id++) {
        const qn_piece_kind kind = qn_vocab_kind(vocab, id);
        const qn_added_token token = {.id = id,
                                      .special = kind != QN_PIECE_USER,
                                      .normalized = kind == QN_PIECE_USER,
                                      .text = qn_vocab_piece(vocab, id)};
        if (kind == QN_PIECE_USER || kind == QN_PIECE_CONTROL || kind == QN_PIECE_UNKNOWN)
            QN_TRY(qn_added_add(&tokenizer->added, &token, err));
    }
    return qn_added_finish(&tokenizer->added, err);
}

static void set_decoding(qn_tokenizer *tokenizer, const settings *s) {
    tokenizer->decode = (qn_decode_rule){
        .byte_fallback = true,
        .n_replace = s->escape != 0,
        .from = {qn_str_of("\xe2\x96\x81")},
        .to = {qn_str_of(" ")},
        .strip = s->squeeze ? SIZE_MAX : s->dummy_prefix != 0,
        .strip_char = ' ',
    };
}

static qn_status load_model(qn_tokenizer *tokenizer, const settings *s, qn_err *err) {
    const qn_unknown_rule unknown = {
        .id = (int32_t)s->unk, .to_bytes = s->byte_fallback != 0, .fuse = true};
    tokenizer->keeps_bytes = unknown.to_bytes;
    if (s->model_type == 2) {
        tokenizer->kind = QN_MODEL_SENTENCEPIECE;
        tokenizer->info.model = "SentencePiece BPE";
        tokenizer->sentencepiece.unknown = unknown;
        return qn_sentencepiece_init(&tokenizer->sentencepiece, &tokenizer->vocab, err);
    }
    tokenizer->kind = QN_MODEL_UNIGRAM;
    tokenizer->info.model = "unigram";
    tokenizer->unigram.unknown = unknown;
    tokenizer->unigram.single_precision = true;
    return qn_unigram_init(&tokenizer->unigram, &tokenizer->vocab, err);
}

static qn_status check_ids(const qn_tokenizer *tokenizer, const settings *s, qn_err *err) {
    const int64_t ids[] = {s->unk, s->bos, s->eos, s->pad};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        if (ids[i] < -1 || ids[i] >= tokenizer->vocab.n)
            return QN_FAIL(err, FORMAT, "special token %lld, but there are %d tokens",
                           (long long)ids[i], tokenizer->vocab.n);
    }
    return QN_OK;
}

static qn_status load_all(qn_tokenizer *tokenizer, qn_str in, qn_err *err) {
    settings s;
    QN_TRY(read_outline(&s, in, err));
    if (s.model_type != 1 && s.model_type != 2)
        return QN_FAIL(err, UNSUPPORTED, "SentencePiece model type %lld (known: 1 unigram, 2 BPE)",
                       (long long)s.model_type);
    if (s.space_after)
        return QN_FAIL(err, UNSUPPORTED, "SentencePiece: treat_whitespace_as_suffix");
    QN_TRY(load_pieces(tokenizer, &s, in, err));
    QN_TRY(check_ids(tokenizer, &s, err));
    QN_TRY(load_symbols(tokenizer, err));
    QN_TRY(load_model(tokenizer, &s, err));
    qn_norm_step *step = &tokenizer->norm.steps[0];
    *step = (qn_norm_step){.kind = QN_NORM_SENTENCEPIECE,
                           .dummy_prefix = s.dummy_prefix != 0,
                           .squeeze = s.squeeze != 0,
                           .keep_spaces = s.escape == 0,
                           .whole = &tokenizer->whole};
    tokenizer->norm.n = 1;
    QN_TRY(qn_charsmap_init(&step->map, s.charsmap.data, s.charsmap.size, err));
    set_decoding(tokenizer, &s);
    qn_tokenizer_info *info = &tokenizer->info;
    info->unk = (int32_t)s.unk;
    info->bos = (int32_t)s.bos;
    info->eos = (int32_t)s.eos;
    info->pad = (int32_t)s.pad;
    // The file does not say; models with a beginning token expect it, as GGUF's default has it.
    info->add_bos = s.model_type == 2 && s.bos >= 0;
    if (info->add_bos) tokenizer->before = (qn_wrap){{info->bos}, 1};
    return qn_tokenizer_finish(tokenizer, err);
}

qn_status qn_tokenizer_from_model(qn_tokenizer **out, const char *bytes, size_t size,
                                  const char *name, qn_err *err) {
    qn_tokenizer *tokenizer = qn_tokenizer_alloc();
    qn_status status =
        tokenizer ? load_all(tokenizer, (qn_str){bytes, size}, err) : QN_NOMEM(err, "tokenizer");
    if (status) {
        qn_tokenizer_close(tokenizer);
        return qn_err_prefix(err, status, "%s", name);
    }
    *out = tokenizer;
    return QN_OK;
}
