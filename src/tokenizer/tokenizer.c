#include "tokenizer/tokenizer.h"

#include "core/file.h"
#include "core/mem.h"
#include "core/structs.h"
#include "tokenizer/object.h"

#include <stdio.h>

// --- the object ----------------------------------------------------------------------------------

qn_tokenizer *qn_tokenizer_alloc(void) {
    qn_tokenizer *tokenizer = qn_alloc(1, sizeof *tokenizer);
    if (!tokenizer) return NULL;
    qn_letters_init(&tokenizer->letters);
    tokenizer->info = QN_INIT(qn_tokenizer_info, .model = "", .pre = "", .bos = -1, .eos = -1,
                              .eot = -1, .unk = -1, .pad = -1);
    tokenizer->bpe.unknown.id = -1;
    tokenizer->sentencepiece.unknown.id = -1;
    tokenizer->unigram.unknown.id = -1;
    return tokenizer;
}

void qn_tokenizer_close(qn_tokenizer *tokenizer) {
    if (!tokenizer) return;
    qn_bpe_deinit(&tokenizer->bpe);
    qn_sentencepiece_deinit(&tokenizer->sentencepiece);
    qn_unigram_deinit(&tokenizer->unigram);
    qn_prefix_deinit(&tokenizer->whole);
    qn_pretok_deinit(&tokenizer->pretok);
    qn_norm_deinit(&tokenizer->norm);
    qn_added_deinit(&tokenizer->added);
    qn_vocab_deinit(&tokenizer->vocab);
    qn_arena_deinit(&tokenizer->arena);
    qn_free(tokenizer);
}

qn_status qn_tokenizer_keep(qn_str *out, qn_tokenizer *tokenizer, qn_str text, qn_err *err) {
    const char *copy = qn_arena_strdup(&tokenizer->arena, text.data, text.size);
    if (!copy) return QN_NOMEM(err, "tokenizer");
    *out = (qn_str){copy, text.size};
    return QN_OK;
}

// --- special tokens ------------------------------------------------------------------------------

// Names that published models give to the end of a turn, and to the end of a text.
static const char *const turn_ends[] = {"<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|end|>"};
static const char *const text_ends[] = {"<|endoftext|>", "<|end_of_text|>", "<|eom_id|>"};
enum { N_TURN_ENDS = sizeof turn_ends / sizeof *turn_ends };
enum { N_TEXT_ENDS = sizeof text_ends / sizeof *text_ends };

void qn_tokenizer_add_end(qn_tokenizer *tokenizer, int64_t id) {
    if (id < 0 || id >= tokenizer->vocab.n || tokenizer->n_ends == QN_ENDS_MAX) return;
    // A file that names a byte as the end of a turn is wrong; text must not stop there.
    if (qn_vocab_kind(&tokenizer->vocab, (int32_t)id) == QN_PIECE_BYTE) return;
    if (qn_tokenizer_is_end(tokenizer, (int32_t)id)) return;
    tokenizer->ends[tokenizer->n_ends++] = (int32_t)id;
}

static int32_t find_name(const qn_tokenizer *tokenizer, const char *name) {
    return qn_vocab_find(&tokenizer->vocab, name, strlen(name));
}

bool qn_tokenizer_has(const qn_tokenizer *tokenizer, int32_t id) {
    const qn_vocab *vocab = &tokenizer->vocab;
    if (!qn_vocab_has(vocab, id)) return false;
    if (qn_vocab_kind(vocab, id) != QN_PIECE_UNUSED) return true;
    char name[32];
    snprintf(name, sizeof name, "[PAD%d]", id);
    return !qn_str_is(qn_vocab_piece(vocab, id), name);
}

int32_t qn_tokenizer_end(const qn_tokenizer *tokenizer, bool *has_holes) {
    *has_holes = tokenizer->has_holes;
    return tokenizer->end;
}

static void find_range(qn_tokenizer *tokenizer) {
    int32_t n = 0;
    for (int32_t id = 0; id < tokenizer->vocab.n; id++) {
        if (!qn_tokenizer_has(tokenizer, id)) continue;
        tokenizer->end = id + 1;
        n++;
    }
    tokenizer->has_holes = n < tokenizer->end;
}

