// Help texts, made from the tables.
#ifndef QN_CLI_HELP_H
#define QN_CLI_HELP_H

#include "cli/command.h"

void qn_help_all(const qn_command *const *commands, size_t n);
void qn_help_command(const qn_command *command);
// The table of core/switch.def.
void qn_help_switches(void);

#endif
