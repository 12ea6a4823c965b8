// multipleOf, as an automaton over the digits of a number: residues, with as many steps after the
// point as the divisor has digits there. Bounds and the number of digits are watched at the same
// time.
#include "core/mem.h"
#include "gen/grammar/schema_number.h"

#include <stdio.h>

enum {
    RESIDUES_MAX = 1 << 19,
    CELLS_MAX = 1 << 15,
    COUNTED_FROM = 1 << 13,
    DOT = 10,
    N_INPUTS = 11,
    MACHINES_MAX = 5,
    LIST_FROM = 10000,
    LIST_MAX = 4096
};

// --- residues ------------------------------------------------------------------------------------

// States by number; `next` has N_INPUTS for each (digits and the point).
typedef struct machine {
    uint32_t *next;
    bool *accepts, *is_dead; // dead: nothing is accepted from here
    uint32_t n, start;
    bool negated;
} machine;

static void machine_deinit(machine *m) {
    qn_free(m->next);
    qn_free(m->accepts);
    qn_free(m->is_dead);
}

// Rows of states of step / 10^scale: row 0 before the point, row k with k - 1 digits after it; two
// states more for all digits that count, with nothing left over, and for what is no multiple. What
// the digits to come can make good is divided out of a row's modulus.
typedef struct residue_rows {
    uint64_t sizes[QN_JSON_DIGITS + 1]; // moduli
    uint32_t first[QN_JSON_DIGITS + 1]; // states
    uint32_t n, last, dead;             // rows; the two states
} residue_rows;

