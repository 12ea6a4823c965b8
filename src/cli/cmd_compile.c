// quern compile: packs the weights of a model ahead of time, and writes its plans as text.
#include "cli/args.h"
#include "cli/folder.h"
#include "cli/inspect.h"
#include "cli/open_model.h"
#include "cli/out.h"
#include "cli/terminal.h"
#include "cli/facts.h"

#include "core/file.h"

#include <string.h>

typedef struct compile_options {
    const char *output;
    qn_engine_args engine;
} compile_options;

static qn_status check_compile(const qn_call *call, qn_err *err) {
    const compile_options *options = call->options;
    const char *device = options->engine.device;
    if (device && strchr(device, ','))
        return QN_FAIL(err, ARGUMENT, "compile: --device: '%s', want one device", device);
    if (options->output && !*options->output)
        return QN_FAIL(err, ARGUMENT, "-o: the name of the folder is empty");
    if (options->output && strcmp(options->output, "-") == 0)
        return QN_FAIL(err, ARGUMENT, "-o: '-', want the name of a folder");
    return qn_engine_args_check(&options->engine, err);
}

// The folder that keeps the results (owned: qn_free): the one that was named, or one beside the
// model.
static qn_status choose_folder(char **out, const char *model, const compile_options *options,
                               qn_err *err) {
    char *path = options->output ? strdup(options->output) : qn_cache_beside(model);
    if (!path) return QN_NOMEM(err, "a path");
    *out = path;
    return QN_OK;
}

// Opening with a cache folder is what packs and compiles. *cached: bytes of weights that were
// there.
static qn_status compile(int64_t *cached, const char *model, const qn_engine_args *args,
                         qn_err *err) {
    qn_loaded loaded;
    // What was written is listed from the folder.
    QN_TRY(qn_cli_open(&loaded, model,
                       &(qn_open_opts){.args = args, .no_notes = true, .fills_cache = true}, err));
    *cached = qn_engine_facts(loaded.engine).cached_bytes;
    qn_cli_close(&loaded);
    return QN_OK;
}

typedef struct total {
    size_t n;
    int64_t bytes;
} total;

static void add(total *to, const qn_entry *e) {
    to->n++;
    to->bytes += e->bytes;
}

static bool is_same(const qn_entry *a, const qn_entry *b) {
    return a && b && a->bytes == b->bytes && a->time_ns == b->time_ns && a->inode == b->inode;
}

// Lists what is new in `after`.
static total print_new(const qn_folder *before, const qn_folder *after) {
    total written = {0};
    for (size_t i = 0; i < after->n; i++) {
        const qn_entry *e = &after->items[i];
        char bytes[24];
        qn_shown clean;
        if (is_same(qn_folder_find(before, e->name), e)) continue;
        printf("%12s  ", qn_bytes_text(bytes, e->bytes));
        puts(qn_clean(&clean, e->name));
        add(&written, e);
    }
    return written;
}

// `options`: what other commands need to find the folder, and what is in it.
static qn_status print_result(const qn_folder *before, const qn_folder *after, const char *folder,
                              const char *options, int64_t cached, double seconds, qn_err *err) {
    char bytes[24];
    qn_shown clean;
    const char *shown = qn_clean(&clean, folder);
    const total written = print_new(before, after);
    total there = {0};
    for (size_t i = 0; i < after->n; i++) add(&there, &after->items[i]);
    if (written.n > 0)
        printf("%zu file%s, %s, written to %s in %.3f s; 'quern run MODEL%s' uses %s\n", written.n,
               written.n == 1 ? "" : "s", qn_bytes_text(bytes, written.bytes), shown, seconds,
               options, written.n == 1 ? "it" : "them");
    else if (cached > 0)
        printf("everything was there, opened in %.3f s; %s holds %zu file%s, %s\n", seconds, shown,
               there.n, there.n == 1 ? "" : "s", qn_bytes_text(bytes, there.bytes));
    else
        return QN_FAIL(err, IO, "%s: nothing was written", folder);
    return QN_OK;
}

// Before a folder is made for it.
static qn_status check_model(const char *path, qn_err *err) {
    qn_source *source;
    const qn_status status = qn_source_open(&source, path, err);
    if (status)
        qn_err_name(err, status, path);
    else
        qn_source_close(source);
    return status;
}

static qn_status print_options(qn_buf *to, const compile_options *options, qn_err *err);

static qn_status run_compile(const qn_call *call, qn_err *err) {
    const compile_options *options = call->options;
    qn_engine_args args = options->engine;
    qn_folder before = {0}, after = {0};
    qn_buf typed = {0};
    char *folder = NULL;
    int64_t cached = 0;
    qn_status status = QN_OK;
    QN_TRY(check_model(call->args[0], err));
    QN_TRY(choose_folder(&folder, call->args[0], options, err));
    qn_interrupt_hold();
    QN_TRY_TO(done, qn_folder_make(folder, err));
    QN_TRY_TO(done, qn_folder_list(&before, folder, err));
    args.cache_dir = folder;
    const double start = qn_now();
    QN_TRY_TO(done, compile(&cached, call->args[0], &args, err));
    const double seconds = qn_now() - start;
    QN_TRY_TO(done, qn_folder_list(&after, folder, err));
    QN_TRY_TO(done, print_options(&typed, options, err));
    status = print_result(&before, &after, folder, typed.data, cached, seconds, err);

done:
    qn_folder_deinit(&before);
    qn_folder_deinit(&after);
    qn_buf_deinit(&typed);
    qn_free(folder);
    return status;
}

static const qn_option compile_table[] = {
    {.name = "--output",
     .alias = "-o",
     .arg = "DIR",
     .help = "output folder (default: .quern-cache beside the model); created if missing",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(compile_options, output)},
    QN_OPTION_DEVICE(compile_options),
    QN_OPTION_NUMERICS(compile_options),
    QN_OPTION_CACHE_TYPE(compile_options),
    QN_OPTION_PLANS(compile_options),
    QN_OPTION_THREADS(compile_options, engine.threads),
};

// " --cache-dir DIR --device ref ...": what was typed, as other commands want it, without threads.
static qn_status print_options(qn_buf *to, const compile_options *options, qn_err *err) {
    qn_shown clean;
    qn_buf_add(to, "", 0);
    if (options->output) qn_buf_printf(to, " --cache-dir %s", qn_clean(&clean, options->output));
    for (size_t i = 1; i + 1 < sizeof compile_table / sizeof *compile_table; i++) {
        qn_buf value = {0};
        qn_option_print(&value, options, &compile_table[i]);
        if (value.size) qn_buf_printf(to, " %s %s", compile_table[i].name, value.data);
        qn_buf_deinit(&value);
    }
    return to->failed ? QN_NOMEM(err, "a line") : QN_OK;
}

const qn_command qn_cmd_compile = {
    .name = "compile",
    .args = "MODEL",
    .beside = "--output",
    .summary = "Packs the weights of a model ahead of time, and writes its plans as text.",
    .notes = "Commands that run the model look in .quern-cache beside it; for another folder, pass "
             "--cache-dir. The model then loads faster. Files of a changed model, another machine "
             "or another version are not used, nor is a folder that was copied or unpacked, or "
             "that others may write to. The folder may be deleted at any time.",
    .options = compile_table,
    .n_options = sizeof compile_table / sizeof *compile_table,
    .options_size = sizeof(compile_options),
    .min_args = 1,
    .max_args = 1,
    .check = check_compile,
    .run = run_compile,
};
