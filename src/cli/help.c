#include "cli/help.h"

#include "cli/args.h"
#include "cli/completion.h"
#include "cli/manual.h"
#include "cli/out.h"

#include "core/file.h"
#include "core/printable.h"

#include <stdio.h>
#include <string.h>

enum { WIDTH = 96 };

const char qn_help_about[] = "runs language models: text in, text out, on this machine.";
const char qn_help_model[] =
    "MODEL is a .gguf file (any part of a split set), a folder with config.json and safetensors, "
    "a .safetensors file or an index of them, or a name from 'quern list', of which a beginning is "
    "enough.";
const char qn_help_order[] =
    "Defaults of options, the strongest first: what is typed; variables such as "
    "QUERN_OPT_CACHE_TYPE=q8_0 for --cache-type q8_0; the table of the command in a file; the keys "
    "above the tables, which count for every command that has the option.";
const char qn_help_example[] =
    "temp = 0.7            # --temp 0.7\n"
    "context-shift = true  # --context-shift; --no-context-shift switches it off again\n"
    "stop = [\"END\", \"###\"]\n"
    "\n"
    "[serve]\n"
    "models = \"~/models\"\n";
const qn_option qn_help_option = {.name = "--help", .alias = "-h", .help = "print this"};

// Prints words up to the end of the line in `text`, broken at the right margin; the first begins at
// column `indent`, further lines are indented to it.
static void print_wrapped(const char *text, int indent) {
    int at = indent;
    while (*text && *text != '\n') {
        const int word = (int)strcspn(text, " \n");
        if (at > indent && at + 1 + word > WIDTH) {
            printf("\n%*s", indent, "");
            at = indent;
        }
        if (at > indent) putchar(' '), at++;
        printf("%.*s", word, text);
        at += word;
        text += word + (text[word] == ' ');
    }
    putchar('\n');
}

// "-p, --prompt TEXT"; returns its length, which is all it does when `to` is NULL.
static int option_head(char *to, size_t size, const qn_option *option) {
    return snprintf(to, size, "%s%s%s%s%s", option->alias ? option->alias : "   ",
                    option->alias ? ", " : " ", option->name, option->arg ? " " : "",
                    option->arg ? option->arg : "");
}

static void print_option(const qn_option *option, int column) {
    char head[128];
    option_head(head, sizeof head, option);
    printf("  %-*s", column - 2, head);
    print_wrapped(option->help, column);
}

// The value of an option that was not typed, below it: a path is not broken.
static qn_status print_kept(const qn_option *option, const qn_call *call, const char *where,
                            int column, qn_err *err) {
    enum { LONGEST = 60 };
    qn_buf value = {0};
    char shown[LONGEST];
    if (option->is_secret)
        qn_buf_text(&value, "set");
    else
        qn_option_print(&value, call->options, option);
    if (value.size == 0) qn_buf_text(&value, option->kind == QN_OPTION_FLAG ? "off" : "nothing");
    const qn_status status = value.failed ? QN_NOMEM(err, "the help") : QN_OK;
    qn_text_cut(shown, sizeof shown, status ? "" : value.data);
    for (char *at = shown; *at; at++)
        if (*at == '\n') *at = ' ';
    qn_text_clean(shown);
    qn_shown clean;
    if (!status) printf("%*snow %s, from %s\n", column, "", shown, qn_clean(&clean, where));
    qn_buf_deinit(&value);
    return status;
}

qn_status qn_help_command(const qn_command *command, const qn_call *call,
                          const qn_user_config *config, qn_err *err) {
    printf("usage: quern %s%s%s [options]\n\n", command->name, *command->args ? " " : "",
           command->args);
    print_wrapped(command->summary, 0);
    int column = option_head(NULL, 0, &qn_help_option);
    for (size_t i = 0; i < command->n_options; i++) {
        const int n = option_head(NULL, 0, &command->options[i]);
        if (n > column) column = n;
    }
    column += 4;
    printf("\noptions\n");
    for (size_t i = 0; i < command->n_options; i++) {
        print_option(&command->options[i], column);
        const char *where = config->origins ? config->origins[i].where : NULL;
        if (where) QN_TRY(print_kept(&command->options[i], call, where, column, err));
    }
    print_option(&qn_help_option, column);
    for (const char *at = command->notes; at && *at;) { // one paragraph a line
        putchar('\n');
        print_wrapped(at, 0);
        at += strcspn(at, "\n");
        at += *at == '\n';
    }
    return QN_OK;
}

