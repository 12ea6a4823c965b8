// What the parts of the server share.
//
//   http.c          the HTTP library's callbacks: bodies in, answers out
//   exchange.c      the hand-off
//   links.c         sockets that hang up or take too long
//   guard.c         keys, hosts, origins
//   workers.c       threads that work on requests
//   routes.c        which path is answered by what
//   registry.c      models by name: opening, closing
//   served.c        one open model and its step thread
//   model_facts.c   what is known of a model that is not open
//   openapi.c       what the routes and fields are
//   shelf.c         models in a folder, and their names
//   fields.c        members of a JSON body -> an ask
//   ask.c           what a request asks for
//   messages.c      conversations in the one form that templates know
//   job.c           an ask that is being answered
//   api_*.c         the dialects: how answers are written
//   job_events.c    what comes of its rows, and its end
//   job_facts.c     what dialects ask of a job
//   prompts.c       texts and token ids of a request
#ifndef QN_SERVER_INT_H
#define QN_SERVER_INT_H

#include "server/exchange.h"
#include "server/guard.h"
#include "server/links.h"
#include "server/logger.h"
#include "server/metrics.h"
#include "server/registry.h"
#include "server/server.h"
#include "server/tls.h"
#include "server/workers.h"

struct qn_server {
    qn_server_opts opts;
    qn_server_limits limits;
    struct MHD_Daemon *daemon;
    int quiesced; // the listening socket plus 1, once nobody connects any more; 0: not yet
    int port;
    qn_links links;
    qn_guard guard;
    qn_tls tls;
    qn_workers workers;
    qn_registry registry;
    atomic_int_least64_t n_refused; // requests
    qn_logger logger;
    int wake;                       // eventfd: stop and reload
    atomic_int n_stops;             // how often stop was asked for
    atomic_bool is_reload;          // reload was asked for
    atomic_bool is_ending, has_end; // it cannot serve any more; `end` says why
    qn_err end;
    atomic_int_least64_t n_jobs; // answers that are being computed
    atomic_int n_heavy;          // grammars that take long and are being made
    atomic_size_t n_held;        // bytes of bodies, as exchanges count them
    atomic_size_t n_untaken;     // the same of answers in one piece
    atomic_size_t n_pixels;      // bytes of decoded images, as jobs count them
    atomic_bool wants_trim;      // much memory was given back
    atomic_int n_trims;          // how often the system got it
    atomic_uint_least64_t last_id;
    uint64_t id_key; // of request ids
};

// Stops the server, which fails with this error; only the first counts.
void qn_server_end(qn_server *server, const qn_err *why);
// Much memory was given back: the system gets it soon, from a thread that nobody waits for.
void qn_server_trim_soon(qn_server *server);

// The HTTP side: listens on the address of the options.
QN_MUST_CHECK qn_status qn_http_start(qn_server *server, qn_err *err);
// No further connections.
void qn_http_quiesce(qn_server *server);
// All exchanges must have been answered or dropped.
void qn_http_stop(qn_server *server);

#endif
