// What a stream can show: nothing but text, or colours and lines that are drawn again.
#ifndef QN_CLI_LOOK_H
#define QN_CLI_LOOK_H

#include <stdbool.h>
#include <stdio.h>

// All false where the stream is not a terminal. A terminal without a name, or with the name "dumb",
// knows no escape sequences; NO_COLOR takes the colours away.
typedef struct qn_look {
    bool is_terminal;
    bool can_redraw; // the line can be erased
    bool has_colour;
} qn_look;

qn_look qn_look_at(FILE *to);
// Columns of a terminal at this moment; 0: it does not say.
int qn_look_width(FILE *to);

#endif
