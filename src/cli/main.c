// quern: the command line. Finds the command, reads its options, runs it, and turns a failure into
// one line on stderr and an exit code.
#include "cli/args.h"
#include "cli/foreign.h"
#include "cli/help.h"
#include "cli/named.h"
#include "cli/out.h"
#include "cli/split.h"
#include "cli/terminal.h"
#include "cli/user_config.h"
#include "cli/version.h"

#include "core/debug.h"
#include "core/file.h"
#include "core/printable.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

enum { DONE = 0, FAILED = 1, WRONG_USAGE = 2 };

static const qn_command *const command_table[] = {
    &qn_cmd_run,      &qn_cmd_serve,   &qn_cmd_pull,     &qn_cmd_list,     &qn_cmd_show,
    &qn_cmd_rm,       &qn_cmd_logits,  &qn_cmd_embed,    &qn_cmd_tokenize, &qn_cmd_detokenize,
    &qn_cmd_template, &qn_cmd_inspect, &qn_cmd_graph,    &qn_cmd_bench,    &qn_cmd_eval,
    &qn_cmd_compile,  &qn_cmd_convert, &qn_cmd_quantize, &qn_cmd_imatrix,  &qn_cmd_synth,
    &qn_cmd_devices,
};
enum { N_COMMANDS = sizeof command_table / sizeof *command_table };
static const qn_commands commands = {command_table, N_COMMANDS};

// If a standard stream was closed by the caller, the next file we open would take its place and get
// our output. A null device opened the wrong way round keeps the place and fails when it is used.
static void occupy_streams(void) {
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) == -1 && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd)
            return;
    }
}

// Mapped files are those of the cache folder alone; nothing else in a sound program raises this.
// Only what is safe in a handler happens here.
static void end_without_file(int signal_number) {
    static const char line[] =
        "quern: a mapped file of the cache folder was shortened while in use, "
        "or the disk failed\n";
    static atomic_flag is_told = ATOMIC_FLAG_INIT;
    (void)signal_number;
    while (atomic_flag_test_and_set(&is_told)) pause(); // another thread is ending us
    if (write(STDERR_FILENO, line, sizeof line - 1) < 0) _exit(FAILED); // nobody to tell
    _exit(FAILED);
}

// What is told by another rank comes without a message.
static int report(qn_err *err, int code) {
    if (err->message[0]) qn_print_line("quern: %s", err->message);
    return code;
}

static int refuse_command(const char *name) {
    const char *names[N_COMMANDS + 2] = {"help", "--version"};
    for (size_t i = 0; i < N_COMMANDS; i++) names[i + 2] = command_table[i]->name;
    const char *near = qn_nearest(name, names, N_COMMANDS + 2);
    const char *hint = qn_foreign_hint(QN_PLACE_COMMAND, name, strlen(name));
    qn_err err;
    if (hint)
        (void)QN_FAIL(&err, ARGUMENT, "no command '%s'; %s", name, hint);
    else if (near)
        (void)QN_FAIL(&err, ARGUMENT, "no command '%s'; did you mean '%s'?", name, near);
    else if (qn_path_is_file(name) || qn_path_is_folder(name))
        (void)QN_FAIL(&err, ARGUMENT, "no command '%s'; did you mean 'quern run %s'?", name, name);
    else
        (void)QN_FAIL(&err, ARGUMENT, "no command '%s'; 'quern help' lists them", name);
    return report(&err, WRONG_USAGE);
}

static int run(const qn_command *command, char *const *words, size_t n);

static int finish(int code) {
    qn_err err;
    if (code == DONE && qn_stdout_check(&err)) return report(&err, FAILED);
    return code;
}

