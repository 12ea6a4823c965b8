// qn_sampler: a chooser with a history of its own, for logits that come from anywhere.
#include "core/buf.h"
#include "core/mem.h"
#include "core/structs.h"
#include "gen/chooser.h"

#include <math.h>
#include <string.h>

struct qn_sampler {
    qn_chooser *chooser;
    int64_t n_vocab;
    int32_t *tokens; // (n_tokens)
    size_t n_tokens, cap, n_prompt;
    qn_chooser_memory memory;
    // The last choice since the last token: it is remembered if that token is accepted.
    bool has_chosen;
    int32_t chosen;
    qn_chooser_memory after;
};

static qn_status find_vocab(int64_t *n_vocab, const qn_tokenizer *tokenizer, qn_err *err) {
    qn_tokenizer_info info = QN_INIT(qn_tokenizer_info);
    if (*n_vocab) return QN_OK;
    if (!tokenizer) return QN_FAIL(err, ARGUMENT, "n_vocab 0, and no tokenizer to say it");
    QN_TRY(qn_tokenizer_get_info(&info, tokenizer, err));
    *n_vocab = info.n_tokens;
    return QN_OK;
}

qn_status qn_sampler_create(qn_sampler **out, const qn_tokenizer *tokenizer, int64_t n_vocab,
                            const qn_sample_opts *opts, qn_err *err) {
    QN_NEED(out, err);
    QN_TRY(find_vocab(&n_vocab, tokenizer, err));
    qn_sampler *s = qn_alloc(1, sizeof *s);
    if (!s) return QN_NOMEM(err, "a sampler");
    s->n_vocab = n_vocab;
    qn_status status = qn_chooser_create(&s->chooser, tokenizer, n_vocab, err);
    if (!status) status = qn_sampler_set(s, opts, err);
    if (status)
        qn_sampler_destroy(s);
    else
        *out = s;
    return status;
}

void qn_sampler_destroy(qn_sampler *s) {
    if (!s) return;
    qn_chooser_destroy(s->chooser);
    qn_free(s->tokens);
    qn_free(s);
}

qn_status qn_sampler_set(qn_sampler *sampler, const qn_sample_opts *opts, qn_err *err) {
    QN_NEED(sampler, err);
    qn_sample_opts o;
    QN_TRY(QN_OPTS_READ(qn_sample_opts, &o, opts, err));
    QN_TRY(qn_chooser_set(sampler->chooser, &o, err));
    sampler->has_chosen = false;
    return QN_OK;
}

qn_status qn_sampler_choose(int32_t *token, qn_sampler *sampler, const float *logits, size_t n,
                            qn_err *err) {
    QN_NEED(token, err);
    QN_NEED(sampler, err);
    QN_NEED(logits, err);
    if (n != (uint64_t)sampler->n_vocab)
        return QN_FAIL(err, ARGUMENT, "%zu logits, the sampler is for %lld", n,
                       (long long)sampler->n_vocab);
    qn_chooser_memory after = sampler->memory;
    const qn_chooser_in in = {.logits = logits,
                              .is_given = true,
                              .tokens = sampler->tokens,
                              .n_tokens = sampler->n_tokens,
                              .n_prompt = sampler->n_prompt,
                              .position = sampler->n_tokens,
                              .memory = &after};
    QN_TRY(qn_chooser_choose(token, sampler->chooser, &in, err));
    sampler->has_chosen = true;
    sampler->chosen = *token;
    sampler->after = after;
    return QN_OK;
}

// --- the state -----------------------------------------------------------------------------------

static qn_status append(qn_sampler *s, const int32_t *ids, size_t n, qn_err *err) {
    size_t all;
    void *tokens = s->tokens;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= s->n_vocab)
            return QN_FAIL(err, ARGUMENT, "id %d (number %zu), this sampler has 0 to %lld", ids[i],
                           i + 1, (long long)s->n_vocab - 1);
    }
    if (!qn_size_add(&all, s->n_tokens, n) || !qn_grow(&tokens, &s->cap, all, sizeof *s->tokens))
        return QN_NOMEM(err, "tokens of a sampler");
    s->tokens = tokens;
    if (n) memcpy(s->tokens + s->n_tokens, ids, n * sizeof *ids);
    s->n_tokens = all;
    return QN_OK;
}

qn_status qn_sampler_accept_prompt(qn_sampler *sampler, const int32_t *ids, size_t n, qn_err *err) {
    QN_NEED(sampler, err);
    if (n) QN_NEED(ids, err);
    if (sampler->n_tokens > sampler->n_prompt)
        return QN_FAIL(err, STATE, "%zu tokens of a prompt after %zu of the answer", n,
                       sampler->n_tokens - sampler->n_prompt);
    QN_TRY(append(sampler, ids, n, err));
    sampler->n_prompt = sampler->n_tokens;
    sampler->has_chosen = false;
    return QN_OK;
}

