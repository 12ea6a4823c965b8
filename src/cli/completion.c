#include "cli/completion.h"

#include "cli/args.h"
#include "cli/help.h"

#include <stdio.h>
#include <string.h>

// --- what the shells are told --------------------------------------------------------------------

enum { LONGEST_LIST = 160 };

// The words in a list, or those of a placeholder such as "N|auto|all" that stand for themselves,
// separated by a space; false: not known.
static bool list_words(char to[LONGEST_LIST], const char *const *words, const char *placeholder) {
    size_t used = 0;
    *to = 0;
    for (size_t i = 0; words && words[i] && used < LONGEST_LIST; i++)
        used += (size_t)snprintf(to + used, LONGEST_LIST - used, "%s%s", i ? " " : "", words[i]);
    const bool is_choice = !words && placeholder && strchr(placeholder, '|');
    for (const char *at = placeholder; is_choice && *at && used < LONGEST_LIST;) {
        const int n = (int)strcspn(at, "|");
        if (*at >= 'a' && *at <= 'z')
            used +=
                (size_t)snprintf(to + used, LONGEST_LIST - used, "%s%.*s", used ? " " : "", n, at);
        at += n + (at[n] == '|');
    }
    return used > 0;
}

static bool list_values(char to[LONGEST_LIST], const qn_option *option) {
    return list_words(to, option->words, option->arg);
}

// Of options NAME may be anything, of arguments it is that of a model.
static qn_path_kind kind_of_argument(const char *name) {
    return strncmp(name, "NAME", 4) == 0 ? QN_PATH_NAME : qn_path_kind_of(name);
}

// What all arguments of a command together may be: a model, the name of one, any file, a folder or
// nothing known.
static qn_path_kind arguments_of(const qn_command *command) {
    static const char between[] = "[] .";
    qn_path_kind found = QN_PATH_NONE;
    const char *at = command->args + strspn(command->args, between);
    while (*at && *at != '(' && *at != '-') {
        char name[32] = "";
        const size_t n = strcspn(at, "[] ");
        if (n > 0 && n < sizeof name) memcpy(name, at, n);
        const qn_path_kind kind = kind_of_argument(name);
        if (found == QN_PATH_NONE)
            found = kind;
        else if (kind != QN_PATH_NONE && kind != found)
            found = QN_PATH_FILE;
        at += n;
        at += strspn(at, between);
    }
    return found;
}

// The first clause of a help text, for a list.
static int clause_size(const char *text) {
    size_t n = strcspn(text, ";:\n");
    for (size_t i = 0; i + 1 < n; i++) {
        if (text[i] == ' ' && text[i + 1] == '(') n = i;
    }
    return (int)n;
}

// With a backslash before each of `special`, and quotes as they are inside '...' of each shell.
static void print_quoted(const char *text, int n, const char *special, const char *quote) {
    for (int i = 0; i < n; i++) {
        if (text[i] == '\'')
            printf("%s", quote);
        else
            printf("%s%c", strchr(special, text[i]) ? "\\" : "", text[i]);
    }
}

static const qn_option *option_at(const qn_command *command, size_t i) {
    return i < command->n_options    ? &command->options[i]
           : i == command->n_options ? &qn_help_option
                                     : NULL;
}

// --- bash ----------------------------------------------------------------------------------------

// Names of models, one a line, as 'quern list' has them.
#define NAMES_OF_LIST "list --json 2>/dev/null | sed -n 's/^  \"name\": \"\\([^\"\\]*\\)\",$/\\1/p'"

