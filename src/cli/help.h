// Help texts, made from the tables.
#ifndef QN_CLI_HELP_H
#define QN_CLI_HELP_H

#include "cli/user_config.h"

void qn_help_all(const qn_commands *commands);
// With the options whose values are kept defaults, and where from.
void qn_help_command(const qn_command *command, const qn_call *call, const qn_user_config *config);
// How defaults of options are kept, and in which file.
QN_MUST_CHECK qn_status qn_help_config(qn_err *err);
// The table of core/switch.def.
void qn_help_switches(void);

#endif
