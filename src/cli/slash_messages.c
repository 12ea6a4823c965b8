// Commands about the messages of a conversation.
#include "cli/conversation.h"

#include "cli/out.h"
#include "cli/saved.h"
#include "cli/terminal.h"

#include <string.h>

qn_status qn_conversation_keep(const qn_conversation *c, qn_err *err) {
    const char *path = c->talk->args->session;
    return path && c->talk->template ? qn_saved_write(c->talk, path, err) : QN_OK;
}

qn_status qn_conversation_settle(const qn_conversation *c, qn_status status, qn_err *err) {
    if (status == QN_OK) return qn_conversation_keep(c, err);
    if (status == QN_STOPPED)
        qn_print_dim("[%s, cancelled]", err->message);
    else if (status == QN_ARGUMENT || status == QN_USAGE || status == QN_STATE ||
             status == QN_UNSUPPORTED || status == QN_LIMIT)
        qn_print_line("quern: %s", err->message);
    else
        return status;
    return QN_OK;
}

// --- commands ------------------------------------------------------------------------------------

qn_status qn_slash_forget(qn_conversation *c, const char *rest, qn_err *err) {
    (void)rest;
    QN_TRY(qn_talk_reset(c->talk, err));
    qn_print_dim("conversation cleared");
    return qn_conversation_keep(c, err);
}

qn_status qn_slash_system(qn_conversation *c, const char *rest, qn_err *err) {
    const char *now = qn_talk_system(c->talk);
    if (!*rest && !now) qn_print_dim("no system message");
    if (!*rest && now) {
        qn_print_text(stderr, now, strlen(now));
        fputc('\n', stderr);
    }
    if (!*rest) return QN_OK;
    if (!c->talk->template)
        return QN_FAIL(err, STATE, "the text is fed as it is: no place for a system message");
    const bool goes = strcmp(rest, "none") == 0;
    QN_TRY(qn_talk_set_system(c->talk, goes ? NULL : rest, err));
    qn_print_dim(goes ? "no system message" : "the system message is set");
    return qn_conversation_keep(c, err);
}

qn_status qn_slash_again(qn_conversation *c, const char *rest, qn_err *err) {
    (void)rest;
    if (qn_talk_is_greedy(c->talk))
        qn_print_dim("at temperature 0 the answer stays the same; /set temp 0.8 varies it");
    return qn_conversation_settle(c, qn_talk_again(c->talk, err), err);
}
