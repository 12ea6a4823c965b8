#include "gen/grammar/states.h"

#include "core/mem.h"

#include <stdlib.h>

enum {
    CELL_SLOTS = QN_CELLS_MAX * 2,
    FIRST_SLOTS = 1024,
    STATE_SLOTS = QN_STATES_MAX * 2,
    SEEN_SLOTS = QN_STATE_PLACES_MAX * 2,
    FIRST_SEEN = 1 << 16,
    UNKNOWN = -2, // of `advance`
};

typedef struct place {
    int32_t node;
    uint32_t stack;
} place;

typedef struct seen_slot {
    place at;
    uint32_t round; // it is taken if this is the present round
} seen_slot;

struct qn_gr_states {
    const qn_gr_program *program;
    uint32_t longest; // token, in bytes
    // Parts of one reserved block: pages count when they are touched.
    void *block;
    size_t block_size;
    qn_gr_cell *cells, *spare;
    uint32_t *cell_slots, *renamed;
    uint32_t *stacks; // of all sets
    qn_gr_state *states;
    uint32_t *state_slots;
    int32_t *rows; // (state, class) -> state, -1: not known
    seen_slot *seen;
    size_t seen_mask; // slots in use, less one, as cell_mask
    place *work;      // all that was met in this round, in the order in which it is followed
    size_t n_cells, n_stacks, n_states;
    size_t cell_mask; // slots in use, less one: few cells touch few pages
    uint32_t round;
    uint64_t steps_left;
    // The set that is being made.
    uint32_t *made;
    size_t n_made;
    bool made_may_end;
    bool was_cut; // see qn_gr_states_was_cut
};

// A row for each array: where, and how many bytes.
typedef struct area {
    void **at;
    size_t size;
} area;

enum { N_AREAS = 11 };

static size_t align_up(size_t size) { return (size + 4095) & ~(size_t)4095; }

static void list_areas(area out[N_AREAS], qn_gr_states *s) {
    const area areas[N_AREAS] = {
        {(void **)&s->cells, QN_CELLS_MAX * sizeof *s->cells},
        {(void **)&s->spare, QN_CELLS_MAX * sizeof *s->spare},
        {(void **)&s->cell_slots, CELL_SLOTS * sizeof *s->cell_slots},
        {(void **)&s->renamed, QN_CELLS_MAX * sizeof *s->renamed},
        {(void **)&s->stacks, QN_STACKS_MAX * sizeof *s->stacks},
        {(void **)&s->states, QN_STATES_MAX * sizeof *s->states},
        {(void **)&s->state_slots, STATE_SLOTS * sizeof *s->state_slots},
        {(void **)&s->rows, QN_STATES_MAX * s->program->n_classes * sizeof *s->rows},
        {(void **)&s->seen, SEEN_SLOTS * sizeof *s->seen},
        {(void **)&s->work, QN_STATE_PLACES_MAX * sizeof *s->work},
        {(void **)&s->made, QN_STATE_STACKS_MAX * sizeof *s->made},
    };
    memcpy(out, areas, sizeof areas);
}

// Cell 0 is the bottom of every stack, state 0 the empty set. The tables must be zero, as reserved
// memory is.
static void start_empty(qn_gr_states *s) {
    s->cell_mask = FIRST_SLOTS - 1;
    s->n_cells = s->n_states = 1;
    s->n_stacks = 0;
    s->cells[0] = (qn_gr_cell){0};
    s->states[0] = (qn_gr_state){.canon = QN_STATE_DEAD, .advance = QN_STATE_DEAD, .mask = -1};
    memset(s->rows, 0, s->program->n_classes * sizeof *s->rows);
}

qn_status qn_gr_states_create(qn_gr_states **out, const qn_gr_program *program,
                              size_t longest_token, qn_err *err) {
    qn_gr_states *s = qn_alloc(1, sizeof *s);
    if (!s) return QN_NOMEM(err, "states of a grammar");
    s->program = program;
    s->longest = (uint32_t)(longest_token ? longest_token : 1);
    area areas[N_AREAS];
    list_areas(areas, s);
    for (size_t i = 0; i < N_AREAS; i++) s->block_size += align_up(areas[i].size);
    s->block = qn_reserve(s->block_size);
    if (!s->block) {
        qn_gr_states_destroy(s);
        return QN_NOMEM(err, "states of a grammar");
    }
    char *at = s->block;
    for (size_t i = 0; i < N_AREAS; i++) {
        *areas[i].at = at;
        at += align_up(areas[i].size);
    }
    s->seen_mask = FIRST_SEEN - 1;
    start_empty(s);
    *out = s;
    return QN_OK;
}

