// Decode as a share of read bandwidth, both measured in turn, a tenth of a second each, so that a
// machine that is now faster, now slower is fair to both: bench_share MODEL [exact|fast]. Prints the
// median and the quartiles of the shares, and the medians of both rates.
#include "backends/cpu/probe.h"
#include "core/err.h"
#include "core/mem.h"
#include "core/pool.h"
#include "quern.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 40, PIECE = 1 << 20, N_PIECES = 2048, CONTEXT = 2048 };
static const double turn_seconds = 0.1;

typedef struct job {
    const qn_probes *probes;
    unsigned char *at; // (N_PIECES, PIECE)
    uint64_t sinks[N_PIECES];
} job;

static int stop(const qn_err *err) {
    fprintf(stderr, "bench_share: %s\n", err->message);
    return 1;
}

static void read_piece(void *arg, int64_t piece) {
    job *j = arg;
    j->probes->read(&j->sinks[piece], j->at + piece * PIECE, PIECE, 1);
}

// Bytes a second.
static double time_read(job *j, qn_pool *pool) {
    const int64_t start = qn_clock();
    qn_pool_run(pool, N_PIECES, read_piece, j);
    return (double)N_PIECES * PIECE / ((double)(qn_clock() - start) * 1e-9);
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Seconds for n tokens.
static qn_status time_decode(double *seconds, qn_session *session, size_t n, qn_err *err) {
    qn_status status = QN_OK;
    const int64_t start = qn_clock();
    for (size_t i = 0; i < n && !status; i++) {
        int32_t token;
        status = qn_session_step(&token, session, NULL, err);
    }
    *seconds = (double)(qn_clock() - start) * 1e-9;
    return status;
}

static qn_status measure(qn_engine *engine, qn_session *session, job *j, qn_pool *pool,
                         qn_err *err) {
    double shares[ROUNDS], reads[ROUNDS], speeds[ROUNDS], seconds;
    size_t n = 4, n_tokens;
    QN_TRY(qn_session_set_prompt(session, (int32_t[]){1}, 1, err));
    QN_TRY(time_decode(&seconds, session, n, err));
    n = (size_t)(turn_seconds * 4 / seconds) + 1;
    double before = time_read(j, pool);
    for (int i = 0; i < ROUNDS; i++) {
        qn_session_tokens(session, &n_tokens);
        if (n_tokens + n > CONTEXT) QN_TRY(qn_session_truncate(session, 1, err));
        QN_TRY(time_decode(&seconds, session, n, err));
        const double after = time_read(j, pool);
        const qn_step_size step =
            QN_INIT(qn_step_size, .rows = 1, .seqs = 1, .depth = (int64_t)n_tokens, .outs = 1);
        qn_cost cost = QN_INIT(qn_cost);
        QN_TRY(qn_engine_cost(&cost, engine, &step, err));
        reads[i] = (before + after) / 2;
        speeds[i] = (double)n / seconds;
        shares[i] = (cost.weight_bytes + cost.state_bytes) * speeds[i] / reads[i];
        before = after;
    }
    qsort(shares, ROUNDS, sizeof *shares, by_size);
    qsort(reads, ROUNDS, sizeof *reads, by_size);
    qsort(speeds, ROUNDS, sizeof *speeds, by_size);
    printf("share %.2f (%.2f to %.2f), read %.1f GB/s, decode %.1f tokens/s\n", shares[ROUNDS / 2],
           shares[ROUNDS / 4], shares[ROUNDS * 3 / 4], reads[ROUNDS / 2] * 1e-9,
           speeds[ROUNDS / 2]);
    return QN_OK;
}

int main(int argc, char **argv) {
    static job j;
    j.probes = qn_cpu_probes();
    qn_err err;
    qn_engine *engine = NULL;
    qn_session *session = NULL;
    qn_pool *pool = NULL;
    qn_engine_opts opts = QN_INIT(qn_engine_opts);
    if (argc > 2 && strcmp(argv[2], "fast") == 0) opts.numerics = QN_NUMERICS_FAST;
    if (argc < 2) {
        puts("bench_share: give it a model that is larger than the caches");
        return 0;
    }
    j.at = aligned_alloc(2 << 20, (size_t)N_PIECES * PIECE);
    if (!j.at) return 1;
    qn_want_large_pages(j.at, (size_t)N_PIECES * PIECE); // as weights have them
    memset(j.at, 1, (size_t)N_PIECES * PIECE);
    qn_status status = qn_pool_create(&pool, 0, &err);
    if (!status) status = qn_engine_open(&engine, argv[1], &opts, &err);
    if (!status)
        status = qn_session_create(&session, engine,
                                   &QN_INIT(qn_session_opts, .context = CONTEXT, .kept = -1), &err);
    if (!status) status = measure(engine, session, &j, pool, &err);
    qn_session_destroy(session);
    qn_engine_close(engine);
    qn_pool_destroy(pool);
    free(j.at);
    return status ? stop(&err) : 0;
}
