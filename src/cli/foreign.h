// Options of other programs, and what is here in their place.
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

// The row of an option, whose name has `n` bytes, underscores for dashes; NULL: unknown.
const qn_foreign *qn_foreign_find(const char *name, size_t n);

#endif
