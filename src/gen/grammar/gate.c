// The gate of a grammar: follows the free parts of an answer byte by byte, and says where the
// grammar begins to hold. Tags are read as text; a special token stands for the text of its tag.
#include "core/chars.h"
#include "gen/grammar/matcher_int.h"

// --- following -----------------------------------------------------------------------------------

static bool holds_at_once(const qn_gr_gate *g) { return !g->call; }

static void reset_opens(qn_gr_gate_run *r) { memset(r->opens, 0, sizeof r->opens); }

// Where an answer, or the text after reasoning or a call, begins.
static void enter_start(qn_gr_gate_run *r) {
    r->place = QN_GATE_START;
    r->seen = 0;
    reset_opens(r);
}

qn_gr_gate_run qn_gr_gate_begin(const qn_gr_gate *gate) {
    qn_gr_gate_run r = {.place = QN_GATE_START};
    if (gate->n_pairs && gate->is_inside)
        r.place = QN_GATE_THINK;
    else if (!gate->n_pairs && holds_at_once(gate))
        r.place = QN_GATE_HELD;
    return r;
}

// Bytes of the tag that the text ends in, after one more byte: the next beginning of the tag that
// is also an end of the text, if this one does not go on.
static uint8_t advance(const char *tag, uint8_t seen, uint8_t byte) {
    while (true) {
        if ((uint8_t)tag[seen] == byte) return (uint8_t)(seen + 1);
        if (seen == 0) return 0;
        uint8_t n = (uint8_t)(seen - 1);
        while (n && memcmp(tag, tag + seen - n, n) != 0) n--;
        seen = n;
    }
}

static bool is_whole(const char *tag, uint8_t seen) { return seen && !tag[seen]; }

// Follows the tags that reasoning may begin with. True: one of them is complete, r->pair.
static bool follow_opens(const qn_gr_gate *g, qn_gr_gate_run *r, uint8_t byte, bool *may_come) {
    *may_come = false;
    for (size_t i = 0; i < g->n_pairs; i++) {
        const char *open = g->pairs[i].open;
        if (r->opens[i] == QN_GATE_LOST) continue;
        r->opens[i] =
            (uint8_t)open[r->opens[i]] == byte ? (uint8_t)(r->opens[i] + 1) : QN_GATE_LOST;
        if (r->opens[i] == QN_GATE_LOST) continue;
        *may_come = true;
        if (open[r->opens[i]]) continue;
        r->pair = (uint8_t)i;
        return true;
    }
    return false;
}

static bool is_open(const qn_gr_gate *g, const qn_gr_gate_run *r) {
    for (size_t i = 0; i < g->n_pairs; i++)
        if (r->opens[i] != QN_GATE_LOST) return true;
    return false;
}

static bool has_begun(const qn_gr_gate *g, const qn_gr_gate_run *r) {
    for (size_t i = 0; i < g->n_pairs; i++)
        if (r->opens[i] && r->opens[i] != QN_GATE_LOST) return true;
    return false;
}

static void enter_think(qn_gr_gate_run *r) {
    r->place = QN_GATE_THINK;
    r->seen = 0;
}

// A tag that counts only at the start is lost with the first byte that is not of it.
static void follow_call(const qn_gr_gate *g, qn_gr_gate_run *r, uint8_t byte) {
    if (!g->is_first)
        r->seen = advance(g->call, r->seen, byte);
    else if (r->seen != QN_GATE_LOST)
        r->seen = (uint8_t)g->call[r->seen] == byte ? (uint8_t)(r->seen + 1) : QN_GATE_LOST;
}

static bool is_call(const qn_gr_gate *g, const qn_gr_gate_run *r) {
    return r->seen != QN_GATE_LOST && is_whole(g->call, r->seen);
}

// One byte of free text at its start, where only blanks came.
static void step_start(const qn_gr_gate *g, qn_gr_gate_run *r, uint8_t byte) {
    bool may_come;
    if (qn_is_blank((char)byte) && !r->seen && !has_begun(g, r)) return;
    follow_call(g, r, byte);
    if (is_call(g, r)) {
        r->place = QN_GATE_HELD;
    } else if (follow_opens(g, r, byte, &may_come)) {
        enter_think(r);
    } else if (!may_come) {
        const bool goes_on = g->is_first && r->seen && r->seen != QN_GATE_LOST;
        r->has_text |= !goes_on;
        if (!goes_on) r->place = QN_GATE_TEXT;
    }
}

static void step_think(const qn_gr_gate *g, qn_gr_gate_run *r, uint8_t byte) {
    const char *close = g->pairs[r->pair].close;
    r->seen = advance(close, r->seen, byte);
    if (!is_whole(close, r->seen)) return;
    enter_start(r);
    if (holds_at_once(g)) r->place = QN_GATE_LEADING;
    r->n_blanks = 0;
}

