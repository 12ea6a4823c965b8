// TLS: certificates that are made here, read again while connections are open, and wrong files.
#include "serve_rig.h"

#include <gnutls/x509.h>

typedef struct files {
    char folder[64], cert[96], key[96];
} files;

static void write_pem(const char *path, const gnutls_datum_t *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text->data, 1, text->size, file), text->size);
    assert_int_equal(fclose(file), 0);
}

#define OK(call) assert_int_equal(call, GNUTLS_E_SUCCESS)

// A certificate for "localhost", signed by itself, with this serial number; its key or another one.
static void make_cert(const files *f, unsigned char serial, bool has_own_key) {
    gnutls_x509_privkey_t key, other;
    gnutls_x509_crt_t crt;
    gnutls_datum_t text;
    OK(gnutls_x509_privkey_init(&key));
    OK(gnutls_x509_privkey_generate(key, GNUTLS_PK_ECDSA,
                                    GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1), 0));
    OK(gnutls_x509_privkey_init(&other));
    OK(gnutls_x509_privkey_generate(other, GNUTLS_PK_ECDSA,
                                    GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1), 0));
    OK(gnutls_x509_crt_init(&crt));
    OK(gnutls_x509_crt_set_version(crt, 3));
    OK(gnutls_x509_crt_set_serial(crt, &serial, 1));
    OK(gnutls_x509_crt_set_activation_time(crt, 0));
    OK(gnutls_x509_crt_set_expiration_time(crt, (time_t)4000000000));
    OK(gnutls_x509_crt_set_dn(crt, "CN=localhost", NULL));
    OK(gnutls_x509_crt_set_key(crt, key));
    OK(gnutls_x509_crt_sign2(crt, crt, key, GNUTLS_DIG_SHA256, 0));
    OK(gnutls_x509_crt_export2(crt, GNUTLS_X509_FMT_PEM, &text));
    write_pem(f->cert, &text);
    gnutls_free(text.data);
    OK(gnutls_x509_privkey_export2(has_own_key ? key : other, GNUTLS_X509_FMT_PEM, &text));
    write_pem(f->key, &text);
    gnutls_free(text.data);
    gnutls_x509_crt_deinit(crt);
    gnutls_x509_privkey_deinit(key);
    gnutls_x509_privkey_deinit(other);
}

static void make_files(files *f) {
    snprintf(f->folder, sizeof f->folder, "/tmp/quern_tls_XXXXXX");
    assert_non_null(mkdtemp(f->folder));
    snprintf(f->cert, sizeof f->cert, "%s/cert.pem", f->folder);
    snprintf(f->key, sizeof f->key, "%s/key.pem", f->folder);
}

static void remove_files(const files *f) {
    unlink(f->cert);
    unlink(f->key);
    rmdir(f->folder);
}

// --- a client ------------------------------------------------------------------------------------

typedef struct tls_client {
    gnutls_certificate_credentials_t trust;
    gnutls_session_t session;
    int fd;
} tls_client;

static void tls_connect(tls_client *c, const serve_rig *rig) {
    c->fd = serve_connect(rig);
    OK(gnutls_certificate_allocate_credentials(&c->trust));
    OK(gnutls_init(&c->session, GNUTLS_CLIENT));
    OK(gnutls_set_default_priority(c->session));
    OK(gnutls_credentials_set(c->session, GNUTLS_CRD_CERTIFICATE, c->trust));
    gnutls_transport_set_int(c->session, c->fd);
    int code;
    do {
        code = gnutls_handshake(c->session);
    } while (code < 0 && !gnutls_error_is_fatal(code));
    OK(code);
}

static void tls_close(tls_client *c) {
    gnutls_bye(c->session, GNUTLS_SHUT_WR);
    close(c->fd);
    gnutls_deinit(c->session);
    gnutls_certificate_free_credentials(c->trust);
}

// The number of the certificate that the server shows.
static int serial_of(const tls_client *c) {
    unsigned n = 0;
    const gnutls_datum_t *raw = gnutls_certificate_get_peers(c->session, &n);
    assert_true(raw && n == 1);
    gnutls_x509_crt_t crt;
    unsigned char serial[20];
    size_t size = sizeof serial;
    OK(gnutls_x509_crt_init(&crt));
    OK(gnutls_x509_crt_import(crt, raw, GNUTLS_X509_FMT_DER));
    OK(gnutls_x509_crt_get_serial(crt, serial, &size));
    gnutls_x509_crt_deinit(crt);
    assert_int_equal(size, 1);
    return serial[0];
}

