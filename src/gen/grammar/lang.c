#include "gen/grammar/lang.h"

#include "core/mem.h"
#include "core/utf8.h"
#include "gen/grammar/json_rules.h"
#include "gen/grammar/regex_rules.h"
#include "gen/grammar/states.h"

enum { PART_STEPS = 16 << 20 }; // of making the states of one part

// One part as a finite automaton over bytes. State 0 is the dead one.
typedef struct part {
    qn_gr_ast ast;
    qn_gr_program program;
    qn_gr_states *states;
    int32_t start;
    bool negated;
    uint64_t allowed; // steps, at the start
} part;

// Characters of a string.
typedef struct bounds {
    uint32_t min, max;
} bounds;

static void narrow(bounds *b, uint32_t min, uint32_t max) {
    if (min > b->min) b->min = min;
    if (max < b->max) b->max = max;
}

static const qn_gr_code_range any_code[] = {{0, 0x10FFFF}};

static int32_t words_node(qn_gr_ast *ast, const qn_gr_lang_part *p) {
    int32_t node = QN_AST_NEVER;
    for (size_t i = p->n_words; i-- > 0;) {
        int32_t word = QN_AST_EMPTY;
        const qn_str text = p->words[i];
        for (size_t end = text.size; end > 0;) {
            size_t from = end - 1;
            uint32_t code = 0;
            while (from > 0 && ((unsigned char)text.data[from] & 0xC0) == 0x80) from--;
            qn_utf8_decode(text.data + from, end - from, &code);
            word = qn_gr_seq(ast, qn_gr_json_codes(ast, &(qn_gr_code_range){code, code}, 1), word);
            end = from;
        }
        node = qn_gr_alt(ast, word, node);
    }
    return node;
}

// With `length`, what a pattern says of the length alone goes there.
static qn_status part_node(int32_t *out, qn_gr_ast *ast, const qn_gr_lang_part *p, bool in_json,
                           bounds *length, uint64_t *steps, qn_err *err) {
    if (p->kind == QN_LANG_WORDS) {
        *out = words_node(ast, p);
        return QN_OK;
    }
    const int32_t any =
        qn_gr_shared(ast, "character",
                     in_json ? qn_gr_json_codes(ast, any_code, 1) : qn_gr_codes(ast, any_code, 1));
    if (p->kind == QN_LANG_LENGTH) {
        *out = qn_gr_rep(ast, any, p->min, p->max);
        return QN_OK;
    }
    qn_gr_regex_node *tree;
    QN_TRY(qn_gr_regex_parse(&tree, &ast->arena, p->pattern, steps, err));
    uint32_t min, max;
    if (length && !p->negated && qn_gr_regex_take_count(tree, &min, &max)) narrow(length, min, max);
    return qn_gr_regex_lower(
        out, ast, tree, (qn_gr_regex_form){.in_json = in_json, .around = any, .steps = steps}, err);
}

// What making its states took is spent then.
static void part_deinit(part *p, uint64_t *steps) {
    const uint64_t used = p->states ? p->allowed - qn_gr_states_steps_left(p->states) : 0;
    *steps -= used < *steps ? used : *steps;
    qn_gr_states_destroy(p->states);
    qn_gr_program_deinit(&p->program);
    qn_gr_ast_deinit(&p->ast);
}

static qn_status fail_states(qn_gr_states_result result, qn_err *err) {
    if (result == QN_STATES_COSTLY)
        return QN_FAIL(err, LIMIT, "the conditions on strings take too many steps");
    return QN_FAIL(err, LIMIT, "the conditions on a string are too complex together");
}

// A part that matches nothing has no automaton: start is dead.
static qn_status part_init(part *out, const qn_gr_lang_part *p, bool in_json, bounds *length,
                           uint64_t *steps, qn_err *err) {
    int32_t root;
    *out = (part){.start = QN_STATE_DEAD, .negated = p->negated};
    QN_TRY(qn_gr_ast_init(&out->ast, err));
    QN_TRY(part_node(&root, &out->ast, p, in_json, length, steps, err));
    QN_TRY(qn_gr_ast_check(&out->ast, err));
    qn_err why = {0};
    const qn_status status = qn_gr_ast_analyze(&out->ast, root, &why);
    if (status == QN_ARGUMENT) return QN_OK; // no text matches
    if (status && err) *err = why;
    if (status) return status;
    QN_TRY(qn_gr_program_init(&out->program, &out->ast, root, err));
    QN_TRY(qn_gr_states_create(&out->states, &out->program, UINT16_MAX, err));
    out->allowed = *steps < PART_STEPS ? *steps : PART_STEPS;
    qn_gr_states_allow(out->states, out->allowed);
    const qn_gr_states_result result = qn_gr_states_start(&out->start, out->states);
    return result ? fail_states(result, err) : QN_OK;
}

