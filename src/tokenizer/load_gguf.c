// The tokenizer.ggml.* keys of a GGUF file.
//
//   model   "gpt2" byte-level BPE | "llama" SentencePiece BPE | "t5" unigram
//   pre     name of the pattern (patterns.c), for BPE
//   tokens, scores, token_type, merges, special ids, what to add around a text
// When keys are absent: SentencePiece adds the beginning token and a space in front; unigram adds
// the end token and a space; BPE adds nothing, except llama-bpe, which adds the beginning token.
#include "tokenizer/object.h"

#include <math.h>
#include <stdio.h>

// --- keys ----------------------------------------------------------------------------------------

static const qn_key *find_key(const qn_source *source, const char *name) {
    char full[64];
    snprintf(full, sizeof full, "tokenizer.ggml.%s", name);
    return qn_source_find_key(source, full);
}

static qn_status get_bool(bool *out, const qn_source *source, const char *name, bool otherwise,
                          qn_err *err) {
    const qn_key *key = find_key(source, name);
    if (key && key->kind != QN_KEY_BOOL)
        return QN_FAIL(err, FORMAT, "%s: %s, want a bool", key->name.data, key->type_name);
    *out = key ? key->as.b : otherwise;
    return QN_OK;
}

static qn_status get_text(qn_str *out, const qn_source *source, const char *name,
                          const char *otherwise, qn_err *err) {
    const qn_key *key = find_key(source, name);
    if (key && key->kind != QN_KEY_STRING)
        return QN_FAIL(err, FORMAT, "%s: %s, want a string", key->name.data, key->type_name);
    *out = key ? key->as.s : qn_str_of(otherwise);
    return QN_OK;
}

// An array of `n` elements (0: any number); *out is NULL if the key is absent.
static qn_status get_array(const qn_key **out, const qn_source *source, const char *name,
                           qn_key_kind element, size_t n, qn_err *err) {
    const qn_key *key = find_key(source, name);
    *out = key;
    if (!key) return QN_OK;
    const bool is_right = qn_key_is_array_of(key, element) ||
                          (element == QN_KEY_FLOAT && qn_key_is_array_of(key, QN_KEY_INT));
    if (!is_right)
        return QN_FAIL(err, FORMAT, "%s: %s, want an array of %s", key->name.data, key->type_name,
                       element == QN_KEY_STRING ? "strings" : "numbers");
    if (n && key->n != n)
        return QN_FAIL(err, FORMAT, "%s: %zu elements, but there are %zu tokens", key->name.data,
                       key->n, n);
    return QN_OK;
}

static qn_status get_id(int32_t *out, const qn_source *source, const char *name, int32_t n,
                        bool must_exist, qn_err *err) {
    const qn_key *key = find_key(source, name);
    if (!key) return QN_OK;
    if (key->kind != QN_KEY_INT)
        return QN_FAIL(err, FORMAT, "%s: %s, want a whole number", key->name.data, key->type_name);
    const bool is_none = key->as.i == -1 || key->as.i == UINT32_MAX;
    const bool is_inside = key->as.i >= 0 && key->as.i < n;
    if (!is_none && !is_inside && must_exist)
        return QN_FAIL(err, FORMAT, "%s: %lld, but there are %d tokens", key->name.data,
                       (long long)key->as.i, n);
    *out = is_inside ? (int32_t)key->as.i : -1;
    return QN_OK;
}

// --- the vocabulary ------------------------------------------------------------------------------

static qn_status get_kind(qn_piece_kind *out, const qn_key *types, size_t i, qn_err *err) {
    const int64_t type = types ? qn_key_int_at(types, i) : QN_PIECE_NORMAL;
    if (type < 0 || type >= QN_PIECE_KIND_COUNT)
        return QN_FAIL(err, FORMAT, "%s: token %zu has type %lld, want 1 to 6", types->name.data, i,
                       (long long)type);
    *out = type == 0 ? QN_PIECE_NORMAL : (qn_piece_kind)type; // 0: "undefined" in some files
    return QN_OK;
}

