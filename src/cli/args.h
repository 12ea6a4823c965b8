// Words of a command line -> a qn_call.
#ifndef QN_CLI_ARGS_H
#define QN_CLI_ARGS_H

#include "cli/command.h"
#include "core/buf.h"

// Reads the words after the command's name. Options may come anywhere, as "--name value",
// "--name=value", "-n value" or, where the value is a number, "-n20"; "--" ends them. "--no-name"
// puts an option back to what it is when it is not given. *wants_help: "--help" or "-h" was among
// them, and what follows was not parsed. The words must outlive *out, which qn_call_deinit
// releases.
QN_MUST_CHECK qn_status qn_call_parse(qn_call *out, bool *wants_help, const qn_command *command,
                                      char *const *words, size_t n, qn_err *err);
// Whether the arguments and the options go together, once all of them are there.
QN_MUST_CHECK qn_status qn_call_check(const qn_call *call, const qn_command *command, qn_err *err);
void qn_call_deinit(qn_call *call, const qn_command *command);

// What a name means to a command.
typedef struct qn_named {
    const qn_option *option; // NULL: nothing
    bool is_off;             // "--no-NAME" of an option, "--NAME" of the flag "--no-NAME"
} qn_named;
// The option that `n` bytes name as it is typed ("--top-k", "--top_k", "-n", "--n-predict").
qn_named qn_option_find(const qn_command *command, const char *typed, size_t n);

// One option after the command line was read: fills its field in `options`. A flag is "on" or
// "off"; a text is added to those of QN_OPTION_TEXTS. Texts are borrowed.
QN_MUST_CHECK qn_status qn_option_set(void *options, const qn_option *option, const char *text,
                                      qn_err *err);
// Back to what it is when it is not given.
void qn_option_clear(void *options, const qn_option *option);
// Whether its field differs from that.
bool qn_option_is_set(const void *options, const qn_option *option);
// Appends the value as it is typed; nothing if the option is not given. The texts of
// QN_OPTION_TEXTS are quoted and separated by a space.
void qn_option_print(qn_buf *to, const void *options, const qn_option *option);

// The command of that name; NULL: none.
const qn_command *qn_command_find(const qn_commands *commands, const char *name);

// What a placeholder such as "MODEL" or "OUT.svg" stands for, as far as a shell can complete it.
typedef enum qn_path_kind {
    QN_PATH_NONE,
    QN_PATH_FILE,
    QN_PATH_FOLDER,
    QN_PATH_MODEL,
    QN_PATH_NAME // that of a model, and no path; only commands take it
} qn_path_kind;
qn_path_kind qn_path_kind_of(const char *placeholder);

// The name of `n` that `typed` most probably meant; NULL if none is near.
const char *qn_nearest(const char *typed, const char *const *names, size_t n);

// Whole numbers separated by a comma or blanks -> token ids (owned: qn_free). Anything else is
// QN_ARGUMENT, a number that no token can have QN_LIMIT; `what` names the text in messages.
QN_MUST_CHECK qn_status qn_ids_parse(int32_t **ids, size_t *n, const char *text, const char *what,
                                     qn_err *err);

#endif
