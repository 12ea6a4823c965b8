// Commands about the messages of a conversation.
#include "cli/conversation.h"

#include "cli/out.h"
#include "cli/saved.h"
#include "cli/terminal.h"

#include "core/printable.h"

#include <string.h>

// Calls that wait for a result; the first of them is next.
static qn_status tell_calls(const qn_conversation *c, qn_err *err) {
    json_t *calls = NULL;
    QN_TRY(qn_talk_open_calls(&calls, c->talk, err));
    const size_t n = json_array_size(calls);
    const json_t *call = json_object_get(json_array_get(calls, 0), "function");
    char *arguments = NULL;
    const qn_json_form form = {0};
    qn_status status = QN_OK;
    qn_shown name, shown;
    if (n)
        status =
            qn_json_print(&arguments, json_object_get(call, "arguments"), &form, "a call", err);
    if (n && !status)
        qn_print_dim("/tool RESULT answers the call %s %s%s",
                     qn_clean(&name, json_string_value(json_object_get(call, "name"))),
                     qn_clean(&shown, arguments), n > 1 ? ", the first of several" : "");
    qn_free(arguments);
    json_decref(calls);
    return status;
}

qn_status qn_conversation_settle(const qn_conversation *c, qn_status status, qn_err *err) {
    if (status == QN_OK) return qn_saved_keep(c->talk, err);
    if (qn_hangup_is_pending()) return status; // the file keeps the question
    if (status == QN_STOPPED)
        qn_print_dim("[%s, cancelled]", err->message);
    else if (status == QN_ARGUMENT || status == QN_USAGE || status == QN_STATE ||
             status == QN_UNSUPPORTED || status == QN_LIMIT)
        qn_print_line("quern: %s", err->message);
    else
        return status;
    return qn_saved_keep(c->talk, err);
}

qn_status qn_conversation_ask(qn_conversation *c, const char *text, size_t size, qn_err *err) {
    const bool is_blank = text[strspn(text, " \t\r\n")] == 0; // not a question
    if (is_blank) return QN_OK;
    qn_buf_clear(&c->draft);
    QN_TRY(qn_conversation_settle(c, qn_talk_ask(c->talk, text, size, err), err));
    return tell_calls(c, err);
}

const char *qn_brief_make(qn_brief *to, const char *text) {
    char line[sizeof to->text * 2];
    qn_text_cut(line, sizeof line, text + strspn(text, " \t\r\n"));
    for (char *at = line; (at = strpbrk(at, "\t\r\n"));) *at = ' ';
    qn_text_cut(to->text, sizeof to->text, line);
    qn_text_clean(to->text);
    return to->text;
}

void qn_conversation_tell_state(const qn_conversation *c) {
    bool is_open;
    qn_brief brief;
    const char *question = qn_talk_question(c->talk, &is_open);
    if (question) qn_print_dim("the last question: %s", qn_brief_make(&brief, question));
    if (is_open) qn_print_dim("it has no answer: /regen gives one, a new question takes its place");
    if (c->talk->waiting.size)
        qn_print_dim("%zu bytes of files wait for the next question", c->talk->waiting.size);
    if (c->talk->typed.size == 0) return;
    qn_print_dim("typed, and not sent: %s; the up arrow brings it back",
                 qn_brief_make(&brief, c->talk->typed.data));
    qn_edit_remember(c->edit, c->talk->typed.data);
    qn_buf_deinit(&c->talk->typed);
}

// --- commands ------------------------------------------------------------------------------------

qn_status qn_slash_forget(qn_conversation *c, const char *rest, qn_err *err) {
    (void)rest;
    QN_TRY(qn_talk_reset(c->talk, err));
    qn_print_dim("conversation cleared");
    return qn_saved_keep(c->talk, err);
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
    return qn_saved_keep(c->talk, err);
}

qn_status qn_slash_again(qn_conversation *c, const char *rest, qn_err *err) {
    (void)rest;
    if (qn_talk_is_greedy(c->talk))
        qn_print_dim("at temperature 0 the answer stays the same; /set temp 0.8 varies it");
    QN_TRY(qn_conversation_settle(c, qn_talk_again(c->talk, err), err));
    return tell_calls(c, err);
}

qn_status qn_slash_undo(qn_conversation *c, const char *rest, qn_err *err) {
    qn_brief brief;
    (void)rest;
    qn_buf_clear(&c->draft);
    QN_TRY(qn_talk_undo(&c->draft, c->talk, err));
    qn_print_dim("taken back: %s", qn_brief_make(&brief, c->draft.data));
    return qn_saved_keep(c->talk, err);
}

// Without a result it shows what waits for one.
qn_status qn_slash_tool(qn_conversation *c, const char *rest, qn_err *err) {
    json_t *calls = NULL;
    if (*rest) {
        QN_TRY(qn_conversation_settle(c, qn_talk_add_result(c->talk, rest, err), err));
        return tell_calls(c, err);
    }
    QN_TRY(qn_talk_open_calls(&calls, c->talk, err));
    const bool is_none = json_array_size(calls) == 0;
    json_decref(calls);
    if (is_none) qn_print_dim("no tool call waits for a result");
    return tell_calls(c, err);
}