static qn_status load_vocab(qn_vocab *vocab, const qn_source *source, bool with_scores,
                            qn_err *err) {
    const qn_key *tokens = NULL, *types = NULL, *scores = NULL;
    QN_TRY(get_array(&tokens, source, "tokens", QN_KEY_STRING, 0, err));
    if (!tokens) return QN_FAIL(err, FORMAT, "tokenizer.ggml.tokens is missing");
    const size_t n = tokens->n;
    QN_TRY(qn_vocab_init(vocab, n, with_scores, err));
    QN_TRY(get_array(&types, source, "token_type", QN_KEY_INT, n, err));
    QN_TRY(get_array(&scores, source, "scores", QN_KEY_FLOAT, n, err));
    if (with_scores && !scores) return QN_FAIL(err, FORMAT, "tokenizer.ggml.scores is missing");
    for (size_t i = 0; i < n; i++) {
        qn_piece_kind kind = QN_PIECE_NORMAL;
        QN_TRY(get_kind(&kind, types, i, err));
        QN_TRY(qn_vocab_set(vocab, (int32_t)i, qn_key_string_at(tokens, i), kind, err));
        if (!with_scores) continue;
        vocab->scores[i] = qn_key_float_at(scores, i);
        if (!isfinite(vocab->scores[i]))
            return QN_FAIL(err, FORMAT, "tokenizer.ggml.scores: that of token %zu is not finite",
                           i);
    }
    return qn_vocab_finish(vocab, with_scores && !types, err);
}

static qn_status load_added(qn_tokenizer *tokenizer, qn_err *err) {
    const qn_vocab *vocab = &tokenizer->vocab;
    for (int32_t id = 0; id < vocab->n; id++) {
        const qn_piece_kind kind = qn_vocab_kind(vocab, id);
        if (kind != QN_PIECE_CONTROL && kind != QN_PIECE_USER && kind != QN_PIECE_UNKNOWN) continue;
        const qn_added_token token = {
            .id = id, .special = kind != QN_PIECE_USER, .text = qn_vocab_piece(vocab, id)};
        QN_TRY(qn_added_add(&tokenizer->added, &token, err));
    }
    return qn_added_finish(&tokenizer->added, err);
}

static qn_status load_ids(qn_tokenizer *tokenizer, const qn_source *source, qn_err *err) {
    const int32_t n = tokenizer->vocab.n;
    qn_tokenizer_info *info = &tokenizer->info;
    int32_t eom = -1;
    for (int32_t id = 0; id < n && info->unk < 0; id++) {
        if (qn_vocab_kind(&tokenizer->vocab, id) == QN_PIECE_UNKNOWN) info->unk = id;
    }
    QN_TRY(get_id(&info->bos, source, "bos_token_id", n, true, err));
    QN_TRY(get_id(&info->eos, source, "eos_token_id", n, true, err));
    QN_TRY(get_id(&info->eot, source, "eot_token_id", n, true, err));
    QN_TRY(get_id(&eom, source, "eom_token_id", n, true, err));
    QN_TRY(get_id(&info->unk, source, "unknown_token_id", n, true, err));
    // Files with a padding id one past the end are common, and nothing here uses it.
    QN_TRY(get_id(&info->pad, source, "padding_token_id", n, false, err));
    if (info->eot >= 0 && qn_vocab_kind(&tokenizer->vocab, info->eot) == QN_PIECE_BYTE)
        info->eot = -1; // a mistake of some converters
    qn_tokenizer_add_end(tokenizer, eom);
    return QN_OK;
}

// --- models --------------------------------------------------------------------------------------

typedef struct gguf_defaults {
    bool add_bos, add_eos;
} gguf_defaults;

static qn_status unknown_pattern(qn_str name, qn_err *err) {
    qn_buf known = {0};
    qn_pattern_list(&known);
    const qn_status status =
        QN_FAIL(err, UNSUPPORTED, "tokenizer.ggml.pre '%.60s' is not known (known: %s)", name.data,
                known.data ? known.data : "");
    qn_buf_deinit(&known);
    return status;
}

