// Who may ask: keys, the names that this server is called by, and pages of other servers.
//
// A browser sends requests for any page that is open in it. So that a page of somebody else cannot
// use this server, a request's Host must be an address or a name of ours (a name that was made to
// point here, DNS rebinding, is not), and its Origin, where it has one, must be the server itself
// or on the list.
#ifndef QN_SERVER_GUARD_H
#define QN_SERVER_GUARD_H

#include "core/err.h"

#include <pthread.h>

typedef struct qn_server_opts qn_server_opts;

// Caller storage.
typedef struct qn_guard {
    const qn_server_opts *opts; // borrowed
    pthread_rwlock_t lock;      // of the keys
    char **keys;                // (n_keys), owned
    size_t n_keys;
    char machine[256]; // its own name
} qn_guard;

enum { QN_HOST_NAME = 256 }; // bytes of a host's name, with the NUL
// Whether a value of --allow-host is a name, and one of --cors-origin is what a browser sends as
// Origin, "null" or "*".
QN_MUST_CHECK qn_status qn_host_check(const char *name, qn_err *err);
QN_MUST_CHECK qn_status qn_origin_check(const char *origin, qn_err *err);

// After a failure there is nothing to release. QN_ARGUMENT: a key of the options is blank, a host
// or an origin is none.
QN_MUST_CHECK qn_status qn_guard_init(qn_guard *guard, const qn_server_opts *opts, qn_err *err);
void qn_guard_deinit(qn_guard *guard);
// Reads the key file again; after a failure the keys are as they were.
QN_MUST_CHECK qn_status qn_guard_reload(qn_guard *guard, qn_err *err);
bool qn_guard_has_keys(qn_guard *guard);

// What a request shows; NULL: it does not.
typedef struct qn_credentials {
    const char *host, *origin;
    const char *authorization, *x_api_key;
    bool is_tls;
} qn_credentials;

// QN_ARGUMENT: not from here (403).
QN_MUST_CHECK qn_status qn_guard_check_place(const qn_guard *guard, const qn_credentials *shown,
                                             qn_err *err);
// Takes as long for a wrong key as for a right one. QN_ARGUMENT: no (401).
QN_MUST_CHECK qn_status qn_guard_check_key(qn_guard *guard, const qn_credentials *shown,
                                           qn_err *err);
// Whether pages of this origin may read answers.
bool qn_guard_is_listed(const qn_guard *guard, const char *origin);
// Loopback: an address that only this machine reaches.
bool qn_host_is_local(const char *host);

#endif
