// The messages of one step over a real network, without computing anything: what the cost model
// predicts (src/runtime/split_cost.h) against what they take. To be run by mpirun, or by
// tools/netns.sh; prints CSV.
//
//   mpirun -n N bench_network [SHAPE ...]
#include "shape_model.h"

#include "core/mem.h"
#include "core/pool.h"
#include "ranks/ranks.h"
#include "runtime/split_measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROUNDS = 15,
    MAX_BYTES = 64 << 20, // of one exchange
    BEST_BYTES = 520,     // the best logits of a row
    TAG = 3,
};
static const int64_t row_counts[] = {1, 8, 64};
enum { N_ROWS = sizeof row_counts / sizeof *row_counts };

typedef struct rig {
    qn_ranks *ranks;
    int own, n;
    char *to, *from; // (MAX_BYTES)
    size_t *bytes;   // (n)
    qn_split_system system;
    qn_split_model model;
} rig;

// --- the messages of a step ----------------------------------------------------------------------

// Rows of which each rank has its units.
static qn_status gather(const rig *r, const qn_split_gather *g, int64_t rows, qn_err *err) {
    const int64_t units = qn_split_units(&g->cut, r->n);
    const int64_t all = rows * qn_split_row_bytes(g, r->n);
    for (int i = 0; i < r->n; i++)
        r->bytes[i] = (size_t)(all / units * qn_split_own(units, r->n, i));
    return qn_ranks_all_gather(r->ranks, r->to, r->from, r->bytes, err);
}

static qn_status gather_ends(const rig *r, int64_t rows, qn_err *err) {
    const int64_t row = r->model.width * (int64_t)sizeof(float);
    for (int i = 0; i < r->n; i++) // whoever has the embeddings
        r->bytes[i] = (size_t)(row * qn_split_own(rows, r->n, i));
    QN_TRY(qn_ranks_all_gather(r->ranks, r->to, r->from, r->bytes, err));
    for (int i = 0; i < r->n; i++) r->bytes[i] = (size_t)rows * BEST_BYTES;
    return qn_ranks_all_gather(r->ranks, r->to, r->from, r->bytes, err);
}

static qn_status tell_step(const rig *r, int64_t rows, qn_err *err) {
    return qn_ranks_broadcast(r->ranks, r->to, (size_t)(4 * (32 + 18 * rows)), 0, err);
}

static qn_status run_tensors(const rig *r, int64_t rows, qn_err *err) {
    QN_TRY(tell_step(r, rows, err));
    for (int64_t i = 0; i < r->model.n_layers; i++) {
        const qn_split_layer *layer = &r->model.layers[i];
        for (int g = 0; g < layer->n_gathers; g++) QN_TRY(gather(r, &layer->gathers[g], rows, err));
    }
    return gather_ends(r, rows, err);
}

static qn_status send(const rig *r, int to, int64_t bytes, qn_err *err) {
    qn_ranks_request request = {0};
    QN_TRY(qn_ranks_send(&request, r->ranks, r->from, (size_t)bytes, to, TAG, err));
    return qn_ranks_wait(r->ranks, &request, err);
}

static qn_status receive(const rig *r, int from, int64_t bytes, qn_err *err) {
    qn_ranks_request request = {0};
    QN_TRY(qn_ranks_receive(&request, r->ranks, r->to, (size_t)bytes, from, TAG, err));
    return qn_ranks_wait(r->ranks, &request, err);
}

static qn_status run_layers(const rig *r, int64_t rows, qn_err *err) {
    const int64_t bytes = rows * r->model.width * (int64_t)sizeof(float);
    const int last = r->n - 1;
    QN_TRY(tell_step(r, rows, err));
    if (r->own > 0) QN_TRY(receive(r, r->own - 1, bytes, err));
    if (r->own < last) QN_TRY(send(r, r->own + 1, bytes, err));
    if (r->own == last) QN_TRY(send(r, 0, rows * BEST_BYTES, err));
    return r->own == 0 ? receive(r, last, rows * BEST_BYTES, err) : QN_OK;
}

// --- measuring -----------------------------------------------------------------------------------

typedef qn_status run_fn(const rig *r, int64_t rows, qn_err *err);
static const struct {
    const char *name;
    run_fn *run;
} splits[] = {{"tensors", run_tensors}, {"layers", run_layers}};

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Seconds of a step as rank 0 sees it, the quartiles and the median.
static qn_status time_steps(double out[3], const rig *r, run_fn *run, int64_t rows, qn_err *err) {
    double times[ROUNDS];
    QN_TRY(run(r, rows, err));
    for (int i = 0; i < ROUNDS; i++) {
        QN_TRY(qn_ranks_barrier(r->ranks, err));
        const int64_t start = qn_clock();
        QN_TRY(run(r, rows, err));
        times[i] = (double)(qn_clock() - start) * 1e-9;
    }
    qsort(times, ROUNDS, sizeof *times, by_size);
    for (int i = 0; i < 3; i++) out[i] = times[(i + 1) * ROUNDS / 4];
    return QN_OK;
}

