#include "cli/converse.h"

#include "cli/args.h"
#include "cli/conversation.h"
#include "cli/foreign.h"
#include "cli/out.h"
#include "cli/terminal.h"
#include "cli/facts.h"

#include "core/file.h"

#include <string.h>

// --- commands ------------------------------------------------------------------------------------

static qn_command_fn explain; // needs the table

static qn_status stop(qn_conversation *c, const char *rest, qn_err *err) {
    (void)rest, (void)err;
    c->is_over = true;
    return QN_OK;
}

static const struct {
    const char *name, *rest, *help; // help NULL: another word for one above
    qn_command_fn *run;
} commands[] = {
    {"/system", "TEXT", "set the system message; none: without one; no TEXT: show it",
     qn_slash_system},
    {"/reset", "", "clear the conversation", qn_slash_forget},
    {"/clear", "", NULL, qn_slash_forget},
    {"/regen", "", "another answer to the last question", qn_slash_again},
    {"/save", "FILE", "write the conversation into a file", qn_slash_save},
    {"/load", "FILE", "go on with the conversation in a file", qn_slash_load},
    {"/set", "NAME VALUE",
     "change a setting; VALUE default: as if it was never set; no VALUE: show it; no NAME: list "
     "all",
     qn_slash_set},
    {"/stats", "", "figures of all answers so far", qn_slash_figures},
    {"/image", "FILE",
     "an image before the text of the next message; none: without those that wait", qn_slash_image},
    {"/exit", "", "end (so do /quit, /bye and Ctrl-D)", stop},
    {"/quit", "", NULL, stop},
    {"/bye", "", NULL, stop},
    {"/help", "", "this list", explain},
    {"/?", "", NULL, explain},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static qn_status explain(qn_conversation *c, const char *rest, qn_err *err) {
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
static qn_command_fn *find_command(const char *word, size_t n) {
    for (size_t i = 0; i < N_COMMANDS; i++) {
        const char *name = commands[i].name;
        if (strlen(name) == n && memcmp(word, name, n) == 0) return commands[i].run;
    }
    return NULL;
}

// A qn_is_qn_command_fn.
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
static qn_status run_command(qn_conversation *c, const char *line, qn_err *err) {
    const size_t n = strcspn(line, " \t\n");
    const char *rest = line + n + strspn(line + n, " \t\n");
    qn_command_fn *run = find_command(line, n);
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
static void remember(const qn_conversation *c, const qn_buf *text, bool is_pasted) {
    const char *word = text->data + strspn(text->data, " \t\r\n");
    qn_buf typed = {0};
    if (is_pasted && (is_command(word) || has_two_slashes(word))) qn_buf_text(&typed, "/");
    qn_buf_text(&typed, typed.size ? word : text->data);
    if (!typed.failed) qn_edit_remember(c->edit, typed.data);
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
    }
    qn_buf_deinit(&line);
    const bool is_pasted = end == QN_EDIT_PASTED;
    if ((end == QN_EDIT_LINE || is_pasted) && !text->failed) remember(c, text, is_pasted);
    return text->failed ? QN_EDIT_CLOSED : end;
}

static qn_status ask(qn_conversation *c, const char *text, size_t size, qn_err *err) {
    const bool is_blank = text[strspn(text, " \t\r\n")] == 0; // not a question
    return is_blank ? QN_OK : qn_conversation_settle(c, qn_talk_ask(c->talk, text, size, err), err);
}

static qn_status take_text(qn_conversation *c, qn_buf *text, qn_err *err) {
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
    qn_conversation c = {.talk = talk};
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
