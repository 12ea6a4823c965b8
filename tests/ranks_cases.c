#include "ranks_cases.h"

#include "core/mem.h"

#include <stdio.h>
#include <string.h>

enum { MAX_RANKS = 16, LARGE = 1500000 };

// --- contents ------------------------------------------------------------------------------------

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static unsigned char byte_of(uint64_t salt, size_t i) {
    return (unsigned char)(mix(salt + i / 8) >> i % 8 * 8);
}

static void fill(unsigned char *to, size_t n, uint64_t salt) {
    for (size_t i = 0; i < n; i++) to[i] = byte_of(salt, i);
}

static bool is_filled(const unsigned char *at, size_t n, uint64_t salt) {
    for (size_t i = 0; i < n; i++) {
        if (at[i] != byte_of(salt, i)) return false;
    }
    return true;
}

// --- all at once ---------------------------------------------------------------------------------

// Parts of other sizes on each rank, none among them.
static size_t part_size(int way, int rank) {
    static const size_t sizes[][3] = {{0, 0, 0},      {8, 8, 8},          {1, 0, 77},
                                      {0, 0, 300000}, {4096, 4096, 4096}, {70000, 1, LARGE}};
    return sizes[way][rank % 3];
}

static qn_status gather_one(qn_ranks *ranks, unsigned char *room, int way, bool is_in_place,
                            uint64_t seed, qn_err *err) {
    const int n = qn_ranks_count(ranks), own = qn_ranks_own(ranks);
    unsigned char *mine = room, *all = room + LARGE;
    size_t sizes[MAX_RANKS], at = 0, total = 0;
    for (int i = 0; i < n; i++) {
        sizes[i] = part_size(way, i);
        if (i < own) at += sizes[i];
        total += sizes[i];
    }
    memset(all, 0xee, total + 1);
    if (is_in_place) mine = all + at;
    fill(mine, sizes[own], seed + (uint64_t)own);
    QN_TRY(qn_ranks_all_gather(ranks, all, mine, sizes, err));
    for (int i = 0; i < n; i++) {
        RANKS_CHECK(is_filled(all, sizes[i], seed + (uint64_t)i));
        all += sizes[i];
    }
    RANKS_CHECK(*all == 0xee);
    return QN_OK;
}

static qn_status run_gather(qn_ranks *ranks, uint64_t seed, qn_err *err) {
    qn_status status = QN_OK;
    unsigned char *room = qn_alloc((size_t)qn_ranks_count(ranks) + 1, LARGE + 1);
    if (!room) return QN_NOMEM(err, "a test");
    for (int i = 0; i < 12 && !status; i++)
        status = gather_one(ranks, room, i % 6, i >= 6, seed + 100 * (uint64_t)i, err);
    qn_free(room);
    return status;
}

static qn_status broadcast_one(qn_ranks *ranks, unsigned char *room, size_t n, int root,
                               uint64_t salt, qn_err *err) {
    memset(room, 0xee, n + 1);
    if (qn_ranks_own(ranks) == root) fill(room, n, salt);
    if (salt % 2)
        QN_TRY(qn_ranks_broadcast(ranks, room, n, root, err));
    else
        QN_TRY(qn_ranks_await(ranks, room, n, root, err));
    RANKS_CHECK(is_filled(room, n, salt));
    RANKS_CHECK(room[n] == 0xee);
    return QN_OK;
}

static qn_status run_broadcast(qn_ranks *ranks, uint64_t seed, qn_err *err) {
    static const size_t sizes[] = {0, 1, 24, 5000, LARGE};
    qn_status status = QN_OK;
    unsigned char *room = qn_alloc(LARGE + 1, 1);
    if (!room) return QN_NOMEM(err, "a test");
    for (int root = 0; root < qn_ranks_count(ranks); root++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes && !status; i++)
            status = broadcast_one(ranks, room, sizes[i], root, seed + i + (uint64_t)root, err);
    }
    qn_free(room);
    return status;
}

// --- agreeing ------------------------------------------------------------------------------------

// The ranks whose bits are set fail, each with an error of its own.
static qn_status agree_one(qn_ranks *ranks, unsigned failing, qn_err *err) {
    const int own = qn_ranks_own(ranks);
    char want[64];
    int first = 0;
    qn_err why = {0};
    qn_status status = QN_OK;
    while (failing && !(failing >> first & 1)) first++;
    if (failing >> own & 1) status = QN_FAIL(&why, NUMERIC, "%%%d is broken", own);
    status = qn_ranks_agree(ranks, status, &why);
    if (!failing) {
        RANKS_CHECK(status == QN_OK);
        return QN_OK;
    }
    snprintf(want, sizeof want, "rank %d of %d: %%%d is broken", first, qn_ranks_count(ranks),
             first);
    RANKS_CHECK(status == QN_NUMERIC && why.status == QN_NUMERIC);
    RANKS_CHECK(strcmp(why.message, own == first ? strchr(want, '%') : want) == 0);
    return QN_OK;
}

