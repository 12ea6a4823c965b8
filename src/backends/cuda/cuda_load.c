// Loading weights: threads read pieces of a weight, bring them into the order of the card, and send
// them from memory that is copied fast, each with two lanes in turn: one is copied while the other
// is filled.
#include "backends/cuda/cuda_device.h"

#include "core/mem.h"

#include <stdatomic.h>

// About so many bytes of a piece: enough for a copy to be worth its call, few enough for all
// threads to have some of a small weight. So many bytes between two looks at the progress.
enum { PIECE_BYTES = 1 << 20, ROUND_BYTES = 1 << 28 };
// The last lane is for experts: weights of a vision tower may be loaded while some are brought.
enum { TURNS = 2, BRINGING = QN_CUDA_LANES - 1, WORKERS = BRINGING / TURNS };

// Memory of a piece that is copied in the lane.
typedef struct lane {
    unsigned char *host; // of alloc_host
    unsigned char *raw;  // as it is read, where that is another thing
    size_t host_bytes, raw_bytes;
} lane;

struct qn_cuda_lanes {
    lane all[WORKERS * TURNS];
};

typedef struct loading {
    qn_cuda_device *device;
    const qn_plan_leaf *leaf;
    const qn_weight_reader *reader;
    qn_cuda_layout layout; // of a part of the weight that lies by itself
    unsigned char *to;
    bool is_here; // in this process's memory
    int64_t n_parts, part_pieces;
    int64_t piece;        // values
    int64_t end;          // of the round's pieces
    _Atomic int64_t next; // piece
    atomic_bool has_failed;
    qn_status statuses[WORKERS];
    qn_err whys[WORKERS];
} loading;

// --- lanes ---------------------------------------------------------------------------------------

void qn_cuda_load_end(qn_device *device) {
    qn_cuda_device *d = qn_cuda_own(device);
    for (int i = 0; d->lanes && i < WORKERS * TURNS; i++) {
        if (d->lanes->all[i].host) d->api->free_host(d->stream, d->lanes->all[i].host);
        qn_free(d->lanes->all[i].raw);
    }
    qn_free(d->lanes);
    d->lanes = NULL;
}

// What a call beside the stream gave.
static qn_status check(qn_cuda_device *d, int error, qn_err *err) {
    if (!error) return QN_OK;
    pthread_mutex_lock(&d->lock);
    (void)qn_cuda_check(d, error, "loading weights");
    pthread_mutex_unlock(&d->lock);
    return qn_cuda_failure(&d->head, err);
}

static qn_status take_host(lane *a, qn_cuda_device *d, size_t bytes, qn_err *err) {
    void *host = NULL;
    size_t available;
    pthread_mutex_lock(&d->lock);
    if (a->host) d->api->free_host(d->stream, a->host);
    a->host = NULL;
    a->host_bytes = 0;
    const bool is_taken = qn_cuda_take(&host, d, d->api->alloc_host, bytes, &available);
    pthread_mutex_unlock(&d->lock);
    if (!is_taken) {
        QN_TRY(qn_cuda_failure(&d->head, err));
        return QN_FAIL(err, LIMIT, "device cuda:%d: no room for %zu bytes of weights on their way",
                       d->index, bytes);
    }
    a->host = host;
    a->host_bytes = bytes;
    return QN_OK;
}

static qn_status make_room(lane *a, qn_cuda_device *d, size_t raw_bytes, size_t host_bytes,
                           qn_err *err) {
    if (raw_bytes > a->raw_bytes) {
        qn_free(a->raw);
        a->raw = qn_alloc(raw_bytes, 1);
        a->raw_bytes = a->raw ? raw_bytes : 0;
        if (!a->raw) return QN_NOMEM(err, "weights of device cuda");
    }
    return host_bytes > a->host_bytes ? take_host(a, d, host_bytes, err) : QN_OK;
}

// --- pieces --------------------------------------------------------------------------------------