static qn_status load_bpe(qn_tokenizer *tokenizer, const qn_source *source, gguf_defaults *defaults,
                          qn_err *err) {
    qn_bpe *bpe = &tokenizer->bpe;
    qn_str pre = {0};
    const qn_key *merges = NULL;
    QN_TRY(get_text(&pre, source, "pre", "default", err));
    const qn_pattern_row *row = qn_pattern_find(pre);
    if (!row) return unknown_pattern(pre, err);
    QN_TRY(qn_pretok_add_row(&tokenizer->pretok, row, err));
    QN_TRY(load_vocab(&tokenizer->vocab, source, false, err));
    QN_TRY(get_array(&merges, source, "merges", QN_KEY_STRING, 0, err));
    if (!merges) return QN_FAIL(err, FORMAT, "tokenizer.ggml.merges is missing");
    if (merges->n >= UINT32_MAX) return QN_FAIL(err, LIMIT, "%zu merges", merges->n);
    tokenizer->kind = QN_MODEL_BPE;
    tokenizer->info.model = "BPE";
    tokenizer->info.pre = row->name;
    tokenizer->keeps_bytes = true;
    tokenizer->decode = (qn_decode_rule){.byte_level = true, .added_as_is = true};
    bpe->byte_level = true;
    bpe->ignore_merges = row->ignore_merges;
    defaults->add_bos = row->add_bos;
    QN_TRY(qn_bpe_init(bpe, &tokenizer->vocab, &tokenizer->letters, err));
    for (size_t i = 0; i < merges->n; i++)
        QN_TRY(qn_bpe_add_line(bpe, qn_key_string_at(merges, i), (uint32_t)i, err));
    return QN_OK;
}

// Spaces become U+2581, with one in front of the text if the file wants that.
static qn_status load_spaces(qn_tokenizer *tokenizer, const qn_source *source, bool squeeze,
                             qn_err *err) {
    qn_norm_step *step = &tokenizer->norm.steps[0];
    *step = (qn_norm_step){.kind = QN_NORM_SENTENCEPIECE};
    tokenizer->norm.n = 1;
    QN_TRY(get_bool(&step->dummy_prefix, source, "add_space_prefix", true, err));
    QN_TRY(get_bool(&step->squeeze, source, "remove_extra_whitespaces", squeeze, err));
    tokenizer->decode = (qn_decode_rule){
        .byte_fallback = true,
        .added_as_is = true,
        .n_replace = 1,
        .from = {qn_str_of("\xe2\x96\x81")},
        .to = {qn_str_of(" ")},
        .strip = step->squeeze ? SIZE_MAX : step->dummy_prefix,
        .strip_char = ' ',
    };
    return QN_OK;
}

static qn_status load_sentencepiece(qn_tokenizer *tokenizer, const qn_source *source,
                                    gguf_defaults *defaults, qn_err *err) {
    QN_TRY(load_vocab(&tokenizer->vocab, source, true, err));
    QN_TRY(load_spaces(tokenizer, source, false, err));
    tokenizer->kind = QN_MODEL_SENTENCEPIECE;
    tokenizer->info.model = "SentencePiece BPE";
    tokenizer->keeps_bytes = true;
    tokenizer->sentencepiece.unknown = (qn_unknown_rule){.id = -1, .to_bytes = true, .fuse = true};
    defaults->add_bos = true;
    return qn_sentencepiece_init(&tokenizer->sentencepiece, &tokenizer->vocab, err);
}

static qn_status load_charsmap(qn_tokenizer *tokenizer, const qn_source *source, qn_err *err) {
    const qn_key *key = NULL;
    QN_TRY(get_array(&key, source, "precompiled_charsmap", QN_KEY_INT, 0, err));
    if (!key) return QN_OK;
    qn_buf blob = {0};
    for (size_t i = 0; i < key->n; i++) {
        const char byte = (char)(qn_key_int_at(key, i) & 0xff);
        qn_buf_add(&blob, &byte, 1);
    }
    qn_status status = blob.failed ? QN_NOMEM(err, "precompiled charsmap") : QN_OK;
    if (!status)
        status = qn_charsmap_init(&tokenizer->norm.steps[0].map, blob.data, blob.size, err);
    qn_buf_deinit(&blob);
    return status;
}