void qn_gr_states_destroy(qn_gr_states *s) {
    if (!s) return;
    if (s->block) qn_unreserve(s->block, s->block_size);
    qn_free(s);
}

// --- cells ---------------------------------------------------------------------------------------

static uint32_t mix(uint32_t h, uint32_t value) {
    h = (h ^ value) * 0x9E3779B1u;
    return h ^ (h >> 15);
}

// A round reads a byte at least, so within the longest token a counter moves by at most that many.
static uint32_t canon_count(const qn_gr_states *s, int32_t node, uint32_t count) {
    if (node >= 0) return count;
    const qn_gr_pnode *n = &s->program->nodes[~node];
    if (n->kind == QN_P_COUNTED) {
        const qn_gr_lengths *lengths = s->program->lengths[n->b];
        return count ? qn_gr_lengths_canon(lengths, count - 1, s->longest) + 1 : 0;
    }
    if (count < n->min) return n->min - count > s->longest ? n->min - s->longest - 1 : count;
    if (n->max == QN_AST_MANY || n->max - count <= s->longest) return count;
    return n->max - s->longest - 1;
}

static size_t cell_slot(const qn_gr_states *s, int32_t node, uint32_t count, uint32_t parent) {
    size_t at = mix(mix(mix(17, (uint32_t)node), count), parent) & s->cell_mask;
    for (; s->cell_slots[at]; at = (at + 1) & s->cell_mask) {
        const qn_gr_cell *cell = &s->cells[s->cell_slots[at]];
        if (cell->node == node && cell->count == count && cell->parent == parent) break;
    }
    return at;
}

static void grow_cell_slots(qn_gr_states *s) {
    memset(s->cell_slots, 0, (s->cell_mask + 1) * sizeof *s->cell_slots);
    s->cell_mask = s->cell_mask * 2 + 1;
    for (uint32_t i = 1; i < s->n_cells; i++) {
        const qn_gr_cell *cell = &s->cells[i];
        s->cell_slots[cell_slot(s, cell->node, cell->count, cell->parent)] = i;
    }
}

// 0 when the memory is full.
static uint32_t get_cell(qn_gr_states *s, int32_t node, uint32_t count, uint32_t parent) {
    const uint32_t known = s->cell_slots[cell_slot(s, node, count, parent)];
    if (known) return known;
    const uint32_t canon_parent = s->cells[parent].canon, fixed = canon_count(s, node, count);
    uint32_t canon = 0;
    if (canon_parent != parent || fixed != count) {
        canon = get_cell(s, node, fixed, canon_parent); // once: that one is its own
        if (!canon) return 0;
    }
    if (s->n_cells == QN_CELLS_MAX) return 0;
    if (s->n_cells * 2 > s->cell_mask) grow_cell_slots(s);
    const uint32_t made = (uint32_t)s->n_cells++;
    s->cells[made] =
        (qn_gr_cell){node, count, parent, canon ? canon : made, s->cells[parent].depth + 1};
    s->cell_slots[cell_slot(s, node, count, parent)] = made;
    return made;
}

// --- making a state ------------------------------------------------------------------------------

// True if the place is new in this round.
static bool mark_seen(qn_gr_states *s, place at) {
    size_t slot = mix(mix(29, (uint32_t)at.node), at.stack) & s->seen_mask;
    for (; s->seen[slot].round == s->round; slot = (slot + 1) & s->seen_mask)
        if (s->seen[slot].at.node == at.node && s->seen[slot].at.stack == at.stack) return false;
    s->seen[slot] = (seen_slot){at, s->round};
    return true;
}

static void forget_seen(qn_gr_states *s) {
    if (++s->round == 0) { // wrapped: old marks would look new
        memset(s->seen, 0, SEEN_SLOTS * sizeof *s->seen);
        s->round = 1;
    }
}

