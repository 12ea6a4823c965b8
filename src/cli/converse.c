#include "cli/converse.h"

#include "cli/args.h"
#include "cli/conversation.h"
#include "cli/foreign.h"
#include "cli/out.h"
#include "cli/saved.h"
#include "cli/terminal.h"
#include "cli/facts.h"

#include "core/file.h"

#include <string.h>

// --- commands ------------------------------------------------------------------------------------

static qn_slash_fn explain; // needs the table

static qn_status stop(qn_conversation *c, const char *rest, qn_err *err) {
    (void)rest, (void)err;
    c->is_over = true;
    return QN_OK;
}

static const struct {
    const char *name, *rest, *help; // help NULL: another word for one above
    qn_slash_fn *run;
    qn_complete_fn *complete; // of what follows; NULL: nothing
} commands[] = {
    {"/system", "TEXT", "set the system message; none: without one; no TEXT: show it",
     qn_slash_system, NULL},
    {"/reset", "", "clear the conversation", qn_slash_forget, NULL},
    {"/clear", "", NULL, qn_slash_forget, NULL},
    {"/regen", "", "another answer to the last question", qn_slash_again, NULL},
    {"/undo", "", "take the last question and its answer back", qn_slash_undo, NULL},
    {"/edit", "TEXT",
     "write a question in $VISUAL or $EDITOR; it begins with TEXT, or with what /undo took back",
     qn_slash_edit, NULL},
    {"/read", "FILE", "the text of a file before the next question; none: without those that wait",
     qn_slash_read, qn_completion_add_files},
    {"/image", "FILE", "an image before the next question; none: without those that wait",
     qn_slash_image, qn_completion_add_files},
    {"/tool", "RESULT", "the result of a tool that the model called; no RESULT: show the call",
     qn_slash_tool, NULL},
    {"/save", "FILE", "write the conversation into a file", qn_slash_save, qn_completion_add_files},
    {"/load", "FILE", "go on with the conversation in a file", qn_slash_load,
     qn_completion_add_files},
    {"/set", "NAME VALUE",
     "change a setting; VALUE default: as if it was never set; no VALUE: show it; no NAME: list "
     "all",
     qn_slash_set, qn_slash_complete_set},
    {"/show", "WHAT",
     "info (what the model is), messages, prompt, system, template or settings; no WHAT: info",
     qn_slash_show, qn_slash_complete_show},
    {"/stats", "", "figures of all answers so far", qn_slash_figures, NULL},
    {"/exit", "", "end (so do /quit, /bye and Ctrl-D)", stop, NULL},
    {"/quit", "", NULL, stop, NULL},
    {"/bye", "", NULL, stop, NULL},
    {"/help", "", "this list", explain, NULL},
    {"/?", "", NULL, explain, NULL},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

// What else can be typed.
static const struct {
    const char *keys, *help;
} keys[] = {
    {"\"\"\"", "begins and ends a text of several lines"},
    {"\\", "at the end of a line: the text goes on in the next; so does Alt-Enter"},
    {"//", "at the beginning: a text that begins with /"},
    {"Tab", "completes commands, settings and names of files"},
    {"Up, Ctrl-R", "what was typed before; looks for it"},
    {"Ctrl-C", "stops the answer, or clears the line"},
    {"Ctrl-D", "ends"},
};

static void print_row(const char *name, const char *rest, const char *help) {
    enum { COLUMN = 21 };
    char head[32], line[256];
    snprintf(head, sizeof head, "%s %s", name, rest);
    snprintf(line, sizeof line, "  %-18s %s", head, help);
    qn_print_entry(line, COLUMN, false);
}

static qn_status explain(qn_conversation *c, const char *rest, qn_err *err) {
    (void)c, (void)rest, (void)err;
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (commands[i].help) print_row(commands[i].name, commands[i].rest, commands[i].help);
    fputc('\n', stderr);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        print_row(keys[i].keys, "", keys[i].help);
    qn_print_entry("A line that begins with pasted text is never a command, and is sent as it is.",
                   0, false);
    return QN_OK;
}

// The number of the command whose name has the `n` bytes; N_COMMANDS: there is none.
static size_t find_command(const char *word, size_t n) {
    size_t i = 0;
    while (i < N_COMMANDS &&
           (strlen(commands[i].name) != n || memcmp(word, commands[i].name, n) != 0))
        i++;
    return i;
}

// A qn_is_command_fn.
static bool is_known_command(const char *line, size_t n) {
    size_t begin = 0, end;
    while (begin < n && (line[begin] == ' ' || line[begin] == '\t')) begin++;
    for (end = begin; end < n && line[end] != ' ' && line[end] != '\t';) end++;
    return find_command(line + begin, end - begin) < N_COMMANDS;
}

// One line whose first word has one slash, and that at its beginning; "/usr/bin" is a text.
static bool is_command(const char *word) {
    return *word == '/' && !strchr(word, '\n') && !memchr(word + 1, '/', strcspn(word, " \t") - 1);
}

// A qn_complete_fn: the word of a command, or what follows it.
static void complete_command(qn_completion *to, const char *line) {
    const char *word = line + strspn(line, " \t");
    const size_t n = strcspn(word, " \t");
    to->is_text = !is_command(word);
    if (to->is_text) return;
    if (!word[n]) {
        to->n_typed = n;
        to->goes_on = true;
        for (size_t i = 0; i < N_COMMANDS; i++) qn_completion_add(to, commands[i].name, word, n);
        return;
    }
    const size_t i = find_command(word, n);
    if (i < N_COMMANDS && commands[i].complete)
        commands[i].complete(to, word + n + strspn(word + n, " \t"));
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
static qn_status run_command(qn_conversation *c, const char *line, qn_err *err) {
    const size_t n = strcspn(line, " \t\n");
    const char *rest = line + n + strspn(line + n, " \t\n");
    const size_t i = find_command(line, n);
    if (i < N_COMMANDS) {
        const qn_status status = commands[i].run(c, rest, err);
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

// On a line of its own, // begins a text with a slash.
static bool has_two_slashes(const char *word) {
    return strncmp(word, "//", 2) == 0 && !strchr(word, '\n');
}

void qn_conversation_remember(qn_conversation *c, const char *text) {
    qn_err err;
    qn_edit_remember(c->edit, text);
    if (!c->history || !qn_history_add(c->history, text, &err)) return;
    qn_print_dim("no history is kept: %s", err.message);
    qn_history_close(c->history);
    c->history = NULL;
}

// What was pasted must be the same text when the arrow keys bring it back, where it counts as
// typed.
static void remember(qn_conversation *c, const qn_buf *text, bool is_pasted) {
    const char *word = text->data + strspn(text->data, " \t\r\n");
    qn_buf typed = {0};
    if (is_pasted && (is_command(word) || has_two_slashes(word))) qn_buf_text(&typed, "/");
    qn_buf_text(&typed, typed.size ? word : text->data);
    if (!typed.failed && *typed.data) qn_conversation_remember(c, typed.data);
    qn_buf_deinit(&typed);
}

// A text of one line or several. The backslashes at the ends of lines are taken away.
static qn_edit_end read_text(qn_buf *text, qn_conversation *c) {
    qn_buf line = {0};
    qn_edit_end end = qn_edit_read(text, c->edit, "> ");
    while (end == QN_EDIT_LINE && is_unfinished(text)) {
        end = qn_edit_read(&line, c->edit, "... ");
        if (!is_quoted(text)) cut_end(text, text->size - 1);
        qn_buf_text(text, "\n");
        qn_buf_add(text, line.data, line.size);
        if (end == QN_EDIT_NOTHING) end = QN_EDIT_INTERRUPTED; // the lines before are dropped
    }
    qn_buf_deinit(&line);
    const bool is_pasted = end == QN_EDIT_PASTED;
    if ((end == QN_EDIT_LINE || is_pasted) && !text->failed) remember(c, text, is_pasted);
    return text->failed ? QN_EDIT_CLOSED : end;
}

static qn_status take_text(qn_conversation *c, qn_buf *text, qn_err *err) {
    if (is_quoted(text)) {
        unquote(text);
        return qn_conversation_ask(c, text->data, text->size, err);
    }
    const char *word = text->data + strspn(text->data, " \t\r\n");
    if (is_command(word)) return run_command(c, word, err);
    if (has_two_slashes(word)) return qn_conversation_ask(c, word + 1, strlen(word + 1), err);
    return qn_conversation_ask(c, text->data, text->size, err);
}

// What the conversation is with: the model's own name, or that of its file where it has none.
static const char *model_name(const qn_talk *t) {
    enum { SHORTEST = 3 };
    const char *name = qn_engine_facts(t->loaded.engine).name;
    return strlen(name) >= SHORTEST ? name : qn_path_name(t->path);
}

// What earlier conversations left.
static void open_history(qn_conversation *c) {
    qn_err err;
    if (c->talk->args->no_history) return;
    if (qn_history_open(&c->history, &err)) qn_print_dim("no history is kept: %s", err.message);
    const char *entry;
    for (size_t i = 0; c->history && (entry = qn_history_entry(c->history, i)); i++)
        qn_edit_remember(c->edit, entry);
}

static void greet(const qn_conversation *c) {
    const char *session = c->talk->args->session;
    const size_t n = qn_chat_n_messages(c->talk->chat);
    qn_shown name, path;
    qn_print_dim("Quern %s, %s. /help lists commands, Ctrl-D ends.", qn_version(),
                 qn_clean(&name, model_name(c->talk)));
    if (!session) return;
    if (n == 0)
        qn_print_dim("a new conversation, kept in %s", qn_clean(&path, session));
    else
        qn_print_dim("goes on with the %zu message%s in %s", n, n == 1 ? "" : "s",
                     qn_clean(&path, session));
    qn_conversation_tell_state(c);
}

// The terminal went away, or Ctrl-D ended a text of several lines.
static qn_status keep_typed(qn_conversation *c, const qn_buf *text, qn_err *err) {
    if (text->failed || text->data[strspn(text->data, " \t\r\n")] == 0) return QN_OK;
    qn_conversation_remember(c, text->data);
    qn_buf_add(&c->talk->typed, text->data, text->size);
    return c->talk->typed.failed ? QN_NOMEM(err, "a line") : qn_saved_keep(c->talk, err);
}

static qn_status converse(qn_conversation *c, qn_err *err) {
    qn_buf text = {0};
    qn_status status = QN_OK;
    while (!c->is_over && !status) {
        const qn_edit_end end = read_text(&text, c);
        if (end == QN_EDIT_CLOSED) {
            status = keep_typed(c, &text, err);
            break;
        }
        if (end == QN_EDIT_NOTHING) qn_print_dim("Ctrl-D or /exit ends the conversation");
        if (end == QN_EDIT_LINE) status = take_text(c, &text, err);
        if (end == QN_EDIT_PASTED) status = qn_conversation_ask(c, text.data, text.size, err);
    }
    if (!status && text.failed) status = QN_NOMEM(err, "a line");
    qn_buf_deinit(&text);
    return status;
}

qn_status qn_converse(qn_talk *talk, qn_err *err) {
    qn_conversation c = {.talk = talk};
    QN_TRY(qn_edit_create(&c.edit, is_known_command, complete_command, err));
    open_history(&c);
    greet(&c);
    const qn_status status = converse(&c, err);
    qn_buf_deinit(&c.draft);
    qn_history_close(c.history);
    qn_edit_destroy(c.edit);
    return status;
}
