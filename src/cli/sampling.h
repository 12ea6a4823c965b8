// What can be typed about choosing tokens: names as llama.cpp's users know them.
#ifndef QN_CLI_SAMPLING_H
#define QN_CLI_SAMPLING_H

#include "cli/command.h"

// A command's options have it as their field `sampling`. What is not given is as the model wants
// it, so that 0 is a value like any other.
typedef struct qn_sampling_args {
    bool greedy;
    qn_real temperature, top_p, min_p, typical_p, top_n_sigma;
    qn_real xtc_probability, xtc_threshold, dynatemp_range, dynatemp_exponent;
    qn_real repeat_penalty, frequency_penalty, presence_penalty;
    qn_real dry_multiplier, dry_base, mirostat_eta, mirostat_tau;
    qn_whole top_k, dry_allowed_length, mirostat;
    const char *repeat_last_n, *dry_last_n, *seed, *order;
    qn_texts dry_breakers, biases, bans;
} qn_sampling_args;

// clang-format off
#define QN_SAMPLERS_INITIAL "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature"
#define QN_SAMPLING_REAL(options, field, typed, value, low, high, start, text)                     \
    {.name = typed, .arg = value, .help = text, .kind = QN_OPTION_REAL,                            \
     .offset = offsetof(options, sampling.field), .min = low, .max = high, .initial = start}
#define QN_SAMPLING_INT(options, field, typed, low, high, start, text)                             \
    {.name = typed, .arg = "N", .help = text, .kind = QN_OPTION_WHOLE,                             \
     .offset = offsetof(options, sampling.field), .min = low, .max = high, .initial = start}
#define QN_SAMPLING_TEXT(options, field, typed, value, start, text)                                \
    {.name = typed, .arg = value, .help = text, .kind = QN_OPTION_TEXT,                            \
     .offset = offsetof(options, sampling.field), .initial = start}
#define QN_SAMPLING_TEXTS(options, field, typed, value, text)                                      \
    {.name = typed, .arg = value, .help = text, .kind = QN_OPTION_TEXTS,                           \
     .offset = offsetof(options, sampling.field)}
