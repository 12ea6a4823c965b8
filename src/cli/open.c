#include "cli/open.h"

#include "cli/terminal.h"
#include "core/buf.h"
#include "core/file.h"
#include "core/mem.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

// --- engine --------------------------------------------------------------------------------------

typedef struct opening {
    qn_buf warnings; // lines to print
    char last[256];  // the last warning, for a failure that it explains
    bool shows_bar;
    int percent; // on the screen
} opening;

static void keep_log(void *arg, qn_log_level level, const char *message) {
    static const char *const names[] = {[QN_LOG_ERROR] = "error",
                                        [QN_LOG_WARNING] = "warning",
                                        [QN_LOG_INFO] = "note",
                                        [QN_LOG_DEBUG] = "debug"};
    opening *o = arg;
    // The message may quote a hostile file: qn_err_set makes it printable.
    qn_err clean;
    (void)QN_FAIL(&clean, OK, "%s", message);
    if (level <= QN_LOG_WARNING) snprintf(o->last, sizeof o->last, "%.255s", clean.message);
    qn_buf_printf(&o->warnings, "quern: %s: %s\n", names[level], clean.message);
}

static bool show_bar(void *arg, int64_t done, int64_t total) {
    enum { WIDTH = 30 };
    opening *o = arg;
    const int percent = total > 0 ? (int)((double)done / (double)total * 100) : 100;
    if (percent == o->percent) return true;
    o->percent = percent;
    char bar[WIDTH + 1];
    for (int i = 0; i < WIDTH; i++) bar[i] = i * 100 < percent * WIDTH ? '#' : '.';
    bar[WIDTH] = 0;
    fprintf(stderr, "\rloading [%s] %3d %%", bar, percent);
    fflush(stderr);
    return !qn_interrupt_take();
}

qn_status qn_cli_open(qn_engine **out, const char *path, const qn_open_opts *opts, qn_err *err) {
    opening o = {.shows_bar = !opts->no_weights && isatty(STDERR_FILENO), .percent = -1};
    const qn_engine_opts engine_opts = {.n_threads = (int)opts->n_threads,
                                        .no_weights = opts->no_weights,
                                        .log = keep_log,
                                        .log_arg = &o,
                                        .progress = o.shows_bar ? show_bar : NULL,
                                        .progress_arg = &o};
    qn_engine *engine = NULL;
    qn_status status = qn_engine_open(&engine, path, &engine_opts, err);
    if (o.percent >= 0) fprintf(stderr, "\r\033[K");
    if (status && err && !strstr(err->message, path)) qn_err_prefix(err, status, "%s", path);
    if (!status && opts->needs_tokenizer && !qn_engine_tokenizer(engine)) {
        status = QN_FAIL(err, UNSUPPORTED, "%s: %s", path, *o.last ? o.last : "no tokenizer");
        qn_engine_close(engine);
    }
    if (!status) {
        if (o.warnings.size) fputs(o.warnings.data, stderr);
        *out = engine;
    }
    qn_buf_deinit(&o.warnings);
    return status;
}

// --- the bundled model ---------------------------------------------------------------------------

static const char bundled_name[] = "quern-mini-Q8_0.gguf";
// From the program's folder: in a build, and installed.
static const char *const bundled_folders[] = {"../models", "../share/quern"};

// The folder that the program was started from (owned: qn_free).
static qn_status program_folder(char **out, qn_err *err) {
    enum { LONGEST = 4096 };
    char path[LONGEST];
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0)
        return QN_FAIL(err, IO, "no MODEL was named, and the bundled one cannot be found: %s",
                       n < 0 ? strerror(errno) : "empty program path");
    path[n] = 0;
    *out = qn_path_folder(path);
    return *out ? QN_OK : QN_NOMEM(err, "a path");
}

qn_status qn_bundled_find(char **out, qn_err *err) {
    char *folder;
    QN_TRY(program_folder(&folder, err));
    qn_status status =
        QN_FAIL(err, IO, "no MODEL was named, and %s is not in %s/%s or %s/%s", bundled_name,
                folder, bundled_folders[0], folder, bundled_folders[1]);
    for (size_t i = 0; i < sizeof bundled_folders / sizeof *bundled_folders && status; i++) {
        qn_buf path = {0};
        qn_buf_printf(&path, "%s/%s/%s", folder, bundled_folders[i], bundled_name);
        char *text;
        if (qn_buf_take(&text, &path, err)) {
            status = QN_MEMORY;
            break;
        }
        if (qn_path_is_file(text)) {
            *out = text;
            status = QN_OK;
        } else {
            qn_free(text);
        }
    }
    qn_free(folder);
    return status;
}
