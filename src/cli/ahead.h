// What is typed while nobody waits for it: during an answer, say.
//
// A thread reads the terminal meanwhile. If nobody did, a long paste would fill the terminal's
// queue, and Ctrl-C would wait at its end. Keys are passed on as they are pressed, and none is
// shown.
#ifndef QN_CLI_AHEAD_H
#define QN_CLI_AHEAD_H

#include "core/buf.h"

typedef struct qn_ahead qn_ahead;

// Whether a line, of `n` bytes without its newline, is a command.
typedef bool qn_is_command_fn(const char *line, size_t n);

// For standard input, which must be a terminal; `has_marks`: it brackets pasted text.
// Ctrl-C must be held (terminal.h): it is passed on as the signal.
QN_MUST_CHECK qn_status qn_ahead_create(qn_ahead **out, bool has_marks,
                                        qn_is_command_fn *is_command, qn_err *err);
// Ends the reading, and restores the terminal. NULL is fine.
void qn_ahead_destroy(qn_ahead *ahead);

// Begins to read. Where that is not possible nothing happens, and input waits in the terminal.
void qn_ahead_begin(qn_ahead *ahead);
// Ends it, a moment after the last key; the terminal stays as it is. False: something was dropped
// because it was too long: then all of a paste is, also what was yet to come.
bool qn_ahead_end(qn_ahead *ahead);
// The terminal as it was when the reading began; nothing if it never did.
void qn_ahead_restore(qn_ahead *ahead);

// The next byte of what was typed, not while reading. False: no more. A text of several lines that
// came at once is put between QN_PASTE_BEGIN and QN_PASTE_END, the brackets of terminals, whether
// it came with them or not; commands before its first line do not belong to it. Ctrl-C has dropped
// all that came before it.
bool qn_ahead_take(qn_ahead *ahead, char *c);
bool qn_ahead_is_empty(const qn_ahead *ahead);

#define QN_PASTE_BEGIN "\033[200~"
#define QN_PASTE_END   "\033[201~"

// Asks the terminal to bracket pasted text, or not; written to standard error.
void qn_paste_mark(bool is_on);

#endif
