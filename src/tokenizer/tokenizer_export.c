// A checkpoint's tokenizer as GGUF keys, the other way round from load_gguf.c.
//
// GGUF knows byte-level BPE by the name of its pattern, and SentencePiece BPE by the scores of its
// pieces. A tokenizer.json of the latter kind (Gemma) has merges in place of scores, so the pieces
// come from the tokenizer.model next to it and only the added tokens from the tokenizer.json.
#include "core/file.h"
#include "core/mem.h"
#include "tokenizer/load_json.h"

#include <stdio.h>
#include <stdlib.h>

enum { TEMPLATE_MAX = 1 << 24, TEMPLATES_MAX = 64 };

typedef struct export_call {
    const qn_tokenizer_export *opts;
    qn_tokenizer *main;   // what the checkpoint encodes with
    qn_tokenizer *pieces; // of tokenizer.model, where GGUF needs that; else NULL
    json_t *config;       // tokenizer_config.json; NULL: there is none
    qn_arena arena;
    qn_str *tokens; // (n_vocab)
    int32_t *types; // (n_vocab) qn_piece_kind
    float *scores;  // (n_vocab)
    bool adds_bos;  // what a reader does when the key is absent
} export_call;

// --- the vocabulary ------------------------------------------------------------------------------

static qn_status name_unused(export_call *call, int64_t id, qn_err *err) {
    char name[32];
    snprintf(name, sizeof name, "[PAD%lld]", (long long)id);
    const char *copy = qn_arena_strdup(&call->arena, name, strlen(name));
    if (!copy) return QN_NOMEM(err, "unused tokens");
    call->tokens[id] = qn_str_of(copy);
    call->types[id] = QN_PIECE_UNUSED;
    call->scores[id] = -1000;
    return QN_OK;
}

// The tokens of one tokenizer; with `added_only`, those of another are there already and only what
// was added is taken, after a look whether the two agree.
static qn_status take_tokens(export_call *call, const qn_vocab *vocab, bool added_only,
                             qn_err *err) {
    for (int32_t id = 0; id < vocab->n; id++) {
        const qn_piece_kind kind = qn_vocab_kind(vocab, id);
        const bool is_added = kind == QN_PIECE_CONTROL || kind == QN_PIECE_USER;
        if (kind == QN_PIECE_HOLE) continue;
        const qn_str piece = qn_vocab_piece(vocab, id);
        const qn_str have = call->tokens[id];
        const bool is_same =
            have.size == piece.size && memcmp(have.data, piece.data, piece.size) == 0;
        if (added_only && !is_added && !is_same)
            return QN_FAIL(err, FORMAT,
                           "token %d is '%.60s' in tokenizer.json and '%.60s' in tokenizer.model",
                           id, piece.data, have.data);
        if (added_only && !is_added) continue;
        call->tokens[id] = piece;
        call->types[id] = (int32_t)kind;
        if (!added_only) call->scores[id] = vocab->scores ? (float)vocab->scores[id] : 0;
    }
    return QN_OK;
}

static qn_status collect_tokens(export_call *call, qn_err *err) {
    const int64_t n = call->opts->n_vocab;
    const qn_tokenizer *both[] = {call->pieces ? call->pieces : call->main, call->main};
    call->tokens = qn_alloc((size_t)n, sizeof *call->tokens);
    call->types = qn_alloc((size_t)n, sizeof *call->types);
    call->scores = qn_alloc((size_t)n, sizeof *call->scores);
    if (!call->tokens || !call->types || !call->scores) return QN_NOMEM(err, "tokens");
    for (int i = 0; i < 2; i++) {
        if (both[i]->vocab.n > n)
            return QN_FAIL(err, FORMAT, "the tokenizer has %d tokens, the embedding %lld rows",
                           both[i]->vocab.n, (long long)n);
    }
    for (int64_t id = 0; id < n; id++) QN_TRY(name_unused(call, id, err));
    QN_TRY(take_tokens(call, &both[0]->vocab, false, err));
    return call->pieces ? take_tokens(call, &call->main->vocab, true, err) : QN_OK;
}

