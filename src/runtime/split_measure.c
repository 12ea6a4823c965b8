#include "runtime/split_measure.h"

#include "backends/cpu/limits.h"
#include "core/lines.h"
#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    SMALL = 2048,    // bytes of a message that shows how long any takes: of a row of activations
    LARGE = 1 << 20, // bytes that a rank gives away in one that shows how many arrive in a second
    SMALL_ROUNDS = 15,
    SMALL_RUN = 8, // one after the other, as a step has them
    LARGE_ROUNDS = 5,
    TAG = 1,
};

qn_status qn_split_measure_rank(qn_split_rank *out, const qn_device *device, qn_pool *pool,
                                qn_err *err) {
    qn_limits limits = QN_INIT(qn_limits);
    int64_t memory;
    if (device->kind->has_host_memory)
        QN_TRY(qn_limits_sample(&limits, pool, err));
    else
        QN_TRY(qn_device_measure(&limits, device->backend->name, 0, err));
    if (!device->kind->memory(device, &memory)) {
        QN_TRY(qn_device_failure(device, err));
        memory = 0;
    }
    *out = (qn_split_rank){.read_gbs = limits.read_gbs,
                           .int8_tops = limits.int8_tops,
                           .f32_gflops = limits.f32_gflops,
                           .memory = memory,
                           .n_threads = limits.n_threads};
    return QN_OK;
}

// --- messages ------------------------------------------------------------------------------------

// What a rank found, and tells all others.
typedef struct findings {
    qn_split_rank rank;
    char machine[64]; // what tells machines apart
    double reply, small,
        large; // seconds: half of a message and its answer; gathering, little or much
} findings;

typedef struct probe {
    qn_ranks *ranks;
    int own, n;
    char *to, *from; // (room for a large gather), (the own part)
    size_t *bytes;   // (n)
    double *times;   // (SMALL_ROUNDS)
    double *speeds;  // (n)
    findings *all;   // (n)
} probe;

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t n) {
    qsort(values, n, sizeof *values, by_size);
    return values[n / 2];
}

// Other programs make messages slower, none faster: the first quartile of n times.
static double usual_time(double *times, size_t n) {
    qsort(times, n, sizeof *times, by_size);
    return times[n / 4];
}

static double seconds_since(int64_t start) { return (double)(qn_clock() - start) * 1e-9; }

static qn_status gather(const probe *p, size_t bytes, qn_err *err) {
    for (int r = 0; r < p->n; r++) p->bytes[r] = bytes;
    return qn_ranks_all_gather(p->ranks, p->to, p->from, p->bytes, err);
}

// Gatherings of as many bytes of each rank.
typedef struct gathers {
    size_t bytes, rounds;
    int run;
} gathers;

// The first is not counted: connections are made by it.
static qn_status time_gather(double *out, const probe *p, const gathers *g, qn_err *err) {
    QN_TRY(gather(p, g->bytes, err));
    for (size_t i = 0; i < g->rounds; i++) {
        QN_TRY(qn_ranks_barrier(p->ranks, err));
        const int64_t start = qn_clock();
        for (int k = 0; k < g->run; k++) QN_TRY(gather(p, g->bytes, err));
        p->times[i] = seconds_since(start) / g->run;
    }
    *out = usual_time(p->times, g->rounds);
    return QN_OK;
}

static qn_status send(const probe *p, int to, qn_err *err) {
    qn_ranks_request request = {0};
    QN_TRY(qn_ranks_send(&request, p->ranks, p->from, SMALL, to, TAG, err));
    return qn_ranks_wait(p->ranks, &request, err);
}

static qn_status receive(const probe *p, int from, qn_err *err) {
    qn_ranks_request request = {0};
    QN_TRY(qn_ranks_receive(&request, p->ranks, p->to, SMALL, from, TAG, err));
    return qn_ranks_wait(p->ranks, &request, err);
}

// A message to a neighbour and its answer; the one with the higher number answers.
static qn_status time_reply(double *out, const probe *p, int neighbour, qn_err *err) {
    for (int i = 0; i < SMALL_ROUNDS; i++) {
        const int64_t start = qn_clock();
        if (p->own < neighbour) QN_TRY(send(p, neighbour, err));
        QN_TRY(receive(p, neighbour, err));
        if (p->own > neighbour) QN_TRY(send(p, neighbour, err));
        p->times[i] = seconds_since(start);
    }
    *out = fmax(*out, usual_time(p->times, SMALL_ROUNDS) / 2);
    return QN_OK;
}

// With the neighbour on one side, then with that on the other.
static qn_status time_replies(double *out, const probe *p, qn_err *err) {
    *out = 0;
    for (int side = 0; side < 2; side++) {
        const int neighbour = (p->own + side) % 2 == 0 ? p->own + 1 : p->own - 1;
        QN_TRY(qn_ranks_barrier(p->ranks, err));
        if (neighbour >= 0 && neighbour < p->n) QN_TRY(time_reply(out, p, neighbour, err));
    }
    return QN_OK;
}