#define QN_OPTIONS_SAMPLING(options)                                                               \
    {.name = "--greedy",                                                                           \
     .help = "always take the most likely token, whatever the model's own sampling settings "      \
             "are",                                                                                \
     .kind = QN_OPTION_FLAG, .offset = offsetof(options, sampling.greedy)},                        \
    QN_SAMPLING_REAL(options, temperature, "--temp", "T", 0, 100, "0",                             \
                     "temperature: 0 always takes the most likely token, 1 samples from the "      \
                     "model's distribution (default: the model's own setting, else 0; "            \
                     "likewise for the options below)"),                                           \
    QN_SAMPLING_TEXT(options, seed, "--seed", "N", "0",                                            \
                     "sampling seed (default 0): the same seed gives the same text; -1 "           \
                     "draws one and prints it"),                                                   \
    QN_SAMPLING_INT(options, top_k, "--top-k", 0, INT32_MAX, "0",                                  \
                    "keep the N most likely tokens (default 0: all)"),                             \
    QN_SAMPLING_REAL(options, top_p, "--top-p", "P", 0, 1, "1",                                    \
                     "keep the smallest set of most likely tokens whose probabilities add "        \
                     "up to P (default 1: all)"),                                                  \
    QN_SAMPLING_REAL(options, min_p, "--min-p", "P", 0, 1, "0",                                    \
                     "drop tokens less likely than P times the most likely one (default 0)"),      \
    QN_SAMPLING_REAL(options, typical_p, "--typical", "P", 0, 1, "1",                              \
                     "locally typical sampling: keep the most typical tokens whose "               \
                     "probabilities add up to P (default 1: all)"),                                \
    QN_SAMPLING_REAL(options, top_n_sigma, "--top-nsigma", "S", -1, 1000, "0",                     \
                     "drop tokens whose logit is more than S standard deviations below the "       \
                     "best (default 0, and -1: off)"),                                             \
    QN_SAMPLING_REAL(options, xtc_probability, "--xtc-probability", "P", 0, 1, "0",                \
                     "XTC: probability of dropping the most likely tokens (default 0)"),           \
    QN_SAMPLING_REAL(options, xtc_threshold, "--xtc-threshold", "P", 0, 1, "0.1",                  \
                     "XTC: drop all tokens at or above this probability but the least "            \
                     "likely (default 0.1)"),                                                      \
    QN_SAMPLING_REAL(options, dynatemp_range, "--dynatemp-range", "T", 0, 100, "0",                \
                     "dynamic temperature: --temp plus or minus T, by entropy (default 0)"),       \
    QN_SAMPLING_REAL(options, dynatemp_exponent, "--dynatemp-exp", "X", 0, 100, "1",               \
                     "exponent of the dynamic temperature (default 1)"),                           \
    QN_SAMPLING_REAL(options, repeat_penalty, "--repeat-penalty", "R", 0, 100, "1",                \
                     "divide the logits of recent tokens by this, or multiply negative ones "      \
                     "(default 1: off)"),                                                          \
    QN_SAMPLING_TEXT(options, repeat_last_n, "--repeat-last-n", "N", "64",                         \
                     "tokens that count as recent (default 64; 0 and -2: none, -1: all)"),         \
    QN_SAMPLING_REAL(options, frequency_penalty, "--frequency-penalty", "X", -100, 100, "0",       \
                     "lower a token's logit by this for each time it is in the answer "            \
                     "(default 0)"),                                                               \
    QN_SAMPLING_REAL(options, presence_penalty, "--presence-penalty", "X", -100, 100, "0",         \
                     "lower the logits of all tokens in the answer by this (default 0)"),          \
    QN_SAMPLING_REAL(options, dry_multiplier, "--dry-multiplier", "X", 0, 1000, "0",               \
                     "DRY: lower the logits of tokens that continue a repetition (default "        \
                     "0: off)"),                                                                   \
    QN_SAMPLING_REAL(options, dry_base, "--dry-base", "X", 1, 1000, "1.75",                        \
                     "DRY: growth of the penalty per token of the repetition (default 1.75)"),     \
    QN_SAMPLING_INT(options, dry_allowed_length, "--dry-allowed-length", 1, INT32_MAX, "2",        \
                    "DRY: the shortest repetition that counts (default 2)"),                       \
    QN_SAMPLING_TEXT(options, dry_last_n, "--dry-penalty-last-n", "N", "-1",                       \
                     "DRY: tokens to search for repetitions (default -1: all; 0 and -2: "          \
                     "none)"),                                                                     \
    QN_SAMPLING_TEXTS(options, dry_breakers, "--dry-sequence-breaker", "TEXT",                     \
                      "DRY: no repetition reaches across this text (default: newline, "            \
                      "colon, quote and asterisk; none: nothing); may be repeated"),               \
    QN_SAMPLING_INT(options, mirostat, "--mirostat", 0, 2, "0",                                    \
                    "2: mirostat 2, which holds the entropy near a target, instead of the "        \
                    "filters (default 0: off)"),                                                   \
    QN_SAMPLING_REAL(options, mirostat_eta, "--mirostat-lr", "X", 0, 10, "0.1",                    \
                     "mirostat: learning rate (default 0.1)"),                                     \
    QN_SAMPLING_REAL(options, mirostat_tau, "--mirostat-ent", "X", 0, 100, "5",                    \
                     "mirostat: target entropy, in bits per token (default 5)"),                   \
    QN_SAMPLING_TEXTS(options, biases, "--logit-bias", "ID+X",                                     \
                      "add X to the logit of a token, as 15043+1, 15043-2.5 or 15043-inf "         \
                      "(never); may be repeated"),                                                 \
    QN_SAMPLING_TEXTS(options, bans, "--ban", "TEXT",                                              \
                      "a text that must not appear in the answer; may be repeated"),               \
    QN_SAMPLING_TEXT(options, order, "--samplers", "NAMES", QN_SAMPLERS_INITIAL,                   \
                     "samplers in order, separated by semicolons (default "                        \
                     QN_SAMPLERS_INITIAL ")")
// clang-format on

// Wrong usage, reported before anything is opened.
QN_MUST_CHECK qn_status qn_sampling_args_check(const qn_sampling_args *args, qn_err *err);
// What does not go together on one command line; a conversation changes one after the other.
QN_MUST_CHECK qn_status qn_sampling_args_check_together(const qn_sampling_args *args, qn_err *err);

// What the library is asked for. Caller storage; borrows from the args.
typedef struct qn_sampling {
    qn_sample_opts opts;
    qn_bias *biases;     // owned
    bool is_random_seed; // opts.seed was drawn here
} qn_sampling;

// Puts what was typed over the model's own settings, which --greedy leaves out. Prints a random
// seed on stderr.
QN_MUST_CHECK qn_status qn_sampling_init(qn_sampling *out, const qn_sampling_args *args,
                                         const qn_sample_opts *defaults, qn_err *err);
// A zeroed struct is fine.
void qn_sampling_deinit(qn_sampling *sampling);

// The i-th setting that a model may come with, and its value as it is typed.
typedef struct qn_sampling_default {
    const char *option, *field; // "--temp", "temperature" (of qn_sample_opts); NULL past the last
    bool is_text;               // not a number
    char value[128];            // "": the model says nothing about it
} qn_sampling_default;
qn_sampling_default qn_sampling_get_default(const qn_sample_opts *defaults, size_t i);
// The same for an option by its name; its value is "" for options that no model sets.
qn_sampling_default qn_sampling_find_default(const qn_sample_opts *defaults, const char *option);

#endif
