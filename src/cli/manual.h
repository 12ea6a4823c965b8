// Manual pages, made from the tables of commands: quern(1), quern-run(1), ...
#ifndef QN_CLI_MANUAL_H
#define QN_CLI_MANUAL_H

#include "cli/command.h"

// Prints the page of a command, or of the whole program (NULL), in the macros of man(7).
void qn_manual_print(const qn_command *command, const qn_commands *commands);

#endif
