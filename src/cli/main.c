// quern: the command line. Finds the command, reads its options, runs it, and turns a failure into
// one line on stderr and an exit code.
#include "cli/args.h"
#include "cli/foreign.h"
#include "cli/help.h"
#include "cli/out.h"
#include "cli/split.h"
#include "cli/terminal.h"

#include "core/debug.h"
#include "core/file.h"
#include "core/printable.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

enum { DONE = 0, FAILED = 1, WRONG_USAGE = 2 };

static const qn_command *const commands[] = {
    &qn_cmd_run,        &qn_cmd_serve,    &qn_cmd_logits,  &qn_cmd_embed,    &qn_cmd_tokenize,
    &qn_cmd_detokenize, &qn_cmd_template, &qn_cmd_inspect, &qn_cmd_graph,    &qn_cmd_bench,
    &qn_cmd_eval,       &qn_cmd_compile,  &qn_cmd_convert, &qn_cmd_quantize, &qn_cmd_imatrix,
    &qn_cmd_synth,      &qn_cmd_devices,
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

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

static const qn_command *find_command(const char *name) {
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(commands[i]->name, name) == 0) return commands[i];
    }
    return NULL;
}

static int refuse_command(const char *name) {
    const char *names[N_COMMANDS + 2] = {"help", "--version"};
    for (size_t i = 0; i < N_COMMANDS; i++) names[i + 2] = commands[i]->name;
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

static int finish(int code) {
    qn_err err;
    if (code == DONE && qn_stdout_check(&err)) return report(&err, FAILED);
    return code;
}

static bool is_help(const char *word) {
    return strcmp(word, "help") == 0 || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

static int help(char *const *words, size_t n) {
    qn_err err;
    if (n > 1) {
        (void)QN_FAIL(&err, ARGUMENT, "help: unexpected argument '%s'; usage: quern help [COMMAND]",
                      words[1]);
        return report(&err, WRONG_USAGE);
    }
    const qn_command *command = n ? find_command(words[0]) : NULL;
    if (command)
        qn_help_command(command);
    else if (n == 0 || is_help(words[0]))
        qn_help_all(commands, N_COMMANDS);
    else if (strcmp(words[0], "switches") == 0)
        qn_help_switches();
    else
        return refuse_command(words[0]);
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

static int run(const qn_command *command, char *const *words, size_t n) {
    qn_err err = {0};
    qn_call call = {0};
    bool wants_help = false, is_done = false;
    const bool is_silent = qn_ranks_is_silent(words, n);
    if (qn_call_parse(&call, &wants_help, command, words, n, &err)) {
        const int wrong = err.status == QN_MEMORY ? FAILED : WRONG_USAGE;
        return is_silent ? wrong : report(&err, wrong);
    }
    int code = DONE;
    qn_status status = QN_OK;
    if (!wants_help && !is_silent) warn_of_strays();
    if (wants_help) {
        if (!is_silent) qn_help_command(command);
    } else {
        status = qn_ranks_run(&is_done, command, &call, &err);
        if (!status && !is_done) status = command->run(&call, &err);
    }
    if (status) code = report(&err, status == QN_USAGE ? WRONG_USAGE : FAILED);
    qn_call_deinit(&call, command);
    // Nothing but Ctrl-C stops a command, but for one on several ranks.
    if (status == QN_STOPPED && !qn_ranks_stop()) qn_interrupt_die();
    return finish(code);
}

static int print_version(char *const *words, size_t n) {
    (void)words, (void)n;
    printf("quern %s\n", qn_version());
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
    const qn_command *command = find_command(argv[1]);
    return command ? run(command, argv + 2, (size_t)argc - 2) : refuse_command(argv[1]);
}
