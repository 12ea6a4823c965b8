// /set: the settings of a conversation, which are options by their names.
#include "cli/conversation.h"

#include "cli/args.h"
#include "cli/foreign.h"
#include "cli/saved.h"
#include "cli/terminal.h"

#include "core/mem.h"

#include <stdio.h>
#include <string.h>

// What counts when nothing is set, neither here nor by the model.
static const char *initial_of(const qn_option *option) {
    if (option->initial) return option->initial;
    return option->kind == QN_OPTION_FLAG ? "off" : "none";
}

// The value in force; dimmed where it was not set here.
static void print_setting(const qn_conversation *c, const qn_option *option) {
    enum { COLUMN = 23 };
    qn_buf value = {0}, line = {0};
    const qn_sample_opts defaults = qn_talk_defaults(c->talk);
    const qn_sampling_default own = qn_sampling_find_default(&defaults, option->name);
    qn_option_print(&value, c->talk->args, option);
    const bool is_set = value.size;
    if (!is_set && *own.value)
        qn_buf_printf(&value, "%s (model's own)", own.value);
    else if (!is_set)
        qn_buf_printf(&value, "%s (default)", initial_of(option));
    qn_buf_printf(&line, "  %-20s %s", option->name + 2, value.size ? value.data : "");
    if (!line.failed) qn_print_entry(line.data, COLUMN, !is_set);
    qn_buf_deinit(&value);
    qn_buf_deinit(&line);
}

// A name that is not a setting may be an option all the same.
static void refuse_setting(const char *option_name, const char *name, size_t n, qn_err *err) {
    for (size_t i = 0; i < qn_cmd_run.n_options; i++) {
        const qn_option *option = &qn_cmd_run.options[i];
        if (strcmp(option->name, option_name) != 0) continue;
        (void)QN_FAIL(err, ARGUMENT, "%s is fixed when quern starts: quern run %s%s%s",
                      option->name + 2, option->alias ? option->alias : option->name,
                      option->arg ? " " : "", option->arg ? option->arg : "");
        return;
    }
    (void)QN_FAIL(err, ARGUMENT, "no setting '%.*s'; /set lists them", (int)(n < 60 ? n : 60),
                  name);
}

// Names are those of the options, with or without dashes in front, underscores for those inside;
// names that other programs use are accepted too.
static const qn_option *find_setting(const char *name, size_t n, qn_err *err) {
    char word[64];
    while (n && *name == '-') name++, n--;
    const char *hint = qn_foreign_hint(QN_PLACE_SETTING, name, n);
    if (hint) {
        (void)QN_FAIL(err, ARGUMENT, "%.*s: %s", (int)n, name, hint);
        return NULL;
    }
    snprintf(word, sizeof word, "--%.*s", (int)(n < 60 ? n : 60), name);
    for (char *at = word; (at = strchr(at, '_'));) *at = '-';
    const qn_foreign *foreign = qn_foreign_find(qn_cmd_run.name, word, strlen(word));
    const char *ours = foreign && foreign->ours ? foreign->ours : word;
    const qn_option *option;
    for (size_t i = 0; (option = qn_live_option(i)); i++) {
        if (strcmp(option->name, ours) == 0) return option;
    }
    refuse_setting(ours, name, n, err);
    return NULL;
}

static qn_status add_value(qn_talk *t, const qn_option *option, const char *value, qn_err *err) {
    char *kept = qn_talk_keep(t, value);
    return kept ? qn_option_set(t->args, option, kept, err) : QN_NOMEM(err, "a setting");
}

// Reads the text between the quotes at *at, and moves past it; \n and \t mean what they do in C.
static qn_status read_quoted(qn_buf *out, const char **at, const char *name, qn_err *err) {
    static const char letters[] = "nt", meant[] = "\n\t";
    const char *text = *at + 1;
    qn_buf_clear(out);
    qn_buf_add(out, "", 0);
    for (; *text && *text != '"'; text++) {
        const bool is_escaped = *text == '\\' && text[1];
        if (is_escaped) text++;
        const char *letter = is_escaped ? strchr(letters, *text) : NULL;
        qn_buf_add(out, letter ? &meant[letter - letters] : text, 1);
    }
    if (out->failed) return QN_NOMEM(err, "a setting");
    if (!*text) return QN_FAIL(err, ARGUMENT, "%s: a quote is not closed", name);
    *at = text + 1;
    return QN_OK;
}

// A list is one text as it is, or several, each between quotes.
static qn_status add_list(qn_talk *t, const qn_option *option, const char *value, qn_err *err) {
    if (*value != '"') return add_value(t, option, value, err);
    qn_buf text = {0};
    qn_status status = QN_OK;
    while (*value && !status) {
        status = *value == '"' ? read_quoted(&text, &value, option->name, err)
                               : QN_FAIL(err, ARGUMENT, "%s: '%s', want a text between quotes",
                                         option->name, value);
        if (!status) status = add_value(t, option, text.data, err);
        value += strspn(value, " \t");
    }
    qn_buf_deinit(&text);
    return status;
}

