#include "cli/edit.h"

#include "cli/history.h"
#include "cli/look.h"
#include "cli/terminal.h"
#include "core/mem.h"
#include "core/utf8.h"

#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utf8proc.h>

struct qn_edit {
    EditLine *line; // NULL: standard error is not a terminal, lines are read without editing
    HistoryW *history;
    qn_ahead *ahead;                 // what was typed before the prompt was there
    FILE *nowhere;                   // for what libedit has to say about terminals
    wchar_t *prompt;                 // of the line that is read
    wchar_t none[1];                 // in its place when memory is short
    bool has_paste;                  // the terminal brackets pasted text
    bool was_interrupted, was_empty; // by Ctrl-C; with nothing typed
    qn_complete_fn *complete;
    wchar_t pasted; // the first character of a text that was pasted as the line began; 0: none
    struct winsize window; // when the line was begun, or last seen
};

// --- characters ----------------------------------------------------------------------------------

static bool read_byte(const qn_edit *edit, char *c) {
    if (qn_ahead_take(edit->ahead, c)) return true;
    ssize_t n;
    do n = read(STDIN_FILENO, c, 1);
    while (n < 0 && errno == EINTR); // the window has another size
    return n == 1;
}

// One character of UTF-8; what is none becomes U+FFFD.
static bool read_character(const qn_edit *edit, wchar_t *out) {
    char bytes[4];
    uint32_t code = 0xfffd;
    size_t n = 0;
    do {
        if (!read_byte(edit, &bytes[n++])) return false;
    } while (n < sizeof bytes && qn_utf8_incomplete_tail(bytes, n) == n);
    if (!qn_utf8_decode(bytes, n, &code)) code = 0xfffd;
    *out = (wchar_t)code;
    return true;
}

// After Ctrl-Z and fg, what was typed is above the output of the shell: it is shown again. A
// window of another size is libedit's to deal with.
static void show_again(qn_edit *edit) {
    struct winsize now = {0};
    if (ioctl(STDIN_FILENO, TIOCGWINSZ, &now) != 0) return;
    const bool is_same = now.ws_col == edit->window.ws_col && now.ws_row == edit->window.ws_row;
    edit->window = now;
    if (!is_same) return;
    fputs(edit->has_paste ? "\r\033[K\033[?2004h" : "\r", stderr); // the shell turned it off
    (void)el_wset(edit->line, EL_REFRESH, NULL);
}

static qn_input wait_for_input(const qn_edit *edit) {
    if (!qn_ahead_is_empty(edit->ahead))
        return qn_interrupt_take() ? QN_INPUT_INTERRUPTED : QN_INPUT_READY;
    return qn_input_wait();
}

// Whether the next character would be the line's first; `is_alone`: and its only one.
static bool is_at_beginning(EditLine *line, bool is_alone) {
    const LineInfoW *info = el_wline(line);
    return (is_alone ? info->lastchar : info->cursor) == info->buffer;
}

static int interrupt(qn_edit *edit) {
    if (!edit->was_interrupted) edit->was_empty = is_at_beginning(edit->line, true);
    edit->was_interrupted = true;
    errno = EINTR;
    return -1;
}

// libedit asks for characters here. Ctrl-C is one of them, in its place among the others; it may
// come as a signal too.
static int get_character(EditLine *line, wchar_t *out) {
    enum { CTRL_C = 3 };
    qn_edit *edit = NULL;
    if (el_wget(line, EL_CLIENTDATA, &edit) != 0 || !edit) return -1;
    if (edit->was_interrupted) return interrupt(edit); // in the middle of a paste
    if (is_at_beginning(line, true)) edit->pasted = 0; // what was pasted is gone again
    for (qn_input input; (input = wait_for_input(edit)) != QN_INPUT_READY;) {
        if (input == QN_INPUT_INTERRUPTED) return interrupt(edit);
        if (input == QN_INPUT_HUNG_UP) return 0; // as at the end of the input
        show_again(edit);
    }
    if (!read_character(edit, out)) return 0;
    return *out == CTRL_C ? interrupt(edit) : 1;
}

static void add_wide(qn_buf *to, const wchar_t *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        char bytes[4];
        const size_t size = qn_utf8_encode((uint32_t)text[i], bytes);
        qn_buf_add(to, bytes, size);
    }
}

