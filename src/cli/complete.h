// Completion: what a word that somebody began to type may become.
#ifndef QN_CLI_COMPLETE_H
#define QN_CLI_COMPLETE_H

#include "core/buf.h"

enum { QN_MOST_CANDIDATES = 4096 };

// Caller storage; zeroed is empty.
typedef struct qn_completion {
    char **names;   // (n) owned: all that the word may become
    size_t n, cap;  // of more than QN_MOST_CANDIDATES none is kept
    size_t n_typed; // bytes of the names that are there already
    char quote;     // that is open around the word: it is closed behind a name; 0: none
    bool is_file;   // names of files: what would be read differently is escaped, "/" ends a folder
    bool goes_on;   // a blank follows, and more
    bool is_text;   // the line is a text, in which nothing is completed
    bool failed;    // memory was short: nothing is completed
} qn_completion;

// What the end of a line, of which the rest has not been typed, may become.
typedef void qn_complete_fn(qn_completion *to, const char *line);

// Adds a name if it begins with the `n` bytes of `typed`.
void qn_completion_add(qn_completion *to, const char *name, const char *typed, size_t n);
// Adds the names of files that a path may become; `typed` is as it is written after a command.
void qn_completion_add_files(qn_completion *to, const char *typed);
// What all names go on with, and what ends the only one; sorts them. Empty: they differ.
void qn_completion_common(qn_buf *out, qn_completion *completion);
void qn_completion_deinit(qn_completion *completion);

// The name of a file as in a shell: ~/ at the beginning is the user's folder; in quotes, or after a
// backslash, characters stand for themselves. Spaces need neither, as there is only one name.
// Returns the quote that was not closed, or 0.
char qn_file_name_read(qn_buf *out, const char *text);

#endif