static void step_text(const qn_gr_gate *g, qn_gr_gate_run *r, uint8_t byte) {
    if (g->is_first) return;
    follow_call(g, r, byte);
    if (is_call(g, r)) r->place = QN_GATE_HELD;
}

// Where the text of the grammar is over.
static qn_gr_states_result leave(qn_matcher *m, qn_gr_gate_run *r, int32_t *state) {
    const qn_gr_state *s = qn_gr_states_get(m->states, *state);
    if (!m->grammar->gate->again || !s->may_end || s->n) return QN_STATES_OK;
    enter_start(r);
    if (r->has_text) r->place = QN_GATE_TEXT;
    return qn_gr_states_start(state, m->states);
}

// One byte of what the grammar holds for; *state becomes QN_STATE_DEAD if it does not fit.
static qn_gr_states_result step_held(qn_matcher *m, qn_gr_gate_run *r, int32_t *state,
                                     uint8_t byte) {
    const bool is_leading = r->place == QN_GATE_LEADING;
    if (is_leading && qn_is_blank((char)byte) && r->n_blanks < QN_GATE_BLANKS) {
        r->n_blanks++;
        return QN_STATES_OK;
    }
    r->place = QN_GATE_HELD;
    const qn_gr_states_result result = qn_gr_states_step(state, m->states, *state, byte);
    return result || *state == QN_STATE_DEAD ? result : leave(m, r, state);
}

static qn_gr_states_result step_byte(qn_matcher *m, qn_gr_gate_run *r, int32_t *state,
                                     uint8_t byte) {
    const qn_gr_gate *g = m->grammar->gate;
    switch ((qn_gr_gate_place)r->place) {
    case QN_GATE_START:
        step_start(g, r, byte);
        return QN_STATES_OK;
    case QN_GATE_THINK:
        step_think(g, r, byte);
        return QN_STATES_OK;
    case QN_GATE_TEXT:
        step_text(g, r, byte);
        return QN_STATES_OK;
    case QN_GATE_LEADING:
    case QN_GATE_HELD:
        break;
    }
    return step_held(m, r, state, byte);
}

// --- tokens --------------------------------------------------------------------------------------

// The text of a token, or of the tag that it stands for.
static qn_str text_of(const qn_matcher *m, int32_t token) {
    const qn_gr_token_bytes *bytes = &m->grammar->bytes;
    const qn_gr_gate *g = m->grammar->gate;
    const uint32_t at = bytes->offsets[token], n = bytes->offsets[token + 1] - at;
    for (size_t i = 0; i < g->n_pieces && n == 0; i++)
        if (g->pieces[i].token == token) return qn_str_of(g->pieces[i].text);
    return (qn_str){bytes->text + at, n};
}

// What is free is never refused: bytes behind a tag, in the token that completes it, that do not
// fit the grammar are left out of it. Masks exclude such tokens where they can be foreseen.
static qn_gr_states_result take_text(bool *fits, qn_matcher *m, qn_str text) {
    qn_gr_gate_run r = m->run;
    int32_t state = m->now;
    const bool was_free = r.place < QN_GATE_LEADING;
    *fits = true;
    for (size_t i = 0; i < text.size; i++) {
        const int32_t before = state;
        const qn_gr_states_result result = step_byte(m, &r, &state, (uint8_t)text.data[i]);
        if (result) return result;
        if (state != QN_STATE_DEAD) continue;
        *fits = was_free;
        if (!was_free) return QN_STATES_OK;
        state = before;
        break;
    }
    m->run = r;
    m->now = state;
    return QN_STATES_OK;
}

// A token of the grammar itself.
static qn_gr_states_result take_held(bool *fits, qn_matcher *m, int32_t token) {
    const int32_t from = m->now;
    qn_gr_gate_run r = m->run;
    qn_gr_states_result result = qn_gr_matcher_take(fits, m, token);
    if (result || !*fits) return result;
    r.place = QN_GATE_HELD;
    int32_t state = m->now;
    result = leave(m, &r, &state);
    m->now = result ? from : state; // a call that fails is made again
    if (!result) m->run = r;
    return result;
}