static qn_status read_values(const loading *l, void *to, int64_t first, int64_t n, qn_err *err) {
    const qn_weight_reader *r = l->reader;
    if (l->leaf->layout == QN_WORD_typed) return r->read(r->arg, to, first, n, err);
    return r->read_f32(r->arg, to, first, n, err);
}

// Values of the weight before piece `index`.
static int64_t first_of(const loading *l, int64_t index) {
    const int64_t in_part = qn_min(index % l->part_pieces * l->piece, l->layout.n);
    return index / l->part_pieces * l->layout.n + in_part;
}

static qn_status load_piece(loading *l, int64_t index, int i_lane, qn_err *err) {
    qn_cuda_device *d = l->device;
    lane *a = &d->lanes->all[i_lane];
    const int64_t first = first_of(l, index), n = first_of(l, index + 1) - first;
    const size_t bytes = (size_t)qn_cuda_card_bytes(l->leaf, n);
    const size_t raw = l->layout.is_packed ? bytes : 0;
    unsigned char *to = l->to + qn_cuda_card_bytes(l->leaf, first);
    if (!l->is_here) QN_TRY(check(d, d->api->sent(d->stream, i_lane), err));
    QN_TRY(make_room(a, d, raw, l->is_here ? 0 : bytes, err));
    unsigned char *host = l->is_here ? to : a->host;
    QN_TRY(read_values(l, raw ? a->raw : host, first, n, err));
    if (raw) qn_cuda_pack(host, a->raw, l->leaf, &l->layout, n);
    return l->is_here ? QN_OK : check(d, d->api->send(d->stream, i_lane, to, host, bytes), err);
}

// Pieces until none is left, or one has failed.
static void work(void *arg, int64_t worker) {
    loading *l = arg;
    qn_cuda_device *d = l->device;
    qn_status status = QN_OK;
    qn_err *why = &l->whys[worker];
    bool has_sent[TURNS] = {false};
    for (int turn = 0; !status && !atomic_load(&l->has_failed); turn = (turn + 1) % TURNS) {
        const int64_t piece = atomic_fetch_add(&l->next, 1);
        if (piece >= l->end) break;
        has_sent[turn] = true;
        status = load_piece(l, piece, (int)worker * TURNS + turn, why);
    }
    for (int turn = 0; turn < TURNS; turn++) {
        if (!has_sent[turn] || l->is_here)
            continue; // else its memory is not free before it has come
        const int error = d->api->sent(d->stream, (int)worker * TURNS + turn);
        if (!status) status = check(d, error, why);
    }
    l->statuses[worker] = status;
    if (status) atomic_store(&l->has_failed, true);
}

// One job has the workers of the pool at a time; where this is not it, the first does it all.
static qn_status load_round(loading *l, int64_t first, int64_t end, qn_err *err) {
    qn_pool *pool = l->device->head.pool;
    const int64_t n_threads = pool ? qn_pool_threads(pool) : 1;
    atomic_store(&l->next, first);
    l->end = end;
    qn_pool_run(pool, qn_min(qn_min(n_threads, WORKERS), end - first), work, l);
    for (int i = 0; i < WORKERS; i++) {
        if (!l->statuses[i]) continue;
        if (err) *err = l->whys[i];
        return l->statuses[i];
    }
    return QN_OK;
}

static qn_status load_rounds(loading *l, qn_err *err) {
    const int64_t n_pieces = l->n_parts * l->part_pieces;
    const int64_t bytes = qn_max(qn_cuda_card_bytes(l->leaf, l->piece), 1);
    const int64_t round = qn_max(ROUND_BYTES / bytes, 1);
    for (int64_t first = 0; first < n_pieces; first += round) {
        const int64_t end = qn_min(first + round, n_pieces);
        const int64_t from = first_of(l, first), to = first_of(l, end);
        QN_TRY(load_round(l, first, end, err));
        if (l->reader->progress)
            QN_TRY(l->reader->progress(
                l->reader->arg, qn_cuda_card_bytes(l->leaf, to) - qn_cuda_card_bytes(l->leaf, from),
                err));
    }
    return QN_OK;
}

