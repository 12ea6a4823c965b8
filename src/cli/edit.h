// Lines that somebody types: with editing, history and pasting where there is a terminal for it.
#ifndef QN_CLI_EDIT_H
#define QN_CLI_EDIT_H

#include "cli/ahead.h"

typedef struct qn_edit qn_edit;

typedef enum qn_edit_end {
    QN_EDIT_LINE,        // a line came
    QN_EDIT_PASTED,      // a line came that begins with pasted text
    QN_EDIT_INTERRUPTED, // Ctrl-C: what was typed is forgotten
    QN_EDIT_CLOSED       // the end of the input, or a failure
} qn_edit_end;

// Reads standard input, which must be a terminal, and shows on standard error. Ctrl-C must be held
// (terminal.h). From the first line on the terminal is read all the time (ahead.h): what is typed
// between two lines is the beginning of the next, and commands in it are recognised by
// `is_command`.
QN_MUST_CHECK qn_status qn_edit_create(qn_edit **out, qn_is_command_fn *is_command, qn_err *err);
void qn_edit_destroy(qn_edit *edit);
// A line after the prompt, without its newline; pasted text may have others in it. *line is
// replaced.
QN_MUST_CHECK qn_edit_end qn_edit_read(qn_buf *line, qn_edit *edit, const char *prompt);
// Adds a text to what the arrow keys bring back.
void qn_edit_remember(qn_edit *edit, const char *text);

#endif
