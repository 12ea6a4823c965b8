// The command line: one table of commands, one table of options for each, one parser.
//
// A command is a file cmd_*.c with a struct for its options, a table that says how each option
// fills a field of it, and two functions: `check` looks at what was typed, `run` does it. It prints
// results to stdout and nothing else; main.c turns failures into one line on stderr.
// Exit codes: 0 done, 1 failed, 2 wrong usage: what the parser or `check` refuse, and QN_USAGE of
// `run`.
#ifndef QN_CLI_COMMAND_H
#define QN_CLI_COMMAND_H

#include "core/err.h"

// The status of the commands' own for a value of an option that shows as wrong only when the model
// is open, or the file is looked for: QN_FAIL(err, USAGE, ...).
#define QN_USAGE ((qn_status)QN_STATUS_COUNT)

// What an option's value is, and so the type of its field.
typedef enum qn_option_kind {
    QN_OPTION_FLAG,  // bool; takes no value
    QN_OPTION_TEXT,  // const char *; NULL: not given
    QN_OPTION_TEXTS, // qn_texts; may be given several times
    QN_OPTION_INT,   // int64_t between `min` and `max`; 0: not given
    QN_OPTION_REAL,  // qn_real between `min` and `max`
    QN_OPTION_WHOLE, // qn_whole between `min` and `max`: 0 is a value like any other
    QN_OPTION_SEED,  // uint64_t
    QN_OPTION_WORD,  // int: which of `words`, counted from 1; 0: not given
    QN_OPTION_INTS,  // qn_ints: whole numbers between `min` and `max`, separated by commas
} qn_option_kind;

typedef struct qn_real {
    double value;
    bool is_given;
} qn_real;

typedef struct qn_whole {
    int64_t value;
    bool is_given;
} qn_whole;

typedef struct qn_texts {
    const char **items; // borrowed texts in an owned array
    size_t n;
} qn_texts;

typedef struct qn_ints {
    int64_t *items; // owned
    size_t n;
} qn_ints;

typedef struct qn_option {
    const char *name;  // "--prompt"
    const char *alias; // "-p", or NULL
    const char *arg;   // "TEXT"; NULL for flags
    const char *help;  // one sentence
    qn_option_kind kind;
    size_t offset; // of the field in the command's options
    int64_t min, max;
    const char *const *words; // those of QN_OPTION_WORD, ends with NULL
    const char *none;         // of QN_OPTION_INT: what is the same as not given; NULL: nothing
    const char *initial; // of settings: what counts when it is not given; NULL: "off" or "none"
    bool is_secret;      // its value is never shown
} qn_option;

// The row of --threads, the same for every command that computes; `field` of the struct `options`
// is an int64_t.
// clang-format off
#define QN_OPTION_THREADS(options, field)                                                          \
    {.name = "--threads", .alias = "-t", .arg = "N",                                               \
     .help = "threads to use (default, and 0: all this process may use); output unchanged",        \
     .kind = QN_OPTION_INT, .offset = offsetof(options, field), .min = 0, .max = 256}
// clang-format on

// What was typed after the name of a command.
typedef struct qn_call {
    const char *const *args; // (n_args) everything but options
    size_t n_args;
    void *options;  // the command's options struct
    bool *is_given; // (n_options of the command) was among the words, if only as --no-NAME
} qn_call;

typedef struct qn_command {
    const char *name;
    const char *args;    // "MODEL [TEXT]"
    const char *summary; // one line
    const char *notes;   // paragraphs below the options in the help; NULL: none
    const qn_option *options;
    size_t n_options, options_size;
    size_t min_args, max_args;
    const char *beside; // the option that says where results go that else lie beside the model,
                        // which is no place of ours where another program keeps it; NULL: none
    qn_status (*check)(const qn_call *call, qn_err *err); // NULL: nothing to check
    qn_status (*run)(const qn_call *call, qn_err *err);
} qn_command;

// All of them.
typedef struct qn_commands {
    const qn_command *const *items;
    size_t n;
} qn_commands;

extern const qn_command qn_cmd_run, qn_cmd_logits, qn_cmd_tokenize, qn_cmd_detokenize,
    qn_cmd_template, qn_cmd_inspect, qn_cmd_graph, qn_cmd_bench, qn_cmd_eval, qn_cmd_compile,
    qn_cmd_convert, qn_cmd_quantize, qn_cmd_imatrix, qn_cmd_synth, qn_cmd_devices, qn_cmd_embed,
    qn_cmd_serve, qn_cmd_pull, qn_cmd_list, qn_cmd_show, qn_cmd_rm;

#endif
