#include "gen/grammar/lang.h"

#include "core/mem.h"
#include "core/utf8.h"
#include "gen/grammar/json.h"
#include "gen/grammar/regex.h"
#include "gen/grammar/states.h"

// One part as a finite automaton over bytes. State 0 is the dead one.
typedef struct part {
    qn_ast ast;
    qn_program program;
    qn_states *states;
    int32_t start;
    bool negated;
} part;

static const qn_code_range any_code[] = {{0, 0x10FFFF}};

static int32_t words_node(qn_ast *ast, const qn_lang_part *p) {
    int32_t node = QN_AST_NEVER;
    for (size_t i = p->n_words; i-- > 0;) {
        int32_t word = QN_AST_EMPTY;
        const qn_str text = p->words[i];
        for (size_t end = text.size; end > 0;) {
            size_t from = end - 1;
            uint32_t code = 0;
            while (from > 0 && ((unsigned char)text.data[from] & 0xC0) == 0x80) from--;
            qn_utf8_decode(text.data + from, end - from, &code);
            word = qn_ast_seq(ast, qn_json_codes(ast, &(qn_code_range){code, code}, 1), word);
            end = from;
        }
        node = qn_ast_alt(ast, word, node);
    }
    return node;
}

static qn_status part_node(int32_t *out, qn_ast *ast, const qn_lang_part *p, bool in_json,
                           qn_err *err) {
    if (p->kind == QN_LANG_WORDS) {
        *out = words_node(ast, p);
        return QN_OK;
    }
    const int32_t any =
        qn_ast_shared(ast, "character",
                      in_json ? qn_json_codes(ast, any_code, 1) : qn_ast_codes(ast, any_code, 1));
    if (p->kind == QN_LANG_LENGTH) {
        *out = qn_ast_rep(ast, any, p->min, p->max);
        return QN_OK;
    }
    qn_regex_node *tree;
    QN_TRY(qn_regex_parse(&tree, &ast->arena, p->pattern, err));
    return qn_regex_lower(out, ast, tree, (qn_regex_form){.in_json = in_json, .around = any}, err);
}

static void part_deinit(part *p) {
    qn_states_destroy(p->states);
    qn_program_deinit(&p->program);
    qn_ast_deinit(&p->ast);
}

static qn_status fail_states(qn_states_result result, qn_err *err) {
    (void)result;
    return QN_FAIL(err, LIMIT, "the conditions on a string are too complex together");
}

// A part that matches nothing has no automaton: start is dead.
static qn_status part_init(part *out, const qn_lang_part *p, bool in_json, qn_err *err) {
    int32_t root;
    *out = (part){.start = QN_STATE_DEAD, .negated = p->negated};
    QN_TRY(qn_ast_init(&out->ast, err));
    QN_TRY(part_node(&root, &out->ast, p, in_json, err));
    QN_TRY(qn_ast_check(&out->ast, err));
    qn_err why = {0};
    const qn_status status = qn_ast_analyze(&out->ast, root, &why);
    if (status == QN_ARGUMENT) return QN_OK; // no text matches
    if (status && err) *err = why;
    if (status) return status;
    QN_TRY(qn_program_init(&out->program, &out->ast, root, err));
    QN_TRY(qn_states_create(&out->states, &out->program, UINT16_MAX, err));
    qn_states_allow(out->states, 1 << 20);
    const qn_states_result result = qn_states_start(&out->start, out->states);
    return result ? fail_states(result, err) : QN_OK;
}

// --- all parts at once ---------------------------------------------------------------------------

typedef struct tuple {
    int32_t at[QN_LANG_MAX_PARTS];
    int32_t rule;
} tuple;

typedef struct product {
    qn_ast *ast;
    part *parts;
    size_t n_parts;
    tuple *tuples; // states of the product; not moved: reserved
    size_t n;
    qn_map index;
    uint64_t *steps;
    qn_err *err;
} product;

static bool accepts(const product *x, const tuple *t) {
    for (size_t i = 0; i < x->n_parts; i++) {
        const int32_t state = t->at[i];
        const bool holds =
            state != QN_STATE_DEAD && qn_states_get(x->parts[i].states, state)->may_end;
        if (holds == x->parts[i].negated) return false;
    }
    return true;
}

static bool is_dead(const product *x, const tuple *t) {
    for (size_t i = 0; i < x->n_parts; i++)
        if (!x->parts[i].negated && t->at[i] == QN_STATE_DEAD) return true;
    return false;
}

// The number of a tuple, new or known.
static qn_status intern(uint32_t *out, product *x, const tuple *t) {
    const size_t size = x->n_parts * sizeof *t->at;
    if (qn_map_find(&x->index, (const char *)t->at, size, out)) return QN_OK;
    if (x->n == QN_LANG_MAX_STATES) return fail_states(QN_STATES_FULL, x->err);
    tuple *kept = &x->tuples[x->n];
    *kept = *t;
    kept->rule = qn_ast_rule_add(x->ast, qn_str_of("string"));
    if (!qn_map_add(&x->index, (const char *)kept->at, size, (uint32_t)x->n, NULL))
        return QN_NOMEM(x->err, "grammar");
    *out = (uint32_t)x->n++;
    return QN_OK;
}

