#include "cli/converse.h"

#include "cli/args.h"
#include "cli/edit.h"
#include "cli/foreign.h"
#include "cli/out.h"
#include "cli/saved.h"
#include "cli/terminal.h"

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
// stopped, was taken back; anything else that fails ends the conversation.
static qn_status settle(const conversation *c, qn_status status, qn_err *err) {
    if (status == QN_OK) return keep_session(c, err);
    if (status == QN_STOPPED)
        qn_print_dim("[%s, and taken back]", err->message);
    else if (status == QN_LIMIT)
        fprintf(stderr, "quern: %s; /reset forgets what was said\n", err->message);
    else if (status == QN_ARGUMENT || status == QN_STATE || status == QN_UNSUPPORTED)
        fprintf(stderr, "quern: %s\n", err->message);
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
    (void)rest, (void)err;
    qn_talk_reset(c->talk);
    qn_print_dim("forgotten");
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
    return QN_OK;
}

static qn_status answer_again(conversation *c, const char *rest, qn_err *err) {
    (void)rest;
    if (c->talk->args->sampling.temperature == 0)
        qn_print_dim("at temperature 0 the answer stays the same; /set temp 0.8 varies it");
    return settle(c, qn_talk_again(c->talk, err), err);
}

static qn_status save(conversation *c, const char *rest, qn_err *err) {
    if (!*rest) return QN_FAIL(err, ARGUMENT, "/save needs the name of a file");
    QN_TRY(qn_saved_write(c->talk, rest, err));
    qn_print_dim("saved: %zu messages", json_array_size(c->talk->messages));
    return QN_OK;
}

static qn_status load(conversation *c, const char *rest, qn_err *err) {
    if (!*rest) return QN_FAIL(err, ARGUMENT, "/load needs the name of a file");
    QN_TRY(qn_saved_read(c->talk, rest, err));
    qn_print_dim("loaded: %zu messages", json_array_size(c->talk->messages));
    return QN_OK;
}

// The value; for what is not set the help, which names the default, in the weak colour.
static void print_setting(const conversation *c, const qn_option *option) {
    enum { COLUMN = 23 };
    qn_buf value = {0}, line = {0};
    qn_option_print(&value, c->talk->args, option);
    qn_buf_printf(&line, "  %-20s %s", option->name + 2, value.size ? value.data : option->help);
    if (!line.failed) qn_print_entry(line.data, COLUMN, value.size == 0);
    qn_buf_deinit(&value);
    qn_buf_deinit(&line);
}

// Names are those of the options, with or without dashes in front, underscores for those inside;
// other programs' names are known too.
static const qn_option *find_setting(const char *name, size_t n, qn_err *err) {
    char word[64];
    while (n && *name == '-') name++, n--;
    snprintf(word, sizeof word, "--%.*s", (int)(n < 60 ? n : 60), name);
    for (char *at = word; (at = strchr(at, '_'));) *at = '-';
    const qn_foreign *foreign = qn_foreign_find(word, strlen(word));
    const char *ours = foreign && foreign->ours ? foreign->ours : word;
    const qn_option *option;
    for (size_t i = 0; (option = qn_live_option(i)); i++) {
        if (strcmp(option->name, ours) == 0) return option;
    }
    (void)QN_FAIL(err, ARGUMENT, "no setting '%.*s'; /set lists them", (int)(n < 60 ? n : 60),
                  name);
    return NULL;
}

// A value that does not go with the others is taken back.
static qn_status change(qn_talk *t, const qn_option *option, const char *value, qn_err *err) {
    qn_run_args *args = t->args;
    const qn_sampling_args before = args->sampling;
    char *kept = qn_talk_keep(t, value);
    if (!kept) return QN_NOMEM(err, "a setting");
    QN_TRY(qn_option_set(args, option, kept, err));
    const qn_status status = qn_sampling_args_check(&args->sampling, err);
    if (!status) return QN_OK;
    if (option->kind == QN_OPTION_TEXTS)
        ((qn_texts *)(void *)((char *)args + option->offset))->n--;
    else
        args->sampling = before;
    return status;
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
    if (*value)
        QN_TRY(change(c->talk, option, value, err));
    else
        qn_option_clear(c->talk->args, option);
    print_setting(c, option);
    return QN_OK;
}

static qn_status show_figures(conversation *c, const char *rest, qn_err *err) {
    (void)rest, (void)err;
    const qn_talk_figures *f = &c->talk->figures;
    const qn_session_counts counts = qn_session_get_counts(c->talk->session);
    size_t n_tokens;
    qn_session_tokens(c->talk->session, &n_tokens);
    const double writing = f->seconds - f->prompt_seconds;
    fprintf(stderr, "  answers   %lld\n", (long long)f->answers);
    fprintf(stderr, "  read      %lld tokens, %lld of them known, %.1f tokens/s\n",
            (long long)f->prompt, (long long)f->reused,
            f->prompt_seconds > 0 ? (double)(f->prompt - f->reused) / f->prompt_seconds : 0);
    fprintf(stderr, "  written   %lld tokens, %.1f tokens/s\n", (long long)f->tokens,
            writing > 0 ? (double)(f->tokens - f->answers) / writing : 0);
    if (f->guessed)
        fprintf(stderr, "  guessed   %lld tokens, %lld of them right\n", (long long)f->guessed,
                (long long)f->accepted);
    fprintf(stderr, "  context   %zu of %lld tokens\n", n_tokens,
            (long long)qn_session_context(c->talk->session));
    fprintf(stderr, "  steps     %lld, of %lld tokens in all\n", (long long)counts.steps,
            (long long)counts.rows);
    return QN_OK;
}

