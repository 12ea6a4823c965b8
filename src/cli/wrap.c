#include "cli/wrap.h"

#include "cli/look.h"
#include "core/printable.h"
#include "core/utf8.h"

#include <string.h>
#include <utf8proc.h>

void qn_wrap_init(qn_line_wrap *wrap, FILE *to) {
    const qn_look look = qn_look_at(to);
    *wrap =
        (qn_line_wrap){.to = to, .is_terminal = look.is_terminal, .has_colour = look.has_colour};
    if (wrap->is_terminal) wrap->width = qn_look_width(to);
}

static void new_line(qn_line_wrap *w) {
    putc('\n', w->to);
    w->column = w->blanks = 0;
}

// A line that goes on the one before; a long word is indented less.
static void break_line(qn_line_wrap *w) {
    const int room = w->width - w->columns, indent = w->indent < room ? w->indent : room;
    new_line(w);
    if (indent <= 0) return;
    fprintf(w->to, "%*s", indent, "");
    w->column = indent;
}

// Blanks at the beginning of a line are its form, and stay; a break takes the place of others.
void qn_wrap_flush(qn_line_wrap *w) {
    const bool is_cut = w->is_cut;
    w->is_cut = false;
    if (w->size == 0) return;
    if (!w->has_text) { // blanks may follow, and be the end of the line
        fwrite(w->word, 1, w->size, w->to);
        w->size = 0;
        return;
    }
    if (w->is_terminal && !w->is_free) w->width = qn_look_width(w->to); // it may have changed
    const bool is_broken = w->width && !w->is_kept && !is_cut && w->column > 0 &&
                           w->column + w->blanks + w->columns > w->width;
    if (is_broken) break_line(w);
    fprintf(w->to, "%*s", w->blanks, "");
    fwrite(w->word, 1, w->size, w->to);
    w->column += w->blanks + w->columns;
    if (w->width && w->column > w->width) w->column = (w->column - 1) % w->width + 1;
    w->size = 0;
    w->columns = w->blanks = 0;
    w->has_text = false;
}

static void add_tab(qn_line_wrap *w) {
    enum { STOP = 8 };
    qn_wrap_flush(w);
    fprintf(w->to, "%*s\t", w->blanks, "");
    w->column = (w->column + w->blanks) / STOP * STOP + STOP;
    w->blanks = 0;
}

static void add_character(qn_line_wrap *w, const char *text, size_t size, uint32_t code) {
    const bool is_control = qn_code_is_control(code);
    const int columns = is_control ? 1 : utf8proc_charwidth((utf8proc_int32_t)code);
    const bool stands_alone = columns == 2;                 // scripts that are broken anywhere
    const bool is_long = w->size + size > sizeof w->word || // the room, or the line
                         (w->width && w->columns + columns > w->width);
    if (is_long || (stands_alone && w->has_text)) qn_wrap_flush(w);
    w->is_cut |= is_long;
    memcpy(w->word + w->size, is_control ? "?" : text, is_control ? 1 : size);
    w->size += is_control ? 1 : size;
    w->columns += columns;
    w->has_text = true;
    if (stands_alone) qn_wrap_flush(w);
}

void qn_wrap_add(qn_line_wrap *w, const char *text, size_t size) {
    if (!w->is_terminal) {
        fwrite(text, 1, size, w->to);
        if (size) w->column = text[size - 1] != '\n';
        return;
    }
    for (size_t i = 0, n; i < size; i += n) {
        uint32_t code = 0;
        n = qn_utf8_decode(text + i, size - i, &code);
        if (n == 0) n = 1, code = 0; // a stray byte
        if (code == '\n')
            qn_wrap_flush(w), new_line(w);
        else if (code == '\t')
            add_tab(w);
        else if (code == ' ')
            qn_wrap_flush(w), w->blanks++;
        else
            add_character(w, text + i, n, code);
    }
}

void qn_wrap_end_line(qn_line_wrap *w) {
    qn_wrap_flush(w);
    if (w->column > 0) new_line(w);
}

void qn_wrap_style(qn_line_wrap *w, const char *sequence) {
    const size_t n = strlen(sequence);
    if (!w->has_colour) return;
    if (w->size + n > sizeof w->word) { // the rest belongs to the same word
        qn_wrap_flush(w);
        w->is_cut = true;
    }
    memcpy(w->word + w->size, sequence, n);
    w->size += n;
}

void qn_wrap_dim(qn_line_wrap *w, bool is_dim) {
    qn_wrap_flush(w);
    if (w->has_colour) fputs(is_dim ? "\033[2m" : "\033[0m", w->to);
}
