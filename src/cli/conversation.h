// What a conversation on a terminal is made of, and its commands.
#ifndef QN_CLI_CONVERSATION_H
#define QN_CLI_CONVERSATION_H

#include "cli/edit.h"
#include "cli/history.h"
#include "cli/talk.h"

typedef struct qn_conversation {
    qn_talk *talk;
    qn_edit *edit;
    qn_history *history; // NULL: what is typed is not kept
    qn_buf draft;        // a question that was taken back: what the editor begins with
    bool is_over;
} qn_conversation;

// What happens after an answer. A question that does not fit, that the template or a setting
// refuses, or whose reading was stopped, was rolled back; anything else that fails ends the
// conversation.
QN_MUST_CHECK qn_status qn_conversation_settle(const qn_conversation *c, qn_status status,
                                               qn_err *err);
// Asks, and settles; a text of blanks is no question.
QN_MUST_CHECK qn_status qn_conversation_ask(qn_conversation *c, const char *text, size_t size,
                                            qn_err *err);
// Adds a text that was typed to what the arrow keys bring back, here and in later conversations.
void qn_conversation_remember(qn_conversation *c, const char *text);
// Says where a conversation that comes from a file was left.
void qn_conversation_tell_state(const qn_conversation *c);

// A text on one line, cut where it is long; borrowed from the storage.
typedef struct qn_brief {
    char text[80];
} qn_brief;
const char *qn_brief_make(qn_brief *storage, const char *text);

// A command, with what follows its word. A failure is reported, and the conversation goes on.
typedef qn_status qn_slash_fn(qn_conversation *c, const char *rest, qn_err *err);
// Messages: slash_messages.c
qn_slash_fn qn_slash_forget, qn_slash_system, qn_slash_again, qn_slash_undo, qn_slash_tool;
// Files: slash_files.c
qn_slash_fn qn_slash_save, qn_slash_load, qn_slash_image, qn_slash_read;
// Settings: slash_settings.c
qn_slash_fn qn_slash_set;
// What there is to look at: slash_show.c
qn_slash_fn qn_slash_figures, qn_slash_show;
// Another program to type in: slash_edit.c
qn_slash_fn qn_slash_edit;

// What the rest of a line after a command may become: qn_complete_fns.
qn_complete_fn qn_slash_complete_set, qn_slash_complete_show;

#endif
