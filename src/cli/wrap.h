// Text on a terminal while it comes, broken between words at the right margin.
#ifndef QN_CLI_WRAP_H
#define QN_CLI_WRAP_H

#include <stdbool.h>
#include <stdio.h>

enum { QN_LONGEST_WORD = 256 };

// Caller storage. Where `to` is not a terminal, everything is passed on as it is. Else a word waits
// until its end has come; control characters become '?'. A word that is longer than a line is not
// broken: the terminal does it, and it can be copied whole.
typedef struct qn_line_wrap {
    FILE *to;
    bool is_terminal, has_colour;
    int width;                  // columns, looked at for each word; 0: unknown, nothing is wrapped
    int indent;                 // columns that a line begins with after a break
    int column;                 // that is written next
    int blanks;                 // before the word
    char word[QN_LONGEST_WORD]; // that has not ended
    size_t size;                // bytes of it
    int columns;                // and columns
    bool has_text;              // not only escape sequences
    bool is_cut;                // it began before, on this line, and is longer than a line
    bool is_kept;               // lines are not broken: code
    bool is_free;               // no line is ever broken
} qn_line_wrap;

void qn_wrap_init(qn_line_wrap *wrap, FILE *to);
// Whole characters of UTF-8.
void qn_wrap_add(qn_line_wrap *wrap, const char *text, size_t size);
// Writes the word that was not yet ended.
void qn_wrap_flush(qn_line_wrap *wrap);
// As flush, and a newline if the line has anything in it.
void qn_wrap_end_line(qn_line_wrap *wrap);
// Puts an escape sequence between what was added and what follows; it takes no columns.
void qn_wrap_style(qn_line_wrap *wrap, const char *sequence);
// Switches dimming on or off; nothing where the terminal cannot.
void qn_wrap_dim(qn_line_wrap *wrap, bool is_dim);

#endif