static bool is_help(const char *word) {
    return strcmp(word, "help") == 0 || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

static const qn_topic *find_topic(const char *name) {
    const qn_topic *topic;
    for (size_t i = 0; (topic = qn_help_topic(i)) && strcmp(topic->name, name) != 0;) i++;
    return topic;
}

static int print_topic(const qn_topic *topic, const char *word) {
    qn_err err;
    if (topic->needs_word && !word) {
        (void)QN_FAIL(&err, ARGUMENT, "help: %s is missing; usage: quern help %s %s", topic->word,
                      topic->name, topic->word);
        return report(&err, WRONG_USAGE);
    }
    const qn_status status = topic->print(word, &commands, &err);
    if (status) return report(&err, status == QN_ARGUMENT ? WRONG_USAGE : FAILED);
    return finish(DONE);
}

static int help(char *const *words, size_t n) {
    static char option[] = "--help";
    const qn_command *command = n ? qn_command_find(&commands, words[0]) : NULL;
    const qn_topic *topic = n ? find_topic(words[0]) : NULL;
    const size_t max = topic && topic->word ? 2 : 1;
    qn_err err;
    if (n > max) {
        (void)QN_FAIL(&err, ARGUMENT, "help: unexpected argument '%s'; usage: quern help [COMMAND]",
                      words[max]);
        return report(&err, WRONG_USAGE);
    }
    if (command) return run(command, (char *const[]){option}, 1);
    if (topic) return print_topic(topic, n > 1 ? words[1] : NULL);
    if (n > 0 && !is_help(words[0])) return refuse_command(words[0]);
    qn_help_all(&commands);
    return finish(DONE);
}

// One line for all variables that look like switches and are none.
static void warn_of_strays(void) {
    enum { MAX = 4, LONGEST = 32 };
    size_t at = 0, size, n = 0, n_names;
    const char *const *names = qn_switch_names(&n_names);
    qn_shown line = {0};
    int used = 0;
    for (const char *stray; n < MAX && (stray = qn_switch_stray(&at, &size)); n++) {
        char name[LONGEST + 1];
        snprintf(name, sizeof name, "%.*s", (int)(size < LONGEST ? size : LONGEST), stray);
        const char *near = qn_nearest(name, names, n_names);
        used +=
            snprintf(line.text + used, sizeof line.text - (size_t)used, "%s%s%s%s%s", n ? ", " : "",
                     name, near ? " (did you mean " : "", near ? near : "", near ? "?)" : "");
    }
    qn_text_clean(line.text); // names from outside
    if (n > 0)
        qn_print_line("quern: warning: no such switch: %s; 'quern help switches' lists them",
                      line.text);
}

// Options may have their values from elsewhere: then the line says from where, too.
static int report_call(qn_err *err, int code, const qn_command *command,
                       const qn_user_config *config) {
    qn_buf where = {0};
    if (err->message[0]) qn_user_config_explain(&where, config, command, err->message);
    if (where.data) qn_text_clean(where.data);
    if (err->message[0]) qn_print_line("quern: %s%s", err->message, where.data ? where.data : "");
    qn_buf_deinit(&where);
    return code;
}

// Help is there to find out what is wrong with the defaults, too.
static int print_help(const qn_command *command, const qn_call *call, const qn_user_config *config,
                      const qn_err *err) {
    qn_err memory;
    if (qn_help_command(command, call, config, &memory)) return report(&memory, FAILED);
    if (err->status) qn_print_line("quern: warning: %s", err->message);
    return finish(DONE);
}

// What ranks fail with alike is told once.
static void hush(qn_err *err, bool is_silent) {
    if (is_silent && err->message[0] && !qn_ranks_must_tell(err->status)) err->message[0] = '\0';
}

static int run_call(const qn_command *command, qn_call *call, const qn_user_config *config,
                    bool is_silent) {
    qn_err err = {0};
    qn_resolved named = {0};
    bool is_done = false;
    qn_status status = qn_call_check(call, command, &err);
    if (status) {
        hush(&err, is_silent);
        return report_call(&err, status == QN_MEMORY ? FAILED : WRONG_USAGE, command, config);
    }
    if (!is_silent) warn_of_strays();
    status = qn_named_resolve(&named, command, call, &err);
    if (!status) status = qn_ranks_run(&is_done, command, call, &err);
    if (!status && !is_done) status = command->run(call, &err);
    qn_resolved_deinit(&named);
    if (!status) return finish(DONE);
    hush(&err, is_silent);
    const int code = report_call(&err, status == QN_USAGE ? WRONG_USAGE : FAILED, command, config);
    // Nothing but Ctrl-C stops a command, but for one on several ranks.
    if (status == QN_STOPPED && !qn_ranks_stop()) qn_interrupt_die();
    return code;
}

static int run(const qn_command *command, char *const *words, size_t n) {
    qn_err err = {0};
    qn_call call = {0};
    qn_user_config config = {0};
    bool wants_help = false;
    int code = DONE;
    bool is_silent = qn_ranks_is_silent(words, n);
    qn_status status = qn_call_parse(&call, &wants_help, command, words, n, &err);
    if (!status) status = qn_user_config_fill(&config, &call, command, &commands, &err);
    if (!status && qn_ranks_is_follower(command, &call)) is_silent = true;
    if (status == QN_MEMORY) wants_help = false;
    if (wants_help)
        code = is_silent ? DONE : print_help(command, &call, &config, &err);
    else if (status) // the file of defaults may be missing or damaged
        code = status == QN_ARGUMENT ? WRONG_USAGE : FAILED;
    else
        code = run_call(command, &call, &config, is_silent);
    if (status && !wants_help) {
        hush(&err, is_silent);
        (void)report(&err, code);
    }
    qn_call_deinit(&call, command);
    qn_user_config_deinit(&config);
    return code;
}

static int print_version(char *const *words, size_t n) {
    (void)words, (void)n;
    qn_version_print();
    return finish(DONE);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int (*run)(char *const *words, size_t n);
    } own[] = {
        {"help", help},
        {"--help", help},
        {"-h", help},
        {"--version", print_version},
        {"-V", print_version},
        {"-v", print_version},
        {"version", print_version},
    };
    occupy_streams();
    // A reader that goes away (`| head`) ends us silently, also where the caller ignores it.
    signal(SIGPIPE, SIG_DFL);
    // sigaction, because signal resets the handler in strict POSIX: a second thread that meets the
    // same end of the file would kill us before the first has said why.
    (void)sigaction(SIGBUS, &(struct sigaction){.sa_handler = end_without_file}, NULL);
    signal(SIGXFSZ, SIG_IGN); // a file that may not grow further is an error like a full disk
    if (argc < 2) return help(NULL, 0);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        if (strcmp(argv[1], own[i].name) == 0) return own[i].run(argv + 2, (size_t)argc - 2);
    }
    const qn_command *command = qn_command_find(&commands, argv[1]);
    return command ? run(command, argv + 2, (size_t)argc - 2) : refuse_command(argv[1]);
}
