#include "gen/dry.h"

#include "core/mem.h"
#include "gen/strings.h"

#include <float.h>

// --- breakers ------------------------------------------------------------------------------------

struct qn_breakers {
    const qn_token_texts *texts; // borrowed
    qn_strings *strings;
    bool *is_breaker; // (texts->n) the token contains one
};

static const qn_strings_opts limits = {.what = "DRY breaker", .max = 1024, .max_bytes = 1 << 16};

qn_status qn_breakers_check(const char *const *strings, size_t n, qn_err *err) {
    return qn_strings_check(strings, n, &limits, err);
}

qn_status qn_breakers_create(qn_breakers **out, const qn_token_texts *texts,
                             const char *const *strings, size_t n, qn_err *err) {
    qn_status status = QN_OK;
    qn_breakers *b = qn_alloc(1, sizeof *b);
    if (!b) return QN_NOMEM(err, "DRY breakers");
    b->texts = texts;
    QN_TRY_TO(done, qn_strings_create(&b->strings, strings, n, &limits, err));
    b->is_breaker = qn_alloc((size_t)texts->n, sizeof *b->is_breaker);
    if (!b->is_breaker) {
        status = QN_NOMEM(err, "DRY breakers");
        goto done;
    }
    for (int64_t i = 0; i < texts->n; i++) {
        size_t n_read;
        const uint32_t node = qn_strings_scan(&n_read, b->strings, QN_STRINGS_START,
                                              qn_token_text(texts, (int32_t)i));
        b->is_breaker[i] = qn_strings_hit(b->strings, node) >= 0;
    }
    *out = b;

done:
    if (status) qn_breakers_destroy(b);
    return status;
}

void qn_breakers_destroy(qn_breakers *breakers) {
    if (!breakers) return;
    qn_strings_destroy(breakers->strings);
    qn_free(breakers->is_breaker);
    qn_free(breakers);
}

// Tokens at the end since the last in which a breaker ends, at most QN_DRY_LONGEST. A breaker may
// have begun some tokens earlier.
static size_t count_unbroken(const qn_breakers *b, const int32_t *tokens, size_t n) {
    size_t from = n > QN_DRY_LONGEST ? n - QN_DRY_LONGEST : 0;
    if (!b) return n - from;
    size_t unbroken = n - from;
    for (size_t size = 0; from > 0 && size < qn_strings_longest(b->strings); from--)
        size += qn_token_text(b->texts, tokens[from - 1]).size;
    uint32_t node = QN_STRINGS_START;
    for (size_t at = from; at < n; at++) {
        const qn_str text = qn_token_text(b->texts, tokens[at]);
        for (size_t i = 0; i < text.size; i++) {
            node = qn_strings_next(b->strings, node, (unsigned char)text.data[i]);
            if (qn_strings_hit(b->strings, node) >= 0 && n - 1 - at < unbroken)
                unbroken = n - 1 - at;
        }
    }
    return unbroken;
}

// --- repetitions ---------------------------------------------------------------------------------

// How long the beginnings of two texts are equal is found for all places of one text in linear time
// by what is known of the places before (the Z algorithm). The texts are read backwards: place i is
// the i-th token from the end.
typedef struct reader {
    const int32_t *last;          // place 0
    size_t n;                     // places
    size_t max;                   // tokens that are compared
    size_t known[QN_DRY_LONGEST]; // of the places below `max`
    size_t from, to;              // the farthest stretch known to equal the beginning
} reader;

static size_t match_at(reader *r, size_t i) {
    size_t m = 0;
    if (i < r->to) {
        m = r->known[i - r->from];
        if (m > r->to - i) m = r->to - i;
    }
    while (m < r->max && i + m < r->n && *(r->last - m) == *(r->last - i - m)) m++;
    if (i + m > r->to) {
        r->from = i;
        r->to = i + m;
    }
    if (i < r->max) r->known[i] = m;
    return m;
}

static float find_penalty(const qn_dry *dry, uint32_t length) {
    double penalty = (double)dry->multiplier;
    for (uint32_t m = (uint32_t)dry->allowed_length; m < length && penalty < 1e30; m++)
        penalty *= (double)dry->base;
    return (float)penalty;
}

void qn_dry_apply(const qn_dry *dry, float *logits, uint32_t *lengths) {
    const size_t n = dry->n_tokens;
    if (n < 2) return;
    reader r = {.last = dry->tokens + n - 1, .n = n};
    r.max = count_unbroken(dry->breakers, dry->tokens, n);
    if (r.max == 0) return;
    r.known[0] = r.max;
    for (size_t i = 1; i < n; i++) {
        const int32_t next = *(r.last - i + 1);
        const uint32_t m = (uint32_t)match_at(&r, i);
        if (dry->breakers && dry->breakers->is_breaker[next]) continue;
        if (m >= (uint32_t)dry->allowed_length && m > lengths[next]) lengths[next] = m;
    }
    for (size_t i = 0; i < n; i++) {
        const int32_t token = dry->tokens[i];
        if (lengths[token] == 0) continue;
        const float lower = logits[token] - find_penalty(dry, lengths[token]);
        if (logits[token] >= -FLT_MAX) logits[token] = lower > -FLT_MAX ? lower : -FLT_MAX;
        lengths[token] = 0;
    }
}