qn_status qn_tokenizer_finish(qn_tokenizer *tokenizer, qn_err *err) {
    qn_tokenizer_info *info = &tokenizer->info;
    info->n_tokens = tokenizer->vocab.n;
    find_range(tokenizer);
    const struct {
        const char *name;
        int32_t id;
    } ids[] = {{"beginning", info->bos},
               {"end", info->eos},
               {"end of turn", info->eot},
               {"unknown", info->unk},
               {"padding", info->pad}};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        if (ids[i].id < -1 || ids[i].id >= info->n_tokens)
            return QN_FAIL(err, FORMAT, "%s token %d, but there are %d tokens", ids[i].name,
                           ids[i].id, info->n_tokens);
    }
    for (int i = 0; info->eot < 0 && i < N_TURN_ENDS; i++)
        info->eot = find_name(tokenizer, turn_ends[i]);
    qn_tokenizer_add_end(tokenizer, info->eos);
    qn_tokenizer_add_end(tokenizer, info->eot);
    for (int i = 0; i < N_TURN_ENDS; i++)
        qn_tokenizer_add_end(tokenizer, find_name(tokenizer, turn_ends[i]));
    for (int i = 0; i < N_TEXT_ENDS; i++)
        qn_tokenizer_add_end(tokenizer, find_name(tokenizer, text_ends[i]));
    return QN_OK;
}

const qn_tokenizer_info *qn_tokenizer_own_info(const qn_tokenizer *tokenizer) {
    return &tokenizer->info;
}

qn_status qn_tokenizer_get_info(qn_tokenizer_info *out, const qn_tokenizer *tokenizer,
                                qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(tokenizer, err);
    QN_TRY(QN_RESULT_CHECK(qn_tokenizer_info, out, err));
    QN_RESULT_WRITE(qn_tokenizer_info, out, &tokenizer->info);
    return QN_OK;
}

bool qn_tokenizer_is_end(const qn_tokenizer *tokenizer, int32_t id) {
    for (size_t i = 0; i < tokenizer->n_ends; i++) {
        if (tokenizer->ends[i] == id) return true;
    }
    return false;
}

const char *qn_tokenizer_piece(const qn_tokenizer *tokenizer, int32_t id, size_t *size) {
    const qn_vocab *vocab = &tokenizer->vocab;
    if (id < 0 || id >= vocab->n || qn_vocab_kind(vocab, id) == QN_PIECE_HOLE) return NULL;
    const qn_str piece = qn_vocab_piece(vocab, id);
    if (size) *size = piece.size;
    return piece.data;
}

int32_t qn_tokenizer_find(const qn_tokenizer *tokenizer, const char *piece, size_t size) {
    return qn_vocab_find(&tokenizer->vocab, piece, size);
}

// --- text to ids ---------------------------------------------------------------------------------

typedef struct encode_call {
    const qn_tokenizer *tokenizer;
    qn_encoder encoder;
    qn_norm_run norm;
    qn_pretok_run pretok;
    qn_buf repaired;
    qn_str text;        // all of it
    qn_added_rule rule; // plain ranges are those of `text`
} encode_call;

static qn_status encode_bpe(void *arg, const char *word, size_t size, qn_err *err) {
    encode_call *call = arg;
    return qn_bpe_encode(&call->tokenizer->bpe, &call->encoder, word, size, err);
}

static qn_status encode_sentencepiece(void *arg, const char *word, size_t size, qn_err *err) {
    encode_call *call = arg;
    return qn_sentencepiece_encode(&call->tokenizer->sentencepiece, &call->encoder, word, size,
                                   err);
}

static qn_status encode_unigram(void *arg, const char *word, size_t size, qn_err *err) {
    encode_call *call = arg;
    return qn_unigram_encode(&call->tokenizer->unigram, &call->encoder, word, size, err);
}

static qn_word_fn *const models[QN_MODEL_COUNT] = {
    [QN_MODEL_BPE] = encode_bpe,
    [QN_MODEL_SENTENCEPIECE] = encode_sentencepiece,
    [QN_MODEL_UNIGRAM] = encode_unigram,
};

// What to do with the text between added tokens.
typedef qn_status gap_fn(encode_call *call, qn_str text, bool is_first, qn_err *err);

// Cuts the added tokens of one set out of the text; the rest goes to `gap`.
static qn_status cut_added(encode_call *call, const qn_prefix_set *set, qn_str text,
                           const qn_added_rule *rule, bool is_first, gap_fn *gap, qn_err *err) {
    size_t at = 0;
    qn_added_match match;
    while (at < text.size && qn_added_find(&match, &call->tokenizer->added, set, text, at, rule)) {
        if (match.start > at)
            QN_TRY(gap(call, (qn_str){text.data + at, match.start - at}, is_first && at == 0, err));
        QN_TRY(qn_encoder_add(&call->encoder, match.id, err));
        at = match.end;
    }
    if (at == text.size) return QN_OK;
    return gap(call, (qn_str){text.data + at, text.size - at}, is_first && at == 0, err);
}

static qn_status encode_normalized(encode_call *call, qn_str text, bool is_first, qn_err *err) {
    return qn_pretok_apply(&call->pretok, text, is_first, err);
}

