// Connections as sockets: which are there, which hang up, which take too long.
//
// While a request is worked on its connection is suspended, and the HTTP library does not look at
// it: a thread of ours sees that the client hangs up. (One that only says that it will send nothing
// more counts as gone, too: the two cannot be told apart.) The same thread ends connections that
// take too long to send a request or to take an answer.
#ifndef QN_SERVER_LINKS_H
#define QN_SERVER_LINKS_H

#include "server/exchange.h"

typedef struct qn_link {
    int fd;
    qn_server *server; // of the HTTP side
    int64_t since;     // when its last answer ended, its request began, or it was opened
    qn_exchange *ex;   // borrowed: the request that it brings or waits for; NULL: none
    bool is_over;      // the client had hung up at the last sweep, and left nothing to be read
    struct qn_link *next, *before;
} qn_link;

// Caller storage, `{0}` before qn_links_init.
typedef struct qn_links {
    pthread_mutex_t lock;
    qn_link *all;
    qn_link **by_fd; // (n_fds), owned
    size_t n_fds;
    int64_t n; // links
    int epoll, wake;
    int64_t idle_ns; // a connection may be this long without a complete request
    pthread_t thread;
    bool is_running, is_ending;
} qn_links;

QN_MUST_CHECK qn_status qn_links_init(qn_links *links, int64_t idle_ns, qn_err *err);
// After the HTTP library has stopped.
void qn_links_deinit(qn_links *links);

// A connection was opened; NULL: no memory. It ends by qn_link_remove.
qn_link *qn_link_add(qn_links *links, int fd);
void qn_link_remove(qn_links *links, qn_link *link);
// A request has begun on it; it ends by qn_link_end.
void qn_link_begin(qn_links *links, qn_link *link, qn_exchange *ex);
// The request is complete: from now on a hangup drops it.
void qn_link_watch(qn_links *links, qn_link *link);
void qn_link_end(qn_links *links, qn_link *link);
// Stops every request: what its answer says of that still goes out.
void qn_links_stop(qn_links *links);
// Drops every request.
void qn_links_drop(qn_links *links);
int64_t qn_links_count(qn_links *links);
// Requests that are worked on, or whose answers are on the way.
int64_t qn_links_busy(qn_links *links);

#endif
