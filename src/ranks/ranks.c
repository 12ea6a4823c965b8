// Joining, leaving, and the calls of ranks.h on top of operations that are begun and tested.
#include "ranks/ranks_int.h"

#include "core/debug.h"
#include "core/mem.h"
#include "ranks/mpi_plugin.h"

#include <string.h>

enum { DEFAULT_LIMIT_MS = 60000, GIVE_UP_LATER_MS = 5000 };

// --- joining -------------------------------------------------------------------------------------

static bool give_room(qn_ranks *ranks) {
    const size_t n = (size_t)ranks->place.n_ranks;
    ranks->listening = qn_alloc(n, sizeof *ranks->listening);
    ranks->notices = qn_alloc(n, sizeof *ranks->notices);
    ranks->sizes = qn_alloc(n, sizeof *ranks->sizes);
    ranks->reports = qn_alloc(n, sizeof *ranks->reports);
    return ranks->listening && ranks->notices && ranks->sizes && ranks->reports;
}

static void release(qn_ranks *ranks, bool is_failed) {
    if (ranks->group) ranks->api->close(ranks->group, is_failed);
    qn_free(ranks->listening);
    qn_free(ranks->notices);
    qn_free(ranks->sizes);
    qn_free(ranks->reports);
    qn_free(ranks);
}

static qn_status check_api(const qn_ranks_api *api, qn_err *err) {
    if (api->version == QN_RANKS_API_VERSION) return QN_OK;
    return QN_FAIL(err, UNSUPPORTED, "ranks: %s has version %d, this program wants %d", api->name,
                   api->version, QN_RANKS_API_VERSION);
}

static qn_status refuse_to_join(const qn_ranks *ranks, int error, int64_t waited_ms, qn_err *err) {
    if (error == QN_RANKS_LATE)
        return QN_FAIL(err, LIMIT, "ranks: not all processes have joined %s: waited %lld ms",
                       ranks->api->name, (long long)waited_ms);
    return QN_FAIL(err, IO, "ranks: %s cannot be joined: %s", ranks->api->name,
                   ranks->api->explain(error));
}

// Launchers end all processes as soon as one has given up: who comes later by its number is not
// heard, unless those before it are what is waited for.
static int64_t choose_join_limit(const qn_ranks *ranks, const qn_ranks_opts *o) {
    const int64_t limit = o->join_ms ? o->join_ms : qn_max(ranks->limit_ms, DEFAULT_LIMIT_MS);
    const int64_t later = o->api ? 0 : (int64_t)qn_launch_rank() * GIVE_UP_LATER_MS;
    return qn_min(limit, INT64_MAX - later) + later;
}

static qn_status open_group(qn_ranks *ranks, const qn_ranks_opts *o, qn_err *err) {
    const bool has_others = !o->api && qn_launch_has_others(); // before MPI leaves marks, too
    const qn_ranks_opening opening = {.arg = o->api_arg, .limit_ms = choose_join_limit(ranks, o)};
    const int error = ranks->api->open(&ranks->group, &ranks->place, &opening);
    if (error) {
        ranks->group = NULL;
        return refuse_to_join(ranks, error, opening.limit_ms, err);
    }
    if (has_others && ranks->place.n_ranks == 1)
        return QN_FAIL(err, UNSUPPORTED,
                       "ranks: a launcher started several processes, but %s knows of this one "
                       "alone: the launcher belongs to another MPI",
                       ranks->api->name);
    if (ranks->place.rank < 0 || ranks->place.rank >= ranks->place.n_ranks)
        return QN_FAIL(err, IO, "ranks: %s says that this is rank %d of %d", ranks->api->name,
                       ranks->place.rank, ranks->place.n_ranks);
    if (!give_room(ranks)) return QN_NOMEM(err, "the places of ranks");
    return qn_ranks_listen(ranks, err);
}

