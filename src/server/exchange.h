// One HTTP request and the answer to it, between the threads of the HTTP library and ours.
//
//   reading    the HTTP library's thread collects the body
//   working    the connection is suspended; a worker has the exchange, and answers it:
//                qn_exchange_reply     a whole body, or
//                qn_exchange_begin, _write ..., _end    a stream, from any thread
//   answering  the HTTP library's thread sends what there is, and suspends the connection again
//              when there is nothing
//
// A writer never waits: bytes are kept up to a limit, and a client that reads slower than that is
// dropped. An exchange has two owners, the HTTP side and whoever answers; the last one to leave
// releases it.
#ifndef QN_SERVER_EXCHANGE_H
#define QN_SERVER_EXCHANGE_H

#include "core/buf.h"
#include "core/err.h"
#include "core/str.h"

#include <pthread.h>
#include <stdatomic.h>

struct MHD_Connection;
struct qn_route;
typedef struct qn_server qn_server;

typedef enum qn_phase { QN_READING, QN_WORKING, QN_ANSWERING, QN_ENDED } qn_phase;

// A header of the answer, copied.
typedef struct qn_header {
    char name[32];
    char value[256];
} qn_header;
enum {
    QN_MAX_HEADERS = 6,
    QN_MAX_REASON = 192 // bytes of an error that are logged: errors may quote the request
};

typedef struct qn_exchange {
    qn_server *server;
    const struct qn_route *route; // NULL: there is none for this path
    char id[32];                  // of the request, for logs and clients: "req_..."
    char method[8];
    char *path;           // owned, without the query
    char *model;          // owned: value of "model" in the query; NULL: none
    char *tag;            // owned: value of "If-None-Match"; NULL: none
    char *wants;          // owned: value of "X-Request-Id", checked; NULL: none
    bool takes_gzip;      // by "Accept-Encoding"
    bool is_anthropic;    // it has a header "Anthropic-Version"
    qn_buf body;          // as it came
    atomic_size_t n_read; // bytes of the body so far, also of one that is not kept
    size_t n_held;        // of these, bytes that count for the server's limit
    size_t n_untaken;     // bytes of an answer in one piece that count for the server's limit
    int64_t started;      // nanoseconds, on qn_clock_ns
    qn_stop_flag *stop;   // owned: set when the client goes away; lives as long as the exchange
    void *task;           // of whoever answers, between threads; NULL: none
    int refusal;          // HTTP status that was decided before the body was read; 0: none
    size_t n_ignored;     // bytes of the body that came after that

    // Guarded by the lock.
    pthread_mutex_t lock;
    qn_phase phase;
    struct MHD_Connection *connection; // NULL: the HTTP side has left
    bool is_suspended;
    bool is_read;     // the whole request has come
    int status;       // of the answer
    const char *type; // constant: its content type
    qn_header headers[QN_MAX_HEADERS];
    size_t n_headers;
    qn_buf out; // bytes to be sent, of which `sent` are
    size_t sent;
    int64_t n_written;          // bytes of the answer so far
    const char *ping;           // constant: what keeps a silent stream alive; NULL: nothing does
    int64_t wrote;              // when the last bytes came, or the end
    bool is_stream;             // the body comes in pieces
    bool is_whole;              // no more bytes come
    bool is_cut;                // the stream ends before its end: the connection is closed
    bool is_gone;               // the client is
    const char *note;           // constant: for the log; NULL: none
    char reason[QN_MAX_REASON]; // the same: why it was refused or failed; "": it was not
    char served[128];           // the same: the model that answers; "": none
    atomic_int owners;
    atomic_int_least64_t n_prompt, n_generated; // the same: tokens so far
} qn_exchange;

// Nanoseconds on a clock that never goes back.
int64_t qn_clock_ns(void);

QN_MUST_CHECK qn_status qn_exchange_create(qn_exchange **out, qn_server *server, qn_err *err);
// One owner less.
void qn_exchange_leave(qn_exchange *ex);
// Adds bytes to the body. False: the server holds as much as it may, or memory is short.
bool qn_exchange_add_body(qn_exchange *ex, const char *bytes, size_t n);

// --- for whoever answers -------------------------------------------------------------------------

// A header of an answer that has not begun. One that is too long, or one too many, is left out.
void qn_exchange_header(qn_exchange *ex, const char *name, const char *value);
// The whole answer; the content of `body` moves, and it is empty afterwards. A long one is refused
// (503) where answers that their clients have not taken are too many bytes already.
void qn_exchange_reply(qn_exchange *ex, int status, const char *type, qn_buf *body);
// The answer is a stream; `ping` is a constant, or NULL.
void qn_exchange_begin(qn_exchange *ex, int status, const char *type, const char *ping);
// False if the client is gone, reads too slowly and was dropped, or the stream has ended.
bool qn_exchange_write(qn_exchange *ex, const char *bytes, size_t n);
// The end of a stream; false for `is_well` closes the connection, so that it shows as cut.
void qn_exchange_end(qn_exchange *ex, bool is_well);

// For the log, before the answer or its end: which model it is of; what went wrong; a constant.
void qn_exchange_tell_model(qn_exchange *ex, const char *name);
void qn_exchange_tell_reason(qn_exchange *ex, const char *message);
void qn_exchange_tell_note(qn_exchange *ex, const char *note);

// A stream that has been silent for that long gets a sign of life.
void qn_exchange_ping(qn_exchange *ex, int64_t silence_ns);

// --- for the HTTP side ---------------------------------------------------------------------------

// The client is gone, or must go: sets the stop flag.
void qn_exchange_drop(qn_exchange *ex);
// The server stops: sets the stop flag, and what is written still goes out.
void qn_exchange_stop(qn_exchange *ex);
// Whether somebody works on it, or its answer is on the way.
bool qn_exchange_is_busy(qn_exchange *ex);
// Whether the client takes longer than it may at `now`: to send the request, which began at
// `since`, or to take an answer that is complete. `idle_ns` is for waiting; bytes have time on top.
bool qn_exchange_is_late(qn_exchange *ex, int64_t now, int64_t since, int64_t idle_ns);

#endif
