// HTTP as the hub speaks it, on libcurl.
//
// Whatever answers is hostile: bodies have a limit, redirections are followed here, a few and to
// http and https alone, never from https to http, and the token is shown to the hub's own address
// and nobody else.
#ifndef QN_HUB_WEB_H
#define QN_HUB_WEB_H

#include "core/buf.h"

#include <curl/curl.h>

typedef struct qn_web_opts {
    const char *endpoint; // whom the token is for, borrowed
    const char *token;    // borrowed; NULL: none
    // Called many times a second while something is waited for, with nothing done of nothing; false
    // stops. NULL: nothing is called.
    qn_progress_fn *wait;
    void *wait_arg;
} qn_web_opts;

typedef struct qn_web qn_web;
// Before other threads use the network: the fetching library prepares itself.
QN_MUST_CHECK qn_status qn_web_open(qn_web **out, const qn_web_opts *opts, qn_err *err);
void qn_web_close(qn_web *web);
const qn_web_opts *qn_web_get_opts(const qn_web *web);

enum { QN_SHA256_TEXT = 65, QN_ETAG = 128 };

// What an answer says before its body. -1: it does not say.
typedef struct qn_web_head {
    long status;
    int64_t length;              // Content-Length
    int64_t first, last, total;  // Content-Range
    int64_t wait;                // Retry-After, seconds
    char etag[QN_ETAG];          // of this very content; "": none
    char sha256[QN_SHA256_TEXT]; // of the content, as the hub says it; "": not said
    char type[64];               // Content-Type
    char *location, *next;       // owned: a redirection; the next page of a list. NULL: none
} qn_web_head;

typedef struct qn_web_reply {
    qn_web_head head;
    qn_buf body;
    char *url;                   // owned: who answered, after redirections
    char sha256[QN_SHA256_TEXT]; // as one of those on the way said it; "": none did
} qn_web_reply;

typedef struct qn_web_want {
    int64_t n_bytes; // only the first ones, where the server can do that; 0: all
    size_t
        max; // bytes of the body that are taken; more are QN_LIMIT, or left where n_bytes is given
} qn_web_want;

// One request and its redirections. Any status but a redirection is an answer. Release *out with
// qn_web_reply_deinit.
QN_MUST_CHECK qn_status qn_web_get(qn_web_reply *out, const qn_web *web, const char *url,
                                   const qn_web_want *want, qn_err *err);
void qn_web_reply_deinit(qn_web_reply *reply);

// One request of several at a time, for curl_multi. Caller storage, which must stay where it is.
typedef struct qn_web_call {
    CURL *curl;
    struct curl_slist *headers; // owned
    qn_web_head head;
    char why[CURL_ERROR_SIZE];
} qn_web_call;

typedef struct qn_web_part {
    int64_t first, last;  // bytes; first -1: the whole file
    const char *if_range; // the etag that it must still have; NULL: any
    curl_write_callback take;
    void *arg;
} qn_web_part;
// *out is set up and not started; redirections are not followed.
QN_MUST_CHECK qn_status qn_web_call_init(qn_web_call *out, const qn_web *web, const char *url,
                                         const qn_web_part *part, qn_err *err);
void qn_web_call_deinit(qn_web_call *call);

// The address without what may be a secret: a user and a password, and what follows a '?'.
void qn_web_public(qn_buf *to, const char *url);
// The same, cut where it is long.
void qn_web_shown(char out[200], const char *url);
// The error of a status that is not the wanted one; `what` was asked for, at `url`.
qn_status qn_web_refused(const qn_web_head *head, const char *what, const char *url, qn_err *err);

#endif
