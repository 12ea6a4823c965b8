#include "cli/help.h"

#include <stdio.h>
#include <string.h>

enum { WIDTH = 96 };

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

void qn_help_command(const qn_command *command) {
    static const qn_option help = {.name = "--help", .alias = "-h", .help = "print this"};
    printf("usage: quern %s%s%s [options]\n\n", command->name, *command->args ? " " : "",
           command->args);
    print_wrapped(command->summary, 0);
    int column = option_head(NULL, 0, &help);
    for (size_t i = 0; i < command->n_options; i++) {
        const int n = option_head(NULL, 0, &command->options[i]);
        if (n > column) column = n;
    }
    column += 4;
    printf("\noptions\n");
    for (size_t i = 0; i < command->n_options; i++) print_option(&command->options[i], column);
    print_option(&help, column);
    for (const char *at = command->notes; at && *at;) { // one paragraph a line
        putchar('\n');
        print_wrapped(at, 0);
        at += strcspn(at, "\n");
        at += *at == '\n';
    }
}

void qn_help_all(const qn_command *const *commands, size_t n) {
    printf("Quern %s runs language models: text in, text out, on this machine.\n\n", qn_version());
    printf("usage: quern COMMAND [arguments] [options]\n\ncommands\n");
    for (size_t i = 0; i < n; i++) {
        printf("  %-12s", commands[i]->name);
        print_wrapped(commands[i]->summary, 14);
    }
    printf("  %-12s%s\n", "help", "This page; 'quern help COMMAND' says more about one of them.");
    printf("\nMODEL is a .gguf file (any part of a split set), a folder with config.json and\n"
           "safetensors, a .safetensors file or an index of them.\n\n"
           "  quern run                           chat with the bundled model\n"
           "  quern run MODEL -p \"Why is it so?\"  one answer\n"
           "  quern inspect MODEL                 what is in a file\n"
           "  quern bench MODEL                   how fast it is on this machine\n"
           "  quern help switches                 environment variables for debugging\n"
           "  quern --version\n\n"
           "Exit codes: 0 done, 1 failed (one line on stderr says why), 2 wrong usage.\n");
}

void qn_help_switches(void) {
    printf("Environment variables for debugging. None changes results except QN_SKIP=quantize,\n"
           "which leaves activations unrounded. An empty value counts as unset.\n\n");
#define SWITCH(env, type, field, value, meaning) printf("  %-17s%s\n", env, meaning);
#include "core/switch.def"
#undef SWITCH
    printf(
        "\nNO_COLOR, if it is not empty, disables colour; TERM=dumb or an unset TERM disables all\n"
        "escape sequences.\n");
}