static void put_vocabulary(const export_call *call, const char *model, const char *pre,
                           bool with_scores) {
    qn_gguf_writer *to = call->opts->to;
    const size_t n = (size_t)call->opts->n_vocab;
    qn_gguf_put_string(to, "tokenizer.ggml.model", model);
    qn_gguf_put_string(to, "tokenizer.ggml.pre", pre);
    qn_gguf_put_strings(to, "tokenizer.ggml.tokens", call->tokens, n);
    if (with_scores) qn_gguf_put_f32s(to, "tokenizer.ggml.scores", call->scores, n);
    qn_gguf_put_i32s(to, "tokenizer.ggml.token_type", call->types, n);
}

// --- byte-level BPE ------------------------------------------------------------------------------

static qn_status find_pattern(const qn_pattern_row **out, const qn_tokenizer *t, qn_err *err) {
    const qn_pretok_step *step = &t->pretok.steps[0];
    const bool is_pattern = step->kind != QN_PRETOK_STRING && step->kind != QN_PRETOK_PREFIX &&
                            step->kind != QN_PRETOK_METASPACE;
    const bool is_plain =
        t->pretok.n == 1 && is_pattern && step->behavior == QN_SPLIT_ISOLATED && !step->invert;
    *out = is_plain ? qn_pattern_variant(t->info.pre, t->bpe.ignore_merges) : NULL;
    if (*out) return QN_OK;
    qn_buf known = {0};
    qn_pattern_list(&known);
    const qn_status status =
        QN_FAIL(err, UNSUPPORTED,
                "pre_tokenizer: %zu steps, pattern '%s', ignore_merges %s: GGUF knows patterns by "
                "name only, and this one has none (known: %s)",
                t->pretok.n, t->info.pre, t->bpe.ignore_merges ? "true" : "false",
                known.data ? known.data : "");
    qn_buf_deinit(&known);
    return status;
}

static qn_status check_steps(const export_call *call, qn_err *err) {
    const qn_tokenizer *t = call->main;
    for (size_t i = 0; i < t->norm.n; i++) {
        if (t->norm.steps[i].kind != QN_NORM_FORM || t->norm.steps[i].form != QN_NFC)
            return QN_FAIL(err, UNSUPPORTED, "normalizer %zu is not NFC: GGUF cannot say that", i);
        if (call->opts->log)
            call->opts->log(
                call->opts->log_arg, QN_LOG_INFO,
                "normalizer NFC: GGUF has no key for it; its readers take text as it is");
    }
    for (size_t i = 0; i < t->added.n; i++) {
        const qn_added_token *token = &t->added.tokens[i];
        if (token->takes_left || token->takes_right || token->single_word)
            return QN_FAIL(err, UNSUPPORTED,
                           "added token '%.80s': GGUF has no lstrip, rstrip and single_word",
                           qn_vocab_piece(&t->vocab, token->id).data);
    }
    if (!t->decode.byte_level)
        return QN_FAIL(err, UNSUPPORTED, "decoder: GGUF knows ByteLevel only for this model");
    return QN_OK;
}

static int by_rank(const void *a, const void *b) {
    const uint32_t left = ((const qn_pair_slot *)a)->rank, right = ((const qn_pair_slot *)b)->rank;
    return left < right ? -1 : left > right;
}