// GET /health on an open connection; true: it is fine.
static bool is_healthy(const tls_client *c) {
    static const char request[] = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    qn_buf raw = {0};
    char byte;
    ssize_t n = gnutls_record_send(c->session, request, sizeof request - 1);
    assert_int_equal(n, sizeof request - 1);
    while (!raw.data || !strstr(raw.data, "{\"status\":\"ok\"}")) {
        n = gnutls_record_recv(c->session, &byte, 1);
        if (n == GNUTLS_E_AGAIN || n == GNUTLS_E_INTERRUPTED) continue;
        if (n != 1) break;
        qn_buf_add(&raw, &byte, 1);
    }
    const bool is_fine = raw.data && strncmp(raw.data, "HTTP/1.1 200", 12) == 0 && n == 1;
    qn_buf_deinit(&raw);
    return is_fine;
}

static int64_t serial_now(const serve_rig *rig) {
    tls_client c;
    tls_connect(&c, rig);
    const int serial = serial_of(&c);
    tls_close(&c);
    return serial;
}

// --- tests ---------------------------------------------------------------------------------------

static void a_certificate_is_read_again(void **state) {
    files f;
    serve_rig rig;
    tls_client old;
    (void)state;
    make_files(&f);
    make_cert(&f, 7, true);
    const qn_server_opts opts = {.tls_cert = f.cert, .tls_key = f.key};
    serve_start(&rig, &opts);
    tls_connect(&old, &rig);
    assert_int_equal(serial_of(&old), 7);
    assert_true(is_healthy(&old));
    make_cert(&f, 8, true);
    assert_int_equal(serial_now(&rig), 7); // until it is told
    qn_server_reload(rig.server);
    serve_wait(&rig, serial_now, 8);
    assert_true(is_healthy(&old)); // the connection has lived through it
    make_cert(&f, 9, false);
    qn_err err;
    assert_int_equal(qn_tls_reload(&rig.server->tls, &err), QN_FORMAT);
    assert_non_null(strstr(err.message, "is not the key of the certificate"));
    assert_int_equal(serial_now(&rig), 8);
    tls_close(&old);
    serve_stop(&rig);
    remove_files(&f);
}

static void expect_failure(const files *f, qn_status want, const char *part, const char *path) {
    const qn_server_opts opts = {.tls_cert = f->cert,
                                 .tls_key = f->key,
                                 .model = MODELS "/quern-mini-Q8_0.gguf",
                                 .open = rig_open,
                                 .generate = QN_INIT(qn_generate_opts)};
    qn_server *server = NULL;
    qn_err err;
    assert_int_equal(qn_server_create(&server, &opts, &err), want);
    if (!strstr(err.message, part) || !strstr(err.message, path))
        fail_msg("'%s' does not contain '%s' and '%s'", err.message, part, path);
}

static void wrong_files_are_named(void **state) {
    const gnutls_datum_t garbage = {(unsigned char *)"-----BEGIN CERTIFICATE-----\nxx\n", 31};
    files f;
    (void)state;
    make_files(&f);
    expect_failure(&f, QN_IO, "No such file", f.cert);
    make_cert(&f, 1, false);
    expect_failure(&f, QN_FORMAT, "is not the key of", f.key);
    write_pem(f.key, &garbage);
    expect_failure(&f, QN_FORMAT, "not a private key", f.key);
    write_pem(f.cert, &garbage);
    expect_failure(&f, QN_FORMAT, "not a certificate chain", f.cert);
    remove_files(&f);
}

// Who speaks no TLS, or nothing, is dropped.
static void plain_requests_get_nothing(void **state) {
    files f;
    serve_rig rig;
    (void)state;
    make_files(&f);
    make_cert(&f, 7, true);
    const qn_server_opts opts = {.tls_cert = f.cert, .tls_key = f.key, .limits = {.idle_ms = 1}};
    serve_start(&rig, &opts);
    const int silent = serve_connect(&rig);
    http_answer a = http_get(&rig, "/health");
    assert_int_equal(a.status, 0);
    http_deinit(&a);
    // It ends, and what comes before the end is an alert of TLS that says so, or nothing.
    enum { ALERT = 21, ALERT_BYTES = 7 };
    unsigned char bytes[64];
    size_t n_read = 0;
    ssize_t n;
    while (n_read < sizeof bytes &&
           (n = recv(silent, bytes + n_read, sizeof bytes - n_read, 0)) > 0)
        n_read += (size_t)n;
    assert_true(n_read == 0 || (n_read == ALERT_BYTES && bytes[0] == ALERT));
    close(silent);
    serve_wait(&rig, serve_links, 0);
    serve_stop(&rig);
    remove_files(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_certificate_is_read_again),
        cmocka_unit_test(wrong_files_are_named),
        cmocka_unit_test(plain_requests_get_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
