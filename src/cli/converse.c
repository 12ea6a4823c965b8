#include "cli/converse.h"

#include "cli/args.h"
#include "cli/edit.h"
#include "cli/foreign.h"
#include "cli/out.h"
#include "cli/saved.h"
#include "cli/terminal.h"
#include "cli/facts.h"

#include "core/debug.h"
#include "core/file.h"

#include <string.h>

typedef struct conversation {
    qn_talk *talk;
    qn_edit *edit;
    bool is_over;
} conversation;

// --- answers -------------------------------------------------------------------------------------

static qn_status keep_session(const conversation *c, qn_err *err) {
    const char *path = c->talk->args->session;
    return path && c->talk->template ? qn_saved_write(c->talk, path, err) : QN_OK;
}

// A question that does not fit, that the template or a setting refuses, or whose reading was
// stopped, was rolled back; anything else that fails ends the conversation.
static qn_status settle(const conversation *c, qn_status status, qn_err *err) {
    if (status == QN_OK) return keep_session(c, err);
    if (status == QN_STOPPED)
        qn_print_dim("[%s, cancelled]", err->message);
    else if (status == QN_ARGUMENT || status == QN_USAGE || status == QN_STATE ||
             status == QN_UNSUPPORTED || status == QN_LIMIT)
        qn_print_line("quern: %s", err->message);
    else
        return status;
    return QN_OK;
}

// --- commands ------------------------------------------------------------------------------------

typedef qn_status command_fn(conversation *c, const char *rest, qn_err *err);
static command_fn explain; // needs the table

static qn_status stop(conversation *c, const char *rest, qn_err *err) {
    (void)rest, (void)err;
    c->is_over = true;
    return QN_OK;
}

static qn_status forget(conversation *c, const char *rest, qn_err *err) {
    (void)rest;
    QN_TRY(qn_talk_reset(c->talk, err));
    qn_print_dim("conversation cleared");
    return keep_session(c, err);
}

static qn_status set_system(conversation *c, const char *rest, qn_err *err) {
    const char *now = qn_talk_system(c->talk);
    if (!*rest && !now) qn_print_dim("no system message");
    if (!*rest && now) {
        qn_print_text(stderr, now, strlen(now));
        fputc('\n', stderr);
    }
    if (!*rest) return QN_OK;
    if (!c->talk->template)
        return QN_FAIL(err, STATE, "the text is fed as it is: no place for a system message");
    const bool goes = strcmp(rest, "none") == 0;
    QN_TRY(qn_talk_set_system(c->talk, goes ? NULL : rest, err));
    qn_print_dim(goes ? "no system message" : "the system message is set");
    return keep_session(c, err);
}

static qn_status answer_again(conversation *c, const char *rest, qn_err *err) {
    (void)rest;
    if (qn_talk_is_greedy(c->talk))
        qn_print_dim("at temperature 0 the answer stays the same; /set temp 0.8 varies it");
    return settle(c, qn_talk_again(c->talk, err), err);
}

// The name of a file as in a shell: ~/ at the beginning is the user's folder; in quotes, or after a
// backslash, characters stand for themselves. Spaces need neither, as there is only one name.
static qn_status read_name(qn_buf *out, const char *command, const char *text, qn_err *err) {
    const char *home = qn_surroundings_read().home;
    char quote = 0; // that is open
    qn_buf_add(out, "", 0);
    if (home && *text == '~' && (text[1] == '/' || !text[1])) {
        qn_buf_text(out, home);
        text++;
    }
    for (; *text; text++) {
        const bool is_special = text[1] == '"' || text[1] == '\\' || !quote;
        if (*text == quote)
            quote = 0;
        else if (!quote && (*text == '"' || *text == '\''))
            quote = *text;
        else if (*text == '\\' && quote != '\'' && text[1] && is_special)
            qn_buf_add(out, ++text, 1);
        else
            qn_buf_add(out, text, 1);
    }
    if (out->failed) return QN_NOMEM(err, "the name of a file");
    if (quote) return QN_FAIL(err, ARGUMENT, "%s: a quote is not closed", command);
    return out->size ? QN_OK : QN_FAIL(err, ARGUMENT, "%s needs the name of a file", command);
}

