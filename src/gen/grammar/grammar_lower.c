#include "gen/grammar/program.h"

#include "core/mem.h"

#include <stdlib.h>

// What was lowered already: (tree node, or for a reference ~rule; node that follows) -> node.
typedef struct memo {
    uint64_t *keys; // 0: free; else the pair + 1
    int32_t *values;
    size_t n, cap;
} memo;

typedef struct lowering {
    qn_gr_program *program;
    qn_gr_ast *ast;
    memo seen;
    int32_t *entries;             // of rules; -1: not lowered
    qn_gr_node_list rules, calls; // rules to lower; CALL nodes, whose `a` is a rule until the end
    bool no_memory, is_large;
    size_t widest; // choice: how many there are
} lowering;

enum { MAX_NODES = 1 << 21 };

static size_t memo_slot(const memo *m, uint64_t key) {
    size_t at = (size_t)((key * 0x9E3779B97F4A7C15u) >> 20) & (m->cap - 1);
    while (m->keys[at] && m->keys[at] != key) at = (at + 1) & (m->cap - 1);
    return at;
}

static bool memo_grow(memo *m) {
    memo next = {.cap = m->cap ? m->cap * 2 : 1024, .n = m->n};
    next.keys = qn_alloc(next.cap, sizeof *next.keys);
    next.values = qn_alloc(next.cap, sizeof *next.values);
    const bool ok = next.keys && next.values;
    for (size_t i = 0; ok && i < m->cap; i++) {
        if (!m->keys[i]) continue;
        const size_t at = memo_slot(&next, m->keys[i]);
        next.keys[at] = m->keys[i];
        next.values[at] = m->values[i];
    }
    memo *old = ok ? m : &next;
    qn_free(old->keys);
    qn_free(old->values);
    if (ok) *m = next;
    return ok;
}

static void memo_add(lowering *low, uint64_t key, int32_t value) {
    memo *m = &low->seen;
    if (m->n * 2 >= m->cap && !memo_grow(m)) {
        low->no_memory = true;
        return;
    }
    const size_t at = memo_slot(m, key);
    m->keys[at] = key;
    m->values[at] = value;
    m->n++;
}

static int32_t add_node(lowering *low, qn_gr_pnode node) {
    qn_gr_program *p = low->program;
    if (p->n >= MAX_NODES) low->is_large = true;
    if (low->no_memory || low->is_large) return 0;
    if (!qn_grow((void **)&p->nodes, &p->cap, p->n + 1, sizeof *p->nodes)) {
        low->no_memory = true;
        return 0;
    }
    p->nodes[p->n] = node;
    return (int32_t)p->n++;
}

static bool list_add(lowering *low, qn_gr_node_list *list, int32_t item) {
    if (!qn_grow((void **)&list->items, &list->cap, list->n + 1, sizeof *list->items)) {
        low->no_memory = true;
        return false;
    }
    list->items[list->n++] = item;
    return true;
}

static int32_t lower(lowering *low, int32_t tree, int32_t next);

static int32_t lower_seq(lowering *low, int32_t tree, int32_t next) {
    qn_gr_node_list items = {0};
    qn_gr_ast_flatten(low->ast, QN_AST_IS_SEQ, tree, &items);
    for (size_t i = items.n; i-- > 0;) next = lower(low, items.items[i], next);
    qn_free(items.items);
    return next;
}

// Edges of a SPLIT lie together, so the branches are lowered first.
static int32_t add_split(lowering *low, const int32_t *to, size_t n) {
    qn_gr_program *p = low->program;
    if (n == 1) return to[0];
    if (!qn_grow((void **)&p->edges, &p->cap_edges, p->n_edges + n, sizeof *p->edges)) {
        low->no_memory = true;
        return 0;
    }
    memcpy(p->edges + p->n_edges, to, n * sizeof *to);
    const int32_t node =
        add_node(low, (qn_gr_pnode){.kind = QN_P_SPLIT, .a = (int32_t)p->n_edges, .b = (int32_t)n});
    p->n_edges += n;
    return node;
}

