// Follows a text token by token, and says which tokens may come next.
#include "core/mem.h"
#include "gen/grammar/matcher_int.h"

#include <inttypes.h>

enum {
    MASK_BYTES_MAX = 24 << 20, // 1300 masks of 150 K tokens, 19 KB each; not tuned
};

// QN_STATES_OK means none.
static qn_status fail_states(const qn_matcher *m, qn_gr_states_result result, qn_err *err) {
    if (result == QN_STATES_AMBIGUOUS)
        return QN_FAIL(err, LIMIT,
                       "grammar: more than %d ways to read the text at once, or %d steps between "
                       "two bytes",
                       QN_STATE_STACKS_MAX, QN_STATE_PLACES_MAX);
    if (result == QN_STATES_COSTLY)
        return QN_FAIL(err, LIMIT, "grammar: more than %llu steps for one token",
                       (unsigned long long)m->grammar->token_steps);
    return QN_FAIL(err, LIMIT, "grammar: more than %d states, %d ways or %d frames for one token",
                   QN_STATES_MAX, QN_STACKS_MAX, QN_CELLS_MAX);
}

// Drops all states and masks but the present state.
static void sweep(qn_matcher *m) {
    m->now = qn_gr_states_sweep(m->states, m->now);
    m->n_masks = 0;
    m->stats.n_sweeps++;
}

qn_status qn_matcher_create(qn_matcher **out, const qn_grammar *grammar, int64_t n_vocab,
                            qn_err *err) {
    qn_status status = QN_OK;
    if (n_vocab < 0 || n_vocab > INT32_MAX)
        return QN_FAIL(err, ARGUMENT, "matcher: a vocabulary of %" PRId64, n_vocab);
    qn_matcher *m = qn_alloc(1, sizeof *m);
    if (!m) return QN_NOMEM(err, "matcher");
    m->grammar = grammar;
    m->n_vocab = n_vocab ? (size_t)n_vocab : (size_t)grammar->bytes.n_tokens;
    m->n_words = (m->n_vocab + 31) / 32;
    if (m->n_words == 0) m->n_words = 1;
    // One place is for the mask after the end, one for those of a gate; two at least for the rest.
    m->n_masks_max = MASK_BYTES_MAX / (m->n_words * sizeof *m->masks);
    if (m->n_masks_max < 4) m->n_masks_max = 4;
    m->masks_size = m->n_masks_max * m->n_words * sizeof *m->masks;
    m->masks = qn_reserve(m->masks_size);
    m->path = qn_alloc(grammar->bytes.longest + 1, sizeof *m->path);
    if (!m->masks || !m->path) {
        status = QN_NOMEM(err, "matcher");
        goto done;
    }
    QN_TRY_TO(done,
              qn_gr_states_create(&m->states, &grammar->program, grammar->bytes.longest, err));
    qn_gr_states_allow(m->states, m->grammar->token_steps);
    const qn_gr_states_result result = qn_gr_states_start(&m->now, m->states);
    if (result) {
        status = fail_states(m, result, err);
        goto done;
    }
    if (grammar->gate) m->run = qn_gr_gate_begin(grammar->gate);
    *out = m;

done:
    if (status) qn_matcher_destroy(m);
    return status;
}

void qn_matcher_destroy(qn_matcher *m) {
    if (!m) return;
    if (m->masks) qn_unreserve(m->masks, m->masks_size);
    qn_gr_states_destroy(m->states);
    qn_free(m->path);
    qn_free(m);
}

void qn_matcher_reset(qn_matcher *m) {
    m->has_ended = false;
    if (m->grammar->gate) m->run = qn_gr_gate_begin(m->grammar->gate);
    qn_gr_states_allow(m->states, m->grammar->token_steps);
    // It could be made once, so it can be made again when nothing else is there.
    if (qn_gr_states_start(&m->now, m->states)) {
        m->now = QN_STATE_DEAD;
        sweep(m);
        if (qn_gr_states_start(&m->now, m->states)) m->now = QN_STATE_DEAD;
    }
}