qn_status qn_ranks_join(qn_ranks **out, const qn_ranks_opts *opts, qn_err *err) {
    const qn_ranks_opts o = opts ? *opts : (qn_ranks_opts){0};
    const qn_ranks_api *api = o.api;
    const int64_t least = qn_min(o.timeout_ms, o.join_ms);
    if (least < 0)
        return QN_FAIL(err, ARGUMENT, "ranks: a limit of %lld ms for waits, want 0 or more",
                       (long long)least);
    if (!api) QN_TRY(qn_mpi_api_find(&api, err));
    QN_TRY(check_api(api, err));
    qn_ranks *ranks = qn_alloc(1, sizeof *ranks);
    if (!ranks) return QN_NOMEM(err, "ranks");
    *ranks = (qn_ranks){.api = api,
                        .limit_ms = o.timeout_ms ? o.timeout_ms : DEFAULT_LIMIT_MS,
                        .stop = o.stop,
                        .lost = -1};
    const qn_status status = open_group(ranks, &o, err);
    if (status)
        release(ranks, true);
    else
        *out = ranks;
    return status;
}

void qn_ranks_leave(qn_ranks *ranks) {
    if (!ranks) return;
    qn_ranks_linger(ranks);
    release(ranks, ranks->failure.status != QN_OK);
}

int qn_ranks_own(const qn_ranks *ranks) { return ranks->place.rank; }

int qn_ranks_count(const qn_ranks *ranks) { return ranks->place.n_ranks; }

int qn_ranks_sharing(const qn_ranks *ranks) {
    return ranks->place.n_sharing > 1 ? ranks->place.n_sharing : 1;
}

int64_t qn_ranks_timeout(const qn_ranks *ranks) { return ranks->limit_ms; }

const char *qn_ranks_system(const qn_ranks *ranks) { return ranks->api->name; }

qn_ranks_counts qn_ranks_get_counts(const qn_ranks *ranks) { return ranks->counts; }

static void count(qn_ranks *ranks, size_t given) {
    ranks->counts.messages++;
    ranks->counts.bytes += (int64_t)given;
}

// --- all of them at once -------------------------------------------------------------------------

// In pieces, at least one.
static qn_status broadcast(qn_ranks *ranks, void *data, const qn_ranks_op *op, qn_err *err) {
    const qn_ranks_api *api = ranks->api;
    size_t at = 0;
    do {
        const size_t left = op->bytes - at;
        const size_t n = left < api->max_bytes ? left : api->max_bytes;
        void *handle = NULL;
        const int error =
            api->broadcast(&handle, ranks->group, n ? (char *)data + at : data, n, op->peer);
        QN_TRY(qn_ranks_finish(ranks, error, &handle, op, err));
        at += n;
    } while (at < op->bytes);
    return QN_OK;
}

static qn_status check_and_broadcast(qn_ranks *ranks, void *data, const qn_ranks_op *op,
                                     qn_err *err) {
    QN_TRY(qn_ranks_failure(ranks, err));
    if (op->peer < 0 || op->peer >= ranks->place.n_ranks)
        return QN_FAIL(err, ARGUMENT, "%s from rank %d, there are %d", op->what, op->peer,
                       ranks->place.n_ranks);
    count(ranks, op->peer == ranks->place.rank ? op->bytes : 0);
    return broadcast(ranks, data, op, err);
}

qn_status qn_ranks_broadcast(qn_ranks *ranks, void *data, size_t bytes, int root, qn_err *err) {
    const qn_ranks_op op = {.what = "broadcast", .bytes = bytes, .side = "from", .peer = root};
    return check_and_broadcast(ranks, data, &op, err);
}

qn_status qn_ranks_await(qn_ranks *ranks, void *data, size_t bytes, int root, qn_err *err) {
    const qn_ranks_op op = {
        .what = "broadcast", .bytes = bytes, .side = "from", .peer = root, .is_idle = true};
    return check_and_broadcast(ranks, data, &op, err);
}

// Parts that are too long together: one after the other, each by its rank.
static qn_status gather_parts(qn_ranks *ranks, char *to, const void *from, const size_t *bytes,
                              qn_err *err) {
    for (int i = 0; i < ranks->place.n_ranks; i++) {
        const qn_ranks_op part = {
            .what = "all_gather", .bytes = bytes[i], .side = "from", .peer = i};
        if (i == ranks->place.rank && bytes[i] && from != to) memmove(to, from, bytes[i]);
        if (bytes[i]) QN_TRY(broadcast(ranks, to, &part, err));
        to += bytes[i];
    }
    return QN_OK;
}

