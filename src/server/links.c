#define _GNU_SOURCE // POLLRDHUP
#include "server/links.h"

#include "core/mem.h"
#include "core/thread.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SWEEP_MS = 1000 };
static const int64_t PING_NS = 15000000000; // proxies give up after a minute, some after 30 s

// --- the thread ----------------------------------------------------------------------------------

// With the lock: an event may be older than the connection that has its number now.
static bool is_hung_up(int fd) {
    struct pollfd state = {.fd = fd, .events = POLLRDHUP};
    return poll(&state, 1, 0) > 0 && state.revents & (POLLRDHUP | POLLHUP | POLLERR);
}

static void take_event(qn_links *links, int fd) {
    pthread_mutex_lock(&links->lock);
    const qn_link *link = (size_t)fd < links->n_fds ? links->by_fd[fd] : NULL;
    if (link && link->ex && is_hung_up(fd)) qn_exchange_drop(link->ex);
    pthread_mutex_unlock(&links->lock);
}

// Whether the client has gone for the second time in a row, in the middle of a request or between
// two: the HTTP library may not notice what comes together with the last bytes.
static bool is_left(qn_link *link) {
    int n_unread = 0;
    const bool was_over = link->is_over;
    const bool is_busy = link->ex && qn_exchange_is_busy(link->ex);
    link->is_over = !is_busy && is_hung_up(link->fd) && ioctl(link->fd, FIONREAD, &n_unread) == 0 &&
                    n_unread == 0;
    return was_over && link->is_over;
}

// Connections without a request, requests that are still coming, and answers that wait to be taken
// have their time.
static void sweep(qn_links *links) {
    const int64_t now = qn_clock_ns();
    pthread_mutex_lock(&links->lock);
    for (qn_link *link = links->all; link; link = link->next) {
        if (link->ex) qn_exchange_ping(link->ex, PING_NS);
        const bool is_late = link->ex
                                 ? qn_exchange_is_late(link->ex, now, link->since, links->idle_ns)
                                 : now - link->since > links->idle_ns;
        if (is_left(link) || is_late) shutdown(link->fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&links->lock);
}

static void *watch(void *arg) {
    enum { MAX_EVENTS = 64 };
    qn_links *links = arg;
    struct epoll_event events[MAX_EVENTS];
    int64_t swept = qn_clock_ns();
    for (bool goes_on = true; goes_on;) {
        const int n = epoll_wait(links->epoll, events, MAX_EVENTS, SWEEP_MS);
        for (int i = 0; i < n; i++) {
            if (events[i].data.fd != links->wake) take_event(links, events[i].data.fd);
        }
        if (qn_clock_ns() - swept >= SWEEP_MS * (int64_t)1000000) {
            sweep(links);
            swept = qn_clock_ns();
        }
        pthread_mutex_lock(&links->lock);
        goes_on = !links->is_ending;
        pthread_mutex_unlock(&links->lock);
    }
    return NULL;
}

// --- life ----------------------------------------------------------------------------------------

qn_status qn_links_init(qn_links *links, int64_t idle_ns, qn_err *err) {
    *links = (qn_links){.idle_ns = idle_ns, .epoll = -1, .wake = -1};
    if (pthread_mutex_init(&links->lock, NULL) != 0) return QN_NOMEM(err, "a lock");
    links->epoll = epoll_create1(EPOLL_CLOEXEC);
    links->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = links->wake};
    const bool is_open = links->epoll >= 0 && links->wake >= 0 &&
                         epoll_ctl(links->epoll, EPOLL_CTL_ADD, links->wake, &event) == 0;
    const int why = errno;
    links->is_running = is_open && qn_thread_start(&links->thread, watch, links);
    if (links->is_running) return QN_OK;
    qn_links_deinit(links);
    return is_open ? QN_NOMEM(err, "a thread")
                   : QN_FAIL(err, IO, "cannot watch connections: %s", strerror(why));
}

