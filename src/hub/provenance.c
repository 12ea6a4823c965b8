#include "hub/provenance.h"

#include "core/file.h"
#include "core/mem.h"
#include "hub/digest.h"
#include "hub/ledger.h"

#include <string.h>

qn_status qn_ledgers_visit(const char *path, const qn_places *places, qn_ledger_fn *fn, void *arg,
                           qn_err *err) {
    enum { LEVELS = 2 };
    const size_t n = places->models ? strlen(places->models) : 0;
    if (n == 0 || strncmp(path, places->models, n) != 0 || path[n] != '/') return QN_OK;
    const char *slash = strchr(path + n + 1, '/');
    for (int i = 0; i < LEVELS && slash; i++) {
        qn_ledger ledger;
        char *folder = strndup(path, (size_t)(slash - path));
        if (!folder) return QN_NOMEM(err, "a path");
        qn_status status = qn_ledger_open(&ledger, folder, err);
        qn_free(folder);
        if (status) return status;
        status = fn(arg, &ledger, slash + 1, err);
        qn_ledger_close(&ledger);
        if (status) return status;
        slash = strchr(slash + 1, '/');
    }
    return QN_OK;
}

// A mark is a sum, or else an etag. A qn_ledger_fn.
static qn_status take_row(void *arg, qn_ledger *ledger, const char *file, qn_err *err) {
    qn_provenance *o = arg;
    const json_t *row = qn_ledger_find(ledger, file);
    const char *from = json_string_value(json_object_get(row, "from"));
    const char *mark = json_string_value(json_object_get(row, "mark"));
    if (o->from || !from) return QN_OK;
    const bool is_sum = qn_digest_is(mark);
    o->from = strdup(from);
    o->sha256 = is_sum ? strdup(mark) : NULL;
    return o->from && (o->sha256 || !is_sum) ? QN_OK : QN_NOMEM(err, "an address");
}

// Of a checkpoint, its config.json is the file that has a row.
qn_status qn_provenance_read(qn_provenance *out, const qn_stocked *model, const qn_places *places,
                             qn_err *err) {
    qn_provenance origin = {0};
    char *file = model->is_folder ? qn_path_join(model->path, "config.json") : strdup(model->path);
    if (!file) return QN_NOMEM(err, "a path");
    const qn_status status = qn_ledgers_visit(file, places, take_row, &origin, err);
    qn_free(file);
    if (status)
        qn_provenance_deinit(&origin);
    else
        *out = origin;
    return status;
}

void qn_provenance_deinit(qn_provenance *origin) {
    qn_free(origin->from);
    qn_free(origin->sha256);
    *origin = (qn_provenance){0};
}