// Owned (qn_free); NULL: no memory.
static wchar_t *widen(const char *text) {
    const size_t size = strlen(text);
    wchar_t *wide = qn_alloc(size + 1, sizeof *wide);
    size_t n = 0;
    for (size_t i = 0, length; wide && i < size; i += length ? length : 1) {
        uint32_t code = 0xfffd;
        length = qn_utf8_decode(text + i, size - i, &code);
        wide[n++] = (wchar_t)code;
    }
    return wide;
}

// --- keys ----------------------------------------------------------------------------------------

static unsigned char insert_newline(EditLine *line, wint_t key) {
    (void)key;
    return el_winsertstr(line, L"\n") == 0 ? CC_REFRESH : CC_ERROR;
}

// Inserts up to the mark that ends a paste. False: no memory.
static bool insert_marked(EditLine *line) {
    static const char end[] = QN_PASTE_END;
    enum { END = sizeof end - 1 };
    size_t n_end = 0; // characters of the end that came
    for (wchar_t c; n_end < END && el_wgetc(line, &c) == 1;) {
        if (c == (wchar_t)end[n_end]) {
            n_end++;
            continue;
        }
        for (size_t i = 0; i < n_end; i++) // it was none; escapes are not text
            if (end[i] != '\033' && el_winsertstr(line, (wchar_t[]){(wchar_t)end[i], 0}) != 0)
                return false;
        n_end = c == (wchar_t)end[0];
        if (n_end) continue;
        if (c == L'\r') c = L'\n';
        if ((c >= L' ' || c == L'\n' || c == L'\t') && el_winsertstr(line, (wchar_t[]){c, 0}) != 0)
            return false;
    }
    return true;
}

// Pasted text: newlines in it do not send the line.
static unsigned char insert_paste(EditLine *line, wint_t key) {
    qn_edit *edit = NULL;
    (void)key;
    if (el_wget(line, EL_CLIENTDATA, &edit) != 0 || !edit) return CC_ERROR;
    const bool is_first = is_at_beginning(line, false);
    if (!insert_marked(line)) return CC_ERROR;
    if (is_first && !is_at_beginning(line, false)) edit->pasted = el_wline(line)->buffer[0];
    return CC_REFRESH;
}

// --- completion ----------------------------------------------------------------------------------

static int columns_of(const char *name) {
    int columns = 0;
    uint32_t code = 0;
    for (size_t i = 0, size = strlen(name), n; i < size; i += n ? n : 1) {
        n = qn_utf8_decode(name + i, size - i, &code);
        columns += utf8proc_charwidth((utf8proc_int32_t)code);
    }
    return columns;
}

// The names in columns, below the line; a few rows of them.
static void list_names(const qn_completion *c) {
    enum { GAP = 2, MOST_ROWS = 20 };
    int widest = 1;
    for (size_t i = 0; i < c->n; i++) {
        const int columns = columns_of(c->names[i]);
        if (columns > widest) widest = columns;
    }
    const int width = qn_look_width(stderr), n_columns = width / (widest + GAP);
    const size_t a_row = n_columns > 1 ? (size_t)n_columns : 1;
    const size_t n = c->n < MOST_ROWS * a_row ? c->n : MOST_ROWS * a_row;
    for (size_t i = 0; i < n; i++) {
        const bool is_last = i % a_row == a_row - 1 || i + 1 == n;
        const int pad = is_last ? 0 : widest + GAP - columns_of(c->names[i]);
        fprintf(stderr, "%s%s%*s%s", i == 0 ? "\n" : "", c->names[i], pad, "", is_last ? "\n" : "");
    }
    if (n < c->n) fprintf(stderr, "and %zu more\n", c->n - n);
}

// Adds what all candidates go on with; if that is nothing, lists them.
static unsigned char insert_common(EditLine *line, qn_completion *c) {
    qn_buf common = {0};
    qn_completion_common(&common, c);
    const bool is_some = !common.failed && common.size;
    const bool is_listed = !is_some && !common.failed && c->n > 1 && c->n <= QN_MOST_CANDIDATES;
    wchar_t *wide = is_some ? widen(common.data) : NULL;
    const bool is_inserted = wide && el_winsertstr(line, wide) == 0;
    qn_buf_deinit(&common);
    qn_free(wide);
    if (is_listed) list_names(c);
    if (is_listed) return CC_REDISPLAY;
    return is_inserted ? CC_REFRESH : CC_ERROR;
}