static qn_status encode_raw(encode_call *call, qn_str text, bool is_first, qn_err *err) {
    const qn_tokenizer *tokenizer = call->tokenizer;
    // Normalised text has other positions: where it touches a plain range, all of it is plain.
    const size_t from = (size_t)(text.data - call->text.data);
    const qn_added_rule rule = {.special = call->rule.special &&
                                           !qn_added_is_plain(&call->rule, from, from + text.size)};
    QN_TRY(qn_encoder_check_stop(&call->encoder, err));
    QN_TRY(qn_norm_apply(&text, &tokenizer->norm, &call->norm, text, err));
    return cut_added(call, &tokenizer->added.normalized, text, &rule, is_first, encode_normalized,
                     err);
}

static qn_status add_wrap(encode_call *call, const qn_wrap *wrap, qn_err *err) {
    for (size_t i = 0; i < wrap->n; i++) QN_TRY(qn_encoder_add(&call->encoder, wrap->ids[i], err));
    return QN_OK;
}

static qn_status encode(encode_call *call, qn_str text, bool add_ends, qn_err *err) {
    const qn_tokenizer *tokenizer = call->tokenizer;
    if (!tokenizer->keeps_bytes && qn_unicode_valid_size(text) < text.size) {
        qn_unicode_repair(&call->repaired, text);
        if (call->repaired.failed) return QN_NOMEM(err, "a text");
        if (call->rule.n_plain)
            return QN_FAIL(err, ARGUMENT, "a text with plain ranges must be UTF-8");
        text = (qn_str){call->repaired.data, call->repaired.size};
    }
    call->text = text;
    if (add_ends) QN_TRY(add_wrap(call, &tokenizer->before, err));
    QN_TRY(cut_added(call, &tokenizer->added.raw, text, &call->rule, true, encode_raw, err));
    if (add_ends) QN_TRY(add_wrap(call, &tokenizer->after, err));
    return QN_OK;
}

// They are searched by bisection.
static qn_status check_plain(const qn_added_rule *rule, size_t size, qn_err *err) {
    for (size_t i = 0, end = 0; i < rule->n_plain; end = rule->plain[i++].to) {
        const qn_text_range *range = &rule->plain[i];
        if (range->from < end || range->to < range->from || range->to > size)
            return QN_FAIL(err, ARGUMENT,
                           "plain range %zu: %zu to %zu, want them within %zu to %zu", i,
                           range->from, range->to, end, size);
    }
    return QN_OK;
}

qn_status qn_tokenize_counted(int32_t **ids, size_t *n, const qn_tokenizer *tokenizer, qn_str text,
                              const qn_tokenize_opts *opts, qn_tokenize_stats *stats, qn_err *err) {
    const qn_stop_flag *stop = opts ? opts->stop : NULL;
    encode_call call = {.tokenizer = tokenizer,
                        .encoder = {.max_ids = stats->max_ids,
                                    .cuts = opts && opts->cut,
                                    .stop = stop,
                                    .merge.stop = stop},
                        .rule = {.special = opts && opts->special,
                                 .plain = opts ? opts->plain : NULL,
                                 .n_plain = opts && opts->plain ? opts->n_plain : 0}};
    qn_status status = QN_OK;
    QN_TRY(check_plain(&call.rule, text.size, err));
    QN_TRY(
        qn_pretok_run_init(&call.pretok, &tokenizer->pretok, models[tokenizer->kind], &call, err));
    status = encode(&call, text, opts && opts->add_ends, err);
    if (status == QN_LIMIT && call.encoder.is_full && call.encoder.cuts) status = QN_OK;
    if (status) goto done;
    if (!call.encoder.ids && !(call.encoder.ids = qn_alloc(1, sizeof *call.encoder.ids))) {
        status = QN_NOMEM(err, "token ids");
        goto done;
    }
    *ids = call.encoder.ids;
    *n = call.encoder.n_ids;
    call.encoder.ids = NULL;
done:
    stats->steps = call.encoder.merge.steps + call.encoder.steps;
    qn_encoder_deinit(&call.encoder);
    qn_norm_run_deinit(&call.norm);
    qn_pretok_run_deinit(&call.pretok);
    qn_buf_deinit(&call.repaired);
    return status;
}

qn_status qn_tokenize(int32_t **ids, size_t *n, const qn_tokenizer *tokenizer, const char *text,
                      size_t size, const qn_tokenize_opts *opts, qn_err *err) {
    QN_NEED(ids, err);
    QN_NEED(n, err);
    if (!tokenizer || (!text && size)) return QN_FAIL(err, ARGUMENT, "qn_tokenize: NULL");
    qn_tokenize_opts o;
    QN_TRY(QN_OPTS_READ(qn_tokenize_opts, &o, opts, err));
    qn_tokenize_stats stats = {.max_ids = o.max_tokens && o.max_tokens < INT32_MAX ? o.max_tokens
                                                                                   : INT32_MAX};
    if (o.cut && !o.max_tokens)
        return QN_FAIL(err, ARGUMENT, "qn_tokenize: cut without max_tokens");
    const qn_str all = {size ? text : "", size};
    return qn_tokenize_counted(ids, n, tokenizer, all, &o, &stats, err);
}

