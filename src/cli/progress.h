// A progress bar on stderr with rate and time left, on one row of the terminal; silent when stderr
// is not a terminal on which a line can be drawn again.
//
//   loading  [##########....................]  34 %  412 MiB/s  12 s left
//   reading  [##########....................]  34 %  1024 of 3000, 412 tokens/s  5 s left
#ifndef QN_CLI_PROGRESS_H
#define QN_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

// Caller storage.
typedef struct qn_progress {
    const char *what;    // "loading"
    const char *unit;    // "" counts bytes; else the name of what is counted, "tokens"
    double start, shown; // seconds: the first call, the last time the bar was drawn
    int64_t from;        // what was done before the start; not part of the rate
    bool is_drawn;
} qn_progress;

// Draws the bar, at most ten times a second. A qn_progress_fn with a qn_progress as its argument;
// false when Ctrl-C was pressed (see terminal.h).
bool qn_progress_show(void *progress, int64_t done, int64_t total);
// Takes the bar away.
void qn_progress_end(qn_progress *progress);

#endif
