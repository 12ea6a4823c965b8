#include "gen/sampler.h"

#include "core/mem.h"
#include "gen/logits.h"
#include "gen/philox.h"

#include <math.h>

typedef struct entry {
    float p;
    int32_t id;
} entry;

struct qn_sampler {
    int64_t n_vocab;
    qn_sample_opts opts;
    entry *entries; // (n_vocab)
};

// Whether a stands before b: by descending probability, then id.
static bool is_before(entry a, entry b) { return a.p != b.p ? a.p > b.p : a.id < b.id; }

// Moves the entry at `at` down its heap of n until none below stands behind it.
static void sift(entry *heap, int64_t at, int64_t n) {
    const entry moved = heap[at];
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && is_before(heap[child], heap[child + 1])) child++;
        if (!is_before(moved, heap[child])) break;
        heap[at] = heap[child];
    }
    heap[at] = moved;
}

// Sorts in place; qsort of the C library may allocate.
static void sort_entries(entry *entries, int64_t n) {
    for (int64_t i = n / 2; i-- > 0;) sift(entries, i, n);
    for (int64_t end = n - 1; end > 0; end--) {
        const entry last = entries[0];
        entries[0] = entries[end];
        entries[end] = last;
        sift(entries, 0, end);
    }
}

qn_status qn_sampler_create(qn_sampler **out, const qn_tokenizer *tokenizer, int64_t n_vocab,
                            qn_err *err) {
    (void)tokenizer;
    qn_sampler *sampler = qn_alloc(1, sizeof *sampler);
    entry *entries = qn_alloc((size_t)n_vocab, sizeof *entries);
    if (!sampler || !entries) {
        qn_free(sampler);
        qn_free(entries);
        return QN_NOMEM(err, "sampling");
    }
    *sampler = (qn_sampler){.n_vocab = n_vocab, .entries = entries};
    *out = sampler;
    return QN_OK;
}

void qn_sampler_destroy(qn_sampler *sampler) {
    if (!sampler) return;
    qn_free(sampler->entries);
    qn_free(sampler);
}

qn_status qn_sampler_set(qn_sampler *sampler, const qn_sample_opts *opts, qn_err *err) {
    if (!(opts->temperature >= 0) || isinf(opts->temperature))
        return QN_FAIL(err, ARGUMENT, "temperature %g, want 0 or more", (double)opts->temperature);
    sampler->opts = *opts;
    return QN_OK;
}

void qn_sampler_reset(qn_sampler *sampler) { (void)sampler; }

bool qn_sampler_is_greedy(const qn_sampler *sampler) { return sampler->opts.temperature == 0; }

qn_status qn_sampler_choose(int32_t *token, qn_sampler *sampler, const qn_sampler_in *in,
                            qn_err *err) {
    const int64_t n = sampler->n_vocab;
    const qn_sample_opts *opts = &sampler->opts;
    const float *logits = in->logits;
    entry *entries = sampler->entries;
    QN_TRY(qn_logits_check(logits, n, err));
    const int32_t best = qn_logits_best(logits, n);
    if (opts->temperature == 0) {
        *token = best;
        return QN_OK;
    }
    for (int64_t i = 0; i < n; i++)
        entries[i] = (entry){expf((logits[i] - logits[best]) / opts->temperature), (int32_t)i};
    sort_entries(entries, n);
    // Both sums in double and in one order: in float, a long tail would no longer move the running
    // sum, and all its weight would fall on the last entry.
    double sum = 0, running = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)entries[i].p;
    const double u = (double)qn_philox_uniform(opts->seed, in->position, opts->completion, 0) * sum;
    int64_t i = 0;
    while (i + 1 < n && entries[i + 1].p > 0 && (running += (double)entries[i].p) <= u) i++;
    *token = entries[i].id;
    return QN_OK;
}