// --- ids to text ---------------------------------------------------------------------------------

static qn_decode decode_of(const qn_tokenizer *tokenizer) {
    return (qn_decode){&tokenizer->vocab, &tokenizer->letters, &tokenizer->decode};
}

// The i-th of several.
static qn_status check_id(const qn_tokenizer *tokenizer, int32_t id, size_t i, qn_err *err) {
    if (id < 0 || id >= tokenizer->vocab.n)
        return QN_FAIL(err, ARGUMENT, "id %d (number %zu), this model has 0 to %d", id, i + 1,
                       tokenizer->vocab.n - 1);
    return QN_OK;
}

qn_status qn_detokenize(char **text, size_t *size, const qn_tokenizer *tokenizer,
                        const int32_t *ids, size_t n, bool special, qn_err *err) {
    QN_NEED(text, err);
    QN_NEED(size, err);
    QN_NEED(tokenizer, err);
    if (n) QN_NEED(ids, err);
    for (size_t i = 0; i < n; i++) QN_TRY(check_id(tokenizer, ids[i], i, err));
    const qn_decode decode = decode_of(tokenizer);
    qn_decode_state state = {0};
    qn_buf out = {0};
    for (size_t i = 0; i < n; i++) qn_decode_add(&state, &decode, ids[i], special);
    qn_decode_flush(&out, &state, true);
    qn_decode_state_deinit(&state);
    const size_t out_size = out.size;
    QN_TRY(qn_buf_take(text, &out, err));
    *size = out_size;
    return QN_OK;
}

qn_status qn_tokenizer_bytes(char **bytes, size_t *size, const qn_tokenizer *tokenizer, int32_t id,
                             qn_err *err) {
    QN_NEED(bytes, err);
    QN_NEED(size, err);
    QN_NEED(tokenizer, err);
    QN_TRY(check_id(tokenizer, id, 0, err));
    const qn_decode decode = decode_of(tokenizer);
    qn_decode_state state = {.started = true, .past_start = true};
    qn_decode_add(&state, &decode, id, true);
    if (state.piece.failed || state.spare.failed) state.raw.failed = true;
    const size_t n = state.raw.size;
    const qn_status status = qn_buf_take(bytes, &state.raw, err);
    qn_decode_state_deinit(&state);
    if (!status) *size = n;
    return status;
}

struct qn_decoder {
    const qn_tokenizer *tokenizer;
    qn_decode_state state;
    qn_buf text;
};

qn_status qn_decoder_create(qn_decoder **out, const qn_tokenizer *tokenizer, qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(tokenizer, err);
    qn_decoder *decoder = qn_alloc(1, sizeof *decoder);
    if (!decoder) return QN_NOMEM(err, "decoder");
    decoder->tokenizer = tokenizer;
    *out = decoder;
    return QN_OK;
}

void qn_decoder_destroy(qn_decoder *decoder) {
    if (!decoder) return;
    qn_decode_state_deinit(&decoder->state);
    qn_buf_deinit(&decoder->text);
    qn_free(decoder);
}

static qn_status give(const char **text, size_t *size, qn_decoder *decoder, bool all, qn_err *err) {
    qn_buf_clear(&decoder->text);
    qn_decode_flush(&decoder->text, &decoder->state, all);
    if (decoder->text.failed) return QN_NOMEM(err, "decoded text");
    *text = decoder->text.data ? decoder->text.data : "";
    *size = decoder->text.size;
    return QN_OK;
}

qn_status qn_decoder_next(const char **text, size_t *size, qn_decoder *decoder, int32_t id,
                          qn_err *err) {
    QN_NEED(text, err);
    QN_NEED(size, err);
    QN_NEED(decoder, err);
    QN_TRY(check_id(decoder->tokenizer, id, 0, err));
    const qn_decode decode = decode_of(decoder->tokenizer);
    qn_decode_add(&decoder->state, &decode, id, false);
    return give(text, size, decoder, false, err);
}

qn_status qn_decoder_finish(const char **text, size_t *size, qn_decoder *decoder, qn_err *err) {
    QN_NEED(text, err);
    QN_NEED(size, err);
    QN_NEED(decoder, err);
    QN_TRY(give(text, size, decoder, true, err));
    decoder->state.started = decoder->state.past_start = false;
    decoder->state.n_stripped = 0;
    return QN_OK;
}
