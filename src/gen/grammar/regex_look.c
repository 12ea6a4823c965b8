// Look-around, and anchors anywhere: patterns whose matches depend on the text around them, as one
// finite automaton over characters.
//
// A pattern is compiled, from its end to its start, to nodes that say what the rest of the text
// must be: a character and then more, one of two things, both (a look-ahead and what follows it),
// not, or only where something precedes it (an anchor, a look-behind). The state between two
// characters is a boolean function of the nodes that read the next one, and for each look-behind
// the nodes that it has come to. Functions that are equal are one, so the states are finite.
#include "core/mem.h"
#include "gen/grammar/boolean.h"
#include "gen/grammar/json_rules.h"
#include "gen/grammar/look_letters.h"
#include "gen/grammar/regex_rules.h"

#include <stdlib.h>

enum {
    MAX_NODES = 1 << 15, // of a pattern, its repetitions written out
    MAX_STATES = 1 << 13,
    MAX_TESTS = 64,       // look-behinds
    STEPS = 6 << 20,      // about 50 ns each
    SMALL_CLASS = 8,      // ranges; a larger class is a rule, lowered once
    END_VAR = 0x7FFFFFF0, // the variable of "nothing follows", after those of the nodes
};

typedef enum kind {
    IS_TRUE, // whatever follows
    IS_END,  // nothing follows
    IS_HIT,  // a look-behind ends here
    IS_CHAR, // a character of class `a`, then `next`
    IS_OR,   // a or next
    IS_AND,  // a and next
    IS_NOT,  // not a
    IS_IF,   // next, if test `a` holds (negated: does not hold)
} kind;

enum { NODE_TRUE, NODE_END, NODE_HIT, N_FIXED, AT_START = -1 };

typedef struct look_node {
    uint8_t kind;
    bool negated;
    int32_t a, next;
} look_node;

// A state. Its key: the function, then for each look-behind the nodes in order and -1.
typedef struct state {
    const int32_t *key; // in the arena
    size_t n_key;
    int32_t rule, call;
} state;

typedef struct automaton {
    qn_gr_ast *ast;
    qn_gr_regex_form form;
    look_node *nodes;
    size_t n, cap;
    int32_t tests[MAX_TESTS]; // where look-behinds start; an inner one comes before the outer
    size_t n_tests;
    int in_test; // look-behinds around the present node
    qn_gr_letters letters;
    qn_gr_bools bools;
    state *states;
    size_t n_states, cap_states;
    qn_map index; // key -> state
    // At the position that is looked at:
    bool at_start, holds[MAX_TESTS];
    int32_t *values;         // (node): function; valid if its round is the present one
    uint32_t *rounds, round; // (node)
    int32_t *order, *work;   // (node): nodes that read nothing, children first; nodes to look at
    size_t n_order;
    int32_t *key;
    size_t n_key, cap_key;
    int32_t *changed; // (function): what it becomes by the present letter; -1: not needed
    int32_t *needed;  // functions
    size_t cap_changed, n_needed, cap_needed;
    qn_map sets; // bits of letters -> node that reads one of them
    uint64_t steps;
    qn_status status;
    qn_err *err;
} automaton;

static bool fail(automaton *x, qn_status status) {
    if (!x->status) x->status = status;
    return false;
}

static bool fail_limit(automaton *x) {
    if (x->status) return false;
    return fail(x,
                QN_FAIL(x->err, LIMIT,
                        "regular expression: look-around and inner anchors make it too complex"));
}

static bool fail_memory(automaton *x) {
    return x->status ? false : fail(x, QN_NOMEM(x->err, "regular expression"));
}

static bool spend(automaton *x, uint64_t steps) {
    if (x->status) return false;
    if (x->steps < steps) return fail_limit(x);
    x->steps -= steps;
    return true;
}

// --- the nodes -----------------------------------------------------------------------------------

