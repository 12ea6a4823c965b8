// Lines that somebody types: with editing, history and pasting where there is a terminal for it.
#ifndef QN_CLI_EDIT_H
#define QN_CLI_EDIT_H

#include "cli/ahead.h"
#include "cli/complete.h"

typedef struct qn_edit qn_edit;

typedef enum qn_edit_end {
    QN_EDIT_LINE,        // a line came
    QN_EDIT_PASTED,      // a line came that begins with pasted text
    QN_EDIT_INTERRUPTED, // Ctrl-C: what was typed is forgotten
    QN_EDIT_NOTHING,     // Ctrl-C, and nothing was typed
    QN_EDIT_CLOSED       // the end of the input, or a failure; the line is what was typed of it
} qn_edit_end;

// Reads standard input, which must be a terminal, and shows on standard error. Ctrl-C must be held
// (terminal.h). From the first line on the terminal is read all the time (ahead.h): what is typed
// between two lines is the beginning of the next, and commands in it are recognised by
// `is_command`. Tab completes what was typed by `complete`.
QN_MUST_CHECK qn_status qn_edit_create(qn_edit **out, qn_is_command_fn *is_command,
                                       qn_complete_fn *complete, qn_err *err);
void qn_edit_destroy(qn_edit *edit);
// A line after the prompt, without its newline; pasted text may have others in it. *line is
// replaced.
QN_MUST_CHECK qn_edit_end qn_edit_read(qn_buf *line, qn_edit *edit, const char *prompt);
// Adds a text to what the arrow keys bring back.
void qn_edit_remember(qn_edit *edit, const char *text);
// Leaves the terminal to another program, and takes it back. Between two lines.
void qn_edit_lend(qn_edit *edit);
void qn_edit_take_back(qn_edit *edit);

#endif
