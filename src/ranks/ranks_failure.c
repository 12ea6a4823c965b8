// Failures: the first one of this rank, and how the others learn of it.
//
// A rank that fails sends each of the others a notice and leaves; they find it when they look,
// which they do while they wait. So whoever waits for a rank that ends is told why, and a rank that
// ended without a notice was lost.
#include "ranks/ranks_int.h"

#include "core/mem.h"
#include "core/pool.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    NOTICE_TAG = QN_RANKS_MAX_TAG + 1,
    MAX_PUSHES = 64, // tests of a notice that is being sent; it is short, and nobody is waited for
    MAX_LINGER_MS = 2000,
    MAX_ANSWER_MS = 1000, // others look every few ms; less than they linger
    LINGER_STEP_NS = 2000000,
    LAST_TESTS = 16, // for what a rank said before it ended, and
    LAST_STEP_NS = 500000,
};

static void take(qn_ranks *ranks, const qn_err *why, int lost) {
    ranks->failure = *why;
    ranks->lost = lost;
}

static void tell(qn_ranks *ranks, int to) {
    void *handle = NULL;
    const qn_ranks_api *api = ranks->api;
    bool is_done = false;
    if (api->send(&handle, ranks->group, &ranks->own, sizeof ranks->own, to, NOTICE_TAG)) return;
    for (int i = 0; i < MAX_PUSHES && !is_done; i++) {
        if (api->test(&is_done, &handle, ranks->group)) return;
    }
}

qn_status qn_ranks_break(qn_ranks *ranks, const qn_err *why, int lost, qn_err *err) {
    if (!ranks->failure.status) {
        take(ranks, why, lost);
        ranks->own = (qn_ranks_report){.status = (int32_t)why->status, .lost = lost};
        memcpy(ranks->own.message, why->message, sizeof why->message);
        for (int i = 0; i < ranks->place.n_ranks; i++) {
            if (i != ranks->place.rank && !ranks->api->has_ended(ranks->group, i)) tell(ranks, i);
        }
    }
    return qn_ranks_failure(ranks, err);
}

void qn_ranks_fail(qn_ranks *ranks, const qn_err *why) {
    if (why->status) (void)qn_ranks_break(ranks, why, -1, NULL);
}

qn_status qn_ranks_failure(const qn_ranks *ranks, qn_err *err) {
    if (err && ranks->failure.status) *err = ranks->failure;
    return ranks->failure.status;
}

static int teller_of(const qn_ranks *ranks) { return ranks->lost == 0 ? 1 : 0; }

bool qn_ranks_tells(const qn_ranks *ranks) { return ranks->place.rank == teller_of(ranks); }

void qn_ranks_linger(const qn_ranks *ranks) {
    const int64_t end = qn_clock() + MAX_LINGER_MS * INT64_C(1000000);
    const int teller = teller_of(ranks);
    if (!ranks->failure.status || teller == ranks->place.rank) return;
    while (!ranks->api->has_ended(ranks->group, teller) && qn_clock() < end)
        nanosleep(&(struct timespec){.tv_nsec = LINGER_STEP_NS}, NULL);
}

// --- those of others -----------------------------------------------------------------------------

qn_status qn_ranks_listen(qn_ranks *ranks, qn_err *err) {
    for (int i = 0; i < ranks->place.n_ranks; i++) {
        if (i == ranks->place.rank) continue;
        const int error =
            ranks->api->receive(&ranks->listening[i], ranks->group, &ranks->notices[i],
                                sizeof *ranks->notices, i, NOTICE_TAG);
        if (error) {
            ranks->listening[i] = NULL;
            return QN_FAIL(err, IO, "rank %d of %d cannot listen to rank %d: %s: %s",
                           ranks->place.rank, ranks->place.n_ranks, i, ranks->api->name,
                           ranks->api->explain(error));
        }
    }
    return QN_OK;
}

// A rank that was lost or hangs is named by all in the same words; other failures are those of
// their rank.
static void take_notice(qn_ranks *ranks, int from) {
    qn_ranks_report *notice = &ranks->notices[from];
    const int n = ranks->place.n_ranks;
    qn_err why;
    notice->message[sizeof notice->message - 1] = '\0';
    const bool is_known = notice->status > 0 && notice->status < QN_STATUS_COUNT;
    const int lost = notice->lost >= 0 && notice->lost < n ? notice->lost : -1;
    qn_err_set(&why, is_known ? (qn_status)notice->status : QN_IO, __FILE__, __LINE__, "%s",
               notice->message);
    const bool is_of_lost = why.status == QN_IO || why.status == QN_LIMIT;
    if (lost < 0 || lost == ranks->place.rank || !is_of_lost)
        (void)qn_err_prefix(&why, why.status, "rank %d of %d", from, n);
    take(ranks, &why, lost);
}