// The grammar's text or reasoning: which of them it is may be open for a while. Without a state the
// text can be reasoning alone.
static qn_gr_states_result take_start(bool *fits, qn_matcher *m, int32_t token) {
    const qn_gr_gate *g = m->grammar->gate;
    const qn_str text = text_of(m, token);
    const int32_t from = m->now;
    qn_gr_gate_run r = m->run;
    bool may_come = text.size > 0 && is_open(g, &r), is_reasoning = false;
    size_t i = 0;
    while (i < text.size && may_come && !is_reasoning)
        is_reasoning = follow_opens(g, &r, (uint8_t)text.data[i++], &may_come);
    *fits = false;
    if (is_reasoning) {
        int32_t start;
        const qn_gr_states_result result = qn_gr_states_start(&start, m->states);
        if (result) return result;
        enter_think(&r);
        m->now = start;
        m->run = r;
        return take_text(fits, m, (qn_str){text.data + i, text.size - i});
    }
    if (m->now != QN_STATE_DEAD) {
        const qn_gr_states_result result = qn_gr_matcher_take(fits, m, token);
        if (result) return result;
    }
    if (!*fits && !may_come) {
        m->now = from;
        return QN_STATES_OK;
    }
    if (!*fits) m->now = QN_STATE_DEAD;
    *fits = true;
    if (!may_come) r.place = QN_GATE_HELD;
    m->run = r;
    return QN_STATES_OK;
}

qn_gr_states_result qn_gr_gate_take(bool *fits, qn_matcher *m, int32_t token) {
    const qn_gr_gate *g = m->grammar->gate;
    const qn_str text = text_of(m, token);
    const uint8_t place = m->run.place;
    if (place == QN_GATE_HELD) return take_held(fits, m, token);
    if (place == QN_GATE_START && holds_at_once(g)) return take_start(fits, m, token);
    const bool is_blank = text.size && qn_is_blank(*text.data);
    if (place == QN_GATE_LEADING && !(is_blank && m->run.n_blanks < QN_GATE_BLANKS))
        return take_held(fits, m, token);
    return take_text(fits, m, text);
}

bool qn_gr_gate_may_end(const qn_matcher *m) {
    if (m->run.place == QN_GATE_THINK) return !holds_at_once(m->grammar->gate);
    if (m->run.place < QN_GATE_LEADING && !holds_at_once(m->grammar->gate)) return true;
    return qn_gr_states_get(m->states, m->now)->may_end;
}

// --- masks ---------------------------------------------------------------------------------------

static void allow_all(const qn_matcher *m, uint32_t *mask) {
    memset(mask, 0xff, m->n_words * sizeof *mask);
    if (m->n_vocab % 32) mask[m->n_words - 1] = (1u << (m->n_vocab % 32)) - 1;
}

// The node of the tree of tokens that `text` leads to from those at [*from, *to); trie->n: none.
static uint32_t find_node(const qn_gr_trie *trie, uint32_t from, uint32_t to, uint8_t byte) {
    for (uint32_t i = from; i < to; i = trie->nodes[i].end)
        if (trie->nodes[i].byte == byte) return i;
    return (uint32_t)trie->n;
}

// States in `path` below 0 are LEADING, after that many blanks: ~blanks.
static qn_gr_states_result step_path(int32_t *to, qn_matcher *m, int32_t from, uint8_t byte) {
    const bool is_blank = from < 0 && qn_is_blank((char)byte) && ~from < QN_GATE_BLANKS;
    *to = is_blank ? from - 1 : QN_STATE_DEAD;
    if (is_blank || from == QN_STATE_DEAD) return QN_STATES_OK;
    return qn_gr_states_step(to, m->states, from < 0 ? m->now : from, byte);
}

// Takes the tokens out of a mask that end a tag, of which `seen` bytes are there, and go on with
// what does not fit the grammar. *found: there are tokens that go on; a mask of NULL: only look.
static qn_gr_states_result exclude(bool *found, uint32_t *mask, qn_matcher *m, const char *tag,
                                   uint8_t seen) {
    const qn_gr_trie *trie = &m->grammar->bytes.all;
    uint32_t from = 0, to = (uint32_t)trie->n;
    *found = false;
    for (const char *c = tag + seen; *c; c++) {
        const uint32_t at = find_node(trie, from, to, (uint8_t)*c);
        if (at == trie->n) return QN_STATES_OK;
        from = at + 1;
        to = trie->nodes[at].end;
    }
    *found = from < to;
    const uint32_t depth = (uint32_t)strlen(tag + seen);
    for (uint32_t i = from; i < to && mask; i++) {
        const qn_gr_trie_node *node = &trie->nodes[i];
        const int32_t start = holds_at_once(m->grammar->gate) ? ~0 : m->now;
        const int32_t before = node->depth == depth ? start : m->path[node->depth - 1];
        const qn_gr_states_result result = step_path(&m->path[node->depth], m, before, node->byte);
        if (result) return result;
        if (m->path[node->depth] != QN_STATE_DEAD) continue;
        for (int32_t id = node->token; id >= 0; id = m->grammar->bytes.same[id])
            if ((size_t)id < m->n_vocab) mask[id / 32] &= ~(1u << (id % 32));
    }
    return QN_STATES_OK;
}

