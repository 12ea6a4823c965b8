// Perplexity, and the distance from a reference model.
#include "cli/eval.h"
#include "cli/out.h"
#include "cli/progress.h"
#include "cli/log_sum_exp.h"
#include "cli/terminal.h"
#include "cli/facts.h"

#include "core/mem.h"
#include "core/pool.h"

#include <math.h>

typedef struct sums {
    int64_t n, n_same;
    double nll, nll_squared, kl;
} sums;

// What one row of logits says of the token that came, and of the reference.
typedef struct score {
    double nll, kl;
    bool is_same;
} score;

// Rows of a window, scored by all threads.
typedef struct scoring {
    const float *rows, *reference; // (n, vocab); NULL: no reference
    int64_t vocab;
    const int32_t *tokens; // (n) that came
    score *scores;         // (n)
} scoring;

static int64_t best_of(const float *x, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++) {
        if (x[i] > x[best]) best = i;
    }
    return best;
}

// A qn_pool_fn: row i.
static void score_row(void *arg, int64_t i) {
    const scoring *s = arg;
    const float *row = s->rows + i * s->vocab;
    score *to = &s->scores[i];
    const double total = qn_log_sum_exp(row, s->vocab);
    *to = (score){.nll = total - (double)row[s->tokens[i]]};
    if (!s->reference) return;
    const float *reference = s->reference + i * s->vocab;
    const double reference_total = qn_log_sum_exp(reference, s->vocab);
    for (int64_t k = 0; k < s->vocab; k++) {
        const double log_p = (double)reference[k] - reference_total;
        to->kl += exp(log_p) * (log_p - ((double)row[k] - total));
    }
    to->is_same = best_of(row, s->vocab) == best_of(reference, s->vocab);
}

// In the order of the tokens.
static void add_scores(sums *s, const score *scores, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        s->n++;
        s->nll += scores[i].nll;
        s->nll_squared += scores[i].nll * scores[i].nll;
        s->kl += scores[i].kl;
        s->n_same += scores[i].is_same;
    }
}

// What a run needs beside its options.
typedef struct scorer {
    const qn_ppl_opts *opts;
    qn_pool *pool;
    score *scores; // (context)
    sums sums;
} scorer;

// ids[0 .. n): scores the tokens from `first` on.
static qn_status score_window(scorer *to, const int32_t *ids, int64_t n, int64_t first,
                              qn_err *err) {
    const qn_ppl_opts *opts = to->opts;
    const qn_logits_opts wanted =
        QN_INIT(qn_logits_opts, .last_rows = n - first + 1, .progress = qn_interrupt_progress);
    qn_logits got = QN_INIT(qn_logits), reference = QN_INIT(qn_logits);
    qn_status status = QN_OK;
    QN_TRY_TO(done, qn_engine_logits(&got, opts->engine, ids, (size_t)n, &wanted, err));
    if (opts->against)
        QN_TRY_TO(done, qn_engine_logits(&reference, opts->against, ids, (size_t)n, &wanted, err));
    scoring s = {.rows = got.logits,
                 .reference = reference.logits,
                 .vocab = got.n_vocab,
                 .tokens = ids + first,
                 .scores = to->scores};
    qn_pool_run(to->pool, n - first, score_row, &s);
    add_scores(&to->sums, to->scores, n - first);

done:
    qn_logits_deinit(&got);
    qn_logits_deinit(&reference);
    return status;
}

static qn_status score_text(scorer *to, const int32_t *ids, int64_t n, qn_err *err) {
    const qn_ppl_opts *opts = to->opts;
    qn_progress progress = {.what = "scoring", .unit = "tokens"};
    qn_status status = QN_OK;
    int64_t scored = 1; // the first token has nothing before it
    for (int64_t end = 0; end < n;) {
        end = end == 0 ? opts->context : end + opts->stride;
        if (end > n) end = n;
        const int64_t begin = end > opts->context ? end - opts->context : 0;
        QN_TRY_TO(done, score_window(to, ids + begin, end - begin, scored - begin, err));
        scored = end;
        if (!qn_progress_show(&progress, end, n)) {
            status = QN_FAIL(err, STOPPED, "stopped after %lld of %lld tokens", (long long)end,
                             (long long)n);
            break;
        }
    }

done:
    qn_progress_end(&progress);
    return status;
}

// The reference must read the text as the model does, or its logits are about other tokens.
static qn_status check_reference(const qn_ppl_opts *opts, const qn_buf *text, const int32_t *ids,
                                 size_t n, qn_err *err) {
    const qn_tokenizer *tokenizer = opts->against ? qn_engine_tokenizer(opts->against) : NULL;
    if (!tokenizer) return QN_OK;
    int32_t *other = NULL;
    size_t n_other = 0, i = 0;
    QN_TRY(qn_tokenize(&other, &n_other, tokenizer, text->data, text->size,
                       &QN_INIT(qn_tokenize_opts, .add_ends = true), err));
    while (i < n && i < n_other && ids[i] == other[i]) i++;
    qn_free(other);
    if (i == n && i == n_other) return QN_OK;
    return QN_FAIL(err, ARGUMENT,
                   "the reference has another tokenizer: %zu tokens, the model %zu, "
                   "and they differ from token %zu on",
                   n_other, n, i);
}

qn_status qn_ppl_run(qn_ppl *out, const qn_ppl_opts *opts, qn_err *err) {
    if (opts->stride < 1 || opts->stride >= opts->context)
        return QN_FAIL(err, ARGUMENT, "a stride of %lld tokens, want 1 to %lld: less than a window",
                       (long long)opts->stride, (long long)opts->context - 1);
    const int64_t vocab = qn_engine_facts(opts->engine).n_vocab;
    if (opts->against && qn_engine_facts(opts->against).n_vocab != vocab)
        return QN_FAIL(err, ARGUMENT, "the model has %lld tokens, the reference %lld",
                       (long long)vocab, (long long)qn_engine_facts(opts->against).n_vocab);
    qn_buf text = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    scorer job = {.opts = opts};
    qn_status status = QN_OK;
    QN_TRY_TO(done, qn_text_read(&text, opts->path, QN_MAX_TEXT, err));
    QN_TRY_TO(done, qn_tokenize(&ids, &n, qn_engine_tokenizer(opts->engine), text.data, text.size,
                                &QN_INIT(qn_tokenize_opts, .add_ends = true), err));
    if (n < 2) {
        status = QN_FAIL(err, ARGUMENT, "%s: %zu tokens, want at least 2", opts->path, n);
        goto done;
    }
    QN_TRY_TO(done, check_reference(opts, &text, ids, n, err));
    QN_TRY_TO(done, qn_pool_create(&job.pool, opts->n_threads, err));
    job.scores = qn_alloc((size_t)opts->context, sizeof *job.scores);
    if (!job.scores) {
        status = QN_NOMEM(err, "the scores of a window");
        goto done;
    }
    QN_TRY_TO(done, score_text(&job, ids, (int64_t)n, err));
    const sums s = job.sums;
    const double count = (double)s.n, mean = s.nll / count;
    const double variance = fmax(s.nll_squared / count - mean * mean, 0);
    *out = (qn_ppl){.tokens = s.n,
                    .ppl = exp(mean),
                    .se = exp(mean) * sqrt(variance / count),
                    .kl = s.kl / count,
                    .same = (double)s.n_same / count};

done:
    qn_pool_destroy(job.pool);
    qn_free(job.scores);
    qn_free(ids);
    qn_buf_deinit(&text);
    return status;
}
