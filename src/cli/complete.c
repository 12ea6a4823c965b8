#include "cli/complete.h"

#include "core/debug.h"
#include "core/mem.h"
#include "core/printable.h"
#include "core/utf8.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void qn_completion_add(qn_completion *to, const char *name, const char *typed, size_t n) {
    void *names = to->names;
    if (to->failed || strncmp(name, typed, n) != 0 || to->n > QN_MOST_CANDIDATES) return;
    char *copy = qn_grow(&names, &to->cap, to->n + 1, sizeof *to->names) ? strdup(name) : NULL;
    to->names = names;
    if (copy)
        to->names[to->n++] = copy;
    else
        to->failed = true;
}

void qn_completion_deinit(qn_completion *completion) {
    for (size_t i = 0; i < completion->n; i++) qn_free(completion->names[i]);
    qn_free(completion->names);
    *completion = (qn_completion){0};
}

// --- files ---------------------------------------------------------------------------------------

char qn_file_name_read(qn_buf *out, const char *text) {
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
    return quote;
}

// A name that can be typed and shown.
static bool is_plain(const char *name) {
    const size_t size = strlen(name);
    for (size_t i = 0, n; i < size; i += n) {
        uint32_t code;
        n = qn_utf8_decode(name + i, size - i, &code);
        if (n == 0 || qn_code_is_control(code) || qn_code_turns(code)) return false;
    }
    return true;
}

static bool is_folder(DIR *dir, const struct dirent *entry) {
    struct stat info;
    return fstatat(dirfd(dir), entry->d_name, &info, 0) == 0 && S_ISDIR(info.st_mode);
}

// Those of an open folder that begin so. Hidden ones only where a dot was typed.
static void add_folder(qn_completion *to, DIR *dir, const char *begin) {
    const size_t n = strlen(begin);
    qn_buf name = {0};
    for (const struct dirent *entry; (entry = readdir(dir)) && to->n <= QN_MOST_CANDIDATES;) {
        const char *own = entry->d_name;
        const bool is_dots = strcmp(own, ".") == 0 || strcmp(own, "..") == 0;
        const bool is_hidden = *own == '.' && *begin != '.';
        if (is_dots || is_hidden || strncmp(own, begin, n) != 0 || !is_plain(own)) continue;
        qn_buf_clear(&name);
        qn_buf_text(&name, own);
        if (is_folder(dir, entry)) qn_buf_text(&name, "/");
        if (!name.failed) qn_completion_add(to, name.data, begin, n);
    }
    to->failed |= name.failed;
    qn_buf_deinit(&name);
}

void qn_completion_add_files(qn_completion *to, const char *typed) {
    qn_buf path = {0};
    to->is_file = true;
    to->quote = qn_file_name_read(&path, typed);
    if (path.failed) {
        to->failed = true;
        qn_buf_deinit(&path);
        return;
    }
    char *slash = strrchr(path.data, '/');
    const char *begin = slash ? slash + 1 : path.data;
    to->n_typed = strlen(begin);
    char *folder = slash ? strndup(path.data, (size_t)(begin - path.data)) : strdup(".");
    DIR *dir = folder ? opendir(folder) : NULL;
    if (dir) {
        add_folder(to, dir, begin);
        closedir(dir);
    }
    to->failed |= !folder;
    qn_free(folder);
    qn_buf_deinit(&path);
}

// --- what follows --------------------------------------------------------------------------------

static int compare(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

// Bytes that all names begin with, whole characters.
static size_t common_size(const qn_completion *c) {
    const char *first = c->names[0], *last = c->names[c->n - 1]; // they are sorted
    size_t n = 0;
    while (first[n] && first[n] == last[n]) n++;
    return n - qn_utf8_incomplete_tail(first, n);
}

static void add_escaped(qn_buf *out, const qn_completion *c, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const bool is_quote = text[i] == '"' || (text[i] == '\'' && !c->quote);
        const bool is_special = c->is_file && c->quote != '\'' && (is_quote || text[i] == '\\');
        if (is_special) qn_buf_text(out, "\\");
        qn_buf_add(out, text + i, 1);
    }
}

void qn_completion_common(qn_buf *out, qn_completion *c) {
    qn_buf_add(out, "", 0);
    if (c->failed || c->n == 0 || c->n > QN_MOST_CANDIDATES) return;
    qsort(c->names, c->n, sizeof *c->names, compare);
    const size_t size = common_size(c);
    if (size > c->n_typed) add_escaped(out, c, c->names[0] + c->n_typed, size - c->n_typed);
    if (c->n > 1 || (c->is_file && size && c->names[0][size - 1] == '/')) return;
    if (c->quote) qn_buf_add(out, &c->quote, 1);
    if (c->goes_on) qn_buf_text(out, " ");
}
