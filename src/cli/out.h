// Where results go: standard output, and files that appear whole or not at all.
#ifndef QN_CLI_OUT_H
#define QN_CLI_OUT_H

#include "core/buf.h"
#include "core/json.h"

#include <stdio.h>

// Everything printed so far must have arrived; a full disk or a closed output is an error.
QN_MUST_CHECK qn_status qn_stdout_check(qn_err *err);

// Prints the value and a newline; takes the reference. NULL (memory was short) is an error.
// `indent` 0: on one line.
QN_MUST_CHECK qn_status qn_stdout_json(json_t *value, int indent, qn_err *err);
// A JSON string of any bytes: what is no UTF-8 becomes U+FFFD. NULL when memory is short.
json_t *qn_json_text(const char *text, size_t size);

// Prints text from a model file; on a terminal, control characters but newline and tab become '?',
// so that it cannot be told to do things.
void qn_print_text(FILE *to, const char *text, size_t size);

// All of standard input, or of a file by name.
QN_MUST_CHECK qn_status qn_stdin_read(qn_buf *out, qn_err *err);
QN_MUST_CHECK qn_status qn_text_read(qn_buf *out, const char *path, qn_err *err);

// A file under construction. It has another name until qn_outfile_commit, and is removed by
// qn_outfile_deinit when it did not come to that. Devices, pipes and links are written in place.
typedef struct qn_outfile {
    FILE *to;
    char *path, *temporary; // owned; temporary is NULL when written in place
    bool failed;
} qn_outfile;

QN_MUST_CHECK qn_status qn_outfile_open(qn_outfile *out, const char *path, qn_err *err);
// Failure is sticky, and told by commit.
void qn_outfile_write(qn_outfile *file, const void *bytes, size_t n);
QN_MUST_CHECK qn_status qn_outfile_commit(qn_outfile *file, qn_err *err);
void qn_outfile_deinit(qn_outfile *file);

#endif