static qn_status merge_line(qn_str *out, export_call *call, const qn_pair_slot *pair, qn_err *err) {
    const qn_vocab *vocab = &call->main->vocab;
    const qn_str left = qn_vocab_piece(vocab, (int32_t)pair->left);
    const qn_str right = qn_vocab_piece(vocab, (int32_t)pair->right);
    if (memchr(left.data, ' ', left.size) || memchr(right.data, ' ', right.size))
        return QN_FAIL(err, UNSUPPORTED, "merge %u: a space in '%.60s' or '%.60s'", pair->rank,
                       left.data, right.data);
    const size_t size = left.size + 1 + right.size;
    char *line = qn_arena_alloc(&call->arena, size + 1, 1);
    if (!line) return QN_NOMEM(err, "merges");
    memcpy(line, left.data, left.size);
    line[left.size] = ' ';
    memcpy(line + left.size + 1, right.data, right.size);
    *out = (qn_str){line, size};
    return QN_OK;
}

static qn_status put_merges(export_call *call, qn_err *err) {
    const qn_bpe *bpe = &call->main->bpe;
    qn_pair_slot *pairs = qn_alloc(bpe->n, sizeof *pairs);
    qn_str *lines = qn_alloc(bpe->n, sizeof *lines);
    qn_status status = QN_OK;
    size_t n = 0;
    if (!pairs || !lines) {
        status = QN_NOMEM(err, "merges");
        goto done;
    }
    for (size_t i = 0; i < bpe->cap; i++) {
        if (bpe->slots[i].left != QN_NO_ID) pairs[n++] = bpe->slots[i];
    }
    qsort(pairs, n, sizeof *pairs, by_rank);
    for (size_t i = 0; i < n; i++) QN_TRY_TO(done, merge_line(&lines[i], call, &pairs[i], err));
    qn_gguf_put_strings(call->opts->to, "tokenizer.ggml.merges", lines, n);

done:
    qn_free(pairs);
    qn_free(lines);
    return status;
}

static qn_status export_bpe(export_call *call, qn_err *err) {
    const qn_pattern_row *row = NULL;
    QN_TRY(find_pattern(&row, call->main, err));
    QN_TRY(check_steps(call, err));
    put_vocabulary(call, "gpt2", row->name, false);
    call->adds_bos = row->add_bos;
    return put_merges(call, err);
}

// --- SentencePiece BPE ---------------------------------------------------------------------------

static qn_status export_sentencepiece(export_call *call, qn_err *err) {
    const qn_tokenizer *t = call->pieces ? call->pieces : call->main;
    const qn_norm_step *step = &t->norm.steps[0];
    if (step->map.n_units)
        return QN_FAIL(err, UNSUPPORTED,
                       "tokenizer.model: its table of replacements (charsmap): "
                       "GGUF cannot say that for SentencePiece BPE");
    if (step->keep_spaces || !t->sentencepiece.unknown.to_bytes)
        return QN_FAIL(err, UNSUPPORTED,
                       "tokenizer.model: escape_whitespaces %s, byte_fallback %s: GGUF readers "
                       "take both for true",
                       step->keep_spaces ? "false" : "true",
                       t->sentencepiece.unknown.to_bytes ? "true" : "false");
    put_vocabulary(call, "llama", "default", true);
    qn_gguf_put_bool(call->opts->to, "tokenizer.ggml.add_space_prefix", step->dummy_prefix);
    if (step->squeeze)
        qn_gguf_put_bool(call->opts->to, "tokenizer.ggml.remove_extra_whitespaces", true);
    call->adds_bos = true;
    return QN_OK;
}

static qn_status export_unigram(export_call *call, qn_err *err) {
    (void)call;
    return QN_FAIL(err, UNSUPPORTED, "a unigram tokenizer: no architecture here has one in GGUF");
}

// --- special tokens ------------------------------------------------------------------------------

