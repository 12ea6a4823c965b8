// Commands of a conversation that name files.
#include "cli/conversation.h"

#include "cli/complete.h"
#include "cli/out.h"
#include "cli/saved.h"
#include "cli/terminal.h"

#include "core/file.h"

#include <string.h>
#include <unistd.h>

static qn_status read_name(qn_buf *out, const char *command, const char *text, qn_err *err) {
    const char quote = qn_file_name_read(out, text);
    if (out->failed) return QN_NOMEM(err, "the name of a file");
    if (quote) return QN_FAIL(err, ARGUMENT, "%s: a quote is not closed", command);
    return out->size ? QN_OK : QN_FAIL(err, ARGUMENT, "%s needs the name of a file", command);
}

static void tell_file(const qn_conversation *c, const char *what, const char *path) {
    const size_t n = qn_chat_n_messages(c->talk->chat);
    qn_shown clean;
    qn_print_dim("%zu message%s %s %s", n, n == 1 ? "" : "s", what, qn_clean(&clean, path));
}

qn_status qn_slash_save(qn_conversation *c, const char *rest, qn_err *err) {
    qn_buf path = {0};
    qn_status status = read_name(&path, "/save", rest, err);
    if (!status) status = qn_saved_write(c->talk, path.data, err);
    if (!status) tell_file(c, "saved to", path.data);
    qn_buf_deinit(&path);
    return status;
}

qn_status qn_slash_load(qn_conversation *c, const char *rest, qn_err *err) {
    qn_buf path = {0};
    qn_status status = read_name(&path, "/load", rest, err);
    if (!status) status = qn_saved_read(c->talk, path.data, err);
    if (!status) tell_file(c, "loaded from", path.data);
    if (!status) qn_conversation_tell_state(c);
    qn_buf_deinit(&path);
    return status ? status : qn_saved_keep(c->talk, err);
}

static qn_status add_image(qn_talk *t, const char *path, qn_err *err) {
    int64_t n;
    QN_TRY(qn_pictures_add(&t->images, path, err));
    const qn_status status = qn_pictures_check(&n, &t->images, t->loaded.engine, err);
    if (status)
        qn_pictures_pop(&t->images);
    else
        qn_print_dim("%zu image%s, %lld tokens, for the next message", t->images.n,
                     t->images.n == 1 ? "" : "s", (long long)n);
    return status;
}

qn_status qn_slash_image(qn_conversation *c, const char *rest, qn_err *err) {
    qn_buf path = {0};
    if (strcmp(rest, "none") == 0) {
        qn_pictures_clear(&c->talk->images);
        qn_print_dim("no images");
        return QN_OK;
    }
    qn_status status = read_name(&path, "/image", rest, err);
    if (!status) status = add_image(c->talk, path.data, err);
    qn_buf_deinit(&path);
    return status;
}

static qn_status add_file(qn_talk *t, const char *path, qn_err *err) {
    enum { MOST_TEXT = 16 << 20 }; // a session that has it can still be read
    qn_buf text = {0};
    qn_shown name;
    const size_t before = t->waiting.size;
    qn_clean(&name, qn_path_name(path));
    qn_status status = QN_OK;
    if (!qn_path_is_file(path) && access(path, F_OK) == 0)
        status = QN_FAIL(err, ARGUMENT, "/read takes a file, %s is none", path);
    if (!status) status = qn_text_read(&text, path, MOST_TEXT, err);
    if (!status && before + text.size > MOST_TEXT)
        status = QN_FAIL(err, LIMIT, "%s: %zu bytes, and %zu wait already; at most %d together",
                         path, text.size, before, MOST_TEXT);
    if (!status) status = qn_talk_add_text(t, name.text, text.data, text.size, err);
    if (!status) qn_print_dim("%s, %zu bytes, goes before the next question", name.text, text.size);
    qn_buf_deinit(&text);
    return status;
}

qn_status qn_slash_read(qn_conversation *c, const char *rest, qn_err *err) {
    qn_buf path = {0};
    if (strcmp(rest, "none") == 0) {
        qn_buf_deinit(&c->talk->waiting);
        qn_print_dim("no files");
        return qn_saved_keep(c->talk, err);
    }
    qn_status status = read_name(&path, "/read", rest, err);
    if (!status) status = add_file(c->talk, path.data, err);
    qn_buf_deinit(&path);
    return status ? status : qn_saved_keep(c->talk, err);
}
