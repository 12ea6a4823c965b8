#include "cli/out.h"

#include "core/mem.h"
#include "core/printable.h"
#include "core/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// --- standard output -----------------------------------------------------------------------------

qn_status qn_stdout_check(qn_err *err) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return QN_OK;
    return QN_FAIL(err, IO, "cannot write to standard output: %s", strerror(errno));
}

qn_status qn_stdout_json(json_t *value, int indent, qn_err *err) {
    enum { FLOAT_DIGITS = 9 }; // enough to read back every float32
    char *text = NULL;
    const qn_json_form form = {.indent = indent, .digits = FLOAT_DIGITS};
    const qn_status status = qn_json_print(&text, value, &form, "JSON output", err);
    json_decref(value);
    if (status) return status;
    fputs(text, stdout);
    putchar('\n');
    qn_free(text);
    return qn_stdout_check(err);
}

void qn_print_text(FILE *to, const char *text, size_t size) {
    if (!isatty(fileno(to))) {
        fwrite(text, 1, size, to);
        return;
    }
    for (size_t i = 0, n; i < size; i += n) {
        uint32_t code = ' ';
        n = qn_utf8_decode(text + i, size - i, &code);
        if (n == 0) n = 1; // part of a character that comes in pieces
        if (qn_code_is_control(code) && code != '\n' && code != '\t')
            putc('?', to);
        else
            fwrite(text + i, 1, n, to);
    }
}

const char *qn_bytes_text(char to[24], int64_t bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;
    for (; value >= 1024 && unit + 1 < sizeof units / sizeof *units; unit++) value /= 1024;
    snprintf(to, 24, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return to;
}

const char *qn_clean(qn_shown *storage, const char *text) {
    snprintf(storage->text, sizeof storage->text, "%s", text);
    qn_text_clean(storage->text);
    return storage->text;
}

// --- input ---------------------------------------------------------------------------------------

static qn_status read_all(qn_buf *out, FILE *from, const char *name, size_t max, qn_err *err) {
    enum { CHUNK = 1 << 16 };
    char *chunk = qn_alloc(CHUNK, 1);
    if (!chunk) return QN_NOMEM(err, name);
    out->max = max;
    // After the end of a terminal's input there may be more, which is not waited for.
    for (size_t n; !out->failed && !feof(from) && (n = fread(chunk, 1, CHUNK, from)) > 0;)
        qn_buf_add(out, chunk, n);
    qn_free(chunk);
    if (ferror(from)) return QN_FAIL(err, IO, "%s: cannot read: %s", name, strerror(errno));
    if (out->is_over) return QN_FAIL(err, LIMIT, "%s: more than %zu bytes", name, max);
    qn_buf_add(out, "", 0); // makes `data` a string even when there was nothing
    return out->failed ? QN_NOMEM(err, name) : QN_OK;
}

qn_status qn_stdin_read(qn_buf *out, size_t max, qn_err *err) {
    return read_all(out, stdin, "standard input", max, err);
}

qn_status qn_text_read(qn_buf *out, const char *path, size_t max, qn_err *err) {
    FILE *from = fopen(path, "re");
    if (!from) return QN_FAIL(err, IO, "%s: cannot open: %s", path, strerror(errno));
    const qn_status status = read_all(out, from, path, max, err);
    fclose(from);
    return status;
}

// --- files ---------------------------------------------------------------------------------------

const qn_newfile_kind qn_kind_svg = {.name = "an SVG file", .marks = {"<svg", "<?xml"}};

qn_status qn_outfile_check(const char *option, const char *path, qn_err *err) {
    if (!path || strcmp(path, "-") != 0) return QN_OK;
    return QN_FAIL(err, ARGUMENT, "%s: '-', want the name of a file", option);
}

qn_status qn_outfile_save(const char *path, const qn_newfile_kind *kind, const qn_bytes *parts,
                          size_t n, qn_err *err) {
    qn_newfile *file = NULL;
    QN_TRY(qn_newfile_check(path, kind, err));
    qn_status status =
        qn_newfile_create(&file, path, kind->is_private ? QN_NEWFILE_PRIVATE : 0, err);
    for (size_t i = 0; i < n && !status; i++)
        status = qn_newfile_write(file, parts[i].bytes, parts[i].size, err);
    if (!status) status = qn_newfile_commit(file, err);
    qn_newfile_destroy(file);
    return status;
}
