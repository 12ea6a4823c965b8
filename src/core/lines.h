// Lines of the system's own files, read without an allocation: what the machine has must not be
// unknown because memory is short.
#ifndef QN_CORE_LINES_H
#define QN_CORE_LINES_H

#include <stdbool.h>
#include <stddef.h>

typedef struct qn_lines {
    int fd;
    size_t at, n; // of the bytes that were read: where the next line begins, how many there are
    char bytes[1024];
} qn_lines;

bool qn_lines_open(qn_lines *lines, const char *path);
// The next line without its end, cut to size - 1 bytes; false: there is none.
bool qn_lines_next(char *line, size_t size, qn_lines *lines);
void qn_lines_close(qn_lines *lines);

// The first line of a file; false: it has none, or cannot be read.
bool qn_lines_first(char *line, size_t size, const char *path);

#endif
