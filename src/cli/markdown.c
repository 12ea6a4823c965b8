#include "cli/markdown.h"

#include "core/utf8.h"

#include <string.h>

static bool is_blank(char c) { return c == ' ' || c == '\t'; }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_alnum(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// How many of the text's first character it begins with.
static size_t run_size(const char *text, size_t n) {
    size_t run = 1;
    while (run < n && text[run] == *text) run++;
    return run;
}

// --- styles --------------------------------------------------------------------------------------

enum { BOLD = 1, CODE = 2, DIM = 4 };
static const struct {
    unsigned style;
    const char *on, *off;
} styles[] = {
    {BOLD, "\033[1m", "\033[22m"}, {CODE, "\033[36m", "\033[39m"}, {DIM, "\033[2m", "\033[22m"}};

static void set_styles(qn_markdown *m, unsigned wanted) {
    for (size_t i = 0; i < sizeof styles / sizeof *styles; i++) {
        const bool is_on = m->styles & styles[i].style, is_wanted = wanted & styles[i].style;
        if (is_on != is_wanted) qn_wrap_style(m->wrap, is_wanted ? styles[i].on : styles[i].off);
    }
    m->styles = wanted;
}

static void show(qn_markdown *m, const char *text, size_t n) {
    if (n == 0) return;
    qn_wrap_add(m->wrap, text, n);
    m->before = text[n - 1];
}

static void show_styled(qn_markdown *m, const char *text, size_t n, unsigned style) {
    const unsigned before = m->styles;
    set_styles(m, before | style);
    show(m, text, n);
    set_styles(m, before);
}

// --- spans ---------------------------------------------------------------------------------------

// What a text begins with that begins with a mark.
typedef struct span {
    size_t size;  // bytes; 0: more of the text must come to tell
    size_t marks; // bytes at each of its ends that are marks; 0: it is text
} span;

static bool is_mark(char c) { return c == '`' || c == '*' || c == '\\'; }

// Where the run of as many backticks is that closes the one at the beginning; 0: nowhere. Without
// what follows a run it is not known how long that is.
static size_t find_code_end(const char *text, size_t n, size_t marks, bool is_whole) {
    for (size_t i = marks, run; i < n; i += run) {
        run = text[i] == '`' ? run_size(text + i, n - i) : 1;
        if (text[i] != '`') continue;
        if (i + run == n && !is_whole) return 0;
        if (run == marks) return i;
    }
    return 0;
}

// The same for asterisks, which do not count inside of code.
static size_t find_bold_end(const char *text, size_t n, size_t marks, bool is_whole) {
    for (size_t i = marks, step; i < n; i += step) {
        step = text[i] == '\\' ? 2 : 1;
        if (text[i] != '`' && text[i] != '*') continue;
        step = run_size(text + i, n - i);
        if (text[i] == '*' && step >= marks && !is_blank(text[i - 1])) return i;
        const size_t end = text[i] == '`' ? find_code_end(text + i, n - i, step, is_whole) : 0;
        if (text[i] == '`' && !end && !is_whole) return 0;
        step += end;
    }
    return 0;
}

// Two asterisks, or three, before a word; not those of 2**3.
static bool begins_bold(char before, const char *text, size_t n, size_t marks) {
    return (marks == 2 || marks == 3) && marks < n && !is_blank(text[marks]) && !is_alnum(before);
}

// Of a text that begins with a mark; `is_whole`: nothing will follow on this line.
static span measure(char before, const char *text, size_t n, bool is_whole) {
    if (*text == '\\') // what follows is no mark
        return (span){.size = n > 1 && is_mark(text[1]) ? 2 : n > 1 || is_whole};
    const size_t marks = run_size(text, n);
    if (marks == n) return (span){.size = is_whole ? n : 0};
    const bool is_code = *text == '`';
    if (!is_code && !begins_bold(before, text, n, marks)) return (span){.size = marks};
    const size_t end =
        is_code ? find_code_end(text, n, marks, is_whole) : find_bold_end(text, n, marks, is_whole);
    if (end) return (span){.size = end + marks, .marks = marks};
    return (span){.size = is_whole ? marks : 0};
}

// Bytes up to the next mark.
static size_t plain_size(const char *text, size_t n) {
    size_t i = 0;
    while (i < n && !is_mark(text[i])) i++;
    return i;
}

static void show_code(qn_markdown *m, const char *text, size_t n) {
    const bool is_padded = n > 2 && *text == ' ' && text[n - 1] == ' '; // around a backtick
    show_styled(m, text + is_padded, n - 2 * is_padded, CODE);
}

// The inside of bold text may have code in it.
static void show_bold(qn_markdown *m, const char *text, size_t n) {
    const unsigned before = m->styles;
    set_styles(m, before | BOLD);
    while (n > 0) {
        size_t size = plain_size(text, n);
        show(m, text, size);
        text += size, n -= size;
        if (n == 0) break;
        const span s = measure('a', text, n, true); // after a letter no bold begins
        if (s.marks)
            show_code(m, text + s.marks, s.size - 2 * s.marks);
        else
            show(m, text, s.size);
        text += s.size, n -= s.size;
    }
    set_styles(m, before);
}

static void show_span(qn_markdown *m, span s) {
    const char *inside = m->held + s.marks;
    const size_t n = s.size - 2 * s.marks;
    if (s.marks == 0)
        show(m, m->held, n);
    else if (*m->held == '`')
        show_code(m, inside, n);
    else
        show_bold(m, inside, n);
    if (s.marks) m->before = inside[n]; // the mark
}

static void drop_held(qn_markdown *m, size_t n) { memmove(m->held, m->held + n, m->size -= n); }

// Shows what is held as far as it can be told what it is.
static void show_held(qn_markdown *m, bool is_whole) {
    while (m->size > 0) {
        const size_t plain = plain_size(m->held, m->size);
        show(m, m->held, plain);
        drop_held(m, plain);
        if (m->size == 0) return;
        const span s = measure(m->before, m->held, m->size, is_whole);
        if (s.size == 0) return;
        show_span(m, s);
        drop_held(m, s.size);
    }
}

// --- lines ---------------------------------------------------------------------------------------

// What a line is by its beginning.
typedef struct line_kind {
    bool is_open; // more of it must come to tell
    enum { TEXT, HEADING, ITEM, FENCE } kind;
    size_t indent, size; // blanks before the mark; bytes of both, and of the blank that follows
} line_kind;

// Three backticks or more, after which there are none; or tildes. It is told when the line is
// there.
static line_kind look_at_fence(const qn_markdown *m, size_t indent, bool is_whole) {
    const char *text = m->held + indent;
    const size_t n = m->size - indent, run = run_size(text, n);
    const bool is_fence = run >= 3 && (*text == '~' || !memchr(text + run, '`', n - run));
    if (run == n || is_fence)
        return (line_kind){.is_open = !is_whole, .kind = run < 3 ? TEXT : FENCE, .indent = indent};
    return (line_kind){.kind = TEXT, .indent = indent};
}

// Whether it closes the block of code that is open.
static line_kind look_at_code(const qn_markdown *m, size_t indent, bool is_whole) {
    const char *text = m->held + indent;
    const size_t n = m->size - indent;
    size_t run = 0, rest;
    while (run < n && text[run] == m->fence) run++;
    for (rest = run; rest < n && is_blank(text[rest]);) rest++;
    if (rest < n || (is_whole && run < m->n_fence)) return (line_kind){.kind = TEXT};
    return (line_kind){.is_open = !is_whole, .kind = FENCE};
}

// Marks of a line, a blank behind them, and a text.
static line_kind look_at_mark(const qn_markdown *m, size_t indent, bool is_whole) {
    enum { MOST_HASHES = 6, MOST_DIGITS = 9 };
    const char *text = m->held + indent;
    const size_t n = m->size - indent;
    size_t marks = 1;
    const bool is_hash = *text == '#', is_number = is_digit(*text);
    if (is_hash) marks = run_size(text, n);
    while (is_number && marks < n && is_digit(text[marks])) marks++;
    if (marks > (is_hash ? MOST_HASHES : MOST_DIGITS)) return (line_kind){.indent = indent};
    if (is_number && marks < n && text[marks] != '.' && text[marks] != ')')
        return (line_kind){.indent = indent};
    marks += is_number;
    if (marks < n && text[marks] == ' ')
        return (line_kind){.is_open = is_hash && !is_whole, // it is shown in one piece
                           .kind = is_hash ? HEADING : ITEM,
                           .indent = indent,
                           .size = indent + marks + 1};
    return (line_kind){.is_open = marks >= n && !is_whole, .indent = indent};
}

static line_kind look_at_line(const qn_markdown *m, bool is_whole) {
    size_t indent = 0;
    while (indent < m->size && m->held[indent] == ' ') indent++;
    const char first = indent < m->size ? m->held[indent] : 0;
    if (m->fence) return look_at_code(m, indent, is_whole);
    if (!first) return (line_kind){.is_open = !is_whole};
    if (first == '`' || first == '~') return look_at_fence(m, indent, is_whole);
    const bool is_mark_of_line = strchr("#-*+", first) || is_digit(first);
    if (m->is_styled && is_mark_of_line) return look_at_mark(m, indent, is_whole);
    return (line_kind){.indent = indent};
}

// A line that begins or ends a block of code. All lines between stay as they are.
static void show_fence(qn_markdown *m, size_t indent) {
    const bool begins = !m->fence;
    m->wrap->is_kept = true;
    show_styled(m, m->held, m->size, m->is_styled ? DIM : 0);
    m->fence = begins ? m->held[indent] : 0;
    m->n_fence = begins ? run_size(m->held + indent, m->size - indent) : 0;
    m->size = 0;
    m->where = QN_MARKDOWN_CODE;
}

static void show_item(qn_markdown *m, line_kind line) {
    static const char bullet[] = "\xe2\x80\xa2 ";
    const bool is_number = is_digit(m->held[line.indent]);
    show(m, m->held, is_number ? line.size : line.indent);
    if (!is_number) show(m, bullet, sizeof bullet - 1);
    drop_held(m, line.size);
    m->wrap->indent = (int)line.size;
}

// False: more of the line must come.
static bool begin_line(qn_markdown *m, bool is_whole) {
    const line_kind line = look_at_line(m, is_whole);
    if (line.is_open) return false;
    m->where = m->fence ? QN_MARKDOWN_CODE : QN_MARKDOWN_TEXT;
    if (m->is_styled && !m->fence) m->wrap->indent = (int)line.indent;
    if (line.kind == FENCE) {
        show_fence(m, line.indent);
    } else if (line.kind == HEADING) {
        drop_held(m, line.size);
        set_styles(m, BOLD);
        show_held(m, true);
        set_styles(m, 0);
    } else if (line.kind == ITEM) {
        show_item(m, line);
    }
    if (m->where == QN_MARKDOWN_CODE || !m->is_styled) {
        show(m, m->held, m->size);
        m->size = 0;
    }
    return true;
}

static void finish_line(qn_markdown *m) {
    if (m->where == QN_MARKDOWN_BEGIN) (void)begin_line(m, true);
    show_held(m, true);
}

static void end_line(qn_markdown *m) {
    finish_line(m);
    qn_wrap_add(m->wrap, "\n", 1);
    m->where = QN_MARKDOWN_BEGIN;
    m->before = 0;
    m->wrap->indent = 0;
    m->wrap->is_kept = m->fence;
}

// One character, in a line whose beginning is known.
static void add_inside(qn_markdown *m, const char *text, size_t n) {
    const bool is_text = m->where == QN_MARKDOWN_CODE || !m->is_styled;
    if (is_text || (m->size == 0 && !is_mark(*text))) {
        show(m, text, n);
        return;
    }
    if (m->size + n > sizeof m->held) show_held(m, true); // the partner is too far away
    memcpy(m->held + m->size, text, n);
    m->size += n;
    show_held(m, false);
}

static void add_character(qn_markdown *m, const char *text, size_t n) {
    if (*text == '\n') {
        end_line(m);
        return;
    }
    if (m->where == QN_MARKDOWN_BEGIN && m->size + n > sizeof m->held) (void)begin_line(m, true);
    if (m->where != QN_MARKDOWN_BEGIN) {
        add_inside(m, text, n);
        return;
    }
    memcpy(m->held + m->size, text, n);
    m->size += n;
    if (begin_line(m, false)) show_held(m, false);
}

void qn_markdown_init(qn_markdown *markdown, qn_line_wrap *wrap, bool is_styled) {
    *markdown = (qn_markdown){.wrap = wrap, .is_styled = is_styled && wrap->has_colour};
}

void qn_markdown_add(qn_markdown *m, const char *text, size_t size) {
    if (!m->wrap->is_terminal) {
        qn_wrap_add(m->wrap, text, size);
        return;
    }
    for (size_t i = 0, n; i < size; i += n) {
        n = qn_utf8_check(text + i, size - i);
        if (n == 0) n = 1; // a stray byte
        add_character(m, text + i, n);
    }
}

void qn_markdown_end(qn_markdown *m) {
    if (!m->wrap->is_terminal) return;
    finish_line(m);
    qn_markdown_init(m, m->wrap, m->is_styled);
    m->wrap->indent = 0;
    m->wrap->is_kept = false;
}