// A value that conflicts with the others is rolled back.
static qn_status change(qn_talk *t, const qn_option *option, const char *value, qn_err *err) {
    qn_run_args *args = t->args;
    const qn_run_args before = *args;
    const bool is_list = option->kind == QN_OPTION_TEXTS;
    qn_texts *list = (qn_texts *)(void *)((char *)args + option->offset), old = {0};
    if (is_list) {
        old = *list;
        *list = (qn_texts){0};
    }
    qn_status status = is_list ? add_list(t, option, value, err) : add_value(t, option, value, err);
    if (!status) status = qn_run_args_check(args, err);
    if (is_list) qn_free((void *)(uintptr_t)(status ? list->items : old.items));
    if (status) *args = before;
    return status;
}

// Says what a setting was before, `old`, and is now.
static void tell_change(const qn_conversation *c, const qn_option *option, const qn_buf *old) {
    qn_buf new = {0};
    const char *name = option->name + 2, *before = old->size ? old->data : NULL;
    qn_option_print(&new, c->talk->args, option);
    const bool is_same = new.size == old->size && (!before || strcmp(new.data, before) == 0);
    const char *now = new.size ? new.data : NULL;
    if (is_same && now)
        qn_print_dim("%s is %s, as before", name, now);
    else if (is_same)
        qn_print_dim("%s has its default, as before", name);
    else if (!now)
        qn_print_dim("%s is back to its default (was %s)", name, before);
    else if (before)
        qn_print_dim("%s is now %s (was %s)", name, now, before);
    else
        qn_print_dim("%s is now %s (was the default)", name, now);
    qn_buf_deinit(&new);
}

// Of two settings that contradict each other, the one that was set last counts.
static void settle_greedy(qn_sampling_args *a, const qn_option *option) {
    if (!a->greedy || !(a->temperature.value > 0)) return;
    if (strcmp(option->name, "--temp") == 0) {
        a->greedy = false;
        qn_print_dim("greedy is now off (was on)");
    } else if (strcmp(option->name, "--greedy") == 0) {
        qn_print_dim("temp is back to its default (was %g)", a->temperature.value);
        a->temperature = (qn_real){0};
    }
}

static qn_status set_value(qn_conversation *c, const qn_option *option, const char *value,
                           qn_err *err) {
    qn_buf old = {0};
    qn_status status = QN_OK;
    qn_option_print(&old, c->talk->args, option);
    if (strcmp(value, "default") == 0)
        qn_option_clear(c->talk->args, option);
    else
        status = change(c->talk, option, value, err);
    if (!status) {
        tell_change(c, option, &old);
        settle_greedy(&c->talk->args->sampling, option);
    }
    qn_buf_deinit(&old);
    return status ? status : qn_saved_keep(c->talk, err);
}

// A name without a value is a question, and changes nothing. The help names other options with
// their dashes, which are not typed here.
static void show_setting(const qn_conversation *c, const qn_option *option) {
    qn_buf help = {0};
    for (const char *at = option->help; *at; at++) {
        const bool is_dashes = strncmp(at, "--", 2) == 0 && at[2] >= 'a' && at[2] <= 'z';
        if (is_dashes) at += 2;
        qn_buf_add(&help, at, 1);
    }
    print_setting(c, option);
    if (!help.failed) qn_print_dim("  %s", help.data);
    qn_buf_deinit(&help);
}

qn_status qn_slash_set(qn_conversation *c, const char *rest, qn_err *err) {
    const qn_option *option;
    for (size_t i = 0; !*rest && (option = qn_live_option(i)); i++) print_setting(c, option);
    if (!*rest) return QN_OK;
    if (strncmp(rest, "parameter ", 10) == 0) rest += 10 + strspn(rest + 10, " \t"); // Ollama's
    const size_t n = strcspn(rest, " \t=");
    option = find_setting(rest, n, err);
    if (!option) return QN_ARGUMENT;
    const char *value = rest + n + strspn(rest + n, " \t=");
    if (*value) return set_value(c, option, value, err);
    show_setting(c, option);
    return QN_OK;
}

// The first word is a name, the second a value where there are words to choose from.
void qn_slash_complete_set(qn_completion *to, const char *typed) {
    const qn_option *option;
    const size_t n = strcspn(typed, " "), begin = n + strspn(typed + n, " ");
    if (!typed[n]) {
        for (size_t i = 0; (option = qn_live_option(i)); i++)
            qn_completion_add(to, option->name + 2, typed, n);
        to->n_typed = n;
        to->goes_on = true;
        return;
    }
    option = find_setting(typed, n, NULL);
    static const char *const flag_words[] = {"on", "off", NULL};
    const char *const *words = option ? option->words : NULL;
    if (option && option->kind == QN_OPTION_FLAG) words = flag_words;
    to->n_typed = strlen(typed + begin);
    for (; words && *words; words++) qn_completion_add(to, *words, typed + begin, to->n_typed);
    if (option) qn_completion_add(to, "default", typed + begin, to->n_typed);
}