static qn_status all_gather(qn_ranks *ranks, void *to, const void *from, const size_t *bytes,
                            qn_ranks_op op, qn_err *err) {
    QN_TRY(qn_ranks_failure(ranks, err));
    for (int i = 0; i < ranks->place.n_ranks; i++) {
        if (!qn_size_add(&op.bytes, op.bytes, bytes[i]))
            return QN_FAIL(err, ARGUMENT, "%s: the parts of %d ranks have more than %zu bytes",
                           op.what, ranks->place.n_ranks, SIZE_MAX);
    }
    count(ranks, bytes[ranks->place.rank]);
    if (op.bytes > ranks->api->max_bytes) return gather_parts(ranks, to, from, bytes, err);
    void *handle = NULL;
    const int error = ranks->api->all_gather(&handle, ranks->group, to, from, bytes);
    return qn_ranks_finish(ranks, error, &handle, &op, err);
}

qn_status qn_ranks_all_gather(qn_ranks *ranks, void *to, const void *from, const size_t *bytes,
                              qn_err *err) {
    return all_gather(ranks, to, from, bytes, (qn_ranks_op){.what = "all_gather"}, err);
}

static const size_t *same_size(qn_ranks *ranks, size_t bytes) {
    for (int i = 0; i < ranks->place.n_ranks; i++) ranks->sizes[i] = bytes;
    return ranks->sizes;
}

// Nobody has a byte of all the others before all have come.
qn_status qn_ranks_barrier(qn_ranks *ranks, qn_err *err) {
    const char here = 1;
    return all_gather(ranks, ranks->reports, &here, same_size(ranks, sizeof here),
                      (qn_ranks_op){.what = "barrier"}, err);
}

static qn_status judge(qn_ranks *ranks, qn_err *err) {
    int i = 0;
    while (i < ranks->place.n_ranks && !ranks->reports[i].status) i++;
    if (i == ranks->place.n_ranks) return QN_OK;
    qn_ranks_report *first = &ranks->reports[i];
    const qn_status status =
        first->status > 0 && first->status < QN_STATUS_COUNT ? (qn_status)first->status : QN_IO;
    if (i == ranks->place.rank) return status;
    first->message[sizeof first->message - 1] = '\0';
    qn_err_set(err, status, __FILE__, __LINE__, "%s", first->message);
    return qn_err_prefix(err, status, "rank %d of %d", i, ranks->place.n_ranks);
}

static qn_status agree(qn_ranks *ranks, qn_status own, bool is_idle, qn_err *err) {
    qn_err broken;
    ranks->own = (qn_ranks_report){.status = (int32_t)own, .lost = -1};
    if (own && err) memcpy(ranks->own.message, err->message, sizeof err->message);
    const qn_status status =
        all_gather(ranks, ranks->reports, &ranks->own, same_size(ranks, sizeof ranks->own),
                   (qn_ranks_op){.what = "agreement", .is_idle = is_idle}, &broken);
    if (status && err) *err = broken;
    return status ? status : judge(ranks, err);
}

qn_status qn_ranks_agree(qn_ranks *ranks, qn_status own, qn_err *err) {
    return agree(ranks, own, false, err);
}

qn_status qn_ranks_agree_late(qn_ranks *ranks, qn_status own, qn_err *err) {
    return agree(ranks, own, true, err);
}

// --- two of them ---------------------------------------------------------------------------------

static qn_ranks_op op_of(const qn_ranks_request *request) {
    if (request->is_all)
        return (qn_ranks_op){
            .what = "broadcast", .bytes = request->bytes, .side = "from", .peer = request->peer};
    return (qn_ranks_op){.what = request->is_send ? "send" : "receive",
                         .bytes = request->bytes,
                         .side = request->is_send ? "to" : "from",
                         .peer = request->peer};
}

