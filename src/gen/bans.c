#include "gen/bans.h"

#include "core/mem.h"
#include "gen/strings.h"

#include <math.h>

struct qn_bans {
    const qn_token_texts *texts; // borrowed
    qn_strings *strings;
    int32_t *within; // (n_within) tokens that contain a banned string
    int64_t n_within;
    int32_t *sorted; // (texts->n) tokens by their bytes
};

static const qn_strings_opts limits = {
    .what = "banned string", .max = QN_MAX_BANS, .max_bytes = QN_MAX_BAN_BYTES};

qn_status qn_bans_check(const char *const *strings, size_t n, qn_err *err) {
    return qn_strings_check(strings, n, &limits, err);
}

// --- building ------------------------------------------------------------------------------------

// Below 0: a before b.
static int compare(qn_str a, qn_str b) {
    const size_t both = a.size < b.size ? a.size : b.size;
    const int order = both ? memcmp(a.data, b.data, both) : 0;
    return order ? order : (a.size > b.size) - (a.size < b.size);
}

// Merges the sorted runs [from, middle) and [middle, to).
static void merge(int32_t *out, const int32_t *in, const int64_t at[3],
                  const qn_token_texts *texts) {
    int64_t a = at[0], b = at[1];
    for (int64_t i = at[0]; i < at[2]; i++) {
        const bool takes_a = b == at[2] || (a < at[1] && compare(qn_token_text(texts, in[a]),
                                                                 qn_token_text(texts, in[b])) <= 0);
        out[i] = takes_a ? in[a++] : in[b++];
    }
}

static qn_status sort_tokens(qn_bans *bans, qn_err *err) {
    const int64_t n = bans->texts->n;
    int32_t *in = qn_alloc((size_t)n, sizeof *in), *out = qn_alloc((size_t)n, sizeof *out);
    if (!in || !out) {
        qn_free(in);
        qn_free(out);
        return QN_NOMEM(err, "bans");
    }
    for (int64_t i = 0; i < n; i++) in[i] = (int32_t)i;
    for (int64_t run = 1; run < n; run *= 2) {
        for (int64_t from = 0; from < n; from += 2 * run) {
            const int64_t middle = from + run < n ? from + run : n;
            const int64_t to = middle + run < n ? middle + run : n;
            merge(out, in, (const int64_t[]){from, middle, to}, bans->texts);
        }
        int32_t *const merged = out;
        out = in;
        in = merged;
    }
    qn_free(out);
    bans->sorted = in;
    return QN_OK;
}

static bool contains(const qn_strings *strings, qn_str text) {
    size_t n_read;
    return qn_strings_hit(strings, qn_strings_scan(&n_read, strings, QN_STRINGS_START, text)) >= 0;
}

static qn_status find_within(qn_bans *bans, qn_err *err) {
    bans->within = qn_alloc((size_t)bans->texts->n, sizeof *bans->within);
    if (!bans->within) return QN_NOMEM(err, "bans");
    for (int64_t i = 0; i < bans->texts->n; i++) {
        if (contains(bans->strings, qn_token_text(bans->texts, (int32_t)i)))
            bans->within[bans->n_within++] = (int32_t)i;
    }
    return QN_OK;
}

qn_status qn_bans_create(qn_bans **out, const qn_token_texts *texts, const char *const *strings,
                         size_t n, qn_err *err) {
    qn_status status = QN_OK;
    qn_bans *bans = qn_alloc(1, sizeof *bans);
    if (!bans) return QN_NOMEM(err, "bans");
    bans->texts = texts;
    QN_TRY_TO(done, qn_strings_create(&bans->strings, strings, n, &limits, err));
    QN_TRY_TO(done, find_within(bans, err));
    QN_TRY_TO(done, sort_tokens(bans, err));
    *out = bans;

done:
    if (status) qn_bans_destroy(bans);
    return status;
}

void qn_bans_destroy(qn_bans *bans) {
    if (!bans) return;
    qn_strings_destroy(bans->strings);
    qn_free(bans->within);
    qn_free(bans->sorted);
    qn_free(bans);
}

// --- use -----------------------------------------------------------------------------------------

// The first place of a token that is not before `text`.
static int64_t find_place(const qn_bans *bans, qn_str text) {
    int64_t low = 0, high = bans->texts->n;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (compare(qn_token_text(bans->texts, bans->sorted[middle]), text) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void exclude_beginning(const qn_bans *bans, float *logits, qn_str rest) {
    for (int64_t i = find_place(bans, rest); i < bans->texts->n; i++) {
        const qn_str text = qn_token_text(bans->texts, bans->sorted[i]);
        if (text.size < rest.size || memcmp(text.data, rest.data, rest.size) != 0) return;
        logits[bans->sorted[i]] = -INFINITY;
    }
}

// The state of the answer: its last bytes decide, one fewer than the longest string has.
static uint32_t find_node(const qn_bans *bans, const int32_t *tokens, size_t n_tokens) {
    const size_t longest = qn_strings_longest(bans->strings);
    size_t from = n_tokens;
    for (size_t size = 0; from > 0 && size < longest; from--)
        size += qn_token_text(bans->texts, tokens[from - 1]).size;
    uint32_t node = QN_STRINGS_START;
    for (; from < n_tokens; from++) {
        const qn_str text = qn_token_text(bans->texts, tokens[from]);
        for (size_t i = 0; i < text.size; i++)
            node = qn_strings_next(bans->strings, node, (unsigned char)text.data[i]);
    }
    return node;
}

void qn_bans_apply(const qn_bans *bans, float *logits, const int32_t *tokens, size_t n_tokens) {
    for (int64_t i = 0; i < bans->n_within; i++) logits[bans->within[i]] = -INFINITY;
    uint32_t node = find_node(bans, tokens, n_tokens);
    for (; node != QN_STRINGS_START; node = qn_strings_shorter(bans->strings, node)) {
        const size_t depth = qn_strings_depth(bans->strings, node);
        size_t from, to;
        qn_strings_range(&from, &to, bans->strings, node);
        for (size_t i = from; i < to; i++) {
            const qn_str text = qn_strings_sorted(bans->strings, i);
            if (text.size > depth)
                exclude_beginning(bans, logits, (qn_str){text.data + depth, text.size - depth});
        }
    }
}
