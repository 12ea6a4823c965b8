#include "tokenizer/load_json.h"

#include "core/mem.h"

// --- the vocabulary ------------------------------------------------------------------------------

// Ids are checked against the size of the file before memory is taken for them: real files spend
// more than four bytes on each.
static qn_status check_id(size_t *n, const qn_json_load *load, const json_t *id, const char *what,
                          const char *name, qn_err *err) {
    const json_int_t max = (json_int_t)(load->file_size / 4 + 65536);
    const json_int_t value = json_integer_value(id);
    if (!json_is_integer(id) || value < 0)
        return QN_FAIL(err, FORMAT, "%s '%.80s': its id is not a number from 0", what, name);
    if (value >= max)
        return QN_FAIL(err, LIMIT,
                       "%s '%.80s': id %lld is beyond what a file of %zu bytes can hold", what,
                       name, (long long)value, load->file_size);
    if ((size_t)value >= *n) *n = (size_t)value + 1;
    return QN_OK;
}

static qn_status count_added(size_t *n, const qn_json_load *load, const json_t *added,
                             qn_err *err) {
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *token = json_array_get(added, i);
        qn_str content = {0};
        QN_TRY(qn_json_get_text(&content, token, "content", "added token", err));
        QN_TRY(check_id(n, load, json_object_get(token, "id"), "added token", content.data, err));
    }
    return QN_OK;
}

static qn_status load_map(qn_json_load *load, json_t *pieces, const json_t *added, qn_err *err) {
    size_t n = 0;
    const char *piece;
    size_t size;
    json_t *id;
    json_object_keylen_foreach(pieces, piece, size, id)
        QN_TRY(check_id(&n, load, id, "token", piece, err));
    QN_TRY(count_added(&n, load, added, err));
    qn_vocab *vocab = &load->tokenizer->vocab;
    QN_TRY(qn_vocab_init(vocab, n, false, err));
    json_object_keylen_foreach(pieces, piece, size, id) QN_TRY(qn_vocab_set(
        vocab, (int32_t)json_integer_value(id), (qn_str){piece, size}, QN_PIECE_NORMAL, err));
    return QN_OK;
}

static qn_status load_scored(qn_json_load *load, const json_t *pieces, const json_t *added,
                             qn_err *err) {
    size_t n = json_array_size(pieces);
    QN_TRY(count_added(&n, load, added, err));
    qn_vocab *vocab = &load->tokenizer->vocab;
    QN_TRY(qn_vocab_init(vocab, n, true, err));
    for (size_t i = 0; i < json_array_size(pieces); i++) {
        const json_t *pair = json_array_get(pieces, i);
        const json_t *piece = json_array_get(pair, 0), *score = json_array_get(pair, 1);
        if (json_array_size(pair) != 2 || !json_is_string(piece) || !json_is_number(score))
            return QN_FAIL(err, FORMAT, "token %zu: not a piece and its score", i);
        QN_TRY(qn_vocab_set(vocab, (int32_t)i, qn_json_text(piece), QN_PIECE_NORMAL, err));
        vocab->scores[i] = json_number_value(score);
    }
    return QN_OK;
}

// --- added tokens --------------------------------------------------------------------------------

// Added tokens are pieces too: they name holes or mark pieces that are there.
static qn_status mark_added(qn_json_load *load, const json_t *added, qn_err *err) {
    qn_vocab *vocab = &load->tokenizer->vocab;
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *token = json_array_get(added, i);
        const int32_t id = (int32_t)json_integer_value(json_object_get(token, "id"));
        qn_str content = {0};
        bool special = false;
        QN_TRY(qn_json_get_text(&content, token, "content", "added token", err));
        QN_TRY(qn_json_get_bool(&special, token, "special", false, content.data, err));
        const qn_piece_kind kind = special ? QN_PIECE_CONTROL : QN_PIECE_USER;
        if (qn_vocab_kind(vocab, id) == QN_PIECE_HOLE)
            QN_TRY(qn_vocab_set(vocab, id, content, kind, err));
        const qn_str have = qn_vocab_piece(vocab, id);
        if (have.size != content.size || memcmp(have.data, content.data, have.size) != 0)
            return QN_FAIL(err, FORMAT,
                           "added token '%.80s': its id %d is '%.80s' in the vocabulary",
                           content.data, id, have.data);
        vocab->kinds[id] = (unsigned char)kind;
    }
    return QN_OK;
}