// --- all parts at once ---------------------------------------------------------------------------

enum { MAX_MADE = QN_LANG_MAX_PARTS + 1 };

typedef struct tuple {
    int32_t at[MAX_MADE];
    int32_t call; // node that calls its rule
    int32_t rule;
} tuple;

typedef struct product {
    qn_gr_ast *ast;
    part *parts;
    size_t n_parts;
    tuple *tuples; // states of the product; not moved: reserved
    size_t n;
    qn_map index;
    // Bytes that no part tells apart, by a byte of each class.
    uint8_t class_of[256], sample_of[256];
    size_t n_classes;
    // With a bound on the length: the part that knows where characters end, and for each state
    // where its bytes lead: to[first[i]] to to[first[i + 1]].
    const part *characters; // NULL: no bound
    bounds length;
    int32_t lengths;
    uint32_t *first, *to;
    size_t cap_first, n_to, cap_to;
    uint64_t *steps;
    qn_err *err;
} product;

static bool accepts(const product *x, const tuple *t) {
    for (size_t i = 0; i < x->n_parts; i++) {
        const int32_t state = t->at[i];
        const bool holds =
            state != QN_STATE_DEAD && qn_gr_states_get(x->parts[i].states, state)->may_end;
        if (holds == x->parts[i].negated) return false;
    }
    return true;
}

static bool is_dead(const product *x, const tuple *t) {
    for (size_t i = 0; i < x->n_parts; i++)
        if (!x->parts[i].negated && t->at[i] == QN_STATE_DEAD) return true;
    return false;
}

// Whether the state is between two characters.
static bool ends_character(const product *x, size_t state) {
    const size_t i = (size_t)(x->characters - x->parts);
    return qn_gr_states_get(x->characters->states, x->tuples[state].at[i])->may_end;
}

static qn_status spend(product *x, uint64_t steps) {
    if (*x->steps < steps) return fail_states(QN_STATES_COSTLY, x->err);
    *x->steps -= steps;
    return QN_OK;
}

// The number of a tuple, new or known.
static qn_status intern(uint32_t *out, product *x, const tuple *t) {
    const size_t size = x->n_parts * sizeof *t->at;
    if (qn_map_find(&x->index, (const char *)t->at, size, out)) return QN_OK;
    if (x->n == QN_LANG_MAX_STATES) return fail_states(QN_STATES_FULL, x->err);
    tuple *kept = &x->tuples[x->n];
    *kept = *t;
    kept->rule = qn_gr_ast_rule_add(x->ast, qn_str_of("string"));
    kept->call = qn_gr_ref(x->ast, kept->rule);
    if (!qn_map_add(&x->index, (const char *)kept->at, size, (uint32_t)x->n, NULL))
        return QN_NOMEM(x->err, "grammar");
    *out = (uint32_t)x->n++;
    return QN_OK;
}

static qn_status step(bool *alive, tuple *to, const product *x, const tuple *from, uint8_t byte) {
    for (size_t i = 0; i < x->n_parts; i++) {
        to->at[i] = QN_STATE_DEAD;
        if (from->at[i] == QN_STATE_DEAD) continue;
        const qn_gr_states_result result =
            qn_gr_states_step(&to->at[i], x->parts[i].states, from->at[i], byte);
        if (result) return fail_states(result, x->err);
    }
    *alive = !is_dead(x, to);
    return QN_OK;
}

static void find_classes(product *x) {
    for (unsigned byte = 0; byte < 256; byte++) {
        size_t k = 0;
        for (; k < x->n_classes; k++) {
            bool same = true;
            for (size_t i = 0; same && i < x->n_parts; i++) {
                const uint8_t *class_of = x->parts[i].program.class_of;
                same = class_of[byte] == class_of[x->sample_of[k]];
            }
            if (same) break;
        }
        if (k == x->n_classes) x->sample_of[x->n_classes++] = (uint8_t)byte;
        x->class_of[byte] = (uint8_t)k;
    }
}

// The targets of a state, each once, with the bytes that lead there.
typedef struct arcs {
    uint32_t targets[256];
    qn_gr_byte_set sets[256];
    size_t n;
} arcs;

