// A program that mpirun starts several times (mpi_test.sh): ranks over MPI. It prints what goes
// wrong on the rank that tells, and ends with 3 then.
//
//   mpi_ranks check          every case, plain and with delays, in groups that are opened again
//   mpi_ranks disagree       sizes that are not the same on both sides
//   mpi_ranks kill RANK N    that rank kills itself at its N-th exchange
//   mpi_ranks fail RANK N    it fails for reasons of its own
//   mpi_ranks hang RANK N    it stops there, and the limit of the others is short
//   mpi_ranks late RANK      it stops before it joins, and the limit is short
//   mpi_ranks time           how long exchanges take (CSV)
#include "faulty_ranks.h"
#include "ranks_cases.h"

#include "core/debug.h"
#include "core/pool.h"
#include "ranks/mpi_plugin.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OF_RANKS = 3, OF_USE = 2, EXCHANGES = 2000, HANG_LIMIT_MS = 2000 };

static int tell(const qn_ranks *ranks, const qn_err *err) {
    if (!ranks || qn_ranks_tells(ranks))
        fprintf(stderr, "mpi_ranks %d: %s\n", ranks ? qn_ranks_own(ranks) : -1, err->message);
    return OF_RANKS;
}

// --- check ---------------------------------------------------------------------------------------

static qn_status run_cases(qn_ranks *ranks, uint64_t seed, qn_err *err) {
    for (int i = 0; i < n_ranks_cases; i++) {
        if (ranks_cases[i].run(ranks, seed, err))
            return qn_err_prefix(err, err->status, "%s", ranks_cases[i].name);
    }
    return QN_OK;
}

static int check(void) {
    qn_ranks *first = NULL, *second = NULL;
    qn_err err;
    faulty_ranks faulty = {.seed = 1, .max_delay_us = 200};
    qn_status status = qn_ranks_join(&first, NULL, &err);
    if (!status) status = qn_mpi_api_find(&faulty.inner, &err);
    if (!status) {
        faulty.seed += (uint64_t)qn_ranks_own(first);
        const qn_ranks_opts late = {.api = faulty_ranks_api(&faulty), .api_arg = &faulty};
        status = qn_ranks_join(&second, &late, &err);
    }
    if (!status) status = run_cases(first, 1, &err);
    if (!status) status = run_cases(second, 2, &err);
    if (!status && qn_ranks_own(first) == 0)
        printf("%d ranks over %s are well\n", qn_ranks_count(first), qn_ranks_system(first));
    if (status) return tell(first, &err);
    qn_ranks_leave(second);
    qn_ranks_leave(first);
    if (qn_ranks_join(&first, NULL, &err) || qn_ranks_barrier(first, &err))
        return tell(first, &err);
    qn_ranks_leave(first);
    return 0;
}

// --- disagreement --------------------------------------------------------------------------------

// Rank 1 sends as much as rank 0 does not expect.
static qn_status exchange_badly(qn_ranks *ranks, size_t sent, size_t wanted, qn_err *err) {
    unsigned char room[128] = {0};
    qn_ranks_request request;
    if (qn_ranks_own(ranks) == 0) {
        QN_TRY(qn_ranks_receive(&request, ranks, room, wanted, 1, 3, err));
        QN_TRY(qn_ranks_wait(ranks, &request, err));
    } else if (qn_ranks_own(ranks) == 1) {
        QN_TRY(qn_ranks_send(&request, ranks, room, sent, 0, 3, err));
        QN_TRY(qn_ranks_wait(ranks, &request, err));
    }
    return qn_ranks_barrier(ranks, err);
}

static int disagree(const char *sent, const char *wanted) {
    qn_ranks *ranks = NULL;
    qn_err err;
    qn_status status = qn_ranks_join(&ranks, NULL, &err);
    if (!status)
        status = exchange_badly(ranks, strtoul(sent, NULL, 10), strtoul(wanted, NULL, 10), &err);
    if (status) return tell(ranks, &err);
    fprintf(stderr, "mpi_ranks: nobody has seen the difference\n");
    return 0;
}

// --- trouble -------------------------------------------------------------------------------------

static void die(void) { raise(SIGKILL); }

static void hang(void) {
    for (;;) pause();
}

// What happens to a rank in the middle, in the order of `what`.
static const struct {
    const char *name;
    void (*act)(void);
} troubles[] = {{"kill", die}, {"hang", hang}, {"fail", NULL}};

static qn_status exchange(qn_ranks *ranks, int i, qn_err *err) {
    static unsigned char all[16 * 20000], mine[20000];
    size_t sizes[16];
    const int n = qn_ranks_count(ranks);
    for (int k = 0; k < n; k++) sizes[k] = (size_t)(i % 3 ? 100 : 20000);
    if (i % 4 == 0) return qn_ranks_broadcast(ranks, mine, sizes[0], i / 4 % n, err);
    if (i % 4 == 1) return qn_ranks_await(ranks, mine, 16, 0, err);
    if (i % 4 == 2) return qn_ranks_agree(ranks, QN_OK, err);
    return qn_ranks_all_gather(ranks, all, mine, sizes, err);
}