static int compare_nodes(const void *x, const void *y) {
    const int32_t a = *(const int32_t *)x, b = *(const int32_t *)y;
    return (a > b) - (a < b);
}

// Alternatives that lead to the same node are one.
static int32_t lower_alt(lowering *low, int32_t tree, int32_t next) {
    qn_gr_node_list items = {0};
    qn_gr_ast_flatten(low->ast, QN_AST_IS_ALT, tree, &items);
    size_t n = 0;
    for (size_t i = 0; i < items.n; i++)
        if (low->ast->nodes[items.items[i]].productive)
            items.items[n++] = lower(low, items.items[i], next);
    if (n) qsort(items.items, n, sizeof *items.items, compare_nodes);
    size_t n_kept = 0;
    for (size_t i = 0; i < n; i++)
        if (!n_kept || items.items[n_kept - 1] != items.items[i])
            items.items[n_kept++] = items.items[i];
    if (n_kept > low->widest) low->widest = n_kept;
    const int32_t node = n_kept ? add_split(low, items.items, n_kept) : 0;
    qn_free(items.items);
    return node;
}

// X* is a split between X, which comes back, and what follows; only counted loops need a frame.
static int32_t lower_rep(lowering *low, const qn_gr_ast_node *tree, int32_t next) {
    if (!low->ast->nodes[tree->a].productive) return next; // min is 0
    if (tree->min > 1 || tree->max != QN_AST_MANY) {
        const int32_t body = lower(low, tree->a, 0);
        return add_node(
            low,
            (qn_gr_pnode){
                .kind = QN_P_LOOP, .a = body, .next = next, .min = tree->min, .max = tree->max});
    }
    const int32_t pair[2] = {0, next};
    const int32_t split = add_split(low, pair, 2);
    const int32_t body = lower(low, tree->a, split);
    if (low->no_memory || low->is_large) return 0;
    low->program->edges[low->program->nodes[split].a] = body;
    return tree->min ? body : split;
}

static int32_t lower_ref(lowering *low, int32_t rule, int32_t next) {
    if (low->entries[rule] == -1) {
        low->entries[rule] = -2; // wanted
        list_add(low, &low->rules, rule);
    }
    const int32_t node = add_node(low, (qn_gr_pnode){.kind = QN_P_CALL, .a = rule, .next = next});
    list_add(low, &low->calls, node);
    return node;
}

static int32_t lower(lowering *low, int32_t tree, int32_t next) {
    if (low->no_memory || low->is_large || low->ast->failed) return 0;
    const qn_gr_ast_node node = low->ast->nodes[tree];
    if (node.kind == QN_AST_IS_EMPTY) return next;
    const int32_t what = node.kind == QN_AST_IS_REF ? ~node.a : tree;
    const uint64_t key = (((uint64_t)(uint32_t)what << 32) | (uint32_t)next) + 1;
    if (low->seen.cap) {
        const size_t at = memo_slot(&low->seen, key);
        if (low->seen.keys[at]) return low->seen.values[at];
    }
    int32_t made = 0;
    switch ((qn_gr_ast_kind)node.kind) {
    case QN_AST_IS_SET:
        made = add_node(low, (qn_gr_pnode){.kind = QN_P_BYTE, .a = node.a, .next = next});
        break;
    case QN_AST_IS_TOKEN:
        made = add_node(low,
                        (qn_gr_pnode){.kind = QN_P_TOKEN, .a = node.a, .b = node.b, .next = next});
        break;
    case QN_AST_IS_SEQ:
        made = lower_seq(low, tree, next);
        break;
    case QN_AST_IS_ALT:
        made = lower_alt(low, tree, next);
        break;
    case QN_AST_IS_REP:
        made = lower_rep(low, &node, next);
        break;
    case QN_AST_IS_REF:
        made = lower_ref(low, node.a, next);
        break;
    case QN_AST_IS_COUNTED: {
        const int32_t start = lower(low, node.a, 0);
        made = add_node(low,
                        (qn_gr_pnode){.kind = QN_P_COUNTED, .a = start, .b = node.b, .next = next});
        break;
    }
    case QN_AST_IS_PLACE:
        made = add_node(
            low,
            (qn_gr_pnode){
                .kind = QN_P_PLACE, .a = node.a, .min = node.min, .max = node.max, .next = next});
        break;
    default:
        break;
    }
    memo_add(low, key, made);
    return made;
}

