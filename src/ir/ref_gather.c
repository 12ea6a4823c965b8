// Reference of ALL_GATHER: what several ranks computed, put together.
#include "ir/ref_int.h"
#include "ir/share.h"

#include "core/mem.h"

#include <string.h>

// What one gathering node needs while it runs.
typedef struct gathering {
    const ref_call *call;
    int64_t *counts;  // (n_ranks) floats of each rank
    float *from, *to; // of this rank; of all of them
    int64_t n_rows;   // rows of floats
} gathering;

static int n_ranks(const gathering *g) { return g->call->opts->n_ranks; }

// Values of a rank in each piece of the axis.
static int64_t width_of(const gathering *g, int rank) {
    const qn_attrs *a = &g->call->node->attrs;
    return qn_gather_first(a, rank + 1, n_ranks(g)) - qn_gather_first(a, rank, n_ranks(g));
}

static int owner_of(const gathering *g, int64_t row) {
    return qn_gather_owner(&g->call->node->attrs, g->call->in[1]->i[row], n_ranks(g));
}

// Takes the room for what is given and got, as counts say.
static qn_status take_room(gathering *g) {
    int64_t all = 0;
    for (int r = 0; r < n_ranks(g); r++) all += g->counts[r];
    g->from = qn_alloc((size_t)g->counts[g->call->opts->rank], sizeof *g->from);
    g->to = qn_alloc((size_t)all, sizeof *g->to);
    return g->from && g->to ? QN_OK : QN_NOMEM(g->call->err, "gathering");
}

static qn_status exchange(const gathering *g) {
    const qn_ref_opts *opts = g->call->opts;
    return opts->gather(opts->gather_arg, g->to, g->from, g->counts, g->call->err);
}

// Whole rows, each from the rank that has its id.
static qn_status gather_rows(gathering *g) {
    const ref_call *c = g->call;
    const int64_t width = c->in[0]->dims[1];
    const size_t bytes = (size_t)width * sizeof(float);
    for (int64_t t = 0; t < g->n_rows; t++) g->counts[owner_of(g, t)] += width;
    QN_TRY(take_room(g));
    float *own = g->from, *from = g->to;
    for (int64_t t = 0; t < g->n_rows; t++) {
        if (owner_of(g, t) != c->opts->rank) continue;
        memcpy(own, c->in[0]->f + t * width, bytes);
        own += width;
    }
    QN_TRY(exchange(g));
    for (int r = 0; r < n_ranks(g); r++) {
        for (int64_t t = 0; t < g->n_rows; t++) {
            if (owner_of(g, t) != r) continue;
            memcpy(c->out[0]->f + t * width, from, bytes);
            from += width;
        }
    }
    return QN_OK;
}

// Of every row the parts of all ranks, piece by piece.
static qn_status gather_parts(gathering *g) {
    const ref_call *c = g->call;
    const qn_attrs *a = &c->node->attrs;
    const int64_t n_pieces = g->n_rows * a->parts, piece = a->length / a->parts;
    for (int r = 0; r < n_ranks(g); r++) g->counts[r] = n_pieces * width_of(g, r);
    const int64_t own = g->counts[c->opts->rank], have = c->in[0] ? c->in[0]->n : 0;
    if (own != have)
        return QN_FAIL(c->err, ARGUMENT,
                       "ALL_GATHER: rank %d of %d has %lld values, its share is %lld",
                       c->opts->rank, n_ranks(g), (long long)have, (long long)own);
    QN_TRY(take_room(g));
    if (own) memcpy(g->from, c->in[0]->f, (size_t)own * sizeof *g->from);
    QN_TRY(exchange(g));
    const float *from = g->to;
    for (int r = 0; r < n_ranks(g); r++) {
        const int64_t first = qn_gather_first(a, r, n_ranks(g)), width = width_of(g, r);
        for (int64_t i = 0; i < n_pieces && width; i++, from += width)
            memcpy(c->out[0]->f + i * piece + first, from, (size_t)width * sizeof *from);
    }
    return QN_OK;
}

qn_status qn_ref_ALL_GATHER(const ref_call *c) {
    gathering g = {.call = c};
    if (!qn_node_gathers(c->node)) {
        if (c->in[0]->n) memcpy(c->out[0]->f, c->in[0]->f, (size_t)c->in[0]->n * sizeof(float));
        return QN_OK;
    }
    if (!c->opts->gather || c->opts->n_ranks < 1 || c->opts->n_ranks > QN_RANKS_MAX)
        return QN_FAIL(c->err, STATE, "ALL_GATHER: %d ranks, want 1 to %d that can be reached",
                       c->opts->gather ? c->opts->n_ranks : 0, QN_RANKS_MAX);
    const ref_tensor *out = c->out[0];
    g.n_rows = out->n_dims ? out->n / qn_max(1, out->dims[out->n_dims - 1]) : 0;
    g.counts = qn_alloc((size_t)n_ranks(&g), sizeof *g.counts);
    const qn_status status = !g.counts  ? QN_NOMEM(c->err, "gathering")
                             : c->in[1] ? gather_rows(&g)
                                        : gather_parts(&g);
    qn_free(g.counts);
    qn_free(g.from);
    qn_free(g.to);
    return status;
}
