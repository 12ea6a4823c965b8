#include "cli/history.h"

#include "core/buf.h"
#include "core/debug.h"
#include "core/file.h"
#include "core/mem.h"
#include "core/newfile.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// Bytes of an entry as it is written; of the file that are read; and from where on it is cut.
enum { MOST_ENTRY = 1 << 16, MOST_READ = 16 << 20, MOST_KEPT = 2 << 20 };

struct qn_history {
    char *path;     // owned
    char **entries; // (n) owned
    size_t n, cap;
    char *last; // that was added; owned
};

// --- entries as lines ----------------------------------------------------------------------------

// A newline is \n, and a backslash \\; other control characters but tabs are left out.
static void write_line(qn_buf *to, const char *text) {
    for (; *text; text++) {
        if (*text == '\n' || *text == '\\')
            qn_buf_text(to, *text == '\n' ? "\\n" : "\\\\");
        else if ((unsigned char)*text >= ' ' || *text == '\t')
            qn_buf_add(to, text, 1);
    }
    qn_buf_text(to, "\n");
}

static void read_line(qn_buf *to, const char *line, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const bool is_escaped = line[i] == '\\' && i + 1 < n;
        if (is_escaped) i++;
        const bool is_text = (unsigned char)line[i] >= ' ' || line[i] == '\t';
        if (is_escaped && line[i] == 'n')
            qn_buf_text(to, "\n");
        else if (is_text)
            qn_buf_add(to, &line[i], 1);
    }
}

static qn_status keep_entry(qn_history *h, const char *line, size_t n, qn_err *err) {
    qn_buf text = {0};
    void *entries = h->entries;
    qn_buf_add(&text, "", 0);
    read_line(&text, line, n);
    char *entry = NULL;
    QN_TRY(qn_buf_take(&entry, &text, err));
    if (!qn_grow(&entries, &h->cap, h->n + 1, sizeof *h->entries)) {
        qn_free(entry);
        return QN_NOMEM(err, "history");
    }
    h->entries = entries;
    h->entries[h->n++] = entry;
    return QN_OK;
}

// The beginning of the last lines of a text, QN_MOST_REMEMBERED of them.
static const char *find_last_lines(const char *text, size_t size) {
    const char *at = text + size;
    for (size_t n = 0; at > text; at--)
        if (at[-1] == '\n' && n++ == QN_MOST_REMEMBERED) break;
    return at;
}

// Longer ones than are written here are not ours, and an editor of lines is slow with them.
static qn_status read_entries(qn_history *h, const char *from, const char *end, qn_err *err) {
    for (const char *stop; from < end; from = stop + 1) {
        stop = memchr(from, '\n', (size_t)(end - from));
        if (!stop) stop = end; // a line that was cut off
        const size_t n = (size_t)(stop - from);
        if (n > 0 && n < MOST_ENTRY) QN_TRY(keep_entry(h, from, n, err));
    }
    return QN_OK;
}

// --- the file ------------------------------------------------------------------------------------

// Only a file of this user, which nobody else can read. -1: none; errno says why.
static int open_file(const char *path, int flags) {
    enum { PRIVATE = S_IRUSR | S_IWUSR };
    struct stat info;
    const int fd = open(path, flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, PRIVATE);
    if (fd < 0) return -1;
    const bool is_there = fstat(fd, &info) == 0;
    const bool is_own = is_there && S_ISREG(info.st_mode) && info.st_uid == geteuid();
    const bool is_private =
        is_own && ((info.st_mode & (S_IRWXG | S_IRWXO)) == 0 || fchmod(fd, PRIVATE) == 0);
    if (is_private) return fd;
    if (is_there && !is_own) errno = EPERM;
    close(fd);
    return -1;
}

// Puts the last entries in the place of a file that has become long. What another conversation
// appends in that moment may be lost.
static qn_status cut_file(const qn_history *h, const char *from, const char *end, qn_err *err) {
    qn_newfile *file = NULL;
    QN_TRY(qn_newfile_create(&file, h->path, QN_NEWFILE_PRIVATE, err));
    qn_status status = qn_newfile_write(file, from, (size_t)(end - from), err);
    if (!status) status = qn_newfile_commit(file, err);
    qn_newfile_destroy(file);
    return status;
}

static qn_status read_file(qn_history *h, qn_err *err) {
    char *text = NULL;
    size_t size;
    if (access(h->path, F_OK) != 0 && errno == ENOENT) return QN_OK;
    QN_TRY(qn_file_load(&text, &size, h->path, MOST_READ, err));
    const char *from = find_last_lines(text, size), *end = text + size;
    qn_status status = read_entries(h, from, end, err);
    if (!status && size > MOST_KEPT) status = cut_file(h, from, end, err);
    qn_free(text);
    return status;
}

// Owned; NULL: memory was short, or there is no place (*has_place is false).
static char *make_path(bool *has_place) {
    const qn_surroundings around = qn_surroundings_read();
    const char *state = around.state_home && *around.state_home == '/' ? around.state_home : NULL;
    *has_place = state || around.home;
    if (!*has_place) return NULL;
    char *base = state ? strdup(state) : qn_path_join(around.home, ".local/state");
    char *folder = base ? qn_path_join(base, "quern") : NULL;
    char *path = folder ? qn_path_join(folder, "history") : NULL;
    if (path) (void)qn_path_make_folders(folder, true); // without it the file cannot be opened
    qn_free(base);
    qn_free(folder);
    return path;
}

qn_status qn_history_open(qn_history **out, qn_err *err) {
    bool has_place;
    char *path = make_path(&has_place);
    *out = NULL;
    if (!has_place) return QN_OK;
    qn_history *h = path ? qn_alloc(1, sizeof *h) : NULL;
    if (!h) {
        qn_free(path);
        return QN_NOMEM(err, "history");
    }
    h->path = path;
    const qn_status status = read_file(h, err);
    if (status)
        qn_history_close(h);
    else
        *out = h;
    return status;
}

void qn_history_close(qn_history *h) {
    if (!h) return;
    for (size_t i = 0; i < h->n; i++) qn_free(h->entries[i]);
    qn_free(h->entries);
    qn_free(h->last);
    qn_free(h->path);
    qn_free(h);
}

const char *qn_history_entry(const qn_history *h, size_t i) {
    return i < h->n ? h->entries[i] : NULL;
}

// In one piece: several conversations may write to it.
static qn_status append(const qn_history *h, const qn_buf *line, qn_err *err) {
    const int fd = open_file(h->path, O_WRONLY | O_APPEND | O_CREAT);
    const bool is_written = fd >= 0 && write(fd, line->data, line->size) == (ssize_t)line->size;
    const int why = errno;
    if (fd >= 0) close(fd);
    return is_written ? QN_OK : QN_FAIL(err, IO, "%s: cannot write: %s", h->path, strerror(why));
}

qn_status qn_history_add(qn_history *h, const char *text, qn_err *err) {
    const char *before = h->last ? h->last : h->n ? h->entries[h->n - 1] : "";
    if (strcmp(before, text) == 0 || !*text) return QN_OK;
    qn_buf line = {.max = MOST_ENTRY};
    write_line(&line, text);
    char *last = strdup(text);
    qn_status status = QN_OK;
    if (line.failed && !line.is_over) status = QN_NOMEM(err, "history");
    if (!line.failed) status = append(h, &line, err);
    qn_buf_deinit(&line);
    qn_free(h->last);
    h->last = last;
    return status;
}
