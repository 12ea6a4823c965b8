#include "cli/chat.h"

#include "core/buf.h"
#include "core/mem.h"

#include <string.h>

struct qn_chat_format {
    const char *open, *close; // special tokens around a message
    const char *roles[3];     // names by qn_role; NULL: the text goes in front of the next message
};

// OPEN role newline text CLOSE newline, for each message.
static const qn_chat_format formats[] = {
    {"<|im_start|>", "<|im_end|>", {"system", "user", "assistant"}}, // ChatML
    {"<start_of_turn>", "<end_of_turn>", {NULL, "user", "model"}},   // Gemma
};

static int32_t token_of(const qn_tokenizer *tokenizer, const char *piece) {
    return qn_tokenizer_find(tokenizer, piece, strlen(piece));
}

const qn_chat_format *qn_chat_format_find(const qn_tokenizer *tokenizer) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (token_of(tokenizer, formats[i].open) >= 0 && token_of(tokenizer, formats[i].close) >= 0)
            return &formats[i];
    }
    return NULL;
}

// --- conversation --------------------------------------------------------------------------------

qn_status qn_chat_add(qn_chat *chat, qn_role role, const char *text, size_t size, qn_err *err) {
    void *messages = chat->messages;
    if (!qn_grow(&messages, &chat->cap, chat->n + 1, sizeof *chat->messages))
        return QN_NOMEM(err, "messages");
    chat->messages = messages;
    char *copy = qn_alloc(size + 1, 1);
    if (!copy) return QN_NOMEM(err, "a message");
    if (size) memcpy(copy, text, size);
    chat->messages[chat->n++] = (qn_message){.role = role, .text = copy, .size = size};
    return QN_OK;
}

void qn_chat_cut(qn_chat *chat, size_t n) {
    while (chat->n > n) qn_free(chat->messages[--chat->n].text);
}

void qn_chat_deinit(qn_chat *chat) {
    qn_chat_cut(chat, 0);
    qn_free(chat->messages);
    *chat = (qn_chat){0};
}

// --- rendering -----------------------------------------------------------------------------------

typedef struct rendering {
    const qn_tokenizer *tokenizer;
    int32_t *ids;
    size_t n, cap;
} rendering;

static qn_status add_ids(rendering *r, const int32_t *ids, size_t n, qn_err *err) {
    void *items = r->ids;
    if (!qn_grow(&items, &r->cap, r->n + n, sizeof *r->ids)) return QN_NOMEM(err, "prompt");
    r->ids = items;
    if (n) memcpy(r->ids + r->n, ids, n * sizeof *ids);
    r->n += n;
    return QN_OK;
}

static qn_status add_token(rendering *r, const char *piece, qn_err *err) {
    const int32_t id = token_of(r->tokenizer, piece);
    return add_ids(r, &id, 1, err);
}

static qn_status add_text(rendering *r, const char *text, size_t size, qn_err *err) {
    int32_t *ids = NULL;
    size_t n;
    QN_TRY(qn_tokenize(&ids, &n, r->tokenizer, text, size, NULL, err));
    const qn_status status = add_ids(r, ids, n, err);
    qn_free(ids);
    return status;
}

// One run of text between special tokens goes to the tokenizer in one piece: where a word begins
// depends on what is in front of it.
static qn_status add_message(rendering *r, const qn_chat_format *format, const char *role,
                             const qn_message *before, const qn_message *message, qn_err *err) {
    qn_buf text = {0};
    qn_buf_printf(&text, "%s\n", role);
    if (before) {
        qn_buf_add(&text, before->text, before->size);
        qn_buf_text(&text, "\n\n");
    }
    qn_buf_add(&text, message->text, message->size);
    qn_status status = text.failed ? QN_NOMEM(err, "a message") : QN_OK;
    if (!status) status = add_token(r, format->open, err);
    if (!status) status = add_text(r, text.data, text.size, err);
    if (!status) status = add_token(r, format->close, err);
    if (!status) status = add_text(r, "\n", 1, err);
    qn_buf_deinit(&text);
    return status;
}

static qn_status render(rendering *r, const qn_chat *chat, const qn_chat_format *format,
                        qn_err *err) {
    const qn_tokenizer_info info = qn_tokenizer_get_info(r->tokenizer);
    if (info.add_bos && info.bos >= 0) QN_TRY(add_ids(r, &info.bos, 1, err));
    const qn_message *before = NULL; // has no turn of its own in this format
    for (size_t i = 0; i < chat->n; i++) {
        const qn_message *message = &chat->messages[i];
        const char *role = format->roles[message->role];
        if (role) QN_TRY(add_message(r, format, role, before, message, err));
        before = role ? NULL : message;
    }
    const char *assistant = format->roles[QN_ROLE_ASSISTANT];
    QN_TRY(add_token(r, format->open, err));
    QN_TRY(add_text(r, assistant, strlen(assistant), err));
    return add_text(r, "\n", 1, err);
}

qn_status qn_chat_render(int32_t **ids, size_t *n, const qn_chat *chat,
                         const qn_chat_format *format, const qn_tokenizer *tokenizer, qn_err *err) {
    rendering r = {.tokenizer = tokenizer};
    const qn_status status = render(&r, chat, format, err);
    if (status) {
        qn_free(r.ids);
        return status;
    }
    *ids = r.ids;
    *n = r.n;
    return QN_OK;
}
