// Defaults of options that the user keeps: variables (QUERN_OPT_TEMP=0.7) and a file, config.toml,
// with keys for all commands and a table for each.
//
// What was typed is stronger than a variable, that than the table of the command, that than the
// keys above the tables. Names are checked in the whole file, values where they are used.
#ifndef QN_CLI_USER_CONFIG_H
#define QN_CLI_USER_CONFIG_H

#include "cli/command.h"

#include "core/arena.h"
#include "core/buf.h"
#include "core/toml.h"

// Where the value of an option comes from: the weakest first.
typedef enum qn_rank {
    QN_RANK_NONE,     // it has none
    QN_RANK_GENERAL,  // the file
    QN_RANK_COMMAND,  // the command's table in it
    QN_RANK_VARIABLE, // the environment
    QN_RANK_TYPED
} qn_rank;

typedef struct qn_origin {
    qn_rank rank;
    const char *where; // "QUERN_OPT_TEMP", "PATH, line 3"; NULL: nothing was kept
} qn_origin;

// Caller storage; zeroed is empty. Values that were taken are borrowed from it.
typedef struct qn_user_config {
    char *path; // of the file; NULL: there is none
    qn_toml toml;
    qn_arena texts;
    qn_origin *origins; // (n_options of the command)
} qn_user_config;

// The path of the file (owned: qn_free); NULL where there is none to look for. *must_exist: it was
// named.
QN_MUST_CHECK qn_status qn_user_config_find(char **path, bool *must_exist, qn_err *err);

// Gives the options of a call that was parsed their defaults. *out is to be released even on
// failure, after the call.
QN_MUST_CHECK qn_status qn_user_config_fill(qn_user_config *out, qn_call *call,
                                            const qn_command *command, const qn_commands *all,
                                            qn_err *err);
void qn_user_config_deinit(qn_user_config *config);

// Appends where the options that a message names have their values from, if they were not typed:
// " (--temp: QUERN_OPT_TEMP)".
void qn_user_config_explain(qn_buf *to, const qn_user_config *config, const qn_command *command,
                            const char *message);

#endif