static bool has_notice(qn_ranks *ranks, int from) {
    bool is_done = false;
    if (!ranks->listening[from]) return false;
    const int error = ranks->api->test(&is_done, &ranks->listening[from], ranks->group);
    if (error || is_done) ranks->listening[from] = NULL;
    return !error && is_done;
}

// Rank 0 last: where another one has ended, too, rank 0 has seen that, told it and gone, while
// those who do not tell wait for the one that does.
static int find_lost(const qn_ranks *ranks) {
    for (int i = ranks->place.n_ranks - 1; i >= 0; i--) {
        if (i != ranks->place.rank && ranks->api->has_ended(ranks->group, i)) return i;
    }
    return -1;
}

static void answer(qn_ranks *ranks, int to) {
    ranks->own = (qn_ranks_report){.status = (int32_t)ranks->failure.status, .lost = ranks->lost};
    memcpy(ranks->own.message, ranks->failure.message, sizeof ranks->own.message);
    tell(ranks, to);
}

static bool take_any_notice(qn_ranks *ranks) {
    for (int i = 0; i < ranks->place.n_ranks; i++) {
        if (!has_notice(ranks, i)) continue;
        take_notice(ranks, i);
        if (ranks->failure.status == QN_LIMIT) answer(ranks, i); // which is asking who is there
        return true;
    }
    return false;
}

// Ranks send notices before they end. What has come to this machine may take several tests.
static bool take_last_notice(qn_ranks *ranks) {
    for (int i = 0; i < LAST_TESTS; i++) {
        if (take_any_notice(ranks)) return true;
        nanosleep(&(struct timespec){.tv_nsec = LAST_STEP_NS}, NULL);
    }
    return false;
}

bool qn_ranks_look(qn_ranks *ranks) {
    if (ranks->failure.status) return true;
    const int lost = find_lost(ranks);
    if (lost < 0) return take_any_notice(ranks);
    if (take_last_notice(ranks)) return true;
    qn_err why;
    (void)QN_FAIL(&why, IO, "rank %d of %d was lost", lost, ranks->place.n_ranks);
    (void)qn_ranks_break(ranks, &why, lost, NULL);
    return true;
}

qn_status qn_ranks_check(qn_ranks *ranks, qn_err *err) {
    (void)qn_ranks_look(ranks);
    return qn_ranks_failure(ranks, err);
}

// --- who is missing ------------------------------------------------------------------------------

static bool is_silent(qn_ranks *ranks, int rank) {
    return rank != ranks->place.rank && ranks->listening[rank] && !has_notice(ranks, rank);
}

// Leaves their numbers in ranks->sizes, which nothing else needs after a failure.
static int find_silent(qn_ranks *ranks) {
    int n = 0;
    for (int i = 0; i < ranks->place.n_ranks; i++) {
        if (is_silent(ranks, i)) ranks->sizes[n++] = (size_t)i;
    }
    return n;
}

// "rank 1", "ranks 1, 2", and so on while there is room.
static void list_silent(char *to, size_t size, const qn_ranks *ranks, int n) {
    size_t used = (size_t)snprintf(to, size, n == 1 ? "rank" : "ranks");
    for (int i = 0; i < n && used < size; i++)
        used += (size_t)snprintf(to + used, size - used, "%s %zu", i ? "," : "", ranks->sizes[i]);
}

void qn_ranks_name_silent(qn_ranks *ranks) {
    const int64_t end = qn_clock() + qn_min(MAX_ANSWER_MS, ranks->limit_ms) * 1000000;
    int n = find_silent(ranks);
    for (; n > 0 && qn_clock() < end; n = find_silent(ranks))
        nanosleep(&(struct timespec){.tv_nsec = LINGER_STEP_NS}, NULL);
    if (n == 0) return;
    char names[64];
    list_silent(names, sizeof names, ranks, n);
    (void)qn_err_prefix(&ranks->failure, ranks->failure.status, "%s of %d %s not answer", names,
                        ranks->place.n_ranks, n == 1 ? "does" : "do");
}