bool qn_matcher_may_end(const qn_matcher *m) {
    if (m->grammar->gate) return m->has_ended || qn_gr_gate_may_end(m);
    return m->has_ended || qn_gr_states_get(m->states, m->now)->may_end;
}

bool qn_matcher_is_done(const qn_matcher *m) {
    const qn_gr_state *state = qn_gr_states_get(m->states, m->now);
    const bool is_free = m->grammar->gate && m->run.place != QN_GATE_HELD;
    return m->has_ended || (!is_free && state->may_end && state->n == 0);
}

qn_matcher_stats qn_matcher_get_stats(const qn_matcher *m) {
    qn_matcher_stats stats = m->stats;
    stats.n_states = qn_gr_states_count(m->states);
    stats.n_cells = qn_gr_states_n_cells(m->states);
    return stats;
}

// --- going on ------------------------------------------------------------------------------------

static qn_gr_states_result feed(bool *fits, qn_matcher *m, const char *bytes, size_t n) {
    int32_t state = m->now;
    for (size_t i = 0; i < n && state != QN_STATE_DEAD; i++) {
        const qn_gr_states_result result =
            qn_gr_states_step(&state, m->states, state, (uint8_t)bytes[i]);
        if (result) return result;
    }
    *fits = state != QN_STATE_DEAD;
    if (*fits) m->now = state;
    return QN_STATES_OK;
}

static qn_gr_states_result feed_or_sweep(bool *fits, qn_matcher *m, const char *bytes, size_t n) {
    qn_gr_states_allow(m->states, m->grammar->token_steps);
    const qn_gr_states_result result = feed(fits, m, bytes, n);
    if (result != QN_STATES_FULL) return result;
    sweep(m);
    return feed(fits, m, bytes, n);
}

qn_status qn_matcher_feed(bool *fits, qn_matcher *m, const char *bytes, size_t n, qn_err *err) {
    // A long text may fill the memory more than once, so it goes in pieces.
    const size_t max = 256;
    *fits = !m->has_ended || n == 0;
    for (size_t at = 0; *fits && at < n;) {
        const size_t size = n - at < max ? n - at : max;
        const qn_gr_states_result result = feed_or_sweep(fits, m, bytes + at, size);
        if (result) return fail_states(m, result, err);
        at += size;
    }
    return QN_OK;
}

// By the token's bytes and by the token itself, which may both fit.
qn_gr_states_result qn_gr_matcher_take(bool *fits, qn_matcher *m, int32_t token) {
    const qn_gr_token_bytes *bytes = &m->grammar->bytes;
    const uint32_t at = bytes->offsets[token], n = bytes->offsets[token + 1] - at;
    const int32_t from = m->now;
    *fits = false;
    qn_gr_states_result result = n ? feed(fits, m, bytes->text + at, n) : QN_STATES_OK;
    if (result || !qn_gr_states_get(m->states, from)->has_tokens) return result;
    int32_t to;
    result = qn_gr_states_token(&to, m->states, from, token, n > 0, *fits ? m->now : QN_STATE_DEAD);
    m->now = from; // a call that fails is made again
    if (result) return result;
    *fits = to != QN_STATE_DEAD;
    if (*fits) m->now = to;
    return QN_STATES_OK;
}

static qn_gr_states_result take_token(bool *fits, qn_matcher *m, int32_t token) {
    return m->grammar->gate ? qn_gr_gate_take(fits, m, token) : qn_gr_matcher_take(fits, m, token);
}

static qn_status fail_token(const qn_matcher *m, int32_t token, qn_err *err) {
    const qn_gr_token_bytes *bytes = &m->grammar->bytes;
    if (token < 0 || token >= bytes->n_tokens)
        return QN_FAIL(err, ARGUMENT, "token %d: the vocabulary has %d", token, bytes->n_tokens);
    return QN_FAIL(err, ARGUMENT, "token %d ('%.*s') does not fit the grammar here", token,
                   (int)(bytes->offsets[token + 1] - bytes->offsets[token]),
                   bytes->text + bytes->offsets[token]);
}