static qn_status find_arcs(arcs *out, product *x, size_t at) {
    size_t arc_of[256]; // of a class; 256: none
    out->n = 0;
    for (size_t byte_class = 0; byte_class < x->n_classes; byte_class++) {
        tuple to;
        bool alive = false;
        uint32_t target;
        arc_of[byte_class] = 256;
        QN_TRY(step(&alive, &to, x, &x->tuples[at], x->sample_of[byte_class]));
        if (!alive) continue;
        QN_TRY(intern(&target, x, &to));
        size_t k = 0;
        while (k < out->n && out->targets[k] != target) k++;
        if (k == out->n) {
            out->targets[out->n] = target;
            out->sets[out->n++] = (qn_gr_byte_set){{0}};
        }
        arc_of[byte_class] = k;
    }
    for (unsigned byte = 0; byte < 256; byte++)
        if (arc_of[x->class_of[byte]] < 256)
            qn_gr_byte_set_add(&out->sets[arc_of[x->class_of[byte]]], byte);
    return QN_OK;
}

static qn_status keep_arcs(product *x, size_t at, const arcs *found) {
    if (!qn_grow((void **)&x->first, &x->cap_first, at + 2, sizeof *x->first) ||
        !qn_grow((void **)&x->to, &x->cap_to, x->n_to + found->n + 1, sizeof *x->to))
        return QN_NOMEM(x->err, "grammar");
    x->first[at] = (uint32_t)x->n_to;
    memcpy(x->to + x->n_to, found->targets, found->n * sizeof *x->to);
    x->n_to += found->n;
    x->first[at + 1] = (uint32_t)x->n_to;
    return QN_OK;
}

// The rule of a tuple: for each tuple that can follow, a set of bytes and a call.
static qn_status expand(product *x, size_t at) {
    arcs found;
    QN_TRY(spend(x, (x->n_classes + 8) * x->n_parts));
    QN_TRY(find_arcs(&found, x, at));
    if (x->characters) QN_TRY(keep_arcs(x, at, &found));
    int32_t node = accepts(x, &x->tuples[at]) ? QN_AST_EMPTY : QN_AST_NEVER;
    for (size_t k = 0; k < found.n; k++) {
        const int32_t call = x->tuples[found.targets[k]].call;
        node = qn_gr_alt(x->ast, qn_gr_seq(x->ast, qn_gr_set(x->ast, &found.sets[k]), call), node);
    }
    if (x->characters) {
        const int32_t here = qn_gr_place(x->ast, x->lengths, (uint32_t)at, ends_character(x, at));
        node = qn_gr_seq(x->ast, here, node);
    }
    qn_gr_ast_rule_set(x->ast, x->tuples[at].rule, node);
    return qn_gr_ast_check(x->ast, x->err);
}

static qn_status multiply(uint32_t *first, product *x) {
    tuple start = {.rule = -1};
    for (size_t i = 0; i < x->n_parts; i++) start.at[i] = x->parts[i].start;
    if (is_dead(x, &start)) return QN_OK; // no states
    find_classes(x);
    QN_TRY(intern(first, x, &start));
    for (size_t i = 0; i < x->n; i++) QN_TRY(expand(x, i));
    return QN_OK;
}

// --- lengths -------------------------------------------------------------------------------------

// For each state, the states at the ends of the next character.
typedef struct reach {
    uint32_t *first, *to;
    size_t cap_first, n_to, cap_to;
    uint32_t *work, *seen; // states to look at; the last state from which one was seen, plus one
    bool *accepts;
} reach;

static qn_status reach_from(reach *r, product *x, uint32_t state) {
    size_t n = 0;
    r->work[n++] = state;
    while (n) {
        const uint32_t at = r->work[--n];
        QN_TRY(spend(x, 1 + x->first[at + 1] - x->first[at]));
        for (uint32_t i = x->first[at]; i < x->first[at + 1]; i++) {
            const uint32_t to = x->to[i];
            if (r->seen[to] == state + 1) continue;
            r->seen[to] = state + 1;
            if (!ends_character(x, to)) {
                r->work[n++] = to;
                continue;
            }
            if (!qn_grow((void **)&r->to, &r->cap_to, r->n_to + 1, sizeof *r->to))
                return QN_NOMEM(x->err, "grammar");
            r->to[r->n_to++] = to;
        }
    }
    r->first[state + 1] = (uint32_t)r->n_to;
    return QN_OK;
}

static qn_status find_lengths(qn_gr_lengths **out, product *x) {
    reach r = {0};
    r.first = qn_alloc(x->n + 1, sizeof *r.first);
    r.work = qn_alloc(x->n + 1, sizeof *r.work);
    r.seen = qn_alloc(x->n, sizeof *r.seen);
    r.accepts = qn_alloc(x->n, sizeof *r.accepts);
    qn_status status =
        r.first && r.work && r.seen && r.accepts ? QN_OK : QN_NOMEM(x->err, "grammar");
    for (uint32_t i = 0; !status && i < x->n; i++) {
        r.accepts[i] = accepts(x, &x->tuples[i]);
        status = reach_from(&r, x, i);
    }
    const qn_gr_length_graph graph = {
        .n = x->n, .first = r.first, .to = r.to, .accepts = r.accepts};
    if (!status)
        status = qn_gr_lengths_create(out, &graph, x->length.min, x->length.max, x->steps, x->err);
    qn_free(r.first);
    qn_free(r.to);
    qn_free(r.work);
    qn_free(r.seen);
    qn_free(r.accepts);
    return status;
}

