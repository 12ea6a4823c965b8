// Which marks of an answer's parts are special tokens, for a model's tokenizer.
#include "chat/parts.h"

#include "core/structs.h"

// Special tokens are those whose text is nothing.
qn_status qn_parts_find_special(int32_t *out, const qn_tokenizer *tokenizer, const char *piece,
                                qn_err *err) {
    const int32_t id = qn_tokenizer_find(tokenizer, piece, strlen(piece));
    char *text;
    size_t size;
    *out = -1;
    if (id < 0) return QN_OK;
    QN_TRY(qn_detokenize(&text, &size, tokenizer, &id, 1, false, err));
    qn_free(text);
    if (size == 0) *out = id;
    return QN_OK;
}

static qn_status find_special(qn_parts *parts, const qn_tokenizer *tokenizer, qn_err *err) {
    const char *piece;
    for (size_t i = 0; (piece = qn_parts_piece(i)); i++) {
        int32_t id;
        QN_TRY(qn_parts_find_special(&id, tokenizer, piece, err));
        if (id >= 0) qn_parts_set_special(parts, i, id);
    }
    return QN_OK;
}

qn_status qn_parts_create(qn_parts **out, const qn_parts_opts *opts, qn_err *err) {
    QN_NEED(out, err);
    qn_parts_opts o;
    qn_parts *parts = NULL;
    QN_TRY(QN_OPTS_READ(qn_parts_opts, &o, opts, err));
    QN_TRY(qn_parts_make(&parts, &o, err));
    const qn_status status = o.tokenizer ? find_special(parts, o.tokenizer, err) : QN_OK;
    if (status)
        qn_parts_destroy(parts);
    else
        *out = parts;
    return status;
}