qn_status qn_matcher_accept(qn_matcher *m, int32_t token, qn_err *err) {
    const qn_gr_token_bytes *bytes = &m->grammar->bytes;
    if (token < 0 || token >= bytes->n_tokens) return fail_token(m, token, err);
    if (bytes->ends[token / 32] >> (token % 32) & 1) {
        if (!qn_matcher_may_end(m))
            return QN_FAIL(err, ARGUMENT, "token %d: the text may not end here", token);
        m->has_ended = true;
        return QN_OK;
    }
    bool fits = false;
    if (m->has_ended) return fail_token(m, token, err);
    qn_gr_states_allow(m->states, m->grammar->token_steps);
    qn_gr_states_result result = take_token(&fits, m, token);
    if (result == QN_STATES_FULL) {
        sweep(m);
        result = take_token(&fits, m, token);
    }
    if (result) return fail_states(m, result, err);
    return fits ? QN_OK : fail_token(m, token, err);
}

// --- masks ---------------------------------------------------------------------------------------

void qn_gr_matcher_allow(const qn_matcher *m, uint32_t *mask, int32_t token) {
    for (; token >= 0; token = m->grammar->bytes.same[token])
        if ((size_t)token < m->n_vocab) mask[token / 32] |= 1u << (token % 32);
}

// Adds the tokens of a trie that fit from `state`, all of them: a state that cannot be made is an
// error, not an end.
static qn_gr_states_result walk_trie(qn_matcher *m, uint32_t *mask, const qn_gr_trie *trie,
                                     int32_t state) {
    const uint8_t *class_of = m->grammar->program.class_of;
    for (uint32_t i = 0; i < trie->n;) {
        const qn_gr_trie_node node = trie->nodes[i];
        const int32_t from = node.depth ? m->path[node.depth - 1] : state;
        int32_t to = qn_gr_states_row(m->states, from)[class_of[node.byte]];
        if (to < 0) {
            const qn_gr_states_result result = qn_gr_states_step(&to, m->states, from, node.byte);
            if (result) return result;
        }
        if (to == QN_STATE_DEAD) {
            i = node.end;
            continue;
        }
        m->path[node.depth] = to;
        if (node.token >= 0) qn_gr_matcher_allow(m, mask, node.token);
        i++;
    }
    return QN_STATES_OK;
}

// Adds all tokens with a text but one.
static void allow_others(const qn_matcher *m, uint32_t *mask, int32_t token) {
    const qn_gr_token_bytes *bytes = &m->grammar->bytes;
    for (int32_t id = 0; id < bytes->n_tokens && (size_t)id < m->n_vocab; id++)
        if (id != token && bytes->offsets[id + 1] > bytes->offsets[id])
            mask[id / 32] |= 1u << (id % 32);
}

// Adds the tokens that the state's stacks name themselves.
static void add_tokens(qn_matcher *m, uint32_t *mask, int32_t state) {
    const qn_gr_state *s = qn_gr_states_get(m->states, state);
    for (uint32_t i = 0; s->has_tokens && i < s->n; i++) {
        int32_t token;
        bool negated;
        if (!qn_gr_states_get_token(m->states, state, i, &token, &negated)) continue;
        if (negated)
            allow_others(m, mask, token);
        else if ((size_t)token < m->n_vocab)
            mask[token / 32] |= 1u << (token % 32);
    }
}

// How many plain characters in a row lead on from the state, whichever they are, QN_PLAIN_MAX
// meaning any number; -1 if it depends on the characters.
static qn_gr_states_result count_plain(int *out, qn_matcher *m, int32_t state) {
    for (int n = 0; n < QN_PLAIN_MAX; n++) {
        int32_t next;
        const qn_gr_states_result result = qn_gr_states_advance(&next, m->states, state);
        if (result) return result;
        if (next < 0 || next == QN_STATE_DEAD) {
            *out = next < 0 ? -1 : n;
            return QN_STATES_OK;
        }
        if (next == state) break;
        state = next;
    }
    *out = QN_PLAIN_MAX;
    return QN_STATES_OK;
}