// The id of tokenizer_config.json's name for it, else the one in config.json; -1: neither.
static int64_t find_special(const export_call *call, const char *role) {
    char key[64];
    snprintf(key, sizeof key, "%s_token", role);
    const json_t *named = json_object_get(call->config, key);
    if (json_is_object(named)) named = json_object_get(named, "content");
    if (json_is_string(named)) {
        const qn_str name = qn_json_text(named);
        const int32_t id = qn_vocab_find(&call->main->vocab, name.data, name.size);
        if (id >= 0) return id;
    }
    snprintf(key, sizeof key, "text_config.%s_token_id", role);
    const qn_key *number = qn_source_find_key(call->opts->source, key + strlen("text_config."));
    if (!number) number = qn_source_find_key(call->opts->source, key);
    int64_t id = -1;
    if (number && number->kind == QN_KEY_INT) id = number->as.i;
    if (number && qn_key_is_array_of(number, QN_KEY_INT) && number->n)
        id = qn_key_int_at(number, 0);
    return id < call->opts->n_vocab ? id : -1;
}

static void put_id(const export_call *call, const char *name, int64_t id) {
    if (id >= 0) qn_gguf_put_u32(call->opts->to, name, (uint32_t)id);
}

// What is put before or after a text must be the one token that GGUF names.
static qn_status put_wrap(const export_call *call, bool is_front, int64_t id, qn_err *err) {
    const qn_wrap *wrap = is_front ? &call->main->before : &call->main->after;
    const char *key = is_front ? "add_bos_token" : "add_eos_token";
    const bool usual = is_front && call->adds_bos, adds = wrap->n > 0;
    if (wrap->n > 1 || (adds && wrap->ids[0] != id))
        return QN_FAIL(err, UNSUPPORTED,
                       "%zu tokens %s a text, the first is %d: GGUF can only add "
                       "token %lld",
                       wrap->n, is_front ? "before" : "after", wrap->ids[0], (long long)id);
    // A tokenizer.model says nothing of it; there it is the reader's habit.
    const bool is_stated = (adds && call->main->kind == QN_MODEL_BPE) ||
                           json_is_boolean(json_object_get(call->config, key));
    const bool has_reason = id >= 0 && (adds != usual || is_stated);
    char name[64];
    snprintf(name, sizeof name, "tokenizer.ggml.%s", key);
    if (has_reason) qn_gguf_put_bool(call->opts->to, name, adds);
    return QN_OK;
}

static qn_status export_specials(const export_call *call, qn_err *err) {
    int64_t bos = find_special(call, "bos"), eos = find_special(call, "eos");
    if (bos < 0) bos = call->main->info.bos;
    if (eos < 0) eos = call->main->info.eos;
    put_id(call, "tokenizer.ggml.bos_token_id", bos);
    put_id(call, "tokenizer.ggml.eos_token_id", eos);
    put_id(call, "tokenizer.ggml.unknown_token_id", find_special(call, "unk"));
    put_id(call, "tokenizer.ggml.padding_token_id", find_special(call, "pad"));
    QN_TRY(put_wrap(call, true, bos, err));
    return put_wrap(call, false, eos, err);
}

// --- chat templates ------------------------------------------------------------------------------

static qn_status put_template(const export_call *call, const char *name, qn_str text, qn_err *err) {
    if (memchr(text.data, 0, text.size)) return QN_FAIL(err, FORMAT, "%s: a NUL byte in it", name);
    qn_gguf_put_string(call->opts->to, name, text.data);
    return QN_OK;
}

// A list of {"name": ..., "template": ...}; the one called "default" is the main one.
static qn_status put_templates(const export_call *call, const json_t *list, qn_err *err) {
    qn_str names[TEMPLATES_MAX];
    size_t n_names = 0;
    if (json_array_size(list) > TEMPLATES_MAX)
        return QN_FAIL(err, LIMIT, "tokenizer_config.json: %zu chat templates, at most %d",
                       json_array_size(list), TEMPLATES_MAX);
    for (size_t i = 0; i < json_array_size(list); i++) {
        qn_str name = {0}, text = {0};
        char key[128] = "tokenizer.chat_template";
        const json_t *item = json_array_get(list, i);
        QN_TRY(qn_json_get_text(&name, item, "name", "chat_template", err));
        QN_TRY(qn_json_get_text(&text, item, "template", "chat_template", err));
        if (!qn_str_is(name, "default")) {
            snprintf(key, sizeof key, "tokenizer.chat_template.%.64s", name.data);
            names[n_names++] = name;
        }
        QN_TRY(put_template(call, key, text, err));
    }
    if (n_names) qn_gguf_put_strings(call->opts->to, "tokenizer.chat_templates", names, n_names);
    return QN_OK;
}