void qn_links_deinit(qn_links *links) {
    if (links->is_running) {
        const uint64_t one = 1;
        pthread_mutex_lock(&links->lock);
        links->is_ending = true;
        pthread_mutex_unlock(&links->lock);
        if (write(links->wake, &one, sizeof one) < 0)
            links->is_running = true; // it wakes by itself
        pthread_join(links->thread, NULL);
    }
    if (links->epoll >= 0) close(links->epoll);
    if (links->wake >= 0) close(links->wake);
    pthread_mutex_destroy(&links->lock);
    qn_free(links->by_fd);
    *links = (qn_links){.epoll = -1, .wake = -1};
}

// --- connections ---------------------------------------------------------------------------------

// With the lock.
static bool has_place(qn_links *links, int fd) {
    if ((size_t)fd < links->n_fds) return true;
    const size_t n = 2 * (size_t)fd + 64;
    qn_link **grown = qn_realloc(links->by_fd, n, sizeof *grown);
    if (!grown) return false;
    for (size_t i = links->n_fds; i < n; i++) grown[i] = NULL;
    links->by_fd = grown;
    links->n_fds = n;
    return true;
}

qn_link *qn_link_add(qn_links *links, int fd) {
    qn_link *link = fd >= 0 ? qn_alloc(1, sizeof *link) : NULL;
    if (!link) return NULL;
    *link = (qn_link){.fd = fd, .since = qn_clock_ns()};
    pthread_mutex_lock(&links->lock);
    const bool is_placed = has_place(links, fd);
    if (is_placed) {
        links->by_fd[fd] = link;
        link->next = links->all;
        if (links->all) links->all->before = link;
        links->all = link;
        links->n++;
    }
    pthread_mutex_unlock(&links->lock);
    if (is_placed) return link;
    qn_free(link);
    return NULL;
}

void qn_link_remove(qn_links *links, qn_link *link) {
    pthread_mutex_lock(&links->lock);
    if (links->by_fd[link->fd] == link) links->by_fd[link->fd] = NULL;
    if (link->before)
        link->before->next = link->next;
    else
        links->all = link->next;
    if (link->next) link->next->before = link->before;
    links->n--;
    pthread_mutex_unlock(&links->lock);
    qn_free(link);
}

void qn_link_begin(qn_links *links, qn_link *link, qn_exchange *ex) {
    pthread_mutex_lock(&links->lock);
    link->ex = ex;
    link->since = qn_clock_ns();
    pthread_mutex_unlock(&links->lock);
}

void qn_link_watch(qn_links *links, qn_link *link) {
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLHUP | EPOLLERR | EPOLLET,
                                .data.fd = link->fd};
    // The level is asked for again at each hangup: an edge that came before this call is one too.
    (void)epoll_ctl(links->epoll, EPOLL_CTL_ADD, link->fd, &event);
}

void qn_link_end(qn_links *links, qn_link *link) {
    (void)epoll_ctl(links->epoll, EPOLL_CTL_DEL, link->fd, NULL);
    pthread_mutex_lock(&links->lock);
    link->ex = NULL;
    link->since = qn_clock_ns();
    pthread_mutex_unlock(&links->lock);
}

static void call_all(qn_links *links, void (*fn)(qn_exchange *ex)) {
    pthread_mutex_lock(&links->lock);
    for (const qn_link *link = links->all; link; link = link->next) {
        if (link->ex) fn(link->ex);
    }
    pthread_mutex_unlock(&links->lock);
}

void qn_links_stop(qn_links *links) { call_all(links, qn_exchange_stop); }

void qn_links_drop(qn_links *links) { call_all(links, qn_exchange_drop); }

int64_t qn_links_count(qn_links *links) {
    pthread_mutex_lock(&links->lock);
    const int64_t n = links->n;
    pthread_mutex_unlock(&links->lock);
    return n;
}

int64_t qn_links_busy(qn_links *links) {
    int64_t n = 0;
    pthread_mutex_lock(&links->lock);
    for (const qn_link *link = links->all; link; link = link->next)
        n += link->ex && qn_exchange_is_busy(link->ex);
    pthread_mutex_unlock(&links->lock);
    return n;
}