// Where models come from is said once in each script. A name is one word to us, and several to
// bash, which ends words at colons; where it does, what is before the last one stays.
static const char bash_begin[] =
    "# bash completion for quern, made by 'quern help completion bash'\n\n"
    "_quern_words() { mapfile -t COMPREPLY < <(compgen -W \"$1\" -- \"$cur\"); }\n"
    "_quern_paths() {\n"
    "    local found\n"
    "    mapfile -t found < <(compgen \"$@\" -- \"$cur\")\n"
    "    (( ${#found[@]} )) || return 0\n"
    "    compopt -o filenames 2>/dev/null\n"
    "    COMPREPLY+=(\"${found[@]}\")\n"
    "}\n"
    "_quern_folders() { _quern_paths -d; }\n"
    "_quern_files() { _quern_paths -f; }\n"
    "# Names that 'quern list' shows, with their owners or without, letters of any case.\n"
    "_quern_names() {\n"
    "    local word=${COMP_LINE:0:COMP_POINT} cut= line name\n"
    "    word=${word##*[[:blank:]=]}\n"
    "    [[ $COMP_WORDBREAKS == *:* ]] && cut=${word%\"${word##*:}\"}\n"
    "    while IFS= read -r line; do\n"
    "        for name in \"$line\" \"${line#*/}\"; do\n"
    "            [[ ${name,,} == \"${word,,}\"* ]] || continue\n"
    "            COMPREPLY+=(\"${name:${#cut}}\")\n"
    "            break\n"
    "        done\n"
    "    done < <(\"$program\" " NAMES_OF_LIST ")\n"
    "}\n"
    "# What a model may be: a name, a .gguf file or a folder.\n"
    "_quern_models() {\n"
    "    _quern_names\n"
    "    _quern_paths -f -X '!*.gguf'\n"
    "    _quern_paths -d\n"
    "}\n\n"
    "_quern() {\n"
    "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} options arguments\n"
    "    local program=${1/#~\\//$HOME/}\n"
    "    COMPREPLY=()\n"
    "    if [[ $cur == = ]]; then\n"
    "        cur=\n"
    "    elif [[ $prev == = ]]; then\n"
    "        prev=${COMP_WORDS[COMP_CWORD-2]}\n"
    "    fi\n"
    "    if (( COMP_CWORD == 1 )); then\n"
    "        _quern_words '";

static const char *const bash_paths[] = {[QN_PATH_NONE] = "return",
                                         [QN_PATH_FILE] = "_quern_files",
                                         [QN_PATH_FOLDER] = "_quern_folders",
                                         [QN_PATH_MODEL] = "_quern_models",
                                         [QN_PATH_NAME] = "_quern_names"};

static void print_bash_value(const qn_option *option) {
    char values[LONGEST_LIST];
    if (option->kind == QN_OPTION_FLAG) return;
    printf("        %s%s%s) ", option->name, option->alias ? "|" : "",
           option->alias ? option->alias : "");
    if (list_values(values, option))
        printf("_quern_words '%s'", values);
    else
        printf("%s", bash_paths[qn_path_kind_of(option->arg)]);
    printf("; return ;;\n");
}

static void print_bash_command(const qn_command *command) {
    const qn_option *option;
    printf("    %s)\n        case $prev in\n", command->name);
    for (size_t i = 0; i < command->n_options; i++) print_bash_value(&command->options[i]);
    printf("        esac\n        options='");
    for (size_t i = 0; (option = option_at(command, i)); i++)
        printf("%s%s", i ? " " : "", option->name);
    printf("'\n        arguments=%s ;;\n", bash_paths[arguments_of(command)]);
}

static void print_names(const qn_commands *commands, const char *between) {
    for (size_t i = 0; i < commands->n; i++)
        printf("%s%s", i ? between : "", commands->items[i]->name);
}

static void print_topics(const char *between) {
    const qn_topic *topic;
    for (size_t i = 0; (topic = qn_help_topic(i)); i++) printf("%s%s", between, topic->name);
}

// What may follow the topic's name.
static void print_topic_words(const qn_topic *topic, const qn_commands *commands) {
    char words[LONGEST_LIST];
    if (list_words(words, NULL, topic->word))
        printf("%s", words);
    else
        print_names(commands, " ");
}

static void print_bash(const qn_commands *commands) {
    const qn_topic *topic;
    printf("%s", bash_begin);
    print_names(commands, " ");
    printf(" help --help --version'\n        return\n    fi\n    case ${COMP_WORDS[1]} in\n"
           "    help)\n        case $COMP_CWORD:$prev in\n");
    for (size_t i = 0; (topic = qn_help_topic(i)); i++) {
        if (!topic->word) continue;
        printf("        3:%s) _quern_words '", topic->name);
        print_topic_words(topic, commands);
        printf("' ;;\n");
    }
    printf("        2:*) _quern_words '");
    print_names(commands, " ");
    print_topics(" ");
    printf("' ;;\n        esac\n        return ;;\n");
    for (size_t i = 0; i < commands->n; i++) print_bash_command(commands->items[i]);
    printf("    *) return ;;\n    esac\n"
           "    if [[ $cur == -* ]]; then\n        _quern_words \"$options\"\n"
           "    else\n        $arguments\n    fi\n}\n\ncomplete -F _quern quern\n");
}