static qn_status trouble(qn_ranks *ranks, const char *what, int rank, int at, qn_err *err) {
    for (int i = 0; i < EXCHANGES; i++) {
        if (i == at && qn_ranks_own(ranks) == rank) {
            for (size_t k = 0; k < sizeof troubles / sizeof *troubles; k++) {
                if (strcmp(troubles[k].name, what) == 0 && troubles[k].act) troubles[k].act();
            }
            qn_err why;
            (void)QN_FAIL(&why, NUMERIC, "the %d-th exchange is not wanted", at);
            qn_ranks_fail(ranks, &why);
        }
        QN_TRY(exchange(ranks, i, err));
    }
    return QN_OK;
}

static int run_trouble(const char *what, const char *rank, const char *at) {
    qn_ranks *ranks = NULL;
    qn_err err;
    const qn_ranks_opts opts = {.timeout_ms = strcmp(what, "hang") == 0 ? HANG_LIMIT_MS : 0};
    signal(SIGTERM, SIG_IGN); // mpirun's, which would end us before we say why
    qn_status status = qn_ranks_join(&ranks, &opts, &err);
    if (!status) status = trouble(ranks, what, atoi(rank), atoi(at), &err);
    if (!status) fprintf(stderr, "mpi_ranks: nobody has seen that one is missing\n");
    const int code = status ? tell(ranks, &err) : 0;
    qn_ranks_leave(ranks);
    return code;
}

static int run_late(const char *rank) {
    qn_ranks *ranks = NULL;
    qn_err err;
    const qn_ranks_opts opts = {.join_ms = HANG_LIMIT_MS};
    if (qn_launch_rank() == atoi(rank)) raise(SIGSTOP);
    if (qn_ranks_join(&ranks, &opts, &err)) return tell(NULL, &err);
    fprintf(stderr, "mpi_ranks: nobody has seen that one is missing\n");
    qn_ranks_leave(ranks);
    return 0;
}

// --- time ----------------------------------------------------------------------------------------

static int compare(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static qn_status measure(qn_ranks *ranks, size_t bytes, int rounds, qn_err *err) {
    enum { MAX_ROUNDS = 5000 };
    static int64_t times[MAX_ROUNDS];
    size_t sizes[16];
    for (int i = 0; i < qn_ranks_count(ranks); i++) sizes[i] = bytes;
    unsigned char *room = calloc((size_t)qn_ranks_count(ranks) + 1, bytes);
    qn_status status = room ? QN_OK : QN_NOMEM(err, "a measurement");
    for (int i = 0; i < rounds && !status; i++) {
        const int64_t began = qn_clock();
        status = qn_ranks_all_gather(ranks, room + bytes, room, sizes, err);
        times[i] = qn_clock() - began;
    }
    free(room);
    if (status || qn_ranks_own(ranks)) return status;
    qsort(times, (size_t)rounds, sizeof *times, compare);
    printf("%zu,%.2f,%.2f,%.2f,%.2f\n", bytes, (double)times[rounds / 10] * 1e-3,
           (double)times[rounds / 2] * 1e-3, (double)times[rounds - 1 - rounds / 10] * 1e-3,
           (double)bytes / (double)times[rounds / 2]);
    return QN_OK;
}

static int measure_all(void) {
    qn_ranks *ranks = NULL;
    qn_err err;
    qn_status status = qn_ranks_join(&ranks, NULL, &err);
    if (!status && qn_ranks_own(ranks) == 0)
        printf("bytes_of_each,p10_us,median_us,p90_us,gb_per_s\n");
    if (!status) status = measure(ranks, 16, 5000, &err);
    if (!status) status = measure(ranks, 4096, 5000, &err);
    if (!status) status = measure(ranks, 65536, 5000, &err);
    if (!status) status = measure(ranks, 1 << 20, 500, &err);
    if (status) return tell(ranks, &err);
    qn_ranks_leave(ranks);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "check") == 0) return check();
    if (argc == 2 && strcmp(argv[1], "time") == 0) return measure_all();
    if (argc == 3 && strcmp(argv[1], "late") == 0) return run_late(argv[2]);
    if (argc == 4 && strcmp(argv[1], "disagree") == 0) return disagree(argv[2], argv[3]);
    if (argc == 4) return run_trouble(argv[1], argv[2], argv[3]);
    fprintf(stderr, "mpi_ranks: see the top of mpi_ranks.c\n");
    return OF_USE;
}