static int32_t add_node(automaton *x, look_node made) {
    if (x->status) return NODE_TRUE;
    if (x->n >= MAX_NODES) {
        fail_limit(x);
        return NODE_TRUE;
    }
    if (!qn_grow((void **)&x->nodes, &x->cap, x->n + 1, sizeof *x->nodes)) {
        fail_memory(x);
        return NODE_TRUE;
    }
    x->nodes[x->n] = made;
    return (int32_t)x->n++;
}

static int32_t compile(automaton *x, const qn_gr_regex_node *tree, int32_t next);

static int32_t compile_class(automaton *x, const qn_gr_code_range *ranges, size_t n, int32_t next) {
    uint32_t letter_class = 0;
    const qn_status status = qn_gr_letters_add(&letter_class, &x->letters, ranges, n, x->err);
    if (status) fail(x, status);
    return add_node(x, (look_node){.kind = IS_CHAR, .a = (int32_t)letter_class, .next = next});
}

static int32_t compile_choice(automaton *x, const qn_gr_regex_node *tree, int32_t next) {
    int32_t made = compile(x, tree->last, next);
    for (const qn_gr_regex_node *t = tree->last->previous; t && !x->status; t = t->previous)
        made = add_node(x, (look_node){.kind = IS_OR, .a = compile(x, t, next), .next = made});
    return made;
}

static int32_t compile_loop(automaton *x, const qn_gr_regex_node *tree, int32_t next) {
    int32_t made = next;
    if (tree->max == QN_AST_MANY) {
        made = add_node(x, (look_node){.kind = IS_OR, .next = next});
        const int32_t body = compile(x, tree->first, made);
        if (x->status) return NODE_TRUE;
        x->nodes[made].a = body;
    } else {
        for (uint32_t i = tree->min; i < tree->max && !x->status; i++)
            made = add_node(
                x, (look_node){.kind = IS_OR, .a = compile(x, tree->first, made), .next = next});
    }
    for (uint32_t i = 0; i < tree->min && !x->status; i++) made = compile(x, tree->first, made);
    return made;
}

static int32_t fail_inside(automaton *x, const qn_gr_regex_node *tree, const char *what) {
    if (!x->status)
        fail(x, QN_FAIL(x->err, UNSUPPORTED,
                        "regular expression, column %u: %s inside a look-behind is not supported",
                        tree->column, what));
    return NODE_TRUE;
}

static int32_t compile_look(automaton *x, const qn_gr_regex_node *tree, int32_t next) {
    if (!tree->behind) {
        if (x->in_test) return fail_inside(x, tree, "a look-ahead or a word boundary");
        int32_t body = compile(x, tree->first, NODE_TRUE);
        if (tree->negated) body = add_node(x, (look_node){.kind = IS_NOT, .a = body});
        return add_node(x, (look_node){.kind = IS_AND, .a = body, .next = next});
    }
    x->in_test++;
    const int32_t start = compile(x, tree->first, NODE_HIT);
    x->in_test--;
    if (x->n_tests == MAX_TESTS) {
        fail_limit(x);
        return NODE_TRUE;
    }
    x->tests[x->n_tests] = start;
    return add_node(
        x, (look_node){
               .kind = IS_IF, .a = (int32_t)x->n_tests++, .negated = tree->negated, .next = next});
}

// What the rest of the text must be: a match of the tree, and then what `next` says.
static int32_t compile(automaton *x, const qn_gr_regex_node *tree, int32_t next) {
    if (!spend(x, 1)) return NODE_TRUE;
    switch (tree->kind) {
    case QN_REGEX_CLASS:
        return compile_class(x, tree->ranges, tree->n_ranges, next);
    case QN_REGEX_SEQ:
        for (const qn_gr_regex_node *t = tree->last; t && !x->status; t = t->previous)
            next = compile(x, t, next);
        return next;
    case QN_REGEX_ALT:
        return compile_choice(x, tree, next);
    case QN_REGEX_REP:
        return compile_loop(x, tree, next);
    case QN_REGEX_LOOK:
        return compile_look(x, tree, next);
    case QN_REGEX_START:
        return add_node(x, (look_node){.kind = IS_IF, .a = AT_START, .next = next});
    case QN_REGEX_END:
        if (x->in_test) return fail_inside(x, tree, "$");
        return add_node(x, (look_node){.kind = IS_AND, .a = NODE_END, .next = next});
    }
    return NODE_TRUE;
}

