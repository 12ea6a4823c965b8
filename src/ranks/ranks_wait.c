// Waiting for other ranks.
//
// A wait inside a step is short where every rank has a core: it looks all the time at first. Where
// ranks share cores, the one that is waited for needs this one: it gives its core away early. It
// sleeps later, because MPI moves long messages only while both sides look: on busy cores, a gather
// of 1 MiB parts takes twice as long if ranks sleep after 50 us. The time asleep is a part of the
// time waited, so that little is lost at the end.
#include "ranks/ranks_int.h"

#include "core/mem.h"
#include "core/pool.h"
#include "core/stop_flag.h"
#include "core/thread.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>

enum {
    SPINS = 16,                 // before the clock is read
    US = 1000,                  // all in ns
    MS = 1000000,               //
    SPIN_NS = 5 * US,           // look all the time,
    YIELD_NS = 200 * US,        // then give the core away between looks, then sleep
    MIN_SLEEP_NS = 20 * US,     //
    MAX_SLEEP_NS = MS / 2,      // inside a step
    MAX_IDLE_SLEEP_NS = 4 * MS, // and outside, when
    IDLE_AFTER = 1000,          // so many ms have passed
    STOP_AFTER = 250,           // ms waited, before a stop counts: who is well may go on
    LOOK_NS = 3 * MS,           // between looks at how the others are
    WAITED_PARTS = 8,           // the part of the time waited that is slept
};

typedef struct wait {
    qn_ranks *ranks;
    const qn_ranks_op *op;
    int64_t began, next_look; // next_look: in ns after that
    int spins;
} wait;

// "broadcast of 16 bytes from rank 0"
static void name(char *to, size_t size, const qn_ranks_op *op) {
    if (op->side)
        snprintf(to, size, "%s of %zu bytes %s rank %d", op->what, op->bytes, op->side, op->peer);
    else
        snprintf(to, size, "%s of %zu bytes", op->what, op->bytes);
}

// Others wait twice as long as rank 0, which gives up before them and tells people why, unless it
// is itself late by more than the limit: then it is what they wait for.
static int64_t limit_of(const qn_ranks *ranks) {
    const int64_t ms = ranks->limit_ms;
    return ranks->place.rank == 0 || ms > INT64_MAX / 2 ? ms : 2 * ms;
}

// A caller may want to stop because another rank was lost: then that is the reason.
static qn_status stop(const wait *w, qn_err *err) {
    if (qn_ranks_look(w->ranks)) return qn_ranks_failure(w->ranks, err);
    char what[128];
    qn_err why;
    name(what, sizeof what, w->op);
    (void)QN_FAIL(&why, STOPPED, "told to stop during a wait: %s", what);
    return qn_ranks_break(w->ranks, &why, -1, err);
}

static qn_status expire(const wait *w, int64_t waited_ms, qn_err *err) {
    qn_ranks *ranks = w->ranks;
    const bool leads = ranks->place.rank == 0;
    char what[128];
    qn_err why;
    name(what, sizeof what, w->op);
    (void)QN_FAIL(&why, LIMIT, "%s: waited %" PRId64 " ms, the limit is %" PRId64 " ms", what,
                  waited_ms, limit_of(ranks));
    if (!leads)
        (void)qn_err_prefix(&why, why.status, "rank 0 of %d does not answer", ranks->place.n_ranks);
    (void)qn_ranks_break(ranks, &why, leads ? -1 : 0, NULL);
    if (leads) qn_ranks_name_silent(ranks);
    return qn_ranks_failure(ranks, err);
}

static qn_status fail(const wait *w, int error, qn_err *err) {
    if (qn_ranks_look(w->ranks)) return qn_ranks_failure(w->ranks, err);
    char what[128];
    qn_err why;
    name(what, sizeof what, w->op);
    (void)QN_FAIL(&why, IO, "%s: %s: %s", what, w->ranks->api->name, w->ranks->api->explain(error));
    return qn_ranks_break(w->ranks, &why, -1, err);
}

static void rest(const wait *w, int64_t waited) {
    if (waited < SPIN_NS) {
        qn_thread_pause();
    } else if (waited < YIELD_NS) {
        sched_yield();
    } else {
        const bool is_idle = w->op->is_idle && waited / MS >= IDLE_AFTER;
        const int64_t max = is_idle ? MAX_IDLE_SLEEP_NS : MAX_SLEEP_NS;
        const int64_t ns = qn_max(MIN_SLEEP_NS, qn_min(waited / WAITED_PARTS, max));
        nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
    }
}

// Between two tests of an operation that is not done.
static qn_status go_on(wait *w, qn_err *err) {
    if (w->spins < SPINS) {
        w->spins++;
        qn_thread_pause();
        return QN_OK;
    }
    const int64_t now = qn_clock();
    if (!w->began) w->began = now;
    const int64_t waited = now - w->began;
    const bool is_over = !w->op->is_idle && waited / MS >= limit_of(w->ranks);
    if (waited / MS >= STOP_AFTER && qn_stop_is_wanted(w->ranks->stop)) return stop(w, err);
    if (waited >= w->next_look || is_over) {
        if (qn_ranks_look(w->ranks)) return qn_ranks_failure(w->ranks, err);
        w->next_look = waited + LOOK_NS;
    }
    if (is_over) return expire(w, waited / MS, err);
    rest(w, waited);
    return QN_OK;
}

qn_status qn_ranks_finish(qn_ranks *ranks, int error, void **handle, const qn_ranks_op *op,
                          qn_err *err) {
    wait w = {.ranks = ranks, .op = op, .next_look = LOOK_NS};
    bool is_done = false;
    while (!error) {
        error = ranks->api->test(&is_done, handle, ranks->group);
        if (is_done && !error) {
            *handle = NULL;
            return QN_OK;
        }
        if (!error) QN_TRY(go_on(&w, err));
    }
    return fail(&w, error, err);
}
