// quern imatrix: which columns of a model's weights matter, for quantising it.
#include "cli/args.h"
#include "cli/making.h"
#include "cli/out.h"
#include "cli/progress.h"
#include "cli/terminal.h"

#include <stdio.h>
#include <string.h>

typedef struct imatrix_options {
    const char *output;
    int64_t chunk, chunks, threads;
    bool special;
} imatrix_options;

static qn_status check_imatrix(const qn_call *call, qn_err *err) {
    const imatrix_options *options = call->options;
    if (!options->output) return QN_FAIL(err, ARGUMENT, "imatrix: name the new file with -o");
    return qn_outfile_check("-o", options->output, err);
}

// The value of a key as text (owned: qn_free).
static qn_status key_text(char **out, const qn_source *source, const char *name, qn_err *err) {
    for (size_t i = 0; i < qn_source_n_keys(source); i++) {
        qn_key_info key = QN_INIT(qn_key_info);
        QN_TRY(qn_source_key_info(&key, source, i, 1, err));
        if (strcmp(key.name, name) == 0) {
            *out = key.value;
            return QN_OK;
        }
        qn_free(key.value);
    }
    return QN_FAIL(err, FORMAT, "no key %s", name);
}

static qn_status print_summary(const char *path, qn_err *err) {
    qn_source *source;
    char *chunks = NULL, *size = NULL;
    qn_shown clean;
    QN_TRY(qn_source_open(&source, path, err));
    qn_status status = QN_OK;
    QN_TRY_TO(done, key_text(&chunks, source, "imatrix.chunk_count", err));
    QN_TRY_TO(done, key_text(&size, source, "imatrix.chunk_size", err));
    // Two tensors for each matrix: sums and counts.
    printf("%s chunk%s of %s tokens, %zu matrices -> %s\n", chunks,
           strcmp(chunks, "1") == 0 ? "" : "s", size, qn_source_n_tensors(source) / 2,
           qn_clean(&clean, path));

done:
    qn_free(chunks);
    qn_free(size);
    qn_source_close(source);
    return status;
}

// No bar while the model is loaded, which is not counted in tokens.
static bool show(void *progress, int64_t done, int64_t total) {
    return total ? qn_progress_show(progress, done, total) : qn_interrupt_progress(NULL, 0, 0);
}

static qn_status run_imatrix(const qn_call *call, qn_err *err) {
    const imatrix_options *options = call->options;
    qn_progress progress = {.what = "reading", .unit = "tokens"};
    const qn_imatrix_opts opts = QN_INIT(
        qn_imatrix_opts, .chunk = options->chunk, .n_chunks = options->chunks,
        .special = options->special, .n_threads = (int)options->threads, .log = qn_making_log,
        .log_arg = &progress, .progress = show, .progress_arg = &progress);
    qn_interrupt_hold();
    const qn_status status = qn_imatrix(call->args[0], call->args[1], options->output, &opts, err);
    qn_progress_end(&progress);
    return status ? status : print_summary(options->output, err);
}

static const qn_option imatrix_table[] = {
    {.name = "--output",
     .alias = "-o",
     .arg = "OUT.gguf",
     .help = "the new file",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(imatrix_options, output)},
    {.name = "--chunk",
     .alias = "-c",
     .arg = "N",
     .help = "tokens per chunk (default: 512, or the model's context if shorter)",
     .kind = QN_OPTION_INT,
     .offset = offsetof(imatrix_options, chunk),
     .min = 2,
     .max = INT32_MAX},
    {.name = "--chunks",
     .arg = "N",
     .help = "maximum number of chunks (default: the whole text)",
     .kind = QN_OPTION_INT,
     .offset = offsetof(imatrix_options, chunks),
     .min = 1,
     .max = INT32_MAX},
    {.name = "--special",
     .help = "parse special tokens in the text, such as those of a chat",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(imatrix_options, special)},
    QN_OPTION_THREADS(imatrix_options, threads),
};

const qn_command qn_cmd_imatrix = {
    .name = "imatrix",
    .args = "MODEL TEXTFILE -o OUT.gguf",
    .summary = "Computes an importance matrix for 'quern quantize --imatrix'.",
    .notes = "The model runs over the text in independent chunks; the file holds, for every "
             "matrix, the sums of the squares of its inputs. Choose a text like those the model "
             "will see; 50000 tokens are plenty.",
    .options = imatrix_table,
    .n_options = sizeof imatrix_table / sizeof *imatrix_table,
    .options_size = sizeof(imatrix_options),
    .min_args = 2,
    .max_args = 2,
    .check = check_imatrix,
    .run = run_imatrix,
};
