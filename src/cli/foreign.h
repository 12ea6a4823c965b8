// Spellings of other programs, and what is here in their place.
#ifndef QN_CLI_FOREIGN_H
#define QN_CLI_FOREIGN_H

#include <stdbool.h>
#include <stddef.h>

typedef struct qn_foreign {
    const char *name;
    const char *ours; // the option that does it, in the commands that have it; NULL: none
    const char *hint; // what to say where there is no such option; NULL: nothing
    bool is_same;     // it takes the same values and means the same, so that it is taken
} qn_foreign;

// The row of an option of a command, whose name has `n` bytes, underscores for dashes; NULL:
// unknown.
const qn_foreign *qn_foreign_find(const char *command, const char *name, size_t n);

// Where a word was typed that is not known there.
typedef enum qn_foreign_place {
    QN_PLACE_COMMAND,
    QN_PLACE_CHAT,
    QN_PLACE_SETTING
} qn_foreign_place;
// What to say about a word of `n` bytes; NULL: nothing.
const char *qn_foreign_hint(qn_foreign_place place, const char *word, size_t n);

#endif