// Marks the first `n` places of `work` in a table that is twice as large.
static void grow_seen(qn_gr_states *s, size_t n) {
    s->seen_mask = s->seen_mask * 2 + 1;
    forget_seen(s);
    for (size_t i = 0; i < n; i++) mark_seen(s, s->work[i]);
}

static void begin(qn_gr_states *s) {
    forget_seen(s);
    s->n_made = 0;
    s->made_may_end = false;
}

typedef struct closing {
    size_t n, n_done; // places met; those of them that were followed
    qn_gr_states_result result;
} closing;

static void want(qn_gr_states *s, closing *c, int32_t node, uint32_t stack) {
    if (!mark_seen(s, (place){node, stack})) return;
    if (c->n == QN_STATE_PLACES_MAX) {
        c->result = QN_STATES_AMBIGUOUS;
        return;
    }
    s->work[c->n++] = (place){node, stack};
    if (c->n * 2 > s->seen_mask && s->seen_mask < SEEN_SLOTS - 1) grow_seen(s, c->n);
}

// A deeper stack than allowed is as if the grammar did not have this branch.
static void want_under(qn_gr_states *s, closing *c, int32_t node, place frame, uint32_t count) {
    if (s->cells[frame.stack].depth >= QN_STACK_DEPTH_MAX) {
        s->was_cut = true;
        return;
    }
    const uint32_t stack = get_cell(s, frame.node, count, frame.stack);
    if (!stack)
        c->result = QN_STATES_FULL;
    else
        want(s, c, node, stack);
}

// `count` rounds of the loop are over.
static void close_loop(qn_gr_states *s, closing *c, place loop, uint32_t count) {
    const qn_gr_pnode *node = &s->program->nodes[loop.node];
    if (node->max == QN_AST_MANY && count > node->min) count = node->min;
    if (count < node->max) want_under(s, c, node->a, (place){~loop.node, loop.stack}, count);
    if (count >= node->min) want(s, c, node->next, loop.stack);
}

// At the end of a counted string. The frame's count is one more than the characters, 0 before the
// start.
static void close_counted(qn_gr_states *s, closing *c, const qn_gr_cell *frame) {
    const qn_gr_pnode *node = &s->program->nodes[~frame->node];
    const qn_gr_lengths *lengths = s->program->lengths[node->b];
    const uint32_t chars = frame->count - 1;
    if (chars >= lengths->min && chars <= lengths->max) want(s, c, node->next, frame->parent);
}

// Goes on only where an end within the bounds can be reached.
static void close_place(qn_gr_states *s, closing *c, place at) {
    const qn_gr_pnode *node = &s->program->nodes[at.node];
    const qn_gr_lengths *lengths = s->program->lengths[node->a];
    const qn_gr_cell frame = s->cells[at.stack];
    uint32_t chars = frame.count ? frame.count - 1 : 0;
    if (node->max && frame.count) chars = qn_gr_lengths_next(lengths, chars);
    if (!qn_gr_lengths_fit(lengths, node->min, chars)) return;
    const uint32_t stack =
        chars + 1 == frame.count ? at.stack : get_cell(s, frame.node, chars + 1, frame.parent);
    if (!stack)
        c->result = QN_STATES_FULL;
    else
        want(s, c, node->next, stack);
}

static void close_return(qn_gr_states *s, closing *c, uint32_t stack) {
    if (!stack) {
        s->made_may_end = true;
        return;
    }
    const qn_gr_cell frame = s->cells[stack];
    if (frame.node < 0 && s->program->nodes[~frame.node].kind == QN_P_COUNTED)
        close_counted(s, c, &frame);
    else if (frame.node < 0)
        close_loop(s, c, (place){~frame.node, frame.parent}, frame.count + 1);
    else
        want(s, c, frame.node, frame.parent);
}

static void close_byte(qn_gr_states *s, closing *c, place at) {
    const uint32_t top = get_cell(s, at.node, 0, at.stack);
    if (!top)
        c->result = QN_STATES_FULL;
    else if (s->n_made == QN_STATE_STACKS_MAX)
        c->result = QN_STATES_AMBIGUOUS;
    else
        s->made[s->n_made++] = top;
}

