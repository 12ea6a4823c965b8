// A conversation on a terminal: lines, commands, answers.
#ifndef QN_CLI_CONVERSE_H
#define QN_CLI_CONVERSE_H

#include "cli/talk.h"

// Until somebody ends it. Ctrl-C and hangups must be held (terminal.h).
QN_MUST_CHECK qn_status qn_converse(qn_talk *talk, qn_err *err);

#endif
