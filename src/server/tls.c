#include "server/tls.h"

#include "core/file.h"
#include "core/mem.h"
#include "server/server.h"

#include <gnutls/x509.h>
#include <string.h>

enum { MAX_PEM = 1 << 20, MAX_CERTS = 16, KEY_ID = 64 };

// A certificate, those that signed it, and its key. Handshakes that began with one may still use it
// after another was read, so all stay: they change a few times a year.
struct qn_chain {
    char *cert, *key; // as they were in the files
    gnutls_pcert_st certs[MAX_CERTS];
    unsigned n_certs;
    gnutls_privkey_t private;
    qn_chain *next;
};

static void destroy(qn_chain *c) {
    if (!c) return;
    for (unsigned i = 0; i < c->n_certs; i++) gnutls_pcert_deinit(&c->certs[i]);
    if (c->private) gnutls_privkey_deinit(c->private);
    qn_free(c->cert);
    qn_free(c->key);
    qn_free(c);
}

// --- reading -------------------------------------------------------------------------------------

static qn_status fail(const char *path, const char *what, int code, qn_err *err) {
    if (code == GNUTLS_E_MEMORY_ERROR) return QN_NOMEM(err, what);
    return QN_FAIL(err, FORMAT, "%s: not %s in PEM: %s", path, what, gnutls_strerror(code));
}

static qn_status read_certs(qn_chain *c, const char *path, qn_err *err) {
    const gnutls_datum_t text = {(unsigned char *)c->cert, (unsigned)strlen(c->cert)};
    gnutls_x509_crt_t certs[MAX_CERTS];
    unsigned n = MAX_CERTS, n_shown = MAX_CERTS;
    int code = gnutls_x509_crt_list_import(certs, &n, &text, GNUTLS_X509_FMT_PEM,
                                           GNUTLS_X509_CRT_LIST_IMPORT_FAIL_IF_EXCEED);
    if (code < 0) return fail(path, "a certificate chain", code, err);
    n_shown = n;
    code = gnutls_pcert_import_x509_list(c->certs, certs, &n_shown, GNUTLS_X509_CRT_LIST_SORT);
    for (unsigned i = 0; i < n; i++) gnutls_x509_crt_deinit(certs[i]);
    if (code < 0) return fail(path, "a certificate chain", code, err);
    c->n_certs = n_shown;
    return QN_OK;
}

static qn_status read_key(qn_chain *c, const char *path, qn_err *err) {
    const gnutls_datum_t text = {(unsigned char *)c->key, (unsigned)strlen(c->key)};
    int code = gnutls_privkey_init(&c->private);
    if (!code)
        code = gnutls_privkey_import_x509_raw(c->private, &text, GNUTLS_X509_FMT_PEM, NULL, 0);
    return code < 0 ? fail(path, "a private key", code, err) : QN_OK;
}

static qn_status check_pair(const qn_chain *c, const qn_server_opts *o, qn_err *err) {
    unsigned char shown[KEY_ID], own[KEY_ID];
    size_t n_shown = sizeof shown, n_own = sizeof own;
    gnutls_pubkey_t public;
    int code = gnutls_pubkey_init(&public);
    if (code < 0) return fail(o->tls_key, "a private key", code, err);
    code = gnutls_pubkey_import_privkey(public, c->private, 0, 0);
    if (!code) code = gnutls_pubkey_get_key_id(public, 0, own, &n_own);
    if (!code) code = gnutls_pubkey_get_key_id(c->certs[0].pubkey, 0, shown, &n_shown);
    gnutls_pubkey_deinit(public);
    if (code < 0) return fail(o->tls_key, "a private key", code, err);
    if (n_own != n_shown || memcmp(own, shown, n_own) != 0)
        return QN_FAIL(err, FORMAT, "%s is not the key of the certificate in %s", o->tls_key,
                       o->tls_cert);
    return QN_OK;
}

static qn_status read_chain(qn_chain *c, const qn_server_opts *o, qn_err *err) {
    size_t size;
    QN_TRY(qn_file_load(&c->cert, &size, o->tls_cert, MAX_PEM, err));
    QN_TRY(qn_file_load(&c->key, &size, o->tls_key, MAX_PEM, err));
    QN_TRY(read_certs(c, o->tls_cert, err));
    QN_TRY(read_key(c, o->tls_key, err));
    return check_pair(c, o, err);
}

// --- life ----------------------------------------------------------------------------------------

static bool is_same(const qn_chain *a, const qn_chain *b) {
    return a && strcmp(a->cert, b->cert) == 0 && strcmp(a->key, b->key) == 0;
}

qn_status qn_tls_reload(qn_tls *tls, qn_err *err) {
    if (!qn_tls_is_on(tls)) return QN_OK;
    qn_chain *chain = qn_alloc(1, sizeof *chain);
    if (!chain) return QN_NOMEM(err, "a certificate");
    const qn_status status = read_chain(chain, tls->opts, err);
    if (status) {
        destroy(chain);
        return status;
    }
    pthread_mutex_lock(&tls->lock);
    const bool is_new = !is_same(tls->chains, chain);
    if (is_new) {
        chain->next = tls->chains;
        tls->chains = chain;
    }
    pthread_mutex_unlock(&tls->lock);
    if (!is_new) destroy(chain);
    return QN_OK;
}

qn_status qn_tls_init(qn_tls *tls, const qn_server_opts *opts, qn_err *err) {
    *tls = (qn_tls){0};
    if (!opts->tls_cert || !opts->tls_key) return QN_OK;
    if (pthread_mutex_init(&tls->lock, NULL) != 0) return QN_NOMEM(err, "a lock");
    tls->opts = opts;
    const qn_status status = qn_tls_reload(tls, err);
    if (status) qn_tls_deinit(tls);
    return status;
}

void qn_tls_deinit(qn_tls *tls) {
    if (!tls->opts) return;
    while (tls->chains) {
        qn_chain *next = tls->chains->next;
        destroy(tls->chains);
        tls->chains = next;
    }
    pthread_mutex_destroy(&tls->lock);
    *tls = (qn_tls){0};
}

bool qn_tls_is_on(const qn_tls *tls) { return tls->opts != NULL; }

void qn_tls_show(qn_tls *tls, gnutls_pcert_st **certs, unsigned *n, gnutls_privkey_t *key) {
    pthread_mutex_lock(&tls->lock);
    *certs = tls->chains->certs;
    *n = tls->chains->n_certs;
    *key = tls->chains->private;
    pthread_mutex_unlock(&tls->lock);
}