static qn_status run_agree(qn_ranks *ranks, uint64_t seed, qn_err *err) {
    const unsigned all = (1u << qn_ranks_count(ranks)) - 1;
    for (unsigned i = 0; i < 20; i++) {
        const unsigned failing = i == 0 ? 0 : i == 1 ? all : (unsigned)mix(seed + i) & all;
        QN_TRY(agree_one(ranks, failing, err));
    }
    const qn_status alone = qn_ranks_agree(ranks, QN_OK, NULL);
    RANKS_CHECK(alone == QN_OK);
    return qn_ranks_barrier(ranks, err);
}

// --- messages ------------------------------------------------------------------------------------

// A message on its way, and what it must be.
typedef struct flight {
    qn_ranks_request request;
    unsigned char *data; // one byte longer
    size_t bytes;
    uint64_t salt;
} flight;

static qn_status take_off(flight *f, qn_ranks *ranks, int from, int to, int tag, qn_err *err) {
    const bool is_own = qn_ranks_own(ranks) == from;
    f->data = qn_alloc(f->bytes + 1, 1);
    if (!f->data) return QN_NOMEM(err, "a test");
    f->data[f->bytes] = 0xee;
    if (!is_own) return qn_ranks_receive(&f->request, ranks, f->data, f->bytes, from, tag, err);
    fill(f->data, f->bytes, f->salt);
    return qn_ranks_send(&f->request, ranks, f->data, f->bytes, to, tag, err);
}

static qn_status land(flight *f, qn_ranks *ranks, qn_err *err) {
    QN_TRY(qn_ranks_wait(ranks, &f->request, err));
    RANKS_CHECK(!f->request.is_open);
    RANKS_CHECK(is_filled(f->data, f->bytes, f->salt));
    RANKS_CHECK(f->data[f->bytes] == 0xee);
    qn_free(f->data);
    f->data = NULL;
    return qn_ranks_wait(ranks, &f->request, err); // not open: done
}

// Each sends to the next. Nobody sends to itself, and nothing that is done is waited for.
static qn_status ring(qn_ranks *ranks, flight flights[2], uint64_t seed, qn_err *err) {
    static const size_t sizes[] = {0, 1, 4000, 100000};
    const int n = qn_ranks_count(ranks), own = qn_ranks_own(ranks);
    const int next = (own + 1) % n, last = (own + n - 1) % n;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && n > 1; i++) {
        flights[0] = (flight){.bytes = sizes[i], .salt = seed + (uint64_t)own};
        flights[1] = (flight){.bytes = sizes[i], .salt = seed + (uint64_t)last};
        QN_TRY(take_off(&flights[0], ranks, own, next, 7, err));
        QN_TRY(take_off(&flights[1], ranks, last, own, 7, err));
        QN_TRY(land(&flights[i % 2], ranks, err));
        QN_TRY(land(&flights[1 - i % 2], ranks, err));
    }
    return QN_OK;
}

static qn_status run_ring(qn_ranks *ranks, uint64_t seed, qn_err *err) {
    flight flights[2] = {0};
    const qn_status status = ring(ranks, flights, seed, err);
    qn_free(flights[0].data);
    qn_free(flights[1].data);
    return status;
}

// --- everything at once --------------------------------------------------------------------------

// Ranks do what `plan` says, which is the same for all, and wait for their messages when they like.
// A rank waits for what was begun before only, so they cannot wait for each other.
enum { FLIGHTS = 12, STEPS = 250 };

typedef struct traffic {
    uint64_t plan, own;
    flight flights[FLIGHTS];
    unsigned char room[MAX_RANKS * 512 + 1];
} traffic;

static size_t roll(uint64_t *state, size_t n) { return (size_t)(mix(*state += 77) % n); }

static size_t roll_size(uint64_t *state) {
    static const size_t most[] = {1, 20, 400, 400, 5000, 60000};
    return roll(state, most[roll(state, sizeof most / sizeof *most)]);
}

static qn_status land_one(traffic *t, qn_ranks *ranks, flight **out, qn_err *err) {
    *out = &t->flights[roll(&t->own, FLIGHTS)];
    return (*out)->data ? land(*out, ranks, err) : QN_OK;
}

