// Opening models for a command: its options, progress on a terminal, warnings, the bundled model.
#ifndef QN_CLI_OPEN_MODEL_H
#define QN_CLI_OPEN_MODEL_H

#include "cli/command.h"
#include "core/buf.h"

// What can be typed about opening a model, the same for every command. A command's options have it
// as their field `engine`, and its table has the rows below that make sense there.
typedef struct qn_engine_args {
    int64_t threads;
    int numerics, cache_type, plans; // words, see QN_OPTION_WORD
    const char *cache_dir, *device, *mmproj;
    bool mmproj_is_found; // it came with the model's name, and was not typed
    int64_t image_pixels;
    qn_texts loras;      // FILE or FILE:SCALE, all for one model
    const char *experts; // N, or bytes with K, M or G
    const char *layers;  // on GPUs: N, "auto" or "all"
    int split;           // word, see QN_OPTION_WORD
    const char *shares;
    int64_t rank_timeout; // seconds
    bool dry_run;
    int rope_scaling; // word, see QN_OPTION_WORD
    qn_real rope_scale;
    int64_t rope_original;
    int numa; // word, see QN_OPTION_WORD
} qn_engine_args;

// As in the enums of quern.h, without their automatic values.
extern const char *const qn_numerics_words[], *const qn_cache_words[], *const qn_plans_words[];
extern const char *const qn_split_words[], *const qn_rope_words[], *const qn_numa_words[];

// clang-format off
#define QN_OPTION_NUMERICS(options)                                                                \
    {.name = "--numerics", .arg = "MODE",                                                          \
     .help = "rounding of activations for quantised weights: exact (12 bits, 16 before "           \
             "a delta rule, the default), balanced (8 bits before gate and up), fast (8 bits), "   \
             "or on GPUs tensor (as exact, not quite the same sums, twice as fast prefill)",       \
     .kind = QN_OPTION_WORD, .offset = offsetof(options, engine.numerics),                         \
     .words = qn_numerics_words}
#define QN_OPTION_CACHE_TYPE(options)                                                              \
    {.name = "--cache-type", .arg = "TYPE",                                                        \
     .help = "type of the KV cache: f32, f16, q8_0, q4_0, or rotated q8_0r or q4_0r, which are "   \
             "closer to f32 (default: f16 for quantised models, f32 for others)",                  \
     .kind = QN_OPTION_WORD, .offset = offsetof(options, engine.cache_type),                       \
     .words = qn_cache_words}
#define QN_OPTION_PLANS(options)                                                                   \
    {.name = "--plans", .arg = "POLICY",                                                           \
     .help = "plan cache policy: bucketed (one plan per range of sizes, the default), exact "      \
             "(one per size) or dynamic (bound again for each size); output unchanged",            \
     .kind = QN_OPTION_WORD, .offset = offsetof(options, engine.plans), .words = qn_plans_words}
#define QN_OPTION_CACHE_DIR(options)                                                               \
    {.name = "--cache-dir", .arg = "DIR",                                                          \
     .help = "folder for packed weights, so that the model loads faster next time (default: "      \
             ".quern-cache beside the model, if 'quern compile' made it; none: off); output "      \
             "unchanged",                                                                          \
     .kind = QN_OPTION_TEXT, .offset = offsetof(options, engine.cache_dir)}
#define QN_OPTION_DEVICE_AS(options, text)                                                         \
    {.name = "--device", .arg = "NAME", .help = text,                                              \
     .kind = QN_OPTION_TEXT, .offset = offsetof(options, engine.device)}
#define QN_OPTION_DEVICE(options)                                                                  \
    QN_OPTION_DEVICE_AS(options, "device to run on, from 'quern devices'; several with commas "    \
                                 "split the layers (default: the best); output unchanged")
// Of commands that show how a model would be run, and run nothing.
#define QN_OPTION_DEVICE_SHOWN(options)                                                            \
    QN_OPTION_DEVICE_AS(options, "device that it would run on, from 'quern devices'; several "     \
                                 "with commas split the layers (default: the best)")
#define QN_OPTION_GPU_LAYERS(options)                                                              \
    {.name = "--gpu-layers", .arg = "N|auto|all",                                                  \
     .help = "with a GPU as --device: the last layers that it has, the others stay on the CPU; "   \
             "auto: as many as fit in its memory (default: all); output unchanged",                \
     .kind = QN_OPTION_TEXT, .offset = offsetof(options, engine.layers)}
#define QN_OPTION_LORA(options)                                                                    \
    {.name = "--lora", .arg = "FILE",                                                              \
     .help = "low-rank adapter for MODEL: GGUF, or a folder as PEFT writes it; FILE:SCALE "        \
             "scales it (default 1); may be repeated, all are applied together",                   \
     .kind = QN_OPTION_TEXTS, .offset = offsetof(options, engine.loras)}
#define QN_OPTION_EXPERTS(options)                                                                 \
    {.name = "--expert-budget", .arg = "N|BYTES",                                                  \
     .help = "mixture of experts: experts of each layer that are kept in memory, or with K, M or " \
             "G the bytes of all; others are read from packed weights as needed (default: all if " \
             "they fit, else what memory leaves); output unchanged",                               \
     .kind = QN_OPTION_TEXT, .offset = offsetof(options, engine.experts)}
