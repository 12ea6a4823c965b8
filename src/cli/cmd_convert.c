// quern convert: a Hugging Face checkpoint folder becomes a GGUF file.
#include "cli/args.h"
#include "cli/making.h"
#include "cli/open_model.h"
#include "cli/out.h"
#include "cli/progress.h"
#include "cli/terminal.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

typedef struct convert_options {
    const char *type;
} convert_options;

static qn_status check_convert(const qn_call *call, qn_err *err) {
    const convert_options *options = call->options;
    char all[64] = "";
    size_t used = 0;
    QN_TRY(qn_outfile_check("OUT.gguf", call->args[1], err));
    if (!options->type) return QN_OK;
    for (size_t i = 0; qn_convert_type(i) && used < sizeof all; i++) {
        if (strcasecmp(qn_convert_type(i), options->type) == 0) return QN_OK;
        used += (size_t)snprintf(all + used, sizeof all - used, " %s", qn_convert_type(i));
    }
    return QN_FAIL(
        err, ARGUMENT,
        "--type: '%s', want one of%s ('quern quantize' makes the others from the result)",
        options->type, all);
}

static qn_status run_convert(const qn_call *call, qn_err *err) {
    const convert_options *options = call->options;
    qn_progress progress = {.what = "converting", .unit = ""};
    const qn_convert_opts opts =
        QN_INIT(qn_convert_opts, .type = options->type, .log = qn_making_log, .log_arg = &progress,
                .progress = qn_progress_show, .progress_arg = &progress);
    const double start = qn_now();
    qn_file_size size;
    qn_interrupt_hold(); // Ctrl-C stops it, and no partial file remains
    const qn_status status = qn_convert(call->args[0], call->args[1], &opts, err);
    if (status && status != QN_STOPPED && !strstr(err->message, call->args[1]))
        qn_err_name(err, status, call->args[0]);
    qn_progress_end(&progress);
    if (status) return status;
    QN_TRY(qn_file_size_read(&size, call->args[1], err));
    qn_shown clean;
    printf("%s: %.1f MiB, %.2f bits per weight, in %.1f s\n", qn_clean(&clean, call->args[1]),
           (double)size.bytes / (1 << 20), size.bits_per_weight, qn_now() - start);
    return QN_OK;
}

static const qn_option convert_table[] = {
    {.name = "--type",
     .arg = "TYPE",
     .help = "type of the matrices: F32, F16, BF16 or Q8_0 (default: as in the checkpoint)",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(convert_options, type)},
};

const qn_command qn_cmd_convert = {
    .name = "convert",
    .args = "FOLDER OUT.gguf",
    .summary = "Converts a Hugging Face checkpoint to GGUF.",
    .notes = "FOLDER holds config.json, safetensors files (one or many) and the tokenizer's files. "
             "A vision tower goes to a second file, mmproj-OUT.gguf. A model that GGUF cannot "
             "express is refused with the reason; see docs/convert.md.",
    .options = convert_table,
    .n_options = sizeof convert_table / sizeof *convert_table,
    .options_size = sizeof(convert_options),
    .min_args = 2,
    .max_args = 2,
    .check = check_convert,
    .run = run_convert,
};