static bool has_kind(const qn_vocab *vocab, qn_piece_kind kind) {
    return memchr(vocab->kinds, (int)kind, (size_t)vocab->n) != NULL;
}

static qn_status load_unigram(qn_tokenizer *tokenizer, const qn_source *source,
                              gguf_defaults *defaults, qn_err *err) {
    QN_TRY(load_vocab(&tokenizer->vocab, source, true, err));
    QN_TRY(load_spaces(tokenizer, source, false, err));
    QN_TRY(load_charsmap(tokenizer, source, err));
    tokenizer->kind = QN_MODEL_UNIGRAM;
    tokenizer->info.model = "unigram";
    qn_unigram *unigram = &tokenizer->unigram;
    unigram->single_precision = true;
    unigram->unknown.fuse = true;
    unigram->unknown.to_bytes = has_kind(&tokenizer->vocab, QN_PIECE_BYTE);
    tokenizer->keeps_bytes = unigram->unknown.to_bytes;
    defaults->add_eos = true;
    return qn_unigram_init(unigram, &tokenizer->vocab, err);
}

typedef struct model_row {
    const char *name;
    qn_status (*load)(qn_tokenizer *, const qn_source *, gguf_defaults *, qn_err *);
} model_row;

static const model_row models[] = {
    {"gpt2", load_bpe},
    {"llama", load_sentencepiece},
    {"t5", load_unigram},
};

static const model_row *find_model(qn_str name) {
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        if (qn_str_is(name, models[i].name)) return &models[i];
    }
    return NULL;
}

static qn_status load_all(qn_tokenizer *tokenizer, const qn_source *source, qn_err *err) {
    qn_tokenizer_info *info = &tokenizer->info;
    gguf_defaults defaults = {0};
    qn_str name = {0};
    if (!find_key(source, "model"))
        return QN_FAIL(err, FORMAT, "no tokenizer in it (tokenizer.ggml.model is missing)");
    QN_TRY(get_text(&name, source, "model", "", err));
    const model_row *row = find_model(name);
    if (!row)
        return QN_FAIL(err, UNSUPPORTED,
                       "tokenizer.ggml.model '%.80s' is not known (known: gpt2 llama t5)",
                       name.data);
    QN_TRY(row->load(tokenizer, source, &defaults, err));
    QN_TRY(load_added(tokenizer, err));
    QN_TRY(load_ids(tokenizer, source, err));
    tokenizer->bpe.unknown.id = tokenizer->sentencepiece.unknown.id =
        tokenizer->unigram.unknown.id = info->unk;
    QN_TRY(get_bool(&info->add_bos, source, "add_bos_token", defaults.add_bos, err));
    QN_TRY(get_bool(&info->add_eos, source, "add_eos_token", defaults.add_eos, err));
    info->add_bos &= info->bos >= 0;
    info->add_eos &= info->eos >= 0;
    if (info->add_bos) tokenizer->before = (qn_wrap){{info->bos}, 1};
    if (info->add_eos) tokenizer->after = (qn_wrap){{info->eos}, 1};
    return qn_tokenizer_finish(tokenizer, err);
}

qn_status qn_tokenizer_from_gguf(qn_tokenizer **out, const qn_source *source, qn_err *err) {
    qn_tokenizer *tokenizer = qn_tokenizer_alloc();
    qn_status status = tokenizer ? load_all(tokenizer, source, err) : QN_NOMEM(err, "tokenizer");
    if (status) {
        qn_tokenizer_close(tokenizer);
        return qn_err_prefix(err, status, "%s", qn_source_path(source));
    }
    *out = tokenizer;
    return QN_OK;
}