static qn_status print_config(const char *word, const qn_commands *commands, qn_err *err) {
    char *path;
    bool must_exist;
    (void)word, (void)commands;
    QN_TRY(qn_user_config_find(&path, &must_exist, err));
    print_wrapped(qn_help_order, 0);
    putchar('\n');
    for (const char *at = qn_help_example; *at; at += strcspn(at, "\n") + 1)
        printf("%s%.*s\n", *at == '\n' ? "" : "  ", (int)strcspn(at, "\n"), at);
    printf("\n'quern COMMAND --help' tells the defaults that were changed, and where.\n\n");
    qn_shown shown;
    if (path)
        printf("The file is %s%s.\n", qn_clean(&shown, path),
               qn_path_is_file(path) ? "" : ", which is not there");
    else
        printf("There is no file to read.\n");
    printf("QUERN_CONFIG=FILE names another, QUERN_CONFIG=none none.\n");
    qn_free(path);
    return QN_OK;
}

static qn_status print_switches(const char *word, const qn_commands *commands, qn_err *err) {
    (void)word, (void)commands, (void)err;
    printf("Environment variables for debugging. None changes results except QN_SKIP=quantize,\n"
           "which leaves activations unrounded. An empty value counts as unset.\n\n");
#define SWITCH(env, type, field, value, meaning) printf("  %-17s%s\n", env, meaning);
#include "core/switch.def"
#undef SWITCH
    printf(
        "\nNO_COLOR, if it is not empty, disables colour; TERM=dumb or an unset TERM disables all\n"
        "escape sequences.\n");
    return QN_OK;
}

static qn_status print_completion(const char *shell, const qn_commands *commands, qn_err *err) {
    return qn_completion_print(shell, commands, err);
}

static qn_status print_manual(const char *name, const qn_commands *commands, qn_err *err) {
    const qn_command *command = name ? qn_command_find(commands, name) : NULL;
    if (name && !command)
        return QN_FAIL(err, ARGUMENT, "help manual: no command '%s'; 'quern help' lists them",
                       name);
    qn_manual_print(command, commands);
    return QN_OK;
}

static const qn_topic topics[] = {
    {"config", NULL, "how defaults of options are kept", false, print_config},
    {"switches", NULL, "environment variables for debugging", false, print_switches},
    {"completion", "bash|zsh|fish", "a script that completes what is typed", true,
     print_completion},
    {"manual", "COMMAND", "a manual page, for man -l", false, print_manual},
};
enum { N_TOPICS = sizeof topics / sizeof *topics };

const qn_topic *qn_help_topic(size_t i) { return i < N_TOPICS ? &topics[i] : NULL; }

void qn_help_all(const qn_commands *commands) {
    printf("Quern %s %s\n\n", qn_version(), qn_help_about);
    printf("usage: quern COMMAND [arguments] [options]\n\ncommands\n");
    for (size_t i = 0; i < commands->n; i++) {
        printf("  %-12s", commands->items[i]->name);
        print_wrapped(commands->items[i]->summary, 14);
    }
    printf("  %-12s%s\n", "help", "This page; 'quern help COMMAND' says more about one of them.");
    putchar('\n');
    print_wrapped(qn_help_model, 0);
    printf("\n"
           "  quern run                           chat with the bundled model\n"
           "  quern pull hf:OWNER/REPO            download a model, and use it by its name\n"
           "  quern run MODEL -p \"Why is it so?\"  one answer\n"
           "  quern inspect MODEL                 what is in a file\n"
           "  quern bench MODEL                   how fast it is on this machine\n"
           "  quern --version\n");
    for (const qn_topic *topic = topics; topic < topics + N_TOPICS; topic++) {
        char name[64];
        snprintf(name, sizeof name, "quern help %s %s", topic->name,
                 topic->word ? topic->word : "");
        printf("  %-36s%s\n", name, topic->summary);
    }
    printf("\nExit codes: 0 done, 1 failed (one line on stderr says why), 2 wrong usage.\n");
}