static void find_classes(qn_gr_program *p) {
    size_t n = 1; // every byte is in class 0 at first; each set may split every class in two
    for (size_t s = 0; s < p->n_sets && n < 256; s++) {
        int moved[256];
        for (size_t c = 0; c < 256; c++) moved[c] = -1;
        bool stays[256] = {false};
        for (unsigned byte = 0; byte < 256; byte++)
            if (!qn_gr_byte_set_has(&p->sets[s], byte)) stays[p->class_of[byte]] = true;
        for (unsigned byte = 0; byte < 256; byte++) {
            const unsigned byte_class = p->class_of[byte];
            if (!qn_gr_byte_set_has(&p->sets[s], byte) || !stays[byte_class]) continue;
            if (moved[byte_class] < 0) moved[byte_class] = (int)n++;
            p->class_of[byte] = (uint8_t)moved[byte_class];
        }
    }
    p->n_classes = n;
    for (unsigned byte = 0; byte < 256; byte++) p->sample_of[p->class_of[byte]] = (uint8_t)byte;
}

static qn_status lower_all(lowering *low, int32_t root, qn_err *err) {
    qn_gr_program *p = low->program;
    add_node(low, (qn_gr_pnode){.kind = QN_P_RETURN});
    p->start = lower(low, root, 0);
    for (size_t i = 0; i < low->rules.n; i++) {
        const int32_t rule = low->rules.items[i];
        low->entries[rule] = lower(low, low->ast->rules[rule].body, 0);
    }
    if (low->is_large) return QN_FAIL(err, LIMIT, "grammar: more than %d states", MAX_NODES);
    if (low->no_memory) return QN_NOMEM(err, "grammar");
    if (low->widest > QN_CHOICES_MAX)
        return QN_FAIL(err, LIMIT, "grammar: a choice of %zu, at most %d", low->widest,
                       QN_CHOICES_MAX);
    for (size_t i = 0; i < low->calls.n; i++) {
        qn_gr_pnode *call = &p->nodes[low->calls.items[i]];
        call->a = low->entries[call->a];
    }
    return qn_gr_ast_check(low->ast, err);
}

qn_status qn_gr_program_init(qn_gr_program *out, qn_gr_ast *ast, int32_t root, qn_err *err) {
    *out = (qn_gr_program){0};
    lowering low = {.program = out, .ast = ast};
    low.entries = qn_alloc(ast->n_rules + 1, sizeof *low.entries);
    out->sets = qn_alloc(ast->n_sets + 1, sizeof *out->sets);
    qn_status status = low.entries && out->sets ? QN_OK : QN_NOMEM(err, "grammar");
    if (!status) {
        for (size_t i = 0; i < ast->n_rules; i++) low.entries[i] = -1;
        if (ast->n_sets) memcpy(out->sets, ast->sets, ast->n_sets * sizeof *out->sets);
        out->n_sets = ast->n_sets;
        find_classes(out);
        status = lower_all(&low, root, err);
    }
    if (!status) { // moved
        out->lengths = ast->lengths;
        out->n_lengths = ast->n_lengths;
        ast->lengths = NULL;
        ast->n_lengths = ast->cap_lengths = 0;
    }
    qn_free(low.entries);
    qn_free(low.seen.keys);
    qn_free(low.seen.values);
    qn_free(low.rules.items);
    qn_free(low.calls.items);
    if (status) qn_gr_program_deinit(out);
    return status;
}

void qn_gr_program_deinit(qn_gr_program *program) {
    qn_free(program->nodes);
    qn_free(program->edges);
    qn_free(program->sets);
    for (size_t i = 0; i < program->n_lengths; i++) qn_gr_lengths_destroy(program->lengths[i]);
    qn_free(program->lengths);
    *program = (qn_gr_program){0};
}