// A tab is a tab in a text.
static unsigned char complete(EditLine *line, wint_t key) {
    qn_edit *edit = NULL;
    (void)key;
    if (el_wget(line, EL_CLIENTDATA, &edit) != 0 || !edit) return CC_ERROR;
    const LineInfoW *info = el_wline(line);
    const bool is_pasted = edit->pasted && *info->buffer == edit->pasted;
    qn_buf typed = {0};
    qn_completion c = {.is_text = is_pasted};
    qn_buf_add(&typed, "", 0);
    add_wide(&typed, info->buffer, (size_t)(info->cursor - info->buffer));
    if (!typed.failed && !is_pasted) edit->complete(&c, typed.data);
    const unsigned char result = c.is_text ? el_winsertstr(line, L"\t") == 0 ? CC_REFRESH : CC_ERROR
                                           : insert_common(line, &c);
    qn_completion_deinit(&c);
    qn_buf_deinit(&typed);
    return result;
}

static wchar_t *give_prompt(EditLine *line) {
    qn_edit *edit = NULL;
    (void)el_wget(line, EL_CLIENTDATA, &edit);
    return edit->prompt ? edit->prompt : edit->none;
}

static bool set_up(qn_edit *edit) {
    EditLine *line = edit->line;
    HistEventW event;
    const char *terminal = NULL;
    const bool is_set =
        el_wset(line, EL_CLIENTDATA, edit) == 0 && el_wset(line, EL_PROMPT, give_prompt) == 0 &&
        el_wset(line, EL_EDITOR, L"emacs") == 0 && el_wset(line, EL_SIGNAL, 1) == 0 &&
        el_wset(line, EL_GETCFN, get_character) == 0 &&
        el_wset(line, EL_SETTY, L"-d", L"intr=", NULL) == 0 &&
        el_wset(line, EL_ADDFN, L"quern-newline", L"A new line", insert_newline) == 0 &&
        el_wset(line, EL_ADDFN, L"quern-paste", L"Pasted text", insert_paste) == 0 &&
        el_wset(line, EL_ADDFN, L"quern-complete", L"Completion", complete) == 0 &&
        el_wset(line, EL_BIND, L"^I", L"quern-complete", NULL) == 0 &&
        el_wset(line, EL_BIND, L"\\e\\r", L"quern-newline", NULL) == 0 &&
        el_wset(line, EL_BIND, L"\\e\\n", L"quern-newline", NULL) == 0 &&
        el_wset(line, EL_BIND, L"\\e[200~", L"quern-paste", NULL) == 0 &&
        el_wset(line, EL_BIND, L"^R", L"em-inc-search-prev", NULL) == 0 &&
        history_w(edit->history, &event, H_SETSIZE, QN_MOST_REMEMBERED) >= 0 &&
        history_w(edit->history, &event, H_SETUNIQUE, 1) >= 0 &&
        el_wset(line, EL_HIST, history_w, edit->history) == 0;
    if (el_get(line, EL_TERMINAL, &terminal) == 0 && terminal)
        edit->has_paste = strcmp(terminal, "dumb") != 0;
    return is_set;
}

// --- the object ----------------------------------------------------------------------------------

// Text is UTF-8 whatever the surroundings say.
static void set_characters(void) {
    setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8");
}

qn_status qn_edit_create(qn_edit **out, qn_is_command_fn *is_command, qn_complete_fn *complete_line,
                         qn_err *err) {
    qn_edit *edit = qn_alloc(1, sizeof *edit);
    if (!edit) return QN_NOMEM(err, "line editor");
    edit->complete = complete_line;
    if (isatty(STDERR_FILENO)) {
        set_characters();
        edit->nowhere = fopen("/dev/null", "we");
        edit->history = history_winit();
        if (edit->nowhere && edit->history)
            edit->line = el_init("quern", stdin, stderr, edit->nowhere);
        if (!edit->line || !set_up(edit)) {
            qn_edit_destroy(edit);
            return QN_FAIL(err, IO, "this terminal cannot be set up for typing");
        }
    }
    const qn_status status = qn_ahead_create(&edit->ahead, edit->has_paste, is_command, err);
    if (status) {
        qn_edit_destroy(edit);
        return status;
    }
    *out = edit;
    return QN_OK;
}