// Follows everything that reads nothing, down to the nodes that read a byte.
static void close_one(qn_gr_states *s, closing *c, place at) {
    const qn_gr_pnode *node = &s->program->nodes[at.node];
    switch ((qn_gr_pnode_kind)node->kind) {
    case QN_P_RETURN:
        close_return(s, c, at.stack);
        break;
    case QN_P_BYTE:
    case QN_P_TOKEN:
        close_byte(s, c, at);
        break;
    case QN_P_CALL:
        if (node->next == 0) // the last thing of a rule needs no frame
            want(s, c, node->a, at.stack);
        else
            want_under(s, c, node->a, (place){node->next, at.stack}, 0);
        break;
    case QN_P_SPLIT:
        for (int32_t i = 0; i < node->b; i++) want(s, c, s->program->edges[node->a + i], at.stack);
        break;
    case QN_P_LOOP:
        close_loop(s, c, at, 0);
        break;
    case QN_P_COUNTED:
        want_under(s, c, node->a, (place){~at.node, at.stack}, 0);
        break;
    case QN_P_PLACE:
        close_place(s, c, at);
        break;
    }
}

static qn_gr_states_result close_from(qn_gr_states *s, closing *c, int32_t node, uint32_t stack) {
    want(s, c, node, stack);
    while (c->n_done < c->n && !c->result) {
        if (s->steps_left == 0) return QN_STATES_COSTLY;
        s->steps_left--;
        close_one(s, c, s->work[c->n_done++]);
    }
    return c->result;
}

static int compare_stacks(const void *x, const void *y) {
    const uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;
    return (a > b) - (a < b);
}

static void sort_made(qn_gr_states *s) {
    if (s->n_made > 32) qsort(s->made, s->n_made, sizeof *s->made, compare_stacks);
    for (size_t i = 1; s->n_made <= 32 && i < s->n_made; i++) {
        const uint32_t value = s->made[i];
        size_t j = i;
        for (; j > 0 && s->made[j - 1] > value; j--) s->made[j] = s->made[j - 1];
        s->made[j] = value;
    }
    size_t n = 0;
    for (size_t i = 0; i < s->n_made; i++)
        if (!n || s->made[n - 1] != s->made[i]) s->made[n++] = s->made[i];
    s->n_made = n;
}

// The state of the set that was made.
static qn_gr_states_result intern(int32_t *out, qn_gr_states *s) {
    sort_made(s);
    if (!s->n_made && !s->made_may_end) {
        *out = QN_STATE_DEAD;
        return QN_STATES_OK;
    }
    uint32_t hash = mix(3, s->made_may_end);
    for (size_t i = 0; i < s->n_made; i++) hash = mix(hash, s->made[i]);
    size_t at = hash & (STATE_SLOTS - 1);
    for (; s->state_slots[at]; at = (at + 1) & (STATE_SLOTS - 1)) {
        const qn_gr_state *old = &s->states[s->state_slots[at]];
        if (old->n == s->n_made && old->may_end == s->made_may_end &&
            !memcmp(s->stacks + old->first, s->made, s->n_made * sizeof *s->made)) {
            *out = (int32_t)s->state_slots[at];
            return QN_STATES_OK;
        }
    }
    if (s->n_states == QN_STATES_MAX || s->n_stacks + s->n_made > QN_STACKS_MAX)
        return QN_STATES_FULL;
    const size_t made = s->n_states++, n_classes = s->program->n_classes;
    s->states[made] = (qn_gr_state){.first = (uint32_t)s->n_stacks,
                                    .n = (uint32_t)s->n_made,
                                    .canon = -1,
                                    .advance = UNKNOWN,
                                    .mask = -1,
                                    .may_end = s->made_may_end};
    memcpy(s->stacks + s->n_stacks, s->made, s->n_made * sizeof *s->made);
    for (size_t i = 0; i < s->n_made; i++)
        if (s->program->nodes[s->cells[s->made[i]].node].kind == QN_P_TOKEN)
            s->states[made].has_tokens = true;
    s->n_stacks += s->n_made;
    memset(s->rows + made * n_classes, 0xFF, n_classes * sizeof *s->rows);
    s->state_slots[at] = (uint32_t)made;
    *out = (int32_t)made;
    return QN_STATES_OK;
}

void qn_gr_states_allow(qn_gr_states *s, uint64_t steps) { s->steps_left = steps; }
uint64_t qn_gr_states_steps_left(const qn_gr_states *s) { return s->steps_left; }