qn_status qn_sampler_accept(qn_sampler *sampler, int32_t token, qn_err *err) {
    QN_NEED(sampler, err);
    QN_TRY(append(sampler, &token, 1, err));
    if (sampler->has_chosen && sampler->chosen == token) sampler->memory = sampler->after;
    sampler->has_chosen = false;
    return QN_OK;
}

qn_status qn_sampler_reset(qn_sampler *sampler, qn_err *err) {
    QN_NEED(sampler, err);
    sampler->n_tokens = sampler->n_prompt = 0;
    sampler->memory = (qn_chooser_memory){0};
    sampler->has_chosen = false;
    return QN_OK;
}

// --- as bytes ------------------------------------------------------------------------------------

// What the bytes begin with; then come the tokens.
typedef struct saved {
    char magic[8];
    int64_t n_vocab;
    uint64_t n_tokens, n_prompt;
    float tau, eta;
    double surprise;
} saved;
_Static_assert(sizeof(saved) == 48, "no padding, which would be bytes that nobody wrote");

static const char magic[8] = "QNSAMP1";

qn_status qn_sampler_save(void **data, size_t *size, const qn_sampler *sampler, qn_err *err) {
    QN_NEED(data, err);
    QN_NEED(size, err);
    QN_NEED(sampler, err);
    const size_t n = sampler->n_tokens * sizeof *sampler->tokens;
    saved head = {.n_vocab = sampler->n_vocab,
                  .n_tokens = sampler->n_tokens,
                  .n_prompt = sampler->n_prompt,
                  .tau = sampler->memory.tau,
                  .eta = sampler->memory.eta,
                  .surprise = sampler->memory.surprise};
    memcpy(head.magic, magic, sizeof magic);
    char *bytes = qn_alloc(1, sizeof head + n);
    if (!bytes) return QN_NOMEM(err, "the state of a sampler");
    memcpy(bytes, &head, sizeof head);
    if (n) memcpy(bytes + sizeof head, sampler->tokens, n);
    *data = bytes;
    *size = sizeof head + n;
    return QN_OK;
}

static qn_status check_saved(const saved *head, const qn_sampler *s, size_t size, qn_err *err) {
    const uint64_t n = (size - sizeof *head) / sizeof *s->tokens;
    if (memcmp(head->magic, magic, sizeof magic) != 0)
        return QN_FAIL(err, FORMAT, "not the state of a sampler");
    if (head->n_vocab != s->n_vocab)
        return QN_FAIL(err, FORMAT, "the state of a sampler for %lld logits, this one is for %lld",
                       (long long)head->n_vocab, (long long)s->n_vocab);
    if (head->n_tokens != n || size != sizeof *head + n * sizeof *s->tokens ||
        head->n_prompt > head->n_tokens)
        return QN_FAIL(err, FORMAT,
                       "the state of a sampler says %llu tokens, %llu of them prompt; it has %zu "
                       "bytes",
                       (unsigned long long)head->n_tokens, (unsigned long long)head->n_prompt,
                       size);
    if (!(isfinite(head->tau) && isfinite(head->eta) && isfinite(head->surprise)))
        return QN_FAIL(err, FORMAT, "the state of a sampler: mirostat %g, %g, %g",
                       (double)head->tau, (double)head->eta, head->surprise);
    return QN_OK;
}

qn_status qn_sampler_load(qn_sampler *sampler, const void *data, size_t size, qn_err *err) {
    QN_NEED(sampler, err);
    QN_NEED(data, err);
    saved head;
    if (size < sizeof head)
        return QN_FAIL(err, FORMAT, "the state of a sampler has %zu bytes, want %zu at least", size,
                       sizeof head);
    memcpy(&head, data, sizeof head);
    QN_TRY(check_saved(&head, sampler, size, err));
    const size_t n = (size_t)head.n_tokens;
    for (size_t i = 0; i < n; i++) {
        int32_t id;
        memcpy(&id, (const char *)data + sizeof head + i * sizeof id, sizeof id);
        if (id < 0 || id >= sampler->n_vocab)
            return QN_FAIL(err, FORMAT, "the state of a sampler: token %zu is %d, want 0 to %lld",
                           i, id, (long long)sampler->n_vocab - 1);
    }
    void *tokens = sampler->tokens;
    if (!qn_grow(&tokens, &sampler->cap, n, sizeof *sampler->tokens))
        return QN_NOMEM(err, "tokens of a sampler");
    sampler->tokens = tokens;
    if (n) memcpy(sampler->tokens, (const char *)data + sizeof head, n * sizeof *sampler->tokens);
    sampler->n_tokens = n;
    sampler->n_prompt = (size_t)head.n_prompt;
    sampler->memory = (qn_chooser_memory){head.tau, head.eta, head.surprise};
    sampler->has_chosen = false;
    return QN_OK;
}