static qn_gr_states_result fill_mask(qn_matcher *m, uint32_t *mask, int32_t state) {
    const qn_gr_token_bytes *bytes = &m->grammar->bytes;
    const size_t n_words = bytes->n_words < m->n_words ? bytes->n_words : m->n_words;
    int n_plain = -1;
    qn_gr_states_result result = count_plain(&n_plain, m, state);
    if (result) return result;
    memset(mask, 0, m->n_words * sizeof *mask);
    if (n_plain > 0)
        memcpy(mask, bytes->plain + (size_t)n_plain * bytes->n_words, n_words * sizeof *mask);
    result = walk_trie(m, mask, n_plain >= 0 ? &bytes->special : &bytes->all, state);
    add_tokens(m, mask, state);
    if (qn_gr_states_get(m->states, state)->may_end)
        for (size_t i = 0; i < n_words; i++) mask[i] |= bytes->ends[i];
    // Plain tokens beyond a smaller vocabulary.
    if (m->n_vocab % 32) mask[m->n_words - 1] &= (1u << (m->n_vocab % 32)) - 1;
    return result;
}

qn_gr_states_result qn_gr_matcher_find_mask(const uint32_t **allowed, qn_matcher *m) {
    int32_t state;
    qn_gr_states_result result = qn_gr_states_canon(&state, m->states, m->now);
    if (result) return result;
    int32_t *mask = &qn_gr_states_get(m->states, state)->mask;
    if (*mask < 0) {
        if (m->n_masks == m->n_masks_max - 2) return QN_STATES_FULL;
        result = fill_mask(m, m->masks + m->n_masks * m->n_words, state);
        if (result) return result;
        *mask = (int32_t)m->n_masks++;
    } else {
        m->stats.n_hits++;
    }
    *allowed = m->masks + (size_t)*mask * m->n_words;
    return QN_STATES_OK;
}

uint32_t *qn_gr_matcher_spare(const qn_matcher *m) {
    return m->masks + (m->n_masks_max - 2) * m->n_words;
}

static qn_gr_states_result find_mask(const uint32_t **allowed, qn_matcher *m) {
    return m->grammar->gate ? qn_gr_gate_mask(allowed, m) : qn_gr_matcher_find_mask(allowed, m);
}

// After an end token only another can come.
static const uint32_t *end_mask(qn_matcher *m) {
    const qn_gr_token_bytes *bytes = &m->grammar->bytes;
    uint32_t *mask = m->masks + (m->n_masks_max - 1) * m->n_words;
    for (size_t i = 0; i < bytes->n_words && i < m->n_words; i++) mask[i] = bytes->ends[i];
    return mask;
}

static bool is_empty(const uint32_t *mask, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (mask[i]) return false;
    return true;
}

qn_status qn_matcher_mask(const uint32_t **allowed, qn_matcher *m, qn_err *err) {
    m->stats.n_masks++;
    const uint32_t *mask = NULL;
    if (m->has_ended) {
        mask = end_mask(m);
    } else {
        qn_gr_states_allow(m->states, m->grammar->token_steps);
        qn_gr_states_result result = find_mask(&mask, m);
        if (result == QN_STATES_FULL) {
            sweep(m);
            result = find_mask(&mask, m);
        }
        if (result) return fail_states(m, result, err);
    }
    if (!mask) { // any
        *allowed = NULL;
        return QN_OK;
    }
    if (is_empty(mask, m->n_words) && qn_gr_states_was_cut(m->states))
        return QN_FAIL(err, LIMIT, "grammar: no token can follow without more than %d frames",
                       QN_STACK_DEPTH_MAX);
    if (is_empty(mask, m->n_words))
        return QN_FAIL(err, STATE, "grammar: no token of the vocabulary can follow here");
    *allowed = mask;
    return QN_OK;
}