static uint64_t common_divisor(uint64_t a, uint64_t b) {
    while (b) {
        const uint64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

// False: there would be more than RESIDUES_MAX states.
static bool plan_rows(residue_rows *out, const qn_gr_number_step *step) {
    uint64_t n = 0;
    if (step->scale > QN_JSON_DIGITS) return false;
    *out = (residue_rows){.n = step->scale + 1};
    for (uint32_t row = 0; row < out->n; row++) {
        const uint32_t to_come = row ? step->scale - row + 1 : step->scale;
        uint64_t size = step->step;
        for (uint32_t i = 0; i < to_come; i++) size /= common_divisor(size, 10);
        if (size > RESIDUES_MAX - 2 - n) return false;
        out->sizes[row] = size;
        out->first[row] = (uint32_t)n;
        n += size;
    }
    out->last = (uint32_t)n;
    out->dead = (uint32_t)n + 1;
    return true;
}

static uint32_t after_digit(const residue_rows *rows, uint64_t step, uint32_t row, uint64_t value) {
    if (row == 0) return (uint32_t)(value % rows->sizes[0]);
    if (row + 1 < rows->n) return rows->first[row + 1] + (uint32_t)(value % rows->sizes[row + 1]);
    return value % step == 0 ? rows->last : rows->dead;
}

static void fill_machine(machine *m, const residue_rows *rows, uint64_t step) {
    for (uint32_t i = 0; i < N_INPUTS; i++) {
        m->next[(size_t)rows->last * N_INPUTS + i] = i ? rows->dead : rows->last;
        m->next[(size_t)rows->dead * N_INPUTS + i] = rows->dead;
    }
    m->accepts[rows->last] = true;
    for (uint32_t row = 0; row < rows->n; row++)
        for (uint32_t residue = 0; residue < rows->sizes[row]; residue++) {
            const uint32_t state = rows->first[row] + residue;
            uint32_t *next = m->next + (size_t)state * N_INPUTS;
            m->accepts[state] = residue == 0;
            for (uint32_t d = 0; d < 10; d++)
                next[d] = after_digit(rows, step, row, (uint64_t)residue * 10 + d);
            next[DOT] = row || (rows->n == 1 && residue) ? rows->dead
                        : rows->n == 1                   ? rows->last
                                                         : rows->first[1] + residue;
        }
}

// One round of telling states apart: by their class and the classes that follow. Returns the number
// of classes.
static uint32_t refine(uint32_t *to, const machine *m, const uint32_t *of, uint32_t *slots,
                       uint32_t mask) {
    uint32_t n = 0;
    memset(slots, 0xFF, ((size_t)mask + 1) * sizeof *slots);
    for (uint32_t state = 0; state < m->n; state++) {
        const uint32_t *row = m->next + (size_t)state * N_INPUTS;
        uint32_t hash = of[state];
        for (size_t i = 0; i < N_INPUTS; i++) hash = (hash ^ of[row[i]]) * 0x9E3779B1u;
        uint32_t at = (hash ^ hash >> 15) & mask;
        for (; slots[at] != UINT32_MAX; at = (at + 1) & mask) {
            const uint32_t *other = m->next + (size_t)slots[at] * N_INPUTS;
            bool same = of[slots[at]] == of[state];
            for (size_t i = 0; same && i < N_INPUTS; i++) same = of[other[i]] == of[row[i]];
            if (same) break;
        }
        if (slots[at] == UINT32_MAX) {
            slots[at] = state;
            to[state] = n++;
        } else {
            to[state] = to[slots[at]];
        }
    }
    return n;
}

// States that accept the same become one.
static qn_status minimize(machine *m, qn_gr_schema *s, const qn_gr_where *where) {
    uint32_t mask = 1;
    while (mask < m->n * 2) mask = mask * 2 + 1;
    uint32_t *of = qn_alloc(m->n, sizeof *of), *to = qn_alloc(m->n, sizeof *to);
    uint32_t *slots = qn_alloc((size_t)mask + 1, sizeof *slots);
    qn_status status = of && to && slots ? QN_OK : QN_NOMEM(s->err, "schema");
    for (uint32_t i = 0; !status && i < m->n; i++) of[i] = m->accepts[i];
    for (uint32_t n = 0, before = 1; !status && n != before;) {
        status = qn_gr_schema_spend(s, (uint64_t)m->n * 2, where);
        before = n;
        if (!status) n = refine(to, m, of, slots, mask);
        uint32_t *swap = of;
        of = to;
        to = swap;
    }
    uint32_t n = 0; // classes are numbered by their first state, so rows move to the front
    for (uint32_t state = 0; !status && state < m->n; state++) {
        if (of[state] != n) continue;
        for (size_t i = 0; i < N_INPUTS; i++)
            m->next[(size_t)n * N_INPUTS + i] = of[m->next[(size_t)state * N_INPUTS + i]];
        m->accepts[n++] = m->accepts[state];
    }
    if (!status) m->start = of[0];
    if (!status) m->n = n;
    qn_free(of);
    qn_free(to);
    qn_free(slots);
    return status;
}

// A class that leads only to itself and is not wanted.
static void find_dead(machine *m) {
    for (uint32_t state = 0; state < m->n; state++) {
        bool is_sink = m->accepts[state] == m->negated;
        for (size_t i = 0; i < N_INPUTS; i++)
            is_sink = is_sink && m->next[(size_t)state * N_INPUTS + i] == state;
        m->is_dead[state] = is_sink;
    }
}

static qn_status fail_large(qn_gr_schema *s, const qn_gr_where *where, int max) {
    return QN_SCHEMA_FAIL(s, where, "multipleOf", LIMIT,
                          "its automaton would have more than %d states", max);
}

static qn_status machine_init(machine *out, qn_gr_schema *s, const qn_gr_number_step *step,
                              bool negated, const qn_gr_where *where) {
    *out = (machine){.negated = negated};
    residue_rows rows;
    if (!plan_rows(&rows, step)) return fail_large(s, where, RESIDUES_MAX);
    out->n = rows.dead + 1;
    out->next = qn_alloc((size_t)out->n * N_INPUTS, sizeof *out->next);
    out->accepts = qn_alloc(out->n, sizeof *out->accepts);
    out->is_dead = qn_alloc(out->n, sizeof *out->is_dead);
    if (!out->next || !out->accepts || !out->is_dead) return QN_NOMEM(s->err, "schema");
    QN_TRY(qn_gr_schema_spend(s, (uint64_t)out->n * 4, where));
    fill_machine(out, &rows, step->step);
    QN_TRY(minimize(out, s, where));
    find_dead(out);
    return QN_OK;
}

// --- digits, bounds and residues at once ---------------------------------------------------------

typedef enum phase { AT_START, IN_ZERO, IN_WHOLE, AT_POINT, IN_FRACTION } phase;

// A place in a number. `lo` and `hi`: the digits so far are less than (-1), equal to or greater
// than (1) as many of the bound. No padding: it is a key.
typedef struct cell {
    uint8_t phase, n_whole, n_fraction;
    int8_t lo, hi;
    uint8_t zero[3];
    uint32_t at[MACHINES_MAX];
} cell;

typedef struct numbers {
    qn_gr_schema *s;
    const qn_gr_number_side *side;
    const char *lo, *hi; // whole parts of the bounds; hi NULL: none
    size_t max;          // digits of the whole part
    // Where residues and digits together would be too many states, characters are counted beside
    // the automaton: to[first[i]] to to[first[i + 1]] follow cell i.
    bool is_counted;
    int32_t lengths;
    uint32_t *first, *to;
    size_t n_to, cap_first, cap_to;
    machine machines[MACHINES_MAX];
    size_t n_machines;
    cell *cells;
    int32_t *rules;
    size_t n, cap, cap_rules;
    qn_map index;
    const qn_gr_where *where;
} numbers;

static int sign_of(int x) { return (x > 0) - (x < 0); }

// The digits so far against the whole bound, when no more come before the point.
static int whole_against(const char *bound, size_t n, int so_far) {
    const size_t size = strlen(bound);
    return n < size ? -1 : n > size ? 1 : so_far;
}

// The same at the end of the number.
static int against(const qn_gr_limit *bound, const char *whole, const cell *c, int so_far) {
    const bool in_fraction = c->phase == IN_FRACTION;
    const int now = in_fraction ? so_far : whole_against(whole, c->n_whole, so_far);
    const size_t n = in_fraction ? c->n_fraction : 0;
    return now == 0 && strlen(bound->value.fraction) > n ? -1 : now;
}

static bool accepts(const numbers *x, const cell *c) {
    if (c->phase == AT_START || c->phase == AT_POINT) return false;
    const qn_gr_number_side *side = x->side;
    const int lo = against(&side->lo, x->lo, c, c->lo);
    if (lo < 0 || (lo == 0 && side->lo.is_strict)) return false;
    const int hi = x->hi ? against(&side->hi, x->hi, c, c->hi) : -1;
    if (hi > 0 || (hi == 0 && side->hi.is_strict)) return false;
    for (size_t i = 0; i < x->n_machines; i++)
        if (x->machines[i].accepts[c->at[i]] == x->machines[i].negated) return false;
    return true;
}

static int compare_digit(const char *bound, size_t at, int so_far, unsigned digit) {
    if (so_far || at >= strlen(bound)) return so_far;
    return sign_of((int)digit - (bound[at] - '0'));
}

static bool step_whole(cell *c, const numbers *x, unsigned digit) {
    if (c->phase == IN_ZERO || (!x->is_counted && c->n_whole == x->max)) return false;
    c->lo = (int8_t)compare_digit(x->lo, c->n_whole, c->lo, digit);
    if (x->hi) c->hi = (int8_t)compare_digit(x->hi, c->n_whole, c->hi, digit);
    c->phase = c->phase == AT_START && !digit ? IN_ZERO : IN_WHOLE;
    if (!x->is_counted || c->n_whole <= strlen(x->lo)) c->n_whole++;
    if (c->n_whole > strlen(x->lo)) c->lo = 1;
    return !x->hi || c->n_whole < strlen(x->hi) || c->hi <= 0;
}

static bool step_fraction(cell *c, const numbers *x, unsigned digit) {
    const char *lo = x->side->lo.value.fraction, *hi = x->side->hi.value.fraction;
    const size_t at = c->n_fraction;
    if (at == QN_JSON_DIGITS) return false;
    // A bound whose digits are over goes on with zeros.
    if (!c->lo) c->lo = (int8_t)(at < strlen(lo) ? compare_digit(lo, at, 0, digit) : digit > 0);
    if (x->hi && !c->hi)
        c->hi = (int8_t)(at < strlen(hi) ? compare_digit(hi, at, 0, digit) : digit > 0);
    c->n_fraction++;
    c->phase = IN_FRACTION;
    return c->lo >= 0 && (!x->hi || c->hi <= 0);
}

static bool step_point(cell *c, const numbers *x) {
    if (x->side->is_whole || (c->phase != IN_ZERO && c->phase != IN_WHOLE)) return false;
    c->lo = (int8_t)whole_against(x->lo, c->n_whole, c->lo);
    if (x->hi) c->hi = (int8_t)whole_against(x->hi, c->n_whole, c->hi);
    c->phase = AT_POINT;
    c->n_whole = 0;
    return c->lo >= 0 && (!x->hi || c->hi <= 0);
}

static bool step(cell *c, const numbers *x, unsigned input) {
    const bool in_fraction = c->phase == AT_POINT || c->phase == IN_FRACTION;
    const bool alive = input == DOT  ? step_point(c, x)
                       : in_fraction ? step_fraction(c, x, input)
                                     : step_whole(c, x, input);
    for (size_t i = 0; alive && i < x->n_machines; i++) {
        c->at[i] = x->machines[i].next[(size_t)c->at[i] * N_INPUTS + input];
        if (x->machines[i].is_dead[c->at[i]]) return false;
    }
    return alive;
}

// The number of a cell, new or known.
static qn_status intern(uint32_t *out, numbers *x, const cell *c) {
    if (qn_map_find(&x->index, (const char *)c, sizeof *c, out)) return QN_OK;
    if (x->n == CELLS_MAX) return fail_large(x->s, x->where, CELLS_MAX);
    const char *key = qn_arena_strdup(&x->s->arena, (const char *)c, sizeof *c);
    if (!key || !qn_grow((void **)&x->cells, &x->cap, x->n + 1, sizeof *x->cells) ||
        !qn_grow((void **)&x->rules, &x->cap_rules, x->n + 1, sizeof *x->rules) ||
        !qn_map_add(&x->index, key, sizeof *c, (uint32_t)x->n, NULL))
        return QN_NOMEM(x->s->err, "schema");
    x->cells[x->n] = *c;
    x->rules[x->n] = qn_gr_ast_rule_add(x->s->ast, qn_str_of("number"));
    *out = (uint32_t)x->n++;
    return qn_gr_schema_check_ast(x->s, x->where, "multipleOf");
}

// The cells that can follow, each once, with the characters that lead there.
typedef struct arcs {
    uint32_t targets[N_INPUTS];
    qn_gr_byte_set sets[N_INPUTS];
    size_t n;
} arcs;

static qn_status find_arcs(arcs *out, numbers *x, size_t at) {
    out->n = 0;
    for (unsigned input = 0; input < N_INPUTS; input++) {
        cell next = x->cells[at];
        uint32_t target;
        if (!step(&next, x, input)) continue;
        QN_TRY(intern(&target, x, &next));
        size_t k = 0;
        while (k < out->n && out->targets[k] != target) k++;
        if (k == out->n) {
            out->targets[out->n] = target;
            out->sets[out->n++] = (qn_gr_byte_set){{0}};
        }
        qn_gr_byte_set_add(&out->sets[k], input == DOT ? '.' : '0' + input);
    }
    return QN_OK;
}

static qn_status keep_arcs(numbers *x, size_t at, const arcs *found) {
    if (!qn_grow((void **)&x->first, &x->cap_first, at + 2, sizeof *x->first) ||
        !qn_grow((void **)&x->to, &x->cap_to, x->n_to + found->n + 1, sizeof *x->to))
        return QN_NOMEM(x->s->err, "schema");
    x->first[at] = (uint32_t)x->n_to;
    memcpy(x->to + x->n_to, found->targets, found->n * sizeof *x->to);
    x->n_to += found->n;
    x->first[at + 1] = (uint32_t)x->n_to;
    return QN_OK;
}

static qn_status expand(numbers *x, size_t at) {
    qn_gr_ast *ast = x->s->ast;
    int32_t node = accepts(x, &x->cells[at]) ? QN_AST_EMPTY : QN_AST_NEVER;
    arcs found;
    QN_TRY(qn_gr_schema_spend(x->s, 64, x->where));
    QN_TRY(find_arcs(&found, x, at));
    if (x->is_counted) QN_TRY(keep_arcs(x, at, &found));
    for (size_t k = 0; k < found.n; k++) {
        const int32_t call = qn_gr_ref(ast, x->rules[found.targets[k]]);
        node = qn_gr_alt(ast, qn_gr_seq(ast, qn_gr_set(ast, &found.sets[k]), call), node);
    }
    if (x->is_counted)
        node = qn_gr_seq(ast, qn_gr_place(ast, x->lengths, (uint32_t)at, true), node);
    qn_gr_ast_rule_set(ast, x->rules[at], node);
    return qn_gr_schema_check_ast(x->s, x->where, "multipleOf");
}

// Bounds the characters of what begins with `start`.
static qn_status count_characters(int32_t *out, numbers *x, int32_t start) {
    const size_t max = x->max + (x->side->is_whole ? 0 : 1 + QN_JSON_DIGITS);
    qn_gr_lengths *lengths = NULL;
    bool *ends = qn_alloc(x->n, sizeof *ends);
    qn_status status = ends ? QN_OK : QN_NOMEM(x->s->err, "schema");
    for (size_t i = 0; !status && i < x->n; i++) ends[i] = accepts(x, &x->cells[i]);
    const qn_gr_length_graph graph = {.n = x->n, .first = x->first, .to = x->to, .accepts = ends};
    if (!status) {
        status = qn_gr_lengths_create(&lengths, &graph, 0, (uint32_t)max, &x->s->steps, x->s->err);
        if (status) status = qn_gr_schema_fail(x->s, status, x->where, "multipleOf");
    }
    qn_free(ends);
    QN_TRY(status);
    *out = qn_gr_lengths_fit(lengths, 0, 0) ? qn_gr_counted(x->s->ast, start, x->lengths)
                                            : QN_AST_NEVER;
    qn_gr_ast_lengths_set(x->s->ast, x->lengths, lengths);
    return QN_OK;
}

static qn_status make_cells(int32_t *out, numbers *x) {
    cell start = {.phase = AT_START};
    uint64_t n = x->max; // cells, about
    uint32_t first;
    for (size_t i = 0; i < x->n_machines; i++) {
        start.at[i] = x->machines[i].start;
        n = n > CELLS_MAX ? n : n * x->machines[i].n;
    }
    x->is_counted = !x->hi && n > COUNTED_FROM;
    if (x->is_counted) x->lengths = qn_gr_ast_lengths_add(x->s->ast);
    QN_TRY(intern(&first, x, &start));
    for (size_t i = 0; i < x->n; i++) QN_TRY(expand(x, i));
    *out = qn_gr_ref(x->s->ast, x->rules[first]);
    return x->is_counted ? count_characters(out, x, *out) : QN_OK;
}

static qn_status add_machine(numbers *x, const qn_gr_number_step *one, bool negated) {
    return machine_init(&x->machines[x->n_machines++], x->s, one, negated, x->where);
}

// --- few multiples -------------------------------------------------------------------------------

static uint64_t to_whole(const qn_gr_decimal *x) {
    uint64_t value = 0;
    for (const char *at = x->whole; *at; at++) value = value * 10 + (uint64_t)(*at - '0');
    return value;
}

// Whether the multiples are whole numbers between bounds, few, and too far apart for an automaton.
static bool is_list(const qn_gr_number_limits *l, const qn_gr_number_side *side) {
    if (!side->is_whole || !side->hi.is_there || l->n_not || l->scale || l->step < LIST_FROM)
        return false;
    if (strlen(side->hi.value.whole) > 18 || strlen(side->lo.value.whole) > 18) return false;
    return to_whole(&side->hi.value) / l->step <= LIST_MAX;
}

static int32_t list_multiples(qn_gr_ast *ast, const qn_gr_number_limits *l,
                              const qn_gr_number_side *side) {
    const uint64_t lo = to_whole(&side->lo.value), hi = to_whole(&side->hi.value);
    int32_t node = QN_AST_NEVER;
    for (uint64_t value = (lo + l->step - 1) / l->step * l->step; value <= hi; value += l->step) {
        char text[32];
        snprintf(text, sizeof text, "%llu", (unsigned long long)value);
        node = qn_gr_alt(ast, node, qn_gr_text(ast, qn_str_of(text)));
    }
    return node;
}

qn_status qn_gr_schema_multiples(int32_t *out, qn_gr_schema *s, const qn_gr_number_limits *l,
                                 const qn_gr_number_side *side) {
    numbers x = {.s = s, .side = side, .where = l->where};
    if (is_list(l, side)) {
        *out = list_multiples(s->ast, l, side);
        return QN_OK;
    }
    const char *lo = side->lo.value.whole, *hi = side->hi.value.whole;
    x.lo = lo[0] ? lo : "0";
    x.hi = !side->hi.is_there ? NULL : hi[0] ? hi : "0";
    x.max = x.hi ? strlen(x.hi) : QN_JSON_DIGITS;
    if (x.max < strlen(x.lo)) x.max = strlen(x.lo);
    qn_status status = QN_OK;
    if (l->step) status = add_machine(&x, &(qn_gr_number_step){l->step, l->scale}, false);
    for (size_t i = 0; !status && i < l->n_not; i++) status = add_machine(&x, &l->not_of[i], true);
    if (!status) status = make_cells(out, &x);
    for (size_t i = 0; i < x.n_machines; i++) machine_deinit(&x.machines[i]);
    qn_free(x.cells);
    qn_free(x.rules);
    qn_free(x.first);
    qn_free(x.to);
    qn_map_deinit(&x.index);
    return status;
}

// --- what the schema says ------------------------------------------------------------------------

// The least common multiple; false if it is too large.
static bool join_steps(qn_gr_number_limits *l, uint64_t step, unsigned scale) {
    size_t mine = l->step, other = step;
    for (unsigned at = l->scale; at < scale; at++)
        if (!qn_size_mul(&mine, mine, 10)) return false;
    for (unsigned at = scale; at < l->scale; at++)
        if (!qn_size_mul(&other, other, 10)) return false;
    if (!qn_size_mul(&mine, mine / common_divisor(mine, other), other)) return false;
    l->step = mine;
    if (l->scale < scale) l->scale = scale;
    for (; l->scale && l->step % 10 == 0; l->scale--) l->step /= 10;
    return true;
}

qn_status qn_gr_schema_add_step(qn_gr_number_limits *l, qn_gr_schema *s, uint64_t step,
                                unsigned scale, bool is_not, const qn_gr_where *where) {
    if (!l->where || !is_not) l->where = where;
    if (is_not && l->n_not == QN_STEPS_MAX)
        return QN_SCHEMA_FAIL(s, where, "not", LIMIT, "more than %d of multipleOf", QN_STEPS_MAX);
    if (is_not) {
        l->not_of[l->n_not++] = (qn_gr_number_step){step, scale};
    } else if (!l->step) {
        l->step = step;
        l->scale = scale;
    } else if (!join_steps(l, step, scale)) {
        return qn_gr_schema_exceeds(s, where, "multipleOf", "the steps are too large");
    }
    return QN_OK;
}

static qn_status read_step(qn_gr_number_limits *l, qn_gr_schema *s, const json_t *schema,
                           bool is_not, const qn_gr_where *where) {
    const json_t *value = json_object_get(schema, "multipleOf");
    qn_gr_decimal decimal;
    uint64_t step;
    unsigned scale;
    if (!value) return QN_OK;
    QN_TRY(qn_gr_schema_decimal(&decimal, s, value, where, "multipleOf"));
    if (decimal.is_negative || (!decimal.whole[0] && !decimal.fraction[0]))
        return QN_SCHEMA_FAIL(s, where, "multipleOf", FORMAT, "not a number above 0");
    if (!qn_gr_decimal_scaled(&step, &scale, &decimal))
        return qn_gr_schema_exceeds(s, where, "multipleOf", "more than 19 digits");
    return qn_gr_schema_add_step(l, s, step, scale, is_not, where);
}

qn_status qn_gr_schema_read_steps(qn_gr_number_limits *l, qn_gr_schema *s,
                                  const qn_gr_member *member) {
    QN_TRY(read_step(l, s, member->schema, false, member->where));
    const json_t *excluded = json_object_get(member->schema, "not");
    return qn_gr_schema_is_plain_not(member->schema)
               ? read_step(l, s, excluded, true, member->where)
               : QN_OK;
}