static void tell_file(const conversation *c, const char *what, const char *path) {
    const size_t n = qn_chat_n_messages(c->talk->chat);
    qn_shown clean;
    qn_print_dim("%zu message%s %s %s", n, n == 1 ? "" : "s", what, qn_clean(&clean, path));
}

static qn_status save(conversation *c, const char *rest, qn_err *err) {
    qn_buf path = {0};
    qn_status status = read_name(&path, "/save", rest, err);
    if (!status) status = qn_saved_write(c->talk, path.data, err);
    if (!status) tell_file(c, "saved to", path.data);
    qn_buf_deinit(&path);
    return status;
}

static qn_status load(conversation *c, const char *rest, qn_err *err) {
    qn_buf path = {0};
    qn_status status = read_name(&path, "/load", rest, err);
    if (!status) status = qn_saved_read(c->talk, path.data, err);
    if (!status) tell_file(c, "loaded from", path.data);
    qn_buf_deinit(&path);
    return status ? status : keep_session(c, err);
}

// What counts when nothing is set, neither here nor by the model.
static const char *initial_of(const qn_option *option) {
    if (option->initial) return option->initial;
    return option->kind == QN_OPTION_FLAG ? "off" : "none";
}

// The value in force; dimmed where it was not set here.
static void print_setting(const conversation *c, const qn_option *option) {
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
static void tell_change(const conversation *c, const qn_option *option, const qn_buf *old) {
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

static qn_status set_value(conversation *c, const qn_option *option, const char *value,
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
    return status ? status : keep_session(c, err);
}

// A name without a value is a question, and changes nothing. The help names other options with
// their dashes, which are not typed here.
static void show_setting(const conversation *c, const qn_option *option) {
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

static qn_status set(conversation *c, const char *rest, qn_err *err) {
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

static qn_status show_figures(conversation *c, const char *rest, qn_err *err) {
    (void)rest, (void)err;
    const qn_talk_figures *f = &c->talk->figures;
    const qn_session_counts counts = qn_session_facts(c->talk->session);
    size_t n_tokens;
    qn_session_tokens(c->talk->session, &n_tokens);
    const double writing = f->seconds - f->prompt_seconds;
    fprintf(stderr, "  answers   %lld\n", (long long)f->answers);
    fprintf(stderr, "  prompt    %lld tokens, %lld of them cached, %.1f tokens/s\n",
            (long long)f->prompt, (long long)f->reused,
            f->prompt_seconds > 0 ? (double)(f->prompt - f->reused) / f->prompt_seconds : 0);
    fprintf(stderr, "  generated %lld tokens, %.1f tokens/s\n", (long long)f->tokens,
            writing > 0 ? (double)(f->tokens - f->answers) / writing : 0);
    if (f->drafted)
        fprintf(stderr, "  drafted   %lld tokens, %lld of them accepted\n", (long long)f->drafted,
                (long long)f->accepted);
    fprintf(stderr, "  context   %zu of %lld tokens\n", n_tokens,
            (long long)qn_session_context(c->talk->session));
    fprintf(stderr, "  steps     %lld, of %lld tokens in all\n", (long long)counts.steps,
            (long long)counts.rows);
    return QN_OK;
}

static qn_status add_image(qn_talk *t, const char *path, qn_err *err) {
    int64_t n;
    QN_TRY(qn_pictures_add(&t->images, path, err));
    const qn_status status = qn_pictures_check(&n, &t->images, t->loaded.engine, err);
    if (status)
        qn_pictures_pop(&t->images);
    else
        qn_print_dim("%zu image%s, %lld tokens, for the next message", t->images.n,
                     t->images.n == 1 ? "" : "s", (long long)n);
    return status;
}

static qn_status take_image(conversation *c, const char *rest, qn_err *err) {
    qn_buf path = {0};
    if (strcmp(rest, "none") == 0) {
        qn_pictures_clear(&c->talk->images);
        qn_print_dim("no images");
        return QN_OK;
    }
    qn_status status = read_name(&path, "/image", rest, err);
    if (!status) status = add_image(c->talk, path.data, err);
    qn_buf_deinit(&path);
    return status;
}

static const struct {
    const char *name, *rest, *help; // help NULL: another word for one above
    command_fn *run;
} commands[] = {
    {"/system", "TEXT", "set the system message; none: without one; no TEXT: show it", set_system},
    {"/reset", "", "clear the conversation", forget},
    {"/clear", "", NULL, forget},
    {"/regen", "", "another answer to the last question", answer_again},
    {"/save", "FILE", "write the conversation into a file", save},
    {"/load", "FILE", "go on with the conversation in a file", load},
    {"/set", "NAME VALUE",
     "change a setting; VALUE default: as if it was never set; no VALUE: show it; no NAME: list "
     "all",
     set},
    {"/stats", "", "figures of all answers so far", show_figures},
    {"/image", "FILE",
     "an image before the text of the next message; none: without those that wait", take_image},
    {"/exit", "", "end (so do /quit, /bye and Ctrl-D)", stop},
    {"/quit", "", NULL, stop},
    {"/bye", "", NULL, stop},
    {"/help", "", "this list", explain},
    {"/?", "", NULL, explain},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static qn_status explain(conversation *c, const char *rest, qn_err *err) {
    enum { COLUMN = 21 };
    (void)c, (void)rest, (void)err;
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (!commands[i].help) continue;
        char head[32], line[256];
        snprintf(head, sizeof head, "%s %s", commands[i].name, commands[i].rest);
        snprintf(line, sizeof line, "  %-18s %s", head, commands[i].help);
        qn_print_entry(line, COLUMN, false);
    }
    qn_print_entry("Ctrl-C stops the answer, or clears the line. A text of several lines goes "
                   "between \"\"\" and \"\"\", or has a \\ at the end of each line but the last. A "
                   "text that begins with / is written with //; a line that begins with pasted "
                   "text is never a command, and is sent as it is.",
                   0, false);
    return QN_OK;
}

// The command whose name has the `n` bytes; NULL: there is none.
static command_fn *find_command(const char *word, size_t n) {
    for (size_t i = 0; i < N_COMMANDS; i++) {
        const char *name = commands[i].name;
        if (strlen(name) == n && memcmp(word, name, n) == 0) return commands[i].run;
    }
    return NULL;
}

// A qn_is_command_fn.
static bool is_known_command(const char *line, size_t n) {
    size_t begin = 0, end;
    while (begin < n && (line[begin] == ' ' || line[begin] == '\t')) begin++;
    for (end = begin; end < n && line[end] != ' ' && line[end] != '\t';) end++;
    return find_command(line + begin, end - begin);
}

// The word, which begins with the slash, is not a command.
static void refuse_command(const char *word, size_t n) {
    const char *names[N_COMMANDS];
    char typed[32];
    qn_shown clean;
    for (size_t i = 0; i < N_COMMANDS; i++) names[i] = commands[i].name;
    snprintf(typed, sizeof typed, "%.*s", (int)n, word);
    const char *hint = qn_foreign_hint(QN_PLACE_CHAT, word, n);
    const char *near = qn_nearest(typed, names, N_COMMANDS);
    qn_clean(&clean, typed);
    if (hint)
        qn_print_line("quern: no command %s; %s", clean.text, hint);
    else if (near)
        qn_print_line("quern: no command %s; did you mean %s?", clean.text, near);
    else
        qn_print_line("quern: no command %s; /help lists them", clean.text);
}

// `line` begins with the slash. A failure is reported, and the conversation goes on.
static qn_status run_command(conversation *c, const char *line, qn_err *err) {
    const size_t n = strcspn(line, " \t\n");
    const char *rest = line + n + strspn(line + n, " \t\n");
    command_fn *run = find_command(line, n);
    if (run) {
        const qn_status status = run(c, rest, err);
        if (status) qn_print_line("quern: %s", err->message);
        return status == QN_MEMORY ? status : QN_OK;
    }
    refuse_command(line, n);
    return QN_OK;
}

// --- lines ---------------------------------------------------------------------------------------

static const char quotes[] = "\"\"\"";

static void cut_end(qn_buf *text, size_t size) {
    text->size = size;
    text->data[size] = 0;
}

// What is missing of a text: nothing, or a further line.
static bool is_unfinished(qn_buf *text) {
    const char *begin = text->data + strspn(text->data, " \t");
    if (strncmp(begin, quotes, 3) == 0) return !strstr(begin + 3, quotes);
    return text->size && text->data[text->size - 1] == '\\';
}

static bool is_quoted(const qn_buf *text) {
    return strncmp(text->data + strspn(text->data, " \t"), quotes, 3) == 0;
}

// Takes the quotes away.
static void unquote(qn_buf *text) {
    char *begin = text->data + strspn(text->data, " \t") + 3;
    begin += *begin == '\n';
    size_t size = (size_t)(strstr(begin, quotes) - begin);
    memmove(text->data, begin, size);
    if (size && text->data[size - 1] == '\n') size--;
    cut_end(text, size);
}

// One line whose first word has one slash, and that at its beginning; "/usr/bin" is a text.
static bool is_command(const char *word) {
    return *word == '/' && !strchr(word, '\n') && !memchr(word + 1, '/', strcspn(word, " \t") - 1);
}

// On a line of its own, // begins a text with a slash.
static bool has_two_slashes(const char *word) {
    return strncmp(word, "//", 2) == 0 && !strchr(word, '\n');
}

// What was pasted must be the same text when the arrow keys bring it back, where it counts as
// typed.
static void remember(const conversation *c, const qn_buf *text, bool is_pasted) {
    const char *word = text->data + strspn(text->data, " \t\r\n");
    qn_buf typed = {0};
    if (is_pasted && (is_command(word) || has_two_slashes(word))) qn_buf_text(&typed, "/");
    qn_buf_text(&typed, typed.size ? word : text->data);
    if (!typed.failed) qn_edit_remember(c->edit, typed.data);
    qn_buf_deinit(&typed);
}

// A text of one line or several. The backslashes at the ends of lines are taken away.
static qn_edit_end read_text(qn_buf *text, conversation *c) {
    qn_buf line = {0};
    qn_edit_end end = qn_edit_read(text, c->edit, "> ");
    while (end == QN_EDIT_LINE && is_unfinished(text)) {
        end = qn_edit_read(&line, c->edit, "... ");
        if (!is_quoted(text)) cut_end(text, text->size - 1);
        qn_buf_text(text, "\n");
        qn_buf_add(text, line.data, line.size);
    }
    qn_buf_deinit(&line);
    const bool is_pasted = end == QN_EDIT_PASTED;
    if ((end == QN_EDIT_LINE || is_pasted) && !text->failed) remember(c, text, is_pasted);
    return text->failed ? QN_EDIT_CLOSED : end;
}

static qn_status ask(conversation *c, const char *text, size_t size, qn_err *err) {
    const bool is_blank = text[strspn(text, " \t\r\n")] == 0; // not a question
    return is_blank ? QN_OK : settle(c, qn_talk_ask(c->talk, text, size, err), err);
}

static qn_status take_text(conversation *c, qn_buf *text, qn_err *err) {
    if (is_quoted(text)) {
        unquote(text);
        return ask(c, text->data, text->size, err);
    }
    const char *word = text->data + strspn(text->data, " \t\r\n");
    if (is_command(word)) return run_command(c, word, err);
    if (has_two_slashes(word)) return ask(c, word + 1, strlen(word + 1), err);
    return ask(c, text->data, text->size, err);
}

// What the conversation is with: the model's own name, or that of its file where it has none.
static const char *model_name(const qn_talk *t) {
    enum { SHORTEST = 3 };
    const char *name = qn_engine_facts(t->loaded.engine).name;
    return strlen(name) >= SHORTEST ? name : qn_path_name(t->path);
}

qn_status qn_converse(qn_talk *talk, qn_err *err) {
    conversation c = {.talk = talk};
    qn_shown name;
    QN_TRY(qn_edit_create(&c.edit, is_known_command, err));
    qn_print_dim("Quern %s, %s. /help lists commands, Ctrl-D ends.", qn_version(),
                 qn_clean(&name, model_name(talk)));
    qn_buf text = {0};
    qn_status status = QN_OK;
    while (!c.is_over && !status) {
        const qn_edit_end end = read_text(&text, &c);
        if (end == QN_EDIT_CLOSED) break;
        if (end == QN_EDIT_LINE) status = take_text(&c, &text, err);
        if (end == QN_EDIT_PASTED) status = ask(&c, text.data, text.size, err);
    }
    if (!status && text.failed) status = QN_NOMEM(err, "a line");
    qn_buf_deinit(&text);
    qn_edit_destroy(c.edit);
    return status;
}