qn_gr_states_result qn_gr_states_start(int32_t *out, qn_gr_states *s) {
    closing c = {0};
    begin(s);
    const qn_gr_states_result result = close_from(s, &c, s->program->start, 0);
    return result ? result : intern(out, s);
}

qn_gr_states_result qn_gr_states_step(int32_t *out, qn_gr_states *s, int32_t from, uint8_t byte) {
    int32_t *known = &s->rows[(size_t)from * s->program->n_classes + s->program->class_of[byte]];
    if (*known < 0) {
        const qn_gr_state state = s->states[from];
        closing c = {0};
        begin(s);
        if (s->steps_left <= state.n) return QN_STATES_COSTLY;
        s->steps_left -= state.n;
        for (uint32_t i = 0; i < state.n; i++) {
            const qn_gr_cell top = s->cells[s->stacks[state.first + i]];
            const qn_gr_pnode *node = &s->program->nodes[top.node];
            if (node->kind != QN_P_BYTE || !qn_gr_byte_set_has(&s->program->sets[node->a], byte))
                continue;
            const qn_gr_states_result result = close_from(s, &c, node->next, top.parent);
            if (result) return result;
        }
        int32_t to;
        const qn_gr_states_result result = intern(&to, s);
        if (result) return result;
        *known = to;
    }
    *out = *known;
    return QN_STATES_OK;
}

bool qn_gr_states_get_token(const qn_gr_states *s, int32_t state, uint32_t i, int32_t *token,
                            bool *negated) {
    const qn_gr_cell *top = &s->cells[s->stacks[s->states[state].first + i]];
    const qn_gr_pnode *node = &s->program->nodes[top->node];
    *token = node->a;
    *negated = node->b != 0;
    return node->kind == QN_P_TOKEN;
}

qn_gr_states_result qn_gr_states_token(int32_t *out, qn_gr_states *s, int32_t from, int32_t token,
                                       bool has_text, int32_t by_bytes) {
    const qn_gr_state state = s->states[from], other = s->states[by_bytes];
    closing c = {0};
    begin(s);
    if (s->steps_left <= state.n) return QN_STATES_COSTLY;
    s->steps_left -= state.n;
    for (uint32_t i = 0; i < other.n; i++) s->made[s->n_made++] = s->stacks[other.first + i];
    s->made_may_end = other.may_end;
    for (uint32_t i = 0; i < state.n; i++) {
        int32_t wanted;
        bool negated;
        if (!qn_gr_states_get_token(s, from, i, &wanted, &negated)) continue;
        if (negated ? wanted == token || !has_text : wanted != token) continue;
        const qn_gr_cell top = s->cells[s->stacks[state.first + i]];
        const qn_gr_states_result result =
            close_from(s, &c, s->program->nodes[top.node].next, top.parent);
        if (result) return result;
    }
    return intern(out, s);
}

qn_gr_states_result qn_gr_states_canon(int32_t *out, qn_gr_states *s, int32_t of) {
    qn_gr_state *state = &s->states[of];
    if (state->canon < 0) {
        begin(s);
        for (uint32_t i = 0; i < state->n; i++)
            s->made[s->n_made++] = s->cells[s->stacks[state->first + i]].canon;
        s->made_may_end = state->may_end;
        int32_t canon;
        const qn_gr_states_result result = intern(&canon, s);
        if (result) return result;
        state->canon = canon;
        s->states[canon].canon = canon;
    }
    *out = state->canon;
    return QN_STATES_OK;
}

// --- plain characters ----------------------------------------------------------------------------

typedef struct lead {
    uint8_t lo, hi, second_lo, second_hi, more; // bytes that may follow; more: after the second
} lead;

// Well-formed UTF-8 beyond ASCII.
static const lead leads[] = {{0xC2, 0xDF, 0x80, 0xBF, 0}, {0xE0, 0xE0, 0xA0, 0xBF, 1},
                             {0xE1, 0xEC, 0x80, 0xBF, 1}, {0xED, 0xED, 0x80, 0x9F, 1},
                             {0xEE, 0xEF, 0x80, 0xBF, 1}, {0xF0, 0xF0, 0x90, 0xBF, 2},
                             {0xF1, 0xF3, 0x80, 0xBF, 2}, {0xF4, 0xF4, 0x80, 0x8F, 2}};

