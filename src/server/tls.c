#include "server/tls.h"

#include "core/file.h"
#include "server/server.h"

enum { MAX_PEM = 1 << 20 };

qn_status qn_tls_read(qn_tls *out, const qn_server_opts *opts, qn_err *err) {
    size_t size;
    qn_tls tls = {0};
    if (!opts->tls_cert) return QN_OK;
    qn_status status = qn_file_load(&tls.cert, &size, opts->tls_cert, MAX_PEM, err);
    if (!status) status = qn_file_load(&tls.key, &size, opts->tls_key, MAX_PEM, err);
    if (status)
        qn_tls_deinit(&tls);
    else
        *out = tls;
    return status;
}

void qn_tls_deinit(qn_tls *tls) {
    qn_free(tls->cert);
    qn_free(tls->key);
    *tls = (qn_tls){0};
}