void qn_edit_destroy(qn_edit *edit) {
    if (!edit) return;
    if (edit->has_paste) qn_paste_mark(false);
    qn_ahead_destroy(edit->ahead);
    if (edit->line) el_end(edit->line);
    if (edit->history) history_wend(edit->history);
    if (edit->nowhere) fclose(edit->nowhere);
    qn_free(edit);
}

// --- reading -------------------------------------------------------------------------------------

static void end_ahead(const qn_edit *edit) {
    if (!qn_ahead_end(edit->ahead)) qn_print_dim("[what was typed meanwhile is too long: dropped]");
}

static qn_edit_end read_edited(qn_buf *line, qn_edit *edit, const char *prompt) {
    int n = 0;
    edit->was_interrupted = edit->was_empty = false;
    edit->pasted = 0;
    (void)ioctl(STDIN_FILENO, TIOCGWINSZ, &edit->window);
    edit->prompt = widen(prompt);
    fflush(stdout);
    // Before the prompt is there, so that what is typed after it is not shown twice.
    (void)el_wset(edit->line, EL_PREP_TERM, 1);
    end_ahead(edit);
    if (edit->has_paste) qn_paste_mark(true); // stays on while nobody waits for a line
    const wchar_t *text = el_wgets(edit->line, &n);
    if (text && n > 0) add_wide(line, text, (size_t)n);
    qn_free(edit->prompt);
    edit->prompt = NULL;
    // A character that was typed before it begins the line instead.
    if (text && n > 0) return edit->pasted && *text == edit->pasted ? QN_EDIT_PASTED : QN_EDIT_LINE;
    fputc('\n', stderr);
    const LineInfoW *info = el_wline(edit->line);
    if (!edit->was_interrupted) {
        add_wide(line, info->buffer, (size_t)(info->lastchar - info->buffer));
        return QN_EDIT_CLOSED;
    }
    return edit->was_empty ? QN_EDIT_NOTHING : QN_EDIT_INTERRUPTED;
}

// Takes a mark of pasted text away from the end of the line.
static bool cut_mark(qn_buf *line, const char *mark) {
    const size_t n = strlen(mark);
    if (line->size < n || memcmp(line->data + line->size - n, mark, n) != 0) return false;
    line->data[line->size -= n] = 0;
    return true;
}

static qn_edit_end read_plain(qn_buf *line, const qn_edit *edit) {
    end_ahead(edit);
    qn_ahead_restore(edit->ahead);
    qn_edit_end whole = QN_EDIT_LINE;
    bool is_pasted = false;
    for (char c;;) {
        const qn_input input = wait_for_input(edit);
        if (input == QN_INPUT_INTERRUPTED)
            return line->size ? QN_EDIT_INTERRUPTED : QN_EDIT_NOTHING;
        if (input == QN_INPUT_HUNG_UP) return QN_EDIT_CLOSED;
        if (input == QN_INPUT_SIGNALLED) continue;
        if (!read_byte(edit, &c)) return line->size ? whole : QN_EDIT_CLOSED;
        qn_buf_add(line, &c, 1);
        if (line->failed) return QN_EDIT_CLOSED;
        if (cut_mark(line, QN_PASTE_BEGIN)) {
            is_pasted = true;
            if (line->size == 0) whole = QN_EDIT_PASTED;
        }
        if (cut_mark(line, QN_PASTE_END)) is_pasted = false;
        if (c == '\n' && !is_pasted) return whole;
    }
}

qn_edit_end qn_edit_read(qn_buf *line, qn_edit *edit, const char *prompt) {
    qn_buf_clear(line);
    qn_buf_add(line, "", 0);
    const qn_edit_end end = edit->line ? read_edited(line, edit, prompt) : read_plain(line, edit);
    qn_ahead_begin(edit->ahead);
    if (line->size && line->data[line->size - 1] == '\n') line->data[--line->size] = 0;
    return line->failed ? QN_EDIT_CLOSED : end;
}

void qn_edit_remember(qn_edit *edit, const char *text) {
    HistEventW event;
    wchar_t *wide = edit->history && *text ? widen(text) : NULL;
    if (wide) (void)history_w(edit->history, &event, H_ENTER, wide);
    qn_free(wide);
}

void qn_edit_lend(qn_edit *edit) {
    end_ahead(edit);
    qn_ahead_restore(edit->ahead);
    if (edit->has_paste) qn_paste_mark(false);
}

void qn_edit_take_back(qn_edit *edit) {
    if (edit->has_paste) qn_paste_mark(true);
    qn_ahead_begin(edit->ahead);
}
