// Ctrl-C as something to ask for, and the look of a terminal.
#ifndef QN_CLI_TERMINAL_H
#define QN_CLI_TERMINAL_H

#include <stdbool.h>

#include "core/err.h"

// From here on, in this thread and those it starts, Ctrl-C waits until somebody asks.
void qn_interrupt_hold(void);
bool qn_interrupt_is_held(void);
// True if Ctrl-C was pressed since the last call. Never true unless held.
bool qn_interrupt_take(void);
// The same for the signal that the terminal went away, in a conversation: what is read from it ends
// then, and what was typed can be kept.
void qn_hangup_hold(void);
bool qn_hangup_is_pending(void); // never unless held
// Ends the program by it, if it came.
void qn_hangup_die(void);
// Ctrl-C was pressed since it was last asked for, or the terminal went away.
bool qn_stop_is_wanted(void);
// A qn_progress_fn without an argument: stops when that is wanted.
bool qn_interrupt_progress(void *unused, int64_t done, int64_t total);
// Ends the program as Ctrl-C does where it is not held: whoever started it sees that it died of the
// signal, and a loop of the shell ends too.
void qn_interrupt_die(void);

// A dimmed line on stderr, where the terminal can; nothing when stderr is not a
// terminal. Broken between words at its right margin.
QN_PRINTF(1, 2) void qn_print_dim(const char *fmt, ...);
// A line on stderr, such as an error; broken between words on a terminal, with further lines
// indented, and left alone elsewhere.
QN_PRINTF(1, 2) void qn_print_line(const char *fmt, ...);
// A text on stderr, broken as above on a terminal; lines after the first begin at column `indent`.
void qn_print_entry(const char *text, int indent, bool is_dim);

// A text on stderr shown while something is waited for, dimmed, and the end
// of it. On one row. Nothing when stderr is not a terminal on which lines can be erased.
QN_PRINTF(1, 2) void qn_print_waiting(const char *fmt, ...);
void qn_print_waited(void);

// What is waited for, where somebody may have forgotten to give it; nothing when standard input is
// no terminal.
void qn_print_input_wanted(const char *what);

// The same where it comes from elsewhere, once that is slow: whoever gives it may not end.
void qn_print_slow_input(const char *what);

typedef enum qn_input {
    QN_INPUT_READY,       // something to read, or its end
    QN_INPUT_INTERRUPTED, // Ctrl-C, which must be held
    QN_INPUT_HUNG_UP,     // a hangup, where those are held: no more of it is wanted
    QN_INPUT_SIGNALLED    // another signal, such as that of going on after Ctrl-Z
} qn_input;
// Waits for standard input.
qn_input qn_input_wait(void);

// Seconds since some moment in the past.
double qn_now(void);

#endif
