// quern synth: a model of random weights with the shape of a well-known one.
#include "cli/command.h"
#include "cli/making.h"
#include "cli/out.h"
#include "cli/progress.h"
#include "cli/terminal.h"

#include <stdio.h>

typedef struct synth_options {
    uint64_t seed;
    int64_t threads;
    qn_real skew;
} synth_options;

static qn_status check_synth(const qn_call *call, qn_err *err) {
    qn_synth_size size = QN_INIT(qn_synth_size);
    QN_TRY(qn_outfile_check("OUT.gguf", call->args[2], err));
    return qn_synth_measure(&size, call->args[0], call->args[1], err);
}

static qn_status run_synth(const qn_call *call, qn_err *err) {
    const synth_options *options = call->options;
    qn_progress progress = {.what = "writing", .unit = ""};
    const qn_synth_opts opts =
        QN_INIT(qn_synth_opts, .seed = options->seed, .n_threads = (int)options->threads,
                .progress = qn_progress_show, .progress_arg = &progress,
                .routing_skew = options->skew.value);
    const double start = qn_now();
    qn_interrupt_hold(); // Ctrl-C stops it, and no partial file remains
    const qn_status status = qn_synth(call->args[0], call->args[1], call->args[2], &opts, err);
    const double seconds = qn_now() - start;
    qn_progress_end(&progress);
    if (status) return status;
    qn_file_size size;
    QN_TRY(qn_file_size_read(&size, call->args[2], err));
    const double mib = (double)size.bytes / (1 << 20);
    printf("%.1f MiB, %.2f bits per weight, in %.1f s (%.0f MiB/s)\n", mib, size.bits_per_weight,
           seconds, mib / seconds);
    return QN_OK;
}

static const qn_option synth_table[] = {
    {.name = "--seed",
     .arg = "N",
     .help = "random seed (default: 0); the same seed gives the same file",
     .kind = QN_OPTION_SEED,
     .offset = offsetof(synth_options, seed)},
    {.name = "--routing-skew",
     .arg = "S",
     .help = "mixture of experts: a few experts get most tokens, the more so the larger S is, 0 to "
             "8 (default 0: evenly)",
     .kind = QN_OPTION_REAL,
     .offset = offsetof(synth_options, skew),
     .min = 0,
     .max = 8},
    QN_OPTION_THREADS(synth_options, threads),
};

const qn_command qn_cmd_synth = {
    .name = "synth",
    .args = "SHAPE TYPE OUT.gguf",
    .summary = "Makes a model with random weights and the shape of a well-known one.",
    .notes = "For benchmarking without a download: the output is nonsense, the speed is that of "
             "the real model. SHAPE is qwen3-0.6b, qwen3-1.7b, qwen3-8b, llama3.2-1b, llama3.1-8b, "
             "llama3.1-70b, llama3.1-405b, gemma3-1b, qwen3-30b-a3b, qwen3-235b-a22b, "
             "qwen3.5-0.8b, qwen3.5-4b, small-qwen3moe, or a tiny one: tiny-llama, tiny-qwen2, "
             "tiny-qwen3, tiny-qwen3moe, tiny-gemma, tiny-gemma2, tiny-gemma3, "
             "tiny-qwen35, tiny-qwen35moe. TYPE is as for 'quern quantize', such as Q4_K_M.",
    .options = synth_table,
    .n_options = sizeof synth_table / sizeof *synth_table,
    .options_size = sizeof(synth_options),
    .min_args = 3,
    .max_args = 3,
    .check = check_synth,
    .run = run_synth,
};
