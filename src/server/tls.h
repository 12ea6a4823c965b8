// Certificate and key of the server.
#ifndef QN_SERVER_TLS_H
#define QN_SERVER_TLS_H

#include "core/err.h"

typedef struct qn_server_opts qn_server_opts;

typedef struct qn_tls {
    char *cert, *key; // owned: PEM; NULL: none
} qn_tls;

// Nothing where the options name no certificate.
QN_MUST_CHECK qn_status qn_tls_read(qn_tls *out, const qn_server_opts *opts, qn_err *err);
void qn_tls_deinit(qn_tls *tls);

#endif
