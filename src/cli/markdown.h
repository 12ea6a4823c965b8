// Markdown on a terminal while it comes: what most answers are written in, shown lightly.
#ifndef QN_CLI_MARKDOWN_H
#define QN_CLI_MARKDOWN_H

#include "cli/wrap.h"

enum { QN_LONGEST_SPAN = 512 };

// Caller storage. Headings and **bold** are bold, `code` is coloured, items of lists are indented,
// and the marks of these are left out; blocks of code are not broken into lines. All else is shown
// as it was written, also marks whose partner does not come on the same line, within
// QN_LONGEST_SPAN bytes: the text waits that long. Where the wrap's stream is not a terminal,
// everything is passed on as it is.
typedef struct qn_markdown {
    qn_line_wrap *wrap; // borrowed
    bool is_styled;     // else the text stays as it is; blocks of code are kept in either case
    enum { QN_MARKDOWN_BEGIN, QN_MARKDOWN_TEXT, QN_MARKDOWN_CODE } where; // in the line
    char held[QN_LONGEST_SPAN];                                           // what may become a mark
    size_t size;
    char before;     // the last byte that was shown
    unsigned styles; // that are switched on
    char fence;      // of the block of code that is open; 0: none
    size_t n_fence;  // how many of it
} qn_markdown;

void qn_markdown_init(qn_markdown *markdown, qn_line_wrap *wrap, bool is_styled);
// Whole characters of UTF-8.
void qn_markdown_add(qn_markdown *markdown, const char *text, size_t size);
// The text has ended: shows what was held. The line stays open.
void qn_markdown_end(qn_markdown *markdown);

#endif