static qn_status check_message(const qn_ranks *ranks, const qn_ranks_request *request, int tag,
                               qn_err *err) {
    const qn_ranks_op op = op_of(request);
    const size_t max = ranks->api->max_bytes;
    QN_TRY(qn_ranks_failure(ranks, err));
    if (op.peer < 0 || op.peer >= ranks->place.n_ranks || op.peer == ranks->place.rank)
        return QN_FAIL(err, ARGUMENT, "%s %s rank %d: this is rank %d of %d", op.what, op.side,
                       op.peer, ranks->place.rank, ranks->place.n_ranks);
    if (tag < 0 || tag > QN_RANKS_MAX_TAG)
        return QN_FAIL(err, ARGUMENT, "%s %s rank %d: tag %d, want 0 to %d", op.what, op.side,
                       op.peer, tag, QN_RANKS_MAX_TAG);
    if (op.bytes && (op.bytes - 1) / max >= QN_RANKS_PIECES)
        return QN_FAIL(err, LIMIT, "%s %s rank %d: %zu bytes, at most %d times %zu go at a time",
                       op.what, op.side, op.peer, op.bytes, QN_RANKS_PIECES, max);
    return QN_OK;
}

// All pieces at once, so that no other message comes between them. The first is there even if it is
// empty.
static qn_status begin(qn_ranks_request *request, qn_ranks *ranks, void *data, int tag,
                       qn_err *err) {
    QN_TRY(check_message(ranks, request, tag, err));
    const qn_ranks_api *api = ranks->api;
    const qn_ranks_op op = op_of(request);
    size_t at = 0;
    count(ranks, request->is_send ? op.bytes : 0);
    for (int i = 0; i == 0 || at < op.bytes; i++) {
        const size_t n = op.bytes - at < api->max_bytes ? op.bytes - at : api->max_bytes;
        void *from = n ? (char *)data + at : data, **handle = &request->handle[i];
        const int error = request->is_send
                              ? api->send(handle, ranks->group, from, n, op.peer, tag)
                              : api->receive(handle, ranks->group, from, n, op.peer, tag);
        if (error) return qn_ranks_finish(ranks, error, handle, &op, err);
        at += n;
    }
    request->is_open = true;
    return QN_OK;
}

qn_status qn_ranks_send(qn_ranks_request *request, qn_ranks *ranks, const void *data, size_t bytes,
                        int to, int tag, qn_err *err) {
    *request = (qn_ranks_request){.bytes = bytes, .peer = to, .is_send = true};
    return begin(request, ranks, (void *)(uintptr_t)data, tag, err); // it is only read
}

qn_status qn_ranks_receive(qn_ranks_request *request, qn_ranks *ranks, void *data, size_t bytes,
                           int from, int tag, qn_err *err) {
    *request = (qn_ranks_request){.bytes = bytes, .peer = from};
    return begin(request, ranks, data, tag, err);
}

// One that must go in pieces, one after the other, is waited for at once.
qn_status qn_ranks_spread(qn_ranks_request *request, qn_ranks *ranks, const void *data,
                          size_t bytes, qn_err *err) {
    const qn_ranks_api *api = ranks->api;
    void *from = (void *)(uintptr_t)data; // it is only read
    *request = (qn_ranks_request){.bytes = bytes, .peer = ranks->place.rank, .is_all = true};
    if (bytes > api->max_bytes) return qn_ranks_broadcast(ranks, from, bytes, request->peer, err);
    QN_TRY(qn_ranks_failure(ranks, err));
    const qn_ranks_op op = op_of(request);
    count(ranks, bytes);
    const int error = api->broadcast(&request->handle[0], ranks->group, from, bytes, request->peer);
    if (error) return qn_ranks_finish(ranks, error, &request->handle[0], &op, err);
    request->is_open = true;
    return QN_OK;
}

qn_status qn_ranks_wait(qn_ranks *ranks, qn_ranks_request *request, qn_err *err) {
    if (!request->is_open) return QN_OK;
    QN_TRY(qn_ranks_failure(ranks, err));
    const qn_ranks_op op = op_of(request);
    for (int i = 0; i < QN_RANKS_PIECES; i++) {
        void **handle = &request->handle[i];
        if (*handle) QN_TRY(qn_ranks_finish(ranks, 0, handle, &op, err));
    }
    request->is_open = false;
    return QN_OK;
}