// Free text: any token, but for those that end a tag and go on as the grammar does not.
static qn_gr_states_result mask_free(const uint32_t **allowed, qn_matcher *m) {
    const qn_gr_gate *g = m->grammar->gate;
    uint32_t *mask = qn_gr_matcher_spare(m);
    bool found;
    *allowed = NULL;
    if (m->run.place == QN_GATE_THINK || m->run.seen == QN_GATE_LOST) return QN_STATES_OK;
    if (m->run.place == QN_GATE_TEXT && g->is_first) return QN_STATES_OK;
    qn_gr_states_result result = exclude(&found, NULL, m, g->call, m->run.seen);
    if (result || !found) return result;
    allow_all(m, mask);
    result = exclude(&found, mask, m, g->call, m->run.seen);
    *allowed = mask;
    return result;
}

// Reasoning before what the grammar holds for: the answer cannot end in it.
static qn_gr_states_result mask_think(const uint32_t **allowed, qn_matcher *m) {
    const qn_gr_token_bytes *bytes = &m->grammar->bytes;
    uint32_t *mask = qn_gr_matcher_spare(m);
    bool found;
    allow_all(m, mask);
    for (size_t i = 0; i < bytes->n_words && i < m->n_words; i++) mask[i] &= ~bytes->ends[i];
    *allowed = mask;
    return exclude(&found, mask, m, m->grammar->gate->pairs[m->run.pair].close, m->run.seen);
}

// Adds the tokens that go on with a tag.
static void add_tag(uint32_t *mask, const qn_matcher *m, const char *rest) {
    const qn_gr_trie *trie = &m->grammar->bytes.all;
    const qn_gr_gate *g = m->grammar->gate;
    const size_t size = strlen(rest);
    for (size_t i = 0; i < g->n_pieces; i++) {
        const size_t n = strlen(g->pieces[i].text);
        if (memcmp(g->pieces[i].text, rest, n < size ? n : size) == 0)
            qn_gr_matcher_allow(m, mask, g->pieces[i].token);
    }
    uint32_t from = 0, to = (uint32_t)trie->n;
    for (; *rest; rest++) {
        const uint32_t at = find_node(trie, from, to, (uint8_t)*rest);
        if (at == trie->n) return;
        qn_gr_matcher_allow(m, mask, trie->nodes[at].token);
        from = at + 1;
        to = trie->nodes[at].end;
    }
    for (; from < to; from++) qn_gr_matcher_allow(m, mask, trie->nodes[from].token);
}

// Adds the tokens that begin with blanks and go on as the grammar does.
static qn_gr_states_result add_leading(uint32_t *mask, qn_matcher *m) {
    const qn_gr_trie *trie = &m->grammar->bytes.all;
    for (uint32_t i = 0; i < trie->n;) {
        const qn_gr_trie_node *node = &trie->nodes[i];
        const int32_t from = node->depth ? m->path[node->depth - 1] : ~(int32_t)m->run.n_blanks;
        int32_t to = QN_STATE_DEAD;
        const bool is_other = node->depth == 0 && !qn_is_blank((char)node->byte);
        if (!is_other) {
            const qn_gr_states_result result = step_path(&to, m, from, node->byte);
            if (result) return result;
        }
        m->path[node->depth] = to;
        if (to != QN_STATE_DEAD) qn_gr_matcher_allow(m, mask, node->token);
        i = to == QN_STATE_DEAD ? node->end : i + 1;
    }
    return QN_STATES_OK;
}

// What the grammar allows, and a tag that reasoning begins with, or blanks.
static qn_gr_states_result mask_start(const uint32_t **allowed, qn_matcher *m) {
    const qn_gr_gate *g = m->grammar->gate;
    const qn_gr_gate_run *r = &m->run;
    uint32_t *mask = qn_gr_matcher_spare(m);
    const uint32_t *fits = NULL;
    if (m->now != QN_STATE_DEAD) {
        const qn_gr_states_result result = qn_gr_matcher_find_mask(&fits, m);
        if (result) return result;
        memcpy(mask, fits, m->n_words * sizeof *mask);
    } else {
        memset(mask, 0, m->n_words * sizeof *mask);
    }
    *allowed = mask;
    if (r->place == QN_GATE_LEADING)
        return r->n_blanks < QN_GATE_BLANKS ? add_leading(mask, m) : QN_STATES_OK;
    for (size_t i = 0; i < g->n_pairs; i++)
        if (r->opens[i] != QN_GATE_LOST) add_tag(mask, m, g->pairs[i].open + r->opens[i]);
    return QN_STATES_OK;
}

qn_gr_states_result qn_gr_gate_mask(const uint32_t **allowed, qn_matcher *m) {
    if (m->run.place == QN_GATE_HELD) return qn_gr_matcher_find_mask(allowed, m);
    if (!holds_at_once(m->grammar->gate)) return mask_free(allowed, m);
    return m->run.place == QN_GATE_THINK ? mask_think(allowed, m) : mask_start(allowed, m);
}