static qn_status step(bool *alive, tuple *to, const product *x, const tuple *from, uint8_t byte) {
    for (size_t i = 0; i < x->n_parts; i++) {
        to->at[i] = QN_STATE_DEAD;
        if (from->at[i] == QN_STATE_DEAD) continue;
        const qn_states_result result =
            qn_states_step(&to->at[i], x->parts[i].states, from->at[i], byte);
        if (result) return fail_states(result, x->err);
    }
    *alive = !is_dead(x, to);
    return QN_OK;
}

// The rule of a tuple: for each tuple that can follow, a set of bytes and a call.
static qn_status expand(product *x, size_t at) {
    qn_byte_set sets[256];
    uint32_t targets[256];
    size_t n = 0;
    if (*x->steps < 256 * x->n_parts) return fail_states(QN_STATES_COSTLY, x->err);
    *x->steps -= 256 * x->n_parts;
    for (unsigned byte = 0; byte < 256; byte++) {
        tuple to;
        bool alive;
        uint32_t target;
        QN_TRY(step(&alive, &to, x, &x->tuples[at], (uint8_t)byte));
        if (!alive) continue;
        QN_TRY(intern(&target, x, &to));
        size_t k = 0;
        while (k < n && targets[k] != target) k++;
        if (k == n) {
            targets[n] = target;
            sets[n++] = (qn_byte_set){{0}};
        }
        qn_byte_set_add(&sets[k], byte);
    }
    int32_t node = accepts(x, &x->tuples[at]) ? QN_AST_EMPTY : QN_AST_NEVER;
    for (size_t k = 0; k < n; k++) {
        const int32_t call = qn_ast_ref(x->ast, x->tuples[targets[k]].rule);
        node = qn_ast_alt(x->ast, qn_ast_seq(x->ast, qn_ast_set(x->ast, &sets[k]), call), node);
    }
    qn_ast_rule_set(x->ast, x->tuples[at].rule, node);
    return qn_ast_check(x->ast, x->err);
}

static qn_status multiply(int32_t *out, product *x) {
    tuple start = {.rule = -1};
    uint32_t first;
    for (size_t i = 0; i < x->n_parts; i++) start.at[i] = x->parts[i].start;
    if (is_dead(x, &start)) {
        *out = QN_AST_NEVER;
        return QN_OK;
    }
    QN_TRY(intern(&first, x, &start));
    for (size_t i = 0; i < x->n; i++) QN_TRY(expand(x, i));
    *out = qn_ast_ref(x->ast, x->tuples[first].rule);
    return QN_OK;
}

qn_status qn_lang_lower(int32_t *out, qn_ast *ast, const qn_lang_part *parts, size_t n,
                        uint64_t *steps, qn_err *err) {
    if (n == 1 && !parts[0].negated) return part_node(out, ast, &parts[0], true, err);
    if (n > QN_LANG_MAX_PARTS)
        return QN_FAIL(err, LIMIT, "%zu conditions on a string, at most %d", n, QN_LANG_MAX_PARTS);
    // Something must hold beside what must not.
    const qn_lang_part all = {.kind = QN_LANG_LENGTH, .max = QN_AST_MANY};
    bool only_negated = true;
    for (size_t i = 0; i < n; i++) only_negated = only_negated && parts[i].negated;
    if (only_negated && n == QN_LANG_MAX_PARTS) return fail_states(QN_STATES_FULL, err);
    part made[QN_LANG_MAX_PARTS] = {0};
    const size_t tuples_size = QN_LANG_MAX_STATES * sizeof(tuple);
    product x = {.ast = ast, .parts = made, .steps = steps, .err = err};
    x.tuples = qn_reserve(tuples_size);
    qn_status status = x.tuples ? QN_OK : QN_NOMEM(err, "grammar");
    for (size_t i = 0; !status && i < n; i++)
        status = part_init(&made[x.n_parts++], &parts[i], true, err);
    if (!status && only_negated) status = part_init(&made[x.n_parts++], &all, true, err);
    if (!status) status = multiply(out, &x);
    for (size_t i = 0; i < x.n_parts; i++) part_deinit(&made[i]);
    qn_map_deinit(&x.index);
    if (x.tuples) qn_unreserve(x.tuples, tuples_size);
    return status;
}

qn_status qn_lang_matches(bool *out, qn_str pattern, qn_str text, uint64_t *steps, qn_err *err) {
    part p;
    const qn_lang_part given = {.kind = QN_LANG_PATTERN, .pattern = pattern};
    qn_status status = part_init(&p, &given, false, err);
    int32_t state = p.start;
    for (size_t i = 0; !status && i < text.size && state != QN_STATE_DEAD; i++) {
        const uint64_t cost = 64;
        const qn_states_result result =
            *steps < cost ? QN_STATES_COSTLY
                          : qn_states_step(&state, p.states, state, (uint8_t)text.data[i]);
        if (result) status = fail_states(result, err);
        *steps -= result ? 0 : cost;
    }
    if (!status) *out = state != QN_STATE_DEAD && qn_states_get(p.states, state)->may_end;
    part_deinit(&p);
    return status;
}