static qn_status load_added_token(qn_json_load *load, const json_t *token, qn_err *err) {
    qn_tokenizer *tokenizer = load->tokenizer;
    const int32_t id = (int32_t)json_integer_value(json_object_get(token, "id"));
    qn_added_token one = {.id = id, .text = qn_vocab_piece(&tokenizer->vocab, id)};
    const char *name = one.text.data;
    QN_TRY(qn_json_get_bool(&one.special, token, "special", false, name, err));
    QN_TRY(qn_json_get_bool(&one.normalized, token, "normalized", !one.special, name, err));
    QN_TRY(qn_json_get_bool(&one.takes_left, token, "lstrip", false, name, err));
    QN_TRY(qn_json_get_bool(&one.takes_right, token, "rstrip", false, name, err));
    QN_TRY(qn_json_get_bool(&one.single_word, token, "single_word", false, name, err));
    if (one.normalized && tokenizer->norm.n) {
        qn_norm_run run = {0};
        qn_status status = qn_norm_apply(&one.text, &tokenizer->norm, &run, one.text, err);
        if (!status && one.text.size > QN_PIECE_MAX)
            status = QN_FAIL(err, LIMIT, "added token '%.80s': too long when normalised", name);
        if (!status) status = qn_tokenizer_keep(&one.text, tokenizer, one.text, err);
        qn_norm_run_deinit(&run);
        if (status) return status;
    }
    return qn_added_add(&tokenizer->added, &one, err);
}

static qn_status load_added(qn_json_load *load, const json_t *added, qn_err *err) {
    const qn_vocab *vocab = &load->tokenizer->vocab;
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *token = json_array_get(added, i);
        const qn_str content = qn_json_text(json_object_get(token, "content"));
        const int64_t id = json_integer_value(json_object_get(token, "id"));
        const int32_t first = qn_vocab_find(vocab, content.data, content.size);
        if (content.size && first != id)
            return QN_FAIL(err, FORMAT, "added token '%.80s': id %lld, but the vocabulary says %d",
                           content.data, (long long)id, first);
        QN_TRY(load_added_token(load, token, err));
    }
    return qn_added_finish(&load->tokenizer->added, err);
}

// --- models --------------------------------------------------------------------------------------

static qn_status load_merge(qn_bpe *bpe, const json_t *merge, uint32_t rank, qn_err *err) {
    if (json_is_array(merge)) {
        const json_t *left = json_array_get(merge, 0), *right = json_array_get(merge, 1);
        if (json_array_size(merge) != 2 || !json_is_string(left) || !json_is_string(right))
            return QN_FAIL(err, FORMAT, "merge %u: not two pieces", rank);
        return qn_bpe_add_merge(bpe, qn_json_text(left), qn_json_text(right), rank, err);
    }
    if (!json_is_string(merge)) return QN_FAIL(err, FORMAT, "merge %u: not a string", rank);
    return qn_bpe_add_line(bpe, qn_json_text(merge), rank, err);
}

