#include "core/lines.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

bool qn_lines_open(qn_lines *lines, const char *path) {
    lines->fd = open(path, O_RDONLY | O_CLOEXEC);
    lines->at = lines->n = 0;
    return lines->fd >= 0;
}

void qn_lines_close(qn_lines *lines) { close(lines->fd); }

static bool fill(qn_lines *l) {
    ssize_t n;
    do n = read(l->fd, l->bytes, sizeof l->bytes);
    while (n < 0 && errno == EINTR);
    l->at = 0;
    l->n = n > 0 ? (size_t)n : 0;
    return n > 0;
}

bool qn_lines_next(char *line, size_t size, qn_lines *lines) {
    size_t n = 0;
    bool is_any = false;
    for (;;) {
        if (lines->at == lines->n && !fill(lines)) break;
        const char c = lines->bytes[lines->at++];
        is_any = true;
        if (c == '\n') break;
        if (n + 1 < size) line[n++] = c;
    }
    if (is_any) line[n] = 0;
    return is_any;
}

bool qn_lines_first(char *line, size_t size, const char *path) {
    qn_lines lines;
    if (!qn_lines_open(&lines, path)) return false;
    const bool is_read = qn_lines_next(line, size, &lines);
    qn_lines_close(&lines);
    return is_read;
}
