// quern quantize: a model file with other numeric types.
#include "cli/args.h"
#include "cli/making.h"
#include "cli/out.h"
#include "cli/progress.h"
#include "cli/terminal.h"

#include <stdio.h>

typedef struct quantize_options {
    const char *imatrix;
    bool pure;
    int64_t threads;
} quantize_options;

static qn_status check_quantize(const qn_call *call, qn_err *err) {
    QN_TRY(qn_outfile_check("OUT.gguf", call->args[1], err));
    return qn_quantize_check_type(call->args[2], err);
}

static qn_status print_sizes(const char *in, const char *out, double seconds, qn_err *err) {
    qn_file_size before, after;
    QN_TRY(qn_file_size_read(&before, in, err));
    QN_TRY(qn_file_size_read(&after, out, err));
    const double mib = 1 << 20;
    qn_shown clean;
    printf("%s: %.1f MiB, %.2f bits per weight -> %.1f MiB, %.2f bits per weight, in %.1f s\n",
           qn_clean(&clean, out), (double)before.bytes / mib, before.bits_per_weight,
           (double)after.bytes / mib, after.bits_per_weight, seconds);
    return QN_OK;
}

static qn_status run_quantize(const qn_call *call, qn_err *err) {
    const quantize_options *options = call->options;
    qn_progress progress = {.what = "quantizing", .unit = ""};
    const qn_quantize_opts opts =
        QN_INIT(qn_quantize_opts, .type = call->args[2], .imatrix = options->imatrix,
                .pure = options->pure, .n_threads = (int)options->threads, .log = qn_making_log,
                .log_arg = &progress, .progress = qn_progress_show, .progress_arg = &progress);
    const double start = qn_now();
    qn_interrupt_hold(); // Ctrl-C stops it, and no partial file remains
    const qn_status status = qn_quantize(call->args[0], call->args[1], &opts, err);
    qn_progress_end(&progress);
    return status ? status : print_sizes(call->args[0], call->args[1], qn_now() - start, err);
}

static const qn_option quantize_table[] = {
    {.name = "--imatrix",
     .arg = "FILE",
     .help = "importance matrix from 'quern imatrix' or llama.cpp: columns that matter more get a "
             "smaller error",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(quantize_options, imatrix)},
    {.name = "--pure",
     .help = "one type for every matrix, without the exceptions of the mixes",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(quantize_options, pure)},
    QN_OPTION_THREADS(quantize_options, threads),
};

const qn_command qn_cmd_quantize = {
    .name = "quantize",
    .args = "IN OUT.gguf TYPE",
    .summary = "Writes a model with fewer bits per weight.",
    .notes =
        "TYPE is F32, F16, BF16, Q8_0, Q6_K, Q5_1, Q5_K_M, Q5_K_S, Q5_0, Q4_1, Q4_K_M, Q4_K_S, "
        "IQ4_NL, Q4_0, IQ4_XS, Q3_K_L, Q3_K_M, Q3_K_S or Q2_K; Q4_K_M is a good default. Some "
        "matrices get more bits than the type says, see "
        "docs/quantize.md. IN is a GGUF file (ideally unquantised) or a checkpoint folder.",
    .options = quantize_table,
    .n_options = sizeof quantize_table / sizeof *quantize_table,
    .options_size = sizeof(quantize_options),
    .min_args = 3,
    .max_args = 3,
    .check = check_quantize,
    .run = run_quantize,
};