// --- zsh -----------------------------------------------------------------------------------------

static const char zsh_begin[] =
    "#compdef quern\n"
    "# zsh completion for quern, made by 'quern help completion zsh'\n\n"
    "# Names that 'quern list' shows, with their owners or without, letters of any case.\n"
    "_quern_names() {\n"
    "    local any='m:{a-zA-Z}={A-Za-z}'\n"
    "    local -a names\n"
    "    names=(${(f)\"$(_call_program models $program " NAMES_OF_LIST ")\"})\n"
    "    compadd -M $any -a names || compadd -M $any -- ${names#*/}\n"
    "}\n"
    "# What a model may be: a name, a .gguf file or a folder.\n"
    "_quern_models() {\n"
    "    local none=1\n"
    "    _quern_names && none=0\n"
    "    _files -g '*.gguf(-.)' && none=0\n"
    "    return none\n"
    "}\n\n"
    "_quern() {\n"
    "    local curcontext=$curcontext program=$words[1] state\n"
    "    local -a line commands topics\n"
    "    typeset -A opt_args\n"
    "    commands=(\n";

static const char *const zsh_paths[] = {[QN_PATH_NONE] = " ",
                                        [QN_PATH_FILE] = "_files",
                                        [QN_PATH_FOLDER] = "_files -/",
                                        [QN_PATH_MODEL] = "_quern_models",
                                        [QN_PATH_NAME] = "_quern_names"};

static void print_zsh_option(const qn_option *option) {
    const bool is_list = option->kind == QN_OPTION_TEXTS, is_flag = option->kind == QN_OPTION_FLAG;
    const char *end = is_flag ? "" : "=";
    char values[LONGEST_LIST];
    printf(" \\\n            ");
    if (option->alias && !is_list) printf("'(%s %s)'", option->alias, option->name);
    if (is_list) printf("'*'");
    if (option->alias)
        printf("{%s,%s%s}", option->alias, option->name, end);
    else
        printf("%s%s", option->name, end);
    printf("'[");
    print_quoted(option->help, clause_size(option->help), "[]\\:", "'\\''");
    printf("]");
    if (!is_flag) {
        printf(":");
        print_quoted(option->arg, (int)strlen(option->arg), ":\\", "'\\''");
        if (list_values(values, option))
            printf(":(%s)", values);
        else
            printf(":%s", zsh_paths[qn_path_kind_of(option->arg)]);
    }
    printf("'");
}

static void print_zsh(const qn_commands *commands) {
    const qn_option *option;
    const qn_topic *topic;
    printf("%s", zsh_begin);
    for (size_t i = 0; i < commands->n; i++) {
        const qn_command *command = commands->items[i];
        printf("        '%s:", command->name);
        print_quoted(command->summary, clause_size(command->summary), "\\:", "'\\''");
        printf("'\n");
    }
    printf("        'help:Describes a command.'\n    )\n    topics=(");
    print_topics(" ");
    printf(" )\n"
           "    _arguments -C '1:command:->command' '*::argument:->arguments' && return\n"
           "    if [[ $state == command ]]; then\n"
           "        _describe -t commands command commands\n        return\n    fi\n"
           "    curcontext=${curcontext%%:*}-$words[1]:\n"
           "    case $words[1] in\n"
           "    help)\n        case $CURRENT:$words[2] in\n");
    for (size_t i = 0; (topic = qn_help_topic(i)); i++) {
        if (!topic->word) continue;
        printf("        3:%s) compadd ", topic->name);
        print_topic_words(topic, commands);
        printf(" ;;\n");
    }
    printf("        2:*)\n            _describe -t commands command commands\n"
           "            compadd -a topics ;;\n        esac ;;\n");
    for (size_t i = 0; i < commands->n; i++) {
        printf("    %s)\n        _arguments", commands->items[i]->name);
        for (size_t k = 0; (option = option_at(commands->items[i], k)); k++)
            print_zsh_option(option);
        printf(" \\\n            '*:argument:%s' ;;\n",
               zsh_paths[arguments_of(commands->items[i])]);
    }
    printf("    esac\n}\n\nif [[ $funcstack[1] == _quern ]]; then\n    _quern \"$@\"\n"
           "else\n    compdef _quern quern\nfi\n");
}

// --- fish ----------------------------------------------------------------------------------------

