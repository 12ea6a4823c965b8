#include "cli/manual.h"

#include "cli/help.h"

#include <stdio.h>
#include <string.h>

// --- text ----------------------------------------------------------------------------------------

// So that nothing of it is a request, and a dash can be copied to a command line.
static void print_escaped(const char *text, size_t n) {
    static const char from[] = "\\-'\"~^`";
    static const char *const to[] = {"\\e", "\\-", "\\(aq", "\\(dq", "\\(ti", "\\(ha", "\\(ga"};
    for (size_t i = 0; i < n; i++) {
        const char *found = strchr(from, text[i]);
        if (found)
            printf("%s", to[found - from]);
        else
            putchar(text[i]);
    }
}

static void print_text(const char *text) { print_escaped(text, strlen(text)); }

// A paragraph a line. Lines of the source are short, as mandoc wants them.
static void print_paragraphs(const char *text, const char *between) {
    enum { LONG = 56 };
    size_t column = 0;
    if (*text == '.') printf("\\&");
    while (*text) {
        const size_t word = strcspn(text, " \n");
        print_escaped(text, word);
        text += word;
        column += word + 1;
        const char after = *text;
        const bool is_next_safe = *text && text[1] != '.' && text[1] != ' ';
        if (after) text++;
        if (after == '\n' && *text) {
            printf("\n%s\n", between);
            column = 0;
        } else if (after == ' ' && column > LONG && is_next_safe) {
            printf("\n");
            column = 0;
        } else if (after == ' ') {
            printf(" ");
        }
    }
    printf("\n");
}

static void print_heading(const char *name) {
    printf(".TH ");
    for (const char *at = name; *at; at++) {
        if (*at == '-')
            printf("\\-");
        else
            putchar(*at >= 'a' && *at <= 'z' ? *at - 'a' + 'A' : *at);
    }
    printf(" 1 \"\" \"Quern %s\" \"Quern\"\n", qn_version());
}

// --- a command -----------------------------------------------------------------------------------

static void print_option(const qn_option *option) {
    printf(".TP\n");
    if (option->alias) {
        printf("\\fB");
        print_text(option->alias);
        printf("\\fR, ");
    }
    printf("\\fB");
    print_text(option->name);
    printf("\\fR");
    if (option->arg) {
        printf(" \\fI");
        print_text(option->arg);
        printf("\\fR");
    }
    printf("\n");
    print_paragraphs(option->help, ".IP");
}

static const char exit_status[] =
    ".SH EXIT STATUS\n"
    "0: done; 1: failed, one line on standard error says why; 2: wrong "
    "usage.\n";

static void print_command(const qn_command *command) {
    char name[64];
    snprintf(name, sizeof name, "quern-%s", command->name);
    print_heading(name);
    printf(".SH NAME\nquern\\-%s \\- ", command->name);
    print_escaped(command->summary, strlen(command->summary) - 1); // without its full stop
    printf("\n.SH SYNOPSIS\n\\fBquern %s\\fR ", command->name);
    print_text(command->args);
    printf("%s[\\fIoptions\\fR]\n.SH DESCRIPTION\n", *command->args ? " " : "");
    print_paragraphs(command->summary, ".PP");
    if (command->notes) {
        printf(".PP\n");
        print_paragraphs(command->notes, ".PP");
    }
    printf(".SH OPTIONS\n");
    for (size_t i = 0; i < command->n_options; i++) print_option(&command->options[i]);
    print_option(&qn_help_option);
    printf(
        ".PP\n\\fB\\-\\-no\\-\\fINAME\\fR puts an option back to what it is when it is not given; "
        "defaults of options are kept as\n.BR quern (1)\nsays.\n%s"
        ".SH SEE ALSO\n.BR quern (1)\n",
        exit_status);
}

// --- the program ---------------------------------------------------------------------------------

static void print_variable(const char *name, const char *meaning) {
    printf(".TP\n\\fB%s\\fR\n", name);
    print_paragraphs(meaning, ".IP");
}

static void print_environment(void) {
    printf(".SH ENVIRONMENT\n");
    print_variable("QUERN_CONFIG",
                   "the file of defaults of options, instead of config.toml; none: no file");
    print_variable("QUERN_OPT_...", "the default of an option: QUERN_OPT_CACHE_TYPE=q8_0 for "
                                    "--cache-type q8_0");
    print_variable("QUERN_MODELS",
                   "the folder of models that have names, instead of quern/models in "
                   "$XDG_DATA_HOME (~/.local/share)");
    print_variable("HF_TOKEN, HF_ENDPOINT", "who asks the hub that models are pulled from; its "
                                            "address, instead of https://huggingface.co");
    print_variable("HF_HOME, HF_HUB_CACHE, LLAMA_CACHE, OLLAMA_MODELS",
                   "folders of other programs, whose models are used where they are");
    print_variable("VISUAL, EDITOR", "the program of /edit in a conversation");
    print_variable("TMPDIR", "the folder of its file, instead of /tmp");
    print_variable("XDG_STATE_HOME",
                   "the folder of quern/history, what was typed in conversations, "
                   "instead of ~/.local/state");
    print_variable("NO_COLOR", "not empty: no colour");
    print_variable("TERM", "dumb, or not set: no escape sequences at all");
    printf(".PP\nFor debugging:\n");
#define SWITCH(env, type, field, value, meaning) print_variable(env, meaning);
#include "core/switch.def"
#undef SWITCH
}

static void print_program(const qn_commands *commands) {
    print_heading("quern");
    printf(".SH NAME\nquern \\- run language models on this machine\n.SH SYNOPSIS\n"
           "\\fBquern\\fR \\fICOMMAND\\fR [\\fIarguments\\fR] [\\fIoptions\\fR]\n"
           ".SH DESCRIPTION\n");
    printf("Quern ");
    print_paragraphs(qn_help_about, ".PP");
    printf(".PP\n");
    print_paragraphs(qn_help_model, ".PP");
    printf(".SH COMMANDS\n");
    for (size_t i = 0; i < commands->n; i++) {
        printf(".TP\n.BR quern\\-%s (1)\n", commands->items[i]->name);
        print_paragraphs(commands->items[i]->summary, ".IP");
    }
    printf(".TP\n\\fBquern help\\fR [\\fICOMMAND\\fR]\nSays the same in the terminal.\n"
           ".SH CONFIGURATION\n");
    print_paragraphs(qn_help_order, ".PP");
    printf(".PP\n.EX\n");
    for (const char *at = qn_help_example; *at;) { // lines that stay as they are
        const size_t n = strcspn(at, "\n");
        print_escaped(at, n);
        printf("\n");
        at += n + (at[n] == '\n');
    }
    printf(".EE\n");
    print_environment();
    printf(".SH FILES\n.TP\n.I $XDG_CONFIG_HOME/quern/config.toml\n"
           "Defaults of options; $XDG_CONFIG_HOME is\n.I \\(ti/.config\nwhere it is not set.\n%s"
           ".SH SEE ALSO\n",
           exit_status);
    for (size_t i = 0; i < commands->n; i++)
        printf(".BR quern\\-%s (1),\n", commands->items[i]->name);
    printf(".BR libquern (3)\n");
}

void qn_manual_print(const qn_command *command, const qn_commands *commands) {
    if (command)
        print_command(command);
    else
        print_program(commands);
}
