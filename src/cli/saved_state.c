#include "cli/saved_state.h"

#include "cli/terminal.h"

#include "core/file.h"
#include "core/mem.h"
#include "core/newfile.h"

#include <stdio.h>
#include <string.h>

static const qn_newfile_kind kind = {
    .name = "the state of a session of quern", .marks = {"QNSTATE\n"}, .is_private = true};

// NULL: no memory. Release with qn_free.
static char *state_path(const char *session) {
    const size_t n = strlen(session) + sizeof ".state";
    char *path = qn_alloc(n, 1);
    if (path) snprintf(path, n, "%s.state", session);
    return path;
}

static int64_t read_file(void *arg, void *to, size_t n, int64_t at) {
    return qn_file_read(arg, at, to, n, NULL) ? -1 : (int64_t)n;
}

static qn_status load(qn_talk *t, const char *path, qn_err *err) {
    qn_file file;
    QN_TRY(qn_file_open(&file, path, err));
    const qn_status status = qn_session_load(t->session, read_file, &file, file.size, err);
    qn_file_close(&file);
    return status;
}

qn_status qn_saved_state_read(qn_talk *t, const char *session, qn_err *err) {
    qn_err why = {0};
    char *path = state_path(session);
    if (!path) return QN_NOMEM(err, "a path");
    const qn_status status = qn_path_is_file(path) ? load(t, path, &why) : QN_OK;
    if (status && status != QN_MEMORY)
        qn_print_line("quern: warning: %s: %s; the conversation is computed again", path,
                      why.message);
    qn_free(path);
    if (status == QN_MEMORY && err) *err = why;
    return status == QN_MEMORY ? status : QN_OK;
}

static qn_status has_recurrent_state(bool *out, const qn_talk *t, qn_err *err) {
    qn_engine_info info = QN_INIT(qn_engine_info);
    QN_TRY(qn_engine_get_info(&info, t->loaded.engine, err));
    *out = false;
    for (int64_t i = 0; i < info.n_layers && !*out; i++) {
        qn_layer_info layer = QN_INIT(qn_layer_info);
        QN_TRY(qn_session_layer_info(&layer, t->session, i, err));
        *out = layer.n_states > 0;
    }
    return QN_OK;
}

// A recurrent state cannot be cut where the next prompt departs from this answer, as it does where
// the template leaves out earlier reasoning: what is saved ends before the answer.
static qn_status leave_answer_out(const qn_talk *t, qn_err *err) {
    bool is_recurrent;
    const float *logits;
    if (t->n_mark == 0) return QN_OK;
    QN_TRY(has_recurrent_state(&is_recurrent, t, err));
    if (!is_recurrent) return QN_OK;
    QN_TRY(qn_session_truncate(t->session, t->n_mark, err));
    return qn_session_prefill(&logits, t->session, NULL, 0, err); // from where it was kept
}

qn_status qn_saved_state_check(const char *session, qn_err *err) {
    char *path = state_path(session);
    if (!path) return QN_NOMEM(err, "a path");
    const qn_status status = qn_newfile_check(path, &kind, err);
    qn_free(path);
    return status;
}

typedef struct writing {
    qn_newfile *file;
    qn_err why;
    qn_status status;
} writing;

static bool write_file(void *arg, const void *data, size_t n) {
    writing *w = arg;
    w->status = qn_newfile_write(w->file, data, n, &w->why);
    return w->status == QN_OK;
}

qn_status qn_saved_state_write(const qn_talk *t, const char *session, qn_err *err) {
    writing w = {0};
    qn_status status = QN_OK;
    char *path = state_path(session);
    if (!path) return QN_NOMEM(err, "a path");
    QN_TRY_TO(done, leave_answer_out(t, err));
    QN_TRY_TO(done, qn_newfile_check(path, &kind, err));
    QN_TRY_TO(done, qn_newfile_create(&w.file, path, QN_NEWFILE_PRIVATE, err));
    status = qn_session_save(t->session, write_file, &w, err);
    if (w.status) {
        status = w.status;
        if (err) *err = w.why;
    }
    if (!status) status = qn_newfile_commit(w.file, err);

done:
    qn_newfile_destroy(w.file);
    qn_free(path);
    return status;
}
