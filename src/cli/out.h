// Where results go: standard output, and files that appear whole or not at all.
#ifndef QN_CLI_OUT_H
#define QN_CLI_OUT_H

#include "core/buf.h"
#include "core/json.h"
#include "core/newfile.h"

#include <stdio.h>

// Everything printed so far must have arrived; a full disk or a closed output is an error.
QN_MUST_CHECK qn_status qn_stdout_check(qn_err *err);

// Prints the value and a newline; takes the reference. NULL (memory was short) is an error.
// `indent` 0: on one line.
QN_MUST_CHECK qn_status qn_stdout_json(json_t *value, int indent, qn_err *err);

// Prints text from a model file; on a terminal, control characters but newline and tab become '?',
// so that the terminal does not obey it.
void qn_print_text(FILE *to, const char *text, size_t size);

// A name or a text from outside on one line, cleaned as error messages are and cut where they are;
// borrowed from `storage`.
typedef struct qn_shown {
    char text[sizeof((qn_err *)0)->message];
} qn_shown;
const char *qn_clean(qn_shown *storage, const char *text);

// "11.3 MiB"; borrowed from `to`.
const char *qn_bytes_text(char to[24], int64_t bytes);

// Limits on what is read, in bytes: an endless device must not fill memory.
enum {
    QN_MAX_PROMPT = 64 << 20, // prompts and requests, token ids
    QN_MAX_TOOLS = 16 << 20,  // --tools
    QN_MAX_GRAMMAR = 8 << 20, // --grammar-file, --json-schema-file
    QN_MAX_TASKS = 256 << 20, // --tasks
    QN_MAX_TEXT = 256 << 20,  // --ppl, and what is tokenized
};
// All of standard input, or of a file by name, into an empty buffer; more than `max` bytes are
// QN_LIMIT.
QN_MUST_CHECK qn_status qn_stdin_read(qn_buf *out, size_t max, qn_err *err);
QN_MUST_CHECK qn_status qn_text_read(qn_buf *out, const char *path, size_t max, qn_err *err);

extern const qn_newfile_kind qn_kind_svg;

// Wrong usage if the file asked for is "-": results that are files do not go to standard output.
// `path` NULL is fine; `option` names the word in the message.
QN_MUST_CHECK qn_status qn_outfile_check(const char *option, const char *path, qn_err *err);

typedef struct qn_bytes {
    const void *bytes;
    size_t size;
} qn_bytes;

// A file of (n) parts; one that is there already is replaced only if it is of the same kind.
QN_MUST_CHECK qn_status qn_outfile_save(const char *path, const qn_newfile_kind *kind,
                                        const qn_bytes *parts, size_t n, qn_err *err);

#endif