static const qn_gr_code_range any_code[] = {{0, 0x10FFFF}};

// The whole pattern; where it may match anywhere, after any characters.
static int32_t compile_all(automaton *x, const qn_gr_regex_node *tree) {
    add_node(x, (look_node){.kind = IS_TRUE});
    add_node(x, (look_node){.kind = IS_END});
    add_node(x, (look_node){.kind = IS_HIT});
    if (x->form.around < 0) return compile(x, tree, NODE_END);
    const int32_t search =
        add_node(x, (look_node){.kind = IS_OR, .a = compile(x, tree, NODE_TRUE)});
    const int32_t skip = compile_class(x, any_code, 1, search);
    if (!x->status) x->nodes[search].next = skip;
    return search;
}

// --- a position ----------------------------------------------------------------------------------

static void next_round(automaton *x) {
    if (++x->round) return;
    memset(x->rounds, 0, x->n * sizeof *x->rounds); // wrapped: old marks would look new
    x->round = 1;
}

static bool passes(const automaton *x, const look_node *at) {
    return (at->a == AT_START ? x->at_start : x->holds[at->a]) != at->negated;
}

// True once in a round.
static bool is_new(automaton *x, int32_t at) {
    if (x->rounds[at] == x->round) return false;
    x->rounds[at] = x->round;
    return true;
}

static int32_t value_of(automaton *x, int32_t at) {
    const look_node *n = &x->nodes[at];
    switch ((kind)n->kind) {
    case IS_TRUE:
    case IS_HIT:
        return QN_BOOL_TRUE;
    case IS_END:
        return qn_gr_bool_var(&x->bools, END_VAR);
    case IS_CHAR:
        return qn_gr_bool_var(&x->bools, (uint32_t)at);
    case IS_OR:
        return qn_gr_bool_or(&x->bools, x->values[n->a], x->values[n->next]);
    case IS_AND:
        return qn_gr_bool_and(&x->bools, x->values[n->a], x->values[n->next]);
    case IS_NOT:
        return qn_gr_bool_not(&x->bools, x->values[n->a]);
    case IS_IF:
        break;
    }
    return passes(x, n) ? x->values[n->next] : QN_BOOL_FALSE;
}

static int32_t resolve(automaton *x, int32_t root, size_t base);

// The nodes that are reached from `root` before a character is read, each after those it depends on
// (but for loops). What is negated must be known first. A node lies in `work` twice: the second
// time as ~node, when all below it are in order.
static void find_order(automaton *x, int32_t root, size_t base) {
    size_t n = base;
    x->work[n++] = root;
    while (n > base && spend(x, 1)) {
        const int32_t at = x->work[--n];
        if (at < 0) {
            x->order[x->n_order++] = ~at;
            continue;
        }
        if (!is_new(x, at)) continue;
        const look_node *node = &x->nodes[at];
        if (node->kind <= IS_CHAR) { // what is negated may ask for it at once
            x->values[at] = value_of(x, at);
            continue;
        }
        x->values[at] = QN_BOOL_FALSE;
        x->work[n++] = ~at;
        if (node->kind == IS_NOT) resolve(x, node->a, n);
        if (node->kind == IS_OR || node->kind == IS_AND) x->work[n++] = node->a;
        const bool goes_on =
            node->kind == IS_OR || node->kind == IS_AND || (node->kind == IS_IF && passes(x, node));
        if (goes_on) x->work[n++] = node->next;
    }
}

