// The state of a conversation's session beside its file (FILE.state), so that it goes on without
// prefill.
#ifndef QN_CLI_SAVED_STATE_H
#define QN_CLI_SAVED_STATE_H

#include "cli/talk.h"

// Loads it, if it is there. One that cannot be used (of another model or other settings, damaged)
// costs time and nothing else: it is a warning.
QN_MUST_CHECK qn_status qn_saved_state_read(qn_talk *talk, const char *session, qn_err *err);
// Whether it can be written: before anything is generated.
QN_MUST_CHECK qn_status qn_saved_state_check(const char *session, qn_err *err);
QN_MUST_CHECK qn_status qn_saved_state_write(const qn_talk *talk, const char *session, qn_err *err);

#endif