static qn_status take_image(conversation *c, const char *rest, qn_err *err) {
    (void)c, (void)rest;
    return QN_FAIL(err, UNSUPPORTED,
                   "images are not there yet: no model is opened with a vision "
                   "tower");
}

static const struct {
    const char *name, *rest, *help; // help NULL: another word for one above
    command_fn *run;
} commands[] = {
    {"/system", "TEXT", "set the system message; none: without one; no TEXT: show it", set_system},
    {"/reset", "", "forget what was said", forget},
    {"/clear", "", NULL, forget},
    {"/regen", "", "another answer to the last question", answer_again},
    {"/save", "FILE", "write the conversation into a file", save},
    {"/load", "FILE", "go on with the conversation in a file", load},
    {"/set", "NAME VALUE", "change a setting; no VALUE: back to its default; no NAME: list all",
     set},
    {"/stats", "", "figures of all answers so far", show_figures},
    {"/image", "FILE", "not there yet", take_image},
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
    qn_print_entry("Ctrl-C stops reading or answering, or clears a line. A text of several lines "
                   "stands between \"\"\" and \"\"\", or has a \\ at the end of each line but "
                   "the last.",
                   0, false);
    return QN_OK;
}

// `line` begins with the slash. What fails is told, and the conversation goes on.
static qn_status run_command(conversation *c, const char *line, qn_err *err) {
    const size_t n = strcspn(line, " \t\n");
    const char *rest = line + n + strspn(line + n, " \t\n");
    for (size_t i = 0; i < N_COMMANDS; i++) {
        const char *name = commands[i].name;
        if (strlen(name) != n || memcmp(line, name, n) != 0) continue;
        const qn_status status = commands[i].run(c, rest, err);
        if (status) fprintf(stderr, "quern: %s\n", err->message);
        return status == QN_MEMORY ? status : QN_OK;
    }
    fprintf(stderr, "no command ");
    qn_print_text(stderr, line, n);
    fprintf(stderr, "; there are\n");
    return explain(c, "", err);
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

// Takes the quotes away, and the backslashes at the ends of lines.
static void unquote(qn_buf *text) {
    char *begin = text->data + strspn(text->data, " \t");
    if (strncmp(begin, quotes, 3) != 0) return;
    begin += 3;
    begin += *begin == '\n';
    size_t size = (size_t)(strstr(begin, quotes) - begin);
    memmove(text->data, begin, size);
    if (size && text->data[size - 1] == '\n') size--;
    cut_end(text, size);
}

// A text of one line or several.
static qn_edit_end read_text(qn_buf *text, conversation *c) {
    qn_buf line = {0};
    qn_edit_end end = qn_edit_read(text, c->edit, "> ");
    while (end == QN_EDIT_LINE && is_unfinished(text)) {
        const bool is_quoted = strncmp(text->data + strspn(text->data, " \t"), quotes, 3) == 0;
        end = qn_edit_read(&line, c->edit, "... ");
        if (!is_quoted) cut_end(text, text->size - 1);
        qn_buf_text(text, "\n");
        qn_buf_add(text, line.data, line.size);
    }
    qn_buf_deinit(&line);
    if (end == QN_EDIT_LINE && !text->failed) {
        qn_edit_remember(c->edit, text->data);
        unquote(text);
    }
    return text->failed ? QN_EDIT_CLOSED : end;
}

static qn_status take_text(conversation *c, const qn_buf *text, qn_err *err) {
    const char *word = text->data + strspn(text->data, " \t\r\n"); // blanks alone are no question
    if (*word == '/') return run_command(c, word, err);
    return *word ? settle(c, qn_talk_ask(c->talk, text->data, text->size, err), err) : QN_OK;
}

// What the conversation is with: the model's own name, or that of its file where it has none.
static const char *model_name(const qn_talk *t) {
    enum { SHORTEST = 3 };
    const char *name = qn_engine_get_info(t->loaded.engine).name;
    return strlen(name) >= SHORTEST ? name : qn_path_name(t->path);
}

qn_status qn_converse(qn_talk *talk, qn_err *err) {
    conversation c = {.talk = talk};
    qn_err name; // of a file: cleaned as messages are
    (void)QN_FAIL(&name, OK, "%s", model_name(talk));
    QN_TRY(qn_edit_create(&c.edit, err));
    qn_print_dim("Quern %s, %s. /help lists commands, Ctrl-D ends.", qn_version(), name.message);
    qn_buf text = {0};
    qn_status status = QN_OK;
    while (!c.is_over && !status) {
        const qn_edit_end end = read_text(&text, &c);
        if (end == QN_EDIT_CLOSED) break;
        if (end == QN_EDIT_LINE) status = take_text(&c, &text, err);
    }
    if (!status && text.failed) status = QN_NOMEM(err, "a line");
    qn_buf_deinit(&text);
    qn_edit_destroy(c.edit);
    return status;
}
