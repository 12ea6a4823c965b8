// Help texts, made from the tables.
#ifndef QN_CLI_HELP_H
#define QN_CLI_HELP_H

#include "cli/user_config.h"

void qn_help_all(const qn_commands *commands);
// With the options whose values are kept defaults, and where from.
QN_MUST_CHECK qn_status qn_help_command(const qn_command *command, const qn_call *call,
                                        const qn_user_config *config, qn_err *err);

// What there is to say beside commands: 'quern help NAME [WORD]'.
typedef struct qn_topic {
    const char *name, *word, *summary; // word: "COMMAND", or "a|b"; NULL: none
    bool needs_word;
    qn_status (*print)(const char *word, const qn_commands *commands, qn_err *err);
} qn_topic;
// The i-th; NULL after the last.
const qn_topic *qn_help_topic(size_t i);

// What manual pages say, too.
extern const char qn_help_about[], qn_help_model[], qn_help_order[], qn_help_example[];
extern const qn_option qn_help_option;

#endif