// The function of a node at this position. Loops that read nothing give the least solution: rounds
// of computing until nothing changes.
static int32_t resolve(automaton *x, int32_t root, size_t base) {
    if (x->rounds[root] == x->round) return x->values[root];
    const size_t first = x->n_order;
    find_order(x, root, base);
    for (bool changed = true; changed && !x->status && !x->bools.failed;) {
        changed = false;
        for (size_t i = first; i < x->n_order && spend(x, 1); i++) {
            const int32_t value = value_of(x, x->order[i]);
            changed = changed || value != x->values[x->order[i]];
            x->values[x->order[i]] = value;
        }
    }
    x->n_order = first;
    return x->values[root];
}

static bool add_key(automaton *x, int32_t value) {
    if (!qn_grow((void **)&x->key, &x->cap_key, x->n_key + 1, sizeof *x->key))
        return fail_memory(x);
    x->key[x->n_key++] = value;
    return true;
}

static int compare_nodes(const void *a, const void *b) {
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static bool reads(const automaton *x, int32_t at, size_t letter) {
    return qn_gr_letters_has(&x->letters, (uint32_t)x->nodes[at].a, letter);
}

// Where look-behind `k` comes to: from its nodes before (up to -1) by the letter, and again from
// here. Adds its nodes to the key, and finds whether it holds here. Returns what follows the -1.
static const int32_t *step_test(automaton *x, size_t k, const int32_t *before, size_t letter) {
    size_t n = 0;
    const size_t first = x->n_key;
    next_round(x);
    if (is_new(x, x->tests[k])) x->work[n++] = x->tests[k];
    for (; before && *before >= 0; before++) {
        const int32_t to = x->nodes[*before].next;
        if (reads(x, *before, letter) && is_new(x, to)) x->work[n++] = to;
    }
    x->holds[k] = false;
    while (n && spend(x, 1)) {
        const int32_t at = x->work[--n];
        const look_node *node = &x->nodes[at];
        if (node->kind == IS_CHAR) add_key(x, at);
        if (node->kind == IS_HIT) x->holds[k] = true;
        if (node->kind == IS_OR && is_new(x, node->a)) x->work[n++] = node->a;
        const bool goes_on = node->kind == IS_OR || (node->kind == IS_IF && passes(x, node));
        if (goes_on && is_new(x, node->next)) x->work[n++] = node->next;
    }
    if (x->n_key > first) qsort(x->key + first, x->n_key - first, sizeof *x->key, compare_nodes);
    add_key(x, -1);
    return before ? before + 1 : NULL;
}

// --- steps ---------------------------------------------------------------------------------------

// What a variable becomes: the function of what follows the character, if it is one of the node's.
static int32_t change_var(automaton *x, uint32_t var, size_t letter) {
    if (var == END_VAR || !reads(x, (int32_t)var, letter)) return QN_BOOL_FALSE;
    return resolve(x, x->nodes[var].next, 0);
}

static bool need(automaton *x, int32_t function) {
    if (function <= QN_BOOL_TRUE || x->changed[function] >= 0) return true;
    if (!qn_grow((void **)&x->needed, &x->cap_needed, x->n_needed + 1, sizeof *x->needed))
        return fail_memory(x);
    x->changed[function] = 0;
    x->needed[x->n_needed++] = function;
    return true;
}

static bool make_room(automaton *x, size_t n) {
    const size_t old_cap = x->cap_changed;
    if (!qn_grow((void **)&x->changed, &x->cap_changed, n, sizeof *x->changed))
        return fail_memory(x);
    for (size_t i = old_cap; i < x->cap_changed; i++) x->changed[i] = -1;
    return true;
}

// The function after a letter. Functions depend on smaller ones only, so all below are changed in
// ascending order. `changed` is -1 everywhere before and after.
static int32_t change(automaton *x, int32_t function, size_t letter) {
    int32_t result = QN_BOOL_FALSE;
    if (function <= QN_BOOL_TRUE) return function;
    if (!make_room(x, (size_t)function + 1)) return result;
    x->n_needed = 0;
    bool ok = need(x, function);
    for (size_t i = 0; ok && i < x->n_needed; i++) {
        const qn_gr_bool item = x->bools.items[x->needed[i]];
        ok = need(x, item.low) && need(x, item.high) && spend(x, 1);
    }
    if (ok) qsort(x->needed, x->n_needed, sizeof *x->needed, compare_nodes);
    for (size_t i = 0; ok && i < x->n_needed && !x->bools.failed; i++) {
        const qn_gr_bool item = x->bools.items[x->needed[i]];
        const int32_t low = item.low > QN_BOOL_TRUE ? x->changed[item.low] : item.low;
        const int32_t high = item.high > QN_BOOL_TRUE ? x->changed[item.high] : item.high;
        result = qn_gr_bool_if(&x->bools, change_var(x, item.var, letter), high, low);
        x->changed[x->needed[i]] = result;
        ok = !x->status;
    }
    for (size_t i = 0; i < x->n_needed; i++) x->changed[x->needed[i]] = -1;
    return result;
}

// The key of the state that follows `from` by the letter; of the first state if it is NULL.
static void make_key(automaton *x, const state *from, size_t letter, int32_t root) {
    const int32_t *before = from ? from->key + 1 : NULL;
    x->n_key = 0;
    x->at_start = !from;
    if (!add_key(x, from ? from->key[0] : 0)) return;
    if (from && from->key[0] <= QN_BOOL_TRUE) return; // it stays so
    for (size_t k = 0; k < x->n_tests && !x->status; k++) before = step_test(x, k, before, letter);
    if (x->status) return;
    next_round(x);
    const int32_t function = from ? change(x, from->key[0], letter) : resolve(x, root, 0);
    if (x->bools.failed == QN_MEMORY) fail_memory(x);
    if (x->bools.failed) fail_limit(x);
    x->key[0] = function;
    // What came before no longer matters when the rest is decided.
    if (function <= QN_BOOL_TRUE) x->n_key = 1;
}

static int32_t intern(automaton *x) {
    uint32_t found = 0;
    const size_t size = x->n_key * sizeof *x->key;
    if (x->status) return 0;
    if (qn_map_find(&x->index, (const char *)x->key, size, &found)) return (int32_t)found;
    if (x->n_states == MAX_STATES) fail_limit(x);
    const char *key = qn_arena_strdup(&x->ast->arena, (const char *)x->key, size);
    if (!key || !qn_grow((void **)&x->states, &x->cap_states, x->n_states + 1, sizeof *x->states) ||
        !qn_map_add(&x->index, key, size, (uint32_t)x->n_states, NULL))
        fail_memory(x);
    if (x->status) return 0;
    state *made = &x->states[x->n_states];
    *made = (state){.key = (const int32_t *)(const void *)key, .n_key = x->n_key};
    made->rule = qn_gr_ast_rule_add(x->ast, qn_str_of("match"));
    made->call = qn_gr_ref(x->ast, made->rule);
    return (int32_t)x->n_states++;
}

// --- the tree ------------------------------------------------------------------------------------

static bool may_end(const automaton *x, int32_t function) {
    while (function > QN_BOOL_TRUE) {
        const qn_gr_bool *item = &x->bools.items[function];
        function = item->var == END_VAR ? item->high : item->low;
    }
    return function == QN_BOOL_TRUE;
}

static int32_t codes_node(automaton *x, const qn_gr_code_range *ranges, size_t n) {
    return x->form.in_json ? qn_gr_json_codes(x->ast, ranges, n) : qn_gr_codes(x->ast, ranges, n);
}

// A character of the letters. Made once for each set of them.
static int32_t letters_node(automaton *x, const uint64_t *bits) {
    const size_t size = x->letters.n_words * sizeof *bits;
    uint32_t known = 0;
    qn_gr_code_range *ranges;
    size_t n;
    if (x->status) return QN_AST_NEVER;
    if (qn_map_find(&x->sets, (const char *)bits, size, &known)) return (int32_t)known;
    const qn_status status = qn_gr_letters_ranges(&ranges, &n, &x->letters, bits, x->err);
    if (status) {
        fail(x, status);
        return QN_AST_NEVER;
    }
    spend(x, x->letters.n_spans / 8);
    int32_t made = codes_node(x, ranges, n);
    if (n > SMALL_CLASS) made = qn_gr_shared(x->ast, "class", made);
    qn_free(ranges);
    const char *key = qn_arena_strdup(&x->ast->arena, (const char *)bits, size);
    if (!key || !qn_map_add(&x->sets, key, size, (uint32_t)made, NULL)) fail_memory(x);
    return made;
}

// The rule of a state: for each state that can follow, its characters and a call. `targets` and
// `bits` (letters, n_words) have room for all letters.
static void expand(automaton *x, size_t at, int32_t *targets, uint64_t *bits) {
    const size_t n_words = x->letters.n_words;
    size_t n = 0;
    for (size_t letter = 0; letter < x->letters.n && spend(x, 4); letter++) {
        const state from = x->states[at];
        make_key(x, &from, letter, 0);
        if (x->status || x->key[0] == QN_BOOL_FALSE) continue;
        const int32_t target = intern(x);
        size_t k = 0;
        while (k < n && targets[k] != target) k++;
        if (k == n) {
            memset(bits + n * n_words, 0, n_words * sizeof *bits);
            targets[n++] = target;
        }
        bits[k * n_words + letter / 64] |= (uint64_t)1 << (letter % 64);
    }
    if (x->status) return;
    int32_t node = may_end(x, x->states[at].key[0]) ? QN_AST_EMPTY : QN_AST_NEVER;
    for (size_t k = 0; k < n; k++) {
        const int32_t read = letters_node(x, bits + k * n_words);
        node = qn_gr_alt(x->ast, qn_gr_seq(x->ast, read, x->states[targets[k]].call), node);
    }
    qn_gr_ast_rule_set(x->ast, x->states[at].rule, node);
    if (x->ast->failed) fail(x, qn_gr_ast_check(x->ast, x->err));
}

static void expand_all(int32_t *out, automaton *x, int32_t root) {
    const size_t n = x->letters.n;
    int32_t *targets = qn_alloc(n, sizeof *targets);
    uint64_t *bits = qn_alloc(n * x->letters.n_words, sizeof *bits);
    x->values = qn_alloc(x->n, sizeof *x->values);
    x->rounds = qn_alloc(x->n, sizeof *x->rounds);
    x->order = qn_alloc(x->n, sizeof *x->order);
    x->work = qn_alloc(x->n * 3 + 1, sizeof *x->work);
    if (!targets || !bits || !x->values || !x->rounds || !x->order || !x->work) fail_memory(x);
    if (!x->status) make_key(x, NULL, 0, root);
    const int32_t first = intern(x);
    for (size_t i = 0; i < x->n_states && !x->status; i++) expand(x, i, targets, bits);
    if (!x->status) *out = x->states[first].call;
    qn_free(targets);
    qn_free(bits);
}

qn_status qn_gr_regex_lower_look(int32_t *out, qn_gr_ast *ast, const qn_gr_regex_node *tree,
                                 qn_gr_regex_form form, qn_err *err) {
    const uint64_t steps = *form.steps < STEPS ? *form.steps : STEPS;
    automaton x = {.ast = ast, .form = form, .steps = steps, .err = err};
    x.status = qn_gr_bools_init(&x.bools, &x.steps, err);
    const int32_t root = compile_all(&x, tree);
    if (!x.status) x.status = qn_gr_letters_make(&x.letters, &x.steps, err);
    if (!x.status) expand_all(out, &x, root);
    *form.steps -= steps - x.steps;
    qn_free(x.nodes);
    qn_gr_letters_deinit(&x.letters);
    qn_gr_bools_deinit(&x.bools);
    qn_free(x.states);
    qn_map_deinit(&x.index);
    qn_map_deinit(&x.sets);
    qn_free(x.values);
    qn_free(x.rounds);
    qn_free(x.order);
    qn_free(x.work);
    qn_free(x.key);
    qn_free(x.changed);
    qn_free(x.needed);
    return x.status;
}
