#include "hub/ledger.h"

#include "core/file.h"
#include "core/mem.h"
#include "core/newfile.h"

#include <string.h>
#include <unistd.h>

enum { MAX_BYTES = 4 << 20 };

static const char files[] = "files";

qn_status qn_ledger_open(qn_ledger *out, const char *folder, qn_err *err) {
    char *text;
    size_t size;
    qn_ledger r = {.path = qn_path_join(folder, ".quern-pull.json")};
    if (!r.path) return QN_NOMEM(err, "a path");
    qn_status status = qn_file_load(&text, &size, r.path, MAX_BYTES, NULL);
    if (!status) {
        status = qn_json_parse(&r.all, text, size, false, r.path, NULL);
        qn_free(text);
        if (status) r.all = NULL;
    }
    if (status == QN_MEMORY) {
        qn_ledger_close(&r);
        return QN_NOMEM(err, "a ledger");
    }
    if (!json_is_object(json_object_get(r.all, files))) {
        json_decref(r.all);
        r.all = json_object();
        qn_json_put(&r.all, files, json_object());
    }
    if (!r.all) {
        qn_ledger_close(&r);
        return QN_NOMEM(err, "a ledger");
    }
    *out = r;
    return QN_OK;
}

const json_t *qn_ledger_find(const qn_ledger *ledger, const char *file) {
    return json_object_get(json_object_get(ledger->all, files), file);
}

static qn_status write_ledger(const qn_ledger *r, qn_err *err) {
    qn_newfile *file = NULL;
    char *text = NULL;
    qn_status status = qn_json_print(&text, r->all, &(qn_json_form){.indent = 1}, r->path, err);
    if (!status) status = qn_newfile_create(&file, r->path, 0, err);
    if (!status) status = qn_newfile_write(file, text, strlen(text), err);
    if (!status) status = qn_newfile_commit(file, err);
    qn_newfile_destroy(file);
    qn_free(text);
    return status;
}

qn_status qn_ledger_set(qn_ledger *ledger, const char *file, json_t *row, qn_err *err) {
    json_t *list = json_object_get(ledger->all, files);
    if (row && json_object_set_new(list, file, row) != 0) return QN_NOMEM(err, "a ledger");
    if (!row) (void)json_object_del(list, file);
    if (json_object_size(list) > 0) return write_ledger(ledger, err);
    (void)unlink(ledger->path);
    return QN_OK;
}

void qn_ledger_close(qn_ledger *ledger) {
    json_decref(ledger->all);
    qn_free(ledger->path);
    *ledger = (qn_ledger){0};
}
