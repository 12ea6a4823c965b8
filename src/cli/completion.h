// Scripts with which shells complete the command line, made from the tables of commands.
#ifndef QN_CLI_COMPLETION_H
#define QN_CLI_COMPLETION_H

#include "cli/command.h"

// Prints the script for a shell: "bash", "zsh" or "fish". Another one is QN_ARGUMENT.
QN_MUST_CHECK qn_status qn_completion_print(const char *shell, const qn_commands *commands,
                                            qn_err *err);

#endif
