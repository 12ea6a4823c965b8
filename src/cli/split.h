// Commands of several processes that share a model (--split). Rank 0 does what was typed; the
// others open the model and follow, print nothing and read nothing.
#ifndef QN_CLI_SPLIT_H
#define QN_CLI_SPLIT_H

#include "cli/open_model.h"

// Whether the words of a command ask for --split, and this process is not the first of those that
// the launcher started: then others tell what is wrong.
bool qn_ranks_is_silent(char *const *words, size_t n);
// The same once all is read: --split may come from elsewhere.
bool qn_ranks_is_follower(const qn_command *command, const qn_call *call);

// Whether this process tells what went wrong with it before it had joined the others, or while it
// did. Rank 0 does so at once. What fails on others fails there, too, as a rule, and the launcher
// ends them then: they wait for that before they tell.
bool qn_ranks_must_tell(qn_status status);

// The flag that ends waits for other ranks; NULL where nobody asked for --split.
const qn_stop_flag *qn_ranks_stop(void);

// Sets it, in a handler of signals or elsewhere; nothing where there is none.
void qn_ranks_stop_waiting(void);

// Does what a command with --split does in this process, where that is not the command itself:
// *is_done. Follows rank 0, or (--dry-run) prints the plan. TERM, which launchers send when a rank
// is lost, ends waits for the others from here on.
QN_MUST_CHECK qn_status qn_ranks_run(bool *is_done, const qn_command *command, const qn_call *call,
                                     qn_err *err);

#endif