// Whether every way from `from` by a byte of the span and `more` continuation bytes leads to `to`.
static qn_gr_states_result leads_to(bool *same, qn_gr_states *s, int32_t from, const lead *span,
                                    int32_t to) {
    int32_t last = -1;
    for (unsigned byte = span->lo; *same && byte <= span->hi; byte++) {
        int32_t next;
        const qn_gr_states_result result = qn_gr_states_step(&next, s, from, (uint8_t)byte);
        if (result) return result;
        if (next == last) continue;
        last = next;
        if (span->second_lo) {
            const lead rest = {span->second_lo, span->second_hi, span->more ? 0x80 : 0, 0xBF,
                               (uint8_t)(span->more ? span->more - 1 : 0)};
            const qn_gr_states_result below = leads_to(same, s, next, &rest, to);
            if (below) return below;
        } else {
            *same = next == to;
        }
    }
    return QN_STATES_OK;
}

qn_gr_states_result qn_gr_states_advance(int32_t *out, qn_gr_states *s, int32_t from) {
    if (s->states[from].advance == UNKNOWN) {
        static const lead ascii[] = {
            {0x20, 0x21, 0, 0, 0}, {0x23, 0x5B, 0, 0, 0}, {0x5D, 0x7F, 0, 0, 0}};
        bool same = true;
        int32_t to;
        qn_gr_states_result result = qn_gr_states_step(&to, s, from, 0x20);
        for (size_t i = 0; !result && same && i < sizeof ascii / sizeof *ascii; i++)
            result = leads_to(&same, s, from, &ascii[i], to);
        for (size_t i = 0; !result && same && i < sizeof leads / sizeof *leads; i++)
            result = leads_to(&same, s, from, &leads[i], to);
        if (result) return result;
        s->states[from].advance = same ? to : -1;
    }
    *out = s->states[from].advance;
    return QN_STATES_OK;
}

// --- keeping one state ---------------------------------------------------------------------------

// Copies the cells below a state's stacks to `spare`, parents first; returns their number.
static size_t save_cells(qn_gr_states *s, const qn_gr_state *state) {
    memset(s->renamed, 0, s->n_cells * sizeof *s->renamed);
    for (uint32_t i = 0; i < state->n; i++)
        for (uint32_t at = s->stacks[state->first + i]; at && !s->renamed[at];
             at = s->cells[at].parent)
            s->renamed[at] = 1;
    size_t n = 0;
    for (uint32_t at = 1; at < s->n_cells; at++)
        if (s->renamed[at]) {
            s->spare[n] = s->cells[at];
            s->spare[n++].canon = at; // its old number
        }
    return n;
}

int32_t qn_gr_states_sweep(qn_gr_states *s, int32_t keep) {
    const qn_gr_state state = s->states[keep];
    const size_t n = save_cells(s, &state);
    begin(s);
    for (uint32_t i = 0; i < state.n; i++) s->made[s->n_made++] = s->stacks[state.first + i];
    s->made_may_end = state.may_end;
    memset(s->cell_slots, 0, (s->cell_mask + 1) * sizeof *s->cell_slots);
    memset(s->state_slots, 0, STATE_SLOTS * sizeof *s->state_slots);
    start_empty(s);
    for (size_t i = 0; i < n; i++) {
        const qn_gr_cell *cell = &s->spare[i];
        s->renamed[cell->canon] = get_cell(s, cell->node, cell->count, s->renamed[cell->parent]);
    }
    for (size_t i = 0; i < s->n_made; i++) s->made[i] = s->renamed[s->made[i]];
    int32_t out = QN_STATE_DEAD;
    return intern(&out, s) == QN_STATES_OK ? out : QN_STATE_DEAD;
}

qn_gr_state *qn_gr_states_get(qn_gr_states *s, int32_t state) { return &s->states[state]; }
bool qn_gr_states_was_cut(const qn_gr_states *s) { return s->was_cut; }
size_t qn_gr_states_count(const qn_gr_states *s) { return s->n_states; }
size_t qn_gr_states_n_cells(const qn_gr_states *s) { return s->n_cells; }
const int32_t *qn_gr_states_row(const qn_gr_states *s, int32_t state) {
    return s->rows + (size_t)state * s->program->n_classes;
}