static const char fish_begin[] =
    "# fish completion for quern, made by 'quern help completion fish'\n\n"
    "function __quern_is\n"
    "    set -l words (commandline -opc)\n"
    "    test (count $words) -gt 1; and test $words[2] = $argv[1]\n"
    "end\n\n"
    "function __quern_is_help\n"
    "    set -l words (commandline -opc)\n"
    "    test (count $words) -eq 2; and test $words[2] = help\n"
    "end\n\n"
    "function __quern_is_first\n"
    "    test (count (commandline -opc)) -eq 1\n"
    "end\n\n"
    "function __quern_is_help_of\n"
    "    set -l words (commandline -opc)\n"
    "    test (count $words) -eq 3; and test $words[2] = help; and test $words[3] = $argv[1]\n"
    "end\n\n"
    "# Names that 'quern list' shows.\n"
    "function __quern_names\n"
    "    set -l words (commandline -opc)\n"
    "    $words[1] " NAMES_OF_LIST "\n"
    "end\n\n"
    "# What a model may be: a name, a .gguf file or a folder; other files come last.\n"
    "function __quern_models\n"
    "    __quern_names\n"
    "    __fish_complete_suffix .gguf\n"
    "end\n\n"
    "complete -c quern -f\n";

static const char *const fish_paths[] = {[QN_PATH_NONE] = "",
                                         [QN_PATH_FILE] = " -F",
                                         [QN_PATH_FOLDER] = " -a '(__fish_complete_directories)'",
                                         [QN_PATH_MODEL] = " -a '(__quern_models)'",
                                         [QN_PATH_NAME] = " -a '(__quern_names)'"};

static void print_fish_option(const qn_command *command, const qn_option *option) {
    char values[LONGEST_LIST];
    const char *alias = option->alias;
    printf("complete -c quern -n '__quern_is %s' -l %s", command->name, option->name + 2);
    if (alias) printf(" -%c %s", alias[2] ? 'o' : 's', alias + 1);
    if (option->kind != QN_OPTION_FLAG && list_values(values, option))
        printf(" -x -a '%s'", values);
    else if (option->kind != QN_OPTION_FLAG)
        printf(" -r%s", fish_paths[qn_path_kind_of(option->arg)]);
    printf(" -d '");
    print_quoted(option->help, clause_size(option->help), "\\", "\\'");
    printf("'\n");
}

static void print_fish_command(const qn_command *command) {
    const qn_path_kind kind = arguments_of(command);
    const qn_option *option;
    printf("\ncomplete -c quern -n __quern_is_first -a %s -d '", command->name);
    print_quoted(command->summary, clause_size(command->summary), "\\", "\\'");
    printf("'\ncomplete -c quern -n __quern_is_help -a %s\n", command->name);
    if (kind != QN_PATH_NONE)
        printf("complete -c quern -n '__quern_is %s'%s\n", command->name, fish_paths[kind]);
    for (size_t i = 0; (option = option_at(command, i)); i++) print_fish_option(command, option);
}

static void print_fish(const qn_commands *commands) {
    const qn_topic *topic;
    printf("%s", fish_begin);
    for (size_t i = 0; i < commands->n; i++) print_fish_command(commands->items[i]);
    printf("\ncomplete -c quern -n __quern_is_first -a help -d 'Describes a command.'\n"
           "complete -c quern -n __quern_is_help -a '");
    print_topics(" ");
    printf("'\n");
    for (size_t i = 0; (topic = qn_help_topic(i)); i++) {
        if (!topic->word) continue;
        printf("complete -c quern -n '__quern_is_help_of %s' -a '", topic->name);
        print_topic_words(topic, commands);
        printf("'\n");
    }
}

// -------------------------------------------------------------------------------------------------

qn_status qn_completion_print(const char *shell, const qn_commands *commands, qn_err *err) {
    static const struct {
        const char *name;
        void (*print)(const qn_commands *commands);
    } shells[] = {{"bash", print_bash}, {"zsh", print_zsh}, {"fish", print_fish}};
    for (size_t i = 0; i < sizeof shells / sizeof *shells; i++) {
        if (strcmp(shells[i].name, shell) != 0) continue;
        shells[i].print(commands);
        return QN_OK;
    }
    return QN_FAIL(err, ARGUMENT, "help completion: no shell '%s', want bash, zsh or fish", shell);
}