static qn_status step_message(traffic *t, qn_ranks *ranks, qn_err *err) {
    const int n = qn_ranks_count(ranks), own = qn_ranks_own(ranks);
    const int from = (int)roll(&t->plan, (size_t)n);
    const int to = (from + 1 + (int)roll(&t->plan, (size_t)n - 1)) % n;
    const int tag = roll(&t->plan, 3) ? 5 : 32767;
    const size_t bytes = roll_size(&t->plan);
    flight *f;
    if (own != from && own != to) return QN_OK;
    QN_TRY(land_one(t, ranks, &f, err));
    f->bytes = bytes;
    f->salt = t->plan;
    return take_off(f, ranks, from, to, tag, err);
}

static qn_status step_gather(traffic *t, qn_ranks *ranks, qn_err *err) {
    unsigned char mine[512], *at = t->room;
    size_t sizes[MAX_RANKS];
    for (int i = 0; i < qn_ranks_count(ranks); i++) sizes[i] = roll(&t->plan, sizeof mine);
    fill(mine, sizes[qn_ranks_own(ranks)], t->plan + (uint64_t)qn_ranks_own(ranks));
    QN_TRY(qn_ranks_all_gather(ranks, t->room, mine, sizes, err));
    for (int i = 0; i < qn_ranks_count(ranks); i++) {
        RANKS_CHECK(is_filled(at, sizes[i], t->plan + (uint64_t)i));
        at += sizes[i];
    }
    return QN_OK;
}

static qn_status step(traffic *t, qn_ranks *ranks, qn_err *err) {
    flight *any;
    const size_t kind = roll(&t->plan, 12), n = (size_t)qn_ranks_count(ranks);
    if (roll(&t->own, 4) == 0) QN_TRY(land_one(t, ranks, &any, err));
    if (kind == 0) return qn_ranks_barrier(ranks, err);
    if (kind == 1) return qn_ranks_agree(ranks, QN_OK, err);
    if (kind == 2) return step_gather(t, ranks, err);
    if (kind > 3) return n > 1 ? step_message(t, ranks, err) : QN_OK;
    const size_t bytes = roll(&t->plan, sizeof t->room - 1);
    const int root = (int)roll(&t->plan, n);
    return broadcast_one(ranks, t->room, bytes, root, t->plan, err);
}

static qn_status run_traffic(qn_ranks *ranks, uint64_t seed, qn_err *err) {
    qn_status status = QN_OK;
    traffic *t = qn_alloc(1, sizeof *t);
    if (!t) return QN_NOMEM(err, "a test");
    t->plan = mix(seed);
    t->own = mix(seed + 1 + (uint64_t)qn_ranks_own(ranks));
    for (int i = 0; i < STEPS && !status; i++) status = step(t, ranks, err);
    for (int i = 0; i < FLIGHTS; i++) {
        if (!status && t->flights[i].data) status = land(&t->flights[i], ranks, err);
        qn_free(t->flights[i].data);
    }
    qn_free(t);
    return status;
}

// --- counts --------------------------------------------------------------------------------------

// Calls, and what this rank gave away itself.
static qn_status run_counts(qn_ranks *ranks, uint64_t seed, qn_err *err) {
    const int own = qn_ranks_own(ranks), n = qn_ranks_count(ranks);
    const qn_ranks_counts before = qn_ranks_get_counts(ranks);
    unsigned char all[MAX_RANKS * MAX_RANKS], mine[MAX_RANKS] = {0};
    size_t sizes[MAX_RANKS];
    flight flights[2] = {0};
    (void)seed;
    for (int i = 0; i < n; i++) sizes[i] = (size_t)i + 1;
    QN_TRY(qn_ranks_all_gather(ranks, all, mine, sizes, err));
    QN_TRY(qn_ranks_broadcast(ranks, all, 100, 0, err));
    QN_TRY(qn_ranks_await(ranks, all, 20, n - 1, err));
    QN_TRY(ring(ranks, flights, seed, err));
    const qn_ranks_counts after = qn_ranks_get_counts(ranks);
    const int64_t sent = n > 1 ? 104001 : 0;
    RANKS_CHECK(after.messages - before.messages == (n > 1 ? 11 : 3));
    RANKS_CHECK(after.bytes - before.bytes ==
                own + 1 + (own == 0 ? 100 : 0) + (own == n - 1 ? 20 : 0) + sent);
    return QN_OK;
}

const ranks_case ranks_cases[] = {
    {"all_gather", run_gather}, {"broadcast", run_broadcast}, {"agree", run_agree},
    {"ring", run_ring},         {"traffic", run_traffic},     {"counts", run_counts},
};
const int n_ranks_cases = sizeof ranks_cases / sizeof *ranks_cases;