// Copies of lanes are not in the order of the stream, in which the memory was made zero.
static qn_status finish_stream(qn_cuda_device *d, qn_err *err) {
    pthread_mutex_lock(&d->lock);
    if (!d->error) (void)qn_cuda_check(d, d->api->wait(d->stream), "waiting");
    pthread_mutex_unlock(&d->lock);
    return qn_cuda_failure(&d->head, err);
}

// Loads the leaf; `part` is all of it, or one of the parts that lie by themselves.
static qn_status load_parts(loading *l, const qn_plan_leaf *part, qn_err *err) {
    qn_cuda_device *d = l->device;
    QN_TRY(qn_cuda_layout_of(&l->layout, part, err));
    const int64_t bytes = qn_max(qn_cuda_card_bytes(part, l->layout.together), 1);
    l->piece = l->layout.together * qn_max(PIECE_BYTES / bytes, 1);
    l->part_pieces = qn_max((l->layout.n + l->piece - 1) / l->piece, 1);
    if (!d->lanes) d->lanes = qn_alloc(1, sizeof *d->lanes);
    if (!d->lanes) return QN_NOMEM(err, "weights of device cuda");
    QN_TRY(finish_stream(d, err));
    return load_rounds(l, err);
}

qn_status qn_cuda_load_weight(void *to, qn_device *device, const qn_plan_leaf *leaf,
                              const qn_weight_reader *reader, qn_err *err) {
    loading l = {
        .device = qn_cuda_own(device), .leaf = leaf, .reader = reader, .to = to, .n_parts = 1};
    return load_parts(&l, leaf, err);
}

// --- experts in this process's memory ------------------------------------------------------------

qn_status qn_cuda_alloc_host(void **out, qn_device *device, size_t bytes, qn_err *err) {
    qn_cuda_device *d = qn_cuda_own(device);
    size_t available;
    pthread_mutex_lock(&d->lock);
    const bool is_taken = qn_cuda_take(out, d, d->api->alloc_host, bytes, &available);
    pthread_mutex_unlock(&d->lock);
    if (is_taken) return QN_OK;
    QN_TRY(qn_cuda_failure(device, err));
    return QN_FAIL(err, LIMIT, "this machine has no %zu bytes of memory that device cuda:%d reads",
                   bytes, d->index);
}

void qn_cuda_free_host(qn_device *device, void *at) {
    qn_cuda_device *d = qn_cuda_own(device);
    pthread_mutex_lock(&d->lock);
    if (at) d->api->free_host(d->stream, at);
    pthread_mutex_unlock(&d->lock);
}

qn_status qn_cuda_pack_weight(void *host, qn_device *device, const qn_plan_leaf *leaf,
                              const qn_weight_reader *reader, qn_err *err) {
    loading l = {.device = qn_cuda_own(device),
                 .leaf = leaf,
                 .reader = reader,
                 .to = host,
                 .is_here = true,
                 .n_parts = leaf->shape.dims[0].n};
    qn_plan_leaf part = *leaf;
    part.shape.dims[0].n = 1;
    return load_parts(&l, &part, err);
}

// Without the lock, which the step that waits for it has.
qn_status qn_cuda_bring(qn_device *device, void *to, const void *host, size_t bytes, qn_err *err) {
    qn_cuda_device *d = qn_cuda_own(device);
    int error = d->api->send(d->stream, BRINGING, to, host, bytes);
    if (!error) error = d->api->sent(d->stream, BRINGING);
    if (!error) return QN_OK;
    return QN_FAIL(err, IO, "device cuda:%d (%s): bringing an expert: %s", d->index, d->card.name,
                   d->api->explain(error));
}