#define QN_OPTIONS_ROPE(options)                                                                   \
    {.name = "--rope-scaling", .arg = "HOW",                                                       \
     .help = "longer contexts than the model's files say: yarn, linear, or none for no scaling "   \
             "(default: as the files say)",                                                        \
     .kind = QN_OPTION_WORD, .offset = offsetof(options, engine.rope_scaling),                     \
     .words = qn_rope_words},                                                                      \
    {.name = "--rope-scale", .arg = "X",                                                           \
     .help = "with --rope-scaling: how many times longer, 1 to 1048576",                           \
     .kind = QN_OPTION_REAL, .offset = offsetof(options, engine.rope_scale), .min = 1,             \
     .max = 1048576},                                                                              \
    {.name = "--yarn-orig-ctx", .arg = "N",                                                        \
     .help = "with --rope-scaling: the context that the model was trained with (default: as its "  \
             "files say)",                                                                         \
     .kind = QN_OPTION_INT, .offset = offsetof(options, engine.rope_original), .min = 1,           \
     .max = 1 << 30}
// One model on several processes that mpirun or Slurm started.
#define QN_OPTIONS_SPLIT(options)                                                                  \
    {.name = "--split", .arg = "HOW",                                                              \
     .help = "started by mpirun or srun: how the processes share the model: tensors (each has a "  \
             "share of every matrix), layers (each has some layers), auto (what is predicted to "  \
             "be faster); output unchanged",                                                       \
     .kind = QN_OPTION_WORD, .offset = offsetof(options, engine.split), .words = qn_split_words},  \
    {.name = "--shares", .arg = "N,N,...",                                                         \
     .help = "with --split layers: shares of the layers, one for each process, as in 3,1 "         \
             "(default: by measured speed)",                                                       \
     .kind = QN_OPTION_TEXT, .offset = offsetof(options, engine.shares)},                          \
    {.name = "--rank-timeout", .arg = "SECONDS",                                                   \
     .help = "with --split: max wait for another process within a step (default 60)",              \
     .kind = QN_OPTION_INT, .offset = offsetof(options, engine.rank_timeout), .min = 1,            \
     .max = 86400},                                                                                \
    {.name = "--dry-run",                                                                          \
     .help = "with --split: print how the model would be shared, with predicted speeds, and exit", \
     .kind = QN_OPTION_FLAG, .offset = offsetof(options, engine.dry_run)}
#define QN_OPTION_NUMA(options)                                                                    \
    {.name = "--numa", .arg = "HOW",                                                               \
     .help = "machines with several nodes of memory: auto (default: threads stay on their node, "  \
             "beside the weights that they read, where all CPUs are ours) or off; output "         \
             "unchanged",                                                                          \
     .kind = QN_OPTION_WORD, .offset = offsetof(options, engine.numa), .words = qn_numa_words}
// All of them, for commands that compute.
#define QN_OPTIONS_ENGINE(options)                                                                 \
    QN_OPTION_LORA(options), QN_OPTION_EXPERTS(options), QN_OPTION_DEVICE(options),                \
    QN_OPTION_GPU_LAYERS(options), QN_OPTION_NUMERICS(options), QN_OPTION_CACHE_TYPE(options),     \
    QN_OPTION_PLANS(options), QN_OPTION_CACHE_DIR(options), QN_OPTIONS_ROPE(options),              \
    QN_OPTIONS_SPLIT(options), QN_OPTION_NUMA(options),                                            \
        QN_OPTION_THREADS(options, engine.threads)
// clang-format on

// What the parser cannot see; for `check`.
QN_MUST_CHECK qn_status qn_engine_args_check(const qn_engine_args *args, qn_err *err);

// The adapters that were typed (owned: qn_free), for qn_engine_opts.
typedef struct qn_lora_list {
    qn_adapter *items; // NULL: none
    size_t n;
} qn_lora_list;
QN_MUST_CHECK qn_status qn_loras_parse(qn_lora_list *out, const qn_texts *typed, qn_err *err);

typedef struct qn_open_opts {
    const qn_engine_args *args; // NULL: nothing was typed
    bool is_second;             // another model than MODEL: adapters are not for it
    bool no_weights, reference, needs_tokenizer;
    bool mtp;         // with the prediction head
    bool no_notes;    // of the log, warnings and errors only
    bool fills_cache; // a cache folder that cannot be filled is an error
    bool is_alone;    // --split is not for it
    int64_t context;  // that --gpu-layers auto leaves room for; 0: as the library does
} qn_open_opts;

// What the library is asked for; silent.
qn_engine_opts qn_open_engine_opts(const qn_open_opts *opts);

// Caller storage, which must stay where it is: the engine's log comes to it.
typedef struct qn_loaded {
    qn_engine *engine;
    qn_buf lines;           // log of the opening; once it is done, lines go to stderr as they come
    char no_tokenizer[256]; // why there is none
    bool no_notes;
    char *cache_dir; // owned; NULL: none
} qn_loaded;

// The folder beside a model, or inside it if it is one, where 'quern compile' keeps its results
// (owned: qn_free). NULL: no memory.
char *qn_cache_beside(const char *model);

// Warnings of the library go to stderr when the opening succeeds; a failure is one line. A
// cache folder that cannot be used is a warning.
// On failure there is nothing to close.
QN_MUST_CHECK qn_status qn_cli_open(qn_loaded *out, const char *path, const qn_open_opts *opts,
                                    qn_err *err);
// Puts the path in front of a message that does not have it.
void qn_err_name(qn_err *err, qn_status status, const char *path);
// A zeroed struct is fine.
void qn_cli_close(qn_loaded *loaded);

// The path of the model that comes with Quern (owned: qn_free), looked for near the program.
QN_MUST_CHECK qn_status qn_bundled_find(char **out, qn_err *err);

#endif