static qn_status put_template_file(bool *found, const export_call *call, qn_err *err) {
    char *path = qn_path_join(qn_source_folder(call->opts->source), "chat_template.jinja");
    char *text = NULL;
    size_t size = 0;
    qn_status status = QN_OK;
    if (!path) return QN_NOMEM(err, "path");
    *found = qn_path_is_file(path);
    if (*found) {
        QN_TRY_TO(done, qn_file_load(&text, &size, path, TEMPLATE_MAX, err));
        QN_TRY_TO(done, put_template(call, "tokenizer.chat_template", (qn_str){text, size}, err));
    }

done:
    qn_free(text);
    qn_free(path);
    return status;
}

// chat_template.jinja, else chat_template.json, else tokenizer_config.json.
static qn_status export_templates(const export_call *call, qn_err *err) {
    bool found = false;
    QN_TRY(put_template_file(&found, call, err));
    if (found) return QN_OK;
    json_t *own = NULL;
    QN_TRY(qn_companion_load(&own, qn_source_place(call->opts->source), "chat_template.json", err));
    const json_t *template = json_object_get(own ? own : call->config, "chat_template");
    qn_status status = QN_OK;
    if (json_is_string(template))
        status = put_template(call, "tokenizer.chat_template", qn_json_text(template), err);
    else if (json_is_array(template))
        status = put_templates(call, template, err);
    json_decref(own);
    return status;
}

// --- all of it -----------------------------------------------------------------------------------

static qn_status open_pieces(export_call *call, qn_err *err) {
    char *path = qn_path_join(qn_source_folder(call->opts->source), "tokenizer.model");
    if (!path) return QN_NOMEM(err, "path");
    const qn_status status =
        qn_path_is_file(path)
            ? qn_tokenizer_open(&call->pieces, path, err)
            : QN_FAIL(err, UNSUPPORTED,
                      "tokenizer.json: BPE that is not byte-level needs scores in GGUF, which the "
                      "file tokenizer.model would have; it is not there");
    qn_free(path);
    return status;
}

static qn_status export_all(export_call *call, qn_err *err) {
    static qn_status (*const models[QN_MODEL_COUNT])(export_call *, qn_err *) = {
        [QN_MODEL_BPE] = export_bpe,
        [QN_MODEL_SENTENCEPIECE] = export_sentencepiece,
        [QN_MODEL_UNIGRAM] = export_unigram,
    };
    const qn_source *source = call->opts->source;
    QN_TRY(qn_tokenizer_from_source(&call->main, source, err));
    QN_TRY(qn_companion_load(&call->config, qn_source_place(source), "tokenizer_config.json", err));
    if (call->main->kind == QN_MODEL_BPE && !call->main->bpe.byte_level)
        QN_TRY(open_pieces(call, err));
    QN_TRY(collect_tokens(call, err));
    QN_TRY(models[call->pieces ? call->pieces->kind : call->main->kind](call, err));
    QN_TRY(export_specials(call, err));
    return export_templates(call, err);
}

qn_status qn_tokenizer_export_keys(const qn_tokenizer_export *export, qn_err *err) {
    export_call call = {.opts = export};
    const qn_status status = export_all(&call, err);
    qn_tokenizer_close(call.main);
    qn_tokenizer_close(call.pieces);
    json_decref(call.config);
    qn_arena_deinit(&call.arena);
    qn_free(call.tokens);
    qn_free(call.types);
    qn_free(call.scores);
    return status;
}