static qn_status refuse_settings(const json_t *model, qn_err *err) {
    const json_t *dropout = json_object_get(model, "dropout");
    if (dropout && !json_is_null(dropout) && json_number_value(dropout) != 0)
        return QN_FAIL(err, UNSUPPORTED, "model BPE: dropout is not supported");
    static const char *const keys[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (int i = 0; i < 2; i++) {
        const json_t *value = json_object_get(model, keys[i]);
        if (value && !json_is_null(value) && json_string_length(value) != 0)
            return QN_FAIL(err, UNSUPPORTED, "model BPE: %s is not supported", keys[i]);
    }
    return QN_OK;
}

static qn_status load_bpe(qn_json_load *load, const json_t *model, qn_err *err) {
    static const char what[] = "model BPE";
    qn_tokenizer *tokenizer = load->tokenizer;
    qn_bpe *bpe = &tokenizer->bpe;
    QN_TRY(refuse_settings(model, err));
    tokenizer->kind = QN_MODEL_BPE;
    tokenizer->info.model = "BPE";
    bpe->byte_level = load->byte_level;
    QN_TRY(qn_json_get_bool(&bpe->ignore_merges, model, "ignore_merges", false, what, err));
    QN_TRY(qn_json_get_bool(&bpe->unknown.fuse, model, "fuse_unk", false, what, err));
    QN_TRY(qn_json_get_bool(&bpe->unknown.to_bytes, model, "byte_fallback", false, what, err));
    const json_t *unk = json_object_get(model, "unk_token");
    if (json_is_string(unk)) {
        const qn_str name = qn_json_text(unk);
        bpe->unknown.id = qn_vocab_find(&tokenizer->vocab, name.data, name.size);
        if (bpe->unknown.id < 0 && name.size)
            return QN_FAIL(err, FORMAT, "%s: unk_token '%.80s' is not in the vocabulary", what,
                           name.data);
        tokenizer->info.unk = bpe->unknown.id;
    }
    tokenizer->keeps_bytes = bpe->byte_level || bpe->unknown.to_bytes;
    json_t *merges = NULL;
    QN_TRY(qn_json_get_array(&merges, model, "merges", what, err));
    if (json_array_size(merges) >= UINT32_MAX)
        return QN_FAIL(err, LIMIT, "%s: too many merges", what);
    QN_TRY(qn_bpe_init(bpe, &tokenizer->vocab, &tokenizer->letters, err));
    for (size_t i = 0; i < json_array_size(merges); i++)
        QN_TRY(load_merge(bpe, json_array_get(merges, i), (uint32_t)i, err));
    return QN_OK;
}

static qn_status load_unigram(qn_json_load *load, const json_t *model, qn_err *err) {
    qn_tokenizer *tokenizer = load->tokenizer;
    qn_unigram *unigram = &tokenizer->unigram;
    int64_t unk = -1;
    tokenizer->kind = QN_MODEL_UNIGRAM;
    tokenizer->info.model = "unigram";
    if (load->byte_level)
        return QN_FAIL(err, UNSUPPORTED, "model Unigram with pre_tokenizer ByteLevel");
    QN_TRY(qn_json_get_int(&unk, model, "unk_id", -1, "model Unigram", err));
    QN_TRY(qn_json_get_bool(&unigram->unknown.to_bytes, model, "byte_fallback", false,
                            "model Unigram", err));
    if (unk != -1 && !qn_vocab_has(&tokenizer->vocab, unk))
        return QN_FAIL(err, FORMAT, "model Unigram: unk_id %lld is not one of %d tokens",
                       (long long)unk, tokenizer->vocab.n);
    if (unk >= 0 && qn_vocab_kind(&tokenizer->vocab, (int32_t)unk) == QN_PIECE_NORMAL)
        tokenizer->vocab.kinds[unk] = QN_PIECE_UNKNOWN;
    unigram->unknown.id = tokenizer->info.unk = (int32_t)unk;
    unigram->unknown.fuse = true;
    tokenizer->keeps_bytes = unigram->unknown.to_bytes;
    return qn_unigram_init(unigram, &tokenizer->vocab, err);
}

// --- the file ------------------------------------------------------------------------------------

static qn_status load_vocab(qn_json_load *load, const json_t *model, const json_t *added,
                            bool is_unigram, qn_err *err) {
    json_t *pieces = json_object_get(model, "vocab");
    if (is_unigram ? !json_is_array(pieces) : !json_is_object(pieces))
        return QN_FAIL(err, FORMAT, "model: its vocab is missing or of another type");
    QN_TRY(is_unigram ? load_scored(load, pieces, added, err) : load_map(load, pieces, added, err));
    QN_TRY(mark_added(load, added, err));
    bool to_bytes = false;
    QN_TRY(qn_json_get_bool(&to_bytes, model, "byte_fallback", false, "model", err));
    const bool by_spelling = to_bytes || load->tokenizer->decode.byte_fallback;
    return qn_vocab_finish(&load->tokenizer->vocab, by_spelling, err);
}

// A tokenizer.json does not say which tokens begin and end a text; what it puts around one shows.
static void guess_ends(qn_tokenizer *tokenizer) {
    static const char *const names[] = {"<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>"};
    qn_tokenizer_info *info = &tokenizer->info;
    info->add_bos = tokenizer->before.n > 0;
    info->add_eos = tokenizer->after.n > 0;
    if (info->add_bos) info->bos = tokenizer->before.ids[0];
    if (info->add_eos) info->eos = tokenizer->after.ids[tokenizer->after.n - 1];
    for (size_t i = 0; info->eos < 0 && i < sizeof names / sizeof *names; i++)
        info->eos = qn_vocab_find(&tokenizer->vocab, names[i], strlen(names[i]));
}

static qn_status load_all(qn_json_load *load, const json_t *root, qn_err *err) {
    const json_t *model = json_object_get(root, "model");
    const json_t *added = json_object_get(root, "added_tokens");
    const json_t *type_json = json_object_get(model, "type");
    if (!json_is_object(model)) return QN_FAIL(err, FORMAT, "no 'model' in it");
    if (added && !json_is_null(added) && !json_is_array(added))
        return QN_FAIL(err, FORMAT, "'added_tokens' is not a list");
    // Files of the first years do not name the type of a BPE model.
    const qn_str type = json_is_string(type_json) ? qn_json_text(type_json) : qn_str_of("BPE");
    const bool is_unigram = qn_str_is(type, "Unigram");
    if (!is_unigram && !qn_str_is(type, "BPE"))
        return QN_FAIL(err, UNSUPPORTED, "model type '%.80s' is not supported", type.data);
    QN_TRY(qn_json_load_normalizer(load, json_object_get(root, "normalizer"), err));
    QN_TRY(qn_json_load_pretok(load, json_object_get(root, "pre_tokenizer"), err));
    QN_TRY(qn_json_load_decoder(load, json_object_get(root, "decoder"), err));
    QN_TRY(load_vocab(load, model, added, is_unigram, err));
    QN_TRY(load_added(load, added, err));
    QN_TRY(is_unigram ? load_unigram(load, model, err) : load_bpe(load, model, err));
    QN_TRY(qn_json_load_post(load, json_object_get(root, "post_processor"), err));
    guess_ends(load->tokenizer);
    return qn_tokenizer_finish(load->tokenizer, err);
}

qn_status qn_tokenizer_from_json(qn_tokenizer **out, const char *text, size_t size,
                                 const char *name, qn_err *err) {
    json_t *root = NULL;
    // 600,000 merges, each a list of two texts, take 200 MB.
    const qn_json_opts opts = {.what = name, .memory = (size_t)1 << 30};
    QN_TRY(qn_json_parse_as(&root, text, size, &opts, err));
    qn_json_load load = {.tokenizer = qn_tokenizer_alloc(), .file_size = size};
    qn_status status = load.tokenizer ? load_all(&load, root, err) : QN_NOMEM(err, "tokenizer");
    json_decref(root);
    if (status) {
        qn_tokenizer_close(load.tokenizer);
        return qn_err_prefix(err, status, "%s", name);
    }
    *out = load.tokenizer;
    return QN_OK;
}