static qn_status measure(const probe *p, const qn_split_rank *own, qn_err *err) {
    findings *mine = &p->all[p->own];
    mine->rank = *own;
    // Unlike the name of the host, it is the same in every container of a machine.
    if (!qn_lines_first(mine->machine, sizeof mine->machine, "/proc/sys/kernel/random/boot_id"))
        mine->machine[0] = '\0';
    QN_TRY(time_replies(&mine->reply, p, err));
    const gathers small = {.bytes = SMALL, .rounds = SMALL_ROUNDS, .run = SMALL_RUN};
    const gathers large = {.bytes = LARGE / (size_t)(p->n - 1), .rounds = LARGE_ROUNDS, .run = 1};
    QN_TRY(time_gather(&mine->small, p, &small, err));
    QN_TRY(time_gather(&mine->large, p, &large, err));
    for (int r = 0; r < p->n; r++) p->bytes[r] = sizeof *mine;
    return qn_ranks_all_gather(p->ranks, p->all, mine, p->bytes, err);
}

// --- what follows --------------------------------------------------------------------------------

// The slowest counts, because all of them meet.
static void read_link(qn_split_link *link, const probe *p) {
    double reply = 0, small = 0, large = 0;
    for (int r = 0; r < p->n; r++) {
        reply = fmax(reply, p->all[r].reply);
        small = fmax(small, p->all[r].small);
        large = fmax(large, p->all[r].large);
    }
    // Two ranks: what a gathering takes, which is what there is most of.
    const double latency = p->n == 2 ? small : fmin(reply, small);
    *link = (qn_split_link){.latency_us = latency * 1e6,
                            .message_us = p->n > 2 ? (small - latency) / (p->n - 2) * 1e6 : 0,
                            .gbs = INFINITY};
    const double fixed = qn_split_exchange_seconds(link, p->n, LARGE / (p->n - 1.0));
    link->gbs = LARGE / fmax(large - fixed, large / 4) * 1e-9; // noise must not make it free
}

static bool is_alike(const probe *p, int a, int b) {
    return *p->all[a].machine && strcmp(p->all[a].machine, p->all[b].machine) == 0 &&
           p->all[a].rank.n_threads == p->all[b].rank.n_threads;
}

// The median of ranks like r, as one of the fields says.
static double middle(const probe *p, int r, size_t field) {
    size_t n = 0;
    for (int i = 0; i < p->n; i++) {
        if (i == r || is_alike(p, i, r))
            p->speeds[n++] = *(const double *)(const void *)((const char *)&p->all[i].rank + field);
    }
    return median(p->speeds, n);
}

static int count_neighbours(const probe *p, int r) {
    int n = 0;
    for (int i = 0; i < p->n; i++) n += strcmp(p->all[i].machine, p->all[r].machine) == 0;
    return *p->all[r].machine ? n : 1;
}

// Ranks on one machine share its memory; and those of equal size are equally fast, however unlucky
// one was while they were measured beside each other.
static void read_ranks(qn_split_rank *all, const probe *p) {
    for (int r = 0; r < p->n; r++) {
        all[r] = p->all[r].rank;
        all[r].memory /= count_neighbours(p, r);
        all[r].read_gbs = middle(p, r, offsetof(qn_split_rank, read_gbs));
        all[r].int8_tops = middle(p, r, offsetof(qn_split_rank, int8_tops));
        all[r].f32_gflops = middle(p, r, offsetof(qn_split_rank, f32_gflops));
    }
}

qn_status qn_split_measure_link(qn_split_link *link, qn_split_rank *all, const qn_split_rank *own,
                                qn_ranks *ranks, qn_err *err) {
    probe p = {.ranks = ranks, .own = qn_ranks_own(ranks), .n = qn_ranks_count(ranks)};
    qn_status status = QN_OK;
    *link = (qn_split_link){0};
    all[0] = *own;
    if (p.n == 1) return QN_OK;
    p.to = qn_alloc((size_t)p.n, SMALL + LARGE / ((size_t)p.n - 1));
    p.from = qn_alloc(1, LARGE);
    p.bytes = qn_alloc((size_t)p.n, sizeof *p.bytes);
    p.times = qn_alloc(SMALL_ROUNDS, sizeof *p.times);
    p.speeds = qn_alloc((size_t)p.n, sizeof *p.speeds);
    p.all = qn_alloc((size_t)p.n, sizeof *p.all);
    if (!p.to || !p.from || !p.bytes || !p.times || !p.speeds || !p.all)
        status = QN_NOMEM(err, "measuring what lies between ranks");
    // Nobody waits for one that cannot take part.
    status = qn_ranks_agree(ranks, status, err);
    if (!status) status = measure(&p, own, err);
    if (!status) {
        read_link(link, &p);
        read_ranks(all, &p);
    }
    qn_free(p.to);
    qn_free(p.from);
    qn_free(p.bytes);
    qn_free(p.times);
    qn_free(p.speeds);
    qn_free(p.all);
    return status;
}