// What the model predicts of the messages. How layers are divided does not matter to them.
static qn_status predict(double *out, const rig *r, size_t split, int64_t rows, qn_err *err) {
    const qn_step_size step = {.rows = rows, .seqs = rows, .outs = rows};
    qn_split_share *shares = qn_alloc((size_t)r->n, sizeof *shares);
    if (!shares) return QN_NOMEM(err, "shares");
    qn_status status = QN_OK;
    if (split == 0) {
        *out = qn_split_tensors(&r->model, &r->system, &step).network;
    } else {
        status = qn_split_divide(shares, &r->model, &r->system, 0, err);
        if (!status) *out = qn_split_layers(&r->model, &r->system, shares, &step, 1).network;
    }
    qn_free(shares);
    return status;
}

static bool is_too_large(const rig *r, int64_t rows) {
    for (int64_t i = 0; i < r->model.n_layers; i++) {
        for (int g = 0; g < r->model.layers[i].n_gathers; g++) {
            if (rows * qn_split_row_bytes(&r->model.layers[i].gathers[g], r->n) > MAX_BYTES)
                return true;
        }
    }
    return false;
}

static qn_status measure_shape(rig *r, const char *shape, qn_err *err) {
    QN_TRY(read_shape(&r->model, shape, "Q4_K_M", err));
    for (size_t s = 0; s < sizeof splits / sizeof *splits; s++) {
        for (size_t i = 0; i < N_ROWS && !is_too_large(r, row_counts[i]); i++) {
            double seconds[3], predicted;
            QN_TRY(time_steps(seconds, r, splits[s].run, row_counts[i], err));
            QN_TRY(predict(&predicted, r, s, row_counts[i], err));
            if (r->own > 0) continue;
            printf("%s,%d,%s,%lld,%.3f,%.3f,%.3f,%.3f,%.2f\n", shape, r->n, splits[s].name,
                   (long long)row_counts[i], predicted * 1e3, seconds[1] * 1e3, seconds[0] * 1e3,
                   seconds[2] * 1e3, predicted / seconds[1]);
            fflush(stdout);
        }
    }
    qn_split_model_deinit(&r->model);
    return QN_OK;
}

// Processors are all the same here: nothing is computed.
static qn_status measure(rig *r, char **names, int n_names, qn_err *err) {
    static const char *const usual[] = {"qwen3-0.6b", "qwen3-8b"};
    const qn_split_rank own = {.read_gbs = 10, .int8_tops = 1, .f32_gflops = 100};
    qn_split_rank *all = qn_alloc((size_t)r->n, sizeof *all);
    if (!all) return QN_NOMEM(err, "ranks");
    r->system = (qn_split_system){.ranks = all, .n = r->n};
    qn_status status = qn_split_measure_link(&r->system.link, all, &own, r->ranks, err);
    const qn_split_link *link = &r->system.link;
    if (!status && r->own == 0)
        printf(
            "# %d ranks over %s: latency %.1f us, %.1f us a further message, %.3f GB/s\n"
            "model,ranks,split,rows,predicted_ms,measured_ms,quartile_1_ms,quartile_3_ms,ratio\n",
            r->n, qn_ranks_system(r->ranks), link->latency_us, link->message_us, link->gbs);
    const int n = n_names ? n_names : (int)(sizeof usual / sizeof *usual);
    for (int i = 0; i < n && !status; i++)
        status = measure_shape(r, n_names ? names[i] : usual[i], err);
    qn_free(all);
    return status;
}

int main(int argc, char **argv) {
    rig r = {0};
    qn_err err;
    if (!qn_launch_has_others()) {
        puts("bench_network: start it by mpirun, or tools/netns.sh");
        return 0;
    }
    qn_status status = qn_ranks_join(&r.ranks, &(qn_ranks_opts){0}, &err);
    if (!status) {
        r.own = qn_ranks_own(r.ranks);
        r.n = qn_ranks_count(r.ranks);
        r.to = qn_alloc(1, MAX_BYTES);
        r.from = qn_alloc(1, MAX_BYTES);
        r.bytes = qn_alloc((size_t)r.n, sizeof *r.bytes);
        status = r.to && r.from && r.bytes ? measure(&r, argv + 1, argc - 1, &err)
                                           : QN_NOMEM(&err, "messages");
    }
    if (status) fprintf(stderr, "bench_network: %s\n", err.message);
    qn_ranks_leave(r.ranks);
    qn_split_model_deinit(&r.model);
    qn_free(r.to);
    qn_free(r.from);
    qn_free(r.bytes);
    return status ? 1 : 0;
}
