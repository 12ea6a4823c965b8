// Commands of a conversation that name files.
#include "cli/conversation.h"

#include "cli/out.h"
#include "cli/saved.h"
#include "cli/terminal.h"

#include "core/debug.h"

#include <string.h>

// The name of a file as in a shell: ~/ at the beginning is the user's folder; in quotes, or after a
// backslash, characters stand for themselves. Spaces need neither, as there is only one name.
static qn_status read_name(qn_buf *out, const char *command, const char *text, qn_err *err) {
    const char *home = qn_surroundings_read().home;
    char quote = 0; // that is open
    qn_buf_add(out, "", 0);
    if (home && *text == '~' && (text[1] == '/' || !text[1])) {
        qn_buf_text(out, home);
        text++;
    }
    for (; *text; text++) {
        const bool is_special = text[1] == '"' || text[1] == '\\' || !quote;
        if (*text == quote)
            quote = 0;
        else if (!quote && (*text == '"' || *text == '\''))
            quote = *text;
        else if (*text == '\\' && quote != '\'' && text[1] && is_special)
            qn_buf_add(out, ++text, 1);
        else
            qn_buf_add(out, text, 1);
    }
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
    qn_buf_deinit(&path);
    return status ? status : qn_conversation_keep(c, err);
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
