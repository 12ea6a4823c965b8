#include "cli/split.h"

#include "cli/out.h"
#include "cli/split_report.h"
#include "cli/terminal.h"

#include "core/debug.h"
#include "core/mem.h"

#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// Set by signals, so it is not in any object.
static qn_stop_flag *stop;

const qn_stop_flag *qn_ranks_stop(void) { return stop; }

// --- what was typed ------------------------------------------------------------------------------

static bool is_split(const char *word) {
    return strcmp(word, "--split") == 0 || strncmp(word, "--split=", 8) == 0;
}

bool qn_ranks_is_silent(char *const *words, size_t n) {
    for (size_t i = 0; i < n && strcmp(words[i], "--") != 0; i++) {
        if (is_split(words[i])) return qn_launch_rank() > 0;
    }
    return false;
}

// The end of rank 0, and that it does not answer, nobody else tells.
bool qn_ranks_must_tell(qn_status status) {
    enum { PATIENCE_MS = 3000, STEP_MS = 20, MS = 1000000 };
    if (qn_launch_rank() == 0 || status == QN_IO || status == QN_LIMIT) return true;
    for (int i = 0; i < PATIENCE_MS / STEP_MS; i++) {
        if (stop && qn_stop_flag_is_set(stop)) return false; // else TERM ends the process
        nanosleep(&(struct timespec){.tv_nsec = STEP_MS * MS}, NULL);
    }
    return true;
}

static const qn_option *find_option(const qn_command *command, const char *name) {
    for (size_t i = 0; i < command->n_options; i++) {
        if (strcmp(command->options[i].name, name) == 0) return &command->options[i];
    }
    return NULL;
}

// The options of every command that can be split have a qn_engine_args somewhere; NULL: not so.
static const qn_engine_args *find_args(const qn_command *command, const void *options) {
    const qn_option *split = find_option(command, "--split");
    if (!split) return NULL;
    return (const void *)((const char *)options + split->offset - offsetof(qn_engine_args, split));
}

bool qn_ranks_is_follower(const qn_command *command, const qn_call *call) {
    const qn_engine_args *args = find_args(command, call->options);
    return args && args->split && qn_launch_rank() > 0;
}

static bool find_flag(const qn_command *command, const void *options, const char *name) {
    const qn_option *option = find_option(command, name);
    return option && option->kind == QN_OPTION_FLAG &&
           *(const bool *)((const char *)options + option->offset);
}

// --- signals -------------------------------------------------------------------------------------

// How long the first rank has for its end, once it was told to make one.
enum { GRACE = 1, FAILED = 1 };

void qn_ranks_stop_waiting(void) {
    if (stop) qn_stop_flag_set(stop);
}

static void end_waits(int number) {
    (void)number;
    qn_stop_flag_set(stop);
}

static void end_soon(int number) {
    end_waits(number);
    (void)alarm(GRACE);
}

static void end_now(int number) {
    (void)number;
    _exit(FAILED);
}

// TERM comes to all ranks when one of them is lost, or when the user has had enough. Who follows
// ends when rank 0 does, or has no orders for a while.
static qn_status take_signals(bool follows, qn_err *err) {
    QN_TRY(qn_stop_flag_create(&stop, err));
    (void)sigaction(SIGTERM, &(struct sigaction){.sa_handler = follows ? end_waits : end_soon},
                    NULL);
    (void)sigaction(SIGALRM, &(struct sigaction){.sa_handler = end_now}, NULL);
    if (follows) (void)signal(SIGINT, SIG_IGN); // rank 0 has it, too
    return QN_OK;
}

// --- doing it ------------------------------------------------------------------------------------

static qn_status follow(const char *path, const qn_open_opts *opts, qn_err *err) {
    qn_loaded loaded;
    QN_TRY(qn_cli_open(&loaded, path, opts, err));
    const qn_status status = qn_engine_follow(loaded.engine, err);
    qn_cli_close(&loaded);
    return status;
}

static qn_status print_plan(const char *path, const qn_open_opts *opts, bool as_json, qn_err *err) {
    qn_loaded loaded;
    QN_TRY(qn_cli_open(&loaded, path, opts, err));
    const qn_status status = qn_split_print(loaded.engine, as_json, err);
    qn_cli_close(&loaded);
    return status;
}

// Several processes that know nothing of each other are rarely meant.
static void warn_of_copies(const qn_engine_args *args) {
    if (args && !args->split && qn_launch_has_others() && qn_launch_rank() == 0)
        qn_print_line("quern: warning: each of the processes that were started does all of this; "
                      "with --split they share the model");
}

qn_status qn_ranks_run(bool *is_done, const qn_command *command, const qn_call *call, qn_err *err) {
    const qn_engine_args *args = find_args(command, call->options);
    const bool follows = qn_launch_rank() > 0;
    const bool as_json = find_flag(command, call->options, "--json");
    char *bundled = NULL;
    *is_done = args && args->split && (follows || args->dry_run);
    warn_of_copies(args);
    if (!args || !args->split) return QN_OK;
    QN_TRY(take_signals(follows, err));
    if (!*is_done) return QN_OK;
    const qn_open_opts opts = {.args = args,
                               .no_weights = args->dry_run,
                               .no_notes = follows,
                               .mtp = find_flag(command, call->options, "--mtp")};
    if (call->n_args == 0) QN_TRY(qn_bundled_find(&bundled, err));
    const char *path = bundled ? bundled : call->args[0];
    const qn_status status =
        follows ? follow(path, &opts, err) : print_plan(path, &opts, as_json, err);
    qn_free(bundled);
    return status;
}
