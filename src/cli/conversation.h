// What a conversation on a terminal is made of, and its commands.
#ifndef QN_CLI_CONVERSATION_H
#define QN_CLI_CONVERSATION_H

#include "cli/edit.h"
#include "cli/talk.h"

typedef struct qn_conversation {
    qn_talk *talk;
    qn_edit *edit;
    bool is_over;
} qn_conversation;

// What happens after an answer. A question that does not fit, that the template or a setting
// refuses, or whose reading was stopped, was rolled back; anything else that fails ends the
// conversation.
QN_MUST_CHECK qn_status qn_conversation_settle(const qn_conversation *c, qn_status status,
                                               qn_err *err);
// Writes the file of --session, if there is one.
QN_MUST_CHECK qn_status qn_conversation_keep(const qn_conversation *c, qn_err *err);

// A command, with what follows its word. A failure is reported, and the conversation goes on.
typedef qn_status qn_command_fn(qn_conversation *c, const char *rest, qn_err *err);
// Messages: slash_messages.c
qn_command_fn qn_slash_forget, qn_slash_system, qn_slash_again;
// Files: slash_files.c
qn_command_fn qn_slash_save, qn_slash_load, qn_slash_image;
// Settings: slash_settings.c
qn_command_fn qn_slash_set;
// What there is to look at: slash_show.c
qn_command_fn qn_slash_figures;

#endif