static qn_status lower_product(int32_t *out, product *x) {
    uint32_t first = 0;
    if (x->characters) x->lengths = qn_gr_ast_lengths_add(x->ast);
    QN_TRY(multiply(&first, x));
    *out = x->n ? x->tuples[first].call : QN_AST_NEVER;
    if (!x->n || !x->characters) return QN_OK;
    qn_gr_lengths *lengths;
    QN_TRY(find_lengths(&lengths, x));
    const bool fits = qn_gr_lengths_fit(lengths, first, 0);
    qn_gr_ast_lengths_set(x->ast, x->lengths, lengths);
    *out = fits ? qn_gr_counted(x->ast, *out, x->lengths) : QN_AST_NEVER;
    return QN_OK;
}

// Makes the automata; those of lengths become bounds beside the others.
static qn_status make_parts(product *x, const qn_gr_lang_part *parts, size_t n, size_t *culprit) {
    const qn_gr_lang_part all = {.kind = QN_LANG_LENGTH, .max = QN_AST_MANY};
    bool only_negated = true;
    for (size_t i = 0; i < n; i++) {
        *culprit = i;
        if (parts[i].kind == QN_LANG_LENGTH && !parts[i].negated) {
            narrow(&x->length, parts[i].min, parts[i].max);
            continue;
        }
        only_negated = only_negated && parts[i].negated;
        QN_TRY(part_init(&x->parts[x->n_parts++], &parts[i], true, &x->length, x->steps, x->err));
    }
    const bool has_length = x->length.min > 0 || x->length.max != QN_AST_MANY;
    if (!has_length && !only_negated) return QN_OK; // else something must hold beside what must not
    if (has_length) x->characters = &x->parts[x->n_parts];
    return part_init(&x->parts[x->n_parts++], &all, true, NULL, x->steps, x->err);
}

qn_status qn_gr_lang_lower(int32_t *out, qn_gr_ast *ast, const qn_gr_lang_part *parts, size_t n,
                           uint64_t *steps, size_t *culprit, qn_err *err) {
    size_t at = 0;
    if (!culprit) culprit = &at;
    *culprit = 0;
    if (n == 1 && !parts[0].negated) return part_node(out, ast, &parts[0], true, NULL, steps, err);
    if (n > QN_LANG_MAX_PARTS)
        return QN_FAIL(err, LIMIT, "%zu conditions on a string, at most %d", n, QN_LANG_MAX_PARTS);
    part made[MAX_MADE] = {0};
    const size_t tuples_size = QN_LANG_MAX_STATES * sizeof(tuple);
    product x = {.ast = ast,
                 .parts = made,
                 .length = {0, QN_AST_MANY},
                 .steps = steps,
                 .err = err,
                 .tuples = qn_reserve(tuples_size)};
    qn_status status = x.tuples ? QN_OK : QN_NOMEM(err, "grammar");
    if (!status) status = make_parts(&x, parts, n, culprit);
    if (!status) status = lower_product(out, &x);
    for (size_t i = 0; i < x.n_parts; i++) part_deinit(&made[i], steps);
    qn_map_deinit(&x.index);
    qn_free(x.first);
    qn_free(x.to);
    if (x.tuples) qn_unreserve(x.tuples, tuples_size);
    return status;
}

qn_status qn_gr_lang_matches(bool *out, qn_str pattern, qn_str text, uint64_t *steps, qn_err *err) {
    part p;
    const qn_gr_lang_part given = {.kind = QN_LANG_PATTERN, .pattern = pattern};
    qn_status status = part_init(&p, &given, false, NULL, steps, err);
    int32_t state = p.start;
    for (size_t i = 0; !status && i < text.size && state != QN_STATE_DEAD; i++) {
        const uint64_t cost = 64;
        const qn_gr_states_result result =
            *steps < cost ? QN_STATES_COSTLY
                          : qn_gr_states_step(&state, p.states, state, (uint8_t)text.data[i]);
        if (result) status = fail_states(result, err);
        *steps -= result ? 0 : cost;
    }
    if (!status) *out = state != QN_STATE_DEAD && qn_gr_states_get(p.states, state)->may_end;
    part_deinit(&p, steps);
    return status;
}
