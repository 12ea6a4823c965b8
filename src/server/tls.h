// Certificate and key of the server, which may be read again while it runs.
#ifndef QN_SERVER_TLS_H
#define QN_SERVER_TLS_H

#include "core/err.h"

#include <gnutls/abstract.h>
#include <pthread.h>

typedef struct qn_server_opts qn_server_opts;
typedef struct qn_chain qn_chain;

// Caller storage, `{0}` before qn_tls_init.
typedef struct qn_tls {
    const qn_server_opts *opts; // borrowed
    pthread_mutex_t lock;
    qn_chain *chains; // owned: those that were read, the one in use first
} qn_tls;

// Nothing where the options name no certificate.
QN_MUST_CHECK qn_status qn_tls_init(qn_tls *tls, const qn_server_opts *opts, qn_err *err);
// After the HTTP library has stopped.
void qn_tls_deinit(qn_tls *tls);
bool qn_tls_is_on(const qn_tls *tls);
// Reads both files again, for connections that begin after this; after a failure all is as it was.
QN_MUST_CHECK qn_status qn_tls_reload(qn_tls *tls, qn_err *err);

// What a handshake shows; valid as long as *tls.
void qn_tls_show(qn_tls *tls, gnutls_pcert_st **certs, unsigned *n, gnutls_privkey_t *key);

#endif
