#include "cli/rivals.h"

#include "cli/args.h"

#include <string.h>

// The first does not go with any of the others, of one command. "MODEL" and "TEXT" are arguments.
static const struct {
    const char *one, *others;
} rivals[] = {
    {"MODEL", "--models"},
    {"TEXT", "--prompt --file"},
    {"--alias", "--models"},
    {"--ids", "--prompt --replay"},
    {"--file", "--prompt"},
    {"--greedy", "--temp"},
    {"--grammar", "--grammar-file --json-schema --json-schema-file --json-mode --regex"},
    {"--grammar-file", "--json-schema --json-schema-file --json-mode --regex"},
    {"--hidden", "--mtp"},
    {"--json-mode", "--json-schema --json-schema-file --regex"},
    {"--json-schema", "--json-schema-file --regex"},
    {"--json-schema-file", "--regex"},
    {"--naive", "--mtp --profile --ref --trace"},
    {"--output", "--top"},
    {"--ppl", "--limit --tasks --tokens --wrong"},
    {"--raw", "--reasoning --session --system --template --tools"},
    {"--replay", "--chunk --hidden --image --mtp --naive --prompt --ref"},
    {"--split", "--models"},
    {"--tasks", "--against --context --stride"},
};

// The first is for any of the others.
static const struct {
    const char *one, *others;
} servants[] = {
    {"--draft-max", "--draft --mtp --lookup"},
    {"--keep", "--context-shift"},
    {"--logprobs", "--json"},
    {"--mtp-fast", "--mtp"},
    {"--rank-timeout", "--split"},
    {"--session-state", "--session"},
    {"--yarn-orig-ctx", "--rope-scaling"},
};

// Whether `name` is among words that are separated by a space.
static bool is_among(const char *words, const char *name) {
    const size_t n = strlen(name);
    for (const char *at = words; *at; at += strcspn(at, " "), at += *at == ' ') {
        if (strncmp(at, name, n) == 0 && (at[n] == ' ' || !at[n])) return true;
    }
    return false;
}

static bool is_rival(const char *a, const char *b) {
    for (size_t i = 0; i < sizeof rivals / sizeof *rivals; i++) {
        const char *one = rivals[i].one, *others = rivals[i].others;
        if ((strcmp(one, a) == 0 && is_among(others, b)) ||
            (strcmp(one, b) == 0 && is_among(others, a)))
            return true;
    }
    return false;
}

// An argument that was typed, by its place in "[MODEL [TEXT]]".
static bool has_rival_argument(const qn_command *command, const qn_call *call, const char *name) {
    const char *at = command->args;
    for (size_t i = 0; i < call->n_args; i++) {
        char argument[32] = "";
        at += strspn(at, "[ ");
        const size_t n = strcspn(at, "] ");
        if (n > 0 && n < sizeof argument) memcpy(argument, at, n);
        if (is_rival(name, argument)) return true;
        at += n;
    }
    return false;
}

bool qn_rivals_exclude(const qn_command *command, const qn_call *call, const qn_origin *origins,
                       size_t i, qn_rank rank) {
    const char *name = command->options[i].name;
    if (has_rival_argument(command, call, name)) return true;
    for (size_t j = 0; j < command->n_options; j++) {
        const qn_option *other = &command->options[j];
        if (origins[j].rank > rank && qn_option_is_set(call->options, other) &&
            is_rival(name, other->name))
            return true;
    }
    return false;
}

bool qn_rivals_idle(const qn_command *command, const qn_call *call, size_t i) {
    const char *others = NULL;
    for (size_t k = 0; k < sizeof servants / sizeof *servants; k++) {
        if (strcmp(servants[k].one, command->options[i].name) == 0) others = servants[k].others;
    }
    for (size_t j = 0; others && j < command->n_options; j++) {
        const qn_option *other = &command->options[j];
        if (is_among(others, other->name) && qn_option_is_set(call->options, other)) return false;
    }
    return others != NULL;
}
